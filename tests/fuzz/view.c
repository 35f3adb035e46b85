/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes views, and the ops on a caller's K and V, on the reference. The input draws layouts, right and
 * wrong, then steps with page lists of both forms, right and wrong. What is wrong must be refused; what
 * is taken is attended, over memory of exactly the described size in which all that rows may not read
 * is NaN. */
#include "tests/fuzz/refusal.h"
#include "tests/fuzz/view_ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SEQUENCES = 3, MAX_ROWS = 24, MAX_STEPS = 10, MAX_LIST = 64 };

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static tamis_context *context;

static void close_context(void) {
    tamis_context_destroy(&context);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    const tamis_context_params params = {.device = "reference"};
    OK(tamis_context_create(&params, &context, &test_error));
    atexit(close_context);
    refusal_abort_on_failure();
    return 0;
}

/* A view with a plan. */
typedef struct world {
    fuzz *f;
    layer layers[MAX_LAYERS];
    uint32_t n_layers, n_heads, n_kv_heads, page_size, n_pages, width;
    tamis_cache *view;
    tamis_plan *plan;
    tamis_plan_params params; /* filled in */
} world;

/* A step, with memory of exactly the size that the contract gives to each of its arrays. */
typedef struct step {
    tamis_view_step in;
    uint32_t *rows, *lengths, n_rows;
    int32_t *table, *indptr, *indices, *last;
} step;

/* ---- The view and its plan ------------------------------------------------------------------- */

static void open_view(world *w) {
    static tamis_kv kv[MAX_LAYERS];
    fuzz *f = w->f;
    answer wanted = TAKEN;
    w->n_kv_heads = 1 + fuzz_take(f, 3);
    w->n_heads = w->n_kv_heads * (1 + fuzz_take(f, 3));
    w->n_layers = 1 + fuzz_take(f, MAX_LAYERS);
    layer_draw(f, &w->layers[0], w->n_kv_heads, false);
    for (uint32_t i = 1; i < w->n_layers; i++)
        layer_draw_like(f, &w->layers[i], &w->layers[0]);
    for (uint32_t i = 0; i < w->n_layers; i++) {
        kv[i] = w->layers[i].kv;
        if (w->layers[i].wanted == REFUSED) wanted = REFUSED;
        if (w->layers[i].wanted == EITHER && wanted == TAKEN) wanted = EITHER;
    }
    tamis_view_params p = {.n_layers = w->n_layers,
                           .n_heads = w->n_heads,
                           .n_kv_heads = w->n_kv_heads,
                           .bounds_dtype = (tamis_bounds_dtype)fuzz_take(f, 2),
                           .bounds = {.kind = (tamis_bounds_kind)fuzz_take(f, 3)},
                           .layers = kv};
    if (fuzz_rarely(f, 16)) {
        static const uint32_t odd[] = {0, 7, UINT32_MAX, 1u << 31, 1u << 20, 65};
        uint32_t *one_of[] = {&p.n_heads, &p.n_kv_heads};
        const bool all = fuzz_take(f, 2);
        *one_of[fuzz_take(f, 2)] = odd[fuzz_take(f, 6)];
        if (all) p.n_heads = p.n_kv_heads;
        wanted = wanted == TAKEN ? EITHER : wanted;
        if (p.n_kv_heads == 0 || p.n_heads == 0 || p.n_heads % p.n_kv_heads) wanted = REFUSED;
    }
    if (!EXPECT(tamis_view_create(f->context, &p, &w->view, &test_error), wanted)) return;
    w->n_heads = p.n_heads;
    w->n_kv_heads = p.n_kv_heads;
    w->page_size = kv[0].page_size;
    w->n_pages = kv[0].n_pages;
    w->width = w->n_heads * kv[0].head_dim;
    for (uint32_t i = 0; i < w->n_layers; i++)
        w->layers[i].n_kv_heads = w->n_kv_heads;
}

static void open_plan(world *w) {
    static const uint32_t flags[] = {0, 0, 0, TAMIS_PLAN_UNFUSED, TAMIS_PLAN_FIXED_LAUNCHES};
    static const tamis_selection_kind kinds[] = {TAMIS_SELECT_QUEST, TAMIS_SELECT_FULL,
                                                 TAMIS_SELECT_WINDOW, TAMIS_SELECT_ORACLE,
                                                 TAMIS_SELECT_RANDOM};
    fuzz *f = w->f;
    answer wanted = EITHER;
    tamis_plan_params p = {.max_sequences = 1 + fuzz_take(f, MAX_SEQUENCES),
                           .max_rows = 1 + fuzz_take(f, MAX_ROWS),
                           .max_context = 1 + 2 * fuzz_take(f, 256),
                           .max_selected_rows = fuzz_take(f, 6),
                           .flags = flags[fuzz_take(f, 5)]};
    tamis_selection_default(kinds[fuzz_take(f, 5)], &p.selection);
    p.selection.sinks = fuzz_take(f, 2) * w->page_size;
    p.selection.recent = fuzz_take(f, 2) * w->page_size;
    p.selection.budget = (2 + fuzz_take(f, 4)) * w->page_size;
    p.attention.sliding_window = fuzz_take(f, 4) == 3 ? 1 + fuzz_take(f, 64) : 0;
    if (fuzz_rarely(f, 16)) p.flags = 1u << fuzz_take(f, 9), wanted = EITHER;
    if (!EXPECT(tamis_plan_create(w->view, &p, &w->plan, &test_error), wanted)) return;
    tamis_plan_get_params(w->plan, &w->params);
}

/* ---- Steps ----------------------------------------------------------------------------------- */

static void *copy_of(const void *from, size_t bytes) {
    void *to = malloc(bytes ? bytes : 1);
    assert_non_null(to);
    if (bytes) memcpy(to, from, bytes);
    return to;
}

static void draw_lengths(world *w, step *s) {
    uint32_t rows[MAX_SEQUENCES + 1], lengths[MAX_SEQUENCES + 1];
    fuzz *f = w->f;
    s->in.count = 1 + fuzz_take(f, w->params.max_sequences);
    if (fuzz_rarely(f, 32)) s->in.count = fuzz_take(f, MAX_SEQUENCES + 2);
    for (uint32_t i = 0; i < s->in.count; i++) {
        rows[i] = fuzz_take(f, 3) == 2 ? 1 + fuzz_take(f, 12) : 1;
        const uint32_t room = w->params.max_context - rows[i];
        lengths[i] = rows[i];
        if (rows[i] < w->params.max_context) lengths[i] += fuzz_take(f, 256) * 2 % (room + 1);
        if (fuzz_rarely(f, 32)) rows[i] = fuzz_take(f, 2) ? 0 : UINT32_MAX;
        if (fuzz_rarely(f, 32))
            lengths[i] = fuzz_take(f, 2) ? fuzz_take(f, 3) : 256 * fuzz_take(f, 8);
    }
    s->rows = copy_of(rows, s->in.count * sizeof *rows);
    s->lengths = copy_of(lengths, s->in.count * sizeof *lengths);
}

static int32_t draw_page(world *w) {
    static const int32_t wrong[] = {-1, INT32_MIN, INT32_MAX, 0};
    fuzz *f = w->f;
    if (!fuzz_rarely(f, 64)) return (int32_t)fuzz_take(f, w->n_pages);
    const int32_t page = wrong[fuzz_take(f, 4)];
    return page ? page : (int32_t)w->n_pages;
}

static uint32_t pages_of(const world *w, uint32_t slots) {
    return slots / w->page_size + (slots % w->page_size != 0);
}

static void list_dense(world *w, step *s) {
    fuzz *f = w->f;
    uint64_t stride = fuzz_take(f, 3);
    for (uint32_t i = 0; i < s->in.count; i++)
        if (stride < pages_of(w, s->lengths[i])) stride = pages_of(w, s->lengths[i]);
    if (stride && fuzz_rarely(f, 16)) stride--;
    if (s->in.count == 1 && fuzz_take(f, 4) == 3) stride = 0;
    uint64_t n = s->in.count * stride;
    if (s->in.count == 1 && stride == 0) n = pages_of(w, s->lengths[0]);
    s->table = malloc(n * sizeof(int32_t) + 1);
    assert_non_null(s->table);
    for (uint64_t i = 0; i < n; i++)
        s->table[i] = draw_page(w);
    s->in.table = s->table;
    s->in.table_stride = stride;
    s->in.lengths = s->lengths;
}

static void list_csr(world *w, step *s) {
    fuzz *f = w->f;
    const uint32_t n = s->in.count;
    s->indptr = malloc((n + 1) * sizeof(int32_t));
    s->last = malloc(n * sizeof(int32_t) + 1);
    assert_true(s->indptr && s->last);
    s->indptr[0] = (int32_t)fuzz_take(f, 2);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t pages = pages_of(w, s->lengths[i]);
        s->last[i] = (int32_t)(s->lengths[i] - (pages ? pages - 1 : 0) * w->page_size);
        s->indptr[i + 1] = s->indptr[i] + (int32_t)pages;
        if (fuzz_rarely(f, 32)) s->last[i] = (int32_t)fuzz_take(f, 256) * 2 - 256;
    }
    const uint32_t n_indices = (uint32_t)s->indptr[n];
    if (fuzz_rarely(f, 32)) s->indptr[fuzz_take(f, n + 1)] = (int32_t)fuzz_take(f, 4) - 2;
    s->indices = malloc(n_indices * sizeof(int32_t) + 1);
    assert_non_null(s->indices);
    for (uint32_t i = 0; i < n_indices; i++)
        s->indices[i] = draw_page(w);
    s->in.indptr = s->indptr;
    s->in.indices = s->indices;
    s->in.last_page_len = s->last;
}

static void draw_step(world *w, step *s) {
    fuzz *f = w->f;
    *s = (step){0};
    draw_lengths(w, s);
    s->in.rows = s->rows;
    s->in.exact = fuzz_take(f, 3) == 0;
    if (!s->in.exact && fuzz_take(f, 3) == 2) s->in.exact_from = fuzz_take(f, MAX_SEQUENCES + 1);
    if (fuzz_take(f, 2))
        list_csr(w, s);
    else
        list_dense(w, s);
    if (!fuzz_rarely(f, 32)) return;
    const void **one_of[] = {(const void **)&s->in.lengths, (const void **)&s->in.table,
                             (const void **)&s->in.indptr, (const void **)&s->in.indices,
                             (const void **)&s->in.last_page_len};
    const void **changed = one_of[fuzz_take(f, 5)];
    *changed = *changed ? NULL : s->rows; /* a form that lacks one, or that has too many */
}

static void free_step(step *s) {
    void *arrays[] = {s->rows, s->lengths, s->table, s->indptr, s->indices, s->last};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
}

/* Tokens of a sequence as the step says them; UINT64_MAX where it says something that is wrong. */
static uint64_t length_of(const world *w, const step *s, uint32_t i) {
    const tamis_view_step *in = &s->in;
    if (!in->indptr) {
        const bool unbound = in->count == 1 && in->table_stride == 0;
        const bool fits = unbound || in->lengths[i] <= in->table_stride * w->page_size;
        return fits ? in->lengths[i] : UINT64_MAX;
    }
    if (in->last_page_len[i] < 1 || (uint32_t)in->last_page_len[i] > w->page_size)
        return UINT64_MAX;
    return (uint64_t)(in->indptr[i + 1] - in->indptr[i] - 1) * w->page_size +
           (uint32_t)in->last_page_len[i];
}

static const int32_t *list_of(const step *s, uint32_t i) {
    return s->in.indptr ? s->in.indices + s->in.indptr[i] : s->in.table + i * s->in.table_stride;
}

static bool forms_are_wrong(const step *s) {
    const tamis_view_step *in = &s->in;
    const bool csr = in->indptr && in->indices && in->last_page_len;
    const bool dense = in->table && in->lengths;
    const bool any_csr = in->indptr || in->indices || in->last_page_len;
    const bool any_dense = in->table || in->lengths || in->table_stride;
    if (csr == dense || (csr && any_dense) || (dense && any_csr)) return true;
    for (uint32_t i = 0; csr && i < in->count; i++)
        if (in->indptr[i] < 0 || in->indptr[i + 1] <= in->indptr[i]) return true;
    return false;
}

static bool sequence_is_wrong(const world *w, const step *s, uint32_t i) {
    const uint64_t length = length_of(w, s, i);
    if (length > w->params.max_context || s->rows[i] == 0 || s->rows[i] > length) return true;
    for (uint32_t p = 0; p < pages_of(w, (uint32_t)length); p++)
        if (list_of(s, i)[p] < 0 || (uint32_t)list_of(s, i)[p] >= w->n_pages) return true;
    return false;
}

/* What tamis/view.h says of a step. */
static answer answer_to(const world *w, step *s) {
    const tamis_view_step *in = &s->in;
    const tamis_plan_params *p = &w->params;
    const uint32_t from = in->exact ? 0 : in->exact_from ? in->exact_from : in->count;
    uint64_t selected = 0, all = 0;
    if (in->count == 0 || in->count > p->max_sequences || forms_are_wrong(s)) return REFUSED;
    if (in->exact_from >= in->count || (in->exact && in->exact_from)) return REFUSED;
    if (in->exact_from && p->flags & TAMIS_PLAN_FIXED_LAUNCHES) return REFUSED;
    for (uint32_t i = 0; i < in->count; i++) {
        if (sequence_is_wrong(w, s, i)) return REFUSED;
        if (i < from && s->rows[i] > 1 && p->flags & TAMIS_PLAN_FIXED_LAUNCHES) return REFUSED;
        all += s->rows[i];
        selected += i < from ? s->rows[i] : 0;
    }
    s->n_rows = (uint32_t)all;
    const bool listed = p->selection.kind != TAMIS_SELECT_FULL;
    return all > p->max_rows || (listed && selected > p->max_selected_rows) ? REFUSED : TAKEN;
}

/* ---- What is attended ------------------------------------------------------------------------ */

/* All tokens of the step's sequences are HELD; what else was, stays. */
static void hold(world *w, const step *s) {
    for (uint32_t layer = 0; layer < w->n_layers; layer++)
        for (uint32_t i = 0; i < s->in.count; i++)
            for (uint32_t t = 0; t < length_of(w, s, i); t++)
                layer_hold(&w->layers[layer], (uint32_t)list_of(s, i)[t / w->page_size],
                           t % w->page_size);
}

static tamis_rows rows_of(tamis_buffer *buffer, uint32_t stride) {
    return (tamis_rows){.buffer = buffer, .row_stride = stride};
}

/* Returns whether the layer was attended. */
static bool attend(world *w, const step *s, uint32_t layer) {
    fuzz *f = w->f;
    const uint32_t before = f->n_buffers, pad = 16 * fuzz_take(f, 2), stride = w->width + pad;
    const uint64_t elements = (s->n_rows - 1) * (uint64_t)stride + w->width;
    const uint32_t less = fuzz_rarely(f, 24) ? 4 : 0;
    tamis_buffer *q = fuzz_room(f, elements * sizeof(float));
    tamis_buffer *out = fuzz_room(f, elements * sizeof(float) - less);
    const tamis_rows q_rows = rows_of(q, pad ? stride : 0),
                     out_rows = rows_of(out, q_rows.row_stride);
    float *queries = tamis_buffer_data(q);
    const float *got = tamis_buffer_data(out);
    for (uint64_t i = 0; i < elements; i++)
        queries[i] = i % stride < w->width ? HELD : NAN;
    const bool taken = EXPECT(tamis_plan_attend(w->plan, layer, &q_rows, &out_rows, &test_error),
                              less ? REFUSED : TAKEN);
    for (uint64_t i = 0; taken && i < elements; i++)
        if (i % stride < w->width && !(fabsf(got[i] - HELD) <= 1e-5f))
            fail_msg("layer %u, row %u: element %u is %g", layer, (uint32_t)(i / stride),
                     (uint32_t)(i % stride), (double)got[i]);
    while (f->n_buffers > before)
        fuzz_drop(f);
    return taken;
}

static void read_selected(world *w, const step *s, bool attended) {
    fuzz *f = w->f;
    const uint32_t row = fuzz_take(f, 32), head = fuzz_take(f, 4), capacity = fuzz_take(f, 8);
    uint32_t count = 0, *pages = malloc(capacity * sizeof *pages + 1);
    const bool wrong = row >= s->n_rows || head >= w->n_kv_heads || !attended;
    assert_non_null(pages);
    if (EXPECT(tamis_plan_read_selected(w->plan, row, head, pages, capacity, &count, &test_error),
               wrong ? REFUSED : TAKEN))
        for (uint32_t i = 1; i < count && i < capacity; i++)
            assert_true(pages[i] > pages[i - 1]);
    free(pages);
}

static void run_step(world *w) {
    fuzz *f = w->f;
    bool attended = false;
    step s;
    draw_step(w, &s);
    const answer wanted = answer_to(w, &s);
    if (!EXPECT(tamis_plan_view_begin(w->plan, &s.in, &test_error), wanted)) {
        free_step(&s);
        return;
    }
    hold(w, &s);
    for (uint32_t layer = 0; layer < w->n_layers; layer++) {
        if (fuzz_rarely(f, 8)) continue;
        attended |= attend(w, &s, layer);
    }
    if (fuzz_take(f, 4) == 3) read_selected(w, &s, attended);
    if (fuzz_rarely(f, 8)) EXPECT(tamis_plan_view_begin(w->plan, &s.in, &test_error), REFUSED);
    if (fuzz_rarely(f, 8))
        EXPECT(tamis_plan_step_cancel(w->plan, &test_error), TAKEN);
    else
        EXPECT(tamis_plan_step_end(w->plan, &test_error), TAKEN);
    free_step(&s);
}

static void bound_pages(world *w) {
    fuzz *f = w->f;
    const uint32_t n = fuzz_take(f, 4);
    int32_t *pages = malloc(n * sizeof *pages + 1);
    answer wanted = TAKEN;
    assert_non_null(pages);
    for (uint32_t i = 0; i < n; i++) {
        pages[i] = draw_page(w);
        if (pages[i] < 0 || (uint32_t)pages[i] >= w->n_pages) wanted = REFUSED;
    }
    EXPECT(tamis_view_bound_pages(w->view, n ? pages : NULL, n, &test_error), wanted);
    free(pages);
}

static void run_view(fuzz *f) {
    world w = {.f = f};
    open_view(&w);
    if (w.view) open_plan(&w);
    for (uint32_t i = 0; w.plan && i < MAX_STEPS && f->at < f->end; i++) {
        if (fuzz_take(f, 5) == 4)
            bound_pages(&w);
        else
            run_step(&w);
    }
    tamis_plan_destroy(&w.plan);
    tamis_cache_destroy(&w.view);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz f = {.at = data, .end = data + size, .context = context};
    if (fuzz_take(&f, 3) == 2)
        run_ops(&f);
    else
        run_view(&f);
    fuzz_close(&f);
    return 0;
}
