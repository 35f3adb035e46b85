/* SPDX-License-Identifier: Apache-2.0 */
/* The output of `tamis eval recall`: tables of means over layers and heads, and every head as
 * JSON. */
#include "eval/recall.h"

/* Layer or head in a row of means over all of them. */
#define ALL UINT32_MAX

/* What the rows of one result have in common. */
typedef struct view {
    const eval_arms *arms;
    const tamis_model_info *shape;
    const recall_result *result;
} view;

/* Means over query tokens, and over the given layer and head or all of them. */
static recall_sums mean_of(const view *v, uint32_t arm, uint32_t layer, uint32_t head) {
    uint32_t layers = v->shape->n_layers, heads = v->shape->n_heads;
    recall_sums mean = {0};
    uint64_t count = 0;
    for (uint32_t l = layer == ALL ? 0 : layer; l < (layer == ALL ? layers : layer + 1); l++)
        for (uint32_t h = head == ALL ? 0 : head; h < (head == ALL ? heads : head + 1); h++) {
            const recall_sums *s = &v->result->sums[((size_t)arm * layers + l) * heads + h];
            mean.recall += s->recall;
            mean.mass += s->mass;
            mean.error += s->error;
            count += v->result->queries;
        }
    mean.recall /= (double)count;
    mean.mass /= (double)count;
    mean.error /= (double)count;
    return mean;
}

static double layer_sparsity(const view *v, uint32_t layer) {
    uint32_t heads = v->shape->n_heads;
    double sum = 0;
    for (uint32_t h = 0; h < heads; h++)
        sum += v->result->sparsity[(size_t)layer * heads + h];
    return sum / ((double)v->result->queries * heads);
}

/* ---- Tables ---------------------------------------------------------------------------------- */

static void add_head(cli_table *table, const char *const *words) {
    for (size_t i = 0; i < table->columns; i++)
        cli_table_add(table, "%s", words[i]);
}

/* The last six columns of both tables. */
static void add_means(cli_table *table, const view *v, uint32_t arm, uint32_t layer) {
    const recall_sums mean = mean_of(v, arm, layer, ALL);
    const eval_arm *a = &v->arms->arms[arm];
    cli_table_add(table, "%s", a->select.text);
    cli_table_add(table, "%s", a->score);
    eval_add_budget(table, a);
    cli_table_add(table, "%.4f", mean.recall);
    cli_table_add(table, "%.4f", mean.mass);
    cli_table_add(table, "%.4f", mean.error);
}

static void fill_totals(cli_table *table, const view *v) {
    for (uint32_t a = 0; a < v->arms->count; a++) {
        cli_table_add(table, "%u", v->result->length);
        add_means(table, v, a, ALL);
    }
}

static void fill_layers(cli_table *table, const view *v) {
    for (uint32_t layer = 0; layer < v->shape->n_layers; layer++)
        for (uint32_t a = 0; a < v->arms->count; a++) {
            cli_table_add(table, "%u", v->result->length);
            cli_table_add(table, "%u", layer);
            cli_table_add(table, "%.4f", layer_sparsity(v, layer));
            add_means(table, v, a, layer);
        }
}

static bool print_table(cli_table *table) {
    bool printed = cli_table_print(table);
    cli_table_free(table);
    return printed;
}

bool recall_print(const eval_rig *rig, const recall_result *results, uint32_t n_results) {
    static const char *const total_head[] = {"length", "select", "score", "budget",
                                             "recall", "mass",   "error"};
    static const char *const layer_head[] = {"length", "layer",  "sparsity", "select", "score",
                                             "budget", "recall", "mass",     "error"};
    const tamis_device_info *device = tamis_context_device(rig->context);
    cli_table totals = {.columns = sizeof(total_head) / sizeof(total_head[0])};
    cli_table layers = {.columns = sizeof(layer_head) / sizeof(layer_head[0])};
    add_head(&totals, total_head);
    add_head(&layers, layer_head);
    for (uint32_t i = 0; i < n_results; i++) {
        const view v = {rig->arms, tamis_model_describe(rig->model), &results[i]};
        fill_totals(&totals, &v);
        fill_layers(&layers, &v);
    }
    printf("means over layers, heads and %llu query tokens on %s (%s)\n",
           (unsigned long long)results[0].queries, device->id, device->name);
    bool printed = print_table(&totals);
    printf("\nlayer by layer; sparsity: the smallest share of tokens that holds 90 %% of the "
           "attention\n");
    return print_table(&layers) && printed;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static double index_of(uint32_t index) {
    return index == ALL ? -1 : (double)index;
}

/* A row of one layer and head at the end of `rows`; NULL without memory. */
static cJSON *add_row(cJSON *rows, uint32_t layer, uint32_t head) {
    cJSON *row = cli_json_row(rows);
    bool made = cJSON_AddNumberToObject(row, "layer", index_of(layer)) != NULL &&
                cJSON_AddNumberToObject(row, "head", index_of(head)) != NULL;
    return made ? row : NULL;
}

static bool add_figures(cJSON *rows, const view *v, uint32_t arm, uint32_t layer, uint32_t head) {
    const recall_sums mean = mean_of(v, arm, layer, head);
    cJSON *row = add_row(rows, layer, head);
    return row != NULL && eval_add_arm(row, &v->arms->arms[arm], v->result->length) &&
           cJSON_AddNumberToObject(row, "recall", mean.recall) != NULL &&
           cJSON_AddNumberToObject(row, "mass", mean.mass) != NULL &&
           cJSON_AddNumberToObject(row, "error", mean.error) != NULL;
}

static bool add_arm(cJSON *rows, const view *v, uint32_t arm) {
    bool added = add_figures(rows, v, arm, ALL, ALL);
    for (uint32_t layer = 0; added && layer < v->shape->n_layers; layer++) {
        added = add_figures(rows, v, arm, layer, ALL);
        for (uint32_t head = 0; added && head < v->shape->n_heads; head++)
            added = add_figures(rows, v, arm, layer, head);
    }
    return added;
}

static bool add_sparsity(cJSON *rows, const view *v, uint32_t layer, uint32_t head) {
    double sum = v->result->sparsity[(size_t)layer * v->shape->n_heads + head];
    cJSON *row = add_row(rows, layer, head);
    return row != NULL && cJSON_AddNumberToObject(row, "length", v->result->length) != NULL &&
           cJSON_AddNumberToObject(row, "sparsity", sum / (double)v->result->queries) != NULL;
}

static bool add_length(cJSON *rows, const view *v) {
    bool added = true;
    for (uint32_t a = 0; added && a < v->arms->count; a++)
        added = add_arm(rows, v, a);
    for (uint32_t layer = 0; layer < v->shape->n_layers; layer++)
        for (uint32_t head = 0; added && head < v->shape->n_heads; head++)
            added = add_sparsity(rows, v, layer, head);
    return added;
}

cJSON *recall_rows(const eval_rig *rig, const recall_result *results, uint32_t n_results) {
    cJSON *rows = cJSON_CreateArray();
    bool made = rows != NULL;
    for (uint32_t i = 0; made && i < n_results; i++) {
        const view v = {rig->arms, tamis_model_describe(rig->model), &results[i]};
        made = add_length(rows, &v);
    }
    if (made) return rows;
    cJSON_Delete(rows);
    return NULL;
}
