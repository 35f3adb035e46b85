/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis store verify`: reads every byte of a store, and says which records were damaged. */
#include "store/shared.h"

#include <stdlib.h>
#include <string.h>

typedef struct verify_flags {
    store_place place;
    const char *json;
} verify_flags;

static const cli_option options[] = {
    STORE_PLACE_OPTIONS(verify_flags, place),
    CLI_JSON_OPTION(verify_flags, json),
};

static int run(int argc, char *const *argv);

const cli_command store_verify_command = {
    "tamis store verify",
    "read every record, and remove those that are damaged",
    "--store FOLDER | --redis ADDRESS [--json FILE]",
    "Reads every byte of every record and compares it with its checksums. Damaged records are\n"
    "removed, where the folder can be written: their text is computed anew when it is needed. A\n"
    "line names each of those that are gone and whose header could be read. Exit status 1 if a\n"
    "record was damaged, or could not be read.",
    "  tamis store verify --store chunks\n",
    options,
    sizeof(options) / sizeof(options[0]),
    run};

typedef struct verify_result {
    store_records before, after;
    tamis_store_found found;
    uint64_t damaged; /* those included that opening has found and removed */
} verify_result;

static bool has(const store_records *records, const uint8_t key[16]) {
    for (size_t i = 0; i < records->count; i++)
        if (memcmp(records->infos[i].key, key, 16) == 0) return true;
    return false;
}

static tamis_status verify(const store_place *place, verify_result *r, tamis_error *error) {
    tamis_store *store = NULL;
    tamis_store_stats stats = {0};
    tamis_status status = store_open(place, 0, false, &store, error);
    if (status == TAMIS_OK) status = store_list(store, &r->before, error);
    tamis_store_get_stats(store, &stats);
    const tamis_tier_stats *at = &stats.tiers[store_place_tier(place)];
    if (status == TAMIS_OK) {
        tamis_error own;
        status = tamis_store_verify(store, &r->found, error);
        const tamis_status listed = store_list(store, &r->after, &own);
        if (status == TAMIS_OK && listed != TAMIS_OK) *error = own;
        if (status == TAMIS_OK) status = listed;
    }
    r->damaged = at->damaged - at->damaged_left + r->found.damaged;
    tamis_store_destroy(&store);
    return status;
}

/* Records that were listed and are gone. */
static void print_result(const verify_result *r) {
    for (size_t i = 0; i < r->before.count; i++)
        if (!has(&r->after, r->before.infos[i].key))
            printf("%s  was damaged, and has been removed: %u tokens, %s\n",
                   cli_hex(r->before.infos[i].key).text, r->before.infos[i].n_tokens,
                   cli_bytes((double)r->before.infos[i].record_bytes).text);
    printf("%llu sound records, %s; %llu damaged, ", (unsigned long long)r->found.records,
           cli_bytes((double)r->found.bytes).text, (unsigned long long)r->damaged);
    if (r->found.damaged_left > 0)
        printf("of which %llu cannot be removed", (unsigned long long)r->found.damaged_left);
    else
        printf("removed");
    printf("; %llu of another version, left\n", (unsigned long long)r->found.foreign);
}

static bool write_json(const store_place *place, const verify_result *r, cli_output *output) {
    const cli_number numbers[] = {{"records", (double)r->found.records},
                                  {"bytes", (double)r->found.bytes},
                                  {"damaged", (double)r->damaged},
                                  {"damaged_left", (double)r->found.damaged_left},
                                  {"foreign", (double)r->found.foreign}};
    cJSON *root = cli_json_begin(store_verify_command.name, NULL);
    cJSON *rows = cJSON_CreateArray();
    bool made = rows != NULL &&
                cJSON_AddStringToObject(root, "store", store_place_name(place)) != NULL &&
                cli_json_numbers(root, numbers, sizeof(numbers) / sizeof(numbers[0]));
    for (size_t i = 0; made && i < r->before.count; i++) {
        const tamis_chunk_info *info = &r->before.infos[i];
        if (has(&r->after, info->key)) continue;
        const cli_number of_row[] = {{"tokens", info->n_tokens},
                                     {"record_bytes", (double)info->record_bytes}};
        cJSON *row = cli_json_row(rows);
        made = cJSON_AddStringToObject(row, "key", cli_hex(info->key).text) != NULL &&
               cli_json_numbers(row, of_row, 2);
    }
    if (!made) {
        cJSON_Delete(rows);
        rows = NULL;
    }
    return cli_json_write(root, rows, output, store_verify_command.name);
}

static int run(int argc, char *const *argv) {
    verify_flags f = {0};
    verify_result r = {0};
    cli_output output = {0};
    tamis_error error = {0};
    const char *name = store_verify_command.name;
    int code = cli_parse(&store_verify_command, &f, argc, argv);
    if (code >= 0) return code;
    if (!store_place_check(name, &f.place)) return CLI_USAGE;
    if (f.json != NULL && !cli_output_open(&output, name, f.json)) return CLI_FAILED;
    code = verify(&f.place, &r, &error) == TAMIS_OK ? CLI_OK : cli_fail(name, "%s", error.text);
    if (code == CLI_OK || r.found.damaged_left > 0) print_result(&r);
    if (code == CLI_OK && f.json != NULL && !write_json(&f.place, &r, &output)) code = CLI_FAILED;
    if (code == CLI_OK && r.damaged > 0)
        code = cli_fail(name, "%s: %llu records were damaged", store_place_name(&f.place),
                        (unsigned long long)r.damaged);
    cli_output_discard(&output);
    free(r.before.infos);
    free(r.after.infos);
    return code;
}
