/* SPDX-License-Identifier: MIT
 * device_cpu_rows.c - operations that treat each row by itself, spread over the thread team.
 *
 * With one or two rows (decode) they run on the caller: waking the team costs more than the work.
 */
#include <assert.h>
#include <string.h>

#include "arith/page.h"
#include "arith/prim.h"
#include "device/device_cpu.h"

#define INLINE_ROWS 2

/* Runs fn over n items: on the caller when they are few, else on the team. */
static void spread(struct iso_cpu *cpu, iso_pool_fn *fn, void *arg, size_t n)
{
    if (n <= INLINE_ROWS) fn(arg, 0, 1);
    else iso_pool_run(cpu->pool, fn, arg);
}

struct job {
    struct iso_queue *q;
    const void *op;
};

static void embed_rows(void *arg, unsigned thread, unsigned n_threads)
{
    const struct job *j = arg;
    const struct iso_op_embed *op = j->op;
    const struct iso_cpu *cpu = j->q->cpu;
    const int32_t *ids = iso_cpu_at(cpu, op->ids);
    const uint8_t *table = iso_cpu_at(cpu, op->table.data);
    float *x = iso_cpu_at(cpu, op->x);
    size_t first = 0, last = 0;
    iso_pool_split(op->n_rows, 1, thread, n_threads, &first, &last);
    for (size_t i = first; i < last; i++) {
        cpu->embed->embed(x + i * op->table.n_cols, (enum iso_type)op->table.type,
                          table + (size_t)ids[i] * op->table.row_bytes, op->scale,
                          (int)op->has_scale, op->table.n_cols);
    }
}

void iso_cpu_embed(struct iso_queue *q, const struct iso_op_embed *op)
{
    struct job j = {q, op};
    spread(q->cpu, embed_rows, &j, op->n_rows);
}

static void norm_rows(void *arg, unsigned thread, unsigned n_threads)
{
    const struct job *j = arg;
    const struct iso_op_norm *op = j->op;
    const struct iso_cpu *cpu = j->q->cpu;
    const float *x = iso_cpu_at(cpu, op->x);
    float *y = iso_cpu_at(cpu, op->y);
    const float *w = iso_cpu_at(cpu, op->weight);
    size_t first = 0, last = 0;
    iso_pool_split(op->n_rows, 1, thread, n_threads, &first, &last);
    for (size_t i = first; i < last; i++) {
        cpu->norm->norm(y + i * op->n, x + i * op->n, w, op->eps, op->inv_n, op->n);
    }
}

void iso_cpu_norm(struct iso_queue *q, const struct iso_op_norm *op)
{
    struct job j = {q, op};
    spread(q->cpu, norm_rows, &j, op->n_rows);
}

static struct iso_code_row code_row(const struct iso_codes *c, size_t i)
{
    const struct iso_codes r = iso_codes_rows(c, i);
    return (struct iso_code_row){r.code, r.scale, r.sum32};
}

static void norm_quantize_rows(void *arg, unsigned thread, unsigned n_threads)
{
    const struct job *j = arg;
    const struct iso_op_norm_quantize *op = j->op;
    const struct iso_cpu *cpu = j->q->cpu;
    const float *x = iso_cpu_at(cpu, op->x);
    const float *w = iso_cpu_at(cpu, op->weight);
    const uint32_t *index = iso_cpu_at(cpu, op->index);
    float *tap = iso_cpu_at(cpu, op->tap);
    const struct iso_codes codes = iso_codes_view(iso_cpu_at(cpu, op->codes), op->n_rows, op->n);
    size_t first = 0, last = 0;
    iso_pool_split(op->n_rows, 1, thread, n_threads, &first, &last);
    for (size_t i = first; i < last; i++) {
        const struct iso_code_row out = code_row(&codes, i);
        const size_t row = index ? index[i] : i;
        const uint32_t max = cpu->quantize->norm_quantize(&out, tap ? tap + i * op->n : NULL,
                                                          x + row * op->n, w, op->eps, op->inv_n,
                                                          op->n);
        if (max >= ISO_BITS_2P100) iso_cpu_fault(j->q, op->layer, op->tensor);
    }
}

void iso_cpu_norm_quantize(struct iso_queue *q, const struct iso_op_norm_quantize *op)
{
    struct job j = {q, op};
    spread(q->cpu, norm_quantize_rows, &j, op->n_rows);
}

static void quantize_rows(void *arg, unsigned thread, unsigned n_threads)
{
    const struct job *j = arg;
    const struct iso_op_quantize *op = j->op;
    const struct iso_cpu *cpu = j->q->cpu;
    const float *x = iso_cpu_at(cpu, op->x);
    const float *gate = iso_cpu_at(cpu, op->gate);
    const float *up = iso_cpu_at(cpu, op->up);
    float *tap = iso_cpu_at(cpu, op->tap);
    const struct iso_codes codes = iso_codes_view(iso_cpu_at(cpu, op->codes), op->n_rows, op->n);
    size_t first = 0, last = 0;
    iso_pool_split(op->n_rows, 1, thread, n_threads, &first, &last);
    for (size_t i = first; i < last; i++) {
        const struct iso_code_row out = code_row(&codes, i);
        const size_t at = i * op->n;
        float *t = tap ? tap + at : NULL;
        uint32_t max = 0;
        if (up != NULL) {
            max = cpu->quantize->glu_quantize(&out, t, x + at, up + at, (enum iso_glu)op->glu, op->n);
        } else if (gate != NULL) {
            max = cpu->quantize->gate_quantize(&out, t, x + at, gate + at, op->n);
        } else {
            max = cpu->quantize->quantize(&out, x + at, op->n);
        }
        if (max >= ISO_BITS_2P100) iso_cpu_fault(j->q, op->layer, op->tensor);
    }
}

void iso_cpu_quantize(struct iso_queue *q, const struct iso_op_quantize *op)
{
    struct job j = {q, op};
    spread(q->cpu, quantize_rows, &j, op->n_rows);
}

/* One row of heads: queries to codes, keys and values into their page. */
struct heads_job {
    struct iso_queue *q;
    const struct iso_op_heads *op;
    struct iso_heads_args q_args, k_args;
};

static void heads_q(const struct heads_job *j, size_t i, const float *rope)
{
    const struct iso_op_heads *op = j->op;
    const struct iso_cpu *cpu = j->q->cpu;
    const float *x = (const float *)iso_cpu_at(cpu, op->q) + i * op->n_heads * op->d;
    float *tap = iso_cpu_at(cpu, op->q_tap);
    int16_t *codes = iso_cpu_at(cpu, op->q_codes);
    float *scales = iso_cpu_at(cpu, op->q_scales);
    const size_t group = op->n_heads / op->n_kv_heads;
    for (size_t h = 0; h < op->n_heads; h++) {
        const size_t to = (h / group * op->n_rows + i) * group + h % group;
        float *t = tap ? tap + (i * op->n_heads + h) * op->d : NULL;
        const uint32_t max = cpu->heads->q(codes + to * op->d, scales + to, t, x + h * op->d, rope,
                                           &j->q_args);
        if (max >= ISO_BITS_2P40) iso_cpu_fault(j->q, op->layer, ISO_TENSOR_Q);
    }
}

static void heads_kv(const struct heads_job *j, size_t i, const float *rope)
{
    const struct iso_op_heads *op = j->op;
    const struct iso_cpu *cpu = j->q->cpu;
    const struct iso_row_desc *row = (const struct iso_row_desc *)iso_cpu_at(cpu, op->rows) + i;
    const uint32_t *table = (const uint32_t *)iso_cpu_at(cpu, op->kv.tables) +
                            (size_t)row->session * op->kv.table_len;
    const size_t bytes = iso_page_bytes(op->d);
    const size_t slot = table[row->position / ISO_PAGE_POSITIONS];
    uint8_t *page = (uint8_t *)iso_cpu_at(cpu, op->kv.pages) + slot * op->n_kv_heads * bytes;
    const float *k = (const float *)iso_cpu_at(cpu, op->k) + i * op->n_kv_heads * op->d;
    const float *v = (const float *)iso_cpu_at(cpu, op->v) + i * op->n_kv_heads * op->d;
    float *tap = iso_cpu_at(cpu, op->k_tap);
    const uint32_t at = row->position % ISO_PAGE_POSITIONS;
    for (size_t h = 0; h < op->n_kv_heads; h++) {
        float *t = tap ? tap + (i * op->n_kv_heads + h) * op->d : NULL;
        const uint32_t k_max =
            cpu->heads->k(page + h * bytes, at, t, k + h * op->d, rope, &j->k_args);
        if (k_max >= ISO_BITS_2P40) iso_cpu_fault(j->q, op->layer, ISO_TENSOR_K);
        const uint32_t v_max = cpu->heads->v(page + h * bytes, at, v + h * op->d, op->d);
        if (v_max >= ISO_BITS_2P40) iso_cpu_fault(j->q, op->layer, ISO_TENSOR_V);
    }
}

static void heads_rows(void *arg, unsigned thread, unsigned n_threads)
{
    const struct heads_job *j = arg;
    const struct iso_op_heads *op = j->op;
    const float *rope = iso_cpu_at(j->q->cpu, op->rope);
    size_t first = 0, last = 0;
    iso_pool_split(op->n_rows, 1, thread, n_threads, &first, &last);
    for (size_t i = first; i < last; i++) {
        const float *r = rope ? rope + i * op->n_rot : NULL;
        if (op->q.buffer) heads_q(j, i, r);
        if (op->k.buffer) heads_kv(j, i, r);
    }
}

void iso_cpu_heads(struct iso_queue *q, const struct iso_op_heads *op)
{
    struct heads_job j = {.q = q, .op = op};
    const enum iso_rope_pairs pairs = (enum iso_rope_pairs)op->pairs;
    j.q_args = (struct iso_heads_args){op->d, op->n_rot, pairs, iso_cpu_at(q->cpu, op->q_norm),
                                       op->eps, op->inv_n};
    j.k_args = j.q_args;
    j.k_args.norm = iso_cpu_at(q->cpu, op->k_norm);
    spread(q->cpu, heads_rows, &j, op->n_rows);
}

static void residual_rows(void *arg, unsigned thread, unsigned n_threads)
{
    const struct job *j = arg;
    const struct iso_op_residual *op = j->op;
    const struct iso_cpu *cpu = j->q->cpu;
    float *x = iso_cpu_at(cpu, op->x);
    const float *y = iso_cpu_at(cpu, op->y);
    const float *w = iso_cpu_at(cpu, op->weight);
    size_t first = 0, last = 0;
    iso_pool_split(op->n_rows, 1, thread, n_threads, &first, &last);
    for (size_t i = first; i < last; i++) {
        float *xi = x + i * op->n;
        const float *yi = y + i * op->n;
        if (op->has_norm) cpu->norm->residual_norm(xi, yi, w, op->eps, op->inv_n, op->n);
        else cpu->norm->residual(xi, yi, op->n);
    }
}

void iso_cpu_residual(struct iso_queue *q, const struct iso_op_residual *op)
{
    struct job j = {q, op};
    spread(q->cpu, residual_rows, &j, op->n_rows);
}

void iso_cpu_gather(struct iso_queue *q, const struct iso_op_gather *op)
{
    float *x = iso_cpu_at(q->cpu, op->x);
    const uint32_t *index = iso_cpu_at(q->cpu, op->index);
    for (size_t i = 0; i < op->n_rows; i++) {
        assert(index[i] >= i);
        if (index[i] != i) memcpy(x + i * op->n, x + (size_t)index[i] * op->n, op->n * sizeof(*x));
    }
}

static void logits_rows(void *arg, unsigned thread, unsigned n_threads)
{
    const struct job *j = arg;
    const struct iso_op_logits *op = j->op;
    const struct iso_cpu *cpu = j->q->cpu;
    float *l = iso_cpu_at(cpu, op->logits);
    const struct iso_logits_args a = {op->scale, op->cap, op->inv_cap, (int)op->has_scale};
    /* Rows are long (a vocabulary), so each is cut among the threads. */
    for (size_t i = 0; i < op->n_rows; i++) {
        size_t first = 0, last = 0;
        iso_pool_split(op->n, 64, thread, n_threads, &first, &last);
        const uint32_t max = cpu->logits->logits(l + i * op->n + first, &a, last - first);
        if (max >= ISO_BITS_2P100) iso_cpu_fault(j->q, 0, ISO_TENSOR_LOGITS);
    }
}

void iso_cpu_logits(struct iso_queue *q, const struct iso_op_logits *op)
{
    struct job j = {q, op};
    iso_pool_run(q->cpu->pool, logits_rows, &j);
}
