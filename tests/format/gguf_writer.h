/* SPDX-License-Identifier: MIT
 * gguf_writer.h - builds small GGUF files for tests, right ones and wrong ones. */
#ifndef ISO_TESTS_GGUF_WRITER_H
#define ISO_TESTS_GGUF_WRITER_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "format/gguf.h"

/* The counts, version and alignment may be changed before gguf_writer_finish(). */
struct gguf_writer {
    uint32_t version;
    uint64_t n_tensors;
    uint64_t n_keys;
    size_t alignment; /* of the data section; a key general.alignment is the caller's business */
    struct iso_buf keys;
    struct iso_buf records;
    struct iso_buf data;
};

void gguf_writer_init(struct gguf_writer *w); /* version 3, alignment 32 */
void gguf_writer_deinit(struct gguf_writer *w);

/* A key with the value's bytes as they are. */
void gguf_writer_raw(
    struct gguf_writer *w, const char *key, uint32_t type, const void *value, size_t len);
/* Any integer type or bool, from its value. */
void gguf_writer_int(struct gguf_writer *w, const char *key, enum iso_gguf_value type, int64_t v);
void gguf_writer_f32(struct gguf_writer *w, const char *key, float v);
void gguf_writer_f64(struct gguf_writer *w, const char *key, double v);
void gguf_writer_str(struct gguf_writer *w, const char *key, const char *v);
/* n elements in len bytes; for strings encode them with gguf_writer_put_str(). */
void gguf_writer_array(struct gguf_writer *w,
                       const char *key,
                       uint32_t type,
                       uint64_t n,
                       const void *data,
                       size_t len);
void gguf_writer_put_str(struct iso_buf *b, const char *s, size_t len);

/* A record as it is; dims [n_given]. */
void gguf_writer_record(struct gguf_writer *w,
                        const char *name,
                        size_t name_len,
                        uint32_t n_dims,
                        const uint64_t *dims,
                        unsigned n_given,
                        uint32_t type,
                        uint64_t offset);
/* A right tensor of 1 or 2 dimensions (rows 0: one), its data filled with the byte fill. */
void gguf_writer_tensor(struct gguf_writer *w,
                        const char *name,
                        enum iso_type type,
                        uint64_t cols,
                        uint64_t rows,
                        uint8_t fill);

/* Whole file into out, an empty buffer. */
void gguf_writer_finish(const struct gguf_writer *w, struct iso_buf *out);
/* Whole file to path. */
void gguf_writer_save(const struct gguf_writer *w, const char *path);

/* Replaces the file's content. */
void test_write_file(const char *path, const void *data, size_t len);
/* Folder for this program's files: made at the first call, removed with its files at exit. */
const char *test_folder(void);
/* test_folder()/name in one of eight static buffers. */
const char *test_path(const char *name);
/* Path of a model file in $ISOBIT_MODELS or ~/.cache/isobit/models; fails the test without it. */
const char *test_model(const char *name);

#endif
