/* SPDX-License-Identifier: MIT
 * device_metal_hazard.c - ranges of buffers in use, compared pair by pair: there are few at a time. */
#include "device/device_metal_hazard.h"

#include <assert.h>

static bool conflict(const struct iso_metal_range *a, const struct iso_metal_range *b)
{
    return a->buffer == b->buffer && (a->write || b->write) && a->first < b->end && b->first < a->end;
}

static bool named(const uint32_t *name, size_t n, uint32_t buffer)
{
    for (size_t i = 0; i < n; i++) {
        if (name[i] == buffer) return true;
    }
    return false;
}

/* A barrier orders everything before it on its buffer: earlier uses need not be known any longer. */
static void forget(struct iso_metal_hazards *h, const uint32_t *name, size_t n)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < h->n; i++) {
        if (!named(name, n, h->at[i].buffer)) h->at[kept++] = h->at[i];
    }
    h->n = kept;
}

/* Widens what is there already when nothing is lost by it: the same buffer read again and again. */
static bool merge(struct iso_metal_hazards *h, const struct iso_metal_range *use)
{
    for (uint32_t i = 0; i < h->n; i++) {
        struct iso_metal_range *r = &h->at[i];
        if (r->buffer == use->buffer && r->write == use->write && r->first <= use->first && use->end <= r->end) {
            return true;
        }
    }
    return false;
}

size_t iso_metal_hazards_note(struct iso_metal_hazards *h, const struct iso_metal_range *use, size_t n,
                              uint32_t *name)
{
    size_t n_names = 0;
    assert(n <= 64);
    const bool full = h->n + n > ISO_METAL_RANGES;
    for (uint32_t i = 0; i < h->n; i++) {
        bool wanted = full;
        for (size_t k = 0; k < n && !wanted; k++) wanted = conflict(&h->at[i], &use[k]);
        if (wanted && !named(name, n_names, h->at[i].buffer)) name[n_names++] = h->at[i].buffer;
    }
    if (n_names > 0) forget(h, name, n_names);
    for (size_t k = 0; k < n; k++) {
        if (use[k].buffer != 0 && use[k].first < use[k].end && !merge(h, &use[k])) h->at[h->n++] = use[k];
    }
    return n_names;
}
