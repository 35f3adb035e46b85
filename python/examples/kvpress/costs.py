# SPDX-License-Identifier: Apache-2.0
"""What compression saves on each side: the bytes that K and V take, and the time of decode steps of
attention."""
from __future__ import annotations

import dataclasses
import time
from typing import Any, Optional

import kvpress
import tamis
import torch
from methods import ALPHA, SNAP, Case
from sides import Pressed, Tamis, Text, press_text
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

ROUNDS, STEPS = 12, 10  # both sides take turns: STEPS decode steps each
SECONDS = 8  # no round begins later, where torch's spinning threads are slow beside other programs


@dataclasses.dataclass
class Cost:
    """Of one method: bytes after the prompt, and milliseconds of a decode step in all layers. Times are those
    of the fastest step, for what else runs on the machine only adds to them."""

    method: str
    theirs_bytes: int
    ours_bytes: int
    theirs_append_ms: float  # DynamicCache.update: the new token's K and V
    theirs_attend_ms: float
    ours_ms: float  # the whole step, the new token's K and V included
    outputs_differ: float

    @property
    def attend_ratio(self) -> float:
        """kvpress's attention, without appending, to tamis's whole step."""
        return self.theirs_attend_ms / self.ours_ms

    @property
    def step_ratio(self) -> float:
        """kvpress's whole step to tamis's."""
        return (self.theirs_append_ms + self.theirs_attend_ms) / self.ours_ms


class Theirs:
    """Decode steps of attention as a transformers model makes them, over what a press has left."""

    def __init__(self, text: Text, pressed: Pressed) -> None:
        self.text, self.pressed = text, pressed
        self.modules = [layer.self_attn for layer in text.model.model.layers]
        self.rows = [tuple(torch.from_numpy(rows).transpose(0, 1)[None] for rows in layer)
                     for layer in text.layers]

    @property
    def bytes(self) -> int:
        """K and V, and the indices of masked keys."""
        held = [tensor for layer in self.pressed.cache.layers for tensor in (layer.keys, layer.values)]
        masks = [index for mask in self.pressed.masks if mask is not None for index in mask]
        return sum(tensor.untyped_storage().nbytes() for tensor in held + masks)

    def step(self, row: int) -> tuple[float, float, list[Any]]:
        """Seconds of appending and of attending, and what was attended."""
        append = attend = 0.0
        outputs = []
        attention = ALL_ATTENTION_FUNCTIONS["sdpa"]
        for layer, (module, rows) in enumerate(zip(self.modules, self.rows)):
            q, k, v = (part[:, :, row:row + 1] for part in rows)
            module.masked_key_indices = self.pressed.masks[layer]
            begin = time.perf_counter()
            keys, values = self.pressed.cache.update(k, v, layer)
            between = time.perf_counter()
            outputs.append(attention(module, q, keys, values, None, dropout=0.0, scaling=module.scaling)[0])
            append, attend = append + between - begin, attend + time.perf_counter() - between
            module.masked_key_indices = None
        return append, attend, outputs


class Ours:
    """The same steps in tamis, over what an eviction has left."""

    def __init__(self, side: Tamis, evict: Optional[tamis.Eviction], last: int) -> None:
        self.side = side
        self.plan = side.plan(evict)
        self.sequence = side.prefill(self.plan, last=last)
        if evict:
            self.plan.evict(self.sequence)
        self.bytes = self.plan.cache.stats.bytes_held
        cache = self.plan.cache
        self.out = [side.context.empty((1, cache.n_heads, cache.head_dim)) for _ in side.layers]

    def step(self, row: int) -> float:
        """Seconds of a step."""
        begin = time.perf_counter()
        with self.plan.step(self.sequence) as step:
            for layer, (q, k, v) in enumerate(self.side.layers):
                step.write(layer, k[row:row + 1], v[row:row + 1])
                step.attend(layer, q[row:row + 1], self.out[layer])
        self.side.context.wait()
        return time.perf_counter() - begin


def compared(case: Case) -> list[tuple[str, kvpress.BasePress, Optional[tamis.Eviction]]]:
    """What is measured: name, press, eviction."""
    return [
        ("nothing evicted", kvpress.SnapKVPress(0.0), None),
        ("SnapKV", case.snap(), tamis.SnapKV(case.budget, **SNAP)),
        ("AdaKV", kvpress.AdaKVPress(case.snap(), ALPHA), tamis.AdaKV(case.budget, floor=case.floor, **SNAP)),
        ("CriticalAdaKV, alpha 0", kvpress.CriticalAdaKVPress(case.snap(), 0),
         tamis.CriticalAdaKV(case.budget, floor=None, **SNAP)),
    ]


def measure(text: Text, side: Tamis, budget: int, threads: int) -> list[Cost]:
    """Every method with all but the last tokens of the text as the prompt, and these as decode steps."""
    torch.set_num_threads(threads)
    last = ROUNDS * STEPS
    prompt = dataclasses.replace(text, tokens=text.tokens[:, :-last])
    return [_measure(name, text, side, press, evict, last)
            for name, press, evict in compared(Case(prompt, side, budget))]


@torch.no_grad()
def _measure(name: str, text: Text, side: Tamis, press: kvpress.BasePress, evict: Optional[tamis.Eviction],
             last: int) -> Cost:
    theirs, ours = Theirs(text, press_text(press, text, last=last)), Ours(side, evict, last)
    held, differ = theirs.bytes, 0.0
    times: list[tuple[float, float, float]] = []  # of appending, attending; of a step
    begin = time.monotonic()
    for row in range(text.tokens.shape[1] - last, text.tokens.shape[1], STEPS):
        if time.monotonic() - begin > SECONDS:
            break
        for step, (append, attend, outputs) in enumerate([theirs.step(row + step) for step in range(STEPS)]):
            times.append((append, attend, ours.step(row + step)))
            differ = max(differ, *(float(abs(a.numpy().ravel() - b.read().ravel()).max())
                                   for a, b in zip(outputs, ours.out)))
    append, attend, whole = (1e3 * min(column) for column in zip(*times))
    return Cost(name, held, ours.bytes, append, attend, whole, differ)
