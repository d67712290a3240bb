/* SPDX-License-Identifier: MIT
 * session.c - timelines: their ids, their page tables, growing, expiring and rewinding. */
#include <assert.h>
#include <stdlib.h>

#include "arith/page.h"
#include "base/mem.h"
#include "engine/engine.h"

#define P ISO_PAGE_POSITIONS

uint32_t *iso_engine_table(const struct iso_engine *e, uint32_t c, uint32_t index)
{
    uint32_t *t = e->dev->vt->host(e->dev, e->tables[c]);
    return t + (size_t)index * e->max_pages;
}

uint32_t iso_engine_first_visible(const struct iso_engine *e, uint32_t c, uint32_t p)
{
    const uint32_t w = e->model->hp.window;
    return c == ISO_KV_WINDOW && p + 1 > w ? p + 1 - w : 0;
}

static uint32_t pages_of(uint32_t n_positions)
{
    return (n_positions + P - 1) / P;
}

static uint32_t need_pages(const struct iso_engine *e, uint32_t c, uint32_t n_ctx)
{
    if (e->pool[c].n_layers == 0) return 0;
    const uint32_t all = pages_of(n_ctx);
    return c == ISO_KV_WINDOW ? ISO_MIN(all, e->window_pages) : all;
}

static void unreserve(struct iso_session *s)
{
    iso_checkpoints_deinit(s);
    for (uint32_t c = 0; c < ISO_KV_CLASSES; c++) {
        if (s->reserved[c]) iso_kv_pool_unreserve(&s->e->pool[c], s->reserved[c]);
    }
}

static enum iso_err reserve(struct iso_session *s)
{
    for (uint32_t c = 0; c < ISO_KV_CLASSES; c++) {
        const uint32_t n = need_pages(s->e, c, s->n_ctx);
        if (n == 0) continue;
        const enum iso_err err = iso_kv_pool_reserve(&s->e->pool[c], n);
        if (err != ISO_OK) {
            unreserve(s);
            return err;
        }
        s->reserved[c] = n;
    }
    const enum iso_err err = iso_checkpoints_init(s);
    if (err != ISO_OK) unreserve(s);
    return err;
}

static enum iso_err new_locked(struct iso_session *s)
{
    struct iso_engine *e = s->e;
    uint32_t i = 0;
    while (i < e->info.n_sessions && e->sessions[i] != NULL) i++;
    if (i == e->info.n_sessions) {
        ISO_FAIL(ISO_E_LIMIT, "all %u sessions are in use", e->info.n_sessions);
    }
    ISO_TRY(reserve(s));
    s->index = i;
    e->sessions[i] = s;
    for (uint32_t c = 0; c < ISO_KV_CLASSES; c++) {
        uint32_t *table = iso_engine_table(e, c, i);
        for (uint32_t p = 0; p < e->max_pages; p++) table[p] = ISO_NO_SLOT;
    }
    return ISO_OK;
}

enum iso_err iso_session_new(iso_session **out, iso_engine *e, uint32_t n_ctx)
{
    if (n_ctx == 0) n_ctx = e->info.n_ctx;
    if (n_ctx > e->info.n_ctx) {
        ISO_FAIL(ISO_E_ARG, "a session of %u tokens, the engine has room for %u", n_ctx,
                 e->info.n_ctx);
    }
    struct iso_session *s = iso_xalloc(1, sizeof(*s));
    s->e = e;
    s->n_ctx = n_ctx;
    s->logits_row = UINT32_MAX;
    s->ids = iso_xalloc(n_ctx, sizeof(*s->ids));
    pthread_mutex_lock(&e->lock);
    const enum iso_err err = new_locked(s);
    pthread_mutex_unlock(&e->lock);
    if (err != ISO_OK) {
        free(s->ids);
        free(s);
        return err;
    }
    *out = s;
    return ISO_OK;
}

void iso_session_free(iso_session *s)
{
    if (s == NULL) return;
    struct iso_engine *e = s->e;
    pthread_mutex_lock(&e->lock);
    iso_session_cut(s, 0);
    unreserve(s);
    e->sessions[s->index] = NULL;
    pthread_mutex_unlock(&e->lock);
    free(s->ids);
    free(s);
}

iso_engine *iso_session_engine(const iso_session *s)
{
    return s->e;
}

uint32_t iso_session_position(const iso_session *s)
{
    return s->n;
}

uint32_t iso_session_n_ctx(const iso_session *s)
{
    return s->n_ctx;
}

const int32_t *iso_session_ids(const iso_session *s)
{
    return s->ids;
}

uint32_t iso_session_common(const iso_session *s, const int32_t *ids, size_t n)
{
    uint32_t i = 0;
    while (i < s->n && i < n && s->ids[i] == ids[i]) i++;
    return i;
}

/* The page that is written next must be this session's own: a shared one is copied first. */
static enum iso_err own_page(struct iso_session *s, uint32_t c, uint32_t *slot)
{
    struct iso_kv_pool *pool = &s->e->pool[c];
    if (pool->count[*slot] == 1) return ISO_OK;
    const uint32_t copy = iso_kv_pool_take(pool);
    if (copy == ISO_NO_SLOT) ISO_FAIL(ISO_E_LIMIT, "no page left to copy a shared one");
    iso_kv_pool_copy(pool, copy, *slot);
    iso_pages_zero_tail(s->e, c, copy, s->n % P);
    iso_kv_pool_unref(pool, *slot);
    *slot = copy;
    return ISO_OK;
}

enum iso_err iso_session_grow(struct iso_session *s, uint32_t n)
{
    struct iso_engine *e = s->e;
    const uint32_t end = pages_of(s->n + n);
    for (uint32_t c = 0; c < ISO_KV_CLASSES; c++) {
        struct iso_kv_pool *pool = &e->pool[c];
        if (pool->n_layers == 0) continue;
        uint32_t *table = iso_engine_table(e, c, s->index);
        /* Beyond its promise a session would take what others were promised. */
        const uint32_t want = ISO_MAX(end, s->end_page[c]) - s->first_page[c] + s->staged[c];
        if (want > s->reserved[c] + s->extra[c]) {
            ISO_FAIL(ISO_E_LIMIT, "%u KV pages needed (%u of them staged), %u are promised", want,
                     s->staged[c], s->reserved[c] + s->extra[c]);
        }
        if (s->n % P != 0) ISO_TRY(own_page(s, c, &table[s->n / P]));
        while (s->end_page[c] < end) {
            const uint32_t slot = iso_kv_pool_take(pool);
            if (slot == ISO_NO_SLOT) {
                ISO_FAIL(ISO_E_LIMIT, "no KV page left: %u in the pool", pool->n_slots);
            }
            table[s->end_page[c]++] = slot;
        }
    }
    return ISO_OK;
}

static void cut_class(struct iso_session *s, uint32_t c, uint32_t n)
{
    struct iso_engine *e = s->e;
    struct iso_kv_pool *pool = &e->pool[c];
    uint32_t *table = iso_engine_table(e, c, s->index);
    const uint32_t end = ISO_MAX(pages_of(n), s->first_page[c]);
    while (s->end_page[c] > end) {
        const uint32_t p = --s->end_page[c];
        iso_kv_pool_unref(pool, table[p]);
        table[p] = ISO_NO_SLOT;
    }
    if (n == 0) s->first_page[c] = s->end_page[c] = 0;
    const uint32_t last = n / P;
    if (n % P == 0 || last < s->first_page[c] || last >= s->end_page[c]) return;
    if (pool->count[table[last]] > 1) return; /* shared: copied and cut when it is written */
    iso_pages_zero_tail(e, c, table[last], n % P);
}

void iso_session_cut(struct iso_session *s, uint32_t n)
{
    for (uint32_t c = 0; c < ISO_KV_CLASSES; c++) {
        if (s->e->pool[c].n_layers > 0) cut_class(s, c, n);
    }
    s->n = n;
}

void iso_session_expire(struct iso_session *s)
{
    struct iso_engine *e = s->e;
    const uint32_t c = ISO_KV_WINDOW;
    if (e->keep_expired || e->pool[c].n_layers == 0) return;
    uint32_t *table = iso_engine_table(e, c, s->index);
    const uint32_t keep = iso_engine_first_visible(e, c, s->n) / P;
    /* Expired pages stay while the session's promise has room for them: a rewind can use them. */
    const uint32_t end = pages_of(s->n + s->pending) + s->staged[c];
    const uint32_t room = s->reserved[c] + s->extra[c];
    while (s->first_page[c] < keep && s->first_page[c] < s->end_page[c] &&
           end - s->first_page[c] > room) {
        const uint32_t p = s->first_page[c]++;
        iso_kv_pool_unref(&e->pool[c], table[p]);
        table[p] = ISO_NO_SLOT;
    }
}

uint32_t iso_session_rewind(iso_session *s, uint32_t p)
{
    if (p >= s->n) return s->n;
    struct iso_engine *e = s->e;
    pthread_mutex_lock(&e->lock);
    /* A window layer can continue at p only where p's whole window is still held. */
    if (e->pool[ISO_KV_WINDOW].n_layers > 0 &&
        iso_engine_first_visible(e, ISO_KV_WINDOW, p) / P < s->first_page[ISO_KV_WINDOW]) {
        p = iso_checkpoint_restore(s, p);
    }
    iso_checkpoints_drop(s, p);
    iso_session_cut(s, p);
    s->logits_row = UINT32_MAX;
    pthread_mutex_unlock(&e->lock);
    return p;
}

void iso_session_on_ready(iso_session *s, iso_kv_ready_fn *fn, void *arg)
{
    s->ready = fn;
    s->ready_arg = arg;
}
