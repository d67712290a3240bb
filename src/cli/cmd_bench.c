/* SPDX-License-Identifier: MIT
 * cmd_bench.c - `isobit bench`: tokens per second of prefill and decode, as a table or JSON. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/os.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "engine/engine.h"
#include "isobit.h"

#define MAX_REPEATS 100

struct bench {
    struct iso_model_options model;
    uint32_t n_prompt, n_gen, depth, repeats, batch;
    bool json;

    iso_engine *engine;
    iso_session *session;
    int32_t *ids; /* [longest] */
    json_t *rows;
};

struct sample {
    double mean, deviation, median;
};

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct sample statistics(double *v, size_t n)
{
    struct sample s = {0};
    for (size_t i = 0; i < n; i++) s.mean += v[i] / (double)n;
    for (size_t i = 0; i < n; i++) s.deviation += (v[i] - s.mean) * (v[i] - s.mean);
    s.deviation = n > 1 ? sqrt(s.deviation / (double)(n - 1)) : 0;
    qsort(v, n, sizeof(*v), by_value);
    s.median = n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
    return s;
}

/* One timed pass: n_prompt ids at once, or n_gen ids one by one, behind depth ids. */
static enum iso_err pass(const struct bench *b, uint32_t n_prompt, uint32_t n_gen, double *seconds)
{
    iso_session *s = b->session;
    (void)iso_session_rewind(s, 0);
    if (b->depth) ISO_TRY(iso_session_prefill(s, b->ids, b->depth, NULL));
    const int64_t start = iso_clock_ns();
    if (n_prompt) ISO_TRY(iso_session_prefill(s, b->ids + b->depth, n_prompt, NULL));
    for (uint32_t i = 0; i < n_gen; i++) {
        if (iso_interrupted()) ISO_FAIL(ISO_E_CANCELLED, "stopped");
        ISO_TRY(iso_session_decode(s, b->ids[b->depth + i]));
    }
    *seconds = (double)(iso_clock_ns() - start) / (double)ISO_NS_PER_S;
    return ISO_OK;
}

static void print_row(const struct bench *b, const char *test, const struct sample *s)
{
    const struct iso_engine_info *i = iso_engine_info(b->engine);
    char size[16];
    (void)printf("| %-28.28s | %10s | %9.2f M | %-3s %-6s | %7u | %14s | %10.2f ± %.2f |\n",
                 i->name[0] ? i->name : i->architecture, iso_cli_bytes(size, i->weight_bytes),
                 (double)i->n_parameters / 1e6, i->device, i->isa, i->n_threads, test, s->mean, s->deviation);
    (void)fflush(stdout);
}

static void json_row(struct bench *b, const char *test, uint32_t n_prompt, uint32_t n_gen,
                     const struct sample *s)
{
    const struct iso_engine_info *i = iso_engine_info(b->engine);
    char cpu[128], hex[ISO_DIGEST_HEX];
    iso_os_cpu_name(cpu, sizeof(cpu));
    iso_digest_hex(hex, &i->kernels);
    json_t *j = json_pack("{s:s, s:s, s:I, s:I, s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:s, s:i, s:i, s:f, s:f, s:f}",
                          "model", i->name, "architecture", i->architecture, "bytes",
                          (json_int_t)i->weight_bytes, "parameters", (json_int_t)i->n_parameters, "device",
                          i->device, "isa", i->isa, "cpu", cpu, "kernels", hex, "threads",
                          (int)i->n_threads, "n_prompt", (int)n_prompt, "n_gen", (int)n_gen, "depth",
                          (int)b->depth, "test", test, "batch", (int)i->n_batch, "repeats", (int)b->repeats, "tokens_per_s_mean",
                          s->mean, "tokens_per_s_deviation", s->deviation, "tokens_per_s_median", s->median);
    (void)json_array_append_new(b->rows, j);
}

static enum iso_err test(struct bench *b, uint32_t n_prompt, uint32_t n_gen)
{
    if (n_prompt + n_gen == 0) return ISO_OK;
    double rate[MAX_REPEATS], seconds = 0;
    /* Warm-up: pages in the weights, wakes the threads; not more than needed. */
    ISO_TRY(pass(b, n_prompt, ISO_MIN(n_gen, 8u), &seconds));
    for (uint32_t r = 0; r < b->repeats; r++) {
        ISO_TRY(pass(b, n_prompt, n_gen, &seconds));
        rate[r] = (n_prompt + n_gen) / seconds;
    }
    const struct sample s = statistics(rate, b->repeats);
    char name[48];
    const int len = snprintf(name, sizeof(name), "%s%u", n_prompt ? "pp" : "tg", n_prompt + n_gen);
    if (b->depth) (void)snprintf(name + len, sizeof(name) - (size_t)len, " @ d%u", b->depth);
    if (b->json) json_row(b, name, n_prompt, n_gen, &s);
    else print_row(b, name, &s);
    return ISO_OK;
}

static enum iso_err bench_main(struct bench *b, const char *path)
{
    const uint32_t longest = b->depth + ISO_MAX(b->n_prompt, b->n_gen) + 1;
    const struct iso_engine_options o = {.model_path = path, .device = b->model.device, .isa = b->model.isa,
                                         .n_threads = b->model.threads, .n_ctx = longest,
                                         .n_batch = b->batch, .no_tokenizer = true};
    ISO_TRY(iso_engine_open(&b->engine, &o));
    ISO_TRY(iso_session_new(&b->session, b->engine, 0));
    const uint32_t n_vocab = iso_engine_info(b->engine)->n_vocab;
    uint64_t x = 88172645463325252ULL;
    b->ids = iso_xalloc(longest, sizeof(*b->ids));
    for (uint32_t i = 0; i < longest; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        b->ids[i] = (int32_t)(x % n_vocab);
    }
    if (!b->json) {
        (void)printf("| %-28s | %10s | %11s | %-10s | %7s | %14s | %17s |\n", "model", "size", "params",
                     "backend", "threads", "test", "t/s");
        (void)printf("| %s | %s: | %s: | %s | %s: | %s: | %s: |\n", "----------------------------", "---------",
                     "----------", "----------", "------", "-------------", "----------------");
    }
    ISO_TRY(test(b, b->n_prompt, 0));
    return test(b, 0, b->n_gen);
}

int iso_cmd_bench(int argc, char **argv)
{
    struct bench b = {.n_prompt = 512, .n_gen = 128, .repeats = 5, .rows = json_array()};
    const struct iso_opt options[] = {
        {"prompt", 'p', ISO_OPT_U32, &b.n_prompt, "N", "tokens of the prefill test, 0 for none (default 512)", 0, 1e7},
        {"gen", 'n', ISO_OPT_U32, &b.n_gen, "N", "tokens of the decode test, 0 for none (default 128)", 0, 1e7},
        {"depth", 'd', ISO_OPT_U32, &b.depth, "N", "tokens in the context before either (default 0)", 0, 1e7},
        {"repeats", 'r', ISO_OPT_U32, &b.repeats, "N", "timed passes (default 5)", 1, MAX_REPEATS},
        ISO_BATCH_OPTION('b', b.batch),
        {"json", 0, ISO_OPT_FLAG, &b.json, NULL, "rows as JSON", 0, 0},
        ISO_MODEL_OPTIONS(b.model),
        {0},
    };
    const struct iso_usage usage = {"isobit bench MODEL [options]",
                                    "Tokens per second of prefill (pp) and decode (tg): mean and deviation over repeats,\n"
                                    "behind a warm-up pass.",
                                    options, NULL};
    const char *args[1] = {0};
    bool help = false;
    enum iso_err err = iso_options_parse(args, 1, 1, &help, argc, argv, &usage);
    if (err == ISO_OK && !help) err = bench_main(&b, args[0]);
    if (err == ISO_OK && !help && b.json) {
        (void)json_dumpf(b.rows, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(8));
        (void)putchar('\n');
    }
    json_decref(b.rows);
    free(b.ids);
    iso_session_free(b.session);
    iso_engine_close(b.engine);
    return err == ISO_OK ? 0 : iso_cli_fail(err);
}
