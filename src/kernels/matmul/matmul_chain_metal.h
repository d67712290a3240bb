/* SPDX-License-Identifier: MIT
 * matmul_chain_metal.h - the pinned float chains between exact sums, for the Metal matrix products.
 *
 * Source: the specification of exact-1, section 5. Conversions from integers are of values below 2^24 only, so
 * that no rounding of a conversion can matter; larger sums go through sum_f32() and sum64_f32().
 */
#ifndef ISO_KERNELS_MATMUL_CHAIN_METAL_H
#define ISO_KERNELS_MATMUL_CHAIN_METAL_H

#include "kernels/matmul/matmul_metal.h"
#include "kernels/shared/metal_blocks.h"

/* f32 of an i32, to nearest even: both parts are exact and fma rounds once. */
static inline float sum_f32(int v)
{
    return metal::fma((float)(v >> 12), 4096.0f, (float)(v & 4095));
}

/* The same for |v| < 2^41. */
static inline float sum64_f32(long v)
{
    const float high = (float)(int)(v >> 24);
    const float low = (float)(int)(v & 0xffffff);
    return metal::fma(high, 16777216.0f, low);
}

/* p of section 5 from the superblock's integers. */
static inline float super_p(int a, int m, float d, float dmin, bool has_min)
{
    const float p = d * sum_f32(a);
    return has_min ? metal::fma(-dmin, sum_f32(m), p) : p;
}

static inline float nvfp4_p(long a)
{
    return sum64_f32(a) * 0x1p-10f;
}

/* f32 of a Float type's sum from its planes: the sum is below 2^31 and both parts are exact. */
static inline float planes_f32(float high, float low)
{
    return metal::fma(high, 256.0f, low);
}

/* What follows the chain: .scale, then bias. */
static inline float finish_y(float y, constant iso_metal_matmul &a, const device float *bias, uint row)
{
    if (a.has_scale != 0) y = y * a.scale;
    if (a.has_bias != 0) y = y + bias[row];
    return y;
}

#endif
