/* SPDX-License-Identifier: MIT
 * fuzz_pages.c - any bytes as a prompt's plan and the range of a PAGES frame, and as a page: what
 * is accepted has a place, and every page of it an index of its own. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "arith/page.h"
#include "handoff/plan.h"
#include "isobit_kv.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds)
{
    if (!holds) __builtin_trap();
}

#define HEAD_DIM 8u

static const uint8_t layer_class[4] = {ISO_KV_WINDOW, ISO_KV_WINDOW, ISO_KV_WINDOW, ISO_KV_FULL};

static void range(const struct iso_plan *p, const uint8_t *prefix, size_t length)
{
    struct iso_pages_head h;
    enum iso_reason reason = ISO_REASON_OK;
    uint8_t again[ISO_FRAME_PAGES_PREFIX_LEN];
    if (iso_pages_head_decode(&h, prefix, length, p, &reason) != ISO_OK) {
        check(reason == ISO_REASON_PAGE_RANGE || reason == ISO_REASON_FRAME_LENGTH);
        return;
    }
    iso_pages_head_encode(again, &h);
    check(memcmp(again, prefix, sizeof(again)) == 0);
    for (uint32_t page = h.first_page; page < h.first_page + h.n_pages; page++) {
        for (uint32_t head = h.first_head; head < h.first_head + h.n_heads; head++) {
            check(iso_plan_index(p, h.layer, head, page) < p->n_pages);
            check(iso_plan_used(p, page) >= 1 && iso_plan_used(p, page) <= ISO_PAGE_POSITIONS);
        }
    }
}

static void page_form(const uint8_t *data, size_t size)
{
    uint8_t page[160 * HEAD_DIM + 512];
    const char *why = NULL;
    memset(page, 0, sizeof(page));
    memcpy(page, data, size < sizeof(page) ? size : sizeof(page));
    for (uint32_t used = 0; used <= ISO_PAGE_POSITIONS; used += 16) {
        check(iso_kv_page_form(&why, page, HEAD_DIM, used) == (why == NULL));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct iso_kv_layout layout = {.n_layers = 4,
                                         .n_kv_heads = 3,
                                         .head_dim = HEAD_DIM,
                                         .page_bytes = iso_page_bytes(HEAD_DIM),
                                         .window = 100,
                                         .layer_class = layer_class};
    struct iso_held held[ISO_KV_CLASSES] = {{0}};
    struct iso_plan p;
    page_form(data, size);
    if (size < 20 + ISO_FRAME_PAGES_PREFIX_LEN) return 0;
    for (int c = 0; c < ISO_KV_CLASSES; c++) {
        held[c].first = iso_get_u32(data + 8 * c) >> (data[16] & 31);
        held[c].count = iso_get_u32(data + 8 * c + 4) >> (data[16] & 31);
    }
    const uint32_t n_tokens = 1u + iso_get_u16(data + 17) % 2000u;
    if (iso_plan_init(&p, &layout, n_tokens, held, (data[19] & 1) != 0) != ISO_OK) return 0;
    const size_t room = (size_t)(data[19] >> 1) * layout.page_bytes;
    range(&p, data + 20, ISO_FRAME_PAGES_PREFIX_LEN + room);
    iso_plan_deinit(&p);
    return 0;
}
