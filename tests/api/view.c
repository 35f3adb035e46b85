/* SPDX-License-Identifier: Apache-2.0 */
/* Views: steps over K and V that a test keeps as engines do, beside a plan over a cache of the library's
 * that holds the same tokens: same pages, same bits; and what a view refuses. */
#include "tests/api/ops_rig.h"
#include <tamis/saved.h>
#include <tamis/view.h>

#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, HEADS = 4, KV = 2, DIM = 64, WIDTH = HEADS * DIM };
enum { SEQS = 3, PAGES = 96, ROWS = 40, CONTEXT = 256, TOKENS = CONTEXT };

/* How an engine keeps K and V: in a buffer for each layer [page][K, V][slot][head][dim], or [page][K,
 * V][head][slot][dim]; in two buffers for each layer, V as HND; in two, V transposed; all layers in one
 * buffer, [page][layer][K, V][slot][head][dim]. */
typedef enum kv_layout { NHD, HND, TWO, TURNED, ACROSS, LAYOUTS } kv_layout;

/* Where a row lies, in elements, in a buffer: channel by channel. */
typedef struct spot {
    float *host;
    uint64_t at, step;
} spot;

typedef struct engine {
    ops_rig rig;
    kv_layout layout;
    uint32_t page_size;
    tamis_kv kv[LAYERS];
    tamis_kv_values values[LAYERS];
    tamis_place places[2 * LAYERS]; /* of K, or of both, then of V */
    float *host[2 * LAYERS];        /* what they hold */
    uint64_t bytes;                 /* of each */
    uint32_t lengths[SEQS];
    int32_t table[SEQS][CONTEXT]; /* page lists */
    int32_t next;                 /* pages are handed out in an order of no kind */
    tamis_cache *view;
    tamis_plan *plan;
    /* Beside it: a cache of the library's with the same tokens. */
    tamis_cache *cache;
    tamis_plan *beside;
    tamis_sequence ids[SEQS];
    tamis_rows k, v, q, out, own;
    tamis_plan_params params;
} engine;

static bool on_cuda(void) {
    return strncmp(test_device, "cuda", 4) == 0;
}

static uint64_t token_of(uint32_t sequence, uint32_t position) {
    return 1 + sequence * 1000ull + position;
}

static spot place_row(const engine *e, uint32_t layer, uint32_t page, uint32_t head, uint32_t slot,
                      uint32_t which) {
    const uint64_t s = e->page_size, pair = 2 * s * KV * DIM;
    const uint64_t nhd = (slot * KV + head) * (uint64_t)DIM, hnd = (head * s + slot) * DIM;
    switch (e->layout) {
    case NHD:
        return (spot){e->host[layer], page * pair + which * s * KV * DIM + nhd, 1};
    case HND:
        return (spot){e->host[layer], page * pair + which * s * KV * DIM + hnd, 1};
    case ACROSS:
        return (spot){e->host[0], (page * LAYERS + layer) * pair + which * s * KV * DIM + nhd, 1};
    default:
        if (!which) return (spot){e->host[layer], page * s * KV * DIM + nhd, 1};
        if (e->layout == TWO) return (spot){e->host[LAYERS + layer], page * s * KV * DIM + hnd, 1};
        return (spot){e->host[LAYERS + layer], head * DIM * PAGES * s + page * s + slot, PAGES * s};
    }
}

static void describe_layer(engine *e, uint32_t layer) {
    const uint64_t s = e->page_size, pair = 2 * s * KV * DIM;
    tamis_kv *kv = &e->kv[layer];
    *kv = (tamis_kv){.data = e->places[e->layout == ACROSS ? 0 : layer],
                     .layout = e->layout == NHD   ? TAMIS_KV_NHD
                               : e->layout == HND ? TAMIS_KV_HND
                                                  : TAMIS_KV_STRIDES,
                     .page_size = e->page_size,
                     .head_dim = DIM,
                     .n_pages = PAGES};
    if (e->layout < TWO) return;
    kv->slot_stride = KV * DIM;
    kv->head_stride = DIM;
    if (e->layout == ACROSS) {
        kv->data.offset += layer * pair * sizeof(float);
        kv->page_stride = LAYERS * pair;
        kv->value_offset = s * KV * DIM;
        return;
    }
    kv->page_stride = s * KV * DIM;
    kv->values = &e->values[layer];
    e->values[layer] = (tamis_kv_values){.data = e->places[LAYERS + layer],
                                         .page_stride = KV * s * DIM,
                                         .head_stride = s * DIM,
                                         .slot_stride = DIM};
    if (e->layout == TURNED)
        e->values[layer] = (tamis_kv_values){.data = e->places[LAYERS + layer],
                                             .page_stride = s,
                                             .head_stride = DIM * PAGES * s,
                                             .slot_stride = 1,
                                             .channel_stride = PAGES * s};
}

static tamis_plan_params plan_params(tamis_selection_kind kind, uint32_t page_size,
                                     uint32_t window) {
    tamis_plan_params p = {.max_sequences = SEQS,
                           .max_rows = ROWS,
                           .max_context = CONTEXT,
                           .max_selected_rows = 8,
                           .attention = {.sliding_window = window}};
    tamis_selection_default(kind, &p.selection);
    if (kind != TAMIS_SELECT_FULL) p.selection.budget = 4 * page_size;
    const bool keeps = kind != TAMIS_SELECT_FULL && kind != TAMIS_SELECT_CALLER;
    p.selection.sinks = keeps ? page_size : 0;
    p.selection.recent = keeps;
    p.selection.dense_layers = 0;
    return p;
}

static void open_engine(engine *e, kv_layout layout, uint32_t page_size, tamis_selection_kind kind,
                        uint32_t window) {
    memset(e, 0, sizeof *e);
    e->layout = layout;
    e->page_size = page_size;
    ops_open(&e->rig);
    e->bytes =
        2ull * PAGES * page_size * KV * DIM * sizeof(float) * (layout == ACROSS ? LAYERS : 1);
    for (uint32_t i = 0; i < 2 * LAYERS; i++) {
        e->host[i] = malloc(e->bytes);
        assert_non_null(e->host[i]);
        memset(e->host[i], 0xff, e->bytes);
        e->places[i] = ops_send(&e->rig, e->host[i], e->bytes, 0);
    }
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        describe_layer(e, layer);
    tamis_rows *rows[] = {&e->k, &e->v, &e->q, &e->out, &e->own};
    for (size_t i = 0; i < 5; i++)
        *rows[i] = ops_rows(ops_room(&e->rig, ROWS * WIDTH * sizeof(float), 0), 0);
    const tamis_view_params view = {
        .n_layers = LAYERS, .n_heads = HEADS, .n_kv_heads = KV, .layers = e->kv};
    const tamis_cache_params shape = {.n_layers = LAYERS,
                                      .n_heads = HEADS,
                                      .n_kv_heads = KV,
                                      .head_dim = DIM,
                                      .page_size = page_size,
                                      .capacity_tokens = SEQS * (CONTEXT + page_size)};
    e->params = plan_params(kind, page_size, window);
    /* In the layout with two buffers slots of K and of V have no number in common. */
    if (kind == TAMIS_SELECT_CALLER && layout != TWO) e->params.flags = TAMIS_PLAN_TOKEN_LISTS;
    OK(tamis_view_create(e->rig.context, &view, &e->view, &test_error));
    OK(tamis_plan_create(e->view, &e->params, &e->plan, &test_error));
    if (page_size < 8 || page_size > 64) return;
    OK(tamis_cache_create(e->rig.context, &shape, &e->cache, &test_error));
    OK(tamis_plan_create(e->cache, &e->params, &e->beside, &test_error));
    for (uint32_t b = 0; b < SEQS; b++)
        OK(tamis_cache_add(e->cache, &e->ids[b], &test_error));
}

static void close_engine(engine *e) {
    tamis_plan_destroy(&e->plan);
    tamis_cache_destroy(&e->view);
    tamis_plan_destroy(&e->beside);
    tamis_cache_destroy(&e->cache);
    for (uint32_t i = 0; i < 2 * LAYERS; i++)
        free(e->host[i]);
    ops_close(&e->rig);
}

/* The engine's own part: pages for rows to come, and K and V of a layer's rows into them. */
static void grow(engine *e, uint32_t b, uint32_t rows) {
    const uint32_t size = e->page_size;
    for (uint32_t i = (e->lengths[b] + size - 1) / size; i * size < e->lengths[b] + rows; i++)
        e->table[b][i] = e->next++ * 37 % PAGES;
    assert_true(e->next <= PAGES);
    e->lengths[b] += rows;
}

static void write_engine(engine *e, uint32_t layer, uint32_t b, uint32_t rows) {
    for (uint32_t p = e->lengths[b] - rows; p < e->lengths[b]; p++)
        for (uint32_t h = 0; h < KV; h++)
            for (uint32_t which = 0; which < 2; which++) {
                const spot to = place_row(e, layer, (uint32_t)e->table[b][p / e->page_size], h,
                                          p % e->page_size, which);
                for (uint32_t d = 0; d < DIM; d++)
                    to.host[to.at + d * to.step] =
                        test_value(token_of(b, p), layer * KV + h, which, d);
            }
}

static void send_engine(engine *e) {
    for (uint32_t i = 0; i < 2 * LAYERS; i++)
        OK(tamis_buffer_write(e->places[i].buffer, 0, e->host[i], e->bytes, &test_error));
}

/* The same rows as the library's cache takes them; queries of either. */
static void fill_rows(engine *e, uint32_t layer, const uint32_t *of, const uint32_t *rows,
                      uint32_t n) {
    static float k[ROWS][KV][DIM], v[ROWS][KV][DIM], q[ROWS][HEADS][DIM];
    uint32_t row = 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t p = e->lengths[of[i]] - rows[i]; p < e->lengths[of[i]]; p++, row++) {
            const uint64_t token = token_of(of[i], p);
            for (uint32_t d = 0; d < DIM; d++) {
                for (uint32_t h = 0; h < KV; h++) {
                    k[row][h][d] = test_value(token, layer * KV + h, 0, d);
                    v[row][h][d] = test_value(token, layer * KV + h, 1, d);
                }
                for (uint32_t h = 0; h < HEADS; h++)
                    q[row][h][d] = test_value(token, 100 + layer * HEADS + h, 1, d);
            }
        }
    OK(tamis_buffer_write(e->k.buffer, 0, k, sizeof k, &test_error));
    OK(tamis_buffer_write(e->v.buffer, 0, v, sizeof v, &test_error));
    OK(tamis_buffer_write(e->q.buffer, 0, q, sizeof q, &test_error));
}

/* Pages that a row read, of either plan. */
static void compare_pages(engine *e, uint32_t n_rows) {
    for (uint32_t row = 0; row < n_rows; row++)
        for (uint32_t h = 0; h < KV; h++) {
            uint32_t a[CONTEXT], b[CONTEXT], n_a = 0, n_b = 0;
            OK(tamis_plan_read_selected(e->plan, row, h, a, CONTEXT, &n_a, &test_error));
            OK(tamis_plan_read_selected(e->beside, row, h, b, CONTEXT, &n_b, &test_error));
            assert_int_equal(n_a, n_b);
            assert_memory_equal(a, b, n_a * sizeof *a);
        }
}

static void compare_rows(engine *e, uint32_t n_rows) {
    static float a[ROWS][HEADS][DIM], b[ROWS][HEADS][DIM];
    OK(tamis_buffer_read(e->out.buffer, 0, a, n_rows * sizeof a[0], &test_error));
    OK(tamis_buffer_read(e->own.buffer, 0, b, n_rows * sizeof b[0], &test_error));
    assert_memory_equal(a, b, n_rows * sizeof a[0]);
}

/* The step's sequences in both forms of lists. */
typedef struct lists {
    uint32_t rows[SEQS], lengths[SEQS];
    int32_t table[SEQS][CONTEXT], indptr[SEQS + 1], indices[SEQS * CONTEXT], last[SEQS];
    tamis_view_step step;
} lists;

static void list_pages(const engine *e, const uint32_t *of, uint32_t n, bool csr, lists *l) {
    l->indptr[0] = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t length = e->lengths[of[i]];
        const uint32_t pages = (length + e->page_size - 1) / e->page_size;
        l->lengths[i] = length;
        memcpy(l->table[i], e->table[of[i]], sizeof l->table[i]);
        memcpy(l->indices + l->indptr[i], e->table[of[i]], pages * sizeof(int32_t));
        l->indptr[i + 1] = l->indptr[i] + (int32_t)pages;
        l->last[i] = (int32_t)(length - (pages - 1) * e->page_size);
    }
    l->step = (tamis_view_step){.count = n, .rows = l->rows};
    if (csr) {
        l->step.indptr = l->indptr;
        l->step.indices = l->indices;
        l->step.last_page_len = l->last;
    } else {
        l->step.lengths = l->lengths;
        l->step.table = &l->table[0][0];
        l->step.table_stride = CONTEXT;
    }
}

/* Lists under selection caller, of tokens where the plan takes them; some entries are not valid. */
static const tamis_caller_lists *lists_of(const engine *e, uint32_t layer) {
    static int32_t entries[ROWS * KV * CONTEXT], count[ROWS * KV];
    static tamis_caller_lists given;
    const bool tokens = layer && (e->params.flags & TAMIS_PLAN_TOKEN_LISTS);
    const uint32_t most = tokens ? 4 * e->page_size : 4;
    given = (tamis_caller_lists){.host_entries = entries,
                                 .host_count = count,
                                 .capacity = most,
                                 .unit = tokens ? TAMIS_LIST_TOKENS : TAMIS_LIST_PAGES};
    for (uint32_t i = 0; i < ROWS * KV; i++) {
        count[i] = (int32_t)(most - i % 3);
        for (uint32_t j = 0; j < most; j++)
            entries[i * most + j] = (int32_t)(i % 2 + 2 * j) - (j % 7 == 5 ? 20 : 0);
    }
    return e->params.selection.kind == TAMIS_SELECT_CALLER ? &given : NULL;
}

static void attend(const engine *e, tamis_plan *plan, uint32_t layer, const tamis_rows *out) {
    const tamis_plan_attend_params p = {.q = e->q, .out = *out, .lists = lists_of(e, layer)};
    OK(tamis_plan_attend_with(plan, layer, &p, &test_error));
}

/* A step of both, whose sequences are not exact before `exact_from`. */
static void step_both(engine *e, const uint32_t *of, const uint32_t *rows, uint32_t n,
                      uint32_t exact_from, bool csr) {
    static lists l;
    uint32_t n_rows = 0;
    tamis_sequence ids[SEQS];
    for (uint32_t i = 0; i < n; i++) {
        grow(e, of[i], rows[i]);
        l.rows[i] = rows[i];
        ids[i] = e->ids[of[i]];
        n_rows += rows[i];
    }
    list_pages(e, of, n, csr, &l);
    l.step.exact = exact_from == 0;
    l.step.exact_from = exact_from < n ? exact_from : 0;
    const tamis_step beside = {.sequences = ids,
                               .rows = rows,
                               .count = n,
                               .exact = l.step.exact,
                               .exact_from = l.step.exact_from};
    OK(tamis_plan_view_begin(e->plan, &l.step, &test_error));
    memset(&l, 0xff, sizeof l); /* read by the call */
    if (e->beside) OK(tamis_plan_step_begin(e->beside, &beside, &test_error));
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint32_t i = 0; i < n; i++)
            write_engine(e, layer, of[i], rows[i]);
        send_engine(e);
        fill_rows(e, layer, of, rows, n);
        attend(e, e->plan, layer, &e->out);
        if (!e->beside) continue;
        OK(tamis_plan_write(e->beside, layer, &e->k, &e->v, &test_error));
        attend(e, e->beside, layer, &e->own);
        compare_rows(e, n_rows);
        compare_pages(e, n_rows);
    }
    OK(tamis_plan_step_end(e->plan, &test_error));
    if (e->beside) OK(tamis_plan_step_end(e->beside, &test_error));
}

/* Prompts, decode steps of several sequences in changing order, a mixed step, rows to be verified. */
static void live(engine *e) {
    static const uint32_t order[3][SEQS] = {{0, 1, 2}, {2, 0, 1}, {1, 2, 0}};
    static const uint32_t prompts[SEQS] = {38, 23, 40}, one[SEQS] = {1, 1, 1};
    for (uint32_t b = 0; b < SEQS; b++)
        for (uint32_t piece = 0; piece < 2; piece++)
            step_both(e, &b, &prompts[b], 1, 0, piece);
    for (uint32_t i = 0; i < 9; i++)
        step_both(e, order[i / 3], one, i % 4 == 3 ? 2 : SEQS, SEQS, i % 2);
    const uint32_t mixed[SEQS] = {1, 3, 20};
    step_both(e, order[1], mixed, SEQS, 2, true);
    step_both(e, order[0], mixed, 2, 2, false);
}

/* K lies slot by slot for all heads, V for one: a slot has not one number in both. */
static void refuse_tokens(engine *e) {
    tamis_plan_params p = e->params;
    tamis_plan *plan = NULL;
    p.flags |= TAMIS_PLAN_TOKEN_LISTS;
    FAILS(
        tamis_plan_create(e->view, &p, &plan, &test_error), TAMIS_E_UNSUPPORTED,
        "TAMIS_PLAN_TOKEN_LISTS where pages of K are 2048 elements apart and slots 128, of V 2048 "
        "and 64: no slot has one number");
}

static void every_layout_gives_the_bits_of_a_cache(void **state) {
    (void)state;
    static const tamis_selection_kind kinds[] = {TAMIS_SELECT_FULL, TAMIS_SELECT_QUEST,
                                                 TAMIS_SELECT_ORACLE, TAMIS_SELECT_CALLER};
    static const uint32_t sizes[] = {8, 16, 16, 32, 16};
    for (int l = 0; l < LAYOUTS; l++)
        for (uint32_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
            engine e;
            const bool listed = kinds[i] == TAMIS_SELECT_QUEST || kinds[i] == TAMIS_SELECT_CALLER;
            if (on_cuda() && (l == TURNED || !listed)) continue;
            open_engine(&e, (kv_layout)l, sizes[l], kinds[i], i == 1 && l == HND ? 50 : 0);
            live(&e);
            if (kinds[i] == TAMIS_SELECT_CALLER && l == TWO) refuse_tokens(&e);
            close_engine(&e);
        }
}

/* Whose pages a cache of the library's does not have: beside a view with pages of 16, under full. */
static void pages_of_any_size_read_the_same(void **state) {
    (void)state;
    static const uint32_t sizes[] = {1, 2, 4, 128, 256};
    static float one[ROWS][HEADS][DIM], other[ROWS][HEADS][DIM];
    const uint32_t of = 0, prompt = 38, single = 1;
    for (uint32_t i = 0; i < 5; i++) {
        engine e, with16;
        open_engine(&e, NHD, sizes[i], TAMIS_SELECT_FULL, 0);
        open_engine(&with16, HND, 16, TAMIS_SELECT_FULL, 0);
        for (uint32_t s = 0; s < 4; s++) {
            const uint32_t *rows = s < 2 ? &prompt : &single;
            step_both(&e, &of, rows, 1, s < 2 ? 0 : 1, s % 2);
            step_both(&with16, &of, rows, 1, s < 2 ? 0 : 1, s % 2);
            OK(tamis_buffer_read(e.out.buffer, 0, one, *rows * sizeof one[0], &test_error));
            OK(tamis_buffer_read(with16.out.buffer, 0, other, *rows * sizeof one[0], &test_error));
            for (uint32_t k = 0; k < *rows * WIDTH; k++)
                ops_near("out", k, (&one[0][0][0])[k], (&other[0][0][0])[k], 1e-5);
            if (sizes[i] > 64) break; /* there are few pages */
        }
        close_engine(&e);
        close_engine(&with16);
    }
}

/* Pages that were filled in no step are bounded by a call; layers that are not attended by the end. */
static void bounds_come_by_calls_and_at_the_end(void **state) {
    (void)state;
    engine e;
    const uint32_t of = 0, one = 1, prompt = 40;
    static lists l;
    open_engine(&e, TWO, 16, TAMIS_SELECT_QUEST, 0);
    /* The library's cache gets the prompt by steps, the engine by itself. */
    const tamis_step text = {.sequences = e.ids, .rows = &prompt, .count = 1, .exact = 1};
    for (uint32_t piece = 0; piece < 3; piece++) {
        grow(&e, 0, prompt);
        OK(tamis_plan_step_begin(e.beside, &text, &test_error));
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            write_engine(&e, layer, 0, prompt);
            fill_rows(&e, layer, &of, &prompt, 1);
            OK(tamis_plan_write(e.beside, layer, &e.k, &e.v, &test_error));
        }
        OK(tamis_plan_step_end(e.beside, &test_error));
    }
    send_engine(&e);
    OK(tamis_view_bound_pages(e.view, e.table[0], 7, &test_error));
    OK(tamis_view_bound_pages(e.view, NULL, 0, &test_error));
    step_both(&e, &of, &one, 1, 1, false);
    /* 15 more rows fill a page, in layers that nobody attends. */
    for (uint32_t i = 0; i < 15; i++) {
        const tamis_step next = {.sequences = e.ids, .count = 1};
        grow(&e, 0, 1);
        l.rows[0] = 1;
        list_pages(&e, &of, 1, true, &l);
        OK(tamis_plan_view_begin(e.plan, &l.step, &test_error));
        OK(tamis_plan_step_begin(e.beside, &next, &test_error));
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            write_engine(&e, layer, 0, 1);
            fill_rows(&e, layer, &of, &one, 1);
            OK(tamis_plan_write(e.beside, layer, &e.k, &e.v, &test_error));
        }
        send_engine(&e);
        OK(tamis_plan_step_end(e.plan, &test_error));
        OK(tamis_plan_step_end(e.beside, &test_error));
    }
    for (uint32_t i = 0; i < 3; i++)
        step_both(&e, &of, &one, 1, 1, true);
    close_engine(&e);
}

/* A cancelled step leaves nothing open; its rows may come again. */
static void a_cancelled_step_can_be_repeated(void **state) {
    (void)state;
    engine e;
    const uint32_t of[] = {1}, rows[] = {30};
    static lists l;
    open_engine(&e, NHD, 16, TAMIS_SELECT_QUEST, 0);
    grow(&e, 1, 30);
    l.rows[0] = 30;
    list_pages(&e, of, 1, false, &l);
    l.step.exact = 1;
    OK(tamis_plan_view_begin(e.plan, &l.step, &test_error));
    FAILS(tamis_plan_view_begin(e.plan, &l.step, &test_error), TAMIS_E_STATE,
          "a step on the view is open");
    FAILS(tamis_view_bound_pages(e.view, e.table[1], 1, &test_error), TAMIS_E_STATE,
          "a step on the view is open");
    OK(tamis_plan_step_cancel(e.plan, &test_error));
    e.lengths[1] = 0;
    e.next = 0;
    step_both(&e, of, rows, 1, 0, false);
    close_engine(&e);
}

/* Rows of a step over one sequence, whose K and V have been sent: the layers are attended. */
static void attend_layers(engine *e, const uint32_t *of, const uint32_t *rows, uint32_t from,
                          uint32_t to) {
    for (uint32_t layer = from; layer < to; layer++) {
        fill_rows(e, layer, of, rows, 1);
        OK(tamis_plan_attend(e->plan, layer, &e->q, &e->out, &test_error));
    }
}

/* A list may name a page twice, and be longer than the view: each token twice is as each once. */
static void lists_may_be_longer_than_the_view(void **state) {
    (void)state;
    static float once[HEADS][DIM], twice[HEADS][DIM];
    static const tamis_selection_kind kinds[] = {TAMIS_SELECT_FULL, TAMIS_SELECT_QUEST};
    const uint32_t of = 0, one = 1;
    for (uint32_t k = 0; k < 2; k++) {
        engine e;
        static lists l;
        open_engine(&e, NHD, 1, kinds[k], 0);
        grow(&e, 0, PAGES);
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            write_engine(&e, layer, 0, PAGES);
        send_engine(&e);
        OK(tamis_view_bound_pages(e.view, e.table[0], PAGES, &test_error));
        memcpy(e.table[0] + PAGES, e.table[0], PAGES * sizeof e.table[0][0]);
        l.rows[0] = 1;
        for (uint32_t times = 1; times <= 2; times++) {
            e.lengths[0] = times * PAGES;
            list_pages(&e, &of, 1, times == 2, &l);
            OK(tamis_plan_view_begin(e.plan, &l.step, &test_error));
            e.lengths[0] = PAGES; /* the same queries */
            attend_layers(&e, &of, &one, 0, LAYERS);
            OK(tamis_plan_step_end(e.plan, &test_error));
            OK(tamis_buffer_read(e.out.buffer, 0, times == 1 ? once : twice, sizeof once,
                                 &test_error));
        }
        for (uint32_t i = 0; k == 0 && i < WIDTH; i++)
            ops_near("out", i, (&twice[0][0])[i], (&once[0][0])[i], 1e-5);
        close_engine(&e);
    }
}

/* Each layer may take another form, which needs other scratch: here CUDA's matrix units serve the second
 * alone, whose tiles take more for many sequences of two rows beside one of a whole tile. */
static void layers_may_lie_as_no_other_does(void **state) {
    (void)state;
    enum { MANY = 512, SIZE = 16, LONG = MANY * SIZE, OF = 20, ALL = 32 + 2 * (OF - 1) };
    const uint64_t bytes = (uint64_t)LONG * KV * DIM * 2, slots = KV * DIM;
    static int32_t table[MANY * OF];
    uint32_t lengths[OF], rows[OF];
    ops_rig rig;
    tamis_cache *view = NULL;
    tamis_plan *plan = NULL;
    tamis_kv_values values[LAYERS];
    tamis_kv kv[LAYERS];
    static float out[ALL * WIDTH];
    void *ones = malloc(bytes);
    ops_open(&rig);
    assert_non_null(ones);
    for (uint64_t i = 0; i < bytes / 2; i++)
        ((uint16_t *)ones)[i] = 0x3c00;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        values[layer] = (tamis_kv_values){.data = ops_send(&rig, ones, bytes, 0),
                                          .page_stride = SIZE * slots,
                                          .head_stride = layer ? DIM : SIZE * DIM,
                                          .slot_stride = layer ? slots : DIM};
        kv[layer] = (tamis_kv){.data = ops_send(&rig, ones, bytes, 0),
                               .dtype = TAMIS_F16,
                               .layout = TAMIS_KV_STRIDES,
                               .page_size = SIZE,
                               .head_dim = DIM,
                               .n_pages = MANY,
                               .page_stride = SIZE * slots,
                               .head_stride = DIM,
                               .slot_stride = slots,
                               .values = &values[layer]};
    }
    free(ones);
    for (uint32_t i = 0; i < MANY * OF; i++)
        table[i] = (int32_t)(i % MANY);
    for (uint32_t i = 0; i < OF; i++) {
        lengths[i] = LONG - 1; /* of pages that all share, one sequence fills some */
        rows[i] = i ? 2 : 32;
    }
    const tamis_view_params p = {
        .n_layers = LAYERS, .n_heads = HEADS, .n_kv_heads = KV, .layers = kv};
    const tamis_plan_params of = {.max_sequences = OF, .max_rows = ALL, .max_context = LONG};
    const tamis_view_step step = {.count = OF,
                                  .exact = 1,
                                  .rows = rows,
                                  .lengths = lengths,
                                  .table = table,
                                  .table_stride = MANY};
    static const float zeros[ALL * WIDTH];
    const tamis_rows q = ops_rows(ops_send(&rig, zeros, sizeof zeros, 0), 0);
    const tamis_rows to = ops_rows(ops_room(&rig, sizeof zeros, 0), 0);
    OK(tamis_view_create(rig.context, &p, &view, &test_error));
    OK(tamis_plan_create(view, &of, &plan, &test_error));
    OK(tamis_plan_view_begin(plan, &step, &test_error));
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        OK(tamis_plan_attend(plan, layer, &q, &to, &test_error));
        OK(tamis_buffer_read(to.buffer, 0, out, sizeof out, &test_error));
        for (uint32_t i = 0; i < ALL * WIDTH; i++)
            ops_near("out", i, out[i], 1.0, 1e-5);
    }
    OK(tamis_plan_step_end(plan, &test_error));
    tamis_plan_destroy(&plan);
    tamis_cache_destroy(&view);
    ops_close(&rig);
}

/* Rows that are kept see what they would have seen. */
static void rows_of_an_exact_step_may_be_left_out(void **state) {
    (void)state;
    static float all[30][HEADS][DIM], kept[2][HEADS][DIM];
    const uint32_t of = 0, rows = 30, two[] = {10, 29};
    engine e;
    static lists l;
    open_engine(&e, HND, 16, TAMIS_SELECT_QUEST, 0);
    grow(&e, 0, rows);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        write_engine(&e, layer, 0, rows);
    send_engine(&e);
    l.rows[0] = rows;
    list_pages(&e, &of, 1, false, &l);
    l.step.exact = 1;
    OK(tamis_plan_view_begin(e.plan, &l.step, &test_error));
    attend_layers(&e, &of, &rows, 0, 2);
    OK(tamis_buffer_read(e.out.buffer, 0, all, sizeof all, &test_error));
    OK(tamis_plan_step_cancel(e.plan, &test_error));
    OK(tamis_plan_view_begin(e.plan, &l.step, &test_error));
    attend_layers(&e, &of, &rows, 0, 1);
    OK(tamis_plan_step_keep_rows(e.plan, two, 2, &test_error));
    fill_rows(&e, 1, &of, &rows, 1);
    for (uint32_t i = 0; i < 2; i++) {
        tamis_rows from = e.q, to = e.k;
        static float q[HEADS][DIM];
        OK(tamis_buffer_read(from.buffer, two[i] * sizeof q, q, sizeof q, &test_error));
        OK(tamis_buffer_write(to.buffer, i * sizeof q, q, sizeof q, &test_error));
    }
    OK(tamis_plan_attend(e.plan, 1, &e.k, &e.out, &test_error));
    OK(tamis_buffer_read(e.out.buffer, 0, kept, sizeof kept, &test_error));
    for (uint32_t i = 0; i < 2 * WIDTH; i++)
        ops_near("kept", i, (&kept[0][0][0])[i], (&all[two[i / WIDTH]][0][0])[i % WIDTH], 1e-5);
    OK(tamis_plan_step_end(e.plan, &test_error));
    close_engine(&e);
}

/* Steps under fixed launches, and timed ones, give the bits of others; what a graph did is marked. */
static void fixed_launches_and_times_change_no_bit(void **state) {
    (void)state;
    static const uint32_t flags[] = {TAMIS_PLAN_FIXED_LAUNCHES, TAMIS_PLAN_TIMING,
                                     TAMIS_PLAN_UNFUSED};
    static const uint32_t of[SEQS] = {0, 1, 2}, other[SEQS] = {1, 2, 0}, one[SEQS] = {1, 1, 1};
    for (uint32_t f = 0; f < 3; f++) {
        engine e;
        static lists l;
        tamis_plan_times times;
        tamis_plan_counters counters;
        open_engine(&e, HND, 8, TAMIS_SELECT_QUEST, 0);
        tamis_plan_destroy(&e.plan);
        e.params.flags = flags[f];
        OK(tamis_plan_create(e.view, &e.params, &e.plan, &test_error));
        for (uint32_t b = 0; b < SEQS; b++)
            for (uint32_t piece = 0; piece < 2; piece++) {
                const uint32_t rows = 40 - b;
                step_both(&e, &b, &rows, 1, 0, piece);
            }
        for (uint32_t i = 0; i < 9; i++)
            step_both(&e, i % 2 ? of : other, one, SEQS, SEQS, i % 3 == 0);
        tamis_plan_get_times(e.plan, &times);
        assert_true(flags[f] != TAMIS_PLAN_TIMING || times.attend_us + times.fused_us > 0);
        if (flags[f] == TAMIS_PLAN_FIXED_LAUNCHES) {
            tamis_plan_get_counters(e.plan, &counters);
            const uint64_t steps = counters.steps, selected = counters.rows_selected;
            for (uint32_t b = 0; b < SEQS; b++) {
                grow(&e, b, 1);
                l.rows[b] = 1;
            }
            list_pages(&e, of, SEQS, true, &l);
            OK(tamis_plan_view_begin(e.plan, &l.step, &test_error));
            OK(tamis_plan_step_mark_replayed(e.plan, &test_error));
            OK(tamis_plan_step_end(e.plan, &test_error));
            tamis_plan_get_counters(e.plan, &counters);
            assert_int_equal(counters.steps, steps + 1);
            assert_int_equal(counters.rows_selected, selected + SEQS * LAYERS);
        }
        close_engine(&e);
    }
}

/* In any order, and with a step open; what outlives its origin answers E_STATE. */
static void views_and_plans_end_in_any_order(void **state) {
    (void)state;
    engine e;
    static lists l;
    tamis_plan *second = NULL;
    tamis_plan_memory measured = {0}, taken = {0};
    tamis_cache_stats stats;
    const uint32_t of = 0;
    open_engine(&e, TWO, 16, TAMIS_SELECT_QUEST, 0);
    OK(tamis_plan_measure(e.view, &e.params, &measured, &test_error));
    OK(tamis_plan_get_memory(e.plan, &taken, &test_error));
    assert_memory_equal(&measured, &taken, sizeof taken);
    tamis_cache_get_stats(e.view, &stats);
    assert_int_equal(stats.pages_total, PAGES);
    assert_int_equal(stats.bytes_reserved, (uint64_t)LAYERS * KV * PAGES * 2 * DIM * sizeof(float));
    assert_int_equal(stats.sequences + stats.pages_held + stats.bytes_held, 0);
    OK(tamis_plan_create(e.view, &e.params, &second, &test_error));
    grow(&e, 0, 1);
    l.rows[0] = 1;
    list_pages(&e, &of, 1, false, &l);
    OK(tamis_plan_view_begin(second, &l.step, &test_error));
    FAILS(tamis_plan_view_begin(e.plan, &l.step, &test_error), TAMIS_E_STATE, "a step on the view");
    tamis_plan_destroy(&second);
    OK(tamis_plan_view_begin(e.plan, &l.step, &test_error));
    tamis_cache_destroy(&e.view);
    FAILS(tamis_plan_attend(e.plan, 0, &e.q, &e.out, &test_error), TAMIS_E_STATE, "");
    FAILS(tamis_plan_view_begin(e.plan, &l.step, &test_error), TAMIS_E_STATE, "");
    close_engine(&e);
}

/* ---- Refused --------------------------------------------------------------------------------- */

static int read_nothing(void *user, void *bytes, size_t n) {
    (void)user, (void)bytes, (void)n;
    fail_msg("nothing is read");
    return -1;
}

static void what_writes_is_refused(void **state) {
    (void)state;
    engine e;
    tamis_sequence id = 0;
    tamis_plan *plan = NULL;
    const tamis_bounds mean = {.kind = TAMIS_BOUNDS_MEAN};
    static lists l;
    const uint32_t of = 0;
    open_engine(&e, NHD, 16, TAMIS_SELECT_QUEST, 0);
    const tamis_step step = {.sequences = e.ids, .count = 1};
    FAILS(tamis_cache_add(e.view, &id, &test_error), TAMIS_E_UNSUPPORTED,
          "tamis_cache_add: the cache is a view of memory that the caller fills");
    FAILS(tamis_cache_set_bounds(e.view, &mean, &test_error), TAMIS_E_UNSUPPORTED,
          "tamis_cache_set_bounds: the cache is a view");
    const tamis_save_params saved = {0};
    FAILS(tamis_plan_restore(e.plan, &saved, read_nothing, NULL, &id, &test_error),
          TAMIS_E_UNSUPPORTED, "tamis_plan_restore: the cache is a view");
    FAILS(tamis_plan_step_begin(e.plan, &step, &test_error), TAMIS_E_UNSUPPORTED,
          "tamis_plan_step_begin: the cache is a view");
    for (int kind = 1; kind < test_evictions(); kind++) {
        tamis_plan_params p = e.params;
        tamis_eviction_default((tamis_eviction_kind)kind, &p.eviction);
        FAILS(tamis_plan_create(e.view, &p, &plan, &test_error), TAMIS_E_UNSUPPORTED,
              "a plan with an eviction: the cache is a view");
    }
    static const uint32_t flags[] = {TAMIS_PLAN_TREES, TAMIS_PLAN_VERIFY, TAMIS_PLAN_GIVE_BACK,
                                     TAMIS_PLAN_ROTATED, TAMIS_PLAN_ROW_MASSES};
    for (uint32_t i = 0; i < 5; i++) {
        tamis_plan_params p = e.params;
        p.flags = flags[i];
        FAILS(tamis_plan_create(e.view, &p, &plan, &test_error), TAMIS_E_UNSUPPORTED,
              "the cache is a view of memory");
    }
    tamis_plan_params loads = e.params;
    loads.load_dtypes = 1u << TAMIS_F32;
    FAILS(tamis_plan_create(e.view, &loads, &plan, &test_error), TAMIS_E_UNSUPPORTED,
          "a plan with load_dtypes: the cache is a view");
    grow(&e, 0, 1);
    l.rows[0] = 1;
    list_pages(&e, &of, 1, false, &l);
    FAILS(tamis_plan_view_begin(e.beside, &l.step, &test_error), TAMIS_E_ARGUMENT,
          "the plan's cache is no view");
    OK(tamis_plan_view_begin(e.plan, &l.step, &test_error));
    FAILS(tamis_plan_write(e.plan, 0, &e.k, &e.v, &test_error), TAMIS_E_UNSUPPORTED,
          "writing K and V: the cache is a view");
    OK(tamis_plan_step_cancel(e.plan, &test_error));
    FAILS(tamis_view_bound_pages(e.cache, e.table[0], 1, &test_error), TAMIS_E_ARGUMENT, "no view");
    FAILS(tamis_view_bound_pages(NULL, e.table[0], 1, &test_error), TAMIS_E_ARGUMENT,
          "view is NULL");
    e.table[0][3] = PAGES;
    FAILS(tamis_view_bound_pages(e.view, e.table[0], 4, &test_error), TAMIS_E_ARGUMENT,
          "page 3 is 96: the view has 96 pages");
    close_engine(&e);
}

/* One thing of a step, or of a view, changed, and the call is refused. */
#define REFUSED(change, part)                                                                      \
    do {                                                                                           \
        list_pages(&e, of, SEQS, csr, &l);                                                         \
        for (uint32_t i_ = 0; i_ < SEQS; i_++)                                                     \
            l.rows[i_] = 1;                                                                        \
        change;                                                                                    \
        FAILS(tamis_plan_view_begin(e.plan, &l.step, &test_error), TAMIS_E_ARGUMENT, part);        \
    } while (0)

static void wrong_tables_are_refused(void **state) {
    (void)state;
    engine e;
    static lists l;
    static const uint32_t of[SEQS] = {0, 1, 2}, rows[SEQS] = {5, 17, 16};
    open_engine(&e, HND, 16, TAMIS_SELECT_QUEST, 0);
    step_both(&e, of, rows, SEQS, 0, true);
    bool csr = false;
    REFUSED(l.step.count = 0, "the step has no sequences");
    REFUSED(l.step.count = 4, "4 sequences exceed max_sequences 3");
    REFUSED(l.step.reserved[2] = 5, "reserved[2] of tamis_view_step is 5");
    REFUSED(l.step.reserved32 = 1, "reserved32 of tamis_view_step is 1");
    REFUSED(l.step.table = NULL, "the step has no table");
    REFUSED(l.step.lengths = NULL, "a table without lengths");
    REFUSED(l.step.indices = l.indices, "indices without indptr");
    REFUSED(l.step.last_page_len = l.last, "last_page_len without indptr");
    REFUSED(l.rows[1] = 0, "sequence 1 brings no rows");
    REFUSED(l.lengths[2] = 0, "sequence 2 has 0 tokens, and 1 rows among them");
    REFUSED(l.rows[2] = 17, "sequence 2 has 16 tokens, and 17 rows among them");
    REFUSED(l.lengths[0] = CONTEXT + 1, "sequence 0 has 257 tokens, which exceed max_context 256");
    REFUSED((l.step.table_stride = 1), "sequence 1 has 17 tokens: table_stride has room for 16");
    REFUSED(l.table[1][1] = -1, "page 1 of sequence 1 is -1: the view has 96 pages");
    REFUSED(l.table[2][0] = PAGES, "page 0 of sequence 2 is 96: the view has 96 pages");
    REFUSED(l.rows[1] = 9, "11 rows go through the selection, which exceed max_selected_rows 8");
    REFUSED(l.step.exact_from = 3, "exact_from is 3: the step has 3 sequences");
    REFUSED((l.step.exact = 1, l.step.exact_from = 1), "exact_from is 1 in a step that is exact");
    csr = true;
    REFUSED(l.step.table = l.table[0], "in two forms: by indptr, and by table");
    REFUSED(l.step.lengths = l.lengths, "in two forms: by indptr, and by lengths");
    REFUSED(l.step.table_stride = 3, "in two forms: by indptr, and by table_stride");
    REFUSED(l.step.indices = NULL, "indptr without indices");
    REFUSED(l.step.last_page_len = NULL, "indptr without last_page_len");
    REFUSED(l.indptr[0] = -2, "indptr[0] is -2");
    REFUSED(l.indptr[2] = l.indptr[1], "indptr[1] is 1 and the one behind it 1");
    REFUSED(l.last[1] = 17, "last_page_len of sequence 1 is 17: pages have 16 slots");
    REFUSED(l.last[2] = 0, "last_page_len of sequence 2 is 0");
    REFUSED(l.indices[2] = 1000, "page 1 of sequence 1 is 1000");
    const uint32_t one[SEQS] = {1, 1, 1};
    step_both(&e, of, one, SEQS, SEQS, true); /* nothing was lost */
    close_engine(&e);
}

/* A list that names pages more than once is no longer than one of all pages: tables have room for that. */
static void wrong_views_are_refused(void **state) {
    (void)state;
    engine e;
    tamis_cache *view = NULL;
    open_engine(&e, TWO, 16, TAMIS_SELECT_FULL, 0);
    tamis_view_params p = {.n_layers = LAYERS, .n_heads = HEADS, .n_kv_heads = KV, .layers = e.kv};
    const tamis_kv sound = e.kv[1];
    const tamis_kv_values sound_values = e.values[1];
#define WRONG(change, code, part)                                                                  \
    do {                                                                                           \
        tamis_view_params was = p;                                                                 \
        change;                                                                                    \
        FAILS(tamis_view_create(e.rig.context, &p, &view, &test_error), code, part);               \
        p = was;                                                                                   \
        e.kv[1] = sound;                                                                           \
        e.values[1] = sound_values;                                                                \
    } while (0)
    WRONG(p.n_layers = 0, TAMIS_E_ARGUMENT, "n_layers is 0");
    WRONG(p.layers = NULL, TAMIS_E_ARGUMENT, "layers is NULL");
    WRONG(p.n_heads = 5, TAMIS_E_ARGUMENT, "n_heads 5 is not a multiple of n_kv_heads 2");
    WRONG(p.n_heads = 256, TAMIS_E_UNSUPPORTED, "groups of 128; at most 64");
    WRONG((p.n_layers = 1u << 23, p.n_kv_heads = p.n_heads), TAMIS_E_UNSUPPORTED,
          "n_layers 8388608 times n_kv_heads 4 exceeds 16777216 lanes");
    WRONG((p.n_layers = 1, p.n_kv_heads = p.n_heads = 1u << 24, e.kv[0].n_pages = 200),
          TAMIS_E_UNSUPPORTED, "n_pages 200 times n_kv_heads 16777216 exceeds 2147483647");
    e.kv[0].n_pages = PAGES;
    WRONG((p.n_heads = p.n_kv_heads = 1u << 31), TAMIS_E_UNSUPPORTED, "exceeds 16777216 lanes");
    WRONG(p.bounds_dtype = (tamis_bounds_dtype)2, TAMIS_E_ARGUMENT, "bounds_dtype 2 is neither");
    WRONG(p.bounds.kind = (tamis_bounds_kind)9, TAMIS_E_ARGUMENT, "9");
    WRONG(p.reserved[0] = 3, TAMIS_E_ARGUMENT, "reserved[0] of tamis_view_params is 3");
    WRONG(e.kv[1].page_size = 32, TAMIS_E_ARGUMENT, "layer 1: page_size is 32, and 16 in layer 0");
    WRONG(e.kv[1].dtype = TAMIS_F16, TAMIS_E_ARGUMENT, "layer 1: dtype is 1, and 0 in layer 0");
    WRONG(e.kv[1].bounds = e.kv[1].data, TAMIS_E_ARGUMENT, "layer 1: bounds are given");
    WRONG(e.kv[1].data.buffer = NULL, TAMIS_E_ARGUMENT, "layer 1: data is absent");
    WRONG(e.kv[1].page_stride *= 4, TAMIS_E_ARGUMENT, "layer 1: data: 3121152 bytes from byte 0");
    WRONG(e.kv[1].head_stride = 0, TAMIS_E_UNSUPPORTED,
          "layer 1: head_stride is 0 (layout 3): 2 KV heads would read the same keys");
    WRONG(e.values[1].head_stride = 0, TAMIS_E_UNSUPPORTED,
          "layer 1: head_stride of values is 0: 2 KV heads would read the same values");
    WRONG((e.kv[1] =
               (tamis_kv){.data = sound.data, .page_size = 16, .head_dim = DIM, .n_pages = PAGES}),
          TAMIS_E_UNSUPPORTED, "layer 1: head_stride is 0 (layout 0)");
    if (on_cuda()) {
        WRONG((e.kv[1].page_stride = e.kv[1].channel_stride = 2), TAMIS_E_UNSUPPORTED,
              "channels of a row 2 elements apart: must be adjacent");
        WRONG((e.kv[1].n_pages = e.kv[0].n_pages = 2, e.kv[1].page_stride = 6000 + 1),
              TAMIS_E_UNSUPPORTED, "K and V rows with a stride of 6001 elements");
        e.kv[0].n_pages = PAGES;
    }
    WRONG(e.values[1].page_stride *= 4, TAMIS_E_ARGUMENT, "layer 1: values: 3121152 bytes");
#undef WRONG
    assert_null(view);
    close_engine(&e);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_gives_the_bits_of_a_cache),
        cmocka_unit_test(pages_of_any_size_read_the_same),
        cmocka_unit_test(bounds_come_by_calls_and_at_the_end),
        cmocka_unit_test(a_cancelled_step_can_be_repeated),
        cmocka_unit_test(lists_may_be_longer_than_the_view),
        cmocka_unit_test(layers_may_lie_as_no_other_does),
        cmocka_unit_test(rows_of_an_exact_step_may_be_left_out),
        cmocka_unit_test(fixed_launches_and_times_change_no_bit),
        cmocka_unit_test(views_and_plans_end_in_any_order),
        cmocka_unit_test(what_writes_is_refused),
        cmocka_unit_test(wrong_tables_are_refused),
        cmocka_unit_test(wrong_views_are_refused),
    };
    int skip = test_begin(argc, argv);
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
