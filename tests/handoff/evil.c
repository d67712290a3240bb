/* SPDX-License-Identifier: MIT
 * evil.c - a producer that speaks the protocol and breaks one rule of it. */
#include "evil.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <openssl/hmac.h>

#include "arith/page.h"
#include "base/mem.h"
#include "handoff/plan.h"
#include "handoff/request.h"
#include "handoff/seal.h"

#define WAIT_MS 20000

struct show {
    struct evil *e;
    struct iso_channel *ch;
    uint32_t stream;
    struct iso_request req;
    int32_t *ids;
    struct iso_plan plan;
    iso_session *s;
    uint8_t *page; /* one page, to be changed */
    struct iso_digest *digests;
};

static int64_t soon(void)
{
    return iso_channel_deadline(WAIT_MS);
}

static bool send_frame(struct show *x, enum iso_frame_type type, const struct iso_buf *b)
{
    const uint32_t stream = x->stream + (x->e->kind == EVIL_STREAM && type == ISO_FRAME_PAGES);
    return iso_channel_send_bytes(x->ch, type, stream, b->data, b->len, soon()) == ISO_OK;
}

static bool take_request(struct show *x)
{
    struct iso_frame f;
    enum iso_reason reason = ISO_REASON_OK;
    do {
        if (iso_channel_recv_header(x->ch, &f, soon()) != ISO_OK) return false;
    } while (f.type != ISO_FRAME_REQUEST && iso_channel_skip_payload(x->ch, soon()) == ISO_OK);
    uint8_t *payload = iso_xalloc(f.length, 1);
    x->stream = f.stream;
    bool ok = iso_channel_recv_payload(x->ch, payload, f.length, soon()) == ISO_OK;
    ok = ok && iso_request_decode(&x->req, &x->ids, payload, f.length, &reason) == ISO_OK;
    free(payload);
    return ok && iso_plan_init(&x->plan, iso_engine_kv_layout(x->e->engine), x->req.n_ids,
                               x->req.held, x->req.audit) == ISO_OK;
}

static bool answer(struct show *x)
{
    struct iso_buf b;
    struct iso_accept a = {.end_page = x->plan.end_page,
                           .pages = x->plan.n_pages,
                           .bytes = x->plan.bytes,
                           .deadline_ms = x->req.deadline_ms,
                           .template_equal = true,
                           .prefix = "none"};
    struct iso_refusal r = {.reason = ISO_REASON_LEDGER_ROLLED_BACK,
                            .high = x->req.generation + 100};
    memcpy(a.id, x->req.id, sizeof(a.id));
    memcpy(a.cut, x->plan.cut, sizeof(a.cut));
    if (x->e->kind == EVIL_ACCEPT_CUT) a.cut[ISO_KV_FULL]++;
    iso_buf_init(&b, 4096);
    const bool refuse = x->e->kind == EVIL_LEDGER;
    bool ok = (refuse ? iso_refusal_write(&b, &r) : iso_accept_write(&b, &a)) == ISO_OK;
    ok = ok && send_frame(x, refuse ? ISO_FRAME_REFUSE : ISO_FRAME_ACCEPT, &b);
    iso_buf_deinit(&b);
    return ok && !refuse;
}

static bool compute(struct show *x)
{
    struct iso_row rows[64];
    if (iso_session_new(&x->s, x->e->engine, x->plan.n_positions) != ISO_OK) return false;
    for (uint32_t at = 0; at < x->plan.n_positions;) {
        const uint32_t k = ISO_MIN(64u, x->plan.n_positions - at);
        for (uint32_t i = 0; i < k; i++) {
            rows[i] = (struct iso_row){.session = x->s, .token = x->ids[at + i]};
        }
        if (iso_step(x->e->engine, rows, k, NULL) != ISO_OK) return false;
        at += k;
    }
    return true;
}

/* Changes x->page as the kind says; layer 0 page 0 head 0 is changed by all that change anything.
 */
static void spoil(struct show *x, uint32_t layer, uint32_t head, uint32_t page)
{
    const uint32_t d = x->plan.head_dim, used = iso_plan_used(&x->plan, page);
    const bool first = layer == 0 && head == 0 && page == x->plan.cut[x->plan.layer_class[0]];
    uint8_t *v = x->page + iso_page_v(d);
    switch (x->e->kind) {
    case EVIL_WRONG_V:
        if (layer != 0) break;
        for (uint32_t t = 0; t < used; t++) v[t] ^= 1;
        for (uint32_t t = 0; t < used; t++) {
            if (v[t] == 0x80) v[t] = 0x7f;
        }
        break;
    case EVIL_WRONG_K_LAST:
        if (layer != x->plan.n_layers - 1) break;
        /* The low nibble of dimension 0; 0xf never makes -2048. */
        for (uint32_t t = 0; t < used; t++) {
            uint8_t *lo = x->page + iso_page_k_lo(d) + (size_t)t * (d / 2);
            *lo = (*lo & 15) == 15 ? (uint8_t)(*lo - 1) : (uint8_t)(*lo | 15);
            if (x->page[(size_t)t * d] == 0x80) x->page[(size_t)t * d] = 0x81;
        }
        break;
    case EVIL_FORM_K:
        if (!first) break;
        x->page[0] = 0x80;
        x->page[iso_page_k_lo(d)] &= 0xf0;
        break;
    case EVIL_FORM_V:
        if (first) v[0] = 0x80;
        break;
    case EVIL_FORM_SCALE:
        if (first) iso_put_u32(x->page + iso_page_k_scale(d), 0x7f800000u);
        break;
    case EVIL_FORM_TAIL:
        if (used < ISO_PAGE_POSITIONS) x->page[(size_t)used * d] = 1;
        break;
    default:
        break;
    }
}

static bool send_page(struct show *x, uint32_t layer, uint32_t head, uint32_t page)
{
    struct iso_pages_head h = {
        .layer = layer, .first_head = head, .n_heads = 1, .first_page = page, .n_pages = 1};
    const uint64_t i = iso_plan_index(&x->plan, layer, head, page);
    struct iso_buf b;
    memcpy(x->page, iso_session_page(x->s, layer, head, page), x->plan.page_bytes);
    spoil(x, layer, head, page);
    iso_sha256(&x->digests[i], x->page, x->plan.page_bytes);
    if (x->e->kind == EVIL_OTHER_DIGEST && i == 0) x->digests[0].bytes[0] ^= 1;
    if (x->e->kind == EVIL_RANGE_LAYER) h.layer = x->plan.n_layers;
    if (x->e->kind == EVIL_RANGE_PAGE) h.first_page = x->plan.end_page;
    uint8_t prefix[ISO_FRAME_PAGES_PREFIX_LEN];
    iso_pages_head_encode(prefix, &h);
    iso_buf_init(&b, x->plan.page_bytes + sizeof(prefix));
    bool ok = iso_buf_append(&b, prefix, sizeof(prefix)) == ISO_OK &&
              iso_buf_append(&b, x->page, x->plan.page_bytes) == ISO_OK;
    if (x->e->kind == EVIL_LENGTH) b.len -= 8;
    ok = ok && send_frame(x, ISO_FRAME_PAGES, &b);
    iso_buf_deinit(&b);
    return ok;
}

/* All pages; false ends the show. */
static bool send_pages(struct show *x)
{
    const enum evil_kind k = x->e->kind;
    const uint32_t n_layers = x->plan.n_layers - (k == EVIL_SEAL_EARLY || k == EVIL_CLOSE_EARLY);
    for (uint32_t l = 0; l < n_layers; l++) {
        for (uint32_t p = x->plan.cut[x->plan.layer_class[l]]; p < x->plan.end_page; p++) {
            for (uint32_t h = 0; h < x->plan.n_heads; h++) {
                if (!send_page(x, l, h, p)) return false;
                if (k == EVIL_TWICE && !send_page(x, l, h, p)) return false;
            }
        }
    }
    return k != EVIL_CLOSE_EARLY;
}

static void fill_manifest(const struct show *x, struct iso_manifest *m)
{
    *m = (struct iso_manifest){.request = x->req,
                               .end_page = x->plan.end_page,
                               .positions = x->plan.n_positions,
                               .pages = x->plan.n_pages,
                               .bytes = x->plan.bytes,
                               .prefix = "none"};
    memcpy(m->cut, x->plan.cut, sizeof(m->cut));
    (void)snprintf(m->node, sizeof(m->node), "%s", iso_node_name(x->e->node));
    iso_sha256(&m->page_digests, x->digests, x->plan.n_pages * sizeof(*x->digests));
    switch (x->e->kind) {
    case EVIL_TOTALS:
        m->positions--;
        break;
    case EVIL_SEAL_CUT:
        m->cut[ISO_KV_FULL]++;
        break;
    case EVIL_NONCE:
        m->request.nonce[0] ^= 1;
        break;
    case EVIL_GENERATION:
        m->request.generation++;
        break;
    case EVIL_REQUEST:
        m->request.deadline_ms--;
        break;
    case EVIL_NODE:
        (void)snprintf(m->node, sizeof(m->node), "mallory");
        break;
    default:
        break;
    }
}

/* Seals a manifest text with an unknown member, tags and all. */
static bool seal_json(struct show *x, struct iso_buf *out, const uint8_t *key)
{
    struct iso_seal seal;
    struct iso_buf text, again;
    bool ok = iso_seal_decode(&seal, out->data, out->len) == ISO_OK;
    iso_buf_init(&text, 1 << 16);
    iso_buf_init(&again, 1 << 20);
    /* "zz" sorts last, so the text stays canonical. */
    ok = ok && iso_buf_append(&text, seal.manifest, seal.manifest_len - 1) == ISO_OK &&
         iso_buf_puts(&text, ",\"zz\":1}") == ISO_OK;
    struct iso_digest d;
    uint8_t sig[ISO_NODE_SIG_MAX];
    size_t sig_len = 0;
    iso_sha256(&d, text.data, text.len);
    ok = ok && iso_node_sign(x->e->node, sig, &sig_len, &d) == ISO_OK;
    /* The MAC by the rule of seal.h. */
    uint8_t mac[32];
    unsigned mac_len = sizeof(mac);
    ok = ok && HMAC(EVP_sha256(), key, 32, d.bytes, 32, mac, &mac_len) != NULL;
    seal.manifest = (const char *)text.data;
    seal.manifest_len = text.len;
    seal.mac = mac;
    seal.signature = sig;
    seal.signature_len = sig_len;
    ok = ok && iso_seal_encode(&again, &seal) == ISO_OK;
    iso_buf_clear(out);
    ok = ok && iso_buf_append(out, again.data, again.len) == ISO_OK;
    iso_buf_deinit(&text);
    iso_buf_deinit(&again);
    return ok;
}

static bool send_seal(struct show *x)
{
    struct iso_manifest m;
    uint8_t key[ISO_SEAL_KEY_LEN];
    struct iso_buf b;
    fill_manifest(x, &m);
    iso_buf_init(&b, 1 << 20);
    bool ok = iso_seal_channel_key(key, x->ch, x->req.nonce) == ISO_OK &&
              iso_seal_make(&b, NULL, &m, x->digests, key, x->e->node) == ISO_OK;
    struct iso_seal at;
    ok = ok && iso_seal_decode(&at, b.data, b.len) == ISO_OK;
    if (ok && x->e->kind == EVIL_MAC) b.data[at.mac - b.data] ^= 1;
    if (ok && x->e->kind == EVIL_SIGNATURE) b.data[at.signature - b.data + 8] ^= 1;
    if (ok && x->e->kind == EVIL_OTHER_LIST) b.data[at.page_digests - b.data] ^= 1;
    if (ok && x->e->kind == EVIL_SEAL_JSON) ok = seal_json(x, &b, key);
    if (x->e->kind == EVIL_SEAL_TRUNCATED) b.len -= 3;
    if (x->e->kind == EVIL_NOTHING) {
        iso_buf_clear(&x->e->old_seal);
        ok = ok && iso_buf_append(&x->e->old_seal, b.data, b.len) == ISO_OK;
    }
    ok = ok && send_frame(x, ISO_FRAME_SEAL, x->e->kind == EVIL_OLD_SEAL ? &x->e->old_seal : &b);
    iso_buf_deinit(&b);
    return ok;
}

static bool misbehave_early(struct show *x)
{
    struct iso_buf b;
    struct iso_refusal r = {.reason = ISO_REASON_BUSY, .message = "enough"};
    bool on = true;
    iso_buf_init(&b, 4096);
    switch (x->e->kind) {
    case EVIL_ORDER:
        on = iso_buf_puts(&b, "{}") == ISO_OK && send_frame(x, ISO_FRAME_REQUEST, &b);
        break;
    case EVIL_PROGRESS_JSON:
        on = iso_buf_puts(&b, "{\"done\":1,\"queued\":0,\"total\":2,\"x\":1}") == ISO_OK &&
             send_frame(x, ISO_FRAME_PROGRESS, &b);
        break;
    case EVIL_ERROR:
        on = iso_refusal_write(&b, &r) == ISO_OK && send_frame(x, ISO_FRAME_ERROR, &b);
        break;
    default:
        break;
    }
    iso_buf_deinit(&b);
    return on && x->e->kind != EVIL_SILENT;
}

/* Waits for the consumer's last word: ACK, ERROR, CANCEL or the end of the connection. */
static void listen_to_end(struct show *x)
{
    struct iso_frame f;
    uint8_t text[ISO_FRAME_ERROR_MAX];
    while (iso_channel_recv_header(x->ch, &f, soon()) == ISO_OK) {
        if (f.type == ISO_FRAME_ERROR || f.type == ISO_FRAME_CANCEL) {
            struct iso_refusal r;
            if (iso_channel_recv_payload(x->ch, text, f.length, soon()) == ISO_OK &&
                iso_refusal_parse(&r, text, f.length) == ISO_OK) {
                x->e->told = r.reason;
            }
            return;
        }
        if (iso_channel_skip_payload(x->ch, soon()) != ISO_OK || f.type == ISO_FRAME_ACK) return;
    }
}

static void perform(struct show *x)
{
    const uint32_t page_bytes = iso_engine_kv_layout(x->e->engine)->page_bytes;
    if (!take_request(x)) return;
    x->page = iso_xalloc(page_bytes, 1);
    x->digests = iso_xalloc(x->plan.n_pages, sizeof(*x->digests));
    bool on = answer(x) && compute(x) && misbehave_early(x);
    on = on && send_pages(x) && send_seal(x);
    if (x->e->kind != EVIL_CLOSE_EARLY) listen_to_end(x);
    iso_session_free(x->s);
    iso_plan_deinit(&x->plan);
    free(x->page);
    free(x->digests);
}

static void *evil_thread(void *arg)
{
    struct evil *e = arg;
    struct iso_pending pending;
    struct show x = {.e = e};
    if (iso_listener_accept(e->listener, &pending, WAIT_MS, NULL) != ISO_OK) return NULL;
    if (iso_channel_accept(&x.ch, e->listener, &pending, NULL) != ISO_OK) return NULL;
    iso_channel_set_silence(x.ch, WAIT_MS);
    perform(&x);
    free(x.ids);
    iso_channel_free(x.ch);
    return NULL;
}

void evil_init(struct evil *e, struct iso_node *node, iso_engine *engine)
{
    *e = (struct evil){.node = node, .engine = engine};
    iso_buf_init(&e->old_seal, 1 << 20);
    if (iso_listener_open(&e->listener, node, "127.0.0.1:0") != ISO_OK) {
        fail_msg("%s", iso_err_detail());
    }
}

void evil_deinit(struct evil *e)
{
    iso_listener_free(e->listener);
    iso_buf_deinit(&e->old_seal);
}

uint16_t evil_port(const struct evil *e)
{
    return iso_listener_port(e->listener);
}

void evil_serve(struct evil *e, enum evil_kind kind)
{
    e->kind = kind;
    e->told = ISO_REASON_OK;
    assert_int_equal(pthread_create(&e->thread, NULL, evil_thread, e), 0);
}

void evil_join(struct evil *e)
{
    assert_int_equal(pthread_join(e->thread, NULL), 0);
}
