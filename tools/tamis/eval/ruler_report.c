/* SPDX-License-Identifier: Apache-2.0 */
/* The output of `tamis eval ruler`: a table, and the same rows for JSON. */
#include "eval/ruler.h"

#include <inttypes.h>

const char *const ruler_times[RULER_TIMES + 1] = {"later", "known", NULL};

/* A row of the report. */
typedef struct line {
    const char *task, *time; /* time: "-" of a selection */
    uint32_t length;
    const eval_arm *arm;
    const ruler_result *result, *full; /* full: of the same task and length */
} line;

static double per_token(uint64_t bytes, const ruler_result *r) {
    return r->cost.tokens > 0 ? (double)bytes / (double)r->cost.tokens : 0;
}

static double bytes_read(const line *l) {
    return per_token(l->result->cost.bytes_read, l->result);
}

/* The bytes that full reads for a token. After an eviction the arm's own counters cannot say it:
 * then what full's arm has read. */
static double bytes_full(const line *l) {
    const ruler_result *from = eval_arm_evicts(l->arm) ? l->full : l->result;
    return per_token(from->cost.bytes_full, from);
}

static double accuracy(const ruler_result *r) {
    return r->score / (double)r->questions;
}

static double speed(const ruler_result *r) {
    return r->cost.tokens > 0 ? (double)r->cost.tokens / r->cost.seconds : 0;
}

/* Calls `add` for every row; false as soon as that is false. */
static bool for_lines(const ruler_report *report, bool (*add)(void *user, const line *l),
                      void *user) {
    const eval_arms *arms = report->rig->arms;
    const ruler_result *row = report->results;
    for (uint32_t t = 0; t < report->tasks->count; t++)
        for (uint32_t n = 0; n < report->lengths->count; n++, row += arms->count * RULER_TIMES)
            for (uint32_t a = 0; a < arms->count; a++) {
                bool evicts = eval_arm_evicts(&arms->arms[a]);
                for (uint32_t i = 0; i < (evicts ? report->times->count : 1); i++) {
                    uint32_t time = evicts ? report->times->values[i] : RULER_LATER;
                    const line l = {ruler_task_names[report->tasks->values[t]],
                                    evicts ? ruler_times[time] : "-",
                                    report->lengths->values[n],
                                    &arms->arms[a],
                                    &row[a * RULER_TIMES + time],
                                    row};
                    if (!add(user, &l)) return false;
                }
            }
    return true;
}

static bool add_line(void *user, const line *l) {
    cli_table *table = user;
    double low, high;
    eval_interval(l->result->score, l->result->questions, &low, &high);
    cli_table_add(table, "%s", l->task);
    cli_table_add(table, "%s", l->arm->select.text);
    cli_table_add(table, "%s", l->arm->score);
    eval_add_budget(table, l->arm);
    cli_table_add(table, "%s", l->time);
    cli_table_add(table, "%u", l->length);
    cli_table_add(table, "%" PRIu64, l->result->questions);
    cli_table_add(table, "%.3f", accuracy(l->result));
    cli_table_add(table, "%.3f-%.3f", low, high);
    cli_table_add(table, "%.1f", speed(l->result));
    cli_table_add(table, "%s", cli_bytes(bytes_read(l)).text);
    cli_table_add(table, "%.3f", bytes_read(l) / bytes_full(l));
    return true;
}

bool ruler_print(const ruler_report *report) {
    static const char *const head[] = {"task",     "select",   "score",         "budget",
                                       "question", "length",   "trials",        "accuracy",
                                       "ci95",     "tokens/s", "KV-read/token", "share-of-full"};
    const tamis_device_info *device = tamis_context_device(report->rig->context);
    const tamis_model_info *model = tamis_model_describe(report->rig->model);
    cli_table table = {.columns = sizeof(head) / sizeof(head[0])};
    for (size_t i = 0; i < table.columns; i++)
        cli_table_add(&table, "%s", head[i]);
    for_lines(report, add_line, &table);
    printf("%u texts of each task and length by %s on %s (%s)\n", report->n_texts,
           cli_model_name(model), device->id, device->name);
    bool printed = cli_table_print(&table);
    cli_table_free(&table);
    return printed;
}

static bool add_row(void *rows, const line *l) {
    const ruler_result *r = l->result;
    cJSON *row = cli_json_row(rows);
    double ends[2];
    eval_interval(r->score, r->questions, &ends[0], &ends[1]);
    return eval_add_arm(row, l->arm, l->length) &&
           (!eval_arm_evicts(l->arm) ||
            cJSON_AddStringToObject(row, "question", l->time) != NULL) &&
           cJSON_AddStringToObject(row, "task", l->task) != NULL &&
           cJSON_AddNumberToObject(row, "trials", (double)r->questions) != NULL &&
           cJSON_AddNumberToObject(row, "accuracy", accuracy(r)) != NULL &&
           cJSON_AddItemToObject(row, "ci95", cJSON_CreateDoubleArray(ends, 2)) &&
           cJSON_AddNumberToObject(row, "tokens_per_s", speed(r)) != NULL &&
           cJSON_AddNumberToObject(row, "kv_bytes_read_per_token", bytes_read(l)) != NULL &&
           cJSON_AddNumberToObject(row, "kv_bytes_full_per_token", bytes_full(l)) != NULL &&
           cJSON_AddNumberToObject(row, "kv_bytes_held", (double)r->bytes_held) != NULL;
}

cJSON *ruler_rows(const ruler_report *report) {
    cJSON *rows = cJSON_CreateArray();
    if (rows != NULL && for_lines(report, add_row, rows)) return rows;
    cJSON_Delete(rows);
    return NULL;
}
