/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the redis tier share: a server of their own on a socket in the rig's folder. */
#ifndef STORE_REDIS_RIG_H
#define STORE_REDIS_RIG_H

#include "tests/store/rig.h"

#include <hiredis/hiredis.h>

#define SERVER_NONE 77 /* exit status of a test that is skipped */

/* How a test's main begins: folders in memory, a server. False and a line: none is installed. */
bool server_begin(void);
/* How it ends: nothing is left of server and folders. */
void server_end(void);

/* Starts redis-server or valkey-server, and waits until it answers. False: neither is installed. */
bool server_start(void);
/* Ends it at once; nothing of what it had is left. */
void server_kill(void);
void server_pause(void);
void server_go_on(void);
/* Its socket. */
const char *server_path(void);

/* What the server answers to a command that is formatted as by redisCommand; never NULL. The caller
 * frees it. */
redisReply *server_ask(const char *format, ...);
/* The same where the reply does not matter, unless it is an error. */
void server_do(const char *format, ...);
/* How many keys the database 0 has. */
long long server_keys(void);

/* The name of a chunk's key there. */
const char *server_name(const rig_chunk *chunk);

/* A store with a tier on the server. Of params that are 0, `redis` is the server, and commands may
 * take 20 s. */
tamis_store *server_store(tamis_store_params params);
tamis_tier_stats server_stats(tamis_store *store);

double server_seconds(void); /* of a clock that nobody sets */

#endif
