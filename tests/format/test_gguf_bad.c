/* SPDX-License-Identifier: MIT
 * test_gguf_bad.c - wrong GGUF files: each is refused with a message that says what is wrong. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "format/gguf_walk.h"
#include "format/gguf_writer.h"

static void assert_refused(const char *path, enum iso_err want, const char *text)
{
    struct iso_gguf *g = NULL;
    const enum iso_err got = iso_gguf_open(&g, path);
    if (got == ISO_OK) {
        iso_gguf_close(g);
        fail_msg("opened, wanted \"%s\" with \"%s\"", iso_err_str(want), text);
    }
    assert_null(g);
    if (got != want || strstr(iso_err_message(), text) == NULL ||
        strstr(iso_err_message(), path) == NULL) {
        fail_msg("wanted \"%s\" with \"%s\" and the path, got \"%s\": %s", iso_err_str(want), text,
                 iso_err_str(got), iso_err_message());
    }
}

/* Saves, closes the writer and expects a refusal. */
static void assert_writer_refused(struct gguf_writer *w, enum iso_err want, const char *text)
{
    const char *path = test_path("bad.gguf");
    gguf_writer_save(w, path);
    gguf_writer_deinit(w);
    assert_refused(path, want, text);
}

static void assert_bytes_refused(const void *data, size_t len, enum iso_err want, const char *text)
{
    const char *path = test_path("bad.gguf");
    test_write_file(path, data, len);
    assert_refused(path, want, text);
}

/* A record of one tensor of dims [n_given], after a right one so that the file has data. */
static void assert_record_refused(const char *name,
                                  size_t name_len,
                                  uint32_t n_dims,
                                  const uint64_t *dims,
                                  unsigned n_given,
                                  uint32_t type,
                                  uint64_t offset,
                                  enum iso_err want,
                                  const char *text)
{
    struct gguf_writer w;
    gguf_writer_init(&w);
    gguf_writer_tensor(&w, "good", ISO_TYPE_F32, 1024, 0, 1);
    gguf_writer_record(&w, name, name_len, n_dims, dims, n_given, type, offset);
    assert_writer_refused(&w, want, text);
}

/* L1: dims[1] = 2^42 + 1 and sizes that wrap 64 bits. */
static void huge_dimensions_are_refused(void **state)
{
    (void)state;
    const uint64_t wrap_to_small[2] = {1024, 4398046511105};
    assert_record_refused("t", 1, 2, wrap_to_small, 2, 0, 0, ISO_E_FORMAT,
                          "tensor 't' of 18014398509486080 bytes");
    const uint64_t overflow[4] = {1u << 31, 1u << 31, 1u << 31, 1u << 31};
    assert_record_refused("t", 1, 4, overflow, 4, 0, 0, ISO_E_FORMAT, "size beyond 64 bits");
    const uint64_t wrap_to_zero[2] = {(uint64_t)1 << 62, 4};
    assert_record_refused("t", 1, 2, wrap_to_zero, 2, 0, 0, ISO_E_FORMAT, "size beyond 64 bits");
    const uint64_t max[1] = {UINT64_MAX};
    assert_record_refused("t", 1, 1, max, 1, 1, 0, ISO_E_FORMAT, "size beyond 64 bits");
    const uint64_t one[1] = {1};
    assert_record_refused("t", 1, 1, one, 1, 0, UINT64_MAX - 31, ISO_E_FORMAT, "truncated");
    assert_record_refused("t", 1, 1, one, 1, 0, 4096, ISO_E_FORMAT,
                          "tensor 't' of 4 bytes at offset 4096");
}

/* L2: a zero dimension, with the empty name of the report and without. */
static void zero_dimensions_are_refused(void **state)
{
    (void)state;
    const uint64_t zero_rows[2] = {1, 0};
    const uint64_t zero_cols[2] = {0, 1};
    assert_record_refused("", 0, 2, zero_rows, 2, 0, 0, ISO_E_FORMAT, "tensor 1 has an empty name");
    assert_record_refused("t", 1, 2, zero_rows, 2, 0, 0, ISO_E_FORMAT,
                          "dimension 1 of tensor 't' is 0");
    assert_record_refused("t", 1, 2, zero_cols, 2, 0, 0, ISO_E_FORMAT,
                          "dimension 0 of tensor 't' is 0");
    struct gguf_writer w; /* the file of the report */
    gguf_writer_init(&w);
    gguf_writer_record(&w, "", 0, 2, zero_rows, 2, 0, 0);
    assert_writer_refused(&w, ISO_E_FORMAT, "empty name");
}

/* L7: n_dims is checked before a dimension is read. */
static void dimension_count_is_bounded(void **state)
{
    (void)state;
    const uint64_t dims[1] = {1};
    assert_record_refused("t", 1, UINT32_MAX, dims, 1, 0, 0, ISO_E_FORMAT,
                          "tensor 't' has 4294967295 dimensions");
    assert_record_refused("t", 1, 1000000, dims, 1, 0, 0, ISO_E_FORMAT, "1000000 dimensions");
    assert_record_refused("t", 1, 5, dims, 1, 0, 0, ISO_E_FORMAT, "5 dimensions");
    assert_record_refused("t", 1, 0, dims, 1, 0, 0, ISO_E_FORMAT, "0 dimensions");
}

static void tensor_rules(void **state)
{
    (void)state;
    const uint64_t row31[1] = {31};
    const uint64_t row1[1] = {1};
    assert_record_refused("t", 1, 1, row31, 1, 2, 0, ISO_E_FORMAT,
                          "rows of 31 values, not a multiple of the 32 of a Q4_0 block");
    assert_record_refused("t", 1, 1, row1, 1, 17, 0, ISO_E_UNSUPPORTED,
                          "tensor 't' has type IQ2_XS");
    assert_record_refused("t", 1, 1, row1, 1, 10, 0, ISO_E_UNSUPPORTED, "type Q2_K");
    assert_record_refused("t", 1, 1, row1, 1, 4, 0, ISO_E_UNSUPPORTED, "type Q4_2");
    assert_record_refused("t", 1, 1, row1, 1, 999, 0, ISO_E_UNSUPPORTED, "unknown type 999");
    assert_record_refused("t", 1, 1, row1, 1, 0, 4, ISO_E_FORMAT,
                          "offset 4, not a multiple of the alignment 32");
    assert_record_refused("good", 4, 1, row1, 1, 0, 0, ISO_E_FORMAT,
                          "tensor 'good' is there twice, as number 0 and 1");
    assert_record_refused("a\0b", 3, 1, row1, 1, 0, 0, ISO_E_FORMAT, "byte 0x00 at 1");
    assert_record_refused("a\x1b[1m", 5, 1, row1, 1, 0, 0, ISO_E_FORMAT, "byte 0x1b at 1");
    assert_record_refused("ab\xff", 3, 1, row1, 1, 0, 0, ISO_E_FORMAT, "byte 0xff at 2");
    assert_record_refused("\xed\xa0\x80", 3, 1, row1, 1, 0, 0, ISO_E_FORMAT, "byte 0xed at 0");
    assert_record_refused("ab\xc3", 3, 1, row1, 1, 0, 0, ISO_E_FORMAT, "byte 0xc3 at 2");
    char name[ISO_GGUF_MAX_NAME + 1];
    memset(name, 'n', sizeof(name));
    assert_record_refused(name, sizeof(name), 1, row1, 1, 0, 0, ISO_E_LIMIT,
                          "tensor 1 has a name of 257 bytes, the limit is 256");
}

static void longest_name_is_accepted(void **state)
{
    (void)state;
    char name[ISO_GGUF_MAX_NAME + 1];
    memset(name, 'n', sizeof(name));
    name[ISO_GGUF_MAX_NAME] = '\0';
    struct gguf_writer w;
    gguf_writer_init(&w);
    gguf_writer_tensor(&w, name, ISO_TYPE_F32, 1, 0, 1);
    gguf_writer_save(&w, test_path("name.gguf"));
    gguf_writer_deinit(&w);
    struct iso_gguf *g = NULL;
    assert_int_equal(iso_gguf_open(&g, test_path("name.gguf")), ISO_OK);
    assert_non_null(iso_gguf_find(g, name));
    iso_gguf_close(g);
}

/* L5: counts that overflow a multiplication, and counts beyond the file or the limits. */
static void counts_are_bounded(void **state)
{
    (void)state;
    static const uint64_t counts[] = {(uint64_t)1 << 58, UINT64_MAX, (uint64_t)1 << 32, 100};
    for (size_t i = 0; i < ISO_COUNT(counts); i++) {
        struct gguf_writer w;
        gguf_writer_init(&w);
        w.n_tensors = counts[i];
        char text[64];
        (void)snprintf(text, sizeof(text), "says %" PRIu64 " tensors", counts[i]);
        assert_writer_refused(&w, ISO_E_FORMAT, text);
        gguf_writer_init(&w);
        w.n_keys = counts[i];
        (void)snprintf(text, sizeof(text), "says %" PRIu64 " keys", counts[i]);
        assert_writer_refused(&w, ISO_E_FORMAT, text);
    }
    static uint8_t large[33 * (ISO_GGUF_MAX_TENSORS + 1) + 24] = "GGUF\3";
    iso_put_u64(large + 8, ISO_GGUF_MAX_TENSORS + 1);
    assert_bytes_refused(large, sizeof(large), ISO_E_LIMIT, "65537 tensors, the limit is 65536");
    iso_put_u64(large + 8, 0);
    iso_put_u64(large + 16, ISO_GGUF_MAX_KEYS + 1);
    assert_bytes_refused(large, sizeof(large), ISO_E_LIMIT, "65537 keys, the limit is 65536");
}

static void string_total_is_bounded(void **state)
{
    (void)state;
    struct gguf_writer w;
    gguf_writer_init(&w);
    const size_t n = ISO_GGUF_MAX_STRINGS / 2 + 1; /* two arrays of empty strings, 67 MB each */
    void *zeros = NULL;
    assert_int_equal(iso_mem_alloc(&zeros, n, 8, "zeros"), ISO_OK);
    gguf_writer_array(&w, "one", ISO_GGUF_STRING, n, zeros, 8 * n);
    gguf_writer_array(&w, "two", ISO_GGUF_STRING, n, zeros, 8 * n);
    iso_mem_free(zeros);
    assert_writer_refused(&w, ISO_E_LIMIT, "key 'two' has 8388609 strings after 8388609 others");
}

static void key_rules(void **state)
{
    (void)state;
    static const struct {
        uint32_t type;
        const char *value;
        size_t len;
        enum iso_err err;
        const char *text;
    } cases[] = {
        {13, "\0\0\0\0", 4, ISO_E_FORMAT, "key 'k' has the unknown value type 13"},
        {UINT32_MAX, "\1", 1, ISO_E_FORMAT, "unknown value type 4294967295"},
        {ISO_GGUF_BOOL, "\2", 1, ISO_E_FORMAT, "bool 0 is 2"},
        {ISO_GGUF_ARRAY, "\x07\0\0\0\2\0\0\0\0\0\0\0\1\7", 14, ISO_E_FORMAT, "bool 1 is 7"},
        {ISO_GGUF_ARRAY, "\x09\0\0\0\1\0\0\0\0\0\0\0", 12, ISO_E_UNSUPPORTED, "array of arrays"},
        {ISO_GGUF_ARRAY, "\x0d\0\0\0\1\0\0\0\0\0\0\0", 12, ISO_E_FORMAT, "unknown value type 13"},
        {ISO_GGUF_ARRAY, "\x04\0\0\0\0\0\0\0\0\0\0\x40", 12, ISO_E_FORMAT,
         "says 4611686018427387904 array elements"},
        {ISO_GGUF_ARRAY, "\x0a\0\0\0\1\0\0\0\0\0\0\x20", 12, ISO_E_FORMAT, "array elements"},
        {ISO_GGUF_ARRAY, "\x08\0\0\0\1\0\0\0\0\0\0\x20", 12, ISO_E_FORMAT, "array elements"},
        {ISO_GGUF_ARRAY, "\x08\0\0\0\1\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", 20,
         ISO_E_FORMAT, "says 18446744073709551615 bytes of string"},
        {ISO_GGUF_STRING, "\1\0\0\0\0\0\0\x80", 8, ISO_E_FORMAT, "bytes of string"},
        {ISO_GGUF_U64, "\0\0\0\0", 4, ISO_E_FORMAT, "ends inside key 0"},
    };
    for (size_t i = 0; i < ISO_COUNT(cases); i++) {
        struct gguf_writer w;
        gguf_writer_init(&w);
        gguf_writer_raw(&w, "k", cases[i].type, cases[i].value, cases[i].len);
        assert_writer_refused(&w, cases[i].err, cases[i].text);
    }
    struct gguf_writer w;
    gguf_writer_init(&w);
    gguf_writer_int(&w, "same", ISO_GGUF_U8, 1);
    gguf_writer_int(&w, "other", ISO_GGUF_U8, 1);
    gguf_writer_int(&w, "same", ISO_GGUF_U8, 2);
    assert_writer_refused(&w, ISO_E_FORMAT, "key 'same' is there twice, as number 0 and 2");
    gguf_writer_init(&w);
    gguf_writer_int(&w, "", ISO_GGUF_U64, 1);
    assert_writer_refused(&w, ISO_E_FORMAT, "key 0 has an empty name");
}

static void alignment_rules(void **state)
{
    (void)state;
    static const uint32_t bad[] = {0, 1, 4, 7, 24, 33, (1 << 20) + 1, 1 << 21, UINT32_MAX};
    for (size_t i = 0; i < ISO_COUNT(bad); i++) {
        struct gguf_writer w;
        gguf_writer_init(&w);
        gguf_writer_int(&w, "general.alignment", ISO_GGUF_U32, bad[i]);
        char text[64];
        (void)snprintf(text, sizeof(text), "general.alignment is %" PRIu32, bad[i]);
        assert_writer_refused(&w, ISO_E_FORMAT, text);
    }
    struct gguf_writer w;
    gguf_writer_init(&w);
    gguf_writer_str(&w, "general.alignment", "32");
    assert_writer_refused(&w, ISO_E_FORMAT, "'general.alignment' is string");
}

static void versions_are_named(void **state)
{
    (void)state;
    static const struct {
        uint32_t version;
        const char *text;
    } cases[] = {
        {0, "GGUF version 0, this program reads 2 and 3"},
        {1, "GGUF version 1, this program reads 2 and 3: convert the original"},
        {4, "GGUF version 4"},
        {0x03000000, "big-endian GGUF"},
        {0x02000000, "big-endian GGUF"},
    };
    for (size_t i = 0; i < ISO_COUNT(cases); i++) {
        struct gguf_writer w;
        gguf_writer_init(&w);
        w.version = cases[i].version;
        assert_writer_refused(&w, ISO_E_UNSUPPORTED, cases[i].text);
    }
}

/* L10: what people give instead of a model. */
static void other_files_are_recognised(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t len;
        const char *text;
    } cases[] = {
#define CASE(bytes, text) {bytes, sizeof(bytes) - 1, text}
        CASE("", "an empty file: download it again"),
        CASE("GG", "only the first bytes of a GGUF file"),
        CASE("<!doctype html><html>...", "an HTML page, not a model"),
        CASE("\n <!DOCTYPE html>", "/resolve/ instead of /blob/"),
        CASE("\xef\xbb\xbf<HTML><head>", "an HTML page"),
        CASE("<?xml version=\"1.0\"?><Error><Code>AccessDenied", "an HTML page"),
        CASE("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 98362432\n",
             "a git-lfs pointer, not the model itself: run git lfs pull"),
        CASE("lmgg\1\0\0\0", "an old GGML model (ggml)"),
        CASE("fmgg\1\0\0\0", "an old GGML model (ggmf)"),
        CASE("tjgg\3\0\0\0", "an old GGML model (ggjt), from before GGUF: convert"),
        CASE("ggjt\3\0\0\0", "an old GGML model (ggjt)"),
        CASE("FUGG\0\0\0\3", "a big-endian GGUF file"),
        CASE("PK\3\4\24\0\0\0", "a zip archive"),
        CASE("\x10\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"F32\"}}", "a safetensors file: convert"),
        CASE("\x1f\x8b\x08\0", "a gzip file"),
        CASE("\x80\x02}q\0", "a Python pickle"),
        CASE("\0\0\0\0\0\0\0\0\0\0", "all zeros at the start"),
        CASE("Entry not found", "a text that begins \"Entry not found\""),
        CASE("{\"error\":\"Repository not found\",\"status\":404,\"x\":\"0123456789\"}",
             "a text that begins \"{\"error\":\"Repository"),
        CASE("\1\2\3\4\5\6\7\x08\x09", "first bytes 01 02 03 04 05 06 07 08)"),
        CASE("a\x1b[31m", "first bytes 61 1b 5b 33 31 6d)"),
#undef CASE
    };
    for (size_t i = 0; i < ISO_COUNT(cases); i++) {
        assert_bytes_refused(cases[i].bytes, cases[i].len, ISO_E_FORMAT, cases[i].text);
        assert_bytes_refused(cases[i].bytes, cases[i].len, ISO_E_FORMAT, "not a GGUF file: it is");
    }
}

static void build_sample(struct iso_buf *b)
{
    struct gguf_writer w;
    struct iso_buf strings;
    gguf_writer_init(&w);
    iso_buf_init(&strings, 4096);
    gguf_writer_put_str(&strings, "one", 3);
    gguf_writer_put_str(&strings, "two", 3);
    gguf_writer_str(&w, "general.architecture", "llama");
    gguf_writer_int(&w, "general.alignment", ISO_GGUF_U32, 32);
    gguf_writer_int(&w, "k.bool", ISO_GGUF_BOOL, 1);
    gguf_writer_f64(&w, "k.f64", 2.5);
    gguf_writer_array(&w, "k.strings", ISO_GGUF_STRING, 2, strings.data, strings.len);
    gguf_writer_array(&w, "k.u16s", ISO_GGUF_U16, 2, "\1\0\2\0", 4);
    gguf_writer_int(&w, "split.count", ISO_GGUF_U16, 1);
    gguf_writer_tensor(&w, "a", ISO_TYPE_Q4_1, 64, 2, 0x11);
    gguf_writer_tensor(&w, "b", ISO_TYPE_F16, 5, 0, 0x22);
    iso_buf_deinit(&strings);
    iso_buf_init(b, 1 << 20);
    gguf_writer_finish(&w, b);
    gguf_writer_deinit(&w);
}

/* Every prefix is refused, from the empty file to the last byte but one (L8). */
static void every_truncation_is_refused(void **state)
{
    (void)state;
    struct iso_buf b;
    build_sample(&b);
    const char *path = test_path("cut.gguf");
    struct iso_gguf *g = NULL;
    for (size_t len = 0; len < b.len; len++) {
        test_write_file(path, b.data, len);
        const enum iso_err e = iso_gguf_open(&g, path);
        if (e != ISO_E_FORMAT) fail_msg("prefix of %zu bytes: %s", len, iso_err_str(e));
        if (len >= 4 && strstr(iso_err_message(), "truncated") == NULL) {
            fail_msg("prefix of %zu bytes: %s", len, iso_err_message());
        }
    }
    test_write_file(path, b.data, b.len);
    assert_int_equal(iso_gguf_open(&g, path), ISO_OK);
    iso_gguf_close(g);
    iso_buf_deinit(&b);
}

/* Each byte of the header region, several ways: refused or read, never a bad access. */
static void byte_flips_never_crash(void **state)
{
    (void)state;
    static const uint8_t flips[] = {0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xff, 0x7f};
    struct iso_buf b;
    build_sample(&b);
    const char *path = test_path("flip.gguf");
    size_t n_opened = 0;
    size_t n_refused = 0;
    uint64_t sum = 0;
    for (size_t at = 0; at < b.len; at++) {
        for (size_t f = 0; f < ISO_COUNT(flips); f++) {
            b.data[at] ^= flips[f];
            test_write_file(path, b.data, b.len);
            b.data[at] ^= flips[f];
            struct iso_gguf *g = NULL;
            if (iso_gguf_open(&g, path) != ISO_OK) {
                n_refused++;
                continue;
            }
            n_opened++;
            sum += gguf_walk(g);
            iso_gguf_close(g);
        }
    }
    print_message("%zu flips opened, %zu refused, sum %" PRIx64 "\n", n_opened, n_refused, sum);
    assert_true(n_opened > 100);
    assert_true(n_refused > 1000);
    iso_buf_deinit(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(huge_dimensions_are_refused),
        cmocka_unit_test(zero_dimensions_are_refused),
        cmocka_unit_test(dimension_count_is_bounded),
        cmocka_unit_test(tensor_rules),
        cmocka_unit_test(longest_name_is_accepted),
        cmocka_unit_test(counts_are_bounded),
        cmocka_unit_test(string_total_is_bounded),
        cmocka_unit_test(key_rules),
        cmocka_unit_test(alignment_rules),
        cmocka_unit_test(versions_are_named),
        cmocka_unit_test(other_files_are_recognised),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(byte_flips_never_crash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
