/* SPDX-License-Identifier: MIT
 * matmul_vnni_gemv_body.h - the vector product on byte planes: lanes are sixteen weight rows.
 *
 * Per 32 columns of sixteen rows: about 30 operations to load and turn the codes, shared by all
 * activation rows, and sixteen vpdpbusd with broadcast operands for each. Codes are offset to
 * unsigned; the accumulator starts at -offset * sum(a), which undoes that exactly.
 */
#include "kernels/matmul/matmul_vnni_load.h"

/* Activation rows prepared for one type, in scratch; a part that the type does not use is not made,
 * because a call may cover few weight rows. */
struct planes {
    const int32_t *code;  /* [n_act][stride / 4][2]: four hi bytes, four lo bytes: a = 16 hi + lo */
    const int32_t *init;  /* -offset * sum of 32 [n_act][stride / 32], of 16 for Q6_K and NVFP4 */
    const int32_t *pairs; /* [n_act][stride / 256][8]: sum32 halves for six-bit mins */
    const int32_t *sum32; /* [n_act][stride / 32] */
    const float *scale;   /* [n_act][stride / 256] */
    size_t stride;
    size_t n_act;
};

/* What the product of one group of sixteen rows works on. */
struct group {
    const uint8_t *row; /* first row */
    size_t stride;      /* bytes from row to row */
    size_t n_cols;
    const struct planes *a;
};

/* The sixteen rows of a group are one stretch of memory, read in columns, which no hardware
 * prefetcher follows when rows are short: asks for the next group's share of the step at b, whose
 * block has block_bytes. Harmless beyond the end of the data: a prefetch never faults. */
ALWAYS_INLINE void prefetch_next(const struct group *g, const uint8_t *b, size_t block_bytes)
{
    const uint8_t *p = g->row + 16 * g->stride + 16 * (size_t)(b - g->row);
    for (size_t i = 0; i < 16 * block_bytes; i += 64) _mm_prefetch(p + i, _MM_HINT_T0);
}

/* 32 codes as eight dwords of hi bytes and eight of lo bytes, alternating. */
static inline void split_codes(int32_t *code, __m512i v)
{
    const __m256i hi = _mm512_cvtepi16_epi8(_mm512_srai_epi16(v, 4));
    const __m256i lo = _mm512_cvtepi16_epi8(_mm512_and_si512(v, _mm512_set1_epi16(15)));
    const __m512i order = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(hi), lo, 1);
    _mm512_storeu_si512(code, _mm512_permutexvar_epi32(order, both));
}

/* factor times the sums of the two sixteens of 32 codes. */
static inline void split_sum16(int32_t *init, __m512i v, int32_t factor)
{
    __m512i s = _mm512_madd_epi16(v, _mm512_set1_epi16((int16_t)factor));
    s = _mm512_add_epi32(s, _mm512_shuffle_epi32(s, 0x4e));
    s = _mm512_add_epi32(s, _mm512_shuffle_epi32(s, 0xb1));
    s = _mm512_add_epi32(s, _mm512_shuffle_i32x4(s, s, 0xb1));
    init[0] = _mm_cvtsi128_si32(_mm512_castsi512_si128(s));
    init[1] = _mm_cvtsi128_si32(_mm512_extracti32x4_epi32(s, 2));
}

/* Sums of one block of 256 as pairs of i16: (sum j, sum j + 2) of sum >> 8, then of sum & 255. */
static void split_sums(int32_t pairs[8], const int32_t *sum32)
{
    int16_t v[16];
    for (int i = 0; i < 4; i++) { /* sums 0 2, 4 6, 1 3, 5 7 */
        const int32_t s = sum32[i % 2 * 4 + i / 2], t = sum32[i % 2 * 4 + i / 2 + 2];
        v[2 * i] = (int16_t)(s >> 8);
        v[2 * i + 1] = (int16_t)(t >> 8);
        v[8 + 2 * i] = (int16_t)(s & 255);
        v[8 + 2 * i + 1] = (int16_t)(t & 255);
    }
    memcpy(pairs, v, sizeof(v));
}

static void prepare(struct planes *o, const struct iso_codes *a, size_t n_act, enum iso_type type,
                    void *scratch)
{
    const size_t n = n_act * a->stride;
    int32_t *code = scratch, *init = code + n / 2, *pairs = init + n / 16;
    const int32_t offset = code_offset(type);
    *o = (struct planes){code, init, pairs, a->sum32, a->scale, a->stride, n_act};
    for (size_t i = 0; i < n / 32; i++) {
        split_codes(code + 16 * i, _mm512_loadu_si512(a->code + 32 * i));
    }
    if (type == ISO_TYPE_Q6_K || type == ISO_TYPE_NVFP4) {
        for (size_t i = 0; i < n / 32; i++) {
            split_sum16(init + 2 * i, _mm512_loadu_si512(a->code + 32 * i), -offset);
        }
    } else if (type == ISO_TYPE_Q4_K || type == ISO_TYPE_Q5_K) {
        for (size_t i = 0; i < n / ISO_CODE_BLOCK; i++) split_sums(pairs + 8 * i, a->sum32 + 8 * i);
    } else if (offset) {
        for (size_t i = 0; i < n / 32; i++) init[i] = -offset * a->sum32[i];
    }
}

/* init + sum of n dwords of byte products with one activation row. */
ALWAYS_INLINE __m512i dot_planes(const __m512i *w, const int32_t *code, int32_t init, int n)
{
    __m512i hi = _mm512_setzero_si512(), lo = _mm512_set1_epi32(init);
    UNROLL
    for (int k = 0; k < n; k++) {
        hi = _mm512_dpbusd_epi32(hi, w[k], _mm512_set1_epi32(code[2 * k]));
        lo = _mm512_dpbusd_epi32(lo, w[k], _mm512_set1_epi32(code[2 * k + 1]));
    }
    return _mm512_add_epi32(_mm512_slli_epi32(hi, 4), lo);
}

ALWAYS_INLINE void finish_block(__m512 *y, const __m512 *p, const struct planes *a, size_t k,
                                size_t n_act)
{
    for (size_t t = 0; t < n_act; t++) {
        const float s = a->scale[(t * a->stride + k) / ISO_CODE_BLOCK];
        y[t] = _mm512_fmadd_ps(_mm512_set1_ps(s), p[t], y[t]);
    }
}

ALWAYS_INLINE void rows_block32(__m512 *y, const struct group *g, enum iso_type type,
                                size_t block_bytes, size_t n_act)
{
    const struct planes *a = g->a;
    const int has_min = type == ISO_TYPE_Q4_1 || type == ISO_TYPE_Q5_1;
    const uint8_t *b = g->row;
    for (size_t k = 0; k < g->n_cols; k += ISO_CODE_BLOCK) {
        const size_t end = ISO_MIN(k + ISO_CODE_BLOCK, g->n_cols);
        __m512 p[ISO_GEMV_MAX];
        for (size_t t = 0; t < n_act; t++) p[t] = _mm512_setzero_ps();
        for (size_t i = k; i < end; i += 32, b += block_bytes) {
            __m512i w[8];
            __m512 d, m = _mm512_setzero_ps();
            prefetch_next(g, b, block_bytes);
            load_scales(&d, &m, type, b, g->stride);
            load_codes(w, type, b, g->stride);
            for (size_t t = 0; t < n_act; t++) {
                const size_t at = t * a->stride + i;
                const int32_t init = code_offset(type) ? a->init[at / 32] : 0;
                const __m512i sum = dot_planes(w, a->code + at / 2, init, 8);
                p[t] = _mm512_fmadd_ps(d, _mm512_cvtepi32_ps(sum), p[t]);
                if (!has_min) continue;
                p[t] = _mm512_fmadd_ps(m, _mm512_set1_ps((float)a->sum32[at / 32]), p[t]);
            }
        }
        finish_block(y, p, a, k, n_act);
    }
}

/* sum_j mi[j] * sum32[j], the sums split so that both factors fit 16 bits. */
ALWAYS_INLINE __m512i dot_six(const __m512i mi[2], const int32_t pairs[8])
{
    __m512i hi = _mm512_setzero_si512(), lo = hi;
    UNROLL
    for (int i = 0; i < 2; i++) {
        const __m512i even = _mm512_and_si512(mi[i], _mm512_set1_epi16(255));
        const __m512i odd = _mm512_srli_epi16(mi[i], 8);
        hi = _mm512_dpwssd_epi32(hi, even, _mm512_set1_epi32(pairs[i]));
        hi = _mm512_dpwssd_epi32(hi, odd, _mm512_set1_epi32(pairs[2 + i]));
        lo = _mm512_dpwssd_epi32(lo, even, _mm512_set1_epi32(pairs[4 + i]));
        lo = _mm512_dpwssd_epi32(lo, odd, _mm512_set1_epi32(pairs[6 + i]));
    }
    return _mm512_add_epi32(_mm512_slli_epi32(hi, 8), lo);
}

/* Codes of sub-block j (32 values) of Q4_K, or of Q5_K with its high bits qh. */
ALWAYS_INLINE void codes_q45k(__m512i w[8], const __m512i q[8], const __m512i *qh, int j)
{
    UNROLL
    for (int k = 0; k < 8; k++) {
        w[k] = j % 2 ? nibble_high(q[k]) : nibble_low(q[k]);
        if (!qh) continue;
        const __m512i bit = _mm512_set1_epi8(16);
        const __m512i moved =
            j > 4 ? _mm512_srli_epi16(qh[k], j > 4 ? (unsigned)j - 4 : 0)
                  : _mm512_slli_epi16(qh[k], j > 4 ? 0 : 4 - (unsigned)j);
        w[k] = _mm512_or_si512(w[k], _mm512_and_si512(moved, bit));
    }
}

ALWAYS_INLINE void rows_q45k(__m512 *y, const struct group *g, enum iso_type type, size_t n_act)
{
    const struct planes *a = g->a;
    const int five = type == ISO_TYPE_Q5_K;
    const size_t block_bytes = five ? 176 : 144;
    const uint8_t *b = g->row;
    for (size_t k = 0; k < g->n_cols; k += ISO_CODE_BLOCK, b += block_bytes) {
        __m512i head[4], sc[2], mi[2], qh[8];
        __m512i sum[ISO_GEMV_MAX];
        __m512 p[ISO_GEMV_MAX];
        prefetch_next(g, b, block_bytes);
        load_chunk(head, b, g->stride);
        load_six(sc, mi, head + 1);
        if (five) {
            load_chunk(qh, b + 16, g->stride);
            load_chunk(qh + 4, b + 32, g->stride);
        }
        for (size_t t = 0; t < n_act; t++) sum[t] = _mm512_setzero_si512();
        UNROLL
        for (int j = 0; j < 8; j += 2) {
            __m512i q[8], w[8];
            const uint8_t *qs = b + (five ? 48 : 16) + 16 * j;
            load_chunk(q, qs, g->stride);
            load_chunk(q + 4, qs + 16, g->stride);
            UNROLL
            for (int i = j; i < j + 2; i++) {
                const __m512i scale = lane_byte(sc[i / 4], i % 4);
                codes_q45k(w, q, five ? qh : NULL, i);
                for (size_t t = 0; t < n_act; t++) {
                    const int32_t *code = a->code + (t * a->stride + k + 32 * (size_t)i) / 2;
                    const __m512i v = _mm512_mullo_epi32(scale, dot_planes(w, code, 0, 8));
                    sum[t] = _mm512_add_epi32(sum[t], v);
                }
            }
        }
        for (size_t t = 0; t < n_act; t++) {
            const int32_t *pairs = a->pairs + (t * a->stride + k) / 32;
            const __m512 mins = _mm512_cvtepi32_ps(dot_six(mi, pairs));
            p[t] = _mm512_mul_ps(half_low(head[0]), _mm512_cvtepi32_ps(sum[t]));
            p[t] = _mm512_fnmadd_ps(half_high(head[0]), mins, p[t]);
        }
        finish_block(y, p, a, k, n_act);
    }
}

/* Row of 32 values of a half of Q6_K: two sixteens with their own scales. */
ALWAYS_INLINE void rows_q6k_row(__m512i *sum, const __m512i w[8], __m512i sc, int byte,
                                const struct planes *a, size_t at, size_t n_act)
{
    const __m512i s0 = lane_signed_byte(sc, byte), s1 = lane_signed_byte(sc, byte + 1);
    for (size_t t = 0; t < n_act; t++) {
        const size_t i = t * a->stride + at;
        const int32_t *code = a->code + i / 2, *init = a->init + i / 16;
        const __m512i v0 = _mm512_mullo_epi32(s0, dot_planes(w, code, init[0], 4));
        const __m512i v1 = _mm512_mullo_epi32(s1, dot_planes(w + 4, code + 8, init[1], 4));
        sum[t] = _mm512_add_epi32(sum[t], _mm512_add_epi32(v0, v1));
    }
}

ALWAYS_INLINE void rows_q6k(__m512 *y, const struct group *g, size_t n_act)
{
    const struct planes *a = g->a;
    const uint8_t *b = g->row;
    for (size_t k = 0; k < g->n_cols; k += ISO_CODE_BLOCK, b += 210) {
        __m512i sc[4], sum[ISO_GEMV_MAX];
        __m512 p[ISO_GEMV_MAX];
        prefetch_next(g, b, 210);
        load_chunk(sc, b + 192, g->stride);
        const __m512 d = half_high(load_dwords(b + 206, g->stride));
        for (size_t t = 0; t < n_act; t++) sum[t] = _mm512_setzero_si512();
        UNROLL
        for (int i = 0; i < 8; i++) {
            const int half = i / 4, row = i % 4;
            __m512i ql[8], qh[8], w[8];
            /* Rows 2 and 3 load again what rows 0 and 1 did: L1 has it, registers do not. */
            const uint8_t *low = b + 64 * half + 32 * (row % 2), *high = b + 128 + 32 * half;
            load_chunk(ql, low, g->stride);
            load_chunk(ql + 4, low + 16, g->stride);
            load_chunk(qh, high, g->stride);
            load_chunk(qh + 4, high + 16, g->stride);
            UNROLL
            for (int n = 0; n < 8; n++) {
                const __m512i moved =
                    row == 3 ? _mm512_srli_epi16(qh[n], row == 3 ? 2 : 0)
                             : _mm512_slli_epi16(qh[n], row == 3 ? 0 : 4 - 2 * (unsigned)row);
                w[n] = _mm512_or_si512(row < 2 ? nibble_low(ql[n]) : nibble_high(ql[n]),
                                       _mm512_and_si512(moved, _mm512_set1_epi8(0x30)));
            }
            rows_q6k_row(sum, w, sc[i / 2], i % 2 * 2, a, k + 32 * (size_t)i, n_act);
        }
        for (size_t t = 0; t < n_act; t++) {
            p[t] = _mm512_mul_ps(d, _mm512_cvtepi32_ps(sum[t]));
        }
        finish_block(y, p, a, k, n_act);
    }
}

/* f32(A) * 2^-10 of sixteen i64 sums: even lanes in even, odd lanes in odd. */
ALWAYS_INLINE __m512 nvfp4_product(__m512i even, __m512i odd)
{
    const __m512i e = _mm512_castps_si512(_mm512_castps256_ps512(_mm512_cvtepi64_ps(even)));
    const __m512i o = _mm512_castps_si512(_mm512_castps256_ps512(_mm512_cvtepi64_ps(odd)));
    const __m512i order = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512 v = _mm512_castsi512_ps(_mm512_permutex2var_epi32(e, order, o));
    return _mm512_mul_ps(v, _mm512_set1_ps(0x1p-10f));
}

ALWAYS_INLINE void rows_nvfp4(__m512 *y, const struct group *g, size_t n_act)
{
    const struct planes *a = g->a;
    const uint8_t *b = g->row;
    for (size_t k = 0; k < g->n_cols; k += ISO_CODE_BLOCK) {
        const size_t end = ISO_MIN(k + ISO_CODE_BLOCK, g->n_cols);
        __m512i even[ISO_GEMV_MAX], odd[ISO_GEMV_MAX];
        __m512 p[ISO_GEMV_MAX];
        for (size_t t = 0; t < n_act; t++) even[t] = odd[t] = _mm512_setzero_si512();
        for (size_t i = k; i < end; i += 64, b += 36) {
            __m512i q[8];
            prefetch_next(g, b, 36);
            const __m512i scales = load_dwords(b, g->stride);
            load_chunk(q, b + 4, g->stride);
            load_chunk(q + 4, b + 20, g->stride);
            UNROLL
            for (int s = 0; s < 4; s++) {
                const __m512i w[4] = {lookup(iso_e2m1_code, 12, nibble_low(q[2 * s])),
                                      lookup(iso_e2m1_code, 12, nibble_low(q[2 * s + 1])),
                                      lookup(iso_e2m1_code, 12, nibble_high(q[2 * s])),
                                      lookup(iso_e2m1_code, 12, nibble_high(q[2 * s + 1]))};
                const __m512i sc = lane_ue4m3(scales, s), sc_odd = _mm512_srli_epi64(sc, 32);
                for (size_t t = 0; t < n_act; t++) {
                    const size_t at = t * a->stride + i + 16 * (size_t)s;
                    const __m512i v = dot_planes(w, a->code + at / 2, a->init[at / 16], 4);
                    even[t] = _mm512_add_epi64(even[t], _mm512_mul_epi32(v, sc));
                    odd[t] = _mm512_add_epi64(
                        odd[t], _mm512_mul_epi32(_mm512_srli_epi64(v, 32), sc_odd));
                }
            }
        }
        for (size_t t = 0; t < n_act; t++) p[t] = nvfp4_product(even[t], odd[t]);
        finish_block(y, p, a, k, n_act);
    }
}

/* Outputs of sixteen rows for all activation rows: y [n_act]. */
typedef void rows_fn(__m512 *y, const struct group *g);

/* Two functions a type: one activation row, whose chain stays in registers, or several. */
#define ROWS(name, call)                                                                           \
    static void rows_one_##name(__m512 *out, const struct group *g)                                \
    {                                                                                              \
        const size_t n_act = 1;                                                                    \
        __m512 y[1] = {_mm512_setzero_ps()};                                                       \
        call;                                                                                      \
        out[0] = y[0];                                                                             \
    }                                                                                              \
    static void rows_few_##name(__m512 *y, const struct group *g)                                  \
    {                                                                                              \
        const size_t n_act = g->a->n_act;                                                          \
        for (size_t t = 0; t < n_act; t++) y[t] = _mm512_setzero_ps();                             \
        call;                                                                                      \
    }
ROWS(Q4_0, rows_block32(y, g, ISO_TYPE_Q4_0, 18, n_act))
ROWS(Q4_1, rows_block32(y, g, ISO_TYPE_Q4_1, 20, n_act))
ROWS(Q5_0, rows_block32(y, g, ISO_TYPE_Q5_0, 22, n_act))
ROWS(Q5_1, rows_block32(y, g, ISO_TYPE_Q5_1, 24, n_act))
ROWS(Q8_0, rows_block32(y, g, ISO_TYPE_Q8_0, 34, n_act))
ROWS(IQ4_NL, rows_block32(y, g, ISO_TYPE_IQ4_NL, 18, n_act))
ROWS(MXFP4, rows_block32(y, g, ISO_TYPE_MXFP4, 17, n_act))
ROWS(Q4_K, rows_q45k(y, g, ISO_TYPE_Q4_K, n_act))
ROWS(Q5_K, rows_q45k(y, g, ISO_TYPE_Q5_K, n_act))
ROWS(Q6_K, rows_q6k(y, g, n_act))
ROWS(NVFP4, rows_nvfp4(y, g, n_act))
#undef ROWS

/* NULL: the generic product serves. */
static const struct {
    rows_fn *one, *few;
} rows_table[ISO_TYPE_COUNT] = {
#define ROWS(name) [ISO_TYPE_##name] = {rows_one_##name, rows_few_##name}
    ROWS(Q4_0), ROWS(Q4_1),  ROWS(Q5_0), ROWS(Q5_1), ROWS(Q8_0), ROWS(IQ4_NL), ROWS(MXFP4),
    ROWS(Q4_K), ROWS(Q5_K), ROWS(Q6_K), ROWS(NVFP4),
#undef ROWS
};

/* Outputs of lanes [from, to) of the sixteen rows that begin at row r. */
static void rows_store(float *y, size_t y_stride, const __m512 *v, size_t n_act,
                       const struct iso_matrix *w, size_t r, size_t from, size_t to)
{
    const __mmask16 lanes = (__mmask16)((0xffffu >> (16 - to)) & (0xffffu << from));
    for (size_t t = 0; t < n_act; t++) {
        __m512 x = v[t];
        if (w->has_scale) x = _mm512_mul_ps(x, _mm512_set1_ps(w->scale));
        if (w->bias) x = _mm512_add_ps(x, _mm512_maskz_loadu_ps(lanes, w->bias + r));
        _mm512_mask_storeu_ps(y + t * y_stride + r, lanes, x);
    }
}

/* A matrix of fewer rows than sixteen: row by row, each in all lanes. */
static void gemv_tiny(float *y, size_t y_stride, struct group *g, rows_fn *rows,
                      const struct iso_matrix *w, size_t first_row, size_t last_row)
{
    __m512 v[ISO_GEMV_MAX];
    g->stride = 0;
    for (size_t r = first_row; r < last_row; r++) {
        g->row = w->data + r * w->row_bytes;
        rows(v, g);
        rows_store(y, y_stride, v, g->a->n_act, w, r, 0, 1);
    }
}

static void gemv_vnni(float *y, size_t y_stride, const struct iso_codes *a, size_t n_act,
                      const struct iso_matrix *w, size_t first_row, size_t last_row, void *scratch)
{
    rows_fn *rows = n_act == 1 ? rows_table[w->type].one : rows_table[w->type].few;
    if (!rows) {
        gemv_generic(y, y_stride, a, n_act, w, first_row, last_row, scratch);
        return;
    }
    struct planes planes;
    __m512 v[ISO_GEMV_MAX];
    prepare(&planes, a, n_act, w->type, scratch);
    struct group g = {.stride = w->row_bytes, .n_cols = w->n_cols, .a = &planes};
    if (w->n_rows < 16) {
        gemv_tiny(y, y_stride, &g, rows, w, first_row, last_row);
        return;
    }
    for (size_t r = first_row; r < last_row; r += 16) {
        /* The last group moves up, so that all its sixteen rows exist. */
        const size_t at = ISO_MIN(r, w->n_rows - 16);
        const size_t end = ISO_MIN(last_row - at, (size_t)16);
        g.row = w->data + at * w->row_bytes;
        rows(v, &g);
        rows_store(y, y_stride, v, n_act, w, at, r - at, end);
    }
}
