/* SPDX-License-Identifier: MIT
 * receipt.h - one JSON line per sealed hand-off that a third party can check later.
 *
 * A receipt holds the manifest as it was sealed, the producer's signature over it and its public
 * key, and beside them what this side saw: phases, rates, the digest of the first logits. No token
 * ids. Phases and rates are integers (microseconds, bytes per second); null is "not measured".
 */
#ifndef ISO_HANDOFF_RECEIPT_H
#define ISO_HANDOFF_RECEIPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/digest.h"
#include "base/err.h"
#include "handoff/manifest.h"
#include "handoff/reason.h"
#include "isobit.h"
#include "node/node.h"

#define ISO_RECEIPT_FILE                                                                           \
    "receipts.jsonl"                /* in the node's directory, unless another path is given */
#define ISO_RECEIPT_MAX (64u << 10) /* bytes of one line */
#define ISO_RECEIPT_FORMAT "isobit-receipt-1"

struct iso_receipt {
    bool producer;                /* who writes it */
    char node[ISO_NODE_NAME_MAX]; /* this side */
    char peer[ISO_NODE_NAME_MAX];
    /* What ran on this side; the producer's own are in the manifest too. */
    char build[ISO_HANDOFF_TEXT_MAX], device[ISO_HANDOFF_TEXT_MAX], isa[ISO_HANDOFF_TEXT_MAX];
    struct iso_digest kernels;
    enum iso_reason reason;  /* OK, or AUDIT: evidence against the producer */
    int64_t time_s;          /* wall clock */
    struct iso_buf manifest; /* canonical bytes */
    uint8_t signature[ISO_NODE_SIG_MAX];
    size_t signature_len;
    uint8_t spki[ISO_NODE_SPKI_LEN]; /* the producer's public key */
    /* As seen by this side, microseconds; -1: not measured or not of this side. */
    int64_t compute_us, wire_us, wire_busy_us, verify_us, install_us, commit_us, total_us;
    uint64_t pages, bytes;
    int64_t raw_share_ppm; /* wire rate by that of a raw TLS stream on the same path, millionths */
    uint32_t computed_locally; /* consumer: prompt tokens that it computed itself */
    uint32_t audited;          /* consumer: positions recomputed */
    bool has_logits;
    struct iso_digest first_logits; /* consumer: SHA-256 of the logits behind the prompt */
};

/* Zero, times unmeasured. */
void iso_receipt_init(struct iso_receipt *r);
void iso_receipt_deinit(struct iso_receipt *r);

/* Notes what runs on this side: the program's build and the engine's device and kernels. */
void iso_receipt_set_engine(struct iso_receipt *r, const char *build, const struct iso_engine_info *info);

/* Appends the line with its newline. Errors: ISO_E_LIMIT. */
enum iso_err iso_receipt_write(struct iso_buf *out, const struct iso_receipt *r) ISO_NODISCARD;

/* Appends the line to a file (0600, no links) in one write and flushes it to disk.
 * Thread: any, any process. Errors: ISO_E_IO. */
enum iso_err iso_receipt_append(const char *path, const struct iso_receipt *r) ISO_NODISCARD;

/* What a checked receipt says. */
struct iso_receipt_check {
    struct iso_manifest manifest;
    struct iso_digest digest; /* of the manifest: what was signed */
    struct iso_digest pin;    /* of the key that signed */
    char node[ISO_NODE_NAME_MAX], peer[ISO_NODE_NAME_MAX];
    bool producer;
    bool has_kernels; /* false for lines of older programs; a producer's equal those of the manifest */
    struct iso_digest kernels; /* that ran on the side that wrote it */
    enum iso_reason reason;
    bool has_logits;
    struct iso_digest first_logits;
};

/* Re-checks one line: form, signature over the manifest, and that counts and names agree with it.
 * pin (may be NULL): the key that must have signed, as enrolled; without it only the key inside is
 * used.
 *
 * Thread: any; needs no node. The figures that only one side saw are its word alone.
 * Errors: ISO_E_FORMAT, ISO_E_LIMIT; ISO_E_AUTH signature or pin; ISO_E_REFUSED a contradiction. */
enum iso_err iso_receipt_verify(struct iso_receipt_check *out,
                                const char *line,
                                size_t len,
                                const struct iso_digest *pin) ISO_NODISCARD;

#endif
