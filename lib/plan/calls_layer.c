/* SPDX-License-Identifier: Apache-2.0 */
/* The calls on a layer of the open step: writing its rows, attending all pages or the selected
 * ones. */
#include "lib/plan/plan.h"

#include <inttypes.h>

/* ---- Write ------------------------------------------------------------------------------------ */

tamis_status tms_plan_check_layer(const tamis_plan *plan, uint32_t layer, tamis_error *error) {
    TMS_REQUIRE(plan, TAMIS_E_ARGUMENT, "plan is NULL");
    TMS_REQUIRE(plan->step.open, TAMIS_E_STATE, "the plan has no open step");
    TMS_REQUIRE(!plan->step.unsent, TAMIS_E_STATE,
                "the call that narrowed the step failed: it must be repeated");
    TMS_REQUIRE(layer < plan->setup.cache->params.n_layers, TAMIS_E_ARGUMENT,
                "layer %" PRIu32 " is not below %" PRIu32, layer,
                plan->setup.cache->params.n_layers);
    return TAMIS_OK;
}

static tamis_status check_write(const tamis_plan *plan, const tamis_rows *k, const tamis_rows *v,
                                tms_write_rows *write, tamis_error *error) {
    const tamis_cache_params *p = &plan->setup.cache->params;
    const tamis_context *context = plan->setup.cache->context;
    uint64_t width = (uint64_t)p->n_kv_heads * p->head_dim;
    TMS_TRY(tms_rows_check(context, k, "k", plan->step.n_rows, width, &write->k_stride, error));
    TMS_TRY(tms_rows_check(context, v, "v", plan->step.n_rows, width, &write->v_stride, error));
    TMS_REQUIRE(k->dtype == v->dtype, TAMIS_E_ARGUMENT, "k is %s but v is %s",
                tamis_dtype_name(k->dtype), tamis_dtype_name(v->dtype));
    TMS_REQUIRE(k->dtype == TAMIS_F32 || k->dtype == p->dtype, TAMIS_E_ARGUMENT,
                "k and v are %s; a cache of %s takes %s", tamis_dtype_name(k->dtype),
                tamis_dtype_name(p->dtype), tms_dtype_of_rows(p->dtype) ? "that or f32" : "f32");
    write->k = (tms_ref){k->buffer->mem, k->offset};
    write->v = (tms_ref){v->buffer->mem, v->offset};
    write->dtype = k->dtype;
    return TAMIS_OK;
}

static void count_written(tamis_plan *plan, uint32_t layer) {
    plan->step.layers[layer].begun = plan->step.layers[layer].written = true;
    plan->step.layers[layer].fed |= plan->setup.needs.feed == TMS_FEED_KEYS;
    plan->counters.rows_written += plan->step.n_rows;
    plan->counters.pages_bounded += plan->step.layers[layer].n_filled;
    plan->counters.tokens_replaced += plan->step.layers[layer].n_staying;
}

/* Rows of a step in turns are written and attended one after another. */
static tamis_status check_at_once(const tamis_plan *plan, tamis_error *error) {
    TMS_REQUIRE(!plan || !plan->step.open || !plan->step.in_turns, TAMIS_E_STATE,
                "the step has several rows of a sequence under %s: its layers take "
                "tamis_plan_write_attend",
                plan->setup.needs.entry->name);
    return TAMIS_OK;
}

/* A layer that may be written now. */
static tamis_status check_unwritten(const tamis_plan *plan, uint32_t layer, tamis_error *error) {
    uint32_t row = 0;
    const char *lacks = NULL;
    TMS_TRY(tms_plan_check_layer(plan, layer, error));
    TMS_TRY(tms_view_refuse(plan->setup.cache, "writing K and V", error));
    TMS_REQUIRE(!plan->step.layers[layer].written, TAMIS_E_STATE,
                "layer %" PRIu32 " has been written in this step already", layer);
    TMS_REQUIRE(!plan->step.layers[layer].attended, TAMIS_E_STATE,
                "layer %" PRIu32 " has been attended in this step already, by loaded rows", layer);
    TMS_REQUIRE(!tms_loads_lacking(&plan->loads, layer, TMS_ROWS_LEFT_OUT, TMS_HELD_K | TMS_HELD_V,
                                   &row, &lacks),
                TAMIS_E_STATE,
                "the step was narrowed from %" PRIu32 " rows to %" PRIu32 " before layer %" PRIu32
                " was written, and %s of row %" PRIu32 ", which was left out, was not loaded there",
                plan->step.n_begun, plan->step.n_rows, layer, lacks, row);
    return TAMIS_OK;
}

static bool may_fuse(const tamis_plan *plan) {
    return !(plan->setup.params.flags & TAMIS_PLAN_UNFUSED);
}

/* Rows to the slots that they have. */
static tamis_status put_rows(tamis_plan *plan, const tms_write_rows *write, tamis_error *error) {
    if (write->rotation.n_rot)
        RUN(plan, write_us, write_rotated, write);
    else
        RUN(plan, write_us, write_rows, write);
    return TAMIS_OK;
}

/* Rows of which some take the slots of evicted tokens. Its three parts are timed as one where they are
 * one launch. */
static tamis_status replace_rows(tamis_plan *plan, const tms_replace_rows *p, tamis_error *error) {
    if (may_fuse(plan) && !tms_replace_rows_refusal(plan->setup.dev, p)) {
        RUN(plan, replace_us, replace_rows, p);
        return TAMIS_OK;
    }
    RUN(plan, replace_us, replace, &p->replace);
    TMS_TRY(put_rows(plan, &p->write, error));
    RUN(plan, bounds_us, bounds, &p->bounds);
    return TAMIS_OK;
}

/* Some rows that are not exact, which come first, take the slots of evicted tokens. */
static tamis_status put_sections(tamis_plan *plan, uint32_t layer, const tms_write_rows *write,
                                 tamis_error *error) {
    const tms_write_rows first = tms_template_write_section(&plan->templates, layer, 0, write);
    const tms_replace_rows replace = tms_in_step_replace(&plan->in_step, layer, 0, &first);
    TMS_TRY(replace_rows(plan, &replace, error));
    if (plan->step.n_sections == 1) return TAMIS_OK;
    const tms_write_rows exact = tms_template_write_section(&plan->templates, layer, 1, write);
    return put_rows(plan, &exact, error);
}

static void begin_write(tamis_plan *plan, uint32_t layer) {
    plan->step.layers[layer].begun = true;
    tms_loads_lose_present(&plan->loads, layer);
}

/* Bounds of the pages that the step fills, of which rows to come may write some. */
static tamis_status bound_filled(tamis_plan *plan, uint32_t layer, tamis_error *error) {
    const tms_step_layer *state = &plan->step.layers[layer];
    tms_bounds bounds = tms_cache_bounds(plan->setup.cache, layer);
    bounds.n = state->n_bounded;
    bounds.pages = tms_step_table(&plan->step, plan->step.at.filled + state->filled);
    if (bounds.n > 0) RUN(plan, bounds_us, bounds, &bounds);
    return TAMIS_OK;
}

/* The layer has its rows: bounds of pages that became full. */
static tamis_status note_written(tamis_plan *plan, uint32_t layer, tamis_error *error) {
    TMS_TRY(bound_filled(plan, layer, error));
    if (plan->step.fixed)
        plan->templates.serials[plan->step.n_rows] = plan->setup.cache->bounds_serial;
    count_written(plan, layer);
    return TAMIS_OK;
}

/* Behind the launch that writes: rows to the other branches that have them, bounds of pages that became
 * full. */
static tamis_status end_write(tamis_plan *plan, uint32_t layer, const tms_write_rows *write,
                              tamis_error *error) {
    const tms_copy_slots copies = tms_trees_copies(&plan->trees, &plan->step, layer, write);
    if (plan->trees.n > 0) RUN(plan, write_us, copy_slots, &copies);
    return note_written(plan, layer, error);
}

/* A layer of a view, to which the engine has written the step's rows. */
static tamis_status take_written(tamis_plan *plan, uint32_t layer, tamis_error *error) {
    if (!plan->setup.cache->view || plan->step.layers[layer].written) return TAMIS_OK;
    return note_written(plan, layer, error);
}

/* Enqueues the write of rows that have been checked, with what comes before and behind it. */
static tamis_status enqueue_write(tamis_plan *plan, uint32_t layer, tms_write_rows write,
                                  tamis_error *error) {
    begin_write(plan, layer);
    TMS_TRY(plan->step.layers[layer].n_staying > 0 ? put_sections(plan, layer, &write, error)
                                                   : put_rows(plan, &write, error));
    if (plan->setup.needs.feed == TMS_FEED_KEYS)
        TIME(plan, observe_us, tms_in_step_score_rows(&plan->in_step, &write, error));
    return end_write(plan, layer, &write, error);
}

tamis_status tamis_plan_write(tamis_plan *plan, uint32_t layer, const tamis_rows *k,
                              const tamis_rows *v, tamis_error *error) {
    TMS_ENTER(plan);
    TMS_TRY(check_at_once(plan, error));
    TMS_TRY(check_unwritten(plan, layer, error));
    tms_write_rows write = tms_template_write(&plan->templates, layer);
    TMS_TRY(check_write(plan, k, v, &write, error));
    return enqueue_write(plan, layer, write, error);
}

/* ---- Write rotated ---------------------------------------------------------------------------- */

/* Rows of f32 that have been checked. */
typedef struct named_rows {
    const char *name;
    const tamis_rows *rows;
    uint64_t stride, width;
} named_rows;

/* Whether two of the step's rows share an element, or may, at unequal strides. Rows with one stride
 * may lie between each other. */
static bool share(const named_rows *a, const named_rows *b, uint32_t n) {
    if (a->rows->buffer != b->rows->buffer) return false;
    if (a->rows->offset > b->rows->offset) return share(b, a, n);
    const uint64_t apart = (b->rows->offset - a->rows->offset) / sizeof(float);
    if (apart >= (n - 1) * a->stride + a->width) return false;
    if (n == 1 || a->stride != b->stride) return true;
    const uint64_t between = apart % a->stride;
    return between < a->width || between + b->width > a->stride;
}

static tamis_status check_apart(const named_rows *a, const named_rows *b, uint32_t n,
                                tamis_error *error) {
    TMS_REQUIRE(!share(a, b, n), TAMIS_E_ARGUMENT,
                "%s and %s share elements of one buffer: %" PRIu32 " rows of %" PRIu64
                " from byte %" PRIu64 ", of %" PRIu64 " from byte %" PRIu64
                ", at strides of %" PRIu64 " and %" PRIu64,
                a->name, b->name, n, a->width, a->rows->offset, b->width, b->rows->offset,
                a->stride, b->stride);
    return TAMIS_OK;
}

/* Whether rows come as tamis_plan_write takes them, where that call does not serve. */
static bool is_rotated(const tamis_plan *plan, const tamis_rotated_rows *p) {
    return plan->step.in_turns && !p->rotation.table.buffer;
}

/* The caller's rows, into what the launch takes. */
static tamis_status check_rotated_rows(const tamis_plan *plan, const tamis_rotated_rows *p,
                                       tms_write_rows *write, tamis_error *error) {
    const tamis_cache_params *cache = &plan->setup.cache->params;
    const uint32_t n = plan->step.n_rows;
    const uint64_t dim = cache->head_dim;
    named_rows q = {"q", &p->q, 0, cache->n_heads * dim};
    TMS_TRY(check_write(plan, &p->k, &p->v, write, error));
    TMS_TRY(
        tms_rows_check(plan->setup.cache->context, q.rows, q.name, n, q.width, &q.stride, error));
    const named_rows k = {"k", &p->k, write->k_stride, cache->n_kv_heads * dim};
    const named_rows v = {"v", &p->v, write->v_stride, cache->n_kv_heads * dim};
    TMS_REQUIRE(p->q.dtype == TAMIS_F32 && (p->k.dtype == TAMIS_F32 || is_rotated(plan, p)),
                TAMIS_E_ARGUMENT,
                "q is %s, k and v are %s; rows that are to be rotated must be f32",
                tamis_dtype_name(p->q.dtype), tamis_dtype_name(p->k.dtype));
    TMS_TRY(check_apart(&q, &k, n, error));
    TMS_TRY(check_apart(&q, &v, n, error));
    TMS_TRY(check_apart(&k, &v, n, error));
    write->rotation.q = (tms_matrix){{p->q.buffer->mem, p->q.offset}, q.stride};
    return TAMIS_OK;
}

tamis_status tms_plan_check_turns(const tamis_plan *plan, const tamis_rotation *rotation,
                                  uint32_t *channels, tms_ref *table, tamis_error *error) {
    const uint32_t dim = plan->setup.cache->params.head_dim;
    *channels = rotation->n_rot ? rotation->n_rot : dim;
    TMS_REQUIRE(*channels % 2 == 0 && *channels <= dim, TAMIS_E_ARGUMENT,
                "n_rot is %" PRIu32 ": an even number from 2 to %" PRIu32, *channels, dim);
    TMS_REQUIRE((unsigned)rotation->pairing <= TAMIS_PAIR_ADJACENT, TAMIS_E_ARGUMENT,
                "pairing is %d: there are 0 to %d", (int)rotation->pairing,
                (int)TAMIS_PAIR_ADJACENT);
    return tms_place_check(plan->setup.cache->context, &rotation->table, "table",
                           tamis_rotation_bytes(*channels), table, error);
}

/* How they are rotated and normalised, into what the launch takes. */
static tamis_status check_rotation(const tamis_plan *plan, const tamis_rotated_rows *p,
                                   tms_rotation *rotation, tamis_error *error) {
    const uint64_t positions = plan->step.n_rows * sizeof(int32_t),
                   norm = plan->setup.cache->params.head_dim * sizeof(float);
    TMS_TRY(tms_plan_check_turns(plan, &p->rotation, &rotation->n_rot, &rotation->table, error));
    rotation->pairing = p->rotation.pairing;
    rotation->eps = p->eps;
    TMS_TRY(tms_place_check(plan->setup.cache->context, &p->positions, "positions", positions,
                            &rotation->positions, error));
    if (p->q_norm.buffer)
        TMS_TRY(tms_place_check(plan->setup.cache->context, &p->q_norm, "q_norm", norm,
                                &rotation->q_norm, error));
    if (p->k_norm.buffer)
        TMS_TRY(tms_place_check(plan->setup.cache->context, &p->k_norm, "k_norm", norm,
                                &rotation->k_norm, error));
    return TAMIS_OK;
}

/* All that is asked of the call, into what the launch takes. */
static tamis_status check_write_rotated(const tamis_plan *plan, uint32_t layer,
                                        const tamis_rotated_rows *rows, tms_write_rows *write,
                                        tamis_error *error) {
    TMS_TRY(check_unwritten(plan, layer, error));
    TMS_REQUIRE(rows, TAMIS_E_ARGUMENT, "rows is NULL");
    TMS_REQUIRE_RESERVED(rows, tamis_rotated_rows);
    TMS_REQUIRE(rows->reserved32 == 0, TAMIS_E_ARGUMENT,
                "reserved32 of tamis_rotated_rows is %" PRIu32 "; it must be 0", rows->reserved32);
    *write = tms_template_write(&plan->templates, layer);
    TMS_TRY(check_rotated_rows(plan, rows, write, error));
    return is_rotated(plan, rows) ? TAMIS_OK : check_rotation(plan, rows, &write->rotation, error);
}

tamis_status tamis_plan_write_rotated(tamis_plan *plan, uint32_t layer,
                                      const tamis_rotated_rows *rows, tamis_error *error) {
    TMS_ENTER(plan);
    tms_write_rows write;
    TMS_TRY(check_at_once(plan, error));
    TMS_TRY(check_write_rotated(plan, layer, rows, &write, error));
    return enqueue_write(plan, layer, write, error);
}

/* ---- Attend ----------------------------------------------------------------------------------- */

tamis_status tms_plan_check_held(const tamis_plan *plan, uint32_t layer, tamis_error *error) {
    uint32_t row = 0;
    const char *lacks = NULL;
    if (plan->step.layers[layer].written || plan->setup.cache->view) return TAMIS_OK;
    const bool lacking = tms_loads_lacking(&plan->loads, layer, TMS_ROWS_BEGUN,
                                           TMS_HELD_K | TMS_HELD_V, &row, &lacks);
    TMS_REQUIRE(!lacking || plan->setup.params.load_dtypes, TAMIS_E_STATE,
                "layer %" PRIu32 " has not been written in this step", layer);
    TMS_REQUIRE(!lacking, TAMIS_E_STATE,
                "layer %" PRIu32 " has not been written in this step, and %s of row %" PRIu32
                " has not been loaded",
                layer, lacks, row);
    return TAMIS_OK;
}

/* Whether the rows of a section read the pages of lists; *path is the counter of such rows. */
static bool is_listed(tamis_plan *plan, uint32_t layer, uint32_t section, const tms_batch *rows,
                      uint64_t **path) {
    tamis_plan_counters *c = &plan->counters;
    const uint32_t n = tms_batch_entries(rows, plan->setup.cache->params.page_size);
    *path = &c->rows_selected;
    if (plan->step.sections[section].exact)
        *path = &c->rows_exact;
    else if (!tms_setup_lists(&plan->setup, layer))
        *path = &c->rows_full;
    else if (n <= plan->setup.reading.k && !plan->step.fixed && !plan->setup.reading.given)
        *path = &c->rows_short;
    return *path == &c->rows_selected;
}

/* The range of bytes [first, end) of rows that have been checked, from first to last element. */
typedef struct byte_range {
    uint64_t first, end;
} byte_range;

static byte_range range_of(const tamis_rows *rows, uint64_t n, uint64_t stride, uint64_t width) {
    const uint64_t elements = (n - 1) * stride + width;
    return (byte_range){rows->offset, rows->offset + elements * tamis_dtype_size(rows->dtype)};
}

/* Two ranges of bytes that share none, or lie in two buffers. */
static tamis_status check_beside(const char *name, const tamis_buffer *of, byte_range from,
                                 const char *other, const tamis_buffer *beside, byte_range to,
                                 tamis_error *error) {
    TMS_REQUIRE(of != beside || from.end <= to.first || to.end <= from.first, TAMIS_E_ARGUMENT,
                "%s and %s overlap: bytes %" PRIu64 " to %" PRIu64 " and %" PRIu64 " to %" PRIu64
                " of one buffer",
                name, other, from.first, from.end - 1, to.first, to.end - 1);
    return TAMIS_OK;
}

/* The caller's rows of a step, which have been checked. */
typedef struct attended_rows {
    tms_caller_rows q, out;
    tms_ref lse; /* f32 [n_rows][n_heads], may be absent */
    tms_given_lists lists;
} attended_rows;

static tamis_status check_lse(const tamis_plan *plan, const tamis_plan_attend_params *p,
                              byte_range q, byte_range out, attended_rows *rows,
                              tamis_error *error) {
    const uint64_t bytes =
        (uint64_t)plan->step.n_rows * plan->setup.cache->params.n_heads * sizeof(float);
    const byte_range lse = {p->lse.offset, p->lse.offset + bytes};
    rows->lse = (tms_ref){NULL, 0};
    if (!p->lse.buffer) return TAMIS_OK;
    TMS_TRY(tms_place_check(plan->setup.cache->context, &p->lse, "lse", bytes, &rows->lse, error));
    TMS_TRY(check_beside("q", p->q.buffer, q, "lse", p->lse.buffer, lse, error));
    return check_beside("out", p->out.buffer, out, "lse", p->lse.buffer, lse, error);
}

static tamis_status check_attend(const tamis_plan *plan, const tamis_plan_attend_params *p,
                                 attended_rows *rows, tamis_error *error) {
    const tamis_context *context = plan->setup.cache->context;
    const uint64_t width = tms_setup_width(&plan->setup);
    const uint32_t n = plan->step.n_rows;
    uint64_t q_stride, out_stride;
    TMS_TRY(tms_rows_check(context, &p->q, "q", n, width, &q_stride, error));
    TMS_TRY(tms_rows_check(context, &p->out, "out", n, width, &out_stride, error));
    TMS_TRY(tms_half_rows_check(&plan->half_rows, "q", &p->q, error));
    TMS_TRY(tms_half_rows_check(&plan->half_rows, "out", &p->out, error));
    const byte_range q = range_of(&p->q, n, q_stride, width);
    const byte_range out = range_of(&p->out, n, out_stride, width);
    TMS_TRY(check_beside("q", p->q.buffer, q, "out", p->out.buffer, out, error));
    rows->q = tms_half_rows_of(&plan->half_rows, &p->q, q_stride, false);
    rows->out = tms_half_rows_of(&plan->half_rows, &p->out, out_stride, true);
    return check_lse(plan, p, q, out, rows, error);
}

/* Adds what the attend of a section read in a layer to the counters. */
static void count_read(tamis_plan *plan, uint32_t layer, const tms_section *section, bool listed,
                       bool fused) {
    const tamis_cache *cache = plan->setup.cache;
    tamis_plan_counters *c = &plan->counters;
    uint64_t k = plan->setup.reading.k, read = 0, full = 0, bounded = 0, massed = 0;
    if (fused) c->rows_fused += section->n_rows;
    if (section->exact) return;
    for (uint32_t row = section->first_row; row < section->first_row + section->n_rows; row++)
        for (uint32_t h = 0; h < cache->params.n_kv_heads; h++) {
            uint32_t visible = tms_step_visible(&plan->step, layer, row, h);
            const uint32_t first =
                tms_sight_first_page(&plan->sight, &plan->step, layer, row, h);
            const uint64_t n = tms_pages_of(cache, visible) - first;
            full += n;
            read += listed && n > k ? k : n;
            if (listed && plan->setup.reading.scored == TMS_SCORE_BOUNDS)
                bounded += visible / cache->params.page_size > first
                               ? visible / cache->params.page_size - first
                               : 0;
            if (listed && plan->setup.reading.scored == TMS_SCORE_MASS) massed += n;
        }
    const tamis_cache_params *p = &cache->params;
    const uint64_t key_bytes = tms_key_bytes(p->dtype, p->page_size, p->head_dim);
    c->kv_bytes_read += read * cache->size.page_bytes;
    c->kv_bytes_full += full * cache->size.page_bytes;
    c->bounds_bytes_read += bounded * cache->size.bounds_bytes + massed * key_bytes;
}

/* Behind the attend of a section; that of the first one comes first. */
static void count_attended(tamis_plan *plan, uint32_t layer, uint32_t section, bool listed,
                           bool fused) {
    const tms_section *of = &plan->step.sections[section];
    count_read(plan, layer, of, listed, fused);
    plan->step.sections[section].listed = listed;
    plan->templates.attended = true;
    plan->templates.attended_layer = layer;
}

static tamis_status score(tamis_plan *plan, uint32_t layer, uint32_t section, tms_sparse_attend *p,
                          tamis_error *error) {
    tms_page_mass mass = tms_template_mass(&plan->templates, p);
    switch (plan->setup.reading.scored) {
    case TMS_SCORE_NONE:
        break;
    case TMS_SCORE_BOUNDS:
        RUN(plan, score_us, score_pages, &p->score);
        break;
    case TMS_SCORE_MASS:
        RUN(plan, score_us, page_mass, &mass);
        break;
    case TMS_SCORE_RANDOM:
        TIME(plan, score_us, tms_template_send_random(&plan->templates, layer, section, p, error));
        break;
    }
    return TAMIS_OK;
}

/* Its two parts are timed apart where they are launched apart. */
static tamis_status run_fused(tamis_plan *plan, tms_sparse_attend *p, tamis_error *error) {
    tms_device *dev = plan->setup.dev;
    tms_event *from = NULL, *halfway = NULL;
    double selected = 0;
    TMS_TRY(tms_stage_start(&plan->setup, &from, error));
    if (from) p->halfway = &halfway;
    tamis_status status = tms_run_sparse_attend(dev, p, error);
    p->halfway = NULL;
    if (status == TAMIS_OK && halfway)
        status = tms_device_event_elapsed(dev, from, halfway, &selected, error);
    plan->times.fused_select_us += selected;
    if (halfway) tms_device_event_free(dev, halfway);
    return tms_stage_stop(&plan->setup, from, status, &plan->times.fused_us, error);
}

/* *observed: whether rows' weights went where the eviction wants them, too. */
static tamis_status run_attend(tamis_plan *plan, uint32_t layer, uint32_t section,
                               const tms_attend *attend, bool *observed, tamis_error *error) {
    const tms_observed_attend p = {*attend,
                                   tms_in_step_observe(&plan->in_step, layer, section, attend)};
    *observed =
        attend->logits.mem && may_fuse(plan) && !tms_observed_attend_refusal(plan->setup.dev, &p);
    /* A failed launch may have added them. */
    plan->step.layers[layer].fed |= *observed;
    if (*observed)
        RUN(plan, attend_us, observed_attend, &p);
    else
        RUN(plan, attend_us, attend, attend);
    return TAMIS_OK;
}

static tamis_status run_listed(tamis_plan *plan, uint32_t layer, uint32_t section,
                               tms_sparse_attend *p, bool fused, bool *observed,
                               tamis_error *error) {
    if (fused) return run_fused(plan, p, error);
    TMS_TRY(score(plan, layer, section, p, error));
    RUN(plan, select_us, select, &p->select);
    return run_attend(plan, layer, section, &p->attend, observed, error);
}

/* How the rows of a section attend in a layer: p.attend alone, or by lists. */
typedef struct attending {
    uint32_t section;
    tms_sparse_attend p;
    bool listed;
    uint64_t *path; /* the counter of such rows */
} attending;

/* The caller's rows from a section's first one on. */
static tms_matrix rows_of(const tms_section *section, tms_matrix rows) {
    rows.ref.offset += section->first_row * rows.stride * sizeof(float);
    return rows;
}

static attending attend_section(tamis_plan *plan, uint32_t layer, uint32_t section,
                                const attended_rows *rows) {
    const tms_section *of = &plan->step.sections[section];
    attending a = {
        section, {.attend = tms_template_attend(&plan->templates, layer, section)}, false, NULL};
    a.listed = is_listed(plan, layer, section, &a.p.attend.batch, &a.path);
    if (a.listed) {
        a.p = tms_template_sparse(&plan->templates, layer, section);
        a.p.score.q = rows_of(of, rows->q.rows);
    }
    a.p.attend.q = rows_of(of, rows->q.rows);
    a.p.attend.out = rows_of(of, rows->out.rows);
    if (rows->lse.mem) {
        a.p.attend.lse = rows->lse;
        a.p.attend.lse.offset += (uint64_t)of->first_row * a.p.attend.batch.n_heads * sizeof(float);
    }
    return a;
}

/* The rows of a layer that go through the selection, which come first. */
static uint32_t count_selected(const tamis_plan *plan, uint32_t layer) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < plan->step.n_sections && !plan->step.sections[i].exact; i++)
        n += plan->step.sections[i].n_rows;
    return tms_setup_lists(&plan->setup, layer) ? n : 0;
}

/* Checks a layer that is about to be attended, and what the caller gives. */
static tamis_status check_attending(tamis_plan *plan, uint32_t layer,
                                    const tamis_plan_attend_params *p, attended_rows *rows,
                                    tamis_error *error) {
    TMS_REQUIRE(plan->setup.needs.feed != TMS_FEED_SUM || !plan->step.layers[layer].fed,
                TAMIS_E_STATE,
                "layer %" PRIu32 " has been attended in this step already: %s would count its rows "
                "twice",
                layer, plan->setup.needs.entry->name);
    TMS_TRY(tms_caller_lists_check(&plan->lists, layer, count_selected(plan, layer), p->lists,
                                   &rows->lists, error));
    return check_attend(plan, p, rows, error);
}

static void end_attending(tamis_plan *plan, uint32_t layer, const attending *a, bool fused) {
    *a->path += plan->step.sections[a->section].n_rows;
    count_attended(plan, layer, a->section, a->listed, fused);
}

/* Converts the rows of a section, of q before they are attended, of out behind that. */
static tamis_status read_queries(tamis_plan *plan, uint32_t section, const attended_rows *rows,
                                 tamis_error *error) {
    const tms_section *of = &plan->step.sections[section];
    if (rows->q.dtype != TAMIS_F32) /* else there is nothing to time */
        TIME(plan, attend_us,
             tms_half_rows_read(&plan->half_rows, &rows->q, of->first_row, of->n_rows, error));
    return TAMIS_OK;
}
static tamis_status write_outputs(tamis_plan *plan, uint32_t section, const attended_rows *rows,
                                  tamis_error *error) {
    const tms_section *of = &plan->step.sections[section];
    if (rows->out.dtype != TAMIS_F32)
        TIME(plan, attend_us,
             tms_half_rows_write(&plan->half_rows, &rows->out, of->first_row, of->n_rows, error));
    return TAMIS_OK;
}

static tamis_status enqueue_section(tamis_plan *plan, uint32_t layer, uint32_t section,
                                    const attended_rows *rows, tamis_error *error) {
    tms_step *step = &plan->step;
    attending a = attend_section(plan, layer, section, rows);
    tms_attend *attend = &a.p.attend;
    bool observed = false, fused = false;
    TMS_TRY(read_queries(plan, section, rows, error));
    if (tms_in_step_observes(&plan->in_step))
        TIME(plan, observe_us,
             tms_in_step_ask_weights(&plan->in_step, section, a.listed, attend, error));
    if (plan->sight.first) /* else there is nothing to time */
        TIME(plan, attend_us,
             tms_sight_find(&plan->sight, step, layer, section, &attend->batch, error));
    if (a.listed && rows->lists.given) {
        TIME(plan, select_us,
             tms_caller_lists_take(&plan->lists, section, &rows->lists, attend, error));
        TMS_TRY(run_attend(plan, layer, section, attend, &observed, error));
    } else if (a.listed) {
        fused = tms_template_fuses(&plan->templates, &a.p);
        TMS_TRY(run_listed(plan, layer, section, &a.p, fused, &observed, error));
    } else if (plan->setup.needs.rotation) {
        TIME(plan, attend_us, tms_reindex_attend(&plan->reindex, section, attend, error));
    } else {
        TMS_TRY(run_attend(plan, layer, section, attend, &observed, error));
    }
    step->layers[layer].fed |= tms_needs_weights(&plan->setup.needs);
    if (tms_in_step_observes(&plan->in_step))
        TIME(plan, observe_us,
             tms_in_step_use_weights(&plan->in_step, layer, section, attend, observed, error));
    TMS_TRY(write_outputs(plan, section, rows, error));
    end_attending(plan, layer, &a, fused);
    return TAMIS_OK;
}

static tamis_status enqueue_attend(tamis_plan *plan, uint32_t layer, const attended_rows *rows,
                                   tamis_error *error) {
    plan->templates.attended = false;
    for (uint32_t section = 0; section < plan->step.n_sections; section++)
        TMS_TRY(enqueue_section(plan, layer, section, rows, error));
    plan->step.layers[layer].attended = true;
    return TAMIS_OK;
}

/* Either call, entered. */
static tamis_status attend_layer(tamis_plan *plan, uint32_t layer,
                                 const tamis_plan_attend_params *params, tamis_error *error) {
    attended_rows rows;
    TMS_TRY(tms_plan_check_layer(plan, layer, error));
    TMS_TRY(tms_plan_check_held(plan, layer, error));
    TMS_TRY(check_attending(plan, layer, params, &rows, error));
    TMS_TRY(take_written(plan, layer, error));
    return enqueue_attend(plan, layer, &rows, error);
}

tamis_status tamis_plan_attend_with(tamis_plan *plan, uint32_t layer,
                                    const tamis_plan_attend_params *params, tamis_error *error) {
    TMS_ENTER(plan);
    TMS_REQUIRE(params, TAMIS_E_ARGUMENT, "params is NULL");
    TMS_REQUIRE_RESERVED(params, tamis_plan_attend_params);
    return attend_layer(plan, layer, params, error);
}

tamis_status tamis_plan_attend(tamis_plan *plan, uint32_t layer, const tamis_rows *q,
                               const tamis_rows *out, tamis_error *error) {
    TMS_ENTER(plan);
    static const tamis_rows none;
    const tamis_plan_attend_params params = {.q = q ? *q : none, .out = out ? *out : none};
    return attend_layer(plan, layer, &params, error);
}

/* ---- Write and attend ------------------------------------------------------------------------- */

/* Whether out lies apart from k and v, which it may be written before they are read. */
static tamis_status check_written_beside(const tamis_plan *plan, const tamis_rotated_rows *rows,
                                         const tms_write_rows *write, const tamis_rows *out,
                                         const tms_matrix *out_rows, tamis_error *error) {
    const tamis_cache_params *p = &plan->setup.cache->params;
    const uint64_t width = (uint64_t)p->n_kv_heads * p->head_dim, n = plan->step.n_rows;
    const byte_range to = range_of(out, n, out_rows->stride, tms_setup_width(&plan->setup));
    const byte_range k = range_of(&rows->k, n, write->k_stride, width);
    const byte_range v = range_of(&rows->v, n, write->v_stride, width);
    TMS_TRY(check_beside("k", rows->k.buffer, k, "out", out->buffer, to, error));
    return check_beside("v", rows->v.buffer, v, "out", out->buffer, to, error);
}

/* Whether each row is the only one of its sequence and takes a slot of its own, and nothing runs
 * between writing and attending, or needs rows that are rotated. */
static bool nothing_between(const tamis_plan *plan, uint32_t layer) {
    const tms_step *step = &plan->step;
    const bool decodes = step->n_rows == step->n_sequences && step->n_rows == step->n_begun;
    return decodes && !step->in_turns && step->n_sections == 1 && plan->trees.n == 0 &&
           step->layers[layer].n_staying == 0 && !plan->sight.first &&
           !plan->setup.needs.rotation && plan->setup.needs.feed != TMS_FEED_KEYS &&
           !tms_in_step_observes(&plan->in_step);
}

/* In one launch, if there is one for the case: *done. */
static tamis_status write_and_attend(tamis_plan *plan, uint32_t layer, const tms_write_rows *write,
                                     const attended_rows *rows, bool *done, tamis_error *error) {
    *done = false;
    if (!nothing_between(plan, layer)) return TAMIS_OK;
    const attending section = attend_section(plan, layer, 0, rows), *a = &section;
    const tms_write_attend all = {*write, a->p.attend};
    const tms_write_sparse_attend sparse = {*write, a->p};
    *done = (a->listed ? plan->step.layers[layer].n_bounded == 0 && /* scores read bounds */
                             tms_template_writes_sparse(&plan->templates, &sparse)
                       : tms_template_writes(&plan->templates, &all));
    if (!*done) return TAMIS_OK;
    plan->templates.attended = false;
    begin_write(plan, layer);
    if (a->listed)
        RUN(plan, fused_us, write_sparse_attend, &sparse);
    else
        RUN(plan, attend_us, write_attend, &all);
    TMS_TRY(end_write(plan, layer, write, error));
    TMS_TRY(write_outputs(plan, 0, rows, error));
    end_attending(plan, layer, a, a->listed);
    plan->step.layers[layer].attended = true;
    return TAMIS_OK;
}

/* ---- In turns --------------------------------------------------------------------------------- */

/* Writes the rows of a section; where a row is alone, what it replaces has been kept before. */
static tamis_status write_turn(tamis_plan *plan, uint32_t layer, uint32_t section,
                               const tms_write_rows *write, tamis_error *error) {
    tms_step_layer *state = &plan->step.layers[layer];
    const tms_section *of = &plan->step.sections[section];
    const bool replaces = !of->exact && state->n_staying > 0;
    const tms_replace_rows p = tms_in_step_replace(&plan->in_step, layer, section, write);
    if (!of->alone) return replaces ? replace_rows(plan, &p, error) : put_rows(plan, write, error);
    if (!state->kept) {
        TIME(plan, replace_us,
             tms_journals_keep_scores(&plan->journals, layer, section, &write->batch, error));
        if (replaces) RUN(plan, replace_us, replace, &p.replace);
        if (replaces)
            TIME(plan, replace_us,
                 tms_journals_keep_slots(&plan->journals, layer, section, write, error));
        state->kept = true;
    }
    TMS_TRY(put_rows(plan, write, error));
    if (replaces) RUN(plan, bounds_us, bounds, &p.bounds);
    return TAMIS_OK;
}

/* Section after section is written and attended. A repeated call goes on with the section in which one
 * has failed, whose rows are written again: the caller's are not rotated yet. */
static tamis_status enqueue_turns(tamis_plan *plan, uint32_t layer, const tms_write_rows *rows,
                                  const attended_rows *attended, tamis_error *error) {
    tms_step_layer *state = &plan->step.layers[layer];
    begin_write(plan, layer);
    plan->templates.attended = false;
    for (; state->turn < plan->step.n_sections; state->turn++) {
        const tms_write_rows write =
            tms_template_write_section(&plan->templates, layer, state->turn, rows);
        TMS_TRY(write_turn(plan, layer, state->turn, &write, error));
        if (plan->setup.needs.feed == TMS_FEED_KEYS)
            TIME(plan, observe_us, tms_in_step_score_rows(&plan->in_step, &write, error));
        TMS_TRY(bound_filled(plan, layer, error));
        TMS_TRY(enqueue_section(plan, layer, state->turn, attended, error));
        state->kept = false;
    }
    count_written(plan, layer);
    state->attended = true;
    return TAMIS_OK;
}

tamis_status tamis_plan_write_attend(tamis_plan *plan, uint32_t layer,
                                     const tamis_rotated_rows *rows, const tamis_rows *out,
                                     tamis_error *error) {
    TMS_ENTER(plan);
    tms_write_rows write;
    attended_rows attended;
    bool done = false;
    TMS_TRY(check_write_rotated(plan, layer, rows, &write, error));
    const tamis_plan_attend_params params = {.q = rows->q, .out = out ? *out : (tamis_rows){0}};
    TMS_TRY(check_attending(plan, layer, &params, &attended, error));
    TMS_TRY(check_written_beside(plan, rows, &write, out, &attended.out.given, error));
    if (plan->step.in_turns) return enqueue_turns(plan, layer, &write, &attended, error);
    TMS_TRY(write_and_attend(plan, layer, &write, &attended, &done, error));
    if (done) return TAMIS_OK;
    TMS_TRY(enqueue_write(plan, layer, write, error));
    return enqueue_attend(plan, layer, &attended, error);
}

/* A graph serves the step only if it was recorded with as many rows, from which the places of the
 * tables follow, and with the same kind of bounds, which is a parameter of their launch. */
static tamis_status check_replayed(const tamis_plan *plan, tamis_error *error) {
    const tms_step *step = &plan->step;
    TMS_REQUIRE(
        (plan->setup.params.flags & TAMIS_PLAN_FIXED_LAUNCHES), TAMIS_E_STATE,
        "the plan has no TAMIS_PLAN_FIXED_LAUNCHES: a graph of one step does not serve another");
    TMS_REQUIRE(!step->exact, TAMIS_E_STATE, "the step is exact: it has no fixed launches");
    for (uint32_t layer = 0; layer < plan->setup.cache->params.n_layers; layer++)
        TMS_REQUIRE(!step->layers[layer].written, TAMIS_E_STATE,
                    "layer %" PRIu32 " has been written in this step already", layer);
    TMS_REQUIRE(plan->templates.serials[step->n_rows] != 0, TAMIS_E_STATE,
                "no step with %" PRIu32 " sequences was called layer by layer: no graph serves it",
                step->n_rows);
    TMS_REQUIRE(plan->templates.serials[step->n_rows] == plan->setup.cache->bounds_serial,
                TAMIS_E_STATE,
                "what bounds hold has changed since a step with %" PRIu32
                " sequences was called layer by layer: an older graph would compute the old ones",
                step->n_rows);
    return TAMIS_OK;
}

tamis_status tamis_plan_step_mark_replayed(tamis_plan *plan, tamis_error *error) {
    TMS_ENTER(plan);
    TMS_TRY(tms_plan_check_layer(plan, 0, error));
    TMS_TRY(check_replayed(plan, error));
    for (uint32_t layer = 0; layer < plan->setup.cache->params.n_layers; layer++) {
        uint64_t *path = NULL;
        tms_sparse_attend p = tms_template_sparse(&plan->templates, layer, 0);
        bool listed = is_listed(plan, layer, 0, &p.attend.batch, &path);
        *path += plan->step.n_rows;
        count_written(plan, layer);
        count_attended(plan, layer, 0, listed, listed && tms_template_fuses(&plan->templates, &p));
    }
    return TAMIS_OK;
}
