/* SPDX-License-Identifier: MIT
 * device_cpu.h - what the files of the CPU device share. */
#ifndef ISO_DEVICE_CPU_H
#define ISO_DEVICE_CPU_H

#include <stdatomic.h>

#include "base/pool.h"
#include "device/device.h"
#include "device/fault.h"
#include "kernels/attention/attention.h"
#include "kernels/embed/embed.h"
#include "kernels/heads/heads.h"
#include "kernels/logits/logits.h"
#include "kernels/matmul/matmul.h"
#include "kernels/norm/norm.h"
#include "kernels/quantize/quantize.h"
#include "kernels/shared/codes.h"

#define ISO_CPU_BUFFERS 16384 /* one per tensor of the largest model, and a few */

struct iso_cpu_buffer {
    uint8_t *p;
    size_t len;
    bool owned; /* false: borrowed mapping */
};

/* Rows of one session that are attended together. */
struct iso_cpu_tile {
    uint32_t first, n; /* rows */
};

struct iso_queue {
    struct iso_cpu *cpu;
    _Atomic uint32_t fault; /* ISO_FAULT of the first one; relaxed, read after the team is done */
};

struct iso_cpu {
    struct iso_device dev;
    struct iso_pool *pool;
    unsigned flags; /* enum iso_cpu_flag */
    char level[16];
    struct iso_cpu_buffer buffer[ISO_CPU_BUFFERS];
    uint32_t n_buffers; /* highest index in use */
    struct iso_queue queue;
    struct iso_device_limits limits;

    const struct iso_embed_kernels *embed;
    const struct iso_norm_kernels *norm;
    const struct iso_quantize_kernels *quantize;
    const struct iso_matmul_kernels *matmul;
    const struct iso_heads_kernels *heads;
    const struct iso_attention_kernels *attention;
    const struct iso_logits_kernels *logits;

    uint8_t *panel;          /* packed activations of one product */
    uint8_t *scratch;        /* [n_threads][scratch_stride] */
    size_t scratch_stride;
    float *segments;         /* states of a split attention, see device_cpu_attention.c */
    size_t segments_len;     /* floats */
    struct iso_cpu_tile *tiles; /* [max_rows] */
    _Atomic uint32_t next;   /* dynamic work counters; relaxed */
    _Atomic uint32_t next_merge;
};

static inline void *iso_cpu_at(const struct iso_cpu *cpu, struct iso_span s)
{
    return s.buffer ? cpu->buffer[s.buffer].p + s.offset : NULL;
}

static inline void iso_cpu_fault(struct iso_queue *q, uint32_t layer, uint32_t tensor)
{
    uint32_t none = 0;
    atomic_compare_exchange_strong_explicit(&q->fault, &none, ISO_FAULT(layer, tensor),
                                            memory_order_relaxed, memory_order_relaxed);
}

/* device_cpu_rows.c: operations that treat each row by itself. */
void iso_cpu_embed(struct iso_queue *q, const struct iso_op_embed *op);
void iso_cpu_norm(struct iso_queue *q, const struct iso_op_norm *op);
void iso_cpu_norm_quantize(struct iso_queue *q, const struct iso_op_norm_quantize *op);
void iso_cpu_quantize(struct iso_queue *q, const struct iso_op_quantize *op);
void iso_cpu_heads(struct iso_queue *q, const struct iso_op_heads *op);
void iso_cpu_residual(struct iso_queue *q, const struct iso_op_residual *op);
void iso_cpu_gather(struct iso_queue *q, const struct iso_op_gather *op);
void iso_cpu_logits(struct iso_queue *q, const struct iso_op_logits *op);
/* device_cpu_matmul.c */
void iso_cpu_matmul(struct iso_queue *q, const struct iso_op_matmul *op);
/* device_cpu_attention.c */
void iso_cpu_attention(struct iso_queue *q, const struct iso_op_attention *op);
size_t iso_cpu_attention_scratch(const struct iso_device_limits *limits);
size_t iso_cpu_attention_segments(const struct iso_device_limits *limits);

#endif
