/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that accepts connections, and closes those on which no request comes. */
#ifndef SERVE_LISTENER_H
#define SERVE_LISTENER_H

#include <microhttpd.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct serve_listener serve_listener;
/* A connection. */
typedef struct serve_connection serve_connection;

/* Takes the socket, which is listened on, unless the answer is NULL: no memory or no thread. Accepts
 * at most `most` connections, and closes a connection that is watched for `seconds`. */
serve_listener *serve_listener_open(int socket, uint32_t most, uint32_t seconds);
/* Accepts connections for the daemon from now on. False: no thread. */
bool serve_listener_start(serve_listener *listener, struct MHD_Daemon *daemon);
/* Closes the port, and answers when that is done. Connections are watched all the same. */
void serve_listener_shut(serve_listener *listener);
/* Before the daemon stops: nothing is accepted or watched any more. */
void serve_listener_stop(serve_listener *listener);
/* Behind it. Accepts NULL. */
void serve_listener_close(serve_listener *listener);

/* ---- By the daemon's thread ------------------------------------------------------------------- */

/* A connection has begun, and is watched. NULL without memory: it is not. */
serve_connection *serve_listener_enter(serve_listener *listener, int socket);
/* It ends: its socket is open for the last time. */
void serve_listener_leave(serve_listener *listener, serve_connection *connection);
/* Watches it from now on, or not any more. The connection may be NULL. */
void serve_listener_watch(serve_listener *listener, serve_connection *connection, bool watched);

#endif
