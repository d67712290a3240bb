/* SPDX-License-Identifier: MIT
 * cuda_codes.h - activations as 12-bit codes in GPU memory: byte planes for tensor cores and dp4a.
 *
 * code = 64*hi + lo, hi in [-32, 31], lo in [0, 63]; mid = hi + lo in [-32, 94] serves products that
 * take three byte passes instead of four: 64*(hi*b.lo + lo*b.hi) = 64*(mid*b.mid - hi*b.hi - lo*b.lo).
 * The same code as f16, which holds it exactly, for products on f16 tensor cores; so are the sums of 32 codes,
 * in two parts: sum = high + low, high a multiple of 2,048 towards zero, |low| <= 2,047.
 * Source: the specification of exact-1, sections 3 and 5; A. Karatsuba, Yu. Ofman 1962.
 */
#ifndef ISO_KERNELS_SHARED_CUDA_CODES_H
#define ISO_KERNELS_SHARED_CUDA_CODES_H

#include <stddef.h>
#include <stdint.h>

/* Planes s8 [n_rows][stride], stride = n rounded up to 256, tails zero. The parts of the sums serve the mins of
 * Q4_K and Q5_K on tensor cores: one 16-byte row per activation row and 256 columns, rows side by side. */
struct iso_cuda_codes {
    int8_t *hi, *lo, *mid;
    uint16_t *wide;   /* f16 [n_rows][stride] */
    float *scale;     /* [n_rows][stride / 256] */
    float *total;     /* [n_rows][stride / 256]: 32 times the sum of 256 codes, below 2^24 */
    int32_t *sum32;   /* [n_rows][stride / 32] */
    uint16_t *sum_hi; /* f16 [stride / 256][sum_rows][8] */
    uint16_t *sum_lo; /* f16, the same */
    uint32_t n, stride;
    uint32_t sum_rows; /* n_rows rounded up to 128 */
};

static inline size_t iso_cuda_codes_bytes(size_t n_rows, size_t n)
{
    const size_t s = (n + 255) / 256 * 256, sum_rows = (n_rows + 127) / 128 * 128;
    return n_rows * (5 * s + s / 256 * 8 + s / 32 * 4) + 2 * (s / 256 * sum_rows * 16) + 8 * 256;
}

/* Lays a view over p (256-byte aligned); every part is 256-byte aligned. */
static inline struct iso_cuda_codes iso_cuda_codes_view(void *p, size_t n_rows, size_t n)
{
    const size_t s = (n + 255) / 256 * 256;
    uint8_t *at = (uint8_t *)p;
    struct iso_cuda_codes c;
    c.n = (uint32_t)n;
    c.stride = (uint32_t)s;
    c.hi = (int8_t *)at;
    c.lo = c.hi + n_rows * s;
    c.mid = c.lo + n_rows * s;
    c.wide = (uint16_t *)(c.mid + n_rows * s);
    at = (uint8_t *)(c.wide + n_rows * s);
    c.scale = (float *)at;
    at += (n_rows * (s / 256) * 4 + 255) / 256 * 256;
    c.total = (float *)at;
    at += (n_rows * (s / 256) * 4 + 255) / 256 * 256;
    c.sum32 = (int32_t *)at;
    at += (n_rows * (s / 32) * 4 + 255) / 256 * 256;
    c.sum_rows = (uint32_t)((n_rows + 127) / 128 * 128);
    c.sum_hi = (uint16_t *)at;
    c.sum_lo = c.sum_hi + s / 256 * c.sum_rows * 8;
    return c;
}

#endif
