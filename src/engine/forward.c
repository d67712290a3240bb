/* SPDX-License-Identifier: MIT
 * forward.c - the graph of every family, from embedding to logits, in reading order.
 *
 * One routine serves prompts, decoding, audits and digests. A family differs by its row in
 * model/family.c; a step that only some families have is an "if" here, never a copy of the routine.
 * Source: the specification of exact-1, section 11 (table of families).
 */
#include <math.h>

#include "base/clock.h"
#include "base/fpenv.h"
#include "base/mem.h"
#include "engine/engine.h"

/* A device with a copy engine runs behind the recording while somebody listens, so that pages leave under
 * the next layers and the host's launches hide; how far behind is bounded, because a cancelled step waits
 * for what was launched. One layer is always in front of the one that runs: the device never idles. */
#define AHEAD_NS 30000000 /* of work: well below the 100 ms in which a cancel must be through */
#define AHEAD_LAYERS 8u
#define ASK_NS 5000000    /* between two looks at cancel while waiting */

/* The step being recorded. */
struct run {
    struct iso_engine *e;
    const struct iso_device_vt *vt;
    const struct iso_model *m;
    const struct iso_hparams *hp;
    const struct iso_step_buffers *b;
    struct iso_queue *q;
    uint32_t n_rows; /* rows still in the step: the last layer drops those without output */
    /* Layers that listeners know and that the device may not have done: events of first .. end-1. */
    uint64_t event[AHEAD_LAYERS + 1];
    uint32_t first, end;
    int64_t seen_ns, layer_ns; /* when a layer was last seen done, and the time between two; 0: unknown */
};

/* Shows a finished tensor to the tap, if there is one. The CPU device is done when an operation
 * returns; elsewhere the tap's sync ends the encoder, which only digests pay. */
static enum iso_err show(const struct run *r, uint32_t layer, const char *name, struct iso_span at,
                         size_t width)
{
    if (r->e->tap == NULL) return ISO_OK;
    ISO_TRY(r->vt->sync(r->q));
    const float *data = r->vt->host(r->e->dev, at);
    if (data == NULL) {
        data = r->e->tap_host;
        ISO_TRY(r->vt->download(r->e->dev, r->e->tap_host, at, r->n_rows * width * sizeof(*data)));
    }
    r->e->tap(r->e->tap_arg, layer, name, data, r->n_rows, width);
    return ISO_OK;
}

static float inv(uint32_t n)
{
    return 1.0f / (float)n; /* f32(1/n), correctly rounded: n is exact in f32 up to 2^24 */
}

static void norm_to_codes(const struct run *r, struct iso_span weight, uint32_t layer,
                          enum iso_tensor_id tensor)
{
    r->vt->norm_quantize(r->q, &(struct iso_op_norm_quantize){
        .x = r->b->x, .weight = weight, .codes = r->b->codes, .tap = r->b->tap, .eps = r->hp->eps,
        .inv_n = inv(r->hp->n_embd), .n = r->hp->n_embd, .n_rows = r->n_rows, .layer = layer,
        .tensor = (uint32_t)tensor});
}

/* x += y, through the post norm where the family has one. */
static void add_residual(const struct run *r, struct iso_span post_norm)
{
    r->vt->residual(r->q, &(struct iso_op_residual){
        .x = r->b->x, .y = r->b->proj, .weight = post_norm, .eps = r->hp->post_eps,
        .inv_n = inv(r->hp->n_embd), .has_norm = r->m->family->post_norms, .n = r->hp->n_embd,
        .n_rows = r->n_rows});
}

static void project(const struct run *r, const struct iso_weight *w, struct iso_span y)
{
    r->vt->matmul(r->q, &(struct iso_op_matmul){
        .codes = r->b->codes, .weight = {*w}, .y = {y}, .n_weights = 1, .n_rows = r->n_rows});
}

static enum iso_err embed(const struct run *r)
{
    const struct iso_family *f = r->m->family;
    r->vt->embed(r->q, &(struct iso_op_embed){
        .ids = r->b->ids, .table = r->m->embed, .x = r->b->x,
        .scale = (float)sqrt((double)r->hp->n_embd), .has_scale = f->embed_scale,
        .n_rows = r->n_rows});
    ISO_TRY(show(r, UINT32_MAX, "embd", r->b->x, r->hp->n_embd));
    if (!f->embed_norm) return ISO_OK;
    r->vt->norm(r->q, &(struct iso_op_norm){
        .x = r->b->x, .y = r->b->x, .eps = r->hp->eps, .inv_n = inv(r->hp->n_embd),
        .n = r->hp->n_embd, .n_rows = r->n_rows});
    return show(r, UINT32_MAX, "embd_norm", r->b->x, r->hp->n_embd);
}

static struct iso_kv_place kv_place(const struct run *r, uint32_t layer)
{
    const uint32_t c = r->e->layer_class[layer];
    return (struct iso_kv_place){
        .pages = iso_kv_pool_layer(&r->e->pool[c], r->e->layer_in_class[layer]),
        .tables = r->e->tables[c], .table_len = r->e->max_pages, .layer_class = c};
}

/* Projections of the normed input: q (and gate) and/or k and v. */
static void project_qkv(const struct run *r, const struct iso_layer *w, bool q, bool kv)
{
    struct iso_op_matmul op = {.codes = r->b->codes, .n_rows = r->n_rows};
    const struct iso_weight *weight[] = {&w->q, &w->k, &w->v, &w->gate};
    const struct iso_span y[] = {r->b->q, r->b->k, r->b->v, r->b->gate};
    const bool wanted[] = {q, kv, kv, q && r->m->family->gate};
    for (uint32_t i = 0; i < ISO_MATMUL_MAX; i++) {
        if (!wanted[i]) continue;
        op.weight[op.n_weights] = *weight[i];
        op.y[op.n_weights++] = y[i];
    }
    r->vt->matmul(r->q, &op);
}

static enum iso_err show_heads(const struct run *r, uint32_t layer, struct iso_span q_tap,
                               struct iso_span k_tap)
{
    const size_t q_width = (size_t)r->hp->n_heads * r->hp->head_dim;
    const size_t kv_width = (size_t)r->hp->n_kv_heads * r->hp->head_dim;
    if (r->e->tap == NULL) return ISO_OK;
    ISO_TRY(show(r, layer, "q", r->b->q, q_width));
    ISO_TRY(show(r, layer, "k", r->b->k, kv_width));
    ISO_TRY(show(r, layer, "v", r->b->v, kv_width));
    if (r->m->family->gate) ISO_TRY(show(r, layer, "gate", r->b->gate, q_width));
    ISO_TRY(show(r, layer, "q_rope", q_tap, q_width));
    return show(r, layer, "k_rope", k_tap, kv_width);
}

/* Norm, rotation, butterfly and codes of q; k and v into their pages. */
static enum iso_err heads(const struct run *r, uint32_t layer, bool q, bool kv)
{
    const struct iso_hparams *hp = r->hp;
    const struct iso_layer *w = &r->m->layers[layer];
    const bool rotate = hp->layer_window[layer] || !r->m->family->full_no_rope;
    const uint32_t c = r->e->layer_class[layer];
    struct iso_span q_tap = r->b->tap, k_tap = r->b->tap;
    k_tap.offset += (uint64_t)r->n_rows * hp->n_heads * hp->head_dim * sizeof(float);
    const struct iso_span none = {0};
    r->vt->heads(r->q, &(struct iso_op_heads){
        .q = q ? r->b->q : none, .k = kv ? r->b->k : none, .v = kv ? r->b->v : none,
        .q_codes = r->b->q_codes, .q_scales = r->b->q_scales, .q_norm = w->q_norm,
        .k_norm = w->k_norm, .rope = rotate ? r->b->rope[c] : none, .rows = r->b->rows,
        .q_tap = q_tap, .k_tap = k_tap, .kv = kv_place(r, layer), .eps = hp->eps,
        .inv_n = inv(hp->head_dim), .d = hp->head_dim, .n_heads = hp->n_heads,
        .n_kv_heads = hp->n_kv_heads, .n_rot = hp->n_rot,
        .pairs = rotate ? (uint32_t)r->m->family->pairs : ISO_ROPE_NONE, .n_rows = r->n_rows,
        .layer = layer});
    return q && kv ? show_heads(r, layer, q_tap, k_tap) : ISO_OK;
}

static enum iso_err attention(const struct run *r, uint32_t layer)
{
    const struct iso_hparams *hp = r->hp;
    const uint32_t width = hp->n_heads * hp->head_dim;
    const bool gate = r->m->family->gate;
    r->vt->attention(r->q, &(struct iso_op_attention){
        .q_codes = r->b->q_codes, .q_scales = r->b->q_scales, .rows = r->b->rows,
        .out = r->b->attn, .kv = kv_place(r, layer), .c = hp->attention_c,
        .cap = hp->attention_cap, .inv_cap = hp->attention_cap > 0 ? 1.0f / hp->attention_cap : 0,
        .d = hp->head_dim, .n_heads = hp->n_heads, .n_kv_heads = hp->n_kv_heads,
        .n_rows = r->n_rows, .layer = layer});
    ISO_TRY(show(r, layer, "attn_out", r->b->attn, width));
    const struct iso_span none = {0};
    r->vt->quantize(r->q, &(struct iso_op_quantize){
        .x = r->b->attn, .gate = gate ? r->b->gate : none, .codes = r->b->codes,
        .tap = gate ? r->b->tap : none, .n = width, .n_rows = r->n_rows, .layer = layer,
        .tensor = ISO_TENSOR_ATTN_OUT});
    if (gate) ISO_TRY(show(r, layer, "attn_gated", r->b->tap, width));
    project(r, &r->m->layers[layer].o, r->b->proj);
    ISO_TRY(show(r, layer, "attn_o_proj", r->b->proj, hp->n_embd));
    add_residual(r, r->m->layers[layer].post_attn_norm);
    return show(r, layer, "ffn_inp", r->b->x, hp->n_embd);
}

static enum iso_err feed_forward(const struct run *r, uint32_t layer)
{
    const struct iso_hparams *hp = r->hp;
    const struct iso_layer *w = &r->m->layers[layer];
    norm_to_codes(r, w->ffn_norm, layer, ISO_TENSOR_FFN_NORM);
    ISO_TRY(show(r, layer, "ffn_norm", r->b->tap, hp->n_embd));
    r->vt->matmul(r->q, &(struct iso_op_matmul){
        .codes = r->b->codes, .weight = {w->ffn_gate, w->ffn_up},
        .y = {r->b->ffn_gate, r->b->ffn_up}, .n_weights = 2, .n_rows = r->n_rows});
    r->vt->quantize(r->q, &(struct iso_op_quantize){
        .x = r->b->ffn_gate, .up = r->b->ffn_up, .codes = r->b->codes, .tap = r->b->tap,
        .n = hp->n_ff, .n_rows = r->n_rows, .glu = (uint32_t)r->m->family->glu, .layer = layer,
        .tensor = ISO_TENSOR_FFN_ACT});
    ISO_TRY(show(r, layer, "ffn_act", r->b->tap, hp->n_ff));
    project(r, &w->ffn_down, r->b->proj);
    ISO_TRY(show(r, layer, "ffn_down", r->b->proj, hp->n_embd));
    add_residual(r, w->post_ffn_norm);
    return show(r, layer, "l_out", r->b->x, hp->n_embd);
}

/* Keeps only the rows that want logits: activations, descriptors and rotary rows. */
static void drop_rows(struct run *r, uint32_t n_out)
{
    const struct iso_span what[] = {r->b->x, r->b->rows, r->b->rope[0], r->b->rope[1]};
    const uint32_t width[] = {r->hp->n_embd, sizeof(struct iso_row_desc) / sizeof(float),
                              r->hp->n_rot, r->hp->n_rot};
    for (size_t i = 0; i < 4; i++) {
        r->vt->gather(r->q, &(struct iso_op_gather){
            .x = what[i], .index = r->b->out_index, .n = width[i], .n_rows = n_out});
    }
    r->n_rows = n_out;
}

static enum iso_err check_cancel(const struct run *r, const struct iso_forward *f, uint32_t l)
{
    if (f->cancel && f->cancel->fn && f->cancel->fn(f->cancel->arg, l, r->hp->n_layers)) {
        ISO_FAIL(ISO_E_CANCELLED, "cancelled before layer %u", l);
    }
    return ISO_OK;
}

/* Waits for the oldest layer under way and tells who listens. */
static enum iso_err await_layer(struct run *r, const struct iso_forward *f)
{
    const uint64_t event = r->event[r->first % (AHEAD_LAYERS + 1)];
    enum iso_err err = ISO_OK;
    while ((err = r->vt->event_wait(r->e->dev, event, ASK_NS)) == ISO_E_AGAIN) {
        ISO_TRY(check_cancel(r, f, r->end));
    }
    ISO_TRY(err);
    const int64_t now = iso_clock_ns();
    if (r->seen_ns != 0) r->layer_ns = now - r->seen_ns;
    r->seen_ns = now;
    f->layer_computed(f->arg, r->first++);
    return ISO_OK;
}

/* Most layers that may be under way. */
static uint32_t ahead(const struct run *r)
{
    if (r->layer_ns == 0) return 1;
    const int64_t n = AHEAD_NS / r->layer_ns;
    return n < 1 ? 1 : (uint32_t)ISO_MIN(n, (int64_t)AHEAD_LAYERS);
}

/* The k and v of layer l are recorded: listeners may have its pages when the event is done, which on a
 * device without events is now. */
static enum iso_err tell(struct run *r, const struct iso_forward *f, uint32_t l)
{
    if (r->vt->event_record == NULL) {
        ISO_TRY(r->vt->sync(r->q));
        iso_pages_changed(r->e);
        f->layer_computed(f->arg, l);
        f->layer_done(f->arg, l);
        return ISO_OK;
    }
    uint64_t *event = &r->event[l % (AHEAD_LAYERS + 1)];
    ISO_TRY(r->vt->event_record(r->q, event));
    iso_pages_changed(r->e);
    r->e->shadow.ready = *event;
    r->end = l + 1;
    f->layer_done(f->arg, l);
    r->e->shadow.ready = 0;
    while (r->end - r->first > ahead(r)) ISO_TRY(await_layer(r, f));
    return ISO_OK;
}

/* One layer. In the last one, rows without output end after their k and v. */
static enum iso_err layer(struct run *r, const struct iso_forward *f, uint32_t l)
{
    const struct iso_layer *w = &r->m->layers[l];
    const bool drop = l + 1 == r->hp->n_layers && f->n_out < r->n_rows && r->e->tap == NULL;
    norm_to_codes(r, w->attn_norm, l, ISO_TENSOR_ATTN_NORM);
    ISO_TRY(show(r, l, "attn_norm", r->b->tap, r->hp->n_embd));
    project_qkv(r, w, !drop, true);
    ISO_TRY(heads(r, l, !drop, true));
    if (f->layer_done != NULL) ISO_TRY(tell(r, f, l));
    if (drop) {
        if (f->n_out == 0) return ISO_OK;
        drop_rows(r, f->n_out);
        norm_to_codes(r, w->attn_norm, l, ISO_TENSOR_ATTN_NORM);
        project_qkv(r, w, true, false);
        ISO_TRY(heads(r, l, true, false));
    }
    ISO_TRY(attention(r, l));
    return feed_forward(r, l);
}

static enum iso_err logits(struct run *r, const struct iso_forward *f)
{
    const struct iso_hparams *hp = r->hp;
    if (f->n_out < r->n_rows) drop_rows(r, f->n_out); /* only when a tap kept them all */
    norm_to_codes(r, r->m->output_norm, 0, ISO_TENSOR_RESULT_NORM);
    ISO_TRY(show(r, UINT32_MAX, "result_norm", r->b->tap, hp->n_embd));
    project(r, &r->m->output, r->b->logits);
    r->vt->logits(r->q, &(struct iso_op_logits){
        .logits = r->b->logits, .scale = hp->logit_scale, .cap = hp->logit_cap,
        .inv_cap = hp->logit_cap > 0 ? 1.0f / hp->logit_cap : 0,
        .has_scale = hp->has_logit_scale, .n = hp->n_vocab, .n_rows = r->n_rows});
    return ISO_OK;
}

static enum iso_err record(struct run *r, const struct iso_forward *f)
{
    ISO_TRY(embed(r));
    for (uint32_t l = 0; l < r->hp->n_layers; l++) {
        ISO_TRY(check_cancel(r, f, l));
        ISO_TRY(layer(r, f, l));
    }
    if (f->n_out > 0) ISO_TRY(logits(r, f));
    while (r->first < r->end) ISO_TRY(await_layer(r, f));
    return r->vt->sync(r->q);
}

enum iso_err iso_forward_run(const struct iso_forward *f)
{
    struct iso_engine *e = f->e;
    struct run r = {.e = e, .vt = e->dev->vt, .m = e->model, .hp = &e->model->hp, .b = &e->b,
                    .n_rows = f->n_rows};
    ISO_TRY(iso_fpenv_check()); /* this thread is a member of the team */
    ISO_TRY(r.vt->begin(e->dev, &r.q));
    const enum iso_err err = record(&r, f);
    r.vt->end(r.q);
    iso_pages_changed(e);
    /* A file that changed under the step explains wrong numbers better than they do. */
    if (err == ISO_OK || err == ISO_E_NUMERIC) ISO_TRY(iso_gguf_check(e->file));
    return err;
}
