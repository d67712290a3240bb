/* SPDX-License-Identifier: MIT
 * test_engine.c - sessions and steps: limits, refusals that change nothing, rewinding, cancelling.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "arith/page.h"
#include "base/clock.h"
#include "base/mem.h"
#include "engine/tools.h"

#define P ISO_PAGE_POSITIONS

/* --- open ---------------------------------------------------------------------------------------
 */

static void options_are_checked(void **state)
{
    (void)state;
    iso_engine *e = NULL;
    struct iso_engine_info info;
    struct tiny_spec spec = tiny_spec("llama");
    struct tiny_model m;
    const char *path = tiny_path("options");
    tiny_model_init(&m, &spec);
    tiny_model_save(&m, path);
    tiny_model_deinit(&m);
    const struct {
        struct iso_engine_options o;
        enum iso_err want;
        const char *text;
    } bad[] = {
        {{.model_path = NULL}, ISO_E_ARG, "no model file"},
        {{.model_path = "/nonexistent/x.gguf"}, ISO_E_IO, "/nonexistent/x.gguf"},
        {{.model_path = path}, ISO_E_UNSUPPORTED, "tokenizer"},
        {{.model_path = path, .no_tokenizer = true, .n_ctx = 4097}, ISO_E_ARG, "4097"},
        {{.model_path = path, .no_tokenizer = true, .n_sessions = 1025},
         ISO_E_ARG,
         "1025 sessions"},
        {{.model_path = path, .no_tokenizer = true, .n_batch = 4609}, ISO_E_ARG, "4609 rows"},
        {{.model_path = path, .no_tokenizer = true, .n_checkpoints = 65}, ISO_E_ARG, "65 checkpoints"},
        {{.model_path = path, .no_tokenizer = true, .n_threads = 257}, ISO_E_ARG, "257 threads"},
        {{.model_path = path, .no_tokenizer = true, .isa = "mmx"}, ISO_E_ARG, "mmx"},
    };
    for (size_t i = 0; i < ISO_COUNT(bad); i++) {
        tools_expect(iso_engine_open(&e, &bad[i].o), bad[i].want, bad[i].text);
        assert_null(e);
        if (i < 2 || (i > 2 && i < 6)) {
            tools_expect(iso_engine_plan(&info, &bad[i].o), bad[i].want, bad[i].text);
        }
    }
    (void)unlink(path);
}

static void the_plan_is_what_opening_takes(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        const struct tiny_spec spec = tiny_spec(tools_family[f]);
        struct tiny_model m;
        const char *path = tiny_path("plan");
        tiny_model_init(&m, &spec);
        tiny_model_save(&m, path);
        tiny_model_deinit(&m);
        const struct iso_engine_options o = {.model_path = path,
                                             .n_ctx = 700,
                                             .n_sessions = 3,
                                             .n_batch = 64,
                                             .staging = true,
                                             .n_threads = 1,
                                             .no_tokenizer = true};
        struct iso_engine_info plan;
        tools_ok(iso_engine_plan(&plan, &o));
        iso_engine *e = NULL;
        tools_ok(iso_engine_open(&e, &o));
        const struct iso_engine_info *info = iso_engine_info(e);
        assert_string_equal(plan.architecture, spec.arch);
        assert_int_equal(plan.kv_bytes, info->kv_bytes);
        assert_int_equal(plan.weight_bytes, info->weight_bytes);
        assert_true(plan.scratch_bytes <= info->scratch_bytes);
        uint64_t kv = 0;
        for (uint32_t c = 0; c < ISO_KV_CLASSES; c++) {
            kv += (uint64_t)e->pool[c].n_slots * e->pool[c].slot_bytes * e->pool[c].n_layers;
        }
        assert_int_equal(kv, info->kv_bytes);
        assert_int_equal(info->window, spec.window);
        assert_string_equal(info->name, "tiny");
        iso_engine_close(e);
        (void)unlink(path);
    }
}

/* The largest context that the limits allow: sizes must not wrap, and too much is an error. */
static void huge_contexts_do_not_wrap(void **state)
{
    (void)state;
    struct tiny_spec spec = tiny_spec("gemma3");
    spec.n_ctx = ISO_MAX_CONTEXT;
    struct tiny_model m;
    const char *path = tiny_path("huge");
    tiny_model_init(&m, &spec);
    tiny_model_save(&m, path);
    tiny_model_deinit(&m);
    struct iso_engine_info plan;
    const struct iso_engine_options o = {.model_path = path,
                                         .n_ctx = ISO_MAX_CONTEXT,
                                         .n_sessions = ISO_MAX_SESSIONS,
                                         .staging = true,
                                         .keep_expired = true,
                                         .no_tokenizer = true};
    tools_ok(iso_engine_plan(&plan, &o));
    assert_int_equal(plan.n_batch, 512);
    struct iso_engine_options on = o; /* the plan of a device needs none */
    on.device = "cuda";
    struct iso_engine_info other;
    tools_ok(iso_engine_plan(&other, &on));
    assert_int_equal(other.n_batch, 2048);
    on.n_ctx = 300;
    on.n_sessions = 3;
    tools_ok(iso_engine_plan(&other, &on));
    assert_int_equal(other.n_batch, 900);
    const uint64_t pages =
        (uint64_t)(ISO_MAX_CONTEXT / P) * (ISO_MAX_SESSIONS + 1) + ISO_AUDIT_ROWS;
    assert_int_equal(plan.kv_bytes, pages * iso_page_bytes(32) * 7);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    const pid_t pid = fork();
    if (pid == 0) { /* too much for this child: an error by name */
        const struct rlimit limit = {1u << 30, 1u << 30};
        struct iso_engine_options one = o;
        iso_engine *e = NULL;
        one.n_sessions = 1;
        one.n_threads = 1;
        if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(9);
        if (iso_engine_open(&e, &one) != ISO_E_NOMEM) _exit(1);
        _exit(strstr(iso_err_message(), "KV pages: ") && e == NULL ? 0 : 2);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
#endif
    (void)unlink(path);
}

static bool stop_at_once(void *arg, uint64_t done, uint64_t total)
{
    assert_true(done <= total);
    (*(int *)arg)++;
    return true;
}

static void opening_can_be_stopped(void **state)
{
    (void)state;
    const struct tiny_spec spec = tiny_spec("llama");
    struct tiny_model m;
    const char *path = tiny_path("stop");
    tiny_model_init(&m, &spec);
    tiny_model_save(&m, path);
    tiny_model_deinit(&m);
    int calls = 0;
    const struct iso_engine_options o = {.model_path = path,
                                         .n_threads = 2,
                                         .no_tokenizer = true,
                                         .progress = {stop_at_once, &calls}};
    iso_engine *e = NULL;
    tools_expect(iso_engine_open(&e, &o), ISO_E_CANCELLED, "loading was stopped");
    assert_int_equal(calls, 1);
    (void)unlink(path);
}

static void self_check_is_fast(void **state)
{
    (void)state;
    struct iso_device *dev = NULL;
    tools_ok(iso_device_cpu_open(&dev, "auto", 1));
    int64_t best = INT64_MAX;
    for (int i = 0; i < 3; i++) {
        const int64_t start = iso_clock_ns();
        tools_ok(dev->vt->self_check(dev));
        best = ISO_MIN(best, iso_clock_ns() - start);
    }
    print_message("self-check at %s: %.1f ms\n", dev->vt->level(dev), (double)best * 1e-6);
    dev->vt->close(dev);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(best < 100 * ISO_NS_PER_MS);
#endif
}

/* --- sessions -----------------------------------------------------------------------------------
 */

static void sessions_are_counted(void **state)
{
    (void)state;
    iso_engine *e =
        tools_engine("llama", &(struct iso_engine_options){.n_sessions = 3, .n_ctx = 256});
    iso_session *s[4] = {0};
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 3; i++) tools_ok(iso_session_new(&s[i], e, i == 1 ? 100 : 0));
        assert_int_equal(iso_session_n_ctx(s[0]), 256);
        assert_int_equal(iso_session_n_ctx(s[1]), 100);
        assert_ptr_equal(iso_session_engine(s[2]), e);
        tools_expect(iso_session_new(&s[3], e, 0), ISO_E_LIMIT, "all 3 sessions");
        tools_expect(iso_session_new(&s[3], e, 257), ISO_E_ARG, "257 tokens");
        assert_null(s[3]);
        int32_t *ids = tools_ids(e, 200, 1);
        tools_run(s[round], ids, 99, 64, NULL);
        free(ids);
        for (int i = 0; i < 3; i++) iso_session_free(s[(i + round) % 3]);
        for (uint32_t c = 0; c < ISO_KV_CLASSES; c++) { /* everything came back */
            assert_int_equal(e->pool[c].n_free, e->pool[c].n_slots);
            assert_int_equal(e->pool[c].n_reserved, e->pool[c].n_layers ? ISO_AUDIT_ROWS : 0);
        }
    }
    iso_session_free(NULL);
    iso_engine_close(e);
}

/* S6: with both counts, before anything is computed. */
static void a_full_context_is_an_error_that_changes_nothing(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        iso_engine *e = tools_engine(tools_family[f], &(struct iso_engine_options){.n_ctx = 300});
        iso_session *s = tools_session(e);
        int32_t *ids = tools_ids(e, 1000, f);
        tools_expect(iso_session_prefill(s, ids, 301, NULL), ISO_E_CONTEXT,
                     "0 tokens held and a prompt of 301, the context has 300");
        assert_int_equal(iso_session_position(s), 0);
        tools_run(s, ids, 299, 64, NULL);
        tools_expect(iso_session_prefill(s, ids, 900, NULL), ISO_E_CONTEXT,
                     "299 tokens held and a prompt of 900, the context has 300");
        tools_ok(iso_session_decode(s, ids[299]));
        const struct iso_digest logits = tools_logits(s), chain = tools_chain(s);
        tools_expect(iso_session_decode(s, ids[0]), ISO_E_CONTEXT,
                     "300 tokens held and 1 more, the context has 300");
        assert_int_equal(iso_session_position(s), 300);
        assert_memory_equal(iso_session_ids(s), ids, 300 * sizeof(*ids));
        const struct iso_digest after = tools_logits(s), chain_after = tools_chain(s);
        assert_memory_equal(&logits, &after, sizeof(after));
        assert_memory_equal(&chain, &chain_after, sizeof(chain));
        free(ids);
        iso_session_free(s);
        iso_engine_close(e);
    }
}

static void bad_rows_are_refused(void **state)
{
    (void)state;
    iso_engine *e =
        tools_engine("llama", &(struct iso_engine_options){.n_sessions = 2, .n_batch = 8, .n_outputs = 2});
    iso_engine *other = tools_engine("llama", NULL);
    iso_session *a = tools_session(e), *b = tools_session(e), *x = tools_session(other);
    tools_ok(iso_session_decode(a, 5));
    tools_ok(iso_session_decode(x, 5));
    const struct iso_digest chain = tools_chain(a), x_logits = tools_logits(x);
    const struct iso_row wrong_order[] = {{a, 1, 0}, {b, 2, 0}, {a, 3, 0}};
    const struct iso_row outside[] = {{a, 1, 0}, {a, 300, ISO_OUTPUT_LOGITS}};
    const struct iso_row negative[] = {{b, -1, 0}};
    const struct iso_row foreign[] = {{a, 1, 0}, {x, 1, 0}};
    const struct iso_row none[] = {{a, 1, 0}, {NULL, 1, 0}};
    const struct iso_row too_many_outputs[] = {{a, 1, ISO_OUTPUT_LOGITS}, {a, 1, ISO_OUTPUT_LOGITS},
                                               {b, 1, ISO_OUTPUT_LOGITS}};
    struct iso_row many[9];
    for (int i = 0; i < 9; i++) many[i] = (struct iso_row){a, i, 0};
    tools_expect(iso_step(e, wrong_order, 3, NULL), ISO_E_ARG, "row 2: rows of a session");
    tools_expect(iso_step(e, outside, 2, NULL), ISO_E_ARG, "row 1: id 300");
    tools_expect(iso_step(e, negative, 1, NULL), ISO_E_ARG, "row 0: id -1");
    tools_expect(iso_step(e, foreign, 2, NULL), ISO_E_ARG, "row 1 belongs to another engine");
    tools_expect(iso_step(e, none, 2, NULL), ISO_E_ARG, "row 1 has no session");
    tools_expect(iso_step(e, too_many_outputs, 3, NULL), ISO_E_ARG, "3 rows want logits, the engine has room for 2");
    tools_expect(iso_step(e, many, 9, NULL), ISO_E_ARG, "9 rows: 1 to 8");
    tools_expect(iso_step(e, many, 0, NULL), ISO_E_ARG, "0 rows");
    assert_int_equal(iso_session_position(a), 1);
    assert_int_equal(iso_session_position(b), 0);
    const struct iso_digest chain_after = tools_chain(a), x_after = tools_logits(x);
    assert_memory_equal(&chain, &chain_after, sizeof(chain));
    assert_memory_equal(&x_logits, &x_after, sizeof(x_after));
    assert_null(iso_step_logits(e, 1)); /* of the decode above: one row */
    assert_non_null(iso_step_logits(e, 0));
    tools_ok(iso_step(e, many, 8, NULL)); /* and it works again */
    assert_null(iso_session_logits(a));   /* nobody asked */
    iso_session_free(a);
    iso_session_free(b);
    iso_session_free(x);
    iso_engine_close(other);
    iso_engine_close(e);
}

/* --- rewinding ----------------------------------------------------------------------------------
 */

static void check_tail_is_zero(const iso_session *s)
{
    const struct iso_kv_layout *y = iso_engine_kv_layout(iso_session_engine(s));
    const uint32_t n = iso_session_position(s), last = n / P;
    if (n % P == 0) return;
    for (uint32_t l = 0; l < y->n_layers; l++) {
        for (uint32_t h = 0; h < y->n_kv_heads; h++) {
            const char *reason = NULL;
            const uint8_t *page = iso_session_page(s, l, h, last);
            assert_non_null(page);
            if (!iso_kv_page_form(&reason, page, y->head_dim, n % P)) fail_msg("%s", reason);
        }
    }
}

/* Rewinding to p and going on equals a run that was never longer; window layers say where they
 * could go back to. */
static void rewinding_forgets(void **state)
{
    (void)state;
    enum { N = 500, MORE = 70 };
    for (size_t f = 0; f < N_FAMILIES; f++) {
        for (int keep = 0; keep < 2; keep++) {
            iso_engine *e = tools_engine(
                tools_family[f],
                &(struct iso_engine_options){.keep_expired = keep == 1, .n_batch = 64});
            int32_t *ids = tools_ids(e, N + MORE, 3), *other = tools_ids(e, MORE, 4);
            static const uint32_t to[] = {0, 1, 63, 64, 65, 127, 300, 433, 448, 449, 497, 499};
            uint32_t reached = 0;
            for (size_t i = 0; i < ISO_COUNT(to); i++) {
                iso_session *s = tools_session(e);
                tools_run(s, ids, N, 64, NULL);
                assert_int_equal(iso_session_rewind(s, N), N);
                assert_int_equal(iso_session_rewind(s, N + 5), N);
                const uint32_t p = iso_session_rewind(s, to[i]);
                assert_true(p == to[i] || (p == 0 && e->info.window > 0 && !keep));
                if (p == to[i]) reached++;
                assert_int_equal(iso_session_position(s), p);
                assert_null(iso_session_logits(s));
                check_tail_is_zero(s);
                struct iso_digest got[MORE], want[MORE];
                tools_run(s, other, MORE, 7, got);
                const struct iso_digest chain = tools_chain(s);
                iso_session_free(s);
                s = tools_session(e);
                if (p) tools_run(s, ids, p, 64, NULL);
                tools_run(s, other, MORE, 64, want);
                assert_memory_equal(got, want, sizeof(got));
                if (keep || e->info.window == 0) {
                    const struct iso_digest fresh = tools_chain(s);
                    assert_memory_equal(&chain, &fresh, sizeof(chain));
                }
                iso_session_free(s);
            }
            /* A windowed session reaches at least its last positions. */
            assert_true(reached >= (e->info.window > 0 && !keep ? 3u : (uint32_t)ISO_COUNT(to)));
            free(ids);
            free(other);
            iso_engine_close(e);
        }
    }
}

/* The pages a windowed session still holds are those of one that keeps everything. */
static void expired_pages_change_nothing(void **state)
{
    (void)state;
    enum { N = 777 };
    for (size_t f = 3; f < N_FAMILIES; f++) {
        iso_engine *a = tools_engine(tools_family[f], &(struct iso_engine_options){.n_batch = 96});
        iso_engine *b =
            tools_engine(tools_family[f], &(struct iso_engine_options){.keep_expired = true});
        iso_session *s = tools_session(a), *t = tools_session(b);
        int32_t *ids = tools_ids(a, N, f);
        struct iso_digest x[N], y[N];
        tools_run(s, ids, N, 96, x);
        tools_run(t, ids, N, 500, y);
        assert_memory_equal(x, y, sizeof(x));
        const struct iso_kv_layout *k = iso_engine_kv_layout(a);
        const uint32_t first = iso_session_first_page(s, ISO_KV_WINDOW);
        assert_true(first > 4);
        assert_int_equal(iso_session_first_page(s, ISO_KV_FULL), 0);
        assert_int_equal(iso_session_first_page(t, ISO_KV_WINDOW), 0);
        for (uint32_t l = 0; l < k->n_layers; l++) {
            const uint32_t from = k->layer_class[l] == ISO_KV_WINDOW ? first : 0;
            if (from) assert_null(iso_session_page(s, l, 0, from - 1));
            for (uint32_t p = from; p <= (N - 1) / P; p++) {
                for (uint32_t h = 0; h < k->n_kv_heads; h++) {
                    assert_memory_equal(iso_session_page(s, l, h, p), iso_session_page(t, l, h, p),
                                        k->page_bytes);
                }
            }
            assert_null(iso_session_page(s, l, 0, (N - 1) / P + 1));
            assert_null(iso_session_page(s, l, k->n_kv_heads, 0));
        }
        assert_null(iso_session_page(s, k->n_layers, 0, 0));
        free(ids);
        iso_session_free(s);
        iso_session_free(t);
        iso_engine_close(a);
        iso_engine_close(b);
    }
}

/* A step may be longer than the window: the pool must still have room for both. */
static void long_steps_fit_a_short_window(void **state)
{
    (void)state;
    static const uint32_t batch[] = {1, 63, 64, 65, 512};
    for (size_t i = 0; i < ISO_COUNT(batch); i++) {
        for (size_t f = 3; f < N_FAMILIES; f++) {
            iso_engine *e =
                tools_engine(tools_family[f],
                             &(struct iso_engine_options){.n_batch = batch[i], .n_sessions = 2});
            iso_session *s[2] = {tools_session(e), tools_session(e)};
            int32_t *ids = tools_ids(e, 1024, i);
            for (int k = 0; k < 2; k++) { /* the second one starts with odd steps */
                tools_run(s[k], ids, k ? 200 : 1024, k ? ISO_MIN(batch[i], 37u) : batch[i], NULL);
            }
            tools_run(s[1], ids + 200, 824, batch[i], NULL);
            for (uint32_t l = 0; l < e->info.n_layers; l++) {
                const uint32_t last = 1023 / P;
                assert_memory_equal(iso_session_page(s[0], l, 0, last),
                                    iso_session_page(s[1], l, 0, last), e->layout.page_bytes);
            }
            free(ids);
            iso_session_free(s[0]);
            iso_session_free(s[1]);
            iso_engine_close(e);
        }
    }
}

/* --- cancelling ---------------------------------------------------------------------------------
 */

struct stop_at {
    uint64_t layer;
    uint64_t calls;
};

static bool stop_at_layer(void *arg, uint64_t done, uint64_t total)
{
    struct stop_at *s = arg;
    s->calls++;
    assert_true(done < total);
    free(iso_xalloc(1, 1)); /* a listener may allocate: it is not part of the step */
    return done == s->layer;
}

static void a_cancelled_step_changes_nothing(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        iso_engine *e =
            tools_engine(tools_family[f], &(struct iso_engine_options){.n_sessions = 3});
        iso_session *a = tools_session(e), *b = tools_session(e), *control = tools_session(e);
        int32_t *ids = tools_ids(e, 400, f);
        tools_run(a, ids, 130, 64, NULL);
        tools_run(b, ids, 64, 64, NULL);
        const struct iso_digest chain = tools_chain(b);
        struct iso_row rows[171];
        for (int i = 0; i < 100; i++) rows[i] = (struct iso_row){a, ids[130 + i], ISO_OUTPUT_NONE};
        for (int i = 0; i < 71; i++)
            rows[100 + i] = (struct iso_row){b, ids[300 - i], ISO_OUTPUT_NONE};
        for (uint32_t l = 0; l < e->info.n_layers; l++) {
            struct stop_at stop = {.layer = l};
            const struct iso_progress cancel = {stop_at_layer, &stop};
            tools_expect(iso_step(e, rows, 171, &cancel), ISO_E_CANCELLED, "before layer");
            assert_int_equal(stop.calls, l + 1);
            assert_int_equal(iso_session_position(a), 130);
            assert_int_equal(iso_session_position(b), 64);
            assert_null(iso_session_logits(a));
            check_tail_is_zero(a);
        }
        const struct iso_digest chain_after = tools_chain(b);
        if (e->info.window == 0) assert_memory_equal(&chain, &chain_after, sizeof(chain));
        struct iso_digest x[100], y[100];
        tools_run(a, ids + 130, 100, 100, x);
        tools_run(control, ids, 130, 64, NULL);
        tools_run(control, ids + 130, 100, 33, y);
        assert_memory_equal(x, y, sizeof(x));
        const struct iso_progress never = {NULL, NULL};
        tools_ok(iso_step(e, rows + 100, 71, &never));
        free(ids);
        iso_session_free(a);
        iso_session_free(b);
        iso_session_free(control);
        iso_engine_close(e);
    }
}

static bool stop_behind(void *arg, uint64_t done, uint64_t total)
{
    assert_int_equal(total, 300);
    return done > *(uint64_t *)arg;
}

static bool count_up(void *arg, uint64_t done, uint64_t total)
{
    assert_true(done >= *(uint64_t *)arg && done <= total);
    *(uint64_t *)arg = done;
    return false;
}

/* S1: a prompt is stopped inside a chunk, not only between chunks. */
static void a_prompt_can_be_stopped(void **state)
{
    (void)state;
    iso_engine *e = tools_engine("llama", &(struct iso_engine_options){.n_batch = 128});
    iso_session *s = tools_session(e);
    int32_t *ids = tools_ids(e, 300, 1);
    uint64_t at = 128 + 30;
    const struct iso_progress stop = {stop_behind, &at};
    tools_expect(iso_session_prefill(s, ids, 300, &stop), ISO_E_CANCELLED, "token 128 of 300");
    assert_int_equal(iso_session_position(s), 128);
    uint64_t last = 0;
    const struct iso_progress count = {count_up, &last};
    tools_ok(iso_session_prefill(s, ids + 128, 172, &count));
    assert_int_equal(last, 172);
    const struct iso_digest got = tools_logits(s);
    iso_session_rewind(s, 0);
    tools_ok(iso_session_prefill(s, ids, 300, NULL));
    const struct iso_digest want = tools_logits(s);
    assert_memory_equal(&got, &want, sizeof(got));
    free(ids);
    iso_session_free(s);
    iso_engine_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(the_plan_is_what_opening_takes),
        cmocka_unit_test(huge_contexts_do_not_wrap),
        cmocka_unit_test(opening_can_be_stopped),
        cmocka_unit_test(self_check_is_fast),
        cmocka_unit_test(sessions_are_counted),
        cmocka_unit_test(a_full_context_is_an_error_that_changes_nothing),
        cmocka_unit_test(bad_rows_are_refused),
        cmocka_unit_test(rewinding_forgets),
        cmocka_unit_test(expired_pages_change_nothing),
        cmocka_unit_test(long_steps_fit_a_short_window),
        cmocka_unit_test(a_cancelled_step_changes_nothing),
        cmocka_unit_test(a_prompt_can_be_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
