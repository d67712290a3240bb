/* SPDX-License-Identifier: MIT
 * fake_gpu.c - the seam that remembers. */
#include "metal_host/fake_gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUFFERS 512
#define PIPELINES 1100

struct iso_metal_gpu {
    struct iso_metal_info info;
    uint8_t *memory[BUFFERS];
    bool owned[BUFFERS];
    uint32_t n_buffers;
    struct fake_call pipeline[PIPELINES]; /* function and values */
    uint32_t n_pipelines;
};

struct fake_gpu g_fake;

void fake_reset(void)
{
    g_fake = (struct fake_gpu){.width = 1024};
}

void fake_forget(void)
{
    g_fake.n_calls = g_fake.n_commits = 0;
}

const struct fake_call *fake_dispatch(size_t i)
{
    for (size_t k = 0; k < g_fake.n_calls; k++) {
        if (g_fake.call[k].function[0] && i-- == 0) return &g_fake.call[k];
    }
    return NULL;
}

size_t fake_n_dispatches(void)
{
    size_t n = 0;
    while (fake_dispatch(n)) n++;
    return n;
}

enum iso_err iso_metal_gpu_open(struct iso_metal_gpu **out, const char *source, size_t len, bool serial)
{
    (void)source;
    (void)len;
    (void)serial;
    struct iso_metal_gpu *gpu = calloc(1, sizeof(*gpu));
    gpu->info = (struct iso_metal_info){.name = "fake", .memory = 1 << 30, .group_threads = 1024,
                                        .group_bytes = 32768};
    *out = gpu;
    return ISO_OK;
}

void iso_metal_gpu_close(struct iso_metal_gpu *gpu)
{
    for (uint32_t i = 0; i < BUFFERS; i++) {
        if (gpu->owned[i]) free(gpu->memory[i]);
    }
    free(gpu);
}

const struct iso_metal_info *iso_metal_gpu_info(const struct iso_metal_gpu *gpu)
{
    return &gpu->info;
}

enum iso_err iso_metal_gpu_pipeline(struct iso_metal_gpu *gpu, const char *function,
                                    const struct iso_metal_constant *constants, size_t n, uint32_t *pipeline,
                                    uint32_t *width)
{
    if (g_fake.refuse_function && strcmp(function, g_fake.refuse_function) == 0) {
        ISO_FAIL(ISO_E_GPU, "kernel %s: refused", function);
    }
    struct fake_call *p = &gpu->pipeline[++gpu->n_pipelines];
    (void)snprintf(p->function, sizeof(p->function), "%s", function);
    for (size_t i = 0; i < n; i++) p->value[constants[i].index] = constants[i].value;
    *pipeline = gpu->n_pipelines;
    *width = g_fake.width;
    g_fake.n_pipelines++;
    return ISO_OK;
}

enum iso_err iso_metal_gpu_alloc(struct iso_metal_gpu *gpu, size_t len, uint32_t *buffer, void **host)
{
    if (len > gpu->info.memory) ISO_FAIL(ISO_E_NOMEM, "fake: too large");
    *buffer = ++gpu->n_buffers;
    *host = gpu->memory[*buffer] = calloc(len + 1, 1);
    gpu->owned[*buffer] = true;
    g_fake.n_open_buffers++;
    return ISO_OK;
}

enum iso_err iso_metal_gpu_wrap(struct iso_metal_gpu *gpu, const void *p, size_t len, uint32_t *buffer)
{
    *buffer = ++gpu->n_buffers;
    gpu->memory[*buffer] = (uint8_t *)(uintptr_t)p;
    g_fake.wrapped = p;
    g_fake.wrapped_len = len;
    g_fake.n_wraps++;
    g_fake.n_open_buffers++;
    return ISO_OK;
}

void iso_metal_gpu_free(struct iso_metal_gpu *gpu, uint32_t buffer)
{
    if (gpu->owned[buffer]) free(gpu->memory[buffer]);
    gpu->owned[buffer] = false;
    gpu->memory[buffer] = NULL;
    g_fake.n_open_buffers--;
}

void iso_metal_gpu_dispatch(struct iso_metal_gpu *gpu, const struct iso_metal_dispatch *d)
{
    struct fake_call *c = &g_fake.call[g_fake.n_calls++ % FAKE_CALLS];
    *c = gpu->pipeline[d->pipeline];
    c->n = d->n_bind;
    memcpy(c->bind, d->bind, d->n_bind * sizeof(*d->bind));
    memcpy(c->groups, d->groups, sizeof(c->groups));
    c->group_threads = d->group_threads;
    c->threadgroup_bytes = d->threadgroup_bytes;
}

void iso_metal_gpu_barrier(struct iso_metal_gpu *gpu, const uint32_t *buffers, size_t n)
{
    (void)gpu;
    struct fake_call *c = &g_fake.call[g_fake.n_calls++ % FAKE_CALLS];
    *c = (struct fake_call){.n = n};
    memcpy(c->named, buffers, n * sizeof(*buffers));
}

enum iso_err iso_metal_gpu_commit(struct iso_metal_gpu *gpu, uint32_t limit_ms)
{
    (void)limit_ms;
    g_fake.n_commits++;
    if (g_fake.fault != 0) {
        const struct iso_metal_binding *b = &g_fake.call[g_fake.n_calls - 1].bind[g_fake.fault_place];
        memcpy(gpu->memory[b->buffer] + b->offset, &g_fake.fault, sizeof(g_fake.fault));
        g_fake.fault = 0;
    }
    if (g_fake.commit != ISO_OK) ISO_FAIL(g_fake.commit, "%s", g_fake.commit_text);
    return ISO_OK;
}
