/* SPDX-License-Identifier: MIT
 * boundary.c - loads the recorded layer 0 of the golden models. */
#include "kernels/boundary.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "arith/page.h"
#include "arith/rope.h"
#include "base/buf.h"
#include "base/mem.h"
#include "format/gguf.h"
#include "kernels/check.h"

struct model {
    const char *folder;
    const char *file; /* has head norms in layer 0, or NULL */
    uint32_t n_heads, n_kv, d;
    enum iso_rope_pairs pairs;
    double base;
};

static const struct model models[] = {
    {"smollm2-135m", NULL, 9, 3, 64, ISO_ROPE_INTERLEAVED, 100000.0},
    {"gemma3-270m", "gemma-3-270m-q4_k_m.gguf", 4, 1, 256, ISO_ROPE_HALVES, 10000.0},
};

size_t boundary_count(void)
{
    return ISO_COUNT(models);
}

static void *load(const struct model *m, const char *name, size_t *len)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "tests/golden/%s/raw/00.%s", m->folder, name);
    return check_read_file(path, len);
}

static float *
load_rows(const struct model *m, const char *name, uint32_t n_heads, uint32_t n_tokens)
{
    size_t len;
    float *x = load(m, name, &len);
    assert_int_equal(len, (size_t)n_tokens * n_heads * m->d * sizeof(float));
    return x;
}

/* Returns owned, check_free(). */
static float *norm_weights(const struct iso_gguf *g, const char *name, uint32_t d)
{
    const struct iso_gguf_tensor *t = iso_gguf_find(g, name);
    if (!t || t->type != ISO_TYPE_F32 || t->dims[0] != d) fail_msg("%s: no f32 [%u]", name, d);
    float *w = check_alloc(d * sizeof(*w), CHECK_GUARDED);
    iso_copy_le(w, t->data, d, sizeof(*w));
    return w;
}

static void load_norms(struct boundary *b, const struct model *m)
{
    const char *folder = getenv("ISOBIT_MODELS");
    char path[1024];
    (void)snprintf(path, sizeof(path), "%s%s/%s", folder ? folder : getenv("HOME"),
                   folder ? "" : "/.cache/isobit/models", m->file);
    if (iso_gguf_open(&b->file, path) != ISO_OK) {
        fail_msg("%s; run tools/fetch_models.sh", iso_err_detail());
    }
    b->q_norm = norm_weights(b->file, "blk.0.attn_q_norm.weight", m->d);
    b->k_norm = norm_weights(b->file, "blk.0.attn_k_norm.weight", m->d);
    b->q_args.norm = b->q_norm;
    b->k_args.norm = b->k_norm;
    char key[64] = "gemma3.attention.layer_norm_rms_epsilon";
    if (iso_gguf_f32(&b->q_args.eps, b->file, key) != ISO_OK) fail_msg("%s", iso_err_detail());
    b->k_args.eps = b->q_args.eps;
}

static void fill_cos_sin(struct boundary *b, const struct model *m)
{
    b->cos_sin = check_alloc((size_t)b->n_tokens * m->d * sizeof(float), CHECK_GUARDED);
    for (uint32_t i = 0; i < m->d / 2; i++) {
        const uint64_t turns = iso_rope_turns(m->base, i, m->d, 1.0);
        for (uint32_t p = 0; p < b->n_tokens; p++) {
            float *at = b->cos_sin + (size_t)p * m->d + 2 * i;
            iso_rope_row(at, &turns, 1, p);
        }
    }
}

void boundary_load(struct boundary *b, size_t i)
{
    const struct model *m = &models[i];
    memset(b, 0, sizeof(*b));
    b->model = m->folder;
    b->n_heads = m->n_heads;
    b->n_kv = m->n_kv;
    size_t len;
    b->q = load(m, "q.f32", &len);
    b->n_tokens = (uint32_t)(len / (m->n_heads * m->d * sizeof(float)));
    assert_in_range(b->n_tokens, 2, ISO_PAGE_POSITIONS);
    b->k = load_rows(m, "k.f32", m->n_kv, b->n_tokens);
    b->v = load_rows(m, "v.f32", m->n_kv, b->n_tokens);
    b->q_rope = load_rows(m, "q_rope.f32", m->n_heads, b->n_tokens);
    b->k_rope = load_rows(m, "k_rope.f32", m->n_kv, b->n_tokens);
    b->attn_out = load_rows(m, "attn_out.f32", m->n_heads, b->n_tokens);
    for (uint32_t h = 0; h < m->n_kv; h++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "page.h%u.p0.bin", h);
        b->page[h] = load(m, name, &len);
        assert_int_equal(len, iso_page_bytes(m->d));
    }
    const struct iso_heads_args args = {
        .d = m->d, .n_rot = m->d, .pairs = m->pairs, .inv_n = 1.0f / (float)m->d};
    b->q_args = args;
    b->k_args = args;
    if (m->file) load_norms(b, m);
    fill_cos_sin(b, m);
}

void boundary_free(struct boundary *b)
{
    void *parts[] = {b->q,        b->k,       b->v,      b->q_rope, b->k_rope,
                     b->attn_out, b->cos_sin, b->q_norm, b->k_norm};
    for (size_t i = 0; i < ISO_COUNT(parts); i++) check_free(parts[i]);
    for (uint32_t h = 0; h < b->n_kv; h++) check_free(b->page[h]);
    iso_gguf_close(b->file);
}
