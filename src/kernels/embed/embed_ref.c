/* SPDX-License-Identifier: MIT
 * embed_ref.c - the embedding in plain C, one value at a time. */
#include "kernels/embed/embed_body.h"

const struct iso_embed_kernels iso_embed_kernels_ref = {
    .name = "ref",
    .embed = embed,
};

void iso_dequantize_row_ref(float *v, enum iso_type type, const uint8_t *row, size_t n)
{
    dequantize_row(v, type, row, n);
}
