/* SPDX-License-Identifier: MIT
 * consumer_internal.h - what the consumer's files share: the consumer and one transfer. */
#ifndef ISO_HANDOFF_CONSUMER_INTERNAL_H
#define ISO_HANDOFF_CONSUMER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "handoff/channel.h"
#include "handoff/consumer.h"
#include "handoff/consumer_receive.h"
#include "handoff/ledger.h"
#include "handoff/plan.h"
#include "handoff/receipt.h"
#include "handoff/seal.h"

/* A connection being made on a thread of its own, so that the ledger can be written meanwhile and a
 * cancel need not wait for it. */
struct iso_dial {
    struct iso_dial *next; /* abandoned ones, in iso_consumer */
    pthread_t thread;
    struct iso_consumer *c;
    int64_t timeout_ms;
    bool done, abandoned;   /* guarded by c->lock */
    struct iso_channel *ch; /* the result; freed by the thread when abandoned */
    struct iso_channel_report report;
    enum iso_err err;
    char detail[512];
};

struct iso_consumer {
    struct iso_node *node;
    struct iso_ledger *ledger;
    struct iso_policy *policy;
    char *address, *peer, *build, *receipts_path; /* all but address may be NULL */
    struct iso_consumer_options opt;      /* strings of it are not used later */
    struct iso_kv_source source;
    atomic_bool cancelled; /* the running fetch is to end */
    double raw_bytes_s;

    pthread_mutex_t lock; /* guards running, ch, dials and their done flags */
    pthread_cond_t wake;  /* a dial has ended, or cancelled was set */
    bool running;
    struct iso_channel *ch; /* of the running fetch: cancel cuts it */
    struct iso_dial *dials; /* abandoned, to be joined */

    /* The fetching thread's, and the finisher's while it runs. */
    bool finishing; /* the thread exists */
    pthread_t finisher;
    struct iso_attempt attempt; /* to be committed */
    struct iso_channel *last_ch;
    uint32_t last_stream;
    struct iso_consumer_report report;
    struct iso_receipt receipt;
    bool has_receipt; /* not written yet */
};

/* One fetch. Lives on the fetching thread's stack. */
struct iso_fetch {
    struct iso_consumer *c;
    iso_session *s;
    const int32_t *ids;
    uint32_t n;
    const struct iso_progress *progress;
    int64_t start_ns, deadline_ns;
    struct iso_identity_doc identity;
    struct iso_held held[ISO_KV_CLASSES];
    struct iso_plan plan;
    struct iso_dial *dial;
    struct iso_channel *ch;
    uint32_t stream;
    struct iso_attempt attempt;
    struct iso_request req;
    struct iso_buf request_text; /* its canonical bytes, as sent */
    iso_kv_staging *staging;
    struct iso_intake *intake;
    struct iso_manifest manifest;
    struct iso_digest digest; /* of the manifest */
    int64_t accept_ns;
    enum iso_reason reason; /* of the failure */
    bool from_peer;
    struct iso_consumer_report *report;
};

/* Runs a fetch up to the publish; on failure everything is given back. consumer_transfer.c */
enum iso_err iso_fetch_run(struct iso_fetch *f) ISO_NODISCARD;

/* ISO_OK unless the caller, cancel() or the deadline wants this fetch to end. consumer_transfer.c
 */
enum iso_err iso_fetch_check_stop(struct iso_fetch *f) ISO_NODISCARD;

/* Checks a SEAL payload and all pages against it; f->manifest and f->digest are then the sealed
 * ones, and the receipt holds the seal. consumer_verify.c */
enum iso_err
iso_fetch_verify(struct iso_fetch *f, const uint8_t *payload, size_t len) ISO_NODISCARD;

/* Recomputes as many positions as the options want, chosen at random. A difference marks the
 * producer in the ledger. */
enum iso_err iso_fetch_audit(struct iso_fetch *f) ISO_NODISCARD;

/* Starts a dial; takes no lock. Owner: *out ends with iso_dial_wait() or iso_dial_abandon(). */
enum iso_err
iso_dial_start(struct iso_dial **out, struct iso_consumer *c, int64_t timeout_ms) ISO_NODISCARD;

/* Waits for it; *ch and *report as iso_channel_dial(). Frees d unless the answer is
 * ISO_E_CANCELLED because of c->cancelled: then it is abandoned. */
enum iso_err iso_dial_wait(struct iso_dial *d,
                           struct iso_channel **ch,
                           struct iso_channel_report *report) ISO_NODISCARD;
void iso_dial_abandon(struct iso_dial *d);

/* Joins abandoned dials that have ended, or all. */
void iso_dial_reap(struct iso_consumer *c, bool all);

/* Joins the finisher of the last fetch. */
void iso_consumer_settle(struct iso_consumer *c);

#endif
