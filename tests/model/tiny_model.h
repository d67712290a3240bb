/* SPDX-License-Identifier: MIT
 * tiny_model.h - writes GGUF models of a few kilobytes, one per family, right ones and wrong ones.
 *
 * Random weights of several types; small enough for sanitizers and emulation. Everything is in this
 * header because tests of two areas use it and an area links only the files of its own folder.
 */
#ifndef ISO_TESTS_TINY_MODEL_H
#define ISO_TESTS_TINY_MODEL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "format/gguf.h"
#include "format/types.h"

#define TINY_MAX_TENSORS 256
#define TINY_MAX_BYTES ((size_t)1 << 26)
#define TINY_ALIGNMENT 32

struct tiny_model;

struct tiny_spec {
    const char *arch;
    uint32_t n_layers, n_embd, n_ff, n_heads, n_kv_heads, head_dim, n_vocab, n_ctx;
    uint32_t window, period; /* 0: no window layers */
    uint64_t seed;
    const char *without;                 /* key or tensor that is left out */
    void (*extra)(struct tiny_model *m); /* adds keys and tensors */
};

struct tiny_tensor {
    char name[64];
    size_t at, row_bytes;
};

struct tiny_model {
    const struct tiny_spec *spec;
    struct iso_buf keys, records, data;
    uint64_t n_keys, state;
    size_t n_tensors;
    struct tiny_tensor tensor[TINY_MAX_TENSORS];
};

/* The usual tiny model of a family. */
static inline struct tiny_spec tiny_spec(const char *arch)
{
    struct tiny_spec s = {.arch = arch,
                          .n_layers = 3,
                          .n_embd = 64,
                          .n_ff = 96,
                          .n_heads = 4,
                          .n_kv_heads = 2,
                          .head_dim = 16,
                          .n_vocab = 300,
                          .n_ctx = 4096,
                          .seed = 7};
    if (strcmp(arch, "qwen2") == 0) s.n_kv_heads = 1;
    if (strcmp(arch, "qwen3") == 0) s.head_dim = 32;
    if (strcmp(arch, "gemma3") == 0) {
        s.n_layers = 7;
        s.n_heads = 2;
        s.n_kv_heads = 1;
        s.head_dim = 32;
        s.window = 64;
        s.period = 6;
    }
    if (strcmp(arch, "muse-glimmer") == 0) {
        s.n_layers = 5;
        s.window = 100;
        s.period = 4;
    }
    return s;
}

static inline void tiny_ok(enum iso_err e)
{
    if (e != ISO_OK) fail_msg("%s", iso_err_detail());
}

static inline uint64_t tiny_next(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

static inline void tiny_put_str(struct iso_buf *b, const char *s)
{
    tiny_ok(iso_buf_u64(b, strlen(s)));
    tiny_ok(iso_buf_puts(b, s));
}

/* A key with its value's bytes. "*.name" stands for the architecture's. */
static inline void
tiny_key(struct tiny_model *m, const char *name, uint32_t type, const void *value, size_t len)
{
    char key[128];
    if (name[0] == '*')
        (void)snprintf(key, sizeof(key), "%s%s", m->spec->arch, name + 1);
    else
        (void)snprintf(key, sizeof(key), "%s", name);
    if (m->spec->without && strcmp(m->spec->without, name) == 0) return;
    tiny_put_str(&m->keys, key);
    tiny_ok(iso_buf_u32(&m->keys, type));
    tiny_ok(iso_buf_append(&m->keys, value, len));
    m->n_keys++;
}

static inline void tiny_u32(struct tiny_model *m, const char *name, uint32_t v)
{
    uint8_t le[4];
    iso_put_u32(le, v);
    tiny_key(m, name, ISO_GGUF_U32, le, sizeof(le));
}

static inline void tiny_f32(struct tiny_model *m, const char *name, float v)
{
    uint32_t bits = 0;
    uint8_t le[4];
    memcpy(&bits, &v, sizeof(bits));
    iso_put_u32(le, bits);
    tiny_key(m, name, ISO_GGUF_F32, le, sizeof(le));
}

static inline void tiny_bool(struct tiny_model *m, const char *name, bool v)
{
    const uint8_t b = v;
    tiny_key(m, name, ISO_GGUF_BOOL, &b, 1);
}

static inline void tiny_str(struct tiny_model *m, const char *name, const char *v)
{
    struct iso_buf b;
    iso_buf_init(&b, 4096);
    tiny_put_str(&b, v);
    tiny_key(m, name, ISO_GGUF_STRING, b.data, b.len);
    iso_buf_deinit(&b);
}

/* Random blocks whose scales are ordinary numbers; hi is the high byte of the f16 scale's exponent.
 */
static inline void
tiny_fill(uint8_t *p, enum iso_type t, size_t n_blocks, uint8_t hi, uint64_t *state)
{
    const size_t len = iso_type_info(t)->block_bytes;
    for (size_t b = 0; b < n_blocks; b++, p += len) {
        for (size_t i = 0; i < len; i++) p[i] = (uint8_t)(tiny_next(state) >> 24);
        if (t == ISO_TYPE_F32) { /* 0.5 .. 1 with a random sign */
            p[2] &= 0x7f;
            p[3] = (uint8_t)((p[3] & 0x80) | 0x3f);
        } else if (t == ISO_TYPE_MXFP4) {
            p[0] = (uint8_t)(122 + p[0] % 4);
        } else {
            p[1] = (uint8_t)((p[1] & 0x83) | hi);
            if (t == ISO_TYPE_Q4_1) p[3] = (uint8_t)((p[3] & 0x83) | (hi + 8));
        }
    }
}

/* Adds a tensor; rows 0: one dimension. Returns its bytes, zero, or NULL when it is left out. */
static inline uint8_t *
tiny_tensor(struct tiny_model *m, const char *name, enum iso_type t, uint64_t cols, uint64_t rows)
{
    if (m->spec->without && strcmp(m->spec->without, name) == 0) return NULL;
    assert_true(m->n_tensors < TINY_MAX_TENSORS);
    struct tiny_tensor *x = &m->tensor[m->n_tensors++];
    while (m->data.len % TINY_ALIGNMENT) tiny_ok(iso_buf_u8(&m->data, 0));
    *x = (struct tiny_tensor){.at = m->data.len, .row_bytes = iso_type_row_bytes(t, cols)};
    (void)snprintf(x->name, sizeof(x->name), "%s", name);
    tiny_put_str(&m->records, name);
    tiny_ok(iso_buf_u32(&m->records, rows ? 2 : 1));
    tiny_ok(iso_buf_u64(&m->records, cols));
    if (rows) tiny_ok(iso_buf_u64(&m->records, rows));
    tiny_ok(iso_buf_u32(&m->records, iso_type_info(t)->number));
    tiny_ok(iso_buf_u64(&m->records, x->at));
    uint8_t *zero = calloc(x->row_bytes, rows ? rows : 1);
    assert_non_null(zero);
    tiny_ok(iso_buf_append(&m->data, zero, x->row_bytes * (rows ? rows : 1)));
    free(zero);
    return m->data.data + x->at;
}

static inline void tiny_matrix(struct tiny_model *m,
                               const char *name,
                               enum iso_type t,
                               uint8_t hi,
                               uint64_t cols,
                               uint64_t rows)
{
    uint8_t *p = tiny_tensor(m, name, t, cols, rows);
    if (p) tiny_fill(p, t, rows * cols / iso_type_info(t)->block_values, hi, &m->state);
}

/* n values base + spread * (-1 .. 1). */
static inline void
tiny_vector(struct tiny_model *m, const char *name, uint64_t n, float base, float spread)
{
    uint8_t *p = tiny_tensor(m, name, ISO_TYPE_F32, n, 0);
    for (uint64_t i = 0; p && i < n; i++) {
        const float u = (float)((int32_t)(tiny_next(&m->state) % 2001) - 1000) * 1e-3f;
        const float v = base + spread * u;
        iso_copy_le(p + 4 * i, &v, 1, sizeof(v));
    }
}

static inline void tiny_keys(struct tiny_model *m)
{
    const struct tiny_spec *s = m->spec;
    tiny_str(m, "general.architecture", s->arch);
    tiny_str(m, "general.name", "tiny");
    tiny_u32(m, "*.block_count", s->n_layers);
    tiny_u32(m, "*.context_length", s->n_ctx);
    tiny_u32(m, "*.embedding_length", s->n_embd);
    tiny_u32(m, "*.feed_forward_length", s->n_ff);
    tiny_u32(m, "*.attention.head_count", s->n_heads);
    tiny_u32(m, "*.attention.head_count_kv", s->n_kv_heads);
    tiny_u32(m, "*.attention.key_length", s->head_dim);
    tiny_u32(m, "*.attention.value_length", s->head_dim);
    tiny_f32(m, "*.attention.layer_norm_rms_epsilon", 1e-5f);
    tiny_f32(m, "*.rope.freq_base", 10000.0f);
    if (s->window) tiny_u32(m, "*.attention.sliding_window", s->window);
    if (strcmp(s->arch, "muse-glimmer") == 0) {
        tiny_u32(m, "*.attention.sliding_window_pattern", s->period);
        tiny_f32(m, "*.logit_scale", 0.5f);
    }
}

static inline void tiny_layer(struct tiny_model *m, uint32_t l)
{
    const struct tiny_spec *s = m->spec;
    const bool muse = strcmp(s->arch, "muse-glimmer") == 0;
    const bool post = muse || strcmp(s->arch, "gemma3") == 0;
    const uint64_t q = (uint64_t)s->n_heads * s->head_dim,
                   kv = (uint64_t)s->n_kv_heads * s->head_dim;
    char n[8][64];
#define TINY_NAME(i, tail) ((void)snprintf(n[i], sizeof(n[i]), "blk.%u." tail, l), n[i])
    tiny_vector(m, TINY_NAME(0, "attn_norm.weight"), s->n_embd, 1.0f, 0.25f);
    tiny_matrix(m, TINY_NAME(0, "attn_q.weight"), ISO_TYPE_F16, 0x30, s->n_embd, q);
    tiny_matrix(m, TINY_NAME(0, "attn_k.weight"), ISO_TYPE_Q8_0, 0x14, s->n_embd, kv);
    tiny_matrix(m, TINY_NAME(0, "attn_v.weight"), ISO_TYPE_Q4_1, 0x24, s->n_embd, kv);
    tiny_matrix(m, TINY_NAME(0, "attn_output.weight"), ISO_TYPE_Q5_0, 0x24, q, s->n_embd);
    if (muse) tiny_matrix(m, TINY_NAME(0, "attn_gate.weight"), ISO_TYPE_Q4_0, 0x24, s->n_embd, q);
    if (strcmp(s->arch, "qwen2") == 0) {
        tiny_vector(m, TINY_NAME(0, "attn_q.bias"), q, 0.0f, 0.5f);
        tiny_vector(m, TINY_NAME(0, "attn_k.bias"), kv, 0.0f, 0.5f);
        tiny_vector(m, TINY_NAME(0, "attn_v.bias"), kv, 0.0f, 0.5f);
    }
    if (post || strcmp(s->arch, "qwen3") == 0) {
        tiny_vector(m, TINY_NAME(0, "attn_q_norm.weight"), s->head_dim, muse ? 3.87f : 1.5f,
                    muse ? 0.0f : 0.25f);
        tiny_vector(m, TINY_NAME(0, "attn_k_norm.weight"), s->head_dim, 1.0f, muse ? 0.0f : 0.25f);
    }
    if (post) {
        tiny_vector(m, TINY_NAME(0, "post_attention_norm.weight"), s->n_embd, 1.0f, 0.25f);
        tiny_vector(m, TINY_NAME(0, "post_ffw_norm.weight"), s->n_embd, 1.0f, 0.25f);
    }
    tiny_vector(m, TINY_NAME(0, "ffn_norm.weight"), s->n_embd, 1.0f, 0.25f);
    tiny_matrix(m, TINY_NAME(0, "ffn_gate.weight"), ISO_TYPE_Q8_0, 0x14, s->n_embd, s->n_ff);
    tiny_matrix(m, TINY_NAME(0, "ffn_up.weight"), ISO_TYPE_MXFP4, 0, s->n_embd, s->n_ff);
    tiny_matrix(m, TINY_NAME(0, "ffn_down.weight"), ISO_TYPE_F16, 0x2c, s->n_ff, s->n_embd);
#undef TINY_NAME
}

/* Builds the model in memory; tiny_model_deinit() it. */
static inline void tiny_model_init(struct tiny_model *m, const struct tiny_spec *s)
{
    *m = (struct tiny_model){.spec = s, .state = s->seed * 0x9e3779b97f4a7c15ull + 1};
    iso_buf_init(&m->keys, TINY_MAX_BYTES);
    iso_buf_init(&m->records, TINY_MAX_BYTES);
    iso_buf_init(&m->data, TINY_MAX_BYTES);
    tiny_keys(m);
    tiny_matrix(m, "token_embd.weight", ISO_TYPE_Q8_0, 0x20, s->n_embd, s->n_vocab);
    tiny_vector(m, "output_norm.weight", s->n_embd, 1.0f, 0.25f);
    if (strcmp(s->arch, "llama") == 0) {
        tiny_matrix(m, "output.weight", ISO_TYPE_F16, 0x30, s->n_embd, s->n_vocab);
        tiny_vector(m, "rope_freqs.weight", s->head_dim / 2, 2.0f, 1.0f);
    }
    for (uint32_t l = 0; l < s->n_layers; l++) tiny_layer(m, l);
    if (s->extra) s->extra(m);
}

static inline void tiny_model_deinit(struct tiny_model *m)
{
    iso_buf_deinit(&m->keys);
    iso_buf_deinit(&m->records);
    iso_buf_deinit(&m->data);
}

/* Byte at of row of a tensor, to be patched before saving. */
static inline uint8_t *tiny_at(struct tiny_model *m, const char *name, size_t row, size_t at)
{
    for (size_t i = 0; i < m->n_tensors; i++) {
        if (strcmp(m->tensor[i].name, name) != 0) continue;
        return m->data.data + m->tensor[i].at + row * m->tensor[i].row_bytes + at;
    }
    fail_msg("the tiny model has no tensor %s", name);
    return NULL;
}

static inline void tiny_model_save(const struct tiny_model *m, const char *path)
{
    struct iso_buf b;
    iso_buf_init(&b, 2 * TINY_MAX_BYTES);
    tiny_ok(iso_buf_puts(&b, "GGUF"));
    tiny_ok(iso_buf_u32(&b, 3));
    tiny_ok(iso_buf_u64(&b, m->n_tensors));
    tiny_ok(iso_buf_u64(&b, m->n_keys));
    tiny_ok(iso_buf_append(&b, m->keys.data, m->keys.len));
    tiny_ok(iso_buf_append(&b, m->records.data, m->records.len));
    while (b.len % TINY_ALIGNMENT) tiny_ok(iso_buf_u8(&b, 0));
    tiny_ok(iso_buf_append(&b, m->data.data, m->data.len));
    FILE *f = fopen(path, "wb");
    if (f == NULL) fail_msg("cannot write %s", path);
    assert_int_equal(fwrite(b.data, 1, b.len, f), b.len);
    assert_int_equal(fclose(f), 0);
    iso_buf_deinit(&b);
}

/* A path for the only file of this name of this program; the caller unlinks it. */
static inline const char *tiny_path(const char *name)
{
    static char paths[4][512];
    static unsigned next;
    char *p = paths[next++ % 4];
    const char *tmp = getenv("TMPDIR");
    (void)snprintf(p, sizeof(paths[0]), "%s/isobit-tiny-%ld-%s.gguf", tmp ? tmp : "/tmp",
                   (long)getpid(), name);
    return p;
}

/* Path of a model file in $ISOBIT_MODELS or ~/.cache/isobit/models; fails the test without it. */
static inline const char *tiny_real_model(const char *name)
{
    static char path[1024];
    const char *dir = getenv("ISOBIT_MODELS"), *home = getenv("HOME");
    if (dir)
        (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    else
        (void)snprintf(path, sizeof(path), "%s/.cache/isobit/models/%s", home ? home : ".", name);
    if (access(path, R_OK) != 0) fail_msg("%s is missing: run tools/fetch_models.sh", path);
    return path;
}

#endif
