/* SPDX-License-Identifier: MIT
 * plan.h - which pages a hand-off moves: cut, ranges, order and totals, the same on both sides.
 *
 * For a prompt of n tokens the producer computes positions 0 .. n-2. Full layers need pages 0 ..
 * (n-2)/64, window layers of width W only from max(0, n-W)/64 on: position n-1, the first that the
 * consumer computes, sees no earlier key. Pages of whole 64 positions that the consumer holds
 * already are not sent again; the last page always is. Canonical order of pages: layer, head, page.
 */
#ifndef ISO_HANDOFF_PLAN_H
#define ISO_HANDOFF_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/digest.h"
#include "base/err.h"
#include "handoff/frame.h"
#include "handoff/manifest.h"
#include "handoff/reason.h"
#include "isobit_kv.h"

#define ISO_PLAN_NO_PAGE UINT64_MAX

struct iso_plan {
    uint32_t n_positions;         /* n - 1 */
    uint32_t end_page;            /* pages below it cover them; 0 for a prompt of one token */
    uint32_t cut[ISO_KV_CLASSES]; /* first page sent, <= end_page */
    uint32_t n_layers, n_heads, head_dim, page_bytes;
    const uint8_t *layer_class; /* [n_layers] borrowed from the layout */
    uint64_t *base;             /* [n_layers] canonical index of a layer's first page */
    uint64_t n_pages, bytes;    /* sent */
};

/* Range of one PAGES frame: the 20 bytes before the pages. */
struct iso_pages_head {
    uint32_t layer, first_head, n_heads, first_page, n_pages;
};

/* What a session that shares n_common leading tokens with the prompt may keep. The chains are left
 * zero. n_common <= n_tokens - 1. */
void iso_plan_held(struct iso_held held[ISO_KV_CLASSES],
                   const iso_session *s,
                   uint32_t n_tokens,
                   uint32_t n_common);

/* Plans a prompt of n_tokens >= 1. audit: window layers send all pages that are not held.
 *
 * Owner:  iso_plan_deinit(); layout is borrowed for the plan's life.
 * Errors: ISO_E_FORMAT a held range goes beyond the last page (CHAIN has no meaning then). */
enum iso_err iso_plan_init(struct iso_plan *p,
                           const struct iso_kv_layout *layout,
                           uint32_t n_tokens,
                           const struct iso_held held[ISO_KV_CLASSES],
                           bool audit) ISO_NODISCARD;
void iso_plan_deinit(struct iso_plan *p);

/* Canonical index of a page, ISO_PLAN_NO_PAGE when it is not sent. */
uint64_t iso_plan_index(const struct iso_plan *p, uint32_t layer, uint32_t head, uint32_t page);

/* Positions that page holds: 64, or fewer in the last one. */
uint32_t iso_plan_used(const struct iso_plan *p, uint32_t page);

void iso_pages_head_encode(uint8_t out[ISO_FRAME_PAGES_PREFIX_LEN], const struct iso_pages_head *h);

/* Reads and checks the range of a PAGES frame of length bytes against the plan.
 * Errors: ISO_E_PROTO with *reason PAGE_RANGE, or FRAME_LENGTH when the length is not 20 bytes and
 *         the pages. */
enum iso_err iso_pages_head_decode(struct iso_pages_head *out,
                                   const uint8_t bytes[ISO_FRAME_PAGES_PREFIX_LEN],
                                   size_t length,
                                   const struct iso_plan *p,
                                   enum iso_reason *reason) ISO_NODISCARD;

/* SHA-256 over the SHA-256 of every page that a hand-off of this prompt sends to a consumer that
 * holds nothing, by layer, head, page. s is a local run that holds exactly positions 0 ..
 * n_tokens-2 of the prompt (take it before the last token is appended: that would write into the
 * last page), or a consumer's session after the fetch.
 *
 * Errors: ISO_E_ARG the session holds another number of positions, or a page is gone (audit needs
 *         keep_expired). */
enum iso_err iso_handoff_visible_digest(struct iso_digest *out,
                                        const iso_session *s,
                                        uint32_t n_tokens,
                                        bool audit) ISO_NODISCARD;

#endif
