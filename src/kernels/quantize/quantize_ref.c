/* SPDX-License-Identifier: MIT
 * quantize_ref.c - the operations that make activation codes in plain C, one value at a time. */
#include "kernels/quantize/quantize_body.h"

const struct iso_quantize_kernels iso_quantize_kernels_ref = {
    .name = "ref",
    .quantize = quantize,
    .norm_quantize = norm_quantize,
    .gate_quantize = gate_quantize,
    .glu_quantize = glu_quantize,
};
