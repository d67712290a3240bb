/* SPDX-License-Identifier: MIT
 * sim_device.h - the CPU as a device with memory of its own: a queue that runs behind, a copy engine, delays.
 *
 * What a GPU does to its host, without one: operations are recorded and run later on another thread,
 * pages are hidden, copies run beside the step, and each layer and each copy may be given a least time.
 * The bits are the CPU's, so whoever reads a page too early gets wrong ones. Everything is in this
 * header because tests of two areas use it and an area links only the files of its own folder.
 */
#ifndef ISO_TESTS_SIM_DEVICE_H
#define ISO_TESTS_SIM_DEVICE_H

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "handoff/wait.h"

#define SIM_OPS 4096u
#define SIM_COPIES 64u
#define SIM_PINNED 64u

enum sim_kind {
    SIM_EMBED, SIM_NORM, SIM_NORM_QUANTIZE, SIM_QUANTIZE, SIM_MATMUL, SIM_HEADS, SIM_ATTENTION, SIM_RESIDUAL,
    SIM_GATHER, SIM_LOGITS, SIM_EVENT
};

struct sim_op {
    enum sim_kind kind;
    union {
        struct iso_op_embed embed;
        struct iso_op_norm norm;
        struct iso_op_norm_quantize norm_quantize;
        struct iso_op_quantize quantize;
        struct iso_op_matmul matmul;
        struct iso_op_heads heads;
        struct iso_op_attention attention;
        struct iso_op_residual residual;
        struct iso_op_gather gather;
        struct iso_op_logits logits;
        uint64_t event;
    };
};

struct sim_copy {
    struct iso_copy_part part[ISO_KV_COPY_PAGES];
    size_t n;
    uint64_t event;
    int64_t took_ns;
};

struct sim {
    struct iso_device_vt vt;
    const struct iso_device_vt *cpu;
    struct iso_device *dev;
    struct iso_queue *cpu_queue;
    uint32_t hidden[ISO_KV_CLASSES]; /* buffers of the pools, 0: none */
    int64_t layer_ns;                /* least time up to each event; set between steps */
    int64_t copy_ns, copy_byte_ps;   /* least time of a copy, and for each byte in picoseconds */
    uint64_t lose_copy;              /* this copy and all later ones fail; 0: none */

    pthread_t worker, copier;
    pthread_mutex_t lock; /* all below */
    pthread_cond_t wake;
    bool stop;
    struct sim_op *op; /* [SIM_OPS]: done < launched <= recorded */
    uint64_t n_recorded, n_launched, n_done;
    uint64_t n_events, event_done;
    struct sim_copy *copy; /* [SIM_COPIES] */
    uint64_t n_copies, copy_done;
    void *pinned[SIM_PINNED];
    size_t pinned_len[SIM_PINNED];
    size_t n_pinned, most_pinned; /* bytes */
    size_t n_transfers;
};

/* Those that are open: the table's functions only get the device. */
static inline struct sim **sim_list(void)
{
    static struct sim *all[8]; /* opened and closed by the test's own thread */
    return all;
}

static inline struct sim *sim_of(struct iso_device *dev)
{
    struct sim **all = sim_list();
    int i = 0;
    while (i < 8 && (all[i] == NULL || all[i]->dev != dev)) i++;
    assert(i < 8); /* else it is not a simulated device */
    return all[i];
}

static inline void sim_nap(int64_t ns)
{
    const struct timespec t = {.tv_sec = ns / ISO_NS_PER_S, .tv_nsec = ns % ISO_NS_PER_S};
    if (ns > 0) (void)nanosleep(&t, NULL);
}

/* --- the queue --------------------------------------------------------------------------------------- */

static inline void sim_run(struct sim *s, const struct sim_op *o)
{
    struct iso_queue *q = s->cpu_queue;
    switch (o->kind) {
    case SIM_EMBED: s->cpu->embed(q, &o->embed); break;
    case SIM_NORM: s->cpu->norm(q, &o->norm); break;
    case SIM_NORM_QUANTIZE: s->cpu->norm_quantize(q, &o->norm_quantize); break;
    case SIM_QUANTIZE: s->cpu->quantize(q, &o->quantize); break;
    case SIM_MATMUL: s->cpu->matmul(q, &o->matmul); break;
    case SIM_HEADS: s->cpu->heads(q, &o->heads); break;
    case SIM_ATTENTION: s->cpu->attention(q, &o->attention); break;
    case SIM_RESIDUAL: s->cpu->residual(q, &o->residual); break;
    case SIM_GATHER: s->cpu->gather(q, &o->gather); break;
    case SIM_LOGITS: s->cpu->logits(q, &o->logits); break;
    case SIM_EVENT: sim_nap(s->layer_ns); break;
    }
}

static inline void *sim_worker(void *arg)
{
    struct sim *s = arg;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->stop && s->n_done == s->n_launched) pthread_cond_wait(&s->wake, &s->lock);
        if (s->n_done == s->n_launched) break;
        const struct sim_op *o = &s->op[s->n_done % SIM_OPS];
        pthread_mutex_unlock(&s->lock);
        sim_run(s, o);
        pthread_mutex_lock(&s->lock);
        if (o->kind == SIM_EVENT) s->event_done = o->event;
        s->n_done++;
        pthread_cond_broadcast(&s->wake);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static inline struct sim_op *sim_record(struct iso_queue *q, enum sim_kind kind)
{
    struct sim *s = (struct sim *)q;
    pthread_mutex_lock(&s->lock);
    assert(s->n_recorded - s->n_done < SIM_OPS);
    struct sim_op *o = &s->op[s->n_recorded++ % SIM_OPS];
    pthread_mutex_unlock(&s->lock);
    o->kind = kind;
    return o;
}

#define SIM_OP(name, KIND)                                                                         \
    static inline void sim_##name(struct iso_queue *q, const struct iso_op_##name *op)             \
    {                                                                                              \
        sim_record(q, SIM_##KIND)->name = *op;                                                     \
    }
SIM_OP(embed, EMBED)
SIM_OP(norm, NORM)
SIM_OP(norm_quantize, NORM_QUANTIZE)
SIM_OP(quantize, QUANTIZE)
SIM_OP(matmul, MATMUL)
SIM_OP(heads, HEADS)
SIM_OP(attention, ATTENTION)
SIM_OP(residual, RESIDUAL)
SIM_OP(gather, GATHER)
SIM_OP(logits, LOGITS)
#undef SIM_OP

/* Waits for everything that was launched. */
static inline void sim_drain(struct sim *s)
{
    pthread_mutex_lock(&s->lock);
    while (s->n_done < s->n_launched) pthread_cond_wait(&s->wake, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

static inline void sim_launch(struct sim *s)
{
    pthread_mutex_lock(&s->lock);
    s->n_launched = s->n_recorded;
    pthread_cond_broadcast(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

static inline enum iso_err sim_begin(struct iso_device *dev, struct iso_queue **queue)
{
    struct sim *s = sim_of(dev);
    *queue = (struct iso_queue *)s;
    return s->cpu->begin(dev, &s->cpu_queue);
}

static inline enum iso_err sim_sync(struct iso_queue *q)
{
    struct sim *s = (struct sim *)q;
    sim_launch(s);
    sim_drain(s);
    return s->cpu->sync(s->cpu_queue);
}

static inline void sim_end(struct iso_queue *q)
{
    struct sim *s = (struct sim *)q;
    pthread_mutex_lock(&s->lock);
    s->n_recorded = s->n_launched; /* what was not launched is dropped */
    pthread_mutex_unlock(&s->lock);
    sim_drain(s);
    s->cpu->end(s->cpu_queue);
}

static inline enum iso_err sim_event_record(struct iso_queue *q, uint64_t *event)
{
    struct sim *s = (struct sim *)q;
    struct sim_op *o = sim_record(q, SIM_EVENT);
    *event = o->event = ++s->n_events; /* the stepping thread's */
    sim_launch(s);
    return ISO_OK;
}

/* Waits until *counter reaches n, at most timeout_ns. */
static inline enum iso_err sim_reach(struct sim *s, const uint64_t *counter, uint64_t n, int64_t timeout_ns)
{
    const int64_t until = iso_clock_ns() + timeout_ns;
    pthread_mutex_lock(&s->lock);
    while (*counter < n && timeout_ns > 0) {
        if (!iso_wait_until(&s->wake, &s->lock, until)) break;
    }
    const bool there = *counter >= n;
    pthread_mutex_unlock(&s->lock);
    return there ? ISO_OK : ISO_E_AGAIN;
}

static inline enum iso_err sim_event_wait(struct iso_device *dev, uint64_t event, int64_t timeout_ns)
{
    struct sim *s = sim_of(dev);
    return sim_reach(s, &s->event_done, event, timeout_ns);
}

/* --- the copy engine ---------------------------------------------------------------------------------- */

static inline void sim_do_copy(struct sim *s, struct sim_copy *c)
{
    const int64_t start = iso_clock_ns();
    size_t len = 0;
    for (size_t i = 0; i < c->n; i++) len += c->part[i].len;
    sim_nap(s->copy_ns + (int64_t)len * s->copy_byte_ps / 1000);
    for (size_t i = 0; i < c->n; i++) {
        memcpy(c->part[i].dst, s->cpu->host(s->dev, c->part[i].src), c->part[i].len);
    }
    c->took_ns = iso_clock_ns() - start;
}

static inline void *sim_copier(void *arg)
{
    struct sim *s = arg;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->stop && s->copy_done == s->n_copies) pthread_cond_wait(&s->wake, &s->lock);
        if (s->copy_done == s->n_copies) break;
        struct sim_copy *c = &s->copy[(s->copy_done + 1) % SIM_COPIES];
        while (!s->stop && s->event_done < c->event) pthread_cond_wait(&s->wake, &s->lock);
        pthread_mutex_unlock(&s->lock);
        sim_do_copy(s, c);
        pthread_mutex_lock(&s->lock);
        s->copy_done++;
        pthread_cond_broadcast(&s->wake);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static inline bool sim_is_pinned(const struct sim *s, const uint8_t *p, size_t len)
{
    for (size_t i = 0; i < SIM_PINNED; i++) {
        const uint8_t *at = s->pinned[i];
        if (at != NULL && p >= at && p + len <= at + s->pinned_len[i]) return true;
    }
    return false;
}

static inline enum iso_err sim_copy_start(struct iso_device *dev, const struct iso_copy_part *parts, size_t n,
                                          uint64_t event, uint64_t *copy)
{
    struct sim *s = sim_of(dev);
    pthread_mutex_lock(&s->lock);
    assert(n > 0 && n <= ISO_KV_COPY_PAGES && s->n_copies - s->copy_done < SIM_COPIES - 1);
    for (size_t i = 0; i < n; i++) assert(sim_is_pinned(s, parts[i].dst, parts[i].len));
    struct sim_copy *c = &s->copy[++s->n_copies % SIM_COPIES];
    memcpy(c->part, parts, n * sizeof(*parts));
    c->n = n;
    c->event = event;
    *copy = s->n_copies;
    pthread_cond_broadcast(&s->wake);
    pthread_mutex_unlock(&s->lock);
    return ISO_OK;
}

static inline enum iso_err sim_copy_wait(struct iso_device *dev, uint64_t copy, int64_t timeout_ns, int64_t *took_ns)
{
    struct sim *s = sim_of(dev);
    ISO_TRY(sim_reach(s, &s->copy_done, copy, timeout_ns));
    pthread_mutex_lock(&s->lock);
    const bool lost = s->lose_copy != 0 && copy >= s->lose_copy;
    const int64_t took = s->copy[copy % SIM_COPIES].took_ns;
    pthread_mutex_unlock(&s->lock);
    if (lost) ISO_FAIL(ISO_E_GPU, "the device was lost in a copy");
    *took_ns = took;
    return ISO_OK;
}

static inline enum iso_err sim_pin(struct iso_device *dev, size_t len, const char *what, void **p)
{
    struct sim *s = sim_of(dev);
    ISO_TRY(iso_mem_alloc(p, len, 1, what));
    pthread_mutex_lock(&s->lock);
    size_t i = 0;
    while (i < SIM_PINNED && s->pinned[i] != NULL) i++;
    assert(i < SIM_PINNED);
    s->pinned[i] = *p;
    s->pinned_len[i] = len;
    s->n_pinned += len;
    s->most_pinned = ISO_MAX(s->most_pinned, s->n_pinned);
    pthread_mutex_unlock(&s->lock);
    return ISO_OK;
}

static inline void sim_unpin(struct iso_device *dev, void *p)
{
    struct sim *s = sim_of(dev);
    pthread_mutex_lock(&s->lock);
    assert(s->copy_done == s->n_copies);
    for (size_t i = 0; i < SIM_PINNED; i++) {
        if (s->pinned[i] != p) continue;
        s->pinned[i] = NULL;
        s->n_pinned -= s->pinned_len[i];
    }
    pthread_mutex_unlock(&s->lock);
    iso_mem_free(p);
}

/* --- memory: in order with the queue -------------------------------------------------------------------- */

static inline void *sim_host(struct iso_device *dev, struct iso_span at)
{
    const struct sim *s = sim_of(dev);
    for (size_t c = 0; c < ISO_KV_CLASSES; c++) {
        if (at.buffer != 0 && at.buffer == s->hidden[c]) return NULL;
    }
    return s->cpu->host(dev, at);
}

static inline enum iso_err sim_upload(struct iso_device *dev, struct iso_span dst, const void *src, size_t len)
{
    struct sim *s = sim_of(dev);
    sim_drain(s);
    s->n_transfers++;
    return s->cpu->upload(dev, dst, src, len);
}

static inline enum iso_err sim_download(struct iso_device *dev, void *dst, struct iso_span src, size_t len)
{
    struct sim *s = sim_of(dev);
    sim_drain(s);
    s->n_transfers++;
    return s->cpu->download(dev, dst, src, len);
}

static inline void sim_zero(struct iso_device *dev, struct iso_span at, size_t len, size_t stride, size_t n)
{
    sim_drain(sim_of(dev));
    sim_of(dev)->cpu->zero(dev, at, len, stride, n);
}

static inline void sim_copy_inside(struct iso_device *dev, struct iso_span dst, struct iso_span src, size_t len)
{
    sim_drain(sim_of(dev));
    sim_of(dev)->cpu->copy(dev, dst, src, len);
}

/* --- life ----------------------------------------------------------------------------------------------- */

static inline void sim_close(struct iso_device *dev)
{
    struct sim *s = sim_of(dev);
    const struct iso_device_vt *cpu = s->cpu;
    pthread_mutex_lock(&s->lock);
    assert(s->n_pinned == 0);
    s->stop = true;
    pthread_cond_broadcast(&s->wake);
    pthread_mutex_unlock(&s->lock);
    (void)pthread_join(s->worker, NULL);
    (void)pthread_join(s->copier, NULL);
    for (int i = 0; i < 8; i++) {
        if (sim_list()[i] == s) sim_list()[i] = NULL;
    }
    (void)pthread_mutex_destroy(&s->lock);
    (void)pthread_cond_destroy(&s->wake);
    free(s->op);
    free(s->copy);
    free(s);
    cpu->close(dev);
}

/* Turns an engine on the CPU, without sessions, into one on a simulated device; ends with the engine. */
static inline struct sim *sim_start(iso_engine *e)
{
    struct sim *s = iso_xalloc(1, sizeof(*s));
    s->cpu = e->dev->vt;
    s->dev = e->dev;
    s->op = iso_xalloc(SIM_OPS, sizeof(*s->op));
    s->copy = iso_xalloc(SIM_COPIES, sizeof(*s->copy));
    for (uint32_t c = 0; c < ISO_KV_CLASSES; c++) {
        if (e->pool[c].n_layers > 0) s->hidden[c] = e->pool[c].buffer;
    }
    s->vt = *s->cpu;
#define SIM_SLOT(name) s->vt.name = sim_##name
    SIM_SLOT(embed), SIM_SLOT(norm), SIM_SLOT(norm_quantize), SIM_SLOT(quantize), SIM_SLOT(matmul), SIM_SLOT(heads);
    SIM_SLOT(attention), SIM_SLOT(residual), SIM_SLOT(gather), SIM_SLOT(logits), SIM_SLOT(begin), SIM_SLOT(sync);
    SIM_SLOT(end), SIM_SLOT(event_record), SIM_SLOT(event_wait), SIM_SLOT(pin), SIM_SLOT(unpin);
    SIM_SLOT(copy_start), SIM_SLOT(copy_wait), SIM_SLOT(host), SIM_SLOT(upload), SIM_SLOT(download);
    SIM_SLOT(zero), SIM_SLOT(close);
#undef SIM_SLOT
    s->vt.copy = sim_copy_inside;
    (void)pthread_mutex_init(&s->lock, NULL);
    iso_wait_init(&s->wake);
    int i = 0;
    while (i < 7 && sim_list()[i] != NULL) i++;
    assert(sim_list()[i] == NULL);
    sim_list()[i] = s;
    const int rc = pthread_create(&s->worker, NULL, sim_worker, s) | pthread_create(&s->copier, NULL, sim_copier, s);
    assert(rc == 0);
    (void)rc;
    e->dev->vt = &s->vt;
    const enum iso_err err = iso_pages_init(e);
    assert(err == ISO_OK);
    (void)err;
    return s;
}

#endif
