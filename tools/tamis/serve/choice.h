/* SPDX-License-Identifier: Apache-2.0 */
/* One answer of a request, as it grows. */
#ifndef SERVE_CHOICE_H
#define SERVE_CHOICE_H

#include "cli/answer.h"
#include "serve/draw.h"
#include "serve/job.h"
#include "serve/reads.h"

/* What is told of a token where logprobs are asked for. */
typedef struct serve_entry {
    serve_likely drawn, top[SERVE_TOP_MAX];
    uint32_t n_top;
    size_t offset; /* of its text in the answer, bytes */
} serve_entry;

typedef struct serve_choice {
    serve_job *job;
    uint32_t index;
    const cli_prompt *prompt;
    uint64_t id; /* of the scheduler's request; 0: there is none */
    serve_draw draw;
    cli_answer answer;
    size_t told; /* bytes of the answer that the client has been told of */
    serve_entry *entries;
    size_t n_entries, entries_told, entry_room;
    size_t entries_ready; /* of which the text is ready, too */
    size_t counted,
        characters; /* of the text's beginning: bytes, and how many characters they are */
    char *listed;   /* of a whole chat answer: its entries as a list of JSON; NULL: none yet */
    size_t listed_bytes, listed_room;
    serve_reads reads;
    uint32_t n_tokens;   /* generated, the one that ends the answer included */
    uint32_t n_cached;   /* of the prompt, that were not run */
    bool brought; /* its sequence is a blend's */
    const char *finish;  /* "stop", "length"; NULL: it goes on */
    double first, last;  /* when its first and its newest token came; cli_seconds */
} serve_choice;

/* False without memory. */
bool serve_choice_add(serve_choice *choice, const tamis_vocab *vocab, int32_t token, bool ends);

#endif
