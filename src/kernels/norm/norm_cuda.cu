/* SPDX-License-Identifier: MIT
 * norm_cuda.cu - RMS norm, residual addition, row moves: one block of 256 threads per row.
 */
#include "kernels/norm/norm_cuda.h"
#include "kernels/shared/cuda_launch.cuh"
#include "kernels/shared/cuda_prim.cuh"

struct norm_args {
    float *x;
    const float *y, *weight; /* norm of y into x, added when add */
    float eps, inv_n;
    int norm, add;
    uint32_t n;
};

static __global__ void __launch_bounds__(ROW_THREADS) norm_kernel(const __grid_constant__ struct norm_args a)
{
    __shared__ float shared[ROW_THREADS];
    grid_wait();
    grid_trigger();
    float *x = a.x + (size_t)blockIdx.x * a.n;
    const float *y = a.y + (size_t)blockIdx.x * a.n;
    float r = 1.0f;
    if (a.norm) r = block_rms_factor(y, a.n, a.eps, a.inv_n, shared);
    for (uint32_t i = threadIdx.x; i < a.n; i += ROW_THREADS) {
        float v = y[i];
        if (a.norm) v = iso_guard(a.weight ? (v * r) * a.weight[i] : v * r);
        x[i] = a.add ? x[i] + v : v;
    }
}

extern "C" void iso_cuda_norm(float *y, const float *x, const float *weight, float eps, float inv_n,
                              uint32_t n, uint32_t n_rows, struct CUstream_st *stream)
{
    const struct norm_args a = {y, x, weight, eps, inv_n, 1, 0, n};
    launch(norm_kernel, n_rows, ROW_THREADS, 0, stream, a);
}

extern "C" void iso_cuda_residual(float *x, const float *y, const float *weight, float eps, float inv_n,
                                  int has_norm, uint32_t n, uint32_t n_rows, struct CUstream_st *stream)
{
    const struct norm_args a = {x, y, weight, eps, inv_n, has_norm, 1, n};
    launch(norm_kernel, n_rows, ROW_THREADS, 0, stream, a);
}

/* A thread moves one column of all rows in ascending order, so a row is read before it is written. */
static __global__ void gather_kernel(float *x, const uint32_t *index, uint32_t n, uint32_t n_rows)
{
    grid_wait();
    grid_trigger();
    const uint32_t c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= n) return;
    for (uint32_t i = 0; i < n_rows; i++) x[(size_t)i * n + c] = x[(size_t)index[i] * n + c];
}

extern "C" void iso_cuda_gather(float *x, const uint32_t *index, uint32_t n, uint32_t n_rows,
                                struct CUstream_st *stream)
{
    launch(gather_kernel, (n + 255) / 256, 256, 0, stream, x, index, n, n_rows);
}
