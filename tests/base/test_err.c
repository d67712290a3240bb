/* SPDX-License-Identifier: MIT
 * test_err.c - codes, details, messages, and errors that change threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>

#include "base/err.h"

static enum iso_err fails(int n)
{
    ISO_FAIL(ISO_E_LIMIT, "%d apples, limit %d", n, 3);
}

static enum iso_err forwards(int n)
{
    ISO_TRY(fails(n));
    return ISO_OK;
}

static enum iso_err cleans_up(int *freed, bool direct)
{
    enum iso_err err = ISO_OK;
    if (direct) ISO_FAIL_OUT(ISO_E_IO, "directly");
    ISO_TRY_OUT(fails(7));
out:
    *freed = 1;
    return err;
}

static void every_code_has_a_text(void **state)
{
    (void)state;
    for (int i = 0; i < ISO_ERR_COUNT; i++) {
        const char *text = iso_err_str((enum iso_err)i);
        assert_non_null(text);
        assert_true(strlen(text) > 2);
        for (int k = 0; k < i; k++) assert_string_not_equal(text, iso_err_str((enum iso_err)k));
    }
    assert_string_equal(iso_err_str(ISO_ERR_COUNT), "unknown error");
    assert_string_equal(iso_err_str((enum iso_err) - 1), "unknown error");
    assert_int_equal(ISO_OK, 0);
}

static void a_detail_has_place_text_and_message(void **state)
{
    (void)state;
    assert_int_equal(forwards(5), ISO_E_LIMIT);
    assert_non_null(strstr(iso_err_detail(), "test_err.c:"));
    assert_non_null(strstr(iso_err_detail(), ": limit exceeded: 5 apples, limit 3"));
    assert_string_equal(iso_err_message(), "5 apples, limit 3");
    int freed = 0;
    assert_int_equal(cleans_up(&freed, false), ISO_E_LIMIT);
    assert_int_equal(freed, 1);
    assert_string_equal(iso_err_message(), "7 apples, limit 3");
    freed = 0;
    assert_int_equal(cleans_up(&freed, true), ISO_E_IO);
    assert_int_equal(freed, 1);
    assert_string_equal(iso_err_message(), "directly");
}

static void long_details_are_cut(void **state)
{
    (void)state;
    static char text[5000], file[2000];
    memset(text, 'x', sizeof(text) - 1);
    memset(file, 'f', sizeof(file) - 1);
    assert_int_equal(iso_err_raise(ISO_E_IO, "a.c", 1, "%s", text), ISO_E_IO);
    assert_true(strlen(iso_err_detail()) < 1024);
    assert_int_equal(strspn(iso_err_message(), "x"), strlen(iso_err_message()));
    assert_true(strlen(iso_err_message()) > 900);
    assert_int_equal(iso_err_raise(ISO_E_IO, file, 1, "short"), ISO_E_IO);
    assert_string_equal(iso_err_message(), "short"); /* the place is given up, not the message */
    assert_int_equal(iso_err_adopt(ISO_E_IO, text), ISO_E_IO);
    assert_true(strlen(iso_err_message()) > 900 && strlen(iso_err_detail()) < 1024);
}

/* An outer message may quote the inner one, which lives in the same memory. */
static void a_detail_may_quote_the_last_one(void **state)
{
    (void)state;
    (void)fails(9);
    (void)iso_err_raise(ISO_E_FORMAT, "b.c", 2, "outer (%s)", iso_err_message());
    assert_string_equal(iso_err_message(), "outer (9 apples, limit 3)");
    (void)iso_err_adopt(ISO_E_FORMAT, iso_err_message());
    assert_string_equal(iso_err_message(), "outer (9 apples, limit 3)");
}

struct worker {
    enum iso_err err;
    char detail[256];
};

static void *work(void *arg)
{
    struct worker *w = arg;
    assert_string_equal(iso_err_detail(), ""); /* each thread has its own */
    w->err = fails(11);
    (void)snprintf(w->detail, sizeof(w->detail), "%s", iso_err_detail());
    return NULL;
}

static void an_error_of_another_thread_is_adopted(void **state)
{
    (void)state;
    (void)fails(1);
    struct worker w = {0};
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, work, &w), 0);
    assert_int_equal(pthread_join(t, NULL), 0);
    assert_string_equal(iso_err_message(), "1 apples, limit 3");
    assert_int_equal(iso_err_adopt(w.err, w.detail), ISO_E_LIMIT);
    assert_string_equal(iso_err_detail(), w.detail);
    assert_string_equal(iso_err_message(), "11 apples, limit 3"); /* not the place in the source */
    assert_int_equal(iso_err_adopt(ISO_E_IO, "only a message"), ISO_E_IO);
    assert_string_equal(iso_err_message(), "only a message");
    assert_int_equal(iso_err_adopt(ISO_E_IO, ""), ISO_E_IO);
    assert_string_equal(iso_err_message(), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_has_a_text),
        cmocka_unit_test(a_detail_has_place_text_and_message),
        cmocka_unit_test(long_details_are_cut),
        cmocka_unit_test(a_detail_may_quote_the_last_one),
        cmocka_unit_test(an_error_of_another_thread_is_adopted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
