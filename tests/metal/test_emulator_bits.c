/* SPDX-License-Identifier: MIT
 * test_emulator_bits.c - kernels in the Metal emulator give the bits of the CPU's functions, with any seed.
 *
 * An EMULATION on the CPU is tested here, not Metal. Needs clang++ and python3.
 */
#include <math.h>
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
#include "emu_case.h"
#include "kernels/shared/rms.h"

#define SEEDS 12
#define LANES 256

static const char *const g_exact[] = {"tests/metal/kernels_exact.metal"};


struct rms_args {
    uint32_t n;
    float eps, inv_n;
};

static void norm_row(float *y, const float *x, const float *weight, const struct rms_args *a)
{
    const float r = rms_factor(x, a->eps, a->inv_n, a->n);
    for (uint32_t i = 0; i < a->n; i++) y[i] = iso_guard(weight ? (x[i] * r) * weight[i] : x[i] * r);
}

static void test_norm(void **state)
{
    (void)state;
    enum { ROWS = 3, MOST = 1000 };
    static const uint32_t sizes[] = {1, 33, 255, 256, 257, 576, MOST};
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct emu_case c;
        float *x = NULL, *w = NULL, *y = NULL, want[MOST];
        emu_case_open(&c, g_exact, 1, seed, seed % 2);
        const struct iso_metal_binding b[3] = {{emu_case_buffer(&c, ROWS * MOST * 4, (void **)&x), 0},
                                               {emu_case_buffer(&c, MOST * 4, (void **)&w), 0},
                                               {emu_case_buffer(&c, ROWS * MOST * 4, (void **)&y), 0}};
        const uint32_t n = sizes[seed % ISO_COUNT(sizes)];
        const struct iso_metal_constant k = {0, ISO_METAL_BOOL, seed % 3 != 0};
        const struct rms_args a = {.n = n, .eps = 1e-5f, .inv_n = 1.0f / (float)n};
        srand((unsigned)seed);
        for (uint32_t i = 0; i < ROWS * n; i++) x[i] = ldexpf((float)rand() / (float)RAND_MAX - 0.5f, rand() % 40 - 20);
        for (uint32_t i = 0; i < n; i++) w[i] = (float)rand() / (float)RAND_MAX;
        const struct iso_metal_dispatch d = {.pipeline = emu_case_pipeline(&c, "rms_norm", &k, 1), .args = &a,
                                             .args_len = sizeof(a), .bind = b, .n_bind = 3, .groups = {ROWS, 1, 1},
                                             .group_threads = LANES};
        iso_metal_gpu_dispatch(c.gpu, &d);
        if (iso_metal_gpu_commit(c.gpu, 1000) != ISO_OK) fail_msg("%s", iso_err_detail());
        for (uint32_t r = 0; r < ROWS; r++) {
            norm_row(want, x + r * n, k.value ? w : NULL, &a);
            if (memcmp(want, y + r * n, n * 4) != 0) fail_msg("norm: other bits, n %u, seed %d", n, (int)seed);
        }
        emu_case_close(&c);
    }
}

static void test_primitives(void **state)
{
    (void)state;
    enum { COUNT = 1024 };
    struct emu_case c;
    float *x = NULL, *y = NULL;
    emu_case_open(&c, g_exact, 1, 5, false);
    const struct iso_metal_binding b[2] = {{emu_case_buffer(&c, COUNT * 4, (void **)&x), 0},
                                           {emu_case_buffer(&c, 6 * COUNT * 4, (void **)&y), 0}};
    srand(5);
    for (int i = 0; i < COUNT; i++) x[i] = ldexpf((float)rand() / (float)RAND_MAX - 0.5f, rand() % 24 - 16);
    const struct iso_metal_dispatch d = {.pipeline = emu_case_pipeline(&c, "primitives", NULL, 0), .bind = b,
                                         .n_bind = 2, .groups = {COUNT / 64, 1, 1}, .group_threads = 64};
    iso_metal_gpu_dispatch(c.gpu, &d);
    if (iso_metal_gpu_commit(c.gpu, 1000) != ISO_OK) fail_msg("%s", iso_err_detail());
    for (int i = 0; i < COUNT; i++) {
        const float v = x[i], product = v * 3.0f;
        const float want[6] = {iso_sigmoid(v), iso_tanh(v), iso_swiglu(v, 0.75f), iso_geglu(v, 1.25f),
                               iso_rcp(iso_absf(v) + 1.0f), product + 0.1f};
        for (int k = 0; k < 6; k++) {
            if (memcmp(&want[k], &y[6 * i + k], 4) != 0) {
                fail_msg("primitive %d of %a: %a, not %a", k, (double)v, (double)y[6 * i + k], (double)want[k]);
            }
        }
    }
    emu_case_close(&c);
}

/* Without the pragma a product and a sum are one step, as Metal's compiler makes them. */
static void test_contraction(void **state)
{
    (void)state;
    static const char body[] = "kernel void k(device const float *x [[buffer(1)]], device float *y [[buffer(2)]], "
                               "uint i [[thread_position_in_grid]]) { y[i] = x[i] * 3.0f + 0.1f; }\n";
    for (int with = 0; with < 2; with++) {
        char text[600];
        struct emu_case c = {.seed = 1};
        float *x = NULL, *y = NULL;
        const int len = snprintf(text, sizeof(text), "#include <metal_stdlib>\n%s%s",
                                 with ? "#pragma METAL fp contract(off)\n" : "", body);
        assert_int_equal(iso_metal_gpu_open(&c.gpu, text, (size_t)len, false), ISO_OK);
        const struct iso_metal_binding b[2] = {{emu_case_buffer(&c, 128, (void **)&x), 0},
                                               {emu_case_buffer(&c, 128, (void **)&y), 0}};
        const struct iso_metal_dispatch d = {.pipeline = emu_case_pipeline(&c, "k", NULL, 0), .bind = b, .n_bind = 2,
                                             .groups = {1, 1, 1}, .group_threads = 32};
        for (int i = 0; i < 32; i++) x[i] = 1.0f / (float)(i + 3);
        iso_metal_gpu_dispatch(c.gpu, &d);
        assert_int_equal(iso_metal_gpu_commit(c.gpu, 1000), ISO_OK);
        int differ = 0;
        for (int i = 0; i < 32; i++) {
            const float product = x[i] * 3.0f;
            differ += y[i] != product + 0.1f;
            assert_true(with || y[i] == fmaf(x[i], 3.0f, 0.1f));
        }
        assert_true(with ? differ == 0 : differ > 0);
        emu_case_close(&c);
    }
}

static uint16_t half_of(int v) /* whole numbers from -64 to 64 */
{
    const float f = (float)v;
    const uint32_t u = iso_as_u32(f);
    return v == 0 ? 0 : (uint16_t)((u >> 16 & 0x8000) | (((u >> 23 & 255) - 112) << 10) | (u >> 13 & 0x3ff));
}

static void test_matrix(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct emu_case c;
        uint16_t *a = NULL, *b = NULL;
        float *out = NULL, *lanes = NULL;
        int va[256], vb[64];
        emu_case_open(&c, g_exact, 1, seed, seed % 2);
        const struct iso_metal_binding bind[4] = {{emu_case_buffer(&c, 512, (void **)&a), 0},
                                                  {emu_case_buffer(&c, 128, (void **)&b), 0},
                                                  {emu_case_buffer(&c, 256, (void **)&out), 0},
                                                  {emu_case_buffer(&c, 256, (void **)&lanes), 0}};
        for (int i = 0; i < 256; i++) a[i] = half_of(va[i] = (i * 37 + (int)seed) % 127 - 63);
        for (int i = 0; i < 64; i++) b[i] = half_of(vb[i] = (i * 53 + 5) % 127 - 63);
        const struct iso_metal_dispatch d = {.pipeline = emu_case_pipeline(&c, "matrix_whole", NULL, 0), .bind = bind,
                                             .n_bind = 4, .groups = {1, 1, 1}, .group_threads = 32};
        iso_metal_gpu_dispatch(c.gpu, &d);
        if (iso_metal_gpu_commit(c.gpu, 1000) != ISO_OK) fail_msg("%s", iso_err_detail());
        for (int i = 0; i < 64; i++) { /* a from row 1, column 8; b transposed */
            int s = 3;
            for (int k = 0; k < 8; k++) s += va[(i / 8 + 1) * 16 + 8 + k] * vb[i % 8 * 8 + k];
            assert_int_equal((int)out[i], s);
        }
        for (int l = 0; l < 32; l++) {
            const int r = (l / 4 & 4) + (l / 2 & 3), col = (l / 4 & 2) * 2 + (l & 1) * 2;
            assert_true(lanes[2 * l] == out[8 * r + col] && lanes[2 * l + 1] == out[8 * r + col + 1]);
        }
        emu_case_close(&c);
    }
}

/* Sums of any floats change with the seed; a lane's own data needs a barrier before a matrix reads it. */
static void test_matrix_order(void **state)
{
    (void)state;
    float first[64] = {0}, *a = NULL, *out = NULL;
    int different = 0;
    struct emu_case c;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        emu_case_open(&c, g_exact, 1, seed, true);
        const uint32_t in = emu_case_buffer(&c, 256, (void **)&a);
        const struct iso_metal_binding bind[3] = {{in, 0}, {in, 0}, {emu_case_buffer(&c, 256, (void **)&out), 0}};
        for (int i = 0; i < 64; i++) a[i] = 1.0f / (float)(i + 3);
        struct iso_metal_dispatch d = {.pipeline = emu_case_pipeline(&c, "matrix_float", NULL, 0), .bind = bind,
                                       .n_bind = 3, .groups = {1, 1, 1}, .group_threads = 32};
        iso_metal_gpu_dispatch(c.gpu, &d);
        if (iso_metal_gpu_commit(c.gpu, 1000) != ISO_OK) fail_msg("%s", iso_err_detail());
        if (seed == 1) memcpy(first, out, sizeof(first));
        different += memcmp(first, out, sizeof(first)) != 0;
        d.pipeline = emu_case_pipeline(&c, "matrix_no_barrier", NULL, 0);
        iso_metal_gpu_dispatch(c.gpu, &d);
        assert_int_equal(iso_metal_gpu_commit(c.gpu, 1000), ISO_E_GPU);
        assert_non_null(strstr(iso_err_detail(), "race with the write of lane"));
        emu_case_close(&c);
    }
    assert_true(different > 0);
}

static void want_integers(uint32_t o[16], const uint32_t *x, uint32_t i)
{
    const uint32_t v = x[i], base = i / 32 * 32, lane = i % 32;
    int8_t c[4];
    uint8_t b[4];
    memcpy(c, &v, 4);
    memcpy(b, &v, 4);
    memset(o, 0, 16 * sizeof(*o));
    o[0] = (uint32_t)__builtin_popcount(v);
    o[1] = v ? (uint32_t)__builtin_clz(v) : 32;
    o[2] = v ? (uint32_t)__builtin_ctz(v) : 32;
    o[3] = v >> 5 & 127;
    o[4] = (o[3] & 64) ? o[3] | 0xffffff80u : o[3];
    o[5] = (uint32_t)((uint64_t)v * 0x9e3779b9u >> 32);
    for (int k = 0; k < 4; k++) o[6] += (uint32_t)(c[k] * b[3 - k]);
    for (uint32_t k = 0; k < lane; k++) o[7] += x[base + k];
    for (uint32_t k = 0; k < 32; k++) {
        o[8] = ISO_MAX(o[8], x[base + k]);
        o[10] |= (x[base + k] & 1) << k;
    }
    o[9] = x[base + 31 - lane];
    o[11] = v << 7 | v >> 25;
    o[12] = (int32_t)v <= -5;
    /* o[13] is a half's rounding, below */
    const int s = c[0] + c[1];
    o[14] = (uint32_t)(s > 127 ? 127 : s < -128 ? -128 : s);
    o[15] = lane + 100 * (i % 128 / 32) + 10000 * 2 * 21;
}

static void test_integers(void **state)
{
    (void)state;
    enum { COUNT = 512 };
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct emu_case c;
        uint32_t *x = NULL, *y = NULL, want[16];
        const struct iso_metal_constant k = {1, ISO_METAL_U32, 21};
        emu_case_open(&c, g_exact, 1, seed, seed % 2);
        const struct iso_metal_binding b[2] = {{emu_case_buffer(&c, COUNT * 4, (void **)&x), 0},
                                               {emu_case_buffer(&c, 16 * COUNT * 4, (void **)&y), 0}};
        srand((unsigned)seed);
        for (int i = 0; i < COUNT; i++) x[i] = i < 4 ? (uint32_t)-i : ((uint32_t)rand() << 9) ^ (uint32_t)rand();
        const struct iso_metal_dispatch d = {.pipeline = emu_case_pipeline(&c, "integers", &k, 1), .bind = b,
                                             .n_bind = 2, .groups = {COUNT / 128, 1, 1}, .group_threads = 128};
        iso_metal_gpu_dispatch(c.gpu, &d);
        if (iso_metal_gpu_commit(c.gpu, 1000) != ISO_OK) fail_msg("%s", iso_err_detail());
        for (uint32_t i = 0; i < COUNT; i++) {
            want_integers(want, x, i);
            const float f = (float)(x[i] & 0xffff) * 0.37f, h = iso_as_f32(y[16 * i + 13]);
            assert_true(fabsf(f - h) <= f / 2048.0f + 1e-7f);
            want[13] = y[16 * i + 13];
            for (int o = 0; o < 16; o++) {
                if (want[o] != y[16 * i + o]) fail_msg("value %d of %08x: %08x, not %08x", o, x[i], y[16 * i + o], want[o]);
            }
        }
        emu_case_close(&c);
    }
}

/* rms_norm asks HAS_WEIGHT (0): a pipeline without it is an error. */
static void test_constant_not_set(void **state)
{
    (void)state;
    struct emu_case c;
    float *x = NULL;
    const struct rms_args a = {.n = 256, .eps = 1e-5f, .inv_n = 1.0f / 256};
    emu_case_open(&c, g_exact, 1, 1, true);
    const struct iso_metal_binding b[3] = {{emu_case_buffer(&c, 1024, (void **)&x), 0},
                                           {emu_case_buffer(&c, 1024, (void **)&x), 0},
                                           {emu_case_buffer(&c, 1024, (void **)&x), 0}};
    const struct iso_metal_dispatch d = {.pipeline = emu_case_pipeline(&c, "rms_norm", NULL, 0), .args = &a,
                                         .args_len = sizeof(a), .bind = b, .n_bind = 3, .groups = {1, 1, 1},
                                         .group_threads = LANES};
    iso_metal_gpu_dispatch(c.gpu, &d);
    assert_int_equal(iso_metal_gpu_commit(c.gpu, 1000), ISO_E_GPU);
    assert_non_null(strstr(iso_err_detail(), "function constant HAS_WEIGHT (0) is used"));
    emu_case_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm),         cmocka_unit_test(test_primitives),
        cmocka_unit_test(test_contraction),  cmocka_unit_test(test_matrix),
        cmocka_unit_test(test_matrix_order), cmocka_unit_test(test_integers),
        cmocka_unit_test(test_constant_not_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
