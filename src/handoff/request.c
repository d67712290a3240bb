/* SPDX-License-Identifier: MIT
 * request.c - payload of REQUEST, chain digests and the producer's checks. */
#include "handoff/request.h"

#include <stdlib.h>
#include <string.h>

#include "arith/page.h"
#include "base/mem.h"

#define CHAIN_DOMAIN "isobit-chain-1" /* hashed with its NUL */

/* Hashes ids as little-endian words whatever the host's order is. */
static void hash_ids(struct iso_hasher *h, const int32_t *ids, size_t n)
{
    uint8_t block[4 * ISO_PAGE_POSITIONS];
    for (size_t i = 0; i < n;) {
        size_t k = 0;
        for (; k < ISO_PAGE_POSITIONS && i < n; k++, i++) {
            iso_put_u32(block + 4 * k, (uint32_t)ids[i]);
        }
        iso_hasher_update(h, block, 4 * k);
    }
}

void iso_chain_digest(struct iso_digest *out,
                      const struct iso_digest *tenant,
                      const struct iso_identity_doc *identity,
                      const int32_t *ids,
                      uint32_t n_pages)
{
    struct iso_hasher *h = iso_hasher_new();
    iso_hasher_update(h, CHAIN_DOMAIN, sizeof(CHAIN_DOMAIN));
    iso_hasher_update(h, tenant->bytes, ISO_DIGEST_LEN);
    iso_hasher_update(h, identity->arithmetic, strlen(identity->arithmetic) + 1);
    iso_hasher_update(h, identity->weights.bytes, ISO_DIGEST_LEN);
    iso_hasher_update(h, identity->tokenizer.bytes, ISO_DIGEST_LEN);
    iso_hasher_update(h, identity->page_format.bytes, ISO_DIGEST_LEN);
    iso_hasher_update(h, identity->context.bytes, ISO_DIGEST_LEN);
    struct iso_digest d;
    iso_hasher_final(h, &d);
    for (uint32_t i = 0; i < n_pages; i++) {
        iso_hasher_update(h, d.bytes, ISO_DIGEST_LEN);
        hash_ids(h, ids + (size_t)i * ISO_PAGE_POSITIONS, ISO_PAGE_POSITIONS);
        iso_hasher_final(h, &d);
    }
    iso_hasher_free(h);
    *out = d;
}

void iso_ids_digest(struct iso_digest *out, const int32_t *ids, size_t n)
{
    struct iso_hasher *h = iso_hasher_new();
    hash_ids(h, ids, n);
    iso_hasher_final(h, out);
    iso_hasher_free(h);
}

enum iso_err
iso_request_encode(struct iso_buf *out, const struct iso_request *r, const int32_t *ids)
{
    const size_t start = out->len;
    ISO_TRY(iso_buf_u32(out, 0));
    ISO_TRY(iso_request_write(out, r));
    iso_put_u32(out->data + start, (uint32_t)(out->len - start - 4));
    for (uint32_t i = 0; i < r->n_ids; i++) ISO_TRY(iso_buf_u32(out, (uint32_t)ids[i]));
    return ISO_OK;
}

enum iso_err iso_request_decode(struct iso_request *out,
                                int32_t **ids,
                                const uint8_t *payload,
                                size_t len,
                                enum iso_reason *reason)
{
    *reason = ISO_REASON_FRAME_FIELD;
    if (len < 4) ISO_FAIL(ISO_E_FORMAT, "REQUEST of %zu bytes", len);
    const uint32_t json_len = iso_get_u32(payload);
    if (json_len > len - 4) {
        ISO_FAIL(ISO_E_FORMAT, "REQUEST of %zu bytes with %u of JSON", len, json_len);
    }
    ISO_TRY(iso_request_parse(out, payload + 4, json_len));
    const uint8_t *raw = payload + 4 + json_len;
    const size_t raw_len = len - 4 - json_len;
    if (raw_len != 4 * (size_t)out->n_ids) {
        ISO_FAIL(ISO_E_FORMAT, "REQUEST with %zu bytes of ids for %u ids", raw_len, out->n_ids);
    }
    struct iso_digest d;
    iso_sha256(&d, raw, raw_len);
    if (memcmp(&d, &out->ids, sizeof(d)) != 0) {
        ISO_FAIL_REASON(reason, DIGEST, ISO_E_FORMAT, "the ids are not those of their digest");
    }
    *reason = ISO_REASON_OK;
    *ids = out->n_ids == 0 ? NULL : iso_xalloc(out->n_ids, sizeof(**ids));
    for (uint32_t i = 0; i < out->n_ids; i++) (*ids)[i] = (int32_t)iso_get_u32(raw + 4 * (size_t)i);
    return ISO_OK;
}

/* One digest of the identity. */
static enum iso_err same(const struct iso_digest *mine,
                         const struct iso_digest *other,
                         const char *what,
                         enum iso_reason code,
                         enum iso_reason *reason)
{
    if (memcmp(mine, other, sizeof(*mine)) == 0) return ISO_OK;
    char a[ISO_DIGEST_HEX], b[ISO_DIGEST_HEX];
    iso_digest_hex(a, mine);
    iso_digest_hex(b, other);
    *reason = code;
    ISO_FAIL(ISO_E_REFUSED, "%s: %.16s here, %.16s there", what, a, b);
}

enum iso_err iso_identity_check(const struct iso_identity_doc *mine,
                                const struct iso_identity_doc *other,
                                bool strict_template,
                                enum iso_reason *reason)
{
    if (strcmp(mine->arithmetic, other->arithmetic) != 0) {
        ISO_FAIL_REASON(reason, ARITHMETIC, ISO_E_REFUSED, "arithmetic: %s here, %s there",
                        mine->arithmetic, other->arithmetic);
    }
    ISO_TRY(same(&mine->weights, &other->weights, "weights", ISO_REASON_WEIGHTS, reason));
    ISO_TRY(same(&mine->tokenizer, &other->tokenizer, "tokenizer", ISO_REASON_TOKENIZER, reason));
    ISO_TRY(same(&mine->page_format, &other->page_format, "page format", ISO_REASON_PAGE_FORMAT,
                 reason));
    ISO_TRY(
        same(&mine->context, &other->context, "context policy", ISO_REASON_CONTEXT_POLICY, reason));
    if (!strict_template) return ISO_OK;
    return same(&mine->chat_template, &other->chat_template, "chat template", ISO_REASON_TEMPLATE,
                reason);
}

static enum iso_err check_ids(const struct iso_request *r,
                              const int32_t *ids,
                              const struct iso_request_limits *limits,
                              enum iso_reason *reason)
{
    if (r->n_ids == 0) ISO_FAIL_REASON(reason, NO_IDS, ISO_E_REFUSED, "the prompt has no ids");
    if (r->n_ids > limits->n_ctx) {
        ISO_FAIL_REASON(reason, CONTEXT_EXCEEDED, ISO_E_REFUSED,
                        "a prompt of %u tokens, the context is %u", r->n_ids, limits->n_ctx);
    }
    for (uint32_t i = 0; i < r->n_ids; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= limits->n_vocab) {
            ISO_FAIL_REASON(reason, ID_OUT_OF_RANGE, ISO_E_REFUSED,
                            "id %d at %u, the vocabulary has %u", ids[i], i, limits->n_vocab);
        }
    }
    return ISO_OK;
}

static enum iso_err check_held(const struct iso_request *r,
                               const int32_t *ids,
                               const struct iso_request_limits *limits,
                               enum iso_reason *reason)
{
    const uint32_t most = r->n_ids < 2 ? 0 : (r->n_ids - 2) / ISO_PAGE_POSITIONS;
    for (int c = 0; c < ISO_KV_CLASSES; c++) {
        const struct iso_held *h = &r->held[c];
        if (h->count == 0) continue;
        if ((uint64_t)h->first + h->count > most) {
            ISO_FAIL_REASON(reason, CHAIN, ISO_E_REFUSED, "pages %u+%u held, at most %u may be",
                            h->first, h->count, most);
        }
        struct iso_digest d;
        iso_chain_digest(&d, &limits->tenant, limits->identity, ids, h->first + h->count);
        if (memcmp(&d, &h->chain, sizeof(d)) != 0) {
            ISO_FAIL_REASON(reason, CHAIN, ISO_E_REFUSED,
                            "the chain digest of page %u is of another prompt",
                            h->first + h->count - 1);
        }
    }
    return ISO_OK;
}

enum iso_err iso_request_check(bool *template_equal,
                               const struct iso_request *r,
                               const int32_t *ids,
                               const struct iso_request_limits *limits,
                               enum iso_reason *reason)
{
    ISO_TRY(iso_identity_check(limits->identity, &r->identity,
                               limits->strict_template || r->strict_template, reason));
    if (strcmp(r->lane, ISO_HANDOFF_LANE) != 0) {
        ISO_FAIL_REASON(reason, LANE, ISO_E_REFUSED, "lane %s, offered is %s", r->lane,
                        ISO_HANDOFF_LANE);
    }
    ISO_TRY(check_ids(r, ids, limits, reason));
    if (r->audit && !limits->keep_expired && limits->window > 0 && r->n_ids > limits->window) {
        ISO_FAIL_REASON(reason, AUDIT_UNAVAILABLE, ISO_E_REFUSED,
                        "an audit of %u tokens with a window of %u needs every window page",
                        r->n_ids, limits->window);
    }
    ISO_TRY(check_held(r, ids, limits, reason));
    *template_equal =
        memcmp(&limits->identity->chat_template, &r->identity.chat_template, ISO_DIGEST_LEN) == 0;
    return ISO_OK;
}
