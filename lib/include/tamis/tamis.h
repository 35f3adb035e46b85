/* SPDX-License-Identifier: Apache-2.0 */
/* All of tamis: the sparse-attention pipeline of LLM inference behind one C API.
 *
 * The headers in reading order:
 *
 * 1. status.h   Every call that can fail returns a tamis_status. It takes a pointer to a
 * tamis_error
 *               of the caller's (or NULL), which receives the reason with the offending value.
 * 2. device.h   A context is one opened device with its queue: tamis_context_create. With NULL for
 *               its parameters it takes the first usable CUDA or OpenCL device. tamis_device_list
 *               lists all devices.
 * 3. buffer.h   Memory on the device: q, k, v and outputs of attention. Most calls enqueue work and
 *               return; tamis_context_wait and reads wait. Each header says which call does what.
 * 4. cache.h    The paged KV cache of one model: layers, heads, capacity in tokens. A sequence is a
 *               text in it: add, fork (shares pages), truncate, remove. Each KV head of each layer
 *               of a sequence is a lane with a page list and a length of its own.
 *               prefixes.h finds the live sequence that shares most with a prompt, and forks it.
 * 5. policy.h   A selection says which pages a query reads; an eviction says which tokens a lane
 *               keeps. Both are plain structs of numbers: take the defaults, set the budget.
 * 6. plan.h     A plan joins a cache, a selection and an eviction, and runs steps. A step processes
 *               one batch of rows, prompt chunks and single tokens alike:
 *
 *                   tamis_plan_step_begin(plan, &step, &error);    takes all memory of the step
 *                   for each layer of the model:
 *                       tamis_plan_write(plan, layer, &k, &v, &error);
 *                       tamis_plan_attend(plan, layer, &q, &out, &error);
 *                   tamis_plan_step_end(plan, &error);
 *
 *               tamis_plan_write_rotated takes rows that are not rotated yet, and
 *               tamis_plan_write_attend writes and attends them in one launch where it can.
 *               tamis_plan_step_pages says before a step whether the cache has room for it. At a
 *               prompt's end tamis_plan_evict keeps the tokens that are worth their memory.
 *               Counters prove how much of the cache was read.
 *               saved.h writes a sequence as a stream of bytes, and makes it anew from them in a
 *               cache of any device.
 * 7. graph.h    What a context enqueues, recorded once and launched again (CUDA graphs).
 * 8. settings.h   How kernels read memory; the fastest way differs by processor.
 * 9. log.h      Log lines, which go to a callback. The library prints nothing by itself.
 * 10. ops.h     The ops on the caller's own buffers: what a model needs beside attention, and the
 *               pipeline for an engine that has a paged cache of its own.
 * 11. view.h    The same with a plan: an engine's own cache as a view, whose pages selections choose
 *               from.
 *
 * This header does not include eleven others: cuda.h and opencl.h, for the caller's own context,
 * stream or queue, memory and events of a driver; store.h, which keeps the K and V of text chunks in memory, on disk and on a server
 * (Redis); blend.h, which puts them into prompts; blend_trials.h, which keeps for which models that
 * was measured; model.h, for a whole model from a GGUF file; batch.h, which schedules requests
 * over one; record.h, for its chunks into a store;
 * blend_model.h, for its prompts with them; vocab.h, for its vocabulary alone; and sample.h, which
 * draws tokens from logits. The last six are of a library of their own (tamis_model) on top of
 * these calls.
 *
 * Structs: zero means the default, and reserved fields must be 0. A struct keeps its size for as
 * long as the library keeps its soname. A new field takes a place of `reserved`, where 0 means what
 * the library did before: so a new library runs an old program, and an old library answers
 * E_ARGUMENT to a field that it does not know. Handles: _create returns one through its parameter
 * `out`; _destroy accepts NULL and sets the handle to NULL. Objects may be destroyed in any order:
 * one from which others were made gives its memory back with the last of these, and their calls
 * answer E_STATE, which names it. A handle that was destroyed must not be used, nor may two threads
 * use and destroy one handle at once. Threads: one thread at a time uses a context and what was made
 * from it. A call that comes while another thread is in one answers E_STATE; those that answer no
 * status, and destroying, wait for it. Different contexts are independent. */
#ifndef TAMIS_TAMIS_H
#define TAMIS_TAMIS_H

#include <tamis/buffer.h>
#include <tamis/cache.h>
#include <tamis/device.h>
#include <tamis/graph.h>
#include <tamis/layer.h>
#include <tamis/log.h>
#include <tamis/ops.h>
#include <tamis/plan.h>
#include <tamis/policy.h>
#include <tamis/prefixes.h>
#include <tamis/saved.h>
#include <tamis/settings.h>
#include <tamis/status.h>
#include <tamis/version.h>
#include <tamis/view.h>

#endif
