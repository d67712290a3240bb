/* SPDX-License-Identifier: MIT
 * consumer_dial.c - makes the connection on a thread of its own. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "handoff/consumer_internal.h"
#include "handoff/wait.h"

static void *dial_thread(void *arg)
{
    struct iso_dial *d = arg;
    struct iso_consumer *c = d->c;
    d->err = iso_channel_dial(&d->ch, c->node, c->address, c->peer, d->timeout_ms, &d->report);
    if (d->err != ISO_OK) (void)snprintf(d->detail, sizeof(d->detail), "%s", iso_err_detail());
    pthread_mutex_lock(&c->lock);
    const bool abandoned = d->abandoned;
    d->done = true;
    pthread_cond_broadcast(&c->wake);
    pthread_mutex_unlock(&c->lock);
    if (abandoned && d->err == ISO_OK) iso_channel_free(d->ch);
    return NULL;
}

enum iso_err iso_dial_start(struct iso_dial **out, struct iso_consumer *c, int64_t timeout_ms)
{
    struct iso_dial *d = iso_xalloc(1, sizeof(*d));
    d->c = c;
    d->timeout_ms = timeout_ms;
    if (pthread_create(&d->thread, NULL, dial_thread, d) != 0) {
        free(d);
        ISO_FAIL(ISO_E_IO, "no thread to dial");
    }
    *out = d;
    return ISO_OK;
}

enum iso_err
iso_dial_wait(struct iso_dial *d, struct iso_channel **ch, struct iso_channel_report *report)
{
    struct iso_consumer *c = d->c;
    pthread_mutex_lock(&c->lock);
    while (!d->done && !atomic_load(&c->cancelled)) {
        (void)iso_wait_until(&c->wake, &c->lock, iso_clock_ns() + ISO_NS_PER_S);
    }
    const bool done = d->done;
    pthread_mutex_unlock(&c->lock);
    if (!done) {
        iso_dial_abandon(d);
        report->reason = ISO_REASON_CANCELLED;
        ISO_FAIL(ISO_E_CANCELLED, "cancelled while connecting");
    }
    (void)pthread_join(d->thread, NULL);
    const enum iso_err err = d->err;
    *report = d->report;
    if (err == ISO_OK)
        *ch = d->ch;
    else
        (void)iso_err_adopt(err, d->detail);
    free(d);
    return err;
}

void iso_dial_abandon(struct iso_dial *d)
{
    struct iso_consumer *c = d->c;
    pthread_mutex_lock(&c->lock);
    d->abandoned = true;
    /* It may have ended in between; then its channel is ours to free. */
    struct iso_channel *ch = d->done && d->err == ISO_OK ? d->ch : NULL;
    d->next = c->dials;
    c->dials = d;
    pthread_mutex_unlock(&c->lock);
    iso_channel_free(ch);
}

void iso_dial_reap(struct iso_consumer *c, bool all)
{
    pthread_mutex_lock(&c->lock);
    struct iso_dial **at = &c->dials;
    while (*at != NULL) {
        struct iso_dial *d = *at;
        if (!d->done && !all) {
            at = &d->next;
            continue;
        }
        *at = d->next;
        pthread_mutex_unlock(&c->lock);
        (void)pthread_join(d->thread, NULL);
        free(d);
        pthread_mutex_lock(&c->lock);
        at = &c->dials;
    }
    pthread_mutex_unlock(&c->lock);
}
