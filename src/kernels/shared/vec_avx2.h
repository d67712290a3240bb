/* SPDX-License-Identifier: MIT
 * vec_avx2.h - vector forms of primitives of exact-1 for AVX2: 8 lanes, the same operations.
 *
 * Only for files that are compiled for AVX2.
 * Source: the specification of exact-1, sections 2 and 8.
 */
#ifndef ISO_KERNELS_SHARED_VEC_AVX2_H
#define ISO_KERNELS_SHARED_VEC_AVX2_H

/* Empty elsewhere, so that every header compiles alone on every machine. */
#if defined(__AVX2__)

#include <immintrin.h>

#include "arith/page.h"

/* Strides 1, 2 and 4, inside one vector: lane i takes v[i] + p[i] or, in the upper half of its
 * pair, p[i] - v[i], where p holds each lane's partner. */
static inline __m256 vec_butterfly_8(__m256 v)
{
    __m256 p = _mm256_permute_ps(v, 0xb1);
    v = _mm256_blend_ps(_mm256_add_ps(v, p), _mm256_sub_ps(p, v), 0xaa);
    p = _mm256_permute_ps(v, 0x4e);
    v = _mm256_blend_ps(_mm256_add_ps(v, p), _mm256_sub_ps(p, v), 0xcc);
    p = _mm256_permute2f128_ps(v, v, 0x01);
    return _mm256_blend_ps(_mm256_add_ps(v, p), _mm256_sub_ps(p, v), 0xf0);
}

/* Strides stride and 2*stride of block values at x in one pass. */
static inline void vec_butterfly_two(float *x, uint32_t block, uint32_t stride)
{
    for (uint32_t base = 0; base < block; base += 4 * stride) {
        for (uint32_t i = base; i < base + stride; i += 8) {
            const __m256 a = _mm256_loadu_ps(x + i);
            const __m256 b = _mm256_loadu_ps(x + i + stride);
            const __m256 c = _mm256_loadu_ps(x + i + 2 * stride);
            const __m256 e = _mm256_loadu_ps(x + i + 3 * stride);
            const __m256 ab = _mm256_add_ps(a, b);
            const __m256 ba = _mm256_sub_ps(a, b);
            const __m256 ce = _mm256_add_ps(c, e);
            const __m256 ec = _mm256_sub_ps(c, e);
            _mm256_storeu_ps(x + i, _mm256_add_ps(ab, ce));
            _mm256_storeu_ps(x + i + stride, _mm256_add_ps(ba, ec));
            _mm256_storeu_ps(x + i + 2 * stride, _mm256_sub_ps(ab, ce));
            _mm256_storeu_ps(x + i + 3 * stride, _mm256_sub_ps(ba, ec));
        }
    }
}

/* The last stride of block values at x. */
static inline void vec_butterfly_one(float *x, uint32_t stride)
{
    for (uint32_t i = 0; i < stride; i += 8) {
        const __m256 a = _mm256_loadu_ps(x + i);
        const __m256 b = _mm256_loadu_ps(x + i + stride);
        _mm256_storeu_ps(x + i, _mm256_add_ps(a, b));
        _mm256_storeu_ps(x + i + stride, _mm256_sub_ps(a, b));
    }
}

/* Walsh-Hadamard butterfly of x [d] in place, d a multiple of 8 up to ISO_HEAD_MAX, in blocks of
 * the largest power of two dividing d. */
static inline void vec_butterfly(float *x, uint32_t d)
{
    const uint32_t block = iso_butterfly_block(d);
    for (uint32_t i = 0; i < d; i += 8) {
        _mm256_storeu_ps(x + i, vec_butterfly_8(_mm256_loadu_ps(x + i)));
    }
    for (float *at = x; at < x + d; at += block) {
        uint32_t stride = 8;
        for (; 2 * stride < block; stride *= 4) vec_butterfly_two(at, block, stride);
        if (stride < block) vec_butterfly_one(at, stride);
    }
}

#endif

#endif
