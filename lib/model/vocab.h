/* SPDX-License-Identifier: Apache-2.0 */
/* A vocabulary from the inside. */
#ifndef TMS_VOCAB_H
#define TMS_VOCAB_H

#include "lib/model/bpe.h"
#include "lib/model/pattern.h"
#include "lib/model/specials.h"
#include "lib/model/spm.h"
#include <tamis/vocab.h>

typedef struct tamis_vocab {
    tamis_vocab_info info;
    uint8_t *kinds;             /* [n_tokens] tamis_token_kind */
    uint8_t *usable;            /* [n_tokens] whether text that no one has marked may become it */
    tms_texts pieces;           /* the bytes that each token stands for */
    tms_texts raw;              /* SPM: the same as the file writes them */
    int32_t token_of_byte[256]; /* -1: the vocabulary lacks the byte */
    tms_words words;            /* BPE: usable tokens by their bytes; SPM: all by their raw texts */
    tms_pattern pattern;        /* BPE */
    tms_merges merges;          /* BPE */
    tms_spm spm;
    char *chat_template;                 /* NULL: none */
    bool of_phi3;                        /* white space behind special tokens is left out */
    char warning[256];                   /* what of the file is ignored; empty: nothing */
    tms_specials user_defined, specials; /* found always, and where the caller asks for it */
} tms_vocab;

/* Reads tokenizer.ggml.*. Errors: E_FORMAT, E_UNSUPPORTED, E_NO_MEMORY; *out is then empty. A
 * vocabulary that has been read points into itself: it must stay where it is. */
tamis_status tms_vocab_read(const tms_gguf *gguf, tms_vocab *out, tamis_error *error);
void tms_vocab_free(tms_vocab *vocab);

#endif
