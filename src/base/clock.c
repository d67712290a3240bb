/* SPDX-License-Identifier: MIT
 * clock.c - POSIX clocks. */
#include "base/clock.h"

#include <time.h>

int64_t iso_clock_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * ISO_NS_PER_S + t.tv_nsec;
}

int64_t iso_clock_wall_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec;
}
