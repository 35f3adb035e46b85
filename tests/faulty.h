/* SPDX-License-Identifier: Apache-2.0 */
/* A device that fails on purpose: a table of functions in the place of the device's own, of whose
 * calls one fails. */
#ifndef TEST_FAULTY_H
#define TEST_FAULTY_H

#include "host/backend.h"

/* What failed calls answer, with this text. */
#define FAULTY_STATUS TAMIS_E_DEVICE
#define FAULTY_TEXT   "refused by the test"

/* Every function of the table that answers a status, as X(name, parameters, arguments). */
#define FAULTY_OP(X, op) X(op, (tms_device * dev, const tms_##op *p), (dev, p))
#define FAULTY_CALLS(X)                                                                            \
    X(alloc, (tms_device * dev, uint64_t bytes, tms_mem * *out), (dev, bytes, out))                \
    X(write, (tms_device * dev, tms_ref to, const void *from, uint64_t bytes),                     \
      (dev, to, from, bytes))                                                                      \
    X(read, (tms_device * dev, tms_ref from, void *to, uint64_t bytes), (dev, from, to, bytes))    \
    X(copy, (tms_device * dev, tms_ref to, tms_ref from, uint64_t bytes), (dev, to, from, bytes))  \
    X(fill, (tms_device * dev, tms_ref to, uint32_t word, uint64_t bytes), (dev, to, word, bytes)) \
    X(host_alloc, (tms_device * dev, uint64_t bytes, void **out), (dev, bytes, out))               \
    X(upload,                                                                                      \
      (tms_device * dev, tms_ref to, const void *from, uint64_t bytes, const tms_event *after,     \
       tms_event **done),                                                                          \
      (dev, to, from, bytes, after, done))                                                         \
    X(event_await, (tms_device * dev, const tms_event *event), (dev, event))                       \
    X(event_record, (tms_device * dev, bool timed, tms_event **out), (dev, timed, out))            \
    X(event_wait, (tms_device * dev, tms_event * event), (dev, event))                             \
    X(event_elapsed, (tms_device * dev, tms_event * from, tms_event * to, double *us),             \
      (dev, from, to, us))                                                                         \
    X(capture_begin, (tms_device * dev), (dev))                                                    \
    X(capture_end, (tms_device * dev, tms_graph * *out), (dev, out))                               \
    X(graph_launch, (tms_device * dev, tms_graph * graph), (dev, graph))                           \
    X(flush, (tms_device * dev), (dev))                                                            \
    X(wait, (tms_device * dev), (dev))                                                             \
    X(read_bandwidth, (tms_device * dev, tms_ref from, uint64_t bytes, double *gb_per_s),          \
      (dev, from, bytes, gb_per_s))                                                                \
    X(read_pages, (tms_device * dev, const tms_page_read *p), (dev, p))                            \
    TMS_OPS(FAULTY_OP, X)

/* The same as numbers. */
typedef enum faulty_call {
#define FAULTY_NUMBER(name, parameters, arguments) FAULTY_##name,
    FAULTY_CALLS(FAULTY_NUMBER)
#undef FAULTY_NUMBER
        FAULTY_COUNT
} faulty_call;
extern const char *const faulty_names[FAULTY_COUNT];

/* Before the failing call does anything; or when it has done all it does, unless it makes something
 * or its contract says that then nothing has happened. */
typedef enum faulty_when { FAULTY_BEFORE, FAULTY_AFTER } faulty_when;

/* The device of a context, for tests that see the inside of something else than of lib/core. */
tms_device *faulty_device(tamis_context *context);
/* From now on calls of the device are counted, and the one after `sound_calls` fails; none if that
 * is below 0. One device at a time. */
void faulty_begin(tms_device *dev, int sound_calls, faulty_when when);
/* The same, but only calls of one function are counted, and fail. */
void faulty_begin_one(tms_device *dev, faulty_call call, int sound_calls);
/* The device is as it was before faulty_begin; its calls go on being counted from where they were
 * after faulty_resume. */
void faulty_pause(tms_device *dev);
void faulty_resume(tms_device *dev);

/* Since the last begin: calls counted, and those of one function that did their work. The one that
 * has failed; FAULTY_COUNT: none has. */
int faulty_calls(void);
int faulty_worked(faulty_call call);
faulty_call faulty_failed(void);

#endif
