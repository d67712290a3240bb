/* SPDX-License-Identifier: MIT
 * creds.h - the loaded key and certificates of a node, for whoever speaks TLS with them. */
#ifndef ISO_NODE_CREDS_H
#define ISO_NODE_CREDS_H

#include <openssl/evp.h>
#include <openssl/x509.h>

#include "node/node.h"

/* References of one consistent set; immutable. */
struct iso_node_creds {
    EVP_PKEY *key;
    X509 *cert;
    X509 *ca;
    X509_CRL *crl;
};

/* The current set. Looks at the files first: changed ones are loaded when they are good; a bad new
 * file is warned about once and the last good set stays.
 *
 * Owner:  *out is the caller's, iso_node_creds_release() it.
 * Thread: any.
 * Errors: ISO_E_AUTH as iso_node_ready(). */
enum iso_err iso_node_creds_get(struct iso_node *node, struct iso_node_creds *out) ISO_NODISCARD;
void iso_node_creds_release(struct iso_node_creds *creds);

/* Node name in the one SAN URI isobit:<name> of a certificate.
 * Errors: ISO_E_AUTH no such name, several names or names of another kind. */
enum iso_err iso_node_cert_name(char out[ISO_NODE_NAME_MAX], const X509 *cert) ISO_NODISCARD;

/* SHA-256 of a certificate's SubjectPublicKeyInfo. Errors: ISO_E_AUTH no P-256 key. */
enum iso_err iso_node_cert_pin(struct iso_digest *out, const X509 *cert) ISO_NODISCARD;

#endif
