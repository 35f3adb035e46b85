/* SPDX-License-Identifier: Apache-2.0 */
/* Steps that are narrowed: the rows that stay see what they saw, the others hold their K and V, and
 * evictions afterwards are those of a step with all rows. */
#include "tests/api/evicting.h"
#include "tests/faulty.h"
#include "tests/policies/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, HEADS = 4, KV_HEADS = 2, DIM = 64, PAGE = 8, MOST = 160, WIDTH = HEADS * DIM };

/* A sequence: its tokens in their order, of which the last `rows` are the step's. */
typedef struct text {
    tamis_sequence id;
    uint64_t tokens[MOST];
    uint32_t length, rows;
} text;

/* A world with two texts that share a partial page. */
typedef struct party {
    evict_world e;
    text texts[2];
    uint32_t sliding_window;
} party;

static void append(text *t, uint64_t first, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        t->tokens[t->length++] = first + i;
    t->rows = n;
}

static void open_party(party *p, tamis_dtype dtype, uint32_t sliding_window,
                       const tamis_eviction *eviction) {
    tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {.max_sequences = 2,
                              .max_rows = MOST,
                              .max_context = MOST,
                              .attention.sliding_window = sliding_window};
    *p = (party){.sliding_window = sliding_window};
    if (eviction) plan.eviction = *eviction;
    shape.dtype = dtype;
    shape.capacity_tokens = 1024;
    evict_open(&p->e, &shape, &plan);
    OK(tamis_cache_add(p->e.w.cache, &p->texts[0].id, &test_error));
    append(&p->texts[0], 500, 11);
    OK(test_append(&p->e.w, p->texts[0].id, p->texts[0].tokens, 11));
    p->texts[1] = p->texts[0];
    OK(tamis_cache_fork(p->e.w.cache, p->texts[0].id, &p->texts[1].id, &test_error));
}

/* Begins an exact step that brings so many rows of each text. */
static void begin(party *p, uint32_t first, uint32_t second) {
    const tamis_sequence ids[] = {p->texts[0].id, p->texts[1].id};
    const uint32_t rows[] = {first, second};
    const tamis_step step = {.sequences = ids, .rows = rows, .count = second ? 2 : 1, .exact = 1};
    append(&p->texts[0], 1000, first);
    if (second) append(&p->texts[1], 2000, second);
    OK(test_step_begin(&p->e.w, &step));
}

/* The text of a row of the step as begun; *at: its position. */
static text *text_of(party *p, uint32_t row, uint32_t *at) {
    const bool second = row >= p->texts[0].rows;
    text *t = &p->texts[second];
    *at = t->length - t->rows + row - (second ? p->texts[0].rows : 0);
    return t;
}

static uint64_t token_of(party *p, uint32_t row) {
    uint32_t at;
    const text *t = text_of(p, row, &at);
    return t->tokens[at];
}

static void write_all(party *p, uint32_t layer, uint32_t n) {
    uint64_t tokens[MOST];
    for (uint32_t r = 0; r < n; r++)
        tokens[r] = token_of(p, r);
    test_write(&p->e.w, layer, tokens, n);
}

/* Attends the rows, which are all that the step still has. */
static void attend(party *p, uint32_t layer, const uint32_t *rows, uint32_t n, float *out) {
    const tamis_rows q = {.buffer = p->e.w.q}, to = {.buffer = p->e.w.out};
    uint64_t tokens[MOST];
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = token_of(p, rows[i]);
    evict_fill_queries(&p->e, layer, tokens, n);
    OK(tamis_plan_attend(p->e.w.plan, layer, &q, &to, &test_error));
    OK(tamis_buffer_read(p->e.w.out, 0, out, (uint64_t)n * WIDTH * sizeof *out, NULL));
}

/* A head of one row against plain attention in fp64 over the tokens up to its own. */
static void expect_head(party *p, uint32_t layer, uint32_t row, uint32_t head, const float *q,
                        const float *out) {
    static float k[MOST * DIM], v[MOST * DIM];
    const uint32_t kv_head = head / (HEADS / KV_HEADS), lane = layer * KV_HEADS + kv_head;
    uint32_t pages[MOST / PAGE], at;
    const text *t = text_of(p, row, &at);
    for (uint32_t s = 0; s <= at; s++)
        for (uint32_t d = 0; d < DIM; d++) {
            k[s * DIM + d] = test_value(t->tokens[s], lane, 0, d);
            v[s * DIM + d] = test_value(t->tokens[s], lane, 1, d);
        }
    for (uint32_t i = 0; i <= at / PAGE; i++)
        pages[i] = i;
    const oracle_rule rule = {.head_dim = DIM,
                              .page_size = PAGE,
                              .group = HEADS / KV_HEADS,
                              .sliding_window = p->sliding_window,
                              .scale = 0.125};
    const oracle_lane of = {k, v, layer, kv_head};
    if (!oracle_attends(&rule, &of, at + 1, pages, at / PAGE + 1, q, out))
        fail_msg("layer %u, row %u at position %u, head %u", layer, row, at, head);
}

/* What was attended last is what the rows see by their positions. */
static void expect_attended(party *p, uint32_t layer, const uint32_t *rows, uint32_t n,
                            const float *out) {
    float *q = malloc((size_t)n * WIDTH * sizeof *q);
    assert_non_null(q);
    OK(tamis_buffer_read(p->e.w.q, 0, q, (uint64_t)n * WIDTH * sizeof *q, NULL));
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t h = 0; h < HEADS; h++)
            expect_head(p, layer, rows[i], h, q + (size_t)i * WIDTH + h * DIM,
                        out + (size_t)i * WIDTH + h * DIM);
    free(q);
}

static void expect_held(party *p) {
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t lane = 0; lane < LAYERS * KV_HEADS; lane++)
            test_expect(&p->e.w, p->texts[i].id, lane / KV_HEADS, lane % KV_HEADS, 0,
                        p->texts[i].tokens, p->texts[i].length);
}

/* Every third row of [first, end), and those next to it in some places. */
static uint32_t scattered(uint32_t first, uint32_t end, uint32_t *rows) {
    uint32_t n = 0;
    for (uint32_t r = first; r < end; r++)
        if (r % 3 == 1 || r % 7 == 3) rows[n++] = r;
    return n;
}

/* ---- Tests ----------------------------------------------------------------------------------- */

/* Rows of both texts, and fewer of them, then of one text only. On CUDA a row's rounding may depend
 * on the rows that share its tile. */
static void play_narrowed(tamis_dtype dtype, uint32_t sliding_window) {
    enum { FIRST = 77, SECOND = 30, ALL = FIRST + SECOND };
    static float all[ALL * WIDTH], out[ALL * WIDTH];
    const bool same_bits = strncmp(test_device, "cuda", 4) != 0;
    uint32_t every[ALL], rows[ALL], n;
    tamis_plan_counters counters;
    party p;
    open_party(&p, dtype, sliding_window, NULL);
    for (uint32_t i = 0; i < ALL; i++)
        every[i] = i;
    begin(&p, FIRST, SECOND);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        write_all(&p, layer, ALL);
    attend(&p, 0, every, ALL, all);
    expect_attended(&p, 0, every, ALL, all);
    tamis_plan_reset_counters(p.e.w.plan);
    n = scattered(0, ALL, rows);
    uint64_t exact = 0;
    for (uint32_t turn = 0; turn < 3; turn++) {
        OK(tamis_plan_step_keep_rows(p.e.w.plan, rows, n, &test_error));
        attend(&p, 0, rows, n, out);
        expect_attended(&p, 0, rows, n, out);
        for (uint32_t i = 0; i < n && same_bits; i++)
            assert_memory_equal(out + i * WIDTH, all + rows[i] * WIDTH, WIDTH * sizeof *out);
        exact += n;
        if (turn == 0) /* half of them */
            for (uint32_t i = 0; 2 * i < n; i++)
                rows[i] = rows[2 * i];
        n = turn == 0 ? (n + 1) / 2 : n;
        while (turn == 1 && rows[n - 1] >= FIRST)
            n--;
    }
    attend(&p, 1, rows, n, out);
    expect_attended(&p, 1, rows, n, out);
    OK(tamis_plan_step_end(p.e.w.plan, &test_error));
    tamis_plan_get_counters(p.e.w.plan, &counters);
    assert_int_equal(counters.rows_exact, exact + n);
    expect_held(&p);
    for (uint32_t i = 0; i < 2; i++)
        evict_check_bounds(&p.e, p.texts[i].id);
    evict_close(&p.e);
}

/* The last row of one text and the first of the next stay: each sees its own text. */
static void rows_at_a_border_stay_with_their_texts(void **state) {
    (void)state;
    static const uint32_t rows[] = {11, 12};
    static float out[2 * WIDTH];
    party p;
    open_party(&p, TAMIS_F32, 0, NULL);
    begin(&p, 12, 8);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        write_all(&p, layer, 20);
    for (uint32_t n = 2; n > 0; n--) {
        OK(tamis_plan_step_keep_rows(p.e.w.plan, rows + 2 - n, n, &test_error));
        attend(&p, 0, rows + 2 - n, n, out);
        expect_attended(&p, 0, rows + 2 - n, n, out);
    }
    OK(tamis_plan_step_end(p.e.w.plan, &test_error));
    expect_held(&p);
    evict_close(&p.e);
}

static void narrowed_rows_see_what_they_saw(void **state) {
    (void)state;
    play_narrowed(TAMIS_F32, 0);
    play_narrowed(TAMIS_F16, 0);
    play_narrowed(TAMIS_BF16, 19);
    play_narrowed(TAMIS_Q8, 0);
    play_narrowed(TAMIS_K8V4, 0);
    play_narrowed(TAMIS_Q4, 0);
}

static void narrowing_is_refused_where_it_has_no_meaning(void **state) {
    (void)state;
    static const uint32_t some[] = {1, 4, 9}, fewer[] = {1, 9}, twice[] = {1, 1}, back[] = {4, 1},
                          far[] = {1, 20}, other[] = {1, 5}, last[] = {10};
    const tamis_rows k = {.buffer = NULL};
    float out[3 * WIDTH];
    party p;
    open_party(&p, TAMIS_F32, 0, NULL);
    tamis_plan *plan = p.e.w.plan;
    FAILS(tamis_plan_step_keep_rows(NULL, some, 3, &test_error), TAMIS_E_ARGUMENT, "plan");
    FAILS(tamis_plan_step_keep_rows(plan, some, 3, &test_error), TAMIS_E_STATE, "no open step");
    const tamis_step decode = {.sequences = &p.texts[1].id, .count = 1};
    OK(test_step_begin(&p.e.w, &decode));
    FAILS(tamis_plan_step_keep_rows(plan, fewer, 1, &test_error), TAMIS_E_STATE, "not exact");
    OK(tamis_plan_step_cancel(plan, &test_error));
    begin(&p, 12, 8);
    write_all(&p, 0, 20);
    FAILS(tamis_plan_step_keep_rows(plan, NULL, 3, &test_error), TAMIS_E_ARGUMENT, "rows is NULL");
    FAILS(tamis_plan_step_keep_rows(plan, some, 0, &test_error), TAMIS_E_ARGUMENT, "no row");
    FAILS(tamis_plan_step_keep_rows(plan, twice, 2, &test_error), TAMIS_E_ARGUMENT,
          "1 comes after 1");
    FAILS(tamis_plan_step_keep_rows(plan, back, 2, &test_error), TAMIS_E_ARGUMENT,
          "1 comes after 4");
    FAILS(tamis_plan_step_keep_rows(plan, far, 2, &test_error), TAMIS_E_ARGUMENT,
          "row 20 is not below");
    OK(tamis_plan_step_keep_rows(plan, some, 3, &test_error));
    FAILS(tamis_plan_step_keep_rows(plan, other, 2, &test_error), TAMIS_E_ARGUMENT,
          "row 5 has been left");
    FAILS(tamis_plan_step_keep_rows(plan, last, 1, &test_error), TAMIS_E_ARGUMENT,
          "row 10 has been left");
    FAILS(tamis_plan_write(plan, 1, &k, &k, &test_error), TAMIS_E_STATE,
          "before layer 1 was written, and K of row 0, which was left out, was not loaded");
    attend(&p, 0, some, 3, out);
    expect_attended(&p, 0, some, 3, out);
    FAILS(tamis_plan_step_end(plan, &test_error), TAMIS_E_STATE, "layer 1 has not been written");
    OK(tamis_plan_step_cancel(plan, &test_error));
    for (uint32_t i = 0; i < 2; i++)
        p.texts[i].length = 11;
    expect_held(&p);
    /* The next step has its own rows. */
    begin(&p, 3, 0);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        write_all(&p, layer, 3);
    OK(tamis_plan_step_end(plan, &test_error));
    expect_held(&p);
    evict_close(&p.e);
}

/* A prompt whose layers are attended after the step was narrowed, or with all rows. */
static void run_prompt(party *p, uint32_t n, const uint32_t *rows, uint32_t n_rows) {
    static float out[MOST * WIDTH];
    begin(p, n, 0);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        write_all(p, layer, n);
    if (n_rows < n) OK(tamis_plan_step_keep_rows(p->e.w.plan, rows, n_rows, &test_error));
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        attend(p, layer, rows, n_rows, out);
    OK(tamis_plan_step_end(p->e.w.plan, &test_error));
}

static void evictions_are_those_of_all_rows(void **state) {
    (void)state;
    enum { N = 50 };
    static const tamis_eviction_kind kinds[] = {TAMIS_EVICT_STREAMING, TAMIS_EVICT_TOVA,
                                                TAMIS_EVICT_SNAPKV, TAMIS_EVICT_KNORM};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const tamis_eviction eviction = test_eviction(kinds[i], 24, 0);
        uint32_t every[N], few[N], n = scattered(0, N - WINDOW, few);
        tamis_evicted evicted;
        party all, narrowed;
        held of[2];
        for (uint32_t r = 0; r < N; r++)
            every[r] = r;
        for (uint32_t r = N - WINDOW; r < N; r++)
            few[n++] = r;
        open_party(&all, TAMIS_F32, 0, &eviction);
        open_party(&narrowed, TAMIS_F32, 0, &eviction);
        /* The rows before it were not attended: tova does not know their scores, and asks none. */
        run_prompt(&all, N, every, N);
        run_prompt(&narrowed, N, few, n);
        OK(tamis_plan_evict(all.e.w.plan, all.texts[0].id, &evicted, &test_error));
        OK(tamis_plan_evict(narrowed.e.w.plan, narrowed.texts[0].id, &evicted, &test_error));
        assert_true(evicted.tokens_kept < evicted.tokens_before);
        of[0] = evict_read(&all.e, all.texts[0].id);
        of[1] = evict_read(&narrowed.e, narrowed.texts[0].id);
        held_same_positions(&of[0], &of[1]);
        held_free(&of[0]);
        held_free(&of[1]);
        evict_check_bounds(&narrowed.e, narrowed.texts[0].id);
        evict_close(&all.e);
        evict_close(&narrowed.e);
    }
}

/* The weights that the rows of the first text give to its slots, in fp64, summed over rows and the
 * heads of a group. */
static void sum_weights(party *p, const held *h, const uint32_t *rows, uint32_t n, double *sums) {
    const uint32_t group = HEADS / KV_HEADS;
    const text *t = &p->texts[0];
    memset(sums, 0, h->n_slots * sizeof *sums);
    for (uint32_t lane = 0; lane < h->n_lanes; lane++)
        for (uint32_t i = 0; i < n * group; i++) {
            const uint32_t at = t->length - t->rows + rows[i / group];
            const uint32_t head = lane % KV_HEADS * group + i % group;
            const uint32_t first = h->first[lane];
            double w[MOST], total = 0;
            for (uint32_t s = 0; s <= at; s++)
                total += w[s] = exp(evict_logit(&p->e, h, first + s, t->tokens[at],
                                                lane / KV_HEADS * HEADS + head));
            for (uint32_t s = 0; s <= at; s++)
                sums[first + s] += w[s] / total;
        }
}

/* Rows that were left out add nothing to h2o's sums; then it evicts by them. */
static void h2o_sums_the_rows_that_are_attended(void **state) {
    (void)state;
    enum { N = 50 };
    const tamis_eviction eviction = test_eviction(TAMIS_EVICT_H2O, 24, 0);
    uint32_t few[N], n = scattered(0, N - 1, few);
    static double sums[LAYERS * KV_HEADS * MOST];
    tamis_evicted evicted;
    party p;
    few[n++] = N - 1;
    open_party(&p, TAMIS_F32, 0, &eviction);
    run_prompt(&p, N, few, n);
    held h = evict_read(&p.e, p.texts[0].id);
    sum_weights(&p, &h, few, n, sums);
    for (uint32_t slot = 0; slot < h.n_slots; slot++)
        if (fabs(h.scores[slot] - sums[slot]) > 1e-5 * (1 + sums[slot]))
            fail_msg("slot %u: %g, not %g", slot, (double)h.scores[slot], sums[slot]);
    FAILS(tamis_plan_evict(p.e.w.plan, p.texts[0].id, &evicted, &test_error), TAMIS_E_STATE,
          "the rows of positions 0 to 60"); /* the first 11 were not attended */
    held_free(&h);
    evict_close(&p.e);
}

static void refuse(tamis_eviction_kind kind, uint32_t options, const uint32_t *rows, uint32_t n,
                   tamis_status status, const char *reason) {
    const tamis_eviction eviction = test_eviction(kind, 24, options);
    party p;
    open_party(&p, TAMIS_F32, 0, &eviction);
    begin(&p, 12, 12);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        write_all(&p, layer, 24);
    FAILS(tamis_plan_step_keep_rows(p.e.w.plan, rows, n, &test_error), status, reason);
    for (uint32_t i = 0; i < 2; i++) /* nothing has changed */
        assert_int_equal(p.e.w.plan->step.n_kept[i], 12);
    OK(tamis_plan_step_end(p.e.w.plan, &test_error));
    evict_close(&p.e);
}

static void rows_that_an_eviction_needs_must_stay(void **state) {
    (void)state;
    static const uint32_t rows[] = {0, 4, 5, 6, 7, 8, 9, 10, 11, 23}, last[] = {3, 11, 22};
    refuse(TAMIS_EVICT_SNAPKV, 0, rows, 10, TAMIS_E_ARGUMENT,
           "row 16 is left out, but snapkv needs the last 8 rows");
    refuse(TAMIS_EVICT_TOVA, 0, last, 3, TAMIS_E_ARGUMENT,
           "row 23 is left out, but tova needs the last 1 rows");
    refuse(TAMIS_EVICT_H2O, 0, last, 3, TAMIS_E_ARGUMENT,
           "row 23 is left out, but h2o needs the last 1 rows");
    refuse(TAMIS_EVICT_STREAMING, TAMIS_EVICT_REINDEX, last, 3, TAMIS_E_UNSUPPORTED,
           "reindexed streaming cannot be narrowed");
}

/* Layers cannot be called by half-sent tables. The repeated call sends them. */
static void a_failed_narrowing_is_repeated(void **state) {
    (void)state;
    static const uint32_t some[] = {0, 3, 5, 14};
    const tamis_rows q = {.buffer = NULL};
    float out[4 * WIDTH];
    party p;
    open_party(&p, TAMIS_F32, 0, NULL);
    begin(&p, 12, 8);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        write_all(&p, layer, 20);
    faulty_begin(p.e.w.context->dev, 0, FAULTY_BEFORE);
    FAILS(tamis_plan_step_keep_rows(p.e.w.plan, some, 4, &test_error), FAULTY_STATUS, FAULTY_TEXT);
    faulty_pause(p.e.w.context->dev);
    FAILS(tamis_plan_attend(p.e.w.plan, 0, &q, &q, &test_error), TAMIS_E_STATE, "be repeated");
    OK(tamis_plan_step_keep_rows(p.e.w.plan, some, 4, &test_error));
    attend(&p, 1, some, 4, out);
    expect_attended(&p, 1, some, 4, out);
    OK(tamis_plan_step_end(p.e.w.plan, &test_error));
    expect_held(&p);
    evict_close(&p.e);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_at_a_border_stay_with_their_texts),
        cmocka_unit_test(narrowed_rows_see_what_they_saw),
        cmocka_unit_test(narrowing_is_refused_where_it_has_no_meaning),
        cmocka_unit_test(evictions_are_those_of_all_rows),
        cmocka_unit_test(h2o_sums_the_rows_that_are_attended),
        cmocka_unit_test(rows_that_an_eviction_needs_must_stay),
        cmocka_unit_test(a_failed_narrowing_is_repeated),
    };
    int skipped = test_begin(argc, argv);
    return skipped ? skipped : cmocka_run_group_tests(tests, NULL, NULL);
}
