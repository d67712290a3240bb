/* SPDX-License-Identifier: MIT
 * test_metal_attention.c - both shapes of Metal's attention on random pages, bit for bit against the reference.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "arith/page.h"
#include "arith/prim.h"
#include "base/mem.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_metal.h"
#include "kernels/check.h"
#include "kernels/shared/ops.h"
#include "metal_kernels/gpu.h"

extern const struct iso_attention_kernels iso_attention_kernels_ref;

#define SPAN (ISO_SEGMENT_PAGES * ISO_PAGE_POSITIONS)

/* What pages and queries hold. */
enum style {
    STYLE_ORDINARY, /* scores some units apart */
    STYLE_WIDE,     /* scores thousands apart: most exponentials are 0 */
    STYLE_EXTREME,  /* the largest codes, weights and values: every bound of the kernels is reached */
    STYLE_ZERO,     /* many scales and queries are zero */
    STYLE_TINY,     /* scales near the floor */
    STYLES
};

/* One step. */
struct attention_case {
    uint32_t d, group, n_kv, n_sessions, window; /* window 0: none */
    uint32_t n_rows, last;                       /* rows of the step; position of the last row of each session */
    enum style style;
    float cap;
};

struct attention_data {
    int16_t *q_codes;
    float *q_scales, *want;
    struct iso_row_desc *rows;
    uint32_t *tables;
    uint8_t *pages;
    uint32_t table_len;
    size_t n_queries, pages_len;
    float c;
};

static float pick_scale(struct check_rng *r, enum style style, bool value)
{
    const float x = 0.5f + 0.5f * fabsf(check_f32(r));
    switch (style) {
    case STYLE_ORDINARY: return x * 0x1p-9f;
    case STYLE_WIDE: return x * (value ? 0x1p-4f : 0x1p-2f);
    case STYLE_EXTREME: return value ? 0x1.fffffep-3f : 0x1.1p-3f;
    case STYLE_ZERO: return check_int(r, 0, 2) ? 0.0f : x;
    default: return x * (check_int(r, 0, 1) ? 0x1p-38f : 0x1p-20f);
    }
}

static void fill_page(struct check_rng *r, uint8_t *page, uint32_t d, enum style style)
{
    check_fill(r, page, iso_page_bytes(d));
    if (style == STYLE_EXTREME) {
        /* Pairs (k >> 4, k & 15 twice) of -2048, 2047, 63 and -32: the last two fill one plane of the tiles alone. */
        static const uint8_t high[] = {0x80, 0x7f, 0x03, 0xfe}, low[] = {0x00, 0xff, 0xff, 0x00};
        const int64_t k = check_int(r, -1, 3), v = check_int(r, 0, 2);
        if (k >= 0) memset(page, high[k], (size_t)64 * d);
        if (k >= 0) memset(page + iso_page_k_lo(d), low[k], (size_t)32 * d);
        if (v > 0) memset(page + iso_page_v(d), v == 1 ? 0x80 : 0x7f, (size_t)64 * d);
    }
    const bool no_values = style == STYLE_ZERO && check_int(r, 0, 3) == 0;
    for (uint32_t i = 0; i < 64; i++) {
        const float ks = pick_scale(r, style, false), vs = no_values ? 0.0f : pick_scale(r, style, true);
        memcpy(page + iso_page_k_scale(d) + 4 * i, &ks, 4);
        memcpy(page + iso_page_v_scale(d) + 4 * i, &vs, 4);
    }
}

static void fill_queries(struct check_rng *r, struct attention_data *t, uint32_t d, enum style style)
{
    for (size_t i = 0; i < t->n_queries; i++) {
        const int fixed = style == STYLE_EXTREME ? (int)check_int(r, 0, 3) : 0;
        for (uint32_t k = 0; k < d; k++) {
            t->q_codes[i * d + k] = fixed ? (int16_t)((fixed - 2) * 2047) : (int16_t)check_int(r, -2047, 2047);
        }
        t->q_scales[i] = pick_scale(r, style, false);
    }
}

static struct attention_data make_data(struct check_rng *r, const struct attention_case *c)
{
    struct attention_data t = {.table_len = c->last / 64 + 2};
    const uint32_t heads = c->group * c->n_kv, n_slots = t.table_len * c->n_sessions;
    t.n_queries = (size_t)c->n_rows * heads;
    t.pages_len = (size_t)n_slots * c->n_kv * iso_page_bytes(c->d);
    t.q_codes = iso_xalloc(t.n_queries * c->d, 2);
    t.q_scales = iso_xalloc(t.n_queries, 4);
    t.want = iso_xalloc(t.n_queries * c->d, 4);
    t.rows = iso_xalloc(c->n_rows, sizeof(*t.rows));
    t.tables = iso_xalloc(n_slots, 4);
    t.pages = iso_xalloc(t.pages_len, 1);
    t.c = (float)((1.0 / sqrt((double)c->d)) * 1.4426950408889634 / iso_butterfly_block(c->d));
    for (size_t p = 0; p < (size_t)n_slots * c->n_kv; p++) fill_page(r, t.pages + p * iso_page_bytes(c->d), c->d, c->style);
    fill_queries(r, &t, c->d, c->style);
    for (uint32_t i = 0; i < n_slots; i++) t.tables[i] = i;
    for (uint32_t i = n_slots - 1; i > 0; i--) {
        const uint32_t j = (uint32_t)check_int(r, 0, i), x = t.tables[i];
        t.tables[i] = t.tables[j];
        t.tables[j] = x;
    }
    for (uint32_t i = 0; i < c->n_rows; i++) {
        /* Sessions side by side; their last rows are at different positions. */
        const uint32_t per = (c->n_rows + c->n_sessions - 1) / c->n_sessions, s = i / per;
        const uint32_t end = ISO_MIN((s + 1) * per, c->n_rows), back = end - 1 - i + s % 3 * 17;
        const uint32_t pos = c->last > back ? c->last - back : i % per;
        const uint32_t first = c->window && pos >= c->window ? pos - c->window + 1 : 0;
        t.rows[i] = (struct iso_row_desc){.session = s, .position = pos, .first_visible = {0xdeadbeef, first}};
    }
    return t;
}

static void free_data(struct attention_data *t)
{
    void *const all[] = {t->q_codes, t->q_scales, t->want, t->rows, t->tables, t->pages};
    for (size_t i = 0; i < ISO_COUNT(all); i++) free(all[i]);
}

/* Query head h of row i through its segments. */
static void reference(const struct attention_data *t, const struct attention_case *c, uint32_t i, uint32_t h)
{
    const uint32_t heads = c->group * c->n_kv, kv = h / c->group, first = t->rows[i].first_visible[1];
    const uint32_t last = t->rows[i].position;
    const size_t at = ((size_t)kv * c->n_rows + i) * c->group + h % c->group;
    float head_o[ISO_HEAD_MAX], seg_o[ISO_HEAD_MAX];
    struct iso_attention_state head = {.empty = 1, .o = head_o}, seg = {.empty = 1, .o = seg_o};
    const uint8_t *pages[ISO_SEGMENT_PAGES];
    struct iso_attention_args a = {.q = t->q_codes + at * c->d, .q_scale = t->q_scales + at, .first = &first, .last = &last,
                                   .n_q = 1, .d = c->d, .pages = pages, .c = t->c, .cap = c->cap,
                                   .inv_cap = c->cap > 0 ? 1.0f / c->cap : 0.0f};
    for (uint32_t s = first / SPAN; s <= last / SPAN; s++) {
        for (uint32_t p = 0; p < ISO_SEGMENT_PAGES; p++) {
            const uint32_t number = s * ISO_SEGMENT_PAGES + p;
            if (number >= t->table_len) break;
            const size_t slot = t->tables[t->rows[i].session * t->table_len + number];
            pages[p] = t->pages + (slot * c->n_kv + kv) * iso_page_bytes(c->d);
        }
        a.page_base = s * ISO_SEGMENT_PAGES;
        iso_attention_kernels_ref.segment(&seg, &a, s, NULL);
        iso_attention_kernels_ref.merge(&head, &seg, c->d);
    }
    iso_attention_kernels_ref.finish(t->want + ((size_t)i * heads + h) * c->d, &head, c->d);
}

static uint32_t most_segments(const struct attention_data *t, uint32_t n_rows)
{
    uint32_t n = 1;
    for (uint32_t i = 0; i < n_rows; i++) {
        n = ISO_MAX(n, iso_metal_attention_segments(t->rows[i].first_visible[1], t->rows[i].position));
    }
    return n;
}

static uint32_t kernel_of(const char *name, const struct attention_case *c, bool whole)
{
    const struct iso_metal_constant constants[] = {GPU_U32(ISO_METAL_ATTENTION_DIM, c->d),
                                                   GPU_BOOL(ISO_METAL_ATTENTION_CAP, c->cap > 0),
                                                   GPU_BOOL(ISO_METAL_ATTENTION_WHOLE, whole)};
    return gpu_kernel(name, constants, 3);
}

/* Split with that many segments; with one, whole says whether it may write the result itself. */
static void run_split(struct place *bind, const struct attention_case *c, struct iso_metal_attention a, uint32_t segments,
                      bool whole)
{
    a.max_segments = segments;
    const uint32_t tiles = (c->group + ISO_METAL_ATTENTION_SPLIT_QUERIES - 1) / ISO_METAL_ATTENTION_SPLIT_QUERIES;
    const struct gpu_launch split = {.pipeline = kernel_of("iso_attention_split", c, whole),
                                         .groups = {c->n_rows, c->n_kv * tiles, segments},
                                         .threads = ISO_METAL_ATTENTION_SPLIT_THREADS,
                                         .bytes = iso_metal_attention_split_bytes(c->d, c->group), .args = &a,
                                         .args_len = sizeof(a)};
    const struct gpu_launch merge = {.pipeline = kernel_of("iso_attention_merge", c, whole),
                                         .groups = {c->n_rows, c->n_kv * c->group, 1},
                                         .threads = ISO_METAL_ATTENTION_MERGE_THREADS, .args = &a, .args_len = sizeof(a)};
    if (!whole) {
        const size_t len = iso_metal_attention_states(c->n_rows, c->n_kv * c->group, c->d, segments);
        bind[ISO_METAL_ATTENTION_STATES] = place_new(NULL, len);
    }
    gpu_record(&split, bind, ISO_METAL_ATTENTION_BINDINGS);
    if (!whole) gpu_record(&merge, bind, ISO_METAL_ATTENTION_BINDINGS);
    gpu_wait();
    place_free(&bind[ISO_METAL_ATTENTION_STATES]);
}

static void compare(struct place *bind, const struct attention_data *t, const struct attention_case *c, const char *shape)
{
    char what[200];
    (void)snprintf(what, sizeof(what), "%s d %u group %u kv %u sessions %u window %u rows %u last %u style %d cap %g", shape, c->d,
                   c->group, c->n_kv, c->n_sessions, c->window, c->n_rows, c->last, (int)c->style, (double)c->cap);
    check_bits_f32(what, bind[ISO_METAL_ATTENTION_OUT].host, c->d, t->want, c->d, t->n_queries, c->d);
    memset(bind[ISO_METAL_ATTENTION_OUT].host, 0xA5, bind[ISO_METAL_ATTENTION_OUT].len);
}

/* tiles, split: which shapes run. */
static void run(struct check_rng *r, const struct attention_case *c, bool tiles, bool split)
{
    struct attention_data t = make_data(r, c);
    const uint32_t heads = c->group * c->n_kv, segments = most_segments(&t, c->n_rows);
    for (uint32_t i = 0; i < c->n_rows; i++) {
        for (uint32_t h = 0; h < heads; h++) reference(&t, c, i, h);
    }
    struct place bind[ISO_METAL_ATTENTION_BINDINGS] = {{0}};
    bind[ISO_METAL_ATTENTION_Q_CODES] = place_new(t.q_codes, t.n_queries * c->d * 2);
    bind[ISO_METAL_ATTENTION_Q_SCALES] = place_new(t.q_scales, t.n_queries * 4);
    bind[ISO_METAL_ATTENTION_ROWS] = place_new(t.rows, c->n_rows * sizeof(*t.rows));
    bind[ISO_METAL_ATTENTION_OUT] = place_new(NULL, t.n_queries * c->d * 4);
    bind[ISO_METAL_ATTENTION_PAGES] = place_new(t.pages, t.pages_len);
    bind[ISO_METAL_ATTENTION_TABLES] = place_new(t.tables, (size_t)c->n_sessions * t.table_len * 4);
    const struct iso_metal_attention a = {.n_heads = heads, .n_kv_heads = c->n_kv, .n_rows = c->n_rows,
                                          .table_len = t.table_len, .layer_class = 1, .c = t.c, .cap = c->cap,
                                          .inv_cap = c->cap > 0 ? 1.0f / c->cap : 0.0f};
    if (tiles) {
        const uint32_t n = ISO_METAL_ATTENTION_TILE_QUERIES;
        const struct gpu_launch l = {.pipeline = kernel_of("iso_attention_tiles", c, false),
                                         .groups = {(c->n_rows * c->group + n - 1) / n, c->n_kv, 1},
                                         .threads = ISO_METAL_ATTENTION_TILE_THREADS,
                                         .bytes = ISO_METAL_ATTENTION_TILE_BYTES, .args = &a, .args_len = sizeof(a)};
        gpu_record(&l, bind, ISO_METAL_ATTENTION_BINDINGS);
        gpu_wait();
        compare(bind, &t, c, "tiles");
    }
    if (split) {
        run_split(bind, c, a, segments + (segments > 1 && check_int(r, 0, 1)), segments == 1);
        compare(bind, &t, c, "split");
    }
    if (split && segments == 1) {
        run_split(bind, c, a, (uint32_t)check_int(r, 1, 2), false);
        compare(bind, &t, c, "split and merge");
    }
    for (size_t i = 0; i < ISO_METAL_ATTENTION_BINDINGS; i++) place_free(&bind[i]);
    free_data(&t);
}

/* Every head size, with everything else at random. */
static void test_dims(void **state)
{
    (void)state;
    static const uint32_t dims[] = {8, 16, 24, 40, 64, 72, 80, 96, 112, 128, 160, 192, 224, 256};
    static const uint32_t windows[] = {0, 0, 1, 5, 70, 513};
    struct check_rng r = check_rng(21);
    for (size_t i = 0; i < ISO_COUNT(dims); i++) {
        for (uint32_t style = 0; style < STYLES; style++) {
            struct attention_case c = {.d = dims[i], .style = (enum style)style, .window = windows[check_int(&r, 0, 5)]};
            c.group = (uint32_t)check_int(&r, 1, 7);
            c.n_kv = check_int(&r, 0, 3) ? 1 : 2;
            c.n_sessions = (uint32_t)check_int(&r, 1, 3);
            c.n_rows = c.n_sessions + (uint32_t)check_int(&r, 0, 5);
            c.last = (uint32_t)check_int(&r, 0, 7) ? (uint32_t)check_int(&r, 0, 200) : (uint32_t)check_int(&r, 500, 1100);
            c.cap = check_int(&r, 0, 3) ? 0.0f : 50.0f;
            run(&r, &c, true, true);
        }
    }
}

/* Every number of query heads per KV head. */
static void test_groups(void **state)
{
    (void)state;
    struct check_rng r = check_rng(22);
    for (uint32_t group = 1; group <= 18; group++) {
        const struct attention_case c = {.d = 64u << group % 3, .group = group, .n_kv = 1, .n_sessions = 1 + group % 2,
                                         .n_rows = 1 + (uint32_t)check_int(&r, 0, 4), .last = 60 + group,
                                         .style = group % 4 ? STYLE_ORDINARY : STYLE_EXTREME};
        struct attention_case ordered = c;
        ordered.n_rows = ISO_MAX(c.n_rows, c.n_sessions);
        run(&r, &ordered, true, true);
    }
    run(&r, &(struct attention_case){.d = 64, .group = 64, .n_kv = 1, .n_sessions = 1, .n_rows = 2, .last = 66}, true, true);
}

/* A prompt chunk over page and segment edges, and one with a window. */
static void test_prompts(void **state)
{
    (void)state;
    struct check_rng r = check_rng(23);
    for (uint32_t last = 63; last <= 65; last++) {
        run(&r, &(struct attention_case){.d = 64, .group = 1, .n_kv = 1, .n_sessions = 1, .n_rows = last + 1, .last = last}, true,
            false);
    }
    for (uint32_t window = 0; window <= 100; window += 100) {
        run(&r, &(struct attention_case){.d = 64, .group = 3, .n_kv = 2, .n_sessions = 1, .window = window, .n_rows = 70,
                                         .last = 540}, true, false);
        run(&r, &(struct attention_case){.d = 128, .group = 2, .n_kv = 1, .n_sessions = 4, .window = window, .n_rows = 40,
                                         .last = 520}, true, false);
    }
}

/* 3,000 positions. */
static void test_long(void **state)
{
    (void)state;
    struct check_rng r = check_rng(24);
    for (uint32_t style = 0; style < STYLES; style++) {
        run(&r, &(struct attention_case){.d = style % 2 ? 64 : 128, .group = 3, .n_kv = 1, .n_sessions = 2, .n_rows = 5,
                                         .last = 2999, .style = (enum style)style}, style == 0, true);
    }
    run(&r, &(struct attention_case){.d = 256, .group = 1, .n_kv = 1, .n_sessions = 1, .window = 1024, .n_rows = 3, .last = 3000},
        true, true);
}

/* A row that sees no key gives zeros. */
static void test_blind_row(void **state)
{
    (void)state;
    struct check_rng r = check_rng(25);
    const struct attention_case c = {.d = 64, .group = 2, .n_kv = 1, .n_sessions = 1, .n_rows = 3, .last = 100};
    struct attention_data t = make_data(&r, &c);
    t.rows[1].first_visible[1] = t.rows[1].position + 1;
    struct place bind[ISO_METAL_ATTENTION_BINDINGS] = {
        place_new(t.q_codes, t.n_queries * c.d * 2), place_new(t.q_scales, t.n_queries * 4),
        place_new(t.rows, c.n_rows * sizeof(*t.rows)), place_new(NULL, t.n_queries * c.d * 4),
        place_new(t.pages, t.pages_len), place_new(t.tables, (size_t)t.table_len * 4)};
    const struct iso_metal_attention a = {.n_heads = 2, .n_kv_heads = 1, .n_rows = 3, .table_len = t.table_len,
                                          .layer_class = 1, .c = t.c};
    for (uint32_t i = 0; i < c.n_rows; i++) {
        for (uint32_t h = 0; i != 1 && h < 2; h++) reference(&t, &c, i, h);
    }
    memset(t.want + 2 * c.d, 0, 2 * c.d * sizeof(float));
    gpu_record(&(struct gpu_launch){.pipeline = kernel_of("iso_attention_tiles", &c, false), .groups = {1, 1, 1},
                                            .threads = ISO_METAL_ATTENTION_TILE_THREADS,
                                            .bytes = ISO_METAL_ATTENTION_TILE_BYTES, .args = &a, .args_len = sizeof(a)}, bind,
                   ISO_METAL_ATTENTION_BINDINGS);
    gpu_wait();
    compare(bind, &t, &c, "tiles, blind");
    run_split(bind, &c, a, 1, true);
    compare(bind, &t, &c, "split, blind");
    run_split(bind, &c, a, 2, false);
    compare(bind, &t, &c, "split and merge, blind");
    for (size_t i = 0; i < ISO_METAL_ATTENTION_BINDINGS; i++) place_free(&bind[i]);
    free_data(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dims), cmocka_unit_test(test_groups),    cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_long), cmocka_unit_test(test_blind_row),
    };
    return cmocka_run_group_tests(tests, gpu_open, gpu_close);
}
