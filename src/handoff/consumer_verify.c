/* SPDX-License-Identifier: MIT
 * consumer_verify.c - what a consumer checks before it believes: seal, request, ranges, digests,
 * audit. */
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include "arith/page.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "handoff/consumer_internal.h"

#define AUDIT_GROUP 8u /* positions recomputed between two looks at cancel */

/* --- seal ---------------------------------------------------------------------------------------
 */

/* The sealed request must be ours, byte for byte; the usual suspects get their own code. */
static enum iso_err check_request(struct iso_fetch *f, const struct iso_manifest *m)
{
    struct iso_buf text;
    if (memcmp(m->request.nonce, f->req.nonce, sizeof(m->request.nonce)) != 0) {
        ISO_FAIL_REASON(&f->reason, NONCE, ISO_E_AUTH, "the seal is for another nonce");
    }
    if (m->request.generation != f->attempt.generation) {
        ISO_FAIL_REASON(
            &f->reason, GENERATION, ISO_E_AUTH, "the seal is for generation %llu, not %llu",
            (unsigned long long)m->request.generation, (unsigned long long)f->attempt.generation);
    }
    iso_buf_init(&text, ISO_HANDOFF_REQUEST_JSON_MAX);
    const bool same = iso_request_write(&text, &m->request) == ISO_OK &&
                      text.len == f->request_text.len &&
                      memcmp(text.data, f->request_text.data, text.len) == 0;
    iso_buf_deinit(&text);
    if (!same)
        ISO_FAIL_REASON(&f->reason, MANIFEST, ISO_E_AUTH, "the seal repeats another request");
    if (strcmp(m->node, iso_channel_peer(f->ch)->name) != 0) {
        ISO_FAIL_REASON(&f->reason, MANIFEST, ISO_E_AUTH, "the seal names %s as producer", m->node);
    }
    return ISO_OK;
}

static enum iso_err check_ranges(struct iso_fetch *f, const struct iso_manifest *m)
{
    const struct iso_plan *p = &f->plan;
    if (memcmp(m->cut, p->cut, sizeof(m->cut)) != 0 || m->end_page != p->end_page) {
        ISO_FAIL_REASON(&f->reason, CUT, ISO_E_PROTO, "pages %u and %u to %u are sealed",
                        m->cut[ISO_KV_FULL], m->cut[ISO_KV_WINDOW], m->end_page);
    }
    if (m->positions != p->n_positions || m->pages != p->n_pages || m->bytes != p->bytes) {
        ISO_FAIL_REASON(&f->reason, TOTALS, ISO_E_PROTO,
                        "%u positions, %llu pages and %llu bytes are sealed, not %u, %llu and %llu",
                        m->positions, (unsigned long long)m->pages, (unsigned long long)m->bytes,
                        p->n_positions, (unsigned long long)p->n_pages,
                        (unsigned long long)p->bytes);
    }
    return ISO_OK;
}

static enum iso_err check_digests(struct iso_fetch *f, const struct iso_seal *seal)
{
    const struct iso_digest *mine = iso_intake_digests(f->intake);
    if (seal->n_pages != f->plan.n_pages) {
        ISO_FAIL_REASON(&f->reason, TOTALS, ISO_E_PROTO, "%zu page digests for %llu pages",
                        seal->n_pages, (unsigned long long)f->plan.n_pages);
    }
    for (size_t i = 0; i < seal->n_pages; i++) {
        if (memcmp(&mine[i], seal->page_digests + i * ISO_DIGEST_LEN, ISO_DIGEST_LEN) != 0) {
            ISO_FAIL_REASON(&f->reason, DIGEST, ISO_E_PROTO,
                            "page %zu of %zu is not the one that was sealed", i, seal->n_pages);
        }
    }
    return ISO_OK;
}

static enum iso_err keep_seal(struct iso_fetch *f, const struct iso_seal *seal)
{
    struct iso_receipt *r = &f->c->receipt;
    iso_receipt_deinit(r);
    iso_receipt_init(r);
    memcpy(r->signature, seal->signature, seal->signature_len);
    r->signature_len = seal->signature_len;
    memcpy(r->spki, iso_channel_peer(f->ch)->spki, sizeof(r->spki));
    return iso_buf_append(&r->manifest, seal->manifest, seal->manifest_len);
}

enum iso_err iso_fetch_verify(struct iso_fetch *f, const uint8_t *payload, size_t len)
{
    struct iso_seal seal;
    uint8_t key[ISO_SEAL_KEY_LEN];
    f->reason = ISO_REASON_FRAME_FIELD;
    ISO_TRY(iso_seal_decode(&seal, payload, len));
    f->reason = ISO_REASON_INTERNAL;
    ISO_TRY(iso_seal_channel_key(key, f->ch, f->req.nonce));
    const enum iso_err err = iso_seal_check(&f->manifest, &f->digest, &seal, key,
                                            iso_channel_peer(f->ch)->spki, &f->reason);
    OPENSSL_cleanse(key, sizeof(key));
    ISO_TRY(err);
    ISO_TRY(check_request(f, &f->manifest));
    ISO_TRY(check_ranges(f, &f->manifest));
    ISO_TRY(iso_intake_settle(f->intake, &f->reason));
    ISO_TRY(check_digests(f, &seal));
    f->reason = ISO_REASON_INTERNAL;
    return keep_seal(f, &seal);
}

/* --- audit --------------------------------------------------------------------------------------
 */

/* First position that can be recomputed: it was sent, and its whole window is here. */
static uint32_t first_auditable(const struct iso_fetch *f)
{
    const struct iso_kv_layout *y = iso_engine_kv_layout(iso_session_engine(f->s));
    const struct iso_plan *p = &f->plan;
    bool has[ISO_KV_CLASSES] = {false};
    for (uint32_t l = 0; l < p->n_layers; l++) has[p->layer_class[l]] = true;
    uint32_t first = has[ISO_KV_FULL] ? p->cut[ISO_KV_FULL] * ISO_PAGE_POSITIONS : 0;
    if (!has[ISO_KV_WINDOW]) return first;
    const struct iso_held *h = &f->held[ISO_KV_WINDOW];
    const uint32_t cut = p->cut[ISO_KV_WINDOW];
    const uint32_t here = h->count > 0 && h->first + h->count == cut ? h->first : cut;
    first = ISO_MAX(first, cut * ISO_PAGE_POSITIONS);
    return here == 0 ? first : ISO_MAX(first, here * ISO_PAGE_POSITIONS + y->window - 1);
}

static int by_value(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* k different ones of positions [first, end) in ascending order, all equally likely. */
static enum iso_err pick(uint32_t *out, uint32_t k, uint32_t first, uint32_t end)
{
    const uint32_t n = end - first;
    uint32_t *all = iso_xalloc(n, sizeof(*all));
    enum iso_err err = ISO_OK;
    for (uint32_t i = 0; i < n; i++) all[i] = first + i;
    for (uint32_t i = 0; i < k && err == ISO_OK; i++) {
        uint64_t r = 0; /* 64 bits: the remainder's bias is below 2^-32 */
        if (RAND_bytes((uint8_t *)&r, sizeof(r)) != 1) {
            err = iso_err_raise(ISO_E_IO, __FILE__, __LINE__, "no random bytes");
        }
        const uint32_t j = i + (uint32_t)(r % (n - i));
        const uint32_t t = all[i];
        all[i] = all[j];
        all[j] = t;
    }
    memcpy(out, all, k * sizeof(*out));
    free(all);
    qsort(out, k, sizeof(*out), by_value);
    return err;
}

static enum iso_err audit_positions(struct iso_fetch *f, const uint32_t *positions, uint32_t k)
{
    bool ok = true;
    uint32_t layer = 0, position = 0;
    for (uint32_t i = 0; i < k && ok; i += AUDIT_GROUP) {
        ISO_TRY(iso_fetch_check_stop(f));
        ISO_TRY(iso_kv_audit(&ok, &layer, &position, f->staging, f->ids, positions + i,
                             ISO_MIN(k - i, AUDIT_GROUP)));
    }
    if (ok) return ISO_OK;
    f->report->audit_layer = layer;
    f->report->audit_position = position;
    const struct iso_peer *peer = iso_channel_peer(f->ch);
    ISO_TRY(iso_ledger_mark(f->c->ledger, peer, ISO_REASON_DISTRUSTED, &f->reason));
    iso_log(ISO_LOG_ERROR, "consumer", "audit peer=%s layer=%u position=%u: wrong pages",
            peer->name, layer, position);
    ISO_FAIL_REASON(&f->reason, AUDIT, ISO_E_REFUSED,
                    "layer %u position %u differs when recomputed", layer, position);
}

enum iso_err iso_fetch_audit(struct iso_fetch *f)
{
    const uint32_t first = first_auditable(f), end = f->plan.n_positions;
    if (f->c->opt.audit == 0 || end == 0) return ISO_OK;
    if (first >= end) {
        ISO_FAIL_REASON(&f->reason, AUDIT_UNAVAILABLE, ISO_E_REFUSED,
                        "no position from %u to %u has its whole window here", first, end);
    }
    const int64_t start = iso_clock_ns();
    const uint32_t k = ISO_MIN(f->c->opt.audit, end - first);
    uint32_t *positions = iso_xalloc(k, sizeof(*positions));
    enum iso_err err = pick(positions, k, first, end);
    if (err == ISO_OK) err = audit_positions(f, positions, k);
    free(positions);
    f->report->audit_s = (double)(iso_clock_ns() - start) / (double)ISO_NS_PER_S;
    if (err == ISO_OK) f->report->audited = k;
    return err;
}
