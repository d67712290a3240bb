/* SPDX-License-Identifier: MIT
 * template_messages.c - checks chat messages and puts them into the form a template takes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "tokenizer/jinja.h"
#include "tokenizer/template.h"

#define ARGUMENTS_MAX (4u << 20) /* bytes of one tool call's arguments as JSON text */

static const char *type_name(const json_t *v)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "a number", [JSON_REAL] = "a number",  [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",      [JSON_NULL] = "null",
    };
    return v != NULL ? names[json_typeof(v)] : "missing";
}

static enum iso_err check_part(const json_t *part, size_t message, size_t i)
{
    if (!json_is_object(part)) {
        ISO_FAIL(ISO_E_FORMAT, "messages[%zu].content[%zu] is %s, not an object", message, i,
                 type_name(part));
    }
    const char *type = json_string_value(json_object_get(part, "type"));
    if (type == NULL || strcmp(type, "text") != 0) {
        ISO_FAIL(ISO_E_FORMAT, "messages[%zu].content[%zu] has the unsupported type \"%.100s\"",
                 message, i, type ? type : "");
    }
    const json_t *text = json_object_get(part, "text");
    if (!json_is_string(text)) {
        ISO_FAIL(ISO_E_FORMAT, "messages[%zu].content[%zu].text is %s, not a string", message, i,
                 type_name(text));
    }
    return ISO_OK;
}

static enum iso_err check_content(const json_t *content, size_t message)
{
    if (content == NULL || json_is_null(content) || json_is_string(content)) return ISO_OK;
    if (!json_is_array(content)) {
        ISO_FAIL(ISO_E_FORMAT, "messages[%zu].content is %s, not a string, null or an array",
                 message, type_name(content));
    }
    for (size_t i = 0; i < json_array_size(content); i++) {
        ISO_TRY(check_part(json_array_get(content, i), message, i));
    }
    return ISO_OK;
}

/* Replaces arguments given as JSON text by the object in it. */
static enum iso_err check_arguments(json_t *function, size_t message, size_t call)
{
    const json_t *arguments = json_object_get(function, "arguments");
    if (arguments == NULL || json_is_object(arguments)) return ISO_OK;
    if (!json_is_string(arguments)) {
        ISO_FAIL(ISO_E_FORMAT,
                 "messages[%zu].tool_calls[%zu].function.arguments is %s, not an object", message,
                 call, type_name(arguments));
    }
    const char *text = json_string_value(arguments);
    const size_t len = json_string_length(arguments);
    json_t *object = NULL;
    if (strspn(text, " \t\r\n") == len) {
        object = json_object();
    } else if (iso_json_parse(&object, text, len, ARGUMENTS_MAX, "arguments") != ISO_OK) {
        char why[200];
        (void)snprintf(why, sizeof(why), "%s", iso_err_message());
        ISO_FAIL(ISO_E_FORMAT, "messages[%zu].tool_calls[%zu].function.arguments is not JSON: %s",
                 message, call, why);
    }
    if (!json_is_object(object)) {
        const char *what = type_name(object);
        json_decref(object);
        ISO_FAIL(ISO_E_FORMAT,
                 "messages[%zu].tool_calls[%zu].function.arguments holds %s, not an object",
                 message, call, what);
    }
    if (json_object_set_new(function, "arguments", object) != 0) {
        ISO_FAIL(ISO_E_NOMEM, "messages[%zu].tool_calls[%zu]", message, call);
    }
    return ISO_OK;
}

static enum iso_err check_calls(const json_t *message, size_t i)
{
    const json_t *calls = json_object_get(message, "tool_calls");
    if (calls == NULL || json_is_null(calls)) return ISO_OK;
    if (!json_is_array(calls)) {
        ISO_FAIL(ISO_E_FORMAT, "messages[%zu].tool_calls is %s, not an array", i, type_name(calls));
    }
    for (size_t k = 0; k < json_array_size(calls); k++) {
        json_t *function = json_object_get(json_array_get(calls, k), "function");
        if (!json_is_object(function) || !json_is_string(json_object_get(function, "name"))) {
            ISO_FAIL(ISO_E_FORMAT, "messages[%zu].tool_calls[%zu] has no function with a name", i,
                     k);
        }
        ISO_TRY(check_arguments(function, i, k));
    }
    return ISO_OK;
}

enum iso_err iso_messages_check(json_t *messages)
{
    if (!json_is_array(messages)) {
        ISO_FAIL(ISO_E_FORMAT, "messages is %s, not an array", type_name(messages));
    }
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *m = json_array_get(messages, i);
        if (!json_is_object(m)) {
            ISO_FAIL(ISO_E_FORMAT, "messages[%zu] is %s, not an object", i, type_name(m));
        }
        if (!json_is_string(json_object_get(m, "role"))) {
            ISO_FAIL(ISO_E_FORMAT, "messages[%zu].role is %s, not a string", i,
                     type_name(json_object_get(m, "role")));
        }
        ISO_TRY(check_content(json_object_get(m, "content"), i));
        ISO_TRY(check_calls(m, i));
    }
    return ISO_OK;
}

/* --- adapting --- */

/* The texts of the parts with "\n" between them. */
static json_t *join_parts(const json_t *parts)
{
    size_t len = 0;
    for (size_t i = 0; i < json_array_size(parts); i++) {
        len += json_string_length(json_object_get(json_array_get(parts, i), "text")) + 1;
    }
    struct iso_buf b;
    iso_buf_init(&b, len);
    enum iso_err err = ISO_OK;
    for (size_t i = 0; i < json_array_size(parts) && err == ISO_OK; i++) {
        const json_t *text = json_object_get(json_array_get(parts, i), "text");
        if (i) err = iso_buf_u8(&b, '\n');
        if (err == ISO_OK)
            err = iso_buf_append(&b, json_string_value(text), json_string_length(text));
    }
    json_t *out = json_stringn((const char *)b.data, b.len);
    iso_buf_deinit(&b);
    return out;
}

/* Only arrays of text parts can be joined; others are left for the template. */
static bool all_text(const json_t *parts)
{
    for (size_t i = 0; i < json_array_size(parts); i++) {
        if (!json_is_string(json_object_get(json_array_get(parts, i), "text"))) return false;
    }
    return true;
}

static int adapt_content(json_t *message, const struct iso_template *t)
{
    json_t *content = json_object_get(message, "content");
    const char *role = json_string_value(json_object_get(message, "role"));
    /* The probes cover system, user and assistant; tool results are safest as strings. */
    const bool join =
        t->joins_parts || (role != NULL && strcmp(role, "tool") == 0 && !t->wants_parts);
    if (join && json_is_array(content) && all_text(content)) {
        return json_object_set_new(message, "content", join_parts(content));
    }
    if (t->wants_parts && json_is_string(content)) {
        json_t *parts = json_pack("[{s:s, s:O}]", "type", "text", "text", content);
        return json_object_set_new(message, "content", parts);
    }
    return 0;
}

static int adapt_calls(json_t *message)
{
    const json_t *calls = json_object_get(message, "tool_calls");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *function = json_object_get(json_array_get(calls, i), "function");
        const json_t *arguments = json_object_get(function, "arguments");
        if (!json_is_object(arguments)) continue;
        char *text = json_dumps(arguments, 0);
        json_t *value = text != NULL ? json_string(text) : NULL;
        free(text);
        if (json_object_set_new(function, "arguments", value) != 0) return -1;
    }
    return 0;
}

enum iso_err iso_template_adapt(json_t **out, const struct iso_template *t, const json_t *messages)
{
    if (!json_is_array(messages)) ISO_FAIL(ISO_E_ARG, "messages is %s", type_name(messages));
    json_t *copy = json_deep_copy(messages);
    if (copy == NULL) ISO_FAIL(ISO_E_NOMEM, "copy of the messages");
    for (size_t i = 0; i < json_array_size(copy); i++) {
        json_t *m = json_array_get(copy, i);
        if (!json_is_object(m)) {
            json_decref(copy);
            ISO_FAIL(ISO_E_ARG, "messages[%zu] is not an object", i);
        }
        if (adapt_content(m, t) != 0 || (t->wants_arguments_text && adapt_calls(m) != 0)) {
            json_decref(copy);
            ISO_FAIL(ISO_E_NOMEM, "messages[%zu]", i);
        }
    }
    *out = copy;
    return ISO_OK;
}
