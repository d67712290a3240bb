/* SPDX-License-Identifier: MIT
 * diff_page.c - where two KV pages differ: region, position and element of the first value.
 *
 * Source: arith/page.h. A value is what a reader of the page means by it: one signed byte, one nibble
 * of k_lo (dimension i in the low one, i + d/2 in the high one), one f32 scale. */
#include <string.h>

#include "arith/page.h"
#include "base/buf.h"
#include "cli/diff.h"

/* Values per position of a region. */
static uint32_t region_width(enum iso_diff_region r, uint32_t d)
{
    return r == ISO_DIFF_K_SCALE || r == ISO_DIFF_V_SCALE ? 1 : d;
}

/* Bits of one value. */
static uint32_t value(const uint8_t *page, enum iso_diff_region r, uint32_t slot, uint32_t i, uint32_t d)
{
    const uint32_t half = d / 2;
    switch (r) {
    case ISO_DIFF_K_HI: return page[slot * d + i];
    case ISO_DIFF_K_LO: {
        const uint8_t both = page[iso_page_k_lo(d) + slot * half + i % half];
        return i < half ? both & 15u : both >> 4;
    }
    case ISO_DIFF_V: return page[iso_page_v(d) + i * ISO_PAGE_POSITIONS + slot];
    case ISO_DIFF_K_SCALE: return iso_get_u32(page + iso_page_k_scale(d) + 4 * slot);
    default: return iso_get_u32(page + iso_page_v_scale(d) + 4 * slot);
    }
}

/* Adds what differs in one region; keeps the first value of all. */
static uint64_t region(struct iso_diff_page *first, bool *found, const uint8_t *a, const uint8_t *b,
                       enum iso_diff_region r, uint32_t d, uint32_t n_slots)
{
    uint64_t n = 0;
    for (uint32_t slot = 0; slot < n_slots; slot++) {
        for (uint32_t i = 0; i < region_width(r, d); i++) {
            const uint32_t x = value(a, r, slot, i, d), y = value(b, r, slot, i, d);
            if (x == y) continue;
            n++;
            if (*found) continue;
            *found = true;
            first->region = r;
            first->position = first->page * ISO_PAGE_POSITIONS + slot;
            first->element = i;
            first->bits[0] = x;
            first->bits[1] = y;
        }
    }
    return n;
}

void iso_diff_pages(struct iso_diff_result *r, const struct iso_diff_page *where, const uint8_t *a,
                    const uint8_t *b, uint32_t head_dim, uint32_t n_slots)
{
    r->n_pages++;
    if (memcmp(a, b, iso_page_bytes(head_dim)) == 0) return;
    struct iso_diff_page first = *where;
    bool found = false;
    uint64_t n = 0;
    for (int i = 0; i < ISO_DIFF_REGIONS; i++) {
        n += region(&first, &found, a, b, (enum iso_diff_region)i, head_dim, n_slots);
    }
    if (n == 0) return; /* only in positions that one side does not have */
    if (r->n_pages_different == 0) r->page = first;
    r->n_pages_different++;
    r->n_values_different += n;
}
