/* SPDX-License-Identifier: MIT
 * log.h - one line per event: level, subsystem, key=value.
 *
 * error: cannot continue this request; warn: continuing degraded; info: once per
 * process or model; debug: per request; trace: per step. User text never above debug.
 */
#ifndef ISO_BASE_LOG_H
#define ISO_BASE_LOG_H

#include "base/err.h"

enum iso_log_level { ISO_LOG_ERROR, ISO_LOG_WARN, ISO_LOG_INFO, ISO_LOG_DEBUG, ISO_LOG_TRACE };

/* Sets the highest level that is written; the default is ISO_LOG_WARN. Thread: main, at start. */
void iso_log_set_level(enum iso_log_level level);

/* Reads "error", "warn", "info", "debug" or "trace"; unknown names are ISO_E_ARG. */
enum iso_err iso_log_parse_level(enum iso_log_level *level, const char *name) ISO_NODISCARD;

/* Writes one line to stderr. Thread: any; lines do not mix. */
void iso_log(enum iso_log_level level, const char *subsystem, const char *fmt, ...)
    ISO_PRINTF(3, 4);

#endif
