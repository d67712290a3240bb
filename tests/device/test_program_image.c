/* SPDX-License-Identifier: MIT
 * test_program_image.c - sections of the running program, and fat binaries with all their faults. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device/device.h"
#include "device/program_image.h"
#include "kernels/shared/cpu.h"

/* --- a fat binary as nvcc writes one, made by hand ---------------------------------------------------- */

struct bin {
    uint8_t b[4096];
    size_t n, start; /* start: header of the fat binary being written */
};

static void put(struct bin *f, uint64_t v, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) f->b[f->n++] = (uint8_t)(i < 8 ? v >> 8 * i : 0);
}

static void begin(struct bin *f)
{
    f->start = f->n;
    put(f, 0xba55ed50u, 4);
    put(f, 1, 2);
    put(f, 16, 2);
    put(f, 0, 8);
}

/* An entry of n payload bytes of value; head is the length of its header. */
static void entry(struct bin *f, uint32_t kind, uint32_t arch, uint32_t head, size_t n, uint8_t value)
{
    const size_t at = f->n;
    put(f, kind | 0x1010000u, 4);
    put(f, head, 4);
    put(f, n, 8);
    put(f, 0, 12);
    put(f, arch, 4);
    while (f->n < at + head) put(f, 0xee, 1);
    for (size_t i = 0; i < n; i++) put(f, value, 1);
    const uint64_t size = f->n - f->start - 16;
    for (size_t i = 0; i < 8; i++) f->b[f->start + 8 + i] = (uint8_t)(size >> 8 * i);
}

/* Two fat binaries, three architectures, padding between them. */
static struct bin sample(void)
{
    struct bin f = {.n = 0};
    begin(&f);
    entry(&f, 2, 90, 96, 40, 1);
    entry(&f, 2, 80, 104, 24, 2);
    put(&f, 0, 8);
    begin(&f);
    entry(&f, 2, 80, 96, 16, 3);
    entry(&f, 2, 90, 112, 8, 4);
    entry(&f, 1, 90, 72, 8, 5);
    put(&f, 0, 4);
    return f;
}

static void images_are_told_by_architecture(void **state)
{
    (void)state;
    struct bin f = sample();
    struct iso_gpu_image i[4];
    size_t n = 0;
    assert_int_equal(iso_gpu_images_read(i, 4, &n, f.b, f.n), ISO_OK);
    assert_int_equal(n, 3);
    assert_int_equal(i[0].arch, 80);
    assert_int_equal(i[0].n, 2);
    assert_int_equal(i[0].bytes, 40);
    assert_int_equal(i[1].arch, 90);
    assert_int_equal(i[1].bytes, 48);
    assert_int_equal(i[2].arch, 90 | 1u << 31); /* PTX */
    uint8_t want[40];
    memset(want, 2, 24);
    memset(want + 24, 3, 16);
    struct iso_digest d;
    iso_sha256(&d, want, sizeof(want));
    assert_memory_equal(&d, &i[0].sha256, sizeof(d));
}

/* Any byte of a payload changes its architecture's digest and no other one. */
static void every_byte_counts(void **state)
{
    (void)state;
    struct bin f = sample();
    struct iso_gpu_image good[4], bad[4];
    size_t n = 0;
    assert_int_equal(iso_gpu_images_read(good, 4, &n, f.b, f.n), ISO_OK);
    f.b[16 + 96 + 39] ^= 1; /* the last byte of the first entry: sm_90 */
    assert_int_equal(iso_gpu_images_read(bad, 4, &n, f.b, f.n), ISO_OK);
    assert_memory_equal(&good[0].sha256, &bad[0].sha256, sizeof(good[0].sha256));
    assert_memory_not_equal(&good[1].sha256, &bad[1].sha256, sizeof(good[1].sha256));
}

static void refused(const struct bin *f, size_t len, size_t cap, enum iso_err want, const char *text)
{
    struct iso_gpu_image i[4];
    size_t n = 99;
    assert_int_equal(iso_gpu_images_read(i, cap, &n, f->b, len), want);
    if (!strstr(iso_err_message(), text)) fail_msg("'%s' is not in '%s'", text, iso_err_message());
    assert_int_equal(n, 0);
}

static void broken_ones_are_refused(void **state)
{
    (void)state;
    struct bin f = sample();
    refused(&f, f.n - 20, 4, ISO_E_FORMAT, "GPU code at");
    refused(&f, f.n, 2, ISO_E_LIMIT, "more than 2 GPU architectures");
    f.b[3] = 7;
    refused(&f, f.n, 4, ISO_E_FORMAT, "GPU code at 0: magic 0755ed50");
    f = sample();
    f.b[6] = 15;
    refused(&f, f.n, 4, ISO_E_FORMAT, "GPU code at 0");
    f = sample();
    f.b[16] = 9;
    refused(&f, f.n, 4, ISO_E_FORMAT, "GPU code at 16: kind 9");
    f = sample();
    memset(&f.b[16 + 8], 0xff, 8);
    refused(&f, f.n, 4, ISO_E_FORMAT, "GPU code at 16: an entry of 96 and");
    f = sample();
    f.b[16 + 4] = 31;
    refused(&f, f.n, 4, ISO_E_FORMAT, "GPU code at 16: an entry of 31");
    f = sample();
    f.b[f.n - 1] = 3;
    refused(&f, f.n, 4, ISO_E_FORMAT, "stray bytes");
}

/* Every length and every changed byte: an answer, never a read outside (a sanitizer's build sees one). */
static void damage_is_survived(void **state)
{
    (void)state;
    struct iso_gpu_image i[4];
    size_t n = 0, good = 0;
    for (size_t at = 0; at < 480; at++) {
        struct bin f = sample();
        uint8_t *exact = iso_xalloc(1, f.n);
        const size_t len = at < f.n ? at : f.n;
        memcpy(exact, f.b, len);
        good += iso_gpu_images_read(i, 4, &n, exact, len) == ISO_OK;
        memcpy(exact, f.b, f.n);
        exact[at % f.n] ^= (uint8_t)(1 + at * 37);
        good += iso_gpu_images_read(i, 4, &n, exact, f.n) == ISO_OK;
        free(exact);
    }
    assert_in_range(good, 1, 959); /* changed payloads are read, changed headers are not */
}

/* --- the running program -------------------------------------------------------------------------------- */

static const char marker[] = "this text stands in the read-only data of the test";

static void sections_are_found(void **state)
{
    (void)state;
    const uint8_t *p = NULL;
    size_t len = 0;
    if (iso_program_section(&p, &len, ".rodata") == ISO_E_UNSUPPORTED) skip(); /* not on this system */
    assert_true((const uint8_t *)marker >= p && (const uint8_t *)marker < p + len);
    assert_int_equal(iso_program_section(&p, &len, ".no_such_section"), ISO_E_UNSUPPORTED);
    assert_non_null(strstr(iso_err_message(), ".no_such_section"));
    assert_int_equal(iso_program_section(&p, &len, ".data"), ISO_E_UNSUPPORTED); /* what can be written is not an image */
}

/* One digest for each level, the same in every device that is opened at it. */
static void each_level_of_the_cpu_has_its_digest(void **state)
{
    (void)state;
    struct iso_digest seen[8];
    size_t n = 0;
    for (; iso_cpu_level_at(n) && n < ISO_COUNT(seen); n++) {
        for (unsigned twice = 0; twice < 2; twice++) {
            struct iso_device *dev = NULL;
            struct iso_digest d;
            assert_int_equal(iso_device_cpu_open(&dev, iso_cpu_level_at(n), 1 + twice), ISO_OK);
            dev->vt->identity(dev, &d);
            dev->vt->close(dev);
            if (twice) assert_memory_equal(&d, &seen[n], sizeof(d));
            seen[n] = d;
        }
        for (size_t i = 0; i < n; i++) assert_memory_not_equal(&seen[i], &seen[n], sizeof(seen[0]));
    }
    assert_true(n >= 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(images_are_told_by_architecture),
        cmocka_unit_test(every_byte_counts),
        cmocka_unit_test(broken_ones_are_refused),
        cmocka_unit_test(damage_is_survived),
        cmocka_unit_test(sections_are_found),
        cmocka_unit_test(each_level_of_the_cpu_has_its_digest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
