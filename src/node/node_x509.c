/* SPDX-License-Identifier: MIT
 * node_x509.c - keys and certificates: P-256, X.509 v3, made and checked with OpenSSL. */
#include "node/node_internal.h"

#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"

#define SERIAL_LEN 16 /* random bytes; RFC 5280 allows 20 */
#define SECONDS_PER_DAY 86400
#define CN_MAX 128 /* "isobit CA of <name>" */

const char *iso_node_ssl_error(char buf[256])
{
    const unsigned long e = ERR_get_error();
    if (e == 0) return "no detail";
    ERR_error_string_n(e, buf, 256);
    ERR_clear_error();
    return buf;
}

/* Raises with OpenSSL's own text behind the message. */
#define FAIL_SSL(code, what)                                                                       \
    do {                                                                                           \
        char ssl_text_[256];                                                                       \
        ISO_FAIL(code, "%s: %s", what, iso_node_ssl_error(ssl_text_));                             \
    } while (0)

enum iso_err iso_node_key_new(EVP_PKEY **out)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    if (key == NULL) FAIL_SSL(ISO_E_IO, "cannot make a P-256 key");
    *out = key;
    return ISO_OK;
}

/* Appends what a PEM writer left in bio. */
static enum iso_err take_bio(struct iso_buf *out, BIO *bio)
{
    char *text;
    const long len = BIO_get_mem_data(bio, &text);
    if (len <= 0) FAIL_SSL(ISO_E_IO, "cannot write PEM");
    return iso_buf_append(out, text, (size_t)len);
}

enum iso_err iso_node_key_to_pem(struct iso_buf *out, EVP_PKEY *key)
{
    BIO *bio = BIO_new(BIO_s_secmem());
    if (bio == NULL) ISO_FAIL(ISO_E_NOMEM, "no memory for a key");
    enum iso_err err = ISO_OK;
    if (!PEM_write_bio_PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL))
        err = iso_err_raise(ISO_E_IO, __FILE__, __LINE__, "cannot write a private key");
    if (err == ISO_OK) err = take_bio(out, bio);
    BIO_free(bio);
    return err;
}

/* No password prompt, whatever the file says. */
static int no_password(char *buf, int size, int writing, void *user)
{
    (void)buf, (void)size, (void)writing, (void)user;
    return -1;
}

enum iso_err iso_node_key_from_pem(EVP_PKEY **out, const struct iso_buf *pem)
{
    BIO *bio = BIO_new_mem_buf(pem->data, (int)pem->len);
    EVP_PKEY *key = bio ? PEM_read_bio_PrivateKey(bio, NULL, no_password, NULL) : NULL;
    BIO_free(bio);
    if (key == NULL) FAIL_SSL(ISO_E_FORMAT, "not a private key in PEM");
    uint8_t spki[ISO_NODE_SPKI_LEN];
    const enum iso_err err = iso_node_key_spki(spki, key);
    if (err != ISO_OK) {
        EVP_PKEY_free(key);
        return err;
    }
    *out = key;
    return ISO_OK;
}

enum iso_err iso_node_key_load(EVP_PKEY **out, int dir_fd, const char *name)
{
    struct iso_buf pem;
    iso_buf_init(&pem, ISO_NODE_PEM_MAX);
    enum iso_err err = iso_node_store_read(dir_fd, name, &pem);
    if (err == ISO_OK) err = iso_node_key_from_pem(out, &pem);
    iso_node_wipe_buf(&pem);
    return err;
}

enum iso_err iso_node_key_spki(uint8_t spki[ISO_NODE_SPKI_LEN], EVP_PKEY *key)
{
    char group[32] = "";
    size_t n = 0;
    /* The length alone would let another 256-bit curve through. */
    if (EVP_PKEY_get_base_id(key) != EVP_PKEY_EC ||
        !EVP_PKEY_get_utf8_string_param(key, OSSL_PKEY_PARAM_GROUP_NAME, group, sizeof group, &n) ||
        strcmp(group, "prime256v1") != 0)
        ISO_FAIL(ISO_E_FORMAT, "the key is not a P-256 key");
    if (i2d_PUBKEY(key, NULL) != ISO_NODE_SPKI_LEN)
        ISO_FAIL(ISO_E_FORMAT, "the public key is not %d bytes of DER", ISO_NODE_SPKI_LEN);
    unsigned char *p = spki;
    (void)i2d_PUBKEY(key, &p);
    return ISO_OK;
}

enum iso_err iso_node_key_from_spki(EVP_PKEY **out, const uint8_t *spki, size_t len)
{
    const unsigned char *p = spki;
    EVP_PKEY *key = len == ISO_NODE_SPKI_LEN ? d2i_PUBKEY(NULL, &p, (long)len) : NULL;
    if (key == NULL) FAIL_SSL(ISO_E_FORMAT, "not a public key");
    uint8_t again[ISO_NODE_SPKI_LEN];
    enum iso_err err = iso_node_key_spki(again, key);
    /* One key, one spelling: the pin is over these bytes. */
    if (err == ISO_OK && memcmp(again, spki, sizeof again) != 0)
        err = iso_err_raise(ISO_E_FORMAT, __FILE__, __LINE__,
                            "the public key is not in canonical DER");
    if (err != ISO_OK) {
        EVP_PKEY_free(key);
        return err;
    }
    *out = key;
    return ISO_OK;
}

static int add_ext(X509 *cert, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX ctx;
    X509V3_set_ctx(&ctx, issuer, cert, NULL, NULL, 0);
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    const int ok = e != NULL && X509_add_ext(cert, e, -1);
    X509_EXTENSION_free(e);
    return ok;
}

static int add_extensions(X509 *cert, X509 *issuer, const struct iso_cert_args *a)
{
    if (!add_ext(cert, issuer, NID_subject_key_identifier, "hash")) return 0;
    if (a->ca)
        return add_ext(cert, issuer, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
               add_ext(cert, issuer, NID_key_usage, "critical,keyCertSign,cRLSign");
    char san[sizeof "URI:" ISO_NODE_SAN_PREFIX + ISO_NODE_NAME_MAX];
    (void)snprintf(san, sizeof san, "URI:" ISO_NODE_SAN_PREFIX "%s", a->name);
    return add_ext(cert, issuer, NID_authority_key_identifier, "keyid:always") &&
           add_ext(cert, issuer, NID_basic_constraints, "critical,CA:FALSE") &&
           add_ext(cert, issuer, NID_key_usage, "critical,digitalSignature") &&
           add_ext(cert, issuer, NID_ext_key_usage, "serverAuth,clientAuth") &&
           add_ext(cert, issuer, NID_subject_alt_name, san);
}

static int set_serial(X509 *cert)
{
    uint8_t raw[SERIAL_LEN];
    if (RAND_bytes(raw, sizeof raw) != 1) return 0;
    raw[0] = (uint8_t)((raw[0] & 0x7f) | 0x40); /* positive and of full length */
    BIGNUM *bn = BN_bin2bn(raw, sizeof raw, NULL);
    const int ok = bn != NULL && BN_to_ASN1_INTEGER(bn, X509_get_serialNumber(cert)) != NULL;
    BN_free(bn);
    return ok;
}

/* A node's certificate does not outlive its CA's. */
static int set_dates(X509 *cert, const struct iso_cert_args *a)
{
    const int64_t now = iso_clock_wall_s();
    int64_t end = now + (int64_t)a->days * SECONDS_PER_DAY;
    int64_t start = a->starts_in_s ? now + a->starts_in_s : now - ISO_NODE_SKEW_S;
    if (a->days < 0) start = end - SECONDS_PER_DAY;
    if (a->issuer != NULL) end = ISO_MIN(end, iso_node_cert_expires(a->issuer));
    time_t zero = 0;
    return X509_time_adj_ex(X509_getm_notBefore(cert), (int)(start / SECONDS_PER_DAY),
                            (long)(start % SECONDS_PER_DAY), &zero) != NULL &&
           X509_time_adj_ex(X509_getm_notAfter(cert), (int)(end / SECONDS_PER_DAY),
                            (long)(end % SECONDS_PER_DAY), &zero) != NULL;
}

static int set_cn(X509_NAME *name, const char *cn)
{
    return X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, (const unsigned char *)cn, -1, -1,
                                      0);
}

enum iso_err iso_node_cert_make(X509 **out, const struct iso_cert_args *a)
{
    char cn[CN_MAX];
    uint8_t spki[ISO_NODE_SPKI_LEN];
    struct iso_digest pin;
    char hex[ISO_DIGEST_HEX];
    ISO_TRY(iso_node_key_spki(spki, a->subject));
    iso_sha256(&pin, spki, sizeof spki);
    iso_digest_hex(hex, &pin);
    /* Two CAs of one name must have different subjects: a chain is looked up by subject. */
    if (a->ca)
        (void)snprintf(cn, sizeof cn, "isobit CA of %s %.16s", a->name, hex);
    else
        (void)snprintf(cn, sizeof cn, "%s", a->name);

    X509 *cert = X509_new();
    if (cert == NULL) ISO_FAIL(ISO_E_NOMEM, "no memory for a certificate");
    X509 *issuer = a->issuer ? a->issuer : cert;
    const int ok = X509_set_version(cert, X509_VERSION_3) && set_serial(cert) &&
                   set_dates(cert, a) && set_cn(X509_get_subject_name(cert), cn) &&
                   X509_set_issuer_name(cert, X509_get_subject_name(issuer)) &&
                   X509_set_pubkey(cert, a->subject) && add_extensions(cert, issuer, a) &&
                   X509_sign(cert, a->signer, EVP_sha256()) > 0;
    if (!ok) {
        X509_free(cert);
        FAIL_SSL(ISO_E_IO, "cannot make a certificate");
    }
    *out = cert;
    return ISO_OK;
}

enum iso_err iso_node_cert_to_pem(struct iso_buf *out, X509 *cert)
{
    BIO *bio = BIO_new(BIO_s_mem());
    if (bio == NULL) ISO_FAIL(ISO_E_NOMEM, "no memory for a certificate");
    enum iso_err err = ISO_OK;
    if (!PEM_write_bio_X509(bio, cert))
        err = iso_err_raise(ISO_E_IO, __FILE__, __LINE__, "cannot write a certificate");
    if (err == ISO_OK) err = take_bio(out, bio);
    BIO_free(bio);
    return err;
}

enum iso_err iso_node_cert_from_pem(X509 **out, const char *pem, size_t len, const char *what)
{
    if (len > ISO_NODE_PEM_MAX)
        ISO_FAIL(ISO_E_LIMIT, "%s: %zu characters, limit %d", what, len, ISO_NODE_PEM_MAX);
    BIO *bio = BIO_new_mem_buf(pem, (int)len);
    X509 *cert = bio ? PEM_read_bio_X509(bio, NULL, no_password, NULL) : NULL;
    BIO_free(bio);
    if (cert == NULL) {
        ERR_clear_error();
        ISO_FAIL(ISO_E_FORMAT, "%s: not a certificate in PEM", what);
    }
    *out = cert;
    return ISO_OK;
}

enum iso_err iso_node_cert_load(X509 **out, int dir_fd, const char *name)
{
    struct iso_buf pem;
    iso_buf_init(&pem, ISO_NODE_PEM_MAX);
    enum iso_err err = iso_node_store_read(dir_fd, name, &pem);
    if (err == ISO_OK) err = iso_node_cert_from_pem(out, (const char *)pem.data, pem.len, name);
    iso_buf_deinit(&pem);
    return err;
}

enum iso_err iso_node_cert_check(X509 *cert, X509 *ca, X509_CRL *crl)
{
    X509_STORE *store = X509_STORE_new();
    X509_STORE_CTX *ctx = X509_STORE_CTX_new();
    enum iso_err err = ISO_OK;
    if (store == NULL || ctx == NULL || !X509_STORE_add_cert(store, ca) ||
        (crl != NULL && !X509_STORE_add_crl(store, crl)) ||
        !X509_STORE_CTX_init(ctx, store, cert, NULL))
        ISO_FAIL_OUT(ISO_E_NOMEM, "no memory to check a certificate");
    X509_STORE_CTX_set_flags(ctx, X509_V_FLAG_NO_CHECK_TIME | X509_V_FLAG_X509_STRICT |
                                      (crl ? X509_V_FLAG_CRL_CHECK : 0UL));
    (void)X509_STORE_CTX_set_purpose(ctx, X509_PURPOSE_SSL_CLIENT);
    if (X509_verify_cert(ctx) != 1)
        ISO_FAIL_OUT(ISO_E_AUTH, "certificate refused: %s",
                     X509_verify_cert_error_string(X509_STORE_CTX_get_error(ctx)));
out:
    X509_STORE_CTX_free(ctx);
    X509_STORE_free(store);
    ERR_clear_error();
    return err;
}

enum iso_err iso_node_cert_check_ca(X509 *ca)
{
    const uint32_t need = KU_KEY_CERT_SIGN | KU_CRL_SIGN;
    uint8_t spki[ISO_NODE_SPKI_LEN];
    EVP_PKEY *key = X509_get0_pubkey(ca);
    if (key == NULL) ISO_FAIL(ISO_E_AUTH, "the CA certificate has no readable key");
    ISO_TRY(iso_node_key_spki(spki, key));
    const bool ok = X509_check_ca(ca) == 1 && (X509_get_key_usage(ca) & need) == need &&
                    X509_verify(ca, key) == 1;
    ERR_clear_error();
    if (!ok) ISO_FAIL(ISO_E_AUTH, "not a self-signed CA that may sign certificates and lists");
    return ISO_OK;
}

int64_t iso_node_cert_expires(const X509 *cert)
{
    struct tm tm;
    int days = 0;
    int seconds = 0;
    ASN1_TIME *epoch = ASN1_TIME_set(NULL, 0);
    const int ok = epoch != NULL && ASN1_TIME_to_tm(X509_get0_notAfter(cert), &tm) &&
                   ASN1_TIME_diff(&days, &seconds, epoch, X509_get0_notAfter(cert));
    ASN1_TIME_free(epoch);
    return ok ? (int64_t)days * SECONDS_PER_DAY + seconds : 0;
}

enum iso_err iso_node_cert_serial(char out[64], const X509 *cert)
{
    const ASN1_INTEGER *serial = X509_get0_serialNumber(cert);
    const int len = ASN1_STRING_length(serial);
    if (len < 1 || len > 20) ISO_FAIL(ISO_E_FORMAT, "serial number of %d bytes", len);
    iso_node_hex(out, ASN1_STRING_get0_data(serial), (size_t)len);
    return ISO_OK;
}

/* Name in the one SAN URI, see creds.h. */
enum iso_err iso_node_cert_name(char out[ISO_NODE_NAME_MAX], const X509 *cert)
{
    GENERAL_NAMES *names = X509_get_ext_d2i(cert, NID_subject_alt_name, NULL, NULL);
    char text[ISO_NODE_NAME_MAX + sizeof ISO_NODE_SAN_PREFIX] = "";
    int type = 0;
    const int n = names ? sk_GENERAL_NAME_num(names) : 0;
    if (n == 1) {
        const ASN1_STRING *s = GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(names, 0), &type);
        const int len = type == GEN_URI ? ASN1_STRING_length(s) : 0;
        if (len > 0 && (size_t)len < sizeof text)
            memcpy(text, ASN1_STRING_get0_data(s), (size_t)len);
    }
    GENERAL_NAMES_free(names);
    const size_t prefix = sizeof ISO_NODE_SAN_PREFIX - 1;
    if (n != 1 || strncmp(text, ISO_NODE_SAN_PREFIX, prefix) != 0)
        ISO_FAIL(ISO_E_AUTH,
                 "the certificate has no single name of the form " ISO_NODE_SAN_PREFIX "<node>");
    if (iso_node_check_name(text + prefix) != ISO_OK)
        ISO_FAIL(ISO_E_AUTH, "the certificate's name is not a node name");
    memcpy(out, text + prefix, strlen(text + prefix) + 1);
    return ISO_OK;
}

enum iso_err iso_node_cert_pin(struct iso_digest *out, const X509 *cert)
{
    uint8_t spki[ISO_NODE_SPKI_LEN];
    EVP_PKEY *key = X509_get0_pubkey(cert);
    if (key == NULL || iso_node_key_spki(spki, key) != ISO_OK)
        ISO_FAIL(ISO_E_AUTH, "the certificate's key is not a P-256 key");
    iso_sha256(out, spki, sizeof spki);
    return ISO_OK;
}

enum iso_err iso_node_csr_make(struct iso_buf *pem, const char *name, EVP_PKEY *key)
{
    X509_REQ *req = X509_REQ_new();
    BIO *bio = BIO_new(BIO_s_mem());
    enum iso_err err = ISO_OK;
    if (req == NULL || bio == NULL || !X509_REQ_set_version(req, X509_REQ_VERSION_1) ||
        !set_cn(X509_REQ_get_subject_name(req), name) || !X509_REQ_set_pubkey(req, key) ||
        X509_REQ_sign(req, key, EVP_sha256()) <= 0 || !PEM_write_bio_X509_REQ(bio, req))
        ISO_FAIL_OUT(ISO_E_IO, "cannot make a certificate request");
    err = take_bio(pem, bio);
out:
    BIO_free(bio);
    X509_REQ_free(req);
    ERR_clear_error();
    return err;
}

enum iso_err iso_node_csr_read(EVP_PKEY **key, const char *pem, const char *name)
{
    BIO *bio = BIO_new_mem_buf(pem, -1);
    X509_REQ *req = bio ? PEM_read_bio_X509_REQ(bio, NULL, no_password, NULL) : NULL;
    char cn[CN_MAX] = "";
    uint8_t spki[ISO_NODE_SPKI_LEN];
    enum iso_err err = ISO_OK;
    if (req == NULL) ISO_FAIL_OUT(ISO_E_FORMAT, "not a certificate request in PEM");
    EVP_PKEY *own = X509_REQ_get0_pubkey(req);
    if (own == NULL || X509_REQ_verify(req, own) != 1)
        ISO_FAIL_OUT(ISO_E_AUTH, "the certificate request of %s is not signed by its own key",
                     name);
    ISO_TRY_OUT(iso_node_key_spki(spki, own));
    if (X509_NAME_get_text_by_NID(X509_REQ_get_subject_name(req), NID_commonName, cn, sizeof cn) <
            0 ||
        strcmp(cn, name) != 0)
        ISO_FAIL_OUT(ISO_E_AUTH, "the certificate request is for \"%s\", the document for %s", cn,
                     name);
    EVP_PKEY_up_ref(own);
    *key = own;
out:
    BIO_free(bio);
    X509_REQ_free(req);
    ERR_clear_error();
    return err;
}

static int crl_add(X509_CRL *crl, const char *serial, ASN1_TIME *when)
{
    X509_REVOKED *r = X509_REVOKED_new();
    BIGNUM *bn = NULL;
    ASN1_INTEGER *number = NULL;
    int ok = r != NULL && BN_hex2bn(&bn, serial) > 0 && (number = BN_to_ASN1_INTEGER(bn, NULL)) &&
             X509_REVOKED_set_serialNumber(r, number) && X509_REVOKED_set_revocationDate(r, when) &&
             X509_CRL_add0_revoked(crl, r);
    if (!ok) X509_REVOKED_free(r);
    ASN1_INTEGER_free(number);
    BN_free(bn);
    return ok;
}

/* Valid as long as its CA: a family at home has no server that would hand out fresh lists. */
static int crl_fill(X509_CRL *crl, X509 *ca, ASN1_TIME *start, ASN1_INTEGER *number)
{
    X509V3_CTX ctx;
    X509V3_set_ctx(&ctx, ca, NULL, NULL, crl, 0);
    X509_EXTENSION *aki =
        X509V3_EXT_conf_nid(NULL, &ctx, NID_authority_key_identifier, "keyid:always");
    const int ok = aki != NULL && X509_CRL_set_version(crl, X509_CRL_VERSION_2) &&
                   X509_CRL_set_issuer_name(crl, X509_get_subject_name(ca)) &&
                   X509_CRL_set1_lastUpdate(crl, start) &&
                   X509_CRL_set1_nextUpdate(crl, X509_get0_notAfter(ca)) &&
                   X509_CRL_add_ext(crl, aki, -1) &&
                   X509_CRL_add1_ext_i2d(crl, NID_crl_number, number, 0, 0);
    X509_EXTENSION_free(aki);
    return ok;
}

enum iso_err iso_node_crl_make(struct iso_buf *pem,
                               X509 *ca,
                               EVP_PKEY *ca_key,
                               int64_t number,
                               const char *const *serials,
                               size_t n)
{
    X509_CRL *crl = X509_CRL_new();
    ASN1_TIME *start = ASN1_TIME_set(NULL, (time_t)(iso_clock_wall_s() - ISO_NODE_SKEW_S));
    ASN1_INTEGER *num = ASN1_INTEGER_new();
    BIO *bio = BIO_new(BIO_s_mem());
    enum iso_err err = ISO_OK;
    if (crl == NULL || start == NULL || num == NULL || bio == NULL ||
        !ASN1_INTEGER_set_int64(num, number) || !crl_fill(crl, ca, start, num))
        ISO_FAIL_OUT(ISO_E_IO, "cannot make a revocation list");
    for (size_t i = 0; i < n; i++) {
        if (!crl_add(crl, serials[i], start))
            ISO_FAIL_OUT(ISO_E_FORMAT, "cannot revoke serial %s", serials[i]);
    }
    if (!X509_CRL_sort(crl) || X509_CRL_sign(crl, ca_key, EVP_sha256()) <= 0 ||
        !PEM_write_bio_X509_CRL(bio, crl))
        ISO_FAIL_OUT(ISO_E_IO, "cannot sign the revocation list");
    err = take_bio(pem, bio);
out:
    BIO_free(bio);
    ASN1_INTEGER_free(num);
    ASN1_TIME_free(start);
    X509_CRL_free(crl);
    ERR_clear_error();
    return err;
}

enum iso_err iso_node_crl_from_pem(X509_CRL **out, const char *pem, size_t len)
{
    if (len > ISO_NODE_DOC_MAX)
        ISO_FAIL(ISO_E_LIMIT, "revocation list: %zu characters, limit %u", len, ISO_NODE_DOC_MAX);
    BIO *bio = BIO_new_mem_buf(pem, (int)len);
    X509_CRL *crl = bio ? PEM_read_bio_X509_CRL(bio, NULL, no_password, NULL) : NULL;
    BIO_free(bio);
    if (crl == NULL) {
        ERR_clear_error();
        ISO_FAIL(ISO_E_FORMAT, "not a revocation list in PEM");
    }
    *out = crl;
    return ISO_OK;
}

enum iso_err iso_node_crl_check(X509_CRL *crl, X509 *ca)
{
    const int ok = X509_NAME_cmp(X509_CRL_get_issuer(crl), X509_get_subject_name(ca)) == 0 &&
                   X509_CRL_verify(crl, X509_get0_pubkey(ca)) == 1;
    ERR_clear_error();
    if (!ok) ISO_FAIL(ISO_E_AUTH, "the revocation list is not signed by this CA");
    return ISO_OK;
}

int64_t iso_node_crl_number(X509_CRL *crl)
{
    ASN1_INTEGER *number = X509_CRL_get_ext_d2i(crl, NID_crl_number, NULL, NULL);
    int64_t v = -1;
    if (number != NULL && !ASN1_INTEGER_get_int64(&v, number)) v = -1;
    ASN1_INTEGER_free(number);
    return v;
}
