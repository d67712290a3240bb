/* SPDX-License-Identifier: MIT
 * device_queue_cuda.cu - a step on a CUDA GPU: operations are recorded, launched at sync, kept as graphs.
 *
 * Recording copies the argument structures. At sync the list is planned (what the host wrote that must
 * travel, how attention is cut), neighbours that fuse are fused, and all kernels go to the stream. A
 * list that equals the one of the step before byte for byte (decoding: only ids, positions and tables
 * differ, and those are read from memory) is captured once and then launched as one graph.
 */
#include "device/device_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

extern "C" {
#include "arith/page.h"
#include "base/clock.h"
#include "format/types.h"
}
#include "kernels/attention/attention_cuda.h"
#include "kernels/embed/embed_cuda.h"
#include "kernels/heads/heads_cuda.h"
#include "kernels/logits/logits_cuda.h"
#include "kernels/norm/norm_cuda.h"
#include "kernels/quantize/quantize_cuda.h"

#define SPLIT_ROWS 64         /* most rows whose attention is cut by segments */
#define SPLIT_PER_SESSION 4   /* more rows of a session than this share pages better as tiles */
#define SPLIT_BYTES ((size_t)256 << 20) /* most memory for states of segments */
#define GRAPH_OPS 24          /* shorter lists are not worth a graph */

/* --- small kernels ------------------------------------------------------------------------------------- */

/* Host bytes to device memory: one block column per upload. */
static __global__ void upload_kernel(const __grid_constant__ struct iso_cuda_uploads u)
{
    const struct iso_cuda_upload &c = u.at[blockIdx.y];
    const uint32_t n = c.len / 4;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        ((uint32_t *)c.to)[i] = ((const volatile uint32_t *)c.from)[i];
    }
}

/* The fault word to the host; the next launch starts clean. */
static __global__ void publish_kernel(uint32_t *fault, uint32_t *host)
{
    if (*fault != 0 && *host == 0) *host = *fault;
    *fault = 0;
}

/* --- recording -------------------------------------------------------------------------------------------- */

static void flush(struct iso_queue *q);

static struct iso_cuda_op *record(struct iso_queue *q, uint32_t kind)
{
    if (q->n_ops == ISO_CUDA_OPS) flush(q);
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
    if (q->uploads.n == ISO_CUDA_UPLOADS) flush(q);
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

/* --- launching -------------------------------------------------------------------------------------------- */

static float *floats(const struct iso_cuda_device *d, struct iso_span s)
{
    return (float *)iso_cuda_at(d, s);
}

static void run_norm_quantize(struct iso_cuda_device *d, const struct iso_op_norm_quantize *op,
                              const struct iso_op_residual *add)
{
    struct iso_cuda_quantize c = {};
    c.codes = iso_cuda_codes_view(iso_cuda_at(d, op->codes), op->n_rows, op->n);
    c.tap = floats(d, op->tap);
    c.fault = d->fault;
    c.fault_code = ISO_CUDA_FAULT(op->layer, op->tensor);
    c.n = op->n;
    c.n_rows = op->n_rows;
    struct iso_cuda_norm_source s = {};
    s.x = floats(d, op->x);
    s.weight = floats(d, op->weight);
    s.index = (const uint32_t *)iso_cuda_at(d, op->index);
    s.eps = op->eps;
    s.inv_n = op->inv_n;
    if (add) {
        s.y = floats(d, add->y);
        s.y_weight = floats(d, add->weight);
        s.y_eps = add->eps;
        s.y_norm = (int)add->has_norm;
    }
    iso_cuda_norm_quantize(&c, &s, d->stream);
}

static void run_quantize(struct iso_cuda_device *d, const struct iso_op_quantize *op)
{
    struct iso_cuda_quantize c = {};
    c.codes = iso_cuda_codes_view(iso_cuda_at(d, op->codes), op->n_rows, op->n);
    c.tap = floats(d, op->tap);
    c.fault = d->fault;
    c.fault_code = ISO_CUDA_FAULT(op->layer, op->tensor);
    c.n = op->n;
    c.n_rows = op->n_rows;
    iso_cuda_quantize(&c, floats(d, op->x), floats(d, op->gate), floats(d, op->up), op->glu, d->stream);
}

static struct iso_cuda_matrix matrix_of(const struct iso_cuda_device *d, const struct iso_weight *w, struct iso_span y)
{
    struct iso_cuda_matrix m = {};
    m.cells = iso_cuda_at(d, w->data);
    m.bias = floats(d, w->bias);
    m.y = floats(d, y);
    m.type = w->type;
    m.n_rows = w->n_rows;
    m.n_cols = w->n_cols;
    m.has_scale = w->has_scale;
    m.scale = w->scale;
    return m;
}

static void run_matmul(struct iso_cuda_device *d, const struct iso_op_matmul *op)
{
    const struct iso_cuda_codes a =
        iso_cuda_codes_view(iso_cuda_at(d, op->codes), op->n_rows, op->weight[0].n_cols);
    struct iso_cuda_matrix w[ISO_MATMUL_MAX];
    for (uint32_t i = 0; i < op->n_weights; i++) w[i] = matrix_of(d, &op->weight[i], op->y[i]);
    if (op->n_rows < ISO_CUDA_GEMM_FROM) {
        iso_cuda_gemv(&a, op->n_rows, w, op->n_weights, &d->chip, d->stream);
        return;
    }
    for (uint32_t i = 0; i < op->n_weights; i++) {
        if (iso_cuda_gemm(&a, op->n_rows, &w[i], d->scratch, d->scratch_len, &d->chip, d->stream) != 0) {
            ISO_CUDA_OK(d, cudaErrorInvalidValue);
        }
    }
}

static void run_heads(struct iso_cuda_device *d, const struct iso_op_heads *op)
{
    struct iso_cuda_heads h = {};
    h.q = floats(d, op->q);
    h.k = floats(d, op->k);
    h.v = floats(d, op->v);
    h.q_codes = (int16_t *)iso_cuda_at(d, op->q_codes);
    h.q_scales = floats(d, op->q_scales);
    h.q_norm = floats(d, op->q_norm);
    h.k_norm = floats(d, op->k_norm);
    h.rope = floats(d, op->rope);
    h.rows = (const struct iso_row_desc *)iso_cuda_at(d, op->rows);
    h.q_tap = floats(d, op->q_tap);
    h.k_tap = floats(d, op->k_tap);
    h.pages = iso_cuda_at(d, op->kv.pages);
    h.tables = (const uint32_t *)iso_cuda_at(d, op->kv.tables);
    h.table_len = op->kv.table_len;
    h.d = op->d;
    h.n_heads = op->n_heads;
    h.n_kv_heads = op->n_kv_heads;
    h.n_rot = op->n_rot;
    h.pairs = op->pairs;
    h.n_rows = op->n_rows;
    h.eps = op->eps;
    h.inv_n = op->inv_n;
    h.fault = d->fault;
    h.fault_q = ISO_CUDA_FAULT(op->layer, ISO_TENSOR_Q);
    h.fault_k = ISO_CUDA_FAULT(op->layer, ISO_TENSOR_K);
    h.fault_v = ISO_CUDA_FAULT(op->layer, ISO_TENSOR_V);
    iso_cuda_heads(&h, d->stream);
}

static void run_attention(struct iso_cuda_device *d, const struct iso_op_attention *op, uint32_t segments)
{
    struct iso_cuda_attention a = {};
    a.q_codes = (const int16_t *)iso_cuda_at(d, op->q_codes);
    a.q_scales = floats(d, op->q_scales);
    a.rows = (const struct iso_row_desc *)iso_cuda_at(d, op->rows);
    a.out = floats(d, op->out);
    a.pages = iso_cuda_at(d, op->kv.pages);
    a.tables = (const uint32_t *)iso_cuda_at(d, op->kv.tables);
    a.table_len = op->kv.table_len;
    a.layer_class = op->kv.layer_class;
    a.c = op->c;
    a.cap = op->cap;
    a.inv_cap = op->inv_cap;
    a.d = op->d;
    a.n_heads = op->n_heads;
    a.n_kv_heads = op->n_kv_heads;
    a.n_rows = op->n_rows;
    if (segments == 0) iso_cuda_attention_tiles(&a, d->stream);
    else iso_cuda_attention_split(&a, segments, (float *)d->scratch, d->stream);
}

/* The rows become readable by the host: a copy behind the operation. */
static void run_logits(struct iso_cuda_device *d, const struct iso_op_logits *op)
{
    float *l = floats(d, op->logits);
    const uint64_t n = (uint64_t)op->n * op->n_rows;
    iso_cuda_logits(l, n, op->scale, (int)op->has_scale, op->cap, op->inv_cap, d->fault,
                    ISO_CUDA_FAULT(0, ISO_TENSOR_LOGITS), d->stream);
    struct iso_cuda_buffer *b = &d->buffer[op->logits.buffer];
    if (b->kind != ISO_MEM_RESULT) return;
    ISO_CUDA_OK(d, cudaMemcpyAsync(b->mirror + op->logits.offset, l, n * sizeof(float), cudaMemcpyDeviceToHost, d->stream));
}

/* x += y followed by the norm of the same rows of x is one kernel. */
static bool fuses(const struct iso_cuda_op *a, const struct iso_cuda_op *b)
{
    if (a->kind != OP_RESIDUAL || b->kind != OP_NORM_QUANTIZE) return false;
    const struct iso_op_residual *r = &a->residual;
    const struct iso_op_norm_quantize *n = &b->norm_quantize;
    return r->x.buffer == n->x.buffer && r->x.offset == n->x.offset && r->n == n->n && r->n_rows == n->n_rows &&
           n->index.buffer == 0;
}

static void run_one(struct iso_cuda_device *d, const struct iso_cuda_op *op)
{
    switch (op->kind) {
    case OP_EMBED: {
        const struct iso_op_embed *e = &op->embed;
        iso_cuda_embed(floats(d, e->x), (const int32_t *)iso_cuda_at(d, e->ids), iso_cuda_at(d, e->table.data),
                       e->table.type, e->n_rows, e->table.n_cols, e->scale, (int)e->has_scale, d->stream);
        break;
    }
    case OP_NORM: {
        const struct iso_op_norm *n = &op->norm;
        iso_cuda_norm(floats(d, n->y), floats(d, n->x), floats(d, n->weight), n->eps, n->inv_n, n->n, n->n_rows, d->stream);
        break;
    }
    case OP_NORM_QUANTIZE: run_norm_quantize(d, &op->norm_quantize, NULL); break;
    case OP_QUANTIZE: run_quantize(d, &op->quantize); break;
    case OP_MATMUL: run_matmul(d, &op->matmul); break;
    case OP_HEADS: run_heads(d, &op->heads); break;
    case OP_ATTENTION: run_attention(d, &op->attention, op->plan); break;
    case OP_RESIDUAL: {
        const struct iso_op_residual *r = &op->residual;
        iso_cuda_residual(floats(d, r->x), floats(d, r->y), floats(d, r->weight), r->eps, r->inv_n, (int)r->has_norm,
                          r->n, r->n_rows, d->stream);
        break;
    }
    case OP_GATHER: {
        const struct iso_op_gather *g = &op->gather;
        iso_cuda_gather(floats(d, g->x), (const uint32_t *)iso_cuda_at(d, g->index), g->n, g->n_rows, d->stream);
        break;
    }
    case OP_LOGITS: run_logits(d, &op->logits); break;
    }
}

/* All kernels of the list onto the stream. */
static void launch_all(struct iso_queue *q)
{
    struct iso_cuda_device *d = q->dev;
    if (q->uploads.n > 0) upload_kernel<<<dim3(16, q->uploads.n), 256, 0, d->stream>>>(q->uploads);
    for (uint32_t i = 0; i < q->n_ops; i++) {
        if (i + 1 < q->n_ops && fuses(&q->ops[i], &q->ops[i + 1])) {
            run_norm_quantize(d, &q->ops[i + 1].norm_quantize, &q->ops[i].residual);
            i++;
        } else {
            run_one(d, &q->ops[i]);
        }
    }
    publish_kernel<<<1, 1, 0, d->stream>>>(d->fault, d->fault_host);
}

/* Memory that the list needs and that may have to grow; before any launch, never inside a capture. */
static bool ready_memory(struct iso_queue *q)
{
    struct iso_cuda_device *d = q->dev;
    for (uint32_t i = 0; i < q->n_ops; i++) {
        const struct iso_cuda_op *op = &q->ops[i];
        if (op->kind == OP_LOGITS) {
            struct iso_cuda_buffer *b = &d->buffer[op->logits.logits.buffer];
            const size_t len = op->logits.logits.offset + (size_t)op->logits.n * op->logits.n_rows * sizeof(float);
            if (b->kind == ISO_MEM_RESULT && !iso_cuda_mirror(d, b, len)) return false;
        } else if (op->kind == OP_ATTENTION && op->plan > 1) {
            const struct iso_op_attention *a = &op->attention;
            if (!iso_cuda_scratch(d, iso_cuda_attention_states(a->n_rows, a->n_heads, a->d, op->plan))) return false;
        } else if (op->kind == OP_MATMUL && op->matmul.n_rows >= ISO_CUDA_GEMM_FROM) {
            for (uint32_t k = 0; k < op->matmul.n_weights; k++) {
                const struct iso_cuda_matrix m = matrix_of(d, &op->matmul.weight[k], op->matmul.y[k]);
                if (!iso_cuda_scratch(d, iso_cuda_gemm_scratch(&m, 1))) return false;
            }
        }
    }
    return true;
}

/* --- graphs -------------------------------------------------------------------------------------------------- */

static bool equals(const struct iso_queue *q, const struct iso_cuda_graph *g)
{
    return g->n_ops == q->n_ops && memcmp(&g->uploads, &q->uploads, sizeof(g->uploads)) == 0 &&
           memcmp(g->ops, q->ops, q->n_ops * sizeof(*q->ops)) == 0;
}

static void graph_clear(struct iso_cuda_graph *g)
{
    if (g->exec) (void)cudaGraphExecDestroy(g->exec);
    free(g->ops);
    *g = {};
}

void iso_cuda_graphs_drop(struct iso_cuda_device *d)
{
    for (int i = 0; i < ISO_CUDA_GRAPHS; i++) graph_clear(&d->graph[i]);
    graph_clear(&d->last);
}

/* malloc, not iso_xalloc: a step must not allocate between two tokens, but a new kind of step (another
 * batch size, a context twice as long) is remembered once. */
static bool remember(struct iso_cuda_graph *g, const struct iso_queue *q)
{
    graph_clear(g);
    g->ops = (struct iso_cuda_op *)malloc(q->n_ops * sizeof(*q->ops));
    if (g->ops == NULL) return false;
    memcpy(g->ops, q->ops, q->n_ops * sizeof(*q->ops));
    g->n_ops = q->n_ops;
    g->uploads = q->uploads;
    return true;
}

static struct iso_cuda_graph *oldest(struct iso_cuda_device *d)
{
    struct iso_cuda_graph *g = &d->graph[0];
    for (int i = 1; i < ISO_CUDA_GRAPHS; i++) {
        if (d->graph[i].used < g->used) g = &d->graph[i];
    }
    return g;
}

/* Captures the list and launches it. */
static void launch_captured(struct iso_queue *q)
{
    struct iso_cuda_device *d = q->dev;
    struct iso_cuda_graph *g = oldest(d);
    cudaGraph_t graph = NULL;
    if (!ISO_CUDA_OK(d, cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal))) return;
    launch_all(q);
    if (!ISO_CUDA_OK(d, cudaStreamEndCapture(d->stream, &graph))) return;
    if (remember(g, q) && ISO_CUDA_OK(d, cudaGraphInstantiate(&g->exec, graph, 0))) {
        g->used = ++d->clock;
        ISO_CUDA_OK(d, cudaGraphLaunch(g->exec, d->stream));
    }
    (void)cudaGraphDestroy(graph);
}

static bool launch_known(struct iso_queue *q)
{
    struct iso_cuda_device *d = q->dev;
    for (int i = 0; i < ISO_CUDA_GRAPHS; i++) {
        struct iso_cuda_graph *g = &d->graph[i];
        if (g->exec == NULL || !equals(q, g)) continue;
        g->used = ++d->clock;
        d->n_graph_launches++;
        ISO_CUDA_OK(d, cudaGraphLaunch(g->exec, d->stream));
        return true;
    }
    return false;
}

/* Launches what was recorded. */
static void flush(struct iso_queue *q)
{
    struct iso_cuda_device *d = q->dev;
    if (d->err == ISO_OK && q->n_ops > 0 && ready_memory(q)) {
        q->launched = true;
        if (q->n_ops < GRAPH_OPS) {
            launch_all(q);
        } else if (!launch_known(q)) {
            if (equals(q, &d->last)) {
                launch_captured(q);
            } else {
                launch_all(q);
                (void)remember(&d->last, q);
            }
        }
        ISO_CUDA_OK(d, cudaGetLastError());
    }
    q->n_ops = 0;
    memset(&q->uploads, 0, sizeof(q->uploads));
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
    static const char *const name[ISO_TENSOR_COUNT] = {"attn_norm", "q",       "k",           "v",     "attn_out",
                                                       "ffn_norm",  "ffn_act", "result_norm", "logits"};
    struct iso_cuda_device *d = q->dev;
    (void)cudaSetDevice(d->ordinal);
    flush(q);
    ISO_TRY(iso_cuda_wait(d));
    q->launched = false;
    const uint32_t fault = *(volatile uint32_t *)d->fault_host;
    if (fault == 0) return ISO_OK;
    const uint32_t tensor = (fault - 1) % ISO_TENSOR_COUNT, layer = (fault - 1) / ISO_TENSOR_COUNT;
    if (tensor >= ISO_TENSOR_RESULT_NORM) {
        ISO_FAIL(ISO_E_NUMERIC, "%s: a value is infinite, not a number or too large", name[tensor]);
    }
    ISO_FAIL(ISO_E_NUMERIC, "layer %u, %s: a value is infinite, not a number or too large", layer, name[tensor]);
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
