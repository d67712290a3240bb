/* SPDX-License-Identifier: MIT
 * logits_ref.c - what follows the output product in plain C, one value at a time. */
#include "kernels/logits/logits_body.h"

const struct iso_logits_kernels iso_logits_kernels_ref = {
    .name = "ref",
    .logits = logits,
    .argmax = argmax,
};
