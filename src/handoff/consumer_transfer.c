/* SPDX-License-Identifier: MIT
 * consumer_transfer.c - one fetch: reserve, ask, receive, install. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/rand.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "handoff/consumer_internal.h"
#include "handoff/request.h"

#define LOOK_MS 50     /* between two looks at cancel and progress */
#define SMALL_MS 5000  /* for the payload of a small control frame */
#define GOODBYE_MS 500 /* for a CANCEL or ERROR of ours */
#define STREAM 1u      /* one transfer per connection of this consumer */

static double seconds(int64_t ns)
{
    return (double)ns / (double)ISO_NS_PER_S;
}

/* --- before the request -------------------------------------------------------------------------
 */

static enum iso_err check_prompt(struct iso_fetch *f)
{
    const struct iso_engine_info *info = iso_engine_info(iso_session_engine(f->s));
    if (f->n == 0) ISO_FAIL_REASON(&f->reason, NO_IDS, ISO_E_ARG, "the prompt has no ids");
    if (f->n > iso_session_n_ctx(f->s) || f->n > ISO_HANDOFF_IDS_MAX) {
        ISO_FAIL_REASON(&f->reason, CONTEXT_EXCEEDED, ISO_E_CONTEXT,
                        "a prompt of %u tokens, the session has room for %u", f->n,
                        iso_session_n_ctx(f->s));
    }
    for (uint32_t i = 0; i < f->n; i++) {
        if (f->ids[i] < 0 || (uint32_t)f->ids[i] >= info->n_vocab) {
            ISO_FAIL_REASON(&f->reason, ID_OUT_OF_RANGE, ISO_E_ARG,
                            "id %d at %u, the vocabulary has %u", f->ids[i], i, info->n_vocab);
        }
    }
    return ISO_OK;
}

/* What the session holds of this prompt, with the chain digests that the producer will check. */
static void describe_held(struct iso_fetch *f)
{
    memset(f->held, 0, sizeof(f->held));
    if (f->c->opt.whole) return;
    iso_plan_held(f->held, f->s, f->n, iso_session_common(f->s, f->ids, f->n - 1));
    struct iso_digest tenant;
    uint8_t spki[ISO_NODE_SPKI_LEN];
    iso_node_identity(f->c->node, &tenant, spki);
    for (int k = 0; k < ISO_KV_CLASSES; k++) {
        struct iso_held *h = &f->held[k];
        if (h->count == 0) continue;
        iso_chain_digest(&h->chain, &tenant, &f->identity, f->ids, h->first + h->count);
    }
}

static enum iso_err prepare(struct iso_fetch *f)
{
    iso_engine *e = iso_session_engine(f->s);
    struct iso_identity id;
    ISO_TRY(check_prompt(f));
    const enum iso_err err = iso_engine_identity(&id, e, f->progress);
    if (err == ISO_E_CANCELLED) f->reason = ISO_REASON_CANCELLED;
    ISO_TRY(err);
    ISO_TRY(iso_identity_doc_from(&f->identity, &id));
    describe_held(f);
    return iso_plan_init(&f->plan, iso_engine_kv_layout(e), f->n, f->held, f->c->opt.audit > 0);
}

static enum iso_err stage(struct iso_fetch *f)
{
    const enum iso_err err = iso_kv_stage(&f->staging, f->s, f->plan.n_positions, f->plan.cut);
    if (err == ISO_E_LIMIT) f->reason = ISO_REASON_NO_ROOM;
    if (err == ISO_E_CONTEXT) f->reason = ISO_REASON_CONTEXT_EXCEEDED;
    return err;
}

/* Publishes the channel to cancel(); false when that came first. */
static bool expose(struct iso_fetch *f, struct iso_channel *ch)
{
    pthread_mutex_lock(&f->c->lock);
    const bool ok = !atomic_load(&f->c->cancelled);
    f->c->ch = ok ? ch : NULL;
    pthread_mutex_unlock(&f->c->lock);
    return ok;
}

/* Dials while the generation is written. */
static enum iso_err connect_and_reserve(struct iso_fetch *f)
{
    struct iso_consumer *c = f->c;
    struct iso_channel_report report = {0};
    const int64_t start = iso_clock_ns();
    ISO_TRY(iso_dial_start(&f->dial, c, c->opt.dial_ms));
    enum iso_err err = iso_ledger_reserve(c->ledger, &f->attempt, &f->reason);
    if (err != ISO_OK) {
        char detail[512];
        (void)snprintf(detail, sizeof(detail), "%s", iso_err_detail());
        iso_dial_abandon(f->dial);
        f->dial = NULL;
        return iso_err_adopt(err, detail);
    }
    f->report->generation = f->attempt.generation;
    err = iso_dial_wait(f->dial, &f->ch, &report);
    f->dial = NULL;
    f->report->dial_s = seconds(iso_clock_ns() - start);
    (void)snprintf(f->report->peer, sizeof(f->report->peer), "%s", report.node);
    (void)snprintf(f->attempt.peer, sizeof(f->attempt.peer), "%s", report.node);
    f->reason = err == ISO_OK ? ISO_REASON_INTERNAL : report.reason;
    f->from_peer = err != ISO_OK && report.from_peer;
    ISO_TRY(err);
    f->attempt.pin = iso_channel_peer(f->ch)->pin;
    if (c->opt.silence_ms != 0) iso_channel_set_silence(f->ch, c->opt.silence_ms);
    if (!expose(f, f->ch)) ISO_FAIL_REASON(&f->reason, CANCELLED, ISO_E_CANCELLED, "cancelled");
    return iso_ledger_check_peer(c->ledger, iso_channel_peer(f->ch), &f->reason);
}

/* --- waiting ------------------------------------------------------------------------------------
 */

/* Is this fetch to end? */
enum iso_err iso_fetch_check_stop(struct iso_fetch *f)
{
    struct iso_intake_stats stats = {0};
    const struct iso_progress *p = f->progress;
    if (f->intake != NULL) iso_intake_stats(f->intake, &stats);
    const bool stop = p != NULL && p->fn != NULL && p->fn(p->arg, stats.pages, f->plan.n_pages);
    if (stop || atomic_load(&f->c->cancelled)) {
        ISO_FAIL_REASON(&f->reason, CANCELLED, ISO_E_CANCELLED,
                        "cancelled after %llu of %llu pages", (unsigned long long)stats.pages,
                        (unsigned long long)f->plan.n_pages);
    }
    if (iso_clock_ns() > f->deadline_ns) {
        ISO_FAIL_REASON(&f->reason, DEADLINE, ISO_E_TIMEOUT, "%llu of %llu pages at the deadline",
                        (unsigned long long)stats.pages, (unsigned long long)f->plan.n_pages);
    }
    return ISO_OK;
}

/* The next frame of this transfer. */
static enum iso_err next_frame(struct iso_fetch *f, struct iso_frame *frame)
{
    for (;;) {
        ISO_TRY(iso_fetch_check_stop(f));
        const enum iso_err err = iso_channel_try_header(f->ch, frame);
        if (err == ISO_OK) break;
        if (err != ISO_E_AGAIN) {
            f->reason = iso_channel_reason(f->ch);
            return err;
        }
        (void)iso_channel_readable(f->ch, LOOK_MS);
    }
    if (frame->stream == f->stream) return ISO_OK;
    ISO_FAIL_REASON(&f->reason, FRAME_FIELD, ISO_E_PROTO, "%s of stream %u in transfer %u",
                    iso_frame_name(frame->type), frame->stream, f->stream);
}

/* Reads a control payload; text has room for cap bytes. */
static enum iso_err
read_small(struct iso_fetch *f, const struct iso_frame *frame, void *text, size_t cap)
{
    if (frame->length > cap) {
        ISO_FAIL_REASON(&f->reason, FRAME_LENGTH, ISO_E_PROTO, "%s of %u bytes",
                        iso_frame_name(frame->type), frame->length);
    }
    const enum iso_err err =
        iso_channel_recv_payload(f->ch, text, frame->length, iso_channel_deadline(SMALL_MS));
    f->reason = err == ISO_OK ? ISO_REASON_FRAME_FIELD : iso_channel_reason(f->ch);
    return err;
}

/* A frame that ends the transfer from the other side. Always fails. */
static enum iso_err refused(struct iso_fetch *f, const struct iso_frame *frame, uint64_t *high)
{
    uint8_t text[ISO_FRAME_REFUSE_MAX];
    struct iso_refusal r;
    ISO_TRY(read_small(f, frame, text, sizeof(text)));
    ISO_TRY(iso_refusal_parse(&r, text, frame->length));
    f->reason = r.reason;
    f->from_peer = true;
    *high = r.high;
    ISO_FAIL(ISO_E_REFUSED, "by %s: %s", f->report->peer, r.message);
}

static enum iso_err read_progress(struct iso_fetch *f, const struct iso_frame *frame)
{
    uint8_t text[ISO_FRAME_PROGRESS_MAX];
    struct iso_progress_note note;
    ISO_TRY(read_small(f, frame, text, sizeof(text)));
    if (frame->length > 0) ISO_TRY(iso_progress_parse(&note, text, frame->length));
    f->reason = ISO_REASON_INTERNAL;
    return ISO_OK;
}

/* --- request ------------------------------------------------------------------------------------
 */

static void random_id(char *out, size_t cap)
{
    uint8_t raw[12] = {0};
    (void)RAND_bytes(raw, sizeof(raw));
    for (size_t i = 0; i < sizeof(raw) && 2 * i + 3 < cap; i++) {
        (void)snprintf(out + 2 * i, 3, "%02x", raw[i]);
    }
}

static enum iso_err fill_request(struct iso_fetch *f)
{
    struct iso_request *r = &f->req;
    const struct iso_consumer_options *o = &f->c->opt;
    const int64_t left_ms = (f->deadline_ns - iso_clock_ns()) / ISO_NS_PER_MS;
    *r = (struct iso_request){.generation = f->attempt.generation,
                              .identity = f->identity,
                              .n_ids = f->n,
                              .deadline_ms = (uint32_t)ISO_MAX(left_ms, 1),
                              .audit = o->audit > 0,
                              .strict_template = o->strict_template};
    if (RAND_bytes(r->nonce, sizeof(r->nonce)) != 1) ISO_FAIL(ISO_E_IO, "no random bytes");
    random_id(r->id, sizeof(r->id));
    iso_node_ledger_id(f->c->node, r->ledger);
    (void)snprintf(r->consumer, sizeof(r->consumer), "%s", iso_node_name(f->c->node));
    (void)snprintf(r->producer, sizeof(r->producer), "%s", iso_channel_peer(f->ch)->name);
    (void)snprintf(r->lane, sizeof(r->lane), "%s", ISO_HANDOFF_LANE);
    iso_ids_digest(&r->ids, f->ids, f->n);
    memcpy(r->held, f->held, sizeof(r->held));
    memcpy(f->report->request_id, r->id, sizeof(r->id));
    memcpy(f->attempt.request_id, r->id, sizeof(r->id));
    iso_buf_clear(&f->request_text);
    return iso_request_write(&f->request_text, r);
}

static enum iso_err send_request(struct iso_fetch *f)
{
    struct iso_buf payload;
    ISO_TRY(fill_request(f));
    iso_buf_init(&payload, ISO_FRAME_REQUEST_MAX);
    enum iso_err err = iso_request_encode(&payload, &f->req, f->ids);
    if (err == ISO_OK) {
        err = iso_channel_send_bytes(f->ch, ISO_FRAME_REQUEST, f->stream, payload.data, payload.len,
                                     f->deadline_ns);
        if (err != ISO_OK) f->reason = iso_channel_reason(f->ch);
    }
    iso_buf_deinit(&payload);
    return err;
}

static enum iso_err check_accept(struct iso_fetch *f, const struct iso_accept *a)
{
    const struct iso_plan *p = &f->plan;
    if (strcmp(a->id, f->req.id) != 0 || a->deadline_ms > f->req.deadline_ms) {
        ISO_FAIL_REASON(&f->reason, FRAME_FIELD, ISO_E_PROTO, "ACCEPT of another request");
    }
    if (memcmp(a->cut, p->cut, sizeof(a->cut)) != 0 || a->end_page != p->end_page) {
        ISO_FAIL_REASON(&f->reason, CUT, ISO_E_PROTO,
                        "pages %u and %u to %u offered, asked were %u and %u to %u",
                        a->cut[ISO_KV_FULL], a->cut[ISO_KV_WINDOW], a->end_page,
                        p->cut[ISO_KV_FULL], p->cut[ISO_KV_WINDOW], p->end_page);
    }
    if (a->pages != p->n_pages || a->bytes != p->bytes) {
        ISO_FAIL_REASON(&f->reason, TOTALS, ISO_E_PROTO,
                        "%llu pages of %llu bytes, not %llu of %llu", (unsigned long long)a->pages,
                        (unsigned long long)a->bytes, (unsigned long long)p->n_pages,
                        (unsigned long long)p->bytes);
    }
    if (f->c->opt.strict_template && !a->template_equal) {
        ISO_FAIL_REASON(&f->reason, TEMPLATE, ISO_E_REFUSED, "the chat templates differ");
    }
    f->report->template_equal = a->template_equal;
    memcpy(f->report->prefix, a->prefix, sizeof(a->prefix));
    f->deadline_ns = ISO_MIN(f->deadline_ns, iso_channel_deadline(a->deadline_ms));
    return ISO_OK;
}

/* Waits for ACCEPT. *high: of a refusal. */
static enum iso_err await_accept(struct iso_fetch *f, uint64_t *high)
{
    for (;;) {
        struct iso_frame frame;
        ISO_TRY(next_frame(f, &frame));
        if (frame.type == ISO_FRAME_REFUSE || frame.type == ISO_FRAME_ERROR) {
            return refused(f, &frame, high);
        }
        if (frame.type == ISO_FRAME_PROGRESS) {
            ISO_TRY(read_progress(f, &frame));
            continue;
        }
        if (frame.type != ISO_FRAME_ACCEPT) {
            ISO_FAIL_REASON(&f->reason, FRAME_ORDER, ISO_E_PROTO, "%s before ACCEPT",
                            iso_frame_name(frame.type));
        }
        uint8_t text[ISO_FRAME_REFUSE_MAX];
        struct iso_accept a;
        ISO_TRY(read_small(f, &frame, text, sizeof(text)));
        ISO_TRY(iso_accept_parse(&a, text, frame.length));
        return check_accept(f, &a);
    }
}

/* The producer saw a higher generation of this ledger. Another connection of this node may have
 * overtaken us: then a new one is reserved. If this ledger never gave out so high a number, it is
 * an old copy, and this node is closed to the producer. */
static enum iso_err overtaken(struct iso_fetch *f, enum iso_err err, uint64_t high)
{
    uint64_t own = 0;
    enum iso_reason ignored = ISO_REASON_OK;
    if (iso_ledger_highest(f->c->ledger, &own, &f->reason) != ISO_OK) return ISO_E_IO;
    if (high > own) {
        ISO_TRY(iso_ledger_mark(f->c->ledger, iso_channel_peer(f->ch),
                                ISO_REASON_LEDGER_ROLLED_BACK, &f->reason));
        ISO_FAIL_REASON(&f->reason, LEDGER_ROLLED_BACK, err,
                        "%s saw generation %llu, this ledger only knows %llu: it is an old copy",
                        f->report->peer, (unsigned long long)high, (unsigned long long)own);
    }
    ISO_TRY(iso_ledger_finish(f->c->ledger, &f->attempt, f->reason, "overtaken", &ignored));
    ISO_TRY(iso_ledger_reserve(f->c->ledger, &f->attempt, &f->reason));
    f->report->generation = f->attempt.generation;
    f->from_peer = false;
    return ISO_OK;
}

static enum iso_err ask(struct iso_fetch *f)
{
    const int64_t start = iso_clock_ns();
    for (int i = 0;; i++) {
        uint64_t high = 0;
        ISO_TRY(send_request(f));
        const enum iso_err err = await_accept(f, &high);
        if (err == ISO_OK) break;
        const bool order = f->from_peer && (f->reason == ISO_REASON_GENERATION ||
                                            f->reason == ISO_REASON_LEDGER_ROLLED_BACK);
        if (!order || i + 1 == ISO_CONSUMER_RESERVE_TRIES) return err;
        ISO_TRY(overtaken(f, err, high));
    }
    f->accept_ns = iso_clock_ns();
    f->report->accept_s = seconds(f->accept_ns - start);
    f->reason = ISO_REASON_INTERNAL;
    return ISO_OK;
}

/* --- pages and seal -----------------------------------------------------------------------------
 */

static enum iso_err read_seal(struct iso_fetch *f, const struct iso_frame *frame, uint8_t **payload)
{
    const uint64_t most = ISO_SEAL_HEAD_LEN + ISO_HANDOFF_MANIFEST_JSON_MAX + ISO_SEAL_MAC_LEN +
                          ISO_NODE_SIG_MAX + f->plan.n_pages * ISO_DIGEST_LEN;
    void *mem = NULL;
    if (frame->length > most) {
        ISO_FAIL_REASON(&f->reason, FRAME_LENGTH, ISO_E_PROTO, "a SEAL of %u bytes for %llu pages",
                        frame->length, (unsigned long long)f->plan.n_pages);
    }
    ISO_TRY(iso_mem_alloc(&mem, frame->length, 1, "seal"));
    const enum iso_err err = iso_channel_recv_payload(f->ch, mem, frame->length, f->deadline_ns);
    if (err != ISO_OK) {
        f->reason = iso_channel_reason(f->ch);
        iso_mem_free(mem);
        return err;
    }
    *payload = mem;
    return ISO_OK;
}

/* Pages in any order until the seal. */
static enum iso_err receive(struct iso_fetch *f, struct iso_frame *frame)
{
    for (;;) {
        uint64_t high = 0;
        ISO_TRY(next_frame(f, frame));
        switch (frame->type) {
        case ISO_FRAME_PROGRESS:
            ISO_TRY(read_progress(f, frame));
            break;
        case ISO_FRAME_PAGES:
            ISO_TRY(iso_intake_pages(f->intake, frame, &f->reason));
            break;
        case ISO_FRAME_SEAL:
            return ISO_OK;
        case ISO_FRAME_ERROR:
        case ISO_FRAME_CANCEL:
            return refused(f, frame, &high);
        default:
            ISO_FAIL_REASON(&f->reason, FRAME_ORDER, ISO_E_PROTO, "%s among the pages",
                            iso_frame_name(frame->type));
        }
    }
}

static enum iso_err receive_and_verify(struct iso_fetch *f)
{
    struct iso_frame frame;
    uint8_t *payload = NULL;
    ISO_TRY(receive(f, &frame));
    ISO_TRY(read_seal(f, &frame, &payload));
    const int64_t start = iso_clock_ns();
    const enum iso_err err = iso_fetch_verify(f, payload, frame.length);
    iso_mem_free(payload);
    f->report->verify_s = seconds(iso_clock_ns() - start);
    return err;
}

/* --- the whole ----------------------------------------------------------------------------------
 */

static enum iso_err exchange(struct iso_fetch *f)
{
    const struct iso_intake_config config = {.ch = f->ch,
                                             .plan = &f->plan,
                                             .staging = f->staging,
                                             .stream = f->stream,
                                             .deadline_ns = f->deadline_ns};
    ISO_TRY(iso_intake_start(&f->intake, &config));
    ISO_TRY(ask(f));
    ISO_TRY(receive_and_verify(f));
    ISO_TRY(iso_fetch_audit(f));
    /* Last look: from here on nothing can fail. */
    return iso_fetch_check_stop(f);
}

static void report_wire(struct iso_fetch *f)
{
    struct iso_intake_stats s = {0};
    struct iso_consumer_report *r = f->report;
    if (f->intake == NULL) return;
    iso_intake_stats(f->intake, &s);
    r->pages = f->attempt.pages = s.pages;
    r->bytes = f->attempt.bytes = s.bytes;
    if (s.first_ns == 0) return;
    if (f->accept_ns != 0) r->first_s = seconds(s.first_ns - f->accept_ns);
    r->wire_s = seconds(s.last_ns - s.first_ns);
    r->wire_busy_s = seconds(s.busy_ns);
}

/* Tells the producer why, when it is still there and does not know. */
static void say_goodbye(struct iso_fetch *f, const char *message)
{
    struct iso_refusal r = {.reason = f->reason};
    struct iso_buf text;
    if (f->ch == NULL || f->from_peer || iso_channel_reason(f->ch) != ISO_REASON_OK) return;
    iso_refusal_message(&r, f->reason == ISO_REASON_INTERNAL ? "" : message);
    const bool cancel = f->reason == ISO_REASON_CANCELLED || f->reason == ISO_REASON_DEADLINE;
    iso_buf_init(&text, ISO_FRAME_CANCEL_MAX);
    enum iso_err err = iso_refusal_write(&text, &r);
    if (err == ISO_OK) {
        err = iso_channel_send_bytes(f->ch, cancel ? ISO_FRAME_CANCEL : ISO_FRAME_ERROR, f->stream,
                                     text.data, text.len, iso_channel_deadline(GOODBYE_MS));
    }
    if (err != ISO_OK) iso_log(ISO_LOG_DEBUG, "consumer", "goodbye %s", iso_err_message());
    iso_buf_deinit(&text);
}

static enum iso_err run(struct iso_fetch *f)
{
    ISO_TRY(prepare(f));
    ISO_TRY(stage(f));
    ISO_TRY(connect_and_reserve(f));
    ISO_TRY(exchange(f));
    const int64_t start = iso_clock_ns();
    iso_kv_publish(f->staging, f->ids);
    f->staging = NULL;
    f->report->install_s = seconds(iso_clock_ns() - start);
    return ISO_OK;
}

/* Gives everything back after a failure; the message stays the one of the failure. */
static void undo(struct iso_fetch *f, enum iso_err err)
{
    char detail[512];
    (void)snprintf(f->report->message, sizeof(f->report->message), "%s", iso_err_message());
    (void)snprintf(detail, sizeof(detail), "%s", iso_err_detail());
    say_goodbye(f, f->report->message);
    iso_kv_discard(f->staging);
    f->staging = NULL;
    (void)iso_err_adopt(err, detail);
}

enum iso_err iso_fetch_run(struct iso_fetch *f)
{
    f->stream = STREAM;
    f->reason = ISO_REASON_INTERNAL;
    iso_buf_init(&f->request_text, ISO_HANDOFF_REQUEST_JSON_MAX);
    const enum iso_err err = run(f);
    report_wire(f);
    f->report->total_s = seconds(iso_clock_ns() - f->start_ns);
    /* First of all: its thread reads the staged pages and this frame's plan. */
    iso_intake_stop(f->intake);
    f->intake = NULL;
    if (err != ISO_OK) undo(f, err);
    iso_buf_deinit(&f->request_text);
    iso_plan_deinit(&f->plan);
    return err;
}
