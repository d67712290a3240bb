/* SPDX-License-Identifier: MIT
 * check_vectors.c - every level against vectors computed from the specification in exact arithmetic.
 *
 * The vectors reach what the golden data do not: guards, floors, and sums that round differently when they
 * are contracted or reordered (tests/vectors/make_vectors.py says which).
 */
#include "vectors/vectors.h"

#include <stdbool.h>
#include <strings.h>

#include "arith/page.h"
#include "base/buf.h"
#include "kernels/attention/attention.h"
#include "kernels/check.h"
#include "kernels/embed/embed.h"
#include "kernels/heads/heads.h"
#include "kernels/matmul/matmul.h"
#include "kernels/norm/norm.h"
#include "kernels/quantize/quantize.h"

#define MAX_COLS 512
#define N_CASES 26 /* in kernels.txt: a file that lost some must not pass */

static enum iso_type type_of(const struct vector_case *c)
{
    const char *name = vector_get(c, "type")->text;
    for (unsigned t = 0; t < ISO_TYPE_COUNT; t++) {
        if (strcasecmp(iso_type_info((enum iso_type)t)->name, name) == 0) return (enum iso_type)t;
    }
    fail_msg("no type %s", name);
    return ISO_TYPE_COUNT;
}

/* An item of bytes. Returns a buffer of check_alloc(). */
static uint8_t *bytes_of(const struct vector_item *v)
{
    uint8_t *p = check_alloc(v->n, CHECK_GUARDED);
    for (size_t i = 0; i < v->n; i++) p[i] = (uint8_t)v->word[i];
    return p;
}

static const float *floats(const struct vector_case *c, const char *name)
{
    const struct vector_item *v = vector_find(c, name);
    return v ? (const float *)(const void *)v->word : NULL; /* made by calloc: no type yet */
}

static void expect_codes(const struct vector_case *c, const int16_t *code, size_t n, const char *who)
{
    int32_t wide[MAX_COLS];
    for (size_t i = 0; i < n; i++) wide[i] = code[i];
    vector_expect(c, "code", wide, n, who);
}

static void matmul_case(const struct vector_case *c, unsigned flags, const char *who)
{
    const struct iso_matmul_kernels *k = iso_matmul_select(flags);
    const struct vector_item *code = vector_get(c, "code"), *scale = vector_get(c, "scale");
    uint8_t *weights = bytes_of(vector_get(c, "weights"));
    const enum iso_type type = type_of(c);
    const bool extra = vector_find(c, "bias") != NULL;
    const float bias = extra ? vector_f32(c, "bias") : 0;
    const struct iso_matrix w = {type, weights, 1, code->n, iso_type_row_bytes(type, code->n),
                                 extra ? vector_f32(c, "w_scale") : 1.0f, extra, extra ? &bias : NULL};
    void *mem = check_alloc(iso_codes_bytes(1, code->n), CHECK_GUARDED);
    memset(mem, 0, iso_codes_bytes(1, code->n));
    const struct iso_codes a = iso_codes_view(mem, 1, code->n);
    for (size_t i = 0; i < code->n; i++) {
        a.code[i] = (int16_t)code->word[i];
        a.sum32[i / ISO_CODE_SUM] += a.code[i];
    }
    memcpy(a.scale, scale->word, scale->n * sizeof(float));
    void *scratch = check_alloc(iso_matmul_scratch_bytes(1, code->n), CHECK_GUARDED);
    void *panel = check_alloc(iso_gemm_panel_bytes(1, code->n), CHECK_GUARDED);
    float y = 0, tiled = 0;
    k->gemv(&y, 1, &a, 1, &w, 0, 1, scratch);
    k->pack(panel, &a, 1, 0, 1);
    k->gemm(&tiled, 1, panel, 1, &w, 0, 1, scratch);
    vector_expect(c, "want", &y, 1, who);
    vector_expect(c, "want", &tiled, 1, who);
    check_free(panel);
    check_free(scratch);
    check_free(mem);
    check_free(weights);
}

static void residual_case(const struct vector_case *c, unsigned flags, const char *who)
{
    const size_t n = vector_get(c, "x")->n;
    float x[MAX_COLS];
    memcpy(x, floats(c, "x"), n * sizeof(*x));
    iso_norm_select(flags)->residual_norm(x, floats(c, "y"), floats(c, "w"), vector_f32(c, "eps"),
                                          1.0f / (float)n, n);
    vector_expect(c, "want", x, n, who);
}

static void quantize_case(const struct vector_case *c, unsigned flags, const char *who)
{
    const size_t n = vector_get(c, "x")->n;
    int16_t code[MAX_COLS] = {0};
    float scale = 0;
    int32_t sum32[MAX_COLS / ISO_CODE_SUM] = {0};
    const struct iso_code_row row = {code, &scale, sum32};
    (void)iso_quantize_select(flags)->quantize(&row, floats(c, "x"), n);
    expect_codes(c, code, n, who);
    vector_expect(c, "scale", &scale, 1, who);
    vector_expect(c, "sum32", sum32, n / ISO_CODE_SUM, who);
}

/* As a query and as a key: the same codes, there in a row and here in a page. */
static void head_case(const struct vector_case *c, unsigned flags, const char *who)
{
    const struct iso_heads_kernels *k = iso_heads_select(flags);
    const uint32_t d = (uint32_t)vector_get(c, "x")->n, slot = 37;
    const struct iso_heads_args a = {d, vector_get(c, "n_rot")->word[0],
                                     (enum iso_rope_pairs)vector_get(c, "pairs")->word[0], floats(c, "norm"),
                                     vector_find(c, "eps") ? vector_f32(c, "eps") : 0, 1.0f / (float)d};
    int16_t code[ISO_HEAD_MAX];
    float scale = 0, tap[ISO_HEAD_MAX];
    (void)k->q(code, &scale, tap, floats(c, "x"), floats(c, "cos_sin"), &a);
    vector_expect(c, "tap", tap, d, who);
    vector_expect(c, "scale", &scale, 1, who);
    expect_codes(c, code, d, who);
    uint8_t *page = check_alloc(iso_page_bytes(d), CHECK_GUARDED);
    (void)k->k(page, slot, tap, floats(c, "x"), floats(c, "cos_sin"), &a);
    for (uint32_t i = 0; i < d; i++) {
        const uint8_t both = page[iso_page_k_lo(d) + slot * d / 2 + i % (d / 2)];
        code[i] = (int16_t)((int8_t)page[slot * d + i] * 16 + (i < d / 2 ? both & 15 : both >> 4));
    }
    expect_codes(c, code, d, who);
    vector_expect(c, "tap", tap, d, who);
    const uint32_t in_page = iso_get_u32(page + iso_page_k_scale(d) + 4 * slot);
    vector_expect(c, "scale", &in_page, 1, who);
    check_free(page);
}

static void value_case(const struct vector_case *c, unsigned flags, const char *who)
{
    const uint32_t d = (uint32_t)vector_get(c, "x")->n, slot = 5;
    int16_t code[ISO_HEAD_MAX];
    uint8_t *page = check_alloc(iso_page_bytes(d), CHECK_GUARDED);
    (void)iso_heads_select(flags)->v(page, slot, floats(c, "x"), d);
    for (uint32_t i = 0; i < d; i++) code[i] = (int8_t)page[iso_page_v(d) + i * ISO_PAGE_POSITIONS + slot];
    expect_codes(c, code, d, who);
    const uint32_t in_page = iso_get_u32(page + iso_page_v_scale(d) + 4 * slot);
    vector_expect(c, "scale", &in_page, 1, who);
    check_free(page);
}

static void embed_case(const struct vector_case *c, unsigned flags, const char *who)
{
    const size_t n = vector_get(c, "want")->n;
    uint8_t *row = bytes_of(vector_get(c, "row"));
    float x[MAX_COLS];
    iso_embed_select(flags)->embed(x, type_of(c), row, 1.0f, 0, n);
    vector_expect(c, "want", x, n, who);
    check_free(row);
}

/* One query row over up to eight pages: one segment. */
static void attention_case(const struct vector_case *c, unsigned flags, const char *who)
{
    const struct iso_attention_kernels *k = iso_attention_select(flags);
    const struct vector_item *q = vector_get(c, "q"), *words = vector_get(c, "pages");
    const uint32_t d = (uint32_t)q->n, first = vector_get(c, "first")->word[0], last = vector_get(c, "last")->word[0];
    int16_t code[ISO_HEAD_MAX];
    for (uint32_t i = 0; i < d; i++) code[i] = (int16_t)q->word[i];
    uint8_t *mem = check_alloc(words->n * 4, CHECK_GUARDED);
    for (size_t i = 0; i < words->n; i++) { /* words have the first byte on top */
        for (size_t b = 0; b < 4; b++) mem[4 * i + b] = (uint8_t)(words->word[i] >> (24 - 8 * b));
    }
    const uint8_t *pages[ISO_SEGMENT_PAGES];
    for (size_t p = 0; p * iso_page_bytes(d) < words->n * 4; p++) pages[p] = mem + p * iso_page_bytes(d);
    const float q_scale = vector_f32(c, "q_scale");
    const struct iso_attention_args a = {code, &q_scale, &first, &last, 1, d, pages, 0, vector_f32(c, "c"),
                                         vector_f32(c, "cap"), vector_f32(c, "inv_cap")};
    float o[2][ISO_HEAD_MAX], out[ISO_HEAD_MAX];
    struct iso_attention_state part = {.o = o[0], .empty = 1}, head = {.o = o[1], .empty = 1};
    void *scratch = check_alloc(iso_attention_scratch_bytes(1, d), CHECK_GUARDED);
    k->segment(&part, &a, 0, scratch);
    if (vector_find(c, "segment_o")) {
        vector_expect(c, "segment_m", &part.m, 1, who);
        vector_expect(c, "segment_l", &part.l, 1, who);
        vector_expect(c, "segment_o", part.o, d, who);
    }
    k->merge(&head, &part, d);
    k->finish(out, &head, d);
    vector_expect(c, "want", out, d, who);
    check_free(scratch);
    check_free(mem);
}

static void finish_case(const struct vector_case *c, unsigned flags, const char *who)
{
    const uint32_t d = (uint32_t)vector_get(c, "o")->n;
    float o[ISO_HEAD_MAX], out[ISO_HEAD_MAX];
    memcpy(o, floats(c, "o"), d * sizeof(*o));
    const struct iso_attention_state head = {.l = vector_f32(c, "l"), .o = o,
                                             .empty = (int32_t)vector_get(c, "empty")->word[0]};
    iso_attention_select(flags)->finish(out, &head, d);
    vector_expect(c, "want", out, d, who);
}

static const struct {
    const char *op;
    void (*run)(const struct vector_case *c, unsigned flags, const char *who);
} ops[] = {{"matmul", matmul_case}, {"residual_norm", residual_case}, {"quantize", quantize_case},
           {"head", head_case},     {"value", value_case},            {"embed", embed_case},
           {"attention", attention_case}, {"finish", finish_case}};
#define N_OPS (sizeof(ops) / sizeof(ops[0]))

static void test_op(void **state)
{
    const size_t op = (size_t)(uintptr_t)*state;
    FILE *f = vectors_open("kernels.txt");
    struct vector_case c;
    size_t n = 0, n_all = 0;
    for (; vector_next(&c, f); vector_free(&c)) {
        n_all++;
        if (strcmp(c.op, ops[op].op) != 0) continue;
        unsigned flags = 0;
        for (size_t l = 0; check_level(l, &flags); l++) ops[op].run(&c, flags, check_level(l, &flags));
        n++;
    }
    (void)fclose(f);
    assert_int_equal(n_all, N_CASES);
    assert_true(n > 0);
}

int main(void)
{
    struct CMUnitTest tests[N_OPS];
    for (size_t i = 0; i < N_OPS; i++) {
        tests[i] = (struct CMUnitTest){.name = ops[i].op, .test_func = test_op,
                                       .initial_state = (void *)(uintptr_t)i};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
