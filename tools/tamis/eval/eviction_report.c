/* SPDX-License-Identifier: Apache-2.0 */
/* The output of `tamis eval eviction`: a table, and the same rows with every layer for JSON. */
#include "eval/eviction.h"

#include <inttypes.h>
#include <math.h>

/* Layer of figures that are means over all. */
#define ALL UINT32_MAX

/* One figure for each seed, and their standard deviation. */
typedef struct spread {
    uint32_t n;
    double values[EVICTION_SEEDS_MAX];
} spread;

static double mean_of(const spread *s) {
    double sum = 0;
    for (uint32_t i = 0; i < s->n; i++)
        sum += s->values[i];
    return sum / s->n;
}

/* Of the seeds as a sample; 0 for one alone. */
static double deviation_of(const spread *s) {
    double mean = mean_of(s), sum = 0;
    for (uint32_t i = 0; i < s->n; i++)
        sum += (s->values[i] - mean) * (s->values[i] - mean);
    return s->n > 1 ? sqrt(sum / (s->n - 1)) : 0;
}

/* Means over rows of sums [seed][layer]. */
static spread means_of(const eviction_run *run, const double *sums, const uint64_t *rows,
                       uint32_t layer) {
    uint32_t layers = run->shape.n_layers, first = layer == ALL ? 0 : layer;
    uint32_t end = layer == ALL ? layers : layer + 1;
    spread out = {.n = run->flags->n_seeds};
    for (uint32_t s = 0; s < out.n; s++) {
        for (uint32_t l = first; l < end; l++)
            out.values[s] += sums[(size_t)s * layers + l];
        if (rows[s] > 0) out.values[s] /= (double)rows[s] * (end - first);
    }
    return out;
}

static double asked(const eviction_run *run) {
    return (double)run->flags->n_texts * run->flags->n_questions;
}

static spread shares_of(const eviction_run *run, const uint32_t *right) {
    spread out = {.n = run->flags->n_seeds};
    for (uint32_t s = 0; s < out.n; s++)
        out.values[s] = right[s] / asked(run);
    return out;
}

static double texts(const eviction_run *run) {
    return (double)run->flags->n_texts * run->flags->n_seeds;
}

/* ---- The table ------------------------------------------------------------------------------- */

static void add_spread(cli_table *table, int digits, const spread *s) {
    cli_table_add(table, "%.*f", digits, mean_of(s));
    cli_table_add(table, "%.*f", digits, deviation_of(s));
}

static void add_line(cli_table *table, const eviction_run *run, uint32_t a) {
    const eval_arm *arm = &run->arms.arms[a];
    const eviction_result *r = &run->results[a];
    const spread error = means_of(run, r->after.error, run->rows_after, ALL);
    const spread cosine = means_of(run, r->after.cosine, run->rows_after, ALL);
    const spread within = means_of(run, r->within.error, run->rows_within, ALL);
    const spread right = shares_of(run, r->after.right), single = shares_of(run, r->within.right);
    cli_table_add(table, "%s", arm->select.text);
    eval_add_budget(table, arm);
    cli_table_add(table, "%.1f", r->tokens_kept / texts(run));
    cli_table_add(table, "%s", cli_bytes(r->bytes_returned / texts(run)).text);
    add_spread(table, 4, &error);
    add_spread(table, 4, &cosine);
    add_spread(table, 3, &right);
    add_spread(table, 4, &within);
    cli_table_add(table, "%.3f", mean_of(&single));
    if (eval_arm_evicts(arm))
        cli_table_add(table, "%.0f", r->policy_us / texts(run));
    else
        cli_table_add(table, "-");
}

bool eviction_print(const eviction_run *run) {
    static const char *const head[] = {"evict",
                                       "budget",
                                       "tokens_kept",
                                       "bytes_returned",
                                       "output_error",
                                       "+-",
                                       "output_cosine",
                                       "+-",
                                       "passkey_accuracy",
                                       "+-",
                                       "error_single",
                                       "+-",
                                       "passkey_single",
                                       "policy_us"};
    const eviction_flags *f = run->flags;
    const tamis_device_info *device = tamis_context_device(run->rig.context);
    const tamis_model_info *model = &run->shape;
    uint64_t rows = 0;
    cli_table table = {.columns = sizeof(head) / sizeof(head[0])};
    for (size_t i = 0; i < table.columns; i++)
        cli_table_add(&table, "%s", head[i]);
    for (uint32_t a = 0; a < run->arms.count; a++)
        add_line(&table, run, a);
    for (uint32_t s = 0; s < f->n_seeds; s++)
        rows += run->rows_after[s];
    printf("%u seeds, %u texts of %u tokens each, %u questions a text (%" PRIu64
           " rows a layer), by %s on %s (%s); no layer is dense\n",
           f->n_seeds, f->n_texts, f->length, f->n_questions, rows, cli_model_name(model),
           device->id, device->name);
    bool printed = cli_table_print(&table);
    cli_table_free(&table);
    return printed;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static bool add_number(cJSON *row, const char *name, double value) {
    return cJSON_AddNumberToObject(row, name, value) != NULL;
}

/* The mean under `name`, beside it name_spread. */
static bool add_figure(cJSON *row, const char *name, const spread *s) {
    char with[64];
    snprintf(with, sizeof(with), "%s_spread", name);
    return add_number(row, name, mean_of(s)) && add_number(row, with, deviation_of(s));
}

static bool add_outputs(cJSON *row, const eviction_run *run, const eviction_result *r,
                        uint32_t layer) {
    const spread error = means_of(run, r->after.error, run->rows_after, layer);
    const spread cosine = means_of(run, r->after.cosine, run->rows_after, layer);
    const spread error_within = means_of(run, r->within.error, run->rows_within, layer);
    const spread cosine_within = means_of(run, r->within.cosine, run->rows_within, layer);
    return add_figure(row, "output_error", &error) && add_figure(row, "output_cosine", &cosine) &&
           add_figure(row, "error_single", &error_within) &&
           add_figure(row, "cosine_single", &cosine_within);
}

static bool add_layers(cJSON *row, const eviction_run *run, const eviction_result *r) {
    cJSON *layers = cJSON_AddArrayToObject(row, "layers");
    for (uint32_t l = 0; layers != NULL && l < run->shape.n_layers; l++) {
        cJSON *layer = cJSON_CreateObject();
        if (!cJSON_AddItemToArray(layers, layer)) {
            cJSON_Delete(layer);
            return false;
        }
        if (!add_number(layer, "layer", l) || !add_outputs(layer, run, r, l)) return false;
    }
    return layers != NULL;
}

/* The interval of a share of all questions, of all seeds together. */
static bool add_interval(cJSON *row, const char *name, const eviction_run *run,
                         const uint32_t *right) {
    uint64_t found = 0, trials = (uint64_t)(texts(run) * run->flags->n_questions);
    double ends[2];
    for (uint32_t s = 0; s < run->flags->n_seeds; s++)
        found += right[s];
    eval_interval((double)found, trials, &ends[0], &ends[1]);
    return cJSON_AddItemToObject(row, name, cJSON_CreateDoubleArray(ends, 2));
}

static bool add_accuracy(cJSON *row, const eviction_run *run, const eviction_result *r) {
    const spread right = shares_of(run, r->after.right), single = shares_of(run, r->within.right);
    return add_figure(row, "passkey_accuracy", &right) &&
           add_interval(row, "passkey_ci95", run, r->after.right) &&
           add_figure(row, "passkey_single", &single) &&
           add_interval(row, "passkey_single_ci95", run, r->within.right);
}

/* Times are null where nothing is evicted. */
static bool add_times(cJSON *row, const eviction_run *run, uint32_t a) {
    const eviction_result *r = &run->results[a];
    if (!eval_arm_evicts(&run->arms.arms[a]))
        return cJSON_AddNullToObject(row, "policy_us") != NULL &&
               cJSON_AddNullToObject(row, "policy_us_per_step") != NULL;
    return add_number(row, "policy_us", r->policy_us / texts(run)) &&
           add_number(row, "policy_us_per_step", r->step_us / (double)run->steps);
}

static bool add_row(cJSON *rows, const eviction_run *run, uint32_t a) {
    const eval_arm *arm = &run->arms.arms[a];
    const eviction_result *r = &run->results[a];
    cJSON *row = cli_json_row(rows);
    return cJSON_AddStringToObject(row, "evict", arm->select.text) != NULL &&
           add_number(row, "budget", eval_arm_budget(arm, run->flags->length)) &&
           add_number(row, "tokens_kept", r->tokens_kept / texts(run)) &&
           add_number(row, "bytes_returned", r->bytes_returned / texts(run)) &&
           add_outputs(row, run, r, ALL) && add_accuracy(row, run, r) && add_times(row, run, a) &&
           add_layers(row, run, r);
}

cJSON *eviction_json_rows(const eviction_run *run) {
    cJSON *rows = cJSON_CreateArray();
    bool made = rows != NULL;
    for (uint32_t a = 0; made && a < run->arms.count; a++)
        made = add_row(rows, run, a);
    if (made) return rows;
    cJSON_Delete(rows);
    return NULL;
}
