/* SPDX-License-Identifier: MIT
 * jinja_exec.c - runs template statements: output, branches, loops, assignments, macros. */
#include "tokenizer/jinja.h"

/* Runs body in a scope of its own inside parent. */
static enum iso_err
exec_inside(struct jinja_rt *rt, const struct jinja_node *body, struct jinja_scope *parent)
{
    struct jinja_scope *saved = rt->scope;
    ISO_TRY(iso_jinja_scope_push(rt, parent));
    ISO_TRY(iso_jinja_exec(rt, body));
    rt->scope = saved;
    return ISO_OK;
}

/* The text that body writes, as a value. */
static enum iso_err capture(struct jinja_rt *rt, struct jv *out, const struct jinja_node *body)
{
    const size_t mark = rt->buf.len;
    ISO_TRY(exec_inside(rt, body, rt->scope));
    return iso_jv_take(rt, out, mark);
}

/* --- assignment --- */

static enum iso_err unpack(struct jinja_rt *rt, const struct jinja_node *target, const struct jv *v)
{
    struct jv list;
    if (!iso_jv_iterable(v)) {
        JINJA_FAIL(rt, "cannot unpack non-iterable %s object", iso_jv_type_name(v));
    }
    ISO_TRY(iso_jv_list(rt, &list, v));
    if (list.n > target->n_list) {
        JINJA_FAIL(rt, "too many values to unpack (expected %zu)", target->n_list);
    }
    if (list.n < target->n_list) {
        JINJA_FAIL(rt, "not enough values to unpack (expected %zu, got %zu)", target->n_list,
                   list.n);
    }
    ISO_TRY(iso_jinja_deeper(rt));
    for (size_t i = 0; i < list.n; i++) {
        ISO_TRY(iso_jinja_assign(rt, target->list[i], &list.u.items[i]));
    }
    rt->depth--;
    return ISO_OK;
}

enum iso_err
iso_jinja_assign(struct jinja_rt *rt, const struct jinja_node *target, const struct jv *v)
{
    if (target->kind == JN_TUPLE) return unpack(rt, target, v);
    if (target->kind == JN_NAME) return iso_jinja_bind_name(rt, target->name, v);
    struct jv ns;
    ISO_TRY(iso_jinja_lookup(rt, &ns, target->name));
    if (ns.type != JV_NAMESPACE) JINJA_FAIL(rt, "cannot assign attribute on non-namespace object");
    const struct jv key = jv_str(target->s, target->n);
    return iso_jv_dict_set(rt, ns.u.dict, &key, v);
}

/* --- loops --- */

/* Clears the innermost scope for the next iteration, or makes a new one when a macro holds it. */
static enum iso_err
fresh_scope(struct jinja_rt *rt, struct jinja_scope **scope, struct jinja_scope *parent)
{
    if (*scope == NULL || (*scope)->captured) {
        ISO_TRY(iso_jinja_scope_push(rt, parent));
        *scope = rt->scope;
    } else {
        (*scope)->n = 0;
        rt->scope = *scope;
    }
    return ISO_OK;
}

/* Next item that passes the loop's filter; JV_UNSET at the end. */
static enum iso_err fetch(struct jinja_rt *rt, struct jinja_loop *loop, struct jv *item)
{
    struct jinja_scope *saved = rt->scope, *scope = NULL;
    for (;;) {
        ISO_TRY(iso_jv_next(rt, &loop->cursor, item));
        if (item->type == JV_UNSET || loop->filter == NULL) break;
        struct jv test;
        ISO_TRY(fresh_scope(rt, &scope, loop->outer));
        ISO_TRY(iso_jinja_assign(rt, loop->node->a, item));
        ISO_TRY(iso_jinja_eval(rt, &test, loop->filter));
        if (iso_jv_truth(&test)) break;
    }
    rt->scope = saved;
    return ISO_OK;
}

static enum iso_err peek(struct jinja_rt *rt, struct jinja_loop *loop)
{
    if (loop->peeked) return ISO_OK;
    ISO_TRY(fetch(rt, loop, &loop->after));
    loop->peeked = true;
    return ISO_OK;
}

/* loop.length: of a filtered loop or a generator only known after the rest is fetched. */
static enum iso_err loop_length(struct jinja_rt *rt, struct jinja_loop *loop)
{
    if (loop->length != SIZE_MAX) return ISO_OK;
    if (loop->filter == NULL && iso_jv_len(&loop->length, &loop->cursor.v)) return ISO_OK;
    struct jv *items = NULL;
    size_t n = 0, cap = 0;
    for (;;) {
        struct jv item;
        ISO_TRY(fetch(rt, loop, &item));
        if (item.type == JV_UNSET) break;
        if (n == cap) {
            struct jv *more = NULL;
            cap = cap ? 2 * cap : 16;
            ISO_TRY(iso_jv_new_items(rt, &more, cap));
            if (n) memcpy(more, items, n * sizeof(*items));
            items = more;
        }
        items[n++] = item;
    }
    const struct jv rest = jv_items(JV_LIST, items, n);
    ISO_TRY(iso_jv_cursor(rt, &loop->cursor, &rest));
    loop->filter = NULL;
    loop->length = n + loop->index0 + 1 + (loop->peeked && loop->after.type != JV_UNSET);
    return ISO_OK;
}

static bool is_attr(const char *name, size_t n, const char *what)
{
    return n == strlen(what) && memcmp(name, what, n) == 0;
}

enum iso_err iso_jinja_loop_attr(
    struct jinja_rt *rt, struct jv *out, struct jinja_loop *loop, const char *name, size_t n)
{
    const int64_t index0 = (int64_t)loop->index0;
    *out = (struct jv){.type = JV_UNSET};
    if (is_attr(name, n, "index"))
        *out = jv_int(index0 + 1);
    else if (is_attr(name, n, "index0"))
        *out = jv_int(index0);
    else if (is_attr(name, n, "first"))
        *out = jv_bool(index0 == 0);
    else if (is_attr(name, n, "depth"))
        *out = jv_int(1);
    else if (is_attr(name, n, "depth0"))
        *out = jv_int(0);
    else if (is_attr(name, n, "previtem")) {
        *out = index0 == 0 ? jv_undef_hint("there is no previous item") : loop->before;
    } else if (is_attr(name, n, "last") || is_attr(name, n, "nextitem")) {
        ISO_TRY(peek(rt, loop));
        const bool end = loop->after.type == JV_UNSET;
        if (is_attr(name, n, "last"))
            *out = jv_bool(end);
        else
            *out = end ? jv_undef_hint("there is no next item") : loop->after;
    } else if (is_attr(name, n, "length") || is_attr(name, n, "revindex") ||
               is_attr(name, n, "revindex0")) {
        ISO_TRY(loop_length(rt, loop));
        const int64_t length = (int64_t)loop->length;
        if (is_attr(name, n, "length"))
            *out = jv_int(length);
        else
            *out = jv_int(length - index0 - (is_attr(name, n, "revindex0") ? 1 : 0));
    }
    return ISO_OK;
}

/* Moves to the next item; *more is false at the end. */
static enum iso_err advance(struct jinja_rt *rt, struct jinja_loop *loop, bool *more)
{
    struct jv item = loop->after;
    if (!loop->peeked) ISO_TRY(fetch(rt, loop, &item));
    loop->peeked = false;
    *more = item.type != JV_UNSET;
    loop->index0++;
    loop->before = loop->current;
    loop->current = item;
    return ISO_OK;
}

/* Runs the iterations. *ended: one reached the end of the body, so there is no else. */
static enum iso_err
iterate(struct jinja_rt *rt, const struct jinja_node *n, struct jinja_loop *loop, bool *ended)
{
    struct jinja_scope *scope = NULL;
    const bool named = rt->t->names[n->name].uses > 0;
    const struct jv value = {.type = JV_LOOP, .u.loop = loop};
    for (;;) {
        bool more = false;
        rt->line = n->line;
        ISO_TRY(advance(rt, loop, &more));
        if (!more) return ISO_OK;
        ISO_TRY(fresh_scope(rt, &scope, loop->outer));
        ISO_TRY(iso_jinja_assign(rt, n->a, &loop->current));
        if (named) ISO_TRY(iso_jinja_bind_name(rt, n->name, &value));
        ISO_TRY(iso_jinja_exec(rt, n->list[0]));
        rt->scope = loop->outer;
        const uint8_t flow = rt->flow;
        rt->flow = JF_NEXT;
        if (flow == JF_BREAK) return ISO_OK;
        if (flow == JF_NEXT) *ended = true;
    }
}

static enum iso_err exec_for(struct jinja_rt *rt, const struct jinja_node *n)
{
    struct jv source;
    void *p = NULL;
    ISO_TRY(iso_jinja_eval(rt, &source, n->b));
    ISO_TRY(iso_jinja_alloc(&p, &rt->arena, 1, sizeof(struct jinja_loop)));
    struct jinja_loop *loop = p;
    *loop = (struct jinja_loop){
        .node = n, .filter = n->c, .outer = rt->scope, .index0 = SIZE_MAX, .length = SIZE_MAX};
    ISO_TRY(iso_jv_cursor(rt, &loop->cursor, &source));
    bool ended = false;
    ISO_TRY(iterate(rt, n, loop, &ended));
    rt->scope = loop->outer;
    if (ended || n->list[1] == NULL) return ISO_OK;
    return exec_inside(rt, n->list[1], rt->scope);
}

/* --- macros --- */

static enum iso_err make_macro(struct jinja_rt *rt, struct jv *out, const struct jinja_node *def)
{
    void *p = NULL;
    ISO_TRY(iso_jinja_alloc(&p, &rt->arena, 1, sizeof(struct jinja_macro)));
    *(struct jinja_macro *)p = (struct jinja_macro){def, rt->scope};
    for (struct jinja_scope *s = rt->scope; s != NULL && !s->captured; s = s->parent) {
        s->captured = true;
    }
    *out = (struct jv){.type = JV_MACRO, .u.macro = p};
    return ISO_OK;
}

/* Takes the keyword argument out of a; JV_UNSET when it was not given. */
static struct jv pop_kw(struct jinja_args *a, const char *s, size_t n)
{
    for (size_t i = 0; i < a->n_kw; i++) {
        if (a->kw[i].n != n || memcmp(a->kw[i].s, s, n) != 0) continue;
        const struct jv v = a->kw[i].v;
        memmove(&a->kw[i], &a->kw[i + 1], (a->n_kw - i - 1) * sizeof(*a->kw));
        a->n_kw--;
        return v;
    }
    return (struct jv){.type = JV_UNSET};
}

/* Binds one parameter: given, default, or undefined. */
static enum iso_err
bind_param(struct jinja_rt *rt, const struct jinja_node *def, size_t i, struct jinja_args *a)
{
    const struct jinja_name *name = &rt->t->names[def->list[i]->name];
    const size_t first_default = def->n_list - def->n_kw;
    struct jv v = {.type = JV_UNSET};
    if (i < a->n_pos)
        v = a->pos[i];
    else
        v = pop_kw(a, name->s, name->n);
    if (v.type == JV_UNSET && i >= first_default) {
        ISO_TRY(iso_jinja_eval(rt, &v, def->kw[i - first_default].v));
    } else if (v.type == JV_UNSET) {
        v = (struct jv){.type = JV_UNDEF, .sub = JV_UNDEF_PARAM, .n = name->n, .u.s = name->s};
    }
    return iso_jinja_bind_name(rt, def->list[i]->name, &v);
}

/* caller, kwargs and varargs, as far as the body mentions them; the rest must be used up. */
static enum iso_err
bind_special(struct jinja_rt *rt, const struct jinja_node *def, struct jinja_args *a)
{
    const struct jinja_name *name = &rt->t->names[def->name];
    struct jv v;
    if (def->flags & JN_F_CALLER) {
        v = pop_kw(a, "caller", 6);
        if (v.type == JV_UNSET || v.type == JV_NONE) v = jv_undef_hint("No caller defined");
        ISO_TRY(iso_jinja_bind_name(rt, rt->t->special[0], &v));
    }
    if (def->flags & JN_F_KWARGS) {
        ISO_TRY(iso_jv_dict_new(rt, &v, JV_DICT, a->n_kw));
        for (size_t i = 0; i < a->n_kw; i++) {
            const struct jv k = jv_str(a->kw[i].s, a->kw[i].n);
            ISO_TRY(iso_jv_dict_set(rt, v.u.dict, &k, &a->kw[i].v));
        }
        ISO_TRY(iso_jinja_bind_name(rt, rt->t->special[1], &v));
    } else if (a->n_kw) {
        JINJA_FAIL(rt, "macro '%.*s' takes no keyword argument '%.*s'", (int)name->n, name->s,
                   (int)a->kw[0].n, a->kw[0].s);
    }
    const size_t extra = a->n_pos > def->n_list ? a->n_pos - def->n_list : 0;
    if (def->flags & JN_F_VARARGS) {
        v = jv_items(JV_TUPLE, extra ? a->pos + def->n_list : NULL, extra);
        ISO_TRY(iso_jinja_bind_name(rt, rt->t->special[2], &v));
    } else if (extra) {
        JINJA_FAIL(rt, "macro '%.*s' takes not more than %zu argument(s)", (int)name->n, name->s,
                   def->n_list);
    }
    return ISO_OK;
}

enum iso_err iso_jinja_call_macro(struct jinja_rt *rt,
                                  struct jv *out,
                                  const struct jinja_macro *m,
                                  struct jinja_args *a)
{
    struct jinja_scope *saved = rt->scope;
    const size_t mark = rt->buf.len;
    ISO_TRY(iso_jinja_scope_push(rt, m->closure));
    for (size_t i = 0; i < m->def->n_list; i++) ISO_TRY(bind_param(rt, m->def, i, a));
    ISO_TRY(bind_special(rt, m->def, a));
    ISO_TRY(iso_jinja_exec(rt, m->def->c));
    rt->scope = saved;
    return iso_jv_take(rt, out, mark);
}

static enum iso_err exec_callblock(struct jinja_rt *rt, const struct jinja_node *n)
{
    struct jinja_args a;
    struct jv fn, caller, text;
    ISO_TRY(make_macro(rt, &caller, n->b));
    ISO_TRY(iso_jinja_eval(rt, &fn, n->a->a));
    ISO_TRY(iso_jinja_eval_args(rt, &a, n->a));
    if (a.kw == NULL) {
        void *kw = NULL;
        ISO_TRY(iso_jinja_alloc(&kw, &rt->arena, 1, sizeof(*a.kw)));
        a.kw = kw;
    }
    a.kw[a.n_kw++] = (struct jinja_kw){"caller", 6, caller};
    ISO_TRY(iso_jinja_call(rt, &text, &fn, &a));
    return iso_jv_put_str(rt, &text);
}

/* --- the rest --- */

static enum iso_err exec_if(struct jinja_rt *rt, const struct jinja_node *n)
{
    for (size_t i = 0; i + 1 < n->n_list; i += 2) {
        struct jv test;
        ISO_TRY(iso_jinja_eval(rt, &test, n->list[i]));
        if (iso_jv_truth(&test)) return iso_jinja_exec(rt, n->list[i + 1]);
    }
    return n->a != NULL ? iso_jinja_exec(rt, n->a) : ISO_OK;
}

static enum iso_err exec_with(struct jinja_rt *rt, const struct jinja_node *n)
{
    struct jinja_scope *saved = rt->scope;
    struct jv *values = NULL;
    ISO_TRY(iso_jv_new_items(rt, &values, n->n_list / 2));
    for (size_t i = 0; i + 1 < n->n_list; i += 2) {
        ISO_TRY(iso_jinja_eval(rt, &values[i / 2], n->list[i + 1]));
    }
    ISO_TRY(iso_jinja_scope_push(rt, saved));
    for (size_t i = 0; i + 1 < n->n_list; i += 2) {
        ISO_TRY(iso_jinja_assign(rt, n->list[i], &values[i / 2]));
    }
    ISO_TRY(iso_jinja_exec(rt, n->c));
    rt->scope = saved;
    return ISO_OK;
}

static enum iso_err exec_value(struct jinja_rt *rt, const struct jinja_node *n)
{
    struct jv v, text;
    switch (n->kind) {
    case JN_OUTPUT:
        ISO_TRY(iso_jinja_eval(rt, &v, n->a));
        return iso_jv_put_str(rt, &v);
    case JN_SET:
        ISO_TRY(iso_jinja_eval(rt, &v, n->b));
        return iso_jinja_assign(rt, n->a, &v);
    case JN_MACRO:
        ISO_TRY(make_macro(rt, &v, n));
        return iso_jinja_bind_name(rt, n->name, &v);
    default:
        break;
    }
    ISO_TRY(capture(rt, &text, n->c));
    v = text;
    if (n->b != NULL) ISO_TRY(iso_jinja_eval_filters(rt, &v, n->b, &text));
    return n->kind == JN_SETBLOCK ? iso_jinja_assign(rt, n->a, &v) : iso_jv_put_str(rt, &v);
}

static enum iso_err exec_inner(struct jinja_rt *rt, const struct jinja_node *n)
{
    switch (n->kind) {
    case JN_BODY:
        for (size_t i = 0; i < n->n_list && rt->flow == JF_NEXT; i++) {
            ISO_TRY(iso_jinja_exec(rt, n->list[i]));
        }
        return ISO_OK;
    case JN_DATA:
        ISO_TRY(iso_jinja_charge_bytes(rt, n->n));
        return iso_buf_append(&rt->buf, n->s, n->n);
    case JN_IF:
        return exec_if(rt, n);
    case JN_FOR:
        return exec_for(rt, n);
    case JN_WITH:
        return exec_with(rt, n);
    case JN_CALLBLOCK:
        return exec_callblock(rt, n);
    case JN_BREAK:
        rt->flow = JF_BREAK;
        return ISO_OK;
    case JN_CONTINUE:
        rt->flow = JF_CONTINUE;
        return ISO_OK;
    default:
        return exec_value(rt, n);
    }
}

enum iso_err iso_jinja_exec(struct jinja_rt *rt, const struct jinja_node *n)
{
    ISO_TRY(iso_jinja_charge(rt, 1));
    rt->line = n->line;
    ISO_TRY(iso_jinja_deeper(rt));
    ISO_TRY(exec_inner(rt, n));
    rt->depth--;
    return ISO_OK;
}
