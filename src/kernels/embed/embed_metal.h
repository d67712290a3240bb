/* SPDX-License-Identifier: MIT
 * embed_metal.h - how a host starts the Metal embedding; read by C and by the Metal compiler.
 *
 * Kernel "iso_embed_" and the type's name in iso_type_info(): "iso_embed_Q6_K". The bits are those of embed.h.
 * Dispatch: groups {rows of the step, 1, 1}, ISO_METAL_EMBED_THREADS threads, no threadgroup memory, no
 * function constants.
 */
#ifndef ISO_KERNELS_EMBED_METAL_H
#define ISO_KERNELS_EMBED_METAL_H

#if defined(__METAL_VERSION__)
#include "arith/lang.h"
#else
#include <assert.h>
#include <stdint.h>
#endif

/* [[buffer(0)]] */
struct iso_metal_embed {
    uint32_t n_cols;
    uint32_t row_bytes; /* of a table row in the file */
    uint32_t has_scale;
    float scale;
};
static_assert(sizeof(struct iso_metal_embed) == 16, "shared with GPU code");

/* Places behind the argument structure, [[buffer(1 + i)]]; offsets are multiples of 4 bytes. */
enum iso_metal_embed_binding {
    ISO_METAL_EMBED_IDS,   /* i32, one for each group: checked rows of the table, read */
    ISO_METAL_EMBED_TABLE, /* [..][row_bytes] in file layout, read */
    ISO_METAL_EMBED_X,     /* f32 [groups][n_cols], written */
    ISO_METAL_EMBED_BINDINGS
};

#define ISO_METAL_EMBED_THREADS 128

#endif
