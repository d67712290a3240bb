/* SPDX-License-Identifier: MIT
 * jinja.h - syntax tree, names and callables of the template interpreter (private).
 *
 * Stages: jinja_lex.c makes tokens, jinja_parse.c and jinja_expr.c make the tree and refuse what is
 * outside the subset, jinja_exec.c and jinja_eval.c walk it.
 *
 * Thread: a tree is immutable once iso_template_new() has returned.
 */
#ifndef ISO_TOKENIZER_JINJA_H
#define ISO_TOKENIZER_JINJA_H

#include "tokenizer/jinja_value.h"

#define JINJA_MAX_TREE (64u << 20) /* bytes of tokens and tree; about 100 times a template */
#define JINJA_MAX_NESTING 100      /* blocks and brackets inside each other, seen: 12 */
#define JINJA_MAX_NODE_DEPTH 250   /* height of an expression, seen: 25 (chains of +) */
#define JINJA_MAX_NAMES 2048       /* different variables of a template, seen: 110 */
#define JINJA_MAX_ARGS 255         /* of one call or macro, seen: 6 */
#define JINJA_MAX_PARAMS 6         /* of a filter, test or method */

enum jinja_token_type {
    TK_EOF,
    TK_DATA,
    TK_BLOCK_BEGIN,
    TK_BLOCK_END,
    TK_VAR_BEGIN,
    TK_VAR_END,
    TK_NAME,
    TK_STRING,
    TK_INT,
    TK_FLOAT,
    TK_ADD,
    TK_SUB,
    TK_MUL,
    TK_DIV,
    TK_FLOORDIV,
    TK_MOD,
    TK_POW,
    TK_TILDE,
    TK_LBRACKET,
    TK_RBRACKET,
    TK_LPAREN,
    TK_RPAREN,
    TK_LBRACE,
    TK_RBRACE,
    TK_EQ,
    TK_NE,
    TK_GT,
    TK_GE,
    TK_LT,
    TK_LE,
    TK_ASSIGN,
    TK_DOT,
    TK_COLON,
    TK_PIPE,
    TK_COMMA,
    TK_SEMICOLON,
};

struct jinja_token {
    uint8_t type;
    int line;
    const char *s; /* [n] data, name, or the string with its escapes resolved */
    size_t n;
    int64_t i;
    double f;
};

/* Splits text into *out [*n], the last of which is TK_EOF. Errors: as iso_template_new(). */
enum iso_err iso_jinja_lex(struct jinja_arena *a,
                           struct jinja_token **out,
                           size_t *n,
                           const char *text,
                           size_t len) ISO_NODISCARD;

enum jinja_kind {
    /* expressions */
    JN_CONST,   /* value */
    JN_NAME,    /* name */
    JN_TUPLE,   /* list */
    JN_LIST,    /* list */
    JN_DICT,    /* list: key, value, key, value */
    JN_GETATTR, /* a . s[n] */
    JN_GETITEM, /* a [ b ] */
    JN_SLICE,   /* a [ list[0] : list[1] : list[2] ], each may be NULL */
    JN_CALL,    /* a ( list, kw ) */
    JN_FILTER,  /* a | entry ( list, kw ); a NULL in a filter block: the captured text */
    JN_TEST,    /* a is entry ( list, kw ) */
    JN_NOT,
    JN_NEG,
    JN_POS,
    JN_BINARY, /* a op b */
    JN_CONCAT, /* list joined by ~ */
    JN_AND,
    JN_OR,
    JN_COMPARE, /* a, then list of JN_OPERAND */
    JN_OPERAND, /* op a */
    JN_COND,    /* a if b else c; c may be NULL */
    /* assignment targets besides JN_NAME and JN_TUPLE */
    JN_NSREF, /* name . s[n] */
    /* statements */
    JN_BODY,        /* list */
    JN_DATA,        /* s[n] */
    JN_OUTPUT,      /* a */
    JN_IF,          /* list: condition, body, condition, body, ...; a: else body or NULL */
    JN_FOR,         /* a target, b iterable, c filter or NULL, list[0] body, list[1] else or NULL;
                       name is "loop" */
    JN_SET,         /* a target, b value */
    JN_SETBLOCK,    /* a target, b filter chain or NULL, c body */
    JN_MACRO,       /* name, list parameters, kw defaults (last ones), c body; JN_F_ flags */
    JN_CALLBLOCK,   /* a call, b macro */
    JN_FILTERBLOCK, /* b filter chain, c body */
    JN_WITH,        /* list: target, value, ...; c body */
    JN_BREAK,
    JN_CONTINUE,
};

/* JN_MACRO: the body mentions these special names. */
#define JN_F_CALLER 1u
#define JN_F_KWARGS 2u
#define JN_F_VARARGS 4u

struct jinja_kw_node {
    const char *s; /* [n] */
    size_t n;
    struct jinja_node *v;
};

struct jinja_node {
    uint8_t kind, op, flags;
    uint16_t height;
    int line;
    uint32_t name; /* index into the template's names */
    const char *s;
    size_t n;
    struct jv value;
    struct jinja_node *a, *b, *c;
    struct jinja_node **list; /* [n_list] */
    size_t n_list;
    struct jinja_kw_node *kw; /* [n_kw] */
    size_t n_kw;
    const void *entry; /* const struct jinja_filter * or const struct jinja_test * */
};

struct jinja_name {
    const char *s; /* [n] */
    size_t n;
    bool assigned; /* by set, for, with, macro or a parameter, anywhere */
    uint32_t uses; /* as a value */
};

struct iso_template {
    struct jinja_arena arena;
    struct jinja_node *root;
    struct jinja_name *names; /* [n_names] */
    size_t n_names;
    uint32_t special[3];       /* names of caller, kwargs and varargs */
    bool joins_parts;          /* cannot read content arrays */
    bool wants_parts;          /* reads only content arrays */
    bool wants_arguments_text; /* reads tool-call arguments only as text */
};

/* Parses the tokens into t->root and t->names. */
enum iso_err
iso_jinja_parse(struct iso_template *t, const struct jinja_token *tok, size_t n) ISO_NODISCARD;

/* The parser's state, shared by jinja_parse.c and jinja_expr.c. */
struct jinja_parser {
    struct iso_template *t;
    const struct jinja_token *tok;
    size_t cap_names;
    int nesting;
    int loops;
    struct jinja_pending {
        const struct jinja_node *call;
        struct jinja_pending *next;
    } * pending; /* calls of plain names, checked when all assignments are known */
};

enum iso_err iso_jinja_node(struct jinja_parser *p,
                            struct jinja_node **out,
                            enum jinja_kind kind,
                            int line) ISO_NODISCARD;
enum iso_err
iso_jinja_name(struct jinja_parser *p, uint32_t *out, const char *s, size_t n) ISO_NODISCARD;
enum iso_err iso_jinja_push(struct jinja_parser *p,
                            struct jinja_node *n,
                            struct jinja_node *child) ISO_NODISCARD;
/* Sets n->height from its children. Errors: ISO_E_LIMIT. */
enum iso_err iso_jinja_seal(struct jinja_node *n) ISO_NODISCARD;
/* Errors: ISO_E_LIMIT when a call or macro n has no room for one more argument. */
enum iso_err iso_jinja_check_args(const struct jinja_node *n) ISO_NODISCARD;
bool iso_jinja_at_name(const struct jinja_parser *p, const char *name);
bool iso_jinja_skip_name(struct jinja_parser *p, const char *name);
bool iso_jinja_skip(struct jinja_parser *p, enum jinja_token_type type);
enum iso_err iso_jinja_expect(struct jinja_parser *p, enum jinja_token_type type) ISO_NODISCARD;
enum iso_err iso_jinja_enter(struct jinja_parser *p) ISO_NODISCARD;
/* Text of the current token for messages. */
const char *iso_jinja_token_text(const struct jinja_token *t, char buf[48]);

enum iso_err iso_jinja_parse_expr(struct jinja_parser *p, struct jinja_node **out) ISO_NODISCARD;
/* a, b, c; cond false: no inline if; stop: a name that ends the tuple, or NULL. */
enum iso_err iso_jinja_parse_tuple(struct jinja_parser *p,
                                   struct jinja_node **out,
                                   bool cond,
                                   bool parens,
                                   const char *stop) ISO_NODISCARD;
/* | filter | filter on node, which may be NULL; inline_first: the first comes without a pipe. */
enum iso_err iso_jinja_parse_filters(struct jinja_parser *p,
                                     struct jinja_node **out,
                                     struct jinja_node *node,
                                     bool inline_first) ISO_NODISCARD;

struct jinja_kw {
    const char *s; /* [n] */
    size_t n;
    struct jv v;
};

/* Arguments of one call; bound is filled from the callee's parameter list. */
struct jinja_args {
    struct jv *pos; /* [n_pos] */
    size_t n_pos;
    struct jinja_kw *kw; /* [n_kw] */
    size_t n_kw;
    struct jv bound[JINJA_MAX_PARAMS];
};

typedef enum iso_err
jinja_filter_fn(struct jinja_rt *rt, struct jv *out, const struct jv *v, struct jinja_args *a);
typedef enum iso_err
jinja_test_fn(struct jinja_rt *rt, bool *out, const struct jv *v, struct jinja_args *a);

struct jinja_filter {
    const char *name;
    jinja_filter_fn *fn;
    const char *params[JINJA_MAX_PARAMS]; /* "*" first: the function reads pos and kw itself */
    uint8_t n_required;
};

struct jinja_test {
    const char *name;
    jinja_test_fn *fn;
    uint8_t n_args;
};

/* fn NULL: Python has it, the subset does not. */
struct jinja_method {
    const char *name;
    jinja_filter_fn *fn;
    const char *params[JINJA_MAX_PARAMS];
    uint8_t n_required;
    bool unsafe; /* changes the object; the sandbox refuses it at run time */
};

struct jinja_function {
    const char *name;
    enum iso_err (*fn)(struct jinja_rt *rt, struct jv *out, struct jinja_args *a);
};

const struct jinja_filter *iso_jinja_filter_find(const char *s, size_t n);
const struct jinja_test *iso_jinja_test_find(const char *s, size_t n);
const struct jinja_function *iso_jinja_function_find(const char *s, size_t n);
/* Method of the type of v, or NULL. */
const struct jinja_method *iso_jinja_method_find(const struct jv *v, const char *s, size_t n);
/* Whether any type has a method of this name that can be called. */
bool iso_jinja_method_known(const char *s, size_t n);

/* Fills a->bound from positional and keyword arguments. Errors: ISO_E_TEMPLATE. */
enum iso_err iso_jinja_bind(struct jinja_rt *rt,
                            struct jinja_args *a,
                            const char *what,
                            const char *const *params,
                            size_t n_required) ISO_NODISCARD;
enum iso_err iso_jinja_apply_filter(struct jinja_rt *rt,
                                    struct jv *out,
                                    const struct jv *v,
                                    const struct jinja_filter *f,
                                    struct jinja_args *a) ISO_NODISCARD;
enum iso_err iso_jinja_apply_test(struct jinja_rt *rt,
                                  bool *out,
                                  const struct jv *v,
                                  const struct jinja_test *f,
                                  struct jinja_args *a) ISO_NODISCARD;

/* "a.b.0" applied to v by getitem, as the attribute= arguments of filters do. */
enum iso_err iso_jinja_get_path(struct jinja_rt *rt,
                                struct jv *out,
                                const struct jv *v,
                                const struct jv *path) ISO_NODISCARD;
/* Table of the sequence filters, ended by a NULL name; jinja_filters.c searches it too. */
extern const struct jinja_filter iso_jinja_seq_filters[];

enum jinja_flow { JF_NEXT, JF_BREAK, JF_CONTINUE };

struct jinja_var {
    uint32_t name;
    struct jv v;
};

struct jinja_scope {
    struct jinja_scope *parent;
    struct jinja_var *vars; /* [cap], n used */
    size_t n, cap;
    bool captured; /* a macro defined here may outlive it */
};

struct jinja_macro {
    const struct jinja_node *def;
    struct jinja_scope *closure;
};

/* A running for loop. */
struct jinja_loop {
    struct jv_cursor cursor;
    const struct jinja_node *node;
    const struct jinja_node *filter; /* of node, NULL once the items are filtered */
    struct jinja_scope *outer;       /* the filter is evaluated inside it */
    size_t index0;                   /* SIZE_MAX before the first item */
    size_t length;                   /* SIZE_MAX until asked for */
    bool peeked;                     /* after holds the next item, or JV_UNSET at the end */
    struct jv before, current, after;
    struct jv changed; /* arguments of the last loop.changed() */
};

enum iso_err iso_jinja_lookup(struct jinja_rt *rt, struct jv *out, uint32_t name) ISO_NODISCARD;
enum iso_err
iso_jinja_bind_name(struct jinja_rt *rt, uint32_t name, const struct jv *v) ISO_NODISCARD;
/* Makes a scope inside parent the current one. */
enum iso_err iso_jinja_scope_push(struct jinja_rt *rt, struct jinja_scope *parent) ISO_NODISCARD;
enum iso_err
iso_jinja_eval(struct jinja_rt *rt, struct jv *out, const struct jinja_node *n) ISO_NODISCARD;
/* Evaluates n->list and n->kw. */
enum iso_err iso_jinja_eval_args(struct jinja_rt *rt,
                                 struct jinja_args *a,
                                 const struct jinja_node *n) ISO_NODISCARD;
enum iso_err iso_jinja_call(struct jinja_rt *rt,
                            struct jv *out,
                            const struct jv *fn,
                            struct jinja_args *a) ISO_NODISCARD;
/* Applies the filters of n to v, the innermost first. */
enum iso_err iso_jinja_eval_filters(struct jinja_rt *rt,
                                    struct jv *out,
                                    const struct jinja_node *n,
                                    const struct jv *v) ISO_NODISCARD;
enum iso_err iso_jinja_exec(struct jinja_rt *rt, const struct jinja_node *n) ISO_NODISCARD;
enum iso_err iso_jinja_call_macro(struct jinja_rt *rt,
                                  struct jv *out,
                                  const struct jinja_macro *m,
                                  struct jinja_args *a) ISO_NODISCARD;
/* Assigns v to a name, a tuple of targets, or an attribute of a namespace. */
enum iso_err iso_jinja_assign(struct jinja_rt *rt,
                              const struct jinja_node *target,
                              const struct jv *v) ISO_NODISCARD;
/* loop.name; JV_UNSET when there is no such attribute. */
enum iso_err iso_jinja_loop_attr(struct jinja_rt *rt,
                                 struct jv *out,
                                 struct jinja_loop *loop,
                                 const char *name,
                                 size_t n) ISO_NODISCARD;
/* One more level of evaluation. Errors: ISO_E_LIMIT. The caller decrements rt->depth. */
enum iso_err iso_jinja_deeper(struct jinja_rt *rt) ISO_NODISCARD;

#endif
