/* SPDX-License-Identifier: MIT
 * producer_transfer.c - one transfer on the producer: request, answer, prefill, stream, seal, ACK.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "handoff/producer_internal.h"
#include "handoff/producer_stream.h"
#include "handoff/receipt.h"
#include "handoff/seal.h"

#define REQUEST_MS 10000 /* for the payload of a REQUEST, at most 8 MiB */
#define GOODBYE_MS 1000  /* for a REFUSE or ERROR */
#define ABORT_MS 100     /* for the sender to end by itself before the connection is cut */
#define LOOK_MS 50       /* between two looks at a stream that drains */
#define FRAMES_A_LOOK 64 /* a peer that floods does not hold the prefill */

struct transfer {
    struct iso_producer *p;
    struct iso_channel *ch;
    uint32_t stream;
    int64_t start_ns, deadline_ns, accept_ns;
    struct iso_request req;
    int32_t *ids; /* [req.n_ids] */
    struct iso_plan plan;
    struct iso_attempt attempt;
    struct iso_accept accept;
    bool entered;  /* counted against the quota */
    uint64_t high; /* of a refused generation */
    iso_session *session;
    struct iso_stream *out;
    uint8_t key[ISO_SEAL_KEY_LEN];
    int64_t queue_ns;
    struct iso_timeline timeline;
    int64_t layer_ns;   /* since when the layer in hand is computed */
    uint32_t chunk;     /* most rows of its steps */
    struct iso_ring *ring; /* while the stream runs; NULL where none is needed */
    uint32_t ring_slots;
    uint64_t ring_bytes;
    uint64_t sent; /* bytes of pages */
    struct iso_digest manifest; /* of the seal */
    struct iso_receipt receipt; /* filled when the seal is made, on the sender's thread */
    enum iso_reason reason;     /* how it ended */
    int64_t stop_ns;            /* when watch() first said stop, or 0 */
    int64_t let_go_ns;          /* from then until engine and session were free */
    bool peer_told;             /* the peer said it, so it need not be told */
    struct iso_frame pending;   /* a frame that ends the wait; its payload is still to be read */
    bool has_pending;
};

/* --- watching the peer ----------------------------------------------------------------------- */

/* Looks for CANCEL, ERROR, ACK or a lost connection without waiting; true when the work in hand
 * must stop. Runs between layers inside a step: it allocates nothing and keeps the frame for later.
 */
static bool peer_is_done(struct transfer *t)
{
    if (t->has_pending || iso_channel_reason(t->ch) != ISO_REASON_OK) return true;
    if (atomic_load(&t->p->stopping) || iso_clock_ns() > t->deadline_ns) return true;
    if (t->out != NULL && iso_stream_failed(t->out)) return true;
    for (int i = 0; i < FRAMES_A_LOOK; i++) {
        struct iso_frame f;
        const enum iso_err err = iso_channel_try_header(t->ch, &f);
        if (err == ISO_E_AGAIN) return false;
        if (err != ISO_OK) return true;
        if (f.type != ISO_FRAME_PROGRESS) {
            t->pending = f;
            t->has_pending = true;
            return true;
        }
        if (iso_channel_skip_payload(t->ch, t->deadline_ns) != ISO_OK) return true;
    }
    return false;
}

/* The same, and since when. */
static bool watch(struct transfer *t)
{
    const bool stop = peer_is_done(t);
    if (stop && t->stop_ns == 0) t->stop_ns = iso_clock_ns();
    return stop;
}

static enum iso_err read_refusal(struct transfer *t, struct iso_refusal *r)
{
    uint8_t text[ISO_FRAME_ERROR_MAX];
    const size_t len = t->pending.length;
    if (len > sizeof(text)) ISO_FAIL(ISO_E_PROTO, "a refusal of %zu bytes", len);
    ISO_TRY(iso_channel_recv_payload(t->ch, text, len, iso_channel_deadline(GOODBYE_MS)));
    return iso_refusal_parse(r, text, len);
}

/* The frame that stopped the work: what did the peer want? */
static enum iso_err explain_frame(struct transfer *t)
{
    struct iso_refusal r = {.reason = ISO_REASON_FRAME_FIELD};
    const enum iso_frame_type type = t->pending.type;
    if (type != ISO_FRAME_CANCEL && type != ISO_FRAME_ERROR) {
        ISO_FAIL_REASON(&t->reason, FRAME_ORDER, ISO_E_PROTO, "%s during a transfer",
                        iso_frame_name(type));
    }
    t->reason = ISO_REASON_FRAME_FIELD;
    ISO_TRY(read_refusal(t, &r));
    t->peer_told = true;
    t->reason = type == ISO_FRAME_CANCEL ? ISO_REASON_CANCELLED : r.reason;
    ISO_FAIL(type == ISO_FRAME_CANCEL ? ISO_E_CANCELLED : ISO_E_REFUSED, "%s by the consumer: %s",
             iso_reason_name(t->reason), r.message);
}

/* Why watch() said stop. */
static enum iso_err explain(struct transfer *t)
{
    if (t->has_pending) return explain_frame(t);
    const enum iso_reason broken = iso_channel_reason(t->ch);
    if (atomic_load(&t->p->stopping)) {
        ISO_FAIL_REASON(&t->reason, BUSY, ISO_E_CANCELLED, "the producer is stopping");
    }
    if (broken != ISO_REASON_OK) {
        t->reason = broken;
        ISO_FAIL(ISO_E_IO, "connection lost: %s", iso_reason_text(broken));
    }
    if (iso_clock_ns() > t->deadline_ns) {
        ISO_FAIL_REASON(&t->reason, DEADLINE, ISO_E_TIMEOUT, "the transfer took over %u ms",
                        t->accept.deadline_ms);
    }
    ISO_FAIL_REASON(&t->reason, INTERNAL, ISO_E_IO, "the stream failed");
}

static bool stop_queue(void *arg, uint32_t queued)
{
    struct transfer *t = arg;
    iso_stream_note(t->out, 0, queued);
    return watch(t);
}

static bool stop_step(void *arg, uint64_t done, uint64_t total)
{
    (void)done;
    (void)total;
    return watch(arg);
}

/* --- request --------------------------------------------------------------------------------- */

static enum iso_err receive_request(struct transfer *t, const struct iso_frame *f)
{
    void *payload = NULL;
    ISO_TRY(iso_mem_alloc(&payload, f->length, 1, "request"));
    enum iso_err err =
        iso_channel_recv_payload(t->ch, payload, f->length, iso_channel_deadline(REQUEST_MS));
    if (err != ISO_OK) {
        t->reason = iso_channel_reason(t->ch);
    } else {
        err = iso_request_decode(&t->req, &t->ids, payload, f->length, &t->reason);
        if (err == ISO_OK) t->reason = ISO_REASON_INTERNAL; /* until something says better */
    }
    iso_mem_free(payload);
    return err;
}

/* The peer as it is enrolled now, not as it was when the connection began. */
static enum iso_err check_peer(struct transfer *t)
{
    const struct iso_peer *then = iso_channel_peer(t->ch);
    struct iso_peer now;
    if (iso_node_peer_by_pin(t->p->node, &now, &then->pin) != ISO_OK) {
        ISO_FAIL_REASON(&t->reason, PEER_NOT_ENROLLED, ISO_E_AUTH, "%s is no longer enrolled",
                        then->name);
    }
    const bool revoked = now.revoked;
    const bool same_ledger = memcmp(now.ledger_id, t->req.ledger, sizeof(now.ledger_id)) == 0;
    iso_peer_wipe(&now);
    if (revoked) ISO_FAIL_REASON(&t->reason, CERT_REVOKED, ISO_E_AUTH, "%s is revoked", then->name);
    if (strcmp(t->req.consumer, then->name) != 0 ||
        strcmp(t->req.producer, iso_node_name(t->p->node)) != 0) {
        ISO_FAIL_REASON(&t->reason, PEER_UNEXPECTED, ISO_E_AUTH,
                        "a request from %s for %s, but this is %s and there is %s", t->req.consumer,
                        t->req.producer, iso_node_name(t->p->node), then->name);
    }
    if (!same_ledger) {
        ISO_FAIL_REASON(&t->reason, LEDGER_FOREIGN, ISO_E_REFUSED,
                        "%s has another ledger than when it was enrolled", then->name);
    }
    return ISO_OK;
}

static enum iso_err check_request(struct transfer *t)
{
    struct iso_producer *p = t->p;
    const struct iso_peer *peer = iso_channel_peer(t->ch);
    const struct iso_engine_info *info = iso_engine_info(p->engine);
    const struct iso_request_limits limits = {.identity = &p->identity,
                                              .n_ctx = info->n_ctx,
                                              .n_vocab = info->n_vocab,
                                              .window = info->window,
                                              .keep_expired = p->opt.keep_expired,
                                              .strict_template = p->opt.strict_template,
                                              .tenant = peer->pin};
    t->attempt.generation = t->req.generation;
    t->attempt.n_tokens = t->req.n_ids;
    memcpy(t->attempt.request_id, t->req.id, sizeof(t->attempt.request_id));
    ISO_TRY(check_peer(t));
    /* First of all, so that a replay is one whatever else has changed since. */
    ISO_TRY(iso_ledger_admit(p->ledger, &t->attempt, t->req.ledger, &t->high, &t->reason));
    ISO_TRY(iso_request_check(&t->accept.template_equal, &t->req, t->ids, &limits, &t->reason));
    ISO_TRY(iso_producer_enter(p, peer->name, t->req.n_ids, &t->reason));
    t->entered = true;
    return iso_plan_init(&t->plan, iso_engine_kv_layout(p->engine), t->req.n_ids, t->req.held,
                         t->req.audit);
}

static enum iso_err send_accept(struct transfer *t)
{
    struct iso_accept *a = &t->accept;
    struct iso_buf text;
    memcpy(a->id, t->req.id, sizeof(a->id));
    memcpy(a->cut, t->plan.cut, sizeof(a->cut));
    a->end_page = t->plan.end_page;
    a->pages = t->plan.n_pages;
    a->bytes = t->plan.bytes;
    a->deadline_ms = ISO_MIN(t->req.deadline_ms, t->p->opt.max_deadline_ms);
    t->deadline_ns = t->start_ns + a->deadline_ms * ISO_NS_PER_MS;
    (void)snprintf(a->prefix, sizeof(a->prefix), "%s",
                   t->plan.cut[ISO_KV_FULL] > 0 ? "recomputed" : "none");
    iso_buf_init(&text, ISO_FRAME_ACCEPT_MAX);
    enum iso_err err = iso_accept_write(&text, a);
    if (err == ISO_OK) {
        err = iso_channel_send_bytes(t->ch, ISO_FRAME_ACCEPT, t->stream, text.data, text.len,
                                     t->deadline_ns);
    }
    iso_buf_deinit(&text);
    t->accept_ns = iso_clock_ns();
    if (err != ISO_OK) t->reason = iso_channel_reason(t->ch);
    return err;
}

/* --- seal (on the sender's thread, when compute has ended) ----------------------------------- */

static void
fill_manifest(const struct transfer *t, struct iso_manifest *m, const struct iso_digest *digests)
{
    const int64_t *sum_ns = t->timeline.sum_ns;
    const struct iso_engine_info *info = iso_engine_info(t->p->engine);
    *m = (struct iso_manifest){.request = t->req,
                               .end_page = t->plan.end_page,
                               .positions = t->plan.n_positions,
                               .pages = t->plan.n_pages,
                               .bytes = t->plan.bytes,
                               .kernels = info->kernels,
                               .queue_us = (uint64_t)(t->queue_ns / 1000),
                               .compute_us = (uint64_t)(sum_ns[ISO_TIMELINE_COMPUTE] / 1000),
                               .copy_us = (uint64_t)((sum_ns[ISO_TIMELINE_COPY] + sum_ns[ISO_TIMELINE_HASH]) / 1000),
                               .wire_us = (uint64_t)(sum_ns[ISO_TIMELINE_WIRE] / 1000)};
    memcpy(m->cut, t->plan.cut, sizeof(m->cut));
    const int64_t first_ns = t->timeline.first_ns;
    if (first_ns != 0) m->first_us = (uint64_t)((first_ns - t->accept_ns) / 1000);
    iso_sha256(&m->page_digests, digests, t->plan.n_pages * sizeof(*digests));
    (void)snprintf(m->node, sizeof(m->node), "%s", iso_node_name(t->p->node));
    (void)snprintf(m->build, sizeof(m->build), "%s", t->p->build);
    (void)snprintf(m->device, sizeof(m->device), "%s", info->device);
    (void)snprintf(m->isa, sizeof(m->isa), "%s", info->isa);
    memcpy(m->prefix, t->accept.prefix, sizeof(m->prefix));
}

static enum iso_err make_seal(void *arg, struct iso_buf *out, const struct iso_digest *digests)
{
    struct transfer *t = arg;
    struct iso_manifest m;
    struct iso_seal seal;
    fill_manifest(t, &m, digests);
    ISO_TRY(iso_seal_make(out, &t->manifest, &m, digests, t->key, t->p->node));
    ISO_TRY(iso_seal_decode(&seal, out->data, out->len));
    memcpy(t->receipt.signature, seal.signature, seal.signature_len);
    t->receipt.signature_len = seal.signature_len;
    return iso_buf_append(&t->receipt.manifest, seal.manifest, seal.manifest_len);
}

/* --- prefill --------------------------------------------------------------------------------- */

static enum iso_err start_stream(struct transfer *t)
{
    t->reason = ISO_REASON_INTERNAL;
    ISO_TRY(iso_seal_channel_key(t->key, t->ch, t->req.nonce));
    if (t->plan.n_pages > 0) ISO_TRY(iso_producer_take_ring(t->p, &t->ring));
    if (t->ring != NULL) {
        t->ring_slots = t->ring->n_slots;
        t->ring_bytes = t->ring->bytes;
    }
    const struct iso_stream_config config = {.ch = t->ch,
                                             .plan = &t->plan,
                                             .stream = t->stream,
                                             .deadline_ns = t->deadline_ns,
                                             .engine = t->p->engine,
                                             .ring = t->ring,
                                             .timeline = &t->timeline,
                                             .seal = make_seal,
                                             .arg = t};
    return iso_stream_start(&t->out, &config);
}

/* A session for the prompt. Other transfers may hold all of them until their pages are sent. */
static enum iso_err take_session(struct transfer *t)
{
    for (;;) {
        const enum iso_err err = iso_session_new(&t->session, t->p->engine, t->plan.n_positions);
        pthread_mutex_lock(&t->p->lock);
        const unsigned others = t->p->sessions;
        if (err == ISO_OK) t->p->sessions++;
        pthread_mutex_unlock(&t->p->lock);
        if (err == ISO_OK) return ISO_OK;
        if (err != ISO_E_LIMIT || others == 0) {
            t->reason = err == ISO_E_LIMIT ? ISO_REASON_BUSY : ISO_REASON_INTERNAL;
            return err;
        }
        if (watch(t)) return explain(t);
        (void)iso_channel_readable(t->ch, LOOK_MS);
    }
}

/* An iso_kv_ready_fn: the layer's part of the timeline. */
static void layer_computed(void *arg, iso_session *s, uint32_t layer, uint32_t first, uint32_t last)
{
    struct transfer *t = arg;
    const int64_t now = iso_clock_ns();
    const struct iso_interval i = {
        .start_ns = t->layer_ns, .end_ns = now, .layer = layer, .first = first, .end = last};
    (void)s;
    iso_timeline_add(&t->timeline, ISO_TIMELINE_COMPUTE, &i);
    t->layer_ns = now;
}

static enum iso_err compute(struct transfer *t)
{
    const struct iso_progress cancel = {.fn = stop_step, .arg = t};
    const uint32_t n = t->plan.n_positions;
    const uint32_t most = ISO_MIN(n, iso_engine_info(t->p->engine)->n_batch);
    struct iso_row *rows = iso_xalloc(most, sizeof(*rows));
    enum iso_err err = ISO_OK;
    iso_session_on_ready(t->session, iso_stream_ready, t->out);
    iso_session_on_computed(t->session, layer_computed, t);
    for (uint32_t at = 0; at < n;) {
        const uint32_t k = ISO_MIN(t->p->chunk, n - at);
        for (uint32_t i = 0; i < k; i++) {
            rows[i] = (struct iso_row){t->session, t->ids[at + i], ISO_OUTPUT_NONE};
        }
        const int64_t start = t->layer_ns = iso_clock_ns();
        err = iso_step(t->p->engine, rows, k, &cancel);
        t->chunk = ISO_MAX(t->chunk, k);
        at += k;
        if (err != ISO_OK) break;
        iso_producer_adapt_chunk(t->p, k, iso_clock_ns() - start);
        iso_stream_note(t->out, at, 0);
    }
    free(rows);
    if (err == ISO_E_CANCELLED) return explain(t);
    if (err != ISO_OK) t->reason = ISO_REASON_INTERNAL;
    return err;
}

/* Waits for the engine and computes; the pages leave meanwhile. */
static enum iso_err prefill(struct transfer *t)
{
    if (t->plan.n_positions > 0) {
        if (!iso_producer_turn(t->p, stop_queue, t)) return explain(t);
        enum iso_err err = take_session(t);
        t->queue_ns = iso_clock_ns() - t->accept_ns;
        t->timeline.begin_ns = iso_clock_ns();
        if (err == ISO_OK) err = compute(t);
        t->timeline.end_ns = iso_clock_ns();
        iso_producer_unlock(t->p);
        ISO_TRY(err);
    }
    iso_stream_finish(t->out);
    return ISO_OK;
}

static enum iso_err read_ack(struct transfer *t)
{
    uint8_t text[ISO_FRAME_ACK_MAX];
    struct iso_ack ack;
    const size_t len = t->pending.length;
    if (!iso_stream_done(t->out, 0)) {
        ISO_FAIL_REASON(&t->reason, FRAME_ORDER, ISO_E_PROTO, "ACK before the seal");
    }
    const enum iso_err err =
        iso_channel_recv_payload(t->ch, text, len, iso_channel_deadline(GOODBYE_MS));
    t->reason = err == ISO_OK ? ISO_REASON_FRAME_FIELD : iso_channel_reason(t->ch);
    ISO_TRY(err);
    ISO_TRY(iso_ack_parse(&ack, text, len));
    if (ack.generation != t->req.generation ||
        memcmp(&ack.manifest, &t->manifest, sizeof(ack.manifest)) != 0) {
        ISO_FAIL(ISO_E_PROTO, "ACK of another transfer");
    }
    t->reason = ISO_REASON_OK;
    return ISO_OK;
}

static void end_session(struct transfer *t)
{
    if (t->session == NULL) return;
    iso_session_free(t->session);
    t->session = NULL;
    pthread_mutex_lock(&t->p->lock);
    t->p->sessions--;
    pthread_cond_broadcast(&t->p->turn);
    pthread_mutex_unlock(&t->p->lock);
}

/* The rest of the pages, the seal and the consumer's checks all happen before the ACK. The session
 * is given back when the last page is sent: a consumer that takes its time holds no memory here. */
static enum iso_err await_ack(struct transfer *t)
{
    while (!watch(t)) {
        if (iso_stream_done(t->out, 0)) end_session(t);
        (void)iso_channel_readable(t->ch, LOOK_MS);
    }
    if (t->has_pending && t->pending.type == ISO_FRAME_ACK) return read_ack(t);
    return explain(t);
}

/* --- end ------------------------------------------------------------------------------------- */

/* Ends the sender; one that hangs in a send is cut off with the connection. */
static void join_stream(struct transfer *t)
{
    enum iso_reason reason = ISO_REASON_OK;
    if (t->out == NULL) return;
    if (t->reason != ISO_REASON_OK) iso_stream_abort(t->out);
    if (!iso_stream_done(t->out, ABORT_MS)) iso_channel_cancel(t->ch);
    const enum iso_err err = iso_stream_join(t->out, &t->sent, &reason);
    t->out = NULL;
    /* The sender's own failure is the cause when nothing better is known. */
    if (err != ISO_OK && err != ISO_E_CANCELLED && t->reason == ISO_REASON_INTERNAL) {
        t->reason = reason;
    }
}

static void end_stream(struct transfer *t)
{
    join_stream(t);
    iso_producer_give_ring(t->p, t->ring);
    t->ring = NULL;
}

/* Tells the peer, unless it knows or is gone. What this machine is about stays here. */
static void tell(struct transfer *t, enum iso_frame_type type, const char *message)
{
    struct iso_refusal r = {.reason = t->reason};
    struct iso_buf text;
    if (t->peer_told || iso_channel_reason(t->ch) != ISO_REASON_OK) return;
    const bool ours = t->reason == ISO_REASON_INTERNAL || t->reason == ISO_REASON_LEDGER;
    iso_refusal_message(&r, ours ? iso_reason_text(t->reason) : message);
    if (t->reason == ISO_REASON_GENERATION || t->reason == ISO_REASON_LEDGER_ROLLED_BACK) {
        r.high = t->high;
    }
    iso_buf_init(&text, ISO_FRAME_ERROR_MAX);
    if (iso_refusal_write(&text, &r) != ISO_OK ||
        iso_channel_send_bytes(t->ch, type, t->stream, text.data, text.len,
                               iso_channel_deadline(GOODBYE_MS)) != ISO_OK) {
        iso_log(ISO_LOG_DEBUG, "producer", "could not tell %s", iso_reason_name(t->reason));
    }
    iso_buf_deinit(&text);
}

static void write_receipt(struct transfer *t)
{
    struct iso_receipt *r = &t->receipt;
    struct iso_digest pin;
    if (t->p->receipts_path == NULL) return;
    r->producer = true;
    r->reason = t->reason;
    r->time_s = iso_clock_wall_s();
    (void)snprintf(r->node, sizeof(r->node), "%s", iso_node_name(t->p->node));
    (void)snprintf(r->peer, sizeof(r->peer), "%s", iso_channel_peer(t->ch)->name);
    iso_node_identity(t->p->node, &pin, r->spki);
    iso_receipt_set_engine(r, t->p->build, iso_engine_info(t->p->engine));
    r->compute_us = t->timeline.sum_ns[ISO_TIMELINE_COMPUTE] / 1000;
    r->wire_us = r->wire_busy_us = t->timeline.sum_ns[ISO_TIMELINE_WIRE] / 1000;
    r->total_us = (iso_clock_ns() - t->start_ns) / 1000;
    r->pages = t->plan.n_pages;
    r->bytes = t->plan.bytes;
    if (iso_receipt_append(t->p->receipts_path, r) != ISO_OK) {
        iso_log(ISO_LOG_ERROR, "producer", "receipt %s", iso_err_message());
    }
}

static void write_timelines(const struct transfer *t)
{
    const struct iso_engine_info *info = iso_engine_info(t->p->engine);
    const struct iso_timeline_about about = {.request = t->req.id,
                                             .peer = t->attempt.peer,
                                             .device = info->device,
                                             .isa = info->isa,
                                             .n_tokens = t->req.n_ids,
                                             .chunk_rows = t->chunk,
                                             .bytes = t->sent,
                                             .ring_slots = t->ring_slots,
                                             .ring_bytes = t->ring_bytes};
    iso_producer_write_timeline(t->p, &t->timeline, &about);
}

static void count(struct transfer *t, bool accepted)
{
    struct iso_producer_stats *s = &t->p->stats;
    pthread_mutex_lock(&t->p->lock);
    if (t->reason == ISO_REASON_OK)
        s->served++;
    else if (accepted)
        s->failed++;
    else
        s->refused++;
    if (t->timeline.end_ns != 0) s->tokens += t->plan.n_positions;
    s->bytes += t->sent;
    pthread_mutex_unlock(&t->p->lock);
}

static void finish(struct transfer *t, bool accepted, const char *message)
{
    enum iso_reason ignored = ISO_REASON_OK;
    /* Before the disk is written: the peer's next request may be on its way. */
    if (t->entered) iso_producer_leave(t->p, iso_channel_peer(t->ch)->name);
    t->attempt.pages = accepted ? t->plan.n_pages : 0;
    t->attempt.bytes = t->sent;
    if (iso_ledger_finish(t->p->ledger, &t->attempt, t->reason, message, &ignored) != ISO_OK) {
        iso_log(ISO_LOG_ERROR, "producer", "ledger %s", iso_err_message());
    }
    if (t->reason == ISO_REASON_OK) {
        write_receipt(t);
        write_timelines(t);
    }
    count(t, accepted);
    iso_log(ISO_LOG_DEBUG, "producer",
            "transfer peer=%s request=%s reason=%s tokens=%u bytes=%llu compute_ms=%lld let_go_ms=%lld",
            t->attempt.peer, t->attempt.request_id, iso_reason_name(t->reason), t->req.n_ids,
            (unsigned long long)t->sent,
            (long long)(t->timeline.sum_ns[ISO_TIMELINE_COMPUTE] / ISO_NS_PER_MS),
            (long long)((t->let_go_ns + ISO_NS_PER_MS - 1) / ISO_NS_PER_MS));
}

static enum iso_err run_accepted(struct transfer *t)
{
    ISO_TRY(send_accept(t));
    iso_log(ISO_LOG_DEBUG, "producer", "accepted peer=%s request=%s tokens=%u", t->attempt.peer,
            t->attempt.request_id, t->req.n_ids);
    ISO_TRY(start_stream(t));
    ISO_TRY(prefill(t));
    return await_ack(t);
}

static void
begin(struct transfer *t, struct iso_producer *p, struct iso_channel *ch, uint32_t stream)
{
    const struct iso_peer *peer = iso_channel_peer(ch);
    *t = (struct transfer){.p = p,
                           .ch = ch,
                           .stream = stream,
                           .start_ns = iso_clock_ns(),
                           .reason = ISO_REASON_INTERNAL};
    t->attempt = (struct iso_attempt){.role = ISO_LEDGER_PRODUCER, .pin = peer->pin};
    (void)snprintf(t->attempt.peer, sizeof(t->attempt.peer), "%s", peer->name);
    iso_receipt_init(&t->receipt);
    iso_timeline_init(&t->timeline, p->timeline_path != NULL || p->trace_path != NULL);
}

bool iso_producer_transfer(struct iso_producer *p,
                           struct iso_channel *ch,
                           const struct iso_frame *request)
{
    struct transfer t;
    char message[ISO_HANDOFF_MESSAGE_MAX] = "";
    begin(&t, p, ch, request->stream);
    enum iso_err err = receive_request(&t, request);
    if (err == ISO_OK) err = check_request(&t);
    const bool accepted = err == ISO_OK;
    if (accepted) err = run_accepted(&t);
    if (err == ISO_OK)
        t.reason = ISO_REASON_OK;
    else
        (void)snprintf(message, sizeof(message), "%s", iso_err_message());
    end_stream(&t);
    end_session(&t);
    if (t.stop_ns != 0) t.let_go_ns = iso_clock_ns() - t.stop_ns;
    if (err != ISO_OK) tell(&t, accepted ? ISO_FRAME_ERROR : ISO_FRAME_REFUSE, message);
    finish(&t, accepted, message);
    OPENSSL_cleanse(t.key, sizeof(t.key));
    iso_receipt_deinit(&t.receipt);
    iso_timeline_deinit(&t.timeline);
    iso_plan_deinit(&t.plan);
    free(t.ids);
    /* After a refusal the consumer may ask anew, for instance with a new generation. */
    const bool refused = !accepted && t.reason != ISO_REASON_FRAME_FIELD;
    return (err == ISO_OK || refused) && iso_channel_reason(ch) == ISO_REASON_OK;
}
