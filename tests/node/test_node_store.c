/* SPDX-License-Identifier: MIT
 * test_node_store.c - a node directory: what is made, what is refused, what follows its files. */
#include <openssl/pem.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "node/creds.h"
#include "temp_nodes.h"

static void path_of(char out[512], const struct temp_nodes *t, const char *node, const char *file)
{
    (void)snprintf(out, 512, "%s/%s/%s", t->root, node, file);
}

static void expect_open(const struct temp_nodes *t, const char *name, enum iso_err want)
{
    struct iso_node *node = NULL;
    const enum iso_err got = iso_node_open(&node, temp_nodes_dir(t, name));
    if (got != want) fail_msg("open gave %d, expected %d: %s", got, want, iso_err_detail());
    iso_node_free(node);
}

static void makes_private_files(void **state)
{
    const struct temp_nodes *t = *state;
    static const char *const files[] = {"node.json",   "node.key.pem",  "node.cert.pem",
                                        "ca.cert.pem", "ca.key.pem",    "ca.crl.pem",
                                        "ledger.id",   "ca.issued.json"};
    struct iso_node *node = temp_nodes_make(t, "alice", true);
    struct stat st;
    char path[512];
    assert_int_equal(stat(temp_nodes_dir(t, "alice"), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        path_of(path, t, "alice", files[i]);
        assert_int_equal(lstat(path, &st), 0);
        assert_true(S_ISREG(st.st_mode));
        assert_int_equal(st.st_mode & 07777, 0600);
    }
    temp_nodes_must(iso_node_ready(node));
    assert_string_equal(iso_node_name(node), "alice");
    assert_true(iso_node_is_ca(node));
    assert_in_range(iso_node_days_left(node), ISO_NODE_DAYS - 1, ISO_NODE_DAYS);
    assert_int_equal(iso_node_init(temp_nodes_dir(t, "alice"), "alice", NULL), ISO_E_REFUSED);
    iso_node_free(node);
}

static void without_ca_is_not_ready(void **state)
{
    const struct temp_nodes *t = *state;
    struct iso_node *node = temp_nodes_make(t, "bob", false);
    assert_int_equal(iso_node_ready(node), ISO_E_AUTH);
    assert_non_null(strstr(iso_err_message(), "no certificate yet"));
    assert_true(iso_node_days_left(node) == INT64_MIN);
    assert_false(iso_node_is_ca(node));
    iso_node_free(node);
}

static void names(void **state)
{
    (void)state;
    static const char *const good[] = {"a", "7", "alice", "node-1.home_lan"};
    static const char *const bad[] = {"",    "Alice", ".a",       "-a", "a b",
                                      "a/b", "..",    "\xc3\xa4", "a\n"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_int_equal(iso_node_check_name(good[i]), ISO_OK);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(iso_node_check_name(bad[i]), ISO_E_ARG);
    char name[ISO_NODE_NAME_MAX + 1];
    memset(name, 'x', sizeof name);
    name[ISO_NODE_NAME_MAX] = '\0';
    assert_int_equal(iso_node_check_name(name), ISO_E_ARG);
    name[ISO_NODE_NAME_MAX - 1] = '\0';
    assert_int_equal(iso_node_check_name(name), ISO_OK);
}

static void refuses_open_modes(void **state)
{
    const struct temp_nodes *t = *state;
    static const char *const files[] = {"node.key.pem", "node.json", "ledger.id"};
    iso_node_free(temp_nodes_make(t, "alice", true));
    char path[512];
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        path_of(path, t, "alice", files[i]);
        static const mode_t modes[] = {0640, 0604, 0660, 0602};
        for (size_t m = 0; m < sizeof modes / sizeof modes[0]; m++) {
            assert_int_equal(chmod(path, modes[m]), 0);
            expect_open(t, "alice", ISO_E_AUTH);
        }
        assert_int_equal(chmod(path, 0600), 0);
        expect_open(t, "alice", ISO_OK);
    }
    assert_int_equal(chmod(temp_nodes_dir(t, "alice"), 0750), 0);
    expect_open(t, "alice", ISO_E_AUTH);
    assert_int_equal(chmod(temp_nodes_dir(t, "alice"), 0700), 0);
}

static void refuses_links(void **state)
{
    const struct temp_nodes *t = *state;
    char path[512];
    char aside[512];
    iso_node_free(temp_nodes_make(t, "alice", true));
    path_of(path, t, "alice", "node.key.pem");
    path_of(aside, t, "alice", "aside.pem");
    assert_int_equal(rename(path, aside), 0);
    assert_int_equal(symlink(aside, path), 0);
    expect_open(t, "alice", ISO_E_AUTH);
    assert_non_null(strstr(iso_err_message(), "symbolic link"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0); /* must not hang */
    expect_open(t, "alice", ISO_E_AUTH);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rename(aside, path), 0);
    expect_open(t, "alice", ISO_OK);
    path_of(path, t, "link", "");
    path[strlen(path) - 1] = '\0';
    assert_int_equal(symlink("alice", path), 0);
    expect_open(t, "link", ISO_E_AUTH);
}

/* Writes a key of another curve as bob's. */
static void put_key(const struct temp_nodes *t, EVP_PKEY *key)
{
    char *pem;
    BIO *bio = BIO_new(BIO_s_mem());
    assert_non_null(key);
    assert_int_equal(PEM_write_bio_PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL), 1);
    const long len = BIO_get_mem_data(bio, &pem);
    temp_nodes_put(t, "bob", "node.key.pem", pem, (size_t)len);
    BIO_free(bio);
    EVP_PKEY_free(key);
}

static void refuses_other_keys(void **state)
{
    const struct temp_nodes *t = *state;
    iso_node_free(temp_nodes_make(t, "bob", false));
    size_t len;
    char *good = temp_nodes_get(t, "bob", "node.key.pem", &len);
    static const char *const curves[] = {"secp256k1", "brainpoolP256r1", "P-384"};
    for (size_t i = 0; i < sizeof curves / sizeof curves[0]; i++) {
        put_key(t, EVP_EC_gen(curves[i]));
        expect_open(t, "bob", ISO_E_FORMAT);
        assert_non_null(strstr(iso_err_message(), "not a P-256 key"));
    }
    for (size_t cut = 0; cut < len - 30; cut += 7) {
        temp_nodes_put(t, "bob", "node.key.pem", good, cut);
        expect_open(t, "bob", ISO_E_FORMAT);
    }
    temp_nodes_put(t, "bob", "node.key.pem", good, len);
    expect_open(t, "bob", ISO_OK);
    free(good);
}

static void signs_and_verifies(void **state)
{
    const struct temp_nodes *t = *state;
    struct iso_node *node = temp_nodes_make(t, "alice", false);
    struct iso_digest pin;
    struct iso_digest digest;
    uint8_t spki[ISO_NODE_SPKI_LEN];
    uint8_t sig[ISO_NODE_SIG_MAX];
    size_t len;
    iso_sha256(&digest, "text", 4);
    iso_node_identity(node, &pin, spki);
    temp_nodes_must(iso_node_sign(node, sig, &len, &digest));
    temp_nodes_must(iso_node_verify(spki, sizeof spki, &digest, sig, len));
    for (size_t i = 0; i < len; i++) {
        sig[i] ^= 1;
        assert_int_equal(iso_node_verify(spki, sizeof spki, &digest, sig, len), ISO_E_AUTH);
        sig[i] ^= 1;
        assert_int_equal(iso_node_verify(spki, sizeof spki, &digest, sig, i), ISO_E_AUTH);
    }
    digest.bytes[31] ^= 0x80;
    assert_int_equal(iso_node_verify(spki, sizeof spki, &digest, sig, len), ISO_E_AUTH);
    assert_int_equal(iso_node_verify(spki, sizeof spki - 1, &digest, sig, len), ISO_E_FORMAT);
    spki[40] ^= 1;
    assert_int_not_equal(iso_node_verify(spki, sizeof spki, &digest, sig, len), ISO_OK);
    iso_node_free(node);
}

static void ledger_identity(void **state)
{
    const struct temp_nodes *t = *state;
    struct iso_node *node = temp_nodes_make(t, "alice", false);
    uint8_t first[ISO_NODE_LEDGER_ID_LEN];
    uint8_t second[ISO_NODE_LEDGER_ID_LEN];
    iso_node_ledger_id(node, first);
    assert_false(iso_node_ledger_claimed(node));
    temp_nodes_must(iso_node_ledger_claim(node));
    temp_nodes_must(iso_node_ledger_claim(node));
    assert_true(iso_node_ledger_claimed(node));
    temp_nodes_must(iso_node_ledger_renew(node));
    assert_false(iso_node_ledger_claimed(node));
    iso_node_ledger_id(node, second);
    assert_memory_not_equal(first, second, sizeof first);
    iso_node_free(node);
    node = temp_nodes_open(t, "alice");
    iso_node_ledger_id(node, first);
    assert_memory_equal(first, second, sizeof first);
    iso_node_free(node);
}

/* Serial number of the loaded certificate, to see which one is in use. */
static void serial_of(char out[64], struct iso_node *node)
{
    struct iso_node_creds c;
    temp_nodes_must(iso_node_creds_get(node, &c));
    BIGNUM *bn = ASN1_INTEGER_to_BN(X509_get0_serialNumber(c.cert), NULL);
    char *hex = BN_bn2hex(bn);
    (void)snprintf(out, 64, "%s", hex);
    OPENSSL_free(hex);
    BN_free(bn);
    iso_node_creds_release(&c);
}

static void follows_changed_files(void **state)
{
    const struct temp_nodes *t = *state;
    struct iso_node *node = temp_nodes_make(t, "alice", true);
    struct iso_node *other = temp_nodes_open(t, "alice"); /* as another process would */
    char before[64];
    char after[64];
    serial_of(before, node);
    temp_nodes_must(iso_node_rotate(other, NULL, false, NULL));
    serial_of(after, node);
    assert_string_not_equal(before, after);

    size_t len;
    char *good = temp_nodes_get(t, "alice", "node.cert.pem", &len);
    temp_nodes_put(t, "alice", "node.cert.pem", "garbage", 7);
    serial_of(before, node); /* the last good one stays */
    assert_string_equal(before, after);
    temp_nodes_put(t, "alice", "node.cert.pem", good, len);

    /* An expired certificate does not push out a valid one. */
    temp_nodes_must(iso_node_rotate(other, NULL, false, &(struct iso_node_opts){.days = -1}));
    serial_of(before, node);
    assert_string_equal(before, after);

    temp_nodes_must(iso_node_rotate(other, NULL, false, NULL));
    serial_of(before, node);
    assert_string_not_equal(before, after);
    free(good);
    iso_node_free(other);
    iso_node_free(node);
}

static void new_key_of_the_ca_machine(void **state)
{
    const struct temp_nodes *t = *state;
    struct iso_node *node = temp_nodes_make(t, "alice", true);
    struct iso_digest a;
    struct iso_digest b;
    uint8_t spki[ISO_NODE_SPKI_LEN];
    iso_node_identity(node, &a, spki);
    temp_nodes_must(iso_node_rotate(node, NULL, false, NULL));
    iso_node_identity(node, &b, spki);
    assert_memory_equal(&a, &b, sizeof a); /* a renewal keeps the pin */
    temp_nodes_must(iso_node_rotate(node, NULL, true, NULL));
    iso_node_identity(node, &b, spki);
    assert_memory_not_equal(&a, &b, sizeof a);
    temp_nodes_must(iso_node_ready(node));
    iso_node_free(node);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, temp_nodes_setup, temp_nodes_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(makes_private_files),       TEST(without_ca_is_not_ready), TEST(names),
        TEST(refuses_open_modes),        TEST(refuses_links),           TEST(refuses_other_keys),
        TEST(signs_and_verifies),        TEST(ledger_identity),         TEST(follows_changed_files),
        TEST(new_key_of_the_ca_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
