/* SPDX-License-Identifier: MIT
 * embed_avx512.c - the embedding for AVX-512. */
#include "kernels/embed/embed_body.h"

const struct iso_embed_kernels iso_embed_kernels_avx512 = {
    .name = "avx512",
    .embed = embed,
};
