/* SPDX-License-Identifier: MIT
 * matmul_gemv_body.h - the vector product of any type: LANES weight rows at a time, lanes = rows.
 *
 * Rows are unpacked to i16 in L1, multiplied along the columns and reduced by a transposing sum, so
 * that the f32 chains of LANES outputs run side by side. Serves every type; a level may have a
 * faster way for the common ones.
 * The including file defines the lanes, dot_row() and includes matmul_unpack_body.h.
 */

/* Integer sums of LANES rows over columns [k, k + n). */
static inline vint gemv_sums(const struct rows_block *b, const int16_t *a, size_t k, size_t n)
{
    vint v[LANES];
    UNROLL
    for (size_t r = 0; r < LANES; r++) v[r] = dot_row(b->w[r] + k, a + k, n);
    return vint_sum_each(v);
}

static vfloat gemv_nvfp4(const struct rows_block *b, const struct rows_block *hi, const int16_t *a)
{
    int32_t low[LANES], high[LANES];
    float p[LANES];
    int wide = 0;
    for (size_t r = 0; r < LANES; r++) wide |= b->wide[r];
    const vint sum = gemv_sums(b, a, 0, ISO_CODE_BLOCK);
    if (!wide) return vfloat_mul(vfloat_load(b->d[0]), vint_to_float(sum));
    vint_store(low, sum);
    vint_store(high, gemv_sums(hi, a, 0, ISO_CODE_BLOCK));
    for (size_t r = 0; r < LANES; r++) {
        p[r] = (float)(low[r] + (int64_t)(b->wide[r] ? 4096 : 0) * high[r]) * b->d[0][r];
    }
    return vfloat_load(p);
}

/* p of section 5 for LANES rows and one activation row. */
static inline vfloat gemv_block(const struct rows_block *b, const struct rows_block *hi,
                                const struct form *f, const int16_t *a, const int32_t *sum32,
                                size_t n)
{
    vfloat p = vfloat_zero();
    if (f->chain == CHAIN_NVFP4) return gemv_nvfp4(b, hi, a);
    if (f->chain == CHAIN_BLOCK) {
        for (size_t j = 0; j < n / 32; j++) {
            const vint sum = gemv_sums(b, a, 32 * j, 32);
            p = vfloat_fma(vfloat_load(b->d[j]), vint_to_float(sum), p);
            if (!f->has_min) continue;
            p = vfloat_fma(vfloat_load(b->m[j]), vfloat_set1((float)sum32[j]), p);
        }
        return p;
    }
    p = vfloat_mul(vfloat_load(b->d[0]), vint_to_float(gemv_sums(b, a, 0, ISO_CODE_BLOCK)));
    if (!f->has_min) return p;
    vint mins = vint_zero();
    for (size_t j = 0; j < 8; j++) {
        mins = vint_add(mins, vint_mul(vint_high(vint_load(b->mi[j])), vint_set1(sum32[j])));
    }
    return vfloat_fma(vfloat_load(b->m[0]), vint_to_float(mins), p);
}

/* Scale, bias and store of lanes [0, n): outputs first.. of one activation row. */
static inline void gemv_store(float *y, vfloat v, const struct iso_matrix *w, size_t first,
                              size_t n)
{
    float bias[LANES] = {0};
    if (w->has_scale) v = vfloat_mul(v, vfloat_set1(w->scale));
    if (w->bias) {
        memcpy(bias, w->bias + first, n * sizeof(*bias));
        v = vfloat_add(v, vfloat_load(bias));
    }
    vfloat_store_some(y + first, v, n);
}

/* Rows r.. are one stretch of memory, read in columns, which no hardware prefetcher follows when
 * rows are short: asks for the next rows' share of block k. Beyond the end that is harmless. */
static inline void gemv_prefetch(const struct iso_matrix *w, const struct form *f, size_t r,
                                 size_t k)
{
    const uint8_t *p = w->data + (r + LANES) * w->row_bytes + k * LANES * f->block_bytes;
    for (size_t i = 0; i < LANES * f->block_bytes; i += 64) __builtin_prefetch(p + i);
}

static void gemv_generic(float *y, size_t y_stride, const struct iso_codes *a, size_t n_act,
                         const struct iso_matrix *w, size_t first_row, size_t last_row,
                         void *scratch)
{
    const struct form *f = &forms[w->type];
    struct rows_block *b = scratch, *hi = b + 1;
    for (size_t r = first_row; r < last_row; r += LANES) {
        const size_t n_rows = ISO_MIN(last_row - r, (size_t)LANES);
        vfloat acc[ISO_GEMV_MAX];
        for (size_t t = 0; t < n_act; t++) acc[t] = vfloat_zero();
        for (size_t i = n_rows; i < LANES; i++) unpack_zero_row(b, i);
        for (size_t k = 0; k < a->stride / ISO_CODE_BLOCK; k++) {
            const size_t n = ISO_MIN(a->n - k * ISO_CODE_BLOCK, (size_t)ISO_CODE_BLOCK);
            gemv_prefetch(w, f, r, k);
            for (size_t i = 0; i < n_rows; i++) {
                unpack_row(b, hi, i, f, w->data + (r + i) * w->row_bytes, k, a->n);
            }
            for (size_t t = 0; t < n_act; t++) {
                const size_t at = t * a->stride + k * ISO_CODE_BLOCK;
                const vfloat p = gemv_block(b, hi, f, a->code + at,
                                            a->sum32 + at / ISO_CODE_SUM, n);
                acc[t] = vfloat_fma(vfloat_set1(a->scale[at / ISO_CODE_BLOCK]), p, acc[t]);
            }
        }
        for (size_t t = 0; t < n_act; t++) gemv_store(y + t * y_stride, acc[t], w, r, n_rows);
    }
}
