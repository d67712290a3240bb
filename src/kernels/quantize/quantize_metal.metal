/* SPDX-License-Identifier: MIT
 * quantize_metal.metal - codes of 256 values by one simdgroup: eight values per lane, four lanes per sum.
 */
#include "kernels/quantize/quantize_metal.h"
#include "kernels/shared/metal_prim.h"

#define QUANTIZE_VALUES 8 /* of a lane */

constant bool quantize_has_tap [[function_constant(ISO_METAL_QUANTIZE_HAS_TAP)]];
constant uint quantize_form [[function_constant(ISO_METAL_QUANTIZE_FORM)]];
constant bool quantize_has_weight [[function_constant(ISO_METAL_QUANTIZE_HAS_WEIGHT)]];
constant bool quantize_has_index [[function_constant(ISO_METAL_QUANTIZE_HAS_INDEX)]];
constant bool quantize_add [[function_constant(ISO_METAL_QUANTIZE_ADD)]];
constant bool quantize_add_norm [[function_constant(ISO_METAL_QUANTIZE_ADD_NORM)]];
constant bool quantize_add_weight [[function_constant(ISO_METAL_QUANTIZE_ADD_WEIGHT)]];

/* Where the codes of one row go. */
struct quantize_out {
    device short *code;
    device float *scale;
    device int *sum32;
};

/* The simdgroup's 256 values (zeros beyond the row) become block b of a row. Returns the largest magnitude as
 * bits, in all lanes. A block outside the domain gets zeros, as on the CPU. */
static inline uint quantize_block(struct quantize_out out, uint b, thread const float *v, uint lane)
{
    uint m = 0;
    for (uint i = 0; i < QUANTIZE_VALUES; i++) m = max(m, iso_abs_bits(v[i]));
    m = simd_max(m);
    const bool none = m < ISO_BITS_2M28 || m >= ISO_BITS_2P100;
    const float top = ISO_AS_F32(none ? 0x3f800000u : m);
    const float inv = iso_rcp(top) * 2047.0f;
    int c[QUANTIZE_VALUES];
    int sum = 0;
    for (uint i = 0; i < QUANTIZE_VALUES; i++) {
        const float scaled = v[i] * inv;
        c[i] = none ? 0 : clamp(iso_round_i32(scaled), -2047, 2047);
        sum += c[i];
    }
    sum += simd_shuffle_xor(sum, 1);
    sum += simd_shuffle_xor(sum, 2);
    device short4 *code = (device short4 *)(out.code + b * 256 + lane * QUANTIZE_VALUES);
    code[0] = short4((short)c[0], (short)c[1], (short)c[2], (short)c[3]);
    code[1] = short4((short)c[4], (short)c[5], (short)c[6], (short)c[7]);
    if (lane % 4 == 0) out.sum32[b * 8 + lane / 4] = sum;
    if (lane == 0) out.scale[b] = none ? 0.0f : top * (1.0f / 2047.0f);
    return m;
}

static inline struct quantize_out quantize_row(device short *code, device float *scale, device int *sum32,
                                               uint row, uint stride)
{
    struct quantize_out out;
    out.code = code + (size_t)row * stride;
    out.scale = scale + (size_t)row * (stride / 256);
    out.sum32 = sum32 + (size_t)row * (stride / 32);
    return out;
}

static inline void quantize_load(thread float *v, device const float *p)
{
    const float4 a = ((device const float4 *)p)[0];
    const float4 b = ((device const float4 *)p)[1];
    for (uint i = 0; i < 4; i++) v[i] = a[i];
    for (uint i = 0; i < 4; i++) v[4 + i] = b[i];
}

static inline void quantize_store(device float *p, thread const float *v)
{
    ((device float4 *)p)[0] = float4(v[0], v[1], v[2], v[3]);
    ((device float4 *)p)[1] = float4(v[4], v[5], v[6], v[7]);
}

/* x += y or x += norm(y) for the group's row; each thread touches elements t + 256 i. */
static inline void quantize_add_row(device float *x, device const float *y, device const float *y_weight,
                                    constant struct iso_metal_quantize &a, threadgroup float *shared, uint t)
{
    float r = 1.0f;
    if (quantize_add_norm) r = metal_rms_factor(y, a.n, a.add_eps, a.inv_n, shared, t);
    for (uint i = t; i < a.n; i += METAL_ROW_THREADS) {
        float v = y[i];
        if (quantize_add_norm) {
            v = v * r;
            if (quantize_add_weight) v = v * y_weight[i];
            v = iso_guard(v);
        }
        x[i] = x[i] + v;
    }
}

[[max_total_threads_per_threadgroup(ISO_METAL_QUANTIZE_THREADS)]]
kernel void iso_norm_quantize(constant struct iso_metal_quantize &a [[buffer(0)]],
                              device short *code [[buffer(1)]],
                              device float *scale [[buffer(2)]],
                              device int *sum32 [[buffer(3)]],
                              device float *tap [[buffer(4)]],
                              device atomic_uint *fault [[buffer(5)]],
                              device float *x [[buffer(6)]],
                              device const float *weight [[buffer(7)]],
                              device const uint *index [[buffer(8)]],
                              device const float *y [[buffer(9)]],
                              device const float *y_weight [[buffer(10)]],
                              threadgroup float *shared [[threadgroup(0)]],
                              uint3 group [[threadgroup_position_in_grid]],
                              uint t [[thread_index_in_threadgroup]])
{
    const uint row = group.x;
    const uint lane = t % METAL_LANES;
    const uint from = quantize_has_index ? index[row] : row;
    device float *in = x + (size_t)from * a.n;
    if (quantize_add) {
        quantize_add_row(in, y + (size_t)row * a.n, y_weight, a, shared, t);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    const float r = metal_rms_factor(in, a.n, a.eps, a.inv_n, shared, t);
    if (quantize_add) threadgroup_barrier(mem_flags::mem_device); /* now other threads' elements are read */
    const struct quantize_out out = quantize_row(code, scale, sum32, row, a.stride);
    for (uint b = t / METAL_LANES; b < a.stride / 256; b += METAL_ROW_THREADS / METAL_LANES) {
        const uint i = b * 256 + lane * QUANTIZE_VALUES;
        float v[QUANTIZE_VALUES] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (i < a.n) {
            quantize_load(v, in + i);
            for (uint k = 0; k < QUANTIZE_VALUES; k++) {
                v[k] = v[k] * r;
                if (quantize_has_weight) v[k] = v[k] * weight[i + k];
                v[k] = iso_guard(v[k]);
            }
            if (quantize_has_tap) quantize_store(tap + (size_t)row * a.n + i, v);
        }
        const uint m = quantize_block(out, b, v, lane);
        if (m >= ISO_BITS_2P100 && lane == 0) metal_fault(fault, a.fault_code);
    }
}

static inline float quantize_formed(float x, float other)
{
    if (quantize_form == ISO_METAL_FORM_GATE) {
        const float gated = x * iso_sigmoid(other);
        return iso_guard(gated);
    }
    return quantize_form == ISO_METAL_FORM_SWIGLU ? iso_swiglu(x, other) : iso_geglu(x, other);
}

/* A simdgroup per 256 values of any row. */
[[max_total_threads_per_threadgroup(ISO_METAL_QUANTIZE_THREADS)]]
kernel void iso_quantize(constant struct iso_metal_quantize &a [[buffer(0)]],
                         device short *code [[buffer(1)]],
                         device float *scale [[buffer(2)]],
                         device int *sum32 [[buffer(3)]],
                         device float *tap [[buffer(4)]],
                         device atomic_uint *fault [[buffer(5)]],
                         device const float *x [[buffer(6)]],
                         device const float *other [[buffer(7)]],
                         uint3 group [[threadgroup_position_in_grid]],
                         uint t [[thread_index_in_threadgroup]])
{
    const uint n_blocks = a.stride / 256;
    const uint lane = t % METAL_LANES;
    const uint item = group.x * ISO_METAL_QUANTIZE_BLOCKS + t / METAL_LANES;
    if (item >= n_blocks * a.n_rows) return;
    const uint row = item / n_blocks;
    const uint b = item % n_blocks;
    const uint i = b * 256 + lane * QUANTIZE_VALUES;
    float v[QUANTIZE_VALUES] = {0, 0, 0, 0, 0, 0, 0, 0};
    if (i < a.n) {
        const size_t at = (size_t)row * a.n + i;
        quantize_load(v, x + at);
        if (quantize_form != ISO_METAL_FORM_PLAIN) {
            float o[QUANTIZE_VALUES];
            quantize_load(o, other + at);
            for (uint k = 0; k < QUANTIZE_VALUES; k++) v[k] = quantize_formed(v[k], o[k]);
        }
        if (quantize_has_tap) quantize_store(tap + at, v);
    }
    const uint m = quantize_block(quantize_row(code, scale, sum32, row, a.stride), b, v, lane);
    if (m >= ISO_BITS_2P100 && lane == 0) metal_fault(fault, a.fault_code);
}
