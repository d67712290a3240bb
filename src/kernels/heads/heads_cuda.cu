/* SPDX-License-Identifier: MIT
 * heads_cuda.cu - one warp per head vector: norm, rotation, guard, butterfly, codes.
 *
 * Element e of a head lives in lane e % 32, register e / 32: butterflies of stride 32 and more stay in
 * a lane, smaller ones are exchanges, and the norm's lanes beyond the head are +0.
 */
#include "kernels/heads/heads_cuda.h"

#include "kernels/heads/heads.h"
#include "kernels/shared/cuda_launch.cuh"
#include "kernels/shared/cuda_prim.cuh"

#define WARPS 4
#define REGS (ISO_HEAD_MAX / WARP)

/* Section 6 for one head: n <= 256, one element per lane of the norm. */
static __device__ __forceinline__ float sum_of_squares(const float *x)
{
    float l[REGS];
#pragma unroll
    for (int j = 0; j < REGS; j++) l[j] = x[j] * x[j];
#pragma unroll
    for (int s = REGS / 2; s >= 1; s /= 2) {
#pragma unroll
        for (int j = 0; j < s; j++) l[j] = l[j] + l[j + s];
    }
    float v = l[0];
#pragma unroll
    for (int s = 16; s >= 1; s /= 2) v = v + __shfl_down_sync(FULL_MASK, v, s);
    return __shfl_sync(FULL_MASK, v, 0);
}

static __device__ __forceinline__ void normalise(float *x, const float *w, float eps, float inv_n, uint32_t d)
{
    const uint32_t lane = threadIdx.x % WARP;
    const float t = sum_of_squares(x) * inv_n;
    const float r = iso_rsqrt(t + eps);
#pragma unroll
    for (int j = 0; j < REGS; j++) {
        const uint32_t e = lane + 32 * j;
        if (e < d) x[j] = iso_guard((x[j] * r) * w[e]);
    }
}

/* Rotation through shared memory, where a pair's partner may be in any lane; then the guard. */
static __device__ __forceinline__ void rotate(float *x, float *shared, const float *cos_sin, uint32_t pairs,
                                              uint32_t n_rot, uint32_t d)
{
    const uint32_t lane = threadIdx.x % WARP, half = n_rot / 2;
    if (pairs != ISO_ROPE_NONE) {
#pragma unroll
        for (int j = 0; j < REGS; j++) {
            if (lane + 32 * j < d) shared[lane + 32 * j] = x[j];
        }
        __syncwarp();
    }
#pragma unroll
    for (int j = 0; j < REGS; j++) {
        const uint32_t e = lane + 32 * j;
        if (e >= d) continue;
        if (pairs != ISO_ROPE_NONE && e < n_rot) {
            const bool inter = pairs == ISO_ROPE_INTERLEAVED;
            const bool second = inter ? e % 2 : e >= half;
            const uint32_t pair = inter ? e / 2 : second ? e - half : e;
            const float other = shared[inter ? e ^ 1u : second ? e - half : e + half];
            const float c = cos_sin[2 * pair], s = cos_sin[2 * pair + 1];
            /* first: fma(x0, c, -(x1*s)); second: fma(x0, s, x1*c) */
            if (second) x[j] = fmaf(other, s, x[j] * c);
            else x[j] = fmaf(x[j], c, -(other * s));
        }
        x[j] = iso_guard(x[j]);
    }
    __syncwarp();
}

/* Blocks of the largest power of two that divides d, strides ascending. */
static __device__ __forceinline__ void butterfly(float *x, uint32_t d)
{
    const uint32_t lane = threadIdx.x % WARP, block = iso_butterfly_block(d);
#pragma unroll
    for (uint32_t s = 1; s < 32; s *= 2) {
        if (s >= block) break;
#pragma unroll
        for (int j = 0; j < REGS; j++) {
            const float other = __shfl_xor_sync(FULL_MASK, x[j], s);
            x[j] = lane & s ? other - x[j] : x[j] + other;
        }
    }
#pragma unroll
    for (int s = 1; s < REGS; s *= 2) {
        if (32u * s >= block) break;
#pragma unroll
        for (int j = 0; j < REGS; j++) {
            if (j & s) continue;
            const float u = x[j], v = x[j + s];
            x[j] = u + v;
            x[j + s] = u - v;
        }
    }
}

/* Codes of x within +-limit and their scale; 0 below the floor and from 2^40 on. Returns the largest
 * magnitude as bits. */
static __device__ __forceinline__ uint32_t encode(int32_t *code, float *scale, const float *x, int32_t limit,
                                                  float inv_limit, uint32_t d)
{
    const uint32_t lane = threadIdx.x % WARP;
    uint32_t m = 0;
#pragma unroll
    for (int j = 0; j < REGS; j++) {
        if (lane + 32 * j < d) m = max(m, iso_abs_bits(x[j]));
    }
    m = warp_max(m);
    const bool none = m < ISO_BITS_2M28 || m >= ISO_BITS_2P40;
    const float top = ISO_AS_F32(none ? 0x3f800000u : m);
    const float inv = none ? 0.0f : iso_rcp(top) * (float)limit;
    *scale = none ? 0.0f : top * inv_limit;
#pragma unroll
    for (int j = 0; j < REGS; j++) code[j] = min(max(iso_round_i32(x[j] * inv), -limit), limit);
    return m;
}

static __device__ __forceinline__ uint8_t *page_of(const struct iso_cuda_heads &h, uint32_t row, uint32_t head)
{
    const struct iso_row_desc &r = h.rows[row];
    const uint32_t slot = h.tables[(size_t)r.session * h.table_len + r.position / ISO_PAGE_POSITIONS];
    return h.pages + ((size_t)slot * h.n_kv_heads + head) * iso_page_bytes(h.d);
}

static __device__ void write_q(const struct iso_cuda_heads &h, uint32_t row, uint32_t head, const int32_t *code,
                               float scale)
{
    const uint32_t group = h.n_heads / h.n_kv_heads, lane = threadIdx.x % WARP;
    const size_t to = ((size_t)(head / group) * h.n_rows + row) * group + head % group;
#pragma unroll
    for (int j = 0; j < REGS; j++) {
        if (lane + 32 * j < h.d) h.q_codes[to * h.d + lane + 32 * j] = (int16_t)code[j];
    }
    if (lane == 0) h.q_scales[to] = scale;
}

static __device__ void write_k(const struct iso_cuda_heads &h, uint32_t row, uint32_t head, const int32_t *code,
                               float scale, float *shared)
{
    const uint32_t d = h.d, half = d / 2, lane = threadIdx.x % WARP;
    const uint32_t slot = h.rows[row].position % ISO_PAGE_POSITIONS;
    uint8_t *page = page_of(h, row, head);
    int32_t *codes = (int32_t *)shared;
#pragma unroll
    for (int j = 0; j < REGS; j++) {
        const uint32_t e = lane + 32 * j;
        if (e >= d) continue;
        codes[e] = code[j];
        page[slot * d + e] = (uint8_t)(code[j] >> 4);
    }
    __syncwarp();
    uint8_t *lo = page + iso_page_k_lo(d) + slot * half;
    for (uint32_t e = lane; e < half; e += WARP) {
        lo[e] = (uint8_t)((codes[e] & 15) | (codes[half + e] & 15) << 4);
    }
    if (lane == 0) *(float *)(page + iso_page_k_scale(d) + 4 * slot) = scale;
}

static __device__ void write_v(const struct iso_cuda_heads &h, uint32_t row, uint32_t head, const int32_t *code,
                               float scale)
{
    const uint32_t d = h.d, lane = threadIdx.x % WARP;
    const uint32_t slot = h.rows[row].position % ISO_PAGE_POSITIONS;
    uint8_t *page = page_of(h, row, head);
    uint8_t *v = page + iso_page_v(d) + slot;
#pragma unroll
    for (int j = 0; j < REGS; j++) {
        const uint32_t e = lane + 32 * j;
        if (e < d) v[e * ISO_PAGE_POSITIONS] = (uint8_t)code[j];
    }
    if (lane == 0) *(float *)(page + iso_page_v_scale(d) + 4 * slot) = scale;
}

enum part { Q, K, V };

/* One head vector from its f32 values to where it goes. */
template <int PART>
static __device__ __forceinline__ void one_head(const struct iso_cuda_heads &h, uint32_t row, uint32_t head,
                                                float *shared)
{
    const uint32_t d = h.d, lane = threadIdx.x % WARP;
    const uint32_t heads = PART == Q ? h.n_heads : h.n_kv_heads;
    const size_t at = ((size_t)row * heads + head) * d;
    const float *in = (PART == Q ? h.q : PART == K ? h.k : h.v) + at;
    float x[REGS], scale = 0.0f;
#pragma unroll
    for (int j = 0; j < REGS; j++) x[j] = lane + 32 * j < d ? in[lane + 32 * j] : 0.0f;
    if (PART != V) {
        const float *norm = PART == Q ? h.q_norm : h.k_norm;
        if (norm) normalise(x, norm, h.eps, h.inv_n, d);
    }
    const float *cos_sin = h.rope ? h.rope + (size_t)row * h.n_rot : NULL;
    rotate(x, shared, cos_sin, PART == V ? (uint32_t)ISO_ROPE_NONE : h.pairs, h.n_rot, d);
    float *tap = PART == Q ? h.q_tap : PART == K ? h.k_tap : NULL;
    if (PART != V && tap) {
#pragma unroll
        for (int j = 0; j < REGS; j++) {
            if (lane + 32 * j < d) tap[at + lane + 32 * j] = x[j];
        }
    }
    butterfly(x, d);
    int32_t code[REGS];
    const uint32_t m = PART == V ? encode(code, &scale, x, 127, 1.0f / 127.0f, d)
                                 : encode(code, &scale, x, 2047, 1.0f / 2047.0f, d);
    if (PART == Q) write_q(h, row, head, code, scale);
    else if (PART == K) write_k(h, row, head, code, scale, shared);
    else write_v(h, row, head, code, scale);
    if (m >= ISO_BITS_2P40 && lane == 0) fault(h.fault, PART == Q ? h.fault_q : PART == K ? h.fault_k : h.fault_v);
}

static __global__ void __launch_bounds__(WARPS *WARP) heads_kernel(const __grid_constant__ struct iso_cuda_heads h)
{
    __shared__ float shared[WARPS][ISO_HEAD_MAX];
    grid_wait();
    grid_trigger();
    const uint32_t warp = threadIdx.x / WARP, n_q = h.q ? h.n_heads : 0, n_kv = h.k ? h.n_kv_heads : 0;
    const uint32_t items = n_q + 2 * n_kv, item = blockIdx.x * WARPS + warp;
    if (item >= items * h.n_rows) return;
    const uint32_t row = item / items, i = item % items;
    if (i < n_q) one_head<Q>(h, row, i, shared[warp]);
    else if (i < n_q + n_kv) one_head<K>(h, row, i - n_q, shared[warp]);
    else one_head<V>(h, row, i - n_q - n_kv, shared[warp]);
}

extern "C" void iso_cuda_heads(const struct iso_cuda_heads *h, struct CUstream_st *stream)
{
    const uint32_t items = ((h->q ? h->n_heads : 0) + (h->k ? 2 * h->n_kv_heads : 0)) * h->n_rows;
    launch(heads_kernel, (items + WARPS - 1) / WARPS, WARPS * WARP, 0, stream, *h);
}
