// SPDX-License-Identifier: MIT
// kernels_bounds.metal - for the tests of the Metal emulator: kernels that leave their memory, and right twins.
#include <metal_stdlib>
using namespace metal;

#pragma METAL fp contract(off)

struct bounds_args {
    uint n;    // values in x and y
    uint past; // how far beyond
};

kernel void copy_good(constant bounds_args &a [[buffer(0)]], device const uint *x [[buffer(1)]],
                      device uint *y [[buffer(2)]], uint i [[thread_position_in_grid]])
{
    if (i < a.n) y[i] = x[i];
}
// One read, or one write, too many.
kernel void copy_read_past(constant bounds_args &a [[buffer(0)]], device const uint *x [[buffer(1)]],
                           device uint *y [[buffer(2)]], uint i [[thread_position_in_grid]])
{
    if (i < a.n) y[i] = x[i + a.past];
}
kernel void copy_write_past(constant bounds_args &a [[buffer(0)]], device const uint *x [[buffer(1)]],
                            device uint *y [[buffer(2)]], uint i [[thread_position_in_grid]])
{
    if (i < a.n) y[i + a.past] = x[i];
}
kernel void copy_read_before(constant bounds_args &a [[buffer(0)]], device const uint *x [[buffer(1)]],
                             device uint *y [[buffer(2)]], uint i [[thread_position_in_grid]])
{
    if (i < a.n) y[i] = x[int(i) - 1];
}
kernel void copy_vector(constant bounds_args &a [[buffer(0)]], device const uint4 *x [[buffer(1)]],
                        device uint4 *y [[buffer(2)]], uint i [[thread_position_in_grid]])
{
    if (i * 4 < a.n + a.past) y[i] = x[i];
}
kernel void write_input(constant bounds_args &a [[buffer(0)]], device uint *x [[buffer(1)]],
                        device uint *y [[buffer(2)]], uint i [[thread_position_in_grid]])
{
    if (i < a.n) y[i] = x[i]++;
}
kernel void group_past(constant bounds_args &a [[buffer(0)]], device const uint *x [[buffer(1)]],
                       device uint *y [[buffer(2)]], uint i [[thread_position_in_grid]],
                       uint t [[thread_position_in_threadgroup]])
{
    threadgroup uint s[64];
    threadgroup uint other[64];
    if (t < 64) s[t + a.past] = x[t];
    if (t < 64) other[t] = 1;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (i < a.n) y[i] = s[t % 64] + other[t % 64];
}
kernel void group_unwritten(constant bounds_args &a [[buffer(0)]], device const uint *x [[buffer(1)]],
                            device uint *y [[buffer(2)]], uint i [[thread_position_in_grid]],
                            uint t [[thread_position_in_threadgroup]])
{
    threadgroup uint s[64];
    if (t < 64 - a.past) s[t] = x[t];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (i < a.n) y[i] = s[t % 64];
}
kernel void group_dynamic(constant bounds_args &a [[buffer(0)]], device const uint *x [[buffer(1)]],
                          device uint *y [[buffer(2)]], threadgroup uint *s [[threadgroup(0)]],
                          uint i [[thread_position_in_grid]], uint t [[thread_position_in_threadgroup]])
{
    s[t + a.past] = i < a.n ? x[i] : 0;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (i < a.n && t + a.past < 256) y[i] = s[t + a.past];
}
kernel void group_too_large(constant bounds_args &a [[buffer(0)]], device const uint *x [[buffer(1)]],
                            device uint *y [[buffer(2)]], uint i [[thread_position_in_grid]],
                            uint t [[thread_position_in_threadgroup]])
{
    threadgroup uint s[8000], more[200];
    s[t] = x[0];
    more[t % 200] = 0;
    if (i < a.n) y[i] = s[t];
}
struct big_args {
    uint n, past, third;
};
kernel void args_past(constant big_args &a [[buffer(0)]], device const uint *x [[buffer(1)]],
                      device uint *y [[buffer(2)]], uint i [[thread_position_in_grid]])
{
    if (i < a.n) y[i] = x[i] + a.third;
}
kernel void unbound(constant bounds_args &a [[buffer(0)]], device const uint *x [[buffer(1)]],
                    device uint *y [[buffer(2)]], device uint *z [[buffer(3)]], uint i [[thread_position_in_grid]])
{
    if (i < a.n) y[i] = z[i] + x[i];
}
struct pair {
    uint v[6];
};
// A structure is copied as a whole: its last bytes are checked too.
kernel void copy_struct(constant bounds_args &a [[buffer(0)]], device const pair *x [[buffer(1)]],
                        device pair *y [[buffer(2)]], uint i [[thread_position_in_grid]])
{
    if (i * 6 < a.n + a.past) y[i] = x[i];
}
