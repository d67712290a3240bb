/* SPDX-License-Identifier: MIT
 * matmul_stream_cuda.cuh - the streaming form of products with few activation rows.
 */
#ifndef ISO_KERNELS_MATMUL_STREAM_CUDA_CUH
#define ISO_KERNELS_MATMUL_STREAM_CUDA_CUH

#include <cuda_runtime.h>

#include "kernels/matmul/matmul_cuda.h"

/* As iso_cuda_gemv() for matrices of one type. Needs chip->bulk. False, with nothing launched for some
 * rows, when the activations of a row do not fit shared memory: the caller takes the other form. */
bool iso_cuda_stream(const struct iso_cuda_codes *a, uint32_t n_act, const struct iso_cuda_matrix *w, uint32_t n_w,
                     const struct iso_cuda_chip *chip, cudaStream_t stream);

#endif
