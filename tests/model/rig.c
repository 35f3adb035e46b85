/* SPDX-License-Identifier: Apache-2.0 */
/* Sets up what model tests run on. */
#include "tests/model/rig.h"
#include "host/backend.h"
#include "lib/core/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *rig_device, *rig_data;

int rig_arguments(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: %s <device> <tests/data>\n", argv[0]);
        return 0;
    }
    rig_device = argv[1];
    rig_data = argv[2];
    return 1;
}

void rig_open(rig *r, const rig_params *params) {
    char path[1024];
    *r = (rig){0};
    if (params->file[0] == '/')
        snprintf(path, sizeof path, "%s", params->file);
    else
        snprintf(path, sizeof path, "%s/%s", rig_data, params->file);
    const tamis_context_params context = {.device = rig_device};
    RIG_OK(r, tamis_context_create(&context, &r->context, &r->error));
    if (params->base) r->context->dev->form = TMS_FORM_BASE;
    RIG_OK(r, tamis_model_load(r->context, path, NULL, &r->model, &r->error));
    uint32_t longest = tamis_model_describe(r->model)->context;
    tamis_cache_params cache = {.dtype = params->dtype,
                                .planes = tamis_eviction_planes(&params->eviction),
                                .capacity_tokens =
                                    params->capacity_tokens ? params->capacity_tokens : longest};
    tamis_model_cache_shape(r->model, &cache);
    RIG_OK(r, tamis_cache_create(r->context, &cache, &r->cache, &r->error));
    const tamis_plan_params plan = {.selection = params->selection,
                                    .eviction = params->eviction,
                                    .load_dtypes = params->load_dtypes,
                                    .flags = (params->masses ? TAMIS_PLAN_ROW_MASSES : 0) |
                                             (params->trees ? TAMIS_PLAN_TREES : 0) |
                                             (params->verified ? TAMIS_PLAN_VERIFY : 0),
                                    .max_sequences = params->max_sequences,
                                    .max_rows = params->max_rows,
                                    .max_selected_rows = params->max_selected_rows,
                                    .max_context =
                                        params->max_context ? params->max_context : longest};
    RIG_OK(r, tamis_runner_create(r->model, r->cache, &plan, &r->runner, &r->error));
}

void rig_close(rig *r) {
    tamis_runner_destroy(&r->runner);
    tamis_cache_destroy(&r->cache);
    tamis_model_destroy(&r->model);
    tamis_context_destroy(&r->context);
}

void rig_refused(const tamis_error *error, tamis_status status, tamis_status wanted,
                 const char *part, const char *call) {
    if (status != wanted || error->status != wanted || !strstr(error->text, part))
        fail_msg("%s: got %s \"%s\", wanted %s \"%s\"", call, tamis_status_name(status),
                 error->text, tamis_status_name(wanted), part);
}

tamis_sequence rig_add(rig *r) {
    tamis_sequence sequence = 0;
    RIG_OK(r, tamis_cache_add(r->cache, &sequence, &r->error));
    return sequence;
}

uint32_t rig_length(rig *r, tamis_sequence sequence) {
    uint32_t length = 0;
    assert_int_equal(tamis_cache_length(r->cache, sequence, &length, NULL, NULL), TAMIS_OK);
    return length;
}

void rig_text(rig *r, int32_t *tokens, size_t count) {
    char path[1024], *text = malloc(count);
    size_t got = 0;
    snprintf(path, sizeof path, "%s/text.txt", rig_data);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, count, file), count);
    fclose(file);
    RIG_OK(r, tamis_vocab_encode(tamis_model_vocab(r->model), text, count, 0, tokens, count, &got,
                                 &r->error));
    assert_int_equal(got, count);
    free(text);
}
