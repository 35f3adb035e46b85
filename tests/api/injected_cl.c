/* SPDX-License-Identifier: Apache-2.0 */
/* OpenCL drivers that fail, at the n-th call of an entry point, or that give no times. */
#include "host/backend.h"
#include "host/opencl/opencl.h"
#include "tests/api/cl_layer.h"
#include "tests/api/scenario.h"
#include <tamis/opencl.h>

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
static void stages_have_times_whatever_the_driver_gives(void **state) {
    (void)state;
    const cl_layer_times drivers[] = {CL_LAYER_TIMES, CL_LAYER_NO_QUEUE, CL_LAYER_NO_INFO,
                                      CL_LAYER_NO_INFO_LATER, CL_LAYER_SAME_TIMES};
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
static void nobody_asks_so_no_times_are_collected(void **state) {
    (void)state;
    uint8_t *record;
    size_t bytes;
    cl_layer_set_times(CL_LAYER_TIMES);
    const tamis_plan_times t = run_timed(&scenario_cases[0], &record, &bytes);
    assert_true(t.write_us == 0 && t.attend_us == 0);
    assert_int_equal(cl_layer_profiling_queues(), 0);
    free(record);
}

/* ---- Entry points that fail ------------------------------------------------------------------ */

/* Points of an entry point in a run: spread evenly over its calls. */
#define POINTS 3u
/* One of so many points is tried. */
static uint32_t share = 1;
static uint32_t points;

static void count(tms_device *dev, bool on) {
    (void)dev;
    cl_layer_count(on);
}

static cl_layer_entry failing;

/* Questions that are asked more than once or whose answer is not vital, and the queue for times. */
static bool is_passed_over(void) {
    return failing == CL_LAYER_clGetPlatformIDs || failing == CL_LAYER_clGetPlatformInfo ||
           failing == CL_LAYER_clGetDeviceIDs || failing == CL_LAYER_clGetDeviceInfo ||
           failing == CL_LAYER_clGetEventProfilingInfo || failing == CL_LAYER_clCreateCommandQueue;
}

/* What a queue for times is tried with before it serves. */
static bool is_of_times(void) {
    return failing == CL_LAYER_clEnqueueMarkerWithWaitList || failing == CL_LAYER_clWaitForEvents;
}

static const scenario_faults faults = {count, cl_layer_failed, CL_LAYER_TEXT, is_passed_over};

typedef struct clean {
    uint8_t *record;
    size_t bytes;
} clean;

static clean run_clean(scenario *s, uint32_t leave_at, bool leave_after) {
    s->faults = NULL;
    s->leave_at = leave_at;
    s->leave_after = leave_after;
    assert_int_equal(scenario_run(s), SCENARIO_WHOLE);
    clean c = {malloc(s->used), s->used};
    assert_non_null(c.record);
    memcpy(c.record, s->record, s->used);
    s->leave_at = 0;
    return c;
}

static bool is_same(const clean *a, const clean *b) {
    return a->bytes == b->bytes && memcmp(a->record, b->record, a->bytes) == 0;
}

/* Whether the end is that of a run in which the caller gave the step up at the same place, before
 * the call or after it: h2o's sums keep the weights of rows that were given up. */
static bool is_as_left(scenario *s) {
    const clean now = {s->record, s->used};
    const uint32_t at = s->failed_at;
    bool same = false;
    for (int after = 0; after < 2 && !same; after++) {
        s->record = NULL;
        s->room = 0;
        clean left = run_clean(s, at, after);
        free(s->record);
        same = is_same(&now, &left);
        free(left.record);
    }
    s->record = now.record;
    s->used = s->room = now.bytes;
    return same;
}

static void reopen(scenario *s) {
    const scenario_case *c = s->c;
    scenario_close(s);
    scenario_open(s, c);
}

/* Returns whether the sequence or the device was refused. */
static bool run_point(scenario *s, const clean *whole, cl_layer_entry entry, uint32_t n) {
    failing = entry;
    s->faults = &faults;
    s->recovery = points % 2 ? SCENARIO_AGAIN : SCENARIO_GIVE_UP;
    cl_layer_begin(entry, n);
    const scenario_end end = scenario_run(s);
    const bool lost = s->e.w.context->dev->sticky != TAMIS_OK;
    const bool as_left = s->c->eviction == TAMIS_EVICT_H2O && s->gave_up;
    const clean now = {s->record, s->used};
    /* When the host waits for its staging depends on the runs before: it may not have come to it. */
    assert_true(cl_layer_failed() || entry == CL_LAYER_clWaitForEvents);
    if (end == SCENARIO_WHOLE && !(as_left ? is_as_left(s) : is_same(&now, whole)))
        fail_msg("%s: call %u of %s fails in call %u, which is %s: another end", s->c->name, n,
                 cl_layer_names[entry], s->failed_at,
                 s->recovery == SCENARIO_AGAIN ? "made again" : "given up");
    if (end == SCENARIO_REFUSED && !lost && !(s->c->options & TAMIS_EVICT_ACROSS_LAYERS))
        fail_msg("%s: call %u of %s: %s", s->c->name, n, cl_layer_names[entry], s->refusal);
    /* A device that once gave no time is not asked for one again. */
    if (lost || entry == CL_LAYER_clGetEventProfilingInfo) reopen(s);
    return end == SCENARIO_REFUSED;
}

static uint32_t stride_of(uint32_t calls) {
    return calls < POINTS ? 1 : calls / POINTS;
}

static void run_case(const scenario_case *c) {
    scenario s;
    uint32_t calls[CL_LAYER_ENTRIES], tried = 0, refused = 0;
    scenario_open(&s, c);
    const clean whole = run_clean(&s, 0, false);
    s.faults = &faults;
    cl_layer_begin(CL_LAYER_ENTRIES, 0);
    assert_int_equal(scenario_run(&s), SCENARIO_WHOLE);
    for (int entry = 0; entry < CL_LAYER_ENTRIES; entry++)
        calls[entry] = cl_layer_calls((cl_layer_entry)entry);
    for (int entry = 0; entry < CL_LAYER_ENTRIES; entry++)
        for (uint32_t n = points % POINTS; n < calls[entry]; n += stride_of(calls[entry])) {
            if (points++ % share != 0) continue;
            refused += run_point(&s, &whole, (cl_layer_entry)entry, n);
            tried++;
        }
    print_message("%s: %u points, %u refused\n", c->name, tried, refused);
    free(whole.record);
    scenario_close(&s);
    assert_int_equal(cl_layer_alive(), 0);
}

static void each_failing_call_of_opencl_repeats_to_the_same_end(void **state) {
    (void)state;
    for (uint32_t i = 0; i < scenario_case_count; i++)
        run_case(&scenario_cases[i]);
}

/* Memory of both sides, and a copy that the first queue waits for. */
static tamis_status upload(tamis_context *context) {
    tamis_host_buffer *from = NULL;
    tamis_buffer *to = NULL;
    tamis_event *mark = NULL, *done = NULL;
    tamis_status status = tamis_host_buffer_create(context, 4096, &from, &test_error);
    if (status == TAMIS_OK) status = tamis_buffer_create(context, 4096, &to, &test_error);
    if (status == TAMIS_OK) memset(tamis_host_buffer_data(from), 7, 4096);
    if (status == TAMIS_OK) status = tamis_event_record(context, &mark, &test_error);
    if (status == TAMIS_OK)
        status = tamis_buffer_upload(to, 0, from, 0, 4096, mark, &done, &test_error);
    if (status == TAMIS_OK) status = tamis_event_await(done, &test_error);
    uint8_t last = 7;
    if (status == TAMIS_OK) status = tamis_buffer_read(to, 4095, &last, 1, &test_error);
    assert_int_equal(last, 7);
    tamis_event_destroy(&done);
    tamis_event_destroy(&mark);
    tamis_buffer_destroy(&to);
    tamis_host_buffer_destroy(&from);
    return status;
}

/* A context, a cache, a plan and an upload, and nothing of them left. The status of the first that
 * fails. */
static tamis_status make_all(const scenario_case *c) {
    const tamis_context_params params = {.device = test_device};
    tamis_plan_params plan_params = scenario_plan(c);
    tamis_cache_params shape = test_shape();
    tamis_context *context = NULL;
    tamis_cache *cache = NULL;
    tamis_plan *plan = NULL;
    shape.planes = tamis_eviction_planes(&plan_params.eviction);
    cl_layer_count(true);
    tamis_status status = tamis_context_create(&params, &context, &test_error);
    if (status == TAMIS_OK) status = tamis_cache_create(context, &shape, &cache, &test_error);
    if (status == TAMIS_OK) status = tamis_plan_create(cache, &plan_params, &plan, &test_error);
    if (status == TAMIS_OK) status = upload(context);
    cl_layer_count(false);
    tamis_plan_destroy(&plan);
    tamis_cache_destroy(&cache);
    tamis_context_destroy(&context);
    assert_int_equal(cl_layer_alive(), 0);
    return status;
}

/* What cannot be made says why, and leaves nothing. */
static void a_failed_creation_says_why_and_leaves_nothing(void **state) {
    (void)state;
    const scenario_case *c = &scenario_cases[5];
    uint32_t calls[CL_LAYER_ENTRIES];
    cl_layer_begin(CL_LAYER_ENTRIES, 0);
    OK(make_all(c));
    for (int entry = 0; entry < CL_LAYER_ENTRIES; entry++)
        calls[entry] = cl_layer_calls((cl_layer_entry)entry);
    for (int entry = 0; entry < CL_LAYER_ENTRIES; entry++)
        for (uint32_t n = 0; n < calls[entry]; n += stride_of(calls[entry])) {
            if (points++ % share != 0) continue;
            failing = (cl_layer_entry)entry;
            cl_layer_begin(failing, n);
            test_error = (tamis_error){0};
            const tamis_status status = make_all(c);
            assert_true(cl_layer_failed());
            if (status == TAMIS_OK && (is_passed_over() || is_of_times())) continue;
            const bool told = strstr(test_error.text, CL_LAYER_TEXT) != NULL;
            const bool absent = status == TAMIS_E_NO_DEVICE && test_error.text[0];
            if (!absent && !(told && (status == TAMIS_E_DEVICE || status == TAMIS_E_NO_MEMORY)))
                fail_msg("call %u of %s: %s \"%s\"", n, cl_layer_names[entry],
                         tamis_status_name(status), test_error.text);
        }
}

/* ---- What the program has of OpenCL itself --------------------------------------------------- */

typedef struct program {
    cl_context context;
    cl_command_queue queue;
    cl_mem mem;
    cl_event event;
    void *memory;
} program;

static cl_device_id find_device(void) {
    cl_platform_id platforms[16];
    cl_uint n_platforms = 0, n = 0;
    cl_device_id device = NULL;
    assert_int_equal(clGetPlatformIDs(16, platforms, &n_platforms), CL_SUCCESS);
    for (cl_uint i = 0; i < n_platforms && n == 0; i++)
        if (clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_ALL, 1, &device, &n) != CL_SUCCESS) n = 0;
    assert_int_not_equal(n, 0);
    return device;
}

static program start_program(void) {
    cl_device_id device = find_device();
    cl_int codes[4];
    program p = {.memory = aligned_alloc(64, 4096)};
    p.context = clCreateContext(NULL, 1, &device, NULL, NULL, &codes[0]);
    p.queue = clCreateCommandQueue(p.context, device, 0, &codes[1]);
    p.mem = clCreateBuffer(p.context, CL_MEM_READ_WRITE, 4096, NULL, &codes[2]);
    codes[3] = clEnqueueMarkerWithWaitList(p.queue, 0, NULL, &p.event);
    for (int i = 0; i < 4; i++)
        assert_int_equal(codes[i], CL_SUCCESS);
    assert_non_null(p.memory);
    return p;
}

static void stop_program(program *p) {
    clReleaseEvent(p->event);
    clReleaseMemObject(p->mem);
    clReleaseCommandQueue(p->queue);
    clReleaseContext(p->context);
    free(p->memory);
}

/* A context, buffers and an event on what it has; and nothing of them left. The status of the first
 * call that fails. */
static tamis_status share_all(const program *p) {
    const int alive = cl_layer_alive();
    tamis_context *context = NULL;
    tamis_buffer *wrapped = NULL, *host = NULL, *tried = NULL;
    tamis_event *event = NULL;
    uint8_t byte = 1;
    cl_layer_count(true);
    tamis_status status =
        tamis_context_create_opencl(p->context, p->queue, NULL, &context, &test_error);
    if (status == TAMIS_OK)
        status = tamis_buffer_wrap_opencl(context, p->mem, 64, 64, &wrapped, &test_error);
    if (status == TAMIS_OK)
        status = tamis_event_wrap_opencl(context, p->event, &event, &test_error);
    if (status == TAMIS_OK) status = tamis_event_await(event, &test_error);
    if (status == TAMIS_OK)
        status = tamis_buffer_wrap_host(context, p->memory, 4096, &host, &test_error);
    if (status == TAMIS_OK)
        tms_cl(context->dev)->in_place = false; /* so that the device is tried */
    if (status == TAMIS_OK)
        status = tamis_buffer_wrap_host(context, p->memory, 4096, &tried, &test_error);
    if (status == TAMIS_OK) status = tamis_buffer_write(wrapped, 0, &byte, 1, &test_error);
    if (status == TAMIS_OK) status = tamis_buffer_read(wrapped, 0, &byte, 1, &test_error);
    cl_layer_count(false);
    tamis_event_destroy(&event);
    tamis_buffer_destroy(&tried);
    tamis_buffer_destroy(&host);
    tamis_buffer_destroy(&wrapped);
    tamis_context_destroy(&context);
    assert_int_equal(cl_layer_alive(), alive);
    return status;
}

static void what_cannot_be_shared_says_why_and_leaves_nothing(void **state) {
    (void)state;
    uint32_t calls[CL_LAYER_ENTRIES], tried = 0;
    program p = start_program();
    cl_layer_begin(CL_LAYER_ENTRIES, 0);
    OK(share_all(&p));
    for (int entry = 0; entry < CL_LAYER_ENTRIES; entry++)
        calls[entry] = cl_layer_calls((cl_layer_entry)entry);
    for (int entry = 0; entry < CL_LAYER_ENTRIES; entry++)
        for (uint32_t n = 0; n < calls[entry]; n++, tried++) {
            failing = (cl_layer_entry)entry;
            cl_layer_begin(failing, n);
            test_error = (tamis_error){0};
            const tamis_status status = share_all(&p);
            assert_true(cl_layer_failed());
            const bool told = strstr(test_error.text, CL_LAYER_TEXT) != NULL;
            const bool absent = status == TAMIS_E_NO_DEVICE && test_error.text[0];
            if (!is_passed_over() && !absent && !(told && status != TAMIS_OK))
                fail_msg("call %u of %s: %s \"%s\"", n, cl_layer_names[entry],
                         tamis_status_name(status), test_error.text);
        }
    print_message("%u points\n", tried);
    assert_true(calls[CL_LAYER_clRetainMemObject] && calls[CL_LAYER_clGetEventInfo]);
    stop_program(&p);
    assert_int_equal(cl_layer_alive(), 0);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_cannot_be_shared_says_why_and_leaves_nothing),
        cmocka_unit_test(stages_have_times_whatever_the_driver_gives),
        cmocka_unit_test(nobody_asks_so_no_times_are_collected),
        cmocka_unit_test(a_failed_creation_says_why_and_leaves_nothing),
        cmocka_unit_test(each_failing_call_of_opencl_repeats_to_the_same_end),
    };
    int skip = test_begin(argc, argv);
    if (argc > 2) share = (uint32_t)atoi(argv[2]);
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
