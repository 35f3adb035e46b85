/* SPDX-License-Identifier: Apache-2.0 */
/* The times of a prompt's layers. */
#include "lib/blend/blend.h"

tamis_status tms_blend_settle(tamis_blend *blend, tamis_error *error) {
    tamis_event *end = NULL;
    if (!(blend->params.flags & TAMIS_BLEND_TIMING)) return TAMIS_OK;
    TMS_TRY(tamis_event_record(tamis_cache_context(blend->cache), &end, error));
    const tamis_status status = tamis_event_wait(end, error);
    tamis_event_destroy(&end);
    return status;
}

void tms_blend_count_compute(tamis_blend *blend, uint32_t layer) {
    const double us = tms_now_us() - blend->left_at;
    if (layer == 0) return;
    blend->layers[layer - 1].compute_us += us;
    blend->stats.compute_us += us;
}
