/* SPDX-License-Identifier: Apache-2.0 */
/* One layer of an engine's decode loop, under quest. The README shows it.
 *   cc decode.c $(pkg-config --cflags --libs tamis) -o decode && ./decode */
#include <stdio.h>
#include <tamis/tamis.h>

#define TRY(call)                                                                                  \
    if ((call) != TAMIS_OK) return fprintf(stderr, "%s\n", error.text), 1

int main(void) {
    static tamis_error error; /* structs of zeros: 0 means the default */
    static tamis_cache_params shape;
    static tamis_plan_params params;
    static tamis_rows q, k, v, out;
    static tamis_step step;
    tamis_context *context = NULL;
    tamis_cache *cache = NULL;
    tamis_plan *plan = NULL;
    tamis_buffer *rows = NULL;
    tamis_sequence text = 0;
    shape.n_layers = 1, shape.n_heads = 8, shape.n_kv_heads = 2, shape.head_dim = 128;
    shape.dtype = TAMIS_F16, shape.capacity_tokens = 2048;
    params.max_context = 2048;
    tamis_selection_default(TAMIS_SELECT_QUEST, &params.selection);
    params.selection.budget = 512;
    TRY(tamis_context_create(NULL, &context, &error)); /* TAMIS_DEVICE, else CUDA or OpenCL */
    TRY(tamis_cache_create(context, &shape, &cache, &error));
    TRY(tamis_plan_create(cache, &params, &plan, &error));
    TRY(tamis_cache_add(cache, &text, &error));

    float token[2560] = {1}; /* q of 8 heads, k and v of 2, room for the output of 8 */
    TRY(tamis_buffer_create(context, sizeof token, &rows, &error));
    q.buffer = k.buffer = v.buffer = out.buffer = rows;
    k.offset = 4096, v.offset = 5120, out.offset = 6144; /* bytes */
    step.sequences = &text, step.count = 1;
    for (int i = 0; i < 2048; i++) {
        TRY(tamis_buffer_write(rows, 0, token, sizeof token, &error)); /* your model's projections */
        TRY(tamis_plan_step_begin(plan, &step, &error));
        TRY(tamis_plan_write(plan, 0, &k, &v, &error)); /* for each layer: write, attend */
        TRY(tamis_plan_attend(plan, 0, &q, &out, &error));
        TRY(tamis_plan_step_end(plan, &error));
    }
    TRY(tamis_context_wait(context, &error));
    tamis_plan_counters c;
    tamis_plan_get_counters(plan, &c);
    printf("read %.2f of the cache\n", (double)c.kv_bytes_read / (double)c.kv_bytes_full);
    tamis_plan_destroy(&plan);
    tamis_buffer_destroy(&rows);
    tamis_cache_destroy(&cache);
    tamis_context_destroy(&context);
    return 0;
}
