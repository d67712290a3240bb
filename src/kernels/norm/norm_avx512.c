/* SPDX-License-Identifier: MIT
 * norm_avx512.c - RMS norm and residual addition for AVX-512. */
#include "kernels/norm/norm_body.h"

const struct iso_norm_kernels iso_norm_kernels_avx512 = {
    .name = "avx512",
    .norm = norm,
    .residual = residual,
    .residual_norm = residual_norm,
};
