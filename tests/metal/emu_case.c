/* SPDX-License-Identifier: MIT
 * emu_case.c - tests of kernels in the Metal emulator: flatten, open, allocate (an EMULATION on the CPU).
 */
#include "emu_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"

/* The flattened text, valid until the next call; the last one is kept, as tests open it with many seeds. */
static const char *flatten(const char *const *files, size_t n, size_t *len)
{
    static char *text;
    static size_t text_len;
    static const char *first;
    static size_t count;
    *len = text_len;
    if (text && first == files[0] && count == n) return text;
    free(text);
    first = files[0];
    count = n;
    char out[64], command[4096];
    snprintf(out, sizeof(out), "/tmp/emu_case.%d.metal", (int)getpid());
    int at = snprintf(command, sizeof(command), "python3 tools/flatten_metal.py %s", out);
    for (size_t i = 0; i < n; i++) {
        at += snprintf(command + at, sizeof(command) - (size_t)at, " '%s'", files[i]);
        assert_true((size_t)at < sizeof(command));
    }
    if (system(command) != 0) fail_msg("%s: failed; tests run in the project's root", command);
    FILE *f = fopen(out, "rb");
    assert_non_null(f);
    text = iso_xalloc(1, (size_t)1 << 20);
    *len = text_len = fread(text, 1, (size_t)1 << 20, f);
    fclose(f);
    remove(out);
    return text;
}

void emu_case_open(struct emu_case *c, const char *const *files, size_t n, uint64_t seed, bool checked)
{
    char number[32];
    size_t len = 0;
    const char *text = flatten(files, n, &len);
    snprintf(number, sizeof(number), "%llu", (unsigned long long)seed);
    setenv("ISO_METAL_SEED", number, 1);
    setenv("ISO_METAL_CHECK", checked ? "1" : "0", 1);
    c->seed = seed;
    c->gpu = NULL;
    const enum iso_err err = iso_metal_gpu_open(&c->gpu, text, len, false);
    if (err != ISO_OK) fail_msg("%s", iso_err_detail());
}

void emu_case_close(struct emu_case *c)
{
    iso_metal_gpu_close(c->gpu);
    c->gpu = NULL;
}

uint32_t emu_case_pipeline(struct emu_case *c, const char *kernel, const struct iso_metal_constant *constants,
                           size_t n)
{
    uint32_t pipeline = 0, width = 0;
    if (iso_metal_gpu_pipeline(c->gpu, kernel, constants, n, &pipeline, &width) != ISO_OK) {
        fail_msg("%s", iso_err_detail());
    }
    return pipeline;
}

uint32_t emu_case_buffer(struct emu_case *c, size_t len, void **host)
{
    uint32_t buffer = 0;
    if (iso_metal_gpu_alloc(c->gpu, len, &buffer, host) != ISO_OK) fail_msg("%s", iso_err_detail());
    return buffer;
}
