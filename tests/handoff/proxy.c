/* SPDX-License-Identifier: MIT
 * proxy.c - the damaging TCP relay. One connection at a time is enough for the tests. */
#include "proxy.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PIECE 4096

struct proxy {
    int listener;
    uint16_t port, target;
    pthread_t thread;
    atomic_bool stop;
    pthread_mutex_t lock; /* guards plan */
    struct proxy_plan plan;
    atomic_uint_least64_t down, up;
};

static int connect_to(uint16_t port, bool slow)
{
    const int small = 64 << 10; /* a slow wire must be felt at once, not behind megabytes of buffers */
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (slow) (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    if (connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0) return fd;
    close(fd);
    return -1;
}

static bool send_all(int fd, const uint8_t *p, size_t n)
{
    while (n > 0) {
        const ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
        if (k <= 0) return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

/* Moves what is there from one side to the other; false when the connection is over. */
static bool relay(struct proxy *p, const struct proxy_plan *plan, int from, int to, bool down)
{
    uint8_t buf[PIECE];
    atomic_uint_least64_t *count = down ? &p->down : &p->up;
    const int64_t at = (int64_t)atomic_load(count);
    const ssize_t n = recv(from, buf, sizeof(buf), 0);
    if (n <= 0) return false;
    size_t len = (size_t)n;
    const int64_t flip = down ? plan->flip_down : plan->flip_up;
    if (flip >= at && flip < at + n) buf[flip - at] ^= 0x10;
    const bool cut = down && plan->cut_down >= 0 && plan->cut_down < at + n;
    if (cut) len = (size_t)(plan->cut_down - at);
    if (down && plan->hold_down >= at && plan->hold_down < at + n) {
        len = (size_t)(plan->hold_down - at);
    }
    if (down && plan->pace_down > 0) (void)usleep((useconds_t)(n * 1000000 / plan->pace_down));
    const bool sent = send_all(to, buf, len);
    atomic_fetch_add(count, len);
    if (cut && plan->at_cut != NULL) plan->at_cut(plan->arg);
    return sent && !cut;
}

static void hang_up(int fd, bool reset)
{
    const struct linger now = {.l_onoff = 1, .l_linger = 0};
    if (reset) (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    close(fd);
}

static void serve(struct proxy *p, int client)
{
    const int one = 1;
    pthread_mutex_lock(&p->lock);
    const struct proxy_plan plan = p->plan;
    pthread_mutex_unlock(&p->lock);
    atomic_store(&p->down, 0);
    atomic_store(&p->up, 0);
    const int server = connect_to(p->target, plan.pace_down > 0);
    if (server < 0) {
        close(client);
        return;
    }
    (void)setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    (void)setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    bool on = true;
    while (on && !atomic_load(&p->stop)) {
        struct pollfd fds[] = {{.fd = client, .events = POLLIN}, {.fd = server, .events = POLLIN}};
        const bool held = plan.hold_down >= 0 && (int64_t)atomic_load(&p->down) >= plan.hold_down;
        if (held) {
            (void)poll(NULL, 0, 20);
            /* Swallow what the consumer still says, until it hangs up. */
            uint8_t away[PIECE];
            const ssize_t n = recv(client, away, sizeof(away), MSG_DONTWAIT);
            if (n == 0 || (n < 0 && errno != EAGAIN)) on = false;
            continue;
        }
        if (poll(fds, 2, 20) <= 0) continue;
        if (on && fds[0].revents) on = relay(p, &plan, client, server, false);
        if (on && fds[1].revents) on = relay(p, &plan, server, client, true);
    }
    hang_up(client, plan.reset);
    hang_up(server, plan.reset);
}

static void *proxy_thread(void *arg)
{
    struct proxy *p = arg;
    while (!atomic_load(&p->stop)) {
        struct pollfd fd = {.fd = p->listener, .events = POLLIN};
        if (poll(&fd, 1, 20) <= 0) continue;
        const int client = accept(p->listener, NULL, NULL);
        if (client >= 0) serve(p, client);
    }
    return NULL;
}

struct proxy *proxy_start(uint16_t target)
{
    struct proxy *p = calloc(1, sizeof(*p));
    assert(p != NULL);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    p->target = target;
    p->plan = PROXY_PLAN_CLEAN;
    p->listener = socket(AF_INET, SOCK_STREAM, 0);
    (void)pthread_mutex_init(&p->lock, NULL);
    int rc = bind(p->listener, (struct sockaddr *)&at, sizeof(at));
    if (rc == 0) rc = listen(p->listener, 8);
    if (rc == 0) rc = getsockname(p->listener, (struct sockaddr *)&at, &len);
    if (rc == 0) rc = pthread_create(&p->thread, NULL, proxy_thread, p);
    assert(rc == 0);
    p->port = ntohs(at.sin_port);
    return p;
}

void proxy_stop(struct proxy *p)
{
    if (p == NULL) return;
    atomic_store(&p->stop, true);
    (void)pthread_join(p->thread, NULL);
    close(p->listener);
    (void)pthread_mutex_destroy(&p->lock);
    free(p);
}

uint16_t proxy_port(const struct proxy *p)
{
    return p->port;
}

void proxy_set(struct proxy *p, const struct proxy_plan *plan)
{
    pthread_mutex_lock(&p->lock);
    p->plan = *plan;
    pthread_mutex_unlock(&p->lock);
}

uint64_t proxy_down(struct proxy *p)
{
    return atomic_load(&p->down);
}

uint64_t proxy_up(struct proxy *p)
{
    return atomic_load(&p->up);
}
