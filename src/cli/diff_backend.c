/* SPDX-License-Identifier: MIT
 * diff_backend.c - a run on this machine that stops at each boundary until it has been compared.
 *
 * The engine's tap is called inside a step, so each backend steps on a thread of its own: its tap
 * hands out the tensor where it lies and waits. Two backends thus compute side by side and hold no
 * copy of anything. A producer's pages come into the session of such an engine that never steps. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/diff_side.h"
#include "cli/interrupt.h"
#include "engine/engine.h"

enum state {
    COMPUTING, /* the thread runs */
    SHOWN,     /* a tensor is to be compared, the thread waits */
    FINISHED,  /* the thread will touch nothing any more */
};

struct iso_diff_backend {
    unsigned index;
    const struct iso_diff_shape *shape;
    const struct iso_diff_options *o;
    size_t n_tensors;  /* shown per chunk */
    iso_engine *engine;
    iso_session *session;
    struct iso_remote *producer; /* NULL for a run here */

    pthread_t thread;
    bool started;
    pthread_mutex_t lock;   /* guards what follows */
    pthread_cond_t changed;
    enum state state;
    bool stop;              /* nobody will look any more */
    uint32_t layer;         /* the tensor shown */
    const char *name;
    const float *data;      /* NULL: logits, read through the engine */
    size_t n_rows, width;
    size_t next;            /* tensor of the shape that is due (the thread's own) */
    size_t at;              /* first position of the step (the thread's own) */
    enum iso_err err;       /* why it finished */
    char *detail;
};

/* --- the backend's own thread --------------------------------------------------------------------- */

/* Shows a tensor and waits until it is released. */
static void show(struct iso_diff_backend *b, uint32_t layer, const char *name, const float *data,
                 size_t n_rows, size_t width)
{
    (void)pthread_mutex_lock(&b->lock);
    if (!b->stop) {
        b->layer = layer;
        b->name = name;
        b->data = data;
        b->n_rows = n_rows;
        b->width = width;
        b->state = SHOWN;
        (void)pthread_cond_broadcast(&b->changed);
        while (b->state == SHOWN && !b->stop) (void)pthread_cond_wait(&b->changed, &b->lock);
        b->state = COMPUTING;
    }
    (void)pthread_mutex_unlock(&b->lock);
}

static void tap(void *arg, uint32_t layer, const char *name, const float *data, size_t n_rows,
                size_t width)
{
    struct iso_diff_backend *b = arg;
    /* The data are the engine's own buffers, which are not const; only tests write here. */
    if (b->o->poke) b->o->poke(b->o->poke_arg, b->index, b->next, b->at, (float *)(uintptr_t)data, n_rows);
    b->next++;
    show(b, layer, name, data, n_rows, width);
}

static bool stopped(void *arg, uint64_t done, uint64_t total)
{
    struct iso_diff_backend *b = arg;
    (void)done;
    (void)total;
    (void)pthread_mutex_lock(&b->lock);
    const bool stop = b->stop;
    (void)pthread_mutex_unlock(&b->lock);
    return stop || iso_interrupted();
}

static enum iso_err run_steps(struct iso_diff_backend *b, struct iso_row *rows)
{
    const struct iso_progress cancel = {stopped, b};
    for (b->at = 0; b->at < b->o->n; b->at += b->o->chunk) {
        const size_t n = ISO_MIN((size_t)b->o->chunk, b->o->n - b->at);
        b->next = 0;
        for (size_t i = 0; i < n; i++) {
            rows[i] = (struct iso_row){b->session, b->o->ids[b->at + i], ISO_OUTPUT_LOGITS};
        }
        ISO_TRY(iso_step(b->engine, rows, n, &cancel));
        if (stopped(b, 0, 0)) ISO_FAIL(ISO_E_CANCELLED, "cancelled at position %zu", b->at + n);
        if (b->n_tensors < b->shape->n_tensors) continue; /* the other side has no logits */
        show(b, UINT32_MAX, "logits", NULL, n, iso_engine_info(b->engine)->n_vocab);
    }
    return ISO_OK;
}

static void *run_thread(void *arg)
{
    struct iso_diff_backend *b = arg;
    struct iso_row *rows = iso_xalloc(b->o->chunk, sizeof(*rows));
    const enum iso_err err = run_steps(b, rows);
    free(rows);
    (void)pthread_mutex_lock(&b->lock);
    b->err = err;
    if (err != ISO_OK) b->detail = iso_xstrdup(iso_err_detail());
    b->state = FINISHED;
    (void)pthread_cond_broadcast(&b->changed);
    (void)pthread_mutex_unlock(&b->lock);
    return NULL;
}

/* --- the walker's side ----------------------------------------------------------------------------- */

/* "cuda:generic" into device and level; level NULL when it names none. */
static enum iso_err split_spec(char device[16], const char **level, const char *spec)
{
    const char *colon = strchr(spec, ':');
    const size_t len = colon ? (size_t)(colon - spec) : strlen(spec);
    if (len >= 16 || (colon && colon[1] == '\0')) ISO_FAIL(ISO_E_ARG, "'%s' is no backend", spec);
    memcpy(device, spec, len);
    device[len] = '\0';
    *level = colon ? colon + 1 : NULL;
    return ISO_OK;
}

static enum iso_err open_engine(struct iso_diff_backend *b)
{
    const struct iso_diff_options *o = b->o;
    char device[16] = "cpu";
    const char *level = NULL;
    if (b->producer == NULL) ISO_TRY(split_spec(device, &level, o->spec[b->index]));
    if (level == NULL && strcmp(device, "cpu") == 0) level = o->isa;
    const struct iso_engine_options e = {
        .model_path = o->model_path,
        .device = device,
        .isa = level,
        .n_threads = o->threads,
        .n_ctx = (uint32_t)o->n,
        .n_batch = o->chunk,
        .n_outputs = o->chunk,
        .keep_expired = true,
        .no_tokenizer = b->producer == NULL, /* a producer compares its digest */
        .tokenizer_optional = true,
    };
    ISO_TRY(iso_engine_open(&b->engine, &e));
    return iso_session_new(&b->session, b->engine, 0);
}

enum iso_err iso_diff_backend_open(struct iso_diff_backend **out, unsigned index, bool producer,
                                   const struct iso_diff_shape *shape,
                                   const struct iso_diff_options *o)
{
    struct iso_diff_backend *b = iso_xalloc(1, sizeof(*b));
    *b = (struct iso_diff_backend){.index = index, .shape = shape, .o = o};
    (void)pthread_mutex_init(&b->lock, NULL);
    (void)pthread_cond_init(&b->changed, NULL);
    enum iso_err err = ISO_OK;
    if (producer) {
        struct iso_remote_options r = o->remote;
        r.producer = o->spec[index];
        err = iso_remote_open(&b->producer, &r);
    }
    if (err == ISO_OK) err = open_engine(b);
    if (err != ISO_OK) {
        iso_diff_backend_close(b);
        return err;
    }
    *out = b;
    return ISO_OK;
}

static void join(struct iso_diff_backend *b)
{
    if (!b->started) return;
    (void)pthread_join(b->thread, NULL);
    b->started = false;
}

void iso_diff_backend_close(struct iso_diff_backend *b)
{
    if (b == NULL) return;
    (void)pthread_mutex_lock(&b->lock);
    b->stop = true;
    (void)pthread_cond_broadcast(&b->changed);
    (void)pthread_mutex_unlock(&b->lock);
    join(b);
    iso_remote_close(b->producer);
    iso_session_free(b->session);
    iso_engine_close(b->engine);
    (void)pthread_cond_destroy(&b->changed);
    (void)pthread_mutex_destroy(&b->lock);
    free(b->detail);
    free(b);
}

enum iso_err iso_diff_backend_start(struct iso_diff_backend *b, size_t n_tensors)
{
    b->n_tensors = n_tensors;
    ISO_TRY(iso_engine_set_tap(b->engine, tap, b));
    const int rc = pthread_create(&b->thread, NULL, run_thread, b);
    if (rc != 0) ISO_FAIL(ISO_E_IO, "a thread cannot start: %s", strerror(rc));
    b->started = true;
    return ISO_OK;
}

/* The error that ended the run, on the caller's thread. */
static enum iso_err adopt(const struct iso_diff_backend *b)
{
    return b->err == ISO_OK ? ISO_OK : iso_err_adopt(b->err, b->detail);
}

enum iso_err iso_diff_backend_wait(struct iso_diff_backend *b, size_t t, size_t at, size_t n)
{
    const struct iso_diff_tensor *want = &b->shape->tensor[t];
    (void)pthread_mutex_lock(&b->lock);
    while (b->state == COMPUTING) (void)pthread_cond_wait(&b->changed, &b->lock);
    const bool finished = b->state == FINISHED;
    (void)pthread_mutex_unlock(&b->lock);
    char name[48];
    (void)iso_diff_tensor_name(name, want);
    if (finished) {
        ISO_TRY(adopt(b));
        ISO_FAIL(ISO_E_SELF_CHECK, "%s: the run ended before %s", b->o->spec[b->index], name);
    }
    if (b->layer != want->layer || strcmp(b->name, want->name) != 0 || b->width != want->width ||
        b->n_rows != n) {
        ISO_FAIL(ISO_E_SELF_CHECK, "%s shows %s [%zu][%zu] where %s [%zu][%zu] of position %zu is due",
                 b->o->spec[b->index], b->name, b->n_rows, b->width, name, n, want->width, at);
    }
    return ISO_OK;
}

const float *iso_diff_backend_row(const struct iso_diff_backend *b, size_t i)
{
    return b->data ? b->data + i * b->width : iso_step_logits(b->engine, i);
}

void iso_diff_backend_release(struct iso_diff_backend *b)
{
    (void)pthread_mutex_lock(&b->lock);
    if (b->state == SHOWN) b->state = COMPUTING;
    (void)pthread_cond_broadcast(&b->changed);
    (void)pthread_mutex_unlock(&b->lock);
}

enum iso_err iso_diff_backend_handoff(struct iso_diff_backend *b)
{
    struct iso_digest ignored;
    const bool audit = b->o->remote.audit > 0;
    if (b->producer) {
        return iso_remote_fetch(&ignored, b->producer, b->session, b->o->ids, b->o->n, audit);
    }
    return iso_remote_local(&ignored, b->session, b->o->ids, b->o->n, audit);
}

enum iso_err iso_diff_backend_finish(struct iso_diff_backend *b)
{
    join(b);
    return adopt(b);
}

uint32_t iso_diff_backend_positions(const struct iso_diff_backend *b)
{
    return iso_session_position(b->session);
}

const uint8_t *iso_diff_backend_page(const struct iso_diff_backend *b, uint32_t layer, uint32_t head,
                                     uint32_t page)
{
    return iso_session_page(b->session, layer, head, page);
}
