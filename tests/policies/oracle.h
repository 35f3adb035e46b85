/* SPDX-License-Identifier: Apache-2.0 */
/* An independent answer in double precision to what a step attends and selects. */
#ifndef TEST_ORACLE_H
#define TEST_ORACLE_H

#include "tests/api/fixture.h"

/* One lane's rows as the caller wrote them: [slots][dim]. */
typedef struct oracle_lane {
    const float *k, *v;
    uint32_t layer, kv_head;
} oracle_lane;

typedef struct oracle_rule {
    uint32_t head_dim, page_size, group;
    tamis_selection selection;
    uint32_t sliding_window;
    double scale, soft_cap;
    bool q8_bounds; /* bounds are stored in q8, rounded outward */
} oracle_rule;

/* Rounds a row of K or, if `value`, of V to what a cache of q8, k8v4 or q4 holds of it
 * (tamis_dtype); leaves it as it is for other dtypes. */
void oracle_hold(tamis_dtype dtype, bool value, float *row, uint32_t dim);

/* The pages that the selection must take from a lane of `visible` slots for the `group` query heads
 * at `q`: chosen[ordinal] is 1 for those that it must read, 0 for those that it must not, -1 where
 * the scores are too close to the threshold to tell. Returns how many it reads. The row is at
 * position visible - 1. Only random's scores are not independent: they are the library's own. */
uint32_t oracle_select(const oracle_rule *rule, const oracle_lane *lane, uint32_t visible,
                       const float *q, signed char *chosen);

/* Whether `out` is the attention of one query head at position visible - 1 over the listed pages,
 * within 2e-6 * max|v| * (1 + max|logit|), or NaN if a logit is; prints the first channel that is
 * not. */
bool oracle_attends(const oracle_rule *rule, const oracle_lane *lane, uint32_t visible,
                    const uint32_t *pages, uint32_t n_pages, const float *q, const float *out);

#endif
