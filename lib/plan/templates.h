/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of the launches that calls_layer.c makes for a layer of the open step: writing its
 * rows, then attending all pages or the selected ones; and the times of stages. */
#ifndef TMS_PLAN_TEMPLATES_H
#define TMS_PLAN_TEMPLATES_H

#include "lib/plan/page_table.h"
#include "lib/plan/sight.h"

/* What the launches of a layer take that no step changes: to write rows, to attend all pages, and to
 * score, select and attend. */
typedef struct tms_template {
    tms_write_rows write;
    tms_attend all;
    tms_sparse_attend listed;
} tms_template;

typedef struct tms_templates {
    const tms_setup *setup;
    const tms_step *step;
    const tms_page_table *table;
    const tms_sight *sight;
    tms_template *templates; /* [n_layers] */
    tms_mem *scores;         /* f32 [max_selected_rows][n_kv_heads][max_pages] */
    tms_mem *lists; /* int32 [max_selected_rows][n_kv_heads][tms_setup_entries], then the counts */
    tms_mem *scratch;
    tms_mem *lse;      /* f32 [max_rows][n_heads], where layers have sinks */
    float *score_host; /* as many as scores, for selection random */
    /* [max_sequences + 1] under fixed launches: the cache's bounds_serial when a step of that many
     * rows was last run by calls, which a graph may have recorded; 0: never. */
    uint64_t *serials;
    /* The last attend, for reading what it selected. */
    bool attended;
    uint32_t attended_layer;
} tms_templates;

/* Allocates the memory of the launches; the rooms that it uses must have been made. The second call
 * builds the kernels and launches each once, with no rows, for tiles of one row and of the most. */
tamis_status tms_templates_create(tms_templates *l, tamis_error *error);
tamis_status tms_templates_warm(const tms_templates *l, tms_step *step, tamis_error *error);
void tms_templates_destroy(tms_templates *l);

/* The parameters of a layer's ops without the caller's rows (k, v; q, out): write all rows of the step;
 * of a section's rows, attend all pages; score, select and attend. */
tms_write_rows tms_template_write(const tms_templates *l, uint32_t layer);
tms_attend tms_template_attend(const tms_templates *l, uint32_t layer, uint32_t section);
tms_sparse_attend tms_template_sparse(const tms_templates *l, uint32_t layer, uint32_t section);
/* The same for the rows of a section alone, of a write that has the caller's rows. */
tms_write_rows tms_template_write_section(const tms_templates *l, uint32_t layer, uint32_t section,
                                          const tms_write_rows *write);
/* The lists of the step's rows, one behind another, in the layer that was attended last. They are read
 * behind the step's end, too, when its sequences may be gone. */
tms_lists tms_template_lists(const tms_templates *l, uint32_t layer);
/* What the rows of an attend give to the slots of their lanes, summed: without items and values. */
tms_observe tms_template_observe(const tms_attend *attend);
/* page_mass with the scores' memory of p->score. */
tms_page_mass tms_template_mass(const tms_templates *l, const tms_sparse_attend *p);
/* Enqueues random scores for p->select, whose stride it sets. */
tamis_status tms_template_send_random(const tms_templates *l, uint32_t layer, uint32_t section,
                                      tms_sparse_attend *p, tamis_error *error);
/* Whether sparse_attend replaces score_pages, select and attend. */
bool tms_template_fuses(const tms_templates *l, const tms_sparse_attend *p);

/* Whether the launch that attends, in one of these ways, can write rows of decode steps first. */
bool tms_template_writes(const tms_templates *l, const tms_write_attend *p);
bool tms_template_writes_sparse(const tms_templates *l, const tms_write_sparse_attend *p);

/* Marks where a stage begins, if times are collected: else *from is NULL. */
tamis_status tms_stage_start(const tms_setup *setup, tms_event **from, tamis_error *error);
/* Waits for the end of a stage whose calls answered `status`, and adds its time to *us. Returns
 * `status`, or if that is OK what it answers itself. */
tamis_status tms_stage_stop(const tms_setup *setup, tms_event *from, tamis_status status,
                            double *us, tamis_error *error);

#endif
