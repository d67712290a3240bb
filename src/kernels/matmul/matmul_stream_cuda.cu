/* SPDX-License-Identifier: MIT
 * matmul_stream_cuda.cu - products with few activation rows where bulk copies exist (sm_90 and later).
 *
 * One block per multiprocessor takes a run of groups of 32 weight rows and streams their cells, which lie
 * side by side, through shared memory. Sixteen warps take cells in turn, across groups, so all are equally
 * busy. Each has one slot: once a cell is in its registers it orders the next one there, so 74 KB or more
 * are under way per multiprocessor, and the first ones start while the kernel before still runs. Products
 * leave one f32 per row and superblock in shared memory; the pinned chains follow, a warp per group and
 * activation row. (A slot that several warps share needs a second barrier: a warp that runs ahead would take
 * the phase before last for its own.)
 * Plain loads by the same warps (matmul_gemv_cuda.cu) read 1.8 to 3.1 TB/s on an H200.
 */
#include "kernels/matmul/matmul_cuda.h"
#include "kernels/matmul/matmul_product_cuda.cuh"
#include "kernels/matmul/matmul_stream_cuda.cuh"
#include "kernels/shared/cuda_launch.cuh"

#define WARPS 16
#define THREADS (WARPS * WARP)
#define RING_BYTES (144 * 1024) /* most that is under way: small kernels still fit beside a block */
#define PART_BYTES (44 * 1024)  /* most for products of a round; one group always fits */
#define HEAD_BYTES 128          /* barriers */

struct stream_weight {
    const uint8_t *cells;
    const float *bias;
    float *y;
    uint32_t n_rows, first_group, has_scale;
    float scale;
};

struct stream_args {
    struct iso_cuda_codes a;
    struct stream_weight w[4];
    uint32_t n_w, n_groups, first_act, n_act, n_super;
    uint32_t n_slots, round; /* warps that take cells, one slot each; groups between two barriers */
};

#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)

static __device__ __forceinline__ uint32_t smem_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void barrier_init(uint64_t *b, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_at(b)), "r"(count));
}

static __device__ __forceinline__ void barrier_wait(uint64_t *b, uint32_t phase)
{
    asm volatile("{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(smem_at(b)),
                 "r"(phase)
                 : "memory");
}

/* Starts a copy that completes on the barrier. */
static __device__ __forceinline__ void bulk_copy(void *to, const void *from, uint32_t bytes, uint64_t *b)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_at(b)), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     smem_at(to)),
                 "l"(from), "r"(bytes), "r"(smem_at(b))
                 : "memory");
}

#endif

/* Where the parts lie in shared memory. */
struct stream_shared {
    unsigned char *ring;
    int8_t *hi, *lo;
    int32_t *sum;
    float *part, *scale; /* part [NACT][round][n_super][32] */
    uint64_t *full;
};

static __host__ __device__ size_t act_bytes(uint32_t n_act, uint32_t n_super)
{
    return (size_t)n_act * n_super * (2 * CELL_COLS + 8 * 4 + 4) + 16 * n_act;
}

static __host__ __device__ size_t part_bytes(uint32_t n_act, uint32_t n_super, uint32_t round)
{
    return (size_t)n_act * n_super * round * CELL_ROWS * sizeof(float);
}

static __device__ __forceinline__ struct stream_shared lay_shared(unsigned char *p, const struct stream_args &g,
                                                                  uint32_t n_act, uint32_t cell)
{
    struct stream_shared s;
    const uint32_t cols = n_act * g.n_super * CELL_COLS;
    s.full = (uint64_t *)p;
    s.ring = p + HEAD_BYTES;
    s.hi = (int8_t *)(s.ring + (size_t)g.n_slots * cell);
    s.lo = s.hi + cols;
    s.sum = (int32_t *)(s.lo + cols);
    s.part = (float *)(s.sum + cols / 32);
    s.scale = s.part + n_act * g.n_super * g.round * CELL_ROWS;
    return s;
}

/* Rows that the step does not have are read as the last one; their products are not stored. */
template <int NACT> static __device__ void stage(const struct stream_shared &s, const struct stream_args &g)
{
    const uint32_t stride = g.a.stride, thread = threadIdx.x;
    for (uint32_t t = 0; t < NACT; t++) {
        const size_t row = g.first_act + min(t, g.n_act - 1);
        const uint4 *hi = (const uint4 *)(g.a.hi + row * stride), *lo = (const uint4 *)(g.a.lo + row * stride);
        uint4 *to_hi = (uint4 *)(s.hi + t * stride), *to_lo = (uint4 *)(s.lo + t * stride);
        for (uint32_t i = thread; i < stride / 16; i += THREADS) {
            to_hi[i] = __ldcg(hi + i);
            to_lo[i] = __ldcg(lo + i);
        }
        const int4 *sum = (const int4 *)(g.a.sum32 + row * (stride / 32));
        int4 *to_sum = (int4 *)(s.sum + t * (stride / 32));
        for (uint32_t i = thread; i < stride / 128; i += THREADS) to_sum[i] = __ldcg(sum + i);
        const float *scale = g.a.scale + row * g.n_super;
        for (uint32_t i = thread; i < g.n_super; i += THREADS) s.scale[t * g.n_super + i] = __ldcg(scale + i);
    }
}

/* The weight that a group belongs to. */
static __device__ __forceinline__ const struct stream_weight &weight_of(const struct stream_args &g, uint32_t group)
{
    uint32_t i = 0;
    while (i + 1 < g.n_w && group >= g.w[i + 1].first_group) i++;
    return g.w[i];
}

#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)

/* Orders cell c of the block's groups into its slot; one thread. */
static __device__ __forceinline__ void order(const struct stream_shared &s, const struct stream_args &g, uint32_t first,
                                             uint32_t c, uint32_t cell)
{
    const uint32_t group = first + c / g.n_super, slot = c % g.n_slots;
    const struct stream_weight &w = weight_of(g, group);
    const uint8_t *from = w.cells + ((size_t)(group - w.first_group) * g.n_super + c % g.n_super) * cell;
    bulk_copy(s.ring + (size_t)slot * cell, from, cell, s.full + slot);
}

/* The pinned chains of a round's groups: a warp per group and activation row. */
template <int NACT>
static __device__ __forceinline__ void chain(const struct stream_shared &s, const struct stream_args &g, uint32_t first,
                                             uint32_t n)
{
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, n_act = min((uint32_t)NACT, g.n_act);
    for (uint32_t i = warp; i < n * n_act; i += WARPS) {
        const uint32_t r = i % n, t = i / n;
        const struct stream_weight &w = weight_of(g, first + r);
        const float *part = s.part + ((size_t)t * g.round + r) * g.n_super * CELL_ROWS + lane;
        const float *scale = s.scale + t * g.n_super;
        float y = 0.0f;
#pragma unroll 8
        for (uint32_t b = 0; b < g.n_super; b++) y = fmaf(scale[b], part[b * CELL_ROWS], y);
        const uint32_t row = (first + r - w.first_group) * CELL_ROWS + lane;
        if (w.has_scale) y = y * w.scale;
        if (row >= w.n_rows) continue;
        if (w.bias) y = y + w.bias[row];
        w.y[(size_t)(g.first_act + t) * w.n_rows + row] = y;
    }
}

/* The warp has read cell c: its slot may take the next one. */
static __device__ __forceinline__ void next_into_slot(const struct stream_shared &s, const struct stream_args &g,
                                                      uint32_t first, uint32_t c, uint32_t total, uint32_t cell)
{
    __syncwarp();
    if (threadIdx.x % WARP != 0 || c + g.n_slots >= total) return;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); /* reads before the copy's writes */
    order(s, g, first, c + g.n_slots, cell);
}

/* Cells of a round in turn; c counts all cells of the block. */
template <int T, int NACT>
static __device__ __forceinline__ void consume(const struct stream_shared &s, const struct stream_args &g, uint32_t first,
                                               uint32_t end)
{
    constexpr uint32_t CELL = CELL_ROWS * cell_lane_bytes(T);
    constexpr bool WIDE = T == ISO_TYPE_F32 || T == ISO_TYPE_F16 || T == ISO_TYPE_BF16; /* read while multiplied */
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t total = (end - first) * g.n_super;
    uint32_t done = 0; /* cells of earlier rounds */
    uint32_t c = warp, turn = 0;
    for (uint32_t group = first; group < end; group += g.round) {
        const uint32_t n = min(g.round, end - group), n_cells = n * g.n_super;
        for (; warp < g.n_slots && c < done + n_cells; c += g.n_slots, turn ^= 1) {
            const uint32_t i = c - done, b = i % g.n_super;
            cell<T> x;
            barrier_wait(s.full + warp, turn);
            x.template load<true>(s.ring + (size_t)warp * CELL, (int)lane);
            if (!WIDE) next_into_slot(s, g, first, c, total, CELL);
            const struct acts a = {s.hi + b * CELL_COLS, s.lo + b * CELL_COLS, s.sum + b * 8, g.a.stride};
            float p[NACT];
            cell_product<T, NACT>(p, x, a);
            if (WIDE) next_into_slot(s, g, first, c, total, CELL);
#pragma unroll
            for (int t = 0; t < NACT; t++) {
                s.part[((size_t)t * g.round * g.n_super + i) * CELL_ROWS + lane] = p[t];
            }
        }
        done += n_cells;
        __syncthreads();
        chain<NACT>(s, g, group, n);
        if (group + g.round < end) __syncthreads();
    }
}

#endif

template <int T, int NACT>
static __global__ void __launch_bounds__(THREADS, 1) stream_kernel(const __grid_constant__ struct stream_args g)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) unsigned char shared[];
    constexpr uint32_t CELL = CELL_ROWS * cell_lane_bytes(T);
    const struct stream_shared s = lay_shared(shared, g, NACT, CELL);
    const uint32_t first = (uint32_t)((uint64_t)g.n_groups * blockIdx.x / gridDim.x);
    const uint32_t end = (uint32_t)((uint64_t)g.n_groups * (blockIdx.x + 1) / gridDim.x);
    const uint32_t warp = threadIdx.x / WARP;
    if (threadIdx.x % WARP == 0 && warp < g.n_slots) {
        barrier_init(s.full + warp, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        /* Weights do not depend on what ran before. */
        if (warp < (end - first) * g.n_super) order(s, g, first, warp, CELL);
    }
    grid_wait();
    grid_trigger();
    stage<NACT>(s, g);
    __syncthreads();
    consume<T, NACT>(s, g, first, end);
#endif
}

/* Ring and round for these sizes; false when they do not fit. */
static bool plan(struct stream_args *g, uint32_t n_act, uint32_t cell, uint32_t per_block, const struct iso_cuda_chip *chip)
{
    const size_t acts = HEAD_BYTES + act_bytes(n_act, g->n_super), one = part_bytes(n_act, g->n_super, 1);
    g->round = (uint32_t)max((size_t)1, min((size_t)per_block, PART_BYTES / one));
    const size_t rest = acts + one * g->round;
    if (rest + 2 * (size_t)cell > chip->smem_block) return false;
    const size_t room = min((size_t)RING_BYTES, (size_t)chip->smem_block - rest);
    g->n_slots = (uint32_t)min((size_t)WARPS, room / cell);
    return g->n_slots >= 2;
}

template <int T, int NACT>
static bool start(struct stream_args *g, const struct iso_cuda_chip *chip, cudaStream_t stream)
{
    constexpr uint32_t CELL = CELL_ROWS * cell_lane_bytes(T);
    const uint32_t blocks = min(g->n_groups, chip->n_sm), per_block = (g->n_groups + blocks - 1) / blocks;
    if (!plan(g, NACT, CELL, per_block, chip)) return false;
    const size_t bytes = HEAD_BYTES + (size_t)g->n_slots * CELL + act_bytes(NACT, g->n_super) + part_bytes(NACT, g->n_super, g->round);
    allow_smem(stream_kernel<T, NACT>, bytes);
    launch(stream_kernel<T, NACT>, blocks, THREADS, bytes, stream, *g);
    return true;
}

/* As many activation rows at once as fit; each set reads the weights again. */
template <int T>
static bool run_type(struct stream_args *g, uint32_t n_act, const struct iso_cuda_chip *chip, cudaStream_t stream)
{
    uint32_t most = 8;
    for (uint32_t t = 0; t < n_act;) {
        g->first_act = t;
        g->n_act = min(most, n_act - t);
        const bool fits = g->n_act == 1   ? start<T, 1>(g, chip, stream)
                          : g->n_act == 2 ? start<T, 2>(g, chip, stream)
                          : g->n_act <= 4 ? start<T, 4>(g, chip, stream)
                                          : start<T, 8>(g, chip, stream);
        if (fits) t += g->n_act;
        else if (g->n_act == 1) return false;
        else most = g->n_act > 4 ? 4 : g->n_act > 2 ? 2 : 1;
    }
    return true;
}

#define CASE(T, ...)                                                                               \
    case ISO_TYPE_##T: return run_type<ISO_TYPE_##T>(&g, n_act, chip, stream);

bool iso_cuda_stream(const struct iso_cuda_codes *a, uint32_t n_act, const struct iso_cuda_matrix *w, uint32_t n_w,
                     const struct iso_cuda_chip *chip, cudaStream_t stream)
{
    struct stream_args g = {};
    g.a = *a;
    g.n_super = a->stride / CELL_COLS;
    for (uint32_t i = 0; i < n_w; i++) {
        g.w[i] = {w[i].cells, w[i].bias, w[i].y, w[i].n_rows, g.n_groups, w[i].has_scale, w[i].scale};
        g.n_groups += (w[i].n_rows + CELL_ROWS - 1) / CELL_ROWS;
    }
    g.n_w = n_w;
    switch (w[0].type) {
        ISO_TYPE_MAP(CASE)
    }
    return false;
}
