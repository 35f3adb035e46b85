/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVE_SERVE_H
#define SERVE_SERVE_H

#include "cli/options.h"

extern const cli_command serve_command;

#endif
