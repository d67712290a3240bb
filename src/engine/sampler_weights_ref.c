/* SPDX-License-Identifier: MIT
 * sampler_weights_ref.c - the sampler's passes over a vocabulary in plain C. */
#include "engine/sampler_weights_body.h"

const struct iso_sampler_kernels iso_sampler_kernels_ref = {
    .name = "ref",
    .max = vocabulary_max,
    .weights = vocabulary_weights,
};
