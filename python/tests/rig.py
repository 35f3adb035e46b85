# SPDX-License-Identifier: Apache-2.0
"""A cache with random rows in it, and beside it what plain NumPy makes of the same rows."""
from __future__ import annotations

from typing import Any, Optional, Sequence, Union

import numpy

import tamis

LAYERS, HEADS, KV_HEADS, DIM = 2, 8, 2, 64
GROUP = HEADS // KV_HEADS


def attention(q: numpy.ndarray, k: numpy.ndarray, v: numpy.ndarray, visible: numpy.ndarray, *,
              scale: float = 0, soft_cap: float = 0,
              sinks: Optional[numpy.ndarray] = None) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Softmax attention as its definition has it, in float64: out [rows][n_heads][dim], lse [rows][n_heads].

    q is [rows][n_heads][dim], k and v are [tokens][n_kv_heads][dim]; `visible` is [rows][tokens] or
    [rows][n_kv_heads][tokens]."""
    q, k, v = (x.astype(numpy.float64) for x in (q, k, v))
    rows, heads, dim = q.shape
    group = heads // k.shape[1]
    if visible.ndim == 2:
        visible = numpy.repeat(visible[:, None], k.shape[1], axis=1)
    logits = numpy.einsum("rhd,thd->rht", q, numpy.repeat(k, group, axis=1)) * (scale or dim ** -0.5)
    if soft_cap:
        logits = soft_cap * numpy.tanh(logits / soft_cap)
    logits = numpy.where(numpy.repeat(visible, group, axis=1), logits, -numpy.inf)
    if sinks is not None:
        more = numpy.broadcast_to(sinks[None, :, None], (rows, heads, 1))
        logits = numpy.concatenate([logits, more], axis=2)
    most = logits.max(axis=2, keepdims=True)
    weights = numpy.exp(logits - most)
    total = weights.sum(axis=2, keepdims=True)
    weights = (weights / total)[:, :, :k.shape[0]]
    out = numpy.einsum("rht,thd->rhd", weights, numpy.repeat(v, group, axis=1))
    return out, (most + numpy.log(total))[:, :, 0]


def causal(positions: Any, tokens: int, window: int = 0, chunk: int = 0) -> numpy.ndarray:
    """Which of so many tokens rows at these positions see: [rows][tokens]."""
    p, t = numpy.asarray(positions)[:, None], numpy.arange(tokens)[None]
    visible = t <= p
    if window:
        visible &= t > p - window
    if chunk:
        visible &= t >= p - p % chunk
    return visible


class Rig:
    """A cache of LAYERS layers, one plan at a time over it, and memory for a step's rows.

    Attributes:
        k, v: by a sequence's handle, what was written for each token: [layers][tokens][n_kv_heads][dim].
        q, out, lse: of the last step, [layers][rows][n_heads][dim] and [layers][rows][n_heads].
    """

    def __init__(self, context: tamis.Context, *, dtype: str = "f32", seed: int = 1, rows: int = 256,
                 capacity_tokens: int = 1024, evict: Optional[tamis.Eviction] = None, **cache: Any) -> None:
        self.context, self.evict = context, evict
        self.random = numpy.random.default_rng(seed)
        self.cache = tamis.Cache(context, n_layers=LAYERS, n_heads=HEADS, n_kv_heads=KV_HEADS, head_dim=DIM,
                                 dtype=dtype, capacity_tokens=capacity_tokens, evict=evict, **cache)
        self.k_rows, self.v_rows = (context.empty((rows, KV_HEADS, DIM)) for _ in range(2))
        self.q_rows, self.out_rows = (context.empty((rows, HEADS, DIM)) for _ in range(2))
        self.lse_rows = context.empty((rows, HEADS))
        self.k: dict[int, numpy.ndarray] = {}
        self.v: dict[int, numpy.ndarray] = {}

    def plan(self, **params: Any) -> tamis.Plan:
        return self.cache.plan(**{"max_context": 512, "max_rows": 256, "max_sequences": 4,
                                  "evict": self.evict, **params})

    def rows(self, n: int, heads: int) -> numpy.ndarray:
        """[n][heads][DIM] of numbers that f16 and bf16 hold exactly."""
        return (self.random.integers(-64, 65, (n, heads, DIM)) / 32).astype(numpy.float32)

    def draw(self, sequences: Sequence[tamis.Sequence], rows: Sequence[int]) -> None:
        """The rows of a step: q, and K and V at the end of what the sequences have."""
        n = sum(rows)
        self.q = numpy.stack([self.rows(n, HEADS) for _ in range(LAYERS)])
        k, v = (numpy.stack([self.rows(n, KV_HEADS) for _ in range(LAYERS)]) for _ in range(2))
        self.step_k, self.step_v = k, v
        first = 0
        for sequence, count in zip(sequences, rows):
            for known, new in (self.k, k), (self.v, v):
                old = known.get(sequence.handle, new[:, :0])
                known[sequence.handle] = numpy.concatenate([old, new[:, first:first + count]], axis=1)
            first += count

    def attend_all(self, step: tamis.Step, **attend: Any) -> None:
        """Writes and attends the drawn rows in every layer."""
        n, out, lse = step.n_rows, [], []
        for layer in range(LAYERS):
            for rows, data in (self.k_rows, self.step_k), (self.v_rows, self.step_v), (self.q_rows, self.q):
                rows[:n].write(data[layer])
            step.write(layer, self.k_rows, self.v_rows)
            step.attend(layer, self.q_rows, self.out_rows, lse=self.lse_rows, **attend)
            out.append(self.out_rows[:n].read())
            lse.append(self.lse_rows[:n].read())
        self.out, self.lse = numpy.stack(out), numpy.stack(lse)

    def run(self, plan: tamis.Plan, sequences: Union[tamis.Sequence, Sequence[tamis.Sequence]],
            rows: Union[int, Sequence[int]] = 1, **params: Any) -> numpy.ndarray:
        """One step; its outputs."""
        of = [sequences] if isinstance(sequences, tamis.Sequence) else list(sequences)
        counts = [rows] * len(of) if isinstance(rows, int) else list(rows)
        self.draw(of, counts)
        with plan.step(of, counts, **params) as step:
            self.attend_all(step)
        return self.out

    def prompt(self, plan: tamis.Plan, n: int) -> tamis.Sequence:
        """A new sequence of n tokens."""
        sequence = self.cache.add()
        self.run(plan, sequence, n, exact=True)
        return sequence

    def expect(self, layer: int, sequence: tamis.Sequence, rows: slice, visible: numpy.ndarray,
               tolerance: float = 2e-5, **how: Any) -> None:
        """Compares rows of the last step with plain attention over what their sequence has."""
        tokens = visible.shape[-1]
        k, v = self.k[sequence.handle][layer, :tokens], self.v[sequence.handle][layer, :tokens]
        out, lse = attention(self.q[layer, rows], k, v, visible, **how)
        numpy.testing.assert_allclose(self.out[layer, rows], out, atol=tolerance, rtol=tolerance)
        numpy.testing.assert_allclose(self.lse[layer, rows], lse, atol=tolerance, rtol=tolerance)
