/* SPDX-License-Identifier: MIT
 * embed.c - picks the variant of the embedding. */
#include "kernels/embed/embed.h"

#include "base/mem.h"
#include "kernels/shared/cpu.h"

#define X(suffix, need) extern const struct iso_embed_kernels iso_embed_kernels_##suffix;
#include "kernels/embed/embed.def"
#undef X

struct variant {
    const struct iso_embed_kernels *kernels;
    unsigned need; /* enum iso_cpu_flag */
};

static const struct variant variants[] = {
#define X(suffix, need) {&iso_embed_kernels_##suffix, need},
#include "kernels/embed/embed.def"
#undef X
};

const struct iso_embed_kernels *iso_embed_select(unsigned flags)
{
    const struct iso_embed_kernels *best = variants[0].kernels;
    for (size_t i = 1; i < ISO_COUNT(variants); i++) {
        if ((flags & variants[i].need) == variants[i].need) best = variants[i].kernels;
    }
    return best;
}
