/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs: what calls on a context enqueue, recorded once and launched many times as one piece. */
#ifndef TAMIS_GRAPH_H
#define TAMIS_GRAPH_H

#include <tamis/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/* On CUDA a CUDA graph; other backends have none yet (E_UNSUPPORTED). Thread-safety: as its
 * context. A graph holds device addresses: it must not be launched after a buffer, cache or plan
 * that it reaches was destroyed. Where its context was, it answers E_STATE. */
typedef struct tamis_graph tamis_graph;

/* Begins to record: what the context's calls enqueue is recorded and does not run. Only calls that
 * enqueue may follow until tamis_graph_end: those that wait, take memory or build kernels fail, and
 * so does the recording. Memory that is destroyed meanwhile is freed after the end;
 * tamis_context_destroy discards the recording. To record a decode step, call this between
 * tamis_plan_step_begin and step_end, under a plan with
 * TAMIS_PLAN_FIXED_LAUNCHES. Errors: E_UNSUPPORTED (the
 * backend has no graphs; the stream is the caller's legacy default stream), E_STATE (recording
 * already), E_DEVICE. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_graph_begin(tamis_context *context,
                                                          tamis_error *error);

/* Ends the recording and makes a graph that can be launched. After a failure the recording has
 * ended too, and *out is NULL. Errors: E_STATE (not recording; an earlier call broke the
 * recording), E_DEVICE with the driver's reason, E_NO_MEMORY. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_graph_end(tamis_context *context, tamis_graph **out,
                                                        tamis_error *error);

/* Enqueues all that was recorded. Errors: E_DEVICE. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_graph_launch(tamis_graph *graph, tamis_error *error);

/* Sets *graph to NULL; accepts NULL and *graph == NULL. A launch under way is finished by the
 * driver. */
TAMIS_API void tamis_graph_destroy(tamis_graph **graph);

#ifdef __cplusplus
}
#endif
#endif
