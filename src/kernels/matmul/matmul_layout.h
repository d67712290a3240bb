/* SPDX-License-Identifier: MIT
 * matmul_layout.h - the packed panel, unpacked weights and scratch of the tiled matrix product.
 *
 * A panel is [tile][block of 256 columns] of PANEL_BLOCK_BYTES; inside, lanes are the sixteen
 * activation rows of the tile. Scratch holds a group of weight rows unpacked to i16.
 */
#ifndef ISO_KERNELS_MATMUL_LAYOUT_H
#define ISO_KERNELS_MATMUL_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/matmul/matmul.h"

/* Before a loop of constant length whose arrays must end up in registers. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* Parts of a panel block; offsets in bytes.
 *   codes  i16 x86: [128 pairs][16 lanes][2]; NEON: [256][16 lanes]
 *   sum_f  f32 [8][16]       sum of the codes of each 32
 *   sum_p  i16 [8][16][2]    the same as (sum >> 8, sum & 255), for products with six-bit mins
 *   scale  f32 [16] */
#define PANEL_CODES 0
#define PANEL_SUM_F 8192
#define PANEL_SUM_P 8704
#define PANEL_SCALE 9216
#define PANEL_BLOCK_BYTES 9280

/* Weight rows unpacked together. 48 is a multiple of every micro-tile height (4, 6, 12), and with
 * GROUP_BLOCKS the unpacked weights take 230 KB, so that they stay in a 512 KB or larger L2 while
 * the activation tiles stream through L1. */
#define GROUP_ROWS 48
#define GROUP_BLOCKS 8 /* blocks of 256 columns unpacked at a time */
#define GROUP_TILES 32 /* activation tiles (512 rows) under one unpacking */

/* One block of 256 columns of GROUP_ROWS weight rows in the exact form of section 4. */
struct rows_block {
    int16_t w[GROUP_ROWS][ISO_CODE_BLOCK]; /* codes, or codes * sub-scale; zero beyond the row */
    float d[8][GROUP_ROWS];                /* per 32; Superblock and NVFP4: [0] */
    float m[8][GROUP_ROWS];                /* per 32; Superblock: [0] is -dmin */
    int32_t mi[8][GROUP_ROWS];             /* Superblock: i16 pairs (256 * mi, mi) */
    uint8_t wide[GROUP_ROWS + 16];        /* NVFP4: the row needs its high plane too */
};

/* (256 * mi, mi) in the order of memory, against sums as (sum >> 8, sum & 255). */
static inline int32_t layout_min_pair(int32_t mi)
{
    return (int32_t)((uint32_t)mi << 16) + (mi << 8);
}

struct gemm_scratch {
    struct rows_block block[GROUP_BLOCKS];
    float y[GROUP_TILES][GROUP_ROWS][ISO_GEMM_TILE];
};

static inline size_t layout_n_tiles(size_t n_act)
{
    return (n_act + ISO_GEMM_TILE - 1) / ISO_GEMM_TILE;
}

static inline size_t layout_n_blocks(size_t n_cols)
{
    return (n_cols + ISO_CODE_BLOCK - 1) / ISO_CODE_BLOCK;
}

/* Vector products keep up to ISO_GEMV_MAX rows as byte planes (two bytes a code) with sums per
 * sixteen, or one block of unpacked weight rows. */
static inline size_t layout_gemv_bytes(size_t n_cols)
{
    const size_t row = layout_n_blocks(n_cols) * ISO_CODE_BLOCK * 3;
    return ISO_GEMV_MAX * row + 2 * sizeof(struct rows_block) + 256;
}

static inline size_t layout_gemm_bytes(size_t n_act, size_t n_cols)
{
    (void)n_act;
    (void)n_cols;
    return sizeof(struct gemm_scratch);
}

#endif
