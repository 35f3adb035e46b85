/* SPDX-License-Identifier: Apache-2.0 */
/* The output of `tamis eval blend`: two tables, and the same figures for JSON. */
#include "eval/blend.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Figures --------------------------------------------------------------------------------- */

/* The parts of a deviation, at their places in blend_sums. */
enum { OF_K, OF_V, OF_ATTENTION, DEVIATIONS };
static const char *const deviation_names[DEVIATIONS] = {"k_deviation", "v_deviation",
                                                        "attention_deviation"};

static double deviation(const blend_sums *sums, int which) {
    switch (which) {
    case OF_K:
        return blend_relative(sums->k, sums->k_full);
    case OF_V:
        return blend_relative(sums->v, sums->v_full);
    default:
        return blend_relative(sums->out, sums->out_full);
    }
}

static double mean_deviation(const blend_report *report, const blend_cell *cell, int which) {
    double sum = 0;
    for (uint32_t l = 0; l < report->rig->n_layers; l++)
        sum += deviation(&cell->sums[l], which);
    return sum / report->rig->n_layers;
}

typedef struct figures {
    double accuracy, low, high, agreement, kl_mean, kl_p95, seconds, rows;
} figures;

/* Sorts the cell's divergences and seconds. */
static figures figures_of(const blend_cell *cell, uint32_t ask) {
    const double n = (double)cell->asked[ask];
    double sum = 0;
    figures out = {.accuracy = (double)cell->right[ask] / n,
                   .agreement = (double)cell->agreed[ask] / n,
                   .seconds = blend_quantile(cell->seconds, cell->prompts, 0.5),
                   .rows = cell->rows / (double)cell->prompts};
    for (uint64_t i = 0; i < cell->asked[ask]; i++)
        sum += cell->divergences[ask][i];
    out.kl_mean = sum / n;
    out.kl_p95 = blend_quantile(cell->divergences[ask], cell->asked[ask], 0.95);
    eval_interval((double)cell->right[ask], cell->asked[ask], &out.low, &out.high);
    return out;
}

/* ---- Tables ---------------------------------------------------------------------------------- */

static void add_line(cli_table *table, const blend_report *report, uint32_t chunks, uint32_t ask,
                     const blend_arm *arm, const blend_cell *cell) {
    const figures f = figures_of(cell, ask);
    cli_table_add(table, "%u", chunks);
    cli_table_add(table, "%s", blend_ask_names[ask]);
    cli_table_add(table, "%s", arm->name);
    cli_table_add(table, arm->share > 0 ? "%u %%" : "-", arm->share);
    cli_table_add(table, "%" PRIu64, cell->asked[ask]);
    cli_table_add(table, "%" PRIu64, cell->right[ask]);
    cli_table_add(table, "%.3f", f.accuracy);
    cli_table_add(table, "%.3f-%.3f", f.low, f.high);
    cli_table_add(table, "%.3f", f.agreement);
    cli_table_add(table, "%.4f", f.kl_mean);
    cli_table_add(table, "%.4f", f.kl_p95);
    cli_table_add(table, "%.3f s", f.seconds);
    cli_table_add(table, "%.3f", f.rows);
    for (int which = 0; which < DEVIATIONS; which++)
        if (cell->measured > 0)
            cli_table_add(table, "%.4f", mean_deviation(report, cell, which));
        else
            cli_table_add(table, "-");
}

static bool print_arms(const blend_report *report) {
    static const char *const head[] = {
        "chunks",    "ask", "arm",    "share", "questions", "right", "accuracy", "ci95",
        "agreement", "KL",  "KL-p95", "TTFT",  "rows",      "K",     "V",        "attention"};
    cli_table table = {.columns = sizeof(head) / sizeof(head[0])};
    for (size_t i = 0; i < table.columns; i++)
        cli_table_add(&table, "%s", head[i]);
    for (uint32_t c = 0; c < report->counts->count; c++)
        for (uint32_t k = 0; k < report->asks->count; k++)
            for (uint32_t a = 0; a < report->n_arms; a++)
                add_line(&table, report, report->counts->values[c], report->asks->values[k],
                         &report->arms[a], &report->cells[(size_t)c * report->n_arms + a]);
    const bool printed = cli_table_print(&table);
    cli_table_free(&table);
    return printed;
}

static uint32_t held_shares(const blend_report *report) {
    return report->shares->count < BLEND_SHARES_MAX ? report->shares->count : BLEND_SHARES_MAX;
}

static void add_figure(cli_table *table, double value) {
    cli_table_add(table, isfinite(value) ? "%.3f" : "-", value);
}

static void add_layers(cli_table *table, const blend_report *report, uint32_t count) {
    const double n = (double)report->layered[count];
    for (uint32_t l = 0; l < report->rig->n_layers; l++) {
        const blend_layer *layer = &report->layers[(size_t)count * report->rig->n_layers + l];
        cli_table_add(table, "%u", report->counts->values[count]);
        cli_table_add(table, "%u", l);
        add_figure(table, l + 1 < report->rig->n_layers ? layer->correlation / n : NAN);
        for (uint32_t s = 0; s < held_shares(report); s++)
            add_figure(table, layer->held[s] / n);
    }
}

static bool print_layers(const blend_report *report) {
    cli_table table = {.columns = 3 + held_shares(report)};
    if (report->layered[0] == 0) return true;
    cli_table_add(&table, "chunks");
    cli_table_add(&table, "layer");
    cli_table_add(&table, "rank-correlation");
    for (uint32_t s = 0; s < held_shares(report); s++)
        cli_table_add(&table, "top-%u-%%", report->shares->values[s]);
    for (uint32_t c = 0; c < report->counts->count; c++)
        add_layers(&table, report, c);
    printf("\nof reuse: rows' deviations of V beside those in the next layer, and the part of the "
           "sum that the top rows hold\n");
    const bool printed = cli_table_print(&table);
    cli_table_free(&table);
    return printed;
}

bool blend_print(const blend_report *report) {
    const tamis_device_info *device = tamis_context_device(report->rig->context);
    const tamis_model_info *model = tamis_model_describe(report->rig->model);
    printf("chunks of %u tokens, %s records behind %u token%s, by %s on %s (%s)\n",
           report->chunk_tokens, tamis_dtype_name(report->rig->record.dtype),
           report->rig->record.n_sink, report->rig->record.n_sink == 1 ? "" : "s",
           model->name[0] != '\0' ? model->name : model->architecture, device->id, device->name);
    return print_arms(report) && print_layers(report);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static bool add_deviations(cJSON *row, const blend_report *report, const blend_cell *cell) {
    const uint32_t n = report->rig->n_layers;
    double *values = malloc(n * sizeof(*values));
    bool added = values != NULL;
    for (int which = 0; added && cell->measured > 0 && which < DEVIATIONS; which++) {
        for (uint32_t l = 0; l < n; l++)
            values[l] = deviation(&cell->sums[l], which);
        added = cJSON_AddItemToObject(row, deviation_names[which],
                                      cJSON_CreateDoubleArray(values, (int)n));
    }
    free(values);
    return added;
}

static bool add_row(cJSON *rows, const blend_report *report, uint32_t chunks, uint32_t ask,
                    const blend_arm *arm, const blend_cell *cell) {
    const figures f = figures_of(cell, ask);
    const double ends[] = {f.low, f.high};
    const cli_number numbers[] = {{"chunks", chunks},
                                  {"questions", (double)cell->asked[ask]},
                                  {"right", (double)cell->right[ask]},
                                  {"accuracy", f.accuracy},
                                  {"agreement", f.agreement},
                                  {"kl_mean", f.kl_mean},
                                  {"kl_p95", f.kl_p95},
                                  {"ttft_seconds", f.seconds},
                                  {"rows_computed", f.rows},
                                  {"prompts", (double)cell->prompts},
                                  {"measured", (double)cell->measured}};
    cJSON *row = cli_json_row(rows);
    return cJSON_AddStringToObject(row, "arm", arm->name) != NULL &&
           cJSON_AddStringToObject(row, "ask", blend_ask_names[ask]) != NULL &&
           (arm->share == 0 || cJSON_AddNumberToObject(row, "share", arm->share / 100.0) != NULL) &&
           cli_json_numbers(row, numbers, sizeof(numbers) / sizeof(numbers[0])) &&
           cJSON_AddItemToObject(row, "ci95", cJSON_CreateDoubleArray(ends, 2)) &&
           add_deviations(row, report, cell);
}

cJSON *blend_json_rows(const blend_report *report) {
    cJSON *rows = cJSON_CreateArray();
    bool made = rows != NULL;
    for (uint32_t c = 0; c < report->counts->count; c++)
        for (uint32_t k = 0; k < report->asks->count; k++)
            for (uint32_t a = 0; made && a < report->n_arms; a++)
                made = add_row(rows, report, report->counts->values[c], report->asks->values[k],
                               &report->arms[a], &report->cells[(size_t)c * report->n_arms + a]);
    if (made) return rows;
    cJSON_Delete(rows);
    return NULL;
}

/* A number, or null for what is none. */
static cJSON *number_or_null(double value) {
    return isfinite(value) ? cJSON_CreateNumber(value) : cJSON_CreateNull();
}

static bool add_layer(cJSON *layers, const blend_report *report, uint32_t count, uint32_t l) {
    const blend_layer *layer = &report->layers[(size_t)count * report->rig->n_layers + l];
    const double n = (double)report->layered[count];
    cJSON *row = cli_json_row(layers);
    const double correlation = l + 1 < report->rig->n_layers ? layer->correlation / n : NAN;
    cJSON *held = cJSON_CreateArray();
    bool added = cJSON_AddNumberToObject(row, "chunks", report->counts->values[count]) != NULL &&
                 cJSON_AddNumberToObject(row, "layer", l) != NULL &&
                 cJSON_AddItemToObject(row, "rank_correlation", number_or_null(correlation));
    for (uint32_t s = 0; added && s < held_shares(report); s++)
        added = cJSON_AddItemToArray(held, number_or_null(layer->held[s] / n));
    if (added && cJSON_AddItemToObject(row, "held", held)) return true;
    cJSON_Delete(held);
    return false;
}

cJSON *blend_json_layers(const blend_report *report) {
    cJSON *layers = cJSON_CreateArray();
    bool made = layers != NULL;
    for (uint32_t c = 0; c < report->counts->count; c++)
        for (uint32_t l = 0; made && report->layered[c] > 0 && l < report->rig->n_layers; l++)
            made = add_layer(layers, report, c, l);
    if (made) return layers;
    cJSON_Delete(layers);
    return NULL;
}
