/* SPDX-License-Identifier: MIT
 * test_pages.c - pages in memory that the host cannot see, as on a GPU: export, rewind, staging, audit.
 *
 * The CPU device with a host() that answers only for buffers that the host may see; everything else goes
 * through transfers and the shadow. Bits must be those of an engine that shares memory. */
#include <stdlib.h>
#include <string.h>

#include "arith/page.h"
#include "base/mem.h"
#include "engine/tools.h"

#define P ISO_PAGE_POSITIONS
#define N 330

/* The pools' buffers; 0 when a class has no layers. */
static uint32_t g_hidden[2 * ISO_KV_CLASSES];
static size_t g_n_hidden, g_n_transfers;
static const struct iso_device_vt *g_cpu;

static void *host(struct iso_device *dev, struct iso_span at)
{
    for (size_t i = 0; i < g_n_hidden; i++) {
        if (at.buffer == g_hidden[i]) return NULL;
    }
    return g_cpu->host(dev, at);
}

static enum iso_err upload(struct iso_device *dev, struct iso_span dst, const void *src, size_t len)
{
    g_n_transfers++;
    return g_cpu->upload(dev, dst, src, len);
}

static enum iso_err download(struct iso_device *dev, void *dst, struct iso_span src, size_t len)
{
    g_n_transfers++;
    return g_cpu->download(dev, dst, src, len);
}

/* An engine whose pages are hidden from now on. vt stays in use until the engine is closed. */
static iso_engine *hidden_engine(const char *arch, struct iso_device_vt *vt, const struct iso_engine_options *o)
{
    iso_engine *e = tools_engine(arch, o);
    g_cpu = e->dev->vt;
    g_n_hidden = g_n_transfers = 0;
    for (uint32_t c = 0; c < ISO_KV_CLASSES; c++) {
        if (e->pool[c].n_layers > 0) g_hidden[g_n_hidden++] = e->pool[c].buffer;
    }
    *vt = *g_cpu;
    vt->host = host;
    vt->upload = upload;
    vt->download = download;
    e->dev->vt = vt;
    tools_ok(iso_pages_init(e));
    return e;
}

static void close_hidden(iso_engine *e)
{
    e->dev->vt = g_cpu;
    iso_engine_close(e);
}

/* A rewind into the middle of a page zeroes its tail, which chains and later steps see. */
static void rewinds_and_exports_are_the_same(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        const struct iso_engine_options o = {.keep_expired = true};
        iso_engine *plain = tools_engine(tools_family[f], &o);
        iso_session *a = tools_session(plain);
        int32_t *ids = tools_ids(plain, N, 5);
        struct iso_device_vt vt;
        iso_engine *e = hidden_engine(tools_family[f], &vt, &o);
        iso_session *b = tools_session(e);
        for (uint32_t to = 300; to > 100; to -= 90) {
            tools_run(a, ids + iso_session_position(a), N - iso_session_position(a), 50, NULL);
            tools_run(b, ids + iso_session_position(b), N - iso_session_position(b), 50, NULL);
            const struct iso_digest x = tools_chain(a), y = tools_chain(b), l = tools_logits(a), m = tools_logits(b);
            assert_memory_equal(&x, &y, sizeof(x));
            assert_memory_equal(&l, &m, sizeof(l));
            assert_int_equal(iso_session_rewind(a, to), to);
            assert_int_equal(iso_session_rewind(b, to), to);
            const struct iso_digest cut_a = tools_chain(a), cut_b = tools_chain(b);
            assert_memory_equal(&cut_a, &cut_b, sizeof(cut_a));
        }
        assert_true(g_n_transfers > 0);
        iso_session_free(a);
        iso_session_free(b);
        iso_engine_close(plain);
        close_hidden(e);
        free(ids);
    }
}

static void fill(iso_kv_staging *st, const iso_session *from)
{
    const struct iso_kv_layout *y = iso_engine_kv_layout(iso_session_engine(from));
    for (uint32_t l = 0; l < y->n_layers; l++) {
        for (uint32_t h = 0; h < y->n_kv_heads; h++) {
            for (uint32_t p = 0; p <= (N - 1) / P; p++) {
                memcpy(iso_kv_staging_page(st, l, h, p), iso_session_page(from, l, h, p), y->page_bytes);
            }
        }
    }
}

/* A page that was just staged is zero, whatever its slot held before. */
static void is_zero(iso_kv_staging *st, const iso_engine *e)
{
    const uint8_t *page = iso_kv_staging_page(st, 1, 0, 3);
    for (size_t i = 0; i < iso_engine_kv_layout(e)->page_bytes; i++) assert_int_equal(page[i], 0);
}

/* Pages received into hidden memory pass the audit, are published and continued; a flipped bit does not
 * pass, and what a discarded transfer left behind does not show in the next one. */
static void staged_pages_reach_the_device(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        const struct iso_engine_options o = {.keep_expired = true, .staging = true, .n_sessions = 1};
        iso_engine *plain = tools_engine(tools_family[f], &o);
        iso_session *from = tools_session(plain);
        int32_t *ids = tools_ids(plain, N + 1, 6);
        tools_run(from, ids, N, 100, NULL);
        struct iso_device_vt vt;
        iso_engine *e = hidden_engine(tools_family[f], &vt, &o);
        iso_session *s = tools_session(e);
        const uint32_t first[ISO_KV_CLASSES] = {0}, positions[] = {N - 1, 200, 63, 64, 0};
        iso_kv_staging *st = NULL;
        bool ok = true;
        uint32_t layer = 0, position = 0;
        for (uint32_t i = 0; i < 2; i++) { /* two transfers that break off */
            tools_ok(iso_kv_stage(&st, s, N, first));
            is_zero(st, e);
            fill(st, from);
            iso_kv_discard(st);
        }
        tools_ok(iso_kv_stage(&st, s, N, first));
        fill(st, from);
        iso_kv_staging_page(st, 1, 0, 3)[(200 % P) * e->info.head_dim] ^= 1;
        tools_ok(iso_kv_audit(&ok, &layer, &position, st, ids, positions, ISO_COUNT(positions)));
        assert_false(ok);
        iso_kv_discard(st);
        tools_ok(iso_kv_stage(&st, s, N, first));
        is_zero(st, e);
        fill(st, from);
        tools_ok(iso_kv_audit(&ok, &layer, &position, st, ids, positions, ISO_COUNT(positions)));
        assert_true(ok);
        iso_kv_publish(st, ids);
        const struct iso_digest x = tools_chain(from), y = tools_chain(s);
        assert_memory_equal(&x, &y, sizeof(x));
        tools_ok(iso_session_decode(from, ids[N]));
        tools_ok(iso_session_decode(s, ids[N]));
        const struct iso_digest l = tools_logits(from), m = tools_logits(s);
        assert_memory_equal(&l, &m, sizeof(l));
        iso_session_free(from);
        iso_session_free(s);
        iso_engine_close(plain);
        close_hidden(e);
        free(ids);
    }
}

/* A published transfer that was never audited is uploaded by the publication itself. */
static void publishing_uploads(void **state)
{
    (void)state;
    const struct iso_engine_options o = {.keep_expired = true, .staging = true};
    iso_engine *plain = tools_engine("llama", &o);
    iso_session *from = tools_session(plain);
    int32_t *ids = tools_ids(plain, N + 1, 7);
    tools_run(from, ids, N, 64, NULL);
    struct iso_device_vt vt;
    iso_engine *e = hidden_engine("llama", &vt, &o);
    iso_session *s = tools_session(e);
    iso_kv_staging *st = NULL;
    const uint32_t first[ISO_KV_CLASSES] = {0};
    tools_ok(iso_kv_stage(&st, s, N, first));
    fill(st, from);
    iso_kv_publish(st, ids);
    const struct iso_digest x = tools_chain(from), y = tools_chain(s);
    assert_memory_equal(&x, &y, sizeof(x));
    tools_ok(iso_session_decode(from, ids[N]));
    tools_ok(iso_session_decode(s, ids[N]));
    const struct iso_digest l = tools_logits(from), m = tools_logits(s);
    assert_memory_equal(&l, &m, sizeof(l));
    iso_session_free(from);
    iso_session_free(s);
    iso_engine_close(plain);
    close_hidden(e);
    free(ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rewinds_and_exports_are_the_same),
        cmocka_unit_test(staged_pages_reach_the_device),
        cmocka_unit_test(publishing_uploads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
