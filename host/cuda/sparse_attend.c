/* SPDX-License-Identifier: Apache-2.0 */
/* sparse_attend on CUDA: what it takes, and its two launches: cuda_kernels/sparse_attend.cu, which
 * scores and selects, then attend over the lists. */
#include "host/cuda/selection.h"

const char *tms_cu_sparse_attend_refusal(tms_device *dev, const tms_sparse_attend *p) {
    const tms_batch *b = &p->attend.batch;
    if (tms_form_is_cpu(dev->form)) return "no CPU form: the device is not a CPU";
    if (p->attend.logits.mem) return "logits are asked for";
    if (!p->score.scores.mem) return "there are no scores";
    if (tms_select_is_wide(&p->select)) return "a wide selection";
    if (p->select.granularity != p->score.kv.page_size) return "entries that are not pages";
    if ((uint64_t)b->n_rows * b->n_kv_heads > TMS_CU_TICKETS) return "too many rows and heads";
    return NULL;
}

/* Keys that a block keeps, so that two of them fit a multiprocessor. */
static uint32_t most_cached(tms_device *dev) {
    const uint32_t half = tms_cu(dev)->max_shared / 2;
    return half > CU_SELECT_SHARED ? (half - CU_SELECT_SHARED) / 4 : 0;
}

static tamis_status run_score_select(tms_device *dev, const tms_sparse_attend *p) {
    const tms_batch *b = &p->score.batch;
    tms_select select = p->select; /* of the scores that the launch writes */
    select.scores = p->score.scores;
    select.stride = p->score.stride;
    tms_cu_launch l =
        tms_cu_begin(dev, "sparse_attend", "score_select_%s_d%u",
                     tamis_dtype_name(p->score.kv.bounds_dtype), tms_cu_score_tag(&p->score));
    cu_score_select_args args = {
        .score = tms_cu_score_args(&l, &p->score),
        .select = tms_cu_select_args(&l, &select),
        .tickets = tms_cu_tickets(&l, (uint64_t)b->n_rows * b->n_kv_heads),
    };
    const uint32_t most = most_cached(dev);
    if (args.select.cached > most) args.select.cached = most;
    /* The queries, then the keys. */
    const uint32_t queries = tms_cu_score_shared(&p->score),
                   keys = tms_cu_select_shared(&args.select);
    const tms_cu_grid grid = {.x = (uint64_t)b->n_rows * args.score.blocks,
                              .y = b->n_kv_heads,
                              .z = 1,
                              .threads = CU_SCORE_THREADS,
                              .shared = queries > keys ? queries : keys};
    return tms_cu_run(&l, grid, &args);
}

tamis_status tms_cu_sparse_attend(tms_device *dev, const tms_sparse_attend *p) {
    tamis_status status = run_score_select(dev, p);
    if (status == TAMIS_OK && p->halfway) status = tms_cu_event_record(dev, true, p->halfway);
    return status == TAMIS_OK ? tms_cu_attend_lists(dev, &p->attend) : status;
}
