/* SPDX-License-Identifier: MIT
 * heads_avx512.c - the head operations for AVX-512. */
#include "kernels/shared/vec_avx512.h"

#define HEADS_SUFFIX avx512
#include "kernels/heads/heads_body.h"
