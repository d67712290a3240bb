/* SPDX-License-Identifier: MIT
 * norm_metal.metal - RMS norm, residual addition, row moves: one group of 256 threads per row.
 */
#include "kernels/norm/norm_metal.h"
#include "kernels/shared/metal_prim.h"

constant bool norm_has_norm [[function_constant(ISO_METAL_NORM_HAS_NORM)]];
constant bool norm_has_weight [[function_constant(ISO_METAL_NORM_HAS_WEIGHT)]];
constant bool norm_add [[function_constant(ISO_METAL_NORM_ADD)]];

[[max_total_threads_per_threadgroup(ISO_METAL_NORM_THREADS)]]
kernel void iso_norm(constant struct iso_metal_norm &a [[buffer(0)]],
                     device float *to [[buffer(1)]],
                     device const float *from [[buffer(2)]],
                     device const float *weight [[buffer(3)]],
                     threadgroup float *shared [[threadgroup(0)]],
                     uint3 group [[threadgroup_position_in_grid]],
                     uint t [[thread_index_in_threadgroup]])
{
    device float *x = to + (size_t)group.x * a.n;
    device const float *y = from + (size_t)group.x * a.n;
    float r = 1.0f;
    if (norm_has_norm) r = metal_rms_factor(y, a.n, a.eps, a.inv_n, shared, t);
    for (uint i = t; i < a.n; i += METAL_ROW_THREADS) {
        float v = y[i];
        if (norm_has_norm) {
            v = v * r;
            if (norm_has_weight) v = v * weight[i];
            v = iso_guard(v);
        }
        x[i] = norm_add ? x[i] + v : v;
    }
}

/* A thread moves one column of all rows in ascending order, so a row is read before it is written. */
kernel void iso_gather(constant struct iso_metal_gather &a [[buffer(0)]],
                       device uint *x [[buffer(1)]],
                       device const uint *index [[buffer(2)]],
                       uint3 group [[threadgroup_position_in_grid]],
                       uint t [[thread_index_in_threadgroup]])
{
    const uint c = group.x * ISO_METAL_GATHER_THREADS + t;
    if (c >= a.n) return;
    for (uint i = 0; i < a.n_rows; i++) x[(size_t)i * a.n + c] = x[(size_t)index[i] * a.n + c];
}
