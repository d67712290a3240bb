/* SPDX-License-Identifier: MIT
 * reason.h - one code for each way a hand-off can be refused or can end.
 *
 * enum iso_err says what kind of failure it was, a reason says exactly which; the ledger, the
 * metrics and the REFUSE and ERROR frames carry the reason by NAME, so the numbers may change.
 */
#ifndef ISO_HANDOFF_REASON_H
#define ISO_HANDOFF_REASON_H

#include "base/err.h"

#define ISO_REASON_MAP(X)                                                                          \
    X(OK, "accepted")                                                                              \
    /* channel: who is there */                                                                    \
    X(NO_CLIENT_CERT, "the peer showed no certificate")                                            \
    X(CERT_INVALID, "the certificate is malformed or may not be used for this")                    \
    X(CERT_EXPIRED, "the certificate has expired, or a clock is wrong")                            \
    X(CERT_NOT_YET_VALID, "the certificate is not valid yet: the clocks differ")                   \
    X(CERT_REVOKED, "the certificate or its node was revoked")                                     \
    X(CERT_FOREIGN, "the certificate comes from another CA")                                       \
    X(PEER_NOT_ENROLLED, "the node is not enrolled here")                                          \
    X(PEER_UNEXPECTED, "another enrolled node answered than the one that was called")              \
    X(PIN_MISMATCH, "the node's key is not the enrolled one")                                      \
    X(ALPN, "the peer does not speak isobit-handoff/1")                                            \
    X(TLS_VERSION, "the peer does not speak TLS 1.3")                                              \
    X(TLS_BROKEN, "the TLS record layer or handshake failed")                                      \
    X(HANDSHAKE_TIMEOUT, "the handshake took too long")                                            \
    X(TOO_MANY_UNAUTHENTICATED, "too many connections are still unauthenticated")                  \
    X(UNREACHABLE, "no connection to the address")                                                 \
    /* channel: frames and liveness */                                                             \
    X(FRAME_MAGIC, "no frame starts here")                                                         \
    X(FRAME_TYPE, "unknown frame type")                                                            \
    X(FRAME_FLAGS, "unknown frame flag or reserved bits set")                                      \
    X(FRAME_LENGTH, "the length is outside the limits of the frame type")                          \
    X(FRAME_ORDER, "the frame is not allowed at this point")                                       \
    X(FRAME_FIELD, "a field of the payload is missing, unknown or out of range")                   \
    X(PEER_SILENT, "the peer was silent for too long")                                             \
    X(DEADLINE, "the deadline has passed")                                                         \
    X(CLOSED, "the peer closed the connection")                                                    \
    /* request */                                                                                  \
    X(ARITHMETIC, "the arithmetic versions differ")                                                \
    X(WEIGHTS, "the weights differ")                                                               \
    X(TOKENIZER, "the tokenizers differ")                                                          \
    X(PAGE_FORMAT, "the page formats differ")                                                      \
    X(CONTEXT_POLICY, "the context policies differ")                                               \
    X(TEMPLATE, "the chat templates differ")                                                       \
    X(LANE, "the lane is not offered")                                                             \
    X(NO_IDS, "the request has no token ids")                                                      \
    X(CONTEXT_EXCEEDED, "the prompt is longer than the context")                                   \
    X(ID_OUT_OF_RANGE, "a token id is outside the vocabulary")                                     \
    X(QUOTA, "the peer is over its quota")                                                         \
    X(GENERATION, "the generation was not reserved here or was used before")                       \
    X(LEDGER_ROLLED_BACK, "the peer's ledger went back to an older state")                         \
    X(LEDGER_MISSING, "the ledger file is gone")                                                   \
    X(LEDGER_FOREIGN, "the ledger is not the enrolled one")                                        \
    X(LEDGER, "the ledger cannot be read or written")                                              \
    X(CHAIN, "the held pages belong to other token ids")                                           \
    X(AUDIT_UNAVAILABLE, "not every window page is kept, as an audit needs")                       \
    X(NO_ROOM, "no pages are left to receive into")                                                \
    X(DISTRUSTED, "the producer sent wrong pages before and must be enrolled anew")                \
    /* seal and pages */                                                                           \
    X(NONCE, "the nonce is not the one that was sent")                                             \
    X(MANIFEST, "the manifest does not repeat the request")                                        \
    X(MAC, "the seal's MAC is wrong")                                                              \
    X(SIGNATURE, "the seal's signature is wrong")                                                  \
    X(DIGEST, "a page's digest is wrong")                                                          \
    X(PAGE_MISSING, "a page was not sent")                                                         \
    X(PAGE_TWICE, "a page was sent twice")                                                         \
    X(PAGE_RANGE, "a page lies outside the agreed range")                                          \
    X(PAGE_FORM, "a page's values are outside the page format")                                    \
    X(TOTALS, "the totals do not match what was sent")                                             \
    X(CUT, "the cut is not the agreed one")                                                        \
    X(AUDIT, "a recomputed position differs")                                                      \
    /* policy and the rest */                                                                      \
    X(CANCELLED, "cancelled")                                                                      \
    X(BUSY, "the peer has no room now")                                                            \
    X(BREAKER_OPEN, "the peer failed repeatedly and is left alone for a while")                    \
    X(INTERNAL, "internal error")

enum iso_reason {
#define X(name, text) ISO_REASON_##name,
    ISO_REASON_MAP(X)
#undef X
        ISO_REASON_COUNT
};

/* "PIN_MISMATCH"; the stable name that frames, ledger rows and metrics carry. Never NULL. */
const char *iso_reason_name(enum iso_reason r);

/* One sentence for people. Never NULL. */
const char *iso_reason_text(enum iso_reason r);

/* The code of a name. Errors: ISO_E_FORMAT for a name that this build does not know. */
enum iso_err iso_reason_from_name(enum iso_reason *out, const char *name) ISO_NODISCARD;

/* Sets *out to ISO_REASON_<name> and raises; for functions with an enum iso_reason * result. */
#define ISO_FAIL_REASON(out, name, code, ...)                                                      \
    do {                                                                                           \
        *(out) = ISO_REASON_##name;                                                                \
        ISO_FAIL(code, __VA_ARGS__);                                                               \
    } while (0)

#endif
