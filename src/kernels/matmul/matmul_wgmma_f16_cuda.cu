/* SPDX-License-Identifier: MIT
 * matmul_wgmma_f16_cuda.cu - products with many rows on Hopper's f16 tensor cores, as integers (sm_90a): types
 * with one scale per 32 columns.
 *
 * f16 holds every integer up to 2,048, and sums in f32 are exact in any order while they stay below 2^24:
 * the instruction accumulates with at least the precision of f32. A sum of 32 columns of code * activation is at most
 * 32 * 128 * 2047 < 2^23: one pass, and the sum is f32(I) of section 5 without a conversion.
 * Shape as in matmul_wgmma_cuda.cu: one warpgroup brings tiles, two own 64 activation rows each. Between two products
 * of 32 columns a group has little more to do than 64 multiply-adds of the chain; what else stands there (activations
 * split in registers, scales as pairs) costs as much again (H200: 1,780 us instead of 1,500 for 28672 x 4096, 2,048
 * rows of Q8_0). Tried and slower: turns of the two groups by named barriers, 1,760 us.
 * Source: PTX ISA 8.8, section on wgmma.
 */
#include "kernels/matmul/matmul_wgmma_cuda.cuh"

#define BUFFER_COLS 64 /* columns of a buffer: 128 bytes of f16 */
#define PER_SUPER 4    /* buffers for 256 columns */

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* --- producer ------------------------------------------------------------------------------------------ */

template <plane_form FORM>
static __device__ void produce(const struct gemm_args &g, const struct maps &m, const struct shared_parts &s)
{
    const int row = (int)blockIdx.x * TILE, col = (int)blockIdx.y * TILE;
    for (uint32_t q = 0; q < PER_SUPER * g.w.n_super; q++) {
        const uint32_t i = q % STAGES, phase = q / STAGES & 1;
        if (q % PER_SUPER == 0) bring_extra<FORM>(g, m, s, q / PER_SUPER);
        unsigned char *to = s.stage + i * STAGE_BYTES;
        barrier_wait(s.empty + i, phase ^ 1);
        barrier_expect(s.full + i, STAGE_BYTES);
        tma_tile(to, &m.a[0], s.full + i, (int)q * BUFFER_COLS, row);
        tma_tile(to + TILE_BYTES, &m.b[0], s.full + i, (int)q * BUFFER_COLS, col);
    }
}

/* --- consumers ------------------------------------------------------------------------------------------ */

/* The buffer that a group reads. */
struct cursor {
    uint32_t i, phase;
};

static __device__ __forceinline__ void advance(struct cursor &c)
{
    if (++c.i == STAGES) {
        c.i = 0;
        c.phase ^= 1;
    }
}

/* The group's rows of the buffer. */
static __device__ __forceinline__ uint64_t buffer_rows(const struct shared_parts &s, uint32_t i)
{
    return descriptor(s.stage + i * STAGE_BYTES + (threadIdx.x / GROUP - 1) * 64 * ATOM);
}

static __device__ __forceinline__ uint64_t buffer_weights(const struct shared_parts &s, uint32_t i)
{
    return descriptor(s.stage + i * STAGE_BYTES + TILE_BYTES);
}

/* The second group waits here until the first one has come to let_second_start(). */
static __device__ __forceinline__ void wait_for_first(void)
{
    if (threadIdx.x / GROUP == 2) asm volatile("bar.sync 1, %0;" ::"n"(2 * GROUP) : "memory");
}

static __device__ __forceinline__ void let_second_start(void)
{
    if (threadIdx.x / GROUP == 1) asm volatile("bar.arrive 1, %0;" ::"n"(2 * GROUP) : "memory");
}

/* Scales or mins of the thread's columns: 8n + c and 8n + c + 1 of two n in each; see half_place(). */
static __device__ __forceinline__ void load_side(float4 *w, const float *side, const struct owned &at)
{
#pragma unroll
    for (int n = 0; n < 8; n++) w[n] = *(const float4 *)(side + 2 * at.c + 16 * n);
}

static __device__ __forceinline__ float side_of(const float4 *w, int i)
{
    const float4 v = w[i / 8];
    return i / 4 % 2 ? (i % 2 ? v.w : v.z) : (i % 2 ? v.y : v.x);
}

/* The mins of 32 columns enter the chain p over their block. */
static __device__ __forceinline__ void chain_mins(float *p, float4 *w, const struct owned &at, const unsigned char *extra,
                                                  uint32_t block)
{
    const int32_t *sums = (const int32_t *)(extra + side_bytes(HALF_BLOCK_MIN));
    const float sum[2] = {(float)sums[at.r * 8 + block], (float)sums[(at.r + 8) * 8 + block]};
    load_side(w, (const float *)extra + (8 + block) * SIDE_ROWS, at);
#pragma unroll
    for (int i = 0; i < 64; i++) p[i] = fmaf(side_of(w, i), sum[i / 2 % 2], p[i]);
}

template <plane_form FORM>
static __device__ void consume(float *y, const struct gemm_args &g, const struct shared_parts &s)
{
    const struct owned at = owned_by_thread();
    struct cursor c = {0, 0};
    float p[64];
    int32_t d[64];
    float4 w[8];
    wait_for_first();
    barrier_wait(s.full, 0);
    for (uint32_t super = 0; super < g.w.n_super; super++) {
        const float2 scales = row_values(g.a.scale, g, at, super);
        const unsigned char *extra = s.extra + (super & 1) * extra_bytes(FORM);
#pragma unroll
        for (int i = 0; i < 64; i++) p[i] = 0.0f;
        barrier_wait(s.extra_full + (super & 1), super >> 1 & 1);
        for (uint32_t part = 0; part < PER_SUPER; part++) {
            const uint32_t now = c.i;
            const uint64_t a = buffer_rows(s, now), b = buffer_weights(s, now);
            const bool more = super + 1 < g.w.n_super || part + 1 < PER_SUPER;
#pragma unroll
            for (uint32_t k = 0; k < 2; k++) { /* 32 columns each */
                const uint32_t block = 2 * part + k;
                begin_products(d);
                product_f16(d, a + 4 * k, b + 4 * k, 0);
                product_f16(d, a + 4 * k + 2, b + 4 * k + 2, 1);
                commit_products();
                load_side(w, (const float *)extra + block * SIDE_ROWS, at);
                if (k == 1 && more) {
                    advance(c);
                    barrier_wait(s.full + c.i, c.phase);
                }
                wait_products<0>();
                pin(d);
                if (k == 1) release_buffer(s.empty + now);
                if (super + part == 0 && k == 0) let_second_start();
#pragma unroll
                for (int i = 0; i < 64; i++) p[i] = fmaf(side_of(w, i), __int_as_float(d[i]), p[i]);
                if (FORM == HALF_BLOCK_MIN) chain_mins(p, w, at, extra, block);
            }
        }
        release_warp(s.extra_empty + (super & 1));
#pragma unroll
        for (int i = 0; i < 64; i++) y[i] = fmaf(i / 2 % 2 ? scales.y : scales.x, p[i], y[i]);
    }
}

#endif /* sm_90a */

/* --- host ----------------------------------------------------------------------------------------------- */

template <plane_form FORM> static int start(const struct gemm_args *g, cudaStream_t stream)
{
    struct maps m = {};
    if (make_map(&m.a[0], g->a.wide, g->n_act, g->a.stride, 2, BUFFER_COLS) != 0 ||
        make_map(&m.b[0], g->w.plane[0], g->w.n_rows, g->w.stride, 2, BUFFER_COLS) != 0 ||
        (FORM == HALF_BLOCK_MIN && make_map(&m.sums, g->a.sum32, g->n_act, g->a.stride / 32, 4, 8) != 0)) {
        return -1;
    }
    launch_tiles<FORM>(g, m, stream);
    return 0;
}

int iso_cuda_gemm_wgmma_f16(const struct gemm_args *g, cudaStream_t stream)
{
    switch (g->w.form) {
    case HALF_BLOCK: return start<HALF_BLOCK>(g, stream);
    case HALF_BLOCK_MIN: return start<HALF_BLOCK_MIN>(g, stream);
    default: return -1; /* byte planes: iso_cuda_gemm_wgmma() */
    }
}
