/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that accepts connections, and closes those on which no request comes. */
#ifndef SERVE_DOOR_H
#define SERVE_DOOR_H

#include <microhttpd.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct serve_door serve_door;
/* A connection. */
typedef struct serve_guest serve_guest;

/* Takes the socket, which is listened on, unless the answer is NULL: no memory or no thread. Accepts
 * at most `most` connections, and closes a connection that is watched for `seconds`. */
serve_door *serve_door_open(int socket, uint32_t most, uint32_t seconds);
/* Accepts connections for the daemon from now on. False: no thread. */
bool serve_door_start(serve_door *door, struct MHD_Daemon *daemon);
/* Closes the port, and answers when that is done. Connections are watched all the same. */
void serve_door_shut(serve_door *door);
/* Before the daemon stops: nothing is accepted or watched any more. */
void serve_door_stop(serve_door *door);
/* Behind it. Accepts NULL. */
void serve_door_close(serve_door *door);

/* ---- By the daemon's thread ------------------------------------------------------------------- */

/* A connection has begun, and is watched. NULL without memory: it is not. */
serve_guest *serve_door_enter(serve_door *door, int socket);
/* It ends: its socket is open for the last time. */
void serve_door_leave(serve_door *door, serve_guest *guest);
/* Watches it from now on, or not any more. The guest may be NULL. */
void serve_door_watch(serve_door *door, serve_guest *guest, bool watched);

#endif
