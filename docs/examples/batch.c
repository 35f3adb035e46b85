/* SPDX-License-Identifier: Apache-2.0 */
/* Many requests behind one prompt, in less memory than they all need at once. The prompt is read once
 * and forked for each request; their own texts are read together, as many as there are pages for.
 * Behind its text each request is evicted from by snapkv, which makes room for those that wait. Then
 * all of them decode together, and quest chooses what each token reads.
 *   cc batch.c $(pkg-config --cflags --libs tamis) -o batch && ./batch */
#include <inttypes.h>
#include <stdio.h>
#include <tamis/tamis.h>

enum { LAYERS = 2, HEADS = 8, KV_HEADS = 2, DIM = 64 };
enum { PROMPT = 256, TEXT = 256, REQUESTS = 4, TOKENS = 16, MAX_ROWS = REQUESTS * TEXT };
enum { Q_ROW = HEADS * DIM, KV_ROW = KV_HEADS * DIM }; /* floats of a row */

static tamis_context *context;
static tamis_cache *cache;
static tamis_plan *plan;
static tamis_buffer *q, *k, *v, *out;
static uint64_t checksum = 0xcbf29ce484222325u; /* of all outputs: FNV-1a, word by word */
static tamis_error error;

#define TRY(call)                                                                                  \
    if ((call) != TAMIS_OK) return 0

static int open_all(void) {
    tamis_plan_params params = {
        .max_context = PROMPT + TEXT + TOKENS, .max_sequences = REQUESTS, .max_rows = MAX_ROWS};
    tamis_selection_default(TAMIS_SELECT_QUEST, &params.selection);
    params.selection.budget = 64; /* tokens that a row reads of each lane */
    params.selection.recent = 16;
    tamis_eviction_default(TAMIS_EVICT_SNAPKV, &params.eviction);
    params.eviction.budget = 128; /* tokens that each lane keeps */
    const tamis_cache_params shape = {.n_layers = LAYERS,
                                      .n_heads = HEADS,
                                      .n_kv_heads = KV_HEADS,
                                      .head_dim = DIM,
                                      .dtype = TAMIS_F16,
                                      .capacity_tokens = 1152,
                                      .planes = tamis_eviction_planes(&params.eviction)};
    TRY(tamis_context_create(NULL, &context, &error)); /* TAMIS_DEVICE, else CUDA or OpenCL */
    TRY(tamis_cache_create(context, &shape, &cache, &error));
    TRY(tamis_plan_create(cache, &params, &plan, &error));
    TRY(tamis_buffer_create(context, MAX_ROWS * Q_ROW * sizeof(float), &q, &error));
    TRY(tamis_buffer_create(context, MAX_ROWS * KV_ROW * sizeof(float), &k, &error));
    TRY(tamis_buffer_create(context, MAX_ROWS * KV_ROW * sizeof(float), &v, &error));
    TRY(tamis_buffer_create(context, MAX_ROWS * Q_ROW * sizeof(float), &out, &error));
    return 1;
}

static void close_all(void) {
    tamis_buffer *buffers[] = {q, k, v, out};
    for (int i = 0; i < 4; i++)
        tamis_buffer_destroy(&buffers[i]);
    tamis_plan_destroy(&plan);
    tamis_cache_destroy(&cache);
    tamis_context_destroy(&context);
}

/* Stands for the model: what its projections would put into a buffer. */
static int project(tamis_buffer *to, uint32_t n_floats) {
    static float rows[MAX_ROWS * Q_ROW];
    static uint32_t random = 1;
    for (uint32_t i = 0; i < n_floats; i++) {
        random = random * 1664525u + 1013904223u;
        rows[i] = (float)(random >> 16) / 32768 - 1;
    }
    TRY(tamis_buffer_write(to, 0, rows, n_floats * sizeof *rows, &error));
    return 1;
}

/* Stands for what the model does with a layer's output. */
static int use_output(uint32_t n_floats) {
    static uint32_t words[MAX_ROWS * Q_ROW];
    TRY(tamis_buffer_read(out, 0, words, n_floats * sizeof *words, &error));
    for (uint32_t i = 0; i < n_floats; i++)
        checksum = (checksum ^ words[i]) * 0x100000001b3u;
    return 1;
}

/* The layers of the open step, and its end. */
static int run_layers(uint32_t n_rows) {
    const tamis_rows q_rows = {.buffer = q}, out_rows = {.buffer = out};
    const tamis_rows k_rows = {.buffer = k}, v_rows = {.buffer = v};
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        if (!project(q, n_rows * Q_ROW) || !project(k, n_rows * KV_ROW) ||
            !project(v, n_rows * KV_ROW))
            return 0;
        TRY(tamis_plan_write(plan, layer, &k_rows, &v_rows, &error));
        TRY(tamis_plan_attend(plan, layer, &q_rows, &out_rows, &error));
        if (!use_output(n_rows * Q_ROW)) return 0;
    }
    TRY(tamis_plan_step_end(plan, &error));
    return 1;
}

/* Reads the texts of the first requests, as many as there is room for; *n becomes their number. */
static int read_texts(const tamis_sequence *requests, uint32_t *n) {
    const uint32_t rows[REQUESTS] = {TEXT, TEXT, TEXT, TEXT};
    tamis_step step = {.sequences = requests, .rows = rows, .count = *n, .exact = 1};
    tamis_step_pages pages;
    TRY(tamis_plan_step_pages(plan, &step, &pages, &error)); /* nothing changes by asking */
    printf("texts to read: %" PRIu32 ", they need %" PRIu64 " pages, %" PRIu64 " are free\n",
           step.count, pages.needed, pages.free);
    tamis_status status = tamis_plan_step_begin(plan, &step, &error);
    while (status == TAMIS_E_FULL && step.count > 1) { /* then nothing has changed */
        step.count--;
        status = tamis_plan_step_begin(plan, &step, &error);
    }
    TRY(status);
    *n = step.count;
    return run_layers(step.count * TEXT);
}

/* Makes room behind a request's text. */
static int evict(tamis_sequence request) {
    tamis_evicted evicted;
    TRY(tamis_plan_evict(plan, request, &evicted, &error));
    printf("evicted: %" PRIu64 " of %" PRIu64 " tokens stay, the pool gains %" PRId64 " pages\n",
           evicted.tokens_kept, evicted.tokens_before, evicted.pages_net);
    return 1;
}

static int serve(void) {
    tamis_sequence prompt, requests[REQUESTS];
    const uint32_t rows = PROMPT;
    const tamis_step first = {.sequences = &prompt, .rows = &rows, .count = 1, .exact = 1};
    const tamis_step decode = {.sequences = requests, .count = REQUESTS};
    TRY(tamis_cache_add(cache, &prompt, &error));
    TRY(tamis_plan_step_begin(plan, &first, &error));
    if (!run_layers(PROMPT)) return 0;
    for (int i = 0; i < REQUESTS; i++) /* takes no pages yet */
        TRY(tamis_cache_fork(cache, prompt, &requests[i], &error));

    for (uint32_t done = 0, n; done < REQUESTS; done += n) {
        n = REQUESTS - done;
        if (!read_texts(requests + done, &n)) return 0;
        for (uint32_t i = 0; i < n; i++)
            if (!evict(requests[done + i])) return 0;
    }
    TRY(tamis_cache_remove(cache, prompt, &error));
    for (int i = 0; i < TOKENS; i++) {
        TRY(tamis_plan_step_begin(plan, &decode, &error));
        if (!run_layers(REQUESTS)) return 0;
    }
    tamis_plan_counters c;
    tamis_plan_get_counters(plan, &c);
    printf("decoded %d tokens for each of %d requests, read %.2f of what they hold\n", TOKENS,
           REQUESTS, (double)(c.kv_bytes_read + c.bounds_bytes_read) / (double)c.kv_bytes_full);
    printf("checksum %016" PRIx64 "\n", checksum);
    return 1;
}

int main(void) {
    const int good = open_all() && serve();
    if (!good) fprintf(stderr, "batch: %s\n", error.text);
    close_all();
    return !good;
}
