/* SPDX-License-Identifier: Apache-2.0 */
/* What a tamis_attention says: its rules, and what ops take of it. */
#ifndef TMS_CORE_ATTENTION_H
#define TMS_CORE_ATTENTION_H

#include "lib/core/core.h"
#include <tamis/layer.h>

/* Checks its numbers; `where` begins the reason. Sinks are not looked at. */
tamis_status tms_attention_check(const tamis_attention *attention, const char *where,
                                 tamis_error *error);

/* The scale that it has, or that 0 means. */
float tms_attention_scale(const tamis_attention *attention, uint32_t head_dim);

/* The rule of logits, with sinks that have been checked. */
tms_logit tms_attention_logit(const tamis_attention *attention, uint32_t head_dim, tms_ref sinks);

/* Whether the logits of both are made by the same kernels. */
bool tms_attention_alike(const tamis_attention *a, const tamis_attention *b);

/* Its numbers, for messages. */
typedef struct tms_attention_text {
    char text[160];
} tms_attention_text;
tms_attention_text tms_attention_say(const tamis_attention *attention);

#endif
