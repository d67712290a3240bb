/* SPDX-License-Identifier: MIT
 * plan.c - cut, ranges and order of the pages of a hand-off. */
#include "handoff/plan.h"

#include <stdlib.h>

#include "arith/page.h"
#include "base/mem.h"

/* Whole pages below the last one: that one is always sent, so there is always something to seal. */
static uint32_t holdable(uint32_t n_tokens, uint32_t n_common)
{
    if (n_tokens < 2) return 0;
    const uint32_t last = (n_tokens - 2) / ISO_PAGE_POSITIONS;
    return ISO_MIN(n_common / ISO_PAGE_POSITIONS, last);
}

void iso_plan_held(struct iso_held held[ISO_KV_CLASSES],
                   const iso_session *s,
                   uint32_t n_tokens,
                   uint32_t n_common)
{
    const uint32_t end = holdable(n_tokens, n_common);
    for (int c = 0; c < ISO_KV_CLASSES; c++) {
        const uint32_t first = iso_session_first_page(s, (enum iso_kv_class)c);
        held[c] = (struct iso_held){0};
        if (first < end) held[c] = (struct iso_held){.first = first, .count = end - first};
    }
}

/* First page sent of a class whose pages are needed from page need on. */
static uint32_t cut_of(const struct iso_held *h, uint32_t need)
{
    const uint32_t end = h->first + h->count;
    return h->count > 0 && h->first <= need && end > need ? end : need;
}

static uint32_t window_need(const struct iso_kv_layout *layout, uint32_t n_tokens, bool audit)
{
    if (audit || layout->window == 0 || n_tokens < layout->window) return 0;
    return (n_tokens - layout->window) / ISO_PAGE_POSITIONS;
}

enum iso_err iso_plan_init(struct iso_plan *p,
                           const struct iso_kv_layout *layout,
                           uint32_t n_tokens,
                           const struct iso_held held[ISO_KV_CLASSES],
                           bool audit)
{
    if (n_tokens == 0) ISO_FAIL(ISO_E_ARG, "a prompt without tokens");
    struct iso_plan q = {.n_positions = n_tokens - 1,
                         .n_layers = layout->n_layers,
                         .n_heads = layout->n_kv_heads,
                         .head_dim = layout->head_dim,
                         .page_bytes = layout->page_bytes,
                         .layer_class = layout->layer_class};
    q.end_page = q.n_positions == 0 ? 0 : (q.n_positions - 1) / ISO_PAGE_POSITIONS + 1;
    const uint32_t most = q.end_page == 0 ? 0 : q.end_page - 1;
    for (int c = 0; c < ISO_KV_CLASSES; c++) {
        const uint64_t end = (uint64_t)held[c].first + held[c].count;
        if (end > most && held[c].count > 0) {
            ISO_FAIL(ISO_E_FORMAT, "pages held below %llu, the last page is %u",
                     (unsigned long long)end, most);
        }
    }
    q.cut[ISO_KV_FULL] = cut_of(&held[ISO_KV_FULL], 0);
    q.cut[ISO_KV_WINDOW] = cut_of(&held[ISO_KV_WINDOW], window_need(layout, n_tokens, audit));
    /* A window of one position needs no page that is not the consumer's own. */
    for (int c = 0; c < ISO_KV_CLASSES; c++) q.cut[c] = ISO_MIN(q.cut[c], q.end_page);
    q.base = iso_xalloc(layout->n_layers, sizeof(*q.base));
    for (uint32_t l = 0; l < q.n_layers; l++) {
        q.base[l] = q.n_pages;
        q.n_pages += (uint64_t)q.n_heads * (q.end_page - q.cut[layout->layer_class[l]]);
    }
    q.bytes = q.n_pages * q.page_bytes;
    *p = q;
    return ISO_OK;
}

void iso_plan_deinit(struct iso_plan *p)
{
    free(p->base);
    p->base = NULL;
}

uint64_t iso_plan_index(const struct iso_plan *p, uint32_t layer, uint32_t head, uint32_t page)
{
    if (layer >= p->n_layers || head >= p->n_heads || page >= p->end_page) return ISO_PLAN_NO_PAGE;
    const uint32_t cut = p->cut[p->layer_class[layer]];
    if (page < cut) return ISO_PLAN_NO_PAGE;
    return p->base[layer] + (uint64_t)head * (p->end_page - cut) + (page - cut);
}

uint32_t iso_plan_used(const struct iso_plan *p, uint32_t page)
{
    const uint32_t first = page * ISO_PAGE_POSITIONS;
    return ISO_MIN(p->n_positions - first, (uint32_t)ISO_PAGE_POSITIONS);
}

void iso_pages_head_encode(uint8_t out[ISO_FRAME_PAGES_PREFIX_LEN], const struct iso_pages_head *h)
{
    iso_put_u32(out, h->layer);
    iso_put_u32(out + 4, h->first_head);
    iso_put_u32(out + 8, h->n_heads);
    iso_put_u32(out + 12, h->first_page);
    iso_put_u32(out + 16, h->n_pages);
}

enum iso_err iso_pages_head_decode(struct iso_pages_head *out,
                                   const uint8_t bytes[ISO_FRAME_PAGES_PREFIX_LEN],
                                   size_t length,
                                   const struct iso_plan *p,
                                   enum iso_reason *reason)
{
    const struct iso_pages_head h = {.layer = iso_get_u32(bytes),
                                     .first_head = iso_get_u32(bytes + 4),
                                     .n_heads = iso_get_u32(bytes + 8),
                                     .first_page = iso_get_u32(bytes + 12),
                                     .n_pages = iso_get_u32(bytes + 16)};
    if (h.layer >= p->n_layers) {
        ISO_FAIL_REASON(reason, PAGE_RANGE, ISO_E_PROTO, "layer %u of %u", h.layer, p->n_layers);
    }
    if (h.n_heads == 0 || h.first_head >= p->n_heads || h.n_heads > p->n_heads - h.first_head) {
        ISO_FAIL_REASON(reason, PAGE_RANGE, ISO_E_PROTO, "heads %u+%u of %u", h.first_head,
                        h.n_heads, p->n_heads);
    }
    const uint32_t cut = p->cut[p->layer_class[h.layer]];
    if (h.n_pages == 0 || h.first_page < cut || h.first_page >= p->end_page ||
        h.n_pages > p->end_page - h.first_page) {
        ISO_FAIL_REASON(reason, PAGE_RANGE, ISO_E_PROTO,
                        "layer %u: pages %u+%u, agreed are %u to %u", h.layer, h.first_page,
                        h.n_pages, cut, p->end_page);
    }
    /* Fits u64: heads and pages are below the plan's, whose bytes did. */
    const uint64_t want =
        ISO_FRAME_PAGES_PREFIX_LEN + (uint64_t)h.n_heads * h.n_pages * p->page_bytes;
    if (want != length) {
        ISO_FAIL_REASON(reason, FRAME_LENGTH, ISO_E_PROTO, "PAGES of %zu bytes for a range of %llu",
                        length, (unsigned long long)want);
    }
    *out = h;
    return ISO_OK;
}

/* Adds the digests of one layer and head. */
static enum iso_err hash_head(struct iso_hasher *chain,
                              const struct iso_plan *p,
                              const iso_session *s,
                              uint32_t layer,
                              uint32_t head)
{
    for (uint32_t page = p->cut[p->layer_class[layer]]; page < p->end_page; page++) {
        const uint8_t *bytes = iso_session_page(s, layer, head, page);
        if (bytes == NULL) {
            ISO_FAIL(ISO_E_ARG, "layer %u head %u page %u is not held", layer, head, page);
        }
        struct iso_digest d;
        iso_sha256(&d, bytes, p->page_bytes);
        iso_hasher_update(chain, d.bytes, sizeof(d.bytes));
    }
    return ISO_OK;
}

enum iso_err iso_handoff_visible_digest(struct iso_digest *out,
                                        const iso_session *s,
                                        uint32_t n_tokens,
                                        bool audit)
{
    if (n_tokens == 0 || iso_session_position(s) != n_tokens - 1) {
        ISO_FAIL(ISO_E_ARG, "the session holds %u positions, a prompt of %u tokens needs %u",
                 iso_session_position(s), n_tokens, n_tokens - 1);
    }
    static const struct iso_held none[ISO_KV_CLASSES];
    struct iso_plan p;
    ISO_TRY(iso_plan_init(&p, iso_engine_kv_layout(iso_session_engine(s)), n_tokens, none, audit));
    struct iso_hasher *chain = iso_hasher_new();
    enum iso_err err = ISO_OK;
    for (uint32_t l = 0; l < p.n_layers && err == ISO_OK; l++) {
        for (uint32_t h = 0; h < p.n_heads && err == ISO_OK; h++) {
            err = hash_head(chain, &p, s, l, h);
        }
    }
    if (err == ISO_OK) iso_hasher_final(chain, out);
    iso_hasher_free(chain);
    iso_plan_deinit(&p);
    return err;
}
