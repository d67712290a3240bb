/* SPDX-License-Identifier: MIT
 * jinja_methods.c - the methods of strings, lists and dicts that templates may call. */
#include "tokenizer/jinja.h"
#include "tokenizer/jinja_text.h"

#define METHOD(name)                                                                               \
    static enum iso_err name(struct jinja_rt *rt, struct jv *out, const struct jv *v,              \
                             struct jinja_args *a)

/* Argument i as a string, or NULL when absent or None. */
static enum iso_err
opt_str(struct jinja_rt *rt, const struct jv **out, const struct jinja_args *a, int i)
{
    const struct jv *v = &a->bound[i];
    *out = NULL;
    if (v->type == JV_UNSET || v->type == JV_NONE) return ISO_OK;
    if (v->type != JV_STR) JINJA_FAIL(rt, "must be str or None, not %s", iso_jv_type_name(v));
    *out = v;
    return ISO_OK;
}

static enum iso_err
opt_int(struct jinja_rt *rt, int64_t *out, const struct jinja_args *a, int i, int64_t otherwise)
{
    const struct jv *v = &a->bound[i];
    *out = otherwise;
    if (v->type == JV_UNSET || v->type == JV_NONE) return ISO_OK;
    if (!jv_as_int(out, v)) {
        JINJA_FAIL(rt, "'%s' object cannot be interpreted as an integer", iso_jv_type_name(v));
    }
    return ISO_OK;
}

static enum iso_err need_str(struct jinja_rt *rt, const struct jinja_args *a, int i)
{
    if (a->bound[i].type == JV_STR) return ISO_OK;
    JINJA_FAIL(rt, "must be str, not %s", iso_jv_type_name(&a->bound[i]));
}

METHOD(str_upper)
{
    (void)a;
    return iso_jt_case(rt, out, v, JT_UPPER);
}
METHOD(str_lower)
{
    (void)a;
    return iso_jt_case(rt, out, v, JT_LOWER);
}
METHOD(str_title)
{
    (void)a;
    return iso_jt_case(rt, out, v, JT_TITLE);
}
METHOD(str_capitalize)
{
    (void)a;
    return iso_jt_case(rt, out, v, JT_CAPITALIZE);
}

static enum iso_err strip(struct jinja_rt *rt,
                          struct jv *out,
                          const struct jv *v,
                          const struct jinja_args *a,
                          unsigned ends)
{
    const struct jv *chars = NULL;
    ISO_TRY(opt_str(rt, &chars, a, 0));
    ISO_TRY(iso_jinja_charge_bytes(rt, v->n));
    if (chars != NULL && chars->n > 64) ISO_TRY(iso_jinja_charge(rt, v->n / 64 * (chars->n / 64)));
    *out = iso_jt_strip(v, chars, ends);
    return ISO_OK;
}

METHOD(str_strip)
{
    return strip(rt, out, v, a, JT_LEFT | JT_RIGHT);
}
METHOD(str_lstrip)
{
    return strip(rt, out, v, a, JT_LEFT);
}
METHOD(str_rstrip)
{
    return strip(rt, out, v, a, JT_RIGHT);
}

static enum iso_err split(struct jinja_rt *rt,
                          struct jv *out,
                          const struct jv *v,
                          const struct jinja_args *a,
                          bool from_right)
{
    const struct jv *sep = NULL;
    int64_t max = 0;
    ISO_TRY(opt_str(rt, &sep, a, 0));
    ISO_TRY(opt_int(rt, &max, a, 1, -1));
    if (from_right && sep != NULL) ISO_TRY(iso_jinja_charge(rt, v->n / 64 * (1 + sep->n / 64)));
    return iso_jt_split(rt, out, v, sep, max, from_right);
}

METHOD(str_split)
{
    return split(rt, out, v, a, false);
}
METHOD(str_rsplit)
{
    return split(rt, out, v, a, true);
}

METHOD(str_splitlines)
{
    return iso_jt_splitlines(rt, out, v, iso_jv_truth(&a->bound[0]));
}

/* s[lo:hi] by code points, as startswith, find and count take it. */
static enum iso_err
window(struct jinja_rt *rt, struct jv *out, const struct jv *v, const struct jinja_args *a)
{
    if (a->bound[1].type == JV_UNSET && a->bound[2].type == JV_UNSET) {
        *out = *v;
        return ISO_OK;
    }
    struct jv bound[3] = {a->bound[1], a->bound[2], jv_none()};
    for (int i = 0; i < 2; i++) {
        if (bound[i].type == JV_UNSET) bound[i] = jv_none();
    }
    return iso_jv_slice(rt, out, v, bound);
}

static bool has_affix(const struct jv *s, const struct jv *affix, bool end)
{
    if (affix->n > s->n) return false;
    return memcmp(s->u.s + (end ? s->n - affix->n : 0), affix->u.s, affix->n) == 0;
}

static enum iso_err
affix(struct jinja_rt *rt, struct jv *out, const struct jv *v, const struct jinja_args *a, bool end)
{
    const struct jv *what = &a->bound[0];
    struct jv s;
    ISO_TRY(window(rt, &s, v, a));
    const bool tuple = what->type == JV_TUPLE;
    bool yes = false;
    for (size_t i = 0; i < (tuple ? what->n : 1) && !yes; i++) {
        const struct jv *one = tuple ? &what->u.items[i] : what;
        if (one->type != JV_STR) {
            JINJA_FAIL(rt, "%s first arg must be str or a tuple of str, not %s",
                       end ? "endswith" : "startswith", iso_jv_type_name(one));
        }
        ISO_TRY(iso_jinja_charge_bytes(rt, one->n));
        yes = has_affix(&s, one, end);
    }
    *out = jv_bool(yes);
    return ISO_OK;
}

METHOD(str_startswith)
{
    return affix(rt, out, v, a, false);
}
METHOD(str_endswith)
{
    return affix(rt, out, v, a, true);
}

static enum iso_err remove_affix(
    struct jinja_rt *rt, struct jv *out, const struct jv *v, const struct jinja_args *a, bool end)
{
    ISO_TRY(need_str(rt, a, 0));
    const struct jv *what = &a->bound[0];
    ISO_TRY(iso_jinja_charge_bytes(rt, what->n));
    *out = *v;
    out->sub &= JV_STR_MARKUP;
    if (what->n > 0 && has_affix(v, what, end)) {
        out->n -= what->n;
        if (!end) out->u.s += what->n;
    }
    return ISO_OK;
}

METHOD(str_removeprefix)
{
    return remove_affix(rt, out, v, a, false);
}
METHOD(str_removesuffix)
{
    return remove_affix(rt, out, v, a, true);
}

METHOD(str_replace)
{
    int64_t count = 0;
    ISO_TRY(need_str(rt, a, 0));
    ISO_TRY(need_str(rt, a, 1));
    ISO_TRY(opt_int(rt, &count, a, 2, -1));
    if (v->sub & JV_STR_MARKUP) JINJA_FAIL(rt, "replace() of a safe string is not supported");
    return iso_jt_replace(rt, out, v, &a->bound[0], &a->bound[1], count);
}

METHOD(str_join)
{
    if (v->sub & JV_STR_MARKUP) JINJA_FAIL(rt, "join() of a safe string is not supported");
    return iso_jt_join(rt, out, v, &a->bound[0], true);
}

METHOD(str_format)
{
    return iso_jv_format(rt, out, v, a);
}

/* First or last place of the argument in code points, -1 when absent. */
static enum iso_err
find(struct jinja_rt *rt, int64_t *out, const struct jv *v, const struct jinja_args *a, bool last)
{
    struct jv s;
    ISO_TRY(need_str(rt, a, 0));
    ISO_TRY(window(rt, &s, v, a));
    ISO_TRY(iso_jinja_charge(rt, 1 + s.n / 64 * (1 + (last ? a->bound[0].n / 64 : 0))));
    const size_t at = last ? iso_jt_rfind(&s, &a->bound[0], s.n) : iso_jt_find(&s, &a->bound[0], 0);
    *out = at == SIZE_MAX ? -1 : (int64_t)iso_jt_count(v->u.s, (size_t)(s.u.s - v->u.s) + at);
    return ISO_OK;
}

METHOD(str_find)
{
    int64_t at = 0;
    ISO_TRY(find(rt, &at, v, a, false));
    *out = jv_int(at);
    return ISO_OK;
}

METHOD(str_rfind)
{
    int64_t at = 0;
    ISO_TRY(find(rt, &at, v, a, true));
    *out = jv_int(at);
    return ISO_OK;
}

METHOD(any_index)
{
    if (v->type == JV_STR) {
        ISO_TRY(str_find(rt, out, v, a));
        if (out->u.i < 0) JINJA_FAIL(rt, "substring not found");
        return ISO_OK;
    }
    if (a->bound[1].type != JV_UNSET) JINJA_FAIL(rt, "index() with bounds is not supported");
    for (size_t i = 0; i < v->n; i++) {
        bool same = false;
        ISO_TRY(iso_jv_equal(rt, &same, &v->u.items[i], &a->bound[0]));
        if (!same) continue;
        *out = jv_int((int64_t)i);
        return ISO_OK;
    }
    struct jv text;
    const size_t mark = rt->buf.len;
    ISO_TRY(iso_jv_put_repr(rt, &a->bound[0]));
    ISO_TRY(iso_jv_take(rt, &text, mark));
    JINJA_FAIL(rt, "%.*s is not in %s", text.n > 200 ? 200 : (int)text.n, text.u.s,
               iso_jv_type_name(v));
}

METHOD(any_count)
{
    int64_t n = 0;
    if (v->type == JV_STR) {
        struct jv s;
        ISO_TRY(need_str(rt, a, 0));
        ISO_TRY(window(rt, &s, v, a));
        ISO_TRY(iso_jinja_charge_bytes(rt, s.n));
        const struct jv *what = &a->bound[0];
        if (what->n == 0) n = (int64_t)iso_jt_count(s.u.s, s.n) + 1;
        for (size_t at = 0; what->n; n++) {
            at = iso_jt_find(&s, what, at);
            if (at == SIZE_MAX) break;
            at += what->n;
        }
    } else {
        for (size_t i = 0; i < v->n; i++) {
            bool same = false;
            ISO_TRY(iso_jv_equal(rt, &same, &v->u.items[i], &a->bound[0]));
            n += same;
        }
    }
    *out = jv_int(n);
    return ISO_OK;
}

METHOD(str_isdigit)
{
    (void)a;
    bool yes = v->n > 0;
    for (size_t i = 0; i < v->n && yes; i++) {
        if ((unsigned char)v->u.s[i] >= 0x80)
            JINJA_FAIL(rt, "isdigit() of non-ASCII text is not supported");
        yes = v->u.s[i] >= '0' && v->u.s[i] <= '9';
    }
    *out = jv_bool(yes);
    return iso_jinja_charge_bytes(rt, v->n);
}

METHOD(str_isspace)
{
    (void)a;
    *out = jv_bool(v->n > 0 && iso_jt_strip(v, NULL, JT_LEFT).n == 0);
    return iso_jinja_charge_bytes(rt, v->n);
}

METHOD(str_isupper)
{
    (void)a;
    *out = jv_bool(iso_jt_is_upper(v));
    return iso_jinja_charge_bytes(rt, v->n);
}

METHOD(str_islower)
{
    (void)a;
    *out = jv_bool(iso_jt_is_lower(v));
    return iso_jinja_charge_bytes(rt, v->n);
}

METHOD(dict_get)
{
    if (!iso_jv_hashable(&a->bound[0])) {
        JINJA_FAIL(rt, "unhashable type: '%s'", iso_jv_type_name(&a->bound[0]));
    }
    if (a->bound[0].type == JV_STR) ISO_TRY(iso_jinja_charge_bytes(rt, a->bound[0].n));
    const struct jv *found = iso_jv_dict_get(v->u.dict, &a->bound[0]);
    if (found != NULL)
        *out = *found;
    else
        *out = a->bound[1].type == JV_UNSET ? jv_none() : a->bound[1];
    return ISO_OK;
}

static enum iso_err view(struct jv *out, const struct jv *v, enum jv_view kind)
{
    *out = (struct jv){.type = JV_VIEW, .sub = (uint8_t)kind, .u.dict = v->u.dict};
    return ISO_OK;
}

METHOD(dict_keys)
{
    (void)rt, (void)a;
    return view(out, v, JV_VIEW_KEYS);
}
METHOD(dict_values)
{
    (void)rt, (void)a;
    return view(out, v, JV_VIEW_VALUES);
}
METHOD(dict_items)
{
    (void)rt, (void)a;
    return view(out, v, JV_VIEW_ITEMS);
}

METHOD(any_copy) /* values never change, so a copy is the value */
{
    (void)rt, (void)a;
    *out = *v;
    return ISO_OK;
}

METHOD(loop_cycle)
{
    if (a->n_pos == 0) JINJA_FAIL(rt, "no items for cycling given");
    *out = a->pos[v->u.loop->index0 % a->n_pos];
    return ISO_OK;
}

METHOD(loop_changed)
{
    bool same = false;
    struct jinja_loop *loop = v->u.loop;
    const struct jv now = jv_items(JV_TUPLE, a->pos, a->n_pos);
    if (loop->changed.type != JV_UNSET) ISO_TRY(iso_jv_equal(rt, &same, &loop->changed, &now));
    loop->changed = now;
    *out = jv_bool(!same);
    return ISO_OK;
}

/* Every public method that Python has; without a function it is outside the subset. */
static const struct jinja_method str_methods[] = {
    {"capitalize", str_capitalize, {0}, 0, false},
    {"casefold", 0, {0}, 0, false},
    {"center", 0, {0}, 0, false},
    {"count", any_count, {"sub", "start", "end"}, 1, false},
    {"encode", 0, {0}, 0, false},
    {"endswith", str_endswith, {"suffix", "start", "end"}, 1, false},
    {"expandtabs", 0, {0}, 0, false},
    {"find", str_find, {"sub", "start", "end"}, 1, false},
    {"format", str_format, {"*"}, 0, false},
    {"format_map", 0, {0}, 0, false},
    {"index", any_index, {"sub", "start", "end"}, 1, false},
    {"isalnum", 0, {0}, 0, false},
    {"isalpha", 0, {0}, 0, false},
    {"isascii", 0, {0}, 0, false},
    {"isdecimal", 0, {0}, 0, false},
    {"isdigit", str_isdigit, {0}, 0, false},
    {"isidentifier", 0, {0}, 0, false},
    {"islower", str_islower, {0}, 0, false},
    {"isnumeric", 0, {0}, 0, false},
    {"isprintable", 0, {0}, 0, false},
    {"isspace", str_isspace, {0}, 0, false},
    {"istitle", 0, {0}, 0, false},
    {"isupper", str_isupper, {0}, 0, false},
    {"join", str_join, {"iterable"}, 1, false},
    {"ljust", 0, {0}, 0, false},
    {"lower", str_lower, {0}, 0, false},
    {"lstrip", str_lstrip, {"chars"}, 0, false},
    {"maketrans", 0, {0}, 0, false},
    {"partition", 0, {0}, 0, false},
    {"removeprefix", str_removeprefix, {"prefix"}, 1, false},
    {"removesuffix", str_removesuffix, {"suffix"}, 1, false},
    {"replace", str_replace, {"old", "new", "count"}, 2, false},
    {"rfind", str_rfind, {"sub", "start", "end"}, 1, false},
    {"rindex", 0, {0}, 0, false},
    {"rjust", 0, {0}, 0, false},
    {"rpartition", 0, {0}, 0, false},
    {"rsplit", str_rsplit, {"sep", "maxsplit"}, 0, false},
    {"rstrip", str_rstrip, {"chars"}, 0, false},
    {"split", str_split, {"sep", "maxsplit"}, 0, false},
    {"splitlines", str_splitlines, {"keepends"}, 0, false},
    {"startswith", str_startswith, {"prefix", "start", "end"}, 1, false},
    {"strip", str_strip, {"chars"}, 0, false},
    {"swapcase", 0, {0}, 0, false},
    {"title", str_title, {0}, 0, false},
    {"translate", 0, {0}, 0, false},
    {"upper", str_upper, {0}, 0, false},
    {"zfill", 0, {0}, 0, false},
    {0},
};
static const struct jinja_method list_methods[] = {
    {"append", 0, {0}, 0, true},       {"clear", 0, {0}, 0, true},
    {"copy", any_copy, {0}, 0, false}, {"count", any_count, {"value"}, 1, false},
    {"extend", 0, {0}, 0, true},       {"index", any_index, {"value", "start", "stop"}, 1, false},
    {"insert", 0, {0}, 0, true},       {"pop", 0, {0}, 0, true},
    {"remove", 0, {0}, 0, true},       {"reverse", 0, {0}, 0, true},
    {"sort", 0, {0}, 0, true},         {0},
};
static const struct jinja_method tuple_methods[] = {
    {"count", any_count, {"value"}, 1, false},
    {"index", any_index, {"value", "start", "stop"}, 1, false},
    {0},
};
static const struct jinja_method dict_methods[] = {
    {"clear", 0, {0}, 0, true},
    {"copy", any_copy, {0}, 0, false},
    {"fromkeys", 0, {0}, 0, false},
    {"get", dict_get, {"key", "default"}, 1, false},
    {"items", dict_items, {0}, 0, false},
    {"keys", dict_keys, {0}, 0, false},
    {"pop", 0, {0}, 0, true},
    {"popitem", 0, {0}, 0, true},
    {"setdefault", 0, {0}, 0, true},
    {"update", 0, {0}, 0, true},
    {"values", dict_values, {0}, 0, false},
    {0},
};
static const struct jinja_method loop_methods[] = {
    {"cycle", loop_cycle, {"*"}, 0, false},
    {"changed", loop_changed, {"*"}, 0, false},
    {0},
};
/* Attributes of numbers; none is in the subset, but they hide nothing else either. */
static const struct jinja_method number_methods[] = {
    {"as_integer_ratio", 0, {0}, 0, false},
    {"conjugate", 0, {0}, 0, false},
    {"imag", 0, {0}, 0, false},
    {"real", 0, {0}, 0, false},
    {0},
};

static const struct jinja_method *find_in(const struct jinja_method *m, const char *s, size_t n)
{
    for (; m != NULL && m->name != NULL; m++) {
        if (m->name[0] == s[0] && strlen(m->name) == n && memcmp(m->name, s, n) == 0) return m;
    }
    return NULL;
}

const struct jinja_method *iso_jinja_method_find(const struct jv *v, const char *s, size_t n)
{
    if (n == 0) return NULL;
    switch (v->type) {
    case JV_STR:
        return find_in(str_methods, s, n);
    case JV_LIST:
        return find_in(list_methods, s, n);
    case JV_TUPLE:
        return find_in(tuple_methods, s, n);
    case JV_DICT:
        return find_in(dict_methods, s, n);
    case JV_LOOP:
        return find_in(loop_methods, s, n);
    case JV_INT:
    case JV_FLOAT:
    case JV_BOOL:
        return find_in(number_methods, s, n);
    default:
        return NULL;
    }
}

bool iso_jinja_method_known(const char *s, size_t n)
{
    static const uint8_t types[] = {JV_STR, JV_LIST, JV_TUPLE, JV_DICT, JV_LOOP};
    for (size_t i = 0; i < sizeof(types); i++) {
        const struct jv v = {.type = types[i]};
        const struct jinja_method *m = iso_jinja_method_find(&v, s, n);
        if (m != NULL && (m->fn != NULL || m->unsafe)) return true;
    }
    return false;
}
