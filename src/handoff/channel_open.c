/* SPDX-License-Identifier: MIT
 * channel_open.c - opening and closing a channel: handshake, HELLO, refusal, goodbye. */
#include <errno.h>
#include <openssl/err.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "handoff/channel_internal.h"

#define CLOSE_LIMIT_MS 250
#define CLOCK_MAX_S INT64_C(253402300799) /* end of the year 9999 */

static const char *const HELLO_KEYS[] = {"clock_s", "node", "protocol"};

/* HELLO ----------------------------------------------------------------- */

static enum iso_err send_json(struct iso_channel *ch, enum iso_frame_type type, json_t *obj)
{
    struct iso_buf b;
    if (obj == NULL) ISO_FAIL(ISO_E_NOMEM, "no memory for %s", iso_frame_name(type));
    iso_buf_init(&b, ISO_FRAME_HELLO_MAX);
    enum iso_err err = iso_json_canonical(&b, obj);
    json_decref(obj);
    if (err == ISO_OK) {
        const struct iso_frame f = {.type = type, .length = (uint32_t)b.len};
        const struct iovec part = {.iov_base = b.data, .iov_len = b.len};
        err = iso_channel_send_frame(ch, &f, &part, 1, ch->deadline_ns);
    }
    iso_buf_deinit(&b);
    return err;
}

static enum iso_err send_hello(struct iso_channel *ch)
{
    return send_json(ch, ISO_FRAME_HELLO,
                     json_pack("{s:I, s:s, s:s}", "clock_s", (json_int_t)iso_clock_wall_s(), "node",
                               iso_node_name(ch->node), "protocol", ISO_CHANNEL_ALPN));
}

/* Tells a peer of our CA why it is refused (a stranger only sees a TLS alert); keeps reason and
 * message, whatever becomes of the telling. */
static enum iso_err refuse(struct iso_channel *ch, enum iso_reason reason, enum iso_err err)
{
    char *message = iso_xstrdup(iso_err_message());
    /* When it fails, the peer sees a closed connection; that is all it may expect. */
    if (send_json(ch, ISO_FRAME_REFUSE, json_pack("{s:s}", "reason", iso_reason_name(reason))) !=
        ISO_OK)
        ERR_clear_error();
    atomic_store(&ch->err, (int)err);
    atomic_store(&ch->reason, (int)reason);
    (void)iso_err_raise(err, __FILE__, __LINE__, "%s", message);
    free(message);
    return err;
}

static enum iso_err take_refusal(struct iso_channel *ch, const json_t *obj)
{
    const char *name;
    enum iso_reason reason = ISO_REASON_INTERNAL;
    ISO_TRY(iso_json_get_string(&name, obj, "reason"));
    ISO_TRY(iso_reason_from_name(&reason, name));
    if (reason == ISO_REASON_OK) ISO_FAIL(ISO_E_FORMAT, "a refusal with the reason OK");
    ch->from_peer = true;
    (void)iso_channel_spend(ch, reason, ISO_E_AUTH);
    ISO_FAIL(ISO_E_AUTH, "node %s refused us: %s", ch->claimed, iso_reason_text(reason));
}

static enum iso_err take_hello(struct iso_channel *ch, const json_t *obj)
{
    const char *text;
    int64_t clock;
    ISO_TRY(iso_json_only_keys(obj, HELLO_KEYS, ISO_COUNT(HELLO_KEYS), "HELLO"));
    ISO_TRY(iso_json_get_string(&text, obj, "protocol"));
    if (strcmp(text, ISO_CHANNEL_ALPN) != 0) ISO_FAIL(ISO_E_FORMAT, "HELLO of \"%.40s\"", text);
    ISO_TRY(iso_json_get_string(&text, obj, "node"));
    if (strcmp(text, ch->peer.name) != 0)
        ISO_FAIL(ISO_E_FORMAT, "HELLO of node %.64s on the connection of %s", text, ch->peer.name);
    ISO_TRY(iso_json_get_int(&clock, obj, "clock_s", 0, INT64_C(253402300799)));
    ch->clock_skew_s = clock - iso_clock_wall_s();
    return ISO_OK;
}

static enum iso_err recv_hello(struct iso_channel *ch)
{
    struct iso_frame f;
    uint8_t text[ISO_FRAME_HELLO_MAX];
    json_t *obj = NULL;
    ISO_TRY(iso_channel_recv_header(ch, &f, ch->deadline_ns));
    if ((f.type != ISO_FRAME_HELLO && f.type != ISO_FRAME_REFUSE) || f.stream != 0)
        ISO_FAIL_CHANNEL(ch, FRAME_ORDER, ISO_E_PROTO, "%s frame on stream %u instead of HELLO",
                         iso_frame_name(f.type), f.stream);
    ISO_TRY(iso_channel_recv_payload(ch, text, f.length, ch->deadline_ns));
    enum iso_err err = iso_json_parse(&obj, (const char *)text, f.length, sizeof text, "HELLO");
    if (err == ISO_OK)
        err = f.type == ISO_FRAME_HELLO ? take_hello(ch, obj) : take_refusal(ch, obj);
    json_decref(obj);
    /* First reason counts: a refusal has set its own. */
    return err == ISO_OK ? ISO_OK : iso_channel_spend(ch, ISO_REASON_FRAME_FIELD, err);
}

/* Opening --------------------------------------------------------------- */

static enum iso_err handshake(struct iso_channel *ch)
{
    for (;;) {
        ERR_clear_error();
        errno = 0;
        const int rc = SSL_do_handshake(ch->ssl);
        const int saved = errno;
        if (rc == 1) return ISO_OK;
        const int why = SSL_get_error(ch->ssl, rc);
        if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE)
            return iso_channel_fail_tls(ch, why, saved);
        const short events = why == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
        if (!iso_channel_net_wait(ch->fd, events, ch->deadline_ns))
            return iso_channel_fail_late(ch, ch->deadline_ns, INT64_MAX);
    }
}

/* The acceptor speaks first: in TLS 1.3 a dialler's handshake is over before the acceptor has
 * looked at its certificate, and only this HELLO tells it that it is in. */
static enum iso_err open_channel(struct iso_channel *ch, const char *expected)
{
    enum iso_reason reason = ISO_REASON_INTERNAL;
    ISO_TRY(handshake(ch));
    const enum iso_err err = iso_channel_tls_check_peer(ch, expected, &reason);
    if (err != ISO_OK) return refuse(ch, reason, err);
    if (ch->server) ISO_TRY(send_hello(ch));
    ISO_TRY(recv_hello(ch));
    if (!ch->server) ISO_TRY(send_hello(ch));
    return ISO_OK;
}

static void fill_report(struct iso_channel_report *report, const struct iso_channel *ch)
{
    if (report == NULL) return;
    *report =
        (struct iso_channel_report){.reason = iso_channel_reason(ch), .from_peer = ch->from_peer};
    memcpy(report->node, ch->claimed, sizeof report->node);
    memcpy(report->remote, ch->remote, sizeof report->remote);
}

static void destroy(struct iso_channel *ch)
{
    SSL_free(ch->ssl);
    pthread_mutex_destroy(&ch->ssl_lock);
    pthread_mutex_destroy(&ch->send_lock);
    pthread_cond_destroy(&ch->send_free);
    iso_peer_wipe(&ch->peer);
    free(ch);
}

static enum iso_err new_channel(
    struct iso_channel **out, struct iso_node *node, int fd, bool server, int64_t deadline_ns)
{
    struct iso_channel *ch = iso_xalloc(1, sizeof *ch);
    ch->node = node;
    ch->fd = fd;
    ch->server = server;
    ch->deadline_ns = deadline_ns;
    ch->rekey_records = ISO_CHANNEL_REKEY_RECORDS;
    ch->silence_ns = ISO_CHANNEL_SILENCE_MS * ISO_NS_PER_MS;
    if (pthread_mutex_init(&ch->ssl_lock, NULL) != 0 ||
        pthread_mutex_init(&ch->send_lock, NULL) != 0 ||
        pthread_cond_init(&ch->send_free, NULL) != 0) {
        free(ch);
        ISO_FAIL(ISO_E_NOMEM, "no locks for a channel");
    }
    iso_channel_net_remote(ch->remote, fd);
    *out = ch;
    return ISO_OK;
}

enum iso_err iso_channel_start(struct iso_channel **out,
                               struct iso_node *node,
                               int fd,
                               bool server,
                               const char *peer,
                               int64_t deadline_ns,
                               struct iso_channel_report *report)
{
    struct iso_channel *ch = NULL;
    enum iso_err err = new_channel(&ch, node, fd, server, deadline_ns);
    if (err != ISO_OK) {
        if (report) *report = (struct iso_channel_report){.reason = ISO_REASON_INTERNAL};
        close(fd);
        return err;
    }
    err = iso_channel_net_prepare(fd);
    if (err == ISO_OK) err = iso_channel_tls_new(ch);
    if (err != ISO_OK)
        (void)iso_channel_spend(ch, ISO_REASON_INTERNAL, err);
    else
        err = open_channel(ch, peer);
    fill_report(report, ch);
    if (err != ISO_OK) {
        iso_channel_net_close_gently(fd, CLOSE_LIMIT_MS);
        destroy(ch);
        return err;
    }
    ch->open = true;
    ch->last_rx_ns = iso_clock_ns();
    *out = ch;
    return ISO_OK;
}

void iso_channel_free(struct iso_channel *ch)
{
    if (ch == NULL) return;
    const bool good = iso_channel_reason(ch) == ISO_REASON_OK && !atomic_load(&ch->cancelled);
    if (good) {
        ERR_clear_error();
        (void)SSL_shutdown(ch->ssl);
        ERR_clear_error();
        iso_channel_net_close_gently(ch->fd, CLOSE_LIMIT_MS);
    } else {
        close(ch->fd);
    }
    destroy(ch);
}
