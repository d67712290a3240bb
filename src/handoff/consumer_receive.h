/* SPDX-License-Identifier: MIT
 * consumer_receive.h - takes pages off the wire into their final memory and checks each once.
 *
 * The receiving thread reads a payload straight into the staging set; a second thread hashes the
 * pages behind it, checks their form, and sends the heartbeats, also while an audit runs.
 */
#ifndef ISO_HANDOFF_CONSUMER_RECEIVE_H
#define ISO_HANDOFF_CONSUMER_RECEIVE_H

#include <stdint.h>

#include "base/digest.h"
#include "base/err.h"
#include "handoff/channel.h"
#include "handoff/plan.h"
#include "handoff/reason.h"
#include "isobit_kv.h"

struct iso_intake;

struct iso_intake_config {
    struct iso_channel *ch;
    const struct iso_plan *plan;
    iso_kv_staging *staging;
    uint32_t stream;
    int64_t deadline_ns;
};

struct iso_intake_stats {
    uint64_t pages, bytes;
    int64_t first_ns, last_ns; /* first and end of the last PAGES frame; 0: none */
    int64_t busy_ns;           /* inside reads of payload */
};

/* Starts the second thread; heartbeats begin.
 * Owner: *out is owned by the caller, end with iso_intake_stop(). Errors: ISO_E_IO no thread. */
enum iso_err iso_intake_start(struct iso_intake **out,
                              const struct iso_intake_config *config) ISO_NODISCARD;

/* Receives the payload of a PAGES frame. Thread: the channel's receiver.
 * Errors: *reason PAGE_RANGE, PAGE_TWICE, FRAME_LENGTH, or the channel's. */
enum iso_err iso_intake_pages(struct iso_intake *in,
                              const struct iso_frame *f,
                              enum iso_reason *reason) ISO_NODISCARD;

/* Waits until every page that came is hashed.
 * Errors: PAGE_MISSING, PAGE_FORM naming layer, head and page. */
enum iso_err iso_intake_settle(struct iso_intake *in, enum iso_reason *reason) ISO_NODISCARD;

/* [plan->n_pages] by canonical index; after iso_intake_settle(). */
const struct iso_digest *iso_intake_digests(const struct iso_intake *in);

/* Thread: the channel's receiver. */
void iso_intake_stats(const struct iso_intake *in, struct iso_intake_stats *out);

/* Ends the thread and frees. NULL is fine. */
void iso_intake_stop(struct iso_intake *in);

#endif
