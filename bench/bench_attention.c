/* SPDX-License-Identifier: MIT
 * bench_attention.c - speed of attention on pages: every level, one thread, as CSV.
 *
 * usage: bench_attention [level|all [d n_q keys]]
 * Columns: level, head size, query rows per call, keys they all see, median and best time of a pass
 * over the keys, time per query row and key, page bytes per time, best time of the reference over
 * this one's. "decode" lines (few rows) walk more than 64 MB of pages, so that pages come from
 * memory; "prefill" lines repeat a few pages that stay in the cache.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arith/page.h"
#include "base/clock.h"
#include "base/mem.h"
#include "kernels/attention/attention.h"
#include "kernels/shared/cpu.h"

#define COLD_BYTES ((size_t)64 << 20) /* twice the L3 of the machine that the targets name */
#define MAX_RUNS 51
#define SEGMENT_KEYS ((uint32_t)ISO_SEGMENT_PAGES * ISO_PAGE_POSITIONS)

static uint64_t g_state = 88172645463325252u;

static uint64_t next(void)
{
    g_state ^= g_state << 13;
    g_state ^= g_state >> 7;
    g_state ^= g_state << 17;
    return g_state;
}

struct problem {
    struct iso_attention_args a;
    uint32_t keys;
    uint8_t *data;
    const uint8_t **pages;
    int16_t *q;
    float *q_scale;
    uint32_t *range; /* first [n_q], last [n_q] */
    struct iso_attention_state *states;
    float *o;
    void *scratch;
};

static void *must(size_t n, size_t size, const char *what)
{
    void *p = NULL;
    if (iso_mem_alloc(&p, n, size, what) != ISO_OK) {
        fprintf(stderr, "%s\n", iso_err_detail());
        exit(1);
    }
    return p;
}

static void fill_pages(struct problem *p, uint32_t d)
{
    const size_t n_pages = p->keys / ISO_PAGE_POSITIONS, bytes = iso_page_bytes(d);
    p->data = must(n_pages, bytes, "pages");
    p->pages = must(n_pages, sizeof(*p->pages), "page list");
    for (size_t i = 0; i < n_pages; i++) {
        uint8_t *page = p->data + i * bytes;
        p->pages[i] = page;
        for (size_t k = 0; k < iso_page_k_scale(d); k++) page[k] = (uint8_t)(next() >> 24);
        float scales[2 * ISO_PAGE_POSITIONS];
        for (size_t k = 0; k < ISO_COUNT(scales); k++)
            scales[k] = (float)(next() % 1000 + 1) * 1e-6f;
        memcpy(page + iso_page_k_scale(d), scales, sizeof(scales));
    }
}

static struct problem new_problem(uint32_t d, size_t n_q, uint32_t keys)
{
    struct problem p = {.keys = keys};
    fill_pages(&p, d);
    p.q = must(n_q * d, sizeof(*p.q), "queries");
    p.q_scale = must(n_q, sizeof(*p.q_scale), "query scales");
    p.range = must(2 * n_q, sizeof(*p.range), "ranges");
    p.states = must(n_q, sizeof(*p.states), "states");
    p.o = must(n_q * d, sizeof(*p.o), "state sums");
    p.scratch = must(iso_attention_scratch_bytes(n_q, d), 1, "scratch");
    for (size_t i = 0; i < n_q * d; i++) p.q[i] = (int16_t)((int32_t)(next() >> 20 & 4095) - 2047);
    for (size_t i = 0; i < n_q; i++) {
        p.q_scale[i] = 1e-4f;
        p.range[n_q + i] = keys - 1;
        p.states[i].o = p.o + i * d;
    }
    p.a = (struct iso_attention_args){.q = p.q,
                                      .q_scale = p.q_scale,
                                      .first = p.range,
                                      .last = p.range + n_q,
                                      .n_q = n_q,
                                      .d = d,
                                      .pages = p.pages,
                                      .c = 0.01f};
    return p;
}

static void free_problem(struct problem *p)
{
    iso_mem_free(p->data);
    iso_mem_free(p->pages);
    iso_mem_free(p->q);
    iso_mem_free(p->q_scale);
    iso_mem_free(p->range);
    iso_mem_free(p->states);
    iso_mem_free(p->o);
    iso_mem_free(p->scratch);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median and best seconds of a pass over the first keys keys; about limit seconds in all. */
static double measure(double *best,
                      struct problem *p,
                      const struct iso_attention_kernels *k,
                      uint32_t keys,
                      double limit)
{
    double t[MAX_RUNS];
    size_t n = 0;
    k->segment(p->states, &p->a, 0, p->scratch);
    const int64_t begin = iso_clock_ns();
    do {
        const int64_t start = iso_clock_ns();
        for (uint32_t seg = 0; seg < keys / SEGMENT_KEYS; seg++) {
            k->segment(p->states, &p->a, seg, p->scratch);
        }
        t[n++] = (double)(iso_clock_ns() - start) * 1e-9;
    } while (n < MAX_RUNS && ((double)(iso_clock_ns() - begin) * 1e-9 < limit || n < 3));
    qsort(t, n, sizeof(*t), by_value);
    *best = t[0];
    return t[n / 2];
}

static void line(
    const char *level, const struct iso_attention_kernels *k, uint32_t d, size_t n_q, uint32_t keys)
{
    const bool is_ref = strcmp(level, "ref") == 0;
    /* The reference is slow: one segment of it tells its time per key. */
    const uint32_t own_keys = is_ref ? SEGMENT_KEYS : keys;
    struct problem p = new_problem(d, n_q, own_keys);
    double best, ref_best;
    const double t = measure(&best, &p, k, own_keys, 0.2);
    (void)measure(&ref_best, &p, iso_attention_select(ISO_CPU_REF), SEGMENT_KEYS, 0.01);
    const double pairs = (double)n_q * own_keys;
    const double bytes = (double)own_keys * iso_page_bytes(d) / ISO_PAGE_POSITIONS;
    printf("%s,%u,%zu,%u,%.1f,%.1f,%.3f,%.2f,%.1f\n", level, d, n_q, own_keys, t * 1e6, best * 1e6,
           t * 1e9 / pairs, bytes / t * 1e-9, ref_best / SEGMENT_KEYS / (best / own_keys));
    fflush(stdout);
    free_problem(&p);
}

static uint32_t cold_keys(uint32_t d)
{
    const size_t segment_bytes = (size_t)ISO_SEGMENT_PAGES * iso_page_bytes(d);
    return (uint32_t)(COLD_BYTES / segment_bytes + 1) * SEGMENT_KEYS;
}

int main(int argc, char **argv)
{
    /* Heads that share a KV head, as models have them; prefill calls have 16 positions. */
    static const uint32_t shapes[][2] = {{64, 1}, {64, 3}, {80, 4}, {128, 4}, {128, 16}, {256, 4}};
    const char *want = argc > 1 ? argv[1] : "all", *level;
    if (argc > 2 && argc < 5) {
        fprintf(stderr, "usage: bench_attention [level|all [d n_q keys]]\n");
        return 2;
    }
    printf("level,d,query rows,keys,median us,best us,ns per query and key,GB/s of pages,"
           "ratio to ref\n");
    for (size_t i = 0; (level = iso_cpu_level_at(i)); i++) {
        unsigned flags;
        if (strcmp(want, "all") != 0 && strcmp(want, level) != 0) continue;
        if (iso_cpu_level(&flags, level) != ISO_OK) return 1;
        const struct iso_attention_kernels *k = iso_attention_select(flags);
        if (argc > 4) {
            const uint32_t segs = (uint32_t)strtoul(argv[4], NULL, 0) / SEGMENT_KEYS;
            line(level, k, (uint32_t)strtoul(argv[2], NULL, 0), strtoull(argv[3], NULL, 0),
                 ISO_MAX(segs, 1u) * SEGMENT_KEYS);
            continue;
        }
        for (size_t s = 0; s < ISO_COUNT(shapes); s++) {
            line(level, k, shapes[s][0], shapes[s][1], cold_keys(shapes[s][0]));
            line(level, k, shapes[s][0], (size_t)shapes[s][1] * 16, SEGMENT_KEYS);
        }
    }
    return 0;
}
