/* SPDX-License-Identifier: MIT
 * test_node_enrol.c - requests, grants, renewals, replacements, revocation. */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "temp_nodes.h"

static void request(struct iso_node *node, struct iso_buf *out)
{
    iso_buf_clear(out);
    temp_nodes_must(iso_node_request(node, out));
}

static enum iso_err issue(struct iso_node *ca,
                          struct iso_buf *grant,
                          const struct iso_buf *req,
                          const struct iso_node_opts *opts)
{
    iso_buf_clear(grant);
    return iso_node_issue(ca, grant, NULL, (const char *)req->data, req->len, opts);
}

static enum iso_err enroll(struct iso_node *node,
                           struct iso_buf *answer,
                           const struct iso_buf *doc,
                           const struct iso_node_opts *opts)
{
    iso_buf_clear(answer);
    return iso_node_enroll(node, answer, NULL, (const char *)doc->data, doc->len, opts);
}

/* Fresh buffers for the documents of one test. */
struct docs {
    struct iso_buf req, grant, none;
};

static void docs_init(struct docs *d)
{
    iso_buf_init(&d->req, ISO_NODE_DOC_MAX);
    iso_buf_init(&d->grant, ISO_NODE_DOC_MAX);
    iso_buf_init(&d->none, ISO_NODE_DOC_MAX);
}

static void docs_deinit(struct docs *d)
{
    iso_buf_deinit(&d->req);
    iso_buf_deinit(&d->grant);
    iso_buf_deinit(&d->none);
}

static void two_documents_enrol_both(void **state)
{
    const struct temp_nodes *t = *state;
    struct iso_node *alice = temp_nodes_make(t, "alice", true);
    struct iso_node *bob = temp_nodes_make(t, "bob", false);
    struct docs d;
    struct iso_peer a;
    struct iso_peer b;
    uint8_t id[ISO_NODE_LEDGER_ID_LEN];
    uint8_t spki[ISO_NODE_SPKI_LEN];
    struct iso_digest pin;
    docs_init(&d);
    request(bob, &d.req);
    temp_nodes_must(issue(alice, &d.grant, &d.req, NULL));
    temp_nodes_must(enroll(bob, &d.none, &d.grant, NULL));
    assert_int_equal(d.none.len, 0);
    temp_nodes_must(iso_node_ready(bob));
    temp_nodes_must(iso_node_peer_by_name(bob, &a, "alice"));
    temp_nodes_must(iso_node_peer_by_name(alice, &b, "bob"));
    assert_memory_equal(a.pair_key, b.pair_key, sizeof a.pair_key);
    iso_node_ledger_id(bob, id);
    assert_memory_equal(b.ledger_id, id, sizeof id);
    iso_node_ledger_id(alice, id);
    assert_memory_equal(a.ledger_id, id, sizeof id);
    iso_node_identity(bob, &pin, spki);
    assert_memory_equal(&b.pin, &pin, sizeof pin);
    assert_memory_equal(b.spki, spki, sizeof spki);
    temp_nodes_must(iso_node_peer_by_pin(alice, &b, &pin));
    assert_string_equal(b.name, "bob");
    assert_false(b.revoked);
    /* The pair key is nowhere in the grant in clear. */
    char hex[65];
    for (int i = 0; i < 32; i++) (void)snprintf(hex + 2 * i, 3, "%02x", a.pair_key[i]);
    assert_null(strstr((const char *)d.grant.data, hex));
    /* The same grant again (a crash in between) changes nothing. */
    temp_nodes_must(enroll(bob, &d.none, &d.grant, NULL));
    assert_int_equal(iso_node_peer_by_name(alice, &b, "carol"), ISO_E_AUTH);
    docs_deinit(&d);
    iso_node_free(alice);
    iso_node_free(bob);
}

static void renewal_keeps_pair_key(void **state)
{
    const struct temp_nodes *t = *state;
    struct iso_node *alice = temp_nodes_make(t, "alice", true);
    struct iso_node *bob = temp_nodes_make(t, "bob", false);
    struct docs d;
    struct iso_peer before;
    struct iso_peer after;
    docs_init(&d);
    temp_nodes_must(iso_node_pair(alice, bob, &(struct iso_node_opts){.days = 3}));
    assert_in_range(iso_node_days_left(bob), 2, 3);
    temp_nodes_must(iso_node_peer_by_name(alice, &before, "bob"));
    temp_nodes_must(iso_node_rotate(bob, &d.req, false, NULL));
    temp_nodes_must(issue(alice, &d.grant, &d.req, NULL));
    temp_nodes_must(enroll(bob, &d.none, &d.grant, NULL));
    temp_nodes_must(iso_node_peer_by_name(alice, &after, "bob"));
    assert_memory_equal(before.pair_key, after.pair_key, sizeof before.pair_key);
    assert_memory_equal(&before.pin, &after.pin, sizeof before.pin);
    assert_in_range(iso_node_days_left(bob), ISO_NODE_DAYS - 1, ISO_NODE_DAYS);
    docs_deinit(&d);
    iso_node_free(alice);
    iso_node_free(bob);
}

static void new_key_needs_replace(void **state)
{
    const struct temp_nodes *t = *state;
    struct iso_node *alice = temp_nodes_make(t, "alice", true);
    struct iso_node *bob = temp_nodes_make(t, "bob", false);
    const struct iso_node_opts replace = {.replace = true};
    struct docs d;
    struct iso_digest old;
    struct iso_digest now;
    uint8_t spki[ISO_NODE_SPKI_LEN];
    docs_init(&d);
    temp_nodes_must(iso_node_pair(alice, bob, NULL));
    iso_node_identity(bob, &old, spki);
    temp_nodes_must(iso_node_rotate(bob, &d.req, true, NULL));
    iso_node_identity(bob, &now, spki);
    assert_memory_equal(&old, &now, sizeof old); /* the old key serves until the grant is here */
    temp_nodes_must(iso_node_ready(bob));
    assert_int_equal(issue(alice, &d.grant, &d.req, NULL), ISO_E_REFUSED);
    assert_non_null(strstr(iso_err_message(), "another key"));
    temp_nodes_must(issue(alice, &d.grant, &d.req, &replace));
    assert_int_equal(enroll(bob, &d.none, &d.grant, NULL), ISO_E_REFUSED); /* another pair key */
    temp_nodes_must(enroll(bob, &d.none, &d.grant, &replace));
    iso_node_identity(bob, &now, spki);
    assert_memory_not_equal(&old, &now, sizeof old);
    temp_nodes_must(iso_node_ready(bob));
    struct iso_peer peer;
    temp_nodes_must(iso_node_peer_by_name(alice, &peer, "bob"));
    assert_memory_equal(&peer.pin, &now, sizeof now);
    docs_deinit(&d);
    iso_node_free(alice);
    iso_node_free(bob);
}

static void new_ledger_needs_replace(void **state)
{
    const struct temp_nodes *t = *state;
    struct iso_node *alice = temp_nodes_make(t, "alice", true);
    struct iso_node *bob = temp_nodes_make(t, "bob", false);
    struct docs d;
    docs_init(&d);
    temp_nodes_must(iso_node_pair(alice, bob, NULL));
    temp_nodes_must(iso_node_ledger_renew(bob));
    request(bob, &d.req);
    assert_int_equal(issue(alice, &d.grant, &d.req, NULL), ISO_E_REFUSED);
    assert_non_null(strstr(iso_err_message(), "another ledger"));
    temp_nodes_must(issue(alice, &d.grant, &d.req, &(struct iso_node_opts){.replace = true}));
    docs_deinit(&d);
    iso_node_free(alice);
    iso_node_free(bob);
}

/* bob and carol have certificates of alice; they enrol each other without her. */
static void peers_enrol_without_the_ca_machine(void **state)
{
    const struct temp_nodes *t = *state;
    struct iso_node *alice = temp_nodes_make(t, "alice", true);
    struct iso_node *bob = temp_nodes_make(t, "bob", false);
    struct iso_node *carol = temp_nodes_make(t, "carol", false);
    struct docs d;
    struct iso_peer a;
    struct iso_peer b;
    docs_init(&d);
    temp_nodes_must(iso_node_pair(alice, bob, NULL));
    request(carol, &d.req);
    assert_int_equal(enroll(bob, &d.grant, &d.req, NULL), ISO_E_AUTH); /* no certificate yet */
    assert_int_equal(issue(bob, &d.grant, &d.req, NULL), ISO_E_AUTH);  /* bob is no CA */
    temp_nodes_must(iso_node_pair(alice, carol, NULL));
    request(carol, &d.req);
    temp_nodes_must(enroll(bob, &d.grant, &d.req, NULL));
    temp_nodes_must(enroll(carol, &d.none, &d.grant, NULL));
    temp_nodes_must(iso_node_peer_by_name(bob, &b, "carol"));
    temp_nodes_must(iso_node_peer_by_name(carol, &a, "bob"));
    assert_memory_equal(a.pair_key, b.pair_key, sizeof a.pair_key);
    struct iso_peer *peers;
    size_t n;
    temp_nodes_must(iso_node_peers(carol, &peers, &n));
    assert_int_equal(n, 2);
    assert_string_equal(peers[0].name, "alice");
    assert_string_equal(peers[1].name, "bob");
    iso_node_peers_free(peers, n);
    docs_deinit(&d);
    iso_node_free(alice);
    iso_node_free(bob);
    iso_node_free(carol);
}

static void wrong_hands(void **state)
{
    const struct temp_nodes *t = *state;
    struct iso_node *alice = temp_nodes_make(t, "alice", true);
    struct iso_node *bob = temp_nodes_make(t, "bob", false);
    struct iso_node *carol = temp_nodes_make(t, "carol", false);
    struct iso_node *mallory = temp_nodes_make(t, "mallory", true);
    struct docs d;
    docs_init(&d);
    request(bob, &d.req);
    request(carol, &d.none);
    temp_nodes_must(issue(alice, &d.grant, &d.req, NULL));
    assert_int_equal(enroll(carol, &d.none, &d.grant, NULL), ISO_E_REFUSED); /* for bob */
    temp_nodes_must(enroll(bob, &d.none, &d.grant, NULL));
    /* A second CA for a node that has one. */
    request(bob, &d.req);
    temp_nodes_must(issue(mallory, &d.grant, &d.req, NULL));
    assert_int_equal(enroll(bob, &d.none, &d.grant, NULL), ISO_E_REFUSED);
    assert_non_null(strstr(iso_err_message(), "another CA"));
    /* A request with a certificate of another CA. */
    request(mallory, &d.req);
    assert_int_equal(enroll(alice, &d.none, &d.req, NULL), ISO_E_AUTH);
    /* Pins. */
    request(carol, &d.req);
    struct iso_node_opts opts = {.expect_pin = "0123456789abcdef"};
    assert_int_equal(issue(alice, &d.grant, &d.req, &opts), ISO_E_AUTH);
    opts.expect_pin = "0123";
    assert_int_equal(issue(alice, &d.grant, &d.req, &opts), ISO_E_ARG);
    struct iso_digest pin;
    uint8_t spki[ISO_NODE_SPKI_LEN];
    char hex[ISO_DIGEST_HEX];
    iso_node_identity(carol, &pin, spki);
    iso_digest_hex(hex, &pin);
    hex[20] = '\0';
    opts.expect_pin = hex;
    temp_nodes_must(issue(alice, &d.grant, &d.req, &opts));
    docs_deinit(&d);
    iso_node_free(alice);
    iso_node_free(bob);
    iso_node_free(carol);
    iso_node_free(mallory);
}

static void own_name_is_refused(void **state)
{
    const struct temp_nodes *t = *state;
    struct iso_node *alice = temp_nodes_make(t, "alice", true);
    struct iso_node *twin = NULL;
    struct docs d;
    docs_init(&d);
    temp_nodes_must(iso_node_init(temp_nodes_dir(t, "twin"), "alice", NULL));
    twin = temp_nodes_open(t, "twin");
    request(twin, &d.req);
    assert_int_equal(issue(alice, &d.grant, &d.req, NULL), ISO_E_REFUSED);
    docs_deinit(&d);
    iso_node_free(alice);
    iso_node_free(twin);
}

/* Changes one text member of a document and writes it back; signatures stay as they were. */
static void tamper(struct iso_buf *doc, const char *key)
{
    json_t *obj = json_loadb((const char *)doc->data, doc->len, 0, NULL);
    assert_non_null(obj);
    char *text = strdup(json_string_value(json_object_get(obj, key)));
    const size_t len = strlen(text);
    text[len / 2] = text[len / 2] == '3' ? '4' : '3';
    (void)json_object_set_new(obj, key, json_string(text));
    char *dump = json_dumps(obj, JSON_COMPACT | JSON_SORT_KEYS);
    iso_buf_clear(doc);
    temp_nodes_must(iso_buf_puts(doc, dump));
    free(dump);
    free(text);
    json_decref(obj);
}

static void every_member_is_signed(void **state)
{
    const struct temp_nodes *t = *state;
    static const char *const req_keys[] = {"node", "csr", "ledger", "signature", "format"};
    static const char *const grant_keys[] = {"node",      "to",     "request", "certificate",
                                             "granter",   "ca",     "crl",     "spki",
                                             "ephemeral", "sealed", "ledger",  "signature"};
    struct iso_node *alice = temp_nodes_make(t, "alice", true);
    struct iso_node *bob = temp_nodes_make(t, "bob", false);
    struct docs d;
    struct iso_peer peer;
    docs_init(&d);
    for (size_t i = 0; i < sizeof req_keys / sizeof req_keys[0]; i++) {
        request(bob, &d.req);
        tamper(&d.req, req_keys[i]);
        if (issue(alice, &d.grant, &d.req, NULL) == ISO_OK) fail_msg("request: %s", req_keys[i]);
    }
    assert_int_equal(iso_node_peer_by_name(alice, &peer, "bob"), ISO_E_AUTH);
    request(bob, &d.req);
    temp_nodes_must(issue(alice, &d.grant, &d.req, NULL));
    struct iso_buf copy;
    iso_buf_init(&copy, ISO_NODE_DOC_MAX);
    for (size_t i = 0; i < sizeof grant_keys / sizeof grant_keys[0]; i++) {
        iso_buf_clear(&copy);
        temp_nodes_must(iso_buf_append(&copy, d.grant.data, d.grant.len));
        tamper(&copy, grant_keys[i]);
        if (enroll(bob, &d.none, &copy, NULL) == ISO_OK) fail_msg("grant: %s", grant_keys[i]);
    }
    for (size_t cut = 0; cut + 1 < d.grant.len; cut += 37) {
        iso_buf_clear(&copy);
        temp_nodes_must(iso_buf_append(&copy, d.grant.data, cut));
        assert_int_not_equal(enroll(bob, &d.none, &copy, NULL), ISO_OK);
    }
    assert_int_equal(iso_node_ready(bob), ISO_E_AUTH); /* nothing was installed on the way */
    assert_int_equal(iso_node_peer_by_name(bob, &peer, "alice"), ISO_E_AUTH);
    temp_nodes_must(enroll(bob, &d.none, &d.grant, NULL));
    iso_buf_deinit(&copy);
    docs_deinit(&d);
    iso_node_free(alice);
    iso_node_free(bob);
}

static void revocation(void **state)
{
    const struct temp_nodes *t = *state;
    struct iso_node *alice = temp_nodes_make(t, "alice", true);
    struct iso_node *bob = temp_nodes_make(t, "bob", false);
    struct iso_node *carol = temp_nodes_make(t, "carol", false);
    struct docs d;
    struct iso_peer peer;
    docs_init(&d);
    temp_nodes_must(iso_node_pair(alice, bob, NULL));
    temp_nodes_must(iso_node_pair(alice, carol, NULL));
    temp_nodes_must(iso_node_crl(alice, &d.none));
    struct iso_buf old;
    iso_buf_init(&old, ISO_NODE_DOC_MAX);
    temp_nodes_must(iso_buf_append(&old, d.none.data, d.none.len));
    temp_nodes_must(iso_node_revoke(alice, "bob"));
    temp_nodes_must(iso_node_peer_by_name(alice, &peer, "bob"));
    assert_true(peer.revoked);
    /* The list travels; an older one does not go back over it. */
    iso_buf_clear(&d.grant);
    temp_nodes_must(iso_node_crl(alice, &d.grant));
    temp_nodes_must(enroll(carol, &d.none, &d.grant, NULL));
    temp_nodes_must(enroll(carol, &d.none, &d.grant, NULL));
    assert_int_equal(enroll(carol, &d.none, &old, NULL), ISO_E_REFUSED);
    /* carol now refuses bob's certificate in a request. */
    request(bob, &d.req);
    assert_int_equal(enroll(carol, &d.none, &d.req, NULL), ISO_E_AUTH);
    assert_non_null(strstr(iso_err_message(), "revoked"));
    /* Back only on purpose. */
    assert_int_equal(issue(alice, &d.grant, &d.req, NULL), ISO_E_REFUSED);
    temp_nodes_must(issue(alice, &d.grant, &d.req, &(struct iso_node_opts){.replace = true}));
    temp_nodes_must(iso_node_peer_by_name(alice, &peer, "bob"));
    assert_false(peer.revoked);
    assert_int_equal(iso_node_revoke(alice, "nobody"), ISO_E_ARG);
    assert_int_equal(iso_node_revoke(carol, "bob"), ISO_E_ARG);
    temp_nodes_must(iso_node_revoke(carol, "alice")); /* a local mark needs no CA */
    iso_buf_deinit(&old);
    docs_deinit(&d);
    iso_node_free(alice);
    iso_node_free(bob);
    iso_node_free(carol);
}

static void damaged_peer_record_is_an_error(void **state)
{
    const struct temp_nodes *t = *state;
    struct iso_node *alice = temp_nodes_make(t, "alice", true);
    struct iso_node *bob = temp_nodes_make(t, "bob", false);
    struct iso_peer peer;
    size_t len;
    temp_nodes_must(iso_node_pair(alice, bob, NULL));
    char *good = temp_nodes_get(t, "alice", "peers/bob.json", &len);
    for (size_t cut = 0; cut < len; cut += 11) {
        temp_nodes_put(t, "alice", "peers/bob.json", good, cut);
        assert_int_equal(iso_node_peer_by_name(alice, &peer, "bob"), ISO_E_FORMAT);
    }
    temp_nodes_put(t, "alice", "peers/eve.json", good, len); /* a copy under another name */
    assert_int_equal(iso_node_peer_by_name(alice, &peer, "eve"), ISO_E_FORMAT);
    free(good);
    iso_node_free(alice);
    iso_node_free(bob);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, temp_nodes_setup, temp_nodes_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(two_documents_enrol_both),
        TEST(renewal_keeps_pair_key),
        TEST(new_key_needs_replace),
        TEST(new_ledger_needs_replace),
        TEST(peers_enrol_without_the_ca_machine),
        TEST(wrong_hands),
        TEST(own_name_is_refused),
        TEST(every_member_is_signed),
        TEST(revocation),
        TEST(damaged_peer_record_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
