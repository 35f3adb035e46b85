/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/core/attention.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

tamis_status tms_attention_check(const tamis_attention *a, const char *where, tamis_error *error) {
    uint64_t set = 0;
    for (size_t i = 0; i < sizeof a->reserved / sizeof *a->reserved; i++)
        set |= a->reserved[i];
    TMS_REQUIRE(set == 0, TAMIS_E_ARGUMENT, "%sa reserved field of tamis_attention is not 0",
                where);
    TMS_REQUIRE(isfinite(a->scale), TAMIS_E_ARGUMENT, "%sscale %g is not finite", where,
                (double)a->scale);
    TMS_REQUIRE(isfinite(a->soft_cap) && a->soft_cap >= 0, TAMIS_E_ARGUMENT,
                "%ssoft_cap %g is not a number from 0 on", where, (double)a->soft_cap);
    return TAMIS_OK;
}

float tms_attention_scale(const tamis_attention *a, uint32_t head_dim) {
    return a->scale != 0 || head_dim == 0 ? a->scale : (float)(1 / sqrt(head_dim));
}

tms_logit tms_attention_logit(const tamis_attention *a, uint32_t head_dim, tms_ref sinks) {
    return (tms_logit){tms_attention_scale(a, head_dim), a->soft_cap, sinks};
}

bool tms_attention_alike(const tamis_attention *a, const tamis_attention *b) {
    return !a->soft_cap == !b->soft_cap && !a->sinks.buffer == !b->sinks.buffer &&
           (a->sliding_window || a->chunk) == (b->sliding_window || b->chunk);
}

tms_attention_text tms_attention_say(const tamis_attention *a) {
    tms_attention_text out;
    snprintf(out.text, sizeof out.text,
             "scale %g, soft_cap %g, sliding_window %" PRIu32 ", chunk %" PRIu32 "%s",
             (double)a->scale, (double)a->soft_cap, a->sliding_window, a->chunk,
             a->sinks.buffer ? ", sinks" : "");
    return out;
}
