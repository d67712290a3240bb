/* SPDX-License-Identifier: MIT
 * heads_metal.metal - one simdgroup per head vector: norm, rotation, guard, butterfly, codes.
 *
 * Element e of a head lives in lane e % 32, register e / 32: butterflies of stride 32 and more stay in a lane,
 * smaller ones are exchanges, and the norm's lanes beyond the head are +0.
 */
#include "kernels/heads/heads_metal.h"
#include "kernels/shared/metal_prim.h"

constant uint heads_d [[function_constant(ISO_METAL_HEADS_DIM)]];
constant bool heads_has_q [[function_constant(ISO_METAL_HEADS_HAS_Q)]];
constant bool heads_has_kv [[function_constant(ISO_METAL_HEADS_HAS_KV)]];
constant bool heads_has_q_norm [[function_constant(ISO_METAL_HEADS_HAS_Q_NORM)]];
constant bool heads_has_k_norm [[function_constant(ISO_METAL_HEADS_HAS_K_NORM)]];
constant uint heads_pairs [[function_constant(ISO_METAL_HEADS_PAIRS)]];
constant bool heads_has_q_tap [[function_constant(ISO_METAL_HEADS_HAS_Q_TAP)]];
constant bool heads_has_k_tap [[function_constant(ISO_METAL_HEADS_HAS_K_TAP)]];

/* enum iso_rope_pairs of heads.h, which Metal cannot read. */
#define HEADS_ROPE_NONE 0
#define HEADS_ROPE_INTERLEAVED 1

/* x [d] of a head vector into registers, +0 beyond d. */
static inline void heads_load(thread float *x, device const float *in, uint lane)
{
    METAL_UNROLL
    for (uint j = 0; j < METAL_HEAD_REGS; j++) {
        x[j] = 0.0f;
        if (lane + 32 * j < heads_d) x[j] = in[lane + 32 * j];
    }
}

/* Section 6 for one head: n <= 256, one element per lane of the norm; fma(x, x, 0) is x*x rounded once. */
static inline void heads_normalise(thread float *x, device const float *w, constant struct iso_metal_heads &a,
                                   uint lane)
{
    float l[METAL_HEAD_REGS];
    METAL_UNROLL
    for (uint j = 0; j < METAL_HEAD_REGS; j++) l[j] = x[j] * x[j];
    METAL_UNROLL
    for (uint s = METAL_HEAD_REGS / 2; s >= 1; s /= 2) {
        METAL_UNROLL
        for (uint j = 0; j < s; j++) l[j] = l[j] + l[j + s];
    }
    const float mean = metal_tree(l[0]) * a.inv_n;
    const float r = iso_rsqrt(mean + a.eps);
    METAL_UNROLL
    for (uint j = 0; j < METAL_HEAD_REGS; j++) {
        if (lane + 32 * j >= heads_d) continue;
        const float scaled = x[j] * r;
        const float weighted = scaled * w[lane + 32 * j];
        x[j] = iso_guard(weighted);
    }
}

/* Rotated value of element e < n_rot. shared [d] holds the vector: a pair's partner may be in any lane.
 * First of a pair: fma(x0, c, -(x1*s)); second: fma(x0, s, x1*c). */
static inline float heads_rotated(float x, threadgroup const float *shared, device const float *cos_sin, uint e,
                                  uint half_rot)
{
    const bool inter = heads_pairs == HEADS_ROPE_INTERLEAVED;
    const bool second = inter ? (e & 1) != 0 : e >= half_rot;
    const uint pair = inter ? e / 2 : second ? e - half_rot : e;
    const float other = shared[inter ? e ^ 1u : second ? e - half_rot : e + half_rot];
    const float c = cos_sin[2 * pair];
    const float s = cos_sin[2 * pair + 1];
    if (second) {
        const float own = x * c;
        return ISO_FMA(other, s, own);
    }
    const float product = other * s;
    return ISO_FMA(x, c, -product);
}

static inline void heads_rotate(thread float *x, threadgroup float *shared, device const float *cos_sin, uint n_rot,
                                uint lane)
{
    METAL_UNROLL
    for (uint j = 0; j < METAL_HEAD_REGS; j++) {
        if (lane + 32 * j < heads_d) shared[lane + 32 * j] = x[j];
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    METAL_UNROLL
    for (uint j = 0; j < METAL_HEAD_REGS; j++) {
        const uint e = lane + 32 * j;
        if (e < n_rot) x[j] = heads_rotated(x[j], shared, cos_sin, e, n_rot / 2);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup); /* the memory is used again for codes */
}

static inline void heads_store(device float *to, thread const float *x, uint lane)
{
    METAL_UNROLL
    for (uint j = 0; j < METAL_HEAD_REGS; j++) {
        if (lane + 32 * j < heads_d) to[lane + 32 * j] = x[j];
    }
}

/* Codes of a vector and their scale. */
struct heads_codes {
    int code[METAL_HEAD_REGS];
    float scale;
    uint most; /* largest magnitude as bits */
};

/* Codes of x within +-limit; scale and codes 0 below the floor and from 2^40 on. */
static inline struct heads_codes heads_encode(thread const float *x, int limit, float inv_limit, uint lane)
{
    struct heads_codes c;
    c.most = 0;
    METAL_UNROLL
    for (uint j = 0; j < METAL_HEAD_REGS; j++) {
        if (lane + 32 * j < heads_d) c.most = max(c.most, iso_abs_bits(x[j]));
    }
    c.most = simd_max(c.most);
    const bool none = c.most < ISO_BITS_2M28 || c.most >= ISO_BITS_2P40;
    const float top = ISO_AS_F32(none ? 0x3f800000u : c.most);
    const float inv = iso_rcp(top) * (float)limit;
    c.scale = none ? 0.0f : top * inv_limit;
    METAL_UNROLL
    for (uint j = 0; j < METAL_HEAD_REGS; j++) {
        const float scaled = x[j] * inv;
        c.code[j] = none ? 0 : clamp(iso_round_i32(scaled), -limit, limit);
    }
    return c;
}

/* The row's page of a KV head. */
static inline device uchar *heads_page(device uchar *pages, device const uint *tables,
                                       constant struct iso_metal_heads &a, struct metal_row row, uint head)
{
    const uint slot = tables[(size_t)row.session * a.table_len + row.position / ISO_PAGE_POSITIONS];
    return pages + ((size_t)slot * a.n_kv_heads + head) * iso_page_bytes(heads_d);
}

/* A key into slot (0..63) of its page. shared [d] holds the codes for the packing of low nibbles. */
static inline void heads_write_k(device uchar *page, uint slot, struct heads_codes c, threadgroup float *shared,
                                 uint lane)
{
    const uint half_d = heads_d / 2;
    threadgroup int *codes = (threadgroup int *)shared;
    METAL_UNROLL
    for (uint j = 0; j < METAL_HEAD_REGS; j++) {
        const uint e = lane + 32 * j;
        if (e >= heads_d) continue;
        codes[e] = c.code[j];
        page[slot * heads_d + e] = (uchar)(c.code[j] >> 4);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    device uchar *lo = page + iso_page_k_lo(heads_d) + slot * half_d;
    for (uint e = lane; e < half_d; e += METAL_LANES) {
        lo[e] = (uchar)((codes[e] & 15) | (codes[half_d + e] & 15) << 4);
    }
    if (lane == 0) *(device float *)(page + iso_page_k_scale(heads_d) + 4 * slot) = c.scale;
}

static inline void heads_write_v(device uchar *page, uint slot, struct heads_codes c, uint lane)
{
    device uchar *v = page + iso_page_v(heads_d) + slot;
    METAL_UNROLL
    for (uint j = 0; j < METAL_HEAD_REGS; j++) {
        const uint e = lane + 32 * j;
        if (e < heads_d) v[e * ISO_PAGE_POSITIONS] = (uchar)c.code[j];
    }
    if (lane == 0) *(device float *)(page + iso_page_v_scale(heads_d) + 4 * slot) = c.scale;
}

[[max_total_threads_per_threadgroup(ISO_METAL_HEADS_THREADS)]]
kernel void iso_heads(constant struct iso_metal_heads &a [[buffer(0)]],
                      device const float *q [[buffer(1)]],
                      device const float *k [[buffer(2)]],
                      device const float *v [[buffer(3)]],
                      device short *q_codes [[buffer(4)]],
                      device float *q_scales [[buffer(5)]],
                      device const float *q_norm [[buffer(6)]],
                      device const float *k_norm [[buffer(7)]],
                      device const float *rope [[buffer(8)]],
                      device const struct metal_row *rows [[buffer(9)]],
                      device float *q_tap [[buffer(10)]],
                      device float *k_tap [[buffer(11)]],
                      device uchar *pages [[buffer(12)]],
                      device const uint *tables [[buffer(13)]],
                      device atomic_uint *fault [[buffer(14)]],
                      threadgroup float *memory [[threadgroup(0)]],
                      uint3 group [[threadgroup_position_in_grid]],
                      uint t [[thread_index_in_threadgroup]])
{
    const uint lane = t % METAL_LANES;
    const uint d = heads_d;
    const uint n_q = heads_has_q ? a.n_heads : 0;
    const uint n_kv = heads_has_kv ? a.n_kv_heads : 0;
    const uint items = n_q + 2 * n_kv;
    const uint item = group.x * ISO_METAL_HEADS_GROUP + t / METAL_LANES;
    if (item >= items * a.n_rows) return;
    threadgroup float *shared = memory + t / METAL_LANES * ISO_HEAD_MAX;
    const uint row = item / items;
    const uint i = item % items;
    const bool is_q = i < n_q;
    const bool is_v = i >= n_q + n_kv;
    const uint head = is_q ? i : is_v ? i - n_q - n_kv : i - n_q;
    const size_t at = ((size_t)row * (is_q ? a.n_heads : a.n_kv_heads) + head) * d;
    float x[METAL_HEAD_REGS];
    heads_load(x, (is_q ? q : is_v ? v : k) + at, lane);
    if (is_q && heads_has_q_norm) heads_normalise(x, q_norm, a, lane);
    if (!is_q && !is_v && heads_has_k_norm) heads_normalise(x, k_norm, a, lane);
    if (!is_v && heads_pairs != HEADS_ROPE_NONE) {
        heads_rotate(x, shared, rope + (size_t)row * a.n_rot, a.n_rot, lane);
    }
    METAL_UNROLL
    for (uint j = 0; j < METAL_HEAD_REGS; j++) x[j] = iso_guard(x[j]);
    if (is_q && heads_has_q_tap) heads_store(q_tap + at, x, lane);
    if (!is_q && !is_v && heads_has_k_tap) heads_store(k_tap + at, x, lane);
    metal_butterfly(x, d, lane);
    const struct heads_codes c =
        is_v ? heads_encode(x, 127, 1.0f / 127.0f, lane) : heads_encode(x, 2047, 1.0f / 2047.0f, lane);
    if (is_q) {
        const uint per_kv = a.n_heads / a.n_kv_heads;
        const size_t to = ((size_t)(head / per_kv) * a.n_rows + row) * per_kv + head % per_kv;
        METAL_UNROLL
        for (uint j = 0; j < METAL_HEAD_REGS; j++) {
            if (lane + 32 * j < d) q_codes[to * d + lane + 32 * j] = (short)c.code[j];
        }
        if (lane == 0) q_scales[to] = c.scale;
    } else {
        const struct metal_row r = rows[row];
        device uchar *page = heads_page(pages, tables, a, r, head);
        const uint slot = r.position % ISO_PAGE_POSITIONS;
        if (is_v) heads_write_v(page, slot, c, lane);
        else heads_write_k(page, slot, c, shared, lane);
    }
    if (c.most >= ISO_BITS_2P40 && lane == 0) metal_fault(fault, is_q ? a.fault_q : is_v ? a.fault_v : a.fault_k);
}
