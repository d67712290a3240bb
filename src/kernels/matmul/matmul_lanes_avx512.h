/* SPDX-License-Identifier: MIT
 * matmul_lanes_avx512.h - sixteen-lane vectors for the product bodies, with and without VNNI.
 *
 * Only for files that are compiled for AVX-512; DOT is one vpdpwssd where VNNI is there.
 */
#ifndef ISO_KERNELS_MATMUL_LANES_AVX512_H
#define ISO_KERNELS_MATMUL_LANES_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#define LANES 16

/* A micro-tile is 2 activation tiles x 6 weight rows, or 1 x 12: twelve accumulators hide the
 * latency of the dot product (4-5 cycles at two a cycle), and their twelve f32 chains stay in
 * registers too (12 + 12 + 2 activations + 1 weight pair of 32). */
#define MICRO_TILES 2
#define MICRO_ROWS_WIDE 6
#define MICRO_ROWS_ONE 12

typedef __m512i vint;
typedef __m512 vfloat;

/* clang-format off */
static inline vint vint_zero(void) { return _mm512_setzero_si512(); }
static inline vint vint_load(const void *p) { return _mm512_loadu_si512(p); }
static inline void vint_store(void *p, vint a) { _mm512_storeu_si512(p, a); }
static inline vint vint_set1(int32_t x) { return _mm512_set1_epi32(x); }
static inline vint vint_add(vint a, vint b) { return _mm512_add_epi32(a, b); }
static inline vint vint_mul(vint a, vint b) { return _mm512_mullo_epi32(a, b); }
static inline vint vint_high(vint a) { return _mm512_srli_epi32(a, 16); } /* of a positive pair */
static inline vfloat vint_to_float(vint a) { return _mm512_cvtepi32_ps(a); }
static inline vfloat vfloat_zero(void) { return _mm512_setzero_ps(); }
static inline vfloat vfloat_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void vfloat_store(float *p, vfloat a) { _mm512_storeu_ps(p, a); }
static inline vfloat vfloat_set1(float x) { return _mm512_set1_ps(x); }
static inline vfloat vfloat_add(vfloat a, vfloat b) { return _mm512_add_ps(a, b); }
static inline vfloat vfloat_mul(vfloat a, vfloat b) { return _mm512_mul_ps(a, b); }
static inline vfloat vfloat_fma(vfloat a, vfloat b, vfloat c) { return _mm512_fmadd_ps(a, b, c); }
/* clang-format on */

/* acc + a.even * b.even + a.odd * b.odd of i16 pairs; wraps. As assembly, because gcc 12 copies
 * each accumulator twice per step around the intrinsic (318 against 424 GFLOP/s, Q5_0, Zen 5). */
static inline vint vint_dot(vint acc, vint a, vint b)
{
#if defined(__AVX512VNNI__)
    __asm__("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
#else
    return _mm512_add_epi32(acc, _mm512_madd_epi16(a, b));
#endif
}

/* Stores lanes [0, n). */
static inline void vfloat_store_some(float *p, vfloat a, size_t n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a);
}

/* 16 x 16: lane j of v[i] becomes lane i of v[j]. */
static inline void vfloat_transpose(vfloat v[LANES])
{
    __m512 t[16];
    for (int i = 0; i < 16; i += 4) { /* 4 x 4 inside 128-bit lanes */
        const __m512 a = _mm512_unpacklo_ps(v[i], v[i + 1]);
        const __m512 b = _mm512_unpackhi_ps(v[i], v[i + 1]);
        const __m512 c = _mm512_unpacklo_ps(v[i + 2], v[i + 3]);
        const __m512 d = _mm512_unpackhi_ps(v[i + 2], v[i + 3]);
        t[i] = _mm512_shuffle_ps(a, c, 0x44);
        t[i + 1] = _mm512_shuffle_ps(a, c, 0xee);
        t[i + 2] = _mm512_shuffle_ps(b, d, 0x44);
        t[i + 3] = _mm512_shuffle_ps(b, d, 0xee);
    }
    for (int i = 0; i < 4; i++) { /* the 4 x 4 of 128-bit lanes */
        const __m512 a = _mm512_shuffle_f32x4(t[i], t[i + 4], 0x88);
        const __m512 b = _mm512_shuffle_f32x4(t[i], t[i + 4], 0xdd);
        const __m512 c = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0x88);
        const __m512 d = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0xdd);
        v[i] = _mm512_shuffle_f32x4(a, c, 0x88);
        v[i + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
        v[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
        v[i + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
}

/* Lane i of the result is the sum of the lanes of v[i]. */
static inline vint vint_sum_each(const vint v[LANES])
{
    __m512i t[4];
    for (int i = 0; i < 4; i++) {
        const __m512i *s = v + 4 * i;
        const __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(s[0], s[1]),
                                           _mm512_unpackhi_epi32(s[0], s[1]));
        const __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(s[2], s[3]),
                                           _mm512_unpackhi_epi32(s[2], s[3]));
        t[i] = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    }
    const __m512i a = _mm512_add_epi32(_mm512_shuffle_i32x4(t[0], t[1], 0x88),
                                       _mm512_shuffle_i32x4(t[0], t[1], 0xdd));
    const __m512i b = _mm512_add_epi32(_mm512_shuffle_i32x4(t[2], t[3], 0x88),
                                       _mm512_shuffle_i32x4(t[2], t[3], 0xdd));
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}

#endif
