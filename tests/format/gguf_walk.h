/* SPDX-License-Identifier: MIT
 * gguf_walk.h - reads every value and every tensor byte of an open model file, for tests and
 * fuzzing. */
#ifndef ISO_TESTS_GGUF_WALK_H
#define ISO_TESTS_GGUF_WALK_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "format/gguf.h"

static inline uint64_t gguf_walk_bytes(uint64_t sum, const void *p, size_t len)
{
    const uint8_t *b = p;
    for (size_t i = 0; i < len; i++) sum = sum * 31 + b[i];
    return sum;
}

static inline uint64_t gguf_walk_array(uint64_t sum, const struct iso_gguf_array *a)
{
    static const uint8_t bytes[ISO_GGUF_VALUE_COUNT] = {
        [ISO_GGUF_U8] = 1,  [ISO_GGUF_I8] = 1,  [ISO_GGUF_U16] = 2, [ISO_GGUF_I16] = 2,
        [ISO_GGUF_U32] = 4, [ISO_GGUF_I32] = 4, [ISO_GGUF_F32] = 4, [ISO_GGUF_BOOL] = 1,
        [ISO_GGUF_U64] = 8, [ISO_GGUF_I64] = 8, [ISO_GGUF_F64] = 8,
    };
    if (a->type != ISO_GGUF_STRING) return gguf_walk_bytes(sum, a->data, a->n * bytes[a->type]);
    for (size_t i = 0; i < a->n; i++) {
        sum = gguf_walk_bytes(sum, a->strings[i].s, a->strings[i].len);
    }
    return sum;
}

/* Every reader on every key, whatever its type; a refusal is fine, a bad read is not. Returns a sum
 * over all bytes, so that the reads stay. */
static inline uint64_t gguf_walk(const struct iso_gguf *g)
{
    uint64_t sum = gguf_walk_bytes(0, iso_gguf_stamp(g), strlen(iso_gguf_stamp(g)));
    for (size_t i = 0; i < iso_gguf_n_keys(g); i++) {
        enum iso_gguf_value type = ISO_GGUF_U8;
        const char *key = iso_gguf_key(g, i, &type);
        uint32_t u = 0;
        float f = 0;
        bool b = false;
        struct iso_gguf_str s = {NULL, 0};
        struct iso_gguf_array a;
        if (iso_gguf_u32(&u, g, key) == ISO_OK) sum += u;
        if (iso_gguf_f32(&f, g, key) == ISO_OK) sum = gguf_walk_bytes(sum, &f, sizeof(f));
        if (iso_gguf_bool(&b, g, key) == ISO_OK) sum += b;
        if (iso_gguf_str(&s, g, key) == ISO_OK) sum = gguf_walk_bytes(sum, s.s, s.len);
        if (iso_gguf_array(&a, g, key) == ISO_OK) sum = gguf_walk_array(sum, &a);
        if (!iso_gguf_has(g, key)) __builtin_trap();
    }
    for (size_t i = 0; i < iso_gguf_n_tensors(g); i++) {
        const struct iso_gguf_tensor *t = iso_gguf_tensor(g, i);
        if (iso_gguf_find(g, t->name) != t) __builtin_trap();
        sum = gguf_walk_bytes(sum, t->data, t->size_bytes);
    }
    return sum;
}

#endif
