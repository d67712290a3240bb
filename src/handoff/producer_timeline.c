/* SPDX-License-Identifier: MIT
 * producer_timeline.c - keeps intervals, computes what was hidden, writes JSON and Chrome traces. */
#include "handoff/producer_timeline.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

#define PATH_LEN 4096u
#define FIRST_CAP 256u

static const char *const kind_name[ISO_TIMELINE_KINDS] = {"compute", "copy", "hash", "wire"};

void iso_timeline_init(struct iso_timeline *t, bool keep)
{
    *t = (struct iso_timeline){.keep = keep};
}

void iso_timeline_deinit(struct iso_timeline *t)
{
    for (int k = 0; k < ISO_TIMELINE_KINDS; k++) free(t->at[k]);
    *t = (struct iso_timeline){0};
}

void iso_timeline_add(struct iso_timeline *t, enum iso_timeline_kind kind, const struct iso_interval *i)
{
    t->sum_ns[kind] += i->end_ns - i->start_ns;
    if (!t->keep) return;
    if (t->n[kind] == ISO_TIMELINE_MAX) {
        __atomic_fetch_add(&t->n_dropped, 1, __ATOMIC_RELAXED); /* kinds have threads of their own */
        return;
    }
    if (t->n[kind] == t->cap[kind]) {
        t->cap[kind] = t->cap[kind] ? 2 * t->cap[kind] : FIRST_CAP;
        t->at[kind] = iso_xrealloc(t->at[kind], t->cap[kind], sizeof(**t->at));
    }
    t->at[kind][t->n[kind]++] = *i;
}

/* --- summary -------------------------------------------------------------------------------------- */

struct stretch {
    int64_t start, end;
};

static int by_start(const void *a, const void *b)
{
    const struct stretch *x = a, *y = b;
    return (x->start > y->start) - (x->start < y->start);
}

/* Sorts and joins what overlaps or touches; the number left. */
static size_t join(struct stretch *s, size_t n)
{
    size_t m = 0;
    if (n > 0) qsort(s, n, sizeof(*s), by_start);
    for (size_t i = 0; i < n; i++) {
        if (m > 0 && s[i].start <= s[m - 1].end) {
            s[m - 1].end = ISO_MAX(s[m - 1].end, s[i].end);
        } else {
            s[m++] = s[i];
        }
    }
    return m;
}

/* The time in which anything of kinds [first, end) went on. Returns owned. */
static struct stretch *when(size_t *n, const struct iso_timeline *t, int first, int end)
{
    size_t total = 0;
    for (int k = first; k < end; k++) total += t->n[k];
    struct stretch *s = iso_xalloc(total + 1, sizeof(*s));
    total = 0;
    for (int k = first; k < end; k++) {
        for (size_t i = 0; i < t->n[k]; i++) {
            s[total++] = (struct stretch){t->at[k][i].start_ns, t->at[k][i].end_ns};
        }
    }
    *n = join(s, total);
    return s;
}

static int64_t length(const struct stretch *s, size_t n)
{
    int64_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += s[i].end - s[i].start;
    return sum;
}

/* What is in both lists. */
static int64_t common(const struct stretch *a, size_t n_a, const struct stretch *b, size_t n_b)
{
    int64_t sum = 0;
    for (size_t i = 0, j = 0; i < n_a && j < n_b;) {
        const int64_t start = ISO_MAX(a[i].start, b[j].start), end = ISO_MIN(a[i].end, b[j].end);
        if (end > start) sum += end - start;
        if (a[i].end < b[j].end) i++;
        else j++;
    }
    return sum;
}

static double share(int64_t part, int64_t whole)
{
    return whole > 0 ? (double)part / (double)whole : 0;
}

void iso_timeline_summarize(struct iso_timeline_summary *out, const struct iso_timeline *t)
{
    size_t n_compute = 0, n_transfer = 0;
    struct stretch *compute = when(&n_compute, t, ISO_TIMELINE_COMPUTE, ISO_TIMELINE_COMPUTE + 1);
    struct stretch *transfer = when(&n_transfer, t, ISO_TIMELINE_COMPUTE + 1, ISO_TIMELINE_KINDS);
    *out = (struct iso_timeline_summary){.prefill_ns = t->end_ns - t->begin_ns,
                                         .transfer_ns = length(transfer, n_transfer),
                                         .hidden_ns = common(compute, n_compute, transfer, n_transfer)};
    memcpy(out->sum_ns, t->sum_ns, sizeof(out->sum_ns));
    if (t->first_ns != 0) out->first_ns = t->first_ns - t->begin_ns;
    out->hidden_share = share(out->hidden_ns, out->transfer_ns);
    out->first_share = share(out->first_ns, out->prefill_ns);
    free(compute);
    free(transfer);
}

/* --- files ---------------------------------------------------------------------------------------- */

/* Nothing that JSON would have to escape: names and ids are checked where they come in, this is a net. */
static void put_text(FILE *f, const char *key, const char *text)
{
    (void)fprintf(f, "\"%s\":\"", key);
    for (; *text != '\0'; text++) {
        const bool plain = *text >= ' ' && *text < 127 && *text != '"' && *text != '\\';
        (void)fputc(plain ? *text : '?', f);
    }
    (void)fputs("\",", f);
}

static void put_about(FILE *f, const struct iso_timeline_about *a)
{
    put_text(f, "request", a->request);
    put_text(f, "peer", a->peer);
    put_text(f, "device", a->device);
    put_text(f, "isa", a->isa);
    (void)fprintf(f,
                  "\"n_tokens\":%u,\"chunk_rows\":%u,\"bytes\":%" PRIu64 ",\"ring_slots\":%u,\"ring_bytes\":%" PRIu64
                  ",",
                  a->n_tokens, a->chunk_rows, a->bytes, a->ring_slots, a->ring_bytes);
}

static double ms(int64_t ns)
{
    return (double)ns / (double)ISO_NS_PER_MS;
}

static void put_summary(FILE *f, const struct iso_timeline *t)
{
    struct iso_timeline_summary s;
    iso_timeline_summarize(&s, t);
    (void)fprintf(f, "\"summary\":{\"prefill_ms\":%.3f,", ms(s.prefill_ns));
    for (int k = 0; k < ISO_TIMELINE_KINDS; k++) {
        (void)fprintf(f, "\"%s_ms\":%.3f,", kind_name[k], ms(s.sum_ns[k]));
    }
    (void)fprintf(f,
                  "\"transfer_ms\":%.3f,\"transfer_ms_under_compute\":%.3f,\"hidden_share\":%.6f,"
                  "\"first_page_ms\":%.3f,\"first_page_share_of_prefill\":%.6f,\"dropped\":%" PRIu64 "}",
                  ms(s.transfer_ns), ms(s.hidden_ns), s.hidden_share, ms(s.first_ns), s.first_share,
                  t->n_dropped);
}

/* Microseconds behind the prefill's begin. */
static double us(const struct iso_timeline *t, int64_t ns)
{
    return (double)(ns - t->begin_ns) / 1000.0;
}

static void put_spans(FILE *f, const struct iso_timeline *t)
{
    const char *comma = "";
    (void)fputs(",\"spans\":[", f);
    for (int k = 0; k < ISO_TIMELINE_KINDS; k++) {
        for (size_t i = 0; i < t->n[k]; i++, comma = ",") {
            const struct iso_interval *v = &t->at[k][i];
            (void)fprintf(f,
                          "%s\n{\"kind\":\"%s\",\"layer\":%u,\"first\":%u,\"end\":%u,\"start_us\":%.1f,\"us\":%.1f}",
                          comma, kind_name[k], v->layer, v->first, v->end, us(t, v->start_ns),
                          (double)(v->end_ns - v->start_ns) / 1000.0);
        }
    }
    (void)fputs("]}\n", f);
}

/* One row of the viewer for each kind; "X" is an event with a duration. */
static void put_events(FILE *f, const struct iso_timeline *t)
{
    (void)fputs("\"displayTimeUnit\":\"ms\",\"traceEvents\":[", f);
    for (int k = 0; k < ISO_TIMELINE_KINDS; k++) {
        (void)fprintf(f,
                      "%s\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":%d,"
                      "\"args\":{\"name\":\"%s\"}}",
                      k ? "," : "", k, kind_name[k]);
    }
    for (int k = 0; k < ISO_TIMELINE_KINDS; k++) {
        const char *what = k == ISO_TIMELINE_COMPUTE ? "position" : "page";
        for (size_t i = 0; i < t->n[k]; i++) {
            const struct iso_interval *v = &t->at[k][i];
            (void)fprintf(f,
                          ",\n{\"name\":\"layer %u\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"ts\":%.3f,"
                          "\"dur\":%.3f,\"args\":{\"first_%s\":%u,\"end_%s\":%u}}",
                          v->layer, kind_name[k], k, us(t, v->start_ns),
                          (double)(v->end_ns - v->start_ns) / 1000.0, what, v->first, what, v->end);
        }
    }
    (void)fputs("]}\n", f);
}

enum iso_err iso_timeline_write(const struct iso_timeline *t, const struct iso_timeline_about *about,
                                const char *path, bool trace)
{
    char partial[PATH_LEN];
    const int n = snprintf(partial, sizeof(partial), "%s.partial.%ld", path, (long)getpid());
    if (n < 0 || (size_t)n >= sizeof(partial)) ISO_FAIL(ISO_E_IO, "%s: the name is too long", path);
    FILE *f = fopen(partial, "we");
    if (f == NULL) ISO_FAIL(ISO_E_IO, "%s: %s", partial, strerror(errno));
    (void)fprintf(f, "{\"format\":\"isobit-timeline-1\",");
    put_about(f, about);
    if (!trace) {
        put_summary(f, t);
        put_spans(f, t);
    } else {
        put_events(f, t);
    }
    const bool bad = ferror(f) != 0;
    if (fclose(f) != 0 || bad || rename(partial, path) != 0) {
        const int why = errno;
        (void)unlink(partial);
        ISO_FAIL(ISO_E_IO, "%s: %s", path, strerror(why));
    }
    return ISO_OK;
}
