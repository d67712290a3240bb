/* SPDX-License-Identifier: MIT
 * matmul_metal.h - how a host starts the Metal matrix products; read by C and by the Metal compiler.
 *
 * One dispatch is one weight matrix against n_act rows of codes; the bits are those of matmul.h. A kernel's
 * name is a prefix and the type's name in iso_type_info(): "iso_matmul_vec_Q4_K". No function constants.
 *
 *   prefix               made for rows of codes    groups[0]             groups[1]
 *   iso_matmul_vec_      1                         ceil(n_rows / 16)     n_act
 *   iso_matmul_tile8_    2-8                       ceil(n_rows / 64)     ceil(n_act / 8)
 *   iso_matmul_tile32_   9 and more                ceil(n_rows / 64)     ceil(n_act / 32)
 *
 * Every kernel serves any number of rows with the same bits: groups[2] 1, ISO_METAL_MATMUL_THREADS threads,
 * threadgroup memory as below. Contraction must be off for the whole source, which tools/flatten_metal.py does.
 * Source: the specification of exact-1, sections 4 and 5.
 */
#ifndef ISO_KERNELS_MATMUL_METAL_H
#define ISO_KERNELS_MATMUL_METAL_H

#if defined(__METAL_VERSION__)
#include "arith/lang.h"
#else
#include <assert.h>
#include <stdint.h>
#endif

/* [[buffer(0)]] */
struct iso_metal_matmul {
    uint32_t n_act;     /* activation rows */
    uint32_t n_rows;    /* weight rows: outputs */
    uint32_t n_cols;    /* a multiple of 32 and of the type's block */
    uint32_t stride;    /* codes per activation row: n_cols rounded up to 256 */
    uint32_t row_bytes; /* of a weight row in the file */
    uint32_t has_scale;
    float scale;
    uint32_t has_bias;
};
static_assert(sizeof(struct iso_metal_matmul) == 32, "shared with GPU code");

/* Places behind the argument structure, [[buffer(1 + i)]]. Offsets are multiples of 4 bytes; those of the
 * codes (all three) of 16. BIAS is not looked at without has_bias: bind WEIGHTS there again. */
enum iso_metal_matmul_binding {
    ISO_METAL_MATMUL_CODE,    /* i16 [n_act][stride], read */
    ISO_METAL_MATMUL_SCALE,   /* f32 [n_act][stride / 256], read */
    ISO_METAL_MATMUL_SUM32,   /* i32 [n_act][stride / 32], read */
    ISO_METAL_MATMUL_WEIGHTS, /* [n_rows][row_bytes] in file layout, read; nothing beyond is touched */
    ISO_METAL_MATMUL_BIAS,    /* f32 [n_rows], read */
    ISO_METAL_MATMUL_Y,       /* f32 [n_act][n_rows], written */
    ISO_METAL_MATMUL_BINDINGS
};

#define ISO_METAL_MATMUL_THREADS 128    /* four simdgroups, every kernel */
#define ISO_METAL_MATMUL_VEC_ROWS 16    /* weight rows of a threadgroup, vec */
#define ISO_METAL_MATMUL_TILE_ROWS 64   /* weight rows of a threadgroup, tiles */
#define ISO_METAL_MATMUL_VEC_BYTES 6144 /* threadgroup memory, [[threadgroup(0)]] */
/* The same for a tile of n_act (8 or 32) activation rows: codes, weights, sums of products, sums of codes. */
#define ISO_METAL_MATMUL_TILE_BYTES(n_act) ((n_act) * 32 * 4 + 64 * 32 * 4 + 64 * (n_act) * 4 + 128)

#endif
