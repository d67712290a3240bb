/* SPDX-License-Identifier: MIT
 * vocab.h - the token list of a model: texts, types, scores, and the way from a text to its id. */
#ifndef ISO_TOKENIZER_VOCAB_H
#define ISO_TOKENIZER_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "format/gguf.h"

#define ISO_VOCAB_MAX_TOKENS (1u << 22) /* the largest public vocabularies have 2^18 */
#define ISO_VOCAB_MAX_TOKEN_LEN 65535u  /* bytes; the longest known token has 256 */
#define ISO_VOCAB_MAX_TEXT (1u << 30)   /* bytes of all tokens; offsets are 32-bit */
#define ISO_VOCAB_MAX_PROBES 4096u      /* a hash chain that long is an attack, not a vocabulary */

/* Token types of GGUF (tokenizer.ggml.token_type). */
enum iso_token_type {
    ISO_TOKEN_UNDEFINED,
    ISO_TOKEN_NORMAL,
    ISO_TOKEN_UNKNOWN,
    ISO_TOKEN_CONTROL,
    ISO_TOKEN_USER_DEFINED,
    ISO_TOKEN_UNUSED,
    ISO_TOKEN_BYTE,
    ISO_TOKEN_TYPE_COUNT
};

struct iso_vocab_slot {
    uint32_t tag;     /* upper half of the hash */
    uint32_t id_plus; /* id + 1; 0 is an empty slot */
};

/* Immutable after iso_vocab_init(). */
struct iso_vocab {
    uint32_t n;
    uint32_t max_len;            /* bytes of the longest token */
    uint8_t *text;               /* all token texts, one behind the other */
    uint32_t *start;             /* [n + 1] offsets into text */
    uint8_t *type;               /* [n] enum iso_token_type */
    float *score;                /* [n], or NULL if the file has none */
    struct iso_vocab_slot *slot; /* [mask + 1], linear probing, at most two thirds full */
    uint32_t mask;
};

/* Copies tokens, types and scores of g. Free with iso_vocab_deinit(), also after a failure.
 * Errors: ISO_E_FORMAT naming the key (wrong type, count, value), ISO_E_LIMIT, ISO_E_NOMEM. */
enum iso_err iso_vocab_init(struct iso_vocab *v, const struct iso_gguf *g) ISO_NODISCARD;
void iso_vocab_deinit(struct iso_vocab *v);

/* Id of the token with this text, the lowest of several, or -1. Empty texts are never found. */
int32_t iso_vocab_find(const struct iso_vocab *v, const void *text, size_t len);

static inline const uint8_t *iso_vocab_text(const struct iso_vocab *v, uint32_t id, size_t *len)
{
    *len = v->start[id + 1] - v->start[id];
    return v->text + v->start[id];
}

/* May merging make this token from plain text? Control, unknown and byte tokens may not. */
static inline bool iso_vocab_mergeable(const struct iso_vocab *v, uint32_t id)
{
    const uint8_t type = v->type[id];
    return type != ISO_TOKEN_CONTROL && type != ISO_TOKEN_UNKNOWN && type != ISO_TOKEN_BYTE;
}

/* Mixes 64 bits so that all of them depend on all (the finaliser of MurmurHash3, public domain). */
static inline uint64_t iso_vocab_mix(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdULL;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ULL;
    return x ^ x >> 33;
}

/* Smallest power of two with n at most two thirds of it; at least 16. */
static inline uint32_t iso_vocab_table_size(uint32_t n)
{
    uint32_t size = 16;
    while ((uint64_t)size * 2 < (uint64_t)n * 3) size *= 2;
    return size;
}

#endif
