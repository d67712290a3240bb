/* SPDX-License-Identifier: MIT
 * special.h - cuts a text at the tokens that are matched as a whole: control and user-defined ones.
 *
 * Where matches overlap the longest wins wherever it begins, then the lower id, then the one
 * further left: the order of llama.cpp, which searches for one token after the other, longest
 * first.
 */
#ifndef ISO_TOKENIZER_SPECIAL_H
#define ISO_TOKENIZER_SPECIAL_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "tokenizer/vocab.h"

/* Immutable after init; borrows the vocabulary. */
struct iso_special {
    const struct iso_vocab *vocab;
    uint32_t *id; /* [n], sorted by text */
    uint32_t n;
    uint32_t first[257]; /* ids whose text begins with byte b are first[b] .. first[b + 1] - 1 */
};

/* Does this token belong to the set? */
typedef bool iso_special_wanted(const struct iso_vocab *v, uint32_t id);

/* Free with iso_special_deinit(), also after a failure. ISO_E_NOMEM. */
enum iso_err iso_special_init(struct iso_special *s,
                              const struct iso_vocab *v,
                              iso_special_wanted *wanted) ISO_NODISCARD;
void iso_special_deinit(struct iso_special *s);

/* Called in the order of the text: id >= 0 is a token, id -1 all of the text between two tokens,
 * never empty. */
typedef enum iso_err iso_special_fragment(void *ctx, int32_t id, const char *text, size_t len);

/* Cuts text [len]. Errors: those of fragment; ISO_E_NOMEM. */
enum iso_err iso_special_split(const struct iso_special *s,
                               const char *text,
                               size_t len,
                               iso_special_fragment *fragment,
                               void *ctx) ISO_NODISCARD;

#endif
