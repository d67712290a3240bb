/* SPDX-License-Identifier: MIT
 * node_pair.c - two enrolled nodes for tests. */
#include "node_pair.h"

#include <arpa/inet.h>
#include <ftw.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static void must(enum iso_err err)
{
    if (err != ISO_OK) fail_msg("%s", iso_err_detail());
}

static struct iso_node *make(const char *root, const char *name, const struct iso_node_opts *opts)
{
    char dir[128];
    struct iso_node *node = NULL;
    (void)snprintf(dir, sizeof dir, "%s/%s", root, name);
    must(iso_node_init(dir, name, opts));
    must(iso_node_open(&node, dir));
    return node;
}

void node_pair_init(struct node_pair *p, const struct iso_node_opts *bob_opts)
{
    *p = (struct node_pair){.root = "/tmp/isobit-test-XXXXXX"};
    assert_non_null(mkdtemp(p->root));
    p->alice = make(p->root, "alice", &(struct iso_node_opts){.ca = true});
    p->bob = make(p->root, "bob", NULL);
    must(iso_node_pair(p->alice, p->bob, bob_opts));
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

void node_pair_remove(const char *path)
{
    (void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

void node_pair_deinit(struct node_pair *p)
{
    iso_node_free(p->alice);
    iso_node_free(p->bob);
    node_pair_remove(p->root);
}

struct iso_node *
node_pair_extra(struct node_pair *p, const char *name, const struct iso_node_opts *opts)
{
    return make(p->root, name, opts);
}

void node_pair_sockets(int *a, int *b)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    const int l = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(l, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(l, 1), 0);
    assert_int_equal(getsockname(l, (struct sockaddr *)&at, &len), 0);
    *b = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(*b, (struct sockaddr *)&at, sizeof at), 0);
    *a = accept(l, NULL, NULL);
    assert_true(*a >= 0);
    close(l);
}

struct start_args {
    struct iso_channel *ch;
    struct iso_node *node;
    int fd;
    enum iso_err err;
};

static void *start_server(void *arg)
{
    struct start_args *a = arg;
    a->err =
        iso_channel_start(&a->ch, a->node, a->fd, true, NULL, iso_channel_deadline(5000), NULL);
    return NULL;
}

void node_pair_channels(struct node_pair *p,
                        struct iso_channel **server,
                        struct iso_channel **client)
{
    pthread_t t;
    int fd = -1;
    struct start_args a = {.node = p->alice};
    node_pair_sockets(&a.fd, &fd);
    assert_int_equal(pthread_create(&t, NULL, start_server, &a), 0);
    must(iso_channel_start(client, p->bob, fd, false, "alice", iso_channel_deadline(5000), NULL));
    pthread_join(t, NULL);
    assert_int_equal(a.err, ISO_OK);
    *server = a.ch;
}
