/* SPDX-License-Identifier: Apache-2.0 */
/* Records the attention rows of a decode under full, and feeds them to other arms. */
#include "eval/recall.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

tamis_status recall_create(recall *r, uint32_t longest, tamis_error *error) {
    uint32_t pages = (longest + r->n_tokens + r->page_size - 1) / r->page_size;
    size_t rows = (size_t)r->n_tokens * r->shape.n_layers;
    tamis_plan_params full;
    tamis_plan_get_params(tamis_runner_plan(r->rig->runners[0]), &full);
    r->scale = full.attention.scale;
    r->read_bytes = (pages + 7) / 8;
    r->trace = calloc(rows, recall_width(r) * sizeof(*r->trace));
    r->read = calloc(rows * r->shape.n_kv_heads * r->rig->arms->count, r->read_bytes);
    if (r->trace == NULL || r->read == NULL) return cli_no_memory(error);
    return eval_rows_create(&r->rows, r->rig->context, &r->shape, 1, error);
}

void recall_destroy(recall *r) {
    eval_rows_destroy(&r->rows);
    free(r->trace);
    free(r->read);
}

/* The observer: q, k, v and out of the one row, to the host. */
static tamis_status observe(void *user, const tamis_attention_rows *rows, tamis_error *error) {
    const recall *r = user;
    const eval_host_rows to = recall_parts(r, r->token, rows->layer);
    return eval_rows_take(&r->rows, rows, &to, error);
}

tamis_status recall_record(recall *r, const int32_t *passage, tamis_error *error) {
    tamis_cache *cache = r->rig->cache;
    tamis_runner *full = r->rig->runners[0];
    uint32_t length = r->result->length;
    tamis_status status = cli_prefill(cache, full, passage, length, &r->main, NULL, error);
    if (status == TAMIS_OK) status = tamis_cache_fork(cache, r->main, &r->base, error);
    tamis_runner_observe(full, observe, r);
    for (uint32_t t = 0; status == TAMIS_OK && t < r->n_tokens; t++) {
        int32_t next;
        r->token = t;
        status = tamis_runner_decode(full, &r->main, 1, &passage[length + t], &next, error);
    }
    tamis_runner_observe(full, NULL, NULL);
    return status;
}

/* Sets the bits of the pages that the last attend read for a KV head. */
static tamis_status note_pages(const recall *r, tamis_plan *plan, uint32_t *pages, uint32_t kv_head,
                               uint8_t *bits, tamis_error *error) {
    uint32_t count = 0;
    tamis_status status =
        tamis_plan_read_selected(plan, 0, kv_head, pages, r->read_bytes * 8, &count, error);
    memset(bits, 0, r->read_bytes);
    for (uint32_t i = 0; status == TAMIS_OK && i < count; i++)
        bits[pages[i] / 8] |= (uint8_t)(1u << (pages[i] % 8));
    return status;
}

/* |o - ô| / |o| over the channels of a head. An o of zeros counts 0 if ô is the same, else 1. */
static double relative_error(const float *truth, const float *got, uint32_t n) {
    double norm = 0, difference = 0;
    for (uint32_t i = 0; i < n; i++) {
        double d = (double)truth[i] - got[i];
        norm += (double)truth[i] * truth[i];
        difference += d * d;
    }
    if (norm == 0) return difference == 0 ? 0 : 1;
    return sqrt(difference / norm);
}

/* What a replay needs beside the recall. */
typedef struct replay {
    tamis_plan *plan;
    uint32_t arm, token;
    uint32_t *pages; /* [read_bytes * 8] */
    float *out;      /* [n_heads][head_dim] */
} replay;

/* Adds the errors of the arm's output, p->out, against full's. Full is replayed first, so that an
 * output of full's that is not finite is found there. */
static tamis_status add_errors(const recall *r, const replay *p, uint32_t layer, const float *truth,
                               tamis_error *error) {
    const char *select = r->rig->arms->arms[p->arm].select.text;
    recall_sums *sums = recall_sums_of(r, p->arm, layer);
    for (uint32_t h = 0; h < r->shape.n_heads; h++) {
        size_t at = (size_t)h * r->shape.head_dim;
        double e = relative_error(truth + at, p->out + at, r->shape.head_dim);
        if (!isfinite(e))
            return cli_error(error, TAMIS_E_DEVICE,
                             "length %u, text %u, layer %u, head %u: what %s attends is not finite",
                             r->result->length, r->text, layer, h, select);
        sums[h].error += e;
    }
    return TAMIS_OK;
}

/* Writes and attends the recorded row of a layer, then reads what came of it. */
static tamis_status attend_layer(const recall *r, const replay *p, uint32_t layer,
                                 tamis_error *error) {
    const eval_host_rows row = recall_parts(r, p->token, layer);
    const eval_host_rows given = {row.q, row.k, row.v, p->out};
    tamis_status status = eval_rows_give(&r->rows, p->plan, layer, 1, &given, error);
    for (uint32_t h = 0; status == TAMIS_OK && h < r->shape.n_kv_heads; h++)
        status =
            note_pages(r, p->plan, p->pages, h, recall_read(r, p->arm, p->token, layer, h), error);
    return status == TAMIS_OK ? add_errors(r, p, layer, row.out, error) : status;
}

static tamis_status replay_tokens(const recall *r, replay *p, tamis_error *error) {
    const tamis_step step = {.sequences = &r->base, .count = 1};
    tamis_status status = TAMIS_OK;
    for (p->token = 0; status == TAMIS_OK && p->token < r->n_tokens; p->token++) {
        status = tamis_plan_step_begin(p->plan, &step, error);
        for (uint32_t layer = 0; status == TAMIS_OK && layer < r->shape.n_layers; layer++)
            status = attend_layer(r, p, layer, error);
        if (status == TAMIS_OK) status = tamis_plan_step_end(p->plan, error);
    }
    return status;
}

tamis_status recall_replay(recall *r, uint32_t arm, tamis_error *error) {
    size_t width = (size_t)r->shape.n_heads * r->shape.head_dim;
    const tamis_plan_params params = {.selection = r->rig->arms->arms[arm].selection,
                                      .attention.scale = r->scale,
                                      .max_rows = 1,
                                      .max_context = r->result->length + r->n_tokens};
    replay p = {.arm = arm,
                .pages = malloc(r->read_bytes * 8 * sizeof(*p.pages)),
                .out = malloc(width * sizeof(*p.out))};
    tamis_status status = eval_rig_bounds(r->rig, arm, error);
    if (p.pages == NULL || p.out == NULL) status = cli_no_memory(error);
    if (status == TAMIS_OK) status = tamis_plan_create(r->rig->cache, &params, &p.plan, error);
    if (status == TAMIS_OK) status = replay_tokens(r, &p, error);
    if (status == TAMIS_OK)
        status = tamis_cache_truncate(r->rig->cache, r->base, r->result->length, error);
    tamis_plan_destroy(&p.plan);
    free(p.pages);
    free(p.out);
    return status;
}
