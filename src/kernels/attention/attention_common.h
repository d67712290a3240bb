/* SPDX-License-Identifier: MIT
 * attention_common.h - what the vector variants share: tile size, scratch memory, prefetch. */
#ifndef ISO_KERNELS_ATTENTION_COMMON_H
#define ISO_KERNELS_ATTENTION_COMMON_H

#include <stddef.h>
#include <stdint.h>

#include "arith/page.h"

#define N_KEYS ISO_PAGE_POSITIONS
#define TILE_ROWS 4 /* query rows per pass over a panel: 16 sums in registers, see tile() */

/* One query row that sees a key of the current page. */
struct attention_row {
    uint32_t index; /* row of the call */
    uint32_t lo;    /* first visible slot */
    uint32_t hi;    /* last visible slot */
    float m;        /* M' of this page: the ceiling of its largest score */
    float l;        /* l' of this page */
    float unit;     /* of the page's integer sums */
    float keep;     /* factor of the state's o when this page is merged: pow2(M - n) */
    float take;     /* factor of the page's integer sums: pow2(M' - n) * unit */
};

struct attention_scratch {
    int16_t *q;                /* [n_q][d] query codes in the order of the panel */
    int16_t *p;                /* [n_q][64] weights of the page in the order of the panel */
    int16_t *panel;            /* the page's keys, then its values, unpacked: 64*d16 codes */
    struct attention_row *row; /* [n_q] */
};

/* d rounded up to a multiple of 16: values are unpacked 16 dimensions at a time. */
static inline uint32_t scratch_d16(uint32_t d)
{
    return (d + 15u) & ~15u;
}

/* Lays s over base (either may be NULL to learn the size) and returns the bytes needed. Every part
 * starts at a multiple of 64. */
static inline size_t scratch_lay(struct attention_scratch *s, void *base, size_t n_q, uint32_t d)
{
    const size_t align = 63;
    const size_t q = (n_q * d * sizeof(int16_t) + align) & ~align;
    const size_t p = n_q * ISO_PAGE_POSITIONS * sizeof(int16_t);
    const size_t panel = (size_t)scratch_d16(d) * ISO_PAGE_POSITIONS * sizeof(int16_t);
    const size_t row = (n_q * sizeof(struct attention_row) + align) & ~align;
    if (s && base) {
        uint8_t *at = base;
        s->q = (int16_t *)(void *)at;
        s->p = (int16_t *)(void *)(at + q);
        s->panel = (int16_t *)(void *)(at + q + p);
        s->row = (struct attention_row *)(void *)(at + q + p + panel);
    }
    return q + p + panel + row;
}

/* Asks for len bytes ahead of use. Unpacking asks for the same part of the next page: alone the
 * hardware brought 8 GB/s of pages from memory to one core, with this 12 to 20 (EPYC Zen 5). */
static inline void prefetch_bytes(const uint8_t *p, size_t len)
{
    for (size_t i = 0; i < len; i += 64) __builtin_prefetch(p + i);
}

#endif
