/* SPDX-License-Identifier: MIT
 * device_launch_cuda.cu - recorded operations become kernels on the stream; neighbours that fuse are fused.
 */
#include "device/device_cuda.h"

extern "C" {
#include "format/types.h"
}
#include "kernels/attention/attention_cuda.h"
#include "kernels/embed/embed_cuda.h"
#include "kernels/heads/heads_cuda.h"
#include "kernels/logits/logits_cuda.h"
#include "kernels/norm/norm_cuda.h"
#include "kernels/quantize/quantize_cuda.h"

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
    c.fault_code = ISO_FAULT(op->layer, op->tensor);
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
    c.fault_code = ISO_FAULT(op->layer, op->tensor);
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
    h.fault_q = ISO_FAULT(op->layer, ISO_TENSOR_Q);
    h.fault_k = ISO_FAULT(op->layer, ISO_TENSOR_K);
    h.fault_v = ISO_FAULT(op->layer, ISO_TENSOR_V);
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
                    ISO_FAULT(0, ISO_TENSOR_LOGITS), d->stream);
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

void iso_cuda_launch_all(struct iso_queue *q)
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

bool iso_cuda_ready_memory(struct iso_queue *q)
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
