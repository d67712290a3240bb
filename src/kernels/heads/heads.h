/* SPDX-License-Identifier: MIT
 * heads.h - the contract of what happens to q, k and v between projection and attention.
 *
 * For one head vector: RMS norm (if the model has one), rotation, guard, butterfly, quantisation;
 * k and v go straight into their page. Variants are listed in heads.def.
 * Source: the specification of exact-1, sections 6 to 9.
 */
#ifndef ISO_KERNELS_HEADS_H
#define ISO_KERNELS_HEADS_H

#include <stddef.h>
#include <stdint.h>

enum iso_rope_pairs {
    ISO_ROPE_NONE,        /* no rotation */
    ISO_ROPE_INTERLEAVED, /* (2i, 2i+1) */
    ISO_ROPE_HALVES,      /* (i, i + n_rot/2) */
};

/* How a q or k vector is treated; shared by all heads of a layer. */
struct iso_heads_args {
    uint32_t d;           /* head size, a multiple of 8, <= ISO_HEAD_MAX */
    uint32_t n_rot;       /* rotated dimensions, even, <= d */
    enum iso_rope_pairs pairs;
    const float *norm;    /* [d] head norm weights, or NULL for no norm */
    float eps;
    float inv_n;          /* f32(1/d) */
};

/* One query head: code [d] and *scale from x [d]; cos_sin [n_rot/2][2] of its position (unused for
 * ISO_ROPE_NONE). tap [d] or NULL receives the values before the butterfly.
 * Returns the largest magnitude behind the butterfly as bits (>= ISO_BITS_2P40 is the caller's error). */
typedef uint32_t iso_heads_q_fn(int16_t *code, float *scale, float *tap, const float *x,
                                const float *cos_sin, const struct iso_heads_args *a);

/* One key head into slot (0..63) of page. */
typedef uint32_t iso_heads_k_fn(uint8_t *page, uint32_t slot, float *tap, const float *x,
                                const float *cos_sin, const struct iso_heads_args *a);

/* One value head (guard, butterfly, 8-bit codes) into slot of page. */
typedef uint32_t iso_heads_v_fn(uint8_t *page, uint32_t slot, const float *x, uint32_t d);

struct iso_heads_kernels {
    const char *name;
    iso_heads_q_fn *q;
    iso_heads_k_fn *k;
    iso_heads_v_fn *v;
};

const struct iso_heads_kernels *iso_heads_select(unsigned flags);

#endif
