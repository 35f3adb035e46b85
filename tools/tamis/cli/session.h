/* SPDX-License-Identifier: Apache-2.0 */
/* A model at work on one sequence: reading text, answering, and the figures of both. */
#ifndef CLI_SESSION_H
#define CLI_SESSION_H

#include "cli/answer.h"
#include "cli/chat.h"
#include "cli/progress.h"

#include <tamis/sample.h>

/* Why an answer ended. */
typedef enum cli_end {
    CLI_END_TOKEN,     /* a token that ends answers was next */
    CLI_END_TEXT,      /* the stop text appeared */
    CLI_END_TOKENS,    /* as many tokens as were asked for */
    CLI_END_CONTEXT,   /* no room for another token */
    CLI_END_INTERRUPT, /* Ctrl-C, see interrupt.h */
} cli_end;

typedef struct cli_session {
    tamis_context *device;
    tamis_model *model;
    tamis_cache *cache;
    tamis_runner *runner;
    tamis_sequence sequence;
    size_t length;    /* tokens of the sequence */
    uint32_t context; /* longest text, tokens */
    bool interrupted; /* Ctrl-C came before all of the text was read, or ended a conversation */
    cli_progress progress;
    tamis_sampler *sampler; /* NULL: the most likely token is next */
    float *logits;          /* for the sampler */
    int32_t next;           /* the token that follows what was read; it is not read itself yet */
    bool unread;    /* it is the last token of an answer, and the next text comes behind it */
    bool half_read; /* Ctrl-C came within a text */
    int32_t ending[CLI_ENDINGS + 1]; /* tokens that end an answer, a chat's last; -1: none */
    bool goes_on;                    /* they do not */
    double bytes_returned;           /* by the first eviction */
    double prefill_seconds, decode_seconds;
    size_t prefill_tokens, decode_tokens;
} cli_session;

/* What a session is opened with. Of `cache` and `plan` the shape and the context are filled in. */
typedef struct cli_session_params {
    const char *device, *model;
    uint32_t context; /* 0: the model's */
    bool stores;      /* a store may read pages of the text */
    tamis_cache_params cache;
    tamis_plan_params plan;
    tamis_sampling sampling;
} cli_session_params;

/* Device, model, cache, runner, sampler. What *s holds after an error is to be closed, too. */
tamis_status cli_session_open(cli_session *s, cli_session_params *params, tamis_error *error);
/* The same in two parts, between which the model's tokens can be counted: device, model and
 * context; then what depends on them. */
tamis_status cli_session_load(cli_session *s, const cli_session_params *params, tamis_error *error);
tamis_status cli_session_start(cli_session *s, cli_session_params *params, tamis_error *error);
void cli_session_close(cli_session *s);

/* A session on a sequence of a runner that others own; it is not to be closed. Its next token is
 * the most likely one. */
tamis_status cli_session_on(cli_session *s, tamis_model *model, tamis_cache *cache,
                            tamis_runner *runner, tamis_sequence sequence, tamis_error *error);

/* Reads tokens exactly, in chunks; an eviction of the plan follows. Ctrl-C ends it behind a chunk:
 * s->interrupted says so, and nothing was evicted. */
tamis_status cli_session_read(cli_session *s, const int32_t *tokens, size_t count,
                              tamis_error *error);
/* Takes up the sequence as it is now, after a text that the caller has read by the runner. */
tamis_status cli_session_measure(cli_session *s, tamis_error *error);
/* Reads tokens one by one, under the selection. Ctrl-C ends it behind one: see s->interrupted. */
tamis_status cli_session_step(cli_session *s, const int32_t *tokens, size_t count,
                              tamis_error *error);
/* Reads the last token of an answer, where it is unread. */
tamis_status cli_session_catch_up(cli_session *s, tamis_error *error);
/* Answers with at most `most` tokens. Then s->next is the last one, which has not been read, or what
 * has ended the answer: see s->unread. */
tamis_status cli_session_answer(cli_session *s, cli_answer *to, uint32_t most, cli_end *end,
                                tamis_error *error);

/* One line on stderr. Bytes are those of decode steps: K and V of the pages read, and bounds. */
void cli_session_report(const cli_session *s);
/* One line on stderr: tokens kept, bytes returned by the first eviction, time of evicting. */
void cli_session_report_eviction(const cli_session *s, const tamis_eviction *eviction, bool times);

#endif
