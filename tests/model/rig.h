/* SPDX-License-Identifier: Apache-2.0 */
/* A device, a model, a cache and a runner for tests, and checks that name the library's reason. */
#ifndef TEST_RIG_H
#define TEST_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <tamis/model.h>
#include <tamis/tamis.h>

#include <cmocka.h>

/* The device under test and the folder tests/data, from the command line. */
extern const char *rig_device, *rig_data;

typedef struct rig {
    tamis_context *context;
    tamis_model *model;
    tamis_cache *cache;
    tamis_runner *runner;
    tamis_error error;
} rig;

/* `file` lies in rig_data unless it begins with '/'. Every other field has a default: f32, full, one
 * sequence, 512 rows, the model's context. */
typedef struct rig_params {
    const char *file;
    tamis_dtype dtype;
    tamis_selection selection;
    uint32_t max_sequences, max_rows, max_selected_rows, max_context;
    uint64_t capacity_tokens;
    tamis_eviction eviction;
    uint32_t load_dtypes;
    int masses, trees, verified;
    int base; /* the base form of every op */
} rig_params;

void rig_open(rig *r, const rig_params *params);
void rig_close(rig *r);

/* Fails the test with the reason unless `status` is OK. */
#define RIG_OK(r, call)                                                                            \
    do {                                                                                           \
        if ((call) != TAMIS_OK) fail_msg("%s: %s", #call, (r)->error.text);                        \
    } while (0)

/* The call is refused with `wanted` and a reason that contains `part`. */
#define RIG_REFUSED(r, wanted, part, call) rig_refused(&(r)->error, (call), (wanted), (part), #call)
void rig_refused(const tamis_error *error, tamis_status status, tamis_status wanted,
                 const char *part, const char *call);

tamis_sequence rig_add(rig *r);
uint32_t rig_length(rig *r, tamis_sequence sequence);
/* The first `count` bytes of tests/data/text.txt as tokens of the model. */
void rig_text(rig *r, int32_t *tokens, size_t count);

/* Sets rig_device and rig_data from "test <device> <data folder>"; false says how to call it. */
int rig_arguments(int argc, char **argv);

#endif
