/* SPDX-License-Identifier: MIT
 * producer.c - the producer's listener, connection threads, queue and quotas. */
#include "handoff/producer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "handoff/manifest.h"
#include "handoff/producer_internal.h"
#include "handoff/producer_stream.h"
#include "handoff/receipt.h"
#include "handoff/wait.h"

#define ACCEPT_MS 200                /* between two looks at finished threads */
#define TURN_NS (20 * ISO_NS_PER_MS) /* between two looks at a waiting peer: well under 100 ms */
#define PATH_LEN 4096u
#define LAYER_NS (40 * ISO_NS_PER_MS) /* longest layer of a chunk: two may be under way when a CANCEL comes */
#define CHUNK_MIN 64u                 /* rows that are never cut further: a page */
#define CHUNK_FIRST 128u

/* --- queue --------------------------------------------------------------------------------------
 */

static uint32_t place_of(const struct iso_producer *p, const struct iso_waiter *w)
{
    uint32_t n = p->computing ? 1 : 0;
    for (const struct iso_waiter *q = p->queue; q != NULL && q != w; q = q->next) n++;
    return n;
}

static void unlink_waiter(struct iso_producer *p, struct iso_waiter *w)
{
    struct iso_waiter **at = &p->queue;
    while (*at != w) at = &(*at)->next;
    *at = w->next;
    p->stats.queued--;
    pthread_cond_broadcast(&p->turn);
}

bool iso_producer_turn(struct iso_producer *p, bool (*stop)(void *arg, uint32_t queued), void *arg)
{
    struct iso_waiter w = {0};
    bool mine = false, give_up = false;
    pthread_mutex_lock(&p->lock);
    struct iso_waiter **at = &p->queue;
    while (*at != NULL) at = &(*at)->next;
    *at = &w;
    p->stats.queued++;
    while (!mine && !give_up) {
        mine = p->queue == &w && !p->computing;
        if (mine) break;
        const uint32_t place = place_of(p, &w);
        (void)iso_wait_until(&p->turn, &p->lock, iso_clock_ns() + TURN_NS);
        pthread_mutex_unlock(&p->lock);
        give_up = stop(arg, place);
        pthread_mutex_lock(&p->lock);
    }
    unlink_waiter(p, &w);
    if (mine) p->computing = true;
    pthread_mutex_unlock(&p->lock);
    return mine;
}

void iso_producer_unlock(struct iso_producer *p)
{
    pthread_mutex_lock(&p->lock);
    p->computing = false;
    pthread_cond_broadcast(&p->turn);
    pthread_mutex_unlock(&p->lock);
}

/* --- rings --------------------------------------------------------------------------------------
 */

enum iso_err iso_producer_take_ring(struct iso_producer *p, struct iso_ring **out)
{
    *out = NULL;
    if (!iso_engine_kv_copies(p->engine)) return ISO_OK;
    pthread_mutex_lock(&p->lock);
    struct iso_ring *r = p->rings;
    if (r != NULL) p->rings = r->next;
    pthread_mutex_unlock(&p->lock);
    if (r == NULL) {
        ISO_TRY(iso_ring_new(&r, p->engine, p->opt.ring_bytes, ISO_STREAM_FRAME_BYTES));
        pthread_mutex_lock(&p->lock);
        p->stats.ring_bytes += r->bytes;
        pthread_mutex_unlock(&p->lock);
    }
    *out = r;
    return ISO_OK;
}

/* Kept for the next transfer: pinning is slow and stops the device for a moment. */
void iso_producer_give_ring(struct iso_producer *p, struct iso_ring *ring)
{
    if (ring == NULL) return;
    pthread_mutex_lock(&p->lock);
    ring->next = p->rings;
    p->rings = ring;
    pthread_mutex_unlock(&p->lock);
}

uint64_t iso_producer_ring_bytes(const struct iso_producer *p)
{
    if (!iso_engine_kv_copies(p->engine)) return 0;
    return iso_ring_bytes(p->engine, p->opt.ring_bytes, ISO_STREAM_FRAME_BYTES);
}

static void free_rings(struct iso_producer *p)
{
    while (p->rings != NULL) {
        struct iso_ring *r = p->rings;
        p->rings = r->next;
        iso_ring_free(r);
    }
}

/* --- chunks and timelines -----------------------------------------------------------------------
 */

/* Where to begin: a GPU with what it is fastest with, a CPU with what even a slow one is soon through. */
static uint32_t first_chunk(const iso_engine *e)
{
    const uint32_t n_batch = iso_engine_info(e)->n_batch;
    return iso_engine_kv_copies(e) ? n_batch : ISO_MIN(n_batch, CHUNK_FIRST);
}

/* Long chunks are faster, but a cancel waits for the layers that are under way. The bits are the same. */
void iso_producer_adapt_chunk(struct iso_producer *p, uint32_t rows, int64_t took_ns)
{
    const struct iso_engine_info *info = iso_engine_info(p->engine);
    const int64_t layer_ns = took_ns / info->n_layers;
    if (rows < p->chunk) return; /* the prompt's end tells nothing */
    if (layer_ns > LAYER_NS && p->chunk >= 2 * CHUNK_MIN)
        p->chunk /= 2;
    else if (layer_ns * 3 < LAYER_NS)
        p->chunk = ISO_MIN(2 * p->chunk, info->n_batch);
}

static void write_file(const struct iso_timeline *timeline,
                       const struct iso_timeline_about *about,
                       const char *path,
                       bool trace)
{
    if (path == NULL || iso_timeline_write(timeline, about, path, trace) == ISO_OK) return;
    iso_log(ISO_LOG_ERROR, "producer", "timeline %s", iso_err_message());
}

void iso_producer_write_timeline(struct iso_producer *p,
                                 const struct iso_timeline *timeline,
                                 const struct iso_timeline_about *about)
{
    pthread_mutex_lock(&p->files);
    write_file(timeline, about, p->timeline_path, false);
    write_file(timeline, about, p->trace_path, true);
    pthread_mutex_unlock(&p->files);
}

/* --- quotas -------------------------------------------------------------------------------------
 */

/* The peer's entry; an idle one of somebody else is taken over when all are used. */
static struct iso_peer_use *use_of(struct iso_producer *p, const char *peer)
{
    struct iso_peer_use *free_one = NULL;
    for (size_t i = 0; i < ISO_COUNT(p->peers); i++) {
        struct iso_peer_use *u = &p->peers[i];
        if (strcmp(u->name, peer) == 0) return u;
        if (u->active == 0 && (free_one == NULL || u->at_ns < free_one->at_ns)) free_one = u;
    }
    if (free_one == NULL) return NULL;
    *free_one =
        (struct iso_peer_use){.tokens = (double)p->opt.peer_tokens_min, .at_ns = iso_clock_ns()};
    (void)snprintf(free_one->name, sizeof(free_one->name), "%s", peer);
    return free_one;
}

static enum iso_err
enter_locked(struct iso_producer *p, const char *peer, uint32_t n_tokens, enum iso_reason *reason)
{
    struct iso_peer_use *u = use_of(p, peer);
    if (u == NULL) ISO_FAIL_REASON(reason, BUSY, ISO_E_REFUSED, "too many peers at once");
    if (u->active >= p->opt.peer_transfers) {
        ISO_FAIL_REASON(reason, QUOTA, ISO_E_REFUSED, "%u transfers at once, allowed %u",
                        u->active + 1, p->opt.peer_transfers);
    }
    const double most = (double)p->opt.peer_tokens_min;
    if (p->opt.peer_tokens_min > 0) {
        const int64_t now = iso_clock_ns();
        const double gained = most * (double)(now - u->at_ns) / (60.0 * (double)ISO_NS_PER_S);
        u->tokens = ISO_MIN(most, u->tokens + gained);
        u->at_ns = now;
        /* A prompt longer than a minute's tokens passes on a full account and leaves a debt. */
        if (u->tokens < (double)n_tokens && u->tokens < most) {
            ISO_FAIL_REASON(reason, QUOTA, ISO_E_REFUSED,
                            "%u tokens, %.0f are left of %llu per minute", n_tokens, u->tokens,
                            (unsigned long long)p->opt.peer_tokens_min);
        }
        u->tokens -= (double)n_tokens;
    }
    u->active++;
    p->stats.active++;
    return ISO_OK;
}

enum iso_err iso_producer_enter(struct iso_producer *p,
                                const char *peer,
                                uint32_t n_tokens,
                                enum iso_reason *reason)
{
    pthread_mutex_lock(&p->lock);
    const enum iso_err err = enter_locked(p, peer, n_tokens, reason);
    pthread_mutex_unlock(&p->lock);
    return err;
}

void iso_producer_leave(struct iso_producer *p, const char *peer)
{
    pthread_mutex_lock(&p->lock);
    struct iso_peer_use *u = use_of(p, peer);
    if (u != NULL && u->active > 0) u->active--;
    p->stats.active--;
    pthread_mutex_unlock(&p->lock);
}

/* --- connections --------------------------------------------------------------------------------
 */

/* A row for somebody who did not get in. Strangers may knock often, and each row is a disk write:
 * one a second for each reason, the rest are counted in the next. */
static void note_stranger(struct iso_producer *p, const struct iso_channel_report *report)
{
    struct iso_attempt a = {.role = ISO_LEDGER_PRODUCER};
    const enum iso_reason r = report->reason;
    const int64_t now = iso_clock_ns();
    pthread_mutex_lock(&p->lock);
    p->stats.refused++;
    const bool quiet = p->logged_ns[r] != 0 && now - p->logged_ns[r] < ISO_NS_PER_S;
    if (quiet) {
        p->unlogged[r]++;
    } else {
        a.count = 1 + p->unlogged[r];
        p->unlogged[r] = 0;
        p->logged_ns[r] = now;
    }
    pthread_mutex_unlock(&p->lock);
    iso_log(ISO_LOG_DEBUG, "producer", "refused remote=%s reason=%s", report->remote,
            iso_reason_name(r));
    if (quiet) return;
    enum iso_reason ignored = ISO_REASON_OK;
    (void)snprintf(a.peer, sizeof(a.peer), "%s", report->node);
    if (iso_ledger_finish(p->ledger, &a, r, report->remote, &ignored) != ISO_OK) {
        iso_log(ISO_LOG_ERROR, "producer", "ledger %s", iso_err_message());
    }
}

/* Waits for a REQUEST; heartbeats may come before it. False when the connection is over. */
static bool next_request(struct iso_producer *p, struct iso_channel *ch, struct iso_frame *f)
{
    const int64_t until = iso_channel_deadline(ISO_PRODUCER_IDLE_MS);
    while (!atomic_load(&p->stopping)) {
        if (iso_channel_recv_header(ch, f, until) != ISO_OK) return false;
        if (f->type == ISO_FRAME_REQUEST) return true;
        /* A CANCEL may cross the answer to the transfer before. */
        if (f->type != ISO_FRAME_PROGRESS && f->type != ISO_FRAME_CANCEL) return false;
        if (iso_channel_skip_payload(ch, until) != ISO_OK) return false;
    }
    return false;
}

static void serve(struct iso_conn *c)
{
    struct iso_producer *p = c->p;
    struct iso_channel_report report = {0};
    struct iso_channel *ch = NULL;
    if (iso_channel_accept(&ch, p->listener, &c->pending, &report) != ISO_OK) {
        note_stranger(p, &report);
        return;
    }
    if (p->opt.silence_ms != 0) iso_channel_set_silence(ch, p->opt.silence_ms);
    pthread_mutex_lock(&p->lock);
    const bool full = p->authenticated == p->opt.max_connections;
    if (!full) {
        p->authenticated++;
        c->ch = ch;
    }
    pthread_mutex_unlock(&p->lock);
    if (full) {
        report.reason = ISO_REASON_BUSY;
        note_stranger(p, &report);
        iso_channel_free(ch);
        return;
    }
    struct iso_frame f;
    while (next_request(p, ch, &f) && iso_producer_transfer(p, ch, &f)) {}
    pthread_mutex_lock(&p->lock);
    p->authenticated--;
    c->ch = NULL;
    pthread_mutex_unlock(&p->lock);
    iso_channel_free(ch);
}

static void *conn_thread(void *arg)
{
    struct iso_conn *c = arg;
    serve(c);
    pthread_mutex_lock(&c->p->lock);
    c->finished = true;
    pthread_mutex_unlock(&c->p->lock);
    return NULL;
}

/* Joins threads that have ended, or all of them. */
static void reap(struct iso_producer *p, bool all)
{
    for (size_t i = 0; i < p->n_conns; i++) {
        struct iso_conn *c = &p->conns[i];
        pthread_mutex_lock(&p->lock);
        const bool join = c->used && (c->finished || all);
        pthread_mutex_unlock(&p->lock);
        if (!join) continue;
        (void)pthread_join(c->thread, NULL);
        pthread_mutex_lock(&p->lock);
        c->used = c->finished = false;
        pthread_mutex_unlock(&p->lock);
    }
}

static struct iso_conn *free_conn(struct iso_producer *p)
{
    struct iso_conn *found = NULL;
    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < p->n_conns && found == NULL; i++) {
        if (!p->conns[i].used) found = &p->conns[i];
    }
    if (found != NULL) {
        *found = (struct iso_conn){.p = p, .used = true};
        p->stats.connections++;
    }
    pthread_mutex_unlock(&p->lock);
    return found;
}

static void start_conn(struct iso_producer *p, struct iso_pending *pending)
{
    struct iso_conn *c = free_conn(p);
    struct iso_channel_report report = {.reason = ISO_REASON_BUSY};
    (void)snprintf(report.remote, sizeof(report.remote), "%s", pending->remote);
    if (c == NULL) {
        iso_listener_drop(p->listener, pending);
        note_stranger(p, &report);
        return;
    }
    c->pending = *pending;
    if (pthread_create(&c->thread, NULL, conn_thread, c) == 0) return;
    iso_listener_drop(p->listener, pending);
    pthread_mutex_lock(&p->lock);
    c->used = false;
    pthread_mutex_unlock(&p->lock);
    note_stranger(p, &report);
}

enum iso_err iso_producer_run(struct iso_producer *p)
{
    enum iso_err err = ISO_OK;
    while (!atomic_load(&p->stopping)) {
        struct iso_pending pending;
        struct iso_channel_report report = {0};
        err = iso_listener_accept(p->listener, &pending, ACCEPT_MS, &report);
        reap(p, false);
        if (err == ISO_OK)
            start_conn(p, &pending);
        else if (err == ISO_E_REFUSED)
            note_stranger(p, &report);
        else if (err != ISO_E_AGAIN)
            break;
    }
    const bool asked = atomic_load(&p->stopping);
    iso_producer_stop(p);
    reap(p, true);
    return asked ? ISO_OK : err;
}

void iso_producer_stop(struct iso_producer *p)
{
    atomic_store(&p->stopping, true);
    iso_listener_cancel(p->listener);
    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < p->n_conns; i++) {
        if (p->conns[i].used && p->conns[i].ch != NULL) iso_channel_cancel(p->conns[i].ch);
    }
    pthread_cond_broadcast(&p->turn);
    pthread_mutex_unlock(&p->lock);
}

/* --- life ---------------------------------------------------------------------------------------
 */

static char *receipts_path(const struct iso_node *node, const char *path)
{
    char buf[PATH_LEN];
    if (path != NULL) return path[0] == '\0' ? NULL : iso_xstrdup(path);
    (void)snprintf(buf, sizeof(buf), "%s/%s", iso_node_dir(node), ISO_RECEIPT_FILE);
    return iso_xstrdup(buf);
}

static enum iso_err
open_producer(struct iso_producer *p, const struct iso_producer_options *o, enum iso_reason *reason)
{
    struct iso_identity id;
    if (o->listen == NULL) ISO_FAIL(ISO_E_ARG, "no address to listen on");
    ISO_TRY(iso_engine_identity(&id, p->engine, NULL));
    ISO_TRY(iso_identity_doc_from(&p->identity, &id));
    ISO_TRY(iso_ledger_open(&p->ledger, p->node, o->ledger_path, reason));
    if (!o->no_probe) ISO_TRY(iso_ledger_probe(p->ledger, NULL, reason));
    ISO_TRY(iso_listener_open(&p->listener, p->node, o->listen));
    if (o->handshake_ms > 0) iso_listener_set_handshake(p->listener, o->handshake_ms);
    return ISO_OK;
}

enum iso_err iso_producer_new(struct iso_producer **out,
                              iso_engine *engine,
                              struct iso_node *node,
                              const struct iso_producer_options *options,
                              enum iso_reason *reason)
{
    struct iso_producer *p = iso_xalloc(1, sizeof(*p));
    enum iso_reason why = ISO_REASON_INTERNAL;
    p->engine = engine;
    p->node = node;
    p->opt = *options;
    if (p->opt.max_deadline_ms == 0) p->opt.max_deadline_ms = ISO_PRODUCER_DEADLINE_MS;
    p->opt.max_deadline_ms = ISO_MIN(p->opt.max_deadline_ms, ISO_HANDOFF_DEADLINE_MAX_MS);
    if (p->opt.max_connections == 0) p->opt.max_connections = ISO_PRODUCER_CONNECTIONS;
    if (p->opt.peer_transfers == 0) p->opt.peer_transfers = ISO_PRODUCER_PEER_TRANSFERS;
    (void)snprintf(p->build, sizeof(p->build), "%s", options->build ? options->build : "");
    p->receipts_path = receipts_path(node, options->receipts_path);
    if (options->timeline_path != NULL) p->timeline_path = iso_xstrdup(options->timeline_path);
    if (options->trace_path != NULL) p->trace_path = iso_xstrdup(options->trace_path);
    p->chunk = first_chunk(engine);
    p->n_conns = p->opt.max_connections + ISO_CHANNEL_UNAUTHENTICATED_MAX;
    p->conns = iso_xalloc(p->n_conns, sizeof(*p->conns));
    (void)pthread_mutex_init(&p->lock, NULL);
    (void)pthread_mutex_init(&p->files, NULL);
    iso_wait_init(&p->turn);
    const enum iso_err err = open_producer(p, options, &why);
    if (err != ISO_OK) {
        if (reason != NULL) *reason = why;
        iso_producer_free(p);
        return err;
    }
    *out = p;
    return ISO_OK;
}

void iso_producer_free(struct iso_producer *p)
{
    if (p == NULL) return;
    iso_listener_free(p->listener);
    iso_ledger_free(p->ledger);
    free_rings(p);
    (void)pthread_cond_destroy(&p->turn);
    (void)pthread_mutex_destroy(&p->lock);
    (void)pthread_mutex_destroy(&p->files);
    free(p->timeline_path);
    free(p->trace_path);
    free(p->receipts_path);
    free(p->conns);
    free(p);
}

uint16_t iso_producer_port(const struct iso_producer *p)
{
    return iso_listener_port(p->listener);
}

void iso_producer_stats(struct iso_producer *p, struct iso_producer_stats *out)
{
    pthread_mutex_lock(&p->lock);
    *out = p->stats;
    out->computing = p->computing;
    pthread_mutex_unlock(&p->lock);
}
