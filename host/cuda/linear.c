/* SPDX-License-Identifier: Apache-2.0 */
/* linear on CUDA: for few rows matrix-vector kernels of our own; up to CU_LINEAR_MMA_ROWS rows
 * kernels of our own on matrix units, for weights of 16 bits; for more rows cuBLAS if it is
 * installed, else a tiled product of our own. */
#include "host/cuda/cuda.h"
#include "host/library.h"
#include <limits.h>

/* The workspace that cuBLAS needs on large devices (its manual, cublasSetWorkspace). It is given
 * once, so that a launch allocates nothing and can be captured. */
#define CUBLAS_WORKSPACE (32u << 20)
/* Most blocks of a grid along y. */
#define MOST_Y 65535u
/* Alignment in bytes of rows for the form on matrix units. */
#define MMA_ALIGNMENT 16u
/* Blocks of that form that an H200 runs at once, and the most blocks if inputs are divided. */
#define WAVE_BLOCKS 132u
#define MOST_BLOCKS (3u * WAVE_BLOCKS)
#define SHARES_BYTES                                                                               \
    ((uint64_t)MOST_BLOCKS * CU_LINEAR_MMA_OUTPUTS * CU_LINEAR_MMA_ROWS * sizeof(float))

/* ---- cuBLAS ---------------------------------------------------------------------------------- */

static const tms_cublas *cublas(void) {
    return tms_cublas_get(NULL, 0);
}

/* Status of cuBLAS. */
static tms_cu_result set_up(tms_cu_device *cu, const tms_cublas *api) {
    const tms_mem *workspace = cu->cublas_workspace;
    tms_cu_result result = api->cublasSetStream_v2(cu->cublas, cu->stream);
    if (result == TMS_CUBLAS_SUCCESS) /* after setting the stream, which resets the workspace */
        result = api->cublasSetWorkspace_v2(cu->cublas, (void *)(uintptr_t)workspace->at,
                                            workspace->bytes);
    if (result == TMS_CUBLAS_SUCCESS)
        result = api->cublasSetMathMode(cu->cublas, TMS_CUBLAS_PEDANTIC);
    return result;
}

static void close_library(tms_device *dev) {
    tms_cu_device *cu = tms_cu(dev);
    if (cu->cublas && tms_cu_enter(dev) == TAMIS_OK) {
        cublas()->cublasDestroy_v2(cu->cublas);
        tms_cu_leave(dev);
    }
    cu->cublas = NULL;
    tms_cu_free(dev, cu->cublas_workspace);
    cu->cublas_workspace = NULL;
    tms_cu_free(dev, cu->product.mem);
    cu->product = (tms_workspace){0};
}

/* Called within the device's context. If the library is found but does not start, a warning is
 * logged, and our own product is used. */
static tamis_status start_library(tms_device *dev, const tms_cublas *api) {
    tms_cu_device *cu = tms_cu(dev);
    tamis_status status = tms_cu_alloc(dev, CUBLAS_WORKSPACE, &cu->cublas_workspace);
    if (status != TAMIS_OK) return status;
    tms_cu_result result = api->cublasCreate_v2(&cu->cublas);
    if (result != TMS_CUBLAS_SUCCESS) cu->cublas = NULL;
    if (result == TMS_CUBLAS_SUCCESS) result = set_up(cu, api);
    if (result == TMS_CUBLAS_SUCCESS) {
        tms_log_line(&dev->log, TAMIS_LOG_DEBUG, "linear: cuBLAS %s",
                     tms_library_file(api->library));
        return TAMIS_OK;
    }
    close_library(dev);
    tms_log_line(&dev->log, TAMIS_LOG_WARN,
                 "linear: own kernels: cuBLAS %s does not start: error %d",
                 tms_library_file(api->library), result);
    return TAMIS_OK;
}

/* Starts the library once per device, at the first linear that may need it, since it costs memory
 * and time. */
static tamis_status seek_library(tms_device *dev) {
    tms_cu_device *cu = tms_cu(dev);
    char reason[256] = "";
    if (cu->cublas_sought) return TAMIS_OK;
    const tms_cublas *api = tms_cublas_get(reason, sizeof reason);
    tamis_status status = TAMIS_OK;
    if (!api->library) {
        tms_log_line(&dev->log, TAMIS_LOG_DEBUG, "linear: own kernels: %s", reason);
    } else {
        status = tms_cu_enter(dev);
        if (status != TAMIS_OK) return status;
        status = start_library(dev, api);
        tms_cu_leave(dev);
    }
    cu->cublas_sought = status == TAMIS_OK;
    return status;
}

void tms_cu_linear_close(tms_device *dev) {
    close_library(dev);
    tms_cu_free(dev, tms_cu(dev)->shares);
    tms_cu(dev)->shares = NULL;
}

/* ---- Own kernels ----------------------------------------------------------------------------- */

static cu_linear_args operands(tms_cu_launch *l, const tms_linear *p) {
    return (cu_linear_args){
        .x = tms_cu_matrix(l, "x", &p->x, p->n_rows, p->n_in),
        .y = tms_cu_matrix(l, "y", &p->y, p->n_rows, p->n_out),
        .w = tms_cu_weights(l, &p->w, p->n_rows ? p->n_out : 0, p->n_in),
        .bias = tms_cu_optional(l, "bias", p->bias, sizeof(float), p->n_out),
        .n_rows = p->n_rows,
        .n_in = p->n_in,
        .n_out = p->n_out,
        .accumulate = p->accumulate,
    };
}

/* The rows of the smallest kernel for `n` rows; there is one for each power of two up to
 * TMS_FEW_ROWS. */
static unsigned few_rows(uint32_t n) {
    unsigned rows = 1;
    while (rows < n)
        rows *= 2;
    return rows;
}

/* `rows`: of the kernel. */
static tamis_status run_few(tms_device *dev, const tms_linear *p, unsigned rows) {
    tms_cu_launch l =
        tms_cu_begin(dev, "linear", "linear_rows_%s_r%u", tamis_weight_name(p->w.type), rows);
    cu_linear_args args = operands(&l, p);
    tms_cu_grid grid = {.x = tms_divide_up(p->n_out, CU_LINEAR_RUN),
                        .threads = CU_LINEAR_FEW_THREADS};
    if (p->n_rows == 0) grid.x = 0;
    return tms_cu_run(&l, grid, &args);
}

static tamis_status run_tiles(tms_device *dev, const tms_linear *p) {
    tms_cu_launch l = tms_cu_begin(dev, "linear", "linear_tile_%s", tamis_weight_name(p->w.type));
    cu_linear_args args = operands(&l, p);
    tms_cu_grid grid = {.x = tms_divide_up(p->n_out, CU_LINEAR_TILE),
                        .y = tms_divide_up(p->n_rows, CU_LINEAR_TILE),
                        .threads = CU_LINEAR_TILE_THREADS};
    if (p->n_rows == 0) grid.x = 0;
    return tms_cu_run(&l, grid, &args);
}

/* Sets y to the bias, or adds the bias to y, before the product is added. */
static tamis_status start(tms_device *dev, const tms_linear *p) {
    tms_cu_launch l = tms_cu_begin(dev, "linear", "linear_start");
    cu_linear_args args = operands(&l, p);
    tms_cu_grid grid = {.x = tms_divide_up(p->n_out, CU_LINEAR_ITEM_THREADS),
                        .y = p->n_rows < MOST_Y ? p->n_rows : MOST_Y,
                        .threads = CU_LINEAR_ITEM_THREADS};
    return tms_cu_run(&l, grid, &args);
}

static tamis_status widen(tms_device *dev, tms_weight_matrix w, uint64_t n_out, uint64_t n_in,
                          tms_ref wide) {
    const uint64_t n = n_out * n_in;
    tms_cu_launch l = tms_cu_begin(dev, "linear", "linear_widen_%s", tamis_weight_name(w.type));
    cu_widen_args args = {.from = tms_cu_weights(&l, &w, 1, n),
                          .to = tms_cu_ref(&l, "wide", wide, sizeof(float), n),
                          .n = n};
    return tms_cu_run(&l, tms_cu_items(n / 8, CU_LINEAR_ITEM_THREADS), &args);
}

/* ---- Own kernels on matrix units ------------------------------------------------------------- */

static bool aligned(const tms_ref *ref) {
    return !ref->mem || (ref->mem->at + ref->offset) % MMA_ALIGNMENT == 0;
}

/* Why the form does not take a case; NULL: it does. */
static const char *matrix_refusal(tms_device *dev, const tms_linear *p) {
    if (p->w.type != TAMIS_WEIGHT_F16 && p->w.type != TAMIS_WEIGHT_BF16)
        return "the weights are not of 16 bits";
    if (p->n_rows > CU_LINEAR_MMA_ROWS) return "there are more than 32 rows";
    if (p->n_in % 8) return "the inputs are no multiple of 8";
    if (!aligned(&p->w.ref) || !aligned(&p->x.ref) || (p->n_rows > 1 && p->x.stride % 4))
        return "rows do not begin at multiples of 16 bytes";
    if (tms_cu(dev)->max_shared < CU_LINEAR_MMA_SHARED(CU_LINEAR_MMA_ROWS))
        return "the sums do not fit a block's shared memory";
    return NULL;
}

/* The number of blocks among which the inputs of an output are divided. The time of n blocks is
 * estimated in stages over all waves of blocks; writing partial sums costs about one stage, adding
 * each a quarter. The number depends only on the matrix's sizes, and so do the bits of the sums. */
static uint32_t ranges_of(const tms_linear *p) {
    const uint64_t outputs = tms_divide_up(p->n_out, CU_LINEAR_MMA_OUTPUTS);
    const uint64_t stages = tms_divide_up(p->n_in, CU_LINEAR_MMA_STAGE);
    uint64_t best = 1, least = UINT64_MAX;
    for (uint64_t n = 1; n <= stages && (n == 1 || outputs * n <= MOST_BLOCKS); n++) {
        const uint64_t waves = tms_divide_up(outputs * n, WAVE_BLOCKS);
        const uint64_t time = 4 * waves * (tms_divide_up(stages, n) + (n > 1)) + n;
        if (time < least) {
            least = time;
            best = n;
        }
    }
    return (uint32_t)tms_divide_up(stages, tms_divide_up(stages, best));
}

/* Allocates the memory of partial sums for any launch, once, since a recorded graph may use it. */
static tamis_status take_shares(tms_device *dev) {
    tms_cu_device *cu = tms_cu(dev);
    return cu->shares ? TAMIS_OK : tms_cu_alloc(dev, SHARES_BYTES, &cu->shares);
}

/* `rows`: of the kernel, 16 or 32. */
static tamis_status run_matrix(tms_device *dev, const tms_linear *p, unsigned rows) {
    const uint64_t blocks = tms_divide_up(p->n_out, CU_LINEAR_MMA_OUTPUTS);
    const uint64_t stages = tms_divide_up(p->n_in, CU_LINEAR_MMA_STAGE), ranges = ranges_of(p);
    tamis_status status = ranges > 1 ? take_shares(dev) : TAMIS_OK;
    if (status != TAMIS_OK) return status;
    tms_cu_launch l =
        tms_cu_begin(dev, "linear_mma", "linear_mma_%s_r%u", tamis_weight_name(p->w.type), rows);
    cu_linear_mma_args args = {.linear = operands(&l, p),
                               .range =
                                   (uint32_t)tms_divide_up(stages, ranges) * CU_LINEAR_MMA_STAGE};
    tms_cu_grid grid = {.threads = CU_LINEAR_MMA_THREADS, .shared = CU_LINEAR_MMA_SHARED(rows)};
    if (p->n_rows) {
        grid.x = blocks;
        grid.y = ranges;
    }
    if (ranges > 1) {
        const tms_ref shares = {tms_cu(dev)->shares, 0};
        args.states = tms_cu_ref(&l, "shares", shares, sizeof(float),
                                 ranges * p->n_rows * (uint64_t)p->n_out);
        args.tickets = tms_cu_tickets(&l, blocks);
    }
    return tms_cu_run(&l, grid, &args);
}

/* Prepares launches of this shape with any number of rows that the form takes. */
static tamis_status prepare_matrix(tms_device *dev, const tms_linear *p) {
    tamis_status status = TAMIS_OK;
    for (unsigned rows = 16; rows <= CU_LINEAR_MMA_ROWS && status == TAMIS_OK; rows *= 2)
        status = run_matrix(dev, p, rows);
    return status;
}

/* ---- Products of cuBLAS ---------------------------------------------------------------------- */

/* Whether the library takes the sizes, which must fit an int. */
static bool library_takes(tms_device *dev, const tms_linear *p) {
    return tms_cu(dev)->cublas && p->n_rows <= INT_MAX && p->n_in <= INT_MAX &&
           p->n_out <= INT_MAX && p->x.stride <= INT_MAX && p->y.stride <= INT_MAX;
}

static const float *address_of(tms_ref ref) {
    return (const float *)(uintptr_t)(ref.mem->at + ref.offset);
}

/* The library's matrices are column-major, so it computes yᵀ = w · xᵀ. */
static tamis_status multiply(tms_device *dev, const tms_linear *p, tms_ref w, uint32_t first,
                             uint32_t n, float keep) {
    const float one = 1.0f;
    tamis_status status = tms_cu_enter(dev);
    if (status != TAMIS_OK) return status;
    tms_cu_result result = cublas()->cublasSgemm_v2(
        tms_cu(dev)->cublas, TMS_CUBLAS_OP_T, TMS_CUBLAS_OP_N, (int)n, (int)p->n_rows, (int)p->n_in,
        &one, address_of(w), (int)p->n_in, address_of(p->x.ref), (int)p->x.stride, &keep,
        (float *)address_of(p->y.ref) + first, (int)p->y.stride);
    tms_cu_leave(dev);
    if (result == TMS_CUBLAS_SUCCESS) return TAMIS_OK;
    return tms_device_fail(dev, TAMIS_E_DEVICE,
                           "linear: cuBLAS's product of %u x %u x %u: error %d", p->n_rows, n,
                           p->n_in, result);
}

static const tms_product by_cublas = {.widen = widen, .start = start, .multiply = multiply};

/* Makes the checks of a kernel's launch, then the product by the library. */
static tamis_status run_library(tms_device *dev, const tms_linear *p) {
    tms_cu_launch l = {.dev = dev, .name = "linear", .status = dev->sticky};
    operands(&l, p);
    if (l.status != TAMIS_OK) return l.status;
    return tms_product_run(dev, &by_cublas, &tms_cu(dev)->product, p);
}

/* Without rows: launches every kernel that launches of this shape may need. */
static tamis_status prepare(tms_device *dev, const tms_linear *p, bool matrix) {
    tamis_status status = TAMIS_OK;
    for (unsigned rows = 1; rows <= TMS_FEW_ROWS && status == TAMIS_OK; rows *= 2)
        status = run_few(dev, p, rows);
    if (status == TAMIS_OK && matrix) status = prepare_matrix(dev, p);
    if (status == TAMIS_OK) status = run_tiles(dev, p);
    if (status != TAMIS_OK || !library_takes(dev, p)) return status;
    return tms_product_prepare(dev, &by_cublas, &tms_cu(dev)->product, p);
}

tamis_status tms_cu_linear(tms_device *dev, const tms_linear *p) {
    const char *refusal = matrix_refusal(dev, p);
    bool matrix;
    tamis_status status = tms_cu_choose(dev, "linear", refusal, &matrix);
    if (status != TAMIS_OK) return status;
    if (p->n_rows > 0 && p->n_rows <= TMS_FEW_ROWS) return run_few(dev, p, few_rows(p->n_rows));
    if (p->n_rows > 0 && matrix) return run_matrix(dev, p, p->n_rows <= 16 ? 16 : 32);
    status = seek_library(dev);
    if (status != TAMIS_OK) return status;
    if (p->n_rows == 0) return prepare(dev, p, matrix);
    return library_takes(dev, p) ? run_library(dev, p) : run_tiles(dev, p);
}
