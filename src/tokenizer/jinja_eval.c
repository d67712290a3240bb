/* SPDX-License-Identifier: MIT
 * jinja_eval.c - evaluates template expressions. */
#include "tokenizer/jinja.h"
#include "tokenizer/template.h"

enum iso_err iso_jinja_deeper(struct jinja_rt *rt)
{
    if (++rt->depth > ISO_TEMPLATE_MAX_DEPTH) {
        ISO_FAIL(ISO_E_LIMIT, "line %d: template nested deeper than %d evaluations", rt->line,
                 ISO_TEMPLATE_MAX_DEPTH);
    }
    return ISO_OK;
}

enum iso_err iso_jinja_scope_push(struct jinja_rt *rt, struct jinja_scope *parent)
{
    void *p = NULL;
    ISO_TRY(iso_jinja_alloc(&p, &rt->arena, 1, sizeof(struct jinja_scope)));
    rt->scope = p;
    rt->scope->parent = parent;
    return ISO_OK;
}

enum iso_err iso_jinja_bind_name(struct jinja_rt *rt, uint32_t name, const struct jv *v)
{
    struct jinja_scope *s = rt->scope;
    ISO_TRY(iso_jinja_charge(rt, s->n / 16));
    for (size_t i = 0; i < s->n; i++) {
        if (s->vars[i].name == name) {
            s->vars[i].v = *v;
            return ISO_OK;
        }
    }
    if (s->n == s->cap) {
        void *p = NULL;
        const size_t cap = s->cap ? 2 * s->cap : 4;
        ISO_TRY(iso_jinja_alloc(&p, &rt->arena, cap, sizeof(struct jinja_var)));
        if (s->n) memcpy(p, s->vars, s->n * sizeof(struct jinja_var));
        s->vars = p;
        s->cap = cap;
    }
    s->vars[s->n++] = (struct jinja_var){name, *v};
    return ISO_OK;
}

enum iso_err iso_jinja_lookup(struct jinja_rt *rt, struct jv *out, uint32_t name)
{
    for (const struct jinja_scope *s = rt->scope; s != NULL; s = s->parent) {
        ISO_TRY(iso_jinja_charge(rt, s->n / 16));
        for (size_t i = 0; i < s->n; i++) {
            if (s->vars[i].name == name) {
                *out = s->vars[i].v;
                return ISO_OK;
            }
        }
    }
    const struct jinja_name *n = &rt->t->names[name];
    *out = rt->context[name];
    if (out->type != JV_UNSET) return ISO_OK;
    const struct jinja_function *fn = iso_jinja_function_find(n->s, n->n);
    if (fn != NULL)
        *out = (struct jv){.type = JV_FUNCTION, .u.fn = fn};
    else
        *out = (struct jv){.type = JV_UNDEF, .sub = JV_UNDEF_NAME, .n = n->n, .u.s = n->s};
    return ISO_OK;
}

enum iso_err
iso_jinja_eval_args(struct jinja_rt *rt, struct jinja_args *a, const struct jinja_node *n)
{
    *a = (struct jinja_args){.n_pos = n->n_list, .n_kw = n->n_kw};
    if (n->n_list) ISO_TRY(iso_jv_new_items(rt, &a->pos, n->n_list));
    for (size_t i = 0; i < n->n_list; i++) ISO_TRY(iso_jinja_eval(rt, &a->pos[i], n->list[i]));
    if (n->n_kw == 0) return ISO_OK;
    void *kw = NULL;
    ISO_TRY(
        iso_jinja_alloc(&kw, &rt->arena, n->n_kw + 1, sizeof(*a->kw))); /* one more for caller */
    a->kw = kw;
    for (size_t i = 0; i < n->n_kw; i++) {
        a->kw[i].s = n->kw[i].s;
        a->kw[i].n = n->kw[i].n;
        ISO_TRY(iso_jinja_eval(rt, &a->kw[i].v, n->kw[i].v));
    }
    return ISO_OK;
}

static enum iso_err call_method(struct jinja_rt *rt,
                                struct jv *out,
                                const struct jv *self,
                                const struct jinja_method *m,
                                struct jinja_args *a)
{
    if (m->fn == NULL) {
        JINJA_FAIL(rt, "method '%s' of '%s' is not supported", m->name, iso_jv_type_name(self));
    }
    ISO_TRY(iso_jinja_bind(rt, a, m->name, m->params, m->n_required));
    return m->fn(rt, out, self, a);
}

enum iso_err
iso_jinja_call(struct jinja_rt *rt, struct jv *out, const struct jv *fn, struct jinja_args *a)
{
    switch (fn->type) {
    case JV_MACRO:
        return iso_jinja_call_macro(rt, out, fn->u.macro, a);
    case JV_FUNCTION:
        return fn->u.fn->fn(rt, out, a);
    case JV_METHOD:
        return call_method(rt, out, &fn->u.method->self, fn->u.method->def, a);
    case JV_UNDEF:
        return iso_jinja_fail_undef(rt, fn);
    case JV_LOOP:
        JINJA_FAIL(rt, "The loop must have the 'recursive' marker to be called recursively.");
    default:
        JINJA_FAIL(rt, "'%s' object is not callable", iso_jv_type_name(fn));
    }
}

/* A call of obj.method() finds the method without making a value of it. */
static enum iso_err eval_call(struct jinja_rt *rt, struct jv *out, const struct jinja_node *n)
{
    struct jinja_args a;
    struct jv fn, self;
    const struct jinja_method *m = NULL;
    if (n->a->kind == JN_GETATTR) {
        ISO_TRY(iso_jinja_eval(rt, &self, n->a->a));
        m = iso_jinja_method_find(&self, n->a->s, n->a->n);
        if (m != NULL && m->unsafe) m = NULL;
        if (m == NULL) ISO_TRY(iso_jv_getattr(rt, &fn, &self, n->a->s, n->a->n));
    } else {
        ISO_TRY(iso_jinja_eval(rt, &fn, n->a));
    }
    ISO_TRY(iso_jinja_eval_args(rt, &a, n));
    rt->line = n->line;
    return m != NULL ? call_method(rt, out, &self, m, &a) : iso_jinja_call(rt, out, &fn, &a);
}

enum iso_err iso_jinja_eval_filters(struct jinja_rt *rt,
                                    struct jv *out,
                                    const struct jinja_node *n,
                                    const struct jv *v)
{
    struct jv in;
    struct jinja_args a;
    if (n->a != NULL && n->a->kind == JN_FILTER)
        ISO_TRY(iso_jinja_eval_filters(rt, &in, n->a, v));
    else
        in = *v;
    ISO_TRY(iso_jinja_eval_args(rt, &a, n));
    rt->line = n->line;
    return iso_jinja_apply_filter(rt, out, &in, n->entry, &a);
}

static enum iso_err eval_filter(struct jinja_rt *rt, struct jv *out, const struct jinja_node *n)
{
    struct jv in;
    struct jinja_args a;
    ISO_TRY(iso_jinja_eval(rt, &in, n->a));
    ISO_TRY(iso_jinja_eval_args(rt, &a, n));
    rt->line = n->line;
    return iso_jinja_apply_filter(rt, out, &in, n->entry, &a);
}

static enum iso_err eval_test(struct jinja_rt *rt, struct jv *out, const struct jinja_node *n)
{
    struct jv v;
    struct jinja_args a;
    bool yes = false;
    ISO_TRY(iso_jinja_eval(rt, &v, n->a));
    ISO_TRY(iso_jinja_eval_args(rt, &a, n));
    ISO_TRY(iso_jinja_apply_test(rt, &yes, &v, n->entry, &a));
    *out = jv_bool(yes);
    return ISO_OK;
}

static enum iso_err
compare(struct jinja_rt *rt, bool *out, uint8_t op, const struct jv *a, const struct jv *b)
{
    static const char *const text[] = {
        [TK_GT] = ">", [TK_GE] = ">=", [TK_LT] = "<", [TK_LE] = "<="};
    int c = 0;
    if (op == TK_EQ || op == TK_NE) {
        ISO_TRY(iso_jv_equal(rt, out, a, b));
        *out ^= op == TK_NE;
        return ISO_OK;
    }
    if (op == 'i' || op == 'n') {
        ISO_TRY(iso_jv_contains(rt, out, b, a));
        *out ^= op == 'n';
        return ISO_OK;
    }
    ISO_TRY(iso_jv_order(rt, &c, a, b, text[op]));
    *out = op == TK_GT ? c > 0 : op == TK_GE ? c >= 0 : op == TK_LT ? c < 0 : c <= 0;
    return ISO_OK;
}

static enum iso_err eval_compare(struct jinja_rt *rt, struct jv *out, const struct jinja_node *n)
{
    struct jv left, right;
    bool yes = true;
    ISO_TRY(iso_jinja_eval(rt, &left, n->a));
    for (size_t i = 0; i < n->n_list && yes; i++) {
        ISO_TRY(iso_jinja_eval(rt, &right, n->list[i]->a));
        ISO_TRY(compare(rt, &yes, n->list[i]->op, &left, &right));
        left = right;
    }
    *out = jv_bool(yes);
    return ISO_OK;
}

static enum iso_err eval_items(struct jinja_rt *rt, struct jv *out, const struct jinja_node *n)
{
    struct jv *items = NULL;
    ISO_TRY(iso_jv_new_items(rt, &items, n->n_list));
    for (size_t i = 0; i < n->n_list; i++) ISO_TRY(iso_jinja_eval(rt, &items[i], n->list[i]));
    *out = jv_items(n->kind == JN_TUPLE ? JV_TUPLE : JV_LIST, items, n->n_list);
    return ISO_OK;
}

static enum iso_err eval_dict(struct jinja_rt *rt, struct jv *out, const struct jinja_node *n)
{
    struct jv dict;
    ISO_TRY(iso_jv_dict_new(rt, &dict, JV_DICT, n->n_list / 2));
    for (size_t i = 0; i + 1 < n->n_list; i += 2) {
        struct jv k, v;
        ISO_TRY(iso_jinja_eval(rt, &k, n->list[i]));
        ISO_TRY(iso_jinja_eval(rt, &v, n->list[i + 1]));
        ISO_TRY(iso_jv_dict_set(rt, dict.u.dict, &k, &v));
    }
    *out = dict;
    return ISO_OK;
}

static enum iso_err eval_slice(struct jinja_rt *rt, struct jv *out, const struct jinja_node *n)
{
    struct jv obj, bound[3];
    ISO_TRY(iso_jinja_eval(rt, &obj, n->a));
    for (int i = 0; i < 3; i++) {
        bound[i] = jv_none();
        if (n->list[i] != NULL) ISO_TRY(iso_jinja_eval(rt, &bound[i], n->list[i]));
    }
    return iso_jv_slice(rt, out, &obj, bound);
}

static enum iso_err eval_concat(struct jinja_rt *rt, struct jv *out, const struct jinja_node *n)
{
    struct jv text = jv_cstr("");
    for (size_t i = 0; i < n->n_list; i++) {
        struct jv v;
        const struct jv so_far = text;
        ISO_TRY(iso_jinja_eval(rt, &v, n->list[i]));
        ISO_TRY(i ? iso_jv_append(rt, &text, &so_far, &v) : iso_jv_to_str(rt, &text, &v));
    }
    *out = text;
    return ISO_OK;
}

static enum iso_err eval_cond(struct jinja_rt *rt, struct jv *out, const struct jinja_node *n)
{
    struct jv test;
    ISO_TRY(iso_jinja_eval(rt, &test, n->b));
    if (iso_jv_truth(&test)) return iso_jinja_eval(rt, out, n->a);
    if (n->c != NULL) return iso_jinja_eval(rt, out, n->c);
    *out = jv_undef_hint(
        "the inline if-expression evaluated to false and no else section was defined.");
    return ISO_OK;
}

static enum iso_err eval_logic(struct jinja_rt *rt, struct jv *out, const struct jinja_node *n)
{
    ISO_TRY(iso_jinja_eval(rt, out, n->a));
    if (iso_jv_truth(out) == (n->kind == JN_OR)) return ISO_OK;
    return iso_jinja_eval(rt, out, n->b);
}

/* Nodes with the operands a and b, both always evaluated. */
static enum iso_err eval_operands(struct jinja_rt *rt, struct jv *out, const struct jinja_node *n)
{
    struct jv a, b;
    ISO_TRY(iso_jinja_eval(rt, &a, n->a));
    if (n->b != NULL) ISO_TRY(iso_jinja_eval(rt, &b, n->b));
    rt->line = n->line;
    switch (n->kind) {
    case JN_GETATTR:
        return iso_jv_getattr(rt, out, &a, n->s, n->n);
    case JN_GETITEM:
        return iso_jv_getitem(rt, out, &a, &b);
    case JN_BINARY:
        return iso_jv_binary(rt, out, (char)n->op, &a, &b);
    case JN_NEG:
        return iso_jv_negate(rt, out, &a);
    case JN_NOT:
        *out = jv_bool(!iso_jv_truth(&a));
        return ISO_OK;
    default:
        break; /* JN_POS */
    }
    if (a.type == JV_UNDEF) return iso_jinja_fail_undef(rt, &a);
    if (!jv_is_number(&a))
        JINJA_FAIL(rt, "bad operand type for unary +: '%s'", iso_jv_type_name(&a));
    *out = a.type == JV_BOOL ? jv_int(a.u.b) : a;
    return ISO_OK;
}

static enum iso_err eval_inner(struct jinja_rt *rt, struct jv *out, const struct jinja_node *n)
{
    switch (n->kind) {
    case JN_TUPLE:
    case JN_LIST:
        return eval_items(rt, out, n);
    case JN_DICT:
        return eval_dict(rt, out, n);
    case JN_SLICE:
        return eval_slice(rt, out, n);
    case JN_CALL:
        return eval_call(rt, out, n);
    case JN_FILTER:
        return eval_filter(rt, out, n);
    case JN_TEST:
        return eval_test(rt, out, n);
    case JN_CONCAT:
        return eval_concat(rt, out, n);
    case JN_AND:
    case JN_OR:
        return eval_logic(rt, out, n);
    case JN_COMPARE:
        return eval_compare(rt, out, n);
    case JN_COND:
        return eval_cond(rt, out, n);
    default:
        return eval_operands(rt, out, n);
    }
}

enum iso_err iso_jinja_eval(struct jinja_rt *rt, struct jv *out, const struct jinja_node *n)
{
    ISO_TRY(iso_jinja_charge(rt, 1));
    rt->line = n->line;
    if (n->kind == JN_CONST) {
        *out = n->value;
        return ISO_OK;
    }
    if (n->kind == JN_NAME) return iso_jinja_lookup(rt, out, n->name);
    ISO_TRY(iso_jinja_deeper(rt));
    ISO_TRY(eval_inner(rt, out, n));
    rt->depth--;
    return ISO_OK;
}
