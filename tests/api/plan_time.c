/* SPDX-License-Identifier: Apache-2.0 */
/* The time to make a plan: quest with one eviction, in the shape of a layer of Llama 3 8B, until
 * every kernel has run once. In processor time of all threads, so that neighbours do not count.
 * usage: test-api-plan_time DEVICE EVICTION MOST_SECONDS */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <tamis/tamis.h>

static double processor_seconds(void) {
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
           (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec) * 1e-6;
}

static tamis_eviction_kind kind_of(const char *name) {
    tamis_eviction eviction;
    tamis_error error = {0};
    if (tamis_eviction_parse(name, &eviction, &error) == TAMIS_OK) return eviction.kind;
    fprintf(stderr, "%s\n", error.text);
    exit(2);
}

static tamis_status make_plan(const char *device, tamis_eviction_kind kind, tamis_error *error) {
    tamis_context *context = NULL;
    tamis_cache *cache = NULL;
    tamis_plan *plan = NULL;
    const tamis_context_params where = {.device = device};
    const tamis_cache_params shape = {.n_layers = 1,
                                      .n_heads = 32,
                                      .n_kv_heads = 8,
                                      .head_dim = 128,
                                      .dtype = TAMIS_F16,
                                      .capacity_tokens = 8192,
                                      .planes = TAMIS_PLANE_POSITIONS | TAMIS_PLANE_SCORES};
    tamis_plan_params params = {.max_context = 8192, .max_rows = 512};
    tamis_selection_default(TAMIS_SELECT_QUEST, &params.selection);
    tamis_eviction_default(kind, &params.eviction);
    tamis_status status = tamis_context_create(&where, &context, error);
    if (status == TAMIS_OK) status = tamis_cache_create(context, &shape, &cache, error);
    if (status == TAMIS_OK) status = tamis_plan_create(cache, &params, &plan, error);
    if (status == TAMIS_OK) status = tamis_context_wait(context, error);
    tamis_plan_destroy(&plan);
    tamis_cache_destroy(&cache);
    tamis_context_destroy(&context);
    return status;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    tamis_error error = {0};
    const tamis_status status = make_plan(argv[1], kind_of(argv[2]), &error);
    const double took = processor_seconds(), most = atof(argv[3]);
    if (status == TAMIS_E_NO_DEVICE) {
        printf("%s: %s\n", argv[1], error.text);
        return 77;
    }
    if (status != TAMIS_OK) fprintf(stderr, "%s: %s\n", argv[1], error.text);
    printf("quest and %s on %s: %.1f s of at most %g\n", argv[2], argv[1], took, most);
    return status != TAMIS_OK || took > most;
}
