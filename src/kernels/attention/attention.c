/* SPDX-License-Identifier: MIT
 * attention.c - picks the variant of attention and sizes its scratch. */
#include "kernels/attention/attention.h"

#include "base/mem.h"
#include "kernels/attention/attention_common.h"
#include "kernels/shared/cpu.h"

#define X(suffix, need) extern const struct iso_attention_kernels iso_attention_kernels_##suffix;
#include "kernels/attention/attention.def"
#undef X

struct variant {
    const struct iso_attention_kernels *kernels;
    unsigned need; /* enum iso_cpu_flag */
};

static const struct variant variants[] = {
#define X(suffix, need) {&iso_attention_kernels_##suffix, need},
#include "kernels/attention/attention.def"
#undef X
};

const struct iso_attention_kernels *iso_attention_select(unsigned flags)
{
    const struct iso_attention_kernels *best = variants[0].kernels;
    for (size_t i = 1; i < ISO_COUNT(variants); i++) {
        if ((flags & variants[i].need) == variants[i].need) best = variants[i].kernels;
    }
    return best;
}

size_t iso_attention_scratch_bytes(size_t n_q, uint32_t d)
{
    return scratch_lay(NULL, NULL, n_q, d);
}
