/* SPDX-License-Identifier: MIT
 * channel_net.c - sockets of the channel: addresses, connecting, the listener and its 16 places. */
#include "handoff/channel_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#define BACKLOG 32
#define HOST_MAX 256         /* RFC 1035 names, and literals with a zone */
#define DRAIN_MAX (4u << 20) /* bytes read away at a gentle close; a flood is cut off */
#define POLL_MAX_MS 60000

struct iso_listener {
    struct iso_node *node;
    int fd;
    int wake[2]; /* a byte here ends accept */
    uint16_t port;
    _Atomic int64_t handshake_ms;
    _Atomic unsigned pending; /* relaxed: only the count matters */
};

int64_t iso_channel_deadline(int64_t timeout_ms)
{
    return iso_clock_ns() + timeout_ms * ISO_NS_PER_MS;
}

enum iso_err iso_channel_net_prepare(int fd)
{
    const int one = 1;
    const int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ||
        fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
        ISO_FAIL(ISO_E_IO, "socket: %s", strerror(errno));
    /* Fails on a socketpair, which has no delay to begin with. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
#ifdef SO_NOSIGPIPE
    (void)setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &one, sizeof one);
#endif
    return ISO_OK;
}

void iso_channel_net_remote(char out[ISO_CHANNEL_REMOTE_MAX], int fd)
{
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    char host[64];
    char port[8];
    out[0] = '\0';
    if (getpeername(fd, (struct sockaddr *)&a, &len) != 0) return;
    if (a.ss_family != AF_INET && a.ss_family != AF_INET6) return;
    if (getnameinfo((struct sockaddr *)&a, len, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return;
    (void)snprintf(out, ISO_CHANNEL_REMOTE_MAX, a.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host,
                   port);
}

bool iso_channel_net_wait(int fd, short events, int64_t until_ns)
{
    for (;;) {
        const int64_t left = until_ns - iso_clock_ns();
        /* Rounded up: a wait that ends too early would spin through its last millisecond. */
        const int64_t ms = left <= 0 ? 0 : (left + ISO_NS_PER_MS - 1) / ISO_NS_PER_MS;
        struct pollfd p = {.fd = fd, .events = events};
        const int n = poll(&p, 1, (int)ISO_MIN(ms, POLL_MAX_MS));
        if (n > 0) return true;
        if (n < 0 && errno != EINTR) return true; /* the next call on the socket tells */
        if (left <= 0) return false;
    }
}

void iso_channel_net_close_gently(int fd, int64_t limit_ms)
{
    uint8_t away[4096];
    size_t total = 0;
    const int64_t until = iso_channel_deadline(limit_ms);
    if (shutdown(fd, SHUT_WR) == 0) {
        while (total < DRAIN_MAX && iso_channel_net_wait(fd, POLLIN, until)) {
            const ssize_t n = recv(fd, away, sizeof away, 0);
            if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) break;
            if (n > 0) total += (size_t)n;
        }
    }
    close(fd);
}

/* Addresses ------------------------------------------------------------- */

/* Splits "HOST:PORT", "[v6]:PORT", ":PORT"; host may be empty. */
static enum iso_err split(char host[HOST_MAX], const char **port, const char *address)
{
    const char *colon = strrchr(address, ':');
    if (colon == NULL) ISO_FAIL(ISO_E_ARG, "\"%.80s\": no port, expected HOST:PORT", address);
    const char *begin = address;
    const char *end = colon;
    if (*begin == '[') {
        if (end == begin || end[-1] != ']') ISO_FAIL(ISO_E_ARG, "\"%.80s\": no closing ]", address);
        begin++;
        end--;
    } else if (memchr(begin, ':', (size_t)(end - begin)) != NULL) {
        ISO_FAIL(ISO_E_ARG, "\"%.80s\": write an IPv6 address as [address]:port", address);
    }
    const size_t len = (size_t)(end - begin);
    if (len >= HOST_MAX) ISO_FAIL(ISO_E_ARG, "host name of %zu characters", len);
    char *stop;
    errno = 0;
    const long n = strtol(colon + 1, &stop, 10);
    if (colon[1] < '0' || colon[1] > '9' || *stop != '\0' || errno || n > 65535)
        ISO_FAIL(ISO_E_ARG, "\"%.80s\": the port is not a number of 0 to 65535", address);
    memcpy(host, begin, len);
    host[len] = '\0';
    *port = colon + 1;
    return ISO_OK;
}

static enum iso_err resolve(struct addrinfo **out, const char *address, int flags)
{
    char host[HOST_MAX];
    const char *port = NULL;
    ISO_TRY(split(host, &port, address));
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
    const int rc = getaddrinfo(host[0] ? host : NULL, port, &hints, out);
    if (rc != 0) ISO_FAIL(ISO_E_IO, "%s: %s", address, gai_strerror(rc));
    return ISO_OK;
}

static enum iso_err connect_one(int *out, const struct addrinfo *a, int64_t deadline_ns)
{
    int error = 0;
    socklen_t len = sizeof error;
    const int fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
    if (fd < 0) ISO_FAIL(ISO_E_IO, "socket: %s", strerror(errno));
    enum iso_err err = ISO_OK;
    ISO_TRY_OUT(iso_channel_net_prepare(fd));
    if (connect(fd, a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS && errno != EINTR)
        ISO_FAIL_OUT(ISO_E_IO, "connect: %s", strerror(errno));
    if (!iso_channel_net_wait(fd, POLLOUT, deadline_ns))
        ISO_FAIL_OUT(ISO_E_TIMEOUT, "no answer in time");
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0 || error != 0)
        ISO_FAIL_OUT(ISO_E_IO, "connect: %s", strerror(error ? error : errno));
    *out = fd;
    return ISO_OK;
out:
    close(fd);
    return err;
}

enum iso_err iso_channel_net_connect(int *fd, const char *address, int64_t deadline_ns)
{
    struct addrinfo *list = NULL;
    ISO_TRY(resolve(&list, address, 0));
    enum iso_err err = ISO_E_IO;
    for (const struct addrinfo *a = list; a != NULL && err != ISO_OK; a = a->ai_next) {
        if (a != list && iso_clock_ns() >= deadline_ns) break;
        err = connect_one(fd, a, deadline_ns);
    }
    freeaddrinfo(list);
    if (err != ISO_OK) ISO_FAIL(err, "%s: %s", address, iso_err_message());
    return ISO_OK;
}

/* Listener -------------------------------------------------------------- */

static enum iso_err listen_one(int *out, const struct addrinfo *a)
{
    const int one = 1;
    const int zero = 0;
    const int fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
    if (fd < 0) ISO_FAIL(ISO_E_IO, "socket: %s", strerror(errno));
    enum iso_err err = ISO_OK;
    ISO_TRY_OUT(iso_channel_net_prepare(fd));
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (a->ai_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    if (bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0)
        ISO_FAIL_OUT(ISO_E_IO, "bind: %s", strerror(errno));
    *out = fd;
    return ISO_OK;
out:
    close(fd);
    return err;
}

/* IPv6 first: its any-address takes IPv4 too. */
static enum iso_err listen_any(int *fd, const struct addrinfo *list)
{
    enum iso_err err = ISO_E_IO;
    for (int pass = 0; pass < 2 && err != ISO_OK; pass++) {
        for (const struct addrinfo *a = list; a != NULL && err != ISO_OK; a = a->ai_next) {
            if ((a->ai_family == AF_INET6) == (pass == 0)) err = listen_one(fd, a);
        }
    }
    return err;
}

static uint16_t port_of(int fd)
{
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &len) != 0) return 0;
    if (a.ss_family == AF_INET6) return ntohs(((struct sockaddr_in6 *)&a)->sin6_port);
    return ntohs(((struct sockaddr_in *)&a)->sin_port);
}

enum iso_err
iso_listener_open(struct iso_listener **out, struct iso_node *node, const char *address)
{
    struct addrinfo *list = NULL;
    int fd = -1;
    ISO_TRY(iso_node_ready(node));
    ISO_TRY(resolve(&list, address, AI_PASSIVE));
    enum iso_err err = listen_any(&fd, list);
    freeaddrinfo(list);
    if (err != ISO_OK) ISO_FAIL(err, "%s: %s", address, iso_err_message());
    struct iso_listener *l = iso_xalloc(1, sizeof *l);
    if (pipe(l->wake) != 0) {
        close(fd);
        free(l);
        ISO_FAIL(ISO_E_IO, "pipe: %s", strerror(errno));
    }
    for (int i = 0; i < 2; i++) {
        (void)fcntl(l->wake[i], F_SETFD, FD_CLOEXEC);
        (void)fcntl(l->wake[i], F_SETFL, O_NONBLOCK);
    }
    l->node = node;
    l->fd = fd;
    l->port = port_of(fd);
    l->handshake_ms = ISO_CHANNEL_HANDSHAKE_MS;
    *out = l;
    return ISO_OK;
}

void iso_listener_free(struct iso_listener *l)
{
    if (l == NULL) return;
    close(l->fd);
    close(l->wake[0]);
    close(l->wake[1]);
    free(l);
}

uint16_t iso_listener_port(const struct iso_listener *l)
{
    return l->port;
}

void iso_listener_set_handshake(struct iso_listener *l, int64_t timeout_ms)
{
    atomic_store_explicit(&l->handshake_ms, timeout_ms, memory_order_relaxed);
}

unsigned iso_listener_pending(const struct iso_listener *l)
{
    return atomic_load_explicit(&l->pending, memory_order_relaxed);
}

static void report_refused(struct iso_channel_report *report, const char *remote)
{
    if (report == NULL) return;
    *report = (struct iso_channel_report){.reason = ISO_REASON_TOO_MANY_UNAUTHENTICATED};
    memcpy(report->remote, remote, sizeof report->remote);
}

/* A connection that is gone again is no failure of the listener; out of descriptors is a pause. */
static enum iso_err accept_error(int error)
{
    if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
        iso_log(ISO_LOG_WARN, "channel", "accept: %s", strerror(error));
        (void)poll(NULL, 0, 50);
        return ISO_E_AGAIN;
    }
    if (error == EBADF || error == EINVAL || error == ENOTSOCK)
        ISO_FAIL(ISO_E_IO, "accept: %s", strerror(error));
    return ISO_E_AGAIN;
}

enum iso_err iso_listener_accept(struct iso_listener *l,
                                 struct iso_pending *out,
                                 int64_t timeout_ms,
                                 struct iso_channel_report *report)
{
    struct pollfd p[2] = {{.fd = l->fd, .events = POLLIN}, {.fd = l->wake[0], .events = POLLIN}};
    const int n = poll(p, 2, (int)ISO_MAX(0, ISO_MIN(timeout_ms, POLL_MAX_MS)));
    if (p[1].revents) ISO_FAIL(ISO_E_CANCELLED, "the listener was stopped");
    if (n <= 0) return ISO_E_AGAIN;
    const int fd = accept(l->fd, NULL, NULL);
    if (fd < 0) return accept_error(errno);
    struct iso_pending got = {.fd = fd};
    const int64_t limit = atomic_load_explicit(&l->handshake_ms, memory_order_relaxed);
    got.deadline_ns = iso_channel_deadline(limit);
    iso_channel_net_remote(got.remote, fd);
    if (iso_channel_net_prepare(fd) != ISO_OK) {
        close(fd);
        return ISO_E_AGAIN;
    }
    /* Only this thread adds, so the check cannot be overtaken. */
    if (iso_listener_pending(l) >= ISO_CHANNEL_UNAUTHENTICATED_MAX) {
        close(fd);
        report_refused(report, got.remote);
        ISO_FAIL(ISO_E_REFUSED, "%s refused: %d connections are still unauthenticated", got.remote,
                 ISO_CHANNEL_UNAUTHENTICATED_MAX);
    }
    atomic_fetch_add_explicit(&l->pending, 1, memory_order_relaxed);
    *out = got;
    return ISO_OK;
}

void iso_listener_drop(struct iso_listener *l, struct iso_pending *pending)
{
    close(pending->fd);
    pending->fd = -1;
    atomic_fetch_sub_explicit(&l->pending, 1, memory_order_relaxed);
}

void iso_listener_cancel(struct iso_listener *l)
{
    /* Full pipe: it is readable already. */
    const ssize_t n = write(l->wake[1], "x", 1);
    (void)n;
}

enum iso_err iso_channel_accept(struct iso_channel **out,
                                struct iso_listener *l,
                                struct iso_pending *pending,
                                struct iso_channel_report *report)
{
    const enum iso_err err =
        iso_channel_start(out, l->node, pending->fd, true, NULL, pending->deadline_ns, report);
    pending->fd = -1;
    atomic_fetch_sub_explicit(&l->pending, 1, memory_order_relaxed);
    return err;
}

enum iso_err iso_channel_dial(struct iso_channel **out,
                              struct iso_node *node,
                              const char *address,
                              const char *peer,
                              int64_t timeout_ms,
                              struct iso_channel_report *report)
{
    int fd;
    const int64_t deadline = iso_channel_deadline(timeout_ms);
    const enum iso_err err = iso_channel_net_connect(&fd, address, deadline);
    if (err != ISO_OK) {
        if (report) *report = (struct iso_channel_report){.reason = ISO_REASON_UNREACHABLE};
        return err;
    }
    const int64_t handshake = iso_channel_deadline(ISO_CHANNEL_HANDSHAKE_MS);
    return iso_channel_start(out, node, fd, false, peer, ISO_MIN(deadline, handshake), report);
}
