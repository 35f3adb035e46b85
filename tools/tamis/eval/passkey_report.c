/* SPDX-License-Identifier: Apache-2.0 */
/* The output of `tamis eval passkey`: a table, and the same rows for JSON. */
#include "eval/passkey.h"

#include <inttypes.h>

static uint64_t all_right(const passkey_report *report, const passkey_result *result) {
    uint64_t right = 0;
    for (uint32_t i = 0; i < report->n_keys; i++)
        right += result->right[i];
    return right;
}

static double bytes_read(const passkey_result *r) {
    return (double)(r->counters.kv_bytes_read + r->counters.bounds_bytes_read) / (double)r->tokens;
}

/* The bytes that full reads for the same tokens. After an eviction the arm's own counters cannot
 * say it: then the bytes that full's arm, the first of the length, has read. */
static double bytes_full(const eval_arm *arm, const passkey_result *r, const passkey_result *full) {
    const passkey_result *from = eval_arm_evicts(arm) ? full : r;
    return (double)from->counters.kv_bytes_full / (double)from->tokens;
}

static void add_line(cli_table *table, const passkey_report *report, uint32_t length,
                     const eval_arm *arm, const passkey_result *result,
                     const passkey_result *full) {
    uint64_t right = all_right(report, result);
    uint64_t trials = (uint64_t)report->n_texts * report->n_keys;
    double low, high;
    eval_interval((double)right, trials, &low, &high);
    cli_table_add(table, "%s", arm->select.text);
    cli_table_add(table, "%s", arm->score);
    eval_add_budget(table, arm);
    cli_table_add(table, "%u", length);
    cli_table_add(table, "%" PRIu64, trials);
    cli_table_add(table, "%" PRIu64, right);
    cli_table_add(table, "%.3f", (double)right / (double)trials);
    cli_table_add(table, "%.3f-%.3f", low, high);
    cli_table_add(table, "%.1f", (double)result->tokens / result->seconds);
    cli_table_add(table, "%s", cli_bytes(bytes_read(result)).text);
    cli_table_add(table, "%.3f", bytes_read(result) / bytes_full(arm, result, full));
}

bool passkey_print(const passkey_report *report) {
    static const char *const head[] = {"select",   "score",         "budget",       "length",
                                       "trials",   "right",         "accuracy",     "ci95",
                                       "tokens/s", "KV-read/token", "share-of-full"};
    const eval_arms *arms = report->rig->arms;
    const tamis_device_info *device = tamis_context_device(report->rig->context);
    const tamis_model_info *model = tamis_model_describe(report->rig->model);
    cli_table table = {.columns = sizeof(head) / sizeof(head[0])};
    for (size_t i = 0; i < table.columns; i++)
        cli_table_add(&table, "%s", head[i]);
    for (uint32_t l = 0; l < report->lengths->count; l++)
        for (uint32_t a = 0; a < arms->count; a++)
            add_line(&table, report, report->lengths->values[l], &arms->arms[a],
                     &report->results[l * arms->count + a], &report->results[l * arms->count]);
    printf("%u texts of each length, %u keys each, by %s on %s (%s); tokens/s: of a batch of up to "
           "%u forks that share a text's pages\n",
           report->n_texts, report->n_keys, cli_model_name(model), device->id, device->name,
           report->n_keys);
    bool printed = cli_table_print(&table);
    cli_table_free(&table);
    return printed;
}

static bool add_accuracy(cJSON *row, const passkey_report *report, const passkey_result *result) {
    uint64_t right = all_right(report, result);
    uint64_t trials = (uint64_t)report->n_texts * report->n_keys;
    double ends[2], depths[PASSKEY_KEYS_MAX];
    eval_interval((double)right, trials, &ends[0], &ends[1]);
    for (uint32_t i = 0; i < report->n_keys; i++)
        depths[i] = (double)result->right[i] / report->n_texts;
    return cJSON_AddNumberToObject(row, "trials", (double)trials) != NULL &&
           cJSON_AddNumberToObject(row, "accuracy", (double)right / (double)trials) != NULL &&
           cJSON_AddItemToObject(row, "ci95", cJSON_CreateDoubleArray(ends, 2)) &&
           cJSON_AddItemToObject(row, "depth_accuracy",
                                 cJSON_CreateDoubleArray(depths, (int)report->n_keys));
}

static bool add_row(cJSON *rows, const passkey_report *report, uint32_t length, const eval_arm *arm,
                    const passkey_result *result, const passkey_result *full) {
    cJSON *row = cli_json_row(rows);
    return eval_add_arm(row, arm, length) && add_accuracy(row, report, result) &&
           cJSON_AddNumberToObject(row, "tokens_per_s", (double)result->tokens / result->seconds) !=
               NULL &&
           cJSON_AddNumberToObject(row, "kv_bytes_read_per_token", bytes_read(result)) != NULL &&
           cJSON_AddNumberToObject(row, "kv_bytes_full_per_token", bytes_full(arm, result, full)) !=
               NULL &&
           cJSON_AddNumberToObject(row, "kv_bytes_held", (double)result->bytes_held) != NULL;
}

cJSON *passkey_rows(const passkey_report *report) {
    const eval_arms *arms = report->rig->arms;
    cJSON *rows = cJSON_CreateArray();
    bool made = rows != NULL;
    for (uint32_t l = 0; l < report->lengths->count; l++)
        for (uint32_t a = 0; made && a < arms->count; a++)
            made =
                add_row(rows, report, report->lengths->values[l], &arms->arms[a],
                        &report->results[l * arms->count + a], &report->results[l * arms->count]);
    if (made) return rows;
    cJSON_Delete(rows);
    return NULL;
}
