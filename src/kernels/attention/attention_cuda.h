/* SPDX-License-Identifier: MIT
 * attention_cuda.h - attention on KV pages in GPU memory; bits of attention.h.
 *
 * Two shapes: tiles of 64 query rows that walk the pages (prompts), and one block per row, KV head and
 * segment of 8 pages with an ordered merge behind it (decoding). Bits are the same.
 * Source: the specification of exact-1, section 10.
 */
#ifndef ISO_KERNELS_ATTENTION_CUDA_H
#define ISO_KERNELS_ATTENTION_CUDA_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/shared/ops.h"

struct CUstream_st;

#ifdef __cplusplus
extern "C" {
#endif

struct iso_cuda_attention {
    const int16_t *q_codes; /* [n_kv_heads][n_rows][group][d] */
    const float *q_scales;  /* [n_kv_heads][n_rows][group] */
    const struct iso_row_desc *rows;
    float *out;             /* [n_rows][n_heads*d] */
    const uint8_t *pages;   /* [slot][head][page_bytes] */
    const uint32_t *tables; /* [n_sessions][table_len] */
    uint32_t table_len, layer_class;
    float c, cap, inv_cap;
    uint32_t d, n_heads, n_kv_heads, n_rows;
};

/* Any rows; rows of one session should lie together. */
void iso_cuda_attention_tiles(const struct iso_cuda_attention *a, struct CUstream_st *stream);

/* Few rows with long caches. max_segments: no row sees more segments of 512 positions. states:
 * iso_cuda_attention_states() bytes, unused when max_segments is 1.
 * Needs: iso_cuda_attention_splits(d). */
void iso_cuda_attention_split(const struct iso_cuda_attention *a, uint32_t max_segments, float *states,
                              struct CUstream_st *stream);
size_t iso_cuda_attention_states(uint32_t n_rows, uint32_t n_heads, uint32_t d, uint32_t max_segments);
int iso_cuda_attention_splits(uint32_t d);

#ifdef __cplusplus
}
#endif

#endif
