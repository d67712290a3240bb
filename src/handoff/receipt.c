/* SPDX-License-Identifier: MIT
 * receipt.c - writes and re-checks receipts. */
#include "handoff/receipt.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/os.h"

static const char *const keys[] = {
    "format",           "role",     "node",        "peer",         "reason",
    "time_s",           "manifest", "digest",      "signature",    "key",
    "times_us",         "pages",    "bytes",       "wire_bytes_s", "raw_tls_share_ppm",
    "computed_locally", "audited",  "first_logits", "build",     "device",
    "isa",              "kernels"};
static const char *const time_keys[] = {"compute", "wire",   "wire_busy", "verify",
                                        "install", "commit", "total"};

void iso_receipt_init(struct iso_receipt *r)
{
    *r = (struct iso_receipt){.compute_us = -1,
                              .wire_us = -1,
                              .wire_busy_us = -1,
                              .verify_us = -1,
                              .install_us = -1,
                              .commit_us = -1,
                              .total_us = -1,
                              .raw_share_ppm = -1};
    iso_buf_init(&r->manifest, ISO_HANDOFF_MANIFEST_JSON_MAX);
}

void iso_receipt_set_engine(struct iso_receipt *r, const char *build, const struct iso_engine_info *info)
{
    (void)snprintf(r->build, sizeof(r->build), "%s", build ? build : "");
    (void)snprintf(r->device, sizeof(r->device), "%s", info->device);
    (void)snprintf(r->isa, sizeof(r->isa), "%s", info->isa);
    r->kernels = info->kernels;
}

void iso_receipt_deinit(struct iso_receipt *r)
{
    iso_buf_deinit(&r->manifest);
}

static json_t *hex(const void *bytes, size_t len)
{
    static const char digit[] = "0123456789abcdef";
    char text[2 * ISO_NODE_SPKI_LEN + 1]; /* the longest of them */
    const uint8_t *p = bytes;
    for (size_t i = 0; i < len; i++) {
        text[2 * i] = digit[p[i] >> 4];
        text[2 * i + 1] = digit[p[i] & 15];
    }
    return json_stringn(text, 2 * len);
}

static json_t *measured(int64_t v)
{
    return v < 0 ? json_null() : json_integer(v);
}

static json_t *times_json(const struct iso_receipt *r)
{
    const int64_t v[] = {r->compute_us, r->wire_us,   r->wire_busy_us, r->verify_us,
                         r->install_us, r->commit_us, r->total_us};
    json_t *o = json_object();
    for (size_t i = 0; i < ISO_COUNT(v); i++) json_object_set_new(o, time_keys[i], measured(v[i]));
    return o;
}

static void set(json_t *o, const char *key, json_t *v)
{
    json_object_set_new(o, key, v);
}

enum iso_err iso_receipt_write(struct iso_buf *out, const struct iso_receipt *r)
{
    json_t *manifest = NULL;
    struct iso_digest d;
    ISO_TRY(iso_json_parse(&manifest, (const char *)r->manifest.data, r->manifest.len,
                           ISO_HANDOFF_MANIFEST_JSON_MAX, "manifest"));
    iso_sha256(&d, r->manifest.data, r->manifest.len);
    json_t *o = json_object();
    set(o, "format", json_string(ISO_RECEIPT_FORMAT));
    set(o, "role", json_string(r->producer ? "producer" : "consumer"));
    set(o, "node", json_string(r->node));
    set(o, "peer", json_string(r->peer));
    set(o, "build", json_string(r->build));
    set(o, "device", json_string(r->device));
    set(o, "isa", json_string(r->isa));
    set(o, "kernels", hex(r->kernels.bytes, sizeof(r->kernels.bytes)));
    set(o, "reason", json_string(iso_reason_name(r->reason)));
    set(o, "time_s", json_integer(r->time_s));
    set(o, "manifest", manifest);
    set(o, "digest", hex(d.bytes, sizeof(d.bytes)));
    set(o, "signature", hex(r->signature, r->signature_len));
    set(o, "key", hex(r->spki, sizeof(r->spki)));
    set(o, "times_us", times_json(r));
    set(o, "pages", json_integer((json_int_t)r->pages));
    set(o, "bytes", json_integer((json_int_t)r->bytes));
    const int64_t rate =
        r->wire_busy_us > 0 ? (int64_t)((double)r->bytes * 1e6 / (double)r->wire_busy_us) : -1;
    set(o, "wire_bytes_s", measured(rate));
    set(o, "raw_tls_share_ppm", measured(r->raw_share_ppm));
    set(o, "computed_locally", json_integer(r->computed_locally));
    set(o, "audited", json_integer(r->audited));
    set(o, "first_logits",
        r->has_logits ? hex(r->first_logits.bytes, sizeof(r->first_logits.bytes)) : json_null());
    enum iso_err err = iso_json_canonical(out, o);
    json_decref(o);
    return err == ISO_OK ? iso_buf_u8(out, '\n') : err;
}

static enum iso_err append(const char *path, const struct iso_buf *line)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) ISO_FAIL(ISO_E_IO, "%s: %s", path, strerror(errno));
    const ssize_t n = write(fd, line->data, line->len);
    const int write_errno = errno;
    const bool synced = iso_os_sync(fd) == 0;
    (void)close(fd);
    if (n != (ssize_t)line->len) {
        ISO_FAIL(ISO_E_IO, "%s: %zd of %zu bytes written: %s", path, n, line->len,
                 n < 0 ? strerror(write_errno) : "no space");
    }
    if (!synced) ISO_FAIL(ISO_E_IO, "%s: fsync failed", path);
    return ISO_OK;
}

enum iso_err iso_receipt_append(const char *path, const struct iso_receipt *r)
{
    struct iso_buf line;
    iso_buf_init(&line, ISO_RECEIPT_MAX);
    enum iso_err err = iso_receipt_write(&line, r);
    if (err == ISO_OK) err = append(path, &line);
    iso_buf_deinit(&line);
    return err;
}

/* --- checking -----------------------------------------------------------------------------------
 */

/* Up to cap bytes from hexadecimal. */
static enum iso_err
get_bytes(uint8_t *out, size_t cap, size_t *len, const json_t *o, const char *key)
{
    const char *s = NULL;
    ISO_TRY(iso_json_get_string(&s, o, key));
    const size_t n = strlen(s);
    if (n == 0 || n % 2 != 0 || n / 2 > cap) {
        ISO_FAIL(ISO_E_FORMAT, "\"%s\" has %zu hexadecimal digits", key, n);
    }
    *len = n / 2;
    return iso_hex_decode(out, n / 2, s);
}

static enum iso_err get_name(char out[ISO_NODE_NAME_MAX], const json_t *o, const char *key)
{
    const char *s = NULL;
    ISO_TRY(iso_json_get_string(&s, o, key));
    ISO_TRY(iso_node_check_name(s));
    memcpy(out, s, strlen(s) + 1);
    return ISO_OK;
}

static enum iso_err
check_signature(struct iso_receipt_check *out, const json_t *o, const struct iso_digest *pin)
{
    json_t *manifest = NULL;
    uint8_t sig[ISO_NODE_SIG_MAX], spki[ISO_NODE_SPKI_LEN];
    size_t sig_len = 0, spki_len = 0;
    struct iso_buf text;
    ISO_TRY(iso_json_get_object(&manifest, o, "manifest"));
    iso_buf_init(&text, ISO_HANDOFF_MANIFEST_JSON_MAX);
    enum iso_err err = iso_json_canonical(&text, manifest);
    if (err == ISO_OK) err = iso_manifest_parse(&out->manifest, text.data, text.len);
    iso_sha256(&out->digest, text.data, text.len);
    iso_buf_deinit(&text);
    ISO_TRY(err);
    ISO_TRY(get_bytes(sig, sizeof(sig), &sig_len, o, "signature"));
    ISO_TRY(get_bytes(spki, sizeof(spki), &spki_len, o, "key"));
    iso_sha256(&out->pin, spki, spki_len);
    if (pin != NULL && memcmp(pin, &out->pin, sizeof(*pin)) != 0) {
        char want[ISO_DIGEST_HEX], got[ISO_DIGEST_HEX];
        iso_digest_hex(want, pin);
        iso_digest_hex(got, &out->pin);
        ISO_FAIL(ISO_E_AUTH, "signed by key %.16s, enrolled is %.16s", got, want);
    }
    return iso_node_verify(spki, spki_len, &out->digest, sig, sig_len);
}

/* What stands outside the signature must not contradict what is inside. */
static enum iso_err check_agreement(const struct iso_receipt_check *c, const json_t *o)
{
    const struct iso_manifest *m = &c->manifest;
    const char *producer = c->producer ? c->node : c->peer;
    const char *consumer = c->producer ? c->peer : c->node;
    struct iso_digest d;
    size_t len = 0;
    int64_t pages = 0, bytes = 0, local = 0;
    if (strcmp(producer, m->node) != 0 || strcmp(consumer, m->request.consumer) != 0) {
        ISO_FAIL(ISO_E_REFUSED, "the receipt names %s and %s, the manifest %s and %s", producer,
                 consumer, m->node, m->request.consumer);
    }
    ISO_TRY(get_bytes(d.bytes, sizeof(d.bytes), &len, o, "digest"));
    if (len != sizeof(d) || memcmp(&d, &c->digest, sizeof(d)) != 0) {
        ISO_FAIL(ISO_E_REFUSED, "\"digest\" is not that of the manifest");
    }
    ISO_TRY(iso_json_get_int(&pages, o, "pages", 0, INT64_MAX));
    ISO_TRY(iso_json_get_int(&bytes, o, "bytes", 0, INT64_MAX));
    ISO_TRY(iso_json_get_int(&local, o, "computed_locally", 0, UINT32_MAX));
    if ((uint64_t)pages != m->pages || (uint64_t)bytes != m->bytes) {
        ISO_FAIL(ISO_E_REFUSED, "%lld pages and %lld bytes, the manifest has %llu and %llu",
                 (long long)pages, (long long)bytes, (unsigned long long)m->pages,
                 (unsigned long long)m->bytes);
    }
    if (!c->producer && c->reason == ISO_REASON_OK &&
        (uint64_t)local + m->positions != m->request.n_ids) {
        ISO_FAIL(ISO_E_REFUSED, "%lld tokens computed here and %u received are not the prompt's %u",
                 (long long)local, m->positions, m->request.n_ids);
    }
    return ISO_OK;
}

/* A producer's line must not name other kernels than the manifest that it signed. */
static enum iso_err check_kernels(struct iso_receipt_check *c, const json_t *o)
{
    const struct iso_manifest *m = &c->manifest;
    static const char *const name[] = {"build", "device", "isa"};
    const char *const sealed[] = {m->build, m->device, m->isa};
    size_t len = 0;
    c->has_kernels = json_object_get(o, "kernels") != NULL;
    if (!c->has_kernels) return ISO_OK; /* lines of older programs */
    ISO_TRY(get_bytes(c->kernels.bytes, ISO_DIGEST_LEN, &len, o, "kernels"));
    if (len != ISO_DIGEST_LEN) ISO_FAIL(ISO_E_FORMAT, "\"kernels\" has %zu bytes", len);
    if (c->producer && memcmp(&c->kernels, &m->kernels, sizeof(m->kernels)) != 0) {
        ISO_FAIL(ISO_E_REFUSED, "\"kernels\" is not that of the manifest");
    }
    for (size_t i = 0; i < ISO_COUNT(name); i++) {
        const char *s = NULL;
        ISO_TRY(iso_json_get_string(&s, o, name[i]));
        if (c->producer && strcmp(s, sealed[i]) != 0) {
            ISO_FAIL(ISO_E_REFUSED, "\"%s\" is not that of the manifest", name[i]);
        }
    }
    return ISO_OK;
}

static enum iso_err
check_receipt(struct iso_receipt_check *out, const json_t *o, const struct iso_digest *pin)
{
    const char *s = NULL;
    if (!json_is_object(o)) ISO_FAIL(ISO_E_FORMAT, "a receipt is a JSON object");
    ISO_TRY(iso_json_only_keys(o, keys, ISO_COUNT(keys), "receipt"));
    ISO_TRY(iso_json_get_string(&s, o, "format"));
    if (strcmp(s, ISO_RECEIPT_FORMAT) != 0) ISO_FAIL(ISO_E_FORMAT, "format \"%s\"", s);
    ISO_TRY(iso_json_get_string(&s, o, "role"));
    out->producer = strcmp(s, "producer") == 0;
    if (!out->producer && strcmp(s, "consumer") != 0) ISO_FAIL(ISO_E_FORMAT, "role \"%s\"", s);
    ISO_TRY(get_name(out->node, o, "node"));
    ISO_TRY(get_name(out->peer, o, "peer"));
    ISO_TRY(iso_json_get_string(&s, o, "reason"));
    ISO_TRY(iso_reason_from_name(&out->reason, s));
    ISO_TRY(check_signature(out, o, pin));
    ISO_TRY(check_agreement(out, o));
    ISO_TRY(check_kernels(out, o));
    out->has_logits = json_is_string(json_object_get(o, "first_logits"));
    if (!out->has_logits) return ISO_OK;
    size_t len = 0;
    ISO_TRY(get_bytes(out->first_logits.bytes, ISO_DIGEST_LEN, &len, o, "first_logits"));
    if (len != ISO_DIGEST_LEN) ISO_FAIL(ISO_E_FORMAT, "\"first_logits\" has %zu bytes", len);
    return ISO_OK;
}

enum iso_err iso_receipt_verify(struct iso_receipt_check *out,
                                const char *line,
                                size_t len,
                                const struct iso_digest *pin)
{
    json_t *o = NULL;
    struct iso_receipt_check c = {0};
    while (len > 0 && (line[len - 1] == '\n' || line[len - 1] == '\r')) len--;
    ISO_TRY(iso_json_parse(&o, line, len, ISO_RECEIPT_MAX, "receipt"));
    const enum iso_err err = check_receipt(&c, o, pin);
    json_decref(o);
    if (err == ISO_OK) *out = c;
    return err;
}
