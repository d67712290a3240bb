/* SPDX-License-Identifier: MIT
 * test_diff.c - the ladder of `isobit diff`: one bit changed inside a run or a page must be named.
 *
 * Folders of dumps and producers are tested through the program, in tests/cli/diff.sh.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "arith/page.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/diff.h"
#include "cli/diff_side.h"
#include "model/tiny_model.h"

#define N 70 /* positions: a page and a part of one */
#define CHUNK 32

/* Of main.c, which is in no archive: a hand-off tells the other side what it was built from. */
const char *iso_cli_commit(void)
{
    return "test_diff";
}

static uint64_t g_seed;

static uint64_t next(void)
{
    return tiny_next(&g_seed) >> 8;
}

static uint32_t below(size_t n)
{
    return (uint32_t)(next() % n);
}

/* One bit of one value of one side's tensor. */
struct flip {
    const struct iso_diff_shape *shape;
    unsigned side;
    size_t tensor, position, element;
    uint32_t mask;    /* exclusive or; 0: the value becomes a NaN */
    uint32_t before;  /* its bits */
    unsigned n_done;
};

static void poke(void *arg, unsigned side, size_t tensor, size_t at, float *data, size_t n_rows)
{
    struct flip *f = arg;
    if (side != f->side || tensor != f->tensor || f->position < at || f->position >= at + n_rows) return;
    float *x = data + (f->position - at) * f->shape->tensor[tensor].width + f->element;
    memcpy(&f->before, x, sizeof(*x));
    const uint32_t after = f->mask ? f->before ^ f->mask : 0x7fc00000u;
    memcpy(x, &after, sizeof(*x));
    f->n_done++;
}

struct rig {
    char path[512];
    int32_t ids[N];
    struct iso_diff_shape shape;
    struct iso_diff_options o;
    struct iso_diff_result r;
};

static void rig_init(struct rig *g, const char *arch)
{
    const struct tiny_spec spec = tiny_spec(arch);
    struct tiny_model m;
    *g = (struct rig){0};
    (void)snprintf(g->path, sizeof(g->path), "%s", tiny_path(arch));
    tiny_model_init(&m, &spec);
    tiny_model_save(&m, g->path);
    tiny_model_deinit(&m);
    for (size_t i = 0; i < N; i++) g->ids[i] = (int32_t)below(spec.n_vocab);
    tiny_ok(iso_diff_shape_init(&g->shape, g->path));
    g->o = (struct iso_diff_options){.spec = {"cpu:ref", "cpu"}, .model_path = g->path, .ids = g->ids,
                                     .n = N, .chunk = CHUNK, .threads = 1};
}

static void rig_deinit(struct rig *g)
{
    (void)unlink(g->path);
    iso_diff_result_deinit(&g->r);
    iso_diff_shape_deinit(&g->shape);
}

static const char *const family[] = {"llama", "qwen2", "qwen3", "gemma3", "muse-glimmer"};

static void test_equal(void **state)
{
    (void)state;
    for (size_t i = 0; i < ISO_COUNT(family); i++) {
        struct rig g;
        rig_init(&g, family[i]);
        tiny_ok(iso_diff_run(&g.r, &g.shape, &g.o));
        assert_true(iso_diff_equal(&g.r));
        assert_int_equal(g.r.n_tensors, g.shape.n_tensors);
        assert_int_equal(g.r.n_pages, 2 * g.shape.n_layers * g.shape.n_kv_heads);
        rig_deinit(&g);
    }
}

/* A changed bit of a mantissa, so that the run goes on. Returns how many later tensors differ too. */
static size_t one_flip(struct rig *g, size_t tensor, uint32_t mask)
{
    struct flip f = {.shape = &g->shape, .side = below(2), .tensor = tensor, .mask = mask};
    f.position = below(N);
    f.element = below(g->shape.tensor[f.tensor].width);
    g->o.poke = poke;
    g->o.poke_arg = &f;
    tiny_ok(iso_diff_run(&g->r, &g->shape, &g->o));
    char name[48];
    print_message("  %s of side %u, position %zu, element %zu, mask %08x\n",
                  iso_diff_tensor_name(name, &g->shape.tensor[f.tensor]), f.side, f.position, f.element,
                  f.mask);
    assert_int_equal(f.n_done, 1);
    assert_false(iso_diff_equal(&g->r));
    assert_int_equal(iso_diff_first(&g->r), f.tensor);
    const struct iso_diff_stat *s = &g->r.stat[f.tensor];
    assert_int_equal(s->n_different, 1);
    assert_int_equal(s->first_position, f.position);
    assert_int_equal(s->last_position, f.position);
    assert_int_equal(s->element, f.element);
    assert_int_equal(s->bits[f.side], f.before ^ f.mask);
    assert_int_equal(s->bits[!f.side], f.before);
    assert_int_equal(g->r.position[f.position], 1);
    for (size_t p = 0; p < f.position; p++) assert_int_equal(g->r.position[p], 0); /* causal */
    size_t n_later = 0;
    for (size_t t = f.tensor + 1; t < g->r.n_tensors; t++) n_later += g->r.stat[t].n_different > 0;
    iso_diff_result_deinit(&g->r);
    return n_later;
}

static void test_flip_inside_a_run(void **state)
{
    (void)state;
    for (size_t i = 0; i < ISO_COUNT(family); i++) {
        struct rig g;
        rig_init(&g, family[i]);
        /* Logits, the last tensor, are shown without the tap. */
        for (int round = 0; round < 8; round++) {
            (void)one_flip(&g, below(g.shape.n_tensors - 1), 1u << below(23));
        }
        /* Half of an embedded value more or less must reach the residual of every layer. */
        assert_true(one_flip(&g, 0, 1u << 22) >= g.shape.n_layers);
        rig_deinit(&g);
    }
}

/* A side that fails must not leave the other waiting, and its message arrives. */
static void test_error_of_one_side(void **state)
{
    (void)state;
    for (unsigned side = 0; side < 2; side++) {
        struct rig g;
        rig_init(&g, "llama");
        struct flip f = {.shape = &g.shape, .side = side, .tensor = 0, .position = N - 1};
        g.o.poke = poke;
        g.o.poke_arg = &f;
        assert_int_equal(iso_diff_run(&g.r, &g.shape, &g.o), ISO_E_NUMERIC);
        assert_int_equal(f.n_done, 1);
        assert_non_null(strstr(iso_err_message(), "layer 0"));
        rig_deinit(&g);
    }
}

static void test_sides_that_are_nothing(void **state)
{
    (void)state;
    struct rig g;
    rig_init(&g, "llama");
    static const struct {
        const char *spec;
        enum iso_err want;
    } bad[] = {{"cpu:", ISO_E_ARG}, {"cpu:z80", ISO_E_ARG}, {"no-such-folder", ISO_E_IO}};
    for (size_t i = 0; i < ISO_COUNT(bad); i++) {
        g.o.spec[1] = bad[i].spec;
        assert_int_equal(iso_diff_run(&g.r, &g.shape, &g.o), bad[i].want);
        iso_diff_result_deinit(&g.r);
    }
    g.o.spec[1] = g.path;
    assert_int_equal(iso_diff_run(&g.r, &g.shape, &g.o), ISO_E_ARG);
    rig_deinit(&g);
}

static void test_kinds(void **state)
{
    (void)state;
    static const char *const backend[] = {"cpu", "cpu:ref", "cuda", "cuda:sm90", "metal"};
    static const char *const producer[] = {"tower:29400", "127.0.0.1:1", "[::1]:29400", "cpu:29400"};
    static const char *const dump[] = {"dump", "./cpu", "cpus", "a:b", "tower:", "."};
    for (size_t i = 0; i < ISO_COUNT(backend); i++) assert_int_equal(iso_diff_kind(backend[i]), ISO_DIFF_BACKEND);
    for (size_t i = 0; i < ISO_COUNT(producer); i++) assert_int_equal(iso_diff_kind(producer[i]), ISO_DIFF_PRODUCER);
    for (size_t i = 0; i < ISO_COUNT(dump); i++) assert_int_equal(iso_diff_kind(dump[i]), ISO_DIFF_DUMP);
}

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof(u));
    return u;
}

static void test_ulp(void **state)
{
    (void)state;
    assert_int_equal(iso_diff_ulp(bits_of(1.0f), bits_of(1.0f)), 0);
    assert_int_equal(iso_diff_ulp(bits_of(0.0f), bits_of(-0.0f)), 0);
    assert_int_equal(iso_diff_ulp(bits_of(1.0f), bits_of(nextafterf(1.0f, 2.0f))), 1);
    assert_int_equal(iso_diff_ulp(bits_of(nextafterf(1.0f, 0.0f)), bits_of(nextafterf(1.0f, 2.0f))), 2);
    assert_int_equal(iso_diff_ulp(bits_of(1.0f), bits_of(2.0f)), 1 << 23);
    assert_int_equal(iso_diff_ulp(1, 0x80000001u), 2); /* the smallest subnormals around zero */
    assert_int_equal(iso_diff_ulp(bits_of(-INFINITY), bits_of(INFINITY)), 2ll * 0x7f800000);
    assert_int_equal(iso_diff_ulp(bits_of(1.0f), 0x7fc00000u), -1);
    assert_int_equal(iso_diff_ulp(0xffc00000u, bits_of(1.0f)), -1);
}

/* What byte at of a page is, from the table of the specification and not from arith/page.h. */
static void locate(struct iso_diff_page *p, uint32_t at, uint32_t bit, uint32_t d)
{
    const uint32_t start[] = {0, 64 * d, 96 * d, 160 * d, 160 * d + 256, 160 * d + 512};
    uint32_t r = 0;
    while (at >= start[r + 1]) r++;
    at -= start[r];
    p->region = (enum iso_diff_region)r;
    uint32_t slot = at / 4;
    p->element = 0;
    if (r == 0) slot = at / d, p->element = at % d;
    if (r == 1) slot = at / (d / 2), p->element = at % (d / 2) + (bit >= 4 ? d / 2 : 0);
    if (r == 2) slot = at % 64, p->element = at / 64;
    p->position = p->page * 64 + slot;
}

static void test_page_bits(void **state)
{
    (void)state;
    static const uint32_t size[] = {16, 64, 80, 128, 256};
    for (int round = 0; round < 400; round++) {
        const uint32_t d = size[below(ISO_COUNT(size))], len = iso_page_bytes(d);
        uint8_t *a = malloc(len), *b = malloc(len);
        assert_true(a && b);
        for (uint32_t i = 0; i < len; i++) a[i] = b[i] = (uint8_t)next();
        const uint32_t at = below(len), bit = below(8);
        b[at] = (uint8_t)(b[at] ^ 1u << bit);
        struct iso_diff_page want = {.layer = below(9), .head = below(3), .page = below(7)};
        const struct iso_diff_page where = want;
        locate(&want, at, bit, d);
        struct iso_diff_result r = {0};
        iso_diff_pages(&r, &where, a, b, d, 64);
        assert_int_equal(r.n_pages, 1);
        assert_int_equal(r.n_pages_different, 1);
        assert_int_equal(r.n_values_different, 1);
        assert_int_equal(r.page.layer, want.layer);
        assert_int_equal(r.page.head, want.head);
        assert_int_equal(r.page.page, want.page);
        assert_int_equal(r.page.region, want.region);
        assert_int_equal(r.page.position, want.position);
        assert_int_equal(r.page.element, want.element);
        /* Positions that one side does not have are not looked at. */
        struct iso_diff_result less = {0};
        iso_diff_pages(&less, &where, a, b, d, want.position - 64 * want.page);
        assert_int_equal(less.n_pages, 1);
        assert_int_equal(less.n_pages_different, 0);
        free(a);
        free(b);
    }
}

int main(void)
{
    const char *seed = getenv("CHECK_SEED");
    g_seed = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL) * 2654435761u | 1;
    print_message("CHECK_SEED=%llu\n", (unsigned long long)g_seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_ulp),
        cmocka_unit_test(test_page_bits),
        cmocka_unit_test(test_equal),
        cmocka_unit_test(test_flip_inside_a_run),
        cmocka_unit_test(test_error_of_one_side),
        cmocka_unit_test(test_sides_that_are_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
