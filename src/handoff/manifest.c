/* SPDX-License-Identifier: MIT
 * manifest.c - writers and parsers of the hand-off's control documents. */
#include "handoff/manifest.h"

#include <string.h>

#include "base/json.h"
#include "base/mem.h"

#define REFUSAL_JSON_MAX 1024u /* bytes: a name, a sentence and a number */
#define SMALL_JSON_MAX 512u    /* bytes: progress and ack */

static const char *const class_name[ISO_KV_CLASSES] = {"full", "window"};

/* --- writing ------------------------------------------------------------------------------------
 */

static void set_hex(json_t *obj, const char *key, const void *bytes, size_t len)
{
    static const char digit[] = "0123456789abcdef";
    char text[2 * ISO_DIGEST_LEN + 1];
    const uint8_t *p = bytes;
    for (size_t i = 0; i < len; i++) {
        text[2 * i] = digit[p[i] >> 4];
        text[2 * i + 1] = digit[p[i] & 15];
    }
    text[2 * len] = '\0';
    json_object_set_new(obj, key, json_string(text));
}

static void set_digest(json_t *obj, const char *key, const struct iso_digest *d)
{
    set_hex(obj, key, d->bytes, sizeof(d->bytes));
}

static void set_text(json_t *obj, const char *key, const char *text)
{
    json_object_set_new(obj, key, json_string(text));
}

static void set_int(json_t *obj, const char *key, uint64_t v)
{
    json_object_set_new(obj, key, json_integer((json_int_t)v));
}

static void set_bool(json_t *obj, const char *key, bool v)
{
    json_object_set_new(obj, key, json_boolean(v));
}

static void set_cut(json_t *obj, const uint32_t cut[ISO_KV_CLASSES])
{
    json_t *o = json_object();
    for (int c = 0; c < ISO_KV_CLASSES; c++) set_int(o, class_name[c], cut[c]);
    json_object_set_new(obj, "cut", o);
}

/* Writes and drops obj. */
static enum iso_err finish(struct iso_buf *out, json_t *obj)
{
    const enum iso_err err = iso_json_canonical(out, obj);
    json_decref(obj);
    return err;
}

json_t *iso_identity_json(const struct iso_identity_doc *id)
{
    json_t *o = json_object();
    set_text(o, "arithmetic", id->arithmetic);
    set_digest(o, "weights", &id->weights);
    set_digest(o, "tokenizer", &id->tokenizer);
    set_digest(o, "chat_template", &id->chat_template);
    set_digest(o, "page_format", &id->page_format);
    set_digest(o, "context", &id->context);
    return o;
}

static json_t *held_json(const struct iso_held held[ISO_KV_CLASSES])
{
    json_t *all = json_object();
    for (int c = 0; c < ISO_KV_CLASSES; c++) {
        json_t *o = json_object();
        set_int(o, "first", held[c].first);
        set_int(o, "count", held[c].count);
        set_digest(o, "chain", &held[c].chain);
        json_object_set_new(all, class_name[c], o);
    }
    return all;
}

static json_t *request_json(const struct iso_request *r)
{
    json_t *o = json_object();
    set_int(o, "v", 1);
    set_text(o, "format", ISO_HANDOFF_FORMAT);
    set_text(o, "id", r->id);
    set_hex(o, "nonce", r->nonce, sizeof(r->nonce));
    set_int(o, "generation", r->generation);
    set_hex(o, "ledger", r->ledger, sizeof(r->ledger));
    set_text(o, "consumer", r->consumer);
    set_text(o, "producer", r->producer);
    json_object_set_new(o, "identity", iso_identity_json(&r->identity));
    set_text(o, "lane", r->lane);
    set_int(o, "n_ids", r->n_ids);
    set_digest(o, "ids", &r->ids);
    json_object_set_new(o, "held", held_json(r->held));
    set_int(o, "deadline_ms", r->deadline_ms);
    set_bool(o, "audit", r->audit);
    set_bool(o, "strict_template", r->strict_template);
    return o;
}

enum iso_err iso_request_write(struct iso_buf *out, const struct iso_request *r)
{
    return finish(out, request_json(r));
}

enum iso_err iso_accept_write(struct iso_buf *out, const struct iso_accept *a)
{
    json_t *o = json_object();
    set_text(o, "id", a->id);
    set_cut(o, a->cut);
    set_int(o, "end_page", a->end_page);
    set_int(o, "pages", a->pages);
    set_int(o, "bytes", a->bytes);
    set_int(o, "deadline_ms", a->deadline_ms);
    set_bool(o, "template_equal", a->template_equal);
    set_text(o, "prefix", a->prefix);
    return finish(out, o);
}

enum iso_err iso_refusal_write(struct iso_buf *out, const struct iso_refusal *r)
{
    json_t *o = json_object();
    set_text(o, "reason", iso_reason_name(r->reason));
    set_text(o, "message", r->message);
    set_int(o, "high", r->high);
    return finish(out, o);
}

enum iso_err iso_progress_write(struct iso_buf *out, const struct iso_progress_note *p)
{
    json_t *o = json_object();
    set_int(o, "done", p->done);
    set_int(o, "total", p->total);
    set_int(o, "queued", p->queued);
    return finish(out, o);
}

enum iso_err iso_ack_write(struct iso_buf *out, const struct iso_ack *a)
{
    json_t *o = json_object();
    set_int(o, "generation", a->generation);
    set_digest(o, "manifest", &a->manifest);
    return finish(out, o);
}

enum iso_err iso_manifest_write(struct iso_buf *out, const struct iso_manifest *m)
{
    json_t *o = json_object();
    set_int(o, "v", 1);
    set_text(o, "format", ISO_HANDOFF_FORMAT);
    json_object_set_new(o, "request", request_json(&m->request));
    set_cut(o, m->cut);
    set_int(o, "end_page", m->end_page);
    set_int(o, "positions", m->positions);
    set_int(o, "pages", m->pages);
    set_int(o, "bytes", m->bytes);
    set_digest(o, "page_digests", &m->page_digests);
    set_text(o, "node", m->node);
    set_text(o, "build", m->build);
    set_text(o, "device", m->device);
    set_text(o, "isa", m->isa);
    set_digest(o, "kernels", &m->kernels);
    set_text(o, "prefix", m->prefix);
    json_t *t = json_object();
    set_int(t, "queue", m->queue_us);
    set_int(t, "compute", m->compute_us);
    set_int(t, "copy", m->copy_us);
    set_int(t, "wire", m->wire_us);
    set_int(t, "first", m->first_us);
    json_object_set_new(o, "times_us", t);
    return finish(out, o);
}

void iso_refusal_message(struct iso_refusal *r, const char *text)
{
    size_t i = 0;
    for (; text[i] != '\0' && i + 1 < sizeof(r->message); i++) {
        r->message[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
    }
    r->message[i] = '\0';
}

enum iso_err iso_identity_doc_from(struct iso_identity_doc *out, const struct iso_identity *id)
{
    const size_t len = strlen(id->arithmetic);
    if (len == 0 || len >= sizeof(out->arithmetic)) {
        ISO_FAIL(ISO_E_ARG, "arithmetic name of %zu bytes", len);
    }
    *out = (struct iso_identity_doc){.weights = id->weights,
                                     .tokenizer = id->tokenizer,
                                     .chat_template = id->chat_template,
                                     .page_format = id->page_format,
                                     .context = id->context};
    memcpy(out->arithmetic, id->arithmetic, len);
    return ISO_OK;
}

/* --- reading ------------------------------------------------------------------------------------
 */

/* Copies a string of printable ASCII, at least min characters. */
static enum iso_err get_text(char *out, size_t cap, const json_t *obj, const char *key, size_t min)
{
    const char *s = NULL;
    ISO_TRY(iso_json_get_string(&s, obj, key));
    const size_t len = strlen(s);
    if (len < min || len >= cap) {
        ISO_FAIL(ISO_E_FORMAT, "\"%s\" has %zu characters, allowed %zu to %zu", key, len, min,
                 cap - 1);
    }
    for (size_t i = 0; i < len; i++) {
        if (s[i] < ' ' || s[i] > '~') ISO_FAIL(ISO_E_FORMAT, "\"%s\" is not printable ASCII", key);
    }
    memcpy(out, s, len + 1);
    return ISO_OK;
}

static enum iso_err get_hex(void *out, size_t len, const json_t *obj, const char *key)
{
    const char *s = NULL;
    ISO_TRY(iso_json_get_string(&s, obj, key));
    if (strlen(s) != 2 * len) {
        ISO_FAIL(ISO_E_FORMAT, "\"%s\" has %zu characters, not %zu", key, strlen(s), 2 * len);
    }
    for (const char *p = s; *p; p++) {
        /* One spelling per value. */
        if (*p >= 'A' && *p <= 'F') ISO_FAIL(ISO_E_FORMAT, "\"%s\" is not lower-case", key);
    }
    return iso_hex_decode(out, len, s);
}

static enum iso_err get_digest(struct iso_digest *out, const json_t *obj, const char *key)
{
    return get_hex(out->bytes, sizeof(out->bytes), obj, key);
}

static enum iso_err get_u32(uint32_t *out, const json_t *obj, const char *key, uint32_t max)
{
    int64_t v = 0;
    ISO_TRY(iso_json_get_int(&v, obj, key, 0, max));
    *out = (uint32_t)v;
    return ISO_OK;
}

static enum iso_err get_u64(uint64_t *out, const json_t *obj, const char *key)
{
    int64_t v = 0;
    ISO_TRY(iso_json_get_int(&v, obj, key, 0, INT64_MAX));
    *out = (uint64_t)v;
    return ISO_OK;
}

static enum iso_err get_name(char out[ISO_NODE_NAME_MAX], const json_t *obj, const char *key)
{
    ISO_TRY(get_text(out, ISO_NODE_NAME_MAX, obj, key, 1));
    return iso_node_check_name(out);
}

/* The document must be text as this file would write it: one meaning, one spelling. */
static enum iso_err
check_canonical(const json_t *obj, const void *text, size_t len, const char *what)
{
    struct iso_buf again;
    iso_buf_init(&again, len + 1); /* longer than the text cannot be equal */
    enum iso_err err = iso_json_canonical(&again, obj);
    if (err != ISO_OK || again.len != len || memcmp(again.data, text, len) != 0) {
        err = iso_err_raise(ISO_E_FORMAT, __FILE__, __LINE__, "%s: not canonical JSON", what);
    }
    iso_buf_deinit(&again);
    return err;
}

/* Parses to an object in canonical form with these keys only; *out is owned by the caller. */
static enum iso_err open_object(json_t **out,
                                const void *text,
                                size_t len,
                                size_t max,
                                const char *const *keys,
                                size_t n_keys,
                                const char *what)
{
    json_t *o = NULL;
    ISO_TRY(iso_json_parse(&o, text, len, max, what));
    enum iso_err err = ISO_OK;
    if (!json_is_object(o)) ISO_FAIL_OUT(ISO_E_FORMAT, "%s: not an object", what);
    ISO_TRY_OUT(check_canonical(o, text, len, what));
    ISO_TRY_OUT(iso_json_only_keys(o, keys, n_keys, what));
    *out = o;
    return ISO_OK;
out:
    json_decref(o);
    return err;
}

static enum iso_err get_cut(uint32_t cut[ISO_KV_CLASSES], const json_t *obj)
{
    json_t *o = NULL;
    ISO_TRY(iso_json_get_object(&o, obj, "cut"));
    ISO_TRY(iso_json_only_keys(o, class_name, ISO_KV_CLASSES, "cut"));
    for (int c = 0; c < ISO_KV_CLASSES; c++)
        ISO_TRY(get_u32(&cut[c], o, class_name[c], UINT32_MAX));
    return ISO_OK;
}

static enum iso_err get_identity(struct iso_identity_doc *id, const json_t *obj)
{
    static const char *const keys[] = {"arithmetic",    "weights",     "tokenizer",
                                       "chat_template", "page_format", "context"};
    json_t *o = NULL;
    ISO_TRY(iso_json_get_object(&o, obj, "identity"));
    ISO_TRY(iso_json_only_keys(o, keys, ISO_COUNT(keys), "identity"));
    ISO_TRY(get_text(id->arithmetic, sizeof(id->arithmetic), o, "arithmetic", 1));
    ISO_TRY(get_digest(&id->weights, o, "weights"));
    ISO_TRY(get_digest(&id->tokenizer, o, "tokenizer"));
    ISO_TRY(get_digest(&id->chat_template, o, "chat_template"));
    ISO_TRY(get_digest(&id->page_format, o, "page_format"));
    return get_digest(&id->context, o, "context");
}

static enum iso_err get_held(struct iso_held held[ISO_KV_CLASSES], const json_t *obj)
{
    static const char *const keys[] = {"first", "count", "chain"};
    json_t *all = NULL;
    ISO_TRY(iso_json_get_object(&all, obj, "held"));
    ISO_TRY(iso_json_only_keys(all, class_name, ISO_KV_CLASSES, "held"));
    for (int c = 0; c < ISO_KV_CLASSES; c++) {
        json_t *o = NULL;
        ISO_TRY(iso_json_get_object(&o, all, class_name[c]));
        ISO_TRY(iso_json_only_keys(o, keys, ISO_COUNT(keys), class_name[c]));
        ISO_TRY(get_u32(&held[c].first, o, "first", UINT32_MAX / 2));
        ISO_TRY(get_u32(&held[c].count, o, "count", UINT32_MAX / 2));
        ISO_TRY(get_digest(&held[c].chain, o, "chain"));
    }
    return ISO_OK;
}

static enum iso_err check_version(const json_t *o)
{
    int64_t v = 0;
    char format[ISO_HANDOFF_TEXT_MAX];
    ISO_TRY(iso_json_get_int(&v, o, "v", 1, 1));
    ISO_TRY(get_text(format, sizeof(format), o, "format", 1));
    if (strcmp(format, ISO_HANDOFF_FORMAT) != 0) ISO_FAIL(ISO_E_FORMAT, "format \"%s\"", format);
    return ISO_OK;
}

static const char *const request_keys[] = {
    "v",        "format",   "id",          "nonce",          "generation", "ledger",
    "consumer", "producer", "identity",    "lane",           "n_ids",      "ids",
    "held",     "audit",    "deadline_ms", "strict_template"};

static enum iso_err get_request(struct iso_request *r, const json_t *o)
{
    int64_t v = 0;
    ISO_TRY(check_version(o));
    ISO_TRY(get_text(r->id, sizeof(r->id), o, "id", 1));
    ISO_TRY(get_hex(r->nonce, sizeof(r->nonce), o, "nonce"));
    ISO_TRY(iso_json_get_int(&v, o, "generation", 1, ISO_HANDOFF_GENERATION_MAX));
    r->generation = (uint64_t)v;
    ISO_TRY(get_hex(r->ledger, sizeof(r->ledger), o, "ledger"));
    ISO_TRY(get_name(r->consumer, o, "consumer"));
    ISO_TRY(get_name(r->producer, o, "producer"));
    ISO_TRY(get_identity(&r->identity, o));
    ISO_TRY(get_text(r->lane, sizeof(r->lane), o, "lane", 1));
    ISO_TRY(get_u32(&r->n_ids, o, "n_ids", ISO_HANDOFF_IDS_MAX));
    ISO_TRY(get_digest(&r->ids, o, "ids"));
    ISO_TRY(get_held(r->held, o));
    ISO_TRY(iso_json_get_int(&v, o, "deadline_ms", 1, ISO_HANDOFF_DEADLINE_MAX_MS));
    r->deadline_ms = (uint32_t)v;
    ISO_TRY(iso_json_get_bool(&r->audit, o, "audit"));
    return iso_json_get_bool(&r->strict_template, o, "strict_template");
}

enum iso_err iso_request_parse(struct iso_request *out, const void *text, size_t len)
{
    json_t *o = NULL;
    ISO_TRY(open_object(&o, text, len, ISO_HANDOFF_REQUEST_JSON_MAX, request_keys,
                        ISO_COUNT(request_keys), "request"));
    const enum iso_err err = get_request(out, o);
    json_decref(o);
    return err;
}

static enum iso_err get_prefix(char out[ISO_HANDOFF_TEXT_MAX], const json_t *o)
{
    ISO_TRY(get_text(out, ISO_HANDOFF_TEXT_MAX, o, "prefix", 1));
    if (strcmp(out, "none") != 0 && strcmp(out, "recomputed") != 0 && strcmp(out, "held") != 0) {
        ISO_FAIL(ISO_E_FORMAT, "prefix \"%s\"", out);
    }
    return ISO_OK;
}

static enum iso_err get_accept(struct iso_accept *a, const json_t *o)
{
    int64_t v = 0;
    ISO_TRY(get_text(a->id, sizeof(a->id), o, "id", 1));
    ISO_TRY(get_cut(a->cut, o));
    ISO_TRY(get_u32(&a->end_page, o, "end_page", UINT32_MAX));
    ISO_TRY(get_u64(&a->pages, o, "pages"));
    ISO_TRY(get_u64(&a->bytes, o, "bytes"));
    ISO_TRY(iso_json_get_int(&v, o, "deadline_ms", 1, ISO_HANDOFF_DEADLINE_MAX_MS));
    a->deadline_ms = (uint32_t)v;
    ISO_TRY(iso_json_get_bool(&a->template_equal, o, "template_equal"));
    return get_prefix(a->prefix, o);
}

enum iso_err iso_accept_parse(struct iso_accept *out, const void *text, size_t len)
{
    static const char *const keys[] = {"id",    "cut",         "end_page",       "pages",
                                       "bytes", "deadline_ms", "template_equal", "prefix"};
    json_t *o = NULL;
    ISO_TRY(
        open_object(&o, text, len, ISO_HANDOFF_REQUEST_JSON_MAX, keys, ISO_COUNT(keys), "accept"));
    const enum iso_err err = get_accept(out, o);
    json_decref(o);
    return err;
}

static enum iso_err get_refusal(struct iso_refusal *r, const json_t *o)
{
    const char *name = NULL;
    ISO_TRY(iso_json_get_string(&name, o, "reason"));
    ISO_TRY(iso_reason_from_name(&r->reason, name));
    if (r->reason == ISO_REASON_OK) ISO_FAIL(ISO_E_FORMAT, "a refusal with reason OK");
    ISO_TRY(get_text(r->message, sizeof(r->message), o, "message", 0));
    return get_u64(&r->high, o, "high");
}

enum iso_err iso_refusal_parse(struct iso_refusal *out, const void *text, size_t len)
{
    static const char *const keys[] = {"reason", "message", "high"};
    if (len == 0) {
        *out = (struct iso_refusal){.reason = ISO_REASON_CANCELLED};
        return ISO_OK;
    }
    json_t *o = NULL;
    ISO_TRY(open_object(&o, text, len, REFUSAL_JSON_MAX, keys, ISO_COUNT(keys), "refusal"));
    const enum iso_err err = get_refusal(out, o);
    json_decref(o);
    return err;
}

enum iso_err iso_progress_parse(struct iso_progress_note *out, const void *text, size_t len)
{
    static const char *const keys[] = {"done", "total", "queued"};
    json_t *o = NULL;
    ISO_TRY(open_object(&o, text, len, SMALL_JSON_MAX, keys, ISO_COUNT(keys), "progress"));
    enum iso_err err = get_u64(&out->done, o, "done");
    if (err == ISO_OK) err = get_u64(&out->total, o, "total");
    if (err == ISO_OK) err = get_u32(&out->queued, o, "queued", UINT32_MAX);
    json_decref(o);
    return err;
}

enum iso_err iso_ack_parse(struct iso_ack *out, const void *text, size_t len)
{
    static const char *const keys[] = {"generation", "manifest"};
    json_t *o = NULL;
    ISO_TRY(open_object(&o, text, len, SMALL_JSON_MAX, keys, ISO_COUNT(keys), "ack"));
    enum iso_err err = get_u64(&out->generation, o, "generation");
    if (err == ISO_OK) err = get_digest(&out->manifest, o, "manifest");
    json_decref(o);
    return err;
}

static enum iso_err get_times(struct iso_manifest *m, const json_t *obj)
{
    static const char *const keys[] = {"queue", "compute", "copy", "wire", "first"};
    json_t *o = NULL;
    ISO_TRY(iso_json_get_object(&o, obj, "times_us"));
    ISO_TRY(iso_json_only_keys(o, keys, ISO_COUNT(keys), "times_us"));
    ISO_TRY(get_u64(&m->queue_us, o, "queue"));
    ISO_TRY(get_u64(&m->compute_us, o, "compute"));
    ISO_TRY(get_u64(&m->copy_us, o, "copy"));
    ISO_TRY(get_u64(&m->wire_us, o, "wire"));
    return get_u64(&m->first_us, o, "first");
}

static enum iso_err get_manifest(struct iso_manifest *m, const json_t *o)
{
    json_t *r = NULL;
    ISO_TRY(check_version(o));
    ISO_TRY(iso_json_get_object(&r, o, "request"));
    ISO_TRY(iso_json_only_keys(r, request_keys, ISO_COUNT(request_keys), "request"));
    ISO_TRY(get_request(&m->request, r));
    ISO_TRY(get_cut(m->cut, o));
    ISO_TRY(get_u32(&m->end_page, o, "end_page", UINT32_MAX));
    ISO_TRY(get_u32(&m->positions, o, "positions", UINT32_MAX));
    ISO_TRY(get_u64(&m->pages, o, "pages"));
    ISO_TRY(get_u64(&m->bytes, o, "bytes"));
    ISO_TRY(get_digest(&m->page_digests, o, "page_digests"));
    ISO_TRY(get_name(m->node, o, "node"));
    ISO_TRY(get_text(m->build, sizeof(m->build), o, "build", 0));
    ISO_TRY(get_text(m->device, sizeof(m->device), o, "device", 0));
    ISO_TRY(get_text(m->isa, sizeof(m->isa), o, "isa", 0));
    ISO_TRY(get_digest(&m->kernels, o, "kernels"));
    ISO_TRY(get_prefix(m->prefix, o));
    return get_times(m, o);
}

enum iso_err iso_manifest_parse(struct iso_manifest *out, const void *text, size_t len)
{
    static const char *const keys[] = {"v",         "format", "request", "cut",          "end_page",
                                       "positions", "pages",  "bytes",   "page_digests", "node",
                                       "build",     "device", "isa",     "kernels",      "prefix",
                                       "times_us"};
    json_t *o = NULL;
    ISO_TRY(open_object(&o, text, len, ISO_HANDOFF_MANIFEST_JSON_MAX, keys, ISO_COUNT(keys),
                        "manifest"));
    const enum iso_err err = get_manifest(out, o);
    json_decref(o);
    return err;
}
