/* SPDX-License-Identifier: MIT
 * jinja_expr.c - parses template expressions, with Jinja's precedences.
 *
 * From loose to tight: if-else, or, and, not, comparison, + -, ~, * / // %, **, unary with
 * subscripts and calls, then filters and tests (jinja2/parser.py 3.1).
 */
#include "tokenizer/jinja.h"

typedef enum iso_err parse_fn(struct jinja_parser *p, struct jinja_node **out);

static parse_fn parse_cond, parse_or, parse_not, parse_compare, parse_math1, parse_unary_filtered;

static enum iso_err parse_unary(struct jinja_parser *p, struct jinja_node **out, bool filters);

/* Adds a node of the kind above *out. */
static enum iso_err
wrap(struct jinja_parser *p, struct jinja_node **out, enum jinja_kind kind, int line)
{
    struct jinja_node *n = NULL;
    ISO_TRY(iso_jinja_node(p, &n, kind, line));
    n->a = *out;
    *out = n;
    return ISO_OK;
}

/* left-associative: next (op next)*, where *out has its left side already when op matched. */
static enum iso_err binary(struct jinja_parser *p, struct jinja_node **out, char op, parse_fn *next)
{
    const int line = p->tok->line;
    p->tok++;
    ISO_TRY(wrap(p, out, JN_BINARY, line));
    struct jinja_node *n = *out;
    n->op = (uint8_t)op;
    ISO_TRY(next(p, &n->b));
    return iso_jinja_seal(n);
}

static enum iso_err parse_pow(struct jinja_parser *p, struct jinja_node **out)
{
    ISO_TRY(parse_unary_filtered(p, out));
    while (p->tok->type == TK_POW) ISO_TRY(binary(p, out, 'p', parse_unary_filtered));
    return ISO_OK;
}

static enum iso_err parse_math2(struct jinja_parser *p, struct jinja_node **out)
{
    ISO_TRY(parse_pow(p, out));
    for (;;) {
        char op = '\0';
        switch (p->tok->type) {
        case TK_MUL:
            op = '*';
            break;
        case TK_DIV:
            op = '/';
            break;
        case TK_FLOORDIV:
            op = 'f';
            break;
        case TK_MOD:
            op = '%';
            break;
        default:
            return ISO_OK;
        }
        ISO_TRY(binary(p, out, op, parse_pow));
    }
}

static enum iso_err parse_concat(struct jinja_parser *p, struct jinja_node **out)
{
    const int line = p->tok->line;
    ISO_TRY(parse_math2(p, out));
    if (p->tok->type != TK_TILDE) return ISO_OK;
    struct jinja_node *n = NULL;
    ISO_TRY(iso_jinja_node(p, &n, JN_CONCAT, line));
    ISO_TRY(iso_jinja_push(p, n, *out));
    while (iso_jinja_skip(p, TK_TILDE)) {
        struct jinja_node *item = NULL;
        ISO_TRY(parse_math2(p, &item));
        ISO_TRY(iso_jinja_push(p, n, item));
    }
    *out = n;
    return iso_jinja_seal(n);
}

static enum iso_err parse_math1(struct jinja_parser *p, struct jinja_node **out)
{
    ISO_TRY(parse_concat(p, out));
    while (p->tok->type == TK_ADD || p->tok->type == TK_SUB) {
        ISO_TRY(binary(p, out, p->tok->type == TK_ADD ? '+' : '-', parse_concat));
    }
    return ISO_OK;
}

/* 'i' in, 'n' not in, or the token of a comparison; 0 when there is none. Skips it. */
static uint8_t compare_op(struct jinja_parser *p)
{
    const uint8_t type = p->tok->type;
    if (type >= TK_EQ && type <= TK_LE) {
        p->tok++;
        return type;
    }
    if (iso_jinja_skip_name(p, "in")) return 'i';
    if (iso_jinja_at_name(p, "not") && p->tok[1].type == TK_NAME && p->tok[1].n == 2 &&
        memcmp(p->tok[1].s, "in", 2) == 0) {
        p->tok += 2;
        return 'n';
    }
    return 0;
}

static enum iso_err parse_compare(struct jinja_parser *p, struct jinja_node **out)
{
    const int line = p->tok->line;
    ISO_TRY(parse_math1(p, out));
    uint8_t op = compare_op(p);
    if (op == 0) return ISO_OK;
    ISO_TRY(wrap(p, out, JN_COMPARE, line));
    struct jinja_node *n = *out;
    for (; op != 0; op = compare_op(p)) {
        struct jinja_node *operand = NULL;
        ISO_TRY(iso_jinja_node(p, &operand, JN_OPERAND, p->tok->line));
        operand->op = op;
        ISO_TRY(parse_math1(p, &operand->a));
        ISO_TRY(iso_jinja_seal(operand));
        ISO_TRY(iso_jinja_push(p, n, operand));
    }
    return iso_jinja_seal(n);
}

static enum iso_err parse_not(struct jinja_parser *p, struct jinja_node **out)
{
    const int line = p->tok->line;
    if (!iso_jinja_skip_name(p, "not")) return parse_compare(p, out);
    ISO_TRY(iso_jinja_enter(p));
    ISO_TRY(parse_not(p, out));
    p->nesting--;
    ISO_TRY(wrap(p, out, JN_NOT, line));
    return iso_jinja_seal(*out);
}

static enum iso_err logic(struct jinja_parser *p,
                          struct jinja_node **out,
                          const char *word,
                          enum jinja_kind kind,
                          parse_fn *next)
{
    ISO_TRY(next(p, out));
    while (iso_jinja_skip_name(p, word)) {
        ISO_TRY(wrap(p, out, kind, p->tok->line));
        ISO_TRY(next(p, &(*out)->b));
        ISO_TRY(iso_jinja_seal(*out));
    }
    return ISO_OK;
}

static enum iso_err parse_and(struct jinja_parser *p, struct jinja_node **out)
{
    return logic(p, out, "and", JN_AND, parse_not);
}

static enum iso_err parse_or(struct jinja_parser *p, struct jinja_node **out)
{
    return logic(p, out, "or", JN_OR, parse_and);
}

static enum iso_err parse_cond(struct jinja_parser *p, struct jinja_node **out)
{
    ISO_TRY(iso_jinja_enter(p));
    ISO_TRY(parse_or(p, out));
    while (iso_jinja_skip_name(p, "if")) {
        ISO_TRY(wrap(p, out, JN_COND, p->tok->line));
        struct jinja_node *n = *out;
        ISO_TRY(parse_or(p, &n->b));
        if (iso_jinja_skip_name(p, "else")) ISO_TRY(parse_cond(p, &n->c));
        ISO_TRY(iso_jinja_seal(n));
    }
    p->nesting--;
    return ISO_OK;
}

enum iso_err iso_jinja_parse_expr(struct jinja_parser *p, struct jinja_node **out)
{
    return parse_cond(p, out);
}

enum iso_err iso_jinja_parse_tuple(
    struct jinja_parser *p, struct jinja_node **out, bool cond, bool parens, const char *stop)
{
    struct jinja_node *n = NULL;
    ISO_TRY(iso_jinja_node(p, &n, JN_TUPLE, p->tok->line));
    bool is_tuple = false;
    for (;;) {
        const uint8_t type = p->tok->type;
        const bool ends = type == TK_VAR_END || type == TK_BLOCK_END || type == TK_RPAREN;
        if (ends || (stop != NULL && iso_jinja_at_name(p, stop))) break;
        struct jinja_node *item = NULL;
        ISO_TRY(cond ? parse_cond(p, &item) : parse_or(p, &item));
        ISO_TRY(iso_jinja_push(p, n, item));
        if (!iso_jinja_skip(p, TK_COMMA)) break;
        is_tuple = true;
    }
    if (!is_tuple && n->n_list == 1) {
        *out = n->list[0];
        return ISO_OK;
    }
    if (!is_tuple && !parens) {
        char buf[48];
        ISO_FAIL(ISO_E_FORMAT, "line %d: expected an expression, got %s", p->tok->line,
                 iso_jinja_token_text(p->tok, buf));
    }
    *out = n;
    return iso_jinja_seal(n);
}

/* Expressions up to close; pairs of them when dict. The opening bracket is current. */
static enum iso_err parse_display(struct jinja_parser *p, struct jinja_node **out, bool dict)
{
    const enum jinja_token_type close = dict ? TK_RBRACE : TK_RBRACKET;
    struct jinja_node *n = NULL;
    ISO_TRY(iso_jinja_node(p, &n, dict ? JN_DICT : JN_LIST, p->tok->line));
    p->tok++;
    while (p->tok->type != close) {
        if (n->n_list) ISO_TRY(iso_jinja_expect(p, TK_COMMA));
        if (p->tok->type == close) break;
        for (int part = 0; part < 1 + dict; part++) {
            if (part) ISO_TRY(iso_jinja_expect(p, TK_COLON));
            struct jinja_node *item = NULL;
            ISO_TRY(parse_cond(p, &item));
            ISO_TRY(iso_jinja_push(p, n, item));
        }
    }
    p->tok++;
    *out = n;
    return iso_jinja_seal(n);
}

/* true, false, none in both spellings. */
static bool constant(struct jv *out, const struct jinja_token *t)
{
    static const struct {
        const char *word;
        int value; /* -1 none */
    } words[] = {{"true", 1}, {"True", 1}, {"false", 0}, {"False", 0}, {"none", -1}, {"None", -1}};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (t->n != strlen(words[i].word) || memcmp(t->s, words[i].word, t->n) != 0) continue;
        *out = words[i].value < 0 ? jv_none() : jv_bool(words[i].value == 1);
        return true;
    }
    return false;
}

/* Adjacent strings are one. */
static enum iso_err parse_strings(struct jinja_parser *p, struct jinja_node *n)
{
    size_t len = 0, count = 0;
    while (p->tok[count].type == TK_STRING) len += p->tok[count++].n;
    n->value = jv_str(p->tok->s, len);
    if (count > 1) {
        void *text = NULL;
        ISO_TRY(iso_jinja_alloc(&text, &p->t->arena, len + 1, 1));
        size_t at = 0;
        for (size_t i = 0; i < count; i++) {
            memcpy((char *)text + at, p->tok[i].s, p->tok[i].n);
            at += p->tok[i].n;
        }
        n->value.u.s = text;
    }
    p->tok += count;
    return ISO_OK;
}

static enum iso_err parse_primary(struct jinja_parser *p, struct jinja_node **out)
{
    const struct jinja_token *t = p->tok;
    if (t->type == TK_LBRACKET || t->type == TK_LBRACE) {
        return parse_display(p, out, t->type == TK_LBRACE);
    }
    if (t->type == TK_LPAREN) {
        p->tok++;
        ISO_TRY(iso_jinja_parse_tuple(p, out, true, true, NULL));
        return iso_jinja_expect(p, TK_RPAREN);
    }
    struct jinja_node *n = NULL;
    ISO_TRY(iso_jinja_node(p, &n, JN_CONST, t->line));
    *out = n;
    switch (t->type) {
    case TK_STRING:
        return parse_strings(p, n);
    case TK_INT:
        n->value = jv_int(t->i);
        break;
    case TK_FLOAT:
        n->value = jv_float(t->f);
        break;
    case TK_NAME:
        if (constant(&n->value, t)) break;
        n->kind = JN_NAME;
        ISO_TRY(iso_jinja_name(p, &n->name, t->s, t->n));
        p->t->names[n->name].uses++;
        break;
    default: {
        char buf[48];
        ISO_FAIL(ISO_E_FORMAT, "line %d: unexpected %s", t->line, iso_jinja_token_text(t, buf));
    }
    }
    p->tok++;
    return ISO_OK;
}

/* One part of a slice, or nothing. */
static enum iso_err slice_part(struct jinja_parser *p, struct jinja_node **out)
{
    *out = NULL;
    if (p->tok->type == TK_COLON || p->tok->type == TK_RBRACKET) return ISO_OK;
    return parse_cond(p, out);
}

/* [ ... ] after *out. */
static enum iso_err parse_subscript(struct jinja_parser *p, struct jinja_node **out)
{
    const int line = p->tok->line;
    p->tok++;
    struct jinja_node *part[3] = {NULL, NULL, NULL};
    ISO_TRY(slice_part(p, &part[0]));
    ISO_TRY(wrap(p, out, JN_GETITEM, line));
    struct jinja_node *n = *out;
    n->b = part[0];
    if (p->tok->type == TK_COLON) {
        n->kind = JN_SLICE;
        n->b = NULL;
        p->tok++;
        ISO_TRY(slice_part(p, &part[1]));
        if (iso_jinja_skip(p, TK_COLON)) ISO_TRY(slice_part(p, &part[2]));
        for (int i = 0; i < 3; i++) ISO_TRY(iso_jinja_push(p, n, part[i]));
    }
    if (p->tok->type == TK_COMMA) {
        ISO_FAIL(ISO_E_UNSUPPORTED, "line %d: subscript with a comma", p->tok->line);
    }
    if (n->kind == JN_GETITEM && n->b == NULL) {
        ISO_FAIL(ISO_E_FORMAT, "line %d: empty subscript", p->tok->line);
    }
    ISO_TRY(iso_jinja_expect(p, TK_RBRACKET));
    return iso_jinja_seal(n);
}

static enum iso_err parse_attribute(struct jinja_parser *p, struct jinja_node **out)
{
    p->tok++;
    const struct jinja_token *t = p->tok;
    ISO_TRY(wrap(p, out, t->type == TK_INT ? JN_GETITEM : JN_GETATTR, t->line));
    struct jinja_node *n = *out;
    if (t->type == TK_INT) {
        ISO_TRY(iso_jinja_node(p, &n->b, JN_CONST, t->line));
        n->b->value = jv_int(t->i);
    } else if (t->type == TK_NAME) {
        if (t->n >= 2 && t->s[0] == '_' && t->s[1] == '_') {
            ISO_FAIL(ISO_E_UNSUPPORTED, "line %d: attribute '%.*s'", t->line, (int)t->n, t->s);
        }
        n->s = t->s;
        n->n = t->n;
    } else {
        ISO_FAIL(ISO_E_FORMAT, "line %d: expected name or number after '.'", t->line);
    }
    p->tok++;
    return iso_jinja_seal(n);
}

static enum iso_err push_kw(struct jinja_parser *p,
                            struct jinja_node *n,
                            const struct jinja_token *t,
                            struct jinja_node *v)
{
    if ((n->n_kw & (n->n_kw - 1)) == 0) { /* full at each power of two */
        void *kw = NULL;
        ISO_TRY(iso_jinja_alloc(&kw, &p->t->arena, n->n_kw ? 2 * n->n_kw : 1, sizeof(*n->kw)));
        if (n->n_kw) memcpy(kw, n->kw, n->n_kw * sizeof(*n->kw));
        n->kw = kw;
    }
    n->kw[n->n_kw++] = (struct jinja_kw_node){.s = t->s, .n = t->n, .v = v};
    return ISO_OK;
}

/* ( ... ) into n; the bracket is current. */
static enum iso_err parse_args(struct jinja_parser *p, struct jinja_node *n)
{
    const int line = p->tok->line;
    p->tok++;
    bool first = true;
    while (p->tok->type != TK_RPAREN) {
        if (!first) ISO_TRY(iso_jinja_expect(p, TK_COMMA));
        if (p->tok->type == TK_RPAREN) break;
        first = false;
        ISO_TRY(iso_jinja_check_args(n));
        const struct jinja_token *t = p->tok;
        struct jinja_node *v = NULL;
        if (t->type == TK_MUL || t->type == TK_POW) {
            ISO_FAIL(ISO_E_UNSUPPORTED, "line %d: * or ** in the arguments of a call", line);
        }
        if (t->type == TK_NAME && t[1].type == TK_ASSIGN) {
            p->tok += 2;
            ISO_TRY(parse_cond(p, &v));
            ISO_TRY(push_kw(p, n, t, v));
        } else if (n->n_kw) {
            ISO_FAIL(ISO_E_FORMAT, "line %d: positional argument after a named one", line);
        } else {
            ISO_TRY(parse_cond(p, &v));
            ISO_TRY(iso_jinja_push(p, n, v));
        }
    }
    p->tok++;
    return ISO_OK;
}

static enum iso_err parse_call(struct jinja_parser *p, struct jinja_node **out)
{
    ISO_TRY(wrap(p, out, JN_CALL, p->tok->line));
    struct jinja_node *n = *out;
    ISO_TRY(parse_args(p, n));
    const struct jinja_node *fn = n->a;
    if (fn->kind == JN_GETATTR && !iso_jinja_method_known(fn->s, fn->n)) {
        ISO_FAIL(ISO_E_UNSUPPORTED, "line %d: method '%.*s'", fn->line, (int)fn->n, fn->s);
    }
    if (fn->kind == JN_NAME) {
        void *pending = NULL;
        ISO_TRY(iso_jinja_alloc(&pending, &p->t->arena, 1, sizeof(*p->pending)));
        *(struct jinja_pending *)pending = (struct jinja_pending){n, p->pending};
        p->pending = pending;
    }
    return iso_jinja_seal(n);
}

/* "name" or "a.b" of a filter or test; refuses what the table lacks. */
static enum iso_err parse_callee(struct jinja_parser *p, struct jinja_node *n)
{
    const struct jinja_token *t = p->tok;
    ISO_TRY(iso_jinja_expect(p, TK_NAME));
    const bool filter = n->kind == JN_FILTER;
    if (filter)
        n->entry = iso_jinja_filter_find(t->s, t->n);
    else
        n->entry = iso_jinja_test_find(t->s, t->n);
    if (n->entry == NULL || p->tok->type == TK_DOT) {
        ISO_FAIL(ISO_E_UNSUPPORTED, "line %d: %s '%.*s'", t->line, filter ? "filter" : "test",
                 (int)t->n, t->s);
    }
    return ISO_OK;
}

/* map('name'), select('name'), selectattr('a', 'name'): the name must be in a table too. */
static enum iso_err check_inner(const struct jinja_node *n)
{
    const char *name = ((const struct jinja_filter *)n->entry)->name;
    const bool attr = strcmp(name, "selectattr") == 0 || strcmp(name, "rejectattr") == 0;
    const bool map = strcmp(name, "map") == 0;
    if (!attr && !map && strcmp(name, "select") != 0 && strcmp(name, "reject") != 0) return ISO_OK;
    if (n->n_list <= attr || n->list[attr]->kind != JN_CONST) return ISO_OK;
    const struct jv *v = &n->list[attr]->value;
    if (v->type != JV_STR) return ISO_OK;
    const void *entry = map ? (const void *)iso_jinja_filter_find(v->u.s, v->n)
                            : (const void *)iso_jinja_test_find(v->u.s, v->n);
    if (entry == NULL) {
        ISO_FAIL(ISO_E_UNSUPPORTED, "line %d: %s '%.*s' inside %s", n->line,
                 map ? "filter" : "test", (int)v->n, v->u.s, name);
    }
    return ISO_OK;
}

enum iso_err iso_jinja_parse_filters(struct jinja_parser *p,
                                     struct jinja_node **out,
                                     struct jinja_node *node,
                                     bool inline_first)
{
    *out = node;
    while (inline_first || p->tok->type == TK_PIPE) {
        if (!inline_first) p->tok++;
        inline_first = false;
        ISO_TRY(wrap(p, out, JN_FILTER, p->tok->line));
        ISO_TRY(parse_callee(p, *out));
        if (p->tok->type == TK_LPAREN) ISO_TRY(parse_args(p, *out));
        ISO_TRY(check_inner(*out));
        ISO_TRY(iso_jinja_seal(*out));
    }
    return ISO_OK;
}

static enum iso_err parse_postfix(struct jinja_parser *p, struct jinja_node **out)
{
    for (;;) {
        if (p->tok->type == TK_DOT)
            ISO_TRY(parse_attribute(p, out));
        else if (p->tok->type == TK_LBRACKET)
            ISO_TRY(parse_subscript(p, out));
        else if (p->tok->type == TK_LPAREN)
            ISO_TRY(parse_call(p, out));
        else
            return ISO_OK;
    }
}

/* A test may take its one argument without brackets. */
static bool starts_argument(const struct jinja_parser *p)
{
    switch (p->tok->type) {
    case TK_NAME:
        return !iso_jinja_at_name(p, "else") && !iso_jinja_at_name(p, "or") &&
               !iso_jinja_at_name(p, "and");
    case TK_STRING:
    case TK_INT:
    case TK_FLOAT:
    case TK_LBRACKET:
    case TK_LBRACE:
        return true;
    default:
        return false;
    }
}

static enum iso_err parse_test(struct jinja_parser *p, struct jinja_node **out)
{
    const int line = p->tok->line;
    p->tok++;
    const bool negated = iso_jinja_skip_name(p, "not");
    ISO_TRY(wrap(p, out, JN_TEST, line));
    struct jinja_node *n = *out;
    ISO_TRY(parse_callee(p, n));
    if (p->tok->type == TK_LPAREN) {
        ISO_TRY(parse_args(p, n));
    } else if (starts_argument(p)) {
        if (iso_jinja_at_name(p, "is")) {
            ISO_FAIL(ISO_E_FORMAT, "line %d: tests cannot be chained with is", line);
        }
        struct jinja_node *arg = NULL;
        ISO_TRY(parse_primary(p, &arg));
        ISO_TRY(parse_postfix(p, &arg));
        ISO_TRY(iso_jinja_push(p, n, arg));
    }
    const struct jinja_test *test = n->entry;
    if (n->n_list != test->n_args || n->n_kw) {
        ISO_FAIL(ISO_E_FORMAT, "line %d: test '%s' takes %d argument(s), got %zu", line, test->name,
                 test->n_args, n->n_list + n->n_kw);
    }
    ISO_TRY(iso_jinja_seal(n));
    if (negated) {
        ISO_TRY(wrap(p, out, JN_NOT, line));
        return iso_jinja_seal(*out);
    }
    return ISO_OK;
}

static enum iso_err parse_unary(struct jinja_parser *p, struct jinja_node **out, bool filters)
{
    const int line = p->tok->line;
    const bool minus = p->tok->type == TK_SUB;
    if (minus || p->tok->type == TK_ADD) {
        p->tok++;
        ISO_TRY(iso_jinja_enter(p));
        ISO_TRY(parse_unary(p, out, false));
        p->nesting--;
        ISO_TRY(wrap(p, out, minus ? JN_NEG : JN_POS, line));
        ISO_TRY(iso_jinja_seal(*out));
    } else {
        ISO_TRY(parse_primary(p, out));
    }
    ISO_TRY(parse_postfix(p, out));
    while (filters) {
        if (p->tok->type == TK_PIPE)
            ISO_TRY(iso_jinja_parse_filters(p, out, *out, false));
        else if (iso_jinja_at_name(p, "is"))
            ISO_TRY(parse_test(p, out));
        else if (p->tok->type == TK_LPAREN)
            ISO_TRY(parse_call(p, out));
        else
            break;
    }
    return ISO_OK;
}

static enum iso_err parse_unary_filtered(struct jinja_parser *p, struct jinja_node **out)
{
    return parse_unary(p, out, true);
}
