/* SPDX-License-Identifier: MIT
 * ledger.h - durable memory of hand-offs: generations, high-water marks, commits, every attempt.
 *
 * One SQLite file per node (WAL, synchronous=FULL), shared by the node's processes: each change is
 * one BEGIN IMMEDIATE transaction. What it guarantees:
 *   - a consumer's generation is written before it is used and given out once, by any process;
 *   - a producer accepts a generation of a consumer's ledger only above all it accepted before;
 *   - a crash leaves a burnt generation, never a reused one;
 *   - a ledger that is missing, another one, or older than a producer remembers is closed: nothing
 * is handed off until iso_ledger_renew() and a new enrolment. Every attempt, refused ones too, is a
 * row with its code: the audit trail.
 *
 * Thread: any; one lock inside, held for one transaction (a few ms of disk).
 * Errors: every call ISO_E_IO with *reason LEDGER (path and SQLite's text), or ISO_E_REFUSED with
 * LEDGER_MISSING when the file has gone from its path since it was opened.
 */
#ifndef ISO_HANDOFF_LEDGER_H
#define ISO_HANDOFF_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/digest.h"
#include "base/err.h"
#include "handoff/manifest.h"
#include "handoff/reason.h"
#include "node/node.h"

#define ISO_LEDGER_FILE "ledger.sqlite" /* in the node's directory, unless another path is given   \
                                         */
#define ISO_LEDGER_PROBE_WRITES 20
#define ISO_LEDGER_PROBE_WARN_MS 100 /* a slow volume was seen to stall hand-offs for a second */
#define ISO_LEDGER_BUSY_MS 5000      /* wait for another process's transaction */

struct iso_ledger;

enum iso_ledger_role { ISO_LEDGER_CONSUMER, ISO_LEDGER_PRODUCER };

/* One attempt as its row keeps it. The caller fills what it knows, zero and "" are fine. */
struct iso_attempt {
    enum iso_ledger_role role;
    uint64_t generation;
    char peer[ISO_NODE_NAME_MAX];
    struct iso_digest pin; /* key pin of the peer, zeros when unknown */
    char request_id[ISO_HANDOFF_TEXT_MAX];
    uint32_t n_tokens;
    uint64_t pages, bytes;
    uint32_t count;     /* equal refusals that this row stands for; 0 is 1 */
    int64_t row;        /* set by the ledger; 0: no row yet */
    int64_t started_ns; /* iso_clock_ns(), set by the ledger when 0 */
};

/* Opens the ledger of node, or makes it when this node never had one. path NULL: in its directory.
 *
 * Owner:  *out is owned by the caller, free with iso_ledger_free(); node is borrowed for its life.
 * Errors: ISO_E_REFUSED LEDGER_MISSING (the node had one), LEDGER_FOREIGN (its id is not the
 * node's). */
enum iso_err iso_ledger_open(struct iso_ledger **out,
                             struct iso_node *node,
                             const char *path,
                             enum iso_reason *reason) ISO_NODISCARD;
void iso_ledger_free(struct iso_ledger *l);
const char *iso_ledger_path(const struct iso_ledger *l);

/* Times ISO_LEDGER_PROBE_WRITES durable writes and logs a warning with the path when the worst
 * takes over ISO_LEDGER_PROBE_WARN_MS. worst_ms may be NULL. */
enum iso_err
iso_ledger_probe(struct iso_ledger *l, double *worst_ms, enum iso_reason *reason) ISO_NODISCARD;

/* Consumer: takes the next generation and opens the attempt's row, durably. */
enum iso_err iso_ledger_reserve(struct iso_ledger *l,
                                struct iso_attempt *a,
                                enum iso_reason *reason) ISO_NODISCARD;

/* Highest generation that was reserved here. */
enum iso_err iso_ledger_highest(struct iso_ledger *l,
                                uint64_t *generation,
                                enum iso_reason *reason) ISO_NODISCARD;

/* Producer: accepts a->generation of the ledger whose id is given and opens the row, durably.
 * *high: highest accepted before.
 * Errors: ISO_E_REFUSED GENERATION (used before) or LEDGER_ROLLED_BACK (lower); the row is written.
 */
enum iso_err iso_ledger_admit(struct iso_ledger *l,
                              struct iso_attempt *a,
                              const uint8_t ledger_id[ISO_NODE_LEDGER_ID_LEN],
                              uint64_t *high,
                              enum iso_reason *reason) ISO_NODISCARD;

/* Closes the attempt's row with a code, or writes one that has none yet. */
enum iso_err iso_ledger_finish(struct iso_ledger *l,
                               struct iso_attempt *a,
                               enum iso_reason code,
                               const char *message,
                               enum iso_reason *reason) ISO_NODISCARD;

/* Consumer: the commit row of a generation, and the attempt closed with OK, in one transaction.
 * Errors: ISO_E_REFUSED GENERATION when it was not reserved here or is committed. */
enum iso_err iso_ledger_commit(struct iso_ledger *l,
                               struct iso_attempt *a,
                               const struct iso_digest *manifest,
                               enum iso_reason *reason) ISO_NODISCARD;

/* Closes this node to a peer for a reason (LEDGER_ROLLED_BACK, DISTRUSTED) until a later enrolment.
 */
enum iso_err iso_ledger_mark(struct iso_ledger *l,
                             const struct iso_peer *peer,
                             enum iso_reason why,
                             enum iso_reason *reason) ISO_NODISCARD;

/* ISO_E_REFUSED with the marked reason when the peer is closed. */
enum iso_err iso_ledger_check_peer(struct iso_ledger *l,
                                   const struct iso_peer *peer,
                                   enum iso_reason *reason) ISO_NODISCARD;

/* Appends the last n attempts as JSON lines, newest first. */
enum iso_err iso_ledger_list(struct iso_ledger *l,
                             struct iso_buf *out,
                             unsigned n,
                             enum iso_reason *reason) ISO_NODISCARD;

/* After a lost, foreign or rolled back ledger: moves what is at path away (".lost-" and the time)
 * and gives the node a new ledger id; its peers must enrol it again. No process may have it open.
 */
enum iso_err iso_ledger_renew(struct iso_node *node, const char *path) ISO_NODISCARD;

#endif
