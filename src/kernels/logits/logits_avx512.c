/* SPDX-License-Identifier: MIT
 * logits_avx512.c - what follows the output product for AVX-512. */
#include "kernels/logits/logits_body.h"

const struct iso_logits_kernels iso_logits_kernels_avx512 = {
    .name = "avx512",
    .logits = logits,
    .argmax = argmax,
};
