/* SPDX-License-Identifier: MIT
 * heads_avx2.c - the head operations for AVX2 with FMA. */
#include "kernels/shared/vec_avx2.h"

#define HEADS_SUFFIX avx2
#include "kernels/heads/heads_body.h"
