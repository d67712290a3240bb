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
        for (uint32_t i = 0; i < n_rot / 2; i++) {
            float cos_sin[2];
            iso_rope_angle(&cos_sin[0], &cos_sin[1], turns[i], p);
            iso_hasher_update_le(h, cos_sin, 2, sizeof(cos_sin[0]));
        }
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
    float c, s;
    const float want[4][2] = {{1, 0}, {0, 1}, {-1, 0}, {0, -1}};
    for (uint32_t q = 0; q < 4; q++) {
        iso_rope_angle(&c, &s, (uint64_t)q << 62, 1);
        assert_true(c == want[q][0] && s == want[q][1]);
    }
    /* An eighth of a turn on either side of each axis: both within one unit of sqrt(1/2). */
    for (uint32_t k = 1; k < 8; k += 2) {
        iso_rope_angle(&c, &s, (uint64_t)k << 61, 1);
        const float want_c = k == 1 || k == 7 ? 0.70710678f : -0.70710678f;
        const float want_s = k < 4 ? 0.70710678f : -0.70710678f;
        assert_float_equal(c, want_c, 6e-8f);
        assert_float_equal(s, want_s, 6e-8f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_tables),
        cmocka_unit_test(test_divisor),
        cmocka_unit_test(test_quadrants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
