/* SPDX-License-Identifier: MIT
 * clock.h - monotonic and wall time. */
#ifndef ISO_BASE_CLOCK_H
#define ISO_BASE_CLOCK_H

#include <stdint.h>

/* Nanoseconds of a clock that never goes back. */
int64_t iso_clock_ns(void);

/* Seconds since 1970 UTC. */
int64_t iso_clock_wall_s(void);

#define ISO_NS_PER_MS 1000000LL
#define ISO_NS_PER_S 1000000000LL

#endif
