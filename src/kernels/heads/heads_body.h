/* SPDX-License-Identifier: MIT
 * heads_body.h - the text of the head operations, compiled once per instruction set.
 *
 * The including file defines HEADS_SUFFIX and includes the vec_*.h that gives vec_butterfly(). The
 * loops are plain C; the compiler makes lanes of them, which changes no bit because every lane does
 * the same fixed sequence and the only sum (the norm) has its 256 lanes and its tree written out.
 * Source: the specification of exact-1, sections 3 and 6 to 9.
 */
#include "arith/page.h"
#include "arith/prim.h"
#include "base/buf.h"
#include "kernels/heads/heads.h"

#define HEADS_JOIN2(a, b) a##b
#define HEADS_JOIN(a, b) HEADS_JOIN2(a, b)

#define NORM_LANES 256
#define QK_LIMIT 2047.0f /* 12-bit codes of q and k */
#define V_LIMIT 127.0f   /* 8-bit codes of v */

/* One level of the norm's tree; s is a constant so that the loop has a known length. */
#define TREE_LEVEL(l, s)                                                                           \
    for (uint32_t i_ = 0; i_ < (s); i_++) (l)[i_] = (l)[i_] + (l)[i_ + (s)]

/* Sum of squares of x [d], d <= 256: each element has a lane of its own, lanes beyond d are +0. */
static float sum_of_squares(const float *restrict x, uint32_t d)
{
    float l[NORM_LANES];
    /* fma(x, x, 0) is x*x rounded once. */
    for (uint32_t i = 0; i < d; i++) l[i] = x[i] * x[i];
    /* Levels that only add +0 to lanes that are +0 or positive change nothing and are skipped. */
    const uint32_t used = d > 128 ? 256 : d > 64 ? 128 : 64;
    for (uint32_t i = d; i < used; i++) l[i] = 0.0f;
    if (d > 128) TREE_LEVEL(l, 128);
    if (d > 64) TREE_LEVEL(l, 64);
    TREE_LEVEL(l, 32);
    TREE_LEVEL(l, 16);
    TREE_LEVEL(l, 8);
    TREE_LEVEL(l, 4);
    TREE_LEVEL(l, 2);
    return l[0] + l[1];
}

/* y [d] = RMS norm of x with the head's weights; section 6. */
static void head_norm(float *restrict y, const float *restrict x, const struct iso_heads_args *a)
{
    const float t = sum_of_squares(x, a->d) * a->inv_n;
    const float r = iso_rsqrt(t + a->eps);
    const float *restrict w = a->norm;
    for (uint32_t i = 0; i < a->d; i++) y[i] = iso_guard((x[i] * r) * w[i]);
}

/* Rotates pairs (2i, 2i+1) of x [n_rot] into y and guards. */
static void rotate_interleaved(float *restrict y,
                               const float *restrict x,
                               const float *restrict cos_sin,
                               uint32_t n_rot)
{
    for (uint32_t i = 0; i < n_rot / 2; i++) {
        const float c = cos_sin[2 * i];
        const float s = cos_sin[2 * i + 1];
        const float x0 = x[2 * i];
        const float x1 = x[2 * i + 1];
        y[2 * i] = iso_guard(ISO_FMA(x0, c, -(x1 * s)));
        y[2 * i + 1] = iso_guard(ISO_FMA(x0, s, x1 * c));
    }
}

/* Rotates pairs (i, i + n_rot/2) of x [n_rot] into y and guards. */
static void rotate_halves(float *restrict y,
                          const float *restrict x,
                          const float *restrict cos_sin,
                          uint32_t n_rot)
{
    const uint32_t half = n_rot / 2;
    for (uint32_t i = 0; i < half; i++) {
        const float c = cos_sin[2 * i];
        const float s = cos_sin[2 * i + 1];
        const float x0 = x[i];
        const float x1 = x[half + i];
        y[i] = iso_guard(ISO_FMA(x0, c, -(x1 * s)));
        y[half + i] = iso_guard(ISO_FMA(x0, s, x1 * c));
    }
}

/* y [d] = x after rotation, if any, and guard. */
static void head_rotate(float *restrict y,
                        const float *restrict x,
                        const float *restrict cos_sin,
                        const struct iso_heads_args *a)
{
    uint32_t done = 0;
    if (a->pairs == ISO_ROPE_INTERLEAVED) {
        rotate_interleaved(y, x, cos_sin, a->n_rot);
        done = a->n_rot;
    } else if (a->pairs == ISO_ROPE_HALVES) {
        rotate_halves(y, x, cos_sin, a->n_rot);
        done = a->n_rot;
    }
    for (uint32_t i = done; i < a->d; i++) y[i] = iso_guard(x[i]);
}

static uint32_t head_max(const float *restrict x, uint32_t d)
{
    uint32_t m = 0;
    for (uint32_t i = 0; i < d; i++) {
        const uint32_t b = iso_abs_bits(x[i]);
        m = b > m ? b : m;
    }
    return m;
}

/* What codes of a vector are made with; scale 0 and inv 0 give codes 0. */
struct head_scale {
    float scale;
    float inv;
};

/* m is the largest magnitude as bits; from 2^40 on the caller refuses the vector. */
static struct head_scale head_scale(uint32_t m, float limit, float inv_limit)
{
    const struct head_scale none = {0.0f, 0.0f};
    if (m < ISO_BITS_2M28 || m >= ISO_BITS_2P40) return none;
    const float top = ISO_AS_F32(m);
    const struct head_scale s = {top * inv_limit, iso_rcp(top) * limit};
    return s;
}

/* x * inv rounded and clamped, as an integer. The rounding is the magic number's: its mantissa
 * holds the integer, and a value that is no number gives some integer instead of an undefined
 * conversion. */
static inline int32_t head_code(float x, float inv, int32_t limit)
{
    const int32_t r = (int32_t)(ISO_AS_U32(x * inv + 12582912.0f) - 0x4b400000u);
    const int32_t top = r > limit ? limit : r;
    return top < -limit ? -limit : top;
}

/* Norm, rotation, guard, tap, butterfly: y [d] and the largest magnitude of it. */
static uint32_t head_prepare(float *restrict y,
                             float *restrict tap,
                             const float *restrict x,
                             const float *restrict cos_sin,
                             const struct iso_heads_args *a)
{
    float normed[ISO_HEAD_MAX];
    const float *in = x;
    if (a->norm) {
        head_norm(normed, x, a);
        in = normed;
    }
    head_rotate(y, in, cos_sin, a);
    if (tap) memcpy(tap, y, a->d * sizeof(float));
    vec_butterfly(y, a->d);
    return head_max(y, a->d);
}

static uint32_t head_q(int16_t *code,
                       float *scale,
                       float *tap,
                       const float *x,
                       const float *cos_sin,
                       const struct iso_heads_args *a)
{
    float y[ISO_HEAD_MAX] __attribute__((aligned(64)));
    const uint32_t m = head_prepare(y, tap, x, cos_sin, a);
    const struct head_scale s = head_scale(m, QK_LIMIT, 1.0f / QK_LIMIT);
    int16_t *restrict out = code;
    for (uint32_t i = 0; i < a->d; i++) out[i] = (int16_t)head_code(y[i], s.inv, (int32_t)QK_LIMIT);
    *scale = s.scale;
    return m;
}

static uint32_t head_k(uint8_t *page,
                       uint32_t slot,
                       float *tap,
                       const float *x,
                       const float *cos_sin,
                       const struct iso_heads_args *a)
{
    const uint32_t d = a->d; /* a copy: stores of bytes could change *a as far as C knows */
    float y[ISO_HEAD_MAX] __attribute__((aligned(64)));
    const uint32_t m = head_prepare(y, tap, x, cos_sin, a);
    const struct head_scale s = head_scale(m, QK_LIMIT, 1.0f / QK_LIMIT);
    /* Codes first, bytes after: one loop over both would want 64 codes a turn, more than half of a
     * small head has (97 ns instead of 32 for d = 64 on AVX-512). */
    int16_t code[ISO_HEAD_MAX] __attribute__((aligned(64)));
    for (uint32_t i = 0; i < d; i++) code[i] = (int16_t)head_code(y[i], s.inv, (int32_t)QK_LIMIT);
    const uint32_t half = d / 2;
    int8_t *restrict hi = (int8_t *)page + (size_t)slot * d;
    uint8_t *restrict lo = page + iso_page_k_lo(d) + (size_t)slot * half;
    for (uint32_t i = 0; i < d; i++) hi[i] = (int8_t)(code[i] >> 4);
    for (uint32_t i = 0; i < half; i++) {
        lo[i] = (uint8_t)((code[i] & 15) | (code[half + i] & 15) << 4);
    }
    iso_put_u32(page + iso_page_k_scale(d) + 4 * slot, ISO_AS_U32(s.scale));
    return m;
}

static uint32_t head_v(uint8_t *page, uint32_t slot, const float *x, uint32_t d)
{
    float y[ISO_HEAD_MAX] __attribute__((aligned(64)));
    int8_t code[ISO_HEAD_MAX];
    const float *restrict in = x;
    for (uint32_t i = 0; i < d; i++) y[i] = iso_guard(in[i]);
    vec_butterfly(y, d);
    const uint32_t m = head_max(y, d);
    const struct head_scale s = head_scale(m, V_LIMIT, 1.0f / V_LIMIT);
    for (uint32_t i = 0; i < d; i++) code[i] = (int8_t)head_code(y[i], s.inv, (int32_t)V_LIMIT);
    int8_t *restrict v = (int8_t *)page + iso_page_v(d) + slot;
    for (uint32_t i = 0; i < d; i++) v[i * ISO_PAGE_POSITIONS] = code[i];
    iso_put_u32(page + iso_page_v_scale(d) + 4 * slot, ISO_AS_U32(s.scale));
    return m;
}

#define HEADS_STRING2(a) #a
#define HEADS_STRING(a) HEADS_STRING2(a)

extern const struct iso_heads_kernels HEADS_JOIN(iso_heads_kernels_, HEADS_SUFFIX);
const struct iso_heads_kernels HEADS_JOIN(iso_heads_kernels_, HEADS_SUFFIX) = {
    .name = HEADS_STRING(HEADS_SUFFIX),
    .q = head_q,
    .k = head_k,
    .v = head_v,
};
