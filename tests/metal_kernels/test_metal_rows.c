/* SPDX-License-Identifier: MIT
 * test_metal_rows.c - Metal's norm, residual, gather and the operations that make codes, bit for bit against the
 * reference.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "arith/prim.h"
#include "base/mem.h"
#include "kernels/check.h"
#include "kernels/inputs.h"
#include "kernels/norm/norm.h"
#include "kernels/norm/norm_metal.h"
#include "kernels/quantize/quantize.h"
#include "kernels/quantize/quantize_metal.h"
#include "kernels/shared/codes.h"
#include "metal_kernels/gpu.h"

extern const struct iso_norm_kernels iso_norm_kernels_ref;
extern const struct iso_quantize_kernels iso_quantize_kernels_ref;

#define FAULT_CODE 0x1234u

static const uint32_t g_sizes[] = {32, 64, 96, 224, 256, 288, 640, 1024, 2080, 4096};

static float *rows_of(struct check_rng *r, size_t n_rows, size_t n, enum input_kind kind)
{
    float *x = iso_xalloc(n_rows * n, sizeof(*x));
    for (size_t i = 0; i < n_rows; i++) input_fill(r, x + i * n, n, i == n_rows / 2 ? kind : INPUT_ORDINARY);
    return x;
}

/* --- norm, residual, gather ------------------------------------------------------------------------------- */

struct norm_case {
    bool norm, weight, add, in_place;
    enum input_kind kind;
};

static void run_norm(struct check_rng *r, struct norm_case c, uint32_t n_rows, uint32_t n)
{
    const struct iso_metal_norm a = {.n = n, .eps = c.add ? 1e-8f : 1e-6f, .inv_n = 1.0f / (float)n};
    float *to = rows_of(r, n_rows, n, INPUT_ORDINARY), *from = rows_of(r, n_rows, n, c.kind);
    float *w = rows_of(r, 1, n, INPUT_ORDINARY);
    float *want = iso_xalloc((size_t)n_rows * n, sizeof(*want));
    memcpy(want, to, (size_t)n_rows * n * sizeof(*want));
    for (size_t i = 0; i < n_rows; i++) {
        float *y = want + i * n;
        const float *x = from + i * n;
        if (!c.norm) iso_norm_kernels_ref.residual(y, x, n);
        else if (c.add) iso_norm_kernels_ref.residual_norm(y, x, c.weight ? w : NULL, a.eps, a.inv_n, n);
        else iso_norm_kernels_ref.norm(y, x, c.weight ? w : NULL, a.eps, a.inv_n, n);
    }
    const struct iso_metal_constant constants[] = {GPU_BOOL(ISO_METAL_NORM_HAS_NORM, c.norm),
                                                   GPU_BOOL(ISO_METAL_NORM_HAS_WEIGHT, c.weight),
                                                   GPU_BOOL(ISO_METAL_NORM_ADD, c.add)};
    struct place bind[ISO_METAL_NORM_BINDINGS] = {{0}};
    bind[ISO_METAL_NORM_TO] = place_new(c.in_place ? from : to, (size_t)n_rows * n * 4);
    bind[ISO_METAL_NORM_FROM] = c.in_place ? bind[ISO_METAL_NORM_TO] : place_new(from, (size_t)n_rows * n * 4);
    if (c.weight) bind[ISO_METAL_NORM_WEIGHT] = place_new(w, n * 4);
    const struct gpu_launch l = {.pipeline = gpu_kernel("iso_norm", constants, 3), .groups = {n_rows, 1, 1},
                                     .threads = ISO_METAL_NORM_THREADS, .bytes = ISO_METAL_NORM_BYTES, .args = &a,
                                     .args_len = sizeof(a)};
    gpu_record(&l, bind, ISO_METAL_NORM_BINDINGS);
    gpu_wait();
    char what[128];
    (void)snprintf(what, sizeof(what), "norm %d weight %d add %d in place %d, %s, %u x %u", c.norm, c.weight, c.add,
                   c.in_place, input_kind_name(c.kind), n_rows, n);
    check_bits_f32(what, bind[ISO_METAL_NORM_TO].host, n, want, n, n_rows, n);
    if (c.in_place) bind[ISO_METAL_NORM_FROM] = (struct place){.buffer = 0};
    for (size_t i = 0; i < ISO_METAL_NORM_BINDINGS; i++) place_free(&bind[i]);
    free(to);
    free(from);
    free(w);
    free(want);
}

static void test_norm(void **state)
{
    (void)state;
    struct check_rng r = check_rng(1);
    for (size_t s = 0; s < ISO_COUNT(g_sizes); s++) {
        for (uint32_t k = 0; k < INPUT_DOMAIN; k++) {
            const bool weight = check_int(&r, 0, 1);
            const uint32_t n_rows = (uint32_t)check_int(&r, 1, 3);
            const enum input_kind kind = (enum input_kind)k;
            run_norm(&r, (struct norm_case){.norm = true, .weight = weight, .in_place = !weight, .kind = kind}, n_rows,
                     g_sizes[s]);
            run_norm(&r, (struct norm_case){.norm = true, .weight = !weight, .add = true, .kind = kind}, n_rows,
                     g_sizes[s]);
            run_norm(&r, (struct norm_case){.add = true, .kind = kind}, n_rows, g_sizes[s]);
        }
    }
    /* Rows whose sum reaches 2^120 although no value reaches 2^60 are no error. */
    for (uint32_t n = 1024; n <= 4096; n *= 2) {
        float *x = iso_xalloc(n, sizeof(*x)), *y = iso_xalloc(n, sizeof(*y));
        for (uint32_t i = 0; i < n; i++) x[i] = check_f32(&r) * 0x1.fp59f;
        const struct iso_metal_norm a = {.n = n, .eps = 1e-6f, .inv_n = 1.0f / (float)n};
        const struct iso_metal_constant constants[] = {GPU_BOOL(0, true), GPU_BOOL(1, false), GPU_BOOL(2, false)};
        struct place bind[ISO_METAL_NORM_BINDINGS] = {place_new(NULL, n * 4), place_new(x, n * 4)};
        gpu_record(&(struct gpu_launch){.pipeline = gpu_kernel("iso_norm", constants, 3), .groups = {1, 1, 1},
                                                .threads = 256, .bytes = ISO_METAL_NORM_BYTES, .args = &a,
                                                .args_len = sizeof(a)}, bind, ISO_METAL_NORM_BINDINGS);
        gpu_wait();
        iso_norm_kernels_ref.norm(y, x, NULL, a.eps, a.inv_n, n);
        check_bits_f32("a sum beyond 2^120", bind[0].host, n, y, n, 1, n);
        place_free(&bind[0]);
        place_free(&bind[1]);
        free(x);
        free(y);
    }
}

static void test_gather(void **state)
{
    (void)state;
    struct check_rng r = check_rng(2);
    static const uint32_t sizes[] = {4, 32, 127, 128, 129, 576};
    for (size_t s = 0; s < ISO_COUNT(sizes); s++) {
        const uint32_t n = sizes[s], n_rows = 9, n_out = (uint32_t)check_int(&r, 1, 9);
        uint32_t *x = iso_xalloc(n_rows * n, 4), index[9], at = 0;
        check_fill(&r, x, (size_t)n_rows * n * 4); /* any bits, NaN and subnormal too, must survive */
        for (uint32_t i = 0; i < n_out; i++, at++) index[i] = at = at + (uint32_t)check_int(&r, 0, n_rows - n_out + i - at);
        struct place bind[ISO_METAL_GATHER_BINDINGS] = {place_new(x, (size_t)n_rows * n * 4), place_new(index, n_out * 4)};
        for (uint32_t i = 0; i < n_out; i++) memmove(x + i * n, x + index[i] * n, n * 4);
        const struct iso_metal_gather a = {n, n_out};
        gpu_record(&(struct gpu_launch){.pipeline = gpu_kernel("iso_gather", NULL, 0),
                                                .groups = {(n + 127) / 128, 1, 1}, .threads = ISO_METAL_GATHER_THREADS,
                                                .args = &a, .args_len = sizeof(a)}, bind, ISO_METAL_GATHER_BINDINGS);
        gpu_wait();
        check_bytes("gather", bind[0].host, x, (size_t)n_rows * n * 4);
        place_free(&bind[0]);
        place_free(&bind[1]);
        free(x);
    }
}

/* --- codes -------------------------------------------------------------------------------------------------- */

/* Codes of n_rows rows: what the reference says and where the GPU puts them. */
struct codes_pair {
    uint32_t n_rows, n, stride;
    int16_t *code;
    float *scale;
    int32_t *sum32;
    float *tap;
    uint32_t most;
};

static struct codes_pair codes_new(uint32_t n_rows, uint32_t n)
{
    struct codes_pair c = {.n_rows = n_rows, .n = n, .stride = (uint32_t)iso_codes_stride(n)};
    c.code = iso_xalloc((size_t)n_rows * c.stride, 2);
    c.scale = iso_xalloc((size_t)n_rows * c.stride / 256, 4);
    c.sum32 = iso_xalloc((size_t)n_rows * c.stride / 32, 4);
    c.tap = iso_xalloc((size_t)n_rows * n, 4);
    return c;
}

static struct iso_code_row codes_row(const struct codes_pair *c, size_t i)
{
    return (struct iso_code_row){c->code + i * c->stride, c->scale + i * c->stride / 256, c->sum32 + i * c->stride / 32};
}

static void codes_note(struct codes_pair *c, uint32_t most)
{
    c->most = ISO_MAX(c->most, most);
}

static void codes_bind(struct place *bind, const struct codes_pair *c, bool tap)
{
    const uint32_t zero = 0;
    bind[ISO_METAL_QUANTIZE_CODE] = place_new(NULL, (size_t)c->n_rows * c->stride * 2);
    bind[ISO_METAL_QUANTIZE_SCALE] = place_new(NULL, (size_t)c->n_rows * c->stride / 256 * 4);
    bind[ISO_METAL_QUANTIZE_SUM32] = place_new(NULL, (size_t)c->n_rows * c->stride / 32 * 4);
    if (tap) bind[ISO_METAL_QUANTIZE_TAP] = place_new(NULL, (size_t)c->n_rows * c->n * 4);
    bind[ISO_METAL_QUANTIZE_FAULT] = place_new(&zero, 4);
}

static void codes_compare(const struct place *bind, struct codes_pair *c, bool tap, const char *what)
{
    const bool bad = c->most >= ISO_BITS_2P100;
    check_bytes(what, bind[ISO_METAL_QUANTIZE_CODE].host, c->code, bind[ISO_METAL_QUANTIZE_CODE].len);
    check_bytes(what, bind[ISO_METAL_QUANTIZE_SCALE].host, c->scale, bind[ISO_METAL_QUANTIZE_SCALE].len);
    check_bytes(what, bind[ISO_METAL_QUANTIZE_SUM32].host, c->sum32, bind[ISO_METAL_QUANTIZE_SUM32].len);
    if (tap && !bad) check_bits_f32(what, bind[ISO_METAL_QUANTIZE_TAP].host, c->n, c->tap, c->n, c->n_rows, c->n);
    const uint32_t fault = *(const uint32_t *)bind[ISO_METAL_QUANTIZE_FAULT].host;
    if (fault != (bad ? FAULT_CODE : 0u)) fail_msg("%s: fault word %#x, largest %#x", what, fault, c->most);
    free(c->code);
    free(c->scale);
    free(c->sum32);
    free(c->tap);
}

struct norm_quantize_case {
    bool weight, index, add, add_norm, add_weight, tap;
    enum input_kind kind;
    float spike; /* a value of row 0, or 0 */
};

static void run_norm_quantize(struct check_rng *r, struct norm_quantize_case c, uint32_t n_rows, uint32_t n)
{
    const uint32_t n_x = c.index ? 2 * n_rows : n_rows;
    const struct iso_metal_quantize a = {.n = n, .stride = (uint32_t)iso_codes_stride(n), .n_rows = n_rows,
                                         .fault_code = FAULT_CODE, .eps = 1e-5f, .inv_n = 1.0f / (float)n, .add_eps = 1e-8f};
    float *x = rows_of(r, n_x, n, c.kind), *w = rows_of(r, 2, n, INPUT_ORDINARY);
    /* A sum of a subnormal and nothing or little more depends on flushing; the model's graph has none. */
    float *y = rows_of(r, n_rows, n, c.add_norm ? INPUT_MIXED : INPUT_ORDINARY);
    uint32_t *index = iso_xalloc(n_rows, 4);
    if (c.spike != 0.0f) x[n - 7] = c.spike;
    for (uint32_t i = 0; i < n_rows; i++) index[i] = 2 * i + (uint32_t)check_int(r, 0, 1);
    struct codes_pair want = codes_new(n_rows, n);
    struct place bind[ISO_METAL_NORM_QUANTIZE_BINDINGS] = {{0}};
    codes_bind(bind, &want, c.tap);
    bind[ISO_METAL_QUANTIZE_X] = place_new(x, (size_t)n_x * n * 4);
    if (c.weight) bind[ISO_METAL_NORM_QUANTIZE_WEIGHT] = place_new(w, n * 4);
    if (c.index) bind[ISO_METAL_NORM_QUANTIZE_INDEX] = place_new(index, n_rows * 4);
    if (c.add) bind[ISO_METAL_NORM_QUANTIZE_Y] = place_new(y, (size_t)n_rows * n * 4);
    if (c.add_weight) bind[ISO_METAL_NORM_QUANTIZE_Y_WEIGHT] = place_new(w + n, n * 4);
    for (uint32_t i = 0; i < n_rows; i++) {
        float *xi = x + (size_t)(c.index ? index[i] : i) * n;
        const struct iso_code_row out = codes_row(&want, i);
        if (c.add_norm) iso_norm_kernels_ref.residual_norm(xi, y + i * n, c.add_weight ? w + n : NULL, a.add_eps, a.inv_n, n);
        else if (c.add) iso_norm_kernels_ref.residual(xi, y + i * n, n);
        codes_note(&want, iso_quantize_kernels_ref.norm_quantize(&out, want.tap + i * n, xi, c.weight ? w : NULL, a.eps,
                                                                a.inv_n, n));
    }
    const struct iso_metal_constant constants[] = {
        GPU_BOOL(ISO_METAL_QUANTIZE_HAS_TAP, c.tap), GPU_BOOL(ISO_METAL_QUANTIZE_HAS_WEIGHT, c.weight),
        GPU_BOOL(ISO_METAL_QUANTIZE_HAS_INDEX, c.index), GPU_BOOL(ISO_METAL_QUANTIZE_ADD, c.add),
        GPU_BOOL(ISO_METAL_QUANTIZE_ADD_NORM, c.add_norm), GPU_BOOL(ISO_METAL_QUANTIZE_ADD_WEIGHT, c.add_weight)};
    const struct gpu_launch l = {.pipeline = gpu_kernel("iso_norm_quantize", constants, 6), .groups = {n_rows, 1, 1},
                                     .threads = ISO_METAL_QUANTIZE_THREADS, .bytes = ISO_METAL_QUANTIZE_BYTES, .args = &a,
                                     .args_len = sizeof(a)};
    gpu_record(&l, bind, ISO_METAL_NORM_QUANTIZE_BINDINGS);
    gpu_wait();
    char what[160];
    (void)snprintf(what, sizeof(what), "norm_quantize weight %d index %d add %d %d %d tap %d, %s, %u x %u", c.weight, c.index,
                   c.add, c.add_norm, c.add_weight, c.tap, input_kind_name(c.kind), n_rows, n);
    if (c.kind < INPUT_DOMAIN) check_bits_f32(what, bind[ISO_METAL_QUANTIZE_X].host, n, x, n, n_x, n);
    codes_compare(bind, &want, c.tap, what);
    for (size_t i = 0; i < ISO_METAL_NORM_QUANTIZE_BINDINGS; i++) place_free(&bind[i]);
    free(x);
    free(y);
    free(w);
    free(index);
}

static void test_norm_quantize(void **state)
{
    (void)state;
    struct check_rng r = check_rng(3);
    for (size_t s = 0; s < ISO_COUNT(g_sizes); s++) {
        for (uint32_t k = 0; k < INPUT_KINDS; k++) {
            const uint64_t bits = check_next(&r) >> 20;
            struct norm_quantize_case c = {.weight = bits & 1, .index = bits >> 1 & 1, .tap = bits >> 2 & 1,
                                           .kind = (enum input_kind)k};
            run_norm_quantize(&r, c, (uint32_t)check_int(&r, 1, 3), g_sizes[s]);
            c.index = false;
            c.add = true;
            c.add_norm = (bits >> 3 & 1) && k != INPUT_SUBNORMAL && k != INPUT_MIXED;
            c.add_weight = c.add_norm && (bits >> 4 & 1);
            run_norm_quantize(&r, c, (uint32_t)check_int(&r, 1, 3), g_sizes[s]);
        }
    }
}

/* Section 6: a value of 2^60 is an error, the largest below it is none. */
static void test_norm_limit(void **state)
{
    (void)state;
    struct check_rng r = check_rng(5);
    static const float spikes[] = {0x1p60f, -0x1p60f, 0x1.fffffep59f, 0x1.8p61f};
    for (size_t i = 0; i < ISO_COUNT(spikes); i++) {
        for (uint32_t n = 32; n <= 1056; n += 512) {
            run_norm_quantize(&r, (struct norm_quantize_case){.spike = spikes[i], .kind = INPUT_LARGE}, 2, n);
        }
    }
}

static void run_quantize(struct check_rng *r, uint32_t form, bool tap, enum input_kind kind, uint32_t n_rows, uint32_t n)
{
    const struct iso_metal_quantize a = {.n = n, .stride = (uint32_t)iso_codes_stride(n), .n_rows = n_rows,
                                         .fault_code = FAULT_CODE};
    float *x = rows_of(r, n_rows, n, kind), *other = rows_of(r, n_rows, n, check_int(r, 0, 1) ? INPUT_ORDINARY : INPUT_MIXED);
    struct codes_pair want = codes_new(n_rows, n);
    for (uint32_t i = 0; i < n_rows; i++) {
        const struct iso_code_row out = codes_row(&want, i);
        const float *xi = x + i * n, *oi = other + i * n;
        float *t = want.tap + i * n;
        uint32_t most = 0;
        if (form == ISO_METAL_FORM_PLAIN) most = iso_quantize_kernels_ref.quantize(&out, xi, n);
        else if (form == ISO_METAL_FORM_GATE) most = iso_quantize_kernels_ref.gate_quantize(&out, t, xi, oi, n);
        else most = iso_quantize_kernels_ref.glu_quantize(&out, t, xi, oi, (enum iso_glu)(form - ISO_METAL_FORM_SWIGLU), n);
        codes_note(&want, most);
    }
    struct place bind[ISO_METAL_QUANTIZE_BINDINGS] = {{0}};
    codes_bind(bind, &want, tap);
    bind[ISO_METAL_QUANTIZE_X] = place_new(x, (size_t)n_rows * n * 4);
    if (form != ISO_METAL_FORM_PLAIN) bind[ISO_METAL_QUANTIZE_OTHER] = place_new(other, (size_t)n_rows * n * 4);
    const struct iso_metal_constant constants[] = {GPU_BOOL(ISO_METAL_QUANTIZE_HAS_TAP, tap),
                                                   GPU_U32(ISO_METAL_QUANTIZE_FORM, form)};
    const uint32_t blocks = n_rows * a.stride / 256;
    const struct gpu_launch l = {.pipeline = gpu_kernel("iso_quantize", constants, 2),
                                     .groups = {(blocks + ISO_METAL_QUANTIZE_BLOCKS - 1) / ISO_METAL_QUANTIZE_BLOCKS, 1, 1},
                                     .threads = ISO_METAL_QUANTIZE_THREADS, .args = &a, .args_len = sizeof(a)};
    gpu_record(&l, bind, ISO_METAL_QUANTIZE_BINDINGS);
    gpu_wait();
    char what[128];
    (void)snprintf(what, sizeof(what), "quantize form %u tap %d, %s, %u x %u", form, tap, input_kind_name(kind), n_rows, n);
    codes_compare(bind, &want, tap, what);
    for (size_t i = 0; i < ISO_METAL_QUANTIZE_BINDINGS; i++) place_free(&bind[i]);
    free(x);
    free(other);
}

static void test_quantize(void **state)
{
    (void)state;
    struct check_rng r = check_rng(4);
    for (size_t s = 0; s < ISO_COUNT(g_sizes); s++) {
        for (uint32_t k = 0; k < INPUT_KINDS; k++) {
            for (uint32_t form = 0; form < 4; form++) {
                run_quantize(&r, form, form != ISO_METAL_FORM_PLAIN && check_int(&r, 0, 1), (enum input_kind)k,
                             (uint32_t)check_int(&r, 1, 4), g_sizes[s]);
            }
        }
    }
}

/* The word keeps the first code. */
static void test_fault_stays(void **state)
{
    (void)state;
    float x[64] = {0x1p101f};
    const uint32_t before = 7;
    const struct iso_metal_quantize a = {.n = 32, .stride = 256, .n_rows = 2, .fault_code = FAULT_CODE};
    const struct iso_metal_constant constants[] = {GPU_BOOL(ISO_METAL_QUANTIZE_HAS_TAP, false),
                                                   GPU_U32(ISO_METAL_QUANTIZE_FORM, ISO_METAL_FORM_PLAIN)};
    struct codes_pair none = codes_new(2, 32);
    struct place bind[ISO_METAL_QUANTIZE_BINDINGS] = {{0}};
    codes_bind(bind, &none, false);
    bind[ISO_METAL_QUANTIZE_X] = place_new(x, sizeof(x));
    memcpy(bind[ISO_METAL_QUANTIZE_FAULT].host, &before, 4);
    gpu_record(&(struct gpu_launch){.pipeline = gpu_kernel("iso_quantize", constants, 2), .groups = {1, 1, 1},
                                            .threads = ISO_METAL_QUANTIZE_THREADS, .args = &a, .args_len = sizeof(a)}, bind,
                   ISO_METAL_QUANTIZE_BINDINGS);
    gpu_wait();
    assert_int_equal(*(const uint32_t *)bind[ISO_METAL_QUANTIZE_FAULT].host, before);
    for (size_t i = 0; i < ISO_METAL_QUANTIZE_BINDINGS; i++) place_free(&bind[i]);
    free(none.code);
    free(none.scale);
    free(none.sum32);
    free(none.tap);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm),         cmocka_unit_test(test_gather),      cmocka_unit_test(test_norm_quantize),
        cmocka_unit_test(test_quantize),     cmocka_unit_test(test_fault_stays),
        cmocka_unit_test(test_norm_limit),
    };
    return cmocka_run_group_tests(tests, gpu_open, gpu_close);
}
