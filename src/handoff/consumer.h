/* SPDX-License-Identifier: MIT
 * consumer.h - fetches the KV pages of a prompt from a producer: an iso_kv_source, and the policy
 * around it.
 *
 * A fetch dials, asks, receives every page into its final memory in a staging set that no session
 * sees, checks seal, digests, form and, when wanted, recomputes some positions; only then the
 * session becomes the prompt by one swap. Whatever fails leaves the session as it was, with one
 * reason. The commit row, the ACK and the receipt follow on a thread of their own, so that the
 * first token does not wait for the disk.
 *
 * Thread: one fetch at a time per consumer (a second one is refused as BUSY; several consumers may
 * share a node and a ledger file); iso_kv_source.cancel from any thread.
 */
#ifndef ISO_HANDOFF_CONSUMER_H
#define ISO_HANDOFF_CONSUMER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/digest.h"
#include "base/err.h"
#include "handoff/manifest.h"
#include "handoff/policy.h"
#include "handoff/reason.h"
#include "isobit_kv.h"
#include "node/node.h"

#define ISO_CONSUMER_DEADLINE_MS 600000u /* default: a long prompt on a slow producer */
#define ISO_CONSUMER_DIAL_MS 5000u       /* default */
#define ISO_CONSUMER_RESERVE_TRIES 3     /* new generations after being overtaken */

struct iso_consumer;

/* Zero is the default of each member. Strings are copied. */
struct iso_consumer_options {
    const char *address;       /* of the producer, "HOST:PORT" */
    const char *peer;          /* node that must answer; NULL: any enrolled one */
    const char *build;         /* fingerprint of this program for receipts, at most 64 characters */
    enum iso_policy_mode mode; /* for iso_consumer_prefill() and iso_consumer_decide() */
    uint32_t audit;            /* positions to recompute per hand-off; 0: none */
    uint32_t deadline_ms;      /* of a whole fetch */
    uint32_t dial_ms;          /* connect and handshake */
    bool strict_template;      /* another chat template is a refusal */
    bool whole;                /* ask for every page, also those that the session holds */
    bool no_probe;             /* do not time the ledger's disk at start */
    const char *ledger_path;   /* NULL: in the node's directory */
    const char *receipts_path; /* NULL: in the node's directory; "": none are written */
    int64_t silence_ms;        /* a silent peer is given up; for tests */
};

/* How the last fetch went. Seconds are of this machine's clock unless said otherwise. */
struct iso_consumer_report {
    enum iso_reason reason;
    bool from_peer;                        /* the producer gave the reason */
    char message[ISO_HANDOFF_MESSAGE_MAX]; /* "" when OK */
    char peer[ISO_NODE_NAME_MAX];          /* who answered, "" if nobody */
    char request_id[ISO_HANDOFF_TEXT_MAX];
    uint64_t generation;
    uint32_t n_tokens;            /* of the prompt */
    uint32_t n_received;          /* positions that came from the producer or were held */
    uint32_t computed_locally;    /* prompt tokens that the consumer computes itself: 1 when OK */
    uint32_t cut[ISO_KV_CLASSES]; /* first page sent */
    uint64_t pages, bytes;        /* received */
    uint32_t audited;             /* positions recomputed and equal */
    uint32_t audit_layer, audit_position; /* reason AUDIT: the first difference */
    bool template_equal;
    char prefix[ISO_HANDOFF_TEXT_MAX]; /* of the producer: "none", "recomputed", "held" */
    double dial_s, accept_s;           /* connect and handshake; REQUEST to ACCEPT */
    double first_s;                    /* from ACCEPT to the first page */
    double wire_s, wire_busy_s;        /* first to last page; of it, while payload was flowing */
    double verify_s, audit_s, install_s, commit_s;
    double total_s;                              /* until the session was installed */
    double producer_queue_s, producer_compute_s; /* as sealed, on the producer's clock */
    bool committed;                              /* the commit row is durable */
    bool has_logits;
    struct iso_digest first_logits;
    struct iso_digest manifest; /* of the seal; zeros without one */
};

/* Opens the ledger. Nothing is dialled yet.
 *
 * Owner:  *out is owned by the caller, free with iso_consumer_free(); node is borrowed for its
 * life. Errors: ISO_E_ARG no address; ISO_E_REFUSED ledger missing or foreign: closed until renewed
 * and enrolled again; ISO_E_IO. *reason (may be NULL) has the code. */
enum iso_err iso_consumer_new(struct iso_consumer **out,
                              struct iso_node *node,
                              const struct iso_consumer_options *options,
                              enum iso_reason *reason) ISO_NODISCARD;

/* Ends what runs, writes the last receipt. */
void iso_consumer_free(struct iso_consumer *c);

/* The source to register with the engine; valid for the consumer's life.
 * fetch: ISO_E_REFUSED, ISO_E_AUTH, ISO_E_PROTO, ISO_E_TIMEOUT, ISO_E_IO, ISO_E_CANCELLED by the
 * kind of failure; the reason is in the report. A prompt of one token is a hand-off without pages.
 */
const struct iso_kv_source *iso_consumer_source(struct iso_consumer *c);

/* The last fetch; waits for its commit row. Valid until the next fetch. Thread: the fetching one.
 */
const struct iso_consumer_report *iso_consumer_last_report(struct iso_consumer *c);

/* Puts the digest of the logits behind the prompt into the receipt of the last fetch and writes it.
 * Without this call the receipt is written, without a digest, before the next fetch. */
void iso_handoff_note_first_logits(struct iso_consumer *c, const struct iso_digest *digest);

/* Rate of a raw TLS stream on the same path, bytes per second, for the receipts; 0: unmeasured. */
void iso_consumer_set_raw_rate(struct iso_consumer *c, double bytes_s);

/* Rates and breaker of this consumer. */
struct iso_policy *iso_consumer_policy(struct iso_consumer *c);

/* What the policy says about this prompt now. */
enum iso_err iso_consumer_decide(struct iso_consumer *c,
                                 struct iso_policy_decision *out,
                                 const iso_session *s,
                                 const int32_t *ids,
                                 size_t n) ISO_NODISCARD;

/* How a prompt got into a session. */
struct iso_prefill_outcome {
    bool remote;               /* the pages came from the producer */
    bool fell_back;            /* auto: remote was tried and failed, see the report */
    enum iso_reason reason;    /* of the fetch; OK when none was tried */
    uint32_t computed_locally; /* prompt tokens computed here: exactly 1 when remote */
    uint32_t reused;           /* tokens that the session held already; local only */
    struct iso_policy_decision decision;
};

/* Puts prompt ids [n] into s by the consumer's mode and computes the logits behind it: remote fails
 * when the fetch fails; auto then computes here and says so; local never asks.
 *
 * Errors: those of fetch (session as before) and of iso_session_prefill(). */
enum iso_err iso_consumer_prefill(struct iso_consumer *c,
                                  struct iso_prefill_outcome *outcome,
                                  iso_session *s,
                                  const int32_t *ids,
                                  size_t n,
                                  const struct iso_progress *progress) ISO_NODISCARD;

#endif
