/* SPDX-License-Identifier: MIT
 * test_kv.c - pages from outside: staging, publishing, discarding, audits, form, promises. */
#include <stdlib.h>
#include <string.h>

#include "arith/page.h"
#include "base/mem.h"
#include "engine/tools.h"

#define P ISO_PAGE_POSITIONS

/* A producer's session and a consumer's engine of the same tiny model. */
struct pair {
    iso_engine *pe, *ce;
    iso_session *p, *c;
    int32_t *ids;
    uint32_t n; /* tokens of the prompt; n-1 positions are handed over */
};

static void
pair_init(struct pair *x, const char *arch, uint32_t n, const struct iso_engine_options *o)
{
    *x = (struct pair){.n = n};
    x->pe = tools_engine(arch, &(struct iso_engine_options){.keep_expired = true});
    x->ce = tools_engine(arch, o);
    x->p = tools_session(x->pe);
    x->c = tools_session(x->ce);
    x->ids = tools_ids(x->pe, 1024, 21);
    tools_run(x->p, x->ids, n - 1, 100, NULL);
}

static void pair_deinit(struct pair *x)
{
    iso_session_free(x->p);
    iso_session_free(x->c);
    for (uint32_t c = 0; c < ISO_KV_CLASSES; c++) { /* nothing leaked, no promise kept */
        assert_int_equal(x->ce->pool[c].n_free, x->ce->pool[c].n_slots);
        assert_int_equal(x->ce->pool[c].n_reserved, x->ce->pool[c].n_layers ? ISO_AUDIT_ROWS : 0);
    }
    iso_engine_close(x->pe);
    iso_engine_close(x->ce);
    free(x->ids);
}

/* First page of each class that the next position sees. */
static void visible(const struct pair *x, uint32_t first[ISO_KV_CLASSES])
{
    const uint32_t w = iso_engine_kv_layout(x->pe)->window;
    first[ISO_KV_FULL] = 0;
    first[ISO_KV_WINDOW] = w && x->n > w ? (x->n - w) / P : 0;
}

/* Copies the pages that were asked for from the producer; returns how many. */
static size_t receive(iso_kv_staging *st, const struct pair *x)
{
    const struct iso_kv_layout *y = iso_engine_kv_layout(x->ce);
    size_t n = 0;
    for (uint32_t l = 0; l < y->n_layers; l++) {
        for (uint32_t h = 0; h < y->n_kv_heads; h++) {
            for (uint32_t p = 0; p <= x->n / P; p++) {
                uint8_t *to = iso_kv_staging_page(st, l, h, p);
                if (to == NULL) continue;
                memcpy(to, iso_session_page(x->p, l, h, p), y->page_bytes);
                n++;
            }
        }
    }
    assert_null(iso_kv_staging_page(st, y->n_layers, 0, 0));
    assert_null(iso_kv_staging_page(st, 0, y->n_kv_heads, 0));
    return n;
}

/* Decodes the last token and more in both sessions: logits must agree. */
static void check_continues(const struct pair *x)
{
    for (uint32_t i = 0; i < 70; i++) {
        tools_ok(iso_session_decode(x->p, x->ids[x->n - 1 + i]));
        tools_ok(iso_session_decode(x->c, x->ids[x->n - 1 + i]));
        const struct iso_digest a = tools_logits(x->p), b = tools_logits(x->c);
        assert_memory_equal(&a, &b, sizeof(a));
    }
}

/* K5: handed over or computed here, the bits are the same. */
static void a_published_session_equals_a_local_run(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {2, 64, 65, 66, 300, 640, 701};
    for (size_t f = 0; f < N_FAMILIES; f++) {
        for (size_t i = 0; i < ISO_COUNT(lengths); i++) {
            for (int all = 0; all < 2; all++) {
                struct pair x;
                pair_init(&x, tools_family[f], lengths[i],
                          &(struct iso_engine_options){.keep_expired = all == 1, .staging = true});
                uint32_t first[ISO_KV_CLASSES] = {0};
                if (!all) visible(&x, first);
                iso_kv_staging *st = NULL;
                tools_ok(iso_kv_stage(&st, x.c, x.n - 1, first));
                const size_t n = receive(st, &x);
                assert_true(n > 0);
                assert_int_equal(iso_session_position(x.c), 0); /* invisible until then */
                assert_null(iso_session_page(x.c, 0, 0, 0));
                iso_kv_publish(st, x.ids);
                assert_int_equal(iso_session_position(x.c), x.n - 1);
                assert_null(iso_session_logits(x.c));
                assert_memory_equal(iso_session_ids(x.c), x.ids, (x.n - 1) * sizeof(*x.ids));
                if (all || x.pe->info.window == 0) {
                    const struct iso_digest a = tools_chain(x.p), b = tools_chain(x.c);
                    assert_memory_equal(&a, &b, sizeof(a));
                }
                check_continues(&x);
                pair_deinit(&x);
            }
        }
    }
}

/* K1: what was received is given up; the session is as it was, bit for bit. */
static void a_discarded_set_leaves_no_trace(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        struct pair x;
        pair_init(&x, tools_family[f], 500,
                  &(struct iso_engine_options){.staging = true, .n_sessions = 2});
        iso_session *control = tools_session(x.ce);
        int32_t *other = tools_ids(x.ce, 400, 99);
        tools_run(x.c, other, 200, 64, NULL);
        tools_run(control, other, 200, 64, NULL);
        const struct iso_digest chain = tools_chain(x.c);
        const uint32_t n_free[2] = {x.ce->pool[0].n_free, x.ce->pool[1].n_free};
        uint32_t first[ISO_KV_CLASSES];
        visible(&x, first);
        for (int round = 0; round < 3; round++) {
            iso_kv_staging *st = NULL;
            tools_ok(iso_kv_stage(&st, x.c, x.n - 1, first));
            assert_true(x.ce->pool[0].n_free < n_free[0]);
            (void)receive(st, &x);
            uint8_t *page = iso_kv_staging_page(st, x.ce->info.n_layers - 1, 0, 499 / P);
            page[iso_page_v(x.ce->info.head_dim)] ^= 4; /* the flipped byte of K1 */
            if (round == 1) {                           /* the session is used while pages arrive */
                tools_run(x.c, other + 200, 20, 20, NULL);
                assert_int_equal(iso_session_rewind(x.c, 200), 200);
            }
            iso_kv_discard(st);
            assert_int_equal(x.ce->pool[0].n_free, n_free[0]);
            assert_int_equal(x.ce->pool[1].n_free, n_free[1]);
        }
        const struct iso_digest after = tools_chain(x.c);
        assert_memory_equal(&chain, &after, sizeof(chain));
        struct iso_digest a[100], b[100];
        tools_run(x.c, other + 200, 100, 30, a);
        tools_run(control, other + 200, 100, 30, b);
        assert_memory_equal(a, b, sizeof(a));
        iso_kv_discard(NULL);
        free(other);
        iso_session_free(control);
        pair_deinit(&x);
    }
}

/* A second turn: pages that both have are not sent again. */
static void a_cut_takes_over_what_is_held(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        for (uint32_t common = 190; common <= 258; common += 34) { /* 190, 224, 258 */
            struct pair x;
            pair_init(&x, tools_family[f], 400,
                      &(struct iso_engine_options){.n_batch = 64, .staging = true});
            int32_t *other = tools_ids(x.ce, 20, 5);
            tools_run(x.c, x.ids, common, 64, NULL); /* the common part, then something else */
            tools_run(x.c, other, 20, 20, NULL);
            assert_int_equal(iso_session_rewind(x.c, common), common);
            uint32_t first[ISO_KV_CLASSES];
            visible(&x, first);
            first[ISO_KV_FULL] = common / P;
            iso_kv_staging *st = NULL;
            tools_ok(iso_kv_stage(&st, x.c, x.n - 1, first));
            assert_null(iso_kv_staging_page(
                st, x.ce->info.n_layers == 7 ? 5 : x.ce->info.n_layers - 2, 0, common / P - 1));
            (void)receive(st, &x);
            uint32_t layer = 0, position = 0;
            bool ok = false;
            const uint32_t audited[] = {common / P * P, 398, 330};
            tools_ok(iso_kv_audit(&ok, &layer, &position, st, x.ids, audited,
                                  x.pe->info.window ? 0 : 3));
            assert_true(ok);
            iso_kv_publish(st, x.ids);
            check_continues(&x);
            free(other);
            pair_deinit(&x);
        }
    }
}

/* Window pages of another timeline must not survive under the new one, where a rewind would find
 * them: the next turn would be answered from somebody else's text. */
static void old_window_pages_do_not_survive(void **state)
{
    (void)state;
    for (size_t f = 3; f < N_FAMILIES; f++) {
        struct pair x;
        pair_init(&x, tools_family[f], 400,
                  &(struct iso_engine_options){.staging = true, .keep_expired = true});
        int32_t *other = tools_ids(x.ce, 700, 5);
        tools_run(x.c, other, 700, 64, NULL);
        uint32_t first[ISO_KV_CLASSES];
        visible(&x, first);
        assert_true(first[ISO_KV_WINDOW] >= 4);
        iso_kv_staging *st = NULL;
        tools_ok(iso_kv_stage(&st, x.c, x.n - 1, first));
        (void)receive(st, &x);
        iso_kv_publish(st, x.ids);
        const uint32_t p = iso_session_rewind(x.c, 300);
        iso_session_rewind(x.p, 300);
        tools_run(x.p, other, 5, 5, NULL);
        if (p == 0) tools_run(x.c, x.ids, 300, 64, NULL);
        tools_run(x.c, other, 5, 5, NULL);
        const struct iso_digest a = tools_logits(x.p), b = tools_logits(x.c);
        assert_memory_equal(&a, &b, sizeof(a));
        free(other);
        pair_deinit(&x);
    }
}

/* What could not be continued is refused before anything is sent. */
static void impossible_ranges_are_refused(void **state)
{
    (void)state;
    struct pair x;
    pair_init(&x, "gemma3", 400, &(struct iso_engine_options){.staging = true});
    tools_run(x.c, x.ids, 100, 50, NULL); /* pages 0 and, in part, 1 */
    iso_kv_staging *st = NULL;
    const struct {
        uint32_t n, full, window;
        enum iso_err want;
        const char *text;
    } bad[] = {
        {1024, 0, 0, ISO_E_CONTEXT, "1024 positions and a token more"},
        {399, 8, 0, ISO_E_ARG, "pages 8 to 7"},
        {399, 2, 0, ISO_E_ARG, "class 0 from 2 on"}, /* page 1 is only half there */
        {399, 0, 6, ISO_E_ARG, "class 1 from 6 on"}, /* 399 sees 336 = page 5 */
        {130, 1, 2, ISO_E_ARG, "class 1 from 2 on"}, /* page 1 again: window layers see it */
    };
    for (size_t i = 0; i < ISO_COUNT(bad); i++) {
        const uint32_t first[ISO_KV_CLASSES] = {bad[i].full, bad[i].window};
        tools_expect(iso_kv_stage(&st, x.c, bad[i].n, first), bad[i].want, bad[i].text);
        assert_null(st);
    }
    const uint32_t good[ISO_KV_CLASSES] = {1, 1};
    tools_ok(iso_kv_stage(&st, x.c, 130, good));
    iso_kv_discard(st);
    pair_deinit(&x);
}

/* Staging may not take pages that were promised to other sessions, in whatever order they come. */
static void promises_are_kept(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f += 3) {
        struct pair x;
        pair_init(
            &x, tools_family[f], 900,
            &(struct iso_engine_options){.n_sessions = 3, .n_batch = 64, .keep_expired = true});
        const uint32_t first[ISO_KV_CLASSES] = {0};
        int32_t *other = tools_ids(x.ce, 1024, 1);
        iso_kv_staging *a = NULL, *b = NULL;
        tools_run(x.c, other, 700, 64, NULL);
        uint32_t n_reserved[2] = {x.ce->pool[0].n_reserved, x.ce->pool[1].n_reserved};
        tools_ok(iso_kv_stage(&a, x.c, 899, first)); /* nobody else is there yet */
        iso_session *s[2] = {0};
        tools_ok(iso_session_new(&s[0], x.ce, 0));
        const enum iso_err err = iso_session_new(&s[1], x.ce, 0);
        if (err != ISO_OK) { /* refused now rather than in the middle of an answer */
            tools_expect(err, ISO_E_LIMIT, "promised");
        }
        for (int i = 0; i < 2; i++) { /* who was admitted gets all of it */
            if (s[i]) tools_run(s[i], other, 1024, 64, NULL);
        }
        /* Its own pages and the staged ones together are more than this session's share. */
        iso_kv_discard(a);
        for (int i = 0; i < 2; i++)
            assert_int_equal(x.ce->pool[i].n_reserved, n_reserved[i] +
                                                           (s[0] ? s[0]->reserved[i] : 0) +
                                                           (s[1] ? s[1]->reserved[i] : 0));
        if (s[1] == NULL) tools_ok(iso_session_new(&s[1], x.ce, 0));
        tools_run(x.c, other + 700, 324, 64, NULL);
        /* Now all is promised: a set beyond the own share is refused with the counts. */
        tools_expect(iso_kv_stage(&b, x.c, 899, first), ISO_E_LIMIT, "are not promised");
        assert_null(b);
        assert_int_equal(x.c->staged[0] + x.c->staged[1] + x.c->extra[0] + x.c->extra[1], 0);
        iso_session_free(s[0]);
        iso_session_free(s[1]);
        free(other);
        pair_deinit(&x);
    }
}

/* A session that steps while its pages are staged cannot take those of others. */
static void a_session_stays_within_its_share(void **state)
{
    (void)state;
    struct pair x;
    pair_init(&x, "llama", 1000, &(struct iso_engine_options){.n_sessions = 2});
    iso_session *s = tools_session(x.ce);
    int32_t *other = tools_ids(x.ce, 1024, 1);
    const uint32_t first[ISO_KV_CLASSES] = {0};
    iso_kv_staging *st = NULL;
    tools_ok(iso_kv_stage(&st, x.c, 999, first)); /* its whole share of 16 pages */
    tools_expect(iso_session_prefill(x.c, other, 100, NULL), ISO_E_LIMIT, "16 of them staged");
    assert_int_equal(iso_session_position(x.c), 0);
    tools_run(s, other, 1024, 512, NULL);
    (void)receive(st, &x);
    iso_kv_publish(st, x.ids);
    tools_ok(iso_session_decode(x.c, x.ids[999]));
    free(other);
    iso_session_free(s);
    pair_deinit(&x);
}

/* What a listener saw of the layers of one session. */
struct seen {
    uint32_t calls, n_layers, first, last;
    uint8_t *pages; /* [n_layers][heads][2 pages] of the last two pages, as they were then */
};

static void on_ready(void *arg, iso_session *s, uint32_t layer, uint32_t first, uint32_t last)
{
    struct seen *x = arg;
    const struct iso_kv_layout *y = iso_engine_kv_layout(iso_session_engine(s));
    if (x->calls == x->n_layers) x->calls = 0; /* the next step */
    assert_int_equal(layer, x->calls++);
    x->first = first;
    x->last = last;
    free(iso_xalloc(1, 1)); /* may allocate */
    for (uint32_t h = 0; h < y->n_kv_heads; h++) {
        for (uint32_t p = (last - 1) / P ? (last - 1) / P - 1 : 0; p <= (last - 1) / P; p++) {
            memcpy(x->pages + ((layer * y->n_kv_heads + h) * 2 + p % 2) * (size_t)y->page_bytes,
                   iso_session_page(s, layer, h, p), y->page_bytes);
        }
    }
}

/* A producer may send a layer's pages when it is told: they do not change any more in this step. */
static void ready_pages_are_final(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        iso_engine *e = tools_engine(
            tools_family[f], &(struct iso_engine_options){.n_sessions = 2, .keep_expired = true});
        const struct iso_kv_layout *y = iso_engine_kv_layout(e);
        iso_session *a = tools_session(e), *b = tools_session(e);
        int32_t *ids = tools_ids(e, 300, 1);
        struct seen x = {.n_layers = y->n_layers};
        x.pages = iso_xalloc((size_t)y->n_layers * y->n_kv_heads * 2, y->page_bytes);
        iso_session_on_ready(b, on_ready, &x);
        for (uint32_t at = 0; at < 300; at += 75) {
            struct iso_row rows[150];
            for (uint32_t i = 0; i < 75; i++) {
                rows[i] = (struct iso_row){a, ids[299 - i], ISO_OUTPUT_NONE};
                rows[75 + i] = (struct iso_row){b, ids[at + i], ISO_OUTPUT_NONE};
            }
            tools_ok(iso_step(e, rows, 150, NULL));
            assert_int_equal(x.calls, y->n_layers);
            assert_int_equal(x.first, at);
            assert_int_equal(x.last, at + 75);
            const uint32_t last = (at + 74) / P;
            for (uint32_t l = 0; l < y->n_layers; l++) {
                for (uint32_t h = 0; h < y->n_kv_heads; h++) {
                    for (uint32_t p = last ? last - 1 : 0; p <= last; p++) {
                        assert_memory_equal(iso_session_page(b, l, h, p),
                                            x.pages + ((l * y->n_kv_heads + h) * 2 + p % 2) *
                                                          (size_t)y->page_bytes,
                                            y->page_bytes);
                    }
                }
            }
        }
        iso_session_on_ready(b, NULL, NULL);
        tools_ok(iso_session_decode(b, 1));
        assert_int_equal(x.last, 300); /* not told any more */
        free(x.pages);
        free(ids);
        iso_session_free(a);
        iso_session_free(b);
        iso_engine_close(e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_published_session_equals_a_local_run),
        cmocka_unit_test(a_discarded_set_leaves_no_trace),
        cmocka_unit_test(a_cut_takes_over_what_is_held),
        cmocka_unit_test(old_window_pages_do_not_survive),
        cmocka_unit_test(impossible_ranges_are_refused),
        cmocka_unit_test(promises_are_kept),
        cmocka_unit_test(a_session_stays_within_its_share),
        cmocka_unit_test(ready_pages_are_final),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
