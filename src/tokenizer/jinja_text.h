/* SPDX-License-Identifier: MIT
 * jinja_text.h - strings of the template interpreter by code point, as Python sees them (private).
 *
 * Thread: the functions have no state of their own. All strings are valid UTF-8: templates
 * and tokens are checked, and jansson checks JSON. Malformed bytes would be safe, but not counted.
 */
#ifndef ISO_TOKENIZER_JINJA_TEXT_H
#define ISO_TOKENIZER_JINJA_TEXT_H

#include "tokenizer/jinja_value.h"

/* Length in bytes (1 to 4) of the code point at s [n], n > 0; its value goes to *cp. */
size_t iso_jt_decode(int32_t *cp, const char *s, size_t n);
/* Appends the code point to rt->buf. */
enum iso_err iso_jt_put(struct jinja_rt *rt, int32_t cp) ISO_NODISCARD;
bool iso_jt_valid(const char *s, size_t n);
/* str.isspace() of one code point. */
bool iso_jt_space(int32_t cp);
/* Number of code points. */
size_t iso_jt_count(const char *s, size_t n);
/* Byte offset of code point number i (i <= count). */
size_t iso_jt_offset(const char *s, size_t n, size_t i);
/* First place of needle at or after byte from, or SIZE_MAX. */
size_t iso_jt_find(const struct jv *s, const struct jv *needle, size_t from);
/* Last place of needle that ends at or before byte end, or SIZE_MAX. */
size_t iso_jt_rfind(const struct jv *s, const struct jv *needle, size_t end);

enum jt_case { JT_UPPER, JT_LOWER, JT_TITLE, JT_CAPITALIZE, JT_WORDS };
/* str.upper(), lower(), title(), capitalize(); JT_WORDS is the |title filter. */
enum iso_err iso_jt_case(struct jinja_rt *rt, struct jv *out, const struct jv *s, enum jt_case how)
    ISO_NODISCARD;
/* str.isupper() and str.islower(). */
bool iso_jt_is_upper(const struct jv *s);
bool iso_jt_is_lower(const struct jv *s);

#define JT_LEFT 1u
#define JT_RIGHT 2u
/* str.strip(chars) of the given ends; chars NULL means white space. */
struct jv iso_jt_strip(const struct jv *s, const struct jv *chars, unsigned ends);
enum iso_err iso_jt_replace(struct jinja_rt *rt,
                            struct jv *out,
                            const struct jv *s,
                            const struct jv *old,
                            const struct jv *by,
                            int64_t count) ISO_NODISCARD;
/* str.split(sep, max) and rsplit; sep NULL means runs of white space; max < 0 means all. */
enum iso_err iso_jt_split(struct jinja_rt *rt,
                          struct jv *out,
                          const struct jv *s,
                          const struct jv *sep,
                          int64_t max,
                          bool from_right) ISO_NODISCARD;
enum iso_err iso_jt_splitlines(struct jinja_rt *rt,
                               struct jv *out,
                               const struct jv *s,
                               bool keep_ends) ISO_NODISCARD;
/* sep.join(map(str, list)) */
enum iso_err iso_jt_join(struct jinja_rt *rt,
                         struct jv *out,
                         const struct jv *sep,
                         const struct jv *list,
                         bool only_strings) ISO_NODISCARD;
enum iso_err iso_jt_reverse(struct jinja_rt *rt, struct jv *out, const struct jv *s) ISO_NODISCARD;
/* markupsafe.escape(v) appended to rt->buf. */
enum iso_err iso_jt_put_escaped(struct jinja_rt *rt, const struct jv *v) ISO_NODISCARD;
/* int(text, base) and float(text); false when Python would raise ValueError. *big is set when the
 * integer is right but does not fit. */
bool iso_jt_parse_int(int64_t *out, bool *big, const struct jv *s, int base);
bool iso_jt_parse_float(double *out, const struct jv *s);

#endif
