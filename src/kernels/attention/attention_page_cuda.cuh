/* SPDX-License-Identifier: MIT
 * attention_page_cuda.cuh - one page seen by 16 query rows of a warp: scores to integer weights.
 *
 * A thread holds, as mma.sync lays them out, rows g and g + 8 (g = lane / 4) and of each 8 keys or
 * dimensions the two at 2 * (lane % 4).
 * Source: the specification of exact-1, section 10.
 */
#ifndef ISO_KERNELS_ATTENTION_PAGE_CUDA_CUH
#define ISO_KERNELS_ATTENTION_PAGE_CUDA_CUH

#include "kernels/attention/attention_cuda.h"
#include "kernels/shared/cuda_prim.cuh"

#define KEYS ISO_PAGE_POSITIONS
#define QUERIES 16  /* query rows of a warp */
#define P_STRIDE 80 /* bytes between rows of integer weights: 64 and a shift of banks */
#define P_PLANE (QUERIES * P_STRIDE)
#define SEGMENT_POSITIONS (ISO_SEGMENT_PAGES * ISO_PAGE_POSITIONS)

/* d += a * b on bytes; AU, BU: unsigned. */
template <bool AU, bool BU>
static __device__ __forceinline__ void mma_bytes(int32_t d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
#define MMA(types)                                                                                 \
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32." types ".s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, " \
                 "{%0,%1,%2,%3};"                                                                  \
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
    if (AU && BU) MMA("u8.u8");
    else if (AU) MMA("u8.s8");
    else if (BU) MMA("s8.u8");
    else MMA("s8.s8");
#undef MMA
}

/* d = a * b: no accumulators to clear first. */
template <bool AU, bool BU>
static __device__ __forceinline__ void mma_first(int32_t d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
#define MMA(types)                                                                                 \
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32." types ".s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, " \
                 "{%10,%10,%10,%10};"                                                              \
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0))
    if (AU && BU) MMA("u8.u8");
    else if (AU) MMA("u8.s8");
    else if (BU) MMA("s8.u8");
    else MMA("s8.s8");
#undef MMA
}

/* g() of section 1 with two instructions instead of three; equal for every input. */
static __device__ __forceinline__ float guarded(float x)
{
    return fabsf(x) < 0x1p-60f ? 0.0f : x;
}

/* How one query row sees the page: slots lo..hi; hi < lo when it sees none of it. */
struct row_view {
    float qs; /* q_scale * c */
    int lo, hi;
};

/* What the page gives to the row's state: merge(m, l, sums, unit). */
struct page_result {
    float m, l, unit;
};

static __device__ __forceinline__ float quad_max(float v)
{
    v = fmaxf(v, __shfl_xor_sync(FULL_MASK, v, 1));
    return fmaxf(v, __shfl_xor_sync(FULL_MASK, v, 2));
}

static __device__ __forceinline__ uint32_t quad_max_u32(uint32_t v)
{
    v = max(v, __shfl_xor_sync(FULL_MASK, v, 1));
    return max(v, __shfl_xor_sync(FULL_MASK, v, 2));
}

static __device__ __forceinline__ int32_t quad_sum(int32_t v)
{
    v += __shfl_xor_sync(FULL_MASK, v, 1);
    return v + __shfl_xor_sync(FULL_MASK, v, 2);
}

/* Scores of one row for N eights of keys from key `first` on; returns their maximum over visible keys.
 * MASK: some keys may be invisible. Scales of keys first + 8n + 2 * (lane % 4).. are at k_scale[n * STEP]:
 * registers, or shared memory where those are short. */
template <bool MASK, int STEP, int N>
static __device__ __forceinline__ float score_row(float *s, const int32_t (*sums)[4], int h, const row_view &v, int first,
                                                  const float2 *k_scale, const struct iso_cuda_attention &a)
{
    const int t2 = first + threadIdx.x % 4 * 2;
    float m = -INFINITY;
#pragma unroll
    for (int n = 0; n < N; n++) {
        const float2 scale = k_scale[n * STEP];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int key = 8 * n + t2 + i;
            const float x = (float)sums[n][2 * h + i] * (v.qs * (i ? scale.y : scale.x));
            s[2 * n + i] = x;
            if (!MASK || (key >= v.lo && key <= v.hi)) m = fmaxf(m, x);
        }
    }
    if (a.cap > 0.0f) { /* the largest score may be another one behind it: tanh is not monotone in its last bit */
        m = -INFINITY;
#pragma unroll
        for (int n = 0; n < 2 * N; n++) {
            const int key = 8 * (n / 2) + t2 + n % 2;
            s[n] = iso_softcap(s[n], a.cap, a.inv_cap) * ISO_LOG2E;
            if (!MASK || (key >= v.lo && key <= v.hi)) m = fmaxf(m, s[n]);
        }
    }
    return quad_max(m);
}

/* Bits of the largest v_scale over the visible ones of these keys. */
template <bool MASK, int STEP, int N>
static __device__ __forceinline__ uint32_t largest_scale(const row_view &v, int first, const float2 *v_scale)
{
    const int t2 = first + threadIdx.x % 4 * 2;
    uint32_t bits = 0;
#pragma unroll
    for (int n = 0; n < N; n++) {
        const int key = 8 * n + t2;
        const float2 scale = v_scale[n * STEP];
        if (!MASK || (key >= v.lo && key <= v.hi)) bits = max(bits, ISO_AS_U32(scale.x));
        if (!MASK || (key + 1 >= v.lo && key + 1 <= v.hi)) bits = max(bits, ISO_AS_U32(scale.y));
    }
    return quad_max_u32(bits);
}

/* E of section 10. */
static __device__ __forceinline__ int32_t scale_exponent(uint32_t bits)
{
    return bits == 0 ? 14 : (int32_t)(bits >> 23) - 126;
}

/* Integer weights of one row for these keys into its two byte planes in shared memory (p >> 7, p & 127); m
 * is the page's M. Returns their share of Lp. */
template <bool MASK, int STEP, int N>
static __device__ __forceinline__ int32_t weigh_row(uint8_t *planes, const float *s, float m, int h, const row_view &v,
                                                    int first, const float2 *v_scale, int32_t e_v)
{
    const int t2 = first + threadIdx.x % 4 * 2, row = threadIdx.x % WARP / 4 + 8 * h;
    const float up = iso_ldexp1(14 - e_v);
    uint32_t l = 0;
#pragma unroll
    for (int n = 0; n < N; n++) {
        uint32_t p[2];
        const float2 scale = v_scale[n * STEP];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int key = 8 * n + t2 + i;
            const bool seen = !MASK || (key >= v.lo && key <= v.hi);
            const float e = iso_exp2(s[2 * n + i] - m);
            /* ri(x * 2^k) as bits above those of the magic number: the product is exact, so that fusing it
             * with the addition changes nothing. */
            p[i] = ISO_AS_U32(fmaf(e * (i ? scale.y : scale.x), up, ISO_ROUND_MAGIC));
            if (!seen) p[i] = 0;
            const uint32_t share = ISO_AS_U32(fmaf(e, 65536.0f, ISO_ROUND_MAGIC)) - ISO_ROUND_MAGIC_BITS;
            l += seen ? share : 0;
        }
        const uint32_t both = __byte_perm(p[0], p[1], 0x5410); /* the integers are at most 2^14 */
        uint8_t *at = planes + row * P_STRIDE + 8 * n + t2;
        *(uint16_t *)at = (uint16_t)__byte_perm(both >> 7, 0, 0x4420);
        *(uint16_t *)(at + P_PLANE) = (uint16_t)__byte_perm(both & 0x007f007fu, 0, 0x4420);
    }
    return quad_sum((int32_t)l);
}

/* The state of a row's segment or head; o lies elsewhere. An empty one has o = 0 and l = 0, so that a
 * merge needs no second form: fma(o', unit, 0) is o'*unit. */
struct row_state {
    float m, l;
    bool empty;
};

/* Factors for o of merge(m, l, o', unit): o = fma(o', take, g(o*keep)). Updates m and l. */
static __device__ __forceinline__ void merge_factors(struct row_state &s, float m, float l, float unit, float &keep,
                                                     float &take)
{
    const float n = s.empty ? m : fmaxf(s.m, m);
    const float a = s.empty ? 1.0f : iso_pow2(s.m - n), b = iso_pow2(m - n);
    s.l = fmaf(l, b, s.l * a);
    s.m = n;
    s.empty = false;
    keep = a;
    take = b * unit;
}

#endif
