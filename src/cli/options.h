/* SPDX-License-Identifier: MIT
 * options.h - one table per sub-command says its flags; parsing and --help read it. */
#ifndef ISO_CLI_OPTIONS_H
#define ISO_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "isobit.h"

enum iso_opt_kind {
    ISO_OPT_FLAG,   /* bool *, no argument */
    ISO_OPT_STRING, /* const char ** */
    ISO_OPT_U32,    /* uint32_t *, within [min, max] */
    ISO_OPT_U64,    /* uint64_t * */
    ISO_OPT_F32,    /* float *, within [min, max] */
};

struct iso_opt {
    const char *name; /* without dashes; NULL ends the table */
    char letter;      /* 0 for none */
    enum iso_opt_kind kind;
    void *value;
    const char *arg;  /* name of the argument in the help; NULL for flags */
    const char *help;
    double min, max;  /* numbers; both 0: no limits */
};

struct iso_usage {
    const char *line;       /* "isobit run MODEL [options]" */
    const char *what;       /* one or two sentences */
    const struct iso_opt *options;
    const char *notes;      /* printed behind the options, or NULL */
};

/* Parses argv[1..]: options in any place, "--" ends them. What remains, min_args to max_args words, goes
 * to args [max_args]. --help prints to stdout and sets *help; nothing else is then checked.
 * Errors: ISO_E_ARG names the option, the value and what is allowed, or shows the usage. */
enum iso_err iso_options_parse(const char **args, size_t min_args, size_t max_args, bool *help,
                               int argc, char **argv, const struct iso_usage *usage) ISO_NODISCARD;

/* Value of --isa where it is not given: from ISO_CPU_MASK, read once in main(). */
void iso_options_default_isa(const char *level);

void iso_usage_print(const struct iso_usage *usage);

/* Flags that every command that loads a model has, as rows for its table:
 *     struct iso_model_options m = {0};
 *     const struct iso_opt options[] = {ISO_MODEL_OPTIONS(m), ..., {0}}; */
struct iso_model_options {
    uint32_t threads, ctx;
    const char *device, *isa;
};
#define ISO_MODEL_OPTIONS(m)                                                                       \
    {"threads", 't', ISO_OPT_U32, &(m).threads, "N", "threads (default: all processors)", 1, 256}, \
    {"device", 0, ISO_OPT_STRING, &(m).device, "NAME", "cpu (default), cuda or metal", 0, 0},      \
    {"isa", 0, ISO_OPT_STRING, &(m).isa, "LEVEL",                                                  \
     "auto; cpu: ref, avx2, avx512, vnni, neon; cuda: sm90, generic; metal: serial", 0, 0},        \
    {"ctx", 'c', ISO_OPT_U32, &(m).ctx, "N", "context in tokens (default: the model's, at most 4096)",\
     1, 16777216}

/* The most rows of a step, for commands that leave the default to the engine. */
#define ISO_BATCH_OPTION(letter, rows)                                                             \
    {"batch", letter, ISO_OPT_U32, &(rows), "N",                                                   \
     "most rows of a step (default 512, with cuda 2048); fewer need less memory", 1, ISO_MAX_BATCH}

/* Prints "isobit: message" to stderr and returns the exit status for an error (2 for wrong use, 130 for
 * a cancelled operation, else 1). */
int iso_cli_fail(enum iso_err err);

/* Reads a whole file, or stdin for "-", of at most max bytes into b (initialised here).
 * Errors: ISO_E_IO, ISO_E_LIMIT; b is then empty but must still be freed. */
enum iso_err iso_cli_read(struct iso_buf *b, const char *path, size_t max) ISO_NODISCARD;

/* A progress bar on stderr when that is a terminal, nothing otherwise: pass the result's fn and arg as
 * struct iso_progress. It also stops the operation when the user interrupted (see interrupt.h). */
struct iso_bar {
    const char *what;
    int64_t started_ns, drawn_ns;
    bool drawn;
};
struct iso_progress iso_bar_start(struct iso_bar *bar, const char *what);
void iso_bar_end(struct iso_bar *bar);

/* "1.5 GiB", "3.2 MiB", ... into out [16]; returns out. */
const char *iso_cli_bytes(char out[16], uint64_t n);

#endif
