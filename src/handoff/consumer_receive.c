/* SPDX-License-Identifier: MIT
 * consumer_receive.c - receiving, hashing and checking pages; the consumer's heartbeats. */
#include "handoff/consumer_receive.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "handoff/wait.h"

/* A page in its place, to be hashed. */
struct arrived {
    const uint8_t *bytes;
    uint32_t layer, head, page;
};

struct iso_intake {
    struct iso_intake_config cfg;
    pthread_t thread;
    pthread_mutex_t lock; /* guards n_arrived, n_hashed, stop */
    pthread_cond_t wake;
    struct arrived *arrived; /* [plan->n_pages] in order of arrival, each index once */
    uint64_t n_arrived, n_hashed;
    bool stop;
    uint8_t *seen; /* [plan->n_pages] by canonical index; the receiver's */
    struct iso_digest *digests;
    struct iso_hasher *hasher;
    bool bad_form; /* the hasher's until all are hashed */
    struct arrived bad;
    const char *bad_why;
    struct iso_intake_stats stats; /* the receiver's */
};

/* --- second thread ------------------------------------------------------------------------------
 */

static void check_page(struct iso_intake *in, const struct arrived *a)
{
    const struct iso_plan *p = in->cfg.plan;
    const char *why = NULL;
    iso_hasher_update(in->hasher, a->bytes, p->page_bytes);
    iso_hasher_final(in->hasher, &in->digests[iso_plan_index(p, a->layer, a->head, a->page)]);
    if (in->bad_form) return;
    if (!iso_kv_page_form(&why, a->bytes, p->head_dim, iso_plan_used(p, a->page))) {
        in->bad_form = true;
        in->bad = *a;
        in->bad_why = why;
    }
}

static void beat(struct iso_intake *in)
{
    /* A failure shows on the receiving side, which has the better reason. */
    const enum iso_err err = iso_channel_send_bytes(in->cfg.ch, ISO_FRAME_PROGRESS, in->cfg.stream,
                                                    NULL, 0, in->cfg.deadline_ns);
    (void)err;
}

/* Next page to hash, or NULL when it is time for a heartbeat or to stop (*stop). */
static const struct arrived *next_page(struct iso_intake *in, int64_t due, bool *stop)
{
    const struct arrived *a = NULL;
    pthread_mutex_lock(&in->lock);
    for (;;) {
        *stop = in->stop;
        if (in->stop || iso_clock_ns() >= due) break;
        if (in->n_hashed < in->n_arrived) {
            a = &in->arrived[in->n_hashed];
            break;
        }
        (void)iso_wait_until(&in->wake, &in->lock, due);
    }
    pthread_mutex_unlock(&in->lock);
    return a;
}

static void *checker(void *arg)
{
    struct iso_intake *in = arg;
    int64_t due = iso_clock_ns() + ISO_CHANNEL_HEARTBEAT_MS * ISO_NS_PER_MS;
    bool stop = false;
    while (!stop) {
        const struct arrived *a = next_page(in, due, &stop);
        if (a != NULL) {
            check_page(in, a);
            pthread_mutex_lock(&in->lock);
            if (++in->n_hashed == in->n_arrived) pthread_cond_broadcast(&in->wake);
            pthread_mutex_unlock(&in->lock);
        } else if (!stop) {
            beat(in);
            due = iso_clock_ns() + ISO_CHANNEL_HEARTBEAT_MS * ISO_NS_PER_MS;
        }
    }
    return NULL;
}

/* --- receiver -----------------------------------------------------------------------------------
 */

/* Receives one page into its place. *slot describes it for the other thread. */
static enum iso_err receive_page(struct iso_intake *in,
                                 struct arrived *slot,
                                 uint32_t layer,
                                 uint32_t head,
                                 uint32_t page,
                                 enum iso_reason *reason)
{
    const struct iso_plan *p = in->cfg.plan;
    const uint64_t i = iso_plan_index(p, layer, head, page);
    if (in->seen[i]) {
        ISO_FAIL_REASON(reason, PAGE_TWICE, ISO_E_PROTO, "layer %u head %u page %u came twice",
                        layer, head, page);
    }
    uint8_t *dst = iso_kv_staging_page(in->cfg.staging, layer, head, page);
    if (dst == NULL) {
        ISO_FAIL_REASON(reason, PAGE_RANGE, ISO_E_PROTO, "layer %u head %u page %u is not staged",
                        layer, head, page);
    }
    const enum iso_err err =
        iso_channel_recv_payload(in->cfg.ch, dst, p->page_bytes, in->cfg.deadline_ns);
    if (err != ISO_OK) {
        *reason = iso_channel_reason(in->cfg.ch);
        return err;
    }
    in->seen[i] = 1;
    *slot = (struct arrived){.bytes = dst, .layer = layer, .head = head, .page = page};
    return ISO_OK;
}

/* Hands the pages of a frame, or of a part of it, to the other thread. */
static void hand_over(struct iso_intake *in, uint64_t n)
{
    pthread_mutex_lock(&in->lock);
    in->n_arrived += n;
    pthread_cond_broadcast(&in->wake);
    pthread_mutex_unlock(&in->lock);
    in->stats.pages += n;
    in->stats.bytes += n * in->cfg.plan->page_bytes;
}

enum iso_err
iso_intake_pages(struct iso_intake *in, const struct iso_frame *f, enum iso_reason *reason)
{
    uint8_t prefix[ISO_FRAME_PAGES_PREFIX_LEN];
    struct iso_pages_head h;
    const int64_t start = iso_clock_ns();
    if (in->stats.first_ns == 0) in->stats.first_ns = start;
    enum iso_err err =
        iso_channel_recv_payload(in->cfg.ch, prefix, sizeof(prefix), in->cfg.deadline_ns);
    if (err != ISO_OK) {
        *reason = iso_channel_reason(in->cfg.ch);
        return err;
    }
    ISO_TRY(iso_pages_head_decode(&h, prefix, f->length, in->cfg.plan, reason));
    for (uint32_t page = h.first_page; page < h.first_page + h.n_pages; page++) {
        for (uint32_t i = 0; i < h.n_heads; i++) {
            /* Only this thread moves n_arrived, and seen[] keeps it below n_pages. */
            ISO_TRY(receive_page(in, &in->arrived[in->n_arrived + i], h.layer, h.first_head + i,
                                 page, reason));
        }
        hand_over(in, h.n_heads);
    }
    in->stats.last_ns = iso_clock_ns();
    in->stats.busy_ns += in->stats.last_ns - start;
    return ISO_OK;
}

enum iso_err iso_intake_settle(struct iso_intake *in, enum iso_reason *reason)
{
    const struct iso_plan *p = in->cfg.plan;
    pthread_mutex_lock(&in->lock);
    while (in->n_hashed < in->n_arrived) {
        (void)iso_wait_until(&in->wake, &in->lock, iso_clock_ns() + ISO_NS_PER_S);
    }
    pthread_mutex_unlock(&in->lock);
    if (in->n_arrived != p->n_pages) {
        ISO_FAIL_REASON(reason, PAGE_MISSING, ISO_E_PROTO, "%llu of %llu pages were sent",
                        (unsigned long long)in->n_arrived, (unsigned long long)p->n_pages);
    }
    if (in->bad_form) {
        ISO_FAIL_REASON(reason, PAGE_FORM, ISO_E_PROTO, "layer %u head %u page %u: %s",
                        in->bad.layer, in->bad.head, in->bad.page, in->bad_why);
    }
    return ISO_OK;
}

const struct iso_digest *iso_intake_digests(const struct iso_intake *in)
{
    return in->digests;
}

void iso_intake_stats(const struct iso_intake *in, struct iso_intake_stats *out)
{
    *out = in->stats;
}

/* --- life ---------------------------------------------------------------------------------------
 */

static void intake_free(struct iso_intake *in)
{
    (void)pthread_mutex_destroy(&in->lock);
    (void)pthread_cond_destroy(&in->wake);
    iso_hasher_free(in->hasher);
    free(in->arrived);
    free(in->seen);
    free(in->digests);
    free(in);
}

enum iso_err iso_intake_start(struct iso_intake **out, const struct iso_intake_config *config)
{
    struct iso_intake *in = iso_xalloc(1, sizeof(*in));
    const size_t n = (size_t)config->plan->n_pages;
    in->cfg = *config;
    in->arrived = iso_xalloc(n, sizeof(*in->arrived));
    in->seen = iso_xalloc(n, sizeof(*in->seen));
    in->digests = iso_xalloc(n, sizeof(*in->digests));
    in->hasher = iso_hasher_new();
    (void)pthread_mutex_init(&in->lock, NULL);
    iso_wait_init(&in->wake);
    if (pthread_create(&in->thread, NULL, checker, in) != 0) {
        intake_free(in);
        ISO_FAIL(ISO_E_IO, "no thread to check pages");
    }
    *out = in;
    return ISO_OK;
}

void iso_intake_stop(struct iso_intake *in)
{
    if (in == NULL) return;
    pthread_mutex_lock(&in->lock);
    in->stop = true;
    pthread_cond_broadcast(&in->wake);
    pthread_mutex_unlock(&in->lock);
    (void)pthread_join(in->thread, NULL);
    intake_free(in);
}
