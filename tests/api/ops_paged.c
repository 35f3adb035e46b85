/* SPDX-License-Identifier: Apache-2.0 */
/* The pipeline's ops over a cache of the caller's: pages of one KV head or of all (NHD, HND, keys
 * and values in two halves or buffers), each op against a plain computation, and against a plan's answer. */
#include "tests/api/ops_rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE = 8, DIM = 64, HEADS = 4, KV = 2, GROUP = HEADS / KV, SEQS = 2, ROWS = 5 };
enum { LISTED = 6, SLOTS = LISTED * SIZE, IDS = SEQS * KV * LISTED };
/* Beside tamis_kv_layout, all by strides: K and V in two halves; in two buffers, V as HND; V transposed
 * in a buffer of its own, [head][dim][slots of all pages]; both in two halves, [page][head][dim][slot]. */
enum { HALVES = TAMIS_KV_STRIDES, TWO, TURNED, SPREAD, LAYOUTS };

static const uint32_t lengths[SEQS] = {45, 26};
static const int32_t row_seq[ROWS] = {0, 0, 0, 1, 1};
static const int32_t seen[ROWS] = {43, 44, 45, 25, 26}; /* the last rows of each sequence */
static const int32_t row_tiles[ROWS][2] = {{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}};
static const int32_t seq_tiles[SEQS][2] = {{0, 3}, {3, 2}};

/* A cache in the caller's memory, the rows that read it, and all of it on the host. */
typedef struct own {
    ops_rig rig;
    int layout;
    tamis_kv kv;
    tamis_kv_values values; /* where they are in a buffer of their own */
    tamis_batch batch;      /* one row a tile */
    tamis_rows q;
    float k[SEQS][KV][SLOTS][DIM], v[SEQS][KV][SLOTS][DIM], queries[ROWS][HEADS][DIM];
    int32_t table[IDS];
    const float *sinks; /* [HEADS]; NULL: none */
} own;

/* On CUDA the channels of a row are adjacent. */
static int layouts(void) {
    return strncmp(test_device, "cuda", 4) == 0 ? TURNED : LAYOUTS;
}

static bool shared(const own *o) {
    return o->layout != TAMIS_KV_OWN;
}

static bool has_values(const own *o) {
    return o->layout == TWO || o->layout == TURNED;
}

static int32_t page_of(const own *o, uint32_t seq, uint32_t head, uint32_t ordinal) {
    return o->table[seq * o->batch.seq_stride + head * o->batch.head_stride + ordinal];
}

/* The element where a K row begins (which 0), or a V row, in its buffer. */
static uint64_t row_at(const own *o, uint32_t page, uint32_t head, uint32_t slot, uint32_t which) {
    const uint64_t all = (uint64_t)o->kv.n_pages * SIZE;
    if (which && o->layout == TWO) return ((page * KV + head) * SIZE + slot) * DIM;
    if (which && o->layout == TURNED) return head * DIM * all + page * SIZE + slot;
    if (o->layout == SPREAD)
        return (which * o->kv.n_pages + page) * SIZE * KV * DIM + head * DIM * SIZE + slot;
    switch (o->layout) {
    case TAMIS_KV_OWN:
        return ((page * 2 + which) * SIZE + slot) * DIM;
    case TAMIS_KV_NHD:
        return (((page * 2 + which) * SIZE + slot) * KV + head) * DIM;
    case TAMIS_KV_HND:
        return (((page * 2 + which) * KV + head) * SIZE + slot) * DIM;
    default: /* [K, V][page][slot][head][dim] */
        return (((which * o->kv.n_pages + page) * SIZE + slot) * KV + head) * DIM;
    }
}

/* The elements from a row's channel to the next one. */
static uint64_t channels_apart(const own *o, uint32_t which) {
    if (o->layout == SPREAD) return SIZE;
    return which && o->layout == TURNED ? (uint64_t)o->kv.n_pages * SIZE : 1;
}

/* Page ids in an order of no kind; the pages' unused slots are NaN. */
static void fill_pages(own *o) {
    const uint64_t n = (uint64_t)o->kv.n_pages * 2 * SIZE * (shared(o) ? KV : 1) * DIM;
    const uint64_t k_step = channels_apart(o, 0), v_step = channels_apart(o, 1);
    float *data = malloc(n * sizeof *data);
    float *values = has_values(o) ? data + n / 2 : data;
    assert_non_null(data);
    for (uint64_t i = 0; i < n; i++)
        data[i] = NAN;
    for (uint32_t b = 0; b < SEQS; b++)
        for (uint32_t h = 0; h < KV; h++)
            for (uint32_t s = 0; s < lengths[b]; s++) {
                const uint32_t page = (uint32_t)page_of(o, b, h, s / SIZE);
                for (uint32_t d = 0; d < DIM; d++) {
                    data[row_at(o, page, h, s % SIZE, 0) + d * k_step] = o->k[b][h][s][d];
                    values[row_at(o, page, h, s % SIZE, 1) + d * v_step] = o->v[b][h][s][d];
                }
            }
    o->kv.data = ops_send_as(&o->rig, o->kv.dtype, data, has_values(o) ? n / 2 : n);
    if (has_values(o)) o->values.data = ops_send_as(&o->rig, o->kv.dtype, values, n / 2);
    free(data);
}

static void open_own(own *o, int layout, tamis_dtype dtype) {
    int32_t visible[ROWS][KV];
    memset(o, 0, sizeof *o);
    o->layout = layout;
    ops_open(&o->rig);
    ops_numbers(&o->rig, &o->k[0][0][0][0], SEQS * KV * SLOTS * DIM);
    ops_numbers(&o->rig, &o->v[0][0][0][0], SEQS * KV * SLOTS * DIM);
    ops_numbers(&o->rig, &o->queries[0][0][0], ROWS * HEADS * DIM);
    const uint32_t lists = layout == TAMIS_KV_OWN ? KV : 1;
    for (uint32_t i = 0; i < IDS; i++)
        o->table[i] = (int32_t)(i * 5 % (SEQS * lists * LISTED));
    for (uint32_t i = 0; i < ROWS * KV; i++)
        visible[i / KV][i % KV] = seen[i / KV];
    o->kv = (tamis_kv){.dtype = dtype,
                       .layout = (tamis_kv_layout)(layout < HALVES ? layout : HALVES),
                       .page_size = SIZE,
                       .head_dim = DIM,
                       .n_pages = SEQS * lists * LISTED};
    if (layout >= HALVES) {
        o->kv.page_stride = SIZE * KV * DIM;
        o->kv.slot_stride = KV * DIM;
        o->kv.head_stride = DIM;
        o->kv.value_offset = (uint64_t)o->kv.n_pages * SIZE * KV * DIM;
        o->kv.bounds_page_stride = 2 * KV * DIM;
        o->kv.bounds_head_stride = 2 * DIM;
    }
    if (layout == SPREAD) {
        o->kv.head_stride = DIM * SIZE;
        o->kv.slot_stride = 1;
        o->kv.channel_stride = SIZE;
    }
    if (has_values(o)) {
        o->kv.value_offset = 0;
        o->kv.values = &o->values;
        o->values = (tamis_kv_values){
            .page_stride = KV * SIZE * DIM, .head_stride = SIZE * DIM, .slot_stride = DIM};
    }
    if (layout == TURNED) {
        const uint64_t all = (uint64_t)o->kv.n_pages * SIZE;
        o->values = (tamis_kv_values){
            .page_stride = SIZE, .head_stride = DIM * all, .slot_stride = 1, .channel_stride = all};
    }
    o->kv.bounds = ops_room(&o->rig, (uint64_t)IDS * KV * 2 * DIM * 4, 0);
    o->batch = (tamis_batch){.n_rows = ROWS,
                             .n_heads = HEADS,
                             .n_kv_heads = KV,
                             .n_sequences = SEQS,
                             .max_visible = 45,
                             .tiles = ops_send(&o->rig, row_tiles, sizeof row_tiles, 0),
                             .row_seq = ops_send(&o->rig, row_seq, sizeof row_seq, 0),
                             .visible = ops_send(&o->rig, visible, sizeof visible, 0),
                             .seq_stride = lists * LISTED,
                             .head_stride = lists > 1 ? LISTED : 0};
    o->batch.table = ops_send(&o->rig, o->table, sizeof o->table, 0);
    o->q = ops_rows(ops_send(&o->rig, o->queries, sizeof o->queries, 0), 0);
    fill_pages(o);
}

/* ---- Plain computations ---------------------------------------------------------------------- */

static double logit(const own *o, uint32_t row, uint32_t head, uint32_t slot, double cap) {
    const float *k = o->k[row_seq[row]][head / GROUP][slot], *q = o->queries[row][head];
    double sum = 0;
    for (uint32_t d = 0; d < DIM; d++)
        sum += (double)q[d] * k[d];
    sum /= sqrt(DIM);
    return cap > 0 ? cap * tanh(sum / cap) : sum;
}

static bool lists_page(const int32_t *list, int32_t count, int32_t page) {
    for (int32_t i = 0; i < count; i++)
        if (list[i] == page) return true;
    return !list;
}

/* Attention of a row and query head over the pages of a list, NULL for all; returns lse. */
static double attend(const own *o, uint32_t row, uint32_t head, const int32_t *list, int32_t count,
                     double cap, double *out) {
    double sum = o->sinks ? exp((double)o->sinks[head]) : 0;
    memset(out, 0, DIM * sizeof *out);
    for (uint32_t s = 0; s < (uint32_t)seen[row]; s++) {
        if (!lists_page(list, count, (int32_t)(s / SIZE))) continue;
        const double weight = exp(logit(o, row, head, s, cap));
        sum += weight;
        for (uint32_t d = 0; d < DIM; d++)
            out[d] += weight * o->v[row_seq[row]][head / GROUP][s][d];
    }
    for (uint32_t d = 0; d < DIM; d++)
        out[d] /= sum;
    return log(sum);
}

/* The answer of an attend, `count` and `pages` of [ROWS][KV][capacity] its lists. */
static void check_attended(const own *o, const tamis_place *out, const tamis_place *lse,
                           const int32_t *pages, const int32_t *count, uint32_t capacity,
                           double cap) {
    float got[ROWS][HEADS][DIM], got_lse[ROWS][HEADS];
    double wanted[DIM];
    ops_read(out, got, sizeof got);
    ops_read(lse, got_lse, sizeof got_lse);
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t h = 0; h < HEADS; h++) {
            const uint32_t owner = r * KV + h / GROUP;
            const double l = attend(o, r, h, pages ? pages + owner * capacity : NULL,
                                    count ? count[owner] : 0, cap, wanted);
            ops_near("lse", r * HEADS + h, got_lse[r][h], l, 1e-5);
            for (uint32_t d = 0; d < DIM; d++)
                ops_near("out", (r * HEADS + h) * DIM + d, got[r][h][d], wanted[d], 4e-5);
        }
}

/* ---- Calls ----------------------------------------------------------------------------------- */

/* An attend over all pages with room for what it writes, and the scratch that it asks for. */
static tamis_attend_params attend_params(own *o) {
    tamis_attend_params p = {.kv = o->kv, .batch = o->batch, .q = o->q};
    p.out = ops_rows(ops_room(&o->rig, sizeof o->queries, 0), 0);
    p.lse = ops_room(&o->rig, ROWS * HEADS * sizeof(float), 0);
    return p;
}

static void run_attend(own *o, tamis_attend_params *p) {
    uint64_t bytes = 0;
    OK(tamis_op_attend_scratch(o->rig.context, p, &bytes, &test_error));
    if (bytes && !p->scratch.buffer) p->scratch = ops_room(&o->rig, bytes, 0);
    OK(tamis_op_attend(o->rig.context, p, &test_error));
}

static tamis_place place_of(const tamis_rows *rows) {
    return (tamis_place){rows->buffer, rows->offset};
}

static void bound_pages(own *o) {
    int32_t ids[IDS];
    uint32_t n = 0;
    for (uint32_t b = 0; b < SEQS; b++)
        for (uint32_t h = 0; h < (shared(o) ? 1 : KV); h++)
            for (uint32_t i = 0; i < lengths[b] / SIZE; i++)
                ids[n++] = page_of(o, b, h, i);
    ids[n++] = -1; /* passed over */
    const tamis_bounds_params p = {.kv = o->kv,
                                   .pages = ops_send(&o->rig, ids, n * sizeof *ids, 0),
                                   .n = n,
                                   .n_kv_heads = shared(o) ? KV : 1};
    OK(tamis_op_bounds(o->rig.context, &p, &test_error));
}

static tamis_score_pages_params score_params(own *o, tamis_group_rule group) {
    const tamis_score_pages_params p = {
        .kv = o->kv,
        .batch = o->batch,
        .q = o->q,
        .scores = ops_room(&o->rig, ROWS * KV * LISTED * sizeof(float), 0),
        .stride = LISTED,
        .group = group};
    return p;
}

static tamis_select_params select_params(own *o, const tamis_place *scores) {
    const tamis_select_params p = {
        .batch = o->batch,
        .granularity = SIZE,
        .k = 3,
        .sinks = SIZE,
        .recent = 1,
        .scores = *scores,
        .stride = LISTED,
        .lists = {.pages = ops_room(&o->rig, ROWS * KV * 4 * sizeof(int32_t), 0),
                  .count = ops_room(&o->rig, ROWS * KV * sizeof(int32_t), 0),
                  .capacity = 4}};
    return p;
}

/* ---- Tests ----------------------------------------------------------------------------------- */

static void attend_reads_every_layout(void **state) {
    (void)state;
    const float sinks[HEADS] = {[1] = -INFINITY, [2] = 1.5f};
    own o;
    for (int layout = TAMIS_KV_OWN; layout < layouts(); layout++)
        for (tamis_dtype dtype = TAMIS_F32; dtype <= TAMIS_BF16; dtype++) {
            open_own(&o, layout, dtype);
            tamis_attend_params p = attend_params(&o);
            const tamis_place out = place_of(&p.out);
            run_attend(&o, &p);
            check_attended(&o, &out, &p.lse, NULL, NULL, 0, 0);
            p = attend_params(&o); /* rows of a sequence together */
            const tamis_place tiled = place_of(&p.out);
            p.batch.tiles = ops_send(&o.rig, seq_tiles, sizeof seq_tiles, 0);
            p.batch.n_tiles = SEQS;
            p.batch.max_tile_rows = 3;
            p.attention.soft_cap = 2;
            p.attention.sinks = ops_send(&o.rig, sinks, sizeof sinks, 16);
            run_attend(&o, &p);
            o.sinks = sinks;
            check_attended(&o, &tiled, &p.lse, NULL, NULL, 0, 2);
            o.sinks = NULL;
            ops_close(&o.rig);
        }
}

/* Quest's score of a full page, by hand. */
static double page_score(const own *o, uint32_t row, uint32_t kv_head, uint32_t page,
                         tamis_group_rule group) {
    double joined = group == TAMIS_GROUP_MAX ? -INFINITY : 0;
    for (uint32_t g = 0; g < GROUP; g++) {
        double sum = 0;
        for (uint32_t d = 0; d < DIM; d++) {
            float lo = INFINITY, hi = -INFINITY;
            for (uint32_t s = page * SIZE; s < (page + 1) * SIZE; s++) {
                lo = fminf(lo, o->k[row_seq[row]][kv_head][s][d]);
                hi = fmaxf(hi, o->k[row_seq[row]][kv_head][s][d]);
            }
            const double q = o->queries[row][kv_head * GROUP + g][d];
            sum += fmax(q * lo, q * hi);
        }
        joined = group == TAMIS_GROUP_MAX ? fmax(joined, sum) : joined + sum;
    }
    return group == TAMIS_GROUP_MEAN ? joined / GROUP : joined;
}

static void scores_are_those_of_the_pages_bounds(void **state) {
    (void)state;
    own o;
    float got[ROWS][KV][LISTED];
    for (int layout = TAMIS_KV_OWN; layout < layouts(); layout++)
        for (tamis_group_rule group = TAMIS_GROUP_MAX; group <= TAMIS_GROUP_SUM; group++) {
            open_own(&o, layout, layout == TAMIS_KV_HND ? TAMIS_F16 : TAMIS_F32);
            bound_pages(&o);
            const tamis_score_pages_params p = score_params(&o, group);
            OK(tamis_op_score_pages(o.rig.context, &p, &test_error));
            ops_read(&p.scores, got, sizeof got);
            for (uint32_t r = 0; r < ROWS; r++)
                for (uint32_t h = 0; h < KV; h++)
                    for (uint32_t i = 0; i < LISTED; i++) {
                        if (i >= (uint32_t)seen[r] / SIZE)
                            assert_true(isnan(got[r][h][i])); /* left alone */
                        else
                            ops_near("score", (r * KV + h) * LISTED + i, got[r][h][i],
                                     page_score(&o, r, h, i, group), 1e-3);
                    }
            ops_close(&o.rig);
        }
}

/* The list of sinks, the newest page and the best other one; all if there are no more than k. */
static uint32_t select_by_hand(const float *scores, uint32_t visible, int32_t *list) {
    const int32_t full = (int32_t)(visible / SIZE), n = full + (visible % SIZE != 0);
    int32_t best = 1;
    for (int32_t i = 2; i < n - 1; i++)
        if (scores[i] >= scores[best]) best = i;
    list[0] = 0;
    list[1] = best;
    list[2] = n - 1;
    return 3;
}

static void selected_pages_are_the_best_and_attended_alone(void **state) {
    (void)state;
    own o;
    float scores[ROWS][KV][LISTED];
    int32_t pages[ROWS][KV][4], count[ROWS][KV], list[3];
    for (int layout = TAMIS_KV_OWN; layout < layouts(); layout++) {
        open_own(&o, layout, TAMIS_F32);
        bound_pages(&o);
        const tamis_score_pages_params s = score_params(&o, TAMIS_GROUP_MAX);
        OK(tamis_op_score_pages(o.rig.context, &s, &test_error));
        const tamis_select_params p = select_params(&o, &s.scores);
        OK(tamis_op_select(o.rig.context, &p, &test_error));
        ops_read(&s.scores, scores, sizeof scores);
        ops_read(&p.lists.pages, pages, sizeof pages);
        ops_read(&p.lists.count, count, sizeof count);
        for (uint32_t r = 0; r < ROWS; r++)
            for (uint32_t h = 0; h < KV; h++) {
                const uint32_t n = select_by_hand(scores[r][h], (uint32_t)seen[r], list);
                assert_int_equal(count[r][h], n);
                assert_memory_equal(pages[r][h], list, n * sizeof *list);
            }
        tamis_attend_params a = attend_params(&o);
        const tamis_place out = place_of(&a.out);
        a.lists = p.lists;
        a.max_pages = 3;
        run_attend(&o, &a);
        check_attended(&o, &out, &a.lse, &pages[0][0][0], &count[0][0], 4, 0);
        ops_close(&o.rig);
    }
}

static void page_mass_is_the_share_of_attention(void **state) {
    (void)state;
    own o;
    float got[ROWS][KV][LISTED];
    double unused[DIM];
    open_own(&o, TAMIS_KV_NHD, TAMIS_F32);
    tamis_page_mass_params p = {.kv = o.kv,
                                .batch = o.batch,
                                .q = o.q,
                                .scores = ops_room(&o.rig, sizeof got, 0),
                                .stride = LISTED,
                                .group = TAMIS_GROUP_SUM};
    uint64_t bytes = 0;
    OK(tamis_op_page_mass_scratch(o.rig.context, &p, &bytes, &test_error));
    if (bytes) p.scratch = ops_room(&o.rig, bytes, 0);
    OK(tamis_op_page_mass(o.rig.context, &p, &test_error));
    ops_read(&p.scores, got, sizeof got);
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t h = 0; h < KV; h++)
            for (uint32_t i = 0; i < (uint32_t)seen[r] / SIZE; i++) {
                double mass = 0;
                for (uint32_t g = h * GROUP; g < (h + 1) * GROUP; g++)
                    for (uint32_t s = i * SIZE; s < (i + 1) * SIZE; s++)
                        mass += exp(logit(&o, r, g, s, 0) - attend(&o, r, g, NULL, 0, 0, unused));
                ops_near("mass", (r * KV + h) * LISTED + i, got[r][h][i], mass, 1e-5);
            }
    ops_close(&o.rig);
}

/* Slots up to 19 and the others, apart. */
static void merged_states_are_the_whole(void **state) {
    (void)state;
    own o;
    int32_t parts[2][ROWS][KV]; /* where the first one ends, where the other begins */
    for (uint32_t i = 0; i < ROWS * KV; i++) {
        parts[0][i / KV][i % KV] = seen[i / KV] < 20 ? seen[i / KV] : 20;
        parts[1][i / KV][i % KV] = 20;
    }
    open_own(&o, TAMIS_KV_HND, TAMIS_F32);
    const uint64_t bytes = sizeof o.queries, lse = ROWS * HEADS * sizeof(float);
    const tamis_place outs = ops_room(&o.rig, 2 * bytes, 0);
    const tamis_place lses = ops_room(&o.rig, 2 * lse, 0);
    for (uint32_t i = 0; i < 2; i++) {
        tamis_attend_params p = attend_params(&o);
        *(i ? &p.batch.first : &p.batch.visible) =
            ops_send(&o.rig, parts[i], sizeof parts[i], 0);
        p.out = ops_rows((tamis_place){outs.buffer, i * bytes}, 0);
        p.lse = (tamis_place){lses.buffer, i * lse};
        run_attend(&o, &p);
    }
    const tamis_merge_params p = {.outs = outs,
                                  .lses = lses,
                                  .out = ops_room(&o.rig, bytes, 0),
                                  .lse = ops_room(&o.rig, lse, 0),
                                  .n_parts = 2,
                                  .n = ROWS * HEADS,
                                  .dim = DIM};
    OK(tamis_op_merge(o.rig.context, &p, &test_error));
    check_attended(&o, &p.out, &p.lse, NULL, NULL, 0, 0);
    ops_close(&o.rig);
}

/* Sum over an item's rows of the mean over the group of the weights of a slot, `times` over. */
static void check_observed(const own *o, const tamis_place *values, double times) {
    const uint32_t first[SEQS] = {0, 3}, n[SEQS] = {3, 2};
    float got[SEQS][KV][SLOTS];
    double unused[DIM];
    ops_read(values, got, sizeof got);
    for (uint32_t b = 0; b < SEQS; b++)
        for (uint32_t h = 0; h < KV; h++)
            for (uint32_t s = 0; s < lengths[b]; s++) {
                double sum = 0;
                for (uint32_t i = 0; i < n[b] * GROUP; i++) {
                    const uint32_t r = first[b] + i / GROUP, head = h * GROUP + i % GROUP;
                    const double lse = attend(o, r, head, NULL, 0, 0, unused);
                    if (s < (uint32_t)seen[r]) sum += exp(logit(o, r, head, s, 0) - lse) / GROUP;
                }
                ops_near("value", (b * KV + h) * SLOTS + s, got[b][h][s], times * sum, 1e-5);
            }
}

static void observed_weights_are_those_of_the_rows(void **state) {
    (void)state;
    own o;
    for (int layout = TAMIS_KV_OWN; layout < layouts(); layout++) {
        open_own(&o, layout, TAMIS_F32);
        tamis_attend_params a = attend_params(&o);
        a.logits = ops_room(&o.rig, ROWS * HEADS * SLOTS * sizeof(float), 0);
        a.logit_stride = SLOTS;
        run_attend(&o, &a);
        tamis_observe_params p = {.kv = o.kv,
                                  .batch = o.batch,
                                  .n_items = SEQS,
                                  .max_span = 3,
                                  .spans = ops_send(&o.rig, seq_tiles, sizeof seq_tiles, 0),
                                  .q = o.q,
                                  .lse = a.lse,
                                  .group = TAMIS_GROUP_MEAN,
                                  .values = ops_room(&o.rig, SEQS * KV * SLOTS * sizeof(float), 0),
                                  .value_stride = SLOTS};
        OK(tamis_op_observe(o.rig.context, &p, &test_error));
        check_observed(&o, &p.values, 1);
        p.logits = a.logits; /* of the same rows */
        p.logit_stride = SLOTS;
        p.accumulate = 1;
        OK(tamis_op_observe(o.rig.context, &p, &test_error));
        check_observed(&o, &p.values, 2);
        ops_close(&o.rig);
    }
}

/* ---- Beside a plan --------------------------------------------------------------------------- */

/* A plan with the tokens of the own cache, to decode the last token of each sequence. */
typedef struct planned {
    tamis_cache *cache;
    tamis_plan *plan;
    tamis_sequence ids[SEQS];
    tamis_rows k, v, out;
} planned;

static void write_rows(own *o, planned *p, const uint32_t *first, const uint32_t *n, bool exact) {
    const tamis_step step = {.sequences = p->ids, .rows = n, .count = SEQS, .exact = exact};
    float rows[2][64 + 16][KV][DIM];
    uint32_t row = 0;
    for (uint32_t b = 0; b < SEQS; b++)
        for (uint32_t s = first[b]; s < first[b] + n[b]; s++, row++)
            for (uint32_t h = 0; h < KV; h++) {
                memcpy(rows[0][row][h], o->k[b][h][s], sizeof rows[0][row][h]);
                memcpy(rows[1][row][h], o->v[b][h][s], sizeof rows[1][row][h]);
            }
    OK(tamis_buffer_write(p->k.buffer, 0, rows[0], sizeof rows[0], &test_error));
    OK(tamis_buffer_write(p->v.buffer, 0, rows[1], sizeof rows[1], &test_error));
    OK(tamis_plan_step_begin(p->plan, &step, &test_error));
    OK(tamis_plan_write(p->plan, 0, &p->k, &p->v, &test_error));
}

static void open_plan(own *o, planned *p) {
    const tamis_cache_params shape = {.n_layers = 1,
                                      .n_heads = HEADS,
                                      .n_kv_heads = KV,
                                      .head_dim = DIM,
                                      .page_size = SIZE,
                                      .capacity_tokens = SEQS * SLOTS};
    const tamis_plan_params params = {
        .selection = {TAMIS_SELECT_QUEST, .budget = 3 * SIZE, .sinks = SIZE, .recent = 1},
        .max_sequences = SEQS,
        .max_rows = 80,
        .max_context = SLOTS,
        .flags = TAMIS_PLAN_UNFUSED};
    const uint32_t start[SEQS] = {0, 0}, prompt[SEQS] = {lengths[0] - 1, lengths[1] - 1};
    const uint32_t one[SEQS] = {1, 1};
    OK(tamis_cache_create(o->rig.context, &shape, &p->cache, &test_error));
    OK(tamis_plan_create(p->cache, &params, &p->plan, &test_error));
    p->k = ops_rows(ops_room(&o->rig, 80 * KV * DIM * sizeof(float), 0), 0);
    p->v = ops_rows(ops_room(&o->rig, 80 * KV * DIM * sizeof(float), 0), 0);
    p->out = ops_rows(ops_room(&o->rig, sizeof o->queries, 0), 0);
    for (uint32_t b = 0; b < SEQS; b++)
        OK(tamis_cache_add(p->cache, &p->ids[b], &test_error));
    write_rows(o, p, start, prompt, true);
    OK(tamis_plan_step_end(p->plan, &test_error));
    write_rows(o, p, prompt, one, false);
}

/* Rows 2 and 4 see their whole sequence, as the plan's decode rows do. */
static void run_beside_plan(int layout) {
    static const uint32_t rows[SEQS] = {2, 4};
    own o;
    planned p;
    float own_out[ROWS][HEADS][DIM], plan_out[SEQS][HEADS][DIM], two[SEQS][HEADS][DIM];
    int32_t pages[ROWS][KV][4], count[ROWS][KV];
    open_own(&o, layout, TAMIS_F32);
    bound_pages(&o);
    const tamis_score_pages_params s = score_params(&o, TAMIS_GROUP_MAX);
    OK(tamis_op_score_pages(o.rig.context, &s, &test_error));
    const tamis_select_params select = select_params(&o, &s.scores);
    OK(tamis_op_select(o.rig.context, &select, &test_error));
    tamis_attend_params a = attend_params(&o);
    a.lists = select.lists;
    a.max_pages = 3;
    run_attend(&o, &a);
    const tamis_place out = place_of(&a.out);
    ops_read(&out, own_out, sizeof own_out);
    ops_read(&select.lists.pages, pages, sizeof pages);
    ops_read(&select.lists.count, count, sizeof count);

    open_plan(&o, &p);
    for (uint32_t b = 0; b < SEQS; b++)
        memcpy(two[b], o.queries[rows[b]], sizeof two[b]);
    const tamis_rows q = ops_rows(ops_send(&o.rig, two, sizeof two, 0), 0);
    OK(tamis_plan_attend(p.plan, 0, &q, &p.out, &test_error));
    for (uint32_t b = 0; b < SEQS; b++)
        for (uint32_t h = 0; h < KV; h++) {
            uint32_t chosen[4], n = 0;
            OK(tamis_plan_read_selected(p.plan, b, h, chosen, 4, &n, &test_error));
            assert_int_equal(n, count[rows[b]][h]);
            for (uint32_t i = 0; i < n; i++)
                assert_int_equal(chosen[i], pages[rows[b]][h][i]);
        }
    OK(tamis_plan_step_end(p.plan, &test_error));
    const tamis_place plan_at = place_of(&p.out);
    ops_read(&plan_at, plan_out, sizeof plan_out);
    for (uint32_t b = 0; b < SEQS; b++)
        assert_memory_equal(plan_out[b], own_out[rows[b]], sizeof plan_out[b]);
    tamis_plan_destroy(&p.plan);
    tamis_cache_destroy(&p.cache);
    ops_close(&o.rig);
}

static void a_plan_gives_the_same_pages_and_bits(void **state) {
    (void)state;
    for (int layout = TAMIS_KV_OWN; layout < layouts(); layout++)
        run_beside_plan(layout);
}

/* ---- Without rows, and refused --------------------------------------------------------------- */

static void calls_without_rows_need_no_buffers(void **state) {
    (void)state;
    ops_rig rig;
    ops_open(&rig);
    const tamis_kv kv = {.layout = TAMIS_KV_NHD, .page_size = SIZE, .head_dim = DIM};
    const tamis_batch batch = {.n_heads = HEADS, .n_kv_heads = KV};
    const tamis_bounds_params bounds = {.kv = kv, .n_kv_heads = KV};
    const tamis_score_pages_params score = {.kv = kv, .batch = batch};
    const tamis_page_mass_params mass = {.kv = kv, .batch = batch};
    const tamis_select_params select = {.batch = batch, .granularity = SIZE, .k = 3};
    const tamis_attend_params attends = {.kv = kv, .batch = batch};
    const tamis_merge_params merge = {.n_parts = 2, .dim = DIM};
    const tamis_observe_params observe = {.kv = kv, .batch = batch};
    const tamis_kv_values values = {
        .page_stride = KV * SIZE * DIM, .head_stride = SIZE * DIM, .slot_stride = DIM};
    const tamis_attend_params apart = {.kv = {.layout = TAMIS_KV_STRIDES,
                                              .page_size = SIZE,
                                              .head_dim = DIM,
                                              .page_stride = KV * SIZE * DIM,
                                              .head_stride = SIZE * DIM,
                                              .slot_stride = DIM,
                                              .values = &values},
                                       .batch = batch};
    uint64_t bytes = 1;
    OK(tamis_op_attend(rig.context, &apart, &test_error));
    OK(tamis_op_attend_scratch(rig.context, &apart, &bytes, &test_error));
    assert_int_equal(bytes, 0);
    OK(tamis_op_bounds(rig.context, &bounds, &test_error));
    OK(tamis_op_score_pages(rig.context, &score, &test_error));
    OK(tamis_op_page_mass(rig.context, &mass, &test_error));
    OK(tamis_op_select(rig.context, &select, &test_error));
    OK(tamis_op_attend(rig.context, &attends, &test_error));
    OK(tamis_op_merge(rig.context, &merge, &test_error));
    OK(tamis_op_observe(rig.context, &observe, &test_error));
    OK(tamis_context_wait(rig.context, &test_error));
    ops_close(&rig);
}

/* An attend with one field changed is refused. */
#define REFUSED(change, code, part)                                                                \
    do {                                                                                           \
        tamis_attend_params p = sound;                                                             \
        change;                                                                                    \
        FAILS(tamis_op_attend(o.rig.context, &p, &test_error), code, part);                        \
    } while (0)

static void attend_refuses_what_does_not_fit(void **state) {
    (void)state;
    own o, other;
    float got[ROWS * HEADS * DIM], nan[ROWS * HEADS * DIM];
    uint64_t bytes = 0;
    open_own(&o, TAMIS_KV_NHD, TAMIS_F32);
    open_own(&other, TAMIS_KV_NHD, TAMIS_F32);
    const tamis_attend_params sound = attend_params(&o);
    const tamis_place out = place_of(&sound.out);
    memset(nan, 0xff, sizeof nan);
    REFUSED(p.kv = other.kv, TAMIS_E_ARGUMENT, "data: the buffer is of another context");
    REFUSED(p.kv.n_pages = 13, TAMIS_E_ARGUMENT, "data: 106496 bytes from byte 0: past");
    REFUSED(p.attention.sinks = place_of(&other.q), TAMIS_E_ARGUMENT,
            "sinks: the buffer is of another context");
    REFUSED((p.attention.sinks = sound.lse, p.lse.buffer = NULL), TAMIS_E_ARGUMENT,
            "sinks without lse");
    REFUSED(p.kv.n_pages = 0, TAMIS_E_ARGUMENT, "n_pages is 0");
    REFUSED(p.kv.page_stride = 7, TAMIS_E_ARGUMENT, "page_stride is 7 and layout 1 has its own");
    REFUSED(p.kv.layout = (tamis_kv_layout)4, TAMIS_E_ARGUMENT, "layout is 4: there are 0 to 3");
    REFUSED(p.kv.layout = TAMIS_KV_STRIDES, TAMIS_E_ARGUMENT, "page_stride is 0");
    REFUSED(p.kv.page_size = 48, TAMIS_E_UNSUPPORTED,
            "page size 48: must be a power of two from 1 to 256");
    REFUSED(p.kv.page_size = 512, TAMIS_E_UNSUPPORTED, "page size 512");
    REFUSED(p.kv.page_size = 0, TAMIS_E_UNSUPPORTED, "page size 0");
    REFUSED(p.kv.channel_stride = 9, TAMIS_E_ARGUMENT, "channel_stride is 9 and layout 1 has");
    REFUSED(p.kv.values = &other.values, TAMIS_E_ARGUMENT, "values of their own, and layout 1");
    REFUSED(p.kv.head_dim = 72, TAMIS_E_UNSUPPORTED, "head dim 72");
    REFUSED(p.kv.reserved[0] = 1, TAMIS_E_ARGUMENT, "reserved[0] of tamis_kv is 1");
    REFUSED(p.batch.reserved[1] = 3, TAMIS_E_ARGUMENT, "reserved[1] of tamis_batch is 3");
    REFUSED(p.lists.reserved32 = 2, TAMIS_E_ARGUMENT, "reserved32 of tamis_lists is 2");
    REFUSED(p.batch.n_heads = 5, TAMIS_E_ARGUMENT, "5 query heads");
    REFUSED(p.batch.n_kv_heads = 0, TAMIS_E_ARGUMENT, "n_kv_heads is 0");
    REFUSED(p.batch.seq_stride = 0, TAMIS_E_ARGUMENT, "seq_stride is 0");
    REFUSED(p.batch.max_visible = 2000, TAMIS_E_ARGUMENT, "table: 1024 bytes from byte 0");
    REFUSED(p.batch.n_rows = 6, TAMIS_E_ARGUMENT, "tiles: 48 bytes");
    REFUSED(p.batch.visible.buffer = NULL, TAMIS_E_ARGUMENT, "visible is absent");
    REFUSED(p.out = p.q, TAMIS_E_ARGUMENT, "q and out overlap");
    REFUSED(p.lse.offset = 4, TAMIS_E_ARGUMENT, "lse: 80 bytes from byte 4");
    REFUSED(p.lists.pages = p.lse, TAMIS_E_ARGUMENT, "lists.count is absent");
    REFUSED(p.batch.max_tile_rows = 33, TAMIS_E_ARGUMENT, "tiles of 33 rows");
    FAILS(tamis_op_attend_scratch(o.rig.context, &sound, NULL, &test_error), TAMIS_E_ARGUMENT,
          "bytes is NULL");
    tamis_attend_params shape =
        sound; /* a shape that needs scratch everywhere but here and there */
    shape.batch.max_visible = 1 << 16;
    shape.q.buffer = shape.out.buffer = shape.kv.data.buffer = NULL;
    OK(tamis_op_attend_scratch(o.rig.context, &shape, &bytes, &test_error));
    shape.q = shape.out = sound.q; /* where rows lie is not looked at either */
    OK(tamis_op_attend_scratch(o.rig.context, &shape, &bytes, &test_error));
    if (bytes) {
        shape.batch.table = ops_room(&o.rig, 1 << 20, 0);
        shape.batch.seq_stride = 1 << 13;
        shape.q = sound.q;
        shape.out = sound.out;
        shape.kv.data = sound.kv.data;
        FAILS(tamis_op_attend(o.rig.context, &shape, &test_error), TAMIS_E_ARGUMENT,
              "scratch is absent");
        shape.scratch = ops_room(&o.rig, bytes - 4, 0);
        FAILS(tamis_op_attend(o.rig.context, &shape, &test_error), TAMIS_E_ARGUMENT, "scratch: ");
    }
    ops_read(&out, got, sizeof got);
    assert_memory_equal(got, nan, sizeof nan);
    ops_close(&other.rig);
    ops_close(&o.rig);
}

static void attend_refuses_values_that_do_not_fit(void **state) {
    (void)state;
    own o;
    open_own(&o, TWO, TAMIS_F16);
    const tamis_attend_params sound = attend_params(&o);
    const tamis_kv_values values = o.values;
    tamis_kv_values wrong = values;
    OK(tamis_op_attend(o.rig.context, &sound, &test_error));
    REFUSED((p.kv.values = &wrong, wrong.data.buffer = NULL), TAMIS_E_ARGUMENT, "values is absent");
    wrong = values;
    REFUSED((p.kv.values = &wrong, wrong.data.offset = 4), TAMIS_E_ARGUMENT,
            "values: 24576 bytes from byte 4: past the buffer's 24576 bytes");
    wrong = values;
    REFUSED((p.kv.values = &wrong, wrong.page_stride *= 2), TAMIS_E_ARGUMENT,
            "values: 47104 bytes from byte 0: past");
    wrong = values;
    REFUSED((p.kv.values = &wrong, wrong.page_stride = UINT64_MAX / 4), TAMIS_E_ARGUMENT,
            "values: 18446744073709551615 bytes");
    wrong = values;
    REFUSED((p.kv.values = &wrong, wrong.channel_stride = 2), TAMIS_E_ARGUMENT,
            "values: 24702 bytes");
    wrong = values;
    REFUSED((p.kv.values = &wrong, wrong.slot_stride = 32), TAMIS_E_ARGUMENT,
            "slot stride 32 of values: less than the head dim 64");
    wrong = values;
    REFUSED((p.kv.values = &wrong, wrong.reserved[3] = 1), TAMIS_E_ARGUMENT,
            "reserved[3] of tamis_kv_values is 1");
    REFUSED(p.kv.value_offset = 64, TAMIS_E_ARGUMENT,
            "values apart from keys, and a value_offset of 64");
    REFUSED(p.kv.channel_stride = 3, TAMIS_E_ARGUMENT, "data: 24828 bytes");
    ops_close(&o.rig);
}

static void other_ops_refuse_what_they_cannot_do(void **state) {
    (void)state;
    own o;
    open_own(&o, TAMIS_KV_NHD, TAMIS_F32);
    tamis_context *context = o.rig.context;
    tamis_score_pages_params score = score_params(&o, TAMIS_GROUP_MAX);
    score.group = (tamis_group_rule)3;
    FAILS(tamis_op_score_pages(context, &score, &test_error), TAMIS_E_ARGUMENT, "group is 3");
    score.group = TAMIS_GROUP_MAX;
    score.stride = 7;
    FAILS(tamis_op_score_pages(context, &score, &test_error), TAMIS_E_ARGUMENT,
          "scores: 280 bytes");
    score.stride = 4;
    FAILS(tamis_op_score_pages(context, &score, &test_error), TAMIS_E_ARGUMENT, "stride");
    score.stride = 0;
    score.kv.bounds.buffer = NULL;
    FAILS(tamis_op_score_pages(context, &score, &test_error), TAMIS_E_ARGUMENT, "bounds is absent");
    tamis_select_params select = select_params(&o, &score.scores);
    select.granularity = 0;
    FAILS(tamis_op_select(context, &select, &test_error), TAMIS_E_ARGUMENT, "granularity is 0");
    select.granularity = SIZE;
    select.lists.capacity = 2;
    FAILS(tamis_op_select(context, &select, &test_error), TAMIS_E_ARGUMENT,
          "entries in a list of 2");
    select.lists.pages.buffer = NULL;
    FAILS(tamis_op_select(context, &select, &test_error), TAMIS_E_ARGUMENT,
          "lists.pages is absent");
    tamis_bounds_params bounds = {.kv = o.kv, .n = 1, .n_kv_heads = KV, .pages = score.scores};
    bounds.bounds.kind = (tamis_bounds_kind)3;
    FAILS(tamis_op_bounds(context, &bounds, &test_error), TAMIS_E_ARGUMENT, "bounds.kind is 3");
    bounds.bounds = (tamis_bounds){.reserved = {0, 4}};
    FAILS(tamis_op_bounds(context, &bounds, &test_error), TAMIS_E_ARGUMENT,
          "reserved[1] of tamis_bounds is 4");
    bounds.bounds = (tamis_bounds){0};
    bounds.n_kv_heads = 0;
    FAILS(tamis_op_bounds(context, &bounds, &test_error), TAMIS_E_ARGUMENT, "n_kv_heads is 0");
    tamis_merge_params merge = {.outs = score.scores, .n = 4, .dim = DIM};
    FAILS(tamis_op_merge(context, &merge, &test_error), TAMIS_E_ARGUMENT, "n_parts is 0");
    merge.n_parts = 2;
    FAILS(tamis_op_merge(context, &merge, &test_error), TAMIS_E_ARGUMENT, "outs: 2048 bytes");
    tamis_observe_params observe = {
        .kv = o.kv, .batch = o.batch, .n_items = SEQS, .max_span = 3, .q = o.q};
    FAILS(tamis_op_observe(context, &observe, &test_error), TAMIS_E_ARGUMENT, "spans is absent");
    observe.spans = o.batch.tiles;
    FAILS(tamis_op_observe(context, &observe, &test_error), TAMIS_E_ARGUMENT, "lse is absent");
    observe.lse = o.batch.table;
    FAILS(tamis_op_observe(context, &observe, &test_error), TAMIS_E_ARGUMENT,
          "neither values nor a tile");
    observe.rows = (tamis_rows_join)3;
    FAILS(tamis_op_observe(context, &observe, &test_error), TAMIS_E_ARGUMENT, "rows is 3");
    tamis_page_mass_params mass = {.kv = o.kv, .batch = o.batch, .q = o.q};
    FAILS(tamis_op_page_mass(context, &mass, &test_error), TAMIS_E_ARGUMENT, "scores is absent");
    FAILS(tamis_op_page_mass_scratch(context, &mass, NULL, &test_error), TAMIS_E_ARGUMENT,
          "bytes is NULL");
    ops_close(&o.rig);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attend_reads_every_layout),
        cmocka_unit_test(scores_are_those_of_the_pages_bounds),
        cmocka_unit_test(selected_pages_are_the_best_and_attended_alone),
        cmocka_unit_test(page_mass_is_the_share_of_attention),
        cmocka_unit_test(merged_states_are_the_whole),
        cmocka_unit_test(observed_weights_are_those_of_the_rows),
        cmocka_unit_test(a_plan_gives_the_same_pages_and_bits),
        cmocka_unit_test(calls_without_rows_need_no_buffers),
        cmocka_unit_test(attend_refuses_what_does_not_fit),
        cmocka_unit_test(attend_refuses_values_that_do_not_fit),
        cmocka_unit_test(other_ops_refuse_what_they_cannot_do),
    };
    const int unusable = test_begin(argc, argv);
    return unusable ? unusable : cmocka_run_group_tests_name("ops_paged", tests, NULL, NULL);
}
