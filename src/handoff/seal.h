/* SPDX-License-Identifier: MIT
 * seal.h - the SEAL frame: a manifest under a MAC of this connection and a signature of the
 * producer.
 *
 * Both tags cover d = SHA-256 of the manifest's canonical bytes; the manifest has the digest of all
 * page digests, so nothing is outside them.
 *   key = HKDF-SHA256(ikm: pair key, salt: exporter, info: "isobit-handoff-1 seal" nonce)
 *   mac = HMAC-SHA256(key, d)           signature = ECDSA P-256 of d, DER
 * exporter: TLS exporter "EXPORTER-isobit-handoff-1", empty context, 32 bytes (RFC 8446
 * section 7.5), so a seal is worth nothing on another connection, nor for another nonce.
 *
 * Payload: u32 LE manifest bytes, u32 LE pages, u32 LE signature bytes; manifest; 32 bytes a page
 * in canonical order; mac; signature; nothing behind it.
 */
#ifndef ISO_HANDOFF_SEAL_H
#define ISO_HANDOFF_SEAL_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/digest.h"
#include "base/err.h"
#include "handoff/channel.h"
#include "handoff/manifest.h"
#include "handoff/reason.h"
#include "node/node.h"

#define ISO_SEAL_EXPORTER "EXPORTER-isobit-handoff-1"
#define ISO_SEAL_KEY_LEN 32
#define ISO_SEAL_MAC_LEN 32
#define ISO_SEAL_HEAD_LEN 12u

/* A SEAL payload taken apart; everything points into it. */
struct iso_seal {
    const char *manifest; /* [manifest_len] canonical JSON */
    size_t manifest_len;
    const uint8_t *page_digests; /* [n_pages][32] */
    size_t n_pages;
    const uint8_t *mac;       /* [ISO_SEAL_MAC_LEN] */
    const uint8_t *signature; /* [signature_len] */
    size_t signature_len;
};

/* Key of the MAC. Errors: ISO_E_IO when OpenSSL cannot derive. */
enum iso_err iso_seal_key(uint8_t key[ISO_SEAL_KEY_LEN],
                          const uint8_t pair_key[ISO_NODE_PAIR_KEY_LEN],
                          const uint8_t exporter[32],
                          const uint8_t nonce[ISO_HANDOFF_NONCE_LEN]) ISO_NODISCARD;

/* Key for this connection and its peer. */
enum iso_err iso_seal_channel_key(uint8_t key[ISO_SEAL_KEY_LEN],
                                  struct iso_channel *ch,
                                  const uint8_t nonce[ISO_HANDOFF_NONCE_LEN]) ISO_NODISCARD;

/* Writes the manifest, makes both tags and appends a SEAL payload. *digest (may be NULL) receives
 * d. page_digests [m->pages][32]; m->page_digests is their digest. */
enum iso_err iso_seal_make(struct iso_buf *out,
                           struct iso_digest *digest,
                           const struct iso_manifest *m,
                           const struct iso_digest *page_digests,
                           const uint8_t key[ISO_SEAL_KEY_LEN],
                           struct iso_node *node) ISO_NODISCARD;

/* Appends a SEAL payload of ready parts. */
enum iso_err iso_seal_encode(struct iso_buf *out, const struct iso_seal *seal) ISO_NODISCARD;

/* Takes a payload apart; every length is checked. Errors: ISO_E_FORMAT. */
enum iso_err
iso_seal_decode(struct iso_seal *out, const uint8_t *payload, size_t len) ISO_NODISCARD;

/* Checks mac and signature, then parses the manifest and holds its digest of page digests against
 * the list. Nothing of the manifest is read before both tags are right.
 * Errors: ISO_E_AUTH with *reason MAC or SIGNATURE; ISO_E_FORMAT FRAME_FIELD or DIGEST. */
enum iso_err iso_seal_check(struct iso_manifest *out,
                            struct iso_digest *digest,
                            const struct iso_seal *seal,
                            const uint8_t key[ISO_SEAL_KEY_LEN],
                            const uint8_t spki[ISO_NODE_SPKI_LEN],
                            enum iso_reason *reason) ISO_NODISCARD;

#endif
