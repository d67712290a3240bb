/* SPDX-License-Identifier: MIT
 * pages.h - KV pages as host bytes, on devices that share the host's memory and on those that do not.
 *
 * Where they do not, a shadow of the page pools stands for them: virtual memory that is touched page
 * by page as bytes are asked for or received. The device's pages are the truth; the shadow is read
 * again after every step.
 */
#ifndef ISO_ENGINE_PAGES_H
#define ISO_ENGINE_PAGES_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "isobit_kv.h"

struct iso_engine;

struct iso_shadow {
    pthread_mutex_t lock;          /* all fields; taken after the engine's lock or alone */
    uint8_t *bytes[ISO_KV_CLASSES]; /* [n_layers][n_slots][slot_bytes], NULL until first used */
    uint32_t *epoch[ISO_KV_CLASSES]; /* [n_layers][n_slots]: when bytes were the device's, or a state */
    uint32_t now;                  /* counts whatever may change pages */
    uint64_t ready; /* the device's event behind the layer that listeners hear of, 0: it is done. Stepping
                       thread only. */
    uint8_t *bounce;               /* one slot's pages, for changes from the host; NULL on shared memory */
};

/* Readies the shadow; allocates the bounce buffer where the device has its own memory.
 * Errors: ISO_E_NOMEM. Free with iso_pages_deinit(). */
enum iso_err iso_pages_init(struct iso_engine *e) ISO_NODISCARD;
void iso_pages_deinit(struct iso_engine *e);

/* Pages may have changed: bytes read before are not believed any more. Allocates nothing. */
void iso_pages_changed(struct iso_engine *e);

/* The pages of all heads of a slot in layer l of class c, as they are now. The pointer stays valid
 * until the engine closes; its bytes until the slot is written and read again. NULL: out of memory or
 * the device is lost (iso_err_detail() says which). */
const uint8_t *iso_pages_read(struct iso_engine *e, uint32_t c, uint32_t l, uint32_t slot);

/* Where the host may write the pages of a slot that was just taken: zeroed at the first call.
 * iso_pages_push() brings them to the device. NULL as above. */
uint8_t *iso_pages_write(struct iso_engine *e, uint32_t c, uint32_t l, uint32_t slot);

/* Brings what was written of slots[n] of class c in every layer to the device; nothing on shared
 * memory. ISO_E_GPU, ISO_E_NOMEM. */
enum iso_err iso_pages_push(struct iso_engine *e, uint32_t c, const uint32_t *slots, uint32_t n) ISO_NODISCARD;

/* What the host wrote of slots[n] and never pushed is dropped: they are given back. */
void iso_pages_forget(struct iso_engine *e, uint32_t c, const uint32_t *slots, uint32_t n);

/* Zeroes token places first .. 63 of a slot's pages in every layer and head. Allocates nothing. A
 * device that is lost reports it at the next step. */
void iso_pages_zero_tail(struct iso_engine *e, uint32_t c, uint32_t slot, uint32_t first);

#endif
