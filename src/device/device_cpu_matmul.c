/* SPDX-License-Identifier: MIT
 * device_cpu_matmul.c - matrix products on the thread team.
 *
 * Few rows: vector products, each weight read once. Many rows: activations are packed once for all
 * weights that share them, then row groups of the weights are handed out dynamically, because the
 * cores of a shared machine rarely run at one speed. Either way the bits are the same.
 */
#include "base/mem.h"
#include "device/device_cpu.h"

#define GEMM_GRAIN 48 /* weight rows handed out at a time: one unpacked group of the kernels */
#define GEMV_GRAIN 16 /* smallest piece for vector products: one transposed group */

struct matmul_job {
    struct iso_cpu *cpu;
    const struct iso_op_matmul *op;
    struct iso_codes codes;
    struct iso_matrix w[ISO_MATMUL_MAX];
    float *y[ISO_MATMUL_MAX];
    uint32_t first_piece[ISO_MATMUL_MAX + 1]; /* pieces of weight i: [first[i], first[i+1]) */
    uint32_t grain;
    bool tiled;
};

static void run_piece(const struct matmul_job *j, uint32_t piece, void *scratch)
{
    uint32_t i = 0;
    while (piece >= j->first_piece[i + 1]) i++;
    const size_t first = (size_t)(piece - j->first_piece[i]) * j->grain;
    const size_t last = ISO_MIN(first + j->grain, j->w[i].n_rows);
    const struct iso_matmul_kernels *k = j->cpu->matmul;
    const size_t n_act = j->op->n_rows;
    const size_t stride = j->w[i].n_rows;
    if (j->tiled) {
        k->gemm(j->y[i], stride, j->cpu->panel, n_act, &j->w[i], first, last, scratch);
        return;
    }
    for (size_t t = 0; t < n_act; t += ISO_GEMV_MAX) {
        const struct iso_codes part = iso_codes_rows(&j->codes, t);
        k->gemv(j->y[i] + t * stride, stride, &part, ISO_MIN(n_act - t, (size_t)ISO_GEMV_MAX),
                &j->w[i], first, last, scratch);
    }
}

static void matmul_member(void *arg, unsigned thread, unsigned n_threads)
{
    const struct matmul_job *j = arg;
    struct iso_cpu *cpu = j->cpu;
    void *scratch = cpu->scratch + thread * cpu->scratch_stride;
    if (j->tiled) {
        const size_t n_tiles = (j->op->n_rows + ISO_GEMM_TILE - 1) / ISO_GEMM_TILE;
        size_t first = 0, last = 0;
        iso_pool_split(n_tiles, 1, thread, n_threads, &first, &last);
        if (first < last) cpu->matmul->pack(cpu->panel, &j->codes, j->op->n_rows, first, last);
        iso_pool_barrier(cpu->pool);
    }
    const uint32_t n_pieces = j->first_piece[j->op->n_weights];
    for (;;) {
        const uint32_t piece = atomic_fetch_add_explicit(&cpu->next, 1, memory_order_relaxed);
        if (piece >= n_pieces) return;
        run_piece(j, piece, scratch);
    }
}

static uint32_t piece_rows(const struct iso_cpu *cpu, const struct iso_op_matmul *op, bool tiled)
{
    if (tiled) return GEMM_GRAIN;
    size_t rows = 0;
    for (uint32_t i = 0; i < op->n_weights; i++) rows += op->weight[i].n_rows;
    /* About eight pieces per thread: even load, few atomic operations. */
    const size_t want = rows / (8 * (size_t)iso_pool_threads(cpu->pool));
    const size_t grain = (want + GEMV_GRAIN - 1) / GEMV_GRAIN * GEMV_GRAIN;
    return (uint32_t)ISO_MAX(grain, (size_t)GEMV_GRAIN);
}

void iso_cpu_matmul(struct iso_queue *q, const struct iso_op_matmul *op)
{
    struct iso_cpu *cpu = q->cpu;
    struct matmul_job j = {.cpu = cpu, .op = op};
    j.tiled = op->n_rows >= cpu->matmul->gemm_from;
    j.grain = piece_rows(cpu, op, j.tiled);
    j.codes = iso_codes_view(iso_cpu_at(cpu, op->codes), op->n_rows, op->weight[0].n_cols);
    for (uint32_t i = 0; i < op->n_weights; i++) {
        const struct iso_weight *w = &op->weight[i];
        j.w[i] = (struct iso_matrix){(enum iso_type)w->type, iso_cpu_at(cpu, w->data), w->n_rows,
                                     w->n_cols, w->row_bytes, w->scale, (int)w->has_scale,
                                     iso_cpu_at(cpu, w->bias)};
        j.y[i] = iso_cpu_at(cpu, op->y[i]);
        j.first_piece[i + 1] = j.first_piece[i] + (w->n_rows + j.grain - 1) / j.grain;
    }
    atomic_store_explicit(&cpu->next, 0, memory_order_relaxed);
    iso_pool_run(cpu->pool, matmul_member, &j);
}
