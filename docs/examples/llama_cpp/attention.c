/* SPDX-License-Identifier: Apache-2.0 */
/* A backend of ggml for llama.cpp's decode attention. See attention.h.
 *
 * K of a layer is [cell][KV head][channel] in f16, and so is V, in a buffer of the CPU backend that all
 * layers share. It is wrapped once, and described to tamis as pages of 16 cells that lie one behind
 * another: page i of the one sequence is page i of the cache. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "attention.h"

#include <ggml-backend-impl.h>
#include <ggml-cpu.h>
#include <tamis/tamis.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PAGE = 16, MOST_LAYERS = 256 };

/* Operands of FLASH_ATTN_EXT. */
enum { Q, K, V, MASK, SINKS };

static struct attention {
    bool on;
    const char *device;
    uint32_t budget;
    ggml_backend_buffer_t cache; /* of the context that was made next */
    /* Its tensors, layer by layer, in the order in which they were seen first. */
    uint32_t n_layers;
    const struct ggml_tensor *keys[MOST_LAYERS], *values[MOST_LAYERS];
    bool stale; /* rows came that tamis has not seen: all bounds are computed anew */
    /* Of tamis; NULL until the first row. */
    tamis_context *context;
    tamis_buffer *cells, *q, *out;
    tamis_cache *view;
    tamis_plan *plan;
    int32_t *pages;   /* 0, 1, 2, ... */
    uint32_t bounded; /* pages that have bounds */
    uint32_t filled;  /* that have them when the open step has ended */
    /* Of the open step: the layers that have attended. Its last one ends it. */
    bool open, attended[MOST_LAYERS];
    uint32_t n_attended;
    attention_stats stats;
} the;

static tamis_error error;

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* ---- What is taken --------------------------------------------------------------------------- */

static float param(const struct ggml_tensor *op, int index) {
    float value;
    memcpy(&value, op->op_params + index, sizeof value);
    return value;
}

/* Rows of f16 in a tensor of the cache's, one behind another. */
static bool is_cache(const struct ggml_tensor *rows) {
    return rows && rows->type == GGML_TYPE_F16 && rows->view_src &&
           rows->nb[0] == sizeof(uint16_t) && rows->view_src->buffer &&
           ggml_backend_buffer_is_host(rows->view_src->buffer);
}

/* Attention over the cache, of any number of rows. */
static bool is_attention(const struct ggml_tensor *op) {
    return op->op == GGML_OP_FLASH_ATTN_EXT && is_cache(op->src[K]) && is_cache(op->src[V]);
}

static bool takes(const struct ggml_tensor *op) {
    const struct ggml_tensor *q = op->src[Q], *k = op->src[K], *v = op->src[V];
    if (!is_attention(op) || q->type != GGML_TYPE_F32 || !op->src[MASK] || op->src[SINKS])
        return false;
    const bool one = q->ne[1] == 1 && q->ne[3] == 1 && k->ne[3] == 1;
    const bool alike = k->ne[0] == v->ne[0] && q->ne[0] == k->ne[0] && k->ne[2] == v->ne[2];
    const bool packed = q->nb[0] == sizeof(float) && q->nb[2] == q->ne[0] * sizeof(float);
    return one && alike && packed && q->ne[2] % k->ne[2] == 0 && param(op, 1) == 0 &&
           op->src[MASK]->type == GGML_TYPE_F16;
}

/* The layer whose K a row reads; -1: none that is known. */
static int layer_of(const struct ggml_tensor *op) {
    for (uint32_t i = 0; i < the.n_layers; i++)
        if (the.keys[i] == op->src[K]->view_src) return (int)i;
    return -1;
}

/* The scheduler asks for every operation of every graph that it makes, first when a context is made. So
 * all layers are known before the first row comes, and it is seen when other rows come. */
static bool look_at(const struct ggml_tensor *op) {
    if (!the.on || !is_attention(op)) return false;
    if (!the.cache) the.cache = op->src[K]->view_src->buffer;
    if (op->src[K]->view_src->buffer != the.cache || op->src[V]->view_src->buffer != the.cache)
        return false; /* another context's */
    if (layer_of(op) < 0) {
        if (the.context || the.n_layers == MOST_LAYERS) return false;
        if (the.n_layers > 0 && !(ggml_are_same_stride(op->src[K]->view_src, the.keys[0]) &&
                                  ggml_are_same_stride(op->src[V]->view_src, the.values[0]) &&
                                  ggml_are_same_shape(op->src[K]->view_src, the.keys[0])))
            return false; /* one view has layers of one shape */
        the.keys[the.n_layers] = op->src[K]->view_src;
        the.values[the.n_layers++] = op->src[V]->view_src;
    }
    the.stale |= !takes(op);
    return takes(op);
}

/* ---- The cache, as tamis sees it -------------------------------------------------------------- */

static uint64_t offset_of(const struct ggml_tensor *tensor) {
    return (uint64_t)((const char *)tensor->data -
                      (const char *)ggml_backend_buffer_get_base(tensor->buffer));
}

static tamis_status make_view(const struct ggml_tensor *op) {
    const struct ggml_tensor *q = op->src[Q], *k = op->src[K], *v = op->src[V];
    static tamis_kv layers[MOST_LAYERS];
    static tamis_kv_values values[MOST_LAYERS];
    const uint64_t row = k->nb[1] / sizeof(uint16_t), v_row = v->nb[1] / sizeof(uint16_t);
    const uint32_t cells = (uint32_t)(ggml_nbytes(k->view_src) / k->nb[1]);
    for (uint32_t i = 0; i < the.n_layers; i++) {
        values[i] = (tamis_kv_values){.data = {the.cells, offset_of(the.values[i])},
                                      .page_stride = PAGE * v_row,
                                      .head_stride = v->nb[2] / sizeof(uint16_t),
                                      .slot_stride = v_row};
        layers[i] = (tamis_kv){.data = {the.cells, offset_of(the.keys[i])},
                               .dtype = TAMIS_F16,
                               .layout = TAMIS_KV_STRIDES,
                               .page_size = PAGE,
                               .head_dim = (uint32_t)k->ne[0],
                               .n_pages = cells / PAGE,
                               .page_stride = PAGE * row,
                               .head_stride = k->nb[2] / sizeof(uint16_t),
                               .slot_stride = row,
                               .values = &values[i]};
    }
    const tamis_view_params view = {.n_layers = the.n_layers,
                                    .n_heads = (uint32_t)q->ne[2],
                                    .n_kv_heads = (uint32_t)k->ne[2],
                                    .bounds = {.kind = TAMIS_BOUNDS_MEAN_STD},
                                    .layers = layers};
    tamis_plan_params plan = {.max_rows = 1,
                              .max_context = cells / PAGE * PAGE,
                              .attention = {.scale = param(op, 0), .soft_cap = param(op, 2)}};
    if (the.budget) {
        tamis_selection_default(TAMIS_SELECT_QUEST, &plan.selection);
        plan.selection.budget = the.budget;
    }
    the.pages = malloc(cells / PAGE * sizeof *the.pages);
    for (uint32_t i = 0; the.pages && i < cells / PAGE; i++)
        the.pages[i] = (int32_t)i;
    tamis_status status = the.pages ? TAMIS_OK : TAMIS_E_NO_MEMORY;
    if (status == TAMIS_OK) status = tamis_view_create(the.context, &view, &the.view, &error);
    return status == TAMIS_OK ? tamis_plan_create(the.view, &plan, &the.plan, &error) : status;
}

static tamis_status open_tamis(const struct ggml_tensor *op) {
    const tamis_context_params params = {.device = the.device ? the.device : "opencl"};
    const uint64_t row = (uint64_t)op->src[Q]->ne[2] * (uint64_t)op->src[Q]->ne[0] * sizeof(float);
    tamis_status status = tamis_context_create(&params, &the.context, &error);
    if (status == TAMIS_OK) /* no copy: the device works in this memory */
        status =
            tamis_buffer_wrap_host(the.context, ggml_backend_buffer_get_base(the.cache),
                                   ggml_backend_buffer_get_size(the.cache), &the.cells, &error);
    if (status == TAMIS_OK) status = tamis_buffer_create(the.context, row, &the.q, &error);
    if (status == TAMIS_OK) status = tamis_buffer_create(the.context, row, &the.out, &error);
    if (status == TAMIS_OK) status = make_view(op);
    if (status != TAMIS_OK) return status;
    the.stats.own = the.keys[0]->data;
    the.stats.keys = (const char *)tamis_buffer_data(the.cells) + offset_of(the.keys[0]);
    snprintf(the.stats.device, sizeof the.stats.device, "%s",
             tamis_context_device(the.context)->name);
    return TAMIS_OK;
}

static void close_tamis(void) {
    tamis_plan_destroy(&the.plan);
    tamis_cache_destroy(&the.view);
    tamis_buffer_destroy(&the.cells);
    tamis_buffer_destroy(&the.q);
    tamis_buffer_destroy(&the.out);
    tamis_context_destroy(&the.context);
    free(the.pages);
    the.pages = NULL;
}

/* ---- A row ----------------------------------------------------------------------------------- */

/* The cells that the row sees are the first ones: 0 in its mask, and -inf behind. 0: they are others. */
static uint32_t visible(const struct ggml_tensor *mask) {
    const uint16_t *row = mask->data;
    uint32_t n = 0, rest;
    while (n < (uint32_t)mask->ne[0] && (row[n] & 0x7fffu) == 0)
        n++;
    for (rest = n; rest < (uint32_t)mask->ne[0]; rest++)
        if (row[rest] != 0xfc00u) return 0;
    return n;
}

/* Opens a step of one token, of which all layers are to come. Pages that were filled by other rows get
 * bounds. */
static tamis_status begin(const struct ggml_tensor *op) {
    const uint32_t n = visible(op->src[MASK]), before = n ? (n - 1) / PAGE : 0;
    if (n == 0) {
        snprintf(error.text, sizeof error.text,
                 "the mask of a row is not that of one sequence in order");
        return TAMIS_E_UNSUPPORTED;
    }
    if (the.stale || the.bounded > before) the.bounded = the.stale ? 0 : before;
    the.stale = false;
    if (the.budget && before > the.bounded) {
        const tamis_status status =
            tamis_view_bound_pages(the.view, the.pages + the.bounded, before - the.bounded, &error);
        if (status != TAMIS_OK) return status;
    }
    the.filled = n / PAGE; /* the row's own page gets them in the step */
    const tamis_view_step step = {
        .count = 1, .lengths = &n, .table = the.pages, .table_stride = n / PAGE + 1};
    memset(the.attended, 0, sizeof the.attended);
    the.n_attended = 0;
    const tamis_status status = tamis_plan_view_begin(the.plan, &step, &error);
    the.open = status == TAMIS_OK;
    return status;
}

static tamis_status end(void) {
    const tamis_status status = tamis_plan_step_end(the.plan, &error);
    the.open = status != TAMIS_OK;
    if (!the.open) the.bounded = the.filled;
    return status;
}

static tamis_status cancel(void) {
    the.open = false;
    return tamis_plan_step_cancel(the.plan, &error);
}

static tamis_status attend(const struct ggml_tensor *op) {
    const int layer = layer_of(op);
    tamis_status status = the.context ? TAMIS_OK : open_tamis(op);
    const tamis_rows q = {.buffer = the.q}, out = {.buffer = the.out};
    if (status == TAMIS_OK && the.open && the.attended[layer])
        status = cancel(); /* it was given up */
    if (status == TAMIS_OK && !the.open) status = begin(op);
    if (status == TAMIS_OK)
        status = tamis_buffer_write(the.q, 0, op->src[Q]->data, tamis_buffer_bytes(the.q), &error);
    if (status == TAMIS_OK) status = tamis_plan_attend(the.plan, (uint32_t)layer, &q, &out, &error);
    if (status == TAMIS_OK)
        status = tamis_buffer_read(the.out, 0, op->data, tamis_buffer_bytes(the.out), &error);
    if (status != TAMIS_OK) return status;
    the.attended[layer] = true;
    return ++the.n_attended == the.n_layers ? end() : TAMIS_OK;
}

static enum ggml_status compute(ggml_backend_t backend, struct ggml_cgraph *graph) {
    (void)backend;
    const double start = now_us();
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        struct ggml_tensor *op = ggml_graph_node(graph, i);
        if (op->op != GGML_OP_FLASH_ATTN_EXT) continue; /* views alone */
        const tamis_status status = attend(op);
        if (status != TAMIS_OK) {
            fprintf(stderr, "attention by tamis: %s (%s)\n", error.text, tamis_status_name(status));
            return GGML_STATUS_FAILED;
        }
        the.stats.rows++;
    }
    the.stats.us += now_us() - start;
    return GGML_STATUS_SUCCESS;
}

/* ---- The backend, as ggml wants it ------------------------------------------------------------ */

static const char *name(void) {
    return "tamis";
}
static const char *backend_name(ggml_backend_t backend) {
    (void)backend;
    return name();
}
static void free_backend(ggml_backend_t backend) {
    free(backend);
}

static const char *device_name(ggml_backend_dev_t device) {
    (void)device;
    return name();
}
static const char *device_description(ggml_backend_dev_t device) {
    (void)device;
    return "decode attention";
}
static void device_memory(ggml_backend_dev_t device, size_t *unused, size_t *total) {
    (void)device;
    *unused = *total = 0;
}
static enum ggml_backend_dev_type device_type(ggml_backend_dev_t device) {
    (void)device;
    return GGML_BACKEND_DEVICE_TYPE_ACCEL; /* beside the CPU, in its memory */
}
static void device_props(ggml_backend_dev_t device, struct ggml_backend_dev_props *props) {
    *props = (struct ggml_backend_dev_props){
        .name = name(), .description = device_description(device), .type = device_type(device)};
}
static ggml_backend_buffer_type_t device_buffers(ggml_backend_dev_t device) {
    (void)device;
    return ggml_backend_cpu_buffer_type();
}
static bool device_takes(ggml_backend_dev_t device, const struct ggml_tensor *op) {
    (void)device;
    return look_at(op);
}
static bool device_reads(ggml_backend_dev_t device, ggml_backend_buffer_type_t buffers) {
    (void)device;
    return ggml_backend_buft_is_host(buffers);
}

static ggml_backend_t device_init(ggml_backend_dev_t device, const char *params) {
    static uint8_t guid[16] = {0x74, 0x61, 0x6d, 0x69, 0x73, 0x2d, 0x61, 0x74,
                               0x74, 0x65, 0x6e, 0x74, 0x69, 0x6f, 0x6e, 0x31};
    (void)params;
    ggml_backend_t backend = calloc(1, sizeof *backend);
    if (!backend) return NULL;
    backend->guid = &guid;
    backend->device = device;
    backend->iface.get_name = backend_name;
    backend->iface.free = free_backend;
    backend->iface.graph_compute = compute;
    return backend;
}

static struct ggml_backend_device device = {.iface = {.get_name = device_name,
                                                      .get_description = device_description,
                                                      .get_memory = device_memory,
                                                      .get_type = device_type,
                                                      .get_props = device_props,
                                                      .init_backend = device_init,
                                                      .get_buffer_type = device_buffers,
                                                      .supports_op = device_takes,
                                                      .supports_buft = device_reads}};

static const char *registry_name(ggml_backend_reg_t registry) {
    (void)registry;
    return name();
}
static size_t registry_devices(ggml_backend_reg_t registry) {
    (void)registry;
    return 1;
}
static ggml_backend_dev_t registry_device(ggml_backend_reg_t registry, size_t index) {
    (void)index;
    device.reg = registry;
    return &device;
}

bool attention_register(const char **message) {
    static struct ggml_backend_reg registry = {.api_version = GGML_BACKEND_API_VERSION,
                                               .iface = {.get_name = registry_name,
                                                         .get_device_count = registry_devices,
                                                         .get_device = registry_device}};
    ggml_backend_register(&registry);
    *message = "ggml did not take the backend";
    return ggml_backend_reg_by_name(name()) != NULL;
}

void attention_use(const char *device_id, uint32_t budget) {
    attention_release();
    the = (struct attention){.on = true, .device = device_id, .budget = budget, .stale = true};
}

void attention_refresh(void) {
    the.stale = true;
}

void attention_release(void) {
    close_tamis(); /* an open step ends with its plan */
    the = (struct attention){0};
}

void attention_get_stats(attention_stats *out) {
    tamis_plan_counters counters = {0};
    if (the.plan) tamis_plan_get_counters(the.plan, &counters);
    *out = the.stats;
    out->read = counters.kv_bytes_read;
    out->full = counters.kv_bytes_full;
}
