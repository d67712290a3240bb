/* SPDX-License-Identifier: MIT
 * remote.c - hand-offs as the commands see them. */
#include "cli/remote.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/commands.h"
#include "handoff/plan.h"

static enum iso_err open_node(struct iso_node **out, const char *dir)
{
    struct iso_buf b;
    iso_buf_init(&b, 4096);
    enum iso_err err = dir ? iso_buf_puts(&b, dir) : iso_node_default_dir(&b);
    if (err == ISO_OK) err = iso_node_open(out, (const char *)b.data);
    iso_buf_deinit(&b);
    return err;
}

enum iso_err iso_remote_open(struct iso_remote **out, const struct iso_remote_options *o)
{
    *out = NULL;
    enum iso_policy_mode mode = ISO_POLICY_AUTO;
    if (o->prefill) ISO_TRY(iso_policy_parse_mode(&mode, o->prefill));
    if (o->producer == NULL) {
        if (mode == ISO_POLICY_REMOTE) ISO_FAIL(ISO_E_ARG, "--prefill remote needs --producer HOST:PORT");
        return ISO_OK;
    }
    struct iso_remote *r = iso_xalloc(1, sizeof(*r));
    const struct iso_consumer_options c = {.address = o->producer,
                                           .peer = o->peer,
                                           .build = iso_cli_commit(),
                                           .mode = mode,
                                           .audit = o->audit,
                                           .deadline_ms = o->deadline_s * 1000,
                                           .strict_template = o->strict_template};
    enum iso_err err = open_node(&r->node, o->dir);
    if (err == ISO_OK) err = iso_consumer_new(&r->consumer, r->node, &c, NULL);
    if (err != ISO_OK) {
        iso_remote_close(r);
        return err;
    }
    if (o->raw_rate > 0) iso_consumer_set_raw_rate(r->consumer, (double)o->raw_rate);
    *out = r;
    return ISO_OK;
}

void iso_remote_close(struct iso_remote *r)
{
    if (r == NULL) return;
    iso_consumer_free(r->consumer);
    iso_node_free(r->node);
    free(r);
}

enum iso_err iso_remote_fetch(struct iso_digest *visible, struct iso_remote *r, iso_session *s,
                              const int32_t *ids, size_t n, bool audit)
{
    struct iso_bar bar;
    const struct iso_progress p = iso_bar_start(&bar, "hand-off");
    const struct iso_kv_source *source = iso_consumer_source(r->consumer);
    const enum iso_err err = source->fetch(source->arg, s, ids, n, &p);
    iso_bar_end(&bar);
    ISO_TRY(err);
    return iso_handoff_visible_digest(visible, s, (uint32_t)n, audit);
}

/* As the producer does it: nothing wants logits. */
enum iso_err iso_remote_local(struct iso_digest *visible, iso_session *s, const int32_t *ids, size_t n,
                              bool audit)
{
    iso_engine *e = iso_session_engine(s);
    const size_t chunk = iso_engine_info(e)->n_batch;
    struct iso_row *rows = iso_xalloc(chunk, sizeof(*rows));
    enum iso_err err = ISO_OK;
    for (size_t at = 0; at + 1 < n && err == ISO_OK; at += chunk) {
        const size_t m = ISO_MIN(chunk, n - 1 - at);
        for (size_t i = 0; i < m; i++) rows[i] = (struct iso_row){s, ids[at + i], ISO_OUTPUT_NONE};
        err = iso_step(e, rows, m, NULL);
    }
    free(rows);
    ISO_TRY(err);
    return iso_handoff_visible_digest(visible, s, (uint32_t)n, audit);
}

void iso_remote_report_print(const struct iso_consumer_report *r)
{
    char bytes[16], rate[16];
    const double per_s = r->wire_busy_s > 0 ? (double)r->bytes / r->wire_busy_s : 0;
    (void)fprintf(stderr, "[hand-off from %s: %llu pages, %s, %s/s on the wire, %u tokens received, %u computed here",
                  r->peer, (unsigned long long)r->pages, iso_cli_bytes(bytes, r->bytes),
                  iso_cli_bytes(rate, (uint64_t)per_s), r->n_received, r->computed_locally);
    if (r->audited) (void)fprintf(stderr, ", %u positions audited", r->audited);
    if (!r->template_equal) (void)fprintf(stderr, "; the producer's chat template differs");
    (void)fprintf(stderr, "; %.3f s]\n", r->total_s);
}

json_t *iso_remote_report_json(const struct iso_consumer_report *r)
{
    json_t *j = json_pack("{s:s, s:s, s:s, s:I, s:i, s:i, s:I, s:I, s:i, s:b, s:b}", "reason",
                          iso_reason_name(r->reason), "peer", r->peer, "request_id", r->request_id,
                          "generation", (json_int_t)r->generation, "n_received", (int)r->n_received,
                          "computed_locally", (int)r->computed_locally, "pages", (json_int_t)r->pages,
                          "bytes", (json_int_t)r->bytes, "audited", (int)r->audited, "template_equal",
                          (int)r->template_equal, "committed", (int)r->committed);
    const struct {
        const char *name;
        double value;
    } seconds[] = {{"dial_s", r->dial_s},       {"accept_s", r->accept_s},   {"first_page_s", r->first_s},
                   {"wire_s", r->wire_s},       {"wire_busy_s", r->wire_busy_s}, {"verify_s", r->verify_s},
                   {"audit_s", r->audit_s},     {"install_s", r->install_s}, {"commit_s", r->commit_s},
                   {"total_s", r->total_s},     {"producer_queue_s", r->producer_queue_s},
                   {"producer_compute_s", r->producer_compute_s}};
    for (size_t i = 0; i < ISO_COUNT(seconds); i++) {
        (void)json_object_set_new(j, seconds[i].name, json_real(seconds[i].value));
    }
    return j;
}
