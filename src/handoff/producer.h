/* SPDX-License-Identifier: MIT
 * producer.h - serves prefills: accepts consumers, computes their prompts, streams and seals pages.
 *
 * One thread per connection, one prefill at a time in the order of arrival; a waiting consumer gets
 * a heartbeat each second. Pages leave while the next layer computes, on a thread of the transfer,
 * so a slow wire delays nobody: the next prefill starts while the last pages are still sent. A cancelled
 * prefill ends within 100 ms: prompts are computed in chunks whose layers take at most 40 ms, and at most
 * a layer more than 30 ms of work is under way.
 */
#ifndef ISO_HANDOFF_PRODUCER_H
#define ISO_HANDOFF_PRODUCER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "handoff/reason.h"
#include "isobit_kv.h"
#include "node/node.h"

#define ISO_PRODUCER_DEADLINE_MS                                                                   \
    600000u                            /* default of max_deadline_ms: a long prompt on a slow CPU */
#define ISO_PRODUCER_CONNECTIONS 16u   /* default of max_connections */
#define ISO_PRODUCER_PEER_TRANSFERS 4u /* default of peer_transfers */
#define ISO_PRODUCER_IDLE_MS 10000     /* an authenticated connection without a request is closed */

struct iso_producer;

/* Zero is the default of each member. Strings are copied. */
struct iso_producer_options {
    const char *listen;        /* "HOST:PORT", "[v6]:PORT", ":PORT"; port 0 takes a free one */
    const char *ledger_path;   /* NULL: in the node's directory */
    const char *receipts_path; /* NULL: in the node's directory; "": none are written */
    const char *build;         /* fingerprint of this program for the seal, at most 64 characters */
    const char *timeline_path; /* each hand-off replaces this file with its timeline; NULL: none */
    const char *trace_path;    /* the same as Chrome trace events */
    size_t ring_bytes;         /* host memory for the pages of one hand-off; only for a device with memory
                                  of its own. 0: ISO_RING_BYTES */
    uint32_t max_deadline_ms;  /* longest transfer, whatever the consumer wishes */
    uint32_t max_connections;
    uint32_t peer_transfers;  /* of one consumer at a time, waiting ones included */
    uint64_t peer_tokens_min; /* prompt tokens of one consumer per minute; 0: no limit */
    bool strict_template;     /* refuse another chat template */
    bool keep_expired;        /* the engine was opened with keep_expired: audits are served */
    bool no_probe;            /* do not time the ledger's disk at start */
    int64_t silence_ms;       /* a silent peer is given up; for tests */
    int64_t handshake_ms;     /* for tests */
};

struct iso_producer_stats {
    uint64_t connections, served, refused, failed; /* since the start */
    uint64_t tokens;                               /* positions computed */
    uint64_t bytes;                                /* of pages sent */
    unsigned active;                               /* transfers that wait, compute or send */
    unsigned queued;                               /* of them, waiting for the engine */
    bool computing;
    uint64_t ring_bytes; /* host memory in rings now */
};

/* Opens ledger and listener; computes the engine's identity, which may read the whole model file.
 *
 * Needs:  engine opened with room for its sessions: 2 let a prefill start while pages are sent.
 * Owner:  *out is owned by the caller, free with iso_producer_free() when run has returned; engine
 *         and node are borrowed for its life.
 * Errors: ISO_E_ARG, ISO_E_IO, ISO_E_AUTH as iso_listener_open(); ISO_E_REFUSED ledger missing or
 *         foreign. *reason (may be NULL) has the code. */
enum iso_err iso_producer_new(struct iso_producer **out,
                              iso_engine *engine,
                              struct iso_node *node,
                              const struct iso_producer_options *options,
                              enum iso_reason *reason) ISO_NODISCARD;
void iso_producer_free(struct iso_producer *p);
uint16_t iso_producer_port(const struct iso_producer *p);

/* Pinned host memory that one hand-off needs; 0 where pages are sent from where they were computed. */
uint64_t iso_producer_ring_bytes(const struct iso_producer *p);

/* Serves until iso_producer_stop(); then ends every transfer and joins every thread.
 * Errors: ISO_E_IO the listening socket failed. */
enum iso_err iso_producer_run(struct iso_producer *p) ISO_NODISCARD;

/* Makes iso_producer_run() return soon. Thread: any; not from a signal handler. */
void iso_producer_stop(struct iso_producer *p);

/* Thread: any. */
void iso_producer_stats(struct iso_producer *p, struct iso_producer_stats *out);

#endif
