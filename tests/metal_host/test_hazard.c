/* SPDX-License-Identifier: MIT
 * test_hazard.c - barriers of the Metal device: enough for every pair of dispatches, and no more. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "device/device_metal_hazard.h"

#define DISPATCHES 4000
#define USES 5

static uint64_t g_seed = 88172645463325252ULL;

static uint32_t pick(uint32_t n)
{
    g_seed ^= g_seed << 13;
    g_seed ^= g_seed >> 7;
    g_seed ^= g_seed << 17;
    return (uint32_t)(g_seed >> 20) % n;
}

static struct iso_metal_range use(uint32_t buffer, bool write, uint64_t first, uint64_t end)
{
    return (struct iso_metal_range){.buffer = buffer, .write = write, .first = first, .end = end};
}

static bool clash(const struct iso_metal_range *a, const struct iso_metal_range *b)
{
    return a->buffer == b->buffer && (a->write || b->write) && a->first < b->end && b->first < a->end;
}

static void two_readers_need_no_barrier(void **state)
{
    (void)state;
    struct iso_metal_hazards h = {.n = 0};
    uint32_t name[ISO_METAL_RANGES];
    const struct iso_metal_range read = use(3, false, 0, 100), write = use(3, true, 50, 60);
    assert_int_equal(iso_metal_hazards_note(&h, &read, 1, name), 0);
    assert_int_equal(iso_metal_hazards_note(&h, &read, 1, name), 0);
    assert_int_equal(iso_metal_hazards_note(&h, &write, 1, name), 1); /* write after read */
    assert_int_equal(name[0], 3);
    assert_int_equal(iso_metal_hazards_note(&h, &read, 1, name), 1); /* read after write */
    assert_int_equal(iso_metal_hazards_note(&h, &read, 1, name), 0);
}

static void other_buffers_and_other_bytes_do_not_wait(void **state)
{
    (void)state;
    struct iso_metal_hazards h = {.n = 0};
    uint32_t name[ISO_METAL_RANGES];
    const struct iso_metal_range a[] = {use(1, true, 0, 64), use(2, true, 0, 64)};
    const struct iso_metal_range b[] = {use(1, true, 64, 128), use(3, false, 0, 64)}, c[] = {use(2, false, 0, 8)};
    assert_int_equal(iso_metal_hazards_note(&h, a, 2, name), 0);
    assert_int_equal(iso_metal_hazards_note(&h, b, 2, name), 0);
    assert_int_equal(iso_metal_hazards_note(&h, c, 1, name), 1);
    assert_int_equal(name[0], 2);
}

static void a_full_memory_names_everything(void **state)
{
    (void)state;
    struct iso_metal_hazards h = {.n = 0};
    uint32_t name[ISO_METAL_RANGES];
    for (uint32_t i = 0; i < ISO_METAL_RANGES; i++) {
        const struct iso_metal_range r = use(i + 1, true, 0, 16);
        assert_int_equal(iso_metal_hazards_note(&h, &r, 1, name), 0);
    }
    const struct iso_metal_range r = use(ISO_METAL_RANGES + 1, true, 0, 16);
    assert_int_equal(iso_metal_hazards_note(&h, &r, 1, name), ISO_METAL_RANGES);
    assert_int_equal(h.n, 1);
}

/* Every earlier dispatch that clashes is separated by a barrier on the buffer; and each buffer that a
 * barrier names has such an earlier dispatch since its last one. */
static void random_dispatches_are_ordered(void **state)
{
    (void)state;
    static struct iso_metal_range all[DISPATCHES][USES];
    static uint32_t last[10]; /* dispatch before which the buffer's last barrier stands */
    struct iso_metal_hazards h = {.n = 0};
    uint32_t name[ISO_METAL_RANGES];
    memset(last, 0, sizeof(last));
    for (uint32_t d = 0; d < DISPATCHES; d++) {
        for (int k = 0; k < USES; k++) {
            const uint64_t first = pick(200);
            all[d][k] = use(1 + pick(9), pick(3) == 0, first, first + 1 + pick(40));
        }
        const size_t n = iso_metal_hazards_note(&h, all[d], USES, name);
        bool wanted[10] = {false};
        for (uint32_t e = 0; e < d; e++) {
            for (int i = 0; i < USES * USES; i++) {
                const struct iso_metal_range *a = &all[e][i / USES], *b = &all[d][i % USES];
                if (e >= last[a->buffer] && clash(a, b)) wanted[a->buffer] = true;
            }
        }
        bool got[10] = {false};
        for (size_t i = 0; i < n; i++) {
            assert_false(got[name[i]]);
            got[name[i]] = true;
            last[name[i]] = d;
        }
        assert_memory_equal(got, wanted, sizeof(got));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_readers_need_no_barrier),
        cmocka_unit_test(other_buffers_and_other_bytes_do_not_wait),
        cmocka_unit_test(a_full_memory_names_everything),
        cmocka_unit_test(random_dispatches_are_ordered),
    };
    print_message("seed %llu\n", (unsigned long long)g_seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
