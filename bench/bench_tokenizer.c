/* SPDX-License-Identifier: MIT
 * bench_tokenizer.c - time to load a tokenizer and speed of tokenizing 1 MB of several texts, as
 * CSV.
 *
 * usage: bench_tokenizer MODEL.gguf...
 * Columns: file name, case ("load" or a text), tokens (of the vocabulary or of the text), median
 * and best time in ms, MB of text per second at the median (0 for load), repeats, compiler. Loading
 * is measured with the file in the page cache, without opening it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "tokenizer/tokenizer.h"

#define TEXT_BYTES ((size_t)1 << 20)
#define MAX_TOKENS_BYTES (8 * TEXT_BYTES)
#define REPEATS 11

static uint64_t g_state = 88172645463325252u;

static uint64_t next(void)
{
    g_state ^= g_state << 13;
    g_state ^= g_state >> 7;
    g_state ^= g_state << 17;
    return g_state >> 20;
}

static const char *const PROSE[] = {
    "the ",          "of ",      "and ",     "a ",        "to ",      "in ",       "is ",
    "which ",        "machine ", "answers ", "token ",    "between ", "however, ", "morning ",
    "they've ",      "wrote ",   "128 ",     "letters. ", "The ",     "river ",    "quickly ",
    "unbelievable ", "Perhaps ", "\"yes\" ", "said.\n\n", "history ", "2024 ",     "Paris ",
};
static const char *const CODE[] = {
    "int ",
    "x",
    " = ",
    "foo(",
    ");\n",
    "    ",
    "return ",
    "if (",
    ") {\n",
    "}\n",
    "\t",
    "i++",
    "0x1F",
    "/* why */ ",
    "struct ",
    "camelCaseName",
    "snake_case_name",
    "->",
    "[i]",
    "\"str\"",
};
static const char *const MIXED[] = {
    "\xE6\x97\xA5\xE6\x9C\xAC",
    "\xE8\xAA\x9E",
    "\xE3\x80\x82",
    "\xD0\xBF\xD1\x80\xD0\xB8",
    "\xD0\xB2\xD0\xB5\xD1\x82 ",
    "\xF0\x9F\x98\x80",
    "caf\xC3\xA9 ",
    "\xE0\xA4\xA8\xE0\xA4\xAE",
    "\xD9\x85\xD8\xB1\xD8\xAD ",
    "<b>",
    "</b>",
    "\n",
};
static const char *const RUN[] = {"x"};
static const char *const LINES[] = {"\n"};

static const struct {
    const char *name;
    const char *const *word;
    size_t n;
} TEXTS[] = {
    {"prose", PROSE, ISO_COUNT(PROSE)},
    {"code", CODE, ISO_COUNT(CODE)},
    {"mixed", MIXED, ISO_COUNT(MIXED)},
    {"one_letter", RUN, 1},
    {"newlines", LINES, 1},
};

static void must(enum iso_err err)
{
    if (err == ISO_OK) return;
    (void)fprintf(stderr, "%s\n", iso_err_detail());
    exit(1);
}

static int compare(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a;
    const int64_t y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static void report(const char *file, const char *name, size_t tokens, int64_t *ns, size_t bytes)
{
    qsort(ns, REPEATS, sizeof(*ns), compare);
    const double median = (double)ns[REPEATS / 2];
    printf("%s,%s,%zu,%.3f,%.3f,%.2f,%d,%s\n", file, name, tokens, median / 1e6,
           (double)ns[0] / 1e6, (double)bytes * 1e3 / median, REPEATS, __VERSION__);
}

static size_t fill(char *text, size_t which)
{
    size_t len = 0;
    for (;;) {
        const char *word = TEXTS[which].word[next() % TEXTS[which].n];
        if (len + strlen(word) > TEXT_BYTES) return len;
        memcpy(text + len, word, strlen(word));
        len += strlen(word);
    }
}

static void bench_file(const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *file = slash ? slash + 1 : path;
    struct iso_gguf *g = NULL;
    struct iso_tokenizer *t = NULL;
    int64_t ns[REPEATS];
    must(iso_gguf_open(&g, path));
    for (int r = -1; r < REPEATS; r++) { /* round -1 warms up */
        iso_tokenizer_free(t);
        const int64_t start = iso_clock_ns();
        must(iso_tokenizer_new(&t, g));
        if (r >= 0) ns[r] = iso_clock_ns() - start;
    }
    report(file, "load", iso_tokenizer_n_vocab(t), ns, 0);
    char *text = iso_xalloc(TEXT_BYTES, 1);
    struct iso_buf ids;
    iso_buf_init(&ids, MAX_TOKENS_BYTES);
    for (size_t i = 0; i < ISO_COUNT(TEXTS); i++) {
        const size_t len = fill(text, i);
        for (int r = -1; r < REPEATS; r++) {
            iso_buf_clear(&ids);
            const int64_t start = iso_clock_ns();
            must(iso_tokenize(&ids, t, text, len, 0));
            if (r >= 0) ns[r] = iso_clock_ns() - start;
        }
        report(file, TEXTS[i].name, ids.len / sizeof(int32_t), ns, len);
    }
    iso_buf_deinit(&ids);
    free(text);
    iso_tokenizer_free(t);
    iso_gguf_close(g);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        (void)fprintf(stderr, "usage: bench_tokenizer MODEL.gguf...\n");
        return 2;
    }
    printf("file,case,tokens,median_ms,best_ms,mb_per_s,repeats,compiler\n");
    for (int i = 1; i < argc; i++) bench_file(argv[i]);
    return 0;
}
