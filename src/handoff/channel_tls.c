/* SPDX-License-Identifier: MIT
 * channel_tls.c - TLS 1.3 with the rules of the hand-off: who is there, and why not. */
#include "handoff/channel_internal.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/mem.h"
#include "node/creds.h"

/* Several records per recv(). Loopback, 2 GB, both ends' CPU time (EPYC, 2 cores, OpenSSL 3.0.22,
 * November 2026): 16 KiB 2.0 s, 64 KiB 2.0 s, 128 KiB 2.0 s, 512 KiB 2.2 s (OpenSSL moves rests).
 */
#define READ_BUFFER_LEN (64u << 10)
#define SECONDS_PER_DAY 86400
#define CLOCK_HINT_S                                                                               \
    (2 * SECONDS_PER_DAY) /* closer than this, a wrong clock is the likely cause                   \
                           */
#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* macOS: iso_channel_net_prepare() sets SO_NOSIGPIPE instead */
#endif

/* ALPN as on the wire: length, name. */
static const unsigned char ALPN_WIRE[] = "\x10" ISO_CHANNEL_ALPN;
_Static_assert(sizeof ISO_CHANNEL_ALPN - 1 == 0x10, "length byte of the ALPN name");

/* Socket without SIGPIPE ------------------------------------------------ */
/* OpenSSL's own socket BIO uses write(), which raises SIGPIPE; a library must not touch the
 * process's signal handlers, so the BIO is ours. */

static pthread_once_t g_bio_once = PTHREAD_ONCE_INIT;
static BIO_METHOD *g_bio;

static int bio_write(BIO *b, const char *data, int len)
{
    const struct iso_channel *ch = BIO_get_data(b);
    BIO_clear_retry_flags(b);
    const ssize_t n = send(ch->fd, data, (size_t)len, MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        BIO_set_retry_write(b);
    return (int)n;
}

static int bio_read(BIO *b, char *data, int len)
{
    const struct iso_channel *ch = BIO_get_data(b);
    BIO_clear_retry_flags(b);
    const ssize_t n = recv(ch->fd, data, (size_t)len, 0);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) BIO_set_retry_read(b);
    if (n == 0) BIO_set_flags(b, BIO_FLAGS_IN_EOF);
    return (int)n;
}

static long bio_ctrl(BIO *b, int cmd, long num, void *ptr)
{
    (void)num, (void)ptr;
    if (cmd == BIO_CTRL_FLUSH) return 1;
    if (cmd == BIO_CTRL_EOF) return BIO_test_flags(b, BIO_FLAGS_IN_EOF) != 0;
    return 0;
}

static void make_bio_method(void)
{
    BIO_METHOD *m = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "isobit socket");
    if (m == NULL || !BIO_meth_set_write(m, bio_write) || !BIO_meth_set_read(m, bio_read) ||
        !BIO_meth_set_ctrl(m, bio_ctrl)) {
        BIO_meth_free(m);
        return;
    }
    g_bio = m;
}

/* Context --------------------------------------------------------------- */

static int choose_alpn(SSL *ssl,
                       const unsigned char **out,
                       unsigned char *out_len,
                       const unsigned char *in,
                       unsigned in_len,
                       void *arg)
{
    (void)ssl, (void)arg;
    unsigned char *chosen;
    if (SSL_select_next_proto(&chosen, out_len, ALPN_WIRE, sizeof ALPN_WIRE - 1, in, in_len) !=
        OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

/* Keeps what a refusal will want to say; the verdict is OpenSSL's. */
static int note_verify(int ok, X509_STORE_CTX *ctx)
{
    const SSL *ssl = X509_STORE_CTX_get_ex_data(ctx, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct iso_channel *ch = SSL_get_app_data(ssl);
    const X509 *leaf = X509_STORE_CTX_get0_cert(ctx);
    const X509 *current = X509_STORE_CTX_get_current_cert(ctx);
    if (leaf != NULL && iso_node_cert_name(ch->claimed, leaf) != ISO_OK) ch->claimed[0] = '\0';
    if (ok || current == NULL) return ok;
    const int why = X509_STORE_CTX_get_error(ctx);
    const bool early = why == X509_V_ERR_CERT_NOT_YET_VALID;
    int days = 0;
    int seconds = 0;
    const ASN1_TIME *edge = early ? X509_get0_notBefore(current) : X509_get0_notAfter(current);
    if (ASN1_TIME_diff(&days, &seconds, early ? NULL : edge, early ? edge : NULL))
        ch->clock_off_s = (int64_t)days * SECONDS_PER_DAY + seconds;
    return 0;
}

static int set_identity(SSL_CTX *ctx, const struct iso_node_creds *c)
{
    X509_STORE *store = SSL_CTX_get_cert_store(ctx);
    return SSL_CTX_use_certificate(ctx, c->cert) && SSL_CTX_use_PrivateKey(ctx, c->key) &&
           SSL_CTX_check_private_key(ctx) && X509_STORE_add_cert(store, c->ca) &&
           X509_STORE_add_crl(store, c->crl) &&
           X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK | X509_V_FLAG_X509_STRICT);
}

/* AES-128-GCM first: one AES instruction set away on every machine with an accelerator; a peer
 * without it puts ChaCha20 first and is followed. */
static int set_protocol(SSL_CTX *ctx)
{
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, note_verify);
    SSL_CTX_set_verify_depth(ctx, 1);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_options(ctx, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                 SSL_OP_PRIORITIZE_CHACHA | SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE);
    SSL_CTX_set_read_ahead(ctx, 1);
    SSL_CTX_set_default_read_buffer_len(ctx, READ_BUFFER_LEN);
    SSL_CTX_set_alpn_select_cb(ctx, choose_alpn, NULL);
    return SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) &&
           SSL_CTX_set_max_proto_version(ctx, TLS1_3_VERSION) && SSL_CTX_set_num_tickets(ctx, 0) &&
           SSL_CTX_set_max_early_data(ctx, 0) && SSL_CTX_set1_groups_list(ctx, "X25519:P-256") &&
           SSL_CTX_set1_sigalgs_list(ctx, "ECDSA+SHA256") &&
           SSL_CTX_set_ciphersuites(ctx, "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256:"
                                         "TLS_AES_256_GCM_SHA384") &&
           SSL_CTX_set_alpn_protos(ctx, ALPN_WIRE, sizeof ALPN_WIRE - 1) == 0;
}

/* A context per connection: it costs 0.1 ms and always carries the newest certificates. */
static enum iso_err make_context(SSL_CTX **out, struct iso_node *node)
{
    struct iso_node_creds creds;
    ISO_TRY(iso_node_creds_get(node, &creds));
    SSL_CTX *ctx = SSL_CTX_new(TLS_method());
    const int ok = ctx != NULL && set_protocol(ctx) && set_identity(ctx, &creds);
    iso_node_creds_release(&creds);
    if (!ok) {
        char text[256];
        ERR_error_string_n(ERR_peek_error(), text, sizeof text);
        ERR_clear_error();
        SSL_CTX_free(ctx);
        ISO_FAIL(ISO_E_IO, "cannot set up TLS: %s", text);
    }
    *out = ctx;
    return ISO_OK;
}

enum iso_err iso_channel_tls_new(struct iso_channel *ch)
{
    SSL_CTX *ctx = NULL;
    (void)pthread_once(&g_bio_once, make_bio_method);
    if (g_bio == NULL) ISO_FAIL(ISO_E_NOMEM, "no memory for TLS");
    ISO_TRY(make_context(&ctx, ch->node));
    SSL *ssl = SSL_new(ctx);
    BIO *bio = BIO_new(g_bio);
    SSL_CTX_free(ctx);
    if (ssl == NULL || bio == NULL) {
        SSL_free(ssl);
        BIO_free(bio);
        ISO_FAIL(ISO_E_NOMEM, "no memory for TLS");
    }
    BIO_set_data(bio, ch);
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl, bio, bio);
    SSL_set_app_data(ssl, ch);
    if (ch->server)
        SSL_set_accept_state(ssl);
    else
        SSL_set_connect_state(ssl);
    ch->ssl = ssl;
    return ISO_OK;
}

/* Who is there ---------------------------------------------------------- */

static enum iso_err check_alpn(const struct iso_channel *ch, enum iso_reason *reason)
{
    const unsigned char *name;
    unsigned len;
    SSL_get0_alpn_selected(ch->ssl, &name, &len);
    if (len != sizeof ISO_CHANNEL_ALPN - 1 || memcmp(name, ISO_CHANNEL_ALPN, len) != 0)
        ISO_FAIL_REASON(reason, ALPN, ISO_E_PROTO, "the peer did not agree on " ISO_CHANNEL_ALPN);
    return ISO_OK;
}

static enum iso_err check_enrolled(struct iso_channel *ch,
                                   const char *name,
                                   const struct iso_digest *pin,
                                   enum iso_reason *reason)
{
    struct iso_peer peer;
    const enum iso_err err = iso_node_peer_by_name(ch->node, &peer, name);
    *reason = err == ISO_E_AUTH ? ISO_REASON_PEER_NOT_ENROLLED : ISO_REASON_INTERNAL;
    if (err != ISO_OK) return err;
    const bool pinned = memcmp(&peer.pin, pin, sizeof *pin) == 0;
    const bool revoked = peer.revoked;
    if (pinned && !revoked) ch->peer = peer;
    iso_peer_wipe(&peer);
    if (!pinned) {
        char hex[ISO_DIGEST_HEX];
        iso_digest_hex(hex, pin);
        ISO_FAIL_REASON(reason, PIN_MISMATCH, ISO_E_AUTH,
                        "node %s shows the key %.32s..., not the enrolled one", name, hex);
    }
    if (revoked)
        ISO_FAIL_REASON(reason, CERT_REVOKED, ISO_E_AUTH, "node %s was revoked here", name);
    *reason = ISO_REASON_OK;
    return ISO_OK;
}

enum iso_err
iso_channel_tls_check_peer(struct iso_channel *ch, const char *expected, enum iso_reason *reason)
{
    char name[ISO_NODE_NAME_MAX];
    struct iso_digest pin;
    ISO_TRY(check_alpn(ch, reason));
    X509 *cert = SSL_get0_peer_certificate(ch->ssl);
    *reason = ISO_REASON_NO_CLIENT_CERT;
    if (cert == NULL) ISO_FAIL(ISO_E_AUTH, "the peer showed no certificate");
    *reason = ISO_REASON_CERT_INVALID;
    /* OpenSSL's purpose check is content with keyAgreement. */
    if (!(X509_get_key_usage(cert) & KU_DIGITAL_SIGNATURE))
        ISO_FAIL(ISO_E_AUTH, "the certificate is not for signatures");
    ISO_TRY(iso_node_cert_name(name, cert));
    ISO_TRY(iso_node_cert_pin(&pin, cert));
    memcpy(ch->claimed, name, sizeof name);
    if (expected != NULL && strcmp(expected, name) != 0)
        ISO_FAIL_REASON(reason, PEER_UNEXPECTED, ISO_E_AUTH, "node %s answered instead of %s", name,
                        expected);
    return check_enrolled(ch, name, &pin, reason);
}

/* Why not --------------------------------------------------------------- */

static enum iso_reason reason_of_verify(long result)
{
    switch (result) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
        return ISO_REASON_CERT_EXPIRED;
    case X509_V_ERR_CERT_NOT_YET_VALID:
    case X509_V_ERR_CRL_NOT_YET_VALID:
        return ISO_REASON_CERT_NOT_YET_VALID;
    case X509_V_ERR_CERT_REVOKED:
        return ISO_REASON_CERT_REVOKED;
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
    case X509_V_ERR_CERT_UNTRUSTED:
    case X509_V_ERR_UNABLE_TO_GET_CRL:
        return ISO_REASON_CERT_FOREIGN;
    default:
        return ISO_REASON_CERT_INVALID;
    }
}

static enum iso_err raise_verify(const struct iso_channel *ch, long result, enum iso_reason *reason)
{
    const char *who = ch->claimed[0] ? ch->claimed : "the peer";
    const char *hint =
        ch->clock_off_s < CLOCK_HINT_S ? "; compare the clocks of both machines" : "";
    *reason = reason_of_verify(result);
    if (*reason == ISO_REASON_CERT_NOT_YET_VALID)
        ISO_FAIL(ISO_E_AUTH, "the certificate of %s becomes valid in %lld s by this clock%s", who,
                 (long long)ch->clock_off_s, hint);
    if (*reason == ISO_REASON_CERT_EXPIRED)
        ISO_FAIL(ISO_E_AUTH, "the certificate of %s expired %lld s ago by this clock%s", who,
                 (long long)ch->clock_off_s, hint);
    ISO_FAIL(ISO_E_AUTH, "the certificate of %s was refused: %s (%s)", who,
             iso_reason_text(*reason), X509_verify_cert_error_string(result));
}

static enum iso_reason reason_of_alert(int alert)
{
    switch (alert) {
    case SSL_AD_CERTIFICATE_EXPIRED:
        return ISO_REASON_CERT_EXPIRED;
    case SSL_AD_CERTIFICATE_REVOKED:
        return ISO_REASON_CERT_REVOKED;
    case SSL_AD_UNKNOWN_CA:
        return ISO_REASON_CERT_FOREIGN;
    case SSL_AD_BAD_CERTIFICATE:
    case SSL_AD_UNSUPPORTED_CERTIFICATE:
    case SSL_AD_CERTIFICATE_UNKNOWN:
    case SSL_AD_ACCESS_DENIED:
        return ISO_REASON_CERT_INVALID;
    case SSL_AD_CERTIFICATE_REQUIRED:
        return ISO_REASON_NO_CLIENT_CERT;
    case SSL_AD_NO_APPLICATION_PROTOCOL:
        return ISO_REASON_ALPN;
    case SSL_AD_PROTOCOL_VERSION:
        return ISO_REASON_TLS_VERSION;
    default:
        return ISO_REASON_TLS_BROKEN;
    }
}

static enum iso_reason reason_of_ssl(int ssl_reason)
{
    switch (ssl_reason) {
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
        return ISO_REASON_NO_CLIENT_CERT;
    case SSL_R_NO_APPLICATION_PROTOCOL:
        return ISO_REASON_ALPN;
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_WRONG_SSL_VERSION:
    case SSL_R_VERSION_TOO_LOW:
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
    case SSL_R_NO_PROTOCOLS_AVAILABLE:
        return ISO_REASON_TLS_VERSION;
    default:
        return ISO_REASON_TLS_BROKEN;
    }
}

static enum iso_err raise_ssl(struct iso_channel *ch, unsigned long e, enum iso_reason *reason)
{
    const int code = ERR_GET_REASON(e);
    const char *text = ERR_reason_error_string(e);
    if (text == NULL) text = "no detail";
    if (code > SSL_AD_REASON_OFFSET) {
        const int alert = code - SSL_AD_REASON_OFFSET;
        *reason = reason_of_alert(alert);
        ch->from_peer = true;
        ISO_FAIL(*reason == ISO_REASON_TLS_BROKEN ? ISO_E_PROTO : ISO_E_AUTH,
                 "the peer refused us: TLS alert %d, %s", alert, SSL_alert_desc_string_long(alert));
    }
    if (code == SSL_R_CERTIFICATE_VERIFY_FAILED)
        return raise_verify(ch, SSL_get_verify_result(ch->ssl), reason);
    if (code == SSL_R_UNEXPECTED_EOF_WHILE_READING)
        ISO_FAIL_REASON(reason, CLOSED, ISO_E_IO, "the peer closed the connection without goodbye");
    *reason = reason_of_ssl(code);
    ISO_FAIL(*reason == ISO_REASON_NO_CLIENT_CERT ? ISO_E_AUTH : ISO_E_PROTO, "TLS: %s", text);
}

enum iso_err iso_channel_tls_failure(struct iso_channel *ch,
                                     int ssl_error,
                                     int saved_errno,
                                     enum iso_reason *reason)
{
    const unsigned long e = ERR_peek_error();
    if (atomic_load_explicit(&ch->cancelled, memory_order_relaxed)) {
        ERR_clear_error();
        ISO_FAIL_REASON(reason, CANCELLED, ISO_E_CANCELLED, "cancelled");
    }
    if (ssl_error == SSL_ERROR_SSL && e != 0) {
        const enum iso_err err = raise_ssl(ch, e, reason);
        ERR_clear_error();
        return err;
    }
    ERR_clear_error();
    if (ssl_error == SSL_ERROR_SYSCALL && saved_errno != 0)
        ISO_FAIL_REASON(reason, CLOSED, ISO_E_IO, "connection lost: %s", strerror(saved_errno));
    ISO_FAIL_REASON(reason, CLOSED, ISO_E_IO, "the peer closed the connection");
}
