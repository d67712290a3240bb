/* SPDX-License-Identifier: MIT
 * matmul_wgmma_f16_cuda.cu - products with many rows on Hopper's f16 tensor cores, as integers (sm_90a).
 *
 * f16 holds every integer up to 2,048, and sums in f32 are exact in any order while they stay below 2^24:
 * the instruction accumulates with at least the precision of f32, and each partial sum is an integer that
 * f32 holds.
 * Of types with one scale per 32 columns a sum is at most 32 * 128 * 2047 < 2^23: one pass, and it is f32(I) of
 * section 5 without a conversion, where byte planes need two passes and a conversion for every 32 columns.
 * Activations come as one plane of 16 bits and go through registers, from where the instruction takes them.
 * Shape as in matmul_wgmma_cuda.cu: one warpgroup brings tiles, two own 64 activation rows each.
 * Source: PTX ISA 8.8, sections on wgmma and ldmatrix.
 */
#include "kernels/matmul/matmul_wgmma_cuda.cuh"

#define BUFFER_COLS 64 /* columns of a buffer: 128 bytes of f16 */
#define PER_SUPER 4    /* buffers for 256 columns */
#define F16X2_64 0x54005400u
#define F16X2_1056 0x64206420u /* 1024 + 32 */

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* --- operands in registers ---------------------------------------------------------------------------- */

static __device__ __forceinline__ uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

/* Biased words of activations, 64 x 16 of them over the group: columns 16k.. of its 64 rows at a. */
static __device__ __forceinline__ void load_words(uint32_t *w, const unsigned char *a, uint32_t k)
{
    const uint32_t t = threadIdx.x % GROUP, lane = t % WARP;
    const uint32_t row = t / WARP * 16 + lane % 16, piece = 2 * k + lane / 16;
    const uint32_t at = smem_at(a) + row * ATOM + ((piece ^ (row & 7)) << 4);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(at)
                 : "memory");
}

/* The parts h and l of two activations; see cuda_codes.h. */
static __device__ __forceinline__ uint32_t high_part(uint32_t w)
{
    return sub_f16x2((w >> 6 & 0x007f007fu) | F16X2_1024, F16X2_1056);
}

static __device__ __forceinline__ uint32_t low_part(uint32_t w)
{
    return sub_f16x2((w & 0x003f003fu) | F16X2_1024, F16X2_1056);
}

static __device__ __forceinline__ void load_parts(uint32_t *h, uint32_t *l, const unsigned char *a, uint32_t k)
{
    uint32_t w[4];
    load_words(w, a, k);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        h[i] = high_part(w[i]);
        l[i] = low_part(w[i]);
    }
}

/* Whole activations of 32 columns, at most 2,047: exact in f16. */
static __device__ __forceinline__ void load_codes(uint32_t *c, const unsigned char *a, uint32_t step)
{
#pragma unroll
    for (uint32_t k = 0; k < 2; k++) {
        uint32_t h[4], l[4];
        load_parts(h, l, a, 2 * step + k);
#pragma unroll
        for (int i = 0; i < 4; i++) c[4 * k + i] = fma_f16x2(F16X2_64, h[i], l[i]);
    }
}

/* d [64 x 128] (+)= A [64][16] * B [128][16]: A in four registers of each
 * thread. The sums are f32, kept as bits like those of the byte products. */
static __device__ __forceinline__ void product_f16(int32_t *d, const uint32_t *a, uint64_t b, int keep)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]),
          "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15]),
          "+r"(d[16]), "+r"(d[17]), "+r"(d[18]), "+r"(d[19]), "+r"(d[20]), "+r"(d[21]), "+r"(d[22]), "+r"(d[23]),
          "+r"(d[24]), "+r"(d[25]), "+r"(d[26]), "+r"(d[27]), "+r"(d[28]), "+r"(d[29]), "+r"(d[30]), "+r"(d[31]),
          "+r"(d[32]), "+r"(d[33]), "+r"(d[34]), "+r"(d[35]), "+r"(d[36]), "+r"(d[37]), "+r"(d[38]), "+r"(d[39]),
          "+r"(d[40]), "+r"(d[41]), "+r"(d[42]), "+r"(d[43]), "+r"(d[44]), "+r"(d[45]), "+r"(d[46]), "+r"(d[47]),
          "+r"(d[48]), "+r"(d[49]), "+r"(d[50]), "+r"(d[51]), "+r"(d[52]), "+r"(d[53]), "+r"(d[54]), "+r"(d[55]),
          "+r"(d[56]), "+r"(d[57]), "+r"(d[58]), "+r"(d[59]), "+r"(d[60]), "+r"(d[61]), "+r"(d[62]), "+r"(d[63])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
}

/* --- groups of asynchronous products ---------------------------------------------------------------- */

static __device__ __forceinline__ void commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void wait_all(void)
{
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

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
static __device__ __forceinline__ const unsigned char *buffer_rows(const struct shared_parts &s, uint32_t i)
{
    return s.stage + i * STAGE_BYTES + (threadIdx.x / GROUP - 1) * 64 * ATOM;
}

static __device__ __forceinline__ uint64_t buffer_weights(const struct shared_parts &s, uint32_t i)
{
    return descriptor(s.stage + i * STAGE_BYTES + TILE_BYTES);
}

/* The sums d of 32 columns enter the chain p over their block. */
template <plane_form FORM>
static __device__ __forceinline__ void chain_block(float *p, const int32_t *d, const struct owned &at,
                                                   const unsigned char *extra, uint32_t block)
{
    const float *scale = (const float *)extra + block * SIDE_ROWS, *min = scale + 8 * SIDE_ROWS;
    float sum[2] = {0.0f, 0.0f};
    if (block_min(FORM)) {
        const int32_t *sums = (const int32_t *)(extra + side_bytes(FORM));
        sum[0] = (float)sums[at.r * 8 + block];
        sum[1] = (float)sums[(at.r + 8) * 8 + block];
    }
#pragma unroll
    for (int n = 0; n < 16; n++) {
        const float2 w = *(const float2 *)(scale + at.c + 8 * n);
        float2 m = make_float2(0.0f, 0.0f);
        if (block_min(FORM)) m = *(const float2 *)(min + at.c + 8 * n);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            p[4 * n + i] = fmaf(i % 2 ? w.y : w.x, __int_as_float(d[4 * n + i]), p[4 * n + i]);
            if (block_min(FORM)) p[4 * n + i] = fmaf(i % 2 ? m.y : m.x, sum[i / 2], p[4 * n + i]);
        }
    }
}

template <plane_form FORM>
static __device__ void consume(float *y, const struct gemm_args &g, const struct shared_parts &s)
{
    const struct owned at = owned_by_thread();
    struct cursor c = {0, 0};
    float p[64];
    int32_t d[64];
    uint32_t a[2][8];
    wait_for_first();
    barrier_wait(s.full, 0);
    load_codes(a[0], buffer_rows(s, 0), 0);
    for (uint32_t super = 0; super < g.w.n_super; super++) {
        const float2 scales = row_scales(g, at, super);
        const unsigned char *extra = s.extra + (super & 1) * extra_bytes(FORM);
#pragma unroll
        for (int i = 0; i < 64; i++) p[i] = 0.0f;
        barrier_wait(s.extra_full + (super & 1), super >> 1 & 1);
        for (uint32_t part = 0; part < PER_SUPER; part++) {
            const uint32_t now = c.i;
            const uint64_t b = buffer_weights(s, now);
            const bool more = super + 1 < g.w.n_super || part + 1 < PER_SUPER;
#pragma unroll
            for (uint32_t k = 0; k < 2; k++) { /* 32 columns each */
                begin_products(d);
                product_f16(d, a[k], b + 4 * k, 0);
                product_f16(d, a[k] + 4, b + 4 * k + 2, 1);
                commit();
                if (k == 0) {
                    load_codes(a[1], buffer_rows(s, now), 1);
                } else if (more) {
                    advance(c);
                    barrier_wait(s.full + c.i, c.phase);
                    load_codes(a[0], buffer_rows(s, c.i), 0);
                }
                wait_all();
                pin(d);
                if (k == 1) release_buffer(s.empty + now);
                if (super + part == 0 && k == 0) let_second_start();
                chain_block<FORM>(p, d, at, extra, 2 * part + k);
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
        (block_min(FORM) && make_map(&m.sums, g->a.sum32, g->n_act, g->a.stride / 32, 4, 8) != 0)) {
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
