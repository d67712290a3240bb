/* SPDX-License-Identifier: MIT
 * gpu.c - one Metal GPU for a test of kernels. */
#include "metal_kernels/gpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "device/metal_source.h"

#define LIMIT_MS 60000

static struct iso_metal_gpu *g_gpu;

static void must(enum iso_err err, const char *what)
{
    if (err != ISO_OK) fail_msg("%s: %s", what, iso_err_detail());
}

void gpu_open(void)
{
    must(iso_metal_gpu_open(&g_gpu, iso_metal_source, iso_metal_source_len, false), "open");
    printf("Metal GPU: %s\n", iso_metal_gpu_info(g_gpu)->name);
}

void gpu_close(void)
{
    iso_metal_gpu_close(g_gpu);
    g_gpu = NULL;
}

struct gpu_buffer gpu_new(const void *from, size_t len, size_t lead)
{
    struct gpu_buffer b = {.lead = lead, .len = len};
    void *host = NULL;
    must(iso_metal_gpu_alloc(g_gpu, lead + len, &b.buffer, &host), "alloc");
    b.host = (uint8_t *)host + lead;
    if (from != NULL) memcpy(b.host, from, len);
    return b;
}

void gpu_free(struct gpu_buffer *b)
{
    if (b->buffer != 0) iso_metal_gpu_free(g_gpu, b->buffer);
    *b = (struct gpu_buffer){.buffer = 0};
}

uint32_t gpu_kernel(const char *prefix, const char *name)
{
    char function[64];
    uint32_t pipeline = 0, width = 0;
    (void)snprintf(function, sizeof(function), "%s%s", prefix, name);
    must(iso_metal_gpu_pipeline(g_gpu, function, NULL, 0, &pipeline, &width), function);
    return pipeline;
}

void gpu_run(const struct gpu_launch *l, const struct gpu_buffer *bind, size_t n)
{
    struct iso_metal_binding places[ISO_METAL_BINDINGS];
    struct iso_metal_dispatch d = {.pipeline = l->pipeline, .args = l->args, .args_len = l->args_len, .bind = places,
                                   .n_bind = n, .group_threads = l->threads, .threadgroup_bytes = l->bytes};
    assert_true(n <= ISO_METAL_BINDINGS);
    for (size_t i = 0; i < n; i++) places[i] = (struct iso_metal_binding){bind[i].buffer, bind[i].lead};
    memcpy(d.groups, l->groups, sizeof(d.groups));
    iso_metal_gpu_dispatch(g_gpu, &d);
    must(iso_metal_gpu_commit(g_gpu, LIMIT_MS), "commit");
}
