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

/* Whole pages of all heads of a layer. */
struct range {
    uint32_t layer, first, end;
};

struct iso_stream {
    struct iso_stream_config cfg;
    pthread_t thread;
    pthread_mutex_t lock; /* guards all below but digests and times, which are the thread's */
    pthread_cond_t wake;  /* work for the thread, or it has ended */
    struct range *queue;  /* [cap]; never wraps: it has room for every range there can be */
    size_t cap, head, tail;
    uint32_t *next;        /* [n_layers] first page that is not queued yet */
    const uint8_t **pages; /* [plan->n_pages] by canonical index, set when ready */
    bool finished, aborted, done, failed;
    struct iso_progress_note note;
    enum iso_err err;
    enum iso_reason reason;
    char detail[DETAIL_MAX];
    struct iso_digest *digests; /* [plan->n_pages] */
    struct iso_hasher *hasher;
    struct iso_stream_times times;
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

/* Looks up the pages now, on the thread that owns the session. */
static bool resolve(struct iso_stream *st, const iso_session *s, const struct range *r)
{
    const struct iso_plan *p = st->cfg.plan;
    for (uint32_t page = r->first; page < r->end; page++) {
        for (uint32_t h = 0; h < p->n_heads; h++) {
            const uint8_t *bytes = iso_session_page(s, r->layer, h, page);
            if (bytes == NULL) return false;
            st->pages[iso_plan_index(p, r->layer, h, page)] = bytes;
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
    const struct range r = {.layer = layer, .first = st->next[layer], .end = end};
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

/* Sends one frame of pages [first, first + n) of heads [head, head + n_heads). */
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
    const int64_t t = iso_clock_ns();
    if (st->times.first_ns == 0) st->times.first_ns = t;
    ISO_TRY(iso_channel_send(st->cfg.ch, ISO_FRAME_PAGES, 0, st->cfg.stream, parts, n_blocks + 1,
                             st->cfg.deadline_ns));
    st->beat_ns = iso_clock_ns();
    st->times.wire_ns += st->beat_ns - t;
    for (int i = 0; i < n_blocks; i++) st->times.bytes += blocks[i].iov_len;
    return ISO_OK;
}

/* Describes one page's heads [head, head + *n_heads) as memory blocks; heads that lie side by side
 * share one. At most max blocks: *n_heads is how many heads fitted. Hashes them as well. */
static int gather(struct iso_stream *st,
                  struct iovec *blocks,
                  int max,
                  uint32_t layer,
                  uint32_t page,
                  uint32_t head,
                  uint32_t *n_heads)
{
    const struct iso_plan *p = st->cfg.plan;
    const int64_t t = iso_clock_ns();
    int n = 0;
    uint32_t h = head;
    for (; h < p->n_heads; h++) {
        const uint64_t i = iso_plan_index(p, layer, h, page);
        const uint8_t *bytes = st->pages[i];
        if (n > 0 && (const uint8_t *)blocks[n - 1].iov_base + blocks[n - 1].iov_len == bytes) {
            blocks[n - 1].iov_len += p->page_bytes;
        } else {
            if (n == max) break;
            blocks[n++] =
                (struct iovec){.iov_base = (void *)(uintptr_t)bytes, .iov_len = p->page_bytes};
        }
        iso_hasher_update(st->hasher, bytes, p->page_bytes);
        iso_hasher_final(st->hasher, &st->digests[i]);
    }
    *n_heads = h - head;
    st->times.copy_ns += iso_clock_ns() - t;
    return n;
}

/* A page whose heads need more than one frame. */
static enum iso_err send_split_page(struct iso_stream *st, uint32_t layer, uint32_t page)
{
    for (uint32_t head = 0; head < st->cfg.plan->n_heads;) {
        struct iovec blocks[PARTS];
        uint32_t n_heads = 0;
        const int n = gather(st, blocks, PARTS, layer, page, head, &n_heads);
        const struct iso_pages_head h = {.layer = layer,
                                         .first_head = head,
                                         .n_heads = n_heads,
                                         .first_page = page,
                                         .n_pages = 1};
        ISO_TRY(send_frame(st, &h, blocks, n));
        head += n_heads;
    }
    return ISO_OK;
}

static bool stopped(struct iso_stream *st)
{
    pthread_mutex_lock(&st->lock);
    const bool stop = st->aborted || st->failed;
    pthread_mutex_unlock(&st->lock);
    return stop;
}

/* Sends a range in frames of about ISO_STREAM_FRAME_BYTES. */
static enum iso_err send_range(struct iso_stream *st, const struct range *r)
{
    const struct iso_plan *p = st->cfg.plan;
    const size_t row = (size_t)p->n_heads * p->page_bytes; /* bytes of a page with all heads */
    uint32_t page = r->first;
    while (page < r->end && !stopped(st)) {
        struct iovec blocks[PARTS];
        struct iso_pages_head h = {.layer = r->layer, .n_heads = p->n_heads, .first_page = page};
        int n = 0;
        while (page < r->end && (size_t)h.n_pages * row < ISO_STREAM_FRAME_BYTES) {
            uint32_t n_heads = 0;
            /* Only whole rows go into a frame of several pages. */
            const int more = gather(st, blocks + n, PARTS - n, r->layer, page, 0, &n_heads);
            if (n_heads < p->n_heads) break;
            n += more;
            page++;
            h.n_pages++;
        }
        if (h.n_pages == 0)
            ISO_TRY(send_split_page(st, r->layer, page++));
        else
            ISO_TRY(send_frame(st, &h, blocks, n));
    }
    return ISO_OK;
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

enum work { WORK_RANGE, WORK_BEAT, WORK_SEAL, WORK_STOP };

/* Waits for the next thing to do. */
static enum work next_work(struct iso_stream *st, struct range *out)
{
    const int64_t due = st->beat_ns + ISO_CHANNEL_HEARTBEAT_MS * ISO_NS_PER_MS;
    enum work w = WORK_BEAT;
    pthread_mutex_lock(&st->lock);
    for (;;) {
        if (st->aborted || st->failed)
            w = WORK_STOP;
        else if (iso_clock_ns() >= due)
            w = WORK_BEAT;
        else if (st->head < st->tail)
            w = WORK_RANGE;
        else if (st->finished)
            w = WORK_SEAL;
        else {
            (void)iso_wait_until(&st->wake, &st->lock, due);
            continue;
        }
        break;
    }
    if (w == WORK_RANGE) *out = st->queue[st->head++];
    pthread_mutex_unlock(&st->lock);
    return w;
}

static enum iso_err send_seal(struct iso_stream *st)
{
    struct iso_buf payload;
    iso_buf_init(&payload, ISO_FRAME_SEAL_MAX);
    enum iso_err err = st->cfg.seal(st->cfg.arg, &payload, st->digests, &st->times);
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
        struct range r;
        w = next_work(st, &r);
        if (w == WORK_RANGE)
            err = send_range(st, &r);
        else if (w == WORK_BEAT)
            err = beat(st);
        else if (w == WORK_SEAL)
            err = send_seal(st);
    } while (err == ISO_OK && (w == WORK_RANGE || w == WORK_BEAT));
    if (err != ISO_OK) {
        const enum iso_reason r = iso_channel_reason(st->cfg.ch);
        fail(st, err, r == ISO_REASON_OK ? ISO_REASON_INTERNAL : r);
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
    free((void *)st->pages);
    free(st->digests);
    free(st);
}

enum iso_err iso_stream_start(struct iso_stream **out, const struct iso_stream_config *config)
{
    const struct iso_plan *p = config->plan;
    struct iso_stream *st = iso_xalloc(1, sizeof(*st));
    st->cfg = *config;
    st->cap = (size_t)config->n_steps * p->n_layers;
    st->queue = iso_xalloc(st->cap + 1, sizeof(*st->queue));
    st->next = iso_xalloc(p->n_layers, sizeof(*st->next));
    st->pages = iso_xalloc((size_t)p->n_pages + 1, sizeof(*st->pages));
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

enum iso_err
iso_stream_join(struct iso_stream *st, struct iso_stream_times *times, enum iso_reason *reason)
{
    (void)pthread_join(st->thread, NULL);
    if (times != NULL) *times = st->times;
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
