/* SPDX-License-Identifier: MIT
 * norm_avx2.c - RMS norm and residual addition for AVX2 with FMA. */
#include "kernels/norm/norm_body.h"

const struct iso_norm_kernels iso_norm_kernels_avx2 = {
    .name = "avx2",
    .norm = norm,
    .residual = residual,
    .residual_norm = residual_norm,
};
