/* SPDX-License-Identifier: MIT
 * test_utf8_stream.c - characters split over tokens (case S2), and what can never be one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>
#include <utf8proc.h>

#include "tokenizer/utf8_stream.h"

#define FFFD "\xEF\xBF\xBD"

/* Pushes in [len] in pieces of step bytes and flushes; returns the length of out. */
static size_t run(char *out, const char *in, size_t len, size_t step)
{
    struct iso_utf8_stream s;
    iso_utf8_stream_init(&s);
    size_t n = 0;
    for (size_t i = 0; i < len; i += step) {
        const size_t part = len - i < step ? len - i : step;
        const size_t written = iso_utf8_stream_push(&s, out + n, in + i, part);
        assert_true(written <= ISO_UTF8_STREAM_ROOM(part));
        n += written;
    }
    n += iso_utf8_stream_flush(&s, out + n);
    assert_int_equal(iso_utf8_stream_flush(&s, out + n), 0);
    return n;
}

static void check(const char *in, const char *want)
{
    char out[256];
    for (size_t step = 1; step <= 5; step++) {
        const size_t n = run(out, in, strlen(in), step);
        assert_int_equal(n, strlen(want));
        assert_memory_equal(out, want, n);
    }
}

static void test_split_emoji(void **state)
{
    (void)state;
    struct iso_utf8_stream s = {0};
    char out[16];
    assert_int_equal(iso_utf8_stream_push(&s, out, "\xF0\x9F", 2), 0);
    assert_int_equal(iso_utf8_stream_push(&s, out, "\x98\x80", 2), 4);
    assert_memory_equal(out, "\xF0\x9F\x98\x80", 4);
    assert_int_equal(iso_utf8_stream_flush(&s, out), 0);
    assert_int_equal(iso_utf8_stream_push(&s, out, "a\xF0\x9F\x98", 4), 1);
    assert_int_equal(iso_utf8_stream_flush(&s, out), 3); /* once for the three bytes */
    assert_memory_equal(out, FFFD, 3);
}

/* Expected replacements: Unicode 15, section 3.9, tables 3-8 to 3-11. */
static void test_replacement(void **state)
{
    (void)state;
    check("plain", "plain");
    check("\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80");
    check("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", FFFD FFFD FFFD FFFD FFFD FFFD FFFD FFFD "A");
    check("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", FFFD FFFD FFFD FFFD FFFD FFFD FFFD FFFD "A");
    check("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", FFFD FFFD FFFD FFFD FFFD "A" FFFD FFFD "B");
    check("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", FFFD FFFD FFFD FFFD "A");
    check("x\xE2\x82", "x" FFFD);
    check("\xE2\xE2\x82\xAC", FFFD "\xE2\x82\xAC");
}

/* Every sequence of four bytes from one of each class: valid output, the same in any pieces, and
 * the same verdict as utf8proc. */
static void test_all_classes(void **state)
{
    (void)state;
    static const uint8_t byte[] = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0,
                                   0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC,
                                   0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF};
    enum { N = sizeof(byte) };
    for (size_t i = 0; i < (size_t)N * N * N * N; i++) {
        const char in[4] = {(char)byte[i % N], (char)byte[i / N % N], (char)byte[i / N / N % N],
                            (char)byte[i / N / N / N]};
        char whole[32];
        char single[32];
        const size_t n = run(whole, in, 4, 4);
        if (n != run(single, in, 4, 1) || memcmp(whole, single, n) != 0)
            fail_msg("sequence %zu", i);
        if (iso_utf8_valid_len(whole, n) != n) fail_msg("sequence %zu is not valid", i);
        size_t valid = 0;
        utf8proc_int32_t c = 0;
        for (utf8proc_ssize_t used = 1; valid < 4 && used > 0;
             valid += used > 0 ? (size_t)used : 0) {
            used = utf8proc_iterate((const utf8proc_uint8_t *)in + valid,
                                    (utf8proc_ssize_t)(4 - valid), &c);
        }
        if (iso_utf8_valid_len(in, 4) != valid) fail_msg("sequence %zu: valid to %zu", i, valid);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_emoji),
        cmocka_unit_test(test_replacement),
        cmocka_unit_test(test_all_classes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
