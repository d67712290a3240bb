/* SPDX-License-Identifier: MIT
 * codes.h - activations as 12-bit codes: the input of every matrix product on the CPU.
 *
 * The layout belongs to the CPU device; no model code looks inside.
 * Source: the specification of exact-1, section 3.
 */
#ifndef ISO_KERNELS_SHARED_CODES_H
#define ISO_KERNELS_SHARED_CODES_H

#include <stddef.h>
#include <stdint.h>

#define ISO_CODE_BLOCK 256 /* values that share one scale */
#define ISO_CODE_SUM 32    /* values under one sum */
#define ISO_CODE_MAX 2047

/* Rows of codes in one block of memory.
 *   code  i16 [n_rows][stride]          stride = n rounded up to 256; the tail is zero
 *   scale f32 [n_rows][stride / 256]
 *   sum32 i32 [n_rows][stride / 32]     the tail is zero */
struct iso_codes {
    int16_t *code;
    float *scale;
    int32_t *sum32;
    size_t n;      /* values per row, a multiple of 32 */
    size_t stride; /* codes per row */
};

static inline size_t iso_codes_stride(size_t n)
{
    return (n + ISO_CODE_BLOCK - 1) / ISO_CODE_BLOCK * ISO_CODE_BLOCK;
}

/* Bytes of n_rows rows of n values, a multiple of 64. */
static inline size_t iso_codes_bytes(size_t n_rows, size_t n)
{
    const size_t s = iso_codes_stride(n);
    const size_t row = s * 2 + s / ISO_CODE_BLOCK * 4 + s / ISO_CODE_SUM * 4;
    return (n_rows * row + 3 * 64 + 63) / 64 * 64;
}

/* Lays a view over p (64-byte aligned, iso_codes_bytes() long). */
static inline struct iso_codes iso_codes_view(void *p, size_t n_rows, size_t n)
{
    const size_t s = iso_codes_stride(n);
    uint8_t *at = p;
    struct iso_codes c = {.n = n, .stride = s};
    c.code = (int16_t *)at;
    at += (n_rows * s * 2 + 63) / 64 * 64;
    c.scale = (float *)at;
    at += (n_rows * (s / ISO_CODE_BLOCK) * 4 + 63) / 64 * 64;
    c.sum32 = (int32_t *)at;
    return c;
}

/* The view of rows first.. of c. */
static inline struct iso_codes iso_codes_rows(const struct iso_codes *c, size_t first)
{
    struct iso_codes r = *c;
    r.code += first * c->stride;
    r.scale += first * (c->stride / ISO_CODE_BLOCK);
    r.sum32 += first * (c->stride / ISO_CODE_SUM);
    return r;
}

#endif
