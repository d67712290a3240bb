/* SPDX-License-Identifier: MIT
 * matmul_product_cuda.cuh - one lane's 256 columns against activation codes: p of section 5.
 */
#ifndef ISO_KERNELS_MATMUL_PRODUCT_CUDA_CUH
#define ISO_KERNELS_MATMUL_PRODUCT_CUDA_CUH

#include "kernels/shared/cuda_cells.cuh"
#include "kernels/shared/cuda_prim.cuh"

/* Activations of a superblock's columns, 16-byte aligned. */
struct acts {
    const int8_t *hi, *lo; /* row t at t * stride */
    const int32_t *sum;    /* row t at t * stride / 32 */
    uint32_t stride;
};

static __device__ __forceinline__ int dot4(uint32_t w, uint32_t a, int c)
{
    return __dp4a((int)w, (int)a, c);
}

/* sum of w * code over 16 columns. */
static __device__ __forceinline__ int32_t dot16(const uint32_t *w, const int8_t *hi, const int8_t *lo)
{
    const uint4 h = *(const uint4 *)hi, l = *(const uint4 *)lo;
    int i = dot4(w[0], h.x, 0), k = dot4(w[0], l.x, 0);
    i = dot4(w[1], h.y, i), k = dot4(w[1], l.y, k);
    i = dot4(w[2], h.z, i), k = dot4(w[2], l.z, k);
    i = dot4(w[3], h.w, i), k = dot4(w[3], l.w, k);
    return i * 64 + k;
}

static __device__ __forceinline__ int32_t dot32(const uint32_t *w, const int8_t *hi, const int8_t *lo)
{
    return dot16(w, hi, lo) + dot16(w + 4, hi + 16, lo + 16);
}

/* p [NACT] of section 5 for one cell; a points at the superblock's columns. */
template <int T, int NACT>
static __device__ __forceinline__ void block_types(float *p, const cell<T> &c, const struct acts &a)
{
#pragma unroll
    for (int t = 0; t < NACT; t++) p[t] = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        uint32_t w[8];
        c.words(w, j);
        const float d = c.d(j), m = c.m(j);
#pragma unroll
        for (int t = 0; t < NACT; t++) {
            const uint32_t at = t * a.stride + 32 * j;
            int32_t i = dot32(w, a.hi + at, a.lo + at);
            if (cell<T>::OFFSET) i -= cell<T>::OFFSET * a.sum[at / 32];
            p[t] = fmaf(d, (float)i, p[t]);
            if (cell<T>::MIN) p[t] = fmaf(m, (float)a.sum[at / 32], p[t]);
        }
    }
}

template <int T, int NACT>
static __device__ __forceinline__ void k_types(float *p, const cell<T> &c, const struct acts &a)
{
    int32_t s[NACT], mins[NACT];
#pragma unroll
    for (int t = 0; t < NACT; t++) s[t] = mins[t] = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        uint32_t w[8];
        c.words(w, j);
        const int32_t sc = c.scale(j), mi = c.min(j);
#pragma unroll
        for (int t = 0; t < NACT; t++) {
            const uint32_t at = t * a.stride + 32 * j;
            s[t] += sc * dot32(w, a.hi + at, a.lo + at);
            mins[t] += mi * a.sum[at / 32];
        }
    }
#pragma unroll
    for (int t = 0; t < NACT; t++) p[t] = fmaf(-c.dmin(), (float)mins[t], c.d() * (float)s[t]);
}

template <int NACT>
static __device__ __forceinline__ void q6k(float *p, const cell<ISO_TYPE_Q6_K> &c, const struct acts &a)
{
    int32_t s[NACT];
#pragma unroll
    for (int t = 0; t < NACT; t++) s[t] = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        uint32_t w[8];
        c.words(w, j);
#pragma unroll
        for (int t = 0; t < NACT; t++) {
            const uint32_t at = t * a.stride + 32 * j;
            /* words are four times the codes */
            s[t] += c.scale(2 * j) * (dot16(w, a.hi + at, a.lo + at) >> 2);
            s[t] += c.scale(2 * j + 1) * (dot16(w + 4, a.hi + at + 16, a.lo + at + 16) >> 2);
        }
    }
#pragma unroll
    for (int t = 0; t < NACT; t++) p[t] = c.d() * (float)s[t];
}

template <int NACT>
static __device__ __forceinline__ void nvfp4(float *p, const cell<ISO_TYPE_NVFP4> &c, const struct acts &a)
{
    int64_t s[NACT];
#pragma unroll
    for (int t = 0; t < NACT; t++) s[t] = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        uint32_t w[8];
        c.words(w, j);
#pragma unroll
        for (int t = 0; t < NACT; t++) {
            const uint32_t at = t * a.stride + 32 * j;
            s[t] += (int64_t)c.units(2 * j) * dot16(w, a.hi + at, a.lo + at);
            s[t] += (int64_t)c.units(2 * j + 1) * dot16(w + 4, a.hi + at + 16, a.lo + at + 16);
        }
    }
#pragma unroll
    for (int t = 0; t < NACT; t++) {
        const float high = (float)(int32_t)(s[t] >> 24), low = (float)(int32_t)(s[t] & 0xffffff);
        p[t] = fmaf(high, 0x1p24f, low) * 0x1p-10f;
    }
}

/* Two codes of 16 bits against two bytes of each plane. */
template <int T, int NACT>
static __device__ __forceinline__ void float_types(float *p, const cell<T> &c, const struct acts &a)
{
#pragma unroll
    for (int t = 0; t < NACT; t++) p[t] = 0.0f;
#pragma unroll 1
    for (int j = 0; j < 8; j++) {
        int32_t code[32];
        const float d = c.codes(code, j);
#pragma unroll
        for (int t = 0; t < NACT; t++) {
            const uint32_t at = t * a.stride + 32 * j;
            int i = 0, k = 0;
#pragma unroll
            for (int v = 0; v < 8; v++) {
                const int h = *(const int *)(a.hi + at + 4 * v), l = *(const int *)(a.lo + at + 4 * v);
                const int c01 = (int)__byte_perm((uint32_t)code[4 * v], (uint32_t)code[4 * v + 1], 0x5410);
                const int c23 = (int)__byte_perm((uint32_t)code[4 * v + 2], (uint32_t)code[4 * v + 3], 0x5410);
                i = __dp2a_lo(c01, h, i), i = __dp2a_hi(c23, h, i);
                k = __dp2a_lo(c01, l, k), k = __dp2a_hi(c23, l, k);
            }
            p[t] = fmaf(d, (float)(i * 64 + k), p[t]);
        }
    }
}

template <int T, int NACT>
static __device__ __forceinline__ void cell_product(float *p, const cell<T> &c, const struct acts &a)
{
    if constexpr (T == ISO_TYPE_Q4_K || T == ISO_TYPE_Q5_K) k_types<T, NACT>(p, c, a);
    else if constexpr (T == ISO_TYPE_Q6_K) q6k<NACT>(p, c, a);
    else if constexpr (T == ISO_TYPE_NVFP4) nvfp4<NACT>(p, c, a);
    else if constexpr (T == ISO_TYPE_F32 || T == ISO_TYPE_F16 || T == ISO_TYPE_BF16)
        float_types<T, NACT>(p, c, a);
    else block_types<T, NACT>(p, c, a);
}

#endif
