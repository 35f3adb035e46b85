/* SPDX-License-Identifier: Apache-2.0 */
/* The sizes of every public struct, as programs in the field were compiled with it: a struct keeps
 * its size, and a new field takes a place of what is reserved, so that `reserved` begins later and
 * ends where it did. LP64; elsewhere there is nothing to compare. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <tamis/batch.h>
#include <tamis/blend.h>
#include <tamis/blend_trials.h>
#include <tamis/cuda.h>
#include <tamis/model.h>
#include <tamis/opencl.h>
#include <tamis/record.h>
#include <tamis/sample.h>
#include <tamis/store.h>
#include <tamis/tamis.h>

typedef struct layout {
    const char *name;
    size_t bytes, now;
    size_t last_now; /* offset of the last byte of `reserved`, + 1; 0: the struct has none */
} layout;

#define FIXED(type, bytes)                                                                         \
    { #type, (bytes), sizeof(type), 0 }
#define GROWS(type, bytes)                                                                         \
    { #type, (bytes), sizeof(type), offsetof(type, reserved) + sizeof(((type *)NULL)->reserved) }

static const layout layouts[] = {
    FIXED(tamis_error, 512),
    FIXED(tamis_rows, 32),
    FIXED(tamis_weight_matrix, 32),
    GROWS(tamis_device_info, 656),
    GROWS(tamis_context_params, 88),
    FIXED(tamis_build_progress, 16),
    FIXED(tamis_setting_info, 24),
    GROWS(tamis_tune_params, 176),
    GROWS(tamis_tune_result, 56),
    FIXED(tamis_setting_class, 12),
    GROWS(tamis_bounds, 24),
    GROWS(tamis_cache_params, 128),
    GROWS(tamis_cache_size, 104),
    GROWS(tamis_cache_stats, 112),
    GROWS(tamis_sequence_stats, 104),
    GROWS(tamis_read_limit, 464),
    GROWS(tamis_selection, 96),
    GROWS(tamis_eviction, 112),
    GROWS(tamis_attention, 64),
    GROWS(tamis_layer, 112),
    GROWS(tamis_plan_params, 368),
    GROWS(tamis_step, 56),
    GROWS(tamis_step_pages, 64),
    FIXED(tamis_rotation, 24),
    GROWS(tamis_rotated_rows, 208),
    GROWS(tamis_caller_lists, 88),
    GROWS(tamis_plan_attend_params, 136),
    GROWS(tamis_stored_rows, 144),
    GROWS(tamis_evicted, 104),
    GROWS(tamis_save_params, 72),
    GROWS(tamis_plan_counters, 264),
    GROWS(tamis_plan_times, 208),
    GROWS(tamis_model_params, 80),
    GROWS(tamis_model_info, 416),
    GROWS(tamis_vocab_info, 136),
    GROWS(tamis_attention_rows, 168),
    GROWS(tamis_sampling, 56),
    GROWS(tamis_run, 64),
    GROWS(tamis_scheduler_params, 72),
    GROWS(tamis_request, 96),
    FIXED(tamis_request_event, 24),
    GROWS(tamis_scheduler_stats, 144),
    FIXED(tamis_place, 16),
    FIXED(tamis_read_order, 16),
    FIXED(tamis_lists, 40),
    GROWS(tamis_linear_params, 160),
    FIXED(tamis_linear_part, 88),
    GROWS(tamis_linear_parts_params, 456),
    GROWS(tamis_linear_chain_params, 48),
    GROWS(tamis_norm_params, 128),
    GROWS(tamis_rotate_params, 120),
    GROWS(tamis_activate_params, 136),
    GROWS(tamis_embed_params, 128),
    GROWS(tamis_argmax_params, 88),
    GROWS(tamis_scatter_rows_params, 128),
    GROWS(tamis_convert_params, 104),
    GROWS(tamis_kv, 136),
    GROWS(tamis_kv_values, 80),
    GROWS(tamis_view_params, 80),
    GROWS(tamis_view_step, 104),
    GROWS(tamis_batch, 160),
    GROWS(tamis_bounds_params, 216),
    GROWS(tamis_score_pages_params, 384),
    GROWS(tamis_page_mass_params, 464),
    GROWS(tamis_select_params, 272),
    GROWS(tamis_attend_params, 560),
    GROWS(tamis_merge_params, 112),
    GROWS(tamis_observe_params, 560),
    GROWS(tamis_record_params, 88),
    GROWS(tamis_store_params, 88),
    GROWS(tamis_chunk_id, 120),
    GROWS(tamis_chunk_shape, 40),
    GROWS(tamis_chunk_planes, 176),
    GROWS(tamis_chunk_info, 176),
    GROWS(tamis_tier_stats, 160),
    GROWS(tamis_store_stats, 768),
    GROWS(tamis_store_found, 64),
    GROWS(tamis_blend_params, 224),
    GROWS(tamis_blend_costs, 88),
    GROWS(tamis_blend_part, 32),
    GROWS(tamis_blend_figures, 96),
    GROWS(tamis_blend_trial, 1824),
    GROWS(tamis_blend_tier, 32),
    GROWS(tamis_blend_engine, 72),
    GROWS(tamis_blend_stats, 312),
    GROWS(tamis_blend_layer_stats, 112),
};

int main(void) {
    int failed = 0;
    if (sizeof(void *) != 8 || sizeof(size_t) != 8) {
        printf("pointers of %zu bytes: nothing to compare\n", sizeof(void *));
        return 77;
    }
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        const layout *l = &layouts[i];
        if (l->now != l->bytes) {
            printf("%s has %zu bytes, programs in the field have %zu\n", l->name, l->now, l->bytes);
            failed = 1;
        }
        if (l->last_now > 0 && l->last_now != l->now) {
            printf("%s: what is reserved ends at byte %zu of %zu\n", l->name, l->last_now, l->now);
            failed = 1;
        }
    }
    return failed;
}
