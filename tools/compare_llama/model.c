/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a model on llama.cpp's CPU backend: times a prompt and the decode steps behind contexts, or
 * prints a greedy answer. tools/compare_llama.sh builds and runs it.
 *
 * A decode step is timed as `tamis bench model` times its own: from one token to the greedy next
 * one, behind as many tokens in every sample, since the token is taken out again, and after 256 MiB
 * of other memory were read, so that no step finds the weights in a cache that the last one left.
 * Contexts are made of copies of the prompt's keys and values, moved to later positions: what the
 * tokens are costs no time. The threads of a pool outlive the steps, as in llama.cpp's programs.
 *
 * Exit status: 0; 1 the model or memory is missing, or llama.cpp failed; 2 wrong usage. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include <ggml-cpu.h>
#include <llama.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_CONTEXTS 16
#define MOST_TOKENS   (1u << 20)
#define OTHER_BYTES   ((size_t)1 << 28) /* what `tamis bench model` reads to measure bandwidth */

typedef struct {
    const char *model, *prompt;
    bool flash, f32;
    uint32_t threads, samples, answer, contexts[MOST_CONTEXTS], n_contexts;
} settings;

typedef struct {
    struct llama_model *model;
    struct llama_context *context;
    llama_memory_t memory;
    llama_token *prompt;
    uint32_t n_prompt;
    uint64_t *others; /* memory that no step uses */
} run;

static void fail(int status, const char *what, const char *which) {
    fprintf(stderr, "compare_llama/model: %s%s%s\n", which, *which != '\0' ? ": " : "", what);
    exit(status);
}

static void *allocate(size_t count, size_t size) {
    void *memory = calloc(count, size);
    if (memory == NULL) fail(1, "out of memory", "");
    return memory;
}

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t count) {
    qsort(values, count, sizeof(*values), compare);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* ---- The model ------------------------------------------------------------------------------- */

static void log_errors(enum ggml_log_level level, const char *text, void *user) {
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

/* Numbers of tokens with blanks between. */
static void read_prompt(run *r, const char *path) {
    FILE *file = fopen(path, "r");
    int token;
    if (file == NULL) fail(1, "cannot be read", path);
    r->prompt = allocate(MOST_TOKENS, sizeof(*r->prompt));
    while (r->n_prompt < MOST_TOKENS && fscanf(file, "%d", &token) == 1)
        r->prompt[r->n_prompt++] = token;
    if (!feof(file) || r->n_prompt == 0) fail(1, "is no list of tokens", path);
    fclose(file);
}

static void open_model(run *r, const settings *of) {
    struct llama_context_params params = llama_context_default_params();
    struct ggml_threadpool_params threads = ggml_threadpool_params_default((int)of->threads);
    struct ggml_threadpool *pool = ggml_threadpool_new(&threads);
    llama_backend_init();
    r->model = llama_model_load_from_file(of->model, llama_model_default_params());
    if (r->model == NULL) fail(1, "is not loaded", of->model);
    params.n_ctx = r->n_prompt + of->answer;
    for (uint32_t i = 0; i < of->n_contexts; i++) /* a copy is whole before it is cut */
        if (params.n_ctx < of->contexts[i] + r->n_prompt)
            params.n_ctx = of->contexts[i] + r->n_prompt;
    params.n_seq_max = 2;
    params.kv_unified = true;
    params.swa_full = false; /* as llama.cpp's programs: layers with a window keep that alone */
    params.n_threads = params.n_threads_batch = (int32_t)of->threads;
    params.flash_attn_type =
        of->flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.type_k = params.type_v = of->f32 ? GGML_TYPE_F32 : GGML_TYPE_F16;
    r->context = llama_init_from_model(r->model, params);
    if (r->context == NULL || pool == NULL) fail(1, "has no context", of->model);
    llama_attach_threadpool(r->context, pool, pool);
    r->memory = llama_get_memory(r->context);
}

/* Appends tokens to sequence 0 and gives the greedy next one. */
static llama_token decode(run *r, llama_token *tokens, uint32_t count) {
    const uint32_t most = llama_n_batch(r->context);
    const int32_t words = llama_vocab_n_tokens(llama_model_get_vocab(r->model));
    const float *logits;
    llama_token best = 0;
    for (uint32_t done = 0; done < count; done += most) {
        const uint32_t some = count - done < most ? count - done : most;
        if (llama_decode(r->context, llama_batch_get_one(tokens + done, (int32_t)some)) != 0)
            fail(1, "llama.cpp did not run a step", "");
    }
    logits = llama_get_logits_ith(r->context, -1);
    for (int32_t i = 1; i < words; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* ---- The measurement ------------------------------------------------------------------------- */

/* Sequence 0 then has `context` tokens: copies of the state of n_prompt tokens, of which the first one
 * lacks its beginning. The last one is whole, for layers with a window hold the end of a state. */
static void fill(run *r, const uint8_t *state, size_t bytes, uint32_t context) {
    const uint32_t copies = (context + r->n_prompt - 1) / r->n_prompt;
    llama_memory_clear(r->memory, false);
    for (uint32_t i = copies; i > 0; i--) {
        const llama_pos at = (llama_pos)context - (llama_pos)(i * r->n_prompt);
        if (llama_state_seq_set_data(r->context, state, bytes, 1) == 0)
            fail(1, "llama.cpp did not copy the prompt", "");
        if (at < 0) llama_memory_seq_rm(r->memory, 1, 0, -at);
        llama_memory_seq_add(r->memory, 1, 0, -1, at);
        llama_memory_seq_cp(r->memory, 1, 0, -1, -1);
        llama_memory_seq_rm(r->memory, 1, -1, -1);
    }
    if (llama_memory_seq_pos_max(r->memory, 0) != (llama_pos)context - 1)
        fail(1, "llama.cpp did not fill the context", "");
}

static void read_others(const run *r) {
    static volatile uint64_t sum;
    uint64_t its = 0;
    for (size_t i = 0; i < OTHER_BYTES / sizeof(*r->others); i++)
        its += r->others[i];
    sum = its;
}

/* `behind` tokens are in the cache before each step. */
static double step_ms(run *r, llama_token token, uint32_t behind, uint32_t samples) {
    double *ms = allocate(samples, sizeof(*ms)), result;
    for (uint32_t i = 0; i <= samples; i++) {
        double start;
        read_others(r);
        start = now_ms();
        decode(r, &token, 1);
        if (i > 0) ms[i - 1] = now_ms() - start; /* the first one moves the keys */
        llama_memory_seq_rm(r->memory, 0, (llama_pos)behind, -1);
    }
    result = median(ms, samples);
    free(ms);
    return result;
}

static void measure(run *r, const settings *of) {
    uint8_t *state;
    size_t bytes;
    double start;
    llama_token next;
    r->others = allocate(OTHER_BYTES, 1);
    memset(r->others, 1, OTHER_BYTES); /* pages of its own */
    decode(r, r->prompt, 1);           /* brings the weights into memory; not counted */
    llama_memory_clear(r->memory, false);
    start = now_ms();
    next = decode(r, r->prompt, r->n_prompt);
    puts("what    tokens  ms");
    printf("prompt  %6u  %.3f\n", r->n_prompt, now_ms() - start);
    bytes = llama_state_seq_get_size(r->context, 0);
    state = allocate(bytes, 1);
    if (llama_state_seq_get_data(r->context, state, bytes, 0) != bytes)
        fail(1, "llama.cpp did not give the prompt's state", "");
    for (uint32_t i = 0; i < of->n_contexts; i++) {
        fill(r, state, bytes, of->contexts[i] - 1);
        printf("decode  %6u  %.3f\n", of->contexts[i],
               step_ms(r, next, of->contexts[i] - 1, of->samples));
    }
    free(state);
    free(r->others);
}

/* As tamis run prints it: control tokens by name, but those that would end the answer. */
static void answer(run *r, uint32_t count) {
    const struct llama_vocab *vocab = llama_model_get_vocab(r->model);
    llama_token next = decode(r, r->prompt, r->n_prompt);
    for (uint32_t i = 0; i < count; i++) {
        char text[256];
        int32_t bytes = llama_token_to_piece(vocab, next, text, sizeof(text), 0, true);
        if (bytes < 0) fail(1, "a token is too long", "");
        if (!llama_vocab_is_eog(vocab, next)) fwrite(text, 1, (size_t)bytes, stdout);
        if (i + 1 < count) next = decode(r, &next, 1);
    }
    putchar('\n');
}

/* ---- The command line ------------------------------------------------------------------------ */

static void usage(FILE *to) {
    fputs("usage: model --model FILE --prompt FILE [OPTIONS]\n"
          "\n"
          "Times the prompt on llama.cpp's CPU backend, then decode steps of contexts, and\n"
          "prints a line for each: of the prompt the time of all its tokens, of a context the\n"
          "median over samples. Or, with --answer, prints the text of greedy tokens.\n"
          "\n"
          "options:\n"
          "  --model FILE      a GGUF file\n"
          "  --prompt FILE     numbers of tokens\n"
          "  --contexts N[,N]  tokens that a decode step sees (default none)\n"
          "  --answer N        tokens of an answer, in place of measuring\n"
          "  --flash on|off    flash attention (default on)\n"
          "  --cache TYPE      of keys and values: f16, f32 (default f16)\n"
          "  --threads N       (default 2)\n"
          "  --samples N       (default 9)\n"
          "  --help            this text\n",
          to);
}

static void refuse(const char *flag, const char *value, const char *must) {
    fprintf(stderr, "compare_llama/model: %s%s%s: %s\n", flag, *value != '\0' ? " " : "", value,
            must);
    exit(2);
}

/* A number that ends with the text or before a comma. */
static uint32_t number(const char *flag, const char *value, uint32_t least, uint32_t most) {
    size_t digits = strspn(value, "0123456789");
    unsigned long result = digits > 0 && digits < 10 ? strtoul(value, NULL, 10) : 0;
    char must[64];
    if (strchr(",", value[digits]) != NULL && result >= least && result <= most)
        return (uint32_t)result;
    snprintf(must, sizeof(must), "must be a whole number from %u to %u", least, most);
    refuse(flag, value, must);
    return 0;
}

/* Whether the value is the second of two words, of which it must be one. */
static bool is_second(const char *flag, const char *value, const char *first, const char *second) {
    char must[64];
    if (strcmp(value, first) == 0) return false;
    if (strcmp(value, second) == 0) return true;
    snprintf(must, sizeof(must), "must be %s or %s", first, second);
    refuse(flag, value, must);
    return false;
}

static void read_flag(settings *to, const char *flag, const char *value) {
    if (strcmp(flag, "--model") == 0) {
        to->model = value;
    } else if (strcmp(flag, "--prompt") == 0) {
        to->prompt = value;
    } else if (strcmp(flag, "--contexts") == 0) {
        const char *at = value;
        for (to->n_contexts = 0; at != NULL; at = strchr(at, ',')) {
            if (to->n_contexts == MOST_CONTEXTS) refuse(flag, value, "are too many");
            if (*at == ',') at++;
            to->contexts[to->n_contexts++] = number(flag, at, 2, MOST_TOKENS);
        }
    } else if (strcmp(flag, "--answer") == 0) {
        to->answer = number(flag, value, 1, 1000);
    } else if (strcmp(flag, "--flash") == 0) {
        to->flash = is_second(flag, value, "off", "on");
    } else if (strcmp(flag, "--cache") == 0) {
        to->f32 = is_second(flag, value, "f16", "f32");
    } else if (strcmp(flag, "--threads") == 0) {
        to->threads = number(flag, value, 1, GGML_MAX_N_THREADS);
    } else if (strcmp(flag, "--samples") == 0) {
        to->samples = number(flag, value, 1, 10000);
    } else {
        refuse(flag, "", "no such option (see --help)");
    }
}

int main(int argc, char **argv) {
    settings of = {.flash = true, .threads = 2, .samples = 9};
    run r = {0};
    for (int i = 1; i < argc; i += 2) {
        if (strcmp(argv[i], "--help") == 0) {
            usage(stdout);
            return 0;
        }
        if (i + 1 == argc) refuse(argv[i], "", "takes a value (see --help)");
        read_flag(&of, argv[i], argv[i + 1]);
    }
    if (of.model == NULL || of.prompt == NULL) fail(2, "takes --model and --prompt", "");
    llama_log_set(log_errors, NULL);
    read_prompt(&r, of.prompt);
    open_model(&r, &of);
    if (of.answer > 0)
        answer(&r, of.answer);
    else
        measure(&r, &of);
    llama_free(r.context);
    llama_model_free(r.model);
    return 0;
}
