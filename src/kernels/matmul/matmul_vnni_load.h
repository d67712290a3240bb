/* SPDX-License-Identifier: MIT
 * matmul_vnni_load.h - sixteen weight rows from file layout to byte codes with lanes = rows.
 *
 * A dword lane holds four neighbouring codes of one row as unsigned bytes (plus code_offset()),
 * which is what vpdpbusd multiplies. Rows are row_bytes apart; 16-byte chunks are loaded whole from
 * inside the block and turned by a 4 x 4 transposition. Nothing outside the block is read.
 */
#ifndef ISO_KERNELS_MATMUL_VNNI_LOAD_H
#define ISO_KERNELS_MATMUL_VNNI_LOAD_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "format/types.h"
#include "kernels/matmul/matmul_layout.h"
#include "kernels/shared/weight_tables.h"

#define LOAD_INLINE static inline __attribute__((always_inline))

/* What is added to a code to make it an unsigned byte. */
LOAD_INLINE int32_t code_offset(enum iso_type type)
{
    switch (type) {
    case ISO_TYPE_Q4_0: return 8;
    case ISO_TYPE_Q5_0: return 16;
    case ISO_TYPE_Q6_K: return 32;
    case ISO_TYPE_Q8_0:
    case ISO_TYPE_IQ4_NL: return 128;
    case ISO_TYPE_MXFP4:
    case ISO_TYPE_NVFP4: return 12;
    default: return 0;
    }
}

/* 64 bytes: lane group L of 16 bytes from p + L * 4 * stride. */
LOAD_INLINE __m512i load_quarter(const uint8_t *p, size_t stride)
{
    const __m256i a = _mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)p)),
        _mm_loadu_si128((const __m128i *)(p + 4 * stride)), 1);
    const __m256i b = _mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(p + 8 * stride))),
        _mm_loadu_si128((const __m128i *)(p + 12 * stride)), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

/* Sixteen bytes of each of sixteen rows: out[i] has dword i of row r in lane r. */
LOAD_INLINE void load_chunk(__m512i out[4], const uint8_t *p, size_t stride)
{
    const __m512i a = load_quarter(p, stride), b = load_quarter(p + stride, stride);
    const __m512i c = load_quarter(p + 2 * stride, stride);
    const __m512i d = load_quarter(p + 3 * stride, stride);
    const __m512i ab0 = _mm512_unpacklo_epi32(a, b), ab1 = _mm512_unpackhi_epi32(a, b);
    const __m512i cd0 = _mm512_unpacklo_epi32(c, d), cd1 = _mm512_unpackhi_epi32(c, d);
    out[0] = _mm512_unpacklo_epi64(ab0, cd0);
    out[1] = _mm512_unpackhi_epi64(ab0, cd0);
    out[2] = _mm512_unpacklo_epi64(ab1, cd1);
    out[3] = _mm512_unpackhi_epi64(ab1, cd1);
}

/* Four bytes of each of sixteen rows: masked broadcasts, because a gather is slower on Zen. */
LOAD_INLINE __m512i load_dwords(const uint8_t *p, size_t stride)
{
    __m512i a = _mm512_setzero_si512(), b = a;
    UNROLL
    for (int i = 0; i < 8; i++) {
        a = _mm512_mask_broadcastd_epi32(a, (__mmask16)(1 << i),
                                         _mm_loadu_si32(p + (size_t)i * stride));
        b = _mm512_mask_broadcastd_epi32(b, (__mmask16)(256 << i),
                                         _mm_loadu_si32(p + (size_t)(8 + i) * stride));
    }
    return _mm512_or_si512(a, b);
}

/* f32 of the f16 in the low (high) half of each lane. */
LOAD_INLINE __m512 half_low(__m512i v)
{
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v));
}

LOAD_INLINE __m512 half_high(__m512i v)
{
    return half_low(_mm512_srli_epi32(v, 16));
}

LOAD_INLINE __m512i nibble_low(__m512i v)
{
    return _mm512_and_si512(v, _mm512_set1_epi8(15));
}

LOAD_INLINE __m512i nibble_high(__m512i v)
{
    return nibble_low(_mm512_srli_epi16(v, 4));
}

/* Codes of indices, as unsigned bytes. */
LOAD_INLINE __m512i lookup(const int8_t table[16], int32_t offset, __m512i index)
{
    const __m128i t = _mm_add_epi8(_mm_loadu_si128((const __m128i *)table),
                                   _mm_set1_epi8((char)offset));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(t), index);
}

/* w[k] | 16 where bit 4k + i of high (lane = row) is set, byte i. */
LOAD_INLINE void add_fifth_bit(__m512i w[8], __m512i high)
{
    UNROLL
    for (int k = 0; k < 8; k++) {
        const __m512i spread = _mm512_set1_epi32(0x04040404 * (k / 2) / 4);
        const __m512i at = _mm512_add_epi8(spread, _mm512_broadcast_i32x4(_mm_setr_epi8(
                               0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12)));
        const __m512i select = _mm512_set1_epi32(k % 2 ? (int32_t)0x80402010u : 0x08040201);
        const __mmask64 set = _mm512_test_epi8_mask(_mm512_shuffle_epi8(high, at), select);
        w[k] = _mm512_mask_add_epi8(w[k], set, w[k], _mm512_set1_epi8(16));
    }
}

/* A block of 32 nibbles: low halves are codes 0-15. */
LOAD_INLINE void load_nibbles(__m512i w[8], const uint8_t *qs, size_t stride)
{
    __m512i q[4];
    load_chunk(q, qs, stride);
    UNROLL
    for (int i = 0; i < 4; i++) {
        w[i] = nibble_low(q[i]);
        w[4 + i] = nibble_high(q[i]);
    }
}

/* Codes of a block of 32 of a Block type: w[k] has codes 4k..4k+3. b: the first row's block. */
LOAD_INLINE void load_codes(__m512i w[8], enum iso_type type, const uint8_t *b, size_t stride)
{
    switch (type) {
    case ISO_TYPE_Q4_0: load_nibbles(w, b + 2, stride); break;
    case ISO_TYPE_Q4_1: load_nibbles(w, b + 4, stride); break;
    case ISO_TYPE_Q5_0:
        load_nibbles(w, b + 6, stride);
        add_fifth_bit(w, load_dwords(b + 2, stride));
        break;
    case ISO_TYPE_Q5_1:
        load_nibbles(w, b + 8, stride);
        add_fifth_bit(w, load_dwords(b + 4, stride));
        break;
    case ISO_TYPE_Q8_0:
        load_chunk(w, b + 2, stride);
        load_chunk(w + 4, b + 18, stride);
        UNROLL
        for (int k = 0; k < 8; k++) w[k] = _mm512_xor_si512(w[k], _mm512_set1_epi8(-128));
        break;
    case ISO_TYPE_IQ4_NL:
        load_nibbles(w, b + 2, stride);
        UNROLL
        for (int k = 0; k < 8; k++) w[k] = lookup(iso_iq4nl_code, 128, w[k]);
        break;
    default: /* MXFP4 */
        load_nibbles(w, b + 1, stride);
        UNROLL
        for (int k = 0; k < 8; k++) w[k] = lookup(iso_e2m1_code, 12, w[k]);
        break;
    }
}

/* d and m of a block of a Block type, lanes = rows. */
LOAD_INLINE void load_scales(__m512 *d, __m512 *m, enum iso_type type, const uint8_t *b,
                             size_t stride)
{
    const __m512i v = load_dwords(b, stride);
    if (type == ISO_TYPE_MXFP4) { /* 2^(e - 128), 0 below 64 */
        const __m512i e = _mm512_and_si512(v, _mm512_set1_epi32(255));
        const __mmask16 ok = _mm512_cmpge_epi32_mask(e, _mm512_set1_epi32(64));
        *d = _mm512_castsi512_ps(
            _mm512_maskz_slli_epi32(ok, _mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23));
        return;
    }
    *d = half_low(v);
    if (type == ISO_TYPE_Q4_1 || type == ISO_TYPE_Q5_1) *m = half_high(v);
}

/* The eight 6-bit scales and mins of Q4_K and Q5_K: byte j of sc[0] is scale j, of sc[1] 4 + j. */
LOAD_INLINE void load_six(__m512i sc[2], __m512i mi[2], const __m512i s[3])
{
    const __m512i six = _mm512_set1_epi8(63);
    const __m512i top = _mm512_set1_epi8(0x30);
    sc[0] = _mm512_and_si512(s[0], six);
    mi[0] = _mm512_and_si512(s[1], six);
    sc[1] = _mm512_or_si512(nibble_low(s[2]),
                            _mm512_and_si512(_mm512_srli_epi16(s[0], 2), top));
    mi[1] = _mm512_or_si512(nibble_high(s[2]),
                            _mm512_and_si512(_mm512_srli_epi16(s[1], 2), top));
}

/* Byte i of each lane, zero extended. */
LOAD_INLINE __m512i lane_byte(__m512i v, int i)
{
    return _mm512_and_si512(_mm512_srli_epi32(v, 8 * (unsigned)i), _mm512_set1_epi32(255));
}

/* Byte i of each lane, sign extended. */
LOAD_INLINE __m512i lane_signed_byte(__m512i v, int i)
{
    return _mm512_srai_epi32(_mm512_slli_epi32(v, 24 - 8 * (unsigned)i), 24);
}

/* UE4M3 byte i of each lane as an integer in units of 2^-9. */
LOAD_INLINE __m512i lane_ue4m3(__m512i v, int i)
{
    const __m512i byte = _mm512_and_si512(lane_byte(v, i), _mm512_set1_epi32(127));
    const __m512i e = _mm512_srli_epi32(byte, 3);
    const __m512i man = _mm512_and_si512(byte, _mm512_set1_epi32(7));
    const __mmask16 normal = _mm512_test_epi32_mask(e, e);
    const __mmask16 ok = _mm512_cmpneq_epi32_mask(byte, _mm512_set1_epi32(127));
    const __m512i full = _mm512_mask_or_epi32(man, normal, man, _mm512_set1_epi32(8));
    const __m512i shift = _mm512_maskz_sub_epi32(normal, e, _mm512_set1_epi32(1));
    return _mm512_maskz_sllv_epi32(ok, full, shift);
}

#endif
