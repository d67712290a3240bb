/* SPDX-License-Identifier: MIT
 * node_seal.c - signatures over documents and the encryption of the pair key to one node.
 *
 * The pair key travels inside a grant. It is encrypted to the public key of the request, so a grant
 * that is read on its way gives nothing away; only swapping both documents on the way would, and
 * that is what comparing the pins is for. */
#include "node/node_internal.h"

#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <string.h>

#include "base/json.h"

#define SHARED_LEN 32 /* x coordinate of P-256 */
#define TAG_LEN 16    /* bytes of GCM */
static const char SALT[] = "isobit-pair-1";

_Static_assert(ISO_NODE_SEALED_LEN == ISO_NODE_PAIR_KEY_LEN + TAG_LEN, "sealed pair key");

enum iso_err iso_node_key_sign(EVP_PKEY *key,
                               uint8_t sig[ISO_NODE_SIG_MAX],
                               size_t *sig_len,
                               const struct iso_digest *digest)
{
    EVP_PKEY_CTX *ctx = EVP_PKEY_CTX_new(key, NULL);
    uint8_t der[ISO_NODE_SIG_MAX];
    size_t len = sizeof der;
    const int ok = ctx != NULL && EVP_PKEY_sign_init(ctx) > 0 &&
                   EVP_PKEY_CTX_set_signature_md(ctx, EVP_sha256()) > 0 &&
                   EVP_PKEY_sign(ctx, der, &len, digest->bytes, sizeof digest->bytes) > 0;
    EVP_PKEY_CTX_free(ctx);
    if (!ok) {
        char text[256];
        ISO_FAIL(ISO_E_IO, "cannot sign: %s", iso_node_ssl_error(text));
    }
    memcpy(sig, der, len);
    *sig_len = len;
    return ISO_OK;
}

enum iso_err iso_node_verify(const uint8_t *spki,
                             size_t spki_len,
                             const struct iso_digest *digest,
                             const uint8_t *sig,
                             size_t sig_len)
{
    EVP_PKEY *key = NULL;
    ISO_TRY(iso_node_key_from_spki(&key, spki, spki_len));
    EVP_PKEY_CTX *ctx = EVP_PKEY_CTX_new(key, NULL);
    const int ok = sig_len <= ISO_NODE_SIG_MAX && ctx != NULL && EVP_PKEY_verify_init(ctx) > 0 &&
                   EVP_PKEY_CTX_set_signature_md(ctx, EVP_sha256()) > 0 &&
                   EVP_PKEY_verify(ctx, sig, sig_len, digest->bytes, sizeof digest->bytes) == 1;
    EVP_PKEY_CTX_free(ctx);
    EVP_PKEY_free(key);
    ERR_clear_error();
    if (!ok) ISO_FAIL(ISO_E_AUTH, "the signature is wrong");
    return ISO_OK;
}

/* SHA-256 of the canonical text of doc without its "signature". */
static enum iso_err doc_digest(struct iso_digest *out, const json_t *doc)
{
    json_t *bare = json_copy((json_t *)(uintptr_t)doc);
    if (bare == NULL) ISO_FAIL(ISO_E_NOMEM, "no memory for a document");
    (void)json_object_del(bare, "signature");
    struct iso_buf b;
    iso_buf_init(&b, ISO_NODE_DOC_MAX);
    const enum iso_err err = iso_json_canonical(&b, bare);
    if (err == ISO_OK) iso_sha256(out, b.data, b.len);
    iso_buf_deinit(&b);
    json_decref(bare);
    return err;
}

enum iso_err iso_node_doc_sign(json_t *doc, EVP_PKEY *key)
{
    struct iso_digest digest;
    uint8_t sig[ISO_NODE_SIG_MAX];
    size_t len;
    ISO_TRY(doc_digest(&digest, doc));
    ISO_TRY(iso_node_key_sign(key, sig, &len, &digest));
    return iso_node_json_set_hex(doc, "signature", sig, len);
}

enum iso_err iso_node_doc_verify(const json_t *doc, const uint8_t spki[ISO_NODE_SPKI_LEN])
{
    struct iso_digest digest;
    uint8_t sig[ISO_NODE_SIG_MAX];
    const char *hex;
    ISO_TRY(iso_json_get_string(&hex, doc, "signature"));
    const size_t len = strlen(hex) / 2;
    if (len > sizeof sig) ISO_FAIL(ISO_E_FORMAT, "signature of %zu bytes", len);
    ISO_TRY(iso_node_json_hex(sig, len, doc, "signature"));
    ISO_TRY(doc_digest(&digest, doc));
    return iso_node_verify(spki, ISO_NODE_SPKI_LEN, &digest, sig, len);
}

/* key = HKDF-SHA-256(ECDH, salt, ephemeral | recipient): bound to both public keys. */
static enum iso_err wrap_key(uint8_t out[32],
                             EVP_PKEY *own,
                             EVP_PKEY *other,
                             const uint8_t ephemeral[ISO_NODE_SPKI_LEN],
                             const uint8_t recipient[ISO_NODE_SPKI_LEN])
{
    uint8_t shared[SHARED_LEN];
    uint8_t info[2 * ISO_NODE_SPKI_LEN];
    size_t len = sizeof shared;
    memcpy(info, ephemeral, ISO_NODE_SPKI_LEN);
    memcpy(info + ISO_NODE_SPKI_LEN, recipient, ISO_NODE_SPKI_LEN);
    EVP_PKEY_CTX *ctx = EVP_PKEY_CTX_new(own, NULL);
    EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
    EVP_KDF_CTX *kctx = kdf ? EVP_KDF_CTX_new(kdf) : NULL;
    char sha256[] = "SHA256";
    char salt[sizeof SALT];
    memcpy(salt, SALT, sizeof SALT);
    const OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, sha256, 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, shared, sizeof shared),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, salt, sizeof SALT - 1),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info, sizeof info),
        OSSL_PARAM_construct_end(),
    };
    const int ok = ctx != NULL && kctx != NULL && EVP_PKEY_derive_init(ctx) > 0 &&
                   EVP_PKEY_derive_set_peer(ctx, other) > 0 &&
                   EVP_PKEY_derive(ctx, shared, &len) > 0 && len == sizeof shared &&
                   EVP_KDF_derive(kctx, out, 32, params) > 0;
    OPENSSL_cleanse(shared, sizeof shared);
    EVP_KDF_CTX_free(kctx);
    EVP_KDF_free(kdf);
    EVP_PKEY_CTX_free(ctx);
    if (!ok) {
        char text[256];
        ISO_FAIL(ISO_E_IO, "cannot derive a key: %s", iso_node_ssl_error(text));
    }
    return ISO_OK;
}

/* AES-256-GCM with a zero nonce: the key is used for this one message. */
static int
gcm(uint8_t *out, uint8_t tag[TAG_LEN], const uint8_t *in, const uint8_t key[32], int seal)
{
    static const uint8_t nonce[12];
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    int n = 0;
    int m = 0;
    const int ok = c != NULL && EVP_CipherInit_ex(c, EVP_aes_256_gcm(), NULL, key, nonce, seal) &&
                   EVP_CipherUpdate(c, out, &n, in, ISO_NODE_PAIR_KEY_LEN) &&
                   (seal || EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_SET_TAG, TAG_LEN, tag)) &&
                   EVP_CipherFinal_ex(c, out + n, &m) &&
                   (!seal || EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_GET_TAG, TAG_LEN, tag));
    EVP_CIPHER_CTX_free(c);
    return ok;
}

enum iso_err iso_node_seal(uint8_t ephemeral[ISO_NODE_SPKI_LEN],
                           uint8_t sealed[ISO_NODE_SEALED_LEN],
                           const uint8_t pair_key[ISO_NODE_PAIR_KEY_LEN],
                           const uint8_t spki[ISO_NODE_SPKI_LEN])
{
    EVP_PKEY *own = NULL;
    EVP_PKEY *other = NULL;
    uint8_t key[32];
    enum iso_err err = ISO_OK;
    ISO_TRY_OUT(iso_node_key_from_spki(&other, spki, ISO_NODE_SPKI_LEN));
    ISO_TRY_OUT(iso_node_key_new(&own));
    ISO_TRY_OUT(iso_node_key_spki(ephemeral, own));
    ISO_TRY_OUT(wrap_key(key, own, other, ephemeral, spki));
    if (!gcm(sealed, sealed + ISO_NODE_PAIR_KEY_LEN, pair_key, key, 1))
        ISO_FAIL_OUT(ISO_E_IO, "cannot encrypt the pair key");
out:
    OPENSSL_cleanse(key, sizeof key);
    EVP_PKEY_free(own);
    EVP_PKEY_free(other);
    return err;
}

enum iso_err iso_node_unseal(uint8_t pair_key[ISO_NODE_PAIR_KEY_LEN],
                             EVP_PKEY *key,
                             const uint8_t ephemeral[ISO_NODE_SPKI_LEN],
                             const uint8_t sealed[ISO_NODE_SEALED_LEN])
{
    EVP_PKEY *other = NULL;
    uint8_t spki[ISO_NODE_SPKI_LEN];
    uint8_t wrap[32];
    uint8_t plain[ISO_NODE_PAIR_KEY_LEN];
    uint8_t tag[TAG_LEN];
    enum iso_err err = ISO_OK;
    memcpy(tag, sealed + ISO_NODE_PAIR_KEY_LEN, TAG_LEN);
    ISO_TRY_OUT(iso_node_key_from_spki(&other, ephemeral, ISO_NODE_SPKI_LEN));
    ISO_TRY_OUT(iso_node_key_spki(spki, key));
    ISO_TRY_OUT(wrap_key(wrap, key, other, ephemeral, spki));
    if (!gcm(plain, tag, sealed, wrap, 0))
        ISO_FAIL_OUT(ISO_E_AUTH, "the pair key was not encrypted for this node");
    memcpy(pair_key, plain, sizeof plain);
out:
    OPENSSL_cleanse(wrap, sizeof wrap);
    OPENSSL_cleanse(plain, sizeof plain);
    EVP_PKEY_free(other);
    ERR_clear_error();
    return err;
}
