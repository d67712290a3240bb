/* SPDX-License-Identifier: MIT
 * embed_avx2.c - the embedding for AVX2 with FMA. */
#include "kernels/embed/embed_body.h"

const struct iso_embed_kernels iso_embed_kernels_avx2 = {
    .name = "avx2",
    .embed = embed,
};
