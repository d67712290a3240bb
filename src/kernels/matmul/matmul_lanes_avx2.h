/* SPDX-License-Identifier: MIT
 * matmul_lanes_avx2.h - eight-lane vectors for the product bodies.
 *
 * Only for files that are compiled for AVX2 and FMA.
 */
#ifndef ISO_KERNELS_MATMUL_LANES_AVX2_H
#define ISO_KERNELS_MATMUL_LANES_AVX2_H

#include <immintrin.h>
#include <stdint.h>

#define LANES 8

/* A micro-tile is one activation tile (two vectors) x 4 weight rows: eight accumulators, two
 * activations, a weight pair and a product of sixteen registers. */
#define MICRO_TILES 1
#define MICRO_ROWS_ONE 4

typedef __m256i vint;
typedef __m256 vfloat;

/* clang-format off */
static inline vint vint_zero(void) { return _mm256_setzero_si256(); }
static inline vint vint_load(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
static inline void vint_store(void *p, vint a) { _mm256_storeu_si256((__m256i *)p, a); }
static inline vint vint_set1(int32_t x) { return _mm256_set1_epi32(x); }
static inline vint vint_add(vint a, vint b) { return _mm256_add_epi32(a, b); }
static inline vint vint_mul(vint a, vint b) { return _mm256_mullo_epi32(a, b); }
static inline vint vint_high(vint a) { return _mm256_srli_epi32(a, 16); } /* of a positive pair */
static inline vfloat vint_to_float(vint a) { return _mm256_cvtepi32_ps(a); }
static inline vfloat vfloat_zero(void) { return _mm256_setzero_ps(); }
static inline vfloat vfloat_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void vfloat_store(float *p, vfloat a) { _mm256_storeu_ps(p, a); }
static inline vfloat vfloat_set1(float x) { return _mm256_set1_ps(x); }
static inline vfloat vfloat_add(vfloat a, vfloat b) { return _mm256_add_ps(a, b); }
static inline vfloat vfloat_mul(vfloat a, vfloat b) { return _mm256_mul_ps(a, b); }
static inline vfloat vfloat_fma(vfloat a, vfloat b, vfloat c) { return _mm256_fmadd_ps(a, b, c); }
/* clang-format on */

/* acc + a.even * b.even + a.odd * b.odd of i16 pairs; wraps. */
static inline vint vint_dot(vint acc, vint a, vint b)
{
    return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
}

/* Stores lanes [0, n). */
static inline void vfloat_store_some(float *p, vfloat a, size_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    _mm256_maskstore_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)n), lane), a);
}

/* 8 x 8: lane j of v[i] becomes lane i of v[j]. */
static inline void vfloat_transpose(vfloat v[LANES])
{
    __m256 t[8];
    for (int i = 0; i < 8; i += 4) { /* 4 x 4 inside 128-bit lanes */
        const __m256 a = _mm256_unpacklo_ps(v[i], v[i + 1]);
        const __m256 b = _mm256_unpackhi_ps(v[i], v[i + 1]);
        const __m256 c = _mm256_unpacklo_ps(v[i + 2], v[i + 3]);
        const __m256 d = _mm256_unpackhi_ps(v[i + 2], v[i + 3]);
        t[i] = _mm256_shuffle_ps(a, c, 0x44);
        t[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
        t[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
        t[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
    }
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x20);
        v[i + 4] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x31);
    }
}

/* Lane i of the result is the sum of the lanes of v[i]. */
static inline vint vint_sum_each(const vint v[LANES])
{
    const __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]),
                                        _mm256_hadd_epi32(v[2], v[3]));
    const __m256i b = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]),
                                        _mm256_hadd_epi32(v[6], v[7]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20),
                            _mm256_permute2x128_si256(a, b, 0x31));
}

#endif
