/* SPDX-License-Identifier: MIT
 * test_family.c - hyper-parameters of real files; keys that a model file may get wrong, by name.
 */
#include <math.h>
#include <stdlib.h>

#include "model/refused.h"

/* --- real files ---------------------------------------------------------------------------------
 */

struct real {
    const char *file, *family;
    uint32_t layers, embd, ff, heads, kv, dim, vocab, ctx, window, n_window;
    float base_full, base_window, cap;
};

static void real_files_have_their_parameters(void **state)
{
    (void)state;
    static const struct real real[] = {
        {"SmolLM2-135M-Instruct.Q4_1.gguf", "llama", 30, 576, 1536, 9, 3, 64, 49152, 8192, 0, 0,
         100000.0f, 100000.0f, 0},
        {"gemma-3-270m-q4_k_m.gguf", "gemma3", 18, 640, 2048, 4, 1, 256, 262144, 32768, 512, 15,
         1000000.0f, 10000.0f, 0},
        {"mini-llama.gguf", "llama", 0, 0, 0, 0, 0, 0, 49152, 0, 0, 0, 0, 0, 0},
        {"mini-qwen2.gguf", "qwen2", 0, 0, 0, 0, 0, 0, 49152, 0, 0, 0, 0, 0, 0},
        {"mini-qwen3.gguf", "qwen3", 0, 0, 0, 0, 0, 0, 49152, 0, 0, 0, 0, 0, 0},
        {"mini-muse-glimmer.gguf", "muse-glimmer", 0, 0, 0, 0, 0, 0, 49152, 0, 0, 0, 0, 0, 0},
    };
    for (size_t i = 0; i < ISO_COUNT(real); i++) {
        const struct real *r = &real[i];
        struct iso_gguf *g = NULL;
        struct iso_hparams *hp = iso_xalloc(1, sizeof(*hp));
        const struct iso_family *f = NULL;
        tiny_ok(iso_gguf_open(&g, tiny_real_model(r->file)));
        tiny_ok(iso_hparams_read(hp, &f, g));
        assert_string_equal(f->name, r->family);
        assert_int_equal(hp->n_vocab, r->vocab);
        if (r->layers) {
            assert_int_equal(hp->n_layers, r->layers);
            assert_int_equal(hp->n_embd, r->embd);
            assert_int_equal(hp->n_ff, r->ff);
            assert_int_equal(hp->n_heads, r->heads);
            assert_int_equal(hp->n_kv_heads, r->kv);
            assert_int_equal(hp->head_dim, r->dim);
            assert_int_equal(hp->n_rot, r->dim);
            assert_int_equal(hp->n_ctx_train, r->ctx);
            assert_int_equal(hp->window, r->window);
            assert_int_equal(hp->n_window_layers, r->n_window);
            assert_true(hp->base_full == r->base_full && hp->base_window == r->base_window);
            assert_true(hp->logit_cap == r->cap && hp->rope_factor == 1.0f);
        }
        const double c = 1.4426950408889634 / sqrt((double)hp->head_dim) /
                         (double)(hp->head_dim & (0u - hp->head_dim));
        assert_true(fabs((double)hp->attention_c - c) < 1e-6 * c);
        if (strcmp(f->name, "muse-glimmer") == 0) {
            assert_true(hp->window > 0 && hp->post_eps == 1e-8f && hp->logit_cap > 0);
            for (uint32_t l = 0; l < hp->n_layers; l++) {
                assert_int_equal(hp->layer_window[l], l % 4 != 3);
            }
        }
        if (strcmp(f->name, "gemma3") == 0) {
            for (uint32_t l = 0; l < hp->n_layers; l++) {
                assert_int_equal(hp->layer_window[l], l % 6 != 5);
            }
        }
        free(hp);
        iso_gguf_close(g);
    }
}

/* --- keys ---------------------------------------------------------------------------------------
 */

static void experts(struct tiny_model *m)
{
    tiny_u32(m, "*.expert_count", 8);
}
static void yarn(struct tiny_model *m)
{
    tiny_str(m, "*.rope.scaling.type", "yarn");
}
static void not_causal(struct tiny_model *m)
{
    tiny_bool(m, "*.attention.causal", false);
}
static void parallel(struct tiny_model *m)
{
    tiny_bool(m, "*.use_parallel_residual", true);
}
static void linear_zero(struct tiny_model *m)
{
    tiny_str(m, "*.rope.scaling.type", "linear");
    tiny_f32(m, "*.rope.scaling.factor", 0.0f);
}
static void old_linear_zero(struct tiny_model *m)
{
    tiny_f32(m, "*.rope.scale_linear", 0.0f);
}
static void old_linear_negative(struct tiny_model *m)
{
    tiny_f32(m, "*.rope.scale_linear", -4.0f);
}
static void rot_odd(struct tiny_model *m)
{
    tiny_u32(m, "*.rope.dimension_count", 7);
}
static void rot_wide(struct tiny_model *m)
{
    tiny_u32(m, "*.rope.dimension_count", 18);
}
static void rot_none(struct tiny_model *m)
{
    tiny_u32(m, "*.rope.dimension_count", 0);
}
static void vocab_other(struct tiny_model *m)
{
    tiny_u32(m, "*.vocab_size", 301);
}
static void cap_nan(struct tiny_model *m)
{
    tiny_f32(m, "*.attn_logit_softcapping", NAN);
}
static void cap_tiny(struct tiny_model *m)
{
    tiny_f32(m, "*.final_logit_softcapping", 0x1p-40f);
}
static void scale_zero(struct tiny_model *m)
{
    tiny_f32(m, "*.logit_scale", 0.0f);
}
static void base_zero(struct tiny_model *m)
{
    tiny_f32(m, "*.rope.freq_base", 0.0f);
}
static void eps_zero(struct tiny_model *m)
{
    tiny_f32(m, "*.attention.layer_norm_rms_epsilon", 0.0f);
}
static void eps_text(struct tiny_model *m)
{
    tiny_str(m, "*.attention.layer_norm_rms_epsilon", "small");
}
static void blocks_100000(struct tiny_model *m)
{
    tiny_u32(m, "*.block_count", 100000);
}
static void blocks_513(struct tiny_model *m)
{
    tiny_u32(m, "*.block_count", 513);
}
static void blocks_0(struct tiny_model *m)
{
    tiny_u32(m, "*.block_count", 0);
}
static void context_huge(struct tiny_model *m)
{
    tiny_u32(m, "*.context_length", 1u << 25);
}
static void embd_48(struct tiny_model *m)
{
    tiny_u32(m, "*.embedding_length", 48);
}
static void heads_3(struct tiny_model *m)
{
    tiny_u32(m, "*.attention.head_count", 3);
}
static void kv_5(struct tiny_model *m)
{
    tiny_u32(m, "*.attention.head_count_kv", 5);
}
static void heads_200(struct tiny_model *m)
{
    tiny_u32(m, "*.attention.head_count", 200);
}
static void key_24(struct tiny_model *m)
{
    tiny_u32(m, "*.attention.key_length", 24);
}
static void key_512(struct tiny_model *m)
{
    tiny_u32(m, "*.attention.key_length", 512);
}
static void value_32(struct tiny_model *m)
{
    tiny_u32(m, "*.attention.value_length", 32);
}
static void arch_mamba(struct tiny_model *m)
{
    tiny_str(m, "general.architecture", "mamba");
}
static void pattern_zero(struct tiny_model *m)
{
    tiny_u32(m, "*.attention.sliding_window_pattern", 0);
}
static void pattern_all(struct tiny_model *m)
{
    tiny_u32(m, "*.attention.sliding_window_pattern", 100);
}
static void pattern_short(struct tiny_model *m)
{
    uint8_t a[12 + 4] = {ISO_GGUF_BOOL, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0};
    tiny_key(m, "*.attention.sliding_window_pattern", ISO_GGUF_ARRAY, a, sizeof(a));
}

static const struct refused_case key_cases[] = {
    {"llama", "general.architecture", arch_mamba, ISO_E_UNSUPPORTED, {"'mamba'", "muse-glimmer"}},
    {"llama", "general.architecture", NULL, ISO_E_FORMAT, {"general.architecture", NULL}},
    {"llama", NULL, experts, ISO_E_UNSUPPORTED, {"8 experts", NULL}},
    {"llama", NULL, yarn, ISO_E_UNSUPPORTED, {"'yarn'", NULL}},
    {"llama", NULL, not_causal, ISO_E_UNSUPPORTED, {"causal", NULL}},
    {"qwen3", NULL, parallel, ISO_E_UNSUPPORTED, {"parallel residual", NULL}},
    {"llama", "*.block_count", blocks_100000, ISO_E_LIMIT, {"block_count is 100000", "limit 512"}},
    {"llama", "*.block_count", blocks_513, ISO_E_LIMIT, {"block_count is 513", "limit 512"}},
    {"llama", "*.block_count", blocks_0, ISO_E_FORMAT, {"block_count is 0", NULL}},
    {"llama", "*.block_count", NULL, ISO_E_FORMAT, {"llama.block_count", NULL}},
    {"llama", "*.context_length", context_huge, ISO_E_LIMIT, {"33554432", "16777216"}},
    {"llama", "*.embedding_length", embd_48, ISO_E_UNSUPPORTED, {"48", "multiples of 32"}},
    {"llama", "*.attention.head_count", heads_3, ISO_E_UNSUPPORTED, {"3 query heads on 2", NULL}},
    {"llama", "*.attention.head_count", heads_200, ISO_E_UNSUPPORTED, {"200 query heads", "64"}},
    {"llama", "*.attention.head_count_kv", kv_5, ISO_E_LIMIT, {"head_count_kv is 5", "limit 4"}},
    {"llama", "*.attention.key_length", key_24, ISO_E_UNSUPPORTED, {"head size 24", "16"}},
    {"llama", "*.attention.key_length", key_512, ISO_E_UNSUPPORTED, {"head size 512", "256"}},
    {"llama",
     "*.attention.value_length",
     value_32,
     ISO_E_UNSUPPORTED,
     {"head size 16", "values 32"}},
    {"llama", NULL, linear_zero, ISO_E_FORMAT, {"rope.scaling.factor is 0", NULL}},
    {"llama", NULL, old_linear_zero, ISO_E_FORMAT, {"rope.scale_linear is 0", NULL}},
    {"llama", NULL, old_linear_negative, ISO_E_FORMAT, {"rope.scale_linear is -4", NULL}},
    {"llama", NULL, rot_odd, ISO_E_FORMAT, {"dimension_count is 7", NULL}},
    {"llama", NULL, rot_wide, ISO_E_FORMAT, {"dimension_count is 18", "head size 16"}},
    {"llama", NULL, rot_none, ISO_E_FORMAT, {"dimension_count is 0", NULL}},
    {"llama", "*.rope.freq_base", base_zero, ISO_E_FORMAT, {"rope base 0", NULL}},
    {"llama", NULL, vocab_other, ISO_E_FORMAT, {"vocab_size is 301", "300 rows"}},
    {"llama", NULL, cap_nan, ISO_E_FORMAT, {"attn_logit_softcapping", NULL}},
    {"llama", NULL, cap_tiny, ISO_E_FORMAT, {"final_logit_softcapping is", NULL}},
    {"llama", NULL, scale_zero, ISO_E_FORMAT, {"logit_scale is 0", NULL}},
    {"llama", "*.attention.layer_norm_rms_epsilon", eps_zero, ISO_E_FORMAT, {"epsilon is 0", NULL}},
    {"llama", "*.attention.layer_norm_rms_epsilon", eps_text, ISO_E_FORMAT, {"epsilon", NULL}},
    {"gemma3",
     "*.attention.sliding_window",
     NULL,
     ISO_E_FORMAT,
     {"attention.sliding_window", NULL}},
    {"muse-glimmer",
     "*.attention.sliding_window_pattern",
     NULL,
     ISO_E_FORMAT,
     {"muse-glimmer.attention.sliding_window_pattern is missing", NULL}},
    {"muse-glimmer",
     "*.attention.sliding_window_pattern",
     pattern_zero,
     ISO_E_FORMAT,
     {"sliding_window_pattern is 0", NULL}},
    {"muse-glimmer",
     "*.attention.sliding_window_pattern",
     pattern_all,
     ISO_E_UNSUPPORTED,
     {"without full layers", NULL}},
    {"muse-glimmer",
     "*.attention.sliding_window_pattern",
     pattern_short,
     ISO_E_FORMAT,
     {"4 elements, expected 5 flags", NULL}},
};

static void bad_keys_are_refused_by_name(void **state)
{
    (void)state;
    expect_refused(key_cases, ISO_COUNT(key_cases));
}

static void pattern_flags(struct tiny_model *m)
{
    uint8_t a[12 + 5] = {ISO_GGUF_BOOL, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 1, 0};
    tiny_key(m, "*.attention.sliding_window_pattern", ISO_GGUF_ARRAY, a, sizeof(a));
}

static void right_files_are_accepted(void **state)
{
    (void)state;
    static const char *const arch[] = {"llama", "qwen2", "qwen3", "gemma3", "muse-glimmer"};
    for (size_t i = 0; i < ISO_COUNT(arch); i++) {
        const struct tiny_spec s = tiny_spec(arch[i]);
        tiny_ok(bind_spec(&s));
    }
    struct tiny_spec s = tiny_spec("muse-glimmer");
    struct tiny_model m;
    s.without = "*.attention.sliding_window_pattern";
    tiny_model_init(&m, &s);
    s.without = NULL;
    pattern_flags(&m);
    tiny_ok(bind(&m));
    tiny_model_deinit(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_files_have_their_parameters),
        cmocka_unit_test(bad_keys_are_refused_by_name),
        cmocka_unit_test(right_files_are_accepted),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
