/* SPDX-License-Identifier: MIT
 * bind.c - binds the tensors of a file to a device: the first wrong shape is an error. */
#include <assert.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arith/lang.h"
#include "arith/rope.h"
#include "base/buf.h"
#include "base/mem.h"
#include "base/pool.h"
#include "model/model.h"

struct binder {
    struct iso_model *m;
    bool *used;       /* [n_tensors] */
};

/* Each tensor's bytes become a device buffer of their own: on the CPU that borrows the mapping. */
static enum iso_err map_tensor(struct iso_span *out, struct binder *b, const struct iso_gguf_tensor *t)
{
    struct iso_device *dev = b->m->dev;
    uint32_t buffer = 0;
    ISO_TRY(dev->vt->map(dev, t->data, t->size_bytes, &buffer));
    *out = (struct iso_span){.buffer = buffer};
    return ISO_OK;
}

/* The same for f32 values, which the device reads in its own byte order: turned copies on a
 * big-endian machine. Matrices keep the file's bytes; their kernels take them apart. */
static enum iso_err map_floats(struct iso_span *out, struct binder *b, const struct iso_gguf_tensor *t)
{
    if (iso_is_little_endian()) return map_tensor(out, b, t);
    struct iso_device *dev = b->m->dev;
    struct iso_span to = {0};
    void *turned = NULL;
    ISO_TRY(iso_mem_alloc(&turned, t->size_bytes, 1, t->name));
    iso_copy_le(turned, t->data, t->size_bytes / sizeof(float), sizeof(float));
    enum iso_err err = dev->vt->alloc(dev, t->size_bytes, ISO_MEM_DEVICE, t->name, &to.buffer);
    if (err == ISO_OK) err = dev->vt->upload(dev, to, turned, t->size_bytes);
    iso_mem_free(turned);
    if (err == ISO_OK) *out = to;
    return err;
}

static float float_at(const struct iso_gguf_tensor *t, size_t i)
{
    return iso_as_f32(iso_get_u32(t->data + 4 * i));
}

static const struct iso_gguf_tensor *take(struct binder *b, const char *name)
{
    const struct iso_gguf_tensor *t = iso_gguf_find(b->m->file, name);
    if (t != NULL) b->used[t - iso_gguf_tensor(b->m->file, 0)] = true;
    return t;
}

/* An f32 vector of n values. */
static enum iso_err bind_vector(struct iso_span *out, struct binder *b, const char *name, uint64_t n)
{
    const struct iso_gguf_tensor *t = take(b, name);
    if (t == NULL) ISO_FAIL(ISO_E_FORMAT, "tensor %s is missing", name);
    if (t->type != ISO_TYPE_F32) {
        ISO_FAIL(ISO_E_FORMAT, "tensor %s is %s, must be F32", name, iso_type_info(t->type)->name);
    }
    if (t->dims[0] != n || t->dims[1] != 1 || t->dims[2] != 1 || t->dims[3] != 1) {
        ISO_FAIL(ISO_E_FORMAT, "tensor %s has %" PRIu64 " x %" PRIu64 " values, expected %" PRIu64,
                 name, t->dims[0], t->dims[1], n);
    }
    b->m->n_parameters += n;
    return map_floats(out, b, t);
}

/* The tensor's optional .scale (one f32) and the check of its range. */
static enum iso_err bind_scale(struct iso_weight *w, struct binder *b, const char *base)
{
    char name[ISO_GGUF_MAX_NAME];
    (void)snprintf(name, sizeof(name), "%s.input_scale", base);
    (void)take(b, name); /* known and not used: activations are quantised by exact-1's own rule */
    (void)snprintf(name, sizeof(name), "%s.scale", base);
    const struct iso_gguf_tensor *t = take(b, name);
    w->scale = 1.0f;
    if (t == NULL) return ISO_OK;
    if (t->type != ISO_TYPE_F32 || t->size_bytes != sizeof(float)) {
        ISO_FAIL(ISO_E_FORMAT, "tensor %s must be one F32 value", name);
    }
    w->scale = float_at(t, 0);
    const float s = w->scale;
    if (!(s == 0.0f || (s >= 0x1p-30f && s <= 0x1p30f))) {
        ISO_FAIL(ISO_E_FORMAT, "tensor %s is %g: 0 or 2^-30 to 2^30", name, (double)s);
    }
    w->has_scale = 1;
    return ISO_OK;
}

static enum iso_err bind_matrix(struct iso_weight *w, struct binder *b, const char *base,
                                uint32_t n_rows, uint32_t n_cols, bool bias)
{
    char name[ISO_GGUF_MAX_NAME];
    (void)snprintf(name, sizeof(name), "%s.weight", base);
    const struct iso_gguf_tensor *t = take(b, name);
    if (t == NULL) ISO_FAIL(ISO_E_FORMAT, "tensor %s is missing", name);
    if (t->dims[0] != n_cols || t->dims[1] != n_rows || t->dims[2] != 1 || t->dims[3] != 1) {
        ISO_FAIL(ISO_E_FORMAT, "tensor %s is %" PRIu64 " x %" PRIu64 ", expected %u x %u", name,
                 t->dims[0], t->dims[1], n_cols, n_rows);
    }
    *w = (struct iso_weight){.type = (uint32_t)t->type, .n_rows = n_rows, .n_cols = n_cols,
                             .row_bytes = iso_type_row_bytes(t->type, n_cols)};
    ISO_TRY(map_tensor(&w->data, b, t));
    ISO_TRY(b->m->dev->vt->weight(b->m->dev, w));
    b->m->n_parameters += (uint64_t)n_rows * n_cols;
    ISO_TRY(bind_scale(w, b, base));
    if (!bias) return ISO_OK;
    (void)snprintf(name, sizeof(name), "%s.bias", base);
    return bind_vector(&w->bias, b, name, n_rows);
}

/* Muse Glimmer folds a constant into its head norms; a file with anything else is another model. */
static enum iso_err check_constant(const struct iso_gguf *g, const char *name, float want)
{
    const struct iso_gguf_tensor *t = iso_gguf_find(g, name);
    for (size_t i = 0; t != NULL && i < t->size_bytes / sizeof(float); i++) {
        const float v = float_at(t, i);
        if (v != want) {
            ISO_FAIL(ISO_E_FORMAT, "tensor %s[%zu] is %g, must be %g", name, i, (double)v,
                     (double)want);
        }
    }
    return ISO_OK;
}

/* "blk.N.name" into out [ISO_GGUF_MAX_NAME]. */
static const char *layer_name(char *out, uint32_t l, const char *name)
{
    (void)snprintf(out, ISO_GGUF_MAX_NAME, "blk.%u.%s", l, name);
    return out;
}

static enum iso_err bind_attention(struct iso_layer *y, struct binder *b, uint32_t l)
{
    const struct iso_hparams *hp = &b->m->hp;
    const struct iso_family *f = b->m->family;
    const uint32_t q_width = hp->n_heads * hp->head_dim;
    const uint32_t kv_width = hp->n_kv_heads * hp->head_dim;
    char n[ISO_GGUF_MAX_NAME];
    ISO_TRY(bind_vector(&y->attn_norm, b, layer_name(n, l, "attn_norm.weight"), hp->n_embd));
    ISO_TRY(bind_matrix(&y->q, b, layer_name(n, l, "attn_q"), q_width, hp->n_embd, f->qkv_bias));
    ISO_TRY(bind_matrix(&y->k, b, layer_name(n, l, "attn_k"), kv_width, hp->n_embd, f->qkv_bias));
    ISO_TRY(bind_matrix(&y->v, b, layer_name(n, l, "attn_v"), kv_width, hp->n_embd, f->qkv_bias));
    ISO_TRY(bind_matrix(&y->o, b, layer_name(n, l, "attn_output"), hp->n_embd, q_width, false));
    if (f->gate) {
        ISO_TRY(bind_matrix(&y->gate, b, layer_name(n, l, "attn_gate"), q_width, hp->n_embd, false));
    }
    if (f->qk_norm) {
        ISO_TRY(bind_vector(&y->q_norm, b, layer_name(n, l, "attn_q_norm.weight"), hp->head_dim));
        if (f->qk_norm_constant) ISO_TRY(check_constant(b->m->file, n, 3.87f));
        ISO_TRY(bind_vector(&y->k_norm, b, layer_name(n, l, "attn_k_norm.weight"), hp->head_dim));
        if (f->qk_norm_constant) ISO_TRY(check_constant(b->m->file, n, 1.0f));
    }
    if (!f->post_norms) return ISO_OK;
    return bind_vector(&y->post_attn_norm, b, layer_name(n, l, "post_attention_norm.weight"),
                       hp->n_embd);
}

static enum iso_err bind_ffn(struct iso_layer *y, struct binder *b, uint32_t l)
{
    const struct iso_hparams *hp = &b->m->hp;
    char n[ISO_GGUF_MAX_NAME];
    ISO_TRY(bind_vector(&y->ffn_norm, b, layer_name(n, l, "ffn_norm.weight"), hp->n_embd));
    ISO_TRY(bind_matrix(&y->ffn_gate, b, layer_name(n, l, "ffn_gate"), hp->n_ff, hp->n_embd, false));
    ISO_TRY(bind_matrix(&y->ffn_up, b, layer_name(n, l, "ffn_up"), hp->n_ff, hp->n_embd, false));
    ISO_TRY(bind_matrix(&y->ffn_down, b, layer_name(n, l, "ffn_down"), hp->n_embd, hp->n_ff, false));
    if (!b->m->family->post_norms) return ISO_OK;
    return bind_vector(&y->post_ffn_norm, b, layer_name(n, l, "post_ffw_norm.weight"), hp->n_embd);
}

static enum iso_err bind_all(struct binder *b)
{
    struct iso_model *m = b->m;
    const struct iso_hparams *hp = &m->hp;
    ISO_TRY(bind_matrix(&m->embed, b, "token_embd", hp->n_vocab, hp->n_embd, false));
    ISO_TRY(bind_vector(&m->output_norm, b, "output_norm.weight", hp->n_embd));
    if (iso_gguf_find(m->file, "output.weight") != NULL) {
        ISO_TRY(bind_matrix(&m->output, b, "output", hp->n_vocab, hp->n_embd, false));
    } else {
        m->output = m->embed; /* tied */
    }
    for (uint32_t l = 0; l < hp->n_layers; l++) {
        ISO_TRY(bind_attention(&m->layers[l], b, l));
        ISO_TRY(bind_ffn(&m->layers[l], b, l));
    }
    return ISO_OK;
}

static enum iso_err refuse_unused(const struct binder *b)
{
    for (size_t i = 0; i < iso_gguf_n_tensors(b->m->file); i++) {
        if (b->used[i]) continue;
        ISO_FAIL(ISO_E_UNSUPPORTED, "%s: tensor %s is not part of this family's graph",
                 b->m->family->name, iso_gguf_tensor(b->m->file, i)->name);
    }
    return ISO_OK;
}

/* Turns per token of each pair, full and window layers. */
static enum iso_err make_rope(struct binder *b)
{
    struct iso_model *m = b->m;
    const struct iso_hparams *hp = &m->hp;
    const struct iso_gguf_tensor *freqs = m->family->rope_freqs ? take(b, "rope_freqs.weight") : NULL;
    if (freqs != NULL && (freqs->type != ISO_TYPE_F32 || freqs->dims[0] != hp->n_rot / 2)) {
        ISO_FAIL(ISO_E_FORMAT, "rope_freqs.weight has %" PRIu64 " values, expected %u F32",
                 freqs->dims[0], hp->n_rot / 2);
    }
    for (uint32_t c = 0; c < 2; c++) {
        m->turns[c] = iso_xalloc(hp->n_rot / 2, sizeof(uint64_t));
        const double base = (double)(c ? hp->base_window : hp->base_full);
        for (uint32_t i = 0; i < hp->n_rot / 2; i++) {
            double divisor = c ? 1.0 : (double)hp->rope_factor;
            if (freqs != NULL) {
                const float v = float_at(freqs, i);
                /* More than a turn per token would not fit the 64 bits of section 7. */
                if (!(v >= 0.25f && v <= 0x1p20f)) {
                    ISO_FAIL(ISO_E_FORMAT, "rope_freqs.weight[%u] is %g, allowed 0.25 to 2^20", i,
                             (double)v);
                }
                divisor = (double)v;
            }
            m->turns[c][i] = iso_rope_turns(base, i, hp->n_rot, divisor);
        }
    }
    return ISO_OK;
}

/* Checks all tensors on the device's threads: each takes every n-th slice of rows. */
struct check_job {
    const struct iso_gguf *g;
    iso_load_progress_fn *progress; /* called on thread 0; counts bytes; may be NULL */
    void *progress_arg;
    uint64_t total;
    _Atomic bool stop; /* relaxed: threads may do a slice more */
    enum iso_err err[ISO_POOL_MAX_THREADS];
    char detail[ISO_POOL_MAX_THREADS][512];
};

#define CHECK_ROWS 256

/* Thread 0 is the caller's own and speaks for all: they advance together. */
static bool stopped(struct check_job *j, unsigned thread, uint64_t done)
{
    const bool ask = thread == 0 && j->progress != NULL;
    if (ask && j->progress(j->progress_arg, done, j->total)) {
        atomic_store_explicit(&j->stop, true, memory_order_relaxed);
    }
    return atomic_load_explicit(&j->stop, memory_order_relaxed);
}

static void check_member(void *arg, unsigned thread, unsigned n_threads)
{
    struct check_job *j = arg;
    size_t slice = 0;
    uint64_t done = 0;
    for (size_t i = 0; i < iso_gguf_n_tensors(j->g); i++) {
        const struct iso_gguf_tensor *t = iso_gguf_tensor(j->g, i);
        const size_t n_rows = (size_t)(t->dims[1] * t->dims[2] * t->dims[3]);
        for (size_t r = 0; r < n_rows; r += CHECK_ROWS, slice++) {
            if (slice % n_threads != thread) continue;
            if (stopped(j, thread, done + t->size_bytes / n_rows * r)) return;
            const enum iso_err e = iso_tensor_check(t, r, ISO_MIN(r + CHECK_ROWS, n_rows));
            if (e == ISO_OK) continue;
            j->err[thread] = e;
            (void)snprintf(j->detail[thread], sizeof(j->detail[0]), "%s", iso_err_detail());
            return;
        }
        done += t->size_bytes;
    }
}

static enum iso_err check_values(struct iso_model *m, iso_load_progress_fn *progress, void *arg)
{
    struct check_job *j = iso_xalloc(1, sizeof(*j));
    j->g = m->file;
    j->progress = progress;
    j->progress_arg = arg;
    for (size_t i = 0; i < iso_gguf_n_tensors(m->file); i++) {
        j->total += iso_gguf_tensor(m->file, i)->size_bytes;
    }
    m->dev->vt->parallel(m->dev, check_member, j);
    enum iso_err err = ISO_OK;
    for (unsigned t = 0; t < ISO_POOL_MAX_THREADS && err == ISO_OK; t++) {
        if (j->err[t] != ISO_OK) err = iso_err_adopt(j->err[t], j->detail[t]);
    }
    if (err == ISO_OK && j->stop) {
        err = iso_err_raise(ISO_E_CANCELLED, __FILE__, __LINE__, "%s: loading was stopped",
                            iso_gguf_path(m->file));
    }
    free(j);
    return err;
}

enum iso_err iso_model_open(struct iso_model **out, struct iso_gguf *g, struct iso_device *dev,
                            iso_load_progress_fn *progress, void *arg)
{
    struct iso_model *m = iso_xalloc(1, sizeof(*m));
    m->file = g;
    m->dev = dev;
    struct binder b = {.m = m};
    b.used = iso_xalloc(iso_gguf_n_tensors(g), sizeof(*b.used));
    enum iso_err err = ISO_OK;
    ISO_TRY_OUT(iso_hparams_read(&m->hp, &m->family, g));
    m->layers = iso_xalloc(m->hp.n_layers, sizeof(*m->layers));
    ISO_TRY_OUT(bind_all(&b));
    ISO_TRY_OUT(make_rope(&b));
    ISO_TRY_OUT(refuse_unused(&b));
    ISO_TRY_OUT(check_values(m, progress, arg));
    *out = m;
    m = NULL;
out:
    free(b.used);
    iso_model_close(m);
    return err;
}

void iso_model_close(struct iso_model *m)
{
    if (m == NULL) return;
    free(m->layers);
    free(m->turns[0]);
    free(m->turns[1]);
    free(m);
}

void iso_model_rope(const struct iso_model *m, float *out, uint32_t layer_class, uint32_t p)
{
    if (layer_class == 0 && m->family->full_no_rope) return;
    iso_rope_row(out, m->turns[layer_class], m->hp.n_rot / 2, p);
}
