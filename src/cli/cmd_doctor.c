/* SPDX-License-Identifier: MIT
 * cmd_doctor.c - `isobit doctor`: is this machine ready, and if not, what is in the way? */
#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/os.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "device/device.h"
#include "handoff/channel.h"
#include "kernels/shared/cpu.h"
#include "node/node.h"

struct doctor {
    bool json;
    const char *dir, *producer, *listen;
    json_t *rows; /* array of {check, state, text} */
    int n_bad;
};

enum state { GOOD, WARN, BAD };

static void row(struct doctor *d, enum state state, const char *check, const char *fmt, ...)
    ISO_PRINTF(4, 5);

static void row(struct doctor *d, enum state state, const char *check, const char *fmt, ...)
{
    static const char *const name[] = {"ok", "warn", "bad"};
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    d->n_bad += state == BAD;
    (void)json_array_append_new(d->rows, json_pack("{s:s, s:s, s:s}", "check", check, "state",
                                                   name[state], "text", text));
    if (!d->json) (void)printf("%-5s %-10s %s\n", name[state], check, text);
}

static void check_cpu(struct doctor *d)
{
    char cpu[128], levels[64] = "";
    iso_os_cpu_name(cpu, sizeof(cpu));
    for (size_t i = 0; iso_cpu_level_at(i); i++) {
        const size_t used = strlen(levels);
        (void)snprintf(levels + used, sizeof(levels) - used, "%s%s", i ? " " : "", iso_cpu_level_at(i));
    }
    row(d, GOOD, "cpu", "%s, %u processors, levels: %s", cpu, iso_os_processors(), levels);
    for (size_t i = 0; iso_cpu_level_at(i); i++) {
        struct iso_device *dev = NULL;
        const int64_t start = iso_clock_ns();
        enum iso_err err = iso_device_cpu_open(&dev, iso_cpu_level_at(i), 1);
        if (err == ISO_OK) err = dev->vt->self_check(dev);
        const double ms = (double)(iso_clock_ns() - start) / (double)ISO_NS_PER_MS;
        if (err == ISO_OK) row(d, GOOD, "kernels", "%s computes exact-1 (%.1f ms)", iso_cpu_level_at(i), ms);
        else row(d, BAD, "kernels", "%s: %s", iso_cpu_level_at(i), iso_err_message());
        if (dev) dev->vt->close(dev);
    }
}

static void check_memory(struct doctor *d)
{
    char bytes[16];
    const uint64_t have = iso_os_memory_available();
    if (have == 0) row(d, WARN, "memory", "unknown");
    else row(d, have < (1ull << 30) ? WARN : GOOD, "memory", "%s available", iso_cli_bytes(bytes, have));
}

static void check_clock(struct doctor *d)
{
    const time_t now = (time_t)iso_clock_wall_s();
    struct tm tm;
    char text[64];
    (void)gmtime_r(&now, &tm);
    (void)strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &tm);
    /* Certificates are made by machines with a clock: one before this program was written is wrong. */
    const bool early = now < 1764547200; /* 2025-12-01 */
    row(d, early ? BAD : GOOD, "clock", early ? "%s is in the past: certificates will be refused" : "%s", text);
}

static struct iso_node *check_node(struct doctor *d)
{
    struct iso_buf dir;
    struct iso_node *node = NULL;
    iso_buf_init(&dir, 4096);
    enum iso_err err = d->dir ? iso_buf_puts(&dir, d->dir) : iso_node_default_dir(&dir);
    struct stat st;
    if (err == ISO_OK && stat((const char *)dir.data, &st) != 0 && errno == ENOENT) {
        row(d, WARN, "keys", "%s does not exist: isobit keys init makes it", (const char *)dir.data);
        iso_buf_deinit(&dir);
        return NULL;
    }
    if (err == ISO_OK) err = iso_node_open(&node, (const char *)dir.data);
    if (err == ISO_OK) err = iso_node_ready(node);
    if (err != ISO_OK) {
        row(d, BAD, "keys", "%s", iso_err_message());
    } else {
        struct iso_peer *peers = NULL;
        size_t n = 0;
        if (iso_node_peers(node, &peers, &n) != ISO_OK) row(d, BAD, "keys", "%s", iso_err_message());
        else row(d, GOOD, "keys", "%s, %zu enrolled nodes", (const char *)dir.data, n);
        iso_node_peers_free(peers, n);
    }
    iso_buf_deinit(&dir);
    return node;
}

static void check_port(struct doctor *d, struct iso_node *node)
{
    if (d->listen == NULL || node == NULL) return;
    struct iso_listener *l = NULL;
    if (iso_listener_open(&l, node, d->listen) != ISO_OK) {
        row(d, BAD, "port", "%s", iso_err_message());
        return;
    }
    row(d, GOOD, "port", "%s can be listened on", d->listen);
    iso_listener_free(l);
}

static void check_link(struct doctor *d, struct iso_node *node)
{
    if (d->producer == NULL) return;
    if (node == NULL) {
        row(d, BAD, "link", "%s cannot be tried without keys", d->producer);
        return;
    }
    struct iso_channel *ch = NULL;
    const int64_t start = iso_clock_ns();
    const enum iso_err err = iso_channel_dial(&ch, node, d->producer, NULL, 5000, NULL);
    const double ms = (double)(iso_clock_ns() - start) / (double)ISO_NS_PER_MS;
    if (err == ISO_OK) {
        row(d, GOOD, "link", "%s answers as %s, connected and authenticated in %.1f ms", d->producer,
            iso_channel_peer(ch)->name, ms);
    } else {
        row(d, BAD, "link", "%s: %s", d->producer, iso_err_message());
    }
    iso_channel_free(ch);
}

int iso_cmd_doctor(int argc, char **argv)
{
    struct doctor d = {.rows = json_array()};
    const struct iso_opt options[] = {
        {"producer", 0, ISO_OPT_STRING, &d.producer, "HOST:PORT", "try the link to this producer", 0, 0},
        {"listen", 0, ISO_OPT_STRING, &d.listen, "HOST:PORT", "try to listen here", 0, 0},
        {"dir", 0, ISO_OPT_STRING, &d.dir, "DIR", "node directory with keys", 0, 0},
        {"json", 0, ISO_OPT_FLAG, &d.json, NULL, "the rows as JSON", 0, 0},
        {0},
    };
    const struct iso_usage usage = {"isobit doctor [options]",
                                    "Checks processor, kernels, memory, clock, keys, port and link; exit status 1 when\n"
                                    "something is bad.",
                                    options, NULL};
    bool help = false;
    const enum iso_err err = iso_options_parse(NULL, 0, 0, &help, argc, argv, &usage);
    if (err != ISO_OK || help) {
        json_decref(d.rows);
        return help ? 0 : iso_cli_fail(err);
    }
    check_cpu(&d);
    check_memory(&d);
    check_clock(&d);
    struct iso_node *node = check_node(&d);
    check_port(&d, node);
    check_link(&d, node);
    iso_node_free(node);
    if (d.json) {
        (void)json_dumpf(d.rows, stdout, JSON_INDENT(1));
        (void)putchar('\n');
    }
    json_decref(d.rows);
    return d.n_bad ? 1 : 0;
}
