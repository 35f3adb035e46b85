/* SPDX-License-Identifier: Apache-2.0 */
/* linear on OpenCL. Base form: a matrix-vector kernel of our own for few rows; for many rows
 * CLBlast's product if it is installed, else the same kernel on few rows at a time. Form of GPUs: the
 * same with linear_parts' kernel. CPU form: a chain of one stage for few rows, a kernel of our own for
 * many. */
#include "host/opencl/linear.h"
#include "host/base/weights.h"
#include "host/library.h"
#include "host/opencl/clblast.h"

/* Of linear_cpu.cl: outputs and rows of a work-item. */
#define CPU_PANEL     32u
#define CPU_MOST_ROWS 256u

static uint32_t groups_of(uint32_t n, uint32_t size) {
    return n / size + (n % size != 0);
}

static void set_operands(tms_cl_launch *l, const tms_linear *p) {
    tms_cl_matrix(l, &p->x, p->n_rows, p->n_in);
    tms_cl_matrix(l, &p->y, p->n_rows, p->n_out);
    tms_cl_weights(l, &p->w, p->n_rows ? p->n_out : 0, p->n_in);
    tms_cl_optional(l, p->bias, sizeof(cl_float), p->n_out);
    tms_cl_u32(l, p->n_rows);
    tms_cl_u32(l, p->n_in);
    tms_cl_u32(l, p->n_out);
    tms_cl_u32(l, p->accumulate);
}

/* Makes the checks of a kernel's launch, for a product by the library. */
static tamis_status check_operands(tms_device *dev, const tms_linear *p) {
    tms_cl_launch l = {.dev = dev, .name = "linear", .status = dev->sticky};
    set_operands(&l, p);
    return l.status;
}

static tms_linear_parts stage_of(const tms_linear *p) {
    return (tms_linear_parts){.x = p->x,
                              .parts = {{p->w, p->bias, p->y, p->n_out}},
                              .n_parts = 1,
                              .n_rows = p->n_rows,
                              .n_in = p->n_in,
                              .accumulate = p->accumulate,
                              .build_rows = p->build_rows};
}

static tamis_status run_cpu_few(tms_device *dev, const tms_linear *p) {
    const tms_linear_parts stage = stage_of(p);
    return tms_cl_run_stage(dev, &stage);
}

static tamis_status run_cpu_many(tms_device *dev, const tms_linear *p) {
    const uint32_t kind = tms_cl_kind(&p->w);
    const tms_cl_kinds kinds = {{kind, kind, kind}};
    tms_cl_launch l = tms_cl_begin_weights(dev, "linear_cpu.cl", "linear_many", &kinds, 1, false);
    set_operands(&l, p);
    /* Drivers give cores runs of work-items, the first dimension fastest: the last rows, fewer than those
     * before, are then not all of one core's. */
    return tms_cl_run_groups(&l, 1, groups_of(p->n_rows, CPU_MOST_ROWS),
                             groups_of(p->n_out, CPU_PANEL));
}

static tamis_status run_cpu(tms_device *dev, const tms_linear *p) {
    tamis_status status = TAMIS_OK;
    if (tms_takes_rows(p->n_rows, p->build_rows, 1, TMS_FEW_ROWS)) status = run_cpu_few(dev, p);
    if (status == TAMIS_OK &&
        tms_takes_rows(p->n_rows, p->build_rows, TMS_FEW_ROWS + 1, UINT32_MAX))
        status = run_cpu_many(dev, p);
    return status;
}

/* Few rows; without rows the kernel for `rows`, 1 or TMS_FEW_ROWS, is built. */
static tamis_status run_vector(tms_device *dev, const tms_linear *p, uint32_t rows) {
    if (tms_cl_takes_gpu_form(dev)) {
        tms_linear_parts stage = stage_of(p);
        stage.build_rows = rows;
        return tms_cl_run_parts(dev, &stage);
    }
    tms_cl_launch l =
        tms_cl_begin(dev, "linear.cl", "linear_rows", "-DWEIGHT=%d -DROWS=%u", p->w.type, rows);
    set_operands(&l, p);
    return tms_cl_run_groups(&l, TMS_CL_WG_SIZE, p->n_out < 32768 ? p->n_out : 32768, 1);
}

/* Processes rows in passes, each of which reads all weights. */
static tamis_status run_passes(tms_device *dev, const tms_linear *p) {
    tamis_status status = check_operands(dev, p);
    for (uint64_t first = 0; first < p->n_rows && status == TAMIS_OK; first += TMS_FEW_ROWS) {
        const uint64_t rest = p->n_rows - first;
        tms_linear pass = *p;
        pass.x.ref.offset += first * p->x.stride * sizeof(float);
        pass.y.ref.offset += first * p->y.stride * sizeof(float);
        pass.n_rows = rest < TMS_FEW_ROWS ? (uint32_t)rest : TMS_FEW_ROWS;
        status = run_vector(dev, &pass, pass.n_rows == 1 ? 1 : TMS_FEW_ROWS);
    }
    return status;
}

/* ---- Products of CLBlast --------------------------------------------------------------------- */

static tamis_status widen(tms_device *dev, tms_weight_matrix w, uint64_t n_out, uint64_t n_in,
                          tms_ref wide) {
    tms_cl_launch l =
        tms_cl_begin(dev, "linear.cl", "widen", "-DWEIGHT=%u -DLANES=4 -DROWS=1", tms_cl_kind(&w));
    tms_cl_weights(&l, &w, n_out, n_in);
    tms_cl_ref(&l, wide, sizeof(cl_float), n_out * n_in);
    tms_cl_u32(&l, (uint32_t)n_out);
    tms_cl_u32(&l, (uint32_t)n_in);
    return tms_cl_run_items(&l, (n_out * n_in + 15) / 16);
}

/* Sets y to the bias, or adds the bias to y, before the product is added. */
static tamis_status start(tms_device *dev, const tms_linear *p) {
    tms_cl_launch l = tms_cl_begin(dev, "linear.cl", "start", "-DWEIGHT=0 -DROWS=1");
    tms_cl_matrix(&l, &p->y, p->n_rows, p->n_out);
    tms_cl_ref(&l, p->bias, sizeof(cl_float), p->n_out);
    tms_cl_u32(&l, p->n_rows);
    tms_cl_u32(&l, p->n_out);
    tms_cl_u32(&l, p->accumulate);
    return tms_cl_run_items(&l, (uint64_t)p->n_rows * p->n_out);
}

static tamis_status multiply(tms_device *dev, const tms_linear *p, tms_ref w, uint32_t first,
                             uint32_t n, float keep) {
    const int code = tms_clblast_get(NULL, 0)->CLBlastSgemm(
        TMS_CLBLAST_ROW_MAJOR, TMS_CLBLAST_AS_IS, TMS_CLBLAST_TRANSPOSED, p->n_rows, n, p->n_in,
        1.0f, p->x.ref.mem->cl, tms_cl_at(p->x.ref) / sizeof(float), p->x.stride, w.mem->cl,
        tms_cl_at(w) / sizeof(float), p->n_in, keep, p->y.ref.mem->cl,
        tms_cl_at(p->y.ref) / sizeof(float) + first, p->y.stride, &tms_cl(dev)->queue, NULL);
    if (code == TMS_CLBLAST_SUCCESS) return TAMIS_OK;
    return tms_device_fail(dev, TAMIS_E_DEVICE,
                           "linear: CLBlast's product of %u x %u x %u: error %d", p->n_rows, n,
                           p->n_in, code);
}

static const tms_product by_clblast = {.widen = widen, .start = start, .multiply = multiply};

/* Whether CLBlast can be used. It is opened at the first linear that may need it; a device logs
 * once which product it uses. */
static bool has_library(tms_device *dev) {
    tms_cl_device *cl = tms_cl(dev);
    char reason[256] = "";
    const tms_clblast *api = tms_clblast_get(reason, sizeof reason);
    if (!cl->clblast_sought && api->library)
        tms_log_line(&dev->log, TAMIS_LOG_DEBUG, "linear: CLBlast %s",
                     tms_library_file(api->library));
    else if (!cl->clblast_sought)
        tms_log_line(&dev->log, TAMIS_LOG_INFO,
                     "linear: no CLBlast: more than %d rows go %d at a time: %s", TMS_FEW_ROWS,
                     TMS_FEW_ROWS, reason);
    cl->clblast_sought = true;
    return api->library;
}

static tamis_status run_library(tms_device *dev, const tms_linear *p) {
    tamis_status status = check_operands(dev, p);
    return status == TAMIS_OK ? tms_product_run(dev, &by_clblast, &tms_cl(dev)->product, p)
                              : status;
}

/* Builds the kernels that launches of this shape need; without a library many rows take those for
 * few. */
static tamis_status prepare(tms_device *dev, const tms_linear *p) {
    const bool many = tms_takes_rows(0, p->build_rows, TMS_FEW_ROWS + 1, UINT32_MAX);
    const bool library = many && has_library(dev), passes = many && !library;
    tamis_status status = TAMIS_OK;
    if (passes || tms_takes_rows(0, p->build_rows, 1, 1)) status = run_vector(dev, p, 1);
    if (status == TAMIS_OK && (passes || tms_takes_rows(0, p->build_rows, 2, TMS_FEW_ROWS)))
        status = run_vector(dev, p, TMS_FEW_ROWS);
    if (status != TAMIS_OK || !library) return status;
    return tms_product_prepare(dev, &by_clblast, &tms_cl(dev)->product, p);
}

tamis_status tms_cl_linear(tms_device *dev, const tms_linear *p) {
    bool cpu;
    tamis_status status = tms_cl_choose_product(dev, "linear", &p->w, &cpu);
    if (status != TAMIS_OK) return status;
    if (cpu) return run_cpu(dev, p);
    if (p->n_rows == 0) return prepare(dev, p);
    if (p->n_rows <= TMS_FEW_ROWS) return run_vector(dev, p, p->n_rows == 1 ? 1 : TMS_FEW_ROWS);
    return has_library(dev) ? run_library(dev, p) : run_passes(dev, p);
}

tamis_weight_layout tms_cl_weight_layout(tms_device *dev, tamis_weight_type type) {
    const bool cpu = tms_form_is_cpu(dev->form) || (dev->form == TMS_FORM_AUTO && !dev->base_only);
    const bool reads = cpu || tms_cl_takes_gpu_form(dev);
    return reads && tms_weight_layout_fits(TAMIS_WEIGHT_STRIPS, type) ? TAMIS_WEIGHT_STRIPS
                                                                      : TAMIS_WEIGHT_ROWS;
}
