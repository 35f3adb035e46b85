/* SPDX-License-Identifier: Apache-2.0 */
/* activate: y = z / (1 + exp(-k))·up of z = gate, or without up; k = z, or of GELU sqrt(8/π)·(z +
 * 0.044715·z³).
 * Contract: host/ops/, activate. It works element by element, so y may be gate or up. Without rows
 * nothing is written. */
#include "host/reference/reference.h"

#include <math.h>

static double exponent(double z, tamis_activation activation) {
    return activation == TAMIS_GELU ? 1.5957691216057308 * (z + 0.044715 * z * z * z) : z;
}

tamis_status tms_reference_activate(tms_device *dev, const tms_activate *p) {
    tms_views views = tms_views_begin(dev);
    const float *gate = tms_view_matrix(&views, "gate", p->gate, p->n_rows, p->dim);
    const float *up =
        p->up.ref.mem ? tms_view_matrix(&views, "up", p->up, p->n_rows, p->dim) : NULL;
    float *y = tms_view_matrix(&views, "y", p->y, p->n_rows, p->dim);
    if (views.status != TAMIS_OK) return views.status;
    for (uint64_t r = 0; r < p->n_rows; r++) {
        for (uint32_t i = 0; i < p->dim; i++) {
            const double z = gate[r * p->gate.stride + i];
            const double factor = up ? up[r * p->up.stride + i] : 1;
            y[r * p->y.stride + i] = (float)(z / (1 + exp(-exponent(z, p->activation))) * factor);
        }
    }
    return TAMIS_OK;
}
