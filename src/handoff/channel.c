/* SPDX-License-Identifier: MIT
 * channel.c - sending and receiving frames over TLS, with deadlines, by several threads. */
#include "handoff/channel.h"

#include <assert.h>
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "handoff/channel_internal.h"

#define SEND_WAIT_NS 20000000LL /* slice of waiting for the turn to send; see begin_frame() */
#define NO_WAIT INT64_MIN

/* Failures -------------------------------------------------------------- */

enum iso_err iso_channel_spend(struct iso_channel *ch, enum iso_reason reason, enum iso_err err)
{
    int expected = ISO_REASON_OK;
    if (atomic_compare_exchange_strong(&ch->reason, &expected, (int)reason))
        atomic_store(&ch->err, (int)err);
    return err;
}

/* Refuses to go on with a spent channel. */
static enum iso_err check_usable(struct iso_channel *ch)
{
    if (atomic_load(&ch->cancelled)) ISO_FAIL_CHANNEL(ch, CANCELLED, ISO_E_CANCELLED, "cancelled");
    const int reason = atomic_load(&ch->reason);
    if (reason == ISO_REASON_OK) return ISO_OK;
    int err = atomic_load(&ch->err);
    if (err == ISO_OK) err = ISO_E_IO; /* the other thread is between its two stores */
    ISO_FAIL((enum iso_err)err, "the channel has failed before: %s",
             iso_reason_text((enum iso_reason)reason));
}

enum iso_err iso_channel_fail_tls(struct iso_channel *ch, int ssl_error, int saved_errno)
{
    enum iso_reason reason = ISO_REASON_INTERNAL;
    const enum iso_err err = iso_channel_tls_failure(ch, ssl_error, saved_errno, &reason);
    return iso_channel_spend(ch, reason, err);
}

enum iso_err iso_channel_fail_late(struct iso_channel *ch, int64_t deadline_ns, int64_t quiet_until)
{
    if (atomic_load(&ch->cancelled)) ISO_FAIL_CHANNEL(ch, CANCELLED, ISO_E_CANCELLED, "cancelled");
    if (!ch->open)
        ISO_FAIL_CHANNEL(ch, HANDSHAKE_TIMEOUT, ISO_E_TIMEOUT,
                         "the handshake was not done in time");
    if (quiet_until < deadline_ns)
        ISO_FAIL_CHANNEL(ch, PEER_SILENT, ISO_E_TIMEOUT, "node %s was silent for %lld ms",
                         ch->peer.name, (long long)(ch->silence_ns / ISO_NS_PER_MS));
    ISO_FAIL_CHANNEL(ch, DEADLINE, ISO_E_TIMEOUT, "the deadline has passed");
}

/* End of the silence that began at since. */
static int64_t quiet_end(const struct iso_channel *ch, int64_t since)
{
    const int64_t silence = atomic_load_explicit(&ch->silence_ns, memory_order_relaxed);
    return silence && ch->open ? since + silence : INT64_MAX;
}

/* TLS calls ------------------------------------------------------------- */

/* One try of SSL_write. Returns 1 done, 0 wait for *events, -1 failed and recorded in *err. */
static int try_write(struct iso_channel *ch,
                     const void *p,
                     size_t len,
                     size_t *done,
                     short *events,
                     enum iso_err *err)
{
    pthread_mutex_lock(&ch->ssl_lock);
    ERR_clear_error();
    errno = 0;
    const int ok = SSL_write_ex(ch->ssl, p, len, done);
    const int saved = errno;
    const int why = ok ? SSL_ERROR_NONE : SSL_get_error(ch->ssl, ok);
    pthread_mutex_unlock(&ch->ssl_lock);
    if (ok) return 1;
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) {
        *events = why == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
        return 0;
    }
    *err = iso_channel_fail_tls(ch, why, saved);
    return -1;
}

/* Sends len <= ISO_CHANNEL_RECORD_LEN bytes as one record. */
static enum iso_err
write_record(struct iso_channel *ch, const void *p, size_t len, int64_t deadline_ns)
{
    int64_t since = iso_clock_ns();
    if (ch->records >= ch->rekey_records) {
        pthread_mutex_lock(&ch->ssl_lock);
        const int ok = SSL_key_update(ch->ssl, SSL_KEY_UPDATE_NOT_REQUESTED);
        pthread_mutex_unlock(&ch->ssl_lock);
        if (!ok) ISO_FAIL_CHANNEL(ch, TLS_BROKEN, ISO_E_PROTO, "KeyUpdate failed");
        ch->records = 0;
        atomic_fetch_add_explicit(&ch->key_updates, 1, memory_order_relaxed);
    }
    const uint8_t *at = p;
    while (len > 0) {
        size_t done = 0;
        short events = POLLOUT;
        enum iso_err err = ISO_OK;
        ISO_TRY(check_usable(ch));
        const int state = try_write(ch, at, len, &done, &events, &err);
        if (state < 0) return err;
        if (state > 0) {
            at += done;
            len -= done;
            since = iso_clock_ns();
            ch->records++;
            atomic_fetch_add_explicit(&ch->tx_records, 1, memory_order_relaxed);
            atomic_fetch_add_explicit(&ch->tx_bytes, done, memory_order_relaxed);
            continue;
        }
        const int64_t quiet = quiet_end(ch, since);
        if (!iso_channel_net_wait(ch->fd, events, ISO_MIN(deadline_ns, quiet)))
            return iso_channel_fail_late(ch, deadline_ns, quiet);
    }
    return ISO_OK;
}

/* One try of SSL_read (peek: the bytes stay); results as try_write(). */
static int try_read(struct iso_channel *ch,
                    void *p,
                    size_t len,
                    bool peek,
                    size_t *done,
                    short *events,
                    enum iso_err *err)
{
    pthread_mutex_lock(&ch->ssl_lock);
    ERR_clear_error();
    errno = 0;
    const int ok = peek ? SSL_peek_ex(ch->ssl, p, len, done) : SSL_read_ex(ch->ssl, p, len, done);
    const int saved = errno;
    const int why = ok ? SSL_ERROR_NONE : SSL_get_error(ch->ssl, ok);
    pthread_mutex_unlock(&ch->ssl_lock);
    if (ok) return 1;
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) {
        *events = why == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
        return 0;
    }
    *err = iso_channel_fail_tls(ch, why, saved);
    return -1;
}

/* Reads 1 to len bytes. deadline_ns NO_WAIT: ISO_E_AGAIN when there are none yet. */
static enum iso_err
read_some(struct iso_channel *ch, void *p, size_t len, size_t *done, int64_t deadline_ns)
{
    for (;;) {
        short events = POLLIN;
        enum iso_err err = ISO_OK;
        ISO_TRY(check_usable(ch));
        const int state = try_read(ch, p, len, false, done, &events, &err);
        if (state < 0) return err;
        if (state > 0) {
            ch->last_rx_ns = iso_clock_ns();
            atomic_fetch_add_explicit(&ch->rx_bytes, *done, memory_order_relaxed);
            return ISO_OK;
        }
        const int64_t quiet = quiet_end(ch, ch->last_rx_ns);
        if (deadline_ns == NO_WAIT && iso_clock_ns() < quiet) return ISO_E_AGAIN;
        if (deadline_ns == NO_WAIT) return iso_channel_fail_late(ch, INT64_MAX, quiet);
        if (!iso_channel_net_wait(ch->fd, events, ISO_MIN(deadline_ns, quiet)))
            return iso_channel_fail_late(ch, deadline_ns, quiet);
    }
}

static enum iso_err read_all(struct iso_channel *ch, void *p, size_t len, int64_t deadline_ns)
{
    uint8_t *at = p;
    while (len > 0) {
        size_t done = 0;
        ISO_TRY(read_some(ch, at, len, &done, deadline_ns));
        at += done;
        len -= done;
    }
    return ISO_OK;
}

/* Sending --------------------------------------------------------------- */

/* Waits for the turn. In slices of wall time: macOS has no condition variable on the monotonic
 * clock, and a slice bounds what a jump of the wall clock can cost. */
static enum iso_err begin_frame(struct iso_channel *ch, int64_t deadline_ns)
{
    enum iso_err err = ISO_OK;
    pthread_mutex_lock(&ch->send_lock);
    while (ch->sending && err == ISO_OK) {
        struct timespec until;
        (void)clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += (long)SEND_WAIT_NS;
        until.tv_sec += until.tv_nsec / ISO_NS_PER_S;
        until.tv_nsec %= ISO_NS_PER_S;
        (void)pthread_cond_timedwait(&ch->send_free, &ch->send_lock, &until);
        err = check_usable(ch);
        if (err == ISO_OK && ch->sending && iso_clock_ns() >= deadline_ns)
            err = iso_channel_fail_late(ch, deadline_ns, INT64_MAX);
    }
    if (err == ISO_OK) ch->sending = true;
    pthread_mutex_unlock(&ch->send_lock);
    return err;
}

static void end_frame(struct iso_channel *ch)
{
    pthread_mutex_lock(&ch->send_lock);
    ch->sending = false;
    pthread_cond_signal(&ch->send_free);
    pthread_mutex_unlock(&ch->send_lock);
}

/* Header and small parts share a record through the stage; whole records of a large part go out
 * from where they are. */
static enum iso_err send_parts(struct iso_channel *ch,
                               const struct iso_frame *f,
                               const struct iovec *parts,
                               int n_parts,
                               int64_t deadline_ns)
{
    size_t have = ISO_FRAME_HEADER_LEN;
    iso_frame_encode(ch->stage, f);
    for (int i = 0; i < n_parts; i++) {
        const uint8_t *p = parts[i].iov_base;
        size_t left = parts[i].iov_len;
        while (left > 0) {
            const bool direct = have == 0 && left >= sizeof ch->stage;
            const size_t n = ISO_MIN(left, sizeof ch->stage - have);
            if (!direct) memcpy(ch->stage + have, p, n);
            have += n;
            if (have == sizeof ch->stage) {
                ISO_TRY(write_record(ch, direct ? p : ch->stage, have, deadline_ns));
                have = 0;
            }
            p += n;
            left -= n;
        }
    }
    if (have > 0) ISO_TRY(write_record(ch, ch->stage, have, deadline_ns));
    atomic_fetch_add_explicit(&ch->tx_frames, 1, memory_order_relaxed);
    return ISO_OK;
}

enum iso_err iso_channel_send_frame(struct iso_channel *ch,
                                    const struct iso_frame *f,
                                    const struct iovec *parts,
                                    int n_parts,
                                    int64_t deadline_ns)
{
    ISO_TRY(check_usable(ch));
    ISO_TRY(begin_frame(ch, deadline_ns));
    const enum iso_err err = send_parts(ch, f, parts, n_parts, deadline_ns);
    end_frame(ch);
    return err;
}

enum iso_err iso_channel_send(struct iso_channel *ch,
                              enum iso_frame_type type,
                              uint8_t flags,
                              uint32_t stream,
                              const struct iovec *parts,
                              int n_parts,
                              int64_t deadline_ns)
{
    enum iso_reason reason;
    size_t total = 0;
    if (n_parts < 0 || n_parts > ISO_CHANNEL_PARTS_MAX)
        ISO_FAIL(ISO_E_ARG, "%d parts, at most %d", n_parts, ISO_CHANNEL_PARTS_MAX);
    for (int i = 0; i < n_parts; i++) ISO_TRY(iso_add_size(&total, total, parts[i].iov_len));
    if (total > UINT32_MAX) ISO_FAIL(ISO_E_ARG, "payload of %zu bytes", total);
    const struct iso_frame f = {
        .type = type, .flags = flags, .stream = stream, .length = (uint32_t)total};
    if (type == ISO_FRAME_HELLO) ISO_FAIL(ISO_E_ARG, "HELLO is the channel's own");
    if (iso_frame_check(&f, &reason) != ISO_OK) ISO_FAIL(ISO_E_ARG, "%s", iso_err_message());
    return iso_channel_send_frame(ch, &f, parts, n_parts, deadline_ns);
}

enum iso_err iso_channel_send_bytes(struct iso_channel *ch,
                                    enum iso_frame_type type,
                                    uint32_t stream,
                                    const void *payload,
                                    size_t len,
                                    int64_t deadline_ns)
{
    const struct iovec part = {.iov_base = (void *)(uintptr_t)payload, .iov_len = len};
    return iso_channel_send(ch, type, 0, stream, &part, len ? 1 : 0, deadline_ns);
}

/* Receiving ------------------------------------------------------------- */

static enum iso_err read_header(struct iso_channel *ch, struct iso_frame *out, int64_t deadline_ns)
{
    assert(ch->payload_left == 0);
    struct iso_frame f;
    for (;;) {
        enum iso_reason reason = ISO_REASON_FRAME_MAGIC;
        const enum iso_err err = iso_frame_decode(&f, ch->head, ch->head_have, &reason);
        if (err == ISO_OK) break;
        if (err != ISO_E_AGAIN) return iso_channel_spend(ch, reason, err);
        size_t done = 0;
        ISO_TRY(read_some(ch, ch->head + ch->head_have, sizeof ch->head - ch->head_have, &done,
                          deadline_ns));
        ch->head_have += done;
    }
    ch->head_have = 0;
    ch->payload_left = f.length;
    atomic_fetch_add_explicit(&ch->rx_frames, 1, memory_order_relaxed);
    if (ch->open && f.type == ISO_FRAME_HELLO)
        ISO_FAIL_CHANNEL(ch, FRAME_ORDER, ISO_E_PROTO, "a second HELLO");
    *out = f;
    return ISO_OK;
}

enum iso_err
iso_channel_recv_header(struct iso_channel *ch, struct iso_frame *out, int64_t deadline_ns)
{
    return read_header(ch, out, deadline_ns);
}

enum iso_err iso_channel_try_header(struct iso_channel *ch, struct iso_frame *out)
{
    return read_header(ch, out, NO_WAIT);
}

enum iso_err
iso_channel_recv_payload(struct iso_channel *ch, void *dst, size_t len, int64_t deadline_ns)
{
    assert(len <= ch->payload_left);
    ISO_TRY(read_all(ch, dst, len, deadline_ns));
    ch->payload_left -= len;
    return ISO_OK;
}

enum iso_err iso_channel_skip_payload(struct iso_channel *ch, int64_t deadline_ns)
{
    uint8_t away[4096];
    while (ch->payload_left > 0)
        ISO_TRY(iso_channel_recv_payload(ch, away, ISO_MIN(ch->payload_left, sizeof away),
                                         deadline_ns));
    return ISO_OK;
}

size_t iso_channel_payload_left(const struct iso_channel *ch)
{
    return ch->payload_left;
}

bool iso_channel_readable(struct iso_channel *ch, int64_t timeout_ms)
{
    const int64_t until = iso_channel_deadline(timeout_ms);
    for (;;) {
        uint8_t byte;
        size_t done = 0;
        short events = POLLIN;
        enum iso_err err = ISO_OK;
        if (check_usable(ch) != ISO_OK) return true; /* the next call tells */
        /* A real byte of a frame: a piece of a record in a buffer is not readable yet. */
        if (try_read(ch, &byte, 1, true, &done, &events, &err) != 0) return true;
        if (!iso_channel_net_wait(ch->fd, events, until)) return false;
    }
}

/* Questions ------------------------------------------------------------- */

const struct iso_peer *iso_channel_peer(const struct iso_channel *ch)
{
    return &ch->peer;
}

const char *iso_channel_remote(const struct iso_channel *ch)
{
    return ch->remote;
}

enum iso_reason iso_channel_reason(const struct iso_channel *ch)
{
    return (enum iso_reason)atomic_load(&ch->reason);
}

void iso_channel_stats(const struct iso_channel *ch, struct iso_channel_stats *out)
{
    *out = (struct iso_channel_stats){
        .tx_bytes = atomic_load_explicit(&ch->tx_bytes, memory_order_relaxed),
        .rx_bytes = atomic_load_explicit(&ch->rx_bytes, memory_order_relaxed),
        .tx_frames = atomic_load_explicit(&ch->tx_frames, memory_order_relaxed),
        .rx_frames = atomic_load_explicit(&ch->rx_frames, memory_order_relaxed),
        .tx_records = atomic_load_explicit(&ch->tx_records, memory_order_relaxed),
        .key_updates = atomic_load_explicit(&ch->key_updates, memory_order_relaxed),
        .clock_skew_s = ch->clock_skew_s,
    };
}

enum iso_err iso_channel_exporter(struct iso_channel *ch,
                                  uint8_t out[32],
                                  const char *label,
                                  const void *context,
                                  size_t context_len)
{
    uint8_t made[32];
    pthread_mutex_lock(&ch->ssl_lock);
    const int ok = SSL_export_keying_material(ch->ssl, made, sizeof made, label, strlen(label),
                                              context, context_len, 1);
    ERR_clear_error();
    pthread_mutex_unlock(&ch->ssl_lock);
    if (ok != 1) ISO_FAIL(ISO_E_IO, "TLS exporter \"%s\" failed", label);
    memcpy(out, made, sizeof made);
    OPENSSL_cleanse(made, sizeof made);
    return ISO_OK;
}

void iso_channel_set_silence(struct iso_channel *ch, int64_t silence_ms)
{
    ch->silence_ns = silence_ms * ISO_NS_PER_MS;
    ch->last_rx_ns = iso_clock_ns();
}

void iso_channel_set_rekey(struct iso_channel *ch, uint32_t n_records)
{
    assert(n_records >= 1 && n_records <= ISO_CHANNEL_REKEY_RECORDS);
    ch->rekey_records = n_records;
}

void iso_channel_cancel(struct iso_channel *ch)
{
    atomic_store(&ch->cancelled, true);
    (void)shutdown(ch->fd, SHUT_RDWR);
}
