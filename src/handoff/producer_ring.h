/* SPDX-License-Identifier: MIT
 * producer_ring.h - pinned host memory through which pages of a GPU pass on their way to the wire.
 *
 * A fixed number of slots, each the pages of one PAGES frame in the order of the wire. Copies are
 * started in order, run beside the step on the device's copy engine, and are sent in order. A full ring
 * starts no copy: pages then wait where they were computed, so host memory has a limit whatever the
 * prompt, and a slow wire costs the prefill nothing.
 */
#ifndef ISO_HANDOFF_PRODUCER_RING_H
#define ISO_HANDOFF_PRODUCER_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "isobit_kv.h"

#define ISO_RING_BYTES (8u << 20) /* default: the wire needs one slot, the copy the next, the rest is slack */
#define ISO_RING_SLOTS_MAX 64u
#define ISO_RING_SLOTS_MIN 2u /* one is sent while the other is filled */

/* One copy. */
struct iso_ring_slot {
    uint8_t *bytes; /* [n_pages][heads][page bytes], pinned */
    uint32_t layer, first_page, n_pages;
    uint64_t copy;
    int64_t start_ns, took_ns; /* took: when the copy is done */
};

/* One thread at a time. */
struct iso_ring {
    struct iso_ring *next; /* of those that wait for a transfer, in the producer */
    iso_engine *e;
    uint8_t *memory;
    size_t bytes, slot_bytes;
    uint32_t slot_pages; /* most pages of a slot */
    uint32_t n_slots, oldest, n_used;
    struct iso_ring_slot slot[ISO_RING_SLOTS_MAX];
};

/* Bytes of a ring of about want bytes (0: the default) for frames of about frame_bytes; never less than
 * ISO_RING_SLOTS_MIN slots of one page with all heads. */
size_t iso_ring_bytes(const iso_engine *e, size_t want, size_t frame_bytes);

/* Needs: iso_engine_kv_copies(e). Owner: *out is owned by the caller, iso_ring_free(); e is borrowed.
 * Errors: ISO_E_NOMEM. */
enum iso_err iso_ring_new(struct iso_ring **out, iso_engine *e, size_t want, size_t frame_bytes) ISO_NODISCARD;
void iso_ring_free(struct iso_ring *r); /* NULL is fine. Needs: no copy is under way. */

bool iso_ring_full(const struct iso_ring *r);

/* Starts to copy the pages [first_page, first_page + n) of a layer, in slots[n] of the pool, to the next
 * slot. Needs: not full, n <= slot_pages. Errors: iso_kv_copy_start()'s. */
enum iso_err iso_ring_copy(struct iso_ring *r, uint32_t layer, uint32_t first_page, const uint32_t *slots,
                           uint32_t n, uint64_t event) ISO_NODISCARD;

/* The oldest copy, when it is done. Needs: n_used > 0. Errors: ISO_E_AGAIN not within timeout_ns,
 * without a message; iso_kv_copy_wait()'s. */
enum iso_err iso_ring_oldest(struct iso_ring *r, const struct iso_ring_slot **out,
                             int64_t timeout_ns) ISO_NODISCARD;

/* The oldest slot was sent. */
void iso_ring_release(struct iso_ring *r);

/* Waits until no copy is under way and forgets them all: the pages may be given back. */
enum iso_err iso_ring_drain(struct iso_ring *r) ISO_NODISCARD;

#endif
