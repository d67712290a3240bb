/* SPDX-License-Identifier: MIT
 * matmul_gemm_body.h - the tiled product: lanes are activation rows, weight pairs are broadcast.
 *
 * Loops, outermost first: passes of up to 512 activation rows; groups of 48 weight rows; 8 blocks
 * of 256 columns, unpacked once to i16 (L2); activation tiles, one block of which stays in L1
 * while all rows of the group run over it; micro-tiles. y is kept per (tile, row) in scratch and
 * takes one fma per block of 256, in ascending order, so the chain is the pinned one.
 * The including file defines the lanes (matmul_lanes_*.h) and dot_span(), dot_mins(), pack_codes().
 */
#include "kernels/matmul/matmul_layout.h"

#define TILE_VECTORS (ISO_GEMM_TILE / LANES)
#define MICRO_MAX 16 /* accumulators in a micro-tile, at most */
#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Where a micro-tile works. */
struct micro {
    float *y;               /* [tile][GROUP_ROWS][16], at the first tile and row */
    const uint8_t *panel;   /* block of the first tile */
    size_t tile_bytes;      /* from one tile of the panel to the next */
    const struct rows_block *b;
    const struct rows_block *hi;
    size_t r;               /* first row in the group */
    size_t n32;             /* blocks of 32 columns */
};

ALWAYS_INLINE float *micro_y(const struct micro *m, int r, int v)
{
    return m->y + ((size_t)(v / TILE_VECTORS) * GROUP_ROWS + (size_t)r) * ISO_GEMM_TILE +
           v % TILE_VECTORS * LANES;
}

/* Lanes of vector v of a per-tile array of the panel block (offset in bytes). */
ALWAYS_INLINE const uint8_t *micro_panel(const struct micro *m, int v, size_t offset)
{
    return m->panel + (size_t)(v / TILE_VECTORS) * m->tile_bytes + offset +
           (size_t)(v % TILE_VECTORS) * LANES * sizeof(float);
}

/* acc[r * nv + v] = sum over columns [k, k + n) of row m->r + r of b times the lanes of v. */
ALWAYS_INLINE void dot_span(vint *acc, const struct micro *m, int nr, int nv,
                            const struct rows_block *b, size_t k, size_t n);

/* The same for six-bit mins times the sums of 32 codes. */
ALWAYS_INLINE void dot_mins(vint *acc, const struct micro *m, int nr, int nv);

static void pack_codes(int16_t *to, const int16_t *const row[ISO_GEMM_TILE]);
static inline void pack_min_sum(uint8_t *to, int32_t sum, size_t j, size_t t);

/* y = fma(s, p, y) for nr rows and nv vectors. */
ALWAYS_INLINE void micro_finish(const struct micro *m, const vfloat *p, int nr, int nv)
{
    UNROLL
    for (int v = 0; v < nv; v++) {
        const vfloat s = vfloat_load((const float *)micro_panel(m, v, PANEL_SCALE));
        UNROLL
        for (int r = 0; r < nr; r++) {
            float *y = micro_y(m, r, v);
            vfloat_store(y, vfloat_fma(s, p[r * nv + v], vfloat_load(y)));
        }
    }
}

ALWAYS_INLINE void micro_block(const struct micro *m, int nr, int nv, int has_min)
{
    vfloat p[MICRO_MAX];
    UNROLL
    for (int i = 0; i < nr * nv; i++) p[i] = vfloat_zero();
    for (size_t j = 0; j < m->n32; j++) {
        vint acc[MICRO_MAX];
        dot_span(acc, m, nr, nv, m->b, 32 * j, 32);
        UNROLL
        for (int r = 0; r < nr; r++) {
            const vfloat d = vfloat_set1(m->b->d[j][m->r + (size_t)r]);
            UNROLL
            for (int v = 0; v < nv; v++) {
                p[r * nv + v] = vfloat_fma(d, vint_to_float(acc[r * nv + v]), p[r * nv + v]);
            }
        }
        if (!has_min) continue;
        UNROLL
        for (int v = 0; v < nv; v++) {
            const vfloat sum = vfloat_load((const float *)micro_panel(m, v, PANEL_SUM_F + j * 64));
            UNROLL
            for (int r = 0; r < nr; r++) {
                const vfloat min = vfloat_set1(m->b->m[j][m->r + (size_t)r]);
                p[r * nv + v] = vfloat_fma(min, sum, p[r * nv + v]);
            }
        }
    }
    micro_finish(m, p, nr, nv);
}

ALWAYS_INLINE void micro_superblock(const struct micro *m, int nr, int nv, int has_min)
{
    vint acc[MICRO_MAX];
    vfloat p[MICRO_MAX];
    dot_span(acc, m, nr, nv, m->b, 0, ISO_CODE_BLOCK);
    UNROLL
    for (int r = 0; r < nr; r++) {
        const vfloat d = vfloat_set1(m->b->d[0][m->r + (size_t)r]);
        UNROLL
        for (int v = 0; v < nv; v++) {
            p[r * nv + v] = vfloat_mul(d, vint_to_float(acc[r * nv + v]));
        }
    }
    if (has_min) {
        dot_mins(acc, m, nr, nv);
        UNROLL
        for (int r = 0; r < nr; r++) {
            const vfloat min = vfloat_set1(m->b->m[0][m->r + (size_t)r]);
            UNROLL
            for (int v = 0; v < nv; v++) {
                p[r * nv + v] = vfloat_fma(min, vint_to_float(acc[r * nv + v]), p[r * nv + v]);
            }
        }
    }
    micro_finish(m, p, nr, nv);
}

/* NVFP4 where the scales of a row are too far apart for 13 bits: A = low + 4096 * high in i64. */
ALWAYS_INLINE void micro_wide(const struct micro *m, int nr, int nv)
{
    vint acc[MICRO_MAX];
    int32_t low[MICRO_MAX][LANES], high[MICRO_MAX][LANES];
    dot_span(acc, m, nr, nv, m->b, 0, ISO_CODE_BLOCK);
    UNROLL
    for (int i = 0; i < nr * nv; i++) vint_store(low[i], acc[i]);
    dot_span(acc, m, nr, nv, m->hi, 0, ISO_CODE_BLOCK);
    UNROLL
    for (int i = 0; i < nr * nv; i++) vint_store(high[i], acc[i]);
    for (int i = 0; i < nr * nv; i++) {
        const int r = i / nv, v = i % nv;
        const int64_t plane = m->b->wide[m->r + (size_t)r] ? 4096 : 0;
        const float d = m->b->d[0][m->r + (size_t)r];
        const float *s = (const float *)micro_panel(m, v, PANEL_SCALE);
        float *y = micro_y(m, r, v);
        for (int l = 0; l < LANES; l++) {
            const float a = (float)(low[i][l] + plane * high[i][l]);
            y[l] = ISO_FMA(s[l], a * d, y[l]);
        }
    }
}

/* One micro-tile of nr rows and nv vectors of any form. */
ALWAYS_INLINE void micro_any(const struct micro *m, const struct form *f, int nr, int nv)
{
    if (f->chain == CHAIN_BLOCK) {
        if (f->has_min) {
            micro_block(m, nr, nv, 1);
        } else {
            micro_block(m, nr, nv, 0);
        }
        return;
    }
    if (f->has_min) {
        micro_superblock(m, nr, nv, 1);
        return;
    }
    int wide = 0;
    if (f->chain == CHAIN_NVFP4) {
        for (int r = 0; r < nr; r++) wide |= m->b->wide[m->r + (size_t)r];
    }
    if (wide) {
        micro_wide(m, nr, nv);
    } else {
        micro_superblock(m, nr, nv, 0);
    }
}

/* Rows of a group against one or MICRO_TILES tiles, one block of columns. */
static void micro_rows_one(struct micro *m, const struct form *f, size_t n_rows)
{
    for (m->r = 0; m->r < n_rows; m->r += MICRO_ROWS_ONE) {
        micro_any(m, f, MICRO_ROWS_ONE, TILE_VECTORS);
        m->y += MICRO_ROWS_ONE * ISO_GEMM_TILE;
    }
}

#if MICRO_TILES > 1
static void micro_rows_wide(struct micro *m, const struct form *f, size_t n_rows)
{
    for (m->r = 0; m->r < n_rows; m->r += MICRO_ROWS_WIDE) {
        micro_any(m, f, MICRO_ROWS_WIDE, TILE_VECTORS * MICRO_TILES);
        m->y += MICRO_ROWS_WIDE * ISO_GEMM_TILE;
    }
}
#endif

/* What one call works on. */
struct gemm_call {
    const struct iso_matrix *w;
    const struct form *f;
    struct gemm_scratch *s;
    const uint8_t *panel; /* first tile of the pass */
    size_t n_blocks, tile_bytes, n_tiles, blocks_at_once;
};

/* Unpacks blocks [k0, k1) of rows [first, first + n_rows) and zeroes what a micro-tile overruns. */
static void gemm_unpack(const struct gemm_call *c, size_t first, size_t n_rows, size_t k0,
                        size_t k1)
{
    for (size_t r = 0; r < GROUP_ROWS; r++) {
        for (size_t k = k0; k < k1; k++) {
            struct rows_block *b = &c->s->block[k - k0];
            if (r < n_rows) {
                unpack_row(b, b + c->blocks_at_once % GROUP_BLOCKS, r, c->f,
                           c->w->data + (first + r) * c->w->row_bytes, k, c->w->n_cols);
            } else {
                unpack_zero_row(b, r);
            }
        }
    }
}

/* All tiles of the pass against the unpacked blocks [k0, k1). */
static void gemm_tiles(const struct gemm_call *c, size_t n_rows, size_t k0, size_t k1)
{
    size_t step;
    for (size_t t = 0; t < c->n_tiles; t += step) {
        step = ISO_MIN(c->n_tiles - t, (size_t)MICRO_TILES);
        for (size_t k = k0; k < k1; k++) {
            const size_t n = ISO_MIN(c->w->n_cols - k * ISO_CODE_BLOCK, (size_t)ISO_CODE_BLOCK);
            const struct rows_block *b = &c->s->block[k - k0];
            struct micro m = {.y = c->s->y[t][0],
                              .panel = c->panel + t * c->tile_bytes + k * PANEL_BLOCK_BYTES,
                              .tile_bytes = c->tile_bytes,
                              .b = b,
                              .hi = b + c->blocks_at_once % GROUP_BLOCKS,
                              .n32 = n / 32};
#if MICRO_TILES > 1
            if (step > 1) {
                micro_rows_wide(&m, c->f, n_rows);
                continue;
            }
#endif
            micro_rows_one(&m, c->f, n_rows);
        }
    }
}

/* Scale, bias and the transposed store of one tile: out[t * y_stride + r]. */
static void gemm_store(float *out, size_t y_stride, float (*y)[ISO_GEMM_TILE],
                       const struct iso_matrix *w, size_t first, size_t n_rows, size_t n_act)
{
    for (size_t r = 0; r < n_rows; r += LANES) {
        const size_t rows = ISO_MIN(n_rows - r, (size_t)LANES);
        for (size_t t = 0; t < n_act; t += LANES) {
            const size_t lanes = ISO_MIN(n_act - t, (size_t)LANES);
            vfloat v[LANES];
            for (size_t i = 0; i < LANES; i++) {
                v[i] = vfloat_load(y[r + i] + t);
                if (w->has_scale) v[i] = vfloat_mul(v[i], vfloat_set1(w->scale));
                if (!w->bias || i >= rows) continue;
                v[i] = vfloat_add(v[i], vfloat_set1(w->bias[first + r + i]));
            }
            vfloat_transpose(v);
            for (size_t i = 0; i < lanes; i++) {
                float *to = out + (t + i) * y_stride + first + r;
                if (rows == LANES) {
                    vfloat_store(to, v[i]);
                } else {
                    vfloat_store_some(to, v[i], rows);
                }
            }
        }
    }
}

static void gemm(float *y, size_t y_stride, const void *panel, size_t n_act,
                 const struct iso_matrix *w, size_t first_row, size_t last_row, void *scratch)
{
    struct gemm_call c = {.w = w, .f = &forms[w->type], .s = scratch};
    c.n_blocks = layout_n_blocks(w->n_cols);
    c.tile_bytes = c.n_blocks * PANEL_BLOCK_BYTES;
    /* NVFP4 keeps its high planes in the second half of the blocks; else hi is unused. */
    c.blocks_at_once = c.f->chain == CHAIN_NVFP4 ? GROUP_BLOCKS / 2 : GROUP_BLOCKS;
    const size_t n_tiles = layout_n_tiles(n_act);
    for (size_t tile = 0; tile < n_tiles; tile += GROUP_TILES) {
        c.panel = (const uint8_t *)panel + tile * c.tile_bytes;
        c.n_tiles = ISO_MIN(n_tiles - tile, (size_t)GROUP_TILES);
        for (size_t r = first_row; r < last_row; r += GROUP_ROWS) {
            const size_t n_rows = ISO_MIN(last_row - r, (size_t)GROUP_ROWS);
            memset(c.s->y, 0, c.n_tiles * sizeof(c.s->y[0]));
            for (size_t k = 0; k < c.n_blocks; k += c.blocks_at_once) {
                const size_t end = ISO_MIN(k + c.blocks_at_once, c.n_blocks);
                gemm_unpack(&c, r, n_rows, k, end);
                gemm_tiles(&c, n_rows, k, end);
            }
            for (size_t t = 0; t < c.n_tiles; t++) {
                const size_t act = (tile + t) * ISO_GEMM_TILE;
                gemm_store(y + act * y_stride, y_stride, c.s->y[t], w, r, n_rows,
                           ISO_MIN(n_act - act, (size_t)ISO_GEMM_TILE));
            }
        }
    }
}

/* Scales and sums of tile rows [t0, t0 + n) of a, block k; absent rows are zero. */
static void pack_sums(uint8_t *to, const struct iso_codes *a, size_t t0, size_t n, size_t k)
{
    float *scale = (float *)(to + PANEL_SCALE), *sum_f = (float *)(to + PANEL_SUM_F);
    memset(to + PANEL_SUM_F, 0, PANEL_BLOCK_BYTES - PANEL_SUM_F);
    for (size_t t = 0; t < n; t++) {
        const size_t at = (t0 + t) * (a->stride / ISO_CODE_BLOCK) + k;
        scale[t] = a->scale[at];
        for (size_t j = 0; j < 8; j++) {
            const int32_t sum = a->sum32[8 * at + j];
            sum_f[j * ISO_GEMM_TILE + t] = (float)sum;
            pack_min_sum(to + PANEL_SUM_P, sum, j, t);
        }
    }
}

static void pack(void *panel, const struct iso_codes *a, size_t n_act, size_t first_tile,
                 size_t last_tile)
{
    const size_t n_blocks = layout_n_blocks(a->n);
    for (size_t tile = first_tile; tile < last_tile; tile++) {
        const size_t t0 = tile * ISO_GEMM_TILE;
        const size_t n = ISO_MIN(n_act - t0, (size_t)ISO_GEMM_TILE);
        for (size_t k = 0; k < n_blocks; k++) {
            uint8_t *to = (uint8_t *)panel + (tile * n_blocks + k) * PANEL_BLOCK_BYTES;
            const int16_t *row[ISO_GEMM_TILE];
            static const int16_t zero[ISO_CODE_BLOCK];
            for (size_t t = 0; t < ISO_GEMM_TILE; t++) {
                row[t] = t < n ? a->code + (t0 + t) * a->stride + k * ISO_CODE_BLOCK : zero;
            }
            pack_codes((int16_t *)(to + PANEL_CODES), row);
            pack_sums(to, a, t0, n, k);
        }
    }
}
