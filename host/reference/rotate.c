/* SPDX-License-Identifier: Apache-2.0 */
/* rotate: RoPE in place, pair i is rotated by the angle position*frequency_i:
 *   (a, b) -> (a·cos - b·sin, a·sin + b·cos).
 * Contract: host/ops/, rotate. With |position| = 1024*u + l the table holds cos and sin of
 * l*frequency_i and of 1024*u*frequency_i; the addition theorem joins them. A negative position
 * rotates backwards. Channels from n_rot on are not changed. */
#include "host/reference/reference.h"

#include <stdlib.h>

enum { MAX_PAIRS = TMS_MOST_HEAD_DIM / 2 };

/* cos and sin of every pair's angle at one position. */
static void angles(const float *table, int32_t position, uint32_t pairs, double (*turn)[2]) {
    const uint32_t magnitude = (uint32_t)labs((long)position);
    const uint64_t low = magnitude % TMS_ROTATE_STEPS;
    const uint64_t high = TMS_ROTATE_STEPS + magnitude / TMS_ROTATE_STEPS;
    for (uint32_t i = 0; i < pairs; i++) {
        const float *l = table + (low * pairs + i) * 2, *u = table + (high * pairs + i) * 2;
        const double sine = (double)u[1] * l[0] + (double)u[0] * l[1];
        turn[i][0] = (double)u[0] * l[0] - (double)u[1] * l[1];
        turn[i][1] = position < 0 ? -sine : sine;
    }
}

/* Every pair of a head. */
static void turn_pairs(double (*turn)[2], uint32_t pairs, tamis_pairing pairing, float *head) {
    const uint32_t step = pairing == TAMIS_PAIR_HALF ? 1 : 2;        /* from pair to pair */
    const uint32_t partner = pairing == TAMIS_PAIR_HALF ? pairs : 1; /* from a to b */
    for (uint32_t i = 0; i < pairs; i++) {
        float *a = head + i * step, *b = a + partner;
        const double a0 = *a, b0 = *b;
        *a = (float)(a0 * turn[i][0] - b0 * turn[i][1]);
        *b = (float)(a0 * turn[i][1] + b0 * turn[i][0]);
    }
}

void tms_turn_head(const float *table, int32_t position, uint32_t n_rot, tamis_pairing pairing,
                   float *head) {
    double turn[MAX_PAIRS][2];
    angles(table, position, n_rot / 2, turn);
    turn_pairs(turn, n_rot / 2, pairing, head);
}

tamis_status tms_reference_rotate(tms_device *dev, const tms_rotate *p) {
    const uint32_t pairs = p->n_rot / 2;
    tms_views views = tms_views_begin(dev);
    float *x = tms_view_matrix(&views, "x", p->x, p->n_rows, (uint64_t)p->n_heads * p->head_dim);
    const int32_t *positions = tms_view(&views, "positions", p->positions, (uint64_t)p->n_rows * 4);
    const uint64_t entries = p->n_rows ? (uint64_t)2 * TMS_ROTATE_STEPS * pairs * 2 : 0;
    const float *table = tms_view(&views, "table", p->table, entries * 4);
    if (views.status != TAMIS_OK) return views.status;
    for (uint32_t r = 0; r < p->n_rows; r++)
        tms_views_require(&views, labs((long)positions[r]) < (long)TMS_ROTATE_LIMIT,
                          "rotate: the table ends before position", positions[r]);
    if (views.status != TAMIS_OK) return views.status;
    double turn[MAX_PAIRS][2];
    for (uint32_t r = 0; r < p->n_rows; r++) {
        /* 1. The row's angles. */
        angles(table, positions[r], pairs, turn);
        /* 2. Every pair of every head is rotated. */
        for (uint32_t h = 0; h < p->n_heads; h++)
            turn_pairs(turn, pairs, p->pairing, x + r * p->x.stride + (uint64_t)h * p->head_dim);
    }
    return TAMIS_OK;
}
