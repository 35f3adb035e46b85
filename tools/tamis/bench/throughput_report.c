/* SPDX-License-Identifier: Apache-2.0 */
/* The output of `tamis bench throughput`: tables of memory, speed and time, and the same rows as
 * JSON. */
#include "bench/throughput.h"
#include "cli/json.h"
#include "cli/table.h"

static void add_heads(cli_table *table, const char *const *heads) {
    for (size_t i = 0; i < table->columns; i++)
        cli_table_add(table, "%s", heads[i]);
}

static bool finish(cli_table *table) {
    bool printed = cli_table_print(table);
    cli_table_free(table);
    return printed;
}

/* How many sequences fit, and what they yield. */
static bool print_speed(const throughput *t) {
    static const char *const head[] = {
        "evict",  "bytes/sequence", "reserve",   "batch",   "one more fits", "tokens/s",
        "lowest", "highest",        "over full", "ceiling", "window in plan"};
    cli_table table = {.columns = sizeof(head) / sizeof(head[0])};
    add_heads(&table, head);
    for (uint32_t a = 0; a < t->n_arms; a++) {
        const throughput_arm *arm = &t->arms[a];
        cli_table_add(&table, "%s", bench_arm_name(&arm->eviction).text);
        cli_table_add(&table, "%llu", (unsigned long long)arm->sequence_bytes);
        cli_table_add(&table, "%llu", (unsigned long long)arm->reserve_bytes);
        cli_table_add(&table, "%u", arm->batch);
        cli_table_add(&table, "%s", t->batch > 0 ? "-" : arm->overflows ? "no" : "yes");
        cli_table_add(&table, "%.1f", arm->median_tokens_per_s);
        cli_table_add(&table, "%.1f", arm->slowest_tokens_per_s);
        cli_table_add(&table, "%.1f", arm->fastest_tokens_per_s);
        cli_table_add(&table, "%.2f", arm->gain);
        cli_table_add(&table, "%.2f", t->batch > 0 ? 1 : arm->ceiling);
        cli_table_add(&table, "%llu", (unsigned long long)arm->window_bytes);
    }
    return finish(&table);
}

static void add_part(cli_table *table, const throughput_arm *arm, const char *part, double us,
                     double of) {
    cli_table_add(table, "%s", bench_arm_name(&arm->eviction).text);
    cli_table_add(table, "%u", arm->batch);
    cli_table_add(table, "%s", part);
    cli_table_add(table, "%.1f", us);
    cli_table_add(table, "%.1f %%", of > 0 ? 100 * us / of : 0.0);
}

/* The parts of a step's time, each in a row of its own. */
static bool print_times(const throughput *t) {
    static const char *const head[] = {"evict", "batch", "part of a step", "us", "of the step"};
    cli_table table = {.columns = sizeof(head) / sizeof(head[0])};
    add_heads(&table, head);
    for (uint32_t a = 0; a < t->n_arms; a++) {
        const throughput_arm *arm = &t->arms[a];
        add_part(&table, arm, "weights", arm->weights_us, arm->step_us);
        add_part(&table, arm, "attention", arm->attention_us, arm->step_us);
        add_part(&table, arm, "attention by its bytes", arm->predicted_us, arm->step_us);
        if (a > 0) add_part(&table, arm, "policy", arm->policy_us, arm->step_us);
        /* A prompt's end, spread over what the sequence generates. */
        if (a > 0)
            add_part(&table, arm, "prompts' ends",
                     (arm->evict_us + arm->prompt_observe_us) * arm->batch / t->tokens,
                     arm->step_us);
    }
    return finish(&table);
}

bool throughput_print(const throughput *t) {
    const tamis_device_info *device = tamis_context_device(t->device);
    const tamis_model_info *model = tamis_model_describe(t->model);
    printf("%s, context %u, budget %u, %u tokens a round, medians of %u rounds, %s, pages of %u on "
           "%s (%s)\n",
           cli_model_name(model), t->context, t->budget, t->tokens, t->repeat,
           tamis_dtype_name(t->shape.dtype), t->shape.page_size, device->id, device->name);
    if (t->batch > 0)
        printf("the same batch of %u for all", t->batch);
    else
        printf("cache memory %s for each", cli_bytes((double)t->arms[0].cache_bytes).text);
    printf(", read bandwidth %.2f GB/s\n\n", t->read_gb_per_s);
    if (!print_speed(t)) return false;
    printf("\none decode step of the batch, timed apart, each stage waited for; prompts' ends are "
           "spread over\nthe %u tokens that follow them\n",
           t->tokens);
    return print_times(t);
}

static bool add_json_row(cJSON *rows, const throughput *t, const throughput_arm *arm) {
    bool full = arm->eviction.kind == TAMIS_EVICT_NONE;
    const cli_number numbers[] = {{"budget", full ? t->context : t->budget},
                                  {"context", t->context},
                                  {"tokens", t->tokens},
                                  {"batch", arm->batch},
                                  {"prompt_bytes", (double)arm->prompt_bytes},
                                  {"kept_bytes", (double)arm->kept_bytes},
                                  {"bytes_per_sequence", (double)arm->sequence_bytes},
                                  {"reserve_bytes", (double)arm->reserve_bytes},
                                  {"cache_bytes", (double)arm->cache_bytes},
                                  {"window_bytes", (double)arm->window_bytes},
                                  {"tokens_per_s", arm->median_tokens_per_s},
                                  {"tokens_per_s_lowest", arm->slowest_tokens_per_s},
                                  {"tokens_per_s_highest", arm->fastest_tokens_per_s},
                                  {"gain_over_full", arm->gain},
                                  {"ceiling", t->batch > 0 ? 1 : arm->ceiling},
                                  {"step_us", arm->step_us},
                                  {"weights_us", arm->weights_us},
                                  {"attention_us", arm->attention_us},
                                  {"policy_us", arm->policy_us},
                                  {"evict_us", arm->evict_us},
                                  {"prompt_observe_us", arm->prompt_observe_us},
                                  {"kv_bytes", arm->kv_bytes},
                                  {"policy_bytes", arm->policy_bytes},
                                  {"predicted_attention_us", arm->predicted_us}};
    cJSON *row = cli_json_row(rows);
    return cJSON_AddStringToObject(row, "evict", bench_arm_name(&arm->eviction).text) != NULL &&
           cli_json_numbers(row, numbers, sizeof(numbers) / sizeof(numbers[0])) &&
           (t->batch > 0 ? cJSON_AddNullToObject(row, "one_more_fits")
                         : cJSON_AddBoolToObject(row, "one_more_fits", !arm->overflows)) != NULL;
}

static bool add_settings(cJSON *root, const throughput *t) {
    const tamis_model_info *model = tamis_model_describe(t->model);
    const char *name = cli_model_name(model);
    return cJSON_AddStringToObject(root, "model", name) != NULL &&
           cJSON_AddStringToObject(root, "dtype", tamis_dtype_name(t->shape.dtype)) != NULL &&
           cJSON_AddNumberToObject(root, "page_size", t->shape.page_size) != NULL &&
           cJSON_AddNumberToObject(root, "repeat", t->repeat) != NULL &&
           cJSON_AddBoolToObject(root, "equal_batch", t->batch > 0) != NULL &&
           cJSON_AddNumberToObject(root, "read_gb_per_s", t->read_gb_per_s) != NULL;
}

bool throughput_write_json(const throughput *t, cli_output *output) {
    cJSON *root = cli_json_begin(t->command, t->device);
    cJSON *rows = add_settings(root, t) ? cJSON_CreateArray() : NULL;
    bool made = rows != NULL;
    for (uint32_t a = 0; made && a < t->n_arms; a++)
        made = add_json_row(rows, t, &t->arms[a]);
    if (!made) {
        cJSON_Delete(rows);
        rows = NULL;
    }
    return cli_json_write(root, rows, output, t->command);
}
