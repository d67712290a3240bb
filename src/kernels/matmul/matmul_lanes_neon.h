/* SPDX-License-Identifier: MIT
 * matmul_lanes_neon.h - four-lane vectors and sixteen byte codes for the product bodies, aarch64.
 *
 * Base Advanced SIMD only (no dot-product extension): widening multiply-adds by lane.
 */
#ifndef ISO_KERNELS_MATMUL_LANES_NEON_H
#define ISO_KERNELS_MATMUL_LANES_NEON_H

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LANES 4

/* A micro-tile is one activation tile (four vectors) x 4 weight rows: sixteen accumulators, four
 * registers of weights and two of activations of 32. */
#define MICRO_TILES 1
#define MICRO_ROWS_ONE 4

typedef int32x4_t vint;
typedef float32x4_t vfloat;
typedef uint8x16_t bytes;

/* clang-format off */
static inline vint vint_zero(void) { return vdupq_n_s32(0); }
static inline vint vint_load(const void *p) { return vld1q_s32(p); }
static inline void vint_store(void *p, vint a) { vst1q_s32(p, a); }
static inline vint vint_set1(int32_t x) { return vdupq_n_s32(x); }
static inline vint vint_add(vint a, vint b) { return vaddq_s32(a, b); }
static inline vint vint_mul(vint a, vint b) { return vmulq_s32(a, b); }
static inline vint vint_high(vint a) { return vshrq_n_s32(a, 16); } /* of a positive pair */
static inline vfloat vint_to_float(vint a) { return vcvtq_f32_s32(a); }
static inline vfloat vfloat_zero(void) { return vdupq_n_f32(0.0f); }
static inline vfloat vfloat_load(const float *p) { return vld1q_f32(p); }
static inline void vfloat_store(float *p, vfloat a) { vst1q_f32(p, a); }
static inline vfloat vfloat_set1(float x) { return vdupq_n_f32(x); }
static inline vfloat vfloat_add(vfloat a, vfloat b) { return vaddq_f32(a, b); }
static inline vfloat vfloat_mul(vfloat a, vfloat b) { return vmulq_f32(a, b); }
static inline vfloat vfloat_fma(vfloat a, vfloat b, vfloat c) { return vfmaq_f32(c, a, b); }
/* clang-format on */

/* Stores lanes [0, n). */
static inline void vfloat_store_some(float *p, vfloat a, size_t n)
{
    float v[LANES];
    vst1q_f32(v, a);
    memcpy(p, v, n * sizeof(*v));
}

/* 4 x 4: lane j of v[i] becomes lane i of v[j]. */
static inline void vfloat_transpose(vfloat v[LANES])
{
    const float32x4x2_t a = vzipq_f32(v[0], v[2]), b = vzipq_f32(v[1], v[3]);
    const float32x4x2_t lo = vzipq_f32(a.val[0], b.val[0]), hi = vzipq_f32(a.val[1], b.val[1]);
    v[0] = lo.val[0];
    v[1] = lo.val[1];
    v[2] = hi.val[0];
    v[3] = hi.val[1];
}

/* Lane i of the result is the sum of the lanes of v[i]. */
static inline vint vint_sum_each(const vint v[LANES])
{
    return vpaddq_s32(vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3]));
}

static inline bytes bytes_load(const void *p) { return vld1q_u8(p); }
static inline bytes bytes_set1(int x) { return vdupq_n_u8((uint8_t)x); }
static inline bytes bytes_or(bytes a, bytes b) { return vorrq_u8(a, b); }
static inline bytes bytes_sub(bytes a, bytes b) { return vsubq_u8(a, b); }
static inline bytes bytes_low(bytes a) { return vandq_u8(a, vdupq_n_u8(15)); }
static inline bytes bytes_high(bytes a) { return vshrq_n_u8(a, 4); }

/* Bits [from, from + n) of each byte moved to bit `to`. */
static inline bytes bytes_field(bytes a, int from, int n, int to)
{
    const bytes moved = vshlq_u8(a, vdupq_n_s8((int8_t)(to - from)));
    return vandq_u8(moved, vdupq_n_u8((uint8_t)(((1 << n) - 1) << to)));
}

/* Byte i is table[index i], indices below 16. */
static inline bytes bytes_lookup(const int8_t table[16], bytes index)
{
    return vreinterpretq_u8_s8(vqtbl1q_s8(vld1q_s8(table), index));
}

/* Byte i is 16 where bit i of the sixteen bits at p is set. */
static inline bytes bytes_bit4(const uint8_t *p)
{
    const uint8x8_t select = vcreate_u8(0x8040201008040201u);
    const uint8x16_t v = vcombine_u8(vtst_u8(vdup_n_u8(p[0]), select),
                                     vtst_u8(vdup_n_u8(p[1]), select));
    return vandq_u8(v, vdupq_n_u8(16));
}

/* Eight bytes at p as sixteen nibbles, the low ones first. */
static inline bytes bytes_nibbles8(const uint8_t *p)
{
    const uint8x8_t q = vld1_u8(p);
    return vcombine_u8(vand_u8(q, vdup_n_u8(15)), vshr_n_u8(q, 4));
}

/* Sixteen signed codes as i16. */
static inline void bytes_store(int16_t *w, bytes a)
{
    const int8x16_t s = vreinterpretq_s8_u8(a);
    vst1q_s16(w, vmovl_s8(vget_low_s8(s)));
    vst1q_s16(w + 8, vmovl_high_s8(s));
}

/* Sixteen signed codes times s, the low 16 bits. */
static inline void bytes_store_times(int16_t *w, bytes a, int16_t s)
{
    const int8x16_t v = vreinterpretq_s8_u8(a);
    vst1q_s16(w, vmulq_n_s16(vmovl_s8(vget_low_s8(v)), s));
    vst1q_s16(w + 8, vmulq_n_s16(vmovl_high_s8(v), s));
}

static inline float float_of_f16(uint16_t h)
{
    return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h))), 0);
}

/* 256 halves as f32, exactly. */
static inline void floats_of_f16(float v[256], const uint16_t h[256])
{
    for (int i = 0; i < 256; i += 4) {
        vst1q_f32(v + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(h + i))));
    }
}

static inline void floats_of_bf16(float v[256], const uint16_t h[256])
{
    for (int i = 0; i < 256; i += 4) {
        vst1q_f32(v + i, vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(h + i), 16)));
    }
}

#endif
