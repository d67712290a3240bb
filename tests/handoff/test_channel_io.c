/* SPDX-License-Identifier: MIT
 * test_channel_io.c - frames over a live channel: content, threads, limits of time, cut and broken
 * connections. */
#include <openssl/ssl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/mem.h"
#include "handoff/channel_internal.h"
#include "node_pair.h"

#define SECONDS(n) iso_channel_deadline((n)*1000)

struct ends {
    struct node_pair pair;
    struct iso_channel *server, *client;
};

static void must(enum iso_err err)
{
    if (err != ISO_OK) fail_msg("%s", iso_err_detail());
}

static int setup(void **state)
{
    struct ends *e = calloc(1, sizeof *e);
    assert_non_null(e);
    node_pair_init(&e->pair, NULL);
    node_pair_channels(&e->pair, &e->server, &e->client);
    *state = e;
    return 0;
}

static int teardown(void **state)
{
    struct ends *e = *state;
    if (e->server) iso_channel_cancel(e->server); /* no goodbyes to wait for */
    iso_channel_free(e->server);
    if (e->client) iso_channel_cancel(e->client);
    iso_channel_free(e->client);
    node_pair_deinit(&e->pair);
    free(e);
    return 0;
}

static uint64_t g_seed; /* of main() */

/* xorshift64*: payloads that no compression or repetition could fake. */
static uint64_t next_random(uint64_t *s)
{
    *s ^= *s >> 12;
    *s ^= *s << 25;
    *s ^= *s >> 27;
    return *s * UINT64_C(0x2545F4914F6CDD1D);
}

static void fill(uint8_t *p, size_t len, uint64_t seed)
{
    uint64_t s = seed | 1;
    for (size_t i = 0; i + 8 <= len; i += 8) iso_put_u64(p + i, next_random(&s));
}

/* 64 MiB in PAGES frames ------------------------------------------------------ */

#define TRANSFER_FRAMES 16
#define TRANSFER_LEN (4u << 20)

static void *send_pages(void *arg)
{
    struct iso_channel *ch = arg;
    uint8_t *body = malloc(TRANSFER_LEN);
    enum iso_err err = body ? ISO_OK : ISO_E_NOMEM;
    for (uint32_t i = 0; i < TRANSFER_FRAMES && err == ISO_OK; i++) {
        uint8_t prefix[ISO_FRAME_PAGES_PREFIX_LEN] = {(uint8_t)i};
        struct iso_digest digest;
        fill(body, TRANSFER_LEN, g_seed + i);
        iso_sha256(&digest, body, TRANSFER_LEN);
        /* Odd pieces: parts that begin and end inside records. */
        const size_t odd = 1 + 16381 * (size_t)i;
        const struct iovec parts[] = {{prefix, sizeof prefix},
                                      {body, odd},
                                      {NULL, 0},
                                      {body + odd, TRANSFER_LEN - odd},
                                      {digest.bytes, sizeof digest.bytes}};
        err = iso_channel_send(ch, ISO_FRAME_PAGES, 0, 7, parts, 5, SECONDS(30));
    }
    free(body);
    return (void *)(intptr_t)err;
}

static void sixty_four_megabytes(void **state)
{
    struct ends *e = *state;
    pthread_t t;
    void *result;
    uint8_t *body = malloc(TRANSFER_LEN);
    assert_non_null(body);
    iso_channel_set_rekey(e->server, 1000); /* several KeyUpdates on the way */
    assert_int_equal(pthread_create(&t, NULL, send_pages, e->server), 0);
    for (uint32_t i = 0; i < TRANSFER_FRAMES; i++) {
        struct iso_frame f;
        uint8_t prefix[ISO_FRAME_PAGES_PREFIX_LEN];
        struct iso_digest sent;
        struct iso_digest got;
        must(iso_channel_recv_header(e->client, &f, SECONDS(30)));
        assert_int_equal(f.type, ISO_FRAME_PAGES);
        assert_int_equal(f.stream, 7);
        assert_int_equal(f.length, TRANSFER_LEN + sizeof prefix + sizeof sent.bytes);
        must(iso_channel_recv_payload(e->client, prefix, sizeof prefix, SECONDS(30)));
        assert_int_equal(prefix[0], i);
        for (size_t at = 0; at < TRANSFER_LEN;) { /* page by page, uneven */
            const size_t n = ISO_MIN(TRANSFER_LEN - at, (size_t)70001);
            must(iso_channel_recv_payload(e->client, body + at, n, SECONDS(30)));
            at += n;
        }
        must(iso_channel_recv_payload(e->client, sent.bytes, sizeof sent.bytes, SECONDS(30)));
        assert_int_equal(iso_channel_payload_left(e->client), 0);
        iso_sha256(&got, body, TRANSFER_LEN);
        assert_memory_equal(&got, &sent, sizeof got);
    }
    pthread_join(t, &result);
    assert_int_equal((intptr_t)result, ISO_OK);
    struct iso_channel_stats tx;
    struct iso_channel_stats rx;
    iso_channel_stats(e->server, &tx);
    iso_channel_stats(e->client, &rx);
    assert_true(tx.key_updates >= 4);
    assert_true(tx.tx_bytes == rx.rx_bytes);
    assert_true(tx.tx_frames == TRANSFER_FRAMES + 1 &&
                rx.rx_frames == tx.tx_frames); /* and HELLO */
    /* Full records: at most two part-filled ones per frame. */
    assert_true(tx.tx_records <= tx.tx_bytes / ISO_CHANNEL_RECORD_LEN + 2 * TRANSFER_FRAMES + 2);
    free(body);
}

/* Threads --------------------------------------------------------------- */

#define SENDERS 3
#define PER_SENDER 200

struct sender {
    struct iso_channel *ch;
    uint32_t stream;
    enum iso_err err;
};

static void *send_many(void *arg)
{
    struct sender *s = arg;
    uint8_t body[40000];
    memset(body, (int)s->stream, sizeof body);
    for (uint32_t i = 0; i < PER_SENDER && s->err == ISO_OK; i++)
        s->err = iso_channel_send_bytes(s->ch, ISO_FRAME_PAGES, s->stream, body,
                                        sizeof body - (i * 131) % 30000, SECONDS(20));
    return NULL;
}

static void receive_many(struct iso_channel *ch)
{
    static uint8_t body[40000];
    uint32_t counts[SENDERS + 1] = {0};
    for (uint32_t i = 0; i < SENDERS * PER_SENDER; i++) {
        struct iso_frame f;
        must(iso_channel_recv_header(ch, &f, SECONDS(20)));
        assert_in_range(f.stream, 1, SENDERS);
        assert_int_equal(f.length, sizeof body - (counts[f.stream]++ * 131) % 30000);
        must(iso_channel_recv_payload(ch, body, f.length, SECONDS(20)));
        for (size_t k = 0; k < f.length; k++)
            if (body[k] != f.stream)
                fail_msg("a byte of stream %u in stream %u", body[k], f.stream);
    }
}

/* Several senders in both directions while both receive: frames stay whole. */
static void frames_never_mix(void **state)
{
    struct ends *e = *state;
    pthread_t t[2 * SENDERS];
    struct sender s[2 * SENDERS];
    iso_channel_set_rekey(e->client, 100);
    for (uint32_t i = 0; i < 2 * SENDERS; i++) {
        s[i] =
            (struct sender){.ch = i < SENDERS ? e->server : e->client, .stream = i % SENDERS + 1};
        assert_int_equal(pthread_create(&t[i], NULL, send_many, &s[i]), 0);
    }
    struct iso_frame f;
    /* Both directions at once: the server drains after the client, through the socket buffers. */
    receive_many(e->client);
    receive_many(e->server);
    for (int i = 0; i < 2 * SENDERS; i++) {
        pthread_join(t[i], NULL);
        assert_int_equal(s[i].err, ISO_OK);
    }
    assert_int_equal(iso_channel_try_header(e->client, &f), ISO_E_AGAIN);
}

static void *cancel_soon(void *arg)
{
    (void)poll(NULL, 0, 100);
    iso_channel_cancel(arg);
    return NULL;
}

static void cancel_wakes_receiver(void **state)
{
    struct ends *e = *state;
    struct iso_frame f;
    pthread_t t;
    const int64_t begin = iso_clock_ns();
    assert_int_equal(pthread_create(&t, NULL, cancel_soon, e->client), 0);
    assert_int_equal(iso_channel_recv_header(e->client, &f, SECONDS(9)), ISO_E_CANCELLED);
    assert_int_equal(iso_channel_reason(e->client), ISO_REASON_CANCELLED);
    assert_true(iso_clock_ns() - begin < 2 * ISO_NS_PER_S);
    pthread_join(t, NULL);
    assert_int_equal(iso_channel_send_bytes(e->client, ISO_FRAME_ACK, 1, "x", 1, SECONDS(1)),
                     ISO_E_CANCELLED);
    assert_int_equal(iso_channel_recv_header(e->server, &f, SECONDS(1)), ISO_E_IO);
    assert_int_equal(iso_channel_reason(e->server), ISO_REASON_CLOSED);
}

static void cancel_wakes_sender(void **state)
{
    struct ends *e = *state;
    pthread_t t;
    static uint8_t body[1u << 20];
    enum iso_err err = ISO_OK;
    assert_int_equal(pthread_create(&t, NULL, cancel_soon, e->server), 0);
    for (int i = 0; i < 1000 && err == ISO_OK; i++) /* nobody reads: the buffers fill up */
        err = iso_channel_send_bytes(e->server, ISO_FRAME_PAGES, 1, body, sizeof body, SECONDS(9));
    assert_int_equal(err, ISO_E_CANCELLED);
    pthread_join(t, NULL);
}

/* Time ------------------------------------------------------------------ */

static void silence_and_deadline(void **state)
{
    struct ends *e = *state;
    struct iso_frame f;
    iso_channel_set_silence(e->client, 200);
    assert_int_equal(iso_channel_recv_header(e->client, &f, SECONDS(9)), ISO_E_TIMEOUT);
    assert_int_equal(iso_channel_reason(e->client), ISO_REASON_PEER_SILENT);
    assert_int_equal(iso_channel_recv_header(e->server, &f, iso_channel_deadline(50)),
                     ISO_E_TIMEOUT);
    assert_int_equal(iso_channel_reason(e->server), ISO_REASON_DEADLINE);
    /* Spent: the first reason stays. */
    assert_int_equal(iso_channel_recv_header(e->server, &f, SECONDS(9)), ISO_E_TIMEOUT);
    assert_int_equal(iso_channel_reason(e->server), ISO_REASON_DEADLINE);
}

static void *heartbeats(void *arg)
{
    for (int i = 0; i < 8; i++) {
        (void)poll(NULL, 0, 100);
        if (iso_channel_send_bytes(arg, ISO_FRAME_PROGRESS, 1, NULL, 0, SECONDS(1)) != ISO_OK)
            break;
    }
    return NULL;
}

static void heartbeats_hold_the_line(void **state)
{
    struct ends *e = *state;
    struct iso_frame f;
    pthread_t t;
    iso_channel_set_silence(e->client, 600);
    assert_int_equal(pthread_create(&t, NULL, heartbeats, e->server), 0);
    for (int i = 0; i < 8; i++) {
        must(iso_channel_recv_header(e->client, &f, SECONDS(9)));
        assert_int_equal(f.type, ISO_FRAME_PROGRESS);
        assert_int_equal(f.length, 0);
    }
    pthread_join(t, NULL);
    (void)poll(NULL, 0, 700);
    assert_int_equal(iso_channel_try_header(e->client, &f), ISO_E_TIMEOUT);
    assert_int_equal(iso_channel_reason(e->client), ISO_REASON_PEER_SILENT);
}

static void sender_does_not_wait_forever(void **state)
{
    struct ends *e = *state;
    static uint8_t body[1u << 20];
    enum iso_err err = ISO_OK;
    iso_channel_set_silence(e->server, 200);
    for (int i = 0; i < 1000 && err == ISO_OK; i++)
        err = iso_channel_send_bytes(e->server, ISO_FRAME_PAGES, 1, body, sizeof body, SECONDS(9));
    assert_int_equal(err, ISO_E_TIMEOUT);
    assert_int_equal(iso_channel_reason(e->server), ISO_REASON_PEER_SILENT);
    err = ISO_OK;
    for (int i = 0; i < 1000 && err == ISO_OK; i++)
        err = iso_channel_send_bytes(e->client, ISO_FRAME_PAGES, 1, body, sizeof body,
                                     iso_channel_deadline(300));
    assert_int_equal(err, ISO_E_TIMEOUT);
    assert_int_equal(iso_channel_reason(e->client), ISO_REASON_DEADLINE);
}

/* Broken peers ---------------------------------------------------------- */

/* Sends bytes inside the TLS connection as they are. */
static void send_raw(struct iso_channel *ch, const void *p, size_t len)
{
    size_t done = 0;
    assert_int_equal(SSL_write_ex(ch->ssl, p, len, &done), 1);
    assert_int_equal(done, len);
}

static void header_byte_by_byte(void **state)
{
    struct ends *e = *state;
    struct iso_frame f;
    uint8_t b[ISO_FRAME_HEADER_LEN + 3] = {0};
    const struct iso_frame ack = {.type = ISO_FRAME_ACK, .stream = 9, .length = 3};
    iso_frame_encode(b, &ack);
    assert_false(iso_channel_readable(e->client, 0));
    for (size_t i = 0; i < ISO_FRAME_HEADER_LEN; i++) {
        assert_int_equal(iso_channel_try_header(e->client, &f), ISO_E_AGAIN);
        send_raw(e->server, b + i, 1);
        assert_true(iso_channel_readable(e->client, 1000));
    }
    must(iso_channel_try_header(e->client, &f));
    assert_true(f.type == ack.type && f.stream == ack.stream && f.length == ack.length);
    send_raw(e->server, b, 3);
    must(iso_channel_skip_payload(e->client, SECONDS(1)));
    assert_int_equal(iso_channel_try_header(e->client, &f), ISO_E_AGAIN);
}

static void broken_header(struct ends *e, const uint8_t *b, size_t len, enum iso_reason want)
{
    struct iso_frame f;
    send_raw(e->server, b, len);
    assert_int_equal(iso_channel_recv_header(e->client, &f, SECONDS(2)), ISO_E_PROTO);
    assert_int_equal(iso_channel_reason(e->client), want);
    iso_channel_cancel(e->client);
    iso_channel_cancel(e->server);
    iso_channel_free(e->client);
    iso_channel_free(e->server);
    node_pair_channels(&e->pair, &e->server, &e->client);
}

static void broken_headers(void **state)
{
    struct ends *e = *state;
    uint8_t good[ISO_FRAME_HEADER_LEN];
    uint8_t b[ISO_FRAME_HEADER_LEN];
    iso_frame_encode(good, &(struct iso_frame){.type = ISO_FRAME_SEAL, .length = 64});
    memcpy(b, good, sizeof b);
    b[0] = 'i';
    broken_header(e, b, sizeof b, ISO_REASON_FRAME_MAGIC);
    memcpy(b, good, sizeof b);
    b[4] = 99;
    broken_header(e, b, 5, ISO_REASON_FRAME_TYPE); /* without waiting for the rest */
    memcpy(b, good, sizeof b);
    b[5] = 1;
    broken_header(e, b, sizeof b, ISO_REASON_FRAME_FLAGS);
    memcpy(b, good, sizeof b);
    memset(b + 12, 0xff, 4);
    broken_header(e, b, sizeof b, ISO_REASON_FRAME_LENGTH);
    memcpy(b, good, sizeof b);
    memset(b + 12, 0, 4);
    broken_header(e, b, sizeof b, ISO_REASON_FRAME_LENGTH);
    memcpy(b, good, sizeof b);
    b[4] = ISO_FRAME_HELLO;
    broken_header(e, b, sizeof b, ISO_REASON_FRAME_ORDER);
}

static void cut_in_header_and_payload(void **state)
{
    struct ends *e = *state;
    uint8_t b[ISO_FRAME_HEADER_LEN + 100] = {0};
    iso_frame_encode(b, &(struct iso_frame){.type = ISO_FRAME_SEAL, .length = 100});
    for (size_t cut = 0; cut < sizeof b; cut += cut < 18 ? 1 : 27) {
        struct iso_frame f;
        uint8_t body[100];
        if (cut > 0) send_raw(e->server, b, cut);
        if (cut % 2) iso_channel_cancel(e->server); /* without goodbye */
        iso_channel_free(e->server);
        enum iso_err err = iso_channel_recv_header(e->client, &f, SECONDS(2));
        if (cut >= ISO_FRAME_HEADER_LEN) {
            assert_int_equal(err, ISO_OK);
            err = iso_channel_recv_payload(e->client, body, sizeof body, SECONDS(2));
        }
        assert_int_equal(err, ISO_E_IO);
        assert_int_equal(iso_channel_reason(e->client), ISO_REASON_CLOSED);
        iso_channel_free(e->client);
        node_pair_channels(&e->pair, &e->server, &e->client);
    }
}

/* A write to a connection that is gone raises no signal and gives CLOSED. */
static void no_sigpipe(void **state)
{
    struct ends *e = *state;
    enum iso_err err = ISO_OK;
    iso_channel_cancel(e->client);
    iso_channel_free(e->client);
    e->client = NULL;
    for (int i = 0; i < 100 && err == ISO_OK; i++) {
        err = iso_channel_send_bytes(e->server, ISO_FRAME_ACK, 1, "x", 1, SECONDS(1));
        (void)poll(NULL, 0, 5);
    }
    assert_int_equal(err, ISO_E_IO);
    assert_int_equal(iso_channel_reason(e->server), ISO_REASON_CLOSED);
}

/* One flipped bit on the wire, below TLS. */
static void tampered_record(void **state)
{
    struct ends *e = *state;
    struct iso_frame f;
    static const uint8_t record[] = {23, 3,  3,  0,  40, 1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                                     11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25,
                                     26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40};
    assert_int_equal(send(e->server->fd, record, sizeof record, MSG_NOSIGNAL), sizeof record);
    assert_int_equal(iso_channel_recv_header(e->client, &f, SECONDS(2)), ISO_E_PROTO);
    assert_int_equal(iso_channel_reason(e->client), ISO_REASON_TLS_BROKEN);
}

static void last_frame_survives_the_goodbye(void **state)
{
    struct ends *e = *state;
    struct iso_frame f;
    /* Unread heartbeats lie at the client when it closes: its ACK must still arrive. */
    for (int i = 0; i < 20; i++)
        must(iso_channel_send_bytes(e->server, ISO_FRAME_PROGRESS, 1, NULL, 0, SECONDS(1)));
    must(iso_channel_send_bytes(e->client, ISO_FRAME_ACK, 1, "done", 4, SECONDS(1)));
    iso_channel_free(e->client);
    e->client = NULL;
    must(iso_channel_recv_header(e->server, &f, SECONDS(2)));
    assert_int_equal(f.type, ISO_FRAME_ACK);
    must(iso_channel_skip_payload(e->server, SECONDS(2)));
    assert_int_equal(iso_channel_recv_header(e->server, &f, SECONDS(2)), ISO_E_IO);
}

static void bad_sends_leave_the_channel_usable(void **state)
{
    struct ends *e = *state;
    struct iso_frame f;
    struct iovec parts[ISO_CHANNEL_PARTS_MAX + 1] = {{0}};
    static uint8_t big[ISO_FRAME_ACK_MAX + 1];
    assert_int_equal(iso_channel_send_bytes(e->server, ISO_FRAME_HELLO, 0, "{}", 2, SECONDS(1)),
                     ISO_E_ARG);
    assert_int_equal(
        iso_channel_send_bytes(e->server, ISO_FRAME_ACK, 0, big, sizeof big, SECONDS(1)),
        ISO_E_ARG);
    assert_int_equal(iso_channel_send(e->server, ISO_FRAME_ACK, 1, 0, NULL, 0, SECONDS(1)),
                     ISO_E_ARG);
    assert_int_equal(iso_channel_send(e->server, ISO_FRAME_ACK, 0, 0, parts,
                                      ISO_CHANNEL_PARTS_MAX + 1, SECONDS(1)),
                     ISO_E_ARG);
    assert_int_equal(
        iso_channel_send_bytes(e->server, (enum iso_frame_type)77, 0, big, 1, SECONDS(1)),
        ISO_E_ARG);
    must(iso_channel_send_bytes(e->server, ISO_FRAME_ACK, 3, big, sizeof big - 1, SECONDS(1)));
    must(iso_channel_recv_header(e->client, &f, SECONDS(1)));
    must(iso_channel_skip_payload(e->client, SECONDS(1)));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(sixty_four_megabytes),
        TEST(frames_never_mix),
        TEST(cancel_wakes_receiver),
        TEST(cancel_wakes_sender),
        TEST(silence_and_deadline),
        TEST(heartbeats_hold_the_line),
        TEST(sender_does_not_wait_forever),
        TEST(header_byte_by_byte),
        TEST(broken_headers),
        TEST(cut_in_header_and_payload),
        TEST(no_sigpipe),
        TEST(tampered_record),
        TEST(last_frame_survives_the_goodbye),
        TEST(bad_sends_leave_the_channel_usable),
    };
    g_seed = (uint64_t)time(NULL);
    (void)printf("seed %llu\n", (unsigned long long)g_seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
