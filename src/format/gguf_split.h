/* SPDX-License-Identifier: MIT
 * gguf_split.h - opens all files of a model: one, or NAME-00001-of-000NN.gguf and its siblings. */
#ifndef ISO_FORMAT_GGUF_SPLIT_H
#define ISO_FORMAT_GGUF_SPLIT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "format/gguf_parse.h"

/* What a file name says: NAME-<no>-of-<count>.gguf, both of five digits, no from 1. */
struct iso_split_name {
    size_t prefix_len; /* bytes of the path before "-00001-of-" */
    unsigned no;
    unsigned count;
};

/* False when the path does not end like that. */
bool iso_split_name_parse(struct iso_split_name *out, const char *path);

/* Opens the file and, when it is the first of several, the others, and checks split.no, split.count
 * and split.tensors.count against their names and content.
 *
 * Owner:  *parts [*n_parts] is owned by the caller, free with iso_gguf_parts_free().
 * Errors: as iso_gguf_open(). */
enum iso_err
iso_gguf_parts_open(struct iso_gguf_part **parts, size_t *n_parts, const char *path) ISO_NODISCARD;
void iso_gguf_parts_free(struct iso_gguf_part *parts, size_t n_parts);

#endif
