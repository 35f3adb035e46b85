/* SPDX-License-Identifier: Apache-2.0 */
/* linear on OpenCL. Base form: own matrix-vector kernel for few rows, CLBlast's product for many.
 * CPU form: own kernels for both. */
#include "host/opencl/opencl.h"
#include <clblast_c.h>

/* Weights are widened for CLBlast in pieces of at most this many elements. */
#define MOST_WIDE_ELEMENTS (16u << 20)
/* Rows of the product that is computed when a plan is built, so that CLBlast compiles then. */
#define WARM_ROWS 16u

/* Of linear_cpu.cl: outputs of a work-item with few rows, outputs and rows of one with many. */
#define CPU_RUN       16u
#define CPU_PANEL     32u
#define CPU_MOST_ROWS 256u

static uint32_t groups_of(uint32_t n, uint32_t size) {
    return n / size + (n % size != 0);
}

static void set_operands(tms_cl_launch *l, const tms_linear *p) {
    uint64_t n = p->n_rows ? (uint64_t)p->n_out * p->n_in : 0;
    tms_cl_matrix(l, &p->x, p->n_rows, p->n_in);
    tms_cl_matrix(l, &p->y, p->n_rows, p->n_out);
    tms_cl_ref(l, p->w, tamis_dtype_size(p->dtype), n);
    tms_cl_optional(l, p->bias, sizeof(cl_float), p->n_out);
    tms_cl_u32(l, p->n_rows);
    tms_cl_u32(l, p->n_in);
    tms_cl_u32(l, p->n_out);
    tms_cl_u32(l, p->accumulate);
}

/* What a kernel's launch would check, for a product by the library. */
static tamis_status check_operands(tms_device *dev, const tms_linear *p) {
    tms_cl_launch l = {.dev = dev, .name = "linear", .status = dev->sticky};
    set_operands(&l, p);
    return l.status;
}

/* `rows`: of the kernel, 1 or TMS_FEW_ROWS. */
static tamis_status run_cpu_few(tms_device *dev, const tms_linear *p, uint32_t rows) {
    tms_cl_launch l =
        tms_cl_begin(dev, "linear_cpu.cl", "linear_few", "-DDTYPE=%d -DROWS=%u", p->dtype, rows);
    set_operands(&l, p);
    return tms_cl_run_groups(&l, 1, groups_of(p->n_out, CPU_RUN), 1);
}

static tamis_status run_cpu_many(tms_device *dev, const tms_linear *p) {
    tms_cl_launch l =
        tms_cl_begin(dev, "linear_cpu.cl", "linear_many", "-DDTYPE=%d -DROWS=1", p->dtype);
    set_operands(&l, p);
    return tms_cl_run_groups(&l, 1, groups_of(p->n_out, CPU_PANEL),
                             groups_of(p->n_rows, CPU_MOST_ROWS));
}

/* No rows: all three kernels, empty. */
static tamis_status run_cpu(tms_device *dev, const tms_linear *p) {
    if (p->n_rows > TMS_FEW_ROWS) return run_cpu_many(dev, p);
    if (p->n_rows) return run_cpu_few(dev, p, p->n_rows == 1 ? 1 : TMS_FEW_ROWS);
    tamis_status status = run_cpu_few(dev, p, 1);
    if (status == TAMIS_OK) status = run_cpu_few(dev, p, TMS_FEW_ROWS);
    return status == TAMIS_OK ? run_cpu_many(dev, p) : status;
}

static tamis_status run_vector(tms_device *dev, const tms_linear *p, uint32_t rows) {
    tms_cl_launch l =
        tms_cl_begin(dev, "linear.cl", "linear_rows", "-DDTYPE=%d -DROWS=%u", p->dtype, rows);
    set_operands(&l, p);
    return tms_cl_run_groups(&l, TMS_CL_LANES, p->n_out < 32768 ? p->n_out : 32768, 1);
}

/* Makes the device's workspace hold `elements` f32. What is enqueued keeps the old one. */
static tamis_status reserve(tms_device *dev, uint64_t elements) {
    tms_cl_device *cl = tms_cl(dev);
    if (cl->product && cl->product->bytes >= elements * sizeof(float)) return TAMIS_OK;
    tms_mem *grown;
    tamis_status status = tms_cl_alloc(dev, elements * sizeof(float), &grown);
    if (status != TAMIS_OK) return status;
    tms_cl_free(dev, cl->product);
    cl->product = grown;
    return TAMIS_OK;
}

static tamis_status widen(tms_device *dev, tms_ref w, tamis_dtype dtype, uint32_t n, tms_ref wide) {
    tms_cl_launch l = tms_cl_begin(dev, "linear.cl", "widen", "-DDTYPE=%d -DROWS=1", dtype);
    tms_cl_ref(&l, w, tamis_dtype_size(dtype), n);
    tms_cl_ref(&l, wide, sizeof(cl_float), n);
    tms_cl_u32(&l, n);
    return tms_cl_run_items(&l, (n + 15) / 16);
}

/* y starts as what the product is added to, if that is not nothing. */
static tamis_status start(tms_device *dev, const tms_linear *p) {
    tms_cl_launch l = tms_cl_begin(dev, "linear.cl", "start", "-DDTYPE=0 -DROWS=1");
    tms_cl_matrix(&l, &p->y, p->n_rows, p->n_out);
    tms_cl_ref(&l, p->bias, sizeof(cl_float), p->n_out);
    tms_cl_u32(&l, p->n_rows);
    tms_cl_u32(&l, p->n_out);
    tms_cl_u32(&l, p->accumulate);
    return tms_cl_run_items(&l, (uint64_t)p->n_rows * p->n_out);
}

/* y[:, first .. first + n) (+)= x · w[first .. first + n)ᵀ, with w in f32 from `w` on. */
static tamis_status product(tms_device *dev, const tms_linear *p, tms_ref w, uint32_t first,
                            uint32_t n, float keep) {
    cl_command_queue queue = tms_cl(dev)->queue;
    CLBlastStatusCode code =
        CLBlastSgemm(CLBlastLayoutRowMajor, CLBlastTransposeNo, CLBlastTransposeYes, p->n_rows, n,
                     p->n_in, 1.0f, p->x.ref.mem->cl, p->x.ref.offset / sizeof(float), p->x.stride,
                     w.mem->cl, w.offset / sizeof(float), p->n_in, keep, p->y.ref.mem->cl,
                     p->y.ref.offset / sizeof(float) + first, p->y.stride, &queue, NULL);
    if (code == CLBlastSuccess) return TAMIS_OK;
    return tms_device_fail(dev, TAMIS_E_DEVICE,
                           "linear: CLBlast's product of %u x %u x %u: error %d", p->n_rows, n,
                           p->n_in, (int)code);
}

static uint32_t outputs_a_piece(const tms_linear *p) {
    uint32_t most = MOST_WIDE_ELEMENTS / p->n_in;
    return most == 0 ? 1 : most < p->n_out ? most : p->n_out;
}

static tamis_status run_matrix(tms_device *dev, const tms_linear *p) {
    bool wide = p->dtype == TAMIS_F32;
    uint32_t most = wide ? p->n_out : outputs_a_piece(p);
    float keep = p->accumulate || p->bias.mem ? 1.0f : 0.0f;
    tamis_status status = check_operands(dev, p);
    if (status == TAMIS_OK && !wide) status = reserve(dev, (uint64_t)most * p->n_in);
    if (status == TAMIS_OK && p->bias.mem) status = start(dev, p);
    for (uint32_t first = 0; first < p->n_out && status == TAMIS_OK; first += most) {
        uint32_t n = p->n_out - first < most ? p->n_out - first : most;
        tms_ref w = p->w;
        w.offset += (uint64_t)first * p->n_in * tamis_dtype_size(p->dtype);
        if (!wide) {
            tms_ref from = w;
            w = (tms_ref){tms_cl(dev)->product, 0};
            status = widen(dev, from, p->dtype, n * p->n_in, w);
        }
        if (status == TAMIS_OK) status = product(dev, p, w, first, n, keep);
    }
    return status;
}

/* Builds what launches of this shape need, by a product of zeros in the workspace. */
static tamis_status prepare(tms_device *dev, const tms_linear *p) {
    uint64_t piece = (uint64_t)outputs_a_piece(p) * p->n_in, side = p->n_in + (uint64_t)p->n_out;
    tamis_status status = run_vector(dev, p, 1);
    if (status == TAMIS_OK) status = run_vector(dev, p, TMS_FEW_ROWS);
    if (status == TAMIS_OK) status = reserve(dev, piece + WARM_ROWS * side);
    if (status != TAMIS_OK) return status;
    tms_ref at = {tms_cl(dev)->product, 0};
    status = tms_cl_fill(dev, at, 0, (piece + WARM_ROWS * side) * sizeof(float));
    tms_linear warm = {
        .x = {{at.mem, piece * sizeof(float)}, p->n_in},
        .y = {{at.mem, (piece + WARM_ROWS * (uint64_t)p->n_in) * sizeof(float)}, p->n_out},
        .w = at,
        .bias = {at.mem, 0},
        .dtype = TAMIS_F32,
        .n_rows = WARM_ROWS,
        .n_in = p->n_in,
        .n_out = outputs_a_piece(p)};
    if (status == TAMIS_OK && p->dtype != TAMIS_F32) status = widen(dev, at, p->dtype, 0, at);
    return status == TAMIS_OK ? run_matrix(dev, &warm) : status;
}

tamis_status tms_cl_linear(tms_device *dev, const tms_linear *p) {
    bool cpu;
    tamis_status status = tms_cl_choose(dev, "linear", NULL, &cpu);
    if (status != TAMIS_OK) return status;
    if (cpu) return run_cpu(dev, p);
    if (p->n_rows == 0) return prepare(dev, p);
    if (p->n_rows <= TMS_FEW_ROWS) return run_vector(dev, p, p->n_rows == 1 ? 1 : TMS_FEW_ROWS);
    return run_matrix(dev, p);
}
