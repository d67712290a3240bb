/* SPDX-License-Identifier: MIT
 * heads_metal.h - how a host starts norm, rotation, butterfly and codes of heads on Metal; read by C and Metal.
 *
 * Kernel "iso_heads" serves iso_op_heads; the bits are those of heads.h. Dispatch: groups
 * {ceil(rows * iso_metal_heads_items / ISO_METAL_HEADS_GROUP), 1, 1}, ISO_METAL_HEADS_THREADS threads,
 * ISO_METAL_HEADS_BYTES of threadgroup memory. All function constants are always set; a place that they leave
 * without use may hold any buffer or none.
 */
#ifndef ISO_KERNELS_HEADS_METAL_H
#define ISO_KERNELS_HEADS_METAL_H

#include "arith/lang.h"
#if !defined(__METAL_VERSION__)
#include <assert.h>
#include <stdint.h>
#endif

/* [[buffer(0)]] */
struct iso_metal_heads {
    uint32_t n_heads, n_kv_heads;
    uint32_t n_rot; /* rotated dimensions, even, <= d */
    uint32_t n_rows;
    uint32_t table_len;
    float eps;      /* of the head norms */
    float inv_n;    /* f32(1/d) */
    uint32_t fault_q, fault_k, fault_v; /* noted when a magnitude behind the butterfly is 2^40 or more */
};
static_assert(sizeof(struct iso_metal_heads) == 40, "shared with GPU code");

/* Places behind the argument structure, [[buffer(1 + i)]]; offsets are multiples of 4 bytes. */
enum iso_metal_heads_binding {
    ISO_METAL_HEADS_Q,        /* f32 [rows][n_heads*d], read */
    ISO_METAL_HEADS_K,        /* f32 [rows][n_kv_heads*d], read */
    ISO_METAL_HEADS_V,        /* the same */
    ISO_METAL_HEADS_Q_CODES,  /* i16 [n_kv_heads][rows][group][d], written */
    ISO_METAL_HEADS_Q_SCALES, /* f32 [n_kv_heads][rows][group], written */
    ISO_METAL_HEADS_Q_NORM,   /* f32 [d], read */
    ISO_METAL_HEADS_K_NORM,   /* f32 [d], read */
    ISO_METAL_HEADS_ROPE,     /* f32 [rows][n_rot/2][2], read */
    ISO_METAL_HEADS_ROWS,     /* struct iso_row_desc [rows], read */
    ISO_METAL_HEADS_Q_TAP,    /* f32 [rows][n_heads*d], written */
    ISO_METAL_HEADS_K_TAP,    /* f32 [rows][n_kv_heads*d], written */
    ISO_METAL_HEADS_PAGES,    /* [slot][kv head][page bytes], written at the rows' positions */
    ISO_METAL_HEADS_TABLES,   /* u32 [sessions][table_len], read */
    ISO_METAL_HEADS_FAULT,    /* the fault word of kernels/shared/metal_prim.h */
    ISO_METAL_HEADS_BINDINGS
};

/* Function constants, by index. */
#define ISO_METAL_HEADS_DIM 16        /* u32: d, head size, a multiple of 8, at most 256 */
#define ISO_METAL_HEADS_HAS_Q 17      /* bool: there are queries */
#define ISO_METAL_HEADS_HAS_KV 18     /* bool: there are keys and values */
#define ISO_METAL_HEADS_HAS_Q_NORM 19 /* bool */
#define ISO_METAL_HEADS_HAS_K_NORM 20 /* bool */
#define ISO_METAL_HEADS_PAIRS 21      /* u32: enum iso_rope_pairs */
#define ISO_METAL_HEADS_HAS_Q_TAP 22  /* bool */
#define ISO_METAL_HEADS_HAS_K_TAP 23  /* bool */

#define ISO_METAL_HEADS_GROUP 4     /* head vectors of a threadgroup: one a simdgroup */
#define ISO_METAL_HEADS_THREADS 128
#define ISO_METAL_HEADS_BYTES 4096  /* of [[threadgroup(0)]] */

#if !defined(__METAL_VERSION__)
/* Head vectors of a row; 0 heads for what there is not. */
static inline uint32_t iso_metal_heads_items(uint32_t n_heads, uint32_t n_kv_heads)
{
    return n_heads + 2 * n_kv_heads;
}
#endif

#endif
