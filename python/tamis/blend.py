# SPDX-License-Identifier: Apache-2.0
"""Blends (tamis/blend.h, tamis/blend_model.h): prompts of which parts are stored chunks, whose K and V are
loaded, while few of their tokens are computed anew. And how much to compute, and where to store."""
from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any, Iterator, Optional, Protocol, Sequence as Seq, Union

import numpy

from . import _core
from ._c import ffi
from ._core import check, choice, error, function, lib
from .array import Array, integers, rows
from .cache import Sequence, dtype_code, fill
from .errors import ArgumentError, StateError
from .plan import OpenStep, Plan, Rotation
from .store import PLANES, Store, sixteen, unsigned

if TYPE_CHECKING:
    from .model import Runner

SELECTORS = {"hkvd": lib.TAMIS_BLEND_HKVD, "first": lib.TAMIS_BLEND_FIRST, "random": lib.TAMIS_BLEND_RANDOM,
             "list": lib.TAMIS_BLEND_LIST, "all": lib.TAMIS_BLEND_ALL, "none": lib.TAMIS_BLEND_NONE,
             "question": lib.TAMIS_BLEND_QUESTION}
SCHEDULES = {"falling": lib.TAMIS_BLEND_FALLING, "flat": lib.TAMIS_BLEND_FLAT}
_STORED = {"fresh": lib.TAMIS_BLEND_FRESH, "chunk": lib.TAMIS_BLEND_CHUNK, "prefix": lib.TAMIS_BLEND_PREFIX}


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a prompt.

    Attributes:
        tokens: any sequence of whole numbers.
        stored: "fresh"; "chunk", which is looked up in the store, and fresh if that lacks it; "prefix", the
            prompt's beginning, of which the longest stored one is loaded as it is, and the rest is fresh.
    """

    tokens: Seq[int]
    stored: str = "fresh"


class BlendEngine(Protocol):
    """What runs a model of its own layer by layer, in this order of calls. Rows are those of the prompt,
    counted from its first token on; they write and attend by `Blend.step`. An exception ends the prompt and
    travels to the caller of `Blend.run`; the sequence is as it was.

    A prompt may begin anew, with `project` for layer 0. While it runs no other thread may use the context,
    and nothing of the context can be closed."""

    def project(self, layer: int, rows: numpy.ndarray) -> Array:
        """Computes q, k and v of these rows, uint32 [n], ascending: in layer 0 from their tokens, behind that
        from the hidden states that the engine has of them. Answers v, f32 [n][n_kv_heads][head_dim]."""

    def write(self, layer: int) -> None:
        """Writes their K and V, by ``blend.step.write_rotated`` or ``write``."""

    def keep(self, layer: int, rows: numpy.ndarray, places: Optional[numpy.ndarray]) -> Array:
        """Only these rows stay, `places` uint32 [n] among those of `project`, None: all of them. Brings their
        q and hidden states together, and answers q, f32 [n][n_heads][head_dim], as `attend` takes it."""

    def finish(self, layer: int, n: int) -> None:
        """Attends the n rows, by ``blend.step.attend``, and computes the rest of the layer for them."""


@dataclasses.dataclass(frozen=True)
class BlendStats:
    """What a blend has done since it was made (tamis_blend_stats). Tokens are of prompts that ended; times
    are in microseconds; `left` is what `bound` was compared with in the last prompt."""

    prompts: int
    restarts: int
    parts_found: int
    parts_missed: int
    parts_exact: int
    parts_damaged: int
    parts_failed: int
    tokens_exact: int
    tokens_hit: int
    tokens_fresh: int
    tokens_selected: int
    rows_computed: int
    bytes_read: int
    read_us: float
    wait_us: float
    compute_us: float
    gated: int
    left: float
    load_us: float
    asked: int
    ask_us: float
    uploads: int
    uploads_ahead: int


@dataclasses.dataclass(frozen=True)
class BlendLayerStats:
    """One layer of the last prompt; times are the host's in microseconds, unless the blend has `timing`."""

    rows_computed: int
    rows_attended: int
    bytes_read: int
    read_us: float
    wait_us: float
    compute_us: float
    load_us: float


@dataclasses.dataclass(frozen=True)
class BlendCosts:
    """What a layer of a prompt takes.

    Attributes:
        load_us: reading K and V of a token in a layer out of a tier, microseconds.
        compute_us: a row in a layer, its part of everything between two layers.
        hits, exact, fresh: rows; all 0: hits alone.
        least, most: bounds on the share; 0 means 0.15 and 1.
    """

    load_us: float
    compute_us: float
    hits: int = 0
    exact: int = 0
    fresh: int = 0
    least: float = 0
    most: float = 0

    def _struct(self) -> Any:
        out = ffi.new("tamis_blend_costs *")
        _core.put(out, **dataclasses.asdict(self))
        return out


@dataclasses.dataclass(frozen=True)
class BlendTier:
    """A tier that chunks could be kept in: reading a token out of it as in `BlendCosts`, and the price of
    keeping one, in a unit that all tiers share."""

    load_us: float
    price: float


def share_of(costs: BlendCosts) -> float:
    """The share of the hits whose computing takes as long as loading, within the bounds: more would make the
    prompt slower, fewer would save nothing (CacheBlend, EuroSys '25, section 5.1).

    >>> share_of(BlendCosts(load_us=3, compute_us=10))
    0.3
    """
    out = ffi.new("double *")
    check(function("tamis_blend_share")(costs._struct(), out, error()))
    return float(out[0])


def choose_tier(costs: BlendCosts, share: float, tiers: Seq[BlendTier]) -> tuple[int, bool]:
    """The index of the tier to keep chunks in where blends compute `share` of their hits, and whether its
    loading is hidden: the cheapest of those where it is, else the fastest. `load_us` of the costs is not
    used."""
    structs = ffi.new("tamis_blend_tier[]", [(tier.load_us, tier.price) for tier in tiers])
    chosen, hidden = ffi.new("size_t *"), ffi.new("int *")
    check(function("tamis_blend_choose_tier")(costs._struct(), share, structs, len(tiers), chosen, hidden,
                                              error()))
    return int(chosen[0]), bool(hidden[0])


class Blend(_core.Object):
    """Runs prompts of fresh tokens and stored chunks (CacheBlend, EuroSys '25). Behind the check layer fresh
    rows are computed, and of the hits, the tokens of stored chunks, those that the selector selects; the
    others' K and V are loaded. What the sequence holds of the hits is an approximation.

    Args:
        of: a model's runner, or a plan for an engine with a model of its own. The plan's load_dtypes must
            have `dtype`.
        store: where stored parts are looked up.
        selector: "hkvd": the share whose V deviates most; "question": the share to which the prompt's
            question attends most (needs a plan with row_masses); "first": the first `first` tokens of each
            chunk; "random", drawn by `seed`; "list": `rows` of the prompt, ascending; "all"; "none".
        share: of the hits, above 0 to 1; None: 0.15.
        schedule: "falling": 1.5, 1.25, 1.1 times the share from the check layer on, then the share; "flat".
        shares: of the check layer and of those behind it, in the place of share and schedule.
        check_layer: from 1 on; None: rows are selected before layer 0 (not with "hkvd").
        least, most: bounds on the number of hits that are computed; `most` 0: all.
        bound: where what would be left wrong in the check layer exceeds it, all hits of the prompt are
            computed; 0: no bound.
        dtype, sink, fingerprint, salt: which records. `fingerprint` is the model's own, 16 bytes; a runner's
            model has it.
        rotation, k_norms, eps: of a plan, how stored K is rotated, and normalised: f32 [head_dim] of each
            layer. A runner's model has them.
        page_tokens: of the pages of prefixes; 0: prompts have none.
        ring_bytes: memory for what is read ahead; 0: two layers of the largest prompt.
        thread: a thread of the blend reads ahead.
        timing: each layer waits for the device, so that times are the device's.

    Raises ArgumentError with the value; UnsupportedError for a plan with reindexed streaming."""

    def __init__(self, of: Union[Plan, Runner], store: Store, *, selector: str = "hkvd",
                 share: Optional[float] = None, schedule: str = "falling",
                 shares: Optional[Seq[float]] = None, check_layer: Optional[int] = 1, first: int = 0,
                 rows: Optional[Seq[int]] = None, seed: int = 0, least: int = 0, most: int = 0,
                 bound: float = 0, dtype: str = "f32", sink: Seq[int] = (),
                 fingerprint: Optional[bytes] = None, salt: bytes = bytes(16),
                 rotation: Optional[Rotation] = None, k_norms: Optional[Seq[Array]] = None, eps: float = 0,
                 page_tokens: int = 0, ring_bytes: int = 0, thread: bool = True,
                 timing: bool = False) -> None:
        self._runner: Any = None if isinstance(of, Plan) else of
        self.plan: Plan = of if isinstance(of, Plan) else of.plan
        self.store = store
        if fingerprint is None:
            if self._runner is None:
                raise ArgumentError("a blend of a plan needs the fingerprint of the engine's model")
            fingerprint = self._runner.model.fingerprint
        params = self._params = ffi.new("tamis_blend_params *")
        params.selector = choice("selector", selector, SELECTORS)
        params.schedule = choice("schedule", schedule, SCHEDULES)
        for name, value in (("share", share), ("check_layer", check_layer)):
            if value == 0:
                raise ArgumentError(f"{name} is {value}")
        _core.put(params, share=0 if share is None else share, first=first, seed=seed, least=least, most=most,
                  bound=bound, eps=eps, page_tokens=page_tokens, ring_bytes=ring_bytes,
                  check_layer=lib.TAMIS_BLEND_NO_CHECK if check_layer is None else check_layer)
        params.dtype = dtype_code(dtype, PLANES)
        params.fingerprint = sixteen(fingerprint, "fingerprint")
        params.salt = sixteen(salt, "salt")
        params.flags = ((0 if thread else lib.TAMIS_BLEND_NO_THREAD)
                        | (lib.TAMIS_BLEND_TIMING if timing else 0))
        self._lists: list[Any] = []  # what `params` points to
        if shares is not None:
            params.shares = self._hold(ffi.new("double[]", list(shares)))
            params.n_shares = len(shares)
        if rows is not None:
            params.rows = self._hold(ffi.from_buffer("uint32_t[]", integers(rows, numpy.uint32, "rows")))
            params.n_rows = len(rows)
        if len(sink):
            params.sink = self._hold(ffi.from_buffer("int32_t[]", integers(sink, numpy.int32, "sink")))
            params.n_sink = len(sink)
        if rotation is not None:
            params.rotation = rotation._struct[0]
        if k_norms is not None:
            if len(k_norms) != self.plan.cache.n_layers:
                raise ArgumentError(f"{len(k_norms)} k_norms for {self.plan.cache.n_layers} layers")
            params.k_norms = self._hold(ffi.new("tamis_place[]", [norm._place() for norm in k_norms]))
        self.plan.cache.context._owner.collect()
        handle = ffi.new("tamis_blend **")
        make = function("tamis_blend_create" if self._runner is None else "tamis_runner_blend_create")
        with store._used() as pointer:
            check(make(of._pointer, pointer, params, handle, error()))
        self._step: Optional[OpenStep] = None
        self._take(self.plan._owner, handle, "tamis_blend_destroy", (of, store, rotation, k_norms))

    def _hold(self, pointer: Any) -> Any:
        self._lists.append(pointer)
        return pointer

    # ---- Prompts ----

    def run(self, sequence: Sequence, parts: Seq[Part],
            engine: Optional[BlendEngine] = None) -> Optional[int]:
        """Appends a prompt to a sequence in one step. A runner's blend answers the greedy token after it;
        that of a plan takes the engine through all layers, and answers None.

        The prompt's last token is always computed. What the store cannot read counts as missed. With selector
        "all", or a share of 1, the result is that of a prefill in one chunk, bit for bit. Raises
        ArgumentError (no tokens; more than the plan's max_rows; a prefix behind other tokens); FullError;
        StateError; and what the engine raises. The sequence is as it was then, unless the step had ended."""
        listed = ffi.new("tamis_blend_part[]", len(parts))
        held = [integers(part.tokens, numpy.int32, "tokens") for part in parts]
        keep = [ffi.from_buffer("int32_t[]", tokens) for tokens in held]
        for out, part, tokens in zip(listed, parts, keep):
            out.tokens, out.n_tokens = tokens, len(tokens)
            out.stored = choice("stored", part.stored, _STORED)
        if (engine is None) != (self._runner is not None):
            raise ArgumentError("a runner's blend takes no engine, and that of a plan takes one")
        self.plan.cache.context._owner.collect()
        with self.store._used():
            if engine is None:
                token = ffi.new("int32_t *")
                check(lib.tamis_runner_blend(self._runner._pointer, sequence.handle, self._pointer, listed,
                                             len(parts), token, error()))
                return int(token[0])
            with self._opened(sum(len(tokens) for tokens in held)):
                calls = _Calls(engine)
                check(lib.tamis_blend_run(self._pointer, sequence.handle, listed, len(parts), calls.struct,
                                          error()))
        return None

    @contextlib.contextmanager
    def _opened(self, n_rows: int) -> Iterator[None]:
        outer, step = self._step, OpenStep(self.plan, [n_rows], 0)
        self._step = step
        try:
            yield
        finally:
            step._closed()
            self._step = outer

    @property
    def step(self) -> OpenStep:
        """The step of the prompt that runs, by which its engine writes and attends."""
        if self._step is None:
            raise StateError("no prompt of this blend runs")
        return self._step

    # ---- What it has done ----

    @property
    def stats(self) -> BlendStats:
        """Since the blend was made."""
        out = ffi.new("tamis_blend_stats *")
        lib.tamis_blend_get_stats(self._pointer, out)
        return fill(BlendStats, out)

    def layer_stats(self, layer: int) -> BlendLayerStats:
        """One layer of the last prompt; all 0 where it was not reached."""
        out = ffi.new("tamis_blend_layer_stats *")
        check(lib.tamis_blend_get_layer_stats(self._pointer, unsigned(layer, "layer"), out, error()))
        return fill(BlendLayerStats, out)

    def costs(self) -> BlendCosts:
        """What the last prompt took, as its layers from the check layer on say. On a device with a queue of
        its own computing is seen with `timing` alone. Raises StateError where no prompt has ended, or nothing
        was loaded behind the check layer."""
        out = ffi.new("tamis_blend_costs *")
        check(lib.tamis_blend_get_costs(self._pointer, out, error()))
        return fill(BlendCosts, out)


class _Calls:
    """The tamis_blend_engine of a Python engine, for one prompt."""

    def __init__(self, engine: BlendEngine) -> None:
        held: list[Array] = []  # what the blend reads until its next call

        def project(_: Any, layer: int, at: Any, n: int, v: Any, reason: Any) -> int:
            with _core.callback(reason, ends=True) as call:
                held[:] = [engine.project(layer, _copied(at, n))]
                v[0] = rows(held[0])[0]
            return _status(call)

        def write(_: Any, layer: int, reason: Any) -> int:
            with _core.callback(reason, ends=True) as call:
                engine.write(layer)
            return _status(call)

        def keep(_: Any, layer: int, at: Any, places: Any, n: int, q: Any, reason: Any) -> int:
            with _core.callback(reason, ends=True) as call:
                held[:] = [engine.keep(layer, _copied(at, n), _copied(places, n) if places else None)]
                q[0] = rows(held[0])[0]
            return _status(call)

        def finish(_: Any, layer: int, n: int, reason: Any) -> int:
            with _core.callback(reason, ends=True) as call:
                engine.finish(layer, n)
            return _status(call)

        out = self.struct = ffi.new("tamis_blend_engine *")
        names = ffi.typeof("tamis_blend_engine").fields
        self._calls = {name: ffi.callback(dict(names)[name].type, call, error=lib.TAMIS_E_STATE)
                       for name, call in (("project", project), ("write", write), ("keep", keep),
                                          ("finish", finish))}
        for name, call in self._calls.items():
            setattr(out, name, call)


def _copied(numbers: Any, n: int) -> numpy.ndarray:
    """uint32 [n] of the library's memory."""
    return numpy.array(numpy.frombuffer(ffi.buffer(numbers, 4 * n), numpy.uint32))


def _status(call: _core.callback) -> int:
    return int(lib.TAMIS_E_STATE if call.failed else lib.TAMIS_OK)
