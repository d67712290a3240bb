/* SPDX-License-Identifier: MIT
 * heads_ref.c - the plain form of the head operations, never vectorised. */
#include "kernels/shared/vec_ref.h"

#define HEADS_SUFFIX ref
#include "kernels/heads/heads_body.h"
