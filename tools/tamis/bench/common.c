/* SPDX-License-Identifier: Apache-2.0 */
/* What the benchmarks share: shapes, medians, the read bandwidth, budgets, the bytes of an
 * eviction. */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include "bench/bench.h"

#include <stdlib.h>
#include <string.h>

/* On a GPU reading PROBE_BYTES takes little more time than a launch. So there the size is larger,
 * but at most 1/64 of its memory, which is still more than its caches hold. */
#define PROBE_BYTES     (256ull << 20)
#define PROBE_BYTES_GPU (1ull << 30)
#define LEAST_SAMPLES   3u

const bench_shape bench_shapes[] = {
    {"llama2-7b", 32, 32, 128, 32}, {"llama3-8b", 32, 8, 128, 32},  {"qwen3-4b", 32, 8, 128, 36},
    {"gemma3-270m", 4, 1, 256, 18}, {"smollm2-135m", 9, 3, 64, 30},
};
const char *const bench_shape_names[] = {"llama2-7b",   "llama3-8b",    "qwen3-4b",
                                         "gemma3-270m", "smollm2-135m", NULL};

tamis_status bench_open(const char *device, tamis_context **out, tamis_error *error) {
    setenv("POCL_AFFINITY", "1", 0);
    return cli_open(device, out, error);
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, uint32_t count) {
    qsort(values, count, sizeof(*values), compare);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

bench_spread bench_spread_of(double *values, uint32_t count) {
    const double median = bench_median(values, count);
    const uint32_t quarter = (count - 1) / 4;
    return (bench_spread){median, values[quarter], values[count - 1 - quarter]};
}

bool bench_is_affordable(double most_s, double sample_s) {
    return (LEAST_SAMPLES + 1) * sample_s <= most_s;
}

uint32_t bench_affordable(double most_s, double sample_s, uint32_t repeat) {
    const double least = repeat < LEAST_SAMPLES ? repeat : LEAST_SAMPLES, most = most_s / sample_s;
    return most < least ? (uint32_t)least : most < repeat ? (uint32_t)most : repeat;
}

uint64_t bench_probe_bytes(const tamis_context *device, uint32_t mib) {
    const tamis_device_info *info = tamis_context_device(device);
    uint64_t bytes = PROBE_BYTES, largest = info->max_buffer_bytes;
    if (mib > 0) return (uint64_t)mib << 20;
    if (info->kind == TAMIS_DEVICE_GPU) {
        bytes = PROBE_BYTES_GPU;
        if (largest > info->memory_bytes / 64) largest = info->memory_bytes / 64;
    }
    return bytes < largest ? bytes : largest / 64 * 64;
}

tamis_status bench_read_bandwidth(tamis_context *device, uint32_t mib, double *gb_per_s,
                                  tamis_error *error) {
    return tamis_context_read_bandwidth(device, bench_probe_bytes(device, mib), gb_per_s, error);
}

/* ---- Arms ------------------------------------------------------------------------------------ */

bool bench_budget(const char *command, const char *text, uint32_t context, uint32_t *budget) {
    size_t digits = strspn(text, "0123456789");
    bool share = strcmp(text + digits, "%") == 0;
    uint64_t number = digits > 0 && digits < 10 ? strtoul(text, NULL, 10) : 0;
    if (share) number = number * context / 100;
    if (number > 0 && number <= context && (share || text[digits] == '\0')) {
        *budget = (uint32_t)number;
        return true;
    }
    cli_fail(command,
             "--budget %s: must be tokens, or a share as 20%%, from 1 to the context of %u", text,
             context);
    return false;
}

cli_eviction_text bench_arm_name(const tamis_eviction *eviction) {
    cli_eviction_text full = {"full"};
    return eviction->kind == TAMIS_EVICT_NONE ? full : cli_eviction_name(eviction);
}

uint32_t bench_list_evictions(const char *command, const cli_list *list, uint32_t budget,
                              const cli_eviction_flags *flags,
                              tamis_eviction out[1 + CLI_EVICTIONS_MAX]) {
    uint32_t values[CLI_EVICTIONS_MAX], count = cli_list_evictions(list, values);
    if (count == 0 && !cli_check_no_eviction(command, false, flags)) return 0;
    tamis_eviction_default(TAMIS_EVICT_NONE, &out[0]);
    for (uint32_t i = 0; i < count; i++) {
        tamis_eviction *e = &out[1 + i];
        if (!cli_eviction(command, values[i], budget, flags, list->count > 1 || count > 1, e))
            return 0;
        if (e->every > 1) {
            cli_fail(command, "--evict-every %u: must be 0 or 1 here", e->every);
            return 0;
        }
    }
    return 1 + count;
}

double bench_policy_bytes(const tamis_eviction *eviction, const tamis_cache_params *shape,
                          uint32_t batch, double slots) {
    const uint32_t planes = tamis_eviction_planes(eviction);
    const bool fed = planes & TAMIS_PLANE_SCORES, in_place = eviction->every == 1;
    const double row = (double)tamis_dtype_row_bytes(shape->dtype, 0, shape->head_dim);
    const uint32_t group = shape->n_heads / shape->n_kv_heads;
    double bytes = 0;
    if (eviction->kind == TAMIS_EVICT_NONE) return 0;
    /* The evicted token is found by positions and, if there are any, scores; its page gets new
     * bounds. */
    if (in_place)
        bytes += slots * (fed ? 8 : 4) +
                 (double)batch * shape->n_kv_heads * (shape->page_size + 2) * row;
    /* knorm: the new row's key, and its score. */
    const bool keys = eviction->kind == TAMIS_EVICT_KNORM;
    if (keys) bytes += (double)batch * shape->n_kv_heads * (row + sizeof(float));
    /* Logits of all query heads are written and read; scores are read and written, those of tova
     * through a sum of each lane. */
    if (fed && !keys)
        bytes += slots * (8.0 * group + (eviction->kind == TAMIS_EVICT_TOVA ? 12 : 8));
    return bytes;
}
