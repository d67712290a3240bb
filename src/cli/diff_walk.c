/* SPDX-License-Identifier: MIT
 * diff_walk.c - walks two sides through the graph and keeps where they differ. */
#include <stdlib.h>
#include <string.h>

#include "arith/page.h"
#include "base/mem.h"
#include "cli/diff_side.h"
#include "cli/interrupt.h"

struct walk {
    struct iso_diff_result *r;
    const struct iso_diff_shape *shape;
    const struct iso_diff_options *o;
    struct iso_diff_side *side[2];
};

/* --- tensors ----------------------------------------------------------------------------------- */

/* Bits are compared, not numbers: -0 is not +0, and a NaN equals itself. */
static void compare_row(struct walk *w, size_t t, size_t position, const float *a, const float *b)
{
    const size_t width = w->shape->tensor[t].width;
    if (memcmp(a, b, width * sizeof(*a)) == 0) return;
    struct iso_diff_stat *s = &w->r->stat[t];
    for (size_t i = 0; i < width; i++) {
        const uint32_t x = iso_as_u32(a[i]), y = iso_as_u32(b[i]);
        if (x == y) continue;
        if (s->n_different++ > 0) continue;
        *s = (struct iso_diff_stat){1, (uint32_t)position, 0, (uint32_t)i, {x, y}};
    }
    s->last_position = (uint32_t)position;
    w->r->position[position] = 1;
}

static enum iso_err compare_tensor(struct walk *w, size_t t, size_t at, size_t n)
{
    for (int i = 0; i < 2; i++) ISO_TRY(iso_diff_side_tensor(w->side[i], t, at, n));
    for (size_t row = 0; row < n; row++) {
        const float *v[2] = {NULL, NULL};
        for (int i = 0; i < 2; i++) ISO_TRY(iso_diff_side_row(&v[i], w->side[i], row));
        compare_row(w, t, at + row, v[0], v[1]);
    }
    for (int i = 0; i < 2; i++) iso_diff_side_release(w->side[i]);
    return ISO_OK;
}

static enum iso_err compare_tensors(struct walk *w)
{
    bool dump = false;
    for (int i = 0; i < 2; i++) dump |= iso_diff_kind(w->o->spec[i]) == ISO_DIFF_DUMP;
    w->r->n_tensors = w->shape->n_tensors - dump; /* a dump has no logits */
    for (int i = 0; i < 2; i++) ISO_TRY(iso_diff_side_start(w->side[i], w->r->n_tensors));
    for (size_t at = 0; at < w->o->n; at += w->o->chunk) {
        const size_t n = ISO_MIN((size_t)w->o->chunk, w->o->n - at);
        for (size_t t = 0; t < w->r->n_tensors; t++) {
            if (iso_interrupted()) ISO_FAIL(ISO_E_CANCELLED, "cancelled at position %zu", at);
            ISO_TRY(compare_tensor(w, t, at, n));
        }
    }
    return ISO_OK;
}

/* --- pages ------------------------------------------------------------------------------------- */

/* Page by page, where both sides hold it. One side may have a position more than the other (a
 * producer leaves the last one to its consumer): such slots are not compared. */
static enum iso_err compare_pages(struct walk *w)
{
    uint32_t n[2] = {0, 0};
    for (int i = 0; i < 2; i++) ISO_TRY(iso_diff_side_finish(w->side[i], &n[i]));
    const uint32_t end = ISO_MIN(n[0], n[1]);
    const uint32_t n_pages = (end + ISO_PAGE_POSITIONS - 1) / ISO_PAGE_POSITIONS;
    struct iso_diff_page at = {0};
    for (at.layer = 0; at.layer < w->shape->n_layers; at.layer++) {
        for (at.head = 0; at.head < w->shape->n_kv_heads; at.head++) {
            for (at.page = 0; at.page < n_pages; at.page++) {
                const uint8_t *p[2] = {NULL, NULL};
                for (int i = 0; i < 2; i++) {
                    ISO_TRY(iso_diff_side_page(&p[i], w->side[i], at.layer, at.head, at.page));
                }
                if (p[0] == NULL || p[1] == NULL) continue;
                const uint32_t used = ISO_MIN(end - at.page * ISO_PAGE_POSITIONS, (uint32_t)ISO_PAGE_POSITIONS);
                iso_diff_pages(w->r, &at, p[0], p[1], w->shape->head_dim,
                               n[0] == n[1] ? ISO_PAGE_POSITIONS : used);
            }
        }
    }
    if (w->r->n_pages == 0) ISO_FAIL(ISO_E_ARG, "no page is held by both sides");
    return ISO_OK;
}

/* --- all ---------------------------------------------------------------------------------------- */

static enum iso_err walk_all(struct walk *w)
{
    for (unsigned i = 0; i < 2; i++) ISO_TRY(iso_diff_side_open(&w->side[i], i, w->shape, w->o));
    if (w->r->has_tensors) {
        ISO_TRY(compare_tensors(w));
    } else {
        if (w->o->n < 2) ISO_FAIL(ISO_E_ARG, "a producer computes all ids but the last: at least 2");
        for (int i = 0; i < 2; i++) ISO_TRY(iso_diff_side_handoff(w->side[i]));
    }
    return compare_pages(w);
}

enum iso_err iso_diff_run(struct iso_diff_result *out, const struct iso_diff_shape *shape,
                          const struct iso_diff_options *o)
{
    *out = (struct iso_diff_result){.n = o->n, .has_tensors = true};
    out->stat = iso_xalloc(shape->n_tensors, sizeof(*out->stat));
    out->position = iso_xalloc(o->n, 1);
    for (int i = 0; i < 2; i++) {
        if (iso_diff_kind(o->spec[i]) == ISO_DIFF_PRODUCER) out->has_tensors = false;
    }
    struct walk w = {.r = out, .shape = shape, .o = o};
    const enum iso_err err = walk_all(&w);
    /* Both must have been told to stop: one may be waiting for the other's tensor to be compared. */
    for (int i = 0; i < 2; i++) iso_diff_side_close(w.side[i]);
    return err;
}

void iso_diff_result_deinit(struct iso_diff_result *r)
{
    free(r->stat);
    free(r->position);
    *r = (struct iso_diff_result){0};
}

size_t iso_diff_first(const struct iso_diff_result *r)
{
    size_t t = 0;
    while (t < r->n_tensors && r->stat[t].n_different == 0) t++;
    return t;
}

bool iso_diff_equal(const struct iso_diff_result *r)
{
    return iso_diff_first(r) == r->n_tensors && r->n_pages_different == 0;
}

static int64_t on_a_line(uint32_t bits)
{
    const int64_t magnitude = bits & 0x7fffffffu;
    return bits >> 31 ? -magnitude : magnitude;
}

int64_t iso_diff_ulp(uint32_t a, uint32_t b)
{
    const uint32_t infinite = 0x7f800000u;
    if ((a & 0x7fffffffu) > infinite || (b & 0x7fffffffu) > infinite) return -1;
    return llabs(on_a_line(a) - on_a_line(b));
}
