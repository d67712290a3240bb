/* SPDX-License-Identifier: MIT
 * chat.h - messages to token ids: the template's own control tokens count, those in contents do not.
 *
 * A template and the messages' contents end up in one text, so a content that spells a control token
 * would become one. Before rendering, such spellings are replaced by private-use markers; after it
 * they are put back and tokenized without control tokens.
 */
#ifndef ISO_TOKENIZER_CHAT_H
#define ISO_TOKENIZER_CHAT_H

#include "base/buf.h"
#include "base/err.h"
#include "format/gguf.h"
#include "tokenizer/template.h"
#include "tokenizer/tokenizer.h"

#define ISO_CHAT_MAX_TEXT (64u << 20) /* bytes of a rendered conversation */

/* The chat template of a model file; *out is NULL when it has none.
 * Owner: free with iso_template_free(). Errors: those of iso_template_new(). */
enum iso_err iso_chat_template(struct iso_template **out, const struct iso_gguf *g) ISO_NODISCARD;

/* Appends the ids (i32) of a rendered conversation to ids: exactly one BOS where the model wants one.
 * args->bos_token and eos_token are taken from the tokenizer when NULL.
 * Errors: those of iso_messages_check(), iso_template_render() and iso_tokenize(). */
enum iso_err iso_chat_tokenize(struct iso_buf *ids, const struct iso_tokenizer *t,
                               const struct iso_template *tmpl, const struct iso_template_args *args) ISO_NODISCARD;

/* Text of the token id as a NUL-terminated copy, or NULL for -1. Owner: free(). */
char *iso_chat_token(const struct iso_tokenizer *t, int32_t id);

#endif
