/* SPDX-License-Identifier: Apache-2.0 */
/* A model whose layers see differently, some of them with sinks, over a long text: under every
 * selection and with evictions between steps, each layer's newest row attends to what its layer lets it
 * see, and to nothing else. */
#include "tests/api/evicting.h"

#include <stdlib.h>

enum { LAYERS = 4, PIECE = 250, LONG = 2000, SHORT = 500, DECODED = 6 };
enum { SUNK = 1 | 2 | 8 }; /* the layers with sinks, a bit each */

static const tamis_layer layers[LAYERS] = {{.attention = {.sliding_window = 100}},
                                           {.attention = {.soft_cap = 3}},
                                           {.attention = {.chunk = 192}},
                                           {.attention = {.sliding_window = 21, .chunk = 64}}};

static void open_model(evict_world *e, tamis_selection_kind kind, const tamis_eviction *eviction,
                       uint32_t context) {
    tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {.max_rows = PIECE,
                              .max_context = context,
                              .eviction = *eviction,
                              .layers = layers};
    shape.n_layers = LAYERS;
    shape.capacity_tokens = 2 * context;
    shape.planes = TAMIS_PLANE_POSITIONS;
    tamis_selection_default(kind, &plan.selection);
    if (kind != TAMIS_SELECT_FULL) {
        plan.selection.budget = 48; /* six pages of eight: less than two of the windows have */
        plan.selection.sinks = 4;
        plan.selection.recent = 8;
    }
    evict_open(e, &shape, &plan);
    evict_sink(e, &plan, SUNK);
}

/* The newest row of `outs`, [n_layers][rows] rows, in every layer. */
static void check_newest(evict_world *e, tamis_sequence id, uint64_t token, const float *outs,
                         uint32_t rows) {
    const uint64_t floats = evict_out_floats(e, 1);
    held h = evict_read(e, id);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        evict_dense(e, &h, layer, token, outs + ((uint64_t)layer * rows + rows - 1) * floats, false);
    held_free(&h);
}

/* The prompt in pieces, each with its last row checked. */
static void prompt(evict_world *e, tamis_sequence id, uint32_t length) {
    float *outs = malloc(LAYERS * evict_out_floats(e, PIECE) * sizeof *outs);
    for (uint32_t first = 0; first < length; first += PIECE) {
        const uint32_t n = length - first < PIECE ? length - first : PIECE;
        const tamis_step step = {.sequences = &id, .rows = &n, .count = 1, .exact = 1};
        uint64_t tokens[PIECE];
        for (uint32_t i = 0; i < n; i++)
            tokens[i] = first + i;
        OK(evict_step(e, &step, tokens, outs));
        check_newest(e, id, first + n - 1, outs, n);
    }
    free(outs);
}

/* Pages of lists lie in what the row sees, and are as many as the budget where it sees more. */
static void check_list(evict_world *e, uint32_t layer, uint32_t head, const held *h) {
    const uint32_t lane = layer * e->w.shape.n_kv_heads + head, n = h->lengths[lane];
    const int32_t *positions = h->positions + h->first[lane], own = positions[n - 1];
    uint32_t pages[512], count = 0, slot = 0;
    while (test_hides(&layers[layer].attention, positions[slot], own))
        slot++;
    const uint32_t first = slot / e->w.shape.page_size;
    const uint32_t seen = (n + e->w.shape.page_size - 1) / e->w.shape.page_size - first;
    OK(tamis_plan_read_selected(e->w.plan, 0, head, pages, 512, &count, &test_error));
    assert_int_equal(count, seen < 6 ? seen : 6);
    for (uint32_t i = 0; i < count; i++)
        assert_in_range(pages[i], first + (i > 0 ? 1 : 0), first + seen - 1);
    assert_int_equal(pages[count - 1], first + seen - 1);
}

/* A decode step, of which the last layer to attend is checked, for lists are read of that one: another
 * one with each token. */
static void decode(evict_world *e, tamis_sequence id, uint64_t token, bool listed) {
    const tamis_step step = {.sequences = &id, .count = 1};
    const uint32_t checked = (uint32_t)(token % LAYERS);
    float *outs = malloc(evict_out_floats(e, 1) * sizeof *outs);
    OK(test_step_begin(&e->w, &step));
    for (uint32_t i = 1; i <= LAYERS; i++)
        evict_layer(e, (checked + i) % LAYERS, &token, 1, outs);
    OK(tamis_plan_step_end(e->w.plan, &test_error));
    held h = evict_read(e, id);
    evict_dense(e, &h, checked, token, outs, true);
    for (uint32_t head = 0; listed && head < e->w.shape.n_kv_heads; head++)
        check_list(e, checked, head, &h);
    held_free(&h);
    free(outs);
}

static void live(tamis_selection_kind kind, const tamis_eviction *eviction, uint32_t length) {
    evict_world e;
    tamis_sequence id;
    uint32_t at = length;
    open_model(&e, kind, eviction, length + 64);
    OK(tamis_cache_add(e.w.cache, &id, &test_error));
    prompt(&e, id, length);
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < DECODED; i++)
            decode(&e, id, at++, kind != TAMIS_SELECT_FULL);
        if (eviction->kind) OK(tamis_plan_evict(e.w.plan, id, NULL, &test_error));
    }
    evict_close(&e);
}

/* So many, or the fewer that TEST_TOKENS says where devices are slow. */
static uint32_t tokens_of(uint32_t wanted) {
    const char *most = getenv("TEST_TOKENS");
    const uint32_t n = most ? (uint32_t)strtoul(most, NULL, 10) : wanted;
    return n < wanted ? n : wanted;
}

static void every_selection_stays_in_what_is_seen(void **state) {
    (void)state;
    const tamis_eviction none = {.kind = TAMIS_EVICT_NONE};
    for (int kind = TAMIS_SELECT_FULL; kind <= TAMIS_SELECT_RANDOM; kind++)
        live((tamis_selection_kind)kind, &none, tokens_of(SHORT));
}

/* Lanes lose tokens in the middle, each its own, so that slots are no longer positions. */
static void evictions_between_steps_leave_windows(void **state) {
    (void)state;
    static const tamis_eviction_kind kinds[] = {TAMIS_EVICT_H2O, TAMIS_EVICT_ADAKV,
                                                TAMIS_EVICT_ANDPRO};
    for (uint32_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        tamis_eviction eviction = test_eviction(kinds[i], 120, 0);
        eviction.every = 0;
        live(i % 2 ? TAMIS_SELECT_FULL : TAMIS_SELECT_QUEST, &eviction, tokens_of(SHORT));
    }
}

static void a_long_text_is_read_right(void **state) {
    (void)state;
    const uint32_t length = tokens_of(LONG);
    tamis_eviction eviction = test_eviction(TAMIS_EVICT_SNAPKV, length / 3, 0);
    live(TAMIS_SELECT_QUEST, &eviction, length);
}

/* Reindexed streaming merges two states of a row. */
static void merged_states_have_a_sink_once(void **state) {
    (void)state;
    const tamis_plan_params plan = {
        .max_rows = PIECE,
        .max_context = 256,
        .eviction = test_eviction(TAMIS_EVICT_STREAMING, 128, TAMIS_EVICT_REINDEX)};
    tamis_cache_params shape = test_shape();
    evict_world e;
    tamis_sequence id;
    shape.n_layers = LAYERS;
    evict_open(&e, &shape, &plan);
    evict_sink(&e, &plan, SUNK);
    OK(tamis_cache_add(e.w.cache, &id, &test_error));
    prompt(&e, id, 60);
    for (uint32_t i = 0; i < DECODED; i++)
        decode(&e, id, 60 + i, false);
    evict_close(&e);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_selection_stays_in_what_is_seen),
        cmocka_unit_test(evictions_between_steps_leave_windows),
        cmocka_unit_test(a_long_text_is_read_right),
        cmocka_unit_test(merged_states_have_a_sink_once),
    };
    int skip = test_begin(argc, argv);
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
