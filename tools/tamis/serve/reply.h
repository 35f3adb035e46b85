/* SPDX-License-Identifier: Apache-2.0 */
/* What is sent of answers: chunks of a stream, or one object, in OpenAI's shapes. */
#ifndef SERVE_REPLY_H
#define SERVE_REPLY_H

#include "serve/choice.h"
#include "serve/model.h"

/* Of a stream: what comes before the first token. Of a whole answer: what is not kept. Without memory each of these gives the job up. */
void serve_reply_begin(serve_job *job, const serve_model *model);
/* Of a stream: what has not been told yet of an answer, and why it ended. Of a whole answer: its
 * probabilities are kept as text. */
void serve_reply_more(serve_choice *choice, const serve_model *model);
/* All answers of the job have ended. */
void serve_reply_end(serve_job *job, const serve_model *model);
/* The job ends without its answers. */
void serve_reply_refuse(serve_job *job, const serve_refusal *refusal);

#endif
