/* SPDX-License-Identifier: MIT
 * test_batch.c - equal bits whatever the grouping, cache, threads, instruction set and neighbours.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "engine/tools.h"
#include "kernels/shared/cpu.h"

/* D1 and S8: three times the same prompt, then again with all but its last token cached. */
static void the_same_prompt_gives_the_same_logits(void **state)
{
    (void)state;
    enum { N = 3339, ANSWER = 16 };
    for (size_t f = 0; f < N_FAMILIES; f += 3) {
        iso_engine *e = tools_engine(tools_family[f], &(struct iso_engine_options){.n_ctx = 4096});
        iso_session *s = tools_session(e);
        int32_t *ids = tools_ids(e, N + ANSWER, 5);
        struct iso_digest first[ANSWER + 1], again[ANSWER + 1];
        for (int round = 0; round < 4; round++) {
            struct iso_digest *out = round == 0 ? first : again;
            uint32_t held = 0;
            if (round == 2)
                held = iso_session_rewind(s, N - 1); /* cache hit */
            else
                iso_session_rewind(s, 0); /* cache off */
            tools_ok(iso_session_prefill(s, ids + held, N - held, NULL));
            out[0] = tools_logits(s);
            for (int i = 0; i < ANSWER; i++) {
                tools_ok(iso_session_decode(s, ids[N + i]));
                out[i + 1] = tools_logits(s);
            }
            assert_memory_equal(first, out, sizeof(first));
        }
        free(ids);
        iso_session_free(s);
        iso_engine_close(e);
    }
}

enum { PROMPTS = 32, LONGEST = 150 };

struct mix {
    iso_session *s;
    int32_t *ids;
    uint32_t n, at;
    struct iso_digest alone[LONGEST], mixed[LONGEST];
};

/* Fills a step with chunks of randomly chosen prompts: one row is decoding, more are prefill. */
static size_t
fill_step(struct iso_row *rows, struct mix *m, uint32_t *order, uint64_t *state, size_t n_batch)
{
    size_t n = 0;
    for (uint32_t i = PROMPTS - 1; i > 0; i--) {
        const uint32_t j = (uint32_t)(tiny_next(state) % (i + 1)), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
    for (uint32_t k = 0; k < PROMPTS && n < n_batch; k++) {
        struct mix *x = &m[order[k]];
        uint32_t want = tiny_next(state) % 3 ? 1 : (uint32_t)(tiny_next(state) % 40);
        want = (uint32_t)ISO_MIN(ISO_MIN(want, x->n - x->at), n_batch - n);
        for (uint32_t i = 0; i < want; i++) {
            rows[n++] = (struct iso_row){x->s, x->ids[x->at + i], ISO_OUTPUT_LOGITS};
        }
    }
    return n;
}

/* D3: 32 prompts alone, then mixed in any order and any chunks. */
static void company_changes_nothing(void **state)
{
    (void)state;
    const uint64_t seed = (uint64_t)time(NULL);
    print_message("seed %llu\n", (unsigned long long)seed);
    static struct mix m[PROMPTS];
    static struct iso_row rows[256];
    for (size_t f = 0; f < N_FAMILIES; f++) {
        iso_engine *e = tools_engine(
            tools_family[f],
            &(struct iso_engine_options){
                .n_sessions = PROMPTS, .n_batch = 256, .n_ctx = LONGEST, .n_threads = 2});
        uint64_t rng = seed * 2 + 1;
        uint32_t order[PROMPTS], left = 0;
        for (uint32_t i = 0; i < PROMPTS; i++) {
            order[i] = i;
            m[i] =
                (struct mix){.s = tools_session(e), .n = 1 + (uint32_t)(tiny_next(&rng) % LONGEST)};
            m[i].ids = tools_ids(e, m[i].n, i);
            tools_run(m[i].s, m[i].ids, m[i].n, 256, m[i].alone);
            iso_session_rewind(m[i].s, 0);
            left += m[i].n;
        }
        while (left > 0) {
            const size_t n = fill_step(rows, m, order, &rng, 256);
            if (n == 0) continue;
            tools_ok(iso_step(e, rows, n, NULL));
            for (size_t r = 0; r < n; r++) {
                struct mix *x = m;
                while (x->s != rows[r].session) x++;
                iso_logits_digest(&x->mixed[x->at++], iso_step_logits(e, r), e->info.n_vocab);
            }
            left -= (uint32_t)n;
        }
        for (uint32_t i = 0; i < PROMPTS; i++) {
            assert_memory_equal(m[i].alone, m[i].mixed, m[i].n * sizeof(m[i].alone[0]));
            free(m[i].ids);
            iso_session_free(m[i].s);
        }
        iso_engine_close(e);
    }
}

/* Rows without logits beside rows with them: the last layer drops the others. */
static void rows_without_logits_change_nothing(void **state)
{
    (void)state;
    enum { N = 90 };
    for (size_t f = 0; f < N_FAMILIES; f++) {
        iso_engine *e = tools_engine(tools_family[f], NULL);
        iso_session *s = tools_session(e);
        int32_t *ids = tools_ids(e, N, 9);
        struct iso_digest all[N];
        tools_run(s, ids, N, N, all);
        for (uint32_t every = 2; every < 91; every += 11) {
            struct iso_row rows[N];
            iso_session_rewind(s, 0);
            for (uint32_t i = 0; i < N; i++) {
                rows[i] = (struct iso_row){s, ids[i],
                                           i % every == 1 ? ISO_OUTPUT_LOGITS : ISO_OUTPUT_NONE};
            }
            tools_ok(iso_step(e, rows, N, NULL));
            for (uint32_t i = 0; i < N; i++) {
                const float *l = iso_step_logits(e, i);
                assert_int_equal(l != NULL, i % every == 1);
                if (l == NULL) continue;
                struct iso_digest d;
                iso_logits_digest(&d, l, e->info.n_vocab);
                assert_memory_equal(&d, &all[i], sizeof(d));
            }
        }
        assert_null(iso_step_logits(e, N));
        free(ids);
        iso_session_free(s);
        iso_engine_close(e);
    }
}

/* Boundary tensors as f32: codes would hide a difference in the last bit most of the time. */
static void hash_tap(
    void *arg, uint32_t layer, const char *name, const float *data, size_t n_rows, size_t width)
{
    (void)layer, (void)name;
    iso_hasher_update(arg, data, n_rows * width * sizeof(*data));
}

/* D4: a prompt, and single rows behind a cache of four segments, which threads may share. */
static void run_d4(const char *arch, const char *isa, unsigned threads, struct iso_digest out[6])
{
    enum { N = 1700 };
    iso_engine *e = tools_engine(
        arch, &(struct iso_engine_options){
                  .isa = isa, .n_threads = threads, .n_ctx = 1750, .keep_expired = true});
    iso_session *s = tools_session(e);
    int32_t *ids = tools_ids(e, N + 3, 8);
    tools_ok(iso_session_prefill(s, ids, N, NULL));
    out[0] = tools_logits(s);
    struct iso_hasher *h = iso_hasher_new();
    for (int i = 0; i < 3; i++) {
        if (i == 1) tools_ok(iso_engine_set_tap(e, hash_tap, h));
        tools_ok(iso_session_decode(s, ids[N + i]));
        out[1 + i] = tools_logits(s);
    }
    out[4] = tools_chain(s);
    iso_hasher_final(h, &out[5]);
    iso_hasher_free(h);
    free(ids);
    iso_session_free(s);
    iso_engine_close(e);
}

static void
check_d4(const char *arch, const char *isa, unsigned threads, const struct iso_digest want[6])
{
    struct iso_digest got[6];
    run_d4(arch, isa, threads, got);
    if (memcmp(got, want, sizeof(got)) != 0) fail_msg("%s on %u threads at %s", arch, threads, isa);
}

static void threads_and_instructions_change_nothing(void **state)
{
    (void)state;
    static const unsigned threads[] = {16, 2, 3, 7, 1};
    for (size_t f = 0; f < N_FAMILIES; f++) {
        struct iso_digest want[6];
        run_d4(tools_family[f], "ref", 1, want);
        for (size_t i = 0; iso_cpu_level_at(i) != NULL; i++) { /* each family another number */
            const unsigned t = threads[(i + f) % ISO_COUNT(threads)];
            check_d4(tools_family[f], iso_cpu_level_at(i), t, want);
        }
        for (size_t t = 0; f == 0 && t < ISO_COUNT(threads); t++) {
            check_d4(tools_family[f], "auto", threads[t], want);
        }
    }
}

/* --- several threads on one engine --------------------------------------------------------------
 */

enum { WORKERS = 16, MARKERS = 12, WORDS = 40, ANSWERS = 8, ROUNDS = 6 };

/* All workers wait here for the last one, again and again. (macOS has no pthread_barrier_t.) */
struct meeting {
    pthread_mutex_t lock;
    pthread_cond_t all_here;
    unsigned n_here, round;
};

static void meet(struct meeting *m)
{
    pthread_mutex_lock(&m->lock);
    const unsigned round = m->round;
    if (++m->n_here == WORKERS) {
        m->n_here = 0;
        m->round++;
        (void)pthread_cond_broadcast(&m->all_here);
    }
    while (m->round == round) (void)pthread_cond_wait(&m->all_here, &m->lock);
    pthread_mutex_unlock(&m->lock);
}

struct worker {
    pthread_t thread;
    iso_engine *e;
    pthread_mutex_t *turn; /* a step and the reading of its logits belong together */
    struct meeting *phase; /* between free prompts and answers in turn; NULL: alone */
    unsigned index;
    int32_t (*answer)[ANSWERS];
    struct iso_digest *chain; /* [MARKERS] of the prompts */
    _Atomic int *n_bad;
};

static int32_t best(const iso_session *s)
{
    const float *l = iso_session_logits(s);
    int32_t b = 0;
    for (uint32_t i = 1; i < iso_engine_info(iso_session_engine(s))->n_vocab; i++) {
        if (l[i] > l[b]) b = (int32_t)i;
    }
    return b;
}

/* Prompt with a marker, then a greedy answer. */
static bool
play(struct worker *w, unsigned prompt, int32_t answer[ANSWERS], struct iso_digest *chain)
{
    iso_session *s = NULL;
    if (iso_session_new(&s, w->e, 64) != ISO_OK) abort(); /* the others would wait for ever */
    int32_t *ids = tools_ids(w->e, WORDS, 1000);
    for (unsigned i = 0; i < WORDS; i += 5) ids[i] = (int32_t)(100 + prompt);
    /* Prompts run beside each other: nobody reads logits, which the next step would overwrite. */
    bool ok = iso_session_prefill(s, ids, WORDS - 1, NULL) == ISO_OK;
    iso_session_kv_chain(chain, s);
    if (w->phase) meet(w->phase);
    int32_t id = ids[WORDS - 1];
    for (int i = 0; ok && i < ANSWERS; i++) {
        pthread_mutex_lock(w->turn);
        ok = iso_session_decode(s, id) == ISO_OK;
        if (ok) answer[i] = id = best(s);
        pthread_mutex_unlock(w->turn);
    }
    free(ids);
    iso_session_free(s);
    if (w->phase) meet(w->phase);
    return ok;
}

static void *work(void *arg)
{
    struct worker *w = arg;
    for (unsigned r = 0; r < ROUNDS; r++) {
        const unsigned prompt = (w->index + 5 * r) % MARKERS;
        int32_t answer[ANSWERS] = {0};
        struct iso_digest chain = {{0}};
        bool ok = play(w, prompt, answer, &chain);
        ok = ok && memcmp(answer, w->answer[prompt], sizeof(answer)) == 0;
        ok = ok && memcmp(&chain, &w->chain[prompt], sizeof(chain)) == 0;
        if (!ok) atomic_fetch_add(w->n_bad, 1);
    }
    return NULL;
}

/* K2: nobody gets another one's content. */
static void sessions_do_not_mix(void **state)
{
    (void)state;
    static struct worker w[WORKERS];
    static const char *const arch[] = {"llama", "gemma3"};
    for (size_t f = 0; f < ISO_COUNT(arch); f++) {
        iso_engine *e = tools_engine(
            arch[f],
            &(struct iso_engine_options){.n_sessions = WORKERS, .n_ctx = 64, .n_threads = 2});
        pthread_mutex_t turn;
        struct meeting phase = {.n_here = 0};
        (void)pthread_mutex_init(&turn, NULL);
        (void)pthread_mutex_init(&phase.lock, NULL);
        (void)pthread_cond_init(&phase.all_here, NULL);
        _Atomic int n_bad = 0;
        int32_t answer[MARKERS][ANSWERS];
        struct iso_digest chain[MARKERS];
        struct worker one = {.e = e, .turn = &turn};
        for (unsigned p = 0; p < MARKERS; p++) {
            assert_true(play(&one, p, answer[p], &chain[p]));
            assert_true(p == 0 || memcmp(&chain[p], &chain[0], sizeof(chain[0])) != 0);
        }
        for (unsigned i = 0; i < WORKERS; i++) {
            w[i] = (struct worker){.e = e,
                                   .turn = &turn,
                                   .phase = &phase,
                                   .index = i,
                                   .answer = answer,
                                   .chain = chain,
                                   .n_bad = &n_bad};
            assert_int_equal(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
        }
        for (unsigned i = 0; i < WORKERS; i++) (void)pthread_join(w[i].thread, NULL);
        assert_int_equal(n_bad, 0);
        for (uint32_t c = 0; c < ISO_KV_CLASSES; c++) {
            assert_int_equal(e->pool[c].n_free, e->pool[c].n_slots);
        }
        (void)pthread_cond_destroy(&phase.all_here);
        (void)pthread_mutex_destroy(&phase.lock);
        (void)pthread_mutex_destroy(&turn);
        iso_engine_close(e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_prompt_gives_the_same_logits),
        cmocka_unit_test(company_changes_nothing),
        cmocka_unit_test(rows_without_logits_change_nothing),
        cmocka_unit_test(threads_and_instructions_change_nothing),
        cmocka_unit_test(sessions_do_not_mix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
