/* SPDX-License-Identifier: MIT
 * device_queue_cuda.cu - a step on a CUDA GPU: operations are recorded, then launched at sync or at an event.
 *
 * Recording copies the argument structures and plans what depends on what the host wrote for the step: which
 * host bytes must travel, how attention is cut.
 */
#include "device/device_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

extern "C" {
#include "arith/page.h"
#include "base/clock.h"
}
#include "kernels/attention/attention_cuda.h"

#define SPLIT_ROWS 64         /* most rows whose attention is cut by segments */
#define SPLIT_PER_SESSION 4   /* more rows of a session than this share pages better as tiles */
#define SPLIT_BYTES ((size_t)256 << 20) /* most memory for states of segments */

/* --- recording -------------------------------------------------------------------------------------------- */

static struct iso_cuda_op *record(struct iso_queue *q, uint32_t kind)
{
    if (q->n_ops == ISO_CUDA_OPS) iso_cuda_flush(q);
    struct iso_cuda_op *op = &q->ops[q->n_ops++];
    memset(op, 0, sizeof(*op));
    op->kind = kind;
    return op;
}

/* Bytes [0, offset + len) of a host buffer must be on the device before the recorded operations run. */
static void need(struct iso_queue *q, struct iso_span s, size_t len)
{
    if (s.buffer == 0) return;
    struct iso_cuda_buffer *b = &q->dev->buffer[s.buffer];
    if (b->kind != ISO_MEM_HOST) return;
    const size_t end = ISO_MIN((s.offset + len + 3) / 4 * 4, b->len);
    if (b->fresh_step != q->step) {
        b->fresh_step = q->step;
        b->fresh_len = 0;
    }
    if (end <= b->fresh_len) return;
    if (q->uploads.n == ISO_CUDA_UPLOADS) iso_cuda_flush(q);
    q->uploads.at[q->uploads.n++] = {b->p + b->fresh_len, b->mirror + b->fresh_len, (uint32_t)(end - b->fresh_len), 0};
    b->fresh_len = end;
}

static void need_all(struct iso_queue *q, struct iso_span s)
{
    if (s.buffer) need(q, s, q->dev->buffer[s.buffer].len - s.offset);
}

/* The host's copy of the step's descriptors, as they were when the step began. */
static bool rows_known(struct iso_queue *q, struct iso_span rows, uint32_t n)
{
    const struct iso_cuda_buffer *b = &q->dev->buffer[rows.buffer];
    if (b->kind != ISO_MEM_HOST || rows.offset != 0) return false;
    if (q->rows_buffer == rows.buffer) return n <= q->n_rows;
    const uint32_t have = (uint32_t)(b->len / sizeof(struct iso_row_desc));
    if (have > q->rows_cap) {
        /* Once, in the first step; malloc, because the guard against allocation is on. */
        free(q->rows);
        q->rows = (struct iso_row_desc *)malloc(have * sizeof(*q->rows));
        q->rows_cap = q->rows ? have : 0;
        if (q->rows == NULL) return false;
    }
    memcpy(q->rows, b->mirror, (size_t)have * sizeof(*q->rows));
    q->rows_buffer = rows.buffer;
    q->n_rows = have;
    return n <= have;
}

/* 0: tiles. Else the number of segments of the split form, in steps of a power of two so that a growing
 * context does not make every step a new one. */
static uint32_t plan_attention(struct iso_queue *q, const struct iso_op_attention *op)
{
    if (op->n_rows > SPLIT_ROWS || !iso_cuda_attention_splits(op->d)) return 0;
    if (!rows_known(q, op->rows, op->n_rows)) return 0;
    uint32_t sessions = 1, segments = 1;
    for (uint32_t i = 0; i < op->n_rows; i++) {
        const struct iso_row_desc *r = &q->rows[i];
        sessions += i > 0 && r->session != r[-1].session;
        const uint32_t span = ISO_SEGMENT_PAGES * ISO_PAGE_POSITIONS;
        const uint32_t n = r->position / span - r->first_visible[op->kv.layer_class] / span + 1;
        segments = ISO_MAX(segments, n);
    }
    if (op->n_rows > SPLIT_PER_SESSION * sessions) return 0;
    uint32_t bucket = 1;
    while (bucket < segments) bucket *= 2;
    if (iso_cuda_attention_states(op->n_rows, op->n_heads, op->d, bucket) > SPLIT_BYTES) return 0;
    return bucket;
}

static void rec_embed(struct iso_queue *q, const struct iso_op_embed *op)
{
    need(q, op->ids, op->n_rows * sizeof(int32_t));
    record(q, OP_EMBED)->embed = *op;
}

static void rec_norm(struct iso_queue *q, const struct iso_op_norm *op)
{
    record(q, OP_NORM)->norm = *op;
}

static void rec_norm_quantize(struct iso_queue *q, const struct iso_op_norm_quantize *op)
{
    if (op->index.buffer) need(q, op->index, op->n_rows * sizeof(uint32_t));
    record(q, OP_NORM_QUANTIZE)->norm_quantize = *op;
}

static void rec_quantize(struct iso_queue *q, const struct iso_op_quantize *op)
{
    record(q, OP_QUANTIZE)->quantize = *op;
}

static void rec_matmul(struct iso_queue *q, const struct iso_op_matmul *op)
{
    record(q, OP_MATMUL)->matmul = *op;
}

static void rec_heads(struct iso_queue *q, const struct iso_op_heads *op)
{
    need(q, op->rope, (size_t)op->n_rows * op->n_rot * sizeof(float));
    need(q, op->rows, op->n_rows * sizeof(struct iso_row_desc));
    need_all(q, op->kv.tables);
    record(q, OP_HEADS)->heads = *op;
}

static void rec_attention(struct iso_queue *q, const struct iso_op_attention *op)
{
    need(q, op->rows, op->n_rows * sizeof(struct iso_row_desc));
    need_all(q, op->kv.tables);
    const uint32_t plan = plan_attention(q, op);
    struct iso_cuda_op *r = record(q, OP_ATTENTION);
    r->attention = *op;
    r->plan = plan;
}

static void rec_residual(struct iso_queue *q, const struct iso_op_residual *op)
{
    record(q, OP_RESIDUAL)->residual = *op;
}

static void rec_gather(struct iso_queue *q, const struct iso_op_gather *op)
{
    if (op->x.buffer == 0) return;
    need(q, op->index, op->n_rows * sizeof(uint32_t));
    const struct iso_cuda_buffer *x = &q->dev->buffer[op->x.buffer], *i = &q->dev->buffer[op->index.buffer];
    if (x->kind == ISO_MEM_HOST && i->kind == ISO_MEM_HOST && op->n_rows > 0) {
        /* What the host wrote must be there before it is moved, and the host's own copy follows. */
        const uint32_t *index = (const uint32_t *)(i->mirror + op->index.offset);
        need(q, op->x, ((size_t)index[op->n_rows - 1] + 1) * op->n * sizeof(float));
        if (op->n * sizeof(float) == sizeof(struct iso_row_desc) && rows_known(q, op->x, op->n_rows)) {
            for (uint32_t r = 0; r < op->n_rows; r++) q->rows[r] = q->rows[index[r]];
        }
    }
    record(q, OP_GATHER)->gather = *op;
}

static void rec_logits(struct iso_queue *q, const struct iso_op_logits *op)
{
    record(q, OP_LOGITS)->logits = *op;
}

void iso_cuda_record_ops(struct iso_device_vt *vt)
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

/* --- the step ------------------------------------------------------------------------------------------------- */

bool iso_cuda_queue_init(struct iso_cuda_device *d)
{
    d->queue.dev = d;
    d->queue.ops = (struct iso_cuda_op *)iso_xalloc(ISO_CUDA_OPS, sizeof(struct iso_cuda_op));
    return true;
}

void iso_cuda_queue_deinit(struct iso_cuda_device *d)
{
    iso_cuda_graphs_drop(d);
    free(d->queue.ops);
    free(d->queue.rows);
}

enum iso_err iso_cuda_begin(struct iso_device *dev, struct iso_queue **queue)
{
    struct iso_cuda_device *d = (struct iso_cuda_device *)dev;
    struct iso_queue *q = &d->queue;
    (void)cudaSetDevice(d->ordinal);
    ISO_TRY(iso_cuda_status(d));
    q->n_ops = 0;
    memset(&q->uploads, 0, sizeof(q->uploads));
    q->step++;
    q->rows_buffer = 0;
    *d->fault_host = 0;
    *queue = q;
    return ISO_OK;
}

enum iso_err iso_cuda_wait(struct iso_cuda_device *d)
{
    const int64_t start = iso_clock_ns();
    for (uint64_t i = 0;; i++) {
        const cudaError_t e = cudaStreamQuery(d->stream);
        if (e == cudaSuccess) break;
        if (e != cudaErrorNotReady) {
            ISO_CUDA_OK(d, e);
            break;
        }
        const int64_t waited = iso_clock_ns() - start;
        if (waited > (int64_t)ISO_CUDA_WAIT_S * 1000000000) {
            d->err = iso_err_raise(ISO_E_TIMEOUT, __FILE__, __LINE__, "%s did not finish a step in %d s", d->chip_name,
                                   ISO_CUDA_WAIT_S);
            (void)snprintf(d->detail, sizeof(d->detail), "%s", iso_err_detail());
            break;
        }
        if (waited > 5000000) { /* long steps need no busy processor: look again in 50 microseconds */
            const struct timespec nap = {0, 50000};
            (void)nanosleep(&nap, NULL);
        }
    }
    return iso_cuda_status(d);
}

enum iso_err iso_cuda_sync(struct iso_queue *q)
{
    struct iso_cuda_device *d = q->dev;
    (void)cudaSetDevice(d->ordinal);
    iso_cuda_flush(q);
    ISO_TRY(iso_cuda_wait(d));
    q->launched = false;
    return iso_fault_status(*(volatile uint32_t *)d->fault_host);
}

/* What was recorded and not launched is dropped; what runs is left to finish. */
void iso_cuda_end(struct iso_queue *q)
{
    (void)cudaSetDevice(q->dev->ordinal);
    q->n_ops = 0;
    if (q->launched) {
        const enum iso_err err = iso_cuda_wait(q->dev);
        (void)err; /* kept by the device for the next call */
        q->launched = false;
    }
}
