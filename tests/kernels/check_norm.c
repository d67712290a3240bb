/* SPDX-License-Identifier: MIT
 * check_norm.c - RMS norm and residual addition against the specification and golden tensors.
 *
 * The specification is read a second time here; every instruction set runs every case.
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
#include "kernels/norm/norm.h"
#include "kernels/shared/cpu.h"

static const size_t g_sizes[] = {1,   2,   3,   4,   5,   6,   7,   8,   9,   10,  11,  12,
                                 13,  14,  15,  16,  17,  18,  19,  20,  21,  22,  23,  24,
                                 25,  26,  27,  28,  29,  30,  31,  32,  33,  63,  64,  65,
                                 127, 128, 129, 255, 256, 257, 511, 513, 576, 640, 6656};

static float inverse(size_t n)
{
    return (float)(1.0 / (double)n);
}

/* Section 6 as it is written. */
static void spec_norm(float *y, const float *x, const float *w, float eps, size_t n)
{
    float l[256] = {0};
    for (size_t i = 0; i < n; i++) l[i % 256] = fmaf(x[i], x[i], l[i % 256]);
    for (size_t s = 128; s >= 1; s /= 2) {
        for (size_t i = 0; i < s; i++) l[i] = l[i] + l[i + s];
    }
    const float t = l[0] * inverse(n);
    const float r = iso_rsqrt(t + eps);
    for (size_t i = 0; i < n; i++) {
        const float v = w ? (x[i] * r) * w[i] : x[i] * r;
        y[i] = fabsf(v) < 0x1p-60f ? 0.0f : v;
    }
}

/* All three operations, with and without weights, in place and not, on one row. */
static void
check_row(const struct iso_norm_kernels *k, struct check_rng *rng, size_t n, enum input_kind kind)
{
    char what[96];
    (void)snprintf(what, sizeof(what), "%s n %zu %s", k->name, n, input_kind_name(kind));
    const size_t bytes = n * sizeof(float);
    float *x = check_alloc(bytes, CHECK_END);
    float *w = check_alloc(bytes, CHECK_END);
    float *y = check_alloc(bytes, CHECK_GUARDED);
    float *sum = check_alloc(bytes, CHECK_END);
    float *want = check_alloc(bytes, CHECK_GUARDED);
    const float eps = check_next(rng) % 2 ? 1e-5f : 0x1p-60f;
    input_fill(rng, x, n, kind);
    input_fill(rng, w, n, INPUT_ORDINARY);
    for (int weighted = 0; weighted < 2; weighted++) {
        const float *weights = weighted ? w : NULL;
        spec_norm(want, x, weights, eps, n);
        k->norm(y, x, weights, eps, inverse(n), n);
        check_bits_f32(what, y, n, want, n, 1, n);
        check_guards(y, what);
        memcpy(sum, x, bytes);
        k->norm(sum, sum, weights, eps, inverse(n), n);
        check_bits_f32(what, sum, n, want, n, 1, n);
        memcpy(sum, w, bytes);
        k->residual_norm(sum, x, weights, eps, inverse(n), n);
        for (size_t i = 0; i < n; i++) want[i] = w[i] + want[i];
        check_bits_f32(what, sum, n, want, n, 1, n);
    }
    memcpy(sum, x, bytes);
    k->residual(sum, w, n);
    for (size_t i = 0; i < n; i++) want[i] = x[i] + w[i];
    check_bits_f32(what, sum, n, want, n, 1, n);
    check_free(x);
    check_free(w);
    check_free(y);
    check_free(sum);
    check_free(want);
}

static void test_levels(void **state)
{
    (void)state;
    struct check_rng rng = check_rng(1);
    unsigned flags = 0;
    for (size_t level = 0; check_level(level, &flags); level++) {
        const struct iso_norm_kernels *k = iso_norm_select(flags);
        for (size_t s = 0; s < ISO_COUNT(g_sizes); s++) {
            for (int kind = 0; kind < INPUT_DOMAIN; kind++) {
                check_row(k, &rng, g_sizes[s], (enum input_kind)kind);
            }
        }
    }
}

/* What is no number, or 2^60 and more, leaves no finite value behind (the next codes report it). */
static void test_errors_reach_the_output(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY, 0x1p60f, -0x1p60f, 0x1p64f, -0x1p120f};
    const size_t n = 300;
    float *x = check_alloc(n * sizeof(float), CHECK_END);
    float *w = check_alloc(n * sizeof(float), CHECK_END);
    float *y = check_alloc(n * sizeof(float), CHECK_GUARDED);
    unsigned flags = 0;
    for (size_t level = 0; check_level(level, &flags); level++) {
        const struct iso_norm_kernels *k = iso_norm_select(flags);
        for (size_t b = 0; b < ISO_COUNT(bad); b++) {
            for (size_t at = 0; at < n; at++) {
                for (size_t i = 0; i < n; i++) {
                    x[i] = (float)(i % 3);
                    w[i] = (float)(i % 2);
                }
                x[at] = bad[b];
                k->norm(y, x, w, 1e-5f, inverse(n), n);
                size_t n_finite = 0;
                for (size_t i = 0; i < n; i++) n_finite += iso_abs_bits(y[i]) < ISO_BITS_2P100;
                if (n_finite) fail_msg("%s: %a at %zu", k->name, (double)bad[b], at);
            }
        }
    }
    check_free(x);
    check_free(w);
    check_free(y);
}

struct golden_norm {
    const char *file, *model, *key; /* key of eps */
    const char *in, *weight, *out;
    const char *add; /* residual to which the norm is added, or NULL */
};

static const struct golden_norm g_norms[] = {
#define SMOL                                                                                       \
    "SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m", "llama.attention.layer_norm_rms_epsilon"
#define GEMMA "gemma-3-270m-q4_k_m.gguf", "gemma3-270m", "gemma3.attention.layer_norm_rms_epsilon"
    {SMOL, "embd", "blk.0.attn_norm.weight", "00.attn_norm", NULL},
    {SMOL, "00.ffn_inp", "blk.0.ffn_norm.weight", "00.ffn_norm", NULL},
    {GEMMA, "embd", "blk.0.attn_norm.weight", "00.attn_norm", NULL},
    {GEMMA, "00.ffn_inp", "blk.0.ffn_norm.weight", "00.ffn_norm", NULL},
    {GEMMA, "00.attn_o_proj", "blk.0.post_attention_norm.weight", "00.ffn_inp", "embd"},
    {GEMMA, "00.ffn_down", "blk.0.post_ffw_norm.weight", "00.l_out", "00.ffn_inp"},
};

static void check_golden(const struct golden_norm *t)
{
    struct iso_gguf *g = input_model(t->file);
    float eps = 0;
    if (iso_gguf_f32(&eps, g, t->key) != ISO_OK) fail_msg("%s", iso_err_detail());
    size_t n = 0;
    size_t len = 0;
    size_t want_len = 0;
    float *w = input_weights(g, t->weight, &n);
    float *in = input_golden(t->model, t->in, &len);
    float *want = input_golden(t->model, t->out, &want_len);
    assert_int_equal(len, want_len);
    assert_int_equal(len % n, 0);
    float *y = check_alloc(len * sizeof(float), CHECK_GUARDED);
    unsigned flags = 0;
    for (size_t level = 0; check_level(level, &flags); level++) {
        const struct iso_norm_kernels *k = iso_norm_select(flags);
        float *sum = t->add ? input_golden(t->model, t->add, &want_len) : NULL;
        for (size_t i = 0; i < len; i += n) {
            if (sum) {
                k->residual_norm(sum + i, in + i, w, eps, inverse(n), n);
            } else {
                k->norm(y + i, in + i, w, eps, inverse(n), n);
            }
        }
        check_bits_f32(t->out, sum ? sum : y, n, want, n, len / n, n);
        check_free(sum);
    }
    check_free(w);
    check_free(in);
    check_free(want);
    check_free(y);
    iso_gguf_close(g);
}

static void test_golden_norms(void **state)
{
    (void)state;
    for (size_t i = 0; i < ISO_COUNT(g_norms); i++) check_golden(&g_norms[i]);
}

static void test_golden_residual(void **state)
{
    (void)state;
    static const char *const sums[][3] = {{"embd", "00.attn_o_proj", "00.ffn_inp"},
                                          {"00.ffn_inp", "00.ffn_down", "00.l_out"}};
    unsigned flags = 0;
    for (size_t level = 0; check_level(level, &flags); level++) {
        for (size_t i = 0; i < ISO_COUNT(sums); i++) {
            size_t n = 0;
            float *x = input_golden("smollm2-135m", sums[i][0], &n);
            float *y = input_golden("smollm2-135m", sums[i][1], &n);
            float *want = input_golden("smollm2-135m", sums[i][2], &n);
            iso_norm_select(flags)->residual(x, y, n);
            check_bits_f32(sums[i][2], x, n, want, n, 1, n);
            check_free(x);
            check_free(y);
            check_free(want);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_errors_reach_the_output),
        cmocka_unit_test(test_golden_norms),
        cmocka_unit_test(test_golden_residual),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
