/* SPDX-License-Identifier: MIT
 * boundary.h - layer 0 of the golden models around attention, as recorded in tests/golden. */
#ifndef ISO_TESTS_KERNELS_BOUNDARY_H
#define ISO_TESTS_KERNELS_BOUNDARY_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/heads/heads.h"

struct iso_gguf;

#define BOUNDARY_KV_HEADS 3 /* most in any model here */

struct boundary {
    const char *model; /* folder in tests/golden */
    uint32_t n_heads;
    uint32_t n_kv;
    uint32_t n_tokens;
    struct iso_heads_args q_args; /* with the q head norm */
    struct iso_heads_args k_args;
    float *q, *k, *v; /* raw products [n_tokens][heads][d] */
    float *q_rope, *k_rope, *attn_out;
    float *cos_sin; /* [n_tokens][n_rot/2][2] */
    uint8_t *page[BOUNDARY_KV_HEADS];
    float *q_norm, *k_norm; /* [d], or NULL */
    struct iso_gguf *file;  /* where they are from, or NULL */
};

/* Number of recorded models. */
size_t boundary_count(void);

/* Loads model i; fails the test when a file is missing. Free with boundary_free(). */
void boundary_load(struct boundary *b, size_t i);
void boundary_free(struct boundary *b);

#endif
