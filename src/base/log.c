/* SPDX-License-Identifier: MIT
 * log.c - writes log lines to stderr, one write(2) each. */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static _Atomic int g_level = ISO_LOG_WARN;
static const char *const level_name[] = {"error", "warn", "info", "debug", "trace"};

void iso_log_set_level(enum iso_log_level level)
{
    atomic_store_explicit(&g_level, (int)level, memory_order_relaxed);
}

enum iso_err iso_log_parse_level(enum iso_log_level *level, const char *name)
{
    for (size_t i = 0; i < sizeof(level_name) / sizeof(level_name[0]); i++) {
        if (strcmp(name, level_name[i]) == 0) {
            *level = (enum iso_log_level)i;
            return ISO_OK;
        }
    }
    ISO_FAIL(ISO_E_ARG, "log level '%s': error, warn, info, debug or trace", name);
}

void iso_log(enum iso_log_level level, const char *subsystem, const char *fmt, ...)
{
    if ((int)level > atomic_load_explicit(&g_level, memory_order_relaxed)) return;
    char line[1024];
    int n = snprintf(line, sizeof(line), "%s %s ", level_name[level], subsystem);
    if (n < 0) return;
    va_list ap;
    va_start(ap, fmt);
    const int m = vsnprintf(line + n, sizeof(line) - (size_t)n - 1, fmt, ap);
    va_end(ap);
    if (m < 0) return;
    size_t len = strlen(line);
    line[len++] = '\n';
    if (write(STDERR_FILENO, line, len) < 0) return; /* nowhere left to report to */
}
