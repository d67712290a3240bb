/* SPDX-License-Identifier: MIT
 * sampler_weights_neon.c - the sampler's passes over a vocabulary for aarch64. */
#include "engine/sampler_weights_body.h"

const struct iso_sampler_kernels iso_sampler_kernels_neon = {
    .name = "neon",
    .max = vocabulary_max,
    .weights = vocabulary_weights,
};
