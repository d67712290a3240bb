/* SPDX-License-Identifier: MIT
 * device_cpu_attention.c - attention on the thread team: tiles of rows, or segments of a long cache.
 *
 * A work item is a tile (rows of one session) and one KV head with all query heads that share it, so
 * each page is unpacked once per tile. When a step has fewer items than threads (decode with few KV
 * heads), the segments of 8 pages become items of their own and a second phase merges their states
 * in ascending order: the same bits, by section 10 of the specification.
 */
#include <assert.h>

#include "arith/page.h"
#include "base/mem.h"
#include "device/device_cpu.h"

#define TILE_QUERIES 64 /* query rows per item: K and V of a page stay in the first-level cache */
#define SPLIT_ROWS 8    /* steps of at most this many rows may be split by segments */
#define SEGMENT_POSITIONS (ISO_SEGMENT_PAGES * ISO_PAGE_POSITIONS)

struct attention_job {
    struct iso_cpu *cpu;
    const struct iso_op_attention *op;
    const struct iso_row_desc *rows;
    uint32_t group; /* query heads per KV head */
    uint32_t n_tiles;
    uint32_t max_segments; /* of any tile, in split mode */
    bool split;
};

/* What one item needs besides the kernel's own scratch; lives in the thread's scratch. */
struct item {
    uint32_t first[TILE_QUERIES], last[TILE_QUERIES];
    struct iso_attention_state head[TILE_QUERIES], seg[TILE_QUERIES];
    const uint8_t *pages[ISO_SEGMENT_PAGES];
    float head_o[TILE_QUERIES * ISO_HEAD_MAX];
    float seg_o[TILE_QUERIES * ISO_HEAD_MAX];
};

static size_t item_bytes(void)
{
    return (sizeof(struct item) + 63) / 64 * 64;
}

size_t iso_cpu_attention_scratch(const struct iso_device_limits *limits)
{
    return item_bytes() + iso_attention_scratch_bytes(TILE_QUERIES, limits->head_dim);
}

static size_t state_floats(uint32_t d)
{
    return 3 + (size_t)d; /* m, l, filled, o */
}

static uint32_t max_segments(const struct iso_device_limits *limits)
{
    return (limits->max_pages + ISO_SEGMENT_PAGES - 1) / ISO_SEGMENT_PAGES;
}

size_t iso_cpu_attention_segments(const struct iso_device_limits *limits)
{
    const size_t rows = ISO_MIN(limits->max_rows, (uint32_t)SPLIT_ROWS);
    return rows * limits->n_heads * max_segments(limits) * state_floats(limits->head_dim);
}

/* Rows of a tile: as many as give TILE_QUERIES query rows. */
static uint32_t make_tiles(struct iso_cpu *cpu, const struct iso_row_desc *rows, uint32_t n_rows,
                           uint32_t group)
{
    const uint32_t per_tile = ISO_MAX(TILE_QUERIES / group, 1u);
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_rows;) {
        uint32_t end = i + 1;
        while (end < n_rows && end - i < per_tile && rows[end].session == rows[i].session &&
               rows[end].position == rows[end - 1].position + 1) {
            end++;
        }
        cpu->tiles[n++] = (struct iso_cpu_tile){i, end - i};
        i = end;
    }
    return n;
}

/* Fills the kernel's arguments for a tile, a KV head and (part of) its query heads. */
static struct iso_attention_args item_args(const struct attention_job *j, struct item *it,
                                           const struct iso_cpu_tile *tile, uint32_t kv_head)
{
    const struct iso_op_attention *op = j->op;
    const size_t at = ((size_t)kv_head * op->n_rows + tile->first) * j->group;
    const uint32_t n_q = tile->n * j->group;
    for (uint32_t i = 0; i < n_q; i++) {
        const struct iso_row_desc *r = &j->rows[tile->first + i / j->group];
        it->first[i] = r->first_visible[op->kv.layer_class];
        it->last[i] = r->position;
    }
    return (struct iso_attention_args){
        .q = (const int16_t *)iso_cpu_at(j->cpu, op->q_codes) + at * op->d,
        .q_scale = (const float *)iso_cpu_at(j->cpu, op->q_scales) + at,
        .first = it->first,
        .last = it->last,
        .n_q = n_q,
        .d = op->d,
        .pages = it->pages,
        .c = op->c,
        .cap = op->cap,
        .inv_cap = op->inv_cap,
    };
}

static void segment_pages(const struct attention_job *j, struct item *it,
                          const struct iso_cpu_tile *tile, uint32_t kv_head, uint32_t seg)
{
    const struct iso_op_attention *op = j->op;
    const size_t bytes = iso_page_bytes(op->d);
    const struct iso_row_desc *lo = &j->rows[tile->first];
    const uint32_t *table = (const uint32_t *)iso_cpu_at(j->cpu, op->kv.tables) +
                            (size_t)lo->session * op->kv.table_len;
    const uint8_t *pages = iso_cpu_at(j->cpu, op->kv.pages);
    const uint32_t first_page = lo->first_visible[op->kv.layer_class] / ISO_PAGE_POSITIONS;
    const uint32_t last_page = j->rows[tile->first + tile->n - 1].position / ISO_PAGE_POSITIONS;
    for (uint32_t i = 0; i < ISO_SEGMENT_PAGES; i++) {
        const uint32_t p = seg * ISO_SEGMENT_PAGES + i;
        it->pages[i] = NULL; /* never touched: no key of it is visible */
        if (p < first_page || p > last_page) continue;
        it->pages[i] = pages + ((size_t)table[p] * op->n_kv_heads + kv_head) * bytes;
    }
}

static void segment_range(const struct attention_job *j, const struct iso_cpu_tile *tile,
                          uint32_t *first, uint32_t *last)
{
    *first = j->rows[tile->first].first_visible[j->op->kv.layer_class] / SEGMENT_POSITIONS;
    *last = j->rows[tile->first + tile->n - 1].position / SEGMENT_POSITIONS;
}

static float *out_row(const struct attention_job *j, const struct iso_cpu_tile *tile,
                      uint32_t kv_head, uint32_t i)
{
    const struct iso_op_attention *op = j->op;
    const size_t row = tile->first + i / j->group;
    const size_t head = (size_t)kv_head * j->group + i % j->group;
    return (float *)iso_cpu_at(j->cpu, op->out) + (row * op->n_heads + head) * op->d;
}

static void run_whole(const struct attention_job *j, uint32_t index, struct item *it, void *scratch)
{
    const uint32_t d = j->op->d;
    const struct iso_cpu_tile *tile = &j->cpu->tiles[index / j->op->n_kv_heads];
    const uint32_t kv_head = index % j->op->n_kv_heads;
    struct iso_attention_args a = item_args(j, it, tile, kv_head);
    for (size_t i = 0; i < a.n_q; i++) {
        it->head[i] = (struct iso_attention_state){.empty = 1, .o = it->head_o + i * d};
        it->seg[i] = (struct iso_attention_state){.empty = 1, .o = it->seg_o + i * d};
    }
    uint32_t first = 0, last = 0;
    segment_range(j, tile, &first, &last);
    for (uint32_t seg = first; seg <= last; seg++) {
        segment_pages(j, it, tile, kv_head, seg);
        a.page_base = seg * ISO_SEGMENT_PAGES;
        j->cpu->attention->segment(it->seg, &a, seg, scratch);
        for (size_t i = 0; i < a.n_q; i++) j->cpu->attention->merge(&it->head[i], &it->seg[i], d);
    }
    for (uint32_t i = 0; i < a.n_q; i++) {
        j->cpu->attention->finish(out_row(j, tile, kv_head, i), &it->head[i], d);
    }
}

/* Place of the state of query i of a tile, KV head and segment between the two phases. */
static float *split_state(const struct attention_job *j, const struct iso_cpu_tile *tile,
                          uint32_t kv_head, uint32_t i, uint32_t seg)
{
    const size_t row = tile->first + i / j->group;
    const size_t head = (size_t)kv_head * j->group + i % j->group;
    const size_t n = max_segments(&j->cpu->limits);
    return j->cpu->segments +
           ((row * j->op->n_heads + head) * n + seg) * state_floats(j->op->d);
}

static void run_segment(const struct attention_job *j, uint32_t index, struct item *it,
                        void *scratch)
{
    const uint32_t seg = index % j->max_segments;
    const uint32_t kv_head = index / j->max_segments % j->op->n_kv_heads;
    const struct iso_cpu_tile *tile =
        &j->cpu->tiles[index / j->max_segments / j->op->n_kv_heads];
    uint32_t first = 0, last = 0;
    segment_range(j, tile, &first, &last);
    if (first + seg > last) return;
    struct iso_attention_args a = item_args(j, it, tile, kv_head);
    for (uint32_t i = 0; i < a.n_q; i++) {
        float *s = split_state(j, tile, kv_head, i, first + seg);
        it->seg[i] = (struct iso_attention_state){.empty = 1, .o = s + 3};
    }
    segment_pages(j, it, tile, kv_head, first + seg);
    a.page_base = (first + seg) * ISO_SEGMENT_PAGES;
    j->cpu->attention->segment(it->seg, &a, first + seg, scratch);
    for (uint32_t i = 0; i < a.n_q; i++) {
        float *s = split_state(j, tile, kv_head, i, first + seg);
        s[0] = it->seg[i].m;
        s[1] = it->seg[i].l;
        s[2] = it->seg[i].empty ? 0.0f : 1.0f;
    }
}

static void run_merge(const struct attention_job *j, uint32_t index, struct item *it)
{
    const uint32_t d = j->op->d;
    const struct iso_cpu_tile *tile = &j->cpu->tiles[index / j->op->n_kv_heads];
    const uint32_t kv_head = index % j->op->n_kv_heads;
    uint32_t first = 0, last = 0;
    segment_range(j, tile, &first, &last);
    for (uint32_t i = 0; i < tile->n * j->group; i++) {
        struct iso_attention_state head = {.empty = 1, .o = it->head_o};
        for (uint32_t seg = first; seg <= last; seg++) {
            float *s = split_state(j, tile, kv_head, i, seg);
            const struct iso_attention_state part = {
                .m = s[0], .l = s[1], .empty = s[2] == 0.0f, .o = s + 3};
            j->cpu->attention->merge(&head, &part, d);
        }
        j->cpu->attention->finish(out_row(j, tile, kv_head, i), &head, d);
    }
}

static void attention_member(void *arg, unsigned thread, unsigned n_threads)
{
    (void)n_threads;
    const struct attention_job *j = arg;
    struct iso_cpu *cpu = j->cpu;
    struct item *it = (struct item *)(cpu->scratch + thread * cpu->scratch_stride);
    void *scratch = (uint8_t *)it + item_bytes();
    const uint32_t n_heads = j->n_tiles * j->op->n_kv_heads;
    const uint32_t n_items = j->split ? n_heads * j->max_segments : n_heads;
    for (;;) {
        uint32_t i = atomic_fetch_add_explicit(&cpu->next, 1, memory_order_relaxed);
        if (i >= n_items) break;
        /* Late tiles see more keys: hand them out first. */
        i = n_items - 1 - i;
        if (j->split) run_segment(j, i, it, scratch);
        else run_whole(j, i, it, scratch);
    }
    if (!j->split) return;
    iso_pool_barrier(cpu->pool);
    for (;;) {
        const uint32_t i = atomic_fetch_add_explicit(&cpu->next_merge, 1, memory_order_relaxed);
        if (i >= n_heads) break;
        run_merge(j, i, it);
    }
}

void iso_cpu_attention(struct iso_queue *q, const struct iso_op_attention *op)
{
    struct iso_cpu *cpu = q->cpu;
    struct attention_job j = {.cpu = cpu, .op = op};
    j.rows = iso_cpu_at(cpu, op->rows);
    j.group = op->n_heads / op->n_kv_heads;
    assert(j.group <= TILE_QUERIES);
    j.n_tiles = make_tiles(cpu, j.rows, op->n_rows, j.group);
    const unsigned n_threads = iso_pool_threads(cpu->pool);
    for (uint32_t i = 0; i < j.n_tiles; i++) {
        uint32_t first = 0, last = 0;
        segment_range(&j, &cpu->tiles[i], &first, &last);
        j.max_segments = ISO_MAX(j.max_segments, last - first + 1);
    }
    j.split = n_threads > 1 && op->n_rows <= SPLIT_ROWS && j.max_segments > 1 &&
              j.n_tiles * op->n_kv_heads < 2 * n_threads;
    atomic_store_explicit(&cpu->next, 0, memory_order_relaxed);
    atomic_store_explicit(&cpu->next_merge, 0, memory_order_relaxed);
    iso_pool_run(cpu->pool, attention_member, &j);
}
