/* SPDX-License-Identifier: MIT
 * json.c - bounded parsing and canonical writing of JSON. */
#include "base/json.h"

#include <inttypes.h>
#include <string.h>

/* Nesting is counted before jansson sees the text, because its parser recurses. */
static enum iso_err check_depth(const char *text, size_t len, const char *what)
{
    size_t depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        const char c = text[i];
        if (in_string) {
            if (c == '\\') i++;
            else if (c == '"') in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            if (++depth > ISO_JSON_MAX_DEPTH) {
                ISO_FAIL(ISO_E_LIMIT, "%s: JSON nested deeper than %d", what, ISO_JSON_MAX_DEPTH);
            }
        } else if ((c == ']' || c == '}') && depth > 0) {
            depth--;
        }
    }
    return ISO_OK;
}

enum iso_err iso_json_parse(json_t **out, const char *text, size_t len, size_t max_len,
                            const char *what)
{
    if (len > max_len) ISO_FAIL(ISO_E_LIMIT, "%s: %zu bytes of JSON, limit %zu", what, len, max_len);
    ISO_TRY(check_depth(text, len, what));
    json_error_t e;
    json_t *v = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
    if (v == NULL) {
        ISO_FAIL(ISO_E_FORMAT, "%s: line %d column %d: %s", what, e.line, e.column, e.text);
    }
    *out = v;
    return ISO_OK;
}

static bool has_real(const json_t *v)
{
    if (json_is_real(v)) return true;
    if (json_is_array(v)) {
        for (size_t i = 0; i < json_array_size(v); i++) {
            if (has_real(json_array_get(v, i))) return true;
        }
    }
    if (json_is_object(v)) {
        const char *key = NULL;
        json_t *item = NULL;
        json_object_foreach((json_t *)(uintptr_t)v, key, item)
        {
            if (has_real(item)) return true;
        }
    }
    return false;
}

static int append_chunk(const char *p, size_t len, void *arg)
{
    return iso_buf_append(arg, p, len) == ISO_OK ? 0 : -1;
}

enum iso_err iso_json_canonical(struct iso_buf *b, const json_t *value)
{
    if (has_real(value)) ISO_FAIL(ISO_E_ARG, "a real number has no canonical JSON form");
    const size_t before = b->len;
    if (json_dump_callback(value, append_chunk, b,
                           JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY) != 0) {
        b->len = before;
        b->data[before] = '\0';
        ISO_FAIL(ISO_E_LIMIT, "JSON does not fit the buffer of %zu bytes", b->max);
    }
    return ISO_OK;
}

enum iso_err iso_json_get_string(const char **out, const json_t *obj, const char *key)
{
    const json_t *v = json_object_get(obj, key);
    if (!json_is_string(v)) ISO_FAIL(ISO_E_FORMAT, "\"%s\" is missing or not a string", key);
    if (strlen(json_string_value(v)) != json_string_length(v)) {
        ISO_FAIL(ISO_E_FORMAT, "\"%s\" holds a NUL", key);
    }
    *out = json_string_value(v);
    return ISO_OK;
}

enum iso_err iso_json_get_int(int64_t *out, const json_t *obj, const char *key, int64_t min,
                              int64_t max)
{
    const json_t *v = json_object_get(obj, key);
    if (!json_is_integer(v)) ISO_FAIL(ISO_E_FORMAT, "\"%s\" is missing or not an integer", key);
    const int64_t x = json_integer_value(v);
    if (x < min || x > max) {
        ISO_FAIL(ISO_E_FORMAT, "\"%s\" is %" PRId64 ", allowed %" PRId64 " to %" PRId64, key, x, min,
                 max);
    }
    *out = x;
    return ISO_OK;
}

enum iso_err iso_json_get_bool(bool *out, const json_t *obj, const char *key)
{
    const json_t *v = json_object_get(obj, key);
    if (!json_is_boolean(v)) ISO_FAIL(ISO_E_FORMAT, "\"%s\" is missing or not a boolean", key);
    *out = json_is_true(v);
    return ISO_OK;
}

enum iso_err iso_json_get_object(json_t **out, const json_t *obj, const char *key)
{
    json_t *v = json_object_get(obj, key);
    if (!json_is_object(v)) ISO_FAIL(ISO_E_FORMAT, "\"%s\" is missing or not an object", key);
    *out = v;
    return ISO_OK;
}

enum iso_err iso_json_get_array(json_t **out, const json_t *obj, const char *key)
{
    json_t *v = json_object_get(obj, key);
    if (!json_is_array(v)) ISO_FAIL(ISO_E_FORMAT, "\"%s\" is missing or not an array", key);
    *out = v;
    return ISO_OK;
}

enum iso_err iso_json_only_keys(const json_t *obj, const char *const *keys, size_t n,
                                const char *what)
{
    const char *key = NULL;
    json_t *item = NULL;
    json_object_foreach((json_t *)(uintptr_t)obj, key, item)
    {
        size_t i = 0;
        while (i < n && strcmp(keys[i], key) != 0) i++;
        if (i == n) ISO_FAIL(ISO_E_FORMAT, "%s: unknown member \"%s\"", what, key);
    }
    return ISO_OK;
}
