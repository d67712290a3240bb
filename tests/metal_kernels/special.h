/* SPDX-License-Identifier: MIT
 * special.h - one Metal GPU for tests of kernels with function constants: guarded places, chains of dispatches.
 *
 * A place has guard bytes in front of it and the end of its buffer behind it. Failures go through cmocka.
 */
#ifndef ISO_TESTS_METAL_KERNELS_SPECIAL_H
#define ISO_TESTS_METAL_KERNELS_SPECIAL_H

#include <stddef.h>
#include <stdint.h>

#include "device/metal_gpu.h"

/* Opens the GPU with the program's kernels; once. */
void special_open(void);
void special_close(void);

/* len bytes of GPU memory; buffer 0 is no place. */
struct place {
    uint32_t buffer;
    size_t lead, len;
    void *host; /* the bytes */
};

/* from NULL: bytes of 0xA5. lead is a multiple of 16 that changes from call to call. */
struct place place_new(const void *from, size_t len);
/* Verifies the guard bytes and frees. */
void place_free(struct place *p);

#define SPECIAL_BOOL(i, v) {.index = (i), .type = ISO_METAL_BOOL, .value = (v) ? 1u : 0u}
#define SPECIAL_U32(i, v) {.index = (i), .type = ISO_METAL_U32, .value = (v)}

/* A kernel specialised by constants [n]; made once for equal constants. */
uint32_t special_kernel(const char *name, const struct iso_metal_constant *constants, size_t n);

/* Records one dispatch behind a barrier on all of its places; special_wait() runs what was recorded. */
struct special_launch {
    uint32_t pipeline, groups[3], threads, bytes;
    const void *args;
    size_t args_len;
};
void special_record(const struct special_launch *l, const struct place *bind, size_t n);
void special_wait(void);

#endif
