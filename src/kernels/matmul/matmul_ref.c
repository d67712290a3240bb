/* SPDX-License-Identifier: MIT
 * matmul_ref.c - the matrix product in plain C, straight from the specification of exact-1.
 *
 * Every other variant is compared with this one, and this one with the golden vectors.
 */
#include <string.h>

#include "arith/prim.h"
#include "base/mem.h"
#include "kernels/matmul/matmul.h"
#include "kernels/shared/weight_tables.h"

/* Up to 256 weights of one row in the exact form of section 4. */
struct block {
    int32_t w[ISO_CODE_BLOCK]; /* code, or code * sub-scale */
    float d[8];                /* per 32; Superblock and NVFP4: d[0] */
    float m[8];                /* per 32 */
    float dmin;
    int32_t mi[8];
    enum { BLOCK, SUPERBLOCK, NVFP4 } form;
    int has_min;
};

static uint16_t get16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t get32(const uint8_t *p)
{
    return (uint32_t)get16(p) | (uint32_t)get16(p + 2) << 16;
}

/* Nibble i of a 32-block: the low halves are values 0-15. */
static int32_t nibble(const uint8_t *qs, int i)
{
    return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4;
}

/* 32 values of a Block type; b is the file's block. */
static void decode_block32(struct block *out, int j, enum iso_type type, const uint8_t *b)
{
    int32_t *w = out->w + 32 * j;
    const float first = iso_f16(get16(b));
    out->d[j] = first;
    switch (type) {
    case ISO_TYPE_Q4_0:
        for (int i = 0; i < 32; i++) w[i] = nibble(b + 2, i) - 8;
        break;
    case ISO_TYPE_Q4_1:
        out->m[j] = iso_f16(get16(b + 2));
        for (int i = 0; i < 32; i++) w[i] = nibble(b + 4, i);
        break;
    case ISO_TYPE_Q5_0:
        for (int i = 0; i < 32; i++) {
            w[i] = (nibble(b + 6, i) | (int32_t)(get32(b + 2) >> i & 1) << 4) - 16;
        }
        break;
    case ISO_TYPE_Q5_1:
        out->m[j] = iso_f16(get16(b + 2));
        for (int i = 0; i < 32; i++) {
            w[i] = nibble(b + 8, i) | (int32_t)(get32(b + 4) >> i & 1) << 4;
        }
        break;
    case ISO_TYPE_Q8_0:
        for (int i = 0; i < 32; i++) w[i] = (int8_t)b[2 + i];
        break;
    case ISO_TYPE_IQ4_NL:
        for (int i = 0; i < 32; i++) w[i] = iso_iq4nl_code[nibble(b + 2, i)];
        break;
    default: /* MXFP4 */
        for (int i = 0; i < 32; i++) w[i] = iso_e2m1_code[nibble(b + 1, i)];
        out->d[j] = b[0] < 64 ? 0.0f : iso_ldexp1((int32_t)b[0] - 128);
        break;
    }
}

/* 32 values of a Float type: codes of 16 bits made on the fly. */
static void decode_float32(struct block *out, int j, enum iso_type type, const uint8_t *p)
{
    float v[32];
    uint32_t max = 0;
    for (int i = 0; i < 32; i++) {
        if (type == ISO_TYPE_F32) {
            v[i] = ISO_AS_F32(get32(p + 4 * i));
        } else {
            const uint16_t h = get16(p + 2 * i);
            v[i] = type == ISO_TYPE_F16 ? iso_f16(h) : iso_bf16(h);
        }
        max = ISO_MAX(max, iso_abs_bits(v[i]));
    }
    out->d[j] = 0.0f;
    if (max < ISO_BITS_2M26) return;
    const float a = ISO_AS_F32(max);
    const float inv = iso_rcp(a) * 32767.0f;
    out->d[j] = a * (1.0f / 32767.0f);
    for (int i = 0; i < 32; i++) {
        const int32_t c = (int32_t)iso_round(v[i] * inv);
        out->w[32 * j + i] = ISO_MIN(ISO_MAX(c, -32767), 32767);
    }
}

/* Six-bit scale j and min j of Q4_K and Q5_K: s is the block's 12 bytes. */
static int32_t scale6(const uint8_t *s, int j)
{
    return j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
}

static int32_t min6(const uint8_t *s, int j)
{
    return j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
}

/* Q4_K: d dmin scales[12] qs[128]; Q5_K: d dmin scales[12] qh[32] qs[128]. */
static void decode_q45k(struct block *out, enum iso_type type, const uint8_t *b)
{
    const uint8_t *qh = b + 16;
    const uint8_t *qs = type == ISO_TYPE_Q5_K ? b + 48 : b + 16;
    out->d[0] = iso_f16(get16(b));
    out->dmin = iso_f16(get16(b + 2));
    out->has_min = 1;
    for (int j = 0; j < 8; j++) {
        const int32_t sc = scale6(b + 4, j);
        out->mi[j] = min6(b + 4, j);
        for (int i = 0; i < 32; i++) {
            const uint8_t q = qs[32 * (j / 2) + i];
            int32_t code = j % 2 ? q >> 4 : q & 15;
            if (type == ISO_TYPE_Q5_K) code |= (qh[i] >> j & 1) << 4;
            out->w[32 * j + i] = code * sc;
        }
    }
}

/* Q6_K: ql[128] qh[64] scales[16] d; two halves of 128 values, each four rows of 32. */
static void decode_q6k(struct block *out, const uint8_t *b)
{
    const int8_t *sc = (const int8_t *)b + 192;
    out->d[0] = iso_f16(get16(b + 208));
    for (int i = 0; i < 256; i++) {
        const int half = i / 128, row = i % 128 / 32, col = i % 32;
        const uint8_t ql = b[64 * half + 32 * (row % 2) + col];
        const uint8_t qh = b[128 + 32 * half + col];
        const int32_t low = row < 2 ? ql & 15 : ql >> 4;
        out->w[i] = ((low | (qh >> 2 * row & 3) << 4) - 32) * sc[i / 16];
    }
}

/* 64 values of NVFP4: four UE4M3 scales, then 8 bytes a sixteen. */
static void decode_nvfp4(struct block *out, int j, const uint8_t *b)
{
    for (int i = 0; i < 64; i++) {
        const int32_t sc = iso_ue4m3_units(b[i / 16]);
        const uint8_t q = b[4 + i / 16 * 8 + i % 8];
        out->w[64 * j + i] = iso_e2m1_code[i % 16 < 8 ? q & 15 : q >> 4] * sc;
    }
}

/* Weights [k0, k0 + n) of a row, n <= 256. */
static void decode(struct block *out, enum iso_type type, const uint8_t *row, size_t k0, size_t n)
{
    const struct iso_type_info *info = iso_type_info(type);
    const uint8_t *b = row + k0 / info->block_values * info->block_bytes;
    memset(out, 0, sizeof(*out));
    switch (type) {
    case ISO_TYPE_Q4_K:
    case ISO_TYPE_Q5_K:
        out->form = SUPERBLOCK;
        decode_q45k(out, type, b);
        return;
    case ISO_TYPE_Q6_K:
        out->form = SUPERBLOCK;
        decode_q6k(out, b);
        return;
    case ISO_TYPE_NVFP4:
        out->form = NVFP4;
        for (size_t j = 0; j < n / 64; j++) decode_nvfp4(out, (int)j, b + j * info->block_bytes);
        return;
    case ISO_TYPE_F32:
    case ISO_TYPE_F16:
    case ISO_TYPE_BF16:
        for (size_t j = 0; j < n / 32; j++) {
            decode_float32(out, (int)j, type, b + j * 32 * info->block_bytes);
        }
        return;
    default:
        out->has_min = type == ISO_TYPE_Q4_1 || type == ISO_TYPE_Q5_1;
        for (size_t j = 0; j < n / 32; j++) {
            decode_block32(out, (int)j, type, b + j * info->block_bytes);
        }
        return;
    }
}

/* p of section 5: the block's share of the output before the activation scale. */
static float block_product(const struct block *b, const int16_t *a, const int32_t *sum32, size_t n)
{
    float p = 0.0f;
    if (b->form == BLOCK) {
        for (size_t j = 0; j < n / 32; j++) {
            int32_t sum = 0;
            for (size_t i = 32 * j; i < 32 * j + 32; i++) sum += b->w[i] * a[i];
            p = ISO_FMA(b->d[j], (float)sum, p);
            if (b->has_min) p = ISO_FMA(b->m[j], (float)sum32[j], p);
        }
        return p;
    }
    int64_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += (int64_t)b->w[i] * a[i];
    if (b->form == NVFP4) return (float)sum * 0x1p-10f;
    p = b->d[0] * (float)sum;
    if (!b->has_min) return p;
    int32_t mins = 0;
    for (size_t j = 0; j < n / 32; j++) mins += b->mi[j] * sum32[j];
    return ISO_FMA(-b->dmin, (float)mins, p);
}

static float finish(float y, const struct iso_matrix *w, size_t r)
{
    if (w->has_scale) y = y * w->scale;
    if (w->bias) y = y + w->bias[r];
    return y;
}

static void product(float *y, size_t y_stride, const struct iso_codes *a, size_t n_act,
                    const struct iso_matrix *w, size_t first_row, size_t last_row)
{
    for (size_t r = first_row; r < last_row; r++) {
        for (size_t t = 0; t < n_act; t++) y[t * y_stride + r] = 0.0f;
        for (size_t k = 0; k < w->n_cols; k += ISO_CODE_BLOCK) {
            const size_t n = ISO_MIN(w->n_cols - k, (size_t)ISO_CODE_BLOCK);
            struct block b;
            decode(&b, w->type, w->data + r * w->row_bytes, k, n);
            for (size_t t = 0; t < n_act; t++) {
                const int32_t *sum32 = a->sum32 + (t * a->stride + k) / ISO_CODE_SUM;
                const float s = a->scale[(t * a->stride + k) / ISO_CODE_BLOCK];
                const float p = block_product(&b, a->code + t * a->stride + k, sum32, n);
                y[t * y_stride + r] = ISO_FMA(s, p, y[t * y_stride + r]);
            }
        }
        for (size_t t = 0; t < n_act; t++) {
            y[t * y_stride + r] = finish(y[t * y_stride + r], w, r);
        }
    }
}

static void gemv(float *y, size_t y_stride, const struct iso_codes *a, size_t n_act,
                 const struct iso_matrix *w, size_t first_row, size_t last_row, void *scratch)
{
    (void)scratch;
    product(y, y_stride, a, n_act, w, first_row, last_row);
}

/* The panel is a plain copy of the codes, padded to whole tiles. */
static void pack(void *panel, const struct iso_codes *a, size_t n_act, size_t first_tile,
                 size_t last_tile)
{
    const size_t n_rows = (n_act + ISO_GEMM_TILE - 1) / ISO_GEMM_TILE * ISO_GEMM_TILE;
    const struct iso_codes to = iso_codes_view(panel, n_rows, a->n);
    const size_t n_scale = a->stride / ISO_CODE_BLOCK, n_sum = a->stride / ISO_CODE_SUM;
    for (size_t t = first_tile * ISO_GEMM_TILE; t < last_tile * ISO_GEMM_TILE; t++) {
        if (t >= n_act) {
            memset(to.code + t * a->stride, 0, a->stride * sizeof(*to.code));
            memset(to.scale + t * n_scale, 0, n_scale * sizeof(*to.scale));
            memset(to.sum32 + t * n_sum, 0, n_sum * sizeof(*to.sum32));
            continue;
        }
        memcpy(to.code + t * a->stride, a->code + t * a->stride, a->stride * sizeof(*to.code));
        memcpy(to.scale + t * n_scale, a->scale + t * n_scale, n_scale * sizeof(*to.scale));
        memcpy(to.sum32 + t * n_sum, a->sum32 + t * n_sum, n_sum * sizeof(*to.sum32));
    }
}

static void gemm(float *y, size_t y_stride, const void *panel, size_t n_act,
                 const struct iso_matrix *w, size_t first_row, size_t last_row, void *scratch)
{
    const size_t n_rows = (n_act + ISO_GEMM_TILE - 1) / ISO_GEMM_TILE * ISO_GEMM_TILE;
    /* A view only; product() reads. */
    const struct iso_codes a = iso_codes_view((void *)(uintptr_t)panel, n_rows, w->n_cols);
    (void)scratch;
    product(y, y_stride, &a, n_act, w, first_row, last_row);
}

const struct iso_matmul_kernels iso_matmul_kernels_ref = {
    .name = "ref",
    .gemv = gemv,
    .pack = pack,
    .gemm = gemm,
    .gemm_from = 2, /* each row is decoded once per call in either */
};
