/* SPDX-License-Identifier: MIT
 * attention_tiles_metal.metal - attention of prompts: 32 query rows walk the pages of one KV head.
 *
 * A query row is one query head of one row of the step; those of a KV head lie side by side, 32 of them are a
 * tile. Eight simdgroups share each page, in pieces of 32 dimensions, as 8x8 matrices of floats that hold small
 * integers, so that a matrix product is the integer product whatever its order:
 *   scores: k = 64*h + l with h in [-32, 32], l in [-32, 31]; 256 * 2047 * 32 < 2^24 for either plane;
 *   values: P = 128*h + l with h in [0, 128], l in [0, 127]; 64 * 128 * 128 < 2^24.
 * Eight threads own a query row: between the products they hold its scores (eight keys each), then its outputs
 * (four dimensions of each 32), and run the pinned chain on them. Matrices lie in threadgroup memory as 8x8
 * pieces of 64 floats side by side:
 *
 *   scores    [0, 2048) k.h [8 keys][4 dims]   [2048, 4096) k.l   [4096, 5120) q [4 rows][4 dims]
 *   between   [0, 2048) sums, then weights, high [4 rows][8 keys]   [2048, 4096) the same, low
 *   values    [4096, 6144) v [4 dims][8 keys], then sums high [4 rows][4 dims] and low
 */
#include "kernels/attention/attention_page_metal.h"

#define TILES_QUERIES ISO_METAL_ATTENTION_TILE_QUERIES
#define TILES_THREADS ISO_METAL_ATTENTION_TILE_THREADS
#define TILES_OWNERS (TILES_THREADS / TILES_QUERIES) /* threads of a query row */
#define TILES_CHUNK 32                               /* dimensions at a time */
#define TILES_CHUNKS (ISO_HEAD_MAX / TILES_CHUNK)
#define TILES_PIECE 64                               /* floats of an 8x8 piece */
#define TILES_PLANE 2048

static_assert(TILES_OWNERS == 8, "a piece's row of eight keys belongs to one thread");
static_assert(ISO_METAL_ATTENTION_TILE_BYTES == 6144 * 4, "see the picture above");

/* What a thread knows of its query row. */
struct tiles_row {
    device const short *q; /* codes [d] */
    float qs;              /* q_scale * c */
    uint row, head;        /* of the step; row is out of range for a query row beyond the last */
    uint first, last;      /* visible positions */
    uint index, sub;       /* row of the tile; which of its eight threads this is */
};

/* The thread's state of its query row: o [4 * sub + k of each chunk]. */
struct tiles_state {
    float o[TILES_CHUNKS][4], head_o[TILES_CHUNKS][4];
    struct attention_state segment, head;
};

/* --- scores ------------------------------------------------------------------------------------------------- */

/* Four codes of a key, k = 16*byte + nibble, as planes at to and to + TILES_PLANE. */
static inline void tiles_key_planes(threadgroup float *to, uint bytes, uint nibbles, uint shift)
{
    METAL_UNROLL
    for (uint i = 0; i < 4; i++) {
        const int byte = (int)(bytes << (24 - 8 * i)) >> 24;
        const int k = byte * 16 + (int)(nibbles >> (8 * i + shift) & 15);
        const int h = (k + 32) >> 6;
        to[i] = (float)h;
        to[TILES_PLANE + i] = (float)(k - 64 * h);
    }
}

/* Keys of dimensions [first, first + 16) of each half: a thread has four of both for one key. */
static inline void tiles_stage_keys(threadgroup float *memory, device const uchar *page, uint first, uint t)
{
    const uint d = attention_d;
    const uint key = t / 4;
    const uint part = t % 4;
    const uint at = first + 4 * part;
    uint a = 0;
    uint b = 0;
    uint low = 0;
    if (at < d / 2) { /* d / 2 is a multiple of 4 */
        a = *(device const uint *)(page + key * d + at);
        b = *(device const uint *)(page + key * d + d / 2 + at);
        low = *(device const uint *)(page + iso_page_k_lo(d) + key * (d / 2) + at);
    }
    threadgroup float *to = memory + (key / 8 * 4 + part / 2) * TILES_PIECE + key % 8 * 8 + part % 2 * 4;
    tiles_key_planes(to, a, low, 0);
    tiles_key_planes(to + 2 * TILES_PIECE, b, low, 4);
}

/* The query rows' codes of the same dimensions: a thread has four of its own row. */
static inline void tiles_stage_queries(threadgroup float *memory, thread const struct tiles_row &r, bool in, uint first)
{
    const uint half_d = attention_d / 2;
    const uint at = first + r.sub % 4 * 4;
    short4 q = short4(0);
    if (in && at < half_d) q = *(device const short4 *)(r.q + r.sub / 4 * half_d + at);
    threadgroup float *to = memory + 2 * TILES_PLANE + (r.index / 8 * 4 + r.sub / 2) * TILES_PIECE + r.index % 8 * 8 +
                            r.sub % 2 * 4;
    METAL_UNROLL
    for (uint i = 0; i < 4; i++) to[i] = (float)q[i];
}

/* Sums of q times both planes of k for 32 query rows and 64 keys, to [0, 4096). A simdgroup makes 16 rows x 16
 * keys. */
static inline void tiles_dots(threadgroup float *memory, device const uchar *page, thread const struct tiles_row &r,
                              bool in, uint t)
{
    const uint simd = t / METAL_LANES;
    const uint q0 = simd / 4 * 2;
    const uint k0 = simd % 4 * 2;
    simdgroup_float8x8 sum[2][2][2]; /* plane, rows, keys */
    METAL_UNROLL
    for (uint i = 0; i < 8; i++) sum[i / 4][i / 2 % 2][i % 2] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (uint first = 0; first < attention_d / 2; first += TILES_CHUNK / 2) {
        tiles_stage_keys(memory, page, first, t);
        tiles_stage_queries(memory, r, in, first);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint c = 0; c < 4; c++) {
            simdgroup_float8x8 q[2];
            simdgroup_load(q[0], memory + 2 * TILES_PLANE + (q0 * 4 + c) * TILES_PIECE, 8);
            simdgroup_load(q[1], memory + 2 * TILES_PLANE + (q0 * 4 + 4 + c) * TILES_PIECE, 8);
            METAL_UNROLL
            for (uint i = 0; i < 4; i++) {
                const uint plane = i / 2;
                const uint j = i % 2;
                simdgroup_float8x8 k;
                simdgroup_load(k, memory + plane * TILES_PLANE + ((k0 + j) * 4 + c) * TILES_PIECE, 8, ulong2(0), true);
                simdgroup_multiply_accumulate(sum[plane][0][j], q[0], k, sum[plane][0][j]);
                simdgroup_multiply_accumulate(sum[plane][1][j], q[1], k, sum[plane][1][j]);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    METAL_UNROLL
    for (uint i = 0; i < 8; i++) {
        const uint plane = i / 4;
        const uint row = i / 2 % 2;
        const uint key = i % 2;
        threadgroup float *to = memory + plane * TILES_PLANE + ((q0 + row) * 8 + k0 + key) * TILES_PIECE;
        simdgroup_store(sum[plane][row][key], to, 8);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

/* --- weights ------------------------------------------------------------------------------------------------ */

static inline float tiles_row_max(float v)
{
    METAL_UNROLL
    for (ushort s = 1; s < TILES_OWNERS; s *= 2) {
        const float other = simd_shuffle_xor(v, s);
        v = other > v ? other : v;
    }
    return v;
}

static inline uint tiles_row_max(uint v)
{
    METAL_UNROLL
    for (ushort s = 1; s < TILES_OWNERS; s *= 2) v = max(v, simd_shuffle_xor(v, s));
    return v;
}

static inline int tiles_row_sum(int v)
{
    METAL_UNROLL
    for (ushort s = 1; s < TILES_OWNERS; s *= 2) v += simd_shuffle_xor(v, s);
    return v;
}

/* The thread's eight sums become eight weights in the same place; the page's (m, l) joins the row's segment.
 * Returns the factors for o. */
static inline struct attention_factors tiles_weigh(threadgroup float *memory, thread struct attention_state &segment,
                                                   device const uchar *page, struct attention_view view,
                                                   thread const struct tiles_row &r,
                                                   constant struct iso_metal_attention &a)
{
    threadgroup float *own = memory + (r.index / 8 * 8 + r.sub) * TILES_PIECE + r.index % 8 * 8;
    device const float *k_scale = (device const float *)(page + iso_page_k_scale(attention_d)) + 8 * r.sub;
    device const float *v_scale = (device const float *)(page + iso_page_v_scale(attention_d)) + 8 * r.sub;
    float s[8], vs[8];
    float top = view.seen ? ATTENTION_LOWEST : 0.0f;
    uint bits = 0;
    METAL_UNROLL
    for (uint i = 0; i < 8; i++) {
        const int key = (int)(8 * r.sub + i);
        const int dot = (int)own[i] * 64 + (int)own[TILES_PLANE + i];
        s[i] = attention_score(dot, r.qs, k_scale[i], a.cap, a.inv_cap);
        vs[i] = v_scale[i];
        if (!view.seen || key < view.lo || key > view.hi) continue;
        top = s[i] > top ? s[i] : top;
        bits = max(bits, ISO_AS_U32(vs[i]));
    }
    const float m = attention_ceiling(tiles_row_max(top));
    const int e_v = attention_exponent(tiles_row_max(bits));
    int l = 0;
    METAL_UNROLL
    for (uint i = 0; i < 8; i++) {
        const int key = (int)(8 * r.sub + i);
        const bool seen = view.seen && key >= view.lo && key <= view.hi;
        const struct attention_weight w = attention_weigh(s[i], m, vs[i], iso_ldexp1(14 - e_v));
        const int p = seen ? w.p : 0;
        l += seen ? w.share : 0;
        own[i] = (float)(p >> 7);
        own[TILES_PLANE + i] = (float)(p & 127);
    }
    l = tiles_row_sum(l);
    struct attention_factors f;
    f.keep = 1.0f;
    f.take = 0.0f;
    if (view.seen) f = attention_merge(segment, m, (float)l, iso_ldexp1(e_v - 14));
    return f;
}

/* --- values ------------------------------------------------------------------------------------------------- */

/* Values of dimensions [first, first + 32): a thread has eight keys of one. */
static inline void tiles_stage_values(threadgroup float *memory, device const uchar *page, uint first, uint t)
{
    const uint dim = t / 8;
    const uint keys = t % 8;
    uint2 v = uint2(0);
    if (first + dim < attention_d) {
        v = *(device const uint2 *)(page + iso_page_v(attention_d) + (first + dim) * ATTENTION_KEYS + 8 * keys);
    }
    threadgroup float *to = memory + 2 * TILES_PLANE + (dim / 8 * 8 + keys) * TILES_PIECE + dim % 8 * 8;
    METAL_UNROLL
    for (uint i = 0; i < 8; i++) to[i] = (float)((int)(v[i / 4] << (24 - i % 4 * 8)) >> 24);
}

/* Sums of both planes of weights and the staged values; a simdgroup makes 8 rows x 16 dimensions. They take the
 * place of the values. */
static inline void tiles_products(threadgroup float *memory, uint t)
{
    const uint simd = t / METAL_LANES;
    const uint row = simd % 4;
    const uint dim = simd / 4 * 2;
    simdgroup_float8x8 sum[2][2]; /* plane, dimensions */
    METAL_UNROLL
    for (uint i = 0; i < 4; i++) sum[i / 2][i % 2] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (uint k = 0; k < 8; k++) {
        simdgroup_float8x8 p[2];
        simdgroup_load(p[0], memory + (row * 8 + k) * TILES_PIECE, 8);
        simdgroup_load(p[1], memory + TILES_PLANE + (row * 8 + k) * TILES_PIECE, 8);
        METAL_UNROLL
        for (uint j = 0; j < 2; j++) {
            simdgroup_float8x8 v;
            simdgroup_load(v, memory + 2 * TILES_PLANE + ((dim + j) * 8 + k) * TILES_PIECE, 8, ulong2(0), true);
            simdgroup_multiply_accumulate(sum[0][j], p[0], v, sum[0][j]);
            simdgroup_multiply_accumulate(sum[1][j], p[1], v, sum[1][j]);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    METAL_UNROLL
    for (uint i = 0; i < 4; i++) {
        threadgroup float *to = memory + 2 * TILES_PLANE + i / 2 * (TILES_PLANE / 2);
        simdgroup_store(sum[i / 2][i % 2], to + (row * 4 + dim + i % 2) * TILES_PIECE, 8);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

/* o of the thread's row takes the page's sums of weights and values. */
static inline void tiles_values(thread struct tiles_state &st, threadgroup float *memory, device const uchar *page,
                                struct attention_factors f, bool seen, thread const struct tiles_row &r, uint t)
{
    threadgroup const float *own = memory + 2 * TILES_PLANE + (r.index / 8 * 4 + r.sub / 2) * TILES_PIECE +
                                   r.index % 8 * 8 + r.sub % 2 * 4;
    METAL_UNROLL
    for (uint c = 0; c < TILES_CHUNKS; c++) {
        if (c * TILES_CHUNK >= attention_d) continue;
        tiles_stage_values(memory, page, c * TILES_CHUNK, t);
        threadgroup_barrier(mem_flags::mem_threadgroup); /* the weights of the first chunk wait for this one too */
        tiles_products(memory, t);
        METAL_UNROLL
        for (uint k = 0; k < 4; k++) {
            const int sum = (int)own[k] * 128 + (int)own[TILES_PLANE / 2 + k];
            const float taken = attention_take(st.o[c][k], (float)sum, f);
            st.o[c][k] = seen ? taken : st.o[c][k];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

/* --- segments and heads ------------------------------------------------------------------------------------- */

/* Ends the segment: its state joins the head's, and an empty one starts. */
static inline void tiles_end_segment(thread struct tiles_state &st)
{
    if (st.segment.empty) return;
    const struct attention_factors f = attention_merge(st.head, st.segment.m, st.segment.l, 1.0f);
    METAL_UNROLL
    for (uint i = 0; i < 4 * TILES_CHUNKS; i++) {
        if (i / 4 * TILES_CHUNK >= attention_d) continue; /* a head's other chunks take no register */
        thread float &o = st.o[i / 4][i % 4];
        thread float &head = st.head_o[i / 4][i % 4];
        head = attention_take(head, iso_guard(o), f);
        o = 0.0f;
    }
    st.segment.m = 0.0f;
    st.segment.l = 0.0f;
    st.segment.empty = true;
}

/* Butterfly of the row over its eight threads: strides 1, 2 in a thread's four dimensions, 4, 8, 16 between
 * threads, 32 and more between chunks. */
static inline void tiles_butterfly(thread float (&x)[TILES_CHUNKS][4], uint sub)
{
    const uint block = iso_butterfly_block(attention_d);
    METAL_UNROLL
    for (uint c = 0; c < TILES_CHUNKS; c++) {
        if (c * TILES_CHUNK >= attention_d) continue;
        METAL_UNROLL
        for (uint s = 1; s <= 2; s *= 2) { /* d is a multiple of 8: so is the block */
            METAL_UNROLL
            for (uint k = 0; k < 4; k++) {
                if (k & s) continue;
                const float u = x[c][k];
                const float v = x[c][k + s];
                x[c][k] = u + v;
                x[c][k + s] = u - v;
            }
        }
        for (uint s = 1; s < TILES_OWNERS && 4 * s < block; s *= 2) {
            METAL_UNROLL
            for (uint k = 0; k < 4; k++) {
                const float other = simd_shuffle_xor(x[c][k], (ushort)s);
                x[c][k] = sub & s ? other - x[c][k] : x[c][k] + other;
            }
        }
    }
    METAL_UNROLL
    for (uint s = 1; s < TILES_CHUNKS; s *= 2) {
        if (TILES_CHUNK * s >= block) continue;
        METAL_UNROLL
        for (uint i = 0; i < 4 * TILES_CHUNKS; i++) {
            const uint c = i / 4;
            if ((c & s) || c * TILES_CHUNK >= attention_d) continue;
            const float u = x[c][i % 4];
            const float v = x[c + s][i % 4];
            x[c][i % 4] = u + v;
            x[c + s][i % 4] = u - v;
        }
    }
}

/* The result of section 10 for the thread's part of its row. out [d]. */
static inline void tiles_finish(device float *out, thread struct tiles_state &st, bool in, uint sub)
{
    const float r = attention_inverse(st.head);
    const float inv = attention_unblock();
    METAL_UNROLL
    for (uint i = 0; i < 4 * TILES_CHUNKS; i++) {
        if (i / 4 * TILES_CHUNK >= attention_d) continue;
        const float x = st.head_o[i / 4][i % 4] * r;
        st.head_o[i / 4][i % 4] = iso_guard(x);
    }
    tiles_butterfly(st.head_o, sub);
    if (!in) return;
    METAL_UNROLL
    for (uint c = 0; c < TILES_CHUNKS; c++) {
        const uint e = c * TILES_CHUNK + 4 * sub;
        if (e >= attention_d) continue;
        float x[4];
        METAL_UNROLL
        for (uint k = 0; k < 4; k++) {
            const float scaled = st.head_o[c][k] * inv;
            x[k] = iso_guard(scaled);
        }
        *(device float4 *)(out + e) = float4(x[0], x[1], x[2], x[3]);
    }
}

/* Rows of the step in [from, end) that belong to one session, and the pages that any of them sees. */
struct tiles_run {
    uint session, end;
    uint first_page, last_page; /* none: first > last */
};

static inline struct tiles_run tiles_run_of(device const struct metal_row *rows, uint from, uint stop, uint layer_class)
{
    struct tiles_run run;
    run.session = rows[from].session;
    uint first = 0xffffffffu;
    uint last = 0;
    for (run.end = from; run.end < stop && rows[run.end].session == run.session; run.end++) {
        const struct metal_row row = rows[run.end];
        if (row.first_visible[layer_class] > row.position) continue;
        first = min(first, row.first_visible[layer_class]);
        last = max(last, row.position);
    }
    run.first_page = first / ATTENTION_KEYS;
    run.last_page = last / ATTENTION_KEYS;
    return run;
}

/* All threads walk the pages of a run; rows of other runs see nothing of them. */
static inline void tiles_walk(thread struct tiles_state &st, threadgroup float *memory, device const uchar *pages,
                              device const uint *tables, struct tiles_run run, uint from, uint kv_head,
                              thread const struct tiles_row &r, constant struct iso_metal_attention &a, uint t)
{
    const bool mine = r.row >= from && r.row < run.end;
    for (uint p = run.first_page; p <= run.last_page; p++) {
        device const uchar *page = attention_page(pages, tables, a, run.session, p, kv_head);
        struct attention_view view = attention_view_of(r.first, r.last, p);
        view.seen = view.seen && mine;
        tiles_dots(memory, page, r, r.row < a.n_rows, t);
        const struct attention_factors f = tiles_weigh(memory, st.segment, page, view, r, a);
        tiles_values(st, memory, page, f, view.seen, r, t);
        if (p % ISO_SEGMENT_PAGES == ISO_SEGMENT_PAGES - 1 || p == run.last_page) tiles_end_segment(st);
    }
}

[[max_total_threads_per_threadgroup(ISO_METAL_ATTENTION_TILE_THREADS)]]
kernel void iso_attention_tiles(constant struct iso_metal_attention &a [[buffer(0)]],
                                device const short *q_codes [[buffer(1)]],
                                device const float *q_scales [[buffer(2)]],
                                device const struct metal_row *rows [[buffer(3)]],
                                device float *out [[buffer(4)]],
                                device const uchar *pages [[buffer(5)]],
                                device const uint *tables [[buffer(6)]],
                                threadgroup float *memory [[threadgroup(0)]],
                                uint3 at [[threadgroup_position_in_grid]],
                                uint3 groups [[threadgroups_per_grid]],
                                uint t [[thread_index_in_threadgroup]])
{
    const uint group = a.n_heads / a.n_kv_heads;
    const uint kv_head = at.y;
    const uint n_q = a.n_rows * group;
    const uint first_q = (groups.x - 1 - at.x) * TILES_QUERIES; /* late rows see more keys: they start first */
    struct tiles_row r;
    r.index = t / TILES_OWNERS;
    r.sub = t % TILES_OWNERS;
    const uint query = first_q + r.index;
    const bool in = query < n_q;
    const size_t flat = (size_t)kv_head * n_q + (in ? query : first_q);
    r.q = q_codes + flat * attention_d;
    r.qs = q_scales[flat] * a.c;
    r.row = in ? query / group : 0xffffffffu;
    r.head = kv_head * group + query % group;
    const struct metal_row row = rows[in ? r.row : first_q / group];
    r.first = row.first_visible[a.layer_class];
    r.last = row.position;
    struct tiles_state st;
    METAL_UNROLL
    for (uint i = 0; i < 4 * TILES_CHUNKS; i++) st.o[i / 4][i % 4] = st.head_o[i / 4][i % 4] = 0.0f;
    st.segment.m = st.head.m = 0.0f;
    st.segment.l = st.head.l = 0.0f;
    st.segment.empty = st.head.empty = true;
    const uint stop = min((first_q + TILES_QUERIES - 1) / group + 1, a.n_rows);
    for (uint from = first_q / group; from < stop;) {
        const struct tiles_run run = tiles_run_of(rows, from, stop, a.layer_class);
        tiles_walk(st, memory, pages, tables, run, from, kv_head, r, a, t);
        from = run.end;
    }
    tiles_finish(out + ((size_t)(in ? r.row : 0) * a.n_heads + r.head) * attention_d, st, in, r.sub);
}
