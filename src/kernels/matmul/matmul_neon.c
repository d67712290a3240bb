/* SPDX-License-Identifier: MIT
 * matmul_neon.c - the matrix product for aarch64 Advanced SIMD. */
#include "kernels/matmul/matmul_lanes_neon.h"
/* The bodies use what the header above defines. */
#include "kernels/matmul/matmul_unpack_body.h"

#include "kernels/matmul/matmul_gemm_body.h"

/* Columns k..k+8 of the micro-tile: weights are multiplied by lane, codes are [256][16]. */
#define DOT_COLUMN(c)                                                                              \
    do {                                                                                           \
        const int16x8_t a0 = vld1q_s16(a + (c) * ISO_GEMM_TILE);                                   \
        const int16x8_t a1 = vld1q_s16(a + (c) * ISO_GEMM_TILE + 8);                               \
        UNROLL                                                                                     \
        for (int r = 0; r < MICRO_ROWS_ONE; r++) {                                                 \
            acc[4 * r] = vmlal_laneq_s16(acc[4 * r], vget_low_s16(a0), x[r], c);                   \
            acc[4 * r + 1] = vmlal_high_laneq_s16(acc[4 * r + 1], a0, x[r], c);                    \
            acc[4 * r + 2] = vmlal_laneq_s16(acc[4 * r + 2], vget_low_s16(a1), x[r], c);           \
            acc[4 * r + 3] = vmlal_high_laneq_s16(acc[4 * r + 3], a1, x[r], c);                    \
        }                                                                                          \
    } while (0)

ALWAYS_INLINE void dot_span(vint *acc, const struct micro *m, int nr, int nv,
                            const struct rows_block *b, size_t k, size_t n)
{
    const int16_t *w = b->w[m->r] + k;
    const int16_t *a = (const int16_t *)(m->panel + PANEL_CODES) + k * ISO_GEMM_TILE;
    UNROLL
    for (int i = 0; i < nr * nv; i++) acc[i] = vint_zero();
    for (size_t i = 0; i < n; i += 8, a += 8 * ISO_GEMM_TILE) {
        int16x8_t x[MICRO_ROWS_ONE];
        UNROLL
        for (int r = 0; r < MICRO_ROWS_ONE; r++) x[r] = vld1q_s16(w + r * ISO_CODE_BLOCK + i);
        DOT_COLUMN(0);
        DOT_COLUMN(1);
        DOT_COLUMN(2);
        DOT_COLUMN(3);
        DOT_COLUMN(4);
        DOT_COLUMN(5);
        DOT_COLUMN(6);
        DOT_COLUMN(7);
    }
}

/* Sums are i32 here: no pairs are needed. */
ALWAYS_INLINE void dot_mins(vint *acc, const struct micro *m, int nr, int nv)
{
    UNROLL
    for (int i = 0; i < nr * nv; i++) acc[i] = vint_zero();
    for (size_t j = 0; j < 8; j++) {
        UNROLL
        for (int v = 0; v < nv; v++) {
            const vint sum = vint_load(micro_panel(m, v, PANEL_SUM_P + j * 64));
            UNROLL
            for (int r = 0; r < nr; r++) {
                const int32_t min = m->b->mi[j][m->r + (size_t)r] >> 16;
                acc[r * nv + v] = vmlaq_n_s32(acc[r * nv + v], sum, min);
            }
        }
    }
}

static inline void pack_min_sum(uint8_t *to, int32_t sum, size_t j, size_t t)
{
    memcpy(to + (j * ISO_GEMM_TILE + t) * sizeof(sum), &sum, sizeof(sum));
}

/* 16 rows of 256 codes to [256][16]. */
static void pack_codes(int16_t *to, const int16_t *const row[ISO_GEMM_TILE])
{
    for (size_t k = 0; k < ISO_CODE_BLOCK; k++) {
        for (size_t t = 0; t < ISO_GEMM_TILE; t++) to[k * ISO_GEMM_TILE + t] = row[t][k];
    }
}

/* Partial sums of one weight row times one activation row over n columns. */
static inline vint dot_row(const int16_t *w, const int16_t *a, size_t n)
{
    vint lo = vint_zero(), hi = vint_zero();
    for (size_t i = 0; i < n; i += 8) {
        const int16x8_t x = vld1q_s16(w + i), y = vld1q_s16(a + i);
        lo = vmlal_s16(lo, vget_low_s16(x), vget_low_s16(y));
        hi = vmlal_high_s16(hi, x, y);
    }
    return vaddq_s32(lo, hi);
}

#include "kernels/matmul/matmul_gemv_body.h"

const struct iso_matmul_kernels iso_matmul_kernels_neon = {
    .name = "neon",
    .gemv = gemv_generic,
    .pack = pack,
    .gemm = gemm,
    .gemm_from = 9,
};
