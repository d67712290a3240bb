/* SPDX-License-Identifier: MIT
 * pool.h - a fixed team of threads that runs one function at a time.
 *
 * Lock order of the project (outermost first): scheduler, session table, page pool, thread pool,
 * log. A lock is never taken while a later one is held.
 */
#ifndef ISO_BASE_POOL_H
#define ISO_BASE_POOL_H

#include <stddef.h>

#include "base/err.h"

#define ISO_POOL_MAX_THREADS 256

/* Work of one member: thread is 0 .. n_threads-1; 0 is the caller of iso_pool_run(). */
typedef void iso_pool_fn(void *arg, unsigned thread, unsigned n_threads);

struct iso_pool; /* one caller at a time */

/* n_threads 1 .. ISO_POOL_MAX_THREADS members, the caller included.
 * Owner: *out is owned by the caller, free with iso_pool_free().
 * Errors: ISO_E_ARG; ISO_E_IO when a thread cannot start; ISO_E_SELF_CHECK by iso_fpenv_check(). */
enum iso_err iso_pool_new(struct iso_pool **out, unsigned n_threads) ISO_NODISCARD;
void iso_pool_free(struct iso_pool *pool);
unsigned iso_pool_threads(const struct iso_pool *pool);

/* Runs fn on every member and returns when all have finished; what they wrote is visible then. */
void iso_pool_run(struct iso_pool *pool, iso_pool_fn *fn, void *arg);

/* The same for one job, on as many members as this process has processors; they are gone on return. The
 * caller works alone where threads cannot start. */
void iso_pool_run_once(iso_pool_fn *fn, void *arg);

/* Waits inside fn until every member is there. The same members must call it equally often. */
void iso_pool_barrier(struct iso_pool *pool);

/* Splits n items into nearly equal runs in steps of grain: [*first, *last) for this thread. */
void iso_pool_split(size_t n, size_t grain, unsigned thread, unsigned n_threads, size_t *first,
                    size_t *last);

#endif
