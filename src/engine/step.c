/* SPDX-License-Identifier: MIT
 * step.c - runs rows of several sessions through the model as one step. */
#include <string.h>

#include "base/mem.h"
#include "engine/engine.h"

/* Checks rows and counts those of each session in s->pending. */
static enum iso_err check_rows(struct iso_engine *e, const struct iso_row *rows, size_t n_rows)
{
    const uint32_t n_vocab = e->info.n_vocab;
    uint32_t n_out = 0;
    if (n_rows == 0 || n_rows > e->info.n_batch) {
        ISO_FAIL(ISO_E_ARG, "a step of %zu rows: 1 to %u", n_rows, e->info.n_batch);
    }
    for (size_t i = 0; i < n_rows; i++) {
        struct iso_session *s = rows[i].session;
        if (s == NULL) ISO_FAIL(ISO_E_ARG, "row %zu has no session", i);
        if (s->e != e) ISO_FAIL(ISO_E_ARG, "row %zu belongs to another engine's session", i);
        if (rows[i].token < 0 || (uint32_t)rows[i].token >= n_vocab) {
            ISO_FAIL(ISO_E_ARG, "row %zu: id %d is outside the vocabulary of %u", i, rows[i].token,
                     n_vocab);
        }
        if (s->pending > 0 && rows[i - 1].session != s) {
            ISO_FAIL(ISO_E_ARG, "row %zu: rows of a session must be consecutive", i);
        }
        if (s->n + s->pending >= s->n_ctx) {
            ISO_FAIL(ISO_E_CONTEXT, "row %zu: %u tokens held and %u more, the context has %u", i,
                     s->n, s->pending + 1, s->n_ctx);
        }
        s->pending++;
        n_out += rows[i].output == ISO_OUTPUT_LOGITS;
    }
    if (n_out > e->info.n_outputs) {
        ISO_FAIL(ISO_E_ARG, "%u rows want logits, the engine has room for %u", n_out, e->info.n_outputs);
    }
    return ISO_OK;
}

/* Writes ids, descriptors, rotary rows and the list of rows with output. Returns n_out. */
static uint32_t describe(struct iso_engine *e, const struct iso_row *rows, size_t n_rows)
{
    const struct iso_device_vt *vt = e->dev->vt;
    int32_t *ids = vt->host(e->dev, e->b.ids);
    struct iso_row_desc *desc = vt->host(e->dev, e->b.rows);
    uint32_t *out_index = vt->host(e->dev, e->b.out_index);
    uint32_t n_out = 0;
    uint32_t position = 0;
    for (size_t i = 0; i < n_rows; i++) {
        const struct iso_session *s = rows[i].session;
        position = i > 0 && rows[i - 1].session == s ? position + 1 : s->n;
        ids[i] = rows[i].token;
        desc[i] = (struct iso_row_desc){.session = s->index, .position = position};
        for (uint32_t c = 0; c < ISO_KV_CLASSES; c++) {
            desc[i].first_visible[c] = iso_engine_first_visible(e, c, position);
            if (e->pool[c].n_layers == 0) continue;
            float *rope = vt->host(e->dev, e->b.rope[c]);
            iso_model_rope(e->model, rope + i * e->model->hp.n_rot, c, position);
        }
        e->logits_row[i] = UINT32_MAX;
        if (rows[i].output == ISO_OUTPUT_LOGITS) {
            e->logits_row[i] = n_out;
            out_index[n_out++] = (uint32_t)i;
        }
    }
    return n_out;
}

struct done_arg {
    const struct iso_row *rows;
    size_t n_rows;
};

/* Tells each session's listener, that of computed layers or the one of ready pages. */
static void tell(const struct done_arg *d, uint32_t layer, bool computed)
{
    iso_alloc_guard_end(); /* the listener is not part of the step */
    for (size_t i = 0; i < d->n_rows; i += d->rows[i].session->pending) {
        struct iso_session *s = d->rows[i].session;
        iso_kv_ready_fn *fn = computed ? s->computed : s->ready;
        if (fn) fn(computed ? s->computed_arg : s->ready_arg, s, layer, s->n, s->n + s->pending);
    }
    iso_alloc_guard_begin();
}

static void layer_done(void *arg, uint32_t layer)
{
    tell(arg, layer, false);
}

static void layer_computed(void *arg, uint32_t layer)
{
    tell(arg, layer, true);
}

/* The logits of the last step are gone once the next one runs. */
static void forget_logits(struct iso_engine *e)
{
    for (uint32_t i = 0; i < e->info.n_sessions; i++) {
        if (e->sessions[i]) e->sessions[i]->logits_row = UINT32_MAX;
    }
    e->n_step_rows = 0;
}

/* Asks the caller between layers; what he does there is not part of the step. */
static bool ask(void *arg, uint64_t done, uint64_t total)
{
    const struct iso_progress *p = arg;
    iso_alloc_guard_end();
    const bool stop = p->fn(p->arg, done, total);
    iso_alloc_guard_begin();
    return stop;
}

static enum iso_err run_locked(struct iso_engine *e, const struct iso_row *rows, size_t n_rows,
                               const struct iso_progress *cancel)
{
    ISO_TRY(check_rows(e, rows, n_rows));
    bool watched = false;
    for (size_t i = 0; i < n_rows; i += rows[i].session->pending) {
        struct iso_session *s = rows[i].session;
        iso_session_expire(s);
        ISO_TRY(iso_session_grow(s, s->pending));
        watched |= s->ready != NULL || s->computed != NULL;
    }
    struct done_arg d = {rows, n_rows};
    const struct iso_progress asking = {ask, (void *)(uintptr_t)cancel};
    struct iso_forward f = {.e = e, .n_rows = (uint32_t)n_rows, .arg = &d};
    if (cancel && cancel->fn) f.cancel = &asking;
    if (watched) {
        f.layer_done = layer_done;
        f.layer_computed = layer_computed;
    }
    forget_logits(e);
    f.n_out = describe(e, rows, n_rows);
    return iso_forward_run(&f);
}

enum iso_err iso_step(iso_engine *e, const struct iso_row *rows, size_t n_rows,
                      const struct iso_progress *cancel)
{
    pthread_mutex_lock(&e->lock);
    iso_alloc_guard_begin();
    const enum iso_err err = run_locked(e, rows, n_rows, cancel);
    iso_alloc_guard_end();
    if (err == ISO_OK) e->n_step_rows = n_rows;
    for (size_t i = 0; i < n_rows; i++) {
        struct iso_session *s = rows[i].session;
        if (s == NULL || s->e != e) continue; /* refused: it is not ours to touch */
        if (err == ISO_OK) {
            s->ids[s->n++] = rows[i].token;
            s->logits_row = e->logits_row[i];
        } else if (s->pending > 0) {
            iso_session_cut(s, s->n);
        }
        s->pending = 0;
    }
    pthread_mutex_unlock(&e->lock);
    return err;
}

static const float *logits_at(const struct iso_engine *e, uint32_t row)
{
    if (row == UINT32_MAX) return NULL;
    const float *l = e->dev->vt->host(e->dev, e->b.logits);
    return l + (size_t)row * e->info.n_vocab;
}

const float *iso_step_logits(const iso_engine *e, size_t row)
{
    return row < e->n_step_rows ? logits_at(e, e->logits_row[row]) : NULL;
}

const float *iso_session_logits(const iso_session *s)
{
    return logits_at(s->e, s->logits_row);
}

/* A chunk of a prompt being run: its place in the whole, for a progress that counts tokens. */
struct chunk {
    const struct iso_progress *progress;
    size_t at, n_rows, n;
};

static bool chunk_progress(void *arg, uint64_t layer, uint64_t n_layers)
{
    const struct chunk *c = arg;
    return c->progress->fn(c->progress->arg, c->at + c->n_rows * layer / n_layers, c->n);
}

enum iso_err iso_session_prefill(iso_session *s, const int32_t *ids, size_t n,
                                 const struct iso_progress *progress)
{
    struct iso_row rows[ISO_MAX_BATCH];
    const size_t chunk = s->e->info.n_batch;
    const bool watched = progress && progress->fn;
    if (n > s->n_ctx - s->n) { /* before any of it is computed */
        ISO_FAIL(ISO_E_CONTEXT, "%u tokens held and a prompt of %zu, the context has %u", s->n, n,
                 s->n_ctx);
    }
    for (size_t at = 0; at < n; at += chunk) {
        const size_t m = ISO_MIN(chunk, n - at);
        for (size_t i = 0; i < m; i++) {
            rows[i] = (struct iso_row){s, ids[at + i], ISO_OUTPUT_NONE};
        }
        if (at + m == n) rows[m - 1].output = ISO_OUTPUT_LOGITS;
        struct chunk c = {progress, at, m, n};
        const struct iso_progress p = {watched ? chunk_progress : NULL, &c};
        const enum iso_err err = iso_step(s->e, rows, m, &p);
        if (err == ISO_E_CANCELLED) {
            ISO_FAIL(err, "prefill stopped behind token %zu of %zu", at, n);
        }
        ISO_TRY(err);
    }
    if (watched) (void)progress->fn(progress->arg, n, n);
    return ISO_OK;
}

enum iso_err iso_session_decode(iso_session *s, int32_t id)
{
    const struct iso_row row = {s, id, ISO_OUTPUT_LOGITS};
    return iso_step(s->e, &row, 1, NULL);
}

void iso_logits_digest(struct iso_digest *out, const float *logits, size_t n)
{
    iso_sha256_f32(out, logits, n);
}
