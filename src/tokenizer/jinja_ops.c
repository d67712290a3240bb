/* SPDX-License-Identifier: MIT
 * jinja_ops.c - operators of the template language: arithmetic, attributes, subscripts, slices. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "tokenizer/jinja.h"
#include "tokenizer/jinja_text.h"

#define GROW_FROM 256  /* bytes; shorter strings are copied, longer get room to grow */
#define MAX_POWER 4096 /* exponent; 2 ** 63 overflows long before */

/* Header of a string buffer with room behind the string: a chain of s = s + x stays linear. */
struct jv_grow {
    size_t used, cap;
    char data[];
};

static struct jv_grow *grow_of(const struct jv *v)
{
    return (struct jv_grow *)(uintptr_t)(v->u.s - offsetof(struct jv_grow, data));
}

/* a and b are strings. */
static enum iso_err
concat(struct jinja_rt *rt, struct jv *out, const struct jv *a, const struct jv *b)
{
    const size_t n = a->n + b->n;
    if ((a->sub & JV_STR_GROW) && grow_of(a)->used == a->n && grow_of(a)->cap - a->n >= b->n) {
        struct jv_grow *g = grow_of(a);
        memcpy(g->data + a->n, b->u.s, b->n);
        g->used = n;
        *out = *a;
        out->n = n;
        return iso_jinja_charge_bytes(rt, b->n);
    }
    ISO_TRY(iso_jinja_charge_bytes(rt, n));
    void *p = NULL;
    if (n < GROW_FROM) {
        ISO_TRY(iso_jinja_alloc(&p, &rt->arena, n + 1, 1));
        *out = jv_str(p, n);
    } else {
        ISO_TRY(iso_jinja_alloc(&p, &rt->arena, sizeof(struct jv_grow) + 2 * n, 1));
        struct jv_grow *g = p;
        g->used = n;
        g->cap = 2 * n;
        p = g->data;
        *out = jv_str(p, n);
        out->sub = JV_STR_GROW;
    }
    if (a->n) memcpy(p, a->u.s, a->n);
    if (b->n) memcpy((char *)p + a->n, b->u.s, b->n);
    return ISO_OK;
}

enum iso_err
iso_jv_append(struct jinja_rt *rt, struct jv *out, const struct jv *a, const struct jv *b)
{
    struct jv x, y;
    ISO_TRY(iso_jv_to_str(rt, &x, a));
    ISO_TRY(iso_jv_to_str(rt, &y, b));
    return concat(rt, out, &x, &y);
}

/* Markup + str escapes the str, whichever side it is on. */
static enum iso_err
add_markup(struct jinja_rt *rt, struct jv *out, const struct jv *a, const struct jv *b)
{
    const size_t mark = rt->buf.len;
    ISO_TRY(iso_jt_put_escaped(rt, a));
    ISO_TRY(iso_jt_put_escaped(rt, b));
    ISO_TRY(iso_jv_take(rt, out, mark));
    out->sub = JV_STR_MARKUP;
    return ISO_OK;
}

static enum iso_err
add_items(struct jinja_rt *rt, struct jv *out, const struct jv *a, const struct jv *b)
{
    struct jv *items = NULL;
    ISO_TRY(iso_jv_new_items(rt, &items, a->n + b->n));
    if (a->n) memcpy(items, a->u.items, a->n * sizeof(*items));
    if (b->n) memcpy(items + a->n, b->u.items, b->n * sizeof(*items));
    *out = jv_items((enum jv_type)a->type, items, a->n + b->n);
    return ISO_OK;
}

static enum iso_err repeat(struct jinja_rt *rt, struct jv *out, const struct jv *v, int64_t times)
{
    const size_t unit = v->type == JV_STR ? 1 : sizeof(struct jv);
    const size_t count = times > 0 ? (size_t)times : 0;
    size_t n = 0;
    if (__builtin_mul_overflow(v->n, count, &n) || n > rt->arena.max / unit) {
        ISO_FAIL(ISO_E_LIMIT, "line %d: %zu times %zu items do not fit the render's memory",
                 rt->line, count, v->n);
    }
    void *p = NULL;
    ISO_TRY(iso_jinja_charge_bytes(rt, n * unit));
    ISO_TRY(iso_jinja_alloc(&p, &rt->arena, n + 1, unit));
    for (size_t at = 0; at < n; at += v->n) memcpy((char *)p + at * unit, v->u.s, v->n * unit);
    *out = *v;
    out->n = n;
    out->u.s = p;
    if (v->type == JV_STR) out->sub = v->sub & JV_STR_MARKUP;
    return ISO_OK;
}

static enum iso_err overflow(const struct jinja_rt *rt, char op)
{
    JINJA_FAIL(rt, "integer result of '%c' needs more than 64 bits", op);
}

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - ((a % b != 0) && ((a < 0) != (b < 0)));
}

static enum iso_err power(struct jinja_rt *rt, struct jv *out, int64_t a, int64_t b)
{
    if (b < 0) {
        if (a == 0) JINJA_FAIL(rt, "0.0 cannot be raised to a negative power");
        *out = jv_float(pow((double)a, (double)b));
        return ISO_OK;
    }
    if (a >= -1 && a <= 1) {
        *out = jv_int(b == 0 || a == 1 ? 1 : a == 0 ? 0 : b % 2 ? -1 : 1);
        return ISO_OK;
    }
    int64_t v = 1;
    for (int64_t i = 0; i < b && i < MAX_POWER; i++) {
        if (__builtin_mul_overflow(v, a, &v)) return overflow(rt, '^');
    }
    *out = jv_int(v);
    return ISO_OK;
}

static enum iso_err int_op(struct jinja_rt *rt, struct jv *out, char op, int64_t a, int64_t b)
{
    int64_t v = 0;
    bool over = false;
    if ((op == '/' || op == 'f' || op == '%') && b == 0) JINJA_FAIL(rt, "division by zero");
    switch (op) {
    case '+':
        over = __builtin_add_overflow(a, b, &v);
        break;
    case '-':
        over = __builtin_sub_overflow(a, b, &v);
        break;
    case '*':
        over = __builtin_mul_overflow(a, b, &v);
        break;
    case '/':
        *out = jv_float((double)a / (double)b);
        return ISO_OK;
    case 'f':
        over = a == INT64_MIN && b == -1;
        if (!over) v = floor_div(a, b);
        break;
    case '%':
        v = b == -1 ? 0 : a - b * floor_div(a, b);
        break;
    default:
        return power(rt, out, a, b);
    }
    if (over) return overflow(rt, op);
    *out = jv_int(v);
    return ISO_OK;
}

static enum iso_err float_op(struct jinja_rt *rt, struct jv *out, char op, double a, double b)
{
    double v = 0.0;
    if ((op == '/' || op == 'f' || op == '%') && b == 0.0) JINJA_FAIL(rt, "float division by zero");
    switch (op) {
    case '+':
        v = a + b;
        break;
    case '-':
        v = a - b;
        break;
    case '*':
        v = a * b;
        break;
    case '/':
        v = a / b;
        break;
    case 'p':
        if (a == 0.0 && b < 0) JINJA_FAIL(rt, "0.0 cannot be raised to a negative power");
        if (a < 0 && b != floor(b)) JINJA_FAIL(rt, "a complex number is not supported");
        v = pow(a, b);
        break;
    default: { /* as CPython's float_divmod */
        double mod = fmod(a, b);
        double div = (a - mod) / b;
        if (mod != 0.0) {
            if ((b < 0) != (mod < 0)) {
                mod += b;
                div -= 1.0;
            }
        } else {
            mod = copysign(0.0, b);
        }
        v = floor(div);
        if (div - v > 0.5) v += 1.0;
        if (div == 0.0) v = copysign(0.0, a / b);
        if (op == '%') v = mod;
    }
    }
    *out = jv_float(v);
    return ISO_OK;
}

static bool is_sequence(const struct jv *v)
{
    return v->type == JV_STR || v->type == JV_LIST || v->type == JV_TUPLE;
}

enum iso_err
iso_jv_binary(struct jinja_rt *rt, struct jv *out, char op, const struct jv *a, const struct jv *b)
{
    if (op == '%' && a->type == JV_STR) return iso_jv_percent(rt, out, a, b);
    if (a->type == JV_UNDEF) return iso_jinja_fail_undef(rt, a);
    if (b->type == JV_UNDEF) return iso_jinja_fail_undef(rt, b);
    int64_t i = 0, k = 0;
    if (jv_is_number(a) && jv_is_number(b)) {
        if (jv_as_int(&i, a) && jv_as_int(&k, b)) return int_op(rt, out, op, i, k);
        return float_op(rt, out, op, jv_as_float(a), jv_as_float(b));
    }
    if (op == '+' && a->type == JV_STR && b->type == JV_STR) {
        return (a->sub | b->sub) & JV_STR_MARKUP ? add_markup(rt, out, a, b)
                                                 : concat(rt, out, a, b);
    }
    if (op == '+' && a->type == b->type && is_sequence(a)) return add_items(rt, out, a, b);
    if (op == '*' && is_sequence(a) && jv_as_int(&i, b)) return repeat(rt, out, a, i);
    if (op == '*' && is_sequence(b) && jv_as_int(&i, a)) return repeat(rt, out, b, i);
    if (op == '+' && is_sequence(a)) {
        JINJA_FAIL(rt, "can only concatenate %s (not \"%s\") to %s", iso_jv_type_name(a),
                   iso_jv_type_name(b), iso_jv_type_name(a));
    }
    char symbol[2] = {op, '\0'};
    JINJA_FAIL(rt, "unsupported operand type(s) for %s: '%s' and '%s'",
               op == 'f'   ? "//"
               : op == 'p' ? "** or pow()"
                           : symbol,
               iso_jv_type_name(a), iso_jv_type_name(b));
}

enum iso_err iso_jv_negate(struct jinja_rt *rt, struct jv *out, const struct jv *v)
{
    int64_t i = 0;
    if (v->type == JV_UNDEF) return iso_jinja_fail_undef(rt, v);
    if (v->type == JV_FLOAT) {
        *out = jv_float(-v->u.f);
        return ISO_OK;
    }
    if (!jv_as_int(&i, v))
        JINJA_FAIL(rt, "bad operand type for unary -: '%s'", iso_jv_type_name(v));
    return int_op(rt, out, '-', 0, i);
}

/* --- attributes and subscripts --- */

static struct jv undef_on(const struct jv *obj, enum jv_undef kind, const char *name, size_t n)
{
    return (struct jv){
        .type = JV_UNDEF, .sub = (uint8_t)kind, .aux = obj->type, .n = n, .u.s = name};
}

/* Method of obj, or false. */
static enum iso_err method_value(struct jinja_rt *rt,
                                 struct jv *out,
                                 const struct jv *obj,
                                 const char *name,
                                 size_t n,
                                 bool *found)
{
    const struct jinja_method *m = iso_jinja_method_find(obj, name, n);
    *found = m != NULL;
    if (m == NULL) return ISO_OK;
    if (m->unsafe) {
        *out = undef_on(obj, JV_UNDEF_UNSAFE, name, n);
        return ISO_OK;
    }
    void *p = NULL;
    ISO_TRY(iso_jinja_alloc(&p, &rt->arena, 1, sizeof(struct jv_method)));
    *(struct jv_method *)p = (struct jv_method){.self = *obj, .def = m};
    *out = (struct jv){.type = JV_METHOD, .u.method = p};
    return ISO_OK;
}

enum iso_err iso_jv_getattr(
    struct jinja_rt *rt, struct jv *out, const struct jv *obj, const char *name, size_t n)
{
    bool found = false;
    const struct jv key = jv_str(name, n);
    if (obj->type == JV_UNDEF) return iso_jinja_fail_undef(rt, obj);
    if (obj->type == JV_LOOP) {
        ISO_TRY(iso_jinja_loop_attr(rt, out, obj->u.loop, name, n));
        if (out->type != JV_UNSET) return ISO_OK;
    }
    if (obj->type != JV_NAMESPACE) ISO_TRY(method_value(rt, out, obj, name, n, &found));
    if (found) return ISO_OK;
    if (obj->type == JV_DICT || obj->type == JV_NAMESPACE) {
        const struct jv *v = iso_jv_dict_get(obj->u.dict, &key);
        if (v != NULL) {
            *out = *v;
            return ISO_OK;
        }
    }
    *out = undef_on(obj, JV_UNDEF_ATTR, name, n);
    return ISO_OK;
}

/* Item i of a sequence, counted from the end when negative; false when there is none. */
static bool item_at(struct jv *out, const struct jv *obj, int64_t i)
{
    size_t len = 0;
    if (obj->type == JV_DICT || obj->type == JV_VIEW || !iso_jv_len(&len, obj)) return false;
    if (i < 0) i += (int64_t)len;
    if (i < 0 || (size_t)i >= len) return false;
    if (obj->type == JV_STR) {
        const size_t at = iso_jt_offset(obj->u.s, obj->n, (size_t)i);
        int32_t cp = 0;
        *out = jv_str(obj->u.s + at, iso_jt_decode(&cp, obj->u.s + at, obj->n - at));
        out->sub = obj->sub & JV_STR_MARKUP;
    } else if (obj->type == JV_RANGE) {
        *out = jv_int(obj->u.range->start + i * obj->u.range->step);
    } else {
        *out = obj->u.items[i];
    }
    return true;
}

enum iso_err
iso_jv_getitem(struct jinja_rt *rt, struct jv *out, const struct jv *obj, const struct jv *key)
{
    int64_t i = 0;
    bool found = false;
    if (obj->type == JV_UNDEF) return iso_jinja_fail_undef(rt, obj);
    if (obj->type == JV_STR) ISO_TRY(iso_jinja_charge_bytes(rt, obj->n));
    if (key->type == JV_STR) ISO_TRY(iso_jinja_charge_bytes(rt, key->n));
    if (obj->type == JV_DICT) {
        const struct jv *v = iso_jv_dict_get(obj->u.dict, key);
        if (v != NULL) {
            *out = *v;
            return ISO_OK;
        }
    } else if (jv_as_int(&i, key) && item_at(out, obj, i)) {
        return ISO_OK;
    }
    if (key->type == JV_STR) {
        if (obj->type == JV_NAMESPACE || obj->type == JV_LOOP) {
            return iso_jv_getattr(rt, out, obj, key->u.s, key->n);
        }
        ISO_TRY(method_value(rt, out, obj, key->u.s, key->n, &found));
        if (!found) *out = undef_on(obj, JV_UNDEF_ATTR, key->u.s, key->n);
        return ISO_OK;
    }
    struct jv name;
    const size_t mark = rt->buf.len;
    ISO_TRY(iso_jv_put_repr(rt, key));
    ISO_TRY(iso_jv_take(rt, &name, mark));
    *out = undef_on(obj, JV_UNDEF_ELEM, name.u.s, name.n);
    return ISO_OK;
}

/* Bounds as Python's slice.indices(len) gives them. */
static enum iso_err
slice_bounds(struct jinja_rt *rt, int64_t at[3], const struct jv bound[3], int64_t len)
{
    for (int i = 0; i < 3; i++) {
        at[i] = 0;
        if (bound[i].type == JV_UNDEF) return iso_jinja_fail_undef(rt, &bound[i]);
        if (bound[i].type != JV_NONE && !jv_as_int(&at[i], &bound[i])) {
            JINJA_FAIL(rt, "slice indices must be integers or None or have an __index__ method");
        }
    }
    if (bound[2].type == JV_NONE) at[2] = 1;
    if (at[2] == 0) JINJA_FAIL(rt, "slice step cannot be zero");
    const bool down = at[2] < 0;
    for (int i = 0; i < 2; i++) {
        if (bound[i].type == JV_NONE) {
            at[i] = (i == 0) == down ? (down ? len - 1 : len) : (down ? -1 : 0);
            continue;
        }
        if (at[i] < 0) at[i] += len;
        const int64_t lo = down ? -1 : 0, hi = down ? len - 1 : len;
        at[i] = at[i] < lo ? lo : at[i] > hi ? hi : at[i];
    }
    return ISO_OK;
}

static enum iso_err slice_str(
    struct jinja_rt *rt, struct jv *out, const struct jv *obj, const int64_t at[3], size_t count)
{
    const size_t mark = rt->buf.len;
    ISO_TRY(iso_jinja_charge_bytes(rt, obj->n));
    if (at[2] == 1) {
        const size_t lo = iso_jt_offset(obj->u.s, obj->n, (size_t)at[0]);
        const size_t n = iso_jt_offset(obj->u.s + lo, obj->n - lo, count);
        *out = jv_str(obj->u.s + lo, n);
    } else if (at[2] == -1 && count > 0) {
        const int64_t forward[3] = {at[0] - (int64_t)count + 1, at[0] + 1, 1};
        struct jv part;
        ISO_TRY(slice_str(rt, &part, obj, forward, count));
        ISO_TRY(iso_jt_reverse(rt, out, &part));
    } else {
        for (size_t i = 0; i < count; i++) {
            struct jv c;
            ISO_TRY(iso_jinja_charge(rt, 1 + obj->n / 64));
            if (item_at(&c, obj, at[0] + (int64_t)i * at[2])) ISO_TRY(iso_jv_put_str(rt, &c));
        }
        ISO_TRY(iso_jv_take(rt, out, mark));
    }
    out->sub = obj->sub & JV_STR_MARKUP;
    return ISO_OK;
}

/* start + i * step; the end of an empty slice may lie outside 64 bits, where nobody reads it. */
static int64_t wrap_add(int64_t start, int64_t i, int64_t step)
{
    return (int64_t)((uint64_t)start + (uint64_t)i * (uint64_t)step);
}

enum iso_err
iso_jv_slice(struct jinja_rt *rt, struct jv *out, const struct jv *obj, const struct jv bound[3])
{
    size_t len = 0;
    int64_t at[3];
    if (obj->type == JV_UNDEF) return iso_jinja_fail_undef(rt, obj);
    const bool sliceable = is_sequence(obj) || obj->type == JV_RANGE;
    if (obj->type == JV_DICT) JINJA_FAIL(rt, "unhashable type: 'slice'");
    if (!sliceable) JINJA_FAIL(rt, "'%s' object is not subscriptable", iso_jv_type_name(obj));
    (void)iso_jv_len(&len, obj);
    ISO_TRY(slice_bounds(rt, at, bound, (int64_t)len));
    int64_t count = 0;
    if (at[2] > 0 && at[1] > at[0]) count = (at[1] - at[0] - 1) / at[2] + 1;
    /* The step may be INT64_MIN, which has no negative: divide by the negative step instead. */
    if (at[2] < 0 && at[0] > at[1]) count = (at[1] - at[0] + 1) / at[2] + 1;
    if (count <= 1) at[2] = 1;
    if (obj->type == JV_STR) return slice_str(rt, out, obj, at, (size_t)count);
    if (obj->type == JV_RANGE) {
        void *p = NULL;
        ISO_TRY(iso_jinja_alloc(&p, &rt->arena, 1, sizeof(struct jv_range)));
        const struct jv_range *r = obj->u.range;
        *(struct jv_range *)p = (struct jv_range){.start = wrap_add(r->start, at[0], r->step),
                                                  .stop = wrap_add(r->start, at[1], r->step),
                                                  .step = r->step * at[2],
                                                  .n = (size_t)count};
        *out = (struct jv){.type = JV_RANGE, .u.range = p};
        return ISO_OK;
    }
    struct jv *items = NULL;
    ISO_TRY(iso_jv_new_items(rt, &items, (size_t)count));
    for (int64_t i = 0; i < count; i++) items[i] = obj->u.items[at[0] + i * at[2]];
    *out = jv_items((enum jv_type)obj->type, items, (size_t)count);
    return ISO_OK;
}

/* --- sorting --- */

/* Merges the sorted runs [lo, mid) and [mid, hi) of idx into tmp. */
static enum iso_err merge(struct jinja_rt *rt,
                          const struct jv *keys,
                          const uint32_t *idx,
                          uint32_t *tmp,
                          size_t lo,
                          size_t mid,
                          size_t hi,
                          bool reverse)
{
    size_t i = lo, k = mid;
    for (size_t at = lo; at < hi; at++) {
        bool right = i == mid;
        if (!right && k < hi) {
            int c = 0;
            ISO_TRY(iso_jv_order(rt, &c, &keys[idx[k]], &keys[idx[i]], "<"));
            right = reverse ? c > 0 : c < 0;
        }
        tmp[at] = idx[right ? k++ : i++];
    }
    return ISO_OK;
}

enum iso_err
iso_jv_sort(struct jinja_rt *rt, struct jv *items, struct jv *keys, size_t n, bool reverse)
{
    void *p = NULL;
    struct jv *sorted = NULL;
    ISO_TRY(iso_jinja_alloc(&p, &rt->arena, 2 * n, sizeof(uint32_t)));
    ISO_TRY(iso_jv_new_items(rt, &sorted, n));
    uint32_t *idx = p, *tmp = idx + n;
    for (size_t i = 0; i < n; i++) idx[i] = (uint32_t)i;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * width) {
            const size_t mid = lo + width < n ? lo + width : n;
            const size_t hi = lo + 2 * width < n ? lo + 2 * width : n;
            ISO_TRY(merge(rt, keys, idx, tmp, lo, mid, hi, reverse));
        }
        uint32_t *swap = idx;
        idx = tmp;
        tmp = swap;
    }
    for (size_t i = 0; i < n; i++) sorted[i] = items[idx[i]];
    if (n) memcpy(items, sorted, n * sizeof(*items));
    return ISO_OK;
}
