/* SPDX-License-Identifier: MIT
 * cpu.h - which instruction sets this machine has, behind a mask that tests set.
 *
 * Every operation lists its variants in a .def file in rising order; the last one whose needs are
 * met is used. Levels are named on the command line: --isa ref|avx2|avx512|vnni|neon.
 */
#ifndef ISO_KERNELS_SHARED_CPU_H
#define ISO_KERNELS_SHARED_CPU_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum iso_cpu_flag {
    ISO_CPU_REF = 0,
    ISO_CPU_AVX2 = 1,   /* AVX2, FMA, F16C */
    ISO_CPU_AVX512 = 2, /* AVX-512 F, BW, VL, DQ */
    ISO_CPU_VNNI = 4,   /* AVX-512 VNNI */
    ISO_CPU_NEON = 8,   /* aarch64 Advanced SIMD */
};

/* Flags of this machine (the operating system saves the registers too). Thread: any. */
unsigned iso_cpu_detect(void);

/* Flags allowed by a level's name: that level and the ones below it. "auto" is everything.
 * Errors: ISO_E_ARG unknown name; ISO_E_UNSUPPORTED this machine lacks it (names what it has). */
enum iso_err iso_cpu_level(unsigned *flags, const char *name) ISO_NODISCARD;

/* Name of the highest level in flags. */
const char *iso_cpu_level_name(unsigned flags);

/* Level i of this build's architecture that this machine can run, lowest first, or NULL. */
const char *iso_cpu_level_at(size_t i);

#endif
