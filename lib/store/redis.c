/* SPDX-License-Identifier: Apache-2.0 */
/* The redis tier: a server with one value a record, under a prefix and the digits of its key. A value
 * may go or be replaced at any time, so what is read of it comes together with its first bytes, which
 * tell records apart by their checksum. */
#include "lib/store/redis.h"
#include "lib/core/text_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DEFAULT_PREFIX  "tamis:"
#define DEFAULT_TIMEOUT 1000u
#define DEFAULT_WALK    20000u
#define MOST_TIMEOUT    3600000u
#define MOST_NAMES      (1u << 24) /* that a walk takes: 256 MiB of keys */
#define SOME_NAMES      4096u      /* that may be there twice before they are looked through */
#define FIRST_BYTES     16384      /* that are asked for when a record is looked for */
#define SCAN_COUNT      "2048"     /* keys that the server looks at in one answer */
#define SCAN_BYTES      (4u << 20)

typedef struct redis_object {
    tms_object object;
    tms_redis_name name;
    uint8_t identity[TMS_REDIS_IDENTITY];
    size_t identity_bytes; /* fewer where the value is shorter */
    const char *head;      /* the value's first bytes, until its header has been read */
    size_t head_bytes;
} redis_object;

/* ---- Opening --------------------------------------------------------------------------------- */

static uint64_t redis_limit(const tamis_store_params *params) {
    if (!params->redis) return 0;
    return params->redis_bytes ? params->redis_bytes : UINT64_MAX;
}

static void redis_close(tms_tier *tier) {
    tms_redis *redis = (tms_redis *)tier;
    tms_redis_hang_up(redis);
    pthread_mutex_destroy(&redis->mutex);
    free(redis->password);
    free(redis->prefix);
    free(redis->address);
    free(redis->host);
    free(redis);
}

static tamis_status take_params(tms_redis *redis, const tamis_store_params *params,
                                tamis_error *error) {
    const char *prefix = params->redis_prefix ? params->redis_prefix : DEFAULT_PREFIX;
    const char *password = params->redis_password;
    if (!password) password = tms_env("TAMIS_REDIS_PASSWORD");
    TMS_REQUIRE(strlen(prefix) <= TMS_REDIS_PREFIX, TAMIS_E_ARGUMENT,
                "redis_prefix has %zu bytes, of at most %u: %s", strlen(prefix), TMS_REDIS_PREFIX,
                tms_quote(prefix).text);
    TMS_REQUIRE(params->redis_timeout_ms <= MOST_TIMEOUT, TAMIS_E_ARGUMENT,
                "redis_timeout_ms is %" PRIu32 ", of at most %u", params->redis_timeout_ms,
                MOST_TIMEOUT);
    TMS_REQUIRE(params->redis_walk_ms <= MOST_TIMEOUT, TAMIS_E_ARGUMENT,
                "redis_walk_ms is %" PRIu32 ", of at most %u", params->redis_walk_ms, MOST_TIMEOUT);
    redis->database = params->redis_database;
    redis->walk_ms = params->redis_walk_ms ? params->redis_walk_ms : DEFAULT_WALK;
    redis->tier.patience_us = 1e3 * redis->walk_ms;
    redis->most_names = MOST_NAMES;
    redis->timeout_ms = params->redis_timeout_ms ? params->redis_timeout_ms : DEFAULT_TIMEOUT;
    redis->prefix = strdup(prefix);
    redis->password = password && *password ? strdup(password) : NULL;
    TMS_REQUIRE(redis->prefix && (redis->password || !password || !*password), TAMIS_E_NO_MEMORY,
                "no memory for a redis tier");
    return tms_redis_parse(redis, params->redis, error);
}

static tamis_status redis_open(const tamis_store_params *params, tms_tier **out,
                               tamis_error *error) {
    tms_redis *redis = calloc(1, sizeof *redis);
    TMS_REQUIRE(redis, TAMIS_E_NO_MEMORY, "no memory for a redis tier");
    redis->tier.ops = &tms_redis_ops;
    if (pthread_mutex_init(&redis->mutex, NULL) != 0) {
        free(redis);
        return tms_error_set(error, TAMIS_E_NO_MEMORY, "no memory for a mutex");
    }
    const tamis_status status = take_params(redis, params, error);
    if (status != TAMIS_OK)
        redis_close(&redis->tier);
    else
        *out = &redis->tier;
    return status;
}

/* ---- Reading --------------------------------------------------------------------------------- */

static tamis_status is_gone(const tms_redis *redis, const redis_object *object,
                            tamis_error *error) {
    return tms_error_set(error, TAMIS_E_IO, "redis %s: chunk %s is gone", redis->address,
                         object->name.text);
}

/* Asks for a range, and then for the first bytes: if these are still the record's, the range was. */
static tamis_status ask_range(tms_redis *redis, const redis_object *object, uint64_t offset,
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
    const redis_object *object = of;
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
    const redis_object *object = of;
    if (!object->head || offset + bytes > object->head_bytes)
        return read_two(of, offset, to, bytes, NULL, 0, got, error);
    memcpy(to, object->head + offset, bytes);
    *got = bytes;
    return TAMIS_OK;
}

void tms_redis_done(tms_object *object) {
    tms_record_free(&object->record);
    free((redis_object *)object);
}

/* Reads the header; the value's first bytes are in the reply, which lives during this call alone. */
static tamis_status read_header(redis_object *object, const redisReply *first, const uint8_t *key,
                                tms_verdict *verdict, tamis_error *error) {
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
    redis_object *object = calloc(1, sizeof *object);
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

/* The server itself knows what was read. */
static void redis_touch(tms_object *object) {
    (void)object;
}

/* ---- Names ----------------------------------------------------------------------------------- */

/* Removes the value if it begins so: 1 if it did, 0 if there is none, -1 if it is another. */
static const char remove_only[] =
    "if redis.call('GETRANGE',KEYS[1],0,31)==ARGV[1] then return redis.call('UNLINK',KEYS[1]) "
    "else return -redis.call('EXISTS',KEYS[1]) end";

static tamis_status redis_erase(tms_tier *tier, const uint8_t *key, const tms_object *only,
                                bool *other, tamis_error *error) {
    tms_redis *redis = (tms_redis *)tier;
    const redis_object *object = (const redis_object *)only;
    tms_redis_name name;
    tms_redis_batch batch = {0};
    if (other) *other = false;
    tms_redis_name_of(redis, key, &name);
    if (only) {
        tms_redis_add(&batch, "EVAL", remove_only, "1", name.text, "", NULL);
        batch.words[0][4] = (const char *)object->identity;
        batch.lengths[0][4] = object->identity_bytes;
    } else
        tms_redis_add(&batch, "UNLINK", name.text, NULL);
    tamis_status status = tms_redis_ask(redis, &batch, error);
    if (tms_redis_is(redis, batch.words[0][0], batch.replies[0], REDIS_REPLY_INTEGER, &status,
                     error) &&
        other)
        *other = batch.replies[0]->integer < 0;
    tms_redis_free(&batch);
    return status;
}

/* What is durable is the server's matter. */
static tamis_status redis_settle(tms_tier *tier, tamis_error *error) {
    (void)tier;
    (void)error;
    return TAMIS_OK;
}

/* A record is never half there. */
static tamis_status redis_sweep(tms_tier *tier, uint64_t *removed, tamis_error *error) {
    (void)tier;
    (void)removed;
    (void)error;
    return TAMIS_OK;
}

/* The prefix, of which nothing has a meaning in a pattern, and a star. */
static void pattern_of(const tms_redis *redis, char out[2 * TMS_REDIS_PREFIX + 2]) {
    for (const char *at = redis->prefix; *at; at++) {
        if (strchr("*?[]\\^-", *at)) *out++ = '\\';
        *out++ = *at;
    }
    memcpy(out, "*", 2);
}

static tamis_status take_names(const tms_redis *redis, const redisReply *names, tms_keys *out,
                               tamis_error *error) {
    const size_t prefix = strlen(redis->prefix);
    for (size_t i = 0; i < names->elements; i++) {
        const redisReply *name = names->element[i];
        uint8_t key[TMS_KEY_BYTES];
        if (name->type != REDIS_REPLY_STRING || name->len != prefix + TMS_KEY_TEXT - 1 ||
            memcmp(name->str, redis->prefix, prefix) != 0 ||
            !tms_hex_parse(name->str + prefix, key))
            continue;
        TMS_TRY(tms_keys_add(out, key, error));
    }
    return TAMIS_OK;
}

/* One answer of the server's walk, from the cursor on, which becomes the next one. */
static tamis_status scan(tms_redis *redis, const char *pattern, char cursor[24], tms_keys *out,
                         tamis_error *error) {
    tms_redis_batch batch = {.reply_bytes = SCAN_BYTES};
    tms_redis_add(&batch, "SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT, NULL);
    tamis_status status = tms_redis_ask(redis, &batch, error);
    const redisReply *reply = batch.replies[0];
    if (tms_redis_is(redis, "SCAN", reply, REDIS_REPLY_ARRAY, &status, error)) {
        const redisReply *next = reply->elements == 2 ? reply->element[0] : NULL;
        if (next && next->type == REDIS_REPLY_STRING && next->len > 0 && next->len < 24 &&
            strspn(next->str, "0123456789") == next->len &&
            reply->element[1]->type == REDIS_REPLY_ARRAY) {
            memcpy(cursor, next->str, next->len + 1);
            status = take_names(redis, reply->element[1], out, error);
        } else
            status = tms_redis_refused(redis, "SCAN", NULL, error);
    }
    tms_redis_free(&batch);
    return status;
}

static int by_bytes(const void *a, const void *b) {
    return memcmp(a, b, TMS_KEY_BYTES);
}

/* A server may name a key twice: one of each is left. */
static void leave_each_once(tms_keys *names) {
    size_t left = 0;
    if (names->count > 1) qsort(names->keys, names->count, sizeof *names->keys, by_bytes);
    for (size_t i = 0; i < names->count; i++)
        if (left == 0 || by_bytes(names->keys[left - 1], names->keys[i]) != 0)
            memmove(names->keys[left++], names->keys[i], TMS_KEY_BYTES);
    names->count = left;
}

/* A server that goes on for ever, with new names or without, fails; `once`: so many of the names
 * are there once. */
static tamis_status check_walk(tms_redis *redis, double began, tms_keys *names, size_t *once,
                               tamis_error *error) {
    char reason[96];
    if (names->count > 2 * *once + SOME_NAMES || names->count > redis->most_names) {
        leave_each_once(names);
        *once = names->count;
    }
    if (names->count > redis->most_names)
        snprintf(reason, sizeof reason, "SCAN: the server names more than %zu keys",
                 redis->most_names);
    else if (tms_now_us() - began > 1e3 * redis->walk_ms)
        snprintf(reason, sizeof reason, "SCAN: the server has not named all keys after %u ms",
                 redis->walk_ms);
    else
        return TAMIS_OK;
    return tms_redis_give_up(redis, reason, error);
}

static tamis_status redis_walk(tms_tier *tier, tms_keys *out, tamis_error *error) {
    tms_redis *redis = (tms_redis *)tier;
    char pattern[2 * TMS_REDIS_PREFIX + 2], cursor[24] = "0";
    const double began = tms_now_us();
    size_t once = 0;
    *out = (tms_keys){0};
    pattern_of(redis, pattern);
    for (;;) {
        TMS_TRY(scan(redis, pattern, cursor, out, error));
        if (strcmp(cursor, "0") == 0) break;
        TMS_TRY(check_walk(redis, began, out, &once, error));
    }
    leave_each_once(out);
    return TAMIS_OK;
}

const tms_tier_ops tms_redis_ops = {.tier = TAMIS_TIER_REDIS,
                                    .remote = true,
                                    .limit = redis_limit,
                                    .open = redis_open,
                                    .close = redis_close,
                                    .find = tms_redis_find,
                                    .touch = redis_touch,
                                    .done = tms_redis_done,
                                    .stage = tms_redis_stage,
                                    .discard = tms_redis_discard,
                                    .settle = redis_settle,
                                    .walk = redis_walk,
                                    .sweep = redis_sweep,
                                    .commit = tms_redis_commit,
                                    .erase = redis_erase};
