/* SPDX-License-Identifier: MIT
 * cmd_tokenize.c - `isobit tokenize` and `isobit template`: what a model's text side makes of input. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "format/gguf.h"
#include "tokenizer/chat.h"

#define MAX_INPUT (256u << 20)

static enum iso_err print_ids(const struct iso_buf *ids)
{
    (void)putchar('[');
    for (size_t i = 0; i < ids->len / sizeof(int32_t); i++) {
        int32_t id = 0;
        memcpy(&id, ids->data + i * sizeof(id), sizeof(id));
        (void)printf(i ? ", %d" : "%d", id);
    }
    if (puts("]") < 0) ISO_FAIL(ISO_E_IO, "stdout cannot be written");
    return ISO_OK;
}

static enum iso_err tokenize(const struct iso_gguf *g, const struct iso_buf *text, unsigned flags)
{
    struct iso_tokenizer *t = NULL;
    ISO_TRY(iso_tokenizer_new(&t, g));
    struct iso_buf ids;
    iso_buf_init(&ids, 4 * (size_t)MAX_INPUT);
    enum iso_err err = iso_tokenize(&ids, t, (const char *)text->data, text->len, flags);
    if (err == ISO_OK) err = print_ids(&ids);
    iso_buf_deinit(&ids);
    iso_tokenizer_free(t);
    return err;
}

static enum iso_err with_model(enum iso_err (*fn)(const struct iso_gguf *, const struct iso_buf *, unsigned),
                               const char *path, unsigned flags)
{
    struct iso_gguf *g = NULL;
    ISO_TRY(iso_gguf_open(&g, path));
    struct iso_buf text;
    enum iso_err err = iso_cli_read(&text, "-", MAX_INPUT);
    if (err == ISO_OK) err = fn(g, &text, flags);
    iso_buf_deinit(&text);
    iso_gguf_close(g);
    return err;
}

int iso_cmd_tokenize(int argc, char **argv)
{
    bool no_bos = false, no_special = false;
    const struct iso_opt options[] = {
        {"no-bos", 0, ISO_OPT_FLAG, &no_bos, NULL, "no start token", 0, 0},
        {"no-special", 0, ISO_OPT_FLAG, &no_special, NULL, "control tokens in the text stay text", 0, 0},
        {0},
    };
    const struct iso_usage usage = {"isobit tokenize MODEL [options]",
                                    "Reads text on stdin and prints its ids as a JSON array.", options, NULL};
    const char *args[1] = {0};
    bool help = false;
    enum iso_err err = iso_options_parse(args, 1, 1, &help, argc, argv, &usage);
    if (err == ISO_OK && help) return 0;
    const unsigned flags = (no_bos ? 0u : (unsigned)ISO_TOKENIZE_BOS) |
                           (no_special ? 0u : (unsigned)ISO_TOKENIZE_SPECIAL);
    if (err == ISO_OK) err = with_model(tokenize, args[0], flags);
    return err == ISO_OK ? 0 : iso_cli_fail(err);
}

/* --- template ----------------------------------------------------------------------------------- */

/* Input: an array of messages, or an object with "messages" and perhaps "tools". */
static enum iso_err render(struct iso_buf *out, const struct iso_gguf *g, json_t *input, bool prompt)
{
    json_t *messages = json_is_object(input) ? json_object_get(input, "messages") : input;
    json_t *tools = json_is_object(input) ? json_object_get(input, "tools") : NULL;
    if (!json_is_array(messages)) {
        ISO_FAIL(ISO_E_FORMAT, "stdin must be an array of messages or an object with \"messages\"");
    }
    ISO_TRY(iso_messages_check(messages));
    struct iso_template *t = NULL;
    ISO_TRY(iso_chat_template(&t, g));
    if (t == NULL) ISO_FAIL(ISO_E_UNSUPPORTED, "%s has no chat template", iso_gguf_path(g));
    struct iso_tokenizer *vocab = NULL;
    enum iso_err err = iso_tokenizer_new(&vocab, g);
    if (err == ISO_OK) {
        char *bos = iso_chat_token(vocab, iso_tokenizer_bos(vocab));
        char *eos = iso_chat_token(vocab, iso_tokenizer_eos(vocab));
        const struct iso_template_args args = {.messages = messages, .tools = tools, .bos_token = bos,
                                               .eos_token = eos, .add_generation_prompt = prompt,
                                               .now = iso_clock_wall_s()};
        err = iso_template_render(out, t, &args);
        free(bos);
        free(eos);
    }
    iso_tokenizer_free(vocab);
    iso_template_free(t);
    return err;
}

static enum iso_err template(const struct iso_gguf *g, const struct iso_buf *text, unsigned prompt)
{
    json_t *input = NULL;
    ISO_TRY(iso_json_parse(&input, (const char *)text->data, text->len, MAX_INPUT, "stdin"));
    struct iso_buf out;
    iso_buf_init(&out, ISO_CHAT_MAX_TEXT);
    enum iso_err err = render(&out, g, input, prompt != 0);
    if (err == ISO_OK && fwrite(out.data, 1, out.len, stdout) != out.len) {
        err = iso_err_raise(ISO_E_IO, __FILE__, __LINE__, "stdout cannot be written");
    }
    iso_buf_deinit(&out);
    json_decref(input);
    return err;
}

int iso_cmd_template(int argc, char **argv)
{
    bool no_prompt = false;
    const struct iso_opt options[] = {
        {"no-prompt", 0, ISO_OPT_FLAG, &no_prompt, NULL, "do not open the assistant's turn at the end", 0, 0},
        {0},
    };
    const struct iso_usage usage = {
        "isobit template MODEL [options]",
        "Reads messages on stdin, [{\"role\": ..., \"content\": ...}, ...] or {\"messages\": [...], \"tools\": [...]},\n"
        "and prints the text that the model's chat template makes of them.",
        options, NULL};
    const char *args[1] = {0};
    bool help = false;
    enum iso_err err = iso_options_parse(args, 1, 1, &help, argc, argv, &usage);
    if (err == ISO_OK && help) return 0;
    if (err == ISO_OK) err = with_model(template, args[0], !no_prompt);
    return err == ISO_OK ? 0 : iso_cli_fail(err);
}
