/* SPDX-License-Identifier: MIT
 * matmul_pairs_body.h - tiled inner loops for machines whose i16 product adds neighbouring pairs.
 *
 * x86: vpmaddwd or vpdpwssd. Codes are packed [128 pairs][16 activation rows][2].
 */

ALWAYS_INLINE void dot_span(vint *acc, const struct micro *m, int nr, int nv,
                            const struct rows_block *b, size_t k, size_t n)
{
    const int16_t *w = b->w[m->r] + k;
    UNROLL
    for (int i = 0; i < nr * nv; i++) acc[i] = vint_zero();
    for (size_t i = 0; i < n; i += 2) {
        vint a[4];
        UNROLL
        for (int v = 0; v < nv; v++) {
            a[v] = vint_load(micro_panel(m, v, PANEL_CODES + (k + i) * ISO_GEMM_TILE * 2));
        }
        UNROLL
        for (int r = 0; r < nr; r++) {
            int32_t pair;
            memcpy(&pair, w + r * ISO_CODE_BLOCK + i, sizeof(pair));
            const vint x = vint_set1(pair);
            UNROLL
            for (int v = 0; v < nv; v++) acc[r * nv + v] = vint_dot(acc[r * nv + v], a[v], x);
        }
    }
}

/* Eight pairs (256 * min, min) against (sum >> 8, sum & 255). */
ALWAYS_INLINE void dot_mins(vint *acc, const struct micro *m, int nr, int nv)
{
    UNROLL
    for (int i = 0; i < nr * nv; i++) acc[i] = vint_zero();
    for (size_t j = 0; j < 8; j++) {
        UNROLL
        for (int r = 0; r < nr; r++) {
            const vint x = vint_set1(m->b->mi[j][m->r + (size_t)r]);
            UNROLL
            for (int v = 0; v < nv; v++) {
                const vint sum = vint_load(micro_panel(m, v, PANEL_SUM_P + j * 64));
                acc[r * nv + v] = vint_dot(acc[r * nv + v], sum, x);
            }
        }
    }
}

/* Sum of 32 codes of lane t as a pair. */
static inline void pack_min_sum(uint8_t *to, int32_t sum, size_t j, size_t t)
{
    int16_t *pair = (int16_t *)to + (j * ISO_GEMM_TILE + t) * 2;
    pair[0] = (int16_t)(sum >> 8);
    pair[1] = (int16_t)(sum & 255);
}

/* 16 rows of 256 codes to [128][16][2]: a transposition of 32-bit pairs. */
static void pack_codes(int16_t *to, const int16_t *const row[ISO_GEMM_TILE])
{
    for (size_t k = 0; k < ISO_CODE_BLOCK; k += 2 * LANES) {
        for (size_t t = 0; t < ISO_GEMM_TILE; t += LANES) {
            vfloat v[LANES];
            for (size_t i = 0; i < LANES; i++) v[i] = vfloat_load((const float *)(row[t + i] + k));
            vfloat_transpose(v);
            for (size_t i = 0; i < LANES; i++) {
                vfloat_store((float *)(to + (k / 2 + i) * 2 * ISO_GEMM_TILE + 2 * t), v[i]);
            }
        }
    }
}

/* Partial sums of one weight row times one activation row over n columns. */
static inline vint dot_row(const int16_t *w, const int16_t *a, size_t n)
{
    vint acc = vint_zero();
    for (size_t i = 0; i < n; i += 2 * LANES) {
        acc = vint_dot(acc, vint_load(w + i), vint_load(a + i));
    }
    return acc;
}
