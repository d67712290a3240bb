/* SPDX-License-Identifier: MIT
 * producer_ring.c - slots of pinned memory, filled by the copy engine, emptied by the wire. */
#include "handoff/producer_ring.h"

#include <assert.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"

/* Pages of all heads of a layer in one frame of about frame_bytes. */
static uint32_t frame_pages(const iso_engine *e, size_t frame_bytes)
{
    const struct iso_kv_layout *y = iso_engine_kv_layout(e);
    const size_t row = (size_t)y->n_kv_heads * y->page_bytes;
    const size_t n = ISO_MAX(frame_bytes / row, (size_t)1);
    return (uint32_t)ISO_MIN(n, (size_t)ISO_KV_COPY_PAGES);
}

static size_t slot_bytes(const iso_engine *e, size_t frame_bytes)
{
    const struct iso_kv_layout *y = iso_engine_kv_layout(e);
    return (size_t)frame_pages(e, frame_bytes) * y->n_kv_heads * y->page_bytes;
}

static uint32_t slot_count(size_t want, size_t slot)
{
    const size_t n = (want ? want : ISO_RING_BYTES) / slot;
    return (uint32_t)ISO_MIN(ISO_MAX(n, (size_t)ISO_RING_SLOTS_MIN), (size_t)ISO_RING_SLOTS_MAX);
}

size_t iso_ring_bytes(const iso_engine *e, size_t want, size_t frame_bytes)
{
    const size_t slot = slot_bytes(e, frame_bytes);
    return slot * slot_count(want, slot);
}

enum iso_err iso_ring_new(struct iso_ring **out, iso_engine *e, size_t want, size_t frame_bytes)
{
    void *memory = NULL;
    const size_t bytes = iso_ring_bytes(e, want, frame_bytes);
    ISO_TRY(iso_kv_pin(&memory, e, bytes));
    struct iso_ring *r = iso_xalloc(1, sizeof(*r));
    r->e = e;
    r->memory = memory;
    r->bytes = bytes;
    r->slot_bytes = slot_bytes(e, frame_bytes);
    r->slot_pages = frame_pages(e, frame_bytes);
    r->n_slots = (uint32_t)(bytes / r->slot_bytes);
    for (uint32_t i = 0; i < r->n_slots; i++) r->slot[i].bytes = r->memory + i * r->slot_bytes;
    *out = r;
    return ISO_OK;
}

void iso_ring_free(struct iso_ring *r)
{
    if (r == NULL) return;
    iso_kv_unpin(r->e, r->memory);
    free(r);
}

bool iso_ring_full(const struct iso_ring *r)
{
    return r->n_used == r->n_slots;
}

enum iso_err iso_ring_copy(struct iso_ring *r, uint32_t layer, uint32_t first_page, const uint32_t *slots,
                           uint32_t n, uint64_t event)
{
    assert(!iso_ring_full(r) && n > 0 && n <= r->slot_pages);
    struct iso_ring_slot *s = &r->slot[(r->oldest + r->n_used) % r->n_slots];
    s->layer = layer;
    s->first_page = first_page;
    s->n_pages = n;
    s->took_ns = 0;
    s->start_ns = iso_clock_ns();
    ISO_TRY(iso_kv_copy_start(&s->copy, r->e, layer, slots, n, s->bytes, event));
    r->n_used++;
    return ISO_OK;
}

enum iso_err iso_ring_oldest(struct iso_ring *r, const struct iso_ring_slot **out, int64_t timeout_ns)
{
    assert(r->n_used > 0);
    struct iso_ring_slot *s = &r->slot[r->oldest];
    ISO_TRY(iso_kv_copy_wait(&s->took_ns, r->e, s->copy, timeout_ns));
    *out = s;
    return ISO_OK;
}

void iso_ring_release(struct iso_ring *r)
{
    assert(r->n_used > 0);
    r->oldest = (r->oldest + 1) % r->n_slots;
    r->n_used--;
}

enum iso_err iso_ring_drain(struct iso_ring *r)
{
    enum iso_err first = ISO_OK;
    while (r->n_used > 0) {
        const struct iso_ring_slot *s = NULL;
        const enum iso_err err = iso_ring_oldest(r, &s, ISO_NS_PER_S);
        if (err == ISO_E_AGAIN) continue; /* a copy ends or the device says that it hangs */
        if (first == ISO_OK) first = err;
        iso_ring_release(r);
    }
    return first;
}
