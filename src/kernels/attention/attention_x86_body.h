/* SPDX-License-Identifier: MIT
 * attention_x86_body.h - unpacking and the tile product for AVX2, AVX-512 and VNNI, one text.
 *
 * The including file gives, for its vector width:
 *   LANES             i32 lanes of a vector
 *   TILE_COLS         vectors of columns per pass of the tile
 *   VI                the integer vector type
 *   V(op)             the intrinsic op of that width, e.g. V(slli_epi16)
 *   V_LOAD(p), V_STORE(p, v), V_AND(a, b), V_OR(a, b), V_ZERO
 *   V_GATHER(p, step) the 16 bytes at p, p + step, p + 2*step.. side by side
 *   V_DOT(acc, a, b)  acc + the sum of the products of each pair of i16
 * A panel is made of pairs: i32 lane x of row r holds two i16 whose inner indices are neighbours in
 * the order of order_codes(), so that one multiply-add serves 2 * LANES products.
 */
#include "kernels/attention/attention_common.h"

/* Loads the 4x4 blocks of dwords of LANES rows (step bytes apart) and transposes them:
 * out[g] lane x = dword g of row x. */
static inline void transpose_4(VI out[4], const uint8_t *rows, size_t step)
{
    const VI r0 = V_GATHER(rows, 4 * step);
    const VI r1 = V_GATHER(rows + step, 4 * step);
    const VI r2 = V_GATHER(rows + 2 * step, 4 * step);
    const VI r3 = V_GATHER(rows + 3 * step, 4 * step);
    const VI t0 = V(unpacklo_epi32)(r0, r1);
    const VI t1 = V(unpacklo_epi32)(r2, r3);
    const VI t2 = V(unpackhi_epi32)(r0, r1);
    const VI t3 = V(unpackhi_epi32)(r2, r3);
    out[0] = V(unpacklo_epi64)(t0, t1);
    out[1] = V(unpackhi_epi64)(t0, t1);
    out[2] = V(unpacklo_epi64)(t2, t3);
    out[3] = V(unpackhi_epi64)(t2, t3);
}

/* Four bytes a, b, c, e become the pairs (a, c) and (b, e): in a dword they are the even and the
 * odd bytes, which two shifts reach without a shuffle. Codes follow: 0, 2, 1, 3 of each four.
 * n is a multiple of 8. */
static inline void order_codes(int16_t *restrict dst, const int16_t *restrict src, size_t n)
{
    size_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        const VI x = V(shufflelo_epi16)(V_LOAD(src + i), 0xd8);
        V_STORE(dst + i, V(shufflehi_epi16)(x, 0xd8));
    }
    for (; i < n; i += 8) {
        const __m128i x = _mm_loadu_si128((const __m128i *)(const void *)(src + i));
        const __m128i y = _mm_shufflehi_epi16(_mm_shufflelo_epi16(x, 0xd8), 0xd8);
        _mm_storeu_si128((__m128i *)(void *)(dst + i), y);
    }
}

/* Four dims of the lower half of the head, the same four of the upper half, LANES keys: row and
 * row + 1 of both halves. hi holds k >> 4, lo the low nibbles of both halves. */
static inline void store_keys(int16_t *lower, int16_t *upper, VI hi_lower, VI hi_upper, VI lo)
{
    const VI nibble = V(set1_epi16)(15);
    const VI high_byte = V(set1_epi16)(-256);
    const VI even_l = V(srai_epi16)(V(slli_epi16)(hi_lower, 8), 4);
    const VI even_u = V(srai_epi16)(V(slli_epi16)(hi_upper, 8), 4);
    const VI odd_l = V(srai_epi16)(V_AND(hi_lower, high_byte), 4);
    const VI odd_u = V(srai_epi16)(V_AND(hi_upper, high_byte), 4);
    V_STORE(lower, V_OR(even_l, V_AND(lo, nibble)));
    V_STORE(upper, V_OR(even_u, V_AND(V(srli_epi16)(lo, 4), nibble)));
    V_STORE(lower + 2 * N_KEYS, V_OR(odd_l, V_AND(V(srli_epi16)(lo, 8), nibble)));
    V_STORE(upper + 2 * N_KEYS, V_OR(odd_u, V(srli_epi16)(lo, 12)));
}

/* panel [d/2 pairs][64 keys][2]. A row of 16 dims may reach past the half of the head that it is
 * for; what it reads there is still this page, and it is not stored. */
static void unpack_keys(int16_t *panel, const uint8_t *page, const uint8_t *next, uint32_t d)
{
    const uint32_t half = d / 2;
    const uint8_t *k_lo = page + iso_page_k_lo(d);
    for (uint32_t key = 0; key < N_KEYS; key += LANES) {
        prefetch_bytes(next + (size_t)key * d, LANES * d);
        prefetch_bytes(next + iso_page_k_lo(d) + (size_t)key * half, LANES * half);
        for (uint32_t dim = 0; dim < half; dim += 16) {
            VI lower[4], upper[4], lo[4];
            transpose_4(lower, page + (size_t)key * d + dim, d);
            transpose_4(upper, page + (size_t)key * d + half + dim, d);
            transpose_4(lo, k_lo + (size_t)key * half + dim, half);
            const uint32_t n = half - dim < 16 ? (half - dim) / 4 : 4;
            int16_t *at = panel + (size_t)dim * N_KEYS + 2 * key;
            for (uint32_t g = 0; g < n; g++) {
                store_keys(at, at + (size_t)half * N_KEYS, lower[g], upper[g], lo[g]);
                at += 4 * N_KEYS;
            }
        }
    }
}

/* Blocks of 64 dims (the last may be 16, 32 or 48): [32 pairs of keys][w dims][2]. With d % 16 == 8
 * the last 8 dims are read from the scales behind the values and are never used. */
static void unpack_values(int16_t *panel, const uint8_t *page, const uint8_t *next, uint32_t d)
{
    const uint8_t *v = page + iso_page_v(d);
    const uint32_t d16 = scratch_d16(d);
    prefetch_bytes(next + iso_page_k_scale(d), 2 * N_KEYS * sizeof(float));
    for (uint32_t dim = 0; dim < d16; dim += LANES) {
        prefetch_bytes(next + iso_page_v(d) + (size_t)dim * N_KEYS, LANES * N_KEYS);
        const uint32_t block = dim & ~63u;
        const uint32_t w = d16 - block < 64 ? d16 - block : 64;
        int16_t *at = panel + (size_t)block * N_KEYS + 2 * (dim - block);
        for (uint32_t key = 0; key < N_KEYS; key += 16) {
            VI x[4];
            transpose_4(x, v + (size_t)dim * N_KEYS + key, N_KEYS);
            for (uint32_t g = 0; g < 4; g++) {
                V_STORE(at, V(srai_epi16)(V(slli_epi16)(x[g], 8), 8));
                V_STORE(at + 2 * w, V(srai_epi16)(x[g], 8));
                at += 4 * w;
            }
        }
    }
}

/* rows x cols vectors of sums in registers; both are constants of the caller. Per pair: cols loads,
 * rows broadcasts, rows * cols multiply-adds. */
static inline __attribute__((always_inline)) void tile_fixed(int32_t *out,
                                                             const int16_t *const *row,
                                                             const int16_t *panel,
                                                             uint32_t n_inner,
                                                             uint32_t w,
                                                             const uint32_t rows,
                                                             const uint32_t cols)
{
    VI acc[TILE_ROWS][TILE_COLS];
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (uint32_t c = 0; c < cols; c++) acc[r][c] = V_ZERO;
    }
    for (uint32_t i = 0; i < n_inner; i += 2) {
        VI b[TILE_COLS];
#pragma GCC unroll 4
        for (uint32_t c = 0; c < cols; c++) b[c] = V_LOAD(panel + 2 * LANES * c);
        panel += 2 * w;
#pragma GCC unroll 4
        for (uint32_t r = 0; r < rows; r++) {
            int32_t pair;
            memcpy(&pair, row[r] + i, sizeof(pair));
            const VI a = V(set1_epi32)(pair);
#pragma GCC unroll 4
            for (uint32_t c = 0; c < cols; c++) acc[r][c] = V_DOT(acc[r][c], b[c], a);
        }
    }
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (uint32_t c = 0; c < cols; c++) V_STORE(out + r * N_KEYS + LANES * c, acc[r][c]);
    }
}

/* The same for a number of rows known at run time. */
static inline __attribute__((always_inline)) void tile_cols(int32_t *out,
                                                            const int16_t *const *row,
                                                            size_t n_rows,
                                                            const int16_t *panel,
                                                            uint32_t n_inner,
                                                            uint32_t w,
                                                            const uint32_t cols)
{
    switch (n_rows) {
    case 1:
        tile_fixed(out, row, panel, n_inner, w, 1, cols);
        break;
    case 2:
        tile_fixed(out, row, panel, n_inner, w, 2, cols);
        break;
    case 3:
        tile_fixed(out, row, panel, n_inner, w, 3, cols);
        break;
    default:
        tile_fixed(out, row, panel, n_inner, w, 4, cols);
        break;
    }
}

static void tile(int32_t *out,
                 const int16_t *const *row,
                 size_t n_rows,
                 const int16_t *panel,
                 uint32_t n_inner,
                 uint32_t w)
{
    const uint32_t n_cols = w / LANES;
    uint32_t c = 0;
    for (; c + TILE_COLS <= n_cols; c += TILE_COLS) {
        tile_cols(out + LANES * c, row, n_rows, panel + 2 * LANES * c, n_inner, w, TILE_COLS);
    }
#if TILE_COLS > 2 /* w is a multiple of 16: two columns of AVX2 leave no rest */
    out += LANES * c;
    panel += 2 * LANES * c;
    switch (n_cols - c) {
    case 1:
        tile_cols(out, row, n_rows, panel, n_inner, w, 1);
        break;
    case 2:
        tile_cols(out, row, n_rows, panel, n_inner, w, 2);
        break;
    case 3:
        tile_cols(out, row, n_rows, panel, n_inner, w, 3);
        break;
    default:
        break;
    }
#endif
}
