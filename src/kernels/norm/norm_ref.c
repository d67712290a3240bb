/* SPDX-License-Identifier: MIT
 * norm_ref.c - RMS norm and residual addition in plain C, one value at a time. */
#include "kernels/norm/norm_body.h"

const struct iso_norm_kernels iso_norm_kernels_ref = {
    .name = "ref",
    .norm = norm,
    .residual = residual,
    .residual_norm = residual_norm,
};
