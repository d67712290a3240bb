/* SPDX-License-Identifier: MIT
 * proxy.h - a TCP relay between consumer and producer that damages what passes, for tests. */
#ifndef ISO_TESTS_HANDOFF_PROXY_H
#define ISO_TESTS_HANDOFF_PROXY_H

#include <stdbool.h>
#include <stdint.h>

/* Offsets count bytes of one connection in one direction; negative: never. Down is from the
 * producer. */
struct proxy_plan {
    int64_t cut_down;  /* both sides are closed in front of this byte */
    int64_t flip_down; /* one bit of this byte is turned over */
    int64_t flip_up;
    int64_t
        hold_down; /* nothing passes any more, either way, and nothing is closed: a pulled cable */
    int64_t pace_down; /* bytes per second; 0: as fast as it goes */
    bool reset;    /* a cut sends RST instead of FIN */
    /* Called in front of byte cut_down, before the close; may be NULL. */
    void (*at_cut)(void *arg);
    void *arg;
};

#define PROXY_PLAN_CLEAN                                                                           \
    ((struct proxy_plan){.cut_down = -1, .flip_down = -1, .flip_up = -1, .hold_down = -1})

struct proxy;

/* Relays 127.0.0.1:port to 127.0.0.1:target. Returns owned, end with proxy_stop(). */
struct proxy *proxy_start(uint16_t target);
void proxy_stop(struct proxy *p);
uint16_t proxy_port(const struct proxy *p);

/* For the connections from now on. */
void proxy_set(struct proxy *p, const struct proxy_plan *plan);

/* Bytes of the last connection so far. */
uint64_t proxy_down(struct proxy *p);
uint64_t proxy_up(struct proxy *p);

#endif
