/* SPDX-License-Identifier: MIT
 * test_emulator.c - the Metal emulator itself: right kernels pass with any seed, each injected bug is found.
 *
 * An EMULATION on the CPU is tested here, not Metal. Needs clang++ and python3.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "emu_case.h"

#define SEEDS 12 /* of right kernels */
#define BUG_SEEDS 4
#define GROUPS 4
#define LANES 256
#define N (GROUPS * LANES)

static const char *const g_order[] = {"tests/metal/kernels_order.metal"};
static const char *const g_bounds[] = {"tests/metal/kernels_bounds.metal"};
static const char *const g_exact[] = {"tests/metal/kernels_exact.metal"};

/* One dispatch of a kernel of kernels_order.metal on x [N], y [N]; error codes are the commit's. */
static enum iso_err run_order(struct emu_case *c, const char *kernel, uint32_t groups, uint32_t **y)
{
    uint32_t *x = NULL;
    const struct iso_metal_binding b[2] = {{emu_case_buffer(c, N * 4, (void **)&x), 0},
                                           {emu_case_buffer(c, N * 4, (void **)y), 0}};
    for (uint32_t i = 0; i < N; i++) x[i] = 7 * i + 1;
    const struct iso_metal_dispatch d = {.pipeline = emu_case_pipeline(c, kernel, NULL, 0), .bind = b, .n_bind = 2,
                                         .groups = {groups, 1, 1}, .group_threads = LANES};
    iso_metal_gpu_dispatch(c->gpu, &d);
    return iso_metal_gpu_commit(c->gpu, 1000);
}

/* The message of a kernel's bug must hold part. */
static void expect_bug(const char *kernel, const char *part, bool checked)
{
    for (uint64_t seed = 1; seed <= BUG_SEEDS; seed++) {
        struct emu_case c;
        uint32_t *y = NULL;
        emu_case_open(&c, g_order, 1, seed, checked);
        const enum iso_err err = run_order(&c, kernel, GROUPS, &y);
        if (err != ISO_E_GPU) fail_msg("%s: seed %d was not found to be wrong", kernel, (int)seed);
        if (!strstr(iso_err_detail(), part) || !strstr(iso_err_detail(), kernel)) {
            fail_msg("%s: \"%s\" is not in: %s", kernel, part, iso_err_detail());
        }
        assert_int_equal(iso_metal_gpu_commit(c.gpu, 1000), ISO_E_GPU); /* the device is lost */
        emu_case_close(&c);
    }
}

static void expect_right(const char *kernel, uint32_t groups, uint32_t (*want)(uint32_t i))
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct emu_case c;
        uint32_t *y = NULL;
        emu_case_open(&c, g_order, 1, seed, seed % 2);
        if (run_order(&c, kernel, groups, &y) != ISO_OK) fail_msg("%s", iso_err_detail());
        for (uint32_t i = 0; want && i < groups * LANES; i++) {
            if (y[i] != want(i)) fail_msg("%s, seed %d: y[%u] is %u, not %u", kernel, (int)seed, i, y[i], want(i));
        }
        emu_case_close(&c);
    }
}

static uint32_t x_of(uint32_t i) { return 7 * i + 1; }
static uint32_t reversed(uint32_t i) { return x_of(i / LANES * LANES + LANES - 1 - i % LANES); }
static uint32_t simd_reversed(uint32_t i) { return x_of(i ^ 31); }
static uint32_t thirty_two(uint32_t i) { return i < N ? 32 : 0; }
static uint32_t group_sum(uint32_t i)
{
    uint32_t s = 0;
    for (uint32_t k = 0; k < 32; k++) s += x_of(i / 32 * 32 + k);
    return i % LANES < 224 ? s : 0;
}
static uint32_t counts(uint32_t i) { return i == 0 ? N : i == 1 ? LANES - 1 : 0; }

static void test_right_order(void **state)
{
    (void)state;
    expect_right("reverse_good", GROUPS, reversed);
    expect_right("reverse_simd_good", GROUPS, simd_reversed);
    expect_right("barrier_good", GROUPS, thirty_two);
    expect_right("simd_returned_good", 1, group_sum);
    expect_right("count_good", GROUPS, counts);
}

static void test_races(void **state)
{
    (void)state;
    expect_bug("reverse_no_barrier", "race with the", true);
    expect_bug("reverse_wrong_flag", "threadgroup memory s at byte", true);
    expect_bug("reverse_wrong_scope", "threadgroup memory s at byte", true);
    expect_bug("last_wins", "race with the write of lane", true);
    expect_bug("groups_race", "race with the write of threadgroup", true);
    expect_bug("byte_race", "race with the write of lane", true);
    expect_bug("count_lost", "race with the", true);
    expect_bug("count_half_atomic", "race with the", true);
}

static void test_divergence(void **state)
{
    (void)state;
    for (int checked = 0; checked < 2; checked++) {
        expect_bug("barrier_divergent", "divergence; lanes 100-255 have returned; lanes 0-99 wait", checked);
        expect_bug("barrier_returned", "lanes 224-255 have returned; lanes 0-223 wait at threadgroup_barrier", checked);
        expect_bug("barrier_two_places", "divergence; lanes", checked);
        expect_bug("simd_divergent", "wait at simd_sum", checked);
        expect_bug("simd_returned_read", "reads a lane that has returned", checked);
        expect_bug("broadcast_uneven", "from different lanes", checked);
    }
}

/* Without checks a wrong order still shows as bits that change with the seed, and the right twin's do not. */
static void test_order_shows(void **state)
{
    (void)state;
    static const char *const kernels[] = {"sum_tree", "sum_any_order", "last_wins", "reverse_no_barrier"};
    for (size_t k = 0; k < ISO_COUNT(kernels); k++) {
        uint32_t first[LANES];
        int different = 0;
        for (uint64_t seed = 1; seed <= 8; seed++) {
            struct emu_case c;
            float *x = NULL;
            uint32_t *y = NULL;
            emu_case_open(&c, g_order, 1, seed, false);
            const struct iso_metal_binding b[2] = {{emu_case_buffer(&c, LANES * 4, (void **)&x), 0},
                                                   {emu_case_buffer(&c, LANES * 4, (void **)&y), 0}};
            for (int i = 0; i < LANES; i++) x[i] = 1.0f / (float)(i + 3);
            const struct iso_metal_dispatch d = {.pipeline = emu_case_pipeline(&c, kernels[k], NULL, 0), .bind = b,
                                                 .n_bind = 2, .groups = {1, 1, 1}, .group_threads = LANES};
            iso_metal_gpu_dispatch(c.gpu, &d);
            assert_int_equal(iso_metal_gpu_commit(c.gpu, 1000), ISO_OK);
            if (seed == 1) memcpy(first, y, sizeof(first));
            different += memcmp(first, y, sizeof(first)) != 0;
            emu_case_close(&c);
        }
        if (k == 0 && different) fail_msg("%s gave other bits with other seeds", kernels[k]);
        if (k > 0 && !different) fail_msg("%s gave the same bits with all seeds", kernels[k]);
    }
}

/* n dispatches of add_one, x to y to x and on; barrier says where one is recorded. */
static enum iso_err chain(struct emu_case *c, int n, int both, bool barrier, uint32_t *last)
{
    uint32_t *h[2];
    const uint32_t b[2] = {emu_case_buffer(c, N * 4, (void **)&h[0]), emu_case_buffer(c, N * 4, (void **)&h[1])};
    const uint32_t p = emu_case_pipeline(c, "add_one", NULL, 0);
    for (int i = 0; i < n; i++) {
        const struct iso_metal_binding bind[2] = {{b[i % 2], 0}, {b[1 - i % 2], 0}};
        const struct iso_metal_dispatch d = {.pipeline = p, .bind = bind, .n_bind = 2, .groups = {GROUPS, 1, 1},
                                             .group_threads = LANES};
        if (i && barrier) iso_metal_gpu_barrier(c->gpu, b, (size_t)both);
        iso_metal_gpu_dispatch(c->gpu, &d);
    }
    const enum iso_err err = iso_metal_gpu_commit(c->gpu, 1000);
    *last = h[n % 2][N - 1];
    return err;
}

static void test_dispatch_barriers(void **state)
{
    (void)state;
    uint32_t last = 0;
    int wrong = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct emu_case c;
        emu_case_open(&c, g_order, 1, seed, seed % 2);
        if (chain(&c, 6, 2, true, &last) != ISO_OK) fail_msg("%s", iso_err_detail());
        assert_int_equal(last, 6);
        if (chain(&c, 1, 2, false, &last) != ISO_OK) fail_msg("%s", iso_err_detail()); /* a commit orders all */
        emu_case_close(&c);
        emu_case_open(&c, g_order, 1, seed, true); /* no barrier */
        assert_int_equal(chain(&c, 2, 2, false, &last), ISO_E_GPU);
        assert_non_null(strstr(iso_err_detail(), "hazard with the"));
        emu_case_close(&c);
        emu_case_open(&c, g_order, 1, seed, true); /* on one of two buffers */
        assert_int_equal(chain(&c, 2, 1, true, &last), ISO_E_GPU);
        assert_non_null(strstr(iso_err_detail(), "hazard with the"));
        emu_case_close(&c);
        emu_case_open(&c, g_order, 1, seed, false); /* unchecked: the order shows in the result */
        assert_int_equal(chain(&c, 6, 2, false, &last), ISO_OK);
        wrong += last != 6;
        emu_case_close(&c);
    }
    assert_true(wrong > 0);
}

struct bounds_args {
    uint32_t n, past;
};

/* A kernel of kernels_bounds.metal on buffers of 250 values. NULL: it must pass, else the message's part. */
static void bounds_at(const char *kernel, uint32_t past, const char *part, uint32_t offset, bool checked)
{
    struct emu_case c;
    uint32_t *x = NULL, *y = NULL;
    const bool even = strcmp(kernel, "copy_vector") == 0 || strcmp(kernel, "copy_struct") == 0;
    const struct bounds_args a = {.n = even ? 240 : 250, .past = past};
    emu_case_open(&c, g_bounds, 1, 3, checked);
    const struct iso_metal_binding b[3] = {{emu_case_buffer(&c, a.n * 4 + offset, (void **)&x), offset},
                                           {emu_case_buffer(&c, a.n * 4, (void **)&y), 0}, {0, 0}};
    for (uint32_t i = 0; i < a.n; i++) x[i] = i;
    const struct iso_metal_dispatch d = {.pipeline = emu_case_pipeline(&c, kernel, NULL, 0), .args = &a,
                                         .args_len = sizeof(a), .bind = b, .n_bind = 3, .groups = {1, 1, 1},
                                         .group_threads = LANES, .threadgroup_bytes = 1024};
    iso_metal_gpu_dispatch(c.gpu, &d);
    const enum iso_err err = iso_metal_gpu_commit(c.gpu, 1000);
    if (!part && err != ISO_OK) fail_msg("%s", iso_err_detail());
    if (part && err != ISO_E_GPU) fail_msg("%s: was not found to be wrong", kernel);
    if (part && !strstr(iso_err_detail(), part)) fail_msg("\"%s\" is not in: %s", part, iso_err_detail());
    emu_case_close(&c);
}

static void bounds(const char *kernel, uint32_t past, const char *part)
{
    bounds_at(kernel, past, part, 16, true);
}

static void test_bounds(void **state)
{
    (void)state;
    bounds_at("copy_vector", 0, "read of 16 bytes at an address that is 8 beyond", 8, true);
    bounds_at("copy_write_past", 65536 / 4, "memory fault", 16, false); /* all of it into the guard behind the buffer */
    bounds_at("unbound", 0, "memory fault", 16, false);
    bounds("copy_good", 0, NULL);
    bounds("copy_read_past", 0, NULL);
    bounds("copy_read_past", 1, "read of 4 bytes at 1000 of buffer(1), which has 1000 bytes");
    bounds("copy_write_past", 0, NULL);
    bounds("copy_write_past", 1, "write of 4 bytes at 1000 of buffer(2), which has 1000 bytes");
    bounds("copy_read_before", 0, "read of 4 bytes at -4 of buffer(1)");
    bounds("copy_vector", 0, NULL);
    bounds("copy_vector", 4, "read of 16 bytes at 960 of buffer(1)");
    bounds("copy_struct", 0, NULL);
    bounds("copy_struct", 6, "bytes at 960 of buffer(1), which has 960 bytes");
    bounds("args_past", 0, "at 8 of buffer(0), which has 8 bytes");
    bounds("unbound", 0, "a buffer that is not bound");
}

static void test_group_bounds(void **state)
{
    (void)state;
    bounds("group_past", 0, NULL);
    bounds("group_past", 1, "write of 4 bytes at 256 of threadgroup memory s, which has 256 bytes");
    bounds("group_unwritten", 0, NULL);
    bounds("group_unwritten", 1, "threadgroup memory s at byte 252: nobody has written there");
    bounds("group_dynamic", 0, NULL);
    bounds("group_dynamic", 1, "at 1024 of threadgroup memory [[threadgroup]], which has 1024 bytes");
    bounds("group_too_large", 0, "bytes of threadgroup memory, limit 32768");
}

static void test_read_only(void **state)
{
    (void)state;
    struct emu_case c;
    uint32_t *y = NULL, wrapped = 0;
    void *pages = NULL;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const struct bounds_args a = {.n = 250};
    assert_int_equal(posix_memalign(&pages, page, page), 0);
    memset(pages, 0, page);
    for (int write = 0; write < 2; write++) {
        emu_case_open(&c, g_bounds, 1, 1, true);
        assert_int_equal(iso_metal_gpu_wrap(c.gpu, pages, page, &wrapped), ISO_OK);
        assert_int_equal(iso_metal_gpu_wrap(c.gpu, (char *)pages + 16, page, &wrapped), ISO_E_GPU);
        const struct iso_metal_binding b[2] = {{wrapped, 0}, {emu_case_buffer(&c, 1000, (void **)&y), 0}};
        const char *kernel = write ? "write_input" : "copy_good";
        const struct iso_metal_dispatch d = {.pipeline = emu_case_pipeline(&c, kernel, NULL, 0), .args = &a,
                                             .args_len = sizeof(a), .bind = b, .n_bind = 2, .groups = {1, 1, 1},
                                             .group_threads = LANES};
        iso_metal_gpu_dispatch(c.gpu, &d);
        assert_int_equal(iso_metal_gpu_commit(c.gpu, 1000), write ? ISO_E_GPU : ISO_OK);
        if (write) assert_non_null(strstr(iso_err_detail(), "read-only"));
        emu_case_close(&c);
    }
    free(pages);
}

/* ---- what the compiler and the recording refuse */

static void refuse_source(const char *text, const char *part)
{
    struct iso_metal_gpu *gpu = NULL;
    const enum iso_err err = iso_metal_gpu_open(&gpu, text, strlen(text), false);
    if (err != ISO_E_GPU) fail_msg("was not refused: %s", text);
    if (!strstr(iso_err_detail(), part)) fail_msg("\"%s\" is not in: %s", part, iso_err_detail());
}

#define HEAD "#include <metal_stdlib>\nusing namespace metal;\n"

static void test_refused_sources(void **state)
{
    (void)state;
    refuse_source(HEAD "kernel void k(device float *x [[buffer(1)]]) { x[0] = nonsense; }\n", ":3:");
    refuse_source(HEAD "kernel void k(device float *x [[buffer(1)]]) { x[0] = 1.5; }\n", "without f");
    refuse_source(HEAD "kernel void k(device float *x [[buffer(1)]]) { x[0] = exp(x[1]); }\n", "exp");
    refuse_source(HEAD "#include \"arith/prim.h\"\nkernel void k() { }\n", "not flattened");
    refuse_source(HEAD "static float f(float *x) { return x[0]; }\nkernel void k() { }\n", "address space");
    refuse_source(HEAD "static void f() { threadgroup float s[4]; }\nkernel void k() { }\n", "outside of a kernel's body");
    refuse_source(HEAD "kernel void k(device float *x) { x[0] = 1.0f; }\n", "attribute");
    refuse_source(HEAD "static float f(threadgroup float *x) { return x[0]; }\n"
                  "kernel void k(device float *x [[buffer(1)]]) { x[0] = f(x); }\n", "no matching function");
    refuse_source(HEAD "kernel void k(device float *x [[buffer(1)]]) { float *y = 0; x[0] = y[0]; }\n",
                  "without an address space");
    refuse_source(HEAD "kernel void k(device float *x [[buffer(1)]]) { x[0] = *(float *)0; }\n",
                  "without an address space");
    refuse_source(HEAD "kernel void k(device float *x [[buffer(1)]]) { threadgroup float s[4]; thread float *y = s; "
                  "x[0] = y[0]; }\n", "cannot initialize");
    refuse_source(HEAD "static const float c = 1.0f;\nkernel void k() { }\n", "is constant");
    refuse_source(HEAD "kernel void k(device uint *x [[buffer(1)]], uint3 g [[threadgroup_position_in_grid]], "
                  "uint t [[thread_position_in_threadgroup]]) { x[g.x] = t; }\n", "all scalar types or all vector");
    refuse_source(HEAD "kernel void k(device uint *x [[buffer(1)]], ushort2 g [[threadgroup_position_in_grid]], "
                  "uint2 n [[threadgroups_per_grid]]) { x[g.x] = n.x; }\n", "are of one type");
    refuse_source(HEAD "template <class T> static uint f(T v) { if constexpr (sizeof(T) == 4) return 1; return v; }\n"
                  "kernel void k(device uint *x [[buffer(1)]]) { x[0] = f(x[1]); }\n", "C++17 extension");
    refuse_source(HEAD "struct a { uint v; };\nstruct b : a { };\nkernel void k() { }\n", "derived class");
    refuse_source(HEAD "kernel void k(device uint *x [[buffer(1)]]) { auto f = [](uint v) { return v; }; x[0] = f(1); }\n",
                  "lambda");
    refuse_source(HEAD "kernel void k(device uint2 *x [[buffer(1)]]) { x[0] = int2(1, 2); }\n", "error");
}

static void refuse_dispatch(struct iso_metal_dispatch d, const char *part)
{
    struct emu_case c;
    emu_case_open(&c, g_order, 1, 1, false);
    void *host = NULL;
    const uint32_t b = emu_case_buffer(&c, N * 4, &host);
    const struct iso_metal_binding bind[2] = {{d.pipeline == 9 ? 77 : b, d.pipeline == 8 ? N * 4 : 0}, {b, 0}};
    d.bind = bind;
    d.n_bind = 2;
    d.pipeline = d.pipeline == 7 ? 7 : emu_case_pipeline(&c, "add_one", NULL, 0);
    iso_metal_gpu_dispatch(c.gpu, &d);
    assert_int_equal(iso_metal_gpu_commit(c.gpu, 1000), ISO_E_GPU);
    if (!strstr(iso_err_detail(), part)) fail_msg("\"%s\" is not in: %s", part, iso_err_detail());
    emu_case_close(&c);
}

static void test_refused_dispatches(void **state)
{
    (void)state;
    refuse_dispatch((struct iso_metal_dispatch){.groups = {1, 1, 1}, .group_threads = 33}, "threads of a threadgroup");
    refuse_dispatch((struct iso_metal_dispatch){.groups = {1, 1, 1}, .group_threads = 2048}, "threads of a threadgroup");
    refuse_dispatch((struct iso_metal_dispatch){.groups = {1, 0, 1}, .group_threads = 32}, "empty grid");
    refuse_dispatch((struct iso_metal_dispatch){.groups = {1, 1, 1}, .group_threads = 32, .pipeline = 7}, "no pipeline 7");
    refuse_dispatch((struct iso_metal_dispatch){.groups = {1, 1, 1}, .group_threads = 32, .pipeline = 8}, "beyond");
    refuse_dispatch((struct iso_metal_dispatch){.groups = {1, 1, 1}, .group_threads = 32, .pipeline = 9}, "no buffer 77");
    refuse_dispatch((struct iso_metal_dispatch){.groups = {1, 1, 1}, .group_threads = 32, .threadgroup_bytes = 40},
                    "bytes of threadgroup memory");
    struct emu_case c;
    uint32_t p = 0, width = 0;
    const struct iso_metal_constant k = {0, ISO_METAL_U32, 1};
    emu_case_open(&c, g_exact, 1, 1, false);
    assert_non_null(strstr(iso_metal_gpu_info(c.gpu)->name, "emulated"));
    assert_int_equal(iso_metal_gpu_commit(c.gpu, 1), ISO_OK); /* nothing recorded */
    assert_int_equal(iso_metal_gpu_pipeline(c.gpu, "nothing", NULL, 0, &p, &width), ISO_E_GPU);
    assert_int_equal(iso_metal_gpu_pipeline(c.gpu, "rms_norm", &k, 1, &p, &width), ISO_E_GPU);
    assert_int_equal(iso_metal_gpu_pipeline(c.gpu, "rms_norm", NULL, 0, &p, &width), ISO_OK);
    assert_int_equal(width, 256);
    emu_case_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_right_order),       cmocka_unit_test(test_races),
        cmocka_unit_test(test_divergence),        cmocka_unit_test(test_order_shows),
        cmocka_unit_test(test_dispatch_barriers), cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_group_bounds),      cmocka_unit_test(test_read_only),
        cmocka_unit_test(test_refused_sources),   cmocka_unit_test(test_refused_dispatches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
