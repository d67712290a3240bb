/* SPDX-License-Identifier: MIT
 * test_metal_embed.c - the Metal embedding of every type and the Metal logits, bit for bit against the reference.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "arith/prim.h"
#include "base/mem.h"
#include "kernels/check.h"
#include "kernels/embed/embed.h"
#include "kernels/embed/embed_metal.h"
#include "kernels/logits/logits.h"
#include "kernels/logits/logits_metal.h"
#include "kernels/weights.h"
#include "metal_kernels/gpu.h"

extern const struct iso_embed_kernels iso_embed_kernels_ref;
extern const struct iso_logits_kernels iso_logits_kernels_ref;

#define TABLE_ROWS 7

/* n_ids rows of a random table; the last table row is always asked for: it ends with the buffer. */
static void embed_case(enum iso_type type, uint32_t pipeline, size_t n_cols, size_t n_ids, enum weights_style style,
                       struct check_rng *r)
{
    const size_t row_bytes = iso_type_row_bytes(type, n_cols);
    uint8_t *table = check_alloc(TABLE_ROWS * row_bytes, CHECK_GUARDED);
    int32_t *ids = check_alloc(n_ids * sizeof(*ids), CHECK_GUARDED);
    float *want = check_alloc(n_ids * n_cols * sizeof(*want), CHECK_GUARDED);
    const struct iso_metal_embed args = {.n_cols = (uint32_t)n_cols, .row_bytes = (uint32_t)row_bytes,
                                         .has_scale = (uint32_t)check_int(r, 0, 1), .scale = 0x1.94c584p+4f};
    weights_fill(table, type, TABLE_ROWS * n_cols, r, style);
    for (size_t i = 0; i < n_ids; i++) {
        ids[i] = i == 0 ? TABLE_ROWS - 1 : (int32_t)check_int(r, 0, TABLE_ROWS - 1);
        iso_embed_kernels_ref.embed(want + i * n_cols, type, table + (size_t)ids[i] * row_bytes, args.scale,
                                    (int)args.has_scale, n_cols);
    }
    struct place bind[ISO_METAL_EMBED_BINDINGS];
    bind[ISO_METAL_EMBED_IDS] = place_at(ids, n_ids * sizeof(*ids), 4);
    bind[ISO_METAL_EMBED_TABLE] = place_at(table, TABLE_ROWS * row_bytes, 8);
    bind[ISO_METAL_EMBED_X] = place_at(NULL, n_ids * n_cols * 4, 16);
    const struct gpu_launch l = {.pipeline = pipeline, .groups = {(uint32_t)n_ids, 1, 1},
                                 .threads = ISO_METAL_EMBED_THREADS, .args = &args, .args_len = sizeof(args)};
    gpu_run(&l, bind, ISO_METAL_EMBED_BINDINGS);
    char what[96];
    (void)snprintf(what, sizeof(what), "iso_embed_%s cols %zu", iso_type_info(type)->name, n_cols);
    check_bits_f32(what, bind[ISO_METAL_EMBED_X].host, n_cols, want, n_cols, n_ids, n_cols);
    for (size_t i = 0; i < ISO_METAL_EMBED_BINDINGS; i++) place_free(&bind[i]);
    check_free(want);
    check_free(ids);
    check_free(table);
}

static void embed(void **state)
{
    (void)state;
    static const size_t cols[] = {32, 96, 288, 2080};
    for (unsigned t = 0; t < ISO_TYPE_COUNT; t++) {
        struct check_rng r = check_rng(100 + t);
        const uint32_t pipeline = gpu_kernel_of("iso_embed_", iso_type_info((enum iso_type)t)->name);
        for (size_t i = 0; i < ISO_COUNT(cols) * WEIGHTS_STYLES; i++) {
            embed_case((enum iso_type)t, pipeline, weights_cols((enum iso_type)t, cols[i % ISO_COUNT(cols)]), 1 + i % 3,
                       (enum weights_style)(i % WEIGHTS_STYLES), &r);
        }
    }
}

/* Logits of a model, or with one that leaves the domain. */
static void logits_case(uint32_t pipeline, const struct iso_logits_args *a, size_t n_rows, size_t n, float odd,
                        struct check_rng *r)
{
    const uint32_t code = 0x01020304, none = 0;
    float *l = check_alloc(n_rows * n * sizeof(*l), CHECK_GUARDED);
    for (size_t i = 0; i < n_rows * n; i++) l[i] = check_f32(r) * iso_pow2((float)check_int(r, -8, 8));
    l[check_int(r, 0, (int64_t)(n_rows * n) - 1)] = odd;
    struct place bind[ISO_METAL_LOGITS_BINDINGS];
    bind[ISO_METAL_LOGITS_L] = place_at(l, n_rows * n * 4, 16);
    bind[ISO_METAL_LOGITS_FAULT] = place_at(&none, sizeof(none), 4);
    const struct iso_metal_logits args = {.n = (uint32_t)n, .has_scale = (uint32_t)a->has_scale, .scale = a->scale,
                                          .cap = a->cap, .inv_cap = a->inv_cap, .fault_code = code};
    const struct gpu_launch launch = {
        .pipeline = pipeline,
        .groups = {(uint32_t)((n + ISO_METAL_LOGITS_THREADS - 1) / ISO_METAL_LOGITS_THREADS), (uint32_t)n_rows, 1},
        .threads = ISO_METAL_LOGITS_THREADS, .args = &args, .args_len = sizeof(args)};
    gpu_run(&launch, bind, ISO_METAL_LOGITS_BINDINGS);
    uint32_t max = 0, fault;
    for (size_t i = 0; i < n_rows; i++) {
        const uint32_t m = iso_logits_kernels_ref.logits(l + i * n, a, n);
        max = ISO_MAX(max, m);
    }
    memcpy(&fault, bind[ISO_METAL_LOGITS_FAULT].host, sizeof(fault));
    assert_int_equal(fault, max >= ISO_BITS_2P100 ? code : 0);
    /* A step with a fault fails, so its values do not matter. */
    if (fault == 0) check_bits_f32("iso_logits", bind[ISO_METAL_LOGITS_L].host, n, l, n, n_rows, n);
    for (size_t i = 0; i < ISO_METAL_LOGITS_BINDINGS; i++) place_free(&bind[i]);
    check_free(l);
}

static void logits(void **state)
{
    (void)state;
    static const struct iso_logits_args forms[] = {
        {.scale = 1.0f, .has_scale = 0},
        {.scale = 0x1.8p-3f, .has_scale = 1},
        {.scale = 1.0f, .cap = 30.0f, .inv_cap = 1.0f / 30.0f},
        {.scale = 0x1.8p-3f, .has_scale = 1, .cap = 15.0f, .inv_cap = 1.0f / 15.0f},
    };
    static const uint32_t odd[] = {0, 0x80000000u, 0x7f800000u, 0xff800000u, 0x7fc00001u, 0x71800000u, 0x717fffffu,
                                   0x21800000u};
    struct check_rng r = check_rng(300);
    const uint32_t pipeline = gpu_kernel("iso_logits", NULL, 0);
    for (size_t f = 0; f < ISO_COUNT(forms); f++) {
        for (size_t i = 0; i < ISO_COUNT(odd); i++) {
            logits_case(pipeline, &forms[f], 1 + i % 3, (size_t)check_int(&r, 1, 700), ISO_AS_F32(odd[i]),
                        &r);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(embed), cmocka_unit_test(logits)};
    (void)check_seed();
    return cmocka_run_group_tests(tests, gpu_open, gpu_close);
}
