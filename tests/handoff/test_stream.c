/* SPDX-License-Identifier: MIT
 * test_stream.c - a producer on a device with memory of its own: ring, slow wires and copies, cancel, timeline.
 *
 * The device is that of tests/device/sim_device.h.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/clock.h"
#include "base/mem.h"
#include "device/sim_device.h"
#include "handoff/plan.h"
#include "handoff/producer_internal.h"
#include "handoff/producer_ring.h"
#include "handoff/producer_timeline.h"
#include "model/tiny_model.h"
#include "rig.h"

#define MS ISO_NS_PER_MS
#define IDLE_NS (5 * ISO_NS_PER_S)
#define WIDE_IDS 250
#define PAGES 4  /* of WIDE_IDS - 1 positions */
#define LAYERS 12

/* --- timelines ------------------------------------------------------------------------------------ */

static void add(struct iso_timeline *t, enum iso_timeline_kind kind, int64_t start_ms, int64_t end_ms, uint32_t layer)
{
    const struct iso_interval i = {
        .start_ns = start_ms * MS, .end_ns = end_ms * MS, .layer = layer, .first = 3, .end = 5};
    iso_timeline_add(t, kind, &i);
}

/* Computed in [0, 100) and [110, 200); something on its way in [50, 70), [104, 116) and [150, 250). */
static void constructed(struct iso_timeline *t)
{
    iso_timeline_init(t, true);
    t->begin_ns = 0;
    t->end_ns = 200 * MS;
    t->first_ns = 8 * MS;
    add(t, ISO_TIMELINE_COMPUTE, 0, 40, 0);
    add(t, ISO_TIMELINE_COMPUTE, 40, 100, 1);
    add(t, ISO_TIMELINE_COMPUTE, 110, 200, 0);
    add(t, ISO_TIMELINE_COPY, 50, 60, 0);
    add(t, ISO_TIMELINE_COPY, 104, 106, 1);
    add(t, ISO_TIMELINE_HASH, 55, 70, 0);
    add(t, ISO_TIMELINE_WIRE, 105, 116, 0);
    add(t, ISO_TIMELINE_WIRE, 150, 250, 1);
}

static json_t *load(const char *path)
{
    json_error_t e;
    json_t *j = json_load_file(path, 0, &e);
    if (j == NULL) fail_msg("%s: %s at line %d", path, e.text, e.line);
    return j;
}

static double number(const json_t *j, const char *key)
{
    const json_t *v = json_object_get(j, key);
    if (!json_is_number(v)) fail_msg("no number \"%s\"", key);
    return json_number_value(v);
}

static void near(double got, double want)
{
    if (got < want - 1e-6 || got > want + 1e-6) fail_msg("%f, not %f", got, want);
}

static void test_timeline(void **state)
{
    struct iso_timeline t;
    struct iso_timeline_summary s;
    (void)state;
    constructed(&t);
    iso_timeline_summarize(&s, &t);
    assert_int_equal(s.prefill_ns, 200 * MS);
    assert_int_equal(s.sum_ns[ISO_TIMELINE_COMPUTE], 190 * MS);
    assert_int_equal(s.sum_ns[ISO_TIMELINE_COPY], 12 * MS);
    assert_int_equal(s.sum_ns[ISO_TIMELINE_HASH], 15 * MS);
    assert_int_equal(s.sum_ns[ISO_TIMELINE_WIRE], 111 * MS);
    assert_int_equal(s.transfer_ns, (20 + 12 + 100) * MS);
    assert_int_equal(s.hidden_ns, (20 + 6 + 50) * MS);
    near(s.hidden_share, 76.0 / 132.0);
    near(s.first_share, 0.04);
    iso_timeline_deinit(&t);
    iso_timeline_init(&t, true); /* nothing happened: no division by zero */
    iso_timeline_summarize(&s, &t);
    near(s.hidden_share + s.first_share, 0);
    iso_timeline_deinit(&t);
}

/* Sums go on, memory does not. */
static void test_timeline_bound(void **state)
{
    struct iso_timeline t;
    (void)state;
    for (int keep = 0; keep < 2; keep++) {
        iso_timeline_init(&t, keep == 1);
        for (int i = 0; i < (int)ISO_TIMELINE_MAX + 10; i++) add(&t, ISO_TIMELINE_WIRE, i, i + 1, 0);
        assert_int_equal(t.sum_ns[ISO_TIMELINE_WIRE], (ISO_TIMELINE_MAX + 10) * MS);
        assert_int_equal(t.n[ISO_TIMELINE_WIRE], keep ? ISO_TIMELINE_MAX : 0);
        assert_int_equal(t.n_dropped, keep ? 10 : 0);
        iso_timeline_deinit(&t);
    }
}

static void test_timeline_files(void **state)
{
    char path[] = "/tmp/isobit-timeline-XXXXXX";
    struct iso_timeline t;
    const struct iso_timeline_about about = {.request = "r\"1", .peer = "bob", .device = "cuda", .isa = "sm90"};
    (void)state;
    assert_true(mkstemp(path) >= 0);
    constructed(&t);
    rig_must(iso_timeline_write(&t, &about, path, false));
    json_t *j = load(path);
    const json_t *s = json_object_get(j, "summary");
    near(number(s, "hidden_share"), 0.575758);
    near(number(s, "first_page_share_of_prefill"), 0.04);
    near(number(s, "first_page_ms"), 8);
    near(number(s, "transfer_ms_under_compute"), 76);
    near(number(s, "compute_ms"), 190);
    assert_int_equal(json_array_size(json_object_get(j, "spans")), 8);
    near(number(json_array_get(json_object_get(j, "spans"), 7), "start_us"), 150000);
    json_decref(j);
    rig_must(iso_timeline_write(&t, &about, path, true));
    j = load(path);
    const json_t *events = json_object_get(j, "traceEvents");
    assert_int_equal(json_array_size(events), 8 + ISO_TIMELINE_KINDS);
    const json_t *last = json_array_get(events, 8 + ISO_TIMELINE_KINDS - 1);
    assert_string_equal(json_string_value(json_object_get(last, "ph")), "X");
    near(number(last, "ts"), 150000);
    near(number(last, "dur"), 100000);
    json_decref(j);
    iso_timeline_deinit(&t);
    assert_int_equal(iso_timeline_write(&t, &about, "/nowhere/at/all", false), ISO_E_IO);
    (void)remove(path);
}

/* --- hand-offs from a simulated device ------------------------------------------------------------- */

static iso_engine *on_sim(iso_engine *e, struct sim **sim)
{
    *sim = sim_start(e);
    return e;
}

/* Copies through a ring of any size give the bits of a local run, golden prompts included. */
static void test_exact(void **state)
{
    static const char *const models[] = {"mini-muse-glimmer.gguf", "mini-qwen3.gguf"};
    static const size_t ring[] = {0, 1};
    static const uint32_t n[] = {2, 64, 65, 130, RIG_IDS};
    (void)state;
    for (size_t i = 0; i < ISO_COUNT(models); i++) {
        struct sim *sim = NULL;
        struct rig r;
        const struct iso_producer_options po = {.ring_bytes = ring[i]};
        rig_start_with(&r, on_sim(rig_engine(models[i], 2, false), &sim), rig_engine(models[i], 2, true), &po, NULL);
        sim->layer_ns = MS;
        for (size_t k = 0; k < ISO_COUNT(n); k++) {
            iso_session *s = NULL;
            rig_must(iso_session_new(&s, r.ce, RIG_CTX));
            rig_must(rig_fetch(&r, s, r.ids, n[k]));
            rig_check_exact(&r, s, r.ids, n[k]);
            iso_session_free(s);
        }
        rig_stop_producer(&r);
        assert_int_equal(sim->n_pinned, 0);
        for (int c = 0; c < ISO_KV_CLASSES; c++) assert_null(r.pe->shadow.bytes[c]); /* no second copy */
        rig_stop(&r);
    }
}

/* Models whose layers are little work: one with many pages, 8 MiB for 250 ids, and one with many layers. */
static iso_engine *tiny_engine(bool wide, uint32_t n_sessions, bool staging)
{
    struct tiny_spec spec = tiny_spec("llama");
    struct tiny_model m;
    spec.n_layers = wide ? LAYERS : 2 * LAYERS;
    if (wide) {
        spec.n_heads = spec.n_kv_heads = 16;
        spec.head_dim = 64;
    }
    iso_engine *e = NULL;
    const char *path = tiny_path("wide");
    tiny_model_init(&m, &spec);
    tiny_model_save(&m, path);
    tiny_model_deinit(&m);
    const struct iso_engine_options o = {.model_path = path, .n_threads = 1, .n_ctx = RIG_CTX, .n_batch = 64,
                                         .n_sessions = n_sessions, .keep_expired = true, .staging = staging,
                                         .no_tokenizer = true};
    const enum iso_err err = iso_engine_open(&e, &o);
    (void)remove(path);
    rig_must(err);
    return e;
}

struct wide {
    struct rig r;
    struct sim *sim;
    int32_t ids[WIDE_IDS];
    char path[64], trace[80];
};

static void wide_start(struct wide *w, bool wide, size_t ring_bytes)
{
    static unsigned count;
    (void)snprintf(w->path, sizeof(w->path), "/tmp/isobit-stream-%ld-%u.json", (long)getpid(), count++);
    (void)snprintf(w->trace, sizeof(w->trace), "%s.trace", w->path);
    const struct iso_producer_options po = {
        .ring_bytes = ring_bytes, .timeline_path = w->path, .trace_path = w->trace};
    rig_start_with(&w->r, on_sim(tiny_engine(wide, 2, false), &w->sim), tiny_engine(wide, 2, true), &po, NULL);
    for (int i = 0; i < WIDE_IDS; i++) w->ids[i] = (i * 37 + i / 7) % 300;
}

static void wide_stop(struct wide *w)
{
    rig_stop(&w->r);
    (void)remove(w->path);
    (void)remove(w->trace);
}

/* Until the hand-off is over on the producer's side too, and its files are written. */
static void settle(struct wide *w)
{
    (void)iso_consumer_last_report(w->r.consumer); /* the ACK is out */
    (void)rig_wait_idle(&w->r, IDLE_NS);
    rig_stop_producer(&w->r);
}

/* End of the last interval of a kind, ms behind the prefill's begin; *n of them, *pages in them. */
static double last_ms(const json_t *timeline, const char *kind, size_t *n, uint64_t *pages)
{
    double end = 0;
    size_t i = 0;
    const json_t *v = NULL;
    *n = 0;
    *pages = 0;
    json_array_foreach(json_object_get(timeline, "spans"), i, v)
    {
        if (strcmp(json_string_value(json_object_get(v, "kind")), kind) != 0) continue;
        end = ISO_MAX(end, (number(v, "start_us") + number(v, "us")) / 1000);
        *pages += (uint64_t)(number(v, "end") - number(v, "first"));
        ++*n;
    }
    return end;
}

/* A wire that takes three seconds: the prefill ends long before it, host memory stays that of the ring, nothing
 * is sent twice or left out, and it uses the ring of the hand-off before. */
static void test_slow_wire(void **state)
{
    struct wide w;
    struct proxy_plan plan = PROXY_PLAN_CLEAN;
    (void)state;
    wide_start(&w, true, (size_t)2 << 20);
    const uint64_t ring = iso_producer_ring_bytes(w.r.producer);
    assert_true(ring <= (size_t)2 << 20);
    for (int turn = 0; turn < 2; turn++) {
        plan.pace_down = turn == 1 ? 2 << 20 : 0;
        proxy_set(w.r.proxy, &plan);
        iso_session *s = NULL;
        rig_new_consumer(&w.r);
        rig_must(iso_session_new(&s, w.r.ce, RIG_CTX));
        rig_must(rig_fetch(&w.r, s, w.ids, WIDE_IDS));
        if (turn == 1) rig_check_exact(&w.r, s, w.ids, WIDE_IDS);
        iso_session_free(s);
    }
    struct iso_producer_stats stats;
    iso_producer_stats(w.r.producer, &stats);
    assert_int_equal(stats.ring_bytes, ring);
    assert_int_equal(w.sim->most_pinned, ring);
    settle(&w);
    json_t *j = load(w.path);
    size_t n = 0;
    uint64_t pages = 0;
    const double end_ms = last_ms(j, "wire", &n, &pages), prefill_ms = number(json_object_get(j, "summary"), "prefill_ms");
    assert_int_equal(pages, LAYERS * PAGES); /* a page of all heads counts once */
    assert_int_equal(n, LAYERS * PAGES);
    if (prefill_ms * 1.2 > end_ms) fail_msg("a prefill of %.0f ms, sent after %.0f ms", prefill_ms, end_ms);
    (void)last_ms(j, "copy", &n, &pages);
    assert_int_equal(pages, LAYERS * PAGES);
    (void)last_ms(j, "compute", &n, &pages);
    assert_int_equal(n, LAYERS * PAGES); /* chunks of 64 */
    assert_int_equal(pages, LAYERS * (WIDE_IDS - 1)); /* positions, here */
    json_decref(j);
    wide_stop(&w);
}

/* Long layers, a fast wire: nearly everything is hidden, and the first page leaves early. */
static void test_hidden(void **state)
{
    double hidden = 0, first = 1;
    (void)state;
    for (int try = 0; try < 3 && (hidden < 0.9 || first > 0.05); try++) { /* a busy machine hides less */
        struct wide w;
        iso_session *s = NULL;
        wide_start(&w, true, 0);
        w.sim->layer_ns = 8 * MS;
        w.sim->copy_ns = MS;
        rig_must(iso_session_new(&s, w.r.ce, RIG_CTX));
        rig_must(rig_fetch(&w.r, s, w.ids, WIDE_IDS));
        iso_session_free(s);
        settle(&w);
        json_t *j = load(w.path), *t = load(w.trace);
        const json_t *sum = json_object_get(j, "summary");
        hidden = number(sum, "hidden_share");
        first = number(sum, "first_page_share_of_prefill");
        assert_true(number(sum, "transfer_ms_under_compute") <= number(sum, "transfer_ms"));
        assert_true(number(sum, "copy_ms") >= LAYERS * PAGES * 0.9); /* copies of a millisecond */
        assert_true(json_array_size(json_object_get(t, "traceEvents")) > 4 * LAYERS * PAGES);
        json_decref(j);
        json_decref(t);
        wide_stop(&w);
    }
    if (hidden < 0.9 || first > 0.05) fail_msg("hidden %.3f, first page at %.3f", hidden, first);
}

/* A copy engine slower than everything else: copies wait, the prefill does not. */
static void test_slow_copies(void **state)
{
    struct wide w;
    iso_session *s = NULL;
    (void)state;
    wide_start(&w, false, 1);
    w.sim->copy_ns = 30 * MS; /* 96 of them */
    rig_must(iso_session_new(&s, w.r.ce, RIG_CTX));
    rig_must(rig_fetch(&w.r, s, w.ids, WIDE_IDS));
    rig_check_exact(&w.r, s, w.ids, WIDE_IDS);
    iso_session_free(s);
    settle(&w);
    json_t *j = load(w.path);
    size_t n = 0;
    uint64_t pages = 0;
    const double end_ms = last_ms(j, "copy", &n, &pages), prefill_ms = number(json_object_get(j, "summary"), "prefill_ms");
    if (prefill_ms * 1.2 > end_ms) fail_msg("a prefill of %.0f ms, copied after %.0f ms", prefill_ms, end_ms);
    json_decref(j);
    wide_stop(&w);
}

/* Steps get shorter until a layer is short enough for a cancel, never shorter than a page, and longer again. */
static void test_chunks(void **state)
{
    iso_engine *e = rig_engine("mini-qwen3.gguf", 1, false); /* steps of at most 64 */
    struct iso_producer p = {.engine = e, .chunk = 1024};
    const int64_t n = iso_engine_info(e)->n_layers;
    (void)state;
    iso_producer_adapt_chunk(&p, 1024, 41 * MS * n);
    assert_int_equal(p.chunk, 512);
    iso_producer_adapt_chunk(&p, 511, 1000 * MS * n); /* the end of a prompt */
    assert_int_equal(p.chunk, 512);
    iso_producer_adapt_chunk(&p, 512, 39 * MS * n);
    assert_int_equal(p.chunk, 512);
    for (int i = 0; i < 9; i++) iso_producer_adapt_chunk(&p, p.chunk, 100 * MS * n);
    assert_int_equal(p.chunk, 64);
    p.chunk = 16;
    iso_producer_adapt_chunk(&p, 16, 10 * MS * n);
    assert_int_equal(p.chunk, 32);
    for (int i = 0; i < 9; i++) iso_producer_adapt_chunk(&p, p.chunk, MS * n);
    assert_int_equal(p.chunk, 64); /* n_batch */
    iso_engine_close(e);
}

/* --- cancels and losses ------------------------------------------------------------------------------ */

struct stopper {
    struct rig *r;
    bool by_progress;
    _Atomic int64_t at_ns;
};

static void *cancel_thread(void *arg)
{
    struct stopper *c = arg;
    struct iso_producer_stats st;
    do {
        (void)usleep(200);
        iso_producer_stats(c->r->producer, &st);
    } while (!st.computing);
    (void)usleep(130000); /* six layers of 20 ms */
    c->at_ns = iso_clock_ns();
    const struct iso_kv_source *k = iso_consumer_source(c->r->consumer);
    if (!c->by_progress) k->cancel(k->arg);
    return NULL;
}

static bool stop_now(void *arg, uint64_t done, uint64_t total)
{
    const struct stopper *c = arg;
    (void)done, (void)total;
    return c->by_progress && c->at_ns != 0;
}

/* From the wish to the moment at which the producer has let go of everything. The consumer looks at its
 * own progress each 50 ms, so that way has as much more. */
static int64_t cancel_takes(struct wide *w, bool by_progress)
{
    struct stopper c = {.r = &w->r, .by_progress = by_progress};
    const struct iso_kv_source *k = NULL;
    const struct iso_progress p = {stop_now, &c};
    iso_session *s = NULL;
    pthread_t t;
    rig_new_consumer(&w->r);
    k = iso_consumer_source(w->r.consumer);
    rig_must(iso_session_new(&s, w->r.ce, RIG_CTX));
    assert_int_equal(pthread_create(&t, NULL, cancel_thread, &c), 0);
    assert_int_equal(k->fetch(k->arg, s, w->ids, WIDE_IDS, &p), ISO_E_CANCELLED);
    const int64_t idle_ns = rig_wait_idle(&w->r, IDLE_NS);
    pthread_mutex_lock(&w->sim->lock);
    assert_true(w->sim->n_copies > 0); /* some had left */
    assert_int_equal(w->sim->n_copies, w->sim->copy_done); /* none reads pages that were given back */
    pthread_mutex_unlock(&w->sim->lock);
    assert_int_equal(pthread_join(t, NULL), 0);
    assert_int_equal(iso_session_position(s), 0);
    iso_session_free(s);
    return idle_ns - c.at_ns;
}

/* In chunks of 24 layers of 20 ms. Best of five: this machine may be busy with other things. */
static void test_cancel(void **state)
{
    struct wide w;
    iso_session *s = NULL;
    (void)state;
    wide_start(&w, false, 1);
    w.sim->layer_ns = 20 * MS;
    w.sim->copy_ns = 12 * MS;
    for (int by_progress = 0; by_progress < 2; by_progress++) {
        const int64_t limit = (by_progress ? 150 : 100) * MS;
        int64_t best = INT64_MAX;
        for (int try = 0; try < 5 && best >= limit; try++) best = ISO_MIN(best, cancel_takes(&w, by_progress));
        if (best >= limit) fail_msg("a cancel took %lld ms", (long long)(best / MS));
    }
    w.sim->copy_ns = 300 * MS; /* slower than any: the cancel comes in the middle of one and waits for it */
    (void)cancel_takes(&w, false);
    w.sim->layer_ns = w.sim->copy_ns = 0;
    rig_new_consumer(&w.r);
    rig_must(iso_session_new(&s, w.r.ce, RIG_CTX));
    rig_must(rig_fetch(&w.r, s, w.ids, WIDE_IDS)); /* the ring and the engine are as good as new */
    rig_check_exact(&w.r, s, w.ids, WIDE_IDS);
    iso_session_free(s);
    assert_int_equal(w.sim->most_pinned, iso_producer_ring_bytes(w.r.producer));
    wide_stop(&w);
}

/* A device that dies in a copy: one reason, no pages, nothing leaks. */
static void test_lost_copy(void **state)
{
    struct wide w;
    iso_session *s = NULL;
    struct rig_state before;
    (void)state;
    wide_start(&w, true, 0);
    w.sim->lose_copy = 20;
    rig_must(iso_session_new(&s, w.r.ce, RIG_CTX));
    rig_state(&before, s);
    assert_int_not_equal(rig_fetch(&w.r, s, w.ids, WIDE_IDS), ISO_OK);
    const struct iso_consumer_report *p = iso_consumer_last_report(w.r.consumer);
    assert_int_equal(p->reason, ISO_REASON_INTERNAL);
    assert_true(p->from_peer);
    rig_same(&before, s);
    (void)rig_wait_idle(&w.r, IDLE_NS);
    iso_session_free(s);
    wide_stop(&w);
}

/* Nobody answers: the message is for people, without places in the program. */
static void test_message(void **state)
{
    struct rig r;
    iso_session *s = NULL;
    (void)state;
    rig_start(&r, "mini-qwen3.gguf", NULL, NULL);
    (void)snprintf(r.address, sizeof(r.address), "127.0.0.1:1");
    rig_new_consumer(&r);
    rig_must(iso_session_new(&s, r.ce, RIG_CTX));
    assert_int_equal(rig_fetch(&r, s, r.ids, RIG_IDS), ISO_E_IO);
    assert_non_null(strstr(iso_err_message(), "127.0.0.1:1: "));
    if (strstr(iso_err_message(), ".c:") != NULL) fail_msg("\"%s\"", iso_err_message());
    iso_session_free(s);
    rig_stop(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_timeline),    cmocka_unit_test(test_timeline_bound),
        cmocka_unit_test(test_timeline_files), cmocka_unit_test(test_exact),
        cmocka_unit_test(test_slow_wire),   cmocka_unit_test(test_hidden),
        cmocka_unit_test(test_slow_copies), cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_lost_copy),   cmocka_unit_test(test_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
