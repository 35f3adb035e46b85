/* SPDX-License-Identifier: Apache-2.0 */
/* What overhead.py measures, in C: the mean CPU time of calls of a plan in STEPS steps of LAYERS layers, in
 * microseconds: of begin and end of a step together, of write, and of attend.
 *   overhead LAYERS STEPS */
#include <stdio.h>
#include <stdlib.h>
#include <tamis/tamis.h>
#include <time.h>

#define TRY(call)                                                                                  \
    if ((call) != TAMIS_OK) return fprintf(stderr, "%s\n", error.text), 1

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

int main(int argc, char **argv) {
    const uint32_t layers = argc > 2 ? (uint32_t)atoi(argv[1]) : 0;
    const int steps = argc > 2 ? atoi(argv[2]) : 0;
    static tamis_error error;
    static tamis_cache_params shape;
    static tamis_plan_params params;
    static tamis_rows q, k, v, out;
    static tamis_step step;
    tamis_context *context = NULL;
    tamis_cache *cache = NULL;
    tamis_plan *plan = NULL;
    tamis_buffer *rows = NULL;
    tamis_sequence text = 0;
    static const float zeros[256];
    double step_us = 0, write_us = 0, attend_us = 0;
    shape.n_layers = layers, shape.n_heads = shape.n_kv_heads = 1, shape.head_dim = 64;
    shape.dtype = TAMIS_F32, shape.capacity_tokens = 16, params.max_context = 16;
    TRY(tamis_context_create(NULL, &context, &error));
    TRY(tamis_cache_create(context, &shape, &cache, &error));
    TRY(tamis_plan_create(cache, &params, &plan, &error));
    TRY(tamis_cache_add(cache, &text, &error));
    TRY(tamis_buffer_create(context, sizeof zeros, &rows, &error));
    TRY(tamis_buffer_write(rows, 0, zeros, sizeof zeros, &error));
    q.buffer = k.buffer = v.buffer = out.buffer = rows;
    k.offset = 256, v.offset = 512, out.offset = 768;
    step.sequences = &text, step.count = 1;
    for (int i = -steps / 10; i < steps; i++) { /* the first ones do not count */
        if (i == 0) step_us = write_us = attend_us = 0;
        const double begun = now_us();
        TRY(tamis_plan_step_begin(plan, &step, &error));
        const double open = now_us();
        for (uint32_t layer = 0; layer < layers; layer++)
            TRY(tamis_plan_write(plan, layer, &k, &v, &error));
        const double written = now_us();
        for (uint32_t layer = 0; layer < layers; layer++)
            TRY(tamis_plan_attend(plan, layer, &q, &out, &error));
        const double attended = now_us();
        TRY(tamis_plan_step_end(plan, &error));
        step_us += now_us() - attended + open - begun;
        write_us += written - open;
        attend_us += attended - written;
        TRY(tamis_context_wait(context, &error));
        TRY(tamis_cache_truncate(cache, text, 0, &error));
    }
    printf("%.4f %.4f %.4f\n", step_us / steps, write_us / steps / layers, attend_us / steps / layers);
    tamis_buffer_destroy(&rows);
    tamis_plan_destroy(&plan);
    tamis_cache_destroy(&cache);
    tamis_context_destroy(&context);
    return 0;
}
