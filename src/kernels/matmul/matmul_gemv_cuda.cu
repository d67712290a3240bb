/* SPDX-License-Identifier: MIT
 * matmul_gemv_cuda.cu - products with few activation rows: each weight byte is read once.
 *
 * A block serves 32 weight rows, one per lane. Its warps share the superblocks: each loads a cell
 * (up to 8.7 KB side by side), multiplies with dp4a against both byte planes of the activations, which
 * lie in shared memory and are read by all lanes at once, and leaves one f32 per row and superblock.
 * The pinned chain over superblocks follows at the end, one warp per activation row. Nothing is
 * reduced across lanes, so there is no order to pin but the specification's.
 */
#include "kernels/matmul/matmul_cuda.h"
#include "kernels/matmul/matmul_product_cuda.cuh"
#include "kernels/matmul/matmul_stream_cuda.cuh"
#include "kernels/shared/cuda_cells.cuh"
#include "kernels/shared/cuda_launch.cuh"
#include "kernels/shared/cuda_prim.cuh"

#define MAX_W 4
#define MAX_WARPS 16

struct gemv_weight {
    const uint8_t *cells;
    const float *bias;
    float *y;
    uint32_t n_rows, first_group, has_scale;
    float scale;
};

struct gemv_args {
    struct iso_cuda_codes a;
    struct gemv_weight w[MAX_W];
    uint32_t n_w, first_act, n_act, n_super;
};

/* Where the parts lie in shared memory. */
struct gemv_shared {
    int8_t *hi, *lo;
    int32_t *sum;
    float *scale, *part; /* part [NACT][n_super][32] */
};

static __host__ __device__ __forceinline__ size_t gemv_shared_bytes(uint32_t n_act, uint32_t n_super)
{
    return (size_t)n_act * n_super * (2 * CELL_COLS + 8 * 4 + 4 + 4 * CELL_ROWS) + 16 * n_act;
}

static __device__ __forceinline__ struct gemv_shared lay_shared(unsigned char *p, uint32_t n_act,
                                                                uint32_t n_super)
{
    struct gemv_shared s;
    const uint32_t cols = n_act * n_super * CELL_COLS;
    s.hi = (int8_t *)p;
    s.lo = s.hi + cols;
    s.sum = (int32_t *)(s.lo + cols);
    s.part = (float *)(s.sum + cols / 32);
    s.scale = s.part + n_act * n_super * CELL_ROWS;
    return s;
}

/* Rows that the step does not have are read as the last one; their products are not stored. */
template <int NACT>
static __device__ void stage(const struct gemv_shared &s, const struct gemv_args &g)
{
    const uint32_t stride = g.a.stride;
    for (uint32_t t = 0; t < NACT; t++) {
        const size_t row = g.first_act + min(t, g.n_act - 1);
        const uint4 *hi = (const uint4 *)(g.a.hi + row * stride), *lo = (const uint4 *)(g.a.lo + row * stride);
        uint4 *to_hi = (uint4 *)(s.hi + t * stride), *to_lo = (uint4 *)(s.lo + t * stride);
        for (uint32_t i = threadIdx.x; i < stride / 16; i += blockDim.x) {
            to_hi[i] = __ldcg(hi + i);
            to_lo[i] = __ldcg(lo + i);
        }
        const int4 *sum = (const int4 *)(g.a.sum32 + row * (stride / 32));
        int4 *to_sum = (int4 *)(s.sum + t * (stride / 32));
        for (uint32_t i = threadIdx.x; i < stride / 128; i += blockDim.x) to_sum[i] = __ldcg(sum + i);
        const float *scale = g.a.scale + row * g.n_super;
        for (uint32_t i = threadIdx.x; i < g.n_super; i += blockDim.x) {
            s.scale[t * g.n_super + i] = __ldcg(scale + i);
        }
    }
}

template <int T, int NACT>
static __global__ void __launch_bounds__(32 * MAX_WARPS, 1) gemv_kernel(const __grid_constant__ struct gemv_args g)
{
    extern __shared__ __align__(16) unsigned char shared[];
    const struct gemv_shared s = lay_shared(shared, NACT, g.n_super);
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, n_warps = blockDim.x / WARP;
    uint32_t wi = 0;
    while (wi + 1 < g.n_w && blockIdx.x >= g.w[wi + 1].first_group) wi++;
    const struct gemv_weight &w = g.w[wi];
    const uint32_t group = blockIdx.x - w.first_group;
    constexpr size_t CELL = CELL_ROWS * cell_lane_bytes(T);
    const uint8_t *at = w.cells + (size_t)group * g.n_super * CELL;
    /* Weights do not depend on what ran before: the first cell is on its way while that drains. */
    cell<T> c;
    if (warp < g.n_super) c.load(at + warp * CELL, (int)lane);
    grid_wait();
    grid_trigger();
    stage<NACT>(s, g);
    __syncthreads();
    for (uint32_t b = warp; b < g.n_super; b += n_warps) {
        const struct acts a = {s.hi + b * CELL_COLS, s.lo + b * CELL_COLS, s.sum + b * 8, g.a.stride};
        float p[NACT];
        cell_product<T, NACT>(p, c, a);
        if (b + n_warps < g.n_super) c.load(at + (size_t)(b + n_warps) * CELL, (int)lane);
#pragma unroll
        for (int t = 0; t < NACT; t++) s.part[((uint32_t)t * g.n_super + b) * CELL_ROWS + lane] = p[t];
    }
    __syncthreads();
    const uint32_t row = group * CELL_ROWS + lane;
    for (uint32_t t = warp; t < min((uint32_t)NACT, g.n_act); t += n_warps) {
        const float *part = s.part + t * g.n_super * CELL_ROWS + lane;
        const float *scale = s.scale + t * g.n_super;
        float y = 0.0f;
#pragma unroll 8
        for (uint32_t b = 0; b < g.n_super; b++) y = fmaf(scale[b], part[b * CELL_ROWS], y);
        if (w.has_scale) y = y * w.scale;
        if (row >= w.n_rows) continue;
        if (w.bias) y = y + w.bias[row];
        w.y[(size_t)(g.first_act + t) * w.n_rows + row] = y;
    }
}

template <int T, int NACT>
static void start(const struct gemv_args *g, uint32_t n_groups, cudaStream_t stream)
{
    const size_t bytes = gemv_shared_bytes(NACT, g->n_super);
    const uint32_t warps = g->n_super > 8 ? MAX_WARPS : 8;
    allow_smem(gemv_kernel<T, NACT>, bytes);
    launch(gemv_kernel<T, NACT>, n_groups, 32 * warps, bytes, stream, *g);
}

/* Most activation rows of one launch that shared memory allows. */
static uint32_t rows_that_fit(uint32_t n_super, const struct iso_cuda_chip *chip)
{
    uint32_t n = 8;
    while (n > 1 && gemv_shared_bytes(n, n_super) > chip->smem_block) n /= 2;
    return n;
}

template <int T>
static void run_type(struct gemv_args *g, uint32_t n_groups, uint32_t n_act,
                     const struct iso_cuda_chip *chip, cudaStream_t stream)
{
    const uint32_t most = rows_that_fit(g->n_super, chip);
    for (uint32_t t = 0; t < n_act; t += g->n_act) {
        g->first_act = t;
        g->n_act = min(most, n_act - t);
        if (g->n_act == 1) start<T, 1>(g, n_groups, stream);
        else if (g->n_act == 2) start<T, 2>(g, n_groups, stream);
        else if (g->n_act <= 4) start<T, 4>(g, n_groups, stream);
        else start<T, 8>(g, n_groups, stream);
    }
}

#define CASE(T, ...)                                                                               \
    case ISO_TYPE_##T: run_type<ISO_TYPE_##T>(g, n_groups, n_act, chip, stream); break;

static void run_any(struct gemv_args *g, uint32_t type, uint32_t n_groups, uint32_t n_act,
                    const struct iso_cuda_chip *chip, cudaStream_t stream)
{
    switch (type) {
        ISO_TYPE_MAP(CASE)
    }
}

/* Matrices of one type by plain loads. */
static void run_plain(const struct iso_cuda_codes *a, uint32_t n_act, const struct iso_cuda_matrix *w, uint32_t n_w,
                      const struct iso_cuda_chip *chip, cudaStream_t stream)
{
    struct gemv_args g = {};
    uint32_t n_groups = 0;
    g.a = *a;
    g.n_super = a->stride / CELL_COLS;
    for (uint32_t i = 0; i < n_w; i++) {
        g.w[g.n_w++] = {w[i].cells, w[i].bias, w[i].y, w[i].n_rows, n_groups, w[i].has_scale, w[i].scale};
        n_groups += (w[i].n_rows + CELL_ROWS - 1) / CELL_ROWS;
    }
    run_any(&g, w[0].type, n_groups, n_act, chip, stream);
}

extern "C" void iso_cuda_gemv(const struct iso_cuda_codes *a, uint32_t n_act,
                              const struct iso_cuda_matrix *w, uint32_t n_w,
                              const struct iso_cuda_chip *chip, struct CUstream_st *stream)
{
    bool done[MAX_W] = {false, false, false, false};
    for (uint32_t first = 0; first < n_w; first++) { /* matrices of one type share a launch */
        if (done[first]) continue;
        struct iso_cuda_matrix same[MAX_W];
        uint32_t n = 0;
        for (uint32_t i = first; i < n_w; i++) {
            if (w[i].type != w[first].type) continue;
            done[i] = true;
            same[n++] = w[i];
        }
        if (chip->bulk && iso_cuda_stream(a, n_act, same, n, chip, stream)) continue;
        run_plain(a, n_act, same, n, chip, stream);
    }
}
