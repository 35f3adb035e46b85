/* SPDX-License-Identifier: Apache-2.0 */
/* From a file to a sequence in the cache: reading, tokens, prefill. */
#ifndef CLI_TEXT_H
#define CLI_TEXT_H

#include "cli/cli.h"

#define CLI_TEXT_MOST ((size_t)256 << 20) /* bytes; no context takes more */

/* What messages call it: "standard input" for "-". */
const char *cli_input_name(const char *path);

/* The whole file, or standard input for "-", with a NUL behind its end; *content is the caller's to
 * free. A line on stderr warns of a text that is not UTF-8. Errors, which name the file: E_IO;
 * E_FORMAT (it has more than CLI_TEXT_MOST bytes; no more of it is read); E_NO_MEMORY. */
tamis_status cli_read_text(const char *path, char **content, size_t *bytes, tamis_error *error);

typedef struct cli_tokens {
    int32_t *ids; /* freed by free() */
    size_t count;
} cli_tokens;

/* The tokens of a text, with flags of tamis_vocab_encode. `out` owns nothing after an error. */
tamis_status cli_tokenize(const tamis_vocab *vocab, const char *text, size_t bytes, uint32_t flags,
                          cli_tokens *out, tamis_error *error);

/* Builds the kernels of a prompt of so many tokens, so that reading it is not timed with them. */
tamis_status cli_build(tamis_runner *runner, size_t count, tamis_error *error);
/* Adds a sequence to the cache and reads `count` tokens into it. *next, unless it is NULL, becomes
 * the token that follows. After an error the sequence may be there, partly read. */
tamis_status cli_prefill(tamis_cache *cache, tamis_runner *runner, const int32_t *tokens,
                         size_t count, tamis_sequence *out, int32_t *next, tamis_error *error);

#endif
