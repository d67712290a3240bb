/* SPDX-License-Identifier: MIT
 * engine.c - opens a model on a device and reserves everything a step needs. */
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

#include "arith/page.h"
#include "arith/prim.h"
#include "base/mem.h"

#define DEFAULT_CTX 4096
#define DEFAULT_BATCH 512
#define CUDA_BATCH 2048    /* weights are unpacked once a step; an H200 gains little beyond */
#define MAX_CHECKPOINTS 64 /* of a session */

static uint32_t page_count(uint32_t n_positions)
{
    return (n_positions + ISO_PAGE_POSITIONS - 1) / ISO_PAGE_POSITIONS;
}

/* --- plan: sizes from options and hyper-parameters -------------------------------------------- */

struct plan {
    struct iso_engine_info info;
    uint32_t max_pages, window_pages, checkpoint_pages;
    uint32_t n_slots[ISO_KV_CLASSES];
    uint32_t n_layers[ISO_KV_CLASSES];
    size_t slot_bytes;
    size_t widest; /* values of the widest activation row */
};

/* More rows than all contexts together cannot come. */
static uint32_t default_batch(const struct iso_engine_info *f, const struct iso_engine_options *o)
{
    const bool cuda = o->device != NULL && strcmp(o->device, "cuda") == 0;
    if (!cuda) return DEFAULT_BATCH;
    return (uint32_t)ISO_MIN((uint64_t)CUDA_BATCH, (uint64_t)f->n_ctx * f->n_sessions);
}

static enum iso_err plan_sizes(struct plan *p, const struct iso_hparams *hp,
                               const struct iso_engine_options *o)
{
    struct iso_engine_info *f = &p->info;
    f->n_ctx = o->n_ctx ? o->n_ctx : ISO_MIN(hp->n_ctx_train, (uint32_t)DEFAULT_CTX);
    f->n_sessions = o->n_sessions ? o->n_sessions : 1;
    f->n_batch = o->n_batch ? o->n_batch : default_batch(f, o);
    f->n_outputs = ISO_MIN(o->n_outputs ? o->n_outputs : f->n_sessions, f->n_batch);
    if (f->n_ctx > hp->n_ctx_train) {
        ISO_FAIL(ISO_E_ARG, "a context of %u tokens, the model was made for %u", f->n_ctx,
                 hp->n_ctx_train);
    }
    if (f->n_sessions > ISO_MAX_SESSIONS) {
        ISO_FAIL(ISO_E_ARG, "%u sessions, limit %d", f->n_sessions, ISO_MAX_SESSIONS);
    }
    if (f->n_batch > ISO_MAX_BATCH) {
        ISO_FAIL(ISO_E_ARG, "%u rows in a step, limit %d", f->n_batch, ISO_MAX_BATCH);
    }
    p->max_pages = page_count(f->n_ctx);
    p->window_pages = p->max_pages;
    if (!o->keep_expired) { /* the window, a step's rows, and a page cut at each end */
        p->window_pages = ISO_MIN(p->max_pages, page_count(hp->window) + page_count(f->n_batch) + 2);
    }
    if (o->n_checkpoints > MAX_CHECKPOINTS) {
        ISO_FAIL(ISO_E_ARG, "%u checkpoints of a session, limit %d", o->n_checkpoints, MAX_CHECKPOINTS);
    }
    if (o->n_checkpoints > 0 && hp->n_window_layers > 0 && p->window_pages < p->max_pages) {
        p->checkpoint_pages = iso_checkpoint_pages(hp->window);
    }
    p->n_layers[ISO_KV_WINDOW] = hp->n_window_layers;
    p->n_layers[ISO_KV_FULL] = hp->n_layers - hp->n_window_layers;
    p->slot_bytes = (size_t)hp->n_kv_heads * iso_page_bytes(hp->head_dim);
    const uint32_t n_timelines = f->n_sessions + (o->staging ? 1 : 0);
    for (uint32_t c = 0; c < ISO_KV_CLASSES; c++) {
        const uint32_t per = c == ISO_KV_WINDOW ? p->window_pages : p->max_pages;
        p->n_slots[c] = per * n_timelines + ISO_AUDIT_ROWS;
        if (c == ISO_KV_WINDOW) p->n_slots[c] += f->n_sessions * o->n_checkpoints * p->checkpoint_pages;
        f->kv_bytes += (uint64_t)p->n_slots[c] * p->slot_bytes * p->n_layers[c];
    }
    const uint32_t q_width = hp->n_heads * hp->head_dim;
    p->widest = ISO_MAX(ISO_MAX(hp->n_embd, q_width + hp->n_kv_heads * hp->head_dim), hp->n_ff);
    return ISO_OK;
}

static void plan_model(struct plan *p, const struct iso_hparams *hp, const struct iso_family *f,
                       const struct iso_gguf *g)
{
    struct iso_engine_info *i = &p->info;
    i->architecture = f->name;
    i->arithmetic = ISO_ARITHMETIC;
    i->n_layers = hp->n_layers;
    i->n_embd = hp->n_embd;
    i->n_ff = hp->n_ff;
    i->n_heads = hp->n_heads;
    i->n_kv_heads = hp->n_kv_heads;
    i->head_dim = hp->head_dim;
    i->n_vocab = hp->n_vocab;
    i->n_ctx_train = hp->n_ctx_train;
    i->window = hp->window;
    i->n_window_layers = hp->n_window_layers;
    for (size_t t = 0; t < iso_gguf_n_tensors(g); t++) {
        i->weight_bytes += iso_gguf_tensor(g, t)->size_bytes;
    }
    const uint64_t row = 2ull * hp->n_embd + 4ull * hp->n_heads * hp->head_dim + 2ull * hp->n_ff +
                         2ull * hp->n_kv_heads * hp->head_dim + p->widest;
    i->scratch_bytes = row * sizeof(float) * i->n_batch +
                       (uint64_t)i->n_outputs * hp->n_vocab * sizeof(float);
}

enum iso_err iso_engine_plan(struct iso_engine_info *info, const struct iso_engine_options *options)
{
    struct iso_gguf *g = NULL;
    if (options->model_path == NULL) ISO_FAIL(ISO_E_ARG, "no model file given");
    ISO_TRY(iso_gguf_open(&g, options->model_path));
    struct iso_hparams *hp = iso_xalloc(1, sizeof(*hp));
    const struct iso_family *family = NULL;
    struct plan p = {0};
    enum iso_err err = iso_hparams_read(hp, &family, g);
    if (err == ISO_OK) err = plan_sizes(&p, hp, options);
    if (err == ISO_OK) {
        plan_model(&p, hp, family, g);
        p.info.name = "";
        p.info.device = options->device ? options->device : "cpu";
        p.info.isa = "";
        *info = p.info;
    }
    free(hp);
    iso_gguf_close(g);
    return err;
}

/* --- open -------------------------------------------------------------------------------------- */

static enum iso_err alloc_kind(struct iso_engine *e, struct iso_span *out, size_t n, size_t width,
                               enum iso_mem kind, const char *what)
{
    size_t len = 0;
    ISO_TRY(iso_mul_size(&len, n, width));
    uint32_t buffer = 0;
    ISO_TRY(e->dev->vt->alloc(e->dev, len, kind, what, &buffer));
    *out = (struct iso_span){.buffer = buffer};
    return ISO_OK;
}

static enum iso_err alloc(struct iso_engine *e, struct iso_span *out, size_t n, size_t width,
                          const char *what)
{
    return alloc_kind(e, out, n, width, ISO_MEM_DEVICE, what);
}

/* Buffers that the host writes before each step. */
static enum iso_err alloc_host(struct iso_engine *e, struct iso_span *out, size_t n, size_t width,
                               const char *what)
{
    return alloc_kind(e, out, n, width, ISO_MEM_HOST, what);
}

static enum iso_err alloc_buffers(struct iso_engine *e, const struct plan *p)
{
    const struct iso_hparams *hp = &e->model->hp;
    struct iso_step_buffers *b = &e->b;
    const size_t n = e->info.n_batch;
    const size_t f32 = sizeof(float);
    const size_t q_width = (size_t)hp->n_heads * hp->head_dim;
    const size_t kv_width = (size_t)hp->n_kv_heads * hp->head_dim;
    ISO_TRY(alloc_host(e, &b->ids, n, sizeof(int32_t), "ids"));
    ISO_TRY(alloc_host(e, &b->rows, n, sizeof(struct iso_row_desc), "row descriptors"));
    ISO_TRY(alloc_host(e, &b->out_index, n, sizeof(uint32_t), "output rows"));
    ISO_TRY(alloc(e, &b->x, n, hp->n_embd * f32, "activations"));
    ISO_TRY(alloc(e, &b->codes, 1, e->dev->vt->codes_bytes(e->dev, n, p->widest), "codes"));
    ISO_TRY(alloc(e, &b->q, n, q_width * f32, "queries"));
    if (e->model->family->gate) ISO_TRY(alloc(e, &b->gate, n, q_width * f32, "gates"));
    ISO_TRY(alloc(e, &b->k, n, kv_width * f32, "keys"));
    ISO_TRY(alloc(e, &b->v, n, kv_width * f32, "values"));
    ISO_TRY(alloc(e, &b->q_codes, n, q_width * sizeof(int16_t), "query codes"));
    ISO_TRY(alloc(e, &b->q_scales, n, hp->n_heads * f32, "query scales"));
    ISO_TRY(alloc(e, &b->attn, n, q_width * f32, "attention output"));
    ISO_TRY(alloc(e, &b->proj, n, hp->n_embd * f32, "projections"));
    ISO_TRY(alloc(e, &b->ffn_gate, n, hp->n_ff * f32, "feed-forward"));
    ISO_TRY(alloc(e, &b->ffn_up, n, hp->n_ff * f32, "feed-forward"));
    for (uint32_t c = 0; c < ISO_KV_CLASSES; c++) {
        const size_t n_tables = e->info.n_sessions + ISO_AUDIT_ROWS;
        ISO_TRY(alloc_host(e, &b->rope[c], n, hp->n_rot * f32, "rotary rows"));
        ISO_TRY(alloc_host(e, &e->tables[c], n_tables, e->max_pages * sizeof(uint32_t),
                           "page tables"));
        ISO_TRY(iso_kv_pool_init(&e->pool[c], e->dev, p->n_layers[c], p->n_slots[c], p->slot_bytes));
        /* An audit must find its pages whatever the sessions hold. */
        if (p->n_layers[c] > 0) ISO_TRY(iso_kv_pool_reserve(&e->pool[c], ISO_AUDIT_ROWS));
    }
    ISO_TRY(alloc_kind(e, &b->logits, e->info.n_outputs, hp->n_vocab * f32, ISO_MEM_RESULT, "logits"));
    e->logits_row = iso_xalloc(n, sizeof(*e->logits_row));
    e->sessions = iso_xalloc(e->info.n_sessions, sizeof(struct iso_session *));
    const struct iso_device_limits limits = {
        .max_rows = e->info.n_batch,
        .max_cols = (uint32_t)p->widest,
        .n_heads = hp->n_heads,
        .n_kv_heads = hp->n_kv_heads,
        .head_dim = hp->head_dim,
        .max_pages = e->max_pages,
    };
    uint64_t scratch = 0;
    ISO_TRY(e->dev->vt->reserve(e->dev, &limits, &scratch));
    e->info.scratch_bytes += scratch;
    return ISO_OK;
}

static void fill_layout(struct iso_engine *e)
{
    const struct iso_hparams *hp = &e->model->hp;
    uint32_t n[ISO_KV_CLASSES] = {0};
    for (uint32_t l = 0; l < hp->n_layers; l++) {
        const uint32_t c = hp->layer_window[l] ? ISO_KV_WINDOW : ISO_KV_FULL;
        e->layer_class[l] = (uint8_t)c;
        e->layer_in_class[l] = n[c]++;
    }
    e->layout = (struct iso_kv_layout){
        .n_layers = hp->n_layers,
        .n_kv_heads = hp->n_kv_heads,
        .head_dim = hp->head_dim,
        .page_bytes = iso_page_bytes(hp->head_dim),
        .window = hp->window,
        .layer_class = e->layer_class,
    };
}

static enum iso_err fill_info(struct iso_engine *e)
{
    struct iso_gguf_str name = {"", 0};
    if (iso_gguf_has(e->file, "general.name")) {
        ISO_TRY(iso_gguf_str(&name, e->file, "general.name"));
    }
    e->name = iso_xstrndup(name.s, name.len);
    e->info.name = e->name;
    e->info.device = e->dev->vt->name;
    e->info.isa = e->dev->vt->level(e->dev);
    e->info.n_threads = e->dev->vt->threads(e->dev);
    e->info.n_parameters = e->model->n_parameters;
    e->dev->vt->identity(e->dev, &e->info.kernels);
    return ISO_OK;
}

static enum iso_err load_tokenizer(struct iso_engine *e)
{
    ISO_TRY(iso_tokenizer_new(&e->tokenizer, e->file));
    if (iso_tokenizer_n_vocab(e->tokenizer) > e->info.n_vocab) {
        ISO_FAIL(ISO_E_FORMAT, "the tokenizer has %u ids, the model %u",
                 iso_tokenizer_n_vocab(e->tokenizer), e->info.n_vocab);
    }
    return ISO_OK;
}

/* The device that was asked for, or an error: never another one. */
static enum iso_err open_device(struct iso_engine *e, const struct iso_engine_options *o)
{
    const char *name = o->device ? o->device : "cpu";
    if (strcmp(name, "cpu") == 0) return iso_device_cpu_open(&e->dev, o->isa, o->n_threads);
    if (strcmp(name, "cuda") == 0) return iso_device_cuda_open(&e->dev, o->isa);
    if (strcmp(name, "metal") == 0) return iso_device_metal_open(&e->dev, o->isa);
    ISO_FAIL(ISO_E_ARG, "device '%s': cpu, cuda or metal", name);
}

static enum iso_err open_into(struct iso_engine *e, const struct iso_engine_options *o)
{
    ISO_TRY(iso_gguf_open(&e->file, o->model_path));
    ISO_TRY(open_device(e, o));
    ISO_TRY(e->dev->vt->self_check(e->dev));
    ISO_TRY(iso_model_open(&e->model, e->file, e->dev, o->progress.fn, o->progress.arg));
    struct plan p = {0};
    ISO_TRY(plan_sizes(&p, &e->model->hp, o));
    plan_model(&p, &e->model->hp, e->model->family, e->file);
    e->info = p.info;
    e->max_pages = p.max_pages;
    e->window_pages = p.window_pages;
    e->keep_expired = o->keep_expired;
    e->n_checkpoints = o->n_checkpoints;
    e->checkpoint_pages = p.checkpoint_pages;
    const bool ids_only = o->no_tokenizer || (o->tokenizer_optional && iso_tokenizer_is_none(e->file));
    if (!ids_only) ISO_TRY(load_tokenizer(e));
    fill_layout(e);
    ISO_TRY(alloc_buffers(e, &p));
    ISO_TRY(iso_pages_init(e));
    return fill_info(e);
}

enum iso_err iso_engine_open(iso_engine **out, const struct iso_engine_options *options)
{
    if (options->model_path == NULL) ISO_FAIL(ISO_E_ARG, "no model file given");
    struct iso_engine *e = iso_xalloc(1, sizeof(*e));
    (void)pthread_mutex_init(&e->lock, NULL);
    (void)pthread_mutex_init(&e->identity_lock, NULL);
    (void)pthread_mutex_init(&e->shadow.lock, NULL);
    const enum iso_err err = open_into(e, options);
    if (err != ISO_OK) {
        iso_engine_close(e);
        return err;
    }
    *out = e;
    return ISO_OK;
}

void iso_engine_close(iso_engine *e)
{
    if (e == NULL) return;
    for (uint32_t c = 0; c < ISO_KV_CLASSES; c++) iso_kv_pool_deinit(&e->pool[c]);
    iso_pages_deinit(e);
    iso_mem_free(e->tap_host);
    iso_model_close(e->model);
    iso_tokenizer_free(e->tokenizer);
    if (e->dev) e->dev->vt->close(e->dev);
    iso_gguf_close(e->file);
    free(e->sessions);
    free(e->logits_row);
    free(e->name);
    (void)pthread_mutex_destroy(&e->lock);
    (void)pthread_mutex_destroy(&e->identity_lock);
    (void)pthread_mutex_destroy(&e->shadow.lock);
    free(e);
}

const struct iso_engine_info *iso_engine_info(const iso_engine *e)
{
    return &e->info;
}

const struct iso_kv_layout *iso_engine_kv_layout(const iso_engine *e)
{
    return &e->layout;
}

enum iso_err iso_engine_set_tap(struct iso_engine *e, iso_tap_fn *fn, void *arg)
{
    if (fn != NULL && e->b.tap.buffer == 0) {
        const struct iso_hparams *hp = &e->model->hp;
        const size_t heads = ((size_t)hp->n_heads + hp->n_kv_heads) * hp->head_dim;
        const size_t widest = ISO_MAX(ISO_MAX((size_t)hp->n_embd, heads), (size_t)hp->n_ff);
        ISO_TRY(alloc(e, &e->b.tap, e->info.n_batch, widest * sizeof(float), "taps"));
        if (e->dev->vt->host(e->dev, e->b.tap) == NULL) {
            iso_mem_free(e->tap_host);
            e->tap_host = NULL;
            ISO_TRY(iso_mem_alloc((void **)&e->tap_host, e->info.n_batch, widest * sizeof(float),
                                  "taps"));
        }
    }
    if (fn == NULL && e->b.tap.buffer != 0) {
        e->dev->vt->free(e->dev, e->b.tap.buffer);
        e->b.tap = (struct iso_span){0};
    }
    e->tap = fn;
    e->tap_arg = arg;
    return ISO_OK;
}

/* --- text ------------------------------------------------------------------------------------- */

static enum iso_err need_tokenizer(const iso_engine *e)
{
    if (e->tokenizer == NULL) ISO_FAIL(ISO_E_UNSUPPORTED, "this engine has no tokenizer");
    return ISO_OK;
}

enum iso_err iso_engine_tokenize(struct iso_buf *ids, const iso_engine *e, const char *text,
                                 size_t len, unsigned flags)
{
    ISO_TRY(need_tokenizer(e));
    unsigned t = 0;
    if (flags & ISO_TEXT_BOS) t |= ISO_TOKENIZE_BOS;
    if (flags & ISO_TEXT_SPECIAL) t |= ISO_TOKENIZE_SPECIAL;
    return iso_tokenize(ids, e->tokenizer, text, len, t);
}

enum iso_err iso_engine_piece(struct iso_buf *out, const iso_engine *e, int32_t id, bool special)
{
    ISO_TRY(need_tokenizer(e));
    return iso_tokenizer_piece(out, e->tokenizer, id, special);
}

bool iso_engine_is_end(const iso_engine *e, int32_t id)
{
    return e->tokenizer != NULL && iso_tokenizer_is_eog(e->tokenizer, id);
}
