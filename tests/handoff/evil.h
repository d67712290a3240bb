/* SPDX-License-Identifier: MIT
 * evil.h - an enrolled producer that breaks one rule, for tests. */
#ifndef ISO_TESTS_HANDOFF_EVIL_H
#define ISO_TESTS_HANDOFF_EVIL_H

#include <pthread.h>

#include "handoff/channel.h"
#include "handoff/manifest.h"
#include "isobit_kv.h"
#include "node/node.h"

/* What it does wrong, and the reason that must come of it. */
#define EVIL_MAP(X)                                                                                \
    X(NOTHING, OK)              /* an honest one: the others differ in one thing only */           \
    X(WRONG_V, AUDIT)           /* well-sealed pages with other v codes in the first layer */      \
    X(WRONG_K_LAST, AUDIT)      /* one k code per position in the last layer */                    \
    X(FORM_K, PAGE_FORM)        /* a k code of -2048 */                                            \
    X(FORM_V, PAGE_FORM)        /* a v code of -128 */                                             \
    X(FORM_SCALE, PAGE_FORM)    /* an infinite scale */                                            \
    X(FORM_TAIL, PAGE_FORM)     /* something in an unused slot of the last page */                 \
    X(CLOSE_EARLY, CLOSED)      /* a clean close between two frames */                             \
    X(SEAL_EARLY, PAGE_MISSING) /* the last layer is left out */                                   \
    X(TWICE, PAGE_TWICE)                                                                           \
    X(RANGE_LAYER, PAGE_RANGE) /* a layer that is not there */                                     \
    X(RANGE_PAGE, PAGE_RANGE)  /* a page behind the last one */                                    \
    X(LENGTH, FRAME_LENGTH)    /* a PAGES frame shorter than its range */                          \
    X(OTHER_DIGEST, DIGEST)    /* sealed is another page than was sent */                          \
    X(OTHER_LIST, DIGEST)      /* the list is not the sealed one */                                \
    X(TOTALS, TOTALS)                                                                              \
    X(SEAL_CUT, CUT)                                                                               \
    X(ACCEPT_CUT, CUT)                                                                             \
    X(NONCE, NONCE)                                                                                \
    X(GENERATION, GENERATION)                                                                      \
    X(REQUEST, MANIFEST) /* sealed is another deadline */                                          \
    X(NODE, MANIFEST)    /* sealed in another node's name */                                       \
    X(MAC, MAC)                                                                                    \
    X(SIGNATURE, SIGNATURE)                                                                        \
    X(OLD_SEAL, MAC)          /* the seal of an earlier connection, as recorded */                 \
    X(SEAL_JSON, FRAME_FIELD) /* an unknown member in the manifest, well sealed */                 \
    X(SEAL_TRUNCATED, FRAME_FIELD)                                                                 \
    X(ORDER, FRAME_ORDER)  /* REQUEST among the pages */                                           \
    X(STREAM, FRAME_FIELD) /* frames of another transfer */                                        \
    X(PROGRESS_JSON, FRAME_FIELD)                                                                  \
    X(SILENT, PEER_SILENT)        /* no byte after ACCEPT */                                       \
    X(ERROR, BUSY)                /* gives up and says so */                                       \
    X(LEDGER, LEDGER_ROLLED_BACK) /* claims to have seen a higher generation */

enum evil_kind {
#define X(name, reason) EVIL_##name,
    EVIL_MAP(X)
#undef X
        EVIL_COUNT
};

struct evil {
    struct iso_node *node;
    iso_engine *engine;
    struct iso_listener *listener;
    pthread_t thread;
    enum evil_kind kind;
    /* The consumer's end of the last connection. */
    enum iso_reason told;    /* by ERROR or CANCEL */
    struct iso_buf old_seal; /* a recorded SEAL payload */
};

/* Listens on a free port; serves one connection per evil_serve(). */
void evil_init(struct evil *e, struct iso_node *node, iso_engine *engine);
void evil_deinit(struct evil *e);
uint16_t evil_port(const struct evil *e);

/* Serves the next connection on a thread; evil_join() waits for its end. */
void evil_serve(struct evil *e, enum evil_kind kind);
void evil_join(struct evil *e);

#endif
