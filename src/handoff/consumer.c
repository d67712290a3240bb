/* SPDX-License-Identifier: MIT
 * consumer.c - the consumer's life, its iso_kv_source, commit and receipt, and the policy around
 * it. */
#include "handoff/consumer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "handoff/consumer_internal.h"
#include "handoff/wait.h"

#define PATH_LEN 4096u
#define ACK_MS 2000 /* for the ACK: small, so only a dead connection takes longer */

/* --- after the publish --------------------------------------------------------------------------
 */

static void send_ack(struct iso_consumer *c)
{
    struct iso_buf text;
    const struct iso_ack ack = {.generation = c->attempt.generation,
                                .manifest = c->report.manifest};
    iso_buf_init(&text, ISO_FRAME_ACK_MAX);
    enum iso_err err = iso_ack_write(&text, &ack);
    if (err == ISO_OK) {
        err = iso_channel_send_bytes(c->last_ch, ISO_FRAME_ACK, c->last_stream, text.data, text.len,
                                     iso_channel_deadline(ACK_MS));
    }
    iso_buf_deinit(&text);
    if (err != ISO_OK) iso_log(ISO_LOG_WARN, "consumer", "ack %s", iso_err_message());
}

/* Commit row, then ACK. The pages are verified and in use: a ledger that cannot be written now does
 * not take them away, but it gets no ACK, and the next reservation will fail. */
static void *finish_thread(void *arg)
{
    struct iso_consumer *c = arg;
    enum iso_reason reason = ISO_REASON_OK;
    const int64_t start = iso_clock_ns();
    const enum iso_err err =
        iso_ledger_commit(c->ledger, &c->attempt, &c->report.manifest, &reason);
    const int64_t took = iso_clock_ns() - start;
    c->report.commit_s = (double)took / (double)ISO_NS_PER_S;
    c->report.committed = err == ISO_OK;
    c->receipt.commit_us = took / 1000;
    if (err == ISO_OK)
        send_ack(c);
    else
        iso_log(ISO_LOG_ERROR, "consumer", "commit reason=%s %s", iso_reason_name(reason),
                iso_err_message());
    iso_channel_free(c->last_ch);
    c->last_ch = NULL;
    return NULL;
}

void iso_consumer_settle(struct iso_consumer *c)
{
    if (!c->finishing) return;
    (void)pthread_join(c->finisher, NULL);
    c->finishing = false;
}

static int64_t micros(double s)
{
    return (int64_t)(s * 1e6);
}

static void fill_receipt(struct iso_consumer *c, const struct iso_fetch *f)
{
    struct iso_receipt *r = &c->receipt;
    const struct iso_consumer_report *p = &c->report;
    r->producer = false;
    r->reason = p->reason;
    r->time_s = iso_clock_wall_s();
    (void)snprintf(r->node, sizeof(r->node), "%s", iso_node_name(c->node));
    (void)snprintf(r->peer, sizeof(r->peer), "%s", p->peer);
    iso_receipt_set_engine(r, c->build, iso_engine_info(iso_session_engine(f->s)));
    r->compute_us = (int64_t)f->manifest.compute_us;
    r->wire_us = micros(p->wire_s);
    r->wire_busy_us = micros(p->wire_busy_s);
    r->verify_us = micros(p->verify_s);
    r->install_us = micros(p->install_s);
    r->total_us = micros(p->total_s);
    r->pages = p->pages;
    r->bytes = p->bytes;
    r->computed_locally = p->computed_locally;
    r->audited = p->audited;
    if (c->raw_bytes_s > 0 && p->wire_busy_s > 0) {
        r->raw_share_ppm = micros((double)p->bytes / p->wire_busy_s / c->raw_bytes_s);
    }
    c->has_receipt = true;
}

/* Writes the receipt that waits for the digest of the first logits. */
static void flush_receipt(struct iso_consumer *c)
{
    iso_consumer_settle(c);
    if (!c->has_receipt) return;
    c->has_receipt = false;
    if (c->receipts_path == NULL) return;
    c->receipt.has_logits = c->report.has_logits;
    c->receipt.first_logits = c->report.first_logits;
    if (iso_receipt_append(c->receipts_path, &c->receipt) != ISO_OK) {
        iso_log(ISO_LOG_ERROR, "consumer", "receipt %s", iso_err_message());
    }
}

void iso_handoff_note_first_logits(struct iso_consumer *c, const struct iso_digest *digest)
{
    iso_consumer_settle(c);
    if (!c->has_receipt) return;
    c->report.has_logits = true;
    c->report.first_logits = *digest;
    flush_receipt(c);
}

/* --- fetch --------------------------------------------------------------------------------------
 */

static bool take(struct iso_consumer *c)
{
    pthread_mutex_lock(&c->lock);
    const bool mine = !c->running;
    if (mine) {
        c->running = true;
        atomic_store(&c->cancelled, false);
    }
    pthread_mutex_unlock(&c->lock);
    return mine;
}

static void release(struct iso_consumer *c)
{
    pthread_mutex_lock(&c->lock);
    c->running = false;
    c->ch = NULL;
    pthread_mutex_unlock(&c->lock);
}

static void begin_fetch(struct iso_consumer *c,
                        struct iso_fetch *f,
                        iso_session *s,
                        const int32_t *ids,
                        size_t n,
                        const struct iso_progress *progress)
{
    flush_receipt(c);
    iso_dial_reap(c, false);
    c->report = (struct iso_consumer_report){.n_tokens = (uint32_t)ISO_MIN(n, UINT32_MAX)};
    *f = (struct iso_fetch){.c = c,
                            .s = s,
                            .ids = ids,
                            .n = c->report.n_tokens,
                            .progress = progress,
                            .start_ns = iso_clock_ns(),
                            .deadline_ns = iso_channel_deadline(c->opt.deadline_ms),
                            .report = &c->report};
    f->attempt = (struct iso_attempt){.role = ISO_LEDGER_CONSUMER, .n_tokens = f->n};
    (void)snprintf(f->attempt.peer, sizeof(f->attempt.peer), "%s", c->peer ? c->peer : "");
}

/* Verified and installed: commit and ACK go on behind the caller's back. */
static void succeed(struct iso_consumer *c, const struct iso_fetch *f)
{
    struct iso_consumer_report *r = &c->report;
    r->reason = ISO_REASON_OK;
    r->n_received = f->n - 1;
    r->computed_locally = 1;
    memcpy(r->cut, f->manifest.cut, sizeof(r->cut));
    r->producer_queue_s = (double)f->manifest.queue_us * 1e-6;
    r->producer_compute_s = (double)f->manifest.compute_us * 1e-6;
    r->manifest = f->digest;
    c->attempt = f->attempt;
    c->last_ch = f->ch;
    c->last_stream = f->stream;
    fill_receipt(c, f);
    iso_policy_note_remote(c->policy, f->n - 1, r->producer_compute_s, r->bytes, r->wire_busy_s,
                           r->dial_s + r->accept_s);
    c->finishing = pthread_create(&c->finisher, NULL, finish_thread, c) == 0;
    if (!c->finishing) (void)finish_thread(c);
}

/* A row with the code; a failed audit also leaves a receipt, as evidence. */
static void fail(struct iso_consumer *c, struct iso_fetch *f, enum iso_err err)
{
    enum iso_reason ignored = ISO_REASON_OK;
    struct iso_consumer_report *r = &c->report;
    char detail[512];
    (void)snprintf(detail, sizeof(detail), "%s", iso_err_detail());
    r->reason = f->reason;
    r->from_peer = f->from_peer;
    iso_channel_free(f->ch);
    if (iso_ledger_finish(c->ledger, &f->attempt, f->reason, r->message, &ignored) != ISO_OK) {
        iso_log(ISO_LOG_ERROR, "consumer", "ledger %s", iso_err_message());
    }
    if (f->reason == ISO_REASON_AUDIT) {
        r->manifest = f->digest;
        fill_receipt(c, f);
        flush_receipt(c);
    }
    (void)iso_err_adopt(err, detail);
}

static enum iso_err fetch_taken(struct iso_consumer *c, struct iso_fetch *f)
{
    enum iso_err err = iso_policy_admit(c->policy, iso_clock_ns(), &f->reason);
    const bool admitted = err == ISO_OK;
    if (admitted)
        err = iso_fetch_run(f);
    else
        (void)snprintf(c->report.message, sizeof(c->report.message), "%s", iso_err_message());
    /* From here on a cancel has nothing to cut. */
    pthread_mutex_lock(&c->lock);
    c->ch = NULL;
    const bool cut = atomic_load(&c->cancelled) && err != ISO_OK;
    pthread_mutex_unlock(&c->lock);
    if (cut && f->reason != ISO_REASON_CANCELLED) {
        f->reason = ISO_REASON_CANCELLED;
        err = iso_err_raise(ISO_E_CANCELLED, __FILE__, __LINE__, "cancelled");
    }
    if (err == ISO_OK)
        succeed(c, f);
    else
        fail(c, f, err);
    if (admitted) iso_policy_result(c->policy, c->report.reason, iso_clock_ns());
    iso_log(ISO_LOG_DEBUG, "consumer", "fetch peer=%s request=%s reason=%s tokens=%u bytes=%llu",
            c->report.peer, c->report.request_id, iso_reason_name(c->report.reason), f->n,
            (unsigned long long)c->report.bytes);
    return err;
}

static enum iso_err source_fetch(
    void *arg, iso_session *s, const int32_t *ids, size_t n, const struct iso_progress *progress)
{
    struct iso_consumer *c = arg;
    struct iso_fetch f;
    if (!take(c)) ISO_FAIL(ISO_E_REFUSED, "another fetch of this consumer is running");
    begin_fetch(c, &f, s, ids, n, progress);
    const enum iso_err err = fetch_taken(c, &f);
    release(c);
    return err;
}

static void source_cancel(void *arg)
{
    struct iso_consumer *c = arg;
    pthread_mutex_lock(&c->lock);
    if (c->running) {
        atomic_store(&c->cancelled, true);
        if (c->ch != NULL) iso_channel_cancel(c->ch);
        pthread_cond_broadcast(&c->wake);
    }
    pthread_mutex_unlock(&c->lock);
}

/* Bytes that a hand-off of this prompt would move into this session. */
static enum iso_err plan_bytes(const struct iso_consumer *c,
                               const iso_session *s,
                               const int32_t *ids,
                               uint32_t n,
                               uint64_t *bytes)
{
    struct iso_held held[ISO_KV_CLASSES] = {{0}};
    struct iso_plan plan;
    if (!c->opt.whole) iso_plan_held(held, s, n, iso_session_common(s, ids, n - 1));
    ISO_TRY(iso_plan_init(&plan, iso_engine_kv_layout(iso_session_engine(s)), n, held,
                          c->opt.audit > 0));
    *bytes = plan.bytes;
    iso_plan_deinit(&plan);
    return ISO_OK;
}

static enum iso_err source_offer(
    void *arg, struct iso_kv_offer *out, const iso_session *s, const int32_t *ids, size_t n)
{
    struct iso_consumer *c = arg;
    struct iso_policy_decision d;
    struct iso_kv_offer offer = {0};
    if (n >= 2 && n <= iso_session_n_ctx(s)) {
        ISO_TRY(plan_bytes(c, s, ids, (uint32_t)n, &offer.bytes));
        iso_policy_decide(c->policy, &d, n - 1, offer.bytes, iso_clock_ns());
        offer.seconds = d.remote_s;
        if (d.remote) offer.n_positions = (uint32_t)n - 1;
    }
    *out = offer;
    return ISO_OK;
}

/* --- policy -------------------------------------------------------------------------------------
 */

enum iso_err iso_consumer_decide(struct iso_consumer *c,
                                 struct iso_policy_decision *out,
                                 const iso_session *s,
                                 const int32_t *ids,
                                 size_t n)
{
    uint64_t bytes = 0;
    if (n == 0 || n > UINT32_MAX) ISO_FAIL(ISO_E_ARG, "a prompt of %zu tokens", n);
    ISO_TRY(plan_bytes(c, s, ids, (uint32_t)n, &bytes));
    iso_policy_decide(c->policy, out, n - 1, bytes, iso_clock_ns());
    return ISO_OK;
}

/* Keeps what the session has of the prompt, computes the rest. */
static enum iso_err prefill_here(struct iso_consumer *c,
                                 struct iso_prefill_outcome *o,
                                 iso_session *s,
                                 const int32_t *ids,
                                 size_t n,
                                 const struct iso_progress *progress)
{
    const uint32_t at = iso_session_rewind(s, iso_session_common(s, ids, n - 1));
    const int64_t start = iso_clock_ns();
    ISO_TRY(iso_session_prefill(s, ids + at, n - at, progress));
    iso_policy_note_local(c->policy, n - at,
                          (double)(iso_clock_ns() - start) / (double)ISO_NS_PER_S);
    o->reused = at;
    o->computed_locally = (uint32_t)(n - at);
    return ISO_OK;
}

/* After a fetch: the last token, and its logits for the receipt. */
static enum iso_err last_token(struct iso_consumer *c,
                               struct iso_prefill_outcome *o,
                               iso_session *s,
                               const int32_t *ids,
                               size_t n)
{
    struct iso_digest d;
    ISO_TRY(iso_session_decode(s, ids[n - 1]));
    iso_logits_digest(&d, iso_session_logits(s), iso_engine_info(iso_session_engine(s))->n_vocab);
    iso_handoff_note_first_logits(c, &d);
    o->remote = true;
    o->computed_locally = c->report.computed_locally;
    return ISO_OK;
}

enum iso_err iso_consumer_prefill(struct iso_consumer *c,
                                  struct iso_prefill_outcome *outcome,
                                  iso_session *s,
                                  const int32_t *ids,
                                  size_t n,
                                  const struct iso_progress *progress)
{
    struct iso_prefill_outcome o = {0};
    ISO_TRY(iso_consumer_decide(c, &o.decision, s, ids, n));
    if (o.decision.remote) {
        const enum iso_err err = source_fetch(c, s, ids, n, progress);
        o.reason = c->report.reason;
        if (err == ISO_OK) {
            ISO_TRY(last_token(c, &o, s, ids, n));
            *outcome = o;
            return ISO_OK;
        }
        if (c->opt.mode == ISO_POLICY_REMOTE || err == ISO_E_CANCELLED) return err;
        o.fell_back = true;
        iso_log(ISO_LOG_WARN, "consumer", "fallback reason=%s %s", iso_reason_name(o.reason),
                c->report.message);
    }
    ISO_TRY(prefill_here(c, &o, s, ids, n, progress));
    *outcome = o;
    return ISO_OK;
}

/* --- life ---------------------------------------------------------------------------------------
 */

static char *copy(const char *s)
{
    return s == NULL ? NULL : iso_xstrdup(s);
}

static char *receipts_path(const struct iso_node *node, const char *path)
{
    char buf[PATH_LEN];
    if (path != NULL) return path[0] == '\0' ? NULL : iso_xstrdup(path);
    (void)snprintf(buf, sizeof(buf), "%s/%s", iso_node_dir(node), ISO_RECEIPT_FILE);
    return iso_xstrdup(buf);
}

static enum iso_err
open_consumer(struct iso_consumer *c, const struct iso_consumer_options *o, enum iso_reason *reason)
{
    if (o->address == NULL) ISO_FAIL(ISO_E_ARG, "no address of a producer");
    if (o->peer != NULL) ISO_TRY(iso_node_check_name(o->peer));
    ISO_TRY(iso_node_ready(c->node));
    ISO_TRY(iso_ledger_open(&c->ledger, c->node, o->ledger_path, reason));
    return o->no_probe ? ISO_OK : iso_ledger_probe(c->ledger, NULL, reason);
}

enum iso_err iso_consumer_new(struct iso_consumer **out,
                              struct iso_node *node,
                              const struct iso_consumer_options *options,
                              enum iso_reason *reason)
{
    struct iso_consumer *c = iso_xalloc(1, sizeof(*c));
    enum iso_reason why = ISO_REASON_INTERNAL;
    c->node = node;
    c->opt = *options;
    if (c->opt.deadline_ms == 0) c->opt.deadline_ms = ISO_CONSUMER_DEADLINE_MS;
    c->opt.deadline_ms = ISO_MIN(c->opt.deadline_ms, ISO_HANDOFF_DEADLINE_MAX_MS);
    if (c->opt.dial_ms == 0) c->opt.dial_ms = ISO_CONSUMER_DIAL_MS;
    c->address = copy(options->address);
    c->peer = copy(options->peer);
    c->build = copy(options->build);
    c->receipts_path = receipts_path(node, options->receipts_path);
    c->policy = iso_policy_new(options->mode);
    c->source = (struct iso_kv_source){.name = "producer",
                                       .arg = c,
                                       .offer = source_offer,
                                       .fetch = source_fetch,
                                       .cancel = source_cancel};
    iso_receipt_init(&c->receipt);
    (void)pthread_mutex_init(&c->lock, NULL);
    iso_wait_init(&c->wake);
    const enum iso_err err = open_consumer(c, options, &why);
    if (err != ISO_OK) {
        if (reason != NULL) *reason = why;
        iso_consumer_free(c);
        return err;
    }
    *out = c;
    return ISO_OK;
}

void iso_consumer_free(struct iso_consumer *c)
{
    if (c == NULL) return;
    flush_receipt(c);
    iso_dial_reap(c, true);
    iso_ledger_free(c->ledger);
    iso_policy_free(c->policy);
    iso_receipt_deinit(&c->receipt);
    (void)pthread_cond_destroy(&c->wake);
    (void)pthread_mutex_destroy(&c->lock);
    free(c->address);
    free(c->peer);
    free(c->build);
    free(c->receipts_path);
    free(c);
}

const struct iso_kv_source *iso_consumer_source(struct iso_consumer *c)
{
    return &c->source;
}

const struct iso_consumer_report *iso_consumer_last_report(struct iso_consumer *c)
{
    iso_consumer_settle(c);
    return &c->report;
}

void iso_consumer_set_raw_rate(struct iso_consumer *c, double bytes_s)
{
    c->raw_bytes_s = bytes_s;
}

struct iso_policy *iso_consumer_policy(struct iso_consumer *c)
{
    return c->policy;
}
