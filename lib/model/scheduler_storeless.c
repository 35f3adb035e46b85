/* SPDX-License-Identifier: Apache-2.0 */
/* What a scheduler has of stores in libraries that are built without one. */
#include "lib/model/scheduler.h"

tamis_status tms_stored_open(tamis_scheduler *scheduler, tamis_error *error) {
    TMS_REQUIRE(!scheduler->params.store, TAMIS_E_UNSUPPORTED,
                "a store is given: this library was built without one");
    return TAMIS_OK;
}

void tms_stored_close(tamis_scheduler *scheduler) {
    (void)scheduler;
}

tamis_status tms_stored_find(tamis_scheduler *scheduler, tms_request *request, tamis_error *error) {
    (void)scheduler;
    (void)request;
    (void)error;
    return TAMIS_OK;
}

uint32_t tms_stored_reach(const tamis_scheduler *scheduler, const tms_request *request) {
    (void)scheduler;
    return request->n_done;
}

tamis_status tms_stored_load(tamis_scheduler *scheduler, tms_request *request, uint32_t most,
                             uint32_t *loaded, tamis_error *error) {
    (void)scheduler;
    (void)request;
    (void)most;
    (void)error;
    *loaded = 0;
    return TAMIS_OK;
}

void tms_stored_release(tms_request *request) {
    (void)request;
}

tamis_status tms_put_find(tamis_scheduler *scheduler, tms_request *request, tamis_error *error) {
    (void)scheduler;
    (void)request;
    (void)error;
    return TAMIS_OK;
}

tamis_status tms_put_step(tamis_scheduler *scheduler, uint32_t n, tamis_error *error) {
    return tamis_runner_step(scheduler->runner, scheduler->runs + scheduler->first_run, n,
                             scheduler->next, error);
}

void tms_put_release(tms_request *request) {
    (void)request;
}
