/* SPDX-License-Identifier: Apache-2.0 */
/* Blends by a model's runner against the oracle's (make_blends.py), on models of three kinds: the
 * rows of each layer, and the logits. What computes all rows is a prefill, bit for bit. Records
 * that are found to be damaged late, failing devices and misuse change no answer. */
#include "lib/core/core.h"
#include "tests/blend/blends.h"
#include "tests/faulty.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Bound on logits, which reach 12. The oracle is float64, from which five layers in f32 are some
 * 2e-6 away. */
#define BOUND 1e-4f

static const rig_params plain = {.max_rows = BLEND_ROWS, .max_context = BLEND_CONTEXT};

/* On the CPU, CUDA reads a few tokens a second. */
static bool is_slow(void) {
    return strncmp(rig_device, "cuda", 4) == 0;
}

static bool is_exact(uint32_t row) {
    for (size_t i = 0; i < BLEND_PARTS; i++)
        if (row - blend_parts[i].first < blend_parts[i].n) return blend_parts[i].exact;
    return false;
}

/* The rows of each layer are the oracle's, but for exact ones, which the oracle computes before the
 * check layer and the library never. */
static void check_rows(const char *model, const blend_case *c, const blends_answer *answer) {
    const bool everything = strcmp(c->selector, "all") == 0;
    const int32_t *wanted = answer->rows;
    for (uint32_t layer = 0; layer < BLEND_LAYERS; wanted += answer->counts[layer++]) {
        uint32_t n = 0;
        if (everything) {
            assert_int_equal(blends_last.counts[layer], BLEND_ROWS);
            continue;
        }
        for (int32_t i = 0; i < answer->counts[layer]; i++) {
            const uint32_t row = (uint32_t)wanted[i];
            if (is_exact(row)) continue;
            if (n >= blends_last.counts[layer] || blends_last.rows[layer][n] != row)
                fail_msg("%s, %s, layer %u: row %u is missing", model, c->name, layer, row);
            n++;
        }
        if (n != blends_last.counts[layer])
            fail_msg("%s, %s, layer %u: row %u is too many", model, c->name, layer,
                     blends_last.rows[layer][n]);
    }
}

static void check_logits(blends *b, const char *model, const blend_case *c,
                         const blends_answer *answer) {
    float logits[BLEND_VOCABULARY], most = 0;
    blends_logits(b, logits);
    for (size_t j = 0; j < BLEND_VOCABULARY; j++) {
        const float d = fabsf(logits[j] - answer->logits[j]);
        if (!(d <= BOUND))
            fail_msg("%s, %s: logit %zu is %g, not %g", model, c->name, j, (double)logits[j],
                     (double)answer->logits[j]);
        most = d > most ? d : most;
    }
    if (getenv("TEST_VERBOSE")) print_message("%s, %s: %g\n", model, c->name, (double)most);
}

static void check_stats(const tamis_blend *blend, const blend_case *c,
                        const blends_answer *answer) {
    tamis_blend_stats stats;
    tamis_blend_get_stats(blend, &stats);
    const bool everything = strcmp(c->selector, "all") == 0;
    assert_int_equal(stats.prompts, 1);
    assert_int_equal(stats.tokens_hit + stats.tokens_exact + stats.tokens_fresh, BLEND_ROWS);
    assert_int_equal(stats.tokens_hit, everything ? 0 : BLEND_HITS);
    assert_int_equal(stats.parts_found, everything ? 0 : 4);
    assert_int_equal(stats.parts_missed, everything ? 0 : 1);
    assert_int_equal(stats.parts_exact, everything ? 0 : 1);
    assert_int_equal(stats.restarts + stats.parts_damaged + stats.parts_failed, 0);
    if (!everything)
        assert_int_equal(stats.tokens_selected,
                         (uint32_t)answer->counts[BLEND_LAYERS - 1] - stats.tokens_fresh);
    assert_true((stats.bytes_read == 0) == everything);
    const bool asks = strcmp(c->selector, "question") == 0 || strcmp(c->selector, "asked") == 0;
    assert_int_equal(stats.asked, asks);
    assert_true((stats.ask_us > 0) == asks);
}

static void run_case(blends *b, const char *model, const blend_case *c, int no_thread) {
    tamis_blend_params params = blends_params(b, c);
    params.flags = no_thread ? TAMIS_BLEND_NO_THREAD : 0;
    tamis_blend *blend = blends_make(b, &params);
    const tamis_sequence sequence = blends_run(b, blend);
    blends_answer answer = blends_answer_of(model, c);
    check_rows(model, c, &answer);
    check_logits(b, model, c, &answer);
    check_stats(blend, c, &answer);
    blends_answer_free(&answer);
    assert_int_equal(rig_length(&b->r, sequence), BLEND_ROWS);
    tamis_blend_destroy(&blend);
    RIG_OK(&b->r, tamis_cache_remove(b->r.cache, sequence, &b->r.error));
}

static void blends_are_the_oracles(void **state) {
    (void)state;
    for (size_t m = 0; m < BLEND_MODELS; m++) {
        blends b;
        blends_open(&b, blend_models[m], &plain, TAMIS_F32, m == 1);
        for (size_t i = 0; i < BLEND_CASES; i++)
            run_case(&b, blend_models[m], &blend_cases[i], i % 2);
        blends_close(&b);
    }
}

/* ---- A reader of the caller ------------------------------------------------------------------ */

/* Takes a millisecond for each read; with `status` not OK, the read of a layer fails once. */
typedef struct slow_reader {
    uint32_t calls, layer;
    tamis_status status;
} slow_reader;

static tamis_status read_slowly(void *user, tamis_chunk *chunk, uint32_t layer, void *k, void *v,
                                tamis_error *error) {
    slow_reader *slow = user;
    const struct timespec time = {.tv_nsec = 1000000};
    nanosleep(&time, NULL);
    slow->calls++;
    const tamis_status status = slow->status;
    if (status == TAMIS_OK || layer != slow->layer)
        return tamis_chunk_read(chunk, layer, k, v, error);
    slow->status = TAMIS_OK;
    snprintf(error->text, sizeof error->text, "the line is cut");
    return error->status = status;
}

/* Times of layers are those of the reader, and sum up to the blend's. */
static void check_times(const tamis_blend *blend, uint32_t calls) {
    tamis_blend_stats all;
    double read = 0, wait = 0, load = 0, compute = 0;
    tamis_blend_get_stats(blend, &all);
    for (uint32_t layer = 0; layer < BLEND_LAYERS; layer++) {
        tamis_blend_layer_stats of;
        assert_int_equal(tamis_blend_get_layer_stats(blend, layer, &of, NULL), TAMIS_OK);
        assert_true(of.compute_us > 0 && of.load_us >= 0 && of.wait_us >= 0);
        assert_true((of.bytes_read > 0) == (of.read_us >= 1000));
        read += of.read_us;
        wait += of.wait_us;
        load += of.load_us;
        compute += of.compute_us;
    }
    assert_true(read >= 1000.0 * calls);
    assert_true(fabs(read - all.read_us) < 1 && fabs(wait - all.wait_us) < 1);
    assert_true(fabs(load - all.load_us) < 1 && fabs(compute - all.compute_us) < 1);
}

/* Costs are those of the layers behind the check layer. */
static void check_costs(const tamis_blend *blend) {
    tamis_blend_costs costs;
    tamis_blend_stats all;
    double read = 0, compute = 0, bytes = 0, rows = 0, share = 0;
    tamis_blend_get_stats(blend, &all);
    assert_int_equal(tamis_blend_get_costs(blend, &costs, NULL), TAMIS_OK);
    for (uint32_t layer = 2; layer < BLEND_LAYERS; layer++) {
        tamis_blend_layer_stats of;
        assert_int_equal(tamis_blend_get_layer_stats(blend, layer, &of, NULL), TAMIS_OK);
        read += of.read_us;
        compute += of.compute_us;
        bytes += (double)of.bytes_read;
        rows += of.rows_attended;
    }
    const double tokens = (double)(all.tokens_hit + all.tokens_exact) * (BLEND_LAYERS - 2);
    assert_true(fmod(bytes, tokens) == 0);
    assert_true(fabs(costs.load_us - read / tokens) < 1e-6 * costs.load_us);
    assert_true(fabs(costs.compute_us - compute / rows) < 1e-6 * costs.compute_us);
    assert_int_equal(costs.hits, all.tokens_hit);
    assert_int_equal(costs.exact, all.tokens_exact);
    assert_int_equal(costs.fresh, all.tokens_fresh);
    assert_int_equal(tamis_blend_share(&costs, &share, NULL), TAMIS_OK);
    assert_true(share >= 0.15 && share <= 1);
}

static void a_reader_of_the_caller_reads(void **state) {
    (void)state;
    static const tamis_status failures[] = {TAMIS_OK, TAMIS_E_IO, TAMIS_E_DAMAGED};
    const char *model = blend_models[0];
    const blend_case *c = blends_case("flat");
    blends b;
    blends_open(&b, model, &plain, TAMIS_F32, false);
    for (size_t i = 0; i < 3; i++) {
        slow_reader slow = {.status = failures[i], .layer = 3};
        tamis_blend_stats stats;
        tamis_blend_params params = blends_params(&b, c);
        params.reader = read_slowly;
        params.reader_user = &slow;
        params.flags |= TAMIS_BLEND_TIMING;
        tamis_blend *blend = blends_make(&b, &params);
        RIG_REFUSED(&b.r, TAMIS_E_STATE, "no prompt has ended",
                    tamis_blend_get_costs(blend, &(tamis_blend_costs){0}, &b.r.error));
        const tamis_sequence sequence = blends_run(&b, blend);
        tamis_blend_get_stats(blend, &stats);
        assert_int_equal(stats.restarts, i > 0);
        assert_int_equal(stats.parts_failed, i == 1);
        assert_int_equal(stats.parts_damaged, i == 2);
        if (i == 0) {
            blends_answer answer = blends_answer_of(model, c);
            check_logits(&b, model, c, &answer);
            blends_answer_free(&answer);
            check_times(blend, slow.calls);
            check_costs(blend);
        }
        RIG_OK(&b.r, tamis_cache_remove(b.r.cache, sequence, &b.r.error));
        tamis_blend_destroy(&blend);
    }
    blends_close(&b);
}

/* What is wrong with neither the chunk nor the line ends the prompt. */
static void a_reader_without_memory_fails(void **state) {
    (void)state;
    blends b;
    blends_open(&b, blend_models[0], &plain, TAMIS_F32, false);
    slow_reader slow = {.status = TAMIS_E_NO_MEMORY, .layer = 3};
    tamis_blend_params params = blends_params(&b, blends_case("flat"));
    params.reader = read_slowly;
    params.reader_user = &slow;
    tamis_blend *blend = blends_make(&b, &params);
    const tamis_sequence sequence = rig_add(&b.r);
    RIG_REFUSED(
        &b.r, TAMIS_E_NO_MEMORY, "the line is cut",
        tamis_runner_blend(b.r.runner, sequence, blend, b.parts, BLEND_PARTS, NULL, &b.r.error));
    assert_int_equal(rig_length(&b.r, sequence), 0);
    RIG_OK(&b.r,
           tamis_runner_blend(b.r.runner, sequence, blend, b.parts, BLEND_PARTS, NULL, &b.r.error));
    tamis_blend_destroy(&blend);
    blends_close(&b);
}

/* ---- Everything is computed ------------------------------------------------------------------ */

/* Both sequences hold the same bits. */
static void expect_same(blends *b, tamis_sequence x, tamis_sequence y) {
    static float k[2][BLEND_CONTEXT * 64], v[2][BLEND_CONTEXT * 64];
    const tamis_model_info *info = tamis_model_describe(b->r.model);
    const uint32_t n = rig_length(&b->r, x);
    const tamis_sequence of[] = {x, y};
    assert_int_equal(rig_length(&b->r, y), n);
    for (uint32_t lane = 0; lane < info->n_layers * info->n_kv_heads; lane++) {
        for (int i = 0; i < 2; i++)
            RIG_OK(&b->r, tamis_cache_read(b->r.cache, of[i], lane / info->n_kv_heads,
                                           lane % info->n_kv_heads, 0, n, k[i], v[i], &b->r.error));
        assert_memory_equal(k[0], k[1], n * 64 * sizeof(float));
        assert_memory_equal(v[0], v[1], n * 64 * sizeof(float));
    }
}

static void what_computes_all_is_a_prefill(void **state) {
    (void)state;
    float wanted[BLEND_VOCABULARY], logits[BLEND_VOCABULARY];
    for (size_t m = 0; m < BLEND_MODELS; m++) {
        blends b;
        blends_open(&b, blend_models[m], &plain, TAMIS_F32, false);
        const tamis_sequence whole = rig_add(&b.r);
        RIG_OK(&b.r,
               tamis_runner_prefill(b.r.runner, whole, blend_tokens, BLEND_ROWS, NULL, &b.r.error));
        blends_logits(&b, wanted);
        for (int i = 0; i < (is_slow() ? 1 : 5); i++) {
            tamis_blend_params params = blends_params(&b, blends_case("all"));
            const double ones[] = {1, 1};
            if (i > 0) params.selector = i == 1 ? TAMIS_BLEND_RANDOM : TAMIS_BLEND_HKVD;
            if (i == 4) params.selector = TAMIS_BLEND_QUESTION;
            if (i == 1 || i == 2 || i == 4) params.share = 1;
            if (i == 3) params.shares = ones, params.n_shares = 2;
            tamis_blend *blend = blends_make(&b, &params);
            const tamis_sequence sequence = blends_run(&b, blend);
            blends_logits(&b, logits);
            assert_memory_equal(logits, wanted, sizeof logits);
            expect_same(&b, whole, sequence);
            tamis_blend_destroy(&blend);
            RIG_OK(&b.r, tamis_cache_remove(b.r.cache, sequence, &b.r.error));
        }
        blends_close(&b);
    }
}

/* ---- Behind other tokens --------------------------------------------------------------------- */

/* A sequence with a few tokens, the last page of which is not full. */
static tamis_sequence begun(blends *b) {
    const tamis_sequence sequence = rig_add(&b->r);
    RIG_OK(&b->r,
           tamis_runner_prefill(b->r.runner, sequence, blend_tokens + 30, 21, NULL, &b->r.error));
    return sequence;
}

/* A blend behind tokens, on a fork of them: as on a sequence of its own, and the parent stays. */
static void play_fork(const char *name) {
    float wanted[BLEND_VOCABULARY], logits[BLEND_VOCABULARY];
    for (size_t m = 0; m < (is_slow() ? 1 : BLEND_MODELS); m++) {
        tamis_blend_stats stats;
        tamis_sequence fork = 0;
        blends b;
        blends_open(&b, blend_models[m], &plain, TAMIS_F32, false);
        tamis_blend_params params = blends_params(&b, blends_case(name));
        tamis_blend *blend = blends_make(&b, &params);
        const tamis_sequence parent = begun(&b), twin = begun(&b), own = begun(&b);
        RIG_OK(&b.r, tamis_cache_fork(b.r.cache, parent, &fork, &b.r.error));
        RIG_OK(&b.r,
               tamis_runner_blend(b.r.runner, own, blend, b.parts, BLEND_PARTS, NULL, &b.r.error));
        blends_logits(&b, wanted);
        RIG_OK(&b.r,
               tamis_runner_blend(b.r.runner, fork, blend, b.parts, BLEND_PARTS, NULL, &b.r.error));
        blends_logits(&b, logits);
        assert_memory_equal(logits, wanted, sizeof logits);
        expect_same(&b, own, fork);
        expect_same(&b, parent, twin);
        tamis_blend_get_stats(blend, &stats);
        assert_int_equal(stats.parts_exact, 0);
        assert_int_equal(stats.tokens_hit,
                         2 * (BLEND_HITS + 13)); /* 13: the chunk behind the sink */
        tamis_blend_destroy(&blend);
        blends_close(&b);
    }
}

static void forks_blend(void **state) {
    (void)state;
    play_fork("list");
    if (!is_slow()) play_fork("question");
}

/* ---- The gate -------------------------------------------------------------------------------- */

/* A bound that is passed leaves the blend as it is; one that is not has all hits computed. */
static void play_gate(const char *name) {
    float wanted[BLEND_VOCABULARY], logits[BLEND_VOCABULARY];
    for (size_t m = 0; m < (is_slow() ? 1 : BLEND_MODELS); m++) {
        tamis_blend_stats stats;
        blends b;
        blends_open(&b, blend_models[m], &plain, TAMIS_F32, m == 1);
        const blend_case *c = blends_case(name);
        tamis_blend_params params = blends_params(&b, c);
        for (int gate = 0; gate < 3; gate++) {
            static const double bounds[] = {0, 0.9, 0.001};
            params.bound = bounds[gate];
            tamis_blend *blend = blends_make(&b, &params);
            (void)blends_run(&b, blend);
            blends_logits(&b, gate ? logits : wanted);
            tamis_blend_get_stats(blend, &stats);
            assert_int_equal(stats.gated, gate == 2);
            assert_int_equal(stats.tokens_hit, gate == 2 ? 0 : BLEND_HITS);
            assert_true(gate == 0 ? stats.left == 0 : stats.left > 0.01 && stats.left < 0.8);
            if (gate == 1) assert_memory_equal(logits, wanted, sizeof logits);
            if (gate == 2) {
                blends_answer answer = blends_answer_of(blend_models[m], blends_case("all"));
                check_logits(&b, "gated", blends_case("all"), &answer);
                blends_answer_free(&answer);
            }
            tamis_blend_destroy(&blend);
        }
        blends_close(&b);
    }
}

static void the_gate_decides(void **state) {
    (void)state;
    play_gate("falling");
    if (!is_slow()) play_gate("question");
}

/* ---- Damage ---------------------------------------------------------------------------------- */

/* Changes a byte of a plane in the file of a part's chunk. */
static void damage(blends *b, size_t part, uint32_t layer, int values) {
    const tamis_record_params record = {.sink = blend_sink,
                                        .n_sink = BLEND_SINKS,
                                        .dtype = b->dtype,
                                        .cache_dtype = b->cache_dtype};
    char path[512], *at = path + snprintf(path, sizeof path, "%s/", b->folder);
    uint8_t key[16];
    tamis_chunk_id id;
    RIG_OK(&b->r, tamis_record_id(b->r.model, &record, b->parts[part].tokens,
                                  b->parts[part].n_tokens, &id, &b->r.error));
    RIG_OK(&b->r, tamis_chunk_key(&id, key, &b->r.error));
    for (size_t i = 0; i < sizeof key; i++)
        at += sprintf(at, "%02x", key[i]);
    strcpy(at, ".kv");
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    const long plane = (long)(tamis_chunk_plane_bytes(&id.shape, id.n_tokens) + 4095) / 4096 * 4096;
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    /* From the end: planes are padded there, too. */
    const long end = (ftell(file) + 4095) / 4096 * 4096;
    const long first = end - 2 * (long)id.shape.n_layers * plane;
    const long place = first + (2 * (long)layer + values) * plane + 5;
    assert_true(first >= 4096);
    assert_int_equal(fseek(file, place, SEEK_SET), 0);
    const int byte = fgetc(file);
    assert_int_equal(fseek(file, place, SEEK_SET), 0);
    assert_int_not_equal(fputc(byte ^ 0x41, file), EOF);
    assert_int_equal(fclose(file), 0);
}

/* The answer is that of a blend whose chunk was missed from the beginning: bit for bit, since the
 * same rows are computed beside each other. */
static void play_damage(const char *name, const char *of, size_t part, uint32_t layer, int values,
                        uint32_t restarts) {
    const char *model = blend_models[0];
    float wanted[BLEND_VOCABULARY], logits[BLEND_VOCABULARY];
    tamis_blend_stats stats;
    blends b;
    blends_open(&b, model, &plain, TAMIS_F32, true);
    tamis_blend_params params = blends_params(&b, blends_case(of));
    tamis_blend *blend = blends_make(&b, &params);
    damage(&b, part, layer, values);
    const tamis_sequence sequence = blends_run(&b, blend);
    blends_logits(&b, logits);
    tamis_blend_get_stats(blend, &stats);
    if (stats.parts_damaged != 1 || stats.restarts != restarts)
        fail_msg("%s: %u damaged, %u restarts", name, (unsigned)stats.parts_damaged,
                 (unsigned)stats.restarts);
    assert_int_equal(stats.prompts, 1);
    const tamis_sequence missed = blends_run(&b, blend); /* the store has removed it */
    blends_logits(&b, wanted);
    tamis_blend_get_stats(blend, &stats);
    assert_int_equal(stats.parts_damaged, 1);
    assert_int_equal(stats.restarts, restarts);
    assert_memory_equal(logits, wanted, sizeof logits);
    expect_same(&b, sequence, missed);
    tamis_blend_destroy(&blend);
    blends_close(&b);
}

static void late_damage_costs_time_alone(void **state) {
    (void)state;
    play_damage("while all rows are there", "falling", 5, BLEND_CHECK, 1, 0);
    play_damage("behind the check layer", "falling", 5, BLEND_CHECK + 1, 0, 1);
    if (is_slow()) return;
    play_damage("in the last layer", "flat", 5, BLEND_LAYERS - 1, 1, 1);
    play_damage("of an exact chunk", "list", 1, 0, 0, 1);
    play_damage("of full reuse", "reuse", 5, 3, 1, 1);
    play_damage("while the question asks", "question", 5, 3, 1, 1);
}

/* A chunk that stands in two places, and another one: each damage of a part begins anew. */
static void several_records_may_be_damaged(void **state) {
    (void)state;
    const char *model = blend_models[1];
    float wanted[BLEND_VOCABULARY], logits[BLEND_VOCABULARY];
    tamis_blend_stats stats;
    blends b;
    blends_open(&b, model, &plain, TAMIS_F32, true);
    tamis_blend_params params = blends_params(&b, blends_case("list"));
    tamis_blend *blend = blends_make(&b, &params);
    damage(&b, 2, 3, 0);
    damage(&b, 5, 4, 1);
    (void)blends_run(&b, blend);
    blends_logits(&b, logits);
    tamis_blend_get_stats(blend, &stats);
    assert_int_equal(stats.parts_damaged, 3);
    assert_int_equal(stats.restarts, 3);
    (void)blends_run(&b, blend);
    blends_logits(&b, wanted);
    assert_memory_equal(logits, wanted, sizeof logits);
    tamis_blend_destroy(&blend);
    blends_close(&b);
}

/* ---- Failures -------------------------------------------------------------------------------- */

/* Each call of the device fails once: the sequence is as before unless the step had ended, and the
 * blend goes on. */
static void play_faults(const char *name, int no_thread, int step) {
    const char *model = blend_models[1];
    float wanted[BLEND_VOCABULARY], logits[BLEND_VOCABULARY];
    tamis_status status = TAMIS_E_DEVICE;
    int n = 0, late = 0;
    blends b;
    blends_open(&b, model, &plain, TAMIS_F32, false);
    tamis_blend_params params = blends_params(&b, blends_case(name));
    params.flags = no_thread ? TAMIS_BLEND_NO_THREAD : 0;
    tamis_blend *blend = blends_make(&b, &params);
    (void)blends_run(&b, blend);
    blends_logits(&b, wanted);
    const tamis_sequence sequence = rig_add(&b.r);
    for (; status != TAMIS_OK; n += step) {
        faulty_begin(b.r.context->dev, n, FAULTY_BEFORE);
        status =
            tamis_runner_blend(b.r.runner, sequence, blend, b.parts, BLEND_PARTS, NULL, &b.r.error);
        faulty_pause(b.r.context->dev);
        if (status == TAMIS_OK) break;
        rig_refused(&b.r.error, status, FAULTY_STATUS, FAULTY_TEXT, "blend");
        RIG_REFUSED(&b.r, TAMIS_E_STATE, "no logits",
                    tamis_runner_logits(b.r.runner, 0, logits, &b.r.error));
        if (rig_length(&b.r, sequence) == 0) continue;
        assert_int_equal(rig_length(&b.r, sequence), BLEND_ROWS);
        RIG_OK(&b.r, tamis_cache_truncate(b.r.cache, sequence, 0, &b.r.error));
        late++;
    }
    assert_true(n > 80 && late <= 2);
    blends_logits(&b, logits);
    assert_memory_equal(logits, wanted, sizeof logits);
    tamis_blend_destroy(&blend);
    blends_close(&b);
}

static void a_failing_device_changes_nothing(void **state) {
    (void)state;
    play_faults("falling", 0, is_slow() ? 61 : 1);
    if (is_slow()) return;
    play_faults("falling", 1, 1);
    play_faults("question", 1, strcmp(rig_device, "reference") == 0 ? 1 : 7);
}

/* A device that fails while a prompt begins anew. */
static void a_failure_while_beginning_anew(void **state) {
    (void)state;
    const char *model = blend_models[0];
    blends b;
    for (int n = 0; n < (is_slow() ? 1 : 3); n++) {
        blends_open(&b, model, &plain, TAMIS_F32, true);
        tamis_blend_params params = blends_params(&b, blends_case("flat"));
        tamis_blend *blend = blends_make(&b, &params);
        const tamis_sequence sequence = rig_add(&b.r);
        damage(&b, 5, 3, 1);
        /* The tables of the first step, of its two narrowings and its loads come before. */
        faulty_begin_one(b.r.context->dev, FAULTY_load_rows, 4 + 4 + n);
        const tamis_status status =
            tamis_runner_blend(b.r.runner, sequence, blend, b.parts, BLEND_PARTS, NULL, &b.r.error);
        faulty_pause(b.r.context->dev);
        rig_refused(&b.r.error, status, FAULTY_STATUS, FAULTY_TEXT, "blend");
        assert_int_equal(rig_length(&b.r, sequence), 0);
        RIG_OK(&b.r, tamis_runner_blend(b.r.runner, sequence, blend, b.parts, BLEND_PARTS, NULL,
                                        &b.r.error));
        tamis_blend_destroy(&blend);
        blends_close(&b);
    }
}

/* What the store answers in the place of its own: of the calls that are counted, the one that is
 * chosen. */
static struct bent {
    int gets, reads; /* calls until the one that answers `status`; below 0: none does */
    tamis_status status;
} bent = {-1, -1, TAMIS_OK};

static tamis_status bend(int *left, tamis_error *error) {
    if (*left < 0 || (*left)-- > 0) return TAMIS_OK;
    if (error) *error = (tamis_error){bent.status, "bent by the test"};
    return bent.status;
}

tamis_status __real_tamis_store_get(tamis_store *store, const tamis_chunk_id *id, tamis_chunk **out,
                                    tamis_error *error);
tamis_status __wrap_tamis_store_get(tamis_store *store, const tamis_chunk_id *id, tamis_chunk **out,
                                    tamis_error *error);
tamis_status __wrap_tamis_store_get(tamis_store *store, const tamis_chunk_id *id, tamis_chunk **out,
                                    tamis_error *error) {
    const tamis_status status = bend(&bent.gets, error);
    if (status == TAMIS_OK) return __real_tamis_store_get(store, id, out, error);
    *out = NULL;
    return status;
}

tamis_status __real_tamis_chunk_read(tamis_chunk *chunk, uint32_t layer, void *k, void *v,
                                     tamis_error *error);
tamis_status __wrap_tamis_chunk_read(tamis_chunk *chunk, uint32_t layer, void *k, void *v,
                                     tamis_error *error);
tamis_status __wrap_tamis_chunk_read(tamis_chunk *chunk, uint32_t layer, void *k, void *v,
                                     tamis_error *error) {
    const tamis_status status = bend(&bent.reads, error);
    return status == TAMIS_OK ? __real_tamis_chunk_read(chunk, layer, k, v, error) : status;
}

/* A store that cannot read is a miss; any other error of it is one, and changes nothing. */
static void a_store_that_fails(void **state) {
    (void)state;
    static const struct bent bends[] = {{1, -1, TAMIS_E_IO},
                                        {-1, 1, TAMIS_E_IO},
                                        {-1, 9, TAMIS_E_IO},
                                        {2, -1, TAMIS_E_NO_MEMORY},
                                        {-1, 7, TAMIS_E_NO_MEMORY}};
    blends b;
    blends_open(&b, blend_models[2], &plain, TAMIS_F32, false);
    const tamis_blend_params params = blends_params(&b, blends_case("flat"));
    for (size_t i = 0; i < sizeof bends / sizeof *bends; i++) {
        tamis_blend *blend = blends_make(&b, &params);
        tamis_blend_stats stats;
        const tamis_sequence sequence = rig_add(&b.r);
        bent = bends[i];
        const tamis_status status =
            tamis_runner_blend(b.r.runner, sequence, blend, b.parts, BLEND_PARTS, NULL, &b.r.error);
        tamis_blend_get_stats(blend, &stats);
        if (bends[i].status == TAMIS_E_IO) {
            RIG_OK(&b.r, status);
            assert_int_equal(stats.parts_failed, 1);
            assert_int_equal(stats.parts_damaged, 0);
            assert_int_equal(stats.parts_missed, bends[i].gets >= 0 ? 2 : 1);
            assert_true(stats.tokens_hit < BLEND_HITS || stats.tokens_exact == 0);
        } else {
            rig_refused(&b.r.error, status, bends[i].status, "bent by the test", "blend");
            assert_int_equal(rig_length(&b.r, sequence), 0);
        }
        assert_true(bent.gets < 0 && bent.reads < 0);
        tamis_blend_destroy(&blend);
    }
    blends_close(&b);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static int requests_left = -1; /* below 0: none fails */

static bool refuse(void) {
    return requests_left >= 0 && requests_left-- == 0;
}

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_malloc(size_t size) {
    return refuse() ? NULL : __real_malloc(size);
}

void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size) {
    return refuse() ? NULL : __real_calloc(n, size);
}

/* Makes a blend and runs it, while one request for memory of this process fails. */
static tamis_status make_and_run(blends *b, const tamis_blend_params *params,
                                 tamis_sequence sequence, int request) {
    tamis_blend *blend = NULL;
    requests_left = request;
    tamis_status status =
        tamis_runner_blend_create(b->r.runner, b->store, params, &blend, &b->r.error);
    assert_true((status == TAMIS_OK) == (blend != NULL));
    if (status == TAMIS_OK)
        status = tamis_runner_blend(b->r.runner, sequence, blend, b->parts, BLEND_PARTS, NULL,
                                    &b->r.error);
    requests_left = -1;
    tamis_blend_destroy(&blend);
    return status;
}

static void play_memory(const char *name) {
    float wanted[BLEND_VOCABULARY], logits[BLEND_VOCABULARY];
    int n = 0;
    blends b;
    blends_open(&b, blend_models[0], &plain, TAMIS_F32, false);
    tamis_blend_params params = blends_params(&b, blends_case(name));
    params.flags = TAMIS_BLEND_NO_THREAD; /* the requests come in one order */
    const tamis_sequence sequence = rig_add(&b.r);
    RIG_OK(&b.r, make_and_run(&b, &params, sequence, -1));
    blends_logits(&b, wanted);
    for (tamis_status status = TAMIS_E_NO_MEMORY; status != TAMIS_OK; n++) {
        RIG_OK(&b.r, tamis_cache_truncate(b.r.cache, sequence, 0, &b.r.error));
        status = make_and_run(&b, &params, sequence, n);
        if (status != TAMIS_OK) {
            assert_int_equal(status, TAMIS_E_NO_MEMORY);
            assert_int_equal(b.r.error.status, status);
            assert_int_equal(rig_length(&b.r, sequence), 0);
        }
    }
    assert_true(n > 25);
    blends_logits(&b, logits);
    assert_memory_equal(logits, wanted, sizeof logits);
    blends_close(&b);
}

static void no_memory_changes_nothing(void **state) {
    (void)state;
    if (strcmp(rig_device, "reference") != 0) return; /* drivers ask for memory of their own */
    play_memory("falling");
    play_memory("question");
}

/* ---- Misuse ---------------------------------------------------------------------------------- */

static void misuse_is_refused(void **state) {
    (void)state;
    const char *model = blend_models[0];
    blends b;
    tamis_blend *blend = NULL;
    tamis_blend_part part = {.tokens = blend_tokens, .n_tokens = 4};
    blends_open(&b, model, &plain, TAMIS_F32, false);
    tamis_error *error = &b.r.error;
    tamis_runner *runner = b.r.runner;
    const tamis_blend_params good = blends_params(&b, blends_case("flat"));
    tamis_blend_params params = good;
    params.rotation.n_rot = 64;
    RIG_REFUSED(&b.r, TAMIS_E_ARGUMENT, "n_rot 64",
                tamis_runner_blend_create(runner, b.store, &params, &blend, error));
    RIG_REFUSED(&b.r, TAMIS_E_ARGUMENT, "params is NULL",
                tamis_runner_blend_create(runner, b.store, NULL, &blend, error));
    RIG_REFUSED(&b.r, TAMIS_E_ARGUMENT, "runner is NULL",
                tamis_runner_blend_create(NULL, b.store, &good, &blend, error));
    RIG_REFUSED(&b.r, TAMIS_E_ARGUMENT, "out is NULL",
                tamis_runner_blend_create(runner, b.store, &good, NULL, error));
    blend = blends_make(&b, &good);
    const tamis_sequence sequence = rig_add(&b.r);
    RIG_REFUSED(&b.r, TAMIS_E_ARGUMENT, "blend is NULL",
                tamis_runner_blend(runner, sequence, NULL, &part, 1, NULL, error));
    RIG_REFUSED(&b.r, TAMIS_E_ARGUMENT, "no sequence 999",
                tamis_runner_blend(runner, 999, blend, &part, 1, NULL, error));
    RIG_REFUSED(&b.r, TAMIS_E_ARGUMENT, "parts is NULL",
                tamis_runner_blend(runner, sequence, blend, NULL, 1, NULL, error));
    RIG_REFUSED(&b.r, TAMIS_E_ARGUMENT, "0 tokens",
                tamis_runner_blend(runner, sequence, blend, &part, 0, NULL, error));
    part.n_tokens = 92;
    int32_t many[92] = {1};
    part.tokens = many;
    RIG_REFUSED(&b.r, TAMIS_E_ARGUMENT, "92 tokens; max_rows is 91",
                tamis_runner_blend(runner, sequence, blend, &part, 1, NULL, error));
    many[2] = 48;
    RIG_REFUSED(&b.r, TAMIS_E_ARGUMENT, "token 48 at place 2",
                tamis_runner_blend(runner, sequence, blend, &part, 1, NULL, error));
    tamis_runner *other = NULL;
    const tamis_plan_params plan = {.max_context = 64};
    RIG_OK(&b.r, tamis_runner_create(b.r.model, b.r.cache, &plan, &other, error));
    RIG_REFUSED(&b.r, TAMIS_E_ARGUMENT, "another plan",
                tamis_runner_blend(other, sequence, blend, b.parts, BLEND_PARTS, NULL, error));
    RIG_REFUSED(&b.r, TAMIS_E_ARGUMENT, "load_dtypes 0",
                tamis_runner_blend_create(other, b.store, &good, &(tamis_blend *){NULL}, error));
    tamis_runner_destroy(&other);
    const tamis_plan_params scaled = {.max_context = 64, .attention.scale = 0.5f, .load_dtypes = 1};
    RIG_OK(&b.r, tamis_runner_create(b.r.model, b.r.cache, &scaled, &other, error));
    RIG_REFUSED(&b.r, TAMIS_E_UNSUPPORTED, "scale 0.5",
                tamis_runner_blend_create(other, b.store, &good, &(tamis_blend *){NULL}, error));
    tamis_runner_destroy(&other);
    assert_int_equal(rig_length(&b.r, sequence), 0);
    tamis_blend_destroy(&blend);
    blends_close(&b);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blends_are_the_oracles),
        cmocka_unit_test(a_reader_of_the_caller_reads),
        cmocka_unit_test(a_reader_without_memory_fails),
        cmocka_unit_test(what_computes_all_is_a_prefill),
        cmocka_unit_test(forks_blend),
        cmocka_unit_test(the_gate_decides),
        cmocka_unit_test(late_damage_costs_time_alone),
        cmocka_unit_test(several_records_may_be_damaged),
        cmocka_unit_test(a_failing_device_changes_nothing),
        cmocka_unit_test(a_failure_while_beginning_anew),
        cmocka_unit_test(a_store_that_fails),
        cmocka_unit_test(no_memory_changes_nothing),
        cmocka_unit_test(misuse_is_refused),
    };
    if (!rig_arguments(argc, argv)) return 2;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
