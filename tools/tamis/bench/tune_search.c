/* SPDX-License-Identifier: Apache-2.0 */
/* The search of `tamis tune`: one setting after another, all of its values in turn, round after
 * round; a value that is clearly slower than the best one drops out, and one that changes a bit ends
 * the search. */
#include "bench/tune.h"

#include <stdlib.h>
#include <string.h>

#define VALUES_MAX   16
#define LEAST_ROUNDS 3u
#define DROPPED      1.04 /* times the best median */

typedef struct candidate {
    uint32_t value, n;
    bool out;
    double *us;
} candidate;

#define FASTER 0.99 /* times what was: less is noise */

const tamis_setting_info *tune_next(tamis_setting_op op, uint32_t *i) {
    for (; *i < TUNE_SETTINGS_MAX; ++*i) {
        const tamis_setting_info *info = tamis_setting_describe(*i);
        if (info == NULL || (info->ops >> op & 1) != 0) return info;
    }
    return NULL;
}

size_t tune_values(tamis_setting_op op) {
    size_t n = 0;
    const tamis_setting_info *info;
    TUNE_EACH_SETTING(i, info, op) n += info->n_values;
    return n;
}

static tamis_status set(tune_search *s, uint32_t setting, uint32_t value, tamis_error *error) {
    return tamis_context_set_setting(s->cache->device, &s->of, (tamis_setting)setting, value,
                                     error);
}

static tamis_status set_all(tune_search *s, const uint32_t *values, tamis_error *error) {
    const tamis_setting_info *info;
    tamis_status status = TAMIS_OK;
    TUNE_EACH_SETTING(i, info, s->of.op) {
        if (status == TAMIS_OK) status = set(s, i, values[i], error);
    }
    return status;
}

static double median_of(const candidate *c, double *scratch) {
    memcpy(scratch, c->us, c->n * sizeof(*scratch));
    return bench_median(scratch, c->n);
}

/* The fastest so far; with `drop`, those that are clearly slower leave. */
static candidate *best_of(candidate *all, uint32_t n, bool drop, double *scratch) {
    candidate *best = NULL;
    double best_us = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (all[i].out) continue;
        const double us = median_of(&all[i], scratch);
        if (best != NULL && us >= best_us) continue;
        best = &all[i];
        best_us = us;
    }
    for (uint32_t i = 0; drop && i < n; i++)
        if (!all[i].out && median_of(&all[i], scratch) > DROPPED * best_us) all[i].out = true;
    return best;
}

static uint32_t left_of(const candidate *all, uint32_t n) {
    uint32_t left = 0;
    for (uint32_t i = 0; i < n; i++)
        left += !all[i].out;
    return left;
}

/* What the search's plan attends with fixed noise, in the last of its layers. */
static tamis_status attended(tune_search *s, tamis_plan *plan, float *out, size_t bytes,
                             tamis_error *error) {
    bench *b = s->cache;
    double ignored;
    b->random = s->random;
    tamis_status status = bench_sample(b, plan, &ignored, error);
    return status == TAMIS_OK ? tamis_buffer_read(b->out, 0, out, bytes, error) : status;
}

/* Builds the kernel of each value, and compares what it attends: E_DEVICE if a value changes a bit, which
 * only a fault of the driver or of a kernel does. `out` has room for two. */
static tamis_status compare_bits(tune_search *s, tamis_plan *plan, uint32_t setting,
                                 const candidate *all, uint32_t n, float *out, size_t bytes,
                                 tamis_error *error) {
    float *second = out + bytes / sizeof(*out);
    tamis_status status = TAMIS_OK;
    for (uint32_t i = 0; status == TAMIS_OK && i < n; i++) {
        status = set(s, setting, all[i].value, error);
        if (status == TAMIS_OK) status = attended(s, plan, i > 0 ? second : out, bytes, error);
        if (status == TAMIS_OK && i > 0 && memcmp(out, second, bytes) != 0)
            status = cli_error(
                error, TAMIS_E_DEVICE,
                "attention has other bits with %s %u than with %u: a fault of the driver or of a "
                "kernel; no setting is written",
                tamis_setting_describe(setting)->name, all[i].value, all[0].value);
        cli_progress_show(s->progress, ++*s->done, s->total);
    }
    return status;
}

/* Times the values of one setting, whose kernels have been built. */
static tamis_status time_values(tune_search *s, tamis_plan *plan, uint32_t setting, candidate *all,
                                uint32_t n, double *scratch, tamis_error *error) {
    tamis_status status = TAMIS_OK;
    for (uint32_t round = 0; status == TAMIS_OK && round < s->rounds && left_of(all, n) > 1;
         round++) {
        for (uint32_t i = 0; status == TAMIS_OK && i < n; i++) {
            if (all[i].out) continue;
            status = set(s, setting, all[i].value, error);
            if (status == TAMIS_OK)
                status = bench_sample(s->cache, plan, &all[i].us[all[i].n++], error);
        }
        if (status == TAMIS_OK) best_of(all, n, round + 1 >= LEAST_ROUNDS, scratch);
    }
    return status;
}

static tamis_status search_setting(tune_search *s, tamis_plan *plan, uint32_t setting,
                                   tamis_error *error) {
    const tamis_setting_info *info = tamis_setting_describe(setting);
    const uint32_t n = info->n_values < VALUES_MAX ? info->n_values : VALUES_MAX;
    candidate all[VALUES_MAX] = {0};
    const bench_shape *shape = s->cache->params.shape;
    const size_t bytes = (size_t)shape->n_heads * shape->head_dim * sizeof(float);
    double *us = calloc((size_t)(n + 1) * s->rounds, sizeof(*us));
    float *out = malloc(2 * bytes);
    if (us == NULL || out == NULL) {
        free(us);
        free(out);
        return cli_no_memory(error);
    }
    for (uint32_t i = 0; i < n; i++)
        all[i] = (candidate){.value = info->values[i], .us = us + (size_t)i * s->rounds};
    double *scratch = us + (size_t)n * s->rounds;
    tamis_status status = compare_bits(s, plan, setting, all, n, out, bytes, error);
    if (status == TAMIS_OK) status = time_values(s, plan, setting, all, n, scratch, error);
    if (status == TAMIS_OK) {
        s->after[setting] = best_of(all, n, false, scratch)->value;
        status = set(s, setting, s->after[setting], error);
    }
    free(us);
    free(out);
    return status;
}

/* Where no row is prefetched, there is no level to choose. */
static bool is_idle(const tune_search *s, uint32_t setting) {
    return setting == TAMIS_SETTING_FETCH_LEVEL && s->after[TAMIS_SETTING_FETCH_ROWS] == 0;
}

/* Samples of before and after in turn. */
static tamis_status compare(tune_search *s, tamis_plan *plan, tamis_error *error) {
    double *us = calloc(2 * (size_t)s->rounds, sizeof(*us)), ignored;
    if (us == NULL) return cli_no_memory(error);
    tamis_status status = TAMIS_OK;
    for (uint32_t round = 0; status == TAMIS_OK && round <= s->rounds; round++)
        for (uint32_t after = 0; status == TAMIS_OK && after < 2; after++) {
            double *to = round > 0 ? &us[after * s->rounds + round - 1] : &ignored;
            status = set_all(s, after ? s->after : s->before, error);
            if (status == TAMIS_OK) status = bench_sample(s->cache, plan, to, error);
        }
    if (status == TAMIS_OK) {
        s->before_us = bench_median(us, s->rounds);
        s->after_us = bench_median(us + s->rounds, s->rounds);
    }
    free(us);
    return status;
}

tamis_status tune_run(tune_search *s, tamis_error *error) {
    const tamis_setting_info *info;
    tamis_plan *plan = NULL;
    tamis_status status = TAMIS_OK;
    TUNE_EACH_SETTING(i, info, s->of.op) {
        if (status == TAMIS_OK)
            status = tamis_context_get_setting(s->cache->device, &s->of, (tamis_setting)i,
                                               &s->before[i], error);
    }
    memcpy(s->after, s->before, sizeof(s->after));
    s->random = s->cache->random;
    /* With another value, rows and level of coming pages would mean nothing. */
    s->after[TAMIS_SETTING_FETCH_NEAR] = 0;
    if (status == TAMIS_OK && s->of.op != TAMIS_SETTING_OF_GPU_ATTEND)
        status = set(s, TAMIS_SETTING_FETCH_NEAR, 0, error);
    if (status == TAMIS_OK) status = bench_plan(s->cache, &s->arm, 0, &plan, error);
    TUNE_EACH_SETTING(i, info, s->of.op) {
        if (status != TAMIS_OK) break;
        if (is_idle(s, i))
            *s->done += info->n_values;
        else
            status = search_setting(s, plan, i, error);
    }
    if (status == TAMIS_OK) status = compare(s, plan, error);
    if (status == TAMIS_OK && s->after_us > FASTER * s->before_us) {
        memcpy(s->after, s->before, sizeof(s->after));
        s->after_us = s->before_us;
        status = set_all(s, s->before, error);
    }
    tamis_plan_destroy(&plan);
    return status;
}
