/* SPDX-License-Identifier: Apache-2.0 */
/* The redis tier inside: what asking the server (redis_link.c), finding records (redis_read.c) and writing
 * them (redis_write.c) share, below the tier itself (redis.c). hiredis connects, formats commands and
 * parses replies; bytes are moved here, so that a whole command has a deadline, no signal is raised where
 * the server is gone, and planes are sent from where they lie. */
#ifndef TMS_STORE_REDIS_H
#define TMS_STORE_REDIS_H

#include "lib/store/tier.h"

#include <hiredis/hiredis.h>
#include <pthread.h>
#include <sys/uio.h>

#define TMS_REDIS_IDLE     8u             /* connections that are kept */
#define TMS_REDIS_PREFIX   128u           /* most bytes of a prefix */
#define TMS_REDIS_VALUE    (512ull << 20) /* most bytes of a value that a server takes */
#define TMS_REDIS_IDENTITY 32u            /* first bytes of a record, its checksum among them */

typedef struct tms_redis {
    tms_tier tier;
    char *address, *prefix, *password; /* address: as messages show it; password: NULL for none */
    char *host;                        /* or the path of a socket */
    int port;                          /* 0: a socket */
    unsigned database, timeout_ms, walk_ms;
    size_t most_names; /* that a walk takes */

    pthread_mutex_t mutex; /* guards what follows; nothing is waited for under it */
    redisContext *idle[TMS_REDIS_IDLE];
    unsigned n_idle;
    unsigned failures;   /* to reach the server, since it was reached last */
    double down_until;   /* microseconds; nobody asks the server before */
    char reason[192];    /* of the last failure */
    uint64_t generation; /* connections of an older one are not kept */
} tms_redis;

/* The name of a record's key at the server: the prefix, then the key's digits. */
typedef struct tms_redis_name {
    char text[TMS_REDIS_PREFIX + TMS_KEY_TEXT];
    size_t length;
} tms_redis_name;

void tms_redis_name_of(const tms_redis *redis, const uint8_t *key, tms_redis_name *out);

/* Commands that are sent at once, and their replies in order. */
#define TMS_REDIS_COMMANDS 8
#define TMS_REDIS_WORDS    8
typedef struct tms_redis_batch {
    unsigned count;
    int n_words[TMS_REDIS_COMMANDS];
    const char *words[TMS_REDIS_COMMANDS][TMS_REDIS_WORDS];
    size_t lengths[TMS_REDIS_COMMANDS][TMS_REDIS_WORDS];
    redisReply *replies[TMS_REDIS_COMMANDS];
    uint64_t reply_bytes; /* what values of the replies may have */
} tms_redis_batch;

/* Adds a command of words that end with NULL; they must live until it was asked. */
void tms_redis_add(tms_redis_batch *batch, ...);
/* Sends them, and waits for the replies, which tms_redis_free frees, after an error too. A reply may
 * be an error. E_IO: the server could not be reached, or did not answer by the protocol and within
 * its time, and is left alone for a while. E_NO_MEMORY. */
tamis_status tms_redis_ask(tms_redis *redis, tms_redis_batch *batch, tamis_error *error);
void tms_redis_free(tms_redis_batch *batch);
/* The same for one command whose bytes are given. */
tamis_status tms_redis_send(tms_redis *redis, const struct iovec *pieces, size_t n,
                            redisReply **reply, tamis_error *error);

/* E_FULL for OOM, else E_IO, with the error that the server answered to a command. A reply that is
 * none to the command is as bad as no reply. */
tamis_status tms_redis_refused(tms_redis *redis, const char *what, const redisReply *reply,
                               tamis_error *error);
/* E_IO with the reason, for what a server must not do; nobody asks it for a while. */
tamis_status tms_redis_give_up(tms_redis *redis, const char *reason, tamis_error *error);
/* Whether a reply is of that type; where it is an error or another, *status says so. */
bool tms_redis_is(tms_redis *redis, const char *what, const redisReply *reply, int type,
                  tamis_status *status, tamis_error *error);

/* Sets address, host, port, and the database where the address names one (redis_address.c).
 * E_ARGUMENT, E_UNSUPPORTED, E_NO_MEMORY. */
tamis_status tms_redis_parse(tms_redis *redis, const char *address, tamis_error *error);
/* Closes connections that nobody uses. */
void tms_redis_hang_up(tms_redis *redis);

tamis_status tms_redis_stage(tms_tier *tier, const tms_record *record, const uint8_t *head,
                             const tamis_chunk_planes *chunk, tms_staged **out, tamis_error *error);
void tms_redis_discard(tms_tier *tier, tms_staged *staged);
tamis_status tms_redis_commit(tms_tier *tier, tms_staged *staged, tamis_error *error);

/* A record that was found (redis_read.c). */
typedef struct tms_redis_object {
    tms_object object;
    tms_redis_name name;
    uint8_t identity[TMS_REDIS_IDENTITY];
    size_t identity_bytes; /* fewer where the value is shorter */
    const char *head;      /* the value's first bytes, until its header has been read */
    size_t head_bytes;
} tms_redis_object;

/* As of tms_tier_ops. */
tamis_status tms_redis_find(tms_tier *tier, const uint8_t *key, tms_object **out,
                            tms_verdict *verdict, tamis_error *error);
void tms_redis_done(tms_object *object);

#endif
