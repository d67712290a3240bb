/* SPDX-License-Identifier: MIT
 * producer_timeline.h - when a transfer computed, copied, hashed and sent: phase times, share hidden, traces.
 *
 * Times are those of iso_clock_ns() on the producer's host:
 *   compute  up to the moment at which the stepping thread saw that the k and v of a layer were done;
 *            it looks again at least each 50 microseconds. The first layer of a step begins with the step.
 *   copy     from the start of a copy, for as long as the device's copy engine says that it took;
 *            none where pages are sent from the memory that they were computed in
 *   hash     SHA-256 of a frame's pages
 *   wire     inside the send of a frame: encryption, and waiting for the wire
 * Copy, hash and wire together are the transfer. Sums are always kept; intervals only when they are
 * asked for, and then at most ISO_TIMELINE_MAX of a kind.
 */
#ifndef ISO_HANDOFF_PRODUCER_TIMELINE_H
#define ISO_HANDOFF_PRODUCER_TIMELINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define ISO_TIMELINE_MAX 65536u /* intervals of a kind: 131,072 tokens in chunks of 128 on 64 layers */

enum iso_timeline_kind {
    ISO_TIMELINE_COMPUTE,
    ISO_TIMELINE_COPY,
    ISO_TIMELINE_HASH,
    ISO_TIMELINE_WIRE,
    ISO_TIMELINE_KINDS
};

struct iso_interval {
    int64_t start_ns, end_ns;
    uint32_t layer;
    uint32_t first, end; /* compute: positions; else pages */
};

/* One kind is written by one thread; all is read when the threads have ended. */
struct iso_timeline {
    bool keep; /* intervals, not only sums */
    int64_t begin_ns, end_ns, first_ns; /* prefill; first frame handed to the wire; 0: not yet */
    int64_t sum_ns[ISO_TIMELINE_KINDS];
    struct iso_interval *at[ISO_TIMELINE_KINDS];
    size_t n[ISO_TIMELINE_KINDS], cap[ISO_TIMELINE_KINDS];
    uint64_t n_dropped; /* beyond ISO_TIMELINE_MAX: in the sums, not in the shares */
};

/* What it comes to. Shares are 0 where there is nothing to divide by. */
struct iso_timeline_summary {
    int64_t prefill_ns;
    int64_t sum_ns[ISO_TIMELINE_KINDS];
    int64_t transfer_ns; /* time in which something was copied, hashed or sent */
    int64_t hidden_ns;   /* of that, while something was computed */
    int64_t first_ns;    /* from the prefill's begin to the first frame */
    double hidden_share, first_share; /* hidden_ns of transfer_ns, first_ns of prefill_ns */
};

/* For the head of a file; strings are borrowed. */
struct iso_timeline_about {
    const char *request, *peer, *device, *isa;
    uint32_t n_tokens, chunk_rows, ring_slots;
    uint64_t bytes, ring_bytes;
};

void iso_timeline_init(struct iso_timeline *t, bool keep);
void iso_timeline_deinit(struct iso_timeline *t);

/* Intervals of a kind are added in the order of their starts. */
void iso_timeline_add(struct iso_timeline *t, enum iso_timeline_kind kind, const struct iso_interval *i);

/* Needs: keep. */
void iso_timeline_summarize(struct iso_timeline_summary *out, const struct iso_timeline *t);

/* Writes one JSON document: summary and intervals; trace: as Chrome trace events, which Perfetto and
 * chrome://tracing show. The file is replaced as a whole. Needs: keep. Errors: ISO_E_IO. */
enum iso_err iso_timeline_write(const struct iso_timeline *t, const struct iso_timeline_about *about,
                                const char *path, bool trace) ISO_NODISCARD;

#endif
