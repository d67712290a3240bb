/* SPDX-License-Identifier: MIT
 * mem.h - allocation: checked sizes, aligned blocks, small bookkeeping, the no-allocation guard.
 *
 * Large memory (weights, caches, device buffers) comes from iso_mem_alloc() and may fail with
 * ISO_E_NOMEM. Small bookkeeping comes from iso_xalloc(), which aborts when there is none left.
 */
#ifndef ISO_BASE_MEM_H
#define ISO_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define ISO_ALIGNMENT 64 /* bytes; one cache line and one AVX-512 register */

/* *out = a * b; ISO_E_LIMIT when that does not fit size_t. */
enum iso_err iso_mul_size(size_t *out, size_t a, size_t b) ISO_NODISCARD;

/* *out = a + b; ISO_E_LIMIT when that does not fit size_t. */
enum iso_err iso_add_size(size_t *out, size_t a, size_t b) ISO_NODISCARD;

/* Zeroed block of n * size bytes, 64-byte aligned; what names it in the error.
 * Owner: *out is owned by the caller, free with iso_mem_free(). Errors: ISO_E_NOMEM, ISO_E_LIMIT. */
enum iso_err iso_mem_alloc(void **out, size_t n, size_t size, const char *what) ISO_NODISCARD;
void iso_mem_free(void *p);

/* Zeroed small block for bookkeeping; aborts when out of memory. Free with free(). */
void *iso_xalloc(size_t n, size_t size);
void *iso_xrealloc(void *p, size_t n, size_t size);
char *iso_xstrdup(const char *s);
char *iso_xstrndup(const char *s, size_t len);

/* Between begin and end any allocation through this header on this thread aborts: the token loop
 * must not allocate. Nests. */
void iso_alloc_guard_begin(void);
void iso_alloc_guard_end(void);

#define ISO_COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define ISO_MIN(a, b) ((a) < (b) ? (a) : (b))
#define ISO_MAX(a, b) ((a) > (b) ? (a) : (b))

#endif
