/* SPDX-License-Identifier: MIT
 * test_primitives.c - the primitives of exact-1 against golden digests, one by one and in lanes.
 *
 * Each line of tests/golden/primitives.txt but "rope" is computed by a plain loop that the compiler
 * may not vectorise and by loops of 256 compiled for each instruction set.
 */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "arith/prim.h"
#include "base/digest.h"
#include "base/mem.h"

#define GOLDEN "tests/golden/primitives.txt"
#define N_GOLDEN_DIGESTS 16 /* digest lines in the file: a test that reads none must fail */
#define CHUNK 256           /* a fixed trip count, so that -O2 vectorises too */

/* X(primitive) */
#define PRIMITIVES(X) X(rcp) X(rsqrt) X(exp2) X(sigmoid) X(tanh) X(round) X(guard)

/* X(level, attribute, test whether the machine has it) */
#define LEVEL_ONE __attribute__((noinline))
#if defined(__x86_64__)
#include <immintrin.h>
#define LEVEL_AVX2 __attribute__((noinline, target("avx2,fma")))
#define LEVEL_AVX512 __attribute__((noinline, target("avx512f,avx512bw,avx512vl,avx512dq,fma")))
#define LEVELS(X)                                                                                  \
    X(base, LEVEL_ONE, true)                                                                       \
    X(avx2, LEVEL_AVX2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))           \
    X(avx512, LEVEL_AVX512,                                                                        \
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
#else
#define LEVELS(X) X(base, LEVEL_ONE, true)
#endif

typedef void loop_fn(float *restrict y, const float *restrict x);

#define LOOP(prim, level, attribute)                                                               \
    attribute static void prim##_##level(float *restrict y, const float *restrict x)               \
    {                                                                                              \
        for (size_t i = 0; i < CHUNK; i++) y[i] = iso_##prim(x[i]);                                \
    }
/* The index through a volatile keeps every value alone in its register. */
#define LOOP_PLAIN(prim)                                                                           \
    static void prim##_plain(float *restrict y, const float *restrict x)                           \
    {                                                                                              \
        for (volatile size_t i = 0; i < CHUNK; i = i + 1) y[i] = iso_##prim(x[i]);                 \
    }
#define LEVEL_LOOPS(level, attribute, have)                                                        \
    LOOP(rcp, level, attribute)                                                                    \
    LOOP(rsqrt, level, attribute)                                                                  \
    LOOP(exp2, level, attribute)                                                                   \
    LOOP(sigmoid, level, attribute)                                                                \
    LOOP(tanh, level, attribute)                                                                   \
    LOOP(round, level, attribute)                                                                  \
    LOOP(guard, level, attribute)                                                                  \
    attribute static void f16_##level(float *restrict y, const uint16_t *restrict h)               \
    {                                                                                              \
        for (size_t i = 0; i < CHUNK; i++) y[i] = iso_f16(h[i]);                                   \
    }

PRIMITIVES(LOOP_PLAIN)
LEVELS(LEVEL_LOOPS)

struct loops {
    const char *level;
    const char *prim;
    loop_fn *fn;
};

/* Every loop that this machine can run, plain ones first. */
static size_t list_loops(struct loops *out)
{
    size_t n = 0;
#define X(p) out[n++] = (struct loops){"plain", #p, p##_plain};
    PRIMITIVES(X)
#undef X
#define ENTRY(level, p) out[n++] = (struct loops){#level, #p, p##_##level};
#define X(level, attribute, have)                                                                  \
    if (have) {                                                                                    \
        ENTRY(level, rcp)                                                                          \
        ENTRY(level, rsqrt)                                                                        \
        ENTRY(level, exp2)                                                                         \
        ENTRY(level, sigmoid)                                                                      \
        ENTRY(level, tanh)                                                                         \
        ENTRY(level, round)                                                                        \
        ENTRY(level, guard)                                                                        \
    }
    LEVELS(X)
#undef X
    return n;
}

/* Input k has the magnitude bits first + k * step and the sign of first (golden README). */
static void
digest_of(char hex[ISO_DIGEST_HEX], loop_fn *fn, uint32_t first, uint32_t step, uint32_t count)
{
    struct iso_hasher *h = iso_hasher_new();
    float x[CHUNK];
    float y[CHUNK];
    assert_int_equal(count % CHUNK, 0);
    for (uint32_t k = 0; k < count; k += CHUNK) {
        for (uint32_t i = 0; i < CHUNK; i++) {
            const uint32_t mag = (first & ISO_ABS_MASK) + (k + i) * step;
            x[i] = iso_as_f32(mag | (first & ~ISO_ABS_MASK));
        }
        fn(y, x);
        iso_hasher_update_le(h, y, CHUNK, sizeof(y[0]));
    }
    struct iso_digest d;
    iso_hasher_final(h, &d);
    iso_digest_hex(hex, &d);
    iso_hasher_free(h);
}

static void check_digests(const char *mode)
{
    struct loops loops[64];
    const size_t n_loops = list_loops(loops);
    FILE *f = fopen(GOLDEN, "r");
    assert_non_null(f);
    char line[512];
    size_t n_lines = 0;
    while (fgets(line, sizeof(line), f)) {
        char prim[16];
        char want[ISO_DIGEST_HEX];
        uint32_t first = 0;
        uint32_t step = 0;
        uint32_t count = 0;
        if (sscanf(line, "%15s first %" SCNx32 " step %" SCNu32 " count %" SCNu32 " sha256 %64s",
                   prim, &first, &step, &count, want) != 5) {
            continue;
        }
        n_lines++;
        size_t n_run = 0;
        for (size_t i = 0; i < n_loops; i++) {
            if (strcmp(loops[i].prim, prim) != 0) continue;
            char got[ISO_DIGEST_HEX];
            digest_of(got, loops[i].fn, first, step, count);
            if (strcmp(got, want) != 0) {
                fail_msg("%s, %s loop, %s, first 0x%08x: %s, not %s", prim, loops[i].level, mode,
                         first, got, want);
            }
            n_run++;
        }
        assert_true(n_run >= 2);
    }
    fclose(f);
    assert_int_equal(n_lines, N_GOLDEN_DIGESTS);
}

static void test_digests(void **state)
{
    (void)state;
    check_digests("subnormals kept");
#if defined(__x86_64__)
    /* Hardware that flushes subnormal results and inputs must give the same bits (section 1). */
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | _MM_FLUSH_ZERO_ON | 0x40 /* denormals are zeros */);
    check_digests("subnormals flushed");
    _mm_setcsr(before);
#endif
}

static void assert_bits(const char *what, float got, float want)
{
    if (iso_as_u32(got) != iso_as_u32(want)) fail_msg("%s: %a, not %a", what, got, want);
}

static void test_zeros(void **state)
{
    (void)state;
    FILE *f = fopen(GOLDEN, "r");
    assert_non_null(f);
    char line[512];
    size_t n_lines = 0;
    while (fgets(line, sizeof(line), f)) {
        float x = 1;
        float e = 1;
        float s = 1;
        float t = 1;
        float r = 1;
        float g = 1;
        if (sscanf(line, "zero input %a exp2 %a sigmoid %a tanh %a round %a guard %a", &x, &e, &s,
                   &t, &r, &g) != 6) {
            continue;
        }
        n_lines++;
        assert_bits("exp2", iso_exp2(x), e);
        assert_bits("sigmoid", iso_sigmoid(x), s);
        assert_bits("tanh", iso_tanh(x), t);
        assert_bits("round", iso_round(x), r);
        assert_bits("guard", iso_guard(x), g);
        assert_int_equal(iso_round_i32(x), 0);
    }
    fclose(f);
    assert_int_equal(n_lines, 2);
}

typedef void f16_fn(float *restrict y, const uint16_t *restrict h);

/* All finite patterns: two runs of 31 * 1024, both multiples of CHUNK. */
static void f16_digest(char hex[ISO_DIGEST_HEX], f16_fn *fn)
{
    struct iso_hasher *hasher = iso_hasher_new();
    for (uint32_t sign = 0; sign < 2; sign++) {
        for (uint32_t first = 0; first < 0x7c00; first += CHUNK) {
            uint16_t h[CHUNK];
            float y[CHUNK];
            for (uint32_t i = 0; i < CHUNK; i++) h[i] = (uint16_t)(sign << 15 | (first + i));
            fn(y, h);
            iso_hasher_update_le(hasher, y, CHUNK, sizeof(y[0]));
        }
    }
    struct iso_digest d;
    iso_hasher_final(hasher, &d);
    iso_digest_hex(hex, &d);
    iso_hasher_free(hasher);
}

static void test_f16(void **state)
{
    (void)state;
    FILE *f = fopen(GOLDEN, "r");
    assert_non_null(f);
    char line[512];
    char want[ISO_DIGEST_HEX] = "";
    while (fgets(line, sizeof(line), f)) {
        if (sscanf(line, "f16 all finite patterns ascending sha256 %64s", want) == 1) break;
    }
    fclose(f);
    assert_int_equal(strlen(want), 64);
    char got[ISO_DIGEST_HEX];
#define X(level, attribute, have)                                                                  \
    if (have) {                                                                                    \
        f16_digest(got, f16_##level);                                                              \
        assert_string_equal(got, want);                                                            \
    }
    LEVELS(X)
#undef X
}

static void test_bf16(void **state)
{
    (void)state;
    assert_bits("bf16 1", iso_bf16(0x3f80), 1.0f);
    assert_bits("bf16 -0", iso_bf16(0x8000), -0.0f);
    assert_bits("bf16 subnormal", iso_bf16(0x0001), 0x1p-133f);
    assert_bits("bf16 largest", iso_bf16(0x7f7f), 0x1.fep127f);
}

static void test_small_powers(void **state)
{
    (void)state;
    for (int k = -60; k <= 127; k++) {
        const float want = k < -126 ? 0 : iso_as_f32((uint32_t)(k + 127) << 23);
        assert_bits("pow2", iso_pow2((float)k), want);
        assert_bits("ldexp1", iso_ldexp1(k), want);
    }
    assert_bits("pow2(-61)", iso_pow2(-61.0f), 0.0f);
    assert_bits("pow2(-1e9)", iso_pow2(-1e9f), 0.0f);
    assert_bits("exp2(-125)", iso_exp2(-125.0f), 0x1p-125f);
    assert_bits("exp2 below -125", iso_exp2(-0x1.f40002p+6f), 0.0f);
}

/* ri() as float and as integer, ties to even, and a value for what is no number. */
static void test_round_integer(void **state)
{
    (void)state;
    static const float x[] = {0.5f,  1.5f,        2.5f,    -0.5f,      -1.5f,
                              -2.5f, 0.49999997f, 2047.5f, -4194303.0f};
    static const int32_t want[] = {0, 2, 2, 0, -2, -2, 0, 2048, -4194303};
    for (size_t i = 0; i < ISO_COUNT(x); i++) {
        assert_int_equal(iso_round_i32(x[i]), want[i]);
        assert_bits("round", iso_round(x[i]), (float)want[i]);
    }
    uint32_t s = 12345;
    for (size_t k = 0; k < 100000; k++) {
        s = s * 1664525u + 1013904223u;
        const float v = (float)((int32_t)s >> 9) * 0x1p-3f; /* multiples of 1/8 below 2^20 */
        assert_bits("round", iso_round(v), (float)iso_round_i32(v));
    }
    volatile int32_t defined = iso_round_i32(iso_as_f32(0x7fc00000u));
    (void)defined;
}

static void test_neutral_reciprocal(void **state)
{
    (void)state;
    /* A repetition penalty of 1 must change nothing (section 12). */
    assert_bits("rcp(1)", iso_rcp(1.0f), 1.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_digests),
        cmocka_unit_test(test_zeros),
        cmocka_unit_test(test_f16),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_small_powers),
        cmocka_unit_test(test_round_integer),
        cmocka_unit_test(test_neutral_reciprocal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
