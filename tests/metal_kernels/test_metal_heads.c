/* SPDX-License-Identifier: MIT
 * test_metal_heads.c - Metal's head operations into codes and pages, bit for bit against the reference.
 */
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
#include "arith/rope.h"
#include "base/mem.h"
#include "kernels/check.h"
#include "kernels/heads/heads.h"
#include "kernels/heads/heads_metal.h"
#include "kernels/inputs.h"
#include "kernels/shared/ops.h"
#include "metal_kernels/gpu.h"

extern const struct iso_heads_kernels iso_heads_kernels_ref;

#define FAULT_Q 11u
#define FAULT_K 12u
#define FAULT_V 13u
#define TABLE_LEN 50 /* 3,200 positions */

/* One call. */
struct heads_case {
    uint32_t d, n_rot, n_rows, n_kv, group, n_sessions;
    enum iso_rope_pairs pairs;
    bool q, kv, q_norm, k_norm, q_tap, k_tap;
    enum input_kind kind; /* of one row of q, k and v each */
};

/* Its inputs, what the reference makes of them, and what it noted. */
struct heads_data {
    float *q, *k, *v, *q_norm, *k_norm, *rope;
    struct iso_row_desc *rows;
    uint32_t *tables;
    int16_t *q_codes;
    float *q_scales, *q_tap, *k_tap;
    uint8_t *pages;
    size_t q_len, k_len, pages_len; /* floats, floats, bytes */
    uint32_t most[3];               /* of q, k, v */
};

static float *filled(struct check_rng *r, size_t n_rows, size_t n, enum input_kind kind)
{
    float *x = iso_xalloc(n_rows * n, sizeof(*x));
    const size_t odd = (size_t)check_int(r, 0, (int64_t)n_rows - 1);
    for (size_t i = 0; i < n_rows; i++) input_fill(r, x + i * n, n, i == odd ? kind : INPUT_ORDINARY);
    return x;
}

/* Rows of the step: runs of positions of the sessions, some over the edge of a page. */
static void fill_rows(struct check_rng *r, const struct heads_case *c, struct heads_data *d)
{
    uint32_t at = 0;
    for (uint32_t s = 0; s < c->n_sessions; s++) {
        const uint32_t left = c->n_rows - at, n = s + 1 == c->n_sessions ? left : left / (c->n_sessions - s);
        const uint32_t first = (uint32_t)check_int(r, 0, TABLE_LEN * 64 - 1 - (int64_t)c->n_rows);
        for (uint32_t i = 0; i < n; i++, at++) d->rows[at] = (struct iso_row_desc){.session = s, .position = first + i};
    }
    uint64_t turns[128];
    for (uint32_t k = 0; k < c->n_rot / 2; k++) turns[k] = iso_rope_turns(10000.0, k, c->n_rot, 1.0);
    for (uint32_t i = 0; i < c->n_rows; i++) {
        iso_rope_row(d->rope + (size_t)i * c->n_rot, turns, c->n_rot / 2, d->rows[i].position);
    }
    const uint32_t n_slots = c->n_sessions * TABLE_LEN;
    for (uint32_t i = 0; i < n_slots; i++) d->tables[i] = i;
    for (uint32_t i = n_slots - 1; i > 0; i--) {
        const uint32_t j = (uint32_t)check_int(r, 0, i), t = d->tables[i];
        d->tables[i] = d->tables[j];
        d->tables[j] = t;
    }
}

static struct heads_data make_data(struct check_rng *r, const struct heads_case *c)
{
    struct heads_data d = {0};
    const size_t heads = (size_t)c->n_kv * c->group;
    d.q_len = c->n_rows * heads * c->d;
    d.k_len = (size_t)c->n_rows * c->n_kv * c->d;
    d.pages_len = (size_t)c->n_sessions * TABLE_LEN * c->n_kv * iso_page_bytes(c->d);
    d.q = filled(r, c->n_rows * heads, c->d, c->kind);
    d.k = filled(r, (size_t)c->n_rows * c->n_kv, c->d, c->kind);
    d.v = filled(r, (size_t)c->n_rows * c->n_kv, c->d, c->kind);
    d.q_norm = filled(r, 1, c->d, INPUT_ORDINARY);
    d.k_norm = filled(r, 1, c->d, INPUT_ORDINARY);
    d.rope = iso_xalloc((size_t)c->n_rows * c->n_rot + 2, 4);
    d.rows = iso_xalloc(c->n_rows, sizeof(*d.rows));
    d.tables = iso_xalloc((size_t)c->n_sessions * TABLE_LEN, 4);
    d.q_codes = iso_xalloc(d.q_len, 2);
    d.q_scales = iso_xalloc(c->n_rows * heads, 4);
    d.q_tap = iso_xalloc(d.q_len, 4);
    d.k_tap = iso_xalloc(d.k_len, 4);
    d.pages = iso_xalloc(d.pages_len, 1);
    check_fill(r, d.pages, d.pages_len); /* what is there already must stay */
    fill_rows(r, c, &d);
    return d;
}

static void free_data(struct heads_data *d)
{
    void *const all[] = {d->q,    d->k,      d->v,       d->q_norm,   d->k_norm, d->rope, d->rows,
                         d->tables, d->q_codes, d->q_scales, d->q_tap, d->k_tap,  d->pages};
    for (size_t i = 0; i < ISO_COUNT(all); i++) free(all[i]);
}

static void reference(struct heads_data *d, const struct heads_case *c, float eps, float inv_n)
{
    const size_t heads = (size_t)c->n_kv * c->group, bytes = iso_page_bytes(c->d);
    const struct iso_heads_args qa = {c->d, c->n_rot, c->pairs, c->q_norm ? d->q_norm : NULL, eps, inv_n};
    const struct iso_heads_args ka = {c->d, c->n_rot, c->pairs, c->k_norm ? d->k_norm : NULL, eps, inv_n};
    for (size_t i = 0; i < c->n_rows; i++) {
        const float *cs = d->rope + i * c->n_rot;
        for (size_t h = 0; c->q && h < heads; h++) {
            const size_t at = (i * heads + h) * c->d, to = (h / c->group * c->n_rows + i) * c->group + h % c->group;
            const uint32_t m = iso_heads_kernels_ref.q(d->q_codes + to * c->d, d->q_scales + to, d->q_tap + at, d->q + at, cs, &qa);
            d->most[0] = ISO_MAX(d->most[0], m);
        }
        const struct iso_row_desc *row = &d->rows[i];
        const size_t slot = d->tables[row->session * TABLE_LEN + row->position / 64];
        for (size_t h = 0; c->kv && h < c->n_kv; h++) {
            uint8_t *page = d->pages + (slot * c->n_kv + h) * bytes;
            const size_t at = (i * c->n_kv + h) * c->d;
            const uint32_t k = iso_heads_kernels_ref.k(page, row->position % 64, d->k_tap + at, d->k + at, cs, &ka);
            const uint32_t v = iso_heads_kernels_ref.v(page, row->position % 64, d->v + at, c->d);
            d->most[1] = ISO_MAX(d->most[1], k);
            d->most[2] = ISO_MAX(d->most[2], v);
        }
    }
}

static void bind_all(struct place *bind, const struct heads_data *d, const struct heads_case *c)
{
    const uint32_t zero = 0;
    if (c->q) {
        bind[ISO_METAL_HEADS_Q] = place_new(d->q, d->q_len * 4);
        bind[ISO_METAL_HEADS_Q_CODES] = place_new(NULL, d->q_len * 2);
        bind[ISO_METAL_HEADS_Q_SCALES] = place_new(NULL, d->q_len / c->d * 4);
        if (c->q_tap) bind[ISO_METAL_HEADS_Q_TAP] = place_new(NULL, d->q_len * 4);
    }
    if (c->kv) {
        bind[ISO_METAL_HEADS_K] = place_new(d->k, d->k_len * 4);
        bind[ISO_METAL_HEADS_V] = place_new(d->v, d->k_len * 4);
        bind[ISO_METAL_HEADS_PAGES] = place_new(d->pages, d->pages_len);
        bind[ISO_METAL_HEADS_TABLES] = place_new(d->tables, (size_t)c->n_sessions * TABLE_LEN * 4);
        bind[ISO_METAL_HEADS_ROWS] = place_new(d->rows, c->n_rows * sizeof(*d->rows));
        if (c->k_tap) bind[ISO_METAL_HEADS_K_TAP] = place_new(NULL, d->k_len * 4);
    }
    if (c->q_norm) bind[ISO_METAL_HEADS_Q_NORM] = place_new(d->q_norm, c->d * 4);
    if (c->k_norm) bind[ISO_METAL_HEADS_K_NORM] = place_new(d->k_norm, c->d * 4);
    if (c->pairs != ISO_ROPE_NONE) bind[ISO_METAL_HEADS_ROPE] = place_new(d->rope, (size_t)c->n_rows * c->n_rot * 4);
    bind[ISO_METAL_HEADS_FAULT] = place_new(&zero, 4);
}

/* Infinity, NaN and what a norm makes NaN of: only the fault counts, codes of NaN are whatever they are. */
static void compare(const struct place *bind, const struct heads_data *d, const struct heads_case *c, const char *what)
{
    const uint32_t fault = *(const uint32_t *)bind[ISO_METAL_HEADS_FAULT].host;
    const bool bad[3] = {d->most[0] >= ISO_BITS_2P40, d->most[1] >= ISO_BITS_2P40, d->most[2] >= ISO_BITS_2P40};
    const bool fits = (fault == 0 && !bad[0] && !bad[1] && !bad[2]) || (fault == FAULT_Q && bad[0]) ||
                      (fault == FAULT_K && bad[1]) || (fault == FAULT_V && bad[2]);
    if (!fits) fail_msg("%s: fault word %u, largest %#x %#x %#x", what, fault, d->most[0], d->most[1], d->most[2]);
    if (c->kind >= INPUT_DOMAIN) return;
    if (c->q) {
        check_bytes(what, bind[ISO_METAL_HEADS_Q_CODES].host, d->q_codes, d->q_len * 2);
        check_bytes(what, bind[ISO_METAL_HEADS_Q_SCALES].host, d->q_scales, d->q_len / c->d * 4);
        if (c->q_tap) check_bits_f32(what, bind[ISO_METAL_HEADS_Q_TAP].host, c->d, d->q_tap, c->d, d->q_len / c->d, c->d);
    }
    if (!c->kv) return;
    check_bytes(what, bind[ISO_METAL_HEADS_PAGES].host, d->pages, d->pages_len);
    if (c->k_tap) check_bits_f32(what, bind[ISO_METAL_HEADS_K_TAP].host, c->d, d->k_tap, c->d, d->k_len / c->d, c->d);
}

static void run(struct check_rng *r, const struct heads_case *c)
{
    struct heads_data d = make_data(r, c);
    const uint32_t heads = c->n_kv * c->group, items = iso_metal_heads_items(c->q ? heads : 0, c->kv ? c->n_kv : 0);
    const struct iso_metal_heads a = {.n_heads = heads, .n_kv_heads = c->n_kv, .n_rot = c->n_rot, .n_rows = c->n_rows,
                                      .table_len = TABLE_LEN, .eps = 1e-6f, .inv_n = 1.0f / (float)c->d, .fault_q = FAULT_Q,
                                      .fault_k = FAULT_K, .fault_v = FAULT_V};
    struct place bind[ISO_METAL_HEADS_BINDINGS] = {{0}};
    bind_all(bind, &d, c);
    reference(&d, c, a.eps, a.inv_n);
    const struct iso_metal_constant constants[] = {
        GPU_U32(ISO_METAL_HEADS_DIM, c->d), GPU_BOOL(ISO_METAL_HEADS_HAS_Q, c->q),
        GPU_BOOL(ISO_METAL_HEADS_HAS_KV, c->kv), GPU_BOOL(ISO_METAL_HEADS_HAS_Q_NORM, c->q_norm),
        GPU_BOOL(ISO_METAL_HEADS_HAS_K_NORM, c->k_norm), GPU_U32(ISO_METAL_HEADS_PAIRS, (uint32_t)c->pairs),
        GPU_BOOL(ISO_METAL_HEADS_HAS_Q_TAP, c->q_tap), GPU_BOOL(ISO_METAL_HEADS_HAS_K_TAP, c->k_tap)};
    const struct gpu_launch l = {
        .pipeline = gpu_kernel("iso_heads", constants, 8),
        .groups = {(c->n_rows * items + ISO_METAL_HEADS_GROUP - 1) / ISO_METAL_HEADS_GROUP, 1, 1},
        .threads = ISO_METAL_HEADS_THREADS, .bytes = ISO_METAL_HEADS_BYTES, .args = &a, .args_len = sizeof(a)};
    gpu_record(&l, bind, ISO_METAL_HEADS_BINDINGS);
    gpu_wait();
    char what[200];
    (void)snprintf(what, sizeof(what), "heads d %u rot %u pairs %d rows %u kv %u group %u sessions %u, q %d kv %d norm %d %d, %s",
                   c->d, c->n_rot, (int)c->pairs, c->n_rows, c->n_kv, c->group, c->n_sessions, c->q, c->kv, c->q_norm,
                   c->k_norm, input_kind_name(c->kind));
    compare(bind, &d, c, what);
    for (size_t i = 0; i < ISO_METAL_HEADS_BINDINGS; i++) place_free(&bind[i]);
    free_data(&d);
}

static struct heads_case random_case(struct check_rng *r, uint32_t d, enum input_kind kind)
{
    struct heads_case c = {.d = d, .kind = kind, .n_kv = (uint32_t)check_int(r, 1, 3), .group = (uint32_t)check_int(r, 1, 5)};
    c.n_sessions = (uint32_t)check_int(r, 1, 3);
    c.n_rows = c.n_sessions + (uint32_t)check_int(r, 0, 3);
    c.pairs = (enum iso_rope_pairs)check_int(r, 0, 2);
    if (c.pairs != ISO_ROPE_NONE) c.n_rot = check_int(r, 0, 1) ? d : d / 8 * 4;
    const uint64_t bits = check_next(r) >> 24;
    c.q = (bits & 3) != 0; /* both more often than one of them */
    c.kv = !c.q || (bits >> 2 & 3) != 0;
    c.q_norm = c.q && (bits >> 4 & 1);
    c.k_norm = c.kv && (bits >> 5 & 1);
    c.q_tap = c.q && (bits >> 6 & 1);
    c.k_tap = c.kv && (bits >> 7 & 1);
    return c;
}

static void test_heads(void **state)
{
    (void)state;
    static const uint32_t dims[] = {8, 16, 24, 32, 40, 64, 72, 80, 96, 112, 128, 160, 192, 224, 256};
    struct check_rng r = check_rng(11);
    for (size_t i = 0; i < ISO_COUNT(dims); i++) {
        for (uint32_t k = 0; k < INPUT_KINDS; k++) {
            const struct heads_case c = random_case(&r, dims[i], (enum input_kind)k);
            run(&r, &c);
        }
    }
}

/* 64 rows fill a page; bytes of neighbours are written by different simdgroups. */
static void test_whole_page(void **state)
{
    (void)state;
    struct check_rng r = check_rng(12);
    const struct heads_case c = {.d = 64, .n_rot = 64, .n_rows = 70, .n_kv = 1, .group = 2, .n_sessions = 1,
                                 .pairs = ISO_ROPE_HALVES, .q = true, .kv = true, .q_norm = true, .k_norm = true,
                                 .q_tap = true, .k_tap = true};
    run(&r, &c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_heads), cmocka_unit_test(test_whole_page)};
    return cmocka_run_group_tests(tests, gpu_open, gpu_close);
}
