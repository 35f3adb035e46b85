/* SPDX-License-Identifier: Apache-2.0 */
/* What every refusal of a file has. */
#ifndef FUZZ_REFUSAL_H
#define FUZZ_REFUSAL_H

#include <tamis/status.h>

/* A failed assertion ends the process, as a crash does, and libFuzzer keeps the input. Called behind
 * what loads a driver: its compiler may handle the signal, and then libFuzzer leaves that to it. */
void refusal_abort_on_failure(void);

/* The status is of a file, and it and its reason, in printable characters, are in the error. */
void refusal_check(tamis_status status, const tamis_error *error);

#endif
