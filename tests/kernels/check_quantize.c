/* SPDX-License-Identifier: MIT
 * check_quantize.c - the operations that make codes against the specification and each other.
 *
 * The specification is read a second time here; every instruction set is compared with the
 * reference bit for bit, between guard bytes.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "arith/prim.h"
#include "base/mem.h"
#include "kernels/inputs.h"
#include "kernels/quantize/quantize.h"
#include "kernels/shared/codes.h"
#include "kernels/shared/cpu.h"

static const size_t g_sizes[] = {32,  64,  96,  224, 256, 288,  480,
                                 512, 544, 576, 608, 640, 1536, 6656};

/* The four operations under one signature. */
enum op { OP_QUANTIZE, OP_NORM, OP_NORM_PLAIN, OP_GATE, OP_SWIGLU, OP_GEGLU, OP_COUNT };

struct row {
    struct iso_code_row out;
    float *tap;
    size_t n;
};

static struct row row_new(size_t n)
{
    const size_t stride = iso_codes_stride(n);
    struct row r = {.n = n};
    r.out.code = check_alloc(stride * sizeof(int16_t), CHECK_GUARDED);
    r.out.scale = check_alloc(stride / ISO_CODE_BLOCK * sizeof(float), CHECK_GUARDED);
    r.out.sum32 = check_alloc(stride / ISO_CODE_SUM * sizeof(int32_t), CHECK_GUARDED);
    r.tap = check_alloc(n * sizeof(float), CHECK_GUARDED);
    return r;
}

static void row_free(struct row *r)
{
    check_free(r->out.code);
    check_free(r->out.scale);
    check_free(r->out.sum32);
    check_free(r->tap);
}

static uint32_t run(const struct iso_quantize_kernels *k,
                    enum op op,
                    struct row *r,
                    float *tap,
                    const float *x,
                    const float *y)
{
    const float eps = 1e-5f;
    const float inv_n = (float)(1.0 / (double)r->n);
    switch (op) {
    case OP_NORM:
        return k->norm_quantize(&r->out, tap, x, y, eps, inv_n, r->n);
    case OP_NORM_PLAIN:
        return k->norm_quantize(&r->out, tap, x, NULL, eps, inv_n, r->n);
    case OP_GATE:
        return k->gate_quantize(&r->out, tap, x, y, r->n);
    case OP_SWIGLU:
        return k->glu_quantize(&r->out, tap, x, y, ISO_GLU_SWIGLU, r->n);
    case OP_GEGLU:
        return k->glu_quantize(&r->out, tap, x, y, ISO_GLU_GEGLU, r->n);
    default:
        return k->quantize(&r->out, x, r->n);
    }
}

/* Section 3 for one row, in other words than the kernel's. */
static uint32_t spec_quantize(struct row *r, const float *x)
{
    const size_t stride = iso_codes_stride(r->n);
    uint32_t largest = 0;
    memset(r->out.code, 0, stride * sizeof(int16_t));
    memset(r->out.sum32, 0, stride / ISO_CODE_SUM * sizeof(int32_t));
    for (size_t b = 0; b < stride / ISO_CODE_BLOCK; b++) {
        const size_t end = (b + 1) * ISO_CODE_BLOCK < r->n ? (b + 1) * ISO_CODE_BLOCK : r->n;
        float m = 0;
        for (size_t i = b * ISO_CODE_BLOCK; i < end; i++) m = fmaxf(m, fabsf(x[i]));
        uint32_t bits;
        memcpy(&bits, &m, sizeof(bits));
        if (bits > largest) largest = bits;
        r->out.scale[b] = 0;
        if (m < 0x1p-28f || !(m < 0x1p100f)) continue;
        r->out.scale[b] = m * (float)(1.0 / 2047);
        const float inv = iso_rcp(m) * 2047;
        for (size_t i = b * ISO_CODE_BLOCK; i < end; i++) {
            int32_t c = (int32_t)rintf(x[i] * inv);
            c = c > 2047 ? 2047 : c < -2047 ? -2047 : c;
            r->out.code[i] = (int16_t)c;
            r->out.sum32[i / ISO_CODE_SUM] += c;
        }
    }
    return largest;
}

/* Sections 6 and 11 for one element. */
static void spec_values(float *v, enum op op, const float *x, const float *y, size_t n)
{
    float lane[256] = {0};
    for (size_t i = 0; i < n; i++) lane[i % 256] = fmaf(x[i], x[i], lane[i % 256]);
    for (size_t s = 128; s > 0; s /= 2) {
        for (size_t i = 0; i < s; i++) lane[i] = lane[i] + lane[i + s];
    }
    const float t = lane[0] * (float)(1.0 / (double)n);
    const float r = iso_rsqrt(t + 1e-5f);
    for (size_t i = 0; i < n; i++) {
        switch (op) {
        case OP_NORM:
            v[i] = iso_guard((x[i] * r) * y[i]);
            break;
        case OP_NORM_PLAIN:
            v[i] = iso_guard(x[i] * r);
            break;
        case OP_GATE:
            v[i] = iso_guard(x[i] * iso_sigmoid(y[i]));
            break;
        case OP_SWIGLU:
            v[i] = iso_guard((x[i] * iso_sigmoid(x[i])) * y[i]);
            break;
        case OP_GEGLU: {
            const float q = x[i] * x[i];
            const float g = fmaf(q, 0.044715f, 1.0f);
            const float u = (x[i] * 0.7978845608f) * g;
            const float a = (0.5f * x[i]) * (1.0f + iso_tanh(u));
            v[i] = iso_guard(a * y[i]);
            break;
        }
        default:
            v[i] = x[i];
            break;
        }
    }
}

static void compare(const char *what, const struct row *got, const struct row *want)
{
    const size_t stride = iso_codes_stride(want->n);
    check_bytes(what, got->out.code, want->out.code, stride * sizeof(int16_t));
    check_bytes(what, got->out.sum32, want->out.sum32, stride / ISO_CODE_SUM * sizeof(int32_t));
    const size_t n_blocks = stride / ISO_CODE_BLOCK;
    check_bits_f32(what, got->out.scale, n_blocks, want->out.scale, n_blocks, 1, n_blocks);
    check_guards(got->out.code, what);
    check_guards(got->out.scale, what);
    check_guards(got->out.sum32, what);
    check_guards(got->tap, what);
}

static void test_reference_is_the_specification(void **state)
{
    (void)state;
    struct check_rng rng = check_rng(1);
    const struct iso_quantize_kernels *ref = iso_quantize_select(ISO_CPU_REF);
    assert_string_equal(ref->name, "ref");
    for (size_t s = 0; s < ISO_COUNT(g_sizes); s++) {
        const size_t n = g_sizes[s];
        float *x = check_alloc(n * sizeof(float), CHECK_END);
        float *y = check_alloc(n * sizeof(float), CHECK_END);
        float *v = check_alloc(n * sizeof(float), CHECK_GUARDED);
        struct row got = row_new(n);
        struct row want = row_new(n);
        for (int k = 0; k < INPUT_DOMAIN; k++) {
            for (int op = 0; op < OP_COUNT; op++) {
                char what[96];
                (void)snprintf(what, sizeof(what), "ref op %d n %zu %s", op, n,
                               input_kind_name((enum input_kind)k));
                input_fill(&rng, x, n, (enum input_kind)k);
                input_fill(&rng, y, n, INPUT_ORDINARY);
                spec_values(v, (enum op)op, x, y, n);
                const uint32_t a = run(ref, (enum op)op, &got, got.tap, x, y);
                const uint32_t b = spec_quantize(&want, v);
                if (a != b) fail_msg("%s: largest %08x, want %08x", what, a, b);
                compare(what, &got, &want);
                if (op != OP_QUANTIZE) check_bits_f32(what, got.tap, n, v, n, 1, n);
            }
        }
        row_free(&got);
        row_free(&want);
        check_free(x);
        check_free(y);
        check_free(v);
    }
}

/* One operation on one input at one level, against the reference; with and without a tap. */
static void compare_level(const struct iso_quantize_kernels *k,
                          enum op op,
                          struct row *got,
                          struct row *want,
                          const float *x,
                          const float *y,
                          const char *kind)
{
    char what[96];
    (void)snprintf(what, sizeof(what), "%s op %d n %zu %s", k->name, (int)op, got->n, kind);
    const uint32_t b = run(iso_quantize_select(ISO_CPU_REF), op, want, want->tap, x, y);
    memset(got->tap, 0xA5, got->n * sizeof(float));
    const uint32_t untapped = run(k, op, got, NULL, x, y);
    compare(what, got, want);
    const uint32_t a = run(k, op, got, got->tap, x, y);
    compare(what, got, want);
    /* The bits of a NaN are not pinned; that there is an error is. */
    const bool error = b >= ISO_BITS_2P100;
    if (error ? a < ISO_BITS_2P100 || untapped < ISO_BITS_2P100 : a != b || untapped != b) {
        fail_msg("%s: largest %08x and %08x, want %08x", what, a, untapped, b);
    }
    if (!error && op != OP_QUANTIZE)
        check_bits_f32(what, got->tap, got->n, want->tap, got->n, 1, got->n);
}

static void test_levels(void **state)
{
    (void)state;
    struct check_rng rng = check_rng(2);
    unsigned flags = 0;
    for (size_t level = 0; check_level(level, &flags); level++) {
        const struct iso_quantize_kernels *k = iso_quantize_select(flags);
        for (size_t s = 0; s < ISO_COUNT(g_sizes); s++) {
            const size_t n = g_sizes[s];
            float *x = check_alloc(n * sizeof(float), s % 2 ? CHECK_END : CHECK_START);
            float *y = check_alloc(n * sizeof(float), CHECK_END);
            struct row got = row_new(n);
            struct row want = row_new(n);
            for (int kind = 0; kind < INPUT_KINDS; kind++) {
                for (int op = 0; op < OP_COUNT; op++) {
                    input_fill(&rng, x, n, (enum input_kind)kind);
                    input_fill(&rng, y, n, kind % 2 ? INPUT_ORDINARY : INPUT_OUTLIER);
                    compare_level(k, (enum op)op, &got, &want, x, y,
                                  input_kind_name((enum input_kind)kind));
                }
            }
            row_free(&got);
            row_free(&want);
            check_free(x);
            check_free(y);
        }
    }
}

/* What leaves the domain is reported from every place of a row, and its block holds zeros. */
static void test_errors_are_reported(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY, 0x1p101f, -0x1.8p126f};
    const size_t n = 608;
    float *x = check_alloc(n * sizeof(float), CHECK_END);
    float *y = check_alloc(n * sizeof(float), CHECK_END);
    struct row r = row_new(n);
    unsigned flags = 0;
    for (size_t level = 0; check_level(level, &flags); level++) {
        const struct iso_quantize_kernels *k = iso_quantize_select(flags);
        for (size_t at = 0; at < n; at++) {
            for (size_t b = 0; b < ISO_COUNT(bad); b++) {
                for (size_t i = 0; i < n; i++) x[i] = y[i] = 1.0f;
                x[at] = bad[b];
                for (int op = 0; op < OP_COUNT; op++) {
                    /* swish(-inf) is not finite either; swish(-1.5 * 2^126) is 0 and fine. */
                    const bool fine = bad[b] < 0 && (op == OP_SWIGLU || op == OP_GEGLU);
                    const uint32_t m = run(k, (enum op)op, &r, NULL, x, y);
                    if (m < ISO_BITS_2P100 && !fine) {
                        fail_msg("%s op %d: %a at %zu not reported", k->name, op, (double)bad[b],
                                 at);
                    }
                    if (op == OP_QUANTIZE) assert_int_equal(r.out.code[at / 256 * 256], 0);
                }
            }
        }
    }
    row_free(&r);
    check_free(x);
    check_free(y);
}

/* A norm's input below 2^60 is in the domain, from 2^60 on it ends in an error (section 6). */
static void test_norm_domain(void **state)
{
    (void)state;
    const size_t n = 576;
    float *x = check_alloc(n * sizeof(float), CHECK_END);
    struct row r = row_new(n);
    unsigned flags = 0;
    for (size_t level = 0; check_level(level, &flags); level++) {
        const struct iso_quantize_kernels *k = iso_quantize_select(flags);
        for (size_t i = 0; i < n; i++) x[i] = 1.0f;
        x[n - 1] = 0x1.fffffep59f;
        assert_true(run(k, OP_NORM_PLAIN, &r, NULL, x, NULL) < ISO_BITS_2P100);
        x[n - 1] = -0x1p60f;
        assert_true(run(k, OP_NORM_PLAIN, &r, NULL, x, NULL) >= ISO_BITS_2P100);
    }
    row_free(&r);
    check_free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_is_the_specification),
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_errors_are_reported),
        cmocka_unit_test(test_norm_domain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
