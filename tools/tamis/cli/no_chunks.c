/* SPDX-License-Identifier: Apache-2.0 */
/* Prompts with stored chunks in a build without the store: refused. */
#include "cli/chunks.h"

tamis_status cli_chunks_open(const cli_chunk_flags *flags, const cli_chunks_params *params,
                             const cli_session *s, const char *file, size_t file_bytes,
                             const char *prompt, size_t prompt_bytes, tamis_plan_params *plan,
                             cli_chunks **out, tamis_error *error) {
    (void)flags, (void)params, (void)s, (void)file, (void)file_bytes;
    (void)prompt, (void)prompt_bytes, (void)plan;
    *out = NULL;
    return cli_error(error, TAMIS_E_UNSUPPORTED,
                     "chunks cannot be read: this build has no store of chunks (TAMIS_STORE)");
}

void cli_chunks_close(cli_chunks **chunks) {
    *chunks = NULL;
}

size_t cli_chunks_count(const cli_chunks *chunks) {
    (void)chunks;
    return 0;
}

tamis_status cli_chunks_read(cli_chunks *chunks, cli_session *s, tamis_error *error) {
    (void)chunks, (void)s;
    return cli_error(error, TAMIS_E_STATE, "no chunks are open");
}

void cli_chunks_report(const cli_chunks *chunks, bool times) {
    (void)chunks, (void)times;
}

tamis_status cli_chunks_record(cli_chunks *chunks, cli_session *s, tamis_error *error) {
    (void)chunks, (void)s;
    return cli_error(error, TAMIS_E_STATE, "no chunks are open");
}
