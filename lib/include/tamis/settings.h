/* SPDX-License-Identifier: Apache-2.0 */
/* Settings: how kernels read memory. Which value is fastest differs from processor to processor.
 * Results do not depend on them, bit for bit.
 *
 * A context begins with the values that the library has for the kind of its processor, or else with
 * default ones. Over these it takes what the user's file says of its device: the file named by the
 * environment variable TAMIS_SETTINGS ("none": no file), else tamis/settings in $XDG_CONFIG_HOME, else
 * in ~/.config. `tamis tune` measures and writes it. What a file says of the device and is not
 * understood is an error of tamis_context_create, with its line, and so is a named file that cannot
 * be read; one in the usual place that cannot be opened is a warning in the log.
 *
 * CPU kernels under PoCL and Intel's runtime have settings, and OpenCL kernels on GPUs. On other devices
 * values can be set, but nothing is read from the file, and nothing depends on them. */
#ifndef TAMIS_SETTINGS_H
#define TAMIS_SETTINGS_H

#include <tamis/cache.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Values never change. */
typedef enum tamis_setting {
    /* Of each page that attention reads next: how many of its 16 rows of K, and of V, are
     * prefetched, the first ones. */
    TAMIS_SETTING_FETCH_ROWS = 0,
    /* Into which level of cache. */
    TAMIS_SETTING_FETCH_LEVEL = 1,
    /* How many pages ahead of scoring their bounds are prefetched; 0: not at all. */
    TAMIS_SETTING_SCORE_AHEAD = 2,
    /* 0: as fetch_rows and fetch_level say. Else these mean nothing, and while attention reads a row
     * of K or of V, the one so many rows further on is prefetched into the first-level cache: of the
     * same page, and at its end of the page that is read next. */
    TAMIS_SETTING_FETCH_NEAR = 3,
    /* How many keys a work-item reads its part of before it goes on with their logits. */
    TAMIS_SETTING_KEYS_AHEAD = 4
} tamis_setting;

typedef enum tamis_setting_op {
    TAMIS_SETTING_OF_ATTEND = 0, /* attention over all pages, or over lists that exist */
    TAMIS_SETTING_OF_SPARSE = 1, /* scoring, selecting and attending in one launch; scoring alone */
    TAMIS_SETTING_OF_GPU_ATTEND = 2 /* attention on a GPU; the other ops are of CPUs */
} tamis_setting_op;

/* A setting's name and the values that it may have, ascending. */
typedef struct tamis_setting_info {
    const char *name; /* "fetch_rows" */
    const uint32_t *values;
    uint32_t n_values;
    uint32_t ops; /* bit 1 << op: the ops that it is a setting of */
} tamis_setting_info;

/* NULL for a setting outside the list; so a caller may count from 0. */
TAMIS_API const tamis_setting_info *tamis_setting_describe(uint32_t setting);
/* "attend", "sparse", "gpu_attend"; NULL outside the list. */
TAMIS_API const char *tamis_setting_op_name(uint32_t op);

/* For which launches a value holds: an op on caches of a dtype, with one query head for each KV
 * head or with several. */
typedef struct tamis_setting_class {
    tamis_setting_op op;
    tamis_dtype dtype;
    uint32_t group; /* query heads of a KV head: 1, or any larger number for all of them */
} tamis_setting_class;

/* The value that launches of a class have. Errors: E_ARGUMENT. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_context_get_setting(const tamis_context *context,
                                                                  const tamis_setting_class *of,
                                                                  tamis_setting setting,
                                                                  uint32_t *value,
                                                                  tamis_error *error);
/* Sets it for launches from now on; the first one with another value compiles its kernel. Nothing is
 * written to the file. Errors: E_ARGUMENT with the value and those that are allowed. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_context_set_setting(tamis_context *context,
                                                                  const tamis_setting_class *of,
                                                                  tamis_setting setting,
                                                                  uint32_t value,
                                                                  tamis_error *error);

typedef struct tamis_tune_params {
    /* The shape and dtypes of the caches that will be attended, as for tamis_cache_create; layers,
     * planes and capacity are not used. */
    tamis_cache_params cache;
    tamis_setting_op op;
    /* Nonzero: measures on known processors, too. 0: only where the library has no values for its kind and
     * the user's file does not name the device; elsewhere nothing is measured. */
    int always;
    /* How long to search; 0 means 2. Another way is tried only if the time is left that the last one
     * took; most of that is compiling its kernel. Before the search the cache is filled, and kernels
     * are built that a plan over such a cache needs in any case: one to two seconds where the driver
     * has not compiled them yet. */
    double seconds;
    uint64_t reserved[4]; /* 0, else E_ARGUMENT */
} tamis_tune_params;

typedef struct tamis_tune_result {
    /* Ways of reading rows; the one that was set before counts as one. 0: none was measured. */
    uint32_t tried, reserved32;
    double before_us, after_us; /* of one layer's attention, medians of samples in turn */
    uint64_t reserved[4];
} tamis_tune_result;

/* Measures on a filled cache of its own (about 128 MiB) which of a few ways of reading rows
 * attends fastest, and sets the context's settings of that class to it, if it is at least 3 % faster
 * than what was set. It is meant for the start of a program on a processor that the library does not
 * know. `tamis tune` measures more values for longer, and keeps them; what is found here is written
 * by tamis_context_write_settings alone. Once the user's file names the device, no class is measured
 * unless `always` is set, so tune all classes before writing. Nothing is measured on devices whose
 * kernels have no settings of the op, nor on CPUs for page sizes other than 16, head dims other than
 * 64, 128, 256 and 512, and groups of more than 16 query heads. Waits. `result` may be NULL, and stays as it is after
 * an error. Errors: E_ARGUMENT, E_UNSUPPORTED and E_NO_MEMORY of the cache, E_ARGUMENT for NULL, an
 * op, seconds above 3600 or reserved fields, E_FORMAT and E_IO of the user's file, E_DEVICE; the
 * settings are then as before. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_context_tune(tamis_context *context,
                                                           const tamis_tune_params *params,
                                                           tamis_tune_result *result,
                                                           tamis_error *error);

/* Writes the settings of the context into the user's file. What that says of other devices stays, and
 * of this one each setting that the context has left as it found it: another context, of this process
 * or of another, may have written it since. Classes whose values are the library's own are left out, so
 * that they follow it. The file is replaced as a whole, its folders are made.
 * Errors: E_UNSUPPORTED if its kernels have no settings; E_STATE if TAMIS_SETTINGS is "none" or no
 * folder is known; E_FORMAT if there is a file that is not understood, E_IO with the path; then the
 * old file stays. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_context_write_settings(const tamis_context *context,
                                                                     tamis_error *error);

/* Which settings a context on a device of the list begins with, as text: "built in for AMD
 * family 25", "default", the path of the user's file, or "none" if its kernels have no settings.
 * Errors: E_ARGUMENT, E_FORMAT and E_IO of the file. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_device_settings(const tamis_device_info *device,
                                                              char *text, size_t capacity,
                                                              tamis_error *error);

#ifdef __cplusplus
}
#endif
#endif
