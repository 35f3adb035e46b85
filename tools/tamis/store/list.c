/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis store list`: the records of a store. */
#include "cli/table.h"
#include "store/shared.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct list_flags {
    store_place place;
    const char *json;
} list_flags;

static const cli_option options[] = {
    STORE_PLACE_OPTIONS(list_flags, place),
    CLI_JSON_OPTION(list_flags, json),
};

static int run(int argc, char *const *argv);

const cli_command store_list_command = {
    "tamis store list",
    "list the records of a store",
    "--store FOLDER | --redis ADDRESS [--json FILE]",
    "Lists the records of a store, those that were used last at the end: key, tokens, shape, the\n"
    "type of the cache over which it was computed, the fingerprint of the model behind its sink,\n"
    "bytes, and when the record was put or found last, in UTC. Opening a store removes records "
    "whose headers are damaged; what is removed is "
    "counted.",
    "  tamis store list --store chunks\n  tamis store list --store chunks --json -\n",
    options,
    sizeof(options) / sizeof(options[0]),
    run};

static int by_use(const void *a, const void *b) {
    const tamis_chunk_info *x = a, *y = b;
    return x->last_used != y->last_used ? (x->last_used > y->last_used ? 1 : -1)
                                        : memcmp(x->key, y->key, sizeof(x->key));
}

/* "2026-11-23 16:05:00". */
static cli_text time_text(int64_t nanoseconds) {
    const time_t seconds = (time_t)(nanoseconds / 1000000000);
    struct tm parts;
    cli_text text = {"-"};
    if (nanoseconds > 0 && gmtime_r(&seconds, &parts) != NULL)
        strftime(text.text, sizeof(text.text), "%Y-%m-%d %H:%M:%S", &parts);
    return text;
}

static void add_row(cli_table *table, const tamis_chunk_info *info) {
    const tamis_chunk_shape *shape = &info->shape;
    cli_table_add(table, "%s", cli_hex(info->key).text);
    cli_table_add(table, "%u", info->n_tokens);
    cli_table_add(table, "%u", shape->sink);
    cli_table_add(table, "%u x %u x %u %s", shape->n_layers, shape->n_kv_heads, shape->head_dim,
                  tamis_dtype_name(shape->dtype));
    cli_table_add(table, "%s", tamis_dtype_name(shape->cache_dtype));
    cli_table_add(table, "%s", cli_hex(info->fingerprint).text);
    cli_table_add(table, "%s", cli_bytes((double)info->record_bytes).text);
    cli_table_add(table, "%s", time_text(info->last_used).text);
}

static int print_records(const store_records *records, uint64_t damaged) {
    static const char *const head[] = {"key",   "tokens",      "sink",  "layers x heads x dim",
                                       "cache", "fingerprint", "bytes", "last used"};
    cli_table table = {.columns = sizeof(head) / sizeof(head[0])};
    double bytes = 0;
    for (size_t i = 0; i < table.columns; i++)
        cli_table_add(&table, "%s", head[i]);
    for (size_t i = 0; i < records->count; i++) {
        add_row(&table, &records->infos[i]);
        bytes += (double)records->infos[i].record_bytes;
    }
    const bool printed = cli_table_print(&table);
    cli_table_free(&table);
    if (!printed) return cli_fail(store_list_command.name, "out of host memory");
    printf("%zu records, %s", records->count, cli_bytes(bytes).text);
    if (damaged > 0)
        printf("; %llu that were damaged have been removed", (unsigned long long)damaged);
    printf("\n");
    return CLI_OK;
}

static bool add_json_row(cJSON *rows, const tamis_chunk_info *info) {
    const tamis_chunk_shape *shape = &info->shape;
    const cli_number numbers[] = {{"tokens", info->n_tokens},
                                  {"sink", shape->sink},
                                  {"layers", shape->n_layers},
                                  {"kv_heads", shape->n_kv_heads},
                                  {"head_dim", shape->head_dim},
                                  {"record_bytes", (double)info->record_bytes},
                                  {"last_used", (double)info->last_used * 1e-9}};
    cJSON *row = cli_json_row(rows);
    return cJSON_AddStringToObject(row, "key", cli_hex(info->key).text) != NULL &&
           cJSON_AddStringToObject(row, "fingerprint", cli_hex(info->fingerprint).text) != NULL &&
           cJSON_AddStringToObject(row, "salt", cli_hex(info->salt).text) != NULL &&
           cJSON_AddStringToObject(row, "parent", cli_hex(info->parent).text) != NULL &&
           cJSON_AddStringToObject(row, "dtype", tamis_dtype_name(shape->dtype)) != NULL &&
           cJSON_AddStringToObject(row, "cache_dtype", tamis_dtype_name(shape->cache_dtype)) !=
               NULL &&
           cli_json_numbers(row, numbers, sizeof(numbers) / sizeof(numbers[0]));
}

static bool write_json(const store_place *place, const store_records *records, uint64_t damaged,
                       cli_output *output) {
    const cli_number numbers[] = {{"damaged", (double)damaged}};
    cJSON *root = cli_json_begin(store_list_command.name, NULL);
    cJSON *rows = cJSON_CreateArray();
    bool made = rows != NULL &&
                cJSON_AddStringToObject(root, "store", store_place_name(place)) != NULL &&
                cli_json_numbers(root, numbers, 1);
    for (size_t i = 0; made && i < records->count; i++)
        made = add_json_row(rows, &records->infos[i]);
    if (!made) {
        cJSON_Delete(rows);
        rows = NULL;
    }
    return cli_json_write(root, rows, output, store_list_command.name);
}

static int list(const list_flags *f) {
    tamis_store *store = NULL;
    tamis_store_stats stats = {0};
    store_records records = {0};
    cli_output output = {0};
    tamis_error error = {0};
    if (f->json != NULL && !cli_output_open(&output, store_list_command.name, f->json))
        return CLI_FAILED;
    tamis_status status = store_open(&f->place, 0, false, &store, &error);
    if (status == TAMIS_OK) status = store_list(store, &records, &error);
    tamis_store_get_stats(store, &stats);
    const tamis_tier_stats *at = &stats.tiers[store_place_tier(&f->place)];
    const uint64_t damaged = at->damaged - at->damaged_left;
    if (records.count > 1) qsort(records.infos, records.count, sizeof(*records.infos), by_use);
    int code = status == TAMIS_OK ? print_records(&records, damaged)
                                  : cli_fail(store_list_command.name, "%s", error.text);
    if (code == CLI_OK && f->json != NULL && !write_json(&f->place, &records, damaged, &output))
        code = CLI_FAILED;
    cli_output_discard(&output);
    free(records.infos);
    tamis_store_destroy(&store);
    return code;
}

static int run(int argc, char *const *argv) {
    list_flags f = {0};
    const char *name = store_list_command.name;
    int code = cli_parse(&store_list_command, &f, argc, argv);
    if (code >= 0) return code;
    if (!store_place_check(name, &f.place)) return CLI_USAGE;
    return list(&f);
}
