/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis store gc`: removes from a store what nobody needs. */
#include "store/shared.h"

#include <stdlib.h>
#include <string.h>

typedef struct gc_flags {
    store_place place;
    const char *device, *model, *bytes, *json;
    uint32_t others;
    uint64_t limit; /* of bytes */
} gc_flags;

static const cli_option options[] = {
    STORE_PLACE_OPTIONS(gc_flags, place),
    {"--bytes", "N", "remove what was not used for the longest time, down to N, as 512M or 20G",
     CLI_TEXT, offsetof(gc_flags, bytes), 0, 0, NULL},
    {"--others", "", "remove what is not of the model of --model", CLI_FLAG,
     offsetof(gc_flags, others), 0, 0, NULL},
    {"--model", "FILE", "of --others: the model whose records stay", CLI_FILE,
     offsetof(gc_flags, model), 0, 0, NULL},
    CLI_JSON_OPTION(gc_flags, json),
    CLI_DEVICE_OPTION(gc_flags, device),
};

static int run(int argc, char *const *argv);

const cli_command store_gc_command = {
    "tamis store gc",
    "remove from a store what nobody needs",
    "--store FOLDER | --redis ADDRESS [--bytes N] [--model FILE --others]",
    "Removes damaged records, records of other versions of the store, and what writers that are\n"
    "gone have left. With --bytes also the records that were not used for the longest time, down\n"
    "to a limit; with --others those of other models: what is not of the model that is given,\n"
    "alone or behind its bos.",
    "  tamis store gc --store chunks --bytes 20G\n"
    "  tamis store gc --store chunks --model model.gguf --others\n",
    options,
    sizeof(options) / sizeof(options[0]),
    run};

typedef struct gc_result {
    tamis_store_found found;
    uint64_t damaged, leftovers, evicted, others;
    uint64_t records, bytes; /* that are left */
} gc_result;

/* The fingerprints that stay: the model's, and that behind its bos. */
static tamis_status prints_of(const gc_flags *f, uint8_t prints[2][16], tamis_error *error) {
    tamis_context *device = NULL;
    tamis_model *model = NULL;
    tamis_status status = cli_open(f->device, &device, error);
    if (status == TAMIS_OK) status = cli_load(device, f->model, &model, error);
    if (status == TAMIS_OK) status = tamis_model_fingerprint(model, prints[0], error);
    if (status == TAMIS_OK) {
        int32_t bos = 0;
        const uint32_t n = store_sink(model, &bos);
        status = tamis_fingerprint_extend(prints[0], &bos, n, prints[1], error);
    }
    tamis_model_destroy(&model);
    tamis_context_destroy(&device);
    return status;
}

static bool is_of(const tamis_chunk_info *info, uint8_t prints[2][16]) {
    return memcmp(info->fingerprint, prints[0], 16) == 0 ||
           memcmp(info->fingerprint, prints[1], 16) == 0;
}

static tamis_status remove_others(tamis_store *store, uint8_t prints[2][16], gc_result *r,
                                  tamis_error *error) {
    store_records records;
    tamis_status status = store_list(store, &records, error);
    for (size_t i = 0; status == TAMIS_OK && i < records.count; i++) {
        int removed = 0;
        if (is_of(&records.infos[i], prints)) continue;
        status = tamis_store_remove_key(store, records.infos[i].key, &removed, error);
        r->others += removed != 0;
    }
    free(records.infos);
    return status;
}

/* Others go first: they need no room that the model's own records could have. */
static tamis_status gc(const gc_flags *f, gc_result *r, tamis_error *error) {
    uint8_t prints[2][16];
    tamis_store *store = NULL;
    tamis_store_stats before = {0}, stats = {0};
    tamis_status status = f->others ? prints_of(f, prints, error) : TAMIS_OK;
    if (status != TAMIS_OK) return status;
    status = store_open(&f->place, 0, false, &store, error);
    if (status == TAMIS_OK && f->others) status = remove_others(store, prints, r, error);
    tamis_store_get_stats(store, &before);
    tamis_store_destroy(&store);
    if (status == TAMIS_OK) status = store_open(&f->place, f->limit, false, &store, error);
    if (status == TAMIS_OK) status = tamis_store_gc(store, &r->found, error);
    tamis_store_get_stats(store, &stats);
    const tamis_tier tier = store_place_tier(&f->place);
    const tamis_tier_stats *at = &stats.tiers[tier];
    r->damaged = before.tiers[tier].damaged - before.tiers[tier].damaged_left + at->damaged -
                 at->damaged_left;
    r->leftovers = before.leftovers + stats.leftovers;
    r->evicted = at->evicted;
    r->records = at->records;
    r->bytes = at->bytes;
    tamis_store_destroy(&store);
    return status;
}

static void print_result(const gc_result *r) {
    printf("removed: %llu damaged, %llu of another version, %llu unfinished, %llu of other models, "
           "%llu for the limit\n",
           (unsigned long long)r->damaged, (unsigned long long)r->found.foreign,
           (unsigned long long)r->leftovers, (unsigned long long)r->others,
           (unsigned long long)r->evicted);
    printf("%llu records are left, %s\n", (unsigned long long)r->records,
           cli_bytes((double)r->bytes).text);
}

static bool write_json(const store_place *place, const gc_result *r, cli_output *output) {
    const cli_number numbers[] = {
        {"damaged", (double)r->damaged},     {"foreign", (double)r->found.foreign},
        {"leftovers", (double)r->leftovers}, {"others", (double)r->others},
        {"evicted", (double)r->evicted},     {"records", (double)r->records},
        {"bytes", (double)r->bytes}};
    cJSON *root = cli_json_begin(store_gc_command.name, NULL);
    cJSON *rows = cJSON_CreateArray();
    if (rows == NULL || cJSON_AddStringToObject(root, "store", store_place_name(place)) == NULL ||
        !cli_json_numbers(cli_json_row(rows), numbers, sizeof(numbers) / sizeof(numbers[0]))) {
        cJSON_Delete(rows);
        rows = NULL;
    }
    return cli_json_write(root, rows, output, store_gc_command.name);
}

static int parse(gc_flags *f, int argc, char *const *argv) {
    const char *name = store_gc_command.name;
    int code = cli_parse(&store_gc_command, f, argc, argv);
    if (code >= 0) return code;
    if (!store_place_check(name, &f->place)) return CLI_USAGE;
    if (f->others && f->model == NULL)
        cli_fail(name, "--others: needs --model, whose records stay");
    else if (!f->others && (f->model != NULL || f->device != NULL))
        cli_fail(name, "%s: belongs to --others, which is not given",
                 f->model != NULL ? "--model" : "--device");
    else if (f->bytes == NULL || cli_size(name, "--bytes", f->bytes, &f->limit))
        return -1;
    return CLI_USAGE;
}

static int run(int argc, char *const *argv) {
    gc_flags f = {0};
    gc_result r = {0};
    cli_output output = {0};
    tamis_error error = {0};
    const char *name = store_gc_command.name;
    int code = parse(&f, argc, argv);
    if (code >= 0) return code;
    if (f.json != NULL && !cli_output_open(&output, name, f.json)) return CLI_FAILED;
    code = gc(&f, &r, &error) == TAMIS_OK ? CLI_OK : cli_fail(name, "%s", error.text);
    if (code == CLI_OK) print_result(&r);
    if (code == CLI_OK && f.json != NULL && !write_json(&f.place, &r, &output)) code = CLI_FAILED;
    cli_output_discard(&output);
    return code;
}
