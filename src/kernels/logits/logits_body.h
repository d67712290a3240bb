/* SPDX-License-Identifier: MIT
 * logits_body.h - scale, soft-cap and largest logit, compiled once per instruction set.
 *
 * Source: the specification of exact-1, sections 11 and 12.
 */
#include "arith/prim.h"
#include "kernels/logits/logits.h"

#define CHUNK 1024 /* logits that stay in the first-level cache between two steps: 4 KiB */

static uint32_t chunk_max(const float *restrict l, size_t n, uint32_t m)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t b = iso_abs_bits(l[i]);
        m = b > m ? b : m;
    }
    return m;
}

static uint32_t logits(float *restrict l, const struct iso_logits_args *a, size_t n)
{
    const float scale = a->scale;
    const float cap = a->cap;
    const float inv_cap = a->inv_cap;
    uint32_t m = 0;
    for (size_t at = 0; at < n; at += CHUNK) {
        float *restrict c = l + at;
        const size_t len = n - at < CHUNK ? n - at : CHUNK;
        if (a->has_scale) {
            for (size_t i = 0; i < len; i++) c[i] = c[i] * scale;
        }
        if (cap != 0.0f) {
            /* Looked at before the cap as well: tanh makes a finite number of an infinite one. */
            const uint32_t before = chunk_max(c, len, 0);
            if (before >= ISO_BITS_2P100 && before > m) m = before;
            for (size_t i = 0; i < len; i++) c[i] = iso_softcap(c[i], cap, inv_cap);
        }
        m = chunk_max(c, len, m);
    }
    return m;
}

static int32_t chunk_top(const float *restrict l, size_t n)
{
    int32_t top = INT32_MIN;
    for (size_t i = 0; i < n; i++) {
        const int32_t k = iso_order_key(l[i]);
        top = k > top ? k : top;
    }
    return top;
}

/* The first chunk that holds the largest key, then the first place in it. */
static size_t argmax(const float *restrict l, size_t n)
{
    int32_t best = INT32_MIN;
    size_t best_at = 0;
    for (size_t at = 0; at < n; at += CHUNK) {
        const int32_t top = chunk_top(l + at, n - at < CHUNK ? n - at : CHUNK);
        if (top > best) {
            best = top;
            best_at = at;
        }
    }
    while (iso_order_key(l[best_at]) != best) best_at++;
    return best_at;
}
