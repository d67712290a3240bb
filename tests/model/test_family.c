/* SPDX-License-Identifier: MIT
 * test_family.c - hyper-parameters of real files; everything a model file may get wrong, by name.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "model/model.h"
#include "model/tiny_model.h"

static struct iso_device *g_dev; /* two threads, for all tests */

static int open_device(void **state)
{
    (void)state;
    tiny_ok(iso_device_cpu_open(&g_dev, "auto", 2));
    return 0;
}

static int close_device(void **state)
{
    (void)state;
    g_dev->vt->close(g_dev);
    return 0;
}

static void expect(enum iso_err err, enum iso_err want, const char *const *text, size_t n)
{
    if (err != want) {
        fail_msg("got %d (%s), want %s %s", (int)err, err ? iso_err_detail() : "",
                 iso_err_str(want), text[0]);
    }
    for (size_t i = 0; i < n && text[i]; i++) {
        if (strstr(iso_err_message(), text[i]) == NULL) {
            fail_msg("\"%s\" is not in \"%s\"", text[i], iso_err_message());
        }
    }
    /* For people: without file and line, also when another thread found it. */
    if (err != ISO_OK) assert_null(strstr(iso_err_message(), ".c:"));
}

/* Saves, opens and binds; the patched bytes are already in m. */
static enum iso_err bind(struct tiny_model *m)
{
    const char *path = tiny_path("family");
    tiny_model_save(m, path);
    struct iso_gguf *g = NULL;
    enum iso_err err = iso_gguf_open(&g, path);
    (void)unlink(path);
    tiny_ok(err);
    struct iso_model *model = NULL;
    err = iso_model_open(&model, g, g_dev, NULL, NULL);
    assert_int_equal(model != NULL, err == ISO_OK);
    iso_model_close(model);
    iso_gguf_close(g);
    return err;
}

static enum iso_err bind_spec(const struct tiny_spec *s)
{
    struct tiny_model m;
    tiny_model_init(&m, s);
    const enum iso_err err = bind(&m);
    tiny_model_deinit(&m);
    return err;
}

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

struct key_case {
    const char *arch, *without;
    void (*extra)(struct tiny_model *m);
    enum iso_err want;
    const char *text[2];
};

static const struct key_case key_cases[] = {
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
    for (size_t i = 0; i < ISO_COUNT(key_cases); i++) {
        const struct key_case *k = &key_cases[i];
        /* The key that stands in for another must not be left out as well. */
        struct tiny_spec s = tiny_spec(k->arch);
        struct tiny_model m;
        s.without = k->without;
        tiny_model_init(&m, &s);
        s.without = NULL;
        if (k->extra) k->extra(&m);
        expect(bind(&m), k->want, k->text, 2);
        tiny_model_deinit(&m);
    }
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

static const struct key_case tensor_cases[] = {
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
    for (size_t i = 0; i < ISO_COUNT(tensor_cases); i++) {
        const struct key_case *k = &tensor_cases[i];
        struct tiny_spec s = tiny_spec(k->arch);
        struct tiny_model m;
        s.without = k->without;
        tiny_model_init(&m, &s);
        s.without = NULL;
        if (k->extra) k->extra(&m);
        expect(bind(&m), k->want, k->text, 2);
        tiny_model_deinit(&m);
    }
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
        cmocka_unit_test(real_files_have_their_parameters),
        cmocka_unit_test(bad_keys_are_refused_by_name),
        cmocka_unit_test(right_files_are_accepted),
        cmocka_unit_test(bad_tensors_are_refused_by_name),
        cmocka_unit_test(bad_numbers_are_refused_by_row),
        cmocka_unit_test(the_largest_numbers_are_accepted),
        cmocka_unit_test(every_type_is_checked),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
