/* SPDX-License-Identifier: Apache-2.0 */
/* A prompt that begins with stored chunks, or with a stored prefix: texts cut to chunks, the store
 * that has their K and V, and the blend that reads them. Without the store of chunks (TAMIS_STORE)
 * all of it is refused. */
#ifndef CLI_CHUNKS_H
#define CLI_CHUNKS_H

#include "cli/session.h"
#include "cli/text.h"

typedef struct cli_chunk_flags {
    cli_texts files;       /* each a chunk, or cut to chunks */
    uint32_t chunk_tokens; /* of a chunk at most; CLI_UNSET: a text is one chunk */
    const char *store, *prefix_store, *store_memory, *share, *bound;
    uint32_t blend; /* the index of a name in cli_blends */
    uint32_t first, dtype, no_record, page_tokens;
    const char *trials; /* of the gate */
    uint32_t unchecked; /* it is not asked */
} cli_chunk_flags;

#define CLI_CHUNKS_UNSET                                                                           \
    {                                                                                              \
        .chunk_tokens = CLI_UNSET, .blend = CLI_UNSET, .first = CLI_UNSET, .dtype = CLI_UNSET,     \
        .page_tokens = CLI_UNSET                                                                   \
    }

extern const char *const cli_blends[]; /* selectors that a command line can name, ended by NULL */
enum { CLI_BLEND_FIRST_DEFAULT = 32, CLI_PAGE_TOKENS_DEFAULT = 256 };

/* clang-format off */
/* The entries of these flags in a command's table. */
#define CLI_CHUNK_OPTIONS(type, member)                                                            \
    {"--chunks", "FILE",                                                                           \
     "a text that stands before the prompt as a stored chunk", CLI_INPUTS,                         \
     offsetof(type, member.files), 0, 0, NULL},                                         \
    {"--chunk-tokens", "N", "texts of --chunks, or that of --file, are cut to chunks of N tokens", \
     CLI_NUMBER, offsetof(type, member.chunk_tokens), 1, CLI_TOKENS_MAX, NULL},                    \
    {"--store", "DIR", "the folder of stored chunks; it is made where its parent exists",          \
     CLI_PATH, offsetof(type, member.store), 0, 0, NULL},                                          \
    {"--prefix-store", "DIR",                                                                      \
     "in place of chunks: a folder with pages of prompts; the longest beginning of file and "      \
     "prompt that it has is loaded, the rest computed, as if all were",                            \
     CLI_PATH, offsetof(type, member.prefix_store), 0, 0, NULL},                                   \
    {"--prefix-page", "N", "tokens of a page of a prefix (default 256)", CLI_NUMBER,               \
     offsetof(type, member.page_tokens), 1, CLI_TOKENS_MAX, NULL},                                 \
    {"--store-memory", "BYTES",                                                                    \
     "memory for chunks that were read, with K, M, G or T for powers of 1024 (default none)",      \
     CLI_TEXT, offsetof(type, member.store_memory), 0, 0, NULL},                                   \
    {"--store-dtype", "TYPE", "element type of stored K and V: {} (default f16, of prefixes f32)", \
     CLI_CHOICE, offsetof(type, member.dtype), 0, 0, cli_stored_dtypes},                           \
    {"--blend", "NAME",                                                                            \
     "which tokens of found chunks are computed anew: {} (default hkvd); question: those to "      \
     "which the prompt attends most",                                                              \
     CLI_CHOICE, offsetof(type, member.blend), 0, 0, cli_blends},                                  \
    {"--share", "PERCENT",                                                                         \
     "how many of them, under hkvd, question and random (default 15); auto: as many as are "       \
     "computed while the others are read, by what a layer and a few rows take before the prompt; " \
     "at least 15 and what has passed",                                                            \
     CLI_TEXT,                                                                                     \
     offsetof(type, member.share), 0, 0, NULL},                                                    \
    {"--bound", "X",                                                                               \
     "under hkvd, question and random: all tokens of chunks are computed where what would be "     \
     "left wrong is estimated above X, the left of tamis blend trial",                             \
     CLI_TEXT, offsetof(type, member.bound), 0, 0, NULL},                                          \
    {"--first", "N", "tokens of each chunk that first computes anew (default 32)", CLI_NUMBER,     \
     offsetof(type, member.first), 1, CLI_TOKENS_MAX, NULL},                                       \
    {"--no-record", "", "what the store lacks is not put into it", CLI_FLAG,                       \
     offsetof(type, member.no_record), 0, 0, NULL},                                                \
    {"--trials", "FILE",                                                                           \
     "what tamis blend trial measured (default tamis/blend.trials in the user's folder for "       \
     "settings)", CLI_FILE, offsetof(type, member.trials), 0, 0, NULL},                            \
    {"--unchecked", "", "chunks are blended even where no check has passed", CLI_FLAG,             \
     offsetof(type, member.unchecked), 0, 0, NULL}
/* clang-format on */

/* What the flags mean. */
typedef struct cli_chunks_params {
    bool used;   /* there are chunks, or a prefix */
    bool prefix; /* file and prompt are one */
    uint32_t page_tokens;
    uint64_t store_memory;
    double share; /* 0: the selector has none, or it is chosen */
    double bound; /* 0: none */
    bool chosen;  /* by the controller (tamis_blend_share) */
    bool asks;    /* the prompt's question selects */
    uint32_t blend, first;
    tamis_dtype dtype;
    const char *trials, *model; /* of the gate: its file, the model's */
    bool unchecked;
} cli_chunks_params;

/* Prints why and returns false if flags are wrong, or are given without chunks. `file`: --file is
 * given. */
bool cli_chunks_check(const char *command, const cli_chunk_flags *flags, bool file,
                      cli_chunks_params *out);

/* A prompt on its way through the store. */
typedef struct cli_chunks cli_chunks;

/* Opens the store and cuts the texts; `file` is the text of --file, or NULL. `prompt` is what
 * stands behind the chunks; it may be empty. Sets what a plan needs for them. E_UNSUPPORTED in a
 * build without the store. What *out holds after an error is to be closed, too. */
tamis_status cli_chunks_open(const cli_chunk_flags *flags, const cli_chunks_params *params,
                             const cli_session *s, const char *file, size_t file_bytes,
                             const char *prompt, size_t prompt_bytes, tamis_plan_params *plan,
                             cli_chunks **out, tamis_error *error);
/* Accepts NULL. Before the session is closed. */
void cli_chunks_close(cli_chunks **chunks);
/* Tokens of chunks and prompt. */
size_t cli_chunks_count(const cli_chunks *chunks);

/* Reads all of it into the session's sequence, which is empty. */
tamis_status cli_chunks_read(cli_chunks *chunks, cli_session *s, tamis_error *error);
/* One line on stderr: what was found, loaded and computed; with `times` how long that took. */
void cli_chunks_report(const cli_chunks *chunks, bool times);
/* Puts the chunks that were missing into the store, and says how many. The session's sequence is
 * gone afterwards, so that there is room for theirs. */
tamis_status cli_chunks_record(cli_chunks *chunks, cli_session *s, tamis_error *error);

#endif
