/* SPDX-License-Identifier: Apache-2.0 */
/* The buffers of one case on the host: content before the launch, and what the oracle expects. */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *check_alloc(uint64_t bytes) {
    void *memory = calloc(1, bytes ? bytes : 1);
    if (!memory) {
        fprintf(stderr, "tamis-check: no memory for %llu bytes\n", (unsigned long long)bytes);
        exit(2);
    }
    return memory;
}

void check_data_make(check_data *data, const check_case *c, uint64_t seed) {
    memset(data, 0, sizeof *data);
    data->c = c;
    data->seed = seed;
    c->op->make(data);
    check_quantised_settle(data, false);
}

void check_data_free(check_data *data) {
    for (int id = 0; id < BUF_COUNT; id++) {
        free(data->buf[id].init);
        free(data->buf[id].want);
        free(data->buf[id].tolerance);
    }
    free(data->lanes.length);
    memset(data, 0, sizeof *data);
}

void check_preset(void *to, uint64_t bytes) {
    const uint32_t word = CHECK_PRESET;
    for (uint64_t at = 0; at < bytes; at += 4)
        memcpy((char *)to + at, &word, bytes - at < 4 ? bytes - at : 4);
}

void *check_buffer_add(check_data *data, check_id id, check_role role, uint32_t type,
                       uint64_t count) {
    check_buffer *b = &data->buf[id];
    b->role = role;
    b->type = type;
    b->count = count;
    b->init = check_alloc(count * check_type_size(type));
    if (role == ROLE_OUTPUT) check_preset(b->init, count * check_type_size(type));
    return b->init;
}

void check_want(check_data *data, check_id id, bool tolerance) {
    check_buffer *b = &data->buf[id];
    const uint64_t bytes = b->count * check_type_size(b->type);
    if (b->role != ROLE_OUTPUT && b->role != ROLE_UPDATE) return;
    b->want = check_alloc(bytes);
    memcpy(b->want, b->init, bytes);
    if (tolerance) b->tolerance = check_alloc(b->count * sizeof *b->tolerance);
}

void check_fill_matrix(check_data *data, check_id id, uint64_t rows, uint64_t width,
                       uint64_t stride) {
    const check_buffer *b = &data->buf[id];
    check_rng rng = check_rng_make(data->seed, data->c, id);
    check_preset(b->init, b->count * check_type_size(b->type));
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t i = 0; i < width; i++)
            check_store(b->type, b->init, r * stride + i,
                        check_finite(&rng, (check_fill)check_get(data, KEY_FILL)));
}

const char *check_buffer_name(check_id id) {
    static const char *const names[BUF_COUNT] = {
        "kv",        "bounds",  "table",    "tiles",  "alone",
        "row_seq",   "visible", "q",        "k",      "v",
        "slots",     "heads",   "scores",   "pages",  "count",
        "positions", "first",   "x",        "w",      "bias",
        "y",         "lse",     "logits",   "sinks",  "row_positions",
        "to",        "turns",   "changed",  "forced", "forced_counts",
        "k_table",   "norm_w",  "w1",       "w2",     "w3",
        "w4",        "w5",      "w6",       "bias1",  "bias2",
        "y1",        "y2",      "y3",       "y4",     "y5",
        "y6",        "addend",  "addend_w", "sum",    "to_seq"};
    return names[id];
}

uint32_t check_plain_rows(const check_data *data) {
    return check_get(data, KEY_R);
}
