/* SPDX-License-Identifier: MIT
 * chat_model.h - messages of a conversation and the ids that a model's template makes of them. */
#ifndef ISO_CLI_CHAT_MODEL_H
#define ISO_CLI_CHAT_MODEL_H

#include <jansson.h>

#include "base/buf.h"
#include "engine/engine.h"
#include "tokenizer/chat.h"

struct iso_conversation {
    struct iso_template *tmpl; /* NULL: the model has none */
    json_t *messages;
};

/* An empty conversation for the model of e, with a system message when system is not NULL. */
enum iso_err iso_conversation_init(struct iso_conversation *c, const iso_engine *e,
                                   const char *system) ISO_NODISCARD;
void iso_conversation_deinit(struct iso_conversation *c);

/* Appends a message. */
void iso_conversation_add(struct iso_conversation *c, const char *role, const char *text, size_t len);

/* The prompt for the next answer. Errors: ISO_E_UNSUPPORTED without a template; those of rendering. */
enum iso_err iso_conversation_ids(struct iso_buf *ids, const struct iso_conversation *c,
                                  const iso_engine *e) ISO_NODISCARD;

#endif
