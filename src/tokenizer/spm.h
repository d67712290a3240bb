/* SPDX-License-Identifier: MIT
 * spm.h - SentencePiece style encoding: characters merged by the score of the result, bytes for
 * characters that are no token. */
#ifndef ISO_TOKENIZER_SPM_H
#define ISO_TOKENIZER_SPM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "tokenizer/merge.h"
#include "tokenizer/vocab.h"

/* Immutable after init; borrows the vocabulary. */
struct iso_spm {
    const struct iso_vocab *vocab;
    int32_t byte_id[256]; /* <0xNN>, else the one-byte token, else -1 */
    bool joins[256];      /* some token has this byte right before a U+2581 */
};

/* Errors: ISO_E_FORMAT without scores. */
enum iso_err iso_spm_init(struct iso_spm *s, const struct iso_vocab *v) ISO_NODISCARD;

/* Appends the ids of text [len], spaces written as U+2581; space: with one more in front.
 * escaped is scratch. Needs: valid UTF-8.
 * Errors: ISO_E_FORMAT a byte without a token; ISO_E_LIMIT, ISO_E_NOMEM. */
enum iso_err iso_spm_text(struct iso_buf *ids,
                          struct iso_merge *scratch,
                          struct iso_buf *escaped,
                          const struct iso_spm *s,
                          bool space,
                          const char *text,
                          size_t len) ISO_NODISCARD;

/* Appends a token text with U+2581 as spaces. ISO_E_LIMIT. */
enum iso_err iso_spm_decode(struct iso_buf *out, const uint8_t *text, size_t len) ISO_NODISCARD;

/* Value of the byte token with this text (<0xNN>), or -1. */
int iso_spm_byte(const uint8_t *text, size_t len);

#endif
