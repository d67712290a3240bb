/* SPDX-License-Identifier: MIT
 * gguf_parse.h - reads one GGUF file into tables of keys and tensors, checking every byte it
 * trusts.
 */
#ifndef ISO_FORMAT_GGUF_PARSE_H
#define ISO_FORMAT_GGUF_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "format/gguf.h"
#include "format/gguf_index.h"
#include "format/mapped.h"

struct iso_gguf_kv {
    const char *name; /* NUL-terminated */
    enum iso_gguf_value type;
    union {
        uint64_t bits; /* scalars: the integer, sign-extended; bool 0 or 1; the bits of a float */
        struct iso_gguf_str str;
        struct iso_gguf_array array; /* array.strings is owned by the part */
    } as;
};

/* One file. Immutable after open. */
struct iso_gguf_part {
    struct iso_mapped *file;
    uint32_t version;
    size_t n_keys;
    struct iso_gguf_kv *keys; /* [n_keys], file order */
    struct iso_name_index key_index;
    size_t n_tensors;
    struct iso_gguf_tensor *tensors; /* [n_tensors], file order */
    struct iso_name_block *names;    /* copies of all names */
};

/* Maps and parses a file. keep_strings: index string arrays; without it they are checked only,
 * which bounds the memory that the further parts of a split model can ask for.
 *
 * Owner:  *p is overwritten; free with iso_gguf_part_deinit(), which is not needed after an error.
 * Errors: as iso_gguf_open(). Duplicate keys are found here, duplicate tensors by the caller. */
enum iso_err
iso_gguf_part_init(struct iso_gguf_part *p, const char *path, bool keep_strings) ISO_NODISCARD;
void iso_gguf_part_deinit(struct iso_gguf_part *p);

/* NULL when there is none. */
const struct iso_gguf_kv *iso_gguf_part_find(const struct iso_gguf_part *p, const char *key);

/* Integer of any width as u32; *out keeps its value when the key is missing. Errors: ISO_E_FORMAT.
 */
enum iso_err
iso_gguf_part_u32(uint32_t *out, const struct iso_gguf_part *p, const char *key) ISO_NODISCARD;

#endif
