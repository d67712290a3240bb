/* SPDX-License-Identifier: MIT
 * gguf.c - the open model file: all parts as one table of keys and one of tensors. */
#include "format/gguf.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "format/gguf_index.h"
#include "format/gguf_parse.h"
#include "format/gguf_split.h"
#include "format/mapped.h"

#define STAMP_PART_LEN 96 /* four decimal numbers of at most 20 digits, three colons, a comma */

struct iso_gguf {
    char *path;
    size_t n_parts;
    struct iso_gguf_part *parts; /* keys are those of parts[0] */
    size_t n_tensors;
    struct iso_gguf_tensor *tensors; /* [n_tensors], part by part; names lie in the parts */
    struct iso_name_index tensor_index;
    size_t file_bytes;
    struct iso_buf stamp;
};

/* The part that tensor i came from. */
static const char *path_of_tensor(const struct iso_gguf *g, size_t i)
{
    size_t p = 0;
    while (i >= g->parts[p].n_tensors) i -= g->parts[p++].n_tensors;
    return iso_mapped_path(g->parts[p].file);
}

static enum iso_err merge_tensors(struct iso_gguf *g)
{
    size_t n = 0;
    for (size_t p = 0; p < g->n_parts; p++) n += g->parts[p].n_tensors;
    if (n > ISO_GGUF_MAX_TENSORS) {
        ISO_FAIL(ISO_E_LIMIT, "%s: %zu tensors in all parts, the limit is %d", g->path, n,
                 ISO_GGUF_MAX_TENSORS);
    }
    void *tensors = NULL;
    ISO_TRY(iso_mem_alloc(&tensors, n, sizeof(*g->tensors), "tensor table of a model"));
    g->tensors = tensors;
    for (size_t p = 0; p < g->n_parts; p++) {
        struct iso_gguf_part *part = &g->parts[p];
        memcpy(g->tensors + g->n_tensors, part->tensors, part->n_tensors * sizeof(*g->tensors));
        g->n_tensors += part->n_tensors;
        iso_mem_free(part->tensors);
        part->tensors = NULL;
    }
    iso_name_index_init(&g->tensor_index, n);
    for (size_t i = 0; i < n; i++) {
        const char *name = g->tensors[i].name;
        const size_t other = iso_name_index_add(&g->tensor_index, name, (uint32_t)i);
        if (other == ISO_NAME_NONE) continue;
        ISO_FAIL(ISO_E_FORMAT, "%s: tensor '%s' is there twice, as number %zu and %zu%s%s",
                 path_of_tensor(g, i), name, other, i, g->n_parts > 1 ? "; first in " : "",
                 g->n_parts > 1 ? path_of_tensor(g, other) : "");
    }
    return ISO_OK;
}

static enum iso_err make_stamp(struct iso_gguf *g)
{
    iso_buf_init(&g->stamp, g->n_parts * STAMP_PART_LEN);
    for (size_t p = 0; p < g->n_parts; p++) {
        const struct iso_file_identity id = iso_mapped_identity(g->parts[p].file);
        ISO_TRY(iso_buf_printf(&g->stamp, "%s%" PRIu64 ":%" PRIu64 ":%" PRIu64 ":%" PRId64,
                               p > 0 ? "," : "", id.device, id.inode, id.size_bytes, id.mtime_ns));
        g->file_bytes += (size_t)id.size_bytes;
    }
    return ISO_OK;
}

static enum iso_err open_all(struct iso_gguf *g)
{
    ISO_TRY(iso_gguf_parts_open(&g->parts, &g->n_parts, g->path));
    ISO_TRY(make_stamp(g));
    ISO_TRY(merge_tensors(g));
    return iso_gguf_check(g); /* the tables are worth nothing if the file changed meanwhile */
}

enum iso_err iso_gguf_open(struct iso_gguf **out, const char *path)
{
    struct iso_gguf *g = iso_xalloc(1, sizeof(*g));
    g->path = iso_xstrdup(path);
    const enum iso_err err = open_all(g);
    if (err != ISO_OK) {
        iso_gguf_close(g);
        return err;
    }
    *out = g;
    return ISO_OK;
}

void iso_gguf_close(struct iso_gguf *g)
{
    if (g == NULL) return;
    iso_gguf_parts_free(g->parts, g->n_parts);
    iso_name_index_deinit(&g->tensor_index);
    iso_mem_free(g->tensors);
    if (g->stamp.data != NULL) iso_buf_deinit(&g->stamp);
    free(g->path);
    free(g);
}

enum iso_err iso_gguf_check(const struct iso_gguf *g)
{
    for (size_t p = 0; p < g->n_parts; p++) ISO_TRY(iso_mapped_check(g->parts[p].file));
    return ISO_OK;
}

const char *iso_gguf_path(const struct iso_gguf *g)
{
    return g->path;
}

uint32_t iso_gguf_version(const struct iso_gguf *g)
{
    return g->parts[0].version;
}

size_t iso_gguf_file_bytes(const struct iso_gguf *g)
{
    return g->file_bytes;
}

const char *iso_gguf_stamp(const struct iso_gguf *g)
{
    return (const char *)g->stamp.data;
}

size_t iso_gguf_n_tensors(const struct iso_gguf *g)
{
    return g->n_tensors;
}

const struct iso_gguf_tensor *iso_gguf_tensor(const struct iso_gguf *g, size_t i)
{
    return i < g->n_tensors ? &g->tensors[i] : NULL;
}

const struct iso_gguf_tensor *iso_gguf_find(const struct iso_gguf *g, const char *name)
{
    const size_t i = iso_name_index_find(&g->tensor_index, name);
    return i != ISO_NAME_NONE ? &g->tensors[i] : NULL;
}

size_t iso_gguf_n_keys(const struct iso_gguf *g)
{
    return g->parts[0].n_keys;
}

const char *iso_gguf_key(const struct iso_gguf *g, size_t i, enum iso_gguf_value *type)
{
    if (i >= g->parts[0].n_keys) return NULL;
    if (type != NULL) *type = g->parts[0].keys[i].type;
    return g->parts[0].keys[i].name;
}

const char *iso_gguf_value_name(enum iso_gguf_value type)
{
    static const char *const names[ISO_GGUF_VALUE_COUNT] = {
        "u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
        "bool", "string", "array", "u64", "i64", "f64",
    };
    return (unsigned)type < ISO_GGUF_VALUE_COUNT ? names[type] : "unknown";
}

bool iso_gguf_has(const struct iso_gguf *g, const char *key)
{
    return iso_gguf_part_find(&g->parts[0], key) != NULL;
}

static enum iso_err
fail_kind(const struct iso_gguf *g, const struct iso_gguf_kv *kv, const char *want)
{
    ISO_FAIL(ISO_E_FORMAT, "%s: key '%s' is %s, %s is needed", g->path, kv->name,
             iso_gguf_value_name(kv->type), want);
}

static enum iso_err
need(const struct iso_gguf_kv **kv, const struct iso_gguf *g, const char *key, const char *want)
{
    *kv = iso_gguf_part_find(&g->parts[0], key);
    if (*kv == NULL) ISO_FAIL(ISO_E_FORMAT, "%s: key '%s' (%s) is missing", g->path, key, want);
    return ISO_OK;
}

enum iso_err iso_gguf_u32(uint32_t *out, const struct iso_gguf *g, const char *key)
{
    const struct iso_gguf_kv *kv = NULL;
    ISO_TRY(need(&kv, g, key, "an integer"));
    return iso_gguf_part_u32(out, &g->parts[0], key);
}

enum iso_err iso_gguf_f32(float *out, const struct iso_gguf *g, const char *key)
{
    const struct iso_gguf_kv *kv = NULL;
    ISO_TRY(need(&kv, g, key, "a float"));
    float v = 0;
    if (kv->type == ISO_GGUF_F32) {
        const uint32_t bits = (uint32_t)kv->as.bits;
        memcpy(&v, &bits, sizeof(v));
    } else if (kv->type == ISO_GGUF_F64) {
        double d = 0;
        memcpy(&d, &kv->as.bits, sizeof(d));
        v = (float)d;
    } else {
        return fail_kind(g, kv, "a float");
    }
    if (!isfinite(v)) {
        ISO_FAIL(ISO_E_FORMAT, "%s: key '%s' is not a finite f32 (bits 0x%" PRIx64 ")", g->path,
                 key, kv->as.bits);
    }
    *out = v;
    return ISO_OK;
}

enum iso_err iso_gguf_bool(bool *out, const struct iso_gguf *g, const char *key)
{
    const struct iso_gguf_kv *kv = NULL;
    ISO_TRY(need(&kv, g, key, "a bool"));
    if (kv->type != ISO_GGUF_BOOL) return fail_kind(g, kv, "a bool");
    *out = kv->as.bits != 0;
    return ISO_OK;
}

enum iso_err iso_gguf_str(struct iso_gguf_str *out, const struct iso_gguf *g, const char *key)
{
    const struct iso_gguf_kv *kv = NULL;
    ISO_TRY(need(&kv, g, key, "a string"));
    if (kv->type != ISO_GGUF_STRING) return fail_kind(g, kv, "a string");
    *out = kv->as.str;
    return ISO_OK;
}

enum iso_err iso_gguf_array(struct iso_gguf_array *out, const struct iso_gguf *g, const char *key)
{
    const struct iso_gguf_kv *kv = NULL;
    ISO_TRY(need(&kv, g, key, "an array"));
    if (kv->type != ISO_GGUF_ARRAY) return fail_kind(g, kv, "an array");
    *out = kv->as.array;
    return ISO_OK;
}

enum iso_err iso_gguf_array_of(struct iso_gguf_array *out,
                               const struct iso_gguf *g,
                               const char *key,
                               enum iso_gguf_value type,
                               size_t n)
{
    struct iso_gguf_array a = {0};
    ISO_TRY(iso_gguf_array(&a, g, key));
    if (a.type != type) {
        ISO_FAIL(ISO_E_FORMAT, "%s: key '%s' is an array of %s, %s is needed", g->path, key,
                 iso_gguf_value_name(a.type), iso_gguf_value_name(type));
    }
    if (n != ISO_GGUF_ANY_LENGTH && a.n != n) {
        ISO_FAIL(ISO_E_FORMAT, "%s: key '%s' has %zu elements, %zu are needed", g->path, key, a.n,
                 n);
    }
    *out = a;
    return ISO_OK;
}

enum iso_err iso_gguf_u32_or(uint32_t *out, const struct iso_gguf *g, const char *key, uint32_t def)
{
    if (iso_gguf_has(g, key)) return iso_gguf_u32(out, g, key);
    *out = def;
    return ISO_OK;
}

enum iso_err iso_gguf_f32_or(float *out, const struct iso_gguf *g, const char *key, float def)
{
    if (iso_gguf_has(g, key)) return iso_gguf_f32(out, g, key);
    *out = def;
    return ISO_OK;
}

enum iso_err iso_gguf_bool_or(bool *out, const struct iso_gguf *g, const char *key, bool def)
{
    if (iso_gguf_has(g, key)) return iso_gguf_bool(out, g, key);
    *out = def;
    return ISO_OK;
}
