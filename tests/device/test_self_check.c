/* SPDX-License-Identifier: MIT
 * test_self_check.c - the self-check that every device runs: each level of the CPU gives its digest. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "device/device.h"
#include "device/self_check.h"
#include "kernels/shared/cpu.h"

/* The digest is embedded for GPUs; the CPU's kernels, which the golden data prove, must reach it. */
static void every_level_of_the_cpu_gives_the_digest(void **state)
{
    (void)state;
    size_t n = 0;
    for (; iso_cpu_level_at(n); n++) {
        struct iso_device *dev = NULL;
        uint64_t scratch = 0;
        assert_int_equal(iso_device_cpu_open(&dev, iso_cpu_level_at(n), 2), ISO_OK);
        assert_int_equal(dev->vt->reserve(dev, &iso_self_check_limits, &scratch), ISO_OK);
        const enum iso_err err = iso_device_self_check(dev);
        if (err != ISO_OK) print_error("%s: %s\n", iso_cpu_level_at(n), iso_err_message());
        assert_int_equal(err, ISO_OK);
        dev->vt->close(dev);
    }
    assert_true(n >= 1);
}

static void (*inner_norm)(struct iso_queue *q, const struct iso_op_norm *op);
static void wrong_norm(struct iso_queue *q, const struct iso_op_norm *op)
{
    struct iso_op_norm other = *op;
    other.eps = 2e-5f;
    inner_norm(q, &other);
}

/* A device with one wrong operation is refused. */
static void a_wrong_operation_is_seen(void **state)
{
    (void)state;
    struct iso_device *dev = NULL;
    uint64_t scratch = 0;
    assert_int_equal(iso_device_cpu_open(&dev, "ref", 1), ISO_OK);
    assert_int_equal(dev->vt->reserve(dev, &iso_self_check_limits, &scratch), ISO_OK);
    const struct iso_device_vt *good = dev->vt;
    struct iso_device_vt bad = *good;
    inner_norm = bad.norm;
    bad.norm = wrong_norm;
    dev->vt = &bad;
    const enum iso_err err = iso_device_self_check(dev);
    dev->vt = good;
    assert_int_equal(err, ISO_E_SELF_CHECK);
    assert_non_null(strstr(iso_err_message(), "do not compute exact-1"));
    dev->vt->close(dev);
}

/* Builds without CUDA, and machines without a GPU, say so; nothing else is opened instead. */
static void cuda_is_refused_by_name_where_it_is_missing(void **state)
{
    (void)state;
    struct iso_device *dev = NULL;
    const enum iso_err err = iso_device_cuda_open(&dev, NULL);
    if (err == ISO_OK) {
        dev->vt->close(dev);
        skip();
    }
    assert_null(dev);
    assert_int_equal(err, ISO_E_UNSUPPORTED);
    assert_non_null(strstr(iso_err_message(), "CUDA"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_level_of_the_cpu_gives_the_digest),
        cmocka_unit_test(a_wrong_operation_is_seen),
        cmocka_unit_test(cuda_is_refused_by_name_where_it_is_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
