/* SPDX-License-Identifier: MIT
 * check.c - guarded buffers, seeded numbers and bit comparison for the kernel tests. */
#include "kernels/check.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/mem.h"
#include "kernels/shared/cpu.h"

#define GUARD 256     /* bytes of guard on each side */
#define N_BUFFERS 256 /* live buffers of one test program */

struct buffer {
    uint8_t *map;
    size_t map_len;
    uint8_t *data;
    size_t len;
    size_t before, after; /* guard bytes that may be read */
};

static struct buffer g_buffers[N_BUFFERS];

uint64_t check_seed(void)
{
    static uint64_t seed;
    if (seed == 0) {
        const char *s = getenv("CHECK_SEED");
        seed = s ? strtoull(s, NULL, 0) : (uint64_t)time(NULL) * 2654435761u;
        if (seed == 0) seed = 1;
        print_message("CHECK_SEED=%" PRIu64 "\n", seed);
    }
    return seed;
}

struct check_rng check_rng(uint64_t salt)
{
    struct check_rng r = {(check_seed() ^ (salt + 1) * 0x9E3779B97F4A7C15u) | 1};
    for (int i = 0; i < 8; i++) (void)check_next(&r);
    return r;
}

uint64_t check_next(struct check_rng *r)
{
    r->state ^= r->state << 13;
    r->state ^= r->state >> 7;
    r->state ^= r->state << 17;
    return r->state;
}

int64_t check_int(struct check_rng *r, int64_t lo, int64_t hi)
{
    return lo + (int64_t)((check_next(r) >> 8) % (uint64_t)(hi - lo + 1));
}

float check_f32(struct check_rng *r)
{
    return (float)check_int(r, -16777216, 16777216) * 0x1p-24f;
}

void check_fill(struct check_rng *r, void *p, size_t n)
{
    uint8_t *b = p;
    for (size_t i = 0; i < n; i++) b[i] = (uint8_t)(check_next(r) >> 16);
}

static uint8_t guard_byte(size_t i)
{
    return (uint8_t)(i * 37 + 11);
}

static struct buffer *find(const void *p)
{
    for (size_t i = 0; i < N_BUFFERS; i++) {
        if (g_buffers[i].map && g_buffers[i].data == p) return &g_buffers[i];
    }
    fprintf(stderr, "check: %p is not a buffer of check_alloc()\n", p);
    abort();
}

void *check_alloc(size_t len, enum check_edge edge)
{
    struct buffer *b = g_buffers;
    while (b < g_buffers + N_BUFFERS && b->map) b++;
    if (b == g_buffers + N_BUFFERS) abort();
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t body = (len + 2 * GUARD + page - 1) / page * page;
    b->len = len;
    b->map_len = body + 2 * page;
    b->map = mmap(NULL, b->map_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->map == MAP_FAILED) abort();
    if (mprotect(b->map, page, PROT_NONE) || mprotect(b->map + page + body, page, PROT_NONE)) {
        abort();
    }
    uint8_t *first = b->map + page;
    b->data = edge == CHECK_START ? first : edge == CHECK_END ? first + body - len : first + GUARD;
    b->before = edge == CHECK_START ? 0 : GUARD;
    b->after = edge == CHECK_END ? 0 : GUARD;
    for (size_t i = 0; i < b->before; i++) b->data[-1 - (ptrdiff_t)i] = guard_byte(i);
    for (size_t i = 0; i < b->after; i++) b->data[len + i] = guard_byte(i);
    memset(b->data, 0xA5, len);
    return b->data;
}

void check_guards(const void *p, const char *what)
{
    const struct buffer *b = find(p);
    for (size_t i = 0; i < b->before; i++) {
        if (b->data[-1 - (ptrdiff_t)i] != guard_byte(i)) {
            fail_msg("%s: wrote %zu bytes before its buffer", what, i + 1);
        }
    }
    for (size_t i = 0; i < b->after; i++) {
        if (b->data[b->len + i] != guard_byte(i)) {
            fail_msg("%s: wrote %zu bytes after its buffer of %zu", what, i + 1, b->len);
        }
    }
}

void check_free(void *p)
{
    if (!p) return;
    struct buffer *b = find(p);
    check_guards(p, "at free");
    munmap(b->map, b->map_len);
    memset(b, 0, sizeof(*b));
}

void check_bits_f32(const char *what, const float *got, size_t got_stride, const float *want,
                    size_t want_stride, size_t n_rows, size_t n_cols)
{
    for (size_t i = 0; i < n_rows; i++) {
        for (size_t j = 0; j < n_cols; j++) {
            uint32_t g, w;
            memcpy(&g, &got[i * got_stride + j], sizeof(g));
            memcpy(&w, &want[i * want_stride + j], sizeof(w));
            if (g == w) continue;
            fail_msg("%s: [%zu][%zu] of [%zu][%zu] is %a (%08" PRIx32 "), want %a (%08" PRIx32 ")",
                     what, i, j, n_rows, n_cols, (double)got[i * got_stride + j], g,
                     (double)want[i * want_stride + j], w);
        }
    }
}

void check_bytes(const char *what, const void *got, const void *want, size_t len)
{
    const uint8_t *g = got, *w = want;
    for (size_t i = 0; i < len; i++) {
        if (g[i] != w[i]) {
            fail_msg("%s: byte %zu of %zu is %02x, want %02x", what, i, len, g[i], w[i]);
        }
    }
}

void *check_read_file(const char *path, size_t *len)
{
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s: cannot be opened (tests run in the project's root)", path);
    fseek(f, 0, SEEK_END);
    const long n = ftell(f);
    if (n < 0) fail_msg("%s: no size", path);
    rewind(f);
    void *p = check_alloc((size_t)n, CHECK_GUARDED);
    void *file = iso_xalloc((size_t)n, 1);
    if (fread(file, 1, (size_t)n, f) != (size_t)n) fail_msg("%s: short read", path);
    fclose(f);
    const size_t size = strcmp(path + strlen(path) - 4, ".f32") == 0 ? sizeof(float) : 1;
    iso_copy_le(p, file, (size_t)n / size, size);
    free(file);
    *len = (size_t)n;
    return p;
}

const char *check_level(size_t i, unsigned *flags)
{
    const char *name = iso_cpu_level_at(i);
    if (name && iso_cpu_level(flags, name) != ISO_OK) {
        fail_msg("level %s: %s", name, iso_err_detail());
    }
    return name;
}
