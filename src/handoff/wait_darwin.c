/* SPDX-License-Identifier: MIT
 * wait_darwin.c - macOS has no monotonic condition variables, but relative waits. */
#include "handoff/wait.h"

#include <time.h>

#include "base/clock.h"

void iso_wait_init(pthread_cond_t *cond)
{
    (void)pthread_cond_init(cond, NULL);
}

bool iso_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t at_ns)
{
    const int64_t left = at_ns - iso_clock_ns();
    if (left <= 0) return false;
    const struct timespec span = {.tv_sec = (time_t)(left / ISO_NS_PER_S),
                                  .tv_nsec = (long)(left % ISO_NS_PER_S)};
    return pthread_cond_timedwait_relative_np(cond, lock, &span) == 0;
}
