/* SPDX-License-Identifier: MIT
 * bpe.h - byte-level byte-pair encoding: words as bytes in an alphabet of 256 characters. */
#ifndef ISO_TOKENIZER_BPE_H
#define ISO_TOKENIZER_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/digest.h"
#include "base/err.h"
#include "format/gguf.h"
#include "tokenizer/merge.h"
#include "tokenizer/vocab.h"

#define ISO_BPE_MAX_MERGES (1u << 23) /* the largest public list has 515,000 */

struct iso_bpe_merge {
    uint32_t left, right; /* token ids */
    uint32_t rank;        /* line in the list; lower goes first */
    uint32_t id_plus;     /* id of the result + 1; 0 is an empty slot */
};

/* Immutable after init; borrows the vocabulary. */
struct iso_bpe {
    const struct iso_vocab *vocab;
    struct iso_bpe_merge *slot; /* [mask + 1], linear probing */
    uint32_t mask;
    int32_t byte_id[256]; /* token of each byte, else its <0xNN>, else -1 */
};

/* Reads tokenizer.ggml.merges; adds the list to the digest h. Free with iso_bpe_deinit(), also
 * after a failure. Errors: ISO_E_FORMAT naming the merge (no space, a part or the result is no
 * token), ISO_E_LIMIT, ISO_E_NOMEM. */
enum iso_err iso_bpe_init(struct iso_bpe *b,
                          struct iso_hasher *h,
                          const struct iso_vocab *v,
                          const struct iso_gguf *g) ISO_NODISCARD;
void iso_bpe_deinit(struct iso_bpe *b);

/* Appends the ids of one word. whole: take the word as one token if it is one.
 * Errors: ISO_E_FORMAT a byte without a token; ISO_E_LIMIT, ISO_E_NOMEM. */
enum iso_err iso_bpe_word(struct iso_buf *ids,
                          struct iso_merge *scratch,
                          const struct iso_bpe *b,
                          bool whole,
                          const char *word,
                          size_t len) ISO_NODISCARD;

/* Appends the bytes that a token text stands for. Characters outside the alphabet (of tokens that
 * somebody added by hand) stay as they are. ISO_E_LIMIT. */
enum iso_err iso_bpe_decode(struct iso_buf *out, const uint8_t *text, size_t len) ISO_NODISCARD;

#endif
