/* SPDX-License-Identifier: Apache-2.0 */
/* Selector question on a model's runner where records turn out to be damaged: in the pass in which
 * the question asks, and behind it. What it selects is held to the oracle in model.c. */
#include "tests/blend/blends.h"

#include <stdio.h>
#include <string.h>

static const rig_params plain = {.max_rows = BLEND_ROWS, .max_context = BLEND_CONTEXT};

/* On the CPU, CUDA reads a few tokens a second. */
static bool is_slow(void) {
    return strncmp(rig_device, "cuda", 4) == 0;
}

static int gets =
    -1; /* calls until the one that the store cannot answer; below 0: it answers all */

tamis_status __real_tamis_store_get(tamis_store *store, const tamis_chunk_id *id, tamis_chunk **out,
                                    tamis_error *error);
tamis_status __wrap_tamis_store_get(tamis_store *store, const tamis_chunk_id *id, tamis_chunk **out,
                                    tamis_error *error);
tamis_status __wrap_tamis_store_get(tamis_store *store, const tamis_chunk_id *id, tamis_chunk **out,
                                    tamis_error *error) {
    if (gets < 0 || gets-- > 0) return __real_tamis_store_get(store, id, out, error);
    *out = NULL;
    *error = (tamis_error){TAMIS_E_IO, "bent by the test"};
    return TAMIS_E_IO;
}

/* A reader to which the read that `left` counts down to is damaged. */
typedef struct bad_reader {
    int left;
} bad_reader;

static tamis_status read_badly(void *user, tamis_chunk *chunk, uint32_t layer, void *k, void *v,
                               tamis_error *error) {
    bad_reader *bad = user;
    if (bad->left-- != 0) return tamis_chunk_read(chunk, layer, k, v, error);
    snprintf(error->text, sizeof error->text, "bad");
    return error->status = TAMIS_E_DAMAGED;
}

/* Which stored part a read is of, in the order of reads: in the pass in which the question asks all
 * of a layer; then the exact one alone up to the check layer. Parts count among those looked up. */
static uint32_t part_of_read(int n) {
    static const uint32_t parts[] = {0, 1, 3, 4};
    const int first = 4 * BLEND_LAYERS + BLEND_CHECK + 1;
    if (n < 4 * BLEND_LAYERS) return parts[n % 4];
    return n < first ? parts[0] : parts[(n - first) % 4];
}

/* Whichever read is found damaged, in either pass: as if the part had been missed from the
 * beginning, of which the question is then asked. */
static void damage_has_the_question_asked_again(void **state) {
    (void)state;
    enum { READS = 4 * BLEND_LAYERS + BLEND_CHECK + 1 + 4 * (BLEND_LAYERS - BLEND_CHECK - 1) };
    const char *model = blend_models[2];
    float wanted[5][BLEND_VOCABULARY] = {{0}}, logits[BLEND_VOCABULARY];
    bool known[5] = {false};
    blends b;
    blends_open(&b, model, &plain, TAMIS_F32, false);
    for (int n = is_slow() ? 26 : 0; n < READS; n += is_slow() ? READS : 1) {
        tamis_blend_stats stats;
        bad_reader bad = {n};
        const uint32_t part = part_of_read(n);
        tamis_blend_params params = blends_params(&b, blends_case("question"));
        params.flags = TAMIS_BLEND_NO_THREAD;
        params.reader = read_badly;
        params.reader_user = &bad;
        for (int missed = !known[part]; missed >= 0; missed--) {
            tamis_blend *blend = blends_make(&b, &params);
            if (missed) bad.left = -1, gets = (int)part;
            const tamis_sequence sequence = blends_run(&b, blend);
            blends_logits(&b, missed ? wanted[part] : logits);
            tamis_blend_get_stats(blend, &stats);
            assert_int_equal(stats.parts_damaged, !missed);
            assert_int_equal(stats.restarts, !missed);
            assert_int_equal(stats.asked, 1 + (!missed && n >= 4 * BLEND_LAYERS));
            tamis_blend_destroy(&blend);
            RIG_OK(&b.r, tamis_cache_remove(b.r.cache, sequence, &b.r.error));
            known[part] = true;
            bad.left = n;
        }
        if (memcmp(logits, wanted[part], sizeof logits) != 0) fail_msg("read %d, part %u", n, part);
    }
    blends_close(&b);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(damage_has_the_question_asked_again)};
    if (!rig_arguments(argc, argv)) return 2;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
