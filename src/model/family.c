/* SPDX-License-Identifier: MIT
 * family.c - the table of model families and the reading of their hyper-parameters.
 *
 * A new family is a row here, plus a step in engine/forward.c when it does something new.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "arith/page.h"
#include "base/mem.h"
#include "model/model.h"

static const struct iso_family families[] = {
    {.name = "llama", .pairs = ISO_ROPE_INTERLEAVED, .rope_freqs = true},
    {.name = "qwen2", .pairs = ISO_ROPE_HALVES, .qkv_bias = true},
    {.name = "qwen3", .pairs = ISO_ROPE_HALVES, .qk_norm = true},
    {.name = "gemma3",
     .pairs = ISO_ROPE_HALVES,
     .glu = ISO_GLU_GEGLU,
     .qk_norm = true,
     .post_norms = true,
     .embed_scale = true,
     .window_period = 6,
     .window_base = 10000.0f},
    {.name = "muse-glimmer",
     .pairs = ISO_ROPE_INTERLEAVED,
     .qk_norm = true,
     .post_norms = true,
     .gate = true,
     .embed_norm = true,
     .full_no_rope = true,
     .qk_norm_constant = true,
     .window_period = 1,
     .post_eps = 1e-8f,
     .default_cap = 30.0f},
};

const struct iso_family *iso_family_find(const char *name)
{
    for (size_t i = 0; i < ISO_COUNT(families); i++) {
        if (strcmp(families[i].name, name) == 0) return &families[i];
    }
    return NULL;
}

const char *iso_family_names(void)
{
    return "llama, qwen2, qwen3, gemma3, muse-glimmer";
}

/* Keys are "<architecture>.<name>". */
struct keys {
    const struct iso_gguf *g;
    const char *arch;
    char buf[128];
};

static const char *key(struct keys *k, const char *name)
{
    (void)snprintf(k->buf, sizeof(k->buf), "%s.%s", k->arch, name);
    return k->buf;
}

static enum iso_err read_bounded(uint32_t *out, struct keys *k, const char *name, uint32_t max)
{
    ISO_TRY(iso_gguf_u32(out, k->g, key(k, name)));
    if (*out < 1) ISO_FAIL(ISO_E_FORMAT, "%s is 0", k->buf);
    if (*out > max) ISO_FAIL(ISO_E_LIMIT, "%s is %u, limit %u", k->buf, *out, max);
    return ISO_OK;
}

static enum iso_err read_vocab(struct iso_hparams *hp, struct keys *k)
{
    const struct iso_gguf_tensor *t = iso_gguf_find(k->g, "token_embd.weight");
    if (t == NULL) ISO_FAIL(ISO_E_FORMAT, "tensor token_embd.weight is missing");
    const uint64_t n = t->dims[1];
    if (n < 1 || n > ISO_MAX_VOCAB) {
        ISO_FAIL(ISO_E_LIMIT, "vocabulary of %llu, limit %d", (unsigned long long)n, ISO_MAX_VOCAB);
    }
    uint32_t said = 0;
    ISO_TRY(iso_gguf_u32_or(&said, k->g, key(k, "vocab_size"), (uint32_t)n));
    if (said != n) {
        ISO_FAIL(ISO_E_FORMAT, "%s is %u, token_embd.weight has %llu rows", k->buf, said,
                 (unsigned long long)n);
    }
    hp->n_vocab = (uint32_t)n;
    return ISO_OK;
}

static enum iso_err read_heads(struct iso_hparams *hp, struct keys *k)
{
    ISO_TRY(read_bounded(&hp->n_heads, k, "attention.head_count", ISO_MAX_HEADS));
    hp->n_kv_heads = hp->n_heads;
    if (iso_gguf_has(k->g, key(k, "attention.head_count_kv"))) {
        ISO_TRY(read_bounded(&hp->n_kv_heads, k, "attention.head_count_kv", hp->n_heads));
    }
    if (hp->n_heads % hp->n_kv_heads != 0 || hp->n_heads / hp->n_kv_heads > ISO_MAX_GROUP) {
        ISO_FAIL(ISO_E_UNSUPPORTED, "%u query heads on %u KV heads: a multiple, at most %d times",
                 hp->n_heads, hp->n_kv_heads, ISO_MAX_GROUP);
    }
    uint32_t v_len = 0;
    ISO_TRY(iso_gguf_u32_or(&hp->head_dim, k->g, key(k, "attention.key_length"),
                            hp->n_embd / hp->n_heads));
    ISO_TRY(iso_gguf_u32_or(&v_len, k->g, key(k, "attention.value_length"), hp->head_dim));
    if (hp->head_dim != v_len || hp->head_dim % 16 != 0 || hp->head_dim < 16 ||
        hp->head_dim > ISO_HEAD_MAX) {
        ISO_FAIL(ISO_E_UNSUPPORTED, "head size %u (values %u): equal, a multiple of 16, at most %d",
                 hp->head_dim, v_len, ISO_HEAD_MAX);
    }
    if ((hp->n_heads * hp->head_dim) % 32 != 0) {
        ISO_FAIL(ISO_E_UNSUPPORTED, "attention width %u is not a multiple of 32",
                 hp->n_heads * hp->head_dim);
    }
    ISO_TRY(iso_gguf_u32_or(&hp->n_rot, k->g, key(k, "rope.dimension_count"), hp->head_dim));
    if (hp->n_rot % 2 != 0 || hp->n_rot > hp->head_dim || hp->n_rot == 0) {
        ISO_FAIL(ISO_E_FORMAT, "%s is %u with head size %u", k->buf, hp->n_rot, hp->head_dim);
    }
    return ISO_OK;
}

/* The linear scaling of positions, 1 for none. */
static enum iso_err read_rope_factor(struct iso_hparams *hp, const struct iso_family *f,
                                     struct keys *k)
{
    const char *name = "rope.scale_linear"; /* the oldest files only have this key */
    hp->rope_factor = 1.0f;
    if (iso_gguf_has(k->g, key(k, "rope.scaling.type"))) {
        struct iso_gguf_str type;
        ISO_TRY(iso_gguf_str(&type, k->g, k->buf));
        if (type.len == 4 && memcmp(type.s, "none", 4) == 0) return ISO_OK;
        if (type.len != 6 || memcmp(type.s, "linear", 6) != 0) {
            ISO_FAIL(ISO_E_UNSUPPORTED, "rope scaling '%.*s' is not in exact-1 (only linear)",
                     (int)ISO_MIN(type.len, (size_t)32), type.s);
        }
        name = "rope.scaling.factor";
    }
    ISO_TRY(iso_gguf_f32_or(&hp->rope_factor, k->g, key(k, name), 1.0f));
    if (f->full_no_rope && hp->rope_factor != 1.0f) {
        ISO_FAIL(ISO_E_UNSUPPORTED, "%s with a rope factor of %g: its full layers are not rotated", f->name,
                 (double)hp->rope_factor);
    }
    if (!(hp->rope_factor >= 1.0f && hp->rope_factor < 1e6f)) {
        ISO_FAIL(ISO_E_FORMAT, "%s is %g, allowed 1 to 10^6", k->buf, (double)hp->rope_factor);
    }
    return ISO_OK;
}

static enum iso_err read_rope(struct iso_hparams *hp, const struct iso_family *f, struct keys *k)
{
    ISO_TRY(iso_gguf_f32_or(&hp->base_full, k->g, key(k, "rope.freq_base"),
                            strcmp(f->name, "gemma3") == 0 ? 1000000.0f : 10000.0f));
    hp->base_window = f->window_base > 0 ? f->window_base : hp->base_full;
    ISO_TRY(iso_gguf_f32_or(&hp->base_window, k->g, key(k, "rope.freq_base_swa"), hp->base_window));
    if (!(hp->base_full >= 1.0f && hp->base_full < 1e30f) ||
        !(hp->base_window >= 1.0f && hp->base_window < 1e30f)) {
        ISO_FAIL(ISO_E_FORMAT, "rope base %g (window %g) is out of range", (double)hp->base_full,
                 (double)hp->base_window);
    }
    return read_rope_factor(hp, f, k);
}

static enum iso_err read_pattern(struct iso_hparams *hp, const struct iso_family *f, struct keys *k)
{
    uint32_t period = f->window_period;
    if (period == 1) { /* the file says: a number or a flag per layer; no default */
        const char *name = key(k, "attention.sliding_window_pattern");
        struct iso_gguf_array a;
        if (!iso_gguf_has(k->g, name)) ISO_FAIL(ISO_E_FORMAT, "%s is missing", name);
        if (iso_gguf_u32(&period, k->g, name) != ISO_OK) {
            ISO_TRY(iso_gguf_array(&a, k->g, name));
            if (a.type != ISO_GGUF_BOOL || a.n != hp->n_layers) {
                ISO_FAIL(ISO_E_FORMAT, "%s: %zu elements, expected %u flags", name, a.n,
                         hp->n_layers);
            }
            for (uint32_t l = 0; l < hp->n_layers; l++) hp->layer_window[l] = a.data[l] != 0;
            return ISO_OK;
        }
        if (period < 1) ISO_FAIL(ISO_E_FORMAT, "%s is 0", name);
    }
    for (uint32_t l = 0; l < hp->n_layers; l++) hp->layer_window[l] = l % period != period - 1;
    return ISO_OK;
}

static enum iso_err read_window(struct iso_hparams *hp, const struct iso_family *f, struct keys *k)
{
    if (f->window_period == 0) return ISO_OK;
    ISO_TRY(read_bounded(&hp->window, k, "attention.sliding_window", ISO_MAX_CONTEXT));
    ISO_TRY(read_pattern(hp, f, k));
    for (uint32_t l = 0; l < hp->n_layers; l++) hp->n_window_layers += hp->layer_window[l];
    if (hp->n_window_layers == 0) hp->window = 0;
    if (hp->n_window_layers == hp->n_layers) {
        ISO_FAIL(ISO_E_UNSUPPORTED, "%s: a model without full layers", f->name);
    }
    return ISO_OK;
}

/* Section 10: c = f32(((1/sqrt(d)) * log2 e) / B), in f64. */
static float score_scale(const struct iso_hparams *hp, const struct iso_family *f)
{
    const bool gemma_27b = strcmp(f->name, "gemma3") == 0 && hp->n_layers == 62;
    const double width = gemma_27b ? (double)hp->n_embd / hp->n_heads : (double)hp->head_dim;
    const double scale = 1.0 / sqrt(width);
    const double log2e = hp->attention_cap > 0 ? 1.0 : 1.4426950408889634;
    return (float)((scale * log2e) / iso_butterfly_block(hp->head_dim));
}

/* Features of a file that change the graph in ways that are not implemented. */
static enum iso_err refuse_unknown_features(struct keys *k)
{
    uint32_t n_experts = 0;
    ISO_TRY(iso_gguf_u32_or(&n_experts, k->g, key(k, "expert_count"), 0));
    if (n_experts > 0) ISO_FAIL(ISO_E_UNSUPPORTED, "%s: %u experts per layer", k->arch, n_experts);
    bool causal = true;
    ISO_TRY(iso_gguf_bool_or(&causal, k->g, key(k, "attention.causal"), true));
    if (!causal) ISO_FAIL(ISO_E_UNSUPPORTED, "%s: attention that is not causal", k->arch);
    bool parallel = false;
    ISO_TRY(iso_gguf_bool_or(&parallel, k->g, key(k, "use_parallel_residual"), false));
    if (parallel) ISO_FAIL(ISO_E_UNSUPPORTED, "%s: parallel residual", k->arch);
    return ISO_OK;
}

/* Muse Glimmer files may say what their weights are; a contradiction is a mixed-up file. */
static enum iso_err check_precision(const struct iso_gguf *g)
{
    static const char name[] = "muser.weight_precision";
    if (!iso_gguf_has(g, name)) return ISO_OK;
    struct iso_gguf_str s;
    ISO_TRY(iso_gguf_str(&s, g, name));
    bool nvfp4 = false;
    for (size_t i = 0; i < iso_gguf_n_tensors(g); i++) {
        nvfp4 |= iso_gguf_tensor(g, i)->type == ISO_TYPE_NVFP4;
    }
    const bool said = s.len == 5 && memcmp(s.s, "nvfp4", 5) == 0;
    if (said != nvfp4) {
        ISO_FAIL(ISO_E_FORMAT, "%s is '%.*s', but the file has %s NVFP4 tensors", name,
                 (int)ISO_MIN(s.len, (size_t)32), s.s, nvfp4 ? "" : "no");
    }
    return ISO_OK;
}

static enum iso_err read_scales(struct iso_hparams *hp, const struct iso_family *f, struct keys *k)
{
    ISO_TRY(iso_gguf_f32(&hp->eps, k->g, key(k, "attention.layer_norm_rms_epsilon")));
    if (!(hp->eps >= 0x1p-60f && hp->eps < 1.0f)) {
        ISO_FAIL(ISO_E_FORMAT, "%s is %g, allowed 2^-60 to 1", k->buf, (double)hp->eps);
    }
    hp->post_eps = f->post_eps > 0 ? f->post_eps : hp->eps;
    ISO_TRY(iso_gguf_f32_or(&hp->attention_cap, k->g, key(k, "attn_logit_softcapping"), 0.0f));
    ISO_TRY(iso_gguf_f32_or(&hp->logit_cap, k->g, key(k, "final_logit_softcapping"), f->default_cap));
    hp->has_logit_scale = iso_gguf_has(k->g, key(k, "logit_scale"));
    ISO_TRY(iso_gguf_f32_or(&hp->logit_scale, k->g, key(k, "logit_scale"), 1.0f));
    const float value[] = {hp->attention_cap, hp->logit_cap, hp->logit_scale};
    const char *const name[] = {"attn_logit_softcapping", "final_logit_softcapping", "logit_scale"};
    for (size_t i = 0; i < ISO_COUNT(value); i++) {
        if (value[i] == 0.0f && i < 2) continue;
        if (!(value[i] >= 0x1p-30f && value[i] <= 0x1p30f)) {
            ISO_FAIL(ISO_E_FORMAT, "%s.%s is %g", k->arch, name[i], (double)value[i]);
        }
    }
    hp->attention_c = score_scale(hp, f);
    return ISO_OK;
}

enum iso_err iso_hparams_read(struct iso_hparams *hp, const struct iso_family **family,
                              const struct iso_gguf *g)
{
    struct iso_gguf_str s;
    ISO_TRY(iso_gguf_str(&s, g, "general.architecture"));
    char arch[64];
    (void)snprintf(arch, sizeof(arch), "%.*s", (int)ISO_MIN(s.len, sizeof(arch) - 1), s.s);
    const struct iso_family *f = iso_family_find(arch);
    if (f == NULL) {
        ISO_FAIL(ISO_E_UNSUPPORTED, "model family '%s' (supported: %s)", arch, iso_family_names());
    }
    struct keys k = {.g = g, .arch = f->name};
    struct iso_hparams h = {0};
    ISO_TRY(refuse_unknown_features(&k));
    ISO_TRY(read_bounded(&h.n_layers, &k, "block_count", ISO_MAX_LAYERS));
    ISO_TRY(read_bounded(&h.n_embd, &k, "embedding_length", ISO_MAX_EMBD));
    ISO_TRY(read_bounded(&h.n_ff, &k, "feed_forward_length", 4 * ISO_MAX_EMBD));
    ISO_TRY(read_bounded(&h.n_ctx_train, &k, "context_length", ISO_MAX_CONTEXT));
    if (h.n_embd % 32 != 0 || h.n_ff % 32 != 0) {
        ISO_FAIL(ISO_E_UNSUPPORTED, "widths %u and %u must be multiples of 32", h.n_embd, h.n_ff);
    }
    ISO_TRY(read_heads(&h, &k));
    ISO_TRY(read_vocab(&h, &k));
    ISO_TRY(read_rope(&h, f, &k));
    ISO_TRY(read_window(&h, f, &k));
    ISO_TRY(read_scales(&h, f, &k));
    ISO_TRY(check_precision(g));
    *hp = h;
    *family = f;
    return ISO_OK;
}
