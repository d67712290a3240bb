// SPDX-License-Identifier: MIT
// kernels_exact.metal - for the tests of the Metal emulator: kernels whose bits the CPU's functions give too.
#include <metal_stdlib>

#include "arith/prim.h"
using namespace metal;

#pragma METAL fp contract(off)

constant bool HAS_WEIGHT [[function_constant(0)]];
constant uint SCALE [[function_constant(1)]];
constant uint DOUBLE_SCALE = 2 * SCALE;

struct rms_args {
    uint n;
    float eps, inv_n;
};

// RMS norm of a row per threadgroup: 256 lanes, one tree.
[[max_total_threads_per_threadgroup(256)]]
kernel void rms_norm(constant rms_args &a [[buffer(0)]], device const float *x [[buffer(1)]],
                     device const float *weight [[buffer(2)]], device float *y [[buffer(3)]],
                     uint t [[thread_position_in_threadgroup]], uint row [[threadgroup_position_in_grid]])
{
    threadgroup float l[256];
    x += row * a.n;
    y += row * a.n;
    float s = 0.0f;
    for (uint i = t; i < a.n; i += 256) s = fma(x[i], x[i], s);
    l[t] = s;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint k = 128; k > 0; k >>= 1) {
        if (t < k) l[t] = l[t] + l[t + k];
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    const float m = l[0] * a.inv_n;
    const float r = iso_rsqrt(m + a.eps);
    for (uint i = t; i < a.n; i += 256) y[i] = iso_guard(HAS_WEIGHT ? (x[i] * r) * weight[i] : x[i] * r);
}

// Products of small whole numbers: any order of the sum gives the same bits.
kernel void matrix_whole(device const half *a [[buffer(1)]], device const half *b [[buffer(2)]],
                         device float *c [[buffer(3)]], device float *lanes [[buffer(4)]],
                         uint t [[thread_position_in_threadgroup]])
{
    simdgroup_half8x8 ma, mb;
    simdgroup_float8x8 mc = make_filled_simdgroup_matrix<float, 8, 8>(3.0f);
    simdgroup_load(ma, a, 16, ulong2(8, 1));
    simdgroup_load(mb, b, 8, ulong2(0, 0), true);
    simdgroup_multiply_accumulate(mc, ma, mb, mc);
    simdgroup_store(mc, c, 8);
    lanes[2 * t] = mc.thread_elements()[0];
    lanes[2 * t + 1] = mc.thread_elements()[1];
}
// The same with any floats: the order shows.
kernel void matrix_float(device const float *a [[buffer(1)]], device const float *b [[buffer(2)]],
                         device float *c [[buffer(3)]])
{
    simdgroup_float8x8 ma, mb, mc;
    simdgroup_load(ma, a);
    simdgroup_load(mb, b);
    simdgroup_multiply(mc, ma, mb);
    simdgroup_store(mc, c);
}
// A lane's own data read as a matrix without a barrier.
kernel void matrix_no_barrier(device const float *a [[buffer(1)]], device float *c [[buffer(3)]],
                              uint t [[thread_position_in_threadgroup]])
{
    threadgroup float s[64];
    simdgroup_float8x8 m;
    const uint at = 8 * ((t >> 2 & 4) + (t >> 1 & 3)) + (t >> 2 & 2) * 2 + (t & 1) * 2; // where this lane reads
    s[at] = a[at];
    s[at + 1] = a[at + 1];
    simdgroup_load(m, s);
    simdgroup_store(m, c);
}

// The primitives, per value.
kernel void primitives(device const float *x [[buffer(1)]], device float *y [[buffer(2)]],
                       uint i [[thread_position_in_grid]])
{
    const float v = x[i];
    y[6 * i] = iso_sigmoid(v);
    y[6 * i + 1] = iso_tanh(v);
    y[6 * i + 2] = iso_swiglu(v, 0.75f);
    y[6 * i + 3] = iso_geglu(v, 1.25f);
    y[6 * i + 4] = iso_rcp(iso_absf(v) + 1.0f);
    y[6 * i + 5] = v * 3.0f + 0.1f; // fused without the pragma
}

// Integer functions and vectors against C.
kernel void integers(device const uint *x [[buffer(1)]], device uint *y [[buffer(2)]],
                     uint i [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                     uint group [[simdgroup_index_in_threadgroup]])
{
    const uint v = x[i];
    const uchar4 b = as_type<uchar4>(v);
    const char4 c = as_type<char4>(v);
    const int4 w = int4(c) * int4(b.wzyx);
    device uint *o = y + 16 * i;
    o[0] = popcount(v);
    o[1] = clz(v);
    o[2] = ctz(v);
    o[3] = extract_bits(v, 5, 7);
    o[4] = uint(extract_bits(int(v), 5, 7));
    o[5] = mulhi(v, 0x9e3779b9u);
    o[6] = uint(w.x + w.y + w.z + w.w);
    o[7] = simd_prefix_exclusive_sum(v);
    o[8] = simd_max(v);
    o[9] = simd_shuffle(v, ushort(31 - lane));
    o[10] = uint(ulong(simd_ballot((v & 1) != 0)));
    o[11] = rotate(v, 7u);
    o[12] = max(int(v), -5) == -5 ? 1 : 0;
    o[13] = as_type<uint>(float(half(float(v & 0xffff) * 0.37f)));
    o[14] = uint(addsat(c.x, c.y));
    o[15] = lane + 100 * group + 10000 * DOUBLE_SCALE;
}
