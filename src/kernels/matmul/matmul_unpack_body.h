/* SPDX-License-Identifier: MIT
 * matmul_unpack_body.h - one block of 256 columns of a weight row as i16, for the generic products.
 *
 * Sixteen byte codes at a time through the including file's bytes type; the float types are plain
 * loops that the compiler vectorises. Rows are unpacked once and used for every activation row, so
 * this is a few percent of a tiled product.
 * Source: the specification of exact-1, section 4; layouts as in format/types.h and GGUF.
 */
#include <string.h>

#include "arith/prim.h"
#include "base/mem.h"
#include "kernels/matmul/matmul_layout.h"
#include "kernels/shared/weight_tables.h"

/* Where one row of a rows_block goes; what lies beyond the n columns is not used. */
struct unpacked_row {
    int16_t *restrict w;  /* [256] */
    int16_t *restrict hi; /* [256] NVFP4 only: plane of weight 4096, written when *wide */
    float *restrict d;    /* [8], GROUP_ROWS apart; so are m and mi */
    float *restrict m;
    int32_t *restrict mi;
    uint8_t *wide;
};

/* b: the row's bytes at the block; n columns, at most 256. */
typedef void unpack_fn(const struct unpacked_row *o, const uint8_t *restrict b, size_t n);

static inline float load_f16(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof(h));
    return float_of_f16(h);
}

static void unpack_q4_0(const struct unpacked_row *o, const uint8_t *restrict b, size_t n)
{
    for (size_t j = 0; j < n / 32; j++, b += 18) {
        const bytes q = bytes_load(b + 2);
        o->d[j * GROUP_ROWS] = load_f16(b);
        bytes_store(o->w + 32 * j, bytes_sub(bytes_low(q), bytes_set1(8)));
        bytes_store(o->w + 32 * j + 16, bytes_sub(bytes_high(q), bytes_set1(8)));
    }
}

static void unpack_q4_1(const struct unpacked_row *o, const uint8_t *restrict b, size_t n)
{
    for (size_t j = 0; j < n / 32; j++, b += 20) {
        const bytes q = bytes_load(b + 4);
        o->d[j * GROUP_ROWS] = load_f16(b);
        o->m[j * GROUP_ROWS] = load_f16(b + 2);
        bytes_store(o->w + 32 * j, bytes_low(q));
        bytes_store(o->w + 32 * j + 16, bytes_high(q));
    }
}

static void unpack_q5_0(const struct unpacked_row *o, const uint8_t *restrict b, size_t n)
{
    for (size_t j = 0; j < n / 32; j++, b += 22) {
        const bytes q = bytes_load(b + 6);
        const bytes low = bytes_or(bytes_low(q), bytes_bit4(b + 2));
        const bytes high = bytes_or(bytes_high(q), bytes_bit4(b + 4));
        o->d[j * GROUP_ROWS] = load_f16(b);
        bytes_store(o->w + 32 * j, bytes_sub(low, bytes_set1(16)));
        bytes_store(o->w + 32 * j + 16, bytes_sub(high, bytes_set1(16)));
    }
}

static void unpack_q5_1(const struct unpacked_row *o, const uint8_t *restrict b, size_t n)
{
    for (size_t j = 0; j < n / 32; j++, b += 24) {
        const bytes q = bytes_load(b + 8);
        o->d[j * GROUP_ROWS] = load_f16(b);
        o->m[j * GROUP_ROWS] = load_f16(b + 2);
        bytes_store(o->w + 32 * j, bytes_or(bytes_low(q), bytes_bit4(b + 4)));
        bytes_store(o->w + 32 * j + 16, bytes_or(bytes_high(q), bytes_bit4(b + 6)));
    }
}

static void unpack_q8_0(const struct unpacked_row *o, const uint8_t *restrict b, size_t n)
{
    for (size_t j = 0; j < n / 32; j++, b += 34) {
        o->d[j * GROUP_ROWS] = load_f16(b);
        bytes_store(o->w + 32 * j, bytes_load(b + 2));
        bytes_store(o->w + 32 * j + 16, bytes_load(b + 18));
    }
}

static void unpack_iq4_nl(const struct unpacked_row *o, const uint8_t *restrict b, size_t n)
{
    for (size_t j = 0; j < n / 32; j++, b += 18) {
        const bytes q = bytes_load(b + 2);
        o->d[j * GROUP_ROWS] = load_f16(b);
        bytes_store(o->w + 32 * j, bytes_lookup(iso_iq4nl_code, bytes_low(q)));
        bytes_store(o->w + 32 * j + 16, bytes_lookup(iso_iq4nl_code, bytes_high(q)));
    }
}

static void unpack_mxfp4(const struct unpacked_row *o, const uint8_t *restrict b, size_t n)
{
    for (size_t j = 0; j < n / 32; j++, b += 17) {
        const bytes q = bytes_load(b + 1);
        o->d[j * GROUP_ROWS] = b[0] < 64 ? 0.0f : iso_ldexp1((int32_t)b[0] - 128);
        bytes_store(o->w + 32 * j, bytes_lookup(iso_e2m1_code, bytes_low(q)));
        bytes_store(o->w + 32 * j + 16, bytes_lookup(iso_e2m1_code, bytes_high(q)));
    }
}

/* The eight 6-bit scales and mins that Q4_K and Q5_K pack into 12 bytes, four bytes at a time. */
static inline void unpack_six(uint8_t sc[8], uint8_t mi[8], const uint8_t *restrict b)
{
    uint32_t s[3];
    memcpy(s, b, sizeof(s));
    const uint32_t out[4] = {
        s[0] & 0x3f3f3f3fu, (s[2] & 0x0f0f0f0fu) | (s[0] >> 2 & 0x30303030u),
        s[1] & 0x3f3f3f3fu, (s[2] >> 4 & 0x0f0f0f0fu) | (s[1] >> 2 & 0x30303030u)};
    memcpy(sc, out, 8);
    memcpy(mi, out + 2, 8);
}

static inline void unpack_q45k_scales(const struct unpacked_row *o, uint8_t *restrict sc,
                                      const uint8_t *restrict b)
{
    uint8_t mi[8];
    o->d[0] = load_f16(b);
    o->m[0] = -load_f16(b + 2);
    unpack_six(sc, mi, b + 4);
    for (size_t j = 0; j < 8; j++) {
        o->mi[j * GROUP_ROWS] = layout_min_pair(mi[j]);
    }
}

static void unpack_q4_k(const struct unpacked_row *o, const uint8_t *restrict b, size_t n)
{
    uint8_t sc[8];
    (void)n;
    unpack_q45k_scales(o, sc, b);
    for (int j = 0; j < 8; j++) {
        for (int i = 0; i < 32; i += 16) {
            const bytes q = bytes_load(b + 16 + 32 * (j / 2) + i);
            bytes_store_times(o->w + 32 * j + i, j % 2 ? bytes_high(q) : bytes_low(q), sc[j]);
        }
    }
}

static void unpack_q5_k(const struct unpacked_row *o, const uint8_t *restrict b, size_t n)
{
    uint8_t sc[8];
    (void)n;
    unpack_q45k_scales(o, sc, b);
    UNROLL
    for (int j = 0; j < 8; j++) {
        for (int i = 0; i < 32; i += 16) {
            const bytes q = bytes_load(b + 48 + 32 * (j / 2) + i);
            const bytes bit = bytes_field(bytes_load(b + 16 + i), j, 1, 4);
            const bytes code = bytes_or(j % 2 ? bytes_high(q) : bytes_low(q), bit);
            bytes_store_times(o->w + 32 * j + i, code, sc[j]);
        }
    }
}

static void unpack_q6_k(const struct unpacked_row *o, const uint8_t *restrict b, size_t n)
{
    (void)n;
    o->d[0] = load_f16(b + 208);
    UNROLL
    for (int g = 0; g < 16; g++) { /* sixteens; a half is four rows of 32 values */
        const int half = g / 8, row = g % 8 / 2, i = g % 2 * 16;
        const bytes ql = bytes_load(b + 64 * half + 32 * (row % 2) + i);
        const bytes qh = bytes_field(bytes_load(b + 128 + 32 * half + i), 2 * row, 2, 4);
        const bytes code = bytes_or(row < 2 ? bytes_low(ql) : bytes_high(ql), qh);
        bytes_store_times(o->w + 16 * g, bytes_sub(code, bytes_set1(32)), (int8_t)b[192 + g]);
    }
}

/* Sixteen codes in w times sc as w + 4096 * hi. */
static inline void split_planes(int16_t *restrict w, int16_t *restrict hi, int32_t sc)
{
    for (int i = 0; i < 16; i++) {
        const int32_t v = w[i] * sc;
        const int32_t low = ((v + 2048) & 4095) - 2048;
        w[i] = (int16_t)low;
        hi[i] = (int16_t)((v - low) >> 12);
    }
}

/* Codes times scales, shifted right by what all scales share; where that does not fit 13 bits, two
 * planes: w + 4096 * hi, each within 13 bits, unshifted. */
static void unpack_nvfp4(const struct unpacked_row *o, const uint8_t *restrict b, size_t n)
{
    uint8_t byte[16] = {0};
    int32_t sc[16];
    int32_t any = 0, max = 0;
    for (size_t j = 0; j < 4; j++) {
        if (64 * j < n) memcpy(byte + 4 * j, b + 36 * j, 4);
    }
    for (size_t g = 0; g < 16; g++) {
        sc[g] = iso_ue4m3_units(byte[g]);
        any |= sc[g];
        max = ISO_MAX(max, sc[g]);
    }
    const int shift = any ? __builtin_ctz((unsigned)any) : 0;
    const int wide = (max >> shift) * 12 > 4096;
    *o->wide = (uint8_t)wide;
    o->d[0] = iso_ldexp1(wide ? -10 : shift - 10);
    for (size_t g = 0; g < n / 16; g++) {
        const uint8_t *q = b + g / 4 * 36 + 4 + g % 4 * 8;
        const bytes codes = bytes_lookup(iso_e2m1_code, bytes_nibbles8(q));
        if (!wide) {
            bytes_store_times(o->w + 16 * g, codes, (int16_t)(sc[g] >> shift));
            continue;
        }
        bytes_store(o->w + 16 * g, codes);
        split_planes(o->w + 16 * g, o->hi + 16 * g, sc[g]);
    }
    if (wide) memset(o->hi + n, 0, (ISO_CODE_BLOCK - n) * sizeof(*o->hi));
}

/* v [256] f32, zero beyond the row's columns, to 16-bit codes per 32. Three plain loops over
 * constants, so that each becomes vectors. */
static inline void unpack_floats(const struct unpacked_row *o, const float *restrict v)
{
    uint32_t max[8];
    float inv[8];
    for (size_t j = 0; j < 8; j++) {
        max[j] = 0;
        for (size_t i = 0; i < 32; i++) max[j] = ISO_MAX(max[j], iso_abs_bits(v[32 * j + i]));
    }
    for (size_t j = 0; j < 8; j++) {
        /* Below the floor any value of the domain serves in rcp: both factors become zero. */
        const int zero = max[j] < ISO_BITS_2M26;
        const float a = ISO_AS_F32(zero ? 0x3f800000u : max[j]);
        const float d = a * (1.0f / 32767.0f), r = iso_rcp(a) * 32767.0f;
        o->d[j * GROUP_ROWS] = zero ? 0.0f : d;
        inv[j] = zero ? 0.0f : r;
    }
    for (size_t j = 0; j < 8; j++) {
        for (size_t i = 32 * j; i < 32 * j + 32; i++) {
            /* The low half of x + 1.5 * 2^23 is ri(x). No clamp can act: |x| <= a * rcp(a) * 32767,
             * and rcp is good to a few units in the last place. */
            o->w[i] = (int16_t)(ISO_AS_U32(v[i] * inv[j] + 12582912.0f) & 0xffff);
        }
    }
}

/* n values of size bytes, zero beyond. The whole block has a length that the compiler knows. */
static inline void load_values(void *restrict to, const uint8_t *restrict b, size_t n, size_t size)
{
    if (n == ISO_CODE_BLOCK) {
        memcpy(to, b, ISO_CODE_BLOCK * size);
        return;
    }
    memset(to, 0, ISO_CODE_BLOCK * size);
    memcpy(to, b, n * size);
}

static void unpack_f32(const struct unpacked_row *o, const uint8_t *restrict b, size_t n)
{
    float v[ISO_CODE_BLOCK];
    load_values(v, b, n, sizeof(*v));
    unpack_floats(o, v);
}

static void unpack_f16(const struct unpacked_row *o, const uint8_t *restrict b, size_t n)
{
    float v[ISO_CODE_BLOCK];
    uint16_t h[ISO_CODE_BLOCK];
    load_values(h, b, n, sizeof(*h));
    floats_of_f16(v, h);
    unpack_floats(o, v);
}

static void unpack_bf16(const struct unpacked_row *o, const uint8_t *restrict b, size_t n)
{
    float v[ISO_CODE_BLOCK];
    uint16_t h[ISO_CODE_BLOCK];
    load_values(h, b, n, sizeof(*h));
    floats_of_bf16(v, h);
    unpack_floats(o, v);
}

/* How the f32 chain of a type runs (section 5). */
enum chain { CHAIN_BLOCK, CHAIN_SUPERBLOCK, CHAIN_NVFP4 };

struct form {
    unpack_fn *unpack;
    enum chain chain;
    int has_min;
    size_t block_bytes; /* of 256 columns in the file */
};

static const struct form forms[ISO_TYPE_COUNT] = {
    [ISO_TYPE_F32] = {unpack_f32, CHAIN_BLOCK, 0, 1024},
    [ISO_TYPE_F16] = {unpack_f16, CHAIN_BLOCK, 0, 512},
    [ISO_TYPE_BF16] = {unpack_bf16, CHAIN_BLOCK, 0, 512},
    [ISO_TYPE_Q4_0] = {unpack_q4_0, CHAIN_BLOCK, 0, 8 * 18},
    [ISO_TYPE_Q4_1] = {unpack_q4_1, CHAIN_BLOCK, 1, 8 * 20},
    [ISO_TYPE_Q5_0] = {unpack_q5_0, CHAIN_BLOCK, 0, 8 * 22},
    [ISO_TYPE_Q5_1] = {unpack_q5_1, CHAIN_BLOCK, 1, 8 * 24},
    [ISO_TYPE_Q8_0] = {unpack_q8_0, CHAIN_BLOCK, 0, 8 * 34},
    [ISO_TYPE_IQ4_NL] = {unpack_iq4_nl, CHAIN_BLOCK, 0, 8 * 18},
    [ISO_TYPE_MXFP4] = {unpack_mxfp4, CHAIN_BLOCK, 0, 8 * 17},
    [ISO_TYPE_Q4_K] = {unpack_q4_k, CHAIN_SUPERBLOCK, 1, 144},
    [ISO_TYPE_Q5_K] = {unpack_q5_k, CHAIN_SUPERBLOCK, 1, 176},
    [ISO_TYPE_Q6_K] = {unpack_q6_k, CHAIN_SUPERBLOCK, 0, 210},
    [ISO_TYPE_NVFP4] = {unpack_nvfp4, CHAIN_NVFP4, 0, 4 * 36},
};

/* Unpacks block k of row data (file layout, n_cols columns) to row r of o. hi: the block of o's
 * high planes, used by NVFP4 only. */
static void unpack_row(struct rows_block *o, struct rows_block *hi, size_t r, const struct form *f,
                       const uint8_t *data, size_t k, size_t n_cols)
{
    const size_t n = ISO_MIN(n_cols - k * ISO_CODE_BLOCK, (size_t)ISO_CODE_BLOCK);
    const struct unpacked_row to = {o->w[r],     hi->w[r],     &o->d[0][r],
                                     &o->m[0][r], &o->mi[0][r], &o->wide[r]};
    /* Block chains stop at the row's end; NVFP4 sums whole blocks. */
    if (f->chain == CHAIN_NVFP4) memset(to.w + n, 0, (ISO_CODE_BLOCK - n) * sizeof(*to.w));
    f->unpack(&to, data + k * f->block_bytes, n);
}

/* Rows of zeros, so that a micro-tile may run over the end of a group. */
static void unpack_zero_row(struct rows_block *o, size_t r)
{
    memset(o->w[r], 0, sizeof(o->w[r]));
    for (size_t j = 0; j < 8; j++) {
        o->d[j][r] = 0.0f;
        o->m[j][r] = 0.0f;
        o->mi[j][r] = 0;
    }
    o->wide[r] = 0;
}
