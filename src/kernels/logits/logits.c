/* SPDX-License-Identifier: MIT
 * logits.c - picks the variant of what follows the output product. */
#include "kernels/logits/logits.h"

#include "base/mem.h"
#include "kernels/shared/cpu.h"

#define X(suffix, need) extern const struct iso_logits_kernels iso_logits_kernels_##suffix;
#include "kernels/logits/logits.def"
#undef X

struct variant {
    const struct iso_logits_kernels *kernels;
    unsigned need; /* enum iso_cpu_flag */
};

static const struct variant variants[] = {
#define X(suffix, need) {&iso_logits_kernels_##suffix, need},
#include "kernels/logits/logits.def"
#undef X
};

const struct iso_logits_kernels *iso_logits_select(unsigned flags)
{
    const struct iso_logits_kernels *best = variants[0].kernels;
    for (size_t i = 1; i < ISO_COUNT(variants); i++) {
        if ((flags & variants[i].need) == variants[i].need) best = variants[i].kernels;
    }
    return best;
}
