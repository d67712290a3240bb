/* SPDX-License-Identifier: MIT
 * node_internal.h - what the files of src/node share and nobody else needs. */
#ifndef ISO_NODE_NODE_INTERNAL_H
#define ISO_NODE_NODE_INTERNAL_H

#include <jansson.h>
#include <openssl/evp.h>
#include <openssl/x509.h>
#include <pthread.h>

#include "node/creds.h"
#include "node/node.h"

#define ISO_NODE_FILE_MAX (1u << 20) /* bytes; ca.issued.json of thousands of certificates */
#define ISO_NODE_PEM_MAX 8192        /* characters of one certificate or CSR inside a document */
#define ISO_NODE_SEALED_LEN 48       /* pair key and GCM tag */
#define ISO_NODE_SKEW_S 3600         /* certificates begin so much earlier: home clocks differ */

#define ISO_FILE_NODE "node.json"
#define ISO_FILE_KEY "node.key.pem"
#define ISO_FILE_NEXT "node.next.pem"
#define ISO_FILE_CERT "node.cert.pem"
#define ISO_FILE_CA "ca.cert.pem"
#define ISO_FILE_CA_KEY "ca.key.pem"
#define ISO_FILE_CRL "ca.crl.pem"
#define ISO_FILE_ISSUED "ca.issued.json"
#define ISO_FILE_REQUEST "request.json"
#define ISO_FILE_LEDGER "ledger.id"
#define ISO_FILE_CLAIMED "ledger.claimed"
#define ISO_DIR_PEERS "peers"

struct iso_node {
    char *dir;
    int dir_fd;
    char name[ISO_NODE_NAME_MAX];
    bool is_ca;
    pthread_mutex_t
        lock; /* guards everything below; never held while the directory's lock is taken */
    struct iso_node_creds creds; /* key is never NULL after open; the rest may be */
    uint8_t spki[ISO_NODE_SPKI_LEN];
    struct iso_digest pin;
    struct iso_digest loaded; /* digest of the files behind creds */
    struct iso_digest warned; /* digest of the files that were last refused */
    char *problem;            /* why the certificates are not usable, or NULL */
    uint8_t ledger_id[ISO_NODE_LEDGER_ID_LEN];
};

/* node_store.c: files of a directory ------------------------------------ */

/* Opens (create: makes first) a directory of mode 0700 that is no link and is ours. */
enum iso_err iso_node_store_open_dir(int *fd, int at, const char *path, bool create) ISO_NODISCARD;

/* Exclusive lock between processes and threads; waits 5 s at most. Unlock: close(*lock_fd). */
enum iso_err iso_node_store_lock(int *lock_fd, int dir_fd) ISO_NODISCARD;
bool iso_node_store_has(int dir_fd, const char *name);
/* Appends the content. Errors: ISO_E_IO missing; ISO_E_AUTH link, foreign owner or open mode. */
enum iso_err iso_node_store_read(int dir_fd, const char *name, struct iso_buf *out) ISO_NODISCARD;
/* Replaces the file through a partial name, fsync and rename. */
enum iso_err
iso_node_store_write(int dir_fd, const char *name, const void *data, size_t len) ISO_NODISCARD;
enum iso_err iso_node_store_rename(int dir_fd, const char *from, const char *to) ISO_NODISCARD;
enum iso_err iso_node_store_remove(int dir_fd, const char *name) ISO_NODISCARD;
enum iso_err iso_node_store_read_json(int dir_fd, const char *name, json_t **out) ISO_NODISCARD;
enum iso_err
iso_node_store_write_json(int dir_fd, const char *name, const json_t *value) ISO_NODISCARD;
/* iso_buf_deinit() that wipes first. */
void iso_node_wipe_buf(struct iso_buf *b);
/* Lower-case hex of len bytes, NUL-terminated: out [2 * len + 1]. */
void iso_node_hex(char *out, const uint8_t *bytes, size_t len);
/* A hex string member of exactly len bytes. */
enum iso_err
iso_node_json_hex(uint8_t *out, size_t len, const json_t *obj, const char *key) ISO_NODISCARD;
/* obj[key] = hex of bytes. */
enum iso_err
iso_node_json_set_hex(json_t *obj, const char *key, const uint8_t *bytes, size_t len) ISO_NODISCARD;

/* node_x509.c: keys, certificates, CSRs, revocation lists --------------- */

struct iso_cert_args {
    const char *name;  /* node name; CN, and SAN URI unless ca */
    EVP_PKEY *subject; /* public key */
    X509 *issuer;      /* NULL: self-signed */
    EVP_PKEY *signer;  /* private key of the issuer */
    bool ca;
    int days;
    int64_t starts_in_s; /* 0: ISO_NODE_SKEW_S ago */
};

/* Text of the oldest queued OpenSSL error, or "no detail"; clears the queue. */
const char *iso_node_ssl_error(char buf[256]);
enum iso_err iso_node_key_new(EVP_PKEY **out) ISO_NODISCARD;
enum iso_err iso_node_key_to_pem(struct iso_buf *out, EVP_PKEY *key) ISO_NODISCARD;
enum iso_err iso_node_key_from_pem(EVP_PKEY **out, const struct iso_buf *pem) ISO_NODISCARD;
enum iso_err iso_node_key_load(EVP_PKEY **out, int dir_fd, const char *name) ISO_NODISCARD;
enum iso_err iso_node_key_spki(uint8_t spki[ISO_NODE_SPKI_LEN], EVP_PKEY *key) ISO_NODISCARD;
enum iso_err iso_node_key_from_spki(EVP_PKEY **out, const uint8_t *spki, size_t len) ISO_NODISCARD;
enum iso_err iso_node_cert_make(X509 **out, const struct iso_cert_args *args) ISO_NODISCARD;
enum iso_err iso_node_cert_to_pem(struct iso_buf *out, X509 *cert) ISO_NODISCARD;
enum iso_err
iso_node_cert_from_pem(X509 **out, const char *pem, size_t len, const char *what) ISO_NODISCARD;
enum iso_err iso_node_cert_load(X509 **out, int dir_fd, const char *name) ISO_NODISCARD;
/* Chain, purpose, revocation; not the dates (a wrong clock must not stop an enrolment). */
enum iso_err iso_node_cert_check(X509 *cert, X509 *ca, X509_CRL *crl) ISO_NODISCARD;
/* ISO_E_AUTH unless cert is a self-signed CA certificate that may sign lists and certificates. */
enum iso_err iso_node_cert_check_ca(X509 *ca) ISO_NODISCARD;
/* notAfter in seconds since 1970. */
int64_t iso_node_cert_expires(const X509 *cert);
enum iso_err iso_node_cert_serial(char out[64], const X509 *cert) ISO_NODISCARD;
enum iso_err iso_node_csr_make(struct iso_buf *pem, const char *name, EVP_PKEY *key) ISO_NODISCARD;
/* Checks the self-signature and that the subject is CN=name; *key is owned by the caller. */
enum iso_err iso_node_csr_read(EVP_PKEY **key, const char *pem, const char *name) ISO_NODISCARD;
enum iso_err iso_node_crl_make(struct iso_buf *pem,
                               X509 *ca,
                               EVP_PKEY *ca_key,
                               int64_t number,
                               const char *const *serials,
                               size_t n) ISO_NODISCARD;
enum iso_err iso_node_crl_from_pem(X509_CRL **out, const char *pem, size_t len) ISO_NODISCARD;
/* ISO_E_AUTH unless the CA signed it. */
enum iso_err iso_node_crl_check(X509_CRL *crl, X509 *ca) ISO_NODISCARD;
/* CRL number, -1 without one. */
int64_t iso_node_crl_number(X509_CRL *crl);

/* node_seal.c: signatures and the encrypted pair key -------------------- */

enum iso_err iso_node_key_sign(EVP_PKEY *key,
                               uint8_t sig[ISO_NODE_SIG_MAX],
                               size_t *sig_len,
                               const struct iso_digest *digest) ISO_NODISCARD;
/* Sets doc["signature"] over the canonical text of the other members. */
enum iso_err iso_node_doc_sign(json_t *doc, EVP_PKEY *key) ISO_NODISCARD;
enum iso_err iso_node_doc_verify(const json_t *doc,
                                 const uint8_t spki[ISO_NODE_SPKI_LEN]) ISO_NODISCARD;
/* Encrypts the pair key to the holder of spki: ephemeral ECDH, HKDF-SHA-256, AES-256-GCM. */
enum iso_err iso_node_seal(uint8_t ephemeral[ISO_NODE_SPKI_LEN],
                           uint8_t sealed[ISO_NODE_SEALED_LEN],
                           const uint8_t pair_key[ISO_NODE_PAIR_KEY_LEN],
                           const uint8_t spki[ISO_NODE_SPKI_LEN]) ISO_NODISCARD;
enum iso_err iso_node_unseal(uint8_t pair_key[ISO_NODE_PAIR_KEY_LEN],
                             EVP_PKEY *key,
                             const uint8_t ephemeral[ISO_NODE_SPKI_LEN],
                             const uint8_t sealed[ISO_NODE_SEALED_LEN]) ISO_NODISCARD;

/* node_peer.c ----------------------------------------------------------- */

bool iso_node_peer_has(struct iso_node *node, const char *name);
enum iso_err iso_node_peer_write(struct iso_node *node, const struct iso_peer *peer) ISO_NODISCARD;
/* May this enrolment stand? A known name keeps key, ledger and (fresh_pair_key: its pair key is
 * copied into peer; else: the pair key must be the same too) unless replace. */
enum iso_err iso_node_peer_admit(struct iso_node *node,
                                 struct iso_peer *peer,
                                 bool fresh_pair_key,
                                 const struct iso_node_opts *opts) ISO_NODISCARD;

/* node_ca.c ------------------------------------------------------------- */

/* Makes the CA of a new node and its first, empty revocation list. */
enum iso_err iso_node_ca_init(int dir_fd, const char *name) ISO_NODISCARD;
/* Issues and records a certificate. Revokes earlier ones of the name that have another key. */
enum iso_err iso_node_ca_issue(X509 **out,
                               int dir_fd,
                               const char *name,
                               EVP_PKEY *subject,
                               const struct iso_node_opts *opts) ISO_NODISCARD;
/* Revokes by name or serial and rewrites the list; *n is the number of certificates it hit. */
enum iso_err iso_node_ca_revoke(int dir_fd, const char *name_or_serial, size_t *n) ISO_NODISCARD;

/* node_crl.c ------------------------------------------------------------ */

enum iso_err iso_node_crl_load(X509_CRL **out, int dir_fd) ISO_NODISCARD;
/* Installs a list that the CA signed unless the one here is as new. must: an older one than that is
 * ISO_E_REFUSED. Caller holds the directory's lock. */
enum iso_err
iso_node_crl_install(int dir_fd, X509_CRL *crl, const char *pem, bool must) ISO_NODISCARD;
/* Takes in a list as a document of its own, under the directory's lock. */
enum iso_err iso_node_crl_enroll(struct iso_node *node, const char *pem, size_t len) ISO_NODISCARD;

#endif
