/* SPDX-License-Identifier: MIT
 * test_score_scale.c - attention's score scale for every head size, bit by bit, from tests/vectors/rope.txt. */
#include "vectors/vectors.h"

#include "model/model.h"
#include "model/tiny_model.h"

static void add_cap(struct tiny_model *m)
{
    tiny_f32(m, "*.attn_logit_softcapping", 50.0f);
}

static float scale_of(uint32_t head_dim, bool capped)
{
    struct tiny_spec spec = tiny_spec("qwen3");
    spec.head_dim = head_dim;
    spec.n_layers = 1;
    if (capped) spec.extra = add_cap;
    struct tiny_model m;
    const char *path = tiny_path("scale");
    tiny_model_init(&m, &spec);
    tiny_model_save(&m, path);
    tiny_model_deinit(&m);
    struct iso_gguf *g = NULL;
    struct iso_hparams hp;
    const struct iso_family *family = NULL;
    enum iso_err err = iso_gguf_open(&g, path);
    if (err == ISO_OK) err = iso_hparams_read(&hp, &family, g);
    iso_gguf_close(g);
    (void)unlink(path);
    tiny_ok(err);
    return hp.attention_c;
}

static void test_all(void **state)
{
    (void)state;
    FILE *f = vectors_open("rope.txt");
    struct vector_case c;
    size_t n = 0;
    for (; vector_next(&c, f); vector_free(&c)) {
        if (strcmp(c.op, "score_scale") != 0) continue;
        const uint32_t d = vector_get(&c, "d")->word[0];
        const float plain = scale_of(d, false), capped = scale_of(d, true);
        vector_expect(&c, "want", &plain, 1, "plain");
        vector_expect(&c, "capped", &capped, 1, "capped");
        n++;
    }
    (void)fclose(f);
    assert_int_equal(n, 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
