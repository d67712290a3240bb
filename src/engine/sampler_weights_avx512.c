/* SPDX-License-Identifier: MIT
 * sampler_weights_avx512.c - the sampler's passes over a vocabulary for AVX-512. */
#include "engine/sampler_weights_body.h"

const struct iso_sampler_kernels iso_sampler_kernels_avx512 = {
    .name = "avx512",
    .max = vocabulary_max,
    .weights = vocabulary_weights,
};
