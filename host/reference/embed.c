/* SPDX-License-Identifier: Apache-2.0 */
/* embed: y[r] = row tokens[r] of w as f32, times the scale.
 * Contract: host/ops/, embed. w is [n_vocab][dim] of any type. A token outside the
 * vocabulary fails the launch before anything is written. */
#include "host/reference/reference.h"
#include "host/reference/weights.h"

tamis_status tms_reference_embed(tms_device *dev, const tms_embed *p) {
    const uint64_t bytes = tms_matrix_bytes(&p->w, p->n_vocab, p->dim);
    tms_views views = tms_views_begin(dev);
    const int32_t *tokens = tms_view(&views, "tokens", p->tokens, (uint64_t)p->n_rows * 4);
    const void *w = tms_view(&views, "w", p->w.ref, p->n_rows ? bytes : 0);
    float *y = tms_view_matrix(&views, "y", p->y, p->n_rows, p->dim);
    for (uint32_t r = 0; views.status == TAMIS_OK && r < p->n_rows; r++)
        tms_views_require(&views, tokens[r] >= 0 && (uint32_t)tokens[r] < p->n_vocab,
                          "embed: no such token", tokens[r]);
    for (uint64_t r = 0; views.status == TAMIS_OK && r < p->n_rows; r++) {
        float *row = y + r * p->y.stride;
        tms_load_weights(&p->w, w, (uint64_t)tokens[r], p->dim, row);
        for (uint32_t i = 0; i < p->dim; i++)
            row[i] *= p->scale;
    }
    return views.status;
}
