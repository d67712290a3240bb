/* SPDX-License-Identifier: MIT
 * gguf.h - reads GGUF v2 and v3 model files, single or split, mapped read-only.
 *
 * Everything is checked when the file is opened: no later access can leave the mapping. A file that
 * shrinks while it is mapped does not kill the process: see iso_gguf_check().
 * Source: the GGUF specification (ggml/docs/gguf.md). Byte table in docs/formats/gguf.md.
 */
#ifndef ISO_FORMAT_GGUF_H
#define ISO_FORMAT_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "format/types.h"

#define ISO_GGUF_MAX_DIMS 4
#define ISO_GGUF_MAX_NAME 256      /* bytes of a tensor name or key */
#define ISO_GGUF_MAX_TENSORS 65536 /* the largest public models have a few thousand */
#define ISO_GGUF_MAX_KEYS 65536
#define ISO_GGUF_MAX_SPLITS 1024
/* In all arrays of a file together: 16 bytes of index each. The largest public model has 0.8
 * million. */
#define ISO_GGUF_MAX_STRINGS (1 << 24)
/* Of general.alignment; the specification asks for a multiple of 8. */
#define ISO_GGUF_MIN_ALIGNMENT 8
#define ISO_GGUF_MAX_ALIGNMENT (1 << 20)

enum iso_gguf_value {
    ISO_GGUF_U8,
    ISO_GGUF_I8,
    ISO_GGUF_U16,
    ISO_GGUF_I16,
    ISO_GGUF_U32,
    ISO_GGUF_I32,
    ISO_GGUF_F32,
    ISO_GGUF_BOOL,
    ISO_GGUF_STRING,
    ISO_GGUF_ARRAY,
    ISO_GGUF_U64,
    ISO_GGUF_I64,
    ISO_GGUF_F64,
    ISO_GGUF_VALUE_COUNT
};

struct iso_gguf; /* immutable after open; any thread may read */

/* A string inside the mapping: not NUL-terminated. */
struct iso_gguf_str {
    const char *s;
    size_t len;
};

struct iso_gguf_array {
    enum iso_gguf_value type;           /* element type; never ISO_GGUF_ARRAY */
    size_t n;                           /* elements */
    const uint8_t *data;                /* packed little-endian elements; NULL for strings */
    const struct iso_gguf_str *strings; /* [n] for ISO_GGUF_STRING, else NULL */
};

struct iso_gguf_tensor {
    const char *name; /* NUL-terminated */
    enum iso_type type;
    unsigned n_dims;
    uint64_t dims[ISO_GGUF_MAX_DIMS]; /* dims[0] is the row length (columns); unused ones are 1 */
    const uint8_t *data;              /* inside the mapping */
    size_t size_bytes;
};

/* Maps and checks a model file. For NAME-00001-of-000NN.gguf the other parts are opened as well.
 *
 * Owner:  *out is owned by the caller, free with iso_gguf_close().
 * Errors: ISO_E_IO (path, reason); ISO_E_FORMAT (what is wrong, values, what the file seems to be);
 *         ISO_E_UNSUPPORTED (version, tensor type by name); ISO_E_LIMIT (limit named). */
enum iso_err iso_gguf_open(struct iso_gguf **out, const char *path) ISO_NODISCARD;
void iso_gguf_close(struct iso_gguf *g);

/* ISO_E_IO when a mapped file has become shorter or was replaced in place since it was opened.
 * Cheap: reads a flag that the SIGBUS guard sets, and one fstat per file. Call it after a step. */
enum iso_err iso_gguf_check(const struct iso_gguf *g) ISO_NODISCARD;

const char *iso_gguf_path(const struct iso_gguf *g);
uint32_t iso_gguf_version(const struct iso_gguf *g);
size_t iso_gguf_file_bytes(const struct iso_gguf *g); /* all parts */

/* Identity of the files for caches: text with device, inode, size and mtime of each part. */
const char *iso_gguf_stamp(const struct iso_gguf *g);

size_t iso_gguf_n_tensors(const struct iso_gguf *g);
const struct iso_gguf_tensor *iso_gguf_tensor(const struct iso_gguf *g, size_t i);
/* NULL when there is none. Hash lookup. */
const struct iso_gguf_tensor *iso_gguf_find(const struct iso_gguf *g, const char *name);

size_t iso_gguf_n_keys(const struct iso_gguf *g);
/* Key i in file order and its type. */
const char *iso_gguf_key(const struct iso_gguf *g, size_t i, enum iso_gguf_value *type);
/* "u32", "string": for messages. Never NULL. */
const char *iso_gguf_value_name(enum iso_gguf_value type);
bool iso_gguf_has(const struct iso_gguf *g, const char *key);

/* Scalars. A missing key or a value of another kind is ISO_E_FORMAT naming key and type; integers
 * of any width are accepted where they fit, floats of any width where they stay finite. */
enum iso_err iso_gguf_u32(uint32_t *out, const struct iso_gguf *g, const char *key) ISO_NODISCARD;
enum iso_err iso_gguf_f32(float *out, const struct iso_gguf *g, const char *key) ISO_NODISCARD;
enum iso_err iso_gguf_bool(bool *out, const struct iso_gguf *g, const char *key) ISO_NODISCARD;
enum iso_err
iso_gguf_str(struct iso_gguf_str *out, const struct iso_gguf *g, const char *key) ISO_NODISCARD;
enum iso_err
iso_gguf_array(struct iso_gguf_array *out, const struct iso_gguf *g, const char *key) ISO_NODISCARD;
/* The same, and its element type must be type and its length n (ISO_GGUF_ANY_LENGTH: any), so that
 * the caller may index it: a file can declare any type and length for a key it knows. */
enum iso_err iso_gguf_array_of(struct iso_gguf_array *out,
                               const struct iso_gguf *g,
                               const char *key,
                               enum iso_gguf_value type,
                               size_t n) ISO_NODISCARD;
#define ISO_GGUF_ANY_LENGTH SIZE_MAX
/* The same with a default for a missing key; a value of another kind is still an error. */
enum iso_err iso_gguf_u32_or(uint32_t *out, const struct iso_gguf *g, const char *key, uint32_t def)
    ISO_NODISCARD;
enum iso_err
iso_gguf_f32_or(float *out, const struct iso_gguf *g, const char *key, float def) ISO_NODISCARD;
enum iso_err
iso_gguf_bool_or(bool *out, const struct iso_gguf *g, const char *key, bool def) ISO_NODISCARD;

#endif
