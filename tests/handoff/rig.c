/* SPDX-License-Identifier: MIT
 * rig.c - producer, relay and consumer for tests. */
#include "rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/mem.h"
#include "handoff/plan.h"
#include "handoff/request.h"

void rig_must(enum iso_err err)
{
    if (err != ISO_OK) fail_msg("%s", iso_err_detail());
}

static void model_path(char *out, size_t len, const char *file)
{
    struct stat st;
    const char *dir = getenv("ISOBIT_MODELS");
    const char *home = getenv("HOME");
    if (dir != NULL)
        (void)snprintf(out, len, "%s/%s", dir, file);
    else
        (void)snprintf(out, len, "%s/.cache/isobit/models/%s", home ? home : "", file);
    if (stat(out, &st) != 0) fail_msg("%s is missing: run tools/fetch_models.sh", out);
}

iso_engine *rig_engine(const char *file, uint32_t n_sessions, bool staging)
{
    char path[512];
    iso_engine *e = NULL;
    model_path(path, sizeof(path), file);
    const struct iso_engine_options o = {.model_path = path,
                                         .n_threads = 1,
                                         .n_ctx = RIG_CTX,
                                         .n_batch = 64,
                                         .n_sessions = n_sessions,
                                         .keep_expired = true,
                                         .staging = staging};
    rig_must(iso_engine_open(&e, &o));
    return e;
}

void rig_ids(int32_t *ids)
{
    FILE *f = fopen("tests/golden/smollm2-135m/long.ids", "r");
    if (f == NULL) fail_msg("tests/golden/smollm2-135m/long.ids: run from the project's root");
    for (int i = 0; i < RIG_IDS; i++) assert_int_equal(fscanf(f, "%d", &ids[i]), 1);
    (void)fclose(f);
}

static void *run_producer(void *arg)
{
    struct rig *r = arg;
    if (iso_producer_run(r->producer) != ISO_OK) {
        (void)fprintf(stderr, "producer: %s\n", iso_err_detail());
    }
    return NULL;
}

static void start_producer(struct rig *r)
{
    enum iso_reason reason = ISO_REASON_OK;
    r->po.listen = "127.0.0.1:0";
    r->po.no_probe = r->po.keep_expired = true;
    r->po.build = "test";
    rig_must(iso_producer_new(&r->producer, r->pe, r->nodes.alice, &r->po, &reason));
    assert_int_equal(pthread_create(&r->thread, NULL, run_producer, r), 0);
    r->proxy = proxy_start(iso_producer_port(r->producer));
    (void)snprintf(r->address, sizeof(r->address), "127.0.0.1:%u", proxy_port(r->proxy));
}

void rig_stop_producer(struct rig *r)
{
    if (r->producer == NULL) return;
    iso_producer_stop(r->producer);
    assert_int_equal(pthread_join(r->thread, NULL), 0);
    proxy_stop(r->proxy);
    iso_producer_free(r->producer);
    r->producer = NULL;
    r->proxy = NULL;
}

void rig_new_producer(struct rig *r)
{
    rig_stop_producer(r);
    start_producer(r);
    rig_new_consumer(r);
}

void rig_new_consumer(struct rig *r)
{
    enum iso_reason reason = ISO_REASON_OK;
    iso_consumer_free(r->consumer);
    r->consumer = NULL;
    r->co.address = r->address;
    r->co.peer = "alice";
    r->co.no_probe = true;
    if (r->co.silence_ms == 0) r->co.silence_ms = 3000;
    rig_must(iso_consumer_new(&r->consumer, r->nodes.bob, &r->co, &reason));
}

void rig_start(struct rig *r,
               const char *model,
               const struct iso_producer_options *po,
               const struct iso_consumer_options *co)
{
    rig_start_with(r, rig_engine(model, 2, false), rig_engine(model, 2, true), po, co);
}

void rig_start_with(struct rig *r,
                    iso_engine *pe,
                    iso_engine *ce,
                    const struct iso_producer_options *po,
                    const struct iso_consumer_options *co)
{
    *r = (struct rig){0};
    if (po != NULL) r->po = *po;
    if (co != NULL) r->co = *co;
    rig_ids(r->ids);
    node_pair_init(&r->nodes, NULL);
    r->pe = pe;
    r->ce = ce;
    start_producer(r);
    rig_new_consumer(r);
}

void rig_stop(struct rig *r)
{
    iso_consumer_free(r->consumer);
    rig_stop_producer(r);
    iso_engine_close(r->pe);
    iso_engine_close(r->ce);
    node_pair_deinit(&r->nodes);
}

int64_t rig_wait_idle(struct rig *r, int64_t limit_ns)
{
    struct iso_producer_stats st;
    const int64_t until = iso_clock_ns() + limit_ns;
    do {
        iso_producer_stats(r->producer, &st);
        if (st.active == 0 && !st.computing) return iso_clock_ns();
        (void)usleep(500);
    } while (iso_clock_ns() < until);
    fail_msg("the producer still has %u transfers", st.active);
    return 0;
}

enum iso_err rig_fetch(struct rig *r, iso_session *s, const int32_t *ids, size_t n)
{
    const struct iso_kv_source *k = iso_consumer_source(r->consumer);
    return k->fetch(k->arg, s, ids, n, NULL);
}

void rig_state(struct rig_state *out, const iso_session *s)
{
    *out = (struct rig_state){.position = iso_session_position(s)};
    iso_session_kv_chain(&out->chain, s);
    iso_ids_digest(&out->ids, iso_session_ids(s), out->position);
    for (int c = 0; c < ISO_KV_CLASSES; c++) {
        out->first_page[c] = iso_session_first_page(s, (enum iso_kv_class)c);
    }
}

void rig_same(const struct rig_state *was, const iso_session *s)
{
    struct rig_state now;
    rig_state(&now, s);
    assert_memory_equal(was, &now, sizeof(now));
}

/* A local run up to position n-2. */
static iso_session *local_run(struct rig *r, const int32_t *ids, uint32_t n)
{
    struct iso_row rows[64];
    iso_session *s = NULL;
    rig_must(iso_session_new(&s, r->ce, RIG_CTX));
    for (uint32_t at = 0; at < n - 1;) {
        const uint32_t k = ISO_MIN(64u, n - 1 - at);
        for (uint32_t i = 0; i < k; i++) {
            rows[i] = (struct iso_row){.session = s, .token = ids[at + i]};
        }
        rig_must(iso_step(r->ce, rows, k, NULL));
        at += k;
    }
    return s;
}

void rig_check_exact(struct rig *r, iso_session *s, const int32_t *ids, uint32_t n)
{
    struct iso_digest mine, theirs;
    assert_int_equal(iso_session_position(s), n - 1);
    assert_memory_equal(iso_session_ids(s), ids, (n - 1) * sizeof(*ids));
    iso_session *local = local_run(r, ids, n);
    rig_must(iso_handoff_visible_digest(&mine, local, n, false));
    rig_must(iso_handoff_visible_digest(&theirs, s, n, false));
    assert_memory_equal(&mine, &theirs, sizeof(mine));
    const uint32_t n_vocab = iso_engine_info(r->ce)->n_vocab;
    rig_must(iso_session_decode(local, ids[n - 1]));
    iso_logits_digest(&mine, iso_session_logits(local), n_vocab);
    rig_must(iso_session_decode(s, ids[n - 1]));
    iso_logits_digest(&theirs, iso_session_logits(s), n_vocab);
    assert_memory_equal(&mine, &theirs, sizeof(mine));
    iso_session_free(local);
}
