/* SPDX-License-Identifier: MIT
 * pretokenizer.h - cuts a text into the words within which byte-level BPE merges (PCRE2).
 *
 * Letters and numbers are those of the Unicode tables in the PCRE2 library: characters that were
 * assigned later than its version count as symbols. Ids travel in a hand-off, so peers with other
 * tables still agree.
 */
#ifndef ISO_TOKENIZER_PRETOKENIZER_H
#define ISO_TOKENIZER_PRETOKENIZER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct iso_pretokenizer; /* immutable after new; any thread */

/* Looks a value of tokenizer.ggml.pre up and compiles its expressions.
 *
 * Owner:  *out is owned by the caller, free with iso_pretokenizer_free().
 * Errors: ISO_E_UNSUPPORTED naming an unknown pre-tokenizer; ISO_E_NOMEM. */
enum iso_err
iso_pretokenizer_new(struct iso_pretokenizer **out, const char *name, size_t len) ISO_NODISCARD;
void iso_pretokenizer_free(struct iso_pretokenizer *p);

/* The name that all aliases share: "smollm", "gpt-2", "llama3", "qwen2" or "gpt-4o". */
const char *iso_pretokenizer_name(const struct iso_pretokenizer *p);

/* Does a whole word that is a token become it without merging? */
bool iso_pretokenizer_whole_words(const struct iso_pretokenizer *p);

/* Is BOS added when the file does not say (tokenizer.ggml.add_bos_token)? */
bool iso_pretokenizer_adds_bos(const struct iso_pretokenizer *p);

/* Called with each word in the order of the text; never empty. */
typedef enum iso_err iso_pretokenizer_word(void *ctx, const char *word, size_t len);

/* Cuts text [len]. Needs: valid UTF-8. Errors: those of word; ISO_E_NOMEM; ISO_E_LIMIT when PCRE2
 * gives up (its message). */
enum iso_err iso_pretokenizer_split(const struct iso_pretokenizer *p,
                                    const char *text,
                                    size_t len,
                                    iso_pretokenizer_word *word,
                                    void *ctx) ISO_NODISCARD;

#endif
