/* SPDX-License-Identifier: MIT
 * temp_nodes.c - node directories in a temporary place, for tests. */
#include "temp_nodes.h"

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

int temp_nodes_setup(void **state)
{
    struct temp_nodes *t = calloc(1, sizeof *t);
    assert_non_null(t);
    (void)snprintf(t->root, sizeof t->root, "/tmp/isobit-node-XXXXXX");
    assert_non_null(mkdtemp(t->root));
    *state = t;
    return 0;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

int temp_nodes_teardown(void **state)
{
    struct temp_nodes *t = *state;
    (void)nftw(t->root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(t);
    return 0;
}

const char *temp_nodes_dir(const struct temp_nodes *t, const char *name)
{
    static char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", t->root, name);
    return path;
}

void temp_nodes_must(enum iso_err err)
{
    if (err != ISO_OK) fail_msg("%s", iso_err_detail());
}

struct iso_node *temp_nodes_open(const struct temp_nodes *t, const char *name)
{
    struct iso_node *node = NULL;
    temp_nodes_must(iso_node_open(&node, temp_nodes_dir(t, name)));
    return node;
}

struct iso_node *temp_nodes_make(const struct temp_nodes *t, const char *name, bool ca)
{
    const struct iso_node_opts opts = {.ca = ca};
    temp_nodes_must(iso_node_init(temp_nodes_dir(t, name), name, &opts));
    return temp_nodes_open(t, name);
}

void temp_nodes_put(
    const struct temp_nodes *t, const char *node, const char *file, const void *data, size_t len)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s/%s", t->root, node, file);
    (void)unlink(path);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(path, 0600), 0);
}

char *temp_nodes_get(const struct temp_nodes *t, const char *node, const char *file, size_t *len)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s/%s", t->root, node, file);
    FILE *f = fopen(path, "rb");
    if (f == NULL) fail_msg("cannot read %s", path);
    char *text = calloc(1, 1u << 20);
    assert_non_null(text);
    *len = fread(text, 1, (1u << 20) - 1, f);
    assert_int_equal(fclose(f), 0);
    return text;
}
