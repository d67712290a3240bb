/* SPDX-License-Identifier: MIT
 * temp_nodes.h - node directories in a temporary place, for tests. */
#ifndef ISO_TESTS_NODE_TEMP_NODES_H
#define ISO_TESTS_NODE_TEMP_NODES_H

#include "node/node.h"

struct temp_nodes {
    char root[64];
};

/* cmocka set-up and tear-down of each test: *state is a struct temp_nodes. */
int temp_nodes_setup(void **state);
int temp_nodes_teardown(void **state);

/* root/name of the node directory; the buffer is overwritten by the next call. */
const char *temp_nodes_dir(const struct temp_nodes *t, const char *name);

/* Makes and opens a node; fails the test otherwise. */
struct iso_node *temp_nodes_make(const struct temp_nodes *t, const char *name, bool ca);
struct iso_node *temp_nodes_open(const struct temp_nodes *t, const char *name);

/* Fails the test with the message unless err is ISO_OK. */
void temp_nodes_must(enum iso_err err);

/* Replaces a file of a node's directory, mode 0600. */
void temp_nodes_put(
    const struct temp_nodes *t, const char *node, const char *file, const void *data, size_t len);
/* Its content, NUL behind. Owner: free(). */
char *temp_nodes_get(const struct temp_nodes *t, const char *node, const char *file, size_t *len);

#endif
