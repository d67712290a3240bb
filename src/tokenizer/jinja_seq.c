/* SPDX-License-Identifier: MIT
 * jinja_seq.c - filters on sequences and mappings. */
#include <ctype.h>

#include "tokenizer/jinja.h"
#include "tokenizer/jinja_text.h"

#define FILTER(name)                                                                               \
    static enum iso_err name(struct jinja_rt *rt, struct jv *out, const struct jv *v,              \
                             struct jinja_args *a)

enum iso_err
iso_jinja_get_path(struct jinja_rt *rt, struct jv *out, const struct jv *v, const struct jv *path)
{
    *out = *v;
    if (path->type == JV_NONE || path->type == JV_UNSET) return ISO_OK;
    const struct jv dot = jv_cstr(".");
    struct jv parts = jv_items(JV_LIST, path, 1);
    if (path->type == JV_STR) ISO_TRY(iso_jt_split(rt, &parts, path, &dot, -1, false));
    for (size_t i = 0; i < parts.n; i++) {
        struct jv key = parts.u.items[i];
        int64_t number = 0;
        bool big = false;
        if (key.type == JV_STR && key.n > 0 && isdigit((unsigned char)key.u.s[0]) &&
            iso_jt_parse_int(&number, &big, &key, 10) && !big) {
            key = jv_int(number);
        }
        const struct jv box = *out;
        ISO_TRY(iso_jv_getitem(rt, out, &box, &key));
    }
    return ISO_OK;
}

/* The value to compare an item by: its attribute, lower case unless case_sensitive. */
static enum iso_err sort_key(struct jinja_rt *rt,
                             struct jv *out,
                             const struct jv *item,
                             const struct jv *attribute,
                             bool case_sensitive)
{
    struct jv v;
    ISO_TRY(iso_jinja_get_path(rt, &v, item, attribute));
    *out = v;
    return v.type == JV_STR && !case_sensitive ? iso_jt_case(rt, out, &v, JT_LOWER) : ISO_OK;
}

/* Keys by a comma-separated list of attributes, one list each. */
static enum iso_err sort_keys(struct jinja_rt *rt,
                              struct jv *out,
                              const struct jv *item,
                              const struct jv *attribute,
                              bool case_sensitive)
{
    const struct jv comma = jv_cstr(",");
    if (attribute->type != JV_STR || iso_jt_find(attribute, &comma, 0) == SIZE_MAX) {
        return sort_key(rt, out, item, attribute, case_sensitive);
    }
    struct jv parts, *keys = NULL;
    ISO_TRY(iso_jt_split(rt, &parts, attribute, &comma, -1, false));
    ISO_TRY(iso_jv_new_items(rt, &keys, parts.n));
    for (size_t i = 0; i < parts.n; i++) {
        ISO_TRY(sort_key(rt, &keys[i], item, &parts.u.items[i], case_sensitive));
    }
    *out = jv_items(JV_LIST, keys, parts.n);
    return ISO_OK;
}

/* Copy of list(v) that may be changed. */
static enum iso_err own_list(struct jinja_rt *rt, struct jv **items, size_t *n, const struct jv *v)
{
    struct jv list;
    ISO_TRY(iso_jv_list(rt, &list, v));
    ISO_TRY(iso_jv_new_items(rt, items, list.n));
    if (list.n) memcpy(*items, list.u.items, list.n * sizeof(struct jv));
    *n = list.n;
    return ISO_OK;
}

FILTER(do_list)
{
    (void)a;
    return iso_jv_list(rt, out, v);
}

FILTER(do_items)
{
    (void)a;
    if (v->type == JV_UNDEF) return iso_jv_new_iter(rt, out, NULL, 0, "generator");
    if (v->type != JV_DICT) JINJA_FAIL(rt, "Can only get item pairs from a mapping.");
    const struct jv view = {.type = JV_VIEW, .sub = JV_VIEW_ITEMS, .u.dict = v->u.dict};
    struct jv list;
    ISO_TRY(iso_jv_list(rt, &list, &view));
    return iso_jv_new_iter(rt, out, list.u.items, list.n, "generator");
}

FILTER(do_first)
{
    (void)a;
    struct jv_cursor c;
    ISO_TRY(iso_jv_cursor(rt, &c, v));
    ISO_TRY(iso_jv_next(rt, &c, out));
    if (out->type == JV_UNSET) *out = jv_undef_hint("No first item, sequence was empty.");
    return ISO_OK;
}

FILTER(do_last)
{
    (void)a;
    struct jv list;
    size_t n = 0;
    if (!iso_jv_len(&n, v)) JINJA_FAIL(rt, "'%s' object is not reversible", iso_jv_type_name(v));
    ISO_TRY(iso_jv_list(rt, &list, v));
    *out = list.n ? list.u.items[list.n - 1] : jv_undef_hint("No last item, sequence was empty.");
    return ISO_OK;
}

FILTER(do_reverse)
{
    (void)a;
    if (v->type == JV_STR) return iso_jt_reverse(rt, out, v);
    struct jv *items = NULL;
    size_t n = 0;
    ISO_TRY(own_list(rt, &items, &n, v));
    for (size_t i = 0; i < n / 2; i++) {
        const struct jv x = items[i];
        items[i] = items[n - 1 - i];
        items[n - 1 - i] = x;
    }
    if (v->type == JV_ITER) {
        *out = jv_items(JV_LIST, items, n);
        return ISO_OK;
    }
    return iso_jv_new_iter(rt, out, items, n, "list_reverseiterator");
}

FILTER(do_join)
{
    const struct jv empty = jv_cstr("");
    struct jv sep;
    const struct jv *d = a->bound[0].type == JV_UNSET ? &empty : &a->bound[0];
    const struct jv *attribute = &a->bound[1];
    ISO_TRY(iso_jv_to_str(rt, &sep, d));
    if (attribute->type == JV_UNSET || attribute->type == JV_NONE) {
        return iso_jt_join(rt, out, &sep, v, false);
    }
    struct jv *items = NULL;
    size_t n = 0;
    ISO_TRY(own_list(rt, &items, &n, v));
    for (size_t i = 0; i < n; i++) {
        const struct jv item = items[i];
        ISO_TRY(iso_jinja_get_path(rt, &items[i], &item, attribute));
    }
    const struct jv list = jv_items(JV_LIST, items, n);
    return iso_jt_join(rt, out, &sep, &list, false);
}

FILTER(do_sort)
{
    struct jv *items = NULL, *keys = NULL;
    size_t n = 0;
    ISO_TRY(own_list(rt, &items, &n, v));
    ISO_TRY(iso_jv_new_items(rt, &keys, n));
    for (size_t i = 0; i < n; i++) {
        ISO_TRY(sort_keys(rt, &keys[i], &items[i], &a->bound[2], iso_jv_truth(&a->bound[1])));
    }
    ISO_TRY(iso_jv_sort(rt, items, keys, n, iso_jv_truth(&a->bound[0])));
    *out = jv_items(JV_LIST, items, n);
    return ISO_OK;
}

FILTER(do_dictsort)
{
    const bool case_sensitive = iso_jv_truth(&a->bound[0]), reverse = iso_jv_truth(&a->bound[2]);
    const bool by_value = jv_is_str(&a->bound[1], "value");
    if (a->bound[1].type != JV_UNSET && !by_value && !jv_is_str(&a->bound[1], "key")) {
        JINJA_FAIL(rt, "You can only sort by either \"key\" or \"value\"");
    }
    if (v->type == JV_UNDEF) return iso_jinja_fail_undef(rt, v);
    if (v->type != JV_DICT)
        JINJA_FAIL(rt, "'%s' object has no attribute 'items'", iso_jv_type_name(v));
    const struct jv view = {.type = JV_VIEW, .sub = JV_VIEW_ITEMS, .u.dict = v->u.dict};
    const struct jv pos = jv_int(by_value);
    struct jv *items = NULL, *keys = NULL;
    size_t n = 0;
    ISO_TRY(own_list(rt, &items, &n, &view));
    ISO_TRY(iso_jv_new_items(rt, &keys, n));
    for (size_t i = 0; i < n; i++) ISO_TRY(sort_key(rt, &keys[i], &items[i], &pos, case_sensitive));
    ISO_TRY(iso_jv_sort(rt, items, keys, n, reverse));
    *out = jv_items(JV_LIST, items, n);
    return ISO_OK;
}

FILTER(do_unique)
{
    const bool case_sensitive = iso_jv_truth(&a->bound[0]);
    struct jv *items = NULL, seen;
    size_t n = 0, kept = 0;
    ISO_TRY(own_list(rt, &items, &n, v));
    ISO_TRY(iso_jv_dict_new(rt, &seen, JV_DICT, n));
    for (size_t i = 0; i < n; i++) {
        struct jv key;
        ISO_TRY(sort_key(rt, &key, &items[i], &a->bound[1], case_sensitive));
        const size_t before = seen.u.dict->n;
        ISO_TRY(iso_jv_dict_set(rt, seen.u.dict, &key, &key));
        if (seen.u.dict->n > before) items[kept++] = items[i];
    }
    return iso_jv_new_iter(rt, out, items, kept, "generator");
}

static enum iso_err extreme(
    struct jinja_rt *rt, struct jv *out, const struct jv *v, const struct jinja_args *a, int sign)
{
    struct jv *items = NULL, best;
    size_t n = 0;
    const bool case_sensitive = iso_jv_truth(&a->bound[0]);
    ISO_TRY(own_list(rt, &items, &n, v));
    *out = jv_undef_hint("No aggregated item, sequence was empty.");
    for (size_t i = 0; i < n; i++) {
        struct jv key;
        int c = 1;
        ISO_TRY(sort_key(rt, &key, &items[i], &a->bound[1], case_sensitive));
        if (i) ISO_TRY(iso_jv_order(rt, &c, &key, &best, sign > 0 ? ">" : "<"));
        if (i == 0 || c * sign > 0) {
            best = key;
            *out = items[i];
        }
    }
    return ISO_OK;
}

FILTER(do_min)
{
    return extreme(rt, out, v, a, -1);
}
FILTER(do_max)
{
    return extreme(rt, out, v, a, 1);
}

FILTER(do_sum)
{
    struct jv_cursor c;
    *out = a->bound[1].type == JV_UNSET ? jv_int(0) : a->bound[1];
    if (out->type == JV_STR) JINJA_FAIL(rt, "sum() can't sum strings [use ''.join(seq) instead]");
    ISO_TRY(iso_jv_cursor(rt, &c, v));
    for (;;) {
        struct jv item, value;
        ISO_TRY(iso_jv_next(rt, &c, &item));
        if (item.type == JV_UNSET) return ISO_OK;
        ISO_TRY(iso_jinja_get_path(rt, &value, &item, &a->bound[0]));
        const struct jv sum = *out;
        ISO_TRY(iso_jv_binary(rt, out, '+', &sum, &value));
    }
}

FILTER(do_batch)
{
    int64_t size = 0;
    struct jv *items = NULL, *rows = NULL;
    size_t n = 0, n_rows = 0;
    if (!jv_as_int(&size, &a->bound[0]) || size < 1)
        JINJA_FAIL(rt, "batch needs a size of at least 1");
    ISO_TRY(own_list(rt, &items, &n, v));
    ISO_TRY(iso_jv_new_items(rt, &rows, n));
    const struct jv *fill = &a->bound[1];
    const bool fills = fill->type != JV_UNSET && fill->type != JV_NONE;
    for (size_t i = 0; i < n; i += (size_t)size) {
        size_t len = n - i < (size_t)size ? n - i : (size_t)size;
        struct jv *row = items + i;
        if (fills && len < (size_t)size) {
            ISO_TRY(iso_jv_new_items(rt, &row, (size_t)size));
            memcpy(row, items + i, len * sizeof(*row));
            while (len < (size_t)size) row[len++] = *fill;
        }
        rows[n_rows++] = jv_items(JV_LIST, row, len);
    }
    return iso_jv_new_iter(rt, out, rows, n_rows, "generator");
}

static const struct jinja_kw *find_kw(const struct jinja_args *a, const char *name)
{
    for (size_t i = 0; i < a->n_kw; i++) {
        if (a->kw[i].n == strlen(name) && memcmp(a->kw[i].s, name, a->kw[i].n) == 0)
            return &a->kw[i];
    }
    return NULL;
}

/* map(attribute=..., default=...) on one item. */
static enum iso_err map_attribute(struct jinja_rt *rt,
                                  struct jv *out,
                                  const struct jv *item,
                                  const struct jinja_args *a)
{
    const struct jinja_kw *fallback = find_kw(a, "default");
    if (a->n_kw > 1 + (fallback != NULL)) JINJA_FAIL(rt, "Unexpected keyword argument in map");
    ISO_TRY(iso_jinja_get_path(rt, out, item, &find_kw(a, "attribute")->v));
    if (out->type == JV_UNDEF && fallback != NULL && fallback->v.type != JV_NONE)
        *out = fallback->v;
    return ISO_OK;
}

FILTER(do_map)
{
    struct jv *items = NULL;
    size_t n = 0;
    if (!iso_jv_truth(v)) return iso_jv_new_iter(rt, out, NULL, 0, "generator");
    const bool by_attribute = a->n_pos == 0 && find_kw(a, "attribute") != NULL;
    const struct jinja_filter *f = NULL;
    if (!by_attribute) {
        if (a->n_pos == 0) JINJA_FAIL(rt, "map requires a filter argument");
        if (a->pos[0].type == JV_STR) f = iso_jinja_filter_find(a->pos[0].u.s, a->pos[0].n);
        if (f == NULL) JINJA_FAIL(rt, "No such filter in map");
    }
    ISO_TRY(own_list(rt, &items, &n, v));
    for (size_t i = 0; i < n; i++) {
        const struct jv item = items[i];
        if (by_attribute) {
            ISO_TRY(map_attribute(rt, &items[i], &item, a));
        } else {
            struct jinja_args inner = {a->pos + 1, a->n_pos - 1, a->kw, a->n_kw, {{0}}};
            ISO_TRY(iso_jinja_deeper(rt)); /* map('map', ...) nests */
            ISO_TRY(iso_jinja_apply_filter(rt, &items[i], &item, f, &inner));
            rt->depth--;
        }
    }
    return iso_jv_new_iter(rt, out, items, n, "generator");
}

/* select, reject and their attr forms: keeps the items whose test gives want. */
static enum iso_err choose(struct jinja_rt *rt,
                           struct jv *out,
                           const struct jv *v,
                           struct jinja_args *a,
                           bool want,
                           bool by_attribute)
{
    struct jv *items = NULL;
    size_t n = 0, kept = 0;
    const size_t off = by_attribute;
    if (!iso_jv_truth(v)) return iso_jv_new_iter(rt, out, NULL, 0, "generator");
    if (a->n_pos < off) JINJA_FAIL(rt, "Missing parameter for attribute name");
    const struct jinja_test *test = NULL;
    if (a->n_pos > off) {
        const struct jv *name = &a->pos[off];
        if (name->type == JV_STR) test = iso_jinja_test_find(name->u.s, name->n);
        if (test == NULL) JINJA_FAIL(rt, "No such test");
    }
    ISO_TRY(own_list(rt, &items, &n, v));
    for (size_t i = 0; i < n; i++) {
        struct jv value = items[i];
        bool yes = false;
        if (by_attribute) ISO_TRY(iso_jinja_get_path(rt, &value, &items[i], &a->pos[0]));
        if (test != NULL) {
            struct jinja_args inner = {a->pos + off + 1, a->n_pos - off - 1, a->kw, a->n_kw, {{0}}};
            ISO_TRY(iso_jinja_apply_test(rt, &yes, &value, test, &inner));
        } else {
            yes = iso_jv_truth(&value);
        }
        if (yes == want) items[kept++] = items[i];
    }
    return iso_jv_new_iter(rt, out, items, kept, "generator");
}

FILTER(do_select)
{
    return choose(rt, out, v, a, true, false);
}
FILTER(do_reject)
{
    return choose(rt, out, v, a, false, false);
}
FILTER(do_selectattr)
{
    return choose(rt, out, v, a, true, true);
}
FILTER(do_rejectattr)
{
    return choose(rt, out, v, a, false, true);
}

const struct jinja_filter iso_jinja_seq_filters[] = {
    {"batch", do_batch, {"linecount", "fill_with"}, 1},
    {"dictsort", do_dictsort, {"case_sensitive", "by", "reverse"}, 0},
    {"first", do_first, {0}, 0},
    {"items", do_items, {0}, 0},
    {"join", do_join, {"d", "attribute"}, 0},
    {"last", do_last, {0}, 0},
    {"list", do_list, {0}, 0},
    {"map", do_map, {"*"}, 0},
    {"max", do_max, {"case_sensitive", "attribute"}, 0},
    {"min", do_min, {"case_sensitive", "attribute"}, 0},
    {"reject", do_reject, {"*"}, 0},
    {"rejectattr", do_rejectattr, {"*"}, 0},
    {"reverse", do_reverse, {0}, 0},
    {"select", do_select, {"*"}, 0},
    {"selectattr", do_selectattr, {"*"}, 0},
    {"sort", do_sort, {"reverse", "case_sensitive", "attribute"}, 0},
    {"sum", do_sum, {"attribute", "start"}, 0},
    {"unique", do_unique, {"case_sensitive", "attribute"}, 0},
    {0},
};
