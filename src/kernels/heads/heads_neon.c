/* SPDX-License-Identifier: MIT
 * heads_neon.c - the head operations for aarch64. */
#include "kernels/shared/vec_neon.h"

#define HEADS_SUFFIX neon
#include "kernels/heads/heads_body.h"
