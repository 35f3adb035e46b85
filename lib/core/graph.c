/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs: recordings of a context's calls, made by the backend. */
#include "lib/core/core.h"
#include <tamis/graph.h>

#include <stdlib.h>

struct tamis_graph {
    tms_life life;
    tamis_context *context;
    tms_graph *recorded;
};

static tamis_status check_context(const tamis_context *context, tamis_error *error) {
    TMS_REQUIRE(context, TAMIS_E_ARGUMENT, "context: NULL");
    const tamis_device_info *info = tms_device_info(context->dev);
    TMS_REQUIRE(tms_device_records(context->dev), TAMIS_E_UNSUPPORTED,
                "device %s: the %s backend records no graphs", info->id, info->backend);
    return TAMIS_OK;
}

tamis_status tamis_graph_begin(tamis_context *context, tamis_error *error) {
    TMS_ENTER(context);
    TMS_TRY(check_context(context, error));
    TMS_REQUIRE(!context->recording, TAMIS_E_STATE, "the context is recording a graph already");
    TMS_TRY(tms_device_capture_begin(context->dev, error));
    context->recording = true;
    return TAMIS_OK;
}

/* Ends the recording. If the device has no error, the graph goes to *recorded. */
static tamis_status end(tamis_context *context, tms_graph **recorded, tamis_error *error) {
    tms_device *dev = context->dev;
    *recorded = NULL;
    context->recording = false;
    const tamis_status status = tms_device_capture_end(dev, recorded, error);
    if (status != TAMIS_OK) {
        tms_device_graph_free(dev, *recorded);
        *recorded = NULL;
    }
    return status;
}

void tms_graph_abandon(tamis_context *context) {
    tms_graph *recorded;
    if (context->recording && end(context, &recorded, NULL) == TAMIS_OK)
        tms_device_graph_free(context->dev, recorded);
}

static void end_graph(tms_life *life) {
    tamis_graph *graph = (tamis_graph *)life;
    tms_device_graph_free(graph->context->dev, graph->recorded);
    free(graph);
}

tamis_status tamis_graph_end(tamis_context *context, tamis_graph **out, tamis_error *error) {
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out: NULL");
    *out = NULL;
    TMS_ENTER(context);
    TMS_TRY(check_context(context, error));
    TMS_REQUIRE(context->recording, TAMIS_E_STATE, "the context is not recording a graph");
    tms_graph *recorded;
    TMS_TRY(end(context, &recorded, error));
    tamis_graph *graph = calloc(1, sizeof *graph);
    if (!graph) {
        tms_device_graph_free(context->dev, recorded);
        return tms_error_set(error, TAMIS_E_NO_MEMORY, "no memory for a graph's handle");
    }
    tms_life_begin(&graph->life, "graph", &context->life, NULL, end_graph);
    graph->context = context;
    graph->recorded = recorded;
    *out = graph;
    return TAMIS_OK;
}

tamis_status tamis_graph_launch(tamis_graph *graph, tamis_error *error) {
    TMS_ENTER(graph);
    TMS_REQUIRE(graph, TAMIS_E_ARGUMENT, "graph: NULL");
    return tms_device_graph_launch(graph->context->dev, graph->recorded, error);
}

void tamis_graph_destroy(tamis_graph **graph) {
    if (!graph || !*graph) return;
    tms_life_close(&(*graph)->life, NULL);
    *graph = NULL;
}
