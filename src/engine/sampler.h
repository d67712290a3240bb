/* SPDX-License-Identifier: MIT
 * sampler.h - picks the next token from logits in integers: a seed gives the same text anywhere.
 *
 * Source: the specification of exact-1, section 12.
 */
#ifndef ISO_ENGINE_SAMPLER_H
#define ISO_ENGINE_SAMPLER_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct iso_sampler_bias {
    int32_t id;
    float bias; /* added to the logit */
};

struct iso_sampler_kernels; /* sampler_weights.h */

struct iso_sampler_params {
    float temperature; /* 0: greedy; else 2^-20 .. 2^20 */
    uint32_t top_k;    /* tokens kept; 0: all */
    float top_p;       /* (0, 1]; 1: off */
    float min_p;       /* [0, 1]; 0: off */
    float repetition;  /* 2^-20 .. 2^20; 1: off */
    float frequency;   /* -2^20 .. 2^20; 0: off */
    float presence;    /* -2^20 .. 2^20; 0: off */
    uint64_t seed;
    const struct iso_sampler_bias *bias; /* [n_bias], each id at most once; |bias| <= 2^60 */
    size_t n_bias;
    const int32_t *banned; /* [n_banned] ids that are never picked */
    size_t n_banned;
    const struct iso_sampler_kernels *kernels; /* NULL: the fastest that this machine runs */
};

/* Everything off but the draw itself. */
#define ISO_SAMPLER_PLAIN                                                                          \
    {                                                                                              \
        .temperature = 1.0f, .top_p = 1.0f, .repetition = 1.0f                                     \
    }

struct iso_sampler; /* owned by one thread at a time */

/* Checks p and allocates all that picking needs; bias and banned are copied.
 *
 * Needs:  1 <= n_vocab < 2^31.
 * Owner:  *out is owned by the caller, free with iso_sampler_free().
 * Errors: ISO_E_ARG naming the parameter, its value and its range, an id outside the vocabulary,
 *         an id with two biases, or that every token is banned; ISO_E_NOMEM. */
enum iso_err iso_sampler_new(struct iso_sampler **out,
                             const struct iso_sampler_params *p,
                             size_t n_vocab) ISO_NODISCARD;
void iso_sampler_free(struct iso_sampler *s);

/* Counts a token of the prompt or the answer for the penalties. Needs: 0 <= id < n_vocab (assert).
 */
void iso_sampler_seen(struct iso_sampler *s, int32_t id);

/* Forgets all counted tokens: after a rewind the caller counts the ones that are left. */
void iso_sampler_forget(struct iso_sampler *s);

/* The token for position (the index of the token being chosen). Allocates nothing, never fails.
 *
 * Shapes:  logits [n_vocab] f32, all of magnitude below 2^100 (the logits operation reports
 * others). Numbers: equal results for equal logits, parameters, counted tokens and position on any
 * machine. */
int32_t iso_sampler_pick(struct iso_sampler *s, const float *logits, uint64_t position);

#endif
