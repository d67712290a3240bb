/* SPDX-License-Identifier: MIT
 * gpu_context.c - 64 positions behind a context of any length, computed by a GPU and by the CPU, compared.
 *
 * usage: gpu_context DEVICE LEVEL MODEL SEED CONTEXT...     the last line is "N passed, N failed"
 * A prefill of 33,000 positions by the CPU would take many minutes at full width. Attention does not ask where pages
 * come from, so the context is made of random pages that exact-1 could have written: the same bytes go into
 * both engines through the staging set of a hand-off. Then 33 rows as a prompt, 16 decode steps and 15 rows
 * more are computed by both; every logit and every byte of the pages that they wrote must be equal. Last, one
 * changed code in the GPU's context must be seen. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arith/page.h"
#include "base/clock.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "isobit_kv.h"

enum { ROWS = 64, P = ISO_PAGE_POSITIONS };

struct side {
    iso_engine *e;
    iso_session *s;
};

struct run {
    struct side side[2]; /* the CPU, the other device */
    uint64_t seed;
    int32_t *ids; /* [longest context + ROWS] */
    unsigned n_passed, n_failed;
};

static void must(enum iso_err err)
{
    if (err == ISO_OK) return;
    printf("FAIL %s\n", iso_err_detail());
    exit(1);
}

static uint64_t mix(uint64_t x) /* splitmix64 */
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static double seconds_since(int64_t start)
{
    return (double)(iso_clock_ns() - start) / (double)ISO_NS_PER_S;
}

/* --- pages ---------------------------------------------------------------------------------------------- */

static void random_bytes(uint8_t *p, size_t n, uint64_t s)
{
    for (size_t i = 0; i + 8 <= n; i += 8) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        memcpy(p + i, &s, 8);
    }
}

/* n scales from 2^e on, over four powers of two. */
static void make_scales(uint8_t *at, uint32_t n, int e, uint64_t s)
{
    for (uint32_t t = 0; t < n; t++) {
        s = mix(s);
        const uint32_t bits = (uint32_t)(127 + e + (int)(s % 4)) << 23 | (uint32_t)(s >> 32 & 0x7fffff);
        memcpy(at + 4 * t, &bits, 4);
    }
}

/* A page that could have been written: n_used positions, the others zero. */
static void make_page(uint8_t *page, uint32_t d, uint32_t n_used, uint64_t s)
{
    uint8_t *hi = page, *lo = page + iso_page_k_lo(d), *v = page + iso_page_v(d);
    random_bytes(page, iso_page_k_scale(d), mix(s) | 1);
    for (size_t i = 0; i < (size_t)P * d; i++) {
        if (hi[i] == 0x80) hi[i] = 0x81; /* codes stay above -2048 and -128 */
        if (v[i] == 0x80) v[i] = 0x81;
    }
    memset(page + iso_page_k_scale(d), 0, (size_t)8 * P);
    make_scales(page + iso_page_k_scale(d), n_used, -12, s ^ 1);
    make_scales(page + iso_page_v_scale(d), n_used, -8, s ^ 2);
    memset(hi + (size_t)n_used * d, 0, (size_t)(P - n_used) * d);
    memset(lo + (size_t)n_used * (d / 2), 0, (size_t)(P - n_used) * (d / 2));
    for (uint32_t i = 0; i < d; i++) memset(v + (size_t)i * P + n_used, 0, P - n_used);
    const char *reason = NULL;
    if (iso_kv_page_form(&reason, page, d, n_used)) return;
    printf("FAIL made page: %s\n", reason);
    exit(1);
}

/* The session becomes n positions of made pages. changed: one v code of the last position is another one. */
static void install(struct run *r, struct side *x, uint32_t n, bool changed)
{
    const struct iso_kv_layout *y = iso_engine_kv_layout(x->e);
    uint32_t first[ISO_KV_CLASSES];
    (void)iso_session_rewind(x->s, 0);
    if (n == 0) return;
    for (uint32_t c = 0; c < ISO_KV_CLASSES; c++) first[c] = iso_engine_first_visible(x->e, c, n) / P;
    iso_kv_staging *st = NULL;
    must(iso_kv_stage(&st, x->s, n, first));
    for (uint32_t l = 0; l < y->n_layers; l++) {
        for (uint32_t h = 0; h < y->n_kv_heads; h++) {
            for (uint32_t p = first[y->layer_class[l]]; p <= (n - 1) / P; p++) {
                uint8_t *page = iso_kv_staging_page(st, l, h, p);
                const uint64_t key = (uint64_t)l << 48 | (uint64_t)h << 32 | p;
                make_page(page, y->head_dim, ISO_MIN(n - p * P, (uint32_t)P), mix(r->seed ^ mix(key)));
                if (changed && l == 0 && h == 0 && p == (n - 1) / P) page[iso_page_v(y->head_dim) + (n - 1) % P] ^= 0x40;
            }
        }
    }
    iso_kv_publish(st, r->ids);
}

/* --- the step --------------------------------------------------------------------------------------------- */

static void step(struct run *r, struct side *x, size_t n)
{
    struct iso_row rows[ROWS];
    const uint32_t at = iso_session_position(x->s);
    for (size_t i = 0; i < n; i++) rows[i] = (struct iso_row){x->s, r->ids[at + i], ISO_OUTPUT_LOGITS};
    must(iso_step(x->e, rows, n, NULL));
}

static size_t unequal_rows(const struct run *r, size_t n)
{
    const size_t len = iso_engine_info(r->side[0].e)->n_vocab * sizeof(float);
    size_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        bad += memcmp(iso_step_logits(r->side[0].e, i), iso_step_logits(r->side[1].e, i), len) != 0;
    }
    return bad;
}

/* Pages that hold positions from n on. */
static size_t unequal_pages(const struct run *r, uint32_t n)
{
    const struct iso_kv_layout *y = iso_engine_kv_layout(r->side[0].e);
    size_t bad = 0;
    for (uint32_t l = 0; l < y->n_layers; l++) {
        for (uint32_t h = 0; h < y->n_kv_heads; h++) {
            for (uint32_t p = n / P; p <= (n + ROWS - 1) / P; p++) {
                const uint8_t *a = iso_session_page(r->side[0].s, l, h, p), *b = iso_session_page(r->side[1].s, l, h, p);
                bad += a == NULL || b == NULL || memcmp(a, b, y->page_bytes) != 0;
            }
        }
    }
    return bad;
}

/* 64 positions behind n; times per side. Returns the rows whose logits differ. */
static size_t compare(struct run *r, uint32_t n, bool changed, double took[2])
{
    size_t bad = 0, done = 0;
    for (int i = 0; i < 2; i++) install(r, &r->side[i], n, changed && i == 1);
    took[0] = took[1] = 0;
    for (size_t k = 0; done < ROWS; k++) {
        const size_t rows = k == 0 ? 33 : k <= 16 ? 1 : 15;
        for (int i = 0; i < 2; i++) {
            const int64_t start = iso_clock_ns();
            step(r, &r->side[i], rows);
            took[i] += seconds_since(start);
        }
        bad += unequal_rows(r, rows);
        done += rows;
    }
    return bad;
}

static void result(struct run *r, bool good, const char *text)
{
    good ? r->n_passed++ : r->n_failed++;
    printf("%s %s\n", good ? "ok  " : "FAIL", text);
    (void)fflush(stdout);
}

static void test_context(struct run *r, uint32_t n)
{
    char text[256];
    double took[2];
    const int64_t start = iso_clock_ns();
    const size_t bad = compare(r, n, false, took), pages = unequal_pages(r, n);
    (void)snprintf(text, sizeof(text), "context %u: 64 positions, %zu rows and %zu pages differ (%.1f s; cpu %.2f s, %s %.3f s)",
                   n, bad, pages, seconds_since(start), took[0], iso_engine_info(r->side[1].e)->device, took[1]);
    result(r, bad == 0 && pages == 0, text);
}

static struct side open_side(const char *device, const char *level, const char *model, uint32_t longest)
{
    struct side x;
    must(iso_engine_open(&x.e, &(struct iso_engine_options){
        .model_path = model, .device = device, .isa = level, .n_ctx = longest + ROWS + 1, .n_batch = ROWS,
        .n_outputs = ROWS, .staging = true, .no_tokenizer = true}));
    must(iso_session_new(&x.s, x.e, 0));
    return x;
}

int main(int argc, char **argv)
{
    struct run r = {0};
    uint32_t longest = 0, changed = 0;
    if (argc < 6) {
        printf("usage: gpu_context DEVICE LEVEL MODEL SEED CONTEXT...\n");
        return 2;
    }
    r.seed = strtoull(argv[4], NULL, 10);
    for (int a = 5; a < argc; a++) {
        const uint32_t n = (uint32_t)strtoul(argv[a], NULL, 10);
        longest = ISO_MAX(longest, n);
        if (n > 0 && (changed == 0 || n < changed)) changed = n;
    }
    const int64_t start = iso_clock_ns();
    r.side[0] = open_side("cpu", "auto", argv[3], longest);
    r.side[1] = open_side(argv[1], argv[2], argv[3], longest);
    const struct iso_engine_info *i = iso_engine_info(r.side[1].e);
    r.ids = malloc((longest + ROWS) * sizeof(*r.ids));
    for (uint32_t k = 0; k < longest + ROWS; k++) r.ids[k] = (int32_t)(mix(r.seed + k) % i->n_vocab);
    printf("%s, %u layers, %s %s against cpu %s, seed %llu (opened in %.1f s)\n", i->name, i->n_layers, i->device, i->isa,
           iso_engine_info(r.side[0].e)->isa, (unsigned long long)r.seed, seconds_since(start));
    for (int a = 5; a < argc; a++) test_context(&r, (uint32_t)strtoul(argv[a], NULL, 10));
    if (changed > 0) {
        double took[2];
        char text[96];
        (void)snprintf(text, sizeof(text), "one changed code in a context of %u is seen", changed);
        result(&r, compare(&r, changed, true, took) > 0, text);
    }
    for (int k = 0; k < 2; k++) {
        iso_session_free(r.side[k].s);
        iso_engine_close(r.side[k].e);
    }
    free(r.ids);
    printf("%u passed, %u failed\n", r.n_passed, r.n_failed);
    return r.n_failed != 0;
}
