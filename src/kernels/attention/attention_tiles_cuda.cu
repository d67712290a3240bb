/* SPDX-License-Identifier: MIT
 * attention_tiles_cuda.cu - attention of prompts: 64 query rows walk the pages of one KV head.
 *
 * Eight warps share each page in shared memory (two buffers, cp.async). Two warps have the same 16 query
 * rows: each scores half of the keys and sums half of the dimensions, which keeps a thread below 128
 * registers and four warps per scheduler busy; they exchange maxima and weights in shared memory. Keys are
 * 12-bit, so a score takes four byte products (high and low parts of q and k); values are 8-bit and
 * weights 15-bit: two byte products. Dimensions are laid out in two halves, each padded to a multiple of
 * 32, so that the packed low nibbles of k (first half in the low nibble, second in the high one) line up
 * with its high bytes.
 */
#include "kernels/attention/attention_page_cuda.cuh"
#include "kernels/shared/cuda_launch.cuh"

#define PAIRS 4
#define WARPS (2 * PAIRS)
#define THREADS (WARPS * WARP)
#define TILE_QUERIES (PAIRS * QUERIES)
#define HALF_KEYS (KEYS / 2)

static __device__ __forceinline__ uint32_t smem_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void load_matrix(uint32_t r[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* What the two warps of a pair tell each other of a page, per half of the keys and query row. */
struct exchange {
    float top[2][QUERIES];
    uint32_t scale[2][QUERIES];
    int32_t l[2][QUERIES];
    /* and what does not change: kept here because registers are short */
    float qs[QUERIES];        /* q_scale * c */
    uint32_t first[QUERIES], last[QUERIES], row[QUERIES]; /* visible positions; row of the tile, ~0 for none */
    struct row_state head[2][QUERIES]; /* of each warp */
};

/* Sizes for KS steps of 32 (padded) dimensions. Rows are 16 bytes longer than needed: banks. */
template <int KS> struct sizes {
    static constexpr int HALF = KS * 16;          /* padded dimensions of a half */
    static constexpr int K_ROW = KS * 32 + 16;    /* high bytes of a key */
    static constexpr int L_ROW = HALF + 16;       /* packed low nibbles */
    static constexpr int V_ROW = KEYS + 16;       /* one dimension */
    static constexpr int K_BYTES = KEYS * K_ROW;
    static constexpr int L_BYTES = KEYS * L_ROW;
    static constexpr int V_BYTES = KS * 32 * V_ROW;
    static constexpr int PAGE = K_BYTES + L_BYTES + V_BYTES + 512;
    static constexpr int TILES = KS == 6 ? 16 : KS * 2; /* eights of dimensions of a warp: the first has these,
                                                            the second the rest; no butterfly below the
                                                            head's largest stride crosses the cut */
    static constexpr int Q_BYTES = 2 * QUERIES * K_ROW; /* of a pair */
    static constexpr int HEAD_BYTES = TILES * 4 * WARP * 4;
    static constexpr int PAIR_BYTES = 2 * P_PLANE + Q_BYTES + (int)sizeof(struct exchange);
    static constexpr int SHARED = 2 * PAGE + PAIRS * PAIR_BYTES + WARPS * HEAD_BYTES;
};

/* --- pages -------------------------------------------------------------------------------------- */

template <int N> static __device__ __forceinline__ void copy_piece(unsigned char *to, const uint8_t *from)
{
    if (N == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem_at(to)), "l"(from) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(smem_at(to)), "l"(from), "n"(N) : "memory");
    }
}

/* n_rows rows of len bytes, packed in memory, to rows of stride bytes. */
template <int N>
static __device__ __forceinline__ void copy_rows(unsigned char *to, uint32_t stride, const uint8_t *from, uint32_t len,
                                                 uint32_t from_stride, uint32_t n_rows)
{
    const uint32_t pieces = len / N;
    for (uint32_t i = threadIdx.x; i < n_rows * pieces; i += THREADS) {
        const uint32_t row = i / pieces, piece = i % pieces;
        copy_piece<N>(to + row * stride + piece * N, from + row * from_stride + piece * N);
    }
}

template <int KS, int N>
static __device__ __forceinline__ void fetch_keys(unsigned char *to, const uint8_t *page, uint32_t d)
{
    const uint32_t half = d / 2;
    copy_rows<N>(to, sizes<KS>::K_ROW, page, half, d, KEYS);
    copy_rows<N>(to + sizes<KS>::HALF, sizes<KS>::K_ROW, page + half, half, d, KEYS);
    copy_rows<N>(to + sizes<KS>::K_BYTES, sizes<KS>::L_ROW, page + iso_page_k_lo(d), half, half, KEYS);
}

template <int KS> static __device__ void fetch_page(unsigned char *to, const uint8_t *page, uint32_t d)
{
    const uint32_t half = d / 2;
    if (half % 16 == 0) fetch_keys<KS, 16>(to, page, d);
    else if (half % 8 == 0) fetch_keys<KS, 8>(to, page, d);
    else fetch_keys<KS, 4>(to, page, d);
    unsigned char *v = to + sizes<KS>::K_BYTES + sizes<KS>::L_BYTES;
    copy_rows<16>(v, sizes<KS>::V_ROW, page + iso_page_v(d), KEYS, KEYS, d);
    copy_rows<16>(v + sizes<KS>::V_BYTES, 512, page + iso_page_k_scale(d), 512, 512, 1);
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* --- queries -------------------------------------------------------------------------------------- */

/* The block's rows of the step and what they see. */
struct tile {
    uint32_t first_row, n_rows, kv_head, group;
};

/* Codes of the pair's query rows as planes (q >> 4, q & 15) in shared memory, padded with zeros. */
template <int KS>
static __device__ void stage_queries(unsigned char *to, const struct iso_cuda_attention &a, const struct tile &t)
{
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, half = a.d / 2;
    const uint32_t n_q = t.n_rows * t.group;
    const size_t first = ((size_t)t.kv_head * a.n_rows + t.first_row) * t.group;
    for (uint32_t r = warp % 2; r < QUERIES; r += 2) {
        const uint32_t q = warp / 2 * QUERIES + r;
        for (uint32_t e = lane; e < (uint32_t)(2 * sizes<KS>::HALF); e += WARP) {
            const uint32_t part = e / sizes<KS>::HALF, i = e % sizes<KS>::HALF;
            int32_t code = 0;
            if (q < n_q && i < half) code = a.q_codes[(first + q) * a.d + part * half + i];
            to[r * sizes<KS>::K_ROW + e] = (unsigned char)(code >> 4);
            to[QUERIES * sizes<KS>::K_ROW + r * sizes<KS>::K_ROW + e] = (unsigned char)(code & 15);
        }
    }
}

static __device__ __forceinline__ void load_matrix2(uint32_t r[2], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(at) : "memory");
}

/* --- one page ---------------------------------------------------------------------------------------- */

/* Integer scores of the pair's rows with four eights of keys from `first` on: 256*hh + 16*(hl + lh) + ll.
 * Step s and step s + KS/2 of the dimensions go together: their low nibbles share bytes. */
template <int KS>
static __device__ __forceinline__ void dot_keys(int32_t sums[4][4], const unsigned char *page, const unsigned char *q, int first)
{
    typedef sizes<KS> Z;
    const uint32_t lane = threadIdx.x % WARP;
    const uint32_t q_at = smem_at(q) + lane % 16 * Z::K_ROW + lane / 16 * 16;
    const uint32_t key = first + lane % 8, half = lane / 16 * Z::HALF, piece = lane / 8 % 2 * 16;
    const uint32_t high_at = smem_at(page) + key * Z::K_ROW + half + piece;
    const uint32_t low_at = smem_at(page) + Z::K_BYTES + key * Z::L_ROW + piece;
    int32_t cross[4][4], low[4][4];
#pragma unroll
    for (int s = 0; s < KS / 2; s++) {
        uint32_t qh[2][4], ql[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            load_matrix(qh[i], q_at + i * Z::HALF + s * 32);
            load_matrix(ql[i], q_at + QUERIES * Z::K_ROW + i * Z::HALF + s * 32);
        }
#pragma unroll
        for (int n = 0; n < 4; n++) {
            uint32_t kh[4], packed[2];
            load_matrix(kh, high_at + n * 8 * Z::K_ROW + s * 32);
            load_matrix2(packed, low_at + n * 8 * Z::L_ROW + s * 32);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t l0 = packed[0] >> (4 * i) & 0x0f0f0f0fu, l1 = packed[1] >> (4 * i) & 0x0f0f0f0fu;
                if (s + i == 0) {
                    mma_first<false, false>(sums[n], qh[i], kh[2 * i], kh[2 * i + 1]);
                    mma_first<false, true>(cross[n], qh[i], l0, l1);
                    mma_first<true, true>(low[n], ql[i], l0, l1);
                } else {
                    mma_bytes<false, false>(sums[n], qh[i], kh[2 * i], kh[2 * i + 1]);
                    mma_bytes<false, true>(cross[n], qh[i], l0, l1);
                    mma_bytes<true, true>(low[n], ql[i], l0, l1);
                }
                mma_bytes<true, false>(cross[n], ql[i], kh[2 * i], kh[2 * i + 1]);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < 4; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sums[n][i] = (int32_t)((((uint32_t)sums[n][i] << 4) + (uint32_t)cross[n][i] << 4) + (uint32_t)low[n][i]);
        }
    }
}

/* The warp's dimensions of o take the page's values with the weights in p. */
template <int KS, bool MASK>
static __device__ __forceinline__ void add_values(float (*o)[4], const unsigned char *page, const uint8_t *p,
                                                  const float keep[2], const float take[2], const bool active[2],
                                                  uint32_t d)
{
    const uint32_t lane = threadIdx.x % WARP, first = threadIdx.x / WARP % 2 * sizes<KS>::TILES;
    uint32_t w[2][2][4];
#pragma unroll
    for (int plane = 0; plane < 2; plane++) {
#pragma unroll
        for (int s = 0; s < 2; s++) {
            load_matrix(w[plane][s], smem_at(p + plane * P_PLANE + lane % 16 * P_STRIDE + s * 32 + lane / 16 * 16));
        }
    }
    const unsigned char *v = page + sizes<KS>::K_BYTES + sizes<KS>::L_BYTES;
#pragma unroll
    for (int n = 0; n < sizes<KS>::TILES; n++) {
        if (8u * (first + n) >= d) break;
        uint32_t b[4];
        load_matrix(b, smem_at(v + (8 * (first + n) + lane % 8) * sizes<KS>::V_ROW + lane / 8 * 16));
        int32_t high[4], low[4];
        mma_first<true, false>(high, w[0][0], b[0], b[1]);
        mma_first<true, false>(low, w[1][0], b[0], b[1]);
        mma_bytes<true, false>(high, w[0][1], b[2], b[3]);
        mma_bytes<true, false>(low, w[1][1], b[2], b[3]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int32_t sum = high[i] * 128 + low[i];
            const float x = fmaf((float)sum, take[i / 2], guarded(o[n][i] * keep[i / 2]));
            o[n][i] = !MASK || active[i / 2] ? x : o[n][i];
        }
    }
}

/* The two warps of a pair wait for each other. */
static __device__ __forceinline__ void pair_sync(void)
{
    asm volatile("bar.sync %0, 64;" ::"r"(1 + threadIdx.x / (2 * WARP)) : "memory");
}

/* The page joins the segment's state of the thread's two rows. Without MASK all rows see all keys. */
template <int KS, bool MASK>
static __device__ __forceinline__ void attend_page(float (*o)[4], struct row_state st[2], const row_view view[2],
                                                   const unsigned char *page, const unsigned char *q,
                                                   uint8_t *planes, struct exchange *x,
                                                   const struct iso_cuda_attention &a)
{
    const int half = threadIdx.x / WARP % 2, first = half * HALF_KEYS, row = threadIdx.x % WARP / 4;
    const bool active[2] = {!MASK || view[0].lo <= view[0].hi, !MASK || view[1].lo <= view[1].hi};
    int32_t sums[4][4];
    dot_keys<KS>(sums, page, q, first);
    const unsigned char *scales = page + sizes<KS>::K_BYTES + sizes<KS>::L_BYTES + sizes<KS>::V_BYTES;
    const float2 *ks = (const float2 *)scales + first / 2 + threadIdx.x % 4, *vs = ks + KEYS / 2;
    float s[2][8], keep[2] = {1.0f, 1.0f}, take[2] = {0.0f, 0.0f}, m[2];
    int32_t e_v[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float top = score_row<MASK, 4, 4>(s[h], sums, h, view[h], first, ks, a);
        const uint32_t bits = largest_scale<MASK, 4, 4>(view[h], first, vs);
        x->top[half][row + 8 * h] = top; /* four lanes, one value */
        x->scale[half][row + 8 * h] = bits;
    }
    pair_sync();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float top = fmaxf(x->top[0][row + 8 * h], x->top[1][row + 8 * h]);
        m[h] = ceilf(active[h] ? top : 0.0f) + 0.0f;
        e_v[h] = scale_exponent(max(x->scale[0][row + 8 * h], x->scale[1][row + 8 * h]));
        x->l[half][row + 8 * h] = weigh_row<MASK, 4, 4>(planes, s[h], m[h], h, view[h], first, vs, e_v[h]);
    }
    pair_sync();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float l = (float)(x->l[0][row + 8 * h] + x->l[1][row + 8 * h]);
        if (active[h]) merge_factors(st[h], m[h], l, iso_ldexp1(e_v[h] - 14), keep[h], take[h]);
    }
    add_values<KS, MASK>(o, page, planes, keep, take, active, a.d);
}

/* Chooses the form, the same for both warps of a pair; nothing happens when no row sees the page. */
template <int KS>
static __device__ __forceinline__ void attend(float (*o)[4], struct row_state st[2], const row_view view[2],
                                              const unsigned char *page, const unsigned char *q,
                                              uint8_t *planes, struct exchange *x,
                                              const struct iso_cuda_attention &a)
{
    bool whole = true, any = false;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        whole = whole && view[h].lo == 0 && view[h].hi == KEYS - 1;
        any = any || view[h].lo <= view[h].hi;
    }
    if (__all_sync(FULL_MASK, whole)) attend_page<KS, false>(o, st, view, page, q, planes, x, a);
    else if (__any_sync(FULL_MASK, any)) attend_page<KS, true>(o, st, view, page, q, planes, x, a);
}

/* --- segments and heads ------------------------------------------------------------------------------- */

/* Ends the segment: its state joins the head's, whose o lies in shared memory. */
template <int KS>
static __device__ __forceinline__ void end_segment(float *head_o, struct row_state *heads, float (*o)[4],
                                                   struct row_state seg[2])
{
    const int row = threadIdx.x % WARP / 4;
    float keep[2] = {1.0f, 1.0f}, take[2] = {0.0f, 0.0f};
    const bool full[2] = {!seg[0].empty, !seg[1].empty};
#pragma unroll
    for (int h = 0; h < 2; h++) {
        struct row_state head = heads[row + 8 * h]; /* four lanes read, then write one value */
        __syncwarp();
        if (full[h]) merge_factors(head, seg[h].m, seg[h].l, 1.0f, keep[h], take[h]);
        heads[row + 8 * h] = head;
        seg[h] = {0.0f, 0.0f, true};
    }
#pragma unroll
    for (int n = 0; n < sizes<KS>::TILES; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float &at = head_o[(4 * n + i) * WARP];
            if (full[i / 2]) at = fmaf(guarded(o[n][i]), take[i / 2], guarded(at * keep[i / 2]));
            o[n][i] = full[i / 2] ? 0.0f : o[n][i];
        }
    }
}

/* Butterfly of each row: strides 1, 2, 4 inside eight dimensions, then between registers, the largest one of
 * a whole head between the two warps of the pair, which lay their values at mine and theirs. */
template <int KS>
static __device__ __forceinline__ void butterfly(float (*o)[4], uint32_t block, float *mine, const float *theirs)
{
    const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (int n = 0; n < sizes<KS>::TILES; n++) {
#pragma unroll
        for (int h = 0; h < 4; h += 2) {
            const float u = o[n][h], v = o[n][h + 1];
            o[n][h] = u + v;
            o[n][h + 1] = u - v;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (uint32_t s = 1; s <= 2; s *= 2) {
                const float other = __shfl_xor_sync(FULL_MASK, o[n][i], s);
                o[n][i] = lane & s ? other - o[n][i] : o[n][i] + other;
            }
        }
    }
#pragma unroll
    for (int s = 1; s < sizes<KS>::TILES; s *= 2) {
        if (8u * s >= block) break;
#pragma unroll
        for (int n = 0; n < sizes<KS>::TILES; n++) {
            if (n & s || n + s >= sizes<KS>::TILES) continue;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float u = o[n][i], v = o[n + s][i];
                o[n][i] = u + v;
                o[n + s][i] = u - v;
            }
        }
    }
    if (block <= 8u * sizes<KS>::TILES) return;
    const bool second = threadIdx.x / WARP % 2;
#pragma unroll
    for (int i = 0; i < 4 * sizes<KS>::TILES; i++) mine[i * WARP] = o[i / 4][i % 4];
    pair_sync();
#pragma unroll
    for (int i = 0; i < 4 * sizes<KS>::TILES; i++) {
        const float other = theirs[i * WARP], own = o[i / 4][i % 4];
        o[i / 4][i % 4] = second ? other - own : own + other;
    }
}

/* The result of section 10 for the thread's rows and the warp's dimensions. */
template <int KS>
static __device__ __forceinline__ void finish(float *head_o, const float *theirs, const struct row_state *heads,
                                              float (*o)[4], const struct iso_cuda_attention &a, const struct tile &t)
{
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, block = iso_butterfly_block(a.d);
    const float inv = 1.0f / (float)block; /* a power of two: exact */
    float r[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const struct row_state head = heads[lane / 4 + 8 * h];
        r[h] = head.empty ? 0.0f : iso_rcp(head.l) * 65536.0f;
    }
#pragma unroll
    for (int n = 0; n < sizes<KS>::TILES; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) o[n][i] = guarded(head_o[(4 * n + i) * WARP] * r[i / 2]);
    }
    butterfly<KS>(o, block, head_o, theirs);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t q = warp / 2 * QUERIES + lane / 4 + 8 * h, first = warp % 2 * 8 * sizes<KS>::TILES;
        if (q >= t.n_rows * t.group) continue;
        const size_t row = t.first_row + q / t.group, col = (size_t)t.kv_head * t.group + q % t.group;
        float *out = a.out + (row * a.n_heads + col) * a.d + first + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < sizes<KS>::TILES; n++) {
            if (first + 8u * n >= a.d) continue;
            *(float2 *)(out + 8 * n) = make_float2(guarded(o[n][2 * h] * inv), guarded(o[n][2 * h + 1] * inv));
        }
    }
}

/* Rows of the tile from `from` on that belong to one session. */
static __device__ __forceinline__ uint32_t run_end(const struct iso_cuda_attention &a, const struct tile &t, uint32_t from)
{
    const uint32_t session = a.rows[t.first_row + from].session;
    uint32_t end = from + 1;
    while (end < t.n_rows && a.rows[t.first_row + end].session == session) end++;
    return end;
}

/* First and last page that any row of the run sees. */
static __device__ __forceinline__ uint2 run_pages(const struct iso_cuda_attention &a, const struct tile &t,
                                                  uint32_t from, uint32_t end)
{
    uint32_t first = 0xffffffffu, last = 0;
    for (uint32_t i = from; i < end; i++) {
        const struct iso_row_desc &r = a.rows[t.first_row + i];
        first = min(first, r.first_visible[a.layer_class]);
        last = max(last, r.position);
    }
    return make_uint2(first / KEYS, last / KEYS);
}

/* What a row of the pair sees of a page; rows outside [from, end) of the tile see nothing now. */
static __device__ __forceinline__ row_view view_of(const struct exchange *x, int row, uint32_t page, uint32_t from, uint32_t end)
{
    row_view v = {x->qs[row], 1, 0};
    const uint32_t first = x->first[row], last = x->last[row], own = x->row[row];
    const uint32_t start = page * KEYS, stop = start + KEYS - 1;
    if (own < from || own >= end || first > stop || last < start) return v;
    v.lo = first > start ? (int)(first - start) : 0;
    v.hi = last < stop ? (int)(last - start) : KEYS - 1;
    return v;
}

/* The constants of the pair's rows and their empty states. */
static __device__ __forceinline__ void describe_rows(struct exchange *x, const struct iso_cuda_attention &a, const struct tile &t)
{
    const uint32_t thread = threadIdx.x % (2 * WARP), i = threadIdx.x / (2 * WARP) * QUERIES + thread;
    if (thread >= QUERIES) return;
    const bool in = i < t.n_rows * t.group;
    const struct iso_row_desc &r = a.rows[t.first_row + min(i / t.group, t.n_rows - 1)];
    const size_t at = ((size_t)t.kv_head * a.n_rows + t.first_row) * t.group + i;
    x->row[thread] = in ? i / t.group : 0xffffffffu;
    x->first[thread] = r.first_visible[a.layer_class];
    x->last[thread] = r.position;
    x->qs[thread] = in ? a.q_scales[at] * a.c : 0.0f;
    x->head[0][thread] = x->head[1][thread] = {0.0f, 0.0f, true};
}

template <int KS>
static __global__ void __launch_bounds__(THREADS, KS <= 4 ? 2 : 1) tiles_kernel(const __grid_constant__ struct iso_cuda_attention a,
                                                               uint32_t rows_per_tile)
{
    extern __shared__ __align__(128) unsigned char shared[];
    typedef sizes<KS> Z;
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    unsigned char *own = shared + 2 * Z::PAGE + warp / 2 * Z::PAIR_BYTES, *heads = shared + 2 * Z::PAGE + PAIRS * Z::PAIR_BYTES;
    uint8_t *planes = own;
    unsigned char *q = own + 2 * P_PLANE;
    struct exchange *x = (struct exchange *)(q + Z::Q_BYTES);
    float *head_o = (float *)(heads + warp * Z::HEAD_BYTES) + lane;
    const float *theirs = (const float *)(heads + (warp ^ 1) * Z::HEAD_BYTES) + lane;
    /* Late rows see more keys: they start first. */
    const uint32_t index = gridDim.x - 1 - blockIdx.x;
    const struct tile t = {index * rows_per_tile, min(rows_per_tile, a.n_rows - index * rows_per_tile), blockIdx.y,
                           a.n_heads / a.n_kv_heads};
    /* padding that copies never write must be zero */
    for (uint32_t i = threadIdx.x; i < 2 * Z::PAGE / 16; i += THREADS) ((uint4 *)shared)[i] = make_uint4(0, 0, 0, 0);
    grid_wait();
    grid_trigger();
    stage_queries<KS>(q, a, t);
    describe_rows(x, a, t);
    float o[Z::TILES][4];
    struct row_state seg[2] = {{0.0f, 0.0f, true}, {0.0f, 0.0f, true}};
#pragma unroll
    for (int n = 0; n < Z::TILES; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) o[n][i] = head_o[(4 * n + i) * WARP] = 0.0f;
    }
    __syncthreads();
    const size_t page_bytes = iso_page_bytes(a.d);
    for (uint32_t from = 0, end; from < t.n_rows; from = end) {
        end = run_end(a, t, from);
        const uint2 range = run_pages(a, t, from, end);
        const uint32_t *table = a.tables + (size_t)a.rows[t.first_row + from].session * a.table_len;
        const uint8_t *base = a.pages + t.kv_head * page_bytes;
        const size_t slot_bytes = a.n_kv_heads * page_bytes;
        fetch_page<KS>(shared, base + table[range.x] * slot_bytes, a.d);
        for (uint32_t p = range.x; p <= range.y; p++) {
            const uint32_t buffer = (p - range.x) & 1;
            if (p < range.y) {
                fetch_page<KS>(shared + (buffer ^ 1) * Z::PAGE, base + table[p + 1] * slot_bytes, a.d);
                asm volatile("cp.async.wait_group 1;" ::: "memory");
            } else {
                asm volatile("cp.async.wait_group 0;" ::: "memory");
            }
            __syncthreads();
            row_view view[2];
#pragma unroll
            for (int h = 0; h < 2; h++) view[h] = view_of(x, lane / 4 + 8 * h, p, from, end);
            attend<KS>(o, seg, view, shared + buffer * Z::PAGE, q, planes, x, a);
            if (p % ISO_SEGMENT_PAGES == ISO_SEGMENT_PAGES - 1 || p == range.y) end_segment<KS>(head_o, x->head[warp % 2], o, seg);
            __syncthreads();
        }
    }
    finish<KS>(head_o, theirs, x->head[warp % 2], o, a, t);
}

template <int KS> static void start(const struct iso_cuda_attention *a, cudaStream_t stream)
{
    const uint32_t rows = max(TILE_QUERIES / (a->n_heads / a->n_kv_heads), 1u);
    const dim3 grid((a->n_rows + rows - 1) / rows, a->n_kv_heads);
    allow_smem(tiles_kernel<KS>, sizes<KS>::SHARED);
    launch(tiles_kernel<KS>, grid, THREADS, sizes<KS>::SHARED, stream, *a, rows);
}

extern "C" void iso_cuda_attention_tiles(const struct iso_cuda_attention *a, struct CUstream_st *stream)
{
    const uint32_t steps = 2 * ((a->d / 2 + 31) / 32);
    if (steps <= 2) start<2>(a, stream);
    else if (steps <= 4) start<4>(a, stream);
    else if (steps <= 6) start<6>(a, stream);
    else start<8>(a, stream);
}
