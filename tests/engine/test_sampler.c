/* SPDX-License-Identifier: MIT
 * test_sampler.c - the sampler against golden ids and against the specification's own words: a full
 * sort and one filter after the other.
 */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "arith/prim.h"
#include "base/mem.h"
#include "engine/philox.h"
#include "engine/sampler.h"
#include "engine/sampler_weights.h"

#define N_GOLDEN_LINES 14
#define MAX_VOCAB 70000

static uint64_t g_rng = 88172645463325252u; /* the golden generator's state */

static uint64_t next_random(void)
{
    g_rng ^= g_rng << 13;
    g_rng ^= g_rng >> 7;
    g_rng ^= g_rng << 17;
    return g_rng;
}

static void seed_random(void)
{
    const char *s = getenv("CHECK_SEED");
    g_rng = s ? strtoull(s, NULL, 0) : (uint64_t)time(NULL) * 2654435761u;
    g_rng |= 1;
    print_message("CHECK_SEED=%" PRIu64 "\n", g_rng);
}

static struct iso_sampler *sampler(const struct iso_sampler_params *p, size_t n_vocab)
{
    struct iso_sampler *s = NULL;
    if (iso_sampler_new(&s, p, n_vocab) != ISO_OK) fail_msg("%s", iso_err_detail());
    return s;
}

static void test_philox(void **state)
{
    (void)state;
    /* The specification's known answer and the two others that the paper's authors publish. */
    static const uint32_t in[3][6] = {
        {0, 0, 0, 0, 0, 0},
        {~0u, ~0u, ~0u, ~0u, ~0u, ~0u},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0},
    };
    static const uint32_t want[3][4] = {
        {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
    };
    for (size_t i = 0; i < 3; i++) {
        uint32_t out[4];
        iso_philox4x32(out, in[i], in[i] + 4);
        for (int j = 0; j < 4; j++) assert_int_equal(out[j], want[i][j]);
    }
}

/* One line of sampler.txt with every variant of the passes. */
static void check_golden_line(const char *line, const float *l)
{
    struct iso_sampler_params p = ISO_SAMPLER_PLAIN;
    uint64_t position = 0;
    uint64_t seed0 = 0;
    int at = 0;
    if (sscanf(line,
               "temp %f top_k %" SCNu32 " top_p %f min_p %f position %" SCNu64 " seeds %" SCNu64
               "+0..15:%n",
               &p.temperature, &p.top_k, &p.top_p, &p.min_p, &position, &seed0, &at) != 6 ||
        at == 0) {
        fail_msg("not understood: %s", line);
    }
    if (fabsf(p.temperature - 0x1p-10f) < 1e-8f) p.temperature = 0x1p-10f; /* printed short */
    for (size_t v = 0; iso_sampler_kernels_at(v); v++) {
        p.kernels = iso_sampler_kernels_at(v);
        const char *rest = line + at;
        for (uint64_t i = 0; i < 16; i++) {
            char *end = NULL;
            const long want = strtol(rest, &end, 10);
            assert_true(end != rest);
            rest = end;
            p.seed = seed0 + i;
            struct iso_sampler *s = sampler(&p, 1000);
            const int32_t got = iso_sampler_pick(s, l, position);
            iso_sampler_free(s);
            if (got != want) {
                fail_msg("%s, seed +%" PRIu64 ": %d, want %ld: %s", p.kernels->name, i, (int)got,
                         want, line);
            }
        }
    }
}

static void test_golden(void **state)
{
    (void)state;
    float l[1000];
    g_rng = 88172645463325252u;
    for (size_t i = 0; i < 1000; i++) {
        l[i] = (float)((int32_t)(next_random() % 201) - 100) * 0.125f;
    }
    FILE *f = fopen("tests/golden/sampler.txt", "r");
    assert_non_null(f);
    char line[1024];
    size_t n_lines = 0;
    while (fgets(line, sizeof(line), f)) {
        if (line[0] == '#') continue;
        check_golden_line(line, l);
        n_lines++;
    }
    fclose(f);
    assert_int_equal(n_lines, N_GOLDEN_LINES);
}

/* ---- section 12 in its own words ---- */

struct entry {
    uint32_t w;
    int32_t id;
};

static int by_order(const void *a, const void *b)
{
    const struct entry *x = a;
    const struct entry *y = b;
    if (x->w != y->w) return x->w < y->w ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static bool is_banned(const struct iso_sampler_params *p, size_t id)
{
    for (size_t i = 0; i < p->n_banned; i++) {
        if ((size_t)p->banned[i] == id) return true;
    }
    return false;
}

/* Applies bias and penalties to l [n] in place. */
static void spec_edit(float *l, const struct iso_sampler_params *p, const uint32_t *count, size_t n)
{
    for (size_t i = 0; i < p->n_bias; i++) l[p->bias[i].id] += p->bias[i].bias;
    for (size_t i = 0; i < n; i++) {
        if (count[i] == 0) continue;
        l[i] = l[i] > 0 ? l[i] * iso_rcp(p->repetition) : l[i] * p->repetition;
        l[i] = l[i] - fmaf(p->frequency, (float)count[i], p->presence);
    }
}

static size_t spec_filter(const struct entry *e, size_t n, const struct iso_sampler_params *p)
{
    if (p->top_k > 0 && p->top_k < n) n = p->top_k;
    unsigned __int128 total = 0;
    for (size_t i = 0; i < n; i++) total += e[i].w;
    if (p->top_p < 1.0f) {
        const uint32_t p24 = (uint32_t)(p->top_p * 16777216.0f);
        unsigned __int128 run = 0;
        size_t kept = 0;
        while (kept < n) {
            run += e[kept++].w;
            if (run << 24 >= p24 * total) break;
        }
        n = kept;
    }
    if (p->min_p > 0.0f) {
        const uint32_t p24 = (uint32_t)(p->min_p * 16777216.0f);
        size_t kept = 0;
        while (kept < n && (uint64_t)e[kept].w << 24 >= (uint64_t)p24 * e[0].w) kept++;
        n = kept;
    }
    return n;
}

static int32_t spec_pick(const struct iso_sampler_params *p,
                         const float *logits,
                         const uint32_t *count,
                         size_t n,
                         uint64_t position)
{
    static float l[MAX_VOCAB];
    static struct entry e[MAX_VOCAB];
    memcpy(l, logits, n * sizeof(*l));
    spec_edit(l, p, count, n);
    size_t n_left = 0;
    int32_t best = -1;
    for (size_t i = 0; i < n; i++) {
        if (is_banned(p, i)) continue;
        if (best < 0 || l[i] > l[best]) best = (int32_t)i;
        e[n_left++].id = (int32_t)i;
    }
    if (p->temperature == 0.0f) return best;
    const float c = 0x1.715476p+0f * iso_rcp(p->temperature);
    for (size_t i = 0; i < n_left; i++) {
        float z = (l[e[i].id] - l[best]) * c;
        if (z < -125.0f) z = -125.0f;
        e[i].w = (uint32_t)(iso_exp2(z) * 0x1p30f);
    }
    qsort(e, n_left, sizeof(*e), by_order);
    n_left = spec_filter(e, n_left, p);
    uint64_t total = 0;
    for (size_t i = 0; i < n_left; i++) total += e[i].w;
    const uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), 0, 0};
    const uint32_t key[2] = {(uint32_t)p->seed, (uint32_t)(p->seed >> 32)};
    uint32_t word[4];
    iso_philox4x32(word, counter, key);
    const uint64_t r = (uint64_t)word[1] << 32 | word[0];
    const uint64_t t = (uint64_t)((unsigned __int128)r * total >> 64);
    uint64_t run = 0;
    for (size_t i = 0; i < n_left; i++) {
        run += e[i].w;
        if (run > t) return e[i].id;
    }
    return -1;
}

/* ---- random settings ---- */

static float uniform(void)
{
    return (float)(next_random() >> 40) * 0x1p-24f;
}

/* Shapes of logits: a language model's, flat, many ties, nearly all equal, one far above, far
 * apart. */
static void fill_logits(float *l, size_t n, int shape)
{
    for (size_t i = 0; i < n; i++) {
        const float g = uniform() + uniform() + uniform() + uniform() - 2.0f;
        switch (shape) {
        case 0:
            l[i] = 6.0f * g;
            break;
        case 1:
            l[i] = 1e-3f * g;
            break;
        case 2:
            l[i] = (float)(int)(g * 4) * 0.5f;
            break;
        case 3:
            l[i] = next_random() % 100 == 0 ? -1.0f : 3.0f;
            break;
        case 4:
            l[i] = i == n / 2 ? 40.0f : g;
            break;
        default:
            l[i] = 60.0f * g;
            break;
        }
    }
}

static const float g_temperatures[] = {0.0f, 0x1p-20f, 0.3f,    0.7f,   1.0f,
                                       1.0f, 2.0f,     1024.0f, 0x1p20f};
static const float g_top_ps[] = {1.0f, 1.0f, 1e-9f, 0.1f, 0.5f, 0.9f, 0.999f, 0.99999994f};
static const float g_min_ps[] = {0.0f, 0.0f, 1e-8f, 1e-6f, 0.02f, 0.5f, 1.0f};

static struct iso_sampler_params random_params(size_t n)
{
    struct iso_sampler_params p = ISO_SAMPLER_PLAIN;
    p.temperature = g_temperatures[next_random() % ISO_COUNT(g_temperatures)];
    p.top_p = g_top_ps[next_random() % ISO_COUNT(g_top_ps)];
    p.min_p = g_min_ps[next_random() % ISO_COUNT(g_min_ps)];
    switch (next_random() % 4) {
    case 0:
        p.top_k = (uint32_t)(1 + next_random() % 50);
        break;
    case 1:
        p.top_k = (uint32_t)(1 + next_random() % n);
        break;
    default:
        p.top_k = 0;
        break;
    }
    p.seed = next_random();
    return p;
}

static void test_plain_against_specification(void **state)
{
    (void)state;
    static const size_t sizes[] = {1,    2,    3,    63,   64,    65,       129,
                                   1000, 1023, 1025, 4097, 20000, MAX_VOCAB};
    static const uint32_t count[MAX_VOCAB];
    static float l[MAX_VOCAB];
    seed_random();
    for (size_t k = 0; k < ISO_COUNT(sizes); k++) {
        const size_t n = sizes[k];
        const int n_runs = n > 10000 ? 120 : 600;
        for (int run = 0; run < n_runs; run++) {
            if (run % 4 == 0) fill_logits(l, n, run / 4 % 6);
            struct iso_sampler_params p = random_params(n);
            const uint64_t position = run % 2 ? next_random() : (uint64_t)run;
            const int32_t want = spec_pick(&p, l, count, n, position);
            for (size_t v = 0; iso_sampler_kernels_at(v); v++) {
                p.kernels = iso_sampler_kernels_at(v);
                struct iso_sampler *s = sampler(&p, n);
                const int32_t got = iso_sampler_pick(s, l, position);
                const int32_t again = iso_sampler_pick(s, l, position);
                iso_sampler_free(s);
                if (got != want || again != want) {
                    fail_msg("%s n %zu run %d: temp %g top_k %u top_p %.9g min_p %g: %d and %d, "
                             "want %d",
                             p.kernels->name, n, run, (double)p.temperature, p.top_k,
                             (double)p.top_p, (double)p.min_p, (int)got, (int)again, (int)want);
                }
            }
        }
    }
}

static void test_penalties_against_specification(void **state)
{
    (void)state;
    enum { N = 300 };
    float l[N];
    uint32_t count[N];
    struct iso_sampler_bias bias[8];
    int32_t banned[40];
    seed_random();
    for (int run = 0; run < 3000; run++) {
        struct iso_sampler_params p = random_params(N);
        fill_logits(l, N, run % 6);
        memset(count, 0, sizeof(count));
        p.repetition = run % 3 ? 0.5f + uniform() : 1.0f;
        p.frequency = run % 5 ? uniform() - 0.3f : 0.0f;
        p.presence = run % 7 ? uniform() - 0.3f : 0.0f;
        p.n_bias = next_random() % 9;
        p.n_banned = next_random() % 41;
        for (size_t i = 0; i < p.n_bias; i++) {
            bias[i] = (struct iso_sampler_bias){(int32_t)(i * 37), 20.0f * uniform() - 10.0f};
        }
        for (size_t i = 0; i < p.n_banned; i++) banned[i] = (int32_t)(next_random() % N);
        p.bias = bias;
        p.banned = banned;
        struct iso_sampler *s = sampler(&p, N);
        if (run % 2) iso_sampler_seen(s, 5); /* forgotten before it counts */
        iso_sampler_forget(s);
        for (uint64_t position = 0; position < 4; position++) {
            const int32_t want = spec_pick(&p, l, count, N, position);
            const int32_t got = iso_sampler_pick(s, l, position);
            if (got != want) fail_msg("run %d: %d, want %d", run, (int)got, (int)want);
            for (int i = 0; i < 50; i++) {
                const int32_t id = (int32_t)(next_random() % N);
                iso_sampler_seen(s, id);
                count[id]++;
            }
        }
        iso_sampler_free(s);
    }
}

/* A banned token is left out even when its bias makes it the largest. */
static void test_bans(void **state)
{
    (void)state;
    const float l[4] = {1.0f, 5.0f, 3.0f, 3.0f};
    const int32_t banned[] = {1, 1};
    const struct iso_sampler_bias bias[] = {{1, 1000.0f}};
    struct iso_sampler_params p = ISO_SAMPLER_PLAIN;
    p.banned = banned;
    p.n_banned = 2;
    p.bias = bias;
    p.n_bias = 1;
    for (int greedy = 0; greedy < 2; greedy++) {
        p.temperature = greedy ? 0.0f : 1e-3f;
        for (uint64_t seed = 0; seed < 64; seed++) {
            p.seed = seed;
            struct iso_sampler *s = sampler(&p, 4);
            const int32_t id = iso_sampler_pick(s, l, 0);
            assert_true(greedy ? id == 2 : id == 2 || id == 3);
            iso_sampler_free(s);
        }
    }
}

/* Weights of every variant against the formula, with guard values behind. */
static void test_weights(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 7, 16, 63, 64, 65, 100, 1023, 1024, 1025, 3333};
    float l[3400];
    uint32_t w[3400];
    uint32_t m[64];
    seed_random();
    for (size_t v = 0; iso_sampler_kernels_at(v); v++) {
        const struct iso_sampler_kernels *k = iso_sampler_kernels_at(v);
        for (size_t r = 0; r < ISO_COUNT(sizes) * 6; r++) {
            const size_t n = sizes[r % ISO_COUNT(sizes)];
            fill_logits(l, n, (int)(r / ISO_COUNT(sizes)));
            l[next_random() % n] = -INFINITY;
            if (n == 1) l[0] = -0.0f;
            memset(w, 0xA5, sizeof(w));
            memset(m, 0xA5, sizeof(m));
            size_t from = 9999;
            const float top = k->max(&from, l, n);
            const uint64_t total = k->weights(w, m, l, top, 0x1.715476p+0f, n);
            uint64_t sum = 0;
            uint32_t block = 0;
            for (size_t i = 0; i < n; i++) {
                assert_true(l[i] <= top);
                if (i < from) assert_true(l[i] != top);
                const float z = fmaxf((l[i] - top) * 0x1.715476p+0f, -125.0f);
                const uint32_t want = (uint32_t)(iso_exp2(z) * 0x1p30f);
                if (w[i] != want)
                    fail_msg("%s n %zu: w[%zu] %u, want %u", k->name, n, i, w[i], want);
                sum += want;
                block = i % ISO_SAMPLER_BLOCK ? ISO_MAX(block, want) : want;
                if (i + 1 == n || (i + 1) % ISO_SAMPLER_BLOCK == 0) {
                    assert_int_equal(m[i / ISO_SAMPLER_BLOCK], block);
                }
            }
            while (l[from] != top) from++;
            assert_true(from < n && w[from] == ISO_SAMPLER_TOP);
            assert_true(total == sum);
            assert_int_equal(w[n], 0xA5A5A5A5u);
            assert_int_equal(m[(n + ISO_SAMPLER_BLOCK - 1) / ISO_SAMPLER_BLOCK], 0xA5A5A5A5u);
        }
    }
}

static void refuse(const struct iso_sampler_params *p, size_t n_vocab, const char *says)
{
    struct iso_sampler *s = NULL;
    assert_int_equal(iso_sampler_new(&s, p, n_vocab), ISO_E_ARG);
    assert_null(s);
    if (!strstr(iso_err_message(), says)) {
        fail_msg("'%s' does not say '%s'", iso_err_message(), says);
    }
}

#define REFUSE(field, value, says)                                                                 \
    do {                                                                                           \
        struct iso_sampler_params p_ = ISO_SAMPLER_PLAIN;                                          \
        p_.field = (value);                                                                        \
        refuse(&p_, 10, (says));                                                                   \
    } while (0)

static void test_bad_parameters(void **state)
{
    (void)state;
    REFUSE(temperature, -1.0f, "temperature is -1");
    REFUSE(temperature, 0x1p-21f, "temperature");
    REFUSE(temperature, 0x1p21f, "temperature");
    REFUSE(temperature, NAN, "temperature");
    REFUSE(temperature, INFINITY, "temperature");
    REFUSE(top_p, 0.0f, "top_p is 0");
    REFUSE(top_p, 1.5f, "top_p is 1.5");
    REFUSE(top_p, NAN, "top_p");
    REFUSE(min_p, -0.1f, "min_p is -0.1; the range is 0 to 1");
    REFUSE(min_p, 1.1f, "min_p");
    REFUSE(repetition, 0.0f, "repetition penalty is 0");
    REFUSE(frequency, INFINITY, "frequency");
    REFUSE(presence, NAN, "presence");
    struct iso_sampler_params p = ISO_SAMPLER_PLAIN;
    refuse(&p, 0, "vocabulary of 0");
    refuse(&p, (size_t)1 << 31, "vocabulary of 2147483648");
    const struct iso_sampler_bias bias[] = {{3, 1.0f}, {10, 1.0f}, {3, 2.0f}, {4, INFINITY}};
    p.bias = bias;
    p.n_bias = 2;
    refuse(&p, 10, "token 10; the vocabulary has 10");
    p.n_bias = 3;
    refuse(&p, 11, "token 3 has two biases");
    p.bias = bias + 3;
    p.n_bias = 1;
    refuse(&p, 11, "bias is inf");
    p.n_bias = 0;
    const int32_t banned[] = {0, 1, 1, 2, -1};
    p.banned = banned;
    p.n_banned = 4;
    refuse(&p, 3, "all 3 tokens are banned");
    p.n_banned = 5;
    refuse(&p, 30, "token -1");
}

/* Picking must not allocate. */
static void test_no_allocation(void **state)
{
    (void)state;
    static float l[MAX_VOCAB];
    struct iso_sampler_params p = ISO_SAMPLER_PLAIN;
    p.top_p = 0.999f;
    p.frequency = 0.1f;
    fill_logits(l, MAX_VOCAB, 1);
    struct iso_sampler *s = sampler(&p, MAX_VOCAB);
    iso_alloc_guard_begin();
    for (uint64_t i = 0; i < 20; i++) iso_sampler_seen(s, iso_sampler_pick(s, l, i));
    iso_alloc_guard_end();
    iso_sampler_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox),
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_plain_against_specification),
        cmocka_unit_test(test_penalties_against_specification),
        cmocka_unit_test(test_bans),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_bad_parameters),
        cmocka_unit_test(test_no_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
