/* SPDX-License-Identifier: MIT
 * norm.c - picks the variant of RMS norm and residual addition. */
#include "kernels/norm/norm.h"

#include "base/mem.h"
#include "kernels/shared/cpu.h"

#define X(suffix, need) extern const struct iso_norm_kernels iso_norm_kernels_##suffix;
#include "kernels/norm/norm.def"
#undef X

struct variant {
    const struct iso_norm_kernels *kernels;
    unsigned need; /* enum iso_cpu_flag */
};

static const struct variant variants[] = {
#define X(suffix, need) {&iso_norm_kernels_##suffix, need},
#include "kernels/norm/norm.def"
#undef X
};

const struct iso_norm_kernels *iso_norm_select(unsigned flags)
{
    const struct iso_norm_kernels *best = variants[0].kernels;
    for (size_t i = 1; i < ISO_COUNT(variants); i++) {
        if ((flags & variants[i].need) == variants[i].need) best = variants[i].kernels;
    }
    return best;
}
