/* SPDX-License-Identifier: Apache-2.0 */
/* Checked views: how a launch of the reference turns refs into pointers. */
#include "host/reference/reference.h"

tms_views tms_views_begin(tms_device *dev) {
    tms_views views = {dev, dev->sticky};
    if (views.status == TAMIS_OK && tms_form_is_cpu(dev->form))
        views.status = tms_device_fail(dev, TAMIS_E_UNSUPPORTED, "the reference has no CPU form");
    return views;
}

void *tms_view(tms_views *views, const char *name, tms_ref ref, uint64_t bytes) {
    if (views->status != TAMIS_OK || (!ref.mem && bytes == 0)) return NULL;
    if (!ref.mem) {
        views->status = tms_device_fail(views->dev, TAMIS_E_ARGUMENT, "%s: absent", name);
        return NULL;
    }
    const uint64_t size = ref.mem->bytes;
    if (ref.offset % 4 || ref.offset > size || bytes > size - ref.offset) {
        views->status = tms_device_fail(
            views->dev, TAMIS_E_ARGUMENT,
            "%s: %llu bytes at offset %llu: past the end of %llu, or not aligned to 4", name,
            (unsigned long long)bytes, (unsigned long long)ref.offset, (unsigned long long)size);
        return NULL;
    }
    return ref.mem->data + ref.offset;
}

void *tms_view_optional(tms_views *views, const char *name, tms_ref ref, uint64_t bytes) {
    return ref.mem ? tms_view(views, name, ref, bytes) : NULL;
}

void *tms_view_rest(tms_views *views, const char *name, tms_ref ref) {
    const bool inside = ref.mem && ref.offset <= ref.mem->bytes;
    return tms_view(views, name, ref, inside ? ref.mem->bytes - ref.offset : 1);
}

const int32_t *tms_view_visible(tms_views *views, const tms_batch *batch) {
    const uint64_t lanes = (uint64_t)batch->n_rows * batch->n_kv_heads;
    const int32_t *visible = tms_view(views, "visible", batch->visible, lanes * 4);
    for (uint64_t i = 0; visible && i < lanes; i++) {
        if (visible[i] >= 0 && (uint32_t)visible[i] <= batch->max_visible) continue;
        views->status = tms_device_fail(views->dev, TAMIS_E_ARGUMENT, "visible %d: must be 0 to %u",
                                        visible[i], batch->max_visible);
        return NULL;
    }
    return visible;
}

const int32_t *tms_view_first(tms_views *views, const tms_batch *batch) {
    const uint64_t lanes = (uint64_t)batch->n_rows * batch->n_kv_heads;
    const int32_t *first = lanes ? tms_view_optional(views, "first", batch->first, lanes * 4) : NULL;
    const int32_t *visible = first ? tms_view_visible(views, batch) : NULL;
    for (uint64_t i = 0; visible && i < lanes; i++) {
        tms_views_require(views, first[i] >= 0, "first slot, which must be 0 or more", first[i]);
        if (batch->max_seen)
            tms_views_require(views, visible[i] - first[i] <= (int64_t)batch->max_seen,
                              "slots that a row sees, which must be max_seen or fewer",
                              visible[i] - first[i]);
    }
    return first;
}

float *tms_view_matrix(tms_views *views, const char *name, tms_matrix matrix, uint32_t n_rows,
                       uint64_t width) {
    if (n_rows == 0 || views->status != TAMIS_OK) return NULL;
    return tms_view(views, name, matrix.ref, tms_rows_extent(n_rows, matrix.stride, width) * 4);
}

void tms_views_require(tms_views *views, bool holds, const char *rule, int64_t value) {
    if (views->status == TAMIS_OK && !holds)
        views->status =
            tms_device_fail(views->dev, TAMIS_E_ARGUMENT, "%s: %lld", rule, (long long)value);
}
