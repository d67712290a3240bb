/* SPDX-License-Identifier: MIT
 * matmul_cuda.h - the matrix product y = W a on a GPU: packing weights, few rows, many rows.
 *
 * Bits equal those of kernels/matmul/matmul.h. Launches are asynchronous on a stream; a failed launch
 * stays with the CUDA runtime until the device asks for it.
 * Source: the specification of exact-1, sections 4 and 5.
 */
#ifndef ISO_KERNELS_MATMUL_CUDA_H
#define ISO_KERNELS_MATMUL_CUDA_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/shared/cuda_codes.h"

struct CUstream_st;

#ifdef __cplusplus
extern "C" {
#endif

/* One weight matrix in cells (kernels/shared/cuda_cells.cuh) and where its product goes. */
struct iso_cuda_matrix {
    const uint8_t *cells;
    const float *bias; /* [n_rows] or NULL */
    float *y;          /* [n_act][n_rows] */
    uint32_t type;     /* enum iso_type */
    uint32_t n_rows, n_cols;
    uint32_t has_scale;
    float scale;
};

/* What the chip offers; chosen once at open. */
struct iso_cuda_chip {
    uint32_t smem_block; /* most shared memory of a block, bytes */
    uint32_t n_sm;
    int wgmma;           /* the sm_90a product may be used */
    int bulk;            /* bulk copies to shared memory exist (sm_90 and later) */
};

/* Bytes of a matrix in cells. */
size_t iso_cuda_cells_bytes(uint32_t type, uint32_t n_rows, uint32_t n_cols);

/* Reorders file rows (row_bytes apart, in device memory) into cells. */
void iso_cuda_pack(uint8_t *cells, const uint8_t *rows, uint32_t type, uint32_t n_rows, uint32_t n_cols,
                   uint64_t row_bytes, struct CUstream_st *stream);

/* Few activation rows: each weight is read once per 8 rows (4 for very long rows).
 * Needs: all matrices have a->n columns; 1 <= n_w <= 4. */
void iso_cuda_gemv(const struct iso_cuda_codes *a, uint32_t n_act, const struct iso_cuda_matrix *w,
                   uint32_t n_w, const struct iso_cuda_chip *chip, struct CUstream_st *stream);

/* Many activation rows. scratch holds unpacked planes of a slice of the weights: any size from
 * iso_cuda_gemm_scratch(w, 1) on works, iso_cuda_gemm_scratch(w, w->n_rows) avoids slices.
 * Returns 0, or -1 when the driver refuses a tensor map (out of its limits: our bug). */
size_t iso_cuda_gemm_scratch(const struct iso_cuda_matrix *w, uint32_t n_rows);
int iso_cuda_gemm(const struct iso_cuda_codes *a, uint32_t n_act, const struct iso_cuda_matrix *w,
                  void *scratch, size_t scratch_bytes, const struct iso_cuda_chip *chip,
                  struct CUstream_st *stream);

#define ISO_CUDA_GEMM_FROM 9 /* activation rows at which iso_cuda_gemm() serves */

#ifdef __cplusplus
}
#endif

#endif
