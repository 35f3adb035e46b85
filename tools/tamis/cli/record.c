/* SPDX-License-Identifier: Apache-2.0 */
/* What --json of `tamis run` writes. */
#include "cli/record.h"

#include "cli/policies.h"
#include "cli/utf8.h"

#include <stdlib.h>
#include <string.h>

bool cli_record_open(cli_record *record, const char *command, const char *path) {
    *record = (cli_record){0};
    if (path == NULL) return true;
    if (!cli_output_open(&record->output, command, path)) return false;
    record->rows = cJSON_CreateArray();
    if (record->rows != NULL) return true;
    cli_record_discard(record);
    return cli_fail(command, "out of host memory") == CLI_OK;
}

void cli_record_discard(cli_record *record) {
    cJSON_Delete(record->rows);
    record->rows = NULL;
    cli_output_discard(&record->output);
}

static const char *end_name(cli_end end) {
    static const char *const names[] = {[CLI_END_TOKEN] = "end",
                                        [CLI_END_TEXT] = "stop",
                                        [CLI_END_TOKENS] = "tokens",
                                        [CLI_END_CONTEXT] = "context",
                                        [CLI_END_INTERRUPT] = "interrupt"};
    return names[end];
}

tamis_status cli_record_answer(cli_record *record, const cli_answer *answer, cli_end end,
                               tamis_error *error) {
    if (record->rows == NULL) return TAMIS_OK;
    const size_t bytes = answer->bytes - cli_utf8_unfinished(answer->text, answer->bytes);
    char *text = malloc(bytes + 1);
    bool made = text != NULL;
    if (made) {
        if (bytes > 0) memcpy(text, answer->text, bytes);
        text[bytes] = '\0';
        cJSON *row = cli_json_row(record->rows);
        made = cJSON_AddStringToObject(row, "answer", text) != NULL &&
               cJSON_AddNumberToObject(row, "tokens", (double)answer->tokens) != NULL &&
               cJSON_AddStringToObject(row, "ended_by", end_name(end)) != NULL;
    }
    free(text);
    return made ? TAMIS_OK : cli_no_memory(error);
}

/* The figures of cli_session_report. */
static bool add_figures(cJSON *root, const cli_session *s) {
    tamis_plan_counters c;
    tamis_cache_stats stats;
    tamis_plan_get_counters(tamis_runner_plan(s->runner), &c);
    tamis_cache_get_stats(s->cache, &stats);
    const cli_number numbers[] = {{"prefill_tokens", (double)s->prefill_tokens},
                                  {"prefill_seconds", s->prefill_seconds},
                                  {"decode_tokens", (double)s->decode_tokens},
                                  {"decode_seconds", s->decode_seconds},
                                  {"kv_bytes_read", (double)c.kv_bytes_read},
                                  {"bounds_bytes_read", (double)c.bounds_bytes_read},
                                  {"kv_bytes_full", (double)c.kv_bytes_full},
                                  {"kv_bytes_held", (double)stats.bytes_held},
                                  {"bytes_returned", s->bytes_returned}};
    return cli_json_numbers(root, numbers, sizeof(numbers) / sizeof(numbers[0]));
}

bool cli_record_write(cli_record *record, const char *command, const cli_session *s,
                      const cli_session_params *params) {
    if (record->rows == NULL) return true;
    cJSON *root = cli_json_begin(command, s->device), *rows = record->rows;
    const tamis_model_info *model = tamis_model_describe(s->model);
    const bool made =
        root != NULL && cJSON_AddStringToObject(root, "model", cli_model_name(model)) != NULL &&
        cJSON_AddStringToObject(root, "select",
                                tamis_selection_name(params->plan.selection.kind)) != NULL &&
        cJSON_AddStringToObject(root, "evict", cli_eviction_name(&params->plan.eviction).text) !=
            NULL &&
        add_figures(root, s);
    if (!made) {
        cJSON_Delete(root);
        root = NULL;
    }
    record->rows = NULL;
    return cli_json_write(root, rows, &record->output, command);
}
