/* SPDX-License-Identifier: MIT
 * cmd_produce.c - `isobit produce`: prefills prompts for enrolled machines until it is stopped. */
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "cli/commands.h"
#include "cli/generate.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/remote.h"
#include "engine/engine.h"
#include "handoff/producer.h"

#define WATCH_NS 50000000 /* how soon a signal is noticed: 50 ms */
#define METAL_BATCH 2048u /* rows at most: a producer makes shorter steps where layers take long */
#define MIB ((size_t)1 << 20)

struct produce {
    struct iso_model_options model;
    const char *listen, *dir, *receipts, *timeline, *trace;
    uint32_t max_seconds, max_connections, peer_transfers, sessions, batch, ring_mib;
    uint64_t peer_tokens;
    bool json, no_audit, strict_template;

    iso_engine *engine;
    struct iso_node *node;
    struct iso_producer *producer;
};

/* A signal handler may not stop the producer itself, so this thread looks for the signal. */
static void *watch(void *arg)
{
    struct produce *p = arg;
    const struct timespec t = {.tv_nsec = WATCH_NS};
    while (!iso_interrupted()) (void)nanosleep(&t, NULL);
    iso_producer_stop(p->producer);
    return NULL;
}

static enum iso_err open_node(struct produce *p)
{
    struct iso_buf dir;
    iso_buf_init(&dir, 4096);
    enum iso_err err = p->dir ? iso_buf_puts(&dir, p->dir) : iso_node_default_dir(&dir);
    if (err == ISO_OK) err = iso_node_open(&p->node, (const char *)dir.data);
    iso_buf_deinit(&dir);
    ISO_TRY(err);
    return iso_node_ready(p->node);
}

/* One line when it is ready: scripts read the port from it. */
static enum iso_err announce(const struct produce *p)
{
    struct iso_identity id;
    ISO_TRY(iso_engine_identity(&id, p->engine, NULL));
    const struct iso_engine_info *i = iso_engine_info(p->engine);
    const uint64_t ring = iso_producer_ring_bytes(p->producer);
    char weights[ISO_DIGEST_HEX], kernels[ISO_DIGEST_HEX];
    iso_digest_hex(weights, &id.weights);
    iso_digest_hex(kernels, &i->kernels);
    if (p->json) {
        json_t *j = json_pack("{s:s, s:i, s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:I}", "state", "ready", "port",
                              (int)iso_producer_port(p->producer), "node", iso_node_name(p->node),
                              "device", i->device, "isa", i->isa, "arithmetic", id.arithmetic, "weights",
                              weights, "kernels", kernels, "batch", (int)i->n_batch, "ring_bytes",
                              (json_int_t)ring);
        (void)json_dumpf(j, stdout, JSON_COMPACT);
        (void)putchar('\n');
        json_decref(j);
    } else {
        (void)printf("ready: node %s, port %u, %s %s, %s, weights %.16s, kernels %.16s",
                     iso_node_name(p->node), iso_producer_port(p->producer), i->device, i->isa,
                     id.arithmetic, weights, kernels);
        char text[16];
        if (ring > 0) (void)printf(", ring %s per hand-off", iso_cli_bytes(text, ring));
        (void)putchar('\n');
    }
    (void)fflush(stdout);
    return ISO_OK;
}

static enum iso_err serve(struct produce *p)
{
    pthread_t watcher;
    ISO_TRY(announce(p));
    if (pthread_create(&watcher, NULL, watch, p) != 0) ISO_FAIL(ISO_E_IO, "no thread to watch signals");
    const enum iso_err err = iso_producer_run(p->producer);
    /* Without a signal the listening socket failed; the watcher ends with the process then. */
    if (iso_interrupted()) (void)pthread_join(watcher, NULL);
    else (void)pthread_detach(watcher);
    struct iso_producer_stats s;
    iso_producer_stats(p->producer, &s);
    (void)fprintf(stderr, "served %llu, refused %llu, failed %llu; %llu positions, %llu bytes\n",
                  (unsigned long long)s.served, (unsigned long long)s.refused,
                  (unsigned long long)s.failed, (unsigned long long)s.tokens,
                  (unsigned long long)s.bytes);
    return err;
}

/* A producer on Metal may begin with longer steps than the engine's default: it adapts them. */
static uint32_t batch_of(const struct produce *p)
{
    const bool metal = p->model.device != NULL && strcmp(p->model.device, "metal") == 0;
    return p->batch == 0 && metal ? METAL_BATCH : p->batch;
}

static enum iso_err produce_main(struct produce *p, const char *model)
{
    const struct iso_engine_options o = {.model_path = model, .device = p->model.device, .isa = p->model.isa,
                                         .n_threads = p->model.threads, .n_ctx = p->model.ctx,
                                         .n_sessions = p->sessions, .n_batch = batch_of(p),
                                         .keep_expired = !p->no_audit,
                                         .tokenizer_optional = true};
    ISO_TRY(open_node(p));
    ISO_TRY(iso_plan_print(&o));
    ISO_TRY(iso_engine_open(&p->engine, &o));
    struct iso_bar bar;
    const struct iso_progress progress = iso_bar_start(&bar, "identity of the weights");
    struct iso_identity id;
    const enum iso_err err = iso_engine_identity(&id, p->engine, &progress);
    iso_bar_end(&bar);
    ISO_TRY(err);
    const struct iso_producer_options options = {
        .listen = p->listen,
        .receipts_path = p->receipts,
        .timeline_path = p->timeline,
        .trace_path = p->trace,
        .ring_bytes = p->ring_mib * MIB,
        .build = iso_cli_commit(),
        .max_deadline_ms = p->max_seconds * 1000,
        .max_connections = p->max_connections,
        .peer_transfers = p->peer_transfers,
        .peer_tokens_min = p->peer_tokens,
        .strict_template = p->strict_template,
        .keep_expired = !p->no_audit,
    };
    ISO_TRY(iso_producer_new(&p->producer, p->engine, p->node, &options, NULL));
    return serve(p);
}

int iso_cmd_produce(int argc, char **argv)
{
    struct produce p = {.sessions = 2};
    const struct iso_opt options[] = {
        {"listen", 'l', ISO_OPT_STRING, &p.listen, "HOST:PORT", "where to listen (default 0.0.0.0:29400; port 0: any)", 0, 0},
        {"dir", 0, ISO_OPT_STRING, &p.dir, "DIR", "node directory with keys (see isobit keys)", 0, 0},
        {"sessions", 0, ISO_OPT_U32, &p.sessions, "N", "prompts held at once (default 2)", 1, 64},
        {"no-audit", 0, ISO_OPT_FLAG, &p.no_audit, NULL, "drop expired window pages: less memory, audits are refused", 0, 0},
        {"max-seconds", 0, ISO_OPT_U32, &p.max_seconds, "S", "longest hand-off (default 600)", 1, 86400},
        {"max-connections", 0, ISO_OPT_U32, &p.max_connections, "N", "connections at once (default 16)", 1, 1024},
        {"peer-transfers", 0, ISO_OPT_U32, &p.peer_transfers, "N", "hand-offs of one machine at once (default 4)", 1, 1024},
        {"peer-tokens", 0, ISO_OPT_U64, &p.peer_tokens, "N", "prompt tokens of one machine per minute (default: no limit)", 0, 0},
        {"receipts", 0, ISO_OPT_STRING, &p.receipts, "FILE", "where receipts are appended (default: node directory)", 0, 0},
        {"batch", 0, ISO_OPT_U32, &p.batch, "N", "most rows of a step (default: 512, on a GPU 2048)", 1, ISO_MAX_BATCH},
        {"ring-mib", 0, ISO_OPT_U32, &p.ring_mib, "N", "pinned host memory of a hand-off, on a GPU (default 8)", 1, 4096},
        {"timeline", 0, ISO_OPT_STRING, &p.timeline, "FILE", "write when the last hand-off computed, copied and sent, as JSON", 0, 0},
        {"trace", 0, ISO_OPT_STRING, &p.trace, "FILE", "the same as Chrome trace events (Perfetto, chrome://tracing)", 0, 0},
        {"strict-template", 0, ISO_OPT_FLAG, &p.strict_template, NULL, "refuse consumers with another chat template", 0, 0},
        ISO_MODEL_OPTIONS(p.model),
        {"json", 0, ISO_OPT_FLAG, &p.json, NULL, "the ready line as JSON", 0, 0},
        {0},
    };
    const struct iso_usage usage = {
        "isobit produce MODEL [--listen HOST:PORT] [options]",
        "Computes prompts for enrolled machines and streams their KV pages. Prints one line when it is ready.",
        options, "SIGINT or SIGTERM end it; running hand-offs get a code."};
    const char *args[1] = {0};
    bool help = false;
    enum iso_err err = iso_options_parse(args, 1, 1, &help, argc, argv, &usage);
    if (p.listen == NULL) p.listen = "0.0.0.0:29400";
    if (err == ISO_OK && !help) err = produce_main(&p, args[0]);
    iso_producer_free(p.producer);
    iso_engine_close(p.engine);
    iso_node_free(p.node);
    return err == ISO_OK ? 0 : iso_cli_fail(err);
}
