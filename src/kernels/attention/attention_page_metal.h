/* SPDX-License-Identifier: MIT
 * attention_page_metal.h - what the two shapes of attention share: scores, weights, merges. Metal only.
 *
 * Source: the specification of exact-1, section 10.
 */
#ifndef ISO_KERNELS_ATTENTION_PAGE_METAL_H
#define ISO_KERNELS_ATTENTION_PAGE_METAL_H

#include "kernels/attention/attention_metal.h"
#include "kernels/shared/metal_prim.h"

#if defined(__METAL_VERSION__)

constant uint attention_d [[function_constant(ISO_METAL_ATTENTION_DIM)]];
constant bool attention_cap [[function_constant(ISO_METAL_ATTENTION_CAP)]];
constant bool attention_whole [[function_constant(ISO_METAL_ATTENTION_WHOLE)]];

#define ATTENTION_KEYS ISO_PAGE_POSITIONS
#define ATTENTION_SPAN (ISO_SEGMENT_PAGES * ISO_PAGE_POSITIONS) /* positions of a segment */
#define ATTENTION_LOWEST as_type<float>(0xff7fffffu) /* below every score, which are finite */

/* The slots of a page that a row sees: lo..hi; seen is false when there are none. */
struct attention_view {
    int lo, hi;
    bool seen;
};

static inline struct attention_view attention_view_of(uint first, uint last, uint page)
{
    const uint start = page * ATTENTION_KEYS;
    const uint stop = start + ATTENTION_KEYS - 1;
    struct attention_view v;
    v.seen = first <= last && first <= stop && last >= start;
    v.lo = first > start ? (int)(first - start) : 0;
    v.hi = last < stop ? (int)(last - start) : (int)ATTENTION_KEYS - 1;
    return v;
}

/* The score of a key from its exact sum. */
static inline float attention_score(int dot, float qs, float k_scale, float cap, float inv_cap)
{
    const float scale = qs * k_scale;
    const float s = (float)dot * scale;
    if (!attention_cap) return s;
    const float capped = iso_softcap(s, cap, inv_cap);
    return capped * ISO_LOG2E;
}

/* M of a page from its largest score. Adding +0 turns a ceiling of -0 into +0, as everywhere. */
static inline float attention_ceiling(float top)
{
    return ceil(top) + 0.0f;
}

/* E of section 10 from the bits of the largest v_scale of the visible keys. */
static inline int attention_exponent(uint bits)
{
    return bits == 0 ? 14 : (int)(bits >> 23) - 126;
}

/* A key's share of Lp and its integer weight P, at most 2^14. fit is 2^(14-E). */
struct attention_weight {
    int share;
    int p;
};

static inline struct attention_weight attention_weigh(float s, float m, float v_scale, float fit)
{
    struct attention_weight w;
    const float e = iso_exp2(s - m);
    const float unit = e * 65536.0f;
    w.share = iso_round_i32(unit);
    const float scaled = e * v_scale;
    const float fitted = scaled * fit;
    w.p = iso_round_i32(fitted);
    return w;
}

/* (M, l) of a segment or a head; its o lies elsewhere. An empty one has o = 0 and l = 0, so that a merge needs
 * no second form: fma(o', unit, 0) is o'*unit. */
struct attention_state {
    float m, l;
    bool empty;
};

/* Factors for o of a merge: o = fma(o', take, g(o*keep)). */
struct attention_factors {
    float keep, take;
};

static inline struct attention_factors attention_merge(thread struct attention_state &s, float m, float l, float unit)
{
    const float n = s.empty ? m : s.m > m ? s.m : m;
    const float a = s.empty ? 1.0f : iso_pow2(s.m - n);
    const float b = iso_pow2(m - n);
    const float kept = s.l * a;
    s.l = ISO_FMA(l, b, kept);
    s.m = n;
    s.empty = false;
    struct attention_factors f;
    f.keep = a;
    f.take = b * unit;
    return f;
}

static inline float attention_take(float o, float sum, struct attention_factors f)
{
    const float kept = o * f.keep;
    return ISO_FMA(sum, f.take, iso_guard(kept));
}

/* rcp(l)*65536 of a head's state: what o is multiplied by at the end. 0 for one that saw no key. */
static inline float attention_inverse(struct attention_state s)
{
    return s.empty ? 0.0f : iso_rcp(s.l) * 65536.0f;
}

/* 1/B of the butterfly that undoes the one in front of the codes: a power of two. */
static inline float attention_unblock(void)
{
    return iso_ldexp1(-(int)ctz(iso_butterfly_block(attention_d)));
}

/* The page of a session's page number p and a KV head. */
static inline device const uchar *attention_page(device const uchar *pages, device const uint *tables,
                                                 constant struct iso_metal_attention &a, uint session, uint p,
                                                 uint kv_head)
{
    const uint slot = tables[(size_t)session * a.table_len + p];
    return pages + ((size_t)slot * a.n_kv_heads + kv_head) * iso_page_bytes(attention_d);
}

#endif /* __METAL_VERSION__ */

#endif
