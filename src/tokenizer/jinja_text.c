/* SPDX-License-Identifier: MIT
 * jinja_text.c - code points, letter case, stripping and numbers in template strings. */
#include "tokenizer/jinja_text.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <utf8proc.h>

#include "tokenizer/jinja_casing.h"

size_t iso_jt_decode(int32_t *cp, const char *s, size_t n)
{
    const unsigned char c = (unsigned char)*s;
    if (c < 0x80) {
        *cp = c;
        return 1;
    }
    utf8proc_int32_t v = 0;
    const utf8proc_ssize_t len =
        utf8proc_iterate((const utf8proc_uint8_t *)s, n > 4 ? 4 : (utf8proc_ssize_t)n, &v);
    if (len <= 0) {
        *cp = 0xfffd;
        return 1;
    }
    *cp = v;
    return (size_t)len;
}

enum iso_err iso_jt_put(struct jinja_rt *rt, int32_t cp)
{
    utf8proc_uint8_t b[4];
    return iso_buf_append(&rt->buf, b, (size_t)utf8proc_encode_char(cp, b));
}

bool iso_jt_valid(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        int32_t cp = 0;
        const size_t len = iso_jt_decode(&cp, s + i, n - i);
        if (len == 1 && (unsigned char)s[i] >= 0x80) return false;
        i += len;
    }
    return true;
}

bool iso_jt_space(int32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

size_t iso_jt_count(const char *s, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += ((unsigned char)s[i] & 0xc0) != 0x80;
    return count;
}

size_t iso_jt_offset(const char *s, size_t n, size_t i)
{
    size_t at = 0;
    for (; at < n; at++) { /* at each first byte of a character */
        if (((unsigned char)s[at] & 0xc0) != 0x80 && i-- == 0) break;
    }
    return at;
}

size_t iso_jt_find(const struct jv *s, const struct jv *needle, size_t from)
{
    if (from > s->n) return SIZE_MAX;
    if (needle->n == 0) return from;
    const char *p = memmem(s->u.s + from, s->n - from, needle->u.s, needle->n);
    return p != NULL ? (size_t)(p - s->u.s) : SIZE_MAX;
}

size_t iso_jt_rfind(const struct jv *s, const struct jv *needle, size_t end)
{
    if (needle->n > end) return SIZE_MAX;
    for (size_t at = end - needle->n + 1; at-- > 0;) {
        if (memcmp(s->u.s + at, needle->u.s, needle->n) == 0) return at;
    }
    return SIZE_MAX;
}

/* --- letter case --- */

/* Letter case by the Uppercase and Lowercase properties of Unicode 14: the categories Lu and Ll and
 * the ranges of Other_Uppercase and Other_Lowercase in PropList.txt. */
enum letter_case { NO_CASE, UPPER, LOWER, TITLE };

static enum letter_case case_of(int32_t cp)
{
    static const int32_t upper[][2] = {{0x2160, 0x216f},
                                       {0x24b6, 0x24cf},
                                       {0x1f130, 0x1f149},
                                       {0x1f150, 0x1f169},
                                       {0x1f170, 0x1f189}};
    static const int32_t lower[][2] = {
        {0xaa, 0xaa},       {0xba, 0xba},       {0x2b0, 0x2b8},     {0x2c0, 0x2c1},
        {0x2e0, 0x2e4},     {0x345, 0x345},     {0x37a, 0x37a},     {0x1d2c, 0x1d6a},
        {0x1d78, 0x1d78},   {0x1d9b, 0x1dbf},   {0x2071, 0x2071},   {0x207f, 0x207f},
        {0x2090, 0x209c},   {0x2170, 0x217f},   {0x24d0, 0x24e9},   {0x2c7c, 0x2c7d},
        {0xa69c, 0xa69d},   {0xa770, 0xa770},   {0xa7f8, 0xa7f9},   {0xab5c, 0xab5f},
        {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107b0}, {0x107b2, 0x107ba}};
    switch (utf8proc_category(cp)) {
    case UTF8PROC_CATEGORY_LU:
        return UPPER;
    case UTF8PROC_CATEGORY_LL:
        return LOWER;
    case UTF8PROC_CATEGORY_LT:
        return TITLE;
    default:
        break;
    }
    for (size_t i = 0; cp >= lower[0][0] && i < sizeof(lower) / sizeof(lower[0]); i++) {
        if (cp >= lower[i][0] && cp <= lower[i][1]) return LOWER;
    }
    for (size_t i = 0; cp >= upper[0][0] && i < sizeof(upper) / sizeof(upper[0]); i++) {
        if (cp >= upper[i][0] && cp <= upper[i][1]) return UPPER;
    }
    return NO_CASE;
}

static bool cased(int32_t cp)
{
    return case_of(cp) != NO_CASE;
}

static bool case_ignorable(int32_t cp)
{
    switch (utf8proc_category(cp)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
        return true;
    default:
        return cp == '\'' || cp == '.' || cp == ':' || cp == 0xb7 || cp == 0x2018 || cp == 0x2019 ||
               cp == 0x2024 || cp == 0x2027;
    }
}

/* Whether the sigma at byte i ends a word: a letter before, none after. */
static bool final_sigma(const struct jv *s, size_t i, size_t len)
{
    int32_t cp = 0;
    bool before = false;
    for (size_t k = 0; k < i; k += iso_jt_decode(&cp, s->u.s + k, s->n - k)) {
        int32_t c = 0;
        (void)iso_jt_decode(&c, s->u.s + k, s->n - k);
        if (!case_ignorable(c)) before = cased(c);
    }
    for (size_t k = i + len; before && k < s->n;) {
        k += iso_jt_decode(&cp, s->u.s + k, s->n - k);
        if (!case_ignorable(cp)) return !cased(cp);
    }
    return before;
}

static bool begins_word(int32_t cp);

/* The word around byte i without its first letter, as |title lowers it; word is where it starts. */
static struct jv rest_of_word(const struct jv *s, size_t word, size_t i)
{
    int32_t cp = 0;
    const size_t from = word + iso_jt_decode(&cp, s->u.s + word, s->n - word);
    size_t end = i;
    while (end < s->n) {
        const size_t len = iso_jt_decode(&cp, s->u.s + end, s->n - end);
        if (begins_word(cp)) break;
        end += len;
    }
    return jv_str(s->u.s + from, end - from);
}

/* The lower case of the letter at byte i of context. */
static enum iso_err
put_lower(struct jinja_rt *rt, const struct jv *context, size_t i, int32_t cp, size_t len)
{
    if (cp == 0x3a3) {
        ISO_TRY(iso_jinja_charge_bytes(rt, context->n));
        return iso_jt_put(rt, final_sigma(context, i, len) ? 0x3c2 : 0x3c3);
    }
    if (cp == 0x130) return iso_buf_puts(&rt->buf, "i\xcc\x87");
    return iso_jt_put(rt, utf8proc_tolower(cp));
}

static enum iso_err put_upper(struct jinja_rt *rt, int32_t cp, bool title)
{
    const struct jt_special *special = iso_jt_special(cp);
    if (special == NULL) return iso_jt_put(rt, title ? utf8proc_totitle(cp) : utf8proc_toupper(cp));
    const int32_t *to = title ? special->title : special->upper;
    for (int i = 0; i < 3 && to[i]; i++) ISO_TRY(iso_jt_put(rt, to[i]));
    return ISO_OK;
}

/* Characters after which |title begins a word: [-\s({\[<] */
static bool begins_word(int32_t cp)
{
    return cp == '-' || cp == '(' || cp == '{' || cp == '[' || cp == '<' || iso_jt_space(cp);
}

enum iso_err iso_jt_case(struct jinja_rt *rt, struct jv *out, const struct jv *s, enum jt_case how)
{
    const size_t mark = rt->buf.len;
    const uint8_t markup = s->sub & JV_STR_MARKUP;
    ISO_TRY(iso_jinja_charge(rt, s->n / 8)); /* several table look-ups a letter */
    bool first = true;                       /* the next letter begins a word */
    size_t word = 0;                         /* where the last one began */
    for (size_t i = 0; i < s->n;) {
        int32_t cp = 0;
        const size_t len = iso_jt_decode(&cp, s->u.s + i, s->n - i);
        if (len == 1 && cp == 0xfffd) {
            ISO_TRY(iso_buf_append(&rt->buf, s->u.s + i, 1));
        } else if (how == JT_UPPER || (first && how != JT_LOWER)) {
            ISO_TRY(put_upper(rt, cp, how == JT_TITLE || how == JT_CAPITALIZE));
        } else {
            const bool apart = how == JT_WORDS && cp == 0x3a3;
            const struct jv context = apart ? rest_of_word(s, word, i) : *s;
            ISO_TRY(put_lower(rt, &context, i - (size_t)(context.u.s - s->u.s), cp, len));
        }
        if (first) word = i;
        if (how == JT_TITLE)
            first = !cased(cp);
        else if (how == JT_CAPITALIZE)
            first = false;
        else if (how == JT_WORDS)
            first = begins_word(cp);
        i += len;
    }
    ISO_TRY(iso_jv_take(rt, out, mark));
    out->sub = how == JT_WORDS ? 0 : markup;
    return ISO_OK;
}

/* Whether there are letters of this case, and none of another. */
static bool is_case(const struct jv *s, enum letter_case want)
{
    bool any = false;
    for (size_t i = 0; i < s->n;) {
        int32_t cp = 0;
        i += iso_jt_decode(&cp, s->u.s + i, s->n - i);
        const enum letter_case c = case_of(cp);
        if (c != NO_CASE && c != want) return false;
        any |= c == want;
    }
    return any;
}

bool iso_jt_is_upper(const struct jv *s)
{
    return is_case(s, UPPER);
}

bool iso_jt_is_lower(const struct jv *s)
{
    return is_case(s, LOWER);
}

/* --- stripping --- */

static bool strippable(const struct jv *chars, const char *c, size_t len, int32_t cp)
{
    if (chars == NULL) return iso_jt_space(cp);
    const struct jv one = jv_str(c, len);
    return iso_jt_find(chars, &one, 0) != SIZE_MAX; /* UTF-8 cannot match inside a character */
}

struct jv iso_jt_strip(const struct jv *s, const struct jv *chars, unsigned ends)
{
    const char *p = s->u.s;
    size_t lo = 0, hi = s->n;
    while ((ends & JT_LEFT) && lo < hi) {
        int32_t cp = 0;
        const size_t len = iso_jt_decode(&cp, p + lo, hi - lo);
        if (!strippable(chars, p + lo, len, cp)) break;
        lo += len;
    }
    while ((ends & JT_RIGHT) && hi > lo) {
        size_t at = hi - 1;
        while (at > lo && ((unsigned char)p[at] & 0xc0) == 0x80) at--;
        int32_t cp = 0;
        const size_t len = iso_jt_decode(&cp, p + at, hi - at);
        if (at + len != hi || !strippable(chars, p + at, len, cp)) break;
        hi = at;
    }
    struct jv out = jv_str(p + lo, hi - lo);
    out.sub = s->sub & JV_STR_MARKUP;
    return out;
}

/* --- numbers --- */

static int digit_of(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (isalpha((unsigned char)c)) return (c | 32) - 'a' + 10;
    return 99;
}

bool iso_jt_parse_int(int64_t *out, bool *big, const struct jv *s, int base)
{
    const struct jv t = iso_jt_strip(s, NULL, JT_LEFT | JT_RIGHT);
    size_t i = 0;
    *big = false;
    const bool minus = t.n > 0 && t.u.s[0] == '-';
    if (t.n > 0 && (minus || t.u.s[0] == '+')) i++;
    const char prefix = base == 16 ? 'x' : base == 8 ? 'o' : base == 2 ? 'b' : '\0';
    if (prefix && i + 1 < t.n && t.u.s[i] == '0' && (t.u.s[i + 1] | 32) == prefix) {
        i += 2;
        if (i < t.n && t.u.s[i] == '_') i++;
    }
    int64_t v = 0;
    bool digit_before = false;
    for (; i < t.n; i++) {
        if (t.u.s[i] == '_' && digit_before) {
            digit_before = false;
            continue;
        }
        const int d = digit_of(t.u.s[i]);
        if (d >= base) return false;
        digit_before = true;
        if (__builtin_mul_overflow(v, base, &v) || __builtin_sub_overflow(v, d, &v)) *big = true;
    }
    if (!digit_before) return false;
    if (!minus && v == INT64_MIN) *big = true;
    *out = *big ? 0 : minus ? v : -v;
    return true;
}

bool iso_jt_parse_float(double *out, const struct jv *s)
{
    const struct jv t = iso_jt_strip(s, NULL, JT_LEFT | JT_RIGHT);
    char buf[512];
    size_t n = 0;
    if (t.n == 0 || t.n >= sizeof(buf)) return false;
    for (size_t i = 0; i < t.n; i++) {
        const char c = t.u.s[i];
        const bool inner = i > 0 && i + 1 < t.n && isdigit((unsigned char)t.u.s[i - 1]) &&
                           isdigit((unsigned char)t.u.s[i + 1]);
        if (c == '_' && inner) continue;
        if (c == 'x' || c == 'X' || c == '(' || c == '_' || c == '\0')
            return false; /* strtod takes hex and nan(...) */
        buf[n++] = c;
    }
    buf[n] = '\0';
    char *end = NULL;
    *out = strtod(buf, &end);
    return end == buf + n && !isspace((unsigned char)buf[0]);
}
