/* SPDX-License-Identifier: MIT
 * attention.h - the contract of attention on KV pages.
 *
 * A query row is one query head at one position. Pages are visited in ascending order; a segment is
 * 8 pages (512 absolute positions) and has a state of its own that is merged into the head's state
 * in ascending order, so segments may be computed by different threads and still give equal bits.
 * Variants are listed in attention.def.
 * Source: the specification of exact-1, section 10; the running maximum of arXiv:1805.02867.
 */
#ifndef ISO_KERNELS_ATTENTION_H
#define ISO_KERNELS_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

/* (M, l, o) of section 10. "empty" until the first merge. */
struct iso_attention_state {
    float m;
    float l;
    int32_t empty;
    int32_t pad;
    float *o; /* [d] */
};

struct iso_attention_args {
    const int16_t *q;        /* [n_q][d] query codes, rows contiguous */
    const float *q_scale;    /* [n_q] */
    const uint32_t *first;   /* [n_q] first visible position */
    const uint32_t *last;    /* [n_q] last visible position (the query's own) */
    size_t n_q;
    uint32_t d;              /* head size, a multiple of 8, <= ISO_HEAD_MAX */
    const uint8_t *const *pages; /* pages[p - page_base] is page p of this layer and KV head */
    uint32_t page_base;
    float c;                 /* score scale: f32(((1/sqrt(d))*log2e)/B), or without log2e with a cap */
    float cap;               /* score soft-cap, 0 for none */
    float inv_cap;           /* f32(1/cap) */
};

/* Computes the state of segment seg (pages 8*seg .. 8*seg+7) for every query row that sees a key of
 * it: states[i] is emptied first and stays empty for a row that sees none; o is guarded (g) at the end.
 * Only pages with a visible key are touched.
 * Needs: scratch of iso_attention_scratch_bytes(n_q, d), 64-byte aligned, this thread's own. */
typedef void iso_attention_segment_fn(struct iso_attention_state *states,
                                      const struct iso_attention_args *a, uint32_t seg,
                                      void *scratch);

/* merge(seg.m, seg.l, seg.o, unit 1) into head; nothing when seg is empty. */
typedef void iso_attention_merge_fn(struct iso_attention_state *head,
                                    const struct iso_attention_state *seg, uint32_t d);

/* Result of a head: r = rcp(l)*65536; g(o*r); butterfly; g(x*f32(1/B)). An empty state gives zeros.
 * out [d]. */
typedef void iso_attention_finish_fn(float *out, const struct iso_attention_state *head, uint32_t d);

struct iso_attention_kernels {
    const char *name;
    iso_attention_segment_fn *segment;
    iso_attention_merge_fn *merge;
    iso_attention_finish_fn *finish;
};

const struct iso_attention_kernels *iso_attention_select(unsigned flags);

/* Bytes of scratch of one thread. */
size_t iso_attention_scratch_bytes(size_t n_q, uint32_t d);

#endif
