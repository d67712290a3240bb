/* SPDX-License-Identifier: MIT
 * check_heads.c - norm, rotation, butterfly, codes and page writes: every level against the golden
 * layers, and against the plain form for random shapes and values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "arith/page.h"
#include "arith/prim.h"
#include "base/buf.h"
#include "base/mem.h"
#include "kernels/boundary.h"
#include "kernels/check.h"
#include "kernels/heads/heads.h"
#include "kernels/shared/cpu.h"

/* Recorded q and k after rotation, and the pages, from the recorded products. */
static void check_boundary(const struct iso_heads_kernels *kern, const struct boundary *b)
{
    const uint32_t d = b->q_args.d;
    char what[96];
    float *tap = check_alloc(d * sizeof(float), CHECK_GUARDED);
    uint8_t *page = check_alloc(iso_page_bytes(d), CHECK_GUARDED);
    int16_t code[ISO_HEAD_MAX];
    float scale;
    for (uint32_t t = 0; t < b->n_tokens; t++) {
        const float *cs = b->cos_sin + (size_t)t * d;
        for (uint32_t h = 0; h < b->n_heads; h++) {
            const size_t at = ((size_t)t * b->n_heads + h) * d;
            kern->q(code, &scale, tap, b->q + at, cs, &b->q_args);
            (void)snprintf(what, sizeof(what), "%s %s q_rope t %u h %u", kern->name, b->model, t,
                           h);
            check_bits_f32(what, tap, d, b->q_rope + at, d, 1, d);
        }
    }
    for (uint32_t h = 0; h < b->n_kv; h++) {
        memset(page, 0, iso_page_bytes(d));
        for (uint32_t t = 0; t < b->n_tokens; t++) {
            const size_t at = ((size_t)t * b->n_kv + h) * d;
            kern->k(page, t, tap, b->k + at, b->cos_sin + (size_t)t * d, &b->k_args);
            (void)snprintf(what, sizeof(what), "%s %s k_rope t %u h %u", kern->name, b->model, t,
                           h);
            check_bits_f32(what, tap, d, b->k_rope + at, d, 1, d);
            kern->v(page, t, b->v + at, d);
        }
        (void)snprintf(what, sizeof(what), "%s %s page h %u", kern->name, b->model, h);
        check_bytes(what, page, b->page[h], iso_page_bytes(d));
    }
    check_free(page);
    check_free(tap);
}

static void test_boundary(void **state)
{
    (void)state;
    for (size_t i = 0; i < boundary_count(); i++) {
        struct boundary b;
        boundary_load(&b, i);
        unsigned flags;
        for (size_t l = 0; check_level(l, &flags); l++) check_boundary(iso_heads_select(flags), &b);
        boundary_free(&b);
    }
}

/* One random call: inputs end where memory ends, outputs are guarded. */
struct call {
    struct iso_heads_args args;
    uint32_t slot;
    float *x, *cos_sin, *norm;
};

/* What a call leaves behind. */
struct result {
    int16_t *code;
    float *scale;
    float *tap_q, *tap_k;
    uint8_t *page;
    uint32_t max_q, max_k, max_v;
};

static struct result
run_call(const struct iso_heads_kernels *kern, const struct call *c, const uint8_t *page)
{
    const uint32_t d = c->args.d;
    struct result r;
    r.code = check_alloc(d * sizeof(int16_t), CHECK_GUARDED);
    r.scale = check_alloc(sizeof(float), CHECK_GUARDED);
    r.tap_q = check_alloc(d * sizeof(float), CHECK_GUARDED);
    r.tap_k = check_alloc(d * sizeof(float), CHECK_GUARDED);
    r.page = check_alloc(iso_page_bytes(d), CHECK_GUARDED);
    memcpy(r.page, page, iso_page_bytes(d));
    r.max_q = kern->q(r.code, r.scale, r.tap_q, c->x, c->cos_sin, &c->args);
    r.max_k = kern->k(r.page, c->slot, r.tap_k, c->x, c->cos_sin, &c->args);
    r.max_v = kern->v(r.page, c->slot, c->x, d);
    return r;
}

static void free_result(struct result *r)
{
    check_free(r->code);
    check_free(r->scale);
    check_free(r->tap_q);
    check_free(r->tap_k);
    check_free(r->page);
}

/* The codes of k in a page, put together again. */
static int32_t page_code(const uint8_t *page, uint32_t d, uint32_t slot, uint32_t i)
{
    const uint8_t lo = page[iso_page_k_lo(d) + slot * (d / 2) + i % (d / 2)];
    return (int8_t)page[slot * d + i] * 16 + (i < d / 2 ? lo & 15 : lo >> 4);
}

/* q and k make the same codes and scale of the same input, the page only changes in its slot, and
 * the returned maximum fits the codes. Fails where the plain form itself is wrong. */
static void check_page(const struct result *r, const struct call *c, const uint8_t *before)
{
    const uint32_t d = c->args.d;
    float scale;
    iso_copy_le(&scale, r->page + iso_page_k_scale(d) + 4 * c->slot, 1, sizeof(scale));
    assert_true(ISO_AS_U32(scale) == ISO_AS_U32(*r->scale) && r->max_q == r->max_k);
    int32_t top = 0;
    for (uint32_t i = 0; i < d; i++) {
        assert_int_equal(page_code(r->page, d, c->slot, i), r->code[i]);
        top = ISO_MAX(top, r->code[i] < 0 ? -r->code[i] : r->code[i]);
    }
    assert_int_equal(top, scale == 0.0f ? 0 : 2047);
    for (uint32_t slot = 0; slot < ISO_PAGE_POSITIONS; slot++) {
        if (slot == c->slot) continue;
        for (uint32_t i = 0; i < d; i++) {
            assert_int_equal(page_code(r->page, d, slot, i), page_code(before, d, slot, i));
            const uint32_t at = iso_page_v(d) + i * ISO_PAGE_POSITIONS + slot;
            assert_int_equal(r->page[at], before[at]);
        }
        assert_memory_equal(r->page + iso_page_k_scale(d) + 4 * slot,
                            before + iso_page_k_scale(d) + 4 * slot, 4);
        assert_memory_equal(r->page + iso_page_v_scale(d) + 4 * slot,
                            before + iso_page_v_scale(d) + 4 * slot, 4);
    }
}

static void
compare(const char *name, const struct result *got, const struct result *want, const struct call *c)
{
    const uint32_t d = c->args.d;
    char what[128];
    (void)snprintf(what, sizeof(what), "%s d %u n_rot %u pairs %d norm %d slot %u", name, d,
                   c->args.n_rot, (int)c->args.pairs, c->args.norm != NULL, c->slot);
    check_bits_f32(what, got->tap_q, d, want->tap_q, d, 1, d);
    check_bits_f32(what, got->tap_k, d, want->tap_k, d, 1, d);
    check_bits_f32(what, got->scale, 1, want->scale, 1, 1, 1);
    check_bytes(what, got->code, want->code, d * sizeof(int16_t));
    check_bytes(what, got->page, want->page, iso_page_bytes(d));
    if (got->max_q != want->max_q || got->max_k != want->max_k || got->max_v != want->max_v) {
        fail_msg("%s: maxima %08x %08x %08x, want %08x %08x %08x", what, got->max_q, got->max_k,
                 got->max_v, want->max_q, want->max_k, want->max_v);
    }
}

/* Magnitudes from nothing to just below 2^32: whatever d, the butterfly stays below 2^40. */
static float random_scale(struct check_rng *r)
{
    static const float scales[] = {1.0f,     30.0f,     0x1p-12f, 0x1p-28f,  0x1p-29f, 0x1p-34f,
                                   0x1p-61f, 0x1p-127f, 0x1p31f,  0x1p-149f, 0.0f,     1e-3f};
    return scales[check_int(r, 0, ISO_COUNT(scales) - 1)];
}

static void fill_call(struct call *c, struct check_rng *r, uint32_t d)
{
    c->args.d = d;
    c->args.n_rot = check_int(r, 0, 2) ? d : 2 * (uint32_t)check_int(r, 0, d / 2);
    c->args.pairs = (enum iso_rope_pairs)check_int(r, ISO_ROPE_NONE, ISO_ROPE_HALVES);
    c->args.eps = check_int(r, 0, 1) ? 1e-6f : 1e-5f;
    c->args.inv_n = 1.0f / (float)d;
    c->slot = (uint32_t)check_int(r, 0, ISO_PAGE_POSITIONS - 1);
    c->x = check_alloc(d * sizeof(float), CHECK_END);
    c->cos_sin = check_alloc(c->args.n_rot * sizeof(float), CHECK_END);
    c->norm = check_alloc(d * sizeof(float), CHECK_END);
    c->args.norm = check_int(r, 0, 1) ? c->norm : NULL;
    const float scale = random_scale(r);
    const int mixed = check_int(r, 0, 3) == 0;
    for (uint32_t i = 0; i < d; i++) {
        c->x[i] = check_f32(r) * (mixed ? random_scale(r) : scale);
        c->norm[i] = check_f32(r) * 3.0f;
    }
    for (uint32_t i = 0; i < c->args.n_rot; i++) c->cos_sin[i] = check_f32(r);
}

static void free_call(struct call *c)
{
    check_free(c->x);
    check_free(c->cos_sin);
    check_free(c->norm);
}

static void test_random(void **state)
{
    (void)state;
    struct check_rng r = check_rng(1);
    const struct iso_heads_kernels *ref = iso_heads_select(ISO_CPU_REF);
    uint8_t *page = check_alloc(iso_page_bytes(ISO_HEAD_MAX), CHECK_GUARDED);
    for (uint32_t d = 8; d <= ISO_HEAD_MAX; d += 8) {
        for (int n = 0; n < 24; n++) {
            struct call c;
            fill_call(&c, &r, d);
            check_fill(&r, page, iso_page_bytes(d));
            struct result want = run_call(ref, &c, page);
            check_page(&want, &c, page);
            unsigned flags;
            for (size_t l = 1; check_level(l, &flags); l++) {
                const struct iso_heads_kernels *kern = iso_heads_select(flags);
                struct result got = run_call(kern, &c, page);
                compare(kern->name, &got, &want, &c);
                free_result(&got);
            }
            free_result(&want);
            free_call(&c);
        }
    }
    check_free(page);
}

/* The plain butterfly against the definition: entry (i, j) of the matrix is the parity of i & j. */
static void test_butterfly_definition(void **state)
{
    (void)state;
    const struct iso_heads_kernels *ref = iso_heads_select(ISO_CPU_REF);
    uint8_t *page = check_alloc(iso_page_bytes(48), CHECK_GUARDED);
    for (uint32_t j = 0; j < 48; j++) {
        float x[48] = {0};
        x[j] = 1.0f;
        memset(page, 0, iso_page_bytes(48));
        assert_true(ref->v(page, 5, x, 48) == ISO_AS_U32(1.0f));
        for (uint32_t i = 0; i < 48; i++) {
            const int8_t got = (int8_t)page[iso_page_v(48) + i * ISO_PAGE_POSITIONS + 5];
            const int8_t sign = __builtin_parity(i & j & 15) ? -127 : 127;
            assert_int_equal(got, i / 16 == j / 16 ? sign : 0);
        }
    }
    check_free(page);
}

/* What the caller must refuse is reported, and nothing outside the contract happens. */
static void test_out_of_domain(void **state)
{
    (void)state;
    const uint32_t bad[] = {0x7f800000u, 0xff800000u, 0x7fc00000u,
                            0xffffffffu, 0x7f7fffffu, 0x53800000u};
    const struct iso_heads_args args = {.d = 64, .inv_n = 1.0f / 64.0f};
    uint8_t *page = check_alloc(iso_page_bytes(64), CHECK_GUARDED);
    int16_t *code = check_alloc(64 * sizeof(int16_t), CHECK_GUARDED);
    unsigned flags;
    for (size_t l = 0; check_level(l, &flags); l++) {
        const struct iso_heads_kernels *kern = iso_heads_select(flags);
        for (size_t i = 0; i < ISO_COUNT(bad); i++) {
            float x[64], scale;
            for (int k = 0; k < 64; k++) x[k] = 1.0f;
            x[17] = ISO_AS_F32(bad[i]);
            assert_true(kern->q(code, &scale, NULL, x, NULL, &args) >= ISO_BITS_2P40);
            assert_true(kern->k(page, 63, NULL, x, NULL, &args) >= ISO_BITS_2P40);
            assert_true(kern->v(page, 63, x, 64) >= ISO_BITS_2P40);
        }
    }
    check_free(code);
    check_free(page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_butterfly_definition),
        cmocka_unit_test(test_boundary),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_out_of_domain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
