/* SPDX-License-Identifier: MIT
 * check_matmul.c - every variant of the matrix product against golden vectors and the reference.
 *
 * The golden vectors pin the bits; random tests then compare each variant of matmul.def with the
 * reference over sizes, row ranges, numbers of activation rows and extreme values. Weight data ends
 * or starts at a page that faults, because a real file is mapped.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "kernels/check.h"
#include "kernels/matmul/matmul.h"
#include "kernels/shared/cpu.h"
#include "kernels/weights.h"

#define X(suffix, need) extern const struct iso_matmul_kernels iso_matmul_kernels_##suffix;
#include "kernels/matmul/matmul.def"
#undef X

static const struct {
    const struct iso_matmul_kernels *kernels;
    unsigned need;
} variants[] = {
#define X(suffix, need) {&iso_matmul_kernels_##suffix, need},
#include "kernels/matmul/matmul.def"
#undef X
};

#define N_ROWS 5 /* of a golden weight */
#define N_ACT 3  /* of a golden activation */

/* n_act rows of codes in a guarded buffer; *mem is freed with check_free(). */
static struct iso_codes new_codes(void **mem, size_t n_act, size_t n)
{
    *mem = check_alloc(iso_codes_bytes(n_act, n), CHECK_GUARDED);
    return iso_codes_view(*mem, n_act, n);
}

struct call {
    const struct iso_matmul_kernels *k;
    const struct iso_codes *a;
    size_t n_act;
    const struct iso_matrix *w;
    size_t first_row, last_row;
};

/* Runs c by vector product (in pieces) or by tiles into y. */
static void run(float *y, size_t y_stride, const struct call *c, bool tiled)
{
    const size_t n = c->w->n_cols;
    void *scratch = check_alloc(iso_matmul_scratch_bytes(c->n_act, n), CHECK_GUARDED);
    if (!tiled) {
        for (size_t t = 0; t < c->n_act; t += ISO_GEMV_MAX) {
            const struct iso_codes a = iso_codes_rows(c->a, t);
            c->k->gemv(y + t * y_stride, y_stride, &a, ISO_MIN(c->n_act - t, ISO_GEMV_MAX), c->w,
                       c->first_row, c->last_row, scratch);
        }
    } else {
        const size_t n_tiles = (c->n_act + ISO_GEMM_TILE - 1) / ISO_GEMM_TILE;
        void *panel = check_alloc(iso_gemm_panel_bytes(c->n_act, n), CHECK_GUARDED);
        /* Two calls, last tiles first: tiles are independent. */
        c->k->pack(panel, c->a, c->n_act, n_tiles / 2, n_tiles);
        c->k->pack(panel, c->a, c->n_act, 0, n_tiles / 2);
        c->k->gemm(y, y_stride, panel, c->n_act, c->w, c->first_row, c->last_row, scratch);
        check_guards(panel, "panel");
        check_free(panel);
    }
    check_guards(scratch, "scratch");
    check_free(scratch);
}

/* Fails unless the variant of c gives want [n_act][n_rows] for its rows and leaves the rest. */
static void expect(const struct call *c, const float *want, bool tiled)
{
    const size_t n_rows = c->w->n_rows;
    float *y = check_alloc(c->n_act * n_rows * sizeof(*y), CHECK_GUARDED);
    float *expected = check_alloc(c->n_act * n_rows * sizeof(*y), CHECK_GUARDED);
    for (size_t t = 0; t < c->n_act; t++) {
        memcpy(expected + t * n_rows + c->first_row, want + t * n_rows + c->first_row,
               (c->last_row - c->first_row) * sizeof(*y));
    }
    run(y, n_rows, c, tiled);
    char what[160];
    snprintf(what, sizeof(what), "%s %s %s n_act %zu rows [%zu, %zu) of %zu cols %zu", c->k->name,
             tiled ? "gemm" : "gemv", iso_type_info(c->w->type)->name, c->n_act, c->first_row,
             c->last_row, n_rows, c->w->n_cols);
    check_guards(y, what);
    check_bits_f32(what, y, n_rows, expected, n_rows, c->n_act, n_rows);
    check_free(expected);
    check_free(y);
}

/* --- golden vectors --- */

/* Weight bytes copied behind or before a page that faults. */
static uint8_t *at_edge(const void *data, size_t len, enum check_edge edge)
{
    uint8_t *p = check_alloc(len, edge);
    memcpy(p, data, len);
    return p;
}

static size_t golden_cols(enum iso_type type)
{
    const uint32_t values = iso_type_info(type)->block_values;
    return values == 256 ? 768 : values == 64 ? 704 : 608;
}

/* All variants, 1..max_act activation rows (the three golden ones repeated), every row range. */
static void golden_case(enum iso_type type, const char *prefix)
{
    char suffix[32];
    size_t w_len, x_len, y_len;
    const size_t n = golden_cols(type);
    snprintf(suffix, sizeof(suffix), "%sw.bin", prefix);
    void *w_file = weights_golden_file(type, suffix, &w_len);
    snprintf(suffix, sizeof(suffix), "%sx.f32", prefix);
    float *x = weights_golden_file(type, suffix, &x_len);
    snprintf(suffix, sizeof(suffix), "%sy.f32", prefix);
    float *golden = weights_golden_file(type, suffix, &y_len);
    assert_int_equal(w_len, N_ROWS * iso_type_row_bytes(type, n));
    assert_int_equal(x_len, N_ACT * n * sizeof(float));
    assert_int_equal(y_len, N_ACT * N_ROWS * sizeof(float));

    enum { MAX_ACT = 40 };
    void *mem;
    const struct iso_codes a = new_codes(&mem, MAX_ACT, n);
    float want[MAX_ACT][N_ROWS];
    for (size_t t = 0; t < MAX_ACT; t++) {
        weights_quantise_row(&a, t, x + t % N_ACT * n);
        memcpy(want[t], golden + t % N_ACT * N_ROWS, sizeof(want[t]));
    }
    for (int edge = CHECK_END; edge <= CHECK_START; edge++) {
        uint8_t *data = at_edge(w_file, w_len, edge);
        const struct iso_matrix w = {.type = type, .data = data, .n_rows = N_ROWS, .n_cols = n,
                                     .row_bytes = w_len / N_ROWS, .scale = 1.0f};
        for (size_t v = 0; v < ISO_COUNT(variants); v++) {
            if ((iso_cpu_detect() & variants[v].need) != variants[v].need) continue;
            for (size_t n_act = 1; n_act <= MAX_ACT; n_act++) {
                const size_t first = n_act % N_ROWS, last = first + n_act % (N_ROWS - first + 1);
                struct call c = {variants[v].kernels, &a, n_act, &w, 0, N_ROWS};
                if (n_act <= ISO_GEMV_MAX) expect(&c, want[0], false);
                expect(&c, want[0], true);
                c.first_row = first;
                c.last_row = last;
                if (n_act <= ISO_GEMV_MAX) expect(&c, want[0], false);
                expect(&c, want[0], true);
            }
        }
        check_free(data);
    }
    check_free(mem);
    check_free(golden);
    check_free(x);
    check_free(w_file);
}

static void test_golden(void **state)
{
    (void)state;
    for (unsigned t = 0; t < ISO_TYPE_COUNT; t++) golden_case((enum iso_type)t, "");
}

static void test_golden_edge(void **state)
{
    (void)state;
    for (unsigned t = 0; t < ISO_TYPE_COUNT; t++) golden_case((enum iso_type)t, "edge.");
}

/* --- random weights --- */

#define N_STYLES WEIGHTS_LOWEST /* the styles before it */

/* One random problem at one variant. */
static void random_case(const struct iso_matmul_kernels *k, enum iso_type type, size_t n_cols,
                        size_t n_rows, size_t n_act, enum weights_style style, struct check_rng *r)
{
    const size_t row_bytes = iso_type_row_bytes(type, n_cols);
    uint8_t *data = check_alloc(n_rows * row_bytes, check_int(r, 0, 1) ? CHECK_END : CHECK_START);
    weights_fill(data, type, n_rows * n_cols, r, style);
    void *mem;
    const struct iso_codes a = new_codes(&mem, n_act, n_cols);
    weights_codes(&a, n_act, r, style);
    float *bias = check_alloc(n_rows * sizeof(*bias), CHECK_END);
    for (size_t i = 0; i < n_rows; i++) bias[i] = check_f32(r);
    const struct iso_matrix w = {.type = type, .data = data, .n_rows = n_rows, .n_cols = n_cols,
                                 .row_bytes = row_bytes, .scale = 0x1.8p-2f,
                                 .has_scale = (int)check_int(r, 0, 1),
                                 .bias = check_int(r, 0, 1) ? bias : NULL};
    float *want = check_alloc(n_act * n_rows * sizeof(*want), CHECK_GUARDED);
    struct call c = {&iso_matmul_kernels_ref, &a, n_act, &w, 0, n_rows};
    run(want, n_rows, &c, false);
    c.k = k;
    if (check_int(r, 0, 2) == 0) {
        c.first_row = (size_t)check_int(r, 0, (int64_t)n_rows);
        c.last_row = (size_t)check_int(r, (int64_t)c.first_row, (int64_t)n_rows);
    }
    expect(&c, want, false);
    expect(&c, want, true);
    check_free(want);
    check_free(bias);
    check_free(mem);
    check_free(data);
}

static void test_random(void **state)
{
    (void)state;
    static const size_t cols[] = {32, 64, 96, 224, 256, 288, 544, 576, 608, 1536, 2560};
    for (size_t v = 1; v < ISO_COUNT(variants); v++) {
        if ((iso_cpu_detect() & variants[v].need) != variants[v].need) continue;
        for (unsigned t = 0; t < ISO_TYPE_COUNT; t++) {
            struct check_rng r = check_rng(v * 100 + t);
            for (size_t i = 0; i < 60; i++) {
                const size_t n_cols = weights_cols((enum iso_type)t, cols[i % ISO_COUNT(cols)]);
                const size_t n_rows = i < 33 ? i + 1 : (size_t)check_int(&r, 34, 110);
                const size_t n_act = (size_t)check_int(&r, 1, n_cols > 1000 ? 9 : 40);
                random_case(variants[v].kernels, (enum iso_type)t, n_cols, n_rows, n_act,
                            (enum weights_style)(i % N_STYLES), &r);
            }
        }
    }
}

/* More columns than one unpacking holds, more activation rows than one pass, many row groups. */
static void test_large(void **state)
{
    (void)state;
    for (size_t v = 1; v < ISO_COUNT(variants); v++) {
        if ((iso_cpu_detect() & variants[v].need) != variants[v].need) continue;
        struct check_rng r = check_rng(7000 + v);
        static const enum iso_type types[] = {ISO_TYPE_Q4_1, ISO_TYPE_Q4_K, ISO_TYPE_NVFP4,
                                              ISO_TYPE_F16};
        for (size_t t = 0; t < ISO_COUNT(types); t++) {
            random_case(variants[v].kernels, types[t], 4864, 50, 3, WEIGHTS_ORDINARY, &r);
            random_case(variants[v].kernels, types[t], 256, 101, 530, WEIGHTS_ORDINARY, &r);
        }
    }
}

/* Flags pick the highest variant whose needs are met. */
static void test_select(void **state)
{
    (void)state;
    unsigned flags;
    const char *name;
    for (size_t i = 0; (name = check_level(i, &flags)); i++) {
        assert_string_equal(iso_matmul_select(flags)->name, name);
    }
    assert_string_equal(iso_matmul_select(ISO_CPU_REF)->name, "ref");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_select), cmocka_unit_test(test_golden),
        cmocka_unit_test(test_golden_edge), cmocka_unit_test(test_random),
        cmocka_unit_test(test_large),
    };
    check_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
