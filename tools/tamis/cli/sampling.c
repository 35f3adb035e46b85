/* SPDX-License-Identifier: Apache-2.0 */
/* The flags that say how the next token is chosen. */
#include "cli/sampling.h"

#include <math.h>

/* A share, which a flag may set. */
static bool share(const char *command, const char *flag, const char *text, bool above, float *out) {
    return text == NULL || cli_decimal(command, flag, text, (cli_range){0, 1, above}, out);
}

/* The first flag of those that say how to draw, if one is given. */
static const char *given(const cli_sampling_flags *f) {
    if (f->top_k != CLI_UNSET) return "--top-k";
    if (f->top_p != NULL) return "--top-p";
    if (f->min_p != NULL) return "--min-p";
    return f->seed.given ? "--seed" : NULL;
}

bool cli_sampling(const char *command, const cli_sampling_flags *f, tamis_sampling *out) {
    *out = (tamis_sampling){.top_k = f->top_k != CLI_UNSET ? f->top_k : 0, .seed = f->seed.value};
    if (f->temperature != NULL && !cli_decimal(command, "--temperature", f->temperature,
                                               (cli_range){.most = INFINITY}, &out->temperature))
        return false;
    if (!share(command, "--top-p", f->top_p, true, &out->top_p) ||
        !share(command, "--min-p", f->min_p, false, &out->min_p))
        return false;
    if (out->temperature > 0 || given(f) == NULL) return true;
    cli_fail(command, "%s: is given where nothing is drawn (see --temperature)", given(f));
    return false;
}
