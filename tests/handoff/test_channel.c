/* SPDX-License-Identifier: MIT
 * test_channel.c - who gets in and who does not, each with its reason; the listener's limits. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "node/creds.h"
#include "node_pair.h"

/* One accepting side in a thread: accepts one connection and keeps what came of it. */
struct acceptor {
    struct iso_listener *l;
    pthread_t thread;
    struct iso_channel *ch;
    enum iso_err err;
    struct iso_channel_report report;
    char message[512];
};

static void must(enum iso_err err)
{
    if (err != ISO_OK) fail_msg("%s", iso_err_detail());
}

static void *accept_one(void *arg)
{
    struct acceptor *a = arg;
    struct iso_pending p;
    a->err = iso_listener_accept(a->l, &p, 5000, &a->report);
    if (a->err == ISO_OK) a->err = iso_channel_accept(&a->ch, a->l, &p, &a->report);
    if (a->err != ISO_OK) (void)snprintf(a->message, sizeof a->message, "%s", iso_err_message());
    return NULL;
}

static void acceptor_start(struct acceptor *a, struct iso_node *node, int64_t handshake_ms)
{
    *a = (struct acceptor){.err = ISO_OK};
    must(iso_listener_open(&a->l, node, "127.0.0.1:0"));
    assert_true(iso_listener_port(a->l) != 0);
    iso_listener_set_handshake(a->l, handshake_ms);
    assert_int_equal(pthread_create(&a->thread, NULL, accept_one, a), 0);
}

static void acceptor_address(const struct acceptor *a, char out[64])
{
    (void)snprintf(out, 64, "127.0.0.1:%u", iso_listener_port(a->l));
}

static void acceptor_join(struct acceptor *a)
{
    pthread_join(a->thread, NULL);
    assert_int_equal(iso_listener_pending(a->l), 0); /* every place came back */
}

static void acceptor_end(struct acceptor *a)
{
    iso_channel_free(a->ch);
    iso_listener_free(a->l);
}

/* One attempt: server accepts, client dials expecting the node `expected`. The reasons both sides
 * must give; OK: the channel stands. */
static void attempt(struct iso_node *server,
                    struct iso_node *client,
                    const char *expected,
                    enum iso_reason at_server,
                    enum iso_reason at_client)
{
    struct acceptor a;
    struct iso_channel *ch = NULL;
    struct iso_channel_report report;
    char address[64];
    acceptor_start(&a, server, 3000);
    acceptor_address(&a, address);
    const enum iso_err err = iso_channel_dial(&ch, client, address, expected, 3000, &report);
    acceptor_join(&a);
    if (a.report.reason != at_server || report.reason != at_client)
        fail_msg("server %s (%s), expected %s; client %s (%s), expected %s",
                 iso_reason_name(a.report.reason), a.message, iso_reason_name(at_server),
                 iso_reason_name(report.reason), err ? iso_err_message() : "",
                 iso_reason_name(at_client));
    assert_true((a.err == ISO_OK) == (at_server == ISO_REASON_OK));
    assert_true((err == ISO_OK) == (at_client == ISO_REASON_OK));
    /* Who refused is told apart from who was refused. */
    assert_false(a.report.from_peer && report.from_peer);
    if (ch) iso_channel_cancel(ch); /* no goodbye to wait for */
    iso_channel_free(ch);
    acceptor_end(&a);
}

static int setup(void **state)
{
    struct node_pair *p = calloc(1, sizeof *p);
    assert_non_null(p);
    node_pair_init(p, NULL);
    *state = p;
    return 0;
}

static int teardown(void **state)
{
    node_pair_deinit(*state);
    free(*state);
    return 0;
}

static void right_peers_agree(void **state)
{
    struct node_pair *p = *state;
    struct iso_channel *server;
    struct iso_channel *client;
    uint8_t a[32];
    uint8_t b[32];
    attempt(p->alice, p->bob, "alice", ISO_REASON_OK, ISO_REASON_OK);
    attempt(p->alice, p->bob, NULL, ISO_REASON_OK, ISO_REASON_OK);
    attempt(p->bob, p->alice, "bob", ISO_REASON_OK, ISO_REASON_OK); /* either may listen */
    node_pair_channels(p, &server, &client);
    assert_string_equal(iso_channel_peer(server)->name, "bob");
    assert_string_equal(iso_channel_peer(client)->name, "alice");
    assert_memory_equal(iso_channel_peer(server)->pair_key, iso_channel_peer(client)->pair_key, 32);
    assert_non_null(strstr(iso_channel_remote(client), "127.0.0.1:"));
    must(iso_channel_exporter(server, a, "EXPORTER-isobit-handoff-1", "nonce", 5));
    must(iso_channel_exporter(client, b, "EXPORTER-isobit-handoff-1", "nonce", 5));
    assert_memory_equal(a, b, sizeof a);
    must(iso_channel_exporter(client, b, "EXPORTER-isobit-handoff-1", "nonc3", 5));
    assert_memory_not_equal(a, b, sizeof a);
    struct iso_channel_stats stats;
    iso_channel_stats(client, &stats);
    assert_in_range(stats.clock_skew_s + 2, 0, 4);
    iso_channel_cancel(server);
    iso_channel_free(server);
    iso_channel_free(client);
    /* Another connection, other key material. */
    node_pair_channels(p, &server, &client);
    must(iso_channel_exporter(client, b, "EXPORTER-isobit-handoff-1", "nonce", 5));
    assert_memory_not_equal(a, b, sizeof a);
    iso_channel_cancel(server);
    iso_channel_free(server);
    iso_channel_free(client);
}

static void foreign_ca(void **state)
{
    struct node_pair *p = *state;
    struct iso_node *mallory = node_pair_extra(p, "mallory", &(struct iso_node_opts){.ca = true});
    attempt(p->alice, mallory, NULL, ISO_REASON_CERT_FOREIGN, ISO_REASON_CERT_FOREIGN);
    attempt(mallory, p->bob, NULL, ISO_REASON_CERT_FOREIGN, ISO_REASON_CERT_FOREIGN);
    iso_node_free(mallory);
}

static void expired_certificate(void **state)
{
    struct node_pair *p = *state;
    must(iso_node_ready(p->bob));
    must(iso_node_pair(p->alice, p->bob, &(struct iso_node_opts){.days = -3}));
    struct iso_node *bob = NULL;
    must(iso_node_open(&bob, iso_node_dir(p->bob))); /* p->bob keeps its last good one */
    assert_true(iso_node_days_left(bob) < 0);
    attempt(p->alice, bob, NULL, ISO_REASON_CERT_EXPIRED, ISO_REASON_CERT_EXPIRED);
    attempt(p->alice, p->bob, NULL, ISO_REASON_OK, ISO_REASON_OK);
    iso_node_free(bob);
}

static void certificate_of_tomorrow(void **state)
{
    struct node_pair *p = *state;
    struct acceptor a;
    struct iso_channel *ch = NULL;
    struct iso_channel_report report;
    char address[64];
    must(iso_node_pair(p->alice, p->bob, &(struct iso_node_opts){.starts_in_s = 7200}));
    /* bob dials: alice tells by its own clock; the message names the clocks. */
    acceptor_start(&a, p->alice, 3000);
    acceptor_address(&a, address);
    assert_int_equal(iso_channel_dial(&ch, p->bob, address, NULL, 3000, &report), ISO_E_AUTH);
    acceptor_join(&a);
    assert_int_equal(a.report.reason, ISO_REASON_CERT_NOT_YET_VALID);
    assert_string_equal(a.report.node, "bob");
    assert_non_null(strstr(a.message, "clocks"));
    assert_true(report.from_peer);
    acceptor_end(&a);
}

static void revoked_on_the_list(void **state)
{
    struct node_pair *p = *state;
    struct iso_node *carol = node_pair_extra(p, "carol", NULL);
    struct iso_buf doc;
    struct iso_buf answer;
    must(iso_node_pair(p->alice, carol, NULL));
    /* carol and bob know each other; then alice revokes bob and carol gets the list. */
    iso_buf_init(&doc, ISO_NODE_DOC_MAX);
    iso_buf_init(&answer, ISO_NODE_DOC_MAX);
    must(iso_node_request(p->bob, &doc));
    must(iso_node_enroll(carol, &answer, NULL, (char *)doc.data, doc.len, NULL));
    iso_buf_clear(&doc);
    must(iso_node_enroll(p->bob, &doc, NULL, (char *)answer.data, answer.len, NULL));
    attempt(carol, p->bob, "carol", ISO_REASON_OK, ISO_REASON_OK);
    must(iso_node_revoke(p->alice, "bob"));
    attempt(carol, p->bob, "carol", ISO_REASON_OK, ISO_REASON_OK); /* not heard of it yet */
    iso_buf_clear(&doc);
    iso_buf_clear(&answer);
    must(iso_node_crl(p->alice, &doc));
    must(iso_node_enroll(carol, &answer, NULL, (char *)doc.data, doc.len, NULL));
    attempt(carol, p->bob, "carol", ISO_REASON_CERT_REVOKED, ISO_REASON_CERT_REVOKED);
    attempt(p->alice, p->bob, "alice", ISO_REASON_CERT_REVOKED, ISO_REASON_CERT_REVOKED);
    /* The dialler looks, too: bob as the listener. */
    attempt(p->bob, p->alice, "bob", ISO_REASON_CERT_REVOKED, ISO_REASON_CERT_REVOKED);
    iso_buf_deinit(&doc);
    iso_buf_deinit(&answer);
    iso_node_free(carol);
}

static void revoked_here(void **state)
{
    struct node_pair *p = *state;
    must(iso_node_revoke(p->bob, "alice")); /* bob is no CA: a local mark */
    attempt(p->alice, p->bob, NULL, ISO_REASON_CERT_REVOKED, ISO_REASON_CERT_REVOKED);
    attempt(p->bob, p->alice, NULL, ISO_REASON_CERT_REVOKED, ISO_REASON_CERT_REVOKED);
}

static void not_enrolled(void **state)
{
    struct node_pair *p = *state;
    struct iso_node *carol = node_pair_extra(p, "carol", NULL);
    must(
        iso_node_pair(p->alice, carol, NULL)); /* carol has a certificate; bob never heard of her */
    attempt(p->bob, carol, NULL, ISO_REASON_PEER_NOT_ENROLLED, ISO_REASON_PEER_NOT_ENROLLED);
    attempt(carol, p->bob, NULL, ISO_REASON_PEER_NOT_ENROLLED, ISO_REASON_PEER_NOT_ENROLLED);
    iso_node_free(carol);
}

static void another_node_than_called(void **state)
{
    struct node_pair *p = *state;
    struct iso_node *carol = node_pair_extra(p, "carol", NULL);
    must(iso_node_pair(p->alice, carol, NULL));
    attempt(p->alice, p->bob, "carol", ISO_REASON_PEER_UNEXPECTED, ISO_REASON_PEER_UNEXPECTED);
    iso_node_free(carol);
}

/* The CA issues a second certificate in bob's name for another key: mis-issued, and not enough. */
static void pin_mismatch(void **state)
{
    struct node_pair *p = *state;
    char path[128];
    struct iso_node *fake = NULL;
    struct iso_buf keep;
    /* alice's record of bob is put back after the second enrolment. */
    iso_buf_init(&keep, 1u << 16);
    char record[160];
    (void)snprintf(record, sizeof record, "%s/alice/peers/bob.json", p->root);
    FILE *f = fopen(record, "rb");
    assert_non_null(f);
    uint8_t bytes[4096];
    const size_t n = fread(bytes, 1, sizeof bytes, f);
    assert_int_equal(fclose(f), 0);
    (void)snprintf(path, sizeof path, "%s/fake", p->root);
    must(iso_node_init(path, "bob", NULL));
    must(iso_node_open(&fake, path));
    must(iso_node_pair(p->alice, fake, &(struct iso_node_opts){.replace = true}));
    attempt(p->alice, fake, NULL, ISO_REASON_OK, ISO_REASON_OK);
    f = fopen(record, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    attempt(p->alice, fake, NULL, ISO_REASON_PIN_MISMATCH, ISO_REASON_PIN_MISMATCH);
    attempt(fake, p->alice, NULL, ISO_REASON_PIN_MISMATCH, ISO_REASON_PIN_MISMATCH);
    iso_buf_deinit(&keep);
    iso_node_free(fake);
}

static int connect_to(const struct acceptor *a)
{
    const struct sockaddr_in at = {.sin_family = AF_INET,
                                   .sin_port = htons(iso_listener_port(a->l)),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

#define RIGHT_ALPN "\x10isobit-handoff/1"

/* A client made by hand from OpenSSL, to break one rule at a time. */
struct raw_client {
    bool with_cert;
    int max_version;
    const char *alpn; /* wire form; NULL: none */
    X509 *cert;       /* instead of bob's, for bob's key; NULL: bob's */
};

static void raw_attempt(struct node_pair *p, const struct raw_client *c, enum iso_reason want)
{
    struct acceptor a;
    struct iso_node_creds creds;
    acceptor_start(&a, p->alice, 3000);
    must(iso_node_creds_get(p->bob, &creds));
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    assert_int_equal(SSL_CTX_set_max_proto_version(ctx, c->max_version), 1);
    if (c->with_cert) {
        assert_int_equal(SSL_CTX_use_certificate(ctx, c->cert ? c->cert : creds.cert), 1);
        assert_int_equal(SSL_CTX_use_PrivateKey(ctx, creds.key), 1);
    }
    if (c->alpn)
        assert_int_equal(
            SSL_CTX_set_alpn_protos(ctx, (const unsigned char *)c->alpn, (unsigned)strlen(c->alpn)),
            0);
    SSL *ssl = SSL_new(ctx);
    const int fd = connect_to(&a);
    assert_int_equal(SSL_set_fd(ssl, fd), 1);
    uint8_t byte;
    /* TLS 1.3 clients learn of a refusal with the first read. */
    if (SSL_connect(ssl) == 1) (void)SSL_read(ssl, &byte, 1);
    (void)shutdown(fd, SHUT_WR);
    acceptor_join(&a);
    if (a.report.reason != want)
        fail_msg("%s (%s), expected %s", iso_reason_name(a.report.reason), a.message,
                 iso_reason_name(want));
    assert_false(a.report.from_peer);
    SSL_free(ssl);
    close(fd);
    SSL_CTX_free(ctx);
    ERR_clear_error();
    iso_node_creds_release(&creds);
    acceptor_end(&a);
}

static void no_client_certificate(void **state)
{
    raw_attempt(*state, &(struct raw_client){false, TLS1_3_VERSION, RIGHT_ALPN, NULL},
                ISO_REASON_NO_CLIENT_CERT);
}

static void tls_1_2(void **state)
{
    raw_attempt(*state, &(struct raw_client){true, TLS1_2_VERSION, RIGHT_ALPN, NULL},
                ISO_REASON_TLS_VERSION);
}

static void wrong_alpn(void **state)
{
    raw_attempt(*state, &(struct raw_client){true, TLS1_3_VERSION, "\x10isobit-handoff/2", NULL},
                ISO_REASON_ALPN);
    raw_attempt(*state, &(struct raw_client){true, TLS1_3_VERSION, "\x02h2", NULL},
                ISO_REASON_ALPN);
    raw_attempt(*state, &(struct raw_client){true, TLS1_3_VERSION, NULL, NULL}, ISO_REASON_ALPN);
}

static void extension(X509 *cert, X509 *ca, int nid, const char *value)
{
    X509V3_CTX ctx;
    X509V3_set_ctx(&ctx, ca, cert, NULL, NULL, 0);
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    assert_non_null(e);
    assert_int_equal(X509_add_ext(cert, e, -1), 1);
    X509_EXTENSION_free(e);
}

/* A certificate of alice's CA for bob's key that bends one rule. */
static X509 *
odd_certificate(struct node_pair *p, const char *usage, const char *eku, const char *san)
{
    struct iso_node_creds creds;
    char path[160];
    (void)snprintf(path, sizeof path, "%s/alice/ca.key.pem", p->root);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    EVP_PKEY *key = PEM_read_PrivateKey(f, NULL, NULL, NULL);
    assert_non_null(key);
    assert_int_equal(fclose(f), 0);
    must(iso_node_creds_get(p->bob, &creds));
    X509 *cert = X509_new();
    assert_int_equal(X509_set_version(cert, X509_VERSION_3), 1);
    assert_int_equal(ASN1_INTEGER_set(X509_get_serialNumber(cert), 77), 1);
    assert_non_null(X509_gmtime_adj(X509_getm_notBefore(cert), -60));
    assert_non_null(X509_gmtime_adj(X509_getm_notAfter(cert), 3600));
    assert_int_equal(X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_UTF8,
                                                (const unsigned char *)"bob", -1, -1, 0),
                     1);
    assert_int_equal(X509_set_issuer_name(cert, X509_get_subject_name(creds.ca)), 1);
    assert_int_equal(X509_set_pubkey(cert, creds.key), 1);
    extension(cert, creds.ca, NID_subject_key_identifier, "hash");
    extension(cert, creds.ca, NID_authority_key_identifier, "keyid:always");
    extension(cert, creds.ca, NID_basic_constraints, "critical,CA:FALSE");
    extension(cert, creds.ca, NID_key_usage, usage);
    extension(cert, creds.ca, NID_ext_key_usage, eku);
    if (san) extension(cert, creds.ca, NID_subject_alt_name, san);
    assert_true(X509_sign(cert, key, EVP_sha256()) > 0);
    EVP_PKEY_free(key);
    iso_node_creds_release(&creds);
    return cert;
}

static void certificates_for_other_uses(void **state)
{
    static const struct {
        const char *usage, *eku, *san;
        enum iso_reason want;
    } rows[] = {
        {"critical,digitalSignature", "serverAuth,clientAuth", "URI:isobit:bob", ISO_REASON_CLOSED},
        /* Right: it gets as far as HELLO, which this client never sends. */
        {"critical,digitalSignature", "serverAuth", "URI:isobit:bob", ISO_REASON_CERT_INVALID},
        {"critical,digitalSignature", "emailProtection", "URI:isobit:bob", ISO_REASON_CERT_INVALID},
        {"critical,digitalSignature", "clientAuth", NULL, ISO_REASON_CERT_INVALID},
        {"critical,digitalSignature", "clientAuth", "DNS:bob", ISO_REASON_CERT_INVALID},
        {"critical,digitalSignature", "clientAuth", "DNS:isobit:bob", ISO_REASON_CERT_INVALID},
        {"critical,digitalSignature", "clientAuth", "URI:isobit:bob,URI:isobit:alice",
         ISO_REASON_CERT_INVALID},
        {"critical,digitalSignature", "clientAuth", "URI:isobit:", ISO_REASON_CERT_INVALID},
        {"critical,digitalSignature", "clientAuth", "URI:isobit:BOB", ISO_REASON_CERT_INVALID},
        {"critical,digitalSignature", "clientAuth", "URI:http:bob", ISO_REASON_CERT_INVALID},
        {"critical,digitalSignature", "clientAuth", "URI:isobit:carol",
         ISO_REASON_PEER_NOT_ENROLLED},
    };
    struct node_pair *p = *state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        X509 *cert = odd_certificate(p, rows[i].usage, rows[i].eku, rows[i].san);
        raw_attempt(p, &(struct raw_client){true, TLS1_3_VERSION, RIGHT_ALPN, cert}, rows[i].want);
        X509_free(cert);
    }
}

/* A byte now and then keeps no one waiting longer than the handshake limit. */
static void slow_handshake(void **state)
{
    struct node_pair *p = *state;
    struct acceptor a;
    static const uint8_t hello[] = {0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03};
    const int64_t begin = iso_clock_ns();
    acceptor_start(&a, p->alice, 400);
    const int fd = connect_to(&a);
    for (size_t i = 0; i < sizeof hello; i++) {
        (void)send(fd, hello + i, 1, MSG_NOSIGNAL);
        usleep(80000);
    }
    acceptor_join(&a);
    assert_int_equal(a.report.reason, ISO_REASON_HANDSHAKE_TIMEOUT);
    assert_int_equal(a.err, ISO_E_TIMEOUT);
    assert_true(iso_clock_ns() - begin < 2 * ISO_NS_PER_S);
    close(fd);
    acceptor_end(&a);
}

static void silent_and_closed_strangers(void **state)
{
    struct node_pair *p = *state;
    struct acceptor a;
    acceptor_start(&a, p->alice, 200);
    int fd = connect_to(&a);
    acceptor_join(&a);
    assert_int_equal(a.report.reason, ISO_REASON_HANDSHAKE_TIMEOUT);
    close(fd);
    acceptor_end(&a);
    acceptor_start(&a, p->alice, 3000);
    fd = connect_to(&a);
    close(fd);
    acceptor_join(&a);
    assert_int_equal(a.report.reason, ISO_REASON_CLOSED);
    acceptor_end(&a);
    acceptor_start(&a, p->alice, 3000);
    fd = connect_to(&a);
    assert_true(send(fd, "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL) == 18);
    acceptor_join(&a);
    assert_int_equal(a.report.reason, ISO_REASON_TLS_VERSION);
    close(fd);
    acceptor_end(&a);
}

/* A listener that answers nothing: the dialler's own limit counts. */
static void dial_limits(void **state)
{
    struct node_pair *p = *state;
    struct iso_listener *l;
    struct iso_channel *ch = NULL;
    struct iso_channel_report report;
    char address[64];
    must(iso_listener_open(&l, p->alice, "127.0.0.1:0"));
    (void)snprintf(address, sizeof address, "127.0.0.1:%u", iso_listener_port(l));
    const int64_t begin = iso_clock_ns();
    assert_int_equal(iso_channel_dial(&ch, p->bob, address, NULL, 300, &report), ISO_E_TIMEOUT);
    assert_int_equal(report.reason, ISO_REASON_HANDSHAKE_TIMEOUT);
    assert_true(iso_clock_ns() - begin < 2 * ISO_NS_PER_S);
    iso_listener_free(l);
    assert_int_equal(iso_channel_dial(&ch, p->bob, address, NULL, 300, &report), ISO_E_IO);
    assert_int_equal(report.reason, ISO_REASON_UNREACHABLE);
    static const char *const bad[] = {"host",   "host:",   "host:x", "host:70000",
                                      "::1:80", "[::1:80", "h:1x"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(iso_channel_dial(&ch, p->bob, bad[i], NULL, 300, &report), ISO_E_ARG);
}

static void seventeenth_stranger(void **state)
{
    struct node_pair *p = *state;
    struct iso_listener *l;
    struct iso_pending pending[ISO_CHANNEL_UNAUTHENTICATED_MAX];
    struct iso_pending extra;
    struct iso_channel_report report;
    int fds[ISO_CHANNEL_UNAUTHENTICATED_MAX + 1];
    must(iso_listener_open(&l, p->alice, "127.0.0.1:0"));
    const struct acceptor a = {.l = l};
    for (int i = 0; i < ISO_CHANNEL_UNAUTHENTICATED_MAX; i++) {
        fds[i] = connect_to(&a);
        must(iso_listener_accept(l, &pending[i], 1000, NULL));
    }
    assert_int_equal(iso_listener_pending(l), ISO_CHANNEL_UNAUTHENTICATED_MAX);
    fds[ISO_CHANNEL_UNAUTHENTICATED_MAX] = connect_to(&a);
    assert_int_equal(iso_listener_accept(l, &extra, 1000, &report), ISO_E_REFUSED);
    assert_int_equal(report.reason, ISO_REASON_TOO_MANY_UNAUTHENTICATED);
    char byte;
    assert_int_equal(recv(fds[ISO_CHANNEL_UNAUTHENTICATED_MAX], &byte, 1, 0), 0); /* closed */
    close(fds[ISO_CHANNEL_UNAUTHENTICATED_MAX]);
    iso_listener_drop(l, &pending[0]); /* a place is free again */
    fds[ISO_CHANNEL_UNAUTHENTICATED_MAX] = connect_to(&a);
    must(iso_listener_accept(l, &pending[0], 1000, NULL));
    for (int i = 0; i < ISO_CHANNEL_UNAUTHENTICATED_MAX; i++) iso_listener_drop(l, &pending[i]);
    for (int i = 0; i <= ISO_CHANNEL_UNAUTHENTICATED_MAX; i++) close(fds[i]);
    assert_int_equal(iso_listener_accept(l, &extra, 10, NULL), ISO_E_AGAIN);
    iso_listener_cancel(l);
    assert_int_equal(iso_listener_accept(l, &extra, 1000, NULL), ISO_E_CANCELLED);
    iso_listener_free(l);
}

static void listener_needs_a_certificate(void **state)
{
    struct node_pair *p = *state;
    struct iso_node *carol = node_pair_extra(p, "carol", NULL);
    struct iso_listener *l = NULL;
    assert_int_equal(iso_listener_open(&l, carol, "127.0.0.1:0"), ISO_E_AUTH);
    assert_int_equal(iso_listener_open(&l, p->alice, "127.0.0.1"), ISO_E_ARG);
    must(iso_listener_open(&l, p->alice, ":0"));
    iso_listener_free(l);
    iso_node_free(carol);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(right_peers_agree),
        TEST(foreign_ca),
        TEST(expired_certificate),
        TEST(certificate_of_tomorrow),
        TEST(revoked_on_the_list),
        TEST(revoked_here),
        TEST(not_enrolled),
        TEST(another_node_than_called),
        TEST(pin_mismatch),
        TEST(certificates_for_other_uses),
        TEST(no_client_certificate),
        TEST(tls_1_2),
        TEST(wrong_alpn),
        TEST(slow_handshake),
        TEST(silent_and_closed_strangers),
        TEST(dial_limits),
        TEST(seventeenth_stranger),
        TEST(listener_needs_a_certificate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
