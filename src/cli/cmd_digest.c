/* SPDX-License-Identifier: MIT
 * cmd_digest.c - `isobit digest`: the digests of a run, line by line as in tests/golden. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/diff.h"
#include "cli/ids.h"
#include "cli/options.h"
#include "cli/remote.h"
#include "engine/engine.h"
#include "isobit_kv.h"

#define MAX_COPIES 64

struct digest {
    struct iso_model_options model;
    uint32_t n, chunk, copies;
    const char *boundaries;
    bool visible;
    struct iso_remote_options remote;

    iso_engine *engine;
    struct iso_remote *producer;
    iso_session *session[MAX_COPIES];
    struct iso_ids ids;
    enum iso_err tap_err;
};

/* --- boundaries: each tensor is a file, appended chunk by chunk --------------------------------- */

/* Little-endian on any machine, as the golden data is. */
static bool write_floats(FILE *f, const float *x, size_t n)
{
    uint8_t part[1024 * sizeof(*x)];
    for (size_t i = 0; i < n; i += 1024) {
        const size_t k = ISO_MIN(n - i, (size_t)1024);
        iso_copy_le(part, x + i, k, sizeof(*x));
        if (fwrite(part, sizeof(*x), k, f) != k) return false;
    }
    return true;
}

static void tap(void *arg, uint32_t layer, const char *name, const float *data, size_t n_rows,
                size_t width)
{
    struct digest *d = arg;
    char path[1200], file[48];
    const struct iso_diff_tensor t = {.layer = layer, .name = name};
    (void)snprintf(path, sizeof(path), "%s/%s.f32", d->boundaries, iso_diff_tensor_name(file, &t));
    FILE *f = fopen(path, "abe");
    bool ok = f != NULL && write_floats(f, data, n_rows * width);
    if (f != NULL) ok = fclose(f) == 0 && ok;
    if (!ok) d->tap_err = iso_err_raise(ISO_E_IO, __FILE__, __LINE__, "%s: %s", path, strerror(errno));
}

/* Pages of the first layers, as the golden boundaries have them. */
static enum iso_err write_pages(const struct digest *d)
{
    const struct iso_kv_layout *y = iso_engine_kv_layout(d->engine);
    const iso_session *s = d->session[0];
    const uint32_t n_pages = (iso_session_position(s) + 63) / 64;
    for (uint32_t l = 0; l < ISO_MIN(y->n_layers, (uint32_t)ISO_DIFF_DUMP_LAYERS); l++) {
        for (uint32_t h = 0; h < y->n_kv_heads; h++) {
            for (uint32_t p = 0; p < n_pages; p++) {
                char path[1200];
                (void)snprintf(path, sizeof(path), "%s/%02u.page.h%u.p%u.bin", d->boundaries, l, h, p);
                FILE *f = fopen(path, "wbe");
                bool ok = f && fwrite(iso_session_page(s, l, h, p), y->page_bytes, 1, f) == 1;
                if (f) ok = fclose(f) == 0 && ok;
                if (!ok) ISO_FAIL(ISO_E_IO, "%s: %s", path, strerror(errno));
            }
        }
    }
    return ISO_OK;
}

/* --- the run ------------------------------------------------------------------------------------ */

/* -log p(id) from logits, in f64. */
static double surprise(const float *l, size_t n, int32_t id)
{
    double max = (double)l[0], sum = 0;
    for (size_t i = 1; i < n; i++) max = fmax(max, (double)l[i]);
    for (size_t i = 0; i < n; i++) sum += exp((double)l[i] - max);
    return max + log(sum) - (double)l[id];
}

struct totals {
    struct iso_hasher *chain;
    double nll;
};

static void print_line(const struct digest *d, struct totals *t, size_t position, const float *l)
{
    const size_t n_vocab = iso_engine_info(d->engine)->n_vocab;
    size_t best = 0;
    for (size_t i = 1; i < n_vocab; i++) {
        if (l[i] > l[best]) best = i;
    }
    struct iso_digest sum;
    iso_logits_digest(&sum, l, n_vocab);
    char hex[ISO_DIGEST_HEX];
    iso_digest_hex(hex, &sum);
    (void)printf("%zu %d %zu %a %s\n", position, d->ids.id[position], best, (double)l[best], hex);
    if (t == NULL) return;
    iso_hasher_update(t->chain, sum.bytes, sizeof(sum.bytes));
    if (position + 1 < d->ids.n) t->nll += surprise(l, n_vocab, d->ids.id[position + 1]);
}

/* One step: rows at .. at+n of every copy. All copies must agree with the first, bit for bit. */
static enum iso_err run_chunk(const struct digest *d, struct totals *t, size_t at, size_t n)
{
    static struct iso_row rows[ISO_MAX_BATCH];
    const size_t n_vocab = iso_engine_info(d->engine)->n_vocab;
    for (size_t c = 0; c < d->copies; c++) {
        for (size_t i = 0; i < n; i++) {
            rows[c * n + i] = (struct iso_row){d->session[c], d->ids.id[at + i], ISO_OUTPUT_LOGITS};
        }
    }
    ISO_TRY(iso_step(d->engine, rows, n * d->copies, NULL));
    ISO_TRY(d->tap_err);
    for (size_t i = 0; i < n; i++) {
        const float *l = iso_step_logits(d->engine, i);
        for (size_t c = 1; c < d->copies; c++) {
            if (memcmp(l, iso_step_logits(d->engine, c * n + i), n_vocab * sizeof(*l)) != 0) {
                ISO_FAIL(ISO_E_SELF_CHECK, "copy %zu differs from the first at position %zu", c, at + i);
            }
        }
        print_line(d, t, at + i, l);
    }
    return ISO_OK;
}

static void print_digest(const char *name, const struct iso_digest *d)
{
    char hex[ISO_DIGEST_HEX];
    iso_digest_hex(hex, d);
    (void)printf("%s %s\n", name, hex);
}

static enum iso_err run_all(struct digest *d)
{
    struct totals t = {.chain = iso_hasher_new()};
    enum iso_err err = ISO_OK;
    for (size_t at = 0; at < d->ids.n && err == ISO_OK; at += d->chunk) {
        err = run_chunk(d, &t, at, ISO_MIN((size_t)d->chunk, d->ids.n - at));
    }
    struct iso_digest sum;
    iso_hasher_final(t.chain, &sum);
    iso_hasher_free(t.chain);
    ISO_TRY(err);
    print_digest("logits-chain", &sum);
    iso_session_kv_chain(&sum, d->session[0]);
    print_digest("kv-chain", &sum);
    for (size_t c = 1; c < d->copies; c++) {
        struct iso_digest other;
        iso_session_kv_chain(&other, d->session[c]);
        if (memcmp(&other, &sum, sizeof(sum)) != 0) {
            ISO_FAIL(ISO_E_SELF_CHECK, "the pages of copy %zu differ from the first's", c);
        }
    }
    if (d->ids.n > 1) (void)printf("ppl %.6f\n", exp(t.nll / (double)(d->ids.n - 1)));
    return d->boundaries ? write_pages(d) : ISO_OK;
}

/* The last prompt position and what a hand-off shows: computed here or brought by a producer. */
static enum iso_err run_visible(struct digest *d)
{
    iso_session *s = d->session[0];
    const size_t n = d->ids.n;
    struct iso_digest sum;
    if (d->producer) {
        ISO_TRY(iso_remote_fetch(&sum, d->producer, s, d->ids.id, n, d->remote.audit > 0));
    } else {
        ISO_TRY(iso_remote_local(&sum, s, d->ids.id, n, d->remote.audit > 0));
    }
    ISO_TRY(iso_session_decode(s, d->ids.id[n - 1]));
    print_line(d, NULL, n - 1, iso_session_logits(s));
    print_digest("kv-visible", &sum);
    return ISO_OK;
}

static enum iso_err open_engine(struct digest *d, const char *path)
{
    if (d->chunk == 0 || d->chunk > d->ids.n) d->chunk = (uint32_t)ISO_MIN(d->ids.n, (size_t)ISO_MAX_BATCH);
    if (d->copies > MAX_COPIES || d->chunk * d->copies > ISO_MAX_BATCH) {
        ISO_FAIL(ISO_E_ARG, "--chunk %u times --batch %u: at most %d rows", d->chunk, d->copies,
                 ISO_MAX_BATCH);
    }
    const struct iso_engine_options o = {
        .model_path = path,
        .device = d->model.device, .isa = d->model.isa,
        .n_threads = d->model.threads,
        .n_ctx = d->model.ctx ? d->model.ctx : (uint32_t)d->ids.n,
        .n_sessions = d->copies,
        .n_batch = d->chunk * d->copies,
        .n_outputs = d->chunk * d->copies,
        .keep_expired = true,
        .no_tokenizer = d->remote.producer == NULL, /* a producer compares its digest */
        .tokenizer_optional = true,
    };
    ISO_TRY(iso_engine_open(&d->engine, &o));
    for (uint32_t c = 0; c < d->copies; c++) ISO_TRY(iso_session_new(&d->session[c], d->engine, 0));
    if (d->boundaries == NULL) return ISO_OK;
    if (mkdir(d->boundaries, 0777) != 0 && errno != EEXIST) {
        ISO_FAIL(ISO_E_IO, "%s: %s", d->boundaries, strerror(errno));
    }
    return iso_engine_set_tap(d->engine, tap, d);
}

static enum iso_err digest_main(struct digest *d, const char *model, const char *ids)
{
    ISO_TRY(iso_ids_read(&d->ids, ids));
    if (d->n > 0 && d->n < d->ids.n) d->ids.n = d->n;
    if (d->boundaries && d->copies > 1) ISO_FAIL(ISO_E_ARG, "--boundaries needs --batch 1");
    ISO_TRY(iso_remote_open(&d->producer, &d->remote));
    ISO_TRY(open_engine(d, model));
    return d->visible || d->remote.producer ? run_visible(d) : run_all(d);
}

int iso_cmd_digest(int argc, char **argv)
{
    struct digest d = {.copies = 1};
    const struct iso_opt options[] = {
        {"n", 'n', ISO_OPT_U32, &d.n, "N", "only the first N ids", 1, 1e9},
        {"chunk", 0, ISO_OPT_U32, &d.chunk, "N", "positions per step (default: all)", 1, ISO_MAX_BATCH},
        {"batch", 0, ISO_OPT_U32, &d.copies, "N", "run N copies in the same steps; all must agree", 1,
         MAX_COPIES},
        {"boundaries", 0, ISO_OPT_STRING, &d.boundaries, "DIR", "write every boundary tensor to DIR", 0, 0},
        {"visible", 0, ISO_OPT_FLAG, &d.visible, NULL, "only the last position and the pages of a hand-off", 0, 0},
        ISO_REMOTE_OPTIONS(d.remote),
        ISO_MODEL_OPTIONS(d.model),
        {0},
    };
    const struct iso_usage usage = {
        "isobit digest MODEL IDS [options]",
        "Runs the ids of a file (white space between them, - for stdin) and prints per position: position, "
        "id,\nbest id, its logit, SHA-256 of the logits; then the chains over logits and KV pages.",
        options, NULL};
    const char *args[2] = {0};
    bool help = false;
    enum iso_err err = iso_options_parse(args, 2, 2, &help, argc, argv, &usage);
    if (err == ISO_OK && help) return 0;
    if (err == ISO_OK) err = digest_main(&d, args[0], args[1]);
    iso_remote_close(d.producer);
    for (uint32_t c = 0; c < MAX_COPIES; c++) iso_session_free(d.session[c]);
    iso_engine_close(d.engine);
    iso_ids_free(&d.ids);
    return err == ISO_OK ? 0 : iso_cli_fail(err);
}
