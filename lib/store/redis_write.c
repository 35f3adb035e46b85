/* SPDX-License-Identifier: Apache-2.0 */
/* Writing records to a server: one command, so that a record is there whole or not at all. Planes
 * are sent from the caller's memory. */
#include "lib/core/text_file.h"
#include "lib/store/redis.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRIES 3 /* where the server's records change at the same time */

/* What a put has, as long as it lasts. */
struct tms_staged {
    const tms_record *record;
    const uint8_t *head;
    const tamis_chunk_planes *chunk;
};

tamis_status tms_redis_stage(tms_tier *tier, const tms_record *record, const uint8_t *head,
                             const tamis_chunk_planes *chunk, tms_staged **out,
                             tamis_error *error) {
    const tms_redis *redis = (const tms_redis *)tier;
    TMS_REQUIRE(record->record_bytes <= TMS_REDIS_VALUE, TAMIS_E_FULL,
                "redis %s: a record of %" PRIu64 " bytes: a server takes values of at most %llu",
                redis->address, record->record_bytes, TMS_REDIS_VALUE);
    tms_staged *staged = malloc(sizeof *staged);
    TMS_REQUIRE(staged, TAMIS_E_NO_MEMORY, "no memory to write a chunk");
    *staged = (tms_staged){record, head, chunk};
    *out = staged;
    return TAMIS_OK;
}

void tms_redis_discard(tms_tier *tier, tms_staged *staged) {
    (void)tier;
    free(staged);
}

/* The record's bytes behind the first piece; returns how many pieces there are then. */
static size_t take_planes(const tms_staged *staged, struct iovec *pieces) {
    static uint8_t zeros[TMS_RECORD_PAGE];
    const tms_record *record = staged->record;
    const size_t padding = tms_whole_pages(record->plane_bytes) - record->plane_bytes;
    size_t n = 1;
    pieces[n++] = (struct iovec){(void *)(uintptr_t)staged->head, record->header_bytes};
    for (uint32_t i = 0; i < tms_record_planes(record); i++) {
        const void *plane = (i % 2 ? staged->chunk->v : staged->chunk->k)[i / 2];
        pieces[n++] = (struct iovec){(void *)(uintptr_t)plane, record->plane_bytes};
        pieces[n++] = (struct iovec){zeros, padding};
    }
    return n;
}

/* Whether a server has refused a value for its length: "ERR Protocol error: invalid bulk length". */
static bool says_too_long(const redisReply *reply) {
    return reply->type == REDIS_REPLY_ERROR &&
           (strstr(reply->str, "bulk length") || strstr(reply->str, "proto-max-bulk-len"));
}

/* SET, where `first` unless there is such a key: *set says whether there was none. */
static tamis_status set_value(tms_redis *redis, const tms_staged *staged,
                              const tms_redis_name *name, bool first, bool *set,
                              tamis_error *error) {
    char begin[TMS_REDIS_PREFIX + TMS_KEY_TEXT + 96];
    const char *end = first ? "\r\n$2\r\nNX\r\n" : "\r\n";
    const size_t most = 3 + 2 * (size_t)tms_record_planes(staged->record);
    struct iovec *pieces = calloc(most, sizeof *pieces);
    TMS_REQUIRE(pieces, TAMIS_E_NO_MEMORY, "no memory to write a chunk");
    const int length =
        snprintf(begin, sizeof begin, "*%d\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$%" PRIu64 "\r\n",
                 first ? 4 : 3, name->length, name->text, staged->record->record_bytes);
    pieces[0] = (struct iovec){begin, (size_t)length};
    size_t n = take_planes(staged, pieces);
    pieces[n++] = (struct iovec){(void *)(uintptr_t)end, strlen(end)};
    redisReply *reply = NULL;
    tamis_status status = tms_redis_send(redis, pieces, n, &reply, error);
    free(pieces);
    *set = status == TAMIS_OK && reply->type == REDIS_REPLY_STATUS;
    if (status == TAMIS_OK && says_too_long(reply))
        status =
            tms_error_set(error, TAMIS_E_FULL,
                          "redis %s: a record of %" PRIu64 " bytes is above the server's limit "
                          "of values (proto-max-bulk-len): %s",
                          redis->address, staged->record->record_bytes, tms_quote(reply->str).text);
    else if (status == TAMIS_OK && !*set && !(first && reply->type == REDIS_REPLY_NIL))
        status = tms_redis_refused(redis, "SET", reply, error);
    if (reply) freeReplyObject(reply);
    return status;
}

/* There is something under the key. A sound record stays: *there. Another version, and what is
 * damaged, is replaced: *replace. */
static tamis_status look(tms_redis *redis, const uint8_t *key, bool *there, bool *replace,
                         tamis_error *error) {
    tms_object *object = NULL;
    tms_verdict verdict;
    TMS_TRY(tms_redis_find(&redis->tier, key, &object, &verdict, error));
    *there = verdict == TMS_SOUND;
    *replace = verdict == TMS_DAMAGED || verdict == TMS_FOREIGN;
    if (object) tms_redis_done(object);
    return TAMIS_OK;
}

/* The first of several writers wins; what was there all along, and is no record, does not. */
static tamis_status set_first(tms_redis *redis, const tms_staged *staged, tamis_error *error) {
    tms_redis_name name;
    bool set = false, replace = false;
    tms_redis_name_of(redis, staged->record->key, &name);
    for (int try = 0; try < TRIES; try++) {
        TMS_TRY(set_value(redis, staged, &name, !replace, &set, error));
        if (set) return TAMIS_OK;
        TMS_TRY(look(redis, staged->record->key, &set, &replace, error));
        if (set) return TAMIS_OK;
    }
    return tms_error_set(error, TAMIS_E_IO, "redis %s: SET: %s comes and goes", redis->address,
                         name.text);
}

tamis_status tms_redis_commit(tms_tier *tier, tms_staged *staged, tamis_error *error) {
    const tamis_status status = set_first((tms_redis *)tier, staged, error);
    free(staged);
    return status;
}
