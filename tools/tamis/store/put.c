/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis store put`: computes the K and V of texts, cut into chunks, and stores them. */
#include "cli/text.h"
#include "store/shared.h"

#include <stdlib.h>
#include <string.h>

typedef struct put_flags {
    store_place place;
    const char *device, *model, *salt, *bytes, *json;
    cli_texts files;
    uint32_t chunk, dtype, cache_dtype, bare, special;
    uint8_t salt_bytes[16]; /* of salt */
    uint64_t limit;         /* of bytes */
} put_flags;

static const cli_option options[] = {
    CLI_MODEL_OPTION(put_flags, model),
    STORE_PLACE_OPTIONS(put_flags, place),
    {"--file", "FILE", "a text", CLI_INPUTS, offsetof(put_flags, files), 0, 0, NULL},
    {"--chunk", "N", "most tokens of a chunk, into which a text is cut (default: one chunk a file)",
     CLI_NUMBER, offsetof(put_flags, chunk), 1, CLI_TOKENS_MAX, NULL},
    {"--bare", "", "compute chunks alone, also where the file wants bos before every text",
     CLI_FLAG, offsetof(put_flags, bare), 0, 0, NULL},
    {"--special", "", "the text of a control token, as <|im_end|>, is that token", CLI_FLAG,
     offsetof(put_flags, special), 0, 0, NULL},
    {"--dtype", "TYPE", "element type of stored K and V: {} (default f16)", CLI_CHOICE,
     offsetof(put_flags, dtype), 0, 0, cli_stored_dtypes},
    CLI_DTYPE_OPTION("--cache-dtype", put_flags, cache_dtype),
    {"--salt", "HEX", "32 digits: what tenants without them do not find (default: all 0)", CLI_TEXT,
     offsetof(put_flags, salt), 0, 0, NULL},
    {"--bytes", "N", "limit of the store, as 512M or 20G (default: none)", CLI_TEXT,
     offsetof(put_flags, bytes), 0, 0, NULL},
    CLI_JSON_OPTION(put_flags, json),
    CLI_DEVICE_OPTION(put_flags, device),
};

static int run(int argc, char *const *argv);

const cli_command store_put_command = {
    "tamis store put",
    "compute the K and V of texts and store them",
    "--model FILE (--store FOLDER | --redis ADDRESS) --file FILE [--chunk N] [OPTIONS]",
    "Cuts texts into chunks, computes the K and V of each by itself, behind bos where the file\n"
    "wants it before every text, and stores them. The type of the cache decides what is computed:\n"
    "only prompts over a cache of the same type find these chunks. A line for each chunk has its\n"
    "key. A chunk that is in the store is not computed again. Where the limit is reached, the\n"
    "chunks that were not used for the longest time go.",
    "  tamis store put --model model.gguf --store chunks --file handbook.txt --chunk 512\n"
    "  tamis store put --model model.gguf --store chunks --file a.txt --file b.txt --bytes 20G\n"
    "  tamis store put --model model.gguf --redis localhost:6379 --file handbook.txt --chunk 512\n",
    options,
    sizeof(options) / sizeof(options[0]),
    run};

/* A chunk of a file's tokens, and what has become of it. */
typedef struct put_chunk {
    const char *file;
    uint32_t number; /* in its file, from 1 on */
    const int32_t *tokens;
    uint32_t n_tokens;
    bool known; /* it was there */
    tamis_chunk_info info;
    double seconds;
} put_chunk;

typedef struct put_state {
    const put_flags *flags;
    tamis_context *device;
    tamis_model *model;
    tamis_cache *cache;
    tamis_runner *runner;
    tamis_store *store;
    tamis_record_params params;
    int32_t sink;
    cli_tokens texts[CLI_LIST_MAX]; /* of each file */
    put_chunk *chunks;
    size_t count;
    uint32_t longest; /* tokens of a chunk */
} put_state;

/* ---- Texts ------------------------------------------------------------------------------------- */

static tamis_status read_text(put_state *s, uint32_t i, tamis_error *error) {
    const char *path = s->flags->files.values[i], *name = cli_input_name(path);
    const uint32_t flags = s->flags->special ? TAMIS_ENCODE_PARSE_SPECIAL : 0;
    char *content = NULL;
    size_t bytes = 0;
    tamis_error reason = {0};
    tamis_status status = cli_read_text(path, &content, &bytes, error);
    if (status != TAMIS_OK) return status;
    status =
        cli_tokenize(tamis_model_vocab(s->model), content, bytes, flags, &s->texts[i], &reason);
    free(content);
    if (status != TAMIS_OK) return cli_error(error, status, "%s: %s", name, reason.text);
    if (s->texts[i].count == 0)
        return cli_error(error, TAMIS_E_ARGUMENT, "%s: has no tokens", name);
    return TAMIS_OK;
}

static size_t chunks_of(const put_state *s, uint32_t i) {
    const uint32_t most = s->flags->chunk;
    return most == CLI_UNSET ? 1 : (s->texts[i].count + most - 1) / most;
}

static tamis_status cut_text(put_state *s, uint32_t i, tamis_error *error) {
    const uint32_t context = tamis_model_describe(s->model)->context;
    const cli_tokens *text = &s->texts[i];
    const size_t n = chunks_of(s, i);
    for (size_t j = 0; j < n; j++) {
        const size_t first = n > 1 ? j * s->flags->chunk : 0;
        const size_t left = text->count - first;
        const size_t tokens = n > 1 && left > s->flags->chunk ? s->flags->chunk : left;
        if (tokens > context - s->params.n_sink)
            return cli_error(error, TAMIS_E_ARGUMENT,
                             "%s: a chunk of %zu tokens; the model states a context of %u, and "
                             "--chunk cuts a text",
                             s->flags->files.values[i], tokens, context);
        s->chunks[s->count++] = (put_chunk){.file = s->flags->files.values[i],
                                            .number = (uint32_t)j + 1,
                                            .tokens = text->ids + first,
                                            .n_tokens = (uint32_t)tokens};
        if (tokens > s->longest) s->longest = (uint32_t)tokens;
    }
    return TAMIS_OK;
}

static tamis_status read_texts(put_state *s, tamis_error *error) {
    tamis_status status = TAMIS_OK;
    size_t total = 0;
    const uint32_t n = s->flags->files.count;
    for (uint32_t i = 0; status == TAMIS_OK && i < n; i++) {
        status = read_text(s, i, error);
        if (status == TAMIS_OK) total += chunks_of(s, i);
    }
    if (status != TAMIS_OK) return status;
    s->chunks = calloc(total, sizeof(*s->chunks));
    if (s->chunks == NULL) return cli_no_memory(error);
    for (uint32_t i = 0; status == TAMIS_OK && i < n; i++)
        status = cut_text(s, i, error);
    return status;
}

/* ---- Storing ----------------------------------------------------------------------------------- */

/* Texts are read before the store is made, which may have to make room. */
static tamis_status open_all(put_state *s, tamis_error *error) {
    const put_flags *f = s->flags;
    tamis_cache_params cache = {.dtype = (tamis_dtype)f->cache_dtype};
    tamis_plan_params plan = {0};
    tamis_status status = cli_open(f->device, &s->device, error);
    if (status == TAMIS_OK) status = cli_load(s->device, f->model, &s->model, error);
    if (status != TAMIS_OK) return status;
    s->params = (tamis_record_params){
        .dtype = (tamis_dtype)f->dtype, .cache_dtype = cache.dtype, .sink = &s->sink};
    memcpy(s->params.salt, f->salt_bytes, sizeof(s->params.salt));
    s->params.n_sink = f->bare ? 0 : store_sink(s->model, &s->sink);
    status = read_texts(s, error);
    if (status != TAMIS_OK) return status;
    plan.max_context = s->longest + s->params.n_sink;
    cache.capacity_tokens = plan.max_context;
    tamis_model_cache_shape(s->model, &cache);
    status = tamis_cache_create(s->device, &cache, &s->cache, error);
    if (status == TAMIS_OK)
        status = tamis_runner_create(s->model, s->cache, &plan, &s->runner, error);
    if (status == TAMIS_OK) status = cli_build(s->runner, plan.max_context, error);
    if (status == TAMIS_OK) status = store_open(&f->place, f->limit, true, &s->store, error);
    return status;
}

static void close_all(put_state *s) {
    tamis_store_destroy(&s->store);
    tamis_runner_destroy(&s->runner);
    tamis_cache_destroy(&s->cache);
    tamis_model_destroy(&s->model);
    tamis_context_destroy(&s->device);
    for (uint32_t i = 0; i < CLI_LIST_MAX; i++)
        free(s->texts[i].ids);
    free(s->chunks);
}

static tamis_status store_chunk(put_state *s, put_chunk *chunk, tamis_error *error) {
    const double start = cli_seconds();
    tamis_chunk_id id;
    tamis_chunk *found = NULL;
    tamis_status status =
        tamis_record_id(s->model, &s->params, chunk->tokens, chunk->n_tokens, &id, error);
    if (status == TAMIS_OK) status = tamis_store_get(s->store, &id, &found, error);
    chunk->known = found != NULL;
    tamis_chunk_release(&found);
    if (status == TAMIS_OK && !chunk->known)
        status = tamis_runner_record(s->runner, s->store, &s->params, chunk->tokens,
                                     chunk->n_tokens, error);
    if (status == TAMIS_OK) status = tamis_chunk_key(&id, chunk->info.key, error);
    chunk->info.record_bytes = tamis_chunk_record_bytes(&id.shape, id.n_tokens);
    chunk->seconds = cli_seconds() - start;
    return status;
}

static tamis_status store_chunks(put_state *s, tamis_error *error) {
    for (size_t i = 0; i < s->count; i++) {
        put_chunk *chunk = &s->chunks[i];
        tamis_error reason = {0};
        const tamis_status status = store_chunk(s, chunk, &reason);
        if (status != TAMIS_OK)
            return cli_error(error, status, "%s, chunk %u: %s", chunk->file, chunk->number,
                             reason.text);
        printf("%s  %s chunk %u: %u tokens, %s, ", cli_hex(chunk->info.key).text, chunk->file,
               chunk->number, chunk->n_tokens, cli_bytes((double)chunk->info.record_bytes).text);
        if (chunk->known)
            printf("was there\n");
        else
            printf("stored in %.2f s\n", chunk->seconds);
        fflush(stdout);
    }
    return TAMIS_OK;
}

/* ---- JSON -------------------------------------------------------------------------------------- */

static bool add_row(cJSON *rows, const put_chunk *chunk) {
    const cli_number numbers[] = {{"chunk", chunk->number},
                                  {"tokens", chunk->n_tokens},
                                  {"record_bytes", (double)chunk->info.record_bytes},
                                  {"seconds", chunk->seconds}};
    cJSON *row = cli_json_row(rows);
    return cJSON_AddStringToObject(row, "key", cli_hex(chunk->info.key).text) != NULL &&
           cJSON_AddStringToObject(row, "file", chunk->file) != NULL &&
           cJSON_AddBoolToObject(row, "known", chunk->known) != NULL &&
           cli_json_numbers(row, numbers, sizeof(numbers) / sizeof(numbers[0]));
}

static bool write_json(const put_state *s, cli_output *output) {
    uint8_t fingerprint[16];
    cJSON *root = cli_json_begin(store_put_command.name, s->device);
    cJSON *rows = cJSON_CreateArray();
    const cli_number numbers[] = {{"sink", s->params.n_sink}};
    bool made =
        rows != NULL && cli_json_numbers(root, numbers, 1) &&
        tamis_model_fingerprint(s->model, fingerprint, NULL) == TAMIS_OK &&
        cJSON_AddStringToObject(root, "model", s->flags->model) != NULL &&
        cJSON_AddStringToObject(root, "fingerprint", cli_hex(fingerprint).text) != NULL &&
        cJSON_AddStringToObject(root, "dtype", cli_stored_dtypes[s->flags->dtype]) != NULL &&
        cJSON_AddStringToObject(root, "cache_dtype", cli_dtypes[s->flags->cache_dtype]) != NULL;
    for (size_t i = 0; made && i < s->count; i++)
        made = add_row(rows, &s->chunks[i]);
    if (!made) {
        cJSON_Delete(rows);
        rows = NULL;
    }
    return cli_json_write(root, rows, output, store_put_command.name);
}

static int put(const put_flags *f) {
    put_state s = {.flags = f};
    cli_output output = {0};
    tamis_error error = {0};
    if (f->json != NULL && !cli_output_open(&output, store_put_command.name, f->json))
        return CLI_FAILED;
    tamis_status status = open_all(&s, &error);
    if (status == TAMIS_OK) status = store_chunks(&s, &error);
    int code = status == TAMIS_OK ? CLI_OK : cli_fail(store_put_command.name, "%s", error.text);
    if (code == CLI_OK && f->json != NULL && !write_json(&s, &output)) code = CLI_FAILED;
    cli_output_discard(&output);
    close_all(&s);
    return code;
}

static int run(int argc, char *const *argv) {
    put_flags f = {.chunk = CLI_UNSET, .dtype = TAMIS_F16, .cache_dtype = TAMIS_F16};
    const char *name = store_put_command.name;
    int code = cli_parse(&store_put_command, &f, argc, argv);
    if (code >= 0) return code;
    if (f.model == NULL) {
        cli_fail(name, "--model: is missing (see %s --help)", name);
        return CLI_USAGE;
    }
    if (!store_place_check(name, &f.place)) return CLI_USAGE;
    if (f.files.count == 0) {
        cli_fail(name, "--file: is missing (see %s --help)", name);
        return CLI_USAGE;
    }
    if (f.salt != NULL && !store_parse_hex(name, "--salt", f.salt, f.salt_bytes)) return CLI_USAGE;
    if (f.bytes != NULL && !cli_size(name, "--bytes", f.bytes, &f.limit)) return CLI_USAGE;
    return put(&f);
}
