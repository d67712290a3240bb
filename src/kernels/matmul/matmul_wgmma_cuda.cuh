/* SPDX-License-Identifier: MIT
 * matmul_wgmma_cuda.cuh - what the products on Hopper's warpgroup instructions share: barriers, bulk
 * copies, descriptors, the outputs of a thread, tensor maps.
 * Source: PTX ISA 8.8, sections on wgmma, mbarrier and cp.async.bulk.
 */
#ifndef ISO_KERNELS_MATMUL_WGMMA_CUDA_CUH
#define ISO_KERNELS_MATMUL_WGMMA_CUDA_CUH

#include <cuda.h>

#include "kernels/matmul/matmul_planes_cuda.cuh"
#include "kernels/shared/cuda_launch.cuh"
#include "kernels/shared/cuda_prim.cuh"

#define TILE 128        /* rows of either operand per block */
#define ATOM 128        /* bytes of a row of a swizzled tile */
#define TILE_BYTES (TILE * ATOM) /* one operand's part of a buffer */
#define GROUP 128       /* threads of a warpgroup */
#define THREADS (3 * GROUP)
#define MINS_AT 1024    /* of the side with mins: they as a tile f16 [128][8] */
#define SUM_TILE (TILE * 16) /* one part of the sums of 256 columns, f16 [128][8]; or those of 32 codes, s32 [128][4] */

/* Buffers: 128 bytes of each row of A and of B. Many small ones: with three twice as large a refilled buffer
 * came back too late, 1,670 cycles per pass of 1,024 (H200). */
#define STAGES 6
#define STAGE_BYTES (2 * TILE_BYTES)

/* Per 256 columns: side, and of the activations sums of 32 (SUPER_MIN: their high and low parts). */
static __host__ __device__ constexpr int extra_bytes(plane_form f)
{
    return (int)side_bytes(f) + (f == SUPER_MIN || f == HALF_BLOCK_MIN ? 2 * SUM_TILE : 0);
}
static __host__ __device__ constexpr int smem_bytes(plane_form f)
{
    return STAGES * STAGE_BYTES + 2 * extra_bytes(f) + 256 + 1024;
}

struct maps {
    CUtensorMap a[3], b[3], sums;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* --- barriers and copies -------------------------------------------------------------------------- */

static __device__ __forceinline__ uint32_t smem_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void barrier_init(uint64_t *b, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_at(b)), "r"(count));
}

static __device__ __forceinline__ void barrier_expect(uint64_t *b, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_at(b)), "r"(bytes) : "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint64_t *b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem_at(b)) : "memory");
}

static __device__ __forceinline__ void barrier_wait(uint64_t *b, uint32_t phase)
{
    asm volatile("{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(smem_at(b)),
                 "r"(phase)
                 : "memory");
}

static __device__ __forceinline__ void tma_tile(void *to, const CUtensorMap *map, uint64_t *b, int x, int y)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
                 "[%2];" ::"r"(smem_at(to)),
                 "l"(map), "r"(smem_at(b)), "r"(x), "r"(y)
                 : "memory");
}

static __device__ __forceinline__ void bulk_copy(void *to, const void *from, uint64_t *b, int bytes)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     smem_at(to)),
                 "l"(from), "r"(bytes), "r"(smem_at(b))
                 : "memory");
}

/* --- warpgroup products ---------------------------------------------------------------------------- */

/* Descriptor of a K-major tile of 128-byte rows, swizzle 128: start, 1024 bytes between 8-row groups. */
static __device__ __forceinline__ uint64_t descriptor(const void *p)
{
    return (uint64_t)((smem_at(p) & 0x3FFFF) >> 4) | (uint64_t)1 << 16 | (uint64_t)64 << 32 | (uint64_t)1 << 62;
}

/* The 64 accumulators of a thread, in the text of an instruction and as its operands 0 to 63. */
#define SUMS_TEXT                                                                                  \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                      \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
#define SUMS_8(d, i)                                                                               \
    "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]), "+r"(d[i + 6]), "+r"(d[i + 7])
#define SUMS(d)                                                                                    \
    SUMS_8(d, 0), SUMS_8(d, 8), SUMS_8(d, 16), SUMS_8(d, 24), SUMS_8(d, 32), SUMS_8(d, 40), SUMS_8(d, 48), SUMS_8(d, 56)

/* d [64 x 128] (+)= A [64][16] * B [128][16] of f16; old sums are dropped when keep is 0. The sums are f32, kept
 * as bits like those of byte products. */
static __device__ __forceinline__ void product_f16(int32_t *d, uint64_t a, uint64_t b, int keep)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " SUMS_TEXT ", %64, %65, p, 1, 1, 0, 0;\n}"
                 : SUMS(d)
                 : "l"(a), "l"(b), "r"(keep));
}

/* The compiler must not move accumulators across the asynchronous products. */
static __device__ __forceinline__ void pin(int32_t *d)
{
#pragma unroll
    for (int i = 0; i < 64; i++) asm volatile("" : "+r"(d[i])::"memory");
}

static __device__ __forceinline__ void fence_products(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void begin_products(int32_t *d)
{
    pin(d);
    fence_products();
}

/* The products since the last call are a group. */
static __device__ __forceinline__ void commit_products(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* At most N groups are still under way; d is used behind it. */
template <int N> static __device__ __forceinline__ void wait_products(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

static __device__ __forceinline__ void end_products(int32_t *d)
{
    commit_products();
    wait_products<0>();
    pin(d);
}

/* --- shared memory ---------------------------------------------------------------------------------- */

struct shared_parts {
    unsigned char *stage, *extra; /* [STAGES], [2] */
    uint64_t *full, *empty, *extra_full, *extra_empty;
};

template <plane_form FORM> static __device__ __forceinline__ struct shared_parts lay_parts(unsigned char *raw)
{
    struct shared_parts s;
    s.stage = raw + (1024 - (smem_at(raw) & 1023)) % 1024;
    s.extra = s.stage + STAGES * STAGE_BYTES;
    s.full = (uint64_t *)(s.extra + 2 * extra_bytes(FORM));
    s.empty = s.full + STAGES;
    s.extra_full = s.empty + STAGES;
    s.extra_empty = s.extra_full + 2;
    return s;
}

template <plane_form FORM> static __device__ __forceinline__ void init_barriers(const struct shared_parts &s)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(s.full + i, 1);
            barrier_init(s.empty + i, 2); /* one arrival per consumer group */
        }
        for (int i = 0; i < 2; i++) {
            barrier_init(s.extra_full + i, 1);
            barrier_init(s.extra_empty + i, 8); /* one per consumer warp */
        }
        asm volatile("fence.mbarrier_init.release.cluster;");
    }
    __syncthreads();
}

template <plane_form FORM>
static __device__ __forceinline__ void bring_extra(const struct gemm_args &g, const struct maps &m,
                                                   const struct shared_parts &s, uint32_t super)
{
    const uint32_t i = super & 1, phase = super >> 1 & 1;
    unsigned char *to = s.extra + i * extra_bytes(FORM);
    barrier_wait(s.extra_empty + i, phase ^ 1);
    barrier_expect(s.extra_full + i, extra_bytes(FORM));
    const uint8_t *side = g.w.side + ((size_t)super * (g.w.n_rows / SIDE_ROWS) + blockIdx.y) * side_bytes(FORM);
    bulk_copy(to, side, s.extra_full + i, (int)side_bytes(FORM));
    if (FORM == HALF_BLOCK_MIN) {
        tma_tile(to + side_bytes(FORM), &m.sums, s.extra_full + i, (int)super * 8, (int)blockIdx.x * TILE);
    } else if (FORM == SUPER_MIN) {
        const size_t at = ((size_t)super * g.a.sum_rows + blockIdx.x * TILE) * 8;
        bulk_copy(to + side_bytes(FORM), g.a.sum_hi + at, s.extra_full + i, SUM_TILE);
        bulk_copy(to + side_bytes(FORM) + SUM_TILE, g.a.sum_lo + at, s.extra_full + i, SUM_TILE);
    }
}

/* --- a thread's outputs ------------------------------------------------------------------------------ */

/* Place of a thread in its group's 64 x 128: rows r and r + 8, columns c + 8n and c + 8n + 1. */
struct owned {
    uint32_t r, c;
};

static __device__ __forceinline__ struct owned owned_by_thread(void)
{
    const uint32_t t = threadIdx.x % GROUP;
    return {(threadIdx.x / GROUP - 1) * 64 + t / 32 * 16 + t % 32 / 4, t % 4 * 2};
}

/* The group has read the buffer. */
static __device__ __forceinline__ void release_buffer(uint64_t *barrier)
{
    if (threadIdx.x % GROUP == 0) barrier_arrive(barrier);
}

static __device__ __forceinline__ void release_warp(uint64_t *barrier)
{
    __syncwarp();
    if (threadIdx.x % WARP == 0) barrier_arrive(barrier);
}

/* A superblock's value, [n_act][n_super], of the thread's two rows. */
static __device__ __forceinline__ float2 row_values(const float *v, const struct gemm_args &g, const struct owned &at,
                                                    uint32_t super)
{
    const uint32_t r = blockIdx.x * TILE + at.r;
    const uint32_t r0 = min(r, g.n_act - 1), r1 = min(r + 8, g.n_act - 1);
    return make_float2(v[(size_t)r0 * g.w.n_super + super], v[(size_t)r1 * g.w.n_super + super]);
}

/* A block that lies inside y: pairs of columns are stored together, without a question for each. */
static __device__ __forceinline__ void store_whole(const struct gemm_args &g, const float *y)
{
    const struct owned at = owned_by_thread();
    const size_t row = blockIdx.x * TILE + at.r, col = blockIdx.y * TILE + at.c;
    float *to = g.y + row * g.y_stride + col;
#pragma unroll
    for (int n = 0; n < 16; n++) {
        float v[4] = {y[4 * n], y[4 * n + 1], y[4 * n + 2], y[4 * n + 3]};
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = finish_output(g, (uint32_t)col + 8 * n + i % 2, v[i]);
        *(float2 *)(to + 8 * n) = make_float2(v[0], v[1]);
        *(float2 *)(to + 8 * (size_t)g.y_stride + 8 * n) = make_float2(v[2], v[3]);
    }
}

static __device__ __forceinline__ void store_outputs(const struct gemm_args &g, const float *y)
{
    const bool pairs = g.y_stride % 2 == 0 && ((uintptr_t)g.y & 7) == 0;
    if (pairs && (blockIdx.x + 1) * TILE <= g.n_act && (blockIdx.y + 1) * TILE <= g.n_out) {
        store_whole(g, y);
        return;
    }
    const struct owned at = owned_by_thread();
#pragma unroll
    for (int n = 0; n < 16; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t row = blockIdx.x * TILE + at.r + i / 2 * 8, col = blockIdx.y * TILE + at.c + 8 * n + i % 2;
            if (row < g.n_act && col < g.n_out) {
                g.y[(size_t)row * g.y_stride + col] = finish_output(g, col, y[4 * n + i]);
            }
        }
    }
}

/* Each file's own: one thread brings tiles, two groups turn them into outputs y. */
template <plane_form FORM>
static __device__ __forceinline__ void produce(const struct gemm_args &g, const struct maps &m,
                                               const struct shared_parts &s);
template <plane_form FORM>
static __device__ __forceinline__ void consume(float *y, const struct gemm_args &g, const struct shared_parts &s);

#endif /* sm_90a */

template <plane_form FORM>
static __global__ void __launch_bounds__(THREADS, 1) wgmma_kernel(const __grid_constant__ struct gemm_args g,
                                                                  const __grid_constant__ struct maps m)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) unsigned char raw[];
    const struct shared_parts s = lay_parts<FORM>(raw);
    init_barriers<FORM>(s);
    grid_wait();
    grid_trigger();
    if (threadIdx.x < GROUP) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 0) produce<FORM>(g, m, s);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        float y[64];
#pragma unroll
        for (int i = 0; i < 64; i++) y[i] = 0.0f;
        consume<FORM>(y, g, s);
        store_outputs(g, y);
    }
#endif
}

/* --- host: tensor maps, launch ------------------------------------------------------------------------------ */

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                              const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                              CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* The driver's encoder, looked up through the runtime: nothing links against libcuda. */
static encode_fn encoder(void)
{
    void *f = NULL;
    cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found) != cudaSuccess) {
        return NULL;
    }
    return found == cudaDriverEntryPointSuccess ? (encode_fn)f : NULL;
}

/* A row-major matrix [rows][cols] of elements of width bytes, read in boxes of 128 x box_cols; boxes whose
 * rows have 128 bytes are swizzled. */
static int make_map(CUtensorMap *out, const void *p, uint32_t rows, uint32_t cols, uint32_t width, uint32_t box_cols)
{
    static const encode_fn encode = encoder();
    if (encode == NULL) return -1;
    const CUtensorMapDataType type = width == 1   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                     : width == 2 ? CU_TENSOR_MAP_DATA_TYPE_UINT16
                                                  : CU_TENSOR_MAP_DATA_TYPE_INT32;
    const bool swizzle = box_cols * width == ATOM;
    const cuuint64_t dim[2] = {cols, rows}, stride[1] = {(cuuint64_t)cols * width};
    const cuuint32_t box[2] = {box_cols, TILE}, step[2] = {1, 1};
    const CUresult r = encode(out, type, 2, (void *)p, dim, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                              swizzle ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? 0 : -1;
}

template <plane_form FORM> static void launch_tiles(const struct gemm_args *g, const struct maps &m, cudaStream_t stream)
{
    allow_smem(wgmma_kernel<FORM>, smem_bytes(FORM));
    const dim3 grid((g->n_act + TILE - 1) / TILE, (g->n_out + TILE - 1) / TILE);
    launch(wgmma_kernel<FORM>, grid, THREADS, smem_bytes(FORM), stream, *g, m);
}

#endif
