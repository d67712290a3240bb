/* SPDX-License-Identifier: MIT
 * test_requests.c - what a producer refuses before it computes: identities, ids, quotas, replays;
 * and what a lost, foreign or old ledger does.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "handoff/channel.h"
#include "handoff/ledger.h"
#include "handoff/request.h"
#include "rig.h"

#define MODEL "mini-qwen3.gguf"
#define WAIT_MS 5000

static struct rig g_rig;

static int setup(void **state)
{
    rig_start(&g_rig, MODEL, NULL, NULL);
    *state = &g_rig;
    return 0;
}

static int teardown(void **state)
{
    rig_stop(*state);
    return 0;
}

/* A new generation of bob's ledger, for a raw request. */
static uint64_t reserve(struct rig *r)
{
    struct iso_ledger *l = NULL;
    struct iso_attempt a = {.role = ISO_LEDGER_CONSUMER};
    enum iso_reason reason = ISO_REASON_OK;
    rig_must(iso_ledger_open(&l, r->nodes.bob, NULL, &reason));
    rig_must(iso_ledger_reserve(l, &a, &reason));
    iso_ledger_free(l);
    return a.generation;
}

/* A request as bob would send it. */
static void fill(struct rig *r, struct iso_request *q, uint32_t n)
{
    struct iso_identity id;
    *q = (struct iso_request){.generation = reserve(r), .n_ids = n, .deadline_ms = 20000};
    rig_must(iso_engine_identity(&id, r->ce, NULL));
    rig_must(iso_identity_doc_from(&q->identity, &id));
    (void)snprintf(q->id, sizeof(q->id), "raw-%llu", (unsigned long long)q->generation);
    (void)snprintf(q->consumer, sizeof(q->consumer), "bob");
    (void)snprintf(q->producer, sizeof(q->producer), "alice");
    (void)snprintf(q->lane, sizeof(q->lane), "%s", ISO_HANDOFF_LANE);
    iso_node_ledger_id(r->nodes.bob, q->ledger);
    iso_ids_digest(&q->ids, r->ids, ISO_MIN(n, (uint32_t)RIG_IDS)); /* longer: the caller's */
}

static struct iso_channel *dial(struct rig *r, struct iso_channel_report *report)
{
    char address[32];
    struct iso_channel *ch = NULL;
    (void)snprintf(address, sizeof(address), "127.0.0.1:%u", iso_producer_port(r->producer));
    if (iso_channel_dial(&ch, r->nodes.bob, address, "alice", WAIT_MS, report) != ISO_OK)
        return NULL;
    return ch;
}

/* Sends a payload as REQUEST and returns the answer's reason: OK for ACCEPT. */
static enum iso_reason
send_raw(struct iso_channel *ch, const struct iso_buf *b, struct iso_refusal *refusal)
{
    struct iso_frame f;
    uint8_t text[ISO_FRAME_REFUSE_MAX];
    const int64_t until = iso_channel_deadline(WAIT_MS);
    *refusal = (struct iso_refusal){0};
    rig_must(iso_channel_send_bytes(ch, ISO_FRAME_REQUEST, 1, b->data, b->len, until));
    do {
        rig_must(iso_channel_recv_header(ch, &f, until));
        assert_true(f.length <= sizeof(text));
        rig_must(iso_channel_recv_payload(ch, text, f.length, until));
    } while (f.type == ISO_FRAME_PROGRESS);
    if (f.type == ISO_FRAME_ACCEPT) return ISO_REASON_OK;
    assert_int_equal(f.type, ISO_FRAME_REFUSE);
    rig_must(iso_refusal_parse(refusal, text, f.length));
    return refusal->reason;
}

/* One request on its own connection; an accepted one is given up at once. */
static enum iso_reason ask_ids(struct rig *r, const struct iso_request *q, const int32_t *ids)
{
    struct iso_channel_report report = {0};
    struct iso_refusal refusal;
    struct iso_buf b;
    struct iso_channel *ch = dial(r, &report);
    if (ch == NULL) return report.reason;
    iso_buf_init(&b, ISO_FRAME_REQUEST_MAX);
    rig_must(iso_request_encode(&b, q, ids));
    const enum iso_reason reason = send_raw(ch, &b, &refusal);
    iso_buf_deinit(&b);
    iso_channel_free(ch);
    struct iso_producer_stats st;
    do {
        (void)usleep(1000);
        iso_producer_stats(r->producer, &st);
    } while (st.active > 0);
    return reason;
}

static enum iso_reason ask(struct rig *r, const struct iso_request *q)
{
    return ask_ids(r, q, r->ids);
}

static void expect(enum iso_reason got, enum iso_reason want)
{
    if (got != want) fail_msg("%s, expected %s", iso_reason_name(got), iso_reason_name(want));
}

/* K10: each part of the identity has its own refusal. */
static void test_identity(void **state)
{
    struct rig *r = *state;
    struct iso_request q;
    fill(r, &q, 100);
    expect(ask(r, &q), ISO_REASON_OK);
    fill(r, &q, 100);
    (void)snprintf(q.identity.arithmetic, sizeof(q.identity.arithmetic), "exact-2");
    expect(ask(r, &q), ISO_REASON_ARITHMETIC);
    const struct {
        size_t at;
        enum iso_reason reason;
    } parts[] = {{offsetof(struct iso_identity_doc, weights), ISO_REASON_WEIGHTS},
                 {offsetof(struct iso_identity_doc, tokenizer), ISO_REASON_TOKENIZER},
                 {offsetof(struct iso_identity_doc, page_format), ISO_REASON_PAGE_FORMAT},
                 {offsetof(struct iso_identity_doc, context), ISO_REASON_CONTEXT_POLICY}};
    for (size_t i = 0; i < ISO_COUNT(parts); i++) {
        fill(r, &q, 100);
        ((uint8_t *)&q.identity)[parts[i].at + 5] ^= 1;
        expect(ask(r, &q), parts[i].reason);
    }
    /* Another template is only reported, unless it is to be strict. */
    fill(r, &q, 100);
    q.identity.chat_template.bytes[0] ^= 1;
    expect(ask(r, &q), ISO_REASON_OK);
    fill(r, &q, 100);
    q.identity.chat_template.bytes[0] ^= 1;
    q.strict_template = true;
    expect(ask(r, &q), ISO_REASON_TEMPLATE);
    fill(r, &q, 100);
    (void)snprintf(q.lane, sizeof(q.lane), "fast");
    expect(ask(r, &q), ISO_REASON_LANE);
}

/* Other real models are refused as what they are. */
static void test_other_models(void **state)
{
    static const struct {
        const char *file;
        enum iso_reason reason;
    } others[] = {{"mini-llama.gguf", ISO_REASON_WEIGHTS},
                  {"gemma-3-270m-q4_k_m.gguf", ISO_REASON_WEIGHTS}};
    struct rig *r = *state;
    for (size_t i = 0; i < ISO_COUNT(others); i++) {
        iso_engine *e = rig_engine(others[i].file, 1, true);
        iso_session *s = NULL;
        rig_must(iso_session_new(&s, e, RIG_CTX));
        assert_int_equal(rig_fetch(r, s, r->ids, 100), ISO_E_REFUSED);
        const struct iso_consumer_report *p = iso_consumer_last_report(r->consumer);
        expect(p->reason, others[i].reason);
        assert_true(p->from_peer);
        assert_int_equal(iso_session_position(s), 0);
        iso_session_free(s);
        iso_engine_close(e);
    }
    rig_new_consumer(r);
}

static void test_ids(void **state)
{
    struct rig *r = *state;
    struct iso_request q;
    const uint32_t n_vocab = iso_engine_info(r->pe)->n_vocab;
    int32_t many[RIG_CTX + 1];
    for (int i = 0; i <= RIG_CTX; i++) many[i] = r->ids[i % RIG_IDS];
    fill(r, &q, 0);
    expect(ask(r, &q), ISO_REASON_NO_IDS);
    fill(r, &q, RIG_CTX + 1);
    iso_ids_digest(&q.ids, many, RIG_CTX + 1);
    expect(ask_ids(r, &q, many), ISO_REASON_CONTEXT_EXCEEDED);
    const int32_t wrong[] = {-1, INT32_MIN, (int32_t)n_vocab, INT32_MAX};
    for (size_t i = 0; i < ISO_COUNT(wrong); i++) {
        fill(r, &q, 100);
        memcpy(many, r->ids, 100 * sizeof(*many));
        many[i == 0 ? 99 : 50] = wrong[i];
        iso_ids_digest(&q.ids, many, 100);
        expect(ask_ids(r, &q, many), ISO_REASON_ID_OUT_OF_RANGE);
    }
    fill(r, &q, 100);
    q.ids.bytes[31] ^= 1;
    expect(ask(r, &q), ISO_REASON_DIGEST);
    /* Held pages: of another prompt, of another tenant, more than there can be. */
    struct iso_digest pin;
    uint8_t spki[ISO_NODE_SPKI_LEN];
    iso_node_identity(r->nodes.bob, &pin, spki);
    fill(r, &q, 150);
    q.held[ISO_KV_FULL].count = 2;
    iso_chain_digest(&q.held[ISO_KV_FULL].chain, &pin, &q.identity, r->ids, 2);
    expect(ask(r, &q), ISO_REASON_OK);
    q.generation = reserve(r);
    iso_chain_digest(&q.held[ISO_KV_FULL].chain, &pin, &q.identity, r->ids + 1, 2);
    expect(ask(r, &q), ISO_REASON_CHAIN);
    q.generation = reserve(r);
    pin.bytes[0] ^= 1;
    iso_chain_digest(&q.held[ISO_KV_FULL].chain, &pin, &q.identity, r->ids, 2);
    expect(ask(r, &q), ISO_REASON_CHAIN);
    q.generation = reserve(r);
    q.held[ISO_KV_FULL].count = 3;
    expect(ask(r, &q), ISO_REASON_CHAIN);
}

static void test_names(void **state)
{
    struct rig *r = *state;
    struct iso_request q;
    fill(r, &q, 100);
    (void)snprintf(q.consumer, sizeof(q.consumer), "eve");
    expect(ask(r, &q), ISO_REASON_PEER_UNEXPECTED);
    fill(r, &q, 100);
    (void)snprintf(q.producer, sizeof(q.producer), "bob");
    expect(ask(r, &q), ISO_REASON_PEER_UNEXPECTED);
    fill(r, &q, 100);
    q.ledger[3] ^= 1;
    expect(ask(r, &q), ISO_REASON_LEDGER_FOREIGN);
}

/* Bytes that are no request. */
static void test_malformed(void **state)
{
    struct rig *r = *state;
    struct iso_request q;
    struct iso_buf good, bad;
    iso_buf_init(&good, ISO_FRAME_REQUEST_MAX);
    iso_buf_init(&bad, ISO_FRAME_REQUEST_MAX);
    fill(r, &q, 100);
    rig_must(iso_request_encode(&good, &q, r->ids));
    for (int k = 0; k < 6; k++) {
        struct iso_channel_report report;
        struct iso_refusal refusal;
        struct iso_channel *ch = dial(r, &report);
        assert_non_null(ch);
        iso_buf_clear(&bad);
        rig_must(iso_buf_append(&bad, good.data, good.len));
        if (k == 0) iso_put_u32(bad.data, UINT32_MAX);
        if (k == 1) iso_put_u32(bad.data, 3);
        if (k == 2) bad.len -= 4;
        if (k == 3) rig_must(iso_buf_u32(&bad, 0));
        if (k == 4) bad.data[4] = '[';
        if (k == 5) bad.len = 3;
        expect(send_raw(ch, &bad, &refusal), ISO_REASON_FRAME_FIELD);
        iso_channel_free(ch);
    }
    iso_buf_deinit(&good);
    iso_buf_deinit(&bad);
    expect(ask(r, &q), ISO_REASON_OK);
}

/* N5: a recorded request, on the same and on later connections, below, and after a restart. */
static void test_replay(void **state)
{
    struct rig *r = *state;
    struct iso_request q, low;
    struct iso_refusal refusal;
    struct iso_channel_report report;
    struct iso_buf b;
    fill(r, &q, 100);
    expect(ask(r, &q), ISO_REASON_OK);
    expect(ask(r, &q), ISO_REASON_GENERATION);
    low = q;
    low.generation--;
    expect(ask(r, &low), ISO_REASON_LEDGER_ROLLED_BACK);
    rig_new_producer(r); /* the memory of it is on disk */
    expect(ask(r, &q), ISO_REASON_GENERATION);
    expect(ask(r, &low), ISO_REASON_LEDGER_ROLLED_BACK);
    /* Refused, the connection stays: a new generation passes on it. */
    struct iso_channel *ch = dial(r, &report);
    iso_buf_init(&b, ISO_FRAME_REQUEST_MAX);
    rig_must(iso_request_encode(&b, &q, r->ids));
    expect(send_raw(ch, &b, &refusal), ISO_REASON_GENERATION);
    assert_int_equal(refusal.high, q.generation);
    q.generation = reserve(r);
    iso_buf_clear(&b);
    rig_must(iso_request_encode(&b, &q, r->ids));
    expect(send_raw(ch, &b, &refusal), ISO_REASON_OK);
    iso_buf_deinit(&b);
    iso_channel_free(ch);
}

/* One transfer at a time for a peer, and tokens per minute. */
static void test_quota(void **state)
{
    struct rig *r = *state;
    struct iso_request q;
    struct iso_refusal refusal;
    struct iso_channel_report report;
    struct iso_buf b;
    r->po.peer_transfers = 1;
    rig_new_producer(r);
    iso_buf_init(&b, ISO_FRAME_REQUEST_MAX);
    struct iso_channel *ch = dial(r, &report);
    fill(r, &q, RIG_IDS);
    rig_must(iso_request_encode(&b, &q, r->ids));
    expect(send_raw(ch, &b, &refusal), ISO_REASON_OK);
    /* It waits for our ACK, so it is still there. */
    struct iso_channel *second = dial(r, &report);
    fill(r, &q, 100);
    iso_buf_clear(&b);
    rig_must(iso_request_encode(&b, &q, r->ids));
    expect(send_raw(second, &b, &refusal), ISO_REASON_QUOTA);
    iso_channel_free(second);
    iso_channel_free(ch);
    iso_buf_deinit(&b);
    r->po.peer_transfers = 0;
    r->po.peer_tokens_min = 250;
    rig_new_producer(r);
    fill(r, &q, RIG_IDS);
    expect(ask(r, &q), ISO_REASON_OK);
    fill(r, &q, RIG_IDS);
    expect(ask(r, &q), ISO_REASON_QUOTA);
    r->po.peer_tokens_min = 0;
    rig_new_producer(r);
}

/* --- ledgers
 * -------------------------------------------------------------------------------------- */

static void ledger_file(const struct rig *r, char out[160], const char *node, const char *tail)
{
    (void)snprintf(out, 160, "%s/%s/%s%s", r->nodes.root, node, ISO_LEDGER_FILE, tail);
}

static void copy_file(const char *from, const char *to)
{
    char buf[65536];
    FILE *a = fopen(from, "rb"), *b = fopen(to, "wb");
    assert_non_null(a);
    assert_non_null(b);
    size_t n = 0;
    while ((n = fread(buf, 1, sizeof(buf), a)) > 0) assert_int_equal(fwrite(buf, 1, n, b), n);
    (void)fclose(a);
    (void)fclose(b);
    assert_int_equal(chmod(to, 0600), 0);
}

static enum iso_reason open_reason(struct rig *r)
{
    struct iso_consumer *c = NULL;
    enum iso_reason reason = ISO_REASON_OK;
    if (iso_consumer_new(&c, r->nodes.bob, &r->co, &reason) != ISO_OK) return reason;
    iso_consumer_free(c);
    return ISO_REASON_OK;
}

static void fetch_expect(struct rig *r, enum iso_reason want)
{
    iso_session *s = NULL;
    rig_must(iso_session_new(&s, r->ce, RIG_CTX));
    const enum iso_err err = rig_fetch(r, s, r->ids, 100);
    expect(iso_consumer_last_report(r->consumer)->reason, want);
    assert_int_equal(err == ISO_OK, want == ISO_REASON_OK);
    assert_int_equal(iso_session_position(s), want == ISO_REASON_OK ? 99 : 0);
    iso_session_free(s);
}

/* A consumer that dies behind the last byte and before its commit row: the generation is burnt, the
 * next one is higher, nothing is used twice. */
static bool die_with_all_pages(void *arg, uint64_t done, uint64_t total)
{
    (void)arg;
    if (done == total) (void)raise(SIGKILL);
    return false;
}

static void consume_and_die(struct rig *r)
{
    char self[512];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    assert_true(n > 0);
    self[n] = '\0';
    const pid_t pid = fork();
    if (pid == 0) {
        (void)execl(self, self, "--consume", r->nodes.root, r->address, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static int consume(const char *root, const char *address)
{
    char dir[256];
    int32_t ids[RIG_IDS];
    struct iso_node *node = NULL;
    struct iso_consumer *c = NULL;
    iso_session *s = NULL;
    const struct iso_consumer_options o = {.address = address, .peer = "alice", .no_probe = true};
    const struct iso_progress p = {.fn = die_with_all_pages};
    iso_engine *e = rig_engine(MODEL, 1, true);
    rig_ids(ids);
    (void)snprintf(dir, sizeof(dir), "%s/bob", root);
    if (iso_node_open(&node, dir) != ISO_OK || iso_consumer_new(&c, node, &o, NULL) != ISO_OK ||
        iso_session_new(&s, e, RIG_CTX) != ISO_OK) {
        return 1;
    }
    const struct iso_kv_source *k = iso_consumer_source(c);
    return k->fetch(k->arg, s, ids, 100, &p) == ISO_OK ? 2 : 3;
}

static void test_crash_burns_a_generation(void **state)
{
    struct rig *r = *state;
    struct iso_buf rows;
    enum iso_reason reason = ISO_REASON_OK;
    struct iso_ledger *l = NULL;
    uint64_t before = 0, after = 0;
    iso_consumer_free(r->consumer);
    r->consumer = NULL;
    rig_must(iso_ledger_open(&l, r->nodes.bob, NULL, &reason));
    rig_must(iso_ledger_highest(l, &before, &reason));
    consume_and_die(r);
    rig_must(iso_ledger_highest(l, &after, &reason));
    assert_int_equal(after, before + 1);
    iso_buf_init(&rows, 1 << 16);
    rig_must(iso_ledger_list(l, &rows, 1, &reason));
    assert_non_null(strstr((char *)rows.data, "\"reason\":\"RESERVED\""));
    iso_buf_deinit(&rows);
    iso_ledger_free(l);
    rig_new_consumer(r);
    fetch_expect(r, ISO_REASON_OK);
    assert_int_equal(iso_consumer_last_report(r->consumer)->generation, before + 2);
}

static void test_ledger_deleted(void **state)
{
    struct rig *r = *state;
    static const char *const tails[] = {"", "-wal", "-shm"};
    char path[160], kept[160];
    /* Under a running process. */
    ledger_file(r, path, "bob", "");
    ledger_file(r, kept, "bob", ".kept");
    fetch_expect(r, ISO_REASON_OK);
    assert_int_equal(rename(path, kept), 0);
    fetch_expect(r, ISO_REASON_LEDGER_MISSING);
    assert_int_equal(rename(kept, path), 0);
    fetch_expect(r, ISO_REASON_OK);
    /* Before a start: closed, and the file is not made anew. */
    iso_consumer_free(r->consumer);
    r->consumer = NULL;
    for (size_t i = 0; i < ISO_COUNT(tails); i++) {
        ledger_file(r, path, "bob", tails[i]);
        (void)unlink(path);
    }
    expect(open_reason(r), ISO_REASON_LEDGER_MISSING);
    expect(open_reason(r), ISO_REASON_LEDGER_MISSING);
    /* An empty file is not a ledger either. */
    ledger_file(r, path, "bob", "");
    const int fd = open(path, O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0);
    (void)close(fd);
    expect(open_reason(r), ISO_REASON_LEDGER_MISSING);
    /* Renewed, but not enrolled again: the producer does not know it. */
    rig_must(iso_ledger_renew(r->nodes.bob, NULL));
    rig_new_consumer(r);
    fetch_expect(r, ISO_REASON_LEDGER_FOREIGN);
    rig_must(iso_node_pair(r->nodes.alice, r->nodes.bob, &(struct iso_node_opts){.replace = true}));
    rig_new_consumer(r);
    fetch_expect(r, ISO_REASON_OK);
}

static void test_ledger_foreign(void **state)
{
    struct rig *r = *state;
    char mine[160], other[160], kept[160];
    struct iso_ledger *l = NULL;
    enum iso_reason reason = ISO_REASON_OK;
    struct iso_node *carol = node_pair_extra(&r->nodes, "carol", NULL);
    rig_must(iso_ledger_open(&l, carol, NULL, &reason));
    iso_ledger_free(l);
    iso_node_free(carol);
    iso_consumer_free(r->consumer);
    r->consumer = NULL;
    ledger_file(r, mine, "bob", "");
    ledger_file(r, kept, "bob", ".kept");
    ledger_file(r, other, "carol", "");
    assert_int_equal(rename(mine, kept), 0);
    copy_file(other, mine);
    expect(open_reason(r), ISO_REASON_LEDGER_FOREIGN);
    assert_int_equal(rename(kept, mine), 0);
    rig_new_consumer(r);
    fetch_expect(r, ISO_REASON_OK);
}

/* A copy from yesterday: its next generation was used, the producer remembers a higher one. */
static void test_ledger_rolled_back(void **state)
{
    struct rig *r = *state;
    char path[160], old[160], side[160];
    iso_consumer_free(r->consumer); /* closes, and so writes the WAL back */
    r->consumer = NULL;
    ledger_file(r, path, "bob", "");
    ledger_file(r, old, "bob", ".old");
    copy_file(path, old);
    rig_new_consumer(r);
    for (int i = 0; i < 3; i++) fetch_expect(r, ISO_REASON_OK);
    iso_consumer_free(r->consumer);
    r->consumer = NULL;
    copy_file(old, path);
    ledger_file(r, side, "bob", "-wal");
    (void)unlink(side);
    ledger_file(r, side, "bob", "-shm");
    (void)unlink(side);
    rig_new_consumer(r);
    fetch_expect(r, ISO_REASON_LEDGER_ROLLED_BACK);
    /* Closed, also when by and by its numbers would be high enough again. */
    for (int i = 0; i < 5; i++) {
        rig_new_consumer(r);
        fetch_expect(r, ISO_REASON_LEDGER_ROLLED_BACK);
        assert_false(iso_consumer_last_report(r->consumer)->from_peer);
    }
    iso_consumer_free(r->consumer);
    r->consumer = NULL;
    rig_must(iso_ledger_renew(r->nodes.bob, NULL));
    rig_must(iso_node_pair(r->nodes.alice, r->nodes.bob, &(struct iso_node_opts){.replace = true}));
    rig_new_consumer(r);
    fetch_expect(r, ISO_REASON_OK);
}

/* Revoked while it runs: the next hand-off is refused, and both ledgers have the row. */
static void test_revoked(void **state)
{
    struct rig *r = *state;
    struct iso_buf rows;
    enum iso_reason reason = ISO_REASON_OK;
    struct iso_ledger *l = NULL;
    fetch_expect(r, ISO_REASON_OK);
    rig_must(iso_node_revoke(r->nodes.alice, "bob"));
    fetch_expect(r, ISO_REASON_CERT_REVOKED);
    rig_must(iso_ledger_open(&l, r->nodes.bob, NULL, &reason));
    iso_buf_init(&rows, 1 << 16);
    rig_must(iso_ledger_list(l, &rows, 1, &reason));
    assert_non_null(strstr((char *)rows.data, "CERT_REVOKED"));
    iso_ledger_free(l);
    rig_must(iso_ledger_open(&l, r->nodes.alice, NULL, &reason));
    /* The producer writes its row behind the refusal, on the connection's own thread. */
    const struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
    for (int i = 0; i < 500; i++) {
        iso_buf_clear(&rows);
        rig_must(iso_ledger_list(l, &rows, 1, &reason));
        if (strstr((char *)rows.data, "CERT_REVOKED")) break;
        (void)nanosleep(&pause, NULL);
    }
    assert_non_null(strstr((char *)rows.data, "CERT_REVOKED"));
    iso_ledger_free(l);
    iso_buf_deinit(&rows);
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "--consume") == 0) return consume(argv[2], argv[3]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_identity),
        cmocka_unit_test(test_other_models),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_replay),
        cmocka_unit_test(test_quota),
        cmocka_unit_test(test_crash_burns_a_generation),
        cmocka_unit_test(test_ledger_deleted),
        cmocka_unit_test(test_ledger_foreign),
        cmocka_unit_test(test_ledger_rolled_back),
        cmocka_unit_test(test_revoked),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
