/* SPDX-License-Identifier: MIT
 * remote.h - flags and calls of the commands that can take a prompt's pages from a producer. */
#ifndef ISO_CLI_REMOTE_H
#define ISO_CLI_REMOTE_H

#include <jansson.h>

#include "base/digest.h"
#include "base/err.h"
#include "cli/options.h"
#include "handoff/consumer.h"
#include "isobit_kv.h"

struct iso_remote_options {
    const char *producer; /* HOST:PORT, or NULL */
    const char *peer;     /* node name that must answer, or NULL */
    const char *prefill;  /* auto, remote or local */
    const char *dir;      /* node directory */
    uint32_t audit;
    uint32_t deadline_s;
    uint64_t raw_rate;    /* bytes per second of a plain TLS stream on the same path, 0: not measured */
    bool strict_template;
};

#define ISO_REMOTE_OPTIONS(r)                                                                      \
    {"producer", 0, ISO_OPT_STRING, &(r).producer, "HOST:PORT", "take the prompt's pages from this producer", 0, 0}, \
    {"peer", 0, ISO_OPT_STRING, &(r).peer, "NODE", "the producer must be this node (default: any enrolled one)", 0, 0}, \
    {"prefill", 0, ISO_OPT_STRING, &(r).prefill, "HOW", "auto, remote or local (default: auto)", 0, 0}, \
    {"audit", 0, ISO_OPT_U32, &(r).audit, "K", "recompute K random positions of what was received", 0, 4096}, \
    {"dir", 0, ISO_OPT_STRING, &(r).dir, "DIR", "node directory with keys (see isobit keys)", 0, 0}, \
    {"deadline", 0, ISO_OPT_U32, &(r).deadline_s, "S", "seconds that a hand-off may take (default 600)", 1, 86400}, \
    {"raw-tls-rate", 0, ISO_OPT_U64, &(r).raw_rate, "B", "bytes per second of a plain TLS stream (tools/raw_tls.py), for receipts", 0, 0}, \
    {"strict-template", 0, ISO_OPT_FLAG, &(r).strict_template, NULL, "refuse a producer with another chat template", 0, 0}

/* A producer to ask, with this machine's keys. Owned by one thread. */
struct iso_remote {
    struct iso_node *node;
    struct iso_consumer *consumer;
};

/* *out is NULL when no producer was named. Nothing is dialled yet.
 * Errors: ISO_E_ARG; those of opening keys and ledger. */
enum iso_err iso_remote_open(struct iso_remote **out, const struct iso_remote_options *o) ISO_NODISCARD;
void iso_remote_close(struct iso_remote *r);

/* Brings the pages of ids [0, n-1) into s and returns the digest of all pages that moved. */
enum iso_err iso_remote_fetch(struct iso_digest *visible, struct iso_remote *r, iso_session *s,
                              const int32_t *ids, size_t n, bool audit) ISO_NODISCARD;

/* The same pages computed here: prefills ids [0, n-1) and digests what a hand-off would have sent. */
enum iso_err iso_remote_local(struct iso_digest *visible, iso_session *s, const int32_t *ids, size_t n,
                              bool audit) ISO_NODISCARD;

/* The last hand-off as lines for people (stderr) and as JSON (new reference). */
void iso_remote_report_print(const struct iso_consumer_report *r);
json_t *iso_remote_report_json(const struct iso_consumer_report *r);

#endif
