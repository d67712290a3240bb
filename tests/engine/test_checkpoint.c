/* SPDX-License-Identifier: MIT
 * test_checkpoint.c - sessions of window models go back to where a turn ended, with the same bits. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "arith/page.h"
#include "base/mem.h"
#include "device/sim_device.h"
#include "engine/tools.h"

#define P ISO_PAGE_POSITIONS
#define FIRST_WINDOWED 3 /* of tools_family */

static iso_engine *windowed(size_t f, uint32_t n_checkpoints)
{
    iso_engine *e = tools_engine(tools_family[f],
                                 &(struct iso_engine_options){.n_batch = 64, .n_checkpoints = n_checkpoints});
    assert_true(e->info.window > 0 && e->window_pages < e->max_pages);
    return e;
}

/* Frees s and sees that every page and promise came back. */
static void done(iso_session *s)
{
    iso_engine *e = iso_session_engine(s);
    iso_session_free(s);
    for (uint32_t c = 0; c < ISO_KV_CLASSES; c++) {
        assert_int_equal(e->pool[c].n_free, e->pool[c].n_slots);
        assert_int_equal(e->pool[c].n_reserved, e->pool[c].n_layers ? ISO_AUDIT_ROWS : 0);
    }
}

/* Every page that s holds is the fresh session's, byte for byte. */
static void check_pages(const iso_session *s, const iso_session *fresh)
{
    const struct iso_kv_layout *y = iso_engine_kv_layout(iso_session_engine(s));
    for (uint32_t l = 0; l < y->n_layers; l++) {
        const uint32_t first = iso_session_first_page(s, y->layer_class[l]);
        for (uint32_t p = first; p * P < iso_session_position(s); p++) {
            for (uint32_t h = 0; h < y->n_kv_heads; h++) {
                assert_memory_equal(iso_session_page(s, l, h, p), iso_session_page(fresh, l, h, p), y->page_bytes);
            }
        }
    }
}

/* The pages of s and the logits of its next tokens are those of a session that was never longer. */
static void check_continues(iso_session *s)
{
    enum { MORE = 70 };
    iso_engine *e = tools_engine(iso_session_engine(s)->info.architecture,
                                 &(struct iso_engine_options){.keep_expired = true});
    iso_session *fresh = tools_session(e);
    struct iso_digest got[MORE], want[MORE];
    int32_t *more = tools_ids(e, MORE, 77);
    const uint32_t n = iso_session_position(s);
    if (n > 0) tools_run(fresh, iso_session_ids(s), n, 64, NULL);
    check_pages(s, fresh);
    tools_run(fresh, more, MORE, 64, want);
    tools_run(s, more, MORE, 7, got);
    assert_memory_equal(got, want, sizeof(got));
    check_pages(s, fresh);
    free(more);
    done(fresh);
    iso_engine_close(e);
}

/* Checkpoints at 300 and 500 of 800 positions: where a rewind to p ends. */
static void a_rewind_reaches_checkpoints(void **state)
{
    (void)state;
    static const struct {
        uint32_t p, want;
    } to[] = {{300, 300}, {299, 299}, {256, 256}, {240, 240}, {310, 300}, {499, 499}, {470, 470}, {500, 500},
              {600, 500}, {799, 799}, {100, 0},   {0, 0}};
    for (size_t f = FIRST_WINDOWED; f < N_FAMILIES; f++) {
        for (size_t i = 0; i < ISO_COUNT(to); i++) {
            iso_engine *e = windowed(f, 2);
            iso_session *s = tools_session(e);
            int32_t *ids = tools_ids(e, 800, 3);
            tools_run(s, ids, 300, 64, NULL);
            iso_session_checkpoint(s);
            iso_session_checkpoint(s); /* the same place: still one */
            tools_run(s, ids + 300, 200, 64, NULL);
            iso_session_checkpoint(s);
            tools_run(s, ids + 500, 300, 64, NULL);
            assert_int_equal(iso_session_rewind(s, to[i].p), to[i].want);
            assert_int_equal(iso_session_position(s), to[i].want);
            check_continues(s);
            free(ids);
            done(s);
            iso_engine_close(e);
        }
    }
}

static void the_newest_are_kept(void **state)
{
    (void)state;
    for (size_t f = FIRST_WINDOWED; f < N_FAMILIES; f++) {
        iso_engine *e = windowed(f, 2);
        iso_session *s = tools_session(e);
        int32_t *ids = tools_ids(e, 900, 3);
        for (uint32_t i = 0; i < 3; i++) {
            tools_run(s, ids + 200 * i, 200, 50, NULL);
            iso_session_checkpoint(s);
        }
        tools_run(s, ids + 600, 300, 64, NULL);
        assert_int_equal(iso_session_rewind(s, 599), 599);
        assert_int_equal(iso_session_rewind(s, 400), 400);
        tools_run(s, ids + 400, 500, 64, NULL);
        assert_int_equal(iso_session_rewind(s, 210), 0); /* the first one made room for the third */
        free(ids);
        done(s);
        iso_engine_close(e);
    }
}

/* What was given up must not come back: it belongs to other ids. */
static void a_rewind_drops_what_lies_behind(void **state)
{
    (void)state;
    for (size_t f = FIRST_WINDOWED; f < N_FAMILIES; f++) {
        iso_engine *e = windowed(f, 3);
        iso_session *s = tools_session(e);
        int32_t *ids = tools_ids(e, 800, 3), *other = tools_ids(e, 600, 4);
        tools_run(s, ids, 300, 64, NULL);
        iso_session_checkpoint(s);
        tools_run(s, ids + 300, 200, 64, NULL);
        iso_session_checkpoint(s);
        assert_int_equal(iso_session_rewind(s, 300), 300);
        tools_run(s, other, 600, 64, NULL);
        assert_int_equal(iso_session_rewind(s, 500), 300);
        check_continues(s);
        free(ids);
        free(other);
        done(s);
        iso_engine_close(e);
    }
}

/* Hands the first n positions of ids to s, as a hand-off does. */
static void hand_over(iso_session *s, const int32_t *ids, uint32_t n)
{
    iso_engine *pe = tools_engine(iso_session_engine(s)->info.architecture,
                                  &(struct iso_engine_options){.keep_expired = true});
    iso_session *p = tools_session(pe);
    tools_run(p, ids, n, 64, NULL);
    const uint32_t w = pe->info.window;
    const uint32_t first[ISO_KV_CLASSES] = {0, n + 1 > w ? (n + 1 - w) / P : 0};
    iso_kv_staging *st = NULL;
    tools_ok(iso_kv_stage(&st, s, n, first));
    const struct iso_kv_layout *y = iso_engine_kv_layout(pe);
    for (uint32_t l = 0; l < y->n_layers; l++) {
        for (uint32_t h = 0; h < y->n_kv_heads; h++) {
            for (uint32_t i = 0; i <= (n - 1) / P; i++) {
                uint8_t *to = iso_kv_staging_page(st, l, h, i);
                if (to) memcpy(to, iso_session_page(p, l, h, i), y->page_bytes);
            }
        }
    }
    iso_kv_publish(st, ids);
    iso_session_free(p);
    iso_engine_close(pe);
}

static void a_hand_off_leaves_one(void **state)
{
    (void)state;
    for (size_t f = FIRST_WINDOWED; f < N_FAMILIES; f++) {
        iso_engine *e = tools_engine(tools_family[f], &(struct iso_engine_options){
                                                          .n_batch = 64, .n_checkpoints = 4, .staging = true});
        iso_session *s = tools_session(e);
        int32_t *ids = tools_ids(e, 900, 3), *other = tools_ids(e, 900, 4);
        tools_run(s, ids, 200, 64, NULL);
        iso_session_checkpoint(s);
        memcpy(other, ids, 250 * sizeof(*ids)); /* the same text up to 250 */
        hand_over(s, other, 401);
        tools_run(s, other + 401, 400, 64, NULL);
        assert_int_equal(iso_session_rewind(s, 410), 401); /* of the hand-off */
        check_continues(s);
        assert_int_equal(iso_session_rewind(s, 401), 401);
        tools_run(s, other + 401, 400, 64, NULL);
        assert_int_equal(iso_session_rewind(s, 230), 200); /* from before it: the ids agree so far */
        check_continues(s);
        assert_int_equal(iso_session_rewind(s, 200), 200);
        tools_run(s, ids + 200, 100, 64, NULL);
        iso_session_checkpoint(s); /* of ids that the next hand-off replaces */
        hand_over(s, other, 700);
        assert_int_equal(iso_session_rewind(s, 310), 200);
        check_continues(s);
        free(ids);
        free(other);
        done(s);
        iso_engine_close(e);
    }
}

static uint64_t g_random;
static uint32_t below(uint32_t n)
{
    g_random = g_random * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(g_random >> 33) % n;
}

/* Any order of running, checkpoints and rewinds; the bits of a session that never went back. Also where
 * pages live in a device's own memory. */
static void any_order(bool own_memory)
{
    const uint64_t seed = (uint64_t)time(NULL);
    print_message("seed %llu\n", (unsigned long long)seed);
    g_random = seed;
    for (size_t f = FIRST_WINDOWED; f < N_FAMILIES; f++) {
        iso_engine *e = windowed(f, 3);
        if (own_memory) (void)sim_start(e);
        iso_session *s = tools_session(e);
        int32_t *ids = tools_ids(e, 4000, seed);
        uint32_t used = 0, gone_back = 0;
        for (int i = 0; i < 60; i++) {
            const uint32_t n = iso_session_position(s), more = 1 + below(150);
            if (n + more + 80 < 1024 && used + more < 4000) {
                tools_run(s, ids + used, more, 1 + below(64), NULL);
                used += more;
            }
            if (below(2)) iso_session_checkpoint(s);
            if (below(4) > 0) continue;
            const uint32_t at = iso_session_rewind(s, iso_session_position(s) / 4 + below(500));
            gone_back += at > 0;
            if (below(2)) check_continues(s);
        }
        assert_true(gone_back > 0);
        free(ids);
        done(s);
        iso_engine_close(e);
    }
}

static void any_order_keeps_the_bits(void **state)
{
    (void)state;
    any_order(false);
}

static void any_order_keeps_the_bits_of_a_gpu(void **state)
{
    (void)state;
    any_order(true);
}

static void full_layers_need_none(void **state)
{
    (void)state;
    iso_engine *e = tools_engine("llama", &(struct iso_engine_options){.n_checkpoints = 64});
    assert_int_equal(e->checkpoint_pages, 0); /* full layers need none */
    iso_session *s = tools_session(e);
    int32_t *ids = tools_ids(e, 10, 3);
    tools_run(s, ids, 10, 10, NULL);
    iso_session_checkpoint(s);
    assert_int_equal(iso_session_rewind(s, 4), 4);
    free(ids);
    done(s);
    iso_engine_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rewind_reaches_checkpoints),    cmocka_unit_test(the_newest_are_kept),
        cmocka_unit_test(a_rewind_drops_what_lies_behind), cmocka_unit_test(a_hand_off_leaves_one),
        cmocka_unit_test(any_order_keeps_the_bits),        cmocka_unit_test(any_order_keeps_the_bits_of_a_gpu),
        cmocka_unit_test(full_layers_need_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
