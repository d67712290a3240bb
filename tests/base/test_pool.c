/* SPDX-License-Identifier: MIT
 * test_pool.c - the thread team, rounding modes, and what the operating system says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <fenv.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fpenv.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/pool.h"

static struct iso_pool *new_pool(unsigned n)
{
    struct iso_pool *p = NULL;
    if (iso_pool_new(&p, n) != ISO_OK) fail_msg("%s", iso_err_detail());
    assert_int_equal(iso_pool_threads(p), n);
    return p;
}

struct seen {
    unsigned n_threads;
    _Atomic unsigned calls[ISO_POOL_MAX_THREADS];
    pthread_t who[ISO_POOL_MAX_THREADS];
    uint64_t plain[ISO_POOL_MAX_THREADS]; /* not atomic: visible when the run is over */
};

static void count(void *arg, unsigned thread, unsigned n_threads)
{
    struct seen *s = arg;
    if (n_threads != s->n_threads || thread >= n_threads) abort();
    atomic_fetch_add_explicit(&s->calls[thread], 1, memory_order_relaxed);
    s->who[thread] = pthread_self();
    s->plain[thread]++;
}

/* Many short runs: each member exactly once in each, thread 0 is the caller. */
static void every_member_runs_once(void **state)
{
    (void)state;
    enum { RUNS = 1000 };
    for (unsigned n = 1; n <= 7; n++) {
        struct iso_pool *p = new_pool(n);
        struct seen s = {.n_threads = n};
        for (uint64_t r = 1; r <= RUNS; r++) {
            iso_pool_run(p, count, &s);
            for (unsigned t = 0; t < n; t++) assert_true(s.plain[t] == r);
        }
        for (unsigned t = 0; t < n; t++) {
            assert_int_equal(s.calls[t], RUNS);
            for (unsigned u = 0; u < t; u++) assert_false(pthread_equal(s.who[t], s.who[u]));
        }
        assert_true(pthread_equal(s.who[0], pthread_self()));
        iso_pool_free(p);
    }
    iso_pool_free(NULL);
}

static void a_team_for_one_job_has_all_processors(void **state)
{
    (void)state;
    struct seen s = {.n_threads = ISO_MIN(iso_os_processors(), (unsigned)ISO_POOL_MAX_THREADS)};
    iso_pool_run_once(count, &s);
    for (unsigned i = 0; i < s.n_threads; i++) {
        assert_int_equal(atomic_load(&s.calls[i]), 1);
        assert_int_equal(s.plain[i], 1);
    }
    assert_true(pthread_equal(s.who[0], pthread_self()));
}

/* Runs with pauses, so that members have gone to sleep in between. */
static void sleeping_members_wake_up(void **state)
{
    (void)state;
    struct iso_pool *p = new_pool(4);
    struct seen s = {.n_threads = 4};
    for (int r = 0; r < 60; r++) {
        const struct timespec pause = {0, r % 3 ? 150000 + 7000 * r : 0}; /* about the spin time */
        (void)nanosleep(&pause, NULL);
        iso_pool_run(p, count, &s);
    }
    for (unsigned t = 0; t < 4; t++) assert_int_equal(s.calls[t], 60);
    iso_pool_free(p);
}

struct phases {
    struct iso_pool *pool;
    uint32_t slot[8]; /* written in one phase, read by the next thread in the following one */
    _Atomic unsigned bad;
};

static void pass_on(void *arg, unsigned thread, unsigned n_threads)
{
    struct phases *f = arg;
    for (uint32_t phase = 1; phase <= 200; phase++) {
        f->slot[thread] = phase * 100 + thread;
        iso_pool_barrier(f->pool);
        const unsigned next = (thread + 1) % n_threads;
        if (f->slot[next] != phase * 100 + next) atomic_fetch_add(&f->bad, 1);
        iso_pool_barrier(f->pool);
    }
}

static void the_barrier_separates_phases(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= 7; n += 2) {
        struct phases f = {.pool = new_pool(n)};
        for (int r = 0; r < 3; r++) iso_pool_run(f.pool, pass_on, &f);
        assert_int_equal(f.bad, 0);
        iso_pool_free(f.pool);
    }
}

static void a_split_covers_exactly(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 2, 3, 16, 17, 63, 64, 65, 1000, 49152, (size_t)1 << 40};
    static const size_t grains[] = {1, 2, 16, 48, 64};
    for (size_t i = 0; i < ISO_COUNT(sizes); i++) {
        for (size_t g = 0; g < ISO_COUNT(grains); g++) {
            for (unsigned n = 1; n <= 17; n++) {
                size_t at = 0, most = 0, least = SIZE_MAX;
                for (unsigned t = 0; t < n; t++) {
                    size_t first = 99, last = 99;
                    iso_pool_split(sizes[i], grains[g], t, n, &first, &last);
                    assert_true(first == at && last >= first);
                    assert_true(last == sizes[i] || last % grains[g] == 0);
                    at = last;
                    most = ISO_MAX(most, last - first);
                    least = ISO_MIN(least, last - first);
                }
                assert_true(at == sizes[i]);
                assert_true(most - least <= 2 * grains[g]); /* nearly equal */
            }
        }
    }
}

static double cpu_seconds(void)
{
    struct rusage r;
    assert_int_equal(getrusage(RUSAGE_SELF, &r), 0);
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
           (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec) * 1e-6;
}

static void an_idle_team_sleeps(void **state)
{
    (void)state;
    struct iso_pool *p = new_pool(4);
    struct seen s = {.n_threads = 4};
    iso_pool_run(p, count, &s);
    (void)usleep(50000);
    const double before = cpu_seconds();
    (void)usleep(300000);
    const double used = cpu_seconds() - before;
    print_message("idle for 300 ms: %.1f ms of CPU\n", used * 1e3);
    assert_true(used < 0.03);
    iso_pool_free(p);
}

static void wrong_sizes_are_refused(void **state)
{
    (void)state;
    struct iso_pool *p = NULL;
    assert_int_equal(iso_pool_new(&p, 0), ISO_E_ARG);
    assert_int_equal(iso_pool_new(&p, ISO_POOL_MAX_THREADS + 1), ISO_E_ARG);
    assert_non_null(strstr(iso_err_message(), "257 threads: 1 to 256"));
    assert_null(p);
}

/* --- rounding -----------------------------------------------------------------------------------
 */

static void *check_rounding(void *arg)
{
    struct iso_pool *p = NULL;
    int *result = arg;
    (void)fesetround(result[0]);
    result[1] = (int)iso_fpenv_check();
    result[2] = (int)iso_pool_new(&p, 3); /* new threads inherit the mode */
    iso_pool_free(p);
    return NULL;
}

static void another_rounding_mode_is_found(void **state)
{
    (void)state;
    static const int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    for (size_t i = 0; i < ISO_COUNT(modes); i++) {
        int result[3] = {modes[i], -1, -1};
        pthread_t t;
        assert_int_equal(pthread_create(&t, NULL, check_rounding, result), 0);
        assert_int_equal(pthread_join(t, NULL), 0);
        assert_int_equal(result[1], i ? ISO_E_SELF_CHECK : ISO_OK);
        assert_int_equal(result[2], i ? ISO_E_SELF_CHECK : ISO_OK);
    }
    assert_int_equal(iso_fpenv_check(), ISO_OK);
}

/* --- system -------------------------------------------------------------------------------------
 */

static void the_system_is_described(void **state)
{
    (void)state;
    assert_true(iso_os_processors() >= 1);
    assert_true(iso_os_memory_available() > (64u << 20));
    assert_true(iso_os_peak_memory() > (1u << 20));
    char name[256], small[4];
    iso_os_cpu_name(name, sizeof(name));
    assert_true(strlen(name) > 0 && strchr(name, '\n') == NULL);
    iso_os_cpu_name(small, sizeof(small));
    assert_int_equal(strlen(small), ISO_MIN(strlen(name), (size_t)3));
    const int64_t a = iso_clock_ns();
    (void)usleep(2000);
    const int64_t b = iso_clock_ns();
    assert_true(b - a >= 2 * ISO_NS_PER_MS && b - a < 10 * ISO_NS_PER_S);
    assert_true(iso_clock_wall_s() > 1700000000);
}

static void the_code_has_a_fingerprint(void **state)
{
    (void)state;
    struct iso_digest d[2], empty;
    struct iso_hasher *h = iso_hasher_new();
    for (int i = 0; i < 2; i++) {
        assert_int_equal(iso_os_hash_code(h), ISO_OK);
        iso_hasher_final(h, &d[i]);
    }
    iso_hasher_final(h, &empty);
    iso_hasher_free(h);
    assert_memory_equal(&d[0], &d[1], sizeof(d[0]));
    assert_memory_not_equal(&d[0], &empty, sizeof(empty));
}

static void log_lines_are_whole(void **state)
{
    (void)state;
    enum iso_log_level level = ISO_LOG_ERROR;
    assert_int_equal(iso_log_parse_level(&level, "trace"), ISO_OK);
    assert_int_equal(level, ISO_LOG_TRACE);
    assert_int_equal(iso_log_parse_level(&level, "loud"), ISO_E_ARG);
    int fd[2];
    assert_int_equal(pipe(fd), 0);
    (void)fflush(stderr);
    const int saved = dup(STDERR_FILENO);
    assert_true(dup2(fd[1], STDERR_FILENO) >= 0);
    static char text[3000];
    memset(text, 'y', sizeof(text) - 1);
    iso_log(ISO_LOG_INFO, "quiet", "n=%d", 1); /* above the default level */
    iso_log(ISO_LOG_WARN, "base", "n=%d", 2);
    iso_log(ISO_LOG_ERROR, "base", "%s", text);
    assert_true(dup2(saved, STDERR_FILENO) >= 0);
    char got[4096];
    const ssize_t n = read(fd[0], got, sizeof(got) - 1);
    (void)close(fd[0]);
    (void)close(fd[1]);
    (void)close(saved);
    assert_true(n > 0);
    got[n] = '\0';
    static const char first[] = "warn base n=2\nerror base yyy";
    assert_memory_equal(got, first, sizeof(first) - 1);
    assert_int_equal(got[n - 1], '\n');
    assert_ptr_equal(strchr(strchr(got, '\n') + 1, '\n'), got + n - 1); /* a cut line is a line */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_member_runs_once),
        cmocka_unit_test(a_team_for_one_job_has_all_processors),
        cmocka_unit_test(sleeping_members_wake_up),
        cmocka_unit_test(the_barrier_separates_phases),
        cmocka_unit_test(a_split_covers_exactly),
        cmocka_unit_test(an_idle_team_sleeps),
        cmocka_unit_test(wrong_sizes_are_refused),
        cmocka_unit_test(another_rounding_mode_is_found),
        cmocka_unit_test(the_system_is_described),
        cmocka_unit_test(the_code_has_a_fingerprint),
        cmocka_unit_test(log_lines_are_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
