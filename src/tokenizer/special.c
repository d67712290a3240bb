/* SPDX-License-Identifier: MIT
 * special.c - longest-first matching of special tokens in one pass over the text.
 *
 * Matches that touch form a cluster; only within a cluster do they compete. Nearly always a cluster
 * is one token. Long runs (a page of newlines, each run length being a token) go through a heap.
 */
#include "tokenizer/special.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define TAKEN UINT32_MAX /* mark of a byte inside an accepted match, but not its first */

struct match {
    uint32_t len; /* 0: none */
    uint32_t id;
};

struct candidate {
    size_t pos; /* in the cluster */
    struct match match;
};

struct cluster {
    const char *text; /* of the cluster, which reaches to the end of the text */
    size_t len;
    uint32_t *mark; /* [len] id + 1 where an accepted match begins, TAKEN inside it, else 0 */
    struct candidate *heap;
    size_t n_heap;
};

struct sort_key {
    const uint8_t *text;
    size_t len;
    uint32_t id;
};

static int compare_text(const void *a, const void *b)
{
    const struct sort_key *x = a;
    const struct sort_key *y = b;
    const int order = memcmp(x->text, y->text, ISO_MIN(x->len, y->len));
    if (order != 0) return order;
    return x->len < y->len ? -1 : x->len > y->len;
}

enum iso_err
iso_special_init(struct iso_special *s, const struct iso_vocab *v, iso_special_wanted *wanted)
{
    *s = (struct iso_special){.vocab = v};
    uint32_t n = 0;
    for (uint32_t id = 0; id < v->n; id++) {
        if (v->start[id + 1] > v->start[id] && wanted(v, id)) n++;
    }
    void *keys = NULL;
    void *ids = NULL;
    ISO_TRY(iso_mem_alloc(&ids, n, sizeof(*s->id), "special tokens"));
    s->id = ids;
    ISO_TRY(iso_mem_alloc(&keys, n, sizeof(struct sort_key), "special tokens"));
    struct sort_key *key = keys;
    for (uint32_t id = 0; id < v->n; id++) {
        if (v->start[id + 1] == v->start[id] || !wanted(v, id)) continue;
        key[s->n].id = id;
        key[s->n].text = iso_vocab_text(v, id, &key[s->n].len);
        s->n++;
    }
    qsort(key, n, sizeof(*key), compare_text);
    for (uint32_t i = 0; i < n; i++) {
        s->id[i] = key[i].id;
        s->first[key[i].text[0] + 1]++; /* counts, summed up below */
    }
    for (unsigned b = 0; b < 256; b++) s->first[b + 1] += s->first[b];
    iso_mem_free(keys);
    return ISO_OK;
}

void iso_special_deinit(struct iso_special *s)
{
    iso_mem_free(s->id);
    *s = (struct iso_special){0};
}

/* First index in [low, high) whose text has a byte >= byte at depth; all are longer than depth. */
static uint32_t
lower_bound(const struct iso_special *s, uint32_t low, uint32_t high, size_t depth, unsigned byte)
{
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (s->vocab->text[s->vocab->start[s->id[middle]] + depth] < byte) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* The longest token that text [len], len > 0, begins with. */
static struct match longest(const struct iso_special *s, const char *text, size_t len)
{
    const uint8_t *p = (const uint8_t *)text;
    struct match best = {0};
    uint32_t low = s->first[p[0]];
    uint32_t high = s->first[p[0] + 1];
    /* The range shrinks to the tokens that share depth bytes with the text; sorted order puts the
     * one that is exactly these bytes first. */
    for (size_t depth = 1; low < high; depth++) {
        size_t n = 0;
        (void)iso_vocab_text(s->vocab, s->id[low], &n);
        if (n == depth) best = (struct match){.len = (uint32_t)depth, .id = s->id[low++]};
        if (depth == len || low == high) break;
        low = lower_bound(s, low, high, depth, p[depth]);
        high = lower_bound(s, low, high, depth, p[depth] + 1u);
    }
    return best;
}

/* Does a go before b? */
static bool goes_first(const struct candidate *a, const struct candidate *b)
{
    if (a->match.len != b->match.len) return a->match.len > b->match.len;
    if (a->match.id != b->match.id) return a->match.id < b->match.id;
    return a->pos < b->pos;
}

static void push(struct cluster *c, struct candidate item)
{
    size_t i = c->n_heap++;
    for (; i > 0 && goes_first(&item, &c->heap[(i - 1) / 2]); i = (i - 1) / 2) {
        c->heap[i] = c->heap[(i - 1) / 2];
    }
    c->heap[i] = item;
}

static struct candidate pop(struct cluster *c)
{
    const struct candidate top = c->heap[0];
    const struct candidate last = c->heap[--c->n_heap];
    size_t i = 0;
    for (size_t child = 1; child < c->n_heap; child = 2 * i + 1) {
        if (child + 1 < c->n_heap && goes_first(&c->heap[child + 1], &c->heap[child])) child++;
        if (!goes_first(&c->heap[child], &last)) break;
        c->heap[i] = c->heap[child];
        i = child;
    }
    if (c->n_heap) c->heap[i] = last;
    return top;
}

/* Accepts matches in order of preference; one that no longer fits gives way to a shorter one. */
static void resolve(const struct iso_special *s, struct cluster *c)
{
    for (size_t i = 0; i < c->len; i++) {
        const struct match m = longest(s, c->text + i, c->len - i);
        if (m.len) push(c, (struct candidate){.pos = i, .match = m});
    }
    while (c->n_heap) {
        struct candidate item = pop(c);
        if (c->mark[item.pos]) continue;
        uint32_t room = 1;
        while (room < item.match.len && c->mark[item.pos + room] == 0) room++;
        if (room < item.match.len) {
            item.match = longest(s, c->text + item.pos, room);
            if (item.match.len) push(c, item);
            continue;
        }
        for (uint32_t i = 1; i < room; i++) c->mark[item.pos + i] = TAKEN;
        c->mark[item.pos] = item.match.id + 1;
    }
}

/* What has been handed out of the text. */
struct output {
    iso_special_fragment *fragment;
    void *ctx;
    const char *text;
    size_t done; /* bytes */
};

/* Hands out the text before position pos, if any, and the token there. The text between two tokens
 * is always one fragment: merges may use all of it. */
static enum iso_err put_token(struct output *o, size_t pos, struct match m)
{
    if (pos > o->done) ISO_TRY(o->fragment(o->ctx, -1, o->text + o->done, pos - o->done));
    o->done = pos + m.len;
    return o->fragment(o->ctx, (int32_t)m.id, o->text + pos, m.len);
}

/* Hands out the tokens of a resolved cluster that begins at position pos. */
static enum iso_err
put_cluster(struct output *o, const struct iso_special *s, const struct cluster *c, size_t pos)
{
    for (size_t i = 0; i < c->len; i++) {
        if (c->mark[i] == 0 || c->mark[i] == TAKEN) continue;
        size_t len = 0;
        (void)iso_vocab_text(s->vocab, c->mark[i] - 1, &len);
        const struct match m = {.len = (uint32_t)len, .id = c->mark[i] - 1};
        ISO_TRY(put_token(o, pos + i, m));
    }
    return ISO_OK;
}

static enum iso_err
split_cluster(struct output *o, const struct iso_special *s, size_t pos, size_t len)
{
    struct cluster c = {.text = o->text + pos, .len = len};
    enum iso_err err = ISO_OK;
    void *mark = NULL;
    void *heap = NULL;
    ISO_TRY_OUT(iso_mem_alloc(&mark, len, sizeof(*c.mark), "special token marks"));
    ISO_TRY_OUT(iso_mem_alloc(&heap, len, sizeof(*c.heap), "special token heap"));
    c.mark = mark;
    c.heap = heap;
    resolve(s, &c);
    err = put_cluster(o, s, &c, pos);
out:
    iso_mem_free(mark);
    iso_mem_free(heap);
    return err;
}

/* Bytes of the cluster that the match at text begins; *alone if nothing competes with it. */
static size_t cluster_len(
    const struct iso_special *s, const char *text, size_t len, struct match match, bool *alone)
{
    size_t end = match.len;
    *alone = true;
    for (size_t i = 1; i < end; i++) {
        const struct match m = longest(s, text + i, len - i);
        if (i + m.len > end) {
            end = i + m.len;
            *alone = false;
        }
    }
    return end;
}

enum iso_err iso_special_split(const struct iso_special *s,
                               const char *text,
                               size_t len,
                               iso_special_fragment *fragment,
                               void *ctx)
{
    struct output o = {.fragment = fragment, .ctx = ctx, .text = text};
    size_t i = 0;
    while (i < len) {
        const uint8_t byte = (uint8_t)text[i];
        struct match m = {0};
        if (s->first[byte] != s->first[byte + 1]) m = longest(s, text + i, len - i);
        if (m.len == 0) {
            i++;
            continue;
        }
        bool alone = false;
        const size_t n = cluster_len(s, text + i, len - i, m, &alone);
        ISO_TRY(alone ? put_token(&o, i, m) : split_cluster(&o, s, i, n));
        i += n;
    }
    return len > o.done ? fragment(ctx, -1, text + o.done, len - o.done) : ISO_OK;
}
