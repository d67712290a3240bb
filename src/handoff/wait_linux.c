/* SPDX-License-Identifier: MIT
 * wait_linux.c - condition variables on the monotonic clock. */
#include "handoff/wait.h"

#include <time.h>

#include "base/clock.h"

void iso_wait_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(cond, &attr);
    (void)pthread_condattr_destroy(&attr);
}

bool iso_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t at_ns)
{
    const struct timespec at = {.tv_sec = (time_t)(at_ns / ISO_NS_PER_S),
                                .tv_nsec = (long)(at_ns % ISO_NS_PER_S)};
    return pthread_cond_timedwait(cond, lock, &at) == 0;
}
