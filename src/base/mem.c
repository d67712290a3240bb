/* SPDX-License-Identifier: MIT
 * mem.c - checked allocation and the no-allocation guard. */
#include "base/mem.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local unsigned g_guard_depth;

enum iso_err iso_mul_size(size_t *out, size_t a, size_t b)
{
    if (__builtin_mul_overflow(a, b, out)) ISO_FAIL(ISO_E_LIMIT, "%zu x %zu overflows", a, b);
    return ISO_OK;
}

enum iso_err iso_add_size(size_t *out, size_t a, size_t b)
{
    if (__builtin_add_overflow(a, b, out)) ISO_FAIL(ISO_E_LIMIT, "%zu + %zu overflows", a, b);
    return ISO_OK;
}

/* calloc leaves large zeroed memory untouched until it is used, which aligned_alloc and memset would
 * not: a page pool for a long context costs nothing before its pages are written. The block's own
 * address is kept in front of the aligned one. */
enum iso_err iso_mem_alloc(void **out, size_t n, size_t size, const char *what)
{
    assert(g_guard_depth == 0 && "allocation between two tokens");
    size_t len = 0;
    ISO_TRY(iso_mul_size(&len, n, size));
    size_t padded = 0;
    ISO_TRY(iso_add_size(&padded, len, 2 * ISO_ALIGNMENT));
    uint8_t *p = calloc(padded, 1);
    if (p == NULL) ISO_FAIL(ISO_E_NOMEM, "%s: %zu bytes", what, len);
    const size_t gap = ISO_ALIGNMENT - (uintptr_t)p % ISO_ALIGNMENT; /* 16 .. 64 */
    uint8_t *aligned = p + gap;
    memcpy(aligned - sizeof(p), &p, sizeof(p));
    *out = aligned;
    return ISO_OK;
}

void iso_mem_free(void *p)
{
    if (p == NULL) return;
    void *block = NULL;
    memcpy(&block, (uint8_t *)p - sizeof(block), sizeof(block));
    free(block);
}

static void *checked(void *p)
{
    if (p != NULL) return p;
    (void)fputs("isobit: out of memory for bookkeeping\n", stderr);
    abort();
}

void *iso_xalloc(size_t n, size_t size)
{
    assert(g_guard_depth == 0 && "allocation between two tokens");
    return checked(calloc(n ? n : 1, size ? size : 1));
}

void *iso_xrealloc(void *p, size_t n, size_t size)
{
    assert(g_guard_depth == 0 && "allocation between two tokens");
    size_t len = 0;
    if (__builtin_mul_overflow(n, size, &len)) return checked(NULL);
    return checked(realloc(p, len ? len : 1));
}

char *iso_xstrndup(const char *s, size_t len)
{
    char *p = iso_xalloc(len + 1, 1);
    memcpy(p, s, len);
    return p;
}

char *iso_xstrdup(const char *s)
{
    return iso_xstrndup(s, strlen(s));
}

void iso_alloc_guard_begin(void)
{
    g_guard_depth++;
}

void iso_alloc_guard_end(void)
{
    assert(g_guard_depth > 0);
    g_guard_depth--;
}
