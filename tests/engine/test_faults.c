/* SPDX-License-Identifier: MIT
 * test_faults.c - numbers outside the domain, rounding modes, files that shrink, taps. */
#include <fenv.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "engine/tools.h"

/* D9: values that leave the domain while running. */
static void overflow_names_layer_and_tensor(void **state)
{
    (void)state;
    static const struct {
        const char *tensor, *text;
    } cases[] = {
        {"blk.1.attn_norm.weight", "layer 1, attn_norm:"},
        {"blk.2.ffn_norm.weight", "layer 2, ffn_norm:"},
        {"blk.1.attn_q_norm.weight", "layer 1, q:"},
        {"blk.0.attn_k_norm.weight", "layer 0, k:"},
        {"output_norm.weight", "result_norm:"},
    };
    for (size_t i = 0; i < ISO_COUNT(cases); i++) {
        const struct tiny_spec spec = tiny_spec("qwen3");
        struct tiny_model m;
        const char *path = tiny_path("huge-norm");
        tiny_model_init(&m, &spec);
        const float big = 0x1.fp99f, small = 0x1p-90f;
        for (size_t k = 0; k < 32; k++) { /* some value is above its row's mean */
            memcpy(tiny_at(&m, cases[i].tensor, 0, 4 * k), &big, sizeof(big));
        }
        memcpy(tiny_at(&m, "blk.0.attn_norm.weight", 0, 0), &small, sizeof(small)); /* legal */
        tiny_model_save(&m, path);
        tiny_model_deinit(&m);
        iso_engine *e = NULL;
        tools_ok(iso_engine_open(&e, &(struct iso_engine_options){.model_path = path,
                                                                  .n_threads = 1,
                                                                  .no_tokenizer = true}));
        (void)unlink(path);
        iso_session *s = tools_session(e);
        int32_t *ids = tools_ids(e, 20, 1);
        tools_expect(iso_session_prefill(s, ids, 20, NULL), ISO_E_NUMERIC, cases[i].text);
        assert_int_equal(iso_session_position(s), 0);
        assert_null(iso_session_logits(s));
        const struct iso_digest chain = tools_chain(s);
        const struct iso_digest empty = {{0xe3, 0xb0, 0xc4, 0x42}}; /* SHA-256 of nothing */
        assert_memory_equal(&chain, &empty, 4);
        free(ids);
        iso_session_free(s);
        iso_engine_close(e);
    }
}

static void *step_rounding_up(void *arg)
{
    (void)fesetround(FE_UPWARD);
    const enum iso_err err = iso_session_decode(arg, 1);
    tools_expect(err, ISO_E_SELF_CHECK, "rounding mode");
    (void)fesetround(FE_TONEAREST);
    return arg;
}

/* The stepping thread computes too, and nobody checked it when it started. */
static void a_thread_with_another_rounding_mode_is_refused(void **state)
{
    (void)state;
    iso_engine *e = tools_engine("llama", NULL);
    iso_session *s = tools_session(e);
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, step_rounding_up, s), 0);
    void *back = NULL;
    assert_int_equal(pthread_join(t, &back), 0);
    assert_ptr_equal(back, s);
    assert_int_equal(iso_session_position(s), 0);
    tools_ok(iso_session_decode(s, 1));
    iso_session_free(s);
    iso_engine_close(e);
}

/* L8: an error, not the death of the process. */
static void a_file_cut_while_loaded_is_an_error(void **state)
{
    (void)state;
    tools_guard_on();
    struct tiny_spec spec = tiny_spec("llama");
    spec.n_vocab = 4000; /* some pages long */
    struct tiny_model m;
    const char *path = tiny_path("cut");
    tiny_model_init(&m, &spec);
    tiny_model_save(&m, path);
    tiny_model_deinit(&m);
    iso_engine *e = NULL;
    tools_ok(iso_engine_open(&e, &(struct iso_engine_options){
                                     .model_path = path, .n_threads = 3, .no_tokenizer = true}));
    iso_session *s = tools_session(e);
    tools_ok(iso_session_decode(s, 1));
    assert_int_equal(truncate(path, 8192), 0);
    tools_expect(iso_session_decode(s, 2), ISO_E_IO, "shrank while it was in use");
    assert_int_equal(iso_session_position(s), 1);
    assert_null(iso_session_logits(s));
    tools_expect(iso_session_decode(s, 2), ISO_E_IO, path);
    (void)unlink(path);
    iso_session_free(s);
    iso_engine_close(e);
}

static void nothing_was_tapped(
    void *arg, uint32_t layer, const char *name, const float *data, size_t n_rows, size_t width)
{
    (void)layer, (void)name, (void)data, (void)n_rows;
    *(size_t *)arg += width;
}

/* Taps show tensors and change no bit; setting and removing them leaks nothing. */
static void taps_change_nothing(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        iso_engine *e = tools_engine(tools_family[f], NULL);
        iso_session *s = tools_session(e);
        int32_t *ids = tools_ids(e, 90, 2);
        struct iso_digest plain[90], tapped[90];
        tools_run(s, ids, 90, 40, plain);
        const struct iso_digest chain = tools_chain(s);
        size_t total = 0;
        for (int i = 0; i < 3; i++) {
            tools_ok(iso_engine_set_tap(e, nothing_was_tapped, &total));
            iso_session_rewind(s, 0);
            tools_run(s, ids, 90, 40, tapped);
            tools_ok(iso_engine_set_tap(e, NULL, NULL));
            assert_int_equal(e->b.tap.buffer, 0);
            assert_memory_equal(plain, tapped, sizeof(plain));
            const struct iso_digest again = tools_chain(s);
            if (e->info.window == 0) assert_memory_equal(&chain, &again, sizeof(chain));
        }
        assert_true(total > 0);
        free(ids);
        iso_session_free(s);
        iso_engine_close(e);
    }
}

int main(void)
{
    tools_guard_on(); /* before cmocka puts its own handlers in */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(overflow_names_layer_and_tensor),
        cmocka_unit_test(a_thread_with_another_rounding_mode_is_refused),
        cmocka_unit_test(a_file_cut_while_loaded_is_an_error),
        cmocka_unit_test(taps_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
