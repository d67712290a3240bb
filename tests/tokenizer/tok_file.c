/* SPDX-License-Identifier: MIT
 * tok_file.c - a GGUF writer of a few lines, apart from the reader that it tests. */
#include "tokenizer/tok_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if ((call) != ISO_OK) {                                                                    \
            (void)fprintf(stderr, "%s: %s\n", #call, iso_err_detail());                            \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

struct iso_gguf *tok_open(const char *name)
{
    char path[4096];
    const char *dir = getenv("ISOBIT_MODELS");
    const char *cache = getenv("XDG_CACHE_HOME");
    if (dir) {
        (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    } else if (cache) {
        (void)snprintf(path, sizeof(path), "%s/isobit/models/%s", cache, name);
    } else {
        (void)snprintf(path, sizeof(path), "%s/.cache/isobit/models/%s", getenv("HOME"), name);
    }
    struct iso_gguf *g = NULL;
    if (iso_gguf_open(&g, path) != ISO_OK) {
        (void)fprintf(stderr, "%s\nrun tools/fetch_models.sh\n", iso_err_detail());
        exit(1);
    }
    return g;
}

struct iso_tokenizer *tok_load(const char *name)
{
    struct iso_gguf *g = tok_open(name);
    struct iso_tokenizer *t = NULL;
    MUST(iso_tokenizer_new(&t, g));
    iso_gguf_close(g);
    return t;
}

void tok_file_init(struct tok_file *f)
{
    *f = (struct tok_file){0};
    iso_buf_init(&f->kv, 64 << 20);
}

static void put_string(struct tok_file *f, const char *s)
{
    MUST(iso_buf_u64(&f->kv, strlen(s)));
    MUST(iso_buf_puts(&f->kv, s));
}

static void put_key(struct tok_file *f, const char *key, enum iso_gguf_value type)
{
    put_string(f, key);
    MUST(iso_buf_u32(&f->kv, type));
    f->n++;
}

void tok_file_string(struct tok_file *f, const char *key, const char *value)
{
    put_key(f, key, ISO_GGUF_STRING);
    put_string(f, value);
}

void tok_file_u32(struct tok_file *f, const char *key, uint32_t value)
{
    put_key(f, key, ISO_GGUF_U32);
    MUST(iso_buf_u32(&f->kv, value));
}

void tok_file_bool(struct tok_file *f, const char *key, int value)
{
    put_key(f, key, ISO_GGUF_BOOL);
    MUST(iso_buf_u8(&f->kv, value != 0));
}

void tok_file_strings(struct tok_file *f, const char *key, const char *const *value, size_t n)
{
    put_key(f, key, ISO_GGUF_ARRAY);
    MUST(iso_buf_u32(&f->kv, ISO_GGUF_STRING));
    MUST(iso_buf_u64(&f->kv, n));
    for (size_t i = 0; i < n; i++) put_string(f, value[i]);
}

void tok_file_array(struct tok_file *f,
                    const char *key,
                    enum iso_gguf_value type,
                    size_t n,
                    const void *data,
                    size_t len)
{
    put_key(f, key, ISO_GGUF_ARRAY);
    MUST(iso_buf_u32(&f->kv, type));
    MUST(iso_buf_u64(&f->kv, n));
    MUST(iso_buf_append(&f->kv, data, len));
}

struct iso_gguf *tok_file_open(struct tok_file *f)
{
    uint8_t head[24] = "GGUF";
    iso_put_u32(head + 4, 3);
    iso_put_u64(head + 8, 0);
    iso_put_u64(head + 16, f->n);
    char path[] = "/tmp/isobit-tok-XXXXXX";
    const int fd = mkstemp(path);
    if (fd < 0 || write(fd, head, sizeof(head)) != (ssize_t)sizeof(head) ||
        write(fd, f->kv.data, f->kv.len) != (ssize_t)f->kv.len) {
        perror(path);
        exit(1);
    }
    (void)close(fd);
    iso_buf_deinit(&f->kv);
    struct iso_gguf *g = NULL;
    if (iso_gguf_open(&g, path) != ISO_OK) g = NULL;
    (void)unlink(path);
    return g;
}

const char *tok_ids(const struct iso_tokenizer *t, const char *text, size_t len, unsigned flags)
{
    static struct iso_buf out;
    if (out.data == NULL) iso_buf_init(&out, 64 << 20);
    iso_buf_clear(&out);
    struct iso_buf ids;
    iso_buf_init(&ids, 16 << 20);
    if (iso_tokenize(&ids, t, text, len, flags) != ISO_OK) {
        MUST(iso_buf_puts(&out, iso_err_message()));
    }
    for (size_t i = 0; i < ids.len; i += sizeof(int32_t)) {
        int32_t id = 0;
        memcpy(&id, ids.data + i, sizeof(id));
        MUST(iso_buf_printf(&out, i ? " %d" : "%d", (int)id));
    }
    iso_buf_deinit(&ids);
    return (const char *)out.data;
}
