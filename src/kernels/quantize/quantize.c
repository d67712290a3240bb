/* SPDX-License-Identifier: MIT
 * quantize.c - picks the variant of the operations that make activation codes. */
#include "kernels/quantize/quantize.h"

#include "base/mem.h"
#include "kernels/shared/cpu.h"

#define X(suffix, need) extern const struct iso_quantize_kernels iso_quantize_kernels_##suffix;
#include "kernels/quantize/quantize.def"
#undef X

struct variant {
    const struct iso_quantize_kernels *kernels;
    unsigned need; /* enum iso_cpu_flag */
};

static const struct variant variants[] = {
#define X(suffix, need) {&iso_quantize_kernels_##suffix, need},
#include "kernels/quantize/quantize.def"
#undef X
};

const struct iso_quantize_kernels *iso_quantize_select(unsigned flags)
{
    const struct iso_quantize_kernels *best = variants[0].kernels;
    for (size_t i = 1; i < ISO_COUNT(variants); i++) {
        if ((flags & variants[i].need) == variants[i].need) best = variants[i].kernels;
    }
    return best;
}
