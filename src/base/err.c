/* SPDX-License-Identifier: MIT
 * err.c - error texts and the per-thread detail. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char g_detail[1024];
static _Thread_local size_t g_message_at;

const char *iso_err_str(enum iso_err e)
{
    static const char *const text[ISO_ERR_COUNT] = {
#define X(name, str) [ISO_##name] = (str),
        ISO_ERR_MAP(X)
#undef X
    };
    return (unsigned)e < ISO_ERR_COUNT ? text[e] : "unknown error";
}

const char *iso_err_detail(void)
{
    return g_detail;
}

const char *iso_err_message(void)
{
    return g_detail + g_message_at;
}

enum iso_err iso_err_raise(enum iso_err e, const char *file, int line, const char *fmt, ...)
{
    /* Formatted aside first: an argument may be the previous detail itself. */
    char message[sizeof(g_detail)];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(message, sizeof(message), fmt, ap);
    va_end(ap);
    int n = snprintf(g_detail, sizeof(g_detail), "%s:%d: %s: ", file, line, iso_err_str(e));
    if (n < 0 || (size_t)n >= sizeof(g_detail)) n = 0;
    g_message_at = (size_t)n;
    const size_t room = sizeof(g_detail) - (size_t)n - 1;
    const size_t len = strnlen(message, room);
    memcpy(g_detail + n, message, len);
    g_detail[(size_t)n + len] = '\0';
    return e;
}

enum iso_err iso_err_adopt(enum iso_err e, const char *detail)
{
    const size_t len = strnlen(detail, sizeof(g_detail) - 1);
    memmove(g_detail, detail, len);
    g_detail[len] = '\0';
    /* The text of the code is where iso_err_raise() put it; other details are messages as a whole. */
    char mark[128];
    const int n = snprintf(mark, sizeof(mark), ": %s: ", iso_err_str(e));
    const char *at = n > 0 && (size_t)n < sizeof(mark) ? strstr(g_detail, mark) : NULL;
    g_message_at = at != NULL ? (size_t)(at - g_detail) + (size_t)n : 0;
    return e;
}
