/* SPDX-License-Identifier: MIT
 * matmul_bytes_x86.h - sixteen byte codes at a time, for unpacking weights on x86.
 *
 * Only for files that are compiled for AVX2 or more: 128-bit bytes widen to 256-bit i16.
 */
#ifndef ISO_KERNELS_MATMUL_BYTES_X86_H
#define ISO_KERNELS_MATMUL_BYTES_X86_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef __m128i bytes;

static inline bytes bytes_load(const void *p) { return _mm_loadu_si128(p); }
static inline bytes bytes_set1(int x) { return _mm_set1_epi8((char)x); }
static inline bytes bytes_and(bytes a, bytes b) { return _mm_and_si128(a, b); }
static inline bytes bytes_or(bytes a, bytes b) { return _mm_or_si128(a, b); }
static inline bytes bytes_sub(bytes a, bytes b) { return _mm_sub_epi8(a, b); }
static inline bytes bytes_low(bytes a) { return _mm_and_si128(a, _mm_set1_epi8(15)); }
static inline bytes bytes_high(bytes a) { return bytes_low(_mm_srli_epi16(a, 4)); }

/* Bits [from, from + n) of each byte moved to bit `to`. */
static inline bytes bytes_field(bytes a, int from, int n, int to)
{
    const bytes moved = to >= from ? _mm_slli_epi16(a, to - from) : _mm_srli_epi16(a, from - to);
    return _mm_and_si128(moved, _mm_set1_epi8((char)(((1 << n) - 1) << to)));
}

/* Byte i is table[index i], indices below 16. */
static inline bytes bytes_lookup(const int8_t table[16], bytes index)
{
    return _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)table), index);
}

/* Byte i is 16 where bit i of the sixteen bits at p is set. */
static inline bytes bytes_bit4(const uint8_t *p)
{
    int16_t bits;
    memcpy(&bits, p, sizeof(bits));
    const __m128i spread = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m128i select = _mm_set1_epi64x((int64_t)0x8040201008040201u);
    const __m128i v = _mm_and_si128(_mm_shuffle_epi8(_mm_set1_epi16(bits), spread), select);
    return _mm_and_si128(_mm_cmpeq_epi8(v, select), _mm_set1_epi8(16));
}

/* Eight bytes at p as sixteen nibbles, the low ones first. */
static inline bytes bytes_nibbles8(const uint8_t *p)
{
    const __m128i q = _mm_loadl_epi64((const __m128i *)p);
    return bytes_low(_mm_unpacklo_epi64(q, _mm_srli_epi16(q, 4)));
}

/* Sixteen signed codes as i16. */
static inline void bytes_store(int16_t *w, bytes a)
{
    _mm256_storeu_si256((__m256i *)w, _mm256_cvtepi8_epi16(a));
}

/* Sixteen signed codes times s, the low 16 bits. */
static inline void bytes_store_times(int16_t *w, bytes a, int16_t s)
{
    const __m256i v = _mm256_mullo_epi16(_mm256_cvtepi8_epi16(a), _mm256_set1_epi16(s));
    _mm256_storeu_si256((__m256i *)w, v);
}

static inline float float_of_f16(uint16_t h) { return _cvtsh_ss(h); }

/* 256 halves as f32, exactly; stores are as wide as the loads that follow, so that they forward. */
static inline void floats_of_f16(float v[256], const uint16_t h[256])
{
#if defined(__AVX512F__)
    for (int i = 0; i < 256; i += 16) {
        const __m256i x = _mm256_loadu_si256((const __m256i *)(h + i));
        _mm512_storeu_ps(v + i, _mm512_cvtph_ps(x));
    }
#else
    for (int i = 0; i < 256; i += 8) {
        const __m128i x = _mm_loadu_si128((const __m128i *)(h + i));
        _mm256_storeu_ps(v + i, _mm256_cvtph_ps(x));
    }
#endif
}

static inline void floats_of_bf16(float v[256], const uint16_t h[256])
{
#if defined(__AVX512F__)
    for (int i = 0; i < 256; i += 16) {
        const __m256i x = _mm256_loadu_si256((const __m256i *)(h + i));
        _mm512_storeu_si512(v + i, _mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
    }
#else
    for (int i = 0; i < 256; i += 8) {
        const __m128i x = _mm_loadu_si128((const __m128i *)(h + i));
        const __m256i y = _mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16);
        _mm256_storeu_si256((__m256i *)(v + i), y);
    }
#endif
}

#endif
