/* SPDX-License-Identifier: Apache-2.0 */
/* The bandwidths of a context's device, measured on memory taken for the call. */
#include "lib/core/core.h"

#include <stdlib.h>

/* With fewer bytes the time of a launch would exceed that of reading. */
#define MIN_BYTES (1u << 20)
#define COPIES    9

static tamis_status check(const tamis_context *context, uint64_t bytes, const double *gb_per_s,
                          tamis_error *error) {
    TMS_REQUIRE(context, TAMIS_E_ARGUMENT, "context: NULL");
    TMS_REQUIRE(gb_per_s, TAMIS_E_ARGUMENT, "gb_per_s: NULL");
    TMS_REQUIRE(bytes >= MIN_BYTES && bytes % 64 == 0, TAMIS_E_ARGUMENT,
                "bytes is %llu: not a multiple of 64 from %u on", (unsigned long long)bytes,
                MIN_BYTES);
    return TAMIS_OK;
}

/* Allocates memory and writes it once, so that the operating system has mapped it when it is
 * read. */
static tamis_status take(tms_device *dev, uint64_t bytes, tms_mem **mem, tamis_error *error) {
    TMS_TRY(tms_device_alloc(dev, bytes, mem, error));
    return tms_device_fill(dev, (tms_ref){*mem, 0}, 0x3f800000u, bytes, error);
}

tamis_status tamis_context_read_bandwidth(tamis_context *context, uint64_t bytes, double *gb_per_s,
                                          tamis_error *error) {
    TMS_ENTER(context);
    TMS_TRY(check(context, bytes, gb_per_s, error));
    tms_device *dev = context->dev;
    tms_mem *mem = NULL;
    tamis_status status = take(dev, bytes, &mem, error);
    if (status == TAMIS_OK)
        status = tms_device_read_bandwidth(dev, (tms_ref){mem, 0}, bytes, gb_per_s, error);
    tms_device_free(dev, mem);
    return status;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double tms_median(double *samples, uint32_t n) {
    qsort(samples, n, sizeof *samples, ascending);
    return (samples[(n - 1) / 2] + samples[n / 2]) / 2;
}

static tamis_status time_copy(tms_device *dev, tms_mem *to, tms_mem *from, uint64_t bytes,
                              double *us, tamis_error *error) {
    tms_event *begin = NULL, *end = NULL;
    tamis_status status = tms_device_event_record(dev, true, &begin, error);
    if (status != TAMIS_OK) goto done;
    status = tms_device_copy(dev, (tms_ref){to, 0}, (tms_ref){from, 0}, bytes, error);
    if (status != TAMIS_OK) goto done;
    status = tms_device_event_record(dev, true, &end, error);
    if (status != TAMIS_OK) goto done;
    status = tms_device_event_elapsed(dev, begin, end, us, error);
done:
    tms_device_event_free(dev, begin);
    tms_device_event_free(dev, end);
    return status;
}

tamis_status tamis_context_copy_bandwidth(tamis_context *context, uint64_t bytes, double *gb_per_s,
                                          tamis_error *error) {
    TMS_ENTER(context);
    TMS_TRY(check(context, bytes, gb_per_s, error));
    tms_device *dev = context->dev;
    tms_mem *from = NULL, *to = NULL;
    double us[COPIES + 1]; /* the first one warms up */
    tamis_status status = take(dev, bytes, &from, error);
    if (status != TAMIS_OK) goto done;
    status = take(dev, bytes, &to, error);
    for (int i = 0; i <= COPIES && status == TAMIS_OK; i++)
        status = time_copy(dev, to, from, bytes, &us[i], error);
    if (status != TAMIS_OK) goto done;
    *gb_per_s = 2 * (double)bytes / tms_median(us + 1, COPIES) * 1e-3;
done:
    tms_device_free(dev, to);
    tms_device_free(dev, from);
    return status;
}
