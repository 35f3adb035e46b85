/* SPDX-License-Identifier: Apache-2.0 */
/* Launches: a kernel, the refs that go into its arguments, its grid; and the choice of an op's
 * form. */
#include "host/cuda/program.h"
#include <stdarg.h>
#include <stdio.h>

/* The driver's limits of a grid and a block, and the most blocks of our grids whose kernels stride
 * over their items. */
#define MOST_X       0x7fffffffu
#define MOST_Y_OR_Z  65535u
#define MOST_THREADS 1024u
#define MOST_STRIDED (1u << 15)

#define ROW_ALIGNMENT 16u /* of K, V and bounds, in bytes */

tms_cu_launch tms_cu_begin(tms_device *dev, const char *stem, const char *kernel, ...) {
    tms_cu_launch l = {.dev = dev, .status = dev->sticky};
    va_list args;
    va_start(args, kernel);
    vsnprintf(l.name, sizeof l.name, kernel, args);
    va_end(args);
    if (l.status == TAMIS_OK) l.status = tms_cu_function_get(dev, stem, l.name, &l.function);
    return l;
}

/* ---- Refs ------------------------------------------------------------------------------------ */

uint64_t tms_cu_ref(tms_cu_launch *l, const char *what, tms_ref ref, size_t element, uint64_t n) {
    const uint64_t bytes = ref.mem ? ref.mem->bytes : 0;
    const bool inside = ref.offset <= bytes && n <= (bytes - ref.offset) / element;
    if (l->status == TAMIS_OK && (ref.mem || n) && (!inside || ref.offset % element))
        l->status = tms_device_fail(
            l->dev, TAMIS_E_ARGUMENT,
            "%s: %s: %llu elements of %zu bytes at offset %llu of a buffer of %llu bytes", l->name,
            what, (unsigned long long)n, element, (unsigned long long)ref.offset,
            (unsigned long long)bytes);
    return ref.mem ? ref.mem->at + ref.offset : 0;
}

uint64_t tms_cu_optional(tms_cu_launch *l, const char *what, tms_ref ref, size_t element,
                         uint64_t n) {
    return tms_cu_ref(l, what, ref, element, ref.mem ? n : 0);
}

uint64_t tms_cu_reached(tms_cu_launch *l, const char *what, tms_ref ref, size_t element,
                        uint64_t n) {
    return tms_cu_ref(l, what, ref, element, n != 0);
}

uint64_t tms_cu_weights(tms_cu_launch *l, const tms_weight_matrix *w, uint64_t n_out,
                        uint64_t n_in) {
    const size_t size = tms_weight_unit(w->type);
    return tms_cu_ref(l, "w", w->ref, size, tamis_weight_bytes(w->type, n_out, n_in) / size);
}

/* Rows begin at multiples of 16 bytes: `at` and the strides, which are elements of `size` bytes. */
static void check_rows(tms_cu_launch *l, const char *what, uint64_t at, size_t size,
                       const uint64_t *strides, size_t n) {
    uint64_t all = at;
    for (size_t i = 0; i < n; i++)
        all |= strides[i] * size;
    if (l->status != TAMIS_OK || all % ROW_ALIGNMENT == 0) return;
    size_t bad = 0;
    while (bad < n && strides[bad] * size % ROW_ALIGNMENT == 0)
        bad++;
    if (at % ROW_ALIGNMENT)
        l->status = tms_device_fail(l->dev, TAMIS_E_UNSUPPORTED,
                                    "%s: %s at address 0x%llx: must be a multiple of %u bytes",
                                    l->name, what, (unsigned long long)at, ROW_ALIGNMENT);
    else
        l->status = tms_device_fail(
            l->dev, TAMIS_E_UNSUPPORTED,
            "%s: %s with a stride of %llu elements of %zu bytes: must be a multiple of %u bytes",
            l->name, what, (unsigned long long)strides[bad], size, ROW_ALIGNMENT);
}

static uint32_t log2_of(uint32_t x) {
    uint32_t log2 = 0;
    while (x >>= 1)
        log2++;
    return log2;
}

static uint64_t most_apart(const tms_kv *kv) {
    const uint64_t keys = kv->channel_stride, values = kv->apart.channel_stride;
    return keys > values ? keys : values;
}

bool tms_cu_values_beside(const tms_kv *kv) {
    const tms_apart *apart = &kv->apart;
    return !apart->data.mem ||
           (apart->page_stride == kv->page_stride && apart->head_stride == kv->head_stride &&
            apart->slot_stride == kv->slot_stride);
}

/* V beside K, or apart; at the same strides value_offset is the way from one to the other, whichever
 * lies before: addresses wrap. */
static void place_values(tms_cu_launch *l, const tms_kv *kv, uint64_t n, cu_kv *out) {
    const size_t size = tms_kv_unit(kv->dtype);
    const tms_apart *apart = &kv->apart;
    const uint64_t strides[] = {apart->page_stride, apart->head_stride, apart->slot_stride};
    out->values = out->rows + kv->value_offset * size;
    out->values_page_stride = kv->page_stride;
    out->values_head_stride = kv->head_stride;
    out->values_slot_stride = kv->slot_stride;
    if (!apart->data.mem) return;
    out->values = tms_cu_reached(l, "V rows", apart->data, size, n);
    check_rows(l, "V rows", out->values, size, strides, sizeof strides / sizeof *strides);
    out->values_page_stride = apart->page_stride;
    out->values_head_stride = apart->head_stride;
    out->values_slot_stride = apart->slot_stride;
    out->value_offset = (uint64_t)((int64_t)(out->values - out->rows) / (int64_t)size);
}

cu_kv tms_cu_kv(tms_cu_launch *l, const tms_kv *kv, uint64_t n) {
    const size_t size = tms_kv_unit(kv->dtype);
    const uint64_t strides[] = {kv->page_stride, kv->head_stride, kv->slot_stride,
                                kv->value_offset};
    if (l->status == TAMIS_OK && !tms_channels_adjacent(kv))
        l->status = tms_device_fail(l->dev, TAMIS_E_UNSUPPORTED,
                                    "%s: channels of a row %llu elements apart: must be adjacent",
                                    l->name, (unsigned long long)most_apart(kv));
    cu_kv out = {.rows = tms_cu_reached(l, "K and V rows", kv->data, size, n),
                 .page_stride = kv->page_stride,
                 .head_stride = kv->head_stride,
                 .slot_stride = kv->slot_stride,
                 .value_offset = kv->value_offset,
                 .page_size = kv->page_size,
                 .page_shift = log2_of(kv->page_size),
                 .dim = kv->head_dim};
    check_rows(l, "K and V rows", out.rows, size, strides, sizeof strides / sizeof *strides);
    place_values(l, kv, n, &out);
    return out;
}

cu_bounds_rows tms_cu_bounds_of(tms_cu_launch *l, const tms_kv *kv, uint64_t n) {
    const size_t size = tms_kv_unit(kv->bounds_dtype);
    const uint64_t strides[] = {kv->bounds_page_stride, kv->bounds_head_stride};
    const cu_bounds_rows out = {.rows = tms_cu_reached(l, "bounds", kv->bounds, size, n),
                                .page_stride = kv->bounds_page_stride,
                                .head_stride = kv->bounds_head_stride};
    check_rows(l, "bounds", out.rows, size, strides, sizeof strides / sizeof *strides);
    return out;
}

cu_batch tms_cu_batch(tms_cu_launch *l, const tms_batch *batch) {
    const uint64_t n = batch->n_rows;
    return (cu_batch){
        .tiles = tms_cu_optional(l, "tiles", batch->tiles, sizeof(int32_t), 2ull * batch->n_tiles),
        .row_seq = tms_cu_ref(l, "row_seq", batch->row_seq, sizeof(int32_t), n),
        .visible =
            tms_cu_optional(l, "visible", batch->visible, sizeof(int32_t), n * batch->n_kv_heads),
        .first = tms_cu_optional(l, "first", batch->first, sizeof(int32_t), n * batch->n_kv_heads),
        .table = tms_cu_reached(l, "table", batch->table, sizeof(int32_t), n),
        .seq_stride = batch->seq_stride,
        .head_stride = batch->head_stride,
        .n_rows = batch->n_rows,
        .n_tiles = batch->n_tiles,
        .n_kv_heads = batch->n_kv_heads,
        .group = batch->n_kv_heads ? batch->n_heads / batch->n_kv_heads : 0};
}

cu_matrix tms_cu_matrix(tms_cu_launch *l, const char *what, const tms_matrix *matrix,
                        uint64_t n_rows, uint64_t width) {
    const uint64_t n = tms_rows_extent(n_rows, matrix->stride, width);
    return (cu_matrix){tms_cu_ref(l, what, matrix->ref, sizeof(float), n), matrix->stride};
}

cu_lists tms_cu_lists(tms_cu_launch *l, const tms_lists *lists, uint64_t lanes) {
    const uint64_t n = lists->pages.mem ? lanes : 0;
    return (cu_lists){
        .pages = tms_cu_optional(l, "lists", lists->pages, sizeof(int32_t), n * lists->capacity),
        .count = tms_cu_ref(l, "counts of lists", lists->count, sizeof(int32_t), n),
        .capacity = lists->capacity};
}

cu_logit tms_cu_logit(const tms_logit *rule) {
    return (cu_logit){rule->scale, rule->soft_cap};
}

uint32_t tms_cu_dim_tag(uint32_t head_dim) {
    return CU_DIM_OF(head_dim) ? head_dim : CU_ANY_DIM;
}

const char *tms_cu_key_tag(tamis_dtype dtype) {
    return tamis_dtype_name(tms_key_dtype(dtype));
}

const char *tms_cu_value_tag(tamis_dtype dtype) {
    return tamis_dtype_name(tms_value_dtype(dtype));
}

cu_slots tms_cu_slots(tms_cu_launch *l, const tms_kv *kv, const tms_batch *batch, bool values,
                      uint32_t each, uint64_t *n) {
    const uint32_t blocks = (uint32_t)tms_divide_up(batch->max_visible, each);
    *n = (uint64_t)batch->n_rows * batch->n_kv_heads * blocks;
    return (cu_slots){.kv = tms_cu_kv(l, kv, batch->n_rows),
                      .batch = tms_cu_batch(l, batch),
                      .blocks = blocks ? blocks : 1,
                      .dim = kv->head_dim,
                      .dtype = values ? tms_value_dtype(kv->dtype) : tms_key_dtype(kv->dtype)};
}

uint64_t tms_cu_tickets(tms_cu_launch *l, uint64_t n) {
    if (l->status == TAMIS_OK && n > TMS_CU_TICKETS)
        l->status = tms_device_fail(l->dev, TAMIS_E_UNSUPPORTED,
                                    "%s: %llu rows and heads in one launch: at most %u", l->name,
                                    (unsigned long long)n, TMS_CU_TICKETS);
    return tms_cu(l->dev)->tickets->at;
}

/* ---- Runs ------------------------------------------------------------------------------------ */

static uint64_t at_least_1(uint64_t n) {
    return n ? n : 1;
}

static tamis_status check_grid(tms_cu_launch *l, const tms_cu_grid *grid) {
    if (grid->x > MOST_X || grid->y > MOST_Y_OR_Z || grid->z > MOST_Y_OR_Z)
        return tms_device_fail(l->dev, TAMIS_E_UNSUPPORTED,
                               "%s: a grid of %llu x %llu x %llu blocks: at most %u x %u x %u",
                               l->name, (unsigned long long)grid->x, (unsigned long long)grid->y,
                               (unsigned long long)grid->z, MOST_X, MOST_Y_OR_Z, MOST_Y_OR_Z);
    if (grid->threads == 0 || grid->threads > MOST_THREADS)
        return tms_device_fail(l->dev, TAMIS_E_UNSUPPORTED, "%s: blocks of %u threads: 1 to %u",
                               l->name, grid->threads, MOST_THREADS);
    return TAMIS_OK;
}

static tms_cu_result launch(tms_cu_launch *l, const tms_cu_grid *grid, void **arguments) {
    const tms_cu_device *cu = tms_cu(l->dev);
    tms_cu_launch_attribute early = {.id = TMS_CU_LAUNCH_EARLY, .value.allowed = 1};
    const tms_cu_launch_config c = {
        .grid = {(unsigned)at_least_1(grid->x), (unsigned)at_least_1(grid->y),
                 (unsigned)at_least_1(grid->z)},
        .block = {grid->threads, 1, 1},
        .shared_bytes = grid->shared,
        .stream = cu->stream,
        .attributes = &early,
        .n_attributes = 1,
    };
    if (grid->early) return cu->api->cuLaunchKernelEx(&c, l->function, arguments, NULL);
    return cu->api->cuLaunchKernel(l->function, c.grid[0], c.grid[1], c.grid[2], c.block[0],
                                   c.block[1], c.block[2], c.shared_bytes, c.stream, arguments,
                                   NULL);
}

tamis_status tms_cu_run(tms_cu_launch *l, tms_cu_grid grid, const void *args) {
    /* The driver takes an array of pointers to the arguments (there is one) and only reads them. */
    union {
        const void *from;
        void *to;
    } arg = {args};
    if (l->status == TAMIS_OK) l->status = check_grid(l, &grid);
    if (l->status == TAMIS_OK) l->status = tms_cu_enter(l->dev);
    if (l->status != TAMIS_OK) return l->status;
    if (grid.shared) l->status = tms_cu_function_allow(l->dev, l->function, grid.shared);
    if (l->status == TAMIS_OK && grid.early)
        l->status = tms_cu_function_allow_early(l->dev, l->function);
    l->dev->launches += l->status == TAMIS_OK;
    if (l->status == TAMIS_OK) l->status = tms_cu_check(l->dev, launch(l, &grid, &arg.to), l->name);
    tms_cu_leave(l->dev);
    return l->status;
}

tamis_status tms_cu_run_projected(tms_cu_launch *l, uint64_t n, uint32_t head_dim,
                                  const void *args) {
    const tms_cu_grid grid = {.x = n,
                              .y = 1,
                              .z = 1,
                              .threads = CU_PROJECT_THREADS(CU_PROJECT_SLOTS(head_dim)),
                              .shared = CU_PROJECT_SHARED(head_dim)};
    return tms_cu_run(l, grid, args);
}

tms_cu_grid tms_cu_items(uint64_t n, uint32_t threads) {
    const uint64_t blocks = tms_divide_up(n, threads);
    return (tms_cu_grid){
        .x = blocks < MOST_STRIDED ? blocks : MOST_STRIDED, .y = 1, .z = 1, .threads = threads};
}

/* ---- Forms ----------------------------------------------------------------------------------- */

tamis_status tms_cu_base_only(tms_device *dev, const char *op) {
    if (!tms_form_is_cpu(dev->form)) return TAMIS_OK;
    return tms_device_fail(dev, TAMIS_E_UNSUPPORTED, "%s: no CPU form: the device is not a CPU",
                           op);
}

tamis_status tms_cu_choose(tms_device *dev, const char *op, const char *refusal, bool *matrix) {
    dev->chose = true;
    *matrix = dev->form == TMS_FORM_AUTO && !refusal;
    return tms_cu_base_only(dev, op);
}
