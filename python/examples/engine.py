# SPDX-License-Identifier: Apache-2.0
"""The loop of an engine that computes with NumPy: docs/examples/engine_opencl.c, with the same output bit for
bit. tamis reads and writes the engine's own memory in place; nothing is copied."""
import numpy

import tamis

LAYERS, HEADS, KV_HEADS, DIM, TOKENS = 2, 4, 2, 64, 160

# The engine's own part: a token's q, k, v and output in one row, and the residual stream.
activations = tamis.empty((1, (2 * HEADS + 2 * KV_HEADS) * DIM))
made = activations[:, :(HEADS + 2 * KV_HEADS) * DIM]
added = activations[:, made.shape[1]:]
residual = numpy.zeros_like(added)

# Its part of tamis.
context = tamis.Context()
rows = context.wrap(activations)
q, k, v, out = (rows[:, begin * DIM:end * DIM] for begin, end in ((0, 4), (4, 6), (6, 8), (8, 12)))
cache = tamis.Cache(context, n_layers=LAYERS, n_heads=HEADS, n_kv_heads=KV_HEADS, head_dim=DIM,
                    capacity_tokens=TOKENS)
plan = cache.plan(select=tamis.Quest(budget=64, recent=16), max_context=TOKENS)
text = cache.add()

for token in range(TOKENS):
    with plan.step(text) as step:
        for layer in range(LAYERS):
            made[:] = (((token + layer) * 31 + numpy.arange(made.size) * 17) % 64) / 64  # q, k and v
            step.write(layer, k, v)
            step.attend(layer, q, out)
            context.wait()  # then the host may read what was written in place
            residual += added

checksum = 0xCBF29CE484222325  # of all sums: FNV-1a, word by word
for word in residual.view(numpy.uint32).ravel():
    checksum = (checksum ^ int(word)) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
read = plan.counters.kv_bytes_read / plan.counters.kv_bytes_full
print(f"on {context.device.id}: {TOKENS} tokens, the first sum is {residual[0, 0]:.2f}, read {read:.2f} of the "
      f"cache, checksum {checksum:016x}")
