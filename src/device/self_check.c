/* SPDX-License-Identifier: MIT
 * self_check.c - generated inputs through every operation of a device, one digest over all outputs. */
#include "device/self_check.h"

#include <assert.h>
#include <string.h>

#include "arith/page.h"
#include "arith/prim.h"
#include "arith/rope.h"
#include "base/digest.h"
#include "base/mem.h"
#include "format/types.h"
#include "kernels/heads/heads.h"
#include "kernels/quantize/quantize.h"

#define ROWS 21      /* activation rows: more than a vector product takes, no multiple of a tile */
#define FEW 3        /* rows of the vector product */
#define COLS 512     /* widest row */
#define OUTS 37      /* weight rows: a tail behind 32 */
#define PAGES 10
#define FIRST_POSITION 494 /* the last rows of the attention test lie in the second segment */
#define HEADS_WIDTH 256    /* values of a row of heads */

const struct iso_device_limits iso_self_check_limits = {.max_rows = ROWS, .max_cols = COLS, .n_heads = 4,
                                                        .n_kv_heads = 2, .head_dim = 128,
                                                        .max_pages = PAGES};

struct check {
    struct iso_device *dev;
    const struct iso_device_vt *vt;
    struct iso_hasher *h;
    uint64_t seed;
    struct iso_span x, y, w, codes, tap, ids, rows, rope, tables, pages, q_codes, q_scales, index;
    /* The CPU borrows mapped bytes: they live until the end. */
    uint8_t weights[ISO_TYPE_COUNT][OUTS * COLS * 4];
    float host[ROWS * COLS];
};

static uint64_t next(struct check *k)
{
    k->seed ^= k->seed << 13;
    k->seed ^= k->seed >> 7;
    k->seed ^= k->seed << 17;
    return k->seed;
}

/* About uniform in (-1, 1), exact in f32. */
static float unit(struct check *k)
{
    return (float)((int32_t)(next(k) % 20001) - 10000) * 1e-4f;
}

static enum iso_err alloc(struct check *k, struct iso_span *out, size_t len, enum iso_mem kind)
{
    uint32_t buffer = 0;
    ISO_TRY(k->vt->alloc(k->dev, len, kind, "self-check", &buffer));
    *out = (struct iso_span){.buffer = buffer};
    return ISO_OK;
}

static enum iso_err alloc_all(struct check *k)
{
    const size_t f32 = sizeof(float);
    ISO_TRY(alloc(k, &k->x, ROWS * COLS * f32, ISO_MEM_DEVICE));
    ISO_TRY(alloc(k, &k->y, ROWS * COLS * f32, ISO_MEM_DEVICE));
    ISO_TRY(alloc(k, &k->w, COLS * f32, ISO_MEM_DEVICE));
    ISO_TRY(alloc(k, &k->tap, ROWS * COLS * f32, ISO_MEM_DEVICE));
    ISO_TRY(alloc(k, &k->codes, k->vt->codes_bytes(k->dev, ROWS, COLS), ISO_MEM_DEVICE));
    ISO_TRY(alloc(k, &k->ids, ROWS * sizeof(int32_t), ISO_MEM_HOST));
    ISO_TRY(alloc(k, &k->index, ROWS * sizeof(uint32_t), ISO_MEM_HOST));
    ISO_TRY(alloc(k, &k->rows, ROWS * sizeof(struct iso_row_desc), ISO_MEM_HOST));
    ISO_TRY(alloc(k, &k->rope, ROWS * 128 * f32, ISO_MEM_HOST));
    ISO_TRY(alloc(k, &k->tables, PAGES * sizeof(uint32_t), ISO_MEM_HOST));
    ISO_TRY(alloc(k, &k->pages, (size_t)PAGES * 2 * iso_page_bytes(128), ISO_MEM_DEVICE));
    ISO_TRY(alloc(k, &k->q_codes, ROWS * HEADS_WIDTH * sizeof(int16_t), ISO_MEM_DEVICE));
    return alloc(k, &k->q_scales, ROWS * 4 * f32, ISO_MEM_DEVICE);
}

static void free_all(struct check *k)
{
    const struct iso_span all[] = {k->x, k->y, k->w, k->codes, k->tap, k->ids, k->rows, k->rope,
                                   k->tables, k->pages, k->q_codes, k->q_scales, k->index};
    for (size_t i = 0; i < ISO_COUNT(all); i++) {
        if (all[i].buffer) k->vt->free(k->dev, all[i].buffer);
    }
}

/* n random values times scale into a buffer. */
static enum iso_err fill(struct check *k, struct iso_span to, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++) k->host[i] = unit(k) * (i % 37 == 0 ? 30.0f * scale : scale);
    return k->vt->upload(k->dev, to, k->host, n * sizeof(float));
}

/* Hashes n values of a buffer. */
static enum iso_err hash(struct check *k, struct iso_span at, size_t n)
{
    ISO_TRY(k->vt->download(k->dev, k->host, at, n * sizeof(float)));
    iso_hasher_update_le(k->h, k->host, n, sizeof(float));
    return ISO_OK;
}

static enum iso_err hash_bytes(struct check *k, struct iso_span at, size_t len)
{
    ISO_TRY(k->vt->download(k->dev, k->host, at, len));
    iso_hasher_update(k->h, k->host, len);
    return ISO_OK;
}

/* --- products ----------------------------------------------------------------------------------- */

/* Random block bytes whose scales are ordinary numbers. */
static void fill_weights(struct check *k, uint8_t *p, enum iso_type t, size_t n_blocks)
{
    /* offsets of f16 fields, 255 for none */
    static const uint8_t f16_at[ISO_TYPE_COUNT][2] = {
        [ISO_TYPE_F32] = {255, 255},    [ISO_TYPE_F16] = {0, 255},     [ISO_TYPE_BF16] = {255, 255},
        [ISO_TYPE_Q4_0] = {0, 255},     [ISO_TYPE_Q4_1] = {0, 2},      [ISO_TYPE_Q5_0] = {0, 255},
        [ISO_TYPE_Q5_1] = {0, 2},       [ISO_TYPE_Q8_0] = {0, 255},    [ISO_TYPE_IQ4_NL] = {0, 255},
        [ISO_TYPE_Q4_K] = {0, 2},       [ISO_TYPE_Q5_K] = {0, 2},      [ISO_TYPE_Q6_K] = {208, 255},
        [ISO_TYPE_MXFP4] = {255, 255},  [ISO_TYPE_NVFP4] = {255, 255}};
    const size_t len = iso_type_info(t)->block_bytes;
    for (size_t b = 0; b < n_blocks; b++, p += len) {
        for (size_t i = 0; i < len; i++) p[i] = (uint8_t)next(k);
        for (int f = 0; f < 2; f++) {
            if (f16_at[t][f] == 255) continue;
            uint8_t *hi = p + f16_at[t][f] + 1; /* exponent 8 to 11 of 31 */
            *hi = (uint8_t)((*hi & 0x8f) | 0x20);
        }
        if (t == ISO_TYPE_MXFP4) p[0] = (uint8_t)(120 + p[0] % 8);
        if (t == ISO_TYPE_BF16) p[1] = (uint8_t)((p[1] & 0x80) | 0x3e);
        if (t == ISO_TYPE_F32) p[3] = (uint8_t)((p[3] & 0x80) | 0x3e);
        /* Half of the NVFP4 rows keep scales of all sizes; in the others they lie close together. */
        if (t == ISO_TYPE_NVFP4 && b % 2) {
            for (int i = 0; i < 4; i++) p[i] = (uint8_t)(0x30 | (p[i] & 0x0f));
        }
    }
}

static size_t cols_of(enum iso_type t)
{
    const uint32_t n = iso_type_info(t)->block_values;
    return n == 256 ? 512 : n == 64 ? 320 : 288; /* a short last superblock where there can be one */
}

static enum iso_err run_product(struct check *k, struct iso_queue *q, const struct iso_weight *w,
                                uint32_t n_rows, uint32_t n)
{
    k->vt->norm_quantize(q, &(struct iso_op_norm_quantize){
        .x = k->x, .weight = k->w, .codes = k->codes, .tap = k->tap, .eps = 1e-5f,
        .inv_n = 1.0f / (float)n, .n = n, .n_rows = n_rows});
    k->vt->matmul(q, &(struct iso_op_matmul){
        .codes = k->codes, .weight = {*w}, .y = {k->y}, .n_weights = 1, .n_rows = n_rows});
    return k->vt->sync(q);
}

/* A product with many rows and with few, and the embedding of a row. */
static enum iso_err product(struct check *k, struct iso_queue *q, enum iso_type t)
{
    const size_t n = cols_of(t), bytes = iso_type_row_bytes(t, n);
    fill_weights(k, k->weights[t], t, OUTS * n / iso_type_info(t)->block_values);
    struct iso_weight w = {.type = (uint32_t)t, .n_rows = OUTS, .n_cols = (uint32_t)n, .row_bytes = bytes,
                           .scale = 0.75f, .has_scale = t == ISO_TYPE_Q8_0};
    ISO_TRY(k->vt->map(k->dev, k->weights[t], OUTS * bytes, &w.data.buffer));
    enum iso_err err = k->vt->weight(k->dev, &w);
    float many[FEW * OUTS];
    if (err == ISO_OK) err = run_product(k, q, &w, ROWS, (uint32_t)n);
    if (err == ISO_OK) err = hash(k, k->y, ROWS * OUTS);
    if (err == ISO_OK) memcpy(many, k->host, sizeof(many));
    if (err == ISO_OK) err = hash(k, k->tap, ROWS * n);
    if (err == ISO_OK) err = run_product(k, q, &w, FEW, (uint32_t)n);
    if (err == ISO_OK) err = hash(k, k->y, FEW * OUTS);
    if (err == ISO_OK && memcmp(many, k->host, sizeof(many)) != 0) {
        err = iso_err_raise(ISO_E_SELF_CHECK, __FILE__, __LINE__,
                            "%s: products of %s with few and with many rows differ", k->vt->name,
                            iso_type_info(t)->name);
    }
    if (err == ISO_OK) {
        k->vt->embed(q, &(struct iso_op_embed){.ids = k->ids, .table = w, .x = k->y, .scale = 24.0f,
                                               .has_scale = t % 2, .n_rows = FEW});
        err = k->vt->sync(q);
    }
    if (err == ISO_OK) err = hash(k, k->y, FEW * n);
    k->vt->free(k->dev, w.data.buffer);
    return err;
}

/* --- rows ---------------------------------------------------------------------------------------- */

/* Every way of making codes, seen through a product with the last row of codes' consumer: the taps, and
 * norms of what residuals leave. */
static enum iso_err rows(struct check *k, struct iso_queue *q)
{
    const uint32_t n = 288;
    const struct iso_span none = {0};
    struct iso_span up = k->x;
    up.offset = (uint64_t)n * sizeof(float) * 4; /* rows 4.. of x as the second operand */
    for (uint32_t form = 0; form < 3; form++) {
        k->vt->quantize(q, &(struct iso_op_quantize){
            .x = k->x, .gate = form == 0 ? up : none, .up = form ? up : none, .codes = k->codes,
            .tap = k->tap, .n = n, .n_rows = 8, .glu = form == 1 ? ISO_GLU_SWIGLU : ISO_GLU_GEGLU});
        ISO_TRY(k->vt->sync(q));
        ISO_TRY(hash(k, k->tap, 8 * n));
    }
    k->vt->norm(q, &(struct iso_op_norm){.x = k->x, .y = k->y, .weight = k->w, .eps = 1e-5f,
                                         .inv_n = 1.0f / (float)n, .n = n, .n_rows = 5});
    k->vt->residual(q, &(struct iso_op_residual){.x = k->y, .y = up, .n = n, .n_rows = 5});
    k->vt->residual(q, &(struct iso_op_residual){.x = k->y, .y = up, .weight = k->w, .eps = 1e-8f,
                                                 .inv_n = 1.0f / (float)n, .has_norm = 1, .n = n,
                                                 .n_rows = 4});
    k->vt->norm_quantize(q, &(struct iso_op_norm_quantize){
        .x = k->y, .codes = k->codes, .tap = k->tap, .eps = 1e-6f, .inv_n = 1.0f / (float)n, .n = n,
        .n_rows = 4}); /* the same rows: devices may fuse it with the residual */
    k->vt->gather(q, &(struct iso_op_gather){.x = k->y, .index = k->index, .n = n, .n_rows = 2});
    k->vt->logits(q, &(struct iso_op_logits){.logits = k->y, .scale = 0.196116f, .cap = 20.0f,
                                             .inv_cap = 1.0f / 20.0f, .has_scale = 1, .n = n, .n_rows = 1});
    ISO_TRY(k->vt->sync(q));
    ISO_TRY(hash(k, k->tap, 4 * n));
    return hash(k, k->y, 5 * n);
}

/* --- attention ------------------------------------------------------------------------------------- */

struct shape {
    uint32_t d, n_heads, n_kv_heads, pairs, n_rot;
    bool norm;
    float cap;
};

static void describe(struct check *k, const struct shape *s, uint32_t first, uint32_t n_rows)
{
    struct iso_row_desc *desc = k->vt->host(k->dev, k->rows);
    float *rope = k->vt->host(k->dev, k->rope);
    uint64_t turns[64];
    assert(s->n_rot / 2 <= 64);
    for (uint32_t i = 0; i < s->n_rot / 2; i++) turns[i] = iso_rope_turns(1e4, i, s->n_rot, 1.0);
    for (uint32_t i = 0; i < n_rows; i++) {
        const uint32_t p = first + i;
        desc[i] = (struct iso_row_desc){.position = p, .first_visible = {FIRST_POSITION - 3, p - i % 3}};
        iso_rope_row(rope + (size_t)i * s->n_rot, turns, s->n_rot / 2, p * 509);
    }
}

static void attend(struct check *k, struct iso_queue *q, const struct shape *s, uint32_t n_rows,
                   uint32_t layer_class)
{
    const struct iso_span none = {0};
    const uint32_t q_values = n_rows * s->n_heads * s->d, kv_values = n_rows * s->n_kv_heads * s->d;
    struct iso_span kx = k->x, vx = k->x, k_tap = k->tap;
    kx.offset = (uint64_t)q_values * sizeof(float);
    vx.offset = (uint64_t)(q_values + kv_values) * sizeof(float);
    k_tap.offset = kx.offset;
    const struct iso_kv_place kv = {.pages = k->pages, .tables = k->tables, .table_len = PAGES,
                                    .layer_class = layer_class};
    k->vt->heads(q, &(struct iso_op_heads){
        .q = k->x, .k = kx, .v = vx, .q_codes = k->q_codes, .q_scales = k->q_scales,
        .q_norm = s->norm ? k->w : none, .k_norm = s->norm ? k->w : none, .rope = k->rope,
        .rows = k->rows, .q_tap = k->tap, .k_tap = k_tap, .kv = kv, .eps = 1e-5f,
        .inv_n = 1.0f / (float)s->d, .d = s->d, .n_heads = s->n_heads, .n_kv_heads = s->n_kv_heads,
        .n_rot = s->n_rot, .pairs = s->pairs, .n_rows = n_rows});
    k->vt->attention(q, &(struct iso_op_attention){
        .q_codes = k->q_codes, .q_scales = k->q_scales, .rows = k->rows, .out = k->y, .kv = kv,
        .c = 0.0028f, .cap = s->cap, .inv_cap = s->cap > 0 ? 1.0f / s->cap : 0, .d = s->d,
        .n_heads = s->n_heads, .n_kv_heads = s->n_kv_heads, .n_rows = n_rows});
}

/* Rows of a prompt, then one row as in decoding, with either class of first visible positions. */
static enum iso_err attention(struct check *k, struct iso_queue *q, const struct shape *s)
{
    const uint32_t width = s->n_heads * s->d;
    k->vt->zero(k->dev, k->pages, (size_t)PAGES * 2 * iso_page_bytes(128), 0, 1);
    for (uint32_t step = 0; step < 4; step++) {
        const uint32_t n_rows = step < 2 ? ROWS - 1 : 1;
        ISO_TRY(fill(k, k->x, (size_t)n_rows * (width + 2 * s->n_kv_heads * s->d), 2.0f));
        /* A queue for each step: what the host writes is seen by steps that begin later. */
        k->vt->end(q);
        describe(k, s, FIRST_POSITION + (step == 0 ? 0 : step == 1 ? ROWS - 1 : 2 * ROWS + step), n_rows);
        ISO_TRY(k->vt->begin(k->dev, &q));
        attend(k, q, s, n_rows, step % 2);
        ISO_TRY(k->vt->sync(q));
        ISO_TRY(hash(k, k->y, (size_t)n_rows * width));
        ISO_TRY(hash(k, k->tap, (size_t)n_rows * (width + s->n_kv_heads * s->d)));
    }
    struct iso_span page = k->pages;
    for (uint32_t p = 7; p < 9; p++) { /* slots are page numbers turned around */
        page.offset = (uint64_t)(PAGES - 1 - p) * s->n_kv_heads * iso_page_bytes(s->d);
        ISO_TRY(hash_bytes(k, page, (size_t)s->n_kv_heads * iso_page_bytes(s->d)));
    }
    return ISO_OK;
}

static enum iso_err run_all(struct check *k, struct iso_queue *q)
{
    static const struct shape shapes[] = {
        {64, 4, 2, ISO_ROPE_INTERLEAVED, 64, true, 0.0f},
        {128, 2, 1, ISO_ROPE_HALVES, 64, false, 50.0f},
        {80, 3, 1, ISO_ROPE_HALVES, 80, true, 0.0f},
    };
    ISO_TRY(fill(k, k->x, ROWS * COLS, 1.0f));
    for (size_t i = 0; i < COLS; i++) k->host[i] = 1.0f + 0.5f * unit(k);
    ISO_TRY(k->vt->upload(k->dev, k->w, k->host, COLS * sizeof(float)));
    for (int t = 0; t < ISO_TYPE_COUNT; t++) ISO_TRY(product(k, q, (enum iso_type)t));
    ISO_TRY(rows(k, q));
    for (size_t i = 0; i < ISO_COUNT(shapes); i++) ISO_TRY(attention(k, q, &shapes[i]));
    return ISO_OK;
}

/* Digest of all outputs of run_all(). */
static const char expected[] = "37fea7c6d932c326e4427aec7a75ebf6854e863375e4d7611b5562205bc4b6e9";

static enum iso_err compare(struct check *k)
{
    struct iso_digest d;
    char hex[ISO_DIGEST_HEX];
    iso_hasher_final(k->h, &d);
    iso_digest_hex(hex, &d);
    if (strcmp(hex, expected) != 0) {
        ISO_FAIL(ISO_E_SELF_CHECK, "%s %s: the kernels of this build do not compute exact-1 (digest %s, expected %s); "
                 "was it built with contraction or fast maths?",
                 k->vt->name, k->vt->level(k->dev), hex, expected);
    }
    return ISO_OK;
}

enum iso_err iso_device_self_check(struct iso_device *dev)
{
    struct check *k = NULL;
    ISO_TRY(iso_mem_alloc((void **)&k, 1, sizeof(*k), "self-check"));
    k->dev = dev;
    k->vt = dev->vt;
    k->seed = 88172645463325252ULL;
    k->h = iso_hasher_new();
    struct iso_queue *q = NULL;
    enum iso_err err = alloc_all(k);
    if (err == ISO_OK) {
        int32_t *ids = dev->vt->host(dev, k->ids);
        uint32_t *index = dev->vt->host(dev, k->index), *table = dev->vt->host(dev, k->tables);
        for (uint32_t i = 0; i < FEW; i++) ids[i] = (int32_t)(OUTS - 1 - 17 * i);
        index[0] = 1;
        index[1] = 3;
        for (uint32_t p = 0; p < PAGES; p++) table[p] = PAGES - 1 - p;
        err = dev->vt->begin(dev, &q);
    }
    if (err == ISO_OK) {
        err = run_all(k, q);
        dev->vt->end(q);
    }
    if (err == ISO_OK) err = compare(k);
    free_all(k);
    iso_hasher_free(k->h);
    iso_mem_free(k);
    return err;
}
