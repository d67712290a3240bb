/* SPDX-License-Identifier: MIT
 * quantize_avx2.c - the operations that make activation codes for AVX2 with FMA. */
#include "kernels/quantize/quantize_body.h"

const struct iso_quantize_kernels iso_quantize_kernels_avx2 = {
    .name = "avx2",
    .quantize = quantize,
    .norm_quantize = norm_quantize,
    .gate_quantize = gate_quantize,
    .glu_quantize = glu_quantize,
};
