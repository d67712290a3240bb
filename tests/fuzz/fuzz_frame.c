/* SPDX-License-Identifier: MIT
 * fuzz_frame.c - any bytes as a stream of frames: the header parser must be the same for the whole
 * header and for each of its beginnings, and must accept only what it would write itself. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "handoff/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds)
{
    if (!holds) __builtin_trap();
}

/* One header at the start of data. Returns the bytes of the frame, 0 at the end of the stream. */
static size_t one_frame(const uint8_t *data, size_t size)
{
    enum iso_err before = ISO_E_AGAIN;
    enum iso_reason first = ISO_REASON_OK;
    struct iso_frame f = {.type = ISO_FRAME_ACK};
    const size_t head = size < ISO_FRAME_HEADER_LEN ? size : ISO_FRAME_HEADER_LEN;
    for (size_t len = 0; len <= head; len++) {
        enum iso_reason reason = ISO_REASON_OK;
        const enum iso_err err = iso_frame_decode(&f, data, len, &reason);
        check(err == ISO_OK || err == ISO_E_AGAIN || err == ISO_E_PROTO);
        check((err == ISO_E_PROTO) == (reason != ISO_REASON_OK));
        check(err != ISO_OK || len == ISO_FRAME_HEADER_LEN);
        /* Refused early is refused for good, for the same reason. */
        if (before == ISO_E_PROTO) check(err == ISO_E_PROTO && reason == first);
        before = err;
        first = reason;
    }
    if (before != ISO_OK) return 0;
    uint8_t again[ISO_FRAME_HEADER_LEN];
    enum iso_reason reason;
    check(iso_frame_check(&f, &reason) == ISO_OK);
    iso_frame_encode(again, &f);
    check(memcmp(again, data, sizeof again) == 0);
    check(iso_frame_name(f.type)[0] != '?');
    return ISO_FRAME_HEADER_LEN + (size_t)f.length;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (;;) {
        const size_t n = one_frame(data, size);
        if (n == 0 || n > size) return 0;
        data += n;
        size -= n;
    }
}
