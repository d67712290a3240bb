/* SPDX-License-Identifier: MIT
 * gguf_parse.c - one GGUF file: header, keys, tensor records, data extents. */
#include "format/gguf_parse.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "format/gguf_cursor.h"
#include "format/gguf_sniff.h"

#define DEFAULT_ALIGNMENT 32 /* GGUF specification, general.alignment */
#define MIN_KEY_BYTES 14     /* u64 length, 1 byte of name, u32 type, 1 byte of value */
#define MIN_TENSOR_BYTES                                                                           \
    33 /* u64 length, 1 byte of name, u32 n_dims, u64 dim, u32 type, u64 offset */
#define MIN_STRING_BYTES 8                         /* u64 length */
#define BIG_ENDIAN_VERSION(v) (((v)&0xffffu) == 0) /* 3 with its bytes swapped is 0x03000000 */

struct parser {
    struct iso_gguf_part *part;
    struct iso_gguf_cursor c;
    bool keep_strings;
    size_t n_strings; /* so far */
};

static size_t scalar_bytes(enum iso_gguf_value t)
{
    static const uint8_t bytes[ISO_GGUF_VALUE_COUNT] = {
        [ISO_GGUF_U8] = 1,  [ISO_GGUF_I8] = 1,  [ISO_GGUF_U16] = 2, [ISO_GGUF_I16] = 2,
        [ISO_GGUF_U32] = 4, [ISO_GGUF_I32] = 4, [ISO_GGUF_F32] = 4, [ISO_GGUF_BOOL] = 1,
        [ISO_GGUF_U64] = 8, [ISO_GGUF_I64] = 8, [ISO_GGUF_F64] = 8,
    };
    return bytes[t];
}

static uint64_t scalar_bits(enum iso_gguf_value t, const uint8_t *p)
{
    switch (t) {
    case ISO_GGUF_I8:
        return (uint64_t)(int64_t)(int8_t)p[0];
    case ISO_GGUF_U16:
        return iso_get_u16(p);
    case ISO_GGUF_I16:
        return (uint64_t)(int64_t)(int16_t)iso_get_u16(p);
    case ISO_GGUF_U32:
    case ISO_GGUF_F32:
        return iso_get_u32(p);
    case ISO_GGUF_I32:
        return (uint64_t)(int64_t)(int32_t)iso_get_u32(p);
    case ISO_GGUF_U64:
    case ISO_GGUF_I64:
    case ISO_GGUF_F64:
        return iso_get_u64(p);
    default:
        return p[0]; /* u8, bool */
    }
}

static enum iso_err take_type(enum iso_gguf_value *t, struct parser *ps, const char *key)
{
    uint32_t number = 0;
    ISO_TRY(iso_gguf_take_u32(&number, &ps->c));
    if (number >= ISO_GGUF_VALUE_COUNT) {
        ISO_FAIL(ISO_E_FORMAT, "%s: key '%s' has the unknown value type %" PRIu32, ps->c.path, key,
                 number);
    }
    *t = (enum iso_gguf_value)number;
    return ISO_OK;
}

static enum iso_err take_str(struct iso_gguf_str *out, struct iso_gguf_cursor *c)
{
    uint64_t len = 0;
    const uint8_t *p = NULL;
    ISO_TRY(iso_gguf_take_u64(&len, c));
    ISO_TRY(iso_gguf_room_for(c, len, 1, "bytes of string"));
    ISO_TRY(iso_gguf_take(&p, c, (size_t)len));
    *out = (struct iso_gguf_str){(const char *)p, (size_t)len};
    return ISO_OK;
}

/* One pass over the strings; the index is one allocation (L12: 256k tokens must open at once). */
static enum iso_err take_strings(struct iso_gguf_kv *kv, struct parser *ps, size_t n)
{
    if (n > ISO_GGUF_MAX_STRINGS - ps->n_strings) {
        ISO_FAIL(ISO_E_LIMIT, "%s: key '%s' has %zu strings after %zu others, the limit is %d",
                 ps->c.path, kv->name, n, ps->n_strings, ISO_GGUF_MAX_STRINGS);
    }
    ps->n_strings += n;
    struct iso_gguf_str *strings = NULL;
    if (ps->keep_strings) {
        void *p = NULL;
        ISO_TRY(iso_mem_alloc(&p, n, sizeof(*strings), "string index of a GGUF key"));
        strings = p;
        kv->as.array.strings = strings;
    }
    for (size_t i = 0; i < n; i++) {
        struct iso_gguf_str s;
        ISO_TRY(take_str(&s, &ps->c));
        if (strings != NULL) strings[i] = s;
    }
    return ISO_OK;
}

static enum iso_err
check_bools(const struct parser *ps, const char *key, const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i] <= 1) continue;
        ISO_FAIL(ISO_E_FORMAT, "%s: key '%s': bool %zu is %u, not 0 or 1", ps->c.path, key, i,
                 p[i]);
    }
    return ISO_OK;
}

static enum iso_err take_array(struct iso_gguf_kv *kv, struct parser *ps)
{
    struct iso_gguf_array *a = &kv->as.array;
    uint64_t n = 0;
    ISO_TRY(take_type(&a->type, ps, kv->name));
    ISO_TRY(iso_gguf_take_u64(&n, &ps->c));
    if (a->type == ISO_GGUF_ARRAY) {
        ISO_FAIL(ISO_E_UNSUPPORTED, "%s: key '%s' is an array of arrays", ps->c.path, kv->name);
    }
    const bool is_strings = a->type == ISO_GGUF_STRING;
    const size_t each = is_strings ? MIN_STRING_BYTES : scalar_bytes(a->type);
    ISO_TRY(iso_gguf_room_for(&ps->c, n, each, "array elements"));
    a->n = (size_t)n; /* n * each fits: it is at most the file size */
    if (is_strings) return take_strings(kv, ps, a->n);
    ISO_TRY(iso_gguf_take(&a->data, &ps->c, a->n * each));
    return a->type == ISO_GGUF_BOOL ? check_bools(ps, kv->name, a->data, a->n) : ISO_OK;
}

static enum iso_err take_value(struct iso_gguf_kv *kv, struct parser *ps)
{
    if (kv->type == ISO_GGUF_ARRAY) return take_array(kv, ps);
    if (kv->type == ISO_GGUF_STRING) return take_str(&kv->as.str, &ps->c);
    const uint8_t *p = NULL;
    ISO_TRY(iso_gguf_take(&p, &ps->c, scalar_bytes(kv->type)));
    kv->as.bits = scalar_bits(kv->type, p);
    return kv->type == ISO_GGUF_BOOL ? check_bools(ps, kv->name, p, 1) : ISO_OK;
}

static enum iso_err parse_keys(struct parser *ps)
{
    struct iso_gguf_part *part = ps->part;
    iso_name_index_init(&part->key_index, part->n_keys);
    void *p = NULL;
    ISO_TRY(iso_mem_alloc(&p, part->n_keys, sizeof(*part->keys), "key table of a GGUF file"));
    part->keys = p;
    ps->c.kind = "key";
    for (size_t i = 0; i < part->n_keys; i++) {
        struct iso_gguf_kv *kv = &part->keys[i];
        ps->c.i = i;
        ISO_TRY(iso_gguf_take_name(&kv->name, &ps->c, &part->names));
        const size_t other = iso_name_index_add(&part->key_index, kv->name, (uint32_t)i);
        if (other != ISO_NAME_NONE) {
            ISO_FAIL(ISO_E_FORMAT, "%s: key '%s' is there twice, as number %zu and %zu", ps->c.path,
                     kv->name, other, i);
        }
        ISO_TRY(take_type(&kv->type, ps, kv->name));
        ISO_TRY(take_value(kv, ps));
    }
    return ISO_OK;
}

static enum iso_err take_dims(struct iso_gguf_tensor *t, struct parser *ps)
{
    uint32_t n_dims = 0;
    ISO_TRY(iso_gguf_take_u32(&n_dims, &ps->c));
    if (n_dims < 1 || n_dims > ISO_GGUF_MAX_DIMS) {
        ISO_FAIL(ISO_E_FORMAT, "%s: tensor '%s' has %" PRIu32 " dimensions: 1 to %d", ps->c.path,
                 t->name, n_dims, ISO_GGUF_MAX_DIMS);
    }
    t->n_dims = n_dims;
    for (unsigned d = 0; d < ISO_GGUF_MAX_DIMS; d++) {
        t->dims[d] = 1;
        if (d >= n_dims) continue;
        ISO_TRY(iso_gguf_take_u64(&t->dims[d], &ps->c));
        if (t->dims[d] == 0) {
            ISO_FAIL(ISO_E_FORMAT, "%s: dimension %u of tensor '%s' is 0", ps->c.path, d, t->name);
        }
    }
    return ISO_OK;
}

static enum iso_err take_tensor_type(struct iso_gguf_tensor *t, struct parser *ps)
{
    uint32_t number = 0;
    ISO_TRY(iso_gguf_take_u32(&number, &ps->c));
    t->type = iso_type_from_number(number);
    if (t->type != ISO_TYPE_COUNT) return ISO_OK;
    const char *name = iso_type_number_name(number);
    if (name != NULL) {
        ISO_FAIL(ISO_E_UNSUPPORTED, "%s: tensor '%s' has type %s", ps->c.path, t->name, name);
    }
    ISO_FAIL(ISO_E_UNSUPPORTED, "%s: tensor '%s' has the unknown type %" PRIu32, ps->c.path,
             t->name, number);
}

/* size_bytes from dims and type. */
static enum iso_err measure_tensor(struct iso_gguf_tensor *t, const struct parser *ps)
{
    const struct iso_type_info *info = iso_type_info(t->type);
    if (t->dims[0] % info->block_values != 0) {
        ISO_FAIL(ISO_E_FORMAT,
                 "%s: tensor '%s' has rows of %" PRIu64 " values, not a multiple of the %" PRIu32
                 " of a %s block",
                 ps->c.path, t->name, t->dims[0], info->block_values, info->name);
    }
    size_t size = info->block_bytes;
    bool overflow = __builtin_mul_overflow(size, t->dims[0] / info->block_values, &size);
    for (unsigned d = 1; d < ISO_GGUF_MAX_DIMS; d++) {
        overflow = __builtin_mul_overflow(size, t->dims[d], &size) || overflow;
    }
    if (overflow) {
        ISO_FAIL(ISO_E_FORMAT,
                 "%s: tensor '%s' of %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64
                 " %s values"
                 " has a size beyond 64 bits; the file has %zu bytes",
                 ps->c.path, t->name, t->dims[0], t->dims[1], t->dims[2], t->dims[3], info->name,
                 ps->c.size);
    }
    t->size_bytes = size;
    return ISO_OK;
}

static enum iso_err parse_tensor_records(struct parser *ps, uint64_t *offsets)
{
    struct iso_gguf_part *part = ps->part;
    ps->c.kind = "tensor";
    for (size_t i = 0; i < part->n_tensors; i++) {
        struct iso_gguf_tensor *t = &part->tensors[i];
        ps->c.i = i;
        ISO_TRY(iso_gguf_take_name(&t->name, &ps->c, &part->names));
        ISO_TRY(take_dims(t, ps));
        ISO_TRY(take_tensor_type(t, ps));
        ISO_TRY(measure_tensor(t, ps));
        ISO_TRY(iso_gguf_take_u64(&offsets[i], &ps->c));
    }
    return ISO_OK;
}

static enum iso_err read_alignment(size_t *alignment, const struct iso_gguf_part *part)
{
    uint32_t v = DEFAULT_ALIGNMENT;
    ISO_TRY(iso_gguf_part_u32(&v, part, "general.alignment"));
    if (v < ISO_GGUF_MIN_ALIGNMENT || v > ISO_GGUF_MAX_ALIGNMENT || (v & (v - 1)) != 0) {
        ISO_FAIL(ISO_E_FORMAT,
                 "%s: general.alignment is %" PRIu32 ", not a power of two from %d to %d",
                 iso_mapped_path(part->file), v, ISO_GGUF_MIN_ALIGNMENT, ISO_GGUF_MAX_ALIGNMENT);
    }
    *alignment = v;
    return ISO_OK;
}

/* Turns offsets into pointers. The data section starts at the next multiple of the alignment. */
static enum iso_err place_tensors(struct parser *ps, const uint64_t *offsets)
{
    struct iso_gguf_part *part = ps->part;
    const struct iso_gguf_cursor *c = &ps->c;
    size_t alignment = 0;
    ISO_TRY(read_alignment(&alignment, part));
    const size_t start = (c->at + alignment - 1) & ~(alignment - 1); /* at < SIZE_MAX / 2 */
    const size_t room = start < c->size ? c->size - start : 0;
    for (size_t i = 0; i < part->n_tensors; i++) {
        struct iso_gguf_tensor *t = &part->tensors[i];
        if (offsets[i] % alignment != 0) {
            ISO_FAIL(ISO_E_FORMAT,
                     "%s: tensor '%s' lies at offset %" PRIu64
                     ", not a multiple of the alignment %zu",
                     c->path, t->name, offsets[i], alignment);
        }
        if (offsets[i] > room || t->size_bytes > room - offsets[i]) {
            ISO_FAIL(ISO_E_FORMAT,
                     "%s: tensor '%s' of %zu bytes at offset %" PRIu64 " of the data at %zu ends"
                     " behind the file's %zu bytes; truncated or damaged, download it again",
                     c->path, t->name, t->size_bytes, offsets[i], start, c->size);
        }
        t->data = c->data + start + offsets[i];
    }
    return ISO_OK;
}

static enum iso_err parse_tensors(struct parser *ps)
{
    struct iso_gguf_part *part = ps->part;
    void *tensors = NULL;
    void *offsets = NULL;
    const size_t n = part->n_tensors;
    ISO_TRY(iso_mem_alloc(&tensors, n, sizeof(*part->tensors), "tensor table of a GGUF file"));
    part->tensors = tensors;
    ISO_TRY(iso_mem_alloc(&offsets, n, sizeof(uint64_t), "tensor offsets of a GGUF file"));
    enum iso_err err = parse_tensor_records(ps, offsets);
    if (err == ISO_OK) err = place_tensors(ps, offsets);
    iso_mem_free(offsets);
    return err;
}

static enum iso_err check_magic(const struct iso_gguf_cursor *c)
{
    if (c->size >= 4 && memcmp(c->data, "GGUF", 4) == 0) return ISO_OK;
    char what[ISO_GGUF_SNIFF_LEN];
    iso_gguf_sniff(what, c->data, c->size);
    ISO_FAIL(ISO_E_FORMAT, "%s: not a GGUF file: it is %s", c->path, what);
}

static enum iso_err check_version(const struct parser *ps)
{
    const uint32_t v = ps->part->version;
    if (v == 2 || v == 3) return ISO_OK;
    if (v != 0 && BIG_ENDIAN_VERSION(v)) {
        ISO_FAIL(ISO_E_UNSUPPORTED,
                 "%s: big-endian GGUF (version field 0x%08" PRIx32 "): convert it with"
                 " gguf_convert_endian.py little",
                 ps->c.path, v);
    }
    ISO_FAIL(ISO_E_UNSUPPORTED, "%s: GGUF version %" PRIu32 ", this program reads 2 and 3%s",
             ps->c.path, v, v == 1 ? ": convert the original model again" : "");
}

static enum iso_err
take_count(size_t *out, struct parser *ps, size_t min_bytes, size_t limit, const char *what)
{
    uint64_t n = 0;
    ISO_TRY(iso_gguf_take_u64(&n, &ps->c));
    ISO_TRY(iso_gguf_room_for(&ps->c, n, min_bytes, what));
    if (n > limit) {
        ISO_FAIL(ISO_E_LIMIT, "%s: %" PRIu64 " %s, the limit is %zu", ps->c.path, n, what, limit);
    }
    *out = (size_t)n;
    return ISO_OK;
}

static enum iso_err parse_file(struct parser *ps)
{
    struct iso_gguf_part *part = ps->part;
    const uint8_t *magic = NULL;
    ISO_TRY(check_magic(&ps->c));
    ISO_TRY(iso_gguf_take(&magic, &ps->c, 4));
    ISO_TRY(iso_gguf_take_u32(&part->version, &ps->c));
    ISO_TRY(check_version(ps));
    ISO_TRY(take_count(&part->n_tensors, ps, MIN_TENSOR_BYTES, ISO_GGUF_MAX_TENSORS, "tensors"));
    ISO_TRY(take_count(&part->n_keys, ps, MIN_KEY_BYTES, ISO_GGUF_MAX_KEYS, "keys"));
    ISO_TRY(parse_keys(ps));
    return parse_tensors(ps);
}

enum iso_err iso_gguf_part_init(struct iso_gguf_part *p, const char *path, bool keep_strings)
{
    memset(p, 0, sizeof(*p));
    ISO_TRY(iso_mapped_open(&p->file, path));
    struct parser ps = {.part = p, .keep_strings = keep_strings};
    ps.c.path = iso_mapped_path(p->file);
    ps.c.data = iso_mapped_data(p->file);
    ps.c.size = iso_mapped_size(p->file);
    const enum iso_err err = parse_file(&ps);
    if (err != ISO_OK) iso_gguf_part_deinit(p); /* keeps the error's text */
    return err;
}

void iso_gguf_part_deinit(struct iso_gguf_part *p)
{
    for (size_t i = 0; p->keys != NULL && i < p->n_keys; i++) {
        if (p->keys[i].type == ISO_GGUF_ARRAY) {
            iso_mem_free((void *)(uintptr_t)p->keys[i].as.array.strings);
        }
    }
    iso_mem_free(p->keys);
    iso_name_index_deinit(&p->key_index);
    iso_mem_free(p->tensors);
    iso_gguf_names_free(p->names);
    iso_mapped_close(p->file);
    memset(p, 0, sizeof(*p));
}

const struct iso_gguf_kv *iso_gguf_part_find(const struct iso_gguf_part *p, const char *key)
{
    const size_t i = iso_name_index_find(&p->key_index, key);
    return i != ISO_NAME_NONE ? &p->keys[i] : NULL;
}

static bool is_integer(enum iso_gguf_value t)
{
    return t <= ISO_GGUF_I32 || t == ISO_GGUF_U64 || t == ISO_GGUF_I64;
}

static bool is_signed(enum iso_gguf_value t)
{
    return t == ISO_GGUF_I8 || t == ISO_GGUF_I16 || t == ISO_GGUF_I32 || t == ISO_GGUF_I64;
}

enum iso_err iso_gguf_part_u32(uint32_t *out, const struct iso_gguf_part *p, const char *key)
{
    const struct iso_gguf_kv *kv = iso_gguf_part_find(p, key);
    if (kv == NULL) return ISO_OK;
    const char *path = iso_mapped_path(p->file);
    if (!is_integer(kv->type)) {
        ISO_FAIL(ISO_E_FORMAT, "%s: key '%s' is %s, an integer is needed", path, key,
                 iso_gguf_value_name(kv->type));
    }
    if (is_signed(kv->type) && (int64_t)kv->as.bits < 0) {
        ISO_FAIL(ISO_E_FORMAT, "%s: key '%s' is %" PRId64 ", 0 to 4294967295 is needed", path, key,
                 (int64_t)kv->as.bits);
    }
    if (kv->as.bits > UINT32_MAX) {
        ISO_FAIL(ISO_E_FORMAT, "%s: key '%s' is %" PRIu64 ", 0 to 4294967295 is needed", path, key,
                 kv->as.bits);
    }
    *out = (uint32_t)kv->as.bits;
    return ISO_OK;
}
