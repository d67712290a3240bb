/* SPDX-License-Identifier: MIT
 * norm.h - the contract of RMS norm and residual addition in f32, one row at a time.
 *
 * Variants are listed in norm.def.
 * Source: the specification of exact-1, sections 6 and 11; arXiv:1910.07467 eq. 4.
 */
#ifndef ISO_KERNELS_NORM_H
#define ISO_KERNELS_NORM_H

#include <stddef.h>

/* y = g((x*r)*w), or g(x*r) when w is NULL; y may equal x. inv_n = f32(1/n). n >= 1. */
typedef void iso_norm_fn(float *y, const float *x, const float *w, float eps, float inv_n, size_t n);

/* x += y. */
typedef void iso_residual_fn(float *x, const float *y, size_t n);

/* x += norm(y, w). */
typedef void iso_residual_norm_fn(float *x, const float *y, const float *w, float eps, float inv_n,
                                  size_t n);

struct iso_norm_kernels {
    const char *name;
    iso_norm_fn *norm;
    iso_residual_fn *residual;
    iso_residual_norm_fn *residual_norm;
};

const struct iso_norm_kernels *iso_norm_select(unsigned flags);

#endif
