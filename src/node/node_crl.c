/* SPDX-License-Identifier: MIT
 * node_crl.c - the revocation list of a node directory: read, replaced by newer ones only. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "node/node_internal.h"

enum iso_err iso_node_crl_load(X509_CRL **out, int dir_fd)
{
    struct iso_buf b;
    iso_buf_init(&b, ISO_NODE_DOC_MAX);
    enum iso_err err = iso_node_store_read(dir_fd, ISO_FILE_CRL, &b);
    if (err == ISO_OK) err = iso_node_crl_from_pem(out, (const char *)b.data, b.len);
    iso_buf_deinit(&b);
    return err;
}

enum iso_err iso_node_crl(struct iso_node *node, struct iso_buf *out)
{
    return iso_node_store_read(node->dir_fd, ISO_FILE_CRL, out);
}

enum iso_err iso_node_crl_install(int dir_fd, X509_CRL *crl, const char *pem, bool must)
{
    X509_CRL *old = NULL;
    int64_t have = -1;
    /* A damaged list is replaced by any good one. */
    if (iso_node_store_has(dir_fd, ISO_FILE_CRL) && iso_node_crl_load(&old, dir_fd) == ISO_OK)
        have = iso_node_crl_number(old);
    X509_CRL_free(old);
    const int64_t number = iso_node_crl_number(crl);
    if (number > have) return iso_node_store_write(dir_fd, ISO_FILE_CRL, pem, strlen(pem));
    if (must && number < have)
        ISO_FAIL(ISO_E_REFUSED, "revocation list number %lld is older than the one here, %lld",
                 (long long)number, (long long)have);
    return ISO_OK;
}

/* pem ends with a NUL. */
static enum iso_err enroll_locked(struct iso_node *node, const char *pem)
{
    X509_CRL *crl = NULL;
    X509 *ca = NULL;
    enum iso_err err = ISO_OK;
    ISO_TRY(iso_node_cert_load(&ca, node->dir_fd, ISO_FILE_CA));
    ISO_TRY_OUT(iso_node_crl_from_pem(&crl, pem, strlen(pem)));
    ISO_TRY_OUT(iso_node_crl_check(crl, ca));
    err = iso_node_crl_install(node->dir_fd, crl, pem, true);
out:
    X509_free(ca);
    X509_CRL_free(crl);
    return err;
}

enum iso_err iso_node_crl_enroll(struct iso_node *node, const char *pem, size_t len)
{
    int lock;
    ISO_TRY(iso_node_store_lock(&lock, node->dir_fd));
    char *text = iso_xstrndup(pem, len);
    const enum iso_err err = enroll_locked(node, text);
    free(text);
    close(lock);
    return err;
}
