/* SPDX-License-Identifier: MIT
 * vec_ref.h - the plain form of what vec_avx2.h, vec_avx512.h and vec_neon.h do with vectors. */
#ifndef ISO_KERNELS_SHARED_VEC_REF_H
#define ISO_KERNELS_SHARED_VEC_REF_H

#include "arith/page.h"

/* Walsh-Hadamard butterfly of x [d] in place, in blocks of the largest power of two dividing d.
 * Source: the specification of exact-1, section 8. */
static inline void vec_butterfly(float *x, uint32_t d)
{
    const uint32_t block = iso_butterfly_block(d);
    for (uint32_t stride = 1; stride < block; stride *= 2) {
        for (uint32_t i = 0; i < d; i++) {
            if (i & stride) continue;
            const float u = x[i];
            const float v = x[i + stride];
            x[i] = u + v;
            x[i + stride] = u - v;
        }
    }
}

#endif
