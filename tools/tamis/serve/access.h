/* SPDX-License-Identifier: Apache-2.0 */
/* Who may ask: keys, hosts, origins. */
#ifndef SERVE_ACCESS_H
#define SERVE_ACCESS_H

#include "cli/options.h"
#include "serve/refusal.h"

#include <stdint.h>

typedef struct serve_access {
    char **keys; /* [n_keys]; none: everybody may ask */
    uint32_t n_keys;
    cli_texts hosts;   /* names that Host may have, beside addresses and localhost */
    cli_texts origins; /* that Origin may be, beside the server's own */
} serve_access;

/* Keys are the lines of the file (NULL: none) and the environment's TAMIS_API_KEY. Prints why and
 * returns false if they cannot be read, or the file is readable by everybody. */
bool serve_access_open(serve_access *access, const char *command, const char *key_file);
void serve_access_close(serve_access *access);

/* Each compares the value of a header, which may be NULL. False: refused. */

/* "Bearer KEY". `salt` becomes the key's own, so that prefixes are shared among its requests alone; 0
 * where there are no keys. All keys are compared, each in a time that does not depend on where it
 * differs. */
bool serve_access_key(const serve_access *access, const char *authorization, uint8_t salt[16],
                      serve_refusal *refusal);
/* A name that somebody else's DNS gives this server's address is refused, so that a page of that name
 * cannot reach the server by its visitor (DNS rebinding). */
bool serve_access_host(const serve_access *access, const char *host, serve_refusal *refusal);
/* Pages of other origins are refused. *cross: the origin is another one that is let in, to which
 * Access-Control-Allow-Origin is sent. */
bool serve_access_origin(const serve_access *access, const char *origin, const char *host,
                         bool *cross, serve_refusal *refusal);
/* What a preflight is told for Access-Control-Allow-Headers: the names that it asks for (NULL: none),
 * as far as they are names. Clients send more than they need, as OpenAI's X-Stainless-*. */
const char *serve_access_headers(const char *asked);

#endif
