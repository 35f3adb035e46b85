/* SPDX-License-Identifier: Apache-2.0 */
/* What `tamis blend trial` decides, and its output: a table, and the same figures for JSON. */
#include "blend/blend.h"

#include <inttypes.h>
#include <math.h>

static double mean_of(const double *values, uint64_t n) {
    double sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += values[i];
    return n > 0 ? sum / (double)n : 0;
}

static void fill_figures(const blend_rig *rig, trial_cell *cell, const tamis_blend_trial *trial,
                         tamis_blend_figures *out) {
    const double layers = rig->n_layers;
    for (uint32_t l = 0; l < rig->n_layers; l++) {
        const blend_sums *s = &cell->sums[l];
        out->k_deviation += blend_relative(s->k, s->k_full) / layers;
        out->v_deviation += blend_relative(s->v, s->v_full) / layers;
        out->attention_deviation += blend_relative(s->out, s->out_full) / layers;
    }
    out->kl_mean = mean_of(cell->divergences, cell->tokens);
    out->kl_p95 = blend_quantile(cell->divergences, cell->tokens, 0.95);
    out->agreement = (double)cell->agreed / (double)cell->tokens;
    out->left = cell->left;
    out->passed = out->kl_mean <= trial->max_kl && out->agreement >= trial->min_agreement;
}

void trial_decide(const blend_rig *rig, trial_cell *cells, tamis_blend_trial *trial) {
    trial->share = 0;
    for (uint32_t i = trial->n_figures; i-- > 0;)
        fill_figures(rig, &cells[i], trial, &trial->figures[i]);
    for (uint32_t i = trial->n_figures; i-- > 0 && trial->figures[i].passed;)
        trial->share = trial->figures[i].share;
}

bool trial_print(const trial_report *report) {
    static const char *const head[] = {"share", "KL",        "KL-p95", "agreement", "answers", "K",
                                       "V",     "attention", "left",   "rows",      "passed"};
    const tamis_blend_trial *p = report->trial;
    const tamis_device_info *device = tamis_context_device(report->rig->context);
    cli_table table = {.columns = sizeof(head) / sizeof(head[0])};
    for (size_t i = 0; i < table.columns; i++)
        cli_table_add(&table, "%s", head[i]);
    for (uint32_t i = 0; i < p->n_figures; i++) {
        const tamis_blend_figures *f = &p->figures[i];
        const trial_cell *cell = &report->cells[i];
        cli_table_add(&table, "%g", f->share);
        cli_table_add(&table, "%.5f", f->kl_mean);
        cli_table_add(&table, "%.5f", f->kl_p95);
        cli_table_add(&table, "%.3f", f->agreement);
        cli_table_add(&table, "%" PRIu64 "/%" PRIu64, cell->same, cell->prompts);
        cli_table_add(&table, "%.4f", f->k_deviation);
        cli_table_add(&table, "%.4f", f->v_deviation);
        cli_table_add(&table, "%.4f", f->attention_deviation);
        cli_table_add(&table, "%.3f", f->left);
        cli_table_add(&table, "%.3f", cell->rows / (double)cell->prompts);
        cli_table_add(&table, f->passed ? "yes" : "no");
    }
    printf("%u prompts of %u chunks of %u tokens, %s, %s records behind %u token%s, by %s on %s "
           "(%s); bounds: KL %g, agreement %g\n",
           p->prompts, p->chunks, p->chunk_tokens, tamis_blend_selector_name(p->selector),
           tamis_dtype_name(p->dtype), p->n_sink, p->n_sink == 1 ? "" : "s", p->model, device->id,
           device->name, p->max_kl, p->min_agreement);
    const bool printed = cli_table_print(&table);
    cli_table_free(&table);
    if (printed && p->share > 0) printf("smallest share that passed: %g\n", p->share);
    return printed;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

cJSON *trial_json_settings(const trial_report *report) {
    const tamis_blend_trial *p = report->trial;
    const cli_number numbers[] = {{"check_layer", p->check_layer},
                                  {"sink", p->n_sink},
                                  {"prompts", p->prompts},
                                  {"chunks", p->chunks},
                                  {"chunk_tokens", p->chunk_tokens},
                                  {"answer_tokens", p->answer_tokens},
                                  {"max_kl", p->max_kl},
                                  {"min_agreement", p->min_agreement}};
    cJSON *out = cJSON_CreateObject();
    const bool made =
        cJSON_AddStringToObject(out, "fingerprint", cli_hex(p->fingerprint).text) != NULL &&
        cJSON_AddStringToObject(out, "select", tamis_blend_selector_name(p->selector)) != NULL &&
        cJSON_AddStringToObject(out, "schedule", blend_schedules[p->schedule]) != NULL &&
        cJSON_AddStringToObject(out, "dtype", tamis_dtype_name(p->cache_dtype)) != NULL &&
        cJSON_AddStringToObject(out, "stored", tamis_dtype_name(p->dtype)) != NULL &&
        cli_json_numbers(out, numbers, sizeof(numbers) / sizeof(numbers[0])) &&
        (p->share > 0 ? cJSON_AddNumberToObject(out, "share", p->share) != NULL
                      : cJSON_AddNullToObject(out, "share") != NULL);
    if (made) return out;
    cJSON_Delete(out);
    return NULL;
}

static bool add_row(cJSON *rows, const tamis_blend_figures *f, const trial_cell *cell) {
    const cli_number numbers[] = {{"share", f->share},
                                  {"kl_mean", f->kl_mean},
                                  {"kl_p95", f->kl_p95},
                                  {"agreement", f->agreement},
                                  {"answers_same", (double)cell->same},
                                  {"k_deviation", f->k_deviation},
                                  {"v_deviation", f->v_deviation},
                                  {"attention_deviation", f->attention_deviation},
                                  {"left", f->left},
                                  {"rows_computed", cell->rows / (double)cell->prompts}};
    cJSON *row = cli_json_row(rows);
    return cli_json_numbers(row, numbers, sizeof(numbers) / sizeof(numbers[0])) &&
           cJSON_AddBoolToObject(row, "passed", f->passed != 0) != NULL;
}

cJSON *trial_json_rows(const trial_report *report) {
    cJSON *rows = cJSON_CreateArray();
    bool made = rows != NULL;
    for (uint32_t i = 0; made && i < report->trial->n_figures; i++)
        made = add_row(rows, &report->trial->figures[i], &report->cells[i]);
    if (made) return rows;
    cJSON_Delete(rows);
    return NULL;
}
