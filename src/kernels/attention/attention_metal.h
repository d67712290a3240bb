/* SPDX-License-Identifier: MIT
 * attention_metal.h - how a host starts attention on Metal; read by C and by the Metal compiler.
 *
 * Two shapes of iso_op_attention with the same bits, those of attention.h. group = n_heads / n_kv_heads.
 *
 *   kernel                groups                                                     threads   memory
 *   iso_attention_tiles   {ceil(rows * group / TILE_QUERIES), n_kv_heads, 1}         256       TILE_BYTES
 *   iso_attention_split   {rows, n_kv_heads * ceil(group / SPLIT_QUERIES), segments} 128       iso_metal_attention_split_bytes
 *   iso_attention_merge   {rows, n_heads, 1}                                         32        none
 *
 * (names above with ISO_METAL_ATTENTION_ in front). Tiles suit many rows of a session (prompts) and always
 * work. Split suits few rows with long caches (decoding): segments is at least the largest
 * iso_metal_attention_segments() of the rows. One segment: WHOLE true, no states, no merge. More: WHOLE
 * false, STATES is iso_metal_attention_states() bytes, and merge follows behind a barrier.
 * All function constants are always set; a place that is not used may hold any buffer or none.
 * Source: the specification of exact-1, section 10.
 */
#ifndef ISO_KERNELS_ATTENTION_METAL_H
#define ISO_KERNELS_ATTENTION_METAL_H

#include "arith/page.h"
#if !defined(__METAL_VERSION__)
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#endif

/* [[buffer(0)]] of the three kernels */
struct iso_metal_attention {
    uint32_t n_heads, n_kv_heads;
    uint32_t n_rows;
    uint32_t table_len;
    uint32_t layer_class;  /* index of iso_row_desc.first_visible */
    uint32_t max_segments; /* groups[2] of split: segments between two rows' states */
    float c;               /* score scale of section 10 */
    float cap, inv_cap;    /* soft-cap, with CAP */
    uint32_t reserved;
};
static_assert(sizeof(struct iso_metal_attention) == 40, "shared with GPU code");

/* Places behind the argument structure, [[buffer(1 + i)]]. Offsets are multiples of 4 bytes, those of
 * PAGES, Q_CODES and OUT of 16. */
enum iso_metal_attention_binding {
    ISO_METAL_ATTENTION_Q_CODES,  /* i16 [n_kv_heads][rows][group][d], read */
    ISO_METAL_ATTENTION_Q_SCALES, /* f32 [n_kv_heads][rows][group], read */
    ISO_METAL_ATTENTION_ROWS,     /* struct iso_row_desc [rows], read */
    ISO_METAL_ATTENTION_OUT,      /* f32 [rows][n_heads*d], written */
    ISO_METAL_ATTENTION_PAGES,    /* [slot][kv head][page bytes], read */
    ISO_METAL_ATTENTION_TABLES,   /* u32 [sessions][table_len], read */
    ISO_METAL_ATTENTION_STATES,   /* f32 [rows][n_heads][max_segments][4 + d], written by split, read by merge */
    ISO_METAL_ATTENTION_BINDINGS
};

/* Function constants, by index. */
#define ISO_METAL_ATTENTION_DIM 24   /* u32: d, head size, a multiple of 8, at most 256 */
#define ISO_METAL_ATTENTION_CAP 25   /* bool: scores have a soft-cap */
#define ISO_METAL_ATTENTION_WHOLE 26 /* bool: split writes OUT, there is one segment */

#define ISO_METAL_ATTENTION_TILE_QUERIES 32  /* query rows of a threadgroup of tiles */
#define ISO_METAL_ATTENTION_TILE_THREADS 256
#define ISO_METAL_ATTENTION_TILE_BYTES 24576 /* of [[threadgroup(0)]] */
#define ISO_METAL_ATTENTION_SPLIT_QUERIES 4  /* query heads of a threadgroup of split */
#define ISO_METAL_ATTENTION_SPLIT_THREADS 128
#define ISO_METAL_ATTENTION_MERGE_THREADS 32
#define ISO_METAL_ATTENTION_WAVE 4 /* pages of a segment that split has in hand at once */

#if !defined(__METAL_VERSION__)
/* Threadgroup memory of split: for each page in hand and query head the sums [d] and the weights [64] i16,
 * then 256 bytes of page results. */
static inline uint32_t iso_metal_attention_split_bytes(uint32_t d, uint32_t group)
{
    const uint32_t n = group < ISO_METAL_ATTENTION_SPLIT_QUERIES ? group : ISO_METAL_ATTENTION_SPLIT_QUERIES;
    return ISO_METAL_ATTENTION_WAVE * n * (d * 4 + ISO_PAGE_POSITIONS * 2) + 256;
}

/* Segments of 512 positions that a row sees. */
static inline uint32_t iso_metal_attention_segments(uint32_t first_visible, uint32_t position)
{
    const uint32_t span = ISO_SEGMENT_PAGES * ISO_PAGE_POSITIONS;
    return position < first_visible ? 1 : position / span - first_visible / span + 1;
}

static inline size_t iso_metal_attention_states(uint32_t n_rows, uint32_t n_heads, uint32_t d,
                                                uint32_t max_segments)
{
    return (size_t)n_rows * n_heads * max_segments * (4 + (size_t)d) * sizeof(float);
}
#endif

#endif
