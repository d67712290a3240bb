/* SPDX-License-Identifier: MIT
 * chat.c - renders messages and tokenizes the result without letting contents make control tokens. */
#include "tokenizer/chat.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Marker: U+F8FE, a decimal index into the table of hidden spellings, U+F8FF. Private use, no white
 * space, so that trim and the like leave it alone. A content that already holds the first character
 * has it hidden too, so no marker can be forged. */
#define OPEN "\xEF\xA3\xBE"
#define CLOSE "\xEF\xA3\xBF"
#define MARK_LEN 3

struct hider {
    const struct iso_tokenizer *t;
    int32_t *control;   /* ids of control tokens */
    size_t n_control;
    char **hidden;      /* spellings, by index */
    size_t n_hidden;
};

enum iso_err iso_chat_template(struct iso_template **out, const struct iso_gguf *g)
{
    static const char key[] = "tokenizer.chat_template";
    *out = NULL;
    if (!iso_gguf_has(g, key)) return ISO_OK;
    struct iso_gguf_str s;
    ISO_TRY(iso_gguf_str(&s, g, key));
    return iso_template_new(out, s.s, s.len);
}

char *iso_chat_token(const struct iso_tokenizer *t, int32_t id)
{
    size_t len = 0;
    const char *s = id < 0 ? NULL : iso_tokenizer_token_text(t, id, &len);
    return s ? iso_xstrndup(s, len) : NULL;
}

static void hider_init(struct hider *h, const struct iso_tokenizer *t)
{
    *h = (struct hider){.t = t};
    const uint32_t n = iso_tokenizer_n_vocab(t);
    h->control = iso_xalloc(n, sizeof(*h->control));
    for (uint32_t i = 0; i < n; i++) {
        if (iso_tokenizer_is_control(t, (int32_t)i)) h->control[h->n_control++] = (int32_t)i;
    }
}

static void hider_deinit(struct hider *h)
{
    for (size_t i = 0; i < h->n_hidden; i++) free(h->hidden[i]);
    free(h->hidden);
    free(h->control);
}

/* Length of the longest control token (or marker character) that starts at p, 0 for none. */
static size_t spelling_at(const struct hider *h, const char *p, size_t left)
{
    size_t best = left >= MARK_LEN && memcmp(p, OPEN, MARK_LEN) == 0 ? MARK_LEN : 0;
    for (size_t i = 0; i < h->n_control; i++) {
        size_t len = 0;
        const char *s = iso_tokenizer_token_text(h->t, h->control[i], &len);
        if (len > best && len <= left && memcmp(s, p, len) == 0) best = len;
    }
    return best;
}

static enum iso_err hide_text(struct hider *h, json_t *string)
{
    const char *s = json_string_value(string);
    const size_t n = json_string_length(string);
    struct iso_buf b;
    iso_buf_init(&b, ISO_CHAT_MAX_TEXT);
    enum iso_err err = ISO_OK;
    bool changed = false;
    for (size_t i = 0; i < n && err == ISO_OK;) {
        const size_t len = spelling_at(h, s + i, n - i);
        if (len == 0) {
            err = iso_buf_append(&b, s + i++, 1);
            continue;
        }
        h->hidden = iso_xrealloc(h->hidden, h->n_hidden + 1, sizeof(*h->hidden));
        h->hidden[h->n_hidden] = iso_xstrndup(s + i, len);
        err = iso_buf_printf(&b, OPEN "%zu" CLOSE, h->n_hidden++);
        changed = true;
        i += len;
    }
    if (err == ISO_OK && changed) (void)json_string_setn(string, (const char *)b.data, b.len);
    iso_buf_deinit(&b);
    return err;
}

/* Every string below v, keys aside: contents, reasoning, tool arguments, tool descriptions. */
static enum iso_err hide_value(struct hider *h, json_t *v)
{
    if (json_is_string(v)) return hide_text(h, v);
    if (json_is_array(v)) {
        for (size_t i = 0; i < json_array_size(v); i++) ISO_TRY(hide_value(h, json_array_get(v, i)));
    }
    if (json_is_object(v)) {
        const char *key = NULL;
        json_t *item = NULL;
        json_object_foreach(v, key, item) ISO_TRY(hide_value(h, item));
    }
    return ISO_OK;
}

/* A run of text without markers, then the hidden spelling, and so on. */
static enum iso_err tokenize_shown(struct iso_buf *ids, const struct hider *h, const char *text,
                                   size_t len, unsigned flags)
{
    const char *end = text + len;
    while (text < end) {
        const char *mark = memmem(text, (size_t)(end - text), OPEN, MARK_LEN);
        const char *stop = mark ? mark : end;
        if (stop > text) {
            ISO_TRY(iso_tokenize(ids, h->t, text, (size_t)(stop - text), flags));
            flags &= ~(unsigned)ISO_TOKENIZE_BOS;
        }
        if (mark == NULL) break;
        char *after = NULL;
        const size_t i = strtoul(mark + MARK_LEN, &after, 10);
        if (i >= h->n_hidden) ISO_FAIL(ISO_E_TEMPLATE, "the template broke up a message's text");
        ISO_TRY(iso_tokenize(ids, h->t, h->hidden[i], strlen(h->hidden[i]), 0));
        text = after + MARK_LEN;
    }
    return ISO_OK;
}

static unsigned bos_flag(const struct iso_tokenizer *t, const char *bos, const char *text)
{
    if (!iso_tokenizer_adds_bos(t) || bos == NULL) return 0;
    return strncmp(text, bos, strlen(bos)) == 0 ? 0 : ISO_TOKENIZE_BOS;
}

static enum iso_err render_hidden(struct iso_buf *ids, struct hider *h,
                                  const struct iso_template *tmpl, struct iso_template_args *args)
{
    ISO_TRY(hide_value(h, args->messages));
    if (args->tools) ISO_TRY(hide_value(h, args->tools));
    struct iso_buf text;
    iso_buf_init(&text, ISO_CHAT_MAX_TEXT);
    enum iso_err err = iso_template_render(&text, tmpl, args);
    if (err == ISO_OK) {
        const unsigned flags =
            ISO_TOKENIZE_SPECIAL | bos_flag(h->t, args->bos_token, (const char *)text.data);
        err = tokenize_shown(ids, h, (const char *)text.data, text.len, flags);
    }
    iso_buf_deinit(&text);
    return err;
}

enum iso_err iso_chat_tokenize(struct iso_buf *ids, const struct iso_tokenizer *t,
                               const struct iso_template *tmpl, const struct iso_template_args *args)
{
    struct hider h;
    hider_init(&h, t);
    struct iso_template_args a = *args;
    char *bos = iso_chat_token(t, iso_tokenizer_bos(t));
    char *eos = iso_chat_token(t, iso_tokenizer_eos(t));
    if (a.bos_token == NULL) a.bos_token = bos;
    if (a.eos_token == NULL) a.eos_token = eos;
    /* Copies: the caller's messages stay as they are. */
    a.messages = json_deep_copy(args->messages);
    a.tools = args->tools ? json_deep_copy(args->tools) : NULL;
    enum iso_err err = iso_messages_check(a.messages);
    const size_t before = ids->len;
    if (err == ISO_OK) err = render_hidden(ids, &h, tmpl, &a);
    if (err != ISO_OK) ids->len = before;
    json_decref(a.messages);
    json_decref(a.tools);
    free(bos);
    free(eos);
    hider_deinit(&h);
    return err;
}
