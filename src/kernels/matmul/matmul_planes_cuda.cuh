/* SPDX-License-Identifier: MIT
 * matmul_planes_cuda.cuh - weights unpacked to byte planes for tensor cores: layout and forms.
 *
 * A slice of weight rows (a multiple of 128) becomes, in scratch memory,
 *   planes  s8 [n_planes][n_rows][stride]   stride: columns rounded up to 256
 *   side    [n_super][n_rows / 128][side bytes], what the f32 chain needs:
 *     SUPER      d f32 [128]                                     512 bytes
 *     SUPER_MIN  d f32 [128], -dmin f32 [128], min - 32 as f16 [128][8]  3,072
 *     BLOCK      d f32 [8][128]                                  4,096
 *     BLOCK_MIN  d f32 [8][128], m f32 [8][128]                  8,192
 *     FLOAT      d f32 [8][128]                                  4,096
 * SUPER: w = code * sub-scale = 64*hi + lo, and mid = hi + lo (Karatsuba). BLOCK: one plane of codes.
 * HALF_BLOCK, HALF_BLOCK_MIN: one plane f16 [n_rows][stride] of codes, which f16 holds exactly; sides as
 * without HALF, each 128 floats in the order of half_place().
 * FLOAT: code = 256*hi + lo, lo unsigned. NVFP4 becomes SUPER with w relative to the block's smallest
 * scale exponent; rows where that does not fit 13 bits are flagged and computed again.
 */
#ifndef ISO_KERNELS_MATMUL_PLANES_CUDA_CUH
#define ISO_KERNELS_MATMUL_PLANES_CUDA_CUH

#include "kernels/matmul/matmul_cuda.h"
#include "kernels/shared/cuda_cells.cuh"

#define SIDE_ROWS 128

enum plane_form { SUPER, SUPER_MIN, BLOCK, BLOCK_MIN, FLOAT, HALF_BLOCK, HALF_BLOCK_MIN };

static inline __host__ __device__ constexpr plane_form form_of(int type)
{
    return type == ISO_TYPE_Q4_K || type == ISO_TYPE_Q5_K   ? SUPER_MIN
           : type == ISO_TYPE_Q6_K || type == ISO_TYPE_NVFP4 ? SUPER
           : type == ISO_TYPE_Q4_1 || type == ISO_TYPE_Q5_1  ? BLOCK_MIN
           : type == ISO_TYPE_F32 || type == ISO_TYPE_F16 || type == ISO_TYPE_BF16 ? FLOAT
                                                                                   : BLOCK;
}

/* The form with one plane of f16 where the type has one, else form itself. */
static inline __host__ __device__ constexpr plane_form half_form(plane_form form)
{
    return form == BLOCK ? HALF_BLOCK : form == BLOCK_MIN ? HALF_BLOCK_MIN : form;
}

static inline __host__ __device__ constexpr bool is_half(plane_form form)
{
    return form == HALF_BLOCK || form == HALF_BLOCK_MIN;
}

static inline __host__ __device__ constexpr uint32_t side_bytes(plane_form form)
{
    return form == SUPER                                 ? 512
           : form == SUPER_MIN                           ? 3072
           : form == BLOCK_MIN || form == HALF_BLOCK_MIN ? 8192
                                                         : 4096;
}

static inline __host__ __device__ constexpr uint32_t plane_count(plane_form form)
{
    return form == SUPER || form == SUPER_MIN ? 3 : form == FLOAT ? 2 : 1;
}

/* Where the side of a HALF form has row r of its 128: a thread of wgmma needs rows 8n + 2t and 8n + 2t + 1, so
 * that those of two n are side by side. */
static inline __host__ __device__ constexpr uint32_t half_place(uint32_t r)
{
    return r / 16 * 16 + r % 8 / 2 * 4 + r / 8 % 2 * 2 + r % 2;
}

/* Bytes that one weight takes in all planes. */
static inline __host__ __device__ constexpr uint32_t plane_bytes(plane_form form)
{
    return is_half(form) ? 2 : plane_count(form);
}

/* An unpacked slice. */
struct weight_planes {
    int8_t *plane[3]; /* SUPER: hi, lo, mid; FLOAT: hi, lo; HALF: f16 */
    uint8_t *side;
    uint32_t *flags;  /* NVFP4: [n_rows], nonzero: computed again */
    uint32_t n_rows, stride, n_super;
    plane_form form;
};

/* The product of a slice: columns [0, n_cols) of it go to y[t * y_stride + column]. */
struct gemm_args {
    struct iso_cuda_codes a;
    struct weight_planes w;
    const float *bias; /* of the slice's first column, or NULL */
    float *y;
    uint32_t n_act, n_out, y_stride;
    float scale;
    uint32_t has_scale;
};

/* Both take a whole slice; asynchronous. The second one needs sm_90a and returns -1 when the driver
 * refuses a tensor map. */
void iso_cuda_gemm_mma(const struct gemm_args *g, cudaStream_t stream);
int iso_cuda_gemm_wgmma(const struct gemm_args *g, cudaStream_t stream);
/* The same for the HALF forms. */
int iso_cuda_gemm_wgmma_f16(const struct gemm_args *g, cudaStream_t stream);

/* Two f16 in a word. 1024 + b of each is F16X2_1024 | b, for b below 1024; differences of such are exact. */
#define F16X2_1024 0x64006400u
#define F16X2_1056 0x64206420u
static __device__ __forceinline__ uint32_t sub_f16x2(uint32_t a, uint32_t b)
{
    uint32_t r;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

/* y * scale + bias as section 5 ends. */
static __device__ __forceinline__ float finish_output(const struct gemm_args &g, uint32_t column, float y)
{
    if (g.has_scale) y = y * g.scale;
    if (g.bias) y = y + g.bias[column];
    return y;
}

#endif
