/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, events and graphs. A stream keeps its commands until somebody has to wait for them, so
 * that a host program which counts on more than the driver promises is found out. */
#include "on_cpu.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LONG_QUEUE 4096u

struct CUgraph_st {
    tms_cu_graph next;
    cpu_command *head, *tail;
};
struct CUgraphExec_st {
    tms_cu_graph_exec next;
    cpu_command *head;
};
struct CUstream_st {
    tms_cu_stream next;
    bool blocking; /* in order with the legacy stream */
    cpu_command *head, *tail;
    size_t queued;
    tms_cu_graph capture; /* NULL: none is under way */
    int mode;
    bool invalidated;
    pthread_t thread; /* that began the capture */
};
struct CUevent_st {
    tms_cu_event next;
    tms_cu_stream stream; /* of the last record; NULL: never recorded */
    uint64_t wanted, done;
    uint32_t waits; /* commands in queues that wait for it */
    bool timed, captured, destroyed;
    struct timespec time;
};

static struct CUstream_st legacy = {.blocking = true};
static tms_cu_stream streams; /* all others */
static tms_cu_event events;
static tms_cu_graph graphs; /* those under construction are not among them */
static tms_cu_graph_exec execs;

/* NULL for what is no stream. */
static tms_cu_stream stream_of(tms_cu_stream stream) {
    tms_cu_stream *link;
    CPU_WALK(link, streams, stream)
    return stream ? *link : &legacy;
}

tms_cu_result cpu_stream_check(tms_cu_stream stream) {
    if (stream_of(stream)) return TMS_CU_SUCCESS;
    return cpu_wrong(TMS_CU_INVALID_HANDLE, "%p is no stream", (void *)stream);
}

static tms_cu_result check_event(tms_cu_event event) {
    tms_cu_event *link;
    CPU_WALK(link, events, event)
    if (event && *link && !event->destroyed) return TMS_CU_SUCCESS;
    return cpu_wrong(TMS_CU_INVALID_HANDLE, "%p is no event", (void *)event);
}

static tms_cu_result check_graph(tms_cu_graph graph) {
    tms_cu_graph *link;
    CPU_WALK(link, graphs, graph)
    if (graph && *link) return TMS_CU_SUCCESS;
    return cpu_wrong(TMS_CU_INVALID_VALUE, "%p is no graph", (void *)graph);
}

static tms_cu_result check_exec(tms_cu_graph_exec exec) {
    tms_cu_graph_exec *link;
    CPU_WALK(link, execs, exec)
    if (exec && *link) return TMS_CU_SUCCESS;
    return cpu_wrong(TMS_CU_INVALID_VALUE, "%p is no graph that can be launched", (void *)exec);
}

/* ---- Commands -------------------------------------------------------------------------------- */

cpu_command *cpu_command_new(cpu_command_kind kind, size_t payload) {
    const size_t bytes = sizeof(cpu_command) + payload;
    cpu_command *c = aligned_alloc(16, (bytes + 15) / 16 * 16);
    if (!c) return NULL;
    memset(c, 0, sizeof *c);
    c->bytes = bytes;
    c->kind = kind;
    return c;
}

static cpu_command *duplicate(const cpu_command *from) {
    cpu_command *c = cpu_command_new(from->kind, from->bytes - sizeof *from);
    if (!c) return NULL;
    memcpy(c, from, from->bytes);
    c->next = NULL;
    return c;
}

static void append(cpu_command **head, cpu_command **tail, cpu_command *c) {
    if (*head)
        (*tail)->next = c;
    else
        *head = c;
    *tail = c;
}

static void free_commands(cpu_command *c) {
    while (c) {
        cpu_command *next = c->next;
        free(c);
        c = next;
    }
}

static tms_cu_result run_launch(const cpu_command *c) {
    cpu_launch launch = {.kernel = c->launch.kernel,
                         .grid = c->launch.grid,
                         .block = c->launch.block,
                         .shared = c->launch.shared,
                         .args = c->payload,
                         .watched = cpu_races_wanted(),
                         .backwards = cpu_backwards_wanted()};
    return cpu_launch_run(&launch) ? TMS_CU_SUCCESS : launch.result;
}

static tms_cu_result run_copy(const cpu_command *c) {
    const void *from = c->copy.from ? (const void *)c->copy.from : c->payload;
    const size_t n = c->copy.bytes;
    if (n == 0) return TMS_CU_SUCCESS;
    if (c->kind != CPU_COPY_OUT && !cpu_allocation_covers(c->copy.to, n))
        return cpu_wrong(TMS_CU_ILLEGAL_ADDRESS,
                         "copy of %zu bytes to %p: not inside an allocation", n,
                         (void *)c->copy.to);
    if (c->kind != CPU_COPY_IN && !cpu_allocation_covers(c->copy.from, n))
        return cpu_wrong(TMS_CU_ILLEGAL_ADDRESS,
                         "copy of %zu bytes from %p: not inside an allocation", n, from);
    memmove((void *)c->copy.to, from, n);
    return TMS_CU_SUCCESS;
}

static tms_cu_result run_set(const cpu_command *c) {
    if (!c->set.count) return TMS_CU_SUCCESS;
    if (!cpu_allocation_covers(c->set.to, 4 * c->set.count))
        return cpu_wrong(TMS_CU_ILLEGAL_ADDRESS,
                         "fill of %zu words at %p: not inside an allocation", c->set.count,
                         (void *)c->set.to);
    for (size_t i = 0; i < c->set.count; i++)
        ((uint32_t *)c->set.to)[i] = c->set.value;
    return TMS_CU_SUCCESS;
}

static tms_cu_result run_gemm(const cpu_command *c) {
    const cpu_gemm *g = &c->gemm;
    const int rows_a = g->op_a ? g->k : g->m, columns_a = g->op_a ? g->m : g->k;
    const int rows_b = g->op_b ? g->n : g->k, columns_b = g->op_b ? g->k : g->n;
    if (!cpu_allocation_covers((uintptr_t)g->a, 4 * ((size_t)g->lda * (columns_a - 1) + rows_a)) ||
        !cpu_allocation_covers((uintptr_t)g->b, 4 * ((size_t)g->ldb * (columns_b - 1) + rows_b)) ||
        !cpu_allocation_covers((uintptr_t)g->c, 4 * ((size_t)g->ldc * (g->n - 1) + g->m)))
        return cpu_wrong(TMS_CU_ILLEGAL_ADDRESS,
                         "matrix product %d x %d x %d: A, B or C is not inside an allocation", g->m,
                         g->n, g->k);
    cpu_gemm_run(g);
    return TMS_CU_SUCCESS;
}

static void event_drop(tms_cu_event event) {
    tms_cu_event *link;
    CPU_WALK(link, events, event)
    *link = event->next;
    free(event);
}

/* Frees an event that has been destroyed, once nobody comes to it any more. */
static void event_forget(tms_cu_event event) {
    if (event->destroyed && event->done == event->wanted && event->waits == 0) event_drop(event);
}

static void run_event(const cpu_command *c) {
    tms_cu_event event = c->event.event;
    event->done = c->event.serial;
    clock_gettime(CLOCK_MONOTONIC, &event->time);
    event_forget(event);
}

static tms_cu_result drain_until(tms_cu_stream s, const struct CUevent_st *event, uint64_t serial);

/* The other stream goes on up to the record. */
static tms_cu_result run_wait(const cpu_command *c) {
    tms_cu_event event = c->event.event;
    tms_cu_result result = cpu_dead();
    if (!result && event->done < c->event.serial)
        result = drain_until(c->event.stream, event, c->event.serial);
    event->waits--;
    event_forget(event);
    return result;
}

static tms_cu_result execute(const cpu_command *c) {
    switch (c->kind) {
    case CPU_LAUNCH:
        return run_launch(c);
    case CPU_COPY_IN:
    case CPU_COPY_OUT:
    case CPU_COPY:
        return run_copy(c);
    case CPU_SET:
        return run_set(c);
    case CPU_FREE:
        return cpu_allocation_free(c->free);
    case CPU_GEMM:
        return run_gemm(c);
    case CPU_EVENT:
        run_event(c);
        return TMS_CU_SUCCESS;
    case CPU_WAIT:
        return run_wait(c);
    }
    return TMS_CU_INVALID_VALUE;
}

/* ---- Queues ---------------------------------------------------------------------------------- */

/* Runs what stands in the queue, with an event until that record of it has happened. */
static tms_cu_result drain_until(tms_cu_stream s, const struct CUevent_st *event, uint64_t serial) {
    while (s->head && !cpu_dead() && !(event && event->done >= serial)) {
        cpu_command *c = s->head;
        s->head = c->next;
        s->queued--;
        const tms_cu_result result = execute(c);
        if (result) cpu_die(result);
        free(c);
    }
    return cpu_dead();
}

tms_cu_result cpu_drain(tms_cu_stream stream) {
    tms_cu_stream s = stream_of(stream);
    if (s == &legacy)
        for (tms_cu_stream other = streams; other; other = other->next)
            if (other->blocking) drain_until(other, NULL, 0);
    return drain_until(s, NULL, 0);
}

tms_cu_result cpu_drain_all(void) {
    for (tms_cu_stream s = streams; s; s = s->next)
        drain_until(s, NULL, 0);
    return drain_until(&legacy, NULL, 0);
}

bool cpu_capturing(tms_cu_stream stream) {
    const tms_cu_stream s = stream_of(stream);
    return s && s->capture;
}

tms_cu_result cpu_unsafe(void) {
    tms_cu_result result = TMS_CU_SUCCESS;
    for (tms_cu_stream s = streams; s; s = s->next) {
        if (!s->capture || s->mode == TMS_CU_CAPTURE_RELAXED ||
            (s->mode == TMS_CU_CAPTURE_THREAD && !pthread_equal(s->thread, pthread_self())))
            continue;
        s->invalidated = true;
        result = TMS_CU_CAPTURE_UNSUPPORTED;
    }
    return result;
}

/* The legacy stream and the blocking ones are in order with each other. */
static tms_cu_result order(tms_cu_stream s) {
    if (!s->blocking) return TMS_CU_SUCCESS;
    if (s != &legacy) return legacy.head ? drain_until(&legacy, NULL, 0) : TMS_CU_SUCCESS;
    for (tms_cu_stream other = streams; other; other = other->next) {
        if (!other->blocking) continue;
        if (other->capture) {
            other->invalidated = true;
            return CPU_CU_CAPTURE_IMPLICIT;
        }
        drain_until(other, NULL, 0);
    }
    return cpu_dead();
}

tms_cu_result cpu_enqueue(tms_cu_stream stream, cpu_command *command) {
    tms_cu_stream s = stream_of(stream);
    if (!command) return TMS_CU_OUT_OF_MEMORY;
    tms_cu_result result = cpu_stream_check(stream);
    if (!result && s->capture && !s->invalidated) {
        append(&s->capture->head, &s->capture->tail, command);
        return TMS_CU_SUCCESS;
    }
    if (!result) result = s->capture ? CPU_CU_CAPTURE_INVALIDATED : order(s);
    if (result) {
        free(command);
        return result;
    }
    append(&s->head, &s->tail, command);
    return ++s->queued > LONG_QUEUE ? drain_until(s, NULL, 0) : TMS_CU_SUCCESS;
}

static void stream_free(tms_cu_stream s) {
    free_commands(s->head);
    if (s->capture) free_commands(s->capture->head);
    free(s->capture);
    free(s);
}

size_t cpu_streams_alive(void) {
    size_t n = 0;
    for (tms_cu_stream s = streams; s; s = s->next)
        n++;
    return n;
}

size_t cpu_events_alive(void) {
    size_t n = 0;
    for (tms_cu_event e = events; e; e = e->next)
        n++;
    return n;
}

size_t cpu_graphs_alive(void) {
    size_t n = 0;
    for (tms_cu_graph g = graphs; g; g = g->next)
        n++;
    for (tms_cu_graph_exec x = execs; x; x = x->next)
        n++;
    return n;
}

static void graph_drop(tms_cu_graph graph) {
    tms_cu_graph *link;
    CPU_WALK(link, graphs, graph)
    *link = graph->next;
    free_commands(graph->head);
    free(graph);
}

static void exec_drop(tms_cu_graph_exec exec) {
    tms_cu_graph_exec *link;
    CPU_WALK(link, execs, exec)
    *link = exec->next;
    free_commands(exec->head);
    free(exec);
}

void cpu_streams_reset(void) {
    while (streams) {
        tms_cu_stream next = streams->next;
        stream_free(streams);
        streams = next;
    }
    free_commands(legacy.head);
    legacy.head = NULL;
    legacy.queued = 0;
    while (events)
        event_drop(events);
    while (graphs)
        graph_drop(graphs);
    while (execs)
        exec_drop(execs);
}

/* ---- Streams --------------------------------------------------------------------------------- */

tms_cu_result cuStreamCreate(tms_cu_stream *stream, unsigned flags) {
    tms_cu_result result = cpu_enter();
    if (!result && (!stream || flags > TMS_CU_STREAM_NON_BLOCKING)) result = TMS_CU_INVALID_VALUE;
    if (!result) {
        tms_cu_stream s = calloc(1, sizeof *s);
        if (!s) return cpu_leave(TMS_CU_OUT_OF_MEMORY);
        s->blocking = flags != TMS_CU_STREAM_NON_BLOCKING;
        s->next = streams;
        streams = s;
        *stream = s;
    }
    return cpu_leave(result);
}

tms_cu_result cuStreamDestroy_v2(tms_cu_stream stream) {
    tms_cu_result result = cpu_enter();
    if (!result) result = stream ? cpu_stream_check(stream) : TMS_CU_INVALID_HANDLE;
    if (!result) {
        tms_cu_stream *link;
        CPU_WALK(link, streams, stream)
        result = drain_until(stream, NULL, 0);
        *link = stream->next;
        for (tms_cu_event e = events; e; e = e->next)
            if (e->stream == stream) e->stream = &legacy;
        stream_free(stream);
    }
    return cpu_leave(result);
}

tms_cu_result cuStreamSynchronize(tms_cu_stream stream) {
    tms_cu_result result = cpu_enter();
    if (!result) result = cpu_stream_check(stream);
    if (!result) result = cpu_unsafe();
    if (!result && cpu_capturing(stream)) {
        stream_of(stream)->invalidated = true;
        result = TMS_CU_CAPTURE_UNSUPPORTED;
    }
    if (!result) result = cpu_drain(stream);
    return cpu_leave(result);
}

/* ---- Graphs ---------------------------------------------------------------------------------- */

tms_cu_result cuStreamBeginCapture_v2(tms_cu_stream stream, int mode) {
    tms_cu_result result = cpu_enter();
    if (!result && !stream)
        result = TMS_CU_CAPTURE_UNSUPPORTED; /* the legacy stream has no capture */
    if (!result) result = cpu_stream_check(stream);
    if (!result && (mode < 0 || mode > TMS_CU_CAPTURE_RELAXED)) result = TMS_CU_INVALID_VALUE;
    if (!result && stream->capture) result = CPU_CU_ILLEGAL_STATE;
    if (!result) {
        stream->capture = calloc(1, sizeof *stream->capture);
        stream->mode = mode;
        stream->invalidated = false;
        stream->thread = pthread_self();
        if (!stream->capture) result = TMS_CU_OUT_OF_MEMORY;
    }
    return cpu_leave(result);
}

tms_cu_result cuStreamEndCapture(tms_cu_stream stream, tms_cu_graph *graph) {
    tms_cu_result result = cpu_enter();
    if (!result) result = cpu_stream_check(stream);
    if (!result && (!graph || !cpu_capturing(stream))) result = TMS_CU_INVALID_VALUE;
    if (result) return cpu_leave(result);
    *graph = stream->capture;
    (*graph)->next = graphs;
    graphs = *graph;
    stream->capture = NULL;
    if (stream->invalidated) {
        graph_drop(*graph);
        *graph = NULL;
        result = CPU_CU_CAPTURE_INVALIDATED;
    }
    return cpu_leave(result);
}

tms_cu_result cuStreamIsCapturing(tms_cu_stream stream, int *status) {
    tms_cu_result result = cpu_enter();
    if (!result && !status) result = TMS_CU_INVALID_VALUE;
    if (!result) result = cpu_stream_check(stream);
    if (!result) *status = !cpu_capturing(stream) ? 0 : stream->invalidated ? 2 : 1;
    return cpu_leave(result);
}

tms_cu_result cuGraphInstantiateWithFlags(tms_cu_graph_exec *exec, tms_cu_graph graph,
                                          unsigned long long flags) {
    tms_cu_result result = cpu_enter();
    if (!result && (!exec || flags)) result = TMS_CU_INVALID_VALUE;
    if (!result) result = check_graph(graph);
    if (result) return cpu_leave(result);
    cpu_command *tail = NULL;
    *exec = calloc(1, sizeof **exec);
    if (!*exec) return cpu_leave(TMS_CU_OUT_OF_MEMORY);
    (*exec)->next = execs;
    execs = *exec;
    for (const cpu_command *c = graph->head; c; c = c->next) {
        cpu_command *copy = duplicate(c);
        if (!copy) return cpu_leave(TMS_CU_OUT_OF_MEMORY);
        append(&(*exec)->head, &tail, copy);
    }
    return cpu_leave(result);
}

tms_cu_result cuGraphLaunch(tms_cu_graph_exec exec, tms_cu_stream stream) {
    tms_cu_result result = cpu_enter();
    if (!result) result = check_exec(exec);
    for (const cpu_command *c = result ? NULL : exec->head; c && !result; c = c->next)
        result = cpu_enqueue(stream, duplicate(c));
    return cpu_leave(result);
}

tms_cu_result cuGraphExecDestroy(tms_cu_graph_exec exec) {
    tms_cu_result result = cpu_enter();
    if (!result) result = check_exec(exec);
    if (!result) exec_drop(exec);
    return cpu_leave(result);
}

tms_cu_result cuGraphDestroy(tms_cu_graph graph) {
    tms_cu_result result = cpu_enter();
    if (!result) result = check_graph(graph);
    if (!result) graph_drop(graph);
    return cpu_leave(result);
}

/* ---- Events ---------------------------------------------------------------------------------- */

tms_cu_result cuEventCreate(tms_cu_event *event, unsigned flags) {
    tms_cu_result result = cpu_enter();
    if (!result && !event) result = TMS_CU_INVALID_VALUE;
    if (!result) {
        *event = calloc(1, sizeof **event);
        if (!*event) return cpu_leave(TMS_CU_OUT_OF_MEMORY);
        (*event)->timed = !(flags & 2u); /* CU_EVENT_DISABLE_TIMING */
        (*event)->next = events;
        events = *event;
    }
    return cpu_leave(result);
}

tms_cu_result cuEventDestroy_v2(tms_cu_event event) {
    tms_cu_result result = cpu_enter();
    if (!result) result = check_event(event);
    if (!result) {
        event->destroyed = true;
        event_forget(event);
    }
    return cpu_leave(result);
}

/* In a capture an event marks a place in the graph, and no time. */
tms_cu_result cuEventRecord(tms_cu_event event, tms_cu_stream stream) {
    tms_cu_result result = cpu_enter();
    if (!result) result = check_event(event);
    if (!result) result = cpu_stream_check(stream);
    if (result) return cpu_leave(result);
    event->captured = cpu_capturing(stream);
    if (event->captured)
        return cpu_leave(stream->invalidated ? CPU_CU_CAPTURE_INVALIDATED : TMS_CU_SUCCESS);
    cpu_command *command = cpu_command_new(CPU_EVENT, 0);
    if (command) {
        command->event.event = event;
        command->event.serial = ++event->wanted;
        event->stream = stream_of(stream);
    }
    return cpu_leave(cpu_enqueue(stream, command));
}

/* For the last record before the call; an event that was never recorded is no reason to wait. What
 * captures of several streams have to do with each other is not here. */
tms_cu_result cuStreamWaitEvent(tms_cu_stream stream, tms_cu_event event, unsigned flags) {
    tms_cu_result result = cpu_enter();
    if (!result && flags) result = TMS_CU_INVALID_VALUE;
    if (!result) result = check_event(event);
    if (!result) result = cpu_stream_check(stream);
    if (!result && (event->captured || cpu_capturing(stream))) result = TMS_CU_CAPTURE_UNSUPPORTED;
    if (result || event->done == event->wanted) return cpu_leave(result);
    cpu_command *command = cpu_command_new(CPU_WAIT, 0);
    if (command) {
        command->event.event = event;
        command->event.serial = event->wanted;
        command->event.stream = event->stream;
        event->waits++;
    }
    result = cpu_enqueue(stream, command);
    if (command && result && !cpu_dead()) event->waits--; /* it was not taken */
    return cpu_leave(result);
}

tms_cu_result cuEventSynchronize(tms_cu_event event) {
    tms_cu_result result = cpu_enter();
    if (!result) result = check_event(event);
    if (!result && event->captured) result = CPU_CU_CAPTURED_EVENT;
    if (!result) result = cpu_unsafe();
    if (!result && event->stream) result = drain_until(event->stream, event, event->wanted);
    return cpu_leave(result);
}

tms_cu_result cuEventElapsedTime(float *ms, tms_cu_event from, tms_cu_event to) {
    tms_cu_result result = cpu_enter();
    if (!result && !ms) result = TMS_CU_INVALID_VALUE;
    if (!result) result = check_event(from);
    if (!result) result = check_event(to);
    if (!result && (!from->timed || !to->timed || !from->wanted || !to->wanted))
        result = TMS_CU_INVALID_HANDLE;
    if (!result && (from->captured || to->captured)) result = CPU_CU_CAPTURED_EVENT;
    if (!result && (from->done != from->wanted || to->done != to->wanted))
        result = TMS_CU_NOT_READY;
    if (!result)
        *ms = (float)((double)(to->time.tv_sec - from->time.tv_sec) * 1e3 +
                      (double)(to->time.tv_nsec - from->time.tv_nsec) * 1e-6);
    return cpu_leave(result);
}
