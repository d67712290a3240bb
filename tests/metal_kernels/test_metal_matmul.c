/* SPDX-License-Identifier: MIT
 * test_metal_matmul.c - the Metal matrix products, every type and kernel, bit for bit against the reference.
 *
 * Shapes with odd numbers of rows and groups of columns, 1 to 40 activation rows, weights and codes at their
 * extremes; weights end with their buffer, so that a read behind a row is seen. Also the golden vectors, so that
 * the reference cannot be wrong together with the kernels.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "kernels/check.h"
#include "kernels/matmul/matmul.h"
#include "kernels/matmul/matmul_metal.h"
#include "kernels/weights.h"
#include "metal_kernels/gpu.h"

extern const struct iso_matmul_kernels iso_matmul_kernels_ref;

enum kind { VEC, TILE8, TILE32, N_KINDS };

static const struct {
    const char *prefix;
    uint32_t rows, acts, bytes; /* of a threadgroup */
} kinds[N_KINDS] = {
    [VEC] = {"iso_matmul_vec_", ISO_METAL_MATMUL_VEC_ROWS, 1, ISO_METAL_MATMUL_VEC_BYTES},
    [TILE8] = {"iso_matmul_tile8_", ISO_METAL_MATMUL_TILE_ROWS, 8, ISO_METAL_MATMUL_TILE_BYTES(8)},
    [TILE32] = {"iso_matmul_tile32_", ISO_METAL_MATMUL_TILE_ROWS, 32, ISO_METAL_MATMUL_TILE_BYTES(32)},
};

static uint32_t g_pipeline[N_KINDS][ISO_TYPE_COUNT];

/* A product with all its inputs in host memory. */
struct problem {
    struct iso_matrix w;
    struct iso_codes a;
    size_t n_act;
    void *codes, *data, *bias;
};

static struct problem new_problem(enum iso_type type, size_t n_rows, size_t n_cols, size_t n_act)
{
    struct problem p = {.n_act = n_act};
    const size_t row_bytes = iso_type_row_bytes(type, n_cols);
    p.data = check_alloc(n_rows * row_bytes, CHECK_GUARDED);
    p.codes = check_alloc(iso_codes_bytes(n_act, n_cols), CHECK_GUARDED);
    p.bias = check_alloc(n_rows * sizeof(float), CHECK_GUARDED);
    p.a = iso_codes_view(p.codes, n_act, n_cols);
    p.w = (struct iso_matrix){.type = type, .data = p.data, .n_rows = n_rows, .n_cols = n_cols, .row_bytes = row_bytes,
                              .scale = 1.0f};
    return p;
}

static void free_problem(struct problem *p)
{
    check_free(p->bias);
    check_free(p->codes);
    check_free(p->data);
}

/* y [n_act][n_rows] of the reference. */
static void reference(float *y, const struct problem *p)
{
    for (size_t t = 0; t < p->n_act; t += ISO_GEMV_MAX) {
        const struct iso_codes a = iso_codes_rows(&p->a, t);
        iso_matmul_kernels_ref.gemv(y + t * p->w.n_rows, p->w.n_rows, &a, ISO_MIN(p->n_act - t, (size_t)ISO_GEMV_MAX),
                                    &p->w, 0, p->w.n_rows, NULL);
    }
}

static struct iso_metal_matmul arguments(const struct problem *p)
{
    return (struct iso_metal_matmul){
        .n_act = (uint32_t)p->n_act, .n_rows = (uint32_t)p->w.n_rows, .n_cols = (uint32_t)p->w.n_cols,
        .stride = (uint32_t)p->a.stride, .row_bytes = (uint32_t)p->w.row_bytes,
        .has_scale = (uint32_t)p->w.has_scale, .scale = p->w.scale, .has_bias = p->w.bias != NULL};
}

/* The kernel's y for p must have the bits of want [n_act][n_rows]. */
static void expect(enum kind k, const struct problem *p, const float *want)
{
    const size_t n = p->n_act, stride = p->a.stride, outputs = n * p->w.n_rows;
    struct place bind[ISO_METAL_MATMUL_BINDINGS];
    bind[ISO_METAL_MATMUL_CODE] = place_at(p->a.code, n * stride * 2, 16);
    bind[ISO_METAL_MATMUL_SCALE] = place_at(p->a.scale, n * (stride / ISO_CODE_BLOCK) * 4, 48);
    bind[ISO_METAL_MATMUL_SUM32] = place_at(p->a.sum32, n * (stride / ISO_CODE_SUM) * 4, 16);
    bind[ISO_METAL_MATMUL_WEIGHTS] = place_at(p->w.data, p->w.n_rows * p->w.row_bytes, 8); /* no more is promised */
    bind[ISO_METAL_MATMUL_BIAS] = bind[ISO_METAL_MATMUL_WEIGHTS];
    if (p->w.bias != NULL) bind[ISO_METAL_MATMUL_BIAS] = place_at(p->w.bias, p->w.n_rows * 4, 4);
    bind[ISO_METAL_MATMUL_Y] = place_at(NULL, outputs * 4, 16);
    const struct iso_metal_matmul args = arguments(p);
    const struct gpu_launch l = {.pipeline = g_pipeline[k][p->w.type],
                                 .groups = {(args.n_rows + kinds[k].rows - 1) / kinds[k].rows,
                                            (args.n_act + kinds[k].acts - 1) / kinds[k].acts, 1},
                                 .threads = ISO_METAL_MATMUL_THREADS, .bytes = kinds[k].bytes, .args = &args,
                                 .args_len = sizeof(args)};
    gpu_run(&l, bind, ISO_METAL_MATMUL_BINDINGS);
    char what[160];
    (void)snprintf(what, sizeof(what), "%s%s n_act %zu rows %zu cols %zu", kinds[k].prefix,
                   iso_type_info(p->w.type)->name, n, p->w.n_rows, p->w.n_cols);
    check_bits_f32(what, bind[ISO_METAL_MATMUL_Y].host, p->w.n_rows, want, p->w.n_rows, n, p->w.n_rows);
    if (p->w.bias == NULL) bind[ISO_METAL_MATMUL_BIAS].buffer = 0; /* freed as the weights */
    for (size_t i = 0; i < ISO_METAL_MATMUL_BINDINGS; i++) place_free(&bind[i]);
}

static void random_case(enum kind k, enum iso_type type, size_t n_cols, size_t n_rows, size_t n_act,
                        enum weights_style style, struct check_rng *r)
{
    struct problem p = new_problem(type, n_rows, weights_cols(type, n_cols), n_act);
    weights_fill(p.data, type, n_rows * p.w.n_cols, r, style);
    weights_codes(&p.a, n_act, r, style);
    float *bias = p.bias;
    for (size_t i = 0; i < n_rows; i++) bias[i] = check_f32(r);
    p.w.has_scale = (int)check_int(r, 0, 1);
    if (p.w.has_scale) p.w.scale = 0x1.8p-2f;
    if (check_int(r, 0, 1)) p.w.bias = bias;
    float *want = check_alloc(n_act * n_rows * sizeof(*want), CHECK_GUARDED);
    reference(want, &p);
    expect(k, &p, want);
    check_free(want);
    free_problem(&p);
}

/* Every number of activation rows from 1 to 20, each style in turn. */
static void every_row_count(enum kind k)
{
    static const size_t cols[] = {32, 288, 96, 256, 544, 224, 64, 608, 512};
    for (unsigned t = 0; t < ISO_TYPE_COUNT; t++) {
        struct check_rng r = check_rng(1000 * (unsigned)k + t);
        for (size_t n_act = 1; n_act <= 20; n_act++) {
            const size_t n_rows = (size_t)check_int(&r, 1, k == VEC ? 37 : 90);
            random_case(k, (enum iso_type)t, cols[(n_act + t) % ISO_COUNT(cols)], n_rows, n_act,
                        (enum weights_style)(n_act % WEIGHTS_STYLES), &r);
        }
    }
}

static void vec_every_row_count(void **state)
{
    (void)state;
    every_row_count(VEC);
}

static void tile8_every_row_count(void **state)
{
    (void)state;
    every_row_count(TILE8);
}

static void tile32_every_row_count(void **state)
{
    (void)state;
    every_row_count(TILE32);
}

/* Each style against each type and kernel, with sums as large as they get. */
static void extremes(void **state)
{
    (void)state;
    for (unsigned t = 0; t < ISO_TYPE_COUNT; t++) {
        struct check_rng r = check_rng(5000 + t);
        for (int style = 0; style < WEIGHTS_STYLES; style++) {
            for (int k = 0; k < N_KINDS; k++) {
                random_case((enum kind)k, (enum iso_type)t, 512, 5, 3, (enum weights_style)style, &r);
            }
        }
    }
}

/* Several passes over columns, several groups of rows in both directions. */
static void large(void **state)
{
    (void)state;
    for (unsigned t = 0; t < ISO_TYPE_COUNT; t++) {
        struct check_rng r = check_rng(7000 + t);
        random_case(VEC, (enum iso_type)t, 4192, 19, 1, WEIGHTS_ORDINARY, &r);
        random_case(TILE8, (enum iso_type)t, 1312, 130, 8, WEIGHTS_ORDINARY, &r);
        random_case(TILE32, (enum iso_type)t, 800, 65, 40, WEIGHTS_ORDINARY, &r);
    }
}

/* --- golden vectors --- */

#define N_ROWS 5 /* of a golden weight */
#define N_ACT 3  /* of a golden activation */

static void golden_case(enum iso_type type, const char *prefix)
{
    const uint32_t values = iso_type_info(type)->block_values;
    const size_t n_cols = values == 256 ? 768 : values == 64 ? 704 : 608;
    char suffix[32];
    size_t len;
    struct problem p = new_problem(type, N_ROWS, n_cols, N_ACT);
    (void)snprintf(suffix, sizeof(suffix), "%sw.bin", prefix);
    void *w = weights_golden_file(type, suffix, &len);
    assert_int_equal(len, N_ROWS * p.w.row_bytes);
    memcpy(p.data, w, len);
    (void)snprintf(suffix, sizeof(suffix), "%sx.f32", prefix);
    float *x = weights_golden_file(type, suffix, &len);
    assert_int_equal(len, N_ACT * n_cols * sizeof(float));
    for (size_t t = 0; t < N_ACT; t++) weights_quantise_row(&p.a, t, x + t * n_cols);
    (void)snprintf(suffix, sizeof(suffix), "%sy.f32", prefix);
    float *want = weights_golden_file(type, suffix, &len);
    assert_int_equal(len, N_ACT * N_ROWS * sizeof(float));
    for (int k = 0; k < N_KINDS; k++) expect((enum kind)k, &p, want);
    check_free(want);
    check_free(x);
    check_free(w);
    free_problem(&p);
}

static void golden(void **state)
{
    (void)state;
    for (unsigned t = 0; t < ISO_TYPE_COUNT; t++) {
        golden_case((enum iso_type)t, "");
        golden_case((enum iso_type)t, "edge.");
    }
}

static int set_up(void **state)
{
    if (gpu_open(state) != 0) return -1;
    for (int k = 0; k < N_KINDS; k++) {
        for (unsigned t = 0; t < ISO_TYPE_COUNT; t++) {
            g_pipeline[k][t] = gpu_kernel_of(kinds[k].prefix, iso_type_info((enum iso_type)t)->name);
        }
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden),
        cmocka_unit_test(extremes),
        cmocka_unit_test(vec_every_row_count),
        cmocka_unit_test(tile8_every_row_count),
        cmocka_unit_test(tile32_every_row_count),
        cmocka_unit_test(large),
    };
    (void)check_seed();
    return cmocka_run_group_tests(tests, set_up, gpu_close);
}
