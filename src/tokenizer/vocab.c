/* SPDX-License-Identifier: MIT
 * vocab.c - reads the vocabulary arrays of a model file, which nobody has checked yet. */
#include "tokenizer/vocab.h"

#include <math.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"

static const char KEY_TOKENS[] = "tokenizer.ggml.tokens";
static const char KEY_TYPES[] = "tokenizer.ggml.token_type";
static const char KEY_SCORES[] = "tokenizer.ggml.scores";

static uint64_t hash_text(const uint8_t *p, size_t len)
{
    uint64_t h = 0x9e3779b97f4a7c15ULL ^ len;
    for (; len >= 8; p += 8, len -= 8) {
        uint64_t word = 0;
        memcpy(&word, p, 8);
        h = (h ^ word) * 0xff51afd7ed558ccdULL;
        h ^= h >> 32;
    }
    uint64_t word = 0;
    for (size_t i = 0; i < len; i++) word |= (uint64_t)p[i] << (8 * i);
    return iso_vocab_mix(h ^ word);
}

/* Does this slot hold the text? */
static bool holds(const struct iso_vocab *v,
                  struct iso_vocab_slot s,
                  uint32_t tag,
                  const uint8_t *text,
                  size_t len)
{
    if (s.tag != tag) return false;
    size_t n = 0;
    const uint8_t *other = iso_vocab_text(v, s.id_plus - 1, &n);
    return n == len && memcmp(other, text, len) == 0;
}

int32_t iso_vocab_find(const struct iso_vocab *v, const void *text, size_t len)
{
    if (len == 0 || len > v->max_len) return -1;
    const uint64_t h = hash_text(text, len);
    const uint32_t tag = (uint32_t)(h >> 32);
    for (uint32_t i = (uint32_t)h & v->mask;; i = (i + 1) & v->mask) {
        const struct iso_vocab_slot s = v->slot[i];
        if (s.id_plus == 0) return -1;
        if (holds(v, s, tag, text, len)) return (int32_t)(s.id_plus - 1);
    }
}

static enum iso_err insert(struct iso_vocab *v, uint32_t id, uint32_t *n_repeated)
{
    size_t len = 0;
    const uint8_t *text = iso_vocab_text(v, id, &len);
    if (len == 0) return ISO_OK; /* a placeholder: no text becomes it */
    const uint64_t h = hash_text(text, len);
    const uint32_t tag = (uint32_t)(h >> 32);
    uint32_t i = (uint32_t)h & v->mask;
    for (unsigned probes = 0; v->slot[i].id_plus != 0; i = (i + 1) & v->mask) {
        if (holds(v, v->slot[i], tag, text, len)) {
            (*n_repeated)++;
            return ISO_OK;
        }
        if (++probes > ISO_VOCAB_MAX_PROBES) {
            ISO_FAIL(ISO_E_FORMAT, "%s: token %u needs more than %u probes in the hash table",
                     KEY_TOKENS, id, ISO_VOCAB_MAX_PROBES);
        }
    }
    v->slot[i] = (struct iso_vocab_slot){.tag = tag, .id_plus = id + 1};
    return ISO_OK;
}

static enum iso_err build_table(struct iso_vocab *v)
{
    const uint32_t size = iso_vocab_table_size(v->n);
    void *p = NULL;
    ISO_TRY(iso_mem_alloc(&p, size, sizeof(*v->slot), "vocabulary hash table"));
    v->slot = p;
    v->mask = size - 1;
    uint32_t n_repeated = 0;
    for (uint32_t id = 0; id < v->n; id++) ISO_TRY(insert(v, id, &n_repeated));
    if (n_repeated) {
        iso_log(ISO_LOG_WARN, "tokenizer", "tokens_with_a_text_of_lower_ids=%u", n_repeated);
    }
    return ISO_OK;
}

static enum iso_err read_texts(struct iso_vocab *v, const struct iso_gguf *g)
{
    struct iso_gguf_array a;
    ISO_TRY(iso_gguf_array(&a, g, KEY_TOKENS));
    if (a.type != ISO_GGUF_STRING) {
        ISO_FAIL(ISO_E_FORMAT, "%s: elements of type %d, strings (%d) expected", KEY_TOKENS,
                 (int)a.type, (int)ISO_GGUF_STRING);
    }
    if (a.n == 0) ISO_FAIL(ISO_E_FORMAT, "%s is empty", KEY_TOKENS);
    if (a.n > ISO_VOCAB_MAX_TOKENS) {
        ISO_FAIL(ISO_E_LIMIT, "%s: %zu tokens, limit %u", KEY_TOKENS, a.n, ISO_VOCAB_MAX_TOKENS);
    }
    void *p = NULL;
    ISO_TRY(iso_mem_alloc(&p, a.n + 1, sizeof(*v->start), "token offsets"));
    v->start = p;
    v->n = (uint32_t)a.n;
    size_t total = 0;
    for (size_t i = 0; i < a.n; i++) {
        const size_t len = a.strings[i].len;
        if (len > ISO_VOCAB_MAX_TOKEN_LEN || total + len > ISO_VOCAB_MAX_TEXT) {
            ISO_FAIL(ISO_E_LIMIT, "%s: token %zu has %zu bytes (limits %u, all together %u)",
                     KEY_TOKENS, i, len, ISO_VOCAB_MAX_TOKEN_LEN, ISO_VOCAB_MAX_TEXT);
        }
        if (len > v->max_len) v->max_len = (uint32_t)len;
        total += len;
        v->start[i + 1] = (uint32_t)total;
    }
    ISO_TRY(iso_mem_alloc(&p, total, 1, "token texts"));
    v->text = p;
    for (size_t i = 0; i < a.n; i++) {
        if (a.strings[i].len) memcpy(v->text + v->start[i], a.strings[i].s, a.strings[i].len);
    }
    return ISO_OK;
}

static enum iso_err read_types(struct iso_vocab *v, const struct iso_gguf *g)
{
    struct iso_gguf_array a;
    ISO_TRY(iso_gguf_array(&a, g, KEY_TYPES));
    if (a.type != ISO_GGUF_I32 && a.type != ISO_GGUF_U32) {
        ISO_FAIL(ISO_E_FORMAT, "%s: elements of type %d, int32 (%d) expected", KEY_TYPES,
                 (int)a.type, (int)ISO_GGUF_I32);
    }
    if (a.n != v->n) {
        ISO_FAIL(ISO_E_FORMAT, "%s has %zu elements for %u tokens", KEY_TYPES, a.n, v->n);
    }
    void *p = NULL;
    ISO_TRY(iso_mem_alloc(&p, a.n, 1, "token types"));
    v->type = p;
    for (size_t i = 0; i < a.n; i++) {
        const uint32_t type = iso_get_u32(a.data + 4 * i);
        if (type >= ISO_TOKEN_TYPE_COUNT) {
            ISO_FAIL(ISO_E_FORMAT, "%s: token %zu has the unknown type %d", KEY_TYPES, i,
                     (int)(int32_t)type);
        }
        v->type[i] = (uint8_t)type;
    }
    return ISO_OK;
}

static enum iso_err read_scores(struct iso_vocab *v, const struct iso_gguf *g)
{
    if (!iso_gguf_has(g, KEY_SCORES)) return ISO_OK;
    struct iso_gguf_array a;
    ISO_TRY(iso_gguf_array(&a, g, KEY_SCORES));
    if (a.type != ISO_GGUF_F32) {
        ISO_FAIL(ISO_E_FORMAT, "%s: elements of type %d, float32 (%d) expected", KEY_SCORES,
                 (int)a.type, (int)ISO_GGUF_F32);
    }
    if (a.n != v->n) {
        ISO_FAIL(ISO_E_FORMAT, "%s has %zu elements for %u tokens", KEY_SCORES, a.n, v->n);
    }
    void *p = NULL;
    ISO_TRY(iso_mem_alloc(&p, a.n, sizeof(*v->score), "token scores"));
    v->score = p;
    for (size_t i = 0; i < a.n; i++) {
        const uint32_t bits = iso_get_u32(a.data + 4 * i);
        memcpy(&v->score[i], &bits, sizeof(bits));
        if (isnan(v->score[i])) ISO_FAIL(ISO_E_FORMAT, "%s: score %zu is NaN", KEY_SCORES, i);
    }
    return ISO_OK;
}

enum iso_err iso_vocab_init(struct iso_vocab *v, const struct iso_gguf *g)
{
    *v = (struct iso_vocab){0};
    ISO_TRY(read_texts(v, g));
    ISO_TRY(read_types(v, g));
    ISO_TRY(read_scores(v, g));
    return build_table(v);
}

void iso_vocab_deinit(struct iso_vocab *v)
{
    iso_mem_free(v->text);
    iso_mem_free(v->start);
    iso_mem_free(v->type);
    iso_mem_free(v->score);
    iso_mem_free(v->slot);
    *v = (struct iso_vocab){0};
}
