/* SPDX-License-Identifier: MIT
 * ops.h - argument structures of the operations that a device runs; read by C, CUDA and Metal.
 *
 * An operation takes places in device buffers, sizes and small constants. buffer 0 means "none".
 * Every matrix of activations is row-major f32 unless said otherwise.
 */
#ifndef ISO_KERNELS_SHARED_OPS_H
#define ISO_KERNELS_SHARED_OPS_H

#include <assert.h>
#include <stdint.h>

/* A place in a device buffer. */
struct iso_span {
    uint32_t buffer; /* index from the device's alloc or map; 0 is none */
    uint32_t reserved;
    uint64_t offset; /* bytes */
};
static_assert(sizeof(struct iso_span) == 16, "shared with GPU code");

/* A weight matrix in file layout: [n_rows][row_bytes]. */
struct iso_weight {
    struct iso_span data;
    struct iso_span bias; /* f32 [n_rows] or none */
    uint32_t type;        /* enum iso_type */
    uint32_t n_rows;
    uint32_t n_cols;
    uint32_t has_scale;
    uint64_t row_bytes;
    float scale;
    uint32_t reserved;
};
static_assert(sizeof(struct iso_weight) == 64, "shared with GPU code");

/* What attention and page writes need to know of a row of the step. */
struct iso_row_desc {
    uint32_t session;          /* row of the page tables */
    uint32_t position;
    uint32_t first_visible[2]; /* per layer class: first visible position */
};
static_assert(sizeof(struct iso_row_desc) == 16, "shared with GPU code");

/* Names for error messages: which tensor of which layer left the domain. */
enum iso_tensor_id {
    ISO_TENSOR_ATTN_NORM, ISO_TENSOR_Q, ISO_TENSOR_K, ISO_TENSOR_V, ISO_TENSOR_ATTN_OUT,
    ISO_TENSOR_FFN_NORM, ISO_TENSOR_FFN_ACT, ISO_TENSOR_RESULT_NORM, ISO_TENSOR_LOGITS,
    ISO_TENSOR_COUNT
};

struct iso_op_embed {
    struct iso_span ids; /* i32 [n_rows] */
    struct iso_weight table;
    struct iso_span x;   /* f32 [n_rows][n_cols] */
    float scale;
    uint32_t has_scale;
    uint32_t n_rows;
    uint32_t reserved;
};

struct iso_op_norm {
    struct iso_span x, y;   /* f32 [n_rows][n]; may be the same place */
    struct iso_span weight; /* f32 [n] or none */
    float eps, inv_n;
    uint32_t n, n_rows;
};

/* codes of norm(x) for rows index[i] of x (or rows i when there is no index). */
struct iso_op_norm_quantize {
    struct iso_span x, weight, index;
    struct iso_span codes;
    struct iso_span tap; /* f32 [n_rows][n] or none */
    float eps, inv_n;
    uint32_t n, n_rows;
    uint32_t layer, tensor;
};

/* codes of x, of g(x*sigmoid(gate)) when gate is given, or of the GLU when up is given. */
struct iso_op_quantize {
    struct iso_span x, gate, up;
    struct iso_span codes;
    struct iso_span tap;
    uint32_t n, n_rows;
    uint32_t glu; /* enum iso_glu, with up */
    uint32_t layer, tensor;
    uint32_t reserved;
};

#define ISO_MATMUL_MAX 4 /* weights that share one set of codes: q, k, v, gate */
struct iso_op_matmul {
    struct iso_span codes;             /* n_rows rows of n_cols */
    struct iso_weight weight[ISO_MATMUL_MAX];
    struct iso_span y[ISO_MATMUL_MAX]; /* f32 [n_rows][weight.n_rows] */
    uint32_t n_weights;
    uint32_t n_rows;
};

struct iso_kv_place {
    struct iso_span pages;  /* this layer's pages: [slot][head][page_bytes] */
    struct iso_span tables; /* u32 [n_sessions][table_len]: page number -> slot */
    uint32_t table_len;
    uint32_t layer_class;   /* index of iso_row_desc.first_visible */
};

struct iso_op_heads {
    struct iso_span q, k, v;      /* f32 [n_rows][heads*d]; q or k and v may be none */
    struct iso_span q_codes;      /* i16 [n_kv_heads][n_rows][group][d] */
    struct iso_span q_scales;     /* f32 [n_kv_heads][n_rows][group] */
    struct iso_span q_norm, k_norm; /* f32 [d] or none */
    struct iso_span rope;         /* f32 [n_rows][n_rot/2][2] (cos, sin) or none */
    struct iso_span rows;         /* struct iso_row_desc [n_rows] */
    struct iso_span q_tap, k_tap; /* f32 [n_rows][heads*d] or none */
    struct iso_kv_place kv;
    float eps, inv_n;
    uint32_t d, n_heads, n_kv_heads, n_rot, pairs; /* pairs: enum iso_rope_pairs */
    uint32_t n_rows;
    uint32_t layer;
    uint32_t reserved;
};

struct iso_op_attention {
    struct iso_span q_codes, q_scales, rows;
    struct iso_span out;          /* f32 [n_rows][n_heads*d] */
    struct iso_kv_place kv;
    float c, cap, inv_cap;
    uint32_t d, n_heads, n_kv_heads;
    uint32_t n_rows;
    uint32_t layer;
};

/* x += y, or x += norm(y) when has_norm. */
struct iso_op_residual {
    struct iso_span x, y, weight;
    float eps, inv_n;
    uint32_t has_norm;
    uint32_t n, n_rows;
    uint32_t reserved;
};

/* Moves rows index[i] of x to row i, ascending index; the rest is left over. */
struct iso_op_gather {
    struct iso_span x;     /* f32 [..][n], in place */
    struct iso_span index; /* u32 [n_rows], ascending */
    uint32_t n, n_rows;
};

struct iso_op_logits {
    struct iso_span logits; /* f32 [n_rows][n] in place */
    float scale, cap, inv_cap;
    uint32_t has_scale;
    uint32_t n, n_rows;
};

#endif
