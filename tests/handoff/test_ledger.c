/* SPDX-License-Identifier: MIT
 * test_ledger.c - generations, high-water marks, commits and marks; several processes on one file.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "handoff/ledger.h"
#include "node_pair.h"

#define PROCESSES 4
#define EACH 12

static void must(enum iso_err err)
{
    if (err != ISO_OK) fail_msg("%s", iso_err_detail());
}

static struct node_pair g_nodes;
static enum iso_reason g_reason;

static int setup(void **state)
{
    struct iso_ledger *l = NULL;
    node_pair_init(&g_nodes, NULL);
    must(iso_ledger_open(&l, g_nodes.bob, NULL, &g_reason));
    *state = l;
    return 0;
}

static int teardown(void **state)
{
    iso_ledger_free(*state);
    node_pair_deinit(&g_nodes);
    return 0;
}

static void test_file(void **state)
{
    struct iso_ledger *l = *state;
    struct stat st;
    double worst = -1;
    assert_int_equal(stat(iso_ledger_path(l), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_true(iso_node_ledger_claimed(g_nodes.bob));
    must(iso_ledger_probe(l, &worst, &g_reason));
    assert_true(worst > 0 && worst < 60000);
}

/* Does the newest row have this text? */
static bool newest_has(struct iso_ledger *l, const char *text)
{
    struct iso_buf b;
    iso_buf_init(&b, 1 << 16);
    must(iso_ledger_list(l, &b, 1, &g_reason));
    const bool has = strstr((char *)b.data, text) != NULL;
    if (!has) (void)fprintf(stderr, "%s\n", (char *)b.data);
    iso_buf_deinit(&b);
    return has;
}

static void test_reserve_and_commit(void **state)
{
    struct iso_ledger *l = *state;
    struct iso_attempt a = {.peer = "alice", .n_tokens = 9}, b = {0}, forged;
    const struct iso_digest manifest = {{1}};
    uint64_t high = 0;
    must(iso_ledger_reserve(l, &a, &g_reason));
    must(iso_ledger_reserve(l, &b, &g_reason));
    assert_int_equal(b.generation, a.generation + 1);
    must(iso_ledger_highest(l, &high, &g_reason));
    assert_int_equal(high, b.generation);
    assert_true(newest_has(l, "\"reason\":\"RESERVED\""));
    must(iso_ledger_commit(l, &a, &manifest, &g_reason));
    /* Once only, and only what was reserved and not closed. */
    assert_int_equal(iso_ledger_commit(l, &a, &manifest, &g_reason), ISO_E_REFUSED);
    assert_int_equal(g_reason, ISO_REASON_GENERATION);
    must(iso_ledger_finish(l, &b, ISO_REASON_DIGEST, "it says \"no\"", &g_reason));
    assert_int_equal(iso_ledger_commit(l, &b, &manifest, &g_reason), ISO_E_REFUSED);
    assert_true(newest_has(l, "\"reason\":\"DIGEST\""));
    forged = a;
    forged.generation = 1000;
    assert_int_equal(iso_ledger_commit(l, &forged, &manifest, &g_reason), ISO_E_REFUSED);
    /* A refusal without a generation is a row as well. */
    struct iso_attempt none = {.role = ISO_LEDGER_PRODUCER, .count = 17};
    must(iso_ledger_finish(l, &none, ISO_REASON_CERT_FOREIGN, "10.0.0.1:5", &g_reason));
    assert_true(newest_has(l, "\"count\":17"));
}

static void test_admit(void **state)
{
    struct iso_ledger *l = *state;
    uint8_t id[ISO_NODE_LEDGER_ID_LEN] = {1}, other[ISO_NODE_LEDGER_ID_LEN] = {2};
    uint64_t high = 0;
    static const struct {
        uint64_t generation;
        enum iso_reason reason;
        uint64_t high;
    } steps[] = {{5, ISO_REASON_OK, 0},
                 {5, ISO_REASON_GENERATION, 5},
                 {4, ISO_REASON_LEDGER_ROLLED_BACK, 5},
                 {1, ISO_REASON_LEDGER_ROLLED_BACK, 5},
                 {6, ISO_REASON_OK, 5},
                 {INT64_MAX, ISO_REASON_OK, 6},
                 {INT64_MAX, ISO_REASON_GENERATION, INT64_MAX}};
    for (size_t i = 0; i < ISO_COUNT(steps); i++) {
        struct iso_attempt a = {.generation = steps[i].generation, .peer = "bob", .pin = {{7}}};
        g_reason = ISO_REASON_OK;
        const enum iso_err err = iso_ledger_admit(l, &a, id, &high, &g_reason);
        assert_int_equal(g_reason, steps[i].reason);
        assert_int_equal(err == ISO_OK, steps[i].reason == ISO_REASON_OK);
        assert_int_equal(high, steps[i].high);
        assert_true(a.row > 0);
    }
    /* Another key or another ledger begins anew. */
    struct iso_attempt a = {.generation = 1, .pin = {{8}}}, b = {.generation = 1, .pin = {{7}}};
    must(iso_ledger_admit(l, &a, id, &high, &g_reason));
    must(iso_ledger_admit(l, &b, other, &high, &g_reason));
}

static void test_marks(void **state)
{
    struct iso_ledger *l = *state;
    struct iso_peer peer = {.name = "alice", .pin = {{3}}, .enrolled_s = 1000};
    must(iso_ledger_check_peer(l, &peer, &g_reason));
    must(iso_ledger_mark(l, &peer, ISO_REASON_DISTRUSTED, &g_reason));
    assert_int_equal(iso_ledger_check_peer(l, &peer, &g_reason), ISO_E_REFUSED);
    assert_int_equal(g_reason, ISO_REASON_DISTRUSTED);
    struct iso_peer other = peer;
    other.pin.bytes[0] = 4;
    must(iso_ledger_check_peer(l, &other, &g_reason));
    peer.enrolled_s++; /* enrolled anew */
    must(iso_ledger_check_peer(l, &peer, &g_reason));
}

/* Several processes reserve at once: every generation once, none lost. */
static void test_processes(void **state)
{
    struct iso_ledger *l = *state;
    uint64_t before = 0, after = 0;
    int fds[2];
    pid_t pid[PROCESSES];
    bool seen[PROCESSES * EACH] = {false};
    must(iso_ledger_highest(l, &before, &g_reason));
    assert_int_equal(pipe(fds), 0);
    for (int i = 0; i < PROCESSES; i++) {
        pid[i] = fork();
        if (pid[i] != 0) continue;
        struct iso_ledger *mine = NULL;
        int rc = iso_ledger_open(&mine, g_nodes.bob, NULL, &g_reason) == ISO_OK ? 0 : 1;
        for (int k = 0; k < EACH && rc == 0; k++) {
            struct iso_attempt a = {0};
            if (iso_ledger_reserve(mine, &a, &g_reason) != ISO_OK) rc = 2;
            if (write(fds[1], &a.generation, sizeof(a.generation)) != sizeof(a.generation)) rc = 3;
        }
        if (rc != 0) (void)fprintf(stderr, "%s\n", iso_err_detail());
        iso_ledger_free(mine);
        _exit(rc);
    }
    for (int i = 0; i < PROCESSES * EACH; i++) {
        uint64_t g = 0;
        assert_int_equal(read(fds[0], &g, sizeof(g)), sizeof(g));
        assert_true(g > before && g <= before + PROCESSES * EACH);
        assert_false(seen[g - before - 1]);
        seen[g - before - 1] = true;
    }
    for (int i = 0; i < PROCESSES; i++) {
        int status = 0;
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        assert_int_equal(status, 0);
    }
    (void)close(fds[0]);
    (void)close(fds[1]);
    must(iso_ledger_highest(l, &after, &g_reason));
    assert_int_equal(after, before + PROCESSES * EACH);
}

static void test_no_links(void **state)
{
    (void)state;
    char path[128], target[128];
    struct iso_ledger *l = NULL;
    (void)snprintf(path, sizeof(path), "%s/link.sqlite", g_nodes.root);
    (void)snprintf(target, sizeof(target), "%s/target.sqlite", g_nodes.root);
    assert_int_equal(symlink(target, path), 0);
    assert_int_not_equal(iso_ledger_open(&l, g_nodes.alice, path, &g_reason), ISO_OK);
    assert_int_not_equal(access(target, F_OK), 0);
}

static void test_not_a_database(void **state)
{
    (void)state;
    char path[128];
    struct iso_ledger *l = NULL;
    (void)snprintf(path, sizeof(path), "%s/junk.sqlite", g_nodes.root);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < 4096; i++) (void)fputc(i & 0xff, f);
    (void)fclose(f);
    assert_int_equal(iso_ledger_open(&l, g_nodes.alice, path, &g_reason), ISO_E_IO);
    assert_int_equal(g_reason, ISO_REASON_LEDGER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file),           cmocka_unit_test(test_reserve_and_commit),
        cmocka_unit_test(test_admit),          cmocka_unit_test(test_marks),
        cmocka_unit_test(test_processes),      cmocka_unit_test(test_no_links),
        cmocka_unit_test(test_not_a_database),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
