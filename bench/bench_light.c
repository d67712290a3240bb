/* SPDX-License-Identifier: MIT
 * bench_light.c - times the row operations and the sampler; CSV on standard output.
 *
 * usage: bench_light [n]     n: values per row, a multiple of 256 (default 4096)
 * Bytes are f32 read and written plus codes written, each counted once. Rows stay in the first two
 * cache levels, as they do between two operations of a layer.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/sampler.h"
#include "engine/sampler_weights.h"
#include "kernels/embed/embed.h"
#include "kernels/logits/logits.h"
#include "kernels/norm/norm.h"
#include "kernels/quantize/quantize.h"
#include "kernels/shared/codes.h"
#include "kernels/shared/cpu.h"

#define N_REPEATS 21      /* odd: the median is one of them */
#define REPEAT_NS 2000000 /* one repeat lasts at least this long */
#define N_VOCAB 262144
#define EPS 1e-5f

struct data {
    size_t n;
    float *x, *y, *z;
    uint8_t *row;  /* Q4_K */
    float *l, *l2; /* [N_VOCAB] */
    struct iso_code_row codes;
    const struct iso_quantize_kernels *quantize;
    const struct iso_norm_kernels *norm;
    const struct iso_embed_kernels *embed;
    const struct iso_logits_kernels *logits;
    struct iso_sampler *sampler;
    uint64_t position;
};

static volatile uint64_t g_sink; /* keeps results alive */

static float inverse(size_t n)
{
    return (float)(1.0 / (double)n);
}

static void run_quantize(struct data *d)
{
    g_sink += d->quantize->quantize(&d->codes, d->x, d->n);
}
static void run_norm_quantize(struct data *d)
{
    g_sink += d->quantize->norm_quantize(&d->codes, NULL, d->x, d->y, EPS, inverse(d->n), d->n);
}
static void run_gate_quantize(struct data *d)
{
    g_sink += d->quantize->gate_quantize(&d->codes, NULL, d->x, d->y, d->n);
}
static void run_swiglu_quantize(struct data *d)
{
    g_sink += d->quantize->glu_quantize(&d->codes, NULL, d->x, d->y, ISO_GLU_SWIGLU, d->n);
}
static void run_geglu_quantize(struct data *d)
{
    g_sink += d->quantize->glu_quantize(&d->codes, NULL, d->x, d->y, ISO_GLU_GEGLU, d->n);
}
static void run_norm(struct data *d)
{
    d->norm->norm(d->z, d->x, d->y, EPS, inverse(d->n), d->n);
}
static void run_residual(struct data *d)
{
    d->norm->residual(d->z, d->y, d->n);
}
static void run_residual_norm(struct data *d)
{
    d->norm->residual_norm(d->z, d->x, d->y, EPS, inverse(d->n), d->n);
}
static void run_embed(struct data *d)
{
    d->embed->embed(d->z, ISO_TYPE_Q4_K, d->row, 64.0f, 1, d->n);
}
static void run_logits_cap(struct data *d)
{
    const struct iso_logits_args a = {
        .scale = 1.0f, .has_scale = 1, .cap = 30.0f, .inv_cap = 1.0f / 30};
    g_sink += d->logits->logits(d->l2, &a, N_VOCAB);
}
static void run_argmax(struct data *d)
{
    g_sink += d->logits->argmax(d->l, N_VOCAB);
}
static void run_pick(struct data *d)
{
    g_sink += (uint64_t)iso_sampler_pick(d->sampler, d->l, d->position++);
}

typedef void bench_fn(struct data *d);

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* bytes 0: a row without a rate. */
static void
measure(const char *name, const char *isa, size_t n, size_t bytes, bench_fn *fn, struct data *d)
{
    size_t n_calls = 1;
    for (;;) { /* warm-up that also finds the number of calls per repeat */
        const int64_t t0 = iso_clock_ns();
        for (size_t i = 0; i < n_calls; i++) fn(d);
        if (iso_clock_ns() - t0 >= REPEAT_NS) break;
        n_calls *= 2;
    }
    double ns[N_REPEATS];
    for (size_t r = 0; r < N_REPEATS; r++) {
        const int64_t t0 = iso_clock_ns();
        for (size_t i = 0; i < n_calls; i++) fn(d);
        ns[r] = (double)(iso_clock_ns() - t0) / (double)n_calls;
    }
    qsort(ns, N_REPEATS, sizeof(*ns), by_value);
    const double median = ns[N_REPEATS / 2];
    printf("%s,%s,%zu,%.1f,%.1f,%.1f,%.2f\n", name, isa, n, median, ns[0], ns[N_REPEATS - 1],
           (double)bytes / median);
}

static void bench_level(struct data *d, unsigned flags)
{
    const char *isa = iso_cpu_level_name(flags);
    const size_t n = d->n;
    const size_t code_bytes = n * 2 + n / 8;
    d->quantize = iso_quantize_select(flags);
    d->norm = iso_norm_select(flags);
    d->embed = iso_embed_select(flags);
    d->logits = iso_logits_select(flags);
    measure("quantize", isa, n, n * 4 + code_bytes, run_quantize, d);
    measure("norm_quantize", isa, n, n * 8 + code_bytes, run_norm_quantize, d);
    measure("gate_quantize", isa, n, n * 8 + code_bytes, run_gate_quantize, d);
    measure("swiglu_quantize", isa, n, n * 8 + code_bytes, run_swiglu_quantize, d);
    measure("geglu_quantize", isa, n, n * 8 + code_bytes, run_geglu_quantize, d);
    measure("norm", isa, n, n * 12, run_norm, d);
    memset(d->z, 0, n * sizeof(float));
    measure("residual", isa, n, n * 12, run_residual, d);
    memset(d->z, 0, n * sizeof(float));
    measure("residual_norm", isa, n, n * 16, run_residual_norm, d);
    measure("embed_q4_k", isa, n, n * 4 + n / 256 * 144, run_embed, d);
    memcpy(d->l2, d->l, N_VOCAB * sizeof(float));
    measure("logits_scale_cap", isa, N_VOCAB, (size_t)N_VOCAB * 8, run_logits_cap, d);
    measure("argmax", isa, N_VOCAB, (size_t)N_VOCAB * 4, run_argmax, d);
}

struct setting {
    const char *name;
    float temperature;
    uint32_t top_k;
    float top_p, min_p, frequency;
};

static int bench_sampler(struct data *d)
{
    static const struct setting settings[] = {
        {"pick_greedy", 0.0f, 0, 1.0f, 0.0f, 0.0f},
        {"pick_top_k_40", 0.8f, 40, 1.0f, 0.0f, 0.0f},
        {"pick_top_k_40_top_p_0.95_min_p_0.05_penalty", 0.8f, 40, 0.95f, 0.05f, 0.1f},
        {"pick_top_p_0.9", 1.0f, 0, 0.9f, 0.0f, 0.0f},
        {"pick_no_filter", 1.0f, 0, 1.0f, 0.0f, 0.0f},
        {"pick_no_filter_flat", 1024.0f, 0, 1.0f, 0.0f, 0.0f},
        {"pick_top_p_0.999_flat", 1024.0f, 0, 0.999f, 0.0f, 0.0f},
    };
    for (size_t v = 0; iso_sampler_kernels_at(v); v++) {
        for (size_t i = 0; i < ISO_COUNT(settings); i++) {
            struct iso_sampler_params p = ISO_SAMPLER_PLAIN;
            p.temperature = settings[i].temperature;
            p.top_k = settings[i].top_k;
            p.top_p = settings[i].top_p;
            p.min_p = settings[i].min_p;
            p.frequency = settings[i].frequency;
            p.seed = 1;
            p.kernels = iso_sampler_kernels_at(v);
            if (iso_sampler_new(&d->sampler, &p, N_VOCAB) != ISO_OK) return -1;
            measure(settings[i].name, p.kernels->name, N_VOCAB, 0, run_pick, d);
            iso_sampler_free(d->sampler);
        }
    }
    return 0;
}

static float *floats(size_t n)
{
    void *p = NULL;
    return iso_mem_alloc(&p, n, sizeof(float), "bench") == ISO_OK ? p : NULL;
}

/* A sum of twelve uniform numbers is nearly normal; logits get a standard deviation of 2.5. */
static void fill(float *x, size_t n, float scale)
{
    uint64_t s = 88172645463325252u;
    for (size_t i = 0; i < n; i++) {
        float sum = -6.0f;
        for (int j = 0; j < 12; j++) {
            s ^= s << 13;
            s ^= s >> 7;
            s ^= s << 17;
            sum += (float)(s >> 40) * 0x1p-24f;
        }
        x[i] = sum * scale;
    }
}

static void print_machine(void)
{
    char line[256] = "unknown";
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof(line), f)) {
        if (strncmp(line, "model name", 10) == 0) break;
    }
    if (f) (void)fclose(f);
    line[strcspn(line, "\n")] = 0;
    const char *name = strchr(line, ':');
    printf("# cpu=%s compiler=%s threads=1\n", name ? name + 2 : line, __VERSION__);
}

int main(int argc, char **argv)
{
    struct data d = {.n = argc > 1 ? strtoul(argv[1], NULL, 10) : 4096};
    if (d.n == 0 || d.n % 256 != 0) {
        fprintf(stderr, "bench_light: %zu values per row: a multiple of 256\n", d.n);
        return 2;
    }
    const size_t n = d.n;
    d.x = floats(n);
    d.y = floats(n);
    d.z = floats(n);
    d.l = floats(N_VOCAB);
    d.l2 = floats(N_VOCAB);
    d.codes = (struct iso_code_row){(int16_t *)floats(n), floats(n), (int32_t *)floats(n)};
    d.row = (uint8_t *)floats(n);
    if (!d.x || !d.y || !d.z || !d.l || !d.l2 || !d.codes.code || !d.codes.scale ||
        !d.codes.sum32 || !d.row) {
        fprintf(stderr, "bench_light: %s\n", iso_err_detail());
        return 1;
    }
    fill(d.x, n, 1.0f);
    fill(d.y, n, 1.0f);
    fill(d.l, N_VOCAB, 2.5f);
    print_machine();
    printf("operation,isa,n,ns_median,ns_min,ns_max,gb_per_s\n");
    unsigned flags = 0;
    for (size_t i = 0; iso_cpu_level_at(i); i++) {
        if (iso_cpu_level(&flags, iso_cpu_level_at(i)) != ISO_OK) return 1;
        if (flags & ISO_CPU_VNNI)
            continue; /* these operations have no variant of their own there */
        bench_level(&d, flags);
    }
    if (bench_sampler(&d) != 0) {
        fprintf(stderr, "bench_light: %s\n", iso_err_detail());
        return 1;
    }
    float *all[] = {d.x,           d.y,
                    d.z,           d.l,
                    d.l2,          (float *)d.codes.code,
                    d.codes.scale, (float *)d.codes.sum32,
                    (float *)d.row};
    for (size_t i = 0; i < ISO_COUNT(all); i++) iso_mem_free(all[i]);
    return 0;
}
