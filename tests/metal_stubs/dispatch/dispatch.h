/* SPDX-License-Identifier: MIT
 * dispatch.h - the declarations of Apple's libdispatch that metal_gpu_darwin.m uses, for a syntax check. */
#ifndef ISO_STUB_DISPATCH_H
#define ISO_STUB_DISPATCH_H

#include <stdint.h>

@protocol OS_dispatch_semaphore
@end
typedef id<OS_dispatch_semaphore> dispatch_semaphore_t;
typedef uint64_t dispatch_time_t;

#define DISPATCH_TIME_NOW (0ull)
#define NSEC_PER_MSEC 1000000ull

dispatch_semaphore_t dispatch_semaphore_create(intptr_t value);
intptr_t dispatch_semaphore_wait(dispatch_semaphore_t semaphore, dispatch_time_t timeout);
intptr_t dispatch_semaphore_signal(dispatch_semaphore_t semaphore);
dispatch_time_t dispatch_time(dispatch_time_t when, int64_t delta);
void dispatch_release(id object);

#endif
