/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a model on llama.cpp with and without attention by tamis (attention.h), in one process:
 *   1. the largest difference of logits, with full attention by tamis, over the tokens of an answer;
 *   2. the time of a decode step behind the prompt: llama.cpp's own with and without flash attention,
 *      full and quest by tamis, in turn;
 *   3. answers to prompts, by llama.cpp and with quest by tamis.
 * tools/llama_attention.sh builds and runs it.
 *
 * Exit status: 0; 1 something failed; 2 wrong usage. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "attention.h"

#include <ggml-cpu.h>
#include <llama.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_TOKENS (1u << 17)
#define MOST_TIMES  1000

typedef struct settings {
    const char *model, *device, *measure;
    char **prompts;
    int n_prompts;
    uint32_t budget, threads, samples, answer;
} settings;

typedef struct text {
    llama_token tokens[MOST_TOKENS];
    uint32_t n;
} text;

static void fail(const char *which, const char *what) {
    fprintf(stderr, "llama_attention: %s: %s\n", which, what);
    exit(1);
}

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *of, uint32_t n) {
    qsort(of, n, sizeof *of, compare);
    return n % 2 ? of[n / 2] : (of[n / 2 - 1] + of[n / 2]) / 2;
}

static bool see(struct ggml_tensor *node, bool asked, void *user);
struct first_layer;

/* ---- llama.cpp ------------------------------------------------------------------------------- */

static struct llama_model *model;
static struct ggml_threadpool *pool;

static void log_errors(enum ggml_log_level level, const char *line, void *user) {
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(line, stderr);
}

/* Numbers of tokens with blanks between. */
static void read_text(const char *path, text *to) {
    FILE *file = fopen(path, "r");
    int token;
    if (!file) fail(path, "cannot be read");
    for (to->n = 0; to->n < MOST_TOKENS && fscanf(file, "%d", &token) == 1; to->n++)
        to->tokens[to->n] = token;
    if (!feof(file) || to->n < 2) fail(path, "is no list of tokens");
    fclose(file);
}

/* seen: what the first layer's attention gives is put there; NULL: nowhere. */
static struct llama_context *new_context(const settings *of, uint32_t n, bool flash,
                                         struct first_layer *seen) {
    struct llama_context_params p = llama_context_default_params();
    p.n_ctx = n;
    p.n_seq_max = 1;
    p.n_threads = p.n_threads_batch = (int32_t)of->threads;
    p.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    p.cb_eval = seen ? see : NULL;
    p.cb_eval_user_data = seen;
    struct llama_context *context = llama_init_from_model(model, p);
    if (!context) fail(of->model, "has no context");
    llama_attach_threadpool(context, pool, pool);
    return context;
}

static void decode(struct llama_context *context, llama_token *tokens, uint32_t n) {
    for (uint32_t done = 0, most = llama_n_batch(context); done < n; done += most)
        if (llama_decode(context, llama_batch_get_one(
                                      tokens + done, (int32_t)(n - done < most ? n - done : most))))
            fail("llama_decode", "failed");
}

static int32_t n_words(void) {
    return llama_vocab_n_tokens(llama_model_get_vocab(model));
}

static llama_token best_of(struct llama_context *context) {
    const float *logits = llama_get_logits_ith(context, -1);
    llama_token best = 0;
    for (int32_t i = 1; i < n_words(); i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* K and V of a sequence, from one context to another. */
static void copy_sequence(struct llama_context *from, struct llama_context *to) {
    const size_t bytes = llama_state_seq_get_size(from, 0);
    uint8_t *state = malloc(bytes);
    if (!state || llama_state_seq_get_data(from, state, bytes, 0) != bytes ||
        llama_state_seq_set_data(to, state, bytes, 0) == 0)
        fail("llama.cpp", "did not copy a sequence");
    free(state);
    attention_refresh();
}

static void cut(struct llama_context *context, uint32_t n) {
    if (!llama_memory_seq_rm(llama_get_memory(context), 0, (llama_pos)n, -1))
        fail("llama.cpp", "did not cut a sequence");
}

/* ---- 1. Full attention ------------------------------------------------------------------------ */

/* What the first layer's attention gave in a graph of a context, beside the same in fp64 from its q, K and
 * V. */
typedef struct first_layer {
    bool wanted;
    double apart, size; /* the largest difference so far, and the largest number */
    int n;              /* numbers of a row */
} first_layer;

static void larger(double *most, double x) {
    if (!(x <= *most)) *most = x;
}

static double f16_at(const void *row, int64_t i) {
    return (double)ggml_fp16_to_fp32(((const ggml_fp16_t *)row)[i]);
}

/* A head of one row of FLASH_ATTN_EXT over the cells that its mask lets it see. */
static void attend_in_fp64(const struct ggml_tensor *op, int64_t head, double *out) {
    const struct ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *mask = op->src[3];
    const int64_t kv_head = head / (q->ne[2] / k->ne[2]);
    const float *query = (const float *)((const char *)q->data + head * (int64_t)q->nb[2]);
    double total = 0, most = -INFINITY;
    float scale;
    memcpy(&scale, op->op_params, sizeof scale);
    memset(out, 0, (size_t)v->ne[0] * sizeof *out);
    for (int pass = 0; pass < 2; pass++) /* the largest logit first */
        for (int64_t cell = 0; cell < k->ne[1]; cell++) {
            const char *key =
                (const char *)k->data + cell * (int64_t)k->nb[1] + kv_head * (int64_t)k->nb[2];
            const char *value =
                (const char *)v->data + cell * (int64_t)v->nb[1] + kv_head * (int64_t)v->nb[2];
            double logit = 0;
            if (f16_at(mask->data, cell) < 0) continue;
            for (int64_t d = 0; d < k->ne[0]; d++)
                logit += (double)query[d] * f16_at(key, d);
            logit *= (double)scale;
            if (pass == 0) {
                if (logit > most) most = logit;
                continue;
            }
            total += exp(logit - most);
            for (int64_t d = 0; d < v->ne[0]; d++)
                out[d] += exp(logit - most) * f16_at(value, d);
        }
    for (int64_t d = 0; d < v->ne[0]; d++)
        out[d] /= total;
}

static void compare_row(first_layer *to, const struct ggml_tensor *op) {
    double exact[1024];
    if (op->ne[0] > 1024) fail("llama.cpp", "has long heads");
    to->n = (int)ggml_nelements(op);
    for (int64_t head = 0; head < op->ne[1]; head++) {
        const float *got = (const float *)op->data + head * op->ne[0];
        attend_in_fp64(op, head, exact);
        for (int64_t d = 0; d < op->ne[0]; d++) {
            larger(&to->apart, fabs((double)got[d] - exact[d]));
            larger(&to->size, fabs(exact[d]));
        }
    }
}

/* Asked whether a node is to be seen, then called with it. */
static bool see(struct ggml_tensor *node, bool asked, void *user) {
    first_layer *to = user;
    if (!to->wanted || node->op != GGML_OP_FLASH_ATTN_EXT) return !asked;
    if (asked) return true;
    to->wanted = false;
    compare_row(to, node);
    return true;
}

/* The largest difference of two arrays; *size: the largest number of the first. */
static double apart(const float *a, const float *b, int64_t n, double *size) {
    double most = 0;
    for (int64_t i = 0; i < n; i++) {
        const double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= most)) most = d;
        if (fabs((double)a[i]) > *size) *size = fabs((double)a[i]);
    }
    return most;
}

/* llama.cpp with and without flash attention, and full by tamis, run the prompt's last token and the
 * greedy ones of the first. */
static void compare_full(const settings *of, text *prompt) {
    static first_layer layers[2];
    const uint32_t n = prompt->n + of->answer;
    llama_token token = prompt->tokens[prompt->n - 1];
    double logits = 0, theirs = 0, logit_size = 0;
    uint32_t agree = 0;
    attention_stats stats;
    struct llama_context *plain = new_context(of, n, true, &layers[0]);
    struct llama_context *other = new_context(of, n, false, NULL);
    attention_use(of->device, 0);
    struct llama_context *full = new_context(of, n, true, &layers[1]);
    decode(plain, prompt->tokens, prompt->n - 1);
    decode(other, prompt->tokens, prompt->n - 1);
    copy_sequence(plain, full);
    for (uint32_t t = 0; t < of->answer; t++) {
        layers[0].wanted = layers[1].wanted = true;
        decode(plain, &token, 1);
        decode(other, &token, 1);
        decode(full, &token, 1);
        const float *a = llama_get_logits_ith(plain, -1);
        larger(&logits, apart(a, llama_get_logits_ith(full, -1), n_words(), &logit_size));
        larger(&theirs, apart(a, llama_get_logits_ith(other, -1), n_words(), &logit_size));
        token = best_of(plain);
        agree += token == best_of(full);
    }
    attention_get_stats(&stats);
    printf("full by tamis beside llama.cpp, %u tokens behind %u:\n"
           "  attention of the first layer, %d numbers, beside fp64: tamis apart by %.2e at most, "
           "llama.cpp by %.2e; the largest is %.3f\n"
           "  logits: apart by %.3f at most, the largest is %.1f; llama.cpp's own with and without "
           "flash attention by %.3f\n"
           "  next tokens: %u of %u the same\n",
           of->answer, prompt->n - 1, layers[1].n, layers[1].apart, layers[0].apart, layers[1].size,
           logits, logit_size, theirs, agree, of->answer);
    printf("  K of the first layer: llama.cpp's at %p, read at %p; %llu rows by tamis on %s\n",
           stats.own, stats.keys, (unsigned long long)stats.rows, stats.device);
    if (stats.rows == 0 || stats.own != stats.keys) fail("tamis", "did not attend in place");
    if (!(layers[1].apart < 1e-5)) fail("tamis", "is not within its own rounding");
    if (!(logits < 3 * theirs)) fail("tamis", "is not within llama.cpp's rounding");
    attention_release();
    llama_free(full);
    llama_free(other);
    llama_free(plain);
}

/* ---- 2. Time --------------------------------------------------------------------------------- */

/* One step behind the prompt, which is then as before. */
static double step_ms(struct llama_context *context, const text *prompt) {
    llama_token token = prompt->tokens[prompt->n - 1];
    const double start = now_ms();
    decode(context, &token, 1);
    (void)best_of(context);
    const double ms = now_ms() - start;
    cut(context, prompt->n - 1);
    return ms;
}

static void measure(const settings *of, text *prompt) {
    static double ms[4][MOST_TIMES];
    const char *const names[] = {"llama.cpp, flash attention", "llama.cpp, without",
                                 "full by tamis", "quest by tamis"};
    attention_stats first, stats;
    struct llama_context *plain = new_context(of, prompt->n + 1, true, NULL);
    struct llama_context *other = new_context(of, prompt->n + 1, false, NULL);
    decode(plain, prompt->tokens, prompt->n - 1);
    decode(other, prompt->tokens, prompt->n - 1);
    for (int by = 2; by < 4; by++) {
        attention_use(of->device, by == 2 ? 0 : of->budget);
        struct llama_context *ours = new_context(of, prompt->n + 1, true, NULL);
        copy_sequence(plain, ours);
        (void)step_ms(ours, prompt); /* builds kernels and bounds */
        attention_get_stats(&first);
        for (uint32_t i = 0; i < of->samples; i++) {
            const double a = step_ms(plain, prompt), b = step_ms(other, prompt);
            if (by == 3) { /* those that alternate with quest */
                ms[0][i] = a;
                ms[1][i] = b;
            }
            ms[by][i] = step_ms(ours, prompt);
        }
        attention_get_stats(&stats);
        printf("%s: %.3f of full attention's K and V read, %.2f ms of a step in it\n", names[by],
               stats.full > first.full
                   ? (double)(stats.read - first.read) / (double)(stats.full - first.full)
                   : 0,
               (stats.us - first.us) / 1e3 / of->samples);
        attention_release();
        llama_free(ours);
    }
    llama_free(other);
    llama_free(plain);
    double best = INFINITY;
    for (int by = 0; by < 4; by++) {
        const double m = median(ms[by], of->samples);
        if (by < 2 && m < best) best = m;
        printf("%-28s %7.2f ms a step behind %u tokens (%.2f to %.2f)", names[by], m, prompt->n - 1,
               ms[by][0], ms[by][of->samples - 1]);
        printf(by < 2 ? "\n" : ", %.2f times as fast as llama.cpp\n", best / m);
    }
}

/* ---- 3. Answers ------------------------------------------------------------------------------- */

/* The first token follows from the prompt, which llama.cpp reads itself; the others from the answer. */
static void print_answer(const char *by, const char *path, struct llama_context *context,
                         llama_token token, uint32_t n) {
    const struct llama_vocab *vocab = llama_model_get_vocab(model);
    printf("answer\t%s\t%s\t", by, path);
    for (uint32_t t = 0; t < n; t++) {
        char piece[256];
        if (t > 0) {
            decode(context, &token, 1);
            token = best_of(context);
        }
        const int32_t bytes = llama_token_to_piece(vocab, token, piece, sizeof piece, 0, false);
        for (int32_t i = 0; i < bytes; i++)
            putchar(piece[i] == '\n' || piece[i] == '\t' ? ' ' : piece[i]);
    }
    putchar('\n');
    fflush(stdout);
}

static void answer(const settings *of, const char *path, text *prompt) {
    struct llama_context *plain = new_context(of, prompt->n + of->answer, true, NULL);
    decode(plain, prompt->tokens, prompt->n);
    const llama_token first = best_of(plain);
    attention_use(of->device, of->budget);
    struct llama_context *quest = new_context(of, prompt->n + of->answer, true, NULL);
    copy_sequence(plain, quest);
    print_answer("llama.cpp", path, plain, first, of->answer);
    print_answer("quest", path, quest, first, of->answer);
    attention_release();
    llama_free(quest);
    llama_free(plain);
}

/* ---- The command line ------------------------------------------------------------------------ */

static const char usage[] =
    "usage: llama_attention --model FILE [OPTIONS] PROMPT...\n"
    "\n"
    "A prompt is a file with numbers of tokens.\n"
    "\n"
    "options:\n"
    "  --model FILE     a GGUF file\n"
    "  --measure WHAT   full, time or answers (default all; full and time of the first prompt)\n"
    "  --device ID      of tamis (default opencl)\n"
    "  --budget N       tokens that quest reads, a multiple of 16 (default 1024)\n"
    "  --threads N      of llama.cpp (default 2)\n"
    "  --samples N      steps that are timed (default 15)\n"
    "  --answer N       tokens of an answer (default 16)\n";

static uint32_t number(const char *flag, const char *value, unsigned long most) {
    char *end;
    const unsigned long n = strtoul(value, &end, 10);
    if (*end == '\0' && end != value && n > 0 && n <= most) return (uint32_t)n;
    fprintf(stderr, "llama_attention: %s %s: must be a whole number from 1 to %lu\n", flag, value,
            most);
    exit(2);
}

static void read_arguments(settings *of, int argc, char **argv) {
    int i = 1;
    for (; i + 1 < argc && strncmp(argv[i], "--", 2) == 0; i += 2) {
        const char *flag = argv[i], *value = argv[i + 1];
        if (strcmp(flag, "--model") == 0)
            of->model = value;
        else if (strcmp(flag, "--measure") == 0)
            of->measure = value;
        else if (strcmp(flag, "--device") == 0)
            of->device = value;
        else if (strcmp(flag, "--budget") == 0)
            of->budget = number(flag, value, 1u << 20);
        else if (strcmp(flag, "--threads") == 0)
            of->threads = number(flag, value, 256);
        else if (strcmp(flag, "--samples") == 0)
            of->samples = number(flag, value, MOST_TIMES);
        else if (strcmp(flag, "--answer") == 0)
            of->answer = number(flag, value, 1000);
        else
            break;
    }
    of->prompts = argv + i;
    of->n_prompts = argc - i;
    const char *const words[] = {"all", "full", "time", "answers"};
    bool known = false;
    for (int w = 0; w < 4; w++)
        known |= strcmp(of->measure, words[w]) == 0;
    if (!of->model || of->n_prompts < 1 || !known || strncmp(of->prompts[0], "--", 2) == 0) {
        fputs(usage, stderr);
        exit(2);
    }
}

static bool measures(const settings *of, const char *what) {
    return strcmp(of->measure, "all") == 0 || strcmp(of->measure, what) == 0;
}

int main(int argc, char **argv) {
    settings of = {.measure = "all", .budget = 1024, .threads = 2, .samples = 15, .answer = 16};
    static text prompt;
    const char *message;
    read_arguments(&of, argc, argv);
    if (!attention_register(&message)) fail("tamis", message);
    llama_log_set(log_errors, NULL);
    llama_backend_init();
    struct ggml_threadpool_params threads = ggml_threadpool_params_default((int)of.threads);
    threads.poll = 0; /* threads that wait sleep, so that tamis has the cores while it attends */
    pool = ggml_threadpool_new(&threads);
    model = llama_model_load_from_file(of.model, llama_model_default_params());
    if (!model || !pool) fail(of.model, "is not loaded");
    if (measures(&of, "full") || measures(&of, "time")) {
        read_text(of.prompts[0], &prompt);
        if (measures(&of, "full")) compare_full(&of, &prompt);
        if (measures(&of, "time")) measure(&of, &prompt);
    }
    for (int i = 0; measures(&of, "answers") && i < of.n_prompts; i++) {
        read_text(of.prompts[i], &prompt);
        answer(&of, of.prompts[i], &prompt);
    }
    llama_model_free(model);
    return 0;
}
