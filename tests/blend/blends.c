/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's prompt on a runner, and a spy on tms_blend_select, which the linker wraps. */
#include "tests/blend/blends.h"
#include "lib/blend/blend.h"
#include "tests/model/vectors.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

blends_seen blends_last;

tamis_status __real_tms_blend_select(tamis_blend *blend, uint32_t layer, tms_blend_rows *out,
                                     tamis_error *error);
tamis_status __wrap_tms_blend_select(tamis_blend *blend, uint32_t layer, tms_blend_rows *out,
                                     tamis_error *error);

tamis_status __wrap_tms_blend_select(tamis_blend *blend, uint32_t layer, tms_blend_rows *out,
                                     tamis_error *error) {
    const tamis_status status = __real_tms_blend_select(blend, layer, out, error);
    if (status != TAMIS_OK) return status;
    assert_true(layer < BLEND_LAYERS && out->n <= BLEND_ROWS);
    blends_last.counts[layer] = out->n;
    memcpy(blends_last.rows[layer], out->rows, out->n * sizeof *out->rows);
    return status;
}

static void open_store(blends *b, bool on_disk) {
    const char *parent = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    tamis_store_params params = {.memory_bytes = on_disk ? 0 : 64 << 20};
    if (on_disk) {
        snprintf(b->folder, sizeof b->folder, "%s/tamis-blend-XXXXXX", parent);
        assert_non_null(mkdtemp(b->folder));
        params.folder = b->folder;
    }
    RIG_OK(&b->r, tamis_store_create(&params, &b->store, &b->r.error));
}

static void record_chunks(blends *b) {
    const tamis_record_params params = {.sink = blend_sink,
                                        .n_sink = BLEND_SINKS,
                                        .dtype = b->dtype,
                                        .cache_dtype = b->cache_dtype};
    for (size_t i = 0; i < BLEND_PARTS; i++) {
        const blend_part *part = &blend_parts[i];
        b->parts[i] = (tamis_blend_part){.tokens = blend_tokens + part->first,
                                         .n_tokens = part->n,
                                         .stored = part->kind != BLEND_FRESH};
        if (part->kind == BLEND_STORED)
            RIG_OK(&b->r, tamis_runner_record(b->r.runner, b->store, &params,
                                              blend_tokens + part->first, part->n, &b->r.error));
    }
}

void blends_open(blends *b, const char *name, const rig_params *params, tamis_dtype dtype,
                 bool on_disk) {
    char file[64];
    rig_params own = *params;
    *b = (blends){.dtype = dtype, .cache_dtype = params->dtype};
    snprintf(file, sizeof file, "blends/%s.gguf", name);
    own.file = file;
    own.load_dtypes = 1u << dtype;
    own.masses = 1;
    if (own.capacity_tokens == 0) own.capacity_tokens = 4 * BLEND_CONTEXT;
    rig_open(&b->r, &own);
    open_store(b, on_disk);
    record_chunks(b);
}

static void remove_folder(const char *folder) {
    char path[768];
    DIR *list = opendir(folder);
    assert_non_null(list);
    for (const struct dirent *entry; (entry = readdir(list));) {
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        unlink(path);
    }
    closedir(list);
    assert_int_equal(rmdir(folder), 0);
}

void blends_close(blends *b) {
    tamis_store_destroy(&b->store);
    if (b->folder[0]) remove_folder(b->folder);
    rig_close(&b->r);
}

const blend_case *blends_case(const char *name) {
    for (size_t i = 0; i < BLEND_CASES; i++)
        if (strcmp(blend_cases[i].name, name) == 0) return &blend_cases[i];
    fail_msg("no case %s", name);
    return NULL;
}

blends_answer blends_answer_of(const char *model, const blend_case *c) {
    char file[64], counts[32], rows[32], logits[32];
    size_t n_layers, n_rows, n = 0;
    snprintf(file, sizeof file, "blends/%s", model);
    snprintf(counts, sizeof counts, "%s.counts", c->name);
    snprintf(rows, sizeof rows, "%s.rows", c->name);
    snprintf(logits, sizeof logits, "%s.logits", c->name);
    const blends_answer out = {.counts = vectors_integers(file, counts, &n_layers),
                               .rows = vectors_integers(file, rows, &n_rows),
                               .logits = vectors_floats(file, logits, BLEND_VOCABULARY)};
    assert_int_equal(n_layers, BLEND_LAYERS);
    for (size_t layer = 0; layer < BLEND_LAYERS; layer++)
        n += (size_t)out.counts[layer];
    assert_int_equal(n_rows, n);
    return out;
}

void blends_answer_free(blends_answer *answer) {
    free(answer->counts);
    free(answer->rows);
    free(answer->logits);
    *answer = (blends_answer){0};
}

tamis_blend_params blends_params(const blends *b, const blend_case *c) {
    tamis_blend_params params = {
        .dtype = b->dtype, .sink = blend_sink, .n_sink = BLEND_SINKS, .first = c->first};
    tamis_error error;
    if (strcmp(c->selector, "reuse") == 0) {
        params.selector = TAMIS_BLEND_NONE;
        params.check_layer = TAMIS_BLEND_NO_CHECK;
    } else if (strcmp(c->selector, "asked") == 0) {
        params.selector = TAMIS_BLEND_QUESTION;
        params.check_layer = TAMIS_BLEND_NO_CHECK;
    } else if (tamis_blend_selector_parse(c->selector, &params.selector, &error) != TAMIS_OK)
        fail_msg("%s", error.text);
    params.rows = c->listed;
    params.n_rows = c->n_listed;
    params.shares = c->n_shares ? c->shares : NULL;
    params.n_shares = c->n_shares;
    assert_int_equal(tamis_model_fingerprint(b->r.model, params.fingerprint, NULL), TAMIS_OK);
    return params;
}

tamis_blend *blends_make(blends *b, const tamis_blend_params *params) {
    tamis_blend *blend = NULL;
    RIG_OK(&b->r, tamis_runner_blend_create(b->r.runner, b->store, params, &blend, &b->r.error));
    return blend;
}

tamis_sequence blends_run(blends *b, tamis_blend *blend) {
    const tamis_sequence sequence = rig_add(&b->r);
    RIG_OK(&b->r, tamis_runner_blend(b->r.runner, sequence, blend, b->parts, BLEND_PARTS, NULL,
                                     &b->r.error));
    return sequence;
}

void blends_logits(blends *b, float *logits) {
    RIG_OK(&b->r, tamis_runner_logits(b->r.runner, 0, logits, &b->r.error));
}
