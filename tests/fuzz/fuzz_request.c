/* SPDX-License-Identifier: MIT
 * fuzz_request.c - any bytes as the payload of REQUEST, then through the producer's checks and its
 * plan: nothing that was accepted may lie outside the limits. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "handoff/plan.h"
#include "handoff/request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds)
{
    if (!holds) __builtin_trap();
}

static const uint8_t layer_class[4] = {ISO_KV_WINDOW, ISO_KV_FULL, ISO_KV_WINDOW, ISO_KV_FULL};
static const struct iso_kv_layout layout = {.n_layers = 4,
                                            .n_kv_heads = 2,
                                            .head_dim = 8,
                                            .page_bytes = 1792,
                                            .window = 100,
                                            .layer_class = layer_class};

/* The identity is the request's own, so that the later checks are reached; the chain cannot be. */
static void check_request(const struct iso_request *r, const int32_t *ids)
{
    struct iso_request_limits limits = {
        .identity = &r->identity, .n_ctx = 1024, .n_vocab = 1000, .window = 100};
    enum iso_reason reason = ISO_REASON_OK;
    bool template_equal = false;
    struct iso_plan p;
    if (iso_request_check(&template_equal, r, ids, &limits, &reason) != ISO_OK) {
        check(reason != ISO_REASON_OK);
        return;
    }
    check(template_equal && r->n_ids >= 1 && r->n_ids <= 1024);
    check(iso_plan_init(&p, &layout, r->n_ids, r->held, r->audit) == ISO_OK);
    check(p.cut[0] <= p.end_page && p.cut[1] <= p.end_page);
    check(p.n_pages <= 4u * 2u * p.end_page && p.bytes == p.n_pages * 1792);
    iso_plan_deinit(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct iso_request r;
    int32_t *ids = NULL;
    enum iso_reason reason = ISO_REASON_OK;
    struct iso_buf again;
    if (iso_request_decode(&r, &ids, data, size, &reason) != ISO_OK) {
        check(reason == ISO_REASON_FRAME_FIELD || reason == ISO_REASON_DIGEST);
        return 0;
    }
    iso_buf_init(&again, size + 1);
    check(iso_request_encode(&again, &r, ids) == ISO_OK);
    check(again.len == size && memcmp(again.data, data, size) == 0);
    iso_buf_deinit(&again);
    check_request(&r, ids);
    free(ids);
    return 0;
}
