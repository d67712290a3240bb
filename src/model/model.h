/* SPDX-License-Identifier: MIT
 * model.h - a loaded model: hyper-parameters, its family, weights bound to a device.
 *
 * Everything here is immutable after iso_model_open().
 */
#ifndef ISO_MODEL_H
#define ISO_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "device/device.h"
#include "format/gguf.h"
#include "kernels/heads/heads.h"
#include "kernels/quantize/quantize.h"

#define ISO_MAX_LAYERS 512      /* the deepest public model has 126 */
#define ISO_MAX_EMBD 65536      /* values per position */
#define ISO_MAX_HEADS 1024
#define ISO_MAX_GROUP 64        /* query heads per KV head: one attention tile */
#define ISO_MAX_VOCAB 4194304
#define ISO_MAX_CONTEXT 16777216 /* positions; 2^24 keeps page numbers and offsets small */

/* What distinguishes the families; one row of the table in family.c each. */
struct iso_family {
    const char *name; /* general.architecture */
    enum iso_rope_pairs pairs;
    enum iso_glu glu;
    bool qk_norm;        /* RMS norm of each q and k head */
    bool post_norms;     /* norm of attention and ffn output before the residual */
    bool qkv_bias;
    bool gate;           /* attention output times sigmoid(gate) */
    bool embed_scale;    /* times sqrt(D) */
    bool embed_norm;     /* weightless norm behind the embedding */
    bool rope_freqs;     /* rope_freqs.weight divides the frequencies */
    bool full_no_rope;   /* full layers are not rotated */
    bool qk_norm_constant; /* q norm weights are 3.87, k norm weights 1 */
    uint32_t window_period; /* layer % period == period-1 is full; 0: all full, 1: from the file */
    float window_base;   /* rope base of window layers when the file has none; 0: rope.freq_base */
    float post_eps;      /* eps of the post norms; 0: the file's */
    float default_cap;   /* final soft-cap when the file has none; 0: none */
};

struct iso_hparams {
    uint32_t n_layers, n_embd, n_ff, n_heads, n_kv_heads, head_dim, n_vocab, n_ctx_train, n_rot;
    uint32_t window;                  /* positions a window layer sees; 0: no window layers */
    uint32_t n_window_layers;
    uint8_t layer_window[ISO_MAX_LAYERS]; /* 1: window layer */
    float eps, post_eps;
    float base_full, base_window;     /* rope.freq_base */
    float rope_factor;                /* linear scaling of full layers, 1 for none */
    float attention_c;                /* section 10's c */
    float attention_cap;
    float logit_scale;                /* used when has_logit_scale */
    float logit_cap;
    bool has_logit_scale;
};

struct iso_layer {
    struct iso_span attn_norm, q_norm, k_norm, post_attn_norm, ffn_norm, post_ffn_norm;
    struct iso_weight q, k, v, gate, o, ffn_gate, ffn_up, ffn_down;
};

struct iso_model {
    const struct iso_family *family;
    struct iso_hparams hp;
    struct iso_gguf *file;
    struct iso_device *dev;
    struct iso_weight embed, output;
    struct iso_span output_norm;
    struct iso_layer *layers; /* [n_layers] */
    uint64_t *turns[2];       /* [n_rot/2] per layer class (full, window): see arith/rope.h */
    uint64_t n_parameters;
};

/* The family of this name, or NULL. */
const struct iso_family *iso_family_find(const char *name);

/* Names of all families, separated by commas, for messages. */
const char *iso_family_names(void);

/* Reads the hyper-parameters of a file.
 * Errors: ISO_E_UNSUPPORTED family or feature by name; ISO_E_FORMAT key and value; ISO_E_LIMIT. */
enum iso_err iso_hparams_read(struct iso_hparams *hp, const struct iso_family **family,
                              const struct iso_gguf *g) ISO_NODISCARD;

/* Progress of loading in bytes; true stops it. */
typedef bool iso_load_progress_fn(void *arg, uint64_t done, uint64_t total);

/* Binds a file to a device: every tensor is looked up, its type and shape checked, every scale, min,
 * norm weight, bias and float weight proved finite and in range; a tensor that the family does not
 * know is refused.
 *
 * Owner:  takes nothing: g and dev stay the caller's and must outlive the model. Free with
 *         iso_model_close().
 * Thread: progress (NULL: none) is called on the caller's thread.
 * Errors: ISO_E_FORMAT names the tensor and both shapes, or tensor and row; ISO_E_CANCELLED. */
enum iso_err iso_model_open(struct iso_model **out, struct iso_gguf *g, struct iso_device *dev,
                            iso_load_progress_fn *progress, void *arg) ISO_NODISCARD;
void iso_model_close(struct iso_model *m);

/* Checks the numbers of one tensor (section 1 of the specification: finite, magnitude below 2^100,
 * NaN nowhere). *bad_row is set on ISO_E_FORMAT. Thread: any. */
enum iso_err iso_tensor_check(const struct iso_gguf_tensor *t, size_t first_row, size_t last_row) ISO_NODISCARD;

/* cos and sin of position p for all pairs of a layer class: out [n_rot/2][2]. */
void iso_model_rope(const struct iso_model *m, float *out, uint32_t layer_class, uint32_t p);

#endif
