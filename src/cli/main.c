/* SPDX-License-Identifier: MIT
 * main.c - the isobit program: picks a sub-command. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arith/prim.h"
#include "base/log.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/options.h"

struct command {
    const char *name;
    const char *text;
    int (*run)(int argc, char **argv);
};

static const struct command commands[] = {
#define X(name, text) {#name, text, iso_cmd_##name},
    ISO_COMMAND_MAP(X)
#undef X
};

const char *iso_cli_commit(void)
{
    return ISO_COMMIT;
}

static void print_help(FILE *f)
{
    (void)fprintf(f, "isobit - one LLM inference on two machines, with the same bits on each\n\n"
                     "usage: isobit COMMAND [options]; isobit COMMAND --help\n\n");
    for (size_t i = 0; i < ISO_COUNT(commands); i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "%s", commands[i].name);
        for (char *p = name; *p; p++) {
            if (*p == '_') *p = '-';
        }
        (void)fprintf(f, "  %-15s %s\n", name, commands[i].text);
    }
    (void)fprintf(f, "\n  --version       version, commit and arithmetic\n"
                     "Environment: ISO_LOG=error|warn|info|debug|trace, ISO_CPU_MASK=LEVEL.\n");
}

/* "verify-receipt" on the command line is verify_receipt in the table. */
static bool same_name(const char *name, const char *arg)
{
    size_t i = 0;
    for (; name[i] && arg[i]; i++) {
        if (name[i] != (arg[i] == '-' ? '_' : arg[i])) return false;
    }
    return name[i] == arg[i];
}

int main(int argc, char **argv)
{
    const char *level_name = getenv("ISO_LOG");
    enum iso_log_level level = ISO_LOG_WARN;
    if (level_name && level_name[0]) {
        const enum iso_err err = iso_log_parse_level(&level, level_name);
        if (err != ISO_OK) return iso_cli_fail(err);
        iso_log_set_level(level);
    }
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        (void)printf("isobit " ISO_VERSION " (%s) %s\n", ISO_COMMIT, ISO_ARITHMETIC);
        return 0;
    }
    const char *mask = getenv("ISO_CPU_MASK");
    if (mask && mask[0]) iso_options_default_isa(mask);
    iso_interrupt_catch();
    for (size_t i = 0; i < ISO_COUNT(commands); i++) {
        if (same_name(commands[i].name, argv[1])) return commands[i].run(argc - 1, argv + 1);
    }
    (void)fprintf(stderr, "isobit: no command '%s'; isobit --help lists them\n", argv[1]);
    return 2;
}
