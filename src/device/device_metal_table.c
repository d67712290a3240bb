/* SPDX-License-Identifier: MIT
 * device_metal_table.c - the table of kernels, and their pipelines. */
#include "device/device_metal_table.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "format/types.h"
#include "kernels/attention/attention_metal.h"
#include "kernels/embed/embed_metal.h"
#include "kernels/heads/heads_metal.h"
#include "kernels/logits/logits_metal.h"
#include "kernels/matmul/matmul_metal.h"
#include "kernels/norm/norm_metal.h"
#include "kernels/quantize/quantize_metal.h"

#define ANY UINT32_MAX
#define STATES_MAX ((size_t)256 << 20) /* most memory for states of segments; beyond it tiles serve */
#define SPLIT_ROWS 64                  /* most rows whose attention is cut by segments */
/* iso_metal_attention_split_bytes() of the largest head */
#define SPLIT_BYTES \
    (ISO_METAL_ATTENTION_WAVE * ISO_METAL_ATTENTION_SPLIT_QUERIES * (ISO_HEAD_MAX * 4 + ISO_PAGE_POSITIONS * 2) + 256)

static_assert(ISO_METAL_MATMUL_TILE_BYTES(32) <= 32768, "threadgroup memory of every Apple GPU");

#define FOR_TYPE(o, name, from, to, t, b) \
    {.op = o, .function = name, .for_type = true, .rows_from = from, .rows_to = to, .threads = t, .bytes = b, \
     .align = 4}
#define PLAIN(o, name, t) {.op = o, .function = name, .rows_from = 1, .rows_to = ANY, .threads = t, .align = 4}
#define ATTENTION(name, to, t, b) \
    .op = "attention", .function = name, .rows_from = 1, .rows_to = to, .threads = t, .bytes = b, .align = 16, \
    .n_constants = 3, .constant = {{ISO_METAL_ATTENTION_DIM, 0}, {ISO_METAL_ATTENTION_CAP, 2}, \
                                   {ISO_METAL_ATTENTION_WHOLE, 2}}

const struct iso_metal_rule iso_metal_rules[ISO_METAL_KERNEL_COUNT] = {
    [ISO_METAL_EMBED] = FOR_TYPE("embed", "iso_embed_", 1, ANY, ISO_METAL_EMBED_THREADS, 0),
    [ISO_METAL_NORM] = {
        .op = "norm, residual", .function = "iso_norm", .rows_from = 1, .rows_to = ANY,
        .when = "no norm_quantize of the same rows follows the residual",
        .threads = ISO_METAL_NORM_THREADS, .bytes = ISO_METAL_NORM_BYTES, .align = 4,
        .n_constants = 3, .constant = {{ISO_METAL_NORM_HAS_NORM, 2}, {ISO_METAL_NORM_HAS_WEIGHT, 2},
                                       {ISO_METAL_NORM_ADD, 2}}},
    [ISO_METAL_GATHER] = PLAIN("gather", "iso_gather", ISO_METAL_GATHER_THREADS),
    [ISO_METAL_NORM_QUANTIZE] = {
        .op = "norm_quantize, residual", .function = "iso_norm_quantize", .rows_from = 1, .rows_to = ANY,
        .when = "a residual of the same rows in front joins it",
        .threads = ISO_METAL_QUANTIZE_THREADS, .bytes = ISO_METAL_QUANTIZE_BYTES, .align = 16,
        .n_constants = 6, .constant = {{ISO_METAL_QUANTIZE_HAS_TAP, 2}, {ISO_METAL_QUANTIZE_HAS_WEIGHT, 2},
                                       {ISO_METAL_QUANTIZE_HAS_INDEX, 2}, {ISO_METAL_QUANTIZE_ADD, 2},
                                       {ISO_METAL_QUANTIZE_ADD_NORM, 2}, {ISO_METAL_QUANTIZE_ADD_WEIGHT, 2}}},
    [ISO_METAL_QUANTIZE] = {
        .op = "quantize", .function = "iso_quantize", .rows_from = 1, .rows_to = ANY,
        .threads = ISO_METAL_QUANTIZE_THREADS, .align = 16,
        .n_constants = 2, .constant = {{ISO_METAL_QUANTIZE_HAS_TAP, 2}, {ISO_METAL_QUANTIZE_FORM, 4}}},
    [ISO_METAL_MATMUL_VEC] = FOR_TYPE("matmul", "iso_matmul_vec_", 1, 1, ISO_METAL_MATMUL_THREADS,
                                      ISO_METAL_MATMUL_VEC_BYTES),
    [ISO_METAL_MATMUL_TILE8] = FOR_TYPE("matmul", "iso_matmul_tile8_", 2, 8, ISO_METAL_MATMUL_THREADS,
                                        ISO_METAL_MATMUL_TILE_BYTES(8)),
    [ISO_METAL_MATMUL_TILE32] = FOR_TYPE("matmul", "iso_matmul_tile32_", 9, ANY, ISO_METAL_MATMUL_THREADS,
                                         ISO_METAL_MATMUL_TILE_BYTES(32)),
    [ISO_METAL_HEADS] = {
        .op = "heads", .function = "iso_heads", .rows_from = 1, .rows_to = ANY,
        .threads = ISO_METAL_HEADS_THREADS, .bytes = ISO_METAL_HEADS_BYTES, .align = 4,
        .n_constants = 8, .constant = {{ISO_METAL_HEADS_DIM, 0}, {ISO_METAL_HEADS_HAS_Q, 2},
                                       {ISO_METAL_HEADS_HAS_KV, 2}, {ISO_METAL_HEADS_HAS_Q_NORM, 2},
                                       {ISO_METAL_HEADS_HAS_K_NORM, 2}, {ISO_METAL_HEADS_PAIRS, 3},
                                       {ISO_METAL_HEADS_HAS_Q_TAP, 2}, {ISO_METAL_HEADS_HAS_K_TAP, 2}}},
    [ISO_METAL_ATTENTION_SPLIT] = {
        .when = "at most 4 rows of a session, and the states of all segments have room",
        ATTENTION("iso_attention_split", SPLIT_ROWS, ISO_METAL_ATTENTION_SPLIT_THREADS, SPLIT_BYTES)},
    [ISO_METAL_ATTENTION_TILES] = {
        ATTENTION("iso_attention_tiles", ANY, ISO_METAL_ATTENTION_TILE_THREADS, ISO_METAL_ATTENTION_TILE_BYTES)},
    [ISO_METAL_ATTENTION_MERGE] = {
        .when = "behind split, more than one segment",
        ATTENTION("iso_attention_merge", SPLIT_ROWS, ISO_METAL_ATTENTION_MERGE_THREADS, 0)},
    [ISO_METAL_LOGITS] = PLAIN("logits", "iso_logits", ISO_METAL_LOGITS_THREADS),
};

enum iso_metal_kernel iso_metal_choose(enum iso_metal_kernel from, enum iso_metal_kernel to, uint32_t n_rows)
{
    for (enum iso_metal_kernel k = from; k < to; k++) {
        if (n_rows >= iso_metal_rules[k].rows_from && n_rows <= iso_metal_rules[k].rows_to) return k;
    }
    return to;
}

void iso_metal_rule_text(char *out, size_t len, enum iso_metal_kernel k)
{
    const struct iso_metal_rule *r = &iso_metal_rules[k];
    char rows[32] = "any";
    if (r->rows_to != ANY) (void)snprintf(rows, sizeof(rows), "%u-%u", r->rows_from, r->rows_to);
    else if (r->rows_from > 1) (void)snprintf(rows, sizeof(rows), "%u-", r->rows_from);
    (void)snprintf(out, len, "op=\"%s\" rows=%s kernel=%s%s threads=%u memory_bytes=%u align=%u%s%s%s", r->op, rows,
                   r->function, r->for_type ? "<type>" : "", r->threads, r->bytes, r->align, r->when ? " when=\"" : "",
                   r->when ? r->when : "", r->when ? "\"" : "");
}

/* --- pipelines ---------------------------------------------------------------------------------------- */

static uint64_t key_of(const struct iso_metal_rule *r, const uint32_t *values)
{
    if (r->for_type) return values[0];
    uint64_t key = 0;
    for (uint32_t i = 0; i < r->n_constants; i++) key = key << (r->constant[i].limit == 2 ? 1 : 9) | values[i];
    return key;
}

static enum iso_err make(struct iso_metal_pipelines *p, enum iso_metal_kernel k, const uint32_t *values)
{
    const struct iso_metal_rule *r = &iso_metal_rules[k];
    struct iso_metal_constant c[ISO_METAL_CONSTANTS];
    char function[64];
    (void)snprintf(function, sizeof(function), "%s%s", r->function,
                   r->for_type ? iso_type_info((enum iso_type)values[0])->name : "");
    for (uint32_t i = 0; i < r->n_constants; i++) {
        c[i].index = r->constant[i].index;
        c[i].type = r->constant[i].limit == 2 ? ISO_METAL_BOOL : ISO_METAL_U32;
        c[i].value = values[i];
    }
    if (p->n + 1 >= ISO_METAL_VARIANTS) {
        ISO_FAIL(ISO_E_LIMIT, "%s: more than %d pipelines", function, ISO_METAL_VARIANTS - 1);
    }
    uint32_t pipeline = 0, width = 0;
    ISO_TRY(iso_metal_gpu_pipeline(p->gpu, function, c, r->n_constants, &pipeline, &width));
    const struct iso_metal_info *info = iso_metal_gpu_info(p->gpu);
    if (width < r->threads || info->group_threads < r->threads) {
        ISO_FAIL(ISO_E_GPU, "%s: kernel %s needs %u threads in a group, %u are possible", info->name, function,
                 r->threads, ISO_MIN(width, info->group_threads));
    }
    if (info->group_bytes < r->bytes) {
        ISO_FAIL(ISO_E_GPU, "%s: kernel %s needs %u bytes of threadgroup memory, there are %u", info->name, function,
                 r->bytes, info->group_bytes);
    }
    p->variant[++p->n] = (struct iso_metal_variant){key_of(r, values), pipeline, p->first[k]};
    p->first[k] = p->n;
    return ISO_OK;
}

static uint32_t find(const struct iso_metal_pipelines *p, enum iso_metal_kernel k, uint64_t key)
{
    for (uint32_t i = p->first[k]; i != 0; i = p->variant[i].next) {
        if (p->variant[i].key == key) return p->variant[i].pipeline;
    }
    return 0;
}

enum iso_err iso_metal_pipelines_get(struct iso_metal_pipelines *p, enum iso_metal_kernel k, const uint32_t *values,
                                     uint32_t *pipeline)
{
    *pipeline = find(p, k, key_of(&iso_metal_rules[k], values));
    if (*pipeline != 0) return ISO_OK;
    ISO_TRY(make(p, k, values));
    p->n_late++;
    iso_log(ISO_LOG_DEBUG, "metal", "late pipeline kernel=%s", iso_metal_rules[k].function);
    *pipeline = p->variant[p->n].pipeline;
    return ISO_OK;
}

/* Whether operations of a model ask for these values: the rest is made when a test asks. */
static bool wanted(enum iso_metal_kernel k, const uint32_t *v)
{
    switch (k) {
    case ISO_METAL_NORM: return v[0] || (!v[1] && v[2]);
    case ISO_METAL_NORM_QUANTIZE: return !(v[2] && v[3]) && v[4] <= v[3] && v[5] <= v[4];
    case ISO_METAL_QUANTIZE: return !(v[0] && v[1] == ISO_METAL_FORM_PLAIN);
    case ISO_METAL_HEADS: /* norms only of what there is, those of q and k together; taps only with both */
        if (v[1] && v[2]) return v[3] == v[4] && v[6] == v[7];
        return (v[1] || v[2]) && v[3] <= v[1] && v[4] <= v[2] && !v[6] && !v[7];
    case ISO_METAL_ATTENTION_TILES: return !v[2];
    case ISO_METAL_ATTENTION_MERGE: return !v[1] && !v[2];
    default: return true;
    }
}

/* Every wanted set of values of a kernel's constants, counted like digits. */
static enum iso_err make_all(struct iso_metal_pipelines *p, enum iso_metal_kernel k, uint32_t head_dim)
{
    const struct iso_metal_rule *r = &iso_metal_rules[k];
    uint32_t v[ISO_METAL_CONSTANTS] = {0};
    for (uint32_t i = 0; i < r->n_constants; i++) {
        if (r->constant[i].limit == 0) v[i] = head_dim;
    }
    for (;;) {
        if (wanted(k, v) && find(p, k, key_of(r, v)) == 0) ISO_TRY(make(p, k, v));
        uint32_t i = 0;
        for (; i < r->n_constants; i++) {
            if (r->constant[i].limit == 0) continue;
            if (++v[i] < r->constant[i].limit) break;
            v[i] = 0;
        }
        if (i == r->n_constants) return ISO_OK;
    }
}

static bool needs_head_dim(const struct iso_metal_rule *r)
{
    return r->n_constants > 0 && r->constant[0].limit == 0;
}

enum iso_err iso_metal_pipelines_open(struct iso_metal_pipelines *p, struct iso_metal_gpu *gpu)
{
    p->gpu = gpu;
    for (enum iso_metal_kernel k = 0; k < ISO_METAL_KERNEL_COUNT; k++) {
        char text[256];
        iso_metal_rule_text(text, sizeof(text), k);
        iso_log(ISO_LOG_DEBUG, "metal", "%s", text);
        if (needs_head_dim(&iso_metal_rules[k])) continue;
        if (!iso_metal_rules[k].for_type) ISO_TRY(make_all(p, k, 0));
        for (uint32_t t = 0; t < ISO_TYPE_COUNT && iso_metal_rules[k].for_type; t++) ISO_TRY(make(p, k, &t));
    }
    return ISO_OK;
}

enum iso_err iso_metal_pipelines_heads(struct iso_metal_pipelines *p, uint32_t head_dim)
{
    if (head_dim == 0 || head_dim % 8 != 0 || head_dim > ISO_HEAD_MAX) {
        ISO_FAIL(ISO_E_UNSUPPORTED, "a head size of %u: kernels exist for multiples of 8 up to %d", head_dim,
                 ISO_HEAD_MAX);
    }
    for (enum iso_metal_kernel k = 0; k < ISO_METAL_KERNEL_COUNT; k++) {
        if (needs_head_dim(&iso_metal_rules[k])) ISO_TRY(make_all(p, k, head_dim));
    }
    return ISO_OK;
}

size_t iso_metal_states_bytes(const struct iso_device_limits *limits)
{
    const uint32_t segments = (limits->max_pages + ISO_SEGMENT_PAGES - 1) / ISO_SEGMENT_PAGES;
    if (segments <= 1) return 0; /* split writes its output at once */
    const uint32_t rows = ISO_MIN(limits->max_rows, (uint32_t)SPLIT_ROWS);
    return ISO_MIN(iso_metal_attention_states(rows, limits->n_heads, limits->head_dim, segments), STATES_MAX);
}
