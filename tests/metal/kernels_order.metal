// SPDX-License-Identifier: MIT
// kernels_order.metal - for the tests of the Metal emulator: right kernels and their twins with a bug in the order.
#include <metal_stdlib>
using namespace metal;

#pragma METAL fp contract(off)

// Reverses 256 values through threadgroup memory; the barrier is missing in the second.
kernel void reverse_good(device const uint *x [[buffer(1)]], device uint *y [[buffer(2)]],
                         uint i [[thread_position_in_threadgroup]], uint g [[threadgroup_position_in_grid]])
{
    threadgroup uint s[256];
    s[i] = x[g * 256 + i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[g * 256 + i] = s[255 - i];
}
kernel void reverse_no_barrier(device const uint *x [[buffer(1)]], device uint *y [[buffer(2)]],
                               uint i [[thread_position_in_threadgroup]], uint g [[threadgroup_position_in_grid]])
{
    threadgroup uint s[256];
    s[i] = 0;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    s[i] = x[g * 256 + i];
    y[g * 256 + i] = s[255 - i];
}
// A barrier, but not for this memory.
kernel void reverse_wrong_flag(device const uint *x [[buffer(1)]], device uint *y [[buffer(2)]],
                               uint i [[thread_position_in_threadgroup]], uint g [[threadgroup_position_in_grid]])
{
    threadgroup uint s[256];
    s[i] = x[g * 256 + i];
    threadgroup_barrier(mem_flags::mem_device);
    y[g * 256 + i] = s[255 - i];
}
// A barrier of the SIMD group for data of the whole threadgroup.
kernel void reverse_wrong_scope(device const uint *x [[buffer(1)]], device uint *y [[buffer(2)]],
                                uint i [[thread_position_in_threadgroup]], uint g [[threadgroup_position_in_grid]])
{
    threadgroup uint s[256];
    s[i] = x[g * 256 + i];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    y[g * 256 + i] = s[255 - i];
}
// The same inside of one SIMD group, where that barrier is enough.
kernel void reverse_simd_good(device const uint *x [[buffer(1)]], device uint *y [[buffer(2)]],
                              uint i [[thread_position_in_threadgroup]], uint g [[threadgroup_position_in_grid]])
{
    threadgroup uint s[256];
    s[i] = x[g * 256 + i];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    y[g * 256 + i] = s[i ^ 31];
}

// All lanes write one word: the last one wins.
kernel void last_wins(device const uint *x [[buffer(1)]], device uint *y [[buffer(2)]],
                      uint i [[thread_position_in_threadgroup]], uint g [[threadgroup_position_in_grid]])
{
    threadgroup uint s;
    s = x[g * 256 + i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[g * 256 + i] = s;
}
// All threadgroups write the same words.
kernel void groups_race(device const uint *x [[buffer(1)]], device uint *y [[buffer(2)]],
                        uint i [[thread_position_in_threadgroup]], uint g [[threadgroup_position_in_grid]])
{
    y[i] = x[g * 256 + i];
}
// Neighbouring lanes write two halves of a word as words.
kernel void byte_race(device const uint *x [[buffer(1)]], device uchar *y [[buffer(2)]],
                      uint i [[thread_position_in_threadgroup]], uint g [[threadgroup_position_in_grid]])
{
    device uchar *p = y + (g * 256 + i) * 2;
    p[0] = uchar(x[g * 256 + i]);
    p[1] = 1;
    p[2] = 2;
}

// The order of a float sum shows in the result: not a bug of memory, but one of bits.
kernel void sum_any_order(device const float *x [[buffer(1)]], device float *y [[buffer(2)]],
                          uint i [[thread_position_in_threadgroup]], uint g [[threadgroup_position_in_grid]])
{
    y[g * 256 + i] = simd_sum(x[g * 256 + i]);
}
// A fixed tree.
kernel void sum_tree(device const float *x [[buffer(1)]], device float *y [[buffer(2)]],
                     uint i [[thread_position_in_threadgroup]], uint g [[threadgroup_position_in_grid]])
{
    float v = x[g * 256 + i];
    for (ushort s = 16; s > 0; s >>= 1) v += simd_shuffle_xor(v, s);
    y[g * 256 + i] = v;
}
// Lanes count up with a load and a store, or atomically.
kernel void count_lost(device const uint *x [[buffer(1)]], device uint *y [[buffer(2)]],
                       uint i [[thread_position_in_threadgroup]])
{
    y[0] += x[i] > 0 ? 1 : 0;
}
kernel void count_good(device const uint *x [[buffer(1)]], device atomic_uint *y [[buffer(2)]],
                       uint i [[thread_position_in_threadgroup]], uint g [[threadgroup_position_in_grid]])
{
    if (x[g * 256 + i] > 0) atomic_fetch_add_explicit(y, 1u, memory_order_relaxed);
    uint seen = atomic_load_explicit(y + 1, memory_order_relaxed);
    while (seen < i && !atomic_compare_exchange_weak_explicit(y + 1, &seen, i, memory_order_relaxed,
                                                              memory_order_relaxed)) {
    }
}
kernel void count_half_atomic(device const uint *x [[buffer(1)]], device atomic_uint *y [[buffer(2)]],
                              uint i [[thread_position_in_threadgroup]])
{
    if (i == 0) *(device uint *)y = 0;
    atomic_fetch_add_explicit(y, x[i] > 0 ? 1u : 0u, memory_order_relaxed);
}

// Two dispatches of it in a row need a barrier on both buffers.
kernel void add_one(device const uint *x [[buffer(1)]], device uint *y [[buffer(2)]],
                    uint i [[thread_position_in_grid]])
{
    y[i] = x[i] + 1;
}

// ---- divergence
kernel void barrier_good(device const uint *x [[buffer(1)]], device uint *y [[buffer(2)]],
                         uint i [[thread_position_in_threadgroup]], uint g [[threadgroup_position_in_grid]])
{
    if (x[g * 256] != 0xffffffffu) threadgroup_barrier(mem_flags::mem_none); // the same in all lanes
    y[g * 256 + i] = simd_sum(1u);
}
kernel void barrier_divergent(device const uint *x [[buffer(1)]], device uint *y [[buffer(2)]],
                              uint i [[thread_position_in_threadgroup]], uint g [[threadgroup_position_in_grid]])
{
    if (i < 100) threadgroup_barrier(mem_flags::mem_none);
    y[g * 256 + i] = x[0];
}
kernel void barrier_returned(device const uint *x [[buffer(1)]], device uint *y [[buffer(2)]],
                             uint i [[thread_position_in_threadgroup]])
{
    if (i >= 224) return;
    threadgroup_barrier(mem_flags::mem_none);
    y[i] = x[0];
}
kernel void barrier_two_places(device const uint *x [[buffer(1)]], device uint *y [[buffer(2)]],
                               uint i [[thread_position_in_threadgroup]])
{
    if (i < 128) {
        threadgroup_barrier(mem_flags::mem_none);
    } else {
        threadgroup_barrier(mem_flags::mem_none);
    }
    y[i] = x[0];
}
kernel void simd_divergent(device const uint *x [[buffer(1)]], device uint *y [[buffer(2)]],
                           uint i [[thread_position_in_threadgroup]])
{
    uint v = x[i];
    if (i % 32 < 16) v = simd_sum(v);
    threadgroup_barrier(mem_flags::mem_none);
    y[i] = v;
}
// A SIMD group that leaves as a whole may miss SIMD operations; a lane that left may not be read.
kernel void simd_returned_good(device const uint *x [[buffer(1)]], device uint *y [[buffer(2)]],
                               uint i [[thread_position_in_threadgroup]])
{
    if (i >= 224) return;
    y[i] = simd_sum(x[i]);
}
kernel void simd_returned_read(device const uint *x [[buffer(1)]], device uint *y [[buffer(2)]],
                               uint i [[thread_position_in_threadgroup]])
{
    if (i % 32 == 31) return;
    y[i] = simd_shuffle_xor(x[i], ushort(1));
}
kernel void broadcast_uneven(device const uint *x [[buffer(1)]], device uint *y [[buffer(2)]],
                             uint i [[thread_position_in_threadgroup]])
{
    y[i] = simd_broadcast(x[i], ushort(i & 1));
}
