/* SPDX-License-Identifier: MIT
 * producer_internal.h - what the producer's files share: connections, queue, quotas. */
#ifndef ISO_HANDOFF_PRODUCER_INTERNAL_H
#define ISO_HANDOFF_PRODUCER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "handoff/channel.h"
#include "handoff/ledger.h"
#include "handoff/producer.h"
#include "handoff/producer_ring.h"
#include "handoff/producer_timeline.h"
#include "handoff/request.h"

/* A peer's use of this producer. */
struct iso_peer_use {
    char name[ISO_NODE_NAME_MAX]; /* "" is free */
    uint32_t active;              /* transfers */
    double tokens;                /* left of this minute's; may go below zero by one prompt */
    int64_t at_ns;                /* when tokens was right */
};

/* One connection and its thread. */
struct iso_conn {
    struct iso_producer *p;
    bool used;     /* guarded by p->lock */
    bool finished; /* guarded by p->lock: the thread may be joined */
    pthread_t thread;
    struct iso_pending pending;
    struct iso_channel *ch; /* guarded by p->lock: stop cancels it */
};

/* A transfer that waits for the engine; on the stack of its connection's thread. */
struct iso_waiter {
    struct iso_waiter *next;
};

struct iso_producer {
    iso_engine *engine;
    struct iso_node *node;
    struct iso_listener *listener;
    struct iso_ledger *ledger;
    char *receipts_path; /* NULL: none */
    char build[ISO_HANDOFF_TEXT_MAX];
    struct iso_producer_options opt; /* strings of it are not used later */
    struct iso_identity_doc identity;
    char *timeline_path, *trace_path; /* NULL: none */
    pthread_mutex_t files;            /* one transfer at a time writes them; taken alone */
    atomic_bool stopping;

    pthread_mutex_t lock; /* guards all below; never held while waiting for disk, wire or engine */
    pthread_cond_t turn;  /* the queue moved or a session was freed */
    struct iso_conn *conns; /* [n_conns] */
    size_t n_conns;         /* max_connections and those that still shake hands */
    uint32_t authenticated; /* connections of enrolled nodes */
    struct iso_peer_use peers[ISO_NODE_PEERS_MAX];
    struct iso_waiter *queue; /* the first one is next */
    bool computing;
    unsigned sessions; /* that transfers hold */
    struct iso_ring *rings; /* without a transfer; as many as there were transfers at once */
    uint32_t chunk;         /* rows of a step; whose turn it is may use it without the lock */
    struct iso_producer_stats stats;
    int64_t logged_ns[ISO_REASON_COUNT]; /* last row of an unauthenticated refusal */
    uint32_t unlogged[ISO_REASON_COUNT]; /* refusals since that have no row */
};

/* Takes one REQUEST from its header to its end: answers, computes, streams, waits for the ACK.
 * True when the connection may carry another request. */
bool iso_producer_transfer(struct iso_producer *p,
                           struct iso_channel *ch,
                           const struct iso_frame *request);

/* Counts a transfer of n tokens against the peer's quota; iso_producer_leave() gives it back.
 * Errors: ISO_E_REFUSED with *reason QUOTA or BUSY. */
enum iso_err iso_producer_enter(struct iso_producer *p,
                                const char *peer,
                                uint32_t n_tokens,
                                enum iso_reason *reason) ISO_NODISCARD;
void iso_producer_leave(struct iso_producer *p, const char *peer);

/* Waits for the engine in order of arrival. stop(arg, queued) is asked every 20 ms, queued:
 * transfers in front; true gives up. False when given up. The engine is held until
 * iso_producer_unlock(). */
bool iso_producer_turn(struct iso_producer *p, bool (*stop)(void *arg, uint32_t queued), void *arg);
void iso_producer_unlock(struct iso_producer *p);

/* Host memory for one transfer's pages; *out NULL where the engine's device needs none.
 * Errors: ISO_E_NOMEM. */
enum iso_err iso_producer_take_ring(struct iso_producer *p, struct iso_ring **out) ISO_NODISCARD;
void iso_producer_give_ring(struct iso_producer *p, struct iso_ring *ring); /* NULL is fine */

/* After a step of so many rows: the next ones are longer or shorter, see producer.h. Whose turn it is. */
void iso_producer_adapt_chunk(struct iso_producer *p, uint32_t rows, int64_t took_ns);

/* Writes the files that the options want. The peer has its pages: a file that cannot be written is a
 * message in the log, not a failure. */
void iso_producer_write_timeline(struct iso_producer *p,
                                 const struct iso_timeline *timeline,
                                 const struct iso_timeline_about *about);

#endif
