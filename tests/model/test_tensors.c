/* SPDX-License-Identifier: MIT
 * test_tensors.c - tensors and numbers that a model file may get wrong, by name and row.
 */
#include <stdlib.h>

#include "model/refused.h"

/* --- tensors ------------------------------------------------------------------------------------
 */

static void stranger(struct tiny_model *m)
{
    tiny_vector(m, "blk.0.attn_sinks.weight", 4, 0, 1);
}
static void ninth_layer(struct tiny_model *m)
{
    tiny_vector(m, "blk.3.attn_norm.weight", 64, 1, 0);
}
static void q_wrong_shape(struct tiny_model *m)
{
    tiny_matrix(m, "blk.1.attn_q.weight", ISO_TYPE_F16, 0x30, 64, 96);
}
static void norm_wrong_length(struct tiny_model *m)
{
    tiny_vector(m, "blk.1.attn_norm.weight", 32, 1, 0);
}
static void norm_wrong_type(struct tiny_model *m)
{
    tiny_matrix(m, "blk.1.attn_norm.weight", ISO_TYPE_F16, 0x30, 64, 1);
}
static void freqs_wrong_length(struct tiny_model *m)
{
    tiny_vector(m, "rope_freqs.weight", 4, 1, 0);
}
static void freqs_too_small(struct tiny_model *m)
{
    tiny_vector(m, "rope_freqs.weight", 8, 0.1f, 0);
}
static void scale_huge(struct tiny_model *m)
{
    tiny_vector(m, "blk.1.attn_q.scale", 1, 0x1p31f, 0);
}
static void scale_negative(struct tiny_model *m)
{
    tiny_vector(m, "blk.1.attn_q.scale", 1, -1.0f, 0);
}
static void scale_long(struct tiny_model *m)
{
    tiny_vector(m, "blk.1.attn_q.scale", 2, 1.0f, 0);
}
static void q_norm_4(struct tiny_model *m)
{
    tiny_vector(m, "blk.2.attn_q_norm.weight", 16, 4.0f, 0);
}
static void k_norm_2(struct tiny_model *m)
{
    tiny_vector(m, "blk.2.attn_k_norm.weight", 16, 1.0f, 0.1f);
}

static const struct refused_case tensor_cases[] = {
    {"llama", NULL, stranger, ISO_E_UNSUPPORTED, {"blk.0.attn_sinks.weight", "llama"}},
    {"llama", NULL, ninth_layer, ISO_E_UNSUPPORTED, {"blk.3.attn_norm.weight", NULL}},
    {"llama", "token_embd.weight", NULL, ISO_E_FORMAT, {"token_embd.weight is missing", NULL}},
    {"llama", "output_norm.weight", NULL, ISO_E_FORMAT, {"output_norm.weight is missing", NULL}},
    {"llama", "blk.2.ffn_up.weight", NULL, ISO_E_FORMAT, {"blk.2.ffn_up.weight is missing", NULL}},
    {"llama", "blk.1.attn_norm.weight", NULL, ISO_E_FORMAT, {"blk.1.attn_norm.weight is", NULL}},
    {"qwen2", "blk.1.attn_k.bias", NULL, ISO_E_FORMAT, {"blk.1.attn_k.bias is missing", NULL}},
    {"gemma3", "blk.6.post_ffw_norm.weight", NULL, ISO_E_FORMAT, {"blk.6.post_ffw_norm", NULL}},
    {"muse-glimmer", "blk.0.attn_gate.weight", NULL, ISO_E_FORMAT, {"blk.0.attn_gate", NULL}},
    {"llama",
     "blk.1.attn_q.weight",
     q_wrong_shape,
     ISO_E_FORMAT,
     {"blk.1.attn_q.weight is 64 x 96", "expected 64 x 64"}},
    {"llama",
     "blk.1.attn_norm.weight",
     norm_wrong_length,
     ISO_E_FORMAT,
     {"blk.1.attn_norm.weight has 32", "expected 64"}},
    {"llama",
     "blk.1.attn_norm.weight",
     norm_wrong_type,
     ISO_E_FORMAT,
     {"blk.1.attn_norm.weight is F16", "must be F32"}},
    {"llama",
     "rope_freqs.weight",
     freqs_wrong_length,
     ISO_E_FORMAT,
     {"4 values, expected 8", NULL}},
    {"llama",
     "rope_freqs.weight",
     freqs_too_small,
     ISO_E_FORMAT,
     {"rope_freqs.weight[0] is 0.1", NULL}},
    {"llama", NULL, scale_huge, ISO_E_FORMAT, {"blk.1.attn_q.scale is 2.14748e+09", NULL}},
    {"llama", NULL, scale_negative, ISO_E_FORMAT, {"blk.1.attn_q.scale is -1", NULL}},
    {"llama", NULL, scale_long, ISO_E_FORMAT, {"blk.1.attn_q.scale must be one", NULL}},
    {"muse-glimmer",
     "blk.2.attn_q_norm.weight",
     q_norm_4,
     ISO_E_FORMAT,
     {"blk.2.attn_q_norm.weight[0] is 4", "must be 3.87"}},
    {"muse-glimmer",
     "blk.2.attn_k_norm.weight",
     k_norm_2,
     ISO_E_FORMAT,
     {"blk.2.attn_k_norm.weight[0]", "must be 1"}},
};

static void bad_tensors_are_refused_by_name(void **state)
{
    (void)state;
    expect_refused(tensor_cases, ISO_COUNT(tensor_cases));
}

static const struct {
    const char *arch, *tensor;
    size_t row, at;
    uint8_t bytes[4];
    size_t n;
    const char *text[2];
} number_cases[] = {
    {"llama",
     "blk.1.attn_q.weight",
     63,
     126,
     {0x00, 0x7e},
     2,
     {"blk.1.attn_q.weight, row 63", "F16"}},
    {"llama",
     "blk.0.attn_k.weight",
     5,
     34,
     {0x00, 0x7c},
     2,
     {"blk.0.attn_k.weight, row 5", "Q8_0"}},
    {"llama", "blk.0.attn_k.weight", 5, 0, {0x00, 0xfc}, 2, {"blk.0.attn_k.weight, row 5", "Q8_0"}},
    {"llama", "blk.2.attn_v.weight", 31, 20, {1, 0x7c}, 2, {"blk.2.attn_v.weight, row 31", "Q4_1"}},
    {"llama", "blk.2.attn_v.weight", 0, 2, {1, 0xfe}, 2, {"blk.2.attn_v.weight, row 0", "Q4_1"}},
    {"llama",
     "blk.2.attn_output.weight",
     0,
     22,
     {0, 0x7c},
     2,
     {"attn_output.weight, row 0", "Q5_0"}},
    {"llama", "blk.1.ffn_up.weight", 95, 17, {228}, 1, {"blk.1.ffn_up.weight, row 95", "MXFP4"}},
    {"llama",
     "blk.1.ffn_norm.weight",
     0,
     4,
     {0, 0, 0xc0, 0x7f},
     4,
     {"blk.1.ffn_norm.weight", "F32"}},
    {"llama",
     "blk.1.ffn_norm.weight",
     0,
     252,
     {0, 0, 0x80, 0xff},
     4,
     {"blk.1.ffn_norm.weight", "F32"}},
    {"llama", "output_norm.weight", 0, 0, {0, 0, 0x80, 0x71}, 4, {"output_norm.weight", "2^100"}},
    {"llama", "token_embd.weight", 299, 0, {0, 0x7d}, 2, {"token_embd.weight, row 299", "Q8_0"}},
    {"qwen2", "blk.2.attn_v.bias", 0, 60, {1, 0, 0x80, 0x7f}, 4, {"blk.2.attn_v.bias", "F32"}},
    {"muse-glimmer",
     "blk.4.attn_gate.weight",
     1,
     18,
     {0, 0x7c},
     2,
     {"attn_gate.weight, row 1", "Q4_0"}},
};

/* D9: numbers outside the domain, at load, by tensor and row. */
static void bad_numbers_are_refused_by_row(void **state)
{
    (void)state;
    for (size_t i = 0; i < ISO_COUNT(number_cases); i++) {
        const struct tiny_spec s = tiny_spec(number_cases[i].arch);
        struct tiny_model m;
        tiny_model_init(&m, &s);
        uint8_t *p = tiny_at(&m, number_cases[i].tensor, number_cases[i].row, number_cases[i].at);
        memcpy(p, number_cases[i].bytes, number_cases[i].n);
        expect(bind(&m), ISO_E_FORMAT, number_cases[i].text, 2);
        tiny_model_deinit(&m);
    }
}

/* The largest numbers that are still allowed. */
static void the_largest_numbers_are_accepted(void **state)
{
    (void)state;
    const struct tiny_spec s = tiny_spec("llama");
    struct tiny_model m;
    tiny_model_init(&m, &s);
    static const uint8_t f16_max[] = {0xff, 0x7b}, f32_max[] = {0xff, 0xff, 0x7f, 0xf1};
    memcpy(tiny_at(&m, "blk.1.attn_q.weight", 3, 0), f16_max, 2);
    memcpy(tiny_at(&m, "blk.1.ffn_norm.weight", 0, 8), f32_max, 4);
    *tiny_at(&m, "blk.1.ffn_up.weight", 0, 0) = 227;
    tiny_ok(bind(&m));
    tiny_model_deinit(&m);
}

/* Block types that the tiny models do not have. */
static void every_type_is_checked(void **state)
{
    (void)state;
    static const struct {
        enum iso_type type;
        size_t at;
    } f16[] = {{ISO_TYPE_F16, 0},    {ISO_TYPE_Q4_0, 0},  {ISO_TYPE_Q4_1, 0}, {ISO_TYPE_Q4_1, 2},
               {ISO_TYPE_Q5_0, 0},   {ISO_TYPE_Q5_1, 0},  {ISO_TYPE_Q5_1, 2}, {ISO_TYPE_Q8_0, 0},
               {ISO_TYPE_Q4_K, 0},   {ISO_TYPE_Q4_K, 2},  {ISO_TYPE_Q5_K, 0}, {ISO_TYPE_Q5_K, 2},
               {ISO_TYPE_Q6_K, 208}, {ISO_TYPE_IQ4_NL, 0}};
    static uint8_t data[4 * 512 * 4];
    for (size_t i = 0; i < ISO_COUNT(f16); i++) {
        const size_t row = iso_type_row_bytes(f16[i].type, 512);
        const size_t block = iso_type_info(f16[i].type)->block_bytes;
        memset(data, 0xff, sizeof(data)); /* everything but the scales may be anything */
        for (size_t at = 0; at + block <= 3 * row; at += block) {
            for (size_t k = 0; k < ISO_COUNT(f16); k++) {
                if (f16[k].type == f16[i].type) memset(data + at + f16[k].at, 0x7b, 2);
            }
        }
        const struct iso_gguf_tensor t = {.name = "t",
                                          .type = f16[i].type,
                                          .n_dims = 2,
                                          .dims = {512, 3, 1, 1},
                                          .data = data,
                                          .size_bytes = 3 * row};
        tiny_ok(iso_tensor_check(&t, 0, 3));
        data[3 * row - block + f16[i].at + 1] = 0xfd; /* a NaN in the last block of the last row */
        tiny_ok(iso_tensor_check(&t, 0, 2));
        static const char *const text[] = {"row 2"};
        expect(iso_tensor_check(&t, 1, 3), ISO_E_FORMAT, text, 1);
    }
    memset(data, 0xff, sizeof(data));
    const struct iso_gguf_tensor nv = {
        .name = "t", .type = ISO_TYPE_NVFP4, .n_dims = 2, .dims = {512, 3, 1, 1}, .data = data};
    tiny_ok(iso_tensor_check(&nv, 0, 3)); /* every byte is a finite scale */
    const struct iso_gguf_tensor bf = {
        .name = "t", .type = ISO_TYPE_BF16, .n_dims = 2, .dims = {512, 1, 1, 1}, .data = data};
    static const char *const text[] = {"row 0", "BF16"};
    expect(iso_tensor_check(&bf, 0, 1), ISO_E_FORMAT, text, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_tensors_are_refused_by_name),
        cmocka_unit_test(bad_numbers_are_refused_by_row),
        cmocka_unit_test(the_largest_numbers_are_accepted),
        cmocka_unit_test(every_type_is_checked),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
