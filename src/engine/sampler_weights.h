/* SPDX-License-Identifier: MIT
 * sampler_weights.h - the two passes over a whole vocabulary: largest logit, integer weights.
 *
 * Variants are listed in sampler_weights.def in rising order; all give equal bits.
 * Source: the specification of exact-1, section 12.
 */
#ifndef ISO_ENGINE_SAMPLER_WEIGHTS_H
#define ISO_ENGINE_SAMPLER_WEIGHTS_H

#include <stddef.h>
#include <stdint.h>

#define ISO_SAMPLER_BLOCK 64       /* weights under one maximum */
#define ISO_SAMPLER_TOP (1u << 30) /* the weight of the largest logit */

/* Largest logit; *from is an index at or before the first place that holds it, at most 1,023
 * before. l [n], n >= 1; -inf is allowed, NaN is not. */
typedef float iso_sampler_max_fn(size_t *from, const float *l, size_t n);

/* w [n] = u32(exp2((l - top) * c) * 2^30) truncated, block_max [n / 64 rounded up] the largest of
 * each 64; returns the sum of w. */
typedef uint64_t iso_sampler_weights_fn(
    uint32_t *w, uint32_t *block_max, const float *l, float top, float c, size_t n);

struct iso_sampler_kernels {
    const char *name;
    iso_sampler_max_fn *max;
    iso_sampler_weights_fn *weights;
};

/* Variant i that this machine can run, slowest first; NULL when there are no more. */
const struct iso_sampler_kernels *iso_sampler_kernels_at(size_t i);

/* The last of them. */
const struct iso_sampler_kernels *iso_sampler_kernels_best(void);

#endif
