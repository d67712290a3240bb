/* SPDX-License-Identifier: MIT
 * quantize_avx512.c - the operations that make activation codes for AVX-512. */
#include "kernels/quantize/quantize_body.h"

const struct iso_quantize_kernels iso_quantize_kernels_avx512 = {
    .name = "avx512",
    .quantize = quantize,
    .norm_quantize = norm_quantize,
    .gate_quantize = gate_quantize,
    .glu_quantize = glu_quantize,
};
