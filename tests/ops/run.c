/* SPDX-License-Identifier: Apache-2.0 */
/* Runs one case on one device: each form against what is expected, twice for bits, or timed. */
#include "check.h"
#ifdef TAMIS_HAVE_OPENCL
#include "host/opencl/opencl.h"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BENCH_WARM 3
#define BENCH_RUNS 31        /* at most */
#define BENCH_US   1000000.0 /* no further run is begun after so much device time */

bool check_is_reference(const tms_device *dev) {
    return strcmp(dev->backend->name, "reference") == 0;
}

static check_rows all_rows(const check_data *data) {
    return (check_rows){0, data->c->op->rows(data)};
}

static bool fail(check_result *result, const char *what, const char *why) {
    result->verdict = CHECK_FAILED;
    snprintf(result->why, sizeof result->why, "%s%s%.440s", what, *what ? ": " : "", why);
    return false;
}

/* Takes the status of a launch; unsupported is a skip, for those who may. */
static bool launched(check_side *side, tamis_status status, check_result *result) {
    if (status == TAMIS_OK) status = tms_device_wait(side->dev, &side->error);
    if (status == TAMIS_OK) return true;
    fail(result, tamis_status_name(status), side->error.text);
    if (status == TAMIS_E_UNSUPPORTED) result->verdict = CHECK_SKIPPED;
    return false;
}

static bool launch_and_read(check_side *side, check_result *result) {
    const check_data *data = side->data;
    if (!launched(side, data->c->op->launch(side, all_rows(data)), result)) return false;
    if (!check_side_read(side)) return fail(result, "", side->why);
    if (data->c->op->settle) data->c->op->settle(data, side->result);
    return true;
}

/* Processor time of all threads: what compiling takes, whatever else the machine does. */
static double milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* ---- Mode correct ---------------------------------------------------------------------------- */

static void want_arrays(const check_data *data, void **want) {
    for (int id = 0; id < BUF_COUNT; id++)
        want[id] = data->buf[id].want;
    if (data->c->op->settle) data->c->op->settle(data, want);
}

/* Whether the case is launched without rows first, as when a plan is made. A driver may then compile
 * a base kernel a second time, for wide grids (host/opencl/launch.c), which takes longer than all
 * else: there, only an op's first case of each dtype and type of weights. The cases of an op come
 * one behind another. */
static bool begins_idle(tms_device *dev, const check_case *c) {
#ifdef TAMIS_HAVE_OPENCL
    static const check_op *op;
    static uint32_t begun; /* a bit for each; an op's cases differ in one of the two */
    if (strcmp(dev->backend->name, "opencl") == 0 && tms_cl(dev)->wide_grids &&
        (dev->form == TMS_FORM_BASE || dev->form == TMS_FORM_GPU)) {
        if (op != c->op) begun = 0;
        op = c->op;
        const uint32_t before = begun;
        begun |= 1u << (c->v[KEY_DTYPE] + c->v[KEY_TYPE]);
        return begun != before;
    }
#endif
    (void)dev, (void)c;
    return true;
}

/* The reference is held to the oracle, every other device to the reference. */
static void run_correct(check_side *side, tms_device *reference, check_result *result) {
    const check_data *data = side->data;
    const check_op *op = data->c->op;
    void *want[BUF_COUNT];
    check_side expected = {.dev = reference};
    char why[400];
    want_arrays(data, want);
    const double begin = milliseconds();
    if (begins_idle(side->dev, data->c) &&
        !launched(side, op->launch(side, (check_rows){0, 0}), result))
        return;
    if (!launch_and_read(side, result)) return;
    result->first_ms = milliseconds() - begin;
    if (op->judge) {
        if (!op->judge(side, why, sizeof why)) fail(result, "", why);
        return;
    }
    if (!check_is_reference(side->dev)) {
        check_result other = {0};
        if (!check_side_open(&expected, reference, data) || !launch_and_read(&expected, &other)) {
            fail(result, "the reference", *other.why ? other.why : expected.why);
            goto done;
        }
        memcpy(want, expected.result, sizeof want);
    }
    if (!check_compare(data, want, side->result, why, sizeof why)) fail(result, "", why);
done:
    check_side_close(&expected);
}

/* ---- Mode bitwise ---------------------------------------------------------------------------- */

static void keep_results(const check_side *side, void **kept) {
    for (int id = 0; id < BUF_COUNT; id++) {
        const check_buffer *b = &side->data->buf[id];
        const uint64_t bytes = b->count * check_type_size(b->type);
        kept[id] = side->result[id] ? check_alloc(bytes) : NULL;
        if (kept[id]) memcpy(kept[id], side->result[id], bytes);
    }
}

/* Reads what was launched since the reset and compares with the first launch. */
static bool same_bits(check_side *side, void *const *first, const char *what,
                      check_result *result) {
    char why[400];
    if (!check_side_read(side)) return fail(result, what, side->why);
    if (side->data->c->op->settle) side->data->c->op->settle(side->data, side->result);
    if (!check_compare_bits(side->data, first, side->result, why, sizeof why))
        return fail(result, what, why);
    return true;
}

/* Many rows may be served by another kernel than few, whose roundings may differ (linear), and so
 * may rows that share a tile (attend, on CUDA); the reference has one way for all. */
static bool exempt(const check_side *side, uint32_t n) {
    const check_op *op = side->data->c->op;
    const bool apart = op->tiles_apart && side->data->lanes.max_tile_rows > 1 &&
                       side->data->c->v[KEY_TOP] == 0 &&
                       strcmp(side->dev->backend->name, "cuda") == 0;
    return (op->few_rows && n > op->few_rows && !check_is_reference(side->dev)) || apart;
}

static bool rows_alone(check_side *side, void *const *first, check_result *result) {
    const check_op *op = side->data->c->op;
    const uint32_t n = op->rows(side->data);
    if (!op->rows_alone || n < 2 || exempt(side, n)) return true;
    if (!check_side_reset(side)) return fail(result, "", side->why);
    for (uint32_t r = 0; r < n; r++) {
        if (launched(side, op->launch(side, (check_rows){r, 1}), result)) continue;
        if (result->verdict == CHECK_FAILED || !op->refusal) return false;
        result->verdict = CHECK_PASSED; /* an optional op may refuse fewer rows */
        return true;
    }
    return same_bits(side, first, "each row alone against all rows", result);
}

/* The rows of a launch beyond few_rows in two of the kind. */
static bool parts_alike(check_side *side, void *const *first, check_result *result) {
    const check_op *op = side->data->c->op;
    const uint32_t n = op->rows(side->data), least = op->few_rows + 1;
    if (!op->alike_rows || n < 2 * least || n > op->alike_rows(side)) return true;
    return check_side_reset(side)
               ? launched(side, op->launch(side, (check_rows){0, least}), result) &&
                     launched(side, op->launch(side, (check_rows){least, n - least}), result) &&
                     same_bits(side, first, "rows in two launches against one", result)
               : fail(result, "", side->why);
}

/* Not in form auto, which may take another form for the other way. */
static void other_way(check_side *side, void *const *first, check_result *result) {
    const check_op *op = side->data->c->op;
    if (!op->again || (side->dev->form == TMS_FORM_AUTO && !check_is_reference(side->dev))) return;
    if (!check_side_reset(side))
        fail(result, "", side->why);
    else if (launched(side, op->again(side), result))
        same_bits(side, first, op->again_name, result);
    else if (result->verdict == CHECK_SKIPPED)
        result->verdict = CHECK_PASSED; /* the form does not know the other way */
}

/* What the op gives is a choice or a copy: every device makes the reference's. */
static bool same_as_reference(check_side *side, tms_device *reference, check_result *result) {
    check_side expected = {.dev = reference};
    check_result other = {0};
    char why[400];
    bool same = !side->data->c->op->exact || check_is_reference(side->dev);
    if (same) return true;
    if (!check_side_open(&expected, reference, side->data) || !launch_and_read(&expected, &other))
        fail(result, "the reference", *other.why ? other.why : expected.why);
    else if (!(same =
                   check_compare_bits(side->data, expected.result, side->result, why, sizeof why)))
        fail(result, "against the reference", why);
    check_side_close(&expected);
    return same;
}

static void run_bitwise(check_side *side, tms_device *reference, check_result *result) {
    const check_op *op = side->data->c->op;
    void *first[BUF_COUNT];
    if (!launch_and_read(side, result) || !same_as_reference(side, reference, result)) return;
    keep_results(side, first);
    if (!check_side_reset(side))
        fail(result, "", side->why);
    else if (launched(side, op->launch(side, all_rows(side->data)), result) &&
             same_bits(side, first, "the second launch against the first", result) &&
             rows_alone(side, first, result) && parts_alike(side, first, result))
        other_way(side, first, result);
    for (int id = 0; id < BUF_COUNT; id++)
        free(first[id]);
}

/* ---- Mode bench ------------------------------------------------------------------------------ */

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool timed_launch(check_side *side, double *us, check_result *result) {
    tms_event *from = NULL, *to = NULL;
    tamis_error *error = &side->error;
    tamis_status status = tms_device_event_record(side->dev, true, &from, error);
    if (status == TAMIS_OK) status = side->data->c->op->launch(side, all_rows(side->data));
    if (status == TAMIS_OK) status = tms_device_event_record(side->dev, true, &to, error);
    if (status == TAMIS_OK) status = tms_device_event_elapsed(side->dev, from, to, us, error);
    bool ok = launched(side, status, result);
    tms_device_event_free(side->dev, from);
    tms_device_event_free(side->dev, to);
    return ok;
}

static void run_bench(check_side *side, check_result *result) {
    double us[BENCH_RUNS], sum = 0;
    int n = 0;
    for (int i = 0; i < BENCH_WARM; i++)
        if (!timed_launch(side, &us[0], result)) return;
    for (; n < BENCH_RUNS && sum < BENCH_US; n++) {
        if (!timed_launch(side, &us[n], result)) return;
        sum += us[n];
    }
    qsort(us, (size_t)n, sizeof us[0], by_value);
    result->us = us[n / 2];
    result->bytes = side->data->c->op->bytes(side->data);
}

/* ---- Forms ----------------------------------------------------------------------------------- */

/* Only an optional op may refuse, any op a CPU form that it does not owe, weights in strips where rows
 * are read faster, and on CUDA rows whose channels are not adjacent; else a skip is a failure. */
static void judge_skip(const check_case *c, tms_device *dev, tms_form form, check_result *result) {
    const bool owed = !tms_form_is_cpu(form) ||
                      (dev->info.kind == TAMIS_DEVICE_CPU && c->op->cpu_form && c->op->cpu_form(c));
    const bool strips =
        c->v[KEY_STRIPS] && tms_device_weight_layout(dev, TAMIS_WEIGHT_Q8_0) == TAMIS_WEIGHT_ROWS;
    const bool turned = c->v[KEY_LAYOUT] >= LAYOUT_TURNED && !strcmp(dev->info.backend, "cuda");
    if (result->verdict == CHECK_SKIPPED && owed && !strips && !turned && !c->op->refusal)
        result->verdict = CHECK_FAILED;
}

static void run_form(const check_options *options, tms_device *dev, tms_device *reference,
                     const check_data *data, tms_form form) {
    check_result result = {.verdict = CHECK_PASSED};
    check_side side;
    dev->form = form;
    check_report_running(data->c, form);
    const char *refused = NULL;
    if (!check_side_open(&side, dev, data))
        fail(&result, "", side.why);
    else if (data->c->op->refusal && (refused = data->c->op->refusal(&side)) != NULL) {
        fail(&result, "refused", refused);
        result.verdict = CHECK_SKIPPED;
    } else if (options->mode == MODE_CORRECT)
        run_correct(&side, reference, &result);
    else if (options->mode == MODE_BITWISE)
        run_bitwise(&side, reference, &result);
    else
        run_bench(&side, &result);
    judge_skip(data->c, dev, form, &result);
    check_side_close(&side);
    dev->form = TMS_FORM_AUTO;
    check_report_result(data->c, form, &result);
}

/* Without a form asked for: all that the op has and the device may take by itself; that of GPUs, which
 * there may be none of, in the place of BASE where CPUs have their own: there AUTO is BASE where theirs
 * does not take a case. Where an op has nothing to choose from, AUTO would be BASE again. */
static bool is_asked(const check_options *options, const tms_device *dev, const check_op *op,
                     tms_form form) {
    if (check_is_reference(dev) && form != TMS_FORM_AUTO) return false; /* it has one form */
    if (options->form >= 0) return options->form == (int)form;
    if (form == TMS_FORM_AUTO && !dev->chose && !op->refusal) return check_is_reference(dev);
    if (form == TMS_FORM_CPU_OTHER && !op->cpu_shapes) return false;
    if (form == TMS_FORM_GPU && !op->gpu_form) return false;
    if (form == TMS_FORM_BASE && op->gpu_form && !dev->base_only) return false;
    return !tms_form_is_cpu(form) || !dev->base_only;
}

void check_run_case(const check_options *options, tms_device *dev, tms_device *reference,
                    const check_case *c) {
    static const tms_form forms[] = {TMS_FORM_BASE, TMS_FORM_CPU, TMS_FORM_CPU_OTHER, TMS_FORM_GPU,
                                     TMS_FORM_AUTO};
    check_data data;
    check_data_make(&data, c, options->seed);
    if (options->mode == MODE_CORRECT) {
        c->op->oracle(&data);
        check_quantised_settle(&data, true);
    }
    dev->chose = false;
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if (is_asked(options, dev, c->op, forms[i]))
            run_form(options, dev, reference, &data, forms[i]);
    }
    check_data_free(&data);
}
