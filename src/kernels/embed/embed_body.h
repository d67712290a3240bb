/* SPDX-License-Identifier: MIT
 * embed_body.h - table rows of every weight type as f32, compiled once per instruction set.
 *
 * A row is read once per token, so the text is plain: one function per type, element by element in
 * the order of the file's bytes.
 * Source: the specification of exact-1, section 4 "one element"; layouts: ggml/src/ggml-common.h.
 */
#include <string.h>

#include "arith/prim.h"
#include "base/buf.h"
#include "kernels/embed/embed.h"

static inline float f16_at(const uint8_t *p)
{
    return iso_f16(iso_get_u16(p));
}

/* d f16 | 16 bytes: low nibbles are elements 0-15, high nibbles 16-31; code = nibble - 8. */
static void row_q4_0(float *restrict v, const uint8_t *restrict b, size_t n)
{
    for (size_t at = 0; at < n; at += 32, b += 18) {
        const float d = f16_at(b);
        for (size_t i = 0; i < 16; i++) {
            v[at + i] = d * (float)((b[2 + i] & 15) - 8);
            v[at + 16 + i] = d * (float)((b[2 + i] >> 4) - 8);
        }
    }
}

/* d f16 | m f16 | 16 bytes of nibbles. */
static void row_q4_1(float *restrict v, const uint8_t *restrict b, size_t n)
{
    for (size_t at = 0; at < n; at += 32, b += 20) {
        const float d = f16_at(b);
        const float m = f16_at(b + 2);
        for (size_t i = 0; i < 16; i++) {
            v[at + i] = d * (float)(b[4 + i] & 15) + m;
            v[at + 16 + i] = d * (float)(b[4 + i] >> 4) + m;
        }
    }
}

/* d f16 | u32 of fifth bits | 16 bytes of nibbles; code = five bits - 16. */
static void row_q5_0(float *restrict v, const uint8_t *restrict b, size_t n)
{
    for (size_t at = 0; at < n; at += 32, b += 22) {
        const float d = f16_at(b);
        const uint32_t high = iso_get_u32(b + 2);
        for (uint32_t i = 0; i < 16; i++) {
            const uint32_t lo = (b[6 + i] & 15u) | (high >> i & 1u) << 4;
            const uint32_t hi = (uint32_t)b[6 + i] >> 4 | (high >> (i + 16) & 1u) << 4;
            v[at + i] = d * (float)((int32_t)lo - 16);
            v[at + 16 + i] = d * (float)((int32_t)hi - 16);
        }
    }
}

/* d f16 | m f16 | u32 of fifth bits | 16 bytes of nibbles. */
static void row_q5_1(float *restrict v, const uint8_t *restrict b, size_t n)
{
    for (size_t at = 0; at < n; at += 32, b += 24) {
        const float d = f16_at(b);
        const float m = f16_at(b + 2);
        const uint32_t high = iso_get_u32(b + 4);
        for (uint32_t i = 0; i < 16; i++) {
            const uint32_t lo = (b[8 + i] & 15u) | (high >> i & 1u) << 4;
            const uint32_t hi = (uint32_t)b[8 + i] >> 4 | (high >> (i + 16) & 1u) << 4;
            v[at + i] = d * (float)(int32_t)lo + m;
            v[at + 16 + i] = d * (float)(int32_t)hi + m;
        }
    }
}

/* d f16 | 32 signed bytes. */
static void row_q8_0(float *restrict v, const uint8_t *restrict b, size_t n)
{
    for (size_t at = 0; at < n; at += 32, b += 34) {
        const float d = f16_at(b);
        for (size_t i = 0; i < 32; i++) v[at + i] = d * (float)(int8_t)b[2 + i];
    }
}

/* Six-bit sub-scale and min j of 8 from the twelve bytes that Q4_K and Q5_K share. */
static inline void scale_min_k(uint32_t *sc, uint32_t *mi, const uint8_t *s, size_t j)
{
    if (j < 4) {
        *sc = s[j] & 63u;
        *mi = s[j + 4] & 63u;
        return;
    }
    *sc = (s[j + 4] & 15u) | (uint32_t)(s[j - 4] >> 6) << 4;
    *mi = (uint32_t)(s[j + 4] >> 4) | (uint32_t)(s[j] >> 6) << 4;
}

/* d f16 | dmin f16 | 12 bytes of sub-scales and mins | 128 bytes of nibbles: 32 bytes hold the low
 * nibbles of one 32 and the high nibbles of the next. */
static void row_q4_k(float *restrict v, const uint8_t *restrict b, size_t n)
{
    for (size_t at = 0; at < n; at += 256, b += 144) {
        const float d = f16_at(b);
        const float dmin = f16_at(b + 2);
        for (size_t j = 0; j < 8; j++) {
            const uint8_t *q = b + 16 + j / 2 * 32;
            uint32_t sc, mi;
            scale_min_k(&sc, &mi, b + 4, j);
            for (size_t i = 0; i < 32; i++) {
                const uint32_t code = (uint32_t)q[i] >> (j % 2 * 4) & 15u;
                v[at + j * 32 + i] =
                    ISO_FMA(-dmin, (float)(int32_t)mi, d * (float)(int32_t)(code * sc));
            }
        }
    }
}

/* As Q4_K with 32 bytes of fifth bits between: bit j of byte i belongs to element i of 32 number j.
 */
static void row_q5_k(float *restrict v, const uint8_t *restrict b, size_t n)
{
    for (size_t at = 0; at < n; at += 256, b += 176) {
        const float d = f16_at(b);
        const float dmin = f16_at(b + 2);
        for (size_t j = 0; j < 8; j++) {
            const uint8_t *q = b + 48 + j / 2 * 32;
            uint32_t sc, mi;
            scale_min_k(&sc, &mi, b + 4, j);
            for (size_t i = 0; i < 32; i++) {
                const uint32_t high = (uint32_t)b[16 + i] >> j & 1u;
                const uint32_t code = ((uint32_t)q[i] >> (j % 2 * 4) & 15u) | high << 4;
                v[at + j * 32 + i] =
                    ISO_FMA(-dmin, (float)(int32_t)mi, d * (float)(int32_t)(code * sc));
            }
        }
    }
}

/* 128 bytes of low nibbles | 64 bytes of high pairs | 16 signed sub-scales | d f16; code = six bits
 * - 32. Half h of 128 elements: element 32*k + i has its nibble in byte 64*h + 32*(k%2) + i (high
 * nibble from k = 2 on) and its pair in byte 32*h + i at bit 2*k. */
static void row_q6_k(float *restrict v, const uint8_t *restrict b, size_t n)
{
    for (size_t at = 0; at < n; at += 256, b += 210) {
        const float d = f16_at(b + 208);
        for (size_t g = 0; g < 8; g++) { /* 32 elements each */
            const size_t h = g / 4;
            const size_t k = g % 4;
            for (size_t i = 0; i < 32; i++) {
                const uint32_t lo = (uint32_t)b[64 * h + 32 * (k % 2) + i] >> (k / 2 * 4) & 15u;
                const uint32_t hi = (uint32_t)b[128 + 32 * h + i] >> (2 * k) & 3u;
                const int32_t sc = (int8_t)b[192 + 2 * g + i / 16];
                v[at + 32 * g + i] = d * (float)(((int32_t)(lo | hi << 4) - 32) * sc);
            }
        }
    }
}

/* d f16 | 16 bytes: indices into the table of IQ4_NL. */
static void row_iq4_nl(float *restrict v, const uint8_t *restrict b, size_t n)
{
    static const int8_t table[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};
    for (size_t at = 0; at < n; at += 32, b += 18) {
        const float d = f16_at(b);
        for (size_t i = 0; i < 16; i++) {
            v[at + i] = d * (float)table[b[2 + i] & 15];
            v[at + 16 + i] = d * (float)table[b[2 + i] >> 4];
        }
    }
}

/* Twice the value of an E2M1 number. */
static const int8_t e2m1_twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* e u8 | 16 bytes of E2M1; d = 2^(e - 128), 0 below e = 64. */
static void row_mxfp4(float *restrict v, const uint8_t *restrict b, size_t n)
{
    for (size_t at = 0; at < n; at += 32, b += 17) {
        const float d = b[0] < 64 ? 0.0f : iso_ldexp1((int32_t)b[0] - 128);
        for (size_t i = 0; i < 16; i++) {
            v[at + i] = d * (float)e2m1_twice[b[1 + i] & 15];
            v[at + 16 + i] = d * (float)e2m1_twice[b[1 + i] >> 4];
        }
    }
}

/* UE4M3 in units of 2^-9; bit 7 is ignored and 0x7f is 0. */
static inline int32_t ue4m3_units(uint8_t byte)
{
    const int32_t e = byte >> 3 & 15;
    const int32_t man = byte & 7;
    if ((byte & 0x7f) == 0x7f) return 0;
    return e ? (8 + man) << (e - 1) : man;
}

/* Four scales | four times 8 bytes: low nibbles are elements 0-7 of a sixteen, high ones 8-15. */
static void row_nvfp4(float *restrict v, const uint8_t *restrict b, size_t n)
{
    for (size_t at = 0; at < n; at += 64, b += 36) {
        for (size_t j = 0; j < 4; j++) {
            const int32_t sc = ue4m3_units(b[j]);
            const uint8_t *q = b + 4 + 8 * j;
            float *x = v + at + 16 * j;
            for (size_t i = 0; i < 8; i++) {
                x[i] = (float)(e2m1_twice[q[i] & 15] * sc) * 0x1p-10f;
                x[8 + i] = (float)(e2m1_twice[q[i] >> 4] * sc) * 0x1p-10f;
            }
        }
    }
}

static void row_f16(float *restrict v, const uint8_t *restrict b, size_t n)
{
    for (size_t i = 0; i < n; i++) v[i] = f16_at(b + 2 * i);
}

static void row_bf16(float *restrict v, const uint8_t *restrict b, size_t n)
{
    for (size_t i = 0; i < n; i++) v[i] = iso_bf16(iso_get_u16(b + 2 * i));
}

static void row_f32(float *restrict v, const uint8_t *restrict b, size_t n)
{
    for (size_t i = 0; i < n; i++) v[i] = ISO_AS_F32(iso_get_u32(b + 4 * i));
}

/* The values of a row without scale and guard. */
static void
dequantize_row(float *restrict v, enum iso_type type, const uint8_t *restrict row, size_t n)
{
    switch (type) {
    case ISO_TYPE_F32:
        row_f32(v, row, n);
        break;
    case ISO_TYPE_F16:
        row_f16(v, row, n);
        break;
    case ISO_TYPE_BF16:
        row_bf16(v, row, n);
        break;
    case ISO_TYPE_Q4_0:
        row_q4_0(v, row, n);
        break;
    case ISO_TYPE_Q4_1:
        row_q4_1(v, row, n);
        break;
    case ISO_TYPE_Q5_0:
        row_q5_0(v, row, n);
        break;
    case ISO_TYPE_Q5_1:
        row_q5_1(v, row, n);
        break;
    case ISO_TYPE_Q8_0:
        row_q8_0(v, row, n);
        break;
    case ISO_TYPE_Q4_K:
        row_q4_k(v, row, n);
        break;
    case ISO_TYPE_Q5_K:
        row_q5_k(v, row, n);
        break;
    case ISO_TYPE_Q6_K:
        row_q6_k(v, row, n);
        break;
    case ISO_TYPE_IQ4_NL:
        row_iq4_nl(v, row, n);
        break;
    case ISO_TYPE_MXFP4:
        row_mxfp4(v, row, n);
        break;
    case ISO_TYPE_NVFP4:
        row_nvfp4(v, row, n);
        break;
    case ISO_TYPE_COUNT:
        break;
    }
}

static void embed(float *restrict x,
                  enum iso_type type,
                  const uint8_t *restrict row,
                  float scale,
                  int has_scale,
                  size_t n)
{
    dequantize_row(x, type, row, n);
    if (has_scale) {
        for (size_t i = 0; i < n; i++) x[i] = iso_guard(x[i] * scale);
        return;
    }
    for (size_t i = 0; i < n; i++) x[i] = iso_guard(x[i]);
}
