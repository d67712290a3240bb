/* SPDX-License-Identifier: MIT
 * wait.h - condition variables that wait until a time of iso_clock_ns(). */
#ifndef ISO_HANDOFF_WAIT_H
#define ISO_HANDOFF_WAIT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Free with pthread_cond_destroy(). */
void iso_wait_init(pthread_cond_t *cond);

/* Waits for a signal or until at_ns; false when the time has passed. Wakes without a reason now and
 * then, as condition variables do. Needs: lock is held. */
bool iso_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t at_ns);

#endif
