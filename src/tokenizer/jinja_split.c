/* SPDX-License-Identifier: MIT
 * jinja_split.c - splitting, joining, replacing and escaping template strings. */
#include "tokenizer/jinja_text.h"

#include "tokenizer/jinja.h"

/* A list under construction whose length is not known before. */
struct list {
    struct jv *items; /* [cap] */
    size_t n, cap;
    uint8_t sub; /* flags that the strings inherit */
};

static enum iso_err add(struct jinja_rt *rt, struct list *l, const char *s, size_t n)
{
    ISO_TRY(iso_jinja_charge(rt, 1));
    if (l->n == l->cap) {
        struct jv *items = NULL;
        const size_t cap = l->cap ? 2 * l->cap : 8;
        ISO_TRY(iso_jv_new_items(rt, &items, cap));
        if (l->n) memcpy(items, l->items, l->n * sizeof(*items));
        l->items = items;
        l->cap = cap;
    }
    l->items[l->n] = jv_str(s, n);
    l->items[l->n++].sub = l->sub;
    return ISO_OK;
}

static enum iso_err
split_on(struct jinja_rt *rt, struct list *l, const struct jv *s, const struct jv *sep, int64_t max)
{
    size_t at = 0;
    for (; max != 0; max -= max > 0) {
        const size_t hit = iso_jt_find(s, sep, at);
        if (hit == SIZE_MAX) break;
        ISO_TRY(add(rt, l, s->u.s + at, hit - at));
        at = hit + sep->n;
    }
    return add(rt, l, s->u.s + at, s->n - at);
}

static enum iso_err
split_space(struct jinja_rt *rt, struct list *l, const struct jv *s, int64_t max)
{
    struct jv rest = iso_jt_strip(s, NULL, JT_LEFT);
    while (rest.n > 0 && max != 0) {
        size_t end = 0;
        int32_t cp = 0;
        for (size_t len = 0; end < rest.n; end += len) {
            len = iso_jt_decode(&cp, rest.u.s + end, rest.n - end);
            if (iso_jt_space(cp)) break;
        }
        ISO_TRY(add(rt, l, rest.u.s, end));
        rest = jv_str(rest.u.s + end, rest.n - end);
        rest = iso_jt_strip(&rest, NULL, JT_LEFT);
        max -= max > 0;
    }
    if (rest.n == 0) return ISO_OK;
    return add(rt, l, rest.u.s, rest.n); /* Python keeps the white space at its end */
}

/* Splits from the right into l, last piece first. */
static enum iso_err rsplit_on(
    struct jinja_rt *rt, struct list *l, const struct jv *s, const struct jv *sep, int64_t max)
{
    size_t end = s->n;
    for (; max != 0; max -= max > 0) {
        const size_t hit = iso_jt_rfind(s, sep, end);
        if (hit == SIZE_MAX) break;
        ISO_TRY(add(rt, l, s->u.s + hit + sep->n, end - hit - sep->n));
        end = hit;
    }
    return add(rt, l, s->u.s, end);
}

static enum iso_err
rsplit_space(struct jinja_rt *rt, struct list *l, const struct jv *s, int64_t max)
{
    struct jv rest = iso_jt_strip(s, NULL, JT_RIGHT);
    while (rest.n > 0 && max != 0) {
        size_t at = rest.n;
        while (at > 0) { /* back over one word */
            size_t k = at - 1;
            while (k > 0 && ((unsigned char)rest.u.s[k] & 0xc0) == 0x80) k--;
            int32_t cp = 0;
            (void)iso_jt_decode(&cp, rest.u.s + k, at - k);
            if (iso_jt_space(cp)) break;
            at = k;
        }
        ISO_TRY(add(rt, l, rest.u.s + at, rest.n - at));
        rest = jv_str(rest.u.s, at);
        rest = iso_jt_strip(&rest, NULL, JT_RIGHT);
        max -= max > 0;
    }
    return rest.n == 0 ? ISO_OK : add(rt, l, rest.u.s, rest.n);
}

enum iso_err iso_jt_split(struct jinja_rt *rt,
                          struct jv *out,
                          const struct jv *s,
                          const struct jv *sep,
                          int64_t max,
                          bool from_right)
{
    struct list l = {.sub = s->sub & JV_STR_MARKUP};
    ISO_TRY(iso_jinja_charge_bytes(rt, s->n));
    if (sep != NULL && sep->n == 0) JINJA_FAIL(rt, "empty separator");
    if (from_right) {
        ISO_TRY(sep ? rsplit_on(rt, &l, s, sep, max) : rsplit_space(rt, &l, s, max));
        for (size_t i = 0; i < l.n / 2; i++) {
            const struct jv v = l.items[i];
            l.items[i] = l.items[l.n - 1 - i];
            l.items[l.n - 1 - i] = v;
        }
    } else {
        ISO_TRY(sep ? split_on(rt, &l, s, sep, max) : split_space(rt, &l, s, max));
    }
    *out = jv_items(JV_LIST, l.items, l.n);
    return ISO_OK;
}

static bool line_end(int32_t c)
{
    return (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

enum iso_err
iso_jt_splitlines(struct jinja_rt *rt, struct jv *out, const struct jv *s, bool keep_ends)
{
    struct list l = {.sub = s->sub & JV_STR_MARKUP};
    ISO_TRY(iso_jinja_charge_bytes(rt, s->n));
    size_t from = 0;
    for (size_t i = 0; i < s->n;) {
        int32_t cp = 0;
        const size_t at = i;
        i += iso_jt_decode(&cp, s->u.s + i, s->n - i);
        if (!line_end(cp)) continue;
        if (cp == '\r' && i < s->n && s->u.s[i] == '\n') i++;
        ISO_TRY(add(rt, &l, s->u.s + from, (keep_ends ? i : at) - from));
        from = i;
    }
    if (from < s->n) ISO_TRY(add(rt, &l, s->u.s + from, s->n - from));
    *out = jv_items(JV_LIST, l.items, l.n);
    return ISO_OK;
}

enum iso_err iso_jt_replace(struct jinja_rt *rt,
                            struct jv *out,
                            const struct jv *s,
                            const struct jv *old,
                            const struct jv *by,
                            int64_t count)
{
    const size_t mark = rt->buf.len;
    size_t at = 0; /* everything before is written */
    size_t from = 0;
    ISO_TRY(iso_jinja_charge_bytes(rt, s->n));
    for (; count != 0; count -= count > 0) {
        const size_t hit = iso_jt_find(s, old, from);
        if (hit == SIZE_MAX) break;
        ISO_TRY(iso_jinja_charge(rt, 1 + by->n / 64));
        ISO_TRY(iso_buf_append(&rt->buf, s->u.s + at, hit - at));
        ISO_TRY(iso_buf_append(&rt->buf, by->u.s, by->n));
        at = hit + old->n;
        from = at;
        if (old->n == 0) { /* between all characters and at both ends */
            if (at == s->n) break;
            int32_t cp = 0;
            from = at + iso_jt_decode(&cp, s->u.s + at, s->n - at);
        }
    }
    ISO_TRY(iso_buf_append(&rt->buf, s->u.s + at, s->n - at));
    return iso_jv_take(rt, out, mark);
}

enum iso_err iso_jt_join(struct jinja_rt *rt,
                         struct jv *out,
                         const struct jv *sep,
                         const struct jv *list,
                         bool only_strings)
{
    const size_t mark = rt->buf.len;
    struct jv_cursor c;
    ISO_TRY(iso_jv_cursor(rt, &c, list));
    for (size_t i = 0;; i++) {
        struct jv v;
        ISO_TRY(iso_jv_next(rt, &c, &v));
        if (v.type == JV_UNSET) break;
        if (only_strings && v.type != JV_STR) {
            JINJA_FAIL(rt, "sequence item %zu: expected str instance, %s found", i,
                       iso_jv_type_name(&v));
        }
        if (i) ISO_TRY(iso_jv_put_str(rt, sep));
        ISO_TRY(iso_jv_put_str(rt, &v));
    }
    return iso_jv_take(rt, out, mark);
}

enum iso_err iso_jt_reverse(struct jinja_rt *rt, struct jv *out, const struct jv *s)
{
    void *p = NULL;
    ISO_TRY(iso_jinja_charge_bytes(rt, s->n));
    ISO_TRY(iso_jinja_alloc(&p, &rt->arena, s->n + 1, 1));
    for (size_t i = 0; i < s->n;) {
        int32_t cp = 0;
        const size_t len = iso_jt_decode(&cp, s->u.s + i, s->n - i);
        i += len;
        memcpy((char *)p + s->n - i, s->u.s + i - len, len);
    }
    *out = jv_str(p, s->n);
    out->sub = s->sub & JV_STR_MARKUP;
    return ISO_OK;
}

enum iso_err iso_jt_put_escaped(struct jinja_rt *rt, const struct jv *v)
{
    static const char from[] = "&<>\"'";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    if (v->type == JV_STR && (v->sub & JV_STR_MARKUP)) return iso_jv_put_str(rt, v);
    struct jv s;
    ISO_TRY(iso_jv_to_str(rt, &s, v));
    ISO_TRY(iso_jinja_charge_bytes(rt, s.n));
    for (size_t i = 0; i < s.n; i++) {
        const char c = s.u.s[i];
        const char *p = c ? strchr(from, c) : NULL;
        ISO_TRY(p != NULL ? iso_buf_puts(&rt->buf, to[p - from])
                          : iso_buf_u8(&rt->buf, (uint8_t)c));
    }
    return ISO_OK;
}
