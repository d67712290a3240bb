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

#include "arith/prim.h"
#include "base/mem.h"
#include "kernels/check.h"
#include "kernels/matmul/matmul.h"
#include "kernels/shared/cpu.h"

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

/* The plain quantiser of section 3, written here so that the test needs no other kernel. */
static void quantise_row(const struct iso_codes *c, size_t t, const float *x)
{
    int16_t *code = c->code + t * c->stride;
    float *scale = c->scale + t * (c->stride / ISO_CODE_BLOCK);
    int32_t *sum32 = c->sum32 + t * (c->stride / ISO_CODE_SUM);
    memset(code, 0, c->stride * sizeof(*code));
    memset(sum32, 0, c->stride / ISO_CODE_SUM * sizeof(*sum32));
    for (size_t k = 0; k < c->n; k += ISO_CODE_BLOCK) {
        const size_t n = ISO_MIN(c->n - k, (size_t)ISO_CODE_BLOCK);
        uint32_t max = 0;
        for (size_t i = 0; i < n; i++) max = ISO_MAX(max, iso_abs_bits(x[k + i]));
        scale[k / ISO_CODE_BLOCK] = 0.0f;
        if (max < ISO_BITS_2M28) continue;
        const float m = ISO_AS_F32(max);
        const float inv = iso_rcp(m) * 2047.0f;
        scale[k / ISO_CODE_BLOCK] = m * (1.0f / 2047.0f);
        for (size_t i = 0; i < n; i++) {
            const int32_t q = (int32_t)iso_round(x[k + i] * inv);
            code[k + i] = (int16_t)ISO_MIN(ISO_MAX(q, -ISO_CODE_MAX), ISO_CODE_MAX);
            sum32[(k + i) / ISO_CODE_SUM] += code[k + i];
        }
    }
}

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

static void *golden_file(enum iso_type type, const char *suffix, size_t *len)
{
    char path[160], lower[16];
    snprintf(lower, sizeof(lower), "%s", iso_type_info(type)->name);
    for (char *p = lower; *p; p++) {
        if (*p >= 'A' && *p <= 'Z') *p = (char)(*p - 'A' + 'a');
    }
    snprintf(path, sizeof(path), "tests/golden/vectors/%s.%s", lower, suffix);
    return check_read_file(path, len);
}

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
    void *w_file = golden_file(type, suffix, &w_len);
    snprintf(suffix, sizeof(suffix), "%sx.f32", prefix);
    float *x = golden_file(type, suffix, &x_len);
    snprintf(suffix, sizeof(suffix), "%sy.f32", prefix);
    float *golden = golden_file(type, suffix, &y_len);
    assert_int_equal(w_len, N_ROWS * iso_type_row_bytes(type, n));
    assert_int_equal(x_len, N_ACT * n * sizeof(float));
    assert_int_equal(y_len, N_ACT * N_ROWS * sizeof(float));

    enum { MAX_ACT = 40 };
    void *mem;
    const struct iso_codes a = new_codes(&mem, MAX_ACT, n);
    float want[MAX_ACT][N_ROWS];
    for (size_t t = 0; t < MAX_ACT; t++) {
        quantise_row(&a, t, x + t % N_ACT * n);
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

enum style { ORDINARY, ONES, ZEROS, EXTREME_SCALES, N_STYLES };

/* A finite f16 below the loader's limit. */
static uint16_t random_f16(struct check_rng *r, enum style style)
{
    static const uint16_t special[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x03ff,
                                       0x0400, 0x7bff, 0xfbff, 0x3c00, 0xbc00};
    if (style == EXTREME_SCALES) return special[check_int(r, 0, ISO_COUNT(special) - 1)];
    return (uint16_t)(check_int(r, 0, 1) << 15 | check_int(r, 8, 18) << 10 | check_int(r, 0, 1023));
}

static float random_float(struct check_rng *r, enum style style)
{
    static const float special[] = {0.0f,     -0.0f,    0x1p-149f, -0x1p-127f, 0x1p-26f,
                                    0x1p-27f, 0x1p99f,  -0x1p99f,  1.0f,       -0x1.fffp10f};
    if (style == ZEROS) return 0.0f;
    if (style == ONES) return check_int(r, 0, 1) ? 1.0f : -1.0f;
    if (style == EXTREME_SCALES) return special[check_int(r, 0, ISO_COUNT(special) - 1)];
    return check_f32(r) * iso_pow2((float)check_int(r, -12, 2));
}

static void put16(uint8_t *p, uint16_t v)
{
    memcpy(p, &v, sizeof(v));
}

/* One float in a Float type; the bytes of big values are truncated towards zero. */
static void put_float(uint8_t *p, enum iso_type type, struct check_rng *r, enum style style)
{
    const float v = random_float(r, style);
    const uint32_t bits = ISO_AS_U32(v);
    if (type == ISO_TYPE_F32) memcpy(p, &bits, 4);
    if (type == ISO_TYPE_BF16) put16(p, (uint16_t)(bits >> 16));
    if (type != ISO_TYPE_F16) return;
    const uint16_t one = v < 0.0f ? 0xbc00 : v > 0.0f ? 0x3c00 : 0; /* of ONES and ZEROS */
    put16(p, style == ORDINARY || style == EXTREME_SCALES ? random_f16(r, style) : one);
}

/* Puts legal scales into a block of random bytes (section 1: finite, below 2^100). */
static void fix_scales(uint8_t *b, enum iso_type type, struct check_rng *r, enum style style)
{
    switch (type) {
    case ISO_TYPE_Q6_K: put16(b + 208, random_f16(r, style)); break;
    case ISO_TYPE_MXFP4:
        b[0] = (uint8_t)(style == EXTREME_SCALES ? check_int(r, 0, 227) : check_int(r, 118, 134));
        break;
    case ISO_TYPE_NVFP4:
        if (style == ORDINARY) {
            for (int i = 0; i < 4; i++) b[i] = (uint8_t)check_int(r, 0x30, 0x4f);
        }
        if (style == EXTREME_SCALES) b[check_int(r, 0, 3)] = (uint8_t)check_int(r, 0x78, 0xff);
        break;
    default: put16(b, random_f16(r, style)); break;
    }
    if (type == ISO_TYPE_Q4_1 || type == ISO_TYPE_Q5_1 || type == ISO_TYPE_Q4_K ||
        type == ISO_TYPE_Q5_K) {
        put16(b + 2, random_f16(r, style));
    }
}

static void random_weights(uint8_t *data, enum iso_type type, size_t n_values, struct check_rng *r,
                           enum style style)
{
    const struct iso_type_info *info = iso_type_info(type);
    const size_t n_blocks = n_values / info->block_values;
    for (size_t i = 0; i < n_blocks; i++) {
        uint8_t *b = data + i * info->block_bytes;
        if (info->block_values == 1) {
            put_float(b, type, r, style);
            continue;
        }
        check_fill(r, b, info->block_bytes);
        if (style == ONES) memset(b, 0xff, info->block_bytes);
        if (style == ZEROS) memset(b, 0, info->block_bytes);
        fix_scales(b, type, r, style);
    }
}

/* Codes straight, so that extremes are reached that a quantiser never makes together. */
static void random_codes(const struct iso_codes *c, size_t n_act, struct check_rng *r,
                         enum style style)
{
    memset(c->code, 0, n_act * c->stride * sizeof(*c->code));
    memset(c->sum32, 0, n_act * c->stride / ISO_CODE_SUM * sizeof(*c->sum32));
    for (size_t t = 0; t < n_act; t++) {
        const int64_t sign = check_int(r, 0, 1) ? ISO_CODE_MAX : -ISO_CODE_MAX;
        for (size_t i = 0; i < c->n; i++) {
            const int64_t v = style == ONES             ? sign
                              : style == EXTREME_SCALES ? check_int(r, -1, 1) * ISO_CODE_MAX
                                                        : check_int(r, -2047, ISO_CODE_MAX);
            c->code[t * c->stride + i] = (int16_t)v;
            c->sum32[(t * c->stride + i) / ISO_CODE_SUM] += (int32_t)v;
        }
        for (size_t i = 0; i < c->stride / ISO_CODE_BLOCK; i++) {
            c->scale[t * c->stride / ISO_CODE_BLOCK + i] =
                check_int(r, 0, 9) ? iso_absf(check_f32(r)) * 0x1p-9f : 0.0f;
        }
    }
}

/* One random problem at one variant. */
static void random_case(const struct iso_matmul_kernels *k, enum iso_type type, size_t n_cols,
                        size_t n_rows, size_t n_act, enum style style, struct check_rng *r)
{
    const size_t row_bytes = iso_type_row_bytes(type, n_cols);
    uint8_t *data = check_alloc(n_rows * row_bytes, check_int(r, 0, 1) ? CHECK_END : CHECK_START);
    random_weights(data, type, n_rows * n_cols, r, style);
    void *mem;
    const struct iso_codes a = new_codes(&mem, n_act, n_cols);
    random_codes(&a, n_act, r, style);
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

static size_t round_cols(size_t n, enum iso_type type)
{
    const size_t values = ISO_MAX(iso_type_info(type)->block_values, 32u);
    return (n + values - 1) / values * values;
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
                const size_t n_cols = round_cols(cols[i % ISO_COUNT(cols)], (enum iso_type)t);
                const size_t n_rows = i < 33 ? i + 1 : (size_t)check_int(&r, 34, 110);
                const size_t n_act = (size_t)check_int(&r, 1, n_cols > 1000 ? 9 : 40);
                random_case(variants[v].kernels, (enum iso_type)t, n_cols, n_rows, n_act,
                            (enum style)(i % N_STYLES), &r);
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
            random_case(variants[v].kernels, types[t], 4864, 50, 3, ORDINARY, &r);
            random_case(variants[v].kernels, types[t], 256, 101, 530, ORDINARY, &r);
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
