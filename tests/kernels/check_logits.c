/* SPDX-License-Identifier: MIT
 * check_logits.c - logit scale, soft-cap, largest magnitude and argmax at every instruction set.
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
#include "kernels/logits/logits.h"
#include "kernels/shared/cpu.h"

static const size_t g_sizes[] = {1,  2,  3,   7,   15,  16,   17,   31,   32,   33,  63,
                                 64, 65, 255, 256, 257, 1023, 1024, 1025, 2048, 5003};

static const struct iso_logits_args g_args[] = {
    {.scale = 3.0f, .has_scale = 0, .cap = 0.0f},
    {.scale = 0.1767767f, .has_scale = 1, .cap = 0.0f},
    {.scale = 1.0f, .has_scale = 0, .cap = 30.0f, .inv_cap = (float)(1.0 / 30)},
    {.scale = -2.5f, .has_scale = 1, .cap = 15.0f, .inv_cap = (float)(1.0 / 15)},
};

static uint32_t spec_logits(float *l, const struct iso_logits_args *a, size_t n)
{
    uint32_t m = 0;
    for (size_t i = 0; i < n; i++) {
        if (a->has_scale) l[i] = l[i] * a->scale;
        uint32_t b = iso_abs_bits(l[i]);
        if (a->cap != 0 && b >= ISO_BITS_2P100) m = ISO_MAX(m, b);
        if (a->cap != 0) l[i] = a->cap * iso_tanh(l[i] * a->inv_cap);
        b = iso_abs_bits(l[i]);
        m = ISO_MAX(m, b);
    }
    return m;
}

static void test_logits(void **state)
{
    (void)state;
    struct check_rng rng = check_rng(1);
    unsigned flags = 0;
    for (size_t level = 0; check_level(level, &flags); level++) {
        const struct iso_logits_kernels *k = iso_logits_select(flags);
        for (size_t s = 0; s < ISO_COUNT(g_sizes); s++) {
            const size_t n = g_sizes[s];
            float *l = check_alloc(n * sizeof(float), s % 2 ? CHECK_END : CHECK_START);
            float *want = check_alloc(n * sizeof(float), CHECK_GUARDED);
            for (int kind = 0; kind < INPUT_DOMAIN; kind++) {
                for (size_t a = 0; a < ISO_COUNT(g_args); a++) {
                    input_fill(&rng, l, n, (enum input_kind)kind);
                    memcpy(want, l, n * sizeof(float));
                    const uint32_t b = spec_logits(want, &g_args[a], n);
                    const uint32_t m = k->logits(l, &g_args[a], n);
                    check_bits_f32(k->name, l, n, want, n, 1, n);
                    check_guards(l, k->name);
                    assert_int_equal(m, b);
                }
            }
            check_free(l);
            check_free(want);
        }
    }
}

/* No cap may hide what left the domain. */
static void test_errors_are_reported(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY, 0x1p120f, -0x1p120f};
    const size_t n = 1500;
    float *l = check_alloc(n * sizeof(float), CHECK_GUARDED);
    unsigned flags = 0;
    for (size_t level = 0; check_level(level, &flags); level++) {
        const struct iso_logits_kernels *k = iso_logits_select(flags);
        for (size_t a = 0; a < ISO_COUNT(g_args); a++) {
            for (size_t at = 0; at < n; at += 7) {
                for (size_t i = 0; i < n; i++) l[i] = 1.0f;
                l[at] = bad[at % ISO_COUNT(bad)];
                if (k->logits(l, &g_args[a], n) < ISO_BITS_2P100) {
                    fail_msg("%s settings %zu: %a at %zu not reported", k->name, a,
                             (double)bad[at % ISO_COUNT(bad)], at);
                }
            }
        }
    }
    check_free(l);
}

static size_t spec_argmax(const float *l, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++) {
        if (l[i] > l[best]) best = i;
    }
    return best;
}

static void test_argmax(void **state)
{
    (void)state;
    struct check_rng rng = check_rng(2);
    unsigned flags = 0;
    for (size_t level = 0; check_level(level, &flags); level++) {
        const struct iso_logits_kernels *k = iso_logits_select(flags);
        for (size_t s = 0; s < ISO_COUNT(g_sizes); s++) {
            const size_t n = g_sizes[s];
            float *l = check_alloc(n * sizeof(float), s % 2 ? CHECK_END : CHECK_START);
            for (int kind = 0; kind < INPUT_DOMAIN; kind++) {
                input_fill(&rng, l, n, (enum input_kind)kind);
                assert_int_equal(k->argmax(l, n), spec_argmax(l, n));
                /* Ties between any two places, also of the largest negative value. */
                for (int i = 0; i < 20; i++) {
                    const float top = i % 2 ? 0x1p60f : -1e-3f;
                    for (size_t j = 0; j < n && i == 0; j++) l[j] = -1.0f - fabsf(l[j]);
                    l[check_int(&rng, 0, (int64_t)n - 1)] = top;
                    l[check_int(&rng, 0, (int64_t)n - 1)] = top;
                    assert_int_equal(k->argmax(l, n), spec_argmax(l, n));
                }
            }
            check_free(l);
        }
        /* -0 and +0 are equal: the first of them wins. */
        const float zeros[] = {-1.0f, -0.0f, 0.0f, -0.0f};
        assert_int_equal(k->argmax(zeros, 4), 1);
        const float low[] = {-0x1.fffffep126f, -0x1.fffffep99f, -0x1.fffffep99f};
        assert_int_equal(k->argmax(low, 3), 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits),
        cmocka_unit_test(test_errors_are_reported),
        cmocka_unit_test(test_argmax),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
