/* SPDX-License-Identifier: MIT
 * fuzz_tokenizer.c - hostile vocabularies (input that is a GGUF file) and hostile texts (any
 * other).
 *
 * A text goes through a small byte-level BPE of each pre-tokenizer and a small llama kind; what was
 * tokenized must come back from the pieces, and only text that is not UTF-8 may be refused.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8_stream.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAX_TOKENS 320

static const char *const PRE[] = {"smollm", "gpt-2", "llama-bpe", "qwen2", "llama4"};
#define N_BPE ISO_COUNT(PRE)

static void must(int good)
{
    if (good) return;
    (void)fprintf(stderr, "last error: %s\n", iso_err_detail());
    __builtin_trap();
}

/* A vocabulary in the making. */
struct made {
    struct iso_buf tokens, merges;
    int32_t type[MAX_TOKENS];
    float score[MAX_TOKENS];
    uint32_t n, n_merges;
};

static void put_string(struct iso_buf *b, const char *s)
{
    must(iso_buf_u64(b, strlen(s)) == ISO_OK && iso_buf_puts(b, s) == ISO_OK);
}

static void add_token(struct made *m, const char *text, int32_t type, float score)
{
    put_string(&m->tokens, text);
    m->type[m->n] = type;
    m->score[m->n++] = score;
}

static void put_array(
    struct iso_buf *b, const char *key, uint32_t type, uint64_t n, const void *data, size_t len)
{
    put_string(b, key);
    must(iso_buf_u32(b, ISO_GGUF_ARRAY) == ISO_OK && iso_buf_u32(b, type) == ISO_OK);
    must(iso_buf_u64(b, n) == ISO_OK && iso_buf_append(b, data, len) == ISO_OK);
}

static void put_text(struct iso_buf *b, const char *key, const char *value)
{
    put_string(b, key);
    must(iso_buf_u32(b, ISO_GGUF_STRING) == ISO_OK);
    put_string(b, value);
}

/* Opens bytes as a file through /proc; NULL if the reader refuses them. */
static struct iso_gguf *open_bytes(const void *p, size_t len)
{
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    must(fd >= 0);
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    struct iso_gguf *g = NULL;
    if (write(fd, p, len) != (ssize_t)len || iso_gguf_open(&g, path) != ISO_OK) g = NULL;
    (void)close(fd);
    return g;
}

static struct iso_tokenizer *finish(struct made *m, const char *model, const char *pre)
{
    struct iso_buf b;
    iso_buf_init(&b, 1 << 20);
    must(iso_buf_puts(&b, "GGUF") == ISO_OK && iso_buf_u32(&b, 3) == ISO_OK);
    must(iso_buf_u64(&b, 0) == ISO_OK && iso_buf_u64(&b, 8) == ISO_OK);
    put_text(&b, "general.architecture", "llama");
    put_text(&b, "tokenizer.ggml.model", model);
    put_text(&b, "tokenizer.ggml.pre", pre);
    put_string(&b, "tokenizer.ggml.bos_token_id");
    must(iso_buf_u32(&b, ISO_GGUF_U32) == ISO_OK && iso_buf_u32(&b, 1) == ISO_OK);
    put_array(&b, "tokenizer.ggml.tokens", ISO_GGUF_STRING, m->n, m->tokens.data, m->tokens.len);
    put_array(&b, "tokenizer.ggml.token_type", ISO_GGUF_I32, m->n, m->type, 4 * m->n);
    put_array(&b, "tokenizer.ggml.scores", ISO_GGUF_F32, m->n, m->score, 4 * m->n);
    put_array(&b, "tokenizer.ggml.merges", ISO_GGUF_STRING, m->n_merges, m->merges.data,
              m->merges.len);
    struct iso_gguf *g = open_bytes(b.data, b.len);
    struct iso_tokenizer *t = NULL;
    must(g != NULL);
    must(iso_tokenizer_new(&t, g) == ISO_OK);
    iso_gguf_close(g);
    iso_buf_deinit(&b);
    iso_buf_deinit(&m->tokens);
    iso_buf_deinit(&m->merges);
    return t;
}

static void begin(struct made *m)
{
    *m = (struct made){0};
    iso_buf_init(&m->tokens, 1 << 20);
    iso_buf_init(&m->merges, 1 << 20);
}

static struct iso_tokenizer *make_bpe(const char *pre)
{
    static const char *const merge[] = {"t h", "th e", "\xC4\xA0 t", "\xC4\xA0 \xC4\xA0",
                                        "\xC3\xA4 \xC2\xB8"};
    static const char *const joined[] = {"th", "the", "\xC4\xA0t", "\xC4\xA0\xC4\xA0",
                                         "\xC3\xA4\xC2\xB8"};
    struct made m;
    begin(&m);
    add_token(&m, "<|a|>", 3, 0);
    add_token(&m, "<|ab|>", 3, 0);
    add_token(&m, "|>\n", 4, 0);
    for (unsigned byte = 0, other = 0x100; byte < 256; byte++) {
        const int prints = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
        const unsigned c = prints ? byte : other++;
        char text[3] = {(char)c, 0, 0};
        if (c >= 0x80) {
            text[0] = (char)(0xC0 | c >> 6);
            text[1] = (char)(0x80 | (c & 0x3F));
        }
        add_token(&m, text, 1, 0);
    }
    for (size_t i = 0; i < ISO_COUNT(merge); i++) {
        add_token(&m, joined[i], 1, 0);
        put_string(&m.merges, merge[i]);
        m.n_merges++;
    }
    return finish(&m, "gpt2", pre);
}

static struct iso_tokenizer *make_spm(void)
{
    static const char *const word[] = {"t",
                                       "h",
                                       "e",
                                       "th",
                                       "the",
                                       "\xE2\x96\x81",
                                       "\xE2\x96\x81the",
                                       "\xE2\x96\x81\xE2\x96\x81",
                                       "<",
                                       "/",
                                       "s",
                                       ">",
                                       "</",
                                       "s>"};
    struct made m;
    begin(&m);
    add_token(&m, "<unk>", 2, 0);
    add_token(&m, "<s>", 3, 0);
    add_token(&m, "</s>", 3, 0);
    for (unsigned byte = 0; byte < 256; byte++) {
        char text[8];
        (void)snprintf(text, sizeof(text), "<0x%02X>", byte);
        add_token(&m, text, 6, 0);
    }
    for (size_t i = 0; i < ISO_COUNT(word); i++) add_token(&m, word[i], 1, -(float)(i % 4));
    return finish(&m, "llama", "default");
}

static void try_text(const struct iso_tokenizer *t, const char *text, size_t len, unsigned flags)
{
    struct iso_buf ids;
    struct iso_buf out;
    iso_buf_init(&ids, 1 << 24);
    iso_buf_init(&out, 1 << 24);
    const int is_utf8 = iso_utf8_valid_len(text, len) == len;
    must((iso_tokenize(&ids, t, text, len, flags) == ISO_OK) == is_utf8);
    for (size_t i = 0; i < ids.len; i += sizeof(int32_t)) {
        int32_t id = 0;
        memcpy(&id, ids.data + i, sizeof(id));
        must(flags != 0 || !iso_tokenizer_is_control(t, id));
        must(iso_tokenizer_piece(&out, t, id, true) == ISO_OK);
    }
    const int exact = is_utf8 && !iso_tokenizer_adds_space(t); /* else spaces are added */
    must(!exact || (out.len == len && memcmp(out.data, text, len) == 0));
    iso_buf_deinit(&ids);
    iso_buf_deinit(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct iso_tokenizer *made[N_BPE + 1];
    if (made[0] == NULL) {
        for (size_t i = 0; i < N_BPE; i++) made[i] = make_bpe(PRE[i]);
        made[N_BPE] = make_spm();
    }
    if (size >= 4 && memcmp(data, "GGUF", 4) == 0) {
        struct iso_gguf *g = open_bytes(data, size);
        struct iso_tokenizer *t = NULL;
        if (g && iso_tokenizer_new(&t, g) == ISO_OK) {
            struct iso_buf ids;
            iso_buf_init(&ids, 1 << 16);
            const enum iso_err err = iso_tokenize(&ids, t, "<s> the ab \xE4\xB8\xAD\n", 14, 3);
            must(err == ISO_OK || err == ISO_E_FORMAT || err == ISO_E_LIMIT);
            for (int32_t id = -1; id < 8; id++) {
                iso_buf_clear(&ids);
                if (iso_tokenizer_piece(&ids, t, id, true) != ISO_OK) continue;
            }
            iso_buf_deinit(&ids);
            iso_tokenizer_free(t);
        }
        iso_gguf_close(g);
        return 0;
    }
    /* Random bytes are seldom UTF-8: try them as they are and made valid. */
    struct iso_utf8_stream s = {0};
    char *valid = malloc(ISO_UTF8_STREAM_ROOM(size) + ISO_UTF8_FLUSH_ROOM);
    must(valid != NULL);
    size_t n = iso_utf8_stream_push(&s, valid, (const char *)data, size);
    n += iso_utf8_stream_flush(&s, valid + n);
    must(iso_utf8_valid_len(valid, n) == n);
    for (size_t i = 0; i <= N_BPE; i++) {
        try_text(made[i], (const char *)data, size, 0);
        try_text(made[i], valid, n, 0);
        try_text(made[i], valid, n, ISO_TOKENIZE_SPECIAL);
    }
    free(valid);
    return 0;
}
