/* SPDX-License-Identifier: MIT
 * buf.h - a growable byte buffer with a maximum that is stated when it is made.
 *
 * Thread: owned by one thread. Errors: every append is ISO_E_LIMIT beyond the maximum and leaves
 * the content as it was. The content is always followed by a NUL that does not count.
 */
#ifndef ISO_BASE_BUF_H
#define ISO_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/err.h"

struct iso_buf {
    uint8_t *data; /* [len] plus a NUL; never NULL after init */
    size_t len;
    size_t cap;
    size_t max;
};

/* max bytes of content. Free with iso_buf_deinit(). */
void iso_buf_init(struct iso_buf *b, size_t max);
void iso_buf_deinit(struct iso_buf *b);

/* Empties the buffer, keeps its memory. */
void iso_buf_clear(struct iso_buf *b);

enum iso_err iso_buf_append(struct iso_buf *b, const void *p, size_t len) ISO_NODISCARD;
enum iso_err iso_buf_puts(struct iso_buf *b, const char *s) ISO_NODISCARD;
enum iso_err iso_buf_printf(struct iso_buf *b, const char *fmt, ...) ISO_PRINTF(2, 3) ISO_NODISCARD;
enum iso_err iso_buf_u8(struct iso_buf *b, uint8_t v) ISO_NODISCARD;
/* Little-endian integers. */
enum iso_err iso_buf_u16(struct iso_buf *b, uint16_t v) ISO_NODISCARD;
enum iso_err iso_buf_u32(struct iso_buf *b, uint32_t v) ISO_NODISCARD;
enum iso_err iso_buf_u64(struct iso_buf *b, uint64_t v) ISO_NODISCARD;

/* Little-endian readers from raw bytes; they work on any byte order and alignment. */
static inline uint16_t iso_get_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | (unsigned)p[1] << 8);
}
static inline uint32_t iso_get_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static inline uint64_t iso_get_u64(const uint8_t *p)
{
    return (uint64_t)iso_get_u32(p) | (uint64_t)iso_get_u32(p + 4) << 32;
}
static inline void iso_put_u16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}
static inline void iso_put_u32(uint8_t *p, uint32_t v)
{
    iso_put_u16(p, (uint16_t)v);
    iso_put_u16(p + 2, (uint16_t)(v >> 16));
}
static inline void iso_put_u64(uint8_t *p, uint64_t v)
{
    iso_put_u32(p, (uint32_t)v);
    iso_put_u32(p + 4, (uint32_t)(v >> 32));
}

static inline bool iso_is_little_endian(void)
{
    const uint16_t one = 1;
    uint8_t first = 0;
    memcpy(&first, &one, sizeof(first));
    return first == 1;
}
/* Copies n numbers of size bytes each between this machine's byte order and little-endian, either
 * way. to and from do not overlap. */
static inline void iso_copy_le(void *to, const void *from, size_t n, size_t size)
{
    if (iso_is_little_endian()) {
        memcpy(to, from, n * size);
        return;
    }
    uint8_t *t = to;
    const uint8_t *f = from;
    for (size_t i = 0; i < n * size; i += size) {
        for (size_t k = 0; k < size; k++) t[i + k] = f[i + size - 1 - k];
    }
}

#endif
