/* SPDX-License-Identifier: MIT
 * buf.c - the bounded byte buffer. */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

void iso_buf_init(struct iso_buf *b, size_t max)
{
    *b = (struct iso_buf){.max = max, .cap = 64};
    b->data = iso_xalloc(b->cap, 1);
}

void iso_buf_deinit(struct iso_buf *b)
{
    free(b->data);
    *b = (struct iso_buf){0};
}

void iso_buf_clear(struct iso_buf *b)
{
    b->len = 0;
    b->data[0] = '\0';
}

/* Makes room for len more bytes and the NUL. */
static enum iso_err reserve(struct iso_buf *b, size_t len)
{
    if (len > b->max - b->len) {
        ISO_FAIL(ISO_E_LIMIT, "buffer of %zu bytes would grow to %zu", b->max, b->len + len);
    }
    const size_t need = b->len + len + 1;
    if (need <= b->cap) return ISO_OK;
    size_t cap = b->cap;
    while (cap < need) cap += cap / 2 + 64;
    b->data = iso_xrealloc(b->data, cap, 1);
    b->cap = cap;
    return ISO_OK;
}

enum iso_err iso_buf_append(struct iso_buf *b, const void *p, size_t len)
{
    ISO_TRY(reserve(b, len));
    if (len) memcpy(b->data + b->len, p, len);
    b->len += len;
    b->data[b->len] = '\0';
    return ISO_OK;
}

enum iso_err iso_buf_puts(struct iso_buf *b, const char *s)
{
    return iso_buf_append(b, s, strlen(s));
}

enum iso_err iso_buf_printf(struct iso_buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    va_list again;
    va_copy(again, ap);
    const int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    enum iso_err err = n < 0 ? ISO_E_ARG : reserve(b, (size_t)n);
    if (err == ISO_OK) {
        (void)vsnprintf((char *)b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
    return err;
}

enum iso_err iso_buf_u8(struct iso_buf *b, uint8_t v)
{
    return iso_buf_append(b, &v, 1);
}

enum iso_err iso_buf_u16(struct iso_buf *b, uint16_t v)
{
    uint8_t p[2];
    iso_put_u16(p, v);
    return iso_buf_append(b, p, sizeof(p));
}

enum iso_err iso_buf_u32(struct iso_buf *b, uint32_t v)
{
    uint8_t p[4];
    iso_put_u32(p, v);
    return iso_buf_append(b, p, sizeof(p));
}

enum iso_err iso_buf_u64(struct iso_buf *b, uint64_t v)
{
    uint8_t p[8];
    iso_put_u64(p, v);
    return iso_buf_append(b, p, sizeof(p));
}
