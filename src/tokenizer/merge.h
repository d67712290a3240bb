/* SPDX-License-Identifier: MIT
 * merge.h - joins the best pair of neighbouring symbols until none can be joined.
 *
 * Both kinds of tokenizer are this loop; they differ in what makes a pair good. A heap holds the
 * pairs, so a text of n symbols takes O(n log n) and no input is quadratic.
 */
#ifndef ISO_TOKENIZER_MERGE_H
#define ISO_TOKENIZER_MERGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define ISO_SYMBOL_NONE UINT32_MAX /* end of the list */

struct iso_symbol {
    uint32_t pos; /* first byte in the text */
    uint32_t len; /* bytes; 0 when it went into its left neighbour */
    int32_t id;   /* token, -1 as long as nobody knows */
    uint32_t prev, next;
};

struct iso_merge_pair {
    uint64_t
        key; /* priority in the upper half, index of the left symbol in the lower: least first */
    uint32_t len; /* bytes of both when it was found: tells whether it still is */
    int32_t id;   /* token that it makes */
};

/* Scratch memory of one caller, reused from word to word; all zero at first. */
struct iso_merge {
    struct iso_symbol *symbol; /* [n_symbols]; number 0 never disappears */
    size_t n_symbols, cap_symbols;
    struct iso_merge_pair *heap;
    size_t n_heap, cap_heap;
};

/* Can these neighbours be joined? Then *priority (lower is better; on a tie the left pair wins) and
 * the *id of the result. */
typedef bool iso_merge_find(const void *ctx,
                            const struct iso_symbol *left,
                            const struct iso_symbol *right,
                            uint32_t *priority,
                            int32_t *id);

void iso_merge_deinit(struct iso_merge *m);

/* Makes room for n symbols and sets n_symbols to 0. ISO_E_NOMEM. */
enum iso_err iso_merge_begin(struct iso_merge *m, size_t n) ISO_NODISCARD;

/* Appends a symbol; only as many as iso_merge_begin() was told. */
void iso_merge_add(struct iso_merge *m, uint32_t pos, uint32_t len, int32_t id);

/* Joins. Afterwards the symbols are the list from 0 along next. ISO_E_NOMEM. */
enum iso_err
iso_merge_run(struct iso_merge *m, iso_merge_find *find, const void *ctx) ISO_NODISCARD;

/* Grows *p of *cap elements of size bytes to at least need elements, keeping the first keep.
 * ISO_E_NOMEM leaves all as it was. */
enum iso_err iso_merge_grow(
    void **p, size_t *cap, size_t need, size_t keep, size_t size, const char *what) ISO_NODISCARD;

#endif
