/* SPDX-License-Identifier: MIT
 * vec_avx512.h - vector forms of primitives of exact-1 for AVX-512: 16 lanes, the same operations.
 *
 * Only for files that are compiled for AVX-512.
 * Source: the specification of exact-1, sections 2 and 8.
 */
#ifndef ISO_KERNELS_SHARED_VEC_AVX512_H
#define ISO_KERNELS_SHARED_VEC_AVX512_H

/* Empty elsewhere, so that every header compiles alone on every machine. */
#if defined(__AVX512F__)

#include <immintrin.h>

#include "arith/page.h"

/* Lane i takes v[i] + p[i], or p[i] - v[i] where mask has its bit: p holds each lane's partner. */
static inline __m512 vec_add_sub(__m512 v, __m512 p, __mmask16 mask)
{
    return _mm512_mask_sub_ps(_mm512_add_ps(v, p), mask, p, v);
}

/* Strides 1, 2, 4 and 8: inside one vector. */
static inline __m512 vec_butterfly_16(__m512 v)
{
    v = vec_add_sub(v, _mm512_permute_ps(v, 0xb1), 0xaaaa);
    v = vec_add_sub(v, _mm512_permute_ps(v, 0x4e), 0xcccc);
    v = vec_add_sub(v, _mm512_shuffle_f32x4(v, v, 0xb1), 0xf0f0);
    return vec_add_sub(v, _mm512_shuffle_f32x4(v, v, 0x4e), 0xff00);
}

/* Block of 8: strides 1, 2 and 4. */
static inline __m256 vec_butterfly_8(__m256 v)
{
    __m256 p = _mm256_permute_ps(v, 0xb1);
    v = _mm256_mask_sub_ps(_mm256_add_ps(v, p), 0xaa, p, v);
    p = _mm256_permute_ps(v, 0x4e);
    v = _mm256_mask_sub_ps(_mm256_add_ps(v, p), 0xcc, p, v);
    p = _mm256_permute2f128_ps(v, v, 0x01);
    return _mm256_mask_sub_ps(_mm256_add_ps(v, p), 0xf0, p, v);
}

/* One block of 16 * n values, n a power of two, held in registers. */
static inline __attribute__((always_inline)) void vec_butterfly_block(float *x, uint32_t n)
{
    __m512 v[16];
#pragma GCC unroll 16
    for (uint32_t i = 0; i < n; i++) v[i] = vec_butterfly_16(_mm512_loadu_ps(x + 16 * i));
#pragma GCC unroll 4
    for (uint32_t stride = 1; stride < n; stride *= 2) {
#pragma GCC unroll 16
        for (uint32_t i = 0; i < n; i++) {
            if (i & stride) continue;
            const __m512 u = v[i];
            v[i] = _mm512_add_ps(u, v[i + stride]);
            v[i + stride] = _mm512_sub_ps(u, v[i + stride]);
        }
    }
#pragma GCC unroll 16
    for (uint32_t i = 0; i < n; i++) _mm512_storeu_ps(x + 16 * i, v[i]);
}

/* Walsh-Hadamard butterfly of x [d] in place, d a multiple of 8 up to ISO_HEAD_MAX, in blocks of
 * the largest power of two dividing d. */
static inline void vec_butterfly(float *x, uint32_t d)
{
    const uint32_t block = iso_butterfly_block(d);
    for (float *at = x; at < x + d; at += block) {
        switch (block) {
        case 8:
            _mm256_storeu_ps(at, vec_butterfly_8(_mm256_loadu_ps(at)));
            break;
        case 16:
            vec_butterfly_block(at, 1);
            break;
        case 32:
            vec_butterfly_block(at, 2);
            break;
        case 64:
            vec_butterfly_block(at, 4);
            break;
        case 128:
            vec_butterfly_block(at, 8);
            break;
        default:
            vec_butterfly_block(at, 16);
            break;
        }
    }
}

#endif

#endif
