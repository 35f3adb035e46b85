/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands on a store of chunks share: opening it, its list, what flags say. */
#ifndef STORE_SHARED_H
#define STORE_SHARED_H

#include "cli/commands.h"
#include "cli/json.h"

#include <tamis/record.h>

extern const cli_command store_put_command, store_list_command, store_verify_command,
    store_gc_command;

/* Where a store is: a folder, or a server with a prefix and a database. */
typedef struct store_place {
    const char *folder, *redis, *prefix;
    uint32_t database;
} store_place;

/* clang-format off */
#define STORE_SERVER_OPTIONS(type, member, what)                                                   \
    {"--redis", "ADDRESS", what ", host:port, redis://host:port or the path of a socket; the "      \
     "password is that of TAMIS_REDIS_PASSWORD", CLI_TEXT, offsetof(type, member.redis), 0, 0, NULL},                  \
    {"--prefix", "TEXT", "of --redis: of all its keys (default: tamis:)", CLI_TEXT,                \
     offsetof(type, member.prefix), 0, 0, NULL},                                                   \
    {"--database", "N", "of --redis: the number of a database (default: 0)", CLI_NUMBER,           \
     offsetof(type, member.database), 0, 1000000, NULL}
#define STORE_PLACE_OPTIONS(type, member)                                                          \
    {"--store", "FOLDER", "the folder of the store", CLI_PATH, offsetof(type, member.folder), 0,   \
     0, NULL},                                                                                     \
    STORE_SERVER_OPTIONS(type, member, "in place of a folder: a Redis or Valkey server")
/* clang-format on */

/* Says what is wrong with a place: none, or two. */
bool store_place_check(const char *command, const store_place *place);
/* The same of the flags of a server alone, which may be missing. */
bool store_server_check(const char *command, const store_place *place);
/* The folder, or the address of the server. */
const char *store_place_name(const store_place *place);
tamis_tier store_place_tier(const store_place *place);

/* Opens the store of a place, without a tier in memory; `bytes` limits it, 0: nothing does. A folder
 * that is not there is made if `make`, else it is an error. */
tamis_status store_open(const store_place *place, uint64_t bytes, bool make, tamis_store **out,
                        tamis_error *error);

/* All records of a store; `infos` is the caller's to free. */
typedef struct store_records {
    tamis_chunk_info *infos;
    size_t count;
} store_records;
tamis_status store_list(tamis_store *store, store_records *out, tamis_error *error);

/* The tokens behind which chunks of this model are computed: bos, where the file wants it before
 * every text. Writes it to *token and returns how many there are, 0 or 1. */
uint32_t store_sink(const tamis_model *model, int32_t *token);

/* Prints what is wrong with a value of a flag, and returns false. */
bool store_parse_hex(const char *command, const char *flag, const char *text, uint8_t out[16]);

#endif
