/* SPDX-License-Identifier: MIT
 * merge.c - the merge loop: a linked list of symbols and a binary heap of pairs. */
#include "tokenizer/merge.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"

enum iso_err
iso_merge_grow(void **p, size_t *cap, size_t need, size_t keep, size_t size, const char *what)
{
    if (need <= *cap) return ISO_OK;
    const size_t want = ISO_MAX(need, *cap + *cap / 2 + 64);
    void *bigger = NULL;
    ISO_TRY(iso_mem_alloc(&bigger, want, size, what));
    if (keep) memcpy(bigger, *p, keep * size);
    iso_mem_free(*p);
    *p = bigger;
    *cap = want;
    return ISO_OK;
}

void iso_merge_deinit(struct iso_merge *m)
{
    iso_mem_free(m->symbol);
    iso_mem_free(m->heap);
    *m = (struct iso_merge){0};
}

enum iso_err iso_merge_begin(struct iso_merge *m, size_t n)
{
    void *p = m->symbol;
    m->n_symbols = 0;
    m->n_heap = 0;
    ISO_TRY(iso_merge_grow(&p, &m->cap_symbols, n, 0, sizeof(*m->symbol), "tokenizer symbols"));
    m->symbol = p;
    return ISO_OK;
}

void iso_merge_add(struct iso_merge *m, uint32_t pos, uint32_t len, int32_t id)
{
    assert(m->n_symbols < m->cap_symbols);
    const uint32_t i = (uint32_t)m->n_symbols++;
    m->symbol[i] = (struct iso_symbol){.pos = pos,
                                       .len = len,
                                       .id = id,
                                       .prev = i ? i - 1 : ISO_SYMBOL_NONE,
                                       .next = ISO_SYMBOL_NONE};
    if (i) m->symbol[i - 1].next = i;
}

static enum iso_err reserve_heap(struct iso_merge *m, size_t more)
{
    void *p = m->heap;
    ISO_TRY(iso_merge_grow(&p, &m->cap_heap, m->n_heap + more, m->n_heap, sizeof(*m->heap),
                           "tokenizer heap"));
    m->heap = p;
    return ISO_OK;
}

static void push(struct iso_merge *m, struct iso_merge_pair pair)
{
    size_t i = m->n_heap++;
    while (i > 0) {
        const size_t parent = (i - 1) / 2;
        if (m->heap[parent].key <= pair.key) break;
        m->heap[i] = m->heap[parent];
        i = parent;
    }
    m->heap[i] = pair;
}

static struct iso_merge_pair pop(struct iso_merge *m)
{
    const struct iso_merge_pair top = m->heap[0];
    const struct iso_merge_pair last = m->heap[--m->n_heap];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= m->n_heap) break;
        if (child + 1 < m->n_heap && m->heap[child + 1].key < m->heap[child].key) child++;
        if (m->heap[child].key >= last.key) break;
        m->heap[i] = m->heap[child];
        i = child;
    }
    if (m->n_heap) m->heap[i] = last;
    return top;
}

static void consider(struct iso_merge *m, uint32_t left, iso_merge_find *find, const void *ctx)
{
    if (left == ISO_SYMBOL_NONE || m->symbol[left].next == ISO_SYMBOL_NONE) return;
    const struct iso_symbol *l = &m->symbol[left];
    const struct iso_symbol *r = &m->symbol[l->next];
    uint32_t priority = 0;
    int32_t id = -1;
    if (!find(ctx, l, r, &priority, &id)) return;
    push(m, (struct iso_merge_pair){
                .key = (uint64_t)priority << 32 | left, .len = l->len + r->len, .id = id});
}

/* A pair is out of date when one of its symbols was joined with another: since symbols only grow,
 * the lengths of the left symbol and its present neighbour then no longer add up. */
static bool is_current(const struct iso_merge *m, const struct iso_merge_pair *pair)
{
    const struct iso_symbol *l = &m->symbol[(uint32_t)pair->key];
    if (l->len == 0 || l->next == ISO_SYMBOL_NONE) return false;
    return l->len + m->symbol[l->next].len == pair->len;
}

enum iso_err iso_merge_run(struct iso_merge *m, iso_merge_find *find, const void *ctx)
{
    ISO_TRY(reserve_heap(m, m->n_symbols));
    for (uint32_t i = 0; i + 1 < m->n_symbols; i++) consider(m, i, find, ctx);
    while (m->n_heap) {
        const struct iso_merge_pair pair = pop(m);
        if (!is_current(m, &pair)) continue;
        const uint32_t left = (uint32_t)pair.key;
        struct iso_symbol *l = &m->symbol[left];
        struct iso_symbol *r = &m->symbol[l->next];
        l->len += r->len;
        l->id = pair.id;
        l->next = r->next;
        r->len = 0;
        if (l->next != ISO_SYMBOL_NONE) m->symbol[l->next].prev = left;
        ISO_TRY(reserve_heap(m, 2));
        consider(m, l->prev, find, ctx);
        consider(m, left, find, ctx);
    }
    return ISO_OK;
}
