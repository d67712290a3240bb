/* SPDX-License-Identifier: MIT
 * cuda_prim.cuh - what the CUDA kernels share: faults, reductions, the pinned sum of squares.
 */
#ifndef ISO_KERNELS_SHARED_CUDA_PRIM_CUH
#define ISO_KERNELS_SHARED_CUDA_PRIM_CUH

#include <cuda_runtime.h>
#include <stdint.h>

#include "arith/page.h"
#include "arith/prim.h"

#define WARP 32
#define FULL_MASK 0xffffffffu
#define ROW_THREADS 256 /* one thread per lane of the RMS norm */
#define BITS_2P60 0x5d800000u

/* The first value outside the domain stays; word: see struct iso_cuda_fault in device_cuda.h. */
static __device__ __forceinline__ void fault(uint32_t *word, uint32_t code)
{
    atomicCAS(word, 0u, code);
}

static __device__ __forceinline__ uint32_t warp_max(uint32_t v)
{
    return __reduce_max_sync(FULL_MASK, v);
}

/* Programmatic dependent launch: a kernel may start while the one before it drains. Everything that
 * the one before wrote may be read after wait(); trigger() lets the next one start, and comes after
 * this kernel's own wait so that at most two kernels overlap. */
static __device__ __forceinline__ void grid_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static __device__ __forceinline__ void grid_trigger(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Largest of v over the block of ROW_THREADS; shared [8]. All threads get it. */
static __device__ uint32_t block_max(uint32_t v, uint32_t *shared)
{
    v = warp_max(v);
    __syncthreads();
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = v;
    __syncthreads();
    uint32_t m = shared[0];
    for (int i = 1; i < ROW_THREADS / WARP; i++) m = max(m, shared[i]);
    return m;
}

/* Sum of squares of x [n] by a block of 256 threads: thread i is lane i of section 6, then its tree.
 * shared [256] floats. All threads get the sum. */
static __device__ float block_sum_of_squares(const float *x, uint32_t n, float *shared)
{
    const uint32_t t = threadIdx.x;
    float l = 0.0f;
    uint32_t i = t;
    for (; i + 7 * ROW_THREADS < n; i += 8 * ROW_THREADS) { /* eight loads in flight */
        float v[8];
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = x[i + k * ROW_THREADS];
#pragma unroll
        for (int k = 0; k < 8; k++) l = fmaf(v[k], v[k], l);
    }
    for (; i < n; i += ROW_THREADS) l = fmaf(x[i], x[i], l);
    shared[t] = l;
    __syncthreads();
    if (t < 128) shared[t] = shared[t] + shared[t + 128];
    __syncthreads();
    if (t < 64) shared[t] = shared[t] + shared[t + 64];
    __syncthreads();
    if (t < WARP) {
        l = shared[t] + shared[t + 32];
#pragma unroll
        for (int s = 16; s >= 1; s /= 2) l = l + __shfl_down_sync(FULL_MASK, l, s);
        if (t == 0) shared[0] = l;
    }
    __syncthreads();
    l = shared[0];
    __syncthreads();
    return l;
}

/* The factor of an RMS norm, as rms_factor() of kernels/shared/rms.h: infinite when some |x| reaches
 * 2^60, so that the next quantisation reports it. */
static __device__ float block_rms_factor(const float *x, uint32_t n, float eps, float inv_n,
                                         float *shared)
{
    const float sum = block_sum_of_squares(x, n, shared);
    if (!(sum < 0x1p120f)) {
        uint32_t m = 0;
        for (uint32_t i = threadIdx.x; i < n; i += ROW_THREADS) m = max(m, iso_abs_bits(x[i]));
        m = block_max(m, (uint32_t *)shared);
        __syncthreads();
        if (m >= BITS_2P60) return ISO_AS_F32(0x7f800000u);
    }
    const float t = sum * inv_n;
    return iso_rsqrt(t + eps);
}

#endif
