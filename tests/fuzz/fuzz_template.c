/* SPDX-License-Identifier: MIT
 * fuzz_template.c - arbitrary bytes as a chat template: load, probe, render.
 *
 * The bytes up to the first NUL are the template; what follows, when it is JSON, becomes the
 * messages. Properties: no sanitizer report, a typed error or success, output untouched on failure.
 */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/template.h"

#define OUT_MAX (1u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static json_t *messages_from(const char *text, size_t len)
{
    json_t *v = json_loadb(text, len, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, NULL);
    if (v != NULL && iso_messages_check(v) == ISO_OK) return v;
    json_decref(v);
    return json_pack("[{s:s, s:s}, {s:s, s:[{s:s, s:s}]}, {s:s, s:n}]", "role", "user", "content",
                     "a b\xc3\xa9\n'\"<x>", "role", "assistant", "content", "type", "text", "text",
                     "y", "role", "tool", "content");
}

static void render(const struct iso_template *t, json_t *messages, bool exact)
{
    struct iso_template_args args = {.messages = messages,
                                     .bos_token = "<s>",
                                     .add_generation_prompt = true,
                                     .exact_messages = exact};
    struct iso_buf b;
    iso_buf_init(&b, OUT_MAX);
    if (iso_buf_puts(&b, "keep") != ISO_OK) abort();
    const enum iso_err err = iso_template_render(&b, t, &args);
    if (err != ISO_OK && err != ISO_E_TEMPLATE && err != ISO_E_LIMIT) abort();
    if (err != ISO_OK && (b.len != 4 || memcmp(b.data, "keep", 4) != 0)) abort();
    iso_buf_deinit(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    const size_t len = size ? strnlen(text, size) : 0;
    struct iso_template *t = NULL;
    const enum iso_err err = iso_template_new(&t, text, len);
    if (err != ISO_OK) {
        if (err != ISO_E_FORMAT && err != ISO_E_UNSUPPORTED && err != ISO_E_LIMIT) abort();
        return 0;
    }
    json_t *messages =
        len + 1 < size ? messages_from(text + len + 1, size - len - 1) : messages_from("", 0);
    if (messages != NULL) {
        render(t, messages, true);
        render(t, messages, false);
    }
    json_decref(messages);
    iso_template_free(t);
    return 0;
}
