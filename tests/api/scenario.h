/* SPDX-License-Identifier: Apache-2.0 */
/* One script of calls to a plan and its cache, in which one call of the device may fail: prompts in
 * pieces, or with stored rows, a fork, a truncation, batches, trees, copies of shared pages, evictions between steps and in
 * them, selections, a step given up. What it reads and leaves is recorded, to be compared with a
 * run in which nothing fails. */
#ifndef TEST_SCENARIO_H
#define TEST_SCENARIO_H

#include "tests/api/evicting.h"

typedef struct scenario_case {
    const char *name;
    tamis_selection_kind selection;
    tamis_eviction_kind eviction;
    uint32_t options;
    uint32_t every;
    bool timing, lists; /* of every stage; an eviction to keep lists */
    bool stored;        /* exact steps are narrowed after a layer, and load the other rows */
    uint32_t window;    /* of every layer, which then has sinks, too; 0: none */
    bool trees;         /* a sequence's rows of decode steps are trees, of which one path stays, */
    bool verified;      /* or three rows, of which two stay */
} scenario_case;
extern const scenario_case scenario_cases[];
extern const uint32_t scenario_case_count;

/* What makes a call of the device fail. */
typedef struct scenario_faults {
    /* The calls of the device that follow are those of a call of the script, or are not. */
    void (*count)(tms_device *dev, bool on);
    bool (*happened)(void);
    const char *text; /* stands in the error of the call that fails */
    /* Whether a call may succeed though a call of the device has failed in it. */
    bool (*may_be_passed_over)(void);
} scenario_faults;

/* What the caller does when a call of a step has failed. */
typedef enum scenario_recovery {
    SCENARIO_AGAIN,  /* makes the call again */
    SCENARIO_GIVE_UP /* gives the step up and repeats it whole */
} scenario_recovery;

typedef enum scenario_end {
    SCENARIO_WHOLE,   /* the script went to its end */
    SCENARIO_REFUSED, /* after a fault a call answered E_STATE, or the device had an error to stay */
} scenario_end;

typedef struct scenario {
    evict_world e;
    const scenario_case *c;
    const scenario_faults *faults; /* NULL: none */
    scenario_recovery recovery;
    /* Without faults: the call of this number is where its step is given up, before it or after.
     * 0: none. */
    uint32_t leave_at;
    bool leave_after;

    uint32_t calls, failed_at; /* calls of the script, from 1 on; the one in which a fault was */
    tamis_status status;       /* of the last one */
    bool happened;             /* before it */
    bool gave_up;              /* a step that cannot be undone, because of the fault */
    char refusal[sizeof(tamis_error)];
    tamis_sequence sequences[3];
    tamis_buffer *table; /* of a rotation, for stored rows */
    uint8_t *record;
    size_t used, room;
} scenario;

/* Opens a world for the case: cache and plan. */
void scenario_open(scenario *s, const scenario_case *c);
void scenario_close(scenario *s);
tamis_plan_params scenario_plan(const scenario_case *c);

/* Runs the script from nothing held to nothing held; everything it read is in the record. */
scenario_end scenario_run(scenario *s);

#endif
