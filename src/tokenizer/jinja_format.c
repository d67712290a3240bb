/* SPDX-License-Identifier: MIT
 * jinja_format.c - Python's two string formats: "%s" % x and "{}".format(x). */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>

#include "tokenizer/jinja.h"
#include "tokenizer/jinja_text.h"

#define MAX_WIDTH 4096 /* characters of one padded field */

/* The arguments of one % expression. */
struct percent {
    const struct jv *args;
    size_t next; /* position in a tuple */
    bool mapped; /* %(name)s was used: unused arguments are no error */
};

/* One conversion: %[(key)][flags][width][.precision]type */
struct spec {
    bool left, plus, space, zero, alt;
    int width, precision; /* -1 when absent */
    char type;
};

static enum iso_err next_arg(struct jinja_rt *rt, struct jv *out, struct percent *p)
{
    const size_t n = p->args->type == JV_TUPLE ? p->args->n : 1;
    if (p->next >= n) JINJA_FAIL(rt, "not enough arguments for format string");
    *out = p->args->type == JV_TUPLE ? p->args->u.items[p->next] : *p->args;
    p->next++;
    return ISO_OK;
}

/* "(key)" at *i, or nothing. */
static enum iso_err
mapped_arg(struct jinja_rt *rt, struct jv *out, struct percent *p, const struct jv *f, size_t *i)
{
    *out = (struct jv){.type = JV_UNSET};
    if (*i >= f->n || f->u.s[*i] != '(') return ISO_OK;
    const char *end = memchr(f->u.s + *i, ')', f->n - *i);
    if (end == NULL) JINJA_FAIL(rt, "incomplete format key");
    const struct jv key = jv_str(f->u.s + *i + 1, (size_t)(end - f->u.s) - *i - 1);
    if (p->args->type != JV_DICT) JINJA_FAIL(rt, "format requires a mapping");
    const struct jv *v = iso_jv_dict_get(p->args->u.dict, &key);
    if (v == NULL) JINJA_FAIL(rt, "format key '%.*s' is missing", (int)key.n, key.u.s);
    *out = *v;
    p->mapped = true;
    *i = (size_t)(end - f->u.s) + 1;
    return ISO_OK;
}

static enum iso_err parse_number(struct jinja_rt *rt, int *out, const struct jv *f, size_t *i)
{
    int v = 0;
    for (; *i < f->n && isdigit((unsigned char)f->u.s[*i]); (*i)++) {
        v = v * 10 + (f->u.s[*i] - '0');
        if (v > MAX_WIDTH)
            ISO_FAIL(ISO_E_LIMIT, "line %d: format wider than %d", rt->line, MAX_WIDTH);
    }
    *out = v;
    return ISO_OK;
}

static enum iso_err parse_spec(struct jinja_rt *rt, struct spec *s, const struct jv *f, size_t *i)
{
    *s = (struct spec){.width = 0, .precision = -1};
    for (; *i < f->n; (*i)++) {
        const char c = f->u.s[*i];
        if (c == '-')
            s->left = true;
        else if (c == '+')
            s->plus = true;
        else if (c == ' ')
            s->space = true;
        else if (c == '0')
            s->zero = true;
        else if (c == '#')
            s->alt = true;
        else
            break;
    }
    ISO_TRY(parse_number(rt, &s->width, f, i));
    if (*i < f->n && f->u.s[*i] == '.') {
        (*i)++;
        ISO_TRY(parse_number(rt, &s->precision, f, i));
    }
    if (*i >= f->n) JINJA_FAIL(rt, "incomplete format");
    s->type = f->u.s[(*i)++];
    return ISO_OK;
}

static enum iso_err
put_padded(struct jinja_rt *rt, const struct spec *s, const char *text, size_t n)
{
    const size_t len = iso_jt_count(text, n);
    const size_t pad = (size_t)s->width > len ? (size_t)s->width - len : 0;
    for (size_t i = 0; !s->left && i < pad; i++) ISO_TRY(iso_buf_u8(&rt->buf, ' '));
    ISO_TRY(iso_buf_append(&rt->buf, text, n));
    for (size_t i = 0; s->left && i < pad; i++) ISO_TRY(iso_buf_u8(&rt->buf, ' '));
    return ISO_OK;
}

/* %s and %r */
static enum iso_err put_text(struct jinja_rt *rt, const struct spec *s, const struct jv *v)
{
    struct jv text;
    const size_t mark = rt->buf.len;
    ISO_TRY(s->type == 'r' ? iso_jv_put_repr(rt, v) : iso_jv_put_str(rt, v));
    ISO_TRY(iso_jv_take(rt, &text, mark));
    if (s->precision >= 0) text.n = iso_jt_offset(text.u.s, text.n, (size_t)s->precision);
    return put_padded(rt, s, text.u.s, text.n);
}

/* C's printf writes numbers as Python does once the flags are handed over. */
static enum iso_err put_number(struct jinja_rt *rt, const struct spec *s, const struct jv *v)
{
    char fmt[48], text[MAX_WIDTH + 512];
    const bool integer = strchr("diuxXo", s->type) != NULL;
    int64_t i = 0;
    if (v->type == JV_UNDEF) return iso_jinja_fail_undef(rt, v);
    if (integer && v->type == JV_FLOAT && (s->type == 'd' || s->type == 'i' || s->type == 'u') &&
        v->u.f > -9e18 && v->u.f < 9e18) {
        i = (int64_t)v->u.f;
    } else if (!jv_is_number(v) || (integer && !jv_as_int(&i, v))) {
        JINJA_FAIL(rt, "%%%c format: a number is required, not %s", s->type, iso_jv_type_name(v));
    }
    if ((s->type == 'x' || s->type == 'X' || s->type == 'o') &&
        (i < 0 || (s->alt && s->type == 'o'))) {
        JINJA_FAIL(rt, "%%%c of a negative number is not supported", s->type);
    }
    const int digits = !integer && s->precision < 0 ? 6 : s->precision;
    (void)snprintf(fmt, sizeof(fmt), "%%%s%s%s%s%s*.*%s%c", s->left ? "-" : "", s->plus ? "+" : "",
                   s->space ? " " : "", s->zero ? "0" : "", s->alt ? "#" : "",
                   integer ? PRId64 : "", s->type);
    if (integer) {
        const char conv = s->type == 'i' || s->type == 'u' ? 'd' : s->type;
        fmt[strlen(fmt) - 1] = '\0'; /* PRId64 ends in d: */
        fmt[strlen(fmt) - 1] = conv; /* put the conversion in its place */
    }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    const int n = integer ? snprintf(text, sizeof(text), fmt, s->width, digits, i)
                          : snprintf(text, sizeof(text), fmt, s->width, digits, jv_as_float(v));
#pragma GCC diagnostic pop
    if (n < 0 || (size_t)n >= sizeof(text)) {
        ISO_FAIL(ISO_E_LIMIT, "line %d: formatted number of %d characters", rt->line, n);
    }
    return iso_buf_append(&rt->buf, text, (size_t)n);
}

static enum iso_err
put_conversion(struct jinja_rt *rt, struct percent *p, const struct jv *f, size_t *i)
{
    struct jv v;
    struct spec s;
    ISO_TRY(mapped_arg(rt, &v, p, f, i));
    ISO_TRY(parse_spec(rt, &s, f, i));
    if (s.type == '%') return iso_buf_u8(&rt->buf, '%');
    if (v.type == JV_UNSET) ISO_TRY(next_arg(rt, &v, p));
    switch (s.type) {
    case 's':
    case 'r':
        return put_text(rt, &s, &v);
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
    case 'f':
    case 'F':
    case 'e':
    case 'E':
    case 'g':
    case 'G':
        return put_number(rt, &s, &v);
    default:
        JINJA_FAIL(rt, "format character '%c' is not supported", s.type);
    }
}

enum iso_err
iso_jv_percent(struct jinja_rt *rt, struct jv *out, const struct jv *format, const struct jv *args)
{
    struct percent p = {.args = args};
    const size_t mark = rt->buf.len;
    ISO_TRY(iso_jinja_charge_bytes(rt, format->n));
    for (size_t i = 0; i < format->n;) {
        const char *at = memchr(format->u.s + i, '%', format->n - i);
        const size_t end = at ? (size_t)(at - format->u.s) : format->n;
        ISO_TRY(iso_buf_append(&rt->buf, format->u.s + i, end - i));
        i = end + 1;
        if (at == NULL) break;
        ISO_TRY(iso_jinja_charge(rt, 1));
        ISO_TRY(put_conversion(rt, &p, format, &i));
    }
    const bool single_unused =
        args->type != JV_TUPLE && args->type != JV_DICT && args->type != JV_LIST;
    if (!p.mapped &&
        ((args->type == JV_TUPLE && p.next < args->n) || (single_unused && p.next == 0))) {
        JINJA_FAIL(rt, "not all arguments converted during string formatting");
    }
    return iso_jv_take(rt, out, mark);
}

/* --- str.format --- */

/* Value of a replacement field's name: "", a number, or a keyword. *automatic counts the "" ones.
 */
static enum iso_err field_value(struct jinja_rt *rt,
                                struct jv *out,
                                const struct jv *name,
                                const struct jinja_args *a,
                                size_t *automatic)
{
    bool big = false;
    int64_t i = 0;
    if (name->n == 0) i = (int64_t)(*automatic)++;
    if (name->n == 0 ||
        (isdigit((unsigned char)name->u.s[0]) && iso_jt_parse_int(&i, &big, name, 10))) {
        if (big || (uint64_t)i >= a->n_pos) {
            JINJA_FAIL(rt, "Replacement index %" PRId64 " out of range for positional args tuple",
                       i);
        }
        *out = a->pos[i];
        return ISO_OK;
    }
    for (size_t k = 0; k < a->n_kw; k++) {
        if (a->kw[k].n == name->n && memcmp(a->kw[k].s, name->u.s, name->n) == 0) {
            *out = a->kw[k].v;
            return ISO_OK;
        }
    }
    JINJA_FAIL(rt, "format key '%.*s' is missing", (int)name->n, name->u.s);
}

/* One {name!conversion}; format specifications and nested names are not in the subset. */
static enum iso_err put_field(struct jinja_rt *rt,
                              const struct jv *field,
                              const struct jinja_args *a,
                              size_t *automatic)
{
    struct jv name = *field, v;
    bool repr = false;
    if (name.n >= 2 && name.u.s[name.n - 2] == '!') {
        const char how = name.u.s[name.n - 1];
        if (how != 's' && how != 'r') JINJA_FAIL(rt, "conversion '!%c' is not supported", how);
        repr = how == 'r';
        name.n -= 2;
    }
    for (size_t i = 0; i < name.n; i++) {
        if (!isalnum((unsigned char)name.u.s[i]) && name.u.s[i] != '_') {
            JINJA_FAIL(rt, "replacement field '{%.*s}' is not supported", (int)field->n,
                       field->u.s);
        }
    }
    ISO_TRY(field_value(rt, &v, &name, a, automatic));
    return repr ? iso_jv_put_repr(rt, &v) : iso_jv_put_str(rt, &v);
}

enum iso_err
iso_jv_format(struct jinja_rt *rt, struct jv *out, const struct jv *format, struct jinja_args *a)
{
    const size_t mark = rt->buf.len;
    size_t automatic = 0;
    const char *s = format->u.s;
    if (format->sub & JV_STR_MARKUP) JINJA_FAIL(rt, "format() of a safe string is not supported");
    ISO_TRY(iso_jinja_charge_bytes(rt, format->n));
    for (size_t i = 0; i < format->n; i++) {
        const bool twice = i + 1 < format->n && s[i + 1] == s[i];
        if ((s[i] != '{' && s[i] != '}') || twice) {
            ISO_TRY(iso_buf_u8(&rt->buf, (uint8_t)s[i]));
            i += (s[i] == '{' || s[i] == '}');
            continue;
        }
        const char *end = s[i] == '{' ? memchr(s + i, '}', format->n - i) : NULL;
        if (end == NULL) JINJA_FAIL(rt, "Single '%c' encountered in format string", s[i]);
        const struct jv field = jv_str(s + i + 1, (size_t)(end - s) - i - 1);
        ISO_TRY(iso_jinja_charge(rt, 1));
        ISO_TRY(put_field(rt, &field, a, &automatic));
        i = (size_t)(end - s);
    }
    return iso_jv_take(rt, out, mark);
}
