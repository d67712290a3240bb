/* SPDX-License-Identifier: MIT
 * cmd_chat.c - `isobit chat`: a conversation in turns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/chat_model.h"
#include "cli/commands.h"
#include "cli/generate.h"
#include "cli/interrupt.h"

#define MAX_TEXT (64u << 20) /* bytes of one message or answer */

struct chat {
    struct iso_model_options model;
    struct iso_sampling_options sampling;
    struct iso_remote_options remote;
    const char *system;
    uint32_t batch; /* most rows of a step; 0: the default */

    iso_engine *engine;
    iso_session *session;
    struct iso_remote *producer;
    struct iso_conversation talk;
    struct iso_buf ids, answer;
};

static void on_text(void *arg, const char *text, size_t len)
{
    struct chat *c = arg;
    (void)!iso_buf_append(&c->answer, text, len);
    (void)fwrite(text, 1, len, stdout);
    (void)fflush(stdout);
}

/* One turn: the user's line, the answer. An error that only concerns this turn is shown and undone. */
static enum iso_err turn(struct chat *c, const char *line, size_t len)
{
    iso_conversation_add(&c->talk, "user", line, len);
    iso_buf_clear(&c->ids);
    iso_buf_clear(&c->answer);
    ISO_TRY(iso_conversation_ids(&c->ids, &c->talk, c->engine));
    const struct iso_generator g = {c->engine, c->session, &c->sampling, c->producer, on_text, c};
    struct iso_answer a;
    ISO_TRY(iso_generate(&a, &g, (const int32_t *)c->ids.data, c->ids.len / sizeof(int32_t)));
    (void)fputc('\n', stdout);
    iso_answer_print(&a);
    iso_conversation_add(&c->talk, "assistant", (const char *)c->answer.data, c->answer.len);
    return ISO_OK;
}

/* Errors after which the conversation can go on without the last message. */
static bool only_this_turn(enum iso_err err)
{
    return err == ISO_E_CONTEXT || err == ISO_E_TEMPLATE || err == ISO_E_FORMAT ||
           err == ISO_E_CANCELLED || err == ISO_E_REFUSED || err == ISO_E_TIMEOUT ||
           err == ISO_E_PROTO || err == ISO_E_AUTH;
}

static enum iso_err talk(struct chat *c)
{
    const bool terminal = isatty(STDIN_FILENO);
    char *line = NULL;
    size_t cap = 0;
    enum iso_err err = ISO_OK;
    while (err == ISO_OK) {
        iso_interrupt_reset();
        if (terminal) (void)fputs("> ", stderr);
        ssize_t n = getline(&line, &cap, stdin);
        if (n < 0) break; /* end of input, or Ctrl-C at the prompt */
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) line[--n] = '\0';
        if (n == 0) continue;
        if (strcmp(line, "/quit") == 0) break;
        err = turn(c, line, (size_t)n);
        if (err == ISO_OK) continue;
        (void)json_array_remove(c->talk.messages, json_array_size(c->talk.messages) - 1);
        if (!only_this_turn(err)) break;
        (void)iso_cli_fail(err);
        err = ISO_OK;
    }
    free(line);
    return err;
}

static enum iso_err chat_main(struct chat *c, const char *model)
{
    const struct iso_engine_options o = {.model_path = model, .device = c->model.device, .isa = c->model.isa,
                                         .n_threads = c->model.threads, .n_ctx = c->model.ctx, .n_batch = c->batch,
                                         .n_checkpoints = 4,
                                         .keep_expired = c->remote.audit > 0, .staging = c->remote.producer != NULL};
    ISO_TRY(iso_plan_print(&o));
    ISO_TRY(iso_engine_open(&c->engine, &o));
    ISO_TRY(iso_session_new(&c->session, c->engine, 0));
    ISO_TRY(iso_remote_open(&c->producer, &c->remote));
    ISO_TRY(iso_conversation_init(&c->talk, c->engine, c->system));
    return talk(c);
}

int iso_cmd_chat(int argc, char **argv)
{
    struct chat c = {.sampling = ISO_SAMPLING_DEFAULTS};
    const struct iso_opt options[] = {
        {"system", 0, ISO_OPT_STRING, &c.system, "TEXT", "system message", 0, 0},
        ISO_SAMPLING_OPTIONS(c.sampling),
        ISO_REMOTE_OPTIONS(c.remote),
        ISO_BATCH_OPTION(0, c.batch),
        ISO_MODEL_OPTIONS(c.model),
        {0},
    };
    const struct iso_usage usage = {
        "isobit chat MODEL [options]",
        "A conversation: one line of input is one message. What earlier turns computed is kept.", options,
        "An empty line is skipped; /quit or end of input ends it. Ctrl-C ends the answer."};
    const char *args[1] = {0};
    bool help = false;
    iso_buf_init(&c.ids, (size_t)ISO_MAX_CONTEXT * sizeof(int32_t));
    iso_buf_init(&c.answer, MAX_TEXT);
    enum iso_err err = iso_options_parse(args, 1, 1, &help, argc, argv, &usage);
    if (err == ISO_OK && !help) err = chat_main(&c, args[0]);
    iso_remote_close(c.producer);
    iso_conversation_deinit(&c.talk);
    iso_session_free(c.session);
    iso_engine_close(c.engine);
    iso_buf_deinit(&c.ids);
    iso_buf_deinit(&c.answer);
    return err == ISO_OK ? 0 : iso_cli_fail(err);
}
