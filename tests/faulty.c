/* SPDX-License-Identifier: Apache-2.0 */
/* The table of a device that fails on purpose. */
#include "tests/faulty.h"
#include "lib/core/core.h"

#include <string.h>

/* What the table has beside FAULTY_CALLS: name, list, open, open_on, close, free, host_free, wrap,
 * wrap_host, native, data, event_free, event_wrap, event_native, graph_free, orders_pages,
 * weight_layout, and what ops have beside themselves. */
#define ONE(with, op) +1
#define OTHERS        (17 TMS_SCRATCH_OPS(ONE, ) TMS_FUSED_OPS(ONE, ))
_Static_assert(sizeof(tms_backend) == (FAULTY_COUNT + OTHERS) * sizeof(void *),
               "a function of the table is missing in FAULTY_CALLS");

const char *const faulty_names[FAULTY_COUNT] = {
#define NAME(name, parameters, arguments) #name,
    FAULTY_CALLS(NAME)
#undef NAME
};

static const tms_backend *sound;
static tms_backend faulty;
static faulty_when failing_when;
static int fails_at, calls, worked[FAULTY_COUNT];
static faulty_call failed, only; /* only: FAULTY_COUNT: every function */

static tamis_status refuse(tms_device *dev, faulty_call call) {
    failed = call;
    return tms_device_fail(dev, FAULTY_STATUS, FAULTY_TEXT);
}

/* What a call makes belongs to nobody if it then fails; and a compact that fails has moved nothing,
 * by its contract. */
static bool fails_before(faulty_call call) {
    return failing_when == FAULTY_BEFORE || call == FAULTY_alloc || call == FAULTY_host_alloc ||
           call == FAULTY_event_record || call == FAULTY_upload || call == FAULTY_capture_end ||
           call == FAULTY_compact;
}

#define DEFINE(name, parameters, arguments)                                                        \
    static tamis_status faulty_##name parameters {                                                 \
        const bool counts = only == FAULTY_COUNT || only == FAULTY_##name;                         \
        const bool fails = counts && calls++ == fails_at;                                          \
        if (fails && fails_before(FAULTY_##name)) return refuse(dev, FAULTY_##name);               \
        const tamis_status status = sound->name arguments;                                         \
        worked[FAULTY_##name] += status == TAMIS_OK;                                               \
        return fails && status == TAMIS_OK ? refuse(dev, FAULTY_##name) : status;                  \
    }
FAULTY_CALLS(DEFINE)
#undef DEFINE

tms_device *faulty_device(tamis_context *context) {
    return context->dev;
}

void faulty_begin(tms_device *dev, int sound_calls, faulty_when when) {
    sound = dev->backend;
    faulty = *sound;
#define ENTER(name, parameters, arguments)                                                         \
    if (sound->name) faulty.name = faulty_##name;
    FAULTY_CALLS(ENTER)
#undef ENTER
    failing_when = when;
    fails_at = sound_calls;
    calls = 0;
    memset(worked, 0, sizeof worked);
    failed = only = FAULTY_COUNT;
    dev->backend = &faulty;
}

void faulty_begin_one(tms_device *dev, faulty_call call, int sound_calls) {
    faulty_begin(dev, sound_calls, FAULTY_BEFORE);
    only = call;
}

void faulty_pause(tms_device *dev) {
    dev->backend = sound;
}

void faulty_resume(tms_device *dev) {
    dev->backend = &faulty;
}

int faulty_calls(void) {
    return calls;
}

int faulty_worked(faulty_call call) {
    return worked[call];
}

faulty_call faulty_failed(void) {
    return failed;
}
