/* SPDX-License-Identifier: MIT
 * norm_cuda.h - RMS norm, residual addition and row moves on a GPU; bits of norm.h.
 */
#ifndef ISO_KERNELS_NORM_CUDA_H
#define ISO_KERNELS_NORM_CUDA_H

#include <stdint.h>


struct CUstream_st;

#ifdef __cplusplus
extern "C" {
#endif

/* y = norm(x) for n_rows rows of n; y may be x, weight NULL for none. */
void iso_cuda_norm(float *y, const float *x, const float *weight, float eps, float inv_n, uint32_t n,
                   uint32_t n_rows, struct CUstream_st *stream);

/* x += y, or x += norm(y) when has_norm. */
void iso_cuda_residual(float *x, const float *y, const float *weight, float eps, float inv_n, int has_norm,
                       uint32_t n, uint32_t n_rows, struct CUstream_st *stream);

/* Moves rows index[i] (ascending, index[i] >= i) of x to row i, in place. */
void iso_cuda_gather(float *x, const uint32_t *index, uint32_t n, uint32_t n_rows,
                     struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
