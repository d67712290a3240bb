/* SPDX-License-Identifier: MIT
 * gpu_steps.c - one prompt in every way of cutting it into steps, against the golden digests.
 *
 * usage: gpu_steps DEVICE LEVEL MODEL IDS EXPECT N PART...     the last line is "N passed, N failed"
 *   chunks    steps of 1, 64, 512 and all positions
 *   batches   1 to 16 sessions in the same steps, each at another place of the prompt
 *   rewind    at each position: back to it, then one decode step behind pages of a prefill
 *   fresh     at each position: prefill of everything before it from nothing, then one decode step
 * N: positions used, 0 for all. Nothing here is special to a GPU: DEVICE may be cpu. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "isobit.h"
#include "isobit_kv.h"

enum { MAX_SESSIONS = 16, MAX_ROWS = 1024 };

struct run {
    iso_engine *e;
    iso_session *s[MAX_SESSIONS];
    int32_t *ids;
    char (*want)[ISO_DIGEST_HEX]; /* of the logits of each position */
    char kv_chain[ISO_DIGEST_HEX]; /* "" unless all positions are used */
    float *logits;                /* [n][n_vocab], proved by the first part that runs; NULL before */
    size_t n, n_vocab;
    unsigned n_passed, n_failed;
};

static void must(enum iso_err err)
{
    if (err == ISO_OK) return;
    printf("FAIL %s\n", iso_err_detail());
    exit(1);
}

static void result(struct run *r, const char *name, size_t bad, size_t first)
{
    if (bad == 0) {
        r->n_passed++;
        printf("ok   %s\n", name);
    } else {
        r->n_failed++;
        printf("FAIL %s: %zu of %zu positions differ, first %zu\n", name, bad, r->n, first);
    }
    (void)fflush(stdout);
}

/* --- input ---------------------------------------------------------------------------------------------- */

static void read_ids(struct run *r, const char *path)
{
    FILE *f = fopen(path, "r");
    size_t cap = 64;
    r->ids = malloc(cap * sizeof(*r->ids));
    while (f && fscanf(f, "%d", &r->ids[r->n]) == 1) {
        if (++r->n < cap) continue;
        cap *= 2;
        r->ids = realloc(r->ids, cap * sizeof(*r->ids));
    }
    if (f) (void)fclose(f);
    if (r->n == 0) {
        printf("FAIL %s holds no ids\n", path);
        exit(1);
    }
}

/* Lines "position id best logit digest", then "kv-chain digest". */
static void read_expect(struct run *r, const char *path, size_t limit)
{
    char line[512], digest[ISO_DIGEST_HEX];
    size_t lines = 0;
    FILE *f = fopen(path, "r");
    r->want = calloc(r->n, sizeof(*r->want));
    while (f && fgets(line, sizeof(line), f)) {
        size_t position = 0;
        if (sscanf(line, "kv-chain %64s", digest) == 1) memcpy(r->kv_chain, digest, sizeof(digest));
        if (sscanf(line, "%zu %*s %*s %*s %64s", &position, digest) != 2 || position != lines) continue;
        if (lines < r->n) memcpy(r->want[lines], digest, sizeof(digest));
        lines++;
    }
    if (f) (void)fclose(f);
    const size_t use = limit ? ISO_MIN(limit, ISO_MIN(lines, r->n)) : ISO_MIN(lines, r->n);
    if (use < lines) r->kv_chain[0] = '\0';
    r->n = use;
    if (use < 2) {
        printf("FAIL %s: %zu positions\n", path, use);
        exit(1);
    }
}

/* --- comparing -------------------------------------------------------------------------------------------- */

static bool equal(const struct run *r, const float *l, size_t position)
{
    struct iso_digest d;
    char hex[ISO_DIGEST_HEX];
    if (l == NULL) return false;
    if (r->logits) return memcmp(l, r->logits + position * r->n_vocab, r->n_vocab * sizeof(*l)) == 0;
    iso_logits_digest(&d, l, r->n_vocab);
    iso_digest_hex(hex, &d);
    return strcmp(hex, r->want[position]) == 0;
}

struct tally {
    size_t bad, first;
};

static void count(struct tally *t, bool good, size_t position)
{
    if (good) return;
    if (t->bad++ == 0) t->first = position;
}

/* --- parts -------------------------------------------------------------------------------------------------- */

/* The whole prompt in chunks; keeps the logits when keep is given. */
static void run_chunk(struct run *r, size_t chunk, float *keep)
{
    struct iso_row *rows = calloc(chunk, sizeof(*rows));
    struct tally t = {0};
    char name[64];
    (void)iso_session_rewind(r->s[0], 0);
    for (size_t at = 0; at < r->n; at += chunk) {
        const size_t n = ISO_MIN(chunk, r->n - at);
        for (size_t i = 0; i < n; i++) rows[i] = (struct iso_row){r->s[0], r->ids[at + i], ISO_OUTPUT_LOGITS};
        must(iso_step(r->e, rows, n, NULL));
        for (size_t i = 0; i < n; i++) {
            const float *l = iso_step_logits(r->e, i);
            count(&t, equal(r, l, at + i), at + i);
            if (keep) memcpy(keep + (at + i) * r->n_vocab, l, r->n_vocab * sizeof(*l));
        }
    }
    (void)snprintf(name, sizeof(name), "%zu positions in chunks of %zu", r->n, chunk);
    result(r, name, t.bad, t.first);
    free(rows);
    if (r->kv_chain[0] == '\0') return;
    struct iso_digest d;
    char hex[ISO_DIGEST_HEX];
    iso_session_kv_chain(&d, r->s[0]);
    iso_digest_hex(hex, &d);
    (void)snprintf(name, sizeof(name), "pages behind chunks of %zu", chunk);
    result(r, name, strcmp(hex, r->kv_chain) != 0, 0);
}

static void test_chunks(struct run *r)
{
    const size_t chunks[] = {1, 64, 512};
    for (size_t i = 0; i < ISO_COUNT(chunks); i++) {
        if (chunks[i] < r->n) run_chunk(r, chunks[i], NULL);
    }
    if (r->n <= MAX_ROWS) run_chunk(r, r->n, NULL);
}

/* From the first digests that were right on, rows are compared with rows. */
static void keep_logits(struct run *r)
{
    float *all = malloc(r->n * r->n_vocab * sizeof(*all));
    const unsigned failed = r->n_failed;
    run_chunk(r, ISO_MIN(r->n, (size_t)100), all);
    if (r->n_failed == failed) r->logits = all;
    else free(all);
}

/* b sessions; in each step each appends 1 to 9 positions, so that prompts and decode rows mix. */
static void run_batch(struct run *r, size_t b)
{
    struct iso_row rows[MAX_SESSIONS * 9];
    size_t at[MAX_SESSIONS] = {0}, position[MAX_SESSIONS * 9];
    struct tally t = {0};
    char name[64];
    for (size_t k = 0; k < b; k++) (void)iso_session_rewind(r->s[k], 0);
    for (size_t step = 0;; step++) {
        size_t n = 0;
        for (size_t k = 0; k < b; k++) {
            const size_t want = step % 3 == 2 ? 1 : 1 + (step * 5 + k * 2) % 9;
            for (size_t i = 0; i < want && at[k] < r->n; i++) {
                position[n] = at[k];
                rows[n++] = (struct iso_row){r->s[k], r->ids[at[k]++], ISO_OUTPUT_LOGITS};
            }
        }
        if (n == 0) break;
        must(iso_step(r->e, rows, n, NULL));
        for (size_t i = 0; i < n; i++) count(&t, equal(r, iso_step_logits(r->e, i), position[i]), position[i]);
    }
    (void)snprintf(name, sizeof(name), "batch of %zu", b);
    result(r, name, t.bad, t.first);
}

static void test_batches(struct run *r)
{
    for (size_t b = 1; b <= MAX_SESSIONS; b++) run_batch(r, b);
}

static void test_rewind(struct run *r)
{
    struct tally t = {0};
    (void)iso_session_rewind(r->s[0], 0);
    must(iso_session_prefill(r->s[0], r->ids, r->n, NULL));
    for (size_t p = r->n - 1; p >= 1; p--) {
        const bool there = iso_session_rewind(r->s[0], (uint32_t)p) == p;
        if (there) must(iso_session_decode(r->s[0], r->ids[p]));
        count(&t, there && equal(r, iso_session_logits(r->s[0]), p), p);
    }
    result(r, "decode at each position, back to it behind a prefill of all", t.bad, t.first);
}

static void test_fresh(struct run *r)
{
    struct tally t = {0};
    for (size_t p = 1; p < r->n; p++) {
        (void)iso_session_rewind(r->s[0], 0);
        must(iso_session_prefill(r->s[0], r->ids, p, NULL));
        const bool last = equal(r, iso_session_logits(r->s[0]), p - 1);
        must(iso_session_decode(r->s[0], r->ids[p]));
        count(&t, last && equal(r, iso_session_logits(r->s[0]), p), p);
    }
    result(r, "decode at each position behind a prefill of exactly those before it", t.bad, t.first);
}

int main(int argc, char **argv)
{
    static const struct { const char *name; void (*run)(struct run *); } parts[] = {
        {"chunks", test_chunks}, {"batches", test_batches}, {"rewind", test_rewind}, {"fresh", test_fresh}};
    struct run r = {0};
    if (argc < 8) {
        printf("usage: gpu_steps DEVICE LEVEL MODEL IDS EXPECT N {chunks|batches|rewind|fresh}...\n");
        return 2;
    }
    read_ids(&r, argv[4]);
    read_expect(&r, argv[5], strtoul(argv[6], NULL, 10));
    const struct iso_engine_options o = {.model_path = argv[3], .device = argv[1], .isa = argv[2],
                                         .n_ctx = (uint32_t)r.n, .n_sessions = MAX_SESSIONS, .n_batch = MAX_ROWS,
                                         .n_outputs = MAX_ROWS, .keep_expired = true, .no_tokenizer = true};
    must(iso_engine_open(&r.e, &o));
    r.n_vocab = iso_engine_info(r.e)->n_vocab;
    printf("%s %s, %zu positions\n", iso_engine_info(r.e)->device, iso_engine_info(r.e)->isa, r.n);
    for (size_t k = 0; k < MAX_SESSIONS; k++) must(iso_session_new(&r.s[k], r.e, 0));
    keep_logits(&r);
    for (int a = 7; a < argc; a++) {
        size_t i = 0;
        while (i < ISO_COUNT(parts) && strcmp(parts[i].name, argv[a]) != 0) i++;
        if (i < ISO_COUNT(parts)) parts[i].run(&r);
        else result(&r, argv[a], 1, 0);
    }
    for (size_t k = 0; k < MAX_SESSIONS; k++) iso_session_free(r.s[k]);
    iso_engine_close(r.e);
    free(r.logits);
    free(r.want);
    free(r.ids);
    printf("%u passed, %u failed\n", r.n_passed, r.n_failed);
    return r.n_failed != 0;
}
