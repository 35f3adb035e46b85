/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `tamis bench portability`: platforms, problems, what one takes on the other, efficiencies,
 * the report. */
#ifndef CLI_BENCH_PORTABILITY_H
#define CLI_BENCH_PORTABILITY_H

#include "bench/bench.h"

#define PORTABILITY_PLATFORMS_MAX 32u
#define PORTABILITY_PROBLEMS_MAX  80u /* 4 for each of --context, and 7 */

/* A driver of a device, with one form of the kernels. */
typedef struct portability_platform {
    tamis_device_info info;
    const char *form;   /* "cpu", "gpu", "base"; "own": the backend has no choice */
    char hardware[128]; /* what it runs on: the processor, whichever driver, or the GPU */
    tamis_context *device;
    double flop_per_s; /* of attention so far: predicts how long a problem takes */
    bool slow;         /* another one on its hardware attends far faster */
} portability_platform;

/* What a problem's rate is compared with, on the same hardware. */
typedef enum portability_ceiling {
    PORTABILITY_PAGES,      /* the page-read limit */
    PORTABILITY_READ,       /* the read bandwidth */
    PORTABILITY_ARITHMETIC, /* the most multiplications and additions of any problem of many rows */
    PORTABILITY_CEILINGS
} portability_ceiling;

typedef enum portability_state {
    PORTABILITY_RAN,
    PORTABILITY_NOT_RUN, /* it would take too long */
    PORTABILITY_CANNOT   /* refused, or failed */
} portability_state;

/* A problem on a platform. */
typedef struct portability_cell {
    portability_state state;
    char reason[256]; /* where it was not run or cannot */
    bench_spread us;  /* of one layer, or of one product */
    uint32_t samples;
    double bytes;                         /* read, or read and written */
    double flop;                          /* 0: not counted */
    double read_gb_per_s, limit_gb_per_s; /* as the platform itself reaches them; 0: not measured */
    /* Shares of the hardware's ceiling, and of the best platform on this hardware; 0: unknown. */
    double architectural, application;
} portability_cell;

typedef struct portability_task portability_task;
typedef struct portability portability;

/* One row of the report for each platform. */
typedef struct portability_problem {
    const portability_task *task;
    const char *class_name; /* "dense" */
    portability_ceiling ceiling;
    char name[64]; /* "dense llama2-7b 4096" */
    uint32_t context;
} portability_problem;

/* Measures one or two problems that follow each other. *cells are those of the platform. */
typedef tamis_status portability_measure(const portability *p, portability_platform *platform,
                                         const portability_problem *problem,
                                         portability_cell *cells, tamis_error *error);

/* What is measured together. */
struct portability_task {
    const char *kind; /* what --problem names: "decode" */
    portability_measure *measure;
    uint32_t n_problems;
    const char *classes[2];
    portability_ceiling ceiling;
    uint32_t shape;   /* of bench_shapes */
    uint32_t context; /* 0: each of --context */
    uint32_t rows;    /* of a chunk, of a load, of a product */
    tamis_weight_type type;
};
extern const portability_task portability_tasks[]; /* ended by one without a kind */
extern const char *const portability_kinds[];      /* of tasks, ended by NULL */

struct portability {
    uint32_t repeat, probe;
    uint32_t turns; /* at a problem, of platforms that are not slow */
    double seconds; /* that the samples of a problem may take on a platform, with one to warm up */
    uint32_t n_platforms, n_problems;
    portability_platform platforms[PORTABILITY_PLATFORMS_MAX];
    portability_problem problems[PORTABILITY_PROBLEMS_MAX];
    portability_cell cells[PORTABILITY_PROBLEMS_MAX][PORTABILITY_PLATFORMS_MAX];
    /* Platforms that were refused, a line each. */
    uint32_t n_refused;
    char refused[PORTABILITY_PLATFORMS_MAX][512];
};

/* Compiles what attention needs, and sets the platform's flop_per_s. */
tamis_status portability_calibrate(const portability *p, portability_platform *platform,
                                   tamis_error *error);
/* Sets the efficiencies of all cells that ran. */
void portability_rate(portability *p);
/* Pennycook's metric of a problem: the harmonic mean of its efficiencies over the platforms on which
 * it was run; 0 if it cannot run on one of them. *n: over how many. */
double portability_mean(const portability *p, uint32_t problem, bool architectural, uint32_t *n);

/* Whether two platforms are drivers or forms of the same hardware. */
bool portability_same_hardware(const portability *p, uint32_t a, uint32_t b);
bool portability_print(const portability *p);
bool portability_write_json(const portability *p, bool quick, cli_output *output);

#endif
