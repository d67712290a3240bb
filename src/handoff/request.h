/* SPDX-License-Identifier: MIT
 * request.h - the REQUEST frame: its payload, the chain digests in it, and what a producer checks.
 *
 * Payload: u32 LE length of the JSON, the JSON of manifest.h, the token ids as i32 LE to its end.
 *
 * Chain digest, for page i of 64 token ids: SHA-256(chain of page i-1, ids of page i as i32 LE).
 * The start is SHA-256 of "isobit-chain-1" NUL, the tenant (32 bytes; on a producer the key pin of
 * the consumer, so that nobody learns of another's prompts), the arithmetic's name NUL, and the
 * weights, tokenizer, page format and context digests.
 */
#ifndef ISO_HANDOFF_REQUEST_H
#define ISO_HANDOFF_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/digest.h"
#include "base/err.h"
#include "handoff/manifest.h"
#include "handoff/plan.h"
#include "handoff/reason.h"

/* Chain digest of the last of n_pages whole pages of ids; the start when n_pages is 0. */
void iso_chain_digest(struct iso_digest *out,
                      const struct iso_digest *tenant,
                      const struct iso_identity_doc *identity,
                      const int32_t *ids,
                      uint32_t n_pages);

/* SHA-256 of the ids as i32 LE. */
void iso_ids_digest(struct iso_digest *out, const int32_t *ids, size_t n);

/* Appends a REQUEST payload. Needs: ids [r->n_ids]. Errors: ISO_E_LIMIT. */
enum iso_err iso_request_encode(struct iso_buf *out,
                                const struct iso_request *r,
                                const int32_t *ids) ISO_NODISCARD;

/* Reads one; the ids are only those that r->n_ids and r->ids announce.
 *
 * Owner:  *ids [out->n_ids] is the caller's, free(); NULL when there are none.
 * Errors: ISO_E_FORMAT or ISO_E_LIMIT with *reason FRAME_FIELD, or DIGEST when the ids are others.
 */
enum iso_err iso_request_decode(struct iso_request *out,
                                int32_t **ids,
                                const uint8_t *payload,
                                size_t len,
                                enum iso_reason *reason) ISO_NODISCARD;

/* What a producer holds a request against. */
struct iso_request_limits {
    const struct iso_identity_doc *identity; /* of its engine */
    uint32_t n_ctx;                          /* longest prompt */
    uint32_t n_vocab;
    uint32_t window;          /* of the model, 0 for none */
    bool keep_expired;        /* it keeps every window page */
    bool strict_template;     /* its own wish */
    struct iso_digest tenant; /* key pin of the consumer */
};

/* Everything that can be refused before computing, from the identity on, each with its code.
 * *template_equal says whether the chat templates agree.
 * Errors: ISO_E_REFUSED with *reason ARITHMETIC, WEIGHTS, TOKENIZER, PAGE_FORMAT, CONTEXT_POLICY,
 *         TEMPLATE, LANE, NO_IDS, CONTEXT_EXCEEDED, ID_OUT_OF_RANGE, AUDIT_UNAVAILABLE, CHAIN. */
enum iso_err iso_request_check(bool *template_equal,
                               const struct iso_request *r,
                               const int32_t *ids,
                               const struct iso_request_limits *limits,
                               enum iso_reason *reason) ISO_NODISCARD;

/* Compares two identities member by member; the chat template only when strict.
 * Errors: ISO_E_REFUSED with *reason as above, the message has both values. */
enum iso_err iso_identity_check(const struct iso_identity_doc *mine,
                                const struct iso_identity_doc *other,
                                bool strict_template,
                                enum iso_reason *reason) ISO_NODISCARD;

#endif
