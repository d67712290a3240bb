/* SPDX-License-Identifier: MIT
 * check_attention.c - attention on pages: every level against the golden digests and layers, and
 * against the plain form for random pages, windows, scales and splits. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "arith/page.h"
#include "arith/prim.h"
#include "base/digest.h"
#include "base/mem.h"
#include "kernels/attention/attention.h"
#include "kernels/boundary.h"
#include "kernels/check.h"
#include "kernels/heads/heads.h"
#include "kernels/shared/cpu.h"

#define SEGMENT_POSITIONS (ISO_SEGMENT_PAGES * ISO_PAGE_POSITIONS)

static float score_scale(uint32_t d)
{
    return (float)((1.0 / sqrt((double)d)) * 1.4426950408889634 / iso_butterfly_block(d));
}

/* A sequence: n_tokens positions, n_heads query heads that share the pages of one KV head. */
struct sequence {
    uint32_t d, n_heads, n_tokens, window; /* window 0: none */
    int16_t *q;                            /* [n_tokens][n_heads][d] */
    float *q_scale;                        /* [n_tokens][n_heads] */
    uint8_t **pages;
    uint32_t n_pages;
};

static void sequence_alloc(struct sequence *s)
{
    const size_t rows = (size_t)s->n_tokens * s->n_heads;
    s->q = check_alloc(rows * s->d * sizeof(int16_t), CHECK_GUARDED);
    s->q_scale = check_alloc(rows * sizeof(float), CHECK_GUARDED);
    s->n_pages = (s->n_tokens + ISO_PAGE_POSITIONS - 1) / ISO_PAGE_POSITIONS;
    s->pages = check_alloc(s->n_pages * sizeof(*s->pages), CHECK_GUARDED);
    for (uint32_t p = 0; p < s->n_pages; p++) {
        s->pages[p] = check_alloc(iso_page_bytes(s->d), CHECK_END);
        memset(s->pages[p], 0, iso_page_bytes(s->d));
    }
}

static void sequence_free(struct sequence *s)
{
    for (uint32_t p = 0; p < s->n_pages; p++) check_free(s->pages[p]);
    check_free(s->pages);
    check_free(s->q);
    check_free(s->q_scale);
}

/* Rows [first, first + n) of the sequence through all their segments; out [n][d]. */
static void attend_rows(float *out,
                        const struct iso_attention_kernels *kern,
                        const struct sequence *s,
                        uint32_t first,
                        uint32_t n)
{
    const uint32_t d = s->d;
    uint32_t *low = check_alloc(n * sizeof(uint32_t), CHECK_GUARDED);
    uint32_t *last = check_alloc(n * sizeof(uint32_t), CHECK_GUARDED);
    struct iso_attention_state *st = check_alloc(2 * n * sizeof(*st), CHECK_GUARDED);
    float *o = check_alloc((size_t)2 * n * d * sizeof(float), CHECK_GUARDED);
    void *scratch = check_alloc(iso_attention_scratch_bytes(n, d), CHECK_GUARDED);
    for (uint32_t i = 0; i < n; i++) {
        last[i] = (first + i) / s->n_heads;
        low[i] = s->window && last[i] >= s->window ? last[i] - s->window + 1 : 0;
    }
    for (uint32_t i = 0; i < 2 * n; i++) {
        st[i].o = o + (size_t)i * d;
        st[i].empty = 1;
    }
    const struct iso_attention_args a = {.q = s->q + (size_t)first * d,
                                         .q_scale = s->q_scale + first,
                                         .first = low,
                                         .last = last,
                                         .n_q = n,
                                         .d = d,
                                         .pages = (const uint8_t *const *)s->pages,
                                         .c = score_scale(d)};
    for (uint32_t seg = low[0] / SEGMENT_POSITIONS; seg <= last[n - 1] / SEGMENT_POSITIONS; seg++) {
        kern->segment(st + n, &a, seg, scratch);
        for (uint32_t i = 0; i < n; i++) kern->merge(&st[i], &st[n + i], d);
    }
    for (uint32_t i = 0; i < n; i++) kern->finish(out + (size_t)i * d, &st[i], d);
    check_free(scratch);
    check_free(o);
    check_free(st);
    check_free(last);
    check_free(low);
}

/* The same for the whole sequence, in calls of per_call rows. */
static void attend(float *out,
                   const struct iso_attention_kernels *kern,
                   const struct sequence *s,
                   uint32_t per_call)
{
    const uint32_t rows = s->n_tokens * s->n_heads;
    for (uint32_t i = 0; i < rows; i += per_call) {
        attend_rows(out + (size_t)i * s->d, kern, s, i, ISO_MIN(per_call, rows - i));
    }
}

/* Generator of tests/golden/README.md. */
static void golden_row(float *x, uint64_t *state, float scale, uint32_t d)
{
    for (uint32_t i = 0; i < d; i++) {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        const float u = (float)((int32_t)(*state % 20001) - 10000) * 1e-4f;
        x[i] = iso_guard(u * scale);
    }
}

static void golden_fill(struct sequence *s, const struct iso_heads_kernels *heads)
{
    static const float q_scales[] = {1, 8, 0.125f, 30, 3};
    static const float k_scales[] = {1, 6, 0.001f, 0x1p-30f, 2, 0, 4};
    static const float v_scales[] = {1, 0x1p-24f, 0, 0x1p-29f, 100, 0x1p-12f};
    const struct iso_heads_args args = {.d = s->d, .pairs = ISO_ROPE_NONE};
    uint64_t state = 88172645463325252u;
    float x[ISO_HEAD_MAX];
    for (uint32_t t = 0; t < s->n_tokens * s->n_heads; t++) {
        golden_row(x, &state, q_scales[t % 5], s->d);
        heads->q(s->q + (size_t)t * s->d, &s->q_scale[t], NULL, x, NULL, &args);
    }
    for (uint32_t t = 0; t < s->n_tokens; t++) {
        golden_row(x, &state, k_scales[t % 7], s->d);
        heads->k(s->pages[t / 64], t % 64, NULL, x, NULL, &args);
    }
    for (uint32_t t = 0; t < s->n_tokens; t++) {
        golden_row(x, &state, v_scales[t / 64 % 6], s->d);
        heads->v(s->pages[t / 64], t % 64, x, s->d);
    }
}

static void page_chain(char hex[ISO_DIGEST_HEX], const struct sequence *s)
{
    struct iso_hasher *h = iso_hasher_new();
    struct iso_digest one;
    for (uint32_t p = 0; p < s->n_pages; p++) {
        iso_sha256(&one, s->pages[p], iso_page_bytes(s->d));
        iso_hasher_update(h, one.bytes, sizeof(one.bytes));
    }
    iso_hasher_final(h, &one);
    iso_hasher_free(h);
    iso_digest_hex(hex, &one);
}

static void
check_golden(unsigned flags, struct sequence s, const char *want_out, const char *want_chain)
{
    const struct iso_attention_kernels *kern = iso_attention_select(flags);
    const size_t n_out = (size_t)s.n_tokens * s.n_heads * s.d;
    char hex[ISO_DIGEST_HEX];
    sequence_alloc(&s);
    golden_fill(&s, iso_heads_select(flags));
    page_chain(hex, &s);
    if (strcmp(hex, want_chain) != 0) fail_msg("%s d %u: kv-chain %s", kern->name, s.d, hex);
    float *out = check_alloc(n_out * sizeof(float), CHECK_GUARDED);
    const uint32_t per_call[] = {2, 38, 64};
    for (size_t i = flags == ISO_CPU_REF ? 2 : 0; i < ISO_COUNT(per_call); i++) {
        attend(out, kern, &s, per_call[i]);
        struct iso_digest digest;
        iso_sha256_f32(&digest, out, n_out);
        iso_digest_hex(hex, &digest);
        if (strcmp(hex, want_out) != 0) {
            fail_msg("%s d %u window %u, %u rows a call: out %s", kern->name, s.d, s.window,
                     per_call[i], hex);
        }
    }
    check_free(out);
    sequence_free(&s);
}

static void test_golden(void **state)
{
    (void)state;
    FILE *f = fopen("tests/golden/attention.txt", "r");
    if (!f) fail_msg("tests/golden/attention.txt: run from the project's root");
    char line[1024];
    int n = 0;
    while (fgets(line, sizeof(line), f)) {
        struct sequence s = {.n_heads = 2};
        char out[ISO_DIGEST_HEX], chain[ISO_DIGEST_HEX];
        if (sscanf(line, "attention d %u N %u window %u: out sha256 %64s kv-chain %64s", &s.d,
                   &s.n_tokens, &s.window, out, chain) != 5) {
            fail_msg("attention.txt: %s", line);
        }
        unsigned flags;
        for (size_t l = 0; check_level(l, &flags); l++) check_golden(flags, s, out, chain);
        n++;
    }
    fclose(f);
    assert_int_equal(n, 5);
}

/* Attention of the recorded layers from their queries after rotation and their pages. */
static void
check_boundary(unsigned flags, const struct boundary *b, const struct sequence *s, uint32_t group)
{
    const struct iso_attention_kernels *kern = iso_attention_select(flags);
    const size_t n_out = (size_t)s->n_tokens * s->n_heads * s->d;
    float *out = check_alloc(n_out * sizeof(float), CHECK_GUARDED);
    attend(out, kern, s, 32);
    char what[64];
    (void)snprintf(what, sizeof(what), "%s %s attn_out kv head %u", kern->name, b->model, group);
    check_bits_f32(what, out, (size_t)s->n_heads * s->d,
                   b->attn_out + (size_t)group * s->n_heads * s->d, (size_t)b->n_heads * s->d,
                   s->n_tokens, (size_t)s->n_heads * s->d);
    check_free(out);
}

static void test_boundary(void **state)
{
    (void)state;
    for (size_t i = 0; i < boundary_count(); i++) {
        struct boundary b;
        boundary_load(&b, i);
        const struct iso_heads_args args = {.d = b.q_args.d, .pairs = ISO_ROPE_NONE};
        const uint32_t per_kv = b.n_heads / b.n_kv;
        for (uint32_t g = 0; g < b.n_kv; g++) {
            struct sequence s = {.d = args.d, .n_heads = per_kv, .n_tokens = b.n_tokens};
            sequence_alloc(&s);
            memcpy(s.pages[0], b.page[g], iso_page_bytes(s.d));
            unsigned flags;
            for (size_t l = 0; check_level(l, &flags); l++) {
                for (uint32_t r = 0; r < s.n_tokens * per_kv; r++) {
                    const uint32_t head = r / per_kv * b.n_heads + g * per_kv + r % per_kv;
                    iso_heads_select(flags)->q(s.q + (size_t)r * s.d, &s.q_scale[r], NULL,
                                               b.q_rope + (size_t)head * s.d, NULL, &args);
                }
                check_boundary(flags, &b, &s, g);
            }
            sequence_free(&s);
        }
        boundary_free(&b);
    }
}

/* ---- random pages ---- */

#define N_PAGES 17 /* two segments and the first page of a third */

struct random_case {
    struct iso_attention_args a;
    uint32_t n_pages, page_base, seg;
    int16_t *q;
    float *q_scale;
    uint32_t *first, *last;
    const uint8_t **pages;
    uint8_t *owned[N_PAGES];
};

/* Scales as quantisation can make them: 2^-28/limit to 2^40/limit. */
static float random_scale(struct check_rng *r, int kind, float limit)
{
    const float u = 0.5f + 0.5f * iso_absf(check_f32(r));
    switch (kind) {
    case 0:
        return u * 0.01f / limit;
    case 1:
        return u * 0x1p-27f / limit;
    case 2:
        return u * 0x1p40f / limit;
    case 3:
        return check_int(r, 0, 2) ? u / limit : 0.0f;
    case 4:
        return 0.0f;
    case 5:
        return 0x1p-3f; /* equal keys together with equal codes */
    default:
        return u * iso_ldexp1((int32_t)check_int(r, -27, 40)) / limit;
    }
}

static int16_t random_code(struct check_rng *r, int kind, int limit)
{
    if (kind == 1) return (int16_t)(check_int(r, 0, 1) ? limit : -limit);
    if (kind == 2) return (int16_t)limit;
    return (int16_t)check_int(r, -limit, limit);
}

static void put_scale(uint8_t *page, uint32_t offset, uint32_t slot, float x)
{
    memcpy(page + offset + 4 * slot, &x, sizeof(x));
}

/* A page with its first used slots filled. */
static void fill_page(uint8_t *page, struct check_rng *r, uint32_t d, uint32_t used)
{
    const int k_kind = (int)check_int(r, 0, 6);
    const int v_kind = (int)check_int(r, 0, 6);
    const int codes = (int)check_int(r, 0, 3);
    memset(page, 0, iso_page_bytes(d));
    for (uint32_t j = 0; j < used; j++) {
        for (uint32_t i = 0; i < d; i++) {
            const int16_t k = random_code(r, codes, 2047);
            page[j * d + i] = (uint8_t)(k >> 4);
            uint8_t *lo = page + iso_page_k_lo(d) + j * (d / 2) + i % (d / 2);
            *lo = (uint8_t)(*lo | (k & 15) << (i < d / 2 ? 0 : 4));
            page[iso_page_v(d) + i * ISO_PAGE_POSITIONS + j] = (uint8_t)random_code(r, codes, 127);
        }
        put_scale(page, iso_page_k_scale(d), j, random_scale(r, k_kind, 2047.0f));
        put_scale(page, iso_page_v_scale(d), j, random_scale(r, v_kind, 127.0f));
    }
}

/* Visible ranges: causal from the newest position back, windows, single keys, and none. */
static void fill_range(struct random_case *c, struct check_rng *r, size_t i, uint32_t newest)
{
    const uint32_t oldest = c->page_base * ISO_PAGE_POSITIONS;
    const uint32_t last = (uint32_t)check_int(r, 0, 2)
                              ? newest - (uint32_t)i % 8 % (newest - oldest + 1)
                              : (uint32_t)check_int(r, oldest, newest);
    const uint32_t windows[] = {1, 2, 63, 64, 65, 513, UINT32_MAX};
    const uint32_t w = windows[check_int(r, 0, ISO_COUNT(windows) - 1)];
    c->last[i] = last;
    c->first[i] = last - oldest >= w ? last - w + 1 : oldest;
    if (check_int(r, 0, 15) == 0) c->first[i] = last + 1; /* sees nothing */
}

static void random_fill(struct random_case *c, struct check_rng *r, uint32_t d, size_t n_q)
{
    c->n_pages = (uint32_t)check_int(r, 1, N_PAGES);
    c->page_base = (uint32_t)check_int(r, 0, 9);
    const uint32_t used = (uint32_t)check_int(r, 1, ISO_PAGE_POSITIONS); /* of the last page */
    c->q = check_alloc(n_q * d * sizeof(int16_t), CHECK_END);
    c->q_scale = check_alloc(n_q * sizeof(float), CHECK_END);
    c->first = check_alloc(n_q * sizeof(uint32_t), CHECK_END);
    c->last = check_alloc(n_q * sizeof(uint32_t), CHECK_END);
    c->pages = check_alloc(c->n_pages * sizeof(*c->pages), CHECK_END);
    const int q_kind = (int)check_int(r, 0, 6);
    const int codes = (int)check_int(r, 0, 3);
    for (size_t i = 0; i < n_q * d; i++) c->q[i] = random_code(r, codes, 2047);
    const uint32_t newest = (c->page_base + c->n_pages - 1) * ISO_PAGE_POSITIONS + used - 1;
    for (size_t i = 0; i < n_q; i++) {
        c->q_scale[i] = random_scale(r, q_kind, 2047.0f);
        fill_range(c, r, i, newest);
    }
    for (uint32_t p = 0; p < c->n_pages; p++) {
        c->owned[p] = check_alloc(iso_page_bytes(d), p % 2 ? CHECK_START : CHECK_END);
        fill_page(c->owned[p], r, d, p + 1 == c->n_pages ? used : ISO_PAGE_POSITIONS);
        /* A page that no row sees may not even be looked at. */
        const uint32_t start = (c->page_base + p) * ISO_PAGE_POSITIONS;
        int seen = 0;
        for (size_t i = 0; i < n_q; i++) {
            seen |= c->first[i] <= c->last[i] && c->last[i] >= start &&
                    c->first[i] < start + ISO_PAGE_POSITIONS;
        }
        c->pages[p] = seen ? c->owned[p] : NULL;
    }
    const float cap = check_int(r, 0, 2) ? 0.0f : 50.0f;
    const struct iso_attention_args a = {
        .q = c->q,
        .q_scale = c->q_scale,
        .first = c->first,
        .last = c->last,
        .n_q = n_q,
        .d = d,
        .pages = c->pages,
        .page_base = c->page_base,
        .c = cap > 0.0f ? (float)(1.0 / sqrt((double)d) / iso_butterfly_block(d)) : score_scale(d),
        .cap = cap,
        .inv_cap = cap > 0.0f ? 1.0f / cap : 0.0f};
    c->a = a;
}

static void random_free(struct random_case *c)
{
    for (uint32_t p = 0; p < c->n_pages; p++) check_free(c->owned[p]);
    check_free(c->pages);
    check_free(c->q);
    check_free(c->q_scale);
    check_free(c->first);
    check_free(c->last);
}

/* States of n rows and the memory behind them. */
struct states {
    struct iso_attention_state *st;
    float *o;
    size_t n;
};

static struct states states_new(size_t n, uint32_t d)
{
    struct states s = {.n = n};
    s.st = check_alloc(n * sizeof(*s.st), CHECK_GUARDED);
    s.o = check_alloc(n * d * sizeof(float), CHECK_GUARDED);
    memset(s.o, 0xff, n * d * sizeof(float)); /* NaN: an empty state's o may not be read */
    for (size_t i = 0; i < n; i++) {
        s.st[i].o = s.o + i * d;
        s.st[i].empty = 1;
    }
    return s;
}

static void states_free(struct states *s)
{
    check_free(s->st);
    check_free(s->o);
}

static void
states_compare(const char *what, const struct states *got, const struct states *want, uint32_t d)
{
    for (size_t i = 0; i < want->n; i++) {
        const struct iso_attention_state *g = &got->st[i], *w = &want->st[i];
        if (g->empty != w->empty) fail_msg("%s: row %zu empty %d", what, i, g->empty);
        if (w->empty) continue;
        if (ISO_AS_U32(g->m) != ISO_AS_U32(w->m) || ISO_AS_U32(g->l) != ISO_AS_U32(w->l)) {
            fail_msg("%s: row %zu m %a l %a, want m %a l %a", what, i, (double)g->m, (double)g->l,
                     (double)w->m, (double)w->l);
        }
        check_bits_f32(what, g->o, d, w->o, d, 1, d);
    }
}

/* All segments of the case: states of each, merged heads, outputs; rows in calls of per_call. */
static void run_case(struct states *segs,
                     struct states *heads,
                     float *out,
                     const struct random_case *c,
                     const struct iso_attention_kernels *kern,
                     size_t per_call)
{
    const uint32_t d = c->a.d;
    void *scratch = check_alloc(iso_attention_scratch_bytes(per_call, d), CHECK_GUARDED);
    const uint32_t seg0 = c->page_base / ISO_SEGMENT_PAGES;
    const uint32_t seg1 = (c->page_base + c->n_pages - 1) / ISO_SEGMENT_PAGES;
    for (uint32_t seg = seg0; seg <= seg1; seg++) {
        struct states *s = &segs[seg - seg0];
        for (size_t i = 0; i < c->a.n_q; i += per_call) {
            struct iso_attention_args a = c->a;
            a.n_q = ISO_MIN(per_call, c->a.n_q - i);
            a.q += i * d;
            a.q_scale += i;
            a.first += i;
            a.last += i;
            kern->segment(s->st + i, &a, seg, scratch);
        }
        for (size_t i = 0; i < c->a.n_q; i++) kern->merge(&heads->st[i], &s->st[i], d);
    }
    for (size_t i = 0; i < c->a.n_q; i++) kern->finish(out + i * d, &heads->st[i], d);
    check_free(scratch);
}

#define N_SEGMENTS 4 /* 17 pages from page 9 touch at most four */

static void check_case(const struct random_case *c, struct check_rng *r)
{
    const uint32_t d = c->a.d;
    const size_t n_q = c->a.n_q;
    struct states segs[2][N_SEGMENTS], heads[2];
    float *out[2];
    unsigned flags;
    for (size_t l = 0; check_level(l, &flags); l++) {
        const struct iso_attention_kernels *kern = iso_attention_select(flags);
        const int k = l > 0;
        for (int s = 0; s < N_SEGMENTS; s++) segs[k][s] = states_new(n_q, d);
        heads[k] = states_new(n_q, d);
        out[k] = check_alloc(n_q * d * sizeof(float), CHECK_GUARDED);
        const size_t per_call = check_int(r, 0, 1) ? n_q : (size_t)check_int(r, 1, (int64_t)n_q);
        run_case(segs[k], &heads[k], out[k], c, kern, per_call);
        if (k == 0) continue;
        char what[128];
        (void)snprintf(what, sizeof(what), "%s d %u n_q %zu pages %u from %u cap %g calls of %zu",
                       kern->name, d, n_q, c->n_pages, c->page_base, (double)c->a.cap, per_call);
        for (int s = 0; s < N_SEGMENTS; s++) {
            states_compare(what, &segs[1][s], &segs[0][s], d);
            states_free(&segs[1][s]);
        }
        states_compare(what, &heads[1], &heads[0], d);
        states_free(&heads[1]);
        check_bits_f32(what, out[1], d, out[0], d, n_q, d);
        check_free(out[1]);
    }
    for (int s = 0; s < N_SEGMENTS; s++) states_free(&segs[0][s]);
    states_free(&heads[0]);
    check_free(out[0]);
}

static void test_random(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {8, 16, 24, 32, 40, 64, 72, 80, 96, 112, 128, 192, 256};
    struct check_rng r = check_rng(2);
    for (size_t k = 0; k < ISO_COUNT(sizes); k++) {
        for (int n = 0; n < 12; n++) {
            struct random_case c;
            const size_t n_q = (size_t)(n < 4 ? n + 1 : check_int(&r, 1, 33));
            random_fill(&c, &r, sizes[k], n_q);
            check_case(&c, &r);
            random_free(&c);
        }
    }
}

/* Magnitudes from what the guard removes up to large, and zeros. */
static void fill_state(struct iso_attention_state *st, struct check_rng *r, uint32_t d)
{
    st->empty = check_int(r, 0, 9) == 0;
    st->m = (float)check_int(r, -70, 70);
    st->l = 65536.0f * (1.0f + iso_absf(check_f32(r)));
    for (uint32_t i = 0; i < d; i++) {
        const float u = check_f32(r) * iso_ldexp1((int32_t)check_int(r, -59, 20));
        st->o[i] = check_int(r, 0, 2) ? iso_guard(u) : 0.0f;
    }
}

/* Merges and results of states that attention of a few pages seldom makes. */
static void test_merge(void **state)
{
    (void)state;
    struct check_rng r = check_rng(3);
    const struct iso_attention_kernels *ref = iso_attention_select(ISO_CPU_REF);
    const size_t n = 64;
    for (uint32_t d = 8; d <= ISO_HEAD_MAX; d += 24) {
        struct states start = states_new(n, d), seg = states_new(n, d);
        struct states want = states_new(n, d), got = states_new(n, d);
        float *out = check_alloc(2 * d * sizeof(float), CHECK_GUARDED);
        for (size_t i = 0; i < n; i++) {
            fill_state(&start.st[i], &r, d);
            fill_state(&seg.st[i], &r, d);
        }
        unsigned flags;
        for (size_t l = 0; check_level(l, &flags); l++) {
            const struct iso_attention_kernels *kern = iso_attention_select(flags);
            struct states *s = l == 0 ? &want : &got;
            memcpy(s->o, start.o, n * d * sizeof(float));
            for (size_t i = 0; i < n; i++) {
                s->st[i] = start.st[i];
                s->st[i].o = s->o + i * d;
                kern->merge(&s->st[i], &seg.st[i], d);
                kern->finish(out, &s->st[i], d);
                ref->finish(out + d, &s->st[i], d);
                check_bits_f32(kern->name, out, d, out + d, d, 1, d);
            }
            states_compare(kern->name, s, &want, d);
        }
        check_free(out);
        states_free(&start);
        states_free(&seg);
        states_free(&want);
        states_free(&got);
    }
}

/* A case that can be checked by hand: one visible key gives back its own value. */
static void test_one_key(void **state)
{
    (void)state;
    const uint32_t d = 32;
    const struct iso_heads_args args = {.d = d, .pairs = ISO_ROPE_NONE};
    unsigned flags;
    for (size_t l = 0; check_level(l, &flags); l++) {
        struct sequence s = {.d = d, .n_heads = 1, .n_tokens = 70, .window = 1};
        sequence_alloc(&s);
        float *out = check_alloc((size_t)s.n_tokens * d * sizeof(float), CHECK_GUARDED);
        for (uint32_t t = 0; t < s.n_tokens; t++) {
            float x[32] = {0};
            x[t % d] = (float)(t + 1);
            iso_heads_select(flags)->q(s.q + t * d, &s.q_scale[t], NULL, x, NULL, &args);
            iso_heads_select(flags)->k(s.pages[t / 64], t % 64, NULL, x, NULL, &args);
            iso_heads_select(flags)->v(s.pages[t / 64], t % 64, x, d);
        }
        attend(out, iso_attention_select(flags), &s, 7);
        for (uint32_t t = 0; t < s.n_tokens; t++) {
            for (uint32_t i = 0; i < d; i++) {
                const float want = i == t % d ? (float)(t + 1) : 0.0f;
                assert_float_equal(out[t * d + i], want, 0.01f * (float)(t + 1));
            }
        }
        check_free(out);
        sequence_free(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_key), cmocka_unit_test(test_boundary),
        cmocka_unit_test(test_golden),  cmocka_unit_test(test_merge),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
