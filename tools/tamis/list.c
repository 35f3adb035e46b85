/* SPDX-License-Identifier: Apache-2.0 */
/* The list of all commands, and their groups. */
#include "bench/bench.h"
#ifdef TAMIS_HAVE_STORE
#include "blend/blend.h"
#endif
#include "cli/commands.h"
#include "compare/compare.h"
#include "eval/eval.h"
#ifdef TAMIS_HAVE_SERVE
#include "serve/serve.h"
#endif
#ifdef TAMIS_HAVE_STORE
#include "store/shared.h"
#endif

#include <string.h>

const cli_command *const cli_commands[] = {&cli_devices_command,
                                           &cli_models_command,
                                           &cli_run_command,
#ifdef TAMIS_HAVE_SERVE
                                           &serve_command,
#endif
                                           &compare_command,
                                           &cli_tokenize_command,
                                           &tune_command,
                                           &bench_arrivals_command,
                                           &bench_attention_command,
                                           &bench_decode_command,
                                           &bench_layers_command,
                                           &bench_linear_command,
                                           &bench_model_command,
                                           &bench_portability_command,
                                           &bench_throughput_command,
#ifdef TAMIS_HAVE_STORE
                                           &bench_ttft_command,
#endif
                                           &eval_passkey_command,
                                           &eval_recall_command,
                                           &eval_perplexity_command,
                                           &eval_eviction_command,
                                           &eval_ruler_command,
#ifdef TAMIS_HAVE_STORE
                                           &eval_blend_command,
                                           &blend_trial_command,
                                           &blend_list_command,
                                           &store_put_command,
                                           &store_list_command,
                                           &store_verify_command,
                                           &store_gc_command,
#endif
                                           NULL};

const cli_group cli_command_groups[] = {
    {"bench", "measure decoding: full against selections and evictions", "benchmark"},
    {"eval", "measure what a model loses when it reads or keeps part of its KV cache",
     "evaluation"},
#ifdef TAMIS_HAVE_STORE
    {"blend", "say for which models stored chunks may be put into prompts", "command"},
    {"store", "keep the K and V of text chunks to be used wherever the texts stand", "command"},
#endif
    {NULL, NULL, NULL}};

int cli_is_of_group(const cli_command *command, const cli_group *group) {
    const char *name = command->name + strlen("tamis ");
    size_t bytes = strlen(group->name);
    return strncmp(name, group->name, bytes) == 0 && name[bytes] == ' ';
}
