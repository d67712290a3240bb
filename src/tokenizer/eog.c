/* SPDX-License-Identifier: MIT
 * eog.c - which tokens end a generation, and which look like control tokens though the file does
 * not say so.
 *
 * Files name one end-of-sequence token; chat models end their turns with another one, which only
 * its text gives away. The texts are those that llama.cpp knows.
 */
#include <string.h>

#include "base/mem.h"
#include "tokenizer/tokenizer_impl.h"

/* Ends of a turn, in the order in which they are taken for eot. */
static const char *const TURN_ENDS[] = {
    "<|eot_id|>",
    "<|im_end|>",
    "<end_of_turn>",
    "<|end|>",
    "<|eot|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<end_of_utterance>",
    "<\357\275\234end\342\226\201of\342\226\201sentence\357\275\234>", /* DeepSeek */
};

/* Others that end a generation. */
static const char *const OTHER_ENDS[] = {
    "<|eom_id|>", "<|eom|>", "</s>", "<eos>", "[EOS]", "<|return|>", "<|call|>",
};

/* Not ends, but control tokens of fill-in-the-middle training. */
static const char *const CONTROL_LIKE[] = {
    "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<PRE>",          "<|fim_suffix|>",
    "<fim-suffix>",   "<fim_suffix>", "<SUF>",        "<|fim_middle|>", "<fim-middle>",
    "<fim_middle>",   "<MID>",        "<|fim_pad|>",  "<fim-pad>",      "<fim_pad>",
    "<PAD>",          "[PAD]",        "<|fim_repo|>", "<|repo_name|>",  "<fim-repo>",
    "<REPO>",         "<reponame>",   "<|file_sep|>",
};

static int32_t find_control(const struct iso_vocab *v, const char *text)
{
    const int32_t id = iso_vocab_find(v, text, strlen(text));
    return id >= 0 && v->type[id] == ISO_TOKEN_CONTROL ? id : -1;
}

static bool is_listed(const char *const *list, size_t n, const uint8_t *text, size_t len)
{
    for (size_t i = 0; i < n; i++) {
        if (strlen(list[i]) == len && memcmp(list[i], text, len) == 0) return true;
    }
    return false;
}

bool iso_tokenizer_looks_control(const struct iso_vocab *v, uint32_t id)
{
    size_t len = 0;
    const uint8_t *text = iso_vocab_text(v, id, &len);
    return is_listed(TURN_ENDS, ISO_COUNT(TURN_ENDS), text, len) ||
           is_listed(OTHER_ENDS, ISO_COUNT(OTHER_ENDS), text, len) ||
           is_listed(CONTROL_LIKE, ISO_COUNT(CONTROL_LIKE), text, len);
}

static void mark(struct iso_tokenizer *t, int32_t id)
{
    if (id >= 0) t->eog[id] = 1;
}

enum iso_err iso_tokenizer_find_eog(struct iso_tokenizer *t)
{
    void *p = NULL;
    ISO_TRY(iso_mem_alloc(&p, t->vocab.n, 1, "end-of-generation flags"));
    t->eog = p;
    for (size_t i = 0; i < ISO_COUNT(TURN_ENDS); i++) {
        const int32_t id = find_control(&t->vocab, TURN_ENDS[i]);
        mark(t, id);
        if (t->eot < 0) t->eot = id;
    }
    for (size_t i = 0; i < ISO_COUNT(OTHER_ENDS); i++)
        mark(t, find_control(&t->vocab, OTHER_ENDS[i]));
    if (t->eom < 0) t->eom = find_control(&t->vocab, "<|eom_id|>");
    /* The harmony format ends each message with <|end|> and the turn with one of these two. */
    const int32_t end = find_control(&t->vocab, "<|end|>");
    if (end >= 0 && end != t->eos && find_control(&t->vocab, "<|return|>") >= 0 &&
        find_control(&t->vocab, "<|call|>") >= 0) {
        t->eog[end] = 0;
        if (t->eot == end) t->eot = -1;
    }
    mark(t, t->eos);
    mark(t, t->eot);
    mark(t, t->eom);
    return ISO_OK;
}
