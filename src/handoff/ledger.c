/* SPDX-License-Identifier: MIT
 * ledger.c - the hand-off ledger in SQLite. */
#include "handoff/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"

#define PATH_LEN 4096u /* bytes with the NUL */
#define OPEN_ROW "RESERVED"

struct iso_ledger {
    pthread_mutex_t lock; /* guards db */
    sqlite3 *db;
    struct iso_node *node;
    char *path;
    dev_t dev; /* of the file that is open: another one at the path means that it was replaced */
    ino_t ino;
};

static const char schema[] =
    "CREATE TABLE IF NOT EXISTS meta(key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS attempts(id INTEGER PRIMARY KEY, role TEXT, generation INTEGER,"
    " peer TEXT, pin BLOB, request TEXT, started_s INTEGER, took_ms INTEGER, reason TEXT,"
    " message TEXT, tokens INTEGER, pages INTEGER, bytes INTEGER, count INTEGER);"
    "CREATE TABLE IF NOT EXISTS commits(generation INTEGER PRIMARY KEY, attempt INTEGER,"
    " manifest BLOB, committed_s INTEGER);"
    "CREATE TABLE IF NOT EXISTS high(pin BLOB, ledger BLOB, generation INTEGER,"
    " PRIMARY KEY(pin, ledger)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS marks(pin BLOB PRIMARY KEY, reason TEXT, enrolled_s INTEGER,"
    " marked_s INTEGER) WITHOUT ROWID;"
    "INSERT OR IGNORE INTO meta VALUES('version', 1), ('next', 1), ('probe', 0);";

/* --- statements ---------------------------------------------------------------------------------
 */

struct value {
    enum { INT, TEXT, BLOB } kind;
    int64_t i;
    const void *p; /* borrowed for the statement */
    size_t len;
};

#define V_INT(x) ((struct value){.kind = INT, .i = (int64_t)(x)})
#define V_TEXT(x) ((struct value){.kind = TEXT, .p = (x)})
#define V_BLOB(x, n) ((struct value){.kind = BLOB, .p = (x), .len = (n)})

static enum iso_err broken(struct iso_ledger *l, enum iso_reason *reason, const char *what)
{
    ISO_FAIL_REASON(reason, LEDGER, ISO_E_IO, "%s: %s: %s", l->path, what, sqlite3_errmsg(l->db));
}

static int bind(sqlite3_stmt *st, const struct value *v, size_t n)
{
    for (size_t k = 0; k < n; k++) {
        const int at = (int)k + 1;
        int rc = SQLITE_OK;
        if (v[k].kind == INT)
            rc = sqlite3_bind_int64(st, at, v[k].i);
        else if (v[k].kind == TEXT)
            rc = sqlite3_bind_text(st, at, v[k].p, -1, SQLITE_STATIC);
        else
            rc = sqlite3_bind_blob(st, at, v[k].p, (int)v[k].len, SQLITE_STATIC);
        if (rc != SQLITE_OK) return rc;
    }
    return SQLITE_OK;
}

/* Runs one statement to its end. *got (may be NULL) receives the first column of the first row and
 * *found whether there was one. */
static enum iso_err run(struct iso_ledger *l,
                        const char *sql,
                        const struct value *v,
                        size_t n,
                        int64_t *got,
                        bool *found,
                        enum iso_reason *reason)
{
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(l->db, sql, -1, &st, NULL);
    if (rc == SQLITE_OK) rc = bind(st, v, n);
    if (rc == SQLITE_OK) rc = sqlite3_step(st);
    const bool row = rc == SQLITE_ROW;
    if (row && got != NULL) *got = sqlite3_column_int64(st, 0);
    while (rc == SQLITE_ROW) rc = sqlite3_step(st);
    sqlite3_finalize(st);
    if (rc != SQLITE_DONE) return broken(l, reason, sql);
    if (found != NULL) *found = row;
    return ISO_OK;
}

static enum iso_err simple(struct iso_ledger *l, const char *sql, enum iso_reason *reason)
{
    if (sqlite3_exec(l->db, sql, NULL, NULL, NULL) != SQLITE_OK) return broken(l, reason, sql);
    return ISO_OK;
}

/* Takes the lock and begins; a file that was deleted or replaced under us is a lost ledger. */
static enum iso_err begin(struct iso_ledger *l, enum iso_reason *reason)
{
    struct stat sb;
    pthread_mutex_lock(&l->lock);
    enum iso_err err = ISO_OK;
    if (stat(l->path, &sb) != 0 || sb.st_dev != l->dev || sb.st_ino != l->ino) {
        *reason = ISO_REASON_LEDGER_MISSING;
        err = iso_err_raise(ISO_E_REFUSED, __FILE__, __LINE__,
                            "%s: the ledger was deleted or replaced while in use", l->path);
    } else {
        err = simple(l, "BEGIN IMMEDIATE", reason);
    }
    if (err != ISO_OK) pthread_mutex_unlock(&l->lock);
    return err;
}

/* Commits when err is ISO_OK, rolls back otherwise, gives the lock back; returns the error. */
static enum iso_err end(struct iso_ledger *l, enum iso_err err, enum iso_reason *reason)
{
    if (err == ISO_OK) err = simple(l, "COMMIT", reason);
    if (err != ISO_OK) (void)sqlite3_exec(l->db, "ROLLBACK", NULL, NULL, NULL);
    pthread_mutex_unlock(&l->lock);
    return err;
}

/* --- opening ------------------------------------------------------------------------------------
 */

/* Compares the id inside with the node's, or writes it into a new file. */
static enum iso_err settle_id(struct iso_ledger *l, bool claimed, enum iso_reason *reason)
{
    uint8_t id[ISO_NODE_LEDGER_ID_LEN];
    iso_node_ledger_id(l->node, id);
    const struct value v[] = {V_BLOB(id, sizeof(id))};
    bool found = false, same = false;
    int64_t equal = 0;
    ISO_TRY(run(l, "SELECT value = ?1 FROM meta WHERE key = 'id'", v, 1, &equal, &found, reason));
    same = found && equal == 1;
    if (found && !same) {
        ISO_FAIL_REASON(reason, LEDGER_FOREIGN, ISO_E_REFUSED,
                        "%s is the ledger of another node or of an earlier enrolment", l->path);
    }
    if (!found && claimed) {
        ISO_FAIL_REASON(reason, LEDGER_MISSING, ISO_E_REFUSED,
                        "%s is empty, but this node had a ledger: renew it and enrol again",
                        l->path);
    }
    if (found) return ISO_OK;
    return run(l, "INSERT INTO meta VALUES('id', ?1)", v, 1, NULL, NULL, reason);
}

static enum iso_err open_db(struct iso_ledger *l, bool claimed, enum iso_reason *reason)
{
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOFOLLOW | SQLITE_OPEN_FULLMUTEX;
    struct stat sb;
    if (sqlite3_open_v2(l->path, &l->db, flags, NULL) != SQLITE_OK)
        return broken(l, reason, "open");
    sqlite3_busy_timeout(l->db, ISO_LEDGER_BUSY_MS);
    ISO_TRY(simple(l,
                   "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA fullfsync=ON;"
                   "PRAGMA trusted_schema=OFF;",
                   reason));
    if (stat(l->path, &sb) != 0) return broken(l, reason, strerror(errno));
    l->dev = sb.st_dev;
    l->ino = sb.st_ino;
    ISO_TRY(begin(l, reason));
    enum iso_err err = simple(l, schema, reason);
    if (err == ISO_OK) err = settle_id(l, claimed, reason);
    return end(l, err, reason);
}

/* The file itself is made here, so that it is 0600 from its first byte and never made by accident.
 */
static enum iso_err make_file(const char *path, bool claimed, enum iso_reason *reason)
{
    struct stat sb;
    if (lstat(path, &sb) == 0) return ISO_OK;
    if (errno != ENOENT) {
        ISO_FAIL_REASON(reason, LEDGER, ISO_E_IO, "%s: %s", path, strerror(errno));
    }
    if (claimed) {
        ISO_FAIL_REASON(reason, LEDGER_MISSING, ISO_E_REFUSED,
                        "%s is gone, but this node had a ledger: renew it and enrol again", path);
    }
    const int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) ISO_FAIL_REASON(reason, LEDGER, ISO_E_IO, "%s: %s", path, strerror(errno));
    (void)close(fd);
    return ISO_OK;
}

static char *path_of(const struct iso_node *node, const char *path)
{
    char buf[PATH_LEN];
    if (path != NULL) return iso_xstrdup(path);
    (void)snprintf(buf, sizeof(buf), "%s/%s", iso_node_dir(node), ISO_LEDGER_FILE);
    return iso_xstrdup(buf);
}

enum iso_err iso_ledger_open(struct iso_ledger **out,
                             struct iso_node *node,
                             const char *path,
                             enum iso_reason *reason)
{
    struct iso_ledger *l = iso_xalloc(1, sizeof(*l));
    (void)pthread_mutex_init(&l->lock, NULL);
    l->node = node;
    l->path = path_of(node, path);
    *reason = ISO_REASON_LEDGER;
    const bool claimed = iso_node_ledger_claimed(node);
    enum iso_err err = make_file(l->path, claimed, reason);
    if (err == ISO_OK) err = open_db(l, claimed, reason);
    if (err == ISO_OK && !claimed) err = iso_node_ledger_claim(node);
    if (err != ISO_OK) {
        iso_ledger_free(l);
        return err;
    }
    *reason = ISO_REASON_OK;
    *out = l;
    return ISO_OK;
}

void iso_ledger_free(struct iso_ledger *l)
{
    if (l == NULL) return;
    (void)sqlite3_close(l->db);
    (void)pthread_mutex_destroy(&l->lock);
    free(l->path);
    free(l);
}

const char *iso_ledger_path(const struct iso_ledger *l)
{
    return l->path;
}

enum iso_err iso_ledger_probe(struct iso_ledger *l, double *worst_ms, enum iso_reason *reason)
{
    int64_t worst_ns = 0;
    for (int i = 0; i < ISO_LEDGER_PROBE_WRITES; i++) {
        const int64_t t = iso_clock_ns();
        ISO_TRY(begin(l, reason));
        const struct value v[] = {V_INT(i)};
        enum iso_err err =
            run(l, "UPDATE meta SET value = ?1 WHERE key = 'probe'", v, 1, NULL, NULL, reason);
        ISO_TRY(end(l, err, reason));
        worst_ns = ISO_MAX(worst_ns, iso_clock_ns() - t);
    }
    const double ms = (double)worst_ns / (double)ISO_NS_PER_MS;
    if (ms > ISO_LEDGER_PROBE_WARN_MS) {
        iso_log(ISO_LOG_WARN, "ledger", "slow_disk path=%s worst_ms=%.0f writes=%d", l->path, ms,
                ISO_LEDGER_PROBE_WRITES);
    }
    if (worst_ms != NULL) *worst_ms = ms;
    return ISO_OK;
}

/* --- attempts -----------------------------------------------------------------------------------
 */

static const char *role_name(enum iso_ledger_role role)
{
    return role == ISO_LEDGER_CONSUMER ? "consumer" : "producer";
}

/* Inserts the attempt's row with a code, inside a transaction. */
static enum iso_err insert_row(struct iso_ledger *l,
                               struct iso_attempt *a,
                               const char *code,
                               const char *message,
                               enum iso_reason *reason)
{
    if (a->started_ns == 0) a->started_ns = iso_clock_ns();
    const int64_t took_ms = (iso_clock_ns() - a->started_ns) / ISO_NS_PER_MS;
    const struct value v[] = {V_TEXT(role_name(a->role)),
                              V_INT(a->generation),
                              V_TEXT(a->peer),
                              V_BLOB(a->pin.bytes, sizeof(a->pin.bytes)),
                              V_TEXT(a->request_id),
                              V_INT(iso_clock_wall_s() - took_ms / 1000),
                              V_INT(took_ms),
                              V_TEXT(code),
                              V_TEXT(message),
                              V_INT(a->n_tokens),
                              V_INT(a->pages),
                              V_INT(a->bytes),
                              V_INT(a->count == 0 ? 1 : a->count)};
    ISO_TRY(run(l,
                "INSERT INTO attempts(role, generation, peer, pin, request, started_s, took_ms,"
                " reason, message, tokens, pages, bytes, count)"
                " VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13)",
                v, ISO_COUNT(v), NULL, NULL, reason));
    a->row = sqlite3_last_insert_rowid(l->db);
    return ISO_OK;
}

/* Completes the row with all that is known now. */
static enum iso_err update_row(struct iso_ledger *l,
                               const struct iso_attempt *a,
                               const char *code,
                               const char *message,
                               enum iso_reason *reason)
{
    const struct value v[] = {V_TEXT(code),
                              V_TEXT(message),
                              V_INT((iso_clock_ns() - a->started_ns) / ISO_NS_PER_MS),
                              V_TEXT(a->peer),
                              V_BLOB(a->pin.bytes, sizeof(a->pin.bytes)),
                              V_INT(a->n_tokens),
                              V_INT(a->pages),
                              V_INT(a->bytes),
                              V_INT(a->row)};
    return run(l,
               "UPDATE attempts SET reason = ?1, message = ?2, took_ms = ?3, peer = ?4, pin = ?5,"
               " tokens = ?6, pages = ?7, bytes = ?8 WHERE id = ?9",
               v, ISO_COUNT(v), NULL, NULL, reason);
}

enum iso_err
iso_ledger_reserve(struct iso_ledger *l, struct iso_attempt *a, enum iso_reason *reason)
{
    int64_t next = 0;
    a->role = ISO_LEDGER_CONSUMER;
    ISO_TRY(begin(l, reason));
    enum iso_err err =
        run(l, "SELECT value FROM meta WHERE key = 'next'", NULL, 0, &next, NULL, reason);
    if (err == ISO_OK) {
        err = run(l, "UPDATE meta SET value = value + 1 WHERE key = 'next'", NULL, 0, NULL, NULL,
                  reason);
    }
    a->generation = (uint64_t)next;
    a->row = 0;
    if (err == ISO_OK) err = insert_row(l, a, OPEN_ROW, "", reason);
    return end(l, err, reason);
}

enum iso_err iso_ledger_highest(struct iso_ledger *l, uint64_t *generation, enum iso_reason *reason)
{
    int64_t next = 1;
    ISO_TRY(begin(l, reason));
    enum iso_err err =
        run(l, "SELECT value FROM meta WHERE key = 'next'", NULL, 0, &next, NULL, reason);
    ISO_TRY(end(l, err, reason));
    *generation = (uint64_t)next - 1;
    return ISO_OK;
}

static enum iso_err admit(struct iso_ledger *l,
                          struct iso_attempt *a,
                          const uint8_t *ledger_id,
                          int64_t *high,
                          const char **code,
                          enum iso_reason *reason)
{
    const struct value v[] = {V_BLOB(a->pin.bytes, sizeof(a->pin.bytes)),
                              V_BLOB(ledger_id, ISO_NODE_LEDGER_ID_LEN), V_INT(a->generation)};
    ISO_TRY(run(l, "SELECT generation FROM high WHERE pin = ?1 AND ledger = ?2", v, 2, high, NULL,
                reason));
    *code = OPEN_ROW;
    if ((int64_t)a->generation == *high) *code = iso_reason_name(ISO_REASON_GENERATION);
    if ((int64_t)a->generation < *high) *code = iso_reason_name(ISO_REASON_LEDGER_ROLLED_BACK);
    if ((int64_t)a->generation > *high) {
        ISO_TRY(run(l, "INSERT OR REPLACE INTO high VALUES(?1, ?2, ?3)", v, 3, NULL, NULL, reason));
    }
    return insert_row(l, a, *code, "", reason);
}

enum iso_err iso_ledger_admit(struct iso_ledger *l,
                              struct iso_attempt *a,
                              const uint8_t ledger_id[ISO_NODE_LEDGER_ID_LEN],
                              uint64_t *high,
                              enum iso_reason *reason)
{
    int64_t before = 0;
    const char *code = NULL;
    a->role = ISO_LEDGER_PRODUCER;
    ISO_TRY(begin(l, reason));
    enum iso_err err = admit(l, a, ledger_id, &before, &code, reason);
    ISO_TRY(end(l, err, reason));
    *high = (uint64_t)before;
    if (strcmp(code, OPEN_ROW) == 0) return ISO_OK;
    ISO_TRY(iso_reason_from_name(reason, code));
    ISO_FAIL(ISO_E_REFUSED, "generation %llu of %s, %llu was seen",
             (unsigned long long)a->generation, a->peer, (unsigned long long)before);
}

enum iso_err iso_ledger_finish(struct iso_ledger *l,
                               struct iso_attempt *a,
                               enum iso_reason code,
                               const char *message,
                               enum iso_reason *reason)
{
    ISO_TRY(begin(l, reason));
    const char *name = iso_reason_name(code);
    enum iso_err err = a->row == 0 ? insert_row(l, a, name, message, reason)
                                   : update_row(l, a, name, message, reason);
    return end(l, err, reason);
}

static enum iso_err commit(struct iso_ledger *l,
                           struct iso_attempt *a,
                           const struct iso_digest *manifest,
                           enum iso_reason *reason)
{
    const struct value v[] = {V_INT(a->generation), V_INT(a->row),
                              V_BLOB(manifest->bytes, sizeof(manifest->bytes)),
                              V_INT(iso_clock_wall_s()), V_TEXT(OPEN_ROW)};
    bool open = false, used = false;
    ISO_TRY(run(l,
                "SELECT 1 FROM attempts WHERE id = ?2 AND generation = ?1 AND role = 'consumer'"
                " AND reason = ?5",
                v, 5, NULL, &open, reason));
    ISO_TRY(run(l, "SELECT 1 FROM commits WHERE generation = ?1", v, 1, NULL, &used, reason));
    if (!open || used) {
        ISO_FAIL_REASON(reason, GENERATION, ISO_E_REFUSED, "generation %llu is %s",
                        (unsigned long long)a->generation,
                        used ? "committed already" : "not reserved by this attempt");
    }
    ISO_TRY(run(l, "INSERT INTO commits VALUES(?1, ?2, ?3, ?4)", v, 4, NULL, NULL, reason));
    return update_row(l, a, iso_reason_name(ISO_REASON_OK), "", reason);
}

enum iso_err iso_ledger_commit(struct iso_ledger *l,
                               struct iso_attempt *a,
                               const struct iso_digest *manifest,
                               enum iso_reason *reason)
{
    ISO_TRY(begin(l, reason));
    const enum iso_err err = commit(l, a, manifest, reason);
    return end(l, err, reason);
}

/* --- peers --------------------------------------------------------------------------------------
 */

enum iso_err iso_ledger_mark(struct iso_ledger *l,
                             const struct iso_peer *peer,
                             enum iso_reason why,
                             enum iso_reason *reason)
{
    const struct value v[] = {V_BLOB(peer->pin.bytes, sizeof(peer->pin.bytes)),
                              V_TEXT(iso_reason_name(why)), V_INT(peer->enrolled_s),
                              V_INT(iso_clock_wall_s())};
    ISO_TRY(begin(l, reason));
    const enum iso_err err =
        run(l, "INSERT OR REPLACE INTO marks VALUES(?1, ?2, ?3, ?4)", v, 4, NULL, NULL, reason);
    return end(l, err, reason);
}

static enum iso_err marked_as(struct iso_ledger *l,
                              const struct iso_peer *peer,
                              const char *code,
                              bool *marked,
                              enum iso_reason *reason)
{
    const struct value v[] = {V_BLOB(peer->pin.bytes, sizeof(peer->pin.bytes)),
                              V_INT(peer->enrolled_s), V_TEXT(code)};
    return run(l, "SELECT 1 FROM marks WHERE pin = ?1 AND enrolled_s >= ?2 AND reason = ?3", v, 3,
               NULL, marked, reason);
}

enum iso_err
iso_ledger_check_peer(struct iso_ledger *l, const struct iso_peer *peer, enum iso_reason *reason)
{
    static const enum iso_reason codes[] = {ISO_REASON_DISTRUSTED, ISO_REASON_LEDGER_ROLLED_BACK};
    bool marked = false;
    size_t i = 0;
    ISO_TRY(begin(l, reason));
    enum iso_err err = ISO_OK;
    for (; i < ISO_COUNT(codes) && err == ISO_OK; i++) {
        err = marked_as(l, peer, iso_reason_name(codes[i]), &marked, reason);
        if (marked) break;
    }
    ISO_TRY(end(l, err, reason));
    if (!marked) return ISO_OK;
    *reason = codes[i];
    ISO_FAIL(ISO_E_REFUSED, "%s: %s", peer->name, iso_reason_text(codes[i]));
}

/* --- reading ------------------------------------------------------------------------------------
 */

static enum iso_err append_row(struct iso_buf *out, sqlite3_stmt *st)
{
    static const char *const keys[] = {"role",      "generation", "peer",   "request",
                                       "started_s", "took_ms",    "reason", "message",
                                       "tokens",    "pages",      "bytes",  "count"};
    json_t *o = json_object();
    for (size_t i = 0; i < ISO_COUNT(keys); i++) {
        const int at = (int)i;
        json_t *v = sqlite3_column_type(st, at) == SQLITE_INTEGER
                        ? json_integer(sqlite3_column_int64(st, at))
                        : json_string((const char *)sqlite3_column_text(st, at));
        json_object_set_new(o, keys[i], v == NULL ? json_null() : v);
    }
    enum iso_err err = iso_json_canonical(out, o);
    json_decref(o);
    return err == ISO_OK ? iso_buf_u8(out, '\n') : err;
}

enum iso_err
iso_ledger_list(struct iso_ledger *l, struct iso_buf *out, unsigned n, enum iso_reason *reason)
{
    static const char sql[] = "SELECT role, generation, peer, request, started_s, took_ms, reason,"
                              " message, tokens, pages, bytes, count FROM attempts"
                              " ORDER BY id DESC LIMIT ?1";
    const struct value v[] = {V_INT(n)};
    sqlite3_stmt *st = NULL;
    pthread_mutex_lock(&l->lock);
    enum iso_err err = ISO_OK;
    int rc = sqlite3_prepare_v2(l->db, sql, -1, &st, NULL);
    if (rc == SQLITE_OK) rc = bind(st, v, 1);
    while (rc == SQLITE_OK || rc == SQLITE_ROW) {
        rc = sqlite3_step(st);
        if (rc != SQLITE_ROW) break;
        err = append_row(out, st);
        if (err != ISO_OK) break;
    }
    if (err == ISO_OK && rc != SQLITE_DONE) err = broken(l, reason, "list");
    sqlite3_finalize(st);
    pthread_mutex_unlock(&l->lock);
    return err;
}

enum iso_err iso_ledger_renew(struct iso_node *node, const char *path)
{
    static const char *const tails[] = {"", "-wal", "-shm"};
    char *from = path_of(node, path);
    enum iso_err err = ISO_OK;
    for (size_t i = 0; i < ISO_COUNT(tails) && err == ISO_OK; i++) {
        char a[PATH_LEN], b[PATH_LEN];
        (void)snprintf(a, sizeof(a), "%s%s", from, tails[i]);
        (void)snprintf(b, sizeof(b), "%s.lost-%lld%s", from, (long long)iso_clock_wall_s(),
                       tails[i]);
        if (rename(a, b) != 0 && errno != ENOENT) {
            err = iso_err_raise(ISO_E_IO, __FILE__, __LINE__, "%s: %s", a, strerror(errno));
        }
    }
    free(from);
    return err == ISO_OK ? iso_node_ledger_renew(node) : err;
}
