/* SPDX-License-Identifier: MIT
 * heads_cuda.h - norm, rotation, butterfly and codes of heads on a GPU; bits of heads.h.
 */
#ifndef ISO_KERNELS_HEADS_CUDA_H
#define ISO_KERNELS_HEADS_CUDA_H

#include <stdint.h>

#include "kernels/shared/ops.h"

struct CUstream_st;

#ifdef __cplusplus
extern "C" {
#endif

struct iso_cuda_heads {
    const float *q, *k, *v;       /* f32 [n_rows][heads*d]; q, or k and v, may be NULL */
    int16_t *q_codes;             /* [n_kv_heads][n_rows][group][d] */
    float *q_scales;              /* [n_kv_heads][n_rows][group] */
    const float *q_norm, *k_norm; /* [d] or NULL */
    const float *rope;            /* [n_rows][n_rot/2][2] or NULL */
    const struct iso_row_desc *rows;
    float *q_tap, *k_tap;         /* [n_rows][heads*d] or NULL */
    uint8_t *pages;               /* [slot][head][page_bytes] */
    const uint32_t *tables;       /* [n_sessions][table_len] */
    uint32_t table_len;
    uint32_t d, n_heads, n_kv_heads, n_rot, pairs, n_rows;
    float eps, inv_n;
    uint32_t *fault;
    uint32_t fault_q, fault_k, fault_v;
};
void iso_cuda_heads(const struct iso_cuda_heads *h, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
