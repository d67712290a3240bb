/* SPDX-License-Identifier: MIT
 * prim.h - the primitives of exact-1: each is a fixed sequence of f32 operations.
 *
 * Source: the specification of exact-1, sections 1 and 2. No branch, no table, no library call,
 * so that a compiler may run many lanes of each at once; a changed operation or order is a new
 * version.
 */
#ifndef ISO_ARITH_PRIM_H
#define ISO_ARITH_PRIM_H

#include "arith/lang.h"

#define ISO_ARITHMETIC "exact-1"

#define ISO_LOG2E 0x1.715476p+0f   /* L: log2(e) */
#define ISO_ABS_MASK 0x7fffffffu   /* |x| as bits */
#define ISO_BITS_2P100 0x71800000u /* bits of 2^100: a value flows only below it */
#define ISO_BITS_2P40 0x53800000u  /* bits of 2^40: limit behind the butterfly */
#define ISO_BITS_2M60 0x21800000u  /* bits of 2^-60: the guard's floor */
#define ISO_BITS_2M28 0x31800000u  /* bits of 2^-28: the floor of an activation block */
#define ISO_BITS_2M26 0x32800000u  /* bits of 2^-26: the floor of a float weight block */

/* Magnitude as an integer that orders like |x|; NaN is above everything. */
ISO_FN uint32_t iso_abs_bits(float x)
{
    return ISO_AS_U32(x) & ISO_ABS_MASK;
}

ISO_FN float iso_absf(float x)
{
    return ISO_AS_F32(iso_abs_bits(x));
}

/* g(x) = |x| < 2^-60 ? +0 : x. Keeps subnormals from mattering. */
ISO_FN float iso_guard(float x)
{
    return iso_abs_bits(x) < ISO_BITS_2M60 ? 0.0f : x;
}

#define ISO_ROUND_MAGIC 12582912.0f      /* 1.5 * 2^23: its unit in the last place is 1 */
#define ISO_ROUND_MAGIC_BITS 0x4B400000u /* the same as bits */

/* ri(x): nearest even integer as f32, |x| < 2^22, zero is +0. */
ISO_FN float iso_round(float x)
{
    return (x + ISO_ROUND_MAGIC) - ISO_ROUND_MAGIC;
}

/* ri(x) as an integer: the low bits of x + magic are it in two's complement. Unlike a conversion
 * it has a value for every x, NaN included. */
ISO_FN int32_t iso_round_i32(float x)
{
    return (int32_t)(ISO_AS_U32(x + ISO_ROUND_MAGIC) - ISO_ROUND_MAGIC_BITS);
}

/* 1/x by four Newton steps, 2^-100 <= x <= 2^100. */
ISO_FN float iso_rcp(float x)
{
    float y = ISO_AS_F32(0x7EF311C3u - ISO_AS_U32(x));
    float e = ISO_FMA(-x, y, 1.0f);
    y = ISO_FMA(y, e, y);
    e = ISO_FMA(-x, y, 1.0f);
    y = ISO_FMA(y, e, y);
    e = ISO_FMA(-x, y, 1.0f);
    y = ISO_FMA(y, e, y);
    e = ISO_FMA(-x, y, 1.0f);
    return ISO_FMA(y, e, y);
}

/* x^-1/2 by four Newton steps, same domain. */
ISO_FN float iso_rsqrt(float x)
{
    float y = ISO_AS_F32(0x5F375A86u - (ISO_AS_U32(x) >> 1));
    const float h = 0.5f * x;
    y = y * ISO_FMA(-(h * y), y, 1.5f);
    y = y * ISO_FMA(-(h * y), y, 1.5f);
    y = y * ISO_FMA(-(h * y), y, 1.5f);
    return y * ISO_FMA(-(h * y), y, 1.5f);
}

/* 2^x for x <= 0; 0 below -125, where the polynomial runs on nonsense that the mask removes (a
 * branch or a clamp would keep gcc from running it in lanes). Degree 6, 0.93 ulp. */
ISO_FN float iso_exp2(float x)
{
    const float shifted = x + ISO_ROUND_MAGIC; /* its low bits are n = ri(x) */
    const float f = x - (shifted - ISO_ROUND_MAGIC);
    float p = 0x1.41fbbap-13f;
    p = ISO_FMA(p, f, 0x1.5f3e54p-10f);
    p = ISO_FMA(p, f, 0x1.3b2d4cp-7f);
    p = ISO_FMA(p, f, 0x1.c6aee8p-5f);
    p = ISO_FMA(p, f, 0x1.ebfbdcp-3f);
    p = ISO_FMA(p, f, 0x1.62e43p-1f);
    p = ISO_FMA(p, f, 0x1p+0f);
    /* The magic's own bits leave at the top of the shift: this adds n << 23, no conversion. */
    const uint32_t y = ISO_AS_U32(p) + (ISO_AS_U32(shifted) << 23);
    return ISO_AS_F32(y & (0u - (uint32_t) !(x < -125.0f)));
}

/* a where the sign bit of x is clear, else b. A bit mask, so that compilers with trapping
 * arithmetic still run both sides in all lanes; equal to x >= 0 ? a : b except that -0 counts as
 * negative. */
ISO_FN float iso_by_sign(float x, float a, float b)
{
    const uint32_t mask = 0u - (ISO_AS_U32(x) >> 31);
    return ISO_AS_F32((ISO_AS_U32(a) & ~mask) | (ISO_AS_U32(b) & mask));
}

/* For x = -0 both sides are 1/2: t is exactly 1. */
ISO_FN float iso_sigmoid(float x)
{
    const float t = iso_exp2(-(iso_absf(x) * ISO_LOG2E));
    const float r = iso_rcp(1.0f + t);
    return iso_by_sign(x, r, t * r);
}

ISO_FN float iso_tanh(float x)
{
    const float t = iso_exp2(-(iso_absf(x) * (2.0f * ISO_LOG2E)));
    const float r = (1.0f - t) * iso_rcp(1.0f + t);
    return ISO_AS_F32(ISO_AS_U32(r) | (ISO_AS_U32(x) & ~ISO_ABS_MASK));
}

/* 2^k for integer-valued k in [-60, 127]; 0 below -60. */
ISO_FN float iso_pow2(float k)
{
    const float in = k < -60.0f ? -60.0f : k;
    const float y = ISO_AS_F32((uint32_t)((int32_t)in + 127) << 23);
    return k < -60.0f ? 0.0f : y;
}

/* 2^e by bits, -126 <= e <= 127. */
ISO_FN float iso_ldexp1(int32_t e)
{
    return ISO_AS_F32((uint32_t)(e + 127) << 23);
}

/* A finite f16 bit pattern as f32, exactly (subnormals too). */
ISO_FN float iso_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t mag = (uint32_t)(h & 0x7fffu) << 13;
    /* Normal: rebias by 112. Subnormal: mantissa * 2^-24 by subtracting the implied one. */
    const uint32_t normal = mag + 0x38000000u;
    const uint32_t sub = ISO_AS_U32(ISO_AS_F32(mag + 0x38800000u) - 0x1p-14f);
    const uint32_t is_sub = 0u - (uint32_t)(mag < 0x00800000u);
    return ISO_AS_F32((sub & is_sub) | (normal & ~is_sub) | sign);
}

/* A bf16 bit pattern as f32. */
ISO_FN float iso_bf16(uint16_t h)
{
    return ISO_AS_F32((uint32_t)h << 16);
}

/* An integer that orders like the float, NaN aside; the addition makes -0 and +0 one value. */
ISO_FN int32_t iso_order_key(float x)
{
    const int32_t b = (int32_t)ISO_AS_U32(x + 0.0f);
    return b ^ (int32_t)(ISO_AS_U32(x + 0.0f) >> 31 ? ISO_ABS_MASK : 0u);
}

/* The float of an order key: +0 for either zero. */
ISO_FN float iso_from_order_key(int32_t key)
{
    return ISO_AS_F32((uint32_t)key ^ (key < 0 ? ISO_ABS_MASK : 0u));
}

/* SwiGLU and GeGLU of section 11. */
ISO_FN float iso_swiglu(float z, float up)
{
    return iso_guard((z * iso_sigmoid(z)) * up);
}

ISO_FN float iso_geglu(float z, float up)
{
    const float q = z * z;
    const float t = ISO_FMA(q, 0.044715f, 1.0f);
    const float u = (z * 0.7978845608f) * t;
    const float r = (0.5f * z) * (1.0f + iso_tanh(u));
    return iso_guard(r * up);
}

/* cap * tanh(x / cap) with the reciprocal rounded once, inv_cap = f32(1/cap). */
ISO_FN float iso_softcap(float x, float cap, float inv_cap)
{
    return cap * iso_tanh(x * inv_cap);
}

#endif
