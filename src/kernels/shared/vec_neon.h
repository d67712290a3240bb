/* SPDX-License-Identifier: MIT
 * vec_neon.h - vector forms of primitives of exact-1 for aarch64: 4 lanes, the same operations.
 *
 * Source: the specification of exact-1, sections 2 and 8.
 */
#ifndef ISO_KERNELS_SHARED_VEC_NEON_H
#define ISO_KERNELS_SHARED_VEC_NEON_H

/* Empty elsewhere, so that every header compiles alone on every machine. */
#if defined(__aarch64__)

#include <arm_neon.h>

#include "arith/page.h"

/* Strides 1 and 2, of two vectors at once: pairwise forms put the partners side by side. */
static inline float32x4x2_t vec_butterfly_8(float32x4_t a, float32x4_t b)
{
    /* Stride 1: even lanes u, odd lanes v of both vectors. */
    float32x4_t u = vuzp1q_f32(a, b);
    float32x4_t v = vuzp2q_f32(a, b);
    const float32x4_t s = vaddq_f32(u, v); /* a0+a1 a2+a3 b0+b1 b2+b3 */
    const float32x4_t t = vsubq_f32(u, v);
    /* Stride 2: partners are neighbours in s and in t. */
    u = vuzp1q_f32(s, t); /* of a, of b, of a, of b: lower partner */
    v = vuzp2q_f32(s, t);
    const float32x4_t p = vaddq_f32(u, v);   /* a0 b0 a1 b1 */
    const float32x4_t q = vsubq_f32(u, v);   /* a2 b2 a3 b3 */
    const float32x4_t r0 = vuzp1q_f32(p, q); /* a0 a1 a2 a3 */
    const float32x4_t r1 = vuzp2q_f32(p, q);
    const float32x4x2_t r = {{r0, r1}};
    return r;
}

/* Walsh-Hadamard butterfly of x [d] in place, d a multiple of 8 up to ISO_HEAD_MAX, in blocks of
 * the largest power of two dividing d. */
static inline void vec_butterfly(float *x, uint32_t d)
{
    const uint32_t block = iso_butterfly_block(d);
    for (uint32_t i = 0; i < d; i += 8) {
        /* Stride 4 is between the two vectors. */
        const float32x4x2_t r = vec_butterfly_8(vld1q_f32(x + i), vld1q_f32(x + i + 4));
        vst1q_f32(x + i, vaddq_f32(r.val[0], r.val[1]));
        vst1q_f32(x + i + 4, vsubq_f32(r.val[0], r.val[1]));
    }
    for (uint32_t stride = 8; stride < block; stride *= 2) {
        for (uint32_t i = 0; i < d; i += 4) {
            if (i & stride) continue;
            const float32x4_t u = vld1q_f32(x + i);
            const float32x4_t v = vld1q_f32(x + i + stride);
            vst1q_f32(x + i, vaddq_f32(u, v));
            vst1q_f32(x + i + stride, vsubq_f32(u, v));
        }
    }
}

#endif

#endif
