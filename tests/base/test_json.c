/* SPDX-License-Identifier: MIT
 * test_json.c - bounded parsing, canonical writing, typed members; SHA-256 and hexadecimal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/digest.h"
#include "base/json.h"
#include "base/mem.h"

static json_t *parse(const char *text)
{
    json_t *v = NULL;
    if (iso_json_parse(&v, text, strlen(text), 1 << 20, "text") != ISO_OK) {
        fail_msg("%s: %s", text, iso_err_detail());
    }
    return v;
}

static void refuse(const char *text, size_t len, enum iso_err want, const char *why)
{
    json_t *v = NULL;
    assert_int_equal(iso_json_parse(&v, text, len, 1 << 20, "the request"), want);
    assert_null(v);
    if (strstr(iso_err_message(), why) == NULL ||
        strstr(iso_err_message(), "the request") == NULL) {
        fail_msg("%s", iso_err_message());
    }
}

static void bad_texts_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *why;
    } bad[] = {
        {"", "line"},
        {"{", "line 1"},
        {"{\"a\":1,\n\"a\":2}", "line 2"},
        {"[1,]", "line 1"},
        {"1 2", "line 1"},
        {"\"\xff\"", "line"},
        {"{\"a\" 1}", "line"},
        {"nul", "line"},
        {"[1}", "line"},
        {"{'a':1}", "line"},
        {"\"\\ud800\"", "line"},
        {"99999999999999999999", "big"},
        {"[1] //", "line"},
        {"{\"a\\u0000b\":1}", "line"},
        {"NaN", "line"},
        {"01", "line"},
    };
    for (size_t i = 0; i < ISO_COUNT(bad); i++) {
        refuse(bad[i].text, strlen(bad[i].text), ISO_E_FORMAT, bad[i].why);
    }
    refuse("[]\0", 3, ISO_E_FORMAT, "line");
    json_t *v = NULL;
    assert_int_equal(iso_json_parse(&v, "[1,2]", 5, 4, "the request"), ISO_E_LIMIT);
    assert_non_null(strstr(iso_err_message(), "5 bytes of JSON, limit 4"));
}

/* S9: the parser recurses, so depth is refused before it starts. */
static void depth_is_bounded(void **state)
{
    (void)state;
    enum { DEEP = 100000 };
    static char text[2 * DEEP + 8];
    for (int depth = ISO_JSON_MAX_DEPTH - 1; depth <= ISO_JSON_MAX_DEPTH + 1; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        text[2 * depth] = '\0';
        if (depth <= ISO_JSON_MAX_DEPTH)
            json_decref(parse(text));
        else
            refuse(text, 2 * (size_t)depth, ISO_E_LIMIT, "deeper than 64");
    }
    memset(text, '[', DEEP);
    refuse(text, DEEP, ISO_E_LIMIT, "deeper than 64");
    for (size_t i = 0; i + 5 < DEEP; i += 5) memcpy(text + i, "{\"a\":", 5);
    refuse(text, DEEP / 5 * 5, ISO_E_LIMIT, "deeper than 64");
    /* Brackets in strings are not nesting, also behind an escaped quote. */
    static char quoted[2000];
    memset(quoted, '[', sizeof(quoted));
    memcpy(quoted, "\"\\\"", 3);
    memcpy(quoted + sizeof(quoted) - 3, "\\\\\"", 3);
    json_t *v = NULL;
    assert_int_equal(iso_json_parse(&v, quoted, sizeof(quoted), 1 << 20, "text"), ISO_OK);
    json_decref(v);
    /* Many siblings are not depth either. */
    size_t n = 0;
    text[n++] = '[';
    for (int i = 0; i < 1000; i++) {
        memcpy(text + n, i ? ",[]" : "[]", i ? 3 : 2);
        n += i ? 3 : 2;
    }
    text[n++] = ']';
    assert_int_equal(iso_json_parse(&v, text, n, 1 << 20, "text"), ISO_OK);
    json_decref(v);
}

static void check_canonical(const char *text, const char *want)
{
    json_t *v = parse(text);
    struct iso_buf b;
    iso_buf_init(&b, 4096);
    assert_int_equal(iso_buf_puts(&b, ">"), ISO_OK);
    assert_int_equal(iso_json_canonical(&b, v), ISO_OK);
    assert_string_equal((char *)b.data + 1, want);
    iso_buf_deinit(&b);
    json_decref(v);
}

static void the_canonical_form_is_one_text(void **state)
{
    (void)state;
    check_canonical(" { \"b\" : 1 , \"a\" : [ true , null ] } ", "{\"a\":[true,null],\"b\":1}");
    check_canonical("{\"b\":{\"z\":0,\"y\":-0},\"B\":\"\",\"\":9}",
                    "{\"\":9,\"B\":\"\",\"b\":{\"y\":0,\"z\":0}}");
    check_canonical("\"\\u00e9\\/\\n\\u0001\"", "\"\xc3\xa9/\\n\\u0001\"");
    check_canonical("\"\\u0000\"", "\"\\u0000\"");
    check_canonical("-9223372036854775808", "-9223372036854775808");
    check_canonical("{\"\xc3\xa9\":1,\"z\":2}", "{\"z\":2,\"\xc3\xa9\":1}"); /* by bytes */
    check_canonical("\"\xf0\x9f\xa6\x99\"", "\"\xf0\x9f\xa6\x99\"");
}

static void reals_and_full_buffers_are_refused(void **state)
{
    (void)state;
    static const char *const real[] = {"1.0", "[1,[2,{\"a\":0.5}]]", "1e3",
                                       "{\"a\":{\"b\":[1e-3]}}"};
    struct iso_buf b;
    iso_buf_init(&b, 10);
    assert_int_equal(iso_buf_puts(&b, "keep"), ISO_OK);
    for (size_t i = 0; i < ISO_COUNT(real); i++) {
        json_t *v = parse(real[i]);
        assert_int_equal(iso_json_canonical(&b, v), ISO_E_ARG);
        json_decref(v);
        assert_string_equal((char *)b.data, "keep");
    }
    json_t *v = parse("[1,2,3]");
    assert_int_equal(iso_json_canonical(&b, v), ISO_E_LIMIT);
    assert_string_equal((char *)b.data, "keep");
    assert_int_equal(b.len, 4);
    json_decref(v);
    iso_buf_deinit(&b);
}

static void members_are_typed(void **state)
{
    (void)state;
    json_t *o =
        parse("{\"s\":\"x\",\"n\":5,\"t\":true,\"o\":{},\"a\":[],\"z\":\"a\\u0000b\",\"r\":1.5}");
    const char *s = NULL;
    int64_t n = 0;
    bool t = false;
    json_t *v = NULL;
    assert_int_equal(iso_json_get_string(&s, o, "s"), ISO_OK);
    assert_string_equal(s, "x");
    assert_int_equal(iso_json_get_string(&s, o, "n"), ISO_E_FORMAT);
    assert_non_null(strstr(iso_err_message(), "\"n\""));
    assert_int_equal(iso_json_get_string(&s, o, "z"), ISO_E_FORMAT);
    assert_non_null(strstr(iso_err_message(), "NUL"));
    assert_int_equal(iso_json_get_string(&s, o, "missing"), ISO_E_FORMAT);
    assert_int_equal(iso_json_get_int(&n, o, "n", 5, 5), ISO_OK);
    assert_int_equal(n, 5);
    assert_int_equal(iso_json_get_int(&n, o, "n", 6, 10), ISO_E_FORMAT);
    assert_non_null(strstr(iso_err_message(), "\"n\" is 5, allowed 6 to 10"));
    assert_int_equal(iso_json_get_int(&n, o, "n", 0, 4), ISO_E_FORMAT);
    assert_int_equal(iso_json_get_int(&n, o, "r", 0, 4), ISO_E_FORMAT);
    assert_int_equal(iso_json_get_bool(&t, o, "t"), ISO_OK);
    assert_true(t);
    assert_int_equal(iso_json_get_bool(&t, o, "n"), ISO_E_FORMAT);
    assert_int_equal(iso_json_get_object(&v, o, "o"), ISO_OK);
    assert_int_equal(iso_json_get_object(&v, o, "a"), ISO_E_FORMAT);
    assert_int_equal(iso_json_get_array(&v, o, "a"), ISO_OK);
    assert_int_equal(iso_json_get_array(&v, o, "o"), ISO_E_FORMAT);
    static const char *const all[] = {"s", "n", "t", "o", "a", "z", "r", "unused"};
    assert_int_equal(iso_json_only_keys(o, all, 8, "the manifest"), ISO_OK);
    assert_int_equal(iso_json_only_keys(o, all, 6, "the manifest"), ISO_E_FORMAT);
    assert_non_null(strstr(iso_err_message(), "the manifest: unknown member \"r\""));
    json_decref(o);
}

/* FIPS 180-2 examples. */
static void digests_are_sha256(void **state)
{
    (void)state;
    static const struct {
        const char *text, *hex;
    } known[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    struct iso_hasher *h = iso_hasher_new();
    for (size_t i = 0; i < ISO_COUNT(known); i++) {
        struct iso_digest d, e, f;
        char hex[ISO_DIGEST_HEX];
        const size_t n = strlen(known[i].text);
        iso_sha256(&d, known[i].text, n);
        iso_digest_hex(hex, &d);
        assert_string_equal(hex, known[i].hex);
        for (size_t k = 0; k < n; k++) iso_hasher_update(h, known[i].text + k, 1);
        iso_hasher_final(h, &e); /* and starts anew */
        assert_memory_equal(&d, &e, sizeof(d));
        assert_int_equal(iso_hex_decode(f.bytes, sizeof(f.bytes), hex), ISO_OK);
        assert_memory_equal(&d, &f, sizeof(d));
    }
    iso_hasher_free(h);
    iso_hasher_free(NULL);
}

static void hexadecimal_is_exact(void **state)
{
    (void)state;
    uint8_t b[3] = {0};
    assert_int_equal(iso_hex_decode(b, 3, "0aF9Ab"), ISO_OK);
    assert_memory_equal(b, "\x0a\xf9\xab", 3);
    assert_int_equal(iso_hex_decode(b, 0, ""), ISO_OK);
    static const char *const bad[] = {"",       "0af9a",  "0af9abc", "0af9abcd",
                                      "0af9ag", "0x9abc", " af9ab",  "0af9a\xff"};
    for (size_t i = 0; i < ISO_COUNT(bad); i++) {
        assert_int_equal(iso_hex_decode(b, 3, bad[i]), ISO_E_FORMAT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_texts_are_refused),
        cmocka_unit_test(depth_is_bounded),
        cmocka_unit_test(the_canonical_form_is_one_text),
        cmocka_unit_test(reals_and_full_buffers_are_refused),
        cmocka_unit_test(members_are_typed),
        cmocka_unit_test(digests_are_sha256),
        cmocka_unit_test(hexadecimal_is_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
