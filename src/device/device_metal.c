/* SPDX-License-Identifier: MIT
 * device_metal.c - an Apple GPU as a device: opening, memory, proof.
 *
 * All memory is shared with the host, so host() works for every buffer, transfers are copies, and the
 * wire writes pages where the GPU reads them. Weights of a mapped file are used in place. The first
 * failure of the GPU is kept and every later call is refused with it; nothing falls back to the CPU.
 */
#include "device/device_metal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/pool.h"
#include "device/metal_source.h"
#include "device/self_check.h"
#include "kernels/shared/codes.h"

static struct iso_metal *metal_of(struct iso_device *dev)
{
    return (struct iso_metal *)dev;
}

enum iso_err iso_metal_status(const struct iso_metal *d)
{
    return d->err == ISO_OK ? ISO_OK : iso_err_adopt(d->err, d->detail);
}

/* --- memory ------------------------------------------------------------------------------------------- */

static enum iso_err new_index(struct iso_metal *d, uint32_t *index)
{
    ISO_TRY(iso_metal_status(d));
    if (d->n_buffers + 1 >= ISO_METAL_BUFFERS) {
        ISO_FAIL(ISO_E_LIMIT, "more than %d device buffers", ISO_METAL_BUFFERS - 1);
    }
    *index = d->n_buffers + 1; /* index 0 means none; indices are not used again */
    return ISO_OK;
}

enum iso_err iso_metal_new_buffer(struct iso_metal *d, size_t len, const char *what, uint32_t *buffer)
{
    uint32_t i = 0, gpu = 0;
    void *host = NULL;
    ISO_TRY(new_index(d, &i));
    const enum iso_err err = iso_metal_gpu_alloc(d->gpu, ISO_MAX(len, (size_t)16), &gpu, &host);
    if (err == ISO_E_NOMEM) {
        char why[256];
        (void)snprintf(why, sizeof(why), "%s", iso_err_message());
        ISO_FAIL(ISO_E_NOMEM, "%s: %zu bytes, %llu may be in use at once: %s", what, len,
                 (unsigned long long)iso_metal_gpu_info(d->gpu)->memory, why);
    }
    ISO_TRY(err);
    d->buffer[i] = (struct iso_metal_buffer){.p = host, .len = len, .gpu = gpu};
    d->n_buffers = i;
    *buffer = i;
    return ISO_OK;
}

static enum iso_err metal_alloc(struct iso_device *dev, size_t len, enum iso_mem kind, const char *what,
                                uint32_t *buffer)
{
    (void)kind; /* one memory for all */
    return iso_metal_new_buffer(metal_of(dev), len, what, buffer);
}

/* What is recorded and not yet run may use the memory that the host is about to touch. */
static enum iso_err settle(struct iso_metal *d)
{
    return d->queue.recorded ? iso_metal_flush(&d->queue) : iso_metal_status(d);
}

static void metal_free(struct iso_device *dev, uint32_t buffer)
{
    struct iso_metal *d = metal_of(dev);
    const enum iso_err err = settle(d);
    (void)err; /* kept by the device for the next call */
    if (d->buffer[buffer].gpu != 0) iso_metal_gpu_free(d->gpu, d->buffer[buffer].gpu);
    d->buffer[buffer] = (struct iso_metal_buffer){0};
}

/* Whole pages around the bytes: a file's mapping ends with a whole page, too. */
static enum iso_err wrap(struct iso_metal *d, const void *p, size_t len, struct iso_metal_buffer *b)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t first = (uintptr_t)p / page * page;
    const uintptr_t end = ((uintptr_t)p + len + page - 1) / page * page;
    uint32_t gpu = 0;
    ISO_TRY(iso_metal_gpu_wrap(d->gpu, (const void *)first, end - first, &gpu));
    *b = (struct iso_metal_buffer){.p = (uint8_t *)(uintptr_t)p, .len = len, .gpu = gpu,
                                   .offset = (uintptr_t)p - first};
    return ISO_OK;
}

/* Large tensors are used in place; small ones, and those that lie at odd addresses, are copied: kernels
 * read words, and Metal wants the offset of a binding to be a multiple of them. */
static enum iso_err metal_map(struct iso_device *dev, const void *p, size_t len, uint32_t *buffer)
{
    struct iso_metal *d = metal_of(dev);
    if (len < ISO_METAL_MAP_FROM || (uintptr_t)p % ISO_METAL_BIND_ALIGN != 0) {
        ISO_TRY(iso_metal_new_buffer(d, len, "weights", buffer));
        memcpy(d->buffer[*buffer].p, p, len);
        return ISO_OK;
    }
    uint32_t i = 0;
    ISO_TRY(new_index(d, &i));
    ISO_TRY(wrap(d, p, len, &d->buffer[i]));
    d->n_buffers = i;
    *buffer = i;
    return ISO_OK;
}

static enum iso_err metal_weight(struct iso_device *dev, struct iso_weight *w)
{
    (void)dev;
    (void)w; /* products read the file's own layout */
    return ISO_OK;
}

static enum iso_err metal_upload(struct iso_device *dev, struct iso_span dst, const void *src, size_t len)
{
    struct iso_metal *d = metal_of(dev);
    ISO_TRY(settle(d));
    if (len > 0) memcpy(iso_metal_at(d, dst), src, len);
    return ISO_OK;
}

static enum iso_err metal_download(struct iso_device *dev, void *dst, struct iso_span src, size_t len)
{
    struct iso_metal *d = metal_of(dev);
    ISO_TRY(settle(d));
    if (len > 0) memcpy(dst, iso_metal_at(d, src), len);
    return ISO_OK;
}

static void metal_zero(struct iso_device *dev, struct iso_span at, size_t len, size_t stride, size_t n)
{
    struct iso_metal *d = metal_of(dev);
    if (settle(d) != ISO_OK || len == 0) return;
    uint8_t *p = iso_metal_at(d, at);
    for (size_t i = 0; i < n; i++) memset(p + i * stride, 0, len);
}

static void metal_copy(struct iso_device *dev, struct iso_span dst, struct iso_span src, size_t len)
{
    struct iso_metal *d = metal_of(dev);
    if (settle(d) == ISO_OK && len > 0) memmove(iso_metal_at(d, dst), iso_metal_at(d, src), len);
}

static void *metal_host(struct iso_device *dev, struct iso_span at)
{
    return iso_metal_at(metal_of(dev), at);
}

static enum iso_err reserve_states(struct iso_metal *d, size_t len)
{
    if (d->states != 0 && d->buffer[d->states].len >= len) return ISO_OK;
    if (d->states != 0) metal_free(&d->dev, d->states);
    d->states = 0;
    return len > 0 ? iso_metal_new_buffer(d, len, "attention states", &d->states) : ISO_OK;
}

static enum iso_err metal_reserve(struct iso_device *dev, const struct iso_device_limits *limits,
                                  uint64_t *scratch_bytes)
{
    struct iso_metal *d = metal_of(dev);
    const size_t len = iso_metal_states_bytes(limits);
    ISO_TRY(settle(d));
    ISO_TRY(iso_metal_pipelines_heads(&d->pipelines, limits->head_dim));
    ISO_TRY(reserve_states(d, len));
    free(d->queue.rows);
    d->queue.rows = iso_xalloc(limits->max_rows, sizeof(*d->queue.rows));
    d->queue.rows_cap = limits->max_rows;
    *scratch_bytes = len;
    return ISO_OK;
}

static size_t metal_codes_bytes(const struct iso_device *dev, size_t n_rows, size_t n)
{
    (void)dev;
    return iso_codes_bytes(n_rows, n);
}

/* --- proof and names ---------------------------------------------------------------------------------- */

/* The text that is compiled when the device opens, and how: the same on every Mac. The final code is made
 * by the system's compiler, which no program can hash; the self-check stands for it. */
static void metal_identity(struct iso_device *dev, struct iso_digest *out)
{
    const struct iso_metal *d = metal_of(dev);
    struct iso_hasher *h = iso_hasher_new();
    char text[96];
    (void)snprintf(text, sizeof(text), "isobit-kernels-1 metal %s safe-math\n", d->level);
    iso_hasher_update(h, text, strlen(text));
    iso_hasher_update(h, d->source.bytes, sizeof(d->source.bytes));
    iso_hasher_final(h, out);
    iso_hasher_free(h);
}

static const char *metal_level(const struct iso_device *dev)
{
    return ((const struct iso_metal *)dev)->level;
}

static unsigned metal_threads(const struct iso_device *dev)
{
    (void)dev;
    return 1; /* one thread records */
}

static void metal_parallel(struct iso_device *dev, void (*fn)(void *, unsigned, unsigned), void *arg)
{
    (void)dev;
    iso_pool_run_once(fn, arg);
}

/* --- open and close ----------------------------------------------------------------------------------- */

static void metal_close(struct iso_device *dev)
{
    struct iso_metal *d = metal_of(dev);
    if (d->gpu != NULL) {
        iso_metal_end(&d->queue);
        for (uint32_t i = 1; i <= d->n_buffers; i++) {
            if (d->buffer[i].gpu != 0) iso_metal_gpu_free(d->gpu, d->buffer[i].gpu);
        }
        iso_metal_gpu_close(d->gpu);
    }
    free(d->queue.rows);
    free(d);
}

static const struct iso_device_vt *metal_vt(void)
{
    static struct iso_device_vt vt = {
        .name = "metal",
        .close = metal_close,
        .reserve = metal_reserve,
        .alloc = metal_alloc,
        .free = metal_free,
        .map = metal_map,
        .weight = metal_weight,
        .upload = metal_upload,
        .download = metal_download,
        .zero = metal_zero,
        .copy = metal_copy,
        .host = metal_host,
        .begin = iso_metal_begin,
        .sync = iso_metal_sync,
        .end = iso_metal_end,
        .self_check = iso_device_self_check,
        .identity = metal_identity,
        .level = metal_level,
        .threads = metal_threads,
        .codes_bytes = metal_codes_bytes,
        .parallel = metal_parallel,
    };
    iso_metal_record_ops(&vt);
    return &vt;
}

static enum iso_err open_into(struct iso_metal *d, const char *isa, const char *source, size_t len)
{
    if (isa == NULL || strcmp(isa, "auto") == 0) isa = "concurrent";
    d->serial = strcmp(isa, "serial") == 0;
    if (!d->serial && strcmp(isa, "concurrent") != 0) {
        ISO_FAIL(ISO_E_ARG, "instruction set '%s' of metal: auto, concurrent, serial", isa);
    }
    ISO_TRY(iso_metal_gpu_open(&d->gpu, source, len, d->serial));
    const bool emulated = iso_metal_gpu_info(d->gpu)->emulated;
    (void)snprintf(d->level, sizeof(d->level), "%s%s", isa, emulated ? " emulated" : "");
    iso_sha256(&d->source, source, len);
    ISO_TRY(iso_metal_pipelines_open(&d->pipelines, d->gpu));
    ISO_TRY(iso_metal_new_buffer(d, 16, "fault word", &d->fault));
    /* The self-check runs before reserve() and shall see the split form of attention, too. */
    return reserve_states(d, iso_metal_states_bytes(&iso_self_check_limits));
}

enum iso_err iso_metal_open(struct iso_device **out, const char *isa, const char *source, size_t len)
{
    struct iso_metal *d = iso_xalloc(1, sizeof(*d));
    d->dev.vt = metal_vt();
    d->queue.dev = d;
    d->work_max = ISO_METAL_WORK_MAX;
    const enum iso_err err = open_into(d, isa, source, len);
    if (err != ISO_OK) {
        char detail[512];
        (void)snprintf(detail, sizeof(detail), "%s", iso_err_detail());
        metal_close(&d->dev);
        return iso_err_adopt(err, detail);
    }
    *out = &d->dev;
    return ISO_OK;
}

#ifdef ISO_METAL
enum iso_err iso_device_metal_open(struct iso_device **out, const char *isa)
{
    return iso_metal_open(out, isa, iso_metal_source, iso_metal_source_len);
}
#endif
