/* SPDX-License-Identifier: MIT
 * pool.c - the thread team: spin briefly, then sleep.
 *
 * A layer is a dozen short operations, so a member that went to sleep after each would cost more
 * than the work. Members spin for SPIN_NS and then wait on a condition variable, which keeps an
 * idle process idle and two processes on one machine usable.
 */
#include "base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/fpenv.h"
#include "base/mem.h"
#include "base/os.h"

#define SPIN_NS 100000 /* 0.1 ms: about ten operations of a small model */

struct iso_pool {
    unsigned n_threads;
    pthread_t *threads; /* [n_threads - 1] */
    unsigned n_started;
    iso_pool_fn *fn;
    void *arg;
    _Atomic unsigned generation; /* release by the caller, acquire by members: fn and arg */
    _Atomic unsigned n_running;  /* release by members, acquire by the caller: their results */
    _Atomic unsigned barrier_in;
    _Atomic unsigned barrier_phase;
    _Atomic bool quit;
    _Atomic unsigned n_asleep;
    pthread_mutex_t lock;
    pthread_cond_t wake;
};

struct member {
    struct iso_pool *pool;
    unsigned thread;
};

static inline void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

/* Spins until *word != old, at most SPIN_NS; says whether it changed. */
static bool spin_until_changed(const _Atomic unsigned *word, unsigned old)
{
    const int64_t end = iso_clock_ns() + SPIN_NS;
    for (unsigned i = 0;; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != old) return true;
        cpu_relax();
        if ((i & 255) == 255) {
            if (iso_clock_ns() > end) return false;
            sched_yield();
        }
    }
}

static void wait_for_work(struct iso_pool *pool, unsigned seen)
{
    if (spin_until_changed(&pool->generation, seen)) return;
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add_explicit(&pool->n_asleep, 1, memory_order_seq_cst);
    while (atomic_load_explicit(&pool->generation, memory_order_seq_cst) == seen) {
        pthread_cond_wait(&pool->wake, &pool->lock);
    }
    atomic_fetch_sub_explicit(&pool->n_asleep, 1, memory_order_relaxed);
    pthread_mutex_unlock(&pool->lock);
}

static void *member_main(void *p)
{
    const struct member me = *(struct member *)p;
    free(p);
    struct iso_pool *pool = me.pool;
    unsigned seen = 0;
    for (;;) {
        wait_for_work(pool, seen);
        seen++;
        if (atomic_load_explicit(&pool->quit, memory_order_acquire)) return NULL;
        pool->fn(pool->arg, me.thread, pool->n_threads);
        atomic_fetch_sub_explicit(&pool->n_running, 1, memory_order_release);
    }
}

static void publish(struct iso_pool *pool)
{
    atomic_fetch_add_explicit(&pool->generation, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&pool->n_asleep, memory_order_seq_cst) > 0) {
        pthread_mutex_lock(&pool->lock);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->lock);
    }
}

void iso_pool_run(struct iso_pool *pool, iso_pool_fn *fn, void *arg)
{
    if (pool->n_threads == 1) {
        fn(arg, 0, 1);
        return;
    }
    pool->fn = fn;
    pool->arg = arg;
    atomic_store_explicit(&pool->n_running, pool->n_threads - 1, memory_order_relaxed);
    publish(pool);
    fn(arg, 0, pool->n_threads);
    for (unsigned i = 0; atomic_load_explicit(&pool->n_running, memory_order_acquire) > 0; i++) {
        cpu_relax();
        if ((i & 1023) == 1023) sched_yield();
    }
}

void iso_pool_run_once(iso_pool_fn *fn, void *arg)
{
    struct iso_pool *pool = NULL;
    const unsigned n = ISO_MIN(iso_os_processors(), (unsigned)ISO_POOL_MAX_THREADS);
    if (iso_pool_new(&pool, n) != ISO_OK) {
        fn(arg, 0, 1);
        return;
    }
    iso_pool_run(pool, fn, arg);
    iso_pool_free(pool);
}

void iso_pool_barrier(struct iso_pool *pool)
{
    if (pool->n_threads == 1) return;
    const unsigned phase = atomic_load_explicit(&pool->barrier_phase, memory_order_acquire);
    if (atomic_fetch_add_explicit(&pool->barrier_in, 1, memory_order_acq_rel) + 1 ==
        pool->n_threads) {
        atomic_store_explicit(&pool->barrier_in, 0, memory_order_relaxed);
        atomic_fetch_add_explicit(&pool->barrier_phase, 1, memory_order_release);
        return;
    }
    for (unsigned i = 0; atomic_load_explicit(&pool->barrier_phase, memory_order_acquire) == phase;
         i++) {
        cpu_relax();
        if ((i & 1023) == 1023) sched_yield();
    }
}

void iso_pool_split(size_t n, size_t grain, unsigned thread, unsigned n_threads, size_t *first,
                    size_t *last)
{
    const size_t units = (n + grain - 1) / grain;
    const size_t lo = units * thread / n_threads * grain;
    const size_t hi = units * (thread + 1) / n_threads * grain;
    *first = ISO_MIN(lo, n);
    *last = ISO_MIN(hi, n);
}

unsigned iso_pool_threads(const struct iso_pool *pool)
{
    return pool->n_threads;
}

static void check_member(void *arg, unsigned thread, unsigned n_threads)
{
    (void)thread;
    (void)n_threads;
    _Atomic unsigned *n_bad = arg; /* relaxed: read when the run is over */
    if (iso_fpenv_check() != ISO_OK) atomic_fetch_add_explicit(n_bad, 1, memory_order_relaxed);
}

enum iso_err iso_pool_new(struct iso_pool **out, unsigned n_threads)
{
    if (n_threads < 1 || n_threads > ISO_POOL_MAX_THREADS) {
        ISO_FAIL(ISO_E_ARG, "%u threads: 1 to %d", n_threads, ISO_POOL_MAX_THREADS);
    }
    ISO_TRY(iso_fpenv_check());
    struct iso_pool *pool = iso_xalloc(1, sizeof(*pool));
    pool->n_threads = n_threads;
    pool->threads = iso_xalloc(n_threads, sizeof(*pool->threads));
    (void)pthread_mutex_init(&pool->lock, NULL);
    (void)pthread_cond_init(&pool->wake, NULL);
    for (unsigned i = 1; i < n_threads; i++) {
        struct member *m = iso_xalloc(1, sizeof(*m));
        *m = (struct member){pool, i};
        if (pthread_create(&pool->threads[i - 1], NULL, member_main, m) != 0) {
            free(m);
            iso_pool_free(pool);
            ISO_FAIL(ISO_E_IO, "thread %u of %u did not start", i + 1, n_threads);
        }
        pool->n_started++;
    }
    _Atomic unsigned n_bad = 0;
    iso_pool_run(pool, check_member, &n_bad);
    const unsigned bad = atomic_load_explicit(&n_bad, memory_order_relaxed);
    if (bad > 0) {
        iso_pool_free(pool);
        ISO_FAIL(ISO_E_SELF_CHECK, "%u of %u threads do not round to nearest", bad, n_threads);
    }
    *out = pool;
    return ISO_OK;
}

void iso_pool_free(struct iso_pool *pool)
{
    if (pool == NULL) return;
    atomic_store_explicit(&pool->quit, true, memory_order_release);
    publish(pool);
    for (unsigned i = 0; i < pool->n_started; i++) (void)pthread_join(pool->threads[i], NULL);
    (void)pthread_cond_destroy(&pool->wake);
    (void)pthread_mutex_destroy(&pool->lock);
    free(pool->threads);
    free(pool);
}
