/* SPDX-License-Identifier: MIT
 * gpu_kernels.c - time of single operations of the CUDA device on shapes of an 8B and a 30B model.
 *
 * usage: gpu_kernels [isa] [what]     what: letters of gemv, Gemm, attention, light (default: all)
 * Each line: microseconds per operation (median of 5 of 20 in a row) and GB/s of weights or pages, or TOPS
 * of 2*M*N*K. Weights rotate among copies that exceed the second-level cache. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arith/page.h"
#include "base/clock.h"
#include "base/mem.h"
#include "device/device.h"
#include "format/types.h"
#include "kernels/heads/heads.h"
#include "kernels/quantize/quantize.h"

#define REPEATS 20
#define COPIES_BYTES ((size_t)600 << 20)

static struct iso_device *g_dev;
static const struct iso_device_vt *g_vt;

static void must(enum iso_err err)
{
    if (err == ISO_OK) return;
    printf("%s\n", iso_err_detail());
    exit(1);
}

static struct iso_span buffer(size_t len, enum iso_mem kind)
{
    struct iso_span s = {0};
    must(g_vt->alloc(g_dev, len, kind, "bench", &s.buffer));
    return s;
}

static uint64_t g_seed = 88172645463325252ULL;
static uint64_t next(void)
{
    g_seed ^= g_seed << 13;
    g_seed ^= g_seed >> 7;
    g_seed ^= g_seed << 17;
    return g_seed;
}

static struct iso_span floats(size_t n)
{
    struct iso_span s = buffer(n * 4, ISO_MEM_DEVICE);
    float *x = malloc(n * 4);
    for (size_t i = 0; i < n; i++) x[i] = (float)((int32_t)(next() % 2001) - 1000) * 1e-3f;
    must(g_vt->upload(g_dev, s, x, n * 4));
    free(x);
    return s;
}

static struct iso_weight weight(enum iso_type t, uint32_t n_rows, uint32_t n_cols)
{
    static uint8_t *bytes;
    static size_t have;
    const size_t row = iso_type_row_bytes(t, n_cols), len = row * n_rows;
    if (have < len + 8) {
        bytes = realloc(bytes, len + 8);
        for (size_t i = 0; i < (len + 8) / 8; i++) ((uint64_t *)bytes)[i] = next() & 0xbfbfbfbfbfbfbfbfULL;
        have = len + 8;
    }
    struct iso_weight w = {.type = (uint32_t)t, .n_rows = n_rows, .n_cols = n_cols, .row_bytes = row, .scale = 1.0f};
    must(g_vt->map(g_dev, bytes, len, &w.data.buffer));
    must(g_vt->weight(g_dev, &w));
    return w;
}

typedef void op_fn(struct iso_queue *q, void *arg, unsigned i);

/* Median over five of the microseconds of one operation. */
static double time_op(op_fn *fn, void *arg)
{
    double t[6];
    for (int r = 0; r < 6; r++) {
        struct iso_queue *q = NULL;
        must(g_vt->begin(g_dev, &q));
        const int64_t start = iso_clock_ns();
        for (unsigned i = 0; i < REPEATS; i++) fn(q, arg, i);
        must(g_vt->sync(q));
        t[r] = (double)(iso_clock_ns() - start) / 1000.0 / REPEATS;
        g_vt->end(q);
    }
    for (int i = 1; i < 6; i++) { /* the first one warms up */
        for (int j = i + 1; j < 6; j++) {
            if (t[j] < t[i]) {
                const double x = t[i];
                t[i] = t[j];
                t[j] = x;
            }
        }
    }
    return t[3];
}

struct product {
    struct iso_weight w[64];
    unsigned n;
    struct iso_span codes, y;
    uint32_t n_act;
};

static void do_product(struct iso_queue *q, void *arg, unsigned i)
{
    struct product *p = arg;
    g_vt->matmul(q, &(struct iso_op_matmul){.codes = p->codes, .weight = {p->w[i % p->n]}, .y = {p->y}, .n_weights = 1,
                                            .n_rows = p->n_act});
}

static void bench_product(enum iso_type t, uint32_t n_rows, uint32_t n_cols, const uint32_t *acts, size_t n_acts)
{
    struct product p = {0};
    const size_t bytes = iso_type_row_bytes(t, n_cols) * n_rows;
    const unsigned want = (unsigned)(COPIES_BYTES / bytes) + 1;
    p.n = acts[0] > 8 ? 2 : want > 64 ? 64 : want;
    for (unsigned i = 0; i < p.n; i++) p.w[i] = weight(t, n_rows, n_cols);
    const uint32_t most = acts[n_acts - 1];
    struct iso_span x = floats((size_t)most * n_cols);
    p.codes = buffer(g_vt->codes_bytes(g_dev, most, n_cols), ISO_MEM_DEVICE);
    p.y = buffer((size_t)most * n_rows * 4, ISO_MEM_DEVICE);
    for (size_t a = 0; a < n_acts; a++) {
        struct iso_queue *q = NULL;
        p.n_act = acts[a];
        must(g_vt->begin(g_dev, &q));
        g_vt->quantize(q, &(struct iso_op_quantize){.x = x, .codes = p.codes, .n = n_cols, .n_rows = p.n_act});
        must(g_vt->sync(q));
        g_vt->end(q);
        const double us = time_op(do_product, &p);
        printf("product %-6s %6u x %5u, %4u rows: %8.1f us %8.1f GB/s %7.1f TOPS\n", iso_type_info(t)->name, n_rows, n_cols,
               p.n_act, us, (double)bytes / us * 1e-3, 2.0 * n_rows * n_cols * p.n_act / us * 1e-6);
        (void)fflush(stdout);
    }
    g_vt->free(g_dev, x.buffer);
    g_vt->free(g_dev, p.codes.buffer);
    g_vt->free(g_dev, p.y.buffer);
    for (unsigned i = 0; i < p.n; i++) g_vt->free(g_dev, p.w[i].data.buffer);
}

struct attn {
    struct iso_op_attention a;
    struct iso_op_heads h;
};

static void do_attention(struct iso_queue *q, void *arg, unsigned i)
{
    (void)i;
    g_vt->attention(q, &((struct attn *)arg)->a);
}

static void do_heads(struct iso_queue *q, void *arg, unsigned i)
{
    (void)i;
    g_vt->heads(q, &((struct attn *)arg)->h);
}

/* The last n rows of a timeline of n_positions. */
static void bench_attention(uint32_t d, uint32_t n_heads, uint32_t n_kv, uint32_t n_positions, uint32_t n_rows, uint32_t window)
{
    const uint32_t n_pages = n_positions / 64 + 1;
    const size_t page = iso_page_bytes(d);
    struct iso_span pages = buffer(n_pages * n_kv * page, ISO_MEM_DEVICE), tables = buffer(n_pages * 4, ISO_MEM_HOST);
    uint8_t *bytes = malloc(n_pages * n_kv * page);
    for (size_t i = 0; i < n_pages * n_kv * page / 8; i++) ((uint64_t *)bytes)[i] = next();
    for (size_t p = 0; p < n_pages * n_kv; p++) {
        float *s = (float *)(bytes + p * page + iso_page_k_scale(d));
        for (int i = 0; i < 128; i++) s[i] = 1e-3f;
    }
    must(g_vt->upload(g_dev, pages, bytes, n_pages * n_kv * page));
    free(bytes);
    for (uint32_t p = 0; p < n_pages; p++) ((uint32_t *)g_vt->host(g_dev, tables))[p] = p;
    struct iso_span rows = buffer(n_rows * 16, ISO_MEM_HOST), rope = buffer((size_t)n_rows * d * 4, ISO_MEM_HOST);
    struct iso_row_desc *desc = g_vt->host(g_dev, rows);
    for (uint32_t i = 0; i < n_rows; i++) {
        const uint32_t p = n_positions - n_rows + i;
        desc[i] = (struct iso_row_desc){0, p, {window && p + 1 > window ? p + 1 - window : 0, 0}};
    }
    const struct iso_kv_place kv = {pages, tables, n_pages, 0};
    struct attn a = {0};
    a.h = (struct iso_op_heads){.q = floats((size_t)n_rows * n_heads * d), .k = floats((size_t)n_rows * n_kv * d),
                                .v = floats((size_t)n_rows * n_kv * d), .q_codes = buffer((size_t)n_rows * n_heads * d * 2, ISO_MEM_DEVICE),
                                .q_scales = buffer((size_t)n_rows * n_heads * 4, ISO_MEM_DEVICE), .rope = rope, .rows = rows, .kv = kv,
                                .d = d, .n_heads = n_heads, .n_kv_heads = n_kv, .n_rot = d, .pairs = ISO_ROPE_INTERLEAVED, .n_rows = n_rows};
    a.a = (struct iso_op_attention){.q_codes = a.h.q_codes, .q_scales = a.h.q_scales, .rows = rows,
                                    .out = buffer((size_t)n_rows * n_heads * d * 4, ISO_MEM_DEVICE), .kv = kv, .c = 1e-4f, .d = d,
                                    .n_heads = n_heads, .n_kv_heads = n_kv, .n_rows = n_rows};
    const double heads = time_op(do_heads, &a), us = time_op(do_attention, &a);
    const double keys = window && window < n_positions ? window : n_positions - n_rows / 2.0;
    printf("attention d %u, %u heads, %u kv, %u positions, window %u, %u rows: %.1f us, %.1f GB/s of pages, %.2f TOPS; heads %.1f us\n",
           d, n_heads, n_kv, n_positions, window, n_rows, us, keys / 64 * n_kv * (double)page / us * 1e-3,
           4.0 * n_rows * n_heads * keys * d / us * 1e-6, heads);
    (void)fflush(stdout);
    const struct iso_span all[] = {pages, tables, rows, rope, a.h.q, a.h.k, a.h.v, a.h.q_codes, a.h.q_scales, a.a.out};
    for (size_t i = 0; i < ISO_COUNT(all); i++) g_vt->free(g_dev, all[i].buffer);
}

struct light {
    struct iso_op_residual r;
    struct iso_op_norm_quantize n;
    struct iso_op_quantize q;
    int what;
};

static void do_light(struct iso_queue *q, void *arg, unsigned i)
{
    (void)i;
    struct light *l = arg;
    if (l->what == 1) g_vt->residual(q, &l->r);
    if (l->what < 2) g_vt->norm_quantize(q, &l->n);
    else g_vt->quantize(q, &l->q);
}

static void bench_light(uint32_t n, uint32_t n_ff, uint32_t n_rows)
{
    struct iso_span x = floats((size_t)n_rows * n), y = floats((size_t)n_rows * n), w = floats(n);
    struct iso_span a = floats((size_t)n_rows * n_ff), b = floats((size_t)n_rows * n_ff);
    struct iso_span codes = buffer(g_vt->codes_bytes(g_dev, n_rows, n_ff), ISO_MEM_DEVICE);
    struct light l = {0};
    l.r = (struct iso_op_residual){.x = x, .y = y, .weight = w, .eps = 1e-5f, .inv_n = 1.0f / (float)n, .has_norm = 1, .n = n, .n_rows = n_rows};
    l.n = (struct iso_op_norm_quantize){.x = x, .weight = w, .codes = codes, .eps = 1e-5f, .inv_n = 1.0f / (float)n, .n = n, .n_rows = n_rows};
    l.q = (struct iso_op_quantize){.x = a, .up = b, .codes = codes, .n = n_ff, .n_rows = n_rows, .glu = ISO_GLU_SWIGLU};
    double us[3];
    for (l.what = 0; l.what < 3; l.what++) us[l.what] = time_op(do_light, &l);
    printf("light %u rows of %u: norm_quantize %.1f us, with post norm and residual %.1f us; swiglu of %u %.1f us\n", n_rows, n,
           us[0], us[1], n_ff, us[2]);
    const struct iso_span all[] = {x, y, w, a, b, codes};
    for (size_t i = 0; i < ISO_COUNT(all); i++) g_vt->free(g_dev, all[i].buffer);
}

int main(int argc, char **argv)
{
    const char *what = argc > 2 ? argv[2] : "gGal";
    must(iso_device_cuda_open(&g_dev, argc > 1 ? argv[1] : NULL));
    g_vt = g_dev->vt;
    const int64_t start = iso_clock_ns();
    must(g_vt->self_check(g_dev));
    printf("self-check %.1f ms\n", (double)(iso_clock_ns() - start) * 1e-6);
    const struct iso_device_limits limits = {.max_rows = 4096, .max_cols = 20480, .n_heads = 32, .n_kv_heads = 8, .head_dim = 128, .max_pages = 2048};
    uint64_t scratch = 0;
    must(g_vt->reserve(g_dev, &limits, &scratch));
    static const uint32_t few[] = {1, 2, 4, 8}, many[] = {64, 512, 2048, 4096};
    static const uint32_t shape[][2] = {{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}, {8704, 6656}, {6656, 4096}, {39936, 6656}, {6656, 19968}};
    for (size_t i = 0; i < ISO_COUNT(shape) && strchr(what, 'g'); i++) bench_product(ISO_TYPE_Q4_K, shape[i][0], shape[i][1], few, 4);
    for (size_t i = 0; i < 4 && strchr(what, 'g'); i++) bench_product(ISO_TYPE_Q8_0, shape[i][0], shape[i][1], few, 1);
    if (strchr(what, 'g')) {
        bench_product(ISO_TYPE_Q6_K, 128256, 4096, few, 1);
        bench_product(ISO_TYPE_Q6_K, 6656, 19968, few, 1);
    }
    for (size_t i = 2; i < ISO_COUNT(shape) && strchr(what, 'G'); i++) bench_product(ISO_TYPE_Q4_K, shape[i][0], shape[i][1], many, 4);
    for (size_t i = 2; i < 4 && strchr(what, 'G'); i++) bench_product(ISO_TYPE_Q8_0, shape[i][0], shape[i][1], many, 3);
    if (strchr(what, 'G')) bench_product(ISO_TYPE_Q6_K, 6656, 19968, many, 3);
    if (strchr(what, 'a')) {
        bench_attention(128, 32, 8, 512, 1, 0);
        bench_attention(128, 32, 8, 8192, 1, 0);
        bench_attention(128, 32, 2, 8192, 1, 0);
        bench_attention(128, 32, 2, 32768, 1, 0);
        bench_attention(128, 32, 2, 32768, 1, 2048);
        bench_attention(128, 32, 8, 2048, 2048, 0);
        bench_attention(128, 32, 8, 8192, 2048, 0);
        bench_attention(128, 32, 2, 8192, 2048, 0);
        bench_attention(128, 32, 2, 8192, 2048, 2048);
    }
    if (strchr(what, 'l')) {
        bench_light(4096, 14336, 1);
        bench_light(6656, 19968, 1);
        bench_light(6656, 19968, 2048);
    }
    g_dev->vt->close(g_dev);
    return 0;
}
