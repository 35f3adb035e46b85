/* SPDX-License-Identifier: Apache-2.0 */
/* The redis tier: a server with one value a record, under a prefix and the digits of its key. */
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
#define SCAN_COUNT      "2048"     /* keys that the server looks at in one answer */
#define SCAN_BYTES      (4u << 20)

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
    const tms_redis_object *object = (const tms_redis_object *)only;
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
