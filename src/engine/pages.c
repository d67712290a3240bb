/* SPDX-License-Identifier: MIT
 * pages.c - the host's view of KV pages: directly, or through a shadow and transfers. */
#include "engine/pages.h"

#include <stdlib.h>
#include <string.h>

#include "arith/page.h"
#include "base/mem.h"
#include "engine/engine.h"

#define P ISO_PAGE_POSITIONS

/* Values of an epoch that are not a count of changes. */
#define WRITING 0 /* the host writes; also of a slot never used, whose bytes are zero */
#define STALE 1   /* neither the device's bytes nor the host's */

static bool shared_memory(const struct iso_engine *e, uint32_t c)
{
    return iso_kv_pool_at(&e->pool[c], 0, 0) != NULL;
}

enum iso_err iso_pages_init(struct iso_engine *e)
{
    e->shadow.now = STALE + 1;
    size_t len = 0;
    for (uint32_t c = 0; c < ISO_KV_CLASSES; c++) {
        if (e->pool[c].n_layers > 0 && !shared_memory(e, c)) len = e->pool[c].slot_bytes;
    }
    if (len == 0) return ISO_OK;
    return iso_mem_alloc((void **)&e->shadow.bounce, len, 1, "page transfers");
}

void iso_pages_deinit(struct iso_engine *e)
{
    for (uint32_t c = 0; c < ISO_KV_CLASSES; c++) {
        iso_mem_free(e->shadow.bytes[c]);
        free(e->shadow.epoch[c]);
    }
    iso_mem_free(e->shadow.bounce);
}

void iso_pages_changed(struct iso_engine *e)
{
    pthread_mutex_lock(&e->shadow.lock);
    e->shadow.now++;
    pthread_mutex_unlock(&e->shadow.lock);
}

/* The shadow's place of a slot, reserved at the first use of the class. */
static uint8_t *place(struct iso_engine *e, uint32_t c, uint32_t l, uint32_t slot, uint32_t **epoch)
{
    struct iso_shadow *s = &e->shadow;
    const struct iso_kv_pool *p = &e->pool[c];
    const size_t n = (size_t)p->n_layers * p->n_slots;
    if (s->bytes[c] == NULL) {
        if (iso_mem_alloc((void **)&s->bytes[c], n, p->slot_bytes, "KV pages of the host") != ISO_OK) {
            return NULL;
        }
        s->epoch[c] = iso_xalloc(n, sizeof(uint32_t));
    }
    const size_t i = (size_t)l * p->n_slots + slot;
    *epoch = &s->epoch[c][i];
    return s->bytes[c] + i * p->slot_bytes;
}

const uint8_t *iso_pages_read(struct iso_engine *e, uint32_t c, uint32_t l, uint32_t slot)
{
    const uint8_t *direct = iso_kv_pool_at(&e->pool[c], l, slot);
    if (direct != NULL) return direct;
    pthread_mutex_lock(&e->shadow.lock);
    uint32_t *epoch = NULL;
    uint8_t *at = place(e, c, l, slot, &epoch);
    if (at != NULL && *epoch != e->shadow.now) {
        const struct iso_span from = iso_kv_pool_span(&e->pool[c], l, slot);
        const enum iso_err err = e->dev->vt->download(e->dev, at, from, e->pool[c].slot_bytes);
        if (err == ISO_OK) *epoch = e->shadow.now;
        else at = NULL;
    }
    pthread_mutex_unlock(&e->shadow.lock);
    return at;
}

uint8_t *iso_pages_write(struct iso_engine *e, uint32_t c, uint32_t l, uint32_t slot)
{
    uint8_t *direct = iso_kv_pool_at(&e->pool[c], l, slot);
    if (direct != NULL) return direct;
    pthread_mutex_lock(&e->shadow.lock);
    uint32_t *epoch = NULL;
    uint8_t *at = place(e, c, l, slot, &epoch);
    if (at != NULL && *epoch != WRITING) {
        memset(at, 0, e->pool[c].slot_bytes); /* a slot starts zeroed, as the device's does */
        *epoch = WRITING;
    }
    pthread_mutex_unlock(&e->shadow.lock);
    return at;
}

/* Slots from slots[0] on that lie side by side and were written: one transfer. */
static uint32_t run_of(const uint32_t *slots, const uint32_t *epoch, uint32_t n)
{
    uint32_t run = 0;
    while (run < n && slots[run] == slots[0] + run && epoch[slots[run]] == WRITING) run++;
    return run;
}

void iso_pages_forget(struct iso_engine *e, uint32_t c, const uint32_t *slots, uint32_t n)
{
    pthread_mutex_lock(&e->shadow.lock);
    const struct iso_kv_pool *p = &e->pool[c];
    for (uint32_t l = 0; l < p->n_layers && e->shadow.epoch[c] != NULL; l++) {
        for (uint32_t i = 0; i < n; i++) e->shadow.epoch[c][(size_t)l * p->n_slots + slots[i]] = STALE;
    }
    pthread_mutex_unlock(&e->shadow.lock);
}

static enum iso_err push_layer(struct iso_engine *e, uint32_t c, uint32_t l, const uint32_t *slots,
                               uint32_t n)
{
    const struct iso_kv_pool *p = &e->pool[c];
    uint32_t *first = NULL;
    uint8_t *bytes = place(e, c, l, 0, &first);
    if (bytes == NULL) return ISO_E_NOMEM;
    for (uint32_t i = 0; i < n;) {
        const uint32_t run = run_of(slots + i, first, n - i);
        if (run > 0) {
            ISO_TRY(e->dev->vt->upload(e->dev, iso_kv_pool_span(p, l, slots[i]),
                                       bytes + slots[i] * p->slot_bytes, run * p->slot_bytes));
        }
        for (uint32_t j = 0; j < run; j++) first[slots[i + j]] = e->shadow.now;
        i += run ? run : 1;
    }
    return ISO_OK;
}

enum iso_err iso_pages_push(struct iso_engine *e, uint32_t c, const uint32_t *slots, uint32_t n)
{
    if (n == 0 || shared_memory(e, c)) return ISO_OK;
    pthread_mutex_lock(&e->shadow.lock);
    enum iso_err err = ISO_OK;
    for (uint32_t l = 0; l < e->pool[c].n_layers && err == ISO_OK; l++) {
        err = push_layer(e, c, l, slots, n);
    }
    pthread_mutex_unlock(&e->shadow.lock);
    return err;
}

/* Zeroes token places first .. 63 of one page. */
static void zero_tail(uint8_t *page, uint32_t d, uint32_t first)
{
    const uint32_t n = P - first;
    memset(page + (size_t)first * d, 0, (size_t)n * d);
    memset(page + iso_page_k_lo(d) + (size_t)first * (d / 2), 0, (size_t)n * (d / 2));
    for (uint32_t i = 0; i < d; i++) memset(page + iso_page_v(d) + (size_t)i * P + first, 0, n);
    memset(page + iso_page_k_scale(d) + first * sizeof(float), 0, n * sizeof(float));
    memset(page + iso_page_v_scale(d) + first * sizeof(float), 0, n * sizeof(float));
}

static void zero_heads(const struct iso_engine *e, uint8_t *pages, uint32_t first)
{
    for (uint32_t h = 0; h < e->layout.n_kv_heads; h++) {
        zero_tail(pages + (size_t)h * e->layout.page_bytes, e->layout.head_dim, first);
    }
}

void iso_pages_zero_tail(struct iso_engine *e, uint32_t c, uint32_t slot, uint32_t first)
{
    const struct iso_kv_pool *p = &e->pool[c];
    const struct iso_device_vt *vt = e->dev->vt;
    for (uint32_t l = 0; l < p->n_layers; l++) {
        uint8_t *direct = iso_kv_pool_at(p, l, slot);
        if (direct != NULL) {
            zero_heads(e, direct, first);
            continue;
        }
        const struct iso_span at = iso_kv_pool_span(p, l, slot);
        enum iso_err err = vt->download(e->dev, e->shadow.bounce, at, p->slot_bytes);
        if (err != ISO_OK) return;
        zero_heads(e, e->shadow.bounce, first);
        err = vt->upload(e->dev, at, e->shadow.bounce, p->slot_bytes);
        if (err != ISO_OK) return;
    }
    iso_pages_changed(e);
}
