/* SPDX-License-Identifier: MIT
 * tok_file.h - opens the models of the tokenizer tests and makes small GGUF files with a
 * vocabulary. */
#ifndef ISO_TESTS_TOK_FILE_H
#define ISO_TESTS_TOK_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "format/gguf.h"
#include "tokenizer/tokenizer.h"

/* A model of the models folder; exits the test with a message when it is missing. Close it. */
struct iso_gguf *tok_open(const char *name);

/* Its tokenizer; fails the test with the error text. Free it. */
struct iso_tokenizer *tok_load(const char *name);

/* Keys of a GGUF file in the making. */
struct tok_file {
    struct iso_buf kv;
    uint64_t n;
};

void tok_file_init(struct tok_file *f);
void tok_file_string(struct tok_file *f, const char *key, const char *value);
void tok_file_u32(struct tok_file *f, const char *key, uint32_t value);
void tok_file_bool(struct tok_file *f, const char *key, int value);
void tok_file_strings(struct tok_file *f, const char *key, const char *const *value, size_t n);
/* Array of n elements of a scalar type in data [len bytes], written as they are. */
void tok_file_array(struct tok_file *f,
                    const char *key,
                    enum iso_gguf_value type,
                    size_t n,
                    const void *data,
                    size_t len);

/* Writes and opens the file, deletes its name, frees f. NULL if it does not open. */
struct iso_gguf *tok_file_open(struct tok_file *f);

/* The ids of a text as text, "1 2 3"; or the error text. Valid until the next call. */
const char *tok_ids(const struct iso_tokenizer *t, const char *text, size_t len, unsigned flags);

#endif
