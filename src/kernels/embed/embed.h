/* SPDX-License-Identifier: MIT
 * embed.h - the contract of the embedding: one table row as f32.
 *
 * Variants are listed in embed.def.
 * Source: the specification of exact-1, sections 4 (element form) and 11.
 */
#ifndef ISO_KERNELS_EMBED_H
#define ISO_KERNELS_EMBED_H

#include <stddef.h>
#include <stdint.h>

#include "format/types.h"

/* x [n] = g(v * scale), or g(v) when has_scale is 0, for the n values v of a row in file layout. */
typedef void iso_embed_fn(float *x, enum iso_type type, const uint8_t *row, float scale,
                          int has_scale, size_t n);

struct iso_embed_kernels {
    const char *name;
    iso_embed_fn *embed;
};

const struct iso_embed_kernels *iso_embed_select(unsigned flags);

/* The values of a row without scale and guard (section 4, "one element"); the reference only. */
void iso_dequantize_row_ref(float *v, enum iso_type type, const uint8_t *row, size_t n);

#endif
