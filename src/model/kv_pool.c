/* SPDX-License-Identifier: MIT
 * kv_pool.c - slots of KV pages: a free list and reference counts. */
#include "model/kv_pool.h"

#include <assert.h>

#include "base/mem.h"

enum iso_err iso_kv_pool_init(struct iso_kv_pool *p, struct iso_device *dev, uint32_t n_layers,
                              uint32_t n_slots, size_t slot_bytes)
{
    *p = (struct iso_kv_pool){.dev = dev, .n_layers = n_layers, .slot_bytes = slot_bytes};
    if (n_layers == 0) return ISO_OK;
    size_t len = 0;
    ISO_TRY(iso_mul_size(&len, slot_bytes, n_slots));
    ISO_TRY(iso_mul_size(&len, len, n_layers));
    ISO_TRY(dev->vt->alloc(dev, len, ISO_MEM_DEVICE, "KV pages", &p->buffer));
    ISO_TRY(iso_mem_alloc((void **)&p->count, n_slots, sizeof(*p->count), "KV page counts"));
    ISO_TRY(iso_mem_alloc((void **)&p->free_list, n_slots, sizeof(*p->free_list), "KV page list"));
    p->n_slots = n_slots;
    p->n_free = n_slots;
    /* Lowest slots first, so that short runs touch little memory. */
    for (uint32_t i = 0; i < n_slots; i++) p->free_list[i] = n_slots - 1 - i;
    return ISO_OK;
}

void iso_kv_pool_deinit(struct iso_kv_pool *p)
{
    if (p->buffer) p->dev->vt->free(p->dev, p->buffer);
    iso_mem_free(p->count);
    iso_mem_free(p->free_list);
    *p = (struct iso_kv_pool){0};
}

enum iso_err iso_kv_pool_reserve(struct iso_kv_pool *p, uint32_t n)
{
    if (n > p->n_slots - p->n_reserved) {
        ISO_FAIL(ISO_E_LIMIT, "%u pages wanted, %u of %u are not promised to other sessions", n,
                 p->n_slots - p->n_reserved, p->n_slots);
    }
    p->n_reserved += n;
    return ISO_OK;
}

void iso_kv_pool_unreserve(struct iso_kv_pool *p, uint32_t n)
{
    assert(n <= p->n_reserved);
    p->n_reserved -= n;
}

struct iso_span iso_kv_pool_layer(const struct iso_kv_pool *p, uint32_t l)
{
    return (struct iso_span){.buffer = p->buffer,
                             .offset = (uint64_t)l * p->n_slots * p->slot_bytes};
}

struct iso_span iso_kv_pool_span(const struct iso_kv_pool *p, uint32_t l, uint32_t slot)
{
    assert(l < p->n_layers && slot < p->n_slots);
    struct iso_span at = iso_kv_pool_layer(p, l);
    at.offset += (uint64_t)slot * p->slot_bytes;
    return at;
}

uint8_t *iso_kv_pool_at(const struct iso_kv_pool *p, uint32_t l, uint32_t slot)
{
    return p->dev->vt->host(p->dev, iso_kv_pool_span(p, l, slot));
}

uint32_t iso_kv_pool_take(struct iso_kv_pool *p)
{
    if (p->n_free == 0) return ISO_NO_SLOT;
    const uint32_t slot = p->free_list[--p->n_free];
    assert(p->count[slot] == 0);
    p->count[slot] = 1;
    p->dev->vt->zero(p->dev, iso_kv_pool_span(p, 0, slot), p->slot_bytes, p->n_slots * p->slot_bytes, p->n_layers);
    return slot;
}

void iso_kv_pool_ref(struct iso_kv_pool *p, uint32_t slot)
{
    assert(p->count[slot] > 0);
    p->count[slot]++;
}

void iso_kv_pool_unref(struct iso_kv_pool *p, uint32_t slot)
{
    if (slot == ISO_NO_SLOT) return;
    assert(p->count[slot] > 0);
    if (--p->count[slot] == 0) p->free_list[p->n_free++] = slot;
}

void iso_kv_pool_copy(struct iso_kv_pool *p, uint32_t dst, uint32_t src)
{
    for (uint32_t l = 0; l < p->n_layers; l++) {
        p->dev->vt->copy(p->dev, iso_kv_pool_span(p, l, dst), iso_kv_pool_span(p, l, src),
                         p->slot_bytes);
    }
}
