/* SPDX-License-Identifier: Apache-2.0 */
/* The address of a server: host and port, a URL of these, or the path of a socket. */
#include "lib/core/text_file.h"
#include "lib/store/redis.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#define SCHEME       "redis://"
#define DEFAULT_PORT 6379
#define MOST_NUMBER  1000000000u

/* A whole number that ends at `end`; false for anything else. */
static bool take_number(const char *from, const char *end, unsigned *out) {
    *out = 0;
    for (const char *at = from; at < end; at++) {
        if (*at < '0' || *at > '9') return false;
        if (*out < MOST_NUMBER) *out = 10 * *out + (unsigned)(*at - '0');
    }
    return from < end;
}

static tamis_status is_none(const char *address, tamis_error *error) {
    return tms_error_set(error, TAMIS_E_ARGUMENT,
                         "redis: \"%s\" is neither host:port, redis://host:port nor the path of a "
                         "socket with a slash in it",
                         tms_quote(address).text);
}

/* ":port" at [colon, end), or nothing where it may be missing. */
static tamis_status take_port(tms_redis *redis, const char *address, const char *colon,
                              const char *end, bool missing, tamis_error *error) {
    unsigned port = DEFAULT_PORT;
    if (colon == end && !missing) return is_none(address, error);
    if (colon < end && (*colon != ':' || !take_number(colon + 1, end, &port)))
        return is_none(address, error);
    TMS_REQUIRE(port >= 1 && port <= 65535, TAMIS_E_ARGUMENT,
                "redis: port %.*s of \"%s\": a port is 1 to 65535", (int)(end - colon - 1),
                colon + 1, tms_quote(address).text);
    redis->port = (int)port;
    return TAMIS_OK;
}

/* "host:port" or "[IPv6]:port" at [from, end) of the address. */
static tamis_status take_host(tms_redis *redis, const char *address, const char *from,
                              const char *end, bool missing, tamis_error *error) {
    const bool bracket = *from == '[';
    const char *last = memchr(from, bracket ? ']' : ':', (size_t)(end - from));
    const char *colon = !last ? end : bracket ? last + 1 : last;
    const char *host = from + bracket, *host_end = bracket ? last : colon;
    TMS_REQUIRE(bracket || colon == end || !memchr(colon + 1, ':', (size_t)(end - colon - 1)),
                TAMIS_E_ARGUMENT,
                "redis: \"%s\": an IPv6 address stands in brackets, as [::1]:6379",
                tms_quote(address).text);
    if ((bracket && !last) || host == host_end) return is_none(address, error);
    TMS_TRY(take_port(redis, address, colon, end, missing, error));
    redis->host = strndup(host, (size_t)(host_end - host));
    TMS_REQUIRE(redis->host, TAMIS_E_NO_MEMORY, "no memory for an address");
    return TAMIS_OK;
}

/* What follows the host of a URL: nothing, a slash, or a slash and the number of a database. */
static tamis_status take_database(tms_redis *redis, const char *address, const char *from,
                                  tamis_error *error) {
    unsigned database = 0;
    if (*from == '\0' || strcmp(from, "/") == 0) return TAMIS_OK;
    TMS_REQUIRE(
        *from == '/' && take_number(from + 1, from + strlen(from), &database) &&
            database < MOST_NUMBER,
        TAMIS_E_ARGUMENT,
        "redis: \"%s\": behind the host may stand / and the number of a database, and no more",
        tms_quote(address).text);
    TMS_REQUIRE(redis->database == 0 || redis->database == database, TAMIS_E_ARGUMENT,
                "redis: \"%s\" names database %u, but redis_database is %u",
                tms_quote(address).text, database, redis->database);
    redis->database = database;
    return TAMIS_OK;
}

/* What stands behind "redis://". A password is in no message. */
static tamis_status take_url(tms_redis *redis, const char *address, tamis_error *error) {
    const char *from = address + sizeof SCHEME - 1;
    const char *end = from + strcspn(from, "/?#");
    TMS_REQUIRE(!strchr(from, '@'), TAMIS_E_ARGUMENT,
                "redis: an address of redis:// has a user or a password, which it cannot: the "
                "password is that of redis_password or TAMIS_REDIS_PASSWORD, and the user is the "
                "default one");
    TMS_TRY(take_database(redis, address, end, error));
    return take_host(redis, address, from, end, true, error);
}

static tamis_status take_path(tms_redis *redis, const char *address, tamis_error *error) {
    const size_t most = sizeof((struct sockaddr_un *)NULL)->sun_path - 1;
    const char *scheme = strstr(address, "://");
    TMS_REQUIRE(
        strncmp(address, "rediss://", 9) != 0, TAMIS_E_UNSUPPORTED,
        "redis: rediss:// asks for encryption, which there is none of; redis://host:port is "
        "a server without it");
    TMS_REQUIRE(
        !scheme, TAMIS_E_ARGUMENT,
        "redis: \"%.*s\" is no scheme of an address; there are redis://host:port, host:port "
        "and the path of a socket",
        scheme - address < 32 ? (int)(scheme - address) : 32, tms_quote(address).text);
    TMS_REQUIRE(strlen(address) <= most, TAMIS_E_ARGUMENT,
                "redis: the path of a socket has at most %zu bytes: %s", most,
                tms_quote(address).text);
    redis->host = strdup(address);
    TMS_REQUIRE(redis->host, TAMIS_E_NO_MEMORY, "no memory for an address");
    return TAMIS_OK;
}

tamis_status tms_redis_parse(tms_redis *redis, const char *address, tamis_error *error) {
    if (strncmp(address, SCHEME, sizeof SCHEME - 1) == 0)
        TMS_TRY(take_url(redis, address, error));
    else if (strchr(address, '/'))
        TMS_TRY(take_path(redis, address, error));
    else
        TMS_TRY(take_host(redis, address, address, address + strlen(address), false, error));
    redis->address = strdup(tms_quote(address).text);
    TMS_REQUIRE(redis->address, TAMIS_E_NO_MEMORY, "no memory for an address");
    return TAMIS_OK;
}
