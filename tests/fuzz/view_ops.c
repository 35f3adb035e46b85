/* SPDX-License-Identifier: Apache-2.0 */
/* The ops on a caller's K and V: strides, offsets and sizes of any kind over buffers of a given size.
 * A launch that is taken reads and writes within them. */
#include "tests/fuzz/view_ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 4, SEQUENCES = 3, HEADS = 3, TABLE = 4096 };

typedef struct launch {
    fuzz *f;
    layer layer;
    tamis_batch batch;
    int32_t visible[ROWS * HEADS];
    tamis_rows q, out;
    uint64_t lanes; /* (row, KV head) */
    answer wanted;
} launch;

/* Memory of `bytes`, or rarely 4 bytes less, which must be refused. */
static tamis_place place_of(fuzz *f, answer *wanted, uint64_t bytes) {
    const uint64_t less = bytes > 4 && fuzz_rarely(f, 24) ? 4 : 0;
    if (less) *wanted = REFUSED;
    return (tamis_place){fuzz_room(f, bytes - less), 0};
}

static void draw_table(launch *l) {
    static int32_t table[TABLE];
    fuzz *f = l->f;
    tamis_batch *b = &l->batch;
    const uint32_t size = l->layer.kv.page_size;
    const uint64_t pages = b->max_visible / size + (b->max_visible % size != 0);
    b->head_stride = fuzz_take(f, 3) ? 0 : pages + fuzz_take(f, 3);
    b->seq_stride = pages + b->head_stride * (b->n_kv_heads - 1) + fuzz_take(f, 3);
    if (fuzz_rarely(f, 24)) b->seq_stride = fuzz_stride(f, b->seq_stride), l->wanted = EITHER;
    if (fuzz_rarely(f, 24)) b->head_stride = fuzz_stride(f, b->head_stride), l->wanted = EITHER;
    unsigned __int128 n = (unsigned __int128)(b->n_sequences - 1) * b->seq_stride + pages;
    n += (unsigned __int128)(b->n_kv_heads - 1) * b->head_stride;
    if (n > TABLE) l->wanted = REFUSED; /* no memory holds it */
    const uint64_t held = n > TABLE ? TABLE : (uint64_t)n;
    for (uint64_t i = 0; i < held; i++)
        table[i] = (int32_t)fuzz_take(f, l->layer.kv.n_pages < MAX_PAGES ? l->layer.kv.n_pages
                                                                         : MAX_PAGES);
    const uint64_t less = held > 1 && fuzz_rarely(f, 24);
    if (less) l->wanted = REFUSED;
    b->table = fuzz_send(f, table, held - less);
}

/* Rows of sequences in their order, each a tile of its own. */
static void draw_batch(launch *l) {
    fuzz *f = l->f;
    tamis_batch *b = &l->batch;
    int32_t tiles[ROWS][2], row_seq[ROWS], first[ROWS * HEADS];
    *b = (tamis_batch){.n_rows = 1 + fuzz_take(f, ROWS),
                       .n_kv_heads = l->layer.n_kv_heads,
                       .n_sequences = 1 + fuzz_take(f, SEQUENCES),
                       .max_visible = 1 + 2 * fuzz_take(f, 256)};
    b->n_heads = b->n_kv_heads * (1 + fuzz_take(f, 3));
    l->lanes = b->n_rows * b->n_kv_heads;
    for (uint32_t r = 0; r < b->n_rows; r++) {
        tiles[r][0] = (int32_t)r;
        tiles[r][1] = 1;
        row_seq[r] = (int32_t)fuzz_take(f, b->n_sequences);
    }
    for (uint32_t i = 0; i < l->lanes; i++) {
        l->visible[i] = (int32_t)(fuzz_take(f, 256) * 2 % b->max_visible) + 1;
        first[i] = (int32_t)fuzz_take(f, (uint32_t)l->visible[i]);
    }
    b->tiles = fuzz_send(f, tiles[0], 2 * b->n_rows);
    b->row_seq = fuzz_send(f, row_seq, b->n_rows);
    b->visible = fuzz_send(f, l->visible, l->lanes);
    if (fuzz_take(f, 3) == 2) b->first = fuzz_send(f, first, l->lanes);
    draw_table(l);
    if (!fuzz_rarely(f, 16)) return;
    uint32_t *one_of[] = {&b->n_heads, &b->n_rows, &b->n_tiles, &b->max_tile_rows, &b->n_kv_heads};
    *one_of[fuzz_take(f, 5)] += 1 + fuzz_take(f, 128);
    l->wanted = EITHER;
    /* What more rows or heads would have is not in the tables' memory: they are refused. */
    if (b->n_rows * b->n_kv_heads > l->lanes) l->wanted = REFUSED;
}

static tamis_rows draw_rows(launch *l) {
    fuzz *f = l->f;
    const uint64_t width = (uint64_t)l->batch.n_heads * l->layer.kv.head_dim;
    const uint64_t stride = fuzz_take(f, 2) ? width + fuzz_take(f, 32) : 0;
    const uint64_t elements = (l->batch.n_rows - 1) * (stride ? stride : width) + width;
    tamis_rows rows = {.row_stride = stride};
    rows.buffer = place_of(f, &l->wanted, elements * sizeof(float)).buffer;
    if (fuzz_rarely(f, 24)) rows.row_stride = fuzz_stride(f, width), l->wanted = EITHER;
    return rows;
}

static void hold_everything(launch *l) {
    const uint64_t floats = tamis_buffer_bytes(l->q.buffer) / sizeof(float);
    float *q = tamis_buffer_data(l->q.buffer);
    for (uint64_t i = 0; i < floats; i++)
        q[i] = HELD;
    for (uint32_t page = 0; page < l->layer.kv.n_pages && page < MAX_PAGES; page++)
        for (uint32_t slot = 0; slot < l->layer.kv.page_size; slot++)
            layer_hold(&l->layer, page, slot);
}

static tamis_status bounds(launch *l) {
    int32_t pages[4];
    fuzz *f = l->f;
    tamis_bounds_params p = {.kv = l->layer.kv,
                             .n = 1 + fuzz_take(f, 4),
                             .n_kv_heads = l->layer.n_kv_heads,
                             .bounds = {.kind = (tamis_bounds_kind)fuzz_take(f, 3)}};
    for (uint32_t i = 0; i < p.n; i++)
        pages[i] = (int32_t)fuzz_take(f, p.kv.n_pages < MAX_PAGES ? p.kv.n_pages : MAX_PAGES);
    p.pages = fuzz_send(f, pages, p.n);
    return tamis_op_bounds(f->context, &p, &test_error);
}

/* The answer of an op that reads only a part of what the attend reads. */
static answer answer_of_part(const launch *l) {
    return l->wanted == TAKEN ? TAKEN : EITHER;
}

/* A stride of scores or logits; rarely one that is too small. */
static uint32_t draw_stride(fuzz *f, answer *wanted, uint32_t least) {
    if (least > 1 && fuzz_rarely(f, 24)) {
        *wanted = REFUSED;
        return 1 + fuzz_take(f, least - 1);
    }
    return (least ? least : 1) + fuzz_take(f, 3);
}

/* Scores, and lists of pages of them. */
static tamis_lists choose(launch *l) {
    fuzz *f = l->f;
    const tamis_lists none = {0};
    answer wanted = answer_of_part(l);
    const uint32_t size = l->layer.kv.page_size, full = l->batch.max_visible / size;
    const uint32_t stride = draw_stride(f, &wanted, full);
    const tamis_score_pages_params score = {.kv = l->layer.kv,
                                            .batch = l->batch,
                                            .q = l->q,
                                            .stride = stride,
                                            .scores = place_of(f, &wanted, l->lanes * stride * 4)};
    if (!EXPECT(tamis_op_score_pages(f->context, &score, &test_error), wanted)) return none;
    tamis_select_params select = {.batch = l->batch,
                                  .granularity = size,
                                  .k = 1 + fuzz_take(f, 6),
                                  .recent = fuzz_take(f, 2),
                                  .scores = score.scores,
                                  .stride = stride};
    select.lists.capacity = select.k + 2 + fuzz_take(f, 2);
    wanted = answer_of_part(l);
    select.lists.pages = place_of(f, &wanted, l->lanes * select.lists.capacity * 4);
    select.lists.count = place_of(f, &wanted, l->lanes * 4);
    return EXPECT(tamis_op_select(f->context, &select, &test_error), wanted) ? select.lists : none;
}

static void check_out(const launch *l) {
    const uint64_t width = (uint64_t)l->batch.n_heads * l->layer.kv.head_dim;
    const uint64_t stride = l->out.row_stride ? l->out.row_stride : width;
    const float *out = tamis_buffer_data(l->out.buffer);
    for (uint64_t r = 0; r < l->batch.n_rows; r++)
        for (uint64_t i = 0; i < width; i++) {
            const float got = out[r * stride + i];
            /* A list need not have a page that the row sees. */
            if (!(fabsf(got - HELD) <= 1e-5f) && got != 0)
                fail_msg("row %u: element %u is %g", (uint32_t)r, (uint32_t)i, (double)got);
        }
}

static void attend(launch *l, const tamis_lists *lists) {
    fuzz *f = l->f;
    uint64_t bytes = 0;
    tamis_attend_params p = {
        .kv = l->layer.kv, .batch = l->batch, .lists = *lists, .q = l->q, .out = l->out};
    if (!EXPECT(tamis_op_attend_scratch(f->context, &p, &bytes, &test_error), EITHER)) return;
    if (fuzz_take(f, 2))
        p.lse = place_of(f, &l->wanted, (uint64_t)p.batch.n_rows * p.batch.n_heads * 4);
    if (fuzz_take(f, 4) == 3) {
        p.logit_stride = draw_stride(f, &l->wanted, p.batch.max_visible);
        p.logits = place_of(f, &l->wanted, p.batch.n_rows * p.batch.n_heads * p.logit_stride * 4);
    }
    p.scratch.buffer = fuzz_room(f, bytes);
    if (EXPECT(tamis_op_attend(f->context, &p, &test_error), l->wanted)) check_out(l);
}

static void page_mass(launch *l) {
    fuzz *f = l->f;
    uint64_t bytes = 0;
    const uint32_t full = l->batch.max_visible / l->layer.kv.page_size;
    answer wanted = answer_of_part(l);
    tamis_page_mass_params p = {
        .kv = l->layer.kv, .batch = l->batch, .q = l->q, .stride = draw_stride(f, &wanted, full)};
    if (!EXPECT(tamis_op_page_mass_scratch(f->context, &p, &bytes, &test_error), EITHER)) return;
    p.scores = place_of(f, &wanted, l->lanes * p.stride * 4);
    p.scratch.buffer = fuzz_room(f, bytes);
    EXPECT(tamis_op_page_mass(f->context, &p, &test_error), wanted);
}

void run_ops(fuzz *f) {
    launch l = {.f = f};
    tamis_lists lists = {0};
    layer_draw(f, &l.layer, 1 + fuzz_take(f, HEADS), true);
    l.wanted = l.layer.wanted;
    draw_batch(&l);
    l.q = draw_rows(&l);
    l.out = draw_rows(&l);
    if (!l.q.buffer || !l.out.buffer) return;
    if (!EXPECT(bounds(&l), l.layer.wanted)) return;
    hold_everything(&l);
    EXPECT(bounds(&l), TAKEN);
    if (fuzz_take(f, 4) == 3) page_mass(&l);
    if (fuzz_take(f, 2)) lists = choose(&l);
    attend(&l, &lists);
}
