/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `tamis eval recall`: the rows of full attention are recorded, every arm attends the
 * same rows, and the pages that it read are compared with the true attention. */
#ifndef CLI_EVAL_RECALL_H
#define CLI_EVAL_RECALL_H

#include "eval/passages.h"
#include "eval/rows.h"

/* Sums over query tokens. */
typedef struct recall_sums {
    double recall, mass, error;
} recall_sums;

/* What one length gives; sums over `queries` query tokens. */
typedef struct recall_result {
    uint32_t length;
    uint64_t queries;
    recall_sums *sums; /* [arm][layer][head] */
    double *sparsity;  /* [layer][head] */
} recall_result;

/* One passage under work. */
typedef struct recall {
    eval_rig *rig;
    tamis_model_info shape;
    uint32_t page_size, n_tokens, top;
    float scale;               /* of logits, as the model's own plans have it */
    uint32_t read_bytes;       /* of the bits of one list */
    eval_rows rows;            /* for one token */
    float *trace;              /* [token][layer][recall_width]: q, k, v, out under full */
    uint8_t *read;             /* [arm][token][layer][KV head][read_bytes]: a bit for each page */
    uint32_t text;             /* from 1 on */
    uint32_t token;            /* that is being recorded */
    tamis_sequence main, base; /* after recording; the context alone */
    recall_result *result;
} recall;

/* Elements of a trace row: q, k, v, out. */
static inline size_t recall_width(const recall *r) {
    return 2 * (size_t)(r->shape.n_heads + r->shape.n_kv_heads) * r->shape.head_dim;
}
static inline float *recall_row(const recall *r, uint32_t token, uint32_t layer) {
    return r->trace + ((size_t)token * r->shape.n_layers + layer) * recall_width(r);
}
static inline eval_host_rows recall_parts(const recall *r, uint32_t token, uint32_t layer) {
    float *row = recall_row(r, token, layer), *k = row + r->rows.q_width;
    return (eval_host_rows){row, k, k + r->rows.kv_width, k + 2 * r->rows.kv_width};
}
static inline uint8_t *recall_read(const recall *r, uint32_t arm, uint32_t token, uint32_t layer,
                                   uint32_t kv_head) {
    size_t row = ((size_t)arm * r->n_tokens + token) * r->shape.n_layers + layer;
    return r->read + (row * r->shape.n_kv_heads + kv_head) * r->read_bytes;
}
static inline recall_sums *recall_sums_of(const recall *r, uint32_t arm, uint32_t layer) {
    return r->result->sums + ((size_t)arm * r->shape.n_layers + layer) * r->shape.n_heads;
}

/* Takes what a passage of at most `longest` context tokens needs. */
tamis_status recall_create(recall *r, uint32_t longest, tamis_error *error);
void recall_destroy(recall *r);

/* Reads the context exactly into r->main, forks r->base, then feeds the passage's tokens under full
 * and records every layer's rows. */
tamis_status recall_record(recall *r, const int32_t *passage, tamis_error *error);
/* Feeds the recorded rows to an arm over r->base, one step per token: records the pages that it
 * read and sums the errors of its outputs. r->base is then the context alone again. E_DEVICE where
 * an error is not finite. */
tamis_status recall_replay(recall *r, uint32_t arm, tamis_error *error);
/* Computes the true attention of a layer's query heads from the keys of r->main, in double, and
 * sums recall and mass of every arm, and the sparsity. E_DEVICE where it is not finite. */
tamis_status recall_measure(recall *r, uint32_t layer, tamis_error *error);

bool recall_print(const eval_rig *rig, const recall_result *results, uint32_t n_results);
/* The JSON array; NULL without memory. */
cJSON *recall_rows(const eval_rig *rig, const recall_result *results, uint32_t n_results);

#endif
