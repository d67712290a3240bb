/* SPDX-License-Identifier: MIT
 * template.h - chat templates: a bounded subset of Jinja2 that renders messages into prompt text.
 *
 * The subset, its limits and what is refused at load are listed in docs/templates.md. Within the
 * subset the text equals, byte for byte, what Python's jinja2 gives with the environment that the
 * transformers library uses for chat templates.
 */
#ifndef ISO_TOKENIZER_TEMPLATE_H
#define ISO_TOKENIZER_TEMPLATE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

#define ISO_TEMPLATE_MAX_TEXT (1u << 20)     /* bytes of one template; the longest known is 18 kB */
#define ISO_TEMPLATE_MAX_MEMORY (256u << 20) /* bytes one render may hold in values */
#define ISO_TEMPLATE_MAX_BUFFER (64u << 20)  /* bytes of text one render may hold while working */
#define ISO_TEMPLATE_MAX_STEPS (20u << 20)   /* nodes evaluated, plus one per 64 bytes copied */
#define ISO_TEMPLATE_MAX_DEPTH 800           /* nested evaluations; bounds the C stack at ~400 kB */

/* A parsed template.
 * Thread: immutable after iso_template_new(); any number of threads may render it at once. */
struct iso_template;

/* Parses text [len] and finds out in which form the template takes message contents.
 *
 * Owner: *out is owned by the caller, free with iso_template_free(). text is not kept.
 * Errors: ISO_E_FORMAT syntax error or text that is not UTF-8, with the line;
 *         ISO_E_UNSUPPORTED a tag, filter, test, function or method outside the subset, with its
 *         name and line; ISO_E_LIMIT longer than ISO_TEMPLATE_MAX_TEXT or nested too deep.
 */
enum iso_err
iso_template_new(struct iso_template **out, const char *text, size_t len) ISO_NODISCARD;
void iso_template_free(struct iso_template *t);

/* What a template is rendered with. All pointers are borrowed for the call; the JSON must not be
 * changed by other threads meanwhile. */
struct iso_template_args {
    json_t *messages;           /* array of objects, as iso_messages_check() leaves them */
    json_t *tools;              /* array or NULL; NULL gives the template `none` */
    const char *bos_token;      /* UTF-8; NULL leaves the variable undefined */
    const char *eos_token;      /* UTF-8; NULL leaves the variable undefined */
    bool add_generation_prompt; /* open the assistant's turn at the end */
    int64_t now;                /* seconds since 1970 UTC, for strftime_now() in local time */
    json_t *extra;              /* object of further variables, or NULL; wins over the ones above */
    /* false: messages are first put into the form that the template takes, see
     * iso_template_adapt(). true: they are passed exactly as they are, as Python would. */
    bool exact_messages;
};

/* Renders t and appends the text to out; out's maximum bounds it.
 *
 * Thread: any, one struct iso_buf each.
 * Errors: ISO_E_TEMPLATE with the template's own words when it calls raise_exception(), or with
 *         "line N: ..." for any other error at run time; ISO_E_LIMIT when a bound above or out's
 *         maximum is passed; ISO_E_ARG messages or extra of the wrong JSON type, or a token
 *         that is not UTF-8.
 *         out is unchanged on failure.
 */
enum iso_err iso_template_render(struct iso_buf *out,
                                 const struct iso_template *t,
                                 const struct iso_template_args *args) ISO_NODISCARD;

/* Checks the messages of a request and puts them into the form that templates expect:
 * each has a string role; content is a string, null, absent or an array of
 * {"type":"text","text":...}; tool_calls[].function.arguments given as JSON text becomes the object
 * that the text holds ("" and all-blank text become {}).
 *
 * Errors: ISO_E_FORMAT naming the message index and what is wrong with it; messages may then
 *         already be changed in part.
 */
enum iso_err iso_messages_check(json_t *messages) ISO_NODISCARD;

/* A copy of messages in the form that t takes: text parts are joined with "\n" when t cannot read
 * arrays, a string content becomes one text part when t reads only arrays, and arguments become
 * JSON text when t can only read them as text.
 *
 * Owner: *out is a new reference, release with json_decref().
 * Errors: ISO_E_ARG messages is not an array of objects. */
enum iso_err iso_template_adapt(json_t **out,
                                const struct iso_template *t,
                                const json_t *messages) ISO_NODISCARD;

#endif
