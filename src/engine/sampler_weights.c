/* SPDX-License-Identifier: MIT
 * sampler_weights.c - picks the variant of the sampler's passes. */
#include "engine/sampler_weights.h"

#define X(suffix, have) extern const struct iso_sampler_kernels iso_sampler_kernels_##suffix;
#include "engine/sampler_weights.def"
#undef X

const struct iso_sampler_kernels *iso_sampler_kernels_at(size_t i)
{
    size_t n = 0;
#define X(suffix, have)                                                                            \
    if ((have) && n++ == i) return &iso_sampler_kernels_##suffix;
#include "engine/sampler_weights.def"
#undef X
    return NULL;
}

const struct iso_sampler_kernels *iso_sampler_kernels_best(void)
{
    const struct iso_sampler_kernels *best = iso_sampler_kernels_at(0);
    for (size_t i = 1; iso_sampler_kernels_at(i); i++) best = iso_sampler_kernels_at(i);
    return best;
}
