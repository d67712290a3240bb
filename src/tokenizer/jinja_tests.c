/* SPDX-License-Identifier: MIT
 * jinja_tests.c - the tests behind "is", and the functions that templates may call. */
#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#include "tokenizer/jinja.h"
#include "tokenizer/jinja_text.h"

#define MAX_RANGE 100000 /* items; the sandbox's limit in jinja2/sandbox.py */

#define TEST(name)                                                                                 \
    static enum iso_err name(struct jinja_rt *rt, bool *out, const struct jv *v,                   \
                             struct jinja_args *a)
#define SIMPLE_TEST(name, condition)                                                               \
    TEST(name)                                                                                     \
    {                                                                                              \
        (void)rt, (void)a;                                                                         \
        *out = (condition);                                                                        \
        return ISO_OK;                                                                             \
    }

SIMPLE_TEST(is_defined, v->type != JV_UNDEF)
SIMPLE_TEST(is_undefined, v->type == JV_UNDEF)
SIMPLE_TEST(is_none, v->type == JV_NONE)
SIMPLE_TEST(is_boolean, v->type == JV_BOOL)
SIMPLE_TEST(is_true, v->type == JV_BOOL && v->u.b)
SIMPLE_TEST(is_false, v->type == JV_BOOL && !v->u.b)
SIMPLE_TEST(is_integer, v->type == JV_INT)
SIMPLE_TEST(is_float, v->type == JV_FLOAT)
SIMPLE_TEST(is_number, jv_is_number(v))
SIMPLE_TEST(is_string, v->type == JV_STR)
SIMPLE_TEST(is_mapping, v->type == JV_DICT)
SIMPLE_TEST(is_iterable, iso_jv_iterable(v))
SIMPLE_TEST(is_sequence,
            v->type == JV_STR || v->type == JV_LIST || v->type == JV_TUPLE || v->type == JV_DICT ||
                v->type == JV_RANGE || v->type == JV_UNDEF)
SIMPLE_TEST(is_callable,
            v->type == JV_MACRO || v->type == JV_FUNCTION || v->type == JV_METHOD ||
                v->type == JV_LOOP || v->type == JV_UNDEF)
SIMPLE_TEST(is_escaped, v->type == JV_STR && (v->sub & JV_STR_MARKUP))

static enum iso_err
modulo_is(struct jinja_rt *rt, bool *out, const struct jv *v, const struct jv *by, int64_t want)
{
    struct jv rest;
    const struct jv w = jv_int(want);
    ISO_TRY(iso_jv_binary(rt, &rest, '%', v, by));
    return iso_jv_equal(rt, out, &rest, &w);
}

TEST(is_odd)
{
    (void)a;
    const struct jv two = jv_int(2);
    return modulo_is(rt, out, v, &two, 1);
}

TEST(is_even)
{
    (void)a;
    const struct jv two = jv_int(2);
    return modulo_is(rt, out, v, &two, 0);
}

TEST(is_divisibleby)
{
    return modulo_is(rt, out, v, &a->pos[0], 0);
}

TEST(is_upper)
{
    (void)a;
    struct jv s;
    ISO_TRY(iso_jv_to_str(rt, &s, v));
    *out = iso_jt_is_upper(&s);
    return iso_jinja_charge(rt, s.n / 8);
}

TEST(is_lower)
{
    (void)a;
    struct jv s;
    ISO_TRY(iso_jv_to_str(rt, &s, v));
    *out = iso_jt_is_lower(&s);
    return iso_jinja_charge(rt, s.n / 8);
}

TEST(is_in)
{
    return iso_jv_contains(rt, out, &a->pos[0], v);
}
TEST(is_eq)
{
    return iso_jv_equal(rt, out, v, &a->pos[0]);
}

TEST(is_ne)
{
    ISO_TRY(iso_jv_equal(rt, out, v, &a->pos[0]));
    *out = !*out;
    return ISO_OK;
}

/* Identity is only certain for the singletons and for values of different types. */
TEST(is_sameas)
{
    const struct jv *b = &a->pos[0];
    const bool singleton = v->type == JV_NONE || v->type == JV_BOOL;
    if (v->type == b->type && !singleton) {
        JINJA_FAIL(rt, "sameas of two values of type '%s' is not supported", iso_jv_type_name(v));
    }
    *out = v->type == b->type && (v->type == JV_NONE || v->u.b == b->u.b);
    return ISO_OK;
}

static enum iso_err
ordered(struct jinja_rt *rt, int *c, const struct jv *v, const struct jinja_args *a, const char *op)
{
    return iso_jv_order(rt, c, v, &a->pos[0], op);
}

#define ORDER_TEST(name, op)                                                                       \
    TEST(name)                                                                                     \
    {                                                                                              \
        int c = 0;                                                                                 \
        ISO_TRY(ordered(rt, &c, v, a, #op));                                                       \
        *out = c op 0;                                                                             \
        return ISO_OK;                                                                             \
    }
ORDER_TEST(is_gt, >)
ORDER_TEST(is_ge, >=)
ORDER_TEST(is_lt, <)
ORDER_TEST(is_le, <=)

static const struct jinja_test tests[] = {
    {"odd", is_odd, 0},
    {"even", is_even, 0},
    {"divisibleby", is_divisibleby, 1},
    {"defined", is_defined, 0},
    {"undefined", is_undefined, 0},
    {"none", is_none, 0},
    {"boolean", is_boolean, 0},
    {"false", is_false, 0},
    {"true", is_true, 0},
    {"integer", is_integer, 0},
    {"float", is_float, 0},
    {"lower", is_lower, 0},
    {"upper", is_upper, 0},
    {"string", is_string, 0},
    {"mapping", is_mapping, 0},
    {"number", is_number, 0},
    {"sequence", is_sequence, 0},
    {"iterable", is_iterable, 0},
    {"callable", is_callable, 0},
    {"sameas", is_sameas, 1},
    {"escaped", is_escaped, 0},
    {"in", is_in, 1},
    {"==", is_eq, 1},
    {"eq", is_eq, 1},
    {"equalto", is_eq, 1},
    {"!=", is_ne, 1},
    {"ne", is_ne, 1},
    {">", is_gt, 1},
    {"gt", is_gt, 1},
    {"greaterthan", is_gt, 1},
    {">=", is_ge, 1},
    {"ge", is_ge, 1},
    {"<", is_lt, 1},
    {"lt", is_lt, 1},
    {"lessthan", is_lt, 1},
    {"<=", is_le, 1},
    {"le", is_le, 1},
};

const struct jinja_test *iso_jinja_test_find(const char *s, size_t n)
{
    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
        if (strlen(tests[i].name) == n && memcmp(tests[i].name, s, n) == 0) return &tests[i];
    }
    return NULL;
}

enum iso_err iso_jinja_apply_test(struct jinja_rt *rt,
                                  bool *out,
                                  const struct jv *v,
                                  const struct jinja_test *t,
                                  struct jinja_args *a)
{
    if (a->n_pos != t->n_args || a->n_kw) {
        JINJA_FAIL(rt, "test '%s' takes %d argument(s), got %zu", t->name, t->n_args,
                   a->n_pos + a->n_kw);
    }
    return t->fn(rt, out, v, a);
}

/* --- functions --- */

static enum iso_err fn_raise(struct jinja_rt *rt, struct jv *out, struct jinja_args *a)
{
    static const char *const params[JINJA_MAX_PARAMS] = {"message"};
    struct jv text;
    (void)out;
    ISO_TRY(iso_jinja_bind(rt, a, "raise_exception", params, 1));
    ISO_TRY(iso_jv_to_str(rt, &text, &a->bound[0]));
    ISO_FAIL(ISO_E_TEMPLATE, "%.*s", text.n > 1000 ? 1000 : (int)text.n, text.u.s);
}

/* strftime of %f, %z and %Z differs between C and a Python time without zone: f is written here. */
static enum iso_err put_time(struct jinja_rt *rt, const struct tm *tm, const struct jv *format)
{
    for (size_t i = 0; i < format->n; i++) {
        const char c = format->u.s[i];
        if (c != '%' || i + 1 >= format->n) {
            ISO_TRY(iso_buf_u8(&rt->buf, (uint8_t)c));
            continue;
        }
        char spec[4] = {'%', format->u.s[++i], '\0', '\0'}, text[128];
        if (spec[1] == '-' && i + 1 < format->n) spec[2] = format->u.s[++i]; /* %-d: no padding */
        const char last = spec[2] ? spec[2] : spec[1];
        if (last == 'z' || last == 'Z') continue;
        if (strchr("aAbBcCdDeFgGhHIjklmMnpPrRsStTuUVwWxXyYf%", last) == NULL || last == '\0') {
            JINJA_FAIL(rt, "strftime_now: '%s' is not supported", spec);
        }
        if (last == 'f') {
            ISO_TRY(iso_buf_puts(&rt->buf, "000000"));
            continue;
        }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        ISO_TRY(iso_buf_append(&rt->buf, text, strftime(text, sizeof(text), spec, tm)));
#pragma GCC diagnostic pop
    }
    return ISO_OK;
}

static enum iso_err fn_strftime(struct jinja_rt *rt, struct jv *out, struct jinja_args *a)
{
    static const char *const params[JINJA_MAX_PARAMS] = {"format"};
    ISO_TRY(iso_jinja_bind(rt, a, "strftime_now", params, 1));
    if (a->bound[0].type != JV_STR) JINJA_FAIL(rt, "strftime_now needs a string");
    const time_t now = (time_t)rt->now;
    struct tm tm;
    if (localtime_r(&now, &tm) == NULL) JINJA_FAIL(rt, "time %" PRId64 " out of range", rt->now);
    const size_t mark = rt->buf.len;
    ISO_TRY(iso_jinja_charge(rt, a->bound[0].n));
    ISO_TRY(put_time(rt, &tm, &a->bound[0]));
    return iso_jv_take(rt, out, mark);
}

static enum iso_err fn_range(struct jinja_rt *rt, struct jv *out, struct jinja_args *a)
{
    int64_t v[3] = {0, 0, 1};
    if (a->n_pos < 1 || a->n_pos > 3 || a->n_kw) {
        JINJA_FAIL(rt, "range expected 1 to 3 arguments, got %zu", a->n_pos + a->n_kw);
    }
    for (size_t i = 0; i < a->n_pos; i++) {
        if (a->pos[i].type == JV_UNDEF) return iso_jinja_fail_undef(rt, &a->pos[i]);
        if (!jv_as_int(&v[a->n_pos == 1 ? 1 : i], &a->pos[i])) {
            JINJA_FAIL(rt, "'%s' object cannot be interpreted as an integer",
                       iso_jv_type_name(&a->pos[i]));
        }
    }
    if (v[2] == 0) JINJA_FAIL(rt, "range() arg 3 must not be zero");
    uint64_t n = 0;
    if (v[2] > 0 && v[1] > v[0]) n = ((uint64_t)v[1] - (uint64_t)v[0] - 1) / (uint64_t)v[2] + 1;
    if (v[2] < 0 && v[0] > v[1])
        n = ((uint64_t)v[0] - (uint64_t)v[1] - 1) / (0 - (uint64_t)v[2]) + 1;
    if (n > MAX_RANGE) {
        JINJA_FAIL(rt, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).",
                   MAX_RANGE);
    }
    void *p = NULL;
    ISO_TRY(iso_jinja_alloc(&p, &rt->arena, 1, sizeof(struct jv_range)));
    *(struct jv_range *)p = (struct jv_range){v[0], v[1], v[2], (size_t)n};
    *out = (struct jv){.type = JV_RANGE, .u.range = p};
    return ISO_OK;
}

/* The pairs of a mapping, or of a sequence of pairs, into d. */
static enum iso_err update(struct jinja_rt *rt, struct jv_dict *d, const struct jv *from)
{
    struct jv_cursor c;
    struct jv source = *from;
    if (from->type == JV_DICT) {
        source = (struct jv){.type = JV_VIEW, .sub = JV_VIEW_ITEMS, .u.dict = from->u.dict};
    }
    ISO_TRY(iso_jv_cursor(rt, &c, &source));
    for (;;) {
        struct jv pair;
        ISO_TRY(iso_jv_next(rt, &c, &pair));
        if (pair.type == JV_UNSET) return ISO_OK;
        if ((pair.type != JV_TUPLE && pair.type != JV_LIST) || pair.n != 2) {
            JINJA_FAIL(
                rt, "cannot convert dictionary update sequence element to a sequence of length 2");
        }
        ISO_TRY(iso_jv_dict_set(rt, d, &pair.u.items[0], &pair.u.items[1]));
    }
}

static enum iso_err
make_dict(struct jinja_rt *rt, struct jv *out, const struct jinja_args *a, enum jv_type type)
{
    if (a->n_pos > 1) JINJA_FAIL(rt, "dict expected at most 1 argument, got %zu", a->n_pos);
    ISO_TRY(iso_jv_dict_new(rt, out, type, a->n_kw));
    if (a->n_pos) ISO_TRY(update(rt, out->u.dict, &a->pos[0]));
    for (size_t i = 0; i < a->n_kw; i++) {
        const struct jv k = jv_str(a->kw[i].s, a->kw[i].n);
        ISO_TRY(iso_jv_dict_set(rt, out->u.dict, &k, &a->kw[i].v));
    }
    return ISO_OK;
}

static enum iso_err fn_namespace(struct jinja_rt *rt, struct jv *out, struct jinja_args *a)
{
    return make_dict(rt, out, a, JV_NAMESPACE);
}

static enum iso_err fn_dict(struct jinja_rt *rt, struct jv *out, struct jinja_args *a)
{
    return make_dict(rt, out, a, JV_DICT);
}

const struct jinja_function *iso_jinja_function_find(const char *s, size_t n)
{
    static const struct jinja_function functions[] = {
        {"raise_exception", fn_raise},
        {"strftime_now", fn_strftime},
        {"namespace", fn_namespace},
        {"range", fn_range},
        {"dict", fn_dict},
    };
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        if (strlen(functions[i].name) == n && memcmp(functions[i].name, s, n) == 0)
            return &functions[i];
    }
    return NULL;
}
