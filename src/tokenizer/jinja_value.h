/* SPDX-License-Identifier: MIT
 * jinja_value.h - values of the template interpreter and the state of one render (private).
 *
 * Values are small structs passed by pointer and copied freely; what they point to lives in the
 * arena of the render, in the template, or in the caller's JSON. Nothing is freed before the render
 * ends. Lists, tuples and dicts never change after they are made (the sandbox that transformers
 * uses forbids it); only namespaces do.
 *
 * Thread: everything here belongs to the one thread that renders or parses.
 */
#ifndef ISO_TOKENIZER_JINJA_VALUE_H
#define ISO_TOKENIZER_JINJA_VALUE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"

/* A bump allocator with a maximum; freed as a whole. */
struct jinja_arena {
    struct jinja_chunk *head;
    size_t used; /* bytes handed out */
    size_t max;  /* bytes */
};

/* Zeroed, 16-byte aligned. Errors: ISO_E_LIMIT beyond the maximum. */
enum iso_err
iso_jinja_alloc(void **out, struct jinja_arena *a, size_t n, size_t size) ISO_NODISCARD;
void iso_jinja_arena_free(struct jinja_arena *a);

enum jv_type {
    JV_UNSET, /* no value: an argument that was not given */
    JV_UNDEF, /* Undefined; sub is enum jv_undef, s/n the name, aux the type it was looked up on */
    JV_NONE,
    JV_BOOL,      /* u.b */
    JV_INT,       /* u.i */
    JV_FLOAT,     /* u.f */
    JV_STR,       /* u.s [n] UTF-8; sub holds JV_STR_ flags */
    JV_LIST,      /* u.items [n] */
    JV_TUPLE,     /* u.items [n] */
    JV_DICT,      /* u.dict */
    JV_VIEW,      /* u.dict; sub is enum jv_view: what .keys() and its sisters return */
    JV_RANGE,     /* u.range */
    JV_ITER,      /* u.iter: a generator, can be walked once */
    JV_NAMESPACE, /* u.dict, may change */
    JV_MACRO,     /* u.macro */
    JV_FUNCTION,  /* u.fn: a global function */
    JV_METHOD,    /* u.method */
    JV_LOOP,      /* u.loop */
};

enum jv_undef {
    JV_UNDEF_NAME,
    JV_UNDEF_ATTR,
    JV_UNDEF_ELEM,
    JV_UNDEF_HINT,
    JV_UNDEF_UNSAFE,
    JV_UNDEF_PARAM
};
enum jv_view { JV_VIEW_KEYS, JV_VIEW_VALUES, JV_VIEW_ITEMS };
#define JV_STR_MARKUP 1u /* made by |safe: "+" escapes the other side */
#define JV_STR_GROW 2u   /* u.s is the start of a struct jv_grow's bytes */

struct jv {
    uint8_t type;
    uint8_t sub;
    uint8_t aux;
    size_t n;
    union {
        bool b;
        int64_t i;
        double f;
        const char *s;
        const struct jv *items;
        struct jv_dict *dict;
        const struct jv_range *range;
        struct jv_iter *iter;
        const struct jinja_macro *macro;
        const struct jinja_function *fn;
        const struct jv_method *method;
        struct jinja_loop *loop;
    } u;
};

struct jv_pair {
    struct jv k, v;
};

/* Insertion order; index is an open-addressing table once there are more than a few entries. */
struct jv_dict {
    struct jv_pair *e; /* [cap], n used */
    size_t n, cap;
    uint32_t *index; /* [mask + 1] entry number + 1, or NULL */
    size_t mask;
};

struct jv_range {
    int64_t start, stop, step;
    size_t n;
};

struct jv_iter {
    const struct jv *items; /* [n] */
    size_t n, pos;
    const char *py_type;
};

struct jv_method {
    struct jv self;
    const struct jinja_method *def;
};

/* Walks any iterable. */
struct jv_cursor {
    struct jv v;
    size_t at;
};

/* State of one render. */
struct jinja_rt {
    struct jinja_arena arena;
    struct iso_buf buf; /* output, captures and strings under construction, as a stack */
    const struct iso_template *t;
    const struct jv *context;  /* [n_names] the caller's variables, JV_UNSET where absent */
    struct jinja_scope *scope; /* innermost */
    int64_t now;
    uint64_t steps, max_steps;
    int depth;
    int line;     /* of the node that is being evaluated */
    uint8_t flow; /* enum jinja_flow */
};

#define JINJA_FAIL(rt, ...) return iso_jinja_fail((rt), __FILE__, __LINE__, __VA_ARGS__)

/* Raises ISO_E_TEMPLATE with "line N: " in front; use JINJA_FAIL. */
enum iso_err
iso_jinja_fail(const struct jinja_rt *rt, const char *file, int line, const char *fmt, ...)
    ISO_PRINTF(4, 5);
/* Raises what Python says when v, an undefined value, is used. */
enum iso_err iso_jinja_fail_undef(const struct jinja_rt *rt, const struct jv *v);
/* Counts work. Errors: ISO_E_LIMIT. */
enum iso_err iso_jinja_charge(struct jinja_rt *rt, size_t steps) ISO_NODISCARD;
static inline enum iso_err iso_jinja_charge_bytes(struct jinja_rt *rt, size_t bytes)
{
    return iso_jinja_charge(rt, bytes / 64);
}

/* Constructors. */
static inline struct jv jv_none(void)
{
    return (struct jv){.type = JV_NONE};
}
static inline struct jv jv_bool(bool b)
{
    return (struct jv){.type = JV_BOOL, .u.b = b};
}
static inline struct jv jv_int(int64_t i)
{
    return (struct jv){.type = JV_INT, .u.i = i};
}
static inline struct jv jv_float(double f)
{
    return (struct jv){.type = JV_FLOAT, .u.f = f};
}
static inline struct jv jv_str(const char *s, size_t n)
{
    return (struct jv){.type = JV_STR, .n = n, .u.s = s};
}
static inline struct jv jv_cstr(const char *s)
{
    return jv_str(s, strlen(s));
}
static inline struct jv jv_items(enum jv_type type, const struct jv *items, size_t n)
{
    return (struct jv){.type = (uint8_t)type, .n = n, .u.items = items};
}
/* An undefined value with Python's words for it. */
static inline struct jv jv_undef_hint(const char *hint)
{
    return (struct jv){.type = JV_UNDEF, .sub = JV_UNDEF_HINT, .n = strlen(hint), .u.s = hint};
}
static inline bool jv_is_str(const struct jv *v, const char *s)
{
    return v->type == JV_STR && v->n == strlen(s) && memcmp(v->u.s, s, v->n) == 0;
}
static inline bool jv_is_number(const struct jv *v)
{
    return v->type == JV_INT || v->type == JV_FLOAT || v->type == JV_BOOL;
}
/* bool and int as an integer. */
static inline bool jv_as_int(int64_t *out, const struct jv *v)
{
    if (v->type != JV_INT && v->type != JV_BOOL) return false;
    *out = v->type == JV_INT ? v->u.i : v->u.b;
    return true;
}
static inline double jv_as_float(const struct jv *v)
{
    return v->type == JV_FLOAT ? v->u.f : v->type == JV_INT ? (double)v->u.i : (double)v->u.b;
}

enum iso_err
iso_jv_copy_str(struct jinja_rt *rt, struct jv *out, const char *s, size_t n) ISO_NODISCARD;
/* Array of n values to fill. */
enum iso_err iso_jv_new_items(struct jinja_rt *rt, struct jv **out, size_t n) ISO_NODISCARD;
enum iso_err iso_jv_new_iter(struct jinja_rt *rt,
                             struct jv *out,
                             const struct jv *items,
                             size_t n,
                             const char *py_type) ISO_NODISCARD;
/* Bytes written to rt->buf since mark become a string; the buffer goes back to mark. */
enum iso_err iso_jv_take(struct jinja_rt *rt, struct jv *out, size_t mark) ISO_NODISCARD;
/* A JSON tree; strings stay in the JSON. */
enum iso_err
iso_jv_from_json(struct jinja_rt *rt, struct jv *out, const json_t *json) ISO_NODISCARD;

/* Gives a tree that iso_jv_from_json() just made its own strings; v itself changes with it. */
enum iso_err iso_jv_own(struct jinja_rt *rt, struct jv *out, const struct jv *v) ISO_NODISCARD;

/* Dicts. set on an existing key keeps its place. Errors: ISO_E_TEMPLATE unhashable key. */
enum iso_err
iso_jv_dict_new(struct jinja_rt *rt, struct jv *out, enum jv_type type, size_t cap) ISO_NODISCARD;
enum iso_err iso_jv_dict_set(struct jinja_rt *rt,
                             struct jv_dict *d,
                             const struct jv *k,
                             const struct jv *v) ISO_NODISCARD;
/* NULL when absent or when k cannot be a key. The caller charges for long keys. */
const struct jv *iso_jv_dict_get(const struct jv_dict *d, const struct jv *k);
/* A scalar, or a short tuple of scalars. */
bool iso_jv_hashable(const struct jv *k);

/* Properties, as Python has them. */
bool iso_jv_truth(const struct jv *v);
const char *iso_jv_type_name(const struct jv *v);
/* false when the value has no len(). */
bool iso_jv_len(size_t *out, const struct jv *v);
/* ISO_E_TEMPLATE for values that are no containers. */
enum iso_err
iso_jv_equal(struct jinja_rt *rt, bool *out, const struct jv *a, const struct jv *b) ISO_NODISCARD;
/* *out < 0, 0 or > 0; op names the operator for the error. */
enum iso_err iso_jv_order(struct jinja_rt *rt,
                          int *out,
                          const struct jv *a,
                          const struct jv *b,
                          const char *op) ISO_NODISCARD;
enum iso_err iso_jv_contains(struct jinja_rt *rt,
                             bool *out,
                             const struct jv *box,
                             const struct jv *item) ISO_NODISCARD;

bool iso_jv_iterable(const struct jv *v);
enum iso_err
iso_jv_cursor(struct jinja_rt *rt, struct jv_cursor *c, const struct jv *v) ISO_NODISCARD;
/* item becomes JV_UNSET at the end. */
enum iso_err iso_jv_next(struct jinja_rt *rt, struct jv_cursor *c, struct jv *item) ISO_NODISCARD;
/* list(v) */
enum iso_err iso_jv_list(struct jinja_rt *rt, struct jv *out, const struct jv *v) ISO_NODISCARD;

/* Text: str(v) and repr(v) appended to rt->buf, or as a value. */
enum iso_err iso_jv_put_str(struct jinja_rt *rt, const struct jv *v) ISO_NODISCARD;
enum iso_err iso_jv_put_repr(struct jinja_rt *rt, const struct jv *v) ISO_NODISCARD;
enum iso_err iso_jv_to_str(struct jinja_rt *rt, struct jv *out, const struct jv *v) ISO_NODISCARD;
/* Python's repr of a float; buf [40]. */
void iso_jv_float_repr(char *buf, double f);

struct jinja_json_style {
    bool ensure_ascii, sort_keys;
    bool pretty;         /* newlines, with indent repeated once per level */
    struct jv indent;    /* string */
    struct jv item, key; /* separators, strings */
};
/* json.dumps(v) appended to rt->buf. */
enum iso_err iso_jv_put_json(struct jinja_rt *rt,
                             const struct jv *v,
                             const struct jinja_json_style *style,
                             int level) ISO_NODISCARD;

/* Operators. op is '+', '-', '*', '/', '%', 'f' for //, 'p' for **. */
enum iso_err iso_jv_binary(struct jinja_rt *rt,
                           struct jv *out,
                           char op,
                           const struct jv *a,
                           const struct jv *b) ISO_NODISCARD;
enum iso_err iso_jv_negate(struct jinja_rt *rt, struct jv *out, const struct jv *v) ISO_NODISCARD;
/* str(a) ~ str(b), cheap when a was the last result. */
enum iso_err iso_jv_append(struct jinja_rt *rt,
                           struct jv *out,
                           const struct jv *a,
                           const struct jv *b) ISO_NODISCARD;
/* obj.name */
enum iso_err iso_jv_getattr(struct jinja_rt *rt,
                            struct jv *out,
                            const struct jv *obj,
                            const char *name,
                            size_t n) ISO_NODISCARD;
/* obj[key] */
enum iso_err iso_jv_getitem(struct jinja_rt *rt,
                            struct jv *out,
                            const struct jv *obj,
                            const struct jv *key) ISO_NODISCARD;
/* obj[lo:hi:step], each bound JV_NONE when left out. */
enum iso_err iso_jv_slice(struct jinja_rt *rt,
                          struct jv *out,
                          const struct jv *obj,
                          const struct jv bound[3]) ISO_NODISCARD;
/* format % args */
enum iso_err iso_jv_percent(struct jinja_rt *rt,
                            struct jv *out,
                            const struct jv *format,
                            const struct jv *args) ISO_NODISCARD;
/* format.format(...) */
struct jinja_args;
enum iso_err iso_jv_format(struct jinja_rt *rt,
                           struct jv *out,
                           const struct jv *format,
                           struct jinja_args *a) ISO_NODISCARD;
/* Stable sort of items [n] by keys [n]. */
enum iso_err iso_jv_sort(
    struct jinja_rt *rt, struct jv *items, struct jv *keys, size_t n, bool reverse) ISO_NODISCARD;

#endif
