/* SPDX-License-Identifier: MIT
 * bench_heads.c - speed of what happens to q, k and v before attention: every level, as CSV.
 *
 * usage: bench_heads [level|all]
 * Columns: level, head size, treatment, then nanoseconds per head vector (median of RUNS) for q, k
 * and v, and the reference's q, k and v over them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arith/page.h"
#include "base/clock.h"
#include "base/mem.h"
#include "kernels/heads/heads.h"
#include "kernels/shared/cpu.h"

#define RUNS 31
#define CALLS 640 /* per run: ten times around a page */

struct problem {
    struct iso_heads_args args;
    float x[ISO_HEAD_MAX], cos_sin[ISO_HEAD_MAX], norm[ISO_HEAD_MAX];
    int16_t code[ISO_HEAD_MAX];
    float scale;
    uint8_t page[160 * ISO_HEAD_MAX + 512];
};

static struct problem g_problem;

static void call(const struct iso_heads_kernels *k, struct problem *p, int what, uint32_t i)
{
    const uint32_t slot = i % ISO_PAGE_POSITIONS;
    if (what == 0) (void)k->q(p->code, &p->scale, NULL, p->x, p->cos_sin, &p->args);
    if (what == 1) (void)k->k(p->page, slot, NULL, p->x, p->cos_sin, &p->args);
    if (what == 2) (void)k->v(p->page, slot, p->x, p->args.d);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median nanoseconds of one call. */
static double measure(const struct iso_heads_kernels *k, struct problem *p, int what)
{
    double t[RUNS];
    for (int r = -1; r < RUNS; r++) { /* run -1 warms up */
        const int64_t start = iso_clock_ns();
        for (uint32_t i = 0; i < CALLS; i++) call(k, p, what, i);
        if (r >= 0) t[r] = (double)(iso_clock_ns() - start) / CALLS;
    }
    qsort(t, RUNS, sizeof(*t), by_value);
    return t[RUNS / 2];
}

static void
line(const char *level, const struct iso_heads_kernels *k, struct problem *p, const char *treatment)
{
    const struct iso_heads_kernels *ref = iso_heads_select(ISO_CPU_REF);
    double t[3], r[3];
    for (int what = 0; what < 3; what++) {
        t[what] = measure(k, p, what);
        r[what] = measure(ref, p, what) / t[what];
    }
    printf("%s,%u,%s,%.1f,%.1f,%.1f,%.1f,%.1f,%.1f\n", level, p->args.d, treatment, t[0], t[1],
           t[2], r[0], r[1], r[2]);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const uint32_t sizes[] = {64, 80, 128, 256};
    const char *want = argc > 1 ? argv[1] : "all", *level;
    struct problem *p = &g_problem;
    for (uint32_t i = 0; i < ISO_HEAD_MAX; i++) {
        p->x[i] = (float)((i * 7919 + 13) % 2001) * 1e-3f - 1.0f;
        p->norm[i] = (float)((i * 104729 + 7) % 1999) * 1e-3f;
        p->cos_sin[i] = (float)((i * 1299709 + 5) % 2003) * 1e-3f - 1.0f;
    }
    printf("level,d,treatment,q ns,k ns,v ns,q ratio,k ratio,v ratio\n");
    for (size_t l = 0; (level = iso_cpu_level_at(l)); l++) {
        unsigned flags;
        if (strcmp(want, "all") != 0 && strcmp(want, level) != 0) continue;
        if (iso_cpu_level(&flags, level) != ISO_OK) return 1;
        const struct iso_heads_kernels *k = iso_heads_select(flags);
        for (size_t i = 0; i < ISO_COUNT(sizes); i++) {
            const uint32_t d = sizes[i];
            p->args = (struct iso_heads_args){.d = d,
                                              .n_rot = d,
                                              .pairs = ISO_ROPE_INTERLEAVED,
                                              .eps = 1e-6f,
                                              .inv_n = 1.0f / (float)d};
            line(level, k, p, "interleaved");
            p->args.pairs = ISO_ROPE_HALVES;
            p->args.norm = p->norm;
            line(level, k, p, "norm and halves");
        }
    }
    return 0;
}
