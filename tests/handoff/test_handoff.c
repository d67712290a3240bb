/* SPDX-License-Identifier: MIT
 * test_handoff.c - whole hand-offs over loopback: equal bits, counts, held pages, audit, receipts.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "handoff/ledger.h"
#include "handoff/plan.h"
#include "handoff/receipt.h"
#include "rig.h"

/* Digest of the logits at a position in a golden file. */
static void golden_logits(struct iso_digest *out, const char *file, int position)
{
    char line[256], hex[80] = "";
    FILE *f = fopen(file, "r");
    if (f == NULL) fail_msg("%s is missing", file);
    while (fgets(line, sizeof(line), f) != NULL) {
        int at = -1;
        if (sscanf(line, "%d %*d %*d %*s %79s", &at, hex) == 2 && at == position) break;
        hex[0] = '\0';
    }
    (void)fclose(f);
    rig_must(iso_hex_decode(out->bytes, sizeof(out->bytes), hex));
}

/* One hand-off of the golden prompt: pages, first logits and the golden digest agree. */
static void exact(const char *model, const char *golden)
{
    struct rig r;
    struct iso_digest want, got;
    iso_session *s = NULL;
    rig_start(&r, model, NULL, NULL);
    rig_must(iso_session_new(&s, r.ce, RIG_CTX));
    rig_must(rig_fetch(&r, s, r.ids, RIG_IDS));
    rig_check_exact(&r, s, r.ids, RIG_IDS);
    iso_logits_digest(&got, iso_session_logits(s), iso_engine_info(r.ce)->n_vocab);
    golden_logits(&want, golden, RIG_IDS - 1);
    /* The local session decoded last, so ask again: the logits are valid until the next step. */
    iso_session_free(s);
    rig_must(iso_session_new(&s, r.ce, RIG_CTX));
    struct iso_prefill_outcome o;
    rig_must(iso_consumer_prefill(r.consumer, &o, s, r.ids, RIG_IDS, NULL));
    assert_true(o.remote);
    assert_int_equal(o.computed_locally, 1);
    iso_logits_digest(&got, iso_session_logits(s), iso_engine_info(r.ce)->n_vocab);
    assert_memory_equal(&want, &got, sizeof(want));
    const struct iso_consumer_report *p = iso_consumer_last_report(r.consumer);
    assert_int_equal(p->reason, ISO_REASON_OK);
    assert_int_equal(p->computed_locally, 1);
    assert_int_equal(p->n_received, RIG_IDS - 1);
    assert_true(p->committed);
    assert_true(p->pages > 0);
    assert_int_equal(p->bytes, p->pages * iso_engine_kv_layout(r.ce)->page_bytes);
    assert_memory_equal(&p->first_logits, &want, sizeof(want));
    iso_session_free(s);
    rig_stop(&r);
}

static void test_exact_llama(void **state)
{
    (void)state;
    exact("mini-llama.gguf", "tests/golden/mini/llama.expect");
}

static void test_exact_qwen3(void **state)
{
    (void)state;
    exact("mini-qwen3.gguf", "tests/golden/mini/qwen3.expect");
}

static void test_exact_muse(void **state)
{
    (void)state;
    exact("mini-muse-glimmer.gguf", "tests/golden/mini/muse-glimmer.expect");
}

/* Every way in which a prompt can end on a page or a window. */
static void test_lengths(void **state)
{
    static const uint32_t n[] = {1, 2, 3, 63, 64, 65, 66, 127, 128, 129, 130, 193, 200};
    struct rig r;
    (void)state;
    rig_start(&r, "mini-muse-glimmer.gguf", NULL, NULL);
    for (size_t i = 0; i < ISO_COUNT(n); i++) {
        iso_session *s = NULL;
        rig_must(iso_session_new(&s, r.ce, RIG_CTX));
        rig_must(rig_fetch(&r, s, r.ids, n[i]));
        const struct iso_consumer_report *p = iso_consumer_last_report(r.consumer);
        assert_int_equal(p->n_received, n[i] - 1);
        assert_int_equal(p->computed_locally, 1);
        if (n[i] == 1) assert_int_equal(p->pages, 0);
        rig_check_exact(&r, s, r.ids, n[i]);
        iso_session_free(s);
    }
    rig_stop(&r);
}

/* Turns of a conversation: only the suffix crosses the wire (K12), and the bits stay. */
static void test_held_pages(void **state)
{
    static const char *const models[] = {"mini-qwen3.gguf", "mini-muse-glimmer.gguf"};
    (void)state;
    for (size_t m = 0; m < ISO_COUNT(models); m++) {
        struct rig r;
        iso_session *s = NULL;
        rig_start(&r, models[m], NULL, NULL);
        rig_must(iso_session_new(&s, r.ce, RIG_CTX));
        rig_must(rig_fetch(&r, s, r.ids, 100));
        rig_check_exact(&r, s, r.ids, 100);
        const uint64_t all = iso_consumer_last_report(r.consumer)->pages;
        rig_must(rig_fetch(&r, s, r.ids, RIG_IDS));
        const struct iso_consumer_report *p = iso_consumer_last_report(r.consumer);
        assert_int_equal(p->cut[ISO_KV_FULL], 1);
        assert_string_equal(p->prefix, "recomputed");
        assert_true(p->pages < 2 * all);
        rig_check_exact(&r, s, r.ids, RIG_IDS);
        /* Another prompt with the same first 80 tokens: one page is common. */
        int32_t other[150];
        memcpy(other, r.ids, sizeof(other));
        for (int i = 80; i < 150; i++) other[i] = r.ids[i + 7];
        rig_must(rig_fetch(&r, s, other, 150));
        assert_int_equal(iso_consumer_last_report(r.consumer)->cut[ISO_KV_FULL], 1);
        rig_check_exact(&r, s, other, 150);
        /* Nothing in common. */
        for (int i = 0; i < 150; i++) other[i] = r.ids[i + 31];
        rig_must(rig_fetch(&r, s, other, 150));
        assert_int_equal(iso_consumer_last_report(r.consumer)->cut[ISO_KV_FULL], 0);
        rig_check_exact(&r, s, other, 150);
        iso_session_free(s);
        rig_stop(&r);
    }
}

/* The audit of a continued session recomputes only what was sent. */
static void test_audit_held(void **state)
{
    struct rig r;
    iso_session *s = NULL;
    const struct iso_consumer_options co = {.audit = 1000};
    (void)state;
    rig_start(&r, "mini-muse-glimmer.gguf", NULL, &co);
    rig_must(iso_session_new(&s, r.ce, RIG_CTX));
    rig_must(rig_fetch(&r, s, r.ids, 100));
    assert_int_equal(iso_consumer_last_report(r.consumer)->audited, 99);
    rig_must(rig_fetch(&r, s, r.ids, RIG_IDS));
    assert_int_equal(iso_consumer_last_report(r.consumer)->cut[ISO_KV_FULL], 1);
    assert_int_equal(iso_consumer_last_report(r.consumer)->audited, RIG_IDS - 1 - 64);
    rig_check_exact(&r, s, r.ids, RIG_IDS);
    iso_session_free(s);
    rig_stop(&r);
}

/* Both receipts of a hand-off can be checked by a third party, and a forged one is found. */
static void test_receipts(void **state)
{
    struct rig r;
    iso_session *s = NULL;
    struct iso_prefill_outcome o;
    (void)state;
    rig_start(&r, "mini-qwen3.gguf", NULL, NULL);
    rig_must(iso_session_new(&s, r.ce, RIG_CTX));
    rig_must(iso_consumer_prefill(r.consumer, &o, s, r.ids, RIG_IDS, NULL));
    struct iso_digest pin;
    uint8_t spki[ISO_NODE_SPKI_LEN];
    iso_node_identity(r.nodes.alice, &pin, spki);
    const struct iso_consumer_report report = *iso_consumer_last_report(r.consumer);
    rig_stop_producer(&r);
    static const char *const who[] = {"bob", "alice"};
    for (int i = 0; i < 2; i++) {
        char path[128], line[ISO_RECEIPT_MAX];
        struct iso_receipt_check c;
        (void)snprintf(path, sizeof(path), "%s/%s/%s", r.nodes.root, who[i], ISO_RECEIPT_FILE);
        FILE *f = fopen(path, "r");
        assert_non_null(f);
        assert_non_null(fgets(line, sizeof(line), f));
        char more[8];
        assert_null(fgets(more, sizeof(more), f)); /* one line */
        (void)fclose(f);
        const size_t len = strlen(line);
        rig_must(iso_receipt_verify(&c, line, len, &pin));
        assert_int_equal(c.producer, i == 1);
        assert_memory_equal(&c.digest, &report.manifest, sizeof(c.digest));
        assert_int_equal(c.manifest.request.generation, report.generation);
        assert_int_equal(c.has_logits, i == 0);
        /* Each side's own kernels; the producer's are sealed in both. */
        const struct iso_engine_info *own = iso_engine_info(i == 0 ? r.ce : r.pe);
        assert_true(c.has_kernels);
        assert_memory_equal(&c.kernels, &own->kernels, sizeof(c.kernels));
        assert_memory_equal(&c.manifest.kernels, &iso_engine_info(r.pe)->kernels, sizeof(c.kernels));
        assert_string_equal(c.manifest.build, "test");
        /* First bytes left during the prefill (K16): 4 chunks of 8 layers, so by far not at its
         * end. */
        assert_true(c.manifest.first_us * 2 < c.manifest.queue_us + c.manifest.compute_us);
        char *at = strstr(line, "\"positions\":199");
        assert_non_null(at);
        at[strlen("\"positions\":19")] = '8';
        assert_int_equal(iso_receipt_verify(&c, line, len, &pin), ISO_E_AUTH);
        at[strlen("\"positions\":19")] = '9';
        rig_must(iso_receipt_verify(&c, line, len, NULL));
        pin.bytes[0] ^= 1;
        assert_int_equal(iso_receipt_verify(&c, line, len, &pin), ISO_E_AUTH);
        pin.bytes[0] ^= 1;
    }
    iso_session_free(s);
    rig_stop(&r);
}

/* auto falls back to a local prefill with the same bits, and says so; remote does not. */
static void test_fallback(void **state)
{
    struct rig r;
    iso_session *s = NULL;
    struct iso_prefill_outcome o;
    struct iso_digest want, got;
    const struct iso_consumer_options co = {.dial_ms = 500};
    (void)state;
    rig_start(&r, "mini-qwen3.gguf", NULL, &co);
    rig_must(iso_session_new(&s, r.ce, RIG_CTX));
    proxy_set(r.proxy, &(struct proxy_plan){
                           .cut_down = 100000, .flip_down = -1, .flip_up = -1, .hold_down = -1});
    rig_must(iso_consumer_prefill(r.consumer, &o, s, r.ids, RIG_IDS, NULL));
    assert_false(o.remote);
    assert_true(o.fell_back);
    assert_int_not_equal(o.reason, ISO_REASON_OK);
    assert_int_equal(o.computed_locally, RIG_IDS);
    iso_logits_digest(&got, iso_session_logits(s), iso_engine_info(r.ce)->n_vocab);
    golden_logits(&want, "tests/golden/mini/qwen3.expect", RIG_IDS - 1);
    assert_memory_equal(&want, &got, sizeof(want));
    r.co.mode = ISO_POLICY_REMOTE;
    rig_new_consumer(&r);
    struct rig_state before;
    rig_state(&before, s);
    assert_int_not_equal(iso_consumer_prefill(r.consumer, &o, s, r.ids, RIG_IDS, NULL), ISO_OK);
    rig_same(&before, s);
    /* The third failure in a row opens the breaker: no more waiting. */
    for (int i = 0; i < 2; i++) {
        assert_int_not_equal(rig_fetch(&r, s, r.ids, RIG_IDS), ISO_OK);
    }
    assert_int_equal(rig_fetch(&r, s, r.ids, RIG_IDS), ISO_E_REFUSED);
    assert_int_equal(iso_consumer_last_report(r.consumer)->reason, ISO_REASON_BREAKER_OPEN);
    iso_session_free(s);
    rig_stop(&r);
}

struct runner {
    struct rig *r;
    struct iso_consumer *c;
    iso_session *s;
    int offset;
    unsigned n_ok;
};

static void *run_many(void *arg)
{
    struct runner *a = arg;
    const struct iso_kv_source *k = iso_consumer_source(a->c);
    for (int i = 0; i < 6; i++) {
        if (k->fetch(k->arg, a->s, a->r->ids + a->offset, 90, NULL) == ISO_OK)
            a->n_ok++;
        else
            (void)fprintf(stderr, "%s\n", iso_err_detail());
    }
    return NULL;
}

/* Two consumers of one node (one ledger file) at the same time: an overtaken one reserves anew,
 * every hand-off ends well, no answer gets the other prompt's pages (K2). */
static void test_two_at_once(void **state)
{
    struct rig r;
    struct runner a[2] = {{0}};
    pthread_t t[2];
    (void)state;
    rig_start(&r, "mini-qwen3.gguf", NULL, NULL);
    char direct[32];
    (void)snprintf(direct, sizeof(direct), "127.0.0.1:%u", iso_producer_port(r.producer));
    r.co.address = direct; /* the relay serves one connection at a time */
    r.co.whole = true;
    for (int i = 0; i < 2; i++) {
        a[i].r = &r;
        a[i].offset = 50 * i;
        rig_must(iso_session_new(&a[i].s, r.ce, 100));
        rig_must(iso_consumer_new(&a[i].c, r.nodes.bob, &r.co, NULL));
        assert_int_equal(pthread_create(&t[i], NULL, run_many, &a[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(t[i], NULL), 0);
        assert_int_equal(a[i].n_ok, 6);
    }
    iso_session_free(a[1].s); /* room for the local run to compare with */
    rig_check_exact(&r, a[0].s, r.ids, 90);
    iso_session_free(a[0].s);
    for (int i = 0; i < 2; i++) iso_consumer_free(a[i].c);
    rig_stop(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_qwen3), cmocka_unit_test(test_exact_llama),
        cmocka_unit_test(test_exact_muse),  cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_held_pages),  cmocka_unit_test(test_audit_held),
        cmocka_unit_test(test_receipts),    cmocka_unit_test(test_fallback),
        cmocka_unit_test(test_two_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
