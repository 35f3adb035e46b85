/* SPDX-License-Identifier: Apache-2.0 */
/* The file of trials: reading it, writing it whole, and the gate. */
#include "lib/blend/trials.h"
#include "lib/blend/selector.h"
#include "lib/core/core.h"
#include "lib/core/text_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tamis_status tamis_blend_trial_path(char *path, size_t capacity, tamis_error *error) {
    TMS_REQUIRE(path, TAMIS_E_ARGUMENT, "path is NULL");
    return tms_config_path("blend.trials", path, capacity, error);
}

/* ---- Reading --------------------------------------------------------------------------------- */

static tamis_status read_all(const char *path, tms_trials *out, tamis_error *error) {
    char *text = NULL;
    size_t bytes = 0;
    *out = (tms_trials){0};
    TMS_TRY(tms_text_read(path, &text, &bytes, error));
    const tamis_status status = text ? tms_trials_parse(path, text, bytes, out, error) : TAMIS_OK;
    free(text);
    return status;
}

tamis_status tamis_blend_trial_read(const char *path, tamis_blend_trial *trials, size_t capacity,
                                    size_t *count, tamis_error *error) {
    tms_trials all;
    TMS_REQUIRE(path, TAMIS_E_ARGUMENT, "path is NULL");
    TMS_REQUIRE(count, TAMIS_E_ARGUMENT, "count is NULL");
    TMS_REQUIRE(trials || capacity == 0, TAMIS_E_ARGUMENT, "trials is NULL for %zu", capacity);
    TMS_TRY(read_all(path, &all, error));
    const size_t n = all.count < capacity ? all.count : capacity;
    if (n > 0) memcpy(trials, all.entries, n * sizeof *trials);
    *count = all.count;
    free(all.entries);
    return TAMIS_OK;
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* The entries with one more, or with one in the place of another. */
static tamis_status add_entry(tms_trials *all, const tamis_blend_trial *trial, tamis_error *error) {
    size_t at = 0;
    while (at < all->count && !tms_trial_same(&all->entries[at], trial))
        at++;
    if (at == all->count) {
        tamis_blend_trial *more = realloc(all->entries, (at + 1) * sizeof *more);
        TMS_REQUIRE(more, TAMIS_E_NO_MEMORY, "no memory for %zu trials", at + 1);
        all->entries = more;
        all->count++;
    }
    all->entries[at] = *trial;
    return TAMIS_OK;
}

static tamis_status rewrite(tms_draft *d, const tamis_blend_trial *trial, tamis_error *error) {
    tms_trials all;
    char *text = NULL;
    size_t bytes = 0;
    TMS_TRY(read_all(d->path, &all, error));
    tamis_status status = add_entry(&all, trial, error);
    if (status == TAMIS_OK) status = tms_trials_print(&all, &text, &bytes, error);
    if (status == TAMIS_OK) status = tms_draft_put(d, text, bytes, error);
    free(text);
    free(all.entries);
    return status;
}

tamis_status tamis_blend_trial_write(const char *path, const tamis_blend_trial *trial,
                                     tamis_error *error) {
    tms_draft d;
    TMS_REQUIRE(path && *path, TAMIS_E_ARGUMENT, "path is %s", path ? "empty" : "NULL");
    TMS_REQUIRE(trial, TAMIS_E_ARGUMENT, "trial is NULL");
    TMS_TRY(tms_trial_check(trial, error));
    TMS_TRY(tms_draft_open(path, &d, error));
    const tamis_status status = rewrite(&d, trial, error);
    tms_draft_close(&d);
    return status;
}

/* ---- The gate -------------------------------------------------------------------------------- */

/* What an entry must have to speak for the parameters. Of share 1, where all is computed, none
 * need speak. */
static tamis_status describe(const tamis_blend_params *p, tamis_dtype cache_dtype,
                             tamis_blend_trial *out, tamis_error *error) {
    const tms_selector *selector = tms_selector_find(p->selector);
    TMS_REQUIRE(selector, TAMIS_E_ARGUMENT, "there is no selector %d", (int)p->selector);
    const double share = p->share == 0 ? TMS_DEFAULT_SHARE : p->share;
    *out = (tamis_blend_trial){.selector = p->selector,
                               .schedule = p->schedule,
                               .check_layer = p->check_layer ? p->check_layer : 1,
                               .cache_dtype = cache_dtype,
                               .dtype = p->dtype,
                               .n_sink = p->n_sink,
                               .share = selector->everything ? 1 : share};
    memcpy(out->fingerprint, p->fingerprint, sizeof out->fingerprint);
    if (out->share == 1) return TAMIS_OK;
    TMS_REQUIRE(tms_selector_shares(selector), TAMIS_E_UNSUPPORTED,
                "selector %s takes no share, so that no trial says what it costs", selector->name);
    TMS_REQUIRE(!p->shares && p->least == 0 && p->most == 0, TAMIS_E_UNSUPPORTED,
                "a list of %" PRIu32 " shares, least %" PRIu32 " or most %" PRIu32
                " is given, of which no trial says what it costs",
                p->n_shares, p->least, p->most);
    return TAMIS_OK;
}

static tamis_status refuse(const char *path, const tamis_blend_trial *wanted,
                           const tamis_blend_trial *found, tamis_error *error) {
    char hex[33], layer[16] = "none", why[96] = "there is no entry for";
    tms_hex(wanted->fingerprint, hex);
    if (wanted->check_layer != TAMIS_BLEND_NO_CHECK)
        snprintf(layer, sizeof layer, "%" PRIu32, wanted->check_layer);
    if (found && found->share > 0)
        snprintf(why, sizeof why, "share %g is below %g, the smallest that passed, for",
                 wanted->share, found->share);
    else if (found)
        snprintf(why, sizeof why, "no share has passed for");
    return tms_error_set(
        error, TAMIS_E_STATE,
        "%s: %s model %s with selector %s, %s schedule, check layer %s, %s records "
        "behind %" PRIu32 " tokens, %s cache; tamis blend trial measures it",
        path, why, hex, tamis_blend_selector_name(wanted->selector),
        wanted->schedule == TAMIS_BLEND_FLAT ? "flat" : "falling", layer,
        tamis_dtype_name(wanted->dtype), wanted->n_sink, tamis_dtype_name(wanted->cache_dtype));
}

tamis_status tamis_blend_trial_passed(const char *path, const tamis_blend_params *params,
                                      tamis_dtype cache_dtype, tamis_blend_trial *out,
                                      tamis_error *error) {
    tamis_blend_trial wanted;
    tms_trials all;
    TMS_REQUIRE(path, TAMIS_E_ARGUMENT, "path is NULL");
    TMS_REQUIRE(params, TAMIS_E_ARGUMENT, "params is NULL");
    TMS_TRY(describe(params, cache_dtype, &wanted, error));
    if (wanted.share == 1) {
        if (out) *out = (tamis_blend_trial){0};
        return TAMIS_OK;
    }
    TMS_TRY(read_all(path, &all, error));
    const tamis_blend_trial *found = NULL;
    for (size_t i = 0; i < all.count && !found; i++)
        if (tms_trial_same(&all.entries[i], &wanted)) found = &all.entries[i];
    tamis_status status = TAMIS_OK;
    if (!found || found->share == 0 || wanted.share < found->share)
        status = refuse(path, &wanted, found, error);
    else if (out)
        *out = *found;
    free(all.entries);
    return status;
}
