/* SPDX-License-Identifier: Apache-2.0 */
/* The redis tier, finding and reading records. A value may go or be replaced at any time, so what is read
 * of it comes together with its first bytes, which tell records apart by their checksum. */
#include "lib/store/redis.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_BYTES 16384 /* that are asked for when a record is looked for */

static tamis_status is_gone(const tms_redis *redis, const tms_redis_object *object,
                            tamis_error *error) {
    return tms_error_set(error, TAMIS_E_IO, "redis %s: chunk %s is gone", redis->address,
                         object->name.text);
}

/* Asks for a range, and then for the first bytes: if these are still the record's, the range was. */
static tamis_status ask_range(tms_redis *redis, const tms_redis_object *object, uint64_t offset,
                              size_t bytes, tms_redis_batch *batch, tamis_error *error) {
    char from[24], to[24], last[24];
    tamis_status status = TAMIS_OK;
    snprintf(from, sizeof from, "%" PRIu64, offset);
    snprintf(to, sizeof to, "%" PRIu64, offset + bytes - 1);
    snprintf(last, sizeof last, "%u", TMS_REDIS_IDENTITY - 1);
    *batch = (tms_redis_batch){.reply_bytes = bytes + TMS_REDIS_IDENTITY};
    tms_redis_add(batch, "GETRANGE", object->name.text, from, to, NULL);
    tms_redis_add(batch, "GETRANGE", object->name.text, "0", last, NULL);
    status = tms_redis_ask(redis, batch, error);
    const redisReply *range = batch->replies[0], *identity = batch->replies[1];
    if (!tms_redis_is(redis, "GETRANGE", range, REDIS_REPLY_STRING, &status, error) ||
        !tms_redis_is(redis, "GETRANGE", identity, REDIS_REPLY_STRING, &status, error))
        return status;
    if (range->len > bytes) return tms_redis_refused(redis, "GETRANGE", NULL, error);
    if (identity->len != object->identity_bytes ||
        memcmp(identity->str, object->identity, identity->len) != 0)
        return is_gone(redis, object, error);
    return TAMIS_OK;
}

/* The source of an object; `of` is the object. */
static tamis_status read_two(void *of, uint64_t offset, void *first, size_t bytes, void *second,
                             size_t more, size_t *got, tamis_error *error) {
    const tms_redis_object *object = of;
    tms_redis_batch batch;
    *got = 0;
    if (bytes + more == 0) return TAMIS_OK;
    const tamis_status status =
        ask_range((tms_redis *)object->object.tier, object, offset, bytes + more, &batch, error);
    if (status == TAMIS_OK) {
        const redisReply *range = batch.replies[0];
        *got = range->len;
        memcpy(first, range->str, *got < bytes ? *got : bytes);
        if (*got > bytes) memcpy(second, range->str + bytes, *got - bytes);
    }
    tms_redis_free(&batch);
    return status;
}

static tamis_status read_value(void *of, uint64_t offset, void *to, size_t bytes, size_t *got,
                               tamis_error *error) {
    const tms_redis_object *object = of;
    if (!object->head || offset + bytes > object->head_bytes)
        return read_two(of, offset, to, bytes, NULL, 0, got, error);
    memcpy(to, object->head + offset, bytes);
    *got = bytes;
    return TAMIS_OK;
}

void tms_redis_done(tms_object *object) {
    tms_record_free(&object->record);
    free((tms_redis_object *)object);
}

/* Reads the header; the value's first bytes are in the reply, which lives during this call alone. */
static tamis_status read_header(tms_redis_object *object, const redisReply *first,
                                const uint8_t *key, tms_verdict *verdict, tamis_error *error) {
    object->identity_bytes = first->len < TMS_REDIS_IDENTITY ? first->len : TMS_REDIS_IDENTITY;
    memcpy(object->identity, first->str, object->identity_bytes);
    object->head = first->str;
    object->head_bytes = first->len;
    const tamis_status status =
        tms_record_read(&object->object.source, &object->object.record, verdict, error);
    object->head = NULL;
    if (status == TAMIS_OK && *verdict == TMS_SOUND &&
        memcmp(object->object.record.key, key, TMS_KEY_BYTES) != 0) {
        tms_record_free(&object->object.record);
        *verdict = TMS_DAMAGED;
    }
    return status;
}

/* Nanoseconds since 1970. The server knows for how many seconds a value was not used, unless it
 * counts uses instead. */
static int64_t used_at(const redisReply *idle) {
    struct timespec now = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    if (idle->type != REDIS_REPLY_INTEGER || idle->integer < 0 || idle->integer > now.tv_sec)
        return 0;
    return ((int64_t)now.tv_sec - idle->integer) * 1000000000 + now.tv_nsec;
}

/* What is there, of one moment: how long it was not used, whether it is, its bytes, its first bytes.
 * *all stays NULL after an error. */
static tamis_status ask_about(tms_redis *redis, const tms_redis_name *name, tms_redis_batch *batch,
                              const redisReply **all, tamis_error *error) {
    char last[24];
    snprintf(last, sizeof last, "%d", FIRST_BYTES - 1);
    *batch = (tms_redis_batch){.reply_bytes = FIRST_BYTES};
    *all = NULL;
    tms_redis_add(batch, "MULTI", NULL);
    tms_redis_add(batch, "OBJECT", "IDLETIME", name->text, NULL);
    tms_redis_add(batch, "EXISTS", name->text, NULL);
    tms_redis_add(batch, "STRLEN", name->text, NULL);
    tms_redis_add(batch, "GETRANGE", name->text, "0", last, NULL);
    tms_redis_add(batch, "EXEC", NULL);
    tamis_status status = tms_redis_ask(redis, batch, error);
    for (unsigned i = 0; i + 1 < batch->count && status == TAMIS_OK; i++)
        (void)tms_redis_is(redis, batch->words[i][0], batch->replies[i], REDIS_REPLY_STATUS,
                           &status, error);
    const redisReply *exec = batch->replies[5];
    if (!tms_redis_is(redis, "EXEC", exec, REDIS_REPLY_ARRAY, &status, error)) return status;
    if (exec->elements != 4) return tms_redis_refused(redis, "EXEC", NULL, error);
    (void)tms_redis_is(redis, "EXISTS", exec->element[1], REDIS_REPLY_INTEGER, &status, error);
    (void)tms_redis_is(redis, "STRLEN", exec->element[2], REDIS_REPLY_INTEGER, &status, error);
    (void)tms_redis_is(redis, "GETRANGE", exec->element[3], REDIS_REPLY_STRING, &status, error);
    if (status == TAMIS_OK) *all = exec;
    return status;
}

/* The object of a value that is there, and what its header says. */
static tamis_status meet(tms_redis *redis, const tms_redis_name *name, const redisReply *all,
                         const uint8_t *key, tms_object **out, tms_verdict *verdict,
                         tamis_error *error) {
    const redisReply *bytes = all->element[2], *first = all->element[3];
    if (bytes->integer < 0 || first->len > FIRST_BYTES ||
        (uint64_t)bytes->integer < (uint64_t)first->len)
        return tms_redis_refused(redis, "GETRANGE", NULL, error);
    tms_redis_object *object = calloc(1, sizeof *object);
    TMS_REQUIRE(object, TAMIS_E_NO_MEMORY, "no memory for an open chunk");
    object->name = *name;
    object->object.tier = &redis->tier;
    object->object.used = used_at(all->element[0]);
    object->object.source = (tms_source){object, (uint64_t)bytes->integer, read_value, read_two};
    const tamis_status status = read_header(object, first, key, verdict, error);
    if (status != TAMIS_OK) {
        *verdict = TMS_ABSENT;
        tms_redis_done(&object->object);
    } else
        *out = &object->object;
    return status;
}

tamis_status tms_redis_find(tms_tier *tier, const uint8_t *key, tms_object **out,
                            tms_verdict *verdict, tamis_error *error) {
    tms_redis *redis = (tms_redis *)tier;
    tms_redis_name name;
    tms_redis_batch batch;
    const redisReply *all;
    *out = NULL;
    *verdict = TMS_ABSENT;
    tms_redis_name_of(redis, key, &name);
    tamis_status status = ask_about(redis, &name, &batch, &all, error);
    if (status == TAMIS_OK && all->element[1]->integer != 0)
        status = meet(redis, &name, all, key, out, verdict, error);
    tms_redis_free(&batch);
    return status;
}
