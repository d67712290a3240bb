/* SPDX-License-Identifier: MIT
 * producer_stream.h - sends the pages of one prefill while it runs: queue, sender thread, seal.
 *
 * The stepping thread calls iso_stream_ready() when a layer of a chunk is done or on its way; it notes
 * which pages become whole and returns at once. One thread drives the copy engine where the device has
 * one (producer_ring.h), hashes and sends, so a slow wire never stops the prefill: pages wait in the
 * session's pool, the queue holds ranges only and has room for all of them. When the prefill has ended
 * and all is sent, the same thread sends the seal. It also sends the heartbeats, from the first moment on.
 */
#ifndef ISO_HANDOFF_PRODUCER_STREAM_H
#define ISO_HANDOFF_PRODUCER_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/digest.h"
#include "base/err.h"
#include "handoff/channel.h"
#include "handoff/manifest.h"
#include "handoff/plan.h"
#include "handoff/producer_ring.h"
#include "handoff/producer_timeline.h"
#include "handoff/reason.h"
#include "isobit_kv.h"

#define ISO_STREAM_FRAME_BYTES                                                                     \
    (1u << 20) /* aim of a PAGES frame: a heartbeat or CANCEL fits between */

struct iso_stream;

/* Appends the SEAL payload for the page digests [plan->n_pages] to out; called once, on the
 * sender's thread, when all pages are sent: the timeline is then complete. */
typedef enum iso_err iso_stream_seal_fn(void *arg,
                                        struct iso_buf *out,
                                        const struct iso_digest *digests);

struct iso_stream_config {
    struct iso_channel *ch;
    const struct iso_plan *plan;
    uint32_t stream; /* number of the transfer */
    int64_t deadline_ns;
    iso_engine *engine;
    struct iso_ring *ring; /* NULL: pages are sent from where iso_session_page() has them */
    struct iso_timeline *timeline;
    iso_stream_seal_fn *seal;
    void *arg;
};

/* Starts the thread; everything in config is borrowed until iso_stream_join().
 * Owner: *out is owned by the caller, end with iso_stream_join(). Errors: ISO_E_IO no thread. */
enum iso_err iso_stream_start(struct iso_stream **out,
                              const struct iso_stream_config *config) ISO_NODISCARD;

/* An iso_kv_ready_fn; arg is the stream. Thread: the stepping one; does not block on the wire. */
void iso_stream_ready(void *arg, iso_session *s, uint32_t layer, uint32_t first, uint32_t last);

/* What the heartbeats tell. Thread: any. */
void iso_stream_note(struct iso_stream *st, uint64_t done, uint32_t queued);

/* No more pages will become ready: send the rest and the seal. Thread: any. */
void iso_stream_finish(struct iso_stream *st);

/* Stop after the frame that is being sent. Thread: any. */
void iso_stream_abort(struct iso_stream *st);

/* Has the thread ended, after the seal, an abort or a failure? Waits up to timeout_ms. */
bool iso_stream_done(struct iso_stream *st, int64_t timeout_ms);

/* Has it failed? Thread: any. */
bool iso_stream_failed(struct iso_stream *st);

/* Waits for the thread and frees the stream; no copy is under way then. *bytes: of pages sent.
 * Errors: the first failure of the thread with its *reason; ISO_E_CANCELLED after an abort. */
enum iso_err iso_stream_join(struct iso_stream *st, uint64_t *bytes, enum iso_reason *reason) ISO_NODISCARD;

#endif
