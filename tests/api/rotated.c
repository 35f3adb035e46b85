/* SPDX-License-Identifier: Apache-2.0 */
/* tamis_plan_write_rotated: all that it leaves is, bit for bit, what rotating queries and keys and
 * then writing them leaves. */
#include "tests/api/fixture.h"

#include <math.h>
#include <string.h>

enum { HEADS = 4, KV_HEADS = 2, DIM = 64, ROWS = 32, PROMPT = 29, STEPS = 23 };
/* A row of q, k and v beside each other, in floats. */
enum { Q = HEADS * DIM, K = KV_HEADS * DIM, ALL = Q + 2 * K };

/* How a case rotates and writes. */
typedef struct rotated_case {
    const char *name;
    tamis_dtype dtype;
    tamis_pairing pairing;
    uint32_t n_rot;
    bool between; /* rows of q, k and v lie between each other */
    tamis_eviction_kind eviction;
    uint32_t every;
    int fixed;
} rotated_case;

/* A world with its buffers: q, k and v in one, positions, a table, two norms. */
typedef struct side {
    test_world w;
    tamis_sequence id;
    tamis_buffer *rows, *positions, *table, *norms;
    uint32_t length;
} side;

static void open_side(side *s, const rotated_case *c) {
    double frequencies[DIM / 2];
    float norms[2 * DIM];
    tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {
        .max_rows = ROWS, .max_context = 128, .flags = c->fixed ? TAMIS_PLAN_FIXED_LAUNCHES : 0};
    const uint32_t n_rot = c->n_rot ? c->n_rot : DIM;
    *s = (side){.length = 0};
    tamis_selection_default(TAMIS_SELECT_QUEST, &plan.selection);
    plan.selection.budget = 32;
    plan.selection.sinks = plan.selection.recent = 8;
    if (c->eviction) tamis_eviction_default(c->eviction, &plan.eviction);
    if (c->eviction) plan.eviction.budget = 40;
    plan.eviction.every = c->every;
    shape.dtype = c->dtype;
    shape.planes = tamis_eviction_planes(&plan.eviction);
    test_open(&s->w, &shape, &plan);
    OK(tamis_cache_add(s->w.cache, &s->id, &test_error));
    for (uint32_t i = 0; i < DIM / 2; i++)
        frequencies[i] = pow(10000.0, -2.0 * i / n_rot);
    for (uint32_t i = 0; i < 2 * DIM; i++)
        norms[i] = 1 + test_value(i, 0, 0, 0) / 8;
    tamis_context *context = s->w.context;
    OK(tamis_buffer_create(context, ROWS * ALL * sizeof(float), &s->rows, &test_error));
    OK(tamis_buffer_create(context, ROWS * sizeof(int32_t), &s->positions, &test_error));
    OK(tamis_buffer_create(context, tamis_rotation_bytes(n_rot), &s->table, &test_error));
    OK(tamis_buffer_create(context, sizeof norms, &s->norms, &test_error));
    OK(tamis_buffer_write(s->norms, 0, norms, sizeof norms, &test_error));
    const tamis_rotation rotation = {.n_rot = n_rot, .table = {s->table, 0}};
    OK(tamis_rotation_write(&rotation, frequencies, &test_error));
}

static void close_side(side *s) {
    tamis_buffer **all[] = {&s->rows, &s->positions, &s->table, &s->norms};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tamis_buffer_destroy(all[i]);
    test_close(&s->w);
}

/* The rows of the next n tokens of a layer, before they are rotated; what lies behind them, too. */
static void fill(side *s, uint32_t layer, uint32_t n) {
    static float host[ROWS * ALL];
    int32_t positions[ROWS];
    for (uint32_t r = 0; r < ROWS; r++) {
        positions[r] = (int32_t)(s->length + r);
        for (uint32_t i = 0; i < ALL; i++)
            host[r * ALL + i] = test_value(s->length + r, layer * ALL + i / DIM, 0, i % DIM);
    }
    OK(tamis_buffer_write(s->rows, 0, host, sizeof host, &test_error));
    OK(tamis_buffer_write(s->positions, 0, positions, n * sizeof *positions, &test_error));
}

/* The rows as they lie: one row of each after the other, or one matrix after the other. */
static tamis_rotated_rows rows_of(const side *s, const rotated_case *c) {
    const uint64_t rows = c->between ? 1 : ROWS, stride = c->between ? ALL : 0;
    const uint64_t k = rows * Q * sizeof(float), v = k + rows * K * sizeof(float);
    return (tamis_rotated_rows){
        .q = {.buffer = s->rows, .row_stride = stride},
        .k = {.buffer = s->rows, .offset = k, .row_stride = stride},
        .v = {.buffer = s->rows, .offset = v, .row_stride = stride},
        .rotation = {c->n_rot, c->pairing, {s->table, 0}},
        .positions = {s->positions, 0},
    };
}

static void rotate(const side *s, const tamis_rotated_rows *p, tamis_rows x, uint32_t n,
                   uint32_t heads) {
    const tamis_rotate_params params = {.x = x,
                                        .n_rows = n,
                                        .n_heads = heads,
                                        .head_dim = DIM,
                                        .rotation = p->rotation,
                                        .positions = p->positions};
    OK(tamis_op_rotate(s->w.context, &params, &test_error));
}

static void write_apart(side *s, const rotated_case *c, uint32_t layer, uint32_t n) {
    const tamis_rotated_rows p = rows_of(s, c);
    rotate(s, &p, p.q, n, HEADS);
    rotate(s, &p, p.k, n, KV_HEADS);
    OK(tamis_plan_write(s->w.plan, layer, &p.k, &p.v, &test_error));
}

static void write_together(side *s, const rotated_case *c, uint32_t layer, uint32_t n) {
    const tamis_rotated_rows p = rows_of(s, c);
    (void)n;
    OK(tamis_plan_write_rotated(s->w.plan, layer, &p, &test_error));
}

typedef void (*writer)(side *s, const rotated_case *c, uint32_t layer, uint32_t n);

/* A layer of the open step: what becomes of its rows and what attends them. */
static void run_layer(side *s, const rotated_case *c, writer write, uint32_t layer, uint32_t n,
                      float *rows, float *out) {
    const tamis_rows to = {.buffer = s->w.out};
    fill(s, layer, n);
    write(s, c, layer, n);
    const tamis_rotated_rows p = rows_of(s, c);
    OK(tamis_plan_attend(s->w.plan, layer, &p.q, &to, &test_error));
    OK(tamis_buffer_read(s->rows, 0, rows, ROWS * ALL * sizeof *rows, NULL));
    OK(tamis_buffer_read(s->w.out, 0, out, n * Q * sizeof *out, NULL));
}

static void begin(side *s, uint32_t n) {
    const tamis_step step = {.sequences = &s->id, .rows = &n, .count = 1, .exact = n > 1};
    OK(tamis_plan_step_begin(s->w.plan, &step, &test_error));
}

/* The same step on both sides, first one that is given up when a layer has been written. */
static void step(side *a, side *b, const rotated_case *c, uint32_t n) {
    static float rows[2][ROWS * ALL], out[2][ROWS * Q];
    side *sides[] = {a, b};
    const writer writers[] = {write_apart, write_together};
    for (uint32_t i = 0; i < 2; i++) {
        begin(sides[i], n);
        fill(sides[i], 0, n);
        writers[i](sides[i], c, 0, n);
        OK(tamis_plan_step_cancel(sides[i]->w.plan, &test_error));
        begin(sides[i], n);
    }
    for (uint32_t layer = 0; layer < 2; layer++) {
        for (uint32_t i = 0; i < 2; i++)
            run_layer(sides[i], c, writers[i], layer, n, rows[i], out[i]);
        assert_memory_equal(rows[0], rows[1], sizeof rows[0]);
        assert_memory_equal(out[0], out[1], n * Q * sizeof **out);
    }
    for (uint32_t i = 0; i < 2; i++) {
        OK(tamis_plan_step_end(sides[i]->w.plan, &test_error));
        sides[i]->length += n;
    }
}

static void expect_same_lane(const side *a, const side *b, uint32_t layer, uint32_t head) {
    static float k[2][128 * DIM], v[2][128 * DIM];
    int32_t positions[2][128];
    const side *sides[] = {a, b};
    tamis_sequence_stats stats;
    OK(tamis_cache_get_sequence_stats(a->w.cache, a->id, &stats, &test_error));
    const uint32_t n = (uint32_t)(stats.slots / 4);
    for (uint32_t i = 0; i < 2; i++) {
        tamis_cache *cache = sides[i]->w.cache;
        OK(tamis_cache_read(cache, sides[i]->id, layer, head, 0, n, k[i], v[i], &test_error));
        if (a->w.shape.planes & TAMIS_PLANE_POSITIONS)
            OK(tamis_cache_read_positions(cache, sides[i]->id, layer, head, 0, n, positions[i],
                                          &test_error));
    }
    assert_memory_equal(k[0], k[1], n * DIM * sizeof(float));
    assert_memory_equal(v[0], v[1], n * DIM * sizeof(float));
    if (a->w.shape.planes & TAMIS_PLANE_POSITIONS)
        assert_memory_equal(positions[0], positions[1], n * sizeof(int32_t));
}

/* Cached rows, positions and counters; the scores of an eviction have decided which tokens are
 * held. */
static void expect_same(const side *a, const side *b) {
    tamis_plan_counters of_a, of_b;
    for (uint32_t lane = 0; lane < 4; lane++)
        expect_same_lane(a, b, lane / 2, lane % 2);
    tamis_plan_get_counters(a->w.plan, &of_a);
    tamis_plan_get_counters(b->w.plan, &of_b);
    assert_memory_equal(&of_a, &of_b, sizeof of_a);
    assert_true(of_b.pages_bounded > 0 && of_b.rows_selected > 0);
}

static void the_bits_are_those_of_three_launches(void **state) {
    (void)state;
    static const rotated_case cases[] = {
        {"f32", TAMIS_F32, TAMIS_PAIR_HALF, 0, false, TAMIS_EVICT_NONE, 0, 0},
        {"f16, between", TAMIS_F16, TAMIS_PAIR_ADJACENT, 0, true, TAMIS_EVICT_NONE, 0, 0},
        {"bf16, few", TAMIS_BF16, TAMIS_PAIR_HALF, 18, true, TAMIS_EVICT_NONE, 0, 0},
        {"fixed", TAMIS_F16, TAMIS_PAIR_ADJACENT, 34, false, TAMIS_EVICT_NONE, 0, 1},
        {"q8", TAMIS_Q8, TAMIS_PAIR_HALF, 18, true, TAMIS_EVICT_NONE, 0, 0},
        {"k8v4", TAMIS_K8V4, TAMIS_PAIR_HALF, 0, true, TAMIS_EVICT_NONE, 0, 0},
        {"q4", TAMIS_Q4, TAMIS_PAIR_ADJACENT, 18, true, TAMIS_EVICT_NONE, 0, 0},
        {"knorm in place", TAMIS_F16, TAMIS_PAIR_HALF, 0, true, TAMIS_EVICT_KNORM, 1, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        side a, b;
        print_message("%s\n", cases[i].name);
        open_side(&a, &cases[i]);
        open_side(&b, &cases[i]);
        step(&a, &b, &cases[i], PROMPT);
        for (uint32_t n = 0; n < STEPS; n++)
            step(&a, &b, &cases[i], 1);
        expect_same(&a, &b);
        close_side(&a);
        close_side(&b);
    }
}

/* Heads that are normalised first differ from the op's by its tolerance at most. */
static void heads_are_normalised_before_they_are_rotated(void **state) {
    (void)state;
    static const rotated_case c = {.name = "norms", .dtype = TAMIS_F32};
    static float wanted[ROWS * ALL], got[ROWS * ALL];
    enum { N = 5 };
    side s;
    open_side(&s, &c);
    tamis_rotated_rows p = rows_of(&s, &c);
    p.eps = 1e-5f;
    tamis_norm_params q = {.x = p.q, .y = p.q, .w = {s.norms, 0}, .n_rows = N * HEADS, .dim = DIM};
    tamis_norm_params k = {
        .x = p.k, .y = p.k, .w = {s.norms, DIM * 4}, .n_rows = N * KV_HEADS, .dim = DIM};
    q.eps = k.eps = p.eps;
    fill(&s, 0, N);
    OK(tamis_op_norm(s.w.context, &q, &test_error));
    OK(tamis_op_norm(s.w.context, &k, &test_error));
    rotate(&s, &p, p.q, N, HEADS);
    rotate(&s, &p, p.k, N, KV_HEADS);
    OK(tamis_buffer_read(s.rows, 0, wanted, sizeof wanted, NULL));
    p.q_norm = q.w;
    p.k_norm = k.w;
    begin(&s, N);
    fill(&s, 0, N);
    OK(tamis_plan_write_rotated(s.w.plan, 0, &p, &test_error));
    OK(tamis_buffer_read(s.rows, 0, got, sizeof got, NULL));
    for (uint32_t i = 0; i < ROWS * ALL; i++)
        assert_true(fabsf(wanted[i] - got[i]) <= 1e-5f);
    assert_true(fabsf(got[0]) + fabsf(got[1]) > 0);
    OK(tamis_plan_step_cancel(s.w.plan, &test_error));
    close_side(&s);
}

/* The reference alone reads positions on the host. It refuses one that the table does not reach
 * before it has normalised or rotated anything. */
static void a_refused_position_leaves_the_rows(void **state) {
    (void)state;
    static const rotated_case c = {.name = "position", .dtype = TAMIS_F32};
    static float before[ROWS * ALL], after[ROWS * ALL];
    const int32_t beyond = TAMIS_ROTATE_LIMIT;
    side s;
    open_side(&s, &c);
    if (strcmp(tamis_context_device(s.w.context)->backend, "reference") != 0) {
        close_side(&s);
        return;
    }
    tamis_rotated_rows p = rows_of(&s, &c);
    p.q_norm = (tamis_place){s.norms, 0};
    p.k_norm = (tamis_place){s.norms, DIM * 4};
    p.eps = 1e-5f;
    begin(&s, 5);
    fill(&s, 0, 5);
    OK(tamis_buffer_write(s.positions, 0, &beyond, sizeof beyond, &test_error));
    OK(tamis_buffer_read(s.rows, 0, before, sizeof before, NULL));
    FAILS(tamis_plan_write_rotated(s.w.plan, 0, &p, &test_error), TAMIS_E_ARGUMENT,
          "the table ends before position: 1048576");
    OK(tamis_buffer_read(s.rows, 0, after, sizeof after, NULL));
    assert_memory_equal(before, after, sizeof before);
    OK(tamis_plan_step_cancel(s.w.plan, &test_error));
    close_side(&s);
}

#define REFUSED(part)                                                                              \
    FAILS(tamis_plan_write_rotated(s.w.plan, 0, &p, &test_error), TAMIS_E_ARGUMENT, part);         \
    p = good

static void bad_arguments_are_refused(void **state) {
    (void)state;
    static const rotated_case c = {.name = "arguments", .dtype = TAMIS_F16, .between = true};
    side s;
    open_side(&s, &c);
    const tamis_rotated_rows good = rows_of(&s, &c);
    tamis_rotated_rows p = good;
    FAILS(tamis_plan_write_rotated(NULL, 0, &p, &test_error), TAMIS_E_ARGUMENT, "plan");
    FAILS(tamis_plan_write_rotated(s.w.plan, 0, &p, &test_error), TAMIS_E_STATE, "no open step");
    begin(&s, 3);
    fill(&s, 0, 3);
    FAILS(tamis_plan_write_rotated(s.w.plan, 0, NULL, &test_error), TAMIS_E_ARGUMENT, "rows");
    FAILS(tamis_plan_write_rotated(s.w.plan, 2, &p, &test_error), TAMIS_E_ARGUMENT, "layer 2");
    p.q.buffer = NULL;
    REFUSED("q: no buffer");
    p.k.dtype = p.v.dtype = TAMIS_F16;
    REFUSED("k and v are f16; rows that are to be rotated must be f32");
    p.q.dtype = TAMIS_F16;
    REFUSED("q is f16");
    p.k.offset = p.q.offset + 64;
    REFUSED("q and k share elements of one buffer: 3 rows of 256 from byte 0, of 128 from byte 64");
    p.v.offset = p.k.offset + K * 4 - 64;
    REFUSED("k and v share elements");
    p.v.offset = p.k.offset + ALL * 4;
    REFUSED("k and v share elements");
    p.q.row_stride = ALL + 16;
    REFUSED("q and k share elements");
    p.rotation.n_rot = 66;
    REFUSED("n_rot is 66: an even number from 2 to 64");
    p.rotation.n_rot = 7;
    REFUSED("n_rot is 7");
    p.rotation.pairing = (tamis_pairing)2;
    REFUSED("pairing is 2: there are 0 to 1");
    p.positions.buffer = NULL;
    REFUSED("positions is absent");
    p.positions.offset = ROWS * 4 - 8;
    REFUSED("positions: 12 bytes from byte 120: past the buffer's 128 bytes");
    p.rotation.table.offset = 2;
    REFUSED("table: offset 2: not a multiple of 4");
    p.q_norm = (tamis_place){s.norms, DIM * 4 + 4};
    REFUSED("q_norm: 256 bytes from byte 260");
    p.k_norm = (tamis_place){s.norms, 2 * DIM * 4};
    REFUSED("k_norm: 256 bytes from byte 512");
    p.reserved32 = 1;
    REFUSED("reserved32");
    p.reserved[3] = 1;
    REFUSED("reserved");
    OK(tamis_plan_write_rotated(s.w.plan, 0, &good, &test_error));
    FAILS(tamis_plan_write_rotated(s.w.plan, 0, &good, &test_error), TAMIS_E_STATE, "already");
    OK(tamis_plan_step_cancel(s.w.plan, &test_error));
    close_side(&s);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_those_of_three_launches),
        cmocka_unit_test(heads_are_normalised_before_they_are_rotated),
        cmocka_unit_test(a_refused_position_leaves_the_rows),
        cmocka_unit_test(bad_arguments_are_refused),
    };
    int skip = test_begin(argc, argv);
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
