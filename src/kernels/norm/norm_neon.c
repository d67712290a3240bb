/* SPDX-License-Identifier: MIT
 * norm_neon.c - RMS norm and residual addition for aarch64. */
#include "kernels/norm/norm_body.h"

const struct iso_norm_kernels iso_norm_kernels_neon = {
    .name = "neon",
    .norm = norm,
    .residual = residual,
    .residual_norm = residual_norm,
};
