/* SPDX-License-Identifier: Apache-2.0 */
/* The output of `tamis compare`: a table for each question, and the same rows for JSON. */
#include "cli/answer.h"
#include "compare/compare.h"

#include <stdlib.h>
#include <string.h>

static double median(const compare_run *run, const compare_result *result) {
    const uint32_t n = run->rounds;
    return (result->rates[(n - 1) / 2] + result->rates[n / 2]) / 2;
}

static double bytes_read(const compare_result *r) {
    return (double)r->bytes_read / (double)r->tokens;
}

/* The bytes that full reads for a token of the same text. After an eviction the arm's own counters
 * cannot say it; then those that full, the first arm, has read. */
static double bytes_full(const eval_arm *arm, const compare_result *r, const compare_result *full) {
    const compare_result *from = eval_arm_evicts(arm) ? full : r;
    return (double)from->bytes_full / (double)from->tokens;
}

static void add_line(cli_table *table, const compare_run *run, uint32_t arm,
                     const compare_result *results) {
    const eval_arm *a = &run->arms.arms[arm];
    const compare_result *r = &results[arm];
    cli_table_add(table, "%s", a->select.text);
    cli_table_add(table, "%s", a->score);
    eval_add_budget(table, a);
    cli_table_add(table, "%.1f", median(run, r));
    cli_table_add(table, "%.3f", bytes_read(r) / bytes_full(a, r, &results[0]));
    cli_table_add(table, "%s", cli_bytes(bytes_read(r)).text);
    cli_table_add(table, "%s", cli_bytes((double)run->held[arm]).text);
    cli_table_add(table, "\"%s\"", r->answer);
}

static bool print_question(const compare_run *run, const char *question,
                           const compare_result *results) {
    static const char *const head[] = {"arm",           "score",         "budget",  "tokens/s",
                                       "share-of-full", "KV-read/token", "KV-held", "answer"};
    cli_table table = {.columns = sizeof(head) / sizeof(head[0])};
    char *line = cli_answer_line(question, strlen(question));
    for (size_t i = 0; i < table.columns; i++)
        cli_table_add(&table, "%s", head[i]);
    for (uint32_t arm = 0; arm < run->arms.count; arm++)
        add_line(&table, run, arm, results);
    if (line != NULL) printf("\nquestion: %s\n", line);
    const bool printed = line != NULL && cli_table_print(&table);
    cli_table_free(&table);
    free(line);
    return printed;
}

bool compare_print(const compare_run *run, const cli_texts *questions) {
    const tamis_device_info *device = tamis_context_device(run->rig.context);
    const tamis_model_info *model = tamis_model_describe(run->rig.model);
    const size_t count = run->text.tokens.count;
    bool printed = true;
    printf("%zu tokens, read once in %.1f s (%.1f tokens/s) by %s on %s (%s), form: %s\n", count,
           run->read_seconds, (double)count / run->read_seconds, cli_model_name(model), device->id,
           device->name, run->text.form);
    printf("tokens/s: question and answer, token by token, median of %u rounds; answers of at most "
           "%u tokens\n",
           run->rounds, run->most);
    for (uint32_t i = 0; printed && i < run->text.n_questions; i++)
        printed = print_question(run, questions->values[i], &run->results[i * run->arms.count]);
    return printed;
}

static bool add_row(cJSON *rows, const compare_run *run, const char *question, uint32_t arm,
                    const compare_result *results) {
    const eval_arm *a = &run->arms.arms[arm];
    const compare_result *r = &results[arm];
    const cli_number numbers[] = {
        {"tokens_per_s", median(run, r)},
        {"tokens_decoded", (double)r->tokens / run->rounds},
        {"kv_bytes_read_per_token", bytes_read(r)},
        {"kv_bytes_full_per_token", bytes_full(a, r, &results[0])},
        {"kv_bytes_held", (double)run->held[arm]},
    };
    cJSON *row = cli_json_row(rows);
    return cJSON_AddStringToObject(row, "question", question) != NULL &&
           cJSON_AddStringToObject(row, "answer", r->answer) != NULL &&
           eval_add_arm(row, a, (uint32_t)run->text.tokens.count) &&
           cli_json_numbers(row, numbers, sizeof(numbers) / sizeof(numbers[0])) &&
           cJSON_AddItemToObject(row, "tokens_per_s_sorted",
                                 cJSON_CreateDoubleArray(r->rates, (int)run->rounds));
}

cJSON *compare_rows(const compare_run *run, const cli_texts *questions) {
    cJSON *rows = cJSON_CreateArray();
    bool made = rows != NULL;
    for (uint32_t i = 0; made && i < run->text.n_questions * run->arms.count; i++) {
        const uint32_t question = i / run->arms.count, arm = i % run->arms.count;
        made = add_row(rows, run, questions->values[question], arm,
                       &run->results[question * run->arms.count]);
    }
    if (made) return rows;
    cJSON_Delete(rows);
    return NULL;
}
