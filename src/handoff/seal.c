/* SPDX-License-Identifier: MIT
 * seal.c - key, tags and payload of a seal. */
#include "handoff/seal.h"

#include <string.h>

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#define INFO_TEXT "isobit-handoff-1 seal" /* without its NUL */
#define INFO_TEXT_LEN (sizeof(INFO_TEXT) - 1)

static int derive(uint8_t *key,
                  EVP_KDF_CTX *ctx,
                  const uint8_t *pair_key,
                  const uint8_t *exporter,
                  uint8_t *info,
                  size_t info_len)
{
    /* OSSL_PARAM wants writable memory; nothing writes. */
    uint8_t ikm[ISO_NODE_PAIR_KEY_LEN], salt[32];
    char digest[] = "SHA256";
    memcpy(ikm, pair_key, sizeof(ikm));
    memcpy(salt, exporter, sizeof(salt));
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, ikm, sizeof(ikm)),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, salt, sizeof(salt)),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info, info_len),
        OSSL_PARAM_construct_end()};
    const int ok = EVP_KDF_derive(ctx, key, ISO_SEAL_KEY_LEN, params);
    OPENSSL_cleanse(ikm, sizeof(ikm));
    return ok;
}

enum iso_err iso_seal_key(uint8_t key[ISO_SEAL_KEY_LEN],
                          const uint8_t pair_key[ISO_NODE_PAIR_KEY_LEN],
                          const uint8_t exporter[32],
                          const uint8_t nonce[ISO_HANDOFF_NONCE_LEN])
{
    uint8_t info[INFO_TEXT_LEN + ISO_HANDOFF_NONCE_LEN];
    memcpy(info, INFO_TEXT, INFO_TEXT_LEN);
    memcpy(info + INFO_TEXT_LEN, nonce, ISO_HANDOFF_NONCE_LEN);
    EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
    EVP_KDF_CTX *ctx = kdf == NULL ? NULL : EVP_KDF_CTX_new(kdf);
    const int ok = ctx != NULL && derive(key, ctx, pair_key, exporter, info, sizeof(info)) == 1;
    EVP_KDF_CTX_free(ctx);
    EVP_KDF_free(kdf);
    if (!ok) ISO_FAIL(ISO_E_IO, "HKDF-SHA256 failed");
    return ISO_OK;
}

enum iso_err iso_seal_channel_key(uint8_t key[ISO_SEAL_KEY_LEN],
                                  struct iso_channel *ch,
                                  const uint8_t nonce[ISO_HANDOFF_NONCE_LEN])
{
    uint8_t exporter[32];
    ISO_TRY(iso_channel_exporter(ch, exporter, ISO_SEAL_EXPORTER, NULL, 0));
    const enum iso_err err = iso_seal_key(key, iso_channel_peer(ch)->pair_key, exporter, nonce);
    OPENSSL_cleanse(exporter, sizeof(exporter));
    return err;
}

static enum iso_err mac_of(uint8_t mac[ISO_SEAL_MAC_LEN],
                           const uint8_t key[ISO_SEAL_KEY_LEN],
                           const struct iso_digest *d)
{
    unsigned len = ISO_SEAL_MAC_LEN;
    if (HMAC(EVP_sha256(), key, ISO_SEAL_KEY_LEN, d->bytes, sizeof(d->bytes), mac, &len) == NULL) {
        ISO_FAIL(ISO_E_IO, "HMAC-SHA256 failed");
    }
    return ISO_OK;
}

static enum iso_err make_tags(struct iso_buf *out,
                              struct iso_digest *d,
                              const struct iso_buf *text,
                              const struct iso_digest *page_digests,
                              size_t n_pages,
                              const uint8_t *key,
                              struct iso_node *node)
{
    uint8_t mac[ISO_SEAL_MAC_LEN], sig[ISO_NODE_SIG_MAX];
    size_t sig_len = 0;
    iso_sha256(d, text->data, text->len);
    ISO_TRY(mac_of(mac, key, d));
    ISO_TRY(iso_node_sign(node, sig, &sig_len, d));
    const struct iso_seal seal = {.manifest = (const char *)text->data,
                                  .manifest_len = text->len,
                                  .page_digests = (const uint8_t *)page_digests,
                                  .n_pages = n_pages,
                                  .mac = mac,
                                  .signature = sig,
                                  .signature_len = sig_len};
    return iso_seal_encode(out, &seal);
}

enum iso_err iso_seal_make(struct iso_buf *out,
                           struct iso_digest *digest,
                           const struct iso_manifest *m,
                           const struct iso_digest *page_digests,
                           const uint8_t key[ISO_SEAL_KEY_LEN],
                           struct iso_node *node)
{
    struct iso_buf text;
    struct iso_digest d;
    iso_buf_init(&text, ISO_HANDOFF_MANIFEST_JSON_MAX);
    enum iso_err err = iso_manifest_write(&text, m);
    if (err == ISO_OK) err = make_tags(out, &d, &text, page_digests, m->pages, key, node);
    iso_buf_deinit(&text);
    if (err == ISO_OK && digest != NULL) *digest = d;
    return err;
}

enum iso_err iso_seal_encode(struct iso_buf *out, const struct iso_seal *seal)
{
    ISO_TRY(iso_buf_u32(out, (uint32_t)seal->manifest_len));
    ISO_TRY(iso_buf_u32(out, (uint32_t)seal->n_pages));
    ISO_TRY(iso_buf_u32(out, (uint32_t)seal->signature_len));
    ISO_TRY(iso_buf_append(out, seal->manifest, seal->manifest_len));
    ISO_TRY(iso_buf_append(out, seal->page_digests, seal->n_pages * ISO_DIGEST_LEN));
    ISO_TRY(iso_buf_append(out, seal->mac, ISO_SEAL_MAC_LEN));
    return iso_buf_append(out, seal->signature, seal->signature_len);
}

enum iso_err iso_seal_decode(struct iso_seal *out, const uint8_t *payload, size_t len)
{
    if (len < ISO_SEAL_HEAD_LEN) ISO_FAIL(ISO_E_FORMAT, "SEAL of %zu bytes", len);
    const uint64_t manifest_len = iso_get_u32(payload);
    const uint64_t n_pages = iso_get_u32(payload + 4);
    const uint64_t sig_len = iso_get_u32(payload + 8);
    if (manifest_len > ISO_HANDOFF_MANIFEST_JSON_MAX || sig_len == 0 ||
        sig_len > ISO_NODE_SIG_MAX) {
        ISO_FAIL(ISO_E_FORMAT, "SEAL with a manifest of %u and a signature of %u bytes",
                 (unsigned)manifest_len, (unsigned)sig_len);
    }
    const uint64_t want =
        ISO_SEAL_HEAD_LEN + manifest_len + n_pages * ISO_DIGEST_LEN + ISO_SEAL_MAC_LEN + sig_len;
    if (want != len) {
        ISO_FAIL(ISO_E_FORMAT, "SEAL of %zu bytes whose parts are %llu", len,
                 (unsigned long long)want);
    }
    out->manifest = (const char *)payload + ISO_SEAL_HEAD_LEN;
    out->manifest_len = (size_t)manifest_len;
    out->page_digests = payload + ISO_SEAL_HEAD_LEN + manifest_len;
    out->n_pages = (size_t)n_pages;
    out->mac = out->page_digests + n_pages * ISO_DIGEST_LEN;
    out->signature = out->mac + ISO_SEAL_MAC_LEN;
    out->signature_len = (size_t)sig_len;
    return ISO_OK;
}

enum iso_err iso_seal_check(struct iso_manifest *out,
                            struct iso_digest *digest,
                            const struct iso_seal *seal,
                            const uint8_t key[ISO_SEAL_KEY_LEN],
                            const uint8_t spki[ISO_NODE_SPKI_LEN],
                            enum iso_reason *reason)
{
    uint8_t mac[ISO_SEAL_MAC_LEN];
    struct iso_digest d;
    iso_sha256(&d, seal->manifest, seal->manifest_len);
    *reason = ISO_REASON_INTERNAL;
    ISO_TRY(mac_of(mac, key, &d));
    if (CRYPTO_memcmp(mac, seal->mac, sizeof(mac)) != 0) {
        ISO_FAIL_REASON(reason, MAC, ISO_E_AUTH, "the MAC is not of this connection and request");
    }
    if (iso_node_verify(spki, ISO_NODE_SPKI_LEN, &d, seal->signature, seal->signature_len) !=
        ISO_OK) {
        ISO_FAIL_REASON(reason, SIGNATURE, ISO_E_AUTH,
                        "the signature is not of the producer's enrolled key");
    }
    *reason = ISO_REASON_FRAME_FIELD;
    ISO_TRY(iso_manifest_parse(out, seal->manifest, seal->manifest_len));
    struct iso_digest list;
    iso_sha256(&list, seal->page_digests, seal->n_pages * ISO_DIGEST_LEN);
    if (memcmp(&list, &out->page_digests, sizeof(list)) != 0) {
        ISO_FAIL_REASON(reason, DIGEST, ISO_E_FORMAT,
                        "the list of page digests is not the sealed one");
    }
    *digest = d;
    *reason = ISO_REASON_OK;
    return ISO_OK;
}
