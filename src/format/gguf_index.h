/* SPDX-License-Identifier: MIT
 * gguf_index.h - hash table from names to their numbers, filled once, for keys and tensors.
 *
 * Names come from a file that may be hostile: 65,536 names that collide took 12 s, so each table
 * has its own seed, which a file cannot know.
 */
#ifndef ISO_FORMAT_GGUF_INDEX_H
#define ISO_FORMAT_GGUF_INDEX_H

#include <stddef.h>
#include <stdint.h>

#define ISO_NAME_NONE SIZE_MAX

struct iso_name_slot {
    const char *name; /* borrowed; NULL in a free slot */
    uint32_t hash;
    uint32_t number;
};

struct iso_name_index {
    struct iso_name_slot *slots; /* [mask + 1], at most half full */
    size_t mask;
    uint64_t seed;
};

/* Room for n names. Free with iso_name_index_deinit(). */
void iso_name_index_init(struct iso_name_index *x, size_t n);
void iso_name_index_deinit(struct iso_name_index *x);

/* Adds a name, which must outlive the index. Returns ISO_NAME_NONE, or the number under which an
 * equal name is there already. */
size_t iso_name_index_add(struct iso_name_index *x, const char *name, uint32_t number);

/* Number of a name or ISO_NAME_NONE; also on an index of all zero bytes. */
size_t iso_name_index_find(const struct iso_name_index *x, const char *name);

#endif
