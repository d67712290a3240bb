/* SPDX-License-Identifier: MIT
 * attention_ref.c - attention as the specification says it: one row, page and key at a time. */
#include "kernels/attention/attention.h"

#include <math.h>

#include "arith/page.h"
#include "arith/prim.h"
#include "base/buf.h"
#include "kernels/shared/vec_ref.h"

/* One page as one row sees it: keys lo..hi (slots) are visible. */
struct view {
    const uint8_t *page;
    uint32_t d;
    uint32_t lo;
    uint32_t hi;
};

static float scale_at(const uint8_t *page, uint32_t offset, uint32_t slot)
{
    return ISO_AS_F32(iso_get_u32(page + offset + 4 * slot));
}

/* Exact: |q * k| <= 2047 * 2048 and d <= 256. */
static int32_t dot_key(const int16_t *q, const struct view *v, uint32_t slot)
{
    const uint32_t half = v->d / 2;
    const int8_t *k_hi = (const int8_t *)v->page + slot * v->d;
    const uint8_t *k_lo = v->page + iso_page_k_lo(v->d) + slot * half;
    int32_t sum = 0;
    for (uint32_t i = 0; i < v->d; i++) {
        const uint8_t low = i < half ? k_lo[i] & 15 : k_lo[i - half] >> 4;
        sum += q[i] * (k_hi[i] * 16 + low);
    }
    return sum;
}

/* s [64]: scores of the visible keys. Returns their maximum. */
static float
score_keys(float *s, const struct iso_attention_args *a, size_t row, const struct view *v)
{
    const int16_t *q = a->q + row * v->d;
    const float qs = a->q_scale[row] * a->c;
    float m = 0.0f;
    for (uint32_t j = v->lo; j <= v->hi; j++) {
        const float k_scale = scale_at(v->page, iso_page_k_scale(v->d), j);
        s[j] = (float)dot_key(q, v, j) * (qs * k_scale);
        if (a->cap > 0.0f) s[j] = iso_softcap(s[j], a->cap, a->inv_cap) * ISO_LOG2E;
        if (j == v->lo || s[j] > m) m = s[j];
    }
    return m;
}

/* E with 2^(E-1) <= max v_scale < 2^E over the visible keys; 14 when all are zero. */
static int32_t values_exponent(const struct view *v)
{
    uint32_t top = 0;
    for (uint32_t j = v->lo; j <= v->hi; j++) {
        const uint32_t b = ISO_AS_U32(scale_at(v->page, iso_page_v_scale(v->d), j));
        if (b > top) top = b;
    }
    return top == 0 ? 14 : (int32_t)(top >> 23) - 126;
}

/* merge(M', l', o', unit) of section 10. */
static void merge_state(
    struct iso_attention_state *st, float m, float l, const float *o, float unit, uint32_t d)
{
    if (st->empty) {
        st->empty = 0;
        st->m = m;
        st->l = l;
        for (uint32_t i = 0; i < d; i++) st->o[i] = o[i] * unit;
        return;
    }
    const float n = st->m > m ? st->m : m;
    const float a = iso_pow2(st->m - n);
    const float b = iso_pow2(m - n);
    st->l = ISO_FMA(l, b, st->l * a);
    for (uint32_t i = 0; i < d; i++) {
        st->o[i] = ISO_FMA(o[i], b * unit, iso_guard(st->o[i] * a));
    }
    st->m = n;
}

static void attend_page(struct iso_attention_state *st,
                        const struct iso_attention_args *a,
                        size_t row,
                        const struct view *v)
{
    float s[ISO_PAGE_POSITIONS];
    int32_t p[ISO_PAGE_POSITIONS];
    float o[ISO_HEAD_MAX];
    /* Adding +0 turns a ceiling of -0 into +0, so that every variant keeps the same m. */
    const float m = ceilf(score_keys(s, a, row, v)) + 0.0f;
    const int32_t e_v = values_exponent(v);
    int32_t l = 0;
    for (uint32_t j = v->lo; j <= v->hi; j++) {
        const float e = iso_exp2(s[j] - m);
        const float v_scale = scale_at(v->page, iso_page_v_scale(v->d), j);
        l += (int32_t)iso_round(e * 65536.0f);
        p[j] = (int32_t)iso_round((e * v_scale) * iso_ldexp1(14 - e_v));
    }
    for (uint32_t i = 0; i < v->d; i++) {
        const int8_t *row_v = (const int8_t *)v->page + iso_page_v(v->d) + i * ISO_PAGE_POSITIONS;
        int32_t sum = 0;
        for (uint32_t j = v->lo; j <= v->hi; j++) sum += p[j] * row_v[j];
        o[i] = (float)sum;
    }
    merge_state(st, m, (float)l, o, iso_ldexp1(e_v - 14), v->d);
}

static void segment(struct iso_attention_state *states,
                    const struct iso_attention_args *a,
                    uint32_t seg,
                    void *scratch)
{
    (void)scratch;
    for (size_t row = 0; row < a->n_q; row++) {
        struct iso_attention_state *st = &states[row];
        st->empty = 1;
        for (uint32_t p = seg * ISO_SEGMENT_PAGES; p < (seg + 1) * ISO_SEGMENT_PAGES; p++) {
            const uint32_t start = p * ISO_PAGE_POSITIONS;
            const uint32_t end = start + ISO_PAGE_POSITIONS - 1;
            const uint32_t first = a->first[row] > start ? a->first[row] : start;
            const uint32_t last = a->last[row] < end ? a->last[row] : end;
            if (first > last) continue;
            const struct view v = {a->pages[p - a->page_base], a->d, first - start, last - start};
            attend_page(st, a, row, &v);
        }
        if (st->empty) continue;
        for (uint32_t i = 0; i < a->d; i++) st->o[i] = iso_guard(st->o[i]);
    }
}

static void
merge(struct iso_attention_state *head, const struct iso_attention_state *seg, uint32_t d)
{
    if (!seg->empty) merge_state(head, seg->m, seg->l, seg->o, 1.0f, d);
}

static void finish(float *out, const struct iso_attention_state *head, uint32_t d)
{
    if (head->empty) {
        for (uint32_t i = 0; i < d; i++) out[i] = 0.0f;
        return;
    }
    const float r = iso_rcp(head->l) * 65536.0f;
    const float inv_block = 1.0f / (float)iso_butterfly_block(d);
    for (uint32_t i = 0; i < d; i++) out[i] = iso_guard(head->o[i] * r);
    vec_butterfly(out, d);
    for (uint32_t i = 0; i < d; i++) out[i] = iso_guard(out[i] * inv_block);
}

extern const struct iso_attention_kernels iso_attention_kernels_ref;
const struct iso_attention_kernels iso_attention_kernels_ref = {
    .name = "ref",
    .segment = segment,
    .merge = merge,
    .finish = finish,
};
