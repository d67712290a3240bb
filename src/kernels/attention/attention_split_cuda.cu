/* SPDX-License-Identifier: MIT
 * attention_split_cuda.cu - attention of decode rows: a block per row, KV head and segment.
 *
 * Each of eight warps takes one page of the segment for up to 16 query heads. Bytes go from memory
 * straight into the fragments of mma.sync: which dimension (or key) a fragment's byte stands for does
 * not matter for the sum as long as both operands agree, so a lane loads 16 (or 8) bytes side by side. The
 * eight results are merged in ascending order, then, in a second kernel, the segments.
 */
#include "kernels/attention/attention_page_cuda.cuh"
#include "kernels/shared/cuda_launch.cuh"

#define WARPS ISO_SEGMENT_PAGES
#define THREADS (WARPS * WARP)
#define STATE_HEAD 4 /* floats before o of a stored state: m, l, filled, 0 */

/* D: head size. A lane's piece of a row of D high bytes is W bytes, for D/(4W) chunks; the packed low
 * nibbles of a chunk and of the one D/2 further on are in the same bytes. */
template <int D> struct shape {
    static constexpr int W = D >= 128 ? 16 : 8;      /* bytes per lane and chunk */
    static constexpr int CHUNK = 4 * W;              /* dimensions per chunk */
    static constexpr int CHUNKS = D / CHUNK;
    static constexpr int STEPS = W / 8;              /* mma steps of 32 per chunk */
    static constexpr int WORDS = W / 4;
};

extern "C" int iso_cuda_attention_splits(uint32_t d)
{
    return d == 64 || d == 128 || d == 256;
}

extern "C" size_t iso_cuda_attention_states(uint32_t n_rows, uint32_t n_heads, uint32_t d, uint32_t max_segments)
{
    return (size_t)n_rows * n_heads * max_segments * (STATE_HEAD + d) * sizeof(float);
}

template <int N> static __device__ __forceinline__ void load_words(uint32_t *w, const void *p)
{
    if constexpr (N == 4) {
        const uint4 v = __ldg((const uint4 *)p);
        w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
    } else {
        const uint2 v = __ldg((const uint2 *)p);
        w[0] = v.x, w[1] = v.y;
    }
}

/* Query codes of the thread's two rows as fragments: a[step] of high and low parts of a chunk. */
template <int D>
static __device__ __forceinline__ void query_chunk(uint32_t (*high)[4], uint32_t (*low)[4], const int16_t *q[2], int chunk)
{
    typedef shape<D> S;
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int w = 0; w < S::WORDS; w++) {
            uint32_t hi = 0, lo = 0;
            if (q[h]) {
                const uint2 two = *(const uint2 *)(q[h] + chunk * S::CHUNK + t * S::W + 4 * w);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int32_t code = (int16_t)((i < 2 ? two.x : two.y) >> (i % 2 * 16));
                    hi |= (uint32_t)(code >> 4 & 255) << (8 * i);
                    lo |= (uint32_t)(code & 15) << (8 * i);
                }
            }
            /* words 2s and 2s + 1 are the lower and upper sixteen of step s */
            high[w / 2][h + w % 2 * 2] = hi;
            low[w / 2][h + w % 2 * 2] = lo;
        }
    }
}

/* The bytes of one chunk pair of all 64 keys: high bytes of both chunks and their packed low nibbles. */
template <int D> struct key_bytes {
    uint32_t high[8][2][shape<D>::WORDS], low[8][shape<D>::WORDS];
};

/* All loads are issued before the first is used: a page's latency is paid once. */
template <int D> static __device__ __forceinline__ void load_keys(struct key_bytes<D> &k, const uint8_t *page, int c)
{
    typedef shape<D> S;
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const int key = 8 * n + g;
        load_words<S::WORDS>(k.high[n][0], page + key * D + c * S::CHUNK + t * S::W);
        load_words<S::WORDS>(k.high[n][1], page + key * D + D / 2 + c * S::CHUNK + t * S::W);
        load_words<S::WORDS>(k.low[n], page + iso_page_k_lo(D) + key * (D / 2) + c * S::CHUNK + t * S::W);
    }
}

/* Adds a chunk pair's share of the integer scores of 64 keys: 256*hh + 16*(hl + lh) + ll. */
template <int D>
static __device__ __forceinline__ void dot_chunk(int32_t sums[8][4], const struct key_bytes<D> &k, const int16_t *q[2], int c)
{
    typedef shape<D> S;
    uint32_t qh[2][S::STEPS][4], ql[2][S::STEPS][4];
    query_chunk<D>(qh[0], ql[0], q, c);
    query_chunk<D>(qh[1], ql[1], q, c + S::CHUNKS / 2);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        int32_t hh[4], cross[4], ll[4];
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int s = 0; s < S::STEPS; s++) {
                const uint32_t h0 = k.high[n][half][2 * s], h1 = k.high[n][half][2 * s + 1];
                const uint32_t l0 = k.low[n][2 * s] >> (4 * half) & 0x0f0f0f0fu;
                const uint32_t l1 = k.low[n][2 * s + 1] >> (4 * half) & 0x0f0f0f0fu;
                if (half + s == 0) {
                    mma_first<false, false>(hh, qh[half][s], h0, h1);
                    mma_first<false, true>(cross, qh[half][s], l0, l1);
                    mma_first<true, true>(ll, ql[half][s], l0, l1);
                } else {
                    mma_bytes<false, false>(hh, qh[half][s], h0, h1);
                    mma_bytes<false, true>(cross, qh[half][s], l0, l1);
                    mma_bytes<true, true>(ll, ql[half][s], l0, l1);
                }
                mma_bytes<true, false>(cross, ql[half][s], h0, h1);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sums[n][i] += (int32_t)(((uint32_t)hh[i] << 8) + ((uint32_t)cross[i] << 4) + (uint32_t)ll[i]);
        }
    }
}

#define VALUE_TILES 16 /* eights of dimensions whose values are loaded ahead */

/* The bytes of up to 128 dimensions of all keys. */
template <int D> static __device__ __forceinline__ void load_values(uint4 *b, const uint8_t *page, int first)
{
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const uint8_t *v = page + iso_page_v(D);
#pragma unroll
    for (int n = 0; n < VALUE_TILES && n < D / 8; n++) {
        b[n] = __ldg((const uint4 *)(v + (8 * (first + n) + g) * KEYS + 16 * t));
    }
}

/* Sums of weights and values as f32 into to[row * D + dimension] for the warp's rows below n_q. */
template <int D>
static __device__ __forceinline__ void sum_values(float *to, const uint4 *b, int first, const uint8_t *planes, uint32_t n_q)
{
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    uint32_t w[2][2][4]; /* plane, step, fragment; keys 16t.. of rows g and g + 8 */
#pragma unroll
    for (int plane = 0; plane < 2; plane++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint4 v = *(const uint4 *)(planes + plane * P_PLANE + (g + 8 * h) * P_STRIDE + 16 * t);
            w[plane][0][h] = v.x, w[plane][0][h + 2] = v.y;
            w[plane][1][h] = v.z, w[plane][1][h + 2] = v.w;
        }
    }
#pragma unroll
    for (int n = 0; n < VALUE_TILES && n < D / 8; n++) {
        int32_t high[4], low[4];
        mma_first<true, false>(high, w[0][0], b[n].x, b[n].y);
        mma_first<true, false>(low, w[1][0], b[n].x, b[n].y);
        mma_bytes<true, false>(high, w[0][1], b[n].z, b[n].w);
        mma_bytes<true, false>(low, w[1][1], b[n].z, b[n].w);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (g + 8 * h < (int)n_q) {
                *(float2 *)(to + (g + 8 * h) * D + 8 * (first + n) + 2 * t) =
                    make_float2((float)(high[2 * h] * 128 + low[2 * h]), (float)(high[2 * h + 1] * 128 + low[2 * h + 1]));
            }
        }
    }
}

/* One warp's page: sums to `to`, (m, l, unit) of each row to result. */
template <int D>
static __device__ __forceinline__ void warp_page(float *to, struct page_result *result, uint8_t *planes,
                                                 const struct iso_cuda_attention &a, const uint8_t *page,
                                                 const int16_t *q[2], const row_view view[2], uint32_t n_q)
{
    const int g = threadIdx.x % WARP / 4, t2 = threadIdx.x % 4 * 2;
    const float *scales = (const float *)(page + iso_page_k_scale(D));
    struct key_bytes<D> k;
    load_keys<D>(k, page, 0);
    float2 ks[8], vs[8];
#pragma unroll
    for (int n = 0; n < 8; n++) {
        ks[n] = __ldg((const float2 *)(scales + 8 * n + t2));
        vs[n] = __ldg((const float2 *)(scales + KEYS + 8 * n + t2));
    }
    int32_t sums[8][4] = {};
#pragma unroll
    for (int c = 0; c < shape<D>::CHUNKS / 2; c++) {
        dot_chunk<D>(sums, k, q, c);
        if (c + 1 < shape<D>::CHUNKS / 2) load_keys<D>(k, page, c + 1);
    }
    uint4 b[VALUE_TILES];
    load_values<D>(b, page, 0); /* under way during the scores */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float s[16];
        const float top = score_row<true, 1, 8>(s, sums, h, view[h], 0, ks, a);
        const int32_t e_v = scale_exponent(largest_scale<true, 1, 8>(view[h], 0, vs));
        struct page_result r = {ceilf(top) + 0.0f, 0.0f, iso_ldexp1(e_v - 14)};
        r.l = (float)weigh_row<true, 1, 8>(planes, s, r.m, h, view[h], 0, vs, e_v);
        if (t2 == 0 && g + 8 * h < (int)n_q) result[g + 8 * h] = r;
    }
    __syncwarp();
    sum_values<D>(to, b, 0, planes, n_q);
#pragma unroll
    for (int first = VALUE_TILES; first < D / 8; first += VALUE_TILES) {
        load_values<D>(b, page, first);
        sum_values<D>(to, b, first, planes, n_q);
    }
}

/* The last step of section 10 for one row: o of dimension e in lane e % 32, register e / 32. */
template <int D> static __device__ __forceinline__ void finish_row(float *out, float *o, float l)
{
    const uint32_t lane = threadIdx.x % WARP;
    const float r = iso_rcp(l) * 65536.0f;
#pragma unroll
    for (int j = 0; j < D / WARP; j++) {
        o[j] = guarded(o[j] * r);
#pragma unroll
        for (uint32_t s = 1; s < WARP; s *= 2) {
            const float other = __shfl_xor_sync(FULL_MASK, o[j], s);
            o[j] = lane & s ? other - o[j] : o[j] + other;
        }
    }
#pragma unroll
    for (int s = 1; s < D / WARP; s *= 2) {
#pragma unroll
        for (int j = 0; j < D / WARP; j++) {
            if (j & s) continue;
            const float u = o[j], v = o[j + s];
            o[j] = u + v;
            o[j + s] = u - v;
        }
    }
#pragma unroll
    for (int j = 0; j < D / WARP; j++) out[lane + WARP * j] = guarded(o[j] * (1.0f / (float)D));
}

/* What a block works on. */
struct work {
    uint32_t row, kv_head, first_q, n_q, segment, first, last; /* pages first..last */
};

static __device__ __forceinline__ struct work work_of_block(const struct iso_cuda_attention &a, uint32_t q_tiles)
{
    const uint32_t group = a.n_heads / a.n_kv_heads;
    const struct iso_row_desc &r = a.rows[blockIdx.x];
    struct work w;
    w.row = blockIdx.x;
    w.kv_head = blockIdx.y / q_tiles;
    w.first_q = blockIdx.y % q_tiles * QUERIES;
    w.n_q = min(group - w.first_q, (uint32_t)QUERIES);
    w.first = r.first_visible[a.layer_class] / KEYS;
    w.last = r.position / KEYS;
    w.segment = w.first / ISO_SEGMENT_PAGES + blockIdx.z;
    return w;
}

/* Factors of the pages from..to of a row in ascending order; one lane per row. */
struct page_factors {
    float keep, take;
};

static __device__ __forceinline__ void order_pages(struct page_factors *f, struct row_state *state,
                                                   const struct page_result *result, uint32_t n_q, uint32_t from, uint32_t to)
{
    const uint32_t row = threadIdx.x;
    if (row >= n_q) return;
    struct row_state s = {0.0f, 0.0f, true};
    for (uint32_t p = from; p <= to; p++) {
        const struct page_result &r = result[p * QUERIES + row];
        merge_factors(s, r.m, r.l, r.unit, f[p * QUERIES + row].keep, f[p * QUERIES + row].take);
    }
    state[row] = s;
}

template <int D>
static __global__ void __launch_bounds__(THREADS) split_kernel(const __grid_constant__ struct iso_cuda_attention a,
                                                               uint32_t q_tiles, float *states)
{
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ struct page_result result[WARPS * QUERIES];
    __shared__ struct page_factors factors[WARPS * QUERIES];
    __shared__ struct row_state state[QUERIES];
    grid_wait();
    grid_trigger();
    const struct work w = work_of_block(a, q_tiles);
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, group = a.n_heads / a.n_kv_heads;
    if (w.segment * ISO_SEGMENT_PAGES > w.last) return;
    float *o = (float *)(shared + WARPS * 2 * P_PLANE);
    const uint32_t from = w.first > w.segment * ISO_SEGMENT_PAGES ? w.first % ISO_SEGMENT_PAGES : 0;
    const uint32_t to = min(w.last - w.segment * ISO_SEGMENT_PAGES, (uint32_t)ISO_SEGMENT_PAGES - 1);
    if (warp >= from && warp <= to) {
        const struct iso_row_desc &r = a.rows[w.row];
        const uint32_t p = w.segment * ISO_SEGMENT_PAGES + warp;
        const uint32_t slot = a.tables[(size_t)r.session * a.table_len + p];
        const uint8_t *page = a.pages + ((size_t)slot * a.n_kv_heads + w.kv_head) * iso_page_bytes(D);
        const size_t at = ((size_t)w.kv_head * a.n_rows + w.row) * group + w.first_q;
        const int16_t *q[2];
        row_view view[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t i = lane / 4 + 8 * h;
            q[h] = i < w.n_q ? a.q_codes + (at + i) * D : NULL;
            view[h].qs = i < w.n_q ? a.q_scales[at + i] * a.c : 0.0f;
            view[h].lo = (int)max((int)r.first_visible[a.layer_class] - (int)(p * KEYS), 0);
            view[h].hi = (int)min((int)r.position - (int)(p * KEYS), KEYS - 1);
        }
        warp_page<D>(o + (size_t)warp * w.n_q * D, result + warp * QUERIES, shared + warp * 2 * P_PLANE, a, page, q,
                     view, w.n_q);
    }
    __syncthreads();
    if (warp == 0) order_pages(factors, state, result, w.n_q, from, to);
    __syncthreads();
    for (uint32_t i = warp; i < w.n_q; i += WARPS) { /* a warp per row */
        float x[D / WARP];
#pragma unroll
        for (int j = 0; j < D / WARP; j++) x[j] = 0.0f;
        for (uint32_t p = from; p <= to; p++) {
            const struct page_factors f = factors[p * QUERIES + i];
            const float *sums = o + ((size_t)p * w.n_q + i) * D + lane;
#pragma unroll
            for (int j = 0; j < D / WARP; j++) x[j] = fmaf(sums[WARP * j], f.take, guarded(x[j] * f.keep));
        }
        const size_t head = (size_t)w.row * a.n_heads + w.kv_head * group + w.first_q + i;
#pragma unroll
        for (int j = 0; j < D / WARP; j++) x[j] = guarded(x[j]);
        if (gridDim.z == 1) { /* the segment's state is the head's: an empty one takes it as it is */
            finish_row<D>(a.out + head * D, x, state[i].l);
            continue;
        }
        float *to_state = states + (head * gridDim.z + blockIdx.z) * (STATE_HEAD + D);
#pragma unroll
        for (int j = 0; j < D / WARP; j++) to_state[STATE_HEAD + lane + WARP * j] = x[j];
        if (lane < 2) to_state[lane] = lane ? state[i].l : state[i].m;
    }
}

/* A warp per row and head: segments in ascending order, then the result. */
template <int D>
static __global__ void __launch_bounds__(WARP) segments_kernel(const __grid_constant__ struct iso_cuda_attention a,
                                                               uint32_t max_segments, const float *states)
{
    grid_wait();
    grid_trigger();
    const uint32_t lane = threadIdx.x;
    const struct iso_row_desc &r = a.rows[blockIdx.x];
    const uint32_t first = r.first_visible[a.layer_class] / SEGMENT_POSITIONS;
    const uint32_t n = r.position / SEGMENT_POSITIONS - first + 1;
    const size_t head = (size_t)blockIdx.x * a.n_heads + blockIdx.y;
    const float *s = states + head * max_segments * (STATE_HEAD + D);
    struct row_state st = {0.0f, 0.0f, true};
    float x[D / WARP];
#pragma unroll
    for (int j = 0; j < D / WARP; j++) x[j] = 0.0f;
#pragma unroll 4
    for (uint32_t i = 0; i < n; i++, s += STATE_HEAD + D) {
        float keep, take;
        const float2 ml = *(const float2 *)s;
        merge_factors(st, ml.x, ml.y, 1.0f, keep, take);
#pragma unroll
        for (int j = 0; j < D / WARP; j++) x[j] = fmaf(s[STATE_HEAD + lane + WARP * j], take, guarded(x[j] * keep));
    }
    finish_row<D>(a.out + head * D, x, st.l);
}

template <int D>
static void start(const struct iso_cuda_attention *a, uint32_t max_segments, float *states, cudaStream_t stream)
{
    const uint32_t group = a->n_heads / a->n_kv_heads, q_tiles = (group + QUERIES - 1) / QUERIES;
    const uint32_t most_q = min(group, (uint32_t)QUERIES);
    const size_t bytes = WARPS * 2 * P_PLANE + (size_t)WARPS * most_q * D * sizeof(float);
    allow_smem(split_kernel<D>, bytes);
    launch(split_kernel<D>, dim3(a->n_rows, a->n_kv_heads * q_tiles, max_segments), THREADS, bytes, stream, *a, q_tiles,
           states);
    if (max_segments == 1) return;
    launch(segments_kernel<D>, dim3(a->n_rows, a->n_heads), WARP, 0, stream, *a, max_segments, (const float *)states);
}

extern "C" void iso_cuda_attention_split(const struct iso_cuda_attention *a, uint32_t max_segments, float *states,
                                         struct CUstream_st *stream)
{
    if (a->d == 64) start<64>(a, max_segments, states, stream);
    else if (a->d == 128) start<128>(a, max_segments, states, stream);
    else start<256>(a, max_segments, states, stream);
}
