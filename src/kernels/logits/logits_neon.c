/* SPDX-License-Identifier: MIT
 * logits_neon.c - what follows the output product for aarch64. */
#include "kernels/logits/logits_body.h"

const struct iso_logits_kernels iso_logits_kernels_neon = {
    .name = "neon",
    .logits = logits,
    .argmax = argmax,
};
