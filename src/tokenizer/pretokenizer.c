/* SPDX-License-Identifier: MIT
 * pretokenizer.c - the splitting expressions of the supported model families.
 *
 * Sources: the published tokenizer.json files of SmolLM2, GPT-2, Llama 3, Qwen2 and Llama 4 (the
 * last is o200k_base of tiktoken). Contractions are spelled out in ASCII instead of (?i:...):
 * Unicode case folding would let the long s (U+017F) end a contraction. White space is spelled out
 * too, since \s of PCRE2 has U+180E in it and the White_Space property of Unicode does not.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/pretokenizer.h"

#include <pcre2.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"

#define MAX_STAGES 2

#define SPACE                                                                                      \
    "\\t-\\r "                                                                                     \
    "\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define SPACE_RUN "[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+"
#define SUFFIX "'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define OTHER "[^\\r\\n\\p{L}\\p{N}]?"
#define SYMBOLS " ?[^" SPACE "\\p{L}\\p{N}]+"
#define LINES "[" SPACE "]*[\\r\\n]+"

#define SPLIT_GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|" SYMBOLS "|" SPACE_RUN
#define SPLIT_LLAMA3(digits)                                                                       \
    SUFFIX "|" OTHER "\\p{L}+|" digits "|" SYMBOLS "[\\r\\n]*|" LINES "|" SPACE_RUN
#define SPLIT_GPT4O                                                                                \
    OTHER UPPER "*" LOWER "+(?:" SUFFIX ")?|" OTHER UPPER "+" LOWER "*(?:" SUFFIX                  \
                ")?|\\p{N}{1,3}|" SYMBOLS "[\\r\\n/]*|" LINES "|" SPACE_RUN

struct family {
    const char *name;
    const char *stage[MAX_STAGES]; /* the second cuts what the first leaves, and its matches */
    bool whole_words, adds_bos;
};

static const struct family SMOLLM = {"smollm", {"\\p{N}", SPLIT_GPT2}, false, false};
static const struct family GPT2 = {"gpt-2", {SPLIT_GPT2, NULL}, false, false};
static const struct family LLAMA3 = {"llama3", {SPLIT_LLAMA3("\\p{N}{1,3}"), NULL}, true, true};
static const struct family QWEN2 = {"qwen2", {SPLIT_LLAMA3("\\p{N}"), NULL}, false, false};
static const struct family GPT4O = {"gpt-4o", {SPLIT_GPT4O, NULL}, false, false};

/* Values of tokenizer.ggml.pre; aliases differ in nothing that tokenization sees. */
static const struct {
    const char *pre;
    const struct family *family;
} NAMES[] = {
    {"smollm", &SMOLLM},  {"gpt-2", &GPT2},      {"phi-2", &GPT2},
    {"llama3", &LLAMA3},  {"llama-v3", &LLAMA3}, {"llama-bpe", &LLAMA3},
    {"falcon3", &LLAMA3}, {"pixtral", &LLAMA3},  {"qwen2", &QWEN2},
    {"megrez", &QWEN2},   {"gpt-4o", &GPT4O},    {"deepseek-r1-qwen", &QWEN2},
    {"llama4", &GPT4O},
};

struct iso_pretokenizer {
    const struct family *family;
    pcre2_code *code[MAX_STAGES]; /* NULL from the first unused stage on */
};

/* State of one split. */
struct split {
    const struct iso_pretokenizer *p;
    pcre2_match_data *match;
    pcre2_match_context *limits;
    iso_pretokenizer_word *word;
    void *ctx;
};

static enum iso_err compile(pcre2_code **out, const char *pattern)
{
    int number = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                     PCRE2_UTF | PCRE2_UCP, &number, &offset, NULL);
    if (code == NULL) {
        char text[128] = "";
        (void)pcre2_get_error_message(number, (PCRE2_UCHAR *)text, sizeof(text));
        ISO_FAIL(ISO_E_UNSUPPORTED, "PCRE2 cannot compile a splitting expression: %s at %zu", text,
                 (size_t)offset);
    }
    /* Without a JIT (not built in, or writable-executable memory forbidden) it is slower, no more.
     */
    if (pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) != 0) {
        iso_log(ISO_LOG_INFO, "tokenizer", "pcre2_jit=off");
    }
    *out = code;
    return ISO_OK;
}

enum iso_err iso_pretokenizer_new(struct iso_pretokenizer **out, const char *name, size_t len)
{
    const struct family *family = NULL;
    for (size_t i = 0; i < ISO_COUNT(NAMES); i++) {
        if (strlen(NAMES[i].pre) == len && memcmp(NAMES[i].pre, name, len) == 0) {
            family = NAMES[i].family;
        }
    }
    if (family == NULL) {
        ISO_FAIL(ISO_E_UNSUPPORTED, "pre-tokenizer %.*s not supported", (int)ISO_MIN(len, 64u),
                 name);
    }
    struct iso_pretokenizer *p = iso_xalloc(1, sizeof(*p));
    p->family = family;
    for (unsigned i = 0; i < MAX_STAGES && family->stage[i]; i++) {
        const enum iso_err err = compile(&p->code[i], family->stage[i]);
        if (err != ISO_OK) {
            iso_pretokenizer_free(p);
            return err;
        }
    }
    *out = p;
    return ISO_OK;
}

void iso_pretokenizer_free(struct iso_pretokenizer *p)
{
    if (p == NULL) return;
    for (unsigned i = 0; i < MAX_STAGES; i++) pcre2_code_free(p->code[i]);
    free(p);
}

const char *iso_pretokenizer_name(const struct iso_pretokenizer *p)
{
    return p->family->name;
}

bool iso_pretokenizer_whole_words(const struct iso_pretokenizer *p)
{
    return p->family->whole_words;
}

bool iso_pretokenizer_adds_bos(const struct iso_pretokenizer *p)
{
    return p->family->adds_bos;
}

/* Next match of a stage in text [len] from start on: *from and *to, or *from = len if there is
 * none. */
static enum iso_err next_match(const struct split *s,
                               unsigned stage,
                               const char *text,
                               size_t len,
                               size_t start,
                               size_t *from,
                               size_t *to)
{
    uint32_t options = PCRE2_NO_UTF_CHECK;
    int n =
        pcre2_match(s->p->code[stage], (PCRE2_SPTR)text, len, start, options, s->match, s->limits);
    if (n == PCRE2_ERROR_JIT_STACKLIMIT) { /* the interpreter keeps its state in the heap */
        options |= PCRE2_NO_JIT;
        n = pcre2_match(s->p->code[stage], (PCRE2_SPTR)text, len, start, options, s->match,
                        s->limits);
    }
    *from = len;
    *to = len;
    if (n == PCRE2_ERROR_NOMATCH) return ISO_OK;
    if (n < 0) {
        char message[128] = "";
        (void)pcre2_get_error_message(n, (PCRE2_UCHAR *)message, sizeof(message));
        ISO_FAIL(n == PCRE2_ERROR_NOMEMORY ? ISO_E_NOMEM : ISO_E_LIMIT,
                 "splitting %zu bytes at %zu: %s", len, start, message);
    }
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(s->match);
    *from = range[0];
    *to = range[1];
    return ISO_OK;
}

/* Cuts text [len] from this stage on. Later stages see each part alone: a space at its end is at
 * the end of the text for them. */
static enum iso_err run_stage(const struct split *s, unsigned stage, const char *text, size_t len)
{
    if (stage == MAX_STAGES || s->p->code[stage] == NULL) return s->word(s->ctx, text, len);
    size_t done = 0;
    while (done < len) {
        size_t from = 0;
        size_t to = 0;
        ISO_TRY(next_match(s, stage, text, len, done, &from, &to));
        if (from > done) ISO_TRY(run_stage(s, stage + 1, text + done, from - done));
        if (to > from) ISO_TRY(run_stage(s, stage + 1, text + from, to - from));
        done = to;
    }
    return ISO_OK;
}

enum iso_err iso_pretokenizer_split(const struct iso_pretokenizer *p,
                                    const char *text,
                                    size_t len,
                                    iso_pretokenizer_word *word,
                                    void *ctx)
{
    struct split s = {.p = p, .word = word, .ctx = ctx};
    s.match = pcre2_match_data_create(1, NULL);
    s.limits = pcre2_match_context_create(NULL);
    enum iso_err err = ISO_OK;
    if (s.match == NULL || s.limits == NULL) {
        ISO_FAIL_OUT(ISO_E_NOMEM, "PCRE2 match data");
    }
    /* The patterns are ours and linear; only the length of the text may be large. */
    (void)pcre2_set_match_limit(s.limits, UINT32_MAX);
    (void)pcre2_set_depth_limit(s.limits, UINT32_MAX);
    (void)pcre2_set_heap_limit(s.limits, UINT32_MAX);
    err = run_stage(&s, 0, text, len);
out:
    pcre2_match_context_free(s.limits);
    pcre2_match_data_free(s.match);
    return err;
}
