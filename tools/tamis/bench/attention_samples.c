/* SPDX-License-Identifier: Apache-2.0 */
/* The samples of `tamis bench attention`: every arm in turn, round after round, in one run. */
#include "bench/bench.h"

#include <stdlib.h>
#include <string.h>

#define STAGE_PASSES  5u /* at most */
#define GRAPH_SAMPLES 5u /* at most */

static tamis_status attend_layers(bench *b, tamis_plan *plan, tamis_error *error) {
    uint32_t width = b->params.shape->n_heads * b->params.shape->head_dim;
    const tamis_rows out = {.buffer = b->out, .dtype = TAMIS_F32};
    tamis_status status = TAMIS_OK;
    for (uint32_t layer = 0; status == TAMIS_OK && layer < b->layers; layer++) {
        const tamis_rows q = bench_noise(b, b->params.batch, width);
        status = tamis_plan_attend(plan, layer, &q, &out, error);
    }
    return status;
}

/* A way to time: attends every layer once and waits; *us is the time of one pass. */
typedef tamis_status clock_fn(bench *b, tamis_plan *plan, double *us, tamis_error *error);

static tamis_status wall_clock(bench *b, tamis_plan *plan, double *us, tamis_error *error) {
    double start = cli_seconds();
    tamis_status status = attend_layers(b, plan, error);
    if (status == TAMIS_OK) status = tamis_context_wait(b->device, error);
    *us = (cli_seconds() - start) * 1e6;
    return status;
}

/* One launch to warm up, then several in a row between two marks of the device. */
static tamis_status time_replays(bench *b, tamis_graph *graph, double *us, tamis_error *error) {
    tamis_event *from = NULL, *to = NULL;
    tamis_status status = tamis_graph_launch(graph, error);
    if (status == TAMIS_OK) status = tamis_event_record_timed(b->device, &from, error);
    for (uint32_t i = 0; status == TAMIS_OK && i < BENCH_GRAPH_REPLAYS; i++)
        status = tamis_graph_launch(graph, error);
    if (status == TAMIS_OK) status = tamis_event_record_timed(b->device, &to, error);
    if (status == TAMIS_OK) status = tamis_event_elapsed(from, to, us, error);
    *us /= BENCH_GRAPH_REPLAYS;
    tamis_event_destroy(&from);
    tamis_event_destroy(&to);
    return status;
}

/* The same pass as one piece, on the device's clock. */
static tamis_status graph_clock(bench *b, tamis_plan *plan, double *us, tamis_error *error) {
    tamis_graph *graph = NULL;
    tamis_status status = tamis_graph_begin(b->device, error);
    if (status != TAMIS_OK) return status;
    status = attend_layers(b, plan, error);
    const tamis_status ended = tamis_graph_end(b->device, &graph, status ? NULL : error);
    if (status == TAMIS_OK) status = ended;
    if (status == TAMIS_OK) status = time_replays(b, graph, us, error);
    tamis_graph_destroy(&graph);
    return status;
}

/* One step, with a clock for its attention. */
static tamis_status sample(bench *b, tamis_plan *plan, clock_fn *timer, double *us,
                           tamis_error *error) {
    const tamis_step step = {.sequences = b->sequences, .count = b->params.batch};
    uint32_t width = b->params.shape->n_kv_heads * b->params.shape->head_dim;
    tamis_status status = tamis_plan_step_begin(plan, &step, error);
    for (uint32_t layer = 0; status == TAMIS_OK && layer < b->layers; layer++) {
        const tamis_rows k = bench_noise(b, b->params.batch, width);
        const tamis_rows v = bench_noise(b, b->params.batch, width);
        status = tamis_plan_write(plan, layer, &k, &v, error);
    }
    if (status == TAMIS_OK) status = tamis_context_wait(b->device, error);
    if (status == TAMIS_OK) status = timer(b, plan, us, error);
    if (status == TAMIS_OK) *us /= b->layers;
    if (status == TAMIS_OK) status = tamis_plan_step_end(plan, error);
    for (uint32_t i = 0; status == TAMIS_OK && i < b->params.batch; i++)
        status = tamis_cache_truncate(b->cache, b->sequences[i], b->context - 1, error);
    return status;
}

tamis_status bench_sample(bench *b, tamis_plan *plan, double *us, tamis_error *error) {
    return sample(b, plan, wall_clock, us, error);
}

tamis_status bench_plan(bench *b, const bench_arm *arm, int timing, tamis_plan **out,
                        tamis_error *error) {
    const tamis_plan_params params = {.selection = arm->selection,
                                      .max_sequences = b->params.batch,
                                      .max_rows = b->params.batch,
                                      .max_context = b->context,
                                      .flags = (timing ? TAMIS_PLAN_TIMING : 0) |
                                               (arm->apart ? TAMIS_PLAN_UNFUSED : 0) |
                                               (b->stack != NULL ? TAMIS_PLAN_GIVE_BACK : 0),
                                      .layers = b->stack};
    return tamis_plan_create(b->cache, &params, out, error);
}

/* The times of the stages of one layer in one step. Each stage is waited for here, so their sum
 * exceeds the total of the samples. */
static tamis_status measure_stages(bench *b, bench_arm *arm, tamis_error *error) {
    const uint32_t passes = b->params.repeat < STAGE_PASSES ? b->params.repeat : STAGE_PASSES;
    tamis_plan_times before, after;
    tamis_plan *plan = NULL;
    double us = 0;
    tamis_status status = bench_plan(b, arm, 1, &plan, error);
    if (status == TAMIS_OK) status = bench_sample(b, plan, &us, error);
    if (status != TAMIS_OK) goto fail;
    tamis_plan_get_times(plan, &before);
    for (uint32_t i = 0; status == TAMIS_OK && i < passes; i++)
        status = bench_sample(b, plan, &us, error);
    tamis_plan_get_times(plan, &after);
    double n = (double)passes * b->layers;
    arm->stage_us =
        (tamis_plan_times){.write_us = (after.write_us - before.write_us) / n,
                           .bounds_us = (after.bounds_us - before.bounds_us) / n,
                           .score_us = (after.score_us - before.score_us) / n,
                           .select_us = (after.select_us - before.select_us) / n,
                           .attend_us = (after.attend_us - before.attend_us) / n,
                           .fused_us = (after.fused_us - before.fused_us) / n,
                           .fused_select_us = (after.fused_select_us - before.fused_select_us) / n};
fail:
    tamis_plan_destroy(&plan);
    return status;
}

/* Samples in the order they were taken: us[arm * repeat + round]; the others before each round and
 * after the last. */
typedef struct samples {
    tamis_plan *plans[BENCH_ARMS_MAX];
    double *us, *read;
    tamis_read_limit *limits;
    double *limit; /* of the run's best order */
    double *scratch;
} samples;

/* Before round `round`, or behind the last one. */
static tamis_status probe(const bench *b, samples *s, uint32_t round, tamis_error *error) {
    tamis_status status = TAMIS_OK;
    if (!b->params.totals_alone)
        status = bench_read_bandwidth(b->device, b->params.probe, &s->read[round], error);
    if (status != TAMIS_OK) return status;
    return tamis_cache_read_limit(b->cache, b->sequences, b->params.batch, 1, &s->limits[round],
                                  error);
}

static tamis_status take_samples(bench *b, samples *s, tamis_error *error) {
    uint32_t repeat = b->params.repeat;
    double warm_up;
    tamis_status status = TAMIS_OK;
    for (uint32_t a = 0; status == TAMIS_OK && a < b->n_arms; a++) {
        status = bench_sample(b, s->plans[a], &warm_up, error);
        tamis_plan_reset_counters(s->plans[a]);
    }
    for (uint32_t round = 0; status == TAMIS_OK && round < repeat; round++) {
        status = probe(b, s, round, error);
        for (uint32_t a = 0; status == TAMIS_OK && a < b->n_arms; a++)
            status = bench_sample(b, s->plans[a], &s->us[a * repeat + round], error);
    }
    return status == TAMIS_OK ? probe(b, s, repeat, error) : status;
}

/* After the rounds, which give the wall times of single launches. */
static tamis_status take_graph_samples(bench *b, const samples *s, tamis_error *error) {
    const uint32_t count = b->params.repeat < GRAPH_SAMPLES ? b->params.repeat : GRAPH_SAMPLES;
    tamis_status status = TAMIS_OK;
    for (uint32_t a = 0; status == TAMIS_OK && a < b->n_arms; a++) {
        double us[GRAPH_SAMPLES];
        if (b->arms[a].selection.kind == TAMIS_SELECT_RANDOM) continue; /* scores from the host */
        for (uint32_t i = 0; status == TAMIS_OK && i < count; i++)
            status = sample(b, s->plans[a], graph_clock, &us[i], error);
        if (status == TAMIS_OK) b->arms[a].graph_us = bench_median(us, count);
    }
    return status;
}

static bool records_graphs(const bench *b) {
    return strcmp(tamis_context_device(b->device)->backend, "cuda") == 0;
}

/* What an order of reading pages reached in each probe, in s->scratch; its median. */
static double median_of_order(const samples *s, uint32_t order, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        s->scratch[i] = s->limits[i].orders[order].gb_per_s;
    return bench_median(s->scratch, n);
}

/* The run's limit is that of one order: the best of single probes would be the luckiest. */
static void choose_order(bench *b, const samples *s) {
    const uint32_t n = b->params.repeat + 1, n_orders = s->limits[0].n_orders;
    uint32_t best = 0;
    for (uint32_t order = 1; order < n_orders; order++)
        if (median_of_order(s, order, n) > median_of_order(s, best, n)) best = order;
    b->limit_order = s->limits[0].orders[best].name;
    b->limit_gb_per_s = median_of_order(s, best, n);
    for (uint32_t i = 0; i < n; i++)
        s->limit[i] = s->limits[i].orders[best].gb_per_s;
}

/* 0 where nothing was measured to compare with. */
static double share_of(double rate, double whole) {
    return whole > 0 ? rate / whole : 0;
}

/* The median share of a bandwidth, of which the means of before and behind each sample count. */
static double median_share(const samples *s, const double *us, double bytes, const double *gb_per_s,
                           uint32_t repeat) {
    for (uint32_t i = 0; i < repeat; i++)
        s->scratch[i] = share_of(bytes / us[i] * 1e-3, (gb_per_s[i] + gb_per_s[i + 1]) / 2);
    return bench_median(s->scratch, repeat);
}

/* Takes ratios within each round, whose samples are close in time, and then their median. */
static void summarise(bench *b, const samples *s) {
    uint32_t repeat = b->params.repeat;
    choose_order(b, s);
    for (uint32_t a = 0; a < b->n_arms; a++) {
        bench_arm *arm = &b->arms[a];
        const double *us = &s->us[a * repeat];
        tamis_plan_get_counters(s->plans[a], &arm->counters);
        double bytes = (double)(arm->counters.kv_bytes_read + arm->counters.bounds_bytes_read) /
                       ((double)repeat * b->layers);
        for (uint32_t i = 0; i < repeat; i++)
            s->scratch[i] = s->us[i] / us[i];
        arm->speedup_over_full = bench_median(s->scratch, repeat);
        arm->share_of_read = median_share(s, us, bytes, s->read, repeat);
        arm->share_of_limit = median_share(s, us, bytes, s->limit, repeat);
        memcpy(s->scratch, us, repeat * sizeof(*us));
        arm->spread_us = bench_spread_of(s->scratch, repeat);
        arm->total_us = arm->spread_us.median;
        arm->gb_per_s = bytes / arm->total_us * 1e-3;
        arm->share_of_copy = share_of(arm->gb_per_s, b->copy_gb_per_s);
    }
    b->read_gb_per_s = bench_median(s->read, repeat + 1);
}

static bool make_samples(const bench *b, samples *s) {
    const size_t repeat = b->params.repeat, n = repeat + 1;
    s->us = calloc(repeat * b->n_arms, sizeof(*s->us));
    s->read = calloc(n, sizeof(*s->read));
    s->limits = calloc(n, sizeof(*s->limits));
    s->limit = calloc(n, sizeof(*s->limit));
    s->scratch = calloc(n, sizeof(*s->scratch));
    return s->us && s->read && s->limits && s->limit && s->scratch;
}

tamis_status bench_measure(bench *b, tamis_error *error) {
    samples s = {0};
    tamis_status status = make_samples(b, &s) ? TAMIS_OK : cli_no_memory(error);
    for (uint32_t a = 0; status == TAMIS_OK && a < b->n_arms; a++)
        status = bench_plan(b, &b->arms[a], 0, &s.plans[a], error);
    if (status == TAMIS_OK && !b->params.totals_alone)
        status = tamis_context_copy_bandwidth(
            b->device, bench_probe_bytes(b->device, b->params.probe), &b->copy_gb_per_s, error);
    if (status == TAMIS_OK) status = take_samples(b, &s, error);
    if (status == TAMIS_OK) summarise(b, &s);
    if (status == TAMIS_OK && records_graphs(b)) status = take_graph_samples(b, &s, error);
    for (uint32_t a = 0; a < b->n_arms; a++)
        tamis_plan_destroy(&s.plans[a]);
    for (uint32_t a = 0; status == TAMIS_OK && a < b->n_arms && !b->params.totals_alone; a++)
        status = measure_stages(b, &b->arms[a], error);
    free(s.us);
    free(s.read);
    free(s.limits);
    free(s.limit);
    free(s.scratch);
    return status;
}
