/* SPDX-License-Identifier: MIT
 * node.h - this machine's identity, its CA, and the nodes it is enrolled with.
 *
 * A node directory (mode 0700) holds
 *   node.json        name; written once
 *   node.key.pem     P-256 private key, made here, never leaves
 *   node.next.pem    the next private key while `rotate --new-key` waits for its certificate
 *   node.cert.pem    certificate of the key: SAN URI isobit:<name>
 *   ca.cert.pem      the CA that signs every node of the family
 *   ca.crl.pem       its revocation list
 *   ca.key.pem       on the CA machine only
 *   ca.issued.json   on the CA machine only: what was issued, for revoke
 *   request.json     the last request document, so that a grant can be matched to it
 *   ledger.id        identity of this node's hand-off ledger
 *   ledger.claimed   exists once a ledger with that identity was used
 *   peers/<name>.json  one enrolled node each, with the pair key
 * All files are 0600, opened without following links and refused when group or others may touch
 * them. Changes are made under a lock of the directory, by partial name, fsync and rename.
 *
 * Enrolment needs two documents: B's request (CSR, ledger id, signed by B's key) goes to A; A's
 * grant (certificate when A is the CA, CA certificate, revocation list, A's public key and ledger
 * id, and the pair key encrypted to B's key) goes back. docs/keys.md tells it step by step.
 */
#ifndef ISO_NODE_NODE_H
#define ISO_NODE_NODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/digest.h"
#include "base/err.h"

#define ISO_NODE_NAME_MAX 64      /* bytes with the NUL: [a-z0-9][a-z0-9._-]* */
#define ISO_NODE_PAIR_KEY_LEN 32  /* bytes */
#define ISO_NODE_LEDGER_ID_LEN 16 /* random bytes */
#define ISO_NODE_SPKI_LEN 91 /* bytes: DER of a P-256 SubjectPublicKeyInfo, uncompressed point */
#define ISO_NODE_SIG_MAX 72  /* bytes: DER of an ECDSA P-256 signature, RFC 3279 */
#define ISO_NODE_DOC_MAX (64u << 10) /* bytes of a request, grant or revocation list */
#define ISO_NODE_PEERS_MAX 256       /* enrolled nodes; each lookup reads small files */
#define ISO_NODE_DAYS 730            /* default life of a node certificate */
#define ISO_NODE_CA_DAYS 3650        /* default life of the CA */
#define ISO_NODE_SAN_PREFIX "isobit:"

/* Thread: any; the loaded certificates are guarded by a lock inside. */
struct iso_node;

/* One enrolled node. A plain copy: wipe with iso_peer_wipe() when done, it holds the pair key. */
struct iso_peer {
    char name[ISO_NODE_NAME_MAX];
    struct iso_digest pin;                     /* SHA-256 of spki */
    uint8_t spki[ISO_NODE_SPKI_LEN];           /* public key, for receipts */
    uint8_t pair_key[ISO_NODE_PAIR_KEY_LEN];   /* the same on both sides */
    uint8_t ledger_id[ISO_NODE_LEDGER_ID_LEN]; /* the peer's ledger */
    int64_t enrolled_s;                        /* wall clock, s since 1970 */
    int64_t cert_expires_s;                    /* of its certificate as seen at enrolment */
    bool revoked;                              /* by `isobit keys revoke` on this machine */
};

/* Zero is the default of each member. */
struct iso_node_opts {
    bool ca;                /* init: make a CA here and a certificate for this node */
    int days;               /* life of the node certificate; negative: already expired, for
                               tests; 0: ISO_NODE_DAYS */
    int64_t starts_in_s;    /* validity begins so many seconds from now; for tests */
    bool replace;           /* accept another key or ledger under a name that is enrolled */
    const char *expect_pin; /* at least 16 hex digits that the other's pin must begin with */
};

/* Default directory: $XDG_CONFIG_HOME/isobit, else $HOME/.isobit. Appends it to out.
 * Errors: ISO_E_ARG neither variable is set. */
enum iso_err iso_node_default_dir(struct iso_buf *out) ISO_NODISCARD;

/* ISO_E_ARG unless name is a node name. */
enum iso_err iso_node_check_name(const char *name) ISO_NODISCARD;

/* Makes the directory (its parents must exist), key, ledger id and, with opts->ca, CA and
 * certificate. opts may be NULL.
 * Errors: ISO_E_ARG name; ISO_E_REFUSED the directory already has a node; ISO_E_AUTH the directory
 * is a link or others may enter it; ISO_E_IO. */
enum iso_err
iso_node_init(const char *dir, const char *name, const struct iso_node_opts *opts) ISO_NODISCARD;

/* Opens a node directory; certificates may still be missing (iso_node_ready()).
 * Owner:  *out is owned by the caller, free with iso_node_free().
 * Errors: ISO_E_IO missing; ISO_E_AUTH permissions or links; ISO_E_FORMAT. Certificates that cannot
 *         be used are not an error here but of iso_node_ready(). */
enum iso_err iso_node_open(struct iso_node **out, const char *dir) ISO_NODISCARD;
void iso_node_free(struct iso_node *node);

/* Borrowed, valid for the node's life. */
const char *iso_node_name(const struct iso_node *node);
const char *iso_node_dir(const struct iso_node *node);

/* Pin and public key of this node as loaded now. Thread: any. */
void iso_node_identity(struct iso_node *node,
                       struct iso_digest *pin,
                       uint8_t spki[ISO_NODE_SPKI_LEN]);

/* ISO_E_AUTH with what is missing until key, certificate, CA and revocation list are all here. */
enum iso_err iso_node_ready(struct iso_node *node) ISO_NODISCARD;

/* True when the CA key is here. */
bool iso_node_is_ca(const struct iso_node *node);

/* Whole days until this node's certificate expires, negative when it has; INT64_MIN without one. */
int64_t iso_node_days_left(struct iso_node *node);

/* Enrolment ------------------------------------------------------------- */

/* Appends this node's request document to out. It stays the same until key, certificate or ledger
 * change. Thread: as all below, takes the directory's lock. */
enum iso_err iso_node_request(struct iso_node *node, struct iso_buf *out) ISO_NODISCARD;

/* CA machine: issues a certificate for a request, enrols its node and appends the grant to out.
 * who (may be NULL) gets the node's name.
 *
 * A second request of the same key and ledger is a renewal: the pair key stays.
 * Errors: ISO_E_AUTH no CA key here, signature wrong, expect_pin differs; ISO_E_FORMAT;
 *         ISO_E_REFUSED another key or ledger is enrolled under the name and opts->replace is not
 *         set, or the name is this node's own. */
enum iso_err iso_node_issue(struct iso_node *node,
                            struct iso_buf *out,
                            char who[ISO_NODE_NAME_MAX],
                            const char *request,
                            size_t len,
                            const struct iso_node_opts *opts) ISO_NODISCARD;

/* Takes in a document and appends the answer, if there is one, to out:
 *   grant    installs certificate, CA and revocation list and enrols the granting node; no answer;
 *   request  of a node that has a certificate of our CA: enrols it, answers with a grant;
 *   revocation list (PEM): installed when the CA signed it and it is newer; no answer.
 * who (may be NULL) gets the name of the enrolled node, "" for a revocation list.
 * Errors: as iso_node_issue(); ISO_E_REFUSED a grant for another request or from another CA. */
enum iso_err iso_node_enroll(struct iso_node *node,
                             struct iso_buf *out,
                             char who[ISO_NODE_NAME_MAX],
                             const char *doc,
                             size_t len,
                             const struct iso_node_opts *opts) ISO_NODISCARD;

/* Marks the peer revoked here; on the CA machine also puts all its certificates, or the one
 * with that serial number (hex), on the revocation list.
 * Errors: ISO_E_ARG neither a peer nor an issued serial. */
enum iso_err iso_node_revoke(struct iso_node *node, const char *name_or_serial) ISO_NODISCARD;

/* New certificate (new_key false: same key, pins stay valid) or new key. On the CA machine it takes
 * effect at once; elsewhere the request for the CA is appended to out and the old key and
 * certificate stay in use until the grant is enrolled. With a new key every peer must enrol this
 * node anew. */
enum iso_err iso_node_rotate(struct iso_node *node,
                             struct iso_buf *out,
                             bool new_key,
                             const struct iso_node_opts *opts) ISO_NODISCARD;

/* Appends the CA's revocation list (PEM) to out, to carry it to the other nodes. */
enum iso_err iso_node_crl(struct iso_node *node, struct iso_buf *out) ISO_NODISCARD;

/* Enrols two open nodes with each other, a with a CA: request, issue, enroll in one call. */
enum iso_err iso_node_pair(struct iso_node *a,
                           struct iso_node *b,
                           const struct iso_node_opts *opts) ISO_NODISCARD;

/* Peers ----------------------------------------------------------------- */
/* Read from disk each time: a revocation by another process counts at once, and a damaged record is
 * an error, never an older record. */

/* Errors: ISO_E_AUTH no such peer; ISO_E_FORMAT, ISO_E_IO the record cannot be read. */
enum iso_err
iso_node_peer_by_name(struct iso_node *node, struct iso_peer *out, const char *name) ISO_NODISCARD;
enum iso_err iso_node_peer_by_pin(struct iso_node *node,
                                  struct iso_peer *out,
                                  const struct iso_digest *pin) ISO_NODISCARD;

/* All peers sorted by name. Owner: *out [*n] is the caller's, free with iso_node_peers_free(). */
enum iso_err iso_node_peers(struct iso_node *node, struct iso_peer **out, size_t *n) ISO_NODISCARD;
void iso_node_peers_free(struct iso_peer *peers, size_t n);
void iso_peer_wipe(struct iso_peer *peer);

/* Signatures ------------------------------------------------------------ */

/* ECDSA P-256 of a SHA-256 digest with this node's key, DER. The digest must be of text that names
 * its format, so that a signature for one purpose cannot serve another.
 * *sig_len: bytes written, <= ISO_NODE_SIG_MAX. */
enum iso_err iso_node_sign(struct iso_node *node,
                           uint8_t sig[ISO_NODE_SIG_MAX],
                           size_t *sig_len,
                           const struct iso_digest *digest) ISO_NODISCARD;

/* Checks such a signature against a public key; needs no node, so a third party can do it.
 * Errors: ISO_E_FORMAT spki is no P-256 key; ISO_E_AUTH the signature is wrong. */
enum iso_err iso_node_verify(const uint8_t *spki,
                             size_t spki_len,
                             const struct iso_digest *digest,
                             const uint8_t *sig,
                             size_t sig_len) ISO_NODISCARD;

/* Ledger identity ------------------------------------------------------- */
/* The peers know this id from enrolment. Order for the ledger: open or create the file with the id
 * inside, durably; iso_node_ledger_claim(); only then use it. A missing file with claimed true
 * means that the ledger was lost (LEDGER_MISSING): closed until iso_node_ledger_renew() and a new
 * enrolment with each peer. Keep the generations of a peer by (pin, ledger id). */

void iso_node_ledger_id(struct iso_node *node, uint8_t out[ISO_NODE_LEDGER_ID_LEN]);
bool iso_node_ledger_claimed(struct iso_node *node);

/* Durably records that the ledger exists; again is fine. */
enum iso_err iso_node_ledger_claim(struct iso_node *node) ISO_NODISCARD;

/* A new id, not claimed. The caller has moved the old ledger file away. */
enum iso_err iso_node_ledger_renew(struct iso_node *node) ISO_NODISCARD;

#endif
