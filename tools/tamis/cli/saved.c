/* SPDX-License-Identifier: Apache-2.0 */
/* A session's sequence in a file, from which a later run goes on. */
#include "cli/saved.h"

#include "cli/output.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The header: little-endian numbers, and a sum (FNV-1a) of what stands before it. */
enum {
    AT_VERSION = 8,
    AT_TURNS = 12,
    AT_UNREAD = 16, /* 0 or 1 */
    AT_NEXT = 20,
    AT_FORMAT = 24,
    AT_SUM = 56,
    HEADER_BYTES = 64
};
#define VERSION 1u
static const char MAGIC[] = "tamisrun";

static void put_u32(uint8_t *to, uint32_t value) {
    for (int i = 0; i < 4; i++)
        to[i] = (uint8_t)(value >> 8 * i);
}

static uint32_t get_u32(const uint8_t *from) {
    uint32_t value = 0;
    for (int i = 0; i < 4; i++)
        value |= (uint32_t)from[i] << 8 * i;
    return value;
}

static uint64_t sum_of(const uint8_t *header) {
    uint64_t sum = UINT64_C(0xcbf29ce484222325);
    for (int i = 0; i < AT_SUM; i++)
        sum = (sum ^ header[i]) * UINT64_C(0x100000001b3);
    return sum;
}

/* ---- Reading --------------------------------------------------------------------------------- */

/* NULL without a reason: there is no file. */
static FILE *open_file(const char *path, tamis_status *status, tamis_error *error) {
    struct stat info;
    const int handle = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    FILE *file = NULL;
    *status = TAMIS_OK;
    if (handle < 0 && errno == ENOENT) return NULL;
    if (handle >= 0 && fstat(handle, &info) == 0 && !S_ISREG(info.st_mode)) {
        close(handle);
        *status = cli_error(error, TAMIS_E_FORMAT, "%s: is no ordinary file", path);
        return NULL;
    }
    if (handle >= 0) file = fdopen(handle, "rb");
    if (file == NULL) {
        *status = cli_error(error, TAMIS_E_IO, "%s: cannot be read: %s", path, strerror(errno));
        if (handle >= 0) close(handle);
    }
    return file;
}

static int read_bytes(void *user, void *bytes, size_t n) {
    return fread(bytes, 1, n, user) != n;
}

static tamis_status read_header(cli_saved *saved, cli_session *s, FILE *file, tamis_error *error) {
    uint8_t header[HEADER_BYTES];
    uint32_t n_vocab = tamis_model_describe(s->model)->n_vocab;
    const bool whole = fread(header, 1, sizeof(header), file) == sizeof(header);
    if (!whole || memcmp(header, MAGIC, AT_VERSION) != 0)
        return cli_error(error, TAMIS_E_FORMAT, "%s: is no session of tamis run", saved->path);
    if (get_u32(header + AT_VERSION) != VERSION)
        return cli_error(error, TAMIS_E_FORMAT, "%s: has version %u; this program reads %u",
                         saved->path, get_u32(header + AT_VERSION), VERSION);
    const uint64_t sum = get_u32(header + AT_SUM) | (uint64_t)get_u32(header + AT_SUM + 4) << 32;
    if (sum != sum_of(header) || get_u32(header + AT_UNREAD) > 1 || header[AT_SUM - 1] != 0)
        return cli_error(error, TAMIS_E_DAMAGED, "%s: is damaged", saved->path);
    s->next = (int32_t)get_u32(header + AT_NEXT);
    s->unread = get_u32(header + AT_UNREAD) != 0;
    if (s->unread && (s->next < 0 || (uint32_t)s->next >= n_vocab))
        return cli_error(error, TAMIS_E_FORMAT,
                         "%s: the last token is %d, outside the vocabulary of %u", saved->path,
                         s->next, n_vocab);
    saved->turns = get_u32(header + AT_TURNS);
    memcpy(saved->format, header + AT_FORMAT, sizeof(saved->format));
    return TAMIS_OK;
}

/* A sequence beside the session's empty one, which it then replaces. */
static tamis_status read_sequence(const cli_saved *saved, cli_session *s, FILE *file,
                                  tamis_error *error) {
    tamis_sequence sequence = 0;
    uint32_t length = 0;
    tamis_status status = tamis_plan_restore(tamis_runner_plan(s->runner), &saved->params,
                                             read_bytes, file, &sequence, error);
    const tamis_error reason = *error;
    if (status == TAMIS_E_IO && feof(file))
        return cli_error(error, TAMIS_E_FORMAT, "%s: ends within its sequence", saved->path);
    if (status != TAMIS_OK) return cli_error(error, status, "%s: %.400s", saved->path, reason.text);
    status = tamis_cache_length(s->cache, sequence, &length, NULL, error);
    if (status == TAMIS_OK) status = tamis_cache_remove(s->cache, s->sequence, error);
    s->sequence = sequence;
    s->length = length;
    return status;
}

tamis_status cli_saved_restore(cli_saved *saved, cli_session *s, tamis_error *error) {
    saved->params = (tamis_save_params){0};
    tamis_status status = tamis_model_fingerprint(s->model, saved->params.fingerprint, error);
    if (status != TAMIS_OK) return status;
    FILE *file = open_file(saved->path, &status, error);
    if (file == NULL) return status;
    status = read_header(saved, s, file, error);
    if (status == TAMIS_OK) status = read_sequence(saved, s, file, error);
    fclose(file);
    saved->restored = status == TAMIS_OK;
    return status;
}

/* ---- Writing --------------------------------------------------------------------------------- */

bool cli_saved_check(const cli_saved *saved, const char *command) {
    cli_output output;
    if (!cli_output_open_private(&output, command, saved->path)) return false;
    cli_output_discard(&output);
    return true;
}

static int write_bytes(void *user, const void *bytes, size_t n) {
    return fwrite(bytes, 1, n, user) != n;
}

static void make_header(const cli_saved *saved, const cli_session *s,
                        uint8_t header[HEADER_BYTES]) {
    memset(header, 0, HEADER_BYTES);
    memcpy(header, MAGIC, AT_VERSION);
    put_u32(header + AT_VERSION, VERSION);
    put_u32(header + AT_TURNS, saved->turns);
    put_u32(header + AT_UNREAD, s->unread);
    put_u32(header + AT_NEXT, s->unread ? (uint32_t)s->next : 0);
    memcpy(header + AT_FORMAT, saved->format, strnlen(saved->format, sizeof(saved->format) - 1));
    const uint64_t sum = sum_of(header);
    put_u32(header + AT_SUM, (uint32_t)sum);
    put_u32(header + AT_SUM + 4, (uint32_t)(sum >> 32));
}

bool cli_saved_write(const cli_saved *saved, cli_session *s, const char *command) {
    tamis_error error = {0};
    cli_output output;
    uint8_t header[HEADER_BYTES];
    if (s->half_read)
        fprintf(stderr, "%s: %s stays as it was: the text was not read to its end\n", command,
                saved->path);
    if (s->half_read || s->length == 0) return true;
    if (!cli_output_open_private(&output, command, saved->path)) return false;
    make_header(saved, s, header);
    errno = 0;
    if (write_bytes(output.file, header, sizeof(header)) != 0)
        return cli_output_fail(&output, command, errno);
    const tamis_status status = tamis_plan_save(tamis_runner_plan(s->runner), s->sequence,
                                                &saved->params, write_bytes, output.file, &error);
    if (status == TAMIS_E_IO && ferror(output.file))
        return cli_output_fail(&output, command, errno);
    if (status == TAMIS_OK) return cli_output_finish(&output, command);
    cli_output_discard(&output);
    return cli_fail(command, "%s: %s", saved->path, error.text) == CLI_OK;
}
