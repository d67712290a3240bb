/* SPDX-License-Identifier: MIT
 * node_doc.c - enrolment documents: a request, and the grant that answers it. */
#include "node/node_internal.h"

#include <errno.h>
#include <openssl/rand.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"

#define REQUEST "isobit-request-1"
#define GRANT "isobit-grant-1"

static const char *const REQUEST_KEYS[] = {"format", "node",   "csr",      "certificate",
                                           "ledger", "time_s", "signature"};
static const char *const GRANT_KEYS[] = {"format",  "node",   "to",     "request",  "certificate",
                                         "granter", "ca",     "crl",    "spki",     "ephemeral",
                                         "sealed",  "ledger", "time_s", "signature"};

/* A request that was read and whose signatures hold. Text is borrowed from the document. */
struct request {
    struct iso_peer peer;    /* name, pin, spki, ledger_id */
    EVP_PKEY *key;           /* owned */
    const char *certificate; /* PEM, or "" */
    struct iso_digest digest;
};

/* A grant that was read; certificates are owned. */
struct grant {
    struct iso_peer peer; /* the granting node */
    X509 *ca;
    X509 *granter;
    X509 *certificate; /* NULL when the grant brings none */
    X509_CRL *crl;
    const char *ca_pem;
    const char *crl_pem;
    const char *certificate_pem;
    bool next_key; /* it is for node.next.pem */
};

static enum iso_err digest_doc(struct iso_digest *out, const json_t *doc)
{
    struct iso_buf b;
    iso_buf_init(&b, ISO_NODE_DOC_MAX);
    const enum iso_err err = iso_json_canonical(&b, doc);
    if (err == ISO_OK) iso_sha256(out, b.data, b.len);
    iso_buf_deinit(&b);
    return err;
}

/* File content, or "" when there is none. Appends to b. */
static enum iso_err optional_file(struct iso_buf *b, int dir_fd, const char *name)
{
    return iso_node_store_has(dir_fd, name) ? iso_node_store_read(dir_fd, name, b) : ISO_OK;
}

/* Making a request ------------------------------------------------------ */

static enum iso_err
make_request(json_t **out, struct iso_node *node, EVP_PKEY *key, const char *certificate)
{
    struct iso_buf csr;
    uint8_t ledger[ISO_NODE_LEDGER_ID_LEN];
    iso_buf_init(&csr, ISO_NODE_PEM_MAX);
    iso_node_ledger_id(node, ledger);
    enum iso_err err = iso_node_csr_make(&csr, node->name, key);
    json_t *doc = err == ISO_OK
                      ? json_pack("{s:s, s:s, s:s, s:s, s:I}", "format", REQUEST, "node",
                                  node->name, "csr", (const char *)csr.data, "certificate",
                                  certificate, "time_s", (json_int_t)iso_clock_wall_s())
                      : NULL;
    iso_buf_deinit(&csr);
    if (err == ISO_OK && doc == NULL)
        err = iso_err_raise(ISO_E_NOMEM, __FILE__, __LINE__, "no memory for a request");
    if (err == ISO_OK) err = iso_node_json_set_hex(doc, "ledger", ledger, sizeof ledger);
    if (err == ISO_OK) err = iso_node_doc_sign(doc, key);
    if (err == ISO_OK)
        *out = doc;
    else
        json_decref(doc);
    return err;
}

static void request_free(struct request *r)
{
    EVP_PKEY_free(r->key);
    r->key = NULL;
}

static enum iso_err read_request(struct request *out, const json_t *doc)
{
    struct request r = {.key = NULL};
    const char *name;
    const char *csr;
    ISO_TRY(iso_json_only_keys(doc, REQUEST_KEYS, ISO_COUNT(REQUEST_KEYS), "request"));
    ISO_TRY(iso_json_get_string(&name, doc, "node"));
    ISO_TRY(iso_node_check_name(name));
    memcpy(r.peer.name, name, strlen(name) + 1);
    ISO_TRY(iso_json_get_string(&csr, doc, "csr"));
    ISO_TRY(iso_json_get_string(&r.certificate, doc, "certificate"));
    ISO_TRY(iso_node_json_hex(r.peer.ledger_id, sizeof r.peer.ledger_id, doc, "ledger"));
    ISO_TRY(digest_doc(&r.digest, doc));
    ISO_TRY(iso_node_csr_read(&r.key, csr, name));
    enum iso_err err = iso_node_key_spki(r.peer.spki, r.key);
    if (err == ISO_OK) err = iso_node_doc_verify(doc, r.peer.spki);
    if (err != ISO_OK) {
        request_free(&r);
        return err;
    }
    iso_sha256(&r.peer.pin, r.peer.spki, sizeof r.peer.spki);
    *out = r;
    return ISO_OK;
}

/* The request that was made last still says what a new one would say. */
static bool
still_current(const json_t *doc, struct iso_node *node, EVP_PKEY *key, const char *certificate)
{
    struct request r;
    uint8_t spki[ISO_NODE_SPKI_LEN];
    uint8_t ledger[ISO_NODE_LEDGER_ID_LEN];
    iso_node_ledger_id(node, ledger);
    if (iso_node_key_spki(spki, key) != ISO_OK || read_request(&r, doc) != ISO_OK) return false;
    const bool same = memcmp(r.peer.spki, spki, sizeof spki) == 0 &&
                      memcmp(r.peer.ledger_id, ledger, sizeof ledger) == 0 &&
                      strcmp(r.certificate, certificate) == 0;
    request_free(&r);
    return same;
}

/* Caller holds the directory's lock. */
static enum iso_err request_locked(struct iso_node *node, struct iso_buf *out)
{
    const bool next = iso_node_store_has(node->dir_fd, ISO_FILE_NEXT);
    struct iso_buf cert;
    EVP_PKEY *key = NULL;
    json_t *doc = NULL;
    enum iso_err err = ISO_OK;
    iso_buf_init(&cert, ISO_NODE_PEM_MAX);
    ISO_TRY_OUT(iso_node_key_load(&key, node->dir_fd, next ? ISO_FILE_NEXT : ISO_FILE_KEY));
    /* The certificate of the old key says nothing about the next one. */
    if (!next) ISO_TRY_OUT(optional_file(&cert, node->dir_fd, ISO_FILE_CERT));
    if (iso_node_store_has(node->dir_fd, ISO_FILE_REQUEST))
        ISO_TRY_OUT(iso_node_store_read_json(node->dir_fd, ISO_FILE_REQUEST, &doc));
    if (doc != NULL && !still_current(doc, node, key, (const char *)cert.data)) {
        json_decref(doc);
        doc = NULL;
    }
    if (doc == NULL) {
        ISO_TRY_OUT(make_request(&doc, node, key, (const char *)cert.data));
        ISO_TRY_OUT(iso_node_store_write_json(node->dir_fd, ISO_FILE_REQUEST, doc));
    }
    ISO_TRY_OUT(iso_json_canonical(out, doc));
    err = iso_buf_puts(out, "\n");
out:
    json_decref(doc);
    EVP_PKEY_free(key);
    iso_buf_deinit(&cert);
    return err;
}

enum iso_err iso_node_request(struct iso_node *node, struct iso_buf *out)
{
    int lock;
    ISO_TRY(iso_node_store_lock(&lock, node->dir_fd));
    const enum iso_err err = request_locked(node, out);
    close(lock);
    return err;
}

/* Making a grant -------------------------------------------------------- */

static enum iso_err grant_files(json_t *doc, const struct iso_node *node)
{
    const char *const files[][2] = {
        {"granter", ISO_FILE_CERT}, {"ca", ISO_FILE_CA}, {"crl", ISO_FILE_CRL}};
    for (size_t i = 0; i < ISO_COUNT(files); i++) {
        struct iso_buf b;
        iso_buf_init(&b, ISO_NODE_DOC_MAX);
        enum iso_err err = iso_node_store_read(node->dir_fd, files[i][1], &b);
        if (err == ISO_OK &&
            json_object_set_new(doc, files[i][0], json_string((const char *)b.data)) != 0)
            err = iso_err_raise(ISO_E_NOMEM, __FILE__, __LINE__, "no memory for a grant");
        iso_buf_deinit(&b);
        if (err != ISO_OK) return err;
    }
    return ISO_OK;
}

static enum iso_err grant_fields(json_t *doc, struct iso_node *node, const struct request *r)
{
    uint8_t ephemeral[ISO_NODE_SPKI_LEN];
    uint8_t sealed[ISO_NODE_SEALED_LEN];
    uint8_t ledger[ISO_NODE_LEDGER_ID_LEN];
    uint8_t spki[ISO_NODE_SPKI_LEN];
    struct iso_digest pin;
    iso_node_identity(node, &pin, spki);
    iso_node_ledger_id(node, ledger);
    ISO_TRY(iso_node_seal(ephemeral, sealed, r->peer.pair_key, r->peer.spki));
    ISO_TRY(iso_node_json_set_hex(doc, "request", r->digest.bytes, sizeof r->digest.bytes));
    ISO_TRY(iso_node_json_set_hex(doc, "spki", spki, sizeof spki));
    ISO_TRY(iso_node_json_set_hex(doc, "ephemeral", ephemeral, sizeof ephemeral));
    ISO_TRY(iso_node_json_set_hex(doc, "sealed", sealed, sizeof sealed));
    ISO_TRY(iso_node_json_set_hex(doc, "ledger", ledger, sizeof ledger));
    return grant_files(doc, node);
}

/* certificate: the new one, or NULL. */
static enum iso_err
make_grant(struct iso_buf *out, struct iso_node *node, const struct request *r, X509 *certificate)
{
    struct iso_node_creds creds = {0};
    struct iso_buf pem;
    enum iso_err err = ISO_OK;
    json_t *doc = NULL;
    iso_buf_init(&pem, ISO_NODE_PEM_MAX);
    ISO_TRY_OUT(iso_node_creds_get(node, &creds));
    if (certificate != NULL) ISO_TRY_OUT(iso_node_cert_to_pem(&pem, certificate));
    doc = json_pack("{s:s, s:s, s:s, s:s, s:I}", "format", GRANT, "node", node->name, "to",
                    r->peer.name, "certificate", (const char *)pem.data, "time_s",
                    (json_int_t)iso_clock_wall_s());
    if (doc == NULL) ISO_FAIL_OUT(ISO_E_NOMEM, "no memory for a grant");
    ISO_TRY_OUT(grant_fields(doc, node, r));
    ISO_TRY_OUT(iso_node_doc_sign(doc, creds.key));
    ISO_TRY_OUT(iso_json_canonical(out, doc));
    err = iso_buf_puts(out, "\n");
out:
    json_decref(doc);
    iso_buf_deinit(&pem);
    iso_node_creds_release(&creds);
    return err;
}

static enum iso_err fresh_pair_key(struct iso_peer *peer)
{
    if (RAND_priv_bytes(peer->pair_key, sizeof peer->pair_key) != 1)
        ISO_FAIL(ISO_E_IO, "no random numbers for a pair key");
    return ISO_OK;
}

/* Caller holds the directory's lock. */
static enum iso_err issue_locked(struct iso_node *node,
                                 struct iso_buf *out,
                                 struct request *r,
                                 const struct iso_node_opts *opts)
{
    X509 *cert = NULL;
    enum iso_err err = ISO_OK;
    ISO_TRY_OUT(fresh_pair_key(&r->peer));
    ISO_TRY_OUT(iso_node_peer_admit(node, &r->peer, true, opts));
    ISO_TRY_OUT(iso_node_ca_issue(&cert, node->dir_fd, r->peer.name, r->key, opts));
    r->peer.enrolled_s = iso_clock_wall_s();
    r->peer.cert_expires_s = iso_node_cert_expires(cert);
    ISO_TRY_OUT(make_grant(out, node, r, cert));
    err = iso_node_peer_write(node, &r->peer);
out:
    X509_free(cert);
    return err;
}

static enum iso_err parse_doc(json_t **out, const char **format, const char *text, size_t len)
{
    json_t *doc;
    ISO_TRY(iso_json_parse(&doc, text, len, ISO_NODE_DOC_MAX, "enrolment document"));
    const enum iso_err err = iso_json_get_string(format, doc, "format");
    if (err != ISO_OK) {
        json_decref(doc);
        return err;
    }
    *out = doc;
    return ISO_OK;
}

/* Runs one of the two answers to a request under the directory's lock. */
static enum iso_err answer(struct iso_node *node,
                           struct iso_buf *out,
                           const json_t *doc,
                           char who[ISO_NODE_NAME_MAX],
                           const struct iso_node_opts *opts,
                           enum iso_err (*run)(struct iso_node *,
                                               struct iso_buf *,
                                               struct request *,
                                               const struct iso_node_opts *))
{
    struct request r;
    int lock;
    ISO_TRY(read_request(&r, doc));
    enum iso_err err = iso_node_store_lock(&lock, node->dir_fd);
    if (err == ISO_OK) {
        err = run(node, out, &r, opts);
        close(lock);
    }
    if (err == ISO_OK && who != NULL) memcpy(who, r.peer.name, sizeof r.peer.name);
    request_free(&r);
    iso_peer_wipe(&r.peer);
    return err;
}

enum iso_err iso_node_issue(struct iso_node *node,
                            struct iso_buf *out,
                            char who[ISO_NODE_NAME_MAX],
                            const char *request,
                            size_t len,
                            const struct iso_node_opts *opts)
{
    json_t *doc;
    const char *format;
    if (!node->is_ca)
        ISO_FAIL(ISO_E_AUTH, "%s is not the CA machine: take the request there", node->name);
    ISO_TRY(parse_doc(&doc, &format, request, len));
    enum iso_err err = ISO_OK;
    if (strcmp(format, REQUEST) != 0)
        err = iso_err_raise(ISO_E_FORMAT, __FILE__, __LINE__,
                            "the document is a \"%s\", not a request", format);
    if (err == ISO_OK) err = answer(node, out, doc, who, opts, issue_locked);
    json_decref(doc);
    return err;
}

/* Taking in a request of a node that the CA knows already. Caller holds the directory's lock. */
static enum iso_err enroll_request(struct iso_node *node,
                                   struct iso_buf *out,
                                   struct request *r,
                                   const struct iso_node_opts *opts)
{
    struct iso_node_creds creds = {0};
    X509 *cert = NULL;
    char name[ISO_NODE_NAME_MAX];
    enum iso_err err = ISO_OK;
    if (r->certificate[0] == '\0')
        ISO_FAIL(ISO_E_AUTH,
                 "%s has no certificate yet: the CA machine answers it with isobit keys issue",
                 r->peer.name);
    ISO_TRY_OUT(iso_node_creds_get(node, &creds));
    ISO_TRY_OUT(
        iso_node_cert_from_pem(&cert, r->certificate, strlen(r->certificate), "certificate"));
    ISO_TRY_OUT(iso_node_cert_check(cert, creds.ca, creds.crl));
    ISO_TRY_OUT(iso_node_cert_name(name, cert));
    if (strcmp(name, r->peer.name) != 0 || EVP_PKEY_eq(X509_get0_pubkey(cert), r->key) != 1)
        ISO_FAIL_OUT(ISO_E_AUTH, "the certificate in the request is of %s or of another key", name);
    ISO_TRY_OUT(fresh_pair_key(&r->peer));
    ISO_TRY_OUT(iso_node_peer_admit(node, &r->peer, true, opts));
    r->peer.enrolled_s = iso_clock_wall_s();
    r->peer.cert_expires_s = iso_node_cert_expires(cert);
    ISO_TRY_OUT(make_grant(out, node, r, NULL));
    err = iso_node_peer_write(node, &r->peer);
out:
    X509_free(cert);
    iso_node_creds_release(&creds);
    return err;
}

/* Taking in a grant ----------------------------------------------------- */

static void grant_free(struct grant *g)
{
    X509_free(g->ca);
    X509_free(g->granter);
    X509_free(g->certificate);
    X509_CRL_free(g->crl);
    iso_peer_wipe(&g->peer);
}

static enum iso_err grant_certs(struct grant *g, const json_t *doc)
{
    const char *granter;
    ISO_TRY(iso_json_get_string(&granter, doc, "granter"));
    ISO_TRY(iso_json_get_string(&g->ca_pem, doc, "ca"));
    ISO_TRY(iso_json_get_string(&g->crl_pem, doc, "crl"));
    ISO_TRY(iso_json_get_string(&g->certificate_pem, doc, "certificate"));
    ISO_TRY(iso_node_cert_from_pem(&g->ca, g->ca_pem, strlen(g->ca_pem), "CA certificate"));
    ISO_TRY(iso_node_cert_from_pem(&g->granter, granter, strlen(granter), "granter's certificate"));
    ISO_TRY(iso_node_crl_from_pem(&g->crl, g->crl_pem, strlen(g->crl_pem)));
    if (g->certificate_pem[0] != '\0')
        ISO_TRY(iso_node_cert_from_pem(&g->certificate, g->certificate_pem,
                                       strlen(g->certificate_pem), "certificate"));
    ISO_TRY(iso_node_cert_check_ca(g->ca));
    ISO_TRY(iso_node_crl_check(g->crl, g->ca));
    return iso_node_cert_check(g->granter, g->ca, g->crl);
}

/* The granter is who it says: name and key in its certificate, and its signature. */
static enum iso_err grant_granter(struct grant *g, const json_t *doc)
{
    const char *name;
    char certified[ISO_NODE_NAME_MAX];
    struct iso_digest pin;
    ISO_TRY(iso_json_get_string(&name, doc, "node"));
    ISO_TRY(iso_node_cert_name(certified, g->granter));
    if (strcmp(certified, name) != 0)
        ISO_FAIL(ISO_E_AUTH, "the grant says node %s, its certificate %s", name, certified);
    memcpy(g->peer.name, certified, sizeof certified);
    ISO_TRY(iso_node_json_hex(g->peer.spki, sizeof g->peer.spki, doc, "spki"));
    iso_sha256(&g->peer.pin, g->peer.spki, sizeof g->peer.spki);
    ISO_TRY(iso_node_cert_pin(&pin, g->granter));
    if (memcmp(&pin, &g->peer.pin, sizeof pin) != 0)
        ISO_FAIL(ISO_E_AUTH, "the grant's key is not that of its certificate");
    ISO_TRY(iso_node_json_hex(g->peer.ledger_id, sizeof g->peer.ledger_id, doc, "ledger"));
    g->peer.enrolled_s = iso_clock_wall_s();
    g->peer.cert_expires_s = iso_node_cert_expires(g->granter);
    return iso_node_doc_verify(doc, g->peer.spki);
}

/* The grant answers our last request. */
static enum iso_err grant_addressee(const struct iso_node *node, const json_t *doc)
{
    const char *to;
    struct iso_digest asked;
    struct iso_digest mine;
    json_t *request = NULL;
    ISO_TRY(iso_json_get_string(&to, doc, "to"));
    if (strcmp(to, node->name) != 0)
        ISO_FAIL(ISO_E_REFUSED, "the grant is for node %s, this is %s", to, node->name);
    ISO_TRY(iso_node_json_hex(asked.bytes, sizeof asked.bytes, doc, "request"));
    if (!iso_node_store_has(node->dir_fd, ISO_FILE_REQUEST))
        ISO_FAIL(ISO_E_REFUSED, "this node made no request");
    ISO_TRY(iso_node_store_read_json(node->dir_fd, ISO_FILE_REQUEST, &request));
    const enum iso_err err = digest_doc(&mine, request);
    json_decref(request);
    if (err != ISO_OK) return err;
    if (memcmp(&asked, &mine, sizeof mine) != 0)
        ISO_FAIL(ISO_E_REFUSED, "the grant answers another request than this node's last one");
    return ISO_OK;
}

/* Key that a new certificate belongs to, decrypts the pair key with the same. */
static enum iso_err grant_own_key(struct grant *g, const struct iso_node *node, const json_t *doc)
{
    EVP_PKEY *key = NULL;
    uint8_t ephemeral[ISO_NODE_SPKI_LEN];
    uint8_t sealed[ISO_NODE_SEALED_LEN];
    char name[ISO_NODE_NAME_MAX];
    enum iso_err err = ISO_OK;
    ISO_TRY(iso_node_json_hex(ephemeral, sizeof ephemeral, doc, "ephemeral"));
    ISO_TRY(iso_node_json_hex(sealed, sizeof sealed, doc, "sealed"));
    g->next_key = iso_node_store_has(node->dir_fd, ISO_FILE_NEXT);
    ISO_TRY(iso_node_key_load(&key, node->dir_fd, g->next_key ? ISO_FILE_NEXT : ISO_FILE_KEY));
    ISO_TRY_OUT(iso_node_unseal(g->peer.pair_key, key, ephemeral, sealed));
    if (g->certificate == NULL) {
        if (g->next_key || !iso_node_store_has(node->dir_fd, ISO_FILE_CERT))
            ISO_FAIL_OUT(ISO_E_REFUSED, "the grant brings no certificate and this node needs one");
        goto out;
    }
    ISO_TRY_OUT(iso_node_cert_check(g->certificate, g->ca, g->crl));
    ISO_TRY_OUT(iso_node_cert_name(name, g->certificate));
    if (strcmp(name, node->name) != 0 || X509_check_private_key(g->certificate, key) != 1)
        ISO_FAIL_OUT(ISO_E_AUTH, "the certificate in the grant is not for this node and key");
out:
    EVP_PKEY_free(key);
    return err;
}

static enum iso_err same_ca(const struct grant *g, const struct iso_node *node)
{
    X509 *ca = NULL;
    if (!iso_node_store_has(node->dir_fd, ISO_FILE_CA)) return ISO_OK;
    ISO_TRY(iso_node_cert_load(&ca, node->dir_fd, ISO_FILE_CA));
    const int differs = X509_cmp(ca, g->ca);
    X509_free(ca);
    if (differs)
        ISO_FAIL(ISO_E_REFUSED,
                 "the grant comes from another CA than this node's; a node belongs to "
                 "one CA: make another with isobit keys init --dir");
    return ISO_OK;
}

/* Every step can be repeated with the same grant after a crash. */
static enum iso_err install_grant(struct iso_node *node, const struct grant *g)
{
    if (!iso_node_store_has(node->dir_fd, ISO_FILE_CA))
        ISO_TRY(iso_node_store_write(node->dir_fd, ISO_FILE_CA, g->ca_pem, strlen(g->ca_pem)));
    ISO_TRY(iso_node_crl_install(node->dir_fd, g->crl, g->crl_pem, false));
    if (g->certificate != NULL) {
        if (g->next_key) ISO_TRY(iso_node_store_rename(node->dir_fd, ISO_FILE_NEXT, ISO_FILE_KEY));
        ISO_TRY(iso_node_store_write(node->dir_fd, ISO_FILE_CERT, g->certificate_pem,
                                     strlen(g->certificate_pem)));
    }
    return iso_node_peer_write(node, &g->peer);
}

/* Caller holds the directory's lock. */
static enum iso_err enroll_grant(struct iso_node *node,
                                 const json_t *doc,
                                 char who[ISO_NODE_NAME_MAX],
                                 const struct iso_node_opts *opts)
{
    struct grant g = {.ca = NULL};
    enum iso_err err = ISO_OK;
    ISO_TRY_OUT(iso_json_only_keys(doc, GRANT_KEYS, ISO_COUNT(GRANT_KEYS), "grant"));
    ISO_TRY_OUT(grant_addressee(node, doc));
    ISO_TRY_OUT(grant_certs(&g, doc));
    ISO_TRY_OUT(grant_granter(&g, doc));
    ISO_TRY_OUT(same_ca(&g, node));
    ISO_TRY_OUT(grant_own_key(&g, node, doc));
    ISO_TRY_OUT(iso_node_peer_admit(node, &g.peer, false, opts));
    ISO_TRY_OUT(install_grant(node, &g));
    if (who != NULL) memcpy(who, g.peer.name, sizeof g.peer.name);
out:
    grant_free(&g);
    return err;
}

static enum iso_err enroll_json(struct iso_node *node,
                                struct iso_buf *out,
                                char who[ISO_NODE_NAME_MAX],
                                const json_t *doc,
                                const char *format,
                                const struct iso_node_opts *opts)
{
    if (strcmp(format, REQUEST) == 0) return answer(node, out, doc, who, opts, enroll_request);
    if (strcmp(format, GRANT) != 0)
        ISO_FAIL(ISO_E_FORMAT, "\"%s\" is neither a request nor a grant", format);
    int lock;
    ISO_TRY(iso_node_store_lock(&lock, node->dir_fd));
    const enum iso_err err = enroll_grant(node, doc, who, opts);
    close(lock);
    return err;
}

enum iso_err iso_node_enroll(struct iso_node *node,
                             struct iso_buf *out,
                             char who[ISO_NODE_NAME_MAX],
                             const char *doc,
                             size_t len,
                             const struct iso_node_opts *opts)
{
    static const char pem[] = "-----BEGIN X509 CRL-----";
    if (len >= sizeof pem - 1 && memcmp(doc, pem, sizeof pem - 1) == 0) {
        const enum iso_err err = iso_node_crl_enroll(node, doc, len);
        if (err == ISO_OK && who != NULL) who[0] = '\0';
        return err;
    }
    json_t *obj;
    const char *format;
    ISO_TRY(parse_doc(&obj, &format, doc, len));
    const enum iso_err err = enroll_json(node, out, who, obj, format, opts);
    json_decref(obj);
    return err;
}

enum iso_err iso_node_pair(struct iso_node *a, struct iso_node *b, const struct iso_node_opts *opts)
{
    struct iso_buf request;
    struct iso_buf grant;
    struct iso_buf none;
    iso_buf_init(&request, ISO_NODE_DOC_MAX);
    iso_buf_init(&grant, ISO_NODE_DOC_MAX);
    iso_buf_init(&none, ISO_NODE_DOC_MAX);
    enum iso_err err = iso_node_request(b, &request);
    if (err == ISO_OK)
        err = iso_node_issue(a, &grant, NULL, (const char *)request.data, request.len, opts);
    if (err == ISO_OK)
        err = iso_node_enroll(b, &none, NULL, (const char *)grant.data, grant.len, opts);
    iso_buf_deinit(&request);
    iso_buf_deinit(&grant);
    iso_buf_deinit(&none);
    return err;
}
