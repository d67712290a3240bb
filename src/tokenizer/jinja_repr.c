/* SPDX-License-Identifier: MIT
 * jinja_repr.c - text of template values: Python's str() and repr(), and json.dumps(). */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

#include "tokenizer/jinja.h"
#include "tokenizer/jinja_text.h"

void iso_jv_float_repr(char *buf, double f)
{
    if (!isfinite(f)) {
        (void)snprintf(buf, 40, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    char sci[32];
    int digits = 1;
    do { /* the fewest digits that read back as the same number */
        (void)snprintf(sci, sizeof(sci), "%.*e", digits - 1, f);
    } while (strtod(sci, NULL) != f && ++digits <= 17);
    char *e = strchr(sci, 'e');
    const int exp = atoi(e + 1);
    *e = '\0';
    if (exp < -4 || exp >= 16) {
        (void)snprintf(buf, 40, "%.24se%c%02d", sci, exp < 0 ? '-' : '+', abs(exp) % 1000);
    } else {
        const int places = digits - 1 - exp;
        (void)snprintf(buf, 40, "%.*f", places > 1 ? places : 1, f);
    }
}

static enum iso_err put_int(struct jinja_rt *rt, int64_t i)
{
    char text[24];
    const int n = snprintf(text, sizeof(text), "%" PRId64, i);
    return iso_buf_append(&rt->buf, text, (size_t)n);
}

/* str.isprintable() of one code point. */
static bool printable(int32_t cp)
{
    switch (utf8proc_category(cp)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return cp == ' ';
    default:
        return true;
    }
}

static enum iso_err put_quoted(struct jinja_rt *rt, const struct jv *v)
{
    const bool dq = memchr(v->u.s, '\'', v->n) != NULL && memchr(v->u.s, '"', v->n) == NULL;
    const int32_t quote = dq ? '"' : '\'';
    struct iso_buf *b = &rt->buf;
    if (v->sub & JV_STR_MARKUP) ISO_TRY(iso_buf_puts(b, "Markup("));
    ISO_TRY(iso_buf_u8(b, (uint8_t)quote));
    for (size_t i = 0; i < v->n;) {
        int32_t c = 0;
        const size_t len = iso_jt_decode(&c, v->u.s + i, v->n - i);
        if (c == quote || c == '\\')
            ISO_TRY(iso_buf_printf(b, "\\%c", (char)c));
        else if (c == '\n')
            ISO_TRY(iso_buf_puts(b, "\\n"));
        else if (c == '\r')
            ISO_TRY(iso_buf_puts(b, "\\r"));
        else if (c == '\t')
            ISO_TRY(iso_buf_puts(b, "\\t"));
        else if (c < 0x80 ? c >= 0x20 && c < 0x7f : printable(c))
            ISO_TRY(iso_buf_append(b, v->u.s + i, len));
        else if (c < 0x100)
            ISO_TRY(iso_buf_printf(b, "\\x%02x", (unsigned)c));
        else if (c < 0x10000)
            ISO_TRY(iso_buf_printf(b, "\\u%04x", (unsigned)c));
        else
            ISO_TRY(iso_buf_printf(b, "\\U%08x", (unsigned)c));
        i += len;
    }
    ISO_TRY(iso_buf_u8(b, (uint8_t)quote));
    return v->sub & JV_STR_MARKUP ? iso_buf_u8(b, ')') : ISO_OK;
}

static enum iso_err put_items(struct jinja_rt *rt, const struct jv *v)
{
    const bool tuple = v->type == JV_TUPLE;
    ISO_TRY(iso_buf_u8(&rt->buf, tuple ? '(' : '['));
    for (size_t i = 0; i < v->n; i++) {
        if (i) ISO_TRY(iso_buf_puts(&rt->buf, ", "));
        ISO_TRY(iso_jv_put_repr(rt, &v->u.items[i]));
    }
    return iso_buf_puts(&rt->buf, !tuple ? "]" : v->n == 1 ? ",)" : ")");
}

static enum iso_err put_dict(struct jinja_rt *rt, const struct jv_dict *d)
{
    ISO_TRY(iso_buf_u8(&rt->buf, '{'));
    for (size_t i = 0; i < d->n; i++) {
        if (i) ISO_TRY(iso_buf_puts(&rt->buf, ", "));
        ISO_TRY(iso_jv_put_repr(rt, &d->e[i].k));
        ISO_TRY(iso_buf_puts(&rt->buf, ": "));
        ISO_TRY(iso_jv_put_repr(rt, &d->e[i].v));
    }
    return iso_buf_u8(&rt->buf, '}');
}

static enum iso_err put_view(struct jinja_rt *rt, const struct jv *v)
{
    struct jv list;
    ISO_TRY(iso_jv_list(rt, &list, v));
    ISO_TRY(iso_buf_printf(&rt->buf, "%s(", iso_jv_type_name(v)));
    ISO_TRY(put_items(rt, &list));
    return iso_buf_u8(&rt->buf, ')');
}

static enum iso_err put_range(struct jinja_rt *rt, const struct jv_range *r)
{
    ISO_TRY(iso_buf_printf(&rt->buf, "range(%" PRId64 ", %" PRId64, r->start, r->stop));
    if (r->step != 1) ISO_TRY(iso_buf_printf(&rt->buf, ", %" PRId64, r->step));
    return iso_buf_u8(&rt->buf, ')');
}

static enum iso_err put_deep(struct jinja_rt *rt, const struct jv *v)
{
    switch (v->type) {
    case JV_LIST:
    case JV_TUPLE:
        return put_items(rt, v);
    case JV_DICT:
        return put_dict(rt, v->u.dict);
    case JV_VIEW:
        return put_view(rt, v);
    case JV_NAMESPACE:
        ISO_TRY(iso_buf_puts(&rt->buf, "<Namespace "));
        ISO_TRY(put_dict(rt, v->u.dict));
        return iso_buf_u8(&rt->buf, '>');
    default:
        JINJA_FAIL(rt, "a value of type '%s' has no text", iso_jv_type_name(v));
    }
}

enum iso_err iso_jv_put_repr(struct jinja_rt *rt, const struct jv *v)
{
    char buf[40];
    ISO_TRY(iso_jinja_charge(rt, 1));
    switch (v->type) {
    case JV_UNDEF:
        return iso_buf_puts(&rt->buf, "Undefined");
    case JV_NONE:
        return iso_buf_puts(&rt->buf, "None");
    case JV_BOOL:
        return iso_buf_puts(&rt->buf, v->u.b ? "True" : "False");
    case JV_INT:
        return put_int(rt, v->u.i);
    case JV_FLOAT:
        iso_jv_float_repr(buf, v->u.f);
        return iso_buf_puts(&rt->buf, buf);
    case JV_STR:
        return put_quoted(rt, v);
    case JV_RANGE:
        return put_range(rt, v->u.range);
    default:
        break;
    }
    ISO_TRY(iso_jinja_deeper(rt));
    ISO_TRY(put_deep(rt, v));
    rt->depth--;
    return ISO_OK;
}

enum iso_err iso_jv_put_str(struct jinja_rt *rt, const struct jv *v)
{
    if (v->type == JV_UNDEF) return ISO_OK;
    if (v->type != JV_STR) return iso_jv_put_repr(rt, v);
    ISO_TRY(iso_jinja_charge_bytes(rt, v->n));
    return iso_buf_append(&rt->buf, v->u.s, v->n);
}

enum iso_err iso_jv_to_str(struct jinja_rt *rt, struct jv *out, const struct jv *v)
{
    if (v->type == JV_STR) {
        *out = jv_str(v->u.s, v->n);
        out->sub = v->sub & JV_STR_GROW;
        return ISO_OK;
    }
    const size_t mark = rt->buf.len;
    ISO_TRY(iso_jv_put_str(rt, v));
    return iso_jv_take(rt, out, mark);
}

/* --- JSON --- */

static enum iso_err put_json_str(struct jinja_rt *rt, const struct jv *v, bool ascii)
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    struct iso_buf *b = &rt->buf;
    ISO_TRY(iso_jinja_charge_bytes(rt, v->n));
    ISO_TRY(iso_buf_u8(b, '"'));
    size_t plain = 0; /* start of the run that needs no escape */
    for (size_t i = 0; i < v->n;) {
        int32_t c = 0;
        const size_t len = iso_jt_decode(&c, v->u.s + i, v->n - i);
        const bool escape = c < 0x20 || c == '"' || c == '\\' || (ascii && c >= 0x7f);
        if (escape) {
            ISO_TRY(iso_buf_append(b, v->u.s + plain, i - plain));
            const char *p = c > 0 && c < 0x80 ? strchr(from, c) : NULL;
            const unsigned high = 0xd7c0u + ((unsigned)c >> 10),
                           low = 0xdc00u + ((unsigned)c & 0x3ff);
            if (p != NULL)
                ISO_TRY(iso_buf_printf(b, "\\%c", to[p - from]));
            else if (c < 0x10000)
                ISO_TRY(iso_buf_printf(b, "\\u%04x", (unsigned)c));
            else
                ISO_TRY(iso_buf_printf(b, "\\u%04x\\u%04x", high, low));
            plain = i + len;
        }
        i += len;
    }
    ISO_TRY(iso_buf_append(b, v->u.s + plain, v->n - plain));
    return iso_buf_u8(b, '"');
}

static enum iso_err put_json_scalar(struct jinja_rt *rt, const struct jv *v, bool ascii)
{
    char buf[40];
    switch (v->type) {
    case JV_NONE:
        return iso_buf_puts(&rt->buf, "null");
    case JV_BOOL:
        return iso_buf_puts(&rt->buf, v->u.b ? "true" : "false");
    case JV_INT:
        return put_int(rt, v->u.i);
    case JV_STR:
        return put_json_str(rt, v, ascii);
    case JV_FLOAT:
        if (isfinite(v->u.f))
            iso_jv_float_repr(buf, v->u.f);
        else
            (void)snprintf(buf, sizeof(buf), "%s",
                           isnan(v->u.f) ? "NaN"
                           : v->u.f < 0  ? "-Infinity"
                                         : "Infinity");
        return iso_buf_puts(&rt->buf, buf);
    default:
        JINJA_FAIL(rt, "Object of type %s is not JSON serializable", iso_jv_type_name(v));
    }
}

/* Keys are strings, or scalars in quotes. */
static enum iso_err put_json_key(struct jinja_rt *rt, const struct jv *k, bool ascii)
{
    if (k->type == JV_STR) return put_json_str(rt, k, ascii);
    if (k->type != JV_NONE && !jv_is_number(k)) {
        JINJA_FAIL(rt, "keys must be str, int, float, bool or None, not %s", iso_jv_type_name(k));
    }
    ISO_TRY(iso_buf_u8(&rt->buf, '"'));
    ISO_TRY(put_json_scalar(rt, k, ascii));
    return iso_buf_u8(&rt->buf, '"');
}

static enum iso_err put_break(struct jinja_rt *rt, const struct jinja_json_style *s, int level)
{
    if (!s->pretty) return ISO_OK;
    ISO_TRY(iso_buf_u8(&rt->buf, '\n'));
    for (int i = 0; i < level; i++) ISO_TRY(iso_jv_put_str(rt, &s->indent));
    return ISO_OK;
}

/* The entries of d in the order of their keys. */
static enum iso_err sorted_pairs(struct jinja_rt *rt, struct jv_pair **out, const struct jv_dict *d)
{
    struct jv *keys = NULL, *order = NULL;
    void *pairs = NULL;
    ISO_TRY(iso_jv_new_items(rt, &keys, d->n));
    ISO_TRY(iso_jv_new_items(rt, &order, d->n));
    ISO_TRY(iso_jinja_alloc(&pairs, &rt->arena, d->n, sizeof(struct jv_pair)));
    for (size_t i = 0; i < d->n; i++) {
        keys[i] = d->e[i].k;
        order[i] = jv_int((int64_t)i);
    }
    ISO_TRY(iso_jv_sort(rt, order, keys, d->n, false));
    for (size_t i = 0; i < d->n; i++) ((struct jv_pair *)pairs)[i] = d->e[order[i].u.i];
    *out = pairs;
    return ISO_OK;
}

static enum iso_err put_json_dict(struct jinja_rt *rt,
                                  const struct jv_dict *d,
                                  const struct jinja_json_style *s,
                                  int level)
{
    struct jv_pair *e = d->e;
    if (d->n == 0) return iso_buf_puts(&rt->buf, "{}");
    if (s->sort_keys) ISO_TRY(sorted_pairs(rt, &e, d));
    ISO_TRY(iso_buf_u8(&rt->buf, '{'));
    for (size_t i = 0; i < d->n; i++) {
        if (i) ISO_TRY(iso_jv_put_str(rt, &s->item));
        ISO_TRY(put_break(rt, s, level + 1));
        ISO_TRY(put_json_key(rt, &e[i].k, s->ensure_ascii));
        ISO_TRY(iso_jv_put_str(rt, &s->key));
        ISO_TRY(iso_jv_put_json(rt, &e[i].v, s, level + 1));
    }
    ISO_TRY(put_break(rt, s, level));
    return iso_buf_u8(&rt->buf, '}');
}

static enum iso_err
put_json_list(struct jinja_rt *rt, const struct jv *v, const struct jinja_json_style *s, int level)
{
    if (v->n == 0) return iso_buf_puts(&rt->buf, "[]");
    ISO_TRY(iso_buf_u8(&rt->buf, '['));
    for (size_t i = 0; i < v->n; i++) {
        if (i) ISO_TRY(iso_jv_put_str(rt, &s->item));
        ISO_TRY(put_break(rt, s, level + 1));
        ISO_TRY(iso_jv_put_json(rt, &v->u.items[i], s, level + 1));
    }
    ISO_TRY(put_break(rt, s, level));
    return iso_buf_u8(&rt->buf, ']');
}

enum iso_err iso_jv_put_json(struct jinja_rt *rt,
                             const struct jv *v,
                             const struct jinja_json_style *s,
                             int level)
{
    ISO_TRY(iso_jinja_charge(rt, 1));
    if (v->type != JV_DICT && v->type != JV_LIST && v->type != JV_TUPLE) {
        return put_json_scalar(rt, v, s->ensure_ascii);
    }
    ISO_TRY(iso_jinja_deeper(rt));
    ISO_TRY(v->type == JV_DICT ? put_json_dict(rt, v->u.dict, s, level)
                               : put_json_list(rt, v, s, level));
    rt->depth--;
    return ISO_OK;
}
