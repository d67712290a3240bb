/* SPDX-License-Identifier: MIT
 * kv_pool.h - the page pool of one layer class: slots with reference counts.
 *
 * A slot is one page number of one timeline in every layer of the class; in a layer it holds the
 * pages of all KV heads side by side. Slots never move. Their state is free, staging (taken, known
 * only to its staging set) or live; the count is the number of timelines that share it.
 */
#ifndef ISO_MODEL_KV_POOL_H
#define ISO_MODEL_KV_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "device/device.h"

#define ISO_NO_SLOT UINT32_MAX

struct iso_kv_pool { /* one thread at a time: the engine's lock */
    struct iso_device *dev;
    uint32_t buffer;      /* [n_layers][n_slots][slot_bytes] */
    uint32_t n_layers;    /* of this class */
    uint32_t n_slots;
    uint32_t n_reserved;  /* promised to sessions */
    uint32_t n_free;
    size_t slot_bytes;    /* heads * page bytes */
    uint32_t *count;      /* [n_slots] references */
    uint32_t *free_list;  /* [n_slots], n_free of them */
};

/* Errors: ISO_E_NOMEM. Free with iso_kv_pool_deinit(). */
enum iso_err iso_kv_pool_init(struct iso_kv_pool *p, struct iso_device *dev, uint32_t n_layers,
                              uint32_t n_slots, size_t slot_bytes) ISO_NODISCARD;
void iso_kv_pool_deinit(struct iso_kv_pool *p);

/* Promises n slots to a session; ISO_E_LIMIT with what is left. */
enum iso_err iso_kv_pool_reserve(struct iso_kv_pool *p, uint32_t n) ISO_NODISCARD;
void iso_kv_pool_unreserve(struct iso_kv_pool *p, uint32_t n);

/* A zeroed slot with count 1, or ISO_NO_SLOT when none is free. Allocates nothing. */
uint32_t iso_kv_pool_take(struct iso_kv_pool *p);
void iso_kv_pool_ref(struct iso_kv_pool *p, uint32_t slot);
void iso_kv_pool_unref(struct iso_kv_pool *p, uint32_t slot); /* ISO_NO_SLOT is fine */

/* Copies the pages of src over those of dst in every layer. */
void iso_kv_pool_copy(struct iso_kv_pool *p, uint32_t dst, uint32_t src);

/* Where the pages of a slot in layer l of the class are. */
struct iso_span iso_kv_pool_span(const struct iso_kv_pool *p, uint32_t l, uint32_t slot);

/* The same as a host pointer; NULL where pages live in the device's own memory. */
uint8_t *iso_kv_pool_at(const struct iso_kv_pool *p, uint32_t l, uint32_t slot);

/* Where layer l's pages start. */
struct iso_span iso_kv_pool_layer(const struct iso_kv_pool *p, uint32_t l);

#endif
