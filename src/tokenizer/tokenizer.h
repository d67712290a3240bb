/* SPDX-License-Identifier: MIT
 * tokenizer.h - text to token ids and back, from the tokenizer that a GGUF file carries.
 *
 * Two kinds: SentencePiece style merging by score (tokenizer.ggml.model "llama") and byte-level BPE
 * ("gpt2") with the pre-tokenizers smollm, gpt-2, llama3, qwen2 and gpt-4o. Any other model or
 * pre-tokenizer is refused by name: a wrong split gives plausible text and a worse model.
 *
 * Differences from llama.cpp, on purpose: content never becomes a control token through merges; a
 * byte that the vocabulary cannot spell is an error instead of being dropped; text that is not
 * UTF-8 is refused instead of losing bytes; a doubled BOS is reduced to one; "</s>" and its like
 * are control tokens only where the file says so; gpt-4o splits by Unicode case, as its authors do.
 */
#ifndef ISO_TOKENIZER_TOKENIZER_H
#define ISO_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/digest.h"
#include "base/err.h"
#include "format/gguf.h"

#define ISO_TOKENIZE_MAX_TEXT (256u << 20) /* bytes of one text; keeps positions within 32 bits */

struct iso_tokenizer; /* immutable after new; any thread */

/* Reads and checks the tokenizer of a model file. g is borrowed during the call only.
 *
 * Owner:  *out is owned by the caller, free with iso_tokenizer_free().
 * Errors: ISO_E_UNSUPPORTED no tokenizer in the file, or a kind or pre-tokenizer by name;
 *         ISO_E_FORMAT an array of the wrong type or length, an id outside the vocabulary, a
 *         malformed merge; ISO_E_LIMIT; ISO_E_NOMEM. */
enum iso_err iso_tokenizer_new(struct iso_tokenizer **out, const struct iso_gguf *g) ISO_NODISCARD;
void iso_tokenizer_free(struct iso_tokenizer *t);

/* Does the file say that it has no tokenizer, as those made for speed runs? Then iso_tokenizer_new() fails. */
bool iso_tokenizer_is_none(const struct iso_gguf *g);

enum {
    ISO_TOKENIZE_BOS = 1, /* begin with BOS if the file asks for it; never two of them */
    ISO_TOKENIZE_SPECIAL =
        2, /* text of control tokens becomes these tokens; not for user content */
};

/* Appends the ids of text [len] to ids as int32_t in host byte order.
 *
 * User-defined tokens are matched whatever the flags say, control tokens only with
 * ISO_TOKENIZE_SPECIAL, longest first. With ISO_TOKENIZE_BOS and a text that itself begins with
 * BOS one BOS is kept and a warning is logged.
 *
 * Needs:  text is UTF-8 (U+0000 allowed).
 * Thread: any; allocates scratch memory, so not between two tokens.
 * Errors: ISO_E_FORMAT not UTF-8 (offset named) or a byte without a token; ISO_E_LIMIT ids->max or
 *         ISO_TOKENIZE_MAX_TEXT; ISO_E_NOMEM. On failure ids is as before. */
enum iso_err iso_tokenize(struct iso_buf *ids,
                          const struct iso_tokenizer *t,
                          const char *text,
                          size_t len,
                          unsigned flags) ISO_NODISCARD;

/* Appends the bytes that a token stands for. They may be part of a UTF-8 character. Control and
 * unknown tokens give their text with special, else nothing.
 * Errors: ISO_E_ARG id outside the vocabulary; ISO_E_LIMIT (out is as before). */
enum iso_err iso_tokenizer_piece(struct iso_buf *out,
                                 const struct iso_tokenizer *t,
                                 int32_t id,
                                 bool special) ISO_NODISCARD;

/* The text of a token as it is in the vocabulary, not NUL-terminated; NULL for an id outside it. */
const char *iso_tokenizer_token_text(const struct iso_tokenizer *t, int32_t id, size_t *len);

/* Id of the token with exactly this vocabulary text (the lowest of several), or -1. */
int32_t iso_tokenizer_find(const struct iso_tokenizer *t, const char *text, size_t len);

uint32_t iso_tokenizer_n_vocab(const struct iso_tokenizer *t);

/* Ids from the file, -1 where there is none. eot falls back to a known end-of-turn control token.
 */
int32_t iso_tokenizer_bos(const struct iso_tokenizer *t);
int32_t iso_tokenizer_eos(const struct iso_tokenizer *t);
int32_t iso_tokenizer_eot(const struct iso_tokenizer *t);
int32_t iso_tokenizer_eom(const struct iso_tokenizer *t);
int32_t iso_tokenizer_unk(const struct iso_tokenizer *t);
int32_t iso_tokenizer_pad(const struct iso_tokenizer *t);

/* Does the file ask for a BOS before a raw text? */
bool iso_tokenizer_adds_bos(const struct iso_tokenizer *t);

/* Does the tokenizer put a space before a text, so that the first piece begins with one? */
bool iso_tokenizer_adds_space(const struct iso_tokenizer *t);

/* Does this token end a generation: eos, eot, eom and control tokens known to end a turn. */
bool iso_tokenizer_is_eog(const struct iso_tokenizer *t, int32_t id);

/* Is it a control token of the file (never to be made from user content)? */
bool iso_tokenizer_is_control(const struct iso_tokenizer *t, int32_t id);

/* SHA-256 of all that decides which ids a text becomes, in this order; integers little-endian:
 *
 *   "isobit-tokenizer-1" NUL
 *   u32 length and bytes of the model ("llama" or "gpt2")
 *   u32 length and bytes of the canonical pre-tokenizer name ("none" for llama)
 *   u32 n_vocab; u32 length of each token; bytes of all tokens; u8 GGUF type of each token
 *   llama: u32 f32 bits of each score (-0 as 0); gpt2: u32 n_merges, then u32 left id, u32 right id
 *   of each merge in file order
 *   i32 bos, eos, eot, eom, unk, pad (-1: none)
 *   u8 adds BOS, u8 adds a space, u8 whole words before merges */
void iso_tokenizer_digest(struct iso_digest *out, const struct iso_tokenizer *t);

#endif
