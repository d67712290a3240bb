/* SPDX-License-Identifier: MIT
 * gpu.c - one Metal GPU for tests of kernels. */
#include "metal_kernels/gpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "device/metal_source.h"

#define LIMIT_MS 60000
#define GUARD 64
#define KERNELS 512
#define CONSTANTS 8 /* most of a kernel */

static struct iso_metal_gpu *g_gpu;
static struct {
    char name[48];
    struct iso_metal_constant constants[CONSTANTS];
    size_t n;
    uint32_t pipeline;
} g_kernels[KERNELS];
static size_t g_n_kernels;
static size_t g_turn; /* leads of places */

static void must(enum iso_err err, const char *what)
{
    if (err != ISO_OK) fail_msg("%s: %s", what, iso_err_detail());
}

int gpu_open(void **state)
{
    (void)state;
    must(iso_metal_gpu_open(&g_gpu, iso_metal_source, iso_metal_source_len, false), "open");
    printf("Metal GPU: %s\n", iso_metal_gpu_info(g_gpu)->name);
    return 0;
}

int gpu_close(void **state)
{
    (void)state;
    iso_metal_gpu_close(g_gpu);
    g_gpu = NULL;
    g_n_kernels = 0;
    return 0;
}

static uint8_t guard_byte(size_t i)
{
    return (uint8_t)(i * 29 + 7);
}

struct place place_new(const void *from, size_t len)
{
    return place_at(from, len, GUARD + g_turn++ % 4 * 16);
}

struct place place_at(const void *from, size_t len, size_t lead)
{
    struct place p = {.lead = lead, .len = len};
    void *host = NULL;
    must(iso_metal_gpu_alloc(g_gpu, p.lead + len, &p.buffer, &host), "alloc");
    for (size_t i = 0; i < p.lead; i++) ((uint8_t *)host)[i] = guard_byte(i);
    p.host = (uint8_t *)host + p.lead;
    if (from != NULL) memcpy(p.host, from, len);
    else memset(p.host, 0xA5, len);
    return p;
}

void place_free(struct place *p)
{
    if (p->buffer == 0) return;
    const uint8_t *guard = (const uint8_t *)p->host - p->lead;
    for (size_t i = 0; i < p->lead; i++) {
        if (guard[i] != guard_byte(i)) fail_msg("byte %zu in front of a place was written", p->lead - i);
    }
    iso_metal_gpu_free(g_gpu, p->buffer);
    *p = (struct place){.buffer = 0};
}

static bool same_constants(const struct iso_metal_constant *a, const struct iso_metal_constant *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (a[i].index != b[i].index || a[i].type != b[i].type || a[i].value != b[i].value) return false;
    }
    return true;
}

uint32_t gpu_kernel(const char *name, const struct iso_metal_constant *constants, size_t n)
{
    assert_true(n <= CONSTANTS);
    for (size_t i = 0; i < g_n_kernels; i++) {
        if (strcmp(g_kernels[i].name, name) == 0 && g_kernels[i].n == n &&
            same_constants(g_kernels[i].constants, constants, n)) {
            return g_kernels[i].pipeline;
        }
    }
    uint32_t width = 0;
    assert_true(g_n_kernels < KERNELS);
    const size_t at = g_n_kernels++;
    (void)snprintf(g_kernels[at].name, sizeof(g_kernels[at].name), "%s", name);
    if (n > 0) memcpy(g_kernels[at].constants, constants, n * sizeof(*constants));
    g_kernels[at].n = n;
    must(iso_metal_gpu_pipeline(g_gpu, name, constants, n, &g_kernels[at].pipeline, &width), name);
    return g_kernels[at].pipeline;
}

uint32_t gpu_kernel_of(const char *prefix, const char *name)
{
    char function[sizeof(g_kernels[0].name)];
    const int len = snprintf(function, sizeof(function), "%s%s", prefix, name);
    assert_true(len > 0 && (size_t)len < sizeof(function));
    return gpu_kernel(function, NULL, 0);
}

void gpu_record(const struct gpu_launch *l, const struct place *bind, size_t n)
{
    struct iso_metal_binding places[ISO_METAL_BINDINGS];
    uint32_t buffers[ISO_METAL_BINDINGS];
    size_t n_buffers = 0;
    struct iso_metal_dispatch d = {.pipeline = l->pipeline, .args = l->args, .args_len = l->args_len, .bind = places,
                                   .n_bind = n, .group_threads = l->threads, .threadgroup_bytes = l->bytes};
    assert_true(n <= ISO_METAL_BINDINGS);
    for (size_t i = 0; i < n; i++) {
        places[i] = (struct iso_metal_binding){bind[i].buffer, bind[i].lead};
        if (bind[i].buffer != 0) buffers[n_buffers++] = bind[i].buffer;
    }
    memcpy(d.groups, l->groups, sizeof(d.groups));
    iso_metal_gpu_barrier(g_gpu, buffers, n_buffers);
    iso_metal_gpu_dispatch(g_gpu, &d);
}

void gpu_wait(void)
{
    must(iso_metal_gpu_commit(g_gpu, LIMIT_MS), "commit");
}

void gpu_run(const struct gpu_launch *l, const struct place *bind, size_t n)
{
    gpu_record(l, bind, n);
    gpu_wait();
}
