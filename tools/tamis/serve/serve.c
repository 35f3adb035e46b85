/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis serve`: its options, and its life from the first line to the last. */
#define _POSIX_C_SOURCE 200809L /* sigaction */
#include "serve/serve.h"

#include "cli/commands.h"
#include "serve/http.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

typedef struct serve_flags {
    const char *device, *model, *host, *name, *key_file, *date, *host_memory, *body_limit;
    cli_texts hosts, origins;
    cli_policy_flags policies;
    uint32_t port, context, cache_tokens, running, rows, kept, sharing, queue, connections;
    uint32_t timeout, time_limit, drain, dtype, bounds_dtype, page_size;
    store_place place;
    const char *store_memory, *store_bytes, *share, *trials;
    uint32_t store_dtype, blend, blend_tokens, prefixes, page_tokens, unchecked;
} serve_flags;

static const char *const off_on[] = {"off", "on", NULL};
static const char *const blends[] = {"hkvd", "question", "random", "all", "none", NULL};

static const cli_option options[] = {
    CLI_MODEL_OPTION(serve_flags, model),
    {"--host", "ADDRESS", "IP address to listen on (default 127.0.0.1)", CLI_TEXT,
     offsetof(serve_flags, host), 0, 0, NULL},
    {"--port", "N", "port to listen on; 0: one that is free (default 8080)", CLI_NUMBER,
     offsetof(serve_flags, port), 0, 65535, NULL},
    {"--name", "TEXT", "by which requests name the model (default: its file's name without .gguf)",
     CLI_TEXT, offsetof(serve_flags, name), 0, 0, NULL},
    {"--api-key-file", "FILE",
     "keys of which a request must have one, a line each; the environment's TAMIS_API_KEY is one, "
     "too (default: none is needed)",
     CLI_PATH, offsetof(serve_flags, key_file), 0, 0, NULL},
    {"--allow-host", "NAME",
     "a name of this server's that Host may have, beside addresses and "
     "localhost",
     CLI_TEXTS, offsetof(serve_flags, hosts), 0, 0, NULL},
    {"--cors-origin", "ORIGIN", "another origin whose pages may ask, such as https://example.org",
     CLI_TEXTS, offsetof(serve_flags, origins), 0, 0, NULL},
    CLI_POLICY_OPTIONS(serve_flags, policies),
    {"--context", "N", "most tokens of a prompt and its answer (default: the model's context)",
     CLI_NUMBER, offsetof(serve_flags, context), 1, CLI_TOKENS_MAX, NULL},
    {"--cache-tokens", "N", "tokens that the cache has room for (default twice the context)",
     CLI_NUMBER, offsetof(serve_flags, cache_tokens), 1, 1u << 30, NULL},
    {"--running", "N", "answers that run at once (default 8)", CLI_NUMBER,
     offsetof(serve_flags, running), 1, 256, NULL},
    {"--rows", "N", "tokens of a step, prompts and answers together (default 256)", CLI_NUMBER,
     offsetof(serve_flags, rows), 1, 65536, NULL},
    {"--prefix-sharing", "WORD",
     "{}: whether prompts of one API key that begin alike share their beginning (default on)",
     CLI_CHOICE, offsetof(serve_flags, sharing), 0, 0, off_on},
    {"--kept", "N", "prompts that are kept behind their answers, to be shared (default 8)",
     CLI_NUMBER, offsetof(serve_flags, kept), 0, 4096, NULL},
    {"--host-memory", "BYTES",
     "memory for answers that have to make room, with K, M, G or T for powers of 1024 (default 1G)",
     CLI_TEXT, offsetof(serve_flags, host_memory), 0, 0, NULL},
    {"--store", "DIR", "a folder in which documents of prompts are stored, to be blended", CLI_PATH,
     offsetof(serve_flags, place.folder), 0, 0, NULL},
    STORE_SERVER_OPTIONS(serve_flags, place, "beside a folder or alone: a Redis or Valkey server"),
    {"--store-memory", "BYTES", "memory for documents that were read; 0: none (default 256M)",
     CLI_TEXT, offsetof(serve_flags, store_memory), 0, 0, NULL},
    {"--store-bytes", "BYTES",
     "that the folder may take; the least recently used records are removed; 0: no limit (default "
     "20G)",
     CLI_TEXT, offsetof(serve_flags, store_bytes), 0, 0, NULL},
    {"--store-dtype", "TYPE", "element type of stored K and V: {} (default f16)", CLI_CHOICE,
     offsetof(serve_flags, store_dtype), 0, 0, cli_stored_dtypes},
    {"--blend", "NAME", "which tokens of stored documents are computed anew: {} (default hkvd)",
     CLI_CHOICE, offsetof(serve_flags, blend), 0, 0, blends},
    {"--share", "PERCENT", "how many of them (default 15)", CLI_TEXT, offsetof(serve_flags, share),
     0, 0, NULL},
    {"--blend-tokens", "N",
     "tokens of a prompt that is blended at most, since all others wait for it (default 4096)",
     CLI_NUMBER, offsetof(serve_flags, blend_tokens), 1, 65536, NULL},
    {"--trials", "FILE",
     "what tamis blend trial measured (default tamis/blend.trials in the user's folder for "
     "settings)",
     CLI_FILE, offsetof(serve_flags, trials), 0, 0, NULL},
    {"--unchecked", "", "documents are blended even where no check has passed", CLI_FLAG,
     offsetof(serve_flags, unchecked), 0, 0, NULL},
    {"--store-prefixes", "WORD",
     "{}: whether prompts are stored, too, for those that begin alike (default off)", CLI_CHOICE,
     offsetof(serve_flags, prefixes), 0, 0, off_on},
    {"--prefix-page", "N", "tokens of a page of a stored prefix (default 256)", CLI_NUMBER,
     offsetof(serve_flags, page_tokens), 1, CLI_TOKENS_MAX, NULL},
    {"--queue", "N", "answers that wait at most (default 64)", CLI_NUMBER,
     offsetof(serve_flags, queue), 0, 65536, NULL},
    {"--connections", "N", "connections at most (default 1024)", CLI_NUMBER,
     offsetof(serve_flags, connections), 1, 65536, NULL},
    {"--body-limit", "BYTES", "of a request's body (default 4M)", CLI_TEXT,
     offsetof(serve_flags, body_limit), 0, 0, NULL},
    {"--timeout", "SECONDS",
     "after which a connection on which nothing moves, or a request that has not come whole, ends "
     "(default 60)",
     CLI_NUMBER, offsetof(serve_flags, timeout), 1, 86400, NULL},
    {"--time-limit", "SECONDS", "of a request, waiting included; 0: none (default 600)", CLI_NUMBER,
     offsetof(serve_flags, time_limit), 0, 86400, NULL},
    {"--drain", "SECONDS", "that answers go on for when the server stops (default 30)", CLI_NUMBER,
     offsetof(serve_flags, drain), 0, 86400, NULL},
    {"--date", "DATE",
     "YYYY-MM-DD: what a template that asks for today's date is told (default: nothing)", CLI_TEXT,
     offsetof(serve_flags, date), 0, 0, NULL},
    CLI_DTYPE_OPTION("--cache-dtype", serve_flags, dtype),
    CLI_BOUNDS_DTYPE_OPTION(serve_flags, bounds_dtype),
    CLI_PAGE_SIZE_OPTION(serve_flags, page_size),
    CLI_DEVICE_OPTION(serve_flags, device),
};

static int run_command(int argc, char *const *argv);

const cli_command serve_command = {
    "tamis serve",
    "answer requests over HTTP, in OpenAI's interface",
    "--model FILE [OPTIONS]",
    "Serves /v1/chat/completions and /v1/completions as clients of OpenAI's interface know them,\n"
    "with /v1/models, /tokenize, /detokenize, /health and /metrics; a page to chat is at /. "
    "Answers\n"
    "run together: each step takes a token of every answer, and chunks of prompts. A field that "
    "is\n"
    "not known, or that would change the answer and is not supported, is refused by its name.\n"
    "\n"
    "Ctrl-C and SIGTERM close the port at once; answers that run go on for --drain seconds. A "
    "second\n"
    "signal ends the program.\n"
    "\n"
    "Listens on this machine alone unless --host says otherwise; it speaks no TLS. docs/serve.md\n"
    "says what is trusted.",
    "  tamis serve --model model.gguf\n"
    "  tamis serve --model model.gguf --select quest --budget 1024 --context 32768\n"
    "  tamis serve --model model.gguf --host 0.0.0.0 --api-key-file keys --allow-host box.lan\n"
    "  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\\n"
    "      -d '{\"model\": \"model\", \"messages\": [{\"role\": \"user\", \"content\": "
    "\"Hi\"}]}'\n",
    options,
    sizeof(options) / sizeof(options[0]),
    run_command};

/* ---- Flags ----------------------------------------------------------------------------------- */

/* Bytes of a flag, or its default. */
static bool bytes_of(const char *flag, const char *text, uint64_t otherwise, uint64_t most,
                     uint64_t *out) {
    *out = otherwise;
    if (text == NULL) return true;
    if (!cli_size(serve_command.name, flag, text, out)) return false;
    if (*out <= most) return true;
    cli_fail(serve_command.name, "%s %s: is more than %" PRIu64, flag, text, most);
    return false;
}

/* The same of a flag for which 0 says something. */
static bool bytes_or_none(const char *flag, const char *text, uint64_t otherwise, uint64_t *out) {
    *out = 0;
    if (text != NULL && strcmp(text, "0") == 0) return true;
    return bytes_of(flag, text, otherwise, UINT64_MAX, out);
}

/* The file's name without its folder and ".gguf". */
static void model_name(const char *path, char name[256]) {
    const char *slash = strrchr(path, '/'), *from = slash != NULL ? slash + 1 : path;
    const size_t n = strlen(from);
    const bool ends = n > 5 && strcmp(from + n - 5, ".gguf") == 0;
    snprintf(name, 256, "%.*s", (int)(ends ? n - 5 : n), from);
}

static bool is_stored(const serve_flags *f) {
    return f->place.folder != NULL || f->place.redis != NULL;
}

static uint32_t or_default(uint32_t given, uint32_t otherwise) {
    return given != CLI_UNSET ? given : otherwise;
}

/* The first flag that belongs to a store, where there is none. */
static const char *without_store(const serve_flags *f) {
    if (f->store_memory != NULL) return "--store-memory";
    if (f->store_dtype != CLI_UNSET) return "--store-dtype";
    if (f->blend != CLI_UNSET) return "--blend";
    if (f->blend_tokens != CLI_UNSET) return "--blend-tokens";
    if (f->page_tokens != CLI_UNSET) return "--prefix-page";
    if (f->share != NULL) return "--share";
    if (f->trials != NULL) return "--trials";
    if (f->unchecked) return "--unchecked";
    return f->prefixes ? "--store-prefixes" : NULL;
}

/* all and none have no share. */
static bool choose_blend(const serve_flags *f, serve_documents_params *out) {
    const char *name = serve_command.name;
    float percent = 15;
    tamis_error error = {0};
    if (tamis_blend_selector_parse(blends[or_default(f->blend, 0)], &out->selector, &error) !=
        TAMIS_OK)
        return cli_fail(name, "--blend: %s", error.text) == CLI_OK;
    const bool whole = out->selector == TAMIS_BLEND_ALL || out->selector == TAMIS_BLEND_NONE;
    if (f->share != NULL && whole)
        return cli_fail(name, "--share: is given, but %s has none",
                        blends[or_default(f->blend, 0)]) == CLI_OK;
    if (f->share != NULL &&
        !cli_decimal(name, "--share", f->share, (cli_range){0, 100, true}, &percent))
        return false;
    out->share = whole ? 0 : (double)percent / 100;
    return true;
}

static bool choose_documents(const serve_flags *f, tamis_eviction_kind eviction,
                             serve_documents_params *out) {
    const char *name = serve_command.name, *flag = without_store(f);
    *out = (serve_documents_params){.place = f->place,
                                    .dtype = or_default(f->store_dtype, TAMIS_F16),
                                    .most_tokens = or_default(f->blend_tokens, 4096),
                                    .page_tokens = or_default(f->page_tokens, 256),
                                    .prefixes = f->prefixes != 0,
                                    .unchecked = f->unchecked != 0,
                                    .trials = f->trials,
                                    .model = f->model};
    if (!store_server_check(name, &f->place)) return false;
    if (!is_stored(f) && flag != NULL) {
        cli_fail(name, "%s: belongs to --store or --redis, of which none is given", flag);
        return false;
    }
    if (f->store_bytes != NULL && f->place.folder == NULL) {
        cli_fail(name, "--store-bytes: limits the folder of --store, which is not given");
        return false;
    }
    if (is_stored(f) && eviction != TAMIS_EVICT_NONE) {
        cli_fail(name, "%s: is given with --evict, which needs queries that loaded tokens lack",
                 f->place.folder != NULL ? "--store" : "--redis");
        return false;
    }
    if (!choose_blend(f, out)) return false;
    return bytes_or_none("--store-memory", f->store_memory, (uint64_t)256 << 20,
                         &out->memory_bytes) &&
           bytes_or_none("--store-bytes", f->store_bytes,
                         f->place.folder != NULL ? (uint64_t)20 << 30 : 0, &out->disk_bytes);
}

static bool choose_params(const serve_flags *f, serve_engine_params *engine,
                          serve_http_params *http) {
    const char *name = serve_command.name;
    uint64_t body = 0;
    *engine = (serve_engine_params){
        .session = {.device = f->device,
                    .model = f->model,
                    .context = f->context,
                    .cache = {.page_size = cli_page_size(f->page_size),
                              .dtype = (tamis_dtype)f->dtype,
                              .bounds_dtype = (tamis_bounds_dtype)f->bounds_dtype}},
        .cache_tokens = f->cache_tokens,
        .running = f->running,
        .rows = f->rows > f->running ? f->rows : f->running,
        .kept = f->kept,
        .queue = f->queue,
        .seconds = f->time_limit,
        .drain_seconds = f->drain,
        .shares = f->sharing != 0};
    cli_session_params *session = &engine->session;
    if (!cli_policies(name, &f->policies, cli_page_size(f->page_size), &session->plan.selection,
                      &session->plan.eviction, &session->cache.bounds.kind) ||
        !bytes_of("--host-memory", f->host_memory, (uint64_t)1 << 30, UINT64_MAX,
                  &engine->host_bytes) ||
        !bytes_of("--body-limit", f->body_limit, (uint64_t)4 << 20, (uint64_t)1 << 30, &body))
        return false;
    if (!choose_documents(f, session->plan.eviction.kind, &engine->documents)) return false;
    session->cache.planes = tamis_eviction_planes(&session->plan.eviction);
    *http = (serve_http_params){.host = f->host != NULL ? f->host : "127.0.0.1",
                                .port = f->port,
                                .connections = f->connections,
                                .body_bytes = (uint32_t)body,
                                .seconds = f->timeout};
    return true;
}

/* As many files as connections need, where the system allows them. */
static bool allow_connections(uint32_t connections) {
    struct rlimit limit;
    const rlim_t wanted = (rlim_t)connections + 128;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return true;
    if (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < wanted) {
        cli_fail(serve_command.name, "--connections %" PRIu32 ": the system allows %llu open files",
                 connections, (unsigned long long)limit.rlim_max);
        return false;
    }
    limit.rlim_cur = wanted;
    return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

/* ---- Signals --------------------------------------------------------------------------------- */

static serve_engine *stopped; /* by signals */

/* From here on a signal of either kind ends the program. */
static void release_signals(void) {
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
}

static void on_signal(int number) {
    const int before = errno;
    (void)number;
    release_signals();
    serve_engine_stop(stopped);
    errno = before;
}

static void catch_signals(serve_engine *engine) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    stopped = engine;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error of the store */
}

/* ---- The command ----------------------------------------------------------------------------- */

static void closing(void *user) {
    serve_http_quiesce(user);
    fprintf(stderr, "%s: stopping; the port is closed\n", serve_command.name);
}

static tamis_status serve(const serve_engine_params *params, const serve_http_params *listen,
                          const serve_flags *f, const serve_access *access, tamis_error *error) {
    char name[256];
    serve_metrics metrics;
    serve_engine *engine = NULL;
    serve_http *http = NULL;
    model_name(f->model, name);
    serve_metrics_open(&metrics);
    tamis_status status = serve_engine_open(params, f->name != NULL ? f->name : name, f->date,
                                            &metrics, &engine, error);
    if (status == TAMIS_OK) catch_signals(engine);
    if (status == TAMIS_OK)
        status = serve_http_open(listen, access, engine, &metrics, &http, error);
    if (status == TAMIS_OK) {
        const bool six = strchr(listen->host, ':') != NULL;
        fprintf(stderr, "%s: %s on %s, at http://%s%s%s:%" PRIu32 "/\n", serve_command.name,
                serve_engine_model(engine)->name, serve_engine_device(engine), six ? "[" : "",
                listen->host, six ? "]" : "", serve_http_port(http));
        if (serve_engine_model(engine)->no_chat[0] != '\0')
            fprintf(stderr, "%s: no chat: %s\n", serve_command.name,
                    serve_engine_model(engine)->no_chat);
        status = serve_engine_run(engine, closing, http, error);
    }
    release_signals();
    serve_http_close(&http, 5);
    serve_engine_close(&engine);
    serve_metrics_close(&metrics);
    return status;
}

static int run_command(int argc, char *const *argv) {
    serve_flags f = {.policies = CLI_POLICY_UNSET,
                     .port = 8080,
                     .running = 8,
                     .rows = 256,
                     .kept = 8,
                     .sharing = 1,
                     .queue = 64,
                     .connections = 1024,
                     .timeout = 60,
                     .time_limit = 600,
                     .drain = 30,
                     .dtype = TAMIS_F16,
                     .page_size = 1,
                     .store_dtype = CLI_UNSET,
                     .blend = CLI_UNSET,
                     .blend_tokens = CLI_UNSET,
                     .page_tokens = CLI_UNSET};
    const char *name = serve_command.name;
    serve_engine_params engine;
    serve_http_params http;
    serve_access access = {0};
    tamis_error error = {0};
    int code = cli_parse(&serve_command, &f, argc, argv);
    if (code >= 0) return code;
    if (f.model == NULL) {
        cli_fail(name, "--model: is missing (see %s --help)", name);
        return CLI_USAGE;
    }
    if (!choose_params(&f, &engine, &http)) return CLI_USAGE;
    access.hosts = f.hosts;
    access.origins = f.origins;
    tamis_status status = TAMIS_E_ARGUMENT;
    const bool ready =
        allow_connections(f.connections) && serve_access_open(&access, name, f.key_file);
    if (ready) status = serve(&engine, &http, &f, &access, &error);
    serve_access_close(&access);
    if (!ready) return CLI_FAILED;
    return status == TAMIS_OK ? CLI_OK : cli_fail(name, "%s", error.text);
}
