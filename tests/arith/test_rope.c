/* SPDX-License-Identifier: MIT
 * test_rope.c - rotary tables against the "rope" digests of tests/golden/primitives.txt. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "arith/rope.h"
#include "base/digest.h"

#define POSITIONS 131072
#define STEP 509
#define N_LINES 16 /* 4 bases x 4 sizes */

static void table_digest(char hex[ISO_DIGEST_HEX], double base, uint32_t n_rot)
{
    struct iso_hasher *h = iso_hasher_new();
    uint64_t turns[128];
    assert_true(n_rot / 2 <= 128);
    for (uint32_t i = 0; i < n_rot / 2; i++) turns[i] = iso_rope_turns(base, i, n_rot, 1.0);
    for (uint32_t p = 0; p < POSITIONS; p += STEP) {
        float row[256];
        iso_rope_row(row, turns, n_rot / 2, p);
        iso_hasher_update_le(h, row, n_rot, sizeof(row[0]));
    }
    struct iso_digest d;
    iso_hasher_final(h, &d);
    iso_hasher_free(h);
    iso_digest_hex(hex, &d);
}

static void test_golden_tables(void **state)
{
    (void)state;
    FILE *f = fopen("tests/golden/primitives.txt", "r");
    if (!f) fail_msg("tests/golden/primitives.txt: run from the project's root");
    char line[512];
    int n = 0;
    while (fgets(line, sizeof(line), f)) {
        double base;
        unsigned n_rot;
        char want[ISO_DIGEST_HEX], got[ISO_DIGEST_HEX];
        if (sscanf(line,
                   "rope base %lf n_rot %u positions 0,509,.. <131072 (cos,sin) f32 sha256 %64s",
                   &base, &n_rot, want) != 3) {
            continue;
        }
        table_digest(got, base, n_rot);
        if (strcmp(got, want) != 0)
            fail_msg("base %g n_rot %u: %s, want %s", base, n_rot, got, want);
        n++;
    }
    fclose(f);
    assert_int_equal(n, N_LINES);
}

/* What no golden line covers: the divisor, and every quadrant near its edges. */
static void test_divisor(void **state)
{
    (void)state;
    const uint64_t plain = iso_rope_turns(500000.0, 3, 64, 1.0);
    assert_true(iso_rope_turns(500000.0, 3, 64, 2.0) == plain / 2);
    assert_true(iso_rope_turns(500000.0, 3, 64, 8.0) == plain / 8);
    /* Pair 0 turns by 1 radian a token: 2^64/2pi. */
    assert_true(iso_rope_turns(10000.0, 0, 64, 1.0) == (uint64_t)(double)2935890503282001226ULL);
}

static void test_quadrants(void **state)
{
    (void)state;
    float got[2];
    const float want[4][2] = {{1, 0}, {0, 1}, {-1, 0}, {0, -1}};
    for (uint32_t q = 0; q < 4; q++) {
        const uint64_t turns = (uint64_t)q << 62;
        iso_rope_row(got, &turns, 1, 1);
        assert_true(got[0] == want[q][0] && got[1] == want[q][1]);
    }
    /* An eighth of a turn on either side of each axis: both within one unit of sqrt(1/2). */
    for (uint32_t k = 1; k < 8; k += 2) {
        const uint64_t turns = (uint64_t)k << 61;
        iso_rope_row(got, &turns, 1, 1);
        const float want_c = k == 1 || k == 7 ? 0.70710678f : -0.70710678f;
        const float want_s = k < 4 ? 0.70710678f : -0.70710678f;
        assert_float_equal(got[0], want_c, 6e-8f);
        assert_float_equal(got[1], want_s, 6e-8f);
    }
}

/* A row is its pairs: any number of them, with others beside it, and nothing is written behind it. */
static void test_rows(void **state)
{
    (void)state;
    uint64_t turns[40];
    for (uint32_t i = 0; i < 40; i++) turns[i] = iso_rope_turns(10000.0, i, 80, 1.0);
    for (uint32_t n = 0; n <= 40; n++) {
        float row[82], pair[2];
        for (uint32_t i = 0; i < 82; i++) row[i] = 7.0f;
        iso_rope_row(row, turns, n, 99 + n);
        for (uint32_t i = 0; i < n; i++) {
            iso_rope_row(pair, turns + i, 1, 99 + n);
            assert_memory_equal(pair, row + 2 * i, sizeof(pair));
        }
        for (uint32_t i = 2 * n; i < 82; i++) assert_true(row[i] == 7.0f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_tables),
        cmocka_unit_test(test_divisor),
        cmocka_unit_test(test_quadrants),
        cmocka_unit_test(test_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
