/* SPDX-License-Identifier: MIT
 * tools.c - tiny engines, ids and comparisons for the tests of the engine. */
#include "engine/tools.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

const char *const tools_family[N_FAMILIES] = {"llama", "qwen2", "qwen3", "gemma3", "muse-glimmer"};

void tools_ok(enum iso_err err)
{
    if (err != ISO_OK) fail_msg("%s", iso_err_detail());
}

void tools_expect(enum iso_err err, enum iso_err want, const char *text)
{
    if (err != want) {
        fail_msg("got %d (%s), want %d (%s)", (int)err, err ? iso_err_detail() : "", (int)want,
                 iso_err_str(want));
    }
    if (strstr(iso_err_message(), text) == NULL) {
        fail_msg("\"%s\" is not in \"%s\"", text, iso_err_message());
    }
}

iso_engine *tools_engine_of(const struct tiny_spec *spec, const struct iso_engine_options *o)
{
    struct iso_engine_options with = o ? *o : (struct iso_engine_options){0};
    struct tiny_model m;
    const char *path = tiny_path(spec->arch);
    tiny_model_init(&m, spec);
    tiny_model_save(&m, path);
    tiny_model_deinit(&m);
    with.model_path = path;
    with.no_tokenizer = true;
    if (with.n_threads == 0) with.n_threads = 1;
    if (with.n_ctx == 0) with.n_ctx = 1024;
    if (with.n_outputs == 0) with.n_outputs = ISO_MAX_BATCH;
    iso_engine *e = NULL;
    const enum iso_err err = iso_engine_open(&e, &with);
    (void)unlink(path);
    tools_ok(err);
    return e;
}

iso_engine *tools_engine(const char *arch, const struct iso_engine_options *o)
{
    const struct tiny_spec spec = tiny_spec(arch);
    return tools_engine_of(&spec, o);
}

iso_session *tools_session(iso_engine *e)
{
    iso_session *s = NULL;
    tools_ok(iso_session_new(&s, e, 0));
    return s;
}

int32_t *tools_ids(const iso_engine *e, size_t n, uint64_t seed)
{
    int32_t *ids = iso_xalloc(n, sizeof(*ids));
    uint64_t state = seed * 0x9e3779b97f4a7c15ull + 88172645463325252ull;
    for (size_t i = 0; i < n; i++) {
        ids[i] = (int32_t)(tiny_next(&state) % iso_engine_info(e)->n_vocab);
    }
    return ids;
}

void tools_run(iso_session *s, const int32_t *ids, size_t n, size_t chunk, struct iso_digest *out)
{
    static struct iso_row rows[ISO_MAX_BATCH];
    iso_engine *e = iso_session_engine(s);
    for (size_t at = 0; at < n; at += chunk) {
        const size_t m = ISO_MIN(chunk, n - at);
        for (size_t i = 0; i < m; i++) {
            const bool want = out != NULL || at + i + 1 == n;
            rows[i] = (struct iso_row){s, ids[at + i], want ? ISO_OUTPUT_LOGITS : ISO_OUTPUT_NONE};
        }
        tools_ok(iso_step(e, rows, m, NULL));
        for (size_t i = 0; out && i < m; i++) {
            iso_logits_digest(&out[at + i], iso_step_logits(e, i), iso_engine_info(e)->n_vocab);
        }
    }
}

struct iso_digest tools_logits(const iso_session *s)
{
    struct iso_digest d;
    const float *l = iso_session_logits(s);
    assert_non_null(l);
    iso_logits_digest(&d, l, iso_engine_info(iso_session_engine(s))->n_vocab);
    return d;
}

struct iso_digest tools_chain(const iso_session *s)
{
    struct iso_digest d;
    iso_session_kv_chain(&d, s);
    return d;
}

void tools_guard_on(void)
{
    static struct sigaction guard;
    if (guard.sa_sigaction == NULL) {
        iso_engine_close(tools_engine("llama", NULL)); /* the first mapping installs it */
        assert_int_equal(sigaction(SIGBUS, NULL, &guard), 0);
    }
    assert_int_equal(sigaction(SIGBUS, &guard, NULL), 0);
}
