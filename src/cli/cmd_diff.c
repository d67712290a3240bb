/* SPDX-License-Identifier: MIT
 * cmd_diff.c - `isobit diff`: the first tensor, position and element at which two runs differ. */
#include <stdio.h>

#include "cli/commands.h"
#include "cli/diff.h"
#include "cli/ids.h"
#include "cli/options.h"
#include "engine/engine.h"

#define DEFAULT_CHUNK 64 /* positions per step: two engines' logits of them must fit into memory */

struct diff {
    struct iso_diff_options o;
    struct iso_diff_shape shape;
    struct iso_diff_result result;
    struct iso_ids ids;
    uint32_t n;
    bool json;
};

static enum iso_err diff_main(struct diff *d, const char *const args[4])
{
    d->o.spec[0] = args[0];
    d->o.spec[1] = args[1];
    d->o.model_path = args[2];
    ISO_TRY(iso_ids_read(&d->ids, args[3]));
    if (d->n > 0 && d->n < d->ids.n) d->ids.n = d->n;
    d->o.ids = d->ids.id;
    d->o.n = d->ids.n;
    if (d->o.chunk == 0) d->o.chunk = DEFAULT_CHUNK;
    ISO_TRY(iso_diff_shape_init(&d->shape, d->o.model_path));
    ISO_TRY(iso_diff_run(&d->result, &d->shape, &d->o));
    if (!d->json) {
        iso_diff_print(&d->result, &d->shape, &d->o);
        return ISO_OK;
    }
    json_t *j = iso_diff_json(&d->result, &d->shape, &d->o);
    const int bad = json_dumpf(j, stdout, JSON_INDENT(2));
    (void)fputc('\n', stdout);
    json_decref(j);
    if (bad) ISO_FAIL(ISO_E_IO, "the result could not be written");
    return ISO_OK;
}

int iso_cmd_diff(int argc, char **argv)
{
    struct diff d = {0};
    const struct iso_opt options[] = {
        {"n", 'n', ISO_OPT_U32, &d.n, "N", "only the first N ids", 1, 1e9},
        {"chunk", 0, ISO_OPT_U32, &d.o.chunk, "N", "positions per step of a backend (default: 64)", 1, ISO_MAX_BATCH},
        {"threads", 't', ISO_OPT_U32, &d.o.threads, "N", "threads of each backend (default: all processors)", 1, 256},
        {"isa", 0, ISO_OPT_STRING, &d.o.isa, "LEVEL", "level of a \"cpu\" that names none (default: auto)", 0, 0},
        {"peer", 0, ISO_OPT_STRING, &d.o.remote.peer, "NODE", "the producer must be this node", 0, 0},
        {"dir", 0, ISO_OPT_STRING, &d.o.remote.dir, "DIR", "node directory with keys (see isobit keys)", 0, 0},
        {"audit", 0, ISO_OPT_U32, &d.o.remote.audit, "K", "audit K positions; windows then send every page", 0, 4096},
        {"deadline", 0, ISO_OPT_U32, &d.o.remote.deadline_s, "S", "seconds for the hand-off (default 600)", 1, 86400},
        {"json", 0, ISO_OPT_FLAG, &d.json, NULL, "JSON instead of text", 0, 0},
        {0},
    };
    const struct iso_usage usage = {
        "isobit diff A B MODEL IDS [options]",
        "Compares two runs of the ids bit by bit, boundary by boundary in the order of the graph, then the\n"
        "KV pages, and names the first tensor, position and element that differ and how far that spread.\n"
        "A and B are each one of\n"
        "  cpu, cpu:ref, cpu:avx2, cuda:generic, ...  a backend of this machine, with or without its level\n"
        "  HOST:PORT                                  a producer: the pages that it sends, and nothing else\n"
        "  DIR                                        a folder written by isobit digest --boundaries DIR",
        options,
        "Exit status: 0 equal, 1 different, 2 wrong use or another error, 130 interrupted.\n"
        "Backends compute in lock step and dumps are read row by row: nothing of a run is kept but its pages.\n"
        "In chunks, \"first\" is the first in the order of the graph, whichever chunk it is in."};
    const char *args[4] = {0};
    bool help = false;
    enum iso_err err = iso_options_parse(args, 4, 4, &help, argc, argv, &usage);
    if (err == ISO_OK && help) return 0;
    if (err == ISO_OK) err = diff_main(&d, args);
    int status = 0;
    if (err != ISO_OK) status = iso_cli_fail(err) == 130 ? 130 : 2;
    else if (!iso_diff_equal(&d.result)) status = 1;
    iso_diff_result_deinit(&d.result);
    iso_diff_shape_deinit(&d.shape);
    iso_ids_free(&d.ids);
    return status;
}
