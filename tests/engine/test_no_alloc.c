/* SPDX-License-Identifier: MIT
 * test_no_alloc.c - nothing allocates between two tokens: every malloc of the process is counted.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/sampler.h"
#include "engine/tools.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTED 0 /* the sanitizer has its own malloc in front of this one */
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define COUNTED 0
#endif
#endif
#ifndef COUNTED
#define COUNTED 1
#endif

static _Atomic unsigned long g_calls;

#if COUNTED && defined(__GLIBC__)
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void __libc_free(void *p);

void *malloc(size_t n)
{
    atomic_fetch_add_explicit(&g_calls, 1, memory_order_relaxed);
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    atomic_fetch_add_explicit(&g_calls, 1, memory_order_relaxed);
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    atomic_fetch_add_explicit(&g_calls, 1, memory_order_relaxed);
    return __libc_realloc(p, n);
}

void free(void *p)
{
    if (p != NULL) atomic_fetch_add_explicit(&g_calls, 1, memory_order_relaxed);
    __libc_free(p);
}
#endif

static void counting_works(void **state)
{
    (void)state;
#if COUNTED && defined(__GLIBC__)
    const unsigned long before = g_calls;
    free(iso_xalloc(1, 1));
    assert_int_equal(g_calls - before, 2);
#else
    skip();
#endif
}

/* Prompt chunks, decoding, expiring window pages, rewinding and picking. */
static void nothing_allocates_between_two_tokens(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        iso_engine *e = tools_engine(tools_family[f],
                                     &(struct iso_engine_options){.n_threads = 2, .n_sessions = 2,
                                                                  .n_batch = 64, .n_checkpoints = 2});
        iso_session *s = tools_session(e);
        int32_t *ids = tools_ids(e, 600, 1);
        struct iso_sampler_params p = ISO_SAMPLER_PLAIN;
        p.top_p = 0.9f;
        p.repetition = 1.1f;
        struct iso_sampler *sampler = NULL;
        tools_ok(iso_sampler_new(&sampler, &p, e->info.n_vocab));
        const unsigned long before = g_calls;
        tools_ok(iso_session_prefill(s, ids, 600, NULL));
        for (int i = 0; i < 50; i++) {
            const int32_t id =
                iso_sampler_pick(sampler, iso_session_logits(s), iso_session_position(s));
            iso_sampler_seen(sampler, id);
            tools_ok(iso_session_decode(s, id));
            if (i % 16 == 7) iso_session_checkpoint(s);
        }
        if (e->info.window > 0) assert_true(s->n_checkpoints == 2);
        (void)iso_session_rewind(s, 640);
        tools_ok(iso_session_decode(s, 7));
        assert_int_equal(g_calls - before, 0);
        iso_sampler_free(sampler);
        free(ids);
        iso_session_free(s);
        iso_engine_close(e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counting_works),
        cmocka_unit_test(nothing_allocates_between_two_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
