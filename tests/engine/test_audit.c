/* SPDX-License-Identifier: MIT
 * test_audit.c - audits find a flipped bit, the form check finds impossible pages. */
#include <stdlib.h>
#include <string.h>

#include "arith/page.h"
#include "base/mem.h"
#include "engine/tools.h"

#define P ISO_PAGE_POSITIONS
enum { N = 330 }; /* positions handed over */

struct received {
    iso_engine *e;
    iso_session *producer, *s;
    iso_kv_staging *st;
    int32_t *ids;
};

static void receive(struct received *r, const char *arch)
{
    r->e = tools_engine(
        arch, &(struct iso_engine_options){.n_sessions = 2, .keep_expired = true, .staging = true});
    r->producer = tools_session(r->e);
    r->s = tools_session(r->e);
    r->ids = tools_ids(r->e, N, 77);
    tools_run(r->producer, r->ids, N, 100, NULL);
    const uint32_t first[ISO_KV_CLASSES] = {0};
    r->st = NULL;
    tools_ok(iso_kv_stage(&r->st, r->s, N, first));
    const struct iso_kv_layout *y = iso_engine_kv_layout(r->e);
    for (uint32_t l = 0; l < y->n_layers; l++) {
        for (uint32_t h = 0; h < y->n_kv_heads; h++) {
            for (uint32_t p = 0; p <= (N - 1) / P; p++) {
                memcpy(iso_kv_staging_page(r->st, l, h, p), iso_session_page(r->producer, l, h, p),
                       y->page_bytes);
            }
        }
    }
}

static void release(struct received *r)
{
    iso_kv_discard(r->st);
    iso_session_free(r->producer);
    iso_session_free(r->s);
    for (uint32_t c = 0; c < ISO_KV_CLASSES; c++) {
        assert_int_equal(r->e->pool[c].n_free, r->e->pool[c].n_slots);
    }
    iso_engine_close(r->e);
    free(r->ids);
}

static bool audit(const struct received *r,
                  const uint32_t *positions,
                  size_t n,
                  uint32_t *layer,
                  uint32_t *position)
{
    bool ok = false;
    tools_ok(iso_kv_audit(&ok, layer, position, r->st, r->ids, positions, n));
    return ok;
}

static void right_pages_pass(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        struct received r;
        receive(&r, tools_family[f]);
        const struct iso_digest chain = tools_chain(r.producer);
        const struct iso_digest logits = tools_logits(r.producer);
        uint32_t all[N], layer = 0, position = 0;
        for (uint32_t i = 0; i < N; i++) all[i] = N - 1 - i;
        assert_true(audit(&r, all, N, &layer, &position)); /* every position, in eights */
        assert_true(audit(&r, all, 0, &layer, &position));
        const uint32_t twice[] = {70, 70, 71, 0, 70};
        assert_true(audit(&r, twice, 5, &layer, &position));
        const struct iso_digest after = tools_chain(r.producer); /* audits change nothing else */
        const struct iso_digest logits_after = tools_logits(r.producer);
        assert_memory_equal(&chain, &after, sizeof(chain));
        assert_memory_equal(&logits, &logits_after, sizeof(logits));
        bool ok = true;
        const uint32_t beyond = N;
        tools_expect(iso_kv_audit(&ok, &layer, &position, r.st, r.ids, &beyond, 1), ISO_E_ARG,
                     "audit of position 330 of 330");
        iso_kv_publish(r.st, r.ids);
        r.st = NULL;
        const struct iso_digest mine = tools_chain(r.s);
        assert_memory_equal(&chain, &mine, sizeof(chain));
        release(&r);
    }
}

/* One bit of a page, at a position's own slot. */
static uint8_t *
byte_of(const struct received *r, uint32_t layer, uint32_t head, uint32_t position, int part)
{
    const uint32_t d = r->e->info.head_dim, t = position % P;
    uint8_t *page = iso_kv_staging_page(r->st, layer, head, position / P);
    switch (part) {
    case 0:
        return page + t * d + d / 2 + 1; /* k_hi */
    case 1:
        return page + iso_page_k_lo(d) + t * (d / 2) + 1; /* k_lo */
    case 2:
        return page + iso_page_v(d) + (size_t)(d - 1) * P + t; /* v */
    case 3:
        return page + iso_page_k_scale(d) + 4 * t; /* k_scale, last bits */
    default:
        return page + iso_page_v_scale(d) + 4 * t; /* v_scale */
    }
}

/* Any bit of an audited position, in any layer and part. */
static void a_flipped_bit_is_found_where_it_is(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        struct received r;
        receive(&r, tools_family[f]);
        const uint32_t positions[] = {0, 63, 64, 200, N - 1};
        for (uint32_t l = 0; l < r.e->info.n_layers; l++) {
            for (int part = 0; part < 5; part++) {
                const uint32_t at = positions[(l + (uint32_t)part) % ISO_COUNT(positions)];
                uint8_t *p = byte_of(&r, l, r.e->info.n_kv_heads - 1, at, part);
                const uint8_t bit = (uint8_t)(1u << (part == 0 ? 7 : l % 8));
                *p ^= bit;
                uint32_t layer = 99, position = 99;
                assert_false(audit(&r, positions, ISO_COUNT(positions), &layer, &position));
                assert_true(layer <= l);
                if (layer == l) assert_true(position >= at);
                *p ^= bit;
            }
        }
        uint32_t layer = 0, position = 0;
        assert_true(audit(&r, positions, ISO_COUNT(positions), &layer, &position));
        release(&r);
    }
}

/* A wrong earlier key or value shows in the layers behind it, at positions that see it. A change of
 * the sign bit of k_hi or of the high bits of a scale is large; the last bits of one key among
 * hundreds may round away, and then they change nothing that anybody could compute. */
static void a_wrong_earlier_position_is_found(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        struct received r;
        receive(&r, tools_family[f]);
        const uint32_t n_layers = r.e->info.n_layers;
        static const uint8_t bit[] = {0x40, 0, 0x40, 0, 0};
        for (uint32_t l = 0; l + 1 < n_layers; l++) {
            for (int part = 0; part < 5; part++) {
                const uint32_t bad = 290,
                               audited[] = {291, 295, 303, 329}; /* within every window */
                uint8_t *p = byte_of(&r, l, 0, bad, part) + (part >= 3 ? 3 : 0);
                if (part == 1) continue; /* low bits */
                const uint8_t was = *p;
                *p = part >= 3 ? (uint8_t)(was + 2) : (uint8_t)(was ^ bit[part]); /* scale x 16 */
                uint32_t layer = 99, position = 99;
                if (audit(&r, audited, ISO_COUNT(audited), &layer, &position)) {
                    fail_msg("%s layer %u part %d was not found", tools_family[f], l, part);
                }
                assert_true(layer > l && position > bad);
                *p = was;
            }
        }
        release(&r);
    }
}

/* Window pages that were not sent cannot be audited; that is an error, never a verdict. */
static void a_position_without_its_window_is_refused(void **state)
{
    (void)state;
    iso_engine *e = tools_engine("gemma3", NULL);
    iso_session *s = tools_session(e);
    int32_t *ids = tools_ids(e, N, 1);
    iso_kv_staging *st = NULL;
    const uint32_t first[ISO_KV_CLASSES] = {0, 4};
    tools_ok(iso_kv_stage(&st, s, N, first));
    bool ok = true;
    uint32_t layer = 0, position = 0;
    const uint32_t positions[] = {N - 1, 318, 100};
    tools_expect(iso_kv_audit(&ok, &layer, &position, st, ids, positions, 3), ISO_E_ARG,
                 "position 318 cannot be audited: page 3");
    iso_kv_discard(st);
    iso_session_free(s);
    for (uint32_t c = 0; c < ISO_KV_CLASSES; c++) {
        assert_int_equal(e->pool[c].n_free, e->pool[c].n_slots);
    }
    free(ids);
    iso_engine_close(e);
}

/* --- form ---------------------------------------------------------------------------------------
 */

static void set_f32(uint8_t *p, uint32_t bits)
{
    iso_put_u32(p, bits);
}

static void expect_form(const uint8_t *page, uint32_t d, uint32_t n_used, const char *why)
{
    const char *reason = NULL;
    const bool ok = iso_kv_page_form(&reason, page, d, n_used);
    if (why == NULL) {
        if (!ok) fail_msg("refused: %s", reason);
        assert_null(reason);
        return;
    }
    assert_false(ok);
    assert_non_null(strstr(reason, why));
}

static void impossible_pages_are_refused(void **state)
{
    (void)state;
    static const uint32_t dims[] = {16, 64, 256};
    for (size_t i = 0; i < ISO_COUNT(dims); i++) {
        const uint32_t d = dims[i], used = 10;
        uint8_t *page = iso_xalloc(iso_page_bytes(d), 1);
        expect_form(page, d, 0, NULL);
        expect_form(page, d, used, NULL); /* zero scales are fine */
        expect_form(page, d, P, NULL);
        uint8_t *const ks = page + iso_page_k_scale(d), *const vs = page + iso_page_v_scale(d);
        static const uint32_t good[] = {0, 0x2b800000, 0x3f800000, 0x717fffff};
        static const uint32_t bad[] = {0x80000000, 0x2b7fffff, 0x71800000, 0xbf800000,
                                       0x7f800000, 0x7fc00000, 1,          0xff800000};
        for (size_t k = 0; k < ISO_COUNT(good); k++) {
            set_f32(ks + 4 * 9, good[k]);
            set_f32(vs, good[k]);
            expect_form(page, d, used, NULL);
        }
        for (size_t k = 0; k < ISO_COUNT(bad); k++) {
            set_f32(ks + 4 * 9, bad[k]);
            expect_form(page, d, used, "scale");
            set_f32(ks + 4 * 9, 0);
            set_f32(vs, bad[k]);
            expect_form(page, d, used, "scale");
            set_f32(vs, 0);
        }
        set_f32(ks + 4 * 10, 0x3f800000); /* of an unused slot */
        expect_form(page, d, used, "scale");
        set_f32(ks + 4 * 10, 0);
        /* k: -2048 is below the range, -2047 is not; in both halves. */
        for (int half = 0; half < 2; half++) {
            uint8_t *hi = page + 9 * d + (half ? d - 1 : 0);
            uint8_t *lo = page + iso_page_k_lo(d) + 9 * (d / 2) + (half ? d / 2 - 1 : 0);
            *hi = 0x80;
            expect_form(page, d, used, "k code");
            *lo = half ? 0x0f : 0xf0; /* the other half's nibble does not help */
            expect_form(page, d, used, "k code");
            *lo = half ? 0x10 : 0x01;
            expect_form(page, d, used, NULL);
            *hi = *lo = 0;
        }
        uint8_t *v = page + iso_page_v(d) + (size_t)(d - 1) * P;
        v[9] = 0x80;
        expect_form(page, d, used, "v code");
        v[9] = 0x81;
        expect_form(page, d, used, NULL);
        v[10] = 1; /* unused slots: v, k_hi, k_lo */
        expect_form(page, d, used, "unused");
        v[10] = 0;
        page[10 * d] = 1;
        expect_form(page, d, used, "unused");
        page[10 * d] = 0;
        page[iso_page_k_lo(d) + 64 * (d / 2) - 1] = 0x10;
        expect_form(page, d, used, "unused");
        expect_form(page, d, P, NULL);
        free(page);
    }
}

/* Every page that the kernels write has the form. */
static void written_pages_have_the_form(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        struct received r;
        receive(&r, tools_family[f]);
        const struct iso_kv_layout *y = iso_engine_kv_layout(r.e);
        for (uint32_t l = 0; l < y->n_layers; l++) {
            for (uint32_t p = 0; p <= (N - 1) / P; p++) {
                const uint32_t used = ISO_MIN((uint32_t)N - p * P, (uint32_t)P);
                expect_form(iso_session_page(r.producer, l, y->n_kv_heads - 1, p), y->head_dim,
                            used, NULL);
            }
        }
        release(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_pages_pass),
        cmocka_unit_test(a_flipped_bit_is_found_where_it_is),
        cmocka_unit_test(a_wrong_earlier_position_is_found),
        cmocka_unit_test(a_position_without_its_window_is_refused),
        cmocka_unit_test(impossible_pages_are_refused),
        cmocka_unit_test(written_pages_have_the_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
