/* SPDX-License-Identifier: MIT
 * matmul.h - the contract of the matrix product y = W a for every weight type.
 *
 * Per output, blocks of 256 columns in ascending order; the integer sums inside are exact, so a
 * variant may make them in any shape; the short f32 chain between them is pinned. Variants are
 * listed in matmul.def, which feeds the table, the test and the benchmark.
 * Source: the specification of exact-1, sections 4 and 5.
 */
#ifndef ISO_KERNELS_MATMUL_H
#define ISO_KERNELS_MATMUL_H

#include <stddef.h>
#include <stdint.h>

#include "format/types.h"
#include "kernels/shared/codes.h"

/* One weight matrix in file layout. */
struct iso_matrix {
    enum iso_type type;
    const uint8_t *data; /* [n_rows][row_bytes] */
    size_t n_rows;       /* outputs */
    size_t n_cols;       /* a multiple of 32 and of the type's block */
    size_t row_bytes;
    float scale;         /* the tensor's .scale; 1 and has_scale 0 when it has none */
    int has_scale;
    const float *bias;   /* [n_rows] or NULL */
};

/* Few activation rows (decode): reads each weight once.
 *
 * y[t * y_stride + r] for t < n_act and r in [first_row, last_row), scale and bias applied.
 * Needs:  1 <= n_act <= ISO_GEMV_MAX; a->n == w->n_cols; 0 <= first_row <= last_row <= w->n_rows;
 *         scratch [ISO_MATMUL_SCRATCH(n_cols)] bytes, 64-byte aligned, this thread's own.
 * Writes nothing else. Never fails. */
typedef void iso_gemv_fn(float *y, size_t y_stride, const struct iso_codes *a, size_t n_act,
                         const struct iso_matrix *w, size_t first_row, size_t last_row,
                         void *scratch);

/* Activations packed for a tiled product: tiles of ISO_GEMM_TILE rows, padded with zero codes.
 * Packs tiles [first_tile, last_tile) of a (n_act rows); different tiles may be packed by different
 * threads. panel has iso_gemm_panel_bytes() bytes, 64-byte aligned. */
typedef void iso_gemm_pack_fn(void *panel, const struct iso_codes *a, size_t n_act,
                              size_t first_tile, size_t last_tile);

/* Many activation rows (prefill): the same outputs as the vector product, from packed tiles.
 * Needs: as iso_gemv_fn, any n_act >= 1; panel packed completely by the same variant. */
typedef void iso_gemm_fn(float *y, size_t y_stride, const void *panel, size_t n_act,
                         const struct iso_matrix *w, size_t first_row, size_t last_row,
                         void *scratch);

#define ISO_GEMV_MAX 8   /* activation rows at which a vector product still serves */
#define ISO_GEMM_TILE 16 /* activation rows per packed tile */

struct iso_matmul_kernels {
    const char *name;
    iso_gemv_fn *gemv;
    iso_gemm_pack_fn *pack;
    iso_gemm_fn *gemm;
    size_t gemm_from; /* fewest activation rows at which gemm is faster than gemv in pieces */
};

/* The variants that flags (enum iso_cpu_flag) allow: the last one in matmul.def. */
const struct iso_matmul_kernels *iso_matmul_select(unsigned flags);

/* Bytes of a panel for n_act rows of n_cols codes. */
size_t iso_gemm_panel_bytes(size_t n_act, size_t n_cols);

/* Bytes of scratch that one thread needs for either product with up to n_act rows. */
size_t iso_matmul_scratch_bytes(size_t n_act, size_t n_cols);

#endif
