/* SPDX-License-Identifier: MIT
 * node_store.c - private files of a node directory: no links, 0600, replaced atomically. */
#include "node/node_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/os.h"

#define LOCK_TRIES 100 /* of LOCK_PAUSE_NS: 5 s */
#define LOCK_PAUSE_NS 50000000L
#define NAME_BUF 128 /* "peers" file names and the partial suffix */

static enum iso_err check_private(int fd, const char *name, bool directory)
{
    struct stat st;
    if (fstat(fd, &st) != 0) ISO_FAIL(ISO_E_IO, "%s: %s", name, strerror(errno));
    if (directory ? !S_ISDIR(st.st_mode) : !S_ISREG(st.st_mode))
        ISO_FAIL(ISO_E_AUTH, "%s: not a plain %s", name, directory ? "directory" : "file");
    if (st.st_uid != geteuid())
        ISO_FAIL(ISO_E_AUTH, "%s: owned by uid %ld, this process is uid %ld", name, (long)st.st_uid,
                 (long)geteuid());
    if (st.st_mode & 077)
        ISO_FAIL(ISO_E_AUTH, "%s: mode %04o lets group or others in; chmod %s it", name,
                 (unsigned)(st.st_mode & 07777), directory ? "700" : "600");
    return ISO_OK;
}

enum iso_err iso_node_store_open_dir(int *fd, int at, const char *path, bool create)
{
    if (create && mkdirat(at, path, 0700) != 0 && errno != EEXIST)
        ISO_FAIL(ISO_E_IO, "cannot make directory %s: %s", path, strerror(errno));
    const int got = openat(at, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (got < 0) {
        const bool link = errno == ELOOP || errno == ENOTDIR;
        ISO_FAIL(link ? ISO_E_AUTH : ISO_E_IO, "%s: %s", path,
                 link ? "not a directory, or a symbolic link" : strerror(errno));
    }
    const enum iso_err err = check_private(got, path, true);
    if (err != ISO_OK) {
        close(got);
        return err;
    }
    *fd = got;
    return ISO_OK;
}

enum iso_err iso_node_store_lock(int *lock_fd, int dir_fd)
{
    /* A description of its own: flock() belongs to the open file, so threads exclude each other. */
    const int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) ISO_FAIL(ISO_E_IO, "node directory: %s", strerror(errno));
    for (int i = 0; i < LOCK_TRIES; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
            *lock_fd = fd;
            return ISO_OK;
        }
        if (errno != EWOULDBLOCK && errno != EINTR) break;
        (void)nanosleep(&(struct timespec){.tv_nsec = LOCK_PAUSE_NS}, NULL);
    }
    const int saved = errno;
    close(fd);
    if (saved == EWOULDBLOCK)
        ISO_FAIL(ISO_E_TIMEOUT, "another process keeps the node directory locked");
    ISO_FAIL(ISO_E_IO, "cannot lock the node directory: %s", strerror(saved));
}

bool iso_node_store_has(int dir_fd, const char *name)
{
    struct stat st;
    return fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

static enum iso_err read_all(int fd, const char *name, struct iso_buf *out)
{
    uint8_t part[4096];
    for (;;) {
        const ssize_t n = read(fd, part, sizeof part);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) ISO_FAIL(ISO_E_IO, "%s: %s", name, strerror(errno));
        if (n == 0) break;
        ISO_TRY(iso_buf_append(out, part, (size_t)n));
    }
    OPENSSL_cleanse(part, sizeof part);
    return ISO_OK;
}

enum iso_err iso_node_store_read(int dir_fd, const char *name, struct iso_buf *out)
{
    /* O_NONBLOCK: a FIFO under this name must not hang us; check_private then refuses it. */
    const int fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == ELOOP) ISO_FAIL(ISO_E_AUTH, "%s: is a symbolic link", name);
    if (fd < 0) ISO_FAIL(ISO_E_IO, "%s: %s", name, strerror(errno));
    enum iso_err err = check_private(fd, name, false);
    if (err == ISO_OK) err = read_all(fd, name, out);
    close(fd);
    return err;
}

static enum iso_err write_all(int fd, const char *name, const uint8_t *data, size_t len)
{
    while (len > 0) {
        const ssize_t n = write(fd, data, len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) ISO_FAIL(ISO_E_IO, "%s: %s", name, strerror(errno));
        data += n;
        len -= (size_t)n;
    }
    if (iso_os_sync(fd) != 0) ISO_FAIL(ISO_E_IO, "%s: fsync: %s", name, strerror(errno));
    return ISO_OK;
}

static enum iso_err sync_dir(int dir_fd)
{
    if (iso_os_sync(dir_fd) != 0) ISO_FAIL(ISO_E_IO, "fsync of the node directory: %s", strerror(errno));
    return ISO_OK;
}

enum iso_err iso_node_store_write(int dir_fd, const char *name, const void *data, size_t len)
{
    char partial[NAME_BUF];
    const int n = snprintf(partial, sizeof partial, "%s.partial", name);
    if (n < 0 || (size_t)n >= sizeof partial) ISO_FAIL(ISO_E_ARG, "file name too long: %s", name);
    /* A partial file of a crashed run; the directory's lock says that nobody is writing it now. */
    (void)unlinkat(dir_fd, partial, 0);
    const int fd =
        openat(dir_fd, partial, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) ISO_FAIL(ISO_E_IO, "%s: %s", partial, strerror(errno));
    enum iso_err err = write_all(fd, partial, data, len);
    close(fd);
    if (err == ISO_OK) err = iso_node_store_rename(dir_fd, partial, name);
    if (err != ISO_OK) (void)unlinkat(dir_fd, partial, 0);
    return err;
}

enum iso_err iso_node_store_rename(int dir_fd, const char *from, const char *to)
{
    if (renameat(dir_fd, from, dir_fd, to) != 0)
        ISO_FAIL(ISO_E_IO, "cannot rename %s to %s: %s", from, to, strerror(errno));
    return sync_dir(dir_fd);
}

enum iso_err iso_node_store_remove(int dir_fd, const char *name)
{
    if (unlinkat(dir_fd, name, 0) != 0 && errno != ENOENT)
        ISO_FAIL(ISO_E_IO, "cannot remove %s: %s", name, strerror(errno));
    return sync_dir(dir_fd);
}

enum iso_err iso_node_store_read_json(int dir_fd, const char *name, json_t **out)
{
    struct iso_buf b;
    iso_buf_init(&b, ISO_NODE_FILE_MAX);
    enum iso_err err = iso_node_store_read(dir_fd, name, &b);
    if (err == ISO_OK) err = iso_json_parse(out, (const char *)b.data, b.len, b.max, name);
    iso_node_wipe_buf(&b);
    return err;
}

enum iso_err iso_node_store_write_json(int dir_fd, const char *name, const json_t *value)
{
    struct iso_buf b;
    iso_buf_init(&b, ISO_NODE_FILE_MAX);
    enum iso_err err = iso_json_canonical(&b, value);
    if (err == ISO_OK) err = iso_node_store_write(dir_fd, name, b.data, b.len);
    iso_node_wipe_buf(&b);
    return err;
}

void iso_node_wipe_buf(struct iso_buf *b)
{
    OPENSSL_cleanse(b->data, b->len);
    iso_buf_deinit(b);
}

void iso_node_hex(char *out, const uint8_t *bytes, size_t len)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < len; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[2 * len] = '\0';
}

enum iso_err iso_node_json_hex(uint8_t *out, size_t len, const json_t *obj, const char *key)
{
    const char *text;
    ISO_TRY(iso_json_get_string(&text, obj, key));
    if (strlen(text) != 2 * len)
        ISO_FAIL(ISO_E_FORMAT, "\"%s\" has %zu characters, expected %zu hex digits", key,
                 strlen(text), 2 * len);
    return iso_hex_decode(out, len, text);
}

enum iso_err iso_node_json_set_hex(json_t *obj, const char *key, const uint8_t *bytes, size_t len)
{
    char *text = iso_xalloc(2 * len + 1, 1);
    iso_node_hex(text, bytes, len);
    const int rc = json_object_set_new(obj, key, json_string(text));
    OPENSSL_cleanse(text, 2 * len);
    free(text);
    if (rc != 0) ISO_FAIL(ISO_E_NOMEM, "no memory for \"%s\"", key);
    return ISO_OK;
}
