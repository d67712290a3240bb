/* SPDX-License-Identifier: MIT
 * sampler_weights_body.h - the text of the sampler's passes, compiled once per instruction set.
 *
 * Plain C loops that compilers turn into whole vectors: a 256k vocabulary has to cost tens of
 * microseconds beside a decode step of a few milliseconds.
 * Source: the specification of exact-1, section 12.
 */
#include "arith/prim.h"
#include "engine/sampler_weights.h"

#define CHUNK 1024 /* logits between two looks at the running maximum */

static int32_t chunk_top(const float *restrict l, size_t n)
{
    int32_t top = INT32_MIN;
    for (size_t i = 0; i < n; i++) {
        const int32_t k = iso_order_key(l[i]);
        top = k > top ? k : top;
    }
    return top;
}

static float vocabulary_max(size_t *from, const float *restrict l, size_t n)
{
    int32_t best = INT32_MIN;
    size_t best_at = 0;
    for (size_t at = 0; at < n; at += CHUNK) {
        const int32_t top = n - at < CHUNK ? chunk_top(l + at, n - at) : chunk_top(l + at, CHUNK);
        if (top > best) {
            best = top;
            best_at = at;
        }
    }
    *from = best_at;
    return iso_from_order_key(best);
}

/* The lower limit of -125 needs no operation: below it exp2 is 0, and at it the weight is 0. */
static inline uint64_t block_weights(uint32_t *restrict w,
                                     uint32_t *restrict block_max,
                                     const float *restrict l,
                                     float top,
                                     float c,
                                     size_t n)
{
    uint32_t m = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t v = (uint32_t)(int32_t)(iso_exp2((l[i] - top) * c) * 0x1p30f);
        w[i] = v;
        m = v > m ? v : m;
    }
    *block_max = m;
    if (m == 0) return 0;
    /* 64 halves of 16 bits fit 32 bits, which has twice the lanes of a 64-bit sum. */
    uint32_t low = 0;
    uint32_t high = 0;
    for (size_t i = 0; i < n; i++) {
        low += w[i] & 0xffffu;
        high += w[i] >> 16;
    }
    return ((uint64_t)high << 16) + low;
}

static uint64_t vocabulary_weights(uint32_t *restrict w,
                                   uint32_t *restrict block_max,
                                   const float *restrict l,
                                   float top,
                                   float c,
                                   size_t n)
{
    uint64_t sum = 0;
    size_t at = 0;
    for (; at + ISO_SAMPLER_BLOCK <= n; at += ISO_SAMPLER_BLOCK) {
        sum += block_weights(w + at, block_max + at / ISO_SAMPLER_BLOCK, l + at, top, c,
                             ISO_SAMPLER_BLOCK);
    }
    if (at < n) {
        sum += block_weights(w + at, block_max + at / ISO_SAMPLER_BLOCK, l + at, top, c, n - at);
    }
    return sum;
}
