/* SPDX-License-Identifier: Apache-2.0 */
/* question: the hits to which the prompt's question attends most in full reuse, summed over its
 * rows, query heads and layers (the idea of ProphetKV, ICML '26, arXiv 2602.02579; from its abstract,
 * not from its code). The masses are measured in a pass of their own: see tamis/blend.h. */
#include "lib/blend/selector.h"

const tms_selector tms_selector_question = {
    .name = "question", .kind = TAMIS_BLEND_QUESTION, .asks = true};
