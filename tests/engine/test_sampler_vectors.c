/* SPDX-License-Identifier: MIT
 * test_sampler_vectors.c - picks that hang on a last bit, from tests/vectors/sampler.txt. */
#include "vectors/vectors.h"

#include "engine/sampler.h"
#include "engine/sampler_weights.h"

/* logits, and behind them "same": so many of one value. Returns owned. */
static float *logits_of(const struct vector_case *c, size_t *n)
{
    const struct vector_item *l = vector_get(c, "logits"), *same = vector_find(c, "same");
    const size_t n_same = same ? same->word[0] : 0;
    *n = l->n + n_same;
    float *out = calloc(*n, sizeof(*out));
    assert_non_null(out);
    for (size_t i = 0; i < *n; i++) out[i] = vector_float(i < l->n ? l->word[i] : same->word[1]);
    return out;
}

static float or_zero(const struct vector_case *c, const char *name)
{
    return vector_find(c, name) ? vector_f32(c, name) : 0.0f;
}

static int32_t pick(const struct vector_case *c, struct iso_sampler_params *p, const float *l, size_t n)
{
    struct iso_sampler *s = NULL;
    if (iso_sampler_new(&s, p, n) != ISO_OK) fail_msg("%s: %s", c->why, iso_err_detail());
    const struct vector_item *seen = vector_find(c, "seen");
    for (size_t i = 0; seen && i < seen->n; i++) iso_sampler_seen(s, (int32_t)seen->word[i]);
    const int32_t id = iso_sampler_pick(s, l, vector_get(c, "position")->word[0]);
    iso_sampler_free(s);
    return id;
}

static void pick_case(const struct vector_case *c)
{
    struct iso_sampler_params p = ISO_SAMPLER_PLAIN;
    p.temperature = vector_f32(c, "temperature");
    p.top_p = vector_f32(c, "top_p");
    p.min_p = vector_f32(c, "min_p");
    if (vector_find(c, "repetition")) p.repetition = vector_f32(c, "repetition");
    p.frequency = or_zero(c, "frequency");
    p.presence = or_zero(c, "presence");
    const struct vector_item *seed = vector_get(c, "seed"), *want = vector_get(c, "want");
    assert_int_equal(seed->n, 2 * want->n);
    size_t n = 0;
    float *l = logits_of(c, &n);
    for (size_t v = 0; iso_sampler_kernels_at(v); v++) {
        p.kernels = iso_sampler_kernels_at(v);
        for (size_t i = 0; i < want->n; i++) {
            p.seed = seed->word[2 * i] | (uint64_t)seed->word[2 * i + 1] << 32;
            const int32_t got = pick(c, &p, l, n);
            if (got != (int32_t)want->word[i]) {
                fail_msg("%s: %s, seed %llu: %d, want %u", p.kernels->name, c->why, (unsigned long long)p.seed,
                         (int)got, (unsigned)want->word[i]);
            }
        }
    }
    free(l);
}

static void test_all(void **state)
{
    (void)state;
    FILE *f = vectors_open("sampler.txt");
    struct vector_case c;
    size_t n = 0;
    for (; vector_next(&c, f); vector_free(&c), n++) pick_case(&c);
    (void)fclose(f);
    assert_int_equal(n, 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
