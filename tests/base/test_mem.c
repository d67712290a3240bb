/* SPDX-License-Identifier: MIT
 * test_mem.c - checked sizes, aligned blocks, the no-allocation guard, the bounded buffer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"

static void sizes_do_not_wrap(void **state)
{
    (void)state;
    size_t x = 0;
    assert_int_equal(iso_mul_size(&x, 6, 7), ISO_OK);
    assert_int_equal(x, 42);
    assert_int_equal(iso_mul_size(&x, SIZE_MAX, 1), ISO_OK);
    assert_true(x == SIZE_MAX);
    assert_int_equal(iso_mul_size(&x, SIZE_MAX, 0), ISO_OK);
    assert_int_equal(x, 0);
    assert_int_equal(iso_mul_size(&x, SIZE_MAX / 2 + 1, 2), ISO_E_LIMIT);
    assert_non_null(strstr(iso_err_message(), "x 2 overflows"));
    assert_int_equal(iso_add_size(&x, SIZE_MAX - 1, 1), ISO_OK);
    assert_int_equal(iso_add_size(&x, SIZE_MAX, 1), ISO_E_LIMIT);
    assert_non_null(strstr(iso_err_message(), "+ 1 overflows"));
}

static void blocks_are_aligned_and_zero(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 63, 64, 65, 4096, 1 << 20};
    for (size_t i = 0; i < ISO_COUNT(sizes); i++) {
        for (int k = 0; k < 20; k++) {
            uint8_t *p = NULL;
            assert_int_equal(iso_mem_alloc((void **)&p, sizes[i], 1, "block"), ISO_OK);
            assert_int_equal((uintptr_t)p % ISO_ALIGNMENT, 0);
            for (size_t b = 0; b < sizes[i]; b += 61) assert_int_equal(p[b], 0);
            memset(p, 0xa5, sizes[i]); /* what calloc gives again must still be zero */
            iso_mem_free(p);
        }
    }
    iso_mem_free(NULL);
    void *p = NULL;
    assert_int_equal(iso_mem_alloc(&p, SIZE_MAX / 2, 3, "weights"), ISO_E_LIMIT);
    assert_int_equal(iso_mem_alloc(&p, SIZE_MAX - 8, 1, "weights"), ISO_E_LIMIT);
    assert_null(p);
}

/* A child may use at most 256 MiB of address space: large blocks fail with a name. */
static void a_large_block_that_does_not_fit_is_an_error(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* shadow memory */
#endif
    const pid_t pid = fork();
    if (pid == 0) {
        const struct rlimit limit = {256 << 20, 256 << 20};
        void *p = NULL;
        if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(9);
        if (iso_mem_alloc(&p, 1 << 20, 1 << 10, "KV pages") != ISO_E_NOMEM) _exit(1);
        if (strstr(iso_err_message(), "KV pages: 1073741824 bytes") == NULL) _exit(2);
        _exit(p == NULL ? 0 : 3);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* Runs fn in a child without output; says whether it aborted. */
static bool aborts(void (*fn)(void))
{
    const pid_t pid = fork();
    if (pid == 0) {
        (void)signal(SIGABRT, SIG_DFL);
        if (freopen("/dev/null", "w", stderr) == NULL) _exit(3);
        fn();
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void guarded_xalloc(void)
{
    iso_alloc_guard_begin();
    free(iso_xalloc(1, 1));
}

static void guarded_mem_alloc(void)
{
    iso_alloc_guard_begin();
    void *p = NULL;
    if (iso_mem_alloc(&p, 1, 1, "x") != ISO_OK) _exit(4);
}

static void guarded_realloc(void)
{
    void *p = iso_xalloc(1, 1);
    iso_alloc_guard_begin();
    p = iso_xrealloc(p, 2, 1);
    free(p);
}

static void guarded_strdup(void)
{
    iso_alloc_guard_begin();
    free(iso_xstrdup("x"));
}

static void nested_guard(void)
{
    iso_alloc_guard_begin();
    iso_alloc_guard_begin();
    iso_alloc_guard_end();
    free(iso_xalloc(1, 1));
}

static void unbalanced_guard(void)
{
    iso_alloc_guard_end();
}

static void ended_guard(void)
{
    iso_alloc_guard_begin();
    iso_alloc_guard_end();
    free(iso_xalloc(1, 1));
}

static void overflowing_realloc(void)
{
    free(iso_xrealloc(NULL, SIZE_MAX / 2, 4));
}

static void the_guard_aborts(void **state)
{
    (void)state;
    assert_true(aborts(guarded_xalloc));
    assert_true(aborts(guarded_mem_alloc));
    assert_true(aborts(guarded_realloc));
    assert_true(aborts(guarded_strdup));
    assert_true(aborts(nested_guard));
    assert_true(aborts(unbalanced_guard));
    assert_true(aborts(overflowing_realloc));
    assert_false(aborts(ended_guard));
}

static void small_blocks_and_strings(void **state)
{
    (void)state;
    int *p = iso_xalloc(3, sizeof(*p));
    assert_int_equal(p[0] | p[1] | p[2], 0);
    p[2] = 5;
    p = iso_xrealloc(p, 300, sizeof(*p));
    assert_int_equal(p[2], 5);
    free(p);
    free(iso_xalloc(0, 0));
    char *s = iso_xstrndup("abcdef", 3);
    assert_string_equal(s, "abc");
    free(s);
    s = iso_xstrdup("");
    assert_string_equal(s, "");
    free(s);
}

/* --- buf ----------------------------------------------------------------------------------------
 */

static void a_buffer_stops_at_its_maximum(void **state)
{
    (void)state;
    static const size_t max[] = {0, 1, 63, 64, 65, 1000};
    for (size_t i = 0; i < ISO_COUNT(max); i++) {
        struct iso_buf b;
        iso_buf_init(&b, max[i]);
        assert_string_equal((char *)b.data, "");
        for (size_t n = 0; n < max[i]; n++) {
            assert_int_equal(iso_buf_u8(&b, (uint8_t)('a' + n % 26)), ISO_OK);
            assert_int_equal(b.data[b.len], 0);
        }
        assert_int_equal(b.len, max[i]);
        assert_int_equal(iso_buf_u8(&b, 'x'), ISO_E_LIMIT);
        assert_int_equal(iso_buf_append(&b, "xy", 2), ISO_E_LIMIT);
        assert_int_equal(iso_buf_puts(&b, "x"), ISO_E_LIMIT);
        assert_int_equal(iso_buf_printf(&b, "%d", 5), ISO_E_LIMIT);
        assert_int_equal(iso_buf_u64(&b, 5), ISO_E_LIMIT);
        assert_int_equal(iso_buf_append(&b, "", 0), ISO_OK);
        assert_int_equal(iso_buf_append(&b, "x", SIZE_MAX), ISO_E_LIMIT);
        assert_int_equal(b.len, max[i]);
        for (size_t n = 0; n < max[i]; n++) assert_int_equal(b.data[n], 'a' + n % 26);
        assert_int_equal(b.data[b.len], 0);
        iso_buf_clear(&b);
        assert_int_equal(b.len, 0);
        assert_string_equal((char *)b.data, "");
        iso_buf_deinit(&b);
        assert_null(b.data);
        iso_buf_deinit(&b);
    }
}

static void integers_are_little_endian(void **state)
{
    (void)state;
    struct iso_buf b;
    iso_buf_init(&b, 64);
    assert_int_equal(iso_buf_u8(&b, 0x01), ISO_OK);
    assert_int_equal(iso_buf_u16(&b, 0x8302), ISO_OK);
    assert_int_equal(iso_buf_u32(&b, 0xf7060504), ISO_OK);
    assert_int_equal(iso_buf_u64(&b, 0xff0e0d0c0b0a0908), ISO_OK);
    static const uint8_t want[] = {1, 2, 0x83, 4, 5, 6, 0xf7, 8, 9, 10, 11, 12, 13, 14, 0xff};
    assert_int_equal(b.len, sizeof(want));
    assert_memory_equal(b.data, want, sizeof(want));
    assert_int_equal(iso_get_u16(b.data + 1), 0x8302);
    assert_int_equal(iso_get_u32(b.data + 3), 0xf7060504);
    assert_true(iso_get_u64(b.data + 7) == 0xff0e0d0c0b0a0908);
    assert_int_equal(iso_buf_printf(&b, "%s-%d", "n", -3), ISO_OK);
    assert_string_equal((char *)b.data + sizeof(want), "n--3");
    iso_buf_deinit(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_do_not_wrap),
        cmocka_unit_test(blocks_are_aligned_and_zero),
        cmocka_unit_test(a_large_block_that_does_not_fit_is_an_error),
        cmocka_unit_test(the_guard_aborts),
        cmocka_unit_test(small_blocks_and_strings),
        cmocka_unit_test(a_buffer_stops_at_its_maximum),
        cmocka_unit_test(integers_are_little_endian),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
