/* SPDX-License-Identifier: MIT
 * device_cpu.c - the CPU as a device: buffers, the thread team, the operation table. */
#include "device/device_cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/os.h"
#include "device/program_image.h"
#include "device/self_check.h"
#include "kernels/shared/cpu.h"

static struct iso_cpu *cpu_of(struct iso_device *dev)
{
    return (struct iso_cpu *)dev;
}

static void free_scratch(struct iso_cpu *cpu)
{
    iso_mem_free(cpu->panel);
    iso_mem_free(cpu->scratch);
    iso_mem_free(cpu->segments);
    iso_mem_free(cpu->tiles);
    cpu->panel = NULL;
    cpu->scratch = NULL;
    cpu->segments = NULL;
    cpu->tiles = NULL;
}

static void cpu_close(struct iso_device *dev)
{
    struct iso_cpu *cpu = cpu_of(dev);
    iso_pool_free(cpu->pool);
    for (size_t i = 0; i <= cpu->n_buffers; i++) {
        if (cpu->buffer[i].owned) iso_mem_free(cpu->buffer[i].p);
    }
    free_scratch(cpu);
    free(cpu);
}

static enum iso_err cpu_reserve(struct iso_device *dev, const struct iso_device_limits *limits,
                                uint64_t *scratch_bytes)
{
    struct iso_cpu *cpu = cpu_of(dev);
    free_scratch(cpu);
    cpu->limits = *limits;
    const size_t n_threads = iso_pool_threads(cpu->pool);
    const size_t product = iso_matmul_scratch_bytes(limits->max_rows, limits->max_cols);
    const size_t attention = iso_cpu_attention_scratch(limits);
    cpu->scratch_stride = (ISO_MAX(product, attention) + 4095) / 4096 * 4096;
    const size_t panel = iso_gemm_panel_bytes(limits->max_rows, limits->max_cols);
    cpu->segments_len = iso_cpu_attention_segments(limits);
    ISO_TRY(iso_mem_alloc((void **)&cpu->scratch, n_threads, cpu->scratch_stride, "thread scratch"));
    ISO_TRY(iso_mem_alloc((void **)&cpu->panel, panel, 1, "activation panel"));
    ISO_TRY(iso_mem_alloc((void **)&cpu->segments, cpu->segments_len, sizeof(float),
                          "attention segments"));
    ISO_TRY(iso_mem_alloc((void **)&cpu->tiles, limits->max_rows, sizeof(*cpu->tiles),
                          "attention tiles"));
    *scratch_bytes = n_threads * cpu->scratch_stride + panel + cpu->segments_len * sizeof(float);
    return ISO_OK;
}

static enum iso_err new_buffer(struct iso_cpu *cpu, uint32_t *index)
{
    if (cpu->n_buffers + 1 >= ISO_CPU_BUFFERS) {
        ISO_FAIL(ISO_E_LIMIT, "more than %d device buffers", ISO_CPU_BUFFERS - 1);
    }
    *index = ++cpu->n_buffers; /* index 0 means none; indices are not used again */
    return ISO_OK;
}

static enum iso_err cpu_alloc(struct iso_device *dev, size_t len, enum iso_mem kind,
                              const char *what, uint32_t *buffer)
{
    (void)kind; /* one memory for all */
    struct iso_cpu *cpu = cpu_of(dev);
    uint32_t i = 0;
    ISO_TRY(new_buffer(cpu, &i));
    void *p = NULL;
    ISO_TRY(iso_mem_alloc(&p, len, 1, what));
    cpu->buffer[i] = (struct iso_cpu_buffer){p, len, true};
    *buffer = i;
    return ISO_OK;
}

static void cpu_free(struct iso_device *dev, uint32_t buffer)
{
    struct iso_cpu *cpu = cpu_of(dev);
    if (cpu->buffer[buffer].owned) iso_mem_free(cpu->buffer[buffer].p);
    cpu->buffer[buffer] = (struct iso_cpu_buffer){0};
}

static enum iso_err cpu_map(struct iso_device *dev, const void *p, size_t len, uint32_t *buffer)
{
    struct iso_cpu *cpu = cpu_of(dev);
    uint32_t i = 0;
    ISO_TRY(new_buffer(cpu, &i));
    cpu->buffer[i] = (struct iso_cpu_buffer){(uint8_t *)(uintptr_t)p, len, false};
    *buffer = i;
    return ISO_OK;
}

static enum iso_err cpu_weight(struct iso_device *dev, struct iso_weight *w)
{
    (void)dev;
    (void)w; /* products read the file's own layout */
    return ISO_OK;
}

static enum iso_err cpu_upload(struct iso_device *dev, struct iso_span dst, const void *src,
                               size_t len)
{
    memcpy(iso_cpu_at(cpu_of(dev), dst), src, len);
    return ISO_OK;
}

static enum iso_err cpu_download(struct iso_device *dev, void *dst, struct iso_span src, size_t len)
{
    memcpy(dst, iso_cpu_at(cpu_of(dev), src), len);
    return ISO_OK;
}

static void cpu_zero(struct iso_device *dev, struct iso_span at, size_t len, size_t stride, size_t n)
{
    uint8_t *p = iso_cpu_at(cpu_of(dev), at);
    for (size_t i = 0; i < n; i++) memset(p + i * stride, 0, len);
}

static void cpu_copy(struct iso_device *dev, struct iso_span dst, struct iso_span src, size_t len)
{
    memcpy(iso_cpu_at(cpu_of(dev), dst), iso_cpu_at(cpu_of(dev), src), len);
}

static void *cpu_host(struct iso_device *dev, struct iso_span at)
{
    return iso_cpu_at(cpu_of(dev), at);
}

static enum iso_err cpu_begin(struct iso_device *dev, struct iso_queue **queue)
{
    struct iso_cpu *cpu = cpu_of(dev);
    cpu->queue.cpu = cpu;
    atomic_store_explicit(&cpu->queue.fault, 0, memory_order_relaxed);
    *queue = &cpu->queue;
    return ISO_OK;
}

static enum iso_err cpu_sync(struct iso_queue *q)
{
    return iso_fault_status(atomic_load_explicit(&q->fault, memory_order_relaxed));
}

static void cpu_end(struct iso_queue *q)
{
    (void)q; /* nothing is pending: recording ran it */
}

static const char *cpu_level(const struct iso_device *dev)
{
    return ((const struct iso_cpu *)dev)->level;
}

static unsigned cpu_threads(const struct iso_device *dev)
{
    return iso_pool_threads(((const struct iso_cpu *)dev)->pool);
}

static size_t cpu_codes_bytes(const struct iso_device *dev, size_t n_rows, size_t n)
{
    (void)dev;
    return iso_codes_bytes(n_rows, n);
}

static void cpu_parallel(struct iso_device *dev, void (*fn)(void *, unsigned, unsigned), void *arg)
{
    iso_pool_run(cpu_of(dev)->pool, fn, arg);
}

static enum iso_err cpu_self_check(struct iso_device *dev)
{
    volatile float a = 1.0f + 0x1p-12f, minus = -1.0f - 0x1p-11f;
    if (__builtin_fmaf(a, a, minus) != 0x1p-24f) ISO_FAIL(ISO_E_SELF_CHECK, "fmaf of this system rounds twice");
    uint64_t scratch = 0;
    ISO_TRY(cpu_reserve(dev, &iso_self_check_limits, &scratch));
    return iso_device_self_check(dev);
}

/* The kernels' machine code and constants are those of the program: its code segment and, where sections
 * can be found, .rodata (tables, shuffles, strings). The level says which of them run. */
static void cpu_identity(struct iso_device *dev, struct iso_digest *out)
{
    const struct iso_cpu *cpu = cpu_of(dev);
    struct iso_hasher *h = iso_hasher_new();
    const uint8_t *constants = NULL;
    size_t len = 0;
    char text[64];
    (void)snprintf(text, sizeof(text), "isobit-kernels-1 cpu %s\n", cpu->level);
    iso_hasher_update(h, text, strlen(text));
    if (iso_os_hash_code(h) != ISO_OK) iso_hasher_update(h, "no code", 7);
    if (iso_program_section(&constants, &len, ".rodata") == ISO_OK) iso_hasher_update(h, constants, len);
    iso_hasher_final(h, out);
    iso_hasher_free(h);
}

static const struct iso_device_vt cpu_vt = {
    .name = "cpu",
    .close = cpu_close,
    .reserve = cpu_reserve,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .map = cpu_map,
    .weight = cpu_weight,
    .upload = cpu_upload,
    .download = cpu_download,
    .zero = cpu_zero,
    .copy = cpu_copy,
    .host = cpu_host,
    .begin = cpu_begin,
    .embed = iso_cpu_embed,
    .norm = iso_cpu_norm,
    .norm_quantize = iso_cpu_norm_quantize,
    .quantize = iso_cpu_quantize,
    .matmul = iso_cpu_matmul,
    .heads = iso_cpu_heads,
    .attention = iso_cpu_attention,
    .residual = iso_cpu_residual,
    .gather = iso_cpu_gather,
    .logits = iso_cpu_logits,
    .sync = cpu_sync,
    .end = cpu_end,
    .self_check = cpu_self_check,
    .identity = cpu_identity,
    .level = cpu_level,
    .threads = cpu_threads,
    .codes_bytes = cpu_codes_bytes,
    .parallel = cpu_parallel,
};

enum iso_err iso_device_cpu_open(struct iso_device **out, const char *isa, unsigned n_threads)
{
    unsigned flags = 0;
    ISO_TRY(iso_cpu_level(&flags, isa ? isa : "auto"));
    if (n_threads == 0) n_threads = ISO_MIN(iso_os_processors(), ISO_POOL_MAX_THREADS);
    struct iso_pool *pool = NULL;
    ISO_TRY(iso_pool_new(&pool, n_threads));
    struct iso_cpu *cpu = iso_xalloc(1, sizeof(*cpu));
    cpu->dev.vt = &cpu_vt;
    cpu->pool = pool;
    cpu->flags = flags;
    (void)snprintf(cpu->level, sizeof(cpu->level), "%s", iso_cpu_level_name(flags));
    cpu->embed = iso_embed_select(flags);
    cpu->norm = iso_norm_select(flags);
    cpu->quantize = iso_quantize_select(flags);
    cpu->matmul = iso_matmul_select(flags);
    cpu->heads = iso_heads_select(flags);
    cpu->attention = iso_attention_select(flags);
    cpu->logits = iso_logits_select(flags);
    *out = &cpu->dev;
    return ISO_OK;
}
