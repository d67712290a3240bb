/* SPDX-License-Identifier: MIT
 * test_template_limits.c - hostile templates end with a typed error, and threads share a template.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tokenizer/template.h"

#define OUT_MAX (4u << 20)
#ifdef __SANITIZE_ADDRESS__
#define STACK (4u << 20) /* bytes; the sanitizer's frames are several times larger */
#else
#define STACK (512u << 10)
#endif

/* --- hostile templates --- */

static double seconds(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static char *repeat(const char *head, const char *unit, size_t n, const char *tail)
{
    char *s = malloc(strlen(head) + n * strlen(unit) + strlen(tail) + 1);
    assert_non_null(s);
    char *p = stpcpy(s, head);
    for (size_t i = 0; i < n; i++) p = stpcpy(p, unit);
    (void)stpcpy(p, tail);
    return s;
}

/* Loading or rendering must end with a typed error within a few seconds. */
static void expect_bounded(const char *text, enum iso_err want)
{
    struct iso_template *t = NULL;
    struct iso_template_args args = {.messages = json_array()};
    struct iso_buf b;
    iso_buf_init(&b, OUT_MAX);
    const double start = seconds();
    enum iso_err err = iso_template_new(&t, text, strlen(text));
    if (err == ISO_OK) err = iso_template_render(&b, t, &args);
    const double took = seconds() - start;
    print_message("%-50.50s %s in %.2f s\n", text, iso_err_str(err), took);
    if (err != want) fail_msg("%.100s: %s", text, iso_err_detail());
    assert_true(took < 30.0);
    json_decref(args.messages);
    iso_buf_deinit(&b);
    iso_template_free(t);
}

static void expect_bounded_repeat(
    const char *head, const char *unit, size_t n, const char *tail, enum iso_err want)
{
    char *text = repeat(head, unit, n, tail);
    expect_bounded(text, want);
    free(text);
}

static void test_hostile(void **state)
{
    (void)state;
    expect_bounded("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", ISO_E_LIMIT);
    expect_bounded("{% macro f(x) %}{{ g(x) }}{% endmacro %}{% macro g(x) %}{{ f(x) }}{% endmacro "
                   "%}{{ g(1) }}",
                   ISO_E_LIMIT);
    expect_bounded(
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        ISO_E_LIMIT);
    expect_bounded(
        "{% for a in range(100000) %}{% for b in range(1000) %}x{% endfor %}{% endfor %}",
        ISO_E_LIMIT);
    expect_bounded("{{ range(1000000000) }}", ISO_E_TEMPLATE);
    expect_bounded("{{ 'x' * 1000000000000 }}", ISO_E_LIMIT);
    expect_bounded("{{ ('x' * 100000000) * 100000000000 }}", ISO_E_LIMIT);
    expect_bounded("{{ [0] * 9223372036854775807 }}", ISO_E_LIMIT);
    expect_bounded(
        "{% set ns = namespace(s='ab') %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}"
        "{% endfor %}",
        ISO_E_LIMIT);
    expect_bounded(
        "{% set ns = namespace(s=[1]) %}{% for i in range(64) %}{% set ns.s = [ns.s, ns.s] %}"
        "{% endfor %}{{ ns.s }}",
        ISO_E_LIMIT);
    expect_bounded(
        "{% set ns = namespace(s=[1]) %}{% for i in range(9000) %}{% set ns.s = [ns.s] %}"
        "{% endfor %}{{ ns.s }}",
        ISO_E_LIMIT);
    expect_bounded("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}", ISO_E_LIMIT);
    expect_bounded("{% set ns = namespace() %}{% set ns.me = [ns] %}{{ ns.me == ns.me|list }}",
                   ISO_OK);
    expect_bounded("{% set x = 'a' * 1000000 %}{{ x.rsplit('a' * 500000 ~ 'b') }}", ISO_E_LIMIT);
    expect_bounded(
        "{% set x = 'ab' * 500000 %}{% for i in range(100000) %}{% set y = x.replace('a', x) %}"
        "{% endfor %}",
        ISO_E_LIMIT);
    expect_bounded("{% set x = 'a' * 100000 %}{% for i in range(100000) %}{{ x[i] }}{% endfor %}",
                   ISO_E_LIMIT);
    expect_bounded(
        "{% set ns = namespace(t=(1,)) %}{% for i in range(60) %}{% set ns.t = (ns.t, ns.t) %}"
        "{% endfor %}{{ {ns.t: 1} }}",
        ISO_E_TEMPLATE);
    expect_bounded(
        "{% set ns = namespace(t=(1,)) %}{% for i in range(99999) %}{% set ns.t = (ns.t,) %}"
        "{% endfor %}{{ ns.t in {} }}",
        ISO_E_TEMPLATE);
    expect_bounded(
        "{% set ns = namespace(t=(1,)) %}{% for i in range(60) %}{% set ns.t = (ns.t, ns.t) %}"
        "{% endfor %}{% set u = ns.t %}{{ ns.t == u }}",
        ISO_E_LIMIT);
    expect_bounded("{% set x = 'a' * 9000000 %}{% for i in range(99999) %}{% for j in range(99) %}"
                   "{% if x and x is iterable %}{% endif %}{% endfor %}{% endfor %}",
                   ISO_E_LIMIT);
    expect_bounded("{% set x = '1' * 9000000 %}{% set d = dict([(x, 1)] + [(2, 3), (4, 5)] * 9) %}"
                   "{% for i in range(99999) %}{{ d[x] }}{{ x in d }}{{ d.get(x) }}{% endfor %}",
                   ISO_E_LIMIT);
    expect_bounded("{% set x = '1' * 9000000 %}{% for i in range(99999) %}{% set y = x|float %}"
                   "{% set z = x is upper %}{% set w = x.removeprefix(x) %}{% endfor %}",
                   ISO_E_LIMIT);
    expect_bounded("{{ '%99999999999d' % 1 }}", ISO_E_LIMIT);
    expect_bounded("{{ 9223372036854775807 + 1 }}", ISO_E_TEMPLATE);
    expect_bounded("{{ -9223372036854775807 - 2 }}", ISO_E_TEMPLATE);
    expect_bounded("{{ 9 ** 9 ** 9 }}", ISO_E_TEMPLATE);
    expect_bounded("{{ 'x' | indent(1000000000) }}", ISO_E_LIMIT);
    expect_bounded("{{ [1] | tojson(indent=1000000000) }}", ISO_E_LIMIT);
    expect_bounded_repeat("{{ ", "(", 100000, "", ISO_E_LIMIT);
    expect_bounded_repeat("{{ ", "[", 99, "", ISO_E_FORMAT);
    expect_bounded_repeat("{{ ", "not ", 100000, "1 }}", ISO_E_LIMIT);
    expect_bounded_repeat("{{ ", "-", 100000, "1 }}", ISO_E_LIMIT);
    expect_bounded_repeat("{{ 1", " + 1", 100000, " }}", ISO_E_LIMIT);
    expect_bounded_repeat("{{ x", ".a", 100000, " }}", ISO_E_LIMIT);
    expect_bounded_repeat("{{ x", "|list", 100000, " }}", ISO_E_LIMIT);
    expect_bounded_repeat("{{ 1", " if 1 else 1", 80000, " }}", ISO_E_LIMIT);
    expect_bounded_repeat("", "{% if 1 %}", 100000, "", ISO_E_LIMIT);
    expect_bounded_repeat("", "{% for (a, ", 1, "", ISO_E_FORMAT);
    expect_bounded_repeat("{% for ", "(", 95, "", ISO_E_FORMAT);
    expect_bounded_repeat("", "x", 1100000, "", ISO_E_LIMIT);
    expect_bounded_repeat("{{ f(", "1,", 300, "1) }}{% macro f() %}{% endmacro %}", ISO_E_LIMIT);
    expect_bounded_repeat("{{ ['a']|map('map'", ", 'map'", 2000, ")|list }}", ISO_E_LIMIT);
}

/* The deepest recursion fits a thread with a small stack. */
static void *recurse(void *arg)
{
    (void)arg;
    expect_bounded("{% macro f(x) %}{% for i in [1] %}{% if i %}{{ (f(x ~ (1 + (i|int))) ~ "
                   "'a')|trim }}{% endif %}"
                   "{% endfor %}{% endmacro %}{{ f('') }}",
                   ISO_E_LIMIT);
    expect_bounded_repeat("{{ ", "[", 99, "1]", ISO_E_FORMAT);
    return NULL;
}

static void test_small_stack(void **state)
{
    (void)state;
    pthread_attr_t attr;
    pthread_t thread;
    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstacksize(&attr, STACK), 0);
    assert_int_equal(pthread_create(&thread, &attr, recurse, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(pthread_attr_destroy(&attr), 0);
}

/* --- threads --- */

static void *render_many(void *arg)
{
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "hi");
    struct iso_template_args args = {.messages = messages};
    const char *ok = "yes";
    for (int i = 0; i < 200 && ok; i++) {
        struct iso_buf b;
        iso_buf_init(&b, 1000);
        if (iso_template_render(&b, arg, &args) != ISO_OK ||
            strcmp((char *)b.data, "<user>hi") != 0)
            ok = NULL;
        iso_buf_deinit(&b);
    }
    json_decref(messages);
    return (void *)(uintptr_t)ok;
}

static void test_threads_share_a_template(void **state)
{
    (void)state;
    static const char text[] = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    struct iso_template *t = NULL;
    pthread_t thread[4];
    assert_int_equal(iso_template_new(&t, text, sizeof(text) - 1), ISO_OK);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, render_many, t), 0);
    for (int i = 0; i < 4; i++) {
        void *ok = NULL;
        assert_int_equal(pthread_join(thread[i], &ok), 0);
        assert_non_null(ok);
    }
    iso_template_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_small_stack),
        cmocka_unit_test(test_threads_share_a_template),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
