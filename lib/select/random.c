/* SPDX-License-Identifier: Apache-2.0 */
/* random: sinks, recent, and random pages: the lower limit with which other selections are
 * compared. The host makes the scores, so that a seed gives the same pages on every device. */
#include "lib/select/select.h"

/* The last mixing steps of splitmix64 (Steele, Lea, Flood, 2014). */
static uint64_t mix(uint64_t z) {
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

float tms_selection_random_score(uint64_t seed, uint32_t layer, uint32_t position, uint32_t kv_head,
                                 uint32_t ordinal) {
    const uint64_t row = mix(mix(seed) ^ ((uint64_t)layer << 32 | position));
    const uint64_t page = mix(row ^ ((uint64_t)kv_head << 32 | ordinal));
    return (float)(page >> 40) / (1 << 24); /* 24 bits: exact */
}

static void ask(const tamis_selection *selection, uint32_t page_size, tms_reading *out) {
    tms_selection_ask_lists(selection, page_size, TMS_SCORE_RANDOM, out);
}

const tms_selection_entry tms_selection_random = {.name = "random",
                                                  .kind = TAMIS_SELECT_RANDOM,
                                                  .defaults = {.kind = TAMIS_SELECT_RANDOM,
                                                               .budget = TMS_DEFAULT_BUDGET,
                                                               .sinks = 4,
                                                               .recent = 16},
                                                  .check = tms_selection_check_scored,
                                                  .ask = ask};
