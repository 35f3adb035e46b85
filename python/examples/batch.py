# SPDX-License-Identifier: Apache-2.0
"""Many requests behind one prompt, in less memory than they all need at once: docs/examples/batch.c in NumPy.
It prints the same, bit for bit: the last line is a checksum of all outputs."""
import numpy

import tamis

LAYERS, HEADS, KV_HEADS, DIM, PROMPT, TEXT, REQUESTS, TOKENS = 2, 8, 2, 64, 256, 256, 4, 16
snapkv = tamis.SnapKV(budget=128)  # tokens that each lane keeps
quest = tamis.Quest(budget=64, recent=16)  # tokens that a row reads of each lane
context = tamis.Context()  # TAMIS_DEVICE, else CUDA or OpenCL
cache = tamis.Cache(context, n_layers=LAYERS, n_heads=HEADS, n_kv_heads=KV_HEADS, head_dim=DIM,
                    capacity_tokens=1152, evict=snapkv)
plan = cache.plan(select=quest, evict=snapkv, max_context=PROMPT + TEXT + TOKENS, max_sequences=REQUESTS,
                  max_rows=REQUESTS * TEXT)
q, out, k, v = (context.empty((REQUESTS * TEXT, heads, DIM)) for heads in (HEADS, HEADS, KV_HEADS, KV_HEADS))

# The i-th number of a random generator behind the number x is factors[i] * x + addends[i].
factors = numpy.cumprod(numpy.full(q.size, 1664525, "u4"), dtype="u4")
addends = numpy.cumsum(numpy.append(numpy.uint32(1), factors[:-1]), dtype="u4") * numpy.uint32(1013904223)
random, checksum = numpy.uint32(1), 0xCBF29CE484222325


def project(to):
    """Stands for the model: what its projections would put into an array."""
    global random
    numbers = factors[:to.size] * random + addends[:to.size]
    random = numbers[-1]
    to.write(((numbers >> 16) / 32768 - 1).reshape(to.shape))


def run_layers(step):
    """The layers of an open step, and its end."""
    global checksum
    with step:
        for layer in range(LAYERS):
            for array in q, k, v:
                project(array[:step.n_rows])
            step.write(layer, k, v)
            step.attend(layer, q, out)
            for word in out[:step.n_rows].read().view("u4").ravel().tolist():  # FNV-1a
                checksum = (checksum ^ word) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF


def begin_texts(requests):
    """A step for the texts of the first requests, as many as there is room for."""
    try:
        return plan.step(requests, TEXT, exact=True)
    except tamis.FullError:  # then nothing has changed
        if len(requests) == 1:
            raise
        return begin_texts(requests[:-1])


prompt = cache.add()
run_layers(plan.step(prompt, PROMPT, exact=True))
requests = [prompt.fork() for _ in range(REQUESTS)]  # takes no pages yet
waiting = requests[:]
while waiting:
    pages = plan.step_pages(waiting, TEXT, exact=True)  # nothing changes by asking
    print(f"texts to read: {len(waiting)}, they need {pages.needed} pages, {pages.free} are free")
    step = begin_texts(waiting)
    run_layers(step)
    for request in step.sequences:  # makes room
        evicted = plan.evict(request)
        print(f"evicted: {evicted.tokens_kept} of {evicted.tokens_before} tokens stay, "
              f"the pool gains {evicted.pages_net} pages")
    del waiting[:len(step.sequences)]
prompt.remove()
for _ in range(TOKENS):
    run_layers(plan.step(requests))
c = plan.counters
print(f"decoded {TOKENS} tokens for each of {REQUESTS} requests, "
      f"read {(c.kv_bytes_read + c.bounds_bytes_read) / c.kv_bytes_full:.2f} of what they hold")
print(f"checksum {checksum:016x}")
