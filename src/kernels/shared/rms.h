/* SPDX-License-Identifier: MIT
 * rms.h - the factor of an RMS norm: 256 lanes, one tree, reciprocal square root.
 *
 * Static text that norm and quantize compile once per instruction set. Plain C loops with a
 * constant trip count: the order of the sum is pinned, so each variant gives equal bits. Source:
 * the specification of exact-1, section 6.
 */
#ifndef ISO_KERNELS_SHARED_RMS_H
#define ISO_KERNELS_SHARED_RMS_H

#include <stddef.h>
#include <stdint.h>

#include "arith/prim.h"

#define RMS_LANES 256
#define RMS_BITS_2P60 0x5d800000u /* bits of 2^60: from here on the row is an error */

/* One level of the tree with a constant length, which a compiler turns into whole vectors. */
#define RMS_TREE_LEVEL(l, s)                                                                       \
    for (size_t i_ = 0; i_ < (s); i_++) (l)[i_] = (l)[i_] + (l)[i_ + (s)]

/* Sum of squares: lane i mod 256 takes fma(x, x, l) in ascending i; tree s = 128, 64, .., 1. */
static inline float rms_sum_of_squares(const float *restrict x, size_t n)
{
    float l[RMS_LANES] __attribute__((aligned(64))) = {0.0f};
    size_t at = 0;
    for (; at + RMS_LANES <= n; at += RMS_LANES) {
        for (size_t i = 0; i < RMS_LANES; i++) l[i] = ISO_FMA(x[at + i], x[at + i], l[i]);
    }
    for (size_t i = 0; at + i < n; i++) l[i] = ISO_FMA(x[at + i], x[at + i], l[i]);
    RMS_TREE_LEVEL(l, 128);
    RMS_TREE_LEVEL(l, 64);
    RMS_TREE_LEVEL(l, 32);
    RMS_TREE_LEVEL(l, 16);
    RMS_TREE_LEVEL(l, 8);
    RMS_TREE_LEVEL(l, 4);
    RMS_TREE_LEVEL(l, 2);
    return l[0] + l[1];
}

/* Whether some |x| reaches 2^60 (or is no number). */
static inline int rms_out_of_domain(const float *restrict x, size_t n)
{
    uint32_t m = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t b = iso_abs_bits(x[i]);
        m = b > m ? b : m;
    }
    return m >= RMS_BITS_2P60;
}

/* rsqrt(mean square + eps); infinite when some |x| reaches 2^60, so that every product with it is
 * infinite or NaN and ends in the error of the next quantisation. Such an x makes the sum at least
 * 2^120; the exact question is only asked from there on. */
static inline float rms_factor(const float *restrict x, float eps, float inv_n, size_t n)
{
    const float sum = rms_sum_of_squares(x, n);
    if (!(sum < 0x1p120f) && rms_out_of_domain(x, n)) return ISO_AS_F32(0x7f800000u);
    const float t = sum * inv_n;
    return iso_rsqrt(t + eps);
}

#endif
