/* SPDX-License-Identifier: MIT
 * channel_internal.h - what the channel's files share: the struct, TLS set-up, sockets. */
#ifndef ISO_HANDOFF_CHANNEL_INTERNAL_H
#define ISO_HANDOFF_CHANNEL_INTERNAL_H

#include <openssl/ssl.h>
#include <pthread.h>
#include <stdatomic.h>

#include "handoff/channel.h"

#define ISO_CHANNEL_RECORD_LEN                                                                     \
    16384 /* bytes; the largest plaintext of a TLS record, RFC 8446 5.1 */

struct iso_channel {
    struct iso_node *node;
    int fd;
    bool server;
    bool open;      /* HELLO is exchanged; before, time limits mean HANDSHAKE_TIMEOUT */
    bool from_peer; /* the first failure was told by the peer */
    struct iso_peer peer;
    char claimed[ISO_NODE_NAME_MAX]; /* name in the peer's certificate, from the verify callback */
    int64_t clock_off_s;             /* how far a refused certificate is from being valid */
    char remote[ISO_CHANNEL_REMOTE_MAX];
    int64_t deadline_ns; /* of the handshake */
    int64_t clock_skew_s;

    pthread_mutex_t ssl_lock; /* around each call on ssl; never held while waiting */
    SSL *ssl;

    pthread_mutex_t send_lock; /* guards sending */
    pthread_cond_t send_free;
    bool sending; /* one thread is inside a frame; it owns stage and records */
    uint8_t stage[ISO_CHANNEL_RECORD_LEN];
    uint32_t records; /* since the last KeyUpdate */
    uint32_t rekey_records;

    /* The receiver's. */
    uint8_t head[ISO_FRAME_HEADER_LEN];
    size_t head_have;
    size_t payload_left;
    int64_t last_rx_ns;
    _Atomic int64_t silence_ns; /* 0: no limit; the sender reads it too */

    /* Set once; relaxed: each value stands alone, and a message goes with the failing call itself.
     */
    _Atomic int reason;
    _Atomic int err;
    _Atomic bool cancelled;
    _Atomic uint64_t tx_bytes, rx_bytes, tx_frames, rx_frames, tx_records, key_updates;
};

/* channel.c ------------------------------------------------------------- */

/* Records the first failure; the channel is spent from here on. Returns err. */
enum iso_err iso_channel_spend(struct iso_channel *ch, enum iso_reason reason, enum iso_err err);

#define ISO_FAIL_CHANNEL(ch, name, code, ...)                                                      \
    do {                                                                                           \
        (void)iso_channel_spend((ch), ISO_REASON_##name, (code));                                  \
        ISO_FAIL(code, __VA_ARGS__);                                                               \
    } while (0)

/* Records a failed TLS call. */
enum iso_err iso_channel_fail_tls(struct iso_channel *ch, int ssl_error, int saved_errno);

/* Records a wait that ended. quiet_until: end of the silence limit; deadline_ns: the caller's. */
enum iso_err
iso_channel_fail_late(struct iso_channel *ch, int64_t deadline_ns, int64_t quiet_until);

/* iso_channel_send() of a frame that passed iso_frame_check(), HELLO too. */
enum iso_err iso_channel_send_frame(struct iso_channel *ch,
                                    const struct iso_frame *f,
                                    const struct iovec *parts,
                                    int n_parts,
                                    int64_t deadline_ns) ISO_NODISCARD;

/* channel_tls.c --------------------------------------------------------- */

/* A TLS object on ch->fd with the node's current certificates and all rules of channel.h. */
enum iso_err iso_channel_tls_new(struct iso_channel *ch) ISO_NODISCARD;

/* After a finished handshake: ALPN, name, enrolment, pin; fills ch->peer. expected may be NULL. */
enum iso_err iso_channel_tls_check_peer(struct iso_channel *ch,
                                        const char *expected,
                                        enum iso_reason *reason) ISO_NODISCARD;

/* Turns the failed TLS call (ssl_error of SSL_get_error(), errno saved) into reason and message.
 * Returns the error; the caller records it. */
enum iso_err iso_channel_tls_failure(struct iso_channel *ch,
                                     int ssl_error,
                                     int saved_errno,
                                     enum iso_reason *reason) ISO_NODISCARD;

/* channel_net.c --------------------------------------------------------- */

/* Non-blocking, close-on-exec, no delay, no SIGPIPE. */
enum iso_err iso_channel_net_prepare(int fd) ISO_NODISCARD;

/* "address:port" of the other end; "" when it has none. */
void iso_channel_net_remote(char out[ISO_CHANNEL_REMOTE_MAX], int fd);

/* Connected socket. Errors: ISO_E_ARG; ISO_E_IO; ISO_E_TIMEOUT. */
enum iso_err
iso_channel_net_connect(int *fd, const char *address, int64_t deadline_ns) ISO_NODISCARD;

/* Waits for events (POLLIN, POLLOUT) until until_ns; true when ready. EINTR is handled. */
bool iso_channel_net_wait(int fd, short events, int64_t until_ns);

/* Ends our direction and reads the rest away for limit_ms, so that the kernel does not answer
 * unread bytes with a reset that would destroy what we sent last; then closes. */
void iso_channel_net_close_gently(int fd, int64_t limit_ms);

#endif
