/* SPDX-License-Identifier: Apache-2.0 */
/* The library's version: of the headers at compile time, of the loaded library at run time. */
#ifndef TAMIS_VERSION_H
#define TAMIS_VERSION_H

#ifdef __cplusplus
extern "C" {
#endif

#define TAMIS_VERSION_MAJOR 0
#define TAMIS_VERSION_MINOR 1
#define TAMIS_VERSION_PATCH 0

/* Every symbol that the shared library exports carries this mark; all others are hidden. */
#if defined(__GNUC__)
#define TAMIS_API __attribute__((visibility("default")))
#else
#define TAMIS_API
#endif

/* "MAJOR.MINOR.PATCH" of the loaded library. Static storage. Thread-safety: any thread. */
TAMIS_API const char *tamis_version(void);

#ifdef __cplusplus
}
#endif
#endif
