/* SPDX-License-Identifier: Apache-2.0 */
/* What a command that blends says where the gate refuses: the model's fingerprint, and the command
 * that makes an entry; and what passes without one. */
#include "cli/gate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[64], path[96];
static tamis_error error;

/* Whether the gate lets it pass; the reason is in `error`. */
static bool ask(const char *trial, const tamis_blend_params *params) {
    error = (tamis_error){0};
    return cli_gate(trial, "m.gguf", params, TAMIS_F16, &error) == TAMIS_OK;
}

static void expect_said(const char *what) {
    if (strstr(error.text, what) == NULL) fail_msg("\"%s\" lacks \"%s\"", error.text, what);
}

static tamis_blend_params params_of(double share) {
    tamis_blend_params out = {.share = share, .dtype = TAMIS_F16};
    for (size_t i = 0; i < 16; i++)
        out.fingerprint[i] = (uint8_t)(0xa0 + i);
    return out;
}

static tamis_blend_trial trial_of(double share) {
    tamis_blend_trial out = {.check_layer = 1,
                             .cache_dtype = TAMIS_F16,
                             .dtype = TAMIS_F16,
                             .max_kl = 1,
                             .n_figures = 1,
                             .share = share,
                             .figures = {{.share = share, .passed = 1}}};
    memcpy(out.fingerprint, params_of(share).fingerprint, sizeof(out.fingerprint));
    return out;
}

static void the_gate_says_why_it_refuses(void **state) {
    (void)state;
    tamis_blend_params low = params_of(0.1), first = params_of(0);
    const tamis_blend_trial trial = trial_of(0.2);
    first.selector = TAMIS_BLEND_FIRST;
    assert_false(ask(path, &low));
    expect_said("there is no entry for model a0a1a2a3a4a5a6a7a8a9aaabacadaeaf with selector hkvd");
    expect_said("tamis blend trial measures it (--model m.gguf)");
    expect_said("--unchecked");
    assert_int_equal(tamis_blend_trial_write(path, &trial, NULL), TAMIS_OK);
    assert_false(ask(path, &low));
    expect_said("share 0.1 is below 0.2, the smallest that passed, for model a0a1");
    assert_int_equal(cli_gate_share(path, "m.gguf", &low, TAMIS_F16, &error), TAMIS_OK);
    assert_true(low.share == 0.2);
    assert_true(ask(path, &low));
    low.share = 0.7;
    assert_int_equal(cli_gate_share(path, "m.gguf", &low, TAMIS_F16, &error), TAMIS_OK);
    assert_true(low.share == 0.7);
    assert_int_equal(cli_gate_share(path, "m.gguf", &low, TAMIS_F32, &error), TAMIS_E_STATE);
    assert_false(ask(path, &first));
    expect_said("selector first takes no share");
}

static void the_gate_reads_the_users_file(void **state) {
    (void)state;
    const tamis_blend_params params = params_of(0.2);
    setenv("XDG_CONFIG_HOME", folder, 1);
    assert_false(ask(NULL, &params));
    expect_said("/tamis/blend.trials: there is no entry");
    unsetenv("XDG_CONFIG_HOME");
    unsetenv("HOME");
    assert_false(ask(NULL, &params));
    expect_said("--trials: is missing");
}

static void damage_passes_nothing(void **state) {
    (void)state;
    const tamis_blend_params params = params_of(0.2);
    FILE *file = fopen(path, "a");
    assert_non_null(file);
    fputs("more\n", file);
    fclose(file);
    assert_false(ask(path, &params));
    expect_said("its checksum is not that of its content");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_gate_says_why_it_refuses),
                                       cmocka_unit_test(the_gate_reads_the_users_file),
                                       cmocka_unit_test(damage_passes_nothing)};
    snprintf(folder, sizeof(folder), "/tmp/tamis-gate-XXXXXX");
    if (mkdtemp(folder) == NULL) return 1;
    snprintf(path, sizeof(path), "%s/policy", folder);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
