/* SPDX-License-Identifier: MIT
 * gpu.h - one Metal GPU for tests of kernels: function constants, guarded places, chains of dispatches.
 *
 * A place has guard bytes in front of it and the end of its buffer behind it. Failures go through cmocka.
 */
#ifndef ISO_TESTS_METAL_KERNELS_GPU_H
#define ISO_TESTS_METAL_KERNELS_GPU_H

#include <stddef.h>
#include <stdint.h>

#include "device/metal_gpu.h"

/* Fixtures of cmocka: opens the GPU with the program's kernels and says whether it is emulated; closes it. */
int gpu_open(void **state);
int gpu_close(void **state);

/* len bytes of GPU memory; buffer 0 is no place. */
struct place {
    uint32_t buffer;
    size_t lead, len;
    void *host; /* the bytes */
};

/* from NULL: bytes of 0xA5. lead is a multiple of 16 that changes from call to call. */
struct place place_new(const void *from, size_t len);
/* The same at a lead of the caller's choice, a multiple of 4. */
struct place place_at(const void *from, size_t len, size_t lead);
/* Verifies the guard bytes and frees. */
void place_free(struct place *p);

#define GPU_BOOL(i, v) {.index = (i), .type = ISO_METAL_BOOL, .value = (v) ? 1u : 0u}
#define GPU_U32(i, v) {.index = (i), .type = ISO_METAL_U32, .value = (v)}

/* A kernel specialised by constants [n]; made once for equal constants. */
uint32_t gpu_kernel(const char *name, const struct iso_metal_constant *constants, size_t n);

/* The kernel without constants that is called prefix, then name. */
uint32_t gpu_kernel_of(const char *prefix, const char *name);

/* Records one dispatch behind a barrier on all of its places; gpu_wait() runs what was recorded. */
struct gpu_launch {
    uint32_t pipeline, groups[3], threads, bytes;
    const void *args;
    size_t args_len;
};
void gpu_record(const struct gpu_launch *l, const struct place *bind, size_t n);
void gpu_wait(void);
/* One dispatch alone. */
void gpu_run(const struct gpu_launch *l, const struct place *bind, size_t n);

#endif
