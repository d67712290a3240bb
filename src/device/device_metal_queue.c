/* SPDX-License-Identifier: MIT
 * device_metal_queue.c - a step on Metal: each operation becomes dispatches at once, with the barriers it needs.
 *
 * One encoder of concurrent dispatches; a barrier names only the buffers on which an earlier dispatch and
 * the next one would clash. A residual is held back for one operation, because a norm of the same rows
 * takes it along in one dispatch.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "device/device_metal.h"
#include "kernels/attention/attention_metal.h"
#include "kernels/embed/embed_metal.h"
#include "kernels/heads/heads_metal.h"
#include "kernels/logits/logits_metal.h"
#include "kernels/matmul/matmul_metal.h"
#include "kernels/norm/norm_metal.h"
#include "kernels/quantize/quantize_metal.h"
#include "kernels/shared/codes.h"

#define SPLIT_PER_SESSION 4 /* more rows of a session than this share pages better as tiles */
#define REST SIZE_MAX       /* of a place: to the end of its buffer */
#define F32 sizeof(float)

/* --- one dispatch ------------------------------------------------------------------------------------- */

struct launch {
    struct iso_queue *q;
    enum iso_metal_kernel kernel;
    struct iso_metal_dispatch d;
    struct iso_metal_binding bind[ISO_METAL_BINDINGS];
    struct iso_metal_range range[ISO_METAL_BINDINGS];
    size_t n_ranges;
};

static uint32_t ceil_div(uint64_t n, uint32_t by)
{
    return (uint32_t)((n + by - 1) / by);
}

/* Keeps the first failure of this thread's last raise; everything later is refused with it. */
static void keep(struct iso_metal *d, enum iso_err err)
{
    if (err == ISO_OK || d->err != ISO_OK) return;
    d->err = err;
    (void)snprintf(d->detail, sizeof(d->detail), "%s", iso_err_detail());
}

static struct launch start(struct iso_queue *q, enum iso_metal_kernel k, uint32_t gx, uint32_t gy, uint32_t gz)
{
    struct launch l = {.q = q, .kernel = k};
    l.d.groups[0] = gx;
    l.d.groups[1] = gy;
    l.d.groups[2] = gz;
    l.d.group_threads = iso_metal_rules[k].threads;
    l.d.threadgroup_bytes = iso_metal_rules[k].bytes;
    return l;
}

/* Binds len bytes at s to place i; write: the kernel changes them. A span of no buffer leaves it unbound. */
static void place(struct launch *l, size_t i, struct iso_span s, size_t len, bool write)
{
    if (s.buffer == 0) return;
    const struct iso_metal_buffer *b = &l->q->dev->buffer[s.buffer];
    assert(s.offset <= b->len && (len == REST || len <= b->len - s.offset));
    assert((b->offset + s.offset) % iso_metal_rules[l->kernel].align == 0);
    const uint64_t first = b->offset + s.offset, end = len == REST ? b->offset + b->len : first + len;
    l->bind[i] = (struct iso_metal_binding){b->gpu, first};
    l->range[l->n_ranges++] = (struct iso_metal_range){.buffer = b->gpu, .write = write, .first = first, .end = end};
}

static void reads(struct launch *l, size_t i, struct iso_span s, size_t len)
{
    place(l, i, s, len, false);
}

static void writes(struct launch *l, size_t i, struct iso_span s, size_t len)
{
    place(l, i, s, len, true);
}

/* The fault word is only touched by atomic operations: it needs no barrier. */
static void faults(struct launch *l, size_t i)
{
    l->bind[i] = (struct iso_metal_binding){l->q->dev->buffer[l->q->dev->fault].gpu, 0};
}

/* The three places of n_rows rows of codes (kernels/shared/codes.h) at i, i + 1 and i + 2. */
static void codes(struct launch *l, size_t i, struct iso_span s, size_t n_rows, size_t n, bool write)
{
    const struct iso_codes c = iso_codes_view(iso_metal_at(l->q->dev, s), n_rows, n);
    const uint8_t *base = (const uint8_t *)c.code;
    struct iso_span scale = s, sum = s;
    scale.offset += (uint64_t)((const uint8_t *)c.scale - base);
    sum.offset += (uint64_t)((const uint8_t *)c.sum32 - base);
    place(l, i, s, n_rows * c.stride * sizeof(int16_t), write);
    place(l, i + 1, scale, n_rows * (c.stride / ISO_CODE_BLOCK) * F32, write);
    place(l, i + 2, sum, n_rows * (c.stride / ISO_CODE_SUM) * sizeof(int32_t), write);
}

static void launch(struct launch *l, const uint32_t *constants, const void *args, size_t args_len, size_t n_bind)
{
    struct iso_queue *q = l->q;
    struct iso_metal *dev = q->dev;
    uint32_t name[ISO_METAL_RANGES];
    if (dev->err != ISO_OK || l->d.groups[0] == 0 || l->d.groups[1] == 0) return;
    keep(dev, iso_metal_pipelines_get(&dev->pipelines, l->kernel, constants, &l->d.pipeline));
    if (dev->err != ISO_OK) return;
    const size_t n = iso_metal_hazards_note(&q->hazards, l->range, l->n_ranges, name);
    if (n > 0) iso_metal_gpu_barrier(dev->gpu, name, n);
    l->d.args = args;
    l->d.args_len = args_len;
    l->d.bind = l->bind;
    l->d.n_bind = n_bind;
    iso_metal_gpu_dispatch(dev->gpu, &l->d);
    q->recorded = true;
}

/* --- rows --------------------------------------------------------------------------------------------- */

static void run_residual(struct iso_queue *q, const struct iso_op_residual *op)
{
    const size_t len = (size_t)op->n_rows * op->n * F32;
    struct launch l = start(q, ISO_METAL_NORM, op->n_rows, 1, 1);
    writes(&l, ISO_METAL_NORM_TO, op->x, len);
    reads(&l, ISO_METAL_NORM_FROM, op->y, len);
    if (op->has_norm) reads(&l, ISO_METAL_NORM_WEIGHT, op->weight, op->n * F32);
    const uint32_t constants[] = {op->has_norm != 0, op->has_norm && op->weight.buffer, 1};
    const struct iso_metal_norm args = {.n = op->n, .eps = op->eps, .inv_n = op->inv_n};
    launch(&l, constants, &args, sizeof(args), ISO_METAL_NORM_BINDINGS);
}

/* The residual that waits runs now: the operation that follows cannot take it along. */
static void settle_residual(struct iso_queue *q)
{
    if (!q->adding) return;
    q->adding = false;
    run_residual(q, &q->residual);
}

static void rec_residual(struct iso_queue *q, const struct iso_op_residual *op)
{
    settle_residual(q);
    q->residual = *op;
    q->adding = true;
    q->recorded = true;
}

static void rec_norm(struct iso_queue *q, const struct iso_op_norm *op)
{
    const size_t len = (size_t)op->n_rows * op->n * F32;
    settle_residual(q);
    struct launch l = start(q, ISO_METAL_NORM, op->n_rows, 1, 1);
    writes(&l, ISO_METAL_NORM_TO, op->y, len);
    reads(&l, ISO_METAL_NORM_FROM, op->x, len);
    reads(&l, ISO_METAL_NORM_WEIGHT, op->weight, op->n * F32);
    const uint32_t constants[] = {1, op->weight.buffer != 0, 0};
    const struct iso_metal_norm args = {.n = op->n, .eps = op->eps, .inv_n = op->inv_n};
    launch(&l, constants, &args, sizeof(args), ISO_METAL_NORM_BINDINGS);
}

/* Whether the residual that waits is of the rows that the norm reads. */
static bool joins(const struct iso_queue *q, const struct iso_op_norm_quantize *op)
{
    const struct iso_op_residual *r = &q->residual;
    return q->adding && r->x.buffer == op->x.buffer && r->x.offset == op->x.offset && r->n == op->n &&
           r->n_rows == op->n_rows && op->index.buffer == 0;
}

static void rec_norm_quantize(struct iso_queue *q, const struct iso_op_norm_quantize *op)
{
    const struct iso_op_residual none = {.n = 0};
    const bool add = joins(q, op);
    if (!add) settle_residual(q);
    q->adding = false;
    const struct iso_op_residual *r = add ? &q->residual : &none;
    const size_t len = (size_t)op->n_rows * op->n * F32;
    struct launch l = start(q, ISO_METAL_NORM_QUANTIZE, op->n_rows, 1, 1);
    codes(&l, ISO_METAL_QUANTIZE_CODE, op->codes, op->n_rows, op->n, true);
    writes(&l, ISO_METAL_QUANTIZE_TAP, op->tap, len);
    faults(&l, ISO_METAL_QUANTIZE_FAULT);
    place(&l, ISO_METAL_QUANTIZE_X, op->x, op->index.buffer ? REST : len, add);
    reads(&l, ISO_METAL_NORM_QUANTIZE_WEIGHT, op->weight, op->n * F32);
    reads(&l, ISO_METAL_NORM_QUANTIZE_INDEX, op->index, op->n_rows * sizeof(uint32_t));
    reads(&l, ISO_METAL_NORM_QUANTIZE_Y, r->y, len);
    if (r->has_norm) reads(&l, ISO_METAL_NORM_QUANTIZE_Y_WEIGHT, r->weight, op->n * F32);
    const uint32_t constants[] = {op->tap.buffer != 0, op->weight.buffer != 0, op->index.buffer != 0, add,
                                  r->has_norm != 0, r->has_norm && r->weight.buffer};
    const struct iso_metal_quantize args = {
        .n = op->n, .stride = (uint32_t)iso_codes_stride(op->n), .n_rows = op->n_rows,
        .fault_code = ISO_FAULT(op->layer, op->tensor), .eps = op->eps, .inv_n = op->inv_n, .add_eps = r->eps};
    launch(&l, constants, &args, sizeof(args), ISO_METAL_NORM_QUANTIZE_BINDINGS);
}

static void rec_quantize(struct iso_queue *q, const struct iso_op_quantize *op)
{
    const size_t len = (size_t)op->n_rows * op->n * F32;
    const uint32_t stride = (uint32_t)iso_codes_stride(op->n);
    uint32_t form = ISO_METAL_FORM_PLAIN;
    if (op->up.buffer) form = ISO_METAL_FORM_SWIGLU + op->glu;
    else if (op->gate.buffer) form = ISO_METAL_FORM_GATE;
    settle_residual(q);
    struct launch l = start(q, ISO_METAL_QUANTIZE,
                            ceil_div((uint64_t)op->n_rows * (stride / ISO_CODE_BLOCK), ISO_METAL_QUANTIZE_BLOCKS), 1,
                            1);
    codes(&l, ISO_METAL_QUANTIZE_CODE, op->codes, op->n_rows, op->n, true);
    const bool tap = op->tap.buffer && form != ISO_METAL_FORM_PLAIN;
    if (tap) writes(&l, ISO_METAL_QUANTIZE_TAP, op->tap, len);
    faults(&l, ISO_METAL_QUANTIZE_FAULT);
    reads(&l, ISO_METAL_QUANTIZE_X, op->x, len);
    if (form != ISO_METAL_FORM_PLAIN) {
        reads(&l, ISO_METAL_QUANTIZE_OTHER, form == ISO_METAL_FORM_GATE ? op->gate : op->up, len);
    }
    const uint32_t constants[] = {tap, form};
    const struct iso_metal_quantize args = {.n = op->n, .stride = stride, .n_rows = op->n_rows,
                                            .fault_code = ISO_FAULT(op->layer, op->tensor)};
    launch(&l, constants, &args, sizeof(args), ISO_METAL_QUANTIZE_BINDINGS);
}

static void rec_embed(struct iso_queue *q, const struct iso_op_embed *op)
{
    settle_residual(q);
    struct launch l = start(q, ISO_METAL_EMBED, op->n_rows, 1, 1);
    reads(&l, ISO_METAL_EMBED_IDS, op->ids, op->n_rows * sizeof(int32_t));
    reads(&l, ISO_METAL_EMBED_TABLE, op->table.data, REST);
    writes(&l, ISO_METAL_EMBED_X, op->x, (size_t)op->n_rows * op->table.n_cols * F32);
    const struct iso_metal_embed args = {.n_cols = op->table.n_cols, .row_bytes = (uint32_t)op->table.row_bytes,
                                         .has_scale = op->has_scale, .scale = op->scale};
    launch(&l, &op->table.type, &args, sizeof(args), ISO_METAL_EMBED_BINDINGS);
}

static void rec_logits(struct iso_queue *q, const struct iso_op_logits *op)
{
    settle_residual(q);
    struct launch l = start(q, ISO_METAL_LOGITS, ceil_div(op->n, ISO_METAL_LOGITS_THREADS), op->n_rows, 1);
    writes(&l, ISO_METAL_LOGITS_L, op->logits, (size_t)op->n_rows * op->n * F32);
    faults(&l, ISO_METAL_LOGITS_FAULT);
    const struct iso_metal_logits args = {.n = op->n, .has_scale = op->has_scale, .scale = op->scale, .cap = op->cap,
                                          .inv_cap = op->inv_cap,
                                          .fault_code = ISO_FAULT(0, ISO_TENSOR_LOGITS)};
    launch(&l, NULL, &args, sizeof(args), ISO_METAL_LOGITS_BINDINGS);
}

/* --- products ----------------------------------------------------------------------------------------- */

static void run_matrix(struct iso_queue *q, const struct iso_op_matmul *op, const struct iso_weight *w,
                       struct iso_span y)
{
    const enum iso_metal_kernel k = iso_metal_choose(ISO_METAL_MATMUL_VEC, ISO_METAL_MATMUL_TILE32, op->n_rows);
    const uint32_t vec = k == ISO_METAL_MATMUL_VEC, tile = k == ISO_METAL_MATMUL_TILE8 ? 8 : 32;
    struct launch l = start(q, k, ceil_div(w->n_rows, vec ? ISO_METAL_MATMUL_VEC_ROWS : ISO_METAL_MATMUL_TILE_ROWS),
                            vec ? op->n_rows : ceil_div(op->n_rows, tile), 1);
    const size_t weight_bytes = (size_t)w->n_rows * w->row_bytes;
    codes(&l, ISO_METAL_MATMUL_CODE, op->codes, op->n_rows, w->n_cols, false);
    reads(&l, ISO_METAL_MATMUL_WEIGHTS, w->data, weight_bytes);
    const bool bias = w->bias.buffer != 0;
    reads(&l, ISO_METAL_MATMUL_BIAS, bias ? w->bias : w->data, bias ? w->n_rows * F32 : weight_bytes);
    writes(&l, ISO_METAL_MATMUL_Y, y, (size_t)op->n_rows * w->n_rows * F32);
    const struct iso_metal_matmul args = {
        .n_act = op->n_rows, .n_rows = w->n_rows, .n_cols = w->n_cols,
        .stride = (uint32_t)iso_codes_stride(w->n_cols), .row_bytes = (uint32_t)w->row_bytes,
        .has_scale = w->has_scale, .scale = w->scale, .has_bias = bias};
    launch(&l, &w->type, &args, sizeof(args), ISO_METAL_MATMUL_BINDINGS);
    q->work += (uint64_t)op->n_rows * w->n_rows * w->n_cols;
    if (q->work <= q->dev->work_max) return;
    const enum iso_err err = iso_metal_flush(q);
    (void)err; /* kept by the device */
}

/* The weights of one operation write different places: their dispatches run side by side. */
static void rec_matmul(struct iso_queue *q, const struct iso_op_matmul *op)
{
    settle_residual(q);
    for (uint32_t i = 0; i < op->n_weights; i++) run_matrix(q, op, &op->weight[i], op->y[i]);
}

/* --- row descriptors ---------------------------------------------------------------------------------- */

static bool was_moved(const struct iso_queue *q, uint32_t buffer)
{
    if (q->n_moved > ISO_METAL_MOVED) return true; /* some were not noted */
    for (uint32_t i = 0; i < q->n_moved; i++) {
        if (q->moved[i] == buffer) return true;
    }
    return false;
}

/* The host's view of the descriptors as they will be when the GPU comes to the next operation, or NULL:
 * not known. */
static const struct iso_row_desc *known_rows(const struct iso_queue *q, struct iso_span rows, uint32_t n)
{
    if (rows.buffer == q->rows_buffer && rows.offset == 0 && q->n_rows > 0) return n <= q->n_rows ? q->rows : NULL;
    if (was_moved(q, rows.buffer)) return NULL;
    return (const struct iso_row_desc *)(const void *)iso_metal_at(q->dev, rows);
}

/* A gather changes descriptors, or something else: both must be known when attention is planned. */
static void follow_gather(struct iso_queue *q, const struct iso_op_gather *op)
{
    const uint32_t *index = (const uint32_t *)(const void *)iso_metal_at(q->dev, op->index);
    const struct iso_row_desc *from = NULL;
    const uint32_t n = op->n_rows > 0 ? index[op->n_rows - 1] + 1 : 0;
    if (op->x.buffer == q->rows_buffer && op->x.offset == 0 && op->n * F32 == sizeof(*from) && n <= q->rows_cap) {
        from = known_rows(q, op->x, n);
    }
    if (from != NULL) {
        for (uint32_t i = 0; i < op->n_rows; i++) q->rows[i] = from[index[i]]; /* ascending, index[i] >= i */
        q->n_rows = op->n_rows;
        return;
    }
    if (op->x.buffer == q->rows_buffer) q->n_rows = 0;
    if (q->n_moved < ISO_METAL_MOVED) q->moved[q->n_moved] = op->x.buffer;
    q->n_moved++;
}

static void rec_gather(struct iso_queue *q, const struct iso_op_gather *op)
{
    if (op->x.buffer == 0 || op->n == 0 || op->n_rows == 0) return;
    settle_residual(q);
    follow_gather(q, op);
    struct launch l = start(q, ISO_METAL_GATHER, ceil_div(op->n, ISO_METAL_GATHER_THREADS), 1, 1);
    writes(&l, ISO_METAL_GATHER_X, op->x, REST);
    reads(&l, ISO_METAL_GATHER_INDEX, op->index, op->n_rows * sizeof(uint32_t));
    const struct iso_metal_gather args = {.n = op->n, .n_rows = op->n_rows};
    launch(&l, NULL, &args, sizeof(args), ISO_METAL_GATHER_BINDINGS);
}

static void forget_rows(struct iso_queue *q)
{
    q->rows_buffer = q->n_rows = q->n_moved = 0;
}

/* --- heads and attention ------------------------------------------------------------------------------ */

static void rec_heads(struct iso_queue *q, const struct iso_op_heads *op)
{
    const bool has_q = op->q.buffer != 0, has_kv = op->k.buffer != 0;
    const size_t q_len = (size_t)op->n_rows * op->n_heads * op->d, kv_len = (size_t)op->n_rows * op->n_kv_heads * op->d;
    const uint32_t items = iso_metal_heads_items(has_q ? op->n_heads : 0, has_kv ? op->n_kv_heads : 0);
    settle_residual(q);
    if (op->rows.offset == 0 && q->rows_buffer == 0) q->rows_buffer = op->rows.buffer;
    struct launch l = start(q, ISO_METAL_HEADS, ceil_div((uint64_t)op->n_rows * items, ISO_METAL_HEADS_GROUP), 1, 1);
    const struct iso_span none = {0};
    const struct iso_span q_tap = has_q ? op->q_tap : none, k_tap = has_kv ? op->k_tap : none;
    const struct iso_span rope = op->pairs == 0 ? none : op->rope;
    if (has_q) {
        reads(&l, ISO_METAL_HEADS_Q, op->q, q_len * F32);
        reads(&l, ISO_METAL_HEADS_Q_NORM, op->q_norm, op->d * F32);
        writes(&l, ISO_METAL_HEADS_Q_CODES, op->q_codes, q_len * sizeof(int16_t));
        writes(&l, ISO_METAL_HEADS_Q_SCALES, op->q_scales, (size_t)op->n_rows * op->n_heads * F32);
        writes(&l, ISO_METAL_HEADS_Q_TAP, q_tap, q_len * F32);
    }
    if (has_kv) {
        reads(&l, ISO_METAL_HEADS_K, op->k, kv_len * F32);
        reads(&l, ISO_METAL_HEADS_V, op->v, kv_len * F32);
        reads(&l, ISO_METAL_HEADS_K_NORM, op->k_norm, op->d * F32);
        writes(&l, ISO_METAL_HEADS_K_TAP, k_tap, kv_len * F32);
        writes(&l, ISO_METAL_HEADS_PAGES, op->kv.pages, REST);
        reads(&l, ISO_METAL_HEADS_TABLES, op->kv.tables, REST);
        reads(&l, ISO_METAL_HEADS_ROWS, op->rows, op->n_rows * sizeof(struct iso_row_desc));
    }
    reads(&l, ISO_METAL_HEADS_ROPE, rope, (size_t)op->n_rows * op->n_rot * F32);
    faults(&l, ISO_METAL_HEADS_FAULT);
    const uint32_t constants[] = {op->d, has_q, has_kv, has_q && op->q_norm.buffer, has_kv && op->k_norm.buffer,
                                  rope.buffer ? op->pairs : 0, q_tap.buffer != 0, k_tap.buffer != 0};
    const struct iso_metal_heads args = {
        .n_heads = op->n_heads, .n_kv_heads = op->n_kv_heads, .n_rot = op->n_rot, .n_rows = op->n_rows,
        .table_len = op->kv.table_len, .eps = op->eps, .inv_n = op->inv_n,
        .fault_q = ISO_FAULT(op->layer, ISO_TENSOR_Q), .fault_k = ISO_FAULT(op->layer, ISO_TENSOR_K),
        .fault_v = ISO_FAULT(op->layer, ISO_TENSOR_V)};
    launch(&l, constants, &args, sizeof(args), ISO_METAL_HEADS_BINDINGS);
}

/* 0: tiles. Else the number of segments of the split form. */
static uint32_t plan_split(const struct iso_queue *q, const struct iso_op_attention *op)
{
    if (op->n_rows > iso_metal_rules[ISO_METAL_ATTENTION_SPLIT].rows_to) return 0;
    const struct iso_row_desc *rows = known_rows(q, op->rows, op->n_rows);
    if (rows == NULL) return 0;
    uint32_t sessions = 1, segments = 1;
    for (uint32_t i = 0; i < op->n_rows; i++) {
        sessions += i > 0 && rows[i].session != rows[i - 1].session;
        const uint32_t n = iso_metal_attention_segments(rows[i].first_visible[op->kv.layer_class], rows[i].position);
        segments = ISO_MAX(segments, n);
    }
    if (op->n_rows > SPLIT_PER_SESSION * sessions) return 0;
    const size_t have = q->dev->states ? q->dev->buffer[q->dev->states].len : 0;
    if (segments > 1 && iso_metal_attention_states(op->n_rows, op->n_heads, op->d, segments) > have) return 0;
    return segments;
}

/* The places of any of the three kernels; bytes of states that are read or written. */
static void attention_places(struct launch *l, const struct iso_op_attention *op, size_t states, bool write_states)
{
    const size_t n = (size_t)op->n_rows * op->n_heads;
    const struct iso_span at = {.buffer = states ? l->q->dev->states : 0};
    const bool merge = l->kernel == ISO_METAL_ATTENTION_MERGE;
    if (!merge) {
        reads(l, ISO_METAL_ATTENTION_Q_CODES, op->q_codes, n * op->d * sizeof(int16_t));
        reads(l, ISO_METAL_ATTENTION_Q_SCALES, op->q_scales, n * F32);
        reads(l, ISO_METAL_ATTENTION_PAGES, op->kv.pages, REST);
        reads(l, ISO_METAL_ATTENTION_TABLES, op->kv.tables, REST);
    }
    reads(l, ISO_METAL_ATTENTION_ROWS, op->rows, op->n_rows * sizeof(struct iso_row_desc));
    if (!write_states) writes(l, ISO_METAL_ATTENTION_OUT, op->out, n * op->d * F32);
    place(l, ISO_METAL_ATTENTION_STATES, at, states, write_states);
}

static void rec_attention(struct iso_queue *q, const struct iso_op_attention *op)
{
    settle_residual(q);
    const uint32_t segments = op->n_rows > 0 ? plan_split(q, op) : 0, group = op->n_heads / op->n_kv_heads;
    const struct iso_metal_attention args = {
        .n_heads = op->n_heads, .n_kv_heads = op->n_kv_heads, .n_rows = op->n_rows, .table_len = op->kv.table_len,
        .layer_class = op->kv.layer_class, .max_segments = segments, .c = op->c, .cap = op->cap,
        .inv_cap = op->inv_cap};
    uint32_t constants[] = {op->d, op->cap > 0, segments == 1};
    if (segments == 0) {
        struct launch l = start(q, ISO_METAL_ATTENTION_TILES,
                                ceil_div((uint64_t)op->n_rows * group, ISO_METAL_ATTENTION_TILE_QUERIES),
                                op->n_kv_heads, 1);
        attention_places(&l, op, 0, false);
        launch(&l, constants, &args, sizeof(args), ISO_METAL_ATTENTION_BINDINGS);
        return;
    }
    const size_t states = segments > 1 ? iso_metal_attention_states(op->n_rows, op->n_heads, op->d, segments) : 0;
    struct launch l = start(q, ISO_METAL_ATTENTION_SPLIT, op->n_rows,
                            op->n_kv_heads * ceil_div(group, ISO_METAL_ATTENTION_SPLIT_QUERIES), segments);
    l.d.threadgroup_bytes = (iso_metal_attention_split_bytes(op->d, group) + 15) / 16 * 16;
    attention_places(&l, op, states, states > 0);
    launch(&l, constants, &args, sizeof(args), ISO_METAL_ATTENTION_BINDINGS);
    if (segments == 1) return;
    struct launch m = start(q, ISO_METAL_ATTENTION_MERGE, op->n_rows, op->n_heads, 1);
    attention_places(&m, op, states, false);
    constants[1] = constants[2] = 0;
    launch(&m, constants, &args, sizeof(args), ISO_METAL_ATTENTION_BINDINGS);
}

/* --- the step ----------------------------------------------------------------------------------------- */

enum iso_err iso_metal_begin(struct iso_device *dev, struct iso_queue **queue)
{
    struct iso_metal *d = (struct iso_metal *)dev;
    struct iso_queue *q = &d->queue;
    ISO_TRY(q->recorded ? iso_metal_flush(q) : iso_metal_status(d));
    memset(d->buffer[d->fault].p, 0, sizeof(uint32_t));
    forget_rows(q);
    *queue = q;
    return ISO_OK;
}

enum iso_err iso_metal_flush(struct iso_queue *q)
{
    struct iso_metal *d = q->dev;
    settle_residual(q);
    if (d->err == ISO_OK && q->recorded) keep(d, iso_metal_gpu_commit(d->gpu, ISO_METAL_WAIT_MS));
    q->recorded = false;
    q->work = 0;
    q->hazards.n = 0;
    /* What was moved has been moved: the buffers themselves are right again. */
    forget_rows(q);
    return iso_metal_status(d);
}

enum iso_err iso_metal_sync(struct iso_queue *q)
{
    ISO_TRY(iso_metal_flush(q));
    uint32_t fault = 0;
    memcpy(&fault, q->dev->buffer[q->dev->fault].p, sizeof(fault));
    return iso_fault_status(fault);
}

/* What is in the encoder cannot be taken back: it runs. Only a residual that waits is dropped. */
void iso_metal_end(struct iso_queue *q)
{
    q->adding = false;
    if (!q->recorded) return;
    const enum iso_err err = iso_metal_flush(q);
    (void)err; /* kept by the device for the next call */
}

void iso_metal_record_ops(struct iso_device_vt *vt)
{
    vt->embed = rec_embed;
    vt->norm = rec_norm;
    vt->norm_quantize = rec_norm_quantize;
    vt->quantize = rec_quantize;
    vt->matmul = rec_matmul;
    vt->heads = rec_heads;
    vt->attention = rec_attention;
    vt->residual = rec_residual;
    vt->gather = rec_gather;
    vt->logits = rec_logits;
}
