/* SPDX-License-Identifier: MIT
 * diff_shape.c - the boundaries of a family in the order of its graph, with their widths.
 *
 * The order is that of engine/forward.c, whose tap shows them; a walk checks each name and width
 * against this list, so the two cannot drift apart unseen. */
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "cli/diff.h"
#include "format/gguf.h"
#include "model/model.h"

#define OUTSIDE UINT32_MAX

static void append(struct iso_diff_shape *s, uint32_t layer, const char *name, size_t width)
{
    s->tensor[s->n_tensors++] = (struct iso_diff_tensor){layer, name, width};
}

static void append_layer(struct iso_diff_shape *s, uint32_t l, const struct iso_hparams *hp, bool gate)
{
    const size_t q = (size_t)hp->n_heads * hp->head_dim, kv = (size_t)hp->n_kv_heads * hp->head_dim;
    append(s, l, "attn_norm", hp->n_embd);
    append(s, l, "q", q);
    append(s, l, "k", kv);
    append(s, l, "v", kv);
    if (gate) append(s, l, "gate", q);
    append(s, l, "q_rope", q);
    append(s, l, "k_rope", kv);
    append(s, l, "attn_out", q);
    if (gate) append(s, l, "attn_gated", q);
    append(s, l, "attn_o_proj", hp->n_embd);
    append(s, l, "ffn_inp", hp->n_embd);
    append(s, l, "ffn_norm", hp->n_embd);
    append(s, l, "ffn_act", hp->n_ff);
    append(s, l, "ffn_down", hp->n_embd);
    append(s, l, "l_out", hp->n_embd);
}

#define LAYER_TENSORS 15 /* most per layer, as above */
#define OTHER_TENSORS 4  /* embd, embd_norm, result_norm, logits */

static void fill(struct iso_diff_shape *s, const struct iso_hparams *hp, const struct iso_family *f)
{
    *s = (struct iso_diff_shape){
        .n_layers = hp->n_layers, .n_kv_heads = hp->n_kv_heads, .head_dim = hp->head_dim};
    s->tensor = iso_xalloc((size_t)hp->n_layers * LAYER_TENSORS + OTHER_TENSORS, sizeof(*s->tensor));
    append(s, OUTSIDE, "embd", hp->n_embd);
    if (f->embed_norm) append(s, OUTSIDE, "embd_norm", hp->n_embd);
    for (uint32_t l = 0; l < hp->n_layers; l++) append_layer(s, l, hp, f->gate);
    append(s, OUTSIDE, "result_norm", hp->n_embd);
    append(s, OUTSIDE, "logits", hp->n_vocab);
}

enum iso_err iso_diff_shape_init(struct iso_diff_shape *shape, const char *model_path)
{
    struct iso_gguf *g = NULL;
    ISO_TRY(iso_gguf_open(&g, model_path));
    struct iso_hparams hp;
    const struct iso_family *family = NULL;
    const enum iso_err err = iso_hparams_read(&hp, &family, g);
    if (err == ISO_OK) fill(shape, &hp, family);
    iso_gguf_close(g);
    return err;
}

void iso_diff_shape_deinit(struct iso_diff_shape *shape)
{
    free(shape->tensor);
    *shape = (struct iso_diff_shape){0};
}

const char *iso_diff_tensor_name(char out[48], const struct iso_diff_tensor *t)
{
    if (t->layer == OUTSIDE) (void)snprintf(out, 48, "%s", t->name);
    else (void)snprintf(out, 48, "%02u.%s", t->layer, t->name);
    return out;
}
