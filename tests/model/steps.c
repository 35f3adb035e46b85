/* SPDX-License-Identifier: Apache-2.0 */
/* tamis_runner_step: chunks of prompts beside decode rows and rows to be verified give the logits, bit
 * for bit, that each sequence gets in steps of its own. */
#include "tests/model/rig.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define LIVE     12u /* more than products take together */
#define CHUNK    20u
#define VERIFIED 3u
#define CONTEXT  160u
#define MAX_ROWS (LIVE * CHUNK)
#define VOCAB    256u
#define SELECTED (LIVE * VERIFIED)

/* A sequence in both rigs, and the text that it reads. */
typedef struct twin {
    tamis_sequence mixed, single;
    uint32_t length, prompt;
    const int32_t *text;
} twin;

typedef struct play {
    rig mixed, single;
    bool verifies, exactly;
    twin twins[LIVE];
    int32_t text[4 * CONTEXT];
    uint64_t random;
    uint32_t n_mixed;
} play;

static uint32_t below(play *p, uint32_t n) {
    p->random = p->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(p->random >> 33) % n;
}

static void renew(play *p, twin *t) {
    if (t->mixed) {
        RIG_OK(&p->mixed, tamis_cache_remove(p->mixed.cache, t->mixed, &p->mixed.error));
        RIG_OK(&p->single, tamis_cache_remove(p->single.cache, t->single, &p->single.error));
    }
    *t = (twin){.mixed = rig_add(&p->mixed),
                .single = rig_add(&p->single),
                .prompt = 16 + below(p, 70),
                .text = p->text + below(p, 3 * CONTEXT)};
}

/* ---- What a sequence brings ------------------------------------------------------------------ */

static tamis_run run_of(play *p, const twin *t) {
    const uint32_t left = t->prompt > t->length ? t->prompt - t->length : 0;
    tamis_run run = {.sequence = t->mixed, .tokens = t->text + t->length};
    if (left == 0) {
        run.n_tokens = run.n_outputs = p->verifies ? 1 + below(p, VERIFIED) : 1;
        return run;
    }
    run.n_tokens = 1 + below(p, CHUNK);
    if (run.n_tokens > left || left - run.n_tokens == 1)
        run.n_tokens = left < CHUNK ? left : CHUNK - 1;
    run.flags = TAMIS_RUN_EXACT;
    if (run.n_tokens < left) return run;
    run.flags |= TAMIS_RUN_EVICT;
    run.n_outputs = 1;
    return run;
}

/* Those that are not exact first; how many. of: whose they are. */
static uint32_t choose(play *p, tamis_run *runs, twin **of) {
    uint32_t n = 0, n_selected = 0;
    for (uint32_t i = 0; i < LIVE; i++) {
        twin *t = &p->twins[i];
        if (below(p, 4) == 0) continue;
        if (t->length + CHUNK > CONTEXT) renew(p, t);
        const tamis_run run = run_of(p, t);
        const uint32_t place = run.flags & TAMIS_RUN_EXACT ? n : n_selected++;
        runs[n] = runs[place];
        of[n++] = of[place];
        runs[place] = run;
        of[place] = t;
    }
    p->n_mixed += n_selected > 0 && n_selected < n;
    return n;
}

/* ---- Comparing ------------------------------------------------------------------------------- */

static void same_logits(const play *p, const float *a, const float *b) {
    if (p->exactly) {
        assert_memory_equal(a, b, VOCAB * sizeof *a);
        return;
    }
    for (uint32_t i = 0; i < VOCAB; i++)
        assert_float_equal(a[i], b[i], 2e-3F);
}

static void compare(play *p, const tamis_run *run, const twin *t, const int32_t *next,
                    uint32_t first) {
    tamis_run alone = *run;
    int32_t greedy[CHUNK];
    float a[VOCAB], b[VOCAB];
    alone.sequence = t->single;
    RIG_OK(&p->single, tamis_runner_step(p->single.runner, &alone, 1, greedy, &p->single.error));
    for (uint32_t i = 0; i < run->n_outputs; i++) {
        RIG_OK(&p->mixed, tamis_runner_logits(p->mixed.runner, first + i, a, &p->mixed.error));
        RIG_OK(&p->single, tamis_runner_logits(p->single.runner, i, b, &p->single.error));
        same_logits(p, a, b);
        if (p->exactly) assert_int_equal(next[first + i], greedy[i]);
    }
}

/* Of several rows that were verified all but the first may be rejected. */
static void advance(play *p, const tamis_run *run, twin *t) {
    const uint32_t before = t->length;
    t->length += run->n_tokens;
    if (run->flags & TAMIS_RUN_EXACT || run->n_tokens == 1) return;
    const uint32_t kept = below(p, run->n_tokens);
    t->length = before + 1 + kept;
    RIG_OK(&p->mixed, tamis_plan_keep_path(tamis_runner_plan(p->mixed.runner), t->mixed, kept,
                                           &p->mixed.error));
    RIG_OK(&p->single, tamis_plan_keep_path(tamis_runner_plan(p->single.runner), t->single, kept,
                                            &p->single.error));
}

static void round_of(play *p) {
    tamis_run runs[LIVE];
    twin *of[LIVE];
    int32_t next[SELECTED];
    const uint32_t n = choose(p, runs, of);
    uint32_t first = 0;
    if (n == 0) return;
    RIG_OK(&p->mixed, tamis_runner_step(p->mixed.runner, runs, n, next, &p->mixed.error));
    for (uint32_t i = 0; i < n; i++) {
        compare(p, &runs[i], of[i], next, first);
        first += runs[i].n_outputs;
        advance(p, &runs[i], of[i]);
    }
}

static void play_under(tamis_selection_kind selection, tamis_eviction_kind eviction,
                       bool verified) {
    play *p = calloc(1, sizeof *p);
    rig_params params = {.file = "needle.gguf",
                         .dtype = TAMIS_F16,
                         .max_sequences = LIVE,
                         .max_rows = MAX_ROWS,
                         .max_selected_rows = SELECTED,
                         .max_context = CONTEXT,
                         .capacity_tokens = LIVE * (CONTEXT + 16)};
    assert_non_null(p);
    p->exactly = strncmp(rig_device, "cuda", 4) != 0;
    if (selection != TAMIS_SELECT_FULL) {
        tamis_selection_default(selection, &params.selection);
        params.selection.budget = 64;
    }
    tamis_eviction_default(eviction, &params.eviction);
    if (eviction) params.eviction.budget = 64;
    p->verifies = verified;
    params.verified = verified && params.eviction.every == 1;
    if (params.verified) params.max_sequences = 2 * LIVE; /* with what rows replace */
    rig_open(&p->mixed, &params);
    rig_open(&p->single, &params);
    rig_text(&p->mixed, p->text, sizeof p->text / sizeof *p->text);
    for (uint32_t i = 0; i < LIVE; i++)
        renew(p, &p->twins[i]);
    while (p->n_mixed < (p->exactly ? 40u : 3u))
        round_of(p);
    rig_close(&p->mixed);
    rig_close(&p->single);
    free(p);
}

static void test_quest(void **state) {
    (void)state;
    play_under(TAMIS_SELECT_QUEST, TAMIS_EVICT_NONE, true);
}

static void test_snapkv(void **state) {
    (void)state;
    play_under(TAMIS_SELECT_QUEST, TAMIS_EVICT_SNAPKV, true);
}

static void test_h2o(void **state) {
    (void)state;
    play_under(TAMIS_SELECT_FULL, TAMIS_EVICT_H2O, false);
}

static void test_h2o_verified(void **state) {
    (void)state;
    play_under(TAMIS_SELECT_FULL, TAMIS_EVICT_H2O, true);
}

/* ---- Trees ----------------------------------------------------------------------------------- */

#define TREE 6u

/* Paths 0 1 2, 0 1 3, 0 4, 5. */
static const uint32_t parents[TREE] = {TAMIS_NO_ROW, 0, 1, 1, 0, TAMIS_NO_ROW};

/* The path to a token of the tree, as a run of its own; how many tokens. */
static uint32_t path_to(const int32_t *tokens, uint32_t row, int32_t path[TREE]) {
    uint32_t n = 0;
    for (uint32_t r = row; r != TAMIS_NO_ROW; r = parents[r])
        n++;
    for (uint32_t r = row, i = n; r != TAMIS_NO_ROW; r = parents[r])
        path[--i] = tokens[r];
    return n;
}

/* Each token's logits are those that end a run of its path. */
static void compare_paths(play *p, const twin *t, const int32_t *tokens, const int32_t *next) {
    for (uint32_t row = 0; row < TREE; row++) {
        int32_t path[TREE], greedy = 0;
        float a[VOCAB], b[VOCAB];
        const tamis_run alone = {.sequence = t->single,
                                 .tokens = path,
                                 .n_tokens = path_to(tokens, row, path),
                                 .n_outputs = 1};
        RIG_OK(&p->single,
               tamis_runner_step(p->single.runner, &alone, 1, &greedy, &p->single.error));
        RIG_OK(&p->mixed, tamis_runner_logits(p->mixed.runner, row, a, &p->mixed.error));
        RIG_OK(&p->single, tamis_runner_logits(p->single.runner, 0, b, &p->single.error));
        same_logits(p, a, b);
        if (p->exactly) assert_int_equal(next[row], greedy);
        RIG_OK(&p->single,
               tamis_cache_truncate(p->single.cache, t->single, t->length, &p->single.error));
    }
}

/* A path of both sequences stays, and a token more gets the same logits. */
static void go_on(play *p, twin *t, const int32_t *tokens, uint32_t row) {
    int32_t path[TREE], next = 0;
    const uint32_t n = path_to(tokens, row, path);
    tamis_run line = {.sequence = t->single, .tokens = path, .n_tokens = n};
    tamis_plan *plan = tamis_runner_plan(p->mixed.runner);
    RIG_OK(&p->mixed, tamis_plan_keep_path(plan, t->mixed, row, &p->mixed.error));
    RIG_OK(&p->single, tamis_runner_step(p->single.runner, &line, 1, NULL, &p->single.error));
    t->length += n;
    const tamis_run more = {
        .sequence = t->mixed, .tokens = t->text + t->length, .n_tokens = 1, .n_outputs = 1};
    RIG_OK(&p->mixed, tamis_runner_step(p->mixed.runner, &more, 1, &next, &p->mixed.error));
    compare(p, &more, t, &next, 0);
    t->length++;
}

static void test_trees(void **state) {
    play *p = calloc(1, sizeof *p);
    rig_params params = {.file = "needle.gguf",
                         .max_sequences = 4,
                         .max_rows = 64,
                         .max_selected_rows = TREE,
                         .max_context = CONTEXT,
                         .capacity_tokens = 3 * CONTEXT,
                         .trees = 1};
    (void)state;
    assert_non_null(p);
    p->exactly = strncmp(rig_device, "cuda", 4) != 0;
    tamis_selection_default(TAMIS_SELECT_QUEST, &params.selection);
    params.selection.budget = 64;
    rig_open(&p->mixed, &params);
    rig_open(&p->single, &params);
    rig_text(&p->mixed, p->text, sizeof p->text / sizeof *p->text);
    twin *t = p->twins;
    renew(p, t);
    t->prompt = 50;
    RIG_OK(&p->mixed, tamis_runner_prefill(p->mixed.runner, t->mixed, t->text, t->prompt, NULL,
                                           &p->mixed.error));
    RIG_OK(&p->single, tamis_runner_prefill(p->single.runner, t->single, t->text, t->prompt, NULL,
                                            &p->single.error));
    t->length = t->prompt;
    for (uint32_t row = 0; row < TREE; row++) {
        int32_t tokens[TREE], next[TREE];
        for (uint32_t i = 0; i < TREE; i++)
            tokens[i] = (int32_t)(32 + below(p, 90));
        const tamis_run tree = {.sequence = t->mixed,
                                .tokens = tokens,
                                .n_tokens = TREE,
                                .n_outputs = TREE,
                                .parents = parents};
        RIG_OK(&p->mixed, tamis_runner_step(p->mixed.runner, &tree, 1, next, &p->mixed.error));
        compare_paths(p, t, tokens, next);
        go_on(p, t, tokens, row);
    }
    rig_close(&p->mixed);
    rig_close(&p->single);
    free(p);
}

/* ---- Arguments ------------------------------------------------------------------------------- */

static void test_refused(void **state) {
    (void)state;
    rig r;
    const int32_t tokens[4] = {65, 66, 67, 300};
    int32_t next[4];
    rig_open(&r, &(rig_params){.file = "needle.gguf", .max_sequences = 2, .max_rows = 4});
    tamis_run runs[3] = {
        {.sequence = rig_add(&r), .tokens = tokens, .n_tokens = 3, .flags = TAMIS_RUN_EXACT},
        {.sequence = rig_add(&r), .tokens = tokens, .n_tokens = 1, .n_outputs = 1}};
    tamis_runner *runner = r.runner;
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "run 1 is not exact and comes behind one that is",
                tamis_runner_step(runner, runs, 2, next, &r.error));
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "3 runs are given: 1 to 2, which is max_sequences",
                tamis_runner_step(runner, runs, 3, next, &r.error));
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "0 runs are given",
                tamis_runner_step(runner, runs, 0, next, &r.error));
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "runs is NULL",
                tamis_runner_step(runner, NULL, 1, next, &r.error));
    runs[1].flags = TAMIS_RUN_EXACT | 8;
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "run 1: flags are 0x9: at most 0x3",
                tamis_runner_step(runner, runs, 2, next, &r.error));
    runs[1].flags = TAMIS_RUN_EXACT;
    runs[1].n_tokens = 2;
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "the runs have 5 tokens; max_rows is 4",
                tamis_runner_step(runner, runs, 2, next, &r.error));
    runs[1].n_outputs = 3;
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "run 1: n_outputs is 3, of 2 tokens",
                tamis_runner_step(runner, runs, 2, next, &r.error));
    runs[1].n_tokens = runs[1].n_outputs = 1;
    runs[0].n_outputs = 2;
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "the runs have 3 outputs; a step has at most 2",
                tamis_runner_step(runner, runs, 2, next, &r.error));
    runs[0].n_outputs = 0;
    runs[1].tokens = tokens + 3;
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "token 300 at place 0 is outside the vocabulary",
                tamis_runner_step(runner, runs, 2, next, &r.error));
    runs[1].tokens = tokens;
    runs[1].sequence = runs[0].sequence;
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "comes twice in the step",
                tamis_runner_step(runner, runs, 2, next, &r.error));
    runs[1].reserved[1] = 7;
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "run 1: reserved[1] is 7",
                tamis_runner_step(runner, runs, 2, next, &r.error));
    runs[0].flags = TAMIS_RUN_EVICT;
    RIG_REFUSED(&r, TAMIS_E_ARGUMENT, "run 0: TAMIS_RUN_EVICT is for the end of a prompt",
                tamis_runner_step(runner, runs, 1, next, &r.error));
    assert_int_equal(rig_length(&r, runs[0].sequence), 0);
    rig_close(&r);
}

int main(int argc, char **argv) {
    if (!rig_arguments(argc, argv)) return 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quest), cmocka_unit_test(test_snapkv),
        cmocka_unit_test(test_h2o),   cmocka_unit_test(test_h2o_verified),
        cmocka_unit_test(test_trees), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
