/* SPDX-License-Identifier: MIT
 * test_faults.c - dead producers, cut, held and damaged wires, cancels: one reason, in time,
 * nothing changed, nothing lost.
 *
 * With --produce ROOT MODEL this program is the producer that the kill tests kill.
 */
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/mem.h"
#include "handoff/ledger.h"
#include "handoff/plan.h"
#include "rig.h"

#define MODEL "mini-muse-glimmer.gguf"
#define SILENCE_MS 1500 /* more than a heartbeat's second, also on a slow machine */
#define SLACK_MS 2500   /* for a slow machine, on top of a stated limit */
#define TAIL 200        /* bytes of the end of a connection that belong to its seal or its close */

extern char **environ;

struct bed {
    struct rig r;
    iso_session *s;
    struct rig_state before;
    uint64_t total_down, total_up; /* of one good hand-off */
};

static struct bed g_bed;

static int setup(void **state)
{
    struct bed *b = &g_bed;
    const struct iso_consumer_options co = {
        .silence_ms = SILENCE_MS, .dial_ms = 1000, .whole = true};
    const struct iso_producer_options po = {.silence_ms = SILENCE_MS, .handshake_ms = 1000};
    rig_start(&b->r, MODEL, &po, &co);
    int32_t other[70];
    for (int i = 0; i < 70; i++) other[i] = b->r.ids[RIG_IDS - 1 - i];
    rig_must(iso_session_new(&b->s, b->r.ce, RIG_CTX));
    rig_must(iso_session_prefill(b->s, other, 70, NULL));
    rig_state(&b->before, b->s);
    *state = b;
    return 0;
}

static int teardown(void **state)
{
    struct bed *b = *state;
    iso_session_free(b->s);
    rig_stop(&b->r);
    return 0;
}

static void wait_idle(struct bed *b)
{
    (void)rig_wait_idle(&b->r, SLACK_MS * ISO_NS_PER_MS);
}

/* A good hand-off into a session of its own, exact to the bit: nothing of an earlier failure stays.
 */
static void good(struct bed *b)
{
    iso_session *s = NULL;
    const struct proxy_plan clean = PROXY_PLAN_CLEAN;
    proxy_set(b->r.proxy, &clean);
    rig_new_consumer(&b->r);
    iso_session_free(b->s); /* its place is needed for the local run */
    rig_must(iso_session_new(&s, b->r.ce, RIG_CTX));
    rig_must(rig_fetch(&b->r, s, b->r.ids, RIG_IDS));
    (void)iso_consumer_last_report(b->r.consumer);
    b->total_down = proxy_down(b->r.proxy);
    b->total_up = proxy_up(b->r.proxy);
    rig_check_exact(&b->r, s, b->r.ids, RIG_IDS);
    iso_session_free(s);
    int32_t other[70];
    for (int i = 0; i < 70; i++) other[i] = b->r.ids[RIG_IDS - 1 - i];
    rig_must(iso_session_new(&b->s, b->r.ce, RIG_CTX));
    rig_must(iso_session_prefill(b->s, other, 70, NULL));
    rig_same(&b->before, b->s);
}

/* A fetch that must fail within limit_ms and leave everything as it was; its reason. */
static enum iso_reason bad(struct bed *b, const struct proxy_plan *plan, int64_t limit_ms)
{
    proxy_set(b->r.proxy, plan);
    rig_new_consumer(&b->r); /* and so a closed breaker */
    const int64_t start = iso_clock_ns();
    const enum iso_err err = rig_fetch(&b->r, b->s, b->r.ids, RIG_IDS);
    const int64_t took_ms = (iso_clock_ns() - start) / ISO_NS_PER_MS;
    const struct iso_consumer_report *p = iso_consumer_last_report(b->r.consumer);
    if (err == ISO_OK || p->reason == ISO_REASON_OK) fail_msg("a damaged hand-off was accepted");
    if (took_ms > limit_ms + SLACK_MS) {
        fail_msg("%s after %lld ms", iso_reason_name(p->reason), (long long)took_ms);
    }
    rig_same(&b->before, b->s);
    return p->reason;
}

/* The cuts of K7: at 0, 1, 50 and 99 %, in front of the last frame, inside it. */
static void cuts(const struct bed *b, int64_t at[6])
{
    const int64_t t = (int64_t)b->total_down;
    const struct iso_kv_layout *y = iso_engine_kv_layout(b->r.ce);
    static const struct iso_held none[ISO_KV_CLASSES];
    struct iso_plan p;
    rig_must(iso_plan_init(&p, y, RIG_IDS, none, false));
    const int64_t seal = 3000 + 32 * (int64_t)p.n_pages; /* a little more than it has */
    iso_plan_deinit(&p);
    const int64_t all[6] = {0, t / 100, t / 2, t * 99 / 100, t - seal, t - TAIL};
    memcpy(at, all, sizeof(all));
}

static void test_cut(void **state)
{
    struct bed *b = *state;
    int64_t at[6];
    good(b);
    cuts(b, at);
    for (int reset = 0; reset < 2; reset++) {
        for (size_t i = 0; i < ISO_COUNT(at); i++) {
            struct proxy_plan plan = PROXY_PLAN_CLEAN;
            plan.cut_down = at[i];
            plan.reset = reset == 1;
            const enum iso_reason r = bad(b, &plan, 1000);
            const bool lost = r == ISO_REASON_CLOSED || r == ISO_REASON_TLS_BROKEN;
            if (!lost) fail_msg("cut at %lld: %s", (long long)at[i], iso_reason_name(r));
            wait_idle(b);
        }
    }
    good(b);
}

static void test_pulled_cable(void **state)
{
    struct bed *b = *state;
    int64_t at[6];
    good(b);
    cuts(b, at);
    for (size_t i = 0; i < ISO_COUNT(at); i++) {
        struct proxy_plan plan = PROXY_PLAN_CLEAN;
        plan.hold_down = at[i];
        const enum iso_reason r = bad(b, &plan, at[i] == 0 ? 1000 : SILENCE_MS);
        const bool silent = r == ISO_REASON_PEER_SILENT || r == ISO_REASON_HANDSHAKE_TIMEOUT;
        if (!silent) fail_msg("held at %lld: %s", (long long)at[i], iso_reason_name(r));
        /* The producer gives up by itself, too: a computation for nobody is a leak. */
        wait_idle(b);
    }
    good(b);
}

/* One bit of any byte on the wire, either way. */
static void test_flip(void **state)
{
    struct bed *b = *state;
    const unsigned seed = (unsigned)iso_clock_ns();
    (void)printf("seed %u\n", seed);
    good(b);
    srandom(seed);
    for (int i = 0; i < 60; i++) {
        struct proxy_plan plan = PROXY_PLAN_CLEAN;
        const bool down = i % 3 != 0;
        /* The client's last bytes are its ACK and close: behind the publish. */
        const int64_t most = down ? (int64_t)b->total_down - TAIL : 4000;
        /* A third of them in the handshake, where lengths and certificates are. */
        const int64_t at = random() % (i % 9 < 3 ? ISO_MIN(3000, most) : most);
        if (down)
            plan.flip_down = at;
        else
            plan.flip_up = ISO_MIN(at, (int64_t)b->total_up - 400);
        const enum iso_reason r = bad(b, &plan, 2000);
        if (r == ISO_REASON_INTERNAL || r == ISO_REASON_CANCELLED) {
            fail_msg("byte %lld %s: %s", (long long)at, down ? "down" : "up", iso_reason_name(r));
        }
        wait_idle(b);
    }
    good(b);
}

/* --- a producer that is killed
 * -------------------------------------------------------------------- */

struct victim {
    pid_t pid;
    uint16_t port;
};

static void spawn_producer(struct victim *v, const char *root)
{
    int fds[2];
    posix_spawn_file_actions_t fa;
    char self[512];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    assert_true(n > 0);
    self[n] = '\0';
    assert_int_equal(pipe(fds), 0);
    char *argv[] = {self, (char *)"--produce", (char *)(uintptr_t)root, NULL};
    assert_int_equal(posix_spawn_file_actions_init(&fa), 0);
    assert_int_equal(posix_spawn_file_actions_adddup2(&fa, fds[1], 3), 0);
    assert_int_equal(posix_spawn(&v->pid, self, &fa, NULL, argv, environ), 0);
    (void)posix_spawn_file_actions_destroy(&fa);
    (void)close(fds[1]);
    assert_int_equal(read(fds[0], &v->port, sizeof(v->port)), sizeof(v->port));
    (void)close(fds[0]);
}

static void kill_it(void *arg)
{
    struct victim *v = arg;
    (void)kill(v->pid, SIGKILL);
    (void)waitpid(v->pid, NULL, 0);
    v->pid = 0;
}

static void test_kill(void **state)
{
    struct bed *b = *state;
    int64_t at[6];
    good(b);
    cuts(b, at);
    rig_stop_producer(&b->r); /* one process at a time has alice's engine */
    for (size_t i = 0; i < 5; i++) {
        struct victim v;
        struct proxy_plan plan = PROXY_PLAN_CLEAN;
        spawn_producer(&v, b->r.nodes.root);
        b->r.proxy = proxy_start(v.port);
        (void)snprintf(b->r.address, sizeof(b->r.address), "127.0.0.1:%u", proxy_port(b->r.proxy));
        plan.cut_down = at[i];
        plan.at_cut = kill_it;
        plan.arg = &v;
        const enum iso_reason r = bad(b, &plan, 1000);
        const bool lost = r == ISO_REASON_CLOSED || r == ISO_REASON_TLS_BROKEN;
        if (!lost) fail_msg("killed at %lld: %s", (long long)at[i], iso_reason_name(r));
        proxy_stop(b->r.proxy); /* and so at_cut has ended */
        b->r.proxy = NULL;
        if (v.pid != 0) fail_msg("the producer outlived byte %lld", (long long)at[i]);
    }
    /* Its ledger survived all of it: the generations go on. */
    rig_new_producer(&b->r);
    good(b);
}

static int produce(const char *root)
{
    char dir[256];
    struct iso_node *node = NULL;
    struct iso_producer *p = NULL;
    iso_engine *e = rig_engine(MODEL, 2, false);
    const struct iso_producer_options o = {.listen = "127.0.0.1:0", .no_probe = true};
    (void)snprintf(dir, sizeof(dir), "%s/alice", root);
    if (iso_node_open(&node, dir) != ISO_OK || iso_producer_new(&p, e, node, &o, NULL) != ISO_OK) {
        (void)fprintf(stderr, "%s\n", iso_err_detail());
        return 1;
    }
    const uint16_t port = iso_producer_port(p);
    if (write(3, &port, sizeof(port)) != sizeof(port)) return 1;
    return iso_producer_run(p) == ISO_OK ? 0 : 1;
}

/* --- cancel
 * --------------------------------------------------------------------------------------- */

struct canceller {
    struct bed *b;
    uint64_t at; /* bytes down */
    int64_t cancelled_ns;
};

static void *cancel_thread(void *arg)
{
    struct canceller *c = arg;
    const struct iso_kv_source *k = iso_consumer_source(c->b->r.consumer);
    struct iso_producer_stats st;
    /* Once the prefill runs; the relay's counter still has the connection before until then. */
    do {
        (void)usleep(200);
        iso_producer_stats(c->b->r.producer, &st);
    } while (!st.computing);
    while (proxy_down(c->b->r.proxy) < c->at) (void)usleep(100);
    c->cancelled_ns = iso_clock_ns();
    k->cancel(k->arg);
    return NULL;
}

static void test_cancel(void **state)
{
    struct bed *b = *state;
    good(b);
    for (uint64_t percent = 5; percent <= 60; percent += 11) {
        const struct proxy_plan clean = PROXY_PLAN_CLEAN;
        struct canceller c = {.b = b, .at = b->total_down * percent / 100};
        pthread_t t;
        proxy_set(b->r.proxy, &clean);
        rig_new_consumer(&b->r);
        assert_int_equal(pthread_create(&t, NULL, cancel_thread, &c), 0);
        const enum iso_err err = rig_fetch(&b->r, b->s, b->r.ids, RIG_IDS);
        const int64_t back = iso_clock_ns();
        assert_int_equal(pthread_join(t, NULL), 0);
        assert_int_equal(err, ISO_E_CANCELLED);
        assert_int_equal(iso_consumer_last_report(b->r.consumer)->reason, ISO_REASON_CANCELLED);
        assert_true(back - c.cancelled_ns < 200 * ISO_NS_PER_MS);
        wait_idle(b);
        assert_true(iso_clock_ns() - c.cancelled_ns < 500 * ISO_NS_PER_MS);
        rig_same(&b->before, b->s);
    }
    good(b);
}

/* The progress callback says stop: the producer gets a CANCEL, not a cut. */
static bool stop_at_some(void *arg, uint64_t done, uint64_t total)
{
    (void)arg;
    return done * 4 > total;
}

static void test_progress_stops(void **state)
{
    struct bed *b = *state;
    const struct proxy_plan clean = PROXY_PLAN_CLEAN;
    const struct iso_progress p = {.fn = stop_at_some};
    const struct iso_kv_source *k = NULL;
    proxy_set(b->r.proxy, &clean);
    rig_new_consumer(&b->r);
    k = iso_consumer_source(b->r.consumer);
    assert_int_equal(k->fetch(k->arg, b->s, b->r.ids, RIG_IDS, &p), ISO_E_CANCELLED);
    wait_idle(b);
    rig_same(&b->before, b->s);
    good(b);
}

static void *cancel_soon(void *arg)
{
    const struct iso_kv_source *k = arg;
    (void)usleep(100000);
    k->cancel(k->arg);
    return NULL;
}

/* A cancel while nobody answers the call. */
static void test_cancel_dial(void **state)
{
    struct bed *b = *state;
    struct proxy_plan plan = PROXY_PLAN_CLEAN;
    plan.hold_down = 0;
    proxy_set(b->r.proxy, &plan);
    b->r.co.dial_ms = 1500;
    rig_new_consumer(&b->r);
    const struct iso_kv_source *k = iso_consumer_source(b->r.consumer);
    pthread_t t;
    const int64_t start = iso_clock_ns();
    assert_int_equal(pthread_create(&t, NULL, cancel_soon, (void *)(uintptr_t)k), 0);
    const enum iso_err err = rig_fetch(&b->r, b->s, b->r.ids, RIG_IDS);
    assert_true(iso_clock_ns() - start < 1000 * ISO_NS_PER_MS);
    assert_int_equal(pthread_join(t, NULL), 0);
    assert_int_equal(err, ISO_E_CANCELLED);
    rig_same(&b->before, b->s);
    b->r.co.dial_ms = 1000;
    good(b);
}

static void test_deadline(void **state)
{
    struct bed *b = *state;
    struct proxy_plan plan = PROXY_PLAN_CLEAN;
    plan.hold_down = (int64_t)b->total_down / 2; /* silent, but not yet for long enough */
    proxy_set(b->r.proxy, &plan);
    b->r.co.deadline_ms = SILENCE_MS * 2 / 3;
    rig_new_consumer(&b->r);
    const int64_t start = iso_clock_ns();
    assert_int_not_equal(rig_fetch(&b->r, b->s, b->r.ids, RIG_IDS), ISO_OK);
    assert_int_equal(iso_consumer_last_report(b->r.consumer)->reason, ISO_REASON_DEADLINE);
    assert_true(iso_clock_ns() - start < (SILENCE_MS + SLACK_MS) * ISO_NS_PER_MS);
    wait_idle(b);
    rig_same(&b->before, b->s);
    b->r.co.deadline_ms = 0;
    good(b);
}

static void *fetch_thread(void *arg)
{
    struct bed *b = arg;
    (void)(rig_fetch(&b->r, b->s, b->r.ids, RIG_IDS) == ISO_OK);
    return NULL;
}

/* SIGTERM in the middle of a transfer whose wire is stuck: the producer is gone in a moment. */
static void test_stop(void **state)
{
    struct bed *b = *state;
    struct iso_producer_stats st;
    struct proxy_plan plan = PROXY_PLAN_CLEAN;
    pthread_t t;
    plan.hold_down = (int64_t)b->total_down / 2;
    proxy_set(b->r.proxy, &plan);
    rig_new_consumer(&b->r);
    assert_int_equal(pthread_create(&t, NULL, fetch_thread, b), 0);
    do {
        (void)usleep(500);
        iso_producer_stats(b->r.producer, &st);
    } while (st.active == 0);
    const int64_t start = iso_clock_ns();
    rig_stop_producer(&b->r);
    assert_true(iso_clock_ns() - start < 1000 * ISO_NS_PER_MS);
    assert_int_equal(pthread_join(t, NULL), 0);
    assert_int_not_equal(iso_consumer_last_report(b->r.consumer)->reason, ISO_REASON_OK);
    rig_same(&b->before, b->s);
    rig_new_producer(&b->r);
    good(b);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--produce") == 0) return produce(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut),         cmocka_unit_test(test_pulled_cable),
        cmocka_unit_test(test_flip),        cmocka_unit_test(test_kill),
        cmocka_unit_test(test_cancel),      cmocka_unit_test(test_progress_stops),
        cmocka_unit_test(test_cancel_dial), cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_stop),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
