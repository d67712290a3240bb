/* SPDX-License-Identifier: MIT
 * generate.h - one answer: prompt here or through a producer, then token by token. */
#ifndef ISO_CLI_GENERATE_H
#define ISO_CLI_GENERATE_H

#include "cli/options.h"
#include "cli/remote.h"
#include "engine/sampler.h"
#include "isobit.h"

struct iso_sampling_options {
    uint32_t n;          /* most tokens of an answer, 0: until the end or the context's */
    float temperature, top_p, min_p, repeat;
    uint32_t top_k;
    uint64_t seed;
};
#define ISO_SAMPLING_DEFAULTS                                                                      \
    {.temperature = 0.8f, .top_p = 0.95f, .min_p = 0.05f, .repeat = 1.0f, .top_k = 40}
#define ISO_SAMPLING_OPTIONS(s)                                                                    \
    {"n", 'n', ISO_OPT_U32, &(s).n, "N", "most tokens to answer with (default: until the end)", 0, 1e9}, \
    {"temp", 0, ISO_OPT_F32, &(s).temperature, "X", "temperature; 0 takes the likeliest token (default 0.8)", 0, 1048576}, \
    {"top-k", 0, ISO_OPT_U32, &(s).top_k, "N", "keep the N likeliest tokens; 0 keeps all (default 40)", 0, 1e9}, \
    {"top-p", 0, ISO_OPT_F32, &(s).top_p, "X", "keep the likeliest tokens up to this share (default 0.95)", 0x1p-24, 1}, \
    {"min-p", 0, ISO_OPT_F32, &(s).min_p, "X", "keep tokens of at least this share of the likeliest (default 0.05)", 0, 1}, \
    {"repeat", 0, ISO_OPT_F32, &(s).repeat, "X", "repetition penalty; 1 is off (default)", 0x1p-20, 1048576}, \
    {"seed", 0, ISO_OPT_U64, &(s).seed, "N", "seed; the same seed gives the same text on every machine (default 0)", 0, 0}

enum iso_finish { ISO_FINISH_END, ISO_FINISH_LENGTH, ISO_FINISH_CONTEXT, ISO_FINISH_STOPPED };

struct iso_answer {
    uint32_t n_prompt, n_cached, n_answer;
    double first_token_s; /* from the call to the first token */
    double prefill_s, decode_s;
    enum iso_finish finish;
    struct iso_digest first_logits;
    bool remote;          /* the prompt's pages came from a producer */
    bool fell_back;       /* a producer was asked and failed, see report */
    struct iso_consumer_report report;
};

/* Where the text goes: valid UTF-8 pieces. */
typedef void iso_text_fn(void *arg, const char *text, size_t len);

struct iso_generator {
    iso_engine *engine;
    iso_session *session;
    const struct iso_sampling_options *sampling;
    struct iso_remote *remote; /* NULL: no producer */
    iso_text_fn *text;
    void *arg;
};

/* Answers ids [n]: what the session already holds of them is kept, the rest is prefilled, then tokens
 * are sampled until an end token, the limit, the context's end or an interrupt.
 * Errors: ISO_E_CONTEXT when the prompt does not fit (both numbers, before any compute). */
enum iso_err iso_generate(struct iso_answer *out, const struct iso_generator *g, const int32_t *ids,
                          size_t n) ISO_NODISCARD;

/* The closing line: counts, rates, time to first token; on stderr. */
void iso_answer_print(const struct iso_answer *a);

/* Prints weights, KV pages, scratch and what the machine has; warns when they do not fit. */
enum iso_err iso_plan_print(const struct iso_engine_options *o) ISO_NODISCARD;

#endif
