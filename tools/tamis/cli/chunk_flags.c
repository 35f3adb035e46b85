/* SPDX-License-Identifier: Apache-2.0 */
/* The flags of prompts with stored chunks. */
#include "cli/chunks.h"

#include <math.h>
#include <string.h>

const char *const cli_blends[] = {"hkvd", "question", "first", "random", "all", "none", NULL};
enum { HKVD, QUESTION, FIRST, RANDOM };

#define DEFAULT_SHARE 15.0f

/* A flag that says something of chunks or prefixes, where there are none. */
static bool check_absent(const char *command, const cli_chunk_flags *f, bool prefix) {
    const struct {
        const char *name;
        bool given, of_prefix; /* of_prefix: goes with --prefix-store, too */
    } flags[] = {{"--store", f->store != NULL, false},
                 {"--store-memory", f->store_memory != NULL, true},
                 {"--store-dtype", f->dtype != CLI_UNSET, true},
                 {"--blend", f->blend != CLI_UNSET, false},
                 {"--share", f->share != NULL, false},
                 {"--bound", f->bound != NULL, false},
                 {"--first", f->first != CLI_UNSET, false},
                 {"--trials", f->trials != NULL, false},
                 {"--unchecked", f->unchecked != 0, false},
                 {"--no-record", f->no_record != 0, true}};
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
        if (flags[i].given && !(prefix && flags[i].of_prefix)) {
            cli_fail(command, "%s: belongs to --chunks or --chunk-tokens, which are not given",
                     flags[i].name);
            return false;
        }
    return true;
}

static bool check_texts(const char *command, const cli_chunk_flags *f, bool file) {
    if (f->files.count > 0 && file)
        cli_fail(command, "--chunks, --file: give one of them");
    else if (f->files.count == 0 && !file)
        cli_fail(command, "--chunk-tokens: is given without a text to cut (see --chunks, --file)");
    else if (f->store == NULL)
        cli_fail(command, "--store: is missing; chunks are kept in a folder");
    else
        return true;
    return false;
}

/* Whether a share of the tokens is computed, and the check layer estimates what is left. */
static bool has_share(uint32_t blend) {
    return blend == HKVD || blend == QUESTION || blend == RANDOM;
}

/* Sets out->bound. */
static bool check_bound(const char *command, const cli_chunk_flags *f, cli_chunks_params *out) {
    float bound = 0;
    if (f->bound == NULL) return true;
    if (!has_share(out->blend)) {
        cli_fail(command, "--bound: is given, but %s has no estimate", cli_blends[out->blend]);
        return false;
    }
    if (!cli_decimal(command, "--bound", f->bound, (cli_range){0, INFINITY, true}, &bound))
        return false;
    out->bound = (double)bound;
    return true;
}

/* Sets out->share. */
static bool check_share(const char *command, const cli_chunk_flags *f, cli_chunks_params *out) {
    const char *name = cli_blends[out->blend];
    float percent = DEFAULT_SHARE;
    if (!has_share(out->blend)) {
        if (f->share != NULL) cli_fail(command, "--share: is given, but %s has none", name);
        return f->share == NULL;
    }
    out->chosen = f->share != NULL && strcmp(f->share, "auto") == 0;
    if (out->chosen) return true;
    if (f->share != NULL &&
        !cli_decimal(command, "--share", f->share, (cli_range){0, 100, true}, &percent))
        return false;
    out->share = (double)percent / 100;
    return true;
}

/* The flags of a prefix, which --prefix-store asks for. */
static bool check_prefix(const char *command, const cli_chunk_flags *f, cli_chunks_params *out) {
    out->prefix = f->prefix_store != NULL;
    out->page_tokens =
        f->page_tokens != CLI_UNSET ? f->page_tokens : (uint32_t)CLI_PAGE_TOKENS_DEFAULT;
    if (f->page_tokens != CLI_UNSET && !out->prefix)
        cli_fail(command, "--prefix-page: belongs to --prefix-store, which is not given");
    else if (out->prefix && out->used)
        cli_fail(command, "--prefix-store: is given with %s; a prompt has a prefix or chunks",
                 f->files.count > 0 ? "--chunks" : "--chunk-tokens");
    else
        return true;
    return false;
}

bool cli_chunks_check(const char *command, const cli_chunk_flags *f, bool file,
                      cli_chunks_params *out) {
    *out = (cli_chunks_params){.used = f->files.count > 0 || f->chunk_tokens != CLI_UNSET,
                               .blend = f->blend != CLI_UNSET ? f->blend : HKVD,
                               .dtype = f->dtype != CLI_UNSET ? (tamis_dtype)f->dtype : TAMIS_F16,
                               .trials = f->trials,
                               .unchecked = f->unchecked != 0};
    if (!check_prefix(command, f, out)) return false;
    if (!out->used && !check_absent(command, f, out->prefix)) return false;
    out->used = out->used || out->prefix;
    out->asks = out->blend == QUESTION && !out->prefix;
    if (out->prefix && f->dtype == CLI_UNSET) out->dtype = TAMIS_F32; /* the bits of a prefill */
    if (!out->used) return true;
    if (f->store_memory != NULL &&
        !cli_size(command, "--store-memory", f->store_memory, &out->store_memory))
        return false;
    if (out->prefix) return true;
    if (!check_texts(command, f, file) || !check_share(command, f, out) ||
        !check_bound(command, f, out))
        return false;
    if (out->blend == FIRST)
        out->first = f->first != CLI_UNSET ? f->first : CLI_BLEND_FIRST_DEFAULT;
    if (out->blend == FIRST || f->first == CLI_UNSET) return true;
    cli_fail(command, "--first: is given, but --blend is %s", cli_blends[out->blend]);
    return false;
}
