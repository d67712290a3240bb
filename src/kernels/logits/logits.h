/* SPDX-License-Identifier: MIT
 * logits.h - the contract of what follows the output product: scale, soft-cap, largest logit.
 *
 * Variants are listed in logits.def.
 * Source: the specification of exact-1, sections 11 and 12.
 */
#ifndef ISO_KERNELS_LOGITS_H
#define ISO_KERNELS_LOGITS_H

#include <stddef.h>
#include <stdint.h>

struct iso_logits_args {
    float scale;   /* logit_scale; used when has_scale */
    float cap;     /* final soft-cap, 0 for none */
    float inv_cap; /* f32(1/cap) */
    int has_scale;
};

/* l [n] in place; returns the largest magnitude as bits (>= ISO_BITS_2P100 is the caller's error). */
typedef uint32_t iso_logits_fn(float *l, const struct iso_logits_args *a, size_t n);

/* Index of the largest logit, the lowest index on ties. n >= 1, no NaN. */
typedef size_t iso_argmax_fn(const float *l, size_t n);

struct iso_logits_kernels {
    const char *name;
    iso_logits_fn *logits;
    iso_argmax_fn *argmax;
};

const struct iso_logits_kernels *iso_logits_select(unsigned flags);

#endif
