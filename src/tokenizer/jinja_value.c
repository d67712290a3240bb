/* SPDX-License-Identifier: MIT
 * jinja_value.c - dicts, properties, iteration and comparison of template values. */
#include "tokenizer/jinja_value.h"

#include <math.h>

#include "tokenizer/jinja.h"
#include "tokenizer/jinja_text.h"

#define DICT_LINEAR 8 /* entries up to which a scan beats the hash */
#define MAX_KEY_TUPLE                                                                              \
    16 /* items of a tuple that is a key; none may be a tuple, so work is bounded */

/* --- dicts --- */

bool iso_jv_hashable(const struct jv *k)
{
    if (k->type == JV_TUPLE) {
        if (k->n > MAX_KEY_TUPLE) return false;
        for (size_t i = 0; i < k->n; i++) {
            const struct jv *item = &k->u.items[i];
            if (item->type == JV_TUPLE || !iso_jv_hashable(item)) return false;
        }
    }
    return k->type != JV_LIST && k->type != JV_DICT && k->type != JV_UNSET;
}

static enum iso_err check_key(struct jinja_rt *rt, const struct jv *k)
{
    if (k->type == JV_STR) return iso_jinja_charge_bytes(rt, k->n);
    if (iso_jv_hashable(k)) return ISO_OK;
    JINJA_FAIL(rt,
               k->type == JV_TUPLE ? "%s of this form as a key is not supported"
                                   : "unhashable type: '%s'",
               iso_jv_type_name(k));
}

/* Equality of two hashable values. */
static bool key_equal(const struct jv *a, const struct jv *b)
{
    if (jv_is_number(a) && jv_is_number(b)) {
        int64_t i = 0, k = 0;
        if (jv_as_int(&i, a) && jv_as_int(&k, b)) return i == k;
        return jv_as_float(a) == jv_as_float(b);
    }
    if (a->type != b->type) return false;
    switch (a->type) {
    case JV_STR:
        return a->n == b->n && memcmp(a->u.s, b->u.s, a->n) == 0;
    case JV_NONE:
    case JV_UNDEF:
        return true;
    case JV_TUPLE:
        if (a->n != b->n) return false;
        for (size_t i = 0; i < a->n; i++) {
            if (!key_equal(&a->u.items[i], &b->u.items[i])) return false;
        }
        return true;
    default:
        return a->u.s == b->u.s;
    }
}

static size_t key_hash(const struct jv *k)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
    if (k->type == JV_STR) {
        for (size_t i = 0; i < k->n; i++) h = (h ^ (unsigned char)k->u.s[i]) * 0x100000001b3u;
    } else if (jv_is_number(k)) {
        const double f = jv_as_float(k);
        uint64_t bits = 0;
        memcpy(&bits, &f, sizeof(bits));
        h = (h ^ bits) * 0x9e3779b97f4a7c15u;
    }
    return (size_t)(h ^ h >> 29);
}

enum iso_err iso_jv_dict_new(struct jinja_rt *rt, struct jv *out, enum jv_type type, size_t cap)
{
    void *d = NULL, *e = NULL;
    ISO_TRY(iso_jinja_alloc(&d, &rt->arena, 1, sizeof(struct jv_dict)));
    ISO_TRY(iso_jinja_alloc(&e, &rt->arena, cap, sizeof(struct jv_pair)));
    *(struct jv_dict *)d = (struct jv_dict){.e = e, .cap = cap};
    *out = (struct jv){.type = (uint8_t)type, .u.dict = d};
    return ISO_OK;
}

static void index_entry(struct jv_dict *d, size_t i)
{
    size_t at = key_hash(&d->e[i].k) & d->mask;
    while (d->index[at]) at = (at + 1) & d->mask;
    d->index[at] = (uint32_t)i + 1;
}

/* Room for one more entry in the entries and in the index. */
static enum iso_err dict_grow(struct jinja_rt *rt, struct jv_dict *d)
{
    void *p = NULL;
    if (d->n == d->cap) {
        const size_t cap = d->cap ? 2 * d->cap : 4;
        ISO_TRY(iso_jinja_alloc(&p, &rt->arena, cap, sizeof(struct jv_pair)));
        if (d->n) memcpy(p, d->e, d->n * sizeof(struct jv_pair));
        d->e = p;
        d->cap = cap;
    }
    if (d->n < DICT_LINEAR || (d->index != NULL && 2 * (d->n + 1) <= d->mask)) return ISO_OK;
    size_t slots = 32;
    while (slots < 4 * (d->n + 1)) slots *= 2;
    ISO_TRY(iso_jinja_alloc(&p, &rt->arena, slots, sizeof(uint32_t)));
    d->index = p;
    d->mask = slots - 1;
    for (size_t i = 0; i < d->n; i++) index_entry(d, i);
    return ISO_OK;
}

static struct jv_pair *dict_find(const struct jv_dict *d, const struct jv *k)
{
    if (d->index == NULL) {
        for (size_t i = 0; i < d->n; i++) {
            if (key_equal(&d->e[i].k, k)) return &d->e[i];
        }
        return NULL;
    }
    for (size_t at = key_hash(k) & d->mask; d->index[at]; at = (at + 1) & d->mask) {
        struct jv_pair *p = &d->e[d->index[at] - 1];
        if (key_equal(&p->k, k)) return p;
    }
    return NULL;
}

enum iso_err
iso_jv_dict_set(struct jinja_rt *rt, struct jv_dict *d, const struct jv *k, const struct jv *v)
{
    ISO_TRY(check_key(rt, k));
    ISO_TRY(iso_jinja_charge(rt, 1));
    struct jv_pair *p = dict_find(d, k);
    if (p != NULL) {
        p->v = *v;
        return ISO_OK;
    }
    ISO_TRY(dict_grow(rt, d));
    d->e[d->n++] = (struct jv_pair){*k, *v};
    if (d->index != NULL) index_entry(d, d->n - 1);
    return ISO_OK;
}

const struct jv *iso_jv_dict_get(const struct jv_dict *d, const struct jv *k)
{
    const struct jv_pair *p = iso_jv_hashable(k) ? dict_find(d, k) : NULL;
    return p != NULL ? &p->v : NULL;
}

/* --- properties --- */

bool iso_jv_truth(const struct jv *v)
{
    size_t n = 0;
    switch (v->type) {
    case JV_UNSET:
    case JV_UNDEF:
    case JV_NONE:
        return false;
    case JV_BOOL:
        return v->u.b;
    case JV_INT:
        return v->u.i != 0;
    case JV_FLOAT:
        return v->u.f != 0.0;
    case JV_STR:
        return v->n > 0;
    default:
        return !iso_jv_len(&n, v) || n > 0;
    }
}

const char *iso_jv_type_name(const struct jv *v)
{
    static const char *const names[] = {
        [JV_UNSET] = "missing",
        [JV_UNDEF] = "Undefined",
        [JV_NONE] = "NoneType",
        [JV_BOOL] = "bool",
        [JV_INT] = "int",
        [JV_FLOAT] = "float",
        [JV_STR] = "str",
        [JV_LIST] = "list",
        [JV_TUPLE] = "tuple",
        [JV_DICT] = "dict",
        [JV_VIEW] = "dict_items",
        [JV_RANGE] = "range",
        [JV_ITER] = "generator",
        [JV_NAMESPACE] = "jinja2.utils.Namespace",
        [JV_MACRO] = "Macro",
        [JV_FUNCTION] = "function",
        [JV_METHOD] = "builtin_function_or_method",
        [JV_LOOP] = "LoopContext",
    };
    if (v->type == JV_STR && (v->sub & JV_STR_MARKUP)) return "Markup";
    if (v->type == JV_VIEW && v->sub != JV_VIEW_ITEMS) {
        return v->sub == JV_VIEW_KEYS ? "dict_keys" : "dict_values";
    }
    return names[v->type];
}

bool iso_jv_len(size_t *out, const struct jv *v)
{
    switch (v->type) {
    case JV_UNDEF:
        *out = 0;
        return true;
    case JV_STR:
        *out = iso_jt_count(v->u.s, v->n);
        return true;
    case JV_LIST:
    case JV_TUPLE:
        *out = v->n;
        return true;
    case JV_DICT:
    case JV_VIEW:
        *out = v->u.dict->n;
        return true;
    case JV_RANGE:
        *out = v->u.range->n;
        return true;
    default:
        return false;
    }
}

/* --- iteration --- */

bool iso_jv_iterable(const struct jv *v)
{
    switch (v->type) {
    case JV_UNDEF:
    case JV_STR:
    case JV_LIST:
    case JV_TUPLE:
    case JV_DICT:
    case JV_VIEW:
    case JV_RANGE:
    case JV_ITER:
    case JV_LOOP:
        return true;
    default:
        return false;
    }
}

enum iso_err iso_jv_cursor(struct jinja_rt *rt, struct jv_cursor *c, const struct jv *v)
{
    if (!iso_jv_iterable(v) || v->type == JV_LOOP) {
        JINJA_FAIL(rt, "'%s' object is not iterable", iso_jv_type_name(v));
    }
    *c = (struct jv_cursor){.v = *v};
    return ISO_OK;
}

static enum iso_err
view_item(struct jinja_rt *rt, struct jv *item, const struct jv *v, const struct jv_pair *p)
{
    if (v->type == JV_DICT || v->sub == JV_VIEW_KEYS) {
        *item = p->k;
    } else if (v->sub == JV_VIEW_VALUES) {
        *item = p->v;
    } else {
        struct jv *pair = NULL;
        ISO_TRY(iso_jv_new_items(rt, &pair, 2));
        pair[0] = p->k;
        pair[1] = p->v;
        *item = jv_items(JV_TUPLE, pair, 2);
    }
    return ISO_OK;
}

enum iso_err iso_jv_next(struct jinja_rt *rt, struct jv_cursor *c, struct jv *item)
{
    const struct jv *v = &c->v;
    *item = (struct jv){.type = JV_UNSET};
    ISO_TRY(iso_jinja_charge(rt, 1));
    switch (v->type) {
    case JV_STR:
        if (c->at < v->n) {
            int32_t cp = 0;
            const size_t len = iso_jt_decode(&cp, v->u.s + c->at, v->n - c->at);
            *item = jv_str(v->u.s + c->at, len);
            c->at += len;
        }
        break;
    case JV_LIST:
    case JV_TUPLE:
        if (c->at < v->n) *item = v->u.items[c->at++];
        break;
    case JV_ITER:
        if (v->u.iter->pos < v->u.iter->n) *item = v->u.iter->items[v->u.iter->pos++];
        break;
    case JV_RANGE:
        if (c->at < v->u.range->n) {
            *item = jv_int(v->u.range->start + (int64_t)c->at++ * v->u.range->step);
        }
        break;
    case JV_DICT:
    case JV_VIEW:
        if (c->at < v->u.dict->n) return view_item(rt, item, v, &v->u.dict->e[c->at++]);
        break;
    default:
        break; /* undefined: empty */
    }
    return ISO_OK;
}

enum iso_err iso_jv_list(struct jinja_rt *rt, struct jv *out, const struct jv *v)
{
    if (v->type == JV_LIST || v->type == JV_TUPLE) {
        *out = jv_items(JV_LIST, v->u.items, v->n);
        return ISO_OK;
    }
    struct jv_cursor c;
    ISO_TRY(iso_jv_cursor(rt, &c, v));
    size_t n = 0;
    if (v->type == JV_ITER)
        n = v->u.iter->n - v->u.iter->pos;
    else
        (void)iso_jv_len(&n, v);
    struct jv *items = NULL;
    ISO_TRY(iso_jv_new_items(rt, &items, n));
    for (size_t i = 0; i < n; i++) ISO_TRY(iso_jv_next(rt, &c, &items[i]));
    *out = jv_items(JV_LIST, items, n);
    return ISO_OK;
}

/* --- comparison --- */

static enum iso_err
equal_items(struct jinja_rt *rt, bool *out, const struct jv *a, const struct jv *b)
{
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++) {
        ISO_TRY(iso_jv_equal(rt, out, &a->u.items[i], &b->u.items[i]));
    }
    return ISO_OK;
}

static enum iso_err
equal_dicts(struct jinja_rt *rt, bool *out, const struct jv_dict *a, const struct jv_dict *b)
{
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++) {
        const struct jv *v = iso_jv_dict_get(b, &a->e[i].k);
        *out = v != NULL;
        if (v != NULL) ISO_TRY(iso_jv_equal(rt, out, &a->e[i].v, v));
    }
    return ISO_OK;
}

enum iso_err iso_jv_equal(struct jinja_rt *rt, bool *out, const struct jv *a, const struct jv *b)
{
    ISO_TRY(iso_jinja_charge(rt, 1 + (a->type == JV_STR ? a->n / 64 : 0)));
    if (a->type == b->type && (a->type == JV_LIST || a->type == JV_TUPLE || a->type == JV_DICT)) {
        ISO_TRY(iso_jinja_deeper(rt));
        ISO_TRY(a->type == JV_DICT ? equal_dicts(rt, out, a->u.dict, b->u.dict)
                                   : equal_items(rt, out, a, b));
        rt->depth--;
        return ISO_OK;
    }
    if (a->type == JV_RANGE && b->type == JV_RANGE) {
        const struct jv_range *x = a->u.range, *y = b->u.range;
        *out = x->n == y->n &&
               (x->n == 0 || (x->start == y->start && (x->n == 1 || x->step == y->step)));
        return ISO_OK;
    }
    *out = key_equal(a, b);
    return ISO_OK;
}

static enum iso_err
order_items(struct jinja_rt *rt, int *out, const struct jv *a, const struct jv *b, const char *op)
{
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        bool same = false;
        ISO_TRY(iso_jv_equal(rt, &same, &a->u.items[i], &b->u.items[i]));
        if (!same) return iso_jv_order(rt, out, &a->u.items[i], &b->u.items[i], op);
    }
    *out = (a->n > b->n) - (a->n < b->n);
    return ISO_OK;
}

enum iso_err
iso_jv_order(struct jinja_rt *rt, int *out, const struct jv *a, const struct jv *b, const char *op)
{
    ISO_TRY(iso_jinja_charge(rt, 1));
    if (a->type == JV_UNDEF) return iso_jinja_fail_undef(rt, a);
    if (b->type == JV_UNDEF) return iso_jinja_fail_undef(rt, b);
    if (jv_is_number(a) && jv_is_number(b)) {
        int64_t i = 0, k = 0;
        if (jv_as_int(&i, a) && jv_as_int(&k, b)) {
            *out = (i > k) - (i < k);
            return ISO_OK;
        }
        const double f = jv_as_float(a), g = jv_as_float(b);
        if (isnan(f) || isnan(g)) JINJA_FAIL(rt, "'%s' of a value that is not a number", op);
        *out = (f > g) - (f < g);
        return ISO_OK;
    }
    if (a->type == JV_STR && b->type == JV_STR) {
        const size_t n = a->n < b->n ? a->n : b->n;
        const int c = n ? memcmp(a->u.s, b->u.s, n) : 0; /* UTF-8 sorts as its code points do */
        *out = c ? c : (a->n > b->n) - (a->n < b->n);
        return iso_jinja_charge_bytes(rt, n);
    }
    if (a->type == b->type && (a->type == JV_LIST || a->type == JV_TUPLE)) {
        ISO_TRY(iso_jinja_deeper(rt));
        ISO_TRY(order_items(rt, out, a, b, op));
        rt->depth--;
        return ISO_OK;
    }
    JINJA_FAIL(rt, "'%s' not supported between instances of '%s' and '%s'", op, iso_jv_type_name(a),
               iso_jv_type_name(b));
}

enum iso_err
iso_jv_contains(struct jinja_rt *rt, bool *out, const struct jv *box, const struct jv *item)
{
    if (box->type == JV_STR) {
        if (item->type != JV_STR) {
            JINJA_FAIL(rt, "'in <string>' requires string as left operand, not %s",
                       iso_jv_type_name(item));
        }
        *out = iso_jt_find(box, item, 0) != SIZE_MAX;
        return iso_jinja_charge_bytes(rt, box->n);
    }
    const bool keys = box->type == JV_DICT || (box->type == JV_VIEW && box->sub == JV_VIEW_KEYS);
    if (keys) {
        ISO_TRY(check_key(rt, item));
        *out = iso_jv_dict_get(box->u.dict, item) != NULL;
        return ISO_OK;
    }
    if (!iso_jv_iterable(box) || box->type == JV_LOOP) {
        JINJA_FAIL(rt, "argument of type '%s' is not iterable", iso_jv_type_name(box));
    }
    struct jv_cursor c;
    struct jv v;
    *out = false;
    ISO_TRY(iso_jv_cursor(rt, &c, box));
    for (;;) {
        ISO_TRY(iso_jv_next(rt, &c, &v));
        if (v.type == JV_UNSET) return ISO_OK;
        ISO_TRY(iso_jv_equal(rt, out, &v, item));
        if (*out) return ISO_OK;
    }
}
