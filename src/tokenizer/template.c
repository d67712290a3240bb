/* SPDX-License-Identifier: MIT
 * template.c - loads and renders chat templates, and probes which message forms they take. */
#include "tokenizer/template.h"

#include <stdlib.h>

#include "base/mem.h"
#include "tokenizer/jinja.h"
#include "tokenizer/jinja_text.h"

#define PROBE_STEPS (1u << 19) /* a probe of the longest known template takes 5,000 */
#define PROBE_MEMORY (16u << 20)

/* One value for each name that the template mentions, as the caller's arguments give it. */
static enum iso_err bind_context(struct jinja_rt *rt, const struct iso_template_args *args)
{
    const struct iso_template *t = rt->t;
    struct jv *context = NULL;
    ISO_TRY(iso_jv_new_items(rt, &context, t->n_names));
    for (size_t i = 0; i < t->n_names; i++) {
        const struct jinja_name *name = &t->names[i];
        const struct jv key = jv_str(name->s, name->n);
        struct jv *v = &context[i];
        const json_t *extra = args->extra ? json_object_getn(args->extra, name->s, name->n) : NULL;
        if (extra != NULL) {
            ISO_TRY(iso_jv_from_json(rt, v, extra));
        } else if (jv_is_str(&key, "messages")) {
            ISO_TRY(iso_jv_from_json(rt, v, args->messages));
        } else if (jv_is_str(&key, "tools")) {
            *v = jv_none();
            if (args->tools != NULL) ISO_TRY(iso_jv_from_json(rt, v, args->tools));
        } else if (jv_is_str(&key, "documents")) {
            *v = jv_none(); /* transformers always passes it */
        } else if (jv_is_str(&key, "bos_token")) {
            if (args->bos_token != NULL) *v = jv_cstr(args->bos_token);
        } else if (jv_is_str(&key, "eos_token")) {
            if (args->eos_token != NULL) *v = jv_cstr(args->eos_token);
        } else if (jv_is_str(&key, "add_generation_prompt")) {
            *v = jv_bool(args->add_generation_prompt);
        }
    }
    rt->context = context;
    return ISO_OK;
}

struct bounds {
    uint64_t steps;
    size_t memory;
};

static enum iso_err render_exactly(struct iso_buf *out,
                                   const struct iso_template *t,
                                   const struct iso_template_args *args,
                                   struct bounds bounds)
{
    struct jinja_rt rt = {.t = t, .now = args->now, .max_steps = bounds.steps};
    rt.arena.max = bounds.memory;
    iso_buf_init(&rt.buf,
                 bounds.memory < ISO_TEMPLATE_MAX_BUFFER ? bounds.memory : ISO_TEMPLATE_MAX_BUFFER);
    enum iso_err err = ISO_OK;
    ISO_TRY_OUT(bind_context(&rt, args));
    ISO_TRY_OUT(iso_jinja_scope_push(&rt, NULL));
    ISO_TRY_OUT(iso_jinja_exec(&rt, t->root));
    ISO_TRY_OUT(iso_buf_append(out, rt.buf.data, rt.buf.len));
out:
    iso_buf_deinit(&rt.buf);
    iso_jinja_arena_free(&rt.arena);
    return err;
}

enum iso_err iso_template_render(struct iso_buf *out,
                                 const struct iso_template *t,
                                 const struct iso_template_args *args)
{
    static const struct bounds full = {ISO_TEMPLATE_MAX_STEPS, ISO_TEMPLATE_MAX_MEMORY};
    if (!json_is_array(args->messages)) ISO_FAIL(ISO_E_ARG, "messages is not a JSON array");
    if (args->extra != NULL && !json_is_object(args->extra)) {
        ISO_FAIL(ISO_E_ARG, "extra is not a JSON object");
    }
    for (int i = 0; i < 2; i++) {
        const char *token = i ? args->eos_token : args->bos_token;
        if (token != NULL && !iso_jt_valid(token, strlen(token))) {
            ISO_FAIL(ISO_E_ARG, "%s is not valid UTF-8", i ? "eos_token" : "bos_token");
        }
    }
    if (args->exact_messages) return render_exactly(out, t, args, full);
    struct iso_template_args adapted = *args;
    ISO_TRY(iso_template_adapt(&adapted.messages, t, args->messages));
    const enum iso_err err = render_exactly(out, t, &adapted, full);
    json_decref(adapted.messages);
    return err;
}

/* --- probing --- */

static bool contains(const struct iso_buf *b, const char *what)
{
    return memmem(b->data, b->len, what, strlen(what)) != NULL;
}

/* Renders the JSON text as messages into b, which is emptied first; false on any failure. */
static bool probe(struct iso_buf *b, const struct iso_template *t, const char *messages)
{
    static const struct bounds small = {PROBE_STEPS, PROBE_MEMORY};
    static const char tool[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\","
        "\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]";
    const bool with_tool = strstr(messages, "tool_calls") != NULL;
    struct iso_template_args args = {
        .bos_token = "<s>", .eos_token = "</s>", .add_generation_prompt = true};
    iso_buf_clear(b);
    args.messages = json_loads(messages, 0, NULL);
    args.tools = with_tool ? json_loads(tool, 0, NULL) : NULL;
    const bool ok = args.messages != NULL && render_exactly(b, t, &args, small) == ISO_OK;
    json_decref(args.messages);
    json_decref(args.tools);
    return ok;
}

#define TEXT(role, text) "{\"role\":\"" role "\",\"content\":\"" text "\"}"
#define PARTS(role, text)                                                                          \
    "{\"role\":\"" role "\",\"content\":[{\"type\":\"text\",\"text\":\"" text "\"}]}"
#define TURNS(form)                                                                                \
    form("user", "probe-u") "," form("assistant", "probe-a") "," form("user", "probe-v")

/* A template reads arrays when one text part gives the same prompt as the bare string. */
static void probe_content(struct iso_template *t, struct iso_buf *a, struct iso_buf *b)
{
    bool text = probe(a, t, "[" TEXT("system", "probe-s") "," TURNS(TEXT) "]");
    bool parts = probe(b, t, "[" PARTS("system", "probe-s") "," TURNS(PARTS) "]");
    if (!text && !parts) { /* some have no system role */
        text = probe(a, t, "[" TURNS(TEXT) "]");
        parts = probe(b, t, "[" TURNS(PARTS) "]");
    }
    text = text && contains(a, "probe-v");
    parts = parts && contains(b, "probe-v");
    const bool same = text && parts && a->len == b->len && memcmp(a->data, b->data, a->len) == 0;
    t->wants_parts = parts && !text;
    t->joins_parts = !same && !t->wants_parts;
}

#define CALL(content, arguments)                                                                   \
    "[" TEXT("user", "probe-u") ",{\"role\":\"assistant\",\"content\":" content                    \
                                ",\"tool_calls\":[{"                                               \
                                "\"id\":\"call00001\",\"type\":\"function\",\"function\":{"        \
                                "\"name\":\"f\",\"arguments\":" arguments                          \
                                "}}]},{\"role\":\"tool\",\"tool_call_id\":\"call00001\",\"name\":" \
                                "\"f\",\"content\":\"x\"}]"
#define OBJECT "{\"probe-k\":\"v\"}"
#define OBJECT_TEXT "\"{\\\"probe-k\\\":\\\"v\\\"}\""

/* Whether the arguments show, and not as Python writes a dict. */
static bool probe_call(struct iso_buf *b, const struct iso_template *t, const char *messages)
{
    return probe(b, t, messages) && contains(b, "probe-k") && !contains(b, "{'probe-k'");
}

/* Arguments go as text when they show only so. Some templates want null beside a call, some "". */
static void probe_arguments(struct iso_template *t, struct iso_buf *b)
{
    const bool object =
        probe_call(b, t, CALL("\"\"", OBJECT)) || probe_call(b, t, CALL("null", OBJECT));
    t->wants_arguments_text = !object && (probe_call(b, t, CALL("\"\"", OBJECT_TEXT)) ||
                                          probe_call(b, t, CALL("null", OBJECT_TEXT)));
}

static void probe_forms(struct iso_template *t)
{
    struct iso_buf a, b;
    iso_buf_init(&a, PROBE_MEMORY);
    iso_buf_init(&b, PROBE_MEMORY);
    probe_content(t, &a, &b);
    probe_arguments(t, &a);
    iso_buf_deinit(&a);
    iso_buf_deinit(&b);
}

enum iso_err iso_template_new(struct iso_template **out, const char *text, size_t len)
{
    if (len > ISO_TEMPLATE_MAX_TEXT) {
        ISO_FAIL(ISO_E_LIMIT, "template of %zu bytes, limit %u", len, ISO_TEMPLATE_MAX_TEXT);
    }
    if (!iso_jt_valid(text, len)) ISO_FAIL(ISO_E_FORMAT, "template is not valid UTF-8");
    struct iso_template *t = iso_xalloc(1, sizeof(*t));
    t->arena.max = JINJA_MAX_TREE;
    struct jinja_token *tok = NULL;
    size_t n_tok = 0;
    enum iso_err err = ISO_OK;
    ISO_TRY_OUT(iso_jinja_lex(&t->arena, &tok, &n_tok, text, len));
    ISO_TRY_OUT(iso_jinja_parse(t, tok, n_tok));
    probe_forms(t);
    *out = t;
    return ISO_OK;
out:
    iso_template_free(t);
    return err;
}

void iso_template_free(struct iso_template *t)
{
    if (t == NULL) return;
    iso_jinja_arena_free(&t->arena);
    free(t);
}
