/* SPDX-License-Identifier: MIT
 * test_rope_vectors.c - turns per token, to their last bit, and angles, from tests/vectors/rope.txt.
 *
 * The golden tables see angles rounded to f32, which hide the last bits of the f64 chains behind the turns.
 */
#include "vectors/vectors.h"

#include "arith/rope.h"

static uint64_t word64(const struct vector_item *v, size_t i)
{
    return v->word[2 * i] | (uint64_t)v->word[2 * i + 1] << 32;
}

static void turns_case(const struct vector_case *c)
{
    const struct vector_item *want = vector_get(c, "want");
    const uint32_t n_rot = vector_get(c, "n_rot")->word[0];
    const uint64_t bits = word64(vector_get(c, "base"), 0);
    double base;
    memcpy(&base, &bits, sizeof(base));
    assert_int_equal(want->n, n_rot);
    for (uint32_t i = 0; i < n_rot / 2; i++) {
        const uint64_t got = iso_rope_turns(base, i, n_rot, (double)vector_f32(c, "divisor"));
        if (got != word64(want, i)) {
            fail_msg("%s: pair %u turns by %llu, want %llu", c->why, i, (unsigned long long)got,
                     (unsigned long long)word64(want, i));
        }
    }
}

static void angles_case(const struct vector_case *c)
{
    const struct vector_item *h = vector_get(c, "h");
    float *got = calloc(h->n, 2 * sizeof(*got));
    assert_non_null(got);
    for (size_t i = 0; i < h->n; i++) {
        const uint64_t turns = (uint64_t)h->word[i] << 32;
        iso_rope_row(&got[2 * i], &turns, 1, 1);
    }
    vector_expect(c, "want", got, 2 * h->n, "rope");
    free(got);
}

static void test_all(void **state)
{
    (void)state;
    FILE *f = vectors_open("rope.txt");
    struct vector_case c;
    size_t n_turns = 0, n_angles = 0;
    for (; vector_next(&c, f); vector_free(&c)) {
        if (strcmp(c.op, "turns") == 0) turns_case(&c), n_turns++;
        if (strcmp(c.op, "angles") == 0) angles_case(&c), n_angles++;
    }
    (void)fclose(f);
    assert_int_equal(n_turns, 17);
    assert_int_equal(n_angles, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
