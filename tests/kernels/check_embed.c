/* SPDX-License-Identifier: MIT
 * check_embed.c - table rows of every weight type against golden digests, golden embeddings of two
 * models, and every instruction set against the reference.
 */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <cmocka.h>

#include "arith/prim.h"
#include "base/digest.h"
#include "base/mem.h"
#include "kernels/embed/embed.h"
#include "kernels/inputs.h"
#include "kernels/shared/cpu.h"

#define MAX_COLS 1024

static enum iso_type type_by_name(const char *name)
{
    for (int t = 0; t < ISO_TYPE_COUNT; t++) {
        if (strcasecmp(iso_type_info((enum iso_type)t)->name, name) == 0) return (enum iso_type)t;
    }
    fail_msg("%s: no such type", name);
    return ISO_TYPE_COUNT;
}

static void check_rows(const char *name, size_t n_rows, size_t n_cols, const char *want)
{
    const enum iso_type type = type_by_name(name);
    char path[128];
    (void)snprintf(path, sizeof(path), "tests/golden/vectors/%s.w.bin", name);
    size_t len = 0;
    uint8_t *w = check_read_file(path, &len);
    const size_t row_bytes = iso_type_row_bytes(type, n_cols);
    assert_int_equal(len, n_rows * row_bytes);
    uint8_t *row = check_alloc(row_bytes, CHECK_END); /* reading beyond a row faults */
    float *v = check_alloc(n_cols * sizeof(float), CHECK_GUARDED);
    struct iso_hasher *h = iso_hasher_new();
    for (size_t i = 0; i < n_rows; i++) {
        memcpy(row, w + i * row_bytes, row_bytes);
        iso_dequantize_row_ref(v, type, row, n_cols);
        check_guards(v, name);
        iso_hasher_update_le(h, v, n_cols, sizeof(float));
    }
    struct iso_digest d;
    char got[ISO_DIGEST_HEX];
    iso_hasher_final(h, &d);
    iso_digest_hex(got, &d);
    iso_hasher_free(h);
    check_free(row);
    check_free(v);
    check_free(w);
    if (strcmp(got, want) != 0) fail_msg("%s rows: %s, want %s", name, got, want);
}

static void test_golden_rows(void **state)
{
    (void)state;
    FILE *f = fopen("tests/golden/rows.txt", "r");
    assert_non_null(f);
    char line[256];
    size_t n_types = 0;
    while (fgets(line, sizeof(line), f)) {
        char name[16];
        char want[ISO_DIGEST_HEX];
        size_t n_rows = 0;
        size_t n_cols = 0;
        if (sscanf(line, "%15s rows as f32 [%zu][%zu] sha256 %64s", name, &n_rows, &n_cols, want) ==
            4) {
            check_rows(name, n_rows, n_cols, want);
            n_types++;
        }
    }
    fclose(f);
    assert_int_equal(n_types, ISO_TYPE_COUNT);
}

/* Overwrites every f16 and f32 scale of random block bytes that is no finite number. */
static void make_finite(uint8_t *row, enum iso_type type, size_t len)
{
    const struct iso_type_info *info = iso_type_info(type);
    for (size_t b = 0; b < len; b += info->block_bytes) {
        for (size_t i = 0; i < info->block_bytes; i++) {
            /* Clears one exponent bit wherever a 16-bit value could begin or a 32-bit one end. */
            const bool high = type == ISO_TYPE_F32                               ? i == 3
                              : type == ISO_TYPE_Q6_K                            ? i == 209
                              : type == ISO_TYPE_MXFP4 || type == ISO_TYPE_NVFP4 ? false
                                                                                 : i == 1 || i == 3;
            if (high) row[b + i] &= 0xbf;
        }
    }
}

/* Random bytes are a legal row of any type; sizes from one block on. */
static void test_levels(void **state)
{
    (void)state;
    struct check_rng rng = check_rng(1);
    unsigned flags = 0;
    for (size_t level = 0; check_level(level, &flags); level++) {
        const struct iso_embed_kernels *k = iso_embed_select(flags);
        for (int t = 0; t < ISO_TYPE_COUNT; t++) {
            const enum iso_type type = (enum iso_type)t;
            const size_t step = ISO_MAX(iso_type_info(type)->block_values, 32u);
            for (size_t n = step; n <= MAX_COLS; n += step) {
                const size_t len = iso_type_row_bytes(type, n);
                uint8_t *row = check_alloc(len, CHECK_END);
                float *want = check_alloc(n * sizeof(float), CHECK_GUARDED);
                float *x = check_alloc(n * sizeof(float), CHECK_END);
                check_fill(&rng, row, len);
                make_finite(row, type, len);
                for (int has_scale = 0; has_scale < 2; has_scale++) {
                    const float scale = has_scale ? sqrtf((float)n) : 7.0f;
                    iso_dequantize_row_ref(want, type, row, n);
                    for (size_t i = 0; i < n; i++) {
                        const float v = has_scale ? want[i] * scale : want[i];
                        want[i] = fabsf(v) < 0x1p-60f ? 0.0f : v;
                    }
                    k->embed(x, type, row, scale, has_scale, n);
                    check_bits_f32(iso_type_info(type)->name, x, n, want, n, 1, n);
                }
                check_guards(want, k->name);
                check_free(row);
                check_free(want);
                check_free(x);
            }
        }
    }
}

/* embd.f32 of a model from the ids of its short prompt. */
static void check_model(const char *file, const char *model, float scale, int has_scale)
{
    struct iso_gguf *g = input_model(file);
    const struct iso_gguf_tensor *t = iso_gguf_find(g, "token_embd.weight");
    assert_non_null(t);
    const size_t n = t->dims[0];
    const size_t row_bytes = iso_type_row_bytes(t->type, n);
    size_t len = 0;
    float *want = input_golden(model, "embd", &len);
    float *x = check_alloc(n * sizeof(float), CHECK_GUARDED);
    unsigned flags = 0;
    for (size_t level = 0; check_level(level, &flags); level++) {
        char path[128];
        (void)snprintf(path, sizeof(path), "tests/golden/%s/short.ids", model);
        FILE *f = fopen(path, "r");
        assert_non_null(f);
        size_t i = 0;
        for (uint64_t id = 0; fscanf(f, "%" SCNu64, &id) == 1; i++) {
            iso_embed_select(flags)->embed(x, t->type, t->data + id * row_bytes, scale, has_scale,
                                           n);
            check_bits_f32(model, x, n, want + i * n, n, 1, n);
        }
        fclose(f);
        assert_int_equal(i * n, len);
    }
    check_free(want);
    check_free(x);
    iso_gguf_close(g);
}

static void test_golden_models(void **state)
{
    (void)state;
    check_model("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m", 1.0f, 0);
    check_model("gemma-3-270m-q4_k_m.gguf", "gemma3-270m", (float)sqrt(640.0), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_rows),
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_golden_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
