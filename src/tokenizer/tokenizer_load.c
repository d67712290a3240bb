/* SPDX-License-Identifier: MIT
 * tokenizer_load.c - builds a tokenizer from the metadata of a model file. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_impl.h"

static const char KEY_MODEL[] = "tokenizer.ggml.model";
static const char KEY_PRE[] = "tokenizer.ggml.pre";

static bool equals(struct iso_gguf_str s, const char *text)
{
    return s.len == strlen(text) && memcmp(s.s, text, s.len) == 0;
}

/* The value of a key, "none" where there is no such key. */
static enum iso_err get_name(struct iso_gguf_str *out, const struct iso_gguf *g, const char *key)
{
    *out = (struct iso_gguf_str){.s = "none", .len = 4};
    return iso_gguf_has(g, key) ? iso_gguf_str(out, g, key) : ISO_OK;
}

bool iso_tokenizer_is_none(const struct iso_gguf *g)
{
    struct iso_gguf_str model;
    return get_name(&model, g, KEY_MODEL) == ISO_OK && (equals(model, "no_vocab") || equals(model, "none"));
}

static enum iso_err read_kind(struct iso_tokenizer *t, const struct iso_gguf *g)
{
    struct iso_gguf_str model;
    struct iso_gguf_str pre;
    ISO_TRY(get_name(&model, g, KEY_MODEL));
    ISO_TRY(get_name(&pre, g, KEY_PRE));
    if (iso_tokenizer_is_none(g)) {
        ISO_FAIL(ISO_E_UNSUPPORTED, "%s: the file has no tokenizer (%s is %.*s)", iso_gguf_path(g),
                 KEY_MODEL, (int)ISO_MIN(model.len, 64u), model.s);
    }
    t->is_spm = equals(model, "llama");
    if (t->is_spm) {
        /* This kind has no pre-tokenizer; converters write "default" or nothing. */
        if (equals(pre, "default") || equals(pre, "none")) return ISO_OK;
        ISO_FAIL(ISO_E_UNSUPPORTED, "pre-tokenizer %.*s not supported with tokenizer model llama",
                 (int)ISO_MIN(pre.len, 64u), pre.s);
    }
    if (!equals(model, "gpt2")) {
        ISO_FAIL(ISO_E_UNSUPPORTED, "tokenizer model %.*s (pre-tokenizer %.*s) not supported",
                 (int)ISO_MIN(model.len, 64u), model.s, (int)ISO_MIN(pre.len, 64u), pre.s);
    }
    if (!iso_gguf_has(g, KEY_PRE)) {
        ISO_FAIL(ISO_E_UNSUPPORTED, "%s is missing: the pre-tokenizer is not guessed", KEY_PRE);
    }
    return iso_pretokenizer_new(&t->pre, pre.s, pre.len);
}

/* An id from the file, fallback if the key is missing, -1 if the fallback is no token. */
static enum iso_err read_id(int32_t *out,
                            const struct iso_tokenizer *t,
                            const struct iso_gguf *g,
                            const char *key,
                            int32_t fallback)
{
    *out = fallback >= 0 && (uint32_t)fallback < t->vocab.n ? fallback : -1;
    if (!iso_gguf_has(g, key)) return ISO_OK;
    uint32_t id = 0;
    ISO_TRY(iso_gguf_u32(&id, g, key));
    if (id >= t->vocab.n) {
        ISO_FAIL(ISO_E_FORMAT, "%s is %u, the vocabulary has %u tokens", key, id, t->vocab.n);
    }
    *out = (int32_t)id;
    return ISO_OK;
}

static enum iso_err read_ids(struct iso_tokenizer *t, const struct iso_gguf *g)
{
    /* Old files of the llama kind name none and mean these. */
    ISO_TRY(read_id(&t->bos, t, g, "tokenizer.ggml.bos_token_id", t->is_spm ? 1 : -1));
    ISO_TRY(read_id(&t->eos, t, g, "tokenizer.ggml.eos_token_id", t->is_spm ? 2 : -1));
    ISO_TRY(read_id(&t->unk, t, g, "tokenizer.ggml.unknown_token_id", t->is_spm ? 0 : -1));
    ISO_TRY(read_id(&t->eot, t, g, "tokenizer.ggml.eot_token_id", -1));
    ISO_TRY(read_id(&t->eom, t, g, "tokenizer.ggml.eom_token_id", -1));
    return read_id(&t->pad, t, g, "tokenizer.ggml.padding_token_id", -1);
}

static enum iso_err read_flags(struct iso_tokenizer *t, const struct iso_gguf *g)
{
    const bool bos = t->is_spm || iso_pretokenizer_adds_bos(t->pre);
    ISO_TRY(iso_gguf_bool_or(&t->adds_bos, g, "tokenizer.ggml.add_bos_token", bos));
    if (t->adds_bos && t->bos < 0) {
        ISO_FAIL(ISO_E_FORMAT, "the tokenizer adds BOS but tokenizer.ggml.bos_token_id is missing");
    }
    if (t->is_spm) {
        ISO_TRY(iso_gguf_bool_or(&t->adds_space, g, "tokenizer.ggml.add_space_prefix", true));
    }
    bool eos = false;
    ISO_TRY(iso_gguf_bool_or(&eos, g, "tokenizer.ggml.add_eos_token", false));
    if (eos) iso_log(ISO_LOG_INFO, "tokenizer", "add_eos_token=true ignored=prompts_do_not_end");
    bool squeeze = false;
    ISO_TRY(iso_gguf_bool_or(&squeeze, g, "tokenizer.ggml.remove_extra_whitespaces", false));
    if (t->is_spm && squeeze) {
        ISO_FAIL(ISO_E_UNSUPPORTED, "tokenizer.ggml.remove_extra_whitespaces not supported");
    }
    return ISO_OK;
}

static bool is_always(const struct iso_vocab *v, uint32_t id)
{
    return v->type[id] == ISO_TOKEN_USER_DEFINED && !iso_tokenizer_looks_control(v, id);
}

static bool is_special(const struct iso_vocab *v, uint32_t id)
{
    const uint8_t type = v->type[id];
    return type == ISO_TOKEN_USER_DEFINED || type == ISO_TOKEN_CONTROL || type == ISO_TOKEN_UNKNOWN;
}

static void hash_u32(struct iso_hasher *h, uint32_t value)
{
    uint8_t p[4];
    iso_put_u32(p, value);
    iso_hasher_update(h, p, sizeof(p));
}

static void hash_string(struct iso_hasher *h, const char *s)
{
    hash_u32(h, (uint32_t)strlen(s));
    iso_hasher_update(h, s, strlen(s));
}

/* Value i of an array that goes into the digest. */
typedef uint32_t value_at(const struct iso_vocab *v, uint32_t i);

static uint32_t length_at(const struct iso_vocab *v, uint32_t i)
{
    return v->start[i + 1] - v->start[i];
}

static uint32_t score_at(const struct iso_vocab *v, uint32_t i)
{
    const float plain = v->score[i] + 0.0f; /* -0 becomes 0 */
    uint32_t bits = 0;
    memcpy(&bits, &plain, sizeof(bits));
    return bits;
}

static void hash_values(struct iso_hasher *h, const struct iso_vocab *v, value_at *at)
{
    uint8_t chunk[4096];
    size_t n = 0;
    for (uint32_t i = 0; i < v->n; i++) {
        iso_put_u32(chunk + n, at(v, i));
        n += 4;
        if (n < sizeof(chunk)) continue;
        iso_hasher_update(h, chunk, n);
        n = 0;
    }
    iso_hasher_update(h, chunk, n);
}

/* The parts of the digest before the scores or merges. */
static void hash_vocab(struct iso_hasher *h, const struct iso_tokenizer *t)
{
    const struct iso_vocab *v = &t->vocab;
    static const char MAGIC[] = "isobit-tokenizer-1";
    iso_hasher_update(h, MAGIC, sizeof(MAGIC));
    hash_string(h, t->is_spm ? "llama" : "gpt2");
    hash_string(h, t->is_spm ? "none" : iso_pretokenizer_name(t->pre));
    hash_u32(h, v->n);
    hash_values(h, v, length_at);
    iso_hasher_update(h, v->text, v->start[v->n]);
    iso_hasher_update(h, v->type, v->n);
}

static void hash_flags(struct iso_hasher *h, const struct iso_tokenizer *t)
{
    const int32_t ids[] = {t->bos, t->eos, t->eot, t->eom, t->unk, t->pad};
    for (size_t i = 0; i < ISO_COUNT(ids); i++) hash_u32(h, (uint32_t)ids[i]);
    const uint8_t flags[] = {t->adds_bos, t->adds_space,
                             t->pre != NULL && iso_pretokenizer_whole_words(t->pre)};
    iso_hasher_update(h, flags, sizeof(flags));
}

static enum iso_err load(struct iso_tokenizer *t, struct iso_hasher *h, const struct iso_gguf *g)
{
    ISO_TRY(read_kind(t, g));
    ISO_TRY(iso_vocab_init(&t->vocab, g));
    ISO_TRY(read_ids(t, g));
    ISO_TRY(read_flags(t, g));
    hash_vocab(h, t);
    if (t->is_spm) {
        ISO_TRY(iso_spm_init(&t->spm, &t->vocab));
        hash_values(h, &t->vocab, score_at);
    } else {
        ISO_TRY(iso_bpe_init(&t->bpe, h, &t->vocab, g));
    }
    ISO_TRY(iso_special_init(&t->always, &t->vocab, is_always));
    ISO_TRY(iso_special_init(&t->with_special, &t->vocab, is_special));
    ISO_TRY(iso_tokenizer_find_eog(t));
    hash_flags(h, t);
    iso_hasher_final(h, &t->digest);
    return ISO_OK;
}

enum iso_err iso_tokenizer_new(struct iso_tokenizer **out, const struct iso_gguf *g)
{
    struct iso_tokenizer *t = iso_xalloc(1, sizeof(*t));
    struct iso_hasher *h = iso_hasher_new();
    const enum iso_err err = load(t, h, g);
    iso_hasher_free(h);
    if (err != ISO_OK) {
        iso_tokenizer_free(t);
        return err;
    }
    *out = t;
    return ISO_OK;
}

void iso_tokenizer_free(struct iso_tokenizer *t)
{
    if (t == NULL) return;
    iso_special_deinit(&t->always);
    iso_special_deinit(&t->with_special);
    iso_mem_free(t->eog);
    iso_bpe_deinit(&t->bpe);
    iso_pretokenizer_free(t->pre);
    iso_vocab_deinit(&t->vocab);
    free(t);
}
