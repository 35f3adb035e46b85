/* SPDX-License-Identifier: Apache-2.0 */
/* Rotations for tests: a table written for frequencies and bound to a plan, which then holds it. */
#ifndef TESTS_ROTATION_H
#define TESTS_ROTATION_H

#include <tamis/plan.h>

static inline tamis_status test_bind_rotation(tamis_context *context, tamis_plan *plan,
                                              const double *frequencies, uint32_t n_rot,
                                              tamis_pairing pairing, tamis_error *error) {
    tamis_rotation rotation = {.n_rot = n_rot, .pairing = pairing};
    tamis_status status =
        tamis_buffer_create(context, tamis_rotation_bytes(n_rot), &rotation.table.buffer, error);
    if (status == TAMIS_OK) status = tamis_rotation_write(&rotation, frequencies, error);
    if (status == TAMIS_OK) status = tamis_plan_bind_rotation(plan, &rotation, error);
    tamis_buffer_destroy(&rotation.table.buffer);
    return status;
}

#endif
