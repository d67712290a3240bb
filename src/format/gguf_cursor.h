/* SPDX-License-Identifier: MIT
 * gguf_cursor.h - a bounds-checked reading position in a mapped file, and storage for names. */
#ifndef ISO_FORMAT_GGUF_CURSOR_H
#define ISO_FORMAT_GGUF_CURSOR_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* The file may change under the reader, so each number is read exactly once: the value that was
 * checked is the value that is used. */
struct iso_gguf_cursor {
    const char *path;
    const uint8_t *data; /* [size] */
    size_t size;
    size_t at;        /* <= size */
    const char *kind; /* what is being read, for messages: "key", "tensor"; NULL for the header */
    size_t i;         /* its number */
};

/* *p = the next n bytes. All readers: ISO_E_FORMAT when the file ends before. */
enum iso_err iso_gguf_take(const uint8_t **p, struct iso_gguf_cursor *c, size_t n) ISO_NODISCARD;
enum iso_err iso_gguf_take_u32(uint32_t *v, struct iso_gguf_cursor *c) ISO_NODISCARD;
enum iso_err iso_gguf_take_u64(uint64_t *v, struct iso_gguf_cursor *c) ISO_NODISCARD;

/* n items of at least size bytes each must be left. Errors: ISO_E_FORMAT naming what. */
enum iso_err iso_gguf_room_for(const struct iso_gguf_cursor *c,
                               uint64_t n,
                               size_t size,
                               const char *what) ISO_NODISCARD;

struct iso_name_block; /* list of blocks; names never move */

/* Reads a length and a name: 1 .. ISO_GGUF_MAX_NAME bytes, valid UTF-8, no control characters (they
 * would reach terminals and logs). *out lies in *names.
 * Errors: ISO_E_FORMAT; ISO_E_LIMIT. */
enum iso_err iso_gguf_take_name(const char **out,
                                struct iso_gguf_cursor *c,
                                struct iso_name_block **names) ISO_NODISCARD;
void iso_gguf_names_free(struct iso_name_block *names);

#endif
