/* SPDX-License-Identifier: MIT
 * embed_cuda.h - the embedding on a GPU: table rows in cells to f32; bits of embed.h.
 */
#ifndef ISO_KERNELS_EMBED_CUDA_H
#define ISO_KERNELS_EMBED_CUDA_H

#include <stdint.h>


struct CUstream_st;

#ifdef __cplusplus
extern "C" {
#endif

/* x [n_rows][n_cols] = g(v * scale), or g(v) without has_scale, for the rows ids[i] of a table in cells.
 * Pointers are device memory; asynchronous on stream. */
void iso_cuda_embed(float *x, const int32_t *ids, const uint8_t *cells, uint32_t type, uint32_t n_rows,
                    uint32_t n_cols, float scale, int has_scale, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
