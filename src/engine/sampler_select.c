/* SPDX-License-Identifier: MIT
 * sampler_select.c - partial selection by count or by weight. */
#include "engine/sampler_select.h"

#include <assert.h>
#include <string.h>

#include "arith/prim.h"
#include "engine/sampler_weights.h"

#define BLOCK ISO_SAMPLER_BLOCK
#define CLASS_SHIFT 17        /* keeps six bits of an f32's mantissa: 64 classes per power of two */
#define CLASS_ONE (127u << 6) /* class number of the weight 1 before it is moved to 0 */

/* Class of w >= 1. The conversion is exact: a weight is a truncated f32. */
static inline uint32_t class_of(uint32_t w)
{
    return (ISO_AS_U32((float)(int32_t)w) >> CLASS_SHIFT) - CLASS_ONE;
}

/* Smallest weight of a class; 2^31 above the last one. */
static uint32_t class_floor(uint32_t c)
{
    const float f = ISO_AS_F32((c + CLASS_ONE) << CLASS_SHIFT);
    const uint32_t w = (uint32_t)f;
    return (float)w < f ? w + 1 : w;
}

static inline uint64_t token(uint32_t w, size_t id)
{
    return (uint64_t)w << 32 | (uint32_t)~id;
}

static inline uint32_t token_weight(uint64_t t)
{
    return (uint32_t)(t >> 32);
}

/* Appends tokens with lo <= w < hi to out [.. + n + BLOCK]; skips blocks that hold none. */
static size_t gather(uint64_t *out, const struct iso_select *s, uint32_t lo, uint32_t hi)
{
    size_t n_out = 0;
    for (size_t b = 0; b * BLOCK < s->n; b++) {
        if (s->block_max[b] < lo) continue;
        const size_t end = (b + 1) * BLOCK < s->n ? (b + 1) * BLOCK : s->n;
        for (size_t i = b * BLOCK; i < end; i++) {
            out[n_out] = token(s->w[i], i);
            n_out += s->w[i] - lo < hi - lo; /* written always, kept when inside: no branch */
        }
    }
    return n_out;
}

/* Smallest weight of the heaviest classes that hold at least `want` block maxima. */
static uint32_t head_floor(const struct iso_select *s, size_t want)
{
    uint32_t count[ISO_SELECT_CLASSES] = {0};
    for (size_t b = 0; b * BLOCK < s->n; b++) {
        if (s->block_max[b] > 0) count[class_of(s->block_max[b])]++;
    }
    size_t run = 0;
    for (uint32_t c = ISO_SELECT_CLASSES; c-- > 0;) {
        run += count[c];
        if (run >= want) return class_floor(c);
    }
    return 1;
}

void iso_select_begin(struct iso_select *s, size_t want)
{
    s->head_from = head_floor(s, want);
    s->n_head = gather(s->head, s, s->head_from, 1u << 31);
    s->head_weight = 0;
    for (size_t i = 0; i < s->n_head; i++) s->head_weight += token_weight(s->head[i]);
    s->has_classes = false;
}

static void fill_classes(struct iso_select *s)
{
    if (s->has_classes) return;
    memset(s->class_weight, 0, sizeof(s->class_weight));
    memset(s->class_count, 0, sizeof(s->class_count));
    for (size_t b = 0; b * BLOCK < s->n; b++) {
        if (s->block_max[b] == 0) continue;
        const size_t end = (b + 1) * BLOCK < s->n ? (b + 1) * BLOCK : s->n;
        for (size_t i = b * BLOCK; i < end; i++) {
            const uint32_t w = s->w[i];
            const uint32_t c = class_of(w | (w == 0)); /* 0 adds nothing to class 0 */
            s->class_weight[c] += w;
            s->class_count[c] += w != 0;
        }
    }
    s->has_classes = true;
}

static inline void swap(uint64_t *a, uint64_t *b)
{
    const uint64_t t = *a;
    *a = *b;
    *b = t;
}

/* Brings a pivot to a[0]: the middle one of three at pseudo-random places, so that no order of
 * logits makes the selection quadratic. The result does not depend on the choice. */
static void choose_pivot(uint64_t *a, size_t n, uint32_t *random)
{
    size_t at[3];
    for (size_t i = 0; i < 3; i++) {
        *random = *random * 1664525u + 1013904223u; /* the LCG of Numerical Recipes */
        at[i] = (size_t)(((uint64_t)*random * n) >> 32);
    }
    const size_t low = a[at[0]] < a[at[1]] ? at[0] : at[1];
    const size_t high = a[at[0]] < a[at[1]] ? at[1] : at[0];
    size_t mid = at[2];
    if (a[mid] < a[low]) mid = low;
    if (a[mid] > a[high]) mid = high;
    swap(&a[0], &a[mid]);
}

/* Quickselect with sums: in descending order of a [n], the first token at which the running count
 * or weight reaches target. A target that is never reached ends at the last token. Reorders a. */
static struct iso_cut select_in(uint64_t *a, size_t n, uint64_t target, bool by_count)
{
    uint64_t weight = 0; /* of the tokens known to be in the prefix; they have left a */
    uint64_t last = 0;
    uint32_t random = 12345;
    while (n > 0) {
        choose_pivot(a, n, &random);
        const uint64_t pivot = a[0];
        uint64_t upper_weight = 0;
        size_t upper = 1; /* a[1 .. upper) are above the pivot */
        for (size_t i = 1; i < n; i++) {
            const uint64_t t = a[i];
            const bool above = t > pivot;
            a[i] = a[upper];
            a[upper] = t;
            upper += above;
            upper_weight += above ? token_weight(t) : 0;
        }
        const uint64_t upper_measure = by_count ? upper - 1 : upper_weight;
        if (upper_measure >= target) {
            a++;
            n = upper - 1;
            continue;
        }
        const uint64_t with_pivot = upper_measure + (by_count ? 1 : token_weight(pivot));
        weight += upper_weight + token_weight(pivot);
        last = pivot;
        if (with_pivot >= target) break;
        target -= with_pivot;
        a += upper;
        n -= upper;
    }
    return (struct iso_cut){(uint32_t)~last, weight};
}

/* The answer beyond the head: the class in which the target lies, then selection inside it. */
static struct iso_cut select_in_classes(struct iso_select *s, uint64_t target, bool by_count)
{
    fill_classes(s);
    uint64_t weight = 0;
    uint64_t run = 0;
    uint32_t c = ISO_SELECT_CLASSES;
    while (c-- > 0) {
        const uint64_t more = by_count ? s->class_count[c] : s->class_weight[c];
        if (run + more >= target) break;
        weight += s->class_weight[c];
        run += more;
    }
    if (c == UINT32_MAX) return (struct iso_cut){0, weight}; /* more tokens wanted than there are */
    /* The head stays valid in front: this class lies below it, so both together fit n tokens. */
    uint64_t *room = s->head + s->n_head;
    const size_t n = gather(room, s, class_floor(c), class_floor(c + 1));
    struct iso_cut cut = select_in(room, n, target - run, by_count);
    cut.weight += weight;
    return cut;
}

static struct iso_cut select_prefix(struct iso_select *s, uint64_t target, bool by_count)
{
    const uint64_t in_head = by_count ? s->n_head : s->head_weight;
    if (target <= in_head) return select_in(s->head, s->n_head, target, by_count);
    return select_in_classes(s, target, by_count);
}

struct iso_cut iso_select_by_weight(struct iso_select *s, uint64_t target)
{
    assert(target > 0);
    return select_prefix(s, target, false);
}

uint64_t iso_select_by_count(struct iso_select *s, uint64_t count)
{
    assert(count > 0);
    return select_prefix(s, count, true).weight;
}

uint64_t iso_select_weight_from(struct iso_select *s, uint32_t floor)
{
    uint64_t sum = 0;
    if (s->n_head > 0 && floor >= s->head_from) {
        for (size_t i = 0; i < s->n_head; i++) {
            const uint32_t w = token_weight(s->head[i]);
            sum += w >= floor ? w : 0;
        }
        return sum;
    }
    for (size_t b = 0; b * BLOCK < s->n; b++) {
        if (s->block_max[b] < floor) continue;
        const size_t end = (b + 1) * BLOCK < s->n ? (b + 1) * BLOCK : s->n;
        for (size_t i = b * BLOCK; i < end; i++) sum += s->w[i] >= floor ? s->w[i] : 0;
    }
    return sum;
}
