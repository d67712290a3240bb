/* SPDX-License-Identifier: MIT
 * quantize_neon.c - the operations that make activation codes for aarch64. */
#include "kernels/quantize/quantize_body.h"

const struct iso_quantize_kernels iso_quantize_kernels_neon = {
    .name = "neon",
    .quantize = quantize,
    .norm_quantize = norm_quantize,
    .gate_quantize = gate_quantize,
    .glu_quantize = glu_quantize,
};
