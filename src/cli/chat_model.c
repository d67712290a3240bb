/* SPDX-License-Identifier: MIT
 * chat_model.c - conversations. */
#include "cli/chat_model.h"

#include <string.h>

#include "base/clock.h"

enum iso_err iso_conversation_init(struct iso_conversation *c, const iso_engine *e,
                                   const char *system)
{
    *c = (struct iso_conversation){.messages = json_array()};
    if (system) iso_conversation_add(c, "system", system, strlen(system));
    return iso_chat_template(&c->tmpl, e->file);
}

void iso_conversation_deinit(struct iso_conversation *c)
{
    iso_template_free(c->tmpl);
    json_decref(c->messages);
    *c = (struct iso_conversation){0};
}

void iso_conversation_add(struct iso_conversation *c, const char *role, const char *text, size_t len)
{
    json_t *m = json_object();
    (void)json_object_set_new(m, "role", json_string(role));
    (void)json_object_set_new(m, "content", json_stringn(text, len));
    (void)json_array_append_new(c->messages, m);
}

enum iso_err iso_conversation_ids(struct iso_buf *ids, const struct iso_conversation *c,
                                  const iso_engine *e)
{
    if (c->tmpl == NULL) {
        ISO_FAIL(ISO_E_UNSUPPORTED, "this model has no chat template: use isobit run --raw");
    }
    const struct iso_template_args args = {
        .messages = c->messages, .add_generation_prompt = true, .now = iso_clock_wall_s()};
    return iso_chat_tokenize(ids, e->tokenizer, c->tmpl, &args);
}
