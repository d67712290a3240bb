/* SPDX-License-Identifier: MIT
 * sampler.c - parameters, penalties, filters and the draw. */
#include "engine/sampler.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "arith/prim.h"
#include "base/mem.h"
#include "engine/philox.h"
#include "engine/sampler_select.h"
#include "engine/sampler_weights.h"

#define TEMPERATURE_MIN 0x1p-20f /* section 12; keeps every product below 2^122 */
#define TEMPERATURE_MAX 0x1p20f
#define PENALTY_MAX 0x1p20f
#define BIAS_MAX 0x1p60f

struct iso_sampler {
    const struct iso_sampler_kernels *kernels;
    size_t n_vocab;
    float c;          /* log2(e) / temperature; 0 is greedy */
    uint32_t top_k;   /* 0: off */
    uint32_t p24;     /* top-p times 2^24; 2^24: off */
    uint32_t min_p24; /* min-p times 2^24; 0: off */
    float repetition;
    float inv_repetition;
    float frequency;
    float presence;
    bool counts_tokens; /* whether a penalty is on */
    bool edits_logits;  /* whether picking starts from a changed copy */
    uint64_t seed;
    struct iso_sampler_bias *bias; /* [n_bias] */
    size_t n_bias;
    int32_t *banned; /* [n_banned] */
    size_t n_banned;
    uint32_t *count; /* [n_vocab] occurrences, or NULL */
    int32_t *seen;   /* [n_seen] distinct ids with a count, or NULL; room for n_vocab */
    size_t n_seen;
    float *logits;    /* [n_vocab] changed copy, or NULL */
    uint32_t *weight; /* [n_vocab], NULL when greedy */
    uint32_t *block_max;
    struct iso_select select;
};

static enum iso_err check_range(const char *name, float v, float lo, float hi)
{
    if (!(v >= lo && v <= hi)) {
        ISO_FAIL(ISO_E_ARG, "%s is %g; the range is %g to %g", name, (double)v, (double)lo,
                 (double)hi);
    }
    return ISO_OK;
}

static enum iso_err check_id(const char *name, int32_t id, size_t n_vocab)
{
    if (id < 0 || (size_t)id >= n_vocab) {
        ISO_FAIL(ISO_E_ARG, "%s names token %d; the vocabulary has %zu", name, (int)id, n_vocab);
    }
    return ISO_OK;
}

static enum iso_err check_params(const struct iso_sampler_params *p, size_t n_vocab)
{
    if (n_vocab < 1 || n_vocab > INT32_MAX) {
        ISO_FAIL(ISO_E_ARG, "a vocabulary of %zu tokens; the range is 1 to %d", n_vocab, INT32_MAX);
    }
    if (p->temperature != 0.0f) {
        if (!(p->temperature >= TEMPERATURE_MIN && p->temperature <= TEMPERATURE_MAX)) {
            ISO_FAIL(ISO_E_ARG, "temperature is %g; 0 or from 2^-20 (%g) to 2^20",
                     (double)p->temperature, (double)TEMPERATURE_MIN);
        }
    }
    if (!(p->top_p > 0.0f && p->top_p <= 1.0f)) {
        ISO_FAIL(ISO_E_ARG, "top_p is %g; above 0 and at most 1 (1 is off)", (double)p->top_p);
    }
    ISO_TRY(check_range("min_p", p->min_p, 0.0f, 1.0f));
    ISO_TRY(check_range("repetition penalty", p->repetition, 1.0f / PENALTY_MAX, PENALTY_MAX));
    ISO_TRY(check_range("frequency penalty", p->frequency, -PENALTY_MAX, PENALTY_MAX));
    ISO_TRY(check_range("presence penalty", p->presence, -PENALTY_MAX, PENALTY_MAX));
    for (size_t i = 0; i < p->n_bias; i++) {
        ISO_TRY(check_id("a bias", p->bias[i].id, n_vocab));
        ISO_TRY(check_range("a bias", p->bias[i].bias, -BIAS_MAX, BIAS_MAX));
    }
    for (size_t i = 0; i < p->n_banned; i++) {
        ISO_TRY(check_id("the list of banned tokens", p->banned[i], n_vocab));
    }
    return ISO_OK;
}

/* No id with two biases (which of them is meant?), and some token that may be picked. */
static enum iso_err check_lists(const struct iso_sampler_params *p, size_t n_vocab)
{
    if (p->n_bias == 0 && p->n_banned == 0) return ISO_OK;
    void *mark = NULL; /* bit 0: has a bias; bit 1: banned */
    ISO_TRY(iso_mem_alloc(&mark, n_vocab, 1, "sampler check"));
    uint8_t *m = mark;
    size_t n_banned = 0;
    enum iso_err err = ISO_OK;
    for (size_t i = 0; i < p->n_bias; i++) {
        if (m[p->bias[i].id] & 1) {
            ISO_FAIL_OUT(ISO_E_ARG, "token %d has two biases", (int)p->bias[i].id);
        }
        m[p->bias[i].id] |= 1;
    }
    for (size_t i = 0; i < p->n_banned; i++) {
        n_banned += !(m[p->banned[i]] & 2);
        m[p->banned[i]] |= 2;
    }
    if (n_banned == n_vocab) ISO_FAIL_OUT(ISO_E_ARG, "all %zu tokens are banned", n_vocab);
out:
    iso_mem_free(mark);
    return err;
}

static void copy_params(struct iso_sampler *s, const struct iso_sampler_params *p, size_t n_vocab)
{
    s->kernels = p->kernels ? p->kernels : iso_sampler_kernels_best();
    s->n_vocab = n_vocab;
    s->c = p->temperature == 0.0f ? 0.0f : ISO_LOG2E * iso_rcp(p->temperature);
    s->top_k = p->top_k;
    s->p24 = (uint32_t)(p->top_p * 0x1p24f);
    s->min_p24 = (uint32_t)(p->min_p * 0x1p24f);
    s->repetition = p->repetition;
    s->inv_repetition = iso_rcp(p->repetition);
    s->frequency = p->frequency;
    s->presence = p->presence;
    s->seed = p->seed;
    s->counts_tokens = p->repetition != 1.0f || p->frequency != 0.0f || p->presence != 0.0f;
    s->edits_logits = s->counts_tokens || p->n_bias > 0 || p->n_banned > 0;
}

static enum iso_err copy_list(void *out, size_t *n_out, const void *list, size_t n, size_t size)
{
    if (n == 0) return ISO_OK;
    void *p = NULL;
    ISO_TRY(iso_mem_alloc(&p, n, size, "sampler list"));
    memcpy(p, list, n * size);
    memcpy(out, &p, sizeof(p));
    *n_out = n;
    return ISO_OK;
}

/* A zeroed array into *out, which is any pointer to data. */
static enum iso_err alloc_array(void *out, size_t n, size_t size)
{
    void *p = NULL;
    ISO_TRY(iso_mem_alloc(&p, n, size, "sampler"));
    memcpy(out, &p, sizeof(p));
    return ISO_OK;
}

static enum iso_err alloc_all(struct iso_sampler *s, const struct iso_sampler_params *p)
{
    const size_t n = s->n_vocab;
    ISO_TRY(copy_list(&s->bias, &s->n_bias, p->bias, p->n_bias, sizeof(*p->bias)));
    ISO_TRY(copy_list(&s->banned, &s->n_banned, p->banned, p->n_banned, sizeof(*p->banned)));
    if (s->edits_logits) ISO_TRY(alloc_array(&s->logits, n, sizeof(float)));
    if (s->counts_tokens) {
        ISO_TRY(alloc_array(&s->count, n, sizeof(uint32_t)));
        ISO_TRY(alloc_array(&s->seen, n, sizeof(int32_t)));
    }
    if (s->c == 0.0f) return ISO_OK; /* greedy needs no weights */
    const size_t n_blocks = (n + ISO_SAMPLER_BLOCK - 1) / ISO_SAMPLER_BLOCK;
    ISO_TRY(alloc_array(&s->weight, n, sizeof(uint32_t)));
    ISO_TRY(alloc_array(&s->block_max, n_blocks, sizeof(uint32_t)));
    ISO_TRY(alloc_array(&s->select.head, n + ISO_SAMPLER_BLOCK, sizeof(uint64_t)));
    s->select.w = s->weight;
    s->select.block_max = s->block_max;
    s->select.n = n;
    return ISO_OK;
}

enum iso_err
iso_sampler_new(struct iso_sampler **out, const struct iso_sampler_params *p, size_t n_vocab)
{
    ISO_TRY(check_params(p, n_vocab));
    ISO_TRY(check_lists(p, n_vocab));
    void *mem = NULL;
    ISO_TRY(iso_mem_alloc(&mem, 1, sizeof(struct iso_sampler), "sampler"));
    struct iso_sampler *s = mem;
    copy_params(s, p, n_vocab);
    const enum iso_err err = alloc_all(s, p);
    if (err != ISO_OK) {
        iso_sampler_free(s);
        return err;
    }
    *out = s;
    return ISO_OK;
}

void iso_sampler_free(struct iso_sampler *s)
{
    if (!s) return;
    iso_mem_free(s->bias);
    iso_mem_free(s->banned);
    iso_mem_free(s->count);
    iso_mem_free(s->seen);
    iso_mem_free(s->logits);
    iso_mem_free(s->weight);
    iso_mem_free(s->block_max);
    iso_mem_free(s->select.head);
    iso_mem_free(s);
}

void iso_sampler_seen(struct iso_sampler *s, int32_t id)
{
    assert(id >= 0 && (size_t)id < s->n_vocab);
    if (!s->counts_tokens) return;
    if (s->count[id]++ == 0) s->seen[s->n_seen++] = id;
}

void iso_sampler_forget(struct iso_sampler *s)
{
    for (size_t i = 0; i < s->n_seen; i++) s->count[s->seen[i]] = 0;
    s->n_seen = 0;
}

/* The logits after bias, penalties and bans, in this order; l itself when nothing changes them. A
 * banned token becomes -inf, which no filter counts because its weight is 0. */
static const float *edit_logits(struct iso_sampler *s, const float *l)
{
    if (!s->edits_logits) return l;
    float *e = s->logits;
    memcpy(e, l, s->n_vocab * sizeof(*e));
    for (size_t i = 0; i < s->n_bias; i++) e[s->bias[i].id] = e[s->bias[i].id] + s->bias[i].bias;
    for (size_t i = 0; i < s->n_seen; i++) {
        const int32_t id = s->seen[i];
        const float v = e[id] > 0.0f ? e[id] * s->inv_repetition : e[id] * s->repetition;
        e[id] = v - ISO_FMA(s->frequency, (float)s->count[id], s->presence);
    }
    for (size_t i = 0; i < s->n_banned; i++) e[s->banned[i]] = -INFINITY;
    return e;
}

/* ceil(part24 * whole / 2^24), the smallest x with x * 2^24 >= part24 * whole. */
static uint64_t share(uint32_t part24, uint64_t whole)
{
    const unsigned __int128 product = (unsigned __int128)part24 * whole;
    return (uint64_t)((product + 0xffffff) >> 24);
}

/* Weight of the tokens that all filters keep; each keeps a prefix of what the one before kept. */
static uint64_t kept_weight(struct iso_sampler *s, uint64_t total)
{
    uint64_t kept = total;
    if (s->top_k > 0 && s->top_k < s->n_vocab) {
        kept = iso_select_by_count(&s->select, s->top_k);
    }
    if (s->p24 < 1u << 24) {
        const uint64_t target = share(s->p24, kept);
        kept = iso_select_by_weight(&s->select, target > 0 ? target : 1).weight;
    }
    const uint32_t floor = (uint32_t)share(s->min_p24, ISO_SAMPLER_TOP);
    if (floor > 0) {
        const uint64_t heavy = iso_select_weight_from(&s->select, floor);
        kept = heavy < kept ? heavy : kept;
    }
    return kept;
}

/* How many heavy tokens to look for first: an eighth of the block maxima costs little and reaches
 * nearly all of a language model's weight; a top-k of that order is wanted as a whole. */
static size_t head_wish(const struct iso_sampler *s)
{
    const size_t n_blocks = (s->n_vocab + ISO_SAMPLER_BLOCK - 1) / ISO_SAMPLER_BLOCK;
    const size_t some = n_blocks / 8 + 1;
    return s->top_k > some && s->top_k <= n_blocks / 2 ? s->top_k : some;
}

int32_t iso_sampler_pick(struct iso_sampler *s, const float *logits, uint64_t position)
{
    const float *l = edit_logits(s, logits);
    size_t from = 0;
    const float top = s->kernels->max(&from, l, s->n_vocab);
    if (s->c == 0.0f) {
        while (from + 1 < s->n_vocab && l[from] != top) from++;
        return (int32_t)from;
    }
    const uint64_t total = s->kernels->weights(s->weight, s->block_max, l, top, s->c, s->n_vocab);
    iso_select_begin(&s->select, head_wish(s));
    const uint64_t kept = kept_weight(s, total);
    const uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), 0, 0};
    const uint32_t key[2] = {(uint32_t)s->seed, (uint32_t)(s->seed >> 32)};
    uint32_t random[4];
    iso_philox4x32(random, counter, key);
    const uint64_t r = (uint64_t)random[1] << 32 | random[0];
    const uint64_t t = (uint64_t)(((unsigned __int128)r * kept) >> 64);
    return (int32_t)iso_select_by_weight(&s->select, t + 1).id;
}
