/* SPDX-License-Identifier: MIT
 * quantize_cuda.h - activations to 12-bit codes on a GPU; bits of quantize.h.
 */
#ifndef ISO_KERNELS_QUANTIZE_CUDA_H
#define ISO_KERNELS_QUANTIZE_CUDA_H

#include <stdint.h>

#include "kernels/shared/cuda_codes.h"

struct CUstream_st;

#ifdef __cplusplus
extern "C" {
#endif

/* What all forms take: codes out, an optional f32 copy, and where a value outside the domain is noted. */
struct iso_cuda_quantize {
    struct iso_cuda_codes codes;
    float *tap;      /* [n_rows][n] or NULL */
    uint32_t *fault; /* word of the device */
    uint32_t fault_code;
    uint32_t n, n_rows;
};

/* codes of norm(x) for rows index[i] of x (rows i without an index). With y: x += y first (or
 * x += norm(y) with y_norm), for rows i; index is then NULL. */
struct iso_cuda_norm_source {
    float *x;
    const float *weight; /* or NULL */
    const uint32_t *index;
    float eps, inv_n;
    const float *y, *y_weight; /* fused residual; y NULL for none */
    float y_eps;
    int y_norm;
};
void iso_cuda_norm_quantize(const struct iso_cuda_quantize *q, const struct iso_cuda_norm_source *s,
                            struct CUstream_st *stream);

/* codes of x, of g(x*sigmoid(gate)), or of the GLU of x and up (glu: enum iso_glu). */
void iso_cuda_quantize(const struct iso_cuda_quantize *q, const float *x, const float *gate,
                       const float *up, uint32_t glu, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
