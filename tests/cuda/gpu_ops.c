/* SPDX-License-Identifier: MIT
 * gpu_ops.c - every operation of a GPU's device against the CPU's, bit by bit, on generated data.
 *
 * usage: gpu_ops [LEVEL of cuda | metal | metal:LEVEL] [seed] [rounds]
 * Needs the GPU, or a build with METAL=emulated. The last line is "N passed, N failed". */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arith/page.h"
#include "arith/rope.h"
#include "base/mem.h"
#include "cuda/pair.h"
#include "cuda/products.h"
#include "format/types.h"
#include "kernels/heads/heads.h"
#include "kernels/quantize/quantize.h"

/* --- rows ---------------------------------------------------------------------------------------------- */

/* Codes are the device's own, so they are seen through a product with every column. */
static bool codes_equal(struct pair *p, struct both codes, uint32_t n_rows, uint32_t n)
{
    struct matrix m = make_matrix(p, ISO_TYPE_Q8_0, 24, n, false);
    struct both y = pair_buffer(p, (size_t)n_rows * 24 * 4, ISO_MEM_DEVICE, NULL);
    for (int i = 0; i < 2; i++) {
        p->dev[i]->vt->matmul(p->q[i], &(struct iso_op_matmul){.codes = codes.s[i], .weight = {m.w[i]}, .y = {y.s[i]},
                                                               .n_weights = 1, .n_rows = n_rows});
    }
    (void)pair_sync(p);
    const bool good = pair_equal(p, y, y.len, "product of the codes");
    pair_free(p, y);
    free_matrix(p, &m);
    return good;
}

static void test_norm_quantize(struct pair *p, uint32_t n_rows, uint32_t n)
{
    const bool weighted = pair_next(p) % 3 != 0, indexed = pair_next(p) % 3 == 0, fused = !indexed && pair_next(p) % 2;
    const bool post = pair_next(p) % 2;
    struct both x = pair_floats(p, (size_t)2 * n_rows * n, (const float[]){1, 1e-5f, 1e4f}[pair_next(p) % 3]);
    struct both y = pair_floats(p, (size_t)n_rows * n, 1.0f), w = pair_floats(p, n, 1.0f), codes = make_codes(p, n_rows, n);
    struct both tap = pair_buffer(p, (size_t)n_rows * n * 4, ISO_MEM_DEVICE, NULL);
    uint32_t *rows = malloc(n_rows * 4);
    for (uint32_t i = 0; i < n_rows; i++) rows[i] = 2 * i + 1;
    struct both index = pair_buffer(p, n_rows * 4, ISO_MEM_HOST, rows);
    const struct iso_span none = {0};
    pair_begin(p);
    for (int i = 0; i < 2; i++) {
        if (fused) {
            p->dev[i]->vt->residual(p->q[i], &(struct iso_op_residual){.x = x.s[i], .y = y.s[i], .weight = w.s[i],
                .eps = 1e-8f, .inv_n = 1.0f / (float)n, .has_norm = post, .n = n, .n_rows = n_rows});
        }
        p->dev[i]->vt->norm_quantize(p->q[i], &(struct iso_op_norm_quantize){.x = x.s[i],
            .weight = weighted ? w.s[i] : none, .index = indexed ? index.s[i] : none, .codes = codes.s[i], .tap = tap.s[i],
            .eps = 1e-5f, .inv_n = 1.0f / (float)n, .n = n, .n_rows = n_rows});
    }
    bool good = codes_equal(p, codes, n_rows, n);
    good = pair_equal(p, tap, tap.len, "tap") && good;
    good = pair_equal(p, x, x.len, "x") && good;
    pair_case(p, good, "norm_quantize %u rows of %u, weighted %d, indexed %d, fused %d, post norm %d", n_rows, n,
              weighted, indexed, fused, post);
    const struct both all[] = {x, y, w, codes, tap, index};
    for (size_t i = 0; i < ISO_COUNT(all); i++) pair_free(p, all[i]);
    free(rows);
}

static void test_quantize(struct pair *p, uint32_t n_rows, uint32_t n, int form)
{
    struct both x = pair_floats(p, (size_t)n_rows * n, (const float[]){1, 1e-9f, 20}[pair_next(p) % 3]);
    struct both o = pair_floats(p, (size_t)n_rows * n, 4.0f), codes = make_codes(p, n_rows, n);
    struct both tap = pair_buffer(p, (size_t)n_rows * n * 4, ISO_MEM_DEVICE, NULL);
    const struct iso_span none = {0};
    pair_begin(p);
    for (int i = 0; i < 2; i++) {
        p->dev[i]->vt->quantize(p->q[i], &(struct iso_op_quantize){.x = x.s[i], .gate = form == 1 ? o.s[i] : none,
            .up = form > 1 ? o.s[i] : none, .codes = codes.s[i], .tap = tap.s[i], .n = n, .n_rows = n_rows,
            .glu = form == 2 ? ISO_GLU_SWIGLU : ISO_GLU_GEGLU});
    }
    bool good = codes_equal(p, codes, n_rows, n);
    if (form > 0) good = pair_equal(p, tap, tap.len, "tap") && good;
    pair_case(p, good, "quantize form %d, %u rows of %u", form, n_rows, n);
    const struct both all[] = {x, o, codes, tap};
    for (size_t i = 0; i < ISO_COUNT(all); i++) pair_free(p, all[i]);
}

static void test_light(struct pair *p, uint32_t n_rows, uint32_t n)
{
    struct both x = pair_floats(p, (size_t)n_rows * n, 3.0f), y = pair_floats(p, (size_t)n_rows * n, 1.0f);
    struct both w = pair_floats(p, n, 1.0f), l = pair_floats(p, (size_t)n_rows * n, 9.0f);
    uint32_t *rows = malloc(n_rows * 4);
    const uint32_t n_out = (n_rows + 1) / 2;
    const uint32_t odd = pair_next(p) % 2;
    for (uint32_t i = 0; i < n_out; i++) rows[i] = ISO_MIN(2 * i + odd, n_rows - 1);
    struct both index = pair_buffer(p, n_rows * 4, ISO_MEM_HOST, rows);
    const int cap = pair_next(p) % 2;
    const struct iso_span none = {0};
    pair_begin(p);
    for (int i = 0; i < 2; i++) {
        const struct iso_device_vt *vt = p->dev[i]->vt;
        vt->norm(p->q[i], &(struct iso_op_norm){.x = x.s[i], .y = x.s[i], .weight = cap ? w.s[i] : none, .eps = 1e-6f,
                                                .inv_n = 1.0f / (float)n, .n = n, .n_rows = n_rows});
        vt->residual(p->q[i], &(struct iso_op_residual){.x = x.s[i], .y = y.s[i], .n = n, .n_rows = n_rows});
        vt->residual(p->q[i], &(struct iso_op_residual){.x = x.s[i], .y = y.s[i], .weight = w.s[i], .eps = 1e-8f,
                                                        .inv_n = 1.0f / (float)n, .has_norm = 1, .n = n, .n_rows = n_rows});
        vt->gather(p->q[i], &(struct iso_op_gather){.x = x.s[i], .index = index.s[i], .n = n, .n_rows = n_out});
        vt->logits(p->q[i], &(struct iso_op_logits){.logits = l.s[i], .scale = 0.196116f, .cap = cap ? 20.0f : 0,
                                                    .inv_cap = cap ? 1.0f / 20.0f : 0, .has_scale = cap, .n = n, .n_rows = n_rows});
    }
    (void)pair_sync(p);
    bool good = pair_equal(p, x, x.len, "norm, residual, gather");
    good = pair_equal(p, l, l.len, "logits") && good;
    pair_case(p, good, "light operations, %u rows of %u, cap %d", n_rows, n, cap);
    const struct both all[] = {x, y, w, l, index};
    for (size_t i = 0; i < ISO_COUNT(all); i++) pair_free(p, all[i]);
    free(rows);
}

static void test_embed(struct pair *p, enum iso_type t)
{
    const uint32_t n_rows = 75, n = pick_cols(p, t), n_ids = p->small ? 5 : 13;
    struct matrix m = make_matrix(p, t, n_rows, n, pair_next(p) % 2);
    int32_t ids[13];
    for (uint32_t i = 0; i < n_ids; i++) ids[i] = (int32_t)(pair_next(p) % n_rows);
    struct both b = pair_buffer(p, sizeof(ids), ISO_MEM_HOST, ids), x = pair_buffer(p, (size_t)n_ids * n * 4, ISO_MEM_DEVICE, NULL);
    pair_begin(p);
    for (int i = 0; i < 2; i++) {
        p->dev[i]->vt->embed(p->q[i], &(struct iso_op_embed){.ids = b.s[i], .table = m.w[i], .x = x.s[i], .scale = 25.25f,
                                                             .has_scale = t % 2, .n_rows = n_ids});
    }
    (void)pair_sync(p);
    pair_case(p, pair_equal(p, x, x.len, "x"), "embed %s, %u columns", iso_type_info(t)->name, n);
    pair_free(p, b);
    pair_free(p, x);
    free_matrix(p, &m);
}

/* --- heads and attention ----------------------------------------------------------------------------------- */

struct shape {
    uint32_t d, group, n_kv, n_rot, pairs, window, n_sessions;
    bool norm;
    float cap;
};

struct cache {
    struct shape s;
    struct both q, k, v, q_codes, q_scales, norm, rope, rows, q_tap, k_tap, out, pages, tables;
    uint32_t n_pages, table_len;
};

#define MAX_STEP 160

static void cache_open(struct pair *p, struct cache *c, uint32_t n_positions)
{
    const struct shape *s = &c->s;
    const size_t qw = (size_t)MAX_STEP * s->n_kv * s->group * s->d * 4, kw = (size_t)MAX_STEP * s->n_kv * s->d * 4;
    c->table_len = n_positions / 64 + 1;
    c->n_pages = s->n_sessions * c->table_len;
    uint32_t *table = malloc(c->n_pages * 4);
    for (uint32_t i = 0; i < c->n_pages; i++) table[i] = (i * 7 + 3) % c->n_pages; /* a permutation unless 7 divides */
    if (c->n_pages % 7 == 0) {
        for (uint32_t i = 0; i < c->n_pages; i++) table[i] = c->n_pages - 1 - i;
    }
    uint8_t *zero = calloc((size_t)c->n_pages * s->n_kv * iso_page_bytes(s->d), 1);
    c->pages = pair_buffer(p, (size_t)c->n_pages * s->n_kv * iso_page_bytes(s->d), ISO_MEM_DEVICE, zero);
    c->tables = pair_buffer(p, c->n_pages * 4, ISO_MEM_HOST, table);
    c->q = pair_buffer(p, qw, ISO_MEM_DEVICE, NULL);
    c->k = pair_buffer(p, kw, ISO_MEM_DEVICE, NULL);
    c->v = pair_buffer(p, kw, ISO_MEM_DEVICE, NULL);
    c->q_codes = pair_buffer(p, qw / 2, ISO_MEM_DEVICE, NULL);
    c->q_scales = pair_buffer(p, (size_t)MAX_STEP * s->n_kv * s->group * 4, ISO_MEM_DEVICE, NULL);
    c->norm = pair_floats(p, s->d, 1.0f);
    c->rope = pair_buffer(p, (size_t)MAX_STEP * s->d * 4, ISO_MEM_HOST, NULL);
    c->rows = pair_buffer(p, MAX_STEP * sizeof(struct iso_row_desc), ISO_MEM_HOST, NULL);
    c->q_tap = pair_buffer(p, qw, ISO_MEM_DEVICE, NULL);
    c->k_tap = pair_buffer(p, kw, ISO_MEM_DEVICE, NULL);
    c->out = pair_buffer(p, qw, ISO_MEM_DEVICE, NULL);
    free(table);
    free(zero);
}

static void cache_close(struct pair *p, struct cache *c)
{
    const struct both all[] = {c->q, c->k, c->v, c->q_codes, c->q_scales, c->norm, c->rope, c->rows, c->q_tap, c->k_tap,
                               c->out, c->pages, c->tables};
    for (size_t i = 0; i < ISO_COUNT(all); i++) pair_free(p, all[i]);
}

static void upload_both(struct pair *p, struct both b, const void *data, size_t len)
{
    for (int i = 0; i < 2; i++) {
        if (p->dev[i]->vt->upload(p->dev[i], b.s[i], data, len) != ISO_OK) {
            printf("FAIL %s\n", iso_err_detail());
            exit(1);
        }
    }
}

static void random_into(struct pair *p, struct both b, size_t n, bool wild)
{
    static const float sizes[] = {1, 8, 0.125f, 30, 3, 0, 0x1p-30f, 100};
    float *x = malloc(n * 4);
    float scale = 1.0f;
    for (size_t i = 0; i < n; i++) {
        if (i % 64 == 0) scale = wild ? sizes[(pair_next(p) >> 11) % ISO_COUNT(sizes)] : 1.0f;
        x[i] = pair_unit(p) * scale;
    }
    upload_both(p, b, x, n * 4);
    free(x);
}

/* n rows: session and position of each; everything else random. */
static bool run_rows(struct pair *p, struct cache *c, const uint32_t *session, const uint32_t *position, uint32_t n,
                     bool compare)
{
    const struct shape *s = &c->s;
    const uint32_t heads = s->n_kv * s->group;
    struct iso_row_desc desc[MAX_STEP];
    float *rope = malloc((size_t)n * s->n_rot * 4 + 4);
    uint64_t turns[128];
    for (uint32_t i = 0; i < s->n_rot / 2; i++) turns[i] = iso_rope_turns(1e4, i, s->n_rot, 1.0);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t w = s->window, first = w && position[i] + 1 > w ? position[i] + 1 - w : 0;
        desc[i] = (struct iso_row_desc){session[i], position[i], {first, first}};
        iso_rope_row(rope + (size_t)i * s->n_rot, turns, s->n_rot / 2, position[i]);
    }
    upload_both(p, c->rows, desc, n * sizeof(*desc));
    if (s->n_rot) upload_both(p, c->rope, rope, (size_t)n * s->n_rot * 4);
    random_into(p, c->q, (size_t)n * heads * s->d, true);
    random_into(p, c->k, (size_t)n * s->n_kv * s->d, true);
    random_into(p, c->v, (size_t)n * s->n_kv * s->d, true);
    const struct iso_span none = {0};
    pair_begin(p);
    for (int i = 0; i < 2; i++) {
        const struct iso_kv_place kv = {c->pages.s[i], c->tables.s[i], c->table_len, 1};
        p->dev[i]->vt->heads(p->q[i], &(struct iso_op_heads){
            .q = c->q.s[i], .k = c->k.s[i], .v = c->v.s[i], .q_codes = c->q_codes.s[i], .q_scales = c->q_scales.s[i],
            .q_norm = s->norm ? c->norm.s[i] : none, .k_norm = s->norm ? c->norm.s[i] : none, .rope = c->rope.s[i],
            .rows = c->rows.s[i], .q_tap = c->q_tap.s[i], .k_tap = c->k_tap.s[i], .kv = kv, .eps = 1e-6f,
            .inv_n = 1.0f / (float)s->d, .d = s->d, .n_heads = heads, .n_kv_heads = s->n_kv, .n_rot = s->n_rot,
            .pairs = s->pairs, .n_rows = n});
        p->dev[i]->vt->attention(p->q[i], &(struct iso_op_attention){
            .q_codes = c->q_codes.s[i], .q_scales = c->q_scales.s[i], .rows = c->rows.s[i], .out = c->out.s[i], .kv = kv,
            .c = 0.02f / (float)s->d, .cap = s->cap, .inv_cap = s->cap > 0 ? 1.0f / s->cap : 0, .d = s->d,
            .n_heads = heads, .n_kv_heads = s->n_kv, .n_rows = n});
    }
    bool good = pair_sync(p) == ISO_OK;
    free(rope);
    if (!compare) return good;
    good = pair_equal(p, c->q_codes, (size_t)n * heads * s->d * 2, "q codes") && good;
    good = pair_equal(p, c->q_scales, (size_t)n * heads * 4, "q scales") && good;
    good = pair_equal(p, c->q_tap, (size_t)n * heads * s->d * 4, "q tap") && good;
    good = pair_equal(p, c->k_tap, (size_t)n * s->n_kv * s->d * 4, "k tap") && good;
    good = pair_equal(p, c->pages, c->pages.len, "pages") && good;
    return pair_equal(p, c->out, (size_t)n * heads * s->d * 4, "attention") && good;
}

/* A timeline per session in prompt chunks, then decode rows of all sessions at once. */
static void test_attention(struct pair *p, struct shape s, uint32_t n_positions)
{
    struct cache c = {.s = s};
    uint32_t session[MAX_STEP], position[MAX_STEP];
    cache_open(p, &c, n_positions + 4);
    bool good = true;
    for (uint32_t at = 0; at < n_positions;) {
        const uint32_t most = (uint32_t)(1 + pair_next(p) % (MAX_STEP / s.n_sessions));
        const uint32_t n = ISO_MIN(n_positions - at, most);
        uint32_t rows = 0;
        for (uint32_t k = 0; k < s.n_sessions; k++) {
            for (uint32_t i = 0; i < n; i++, rows++) session[rows] = k, position[rows] = at + i;
        }
        good = run_rows(p, &c, session, position, rows, true) && good;
        at += n;
    }
    for (uint32_t i = 0; i < 3; i++) {
        for (uint32_t k = 0; k < s.n_sessions; k++) session[k] = k, position[k] = n_positions + i;
        good = run_rows(p, &c, session, position, s.n_sessions, true) && good;
    }
    pair_case(p, good, "attention d %u, group %u, kv heads %u, rot %u, pairs %u, window %u, sessions %u, norm %d, cap %g, %u positions",
              s.d, s.group, s.n_kv, s.n_rot, s.pairs, s.window, s.n_sessions, s.norm, (double)s.cap, n_positions);
    cache_close(p, &c);
}

/* An emulated GPU: the same branches with fewer positions. */
static void test_small_attentions(struct pair *p, unsigned rounds)
{
    static const uint32_t dims[] = {8, 40, 64, 80, 128, 256};
    for (unsigned i = 0; i < ISO_COUNT(dims) * rounds; i++) {
        struct shape s = {.d = dims[i % ISO_COUNT(dims)], .group = PICK(p, 1, 2, 3, 5), .n_kv = PICK(p, 1, 2),
                          .pairs = PICK(p, ISO_ROPE_NONE, ISO_ROPE_INTERLEAVED, ISO_ROPE_HALVES),
                          .window = PICK(p, 0, 5, 70), .n_sessions = PICK(p, 1, 2),
                          .norm = pair_next(p) % 2, .cap = pair_next(p) % 3 ? 0.0f : 50.0f};
        s.n_rot = s.pairs == ISO_ROPE_NONE ? 0 : pair_next(p) % 2 ? s.d : s.d / 8 * 4;
        test_attention(p, s, PICK(p, 3, 64, 90));
    }
    test_attention(p, (struct shape){.d = 32, .group = 9, .n_kv = 1, .n_rot = 32, .pairs = ISO_ROPE_INTERLEAVED,
                                     .n_sessions = 1, .norm = true}, 520); /* a second segment, merged */
}

static void test_attentions(struct pair *p, unsigned rounds)
{
    static const uint32_t dims[] = {8, 16, 24, 32, 40, 64, 72, 80, 96, 112, 128, 160, 192, 224, 256, 64, 128, 256};
    for (unsigned i = 0; i < ISO_COUNT(dims) * rounds; i++) {
        struct shape s = {.d = dims[i % ISO_COUNT(dims)], .group = PICK(p, 1, 2, 3, 4, 7, 8, 16, 17, 32), .n_kv = PICK(p, 1, 2, 3),
                          .pairs = PICK(p, ISO_ROPE_NONE, ISO_ROPE_INTERLEAVED, ISO_ROPE_HALVES),
                          .window = PICK(p, 0, 0, 5, 70, 513), .n_sessions = PICK(p, 1, 1, 2, 5),
                          .norm = pair_next(p) % 2, .cap = pair_next(p) % 3 ? 0.0f : 50.0f};
        if (s.group * s.n_kv > 64) s.n_kv = 1;
        s.n_rot = s.pairs == ISO_ROPE_NONE ? 0 : pair_next(p) % 2 ? s.d : s.d / 8 * 4;
        test_attention(p, s, PICK(p, 3, 64, 130, 200, 600, 1100));
    }
    for (uint32_t group = 1; group <= 18; group++) { /* shared memory of the split form grows with the group */
        for (uint32_t d = 64; d <= 256; d *= 2) {
            test_attention(p, (struct shape){.d = d, .group = group, .n_kv = 1, .n_rot = d, .pairs = ISO_ROPE_HALVES,
                                             .n_sessions = 1}, 70);
        }
    }
    test_attention(p, (struct shape){.d = 128, .group = 16, .n_kv = 2, .n_rot = 128, .pairs = ISO_ROPE_INTERLEAVED,
                                     .n_sessions = 1, .norm = true}, 2700);
}

/* --- values outside the domain ---------------------------------------------------------------------------------- */

static void test_faults(struct pair *p)
{
    const uint32_t n = 512;
    float *x = calloc(2 * n, 4);
    static const float bad[] = {INFINITY, NAN, 0x1p100f, -0x1p101f};
    for (size_t b = 0; b < 4; b++) {
        for (uint32_t i = 0; i < 2 * n; i++) x[i] = pair_unit(p);
        x[n + 77] = bad[b];
        struct both bx = pair_buffer(p, 2 * n * 4, ISO_MEM_DEVICE, x), codes = make_codes(p, 2, n);
        for (int form = 0; form < 3; form++) {
            pair_begin(p);
            for (int i = 0; i < 2; i++) {
                const struct iso_device_vt *vt = p->dev[i]->vt;
                if (form == 0) vt->quantize(p->q[i], &(struct iso_op_quantize){.x = bx.s[i], .codes = codes.s[i], .n = n, .n_rows = 2, .layer = 7, .tensor = ISO_TENSOR_FFN_ACT});
                if (form == 1) vt->norm_quantize(p->q[i], &(struct iso_op_norm_quantize){.x = bx.s[i], .codes = codes.s[i], .eps = 1e-5f, .inv_n = 1.0f / (float)n, .n = n, .n_rows = 2, .layer = 3, .tensor = ISO_TENSOR_ATTN_NORM});
                if (form == 2) vt->logits(p->q[i], &(struct iso_op_logits){.logits = bx.s[i], .n = n, .n_rows = 2});
            }
            pair_case(p, pair_sync(p) == ISO_E_NUMERIC, "a value of %g is refused, form %d", (double)bad[b], form);
            pair_begin(p); /* and the next step is clean */
            for (int i = 0; i < 2; i++) p->dev[i]->vt->quantize(p->q[i], &(struct iso_op_quantize){.x = bx.s[i], .codes = codes.s[i], .n = n, .n_rows = 1});
            pair_case(p, pair_sync(p) == ISO_OK, "the step behind a refused one");
        }
        pair_free(p, bx);
        pair_free(p, codes);
    }
    free(x);
}

int main(int argc, char **argv)
{
    struct pair p = {.seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 88172645463325252ULL};
    const unsigned rounds = argc > 3 ? (unsigned)atoi(argv[3]) : 2;
    pair_open(&p, argc > 1 ? argv[1] : NULL);
    printf("level %s, seed %llu, rounds %u\n", p.dev[1]->vt->level(p.dev[1]), (unsigned long long)p.seed, rounds);
    for (int t = 0; t < ISO_TYPE_COUNT; t++) {
        test_golden(&p, (enum iso_type)t, "");
        test_golden(&p, (enum iso_type)t, ".edge");
        test_embed(&p, (enum iso_type)t);
    }
    printf("golden vectors, embed: %u passed, %u failed\n", p.n_passed, p.n_failed);
    for (unsigned i = 0; i < 8 * rounds; i++) {
        const uint32_t n_rows = p.small ? PICK(&p, 1, 2, 9) : PICK(&p, 1, 2, 3, 17, 60);
        const uint32_t n = p.small ? PICK(&p, 32, 96, 256, 288, 640) : PICK(&p, 32, 96, 256, 288, 640, 992, 4096, 6656);
        test_norm_quantize(&p, n_rows, n);
        test_quantize(&p, n_rows, n, (int)(i % 4));
        test_light(&p, n_rows, n);
    }
    test_faults(&p);
    printf("rows: %u passed, %u failed\n", p.n_passed, p.n_failed);
    test_products(&p, (p.small ? 2 : 4) * rounds);
    test_extremes(&p);
    printf("products: %u passed, %u failed\n", p.n_passed, p.n_failed);
    if (p.small) test_small_attentions(&p, rounds);
    else test_attentions(&p, rounds);
    pair_close(&p);
    printf("%u passed, %u failed\n", p.n_passed, p.n_failed);
    return p.n_failed ? 1 : 0;
}
