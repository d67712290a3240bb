/* SPDX-License-Identifier: MIT
 * producer_stream.c - queue of finished pages and the thread that hashes, sends and seals them. */
#include "handoff/producer_stream.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arith/page.h"
#include "base/clock.h"
#include "base/mem.h"
#include "handoff/wait.h"

#define PARTS (ISO_CHANNEL_PARTS_MAX - 1) /* page blocks of a frame; one part is the range */
#define DETAIL_MAX 512                    /* bytes of an error message that changes threads */
#define LOOK_NS (2 * ISO_NS_PER_MS)       /* between two looks at abort while the device is waited for */

/* Whole pages of all heads of a layer. */
struct range {
    uint32_t layer, first, end;
    uint64_t event; /* behind which they are written; 0: they are */
};

struct iso_stream {
    struct iso_stream_config cfg;
    pthread_t thread;
    pthread_mutex_t lock; /* guards all below but what is the thread's */
    pthread_cond_t wake;  /* work for the thread, or it has ended */
    struct range *queue;  /* [cap]; never wraps: each range has a page, so there is room for all */
    size_t cap, head, tail;
    uint32_t *next; /* [n_layers] first page that is not queued yet */
    /* [n_rows] set when ready; a row is the heads of a page of a layer, side by side */
    const uint8_t **rows; /* without a ring: where they are */
    uint32_t *slots;      /* with one: the slot of the device's pool */
    bool finished, aborted, done, failed;
    struct iso_progress_note note;
    enum iso_err err;
    enum iso_reason reason;
    char detail[DETAIL_MAX];
    /* The thread's. */
    struct range now; /* what is left of the range in hand */
    struct iso_digest *digests; /* [plan->n_pages] */
    struct iso_hasher *hasher;
    uint64_t bytes;  /* of pages sent */
    int64_t beat_ns; /* when the last frame was sent */
};

/* Keeps the first failure. */
static void fail(struct iso_stream *st, enum iso_err err, enum iso_reason reason)
{
    pthread_mutex_lock(&st->lock);
    if (!st->failed) {
        st->failed = true;
        st->err = err;
        st->reason = reason;
        (void)snprintf(st->detail, sizeof(st->detail), "%s", iso_err_detail());
    }
    pthread_cond_broadcast(&st->wake);
    pthread_mutex_unlock(&st->lock);
}

/* --- queue --------------------------------------------------------------------------------------
 */

static size_t row_of(const struct iso_plan *p, uint32_t layer, uint32_t page)
{
    return (size_t)(p->base[layer] / p->n_heads) + (page - p->cut[p->layer_class[layer]]);
}

/* Looks up the pages now, on the thread that owns the session. */
static bool resolve(struct iso_stream *st, const iso_session *s, const struct range *r)
{
    const struct iso_plan *p = st->cfg.plan;
    const enum iso_kv_class c = (enum iso_kv_class)p->layer_class[r->layer];
    for (uint32_t page = r->first; page < r->end; page++) {
        const size_t i = row_of(p, r->layer, page);
        if (st->cfg.ring != NULL) {
            st->slots[i] = iso_session_page_slot(s, c, page);
            if (st->slots[i] == UINT32_MAX) return false;
        } else {
            st->rows[i] = iso_session_page(s, r->layer, 0, page);
            if (st->rows[i] == NULL) return false;
        }
    }
    return true;
}

void iso_stream_ready(void *arg, iso_session *s, uint32_t layer, uint32_t first, uint32_t last)
{
    struct iso_stream *st = arg;
    const struct iso_plan *p = st->cfg.plan;
    (void)first;
    const uint32_t end = last >= p->n_positions ? p->end_page : last / ISO_PAGE_POSITIONS;
    const struct range r = {
        .layer = layer, .first = st->next[layer], .end = end, .event = iso_session_ready_event(s)};
    if (r.first >= r.end) return;
    if (!resolve(st, s, &r)) {
        (void)iso_err_raise(ISO_E_SELF_CHECK, __FILE__, __LINE__,
                            "layer %u: a page of %u to %u is not held although it is ready", layer,
                            r.first, r.end);
        fail(st, ISO_E_SELF_CHECK, ISO_REASON_INTERNAL);
        return;
    }
    pthread_mutex_lock(&st->lock);
    assert(st->tail < st->cap);
    st->queue[st->tail++] = r;
    st->next[layer] = end;
    pthread_cond_broadcast(&st->wake);
    pthread_mutex_unlock(&st->lock);
}

void iso_stream_note(struct iso_stream *st, uint64_t done, uint32_t queued)
{
    pthread_mutex_lock(&st->lock);
    st->note.done = done;
    st->note.queued = queued;
    pthread_mutex_unlock(&st->lock);
}

void iso_stream_finish(struct iso_stream *st)
{
    pthread_mutex_lock(&st->lock);
    st->finished = true;
    pthread_cond_broadcast(&st->wake);
    pthread_mutex_unlock(&st->lock);
}

void iso_stream_abort(struct iso_stream *st)
{
    pthread_mutex_lock(&st->lock);
    st->aborted = true;
    pthread_cond_broadcast(&st->wake);
    pthread_mutex_unlock(&st->lock);
}

bool iso_stream_done(struct iso_stream *st, int64_t timeout_ms)
{
    const int64_t limit = iso_clock_ns() + timeout_ms * ISO_NS_PER_MS;
    pthread_mutex_lock(&st->lock);
    while (!st->done && timeout_ms > 0) {
        if (!iso_wait_until(&st->wake, &st->lock, limit)) break;
    }
    const bool done = st->done;
    pthread_mutex_unlock(&st->lock);
    return done;
}

bool iso_stream_failed(struct iso_stream *st)
{
    pthread_mutex_lock(&st->lock);
    const bool failed = st->failed;
    pthread_mutex_unlock(&st->lock);
    return failed;
}

/* --- sender -------------------------------------------------------------------------------------
 */

static struct iso_interval interval(const struct iso_pages_head *h, int64_t start_ns, int64_t end_ns)
{
    return (struct iso_interval){.start_ns = start_ns,
                                 .end_ns = end_ns,
                                 .layer = h->layer,
                                 .first = h->first_page,
                                 .end = h->first_page + h->n_pages};
}

/* Hashes the pages of all heads of one page number. */
static void hash_row(struct iso_stream *st, const uint8_t *bytes, uint32_t layer, uint32_t page)
{
    const struct iso_plan *p = st->cfg.plan;
    for (uint32_t h = 0; h < p->n_heads; h++) {
        iso_hasher_update(st->hasher, bytes + (size_t)h * p->page_bytes, p->page_bytes);
        iso_hasher_final(st->hasher, &st->digests[iso_plan_index(p, layer, h, page)]);
    }
}

/* Sends one frame of pages, whose bytes are blocks[n_blocks] in the order of the wire. */
static enum iso_err send_frame(struct iso_stream *st,
                               const struct iso_pages_head *h,
                               const struct iovec *blocks,
                               int n_blocks)
{
    uint8_t prefix[ISO_FRAME_PAGES_PREFIX_LEN];
    struct iovec parts[ISO_CHANNEL_PARTS_MAX];
    iso_pages_head_encode(prefix, h);
    parts[0] = (struct iovec){.iov_base = prefix, .iov_len = sizeof(prefix)};
    memcpy(parts + 1, blocks, (size_t)n_blocks * sizeof(*blocks));
    const int64_t start = iso_clock_ns();
    if (st->cfg.timeline->first_ns == 0) st->cfg.timeline->first_ns = start;
    ISO_TRY(iso_channel_send(st->cfg.ch, ISO_FRAME_PAGES, 0, st->cfg.stream, parts, n_blocks + 1,
                             st->cfg.deadline_ns));
    st->beat_ns = iso_clock_ns();
    const struct iso_interval wire = interval(h, start, st->beat_ns);
    iso_timeline_add(st->cfg.timeline, ISO_TIMELINE_WIRE, &wire);
    for (int i = 0; i < n_blocks; i++) st->bytes += blocks[i].iov_len;
    return ISO_OK;
}

/* The next frame of the range in hand, from where the pages are. Rows that lie side by side in memory
 * are one block. */
static enum iso_err send_direct(struct iso_stream *st)
{
    const struct iso_plan *p = st->cfg.plan;
    const size_t row = (size_t)p->n_heads * p->page_bytes;
    struct range *r = &st->now;
    struct iovec blocks[PARTS];
    struct iso_pages_head h = {.layer = r->layer, .n_heads = p->n_heads, .first_page = r->first};
    int n = 0;
    const int64_t start = iso_clock_ns();
    while (r->first < r->end && (size_t)h.n_pages * row < ISO_STREAM_FRAME_BYTES) {
        const uint8_t *bytes = st->rows[row_of(p, r->layer, r->first)];
        if (n > 0 && (const uint8_t *)blocks[n - 1].iov_base + blocks[n - 1].iov_len == bytes) {
            blocks[n - 1].iov_len += row;
        } else {
            if (n == PARTS) break;
            blocks[n++] = (struct iovec){.iov_base = (void *)(uintptr_t)bytes, .iov_len = row};
        }
        hash_row(st, bytes, r->layer, r->first++);
        h.n_pages++;
    }
    const struct iso_interval hash = interval(&h, start, iso_clock_ns());
    iso_timeline_add(st->cfg.timeline, ISO_TIMELINE_HASH, &hash);
    return send_frame(st, &h, blocks, n);
}

static bool next_range(struct iso_stream *st)
{
    pthread_mutex_lock(&st->lock);
    if (st->now.first == st->now.end && st->head < st->tail) st->now = st->queue[st->head++];
    pthread_mutex_unlock(&st->lock);
    return st->now.first < st->now.end;
}

/* Starts copies of what is computed, as far as the ring has room. */
static enum iso_err fill_ring(struct iso_stream *st)
{
    struct iso_ring *ring = st->cfg.ring;
    struct range *r = &st->now;
    while (!iso_ring_full(ring) && next_range(st)) {
        /* Asked here, although the copy would wait by itself: the copy engine serves other transfers. */
        const enum iso_err err = iso_kv_event_wait(st->cfg.engine, r->event, 0);
        if (err == ISO_E_AGAIN) return ISO_OK;
        ISO_TRY(err);
        const uint32_t n = ISO_MIN(r->end - r->first, ring->slot_pages);
        const uint32_t *slots = &st->slots[row_of(st->cfg.plan, r->layer, r->first)];
        ISO_TRY(iso_ring_copy(ring, r->layer, r->first, slots, n, r->event));
        r->first += n;
    }
    return ISO_OK;
}

/* Sends the oldest slot of the ring while the copies of the next ones run. */
static enum iso_err send_ring(struct iso_stream *st)
{
    const struct iso_plan *p = st->cfg.plan;
    const struct iso_ring_slot *s = NULL;
    struct iso_ring *ring = st->cfg.ring;
    const size_t row = (size_t)p->n_heads * p->page_bytes;
    ISO_TRY(fill_ring(st));
    enum iso_err err = ring->n_used > 0 ? iso_ring_oldest(ring, &s, LOOK_NS)
                                        : iso_kv_event_wait(st->cfg.engine, st->now.event, LOOK_NS);
    if (err == ISO_E_AGAIN) return ISO_OK;
    if (s == NULL) return err; /* an error, or no copy is under way yet */
    const struct iso_pages_head h = {
        .layer = s->layer, .n_heads = p->n_heads, .first_page = s->first_page, .n_pages = s->n_pages};
    const struct iso_interval copy = interval(&h, s->start_ns, s->start_ns + s->took_ns);
    iso_timeline_add(st->cfg.timeline, ISO_TIMELINE_COPY, &copy);
    const int64_t start = iso_clock_ns();
    for (uint32_t i = 0; i < s->n_pages; i++) hash_row(st, s->bytes + i * row, s->layer, s->first_page + i);
    const struct iso_interval hash = interval(&h, start, iso_clock_ns());
    iso_timeline_add(st->cfg.timeline, ISO_TIMELINE_HASH, &hash);
    const struct iovec block = {.iov_base = s->bytes, .iov_len = s->n_pages * row};
    err = send_frame(st, &h, &block, 1);
    iso_ring_release(ring);
    return err;
}

static enum iso_err send_pages(struct iso_stream *st)
{
    if (st->cfg.ring != NULL) return send_ring(st);
    return next_range(st) ? send_direct(st) : ISO_OK;
}

static enum iso_err beat(struct iso_stream *st)
{
    struct iso_buf text;
    pthread_mutex_lock(&st->lock);
    const struct iso_progress_note note = st->note;
    pthread_mutex_unlock(&st->lock);
    iso_buf_init(&text, ISO_FRAME_PROGRESS_MAX);
    enum iso_err err = iso_progress_write(&text, &note);
    if (err == ISO_OK) {
        err = iso_channel_send_bytes(st->cfg.ch, ISO_FRAME_PROGRESS, st->cfg.stream, text.data,
                                     text.len, st->cfg.deadline_ns);
    }
    iso_buf_deinit(&text);
    st->beat_ns = iso_clock_ns();
    return err;
}

enum work { WORK_PAGES, WORK_BEAT, WORK_SEAL, WORK_STOP };

/* Waits for the next thing to do. */
static enum work next_work(struct iso_stream *st)
{
    const int64_t due = st->beat_ns + ISO_CHANNEL_HEARTBEAT_MS * ISO_NS_PER_MS;
    const bool in_hand =
        st->now.first < st->now.end || (st->cfg.ring != NULL && st->cfg.ring->n_used > 0);
    enum work w = WORK_BEAT;
    pthread_mutex_lock(&st->lock);
    for (;;) {
        if (st->aborted || st->failed)
            w = WORK_STOP;
        else if (iso_clock_ns() >= due)
            w = WORK_BEAT;
        else if (in_hand || st->head < st->tail)
            w = WORK_PAGES;
        else if (st->finished)
            w = WORK_SEAL;
        else {
            (void)iso_wait_until(&st->wake, &st->lock, due);
            continue;
        }
        break;
    }
    pthread_mutex_unlock(&st->lock);
    return w;
}

static enum iso_err send_seal(struct iso_stream *st)
{
    struct iso_buf payload;
    iso_buf_init(&payload, ISO_FRAME_SEAL_MAX);
    enum iso_err err = st->cfg.seal(st->cfg.arg, &payload, st->digests);
    if (err == ISO_OK) {
        err = iso_channel_send_bytes(st->cfg.ch, ISO_FRAME_SEAL, st->cfg.stream, payload.data,
                                     payload.len, st->cfg.deadline_ns);
    }
    iso_buf_deinit(&payload);
    return err;
}

static void *sender(void *arg)
{
    struct iso_stream *st = arg;
    enum iso_err err = ISO_OK;
    enum work w = WORK_BEAT;
    st->beat_ns = iso_clock_ns();
    do {
        w = next_work(st);
        if (w == WORK_PAGES)
            err = send_pages(st);
        else if (w == WORK_BEAT)
            err = beat(st);
        else if (w == WORK_SEAL)
            err = send_seal(st);
    } while (err == ISO_OK && (w == WORK_PAGES || w == WORK_BEAT));
    if (err != ISO_OK) {
        const enum iso_reason r = iso_channel_reason(st->cfg.ch);
        fail(st, err, r == ISO_REASON_OK ? ISO_REASON_INTERNAL : r);
    }
    /* Who joins gives the session back: nothing may still be copied from its pages. */
    if (st->cfg.ring != NULL) {
        err = iso_ring_drain(st->cfg.ring);
        if (err != ISO_OK) fail(st, err, ISO_REASON_INTERNAL);
    }
    pthread_mutex_lock(&st->lock);
    st->done = true;
    pthread_cond_broadcast(&st->wake);
    pthread_mutex_unlock(&st->lock);
    return NULL;
}

/* --- life ---------------------------------------------------------------------------------------
 */

static void stream_free(struct iso_stream *st)
{
    (void)pthread_mutex_destroy(&st->lock);
    (void)pthread_cond_destroy(&st->wake);
    iso_hasher_free(st->hasher);
    free(st->queue);
    free(st->next);
    free((void *)st->rows);
    free(st->slots);
    free(st->digests);
    free(st);
}

enum iso_err iso_stream_start(struct iso_stream **out, const struct iso_stream_config *config)
{
    const struct iso_plan *p = config->plan;
    struct iso_stream *st = iso_xalloc(1, sizeof(*st));
    st->cfg = *config;
    st->cap = (size_t)(p->n_pages / p->n_heads);
    st->queue = iso_xalloc(st->cap + 1, sizeof(*st->queue));
    st->next = iso_xalloc(p->n_layers, sizeof(*st->next));
    if (config->ring != NULL)
        st->slots = iso_xalloc(st->cap + 1, sizeof(*st->slots));
    else
        st->rows = iso_xalloc(st->cap + 1, sizeof(*st->rows));
    st->digests = iso_xalloc((size_t)p->n_pages + 1, sizeof(*st->digests));
    st->hasher = iso_hasher_new();
    st->note.total = p->n_positions;
    for (uint32_t l = 0; l < p->n_layers; l++) st->next[l] = p->cut[p->layer_class[l]];
    (void)pthread_mutex_init(&st->lock, NULL);
    iso_wait_init(&st->wake);
    if (pthread_create(&st->thread, NULL, sender, st) != 0) {
        stream_free(st);
        ISO_FAIL(ISO_E_IO, "no thread to send pages");
    }
    *out = st;
    return ISO_OK;
}

enum iso_err iso_stream_join(struct iso_stream *st, uint64_t *bytes, enum iso_reason *reason)
{
    (void)pthread_join(st->thread, NULL);
    *bytes = st->bytes;
    enum iso_err err = ISO_OK;
    if (st->failed) {
        *reason = st->reason;
        err = iso_err_adopt(st->err, st->detail);
    } else if (st->aborted) {
        *reason = ISO_REASON_CANCELLED;
        err = iso_err_raise(ISO_E_CANCELLED, __FILE__, __LINE__, "the stream was stopped");
    }
    stream_free(st);
    return err;
}
