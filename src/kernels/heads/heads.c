/* SPDX-License-Identifier: MIT
 * heads.c - picks the variant of the head operations. */
#include "kernels/heads/heads.h"

#include "base/mem.h"
#include "kernels/shared/cpu.h"

#define X(suffix, need) extern const struct iso_heads_kernels iso_heads_kernels_##suffix;
#include "kernels/heads/heads.def"
#undef X

struct variant {
    const struct iso_heads_kernels *kernels;
    unsigned need; /* enum iso_cpu_flag */
};

static const struct variant variants[] = {
#define X(suffix, need) {&iso_heads_kernels_##suffix, need},
#include "kernels/heads/heads.def"
#undef X
};

const struct iso_heads_kernels *iso_heads_select(unsigned flags)
{
    const struct iso_heads_kernels *best = variants[0].kernels;
    for (size_t i = 1; i < ISO_COUNT(variants); i++) {
        if ((flags & variants[i].need) == variants[i].need) best = variants[i].kernels;
    }
    return best;
}
