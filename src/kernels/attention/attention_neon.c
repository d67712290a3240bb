/* SPDX-License-Identifier: MIT
 * attention_neon.c - attention for aarch64: 4 rows x 4 vectors of sums, i16 panels without pairs.
 *
 * The base instruction set multiplies i16 by one lane into i32 (smlal); pairs would bring nothing,
 * so a panel is [inner][64 lanes] i16 and codes keep their order.
 */
#include "kernels/attention/attention_common.h"
#include "kernels/shared/vec_neon.h"

static void order_codes(int16_t *restrict dst, const int16_t *restrict src, size_t n)
{
    memcpy(dst, src, n * sizeof(*dst));
}

/* Writes the transpose of the 8x8 block x to rows of step codes. */
static inline void store_transposed(int16_t *dst, size_t step, const int16x8_t x[8])
{
    int16x8_t a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = vtrn1q_s16(x[i], x[i + 1]);
        a[i + 1] = vtrn2q_s16(x[i], x[i + 1]);
    }
    for (int i = 0; i < 8; i++) {
        const int32x4_t lo = vreinterpretq_s32_s16(a[(i & 4) + (i & 1)]);
        const int32x4_t hi = vreinterpretq_s32_s16(a[(i & 4) + (i & 1) + 2]);
        b[i] = vreinterpretq_s16_s32(i & 2 ? vtrn2q_s32(lo, hi) : vtrn1q_s32(lo, hi));
    }
    for (int i = 0; i < 8; i++) {
        const int64x2_t lo = vreinterpretq_s64_s16(b[i & 3]);
        const int64x2_t hi = vreinterpretq_s64_s16(b[(i & 3) + 4]);
        vst1q_s16(dst + step * (size_t)i,
                  vreinterpretq_s16_s64(i & 4 ? vtrn2q_s64(lo, hi) : vtrn1q_s64(lo, hi)));
    }
}

/* panel [d][64 keys]. Eight dims of the lower half of the head and the same eight of the upper half
 * share their bytes of low nibbles; the half is a multiple of 4, so its last eight may overlap the
 * ones before, which stores the same codes twice. */
static void unpack_keys(int16_t *panel, const uint8_t *page, const uint8_t *next, uint32_t d)
{
    const uint32_t half = d / 2;
    const uint8_t *k_lo = page + iso_page_k_lo(d);
    for (uint32_t key = 0; key < N_KEYS; key += 8) {
        prefetch_bytes(next + (size_t)key * d, 8 * d);
        prefetch_bytes(next + iso_page_k_lo(d) + (size_t)key * half, 8 * half);
        for (uint32_t at = 0; at < half; at += 8) {
            /* A head of 8 has a half of 4: its rows end inside the page, the rest is not kept. */
            const uint32_t dim = at + 8 <= half || half < 8 ? at : half - 8;
            int16x8_t lower[8], upper[8];
            for (uint32_t j = 0; j < 8; j++) {
                const int8_t *hi = (const int8_t *)page + (size_t)(key + j) * d + dim;
                const uint8x8_t lo = vld1_u8(k_lo + (size_t)(key + j) * half + dim);
                const int16x8_t l = vreinterpretq_s16_u16(vmovl_u8(vand_u8(lo, vdup_n_u8(15))));
                const int16x8_t u = vreinterpretq_s16_u16(vmovl_u8(vshr_n_u8(lo, 4)));
                lower[j] = vaddq_s16(vshll_n_s8(vld1_s8(hi), 4), l);
                upper[j] = vaddq_s16(vshll_n_s8(vld1_s8(hi + half), 4), u);
            }
            store_transposed(panel + (size_t)dim * N_KEYS + key, N_KEYS, lower);
            store_transposed(panel + (size_t)(half + dim) * N_KEYS + key, N_KEYS, upper);
        }
    }
}

/* Blocks of 64 dims (the last may be 16, 32 or 48): [64 keys][w dims]. With d % 16 == 8 the last 8
 * lanes are never used and stay what they were. */
static void unpack_values(int16_t *panel, const uint8_t *page, const uint8_t *next, uint32_t d)
{
    const int8_t *v = (const int8_t *)page + iso_page_v(d);
    const uint32_t d16 = scratch_d16(d);
    prefetch_bytes(next + iso_page_k_scale(d), 2 * N_KEYS * sizeof(float));
    for (uint32_t dim = 0; dim < d; dim += 8) {
        prefetch_bytes(next + iso_page_v(d) + (size_t)dim * N_KEYS, 8 * N_KEYS);
        const uint32_t block = dim & ~63u;
        const uint32_t w = d16 - block < 64 ? d16 - block : 64;
        int16_t *at = panel + (size_t)block * N_KEYS + (dim - block);
        for (uint32_t key = 0; key < N_KEYS; key += 8) {
            int16x8_t x[8];
            for (uint32_t i = 0; i < 8; i++) {
                x[i] = vmovl_s8(vld1_s8(v + (size_t)(dim + i) * N_KEYS + key));
            }
            store_transposed(at + (size_t)key * w, w, x);
        }
    }
}

/* acc [4] += 16 columns of one panel row times one code of a query row. */
#define TILE_STEP(acc, b0, b1, a, lane)                                                            \
    do {                                                                                           \
        (acc)[0] = vmlal_lane_s16((acc)[0], vget_low_s16(b0), a, lane);                            \
        (acc)[1] = vmlal_high_lane_s16((acc)[1], b0, a, lane);                                     \
        (acc)[2] = vmlal_lane_s16((acc)[2], vget_low_s16(b1), a, lane);                            \
        (acc)[3] = vmlal_high_lane_s16((acc)[3], b1, a, lane);                                     \
    } while (0)

/* One panel row for all rows of the tile. */
#define TILE_ROW(lane)                                                                             \
    do {                                                                                           \
        const int16x8_t b0_ = vld1q_s16(panel);                                                    \
        const int16x8_t b1_ = vld1q_s16(panel + 8);                                                \
        panel += w;                                                                                \
        for (uint32_t r_ = 0; r_ < rows; r_++) TILE_STEP(acc[r_], b0_, b1_, a[r_], lane);          \
    } while (0)

/* rows x 16 columns of sums in registers; rows is a constant of the caller. */
static inline __attribute__((always_inline)) void tile_fixed(int32_t *out,
                                                             const int16_t *const *row,
                                                             const int16_t *panel,
                                                             uint32_t n_inner,
                                                             uint32_t w,
                                                             const uint32_t rows)
{
    int32x4_t acc[TILE_ROWS][4];
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t c = 0; c < 4; c++) acc[r][c] = vdupq_n_s32(0);
    }
    for (uint32_t i = 0; i < n_inner; i += 4) {
        int16x4_t a[TILE_ROWS];
        for (uint32_t r = 0; r < rows; r++) a[r] = vld1_s16(row[r] + i);
        TILE_ROW(0);
        TILE_ROW(1);
        TILE_ROW(2);
        TILE_ROW(3);
    }
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t c = 0; c < 4; c++) vst1q_s32(out + r * N_KEYS + 4 * c, acc[r][c]);
    }
}

static void tile(int32_t *out,
                 const int16_t *const *row,
                 size_t n_rows,
                 const int16_t *panel,
                 uint32_t n_inner,
                 uint32_t w)
{
    for (uint32_t c = 0; c < w; c += 16) {
        switch (n_rows) {
        case 1:
            tile_fixed(out + c, row, panel + c, n_inner, w, 1);
            break;
        case 2:
            tile_fixed(out + c, row, panel + c, n_inner, w, 2);
            break;
        case 3:
            tile_fixed(out + c, row, panel + c, n_inner, w, 3);
            break;
        default:
            tile_fixed(out + c, row, panel + c, n_inner, w, 4);
            break;
        }
    }
}

#define ATTENTION_SUFFIX neon
#include "kernels/attention/attention_body.h"
