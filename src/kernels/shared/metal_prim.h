/* SPDX-License-Identifier: MIT
 * metal_prim.h - what the Metal kernels share: faults, reductions, the pinned sum of squares. Metal only.
 *
 * All kernels become one text (tools/flatten_metal.py), so static names are unique through all of them. A
 * simdgroup is 32 threads. Sums of floats have a pinned order and are written out; simd_sum() is for integers,
 * simd_max() for maxima, where order does not matter.
 */
#ifndef ISO_KERNELS_SHARED_METAL_PRIM_H
#define ISO_KERNELS_SHARED_METAL_PRIM_H

#include "arith/page.h"
#include "arith/prim.h"

#if defined(__METAL_VERSION__)

#include <metal_stdlib>

using namespace metal;

/* Register arrays need constant indices: their loops are unrolled. */
#if !defined(METAL_UNROLL)
#define METAL_UNROLL _Pragma("clang loop unroll(full)")
#endif

#define METAL_LANES 32u       /* threads of a simdgroup */
#define METAL_ROW_THREADS 256u /* threads of a group that has a row: one per lane of the RMS norm */
#define METAL_HEAD_REGS 8     /* values of a head vector that a lane holds: ISO_HEAD_MAX / 32 */
#define METAL_BITS_2P60 0x5d800000u

/* struct iso_row_desc of kernels/shared/ops.h, which Metal cannot read. */
struct metal_row {
    uint session;
    uint position;
    uint first_visible[2];
};
static_assert(sizeof(struct metal_row) == 16, "struct iso_row_desc");

/* Notes the first value outside the domain; a code is never 0. The exchange may fail without cause, so it is
 * tried until the word holds somebody's code. */
static inline void metal_fault(device atomic_uint *word, uint code)
{
    uint expected = 0;
    while (!atomic_compare_exchange_weak_explicit(word, &expected, code, memory_order_relaxed,
                                                  memory_order_relaxed)) {
        if (expected != 0) return;
    }
}

/* The last five levels of section 6's tree over the lanes of a simdgroup. Additions commute, so that all lanes
 * end with the bits of lane 0: each level adds two lanes that are s apart. */
static inline float metal_tree(float l)
{
    l = l + simd_shuffle_xor(l, 16);
    l = l + simd_shuffle_xor(l, 8);
    l = l + simd_shuffle_xor(l, 4);
    l = l + simd_shuffle_xor(l, 2);
    l = l + simd_shuffle_xor(l, 1);
    return l;
}

/* Sum of squares of x [n] by a group of 256 threads: thread t is lane t of section 6, then its tree. shared
 * [256]; nobody may still read it. All threads get the sum. */
static inline float metal_sum_of_squares(device const float *x, uint n, threadgroup float *shared, uint t)
{
    float l = 0.0f;
    uint i = t;
    for (; i + 7 * METAL_ROW_THREADS < n; i += 8 * METAL_ROW_THREADS) { /* eight loads in flight */
        float v[8];
        METAL_UNROLL
        for (uint k = 0; k < 8; k++) v[k] = x[i + k * METAL_ROW_THREADS];
        METAL_UNROLL
        for (uint k = 0; k < 8; k++) l = ISO_FMA(v[k], v[k], l);
    }
    for (; i < n; i += METAL_ROW_THREADS) l = ISO_FMA(x[i], x[i], l);
    shared[t] = l;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    /* Each simdgroup runs the whole tree: one barrier instead of eight. */
    float v[8];
    METAL_UNROLL
    for (uint k = 0; k < 8; k++) v[k] = shared[t % METAL_LANES + k * METAL_LANES];
    for (uint k = 0; k < 4; k++) v[k] = v[k] + v[k + 4];
    for (uint k = 0; k < 2; k++) v[k] = v[k] + v[k + 2];
    return metal_tree(v[0] + v[1]);
}

/* The factor of an RMS norm, as rms_factor() of kernels/shared/rms.h: infinite when some |x| reaches 2^60, so
 * that the next quantisation reports it. shared [256]: barrier before it is used again. Each thread reads only
 * elements t + 256 i of x, so that it may overwrite those at once. */
static inline float metal_rms_factor(device const float *x, uint n, float eps, float inv_n,
                                     threadgroup float *shared, uint t)
{
    const float sum = metal_sum_of_squares(x, n, shared, t);
    if (!(sum < 0x1p120f)) { /* the same in all threads; never on the way of an ordinary row */
        uint m = 0;
        for (uint i = t; i < n; i += METAL_ROW_THREADS) m = max(m, iso_abs_bits(x[i]));
        m = simd_max(m);
        threadgroup uint *most = (threadgroup uint *)shared;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (t % METAL_LANES == 0) most[t / METAL_LANES] = m;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint k = 0; k < METAL_ROW_THREADS / METAL_LANES; k++) m = max(m, most[k]);
        if (m >= METAL_BITS_2P60) return ISO_AS_F32(0x7f800000u);
    }
    const float mean = sum * inv_n;
    return iso_rsqrt(mean + eps);
}

/* Butterfly of a head vector [d] in blocks of the largest power of two that divides d, strides ascending:
 * element e is x[e / 32] of lane e % 32. Elements beyond d mix only with each other. */
static inline void metal_butterfly(thread float *x, uint d, uint lane)
{
    const uint block = iso_butterfly_block(d);
    for (uint s = 1; s < METAL_LANES && s < block; s *= 2) {
        METAL_UNROLL
        for (uint j = 0; j < METAL_HEAD_REGS; j++) {
            if (METAL_LANES * j >= d) continue;
            const float other = simd_shuffle_xor(x[j], (ushort)s);
            x[j] = lane & s ? other - x[j] : x[j] + other;
        }
    }
    METAL_UNROLL
    for (uint s = 1; s < METAL_HEAD_REGS; s *= 2) {
        if (METAL_LANES * s >= block) continue;
        METAL_UNROLL
        for (uint j = 0; j < METAL_HEAD_REGS; j++) {
            if ((j & s) || METAL_LANES * j >= d) continue;
            const float u = x[j];
            const float v = x[j + s];
            x[j] = u + v;
            x[j + s] = u - v;
        }
    }
}

#endif /* __METAL_VERSION__ */

#endif
