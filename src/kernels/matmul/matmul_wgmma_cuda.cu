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
 * The mins of Q4_K and Q5_K take one short pass more, in f16: the high and the low parts of the sums S of 32 codes
 * against min - 32, so that |sum of (min - 32) * S| <= 8 * 32 * 65504 < 2^24 is exact in f32 in any order; the
 * rest, 32 times the sum of all codes, is added behind it and rounds once, to f32(M) of section 5. As integer
 * multiply-adds the mins cost a third of the whole product, as two byte passes a sixth (H200).
 * The two consumer groups issue a pass in turn, so that one has the tensor cores while the other multiplies: left to
 * themselves they end up in step, wait for the tensor cores together and leave them idle together (H200, 28672 x 4096,
 * 2,048 rows of Q4_K: 1,440 us with turns, 1,510 without).
 * Tried and slower: clusters of two or four blocks that share tiles by multicast (2,580 to 2,820 us, and 2,130 without
 * any product, where loads alone take 1,360); two f16 passes, activations split in registers (Q4_K prefill -14 %).
 * Source: PTX ISA 8.8, sections on wgmma, mbarrier and cp.async.bulk.
 */
#include "kernels/matmul/matmul_wgmma_cuda.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* d [64 x 128] (+)= A [64][32] * B [128][32] of bytes; old sums are dropped when keep is 0. */
static __device__ __forceinline__ void product(int32_t *d, uint64_t a, uint64_t b, int keep)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 " SUMS_TEXT ", %64, %65, p;\n}"
                 : SUMS(d)
                 : "l"(a), "l"(b), "r"(keep));
}

/* Descriptor of a tile f16 of rows of 16 bytes, eight rows side by side; columns 8.. begin next bytes behind. */
static __device__ __forceinline__ uint64_t narrow_descriptor(const void *p, uint32_t next)
{
    return (uint64_t)((smem_at(p) & 0x3FFFF) >> 4) | (uint64_t)(next >> 4) << 16 | (uint64_t)8 << 32;
}

/* Issues 128 columns of one plane. */
static __device__ __forceinline__ void issue128(int32_t *d, const unsigned char *a, const unsigned char *b, int keep)
{
    fence_products();
#pragma unroll
    for (int k = 0; k < 4; k++) product(d, descriptor(a) + k * 2, descriptor(b) + k * 2, keep || k > 0);
    commit_products();
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

/* d = the sums of (min - 32) * S over a superblock, as f32. */
static __device__ __forceinline__ void sum_mins(int32_t *d, const unsigned char *extra)
{
    const unsigned char *rows = extra + side_bytes(SUPER_MIN) + (threadIdx.x / GROUP - 1) * 64 * 16;
    begin_products(d);
    product_f16(d, narrow_descriptor(rows, SUM_TILE), narrow_descriptor(extra + MINS_AT, 0), 0); /* the same mins twice */
    end_products(d);
}

/* The sums of a superblock enter the chain y. */
template <plane_form FORM>
static __device__ __forceinline__ void chain_super(float *y, int32_t *d, float2 s, float2 total, const struct owned &at,
                                                   const unsigned char *extra)
{
    const float *scale = (const float *)extra, *dmin = scale + SIDE_ROWS;
    float p[64];
#pragma unroll
    for (int n = 0; n < 16; n++) {
        const float2 w = *(const float2 *)(scale + at.c + 8 * n);
#pragma unroll
        for (int i = 4 * n; i < 4 * n + 4; i++) p[i] = (i % 2 ? w.y : w.x) * (float)d[i];
    }
    if (FORM == SUPER_MIN) sum_mins(d, extra);
#pragma unroll
    for (int n = 0; n < 16; n++) {
        float2 w = make_float2(0.0f, 0.0f);
        if (FORM == SUPER_MIN) w = *(const float2 *)(dmin + at.c + 8 * n);
#pragma unroll
        for (int i = 4 * n; i < 4 * n + 4; i++) {
            if (FORM == SUPER_MIN) {
                const float m = __int_as_float(d[i]) + (i / 2 % 2 ? total.y : total.x);
                p[i] = fmaf(i % 2 ? w.y : w.x, m, p[i]);
            }
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

/* The groups issue their products in turn: those of one wait behind those of the other, instead of among them. */
static __device__ __forceinline__ void take_turn(void)
{
    asm volatile("bar.sync %0, %1;" ::"r"(threadIdx.x / GROUP), "n"(2 * GROUP) : "memory");
}

static __device__ __forceinline__ void give_turn(void)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(3 - threadIdx.x / GROUP), "n"(2 * GROUP) : "memory");
}

template <plane_form FORM>
static __device__ void consume(float *y, const struct gemm_args &g, const struct shared_parts &s)
{
    constexpr uint32_t MIDDLE = 0u - 64u * inverse(63u); /* c of the header */
    const struct owned at = owned_by_thread();
    const uint32_t rows = (threadIdx.x / GROUP - 1) * 64 * ATOM; /* the group's part of A */
    int32_t d[64];
    static_assert(STAGES == PER_SUPER, "buffer of a part is its number");
    if (threadIdx.x / GROUP == 2) give_turn();
    for (uint32_t super = 0; super < g.w.n_super; super++) {
        const bool last = threadIdx.x / GROUP == 2 && super + 1 == g.w.n_super; /* nobody takes the turn behind it */
        const float2 scales = row_values(g.a.scale, g, at, super);
        float2 totals = make_float2(0.0f, 0.0f);
        if (FORM == SUPER_MIN) totals = row_values(g.a.total, g, at, super);
#pragma unroll
        for (int part = 0; part < 3; part++) { /* six buffers: the same ones in every superblock */
            const unsigned char *a = s.stage + 2 * part * STAGE_BYTES;
            barrier_wait(s.full + 2 * part, super & 1);
            take_turn();
            pin(d);
            issue128(d, a + rows, a + TILE_BYTES, part > 0);
            barrier_wait(s.full + 2 * part + 1, super & 1);
            issue128(d, a + STAGE_BYTES + rows, a + STAGE_BYTES + TILE_BYTES, 1);
            if (part < 2 || !last) give_turn();
            wait_products<1>();
            release_buffer(s.empty + 2 * part);
            wait_products<0>();
            pin(d);
            release_buffer(s.empty + 2 * part + 1);
            multiply(d, part == 0 ? 63u : part == 1 ? MIDDLE : 0u - 63u);
        }
        barrier_wait(s.extra_full + (super & 1), super >> 1 & 1);
        chain_super<FORM>(y, d, scales, totals, at, s.extra + (super & 1) * extra_bytes(FORM));
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
