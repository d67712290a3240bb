/* SPDX-License-Identifier: MIT
 * embed_neon.c - the embedding for aarch64. */
#include "kernels/embed/embed_body.h"

const struct iso_embed_kernels iso_embed_kernels_neon = {
    .name = "neon",
    .embed = embed,
};
