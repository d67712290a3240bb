/* SPDX-License-Identifier: MIT
 * node_ca.c - the CA machine: what was issued, issuing, revoking, the revocation list. */
#include "node/node_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"

#define FORMAT "isobit-issued-1"

struct ca {
    EVP_PKEY *key;
    X509 *cert;
    json_t
        *book; /* {"format", "crl_number", "issued": [{serial, node, pin, expires_s, revoked}]} */
};

static void ca_close(struct ca *ca)
{
    EVP_PKEY_free(ca->key);
    X509_free(ca->cert);
    json_decref(ca->book);
    *ca = (struct ca){0};
}

static enum iso_err check_book(const json_t *book)
{
    const char *format;
    json_t *issued;
    int64_t number;
    ISO_TRY(iso_json_get_string(&format, book, "format"));
    if (strcmp(format, FORMAT) != 0) ISO_FAIL(ISO_E_FORMAT, "%s: \"%s\"", ISO_FILE_ISSUED, format);
    ISO_TRY(iso_json_get_int(&number, book, "crl_number", 1, INT64_MAX));
    ISO_TRY(iso_json_get_array(&issued, book, "issued"));
    for (size_t i = 0; i < json_array_size(issued); i++) {
        const json_t *row = json_array_get(issued, i);
        const char *text;
        bool revoked;
        ISO_TRY(iso_json_get_string(&text, row, "serial"));
        ISO_TRY(iso_json_get_string(&text, row, "node"));
        ISO_TRY(iso_json_get_string(&text, row, "pin"));
        ISO_TRY(iso_json_get_bool(&revoked, row, "revoked"));
    }
    return ISO_OK;
}

static enum iso_err ca_open(struct ca *ca, int dir_fd)
{
    *ca = (struct ca){0};
    if (!iso_node_store_has(dir_fd, ISO_FILE_CA_KEY))
        ISO_FAIL(ISO_E_AUTH, "this machine is not the CA: %s is not here", ISO_FILE_CA_KEY);
    enum iso_err err = iso_node_key_load(&ca->key, dir_fd, ISO_FILE_CA_KEY);
    if (err == ISO_OK) err = iso_node_cert_load(&ca->cert, dir_fd, ISO_FILE_CA);
    if (err == ISO_OK && X509_check_private_key(ca->cert, ca->key) != 1)
        err = iso_err_raise(ISO_E_AUTH, __FILE__, __LINE__, "%s is not the key of %s",
                            ISO_FILE_CA_KEY, ISO_FILE_CA);
    if (err == ISO_OK) err = iso_node_store_read_json(dir_fd, ISO_FILE_ISSUED, &ca->book);
    if (err == ISO_OK) err = check_book(ca->book);
    if (err != ISO_OK) ca_close(ca);
    return err;
}

static enum iso_err write_crl(const struct ca *ca, int dir_fd)
{
    const json_t *issued = json_object_get(ca->book, "issued");
    const size_t rows = json_array_size(issued);
    const char **serials = iso_xalloc(rows + 1, sizeof *serials);
    size_t n = 0;
    for (size_t i = 0; i < rows; i++) {
        const json_t *row = json_array_get(issued, i);
        if (json_is_true(json_object_get(row, "revoked")))
            serials[n++] = json_string_value(json_object_get(row, "serial"));
    }
    struct iso_buf pem;
    iso_buf_init(&pem, ISO_NODE_DOC_MAX);
    const json_int_t number = json_integer_value(json_object_get(ca->book, "crl_number"));
    enum iso_err err = iso_node_crl_make(&pem, ca->cert, ca->key, (int64_t)number, serials, n);
    if (err == ISO_OK) err = iso_node_store_write(dir_fd, ISO_FILE_CRL, pem.data, pem.len);
    iso_buf_deinit(&pem);
    free(serials);
    return err;
}

/* Book first: a crash in between leaves a list that is one step old, and the next change writes it
 * anew from the book. */
static enum iso_err save(const struct ca *ca, int dir_fd, bool list_changed)
{
    if (list_changed) {
        const json_int_t number = json_integer_value(json_object_get(ca->book, "crl_number"));
        if (json_object_set_new(ca->book, "crl_number", json_integer(number + 1)) != 0)
            ISO_FAIL(ISO_E_NOMEM, "no memory for the CA's book");
    }
    ISO_TRY(iso_node_store_write_json(dir_fd, ISO_FILE_ISSUED, ca->book));
    return list_changed ? write_crl(ca, dir_fd) : ISO_OK;
}

enum iso_err iso_node_ca_init(int dir_fd, const char *name)
{
    struct ca ca = {0};
    struct iso_buf pem;
    iso_buf_init(&pem, ISO_NODE_PEM_MAX);
    enum iso_err err = ISO_OK;
    ISO_TRY_OUT(iso_node_key_new(&ca.key));
    const struct iso_cert_args args = {
        .name = name, .subject = ca.key, .signer = ca.key, .ca = true, .days = ISO_NODE_CA_DAYS};
    ISO_TRY_OUT(iso_node_cert_make(&ca.cert, &args));
    ISO_TRY_OUT(iso_node_key_to_pem(&pem, ca.key));
    ISO_TRY_OUT(iso_node_store_write(dir_fd, ISO_FILE_CA_KEY, pem.data, pem.len));
    OPENSSL_cleanse(pem.data, pem.len);
    iso_buf_clear(&pem);
    ISO_TRY_OUT(iso_node_cert_to_pem(&pem, ca.cert));
    ISO_TRY_OUT(iso_node_store_write(dir_fd, ISO_FILE_CA, pem.data, pem.len));
    ca.book = json_pack("{s:s, s:i, s:[]}", "format", FORMAT, "crl_number", 0, "issued");
    if (ca.book == NULL) ISO_FAIL_OUT(ISO_E_NOMEM, "no memory for the CA's book");
    err = save(&ca, dir_fd, true);
out:
    iso_node_wipe_buf(&pem);
    ca_close(&ca);
    return err;
}

/* Marks rows of the book; by serial when serial is set, else by name and, with pin, other pins. */
static size_t mark_revoked(json_t *book, const char *serial, const char *name, const char *keep_pin)
{
    json_t *issued = json_object_get(book, "issued");
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(issued); i++) {
        json_t *row = json_array_get(issued, i);
        const char *row_serial = json_string_value(json_object_get(row, "serial"));
        const char *row_name = json_string_value(json_object_get(row, "node"));
        const char *row_pin = json_string_value(json_object_get(row, "pin"));
        const bool hit = serial ? strcmp(row_serial, serial) == 0
                                : strcmp(row_name, name) == 0 &&
                                      (keep_pin == NULL || strcmp(row_pin, keep_pin) != 0);
        if (hit && json_is_false(json_object_get(row, "revoked"))) {
            (void)json_object_set_new(row, "revoked", json_true());
            n++;
        }
    }
    return n;
}

static enum iso_err add_row(struct ca *ca, const char *name, X509 *cert, const char *pin)
{
    char serial[64];
    ISO_TRY(iso_node_cert_serial(serial, cert));
    json_t *row = json_pack("{s:s, s:s, s:s, s:I, s:b}", "serial", serial, "node", name, "pin", pin,
                            "expires_s", (json_int_t)iso_node_cert_expires(cert), "revoked", 0);
    if (row == NULL || json_array_append_new(json_object_get(ca->book, "issued"), row) != 0)
        ISO_FAIL(ISO_E_NOMEM, "no memory for the CA's book");
    return ISO_OK;
}

enum iso_err iso_node_ca_issue(
    X509 **out, int dir_fd, const char *name, EVP_PKEY *subject, const struct iso_node_opts *opts)
{
    struct ca ca;
    X509 *cert = NULL;
    struct iso_digest pin;
    char hex[ISO_DIGEST_HEX];
    enum iso_err err = ISO_OK;
    ISO_TRY(ca_open(&ca, dir_fd));
    const struct iso_cert_args args = {.name = name,
                                       .subject = subject,
                                       .issuer = ca.cert,
                                       .signer = ca.key,
                                       .days = opts && opts->days ? opts->days : ISO_NODE_DAYS,
                                       .starts_in_s = opts ? opts->starts_in_s : 0};
    ISO_TRY_OUT(iso_node_cert_make(&cert, &args));
    ISO_TRY_OUT(iso_node_cert_pin(&pin, cert));
    iso_digest_hex(hex, &pin);
    const bool revoked = mark_revoked(ca.book, NULL, name, hex) > 0;
    ISO_TRY_OUT(add_row(&ca, name, cert, hex));
    ISO_TRY_OUT(save(&ca, dir_fd, revoked));
    *out = cert;
    cert = NULL;
out:
    X509_free(cert);
    ca_close(&ca);
    return err;
}

enum iso_err iso_node_ca_revoke(int dir_fd, const char *name_or_serial, size_t *n)
{
    struct ca ca;
    ISO_TRY(ca_open(&ca, dir_fd));
    size_t hits = mark_revoked(ca.book, name_or_serial, NULL, NULL);
    if (hits == 0) hits = mark_revoked(ca.book, NULL, name_or_serial, NULL);
    const enum iso_err err = hits ? save(&ca, dir_fd, true) : ISO_OK;
    ca_close(&ca);
    if (err == ISO_OK) *n = hits;
    return err;
}
