/* SPDX-License-Identifier: MIT
 * node_pair.h - two enrolled nodes in a temporary place, and channels between them, for tests. */
#ifndef ISO_TESTS_HANDOFF_NODE_PAIR_H
#define ISO_TESTS_HANDOFF_NODE_PAIR_H

#include "handoff/channel.h"
#include "node/node.h"

/* alice is the CA machine; both know each other. */
struct node_pair {
    char root[64]; /* temporary directory; root/alice and root/bob */
    struct iso_node *alice;
    struct iso_node *bob;
};

/* Fails the test when anything fails. bob_opts (may be NULL): of bob's certificate. */
void node_pair_init(struct node_pair *p, const struct iso_node_opts *bob_opts);
void node_pair_deinit(struct node_pair *p);

/* Another node under p->root without any enrolment; opts->ca gives it a CA of its own. */
struct iso_node *
node_pair_extra(struct node_pair *p, const char *name, const struct iso_node_opts *opts);

/* Two ends of a TCP connection over loopback. */
void node_pair_sockets(int *a, int *b);

/* A channel over loopback TCP: *server is alice's end, *client bob's. */
void node_pair_channels(struct node_pair *p,
                        struct iso_channel **server,
                        struct iso_channel **client);

/* Removes a directory tree. */
void node_pair_remove(const char *path);

#endif
