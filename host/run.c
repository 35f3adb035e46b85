/* SPDX-License-Identifier: Apache-2.0 */
/* What device.h declares: every function of a backend's table with its error handed on, and the one
 * way to call an op, whose rules are checked before the backend's function runs. */
#include "host/checks.h"
#include "host/compose.h"

#include <string.h>

/* ---- Devices --------------------------------------------------------------------------------- */

tamis_status tms_device_list(tamis_device_info *infos, size_t capacity, size_t *count,
                             tamis_error *error) {
    size_t total = 0;
    for (size_t i = 0; tms_backends[i]; i++) {
        const size_t room = total < capacity ? capacity - total : 0;
        size_t found = 0;
        const tamis_status status =
            tms_backends[i]->list(room ? infos + total : NULL, room, &found);
        if (status != TAMIS_OK)
            return tms_error_set(error, status, "listing the devices of %s failed",
                                 tms_backends[i]->name);
        total += found;
    }
    *count = total;
    return TAMIS_OK;
}

/* The backend of that name, or NULL. */
static const tms_backend *backend_of(const char *name) {
    size_t i = 0;
    while (tms_backends[i] && strcmp(tms_backends[i]->name, name) != 0)
        i++;
    return tms_backends[i];
}

/* Whether the backend has what every backend must have. */
static tamis_status check_ops(const tms_backend *backend, tamis_error *error) {
#define CHECK_OP(with, op)                                                                         \
    if (!backend->op)                                                                              \
        return tms_error_set(error, TAMIS_E_UNSUPPORTED, "backend %s lacks the op " #op,           \
                             backend->name);
    TMS_REQUIRED_OPS(CHECK_OP, )
#undef CHECK_OP
    return TAMIS_OK;
}

tamis_status tms_device_open(const tamis_device_info *info, const tms_log *log, tms_device **out,
                             tamis_error *error) {
    const tms_backend *backend = backend_of(info->backend);
    if (!backend)
        return tms_error_set(error, TAMIS_E_NO_DEVICE, "device %s: no backend \"%s\"", info->id,
                             info->backend);
    const tamis_status status = check_ops(backend, error);
    return status == TAMIS_OK ? backend->open(backend, info->id, log, out, error) : status;
}

tamis_status tms_device_open_on(const char *name, void *context, void *queue, const tms_log *log,
                                tms_device **out, tamis_error *error) {
    const tms_backend *backend = backend_of(name);
    if (!backend || !backend->open_on)
        return tms_error_set(error, TAMIS_E_UNSUPPORTED, "built without the backend %s", name);
    const tamis_status status = check_ops(backend, error);
    return status == TAMIS_OK ? backend->open_on(backend, context, queue, log, out, error) : status;
}

void tms_device_close(tms_device *dev) {
    tms_compose_end(dev);
    dev->backend->close(dev);
}

const tamis_device_info *tms_device_info(const tms_device *dev) {
    return &dev->info;
}

const tms_log *tms_device_log(const tms_device *dev) {
    return &dev->log;
}

tms_settings *tms_device_settings(tms_device *dev) {
    return &dev->settings;
}

tms_settings *tms_device_settings_found(tms_device *dev) {
    return &dev->found;
}

bool tms_device_wraps(const tms_device *dev, const char *backend) {
    return dev->backend->wrap && strcmp(dev->info.backend, backend) == 0;
}

bool tms_device_records(const tms_device *dev) {
    return dev->backend->capture_begin != NULL;
}

void tms_device_rehearse(tms_device *dev, bool on) {
    dev->rehearsing = on;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

tamis_status tms_device_alloc(tms_device *dev, uint64_t bytes, tms_mem **out, tamis_error *error) {
    return tms_forward(dev, dev->backend->alloc(dev, bytes, out), error);
}

tamis_status tms_device_wrap(tms_device *dev, uint64_t native, uint64_t offset, uint64_t bytes,
                             tms_mem **out, tamis_error *error) {
    return tms_forward(dev, dev->backend->wrap(dev, native, offset, bytes, out), error);
}

tamis_status tms_device_wrap_host(tms_device *dev, void *data, uint64_t bytes, tms_mem **out,
                                  tamis_error *error) {
    const tamis_status status =
        dev->backend->wrap_host
            ? dev->backend->wrap_host(dev, data, bytes, out)
            : tms_device_fail(
                  dev, TAMIS_E_UNSUPPORTED,
                  "%s (%s): kernels of the backend %s use no memory of the host in place",
                  dev->info.id, dev->info.name, dev->info.backend);
    return tms_forward(dev, status, error);
}

uint64_t tms_device_native(tms_device *dev, const tms_mem *mem, uint64_t *offset) {
    return dev->backend->native(mem, offset);
}

void *tms_device_data(tms_device *dev, const tms_mem *mem) {
    return dev->backend->data ? dev->backend->data(dev, mem) : NULL;
}

void tms_device_free(tms_device *dev, tms_mem *mem) {
    dev->backend->free(dev, mem);
}

tamis_status tms_device_write(tms_device *dev, tms_ref to, const void *from, uint64_t bytes,
                              tamis_error *error) {
    const bool runs = bytes && !dev->rehearsing;
    return tms_forward(dev, runs ? dev->backend->write(dev, to, from, bytes) : TAMIS_OK, error);
}

tamis_status tms_device_read(tms_device *dev, tms_ref from, void *to, uint64_t bytes,
                             tamis_error *error) {
    if (bytes == 0) return tms_device_wait(dev, error);
    if (dev->rehearsing) {
        memset(to, 0, bytes);
        return tms_forward(dev, TAMIS_OK, error);
    }
    return tms_forward(dev, dev->backend->read(dev, from, to, bytes), error);
}

tamis_status tms_device_copy(tms_device *dev, tms_ref to, tms_ref from, uint64_t bytes,
                             tamis_error *error) {
    const bool runs = !dev->rehearsing;
    return tms_forward(dev, runs ? dev->backend->copy(dev, to, from, bytes) : TAMIS_OK, error);
}

tamis_status tms_device_fill(tms_device *dev, tms_ref to, uint32_t word, uint64_t bytes,
                             tamis_error *error) {
    const bool runs = !dev->rehearsing;
    return tms_forward(dev, runs ? dev->backend->fill(dev, to, word, bytes) : TAMIS_OK, error);
}

tamis_status tms_device_host_alloc(tms_device *dev, uint64_t bytes, void **out,
                                   tamis_error *error) {
    return tms_forward(dev, dev->backend->host_alloc(dev, bytes, out), error);
}

void tms_device_host_free(tms_device *dev, void *host) {
    dev->backend->host_free(dev, host);
}

tamis_status tms_device_upload(tms_device *dev, tms_ref to, const void *from, uint64_t bytes,
                               const tms_event *after, tms_event **done, tamis_error *error) {
    return tms_forward(dev, dev->backend->upload(dev, to, from, bytes, after, done), error);
}

/* ---- Events and graphs ----------------------------------------------------------------------- */

tamis_status tms_device_event_record(tms_device *dev, bool timed, tms_event **out,
                                     tamis_error *error) {
    return tms_forward(dev, dev->backend->event_record(dev, timed, out), error);
}

tamis_status tms_device_event_wait(tms_device *dev, tms_event *event, tamis_error *error) {
    return tms_forward(dev, dev->backend->event_wait(dev, event), error);
}

tamis_status tms_device_event_await(tms_device *dev, const tms_event *event, tamis_error *error) {
    return tms_forward(dev, dev->backend->event_await(dev, event), error);
}

tamis_status tms_device_event_elapsed(tms_device *dev, tms_event *from, tms_event *to, double *us,
                                      tamis_error *error) {
    return tms_forward(dev, dev->backend->event_elapsed(dev, from, to, us), error);
}

void tms_device_event_free(tms_device *dev, tms_event *event) {
    dev->backend->event_free(dev, event);
}

tamis_status tms_device_event_wrap(tms_device *dev, void *native, tms_event **out,
                                   tamis_error *error) {
    return tms_forward(dev, dev->backend->event_wrap(dev, native, out), error);
}

void *tms_device_event_native(tms_device *dev, const tms_event *event) {
    return dev->backend->event_native(dev, event);
}

tamis_status tms_device_capture_begin(tms_device *dev, tamis_error *error) {
    return tms_forward(dev, dev->backend->capture_begin(dev), error);
}

tamis_status tms_device_capture_end(tms_device *dev, tms_graph **out, tamis_error *error) {
    return tms_forward(dev, dev->backend->capture_end(dev, out), error);
}

tamis_status tms_device_graph_launch(tms_device *dev, tms_graph *graph, tamis_error *error) {
    return tms_forward(dev, dev->backend->graph_launch(dev, graph), error);
}

void tms_device_graph_free(tms_device *dev, tms_graph *graph) {
    dev->backend->graph_free(dev, graph);
}

/* ---- The queue ------------------------------------------------------------------------------- */

tamis_status tms_device_flush(tms_device *dev, tamis_error *error) {
    return tms_forward(dev, dev->backend->flush(dev), error);
}

tamis_status tms_device_wait(tms_device *dev, tamis_error *error) {
    return tms_forward(dev, dev->backend->wait(dev), error);
}

tamis_status tms_device_read_bandwidth(tms_device *dev, tms_ref from, uint64_t bytes,
                                       double *gb_per_s, tamis_error *error) {
    return tms_forward(dev, dev->backend->read_bandwidth(dev, from, bytes, gb_per_s), error);
}

tamis_status tms_device_read_pages(tms_device *dev, const tms_page_read *p, tamis_error *error) {
    return tms_forward(dev, dev->backend->read_pages(dev, p), error);
}

bool tms_device_orders_pages(tms_device *dev) {
    return dev->backend->orders_pages(dev);
}

tamis_weight_layout tms_device_weight_layout(tms_device *dev, tamis_weight_type type) {
    return dev->backend->weight_layout ? dev->backend->weight_layout(dev, type) : TAMIS_WEIGHT_ROWS;
}

/* ---- Ops ------------------------------------------------------------------------------------- */

static tamis_status lacks(tms_device *dev, const char *op) {
    return tms_device_fail(dev, TAMIS_E_UNSUPPORTED, "%s: device %s has no such op", op,
                           dev->info.id);
}

/* The attend of an op, behind which its sinks run; NULL for all other ops. */
static const tms_attend *attend_of_attend(const tms_attend *p) {
    return p;
}
static const tms_attend *attend_of_sparse(const tms_sparse_attend *p) {
    return &p->attend;
}
static const tms_attend *attend_of_observed(const tms_observed_attend *p) {
    return &p->attend;
}
static const tms_attend *attend_of_write(const tms_write_attend *p) {
    return &p->attend;
}
static const tms_attend *attend_of_write_sparse(const tms_write_sparse_attend *p) {
    return &p->sparse.attend;
}
static const tms_attend *attend_of_none(const void *p) {
    (void)p;
    return NULL;
}
#define ATTEND_OF(p)                                                                               \
    _Generic((p),                                                                                  \
        const tms_attend *: attend_of_attend,                                                      \
        const tms_sparse_attend *: attend_of_sparse,                                               \
        const tms_observed_attend *: attend_of_observed,                                           \
        const tms_write_attend *: attend_of_write,                                                 \
        const tms_write_sparse_attend *: attend_of_write_sparse,                                   \
        default: attend_of_none)(p)

/* Refused before the attend runs. */
static tamis_status find_sinks(tms_device *dev, const tms_attend *p) {
    return !p || !p->logit.sinks.mem || dev->backend->sink ? TAMIS_OK : lacks(dev, "sink");
}

static tamis_status add_sinks(tms_device *dev, const tms_attend *p) {
    if (!p || !p->logit.sinks.mem) return TAMIS_OK;
    const tms_sink sink = {.n_rows = p->batch.n_rows,
                           .n_heads = p->batch.n_heads,
                           .dim = p->kv.head_dim,
                           .out = p->out,
                           .lse = p->lse,
                           .sinks = p->logit.sinks};
    return dev->backend->sink(dev, &sink);
}

/* Whether the device has an op for the case, by the list that it stands in. */
#define FIND_ALWAYS(with, op)                                                                      \
    static tamis_status find_##op(tms_device *dev, const tms_##op *p) {                            \
        (void)dev;                                                                                 \
        (void)p;                                                                                   \
        return TAMIS_OK;                                                                           \
    }
#define FIND_OWN(with, op)                                                                         \
    static tamis_status find_##op(tms_device *dev, const tms_##op *p) {                            \
        (void)p;                                                                                   \
        return dev->backend->op ? TAMIS_OK : lacks(dev, #op);                                      \
    }
#define FIND_TAKEN(with, op)                                                                       \
    static tamis_status find_##op(tms_device *dev, const tms_##op *p) {                            \
        const char *refusal = tms_##op##_refusal(dev, p);                                          \
        if (!refusal) return TAMIS_OK;                                                             \
        return tms_device_fail(dev, TAMIS_E_UNSUPPORTED, #op ": %s", refusal);                     \
    }                                                                                              \
    const char *tms_##op##_refusal(tms_device *dev, const tms_##op *p) {                           \
        if (!dev->backend->op) return "the backend has no such op";                                \
        return dev->backend->op##_refusal ? dev->backend->op##_refusal(dev, p) : NULL;             \
    }
TMS_REQUIRED_OPS(FIND_ALWAYS, )
TMS_COMPOSED_OPS(FIND_ALWAYS, )
TMS_OPTIONAL_OPS(FIND_OWN, )
TMS_FUSED_OPS(FIND_TAKEN, )

/* How it runs. */
#define RUN_OWN(with, op)                                                                          \
    static tamis_status run_##op(tms_device *dev, const tms_##op *p) {                             \
        return dev->backend->op(dev, p);                                                           \
    }
#define RUN_OWN_OR_COMPOSED(with, op)                                                              \
    static tamis_status run_##op(tms_device *dev, const tms_##op *p) {                             \
        return dev->backend->op ? dev->backend->op(dev, p) : tms_compose_##op(dev, p);             \
    }
TMS_REQUIRED_OPS(RUN_OWN, )
TMS_COMPOSED_OPS(RUN_OWN_OR_COMPOSED, )
TMS_OPTIONAL_OPS(RUN_OWN, )
TMS_FUSED_OPS(RUN_OWN, )

/* Late errors come first: nothing runs on such a device any more, whatever is asked of it. */
#define RUN(with, op)                                                                              \
    tamis_status tms_run_##op(tms_device *dev, const tms_##op *p, tamis_error *error) {            \
        const bool runs = !dev->rehearsing;                                                        \
        tamis_status status = dev->sticky;                                                         \
        if (status == TAMIS_OK) status = tms_check_##op(dev, p);                                   \
        if (status == TAMIS_OK) status = find_##op(dev, p);                                        \
        if (status == TAMIS_OK) status = find_sinks(dev, ATTEND_OF(p));                            \
        if (status == TAMIS_OK && runs) status = run_##op(dev, p);                                 \
        if (status == TAMIS_OK && runs) status = add_sinks(dev, ATTEND_OF(p));                     \
        dev->ops += runs;                                                                          \
        return tms_forward(dev, status, error);                                                    \
    }
TMS_OPS(RUN, )

#define SCRATCH(with, op)                                                                          \
    uint64_t tms_##op##_scratch(tms_device *dev, const tms_##op *p) {                              \
        return dev->backend->op##_scratch ? dev->backend->op##_scratch(dev, p) : 0;                \
    }
TMS_SCRATCH_OPS(SCRATCH, )

tamis_status tms_device_check_kv(tms_device *dev, const tms_kv *kv, tamis_error *error) {
    return tms_forward(dev, tms_check_read_kv(dev, kv), error);
}

tamis_status tms_device_check_batch(tms_device *dev, const tms_batch *batch, tamis_error *error) {
    return tms_forward(dev, tms_check_batch(dev, batch), error);
}
