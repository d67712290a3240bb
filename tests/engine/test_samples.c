/* SPDX-License-Identifier: MIT
 * test_samples.c - D6: seeds give the golden ids on the real models. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/sampler.h"
#include "engine/tools.h"

#define SEEDS 64

/* All of a golden text file. Returns owned. */
static char *slurp(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL) fail_msg("%s: %s (run from the project's root)", path, strerror(errno));
    char *text = iso_xalloc(1 << 16, 1);
    const size_t n = fread(text, 1, (1 << 16) - 1, f);
    assert_true(n > 0 && feof(f));
    (void)fclose(f);
    return text;
}

static size_t read_ids(int32_t *ids, size_t max, const char *path)
{
    char *text = slurp(path), *at = text;
    size_t n = 0;
    for (;;) {
        char *end = NULL;
        const long id = strtol(at, &end, 10);
        if (end == at) break;
        assert_true(n < max);
        ids[n++] = (int32_t)id;
        at = end;
        while (*at == ',' || *at == ' ' || *at == '\n') at++;
    }
    assert_int_equal(*at, 0);
    free(text);
    return n;
}

/* "temp T top_k K top_p P min_p M position N seeds 0..63: id id ..." */
static void check_line(const char *line, const float *logits, size_t n_vocab, size_t n_prompt)
{
    struct iso_sampler_params p = ISO_SAMPLER_PLAIN;
    unsigned long position = 0;
    int used = 0;
    if (sscanf(line, "temp %f top_k %u top_p %f min_p %f position %lu seeds 0..63:%n",
               &p.temperature, &p.top_k, &p.top_p, &p.min_p, &position, &used) != 5 ||
        used == 0) {
        fail_msg("cannot read: %.80s", line);
    }
    assert_int_equal(position, n_prompt);
    const char *at = line + used;
    for (p.seed = 0; p.seed < SEEDS; p.seed++) {
        char *end = NULL;
        const long want = strtol(at, &end, 10);
        assert_true(end != at);
        at = end;
        struct iso_sampler *s = NULL;
        tools_ok(iso_sampler_new(&s, &p, n_vocab));
        const int32_t got = iso_sampler_pick(s, logits, position);
        iso_sampler_free(s);
        if (got != want) {
            fail_msg("seed %llu: %d, want %ld: %.60s", (unsigned long long)p.seed, got, want, line);
        }
    }
    while (*at == ' ') at++;
    assert_true(*at == '\n' || *at == '\0');
}

static void check_model(const char *file, const char *folder, size_t n_lines)
{
    char path[256];
    int32_t ids[256];
    (void)snprintf(path, sizeof(path), "tests/golden/%s/short.ids", folder);
    const size_t n = read_ids(ids, ISO_COUNT(ids), path);
    (void)snprintf(path, sizeof(path), "tests/golden/%s/short.samples", folder);
    char *text = slurp(path);
    iso_engine *e = NULL;
    tools_ok(iso_engine_open(&e, &(struct iso_engine_options){.model_path = tiny_real_model(file),
                                                              .n_ctx = 256,
                                                              .n_batch = 64,
                                                              .n_threads = 1,
                                                              .no_tokenizer = true}));
    iso_session *s = tools_session(e);
    tools_ok(iso_session_prefill(s, ids, n, NULL));
    size_t checked = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        if (line[0] == '#') continue;
        check_line(line, iso_session_logits(s), e->info.n_vocab, n);
        checked++;
    }
    assert_int_equal(checked, n_lines);
    free(text);
    iso_session_free(s);
    iso_engine_close(e);
}

static void smollm2_gives_the_golden_samples(void **state)
{
    (void)state;
    check_model("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m", 4);
}

static void gemma3_gives_the_golden_samples(void **state)
{
    (void)state;
    check_model("gemma-3-270m-q4_k_m.gguf", "gemma3-270m", 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smollm2_gives_the_golden_samples),
        cmocka_unit_test(gemma3_gives_the_golden_samples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
