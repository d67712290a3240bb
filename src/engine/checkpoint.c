/* SPDX-License-Identifier: MIT
 * checkpoint.c - positions to which a session can go back although its window pages have expired.
 *
 * Full layers keep every page, so that a rewind reaches any position. Window layers give pages back as the
 * window moves on. A checkpoint holds references to the pages that the next position sees, and to one page
 * below them. A page that is written on behind a checkpoint is copied first, as any shared page is.
 */
#include <stdlib.h>
#include <string.h>

#include "arith/page.h"
#include "base/mem.h"
#include "engine/engine.h"

#define P ISO_PAGE_POSITIONS
#define C ISO_KV_WINDOW

uint32_t iso_checkpoint_pages(uint32_t window)
{
    return (window + P - 1) / P + 2; /* the window cut at both ends, and the page below */
}

enum iso_err iso_checkpoints_init(struct iso_session *s)
{
    struct iso_engine *e = s->e;
    if (e->checkpoint_pages == 0) return ISO_OK;
    const uint32_t n = e->n_checkpoints * e->checkpoint_pages;
    ISO_TRY(iso_kv_pool_reserve(&e->pool[C], n));
    s->checkpoint = iso_xalloc(e->n_checkpoints, sizeof(*s->checkpoint));
    for (uint32_t i = 0; i < e->n_checkpoints; i++) {
        s->checkpoint[i].slots = iso_xalloc(e->checkpoint_pages, sizeof(uint32_t));
    }
    return ISO_OK;
}

static void release(struct iso_session *s, const struct iso_checkpoint *c)
{
    for (uint32_t p = 0; p < c->end_page - c->first_page; p++) iso_kv_pool_unref(&s->e->pool[C], c->slots[p]);
}

/* Gives up the checkpoints from index i on. */
static void drop_from(struct iso_session *s, uint32_t i)
{
    for (uint32_t k = i; k < s->n_checkpoints; k++) release(s, &s->checkpoint[k]);
    s->n_checkpoints = ISO_MIN(s->n_checkpoints, i);
}

void iso_checkpoints_drop(struct iso_session *s, uint32_t n)
{
    uint32_t i = 0;
    while (i < s->n_checkpoints && s->checkpoint[i].n <= n) i++;
    drop_from(s, i);
}

void iso_checkpoints_deinit(struct iso_session *s)
{
    struct iso_engine *e = s->e;
    if (s->checkpoint == NULL) return;
    drop_from(s, 0);
    iso_kv_pool_unreserve(&e->pool[C], e->n_checkpoints * e->checkpoint_pages);
    for (uint32_t i = 0; i < e->n_checkpoints; i++) free(s->checkpoint[i].slots);
    free(s->checkpoint);
}

/* Room for one more: the one furthest back makes it. */
static void drop_first(struct iso_session *s)
{
    const struct iso_checkpoint first = s->checkpoint[0];
    release(s, &first);
    s->n_checkpoints--;
    memmove(s->checkpoint, s->checkpoint + 1, s->n_checkpoints * sizeof(first));
    s->checkpoint[s->n_checkpoints] = first; /* its memory, for the next one */
}

void iso_checkpoint_take(struct iso_session *s)
{
    struct iso_engine *e = s->e;
    if (s->checkpoint == NULL || s->n == 0) return;
    if (s->n_checkpoints > 0 && s->checkpoint[s->n_checkpoints - 1].n == s->n) return;
    if (s->n_checkpoints == e->n_checkpoints) drop_first(s);
    struct iso_checkpoint *c = &s->checkpoint[s->n_checkpoints++];
    const uint32_t seen = iso_engine_first_visible(e, C, s->n) / P;
    c->n = s->n;
    c->first_page = ISO_MAX(s->first_page[C], seen > 0 ? seen - 1 : 0);
    c->end_page = s->end_page[C];
    const uint32_t *table = iso_engine_table(e, C, s->index);
    for (uint32_t p = c->first_page; p < c->end_page; p++) {
        c->slots[p - c->first_page] = table[p];
        iso_kv_pool_ref(&e->pool[C], table[p]);
    }
}

void iso_session_checkpoint(iso_session *s)
{
    pthread_mutex_lock(&s->e->lock);
    iso_checkpoint_take(s);
    pthread_mutex_unlock(&s->e->lock);
}

/* How far towards position p a rewind comes from c; 0 when c does not help. */
static uint32_t reach(const struct iso_session *s, const struct iso_checkpoint *c, uint32_t p)
{
    const uint32_t q = ISO_MIN(p, c->n);
    return iso_engine_first_visible(s->e, C, q) / P >= c->first_page ? q : 0;
}

uint32_t iso_checkpoint_restore(struct iso_session *s, uint32_t p)
{
    struct iso_engine *e = s->e;
    const struct iso_checkpoint *best = NULL;
    uint32_t at = 0;
    for (uint32_t i = 0; i < s->n_checkpoints; i++) {
        const uint32_t q = reach(s, &s->checkpoint[i], p);
        if (q <= at) continue;
        best = &s->checkpoint[i];
        at = q;
    }
    if (best == NULL) return 0;
    uint32_t *table = iso_engine_table(e, C, s->index);
    for (uint32_t i = s->first_page[C]; i < s->end_page[C]; i++) {
        iso_kv_pool_unref(&e->pool[C], table[i]);
        table[i] = ISO_NO_SLOT;
    }
    s->first_page[C] = best->first_page;
    s->end_page[C] = best->end_page;
    for (uint32_t i = best->first_page; i < best->end_page; i++) {
        table[i] = best->slots[i - best->first_page];
        iso_kv_pool_ref(&e->pool[C], table[i]);
    }
    return at;
}
