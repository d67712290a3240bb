/* SPDX-License-Identifier: MIT
 * attention_body.h - the text of attention that every vector variant shares.
 *
 * A page is unpacked once per call and serves all query rows of the call: keys to a panel whose
 * lanes are the 64 keys, values to a panel whose lanes are dimensions, so that both products are
 * the same small matrix product with no sum across lanes. The sums are of integers and exact; the
 * short f32 chain around them is lane by lane, in plain C that the compiler makes vectors of.
 *
 * The including file gives ATTENTION_SUFFIX and four static functions:
 *   order_codes(dst, src, n)       n codes into the order in which the panels pair them
 *   unpack_keys(panel, page, next, d)    [d inner][64 lanes]
 *   unpack_values(panel, page, next, d)  blocks of up to 64 lanes: [64 inner][w lanes] each
 *       both prefetch next, the page that will be unpacked after this one
 *   tile(out, rows, n_rows, panel, n_inner, w)
 *       out [n_rows][64] i32 = rows [n_rows][n_inner] times panel [n_inner][w];
 *       n_rows <= TILE_ROWS, w a multiple of 16 up to 64
 * Source: the specification of exact-1, section 10.
 */
#include <float.h>
#include <math.h>
#include <stdbool.h>

#include "arith/page.h"
#include "arith/prim.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_common.h"

/* The factors of one merge: a = pow2(M - n) for what is there, b = pow2(M' - n) for what comes. */
struct factors {
    float a;
    float b;
};

/* merge() of section 10 for M and l. An empty state becomes M = M', l = 0, o = 0 first; then the
 * common formulas give M', l' and o'*unit with the same bits as the text's special case. */
static struct factors merge_scalars(struct iso_attention_state *st, float m, float l, uint32_t d)
{
    if (st->empty) {
        st->empty = 0;
        st->m = m;
        st->l = 0.0f;
        memset(st->o, 0, d * sizeof(float));
    }
    const float n = st->m > m ? st->m : m;
    const struct factors f = {iso_pow2(st->m - n), iso_pow2(m - n)};
    st->m = n;
    st->l = ISO_FMA(l, f.b, st->l * f.a);
    return f;
}

/* The scales of a page, copied because a page may start at any address. */
struct page_scales {
    float k[N_KEYS];
    float v[N_KEYS];
    int32_t e_v; /* E when all keys are visible */
};

static bool is_partial(const struct attention_row *row)
{
    return row->lo != 0 || row->hi != N_KEYS - 1;
}

/* Scores get such a low one for keys outside lo..hi that their exponential is 0. */
static void hide_scores(float *restrict s, uint32_t lo, uint32_t hi)
{
    for (uint32_t j = 0; j < N_KEYS; j++) s[j] = j - lo <= hi - lo ? s[j] : -FLT_MAX;
}

/* out [64] = v_scale with 0 for keys outside lo..hi. */
static void
hide_values(float *restrict out, const float *restrict v_scale, uint32_t lo, uint32_t hi)
{
    for (uint32_t j = 0; j < N_KEYS; j++) out[j] = j - lo <= hi - lo ? v_scale[j] : 0.0f;
}

/* Largest of s [64]. Compared as integers that order like the floats, because a compiler may not
 * reorder comparisons of floats (-0 and NaN). */
static float max_score(const float *restrict s)
{
    int32_t top = INT32_MIN;
    for (uint32_t j = 0; j < N_KEYS; j++) {
        const int32_t b = (int32_t)ISO_AS_U32(s[j]);
        const int32_t ordered = b ^ (int32_t)((uint32_t)(b >> 31) >> 1);
        top = ordered > top ? ordered : top;
    }
    return ISO_AS_F32((uint32_t)(top ^ (int32_t)((uint32_t)(top >> 31) >> 1)));
}

/* E with 2^(E-1) <= max v_scale < 2^E; 14 when all are zero. */
static int32_t values_exponent(const float *restrict v_scale)
{
    uint32_t top = 0;
    for (uint32_t j = 0; j < N_KEYS; j++) {
        const uint32_t b = ISO_AS_U32(v_scale[j]);
        top = b > top ? b : top;
    }
    return top == 0 ? 14 : (int32_t)(top >> 23) - 126;
}

/* s [64] = scores of one row from its exact dot products; M of the page goes to the row. */
static void score(float *restrict s,
                  struct attention_row *row,
                  const int32_t *restrict dot,
                  const float *restrict k_scale,
                  const struct iso_attention_args *a)
{
    const float qs = a->q_scale[row->index] * a->c;
    for (uint32_t j = 0; j < N_KEYS; j++) s[j] = (float)dot[j] * (qs * k_scale[j]);
    if (a->cap > 0.0f) {
        const float cap = a->cap;
        const float inv_cap = a->inv_cap;
        for (uint32_t j = 0; j < N_KEYS; j++) s[j] = iso_softcap(s[j], cap, inv_cap) * ISO_LOG2E;
    }
    if (is_partial(row)) hide_scores(s, row->lo, row->hi);
    /* Adding +0 turns a ceiling of -0 into +0, so that every variant keeps the same m. */
    row->m = ceilf(max_score(s)) + 0.0f;
}

/* p [64] = weights of one row from its scores; their sum and unit go to the row. */
static void weigh(int16_t *restrict p,
                  struct attention_row *row,
                  const float *restrict s,
                  const struct page_scales *scales)
{
    float visible[N_KEYS] __attribute__((aligned(64)));
    int16_t weight[N_KEYS] __attribute__((aligned(64)));
    const float *v_scale = scales->v;
    int32_t e_v = scales->e_v;
    if (is_partial(row)) {
        hide_values(visible, scales->v, row->lo, row->hi);
        v_scale = visible;
        e_v = values_exponent(visible);
    }
    const float m = row->m;
    const float fit = iso_ldexp1(14 - e_v);
    uint32_t l = 0;
    for (uint32_t j = 0; j < N_KEYS; j++) {
        const float e = iso_exp2(s[j] - m);
        /* The magic number of ri() leaves the integer in the low bits of the mantissa. */
        l += ISO_AS_U32(e * 65536.0f + 12582912.0f) & 0x1ffffu;
        weight[j] = (int16_t)ISO_AS_U32((e * v_scale[j]) * fit + 12582912.0f);
    }
    order_codes(p, weight, N_KEYS);
    row->l = (float)(int32_t)l;
    row->unit = iso_ldexp1(e_v - 14);
}

/* Merges M and l of the page into the row's state; o follows in page_values(). */
static void merge_page(struct iso_attention_state *st, struct attention_row *row, uint32_t d)
{
    const struct factors f = merge_scalars(st, row->m, row->l, d);
    row->keep = f.a;
    row->take = f.b * row->unit;
}

/* o [n] of a state takes the page's integer sums. */
static void
take_sums(float *restrict o, const int32_t *restrict sum, float keep, float take, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) o[i] = ISO_FMA((float)sum[i], take, iso_guard(o[i] * keep));
}

/* Scores and weights of all visible rows. All scores of a tile come before its weights: the chains
 * from a row's largest score to its exponentials are long, and side by side they overlap. */
static void page_keys(struct iso_attention_state *states,
                      const struct attention_scratch *s,
                      size_t n_rows,
                      const uint8_t *page,
                      const uint8_t *next,
                      const struct iso_attention_args *a)
{
    const uint32_t d = a->d;
    struct page_scales scales;
    memcpy(scales.k, page + iso_page_k_scale(d), sizeof(scales.k));
    memcpy(scales.v, page + iso_page_v_scale(d), sizeof(scales.v));
    scales.e_v = values_exponent(scales.v);
    unpack_keys(s->panel, page, next, d);
    int32_t dot[TILE_ROWS][N_KEYS] __attribute__((aligned(64)));
    float scores[TILE_ROWS][N_KEYS] __attribute__((aligned(64)));
    for (size_t i = 0; i < n_rows; i += TILE_ROWS) {
        const size_t n = n_rows - i < TILE_ROWS ? n_rows - i : TILE_ROWS;
        struct attention_row *row = s->row + i;
        const int16_t *q[TILE_ROWS];
        for (size_t r = 0; r < n; r++) q[r] = s->q + row[r].index * (size_t)d;
        tile(dot[0], q, n, s->panel, d, N_KEYS);
        for (size_t r = 0; r < n; r++) score(scores[r], &row[r], dot[r], scales.k, a);
        for (size_t r = 0; r < n; r++) weigh(s->p + (i + r) * N_KEYS, &row[r], scores[r], &scales);
        for (size_t r = 0; r < n; r++) merge_page(&states[row[r].index], &row[r], d);
    }
}

/* Values of all visible rows into o of their states. */
static void page_values(struct iso_attention_state *states,
                        const struct attention_scratch *s,
                        size_t n_rows,
                        const uint8_t *page,
                        const uint8_t *next,
                        uint32_t d)
{
    unpack_values(s->panel, page, next, d);
    const uint32_t d16 = scratch_d16(d);
    int32_t sum[TILE_ROWS][N_KEYS] __attribute__((aligned(64)));
    for (uint32_t first = 0; first < d; first += 64) {
        const uint32_t w = d16 - first < 64 ? d16 - first : 64;
        const uint32_t n_dims = d - first < w ? d - first : w;
        for (size_t i = 0; i < n_rows; i += TILE_ROWS) {
            const size_t n = n_rows - i < TILE_ROWS ? n_rows - i : TILE_ROWS;
            const int16_t *p[TILE_ROWS];
            for (size_t r = 0; r < n; r++) p[r] = s->p + (i + r) * N_KEYS;
            tile(sum[0], p, n, s->panel + (size_t)first * N_KEYS, N_KEYS, w);
            for (size_t r = 0; r < n; r++) {
                const struct attention_row *row = &s->row[i + r];
                take_sums(states[row->index].o + first, sum[r], row->keep, row->take, n_dims);
            }
        }
    }
}

/* Lists the rows that see a key of page p; returns how many. */
static size_t
visible_rows(struct attention_row *row, const struct iso_attention_args *a, uint32_t p)
{
    const uint32_t start = p * N_KEYS;
    const uint32_t end = start + N_KEYS - 1;
    size_t n = 0;
    for (size_t i = 0; i < a->n_q; i++) {
        const uint32_t first = a->first[i] > start ? a->first[i] : start;
        const uint32_t last = a->last[i] < end ? a->last[i] : end;
        if (first > last) continue;
        row[n].index = (uint32_t)i;
        row[n].lo = first - start;
        row[n].hi = last - start;
        n++;
    }
    return n;
}

/* Bit p is set when a row sees a key of page 8*seg + p. */
static uint32_t visible_pages(const struct iso_attention_args *a, uint32_t seg)
{
    const uint32_t start = seg * ISO_SEGMENT_PAGES * N_KEYS;
    const uint32_t end = start + ISO_SEGMENT_PAGES * N_KEYS - 1;
    uint32_t pages = 0;
    for (size_t i = 0; i < a->n_q; i++) {
        const uint32_t first = a->first[i] > start ? a->first[i] : start;
        const uint32_t last = a->last[i] < end ? a->last[i] : end;
        if (first > last) continue;
        pages |= (2u << (last - start) / N_KEYS) - (1u << (first - start) / N_KEYS);
    }
    return pages;
}

static void segment(struct iso_attention_state *states,
                    const struct iso_attention_args *a,
                    uint32_t seg,
                    void *scratch)
{
    struct attention_scratch s;
    (void)scratch_lay(&s, scratch, a->n_q, a->d);
    for (size_t i = 0; i < a->n_q; i++) states[i].empty = 1;
    const uint32_t pages = visible_pages(a, seg);
    if (pages == 0) return;
    order_codes(s.q, a->q, a->n_q * a->d);
    for (uint32_t p = 0; p < ISO_SEGMENT_PAGES; p++) {
        if (!(pages >> p & 1)) continue;
        const uint32_t number = seg * ISO_SEGMENT_PAGES + p;
        const uint8_t *page = a->pages[number - a->page_base];
        const bool more = pages >> p & 2;
        const uint8_t *next = more ? a->pages[number + 1 - a->page_base] : page;
        const size_t n_rows = visible_rows(s.row, a, number);
        page_keys(states, &s, n_rows, page, next, a);
        page_values(states, &s, n_rows, page, next, a->d);
    }
    for (size_t i = 0; i < a->n_q; i++) {
        if (states[i].empty) continue;
        float *restrict o = states[i].o;
        for (uint32_t k = 0; k < a->d; k++) o[k] = iso_guard(o[k]);
    }
}

static void
merge(struct iso_attention_state *head, const struct iso_attention_state *seg, uint32_t d)
{
    if (seg->empty) return;
    const struct factors f = merge_scalars(head, seg->m, seg->l, d);
    float *restrict o = head->o;
    const float *restrict in = seg->o;
    for (uint32_t i = 0; i < d; i++) o[i] = ISO_FMA(in[i], f.b, iso_guard(o[i] * f.a));
}

static void finish(float *restrict out, const struct iso_attention_state *head, uint32_t d)
{
    if (head->empty) {
        memset(out, 0, d * sizeof(float));
        return;
    }
    const float r = iso_rcp(head->l) * 65536.0f;
    const float inv_block = 1.0f / (float)iso_butterfly_block(d);
    const float *restrict o = head->o;
    for (uint32_t i = 0; i < d; i++) out[i] = iso_guard(o[i] * r);
    vec_butterfly(out, d);
    for (uint32_t i = 0; i < d; i++) out[i] = iso_guard(out[i] * inv_block);
}

#define ATTENTION_JOIN2(a, b) a##b
#define ATTENTION_JOIN(a, b) ATTENTION_JOIN2(a, b)
#define ATTENTION_STRING2(a) #a
#define ATTENTION_STRING(a) ATTENTION_STRING2(a)

extern const struct iso_attention_kernels ATTENTION_JOIN(iso_attention_kernels_, ATTENTION_SUFFIX);
const struct iso_attention_kernels ATTENTION_JOIN(iso_attention_kernels_, ATTENTION_SUFFIX) = {
    .name = ATTENTION_STRING(ATTENTION_SUFFIX),
    .segment = segment,
    .merge = merge,
    .finish = finish,
};
