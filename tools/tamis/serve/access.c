/* SPDX-License-Identifier: Apache-2.0 */
/* Keys, hosts, origins. */
#define _GNU_SOURCE /* secure_getenv */
#include "serve/access.h"

#include "cli/cli.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <tamis/store.h>

#define KEYS_MAX      1024u
#define KEY_MAX_BYTES 512u

/* ---- Keys ------------------------------------------------------------------------------------ */

static bool add_key(serve_access *access, const char *command, const char *key, size_t bytes) {
    if (bytes > KEY_MAX_BYTES || access->n_keys == KEYS_MAX)
        return cli_fail(command, "API keys: at most %u, of at most %u bytes each", KEYS_MAX,
                        KEY_MAX_BYTES) == CLI_OK;
    for (size_t i = 0; i < bytes; i++)
        if (key[i] <= ' ' || key[i] > '~')
            return cli_fail(command,
                            "API keys: byte %zu of key %u is no printable character of ASCII", i,
                            access->n_keys + 1) == CLI_OK;
    char **keys = realloc(access->keys, (access->n_keys + 1) * sizeof *keys);
    if (keys == NULL) return cli_fail(command, "out of host memory") == CLI_OK;
    access->keys = keys;
    keys[access->n_keys] = strndup(key, bytes);
    if (keys[access->n_keys] == NULL) return cli_fail(command, "out of host memory") == CLI_OK;
    access->n_keys++;
    return true;
}

static bool read_keys(serve_access *access, const char *command, FILE *from) {
    char *line = NULL;
    size_t room = 0;
    bool good = true;
    for (ssize_t n; good && (n = getline(&line, &room, from)) >= 0;) {
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r'))
            n--;
        if (n > 0) good = add_key(access, command, line, (size_t)n);
    }
    free(line);
    return good;
}

static bool read_key_file(serve_access *access, const char *command, const char *path) {
    struct stat info;
    FILE *from = fopen(path, "r");
    if (from == NULL || fstat(fileno(from), &info) != 0) {
        if (from != NULL) fclose(from);
        return cli_fail(command, "--api-key-file %s: %s", path, strerror(errno)) == CLI_OK;
    }
    bool good = (info.st_mode & S_IROTH) == 0 ||
                cli_fail(command, "--api-key-file %s: everybody may read it (chmod o= %s)", path,
                         path) == CLI_OK;
    if (good) good = read_keys(access, command, from);
    fclose(from);
    if (good && access->n_keys == 0)
        return cli_fail(command, "--api-key-file %s: has no key", path) == CLI_OK;
    return good;
}

bool serve_access_open(serve_access *access, const char *command, const char *key_file) {
    const char *key = secure_getenv("TAMIS_API_KEY");
    if (key_file != NULL && !read_key_file(access, command, key_file)) return false;
    return key == NULL || key[0] == '\0' || add_key(access, command, key, strlen(key));
}

void serve_access_close(serve_access *access) {
    for (uint32_t i = 0; i < access->n_keys; i++)
        free(access->keys[i]);
    free(access->keys);
    access->keys = NULL;
    access->n_keys = 0;
}

/* Looks at every byte that a key may have. */
static bool same_key(const char *a, const char *b) {
    char left[KEY_MAX_BYTES + 1] = {0}, right[KEY_MAX_BYTES + 1] = {0};
    volatile unsigned char differs = 0;
    strncpy(left, a, KEY_MAX_BYTES);
    strncpy(right, b, KEY_MAX_BYTES);
    for (size_t i = 0; i <= KEY_MAX_BYTES; i++)
        differs |= (unsigned char)(left[i] ^ right[i]);
    return differs == 0;
}

/* The same in every process, so that servers that share a store share prefixes, too. */
static bool salt_of(const char *key, uint8_t salt[16], serve_refusal *refusal) {
    int32_t bytes[KEY_MAX_BYTES];
    const uint8_t none[16] = {0};
    const uint32_t n = (uint32_t)strlen(key);
    for (uint32_t i = 0; i < n; i++)
        bytes[i] = (unsigned char)key[i];
    return tamis_fingerprint_extend(none, bytes, n, salt, NULL) == TAMIS_OK ||
           serve_refuse_memory(refusal);
}

bool serve_access_key(const serve_access *access, const char *authorization, uint8_t salt[16],
                      serve_refusal *refusal) {
    static const char scheme[] = "Bearer ";
    const size_t n = sizeof scheme - 1;
    const bool bearer = authorization != NULL && strncasecmp(authorization, scheme, n) == 0;
    const char *key = bearer ? authorization + n : "";
    uint32_t found = UINT32_MAX;
    memset(salt, 0, 16);
    if (access->n_keys == 0) return true;
    for (uint32_t i = 0; i < access->n_keys && strlen(key) <= KEY_MAX_BYTES; i++)
        if (same_key(access->keys[i], key)) found = i;
    if (found != UINT32_MAX) return salt_of(access->keys[found], salt, refusal);
    return serve_refuse(refusal, 401, NULL, "invalid_api_key", "%s",
                        bearer ? "the API key is not known"
                               : "an API key is missing: Authorization: Bearer KEY");
}

/* ---- Hosts and origins ----------------------------------------------------------------------- */

/* The name of "name:port" or "[address]:port". */
static bool name_of(const char *host, char name[256]) {
    const char *end = host[0] == '[' ? strchr(host, ']') : host + strcspn(host, ":");
    const char *from = host + (host[0] == '[');
    if (end == NULL || end == from || end - from > 255) return false;
    memcpy(name, from, (size_t)(end - from));
    name[end - from] = '\0';
    end += host[0] == '[';
    return *end == '\0' || (*end == ':' && end[1 + strspn(end + 1, "0123456789")] == '\0');
}

static bool is_address(const char *name) {
    unsigned char address[16];
    return inet_pton(AF_INET, name, address) == 1 || inet_pton(AF_INET6, name, address) == 1;
}

static bool is_listed(const cli_texts *list, const char *text) {
    for (uint32_t i = 0; i < list->count; i++)
        if (strcasecmp(list->values[i], text) == 0) return true;
    return false;
}

bool serve_access_host(const serve_access *access, const char *host, serve_refusal *refusal) {
    char name[256];
    if (host == NULL)
        return serve_refuse(refusal, 400, NULL, "bad_host", "the header Host is missing");
    if (!name_of(host, name))
        return serve_refuse(refusal, 400, NULL, "bad_host", "Host '%.80s' is no host", host);
    if (is_address(name) || strcasecmp(name, "localhost") == 0 || is_listed(&access->hosts, name))
        return true;
    return serve_refuse(refusal, 403, NULL, "bad_host",
                        "Host '%.80s' is not one of this server's (--allow-host names more)", host);
}

bool serve_access_origin(const serve_access *access, const char *origin, const char *host,
                         bool *cross, serve_refusal *refusal) {
    *cross = false;
    if (origin == NULL) return true;
    const char *name = strncmp(origin, "http://", 7) == 0    ? origin + 7
                       : strncmp(origin, "https://", 8) == 0 ? origin + 8
                                                             : NULL;
    if (name != NULL && strcasecmp(name, host) == 0) return true;
    *cross = is_listed(&access->origins, origin);
    return *cross ||
           serve_refuse(refusal, 403, NULL, "bad_origin",
                        "Origin '%.80s' is not let in (--cors-origin names more)", origin);
}

const char *serve_access_headers(const char *asked) {
    static const char names[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "!#$%&'*+-.^_`|~, ";
    return asked != NULL && asked[0] != '\0' && asked[strspn(asked, names)] == '\0'
               ? asked
               : "Authorization, Content-Type";
}
