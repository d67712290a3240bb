/* SPDX-License-Identifier: MIT
 * channel.h - an authenticated connection between two enrolled nodes that carries frames.
 *
 * One TCP connection, TLS 1.3 only, certificates on both sides, ALPN isobit-handoff/1, no 0-RTT, no
 * tickets, no session cache. A channel that a caller holds is authenticated: chain to the own CA,
 * validity, key usage, revocation list, SAN URI isobit:<node> of an enrolled node that is not
 * revoked, and the SPKI pin of its enrolment. Both sides have exchanged HELLO, so a dialler knows
 * that it was accepted. The channel owns HELLO; the first frame of the hand-off is REQUEST.
 *
 * Waiting: sockets are polled; every call has a deadline, an absolute time of iso_clock_ns() in ns.
 * No thread is started. Liveness is mutual: each side sends some frame at least once a second while
 * a transfer runs (PROGRESS without payload is the heartbeat); see iso_channel_set_silence().
 *
 * Threads: any number of threads may send on one channel, whole frames never mix; ONE thread
 * receives, at the same time if it likes; iso_channel_cancel() from anywhere; free when all are
 * out.
 *
 * Failure: enum iso_err says the kind, iso_channel_reason() (or struct iso_channel_report before
 * there is a channel) which. After any failure but ISO_E_AGAIN the channel is spent: every later
 * call fails at once with the first reason. The message is in iso_err_detail().
 */
#ifndef ISO_HANDOFF_CHANNEL_H
#define ISO_HANDOFF_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/err.h"
#include "handoff/frame.h"
#include "handoff/reason.h"
#include "node/node.h"

#define ISO_CHANNEL_ALPN "isobit-handoff/1"
#define ISO_CHANNEL_HANDSHAKE_MS 5000        /* from the TCP accept or connect to HELLO */
#define ISO_CHANNEL_UNAUTHENTICATED_MAX 16   /* connections of one listener that are not yet in */
#define ISO_CHANNEL_SILENCE_MS 10000         /* no byte from the peer for so long: PEER_SILENT */
#define ISO_CHANNEL_HEARTBEAT_MS 1000        /* the sender's duty */
#define ISO_CHANNEL_REKEY_RECORDS (1u << 23) /* KeyUpdate well before 2^24 records */
#define ISO_CHANNEL_PARTS_MAX 16             /* parts of one payload */
#define ISO_CHANNEL_REMOTE_MAX 80            /* "[address]:port" with the NUL */

struct iso_listener;
struct iso_channel;

/* How an attempt to open a channel ended; filled on success and on failure. */
struct iso_channel_report {
    enum iso_reason reason;              /* OK on success */
    bool from_peer;                      /* the peer refused us and told the reason */
    char node[ISO_NODE_NAME_MAX];        /* name in the peer's certificate, "" when none was seen;
                                            proven only when the reason is OK */
    char remote[ISO_CHANNEL_REMOTE_MAX]; /* address, or "" */
};

/* A connection that was accepted and is not yet authenticated; holds one of the 16 places. */
struct iso_pending {
    int fd;
    int64_t deadline_ns; /* end of its handshake time */
    char remote[ISO_CHANNEL_REMOTE_MAX];
};

struct iso_channel_stats {
    uint64_t tx_bytes, rx_bytes;   /* frames: headers and payloads, without TLS */
    uint64_t tx_frames, rx_frames; /* complete headers */
    uint64_t tx_records;           /* TLS records of application data sent */
    uint64_t key_updates;          /* sent by this side */
    int64_t clock_skew_s;          /* peer's clock minus ours, at HELLO */
};

/* Time limit timeout_ms from now, for the deadline parameters. */
int64_t iso_channel_deadline(int64_t timeout_ms);

/* Listens on "HOST:PORT", "[v6]:PORT" or ":PORT" (all addresses); port 0 takes a free one.
 *
 * Owner:  *out is owned by the caller, free with iso_listener_free() after its channels' handshakes
 *         are over; node is borrowed for the listener's life.
 * Errors: ISO_E_ARG address; ISO_E_IO bind or listen; ISO_E_AUTH the node has no certificate yet.
 */
enum iso_err iso_listener_open(struct iso_listener **out,
                               struct iso_node *node,
                               const char *address) ISO_NODISCARD;
void iso_listener_free(struct iso_listener *l);
uint16_t iso_listener_port(const struct iso_listener *l);

/* Handshake time of connections accepted from now on; the default is ISO_CHANNEL_HANDSHAKE_MS. */
void iso_listener_set_handshake(struct iso_listener *l, int64_t timeout_ms);

/* Connections that are accepted and not yet authenticated. Thread: any. */
unsigned iso_listener_pending(const struct iso_listener *l);

/* Takes the next TCP connection; quick, so one thread can accept while others shake hands.
 *
 * Owner:  the caller must give *out to iso_channel_accept() or iso_listener_drop().
 * Thread: one at a time per listener.
 * Errors: ISO_E_AGAIN nothing within timeout_ms; ISO_E_CANCELLED after iso_listener_cancel();
 *         ISO_E_REFUSED 16 are pending, this one was closed (TOO_MANY_UNAUTHENTICATED; *report may
 *         be NULL); ISO_E_IO. Only CANCELLED and IO are reasons to leave the loop. */
enum iso_err iso_listener_accept(struct iso_listener *l,
                                 struct iso_pending *out,
                                 int64_t timeout_ms,
                                 struct iso_channel_report *report) ISO_NODISCARD;

/* Closes a pending connection without a handshake. */
void iso_listener_drop(struct iso_listener *l, struct iso_pending *pending);

/* Makes the running and every later iso_listener_accept() return ISO_E_CANCELLED. Thread: any. */
void iso_listener_cancel(struct iso_listener *l);

/* Shakes hands as the producer; blocks until pending->deadline_ns at most; meant for the
 * connection's own thread.
 *
 * Owner:  takes pending->fd in every case and gives its place back; *out is owned by the caller,
 *         free with iso_channel_free().
 * Errors: ISO_E_AUTH, ISO_E_PROTO, ISO_E_TIMEOUT, ISO_E_IO; *report (may be NULL) has the reason.
 */
enum iso_err iso_channel_accept(struct iso_channel **out,
                                struct iso_listener *l,
                                struct iso_pending *pending,
                                struct iso_channel_report *report) ISO_NODISCARD;

/* Connects and shakes hands as the consumer. peer: the node that must answer, NULL for any enrolled
 * one. timeout_ms limits connecting and handshake together, the handshake also by
 * ISO_CHANNEL_HANDSHAKE_MS. Looking up a host name is the system resolver's and has its limits.
 *
 * Owner:  node is borrowed for the channel's life; *out as above.
 * Errors: ISO_E_ARG address; ISO_E_IO with UNREACHABLE; as iso_channel_accept(). A refusal by the
 *         peer has from_peer set. */
enum iso_err iso_channel_dial(struct iso_channel **out,
                              struct iso_node *node,
                              const char *address,
                              const char *peer,
                              int64_t timeout_ms,
                              struct iso_channel_report *report) ISO_NODISCARD;

/* Shakes hands on a connected stream socket (socketpair in tests; server: as the producer).
 * Owner: takes fd in every case. */
enum iso_err iso_channel_start(struct iso_channel **out,
                               struct iso_node *node,
                               int fd,
                               bool server,
                               const char *peer,
                               int64_t deadline_ns,
                               struct iso_channel_report *report) ISO_NODISCARD;

/* Says goodbye (TLS close_notify), closes and frees. NULL is fine. A channel without a failure
 * waits up to 250 ms for the peer's goodbye: closing over unread bytes would make the kernel send a
 * reset, which can destroy the last frame on its way. */
void iso_channel_free(struct iso_channel *ch);

/* The enrolment record of the peer as it was at the handshake; borrowed from ch. */
const struct iso_peer *iso_channel_peer(const struct iso_channel *ch);

/* "address:port" of the peer, "" for a socketpair. */
const char *iso_channel_remote(const struct iso_channel *ch);

/* First reason for which a call on this channel failed; OK so far. Thread: any. */
enum iso_reason iso_channel_reason(const struct iso_channel *ch);

/* Counters so far. Thread: any; the numbers need not be of one instant. */
void iso_channel_stats(const struct iso_channel *ch, struct iso_channel_stats *out);

/* Keying material of this connection (RFC 8446 section 7.5, with a context): the same on both
 * sides. label: "EXPORTER-..."; context [context_len] may be empty. Errors: ISO_E_IO. */
enum iso_err iso_channel_exporter(struct iso_channel *ch,
                                  uint8_t out[32],
                                  const char *label,
                                  const void *context,
                                  size_t context_len) ISO_NODISCARD;

/* Sends one frame whose payload is parts [n_parts], n_parts <= ISO_CHANNEL_PARTS_MAX, without
 * copying large parts first.
 *
 * Owner:  the parts may be reused when the call returns.
 * Errors: ISO_E_ARG what iso_frame_check() refuses (nothing was sent, the channel stays usable);
 *         ISO_E_TIMEOUT with DEADLINE, or PEER_SILENT when the peer took no byte for the silence
 *         limit; ISO_E_IO with CLOSED; ISO_E_CANCELLED; ISO_E_PROTO with TLS_BROKEN. */
enum iso_err iso_channel_send(struct iso_channel *ch,
                              enum iso_frame_type type,
                              uint8_t flags,
                              uint32_t stream,
                              const struct iovec *parts,
                              int n_parts,
                              int64_t deadline_ns) ISO_NODISCARD;

/* iso_channel_send() with one part, or none when len is 0. */
enum iso_err iso_channel_send_bytes(struct iso_channel *ch,
                                    enum iso_frame_type type,
                                    uint32_t stream,
                                    const void *payload,
                                    size_t len,
                                    int64_t deadline_ns) ISO_NODISCARD;

/* Waits for the next frame's header. Heartbeats are delivered like any frame.
 *
 * Needs:  the payload of the frame before was read to its end (assert).
 * Errors: ISO_E_TIMEOUT with DEADLINE or PEER_SILENT; ISO_E_PROTO with FRAME_*; ISO_E_IO with
 *         CLOSED; ISO_E_CANCELLED; ISO_E_AUTH when a TLS alert says the peer rejects us. */
enum iso_err iso_channel_recv_header(struct iso_channel *ch,
                                     struct iso_frame *out,
                                     int64_t deadline_ns) ISO_NODISCARD;

/* The same without waiting: ISO_E_AGAIN when no whole header is there yet (the channel stays
 * usable); PEER_SILENT counts here too. For a producer that looks for CANCEL between two sends. */
enum iso_err iso_channel_try_header(struct iso_channel *ch, struct iso_frame *out) ISO_NODISCARD;

/* Reads exactly len bytes of the current frame's payload to dst; several calls may share a payload,
 * so that each page goes straight to where it stays.
 *
 * Needs:  len <= iso_channel_payload_left() (assert: it is the caller's arithmetic).
 * Errors: as iso_channel_recv_header(), dst may then hold a part. */
enum iso_err iso_channel_recv_payload(struct iso_channel *ch,
                                      void *dst,
                                      size_t len,
                                      int64_t deadline_ns) ISO_NODISCARD;

/* Reads the rest of the payload and forgets it. */
enum iso_err iso_channel_skip_payload(struct iso_channel *ch, int64_t deadline_ns) ISO_NODISCARD;

/* Bytes of the current frame's payload that were not read yet. */
size_t iso_channel_payload_left(const struct iso_channel *ch);

/* True when bytes are waiting, in the TLS layer or the socket; false after timeout_ms (0: at once).
 * Thread: the receiver's. */
bool iso_channel_readable(struct iso_channel *ch, int64_t timeout_ms);

/* Silence limit, default ISO_CHANNEL_SILENCE_MS; 0 for none (an idle connection between transfers).
 * The clock starts anew. Thread: the receiver's. */
void iso_channel_set_silence(struct iso_channel *ch, int64_t silence_ms);

/* KeyUpdate after so many records sent; for tests, before anything is sent. Needs: 1 <= n <=
 * ISO_CHANNEL_REKEY_RECORDS. */
void iso_channel_set_rekey(struct iso_channel *ch, uint32_t n_records);

/* Ends every running and later call with ISO_E_CANCELLED and closes the TCP connection both ways.
 * Thread: any; does not block. */
void iso_channel_cancel(struct iso_channel *ch);

#endif
