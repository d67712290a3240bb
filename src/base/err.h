/* SPDX-License-Identifier: MIT
 * err.h - the one error convention of the project.
 *
 * Every function that can fail returns enum iso_err: ISO_OK (0) or a code below.
 * The place that DETECTS the error calls ISO_FAIL() once, which records file,
 * line and a message with the values that explain it; callers only forward with
 * ISO_TRY(). Only cli/ prints a message.
 */
#ifndef ISO_BASE_ERR_H
#define ISO_BASE_ERR_H

#define ISO_ERR_MAP(X)                                                                             \
    X(OK, "success")                                                                               \
    X(E_ARG, "invalid argument")                                                                   \
    X(E_NOMEM, "out of memory")                                                                    \
    X(E_IO, "input/output error")                                                                  \
    X(E_FORMAT, "malformed file or message")                                                       \
    X(E_UNSUPPORTED, "not supported")                                                              \
    X(E_LIMIT, "limit exceeded")                                                                   \
    X(E_CONTEXT, "context is full")                                                                \
    X(E_NUMERIC, "value outside the domain of exact-1")                                            \
    X(E_SELF_CHECK, "backend failed its self-check")                                               \
    X(E_GPU, "GPU runtime error")                                                                  \
    X(E_PROTO, "peer broke the protocol")                                                          \
    X(E_AUTH, "peer not authenticated")                                                            \
    X(E_REFUSED, "refused")                                                                        \
    X(E_TIMEOUT, "timed out")                                                                      \
    X(E_CANCELLED, "cancelled")                                                                    \
    X(E_TEMPLATE, "chat template error")                                                           \
    X(E_AGAIN, "not ready, call again")

enum iso_err {
#define X(name, text) ISO_##name,
    ISO_ERR_MAP(X)
#undef X
        ISO_ERR_COUNT
};

#ifdef __cplusplus
extern "C" { /* .cu files are C++ and raise too */
#endif

#define ISO_NODISCARD __attribute__((warn_unused_result))
#define ISO_PRINTF(fmt_index, first) __attribute__((format(printf, fmt_index, first)))

/* Static text for a code; never NULL. */
const char *iso_err_str(enum iso_err e);

/* Detail of the last ISO_FAIL() on this thread; valid until the next one. */
const char *iso_err_detail(void);

/* Detail without the leading "file:line: text: ", for people. */
const char *iso_err_message(void);

/* Records the detail on this thread and returns e. Use ISO_FAIL. */
enum iso_err iso_err_raise(enum iso_err e, const char *file, int line, const char *fmt, ...)
    ISO_PRINTF(4, 5);

/* Puts an error that another thread detected on this thread; returns e. */
enum iso_err iso_err_adopt(enum iso_err e, const char *detail);

#ifdef __cplusplus
}
#endif

#define ISO_FAIL(code, ...) return iso_err_raise((code), __FILE__, __LINE__, __VA_ARGS__)

#define ISO_TRY(expr)                                                                              \
    do {                                                                                           \
        const enum iso_err iso_try_err_ = (expr);                                                  \
        if (iso_try_err_ != ISO_OK) return iso_try_err_;                                           \
    } while (0)

/* Like ISO_TRY, for functions that free at a label "out" and return a variable "err". */
#define ISO_TRY_OUT(expr)                                                                          \
    do {                                                                                           \
        err = (expr);                                                                              \
        if (err != ISO_OK) goto out;                                                               \
    } while (0)

/* Like ISO_FAIL, for functions with an "out" label. */
#define ISO_FAIL_OUT(code, ...)                                                                    \
    do {                                                                                           \
        err = iso_err_raise((code), __FILE__, __LINE__, __VA_ARGS__);                              \
        goto out;                                                                                  \
    } while (0)

#endif
