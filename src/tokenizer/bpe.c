/* SPDX-License-Identifier: MIT
 * bpe.c - the byte alphabet of GPT-2, the merge table, and the encoding of a word.
 *
 * Alphabet: bytes that print as one Latin-1 character are that character; the other 68 are U+0100
 * onwards in ascending order. Source: encoder.py of GPT-2, bytes_to_unicode().
 */
#include "tokenizer/bpe.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"

static const char KEY_MERGES[] = "tokenizer.ggml.merges";

static bool is_printable(unsigned byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
}

/* Place of a byte that is not printable among these: 0 .. 67. */
static unsigned unprintable_rank(unsigned byte)
{
    if (byte <= 0x20) return byte;
    if (byte <= 0xA0) return byte - 0x7F + 0x21;
    return 67; /* 0xAD, the soft hyphen */
}

/* Writes the character of a byte as UTF-8; returns 1 or 2. */
static size_t encode_byte(uint8_t out[2], unsigned byte)
{
    const unsigned c = is_printable(byte) ? byte : 0x100 + unprintable_rank(byte);
    if (c < 0x80) {
        out[0] = (uint8_t)c;
        return 1;
    }
    out[0] = (uint8_t)(0xC0 | c >> 6);
    out[1] = (uint8_t)(0x80 | (c & 0x3F));
    return 2;
}

/* The byte of character c, or -1. */
static int decode_char(unsigned c)
{
    if (c < 0x100) return is_printable(c) ? (int)c : -1;
    const unsigned rank = c - 0x100;
    if (rank <= 0x20) return (int)rank;
    if (rank < 67) return (int)(rank - 0x21 + 0x7F);
    return rank == 67 ? 0xAD : -1;
}

enum iso_err iso_bpe_decode(struct iso_buf *out, const uint8_t *text, size_t len)
{
    const size_t before = out->len;
    enum iso_err err = ISO_OK;
    for (size_t i = 0; i < len && err == ISO_OK;) {
        int byte = decode_char(text[i]);
        size_t n = 1;
        if ((text[i] & 0xE0) == 0xC0 && i + 1 < len && (text[i + 1] & 0xC0) == 0x80) {
            n = 2;
            byte = decode_char((text[i] & 0x1Fu) << 6 | (text[i + 1] & 0x3Fu));
        } else if (text[i] >= 0x80) {
            byte = -1;
        }
        err = byte >= 0 ? iso_buf_u8(out, (uint8_t)byte) : iso_buf_append(out, text + i, n);
        i += n;
    }
    if (err != ISO_OK) {
        out->len = before;
        out->data[before] = '\0';
    }
    return err;
}

static uint32_t slot_of(const struct iso_bpe *b, uint32_t left, uint32_t right)
{
    return (uint32_t)iso_vocab_mix((uint64_t)left << 32 | right) & b->mask;
}

static bool find_merge(const void *ctx,
                       const struct iso_symbol *left,
                       const struct iso_symbol *right,
                       uint32_t *priority,
                       int32_t *id)
{
    const struct iso_bpe *b = ctx;
    const uint32_t l = (uint32_t)left->id;
    const uint32_t r = (uint32_t)right->id;
    for (uint32_t i = slot_of(b, l, r); b->slot[i].id_plus; i = (i + 1) & b->mask) {
        const struct iso_bpe_merge *m = &b->slot[i];
        if (m->left != l || m->right != r) continue;
        *priority = m->rank;
        *id = (int32_t)(m->id_plus - 1);
        return true;
    }
    return false;
}

/* Splits line i of the list and looks its parts and the result up. */
static enum iso_err parse_merge(struct iso_bpe_merge *m,
                                const struct iso_vocab *v,
                                uint8_t *joined,
                                const struct iso_gguf_str *line,
                                size_t i)
{
    /* Past the first byte: the left part may itself be a space in lists made by hand. */
    const char *space = line->len > 1 ? memchr(line->s + 1, ' ', line->len - 1) : NULL;
    if (space == NULL) {
        ISO_FAIL(ISO_E_FORMAT, "%s: line %zu has no two parts", KEY_MERGES, i);
    }
    const size_t left = (size_t)(space - line->s);
    const size_t right = line->len - left - 1;
    const int32_t l = iso_vocab_find(v, line->s, left);
    const int32_t r = iso_vocab_find(v, space + 1, right);
    int32_t id = -1;
    if (l >= 0 && r >= 0) { /* then both parts fit joined [2 * max_len] */
        memcpy(joined, line->s, left);
        memcpy(joined + left, space + 1, right);
        id = iso_vocab_find(v, joined, left + right);
    }
    if (id < 0) {
        ISO_FAIL(ISO_E_FORMAT, "%s: line %zu: %s is not a token", KEY_MERGES, i,
                 l < 0   ? "the left part"
                 : r < 0 ? "the right part"
                         : "the result");
    }
    *m = (struct iso_bpe_merge){.left = (uint32_t)l,
                                .right = (uint32_t)r,
                                .rank = (uint32_t)i,
                                .id_plus = (uint32_t)id + 1};
    return ISO_OK;
}

static enum iso_err insert(struct iso_bpe *b, const struct iso_bpe_merge *m)
{
    uint32_t i = slot_of(b, m->left, m->right);
    for (unsigned probes = 0; b->slot[i].id_plus; i = (i + 1) & b->mask) {
        if (b->slot[i].left == m->left && b->slot[i].right == m->right)
            return ISO_OK; /* first wins */
        if (++probes > ISO_VOCAB_MAX_PROBES) {
            ISO_FAIL(ISO_E_FORMAT, "%s: line %u needs more than %u probes in the hash table",
                     KEY_MERGES, m->rank, ISO_VOCAB_MAX_PROBES);
        }
    }
    b->slot[i] = *m;
    return ISO_OK;
}

static void hash_merge(
    struct iso_hasher *h, uint8_t *chunk, size_t *n, size_t max, const struct iso_bpe_merge *m)
{
    iso_put_u32(chunk + *n, m->left);
    iso_put_u32(chunk + *n + 4, m->right);
    *n += 8;
    if (*n < max) return;
    iso_hasher_update(h, chunk, *n);
    *n = 0;
}

/* Fills the table. joined [2 * max_len] is scratch. */
static enum iso_err read_merges(struct iso_bpe *b,
                                struct iso_hasher *h,
                                uint8_t *joined,
                                const struct iso_gguf_array *a)
{
    uint8_t chunk[4096] = {0};
    size_t n = 0;
    size_t n_skipped = 0;
    for (size_t i = 0; i < a->n; i++) {
        struct iso_bpe_merge m;
        ISO_TRY(parse_merge(&m, b->vocab, joined, &a->strings[i], i));
        hash_merge(h, chunk, &n, sizeof(chunk), &m);
        if (!iso_vocab_mergeable(b->vocab, m.id_plus - 1)) {
            n_skipped++; /* plain text must never become a control token */
            continue;
        }
        ISO_TRY(insert(b, &m));
    }
    iso_hasher_update(h, chunk, n);
    if (n_skipped) {
        iso_log(ISO_LOG_WARN, "tokenizer", "merges_into_control_tokens_left_out=%zu", n_skipped);
    }
    return ISO_OK;
}

static void find_bytes(struct iso_bpe *b)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        uint8_t text[2];
        const size_t len = encode_byte(text, byte);
        int32_t id = iso_vocab_find(b->vocab, text, len);
        if (id < 0) { /* byte fallback of files that have such tokens (type 6) */
            char hex[8];
            (void)snprintf(hex, sizeof(hex), "<0x%02X>", byte);
            id = iso_vocab_find(b->vocab, hex, 6);
            if (id >= 0 && b->vocab->type[id] != ISO_TOKEN_BYTE) id = -1;
        }
        b->byte_id[byte] = id;
    }
}

enum iso_err iso_bpe_init(struct iso_bpe *b,
                          struct iso_hasher *h,
                          const struct iso_vocab *v,
                          const struct iso_gguf *g)
{
    *b = (struct iso_bpe){.vocab = v};
    struct iso_gguf_array a;
    ISO_TRY(iso_gguf_array(&a, g, KEY_MERGES));
    if (a.type != ISO_GGUF_STRING) {
        ISO_FAIL(ISO_E_FORMAT, "%s: elements of type %d, strings (%d) expected", KEY_MERGES,
                 (int)a.type, (int)ISO_GGUF_STRING);
    }
    if (a.n > ISO_BPE_MAX_MERGES) {
        ISO_FAIL(ISO_E_LIMIT, "%s: %zu lines, limit %u", KEY_MERGES, a.n, ISO_BPE_MAX_MERGES);
    }
    find_bytes(b);
    const uint32_t size = iso_vocab_table_size((uint32_t)a.n);
    void *p = NULL;
    ISO_TRY(iso_mem_alloc(&p, size, sizeof(*b->slot), "merge table"));
    b->slot = p;
    b->mask = size - 1;
    uint8_t count[4];
    iso_put_u32(count, (uint32_t)a.n);
    iso_hasher_update(h, count, sizeof(count));
    ISO_TRY(iso_mem_alloc(&p, 2, v->max_len, "merge text"));
    const enum iso_err err = read_merges(b, h, p, &a);
    iso_mem_free(p);
    return err;
}

void iso_bpe_deinit(struct iso_bpe *b)
{
    iso_mem_free(b->slot);
    *b = (struct iso_bpe){0};
}

/* The token that is the whole word, or -1. */
static int32_t find_whole(const struct iso_bpe *b, const char *word, size_t len)
{
    uint8_t text[512];
    size_t n = 0;
    /* A longer word is merged as usual; the longest known token has 256 bytes of text. */
    if (len > sizeof(text) / 2) return -1;
    for (size_t i = 0; i < len; i++) n += encode_byte(text + n, (uint8_t)word[i]);
    const int32_t id = iso_vocab_find(b->vocab, text, n);
    return id >= 0 && iso_vocab_mergeable(b->vocab, (uint32_t)id) ? id : -1;
}

enum iso_err iso_bpe_word(struct iso_buf *ids,
                          struct iso_merge *scratch,
                          const struct iso_bpe *b,
                          bool whole,
                          const char *word,
                          size_t len)
{
    if (whole) {
        const int32_t id = find_whole(b, word, len);
        if (id >= 0) return iso_buf_append(ids, &id, sizeof(id));
    }
    ISO_TRY(iso_merge_begin(scratch, len));
    for (size_t i = 0; i < len; i++) {
        const int32_t id = b->byte_id[(uint8_t)word[i]];
        if (id < 0) {
            ISO_FAIL(ISO_E_FORMAT, "the vocabulary has no token for byte 0x%02x",
                     (unsigned)(uint8_t)word[i]);
        }
        iso_merge_add(scratch, (uint32_t)i, 1, id);
    }
    if (len > 1) ISO_TRY(iso_merge_run(scratch, find_merge, b));
    for (uint32_t i = 0; i != ISO_SYMBOL_NONE; i = scratch->symbol[i].next) {
        ISO_TRY(iso_buf_append(ids, &scratch->symbol[i].id, sizeof(int32_t)));
    }
    return ISO_OK;
}
