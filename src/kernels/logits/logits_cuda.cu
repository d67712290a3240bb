/* SPDX-License-Identifier: MIT
 * logits_cuda.cu - scale and soft-cap, element by element.
 */
#include "kernels/logits/logits_cuda.h"
#include "kernels/shared/cuda_launch.cuh"
#include "kernels/shared/cuda_prim.cuh"

struct logits_args {
    float *l;
    uint64_t n;
    float scale, cap, inv_cap;
    int has_scale;
    uint32_t *fault;
    uint32_t fault_code;
};

static __global__ void logits_kernel(const __grid_constant__ struct logits_args a)
{
    grid_wait();
    grid_trigger();
    const uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.n) return;
    float x = a.l[i];
    if (a.has_scale) x = x * a.scale;
    uint32_t m = iso_abs_bits(x); /* before the cap as well: tanh makes a finite number of an infinite one */
    if (a.cap != 0.0f) {
        x = iso_softcap(x, a.cap, a.inv_cap);
        m = max(m, iso_abs_bits(x));
    }
    if (m >= ISO_BITS_2P100) fault(a.fault, a.fault_code);
    a.l[i] = x;
}

extern "C" void iso_cuda_logits(float *l, uint64_t n, float scale, int has_scale, float cap, float inv_cap,
                                uint32_t *fault_word, uint32_t fault_code, struct CUstream_st *stream)
{
    const struct logits_args a = {l, n, scale, cap, inv_cap, has_scale, fault_word, fault_code};
    launch(logits_kernel, (uint32_t)((n + 255) / 256), 256, 0, stream, a);
}
