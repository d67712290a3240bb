/* SPDX-License-Identifier: MIT
 * pair.c - buffers in two devices and their comparison. */
#include "cuda/pair.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static void must(enum iso_err err)
{
    if (err == ISO_OK) return;
    printf("FAIL %s\n", iso_err_detail());
    exit(1);
}

static enum iso_err open_gpu(struct iso_device **out, const char *name)
{
    static const char metal[] = "metal";
    const size_t n = sizeof(metal) - 1;
    if (name == NULL || strncmp(name, metal, n) != 0) return iso_device_cuda_open(out, name);
    return iso_device_metal_open(out, name[n] == ':' ? name + n + 1 : NULL);
}

void pair_open(struct pair *p, const char *name)
{
    const struct iso_device_limits limits = {.max_rows = PAIR_ROWS, .max_cols = PAIR_COLS, .n_heads = 64,
                                             .n_kv_heads = 8, .head_dim = 256, .max_pages = 64};
    uint64_t scratch = 0;
    must(iso_device_cpu_open(&p->dev[0], "auto", 0));
    must(open_gpu(&p->dev[1], name));
    p->small = strstr(p->dev[1]->vt->level(p->dev[1]), "emulated") != NULL;
    for (int i = 0; i < 2; i++) must(p->dev[i]->vt->reserve(p->dev[i], &limits, &scratch));
}

void pair_close(struct pair *p)
{
    for (int i = 0; i < 2; i++) p->dev[i]->vt->close(p->dev[i]);
}

uint64_t pair_next(struct pair *p)
{
    p->seed ^= p->seed << 13;
    p->seed ^= p->seed >> 7;
    p->seed ^= p->seed << 17;
    return p->seed;
}

float pair_unit(struct pair *p)
{
    return (float)((int32_t)(pair_next(p) % 20001) - 10000) * 1e-4f;
}

uint32_t pair_pick(struct pair *p, const uint32_t *values, size_t n)
{
    return values[(pair_next(p) >> 20) % n];
}

struct both pair_buffer(struct pair *p, size_t len, enum iso_mem kind, const void *data)
{
    struct both b = {.len = len};
    uint8_t *garbage = NULL;
    if (data == NULL) {
        garbage = malloc(len ? len : 1);
        memset(garbage, 0xa5, len);
    }
    for (int i = 0; i < 2; i++) {
        uint32_t buffer = 0;
        must(p->dev[i]->vt->alloc(p->dev[i], len, kind, "test", &buffer));
        b.s[i] = (struct iso_span){.buffer = buffer};
        must(p->dev[i]->vt->upload(p->dev[i], b.s[i], data ? data : garbage, len));
    }
    free(garbage);
    return b;
}

struct both pair_floats(struct pair *p, size_t n, float scale)
{
    float *x = malloc(n * sizeof(*x));
    for (size_t i = 0; i < n; i++) x[i] = pair_unit(p) * scale * (pair_next(p) % 41 == 0 ? 40.0f : 1.0f);
    const struct both b = pair_buffer(p, n * sizeof(*x), ISO_MEM_DEVICE, x);
    free(x);
    return b;
}

void pair_free(struct pair *p, struct both b)
{
    for (int i = 0; i < 2; i++) {
        if (b.s[i].buffer) p->dev[i]->vt->free(p->dev[i], b.s[i].buffer);
    }
}

struct both pair_at(struct both b, size_t offset)
{
    for (int i = 0; i < 2; i++) b.s[i].offset += offset;
    b.len -= offset;
    return b;
}

void pair_begin(struct pair *p)
{
    for (int i = 0; i < 2; i++) must(p->dev[i]->vt->begin(p->dev[i], &p->q[i]));
}

enum iso_err pair_sync(struct pair *p)
{
    const enum iso_err cpu = p->dev[0]->vt->sync(p->q[0]);
    char cpu_text[512] = "";
    if (cpu != ISO_OK) (void)snprintf(cpu_text, sizeof(cpu_text), "%s", iso_err_message());
    const enum iso_err gpu = p->dev[1]->vt->sync(p->q[1]);
    for (int i = 0; i < 2; i++) p->dev[i]->vt->end(p->q[i]);
    if (gpu == ISO_E_GPU || gpu == ISO_E_TIMEOUT || gpu == ISO_E_NOMEM) must(gpu);
    if (cpu != gpu || (gpu != ISO_OK && strcmp(cpu_text, iso_err_message()) != 0)) {
        pair_case(p, false, "errors differ: cpu %d '%s', gpu %d '%s'", cpu, cpu_text, gpu,
                  gpu ? iso_err_message() : "");
    }
    return gpu;
}

bool pair_equal(struct pair *p, struct both b, size_t n, const char *what)
{
    uint8_t *x[2];
    for (int i = 0; i < 2; i++) {
        x[i] = malloc(n + 4);
        must(p->dev[i]->vt->download(p->dev[i], x[i], b.s[i], n));
    }
    const bool same = memcmp(x[0], x[1], n) == 0;
    if (!same) {
        size_t first = n, count = 0;
        for (size_t i = 0; i < n; i += 4) {
            if (memcmp(x[0] + i, x[1] + i, ISO_MIN((size_t)4, n - i)) == 0) continue;
            if (first == n) first = i;
            count++;
        }
        float f[2];
        uint32_t u[2];
        for (int i = 0; i < 2; i++) {
            memcpy(&f[i], x[i] + first, 4);
            memcpy(&u[i], x[i] + first, 4);
        }
        printf("     %s: %zu of %zu words differ, first at word %zu: cpu %a (%08x), gpu %a (%08x)\n", what, count,
               n / 4, first / 4, (double)f[0], u[0], (double)f[1], u[1]);
    }
    free(x[0]);
    free(x[1]);
    return same;
}

void pair_case(struct pair *p, bool good, const char *fmt, ...)
{
    if (good) {
        p->n_passed++;
        return;
    }
    p->n_failed++;
    va_list ap;
    va_start(ap, fmt);
    printf("FAIL ");
    vprintf(fmt, ap);
    printf("\n");
    va_end(ap);
    (void)fflush(stdout);
}
