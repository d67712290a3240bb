/* SPDX-License-Identifier: MIT
 * gguf_index.c - open addressing with linear probing over FNV-1a hashes. */
#include "format/gguf_index.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

/* FNV-1a, 64 bits folded to 32 (Fowler, Noll, Vo; draft-eastlake-fnv section 4). */
static uint32_t hash_of(const struct iso_name_index *x, const char *name)
{
    uint64_t h = 0xcbf29ce484222325u ^ x->seed;
    for (const char *p = name; *p != '\0'; p++) h = (h ^ (uint8_t)*p) * 0x100000001b3u;
    return (uint32_t)(h ^ h >> 32);
}

void iso_name_index_init(struct iso_name_index *x, size_t n)
{
    size_t cap = 8;
    while (cap < 2 * n) cap *= 2;
    x->slots = iso_xalloc(cap, sizeof(*x->slots));
    x->mask = cap - 1;
    x->seed = (uint64_t)iso_clock_ns() * 0x9e3779b97f4a7c15u ^ (uintptr_t)x->slots;
}

void iso_name_index_deinit(struct iso_name_index *x)
{
    free(x->slots);
    *x = (struct iso_name_index){NULL, 0, 0};
}

/* The slot of an equal name, or the free slot where it belongs. */
static struct iso_name_slot *probe(const struct iso_name_index *x, const char *name, uint32_t hash)
{
    for (size_t i = hash & x->mask;; i = (i + 1) & x->mask) {
        struct iso_name_slot *s = &x->slots[i];
        if (s->name == NULL) return s;
        if (s->hash == hash && strcmp(s->name, name) == 0) return s;
    }
}

size_t iso_name_index_add(struct iso_name_index *x, const char *name, uint32_t number)
{
    const uint32_t hash = hash_of(x, name);
    struct iso_name_slot *s = probe(x, name, hash);
    if (s->name != NULL) return s->number;
    assert(number <= x->mask / 2); /* or probe() would not end */
    *s = (struct iso_name_slot){name, hash, number};
    return ISO_NAME_NONE;
}

size_t iso_name_index_find(const struct iso_name_index *x, const char *name)
{
    if (x->slots == NULL) return ISO_NAME_NONE;
    const struct iso_name_slot *s = probe(x, name, hash_of(x, name));
    return s->name != NULL ? s->number : ISO_NAME_NONE;
}
