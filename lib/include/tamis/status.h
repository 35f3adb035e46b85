/* SPDX-License-Identifier: Apache-2.0 */
/* Status codes, whose values never change, and the caller-owned error text that failing calls
 * fill. */
#ifndef TAMIS_STATUS_H
#define TAMIS_STATUS_H

#include <tamis/version.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, value, text). Values never change their meaning; new ones are added at the end. */
#define TAMIS_STATUS_LIST(X)                                                                       \
    X(OK, 0, "ok")                                                                                 \
    X(E_ARGUMENT, -1, "an argument is invalid")                                                    \
    X(E_UNSUPPORTED, -2, "not supported by this build, device or op")                              \
    X(E_NO_DEVICE, -3, "no such device, or it cannot be used")                                     \
    X(E_NO_MEMORY, -4, "out of host or device memory")                                             \
    X(E_FULL, -5, "a cache has no free pages left for this step, or a store no room")              \
    X(E_STATE, -6, "the call is not allowed in this state")                                        \
    X(E_FORMAT, -7, "a file is truncated, contradicts itself or has another format")               \
    X(E_IO, -8, "reading or writing a file failed")                                                \
    X(E_DEVICE, -9, "the device or its driver reported an error")                                  \
    X(E_DAMAGED, -10, "a stored record or a saved sequence is damaged")

typedef enum tamis_status {
#define TAMIS_STATUS_ENUM(name, value, text) TAMIS_##name = value,
    TAMIS_STATUS_LIST(TAMIS_STATUS_ENUM)
#undef TAMIS_STATUS_ENUM
} tamis_status;

#if defined(__GNUC__)
#define TAMIS_MUST_CHECK __attribute__((warn_unused_result))
#else
#define TAMIS_MUST_CHECK
#endif

/* Why a call failed, in words with the offending value. Owned by the caller, who may always pass
 * NULL instead. A call that succeeds leaves its content as it was. */
typedef struct tamis_error {
    tamis_status status;
    char text[508];
} tamis_error;

/* "E_ARGUMENT" and so on; "unknown" for a value outside the list. Thread-safety: any thread. */
TAMIS_API const char *tamis_status_name(tamis_status status);

/* One sentence on the code. Static storage. Thread-safety: any thread. */
TAMIS_API const char *tamis_status_text(tamis_status status);

#ifdef __cplusplus
}
#endif
#endif
