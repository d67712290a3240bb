/* SPDX-License-Identifier: MIT
 * cmd_run.c - `isobit run`: answers one prompt and streams the text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/chat_model.h"
#include "cli/commands.h"
#include "cli/generate.h"

#define MAX_PROMPT (64u << 20) /* bytes of a prompt file */

struct run {
    struct iso_model_options model;
    struct iso_sampling_options sampling;
    struct iso_remote_options remote;
    const char *prompt, *file, *system, *report;
    uint32_t batch; /* most rows of a step; 0: the default */
    bool raw, json, quiet;

    iso_engine *engine;
    iso_session *session;
    struct iso_remote *producer;
    struct iso_conversation talk;
    struct iso_buf text, ids, answer;
};

static void on_text(void *arg, const char *text, size_t len)
{
    struct run *r = arg;
    (void)!iso_buf_append(&r->answer, text, len);
    if (r->json) return;
    (void)fwrite(text, 1, len, stdout);
    (void)fflush(stdout);
}

static enum iso_err make_ids(struct run *r)
{
    ISO_TRY(iso_conversation_init(&r->talk, r->engine, r->system));
    if (r->raw || r->talk.tmpl == NULL) {
        return iso_engine_tokenize(&r->ids, r->engine, (const char *)r->text.data, r->text.len,
                                   ISO_TEXT_BOS | ISO_TEXT_SPECIAL);
    }
    iso_conversation_add(&r->talk, "user", (const char *)r->text.data, r->text.len);
    return iso_conversation_ids(&r->ids, &r->talk, r->engine);
}

static json_t *answer_json(const struct run *r, const struct iso_answer *a)
{
    static const char *const finish[] = {"end", "length", "context", "stopped"};
    char hex[ISO_DIGEST_HEX];
    iso_digest_hex(hex, &a->first_logits);
    json_t *j = json_pack("{s:s#, s:s, s:i, s:i, s:i, s:s, s:b, s:f, s:f, s:f}", "text",
                          (const char *)r->answer.data, (int)r->answer.len, "finish",
                          finish[a->finish], "n_prompt", (int)a->n_prompt, "n_cached",
                          (int)a->n_cached, "n_answer", (int)a->n_answer, "first_logits", hex,
                          "remote", (int)a->remote, "first_token_s", a->first_token_s, "prefill_s",
                          a->prefill_s, "decode_s", a->decode_s);
    if (a->remote) (void)json_object_set_new(j, "handoff", iso_remote_report_json(&a->report));
    /* What computed it: the same fingerprints as in receipts. */
    const struct iso_engine_info *i = iso_engine_info(r->engine);
    iso_digest_hex(hex, &i->kernels);
    (void)json_object_set_new(j, "build", json_string(iso_cli_commit()));
    (void)json_object_set_new(j, "device", json_string(i->device));
    (void)json_object_set_new(j, "isa", json_string(i->isa));
    (void)json_object_set_new(j, "kernels", json_string(hex));
    return j;
}

static enum iso_err write_report(const struct run *r, const struct iso_answer *a)
{
    json_t *j = answer_json(r, a);
    const int bad = json_dump_file(j, r->report, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    json_decref(j);
    if (bad) ISO_FAIL(ISO_E_IO, "%s cannot be written", r->report);
    return ISO_OK;
}

static enum iso_err finish(const struct run *r, const struct iso_answer *a)
{
    if (r->report) ISO_TRY(write_report(r, a));
    if (!r->json) {
        (void)fputc('\n', stdout);
        if (!r->quiet) iso_answer_print(a);
        if (a->remote && !r->quiet) iso_remote_report_print(&a->report);
        return ISO_OK;
    }
    json_t *j = answer_json(r, a);
    const int bad = json_dumpf(j, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    (void)fputc('\n', stdout);
    json_decref(j);
    if (bad) ISO_FAIL(ISO_E_IO, "the answer could not be written");
    return ISO_OK;
}

static enum iso_err run_main(struct run *r, const char *model)
{
    if (r->prompt && r->file) ISO_FAIL(ISO_E_ARG, "give -p or -f, not both");
    if (r->prompt) ISO_TRY(iso_buf_append(&r->text, r->prompt, strlen(r->prompt)));
    else {
        iso_buf_deinit(&r->text);
        ISO_TRY(iso_cli_read(&r->text, r->file ? r->file : "-", MAX_PROMPT));
    }
    const struct iso_engine_options o = {.model_path = model, .device = r->model.device, .isa = r->model.isa,
                                         .n_threads = r->model.threads, .n_ctx = r->model.ctx, .n_batch = r->batch,
                                         .keep_expired = r->remote.audit > 0};
    if (!r->quiet) ISO_TRY(iso_plan_print(&o));
    ISO_TRY(iso_engine_open(&r->engine, &o));
    ISO_TRY(iso_session_new(&r->session, r->engine, 0));
    ISO_TRY(iso_remote_open(&r->producer, &r->remote));
    ISO_TRY(make_ids(r));
    const struct iso_generator g = {r->engine, r->session, &r->sampling, r->producer, on_text, r};
    struct iso_answer a;
    ISO_TRY(iso_generate(&a, &g, (const int32_t *)r->ids.data, r->ids.len / sizeof(int32_t)));
    return finish(r, &a);
}

int iso_cmd_run(int argc, char **argv)
{
    struct run r = {.sampling = ISO_SAMPLING_DEFAULTS};
    const struct iso_opt options[] = {
        {"prompt", 'p', ISO_OPT_STRING, &r.prompt, "TEXT", "the prompt (default: stdin)", 0, 0},
        {"file", 'f', ISO_OPT_STRING, &r.file, "FILE", "read the prompt from a file", 0, 0},
        {"system", 0, ISO_OPT_STRING, &r.system, "TEXT", "system message", 0, 0},
        {"raw", 0, ISO_OPT_FLAG, &r.raw, NULL, "continue the text as it is, without the chat template", 0, 0},
        ISO_SAMPLING_OPTIONS(r.sampling),
        ISO_REMOTE_OPTIONS(r.remote),
        ISO_BATCH_OPTION(0, r.batch),
        ISO_MODEL_OPTIONS(r.model),
        {"json", 0, ISO_OPT_FLAG, &r.json, NULL, "one JSON object instead of text", 0, 0},
        {"report", 0, ISO_OPT_STRING, &r.report, "FILE", "also write the JSON object to a file", 0, 0},
        {"quiet", 'q', ISO_OPT_FLAG, &r.quiet, NULL, "only the answer", 0, 0},
        {0},
    };
    const struct iso_usage usage = {
        "isobit run MODEL [-p TEXT | -f FILE] [options]",
        "Answers one prompt; the text streams to stdout. With a chat template in the model the prompt is\n"
        "a user's message, otherwise (or with --raw) text to continue.",
        options, "Ctrl-C ends the answer, a second one the program."};
    const char *args[1] = {0};
    bool help = false;
    iso_buf_init(&r.text, MAX_PROMPT);
    iso_buf_init(&r.ids, (size_t)ISO_MAX_CONTEXT * sizeof(int32_t));
    iso_buf_init(&r.answer, MAX_PROMPT);
    enum iso_err err = iso_options_parse(args, 1, 1, &help, argc, argv, &usage);
    if (err == ISO_OK && !help) err = run_main(&r, args[0]);
    iso_remote_close(r.producer);
    iso_conversation_deinit(&r.talk);
    iso_session_free(r.session);
    iso_engine_close(r.engine);
    iso_buf_deinit(&r.text);
    iso_buf_deinit(&r.ids);
    iso_buf_deinit(&r.answer);
    return err == ISO_OK ? 0 : iso_cli_fail(err);
}
