/* SPDX-License-Identifier: Apache-2.0 */
/* What `tamis bench ttft` prints: times to the first token, sums over layers, queues; the same as
 * JSON, with each layer. */
#include "bench/ttft.h"
#include "cli/json.h"
#include "cli/table.h"

typedef struct share_text {
    char text[16];
} share_text;

static share_text share_of(const ttft_arm *arm) {
    share_text out = {"-"};
    if (arm->kind == TTFT_BLEND)
        snprintf(out.text, sizeof(out.text), "%.3g%s", 100 * arm->share, arm->chosen ? "*" : "");
    return out;
}

static const char *source_of(const ttft_arm *arm) {
    return arm->source != NULL ? arm->source->name : "-";
}

static void add_head(cli_table *table, const char *const *head, size_t columns) {
    *table = (cli_table){.columns = columns};
    for (size_t i = 0; i < columns; i++)
        cli_table_add(table, "%s", head[i]);
}

static void add_arm(cli_table *table, const ttft_arm *arm) {
    cli_table_add(table, "%s", ttft_kind_name(arm->kind));
    cli_table_add(table, "%s", source_of(arm));
    cli_table_add(table, "%s", share_of(arm).text);
}

static bool finish(cli_table *table) {
    const bool printed = cli_table_print(table);
    cli_table_free(table);
    return printed;
}

/* ---- Tables ---------------------------------------------------------------------------------- */

static bool print_times(const ttft *t, const ttft_cell *cells) {
    static const char *const head[] = {"arm",      "source",  "share %", "ttft s",
                                       "lowest",   "highest", "x full",  "bound x",
                                       "computed", "read MB", "MB/s"};
    cli_table table;
    add_head(&table, head, sizeof(head) / sizeof(head[0]));
    for (uint32_t a = 0; a < t->n_arms; a++) {
        const ttft_cell *cell = &cells[a];
        const tamis_blend_stats *s = &cell->stats;
        add_arm(&table, cell->arm);
        cli_table_add(&table, "%.4f", cell->median);
        cli_table_add(&table, "%.4f", cell->lowest);
        cli_table_add(&table, "%.4f", cell->highest);
        cli_table_add(&table, "%.2f", cell->speedup);
        cli_table_add(&table, "%.2f", 1 / cell->fraction);
        cli_table_add(&table, "%.0f",
                      cell->arm->kind == TTFT_FULL
                          ? cell->n_tokens
                          : (double)(s->tokens_fresh + s->tokens_selected));
        cli_table_add(&table, "%.1f", 1e-6 * (double)s->bytes_read);
        cli_table_add(&table, "%.0f", s->read_us > 0 ? (double)s->bytes_read / s->read_us : 0);
    }
    return finish(&table);
}

static double most(double a, double b) {
    return a > b ? a : b;
}

static bool print_layers(const ttft *t, const ttft_cell *cells) {
    static const char *const head[] = {"arm",      "source", "share %",  "pipeline s",
                                       "longer s", "both s", "x longer", "waiting s"};
    cli_table table;
    add_head(&table, head, sizeof(head) / sizeof(head[0]));
    for (uint32_t a = 0; a < t->n_arms; a++) {
        const ttft_cell *cell = &cells[a];
        double waited = 0;
        if (cell->arm->source == NULL) continue;
        for (uint32_t i = 0; i < t->shape.n_layers; i++)
            waited += cell->layers[i].wait_us;
        add_arm(&table, cell->arm);
        cli_table_add(&table, "%.4f", 1e-6 * cell->pipeline_us);
        cli_table_add(&table, "%.4f", 1e-6 * cell->overlapped_us);
        cli_table_add(&table, "%.4f", 1e-6 * cell->serial_us);
        cli_table_add(&table, "%.3f", cell->pipeline_us / most(cell->overlapped_us, 1));
        cli_table_add(&table, "%.4f", 1e-6 * waited);
    }
    return finish(&table);
}

static bool print_queues(const ttft *t) {
    static const char *const head[] = {"arm",   "source", "share %",  "rate/s", "mean s",
                                       "p50 s", "p95 s",  "served/s", "busy"};
    cli_table table;
    if (t->n_queues == 0) return true;
    printf("\n%u requests of %u chunks each, one worker; seconds to the first token, waiting "
           "included\n",
           t->n_requests, t->counts.values[0]);
    add_head(&table, head, sizeof(head) / sizeof(head[0]));
    for (uint32_t i = 0; i < t->n_queues; i++) {
        const ttft_queue *q = &t->queues[i];
        add_arm(&table, q->arm);
        cli_table_add(&table, "%g", q->rate);
        cli_table_add(&table, "%.3f", q->mean);
        cli_table_add(&table, "%.3f", q->p50);
        cli_table_add(&table, "%.3f", q->p95);
        cli_table_add(&table, "%.3f", q->per_s);
        cli_table_add(&table, "%.2f", q->busy);
    }
    return finish(&table);
}

static const char *model_name(const ttft *t) {
    const tamis_model_info *info = tamis_model_describe(t->model);
    return info->name[0] != '\0' ? info->name : info->architecture;
}

static void print_sources(const ttft *t) {
    for (uint32_t i = 0; i < t->n_sources; i++) {
        const ttft_source *s = &t->sources[i];
        if (s->dropped)
            printf(
                "disk: of the store's files the page cache kept at most %.1f %% when it was told "
                "to drop them%s\n",
                100 * s->cached, s->cached > 0.5 ? ": these times are not a disk's" : "");
    }
}

bool ttft_print(const ttft *t) {
    const tamis_device_info *device = tamis_context_device(t->device);
    printf(
        "%s, chunks of %u tokens, suffix %u, %s, stored as %s; medians of %u rounds on %s (%s)\n",
        model_name(t), t->texts.chunk_tokens, t->texts.suffix_tokens,
        tamis_dtype_name(t->shape.dtype), tamis_dtype_name(t->store_dtype), t->repeat, device->id,
        device->name);
    print_sources(t);
    for (uint32_t i = 0; i < t->counts.count; i++) {
        const ttft_cell *cells = &t->cells[i * t->n_arms];
        printf("\n%u chunks, %u tokens: time to the first token\n", cells->n_chunks,
               cells->n_tokens);
        if (!print_times(t, cells)) return false;
        printf("\nsums over layers, each waited for\n");
        if (!print_layers(t, cells)) return false;
    }
    return print_queues(t);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static bool add_names(cJSON *row, const char *what, const ttft_arm *arm) {
    return cJSON_AddStringToObject(row, "what", what) != NULL &&
           cJSON_AddStringToObject(row, "arm", ttft_kind_name(arm->kind)) != NULL &&
           (arm->source != NULL ? cJSON_AddStringToObject(row, "source", arm->source->name)
                                : cJSON_AddNullToObject(row, "source")) != NULL &&
           (arm->kind == TTFT_BLEND ? cJSON_AddNumberToObject(row, "share", arm->share)
                                    : cJSON_AddNullToObject(row, "share")) != NULL &&
           cJSON_AddBoolToObject(row, "share_chosen", arm->chosen) != NULL;
}

static bool add_layers(cJSON *row, const ttft *t, const ttft_cell *cell) {
    cJSON *layers = cJSON_AddArrayToObject(row, "layers");
    bool added = layers != NULL;
    for (uint32_t i = 0; added && cell->arm->kind != TTFT_FULL && i < t->shape.n_layers; i++) {
        const tamis_blend_layer_stats *of = &cell->layers[i];
        const cli_number numbers[] = {{"rows_computed", of->rows_computed},
                                      {"rows_attended", of->rows_attended},
                                      {"bytes_read", (double)of->bytes_read},
                                      {"read_us", of->read_us},
                                      {"wait_us", of->wait_us},
                                      {"load_us", of->load_us},
                                      {"compute_us", of->compute_us}};
        added =
            cli_json_numbers(cli_json_row(layers), numbers, sizeof(numbers) / sizeof(numbers[0]));
    }
    return added;
}

static bool add_cell(cJSON *rows, const ttft *t, const ttft_cell *cell) {
    const tamis_blend_stats *s = &cell->stats;
    const cli_number numbers[] = {{"chunks", cell->n_chunks},
                                  {"tokens", cell->n_tokens},
                                  {"ttft_s", cell->median},
                                  {"ttft_s_lowest", cell->lowest},
                                  {"ttft_s_highest", cell->highest},
                                  {"speedup_over_full", cell->speedup},
                                  {"compute_fraction", cell->fraction},
                                  {"speedup_bound", 1 / cell->fraction},
                                  {"parts_found", (double)s->parts_found},
                                  {"tokens_exact", (double)s->tokens_exact},
                                  {"tokens_hit", (double)s->tokens_hit},
                                  {"tokens_selected", (double)s->tokens_selected},
                                  {"tokens_fresh", (double)s->tokens_fresh},
                                  {"bytes_read", (double)s->bytes_read},
                                  {"read_us", s->read_us},
                                  {"wait_us", s->wait_us},
                                  {"ask_us", cell->ask_us},
                                  {"pipeline_us", cell->pipeline_us},
                                  {"longer_us", cell->overlapped_us},
                                  {"both_us", cell->serial_us}};
    cJSON *row = cli_json_row(rows);
    return add_names(row, "ttft", cell->arm) &&
           cli_json_numbers(row, numbers, sizeof(numbers) / sizeof(numbers[0])) &&
           add_layers(row, t, cell);
}

static bool add_queue(cJSON *rows, const ttft *t, const ttft_queue *q) {
    const cli_number numbers[] = {{"chunks", t->counts.values[0]},
                                  {"requests", t->n_requests},
                                  {"rate", q->rate},
                                  {"ttft_s_mean", q->mean},
                                  {"ttft_s_p50", q->p50},
                                  {"ttft_s_p95", q->p95},
                                  {"requests_per_s", q->per_s},
                                  {"busy", q->busy}};
    cJSON *row = cli_json_row(rows);
    return add_names(row, "rate", q->arm) &&
           cli_json_numbers(row, numbers, sizeof(numbers) / sizeof(numbers[0]));
}

static bool add_settings(cJSON *root, const ttft *t) {
    const cli_number numbers[] = {{"chunk_tokens", t->texts.chunk_tokens},
                                  {"suffix_tokens", t->texts.suffix_tokens},
                                  {"sink_tokens", t->texts.n_sink},
                                  {"page_size", t->shape.page_size},
                                  {"repeat", t->repeat}};
    bool added =
        cJSON_AddStringToObject(root, "model", model_name(t)) != NULL &&
        cJSON_AddStringToObject(root, "dtype", tamis_dtype_name(t->shape.dtype)) != NULL &&
        cJSON_AddStringToObject(root, "store_dtype", tamis_dtype_name(t->store_dtype)) != NULL &&
        cJSON_AddStringToObject(root, "select", tamis_blend_selector_name(t->selector)) != NULL &&
        cli_json_numbers(root, numbers, sizeof(numbers) / sizeof(numbers[0])) &&
        cli_json_seed(root, t->texts.seed);
    for (uint32_t i = 0; added && i < t->n_sources; i++)
        if (t->sources[i].dropped)
            added = cJSON_AddNumberToObject(root, "page_cache_kept", t->sources[i].cached) != NULL;
    return added;
}

bool ttft_write_json(const ttft *t, cli_output *output) {
    cJSON *root = cli_json_begin(t->command, t->device);
    cJSON *rows = add_settings(root, t) ? cJSON_CreateArray() : NULL;
    bool made = rows != NULL;
    for (uint32_t i = 0; made && i < t->n_cells; i++)
        made = add_cell(rows, t, &t->cells[i]);
    for (uint32_t i = 0; made && i < t->n_queues; i++)
        made = add_queue(rows, t, &t->queues[i]);
    if (!made) {
        cJSON_Delete(rows);
        rows = NULL;
    }
    return cli_json_write(root, rows, output, t->command);
}
