/* SPDX-License-Identifier: MIT
 * spm.c - merging by score, as the bpe model of SentencePiece and llama.cpp do it. */
#include "tokenizer/spm.h"

#include <stdio.h>
#include <string.h>

static const char SPACE[] = "\xE2\x96\x81"; /* U+2581 */
#define SPACE_LEN 3

/* First U+2581 in p [len] from byte i on, or len. */
static size_t find_space(const uint8_t *p, size_t len, size_t i)
{
    while (i + SPACE_LEN <= len) {
        const uint8_t *lead = memchr(p + i, SPACE[0], len - i - SPACE_LEN + 1);
        if (lead == NULL) break;
        if (memcmp(lead, SPACE, SPACE_LEN) == 0) return (size_t)(lead - p);
        i = (size_t)(lead - p) + 1;
    }
    return len;
}

int iso_spm_byte(const uint8_t *text, size_t len)
{
    if (len != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
    int value = 0;
    for (unsigned i = 3; i < 5; i++) {
        const int c = text[i];
        if (c >= '0' && c <= '9') {
            value = value * 16 + c - '0';
        } else if (c >= 'A' && c <= 'F') {
            value = value * 16 + c - 'A' + 10;
        } else {
            return -1;
        }
    }
    return value;
}

static void find_joins(struct iso_spm *s)
{
    for (uint32_t id = 0; id < s->vocab->n; id++) {
        size_t len = 0;
        const uint8_t *text = iso_vocab_text(s->vocab, id, &len);
        for (size_t i = find_space(text, len, 1); i < len; i = find_space(text, len, i + 1)) {
            s->joins[text[i - 1]] = true;
        }
    }
}

enum iso_err iso_spm_init(struct iso_spm *s, const struct iso_vocab *v)
{
    *s = (struct iso_spm){.vocab = v};
    if (v->score == NULL) ISO_FAIL(ISO_E_FORMAT, "tokenizer.ggml.scores is missing");
    for (unsigned byte = 0; byte < 256; byte++) {
        char text[8];
        (void)snprintf(text, sizeof(text), "<0x%02X>", byte);
        s->byte_id[byte] = iso_vocab_find(v, text, 6);
        const uint8_t raw = (uint8_t)byte;
        if (s->byte_id[byte] < 0) s->byte_id[byte] = iso_vocab_find(v, &raw, 1);
    }
    find_joins(s);
    return ISO_OK;
}

enum iso_err iso_spm_decode(struct iso_buf *out, const uint8_t *text, size_t len)
{
    const size_t before = out->len;
    enum iso_err err = ISO_OK;
    size_t i = 0;
    while (i < len && err == ISO_OK) {
        if (len - i >= SPACE_LEN && memcmp(text + i, SPACE, SPACE_LEN) == 0) {
            err = iso_buf_u8(out, ' ');
            i += SPACE_LEN;
            continue;
        }
        size_t n = 1;
        while (i + n < len && text[i + n] != (uint8_t)SPACE[0]) n++;
        err = iso_buf_append(out, text + i, n);
        i += n;
    }
    if (err != ISO_OK) {
        out->len = before;
        out->data[before] = '\0';
    }
    return err;
}

/* Order of the priorities is the reverse order of the scores; -0 and 0 are equal. */
static uint32_t priority_of(float score)
{
    const float plain = score + 0.0f;
    uint32_t bits = 0;
    memcpy(&bits, &plain, sizeof(bits));
    return bits & 0x80000000u ? bits : 0x7fffffffu - bits;
}

struct text_merges {
    const struct iso_vocab *vocab;
    const uint8_t *text;
};

static bool find_merge(const void *ctx,
                       const struct iso_symbol *left,
                       const struct iso_symbol *right,
                       uint32_t *priority,
                       int32_t *id)
{
    const struct text_merges *t = ctx;
    *id = iso_vocab_find(t->vocab, t->text + left->pos, left->len + right->len);
    if (*id < 0 || !iso_vocab_mergeable(t->vocab, (uint32_t)*id)) return false;
    *priority = priority_of(t->vocab->score[*id]);
    return true;
}

static enum iso_err escape(struct iso_buf *escaped, bool space, const char *text, size_t len)
{
    iso_buf_clear(escaped);
    if (space) ISO_TRY(iso_buf_append(escaped, SPACE, SPACE_LEN));
    while (len > 0) {
        const char *blank = memchr(text, ' ', len);
        const size_t n = blank ? (size_t)(blank - text) : len;
        ISO_TRY(iso_buf_append(escaped, text, n));
        if (blank == NULL) break;
        ISO_TRY(iso_buf_append(escaped, SPACE, SPACE_LEN));
        text += n + 1;
        len -= n + 1;
    }
    return ISO_OK;
}

/* Bytes of the character that begins with lead, in valid UTF-8. */
static uint32_t char_len(uint8_t lead)
{
    if (lead < 0x80) return 1;
    if (lead < 0xE0) return 2;
    return lead < 0xF0 ? 3 : 4;
}

/* A symbol that was never merged is one character: a token of its own or its bytes. */
static enum iso_err append_symbol(struct iso_buf *ids,
                                  const struct iso_spm *s,
                                  const uint8_t *text,
                                  const struct iso_symbol *symbol)
{
    int32_t id = symbol->id;
    if (id < 0) id = iso_vocab_find(s->vocab, text + symbol->pos, symbol->len);
    if (id >= 0 && iso_vocab_mergeable(s->vocab, (uint32_t)id)) {
        return iso_buf_append(ids, &id, sizeof(id));
    }
    for (uint32_t i = 0; i < symbol->len; i++) {
        const uint8_t byte = text[symbol->pos + i];
        if (s->byte_id[byte] < 0) {
            ISO_FAIL(ISO_E_FORMAT, "the vocabulary has no token for byte 0x%02x", (unsigned)byte);
        }
        ISO_TRY(iso_buf_append(ids, &s->byte_id[byte], sizeof(int32_t)));
    }
    return ISO_OK;
}

/* Appends the ids of p [len], len > 0, escaped already. */
static enum iso_err merge_part(struct iso_buf *ids,
                               struct iso_merge *scratch,
                               const struct iso_spm *s,
                               const uint8_t *p,
                               size_t len)
{
    ISO_TRY(iso_merge_begin(scratch, len));
    for (uint32_t i = 0; i < len;) {
        const uint32_t n = char_len(p[i]);
        iso_merge_add(scratch, i, n, -1);
        i += n;
    }
    const struct text_merges merges = {.vocab = s->vocab, .text = p};
    ISO_TRY(iso_merge_run(scratch, find_merge, &merges));
    for (uint32_t i = 0; i != ISO_SYMBOL_NONE; i = scratch->symbol[i].next) {
        ISO_TRY(append_symbol(ids, s, p, &scratch->symbol[i]));
    }
    return ISO_OK;
}

enum iso_err iso_spm_text(struct iso_buf *ids,
                          struct iso_merge *scratch,
                          struct iso_buf *escaped,
                          const struct iso_spm *s,
                          bool space,
                          const char *text,
                          size_t len)
{
    ISO_TRY(escape(escaped, space, text, len));
    const uint8_t *p = escaped->data;
    size_t start = 0;
    /* Where no token has what stands there before a U+2581, no merge crosses, and both sides can be
     * merged on their own. That is twelve times as fast as one heap for the whole text, which does
     * not fit a cache (llama vocabulary, 1 MB of prose). */
    while (start < escaped->len) {
        size_t end = find_space(p, escaped->len, start + 1);
        while (end < escaped->len && s->joins[p[end - 1]])
            end = find_space(p, escaped->len, end + 1);
        ISO_TRY(merge_part(ids, scratch, s, p + start, end - start));
        start = end;
    }
    return ISO_OK;
}
