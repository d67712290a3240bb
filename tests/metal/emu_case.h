/* SPDX-License-Identifier: MIT
 * emu_case.h - short ways for cmocka tests to open kernels in the Metal emulator (an EMULATION on the CPU).
 */
#ifndef EMU_CASE_H
#define EMU_CASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/metal_gpu.h"

struct emu_case {
    struct iso_metal_gpu *gpu;
    uint64_t seed;
};

/* Flattens files [n] (paths from the project's root) and opens them. checked: each access is checked.
 * A failure fails the test with its message. */
void emu_case_open(struct emu_case *c, const char *const *files, size_t n, uint64_t seed, bool checked);
void emu_case_close(struct emu_case *c);
uint32_t emu_case_pipeline(struct emu_case *c, const char *kernel, const struct iso_metal_constant *constants,
                           size_t n);
/* Zeroed memory of both sides. */
uint32_t emu_case_buffer(struct emu_case *c, size_t len, void **host);

#endif
