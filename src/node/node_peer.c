/* SPDX-License-Identifier: MIT
 * node_peer.c - the records of enrolled nodes, one private file each. */
#include "node/node_internal.h"

#include <dirent.h>
#include <errno.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/mem.h"

#define FORMAT "isobit-peer-1"
#define SUFFIX ".json"
#define FILE_NAME_MAX (ISO_NODE_NAME_MAX + sizeof SUFFIX)
#define TIME_MAX INT64_C(253402300799) /* end of the year 9999 */

static const char *const KEYS[] = {"format", "node",       "spki",           "pair_key",
                                   "ledger", "enrolled_s", "cert_expires_s", "revoked"};

void iso_peer_wipe(struct iso_peer *peer)
{
    OPENSSL_cleanse(peer, sizeof *peer);
}

void iso_node_peers_free(struct iso_peer *peers, size_t n)
{
    if (peers != NULL) OPENSSL_cleanse(peers, n * sizeof *peers);
    free(peers);
}

static enum iso_err open_peers(int *fd, struct iso_node *node)
{
    return iso_node_store_open_dir(fd, node->dir_fd, ISO_DIR_PEERS, true);
}

static enum iso_err parse(struct iso_peer *out, const json_t *obj, const char *file)
{
    struct iso_peer p = {.name = ""};
    const char *text;
    EVP_PKEY *key = NULL;
    ISO_TRY(iso_json_only_keys(obj, KEYS, ISO_COUNT(KEYS), file));
    ISO_TRY(iso_json_get_string(&text, obj, "format"));
    if (strcmp(text, FORMAT) != 0) ISO_FAIL(ISO_E_FORMAT, "%s: format \"%s\"", file, text);
    ISO_TRY(iso_json_get_string(&text, obj, "node"));
    ISO_TRY(iso_node_check_name(text));
    memcpy(p.name, text, strlen(text) + 1);
    ISO_TRY(iso_node_json_hex(p.spki, sizeof p.spki, obj, "spki"));
    ISO_TRY(iso_node_key_from_spki(&key, p.spki, sizeof p.spki));
    EVP_PKEY_free(key);
    ISO_TRY(iso_node_json_hex(p.ledger_id, sizeof p.ledger_id, obj, "ledger"));
    ISO_TRY(iso_json_get_int(&p.enrolled_s, obj, "enrolled_s", 0, TIME_MAX));
    ISO_TRY(iso_json_get_int(&p.cert_expires_s, obj, "cert_expires_s", 0, TIME_MAX));
    ISO_TRY(iso_json_get_bool(&p.revoked, obj, "revoked"));
    ISO_TRY(iso_node_json_hex(p.pair_key, sizeof p.pair_key, obj, "pair_key"));
    iso_sha256(&p.pin, p.spki, sizeof p.spki);
    *out = p;
    iso_peer_wipe(&p);
    return ISO_OK;
}

static void file_name(char out[FILE_NAME_MAX], const char *name)
{
    (void)snprintf(out, FILE_NAME_MAX, "%s" SUFFIX, name);
}

static enum iso_err read_peer(struct iso_peer *out, int dir_fd, const char *file)
{
    json_t *obj;
    ISO_TRY(iso_node_store_read_json(dir_fd, file, &obj));
    struct iso_peer peer;
    enum iso_err err = parse(&peer, obj, file);
    json_decref(obj);
    if (err != ISO_OK) return err;
    char expected[FILE_NAME_MAX];
    file_name(expected, peer.name);
    if (strcmp(expected, file) != 0)
        ISO_FAIL(ISO_E_FORMAT, "peers/%s is the record of node %s", file, peer.name);
    *out = peer;
    iso_peer_wipe(&peer);
    return ISO_OK;
}

bool iso_node_peer_has(struct iso_node *node, const char *name)
{
    char path[sizeof ISO_DIR_PEERS + FILE_NAME_MAX];
    (void)snprintf(path, sizeof path, ISO_DIR_PEERS "/%s" SUFFIX, name);
    return iso_node_check_name(name) == ISO_OK && iso_node_store_has(node->dir_fd, path);
}

enum iso_err iso_node_peer_by_name(struct iso_node *node, struct iso_peer *out, const char *name)
{
    if (!iso_node_peer_has(node, name))
        ISO_FAIL(ISO_E_AUTH, "node \"%s\" is not enrolled here", name);
    char file[FILE_NAME_MAX];
    int fd;
    file_name(file, name);
    ISO_TRY(open_peers(&fd, node));
    const enum iso_err err = read_peer(out, fd, file);
    close(fd);
    return err;
}

static enum iso_err collect(struct iso_peer **peers, size_t *n, DIR *dir)
{
    for (;;) {
        errno = 0;
        const struct dirent *e = readdir(dir);
        if (e == NULL && errno != 0) ISO_FAIL(ISO_E_IO, "peers: %s", strerror(errno));
        if (e == NULL) return ISO_OK;
        const size_t len = strlen(e->d_name);
        /* Partial files of a crashed write have another suffix. */
        if (len <= sizeof SUFFIX - 1 || strcmp(e->d_name + len - (sizeof SUFFIX - 1), SUFFIX) != 0)
            continue;
        if (*n == ISO_NODE_PEERS_MAX)
            ISO_FAIL(ISO_E_LIMIT, "more than %d enrolled nodes", ISO_NODE_PEERS_MAX);
        ISO_TRY(read_peer(&(*peers)[*n], dirfd(dir), e->d_name));
        (*n)++;
    }
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct iso_peer *)a)->name, ((const struct iso_peer *)b)->name);
}

enum iso_err iso_node_peers(struct iso_node *node, struct iso_peer **out, size_t *n)
{
    int fd;
    ISO_TRY(open_peers(&fd, node));
    DIR *dir = fdopendir(fd);
    if (dir == NULL) {
        close(fd);
        ISO_FAIL(ISO_E_IO, "peers: %s", strerror(errno));
    }
    struct iso_peer *peers = iso_xalloc(ISO_NODE_PEERS_MAX, sizeof *peers);
    size_t count = 0;
    const enum iso_err err = collect(&peers, &count, dir);
    closedir(dir);
    if (err != ISO_OK) {
        iso_node_peers_free(peers, count);
        return err;
    }
    qsort(peers, count, sizeof *peers, by_name);
    *out = peers;
    *n = count;
    return ISO_OK;
}

enum iso_err
iso_node_peer_by_pin(struct iso_node *node, struct iso_peer *out, const struct iso_digest *pin)
{
    struct iso_peer *peers;
    size_t n;
    ISO_TRY(iso_node_peers(node, &peers, &n));
    size_t i = 0;
    while (i < n && memcmp(&peers[i].pin, pin, sizeof *pin) != 0) i++;
    const bool found = i < n;
    if (found) *out = peers[i];
    iso_node_peers_free(peers, n);
    char hex[ISO_DIGEST_HEX];
    iso_digest_hex(hex, pin);
    if (!found) ISO_FAIL(ISO_E_AUTH, "no enrolled node has the pin %s", hex);
    return ISO_OK;
}

enum iso_err iso_node_peer_write(struct iso_node *node, const struct iso_peer *peer)
{
    int fd;
    char file[FILE_NAME_MAX];
    file_name(file, peer->name);
    json_t *obj =
        json_pack("{s:s, s:s, s:I, s:I, s:b}", "format", FORMAT, "node", peer->name, "enrolled_s",
                  (json_int_t)peer->enrolled_s, "cert_expires_s",
                  (json_int_t)ISO_MAX(peer->cert_expires_s, 0), "revoked", (int)peer->revoked);
    if (obj == NULL) ISO_FAIL(ISO_E_NOMEM, "no memory for the record of %s", peer->name);
    enum iso_err err = iso_node_json_set_hex(obj, "spki", peer->spki, sizeof peer->spki);
    if (err == ISO_OK)
        err = iso_node_json_set_hex(obj, "pair_key", peer->pair_key, sizeof peer->pair_key);
    if (err == ISO_OK)
        err = iso_node_json_set_hex(obj, "ledger", peer->ledger_id, sizeof peer->ledger_id);
    if (err == ISO_OK) err = open_peers(&fd, node);
    if (err == ISO_OK) {
        err = iso_node_store_write_json(fd, file, obj);
        close(fd);
    }
    json_decref(obj);
    return err;
}

/* A second name for one key would make "who is it" a matter of directory order. */
static enum iso_err check_pin_is_free(struct iso_node *node, const struct iso_peer *peer)
{
    struct iso_peer *peers;
    size_t n;
    ISO_TRY(iso_node_peers(node, &peers, &n));
    char other[ISO_NODE_NAME_MAX] = "";
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&peers[i].pin, &peer->pin, sizeof peer->pin) == 0 &&
            strcmp(peers[i].name, peer->name) != 0)
            memcpy(other, peers[i].name, sizeof other);
    }
    const bool full = n == ISO_NODE_PEERS_MAX && !iso_node_peer_has(node, peer->name);
    iso_node_peers_free(peers, n);
    if (other[0] != '\0')
        ISO_FAIL(ISO_E_REFUSED, "the key of %s is enrolled as node %s", peer->name, other);
    if (full) ISO_FAIL(ISO_E_LIMIT, "%d nodes are enrolled already", ISO_NODE_PEERS_MAX);
    return ISO_OK;
}

enum iso_err iso_node_peer_admit(struct iso_node *node,
                                 struct iso_peer *peer,
                                 bool fresh_pair_key,
                                 const struct iso_node_opts *opts)
{
    if (strcmp(peer->name, node->name) == 0)
        ISO_FAIL(ISO_E_REFUSED, "%s is this node's own name: two nodes need two names", peer->name);
    if (opts && opts->expect_pin) {
        char hex[ISO_DIGEST_HEX];
        iso_digest_hex(hex, &peer->pin);
        const size_t len = strlen(opts->expect_pin);
        if (len < 16) ISO_FAIL(ISO_E_ARG, "the expected pin has %zu hex digits, at least 16", len);
        if (len >= ISO_DIGEST_HEX || memcmp(hex, opts->expect_pin, len) != 0)
            ISO_FAIL(ISO_E_AUTH, "%s has the pin %s, expected %s", peer->name, hex,
                     opts->expect_pin);
    }
    ISO_TRY(check_pin_is_free(node, peer));
    if (!iso_node_peer_has(node, peer->name)) return ISO_OK;
    struct iso_peer old;
    enum iso_err err = iso_node_peer_by_name(node, &old, peer->name);
    const bool replace = opts && opts->replace;
    if (err != ISO_OK) return replace ? ISO_OK : err;
    const bool same_key = memcmp(&old.pin, &peer->pin, sizeof old.pin) == 0;
    const bool same_ledger = memcmp(old.ledger_id, peer->ledger_id, sizeof old.ledger_id) == 0;
    const bool same = same_key && same_ledger;
    if (same && fresh_pair_key && !replace)
        memcpy(peer->pair_key, old.pair_key, sizeof old.pair_key);
    const bool same_pair = CRYPTO_memcmp(old.pair_key, peer->pair_key, sizeof old.pair_key) == 0;
    const bool revoked = old.revoked;
    iso_peer_wipe(&old);
    if (replace || (same && same_pair && !revoked)) return ISO_OK;
    ISO_FAIL(ISO_E_REFUSED, "node %s is enrolled already and %s: ask its owner, then use --replace",
             peer->name,
             revoked        ? "revoked"
             : !same_key    ? "has another key now"
             : !same_ledger ? "has another ledger now"
                            : "has another pair key now");
}
