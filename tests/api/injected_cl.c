/* SPDX-License-Identifier: Apache-2.0 */
/* OpenCL drivers that fail, at the n-th call of an entry point, or that give no times. */
#include "tests/api/cl_layer.h"
#include "tests/api/scenario.h"

#include <stdlib.h>
#include <string.h>

/* ---- Times ----------------------------------------------------------------------------------- */

/* What a plan with times gives under a driver, and how much its stages took. */
static tamis_plan_times run_timed(const scenario_case *c, uint8_t **record, size_t *bytes) {
    scenario s;
    tamis_plan_times times;
    scenario_open(&s, c);
    assert_int_equal(scenario_run(&s), SCENARIO_WHOLE);
    tamis_plan_get_times(s.e.w.plan, &times);
    *record = malloc(s.used);
    *bytes = s.used;
    assert_non_null(*record);
    memcpy(*record, s.record, s.used);
    scenario_close(&s);
    return times;
}

static double check_bandwidths(void) {
    const tamis_context_params params = {.device = test_device};
    tamis_context *context = NULL;
    double read = 0, copy = 0;
    OK(tamis_context_create(&params, &context, &test_error));
    OK(tamis_context_read_bandwidth(context, 4u << 20, &read, &test_error));
    OK(tamis_context_copy_bandwidth(context, 4u << 20, &copy, &test_error));
    tamis_context_destroy(&context);
    assert_true(read > 0.01 && read < 1e5 && copy > 0.01 && copy < 1e5);
    return read;
}

/* Whatever the driver gives, stages have times, and the results are the same. */
static void test_times(void **state) {
    (void)state;
    const cl_layer_times drivers[] = {CL_LAYER_TIMES, CL_LAYER_NO_QUEUE, CL_LAYER_NO_INFO,
                                      CL_LAYER_NO_INFO_LATER};
    uint8_t *first = NULL, *record;
    size_t bytes, n;
    scenario_case c = scenario_cases[0];
    c.timing = true;
    for (size_t i = 0; i < sizeof drivers / sizeof *drivers; i++) {
        cl_layer_set_times(drivers[i]);
        const tamis_plan_times t = run_timed(&c, i == 0 ? &first : &record, i == 0 ? &n : &bytes);
        print_message("driver %zu: write %.0f us, bounds %.0f, attend %.0f, fused %.0f\n", i,
                      t.write_us, t.bounds_us, t.attend_us, t.fused_us);
        assert_true(t.write_us > 0 && t.write_us < 1e8 && t.bounds_us > 0);
        assert_true(t.attend_us > 0 && t.attend_us < 1e8);
        assert_int_equal(cl_layer_profiling_queues(), 1);
        check_bandwidths();
        if (i == 0) continue;
        assert_int_equal(bytes, n);
        assert_memory_equal(record, first, n);
        free(record);
    }
    free(first);
    cl_layer_set_times(CL_LAYER_TIMES);
}

/* Nobody asks for times: no queue collects them, and they stay zero. */
static void test_no_times(void **state) {
    (void)state;
    uint8_t *record;
    size_t bytes;
    cl_layer_set_times(CL_LAYER_TIMES);
    const tamis_plan_times t = run_timed(&scenario_cases[0], &record, &bytes);
    assert_true(t.write_us == 0 && t.attend_us == 0);
    assert_int_equal(cl_layer_profiling_queues(), 0);
    free(record);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_no_times),
    };
    int skip = test_begin(argc, argv);
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
