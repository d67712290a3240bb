/* SPDX-License-Identifier: MIT
 * metal_gpu_emulated.c - src/device/metal_gpu.h on the CPU: an EMULATION for tests, not hardware.
 *
 * Dispatches that no barrier orders run interleaved, threadgroup by threadgroup, in a random order. Environment:
 *     ISO_METAL_SEED   a number; what all random choices come from (default 1)
 *     ISO_METAL_CHECK  1: each access of a kernel is checked (slow); 0: not
 *     ISO_METAL_CACHE  folder for compiled kernels; ISO_METAL_CXX the compiler
 */
#include "emu_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

#ifndef EMU_CHECK_DEFAULT
#define EMU_CHECK_DEFAULT 0
#endif
#define GUARD ((size_t)65536)  /* unmapped bytes behind each buffer */
#define SLOWER 1000            /* a limit for hardware, times this */
#define MAX_PIPELINES 512

struct iso_metal_gpu {
    struct iso_metal_info info;
    bool serial, lost;
    uint64_t seed;
    struct emu_random random;
    struct emu_loaded module;
    struct emu_runner *runner;
    struct emu_shadow *shadow; /* NULL: not checked */
    struct emu_pipeline pipelines[MAX_PIPELINES];
    uint32_t n_pipelines;
    struct emu_buffer **buffers; /* [n_buffers], index minus 1 */
    uint32_t n_buffers;
    struct emu_dispatch **recorded;
    uint32_t n_recorded, cap_recorded;
    char failure[EMU_MESSAGE_LEN]; /* of recording; empty: none */
};

enum iso_err iso_metal_gpu_open(struct iso_metal_gpu **out, const char *source, size_t len, bool serial)
{
    const char *seed = getenv("ISO_METAL_SEED"), *check = getenv("ISO_METAL_CHECK");
    const bool checked = check && *check ? strcmp(check, "0") != 0 : EMU_CHECK_DEFAULT;
    struct iso_metal_gpu *gpu = emu_alloc(1, sizeof(*gpu));
    gpu->seed = seed && *seed ? strtoull(seed, NULL, 0) : 1;
    gpu->random.state = gpu->seed * 0x2545f4914f6cdd1dull;
    gpu->serial = serial;
    gpu->info = (struct iso_metal_info){.emulated = true, .group_threads = EMU_LANES, .group_bytes = EMU_GROUP_BYTES};
    snprintf(gpu->info.name, sizeof(gpu->info.name), "Metal, emulated on the CPU, not run on hardware");
    const enum iso_err err = emu_module_load(&gpu->module, source, len, checked);
    if (err != ISO_OK) {
        free(gpu);
        return err;
    }
    gpu->runner = emu_runner_new(&gpu->random, &gpu->module);
    if (!gpu->runner) {
        iso_metal_gpu_close(gpu);
        ISO_FAIL(ISO_E_NOMEM, "no memory for the lanes of the emulator");
    }
    if (checked) gpu->shadow = emu_shadow_new(&gpu->module);
    *out = gpu;
    return ISO_OK;
}

static void drop_recorded(struct iso_metal_gpu *gpu)
{
    for (uint32_t i = 0; i < gpu->n_recorded; i++) {
        free(gpu->recorded[i]->args);
        free(gpu->recorded[i]->order);
        free(gpu->recorded[i]);
    }
    gpu->n_recorded = 0;
}

static size_t whole_pages(size_t len)
{
    return (len + GUARD - 1) / GUARD * GUARD;
}

static void release(struct emu_buffer *b)
{
    emu_shadow_forget(b);
    if (b->host && !b->wrapped) munmap(b->host - GUARD, whole_pages(b->len) + 2 * GUARD);
    b->host = NULL;
}

void iso_metal_gpu_close(struct iso_metal_gpu *gpu)
{
    if (!gpu) return;
    drop_recorded(gpu);
    free(gpu->recorded);
    for (uint32_t i = 0; i < gpu->n_buffers; i++) {
        release(gpu->buffers[i]);
        free(gpu->buffers[i]);
    }
    free(gpu->buffers);
    for (uint32_t i = 0; i < gpu->n_pipelines; i++) free(gpu->pipelines[i].constants);
    emu_shadow_free(gpu->shadow);
    emu_runner_free(gpu->runner);
    emu_module_unload(&gpu->module);
    free(gpu);
}

const struct iso_metal_info *iso_metal_gpu_info(const struct iso_metal_gpu *gpu)
{
    return &gpu->info;
}

/* The declared constant of an index, or NULL. */
static const struct emu_constant *declared(const struct emu_module *m, uint32_t index)
{
    for (unsigned i = 0; i < m->n_constants; i++) {
        if (m->constants[i].index == index) return &m->constants[i];
    }
    return NULL;
}

enum iso_err iso_metal_gpu_pipeline(struct iso_metal_gpu *gpu, const char *function,
                                    const struct iso_metal_constant *constants, size_t n, uint32_t *pipeline,
                                    uint32_t *width)
{
    const struct emu_module *m = gpu->module.module;
    const struct emu_kernel *kernel = NULL;
    for (unsigned i = 0; i < m->n_kernels; i++) {
        if (strcmp(m->kernels[i].name, function) == 0) kernel = &m->kernels[i];
    }
    if (!kernel) ISO_FAIL(ISO_E_GPU, "%s: no kernel of this name", function);
    for (size_t i = 0; i < n; i++) {
        const struct emu_constant *c = declared(m, constants[i].index);
        const unsigned size = constants[i].type == ISO_METAL_BOOL ? 1 : 4;
        if (c && c->size != size) {
            ISO_FAIL(ISO_E_GPU, "%s: function constant %u (%s) has %u bytes, given %u", function, constants[i].index,
                     c->name, c->size, size);
        }
    }
    if (gpu->n_pipelines + 1 >= MAX_PIPELINES) ISO_FAIL(ISO_E_LIMIT, "more than %d pipelines", MAX_PIPELINES);
    struct emu_pipeline *p = &gpu->pipelines[gpu->n_pipelines++];
    p->kernel = kernel;
    p->n_constants = n;
    p->constants = emu_alloc(n + 1, sizeof(*p->constants));
    if (n) memcpy(p->constants, constants, n * sizeof(*constants));
    *pipeline = gpu->n_pipelines;
    *width = ISO_MIN(kernel->max_threads, (unsigned)EMU_LANES);
    return ISO_OK;
}

/* A number for b: a free one, or a new one. */
static uint32_t number(struct iso_metal_gpu *gpu, struct emu_buffer b)
{
    uint32_t i = 0;
    while (i < gpu->n_buffers && gpu->buffers[i]->host) i++;
    if (i == gpu->n_buffers) {
        gpu->buffers = emu_realloc(gpu->buffers, gpu->n_buffers + 1, sizeof(struct emu_buffer *));
        gpu->buffers[gpu->n_buffers++] = emu_alloc(1, sizeof(struct emu_buffer));
    }
    *gpu->buffers[i] = b;
    return i + 1;
}

enum iso_err iso_metal_gpu_alloc(struct iso_metal_gpu *gpu, size_t len, uint32_t *buffer, void **host)
{
    if (len == 0) ISO_FAIL(ISO_E_ARG, "a Metal buffer of 0 bytes");
    /* A length of whole pages ends at the guard: the fast build stops there too. */
    const size_t whole = whole_pages(len);
    char *p = mmap(NULL, whole + 2 * GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || mprotect(p + GUARD, whole, PROT_READ | PROT_WRITE) != 0) {
        ISO_FAIL(ISO_E_NOMEM, "Metal buffer of %zu bytes", len);
    }
    *buffer = number(gpu, (struct emu_buffer){.host = p + GUARD, .len = len});
    *host = p + GUARD;
    return ISO_OK;
}

enum iso_err iso_metal_gpu_wrap(struct iso_metal_gpu *gpu, const void *p, size_t len, uint32_t *buffer)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if ((uintptr_t)p % page || len % page || len == 0) {
        ISO_FAIL(ISO_E_GPU, "memory to wrap is not whole pages: %p, %zu bytes", p, len);
    }
    *buffer = number(gpu, (struct emu_buffer){.host = (char *)(uintptr_t)p, .len = len, .wrapped = true});
    return ISO_OK;
}

void iso_metal_gpu_free(struct iso_metal_gpu *gpu, uint32_t buffer)
{
    if (buffer == 0 || buffer > gpu->n_buffers) return;
    release(gpu->buffers[buffer - 1]);
}

static void keep_failure(struct iso_metal_gpu *gpu, const struct emu_pipeline *p, const char *what, uint64_t value)
{
    if (gpu->failure[0]) return;
    snprintf(gpu->failure, sizeof(gpu->failure), "dispatch of kernel %s: %s %llu", p ? p->kernel->name : "?", what,
             (unsigned long long)value);
}

static bool bind(struct iso_metal_gpu *gpu, struct emu_dispatch *e, const struct iso_metal_dispatch *d)
{
    if (d->n_bind > ISO_METAL_BINDINGS) {
        keep_failure(gpu, e->pipeline, "too many buffers:", d->n_bind);
        return false;
    }
    e->n_bound = d->n_bind + 1;
    for (size_t i = 0; i < d->n_bind; i++) {
        const uint32_t k = d->bind[i].buffer;
        if (k == 0) continue;
        if (k > gpu->n_buffers || !gpu->buffers[k - 1]->host) {
            keep_failure(gpu, e->pipeline, "there is no buffer", k);
            return false;
        }
        struct emu_buffer *b = gpu->buffers[k - 1];
        if (d->bind[i].offset >= b->len) {
            keep_failure(gpu, e->pipeline, "an offset beyond the buffer's end:", d->bind[i].offset);
            return false;
        }
        if (d->bind[i].offset % 4) {
            keep_failure(gpu, e->pipeline, "an offset that is not a multiple of 4:", d->bind[i].offset);
            return false;
        }
        e->bound[i + 1] = (struct emu_bound){.buffer = b, .number = k, .at = b->host + d->bind[i].offset,
                                             .len = b->len - d->bind[i].offset, .epoch = b->epoch};
    }
    return true;
}

/* Whether the shape is legal; the failure is kept. */
static bool check_shape(struct iso_metal_gpu *gpu, const struct emu_pipeline *p, const struct iso_metal_dispatch *d)
{
    if (d->group_threads == 0 || d->group_threads % EMU_SIMD || d->group_threads > p->kernel->max_threads ||
        d->group_threads > EMU_LANES) {
        keep_failure(gpu, p, "threads of a threadgroup:", d->group_threads);
    } else if (d->groups[0] == 0 || d->groups[1] == 0 || d->groups[2] == 0) {
        keep_failure(gpu, p, "an empty grid, threadgroups in x:", d->groups[0]);
    } else if ((uint64_t)d->groups[0] * d->groups[1] * d->groups[2] > 1u << 26) {
        keep_failure(gpu, p, "more threadgroups than the emulator can count: x", d->groups[0]);
    } else if (d->threadgroup_bytes % 16 || d->threadgroup_bytes > EMU_GROUP_BYTES) {
        keep_failure(gpu, p, "bytes of threadgroup memory:", d->threadgroup_bytes);
    } else if (d->args_len > EMU_ARGS_BYTES) {
        keep_failure(gpu, p, "bytes of arguments:", d->args_len);
    }
    return gpu->failure[0] == 0;
}

void iso_metal_gpu_dispatch(struct iso_metal_gpu *gpu, const struct iso_metal_dispatch *d)
{
    if (gpu->failure[0]) return;
    if (d->pipeline == 0 || d->pipeline > gpu->n_pipelines) {
        keep_failure(gpu, NULL, "there is no pipeline", d->pipeline);
        return;
    }
    const struct emu_pipeline *p = &gpu->pipelines[d->pipeline - 1];
    if (!check_shape(gpu, p, d)) return;
    struct emu_dispatch *e = emu_alloc(1, sizeof(*e));
    e->pipeline = p;
    memcpy(e->groups, d->groups, sizeof(e->groups));
    e->group_threads = d->group_threads;
    e->dynamic_bytes = d->threadgroup_bytes;
    e->n_groups = d->groups[0] * d->groups[1] * d->groups[2];
    e->args_len = d->args_len;
    if (!bind(gpu, e, d)) {
        free(e);
        return;
    }
    e->args = emu_alloc(d->args_len + 16, 1);
    if (d->args_len) memcpy(e->args, d->args, d->args_len);
    e->order = emu_alloc(e->n_groups, sizeof(*e->order));
    emu_random_order(&gpu->random, e->order, e->n_groups);
    if (gpu->n_recorded == gpu->cap_recorded) {
        gpu->cap_recorded = gpu->cap_recorded ? 2 * gpu->cap_recorded : 64;
        gpu->recorded = emu_realloc(gpu->recorded, gpu->cap_recorded, sizeof(*gpu->recorded));
    }
    e->index = gpu->n_recorded;
    gpu->recorded[gpu->n_recorded++] = e;
}

void iso_metal_gpu_barrier(struct iso_metal_gpu *gpu, const uint32_t *buffers, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (buffers[i] == 0 || buffers[i] > gpu->n_buffers || !gpu->buffers[buffers[i] - 1]->host) {
            keep_failure(gpu, NULL, "a barrier on no buffer", buffers[i]);
            continue;
        }
        gpu->buffers[buffers[i] - 1]->epoch++;
    }
}

/* Whether later must wait for earlier: a barrier on a buffer of both lies between. */
static bool depends(const struct emu_dispatch *later, const struct emu_dispatch *earlier)
{
    for (size_t i = 1; i < later->n_bound; i++) {
        for (size_t k = 1; k < earlier->n_bound && later->bound[i].buffer; k++) {
            if (later->bound[i].buffer == earlier->bound[k].buffer && later->bound[i].epoch != earlier->bound[k].epoch) {
                return true;
            }
        }
    }
    return false;
}

static void set_constants(const struct iso_metal_gpu *gpu, const struct emu_pipeline *p)
{
    const struct emu_module *m = gpu->module.module;
    for (unsigned i = 0; i < m->n_constants; i++) {
        *m->constants[i].defined = 0;
        memset(m->constants[i].value, 0, m->constants[i].size);
    }
    for (size_t i = 0; i < p->n_constants; i++) {
        const struct emu_constant *c = declared(m, p->constants[i].index);
        if (!c) continue;
        *c->defined = 1;
        if (c->size == 1) *(bool *)c->value = p->constants[i].value != 0;
        else memcpy(c->value, &p->constants[i].value, c->size);
    }
}

/* One more threadgroup of d. */
static bool step(struct iso_metal_gpu *gpu, struct emu_dispatch *d)
{
    const uint32_t g = d->order[d->n_done++];
    set_constants(gpu, d->pipeline);
    if (gpu->shadow) emu_shadow_group(gpu->shadow, gpu->recorded, d, g);
    return emu_runner_group(gpu->runner, d, g, gpu->shadow);
}

/* Dispatches that may run now, among those from first on; at most n. */
static uint32_t find_ready(const struct iso_metal_gpu *gpu, uint32_t first, uint32_t *ready, uint32_t n)
{
    uint32_t found = 0;
    for (uint32_t i = first; i < gpu->n_recorded && found < n; i++) {
        if (gpu->recorded[i]->n_done == gpu->recorded[i]->n_groups) continue;
        bool free_to_go = !(gpu->serial && found);
        for (uint32_t k = first; k < i && free_to_go; k++) {
            const struct emu_dispatch *e = gpu->recorded[k];
            if (e->n_done < e->n_groups && depends(gpu->recorded[i], e)) free_to_go = false;
        }
        if (free_to_go) ready[found++] = i;
        else if (gpu->serial) break;
    }
    return found;
}

/* Runs everything recorded. 0 done, 1 a kernel failed, 2 out of time. */
static int run_all(struct iso_metal_gpu *gpu, int64_t until_ns)
{
    uint32_t first = 0, ready[16];
    for (;;) {
        while (first < gpu->n_recorded && gpu->recorded[first]->n_done == gpu->recorded[first]->n_groups) first++;
        if (first == gpu->n_recorded) return 0;
        const uint32_t n = find_ready(gpu, first, ready, ISO_COUNT(ready));
        bool finished = false;
        while (!finished) { /* until one is done, which may make others ready */
            struct emu_dispatch *d = gpu->recorded[ready[n > 1 ? emu_random_below(&gpu->random, n) : 0]];
            if (!step(gpu, d)) return 1;
            finished = d->n_done == d->n_groups;
            if (iso_clock_ns() > until_ns) return 2;
        }
    }
}

enum iso_err iso_metal_gpu_commit(struct iso_metal_gpu *gpu, uint32_t limit_ms)
{
    if (gpu->lost) ISO_FAIL(ISO_E_GPU, "the emulated Metal device is lost");
    int status = 1;
    if (!gpu->failure[0]) {
        if (gpu->shadow) emu_shadow_begin(gpu->shadow);
        emu_runner_catch(true);
        status = run_all(gpu, iso_clock_ns() + (int64_t)limit_ms * SLOWER * ISO_NS_PER_MS);
        emu_runner_catch(false);
    }
    drop_recorded(gpu);
    for (uint32_t i = 0; i < gpu->n_buffers; i++) gpu->buffers[i]->epoch = 0;
    if (status == 0) return ISO_OK;
    gpu->lost = true;
    if (status == 2) ISO_FAIL(ISO_E_TIMEOUT, "emulated Metal commands ran over %u ms times %d", limit_ms, SLOWER);
    ISO_FAIL(ISO_E_GPU, "%s (emulated Metal, ISO_METAL_SEED=%llu)",
             gpu->failure[0] ? gpu->failure : emu_runner_message(gpu->runner), (unsigned long long)gpu->seed);
}
