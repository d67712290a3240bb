/* SPDX-License-Identifier: MIT
 * fuzz_control.c - any bytes as a control document of a hand-off, the first byte says which: what
 * is accepted must be written back as the same bytes. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "handoff/manifest.h"
#include "handoff/seal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds)
{
    if (!holds) __builtin_trap();
}

/* The document was accepted; write is how its struct is written. */
static void same(struct iso_buf *b, enum iso_err write, const uint8_t *data, size_t size)
{
    check(write == ISO_OK);
    check(b->len == size && memcmp(b->data, data, size) == 0);
}

static void one(struct iso_buf *b, unsigned kind, const uint8_t *p, size_t n)
{
    struct iso_accept a;
    struct iso_refusal r;
    struct iso_progress_note g;
    struct iso_ack k;
    struct iso_manifest m;
    struct iso_request q;
    struct iso_seal s;
    switch (kind) {
    case 0:
        if (iso_accept_parse(&a, p, n) == ISO_OK) same(b, iso_accept_write(b, &a), p, n);
        break;
    case 1:
        if (n > 0 && iso_refusal_parse(&r, p, n) == ISO_OK) same(b, iso_refusal_write(b, &r), p, n);
        break;
    case 2:
        if (iso_progress_parse(&g, p, n) == ISO_OK) same(b, iso_progress_write(b, &g), p, n);
        break;
    case 3:
        if (iso_ack_parse(&k, p, n) == ISO_OK) same(b, iso_ack_write(b, &k), p, n);
        break;
    case 4:
        if (iso_manifest_parse(&m, p, n) == ISO_OK) same(b, iso_manifest_write(b, &m), p, n);
        break;
    case 5:
        if (iso_request_parse(&q, p, n) == ISO_OK) same(b, iso_request_write(b, &q), p, n);
        break;
    default:
        if (iso_seal_decode(&s, p, n) == ISO_OK) same(b, iso_seal_encode(b, &s), p, n);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct iso_buf b;
    if (size == 0) return 0;
    iso_buf_init(&b, 1 << 20);
    one(&b, data[0] % 7, data + 1, size - 1);
    iso_buf_deinit(&b);
    return 0;
}
