/* SPDX-License-Identifier: MIT
 * sampler_select.h - prefixes of a vocabulary in the order (weight descending, id ascending).
 *
 * Every filter of the sampler keeps a prefix of that order, so none needs a sorted list: a filter
 * is the question "where does the prefix end whose count or weight first reaches a target", and the
 * draw is the same question once more. Answered by partial selection: a few heavy tokens first,
 * then, only if the target lies beyond them, a table of weight classes.
 */
#ifndef ISO_ENGINE_SAMPLER_SELECT_H
#define ISO_ENGINE_SAMPLER_SELECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ISO_SELECT_CLASSES 1984 /* classes of weights: 31 powers of two, 64 steps each */

/* A token as one integer: weight in the high half, ~id in the low, so that "greater" is "earlier".
 */
struct iso_select {
    const uint32_t *w;         /* [n] weights below 2^31; their sum fits 63 bits */
    const uint32_t *block_max; /* [n / 64 rounded up] */
    size_t n;
    uint64_t *head; /* [n + 64] room for tokens as integers; not sorted */
    size_t n_head;  /* tokens that are at the front of head: all with w >= head_from */
    uint32_t head_from;
    uint64_t head_weight;
    bool has_classes; /* whether the tables below are filled */
    uint64_t class_weight[ISO_SELECT_CLASSES];
    uint32_t class_count[ISO_SELECT_CLASSES];
};

/* Where a prefix ends. */
struct iso_cut {
    uint32_t id;     /* last token of the prefix */
    uint64_t weight; /* sum of the prefix */
};

/* Begins with a new set of weights; want is how many heavy tokens to expect (top-k, or a guess). */
void iso_select_begin(struct iso_select *s, size_t want);

/* The shortest prefix with sum of weights >= target, 1 <= target <= sum of all weights. */
struct iso_cut iso_select_by_weight(struct iso_select *s, uint64_t target);

/* Weight of the prefix of `count` tokens, or of all tokens when fewer have a weight. count >= 1. */
uint64_t iso_select_by_count(struct iso_select *s, uint64_t count);

/* Sum of all weights >= floor; floor >= 1. */
uint64_t iso_select_weight_from(struct iso_select *s, uint32_t floor);

#endif
