/* SPDX-License-Identifier: MIT
 * test_template.c - chat templates against Python's jinja2, refusals at load, message forms.
 *
 * tools/template_oracle.py renders every public template over the fixed conversations, and the
 * snippets of snippets.json; each must give the same bytes or the same failure here, or be refused
 * at load by name. Families that must render are listed below.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fnmatch.h>
#include <glob.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/template.h"

#define NOW 1735689600 /* 2025-01-01 00:00:00 UTC */
#define DIR "tests/tokenizer/conversations/"
#define OUT_MAX (4u << 20)
#define MIN_CASES 1000 /* fewer means that files are missing */

static const char *const must_render[] = {
    "*meta-llama-Llama-3.1*",
    "*meta-llama-Llama-3.2*",
    "*meta-llama-Llama-3.3*",
    "*Qwen-Qwen2.5*",
    "*Qwen-QwQ*",
    "*Qwen-Qwen3-*",
    "*Qwen3-Coder*",
    "*Qwen3.5*",
    "*google-gemma-2-2b*",
    "*muse-glimmer*",
    "*SmolLM3*",
    "*Hermes-2-Pro*",
    "*Hermes-3*",
    "*DeepSeek-R1-Distill-Llama*",
    "*DeepSeek-R1-Distill-Qwen*",
    "*SmolLM2*gguf",
};

/* One template and how it compares. */
struct row {
    char *path;
    struct iso_template *t; /* NULL when it was refused at load */
    char *why;
    unsigned equal, text, raised, other;
};

static struct row *g_rows;
static size_t g_n_rows;
static unsigned g_compared, g_different;

static char *copy(const char *s)
{
    char *out = strdup(s);
    assert_non_null(out);
    return out;
}

static json_t *load_json(const char *path)
{
    json_error_t e;
    json_t *v = json_load_file(path, JSON_ALLOW_NUL, &e);
    if (v == NULL) fail_msg("%s: line %d: %s", path, e.line, e.text);
    return v;
}

static struct iso_template_args args_of(json_t *conversation)
{
    return (struct iso_template_args){
        .messages = json_object_get(conversation, "messages"),
        .tools = json_object_get(conversation, "tools"),
        .bos_token = "<BOS>",
        .eos_token = "<EOS>",
        .add_generation_prompt =
            json_is_true(json_object_get(conversation, "add_generation_prompt")),
        .now = NOW,
        .extra = json_object_get(conversation, "extra"),
        .exact_messages = true,
    };
}

static void differ(const char *name, const char *conversation, const char *want, const char *got)
{
    size_t at = 0;
    g_different++;
    if (g_different > 20) return;
    while (want[at] && want[at] == got[at]) at++;
    const size_t from = at > 60 ? at - 60 : 0;
    print_error("DIFFERENT %s %s at byte %zu\n  jinja2: %.160s\n  here:   %.160s\n", name,
                conversation ? conversation : "", at, want + from, got + from);
}

/* Compares one rendering with the oracle's line. What a template raises, and what Python says of
 * any other failure of a public template, must be said here too; of a snippet only that it fails.
 */
static void compare(struct row *row, const json_t *line, json_t *conversation)
{
    const char *name = json_string_value(json_object_get(line, "template"));
    const char *conv = json_string_value(json_object_get(line, "conversation"));
    const json_t *text = json_object_get(line, "text");
    const char *raised = json_string_value(json_object_get(line, "raised"));
    const json_t *failed = json_object_get(line, "error");
    const char *error = failed != NULL ? json_string_value(failed) : "";
    const struct iso_template_args args = args_of(conversation);
    struct iso_buf b;
    iso_buf_init(&b, OUT_MAX);
    const enum iso_err err = iso_template_render(&b, row->t, &args);
    const unsigned before = g_different;
    g_compared++;
    if (text != NULL) {
        if (err != ISO_OK)
            differ(name, conv, json_string_value(text), iso_err_message());
        else if (b.len != json_string_length(text) ||
                 memcmp(b.data, json_string_value(text), b.len) != 0)
            differ(name, conv, json_string_value(text), (const char *)b.data);
        else
            row->text++;
    } else if (strncmp(error, "RecursionError", 14) == 0 && err == ISO_E_LIMIT) {
        row->other++; /* both ran out of depth */
    } else if (err != ISO_E_TEMPLATE) {
        differ(name, conv, raised ? raised : error,
               err == ISO_OK ? (const char *)b.data : iso_err_message());
    } else if (raised != NULL) {
        if (strcmp(raised, iso_err_message()) != 0)
            differ(name, conv, raised, iso_err_message());
        else
            row->raised++;
    } else {
        const char *colon =
            strstr(error, ": "); /* Python's "Type: message", ours "line N: message" */
        if (conv != NULL && (colon == NULL || strstr(iso_err_message(), colon) == NULL)) {
            differ(name, conv, error, iso_err_message());
        } else {
            row->other++;
        }
    }
    row->equal += g_different == before;
    iso_buf_deinit(&b);
}

static struct row *row_of(const char *path)
{
    for (size_t i = 0; i < g_n_rows; i++) {
        if (strcmp(g_rows[i].path, path) == 0) return &g_rows[i];
    }
    return NULL;
}

static void add_row(const json_t *line)
{
    const json_t *source = json_object_get(line, "source");
    g_rows = realloc(g_rows, (g_n_rows + 1) * sizeof(*g_rows));
    assert_non_null(g_rows);
    struct row *row = &g_rows[g_n_rows++];
    *row = (struct row){.path = copy(json_string_value(json_object_get(line, "template")))};
    const enum iso_err err =
        iso_template_new(&row->t, json_string_value(source), json_string_length(source));
    if (err == ISO_OK) return;
    if (err != ISO_E_UNSUPPORTED) differ(row->path, "load", "", iso_err_detail());
    row->why = copy(iso_err_message());
}

/* Snippets may also fail to parse here and there. */
static void compare_snippet(const json_t *line, json_t *conversation, unsigned *refused)
{
    const json_t *source = json_object_get(line, "source");
    struct row row = {.path = (char *)(uintptr_t)json_string_value(source)};
    const enum iso_err err =
        iso_template_new(&row.t, json_string_value(source), json_string_length(source));
    if (err == ISO_OK) {
        const unsigned before = g_different;
        compare(&row, line, conversation);
        if (g_different > before) print_error("  in %s\n", row.path);
    } else if (err == ISO_E_UNSUPPORTED) {
        (*refused)++;
        print_message("refused: %s: %s\n", row.path, iso_err_message());
    } else {
        g_compared++;
        if (json_object_get(line, "error") == NULL || err != ISO_E_FORMAT) {
            differ(row.path, "load", "", iso_err_detail());
        }
    }
    iso_template_free(row.t);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Model folder, templates and models that exist. */
static size_t find_files(glob_t *g)
{
    char pattern[512];
    const char *models = getenv("ISOBIT_MODELS");
    const char *home = getenv("HOME");
    char dir[300];
    if (models != NULL)
        (void)snprintf(dir, sizeof(dir), "%s", models);
    else
        (void)snprintf(dir, sizeof(dir), "%s/.cache/isobit/models", home ? home : "");
    const char *const names[] = {"peer/templates/*.jinja", "SmolLM2-135M-Instruct.Q4_1.gguf",
                                 "gemma-3-270m-q4_k_m.gguf"};
    for (size_t i = 0; i < 3; i++) {
        (void)snprintf(pattern, sizeof(pattern), "%s/%s", dir, names[i]);
        if (glob(pattern, i ? GLOB_APPEND : 0, NULL, g) != 0) {
            fail_msg("%s is missing: run tools/fetch_models.sh", pattern);
        }
    }
    return g->gl_pathc;
}

static FILE *run_oracle(const glob_t *g)
{
    size_t len = 256;
    for (size_t i = 0; i < g->gl_pathc; i++) len += strlen(g->gl_pathv[i]) + 3;
    char *cmd = malloc(len);
    assert_non_null(cmd);
    int n = snprintf(cmd, len,
                     "python3 tools/template_oracle.py --now %d --conversations %s "
                     "--snippets tests/tokenizer/snippets.json",
                     NOW, DIR);
    for (size_t i = 0; i < g->gl_pathc; i++) {
        n += snprintf(cmd + n, len - (size_t)n, " '%s'", g->gl_pathv[i]);
    }
    FILE *f = popen(cmd, "r");
    free(cmd);
    assert_non_null(f);
    return f;
}

/* Prints the table; fails when a family that must render was refused. */
static void report(void)
{
    unsigned equal = 0, refused = 0;
    for (size_t i = 0; i < g_n_rows; i++) {
        const struct row *r = &g_rows[i];
        if (r->t == NULL) {
            refused++;
            print_message("%-56s refused: %s\n", base_name(r->path), r->why);
        } else {
            equal += r->equal;
            print_message("%-56s equal %u (text %u, raised %u, error %u)\n", base_name(r->path),
                          r->equal, r->text, r->raised, r->other);
        }
        for (size_t k = 0; k < sizeof(must_render) / sizeof(must_render[0]); k++) {
            if (fnmatch(must_render[k], r->path, 0) == 0 && r->t == NULL) {
                fail_msg("%s must render, but: %s", base_name(r->path), r->why);
            }
        }
    }
    for (size_t k = 0; k < sizeof(must_render) / sizeof(must_render[0]); k++) {
        bool found = false;
        for (size_t i = 0; i < g_n_rows; i++)
            found |= fnmatch(must_render[k], g_rows[i].path, 0) == 0;
        if (!found) fail_msg("no template matches %s: run tools/fetch_models.sh", must_render[k]);
    }
    print_message("%zu templates, %u refused by name, %u renderings equal\n", g_n_rows, refused,
                  equal);
}

static void free_rows(void)
{
    for (size_t i = 0; i < g_n_rows; i++) {
        iso_template_free(g_rows[i].t);
        free(g_rows[i].path);
        free(g_rows[i].why);
    }
    free(g_rows);
    g_rows = NULL;
    g_n_rows = 0;
}

static void test_equal_to_jinja2(void **state)
{
    (void)state;
    glob_t g;
    (void)find_files(&g);
    FILE *f = run_oracle(&g);
    globfree(&g);
    json_t *conversation = NULL, *snippets = load_json("tests/tokenizer/snippets.json");
    char *line = NULL, current[256] = "";
    size_t cap = 0;
    unsigned refused_snippets = 0, n_snippets = 0;
    for (ssize_t n; (n = getline(&line, &cap, f)) > 0;) {
        json_t *v = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL);
        assert_non_null(v);
        const char *path = json_string_value(json_object_get(v, "template"));
        const char *conv = json_string_value(json_object_get(v, "conversation"));
        if (strncmp(path, "snippet ", 8) == 0) {
            n_snippets++;
            compare_snippet(v, json_array_get(snippets, 0), &refused_snippets);
        } else if (conv == NULL) {
            add_row(v);
        } else if (row_of(path)->t != NULL) {
            if (strcmp(conv, current) != 0) {
                char file[512];
                (void)snprintf(current, sizeof(current), "%s", conv);
                (void)snprintf(file, sizeof(file), "%s%s", DIR, conv);
                json_decref(conversation);
                conversation = load_json(file);
            }
            compare(row_of(path), v, conversation);
        }
        json_decref(v);
    }
    free(line);
    json_decref(conversation);
    json_decref(snippets);
    if (pclose(f) != 0)
        fail_msg("tools/template_oracle.py failed; it needs python3 with python3-jinja2");
    report();
    free_rows();
    print_message("%u comparisons (%u snippets, %u of them refused), %u different\n", g_compared,
                  n_snippets, refused_snippets, g_different);
    assert_int_equal(g_different, 0);
    assert_true(g_compared >= MIN_CASES);
}

/* --- refusals at load --- */

static void expect_load(const char *text, enum iso_err want, const char *part)
{
    struct iso_template *t = NULL;
    const enum iso_err err = iso_template_new(&t, text, strlen(text));
    if (err != want || strstr(iso_err_message(), part) == NULL) {
        fail_msg("%.80s: got %s \"%s\", expected %s with \"%s\"", text, iso_err_str(err),
                 err ? iso_err_message() : "", iso_err_str(want), part);
    }
    assert_null(t);
}

static void test_refused_by_name(void **state)
{
    (void)state;
    expect_load("a\n{{ x | wordwrap }}", ISO_E_UNSUPPORTED, "line 2: filter 'wordwrap'");
    expect_load("{{ x is filter }}", ISO_E_UNSUPPORTED, "line 1: test 'filter'");
    expect_load("\n\n{{ lookup(1) }}", ISO_E_UNSUPPORTED, "line 3: function 'lookup'");
    expect_load("{{ x.zfill(3) }}", ISO_E_UNSUPPORTED, "line 1: method 'zfill'");
    expect_load("{% include 'x' %}", ISO_E_UNSUPPORTED, "line 1: tag 'include'");
    expect_load("{% do x %}", ISO_E_UNSUPPORTED, "tag 'do'");
    expect_load("{% for x in y recursive %}{% endfor %}", ISO_E_UNSUPPORTED, "recursive for");
    expect_load("{{ x|map('xmlattr') }}", ISO_E_UNSUPPORTED, "filter 'xmlattr' inside map");
    expect_load("{{ x|selectattr('a', 'filter') }}", ISO_E_UNSUPPORTED,
                "test 'filter' inside selectattr");
    expect_load("{{ f(*x) }}", ISO_E_UNSUPPORTED, "arguments of a call");
    expect_load("{{ x.__class__ }}", ISO_E_UNSUPPORTED, "attribute '__class__'");
    expect_load("{{ cycler }}", ISO_E_UNSUPPORTED, "function 'cycler'");
    expect_load("{{ 99999999999999999999 }}", ISO_E_UNSUPPORTED, "64 bits");
    expect_load("{% if x %}\n", ISO_E_FORMAT, "'elif' is missing");
    expect_load("\xff{{ x }}", ISO_E_FORMAT, "UTF-8");
}

/* --- message forms (cases C1 to C3) --- */

static json_t *messages_of(const char *text)
{
    json_error_t e;
    json_t *v = json_loads(text, 0, &e);
    if (v == NULL) fail_msg("%s: %s", text, e.text);
    return v;
}

static void check_messages(const char *messages, enum iso_err want, const char *part)
{
    json_t *v = messages_of(messages);
    const enum iso_err err = iso_messages_check(v);
    assert_int_equal(err, want);
    if (err != ISO_OK && strstr(iso_err_message(), part) == NULL) {
        fail_msg("\"%s\" lacks \"%s\"", iso_err_message(), part);
    }
    if (err == ISO_OK && *part) {
        char *now = json_dumps(v, JSON_COMPACT);
        assert_string_equal(now, part);
        free(now);
    }
    json_decref(v);
}

#define CALL(arguments)                                                                            \
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\","      \
    "\"arguments\":" arguments "}}]}"

static void test_messages_check(void **state)
{
    (void)state;
    check_messages("[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"user\"}]", ISO_OK, "");
    check_messages("[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}]}]", ISO_OK,
                   "");
    check_messages("[{\"role\":\"user\",\"content\":[]},{\"role\":\"a\",\"content\":null}]", ISO_OK,
                   "");
    check_messages(
        "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"user\",\"content\":[{\"type\":"
        "\"text\",\"text\":\"a\"},{\"type\":\"image_url\"}]}]",
        ISO_E_FORMAT, "messages[1].content[1] has the unsupported type \"image_url\"");
    check_messages("[{\"role\":\"user\",\"content\":5}]", ISO_E_FORMAT,
                   "messages[0].content is a number");
    check_messages("[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", ISO_E_FORMAT,
                   "messages[0].content[0].text is missing");
    check_messages("[{\"content\":\"x\"}]", ISO_E_FORMAT, "messages[0].role is missing");
    check_messages("[3]", ISO_E_FORMAT, "messages[0] is a number");
    check_messages("{}", ISO_E_FORMAT, "messages is an object");
    check_messages("[" CALL("\"{\\\"a\\\": 1}\"") "]", ISO_OK, "[" CALL("{\"a\":1}") "]");
    check_messages("[" CALL("{\"a\":1}") "]", ISO_OK, "[" CALL("{\"a\":1}") "]");
    check_messages("[" CALL("\" \"") "]", ISO_OK, "[" CALL("{}") "]");
    check_messages("[{\"role\":\"user\",\"content\":\"x\"}," CALL("\"{\"") "]", ISO_E_FORMAT,
                   "messages[1].tool_calls[0].function.arguments is not JSON");
    check_messages("[" CALL("\"[1]\"") "]", ISO_E_FORMAT, "holds an array");
    check_messages("[" CALL("7") "]", ISO_E_FORMAT, "arguments is a number");
    check_messages("[{\"role\":\"a\",\"tool_calls\":[{}]}]", ISO_E_FORMAT,
                   "no function with a name");
}

/* Renders with the adapted forms; want NULL: the error's message must contain part. */
static void expect_render(const char *template, const char *messages, const char *want)
{
    struct iso_template *t = NULL;
    if (iso_template_new(&t, template, strlen(template)) != ISO_OK)
        fail_msg("%s", iso_err_detail());
    struct iso_template_args args = {.messages = messages_of(messages)};
    struct iso_buf b;
    iso_buf_init(&b, OUT_MAX);
    if (iso_template_render(&b, t, &args) != ISO_OK) fail_msg("%s: %s", template, iso_err_detail());
    assert_string_equal((const char *)b.data, want);
    iso_buf_deinit(&b);
    json_decref(args.messages);
    iso_template_free(t);
}

static void test_message_forms(void **state)
{
    (void)state;
    static const char strings[] = "{% for m in messages %}{{ m['content'] + ';' }}{% endfor %}";
    static const char both[] =
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %};{% endfor %}";
    static const char arrays[] = "{% for m in messages %}{% for p in m.content %}{{ p['text'] }}"
                                 "{% endfor %};{% endfor %}";
    static const char two[] =
        "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
        "{\"type\":\"text\",\"text\":\"b\"}]},{\"role\":\"user\",\"content\":\"c\"}]";
    expect_render(strings, two, "a\nb;c;");
    expect_render(both, two, "ab;c;");
    expect_render(arrays, two, "ab;c;");
    expect_render(strings, "[{\"role\":\"user\",\"content\":[]}]", ";");
    static const char text_args[] =
        "{% for m in messages %}{% for c in m.tool_calls %}"
        "{{ '<' + c['function']['arguments'] + '>' }}{% endfor %}{% endfor %}";
    static const char object_args[] = "{% for m in messages %}{% for c in m.tool_calls %}"
                                      "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}";
    expect_render(text_args, "[" CALL("{\"k\":1}") "]", "<{\"k\": 1}>");
    expect_render(object_args, "[" CALL("{\"k\":1}") "]", "{\"k\": 1}");
}

static void test_output_untouched_on_failure(void **state)
{
    (void)state;
    struct iso_template *t = NULL;
    static const char text[] = "abc{{ raise_exception('roles must alternate') }}";
    assert_int_equal(iso_template_new(&t, text, sizeof(text) - 1), ISO_OK);
    struct iso_template_args args = {.messages = json_array()};
    struct iso_buf b;
    iso_buf_init(&b, 100);
    assert_int_equal(iso_buf_puts(&b, "before"), ISO_OK);
    assert_int_equal(iso_template_render(&b, t, &args), ISO_E_TEMPLATE);
    assert_string_equal(iso_err_message(), "roles must alternate");
    assert_string_equal((const char *)b.data, "before");
    iso_buf_deinit(&b);
    iso_template_free(t);
    assert_int_equal(iso_template_new(&t, "{{ 'x' * 90 }}", 14), ISO_OK);
    iso_buf_init(&b, 100);
    assert_int_equal(iso_template_render(&b, t, &args), ISO_OK);
    assert_int_equal(b.len, 90);
    assert_int_equal(iso_template_render(&b, t, &args), ISO_E_LIMIT); /* appends: 180 > 100 */
    assert_int_equal(b.len, 90);
    json_t *object = json_object();
    args.exact_messages = true;
    json_t *array = args.messages;
    args.messages = object;
    assert_int_equal(iso_template_render(&b, t, &args), ISO_E_ARG);
    args.messages = array;
    args.extra = array;
    assert_int_equal(iso_template_render(&b, t, &args), ISO_E_ARG);
    json_decref(object);
    json_decref(array);
    iso_buf_deinit(&b);
    iso_template_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_to_jinja2),
        cmocka_unit_test(test_refused_by_name),
        cmocka_unit_test(test_messages_check),
        cmocka_unit_test(test_message_forms),
        cmocka_unit_test(test_output_untouched_on_failure),
    };
    (void)setenv("TZ", "UTC", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
