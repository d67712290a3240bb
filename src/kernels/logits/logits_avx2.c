/* SPDX-License-Identifier: MIT
 * logits_avx2.c - what follows the output product for AVX2 with FMA. */
#include "kernels/logits/logits_body.h"

const struct iso_logits_kernels iso_logits_kernels_avx2 = {
    .name = "avx2",
    .logits = logits,
    .argmax = argmax,
};
