/* SPDX-License-Identifier: MIT
 * bench_matmul.c - speed of the matrix product: every level, type and product, one thread, as CSV.
 *
 * usage: bench_matmul [level|all [type|all [n_cols n_rows [n_act [seconds]]]]]; 0 means the default
 * Columns: product, level, type, shape, activation rows, median and best time, weight bytes and
 * 2 * multiply-adds per best time, median of the reference over this median (0: not measured).
 * Vector products walk several copies of the matrix (more than 64 MB), so that weights come from
 * memory as in a model; tiled products repeat one.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "kernels/matmul/matmul.h"
#include "kernels/shared/cpu.h"

#define COLD_BYTES ((size_t)64 << 20) /* twice the L3 of the machine that the targets name */
#define MAX_RUNS 1001

static double g_seconds = 0.25; /* per line */

static uint64_t g_state = 88172645463325252u;

static uint64_t next(void)
{
    g_state ^= g_state << 13;
    g_state ^= g_state >> 7;
    g_state ^= g_state << 17;
    return g_state;
}

struct problem {
    struct iso_matrix w;
    uint8_t *data;
    size_t n_copies;
    struct iso_codes a;
    size_t n_act;
    float *y;
    void *panel, *scratch, *codes;
};

static void *must(size_t bytes, const char *what)
{
    void *p = NULL;
    if (iso_mem_alloc(&p, bytes, 1, what) != ISO_OK) {
        fprintf(stderr, "%s\n", iso_err_detail());
        exit(1);
    }
    return p;
}

/* Random bytes whose scale fields are harmless: every byte pair has an f16 exponent below 31, and
 * as f32 or bf16 the magnitude stays below 2^64. */
static void fill(uint8_t *p, size_t n)
{
    for (size_t i = 0; i + 8 <= n; i += 8) {
        const uint64_t v = next() & 0x3f7f3f7f3f7f3f7fu;
        memcpy(p + i, &v, sizeof(v));
    }
}

static struct problem new_problem(enum iso_type type, size_t n_cols, size_t n_rows, size_t n_act,
                                  bool cold)
{
    struct problem p = {.n_act = n_act};
    const size_t row_bytes = iso_type_row_bytes(type, n_cols), bytes = n_rows * row_bytes;
    p.n_copies = cold ? COLD_BYTES / bytes + 1 : 1;
    p.data = must(p.n_copies * bytes, "weights");
    fill(p.data, p.n_copies * bytes);
    /* Ordinary magnitudes for floats: subnormal operands are slow on some machines. */
    for (size_t i = 1; type == ISO_TYPE_F32 && i < p.n_copies * bytes / 2; i += 2) {
        ((uint16_t *)p.data)[i] = (uint16_t)(0x3c00 | (next() & 0x83ff));
    }
    for (size_t i = 0; type == ISO_TYPE_BF16 && i < p.n_copies * bytes / 2; i++) {
        ((uint16_t *)p.data)[i] = (uint16_t)(0x3c00 | (next() & 0x83ff));
    }
    for (size_t i = 0; type == ISO_TYPE_NVFP4 && i < p.n_copies * bytes; i++) {
        /* Scales of a real file: within a few powers of two. */
        if (i % 36 < 4) p.data[i] = (uint8_t)(0x30 + next() % 24);
    }
    p.w = (struct iso_matrix){.type = type, .data = p.data, .n_rows = n_rows, .n_cols = n_cols,
                              .row_bytes = row_bytes, .scale = 1.0f};
    p.codes = must(iso_codes_bytes(n_act, n_cols), "codes");
    p.a = iso_codes_view(p.codes, n_act, n_cols);
    for (size_t t = 0; t < n_act; t++) {
        for (size_t i = 0; i < n_cols; i++) {
            const int16_t c = (int16_t)((int32_t)(next() >> 20 & 4095) - 2047);
            p.a.code[t * p.a.stride + i] = c;
            p.a.sum32[(t * p.a.stride + i) / ISO_CODE_SUM] += c;
        }
        for (size_t i = 0; i < p.a.stride / ISO_CODE_BLOCK; i++) {
            p.a.scale[t * p.a.stride / ISO_CODE_BLOCK + i] = 0x1p-8f;
        }
    }
    p.y = must(n_act * n_rows * sizeof(float), "outputs");
    p.panel = must(iso_gemm_panel_bytes(n_act, n_cols), "panel");
    p.scratch = must(iso_matmul_scratch_bytes(n_act, n_cols), "scratch");
    return p;
}

static void free_problem(struct problem *p)
{
    iso_mem_free(p->data);
    iso_mem_free(p->codes);
    iso_mem_free(p->y);
    iso_mem_free(p->panel);
    iso_mem_free(p->scratch);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void call_once(struct problem *p, const struct iso_matmul_kernels *k, bool tiled, size_t i)
{
    p->w.data = p->data + i % p->n_copies * p->w.n_rows * p->w.row_bytes;
    if (tiled) {
        k->pack(p->panel, &p->a, p->n_act, 0, (p->n_act + ISO_GEMM_TILE - 1) / ISO_GEMM_TILE);
        k->gemm(p->y, p->w.n_rows, p->panel, p->n_act, &p->w, 0, p->w.n_rows, p->scratch);
        return;
    }
    for (size_t t = 0; t < p->n_act; t += ISO_GEMV_MAX) {
        const struct iso_codes a = iso_codes_rows(&p->a, t);
        k->gemv(p->y + t * p->w.n_rows, p->w.n_rows, &a, ISO_MIN(p->n_act - t, ISO_GEMV_MAX), &p->w,
                0, p->w.n_rows, p->scratch);
    }
}

/* Median and best seconds of a call; about limit seconds in all. */
static double measure(double *best, struct problem *p, const struct iso_matmul_kernels *k,
                      bool tiled, double limit)
{
    double t[MAX_RUNS];
    size_t n = 0;
    call_once(p, k, tiled, 0);
    const int64_t begin = iso_clock_ns();
    do {
        const int64_t start = iso_clock_ns();
        call_once(p, k, tiled, n + 1);
        t[n++] = (double)(iso_clock_ns() - start) * 1e-9;
    } while (n < MAX_RUNS && ((double)(iso_clock_ns() - begin) * 1e-9 < limit || n < 3));
    qsort(t, n, sizeof(*t), by_value);
    *best = t[0];
    return t[n / 2];
}

static void line(const char *level, const struct iso_matmul_kernels *k, enum iso_type type,
                 size_t n_cols, size_t n_rows, size_t n_act, bool tiled)
{
    struct problem p = new_problem(type, n_cols, n_rows, n_act, !tiled);
    double best, ref_best;
    const double t = measure(&best, &p, k, tiled, g_seconds);
    const double bytes = (double)n_rows * (double)p.w.row_bytes;
    const double flop = 2.0 * (double)n_rows * (double)n_cols * (double)n_act;
    double ratio = 0.0;
    if (strcmp(level, "ref") != 0 && n_act <= 8) {
        const struct iso_matmul_kernels *ref = iso_matmul_select(ISO_CPU_REF);
        p.n_copies = 1;
        ratio = measure(&ref_best, &p, ref, tiled, 0.02) / t;
    }
    printf("%s,%s,%s,%zux%zu,%zu,%.2f,%.2f,%.2f,%.1f,%.1f\n", tiled ? "gemm" : "gemv", level,
           iso_type_info(type)->name, n_rows, n_cols, n_act, t * 1e6, best * 1e6,
           bytes / best * 1e-9, flop / best * 1e-9, ratio);
    fflush(stdout);
    free_problem(&p);
}

int main(int argc, char **argv)
{
    const char *want_level = argc > 1 ? argv[1] : "all", *want_type = argc > 2 ? argv[2] : "all";
    const size_t n_cols = argc > 3 ? strtoull(argv[3], NULL, 0) : 0;
    const size_t rows = argc > 4 ? strtoull(argv[4], NULL, 0) : 0, n_rows = rows ? rows : 1536;
    const size_t n_act = argc > 5 ? strtoull(argv[5], NULL, 0) : 0;
    if (argc > 6) g_seconds = strtod(argv[6], NULL);
    printf("product,level,type,rows x columns,activation rows,median us,best us,GB/s,GFLOP/s,"
           "ratio to ref\n");
    const char *level;
    for (size_t i = 0; (level = iso_cpu_level_at(i)); i++) {
        unsigned flags;
        if (strcmp(want_level, "all") != 0 && strcmp(want_level, level) != 0) continue;
        if (iso_cpu_level(&flags, level) != ISO_OK) return 1;
        const struct iso_matmul_kernels *k = iso_matmul_select(flags);
        for (unsigned t = 0; t < ISO_TYPE_COUNT; t++) {
            const enum iso_type type = (enum iso_type)t;
            const struct iso_type_info *info = iso_type_info(type);
            if (strcmp(want_type, "all") != 0 && strcmp(want_type, info->name) != 0) continue;
            const size_t cols = n_cols ? n_cols : info->block_values == 32 ? 576 : 1024;
            if (n_act) {
                if (n_act <= ISO_GEMV_MAX) line(level, k, type, cols, n_rows, n_act, false);
                line(level, k, type, cols, n_rows, n_act, true);
                continue;
            }
            line(level, k, type, cols, n_rows, 1, false);
            line(level, k, type, cols, n_rows, 4, false);
            line(level, k, type, cols, n_rows, strcmp(level, "ref") ? 512 : 16, true);
        }
    }
    return 0;
}
