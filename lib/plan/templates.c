/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of a layer's launches, and the first launch of each kernel. */
#include "lib/plan/templates.h"

#include <stdlib.h>

/* ---- Stages ---------------------------------------------------------------------------------- */

tamis_status tms_stage_start(const tms_setup *setup, tms_event **from, tamis_error *error) {
    *from = NULL;
    if (!(setup->params.flags & TAMIS_PLAN_TIMING)) return TAMIS_OK;
    return tms_device_event_record(setup->dev, true, from, error);
}

tamis_status tms_stage_stop(const tms_setup *setup, tms_event *from, tamis_status status,
                            double *us, tamis_error *error) {
    if (!from) return status;
    tms_device *dev = setup->dev;
    tms_event *to = NULL;
    double elapsed = 0;
    if (status == TAMIS_OK) status = tms_device_event_record(dev, true, &to, error);
    if (status == TAMIS_OK) status = tms_device_event_elapsed(dev, from, to, &elapsed, error);
    *us += elapsed;
    if (to) tms_device_event_free(dev, to);
    tms_device_event_free(dev, from);
    return status;
}

/* ---- Templates ------------------------------------------------------------------------------- */

static tms_batch batch_template(const tms_templates *l) {
    const tamis_cache_params *cache = &l->setup->cache->params;
    return (tms_batch){.n_heads = cache->n_heads, .n_kv_heads = cache->n_kv_heads};
}

/* Lists, and what selects pages. The batches are those of attend. */
static void add_selection(const tms_templates *l, uint32_t layer, tms_sparse_attend *p) {
    const tms_setup *setup = l->setup;
    const tms_reading *reading = &setup->reading;
    const tms_ref scores = {l->scores, 0};
    uint64_t entries = (uint64_t)setup->params.max_selected_rows * setup->cache->params.n_kv_heads;
    const uint32_t capacity = tms_setup_entries(setup);
    p->attend.lists = (tms_lists){.pages = {l->lists, 0},
                                  .count = {l->lists, entries * capacity * sizeof(int32_t)},
                                  .capacity = capacity};
    p->select = (tms_select){.granularity = setup->cache->params.page_size,
                             .k = reading->k,
                             .sinks = reading->sinks,
                             .recent = reading->recent,
                             .lists = p->attend.lists};
    /* Lanes that stay at their length have tokens out of order. */
    if (setup->needs.in_place) {
        p->select.wide.positions = tms_cache_planes(setup->cache, layer).positions;
        p->select.wide.page_size = setup->cache->params.page_size;
        p->select.scratch = (tms_ref){l->scratch, 0};
    }
    p->score = (tms_score_pages){.kv = p->attend.kv, .group = reading->group};
    if (!reading->scored) return;
    p->score.scores = p->select.scores = scores;
    p->score.stride = p->select.stride = setup->max_pages;
}

static void make_template(const tms_templates *l, uint32_t layer) {
    const tms_setup *setup = l->setup;
    tms_template *t = &l->templates[layer];
    t->write = (tms_write_rows){.kv = tms_cache_kv(setup->cache, layer),
                                .batch = batch_template(l),
                                .planes = tms_cache_planes(setup->cache, layer)};
    t->all = (tms_attend){.kv = t->write.kv,
                          .batch = t->write.batch,
                          .logit = tms_setup_logit(setup, layer),
                          .scratch = {l->scratch, 0}};
    if (t->all.logit.sinks.mem) t->all.lse = (tms_ref){l->lse, 0};
    t->listed = (tms_sparse_attend){.attend = t->all};
    add_selection(l, layer, &t->listed);
}

/* ---- What the launches take ------------------------------------------------------------------ */

/* Sets what depends on the step, for all of its rows. */
static void set_rows(const tms_templates *l, uint32_t layer, tms_batch *batch) {
    const tms_step *step = l->step;
    const uint64_t entry = tms_step_entry(step, layer);
    tms_page_table_place(l->table, layer, batch);
    batch->n_rows = step->n_rows;
    batch->row_seq = tms_step_table(step, step->at.row_seq);
    batch->visible = tms_step_table(step, step->at.visible + entry);
    tms_sight_limit(l->sight, step, layer, batch);
}

/* Leaves the rows of a section. */
static void narrow(const tms_templates *l, uint32_t layer, uint32_t section, tms_batch *batch) {
    const tms_step *step = l->step;
    const tms_section *p = &step->sections[section];
    const uint64_t entry = (uint64_t)p->first_row * batch->n_kv_heads;
    batch->n_rows = p->n_rows;
    batch->row_seq.offset += p->first_row * sizeof(int32_t);
    batch->visible.offset += entry * sizeof(int32_t);
    if (batch->first.mem) batch->first.offset += entry * sizeof(int32_t);
    batch->max_visible = step->fixed ? l->setup->longest : tms_step_most_visible(step, layer, p);
}

/* Sets what depends on the step, for the rows of a section, which attend. */
static void set_section(const tms_templates *l, uint32_t layer, uint32_t section,
                        tms_batch *batch) {
    const tms_step *step = l->step;
    const tms_section *p = &step->sections[section];
    set_rows(l, layer, batch);
    narrow(l, layer, section, batch);
    batch->n_tiles = p->n_tiles;
    batch->tiles = tms_step_table(step, step->at.tiles + 2 * (uint64_t)p->first_tile);
    batch->max_tile_rows = p->max_tile_rows;
}

static void skip_rows(tms_ref *rows, uint64_t n, uint64_t bytes) {
    if (rows->mem) rows->offset += n * bytes;
}

tms_write_rows tms_template_write_section(const tms_templates *l, uint32_t layer, uint32_t section,
                                          const tms_write_rows *write) {
    const uint64_t first = l->step->sections[section].first_row, size = tms_kv_unit(write->dtype);
    tms_write_rows p = *write;
    narrow(l, layer, section, &p.batch);
    skip_rows(&p.k, first, p.k_stride * size);
    skip_rows(&p.v, first, p.v_stride * size);
    skip_rows(&p.rotation.q.ref, first, p.rotation.q.stride * sizeof(float));
    skip_rows(&p.rotation.positions, first, sizeof(int32_t));
    skip_rows(&p.slots, first, p.batch.n_kv_heads * sizeof(int32_t));
    skip_rows(&p.positions, first, sizeof(int32_t));
    return p;
}

tms_write_rows tms_template_write(const tms_templates *l, uint32_t layer) {
    const tms_step *step = l->step;
    tms_write_rows write = l->templates[layer].write;
    set_rows(l, layer, &write.batch);
    write.slots = tms_step_table(step, step->at.slots + tms_step_entry(step, layer));
    if (write.planes.positions.mem) write.positions = tms_step_table(step, step->at.positions);
    return write;
}

tms_attend tms_template_attend(const tms_templates *l, uint32_t layer, uint32_t section) {
    tms_attend attend = l->templates[layer].all;
    set_section(l, layer, section, &attend.batch);
    attend.max_pages = tms_pages_of(l->setup->cache, attend.batch.max_visible);
    return attend;
}

/* The lists of a section lie behind those of the rows before it. */
static void skip_lists(tms_lists *lists, uint64_t n) {
    lists->pages.offset += n * lists->capacity * sizeof(int32_t);
    lists->count.offset += n * sizeof(int32_t);
}

tms_sparse_attend tms_template_sparse(const tms_templates *l, uint32_t layer, uint32_t section) {
    const uint32_t k = l->setup->reading.k;
    tms_sparse_attend p = l->templates[layer].listed;
    set_section(l, layer, section, &p.attend.batch);
    p.select.batch = p.score.batch = p.attend.batch;
    skip_lists(&p.select.lists, l->step->sections[section].first_row * p.attend.batch.n_kv_heads);
    p.attend.lists = p.select.lists;
    p.attend.max_pages = tms_pages_of(l->setup->cache, p.attend.batch.max_visible);
    if (p.attend.max_pages > k) p.attend.max_pages = k;
    if (l->setup->needs.in_place)
        p.select.wide.row_positions =
            tms_step_table(l->step, l->step->at.positions + l->step->sections[section].first_row);
    return p;
}

tms_lists tms_template_lists(const tms_templates *l, uint32_t layer) {
    return l->templates[layer].listed.select.lists;
}

tms_observe tms_template_observe(const tms_attend *attend) {
    return (tms_observe){.kv = attend->kv,
                         .batch = attend->batch,
                         .rows = TAMIS_ROWS_SUM,
                         .q = attend->q,
                         .lse = attend->lse,
                         .lse_stride = attend->batch.n_heads,
                         .logit = attend->logit,
                         .logits = attend->logits,
                         .logit_stride = attend->logit_stride};
}

tms_page_mass tms_template_mass(const tms_templates *l, const tms_sparse_attend *p) {
    return (tms_page_mass){.kv = p->score.kv,
                           .batch = p->score.batch,
                           .q = p->score.q,
                           .group = p->score.group,
                           .scores = p->score.scores,
                           .stride = p->score.stride,
                           .logit = p->attend.logit,
                           .scratch = {l->scratch, 0}};
}

/* For the rows of a section. */
static void fill_random(const tms_templates *l, uint32_t layer, uint32_t section, uint32_t stride) {
    const tms_step *step = l->step;
    const tms_section *of = &step->sections[section];
    const tamis_cache_params *cache = &l->setup->cache->params;
    float *scores = l->score_host;
    for (uint32_t row = of->first_row; row < of->first_row + of->n_rows; row++)
        for (uint32_t h = 0; h < cache->n_kv_heads; h++, scores += stride) {
            const uint32_t n = tms_step_visible(step, layer, row, h) / cache->page_size;
            for (uint32_t o = 0; o < n; o++)
                scores[o] = tms_selection_random_score(l->setup->params.selection.seed, layer,
                                                       step->position[row], h, o);
        }
}

tamis_status tms_template_send_random(const tms_templates *l, uint32_t layer, uint32_t section,
                                      tms_sparse_attend *p, tamis_error *error) {
    const uint64_t entries = (uint64_t)p->select.batch.n_rows * p->select.batch.n_kv_heads;
    /* The stride is that of this step's longest lane, so that as few bytes as possible are sent. */
    p->select.stride = p->select.batch.max_visible / p->select.granularity;
    fill_random(l, layer, section, p->select.stride);
    return tms_memory_send(l->setup->dev, p->select.scores, l->score_host,
                           entries * p->select.stride * sizeof *l->score_host, error);
}

bool tms_template_fuses(const tms_templates *l, const tms_sparse_attend *p) {
    return l->setup->reading.scored == TMS_SCORE_BOUNDS &&
           !(l->setup->params.flags & TAMIS_PLAN_UNFUSED) && !tms_select_is_wide(&p->select) &&
           !tms_sparse_attend_refusal(l->setup->dev, p);
}

/* Only plans whose rows are all rotated have its kernels. */
static bool may_write(const tms_templates *l) {
    const uint32_t flags = l->setup->params.flags;
    return (flags & TAMIS_PLAN_ROTATED) && !(flags & TAMIS_PLAN_UNFUSED);
}

bool tms_template_writes(const tms_templates *l, const tms_write_attend *p) {
    return may_write(l) && !tms_write_attend_refusal(l->setup->dev, p);
}

bool tms_template_writes_sparse(const tms_templates *l, const tms_write_sparse_attend *p) {
    return may_write(l) && tms_template_fuses(l, &p->sparse) &&
           !tms_write_sparse_attend_refusal(l->setup->dev, p);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static uint32_t smaller(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

static uint64_t mass_scratch_bytes(const tms_templates *l) {
    if (l->setup->reading.scored != TMS_SCORE_MASS) return 0;
    tms_sparse_attend listed = tms_template_sparse(l, 0, 0);
    listed.score.batch.n_rows = l->setup->params.max_selected_rows;
    tms_page_mass mass = tms_template_mass(l, &listed);
    return tms_page_mass_scratch(l->setup->dev, &mass);
}

/* Scratch of the select that lists pages. If lanes stay at their length it is one of the wide
 * forms. */
static uint64_t list_scratch_bytes(const tms_templates *l) {
    if (!l->setup->reading.listed) return 0;
    tms_select select = tms_template_sparse(l, 0, 0).select;
    select.batch.n_rows = l->setup->params.max_selected_rows;
    select.batch.max_visible = l->setup->longest;
    return tms_select_scratch(l->setup->dev, &select);
}

/* Attend of a layer's decode rows or of prefill tiles over all pages. */
static uint64_t attend_scratch_bytes(const tms_templates *l, uint32_t layer) {
    const tms_setup *setup = l->setup;
    const uint32_t rows = setup->params.max_rows;
    tms_attend attend = tms_template_attend(l, layer, 0);
    attend.max_pages = setup->max_pages;
    attend.batch.max_visible = setup->longest;
    /* Tiles of one row alone are those of sequences with one row each. */
    attend.batch.n_rows = attend.batch.n_tiles = smaller(rows, setup->params.max_sequences);
    attend.batch.max_tile_rows = 1;
    const uint64_t decode = tms_attend_scratch(setup->dev, &attend);
    attend.batch.n_rows = rows;
    attend.batch.n_tiles = smaller(rows, rows / TMS_TILE_ROWS + setup->params.max_sequences);
    attend.batch.max_tile_rows = TMS_TILE_ROWS;
    return larger(decode, tms_attend_scratch(setup->dev, &attend));
}

/* The most scratch of any launch: attend, of whose forms each layer of a view may take another,
 * page_mass, select. */
static uint64_t scratch_bytes(const tms_templates *l) {
    uint64_t most = larger(mass_scratch_bytes(l), list_scratch_bytes(l));
    for (uint32_t layer = 0; layer < l->setup->cache->params.n_layers; layer++)
        most = larger(most, attend_scratch_bytes(l, layer));
    return most;
}

static void make_templates(const tms_templates *l) {
    for (uint32_t layer = 0; layer < l->setup->cache->params.n_layers; layer++)
        make_template(l, layer);
}

tamis_status tms_templates_create(tms_templates *l, tamis_error *error) {
    const tms_setup *setup = l->setup;
    const tms_reading *reading = &setup->reading;
    const size_t sequences = setup->params.max_sequences;
    /* Lists, and rows of scores, of the largest step that is not exact. */
    const uint64_t entries =
        (uint64_t)setup->params.max_selected_rows * setup->cache->params.n_kv_heads;
    const uint64_t scores = entries * setup->max_pages,
                   lists = entries * (tms_setup_entries(setup) + 1ull);
    const uint64_t lse =
        (uint64_t)setup->params.max_rows * setup->cache->params.n_heads * sizeof(float);
    const bool random = reading->scored == TMS_SCORE_RANDOM;
    l->serials = tms_memory_host(setup->memory, sequences + 1, sizeof *l->serials);
    l->templates =
        tms_memory_host(setup->memory, setup->cache->params.n_layers, sizeof *l->templates);
    if (random) l->score_host = tms_memory_host(setup->memory, scores, sizeof *l->score_host);
    TMS_REQUIRE(l->serials && l->templates && (l->score_host || !random), TAMIS_E_NO_MEMORY,
                "no host memory for the launches of %zu sequences", sequences);
    make_templates(l); /* how large the scratch is follows from them */
    TMS_TRY(tms_memory_take(setup->memory, scratch_bytes(l), &l->scratch, error));
    TMS_TRY(tms_memory_take(setup->memory, setup->sunk ? lse : 0, &l->lse, error));
    if (reading->listed)
        TMS_TRY(tms_memory_take(setup->memory, lists * sizeof(int32_t), &l->lists, error));
    if (reading->scored)
        TMS_TRY(tms_memory_take(setup->memory, scores * sizeof(float), &l->scores, error));
    make_templates(l);
    return TAMIS_OK;
}

void tms_templates_destroy(tms_templates *l) {
    tms_device *dev = l->setup->dev;
    tms_mem *memories[] = {l->scores, l->lists, l->lse, l->scratch};
    for (size_t i = 0; i < sizeof memories / sizeof *memories; i++)
        tms_device_free(dev, memories[i]);
    free(l->score_host);
    free(l->serials);
    free(l->templates);
}

/* ---- Kernels --------------------------------------------------------------------------------- */

/* Rows that are rotated, none so far. */
static tms_write_rotated rotated_rows(const tms_templates *l, uint32_t layer) {
    const tamis_cache_params *cache = &l->setup->cache->params;
    tms_write_rotated write = tms_template_write(l, layer);
    write.k_stride = write.v_stride = (uint64_t)cache->n_kv_heads * cache->head_dim;
    write.dtype = TAMIS_F32;
    write.rotation.n_rot = cache->head_dim;
    return write;
}

/* Launches the ops that come before attend, with no rows. */
static tamis_status warm_writes(const tms_templates *l, tamis_error *error) {
    const tms_setup *setup = l->setup;
    tms_device *dev = setup->dev;
    const tms_ref tables = tms_step_table(l->step, 0);
    tms_write_rows write = rotated_rows(l, 0);
    tms_bounds bounds = tms_cache_bounds(setup->cache, 0);
    bounds.pages = tables;
    tms_copy_pages copy = {
        .data = write.kv.data, .bytes = setup->cache->size.page_bytes, .pairs = tables};
    TMS_TRY(tms_run_write_rotated(dev, &write, error));
    write.rotation.n_rot = 0;
    if (!(setup->params.flags & TAMIS_PLAN_ROTATED))
        TMS_TRY(tms_run_write_rows(dev, &write, error));
    if (!(setup->params.flags & TAMIS_PLAN_ROTATED) &&
        tms_dtype_of_rows(setup->cache->params.dtype)) { /* else rows come as f32 alone */
        write.dtype = setup->cache->params.dtype;
        TMS_TRY(tms_run_write_rows(dev, &write, error));
    }
    TMS_TRY(tms_run_bounds(dev, &bounds, error));
    return tms_run_copy_pages(dev, &copy, error);
}

/* Launches all ways to attend tiles of the step's size in a layer, with no rows. */
static tamis_status warm_attends(const tms_templates *l, uint32_t layer, tamis_error *error) {
    const tms_reading *reading = &l->setup->reading;
    tms_device *dev = l->setup->dev;
    uint64_t width = tms_setup_width(l->setup);
    tms_attend all = tms_template_attend(l, layer, 0);
    all.q.stride = all.out.stride = width;
    TMS_TRY(tms_sight_find(l->sight, l->step, layer, 0, &all.batch, error));
    TMS_TRY(tms_run_attend(dev, &all, error));
    const tms_write_attend written = {rotated_rows(l, layer), all};
    if (l->step->sections[0].max_tile_rows == 1 && tms_template_writes(l, &written))
        TMS_TRY(tms_run_write_attend(dev, &written, error));
    if (!tms_setup_lists(l->setup, layer)) return TAMIS_OK;
    tms_sparse_attend listed = tms_template_sparse(l, layer, 0);
    listed.score.q.stride = listed.attend.q.stride = listed.attend.out.stride = width;
    if (tms_template_fuses(l, &listed)) TMS_TRY(tms_run_sparse_attend(dev, &listed, error));
    const tms_write_sparse_attend sparse = {written.write, listed};
    if (l->step->sections[0].max_tile_rows == 1 && tms_template_writes_sparse(l, &sparse))
        TMS_TRY(tms_run_write_sparse_attend(dev, &sparse, error));
    tms_page_mass mass = tms_template_mass(l, &listed);
    if (reading->scored == TMS_SCORE_BOUNDS)
        TMS_TRY(tms_run_score_pages(dev, &listed.score, error));
    if (reading->scored == TMS_SCORE_MASS) TMS_TRY(tms_run_page_mass(dev, &mass, error));
    if (!reading->given) TMS_TRY(tms_run_select(dev, &listed.select, error));
    return tms_run_attend(dev, &listed.attend, error);
}

tamis_status tms_templates_warm(const tms_templates *l, tms_step *step, tamis_error *error) {
    const bool view = l->setup->cache->view != NULL;
    if (!view) TMS_TRY(warm_writes(l, error)); /* the view has launched bounds */
    for (uint32_t layer = 0; layer < l->setup->cache->params.n_layers; layer++) {
        if (!view && !tms_setup_is_first(l->setup, layer)) continue;
        for (uint32_t rows = 1; rows <= TMS_TILE_ROWS; rows *= TMS_TILE_ROWS) {
            step->sections[0].max_tile_rows = rows;
            TMS_TRY(warm_attends(l, layer, error));
        }
    }
    return TAMIS_OK;
}
