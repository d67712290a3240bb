/* SPDX-License-Identifier: MIT
 * tokenizer.c - text to ids, ids to bytes, and the questions about single tokens. */
#include "tokenizer/tokenizer.h"

#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "tokenizer/merge.h"
#include "tokenizer/tokenizer_impl.h"
#include "tokenizer/utf8_stream.h"

/* Scratch and state of one call of iso_tokenize(). */
struct run {
    const struct iso_tokenizer *t;
    struct iso_buf *ids;
    struct iso_merge merge;
    struct iso_buf escaped; /* a fragment with U+2581 for spaces */
};

static enum iso_err on_word(void *ctx, const char *word, size_t len)
{
    struct run *r = ctx;
    return iso_bpe_word(r->ids, &r->merge, &r->t->bpe, iso_pretokenizer_whole_words(r->t->pre),
                        word, len);
}

static enum iso_err on_fragment(void *ctx, int32_t id, const char *text, size_t len)
{
    struct run *r = ctx;
    if (id >= 0) return iso_buf_append(r->ids, &id, sizeof(id));
    if (!r->t->is_spm) return iso_pretokenizer_split(r->t->pre, text, len, on_word, r);
    /* A fragment is at the begin of the text or behind a special token: each gets the space. */
    return iso_spm_text(r->ids, &r->merge, &r->escaped, &r->t->spm, r->t->adds_space, text, len);
}

static enum iso_err check_text(const char *text, size_t len)
{
    if (len > ISO_TOKENIZE_MAX_TEXT) {
        ISO_FAIL(ISO_E_LIMIT, "text of %zu bytes, limit %u", len, ISO_TOKENIZE_MAX_TEXT);
    }
    const size_t valid = iso_utf8_valid_len(text, len);
    if (valid < len) {
        ISO_FAIL(ISO_E_FORMAT, "text is not UTF-8: byte 0x%02x at offset %zu",
                 (unsigned)(uint8_t)text[valid], valid);
    }
    return ISO_OK;
}

/* The BOS before the ids that begin at offset first, unless they begin with one. */
static enum iso_err add_bos(struct iso_buf *ids, size_t first, int32_t bos)
{
    int32_t id = -1;
    if (ids->len > first) memcpy(&id, ids->data + first, sizeof(id));
    if (id == bos) {
        iso_log(ISO_LOG_WARN, "tokenizer", "bos=%d text_begins_with_bos=true kept=1", (int)bos);
        return ISO_OK;
    }
    ISO_TRY(iso_buf_append(ids, &bos, sizeof(bos)));
    memmove(ids->data + first + sizeof(bos), ids->data + first, ids->len - first - sizeof(bos));
    memcpy(ids->data + first, &bos, sizeof(bos));
    return ISO_OK;
}

enum iso_err iso_tokenize(struct iso_buf *ids,
                          const struct iso_tokenizer *t,
                          const char *text,
                          size_t len,
                          unsigned flags)
{
    ISO_TRY(check_text(text, len));
    const size_t first = ids->len;
    const struct iso_special *special =
        flags & ISO_TOKENIZE_SPECIAL ? &t->with_special : &t->always;
    struct run r = {.t = t, .ids = ids};
    iso_buf_init(&r.escaped, 3 * (len + 1));
    enum iso_err err = iso_special_split(special, text, len, on_fragment, &r);
    if (err == ISO_OK && (flags & ISO_TOKENIZE_BOS) && t->adds_bos)
        err = add_bos(ids, first, t->bos);
    if (err != ISO_OK) {
        ids->len = first;
        ids->data[first] = '\0';
    }
    iso_buf_deinit(&r.escaped);
    iso_merge_deinit(&r.merge);
    return err;
}

static bool is_token(const struct iso_tokenizer *t, int32_t id)
{
    return id >= 0 && (uint32_t)id < t->vocab.n;
}

enum iso_err
iso_tokenizer_piece(struct iso_buf *out, const struct iso_tokenizer *t, int32_t id, bool special)
{
    if (!is_token(t, id)) {
        ISO_FAIL(ISO_E_ARG, "token %d, the vocabulary has %u", (int)id, t->vocab.n);
    }
    size_t len = 0;
    const uint8_t *text = iso_vocab_text(&t->vocab, (uint32_t)id, &len);
    switch (t->vocab.type[id]) {
    case ISO_TOKEN_CONTROL:
    case ISO_TOKEN_UNKNOWN:
        return special ? iso_buf_append(out, text, len) : ISO_OK;
    case ISO_TOKEN_USER_DEFINED:
        return iso_buf_append(out, text, len);
    case ISO_TOKEN_BYTE: {
        const int byte = iso_spm_byte(text, len);
        return byte >= 0 ? iso_buf_u8(out, (uint8_t)byte) : iso_buf_append(out, text, len);
    }
    case ISO_TOKEN_NORMAL:
        return t->is_spm ? iso_spm_decode(out, text, len) : iso_bpe_decode(out, text, len);
    default: /* unused and undefined tokens stand for nothing */
        return ISO_OK;
    }
}

const char *iso_tokenizer_token_text(const struct iso_tokenizer *t, int32_t id, size_t *len)
{
    if (!is_token(t, id)) return NULL;
    return (const char *)iso_vocab_text(&t->vocab, (uint32_t)id, len);
}

int32_t iso_tokenizer_find(const struct iso_tokenizer *t, const char *text, size_t len)
{
    return iso_vocab_find(&t->vocab, text, len);
}

uint32_t iso_tokenizer_n_vocab(const struct iso_tokenizer *t)
{
    return t->vocab.n;
}

int32_t iso_tokenizer_bos(const struct iso_tokenizer *t)
{
    return t->bos;
}

int32_t iso_tokenizer_eos(const struct iso_tokenizer *t)
{
    return t->eos;
}

int32_t iso_tokenizer_eot(const struct iso_tokenizer *t)
{
    return t->eot;
}

int32_t iso_tokenizer_eom(const struct iso_tokenizer *t)
{
    return t->eom;
}

int32_t iso_tokenizer_unk(const struct iso_tokenizer *t)
{
    return t->unk;
}

int32_t iso_tokenizer_pad(const struct iso_tokenizer *t)
{
    return t->pad;
}

bool iso_tokenizer_adds_bos(const struct iso_tokenizer *t)
{
    return t->adds_bos;
}

bool iso_tokenizer_adds_space(const struct iso_tokenizer *t)
{
    return t->adds_space;
}

bool iso_tokenizer_is_eog(const struct iso_tokenizer *t, int32_t id)
{
    return is_token(t, id) && t->eog[id] != 0;
}

bool iso_tokenizer_is_control(const struct iso_tokenizer *t, int32_t id)
{
    return is_token(t, id) && t->vocab.type[id] == ISO_TOKEN_CONTROL;
}

void iso_tokenizer_digest(struct iso_digest *out, const struct iso_tokenizer *t)
{
    *out = t->digest;
}
