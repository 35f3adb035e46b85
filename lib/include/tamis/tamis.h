/* SPDX-License-Identifier: Apache-2.0 */
/* All of tamis: the sparse-attention pipeline of LLM inference behind one C API. */
#ifndef TAMIS_TAMIS_H
#define TAMIS_TAMIS_H

#include <tamis/buffer.h>
#include <tamis/cache.h>
#include <tamis/device.h>
#include <tamis/graph.h>
#include <tamis/log.h>
#include <tamis/model.h>
#include <tamis/plan.h>
#include <tamis/policy.h>
#include <tamis/status.h>
#include <tamis/version.h>

#endif
