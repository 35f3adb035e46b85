/* SPDX-License-Identifier: Apache-2.0 */
/* Sliding windows: a row sees exactly the window's tokens, whether it comes alone or in a prompt, and
 * the counters hold what was read. */
#include "tests/api/fixture.h"

#include <math.h>

enum { PAGE = 16, DIM = 64, HEADS = 4, KV_HEADS = 2, LENGTH = 150 };

typedef struct rig {
    test_world world;
    tamis_sequence id;
    uint32_t length; /* of the sequence */
} rig;

static void open_rig(rig *r, uint32_t window, uint32_t planes) {
    tamis_cache_params shape = test_shape();
    const tamis_plan_params plan = {
        .max_rows = LENGTH, .max_context = 512, .attention.sliding_window = window};
    shape.page_size = PAGE;
    shape.n_layers = 1;
    shape.capacity_tokens = 512;
    shape.planes = planes;
    test_open(&r->world, &shape, &plan);
    OK(tamis_cache_add(r->world.cache, &r->id, &test_error));
    r->length = 0;
}

/* Keys are 0, so that all tokens that a row sees weigh the same; every channel of token i's value is
 * i. */
static void write_rows(rig *r, uint32_t n) {
    test_world *w = &r->world;
    const tamis_rows k = {.buffer = w->k}, v = {.buffer = w->v};
    const uint32_t width = KV_HEADS * DIM;
    for (uint32_t i = 0; i < n * width; i++)
        w->host[i] = 0;
    OK(tamis_buffer_write(w->k, 0, w->host, n * width * sizeof *w->host, &test_error));
    for (uint32_t i = 0; i < n * width; i++)
        w->host[i] = (float)(r->length + i / width);
    OK(tamis_buffer_write(w->v, 0, w->host, n * width * sizeof *w->host, &test_error));
    OK(tamis_plan_write(w->plan, 0, &k, &v, &test_error));
}

/* The mean of the values that the row at `position` sees. */
static float mean_seen(uint32_t position, uint32_t window) {
    const uint32_t seen = window && position + 1 > window ? window : position + 1;
    return (float)position - (float)(seen - 1) / 2;
}

/* Reads n more tokens in one step. */
static void read_rows(rig *r, uint32_t n, uint32_t window, bool exact) {
    test_world *w = &r->world;
    const tamis_step step = {.sequences = &r->id, .rows = &n, .count = 1, .exact = exact};
    const tamis_rows q = {.buffer = w->q}, out = {.buffer = w->out};
    const uint32_t width = HEADS * DIM;
    OK(tamis_plan_step_begin(w->plan, &step, &test_error));
    write_rows(r, n);
    for (uint32_t i = 0; i < n * width; i++)
        w->host[i] = test_value(i, 1, 0, i % DIM);
    OK(tamis_buffer_write(w->q, 0, w->host, n * width * sizeof *w->host, &test_error));
    OK(tamis_plan_attend(w->plan, 0, &q, &out, &test_error));
    OK(tamis_buffer_read(w->out, 0, w->host, n * width * sizeof *w->host, &test_error));
    for (uint32_t i = 0; i < n * width; i++) {
        const float wanted = mean_seen(r->length + i / width, window);
        if (fabsf(w->host[i] - wanted) > 1e-3f)
            fail_msg("position %u under a window of %u: mean %g, not %g", r->length + i / width,
                     window, (double)w->host[i], (double)wanted);
    }
    r->length += n;
}

static void rows_see_the_window_alone(void **state) {
    (void)state;
    const uint32_t windows[] = {1, 16, 17, 65, 150, 151};
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++)
        for (uint32_t planes = 0; planes < 2; planes++) {
            rig r;
            open_rig(&r, windows[i], planes ? TAMIS_PLANE_POSITIONS : 0);
            read_rows(&r, LENGTH, windows[i], true);
            OK(tamis_plan_step_end(r.world.plan, &test_error));
            for (uint32_t more = 0; more < 11; more++) {
                read_rows(&r, 1, windows[i], false);
                OK(tamis_plan_step_end(r.world.plan, &test_error));
            }
            test_close(&r.world);
        }
}

/* Pages that hold no token of the window are not read, and not counted. */
static void what_is_read_is_counted(void **state) {
    (void)state;
    const struct {
        uint32_t window, planes, first;
    } cases[] = {{0, 0, 0},
                 {1, 0, 9},
                 {7, 0, 9},
                 {8, 0, 8},
                 {40, 0, 6},
                 {1000, 0, 0},
                 {7, TAMIS_PLANE_POSITIONS, 9}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig r;
        tamis_plan_counters c;
        uint32_t pages[16], n = 0;
        open_rig(&r, cases[i].window, cases[i].planes);
        read_rows(&r, LENGTH, cases[i].window, true);
        OK(tamis_plan_step_end(r.world.plan, &test_error));
        read_rows(&r, 1, cases[i].window, false);
        OK(tamis_plan_read_selected(r.world.plan, 0, 1, pages, 16, &n, &test_error));
        tamis_plan_get_counters(r.world.plan, &c);
        assert_int_equal(n, 10 - cases[i].first);
        assert_int_equal(pages[0], cases[i].first);
        assert_int_equal(pages[n - 1], 9);
        assert_int_equal(c.kv_bytes_read, n * KV_HEADS * 2 * PAGE * DIM * sizeof(float));
        assert_int_equal(c.kv_bytes_full, c.kv_bytes_read);
        OK(tamis_plan_step_end(r.world.plan, &test_error));
        test_close(&r.world);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_see_the_window_alone),
        cmocka_unit_test(what_is_read_is_counted),
    };
    int skip = test_begin(argc, argv);
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
