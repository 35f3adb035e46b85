/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis bench ttft`: the time to the first token of prompts whose chunks are stored, beside that
 * of computing them. */
#include "bench/ttft.h"
#include "cli/commands.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct ttft_flags {
    const char *device, *json, *model, *store, *share, *throttle, *rate;
    store_place server;
    uint32_t chunk_tokens, suffix, selector, dtype, store_dtype, page_size, repeat, requests;
    cli_seed seed;
    cli_list chunks, sources;
} ttft_flags;

static const char *const selector_names[] = {"hkvd", "question", "random", NULL};
static const tamis_blend_selector selectors[] = {TAMIS_BLEND_HKVD, TAMIS_BLEND_QUESTION,
                                                 TAMIS_BLEND_RANDOM};

enum { SOURCE_MEMORY, SOURCE_CACHED, SOURCE_DISK, SOURCE_REDIS };
static const char *const source_names[] = {"memory", "cached", "disk", "redis", NULL};
static const tamis_tier source_tiers[] = {TAMIS_TIER_MEMORY, TAMIS_TIER_DISK, TAMIS_TIER_DISK,
                                          TAMIS_TIER_REDIS};

static const cli_option options[] = {
    CLI_MODEL_OPTION(ttft_flags, model),
    {"--chunks", "N[,N]", "chunks of a prompt (default 6)", CLI_NUMBERS,
     offsetof(ttft_flags, chunks), 1, 1024, NULL},
    {"--chunk-tokens", "N", "tokens of a chunk (default 512)", CLI_NUMBER,
     offsetof(ttft_flags, chunk_tokens), 1, BENCH_CONTEXT_MAX, NULL},
    {"--suffix", "N", "tokens behind the chunks, which nothing is stored of (default 32)",
     CLI_NUMBER, offsetof(ttft_flags, suffix), 1, BENCH_CONTEXT_MAX, NULL},
    {"--select", "S", "what selects the tokens that a blend computes: {} (default hkvd)",
     CLI_CHOICE, offsetof(ttft_flags, selector), 0, 0, selector_names},
    {"--share", "P[,P]",
     "percent of the chunks' tokens that a blend computes (default 15); auto: as many as are "
     "computed while the others are read, by what 15 took, and 15 or more",
     CLI_TEXT, offsetof(ttft_flags, share), 0, 0, NULL},
    {"--source", "S[,S]",
     "where chunks come from: {} (default memory, with --store also disk, with --redis also "
     "redis); cached is a disk whose files the page cache has",
     CLI_CHOICES, offsetof(ttft_flags, sources), 0, 0, source_names},
    {"--throttle", "SPEED[,SPEED]",
     "also from a disk of this speed, as 100MB or 1GB a second: each read waits", CLI_TEXT,
     offsetof(ttft_flags, throttle), 0, 0, NULL},
    {"--store", "DIR", "the folder of the disk's chunks, which stay there for the next run",
     CLI_PATH, offsetof(ttft_flags, store), 0, 0, NULL},
    STORE_SERVER_OPTIONS(ttft_flags, server,
                         "for chunks of redis, which stay there: a Redis or Valkey server"),
    {"--store-dtype", "TYPE", "element type of stored K and V: {} (default f16)", CLI_CHOICE,
     offsetof(ttft_flags, store_dtype), 0, 0, cli_stored_dtypes},
    {"--rate", "R[,R]", "requests a second, for which the worker is also looked at as a queue",
     CLI_TEXT, offsetof(ttft_flags, rate), 0, 0, NULL},
    {"--requests", "N", "requests at each rate (default 20)", CLI_NUMBER,
     offsetof(ttft_flags, requests), 1, 100000, NULL},
    {"--repeat", "N", "rounds (default 5)", CLI_NUMBER, offsetof(ttft_flags, repeat), 1, 1000,
     NULL},
    {"--seed", "N", "of texts and arrivals (default 1)", CLI_SEED, offsetof(ttft_flags, seed), 0, 0,
     NULL},
    CLI_DTYPE_OPTION("--dtype", ttft_flags, dtype),
    CLI_PAGE_SIZE_OPTION(ttft_flags, page_size),
    CLI_JSON_OPTION(ttft_flags, json),
    CLI_DEVICE_OPTION(ttft_flags, device),
};

static int run_command(int argc, char *const *argv);

const cli_command bench_ttft_command = {
    "tamis bench ttft",
    "the time to the first token of prompts with stored chunks",
    "--model FILE [OPTIONS]",
    "Prompts consist of chunks that are stored and a suffix that is not. Each is read from an\n"
    "empty cache to its first token: full computes all of it in steps of 512 rows, all in one\n"
    "step; prefix loads the first chunk, reuse all chunks; blend loads all chunks and computes a\n"
    "share of their tokens anew. These take turns, round after round, after one that is not\n"
    "counted. Texts are random tokens.\n"
    "\n"
    "Before each sample from disk the page cache drops the store's files; the share of them that\n"
    "stays all the same is printed. A throttled disk is one that the page cache has, whose reads\n"
    "wait until the bytes would have come. Each sample from redis reads from the server. A chunk\n"
    "that is lost, or does not come in time, ends the run with an error.\n"
    "\n"
    "In a pass apart each layer waits for the device. Beside the sum of its layers (pipeline) are\n"
    "those of the longer of reading and computing (the least that a pipeline can take), and of\n"
    "both. The bound is the most that full could be faster for the rows that are left, attention\n"
    "counted like the rest. --select question loads the chunks twice: its first pass is a part of\n"
    "each of these sums, and of no layer.\n"
    "\n"
    "With --rate each request is a prompt of its own, read once; how long requests then wait for\n"
    "one worker follows from these times and from random arrivals (Poisson), which are the same\n"
    "for all. A request ends with its first token.",
    "  tamis bench ttft --model tests/data/needle.gguf --chunks 2,4 --chunk-tokens 128\n"
    "  tamis bench ttft --model model.gguf --chunks 12 --store chunks --throttle 100MB,1GB \\\n"
    "      --rate 0.1,0.2 --json ttft.json\n"
    "  tamis bench ttft --model model.gguf --source redis --redis localhost:6379\n",
    options,
    sizeof(options) / sizeof(options[0]),
    run_command};

/* ---- Flags ----------------------------------------------------------------------------------- */

/* The next of a list's texts; false at its end. */
static bool next_text(const char **list, char text[32]) {
    if (*list == NULL) return false;
    const size_t length = strcspn(*list, ",");
    snprintf(text, 32, "%.*s", (int)(length < 31 ? length : 31), *list);
    *list = (*list)[length] == ',' ? *list + length + 1 : NULL;
    return true;
}

static bool add_share(ttft *t, const char *text, double share) {
    for (uint32_t i = 0; i < t->n_shares; i++)
        if (t->shares[i] == share) {
            cli_fail(t->command, "--share: %s is given twice", text);
            return false;
        }
    t->shares[t->n_shares++] = share;
    return true;
}

static bool parse_shares(ttft *t, const char *list) {
    char text[32];
    while (next_text(&list, text)) {
        float percent = 0;
        if (t->n_shares == TTFT_SHARES_MAX) {
            cli_fail(t->command, "--share %s: more than %d shares", text, TTFT_SHARES_MAX);
            return false;
        }
        if (strcmp(text, "auto") == 0) {
            if (!add_share(t, text, 0)) return false;
            continue;
        }
        if (!cli_decimal(t->command, "--share", text, (cli_range){0, 100, true}, &percent))
            return false;
        if (!add_share(t, text, (double)percent / 100)) return false;
    }
    return true;
}

static bool parse_rates(ttft *t, const char *list) {
    char text[32];
    while (next_text(&list, text)) {
        float rate = 0;
        if (t->n_rates == TTFT_RATES_MAX) {
            cli_fail(t->command, "--rate %s: more than %d rates", text, TTFT_RATES_MAX);
            return false;
        }
        if (!cli_decimal(t->command, "--rate", text, (cli_range){0, INFINITY, true}, &rate))
            return false;
        t->rates[t->n_rates++] = (double)rate;
    }
    return true;
}

static ttft_source *add_source(ttft *t, const char *name, tamis_tier tier) {
    ttft_source *source = &t->sources[t->n_sources++];
    *source = (ttft_source){.tier = tier};
    snprintf(source->name, sizeof(source->name), "%s", name);
    return source;
}

/* "100MB": digits, then K, M or G for units of 1000, then B. */
static bool parse_speeds(ttft *t, const char *list) {
    char text[32];
    while (next_text(&list, text)) {
        const size_t digits = strspn(text, "0123456789");
        const char *units = "KMG",
                   *unit = text[digits] != '\0' ? strchr(units, text[digits]) : NULL;
        double speed = digits > 0 && digits < 10 ? strtod(text, NULL) : 0;
        if (speed <= 0 || unit == NULL || strcmp(text + digits + 1, "B") != 0) {
            cli_fail(t->command, "--throttle %s: must be bytes a second, as 100MB or 1GB", text);
            return false;
        }
        for (long i = 0; i <= unit - units; i++)
            speed *= 1000;
        if (t->n_sources == TTFT_SOURCES_MAX) {
            cli_fail(t->command, "--throttle %s: too many sources", text);
            return false;
        }
        for (uint32_t i = 0; i < t->n_sources; i++)
            if (t->sources[i].bytes_per_s == speed) {
                cli_fail(t->command, "--throttle: %s is given twice", text);
                return false;
            }
        strcat(text, "/s");
        add_source(t, text, TAMIS_TIER_DISK)->bytes_per_s = speed;
    }
    return true;
}

/* A source needs its folder or server, and these the source that reads them. */
static bool check_sources(const ttft *t) {
    bool read[TAMIS_TIERS] = {false};
    for (uint32_t i = 0; i < t->n_sources; i++) {
        const ttft_source *source = &t->sources[i];
        read[source->tier] = true;
        if (source->tier == TAMIS_TIER_DISK && t->folder == NULL) {
            cli_fail(t->command, "--store: is missing; %s reads a folder", source->name);
            return false;
        }
        if (source->tier == TAMIS_TIER_REDIS && t->server.redis == NULL) {
            cli_fail(t->command, "--redis: is missing; %s reads a server", source->name);
            return false;
        }
    }
    if (t->folder != NULL && !read[TAMIS_TIER_DISK]) {
        cli_fail(t->command, "--store: belongs to --source disk or cached, or --throttle; none "
                             "is given");
        return false;
    }
    if (t->server.redis != NULL && !read[TAMIS_TIER_REDIS]) {
        cli_fail(t->command, "--redis: belongs to --source redis, which is not given");
        return false;
    }
    return store_server_check(t->command, &t->server);
}

static bool choose_sources(ttft *t, const ttft_flags *f) {
    cli_list sources = f->sources;
    if (sources.count == 0) {
        sources = (cli_list){1, {SOURCE_MEMORY}};
        if (f->store != NULL) sources.values[sources.count++] = SOURCE_DISK;
        if (f->server.redis != NULL) sources.values[sources.count++] = SOURCE_REDIS;
    }
    for (uint32_t i = 0; i < sources.count; i++) {
        const uint32_t which = sources.values[i];
        for (uint32_t j = 0; j < i; j++)
            if (sources.values[j] == which) {
                cli_fail(t->command, "--source: %s is given twice", source_names[which]);
                return false;
            }
        add_source(t, source_names[which], source_tiers[which])->dropped = which == SOURCE_DISK;
    }
    return parse_speeds(t, f->throttle) && check_sources(t);
}

static bool choose(ttft *t, const ttft_flags *f) {
    uint32_t most = 0;
    t->folder = f->store;
    t->server = f->server;
    t->counts = f->chunks;
    t->repeat = f->repeat;
    t->n_requests = f->requests != CLI_UNSET ? f->requests : 20;
    t->selector = selectors[f->selector];
    t->store_dtype = (tamis_dtype)f->store_dtype;
    t->shape.dtype = (tamis_dtype)f->dtype;
    t->shape.page_size = cli_page_size(f->page_size);
    for (uint32_t i = 0; i < t->counts.count; i++)
        most = t->counts.values[i] > most ? t->counts.values[i] : most;
    t->texts = (ttft_texts){.chunk_tokens = f->chunk_tokens,
                            .suffix_tokens = f->suffix,
                            .n_pool = f->rate != NULL ? 2 * most : most,
                            .seed = f->seed.value};
    if (f->requests != CLI_UNSET && f->rate == NULL) {
        cli_fail(t->command, "--requests: belongs to --rate, which is not given");
        return false;
    }
    return parse_shares(t, f->share) && parse_rates(t, f->rate) && choose_sources(t, f);
}

/* ---- Running --------------------------------------------------------------------------------- */

static tamis_status measure(ttft *t, const ttft_flags *f, tamis_error *error) {
    tamis_status status = bench_open(f->device, &t->device, error);
    if (status == TAMIS_OK) status = cli_load(t->device, f->model, &t->model, error);
    if (status == TAMIS_OK) status = ttft_texts_make(&t->texts, t->model, error);
    if (status != TAMIS_OK) return status;
    t->record = (tamis_record_params){.sink = t->texts.sink,
                                      .n_sink = t->texts.n_sink,
                                      .dtype = t->store_dtype,
                                      .cache_dtype = t->shape.dtype};
    return ttft_measure(t, error);
}

static void release(ttft *t) {
    for (uint32_t i = 0; i < t->n_cells; i++) {
        free(t->cells[i].seconds);
        free(t->cells[i].layers);
    }
    for (uint32_t a = 0; a < t->n_arms; a++)
        tamis_blend_destroy(&t->arms[a].blend);
    free(t->cells);
    free(t->queues);
    for (int tier = 0; tier < TAMIS_TIERS; tier++)
        tamis_store_destroy(&t->stores[tier]);
    tamis_runner_destroy(&t->runner);
    tamis_runner_destroy(&t->in_steps);
    tamis_cache_destroy(&t->cache);
    ttft_texts_free(&t->texts);
    tamis_model_destroy(&t->model);
    tamis_context_destroy(&t->device);
}

static int run(ttft *t, const ttft_flags *f) {
    cli_output output = {0};
    tamis_error error = {0};
    if (f->json != NULL && !cli_output_open(&output, t->command, f->json)) return CLI_FAILED;
    const tamis_status status = measure(t, f, &error);
    int code = status == TAMIS_OK ? CLI_OK : cli_fail(t->command, "%s", error.text);
    if (code == CLI_OK && !ttft_print(t)) code = cli_fail(t->command, "out of host memory");
    if (code == CLI_OK && f->json != NULL && !ttft_write_json(t, &output)) code = CLI_FAILED;
    release(t);
    cli_output_discard(&output);
    return code;
}

static int run_command(int argc, char *const *argv) {
    ttft_flags f = {.share = "15",
                    .chunks = {1, {6}},
                    .chunk_tokens = 512,
                    .suffix = 32,
                    .dtype = TAMIS_F16,
                    .store_dtype = TAMIS_F16,
                    .page_size = 1,
                    .repeat = 5,
                    .requests = CLI_UNSET,
                    .seed = {.value = 1}};
    ttft t = {.command = bench_ttft_command.name};
    const int code = cli_parse(&bench_ttft_command, &f, argc, argv);
    if (code >= 0) return code;
    if (f.model == NULL) {
        cli_fail(t.command, "--model: is missing (see %s --help)", t.command);
        return CLI_USAGE;
    }
    return choose(&t, &f) ? run(&t, &f) : CLI_USAGE;
}
