/* SPDX-License-Identifier: MIT
 * options.c - parses flags from a table and prints help from the same table. */
#include "cli/options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/interrupt.h"

static const char *g_default_isa;

void iso_options_default_isa(const char *level)
{
    g_default_isa = level;
}

void iso_usage_print(const struct iso_usage *u)
{
    (void)printf("usage: %s\n\n%s\n\n", u->line, u->what);
    for (const struct iso_opt *o = u->options; o->name; o++) {
        char left[64];
        const char letter[] = {'-', o->letter ? o->letter : ' ', ',', '\0'};
        (void)snprintf(left, sizeof(left), "%s --%s %s", o->letter ? letter : "   ", o->name,
                       o->arg ? o->arg : "");
        (void)printf("  %-26s %s\n", left, o->help);
    }
    (void)printf("  %-26s %s\n", "-h, --help", "this text");
    if (u->notes) (void)printf("\n%s\n", u->notes);
}

static enum iso_err parse_number(double *out, const struct iso_opt *o, const char *text)
{
    char *end = NULL;
    errno = 0;
    const double v = strtod(text, &end);
    if (end == text || *end != '\0' || errno != 0 || !isfinite(v)) {
        ISO_FAIL(ISO_E_ARG, "--%s '%s' is not a number", o->name, text);
    }
    if (o->kind != ISO_OPT_F32 && (v != floor(v) || v < 0 || strpbrk(text, ".eExX"))) {
        ISO_FAIL(ISO_E_ARG, "--%s '%s' is not a whole number", o->name, text);
    }
    if ((o->min != 0 || o->max != 0) && (v < o->min || v > o->max)) {
        ISO_FAIL(ISO_E_ARG, "--%s %s: allowed %.10g to %.10g", o->name, text, o->min, o->max);
    }
    *out = v;
    return ISO_OK;
}

static enum iso_err set_value(const struct iso_opt *o, const char *text)
{
    double v = 0;
    switch (o->kind) {
    case ISO_OPT_FLAG: *(bool *)o->value = true; return ISO_OK;
    case ISO_OPT_STRING: *(const char **)o->value = text; return ISO_OK;
    case ISO_OPT_U32:
        ISO_TRY(parse_number(&v, o, text));
        if (v > UINT32_MAX) ISO_FAIL(ISO_E_ARG, "--%s %s is too large", o->name, text);
        *(uint32_t *)o->value = (uint32_t)v;
        return ISO_OK;
    case ISO_OPT_U64: {
        ISO_TRY(parse_number(&v, o, text));
        errno = 0;
        const unsigned long long u = strtoull(text, NULL, 10);
        if (errno) ISO_FAIL(ISO_E_ARG, "--%s %s is too large", o->name, text);
        *(uint64_t *)o->value = u;
        return ISO_OK;
    }
    case ISO_OPT_F32:
        ISO_TRY(parse_number(&v, o, text));
        *(float *)o->value = (float)v;
        return ISO_OK;
    default: return ISO_OK;
    }
}

/* The row for "--name", "--name=value" or "-x", or NULL. *value points behind "=". */
static const struct iso_opt *find(const struct iso_opt *options, const char *arg, const char **value)
{
    *value = NULL;
    if (arg[1] != '-') {
        for (const struct iso_opt *o = options; o->name; o++) {
            if (o->letter && o->letter == arg[1] && arg[2] == '\0') return o;
        }
        return NULL;
    }
    const char *equals = strchr(arg, '=');
    const size_t len = equals ? (size_t)(equals - arg) - 2 : strlen(arg) - 2;
    for (const struct iso_opt *o = options; o->name; o++) {
        if (strlen(o->name) == len && memcmp(o->name, arg + 2, len) == 0) {
            *value = equals ? equals + 1 : NULL;
            return o;
        }
    }
    return NULL;
}

static enum iso_err parse_one(int *i, int argc, char **argv, const struct iso_usage *u)
{
    const char *value = NULL;
    const struct iso_opt *o = find(u->options, argv[*i], &value);
    if (o == NULL) ISO_FAIL(ISO_E_ARG, "unknown option %s (usage: %s)", argv[*i], u->line);
    if (o->kind == ISO_OPT_FLAG) {
        if (value) ISO_FAIL(ISO_E_ARG, "--%s takes no value", o->name);
    } else if (value == NULL) {
        if (*i + 1 >= argc) ISO_FAIL(ISO_E_ARG, "--%s needs a value", o->name);
        value = argv[++*i];
    }
    return set_value(o, value);
}

enum iso_err iso_options_parse(const char **args, size_t min_args, size_t max_args, bool *help,
                               int argc, char **argv, const struct iso_usage *usage)
{
    size_t n_args = 0;
    *help = false;
    for (const struct iso_opt *o = usage->options; o->name; o++) {
        if (strcmp(o->name, "isa") == 0) *(const char **)o->value = g_default_isa;
    }
    bool options = true;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (options && strcmp(a, "--") == 0) {
            options = false;
        } else if (options && (strcmp(a, "--help") == 0 || strcmp(a, "-h") == 0)) {
            iso_usage_print(usage);
            *help = true;
            return ISO_OK;
        } else if (options && a[0] == '-' && a[1] != '\0') {
            ISO_TRY(parse_one(&i, argc, argv, usage));
        } else if (n_args == max_args) {
            ISO_FAIL(ISO_E_ARG, "unexpected argument '%s' (usage: %s)", a, usage->line);
        } else {
            args[n_args++] = a;
        }
    }
    if (n_args < min_args) ISO_FAIL(ISO_E_ARG, "usage: %s", usage->line);
    return ISO_OK;
}

int iso_cli_fail(enum iso_err err)
{
    (void)fflush(stdout);
    (void)fprintf(stderr, "isobit: %s: %s\n", iso_err_str(err), iso_err_message());
    if (err == ISO_E_ARG) return 2;
    return err == ISO_E_CANCELLED ? 130 : 1;
}

enum iso_err iso_cli_read(struct iso_buf *b, const char *path, size_t max)
{
    iso_buf_init(b, max);
    const bool standard = strcmp(path, "-") == 0;
    FILE *f = standard ? stdin : fopen(path, "rbe");
    if (f == NULL) ISO_FAIL(ISO_E_IO, "%s: %s", path, strerror(errno));
    char piece[65536];
    enum iso_err err = ISO_OK;
    size_t n = 0;
    while (err == ISO_OK && (n = fread(piece, 1, sizeof(piece), f)) > 0) {
        err = iso_buf_append(b, piece, n);
    }
    const bool bad = ferror(f) != 0;
    if (!standard) (void)fclose(f);
    if (err != ISO_OK) ISO_FAIL(err, "%s is longer than %zu bytes", path, max);
    if (bad) ISO_FAIL(ISO_E_IO, "%s: read error", path);
    return ISO_OK;
}

#define DRAW_EVERY_NS 100000000 /* 0.1 s */

static bool draw(void *arg, uint64_t done, uint64_t total)
{
    struct iso_bar *bar = arg;
    if (iso_interrupted()) return true;
    const int64_t now = iso_clock_ns();
    if (!isatty(STDERR_FILENO) || (now - bar->drawn_ns < DRAW_EVERY_NS && done < total)) return false;
    bar->drawn_ns = now;
    if (now - bar->started_ns < 3 * DRAW_EVERY_NS) return false; /* short work shows nothing */
    bar->drawn = true;
    char fill[31];
    const unsigned n = total ? (unsigned)(done * 30 / total) : 0;
    for (unsigned i = 0; i < 30; i++) fill[i] = i < n ? '#' : '.';
    fill[30] = '\0';
    (void)fprintf(stderr, "\r%s [%s] %3u %%", bar->what, fill,
                  total ? (unsigned)(done * 100 / total) : 0);
    return false;
}

struct iso_progress iso_bar_start(struct iso_bar *bar, const char *what)
{
    *bar = (struct iso_bar){.what = what, .started_ns = iso_clock_ns()};
    return (struct iso_progress){draw, bar};
}

void iso_bar_end(struct iso_bar *bar)
{
    if (bar->drawn) (void)fprintf(stderr, "\r\033[K");
    bar->drawn = false;
}

const char *iso_cli_bytes(char out[16], uint64_t n)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)n;
    size_t i = 0;
    for (; v >= 1024 && i < 4; i++) v /= 1024;
    (void)snprintf(out, 16, i ? "%.1f %s" : "%.0f %s", v, unit[i]);
    return out;
}
