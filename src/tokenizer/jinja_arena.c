/* SPDX-License-Identifier: MIT
 * jinja_arena.c - memory, errors and work of one render, and values made from JSON. */
#include "tokenizer/jinja_value.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "tokenizer/jinja.h"

#define CHUNK (64u << 10) /* bytes; a usual render needs one */

struct jinja_chunk {
    struct jinja_chunk *next;
    size_t used, cap;
    _Alignas(16) unsigned char data[];
};

enum iso_err iso_jinja_alloc(void **out, struct jinja_arena *a, size_t n, size_t size)
{
    size_t len = 0;
    ISO_TRY(iso_mul_size(&len, n, size));
    if (len > a->max - a->used || a->max - a->used - len < 16) {
        ISO_FAIL(ISO_E_LIMIT, "template needs more than %zu bytes", a->max);
    }
    len = (len + 15) & ~(size_t)15;
    struct jinja_chunk *c = a->head;
    if (c == NULL || c->cap - c->used < len) {
        const size_t cap = len > CHUNK ? len : CHUNK;
        struct jinja_chunk *fresh = calloc(1, sizeof(*fresh) + cap);
        if (fresh == NULL) ISO_FAIL(ISO_E_NOMEM, "template: %zu bytes", cap);
        fresh->cap = cap;
        /* A block of its own goes behind the head, whose rest stays in use. */
        if (c != NULL && cap != CHUNK) {
            fresh->next = c->next;
            c->next = fresh;
        } else {
            fresh->next = c;
            a->head = fresh;
        }
        c = fresh;
    }
    *out = c->data + c->used;
    c->used += len;
    a->used += len;
    return ISO_OK;
}

void iso_jinja_arena_free(struct jinja_arena *a)
{
    while (a->head != NULL) {
        struct jinja_chunk *next = a->head->next;
        free(a->head);
        a->head = next;
    }
}

enum iso_err
iso_jinja_fail(const struct jinja_rt *rt, const char *file, int line, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return iso_err_raise(ISO_E_TEMPLATE, file, line, "line %d: %s", rt->line, text);
}

enum iso_err iso_jinja_fail_undef(const struct jinja_rt *rt, const struct jv *v)
{
    const struct jv owner = {.type = v->aux};
    const char *type = owner.type == JV_NONE ? "None" : iso_jv_type_name(&owner);
    const char *object = owner.type == JV_NONE ? "" : " object";
    const int n = v->n > 200 ? 200 : (int)v->n;
    switch ((enum jv_undef)v->sub) {
    case JV_UNDEF_NAME:
        JINJA_FAIL(rt, "'%.*s' is undefined", n, v->u.s);
    case JV_UNDEF_ATTR:
        JINJA_FAIL(rt, "'%s%s' has no attribute '%.*s'", type, object, n, v->u.s);
    case JV_UNDEF_ELEM:
        JINJA_FAIL(rt, "%s%s has no element %.*s", type, object, n, v->u.s);
    case JV_UNDEF_UNSAFE:
        JINJA_FAIL(rt, "access to attribute '%.*s' of '%s' object is unsafe.", n, v->u.s, type);
    case JV_UNDEF_PARAM:
        JINJA_FAIL(rt, "parameter '%.*s' was not provided", n, v->u.s);
    case JV_UNDEF_HINT:
        break;
    }
    JINJA_FAIL(rt, "%.*s", n, v->u.s);
}

enum iso_err iso_jinja_charge(struct jinja_rt *rt, size_t steps)
{
    rt->steps += steps;
    if (rt->steps > rt->max_steps) {
        ISO_FAIL(ISO_E_LIMIT, "line %d: template takes more than %llu steps", rt->line,
                 (unsigned long long)rt->max_steps);
    }
    return ISO_OK;
}

enum iso_err iso_jv_copy_str(struct jinja_rt *rt, struct jv *out, const char *s, size_t n)
{
    void *p = NULL;
    ISO_TRY(iso_jinja_alloc(&p, &rt->arena, n + 1, 1));
    if (n) memcpy(p, s, n);
    *out = jv_str(p, n);
    return iso_jinja_charge_bytes(rt, n);
}

enum iso_err iso_jv_new_items(struct jinja_rt *rt, struct jv **out, size_t n)
{
    void *p = NULL;
    ISO_TRY(iso_jinja_charge(rt, n / 8));
    ISO_TRY(iso_jinja_alloc(&p, &rt->arena, n, sizeof(struct jv)));
    *out = p;
    return ISO_OK;
}

enum iso_err iso_jv_new_iter(
    struct jinja_rt *rt, struct jv *out, const struct jv *items, size_t n, const char *py_type)
{
    void *p = NULL;
    ISO_TRY(iso_jinja_alloc(&p, &rt->arena, 1, sizeof(struct jv_iter)));
    *(struct jv_iter *)p = (struct jv_iter){.items = items, .n = n, .py_type = py_type};
    *out = (struct jv){.type = JV_ITER, .u.iter = p};
    return ISO_OK;
}

enum iso_err iso_jv_take(struct jinja_rt *rt, struct jv *out, size_t mark)
{
    ISO_TRY(iso_jv_copy_str(rt, out, (const char *)rt->buf.data + mark, rt->buf.len - mark));
    rt->buf.len = mark;
    return ISO_OK;
}

enum iso_err iso_jv_from_json(struct jinja_rt *rt, struct jv *out, const json_t *json)
{
    ISO_TRY(iso_jinja_charge(rt, 1));
    switch (json_typeof(json)) {
    case JSON_STRING:
        *out = jv_str(json_string_value(json), json_string_length(json));
        return ISO_OK;
    case JSON_INTEGER:
        *out = jv_int(json_integer_value(json));
        return ISO_OK;
    case JSON_REAL:
        *out = jv_float(json_real_value(json));
        return ISO_OK;
    case JSON_TRUE:
        *out = jv_bool(true);
        return ISO_OK;
    case JSON_FALSE:
        *out = jv_bool(false);
        return ISO_OK;
    case JSON_NULL:
        *out = jv_none();
        return ISO_OK;
    case JSON_ARRAY: {
        const size_t n = json_array_size(json);
        struct jv *items = NULL;
        ISO_TRY(iso_jinja_deeper(rt));
        ISO_TRY(iso_jv_new_items(rt, &items, n));
        for (size_t i = 0; i < n; i++) {
            ISO_TRY(iso_jv_from_json(rt, &items[i], json_array_get(json, i)));
        }
        rt->depth--;
        *out = jv_items(JV_LIST, items, n);
        return ISO_OK;
    }
    case JSON_OBJECT:
        break;
    }
    struct jv dict;
    ISO_TRY(iso_jinja_deeper(rt));
    ISO_TRY(iso_jv_dict_new(rt, &dict, JV_DICT, json_object_size(json)));
    json_t *object =
        (json_t *)(uintptr_t)json; /* jansson's iterators are not const, but only read */
    for (void *it = json_object_iter(object); it != NULL; it = json_object_iter_next(object, it)) {
        const struct jv k = jv_str(json_object_iter_key(it), json_object_iter_key_len(it));
        struct jv v;
        ISO_TRY(iso_jv_from_json(rt, &v, json_object_iter_value(it)));
        ISO_TRY(iso_jv_dict_set(rt, dict.u.dict, &k, &v));
    }
    rt->depth--;
    *out = dict;
    return ISO_OK;
}

enum iso_err iso_jv_own(struct jinja_rt *rt, struct jv *out, const struct jv *v)
{
    *out = *v;
    if (v->type == JV_STR) return iso_jv_copy_str(rt, out, v->u.s, v->n);
    if (v->type == JV_LIST) {
        struct jv *items = NULL;
        ISO_TRY(iso_jv_new_items(rt, &items, v->n));
        for (size_t i = 0; i < v->n; i++) ISO_TRY(iso_jv_own(rt, &items[i], &v->u.items[i]));
        out->u.items = items;
    } else if (v->type == JV_DICT) { /* made for this copy: its entries may be replaced in place */
        for (size_t i = 0; i < v->u.dict->n; i++) {
            struct jv_pair *e = &v->u.dict->e[i];
            const struct jv_pair old = *e;
            ISO_TRY(iso_jv_own(rt, &e->k, &old.k));
            ISO_TRY(iso_jv_own(rt, &e->v, &old.v));
        }
    }
    return ISO_OK;
}
