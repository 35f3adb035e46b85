/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis tune`: one search for the settings of a class of launches, and what it found. */
#ifndef CLI_BENCH_TUNE_H
#define CLI_BENCH_TUNE_H

#include "bench/bench.h"
#include "cli/progress.h"

#define TUNE_SETTINGS_MAX 8

/* What is searched: an op on a filled cache. */
typedef struct tune_search {
    bench *cache;
    tamis_setting_class of;
    bench_arm arm; /* what is timed */
    uint32_t rounds;
    cli_progress *progress; /* counts settings' values that were measured */
    size_t *done, total;
    cli_random random; /* of the samples that are compared bit for bit */
    /* Found: */
    uint32_t before[TUNE_SETTINGS_MAX], after[TUNE_SETTINGS_MAX];
    double before_us, after_us; /* of one layer, medians of alternate samples */
} tune_search;

/* The first of the op's settings from *i on, which *i becomes; NULL behind the last. */
const tamis_setting_info *tune_next(tamis_setting_op op, uint32_t *i);
#define TUNE_EACH_SETTING(i, info, op)                                                             \
    for (uint32_t i = 0; ((info) = tune_next(op, &i)) != NULL; i++)

/* How many values a search measures at most. */
size_t tune_values(tamis_setting_op op);
/* Leaves the context with the settings it found, which are those from before unless others were
 * faster. */
tamis_status tune_run(tune_search *s, tamis_error *error);

#endif
