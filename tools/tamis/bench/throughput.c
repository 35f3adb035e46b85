/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis bench throughput`: how many sequences of a model fit into the same cache memory under each
 * eviction, and how many tokens per second decoding all of them gives. */
#include "bench/throughput.h"
#include "cli/commands.h"

#include <stdlib.h>

#define PREFILL_ROWS  512u
#define TIMED_PROMPTS 3u

/* ---- One arm --------------------------------------------------------------------------------- */

/* Whether lanes stay at their length; if not, generated tokens are truncated away before the next
 * round. */
static bool stays(const throughput_arm *arm) {
    return arm->eviction.every == 1;
}

/* Tokens that a sequence has seen at most. */
static uint32_t longest(const throughput *t, const throughput_arm *arm) {
    return t->context + t->tokens * (stays(arm) ? t->repeat + 2 : 1);
}

static tamis_status make_runner(const throughput *t, const throughput_arm *arm, tamis_cache *cache,
                                uint32_t batch, int timing, tamis_runner **out,
                                tamis_error *error) {
    const tamis_plan_params params = {.max_sequences = batch,
                                      .max_rows = batch > PREFILL_ROWS ? batch : PREFILL_ROWS,
                                      .max_context = longest(t, arm),
                                      .flags = timing ? TAMIS_PLAN_TIMING : 0,
                                      .eviction = arm->eviction};
    return tamis_runner_create(t->model, cache, &params, out, error);
}

static tamis_cache_params cache_params(const throughput *t, const throughput_arm *arm) {
    tamis_cache_params params = t->shape;
    params.planes = tamis_eviction_planes(&arm->eviction);
    return params;
}

/* One token more for each of `count` sequences. */
static tamis_status decode(tamis_runner *runner, const tamis_sequence *sequences, int32_t *tokens,
                           uint32_t count, uint32_t steps, tamis_error *error) {
    tamis_status status = TAMIS_OK;
    for (uint32_t i = 0; status == TAMIS_OK && i < steps; i++)
        status = tamis_runner_decode(runner, sequences, count, tokens, tokens, error);
    return status;
}

static tamis_status rewind_arm(const throughput *t, throughput_arm *arm, tamis_error *error) {
    tamis_status status = TAMIS_OK;
    for (uint32_t i = 0; status == TAMIS_OK && !stays(arm) && i < arm->batch; i++)
        status = tamis_cache_truncate(arm->cache, arm->sequences[i], t->context, error);
    return status;
}

/* ---- What a sequence takes ------------------------------------------------------------------- */

static uint64_t held(const tamis_cache *cache, tamis_sequence sequence) {
    tamis_sequence_stats stats = {0};
    return tamis_cache_get_sequence_stats(cache, sequence, &stats, NULL) == TAMIS_OK
               ? stats.bytes_held
               : 0;
}

/* The times of evicting at a prompt's end, and of observing the prompt before: medians. */
static tamis_status time_prompts(const throughput *t, throughput_arm *arm, tamis_cache *cache,
                                 tamis_runner *runner, tamis_error *error) {
    double evict_us[TIMED_PROMPTS], observe_us[TIMED_PROMPTS];
    tamis_plan_times from, to;
    tamis_status status = TAMIS_OK;
    for (uint32_t i = 0; status == TAMIS_OK && i < TIMED_PROMPTS; i++) {
        tamis_sequence sequence = 0;
        tamis_plan_get_times(tamis_runner_plan(runner), &from);
        status = cli_prefill(cache, runner, t->prompt, t->context, &sequence, NULL, error);
        tamis_plan_get_times(tamis_runner_plan(runner), &to);
        evict_us[i] = to.evict_us - from.evict_us;
        observe_us[i] = to.observe_us - from.observe_us;
        if (status == TAMIS_OK) status = tamis_cache_remove(cache, sequence, error);
    }
    if (status != TAMIS_OK) return status;
    arm->evict_us = bench_median(evict_us, TIMED_PROMPTS);
    arm->prompt_observe_us = bench_median(observe_us, TIMED_PROMPTS);
    return TAMIS_OK;
}

/* Prefills one sequence and lets it generate. */
static tamis_status count_pages(const throughput *t, throughput_arm *arm, tamis_cache *cache,
                                tamis_runner *runner, tamis_error *error) {
    const tamis_cache_params *s = &t->shape;
    tamis_cache_params params = cache_params(t, arm);
    tamis_cache_size size = {0};
    tamis_sequence sequence = 0;
    int32_t next = 0;
    params.capacity_tokens = t->context;
    tamis_status status = tamis_cache_measure(t->device, &params, &size, error);
    if (status == TAMIS_OK)
        status = cli_prefill(cache, runner, t->prompt, t->context, &sequence, &next, error);
    if (status != TAMIS_OK) return status;
    arm->prompt_bytes = size.reserved_bytes; /* of whole pages in every lane */
    arm->kept_bytes = held(cache, sequence);
    status = decode(runner, &sequence, &next, 1, t->tokens, error);
    arm->sequence_bytes = held(cache, sequence);
    if (arm->prompt_bytes > arm->sequence_bytes)
        arm->reserve_bytes = arm->prompt_bytes - arm->sequence_bytes;
    arm->window_bytes =
        (uint64_t)arm->eviction.window * s->n_layers * s->n_heads * s->head_dim * sizeof(float);
    return status;
}

static tamis_status measure_sequence(const throughput *t, throughput_arm *arm, tamis_error *error) {
    tamis_cache *cache = NULL;
    tamis_runner *runner = NULL;
    tamis_cache_params params = cache_params(t, arm);
    params.capacity_tokens = t->context + t->tokens;
    tamis_status status = tamis_cache_create(t->device, &params, &cache, error);
    if (status == TAMIS_OK) status = make_runner(t, arm, cache, 1, 1, &runner, error);
    if (status == TAMIS_OK) status = time_prompts(t, arm, cache, runner, error);
    if (status == TAMIS_OK) status = count_pages(t, arm, cache, runner, error);
    tamis_runner_destroy(&runner);
    tamis_cache_destroy(&cache);
    return status;
}

/* ---- The batch ------------------------------------------------------------------------------- */

/* As many as fit beside the reserve. */
static tamis_status choose_batch(const throughput *t, throughput_arm *arm, uint64_t memory,
                                 tamis_error *error) {
    const cli_eviction_text name = bench_arm_name(&arm->eviction);
    tamis_cache_params params = cache_params(t, arm);
    tamis_cache_size size = {0};
    params.capacity_bytes = memory;
    tamis_status status = tamis_cache_measure(t->device, &params, &size, error);
    if (status != TAMIS_OK) return status;
    arm->cache_bytes = size.reserved_bytes;
    uint64_t batch = arm->cache_bytes < arm->reserve_bytes
                         ? 0
                         : (arm->cache_bytes - arm->reserve_bytes) / arm->sequence_bytes;
    if (batch == 0)
        return cli_error(error, TAMIS_E_ARGUMENT,
                         "%s: a sequence takes %llu bytes and %llu in reserve, the memory has %llu",
                         name.text, (unsigned long long)arm->sequence_bytes,
                         (unsigned long long)arm->reserve_bytes,
                         (unsigned long long)arm->cache_bytes);
    if (batch > UINT16_MAX)
        return cli_error(error, TAMIS_E_ARGUMENT, "%s: %llu sequences, more than %u", name.text,
                         (unsigned long long)batch, UINT16_MAX);
    arm->batch = (uint32_t)batch;
    return TAMIS_OK;
}

/* The memory that an arm's cache gets; of an equal batch, whole pages in every layer. */
static uint64_t memory_of(const throughput *t, const throughput_arm *arm) {
    if (t->batch > 0)
        return t->batch * arm->sequence_bytes + arm->reserve_bytes +
               arm->prompt_bytes / t->context * t->shape.page_size;
    if (t->memory_bytes > 0) return t->memory_bytes;
    return t->sequences * t->arms[0].sequence_bytes;
}

/* All caches exist at the same time, so that rounds can alternate. */
static tamis_status size_arms(throughput *t, tamis_error *error) {
    const tamis_device_info *device = tamis_context_device(t->device);
    uint64_t sum = 0;
    for (uint32_t a = 0; a < t->n_arms; a++) {
        throughput_arm *arm = &t->arms[a];
        fprintf(stderr, "%s: measuring one sequence\n", bench_arm_name(&arm->eviction).text);
        tamis_status status = measure_sequence(t, arm, error);
        if (status == TAMIS_OK) status = choose_batch(t, arm, memory_of(t, arm), error);
        if (status != TAMIS_OK) return status;
        if (t->batch > 0) arm->batch = t->batch;
        arm->ceiling = (double)t->arms[0].sequence_bytes / (double)arm->sequence_bytes;
        sum += arm->cache_bytes;
    }
    if (sum > device->memory_bytes / 2)
        return cli_error(error, TAMIS_E_ARGUMENT,
                         "%u caches take %s together, more than half of the device's %s; all stand "
                         "at once, so that rounds alternate: give less memory or fewer evictions",
                         t->n_arms, cli_bytes((double)sum).text,
                         cli_bytes((double)device->memory_bytes).text);
    return TAMIS_OK;
}

/* Sequence after sequence, each of which evicts before the next one begins. */
static tamis_status fill(const throughput *t, throughput_arm *arm, tamis_error *error) {
    const cli_eviction_text name = bench_arm_name(&arm->eviction);
    tamis_cache_params params = cache_params(t, arm);
    params.capacity_bytes = arm->cache_bytes;
    arm->sequences = calloc(arm->batch, sizeof(*arm->sequences));
    arm->tokens = calloc(arm->batch, sizeof(*arm->tokens));
    arm->tokens_per_s = calloc(t->repeat, sizeof(double));
    if (arm->sequences == NULL || arm->tokens == NULL || arm->tokens_per_s == NULL)
        return cli_no_memory(error);
    tamis_status status = tamis_cache_create(t->device, &params, &arm->cache, error);
    if (status == TAMIS_OK)
        status = make_runner(t, arm, arm->cache, arm->batch, 0, &arm->runner, error);
    for (uint32_t i = 0; status == TAMIS_OK && i < arm->batch; i++) {
        if (i % 16 == 0)
            fprintf(stderr, "%s: prefilling %u of %u sequences\n", name.text, i + 1, arm->batch);
        status = cli_prefill(arm->cache, arm->runner, t->prompt, t->context, &arm->sequences[i],
                             &arm->tokens[i], error);
    }
    if (status == TAMIS_OK) /* the first round, which is not counted */
        status = decode(arm->runner, arm->sequences, arm->tokens, arm->batch, t->tokens, error);
    return status;
}

/* With all sequences at their longest, one more must run out of pages. */
static tamis_status try_one_more(const throughput *t, throughput_arm *arm, tamis_error *error) {
    tamis_error full = {0};
    tamis_sequence more = 0;
    int32_t next = 0;
    tamis_status status = tamis_cache_add(arm->cache, &more, error);
    if (status != TAMIS_OK) return status;
    status = tamis_runner_prefill(arm->runner, more, t->prompt, t->context, &next, &full);
    if (status == TAMIS_OK) status = decode(arm->runner, &more, &next, 1, t->tokens, &full);
    arm->overflows = status == TAMIS_E_FULL;
    if (status == TAMIS_OK)
        return cli_error(error, TAMIS_E_STATE, "%s: %u sequences fit where %u were to be the most",
                         bench_arm_name(&arm->eviction).text, arm->batch + 1, arm->batch);
    if (!arm->overflows) return cli_error(error, status, "%s", full.text);
    return tamis_cache_remove(arm->cache, more, error);
}

/* ---- Rounds ---------------------------------------------------------------------------------- */

static tamis_status round_of(const throughput *t, throughput_arm *arm, double *tokens_per_s,
                             tamis_error *error) {
    tamis_status status = rewind_arm(t, arm, error);
    if (status == TAMIS_OK) status = tamis_context_wait(t->device, error);
    double start = cli_seconds();
    if (status == TAMIS_OK)
        status = decode(arm->runner, arm->sequences, arm->tokens, arm->batch, t->tokens, error);
    *tokens_per_s = (double)arm->batch * t->tokens / (cli_seconds() - start);
    return status;
}

static tamis_status take_rounds(throughput *t, tamis_error *error) {
    tamis_status status = TAMIS_OK;
    for (uint32_t a = 0; a < t->n_arms; a++)
        tamis_plan_reset_counters(tamis_runner_plan(t->arms[a].runner));
    for (uint32_t r = 0; status == TAMIS_OK && r < t->repeat; r++) {
        fprintf(stderr, "round %u of %u\n", r + 1, t->repeat);
        status = bench_read_bandwidth(t->device, t->probe, &t->read[r], error);
        for (uint32_t a = 0; status == TAMIS_OK && a < t->n_arms; a++)
            status = round_of(t, &t->arms[a], &t->arms[a].tokens_per_s[r], error);
    }
    if (status != TAMIS_OK) return status;
    return bench_read_bandwidth(t->device, t->probe, &t->read[t->repeat], error);
}

static double stages_of(const tamis_plan_times *us) {
    return us->write_us + us->bounds_us + us->score_us + us->select_us + us->attend_us +
           us->fused_us;
}

/* A pass in which each stage is waited for. The rest of the step is the time of the weights. */
static tamis_status measure_stages(const throughput *t, throughput_arm *arm, tamis_error *error) {
    tamis_plan_times us;
    tamis_runner *runner = NULL;
    tamis_status status = make_runner(t, arm, arm->cache, arm->batch, 1, &runner, error);
    if (status == TAMIS_OK) status = rewind_arm(t, arm, error);
    if (status == TAMIS_OK) status = tamis_context_wait(t->device, error);
    double start = cli_seconds();
    if (status == TAMIS_OK)
        status = decode(runner, arm->sequences, arm->tokens, arm->batch, t->tokens, error);
    arm->step_us = (cli_seconds() - start) * 1e6 / t->tokens;
    tamis_plan_get_times(tamis_runner_plan(runner), &us);
    arm->attention_us = stages_of(&us) / t->tokens;
    arm->policy_us = (us.observe_us + us.replace_us) / t->tokens;
    arm->weights_us = arm->step_us - arm->attention_us - arm->policy_us;
    tamis_runner_destroy(&runner);
    return status;
}

/* Bytes of a step: K, V and bounds as the rounds counted them, and what the eviction adds. */
static void count_bytes(const throughput *t, throughput_arm *arm) {
    tamis_plan_counters c;
    tamis_sequence_stats stats = {0};
    double steps = (double)t->repeat * t->tokens;
    if (tamis_cache_get_sequence_stats(arm->cache, arm->sequences[0], &stats, NULL) != TAMIS_OK)
        return;
    tamis_plan_get_counters(tamis_runner_plan(arm->runner), &c);
    arm->kv_bytes = (double)(c.kv_bytes_read + c.bounds_bytes_read) / steps;
    arm->policy_bytes = t->shape.n_layers *
                        bench_policy_bytes(&arm->eviction, &t->shape, arm->batch,
                                           (double)stats.slots * arm->batch / t->shape.n_layers);
    arm->predicted_us = (arm->kv_bytes + arm->policy_bytes) / t->read_gb_per_s * 1e-3;
}

/* Takes ratios within each round, whose samples are close in time, and then their median. */
static void summarise(throughput *t) {
    t->read_gb_per_s = bench_median(t->read, t->repeat + 1);
    for (uint32_t a = t->n_arms; a-- > 0;) { /* full, which is sorted, last */
        throughput_arm *arm = &t->arms[a];
        double gains[100];
        for (uint32_t r = 0; r < t->repeat; r++)
            gains[r] = arm->tokens_per_s[r] / t->arms[0].tokens_per_s[r];
        arm->gain = bench_median(gains, t->repeat);
        arm->median_tokens_per_s = bench_median(arm->tokens_per_s, t->repeat);
        arm->slowest_tokens_per_s = arm->tokens_per_s[0];
        arm->fastest_tokens_per_s = arm->tokens_per_s[t->repeat - 1];
        count_bytes(t, arm);
    }
}

tamis_status throughput_measure(throughput *t, tamis_error *error) {
    tamis_status status = size_arms(t, error);
    for (uint32_t a = 0; status == TAMIS_OK && a < t->n_arms; a++) {
        status = fill(t, &t->arms[a], error);
        if (status == TAMIS_OK && t->batch == 0) status = try_one_more(t, &t->arms[a], error);
    }
    if (status == TAMIS_OK) status = take_rounds(t, error);
    if (status == TAMIS_OK) summarise(t);
    for (uint32_t a = 0; status == TAMIS_OK && a < t->n_arms; a++)
        status = measure_stages(t, &t->arms[a], error);
    return status;
}

/* ---- The command ----------------------------------------------------------------------------- */

typedef struct throughput_flags {
    const char *device, *json, *model, *budget, *memory;
    uint32_t context, sequences, batch, tokens, dtype, page_size, repeat, probe;
    cli_list evictions;
    cli_eviction_flags eviction;
} throughput_flags;

static const cli_option options[] = {
    CLI_MODEL_OPTION(throughput_flags, model),
    {"--context", "N", "tokens of each prompt (default 2048)", CLI_NUMBER,
     offsetof(throughput_flags, context), 1, BENCH_CONTEXT_MAX, NULL},
    {"--memory", "BYTES", "memory of the cache, with K, M, G or T for powers of 1024", CLI_TEXT,
     offsetof(throughput_flags, memory), 0, 0, NULL},
    {"--sequences", "N",
     "in place of --memory: as much as N sequences take under full (default 16)", CLI_NUMBER,
     offsetof(throughput_flags, sequences), 1, 4096, NULL},
    {"--batch", "N", "in place of both: the same batch under every eviction", CLI_NUMBER,
     offsetof(throughput_flags, batch), 1, 4096, NULL},
    {"--evict", "K[,K]", "what is measured beside full: {} (default all)", CLI_EVICTIONS,
     offsetof(throughput_flags, evictions), 0, 0, NULL},
    {"--budget", "N|N%",
     "tokens of a lane that are kept, or their share of the context (default 20%)", CLI_TEXT,
     offsetof(throughput_flags, budget), 0, 0, NULL},
    CLI_EVICTION_OPTIONS_OF(throughput_flags, eviction),
    {"--tokens", "N", "tokens that each sequence generates in a round (default 64)", CLI_NUMBER,
     offsetof(throughput_flags, tokens), 1, BENCH_CONTEXT_MAX, NULL},
    {"--repeat", "N", "rounds (default 3)", CLI_NUMBER, offsetof(throughput_flags, repeat), 1, 100,
     NULL},
    CLI_DTYPE_OPTION("--dtype", throughput_flags, dtype),
    CLI_PAGE_SIZE_OPTION(throughput_flags, page_size),
    {"--probe", "N", "MiB to measure the read bandwidth over (default 256, on a GPU up to 1024)",
     CLI_NUMBER, offsetof(throughput_flags, probe), 1, 65536, NULL},
    CLI_JSON_OPTION(throughput_flags, json),
    CLI_DEVICE_OPTION(throughput_flags, device),
};

static int run_command(int argc, char *const *argv);

const cli_command bench_throughput_command = {
    "tamis bench throughput",
    "tokens a second of a model in the same cache memory",
    "--model FILE [OPTIONS]",
    "Full and each eviction get the same cache memory. As many sequences are prefilled as fit;\n"
    "each evicts before the next one begins, and one more must not fit. Then all of them decode\n"
    "as one batch, round after round. Prompts are random tokens, and what is generated does not\n"
    "matter. The ceiling is the bytes of a sequence under full, divided by those under the\n"
    "eviction.\n"
    "\n"
    "With --batch every eviction gets the same batch, which compares latency in place of\n"
    "throughput.",
    "  tamis bench throughput --model tests/data/needle.gguf --context 1024 --budget 20%\n"
    "  tamis bench throughput --model tests/data/needle.gguf --memory 64M --evict snapkv,h2o \\\n"
    "      --json throughput.json\n",
    options,
    sizeof(options) / sizeof(options[0]),
    run_command};

static int parse(throughput_flags *f, int argc, char *const *argv, uint64_t *memory) {
    const char *name = bench_throughput_command.name;
    int code = cli_parse(&bench_throughput_command, f, argc, argv);
    if (code >= 0) return code;
    int given = (f->memory != NULL) + (f->sequences != CLI_UNSET) + (f->batch != CLI_UNSET);
    if (f->model == NULL) {
        cli_fail(name, "--model: is missing (see %s --help)", name);
        return CLI_USAGE;
    }
    if (given > 1) {
        cli_fail(name, "--memory, --sequences, --batch: give one of them");
        return CLI_USAGE;
    }
    return f->memory == NULL || cli_size(name, "--memory", f->memory, memory) ? -1 : CLI_USAGE;
}

/* The model, its shape and a prompt for it; the arms' lengths must be within its context. */
static tamis_status prepare(throughput *t, const throughput_flags *f, tamis_error *error) {
    cli_random random = {1};
    tamis_status status = bench_open(f->device, &t->device, error);
    if (status == TAMIS_OK) status = cli_load(t->device, f->model, &t->model, error);
    if (status != TAMIS_OK) return status;
    const tamis_model_info *info = tamis_model_describe(t->model);
    tamis_model_cache_shape(t->model, &t->shape);
    for (uint32_t a = 0; a < t->n_arms; a++)
        if (longest(t, &t->arms[a]) > info->context)
            return cli_error(error, TAMIS_E_ARGUMENT,
                             "%s: --context %u with --tokens %u and --repeat %u makes %u tokens; "
                             "the model states %u",
                             bench_arm_name(&t->arms[a].eviction).text, t->context, t->tokens,
                             t->repeat, longest(t, &t->arms[a]), info->context);
    for (uint32_t i = 0; i < t->context; i++)
        t->prompt[i] = (int32_t)(cli_random_next(&random) % info->n_vocab);
    return TAMIS_OK;
}

static void release(throughput *t) {
    for (uint32_t a = 0; t->arms != NULL && a < t->n_arms; a++) {
        tamis_runner_destroy(&t->arms[a].runner);
        tamis_cache_destroy(&t->arms[a].cache);
        free(t->arms[a].sequences);
        free(t->arms[a].tokens);
        free(t->arms[a].tokens_per_s);
    }
    tamis_model_destroy(&t->model);
    tamis_context_destroy(&t->device);
    free(t->arms);
    free(t->prompt);
    free(t->read);
}

static int run(throughput *t, const throughput_flags *f, const tamis_eviction *evictions) {
    cli_output output = {0};
    tamis_error error = {0};
    if (f->json != NULL && !cli_output_open(&output, t->command, f->json)) return CLI_FAILED;
    t->arms = calloc(t->n_arms, sizeof(*t->arms));
    t->prompt = calloc(t->context, sizeof(*t->prompt));
    t->read = calloc(t->repeat + 1, sizeof(*t->read));
    tamis_status status =
        t->arms != NULL && t->prompt != NULL && t->read != NULL ? TAMIS_OK : cli_no_memory(&error);
    for (uint32_t a = 0; status == TAMIS_OK && a < t->n_arms; a++)
        t->arms[a].eviction = evictions[a];
    if (status == TAMIS_OK) status = prepare(t, f, &error);
    if (status == TAMIS_OK) status = throughput_measure(t, &error);
    int code = status == TAMIS_OK ? CLI_OK : cli_fail(t->command, "%s", error.text);
    if (code == CLI_OK && !throughput_print(t)) code = cli_fail(t->command, "out of host memory");
    if (code == CLI_OK && f->json != NULL && !throughput_write_json(t, &output)) code = CLI_FAILED;
    release(t);
    cli_output_discard(&output);
    return code;
}

static int run_command(int argc, char *const *argv) {
    throughput_flags f = {.budget = "20%",
                          .context = 2048,
                          .sequences = CLI_UNSET,
                          .batch = CLI_UNSET,
                          .tokens = 64,
                          .repeat = 3,
                          .dtype = TAMIS_F16,
                          .page_size = 1,
                          .evictions = {1, {CLI_EVICTION_ALL}},
                          .eviction = CLI_EVICTION_UNSET};
    tamis_eviction evictions[1 + CLI_EVICTIONS_MAX];
    throughput t = {.command = bench_throughput_command.name};
    int code = parse(&f, argc, argv, &t.memory_bytes);
    if (code >= 0) return code;
    t.context = f.context;
    t.tokens = f.tokens;
    t.repeat = f.repeat;
    t.probe = f.probe;
    t.batch = f.batch != CLI_UNSET ? f.batch : 0;
    t.sequences = f.sequences != CLI_UNSET ? f.sequences : 16;
    t.shape.dtype = (tamis_dtype)f.dtype;
    t.shape.page_size = cli_page_size(f.page_size);
    if (bench_budget(t.command, f.budget, t.context, &t.budget))
        t.n_arms = bench_list_evictions(t.command, &f.evictions, t.budget, &f.eviction, evictions);
    return t.n_arms > 0 ? run(&t, &f, evictions) : CLI_USAGE;
}
