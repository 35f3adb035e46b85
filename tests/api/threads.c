/* SPDX-License-Identifier: Apache-2.0 */
/* Several threads at once: the list of devices, and contexts of each thread's own with all that is
 * made from them. Each round is a process of its own, for drivers begin with the first question.
 * Usage: test-api-threads [DEVICE [ROUNDS]] */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <tamis/tamis.h>
#include <unistd.h>

#define THREADS 4

static const char *device = "reference";
static pthread_barrier_t together;

typedef struct answer {
    tamis_status status;
    tamis_error error;
    size_t count;
    tamis_device_info infos[16];
    float out[2 * 64];
} answer;

/* One token through a cache and a plan. */
static tamis_status run_step(tamis_context *context, answer *a) {
    const tamis_cache_params shape = {
        .n_layers = 1, .n_heads = 2, .n_kv_heads = 1, .head_dim = 64, .capacity_tokens = 64};
    const tamis_plan_params params = {.max_context = 64, .max_rows = 1};
    const float values[4 * 64] = {1, 2, 3, 4, 5, 6, 7, 8, [3 * 64] = 7};
    tamis_cache *cache = NULL;
    tamis_plan *plan = NULL;
    tamis_buffer *rows = NULL;
    tamis_sequence id = 0;
    tamis_status status = tamis_cache_create(context, &shape, &cache, &a->error);
    if (status == TAMIS_OK) status = tamis_plan_create(cache, &params, &plan, &a->error);
    if (status == TAMIS_OK) status = tamis_cache_add(cache, &id, &a->error);
    if (status == TAMIS_OK)
        status = tamis_buffer_create(context, 6 * 64 * sizeof(float), &rows, &a->error);
    const tamis_rows q = {.buffer = rows}, k = {.buffer = rows, .offset = 512};
    const tamis_rows v = {.buffer = rows, .offset = 768}, out = {.buffer = rows, .offset = 1024};
    const tamis_step step = {.sequences = &id, .count = 1};
    if (status == TAMIS_OK) status = tamis_buffer_write(rows, 0, values, sizeof values, NULL);
    if (status == TAMIS_OK) status = tamis_plan_step_begin(plan, &step, &a->error);
    if (status == TAMIS_OK) status = tamis_plan_write(plan, 0, &k, &v, &a->error);
    if (status == TAMIS_OK) status = tamis_plan_attend(plan, 0, &q, &out, &a->error);
    if (status == TAMIS_OK) status = tamis_plan_step_end(plan, &a->error);
    if (status == TAMIS_OK) status = tamis_buffer_read(rows, 1024, a->out, sizeof a->out, NULL);
    tamis_buffer_destroy(&rows);
    tamis_plan_destroy(&plan);
    tamis_cache_destroy(&cache);
    return status;
}

static void *work(void *to) {
    answer *a = to;
    const tamis_context_params params = {.device = device};
    tamis_context *context = NULL;
    pthread_barrier_wait(&together);
    a->status = tamis_device_list(a->infos, 16, &a->count, NULL);
    if (a->status == TAMIS_OK) a->status = tamis_context_create(&params, &context, &a->error);
    if (a->status == TAMIS_OK) a->status = run_step(context, a);
    tamis_context_destroy(&context);
    return NULL;
}

/* 0: every thread had the same answers. */
static int run_round(void) {
    static answer answers[THREADS];
    pthread_t threads[THREADS];
    int code = pthread_barrier_init(&together, NULL, THREADS);
    for (int i = 0; i < THREADS && code == 0; i++)
        code = pthread_create(&threads[i], NULL, work, &answers[i]);
    for (int i = 0; i < THREADS && code == 0; i++)
        code = pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS && code == 0; i++) {
        const answer *a = &answers[i], *first = &answers[0];
        if (a->status == TAMIS_E_NO_DEVICE) code = 77;
        if (a->status != TAMIS_OK)
            printf("thread %d: %s: %s\n", i, tamis_status_name(a->status), a->error.text);
        if (code == 0 && (a->status != TAMIS_OK || a->count != first->count ||
                          memcmp(a->infos, first->infos, sizeof a->infos) != 0 ||
                          memcmp(a->out, first->out, sizeof a->out) != 0))
            code = 1;
    }
    return code;
}

/* ---- One context ------------------------------------------------------------------------------ */

static tamis_context *shared;

/* Steps on the shared context: each runs as it does alone, or a call of it is E_STATE. */
static void *meet(void *to) {
    answer *a = to;
    pthread_barrier_wait(&together);
    for (int i = 0; i < 50; i++) {
        const tamis_status status = run_step(shared, a);
        a->count += status == TAMIS_OK;
        if (status != TAMIS_OK && status != TAMIS_E_STATE) a->status = status;
        if (status == TAMIS_OK && a->out[0] != 7) a->status = TAMIS_E_DEVICE;
    }
    return NULL;
}

/* Threads that break the rule lose calls and nothing else. Nonzero: one got something else. */
static int meet_on_one_context(void) {
    static answer answers[THREADS];
    const tamis_context_params params = {.device = device};
    pthread_t threads[THREADS];
    tamis_error error = {0};
    int failed = 0;
    if (tamis_context_create(&params, &shared, &error) != TAMIS_OK) return 1;
    pthread_barrier_init(&together, NULL, THREADS);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, meet, &answers[i]) != 0) return 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++)
        if (answers[i].status != TAMIS_OK) failed = 1;
    if (run_step(shared, &answers[0]) != TAMIS_OK || answers[0].out[0] != 7) failed = 1;
    if (failed) printf("threads on one context: %s\n", answers[0].error.text);
    tamis_context_destroy(&shared);
    pthread_barrier_destroy(&together);
    return failed;
}

int main(int argc, char **argv) {
    if (argc > 1) device = argv[1];
    const int rounds = argc > 2 ? atoi(argv[2]) : 10;
    for (int round = 0; round < rounds; round++) {
        int status = 0;
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) exit(run_round());
        if (child < 0 || waitpid(child, &status, 0) != child) return 2;
        if (WIFSIGNALED(status)) printf("round %d: signal %d\n", round, WTERMSIG(status));
        if (!WIFEXITED(status)) return 1;
        if (WEXITSTATUS(status) != 0) return WEXITSTATUS(status);
    }
    if (strcmp(device, "reference") == 0 && meet_on_one_context()) return 1;
    printf("%d rounds of %d threads on %s\n", rounds, THREADS, device);
    return 0;
}
