/* SPDX-License-Identifier: MIT
 * cpu.c - reads CPU flags and names levels. */
#include "kernels/shared/cpu.h"

#include <string.h>

#include "base/mem.h"

struct level {
    const char *name;
    unsigned flag;
};

/* In rising order; a level allows its own flag and those above it in this table. */
static const struct level levels[] = {
    {"ref", ISO_CPU_REF},
#if defined(__x86_64__)
    {"avx2", ISO_CPU_AVX2},
    {"avx512", ISO_CPU_AVX512},
    {"vnni", ISO_CPU_VNNI},
#elif defined(__aarch64__)
    {"neon", ISO_CPU_NEON},
#endif
};

unsigned iso_cpu_detect(void)
{
#if defined(__x86_64__)
    unsigned flags = ISO_CPU_REF;
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) flags |= ISO_CPU_AVX2;
    if ((flags & ISO_CPU_AVX2) && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq")) {
        flags |= ISO_CPU_AVX512;
    }
    if ((flags & ISO_CPU_AVX512) && __builtin_cpu_supports("avx512vnni")) flags |= ISO_CPU_VNNI;
    return flags;
#elif defined(__aarch64__)
    return ISO_CPU_NEON; /* part of the base architecture */
#else
    return ISO_CPU_REF;
#endif
}

enum iso_err iso_cpu_level(unsigned *flags, const char *name)
{
    const unsigned have = iso_cpu_detect();
    if (strcmp(name, "auto") == 0) {
        *flags = have;
        return ISO_OK;
    }
    unsigned allowed = 0;
    for (size_t i = 0; i < ISO_COUNT(levels); i++) {
        allowed |= levels[i].flag;
        if (strcmp(levels[i].name, name) != 0) continue;
        if ((levels[i].flag & have) != levels[i].flag) {
            ISO_FAIL(ISO_E_UNSUPPORTED, "this machine has no %s (its highest level is %s)", name,
                     iso_cpu_level_name(have));
        }
        *flags = allowed & have;
        return ISO_OK;
    }
    ISO_FAIL(ISO_E_ARG, "instruction set '%s': auto, ref, avx2, avx512, vnni or neon", name);
}

const char *iso_cpu_level_name(unsigned flags)
{
    const char *name = levels[0].name;
    for (size_t i = 1; i < ISO_COUNT(levels); i++) {
        if (flags & levels[i].flag) name = levels[i].name;
    }
    return name;
}

const char *iso_cpu_level_at(size_t i)
{
    if (i >= ISO_COUNT(levels)) return NULL;
    const unsigned flag = levels[i].flag;
    return (iso_cpu_detect() & flag) == flag ? levels[i].name : NULL;
}
