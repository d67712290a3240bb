/* SPDX-License-Identifier: MIT
 * attention_split_metal.metal - attention of decode rows: a group per row, four query heads and segment.
 *
 * Each of four simdgroups takes one page at a time. Scores: the dimensions of a key are spread over as many lanes
 * as read one row of the page side by side (eight dimensions a lane, those of a packed byte together), and
 * integers are added between lanes. Values: a lane has dimensions of its own, whose 64 keys lie side by side.
 * Products are of floats that hold integers; beside each stands the bound that makes it exact.
 */
#include "kernels/attention/attention_page_metal.h"

#define SPLIT_QUERIES ISO_METAL_ATTENTION_SPLIT_QUERIES
#define SPLIT_SIMDS (ISO_METAL_ATTENTION_SPLIT_THREADS / 32)
#define SPLIT_DIMS (ISO_HEAD_MAX / ISO_METAL_ATTENTION_SPLIT_THREADS) /* dimensions of a thread in a merge */
#define SPLIT_STATE 4 /* floats before o of a stored state: m, l, two not used */

static_assert(SPLIT_SIMDS == ISO_METAL_ATTENTION_WAVE, "a simdgroup per page in hand");

/* What a simdgroup works on. */
struct split_work {
    device const short *q;       /* codes of the first query head [n_q][d] */
    device const float *q_scale; /* [n_q] */
    uint n_q;
    uint lane;
};

/* Lanes that share one key: d / 8 rounded up to a power of two. */
static inline uint split_key_lanes(void)
{
    uint n = 1;
    while (n * 8 < attention_d) n *= 2;
    return n;
}

/* Eight query codes of each head: dimensions 4t.. and d/2 + 4t.. of lane t of a key. */
static inline void split_queries(thread float (&q)[SPLIT_QUERIES][8], thread const struct split_work &w, uint t)
{
    METAL_UNROLL
    for (uint i = 0; i < SPLIT_QUERIES; i++) {
        METAL_UNROLL
        for (uint k = 0; k < 8; k++) q[i][k] = 0.0f;
        if (i >= w.n_q || t * 8 >= attention_d) continue;
        device const short *at = w.q + i * attention_d + 4 * t;
        const short4 a = *(device const short4 *)at;
        const short4 b = *(device const short4 *)(at + attention_d / 2);
        METAL_UNROLL
        for (uint k = 0; k < 4; k++) {
            q[i][k] = (float)a[k];
            q[i][4 + k] = (float)b[k];
        }
    }
}

/* The same eight dimensions of a key. */
static inline void split_key(thread float (&k)[8], device const uchar *page, uint key, uint t)
{
    const uint d = attention_d;
    uint first = 0;
    uint second = 0;
    uint low = 0;
    if (t * 8 < d) {
        first = *(device const uint *)(page + key * d + 4 * t);
        second = *(device const uint *)(page + key * d + d / 2 + 4 * t);
        low = *(device const uint *)(page + iso_page_k_lo(d) + key * (d / 2) + 4 * t);
    }
    METAL_UNROLL
    for (uint i = 0; i < 4; i++) {
        const int a = (int)(first << (24 - 8 * i)) >> 24; /* signed bytes */
        const int b = (int)(second << (24 - 8 * i)) >> 24;
        const int la = (int)(low >> (8 * i) & 15);
        const int lb = (int)(low >> (8 * i + 4) & 15);
        k[i] = (float)(a * 16 + la);
        k[4 + i] = (float)(b * 16 + lb);
    }
}

/* A lane's part of a dot product: four products at a time are exact, 4 * 2047 * 2048 < 2^24. */
static inline int split_dot(thread const float (&q)[8], thread const float (&k)[8])
{
    int sum = 0;
    METAL_UNROLL
    for (uint h = 0; h < 8; h += 4) {
        float x = q[h] * k[h];
        x = ISO_FMA(q[h + 1], k[h + 1], x);
        x = ISO_FMA(q[h + 2], k[h + 2], x);
        x = ISO_FMA(q[h + 3], k[h + 3], x);
        sum += (int)x;
    }
    return sum;
}

/* Sums of q*k of all 64 keys: lane l gets those of key split_own_key() and of the one 32 further on. */
static inline void split_dots(thread int (&dot)[2][SPLIT_QUERIES], device const uchar *page,
                              thread const struct split_work &w)
{
    const uint lanes = split_key_lanes();
    const uint t = w.lane % lanes;
    float q[SPLIT_QUERIES][8];
    split_queries(q, w, t);
    METAL_UNROLL
    for (uint half_page = 0; half_page < 2; half_page++) {
        METAL_UNROLL
        for (uint i = 0; i < SPLIT_QUERIES; i++) dot[half_page][i] = 0;
        for (uint pass = 0; pass < lanes; pass++) {
            float k[8];
            split_key(k, page, half_page * 32 + pass * (METAL_LANES / lanes) + w.lane / lanes, t);
            METAL_UNROLL
            for (uint i = 0; i < SPLIT_QUERIES; i++) {
                if (i >= w.n_q) continue;
                int sum = split_dot(q[i], k);
                for (uint s = 1; s < lanes; s *= 2) sum += simd_shuffle_xor(sum, (ushort)s);
                if (pass == t) dot[half_page][i] = sum;
            }
        }
    }
}

static inline uint split_own_key(uint lane)
{
    const uint lanes = split_key_lanes();
    return lane % lanes * (METAL_LANES / lanes) + lane / lanes;
}

/* Weights [n_q][64] of a page and (m, l, unit) of each query head from its sums. */
static inline void split_weigh(threadgroup short *weights, threadgroup float *result, device const uchar *page,
                               struct attention_view view, thread const int (&dot)[2][SPLIT_QUERIES],
                               constant struct iso_metal_attention &a, thread const struct split_work &w)
{
    const uint own = split_own_key(w.lane);
    device const float *k_scale = (device const float *)(page + iso_page_k_scale(attention_d));
    device const float *v_scale = (device const float *)(page + iso_page_v_scale(attention_d));
    float ks[2], vs[2];
    bool seen[2];
    uint bits = 0;
    METAL_UNROLL
    for (uint h = 0; h < 2; h++) {
        const int key = (int)(own + 32 * h);
        ks[h] = k_scale[key];
        vs[h] = v_scale[key];
        seen[h] = key >= view.lo && key <= view.hi;
        if (seen[h]) bits = max(bits, ISO_AS_U32(vs[h]));
    }
    const int e_v = attention_exponent(simd_max(bits));
    METAL_UNROLL
    for (uint i = 0; i < SPLIT_QUERIES; i++) {
        if (i >= w.n_q) continue;
        const float qs = w.q_scale[i] * a.c;
        float s[2];
        float top = ATTENTION_LOWEST;
        METAL_UNROLL
        for (uint h = 0; h < 2; h++) {
            s[h] = attention_score(dot[h][i], qs, ks[h], a.cap, a.inv_cap);
            if (seen[h] && s[h] > top) top = s[h];
        }
        const float m = attention_ceiling(simd_max(top));
        int l = 0;
        METAL_UNROLL
        for (uint h = 0; h < 2; h++) {
            const struct attention_weight x = attention_weigh(s[h], m, vs[h], iso_ldexp1(14 - e_v));
            l += seen[h] ? x.share : 0;
            weights[i * ATTENTION_KEYS + own + 32 * h] = (short)(seen[h] ? x.p : 0);
        }
        l = simd_sum(l);
        if (w.lane == 0) {
            result[4 * i] = m;
            result[4 * i + 1] = (float)l;
            result[4 * i + 2] = iso_ldexp1(e_v - 14);
        }
    }
}

/* Sums of weights and values, f32 [n_q][d]. Eight keys at a time are exact: 8 * 2^14 * 2^7 = 2^24. */
static inline void split_values(threadgroup float *sums, threadgroup const short *weights, device const uchar *page,
                                thread const struct split_work &w)
{
    for (uint e = w.lane; e < attention_d; e += METAL_LANES) {
        device const uint4 *v = (device const uint4 *)(page + iso_page_v(attention_d) + e * ATTENTION_KEYS);
        const uint4 part[4] = {v[0], v[1], v[2], v[3]};
        int sum[SPLIT_QUERIES] = {0, 0, 0, 0};
        METAL_UNROLL
        for (uint b = 0; b < 8; b++) {
            float x[8];
            METAL_UNROLL
            for (uint k = 0; k < 8; k++) {
                x[k] = (float)((int)(part[b / 2][b % 2 * 2 + k / 4] << (24 - k % 4 * 8)) >> 24);
            }
            METAL_UNROLL
            for (uint i = 0; i < SPLIT_QUERIES; i++) {
                if (i >= w.n_q) continue;
                threadgroup const short4 *p = (threadgroup const short4 *)(weights + i * ATTENTION_KEYS + 8 * b);
                const short4 p0 = p[0];
                const short4 p1 = p[1];
                float s = 0.0f;
                METAL_UNROLL
                for (uint k = 0; k < 4; k++) {
                    s = ISO_FMA((float)p0[k], x[k], s);
                    s = ISO_FMA((float)p1[k], x[4 + k], s);
                }
                sum[i] += (int)s;
            }
        }
        METAL_UNROLL
        for (uint i = 0; i < SPLIT_QUERIES; i++) {
            if (i < w.n_q) sums[i * attention_d + e] = (float)sum[i];
        }
    }
}

/* A thread's o of each query head and of dimensions t, t + 128, and the states of the heads, which every thread
 * keeps for itself: a few operations more, a barrier less. */
struct split_states {
    float o[SPLIT_QUERIES][SPLIT_DIMS];
    struct attention_state s[SPLIT_QUERIES];
};

/* n pages' results join the segment's state in ascending order. */
static inline void split_join(thread struct split_states &st, threadgroup const float *sums,
                              threadgroup const float *result, uint n, uint n_q, uint t)
{
    for (uint p = 0; p < n; p++) {
        METAL_UNROLL
        for (uint i = 0; i < SPLIT_QUERIES; i++) {
            if (i >= n_q) continue;
            threadgroup const float *r = result + 4 * (p * SPLIT_QUERIES + i);
            const struct attention_factors f = attention_merge(st.s[i], r[0], r[1], r[2]);
            METAL_UNROLL
            for (uint k = 0; k < SPLIT_DIMS; k++) {
                const uint e = t + k * ISO_METAL_ATTENTION_SPLIT_THREADS;
                if (e < attention_d) st.o[i][k] = attention_take(st.o[i][k], sums[(p * n_q + i) * attention_d + e], f);
            }
        }
    }
}

/* Butterfly of a head's row and what follows it, by one simdgroup. x: o*r, guarded. */
static inline void split_finish(device float *out, thread float *x, uint lane)
{
    const float inv = attention_unblock();
    metal_butterfly(x, attention_d, lane);
    METAL_UNROLL
    for (uint j = 0; j < METAL_HEAD_REGS; j++) {
        const float scaled = x[j] * inv;
        if (lane + 32 * j < attention_d) out[lane + 32 * j] = iso_guard(scaled);
    }
}

/* The only segment is the head: its state is the head's, because an empty one takes it as it is. */
static inline void split_whole(device float *out, thread const struct split_states &st, threadgroup float *rows,
                               uint n_q, uint t)
{
    const uint d = attention_d;
    METAL_UNROLL
    for (uint i = 0; i < SPLIT_QUERIES; i++) {
        if (i >= n_q) continue;
        const float r = attention_inverse(st.s[i]);
        METAL_UNROLL
        for (uint k = 0; k < SPLIT_DIMS; k++) {
            const uint e = t + k * ISO_METAL_ATTENTION_SPLIT_THREADS;
            const float x = iso_guard(st.o[i][k]) * r;
            if (e < d) rows[i * d + e] = iso_guard(x);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint lane = t % METAL_LANES;
    for (uint i = t / METAL_LANES; i < n_q; i += SPLIT_SIMDS) {
        float x[METAL_HEAD_REGS];
        METAL_UNROLL
        for (uint j = 0; j < METAL_HEAD_REGS; j++) {
            x[j] = 0.0f;
            if (lane + 32 * j < d) x[j] = rows[i * d + lane + 32 * j];
        }
        split_finish(out + i * d, x, lane);
    }
}

/* The segment's state of each query head to memory, stride floats from head to head. */
static inline void split_store(device float *to, thread const struct split_states &st, size_t stride, uint n_q, uint t)
{
    METAL_UNROLL
    for (uint i = 0; i < SPLIT_QUERIES; i++) {
        if (i >= n_q) continue;
        device float *s = to + i * stride;
        METAL_UNROLL
        for (uint k = 0; k < SPLIT_DIMS; k++) {
            const uint e = t + k * ISO_METAL_ATTENTION_SPLIT_THREADS;
            if (e < attention_d) s[SPLIT_STATE + e] = iso_guard(st.o[i][k]);
        }
        if (t == 0) {
            s[0] = st.s[i].m;
            s[1] = st.s[i].l;
        }
    }
}

[[max_total_threads_per_threadgroup(ISO_METAL_ATTENTION_SPLIT_THREADS)]]
kernel void iso_attention_split(constant struct iso_metal_attention &a [[buffer(0)]],
                                device const short *q_codes [[buffer(1)]],
                                device const float *q_scales [[buffer(2)]],
                                device const struct metal_row *rows [[buffer(3)]],
                                device float *out [[buffer(4)]],
                                device const uchar *pages [[buffer(5)]],
                                device const uint *tables [[buffer(6)]],
                                device float *states [[buffer(7)]],
                                threadgroup float *memory [[threadgroup(0)]],
                                uint3 at [[threadgroup_position_in_grid]],
                                uint t [[thread_index_in_threadgroup]])
{
    const uint d = attention_d;
    const uint group = a.n_heads / a.n_kv_heads;
    const uint tiles = (group + SPLIT_QUERIES - 1) / SPLIT_QUERIES;
    const uint kv_head = at.y / tiles;
    const uint first_q = at.y % tiles * SPLIT_QUERIES;
    const struct metal_row row = rows[at.x];
    const uint first = row.first_visible[a.layer_class];
    const uint last = row.position;
    const uint segment = first / ATTENTION_SPAN + at.z;
    if (at.z != 0 && (first > last || segment * ATTENTION_SPAN > last)) return; /* the whole group */
    const size_t query = ((size_t)kv_head * a.n_rows + at.x) * group + first_q;
    struct split_work w;
    w.n_q = min(group - first_q, (uint)SPLIT_QUERIES);
    w.q = q_codes + query * d;
    w.q_scale = q_scales + query;
    w.lane = t % METAL_LANES;
    threadgroup float *result = memory;
    threadgroup float *sums = memory + 4 * ISO_METAL_ATTENTION_WAVE * SPLIT_QUERIES;
    threadgroup short *weights = (threadgroup short *)(sums + ISO_METAL_ATTENTION_WAVE * w.n_q * d);
    const uint simd = t / METAL_LANES;
    struct split_states st;
    METAL_UNROLL
    for (uint i = 0; i < SPLIT_QUERIES; i++) {
        st.s[i].m = 0.0f;
        st.s[i].l = 0.0f;
        st.s[i].empty = true;
        METAL_UNROLL
        for (uint k = 0; k < SPLIT_DIMS; k++) st.o[i][k] = 0.0f;
    }
    const uint from = max(first / ATTENTION_KEYS, segment * ISO_SEGMENT_PAGES);
    const uint to = first > last ? 0 : min(last / ATTENTION_KEYS + 1, (segment + 1) * ISO_SEGMENT_PAGES);
    for (uint base = from; base < to; base += ISO_METAL_ATTENTION_WAVE) {
        const uint p = base + simd;
        if (p < to) {
            device const uchar *page = attention_page(pages, tables, a, row.session, p, kv_head);
            threadgroup short *own = weights + simd * w.n_q * ATTENTION_KEYS;
            int dot[2][SPLIT_QUERIES];
            split_dots(dot, page, w);
            split_weigh(own, result + 4 * simd * SPLIT_QUERIES, page, attention_view_of(first, last, p), dot, a, w);
            simdgroup_barrier(mem_flags::mem_threadgroup);
            split_values(sums + simd * w.n_q * d, own, page, w);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        split_join(st, sums, result, min(to - base, (uint)ISO_METAL_ATTENTION_WAVE), w.n_q, t);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    const size_t head = (size_t)at.x * a.n_heads + kv_head * group + first_q;
    if (attention_whole) {
        split_whole(out + head * d, st, sums, w.n_q, t);
    } else {
        const size_t stride = (size_t)a.max_segments * (SPLIT_STATE + d);
        split_store(states + head * stride + (size_t)at.z * (SPLIT_STATE + d), st, stride, w.n_q, t);
    }
}

/* A simdgroup per row and head: segments in ascending order, then the result. */
[[max_total_threads_per_threadgroup(ISO_METAL_ATTENTION_MERGE_THREADS)]]
kernel void iso_attention_merge(constant struct iso_metal_attention &a [[buffer(0)]],
                                device const struct metal_row *rows [[buffer(3)]],
                                device float *out [[buffer(4)]],
                                device const float *states [[buffer(7)]],
                                uint3 at [[threadgroup_position_in_grid]],
                                uint lane [[thread_index_in_threadgroup]])
{
    const uint d = attention_d;
    const struct metal_row row = rows[at.x];
    const uint first = row.first_visible[a.layer_class];
    const uint n = first > row.position ? 0 : row.position / ATTENTION_SPAN - first / ATTENTION_SPAN + 1;
    const size_t head = (size_t)at.x * a.n_heads + at.y;
    device const float *s = states + head * a.max_segments * (SPLIT_STATE + d);
    struct attention_state st;
    st.m = 0.0f;
    st.l = 0.0f;
    st.empty = true;
    float x[METAL_HEAD_REGS] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (uint i = 0; i < n; i++, s += SPLIT_STATE + d) {
        const struct attention_factors f = attention_merge(st, s[0], s[1], 1.0f);
        METAL_UNROLL
        for (uint j = 0; j < METAL_HEAD_REGS; j++) {
            if (lane + 32 * j < d) x[j] = attention_take(x[j], s[SPLIT_STATE + lane + 32 * j], f);
        }
    }
    const float r = attention_inverse(st);
    METAL_UNROLL
    for (uint j = 0; j < METAL_HEAD_REGS; j++) {
        const float scaled = x[j] * r;
        x[j] = iso_guard(scaled);
    }
    split_finish(out + head * d, x, lane);
}
