/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands on a store of chunks share. */
#include "store/shared.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

bool store_server_check(const char *command, const store_place *place) {
    const bool more = place->prefix != NULL || place->database != 0;
    if (!more || place->redis != NULL) return true;
    cli_fail(command, "%s: belongs to --redis, which is not given",
             place->prefix != NULL ? "--prefix" : "--database");
    return false;
}

bool store_place_check(const char *command, const store_place *place) {
    if (place->folder == NULL && place->redis == NULL)
        cli_fail(command, "--store or --redis: is missing (see %s --help)", command);
    else if (place->folder != NULL && place->redis != NULL)
        cli_fail(command, "--redis: stands in the place of --store");
    else
        return store_server_check(command, place);
    return false;
}

const char *store_place_name(const store_place *place) {
    return place->redis != NULL ? place->redis : place->folder;
}

tamis_tier store_place_tier(const store_place *place) {
    return place->redis != NULL ? TAMIS_TIER_REDIS : TAMIS_TIER_DISK;
}

tamis_status store_open(const store_place *place, uint64_t bytes, bool make, tamis_store **out,
                        tamis_error *error) {
    const tamis_store_params at_server = {.redis = place->redis,
                                          .redis_prefix = place->prefix,
                                          .redis_database = place->database,
                                          .redis_bytes = bytes};
    const tamis_store_params in_folder = {.folder = place->folder, .disk_bytes = bytes};
    struct stat about;
    if (place->redis != NULL) return tamis_store_create(&at_server, out, error);
    if (!make && stat(place->folder, &about) != 0)
        return cli_error(error, TAMIS_E_IO, "%s: cannot be read: %s", place->folder,
                         strerror(errno));
    return tamis_store_create(&in_folder, out, error);
}

tamis_status store_list(tamis_store *store, store_records *out, tamis_error *error) {
    size_t room = 0;
    *out = (store_records){0};
    for (;;) { /* another process may add records meanwhile */
        tamis_status status = tamis_store_list(store, out->infos, room, &out->count, error);
        if (status == TAMIS_OK && out->count <= room) return TAMIS_OK;
        free(out->infos);
        out->infos = NULL;
        if (status == TAMIS_OK) {
            room = out->count + 16;
            out->infos = calloc(room, sizeof(*out->infos));
            if (out->infos == NULL) status = cli_no_memory(error);
        }
        if (status != TAMIS_OK) {
            out->count = 0;
            return status;
        }
    }
}

uint32_t store_sink(const tamis_model *model, int32_t *token) {
    const tamis_vocab_info *info = tamis_vocab_describe(tamis_model_vocab(model));
    *token = info->bos;
    return info->add_bos && info->bos >= 0;
}

bool store_parse_hex(const char *command, const char *flag, const char *text, uint8_t out[16]) {
    static const char digits[] = "0123456789abcdef";
    if (strlen(text) != 32 || strspn(text, digits) != 32) {
        cli_fail(command, "%s %s: not 32 digits of 0 to 9 and a to f", flag, text);
        return false;
    }
    for (int i = 0; i < 16; i++)
        out[i] = (uint8_t)((strchr(digits, text[2 * i]) - digits) << 4 |
                           (strchr(digits, text[2 * i + 1]) - digits));
    return true;
}
