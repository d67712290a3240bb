/* SPDX-License-Identifier: MIT
 * gguf_cursor.c - bounds-checked reads and copies of names. */
#include "format/gguf_cursor.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/buf.h"
#include "base/mem.h"
#include "format/gguf.h"

#define NAME_BLOCK_BYTES 65536 /* a few blocks for a model of thousands of tensors */

struct iso_name_block {
    struct iso_name_block *next;
    size_t used;
    char bytes[NAME_BLOCK_BYTES];
};

/* Hides where a value came from, so that the compiler cannot read the mapping a second time. */
static inline uint64_t read_once(uint64_t v)
{
    __asm__ volatile("" : "+r"(v));
    return v;
}

/* "the header" or "key 3"; text has room for both. */
static const char *place(char text[64], const struct iso_gguf_cursor *c)
{
    if (c->kind == NULL) return "the header";
    (void)snprintf(text, 64, "%s %zu", c->kind, c->i);
    return text;
}

enum iso_err iso_gguf_take(const uint8_t **p, struct iso_gguf_cursor *c, size_t n)
{
    if (n > c->size - c->at) {
        char text[64];
        ISO_FAIL(ISO_E_FORMAT,
                 "%s: ends inside %s: %zu bytes needed at byte %zu of %zu; truncated or damaged,"
                 " download it again",
                 c->path, place(text, c), n, c->at, c->size);
    }
    *p = c->data + c->at;
    c->at += n;
    return ISO_OK;
}

enum iso_err iso_gguf_take_u32(uint32_t *v, struct iso_gguf_cursor *c)
{
    const uint8_t *p = NULL;
    ISO_TRY(iso_gguf_take(&p, c, 4));
    *v = (uint32_t)read_once(iso_get_u32(p));
    return ISO_OK;
}

enum iso_err iso_gguf_take_u64(uint64_t *v, struct iso_gguf_cursor *c)
{
    const uint8_t *p = NULL;
    ISO_TRY(iso_gguf_take(&p, c, 8));
    *v = read_once(iso_get_u64(p));
    return ISO_OK;
}

enum iso_err
iso_gguf_room_for(const struct iso_gguf_cursor *c, uint64_t n, size_t size, const char *what)
{
    const size_t left = c->size - c->at;
    if (n <= left / size) return ISO_OK;
    char text[64];
    ISO_FAIL(ISO_E_FORMAT,
             "%s: %s says %" PRIu64 " %s of %zu bytes or more, but only %zu of the file's %zu"
             " bytes are left; truncated or damaged, download it again",
             c->path, place(text, c), n, what, size, left, c->size);
}

static char *names_copy(struct iso_name_block **names, const uint8_t *s, size_t len)
{
    struct iso_name_block *b = *names;
    if (b == NULL || NAME_BLOCK_BYTES - b->used < len + 1) {
        b = iso_xalloc(1, sizeof(*b));
        b->next = *names;
        *names = b;
    }
    char *copy = b->bytes + b->used;
    memcpy(copy, s, len); /* the block is zeroed: the NUL is there */
    b->used += len + 1;
    return copy;
}

/* Offset of the first byte that a name may not have, or len. */
static size_t bad_byte(const char *s, size_t len)
{
    size_t at = 0;
    while (at < len) {
        utf8proc_int32_t cp = 0;
        const utf8proc_ssize_t n =
            utf8proc_iterate((const utf8proc_uint8_t *)s + at, (utf8proc_ssize_t)(len - at), &cp);
        if (n <= 0 || cp < 0x20 || (cp >= 0x7f && cp <= 0x9f)) break;
        at += (size_t)n;
    }
    return at;
}

enum iso_err
iso_gguf_take_name(const char **out, struct iso_gguf_cursor *c, struct iso_name_block **names)
{
    uint64_t len = 0;
    const uint8_t *p = NULL;
    ISO_TRY(iso_gguf_take_u64(&len, c));
    ISO_TRY(iso_gguf_room_for(c, len, 1, "bytes of name"));
    ISO_TRY(iso_gguf_take(&p, c, (size_t)len));
    if (len == 0) ISO_FAIL(ISO_E_FORMAT, "%s: %s %zu has an empty name", c->path, c->kind, c->i);
    if (len > ISO_GGUF_MAX_NAME) {
        ISO_FAIL(ISO_E_LIMIT, "%s: %s %zu has a name of %" PRIu64 " bytes, the limit is %d",
                 c->path, c->kind, c->i, len, ISO_GGUF_MAX_NAME);
    }
    const char *name = names_copy(names, p, (size_t)len); /* checked as copied */
    const size_t bad = bad_byte(name, (size_t)len);
    if (bad < len) {
        ISO_FAIL(ISO_E_FORMAT,
                 "%s: the name of %s %zu has byte 0x%02x at %zu: not UTF-8, or a control character",
                 c->path, c->kind, c->i, (uint8_t)name[bad], bad);
    }
    *out = name;
    return ISO_OK;
}

void iso_gguf_names_free(struct iso_name_block *names)
{
    while (names != NULL) {
        struct iso_name_block *next = names->next;
        free(names);
        names = next;
    }
}
