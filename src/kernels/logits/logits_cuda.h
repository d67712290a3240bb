/* SPDX-License-Identifier: MIT
 * logits_cuda.h - scale and soft-cap of logits on a GPU; bits of logits.h.
 */
#ifndef ISO_KERNELS_LOGITS_CUDA_H
#define ISO_KERNELS_LOGITS_CUDA_H

#include <stdint.h>


struct CUstream_st;

#ifdef __cplusplus
extern "C" {
#endif

/* l [n] in place; a magnitude of 2^100 or more, before or behind the cap, is noted in *fault. */
void iso_cuda_logits(float *l, uint64_t n, float scale, int has_scale, float cap, float inv_cap,
                     uint32_t *fault, uint32_t fault_code, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
