/* SPDX-License-Identifier: MIT
 * jinja_filters.c - filters on single values, argument binding, and the search for a filter. */
#include <math.h>
#include <stdio.h>

#include "base/json.h"
#include "tokenizer/jinja.h"
#include "tokenizer/jinja_text.h"

#define FROM_JSON_MAX (4u << 20) /* bytes of JSON that |from_json reads */

#define FILTER(name)                                                                               \
    static enum iso_err name(struct jinja_rt *rt, struct jv *out, const struct jv *v,              \
                             struct jinja_args *a)

static const struct jv *arg_or(const struct jinja_args *a, int i, const struct jv *otherwise)
{
    return a->bound[i].type == JV_UNSET ? otherwise : &a->bound[i];
}

/* soft_str(v): a string as it is, anything else as text. */
static enum iso_err soft_str(struct jinja_rt *rt, struct jv *out, const struct jv *v)
{
    if (v->type != JV_STR) return iso_jv_to_str(rt, out, v);
    *out = *v;
    return ISO_OK;
}

static enum iso_err
change_case(struct jinja_rt *rt, struct jv *out, const struct jv *v, enum jt_case how)
{
    struct jv s;
    ISO_TRY(soft_str(rt, &s, v));
    return iso_jt_case(rt, out, &s, how);
}

FILTER(do_upper)
{
    (void)a;
    return change_case(rt, out, v, JT_UPPER);
}
FILTER(do_lower)
{
    (void)a;
    return change_case(rt, out, v, JT_LOWER);
}
FILTER(do_capitalize)
{
    (void)a;
    return change_case(rt, out, v, JT_CAPITALIZE);
}
FILTER(do_title)
{
    (void)a;
    return change_case(rt, out, v, JT_WORDS);
}

FILTER(do_string)
{
    (void)a;
    return soft_str(rt, out, v);
}

FILTER(do_safe)
{
    (void)a;
    ISO_TRY(iso_jv_to_str(rt, out, v));
    out->sub = JV_STR_MARKUP;
    return ISO_OK;
}

FILTER(do_escape)
{
    (void)a;
    const size_t mark = rt->buf.len;
    ISO_TRY(iso_jt_put_escaped(rt, v));
    ISO_TRY(iso_jv_take(rt, out, mark));
    out->sub = JV_STR_MARKUP;
    return ISO_OK;
}

FILTER(do_trim)
{
    struct jv s;
    ISO_TRY(soft_str(rt, &s, v));
    const struct jv *chars = &a->bound[0];
    if (chars->type == JV_UNSET || chars->type == JV_NONE)
        chars = NULL;
    else if (chars->type != JV_STR)
        JINJA_FAIL(rt, "strip arg must be None or str");
    ISO_TRY(iso_jinja_charge_bytes(rt, s.n));
    if (chars != NULL && chars->n > 64) ISO_TRY(iso_jinja_charge(rt, s.n / 64 * (chars->n / 64)));
    *out = iso_jt_strip(&s, chars, JT_LEFT | JT_RIGHT);
    return ISO_OK;
}

FILTER(do_replace)
{
    struct jv s, old, by;
    int64_t count = -1;
    ISO_TRY(iso_jv_to_str(rt, &s, v));
    ISO_TRY(iso_jv_to_str(rt, &old, &a->bound[0]));
    ISO_TRY(iso_jv_to_str(rt, &by, &a->bound[1]));
    const struct jv *n = &a->bound[2];
    if (n->type != JV_UNSET && n->type != JV_NONE && !jv_as_int(&count, n)) {
        JINJA_FAIL(rt, "'%s' object cannot be interpreted as an integer", iso_jv_type_name(n));
    }
    return iso_jt_replace(rt, out, &s, &old, &by, count);
}

FILTER(do_default)
{
    const struct jv empty = jv_cstr("");
    const bool missing = v->type == JV_UNDEF || (iso_jv_truth(&a->bound[1]) && !iso_jv_truth(v));
    *out = missing ? *arg_or(a, 0, &empty) : *v;
    (void)rt;
    return ISO_OK;
}

FILTER(do_length)
{
    (void)a;
    size_t n = 0;
    if (!iso_jv_len(&n, v)) JINJA_FAIL(rt, "object of type '%s' has no len()", iso_jv_type_name(v));
    *out = jv_int((int64_t)n);
    return iso_jinja_charge_bytes(rt, v->type == JV_STR ? v->n : 0);
}

static enum iso_err int_of_float(struct jinja_rt *rt, struct jv *out, double f)
{
    if (!(f > -9.2e18 && f < 9.2e18)) JINJA_FAIL(rt, "integer of a float beyond 64 bits");
    *out = jv_int((int64_t)f);
    return ISO_OK;
}

FILTER(do_int)
{
    const struct jv zero = jv_int(0);
    int64_t base = 10, i = 0;
    double f = 0;
    bool big = false;
    if (v->type == JV_UNDEF) return iso_jinja_fail_undef(rt, v);
    if (v->type == JV_STR) ISO_TRY(iso_jinja_charge_bytes(rt, v->n));
    if (a->bound[1].type != JV_UNSET &&
        (!jv_as_int(&base, &a->bound[1]) || base < 2 || base > 36)) {
        JINJA_FAIL(rt, "int() base must be from 2 to 36");
    }
    if (jv_as_int(&i, v))
        *out = jv_int(i);
    else if (v->type == JV_FLOAT)
        return int_of_float(rt, out, v->u.f);
    else if (v->type == JV_STR && iso_jt_parse_int(&i, &big, v, (int)base))
        *out = jv_int(i);
    else if (v->type == JV_STR && iso_jt_parse_float(&f, v) && isfinite(f))
        return int_of_float(rt, out, f);
    else
        *out = *arg_or(a, 0, &zero);
    if (big) JINJA_FAIL(rt, "integer needs more than 64 bits");
    return ISO_OK;
}

FILTER(do_float)
{
    const struct jv zero = jv_float(0.0);
    double f = 0;
    if (v->type == JV_UNDEF) return iso_jinja_fail_undef(rt, v);
    if (v->type == JV_STR) ISO_TRY(iso_jinja_charge_bytes(rt, v->n));
    if (jv_is_number(v))
        *out = jv_float(jv_as_float(v));
    else if (v->type == JV_STR && iso_jt_parse_float(&f, v))
        *out = jv_float(f);
    else
        *out = *arg_or(a, 0, &zero);
    return ISO_OK;
}

FILTER(do_abs)
{
    (void)a;
    if (v->type == JV_FLOAT) {
        *out = jv_float(fabs(v->u.f));
        return ISO_OK;
    }
    int64_t i = 0;
    if (v->type == JV_UNDEF) return iso_jinja_fail_undef(rt, v);
    if (!jv_as_int(&i, v)) JINJA_FAIL(rt, "bad operand type for abs(): '%s'", iso_jv_type_name(v));
    const struct jv number = jv_int(i);
    if (i < 0) return iso_jv_negate(rt, out, &number);
    *out = number;
    return ISO_OK;
}

FILTER(do_round)
{
    int64_t precision = 0;
    const struct jv *p = &a->bound[0], *how = &a->bound[1];
    if (p->type != JV_UNSET && !jv_as_int(&precision, p))
        JINJA_FAIL(rt, "precision must be an integer");
    const bool common = how->type == JV_UNSET || jv_is_str(how, "common");
    if (!common && !jv_is_str(how, "ceil") && !jv_is_str(how, "floor")) {
        JINJA_FAIL(rt, "method must be common, ceil or floor");
    }
    if (v->type == JV_UNDEF) return iso_jinja_fail_undef(rt, v);
    if (!jv_is_number(v))
        JINJA_FAIL(rt, "type %s doesn't define __round__ method", iso_jv_type_name(v));
    if (precision < 0 || precision > 15)
        JINJA_FAIL(rt, "round to %d places is not supported", (int)precision);
    int64_t i = 0;
    if (jv_as_int(&i, v) && common) {
        *out = jv_int(i);
        return ISO_OK;
    }
    const double f = jv_as_float(v), scale = pow(10.0, (double)precision);
    if (common) {
        char text[400]; /* C's decimal conversion rounds half to even on the exact value, as Python
                         */
        (void)snprintf(text, sizeof(text), "%.*f", (int)precision, f);
        const struct jv s = jv_cstr(text);
        double r = f;
        (void)iso_jt_parse_float(&r, &s);
        *out = jv_float(r);
    } else {
        *out = jv_float((jv_is_str(how, "ceil") ? ceil(f * scale) : floor(f * scale)) / scale);
    }
    return ISO_OK;
}

FILTER(do_format)
{
    struct jv s;
    ISO_TRY(soft_str(rt, &s, v));
    if (a->n_pos && a->n_kw)
        JINJA_FAIL(rt, "can't handle positional and keyword arguments at the same time");
    if (a->n_kw == 0) {
        const struct jv tuple = jv_items(JV_TUPLE, a->pos, a->n_pos);
        return iso_jv_percent(rt, out, &s, &tuple);
    }
    struct jv dict;
    ISO_TRY(iso_jv_dict_new(rt, &dict, JV_DICT, a->n_kw));
    for (size_t i = 0; i < a->n_kw; i++) {
        const struct jv k = jv_str(a->kw[i].s, a->kw[i].n);
        ISO_TRY(iso_jv_dict_set(rt, dict.u.dict, &k, &a->kw[i].v));
    }
    return iso_jv_percent(rt, out, &s, &dict);
}

static enum iso_err put_spaces(struct jinja_rt *rt, const struct jv *width)
{
    int64_t n = 4;
    if (width->type == JV_STR) return iso_jv_put_str(rt, width);
    if (width->type != JV_UNSET && !jv_as_int(&n, width)) {
        JINJA_FAIL(rt, "can't multiply sequence by non-int of type '%s'", iso_jv_type_name(width));
    }
    static const char spaces[] = "                                                                ";
    for (; n > 0; n -= (int64_t)sizeof(spaces) - 1) {
        ISO_TRY(iso_jinja_charge(rt, 1));
        const size_t len = n < (int64_t)sizeof(spaces) - 1 ? (size_t)n : sizeof(spaces) - 1;
        ISO_TRY(iso_buf_append(&rt->buf, spaces, len));
    }
    return ISO_OK;
}

FILTER(do_indent)
{
    if (v->type == JV_UNDEF) return iso_jinja_fail_undef(rt, v);
    if (v->type != JV_STR) JINJA_FAIL(rt, "indent needs a string, not %s", iso_jv_type_name(v));
    const struct jv newline = jv_cstr("\n");
    const bool first = iso_jv_truth(&a->bound[1]), blank = iso_jv_truth(&a->bound[2]);
    struct jv text, lines, pad;
    size_t mark = rt->buf.len;
    ISO_TRY(put_spaces(rt, &a->bound[0]));
    ISO_TRY(iso_jv_take(rt, &pad, mark));
    ISO_TRY(iso_jv_append(rt, &text, v, &newline));
    ISO_TRY(iso_jt_splitlines(rt, &lines, &text, false));
    mark = rt->buf.len;
    for (size_t i = 0; i < lines.n; i++) {
        const struct jv *line = &lines.u.items[i];
        if (i) ISO_TRY(iso_buf_u8(&rt->buf, '\n'));
        if (i ? blank || line->n > 0 : first) ISO_TRY(iso_jv_put_str(rt, &pad));
        ISO_TRY(iso_jv_put_str(rt, line));
    }
    ISO_TRY(iso_jv_take(rt, out, mark));
    out->sub = v->sub & JV_STR_MARKUP;
    return ISO_OK;
}

/* separators=(item, key) */
static enum iso_err
json_separators(struct jinja_rt *rt, struct jinja_json_style *s, const struct jv *v)
{
    const bool pair = (v->type == JV_TUPLE || v->type == JV_LIST) && v->n == 2;
    if (!pair || v->u.items[0].type != JV_STR || v->u.items[1].type != JV_STR) {
        JINJA_FAIL(rt, "separators must be two strings");
    }
    s->item = v->u.items[0];
    s->key = v->u.items[1];
    return ISO_OK;
}

FILTER(do_tojson)
{
    const struct jv *indent = &a->bound[1], *separators = &a->bound[2];
    struct jinja_json_style s = {.ensure_ascii = iso_jv_truth(&a->bound[0]),
                                 .sort_keys = iso_jv_truth(&a->bound[3])};
    s.pretty = indent->type != JV_UNSET && indent->type != JV_NONE;
    s.item = jv_cstr(s.pretty ? "," : ", ");
    s.key = jv_cstr(": ");
    const size_t mark = rt->buf.len;
    if (s.pretty) {
        ISO_TRY(put_spaces(rt, indent));
        ISO_TRY(iso_jv_take(rt, &s.indent, mark));
    }
    if (separators->type != JV_UNSET && separators->type != JV_NONE) {
        ISO_TRY(json_separators(rt, &s, separators));
    }
    ISO_TRY(iso_jv_put_json(rt, v, &s, 0));
    return iso_jv_take(rt, out, mark);
}

/* json.loads(text): not in transformers, but in templates of models that it does not render. */
FILTER(do_from_json)
{
    (void)a;
    json_t *json = NULL;
    if (v->type != JV_STR) JINJA_FAIL(rt, "from_json needs a string, not %s", iso_jv_type_name(v));
    if (iso_json_parse(&json, v->u.s, v->n, FROM_JSON_MAX, "from_json") != ISO_OK) {
        char text[256];
        (void)snprintf(text, sizeof(text), "%s", iso_err_message());
        JINJA_FAIL(rt, "%s", text);
    }
    struct jv borrowed;
    enum iso_err err = iso_jv_from_json(rt, &borrowed, json);
    /* The strings are still the JSON's. */
    if (err == ISO_OK) err = iso_jv_own(rt, out, &borrowed);
    json_decref(json);
    return err;
}

static const struct jinja_filter filters[] = {
    {"abs", do_abs, {0}, 0},
    {"capitalize", do_capitalize, {0}, 0},
    {"count", do_length, {0}, 0},
    {"d", do_default, {"default_value", "boolean"}, 0},
    {"default", do_default, {"default_value", "boolean"}, 0},
    {"e", do_escape, {0}, 0},
    {"escape", do_escape, {0}, 0},
    {"float", do_float, {"default"}, 0},
    {"format", do_format, {"*"}, 0},
    {"from_json", do_from_json, {0}, 0},
    {"indent", do_indent, {"width", "first", "blank"}, 0},
    {"int", do_int, {"default", "base"}, 0},
    {"length", do_length, {0}, 0},
    {"lower", do_lower, {0}, 0},
    {"replace", do_replace, {"old", "new", "count"}, 2},
    {"round", do_round, {"precision", "method"}, 0},
    {"safe", do_safe, {0}, 0},
    {"string", do_string, {0}, 0},
    {"title", do_title, {0}, 0},
    {"tojson", do_tojson, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0},
    {"trim", do_trim, {"chars"}, 0},
    {"upper", do_upper, {0}, 0},
    {0},
};

static const struct jinja_filter *find_in(const struct jinja_filter *f, const char *s, size_t n)
{
    for (; f->name != NULL; f++) {
        if (strlen(f->name) == n && memcmp(f->name, s, n) == 0) return f;
    }
    return NULL;
}

const struct jinja_filter *iso_jinja_filter_find(const char *s, size_t n)
{
    const struct jinja_filter *f = find_in(filters, s, n);
    return f != NULL ? f : find_in(iso_jinja_seq_filters, s, n);
}

static size_t param_at(const char *const *params, const char *s, size_t n)
{
    for (size_t i = 0; i < JINJA_MAX_PARAMS && params[i] != NULL; i++) {
        if (strlen(params[i]) == n && memcmp(params[i], s, n) == 0) return i;
    }
    return SIZE_MAX;
}

enum iso_err iso_jinja_bind(struct jinja_rt *rt,
                            struct jinja_args *a,
                            const char *what,
                            const char *const *params,
                            size_t n_required)
{
    size_t n_params = 0;
    while (n_params < JINJA_MAX_PARAMS && params[n_params] != NULL) n_params++;
    if (n_params > 0 && params[0][0] == '*') return ISO_OK;
    memset(a->bound, 0, sizeof(a->bound));
    if (a->n_pos > n_params) {
        JINJA_FAIL(rt, "%s() takes at most %zu argument(s), got %zu", what, n_params, a->n_pos);
    }
    for (size_t i = 0; i < a->n_pos; i++) a->bound[i] = a->pos[i];
    for (size_t i = 0; i < a->n_kw; i++) {
        const struct jinja_kw *kw = &a->kw[i];
        const size_t at = param_at(params, kw->s, kw->n);
        if (at == SIZE_MAX) {
            JINJA_FAIL(rt, "%s() got an unexpected keyword argument '%.*s'", what, (int)kw->n,
                       kw->s);
        }
        if (a->bound[at].type != JV_UNSET) {
            JINJA_FAIL(rt, "%s() got multiple values for argument '%s'", what, params[at]);
        }
        a->bound[at] = kw->v;
    }
    for (size_t i = 0; i < n_required; i++) {
        if (a->bound[i].type == JV_UNSET) {
            JINJA_FAIL(rt, "%s() missing required argument '%s'", what, params[i]);
        }
    }
    return ISO_OK;
}

enum iso_err iso_jinja_apply_filter(struct jinja_rt *rt,
                                    struct jv *out,
                                    const struct jv *v,
                                    const struct jinja_filter *f,
                                    struct jinja_args *a)
{
    ISO_TRY(iso_jinja_bind(rt, a, f->name, f->params, f->n_required));
    return f->fn(rt, out, v, a);
}
