/* SPDX-License-Identifier: MIT
 * test_device_metal.c - the host's side of the Metal device over a seam that remembers: memory, which kernel
 * serves what, barriers, failures. What the kernels compute is tested by `make check-metal-emulated`. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "device/device_metal.h"
#include "format/types.h"
#include "kernels/attention/attention_metal.h"
#include "kernels/norm/norm_metal.h"
#include "kernels/quantize/quantize_metal.h"
#include "metal_host/fake_gpu.h"

static const char source[] = "text";

static struct iso_device *open_device(const char *isa)
{
    struct iso_device *dev = NULL;
    const struct iso_device_limits limits = {.max_rows = 64, .max_cols = 512, .n_heads = 4, .n_kv_heads = 2,
                                             .head_dim = 64, .max_pages = 64};
    uint64_t scratch = 0;
    assert_int_equal(iso_metal_open(&dev, isa, source, sizeof(source)), ISO_OK);
    assert_int_equal(dev->vt->reserve(dev, &limits, &scratch), ISO_OK);
    assert_true(scratch > 0);
    fake_forget();
    return dev;
}

static int set_up(void **state)
{
    (void)state;
    fake_reset();
    return 0;
}

static struct iso_span buffer(struct iso_device *dev, size_t len)
{
    uint32_t b = 0;
    assert_int_equal(dev->vt->alloc(dev, len, ISO_MEM_DEVICE, "test", &b), ISO_OK);
    return (struct iso_span){.buffer = b};
}

static struct iso_queue *begin(struct iso_device *dev)
{
    struct iso_queue *q = NULL;
    assert_int_equal(dev->vt->begin(dev, &q), ISO_OK);
    return q;
}

static uint32_t gpu_buffer(struct iso_device *dev, struct iso_span s)
{
    return ((struct iso_metal *)dev)->buffer[s.buffer].gpu;
}

/* Whether a barrier stands right before the i-th dispatch and names exactly one buffer. */
static bool barrier_on(size_t i, uint32_t gpu)
{
    const struct fake_call *c = fake_dispatch(i);
    if (c == NULL || c == g_fake.call) return false;
    return c[-1].function[0] == '\0' && c[-1].n == 1 && c[-1].named[0] == gpu;
}

static bool no_barrier(size_t i)
{
    const struct fake_call *c = fake_dispatch(i);
    return c != NULL && (c == g_fake.call || c[-1].function[0] != '\0');
}

/* --- opening ------------------------------------------------------------------------------------------ */

static void what_is_missing_is_named(void **state)
{
    (void)state;
    struct iso_device *dev = NULL;
    assert_int_equal(iso_metal_open(&dev, "avx2", source, sizeof(source)), ISO_E_ARG);
    assert_non_null(strstr(iso_err_message(), "avx2"));
    g_fake.refuse_function = "iso_matmul_tile8_Q5_K";
    assert_int_equal(iso_metal_open(&dev, NULL, source, sizeof(source)), ISO_E_GPU);
    assert_non_null(strstr(iso_err_message(), "iso_matmul_tile8_Q5_K"));
    g_fake.refuse_function = NULL;
    g_fake.width = 128;
    assert_int_equal(iso_metal_open(&dev, NULL, source, sizeof(source)), ISO_E_GPU);
    assert_non_null(strstr(iso_err_message(), "needs 256 threads"));
    assert_null(dev);
    assert_int_equal(g_fake.n_open_buffers, 0);
}

static void the_identity_is_of_text_and_level(void **state)
{
    (void)state;
    static const char other[] = "texT";
    struct iso_device *a = open_device(NULL), *b = open_device("serial"), *c = NULL;
    assert_int_equal(iso_metal_open(&c, "concurrent", other, sizeof(other)), ISO_OK);
    struct iso_digest da, db, dc;
    a->vt->identity(a, &da);
    b->vt->identity(b, &db);
    c->vt->identity(c, &dc);
    assert_memory_not_equal(&da, &db, sizeof(da));
    assert_memory_not_equal(&da, &dc, sizeof(da));
    assert_string_equal(a->vt->level(a), "concurrent");
    assert_string_equal(b->vt->level(b), "serial");
    a->vt->close(a);
    b->vt->close(b);
    c->vt->close(c);
    assert_int_equal(g_fake.n_open_buffers, 0);
}

/* --- memory ------------------------------------------------------------------------------------------- */

static void large_tensors_are_used_in_place(void **state)
{
    (void)state;
    struct iso_device *dev = open_device(NULL);
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), len = (2u << 20) + 100;
    uint8_t *file = mmap(NULL, len + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    assert_true(file != MAP_FAILED);
    uint32_t b = 0;
    assert_int_equal(dev->vt->map(dev, file + 96, len - 96, &b), ISO_OK);
    assert_ptr_equal(dev->vt->host(dev, (struct iso_span){.buffer = b}), file + 96);
    assert_ptr_equal(g_fake.wrapped, file);
    assert_int_equal(g_fake.wrapped_len, (len + page - 1) / page * page);
    struct iso_queue *q = begin(dev);
    const struct iso_span ids = buffer(dev, 4), x = buffer(dev, 1024);
    const struct iso_weight table = {.data = {.buffer = b, .offset = 32}, .type = ISO_TYPE_Q4_K, .n_rows = 4,
                                     .n_cols = 256, .row_bytes = 144};
    dev->vt->embed(q, &(struct iso_op_embed){.ids = ids, .table = table, .x = x, .n_rows = 1});
    assert_string_equal(fake_dispatch(0)->function, "iso_embed_Q4_K");
    assert_int_equal(fake_dispatch(0)->bind[1].offset, 128);
    dev->vt->end(q);
    /* Small tensors, and those at odd addresses, are copies. */
    assert_int_equal(dev->vt->map(dev, file + 3, len - 3, &b), ISO_OK);
    assert_ptr_not_equal(dev->vt->host(dev, (struct iso_span){.buffer = b}), file + 3);
    assert_int_equal(dev->vt->map(dev, file + 96, 100, &b), ISO_OK);
    assert_ptr_not_equal(dev->vt->host(dev, (struct iso_span){.buffer = b}), file + 96);
    assert_int_equal(g_fake.n_wraps, 1);
    dev->vt->close(dev);
    assert_int_equal(munmap(file, len + page), 0);
    assert_int_equal(g_fake.n_open_buffers, 0);
}

static void every_buffer_has_host_memory(void **state)
{
    (void)state;
    struct iso_device *dev = open_device(NULL);
    const struct iso_span a = buffer(dev, 64), b = buffer(dev, 64), far = {.buffer = a.buffer, .offset = 32};
    uint8_t *p = dev->vt->host(dev, a), *r = dev->vt->host(dev, b), got[8];
    assert_int_equal(dev->vt->upload(dev, far, "01234567", 8), ISO_OK);
    assert_memory_equal(p + 32, "01234567", 8);
    dev->vt->copy(dev, b, far, 8);
    assert_memory_equal(r, "01234567", 8);
    dev->vt->zero(dev, far, 2, 6, 2);
    assert_int_equal(dev->vt->download(dev, got, far, 8), ISO_OK);
    assert_memory_equal(got, "\0\0" "2345" "\0\0", 8);
    assert_null(dev->vt->host(dev, (struct iso_span){0}));
    uint32_t none = 0;
    assert_int_equal(dev->vt->alloc(dev, (size_t)2 << 30, ISO_MEM_DEVICE, "pages", &none), ISO_E_NOMEM);
    assert_non_null(strstr(iso_err_message(), "pages"));
    dev->vt->close(dev);
}

static void transfers_wait_for_what_was_recorded(void **state)
{
    (void)state;
    struct iso_device *dev = open_device(NULL);
    const struct iso_span x = buffer(dev, 1024);
    struct iso_queue *q = begin(dev);
    const struct iso_op_norm op = {.x = x, .y = x, .n = 256, .n_rows = 1};
    dev->vt->norm(q, &op);
    assert_int_equal(g_fake.n_commits, 0);
    assert_int_equal(dev->vt->upload(dev, x, "1234", 4), ISO_OK);
    assert_int_equal(g_fake.n_commits, 1);
    dev->vt->residual(q, &(struct iso_op_residual){.x = x, .y = x, .n = 256, .n_rows = 1});
    dev->vt->zero(dev, x, 4, 0, 1);
    assert_int_equal(g_fake.n_commits, 2);
    assert_int_equal(fake_n_dispatches(), 2);
    dev->vt->zero(dev, x, 4, 0, 1);
    assert_int_equal(dev->vt->sync(q), ISO_OK);
    assert_int_equal(g_fake.n_commits, 2);
    dev->vt->end(q);
    dev->vt->close(dev);
}

/* --- operations --------------------------------------------------------------------------------------- */

static void rows_choose_the_product(void **state)
{
    (void)state;
    static const struct { uint32_t rows; const char *name; uint32_t gx, gy; } want[] = {
        {1, "iso_matmul_vec_Q6_K", 7, 1}, {2, "iso_matmul_tile8_Q6_K", 2, 1}, {8, "iso_matmul_tile8_Q6_K", 2, 1},
        {9, "iso_matmul_tile32_Q6_K", 2, 1}, {33, "iso_matmul_tile32_Q6_K", 2, 2}};
    struct iso_device *dev = open_device(NULL);
    const struct iso_span codes = buffer(dev, dev->vt->codes_bytes(dev, 64, 512)), y = buffer(dev, 64 * 100 * 4);
    struct iso_weight w = {.data = buffer(dev, 100 * 420), .type = ISO_TYPE_Q6_K, .n_rows = 100, .n_cols = 512,
                           .row_bytes = 420};
    for (size_t i = 0; i < ISO_COUNT(want); i++) {
        struct iso_queue *q = begin(dev);
        fake_forget();
        dev->vt->matmul(q, &(struct iso_op_matmul){.codes = codes, .weight = {w}, .y = {y}, .n_weights = 1,
                                                   .n_rows = want[i].rows});
        assert_string_equal(fake_dispatch(0)->function, want[i].name);
        assert_int_equal(fake_dispatch(0)->groups[0], want[i].gx);
        assert_int_equal(fake_dispatch(0)->groups[1], want[i].gy);
        assert_int_equal(fake_dispatch(0)->bind[4].buffer, gpu_buffer(dev, w.data)); /* no bias: the weights again */
        dev->vt->end(q);
    }
    dev->vt->close(dev);
}

static void a_residual_joins_the_norm_of_its_rows(void **state)
{
    (void)state;
    struct iso_device *dev = open_device(NULL);
    const struct iso_span x = buffer(dev, 4096), y = buffer(dev, 4096), w = buffer(dev, 1024);
    const struct iso_span codes = buffer(dev, dev->vt->codes_bytes(dev, 4, 256));
    struct iso_queue *q = begin(dev);
    struct iso_op_residual add = {.x = x, .y = y, .weight = w, .has_norm = 1, .n = 256, .n_rows = 4};
    struct iso_op_norm_quantize norm = {.x = x, .weight = w, .codes = codes, .n = 256, .n_rows = 4};
    dev->vt->residual(q, &add);
    assert_int_equal(fake_n_dispatches(), 0);
    dev->vt->norm_quantize(q, &norm);
    assert_int_equal(fake_n_dispatches(), 1);
    const struct fake_call *c = fake_dispatch(0);
    assert_string_equal(c->function, "iso_norm_quantize");
    assert_int_equal(c->value[ISO_METAL_QUANTIZE_ADD] + c->value[ISO_METAL_QUANTIZE_ADD_NORM], 2);
    assert_int_equal(c->bind[ISO_METAL_NORM_QUANTIZE_Y].buffer, gpu_buffer(dev, y));
    /* Other rows: two dispatches, with a barrier between them. */
    fake_forget();
    norm.n_rows = 3;
    dev->vt->residual(q, &add);
    dev->vt->norm_quantize(q, &norm);
    assert_int_equal(fake_n_dispatches(), 2);
    assert_string_equal(fake_dispatch(0)->function, "iso_norm");
    assert_int_equal(fake_dispatch(0)->value[ISO_METAL_NORM_ADD], 1);
    assert_int_equal(fake_dispatch(1)->value[ISO_METAL_QUANTIZE_ADD], 0);
    /* Nothing behind it: sync runs it. */
    dev->vt->residual(q, &add);
    assert_int_equal(dev->vt->sync(q), ISO_OK);
    assert_int_equal(fake_n_dispatches(), 3);
    dev->vt->end(q);
    dev->vt->close(dev);
}

static void barriers_name_what_clashes(void **state)
{
    (void)state;
    struct iso_device *dev = open_device(NULL);
    const struct iso_span x = buffer(dev, 1024), y = buffer(dev, 1024), z = buffer(dev, 1024), w = buffer(dev, 1024);
    struct iso_queue *q = begin(dev);
    const struct iso_op_norm a = {.x = x, .y = y, .weight = w, .n = 256, .n_rows = 1};
    const struct iso_op_norm b = {.x = x, .y = z, .weight = w, .n = 256, .n_rows = 1};
    const struct iso_op_norm c = {.x = y, .y = x, .weight = w, .n = 256, .n_rows = 1};
    dev->vt->norm(q, &a);
    dev->vt->norm(q, &b); /* reads the same, writes elsewhere */
    assert_true(no_barrier(0) && no_barrier(1));
    dev->vt->norm(q, &c); /* reads what the first wrote, writes what both read */
    const struct fake_call *d = fake_dispatch(2);
    assert_int_equal(d[-1].n, 2);
    dev->vt->logits(q, &(struct iso_op_logits){.logits = z, .n = 256, .n_rows = 1});
    assert_true(barrier_on(3, gpu_buffer(dev, z)));
    assert_int_equal(dev->vt->sync(q), ISO_OK);
    fake_forget();
    dev->vt->norm(q, &c); /* a commit orders everything */
    assert_true(no_barrier(0));
    dev->vt->end(q);
    dev->vt->close(dev);
}

/* --- attention ---------------------------------------------------------------------------------------- */

struct cache {
    struct iso_span q, codes, scales, rows, index, out, pages, tables;
};

static struct cache new_cache(struct iso_device *dev)
{
    return (struct cache){.q = buffer(dev, 64 * 256 * 4), .codes = buffer(dev, 64 * 256 * 2),
                          .scales = buffer(dev, 64 * 16), .rows = buffer(dev, 64 * 16), .index = buffer(dev, 64 * 4),
                          .out = buffer(dev, 64 * 256 * 4), .pages = buffer(dev, 4096), .tables = buffer(dev, 256)};
}

static void describe(struct iso_device *dev, const struct cache *c, uint32_t n, uint32_t first, bool same_session)
{
    struct iso_row_desc *r = dev->vt->host(dev, c->rows);
    for (uint32_t i = 0; i < n; i++) r[i] = (struct iso_row_desc){same_session ? 0 : i, first + i, {0, 0}};
}

static void attend(struct iso_device *dev, struct iso_queue *q, const struct cache *c, uint32_t n)
{
    const struct iso_kv_place kv = {c->pages, c->tables, 64, 0};
    const struct iso_op_heads heads = {.q = c->q, .q_codes = c->codes, .q_scales = c->scales, .rows = c->rows, .kv = kv,
                                       .d = 64, .n_heads = 4, .n_kv_heads = 2, .n_rows = n};
    const struct iso_op_attention op = {.q_codes = c->codes, .q_scales = c->scales, .rows = c->rows, .out = c->out,
                                        .kv = kv, .c = 1, .d = 64, .n_heads = 4, .n_kv_heads = 2, .n_rows = n};
    fake_forget();
    dev->vt->heads(q, &heads);
    dev->vt->attention(q, &op);
}

static void rows_choose_the_form_of_attention(void **state)
{
    (void)state;
    struct iso_device *dev = open_device(NULL);
    const struct cache c = new_cache(dev);
    describe(dev, &c, 1, 100, true);
    struct iso_queue *q = begin(dev);
    attend(dev, q, &c, 1);
    assert_string_equal(fake_dispatch(1)->function, "iso_attention_split");
    assert_int_equal(fake_dispatch(1)->value[ISO_METAL_ATTENTION_WHOLE], 1);
    assert_int_equal(fake_n_dispatches(), 2);
    dev->vt->end(q);
    describe(dev, &c, 3, 1100, false);
    q = begin(dev);
    attend(dev, q, &c, 3);
    assert_int_equal(fake_dispatch(1)->groups[2], 3); /* segments of 512 positions */
    assert_int_equal(fake_dispatch(1)->value[ISO_METAL_ATTENTION_WHOLE], 0);
    assert_string_equal(fake_dispatch(2)->function, "iso_attention_merge");
    const struct iso_metal *m = (const struct iso_metal *)dev;
    assert_true(barrier_on(2, m->buffer[m->states].gpu));
    dev->vt->end(q);
    describe(dev, &c, 10, 1100, true);
    q = begin(dev);
    attend(dev, q, &c, 10);
    assert_string_equal(fake_dispatch(1)->function, "iso_attention_tiles");
    dev->vt->end(q);
    dev->vt->close(dev);
}

/* The GPU moves descriptors only when the step runs: the plan must be of the rows as they will be. */
static void the_plan_follows_a_gather(void **state)
{
    (void)state;
    struct iso_device *dev = open_device(NULL);
    const struct cache c = new_cache(dev);
    describe(dev, &c, 20, 500, true); /* rows 12.. lie in the second segment */
    uint32_t *index = dev->vt->host(dev, c.index);
    index[0] = 19;
    struct iso_queue *q = begin(dev);
    attend(dev, q, &c, 20);
    assert_string_equal(fake_dispatch(1)->function, "iso_attention_tiles");
    const struct iso_op_gather rows = {.x = c.rows, .index = c.index, .n = 4, .n_rows = 1};
    dev->vt->gather(q, &rows);
    /* Another buffer of rows of the same width is not taken for descriptors. */
    dev->vt->gather(q, &(struct iso_op_gather){.x = c.out, .index = c.index, .n = 4, .n_rows = 1});
    attend(dev, q, &c, 1);
    assert_string_equal(fake_dispatch(1)->function, "iso_attention_split");
    assert_int_equal(fake_dispatch(1)->groups[2], 2);
    dev->vt->end(q);
    /* Moved before any operation said that they are descriptors: the form that needs no plan. */
    q = begin(dev);
    dev->vt->gather(q, &rows);
    attend(dev, q, &c, 1);
    assert_string_equal(fake_dispatch(1)->function, "iso_attention_tiles");
    dev->vt->end(q);
    dev->vt->close(dev);
}

/* --- steps -------------------------------------------------------------------------------------------- */

static void a_step_makes_no_pipeline_and_no_memory(void **state)
{
    (void)state;
    struct iso_device *dev = open_device(NULL);
    const struct cache c = new_cache(dev);
    const struct iso_span norm = buffer(dev, 256), none = {0};
    const struct iso_kv_place kv = {c.pages, c.tables, 64, 0};
    describe(dev, &c, 2, 1100, false);
    const size_t pipelines = g_fake.n_pipelines, buffers = g_fake.n_open_buffers;
    for (int step = 0; step < 3; step++) {
        iso_alloc_guard_begin(); /* aborts on an allocation */
        struct iso_queue *q = begin(dev);
        attend(dev, q, &c, 2);
        dev->vt->quantize(q, &(struct iso_op_quantize){.x = c.out, .codes = c.q, .n = 256, .n_rows = 2});
        for (uint32_t form = 0; form < 2 * 3 * 3; form++) { /* norms or not; q, k and v, or both; kinds of pairs */
            const bool has_q = form / 2 % 3 != 1, has_kv = form / 2 % 3 != 0;
            dev->vt->heads(q, &(struct iso_op_heads){
                .q = has_q ? c.q : none, .k = has_kv ? c.q : none, .v = has_kv ? c.q : none, .q_codes = c.codes,
                .q_scales = c.scales, .q_norm = form % 2 ? norm : none, .k_norm = form % 2 ? norm : none,
                .rope = c.q, .rows = c.rows, .kv = kv, .d = 64, .n_heads = 4, .n_kv_heads = 2, .n_rot = 64,
                .pairs = form / 6, .n_rows = 2});
        }
        assert_int_equal(dev->vt->sync(q), ISO_OK);
        dev->vt->end(q);
        iso_alloc_guard_end();
        assert_int_equal(g_fake.n_commits, 1);
    }
    assert_int_equal(g_fake.n_pipelines, pipelines);
    assert_int_equal(g_fake.n_open_buffers, buffers);
    assert_int_equal(((struct iso_metal *)dev)->pipelines.n_late, 0);
    dev->vt->close(dev);
}

static void a_large_step_is_cut(void **state)
{
    (void)state;
    struct iso_device *dev = open_device(NULL);
    const struct iso_span codes = buffer(dev, dev->vt->codes_bytes(dev, 8, 256)), y = buffer(dev, 8 * 16 * 4);
    const struct iso_weight w = {.data = buffer(dev, 16 * 1024), .type = ISO_TYPE_F32, .n_rows = 16, .n_cols = 256,
                                 .row_bytes = 1024};
    ((struct iso_metal *)dev)->work_max = 3 * 8 * 16 * 256 - 1;
    struct iso_queue *q = begin(dev);
    for (size_t i = 1; i <= 7; i++) {
        dev->vt->matmul(q, &(struct iso_op_matmul){.codes = codes, .weight = {w}, .y = {y}, .n_weights = 1, .n_rows = 8});
        assert_int_equal(g_fake.n_commits, i / 3);
        assert_true(i % 3 == 1 ? no_barrier(i - 1) : barrier_on(i - 1, gpu_buffer(dev, y)));
    }
    assert_int_equal(dev->vt->sync(q), ISO_OK);
    assert_int_equal(g_fake.n_commits, 3);
    dev->vt->end(q);
    dev->vt->close(dev);
}

#ifndef ISO_METAL
static void builds_without_metal_say_so(void **state)
{
    (void)state;
    struct iso_device *dev = NULL;
    assert_int_equal(iso_device_metal_open(&dev, NULL), ISO_E_UNSUPPORTED);
    assert_null(dev);
    assert_non_null(strstr(iso_err_message(), "without Metal"));
}
#endif

static void a_value_outside_the_domain_is_named(void **state)
{
    (void)state;
    struct iso_device *dev = open_device(NULL);
    const struct iso_span x = buffer(dev, 1024), codes = buffer(dev, dev->vt->codes_bytes(dev, 1, 256));
    struct iso_queue *q = begin(dev);
    dev->vt->quantize(q, &(struct iso_op_quantize){.x = x, .codes = codes, .n = 256, .n_rows = 1, .layer = 7,
                                                   .tensor = ISO_TENSOR_FFN_ACT});
    g_fake.fault_place = ISO_METAL_QUANTIZE_FAULT;
    g_fake.fault = ISO_FAULT(7, ISO_TENSOR_FFN_ACT);
    assert_int_equal(dev->vt->sync(q), ISO_E_NUMERIC);
    assert_non_null(strstr(iso_err_message(), "layer 7, ffn_act"));
    dev->vt->end(q);
    q = begin(dev); /* and the next step is clean */
    assert_int_equal(dev->vt->sync(q), ISO_OK);
    dev->vt->end(q);
    dev->vt->close(dev);
}

static void a_lost_gpu_stays_lost(void **state)
{
    (void)state;
    struct iso_device *dev = open_device(NULL);
    const struct iso_span x = buffer(dev, 1024);
    struct iso_queue *q = begin(dev);
    dev->vt->norm(q, &(struct iso_op_norm){.x = x, .y = x, .n = 256, .n_rows = 1});
    g_fake.commit = ISO_E_TIMEOUT;
    g_fake.commit_text = "fake hangs";
    assert_int_equal(dev->vt->sync(q), ISO_E_TIMEOUT);
    dev->vt->end(q);
    g_fake.commit = ISO_OK;
    uint32_t b = 0;
    (void)iso_err_raise(ISO_E_ARG, "x", 1, "other");
    assert_int_equal(dev->vt->begin(dev, &q), ISO_E_TIMEOUT);
    assert_non_null(strstr(iso_err_message(), "fake hangs"));
    assert_int_equal(dev->vt->alloc(dev, 16, ISO_MEM_DEVICE, "test", &b), ISO_E_TIMEOUT);
    assert_int_equal(dev->vt->upload(dev, x, "1", 1), ISO_E_TIMEOUT);
    assert_int_equal(g_fake.n_commits, 1);
    dev->vt->close(dev);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup(f, set_up)
    const struct CMUnitTest tests[] = {
        T(what_is_missing_is_named), T(the_identity_is_of_text_and_level), T(large_tensors_are_used_in_place),
        T(every_buffer_has_host_memory), T(transfers_wait_for_what_was_recorded), T(rows_choose_the_product),
        T(a_residual_joins_the_norm_of_its_rows), T(barriers_name_what_clashes),
        T(rows_choose_the_form_of_attention), T(the_plan_follows_a_gather),
#ifndef ISO_METAL
        T(builds_without_metal_say_so),
#endif
        T(a_step_makes_no_pipeline_and_no_memory), T(a_large_step_is_cut), T(a_value_outside_the_domain_is_named), T(a_lost_gpu_stays_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
