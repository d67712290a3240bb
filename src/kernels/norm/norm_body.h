/* SPDX-License-Identifier: MIT
 * norm_body.h - the text of RMS norm and residual addition, compiled once per instruction set.
 *
 * Source: the specification of exact-1, sections 6 and 11.
 */
#include <string.h>

#include "arith/prim.h"
#include "kernels/norm/norm.h"
#include "kernels/shared/rms.h"

#define NORM_BLOCK 256

/* y [len] = g((x*r)*w) through a buffer: y may equal x, and a buffer keeps gcc from a scalar loop
 * for that case. */
static inline void
norm_block(float *y, const float *x, const float *restrict w, float r, size_t len)
{
    float v[NORM_BLOCK] __attribute__((aligned(64)));
    if (w) {
        for (size_t i = 0; i < len; i++) v[i] = iso_guard((x[i] * r) * w[i]);
    } else {
        for (size_t i = 0; i < len; i++) v[i] = iso_guard(x[i] * r);
    }
    memcpy(y, v, len * sizeof(*v));
}

static void
norm(float *y, const float *x, const float *restrict w, float eps, float inv_n, size_t n)
{
    const float r = rms_factor(x, eps, inv_n, n);
    size_t at = 0;
    for (; at + NORM_BLOCK <= n; at += NORM_BLOCK) {
        norm_block(y + at, x + at, w ? w + at : NULL, r, NORM_BLOCK);
    }
    if (at < n) norm_block(y + at, x + at, w ? w + at : NULL, r, n - at);
}

static void residual(float *restrict x, const float *restrict y, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] = x[i] + y[i];
}

static void residual_norm(float *restrict x,
                          const float *restrict y,
                          const float *restrict w,
                          float eps,
                          float inv_n,
                          size_t n)
{
    const float r = rms_factor(y, eps, inv_n, n);
    if (w) {
        for (size_t i = 0; i < n; i++) x[i] = x[i] + iso_guard((y[i] * r) * w[i]);
        return;
    }
    for (size_t i = 0; i < n; i++) x[i] = x[i] + iso_guard(y[i] * r);
}
