/* SPDX-License-Identifier: MIT
 * generate.c - prompt, first token, loop, closing line. */
#include "cli/generate.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/os.h"
#include "cli/interrupt.h"
#include "tokenizer/utf8_stream.h"

static double since(int64_t t)
{
    return (double)(iso_clock_ns() - t) / (double)ISO_NS_PER_S;
}

static enum iso_err prefill_here(struct iso_answer *out, const struct iso_generator *g,
                                 const int32_t *ids, size_t n, const struct iso_progress *progress)
{
    /* At least the last token of the prompt is computed again. */
    out->n_cached = iso_session_rewind(g->session, iso_session_common(g->session, ids, n - 1));
    return iso_session_prefill(g->session, ids + out->n_cached, n - out->n_cached, progress);
}

/* Through the producer, or here when the policy says so or the hand-off failed; says which. */
static enum iso_err prefill_policy(struct iso_answer *out, const struct iso_generator *g,
                                   const int32_t *ids, size_t n, const struct iso_progress *progress)
{
    struct iso_prefill_outcome o;
    struct iso_consumer *c = g->remote->consumer;
    ISO_TRY(iso_consumer_prefill(c, &o, g->session, ids, n, progress));
    out->remote = o.remote;
    out->fell_back = o.fell_back;
    out->n_cached = o.reused;
    if (o.fell_back) {
        (void)fprintf(stderr, "[hand-off failed: %s; computed here]\n", iso_reason_name(o.reason));
    } else if (!o.remote) {
        (void)fprintf(stderr, "[prefill here: %s]\n", o.decision.why);
    }
    return ISO_OK;
}

static enum iso_err prefill(struct iso_answer *out, const struct iso_generator *g,
                            const int32_t *ids, size_t n)
{
    struct iso_bar bar;
    const struct iso_progress p = iso_bar_start(&bar, "prefill");
    const enum iso_err err =
        g->remote ? prefill_policy(out, g, ids, n, &p) : prefill_here(out, g, ids, n, &p);
    iso_bar_end(&bar);
    ISO_TRY(err);
    iso_logits_digest(&out->first_logits, iso_session_logits(g->session),
                      iso_engine_info(g->engine)->n_vocab);
    return ISO_OK;
}

static enum iso_err emit(const struct iso_generator *g, struct iso_utf8_stream *stream,
                         struct iso_buf *piece, int32_t id)
{
    char out[ISO_UTF8_STREAM_ROOM(1024)];
    iso_buf_clear(piece);
    ISO_TRY(iso_engine_piece(piece, g->engine, id, false));
    for (size_t at = 0; at < piece->len; at += 1024) {
        const size_t len = ISO_MIN(piece->len - at, (size_t)1024);
        const size_t m = iso_utf8_stream_push(stream, out, (const char *)piece->data + at, len);
        if (m > 0) g->text(g->arg, out, m);
    }
    return ISO_OK;
}

static enum iso_err loop(struct iso_answer *out, const struct iso_generator *g,
                         struct iso_sampler *sampler, struct iso_buf *piece, int64_t start)
{
    struct iso_utf8_stream stream;
    iso_utf8_stream_init(&stream);
    const uint32_t limit = g->sampling->n ? g->sampling->n : UINT32_MAX;
    int64_t first_at = 0;
    out->finish = ISO_FINISH_LENGTH;
    while (out->n_answer < limit) {
        if (iso_interrupted()) {
            out->finish = ISO_FINISH_STOPPED;
            break;
        }
        const int32_t id = iso_sampler_pick(sampler, iso_session_logits(g->session),
                                            iso_session_position(g->session));
        if (out->n_answer++ == 0) {
            out->first_token_s = since(start);
            first_at = iso_clock_ns();
        }
        if (iso_engine_is_end(g->engine, id)) {
            out->finish = ISO_FINISH_END;
            break;
        }
        iso_sampler_seen(sampler, id);
        ISO_TRY(emit(g, &stream, piece, id));
        if (out->n_answer == limit) break;
        if (iso_session_position(g->session) == iso_session_n_ctx(g->session)) {
            out->finish = ISO_FINISH_CONTEXT;
            break;
        }
        ISO_TRY(iso_session_decode(g->session, id));
    }
    char rest[ISO_UTF8_FLUSH_ROOM];
    const size_t m = iso_utf8_stream_flush(&stream, rest);
    if (m > 0) g->text(g->arg, rest, m);
    out->decode_s = first_at ? since(first_at) : 0;
    return ISO_OK;
}

static enum iso_err new_sampler(struct iso_sampler **out, const struct iso_generator *g,
                                const int32_t *ids, size_t n)
{
    const struct iso_sampling_options *o = g->sampling;
    struct iso_sampler_params p = ISO_SAMPLER_PLAIN;
    p.temperature = o->temperature;
    p.top_k = o->top_k;
    p.top_p = o->top_p;
    p.min_p = o->min_p;
    p.repetition = o->repeat;
    p.seed = o->seed;
    ISO_TRY(iso_sampler_new(out, &p, iso_engine_info(g->engine)->n_vocab));
    for (size_t i = 0; i < n; i++) iso_sampler_seen(*out, ids[i]);
    return ISO_OK;
}

enum iso_err iso_generate(struct iso_answer *out, const struct iso_generator *g, const int32_t *ids,
                          size_t n)
{
    *out = (struct iso_answer){.n_prompt = (uint32_t)n};
    if (n == 0) ISO_FAIL(ISO_E_ARG, "the prompt is empty");
    const uint32_t n_ctx = iso_session_n_ctx(g->session);
    if (n > n_ctx) {
        ISO_FAIL(ISO_E_CONTEXT, "the prompt has %zu tokens, the context %u (see --ctx)", n, n_ctx);
    }
    struct iso_sampler *sampler = NULL;
    ISO_TRY(new_sampler(&sampler, g, ids, n));
    struct iso_buf piece;
    iso_buf_init(&piece, 1 << 20);
    const int64_t start = iso_clock_ns();
    enum iso_err err = prefill(out, g, ids, n);
    out->prefill_s = since(start);
    /* The next turn may start at this prompt's end (a template that drops thoughts) or at the answer's. */
    if (err == ISO_OK && !out->remote) iso_session_checkpoint(g->session);
    if (err == ISO_OK) err = loop(out, g, sampler, &piece, start);
    if (err == ISO_OK) iso_session_checkpoint(g->session);
    if (err == ISO_OK && (out->remote || out->fell_back)) {
        /* Behind the answer: it waits for the commit row. */
        iso_handoff_note_first_logits(g->remote->consumer, &out->first_logits);
        out->report = *iso_consumer_last_report(g->remote->consumer);
    }
    iso_buf_deinit(&piece);
    iso_sampler_free(sampler);
    return err;
}

void iso_answer_print(const struct iso_answer *a)
{
    static const char *const finish[] = {"", ", stopped at -n", ", context is full", ", stopped"};
    (void)fflush(stdout); /* the answer stands before this line also in a file */
    const uint32_t n_new = a->n_prompt - a->n_cached;
    const uint32_t n_more = a->n_answer > 1 ? a->n_answer - 1 : 0;
    (void)fprintf(stderr, "[prompt %u tokens", a->n_prompt);
    if (a->remote) (void)fprintf(stderr, " by the producer");
    else if (a->n_cached) (void)fprintf(stderr, ", %u kept", a->n_cached);
    const double rate = a->prefill_s > 0 ? (a->remote ? a->n_prompt : n_new) / a->prefill_s : 0;
    (void)fprintf(stderr, ", %.1f tok/s; answer %u tokens, %.1f tok/s; first token after %.3f s%s]\n",
                  rate, a->n_answer, a->decode_s > 0 ? n_more / a->decode_s : 0.0, a->first_token_s,
                  finish[a->finish]);
}

enum iso_err iso_plan_print(const struct iso_engine_options *o)
{
    struct iso_engine_info i;
    ISO_TRY(iso_engine_plan(&i, o));
    const uint64_t have = iso_os_memory_available();
    char w[16], k[16], s[16], h[16];
    (void)fprintf(stderr, "plan: %s, weights %s mapped, KV pages %s for %u tokens, working memory %s; %s free\n",
                  i.architecture, iso_cli_bytes(w, i.weight_bytes), iso_cli_bytes(k, i.kv_bytes),
                  i.n_ctx, iso_cli_bytes(s, i.scratch_bytes), have ? iso_cli_bytes(h, have) : "unknown");
    const uint64_t need = i.kv_bytes + i.scratch_bytes;
    if (have && need > have) {
        ISO_FAIL(ISO_E_NOMEM, "KV pages and working memory need %s, %s are free: choose a smaller --ctx",
                 iso_cli_bytes(w, need), iso_cli_bytes(h, have));
    }
    if (have && need + i.weight_bytes > have) {
        (void)fprintf(stderr, "plan: the weights do not fit beside that and will be read from disk again and again\n");
    }
    return ISO_OK;
}
