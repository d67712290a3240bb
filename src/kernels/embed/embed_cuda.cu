/* SPDX-License-Identifier: MIT
 * embed_cuda.cu - table rows of every type to f32: one block per row, one warp per superblock.
 *
 * The weights lie in cells, so a row's bytes are 16 at a time, 512 apart; a token reads a few KB.
 */
#include "kernels/embed/embed_cuda.h"
#include "kernels/shared/cuda_cells.cuh"
#include "kernels/shared/cuda_launch.cuh"
#include "kernels/shared/cuda_prim.cuh"

struct embed_args {
    float *x;
    const int32_t *ids;
    const uint8_t *cells;
    uint32_t n_cols;
    float scale;
    int has_scale;
};

/* The values of columns 32j.. of a row; section 4, "one element". */
template <int T> static __device__ void values32(float v[32], const cell<T> &c, int j)
{
    if constexpr (T == ISO_TYPE_F32 || T == ISO_TYPE_F16 || T == ISO_TYPE_BF16) {
        c.values(v, j);
    } else {
        uint32_t w[8];
        c.words(w, j);
#pragma unroll
        for (int i = 0; i < 32; i++) {
            const int32_t byte = (int32_t)(int8_t)(w[i / 4] >> (i % 4 * 8));
            if constexpr (T == ISO_TYPE_Q4_K || T == ISO_TYPE_Q5_K) {
                const float scaled = c.d() * (float)(byte * c.scale(j));
                v[i] = fmaf(-c.dmin(), (float)c.min(j), scaled);
            } else if constexpr (T == ISO_TYPE_Q6_K) {
                v[i] = c.d() * (float)((byte >> 2) * c.scale(2 * j + i / 16));
            } else if constexpr (T == ISO_TYPE_NVFP4) {
                v[i] = (float)(byte * c.units(2 * j + i / 16)) * 0x1p-10f;
            } else {
                v[i] = c.d(j) * (float)(byte - cell<T>::OFFSET);
                if (cell<T>::MIN) v[i] = v[i] + c.m(j);
            }
        }
    }
}

/* Thread i of the block takes 32 columns at a time. */
template <int T> static __global__ void embed_kernel(const __grid_constant__ struct embed_args a)
{
    grid_wait();
    grid_trigger();
    const uint32_t row = (uint32_t)a.ids[blockIdx.x];
    const uint32_t n_super = (a.n_cols + CELL_COLS - 1) / CELL_COLS;
    const size_t bytes = CELL_ROWS * cell_lane_bytes(T);
    for (uint32_t i = threadIdx.x; i < a.n_cols / 32; i += blockDim.x) {
        cell<T> c;
        c.load(a.cells + ((size_t)(row / CELL_ROWS) * n_super + i / 8) * bytes, (int)(row % CELL_ROWS));
        float v[32];
#pragma unroll
        for (int j = 0; j < 8; j++) { /* constant indices into the cell's registers */
            if ((int)(i % 8) == j) values32<T>(v, c, j);
        }
        float *x = a.x + (size_t)blockIdx.x * a.n_cols + 32 * i;
#pragma unroll
        for (int k = 0; k < 32; k++) x[k] = iso_guard(a.has_scale ? v[k] * a.scale : v[k]);
    }
}

#define CASE(T, ...)                                                                               \
    case ISO_TYPE_##T: launch(embed_kernel<ISO_TYPE_##T>, n_rows, 128, 0, stream, a); break;

extern "C" void iso_cuda_embed(float *x, const int32_t *ids, const uint8_t *cells, uint32_t type,
                               uint32_t n_rows, uint32_t n_cols, float scale, int has_scale,
                               struct CUstream_st *stream)
{
    const struct embed_args a = {x, ids, cells, n_cols, scale, has_scale};
    switch (type) {
        ISO_TYPE_MAP(CASE)
    }
}
