/* SPDX-License-Identifier: MIT
 * gguf_writer.c - builds small GGUF files for tests. */
#include "format/gguf_writer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <dirent.h>

#include "base/mem.h"

#define MAX_BYTES ((size_t)1 << 28)
#define PATH_BYTES 4096

static void ok(enum iso_err e)
{
    if (e != ISO_OK) fail_msg("%s", iso_err_detail());
}

void gguf_writer_init(struct gguf_writer *w)
{
    *w = (struct gguf_writer){.version = 3, .alignment = 32};
    iso_buf_init(&w->keys, MAX_BYTES);
    iso_buf_init(&w->records, MAX_BYTES);
    iso_buf_init(&w->data, MAX_BYTES);
}

void gguf_writer_deinit(struct gguf_writer *w)
{
    iso_buf_deinit(&w->keys);
    iso_buf_deinit(&w->records);
    iso_buf_deinit(&w->data);
}

void gguf_writer_put_str(struct iso_buf *b, const char *s, size_t len)
{
    ok(iso_buf_u64(b, len));
    ok(iso_buf_append(b, s, len));
}

void gguf_writer_raw(
    struct gguf_writer *w, const char *key, uint32_t type, const void *value, size_t len)
{
    gguf_writer_put_str(&w->keys, key, strlen(key));
    ok(iso_buf_u32(&w->keys, type));
    ok(iso_buf_append(&w->keys, value, len));
    w->n_keys++;
}

void gguf_writer_int(struct gguf_writer *w, const char *key, enum iso_gguf_value type, int64_t v)
{
    static const uint8_t bytes[ISO_GGUF_VALUE_COUNT] = {
        [ISO_GGUF_U8] = 1,   [ISO_GGUF_I8] = 1,  [ISO_GGUF_U16] = 2,
        [ISO_GGUF_I16] = 2,  [ISO_GGUF_U32] = 4, [ISO_GGUF_I32] = 4,
        [ISO_GGUF_BOOL] = 1, [ISO_GGUF_U64] = 8, [ISO_GGUF_I64] = 8,
    };
    uint8_t le[8];
    iso_put_u64(le, (uint64_t)v);
    gguf_writer_raw(w, key, type, le, bytes[type]);
}

void gguf_writer_f32(struct gguf_writer *w, const char *key, float v)
{
    uint32_t bits = 0;
    uint8_t le[4];
    memcpy(&bits, &v, sizeof(bits));
    iso_put_u32(le, bits);
    gguf_writer_raw(w, key, ISO_GGUF_F32, le, sizeof(le));
}

void gguf_writer_f64(struct gguf_writer *w, const char *key, double v)
{
    uint64_t bits = 0;
    uint8_t le[8];
    memcpy(&bits, &v, sizeof(bits));
    iso_put_u64(le, bits);
    gguf_writer_raw(w, key, ISO_GGUF_F64, le, sizeof(le));
}

void gguf_writer_str(struct gguf_writer *w, const char *key, const char *v)
{
    gguf_writer_put_str(&w->keys, key, strlen(key));
    ok(iso_buf_u32(&w->keys, ISO_GGUF_STRING));
    gguf_writer_put_str(&w->keys, v, strlen(v));
    w->n_keys++;
}

void gguf_writer_array(
    struct gguf_writer *w, const char *key, uint32_t type, uint64_t n, const void *data, size_t len)
{
    gguf_writer_put_str(&w->keys, key, strlen(key));
    ok(iso_buf_u32(&w->keys, ISO_GGUF_ARRAY));
    ok(iso_buf_u32(&w->keys, type));
    ok(iso_buf_u64(&w->keys, n));
    ok(iso_buf_append(&w->keys, data, len));
    w->n_keys++;
}

void gguf_writer_record(struct gguf_writer *w,
                        const char *name,
                        size_t name_len,
                        uint32_t n_dims,
                        const uint64_t *dims,
                        unsigned n_given,
                        uint32_t type,
                        uint64_t offset)
{
    gguf_writer_put_str(&w->records, name, name_len);
    ok(iso_buf_u32(&w->records, n_dims));
    for (unsigned d = 0; d < n_given; d++) ok(iso_buf_u64(&w->records, dims[d]));
    ok(iso_buf_u32(&w->records, type));
    ok(iso_buf_u64(&w->records, offset));
    w->n_tensors++;
}

static void pad(struct iso_buf *b, size_t alignment)
{
    while (b->len % alignment != 0) ok(iso_buf_u8(b, 0));
}

void gguf_writer_tensor(struct gguf_writer *w,
                        const char *name,
                        enum iso_type type,
                        uint64_t cols,
                        uint64_t rows,
                        uint8_t fill)
{
    const uint64_t dims[2] = {cols, rows};
    pad(&w->data, w->alignment);
    gguf_writer_record(w, name, strlen(name), rows > 0 ? 2 : 1, dims, rows > 0 ? 2 : 1,
                       iso_type_info(type)->number, w->data.len);
    const size_t size = iso_type_row_bytes(type, cols) * (rows > 0 ? rows : 1);
    for (size_t i = 0; i < size; i++) ok(iso_buf_u8(&w->data, fill));
}

void gguf_writer_finish(const struct gguf_writer *w, struct iso_buf *out)
{
    ok(iso_buf_puts(out, "GGUF"));
    ok(iso_buf_u32(out, w->version));
    ok(iso_buf_u64(out, w->n_tensors));
    ok(iso_buf_u64(out, w->n_keys));
    ok(iso_buf_append(out, w->keys.data, w->keys.len));
    ok(iso_buf_append(out, w->records.data, w->records.len));
    if (w->data.len == 0) return;
    pad(out, w->alignment);
    ok(iso_buf_append(out, w->data.data, w->data.len));
}

void gguf_writer_save(const struct gguf_writer *w, const char *path)
{
    struct iso_buf b;
    iso_buf_init(&b, MAX_BYTES);
    gguf_writer_finish(w, &b);
    test_write_file(path, b.data, b.len);
    iso_buf_deinit(&b);
}

void test_write_file(const char *path, const void *data, size_t len)
{
    FILE *f = fopen(path, "wb");
    if (f == NULL) fail_msg("cannot write %s", path);
    assert_int_equal(fwrite(data, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static char g_folder[PATH_BYTES];
static pid_t g_owner; /* children that a test forks must not remove the folder */

static void remove_folder(void)
{
    if (getpid() != g_owner) return;
    DIR *d = opendir(g_folder);
    if (d == NULL) return;
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        if (e->d_name[0] != '.') (void)unlinkat(dirfd(d), e->d_name, 0);
    }
    (void)closedir(d);
    (void)rmdir(g_folder);
}

const char *test_folder(void)
{
    if (g_folder[0] != '\0') return g_folder;
    const char *tmp = getenv("TMPDIR");
    (void)snprintf(g_folder, sizeof(g_folder), "%s/isobit-test-XXXXXX", tmp != NULL ? tmp : "/tmp");
    if (mkdtemp(g_folder) == NULL) fail_msg("cannot make %s", g_folder);
    g_owner = getpid();
    (void)atexit(remove_folder);
    return g_folder;
}

const char *test_path(const char *name)
{
    static char paths[8][PATH_BYTES + 256];
    static unsigned next;
    char *p = paths[next++ % 8];
    (void)snprintf(p, sizeof(paths[0]), "%s/%s", test_folder(), name);
    return p;
}

const char *test_model(const char *name)
{
    static char path[PATH_BYTES];
    const char *dir = getenv("ISOBIT_MODELS");
    const char *home = getenv("HOME");
    if (dir != NULL) {
        (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    } else {
        (void)snprintf(path, sizeof(path), "%s/.cache/isobit/models/%s", home ? home : ".", name);
    }
    if (access(path, R_OK) != 0) fail_msg("%s is missing: run tools/fetch_models.sh", path);
    return path;
}
