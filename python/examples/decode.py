# SPDX-License-Identifier: Apache-2.0
"""One layer of an engine's decode loop, under quest: docs/examples/decode.c in NumPy. It prints the same."""
import numpy

import tamis

context = tamis.Context()  # TAMIS_DEVICE, else CUDA or OpenCL
cache = tamis.Cache(context, n_layers=1, n_heads=8, n_kv_heads=2, head_dim=128, capacity_tokens=2048)
plan = cache.plan(select=tamis.Quest(budget=512), max_context=2048)
text = cache.add()

q, out = (context.empty((1, 8, 128)) for _ in range(2))
k, v = (context.empty((1, 2, 128)) for _ in range(2))
token = numpy.zeros((12, 128), numpy.float32)  # q of 8 heads, k and v of 2
token[0, 0] = 1
for _ in range(2048):
    for rows, projected in zip((q, k, v), numpy.split(token, [8, 10])):  # your model's projections
        rows.write(projected[None])
    with plan.step(text) as step:
        step.write(0, k, v)  # for each layer: write, attend
        step.attend(0, q, out)
context.wait()
print(f"read {plan.counters.kv_bytes_read / plan.counters.kv_bytes_full:.2f} of the cache")
