/* SPDX-License-Identifier: MIT
 * tokenizer_impl.h - what a tokenizer consists of; for the files of this folder only. */
#ifndef ISO_TOKENIZER_TOKENIZER_IMPL_H
#define ISO_TOKENIZER_TOKENIZER_IMPL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/digest.h"
#include "tokenizer/bpe.h"
#include "tokenizer/pretokenizer.h"
#include "tokenizer/special.h"
#include "tokenizer/spm.h"
#include "tokenizer/vocab.h"

struct iso_tokenizer {
    struct iso_vocab vocab;
    bool is_spm;                          /* else byte-level BPE */
    struct iso_spm spm;                   /* is_spm */
    struct iso_bpe bpe;                   /* else */
    struct iso_pretokenizer *pre;         /* else; NULL for is_spm */
    struct iso_special always;            /* user-defined tokens */
    struct iso_special with_special;      /* and control and unknown ones */
    uint8_t *eog;                         /* [n_vocab] 1 for tokens that end a generation */
    int32_t bos, eos, eot, eom, unk, pad; /* -1: none */
    bool adds_bos, adds_space;
    struct iso_digest digest;
};

/* Tokens by whose text a turn ends; ISO_E_NOMEM. Sets eot where the file has none. */
enum iso_err iso_tokenizer_find_eog(struct iso_tokenizer *t) ISO_NODISCARD;

/* Is this a user-defined token that is left alone in user content all the same, because its text is
 * that of a known control token? */
bool iso_tokenizer_looks_control(const struct iso_vocab *v, uint32_t id);

#endif
