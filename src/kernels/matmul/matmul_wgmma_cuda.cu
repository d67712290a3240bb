/* SPDX-License-Identifier: MIT
 * matmul_wgmma_cuda.cu - products with many rows on Hopper's byte tensor cores (sm_90a): types with sub-scales.
 *
 * Types with one scale per 32 columns: matmul_wgmma_f16_cuda.cu.
 * A block makes 128 activation rows x 128 weight rows with three warpgroups: one brings tiles by TMA, two own 64
 * activation rows each. 256 columns take three byte passes: hi*hi, mid*mid, lo*lo. With mid = hi + lo
 *     A = 4096*hh + 64*(mm - hh - ll) + ll = 4032*hh + 64*mm - 63*ll
 * and all sums live in one set of accumulators modulo 2^32, where 63 has an inverse:
 *     A = -63 * (ll + c*(mm + 63*hh)),   c = -64/63 mod 2^32.
 * Integer sums wrap by definition of the instruction without .satfinite, and |A| < 2^31.
 * The mins of Q4_K and Q5_K take two short passes more: high and low bytes of the sums of 16 codes
 * against each min twice; as integer multiply-adds they cost a third of the whole product (H200).
 * The second consumer group starts two passes behind the first: in step, both would wait for the tensor
 * cores together and then leave them idle together. (Tried and slower: clusters of two blocks that share
 * the activation tile by multicast, 193 instead of 291 TOPS.)
 * Source: PTX ISA 8.8, sections on wgmma, mbarrier and cp.async.bulk.
 */
#include "kernels/matmul/matmul_wgmma_cuda.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Issues 128 columns of one plane. */
static __device__ __forceinline__ void issue128(int32_t *d, const unsigned char *a, const unsigned char *b, int keep)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < 4; k++) product(d, descriptor(a) + k * 2, descriptor(b) + k * 2, keep || k > 0);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* --- producer ------------------------------------------------------------------------------------------ */

#define PER_SUPER 6 /* buffers for 256 columns: hi, mid, lo, each in two halves */

template <plane_form FORM>
static __device__ void produce(const struct gemm_args &g, const struct maps &m, const struct shared_parts &s)
{
    const int row = (int)blockIdx.x * TILE, col = (int)blockIdx.y * TILE;
    for (uint32_t q = 0; q < PER_SUPER * g.w.n_super; q++) {
        const uint32_t i = q % STAGES, phase = q / STAGES & 1;
        const uint32_t super = q / PER_SUPER, part = q % PER_SUPER;
        if (part == 0) bring_extra<FORM>(g, m, s, super);
        unsigned char *to = s.stage + i * STAGE_BYTES;
        uint64_t *full = s.full + i;
        barrier_wait(s.empty + i, phase ^ 1);
        barrier_expect(full, STAGE_BYTES);
        const uint32_t plane = part < 2 ? 0 : part < 4 ? 2 : 1;
        const int x = (int)(super * 256 + part % 2 * ATOM);
        tma_tile(to, &m.a[plane], full, x, row);
        tma_tile(to + TILE_BYTES, &m.b[plane], full, x, col);
    }
}

/* --- consumers ------------------------------------------------------------------------------------------ */

/* The sums of a superblock enter the chain y. */
template <plane_form FORM>
static __device__ __forceinline__ void chain_super(float *y, int32_t *d, float2 s, const struct owned &at,
                                                   const unsigned char *extra, const unsigned char *zeros)
{
    const float *scale = (const float *)extra, *dmin = scale + SIDE_ROWS;
    float p[64];
#pragma unroll
    for (int n = 0; n < 16; n++) {
        const float2 w = *(const float2 *)(scale + at.c + 8 * n);
#pragma unroll
        for (int i = 4 * n; i < 4 * n + 4; i++) p[i] = (i % 2 ? w.y : w.x) * (float)d[i];
    }
    if (super_min(FORM)) sum_mins(d, extra, zeros);
#pragma unroll
    for (int n = 0; n < 16; n++) {
        float2 w = make_float2(0.0f, 0.0f);
        if (super_min(FORM)) w = *(const float2 *)(dmin + at.c + 8 * n);
#pragma unroll
        for (int i = 4 * n; i < 4 * n + 4; i++) {
            if (super_min(FORM)) p[i] = fmaf(i % 2 ? w.y : w.x, (float)d[i], p[i]);
            y[i] = fmaf(i / 2 % 2 ? s.y : s.x, p[i], y[i]);
        }
    }
}

static __host__ __device__ constexpr uint32_t inverse(uint32_t odd) /* modulo 2^32, Newton */
{
    uint32_t x = odd;
    for (int i = 0; i < 5; i++) x *= 2u - odd * x;
    return x;
}

static __device__ __forceinline__ void multiply(int32_t *d, uint32_t by)
{
#pragma unroll
    for (int i = 0; i < 64; i++) d[i] = (int32_t)((uint32_t)d[i] * by);
}

template <plane_form FORM>
static __device__ void consume(float *y, const struct gemm_args &g, const struct shared_parts &s)
{
    constexpr uint32_t MIDDLE = 0u - 64u * inverse(63u); /* c of the header */
    const struct owned at = owned_by_thread();
    const uint32_t rows = (threadIdx.x / GROUP - 1) * 64 * ATOM; /* the group's part of A */
    int32_t d[64];
    static_assert(STAGES == PER_SUPER, "buffer of a part is its number");
    wait_for_first();
    for (uint32_t super = 0; super < g.w.n_super; super++) {
        const float2 scales = row_scales(g, at, super);
#pragma unroll
        for (int part = 0; part < 3; part++) { /* six buffers: the same ones in every superblock */
            const unsigned char *a = s.stage + 2 * part * STAGE_BYTES;
            barrier_wait(s.full + 2 * part, super & 1);
            pin(d);
            issue128(d, a + rows, a + TILE_BYTES, part > 0);
            barrier_wait(s.full + 2 * part + 1, super & 1);
            issue128(d, a + STAGE_BYTES + rows, a + STAGE_BYTES + TILE_BYTES, 1);
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            release_buffer(s.empty + 2 * part);
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            pin(d);
            release_buffer(s.empty + 2 * part + 1);
            if (super == 0 && part == 1) let_second_start();
            multiply(d, part == 0 ? 63u : part == 1 ? MIDDLE : 0u - 63u);
        }
        barrier_wait(s.extra_full + (super & 1), super >> 1 & 1);
        chain_super<FORM>(y, d, scales, at, s.extra + (super & 1) * extra_bytes(FORM), s.zeros);
        release_warp(s.extra_empty + (super & 1));
    }
}

#endif /* sm_90a */

/* --- host ----------------------------------------------------------------------------------------------- */

template <plane_form FORM> static int start(const struct gemm_args *g, cudaStream_t stream)
{
    struct maps m = {};
    const int8_t *a[3] = {g->a.hi, g->a.lo, g->a.mid};
    for (int i = 0; i < 3; i++) {
        if (make_map(&m.a[i], a[i], g->n_act, g->a.stride, 1, ATOM) != 0) return -1;
        if (make_map(&m.b[i], g->w.plane[i], g->w.n_rows, g->w.stride, 1, ATOM) != 0) return -1;
    }
    launch_tiles<FORM>(g, m, stream);
    return 0;
}

int iso_cuda_gemm_wgmma(const struct gemm_args *g, cudaStream_t stream)
{
    switch (g->w.form) {
    case SUPER: return start<SUPER>(g, stream);
    case SUPER_MIN: return start<SUPER_MIN>(g, stream);
    default: return -1; /* float types: iso_cuda_gemm_mma(); the others: iso_cuda_gemm_wgmma_f16() */
    }
}
