/* SPDX-License-Identifier: MIT
 * test_evil.c - an enrolled producer that breaks one rule: each is found, named, and changes
 * nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "evil.h"
#include "handoff/ledger.h"
#include "handoff/receipt.h"
#include "rig.h"

static const struct {
    const char *name;
    enum iso_reason reason;
} kinds[] = {
#define X(name, reason) {#name, ISO_REASON_##reason},
    EVIL_MAP(X)
#undef X
};

struct stage {
    struct node_pair nodes;
    iso_engine *pe, *ce;
    struct evil evil;
    struct iso_consumer *consumer;
    struct iso_consumer_options co;
    char address[32];
    int32_t ids[RIG_IDS];
    iso_session *s;
    struct rig_state before;
};

static void new_consumer(struct stage *g, uint32_t audit)
{
    enum iso_reason reason = ISO_REASON_OK;
    iso_consumer_free(g->consumer);
    g->consumer = NULL;
    g->co = (struct iso_consumer_options){.address = g->address,
                                          .peer = "alice",
                                          .audit = audit,
                                          .whole = true,
                                          .no_probe = true,
                                          .silence_ms = 1500};
    rig_must(iso_consumer_new(&g->consumer, g->nodes.bob, &g->co, &reason));
}

static int setup(void **state)
{
    static struct stage g;
    memset(&g, 0, sizeof(g));
    rig_ids(g.ids);
    node_pair_init(&g.nodes, NULL);
    g.pe = rig_engine("mini-muse-glimmer.gguf", 2, false);
    g.ce = rig_engine("mini-muse-glimmer.gguf", 2, true);
    evil_init(&g.evil, g.nodes.alice, g.pe);
    (void)snprintf(g.address, sizeof(g.address), "127.0.0.1:%u", evil_port(&g.evil));
    /* A session with a life of its own: 70 tokens of another prompt. */
    rig_must(iso_session_new(&g.s, g.ce, RIG_CTX));
    int32_t other[70];
    for (int i = 0; i < 70; i++) other[i] = g.ids[RIG_IDS - 1 - i];
    rig_must(iso_session_prefill(g.s, other, 70, NULL));
    rig_state(&g.before, g.s);
    *state = &g;
    return 0;
}

static int teardown(void **state)
{
    struct stage *g = *state;
    iso_consumer_free(g->consumer);
    iso_session_free(g->s);
    evil_deinit(&g->evil);
    iso_engine_close(g->pe);
    iso_engine_close(g->ce);
    node_pair_deinit(&g->nodes);
    return 0;
}

static enum iso_err fetch(struct stage *g, iso_session *s, enum evil_kind kind)
{
    const struct iso_kv_source *k = iso_consumer_source(g->consumer);
    evil_serve(&g->evil, kind);
    const enum iso_err err = k->fetch(k->arg, s, g->ids, RIG_IDS, NULL);
    /* The end of a good one is behind the ACK. */
    (void)iso_consumer_last_report(g->consumer);
    evil_join(&g->evil);
    return err;
}

static void test_each_rule(void **state)
{
    struct stage *g = *state;
    for (int k = 0; k < EVIL_COUNT; k++) {
        if (kinds[k].reason == ISO_REASON_AUDIT || k == EVIL_LEDGER) continue;
        new_consumer(g, 0); /* and so a closed breaker */
        iso_session *s = g->s;
        if (k == EVIL_NOTHING) rig_must(iso_session_new(&s, g->ce, RIG_CTX));
        const enum iso_err err = fetch(g, s, (enum evil_kind)k);
        const struct iso_consumer_report *r = iso_consumer_last_report(g->consumer);
        if (r->reason != kinds[k].reason) {
            fail_msg("%s: %s (%s), expected %s", kinds[k].name, iso_reason_name(r->reason),
                     r->message, iso_reason_name(kinds[k].reason));
        }
        assert_int_equal(err == ISO_OK, kinds[k].reason == ISO_REASON_OK);
        rig_same(&g->before, g->s);
        /* What we found out is told to the producer; what it did or said itself is not. One that
         * still sends pages may miss it: our close comes first. */
        const bool known =
            k == EVIL_NOTHING || k == EVIL_CLOSE_EARLY || k == EVIL_ERROR || k == EVIL_SILENT;
        const bool listens =
            k >= EVIL_OTHER_DIGEST && k <= EVIL_SEAL_TRUNCATED && k != EVIL_ACCEPT_CUT;
        if (g->evil.told != ISO_REASON_OK || listens) {
            if (g->evil.told != (known ? ISO_REASON_OK : kinds[k].reason))
                fail_msg("%s: the producer was told %s", kinds[k].name,
                         iso_reason_name(g->evil.told));
        }
        if (k == EVIL_NOTHING) iso_session_free(s);
    }
    /* No page was lost on the way: an honest hand-off still fits. */
    new_consumer(g, 0);
    rig_must(fetch(g, g->s, EVIL_NOTHING));
    rig_state(&g->before, g->s);
}

static void test_audit_finds_wrong_pages(void **state)
{
    struct stage *g = *state;
    static const enum evil_kind wrong[] = {EVIL_WRONG_V, EVIL_WRONG_K_LAST};
    static const uint32_t ks[] = {1, 8, 10 * RIG_IDS};
    const uint32_t last_layer = iso_engine_info(g->ce)->n_layers - 1;
    rig_state(&g->before, g->s);
    for (size_t i = 0; i < ISO_COUNT(wrong); i++) {
        new_consumer(g, ks[i]);
        assert_int_equal(fetch(g, g->s, wrong[i]), ISO_E_REFUSED);
        const struct iso_consumer_report *r = iso_consumer_last_report(g->consumer);
        assert_int_equal(r->reason, ISO_REASON_AUDIT);
        assert_int_equal(r->audit_layer, wrong[i] == EVIL_WRONG_V ? 0 : last_layer);
        assert_true(r->audit_position < RIG_IDS - 1);
        assert_int_equal(g->evil.told, ISO_REASON_AUDIT);
        rig_same(&g->before, g->s);
        /* Marked: nothing is asked of it again, by any process, until it is enrolled anew. */
        new_consumer(g, 0);
        assert_int_equal(fetch(g, g->s, EVIL_NOTHING), ISO_E_REFUSED);
        assert_int_equal(iso_consumer_last_report(g->consumer)->reason, ISO_REASON_DISTRUSTED);
        rig_same(&g->before, g->s);
        iso_consumer_free(g->consumer);
        g->consumer = NULL;
        (void)sleep(1); /* enrolments are told apart by the second */
        rig_must(iso_node_pair(g->nodes.alice, g->nodes.bob, NULL));
    }
    /* An honest producer passes, every position recomputed. */
    new_consumer(g, ks[2]);
    rig_must(fetch(g, g->s, EVIL_NOTHING));
    assert_int_equal(iso_consumer_last_report(g->consumer)->audited, RIG_IDS - 1);
}

/* Without an audit wrong pages pass: the seal says who, not that they are right. This is the test
 * that the audit above can fail. */
static void test_wrong_pages_pass_unaudited(void **state)
{
    struct stage *g = *state;
    iso_session *s = NULL;
    new_consumer(g, 0);
    rig_must(iso_session_new(&s, g->ce, RIG_CTX));
    rig_must(fetch(g, s, EVIL_WRONG_V));
    iso_session_free(s);
}

static void test_higher_generation_closes(void **state)
{
    struct stage *g = *state;
    rig_state(&g->before, g->s);
    new_consumer(g, 0);
    assert_int_equal(fetch(g, g->s, EVIL_LEDGER), ISO_E_REFUSED);
    assert_int_equal(iso_consumer_last_report(g->consumer)->reason, ISO_REASON_LEDGER_ROLLED_BACK);
    new_consumer(g, 0);
    assert_int_equal(fetch(g, g->s, EVIL_NOTHING), ISO_E_REFUSED);
    assert_int_equal(iso_consumer_last_report(g->consumer)->reason, ISO_REASON_LEDGER_ROLLED_BACK);
    rig_same(&g->before, g->s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_rule),
        cmocka_unit_test(test_wrong_pages_pass_unaudited),
        cmocka_unit_test(test_audit_finds_wrong_pages),
        cmocka_unit_test(test_higher_generation_closes),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
