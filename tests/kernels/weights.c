/* SPDX-License-Identifier: MIT
 * weights.c - random weights of every type, random codes and golden vectors, for tests of the products. */
#include "kernels/weights.h"

#include <stdio.h>
#include <string.h>

#include "arith/prim.h"
#include "base/mem.h"

/* A finite f16 below the loader's limit. */
static uint16_t random_f16(struct check_rng *r, enum weights_style style)
{
    static const uint16_t special[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x7bff, 0xfbff, 0x3c00, 0xbc00};
    if (style == WEIGHTS_EXTREME) return special[check_int(r, 0, (int64_t)ISO_COUNT(special) - 1)];
    return (uint16_t)(check_int(r, 0, 1) << 15 | check_int(r, 8, 18) << 10 | check_int(r, 0, 1023));
}

static float random_float(struct check_rng *r, enum weights_style style)
{
    static const float special[] = {0.0f,     -0.0f,    0x1p-149f, -0x1p-127f, 0x1p-26f,
                                    0x1p-27f, 0x1p99f,  -0x1p99f,  1.0f,       -0x1.fffp10f};
    if (style == WEIGHTS_ZEROS) return 0.0f;
    if (style == WEIGHTS_ONES) return check_int(r, 0, 1) ? 1.0f : -1.0f;
    if (style == WEIGHTS_LOWEST) return -1.0f;
    if (style == WEIGHTS_EXTREME) return special[check_int(r, 0, (int64_t)ISO_COUNT(special) - 1)];
    return check_f32(r) * iso_pow2((float)check_int(r, -12, 2));
}

static void put16(uint8_t *p, uint16_t v)
{
    memcpy(p, &v, sizeof(v));
}

static void put_float(uint8_t *p, enum iso_type type, struct check_rng *r, enum weights_style style)
{
    const float v = random_float(r, style);
    const uint32_t bits = ISO_AS_U32(v);
    if (type == ISO_TYPE_F32) memcpy(p, &bits, 4);
    if (type == ISO_TYPE_BF16) put16(p, (uint16_t)(bits >> 16)); /* truncated towards zero */
    if (type != ISO_TYPE_F16) return;
    const uint16_t one = v < 0.0f ? 0xbc00 : v > 0.0f ? 0x3c00 : 0;
    put16(p, style == WEIGHTS_ORDINARY || style == WEIGHTS_EXTREME ? random_f16(r, style) : one);
}

/* The byte that gives the lowest integers where it stands for two nibbles or a code of 8 bits. */
static uint8_t lowest_byte(enum iso_type type)
{
    if (type == ISO_TYPE_Q8_0) return 0x80;
    if (type == ISO_TYPE_MXFP4 || type == ISO_TYPE_NVFP4) return 0xff; /* -12 in both nibbles */
    return 0x00;
}

/* Legal scales in a block whose other bytes are there. */
static void fix_scales(uint8_t *b, enum iso_type type, struct check_rng *r, enum weights_style style)
{
    switch (type) {
    case ISO_TYPE_Q6_K:
        if (style == WEIGHTS_LOWEST) memset(b + 192, 0x80, 16); /* -32 * -128 */
        put16(b + 208, random_f16(r, style));
        break;
    case ISO_TYPE_MXFP4:
        b[0] = (uint8_t)(style == WEIGHTS_EXTREME ? check_int(r, 0, 227) : check_int(r, 118, 134));
        break;
    case ISO_TYPE_NVFP4:
        for (int i = 0; i < 4; i++) {
            if (style == WEIGHTS_ORDINARY) b[i] = (uint8_t)check_int(r, 0x30, 0x4f);
            if (style == WEIGHTS_LOWEST) b[i] = 0x7e; /* the largest scale */
        }
        if (style == WEIGHTS_EXTREME) b[check_int(r, 0, 3)] = (uint8_t)check_int(r, 0x78, 0xff);
        break;
    default: put16(b, random_f16(r, style)); break;
    }
    if (type == ISO_TYPE_Q4_1 || type == ISO_TYPE_Q5_1 || type == ISO_TYPE_Q4_K || type == ISO_TYPE_Q5_K) {
        put16(b + 2, random_f16(r, style));
    }
}

void weights_fill(uint8_t *data, enum iso_type type, size_t n_values, struct check_rng *r, enum weights_style style)
{
    const struct iso_type_info *info = iso_type_info(type);
    for (size_t i = 0; i < n_values / info->block_values; i++) {
        uint8_t *b = data + i * info->block_bytes;
        if (info->block_values == 1) {
            put_float(b, type, r, style);
            continue;
        }
        check_fill(r, b, info->block_bytes);
        if (style == WEIGHTS_ONES) memset(b, 0xff, info->block_bytes);
        if (style == WEIGHTS_ZEROS) memset(b, 0, info->block_bytes);
        if (style == WEIGHTS_LOWEST) memset(b, lowest_byte(type), info->block_bytes);
        fix_scales(b, type, r, style);
    }
}

static int64_t random_code(struct check_rng *r, enum weights_style style, int64_t all)
{
    if (style == WEIGHTS_ONES || style == WEIGHTS_LOWEST) return all;
    if (style == WEIGHTS_EXTREME) return check_int(r, -1, 1) * ISO_CODE_MAX;
    return check_int(r, -ISO_CODE_MAX, ISO_CODE_MAX);
}

void weights_codes(const struct iso_codes *c, size_t n_act, struct check_rng *r, enum weights_style style)
{
    memset(c->code, 0, n_act * c->stride * sizeof(*c->code));
    memset(c->sum32, 0, n_act * c->stride / ISO_CODE_SUM * sizeof(*c->sum32));
    for (size_t t = 0; t < n_act; t++) {
        const int64_t all = check_int(r, 0, 1) ? ISO_CODE_MAX : -ISO_CODE_MAX;
        for (size_t i = 0; i < c->n; i++) {
            const int64_t v = random_code(r, style, all);
            c->code[t * c->stride + i] = (int16_t)v;
            c->sum32[(t * c->stride + i) / ISO_CODE_SUM] += (int32_t)v;
        }
        for (size_t i = 0; i < c->stride / ISO_CODE_BLOCK; i++) {
            const float s = check_int(r, 0, 9) ? iso_absf(check_f32(r)) * 0x1p-9f : 0.0f;
            c->scale[t * c->stride / ISO_CODE_BLOCK + i] = s;
        }
    }
}

size_t weights_cols(enum iso_type type, size_t n)
{
    const size_t values = ISO_MAX(iso_type_info(type)->block_values, 32u);
    return (n + values - 1) / values * values;
}

void weights_quantise_row(const struct iso_codes *c, size_t t, const float *x)
{
    int16_t *code = c->code + t * c->stride;
    float *scale = c->scale + t * (c->stride / ISO_CODE_BLOCK);
    int32_t *sum32 = c->sum32 + t * (c->stride / ISO_CODE_SUM);
    memset(code, 0, c->stride * sizeof(*code));
    memset(sum32, 0, c->stride / ISO_CODE_SUM * sizeof(*sum32));
    for (size_t k = 0; k < c->n; k += ISO_CODE_BLOCK) {
        const size_t n = ISO_MIN(c->n - k, (size_t)ISO_CODE_BLOCK);
        uint32_t max = 0;
        for (size_t i = 0; i < n; i++) max = ISO_MAX(max, iso_abs_bits(x[k + i]));
        scale[k / ISO_CODE_BLOCK] = 0.0f;
        if (max < ISO_BITS_2M28) continue;
        const float m = ISO_AS_F32(max);
        const float inv = iso_rcp(m) * 2047.0f;
        scale[k / ISO_CODE_BLOCK] = m * (1.0f / 2047.0f);
        for (size_t i = 0; i < n; i++) {
            const int32_t q = (int32_t)iso_round(x[k + i] * inv);
            code[k + i] = (int16_t)ISO_MIN(ISO_MAX(q, -ISO_CODE_MAX), ISO_CODE_MAX);
            sum32[(k + i) / ISO_CODE_SUM] += code[k + i];
        }
    }
}

void *weights_golden_file(enum iso_type type, const char *suffix, size_t *len)
{
    char path[160], lower[16];
    (void)snprintf(lower, sizeof(lower), "%s", iso_type_info(type)->name);
    for (char *p = lower; *p; p++) {
        if (*p >= 'A' && *p <= 'Z') *p = (char)(*p - 'A' + 'a');
    }
    (void)snprintf(path, sizeof(path), "tests/golden/vectors/%s.%s", lower, suffix);
    return check_read_file(path, len);
}
