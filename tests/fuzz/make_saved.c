/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the corpus of fuzz-saved: sequences of each plan, the number of the plan in front.
 * Usage: make-saved FOLDER */
#include "tests/fuzz/saved_world.h"

#include <stdio.h>
#include <stdlib.h>

static int write_bytes(void *user, const void *bytes, size_t n) {
    return fwrite(bytes, 1, n, user) != n;
}

static int write_saved(const char *folder, const saved_world *world, saved_plan plan,
                       tamis_sequence id, int bounds) {
    const tamis_save_params params = {.flags = bounds ? TAMIS_SAVE_BOUNDS : 0};
    char path[512];
    uint32_t length = 0;
    if (tamis_cache_length(world->cache, id, &length, NULL, NULL) != TAMIS_OK) return 1;
    snprintf(path, sizeof path, "%s/plan-%d-length-%u%s", folder, (int)plan, length,
             bounds ? "-bounds" : "");
    FILE *f = fopen(path, "wb");
    int failed = !f || fputc((int)plan, f) == EOF ||
                 tamis_plan_save(world->plan, id, &params, write_bytes, f, NULL) != TAMIS_OK;
    if (f) failed |= fclose(f) != 0;
    return failed;
}

/* Of each plan: nothing; a prompt; what is left of it, and decode steps. */
static int write_plan(const char *folder, tamis_context *context, saved_plan plan) {
    saved_world world;
    tamis_sequence id = 0;
    saved_world_open(&world, context, plan);
    int failed = tamis_cache_add(world.cache, &id, NULL) != TAMIS_OK ||
                 write_saved(folder, &world, plan, id, 0) ||
                 saved_world_step(&world, id, 10, 1) != TAMIS_OK ||
                 write_saved(folder, &world, plan, id, 1);
    if (!failed && (plan == SAVED_SNAPKV || plan == SAVED_H2O))
        failed = tamis_plan_evict(world.plan, id, NULL, NULL) != TAMIS_OK;
    const uint32_t more = plan == SAVED_WINDOWED ? 38 : 4;
    for (uint32_t i = 0; !failed && i < more; i++)
        failed = saved_world_step(&world, id, 1, 0) != TAMIS_OK;
    failed = failed || write_saved(folder, &world, plan, id, 0);
    saved_world_close(&world);
    return failed;
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    tamis_context *context = saved_world_context();
    int failed = 0;
    for (int plan = 0; plan < SAVED_PLANS; plan++)
        failed |= write_plan(argv[1], context, (saved_plan)plan);
    tamis_context_destroy(&context);
    return failed;
}
