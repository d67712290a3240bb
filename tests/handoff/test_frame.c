/* SPDX-License-Identifier: MIT
 * test_frame.c - frame headers: whole, byte by byte, every truncation, every limit; reason names.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "handoff/frame.h"

struct row {
    const char *name;
    unsigned code;
    uint32_t min, max;
    unsigned flags;
};

static const struct row ROWS[] = {
#define X(name, code, min, max, flags) {#name, code, min, max, flags},
    ISO_FRAME_MAP(X)
#undef X
};
#define N_ROWS (sizeof ROWS / sizeof ROWS[0])

static enum iso_err decode(const uint8_t *b, size_t len, struct iso_frame *f, enum iso_reason *r)
{
    *r = ISO_REASON_OK;
    return iso_frame_decode(f, b, len, r);
}

/* Field by field: the padding of the struct has no meaning. */
static bool same(const struct iso_frame *a, const struct iso_frame *b)
{
    return a->type == b->type && a->flags == b->flags && a->stream == b->stream &&
           a->length == b->length;
}

static void bytes_are_as_documented(void **state)
{
    (void)state;
    static const uint8_t want[ISO_FRAME_HEADER_LEN] = {'I', 'H', 'F', '1', 6, 0, 0, 0,
                                                       4,   3,   2,   1,   0, 1, 0, 0};
    const struct iso_frame f = {.type = ISO_FRAME_PAGES, .stream = 0x01020304, .length = 256};
    uint8_t got[ISO_FRAME_HEADER_LEN];
    iso_frame_encode(got, &f);
    assert_memory_equal(got, want, sizeof want);
}

static void every_type_and_limit(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_ROWS; i++) {
        const struct row *r = &ROWS[i];
        const uint32_t lengths[] = {r->min, r->max, r->min + 1, r->max - 1, r->max / 2};
        assert_string_equal(iso_frame_name(r->code), r->name);
        for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
            struct iso_frame f = {.type = (enum iso_frame_type)r->code,
                                  .stream = (uint32_t)(k * 77),
                                  .length = lengths[k]};
            struct iso_frame back;
            enum iso_reason reason;
            uint8_t b[ISO_FRAME_HEADER_LEN];
            iso_frame_encode(b, &f);
            assert_int_equal(decode(b, sizeof b, &back, &reason), ISO_OK);
            assert_true(same(&f, &back));
            for (size_t cut = 0; cut < sizeof b; cut++)
                assert_int_equal(decode(b, cut, &back, &reason), ISO_E_AGAIN);
        }
    }
}

/* Writes a header with this length whatever the limits say. */
static void raw(uint8_t b[ISO_FRAME_HEADER_LEN], unsigned type, uint32_t length)
{
    memset(b, 0, ISO_FRAME_HEADER_LEN);
    memcpy(b, "IHF1", 4);
    b[4] = (uint8_t)type;
    for (int i = 0; i < 4; i++) b[12 + i] = (uint8_t)(length >> 8 * i);
}

static void lengths_outside_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_ROWS; i++) {
        const struct row *r = &ROWS[i];
        const uint32_t lengths[] = {r->min - 1, r->max + 1, UINT32_MAX, 0x80000000u, 0};
        for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
            const bool fine = lengths[k] >= r->min && lengths[k] <= r->max;
            struct iso_frame f = {.type = ISO_FRAME_ACK, .length = 1};
            const struct iso_frame before = f;
            enum iso_reason reason;
            uint8_t b[ISO_FRAME_HEADER_LEN];
            raw(b, r->code, lengths[k]);
            assert_int_equal(decode(b, sizeof b, &f, &reason), fine ? ISO_OK : ISO_E_PROTO);
            if (fine) continue;
            assert_int_equal(reason, ISO_REASON_FRAME_LENGTH);
            assert_true(same(&f, &before)); /* untouched on failure */
            const struct iso_frame bad = {.type = (enum iso_frame_type)r->code,
                                          .length = lengths[k]};
            assert_int_equal(iso_frame_check(&bad, &reason), ISO_E_PROTO);
        }
    }
}

static void unknown_types_and_bits_are_refused(void **state)
{
    (void)state;
    struct iso_frame f;
    enum iso_reason reason;
    uint8_t b[ISO_FRAME_HEADER_LEN];
    for (unsigned type = 0; type < 256; type++) {
        bool known = false;
        for (size_t i = 0; i < N_ROWS; i++) known = known || ROWS[i].code == type;
        raw(b, type, 64);
        assert_int_equal(decode(b, sizeof b, &f, &reason), known ? ISO_OK : ISO_E_PROTO);
        /* Seen with the fifth byte already. */
        assert_int_equal(decode(b, 5, &f, &reason), known ? ISO_E_AGAIN : ISO_E_PROTO);
        if (!known) assert_int_equal(reason, ISO_REASON_FRAME_TYPE);
        if (!known) assert_string_equal(iso_frame_name(type), "?");
    }
    for (unsigned bit = 0; bit < 24; bit++) { /* flags and both reserved bytes */
        raw(b, ISO_FRAME_SEAL, 64);
        b[5 + bit / 8] = (uint8_t)(1u << bit % 8);
        assert_int_equal(decode(b, sizeof b, &f, &reason), ISO_E_PROTO);
        assert_int_equal(reason, ISO_REASON_FRAME_FLAGS);
        assert_int_equal(decode(b, 6 + bit / 8, &f, &reason), ISO_E_PROTO);
    }
    for (unsigned bit = 0; bit < 32; bit++) { /* magic */
        raw(b, ISO_FRAME_SEAL, 64);
        b[bit / 8] = (uint8_t)(b[bit / 8] ^ 1u << bit % 8);
        assert_int_equal(decode(b, bit / 8 + 1, &f, &reason), ISO_E_PROTO);
        assert_int_equal(reason, ISO_REASON_FRAME_MAGIC);
    }
}

static void reasons_have_names(void **state)
{
    (void)state;
    for (unsigned i = 0; i < ISO_REASON_COUNT; i++) {
        enum iso_reason back;
        const char *name = iso_reason_name((enum iso_reason)i);
        assert_int_equal(iso_reason_from_name(&back, name), ISO_OK);
        assert_int_equal(back, i);
        assert_true(strlen(iso_reason_text((enum iso_reason)i)) > 5);
    }
    enum iso_reason r = ISO_REASON_MAC;
    assert_int_equal(iso_reason_from_name(&r, "PIN_MISMATC"), ISO_E_FORMAT);
    assert_int_equal(iso_reason_from_name(&r, ""), ISO_E_FORMAT);
    assert_int_equal(r, ISO_REASON_MAC);
    assert_string_equal(iso_reason_name((enum iso_reason)ISO_REASON_COUNT), "?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_as_documented),
        cmocka_unit_test(every_type_and_limit),
        cmocka_unit_test(lengths_outside_are_refused),
        cmocka_unit_test(unknown_types_and_bits_are_refused),
        cmocka_unit_test(reasons_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
