/* SPDX-License-Identifier: MIT
 * manifest.h - the control documents of a hand-off as canonical JSON: request, accept, seal
 * manifest.
 *
 * Each document has one struct, a writer and a parser. A parser takes bytes of a stranger: it
 * limits size and depth, refuses unknown, missing and repeated members and values out of range, and
 * refuses text that is not in canonical form (sorted keys, no spaces), so that equal documents have
 * equal bytes. Numbers are integers. The tables are in docs/handoff.md.
 *
 * Thread: none of this keeps state. Errors of every parser: ISO_E_FORMAT or ISO_E_LIMIT naming the
 * member; the caller answers FRAME_FIELD.
 */
#ifndef ISO_HANDOFF_MANIFEST_H
#define ISO_HANDOFF_MANIFEST_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/digest.h"
#include "base/err.h"
#include "handoff/reason.h"
#include "isobit_kv.h"
#include "node/node.h"

#define ISO_HANDOFF_FORMAT "isobit-handoff-1"
#define ISO_HANDOFF_LANE "exact-1"
#define ISO_HANDOFF_NONCE_LEN 32    /* random bytes per request */
#define ISO_HANDOFF_TEXT_MAX 65     /* request id, build, device, isa, lane: bytes with the NUL */
#define ISO_HANDOFF_MESSAGE_MAX 201 /* sentence in a refusal, bytes with the NUL */
#define ISO_HANDOFF_REQUEST_JSON_MAX (16u << 10)  /* a request has about 1.5 kB */
#define ISO_HANDOFF_MANIFEST_JSON_MAX (32u << 10) /* a request and a little more */
#define ISO_HANDOFF_GENERATION_MAX INT64_MAX
#define ISO_HANDOFF_DEADLINE_MAX_MS (24u * 3600u * 1000u)
#define ISO_HANDOFF_IDS_MAX                                                                        \
    ((1u << 21) - (1u << 13)) /* ids that fit a REQUEST frame with its JSON */

/* Pages of one layer class that the consumer's session holds already: [first, first + count). */
struct iso_held {
    uint32_t first, count;
    struct iso_digest chain; /* chain digest of page first + count - 1; zeros when count is 0 */
};

/* The identity of an engine as it travels. */
struct iso_identity_doc {
    char arithmetic[ISO_HANDOFF_TEXT_MAX];
    struct iso_digest weights, tokenizer, chat_template, page_format, context;
};

struct iso_request {
    char id[ISO_HANDOFF_TEXT_MAX]; /* request id: graphic ASCII */
    uint8_t nonce[ISO_HANDOFF_NONCE_LEN];
    uint64_t generation;                    /* >= 1, reserved in the consumer's ledger */
    uint8_t ledger[ISO_NODE_LEDGER_ID_LEN]; /* of the consumer */
    char consumer[ISO_NODE_NAME_MAX];
    char producer[ISO_NODE_NAME_MAX];
    struct iso_identity_doc identity;
    char lane[ISO_HANDOFF_TEXT_MAX];
    uint32_t n_ids;        /* tokens of the prompt */
    struct iso_digest ids; /* SHA-256 of the ids as i32 LE */
    struct iso_held held[ISO_KV_CLASSES];
    uint32_t deadline_ms; /* from the arrival of the request */
    bool audit;           /* every window page is wanted */
    bool strict_template; /* another chat template is a refusal */
};

/* The producer's answer before it computes. */
struct iso_accept {
    char id[ISO_HANDOFF_TEXT_MAX];
    uint32_t cut[ISO_KV_CLASSES]; /* first page that will be sent */
    uint32_t end_page;            /* pages below it cover positions 0 .. n-2 */
    uint64_t pages, bytes;        /* that will be sent */
    uint32_t deadline_ms;         /* what it granted */
    bool template_equal;
    char prefix[ISO_HANDOFF_TEXT_MAX]; /* where the pages below the cut come from on the producer:
                                          "none" no cut, "recomputed", "held" */
};

/* What REFUSE, ERROR and CANCEL say. */
struct iso_refusal {
    enum iso_reason reason;
    char message[ISO_HANDOFF_MESSAGE_MAX]; /* for people; not trusted, printable ASCII */
    uint64_t
        high; /* GENERATION, LEDGER_ROLLED_BACK: highest generation seen of this ledger; else 0 */
};

/* Where a transfer is; a heartbeat has no payload. */
struct iso_progress_note {
    uint64_t done, total; /* positions computed */
    uint32_t queued;      /* transfers before this one */
};

struct iso_ack {
    uint64_t generation;
    struct iso_digest manifest; /* SHA-256 of its canonical bytes */
};

/* What the seal covers. */
struct iso_manifest {
    struct iso_request request;
    uint32_t cut[ISO_KV_CLASSES];
    uint32_t end_page;
    uint32_t positions;    /* n - 1 */
    uint64_t pages, bytes; /* sent */
    struct iso_digest
        page_digests; /* SHA-256 over the SHA-256 of every page sent, by layer, head, page */
    char node[ISO_NODE_NAME_MAX]; /* the producer */
    char build[ISO_HANDOFF_TEXT_MAX];
    char device[ISO_HANDOFF_TEXT_MAX];
    char isa[ISO_HANDOFF_TEXT_MAX];
    struct iso_digest kernels;
    char prefix[ISO_HANDOFF_TEXT_MAX];
    uint64_t queue_us, compute_us, copy_us, wire_us, first_us; /* phases on the producer's clock;
                                                       first: from ACCEPT to the first page sent */
};

/* Fills the travelling form of an identity. Errors: ISO_E_ARG the arithmetic's name is too long. */
enum iso_err iso_identity_doc_from(struct iso_identity_doc *out,
                                   const struct iso_identity *id) ISO_NODISCARD;

/* JSON object of an identity. Owner: the caller, json_decref(). */
json_t *iso_identity_json(const struct iso_identity_doc *id);

/* Appends the canonical bytes. Errors: ISO_E_LIMIT out's maximum. */
enum iso_err iso_request_write(struct iso_buf *out, const struct iso_request *r) ISO_NODISCARD;
enum iso_err iso_accept_write(struct iso_buf *out, const struct iso_accept *a) ISO_NODISCARD;
enum iso_err iso_refusal_write(struct iso_buf *out, const struct iso_refusal *r) ISO_NODISCARD;
enum iso_err iso_progress_write(struct iso_buf *out,
                                const struct iso_progress_note *p) ISO_NODISCARD;
enum iso_err iso_ack_write(struct iso_buf *out, const struct iso_ack *a) ISO_NODISCARD;
enum iso_err iso_manifest_write(struct iso_buf *out, const struct iso_manifest *m) ISO_NODISCARD;

/* Read text [len]; on failure *out is unspecified. An empty CANCEL is CANCELLED without message. */
enum iso_err iso_request_parse(struct iso_request *out, const void *text, size_t len) ISO_NODISCARD;
enum iso_err iso_accept_parse(struct iso_accept *out, const void *text, size_t len) ISO_NODISCARD;
enum iso_err iso_refusal_parse(struct iso_refusal *out, const void *text, size_t len) ISO_NODISCARD;
enum iso_err
iso_progress_parse(struct iso_progress_note *out, const void *text, size_t len) ISO_NODISCARD;
enum iso_err iso_ack_parse(struct iso_ack *out, const void *text, size_t len) ISO_NODISCARD;
enum iso_err
iso_manifest_parse(struct iso_manifest *out, const void *text, size_t len) ISO_NODISCARD;

/* Copies a sentence into a refusal: what is not printable ASCII becomes '?', the rest is cut off.
 */
void iso_refusal_message(struct iso_refusal *r, const char *text);

#endif
