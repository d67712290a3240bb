/* SPDX-License-Identifier: MIT
 * node.c - an open node directory: identity, certificates that follow their files, ledger id. */
#include "node/node.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/rand.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "node/node_internal.h"

#define FORMAT "isobit-node-1"
#define SECONDS_PER_DAY 86400

/* The files behind creds, in the order of their digest. */
static const char *const WATCHED[] = {ISO_FILE_KEY, ISO_FILE_CERT, ISO_FILE_CA, ISO_FILE_CRL};

enum iso_err iso_node_default_dir(struct iso_buf *out)
{
    const char *xdg = getenv("XDG_CONFIG_HOME");
    const char *home = getenv("HOME");
    if (xdg && xdg[0] == '/') return iso_buf_printf(out, "%s/isobit", xdg);
    if (home && home[0] == '/') return iso_buf_printf(out, "%s/.isobit", home);
    ISO_FAIL(ISO_E_ARG, "neither XDG_CONFIG_HOME nor HOME is set: say where with --dir");
}

enum iso_err iso_node_check_name(const char *name)
{
    static const char first[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    static const char rest[] = "abcdefghijklmnopqrstuvwxyz0123456789._-";
    const size_t len = strlen(name);
    if (len == 0 || len >= ISO_NODE_NAME_MAX || strchr(first, name[0]) == NULL ||
        strspn(name, rest) != len)
        ISO_FAIL(
            ISO_E_ARG,
            "\"%.80s\" is no node name: 1 to %d of a-z 0-9 . _ -, beginning with a letter or digit",
            name, ISO_NODE_NAME_MAX - 1);
    return ISO_OK;
}

void iso_node_creds_release(struct iso_node_creds *c)
{
    EVP_PKEY_free(c->key);
    X509_free(c->cert);
    X509_free(c->ca);
    X509_CRL_free(c->crl);
    *c = (struct iso_node_creds){0};
}

/* Digest of the watched files' bytes: contents instead of times, so that no change is missed within
 * one tick of the clock; they are a few kilobytes. A missing file counts as empty. */
static enum iso_err digest_files(struct iso_digest *out, int dir_fd)
{
    struct iso_hasher *h = iso_hasher_new();
    enum iso_err err = ISO_OK;
    for (size_t i = 0; i < ISO_COUNT(WATCHED) && err == ISO_OK; i++) {
        struct iso_buf b;
        iso_buf_init(&b, ISO_NODE_DOC_MAX);
        if (iso_node_store_has(dir_fd, WATCHED[i]))
            err = iso_node_store_read(dir_fd, WATCHED[i], &b);
        uint8_t len[8];
        iso_put_u64(len, b.len);
        iso_hasher_update(h, len, sizeof len);
        iso_hasher_update(h, b.data, b.len);
        iso_node_wipe_buf(&b);
    }
    iso_hasher_final(h, out);
    iso_hasher_free(h);
    return err;
}

/* Certificate, CA and list beside c->key, all belonging together. */
static enum iso_err load_certs(struct iso_node_creds *c, const struct iso_node *node)
{
    char name[ISO_NODE_NAME_MAX];
    if (!iso_node_store_has(node->dir_fd, ISO_FILE_CERT))
        ISO_FAIL(ISO_E_AUTH, "node %s has no certificate yet: enrol it first (isobit keys request)",
                 node->name);
    ISO_TRY(iso_node_cert_load(&c->cert, node->dir_fd, ISO_FILE_CERT));
    ISO_TRY(iso_node_cert_load(&c->ca, node->dir_fd, ISO_FILE_CA));
    ISO_TRY(iso_node_crl_load(&c->crl, node->dir_fd));
    const int matches = X509_check_private_key(c->cert, c->key);
    ERR_clear_error();
    if (matches != 1) ISO_FAIL(ISO_E_AUTH, "%s is not for the key %s", ISO_FILE_CERT, ISO_FILE_KEY);
    ISO_TRY(iso_node_cert_check_ca(c->ca));
    ISO_TRY(iso_node_crl_check(c->crl, c->ca));
    /* Without the list: a revoked node may still look at itself; its peers refuse it. */
    ISO_TRY(iso_node_cert_check(c->cert, c->ca, NULL));
    ISO_TRY(iso_node_cert_name(name, c->cert));
    if (strcmp(name, node->name) != 0)
        ISO_FAIL(ISO_E_AUTH, "the certificate is for node %s, this is %s", name, node->name);
    return ISO_OK;
}

static enum iso_err load_all(struct iso_node_creds *c, const struct iso_node *node)
{
    *c = (struct iso_node_creds){0};
    enum iso_err err = iso_node_key_load(&c->key, node->dir_fd, ISO_FILE_KEY);
    if (err == ISO_OK) err = load_certs(c, node);
    if (err != ISO_OK) iso_node_creds_release(c);
    return err;
}

/* Good files can still be the wrong way: back to an older list, or to a certificate that is over.
 */
static enum iso_err check_progress(const struct iso_node_creds *now,
                                   const struct iso_node_creds *next)
{
    if (now->cert == NULL) return ISO_OK;
    const int64_t clock = iso_clock_wall_s();
    if (iso_node_cert_expires(next->cert) < clock && iso_node_cert_expires(now->cert) >= clock)
        ISO_FAIL(ISO_E_AUTH, "the new certificate has expired already");
    if (X509_cmp(now->ca, next->ca) == 0 &&
        iso_node_crl_number(next->crl) < iso_node_crl_number(now->crl))
        ISO_FAIL(ISO_E_AUTH, "the new revocation list is number %lld, the loaded one %lld",
                 (long long)iso_node_crl_number(next->crl),
                 (long long)iso_node_crl_number(now->crl));
    return ISO_OK;
}

/* Takes next over. Caller holds the lock. */
static enum iso_err adopt(struct iso_node *node, struct iso_node_creds *next)
{
    uint8_t spki[ISO_NODE_SPKI_LEN];
    ISO_TRY(iso_node_key_spki(spki, next->key));
    memcpy(node->spki, spki, sizeof spki);
    iso_sha256(&node->pin, spki, sizeof spki);
    iso_node_creds_release(&node->creds);
    node->creds = *next;
    *next = (struct iso_node_creds){0};
    free(node->problem);
    node->problem = NULL;
    return ISO_OK;
}

/* Caller holds the lock. */
static void reload(struct iso_node *node)
{
    struct iso_digest seen = {{0}};
    struct iso_node_creds next = {0};
    enum iso_err err = digest_files(&seen, node->dir_fd);
    if (err == ISO_OK && memcmp(&seen, &node->loaded, sizeof seen) == 0) return;
    if (err == ISO_OK) err = load_all(&next, node);
    if (err == ISO_OK) err = check_progress(&node->creds, &next);
    if (err == ISO_OK) err = adopt(node, &next);
    iso_node_creds_release(&next);
    if (err == ISO_OK) {
        node->loaded = seen;
        return;
    }
    if (memcmp(&seen, &node->warned, sizeof seen) == 0) return;
    node->warned = seen;
    if (node->creds.cert != NULL) {
        iso_log(ISO_LOG_WARN, "node", "changed key files refused, the last good ones stay: %s",
                iso_err_message());
        return;
    }
    free(node->problem);
    node->problem = iso_xstrdup(iso_err_message());
}

/* The key alone must load; everything else may come later. */
static enum iso_err load_key_only(struct iso_node *node)
{
    struct iso_node_creds c = {0};
    ISO_TRY(iso_node_key_load(&c.key, node->dir_fd, ISO_FILE_KEY));
    const enum iso_err err = adopt(node, &c);
    iso_node_creds_release(&c);
    return err;
}

static enum iso_err read_name(struct iso_node *node)
{
    json_t *obj;
    const char *text;
    const char *const keys[] = {"format", "node", "created_s"};
    ISO_TRY(iso_node_store_read_json(node->dir_fd, ISO_FILE_NODE, &obj));
    enum iso_err err = iso_json_only_keys(obj, keys, ISO_COUNT(keys), ISO_FILE_NODE);
    if (err == ISO_OK) err = iso_json_get_string(&text, obj, "format");
    if (err == ISO_OK && strcmp(text, FORMAT) != 0)
        err = iso_err_raise(ISO_E_FORMAT, __FILE__, __LINE__, "%s: format \"%s\"", ISO_FILE_NODE,
                            text);
    if (err == ISO_OK) err = iso_json_get_string(&text, obj, "node");
    if (err == ISO_OK) err = iso_node_check_name(text);
    if (err == ISO_OK) memcpy(node->name, text, strlen(text) + 1);
    json_decref(obj);
    return err;
}

static enum iso_err read_ledger(uint8_t id[ISO_NODE_LEDGER_ID_LEN], int dir_fd, const char *file)
{
    struct iso_buf b;
    iso_buf_init(&b, 2 * ISO_NODE_LEDGER_ID_LEN + 1);
    enum iso_err err = iso_node_store_read(dir_fd, file, &b);
    if (err == ISO_OK && b.len != 2 * ISO_NODE_LEDGER_ID_LEN)
        err = iso_err_raise(ISO_E_FORMAT, __FILE__, __LINE__, "%s: %zu characters", file, b.len);
    if (err == ISO_OK) err = iso_hex_decode(id, ISO_NODE_LEDGER_ID_LEN, (const char *)b.data);
    iso_buf_deinit(&b);
    return err;
}

static enum iso_err write_ledger(int dir_fd, const char *file, const uint8_t *id)
{
    char hex[2 * ISO_NODE_LEDGER_ID_LEN + 1];
    iso_node_hex(hex, id, ISO_NODE_LEDGER_ID_LEN);
    return iso_node_store_write(dir_fd, file, hex, sizeof hex - 1);
}

static enum iso_err random_bytes(uint8_t *out, size_t len)
{
    if (RAND_bytes(out, (int)len) != 1) ISO_FAIL(ISO_E_IO, "no random numbers");
    return ISO_OK;
}

enum iso_err iso_node_open(struct iso_node **out, const char *dir)
{
    struct iso_node *node = iso_xalloc(1, sizeof *node);
    node->dir_fd = -1;
    node->dir = iso_xstrdup(dir);
    enum iso_err err = ISO_OK;
    if (pthread_mutex_init(&node->lock, NULL) != 0) {
        free(node->dir);
        free(node);
        ISO_FAIL(ISO_E_NOMEM, "no lock for the node");
    }
    ISO_TRY_OUT(iso_node_store_open_dir(&node->dir_fd, AT_FDCWD, dir, false));
    if (!iso_node_store_has(node->dir_fd, ISO_FILE_NODE))
        ISO_FAIL_OUT(ISO_E_IO, "%s has no node: make one with isobit keys init", dir);
    ISO_TRY_OUT(read_name(node));
    ISO_TRY_OUT(read_ledger(node->ledger_id, node->dir_fd, ISO_FILE_LEDGER));
    ISO_TRY_OUT(load_key_only(node));
    node->is_ca = iso_node_store_has(node->dir_fd, ISO_FILE_CA_KEY);
    reload(node);
    *out = node;
    return ISO_OK;
out:
    iso_node_free(node);
    return err;
}

void iso_node_free(struct iso_node *node)
{
    if (node == NULL) return;
    if (node->dir_fd >= 0) close(node->dir_fd);
    iso_node_creds_release(&node->creds);
    pthread_mutex_destroy(&node->lock);
    free(node->problem);
    free(node->dir);
    free(node);
}

const char *iso_node_name(const struct iso_node *node)
{
    return node->name;
}

const char *iso_node_dir(const struct iso_node *node)
{
    return node->dir;
}

bool iso_node_is_ca(const struct iso_node *node)
{
    return node->is_ca;
}

void iso_node_identity(struct iso_node *node,
                       struct iso_digest *pin,
                       uint8_t spki[ISO_NODE_SPKI_LEN])
{
    pthread_mutex_lock(&node->lock);
    reload(node);
    *pin = node->pin;
    memcpy(spki, node->spki, sizeof node->spki);
    pthread_mutex_unlock(&node->lock);
}

enum iso_err iso_node_creds_get(struct iso_node *node, struct iso_node_creds *out)
{
    pthread_mutex_lock(&node->lock);
    reload(node);
    enum iso_err err = ISO_OK;
    if (node->creds.cert == NULL) {
        err = iso_err_raise(ISO_E_AUTH, __FILE__, __LINE__, "%s",
                            node->problem ? node->problem : "the node has no certificate");
    } else {
        *out = node->creds;
        EVP_PKEY_up_ref(out->key);
        X509_up_ref(out->cert);
        X509_up_ref(out->ca);
        X509_CRL_up_ref(out->crl);
    }
    pthread_mutex_unlock(&node->lock);
    return err;
}

enum iso_err iso_node_ready(struct iso_node *node)
{
    struct iso_node_creds c = {0};
    ISO_TRY(iso_node_creds_get(node, &c));
    iso_node_creds_release(&c);
    return ISO_OK;
}

int64_t iso_node_days_left(struct iso_node *node)
{
    struct iso_node_creds c = {0};
    if (iso_node_creds_get(node, &c) != ISO_OK) return INT64_MIN;
    const int64_t left = iso_node_cert_expires(c.cert) - iso_clock_wall_s();
    iso_node_creds_release(&c);
    /* Down, not towards zero: -1 from the first second after the end. */
    return left >= 0 ? left / SECONDS_PER_DAY : -((-left + SECONDS_PER_DAY - 1) / SECONDS_PER_DAY);
}

enum iso_err iso_node_sign(struct iso_node *node,
                           uint8_t sig[ISO_NODE_SIG_MAX],
                           size_t *sig_len,
                           const struct iso_digest *digest)
{
    pthread_mutex_lock(&node->lock);
    EVP_PKEY *key = node->creds.key;
    EVP_PKEY_up_ref(key);
    pthread_mutex_unlock(&node->lock);
    const enum iso_err err = iso_node_key_sign(key, sig, sig_len, digest);
    EVP_PKEY_free(key);
    return err;
}

/* Ledger ---------------------------------------------------------------- */

void iso_node_ledger_id(struct iso_node *node, uint8_t out[ISO_NODE_LEDGER_ID_LEN])
{
    pthread_mutex_lock(&node->lock);
    memcpy(out, node->ledger_id, sizeof node->ledger_id);
    pthread_mutex_unlock(&node->lock);
}

bool iso_node_ledger_claimed(struct iso_node *node)
{
    return iso_node_store_has(node->dir_fd, ISO_FILE_CLAIMED);
}

enum iso_err iso_node_ledger_claim(struct iso_node *node)
{
    if (iso_node_ledger_claimed(node)) return ISO_OK;
    uint8_t id[ISO_NODE_LEDGER_ID_LEN];
    int lock;
    iso_node_ledger_id(node, id);
    ISO_TRY(iso_node_store_lock(&lock, node->dir_fd));
    const enum iso_err err = write_ledger(node->dir_fd, ISO_FILE_CLAIMED, id);
    close(lock);
    return err;
}

enum iso_err iso_node_ledger_renew(struct iso_node *node)
{
    uint8_t id[ISO_NODE_LEDGER_ID_LEN];
    int lock;
    ISO_TRY(random_bytes(id, sizeof id));
    ISO_TRY(iso_node_store_lock(&lock, node->dir_fd));
    /* The new id first: a crash in between leaves a claimed id without a ledger, which is closed.
     */
    enum iso_err err = write_ledger(node->dir_fd, ISO_FILE_LEDGER, id);
    if (err == ISO_OK) err = iso_node_store_remove(node->dir_fd, ISO_FILE_CLAIMED);
    close(lock);
    if (err != ISO_OK) return err;
    pthread_mutex_lock(&node->lock);
    memcpy(node->ledger_id, id, sizeof id);
    pthread_mutex_unlock(&node->lock);
    return ISO_OK;
}

/* Making a node --------------------------------------------------------- */

static enum iso_err write_key(int dir_fd, const char *file, EVP_PKEY *key)
{
    struct iso_buf pem;
    iso_buf_init(&pem, ISO_NODE_PEM_MAX);
    enum iso_err err = iso_node_key_to_pem(&pem, key);
    if (err == ISO_OK) err = iso_node_store_write(dir_fd, file, pem.data, pem.len);
    iso_node_wipe_buf(&pem);
    return err;
}

static enum iso_err write_cert(int dir_fd, const char *file, X509 *cert)
{
    struct iso_buf pem;
    iso_buf_init(&pem, ISO_NODE_PEM_MAX);
    enum iso_err err = iso_node_cert_to_pem(&pem, cert);
    if (err == ISO_OK) err = iso_node_store_write(dir_fd, file, pem.data, pem.len);
    iso_buf_deinit(&pem);
    return err;
}

static enum iso_err
issue_own(int dir_fd, const char *name, EVP_PKEY *key, const struct iso_node_opts *opts)
{
    X509 *cert = NULL;
    ISO_TRY(iso_node_ca_issue(&cert, dir_fd, name, key, opts));
    const enum iso_err err = write_cert(dir_fd, ISO_FILE_CERT, cert);
    X509_free(cert);
    return err;
}

/* node.json is written last: a directory without it is not a node, and init may run again. */
static enum iso_err init_files(int dir_fd, const char *name, const struct iso_node_opts *opts)
{
    EVP_PKEY *key = NULL;
    json_t *obj = NULL;
    uint8_t id[ISO_NODE_LEDGER_ID_LEN];
    enum iso_err err = ISO_OK;
    if (iso_node_store_has(dir_fd, ISO_FILE_NODE) || iso_node_store_has(dir_fd, ISO_FILE_CA_KEY))
        ISO_FAIL(ISO_E_REFUSED, "there is a node in this directory already");
    ISO_TRY_OUT(iso_node_key_new(&key));
    ISO_TRY_OUT(write_key(dir_fd, ISO_FILE_KEY, key));
    ISO_TRY_OUT(random_bytes(id, sizeof id));
    ISO_TRY_OUT(write_ledger(dir_fd, ISO_FILE_LEDGER, id));
    if (opts && opts->ca) {
        ISO_TRY_OUT(iso_node_ca_init(dir_fd, name));
        ISO_TRY_OUT(issue_own(dir_fd, name, key, opts));
    }
    obj = json_pack("{s:s, s:s, s:I}", "format", FORMAT, "node", name, "created_s",
                    (json_int_t)iso_clock_wall_s());
    if (obj == NULL) ISO_FAIL_OUT(ISO_E_NOMEM, "no memory for %s", ISO_FILE_NODE);
    err = iso_node_store_write_json(dir_fd, ISO_FILE_NODE, obj);
out:
    json_decref(obj);
    EVP_PKEY_free(key);
    return err;
}

enum iso_err iso_node_init(const char *dir, const char *name, const struct iso_node_opts *opts)
{
    int fd;
    int lock;
    ISO_TRY(iso_node_check_name(name));
    ISO_TRY(iso_node_store_open_dir(&fd, AT_FDCWD, dir, true));
    enum iso_err err = iso_node_store_lock(&lock, fd);
    if (err == ISO_OK) {
        err = init_files(fd, name, opts);
        close(lock);
    }
    close(fd);
    return err;
}

/* Rotation -------------------------------------------------------------- */

/* Caller holds the directory's lock. */
static enum iso_err
rotate_here(struct iso_node *node, bool new_key, const struct iso_node_opts *opts)
{
    EVP_PKEY *key = NULL;
    ISO_TRY(new_key ? iso_node_key_new(&key) : iso_node_key_load(&key, node->dir_fd, ISO_FILE_KEY));
    /* Between the two writes key and certificate do not match; running processes keep the old pair,
     * and `rotate` run again completes it. */
    enum iso_err err = new_key ? write_key(node->dir_fd, ISO_FILE_KEY, key) : ISO_OK;
    if (err == ISO_OK) err = issue_own(node->dir_fd, node->name, key, opts);
    EVP_PKEY_free(key);
    return err;
}

/* Caller holds the directory's lock. */
static enum iso_err make_next_key(struct iso_node *node)
{
    EVP_PKEY *key = NULL;
    ISO_TRY(iso_node_key_new(&key));
    const enum iso_err err = write_key(node->dir_fd, ISO_FILE_NEXT, key);
    EVP_PKEY_free(key);
    return err;
}

enum iso_err iso_node_rotate(struct iso_node *node,
                             struct iso_buf *out,
                             bool new_key,
                             const struct iso_node_opts *opts)
{
    int lock;
    ISO_TRY(iso_node_store_lock(&lock, node->dir_fd));
    enum iso_err err = ISO_OK;
    if (node->is_ca)
        err = rotate_here(node, new_key, opts);
    else if (new_key)
        err = make_next_key(node);
    close(lock);
    if (err != ISO_OK) return err;
    if (node->is_ca) return iso_node_ready(node);
    return iso_node_request(node, out);
}

/* A local mark as well as the list: the mark counts at once, here, even without the CA. */
static enum iso_err revoke_locked(struct iso_node *node, const char *what)
{
    size_t certs = 0;
    if (node->is_ca) ISO_TRY(iso_node_ca_revoke(node->dir_fd, what, &certs));
    if (!iso_node_peer_has(node, what)) {
        if (certs == 0)
            ISO_FAIL(ISO_E_ARG, "\"%s\" is neither an enrolled node nor an issued serial number",
                     what);
        return ISO_OK;
    }
    struct iso_peer peer;
    ISO_TRY(iso_node_peer_by_name(node, &peer, what));
    peer.revoked = true;
    const enum iso_err err = iso_node_peer_write(node, &peer);
    iso_peer_wipe(&peer);
    return err;
}

enum iso_err iso_node_revoke(struct iso_node *node, const char *name_or_serial)
{
    int lock;
    ISO_TRY(iso_node_store_lock(&lock, node->dir_fd));
    const enum iso_err err = revoke_locked(node, name_or_serial);
    close(lock);
    return err;
}
