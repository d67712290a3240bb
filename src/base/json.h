/* SPDX-License-Identifier: MIT
 * json.h - bounded parsing and canonical writing of JSON on top of jansson. */
#ifndef ISO_BASE_JSON_H
#define ISO_BASE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

#define ISO_JSON_MAX_DEPTH 64 /* nesting of arrays and objects; deeper text is refused unread */

/* Parses text [len]: one JSON value, UTF-8, no duplicate keys, nothing behind it.
 *
 * Owner:  *out is owned by the caller, json_decref() it.
 * Errors: ISO_E_LIMIT longer than max_len or deeper than ISO_JSON_MAX_DEPTH; ISO_E_FORMAT with the
 *         line and column. what names the text in the message. */
enum iso_err iso_json_parse(json_t **out, const char *text, size_t len, size_t max_len,
                            const char *what) ISO_NODISCARD;

/* Canonical form: UTF-8, sorted keys, no spaces. Only integers, strings, booleans, null, arrays
 * and objects: a real number has no canonical text and is ISO_E_ARG. Appends to b. */
enum iso_err iso_json_canonical(struct iso_buf *b, const json_t *value) ISO_NODISCARD;

/* Typed members of an object; a missing member or another type is ISO_E_FORMAT naming the key.
 * The results are borrowed from obj. */
enum iso_err iso_json_get_string(const char **out, const json_t *obj, const char *key) ISO_NODISCARD;
enum iso_err iso_json_get_int(int64_t *out, const json_t *obj, const char *key, int64_t min,
                              int64_t max) ISO_NODISCARD;
enum iso_err iso_json_get_bool(bool *out, const json_t *obj, const char *key) ISO_NODISCARD;
enum iso_err iso_json_get_object(json_t **out, const json_t *obj, const char *key) ISO_NODISCARD;
enum iso_err iso_json_get_array(json_t **out, const json_t *obj, const char *key) ISO_NODISCARD;

/* ISO_E_FORMAT naming the first member of obj that is not among keys [n]. */
enum iso_err iso_json_only_keys(const json_t *obj, const char *const *keys, size_t n,
                                const char *what) ISO_NODISCARD;

#endif
