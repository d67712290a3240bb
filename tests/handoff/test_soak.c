/* SPDX-License-Identifier: MIT
 * test_soak.c - many prompts through one producer whose wire breaks at random: each one ends with the local
 * run's first logits, from pages that were verified or from here; nothing piles up.
 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/engine.h"
#include "handoff/ledger.h"
#include "rig.h"

#define MODEL "mini-llama.gguf"
#if defined(__SANITIZE_ADDRESS__)
#define ROUNDS 40 /* a second or more each */
#else
#define ROUNDS 120
#endif
#define HOLDS 2 /* cables pulled: each costs the limit of silence */
#define SILENCE_MS 1500

static uint64_t g_random;
static uint64_t below(uint64_t n)
{
    g_random = g_random * 6364136223846793005ull + 1442695040888963407ull;
    return (g_random >> 33) % n;
}

static size_t open_files(void)
{
    size_t n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d)) n++;
    (void)closedir(d);
    return n;
}

/* One fault of a connection that carries down and up bytes when nothing happens. */
static struct proxy_plan fault(uint64_t down, uint64_t up, int *holds)
{
    struct proxy_plan p = PROXY_PLAN_CLEAN;
    const int64_t at_down = (int64_t)below(down), at_up = (int64_t)below(up);
    switch (below(8)) {
    case 0: p.cut_down = at_down; break;
    case 1: p.cut_down = at_down, p.reset = true; break;
    case 2: p.flip_down = at_down; break;
    case 3: p.flip_up = at_up; break;
    case 4:
        if (below(8) == 0 && (*holds)++ < HOLDS) p.hold_down = at_down;
        break;
    default: break;
    }
    return p;
}

/* A prompt by the policy "auto": its first logits, whatever happened. Returns whether pages came. */
static bool prompt(struct rig *r, const struct iso_digest *want)
{
    iso_session *s = NULL;
    struct iso_prefill_outcome o;
    struct iso_digest got;
    rig_must(iso_session_new(&s, r->ce, RIG_CTX));
    rig_must(iso_consumer_prefill(r->consumer, &o, s, r->ids, RIG_IDS, NULL));
    iso_logits_digest(&got, iso_session_logits(s), iso_engine_info(r->ce)->n_vocab);
    assert_memory_equal(&got, want, sizeof(got));
    assert_int_equal(o.computed_locally, o.remote ? 1 : RIG_IDS);
    assert_true(o.remote || o.fell_back);
    iso_session_free(s);
    return o.remote;
}

static void local_logits(struct iso_digest *out, struct rig *r)
{
    iso_session *s = NULL;
    rig_must(iso_session_new(&s, r->ce, RIG_CTX));
    rig_must(iso_session_prefill(s, r->ids, RIG_IDS, NULL));
    iso_logits_digest(out, iso_session_logits(s), iso_engine_info(r->ce)->n_vocab);
    iso_session_free(s);
}

/* The consumer's attempts are its generations: none was used twice, none is missing. */
static uint64_t highest_generation(struct rig *r)
{
    struct iso_ledger *l = NULL;
    enum iso_reason reason = ISO_REASON_OK;
    uint64_t n = 0;
    rig_must(iso_ledger_open(&l, r->nodes.bob, NULL, &reason));
    rig_must(iso_ledger_highest(l, &n, &reason));
    iso_ledger_free(l);
    return n;
}

static void prompts_over_a_bad_wire(void **state)
{
    (void)state;
    g_random = (uint64_t)time(NULL);
    print_message("seed %llu\n", (unsigned long long)g_random);
    struct rig r;
    const struct iso_consumer_options co = {.silence_ms = SILENCE_MS, .dial_ms = 1000, .whole = true};
    const struct iso_producer_options po = {.silence_ms = SILENCE_MS, .handshake_ms = 1000};
    rig_start(&r, MODEL, &po, &co);
    struct iso_digest want;
    local_logits(&want, &r);
    assert_true(prompt(&r, &want));
    const uint64_t down = proxy_down(r.proxy), up = proxy_up(r.proxy);
    const size_t files = open_files();
    uint32_t n_free[ISO_KV_CLASSES];
    for (size_t c = 0; c < ISO_KV_CLASSES; c++) n_free[c] = r.ce->pool[c].n_free;
    unsigned remote = 0, asked = 1;
    int holds = 0;
    for (int i = 0; i < ROUNDS; i++) {
        const struct proxy_plan p = fault(down, up, &holds);
        proxy_set(r.proxy, &p);
        if (i % 20 == 19) rig_new_producer(&r); /* and a new consumer */
        else rig_new_consumer(&r);              /* without a breaker and rates from before */
        remote += prompt(&r, &want);
        asked++;
        for (size_t c = 0; c < ISO_KV_CLASSES; c++) assert_int_equal(r.ce->pool[c].n_free, n_free[c]);
    }
    print_message("%d prompts: %u by the producer, %u here after a fault\n", ROUNDS, remote, ROUNDS - remote);
    assert_true(remote > ROUNDS / 8 && remote < ROUNDS);
    const struct proxy_plan clean = PROXY_PLAN_CLEAN;
    proxy_set(r.proxy, &clean);
    rig_new_consumer(&r);
    assert_true(prompt(&r, &want));
    for (int i = 0; i < 300 && open_files() > files; i++) (void)usleep(10000); /* both ends close */
    assert_in_range(open_files(), 0, files);
    assert_int_equal(highest_generation(&r), asked + 1);
    rig_stop(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(prompts_over_a_bad_wire)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
