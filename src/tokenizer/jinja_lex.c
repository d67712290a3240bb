/* SPDX-License-Identifier: MIT
 * jinja_lex.c - splits a template into text and tokens, with Jinja's white-space control.
 *
 * Follows jinja2/lexer.py 3.1 with trim_blocks and lstrip_blocks on and keep_trailing_newline off.
 */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>

#include "tokenizer/jinja.h"
#include "tokenizer/jinja_text.h"

struct lexer {
    struct jinja_arena *a;
    const char *s; /* [n] line ends are \n */
    size_t n, at;
    int line;
    bool line_starting; /* the last tag ended with a newline, or nothing was read yet */
    struct jinja_token *tok;
    size_t n_tok, cap;
    char closer[JINJA_MAX_NESTING]; /* what closes each open bracket */
    int n_open;
};

static bool starts(const struct lexer *l, size_t at, const char *what)
{
    const size_t len = strlen(what);
    return at <= l->n && l->n - at >= len && memcmp(l->s + at, what, len) == 0;
}

/* End of the run of white space at byte at. */
static size_t skip_space(const struct lexer *l, size_t at)
{
    while (at < l->n) {
        int32_t cp = 0;
        const size_t len = iso_jt_decode(&cp, l->s + at, l->n - at);
        if (!iso_jt_space(cp)) break;
        at += len;
    }
    return at;
}

static void move_to(struct lexer *l, size_t at)
{
    for (; l->at < at; l->at++) l->line += l->s[l->at] == '\n';
}

static enum iso_err push(struct lexer *l, enum jinja_token_type type, const char *s, size_t n)
{
    if (l->n_tok == l->cap) {
        const size_t cap = l->cap ? 2 * l->cap : 256;
        void *p = NULL;
        ISO_TRY(iso_jinja_alloc(&p, l->a, cap, sizeof(*l->tok)));
        if (l->n_tok) memcpy(p, l->tok, l->n_tok * sizeof(*l->tok));
        l->tok = p;
        l->cap = cap;
    }
    l->tok[l->n_tok++] =
        (struct jinja_token){.type = (uint8_t)type, .line = l->line, .s = s, .n = n};
    return ISO_OK;
}

/* Text before a tag: what the tag's sign and lstrip_blocks leave of it. */
static enum iso_err push_text(struct lexer *l, size_t end, char sign, bool variable)
{
    struct jv text = jv_str(l->s + l->at, end - l->at);
    if (sign == '-') {
        text = iso_jt_strip(&text, NULL, JT_RIGHT);
    } else if (sign != '+' && !variable) {
        size_t line_at = text.n;
        while (line_at > 0 && text.u.s[line_at - 1] != '\n') line_at--;
        const struct jv last = jv_str(text.u.s + line_at, text.n - line_at);
        const bool at_line_start = line_at > 0 || l->line_starting;
        if (at_line_start && iso_jt_strip(&last, NULL, JT_LEFT).n == 0) text.n = line_at;
    }
    if (text.n) ISO_TRY(push(l, TK_DATA, text.u.s, text.n));
    move_to(l, end);
    return ISO_OK;
}

/* Length of an end tag at byte at with its white-space control, or 0. trims: "+" is allowed and a
 * plain tag takes one newline with it. */
static size_t end_tag(const struct lexer *l, size_t at, const char *close, bool trims)
{
    const bool signed_tag = at < l->n && (l->s[at] == '-' || (trims && l->s[at] == '+'));
    const size_t tag = at + signed_tag;
    if (!starts(l, tag, close)) return 0;
    const size_t end = tag + strlen(close);
    if (signed_tag) return (l->s[at] == '-' ? skip_space(l, end) : end) - at;
    return end + (trims && end < l->n && l->s[end] == '\n') - at;
}

static void close_tag(struct lexer *l, size_t len)
{
    move_to(l, l->at + len);
    l->line_starting = l->s[l->at - 1] == '\n';
}

static enum iso_err lex_comment(struct lexer *l, size_t from)
{
    const int line = l->line;
    if (from >= l->n) { /* Jinja lets a comment begin at the very end */
        move_to(l, l->n);
        return ISO_OK;
    }
    for (size_t at = from; at < l->n; at++) {
        const size_t len = end_tag(l, at, "#}", true);
        if (len) {
            move_to(l, at);
            close_tag(l, len);
            return ISO_OK;
        }
    }
    ISO_FAIL(ISO_E_FORMAT, "line %d: missing end of comment tag", line);
}

/* Length of "{% raw %}" at byte at, or 0. */
static size_t raw_tag(const struct lexer *l, size_t at, char *sign)
{
    size_t p = at + 2;
    *sign = p < l->n && (l->s[p] == '-' || l->s[p] == '+') ? l->s[p++] : '\0';
    p = skip_space(l, p);
    if (!starts(l, p, "raw")) return 0;
    p = skip_space(l, p + 3);
    const size_t len = end_tag(l, p, "%}", false);
    return len ? p + len - at : 0;
}

static enum iso_err lex_raw(struct lexer *l, size_t len)
{
    const int line = l->line;
    close_tag(l, len);
    if (l->at == l->n) return ISO_OK;
    for (size_t at = l->at; at < l->n; at++) {
        if (!starts(l, at, "{%")) continue;
        size_t p = at + 2;
        const char sign = p < l->n && (l->s[p] == '-' || l->s[p] == '+') ? l->s[p++] : '\0';
        p = skip_space(l, p);
        if (!starts(l, p, "endraw")) continue;
        p = skip_space(l, p + 6);
        const size_t end = end_tag(l, p, "%}", true);
        if (end == 0) continue;
        ISO_TRY(push_text(l, at, sign, false));
        close_tag(l, p + end - at);
        return ISO_OK;
    }
    ISO_FAIL(ISO_E_FORMAT, "line %d: missing end of raw directive", line);
}

static enum iso_err put_utf8(char *out, size_t *n, uint32_t cp, int line)
{
    if (cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff)) {
        ISO_FAIL(ISO_E_UNSUPPORTED, "line %d: escape for U+%04X in a string", line, (unsigned)cp);
    }
    if (cp < 0x80) {
        out[(*n)++] = (char)cp;
    } else if (cp < 0x800) {
        out[(*n)++] = (char)(0xc0 | cp >> 6);
        out[(*n)++] = (char)(0x80 | (cp & 63));
    } else {
        if (cp < 0x10000) {
            out[(*n)++] = (char)(0xe0 | cp >> 12);
        } else {
            out[(*n)++] = (char)(0xf0 | cp >> 18);
            out[(*n)++] = (char)(0x80 | (cp >> 12 & 63));
        }
        out[(*n)++] = (char)(0x80 | (cp >> 6 & 63));
        out[(*n)++] = (char)(0x80 | (cp & 63));
    }
    return ISO_OK;
}

/* \x, \u, \U with their digits, or octal; *i is behind the letter and moves behind the digits. */
static enum iso_err
numeric_escape(const char *s, size_t n, size_t *i, char letter, char *out, size_t *len, int line)
{
    uint32_t cp = 0;
    if (letter >= '0' && letter <= '7') {
        cp = (uint32_t)(letter - '0');
        for (int k = 0; k < 2 && *i < n && s[*i] >= '0' && s[*i] <= '7'; k++) {
            cp = cp * 8 + (uint32_t)(s[(*i)++] - '0');
        }
        return put_utf8(out, len, cp, line);
    }
    const size_t digits = letter == 'x' ? 2 : letter == 'u' ? 4 : 8;
    for (size_t k = 0; k < digits; k++, (*i)++) {
        if (*i >= n || !isxdigit((unsigned char)s[*i])) {
            ISO_FAIL(ISO_E_FORMAT, "line %d: truncated \\%c escape in a string", line, letter);
        }
        const char c = s[*i];
        cp = cp << 4 | (uint32_t)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    return put_utf8(out, len, cp, line);
}

/* Python's unicode-escape codec on s [n]; out has room for 3 n bytes. */
static enum iso_err unescape(const char *s, size_t n, char *out, size_t *len, int line)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    size_t i = 0;
    while (i < n) {
        if (s[i] != '\\') {
            out[(*len)++] = s[i++];
            continue;
        }
        const char c = s[i + 1]; /* a string never ends in a lone backslash */
        i += 2;
        const char *p = strchr(from, c);
        if (c != '\0' && p != NULL) {
            out[(*len)++] = to[p - from];
        } else if (c == '\n') {
            continue;
        } else if (c == 'x' || c == 'u' || c == 'U' || (c >= '0' && c <= '7')) {
            ISO_TRY(numeric_escape(s, n, &i, c, out, len, line));
        } else if (c == 'N') {
            ISO_FAIL(ISO_E_UNSUPPORTED, "line %d: \\N escape in a string", line);
        } else if ((unsigned char)c >= 0x80) {
            ISO_FAIL(ISO_E_UNSUPPORTED, "line %d: backslash before a non-ASCII letter", line);
        } else {
            out[(*len)++] = '\\';
            out[(*len)++] = c;
        }
    }
    return ISO_OK;
}

static enum iso_err lex_string(struct lexer *l)
{
    const char quote = l->s[l->at];
    size_t end = l->at + 1;
    bool escapes = false;
    while (end < l->n && l->s[end] != quote) {
        escapes |= l->s[end] == '\\';
        end += 1 + (l->s[end] == '\\');
    }
    if (end >= l->n)
        ISO_FAIL(ISO_E_FORMAT, "line %d: string without its closing %c", l->line, quote);
    const char *s = l->s + l->at + 1;
    size_t n = end - l->at - 1;
    if (escapes) {
        void *p = NULL;
        ISO_TRY(iso_jinja_alloc(&p, l->a, n, 3));
        size_t len = 0;
        ISO_TRY(unescape(s, n, p, &len, l->line));
        s = p;
        n = len;
    }
    ISO_TRY(push(l, TK_STRING, s, n));
    move_to(l, end + 1);
    return ISO_OK;
}

/* End of digits with single underscores between them, at byte at; at when there are none. */
static size_t digits(const struct lexer *l, size_t at)
{
    while (at < l->n && isdigit((unsigned char)l->s[at])) {
        at++;
        if (at + 1 < l->n && l->s[at] == '_' && isdigit((unsigned char)l->s[at + 1])) at++;
    }
    return at;
}

/* End of a float at the current place, or 0 when the number is an integer. */
static size_t float_end(const struct lexer *l)
{
    if (l->at > 0 && l->s[l->at - 1] == '.') return 0;
    const size_t whole = digits(l, l->at);
    size_t end = whole;
    if (end < l->n && l->s[end] == '.' && digits(l, end + 1) > end + 1) end = digits(l, end + 1);
    size_t e = end;
    if (e < l->n && (l->s[e] == 'e' || l->s[e] == 'E')) {
        e++;
        if (e < l->n && (l->s[e] == '+' || l->s[e] == '-')) e++;
        if (digits(l, e) > e) end = digits(l, e);
    }
    return end > whole ? end : 0;
}

static enum iso_err lex_number(struct lexer *l)
{
    char text[128];
    size_t n = 0;
    const size_t as_float = float_end(l);
    size_t end = as_float ? as_float : digits(l, l->at);
    int base = 10;
    if (!as_float && l->s[l->at] == '0') {
        const char c = l->at + 1 < l->n ? (char)(l->s[l->at + 1] | 32) : '\0';
        base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
        end = l->at + (base == 10 ? 1 : 2);
        while (end < l->n && (base == 10 ? l->s[end] == '0' : isxdigit((unsigned char)l->s[end])))
            end++;
    }
    for (size_t i = l->at + (base == 10 ? 0 : 2); i < end && n + 1 < sizeof(text); i++) {
        if (l->s[i] != '_') text[n++] = l->s[i];
    }
    text[n] = '\0';
    char *stop = NULL;
    errno = 0;
    const int64_t i = as_float ? 0 : strtoll(text, &stop, base);
    if (n + 1 == sizeof(text) || errno != 0) {
        ISO_FAIL(ISO_E_UNSUPPORTED, "line %d: number of more than 64 bits: %s", l->line, text);
    }
    if (!as_float && (n == 0 || *stop != '\0')) {
        ISO_FAIL(ISO_E_FORMAT, "line %d: malformed number", l->line);
    }
    ISO_TRY(push(l, as_float ? TK_FLOAT : TK_INT, l->s + l->at, end - l->at));
    l->tok[l->n_tok - 1].i = i;
    l->tok[l->n_tok - 1].f = as_float ? strtod(text, NULL) : 0.0;
    move_to(l, end);
    return ISO_OK;
}

static enum iso_err balance(struct lexer *l, char c)
{
    static const char open[] = "([{", close[] = ")]}";
    const char *o = strchr(open, c);
    if (o != NULL) {
        if (l->n_open == JINJA_MAX_NESTING) {
            ISO_FAIL(ISO_E_LIMIT, "line %d: more than %d open brackets", l->line,
                     JINJA_MAX_NESTING);
        }
        l->closer[l->n_open++] = close[o - open];
    } else if (strchr(close, c) != NULL) {
        if (l->n_open == 0) ISO_FAIL(ISO_E_FORMAT, "line %d: unexpected '%c'", l->line, c);
        const char want = l->closer[--l->n_open];
        if (want != c) {
            ISO_FAIL(ISO_E_FORMAT, "line %d: unexpected '%c', expected '%c'", l->line, c, want);
        }
    }
    return ISO_OK;
}

static enum iso_err lex_operator(struct lexer *l)
{
    static const struct {
        const char *text;
        enum jinja_token_type type;
    } ops[] = {
        {"//", TK_FLOORDIV}, {"**", TK_POW},      {"==", TK_EQ},    {"!=", TK_NE},
        {">=", TK_GE},       {"<=", TK_LE},       {"+", TK_ADD},    {"-", TK_SUB},
        {"/", TK_DIV},       {"*", TK_MUL},       {"%", TK_MOD},    {"~", TK_TILDE},
        {"[", TK_LBRACKET},  {"]", TK_RBRACKET},  {"(", TK_LPAREN}, {")", TK_RPAREN},
        {"{", TK_LBRACE},    {"}", TK_RBRACE},    {">", TK_GT},     {"<", TK_LT},
        {"=", TK_ASSIGN},    {".", TK_DOT},       {":", TK_COLON},  {"|", TK_PIPE},
        {",", TK_COMMA},     {";", TK_SEMICOLON},
    };
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        if (!starts(l, l->at, ops[i].text)) continue;
        ISO_TRY(balance(l, l->s[l->at]));
        ISO_TRY(push(l, ops[i].type, l->s + l->at, strlen(ops[i].text)));
        move_to(l, l->at + strlen(ops[i].text));
        return ISO_OK;
    }
    ISO_FAIL(ISO_E_FORMAT, "line %d: unexpected character 0x%02x", l->line,
             (unsigned)(unsigned char)l->s[l->at]);
}

static bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* Tokens of one tag up to and with its end. */
static enum iso_err lex_tag(struct lexer *l, bool variable)
{
    const int line = l->line;
    l->n_open = 0;
    for (;;) {
        if (l->at >= l->n) ISO_FAIL(ISO_E_FORMAT, "line %d: tag without its end", line);
        const size_t len = l->n_open ? 0 : end_tag(l, l->at, variable ? "}}" : "%}", !variable);
        if (len) {
            ISO_TRY(push(l, variable ? TK_VAR_END : TK_BLOCK_END, l->s + l->at, len));
            close_tag(l, len);
            return ISO_OK;
        }
        const size_t word = skip_space(l, l->at);
        const char c = l->s[l->at];
        if (word > l->at) {
            move_to(l, word);
        } else if (isdigit((unsigned char)c)) {
            ISO_TRY(lex_number(l));
        } else if (is_name(c)) {
            size_t end = l->at;
            while (end < l->n && is_name(l->s[end])) end++;
            ISO_TRY(push(l, TK_NAME, l->s + l->at, end - l->at));
            move_to(l, end);
        } else if (c == '\'' || c == '"') {
            ISO_TRY(lex_string(l));
        } else {
            ISO_TRY(lex_operator(l));
        }
    }
}

/* Text up to the next tag, and the tag. */
static enum iso_err lex_next(struct lexer *l)
{
    size_t at = l->at;
    while (at < l->n && !starts(l, at, "{%") && !starts(l, at, "{{") && !starts(l, at, "{#")) at++;
    if (at == l->n) {
        ISO_TRY(push(l, TK_DATA, l->s + l->at, at - l->at));
        move_to(l, at);
        return ISO_OK;
    }
    const char kind = l->s[at + 1];
    char sign = '\0';
    const size_t raw = kind == '%' ? raw_tag(l, at, &sign) : 0;
    if (at + 2 < l->n && (l->s[at + 2] == '-' || l->s[at + 2] == '+')) sign = l->s[at + 2];
    ISO_TRY(push_text(l, at, sign, kind == '{'));
    if (raw) return lex_raw(l, raw);
    const size_t body = at + 2 + (sign != '\0');
    if (kind == '#') return lex_comment(l, body);
    ISO_TRY(push(l, kind == '%' ? TK_BLOCK_BEGIN : TK_VAR_BEGIN, l->s + at, 2));
    move_to(l, body);
    return lex_tag(l, kind == '{');
}

/* A copy with \n line ends, less one at the very end. */
static enum iso_err normalise(struct lexer *l, const char *text, size_t len)
{
    void *p = NULL;
    ISO_TRY(iso_jinja_alloc(&p, l->a, len + 1, 1));
    char *s = p;
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '\r') {
            s[l->n++] = '\n';
            i += i + 1 < len && text[i + 1] == '\n';
        } else {
            s[l->n++] = text[i];
        }
    }
    if (l->n > 0 && s[l->n - 1] == '\n') l->n--;
    l->s = s;
    return ISO_OK;
}

enum iso_err iso_jinja_lex(
    struct jinja_arena *a, struct jinja_token **out, size_t *n, const char *text, size_t len)
{
    struct lexer l = {.a = a, .line = 1, .line_starting = true};
    ISO_TRY(normalise(&l, text, len));
    while (l.at < l.n) ISO_TRY(lex_next(&l));
    ISO_TRY(push(&l, TK_EOF, l.s + l.n, 0));
    *out = l.tok;
    *n = l.n_tok;
    return ISO_OK;
}
