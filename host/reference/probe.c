/* SPDX-License-Identifier: Apache-2.0 */
/* The probes of one thread of plain C: the read bandwidth, and the pages of lanes. */
#include "host/reference/reference.h"

#include <string.h>

enum { RUNS = 5, MAX_STREAMS = 4 };

/* Sums `words` 64-bit words; `streams` equal parts are read in turn. */
static uint64_t read_words(const unsigned char *data, uint64_t words, uint32_t streams) {
    const uint64_t stretch = words / streams;
    uint64_t sums[MAX_STREAMS][8] = {{0}};
    for (uint64_t i = 0; i + 8 <= stretch; i += 8) {
        for (uint32_t s = 0; s < streams; s++) {
            uint64_t block[8];
            memcpy(block, data + (s * stretch + i) * 8, sizeof block);
            for (uint32_t j = 0; j < 8; j++)
                sums[s][j] += block[j];
        }
    }
    uint64_t sum = 0;
    for (uint32_t s = 0; s < streams; s++) {
        for (uint32_t j = 0; j < 8; j++)
            sum += sums[s][j];
    }
    return sum;
}

/* The sums are stored here, so that the compiler cannot remove them. */
static volatile uint64_t sink;

/* Seconds of one pass. */
static double time_pass(const unsigned char *data, uint64_t words, uint32_t streams) {
    const double begin = tms_now_us();
    sink = read_words(data, words, streams);
    return 1e-6 * (tms_now_us() - begin);
}

static double median_seconds(const unsigned char *data, uint64_t words, uint32_t streams) {
    double sorted[RUNS];
    for (int n = 0; n < RUNS; n++) {
        const double seconds = time_pass(data, words, streams);
        int at = n;
        for (; at > 0 && sorted[at - 1] > seconds; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = seconds;
    }
    return sorted[RUNS / 2];
}

tamis_status tms_reference_read_bandwidth(tms_device *dev, tms_ref from, uint64_t bytes,
                                          double *gb_per_s) {
    tms_views views = tms_views_begin(dev);
    const unsigned char *data = tms_view(&views, "read bandwidth", from, bytes);
    if (views.status != TAMIS_OK) return views.status;
    const double one = median_seconds(data, bytes / 8, 1);
    const double four = median_seconds(data, bytes / 8, MAX_STREAMS);
    const double best = one < four ? one : four;
    *gb_per_s = best > 0 ? (double)bytes / best * 1e-9 : 0;
    return TAMIS_OK;
}

/* ---- Pages ----------------------------------------------------------------------------------- */

/* The sum of the 32-bit words of `bytes`, a multiple of 16. */
static uint32_t sum_words(const unsigned char *data, uint64_t bytes) {
    uint32_t sums[4] = {0};
    for (uint64_t i = 0; i < bytes; i += sizeof sums) {
        uint32_t block[4];
        memcpy(block, data + i, sizeof block);
        for (uint32_t j = 0; j < 4; j++)
            sums[j] += block[j];
    }
    return sums[0] + sums[1] + sums[2] + sums[3];
}

tamis_status tms_reference_read_pages(tms_device *dev, const tms_page_read *p) {
    const uint64_t unit = tms_kv_unit(p->kv.dtype), stride = p->kv.page_stride * unit;
    const uint64_t k_bytes = tms_key_bytes(p->kv.dtype, p->kv.page_size, p->kv.head_dim);
    const uint64_t v_bytes = tms_value_bytes(p->kv.dtype, p->kv.page_size, p->kv.head_dim);
    const uint64_t entries = (uint64_t)p->n_lanes * p->capacity;
    tms_views views = tms_views_begin(dev);
    const int32_t *table = tms_view(&views, "table", p->table, entries * sizeof *table);
    const int32_t *count = tms_view(&views, "count", p->count, p->n_lanes * sizeof *count);
    uint32_t *total = tms_view(&views, "sink", p->sink, sizeof *total);
    for (uint32_t lane = 0; lane < p->n_lanes && views.status == TAMIS_OK; lane++) {
        const int32_t *ids = table + (uint64_t)lane * p->capacity;
        for (int32_t i = 0; i < count[lane]; i++) {
            const tms_ref k = {p->kv.data.mem, p->kv.data.offset + (uint64_t)ids[i] * stride};
            const tms_ref v = {k.mem, k.offset + p->kv.value_offset * unit};
            const unsigned char *keys = tms_view(&views, "K of a page", k, k_bytes);
            const unsigned char *values = tms_view(&views, "V of a page", v, v_bytes);
            if (views.status != TAMIS_OK) break;
            *total += sum_words(keys, k_bytes) + sum_words(values, v_bytes);
        }
    }
    return views.status;
}

bool tms_reference_orders_pages(tms_device *dev) {
    (void)dev;
    return false;
}
