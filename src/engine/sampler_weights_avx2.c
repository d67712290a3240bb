/* SPDX-License-Identifier: MIT
 * sampler_weights_avx2.c - the sampler's passes over a vocabulary for AVX2 with FMA. */
#include "engine/sampler_weights_body.h"

const struct iso_sampler_kernels iso_sampler_kernels_avx2 = {
    .name = "avx2",
    .max = vocabulary_max,
    .weights = vocabulary_weights,
};
