/* SPDX-License-Identifier: MIT
 * jinja_parse.c - parses template statements and refuses what is outside the subset. */
#include "tokenizer/jinja.h"

#include <stdio.h>

enum iso_err
iso_jinja_node(struct jinja_parser *p, struct jinja_node **out, enum jinja_kind kind, int line)
{
    void *n = NULL;
    ISO_TRY(iso_jinja_alloc(&n, &p->t->arena, 1, sizeof(struct jinja_node)));
    *out = n;
    (*out)->kind = (uint8_t)kind;
    (*out)->line = line;
    (*out)->height = 1;
    return ISO_OK;
}

enum iso_err iso_jinja_name(struct jinja_parser *p, uint32_t *out, const char *s, size_t n)
{
    struct iso_template *t = p->t;
    for (uint32_t i = 0; i < t->n_names; i++) {
        if (t->names[i].n == n && memcmp(t->names[i].s, s, n) == 0) {
            *out = i;
            return ISO_OK;
        }
    }
    if (t->n_names == JINJA_MAX_NAMES) {
        ISO_FAIL(ISO_E_LIMIT, "line %d: more than %d variables", p->tok->line, JINJA_MAX_NAMES);
    }
    if (t->n_names == p->cap_names) {
        const size_t cap = p->cap_names ? 2 * p->cap_names : 32;
        void *names = NULL;
        ISO_TRY(iso_jinja_alloc(&names, &t->arena, cap, sizeof(*t->names)));
        if (t->n_names) memcpy(names, t->names, t->n_names * sizeof(*t->names));
        t->names = names;
        p->cap_names = cap;
    }
    *out = (uint32_t)t->n_names;
    t->names[t->n_names++] = (struct jinja_name){.s = s, .n = n};
    return ISO_OK;
}

enum iso_err iso_jinja_push(struct jinja_parser *p, struct jinja_node *n, struct jinja_node *child)
{
    if ((n->n_list & (n->n_list - 1)) == 0) { /* full at each power of two */
        void *list = NULL;
        ISO_TRY(iso_jinja_alloc(&list, &p->t->arena, n->n_list ? 2 * n->n_list : 1,
                                sizeof(struct jinja_node *)));
        if (n->n_list) memcpy(list, n->list, n->n_list * sizeof(struct jinja_node *));
        n->list = list;
    }
    n->list[n->n_list++] = child;
    return ISO_OK;
}

enum iso_err iso_jinja_seal(struct jinja_node *n)
{
    unsigned h = 0;
    const struct jinja_node *fixed[] = {n->a, n->b, n->c};
    for (int i = 0; i < 3; i++) {
        if (fixed[i] != NULL && fixed[i]->height > h) h = fixed[i]->height;
    }
    for (size_t i = 0; i < n->n_list; i++) {
        if (n->list[i] != NULL && n->list[i]->height > h) h = n->list[i]->height;
    }
    for (size_t i = 0; i < n->n_kw; i++) {
        if (n->kw[i].v->height > h) h = n->kw[i].v->height;
    }
    if (h >= JINJA_MAX_NODE_DEPTH) {
        ISO_FAIL(ISO_E_LIMIT, "line %d: expression of more than %d levels", n->line,
                 JINJA_MAX_NODE_DEPTH);
    }
    n->height = (uint16_t)(h + 1);
    return ISO_OK;
}

enum iso_err iso_jinja_check_args(const struct jinja_node *n)
{
    if (n->n_list + n->n_kw < JINJA_MAX_ARGS) return ISO_OK;
    ISO_FAIL(ISO_E_LIMIT, "line %d: more than %d arguments", n->line, JINJA_MAX_ARGS);
}

bool iso_jinja_at_name(const struct jinja_parser *p, const char *name)
{
    return p->tok->type == TK_NAME && p->tok->n == strlen(name) &&
           memcmp(p->tok->s, name, p->tok->n) == 0;
}

bool iso_jinja_skip_name(struct jinja_parser *p, const char *name)
{
    const bool is = iso_jinja_at_name(p, name);
    p->tok += is;
    return is;
}

bool iso_jinja_skip(struct jinja_parser *p, enum jinja_token_type type)
{
    const bool is = p->tok->type == type;
    p->tok += is;
    return is;
}

const char *iso_jinja_token_text(const struct jinja_token *t, char buf[48])
{
    if (t->type == TK_EOF) return "the end of the template";
    if (t->type == TK_DATA) return "text";
    (void)snprintf(buf, 48, "'%.*s'", (int)(t->n > 40 ? 40 : t->n), t->s);
    return buf;
}

enum iso_err iso_jinja_expect(struct jinja_parser *p, enum jinja_token_type type)
{
    static const char *const text[] = {
        [TK_BLOCK_END] = "'%}'", [TK_VAR_END] = "'}}'", [TK_NAME] = "a name", [TK_COMMA] = "','",
        [TK_COLON] = "':'",      [TK_RPAREN] = "')'",   [TK_LPAREN] = "'('",  [TK_RBRACKET] = "']'",
        [TK_ASSIGN] = "'='",     [TK_DOT] = "'.'",
    };
    if (!iso_jinja_skip(p, type)) {
        char buf[48];
        ISO_FAIL(ISO_E_FORMAT, "line %d: expected %s, got %s", p->tok->line, text[type],
                 iso_jinja_token_text(p->tok, buf));
    }
    return ISO_OK;
}

enum iso_err iso_jinja_enter(struct jinja_parser *p)
{
    if (++p->nesting > 2 * JINJA_MAX_NESTING) {
        ISO_FAIL(ISO_E_LIMIT, "line %d: nested deeper than %d", p->tok->line,
                 2 * JINJA_MAX_NESTING);
    }
    return ISO_OK;
}

static enum iso_err
parse_body(struct jinja_parser *p, struct jinja_node **out, const char *const *ends);

/* The name of a variable that is assigned to. */
static enum iso_err store_name(struct jinja_parser *p, uint32_t *out)
{
    const struct jinja_token *t = p->tok;
    ISO_TRY(iso_jinja_expect(p, TK_NAME));
    ISO_TRY(iso_jinja_name(p, out, t->s, t->n));
    p->t->names[*out].assigned = true;
    return ISO_OK;
}

static enum iso_err
parse_target(struct jinja_parser *p, struct jinja_node **out, const char *stop, bool namespaces);

static enum iso_err
parse_target_item(struct jinja_parser *p, struct jinja_node **out, bool namespaces)
{
    if (iso_jinja_skip(p, TK_LPAREN)) {
        ISO_TRY(iso_jinja_enter(p));
        ISO_TRY(parse_target(p, out, NULL, false));
        p->nesting--;
        return iso_jinja_expect(p, TK_RPAREN);
    }
    static const char *const reserved[] = {"true",  "false", "none", "True",
                                           "False", "None",  "loop"};
    for (size_t i = 0; i < sizeof(reserved) / sizeof(reserved[0]); i++) {
        if (iso_jinja_at_name(p, reserved[i])) {
            ISO_FAIL(ISO_E_FORMAT, "line %d: can't assign to '%s'", p->tok->line, reserved[i]);
        }
    }
    const bool ns = namespaces && p->tok->type == TK_NAME && p->tok[1].type == TK_DOT;
    ISO_TRY(iso_jinja_node(p, out, ns ? JN_NSREF : JN_NAME, p->tok->line));
    struct jinja_node *n = *out;
    if (!ns) return store_name(p, &n->name);
    ISO_TRY(iso_jinja_name(p, &n->name, p->tok->s, p->tok->n));
    p->tok += 2;
    n->s = p->tok->s;
    n->n = p->tok->n;
    return iso_jinja_expect(p, TK_NAME);
}

static enum iso_err
parse_target(struct jinja_parser *p, struct jinja_node **out, const char *stop, bool namespaces)
{
    struct jinja_node *tuple = NULL;
    ISO_TRY(iso_jinja_node(p, &tuple, JN_TUPLE, p->tok->line));
    bool is_tuple = false;
    for (;;) {
        const uint8_t type = p->tok->type;
        if (is_tuple && (type == TK_BLOCK_END || type == TK_RPAREN || type == TK_ASSIGN ||
                         (stop != NULL && iso_jinja_at_name(p, stop)))) {
            break;
        }
        struct jinja_node *item = NULL;
        ISO_TRY(parse_target_item(p, &item, namespaces));
        ISO_TRY(iso_jinja_push(p, tuple, item));
        if (!iso_jinja_skip(p, TK_COMMA)) break;
        is_tuple = true;
    }
    *out = is_tuple ? tuple : tuple->list[0];
    return iso_jinja_seal(tuple);
}

/* After the tag's expression: "%}", body up to one of ends, whose name is left current. */
static enum iso_err
parse_block(struct jinja_parser *p, struct jinja_node **out, const char *const *ends)
{
    (void)iso_jinja_skip(p, TK_COLON);
    ISO_TRY(iso_jinja_expect(p, TK_BLOCK_END));
    ISO_TRY(iso_jinja_enter(p));
    ISO_TRY(parse_body(p, out, ends));
    p->nesting--;
    return ISO_OK;
}

/* The same for one end tag, which is skipped. */
static enum iso_err parse_block_to(struct jinja_parser *p, struct jinja_node **out, const char *end)
{
    const char *const ends[] = {end, NULL};
    ISO_TRY(parse_block(p, out, ends));
    p->tok++;
    return ISO_OK;
}

static enum iso_err parse_set(struct jinja_parser *p, struct jinja_node *n)
{
    ISO_TRY(parse_target(p, &n->a, NULL, true));
    if (iso_jinja_skip(p, TK_ASSIGN)) {
        n->kind = JN_SET;
        return iso_jinja_parse_tuple(p, &n->b, true, false, NULL);
    }
    n->kind = JN_SETBLOCK;
    ISO_TRY(iso_jinja_parse_filters(p, &n->b, NULL, false));
    return parse_block_to(p, &n->c, "endset");
}

static enum iso_err parse_for(struct jinja_parser *p, struct jinja_node *n)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    n->kind = JN_FOR;
    ISO_TRY(iso_jinja_name(p, &n->name, "loop", 4));
    ISO_TRY(parse_target(p, &n->a, "in", false));
    if (!iso_jinja_skip_name(p, "in")) {
        char buf[48];
        ISO_FAIL(ISO_E_FORMAT, "line %d: expected 'in', got %s", p->tok->line,
                 iso_jinja_token_text(p->tok, buf));
    }
    ISO_TRY(iso_jinja_parse_tuple(p, &n->b, false, false, "recursive"));
    if (iso_jinja_skip_name(p, "if")) ISO_TRY(iso_jinja_parse_expr(p, &n->c));
    if (iso_jinja_at_name(p, "recursive")) {
        ISO_FAIL(ISO_E_UNSUPPORTED, "line %d: recursive for", n->line);
    }
    struct jinja_node *body = NULL, *other = NULL;
    p->loops++;
    ISO_TRY(parse_block(p, &body, ends));
    p->loops--;
    const bool has_else = iso_jinja_at_name(p, "else");
    p->tok++;
    if (has_else) ISO_TRY(parse_block_to(p, &other, "endfor"));
    ISO_TRY(iso_jinja_push(p, n, body));
    return iso_jinja_push(p, n, other);
}

static enum iso_err parse_if(struct jinja_parser *p, struct jinja_node *n)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    n->kind = JN_IF;
    for (;;) {
        struct jinja_node *test = NULL, *body = NULL;
        ISO_TRY(iso_jinja_parse_tuple(p, &test, false, false, NULL));
        ISO_TRY(parse_block(p, &body, ends));
        ISO_TRY(iso_jinja_push(p, n, test));
        ISO_TRY(iso_jinja_push(p, n, body));
        if (iso_jinja_skip_name(p, "elif")) continue;
        const bool has_else = iso_jinja_at_name(p, "else");
        p->tok++;
        return has_else ? parse_block_to(p, &n->a, "endif") : ISO_OK;
    }
}

static enum iso_err parse_with(struct jinja_parser *p, struct jinja_node *n)
{
    n->kind = JN_WITH;
    while (p->tok->type != TK_BLOCK_END) {
        if (n->n_list) ISO_TRY(iso_jinja_expect(p, TK_COMMA));
        struct jinja_node *target = NULL, *value = NULL;
        ISO_TRY(parse_target_item(p, &target, false));
        ISO_TRY(iso_jinja_expect(p, TK_ASSIGN));
        ISO_TRY(iso_jinja_parse_expr(p, &value));
        ISO_TRY(iso_jinja_push(p, n, target));
        ISO_TRY(iso_jinja_push(p, n, value));
    }
    return parse_block_to(p, &n->c, "endwith");
}

static enum iso_err parse_signature(struct jinja_parser *p, struct jinja_node *n)
{
    ISO_TRY(iso_jinja_expect(p, TK_LPAREN));
    size_t cap = 0;
    while (p->tok->type != TK_RPAREN) {
        if (n->n_list) ISO_TRY(iso_jinja_expect(p, TK_COMMA));
        ISO_TRY(iso_jinja_check_args(n));
        struct jinja_node *arg = NULL;
        ISO_TRY(iso_jinja_node(p, &arg, JN_NAME, p->tok->line));
        ISO_TRY(store_name(p, &arg->name));
        ISO_TRY(iso_jinja_push(p, n, arg));
        if (iso_jinja_skip(p, TK_ASSIGN)) {
            if (n->n_kw == cap) {
                void *kw = NULL;
                ISO_TRY(iso_jinja_alloc(&kw, &p->t->arena, cap + 8, sizeof(*n->kw)));
                if (cap) memcpy(kw, n->kw, cap * sizeof(*n->kw));
                n->kw = kw;
                cap += 8;
            }
            ISO_TRY(iso_jinja_parse_expr(p, &n->kw[n->n_kw].v));
            n->n_kw++;
        } else if (n->n_kw) {
            ISO_FAIL(ISO_E_FORMAT, "line %d: parameter without default after one with", arg->line);
        }
    }
    p->tok++;
    return ISO_OK;
}

/* How often the special names of macros were used so far. */
static void special_uses(const struct jinja_parser *p, uint32_t uses[3])
{
    for (int i = 0; i < 3; i++) uses[i] = p->t->names[p->t->special[i]].uses;
}

static enum iso_err parse_macro_body(struct jinja_parser *p, struct jinja_node *n, const char *end)
{
    uint32_t before[3], after[3];
    special_uses(p, before);
    const int loops = p->loops; /* a loop outside cannot be left from inside a macro */
    p->loops = 0;
    ISO_TRY(parse_block_to(p, &n->c, end));
    p->loops = loops;
    special_uses(p, after);
    for (int i = 0; i < 3; i++) {
        if (after[i] > before[i]) n->flags |= (uint8_t)(1u << i);
    }
    return iso_jinja_seal(n);
}

static enum iso_err parse_macro(struct jinja_parser *p, struct jinja_node *n)
{
    n->kind = JN_MACRO;
    ISO_TRY(store_name(p, &n->name));
    ISO_TRY(parse_signature(p, n));
    return parse_macro_body(p, n, "endmacro");
}

static enum iso_err parse_callblock(struct jinja_parser *p, struct jinja_node *n)
{
    n->kind = JN_CALLBLOCK;
    ISO_TRY(iso_jinja_node(p, &n->b, JN_MACRO, n->line));
    ISO_TRY(iso_jinja_name(p, &n->b->name, "caller", 6));
    if (p->tok->type == TK_LPAREN) ISO_TRY(parse_signature(p, n->b));
    ISO_TRY(iso_jinja_parse_expr(p, &n->a));
    if (n->a->kind != JN_CALL) ISO_FAIL(ISO_E_FORMAT, "line %d: expected call", n->line);
    return parse_macro_body(p, n->b, "endcall");
}

/* transformers' marker of the assistant's text: its body is a block of its own, else nothing. */
static enum iso_err parse_generation(struct jinja_parser *p, struct jinja_node *n)
{
    n->kind = JN_WITH;
    const int loops = p->loops;
    p->loops = 0;
    ISO_TRY(parse_block_to(p, &n->c, "endgeneration"));
    p->loops = loops;
    return ISO_OK;
}

static enum iso_err parse_filterblock(struct jinja_parser *p, struct jinja_node *n)
{
    n->kind = JN_FILTERBLOCK;
    ISO_TRY(iso_jinja_parse_filters(p, &n->b, NULL, true));
    return parse_block_to(p, &n->c, "endfilter");
}

static enum iso_err parse_print(struct jinja_parser *p, struct jinja_node *n)
{
    n->kind = JN_BODY;
    while (p->tok->type != TK_BLOCK_END) {
        if (n->n_list) ISO_TRY(iso_jinja_expect(p, TK_COMMA));
        struct jinja_node *out = NULL;
        ISO_TRY(iso_jinja_node(p, &out, JN_OUTPUT, p->tok->line));
        ISO_TRY(iso_jinja_parse_expr(p, &out->a));
        ISO_TRY(iso_jinja_push(p, n, out));
    }
    return ISO_OK;
}

static enum iso_err parse_jump(struct jinja_parser *p, struct jinja_node *n)
{
    const char *word = p->tok[-1].s;
    n->kind = *word == 'b' ? JN_BREAK : JN_CONTINUE;
    if (p->loops == 0)
        ISO_FAIL(ISO_E_FORMAT, "line %d: '%.*s' outside a loop", n->line, (int)p->tok[-1].n, word);
    return ISO_OK;
}

static enum iso_err unknown_tag(const struct jinja_token *t, const char *const *ends)
{
    const bool middle = t->n == 4 && (memcmp(t->s, "else", 4) == 0 || memcmp(t->s, "elif", 4) == 0);
    if (middle || (t->n > 3 && memcmp(t->s, "end", 3) == 0)) {
        ISO_FAIL(ISO_E_FORMAT, "line %d: '%.*s' where %s%s is expected", t->line, (int)t->n, t->s,
                 ends ? "the end tag " : "no end tag", ends ? ends[0] : "");
    }
    ISO_FAIL(ISO_E_UNSUPPORTED, "line %d: tag '%.*s'", t->line, (int)t->n, t->s);
}

static enum iso_err
parse_statement(struct jinja_parser *p, struct jinja_node **out, const char *const *ends)
{
    static const struct {
        const char *tag;
        enum iso_err (*parse)(struct jinja_parser *p, struct jinja_node *n);
    } tags[] = {
        {"if", parse_if},          {"for", parse_for},
        {"set", parse_set},        {"macro", parse_macro},
        {"call", parse_callblock}, {"filter", parse_filterblock},
        {"with", parse_with},      {"generation", parse_generation},
        {"print", parse_print},    {"break", parse_jump},
        {"continue", parse_jump},
    };
    if (p->tok->type != TK_NAME) ISO_FAIL(ISO_E_FORMAT, "line %d: tag name expected", p->tok->line);
    ISO_TRY(iso_jinja_node(p, out, JN_BODY, p->tok->line));
    for (size_t i = 0; i < sizeof(tags) / sizeof(tags[0]); i++) {
        if (!iso_jinja_skip_name(p, tags[i].tag)) continue;
        ISO_TRY(tags[i].parse(p, *out));
        ISO_TRY(iso_jinja_seal(*out));
        return iso_jinja_expect(p, TK_BLOCK_END);
    }
    return unknown_tag(p->tok, ends);
}

static bool at_end(const struct jinja_parser *p, const char *const *ends)
{
    for (; ends != NULL && *ends != NULL; ends++) {
        if (iso_jinja_at_name(p, *ends)) return true;
    }
    return false;
}

/* Statements up to one of ends, or to the end of the template when ends is NULL. */
static enum iso_err
parse_body(struct jinja_parser *p, struct jinja_node **out, const char *const *ends)
{
    struct jinja_node *body = NULL;
    ISO_TRY(iso_jinja_node(p, &body, JN_BODY, p->tok->line));
    *out = body;
    for (;;) {
        const struct jinja_token *t = p->tok;
        struct jinja_node *n = NULL;
        if (t->type == TK_EOF) {
            if (ends != NULL) ISO_FAIL(ISO_E_FORMAT, "line %d: '%s' is missing", t->line, ends[0]);
            return iso_jinja_seal(body);
        }
        p->tok++;
        if (t->type == TK_DATA) {
            ISO_TRY(iso_jinja_node(p, &n, JN_DATA, t->line));
            n->s = t->s;
            n->n = t->n;
        } else if (t->type == TK_VAR_BEGIN) {
            ISO_TRY(iso_jinja_node(p, &n, JN_OUTPUT, t->line));
            ISO_TRY(iso_jinja_parse_tuple(p, &n->a, true, false, NULL));
            ISO_TRY(iso_jinja_expect(p, TK_VAR_END));
            ISO_TRY(iso_jinja_seal(n));
        } else {
            if (at_end(p, ends)) return iso_jinja_seal(body);
            ISO_TRY(parse_statement(p, &n, ends));
        }
        ISO_TRY(iso_jinja_push(p, body, n));
    }
}

/* A called name is a function of the subset or something that the template defines. */
static enum iso_err check_calls(const struct jinja_parser *p)
{
    for (const struct jinja_pending *c = p->pending; c != NULL; c = c->next) {
        const struct jinja_name *name = &p->t->names[c->call->a->name];
        const bool special = (name->n == 6 && memcmp(name->s, "caller", 6) == 0) ||
                             (name->n == 4 && memcmp(name->s, "loop", 4) == 0);
        if (name->assigned || special || iso_jinja_function_find(name->s, name->n)) continue;
        ISO_FAIL(ISO_E_UNSUPPORTED, "line %d: function '%.*s'", c->call->line, (int)name->n,
                 name->s);
    }
    return ISO_OK;
}

/* Globals that Jinja has and the subset does not. */
static enum iso_err check_names(const struct iso_template *t)
{
    static const char *const missing[] = {"lipsum", "cycler", "joiner"};
    for (size_t i = 0; i < t->n_names; i++) {
        for (size_t k = 0; k < sizeof(missing) / sizeof(missing[0]); k++) {
            const struct jinja_name *n = &t->names[i];
            if (n->assigned || n->n != strlen(missing[k]) || memcmp(n->s, missing[k], n->n) != 0) {
                continue;
            }
            ISO_FAIL(ISO_E_UNSUPPORTED, "function '%s'", missing[k]);
        }
    }
    return ISO_OK;
}

enum iso_err iso_jinja_parse(struct iso_template *t, const struct jinja_token *tok, size_t n)
{
    (void)n;
    struct jinja_parser p = {.t = t, .tok = tok};
    static const char *const special[] = {"caller", "kwargs", "varargs"};
    for (int i = 0; i < 3; i++) {
        ISO_TRY(iso_jinja_name(&p, &t->special[i], special[i], strlen(special[i])));
    }
    ISO_TRY(parse_body(&p, &t->root, NULL));
    ISO_TRY(check_calls(&p));
    return check_names(t);
}
