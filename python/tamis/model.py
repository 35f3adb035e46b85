# SPDX-License-Identifier: Apache-2.0
"""Models from GGUF files, and runners, which run forward passes of a model over a cache (tamis/model.h)."""
from __future__ import annotations

import contextlib
import dataclasses
import os
import weakref
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Optional, Sequence as Seq, Union

import numpy

from . import _core
from ._c import ffi
from ._core import NULL, check, error, lib, path_bytes, text
from .cache import Cache, Sequence, handles
from .device import Context
from .errors import ArgumentError
from .plan import Attention, Layer, Plan, _Params, _Reads
from .policy import Eviction, Selection, eviction, selection
from .vocab import Tokens, Vocab, tokens_of

if TYPE_CHECKING:
    from .session import Session

#: Told how much has been done, and of how much.
Progress = Callable[[int, int], object]


@dataclasses.dataclass(frozen=True)
class Architecture:
    """An architecture of GGUF files: its name, which models it is, and why files of it are not read (None:
    they are)."""

    name: str
    models: str
    refused: Optional[str]


def architectures() -> list[Architecture]:
    """All architectures that are known by name: those that are read, then the others.

    >>> architectures()[0].refused is None
    True
    """
    out: list[Architecture] = []
    while True:
        info = lib.tamis_architecture_describe(len(out))
        if not info:
            return out
        out.append(Architecture(text(info.name), text(info.models),
                                text(info.refused) if info.refused else None))


@dataclasses.dataclass(frozen=True)
class ModelInfo:
    """What a model's file says.

    Attributes:
        architecture, name: general.architecture, such as "llama", and general.name, or "".
        n_layers, n_heads, n_kv_heads, head_dim, dim, ff_dim, n_vocab: the shape.
        context: the longest text, tokens.
        type: the type of most parameters in matrices, such as "Q4_K".
        parameters: how many; weight_bytes: what they take on the device.
        sliding_window: tokens that a row of local layers sees; 0: all. n_local_layers: layers that have it.
        tensors_of_type: how many tensors of each type the file has.
    """

    architecture: str
    name: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    dim: int
    ff_dim: int
    n_vocab: int
    context: int
    type: str
    parameters: int
    weight_bytes: int
    sliding_window: int
    n_local_layers: int
    tensors_of_type: dict[str, int]


def _model_info(info: Any) -> ModelInfo:
    numbers = {field.name: getattr(info, field.name) for field in dataclasses.fields(ModelInfo)
               if field.type == "int"}
    types = {text(lib.tamis_weight_name(i)): n for i, n in enumerate(info.tensors_of_type) if n}
    return ModelInfo(architecture=text(info.architecture), name=text(info.name),
                     type=text(lib.tamis_weight_name(info.type)), tensors_of_type=types, **numbers)


def _watcher(kind: str, watch: Progress) -> Any:
    """A C callback (user, done, count, error) that calls `watch`."""
    def tell(_: Any, done: int, count: int, failure: Any) -> int:
        with _core.callback(failure) as call:
            watch(done, count)
        return int(lib.TAMIS_E_STATE) if call.failed else 0

    return _core.function_for_c(kind, tell, lib.TAMIS_E_STATE)


class Model(_core.Object):
    """A model's weights on a device, and its vocabulary.

    Args:
        context: the device.
        path: a GGUF file; of a model in parts any of them. It is not trusted: what would change the
            computation and is not known is refused by name.
        progress: called with (bytes done, bytes of all weights) while it is loaded.

    Raises FormatError and UnsupportedError with the offending key, tensor or value.

    Attributes:
        context: the context.
        info: what the file says, a `ModelInfo`.
    """

    def __init__(self, context: Context, path: str | os.PathLike[str], *,
                 progress: Optional[Progress] = None) -> None:
        context._collect()
        params = ffi.new("tamis_model_params *")
        if progress is not None:
            watcher = _watcher("tamis_model_watcher", progress)
            params.watcher = watcher
        handle = ffi.new("tamis_model **")
        check(lib.tamis_model_load(context._pointer, path_bytes(path), params, handle, error()))
        self.context = context
        self._take(context._owner, handle, "tamis_model_destroy", context)
        self.info = _model_info(lib.tamis_model_describe(handle[0]))
        # A vocabulary keeps its model alive, not the other way round, so that no cycle holds either.
        self._vocab_handle = ffi.new("tamis_vocab **", lib.tamis_model_vocab(handle[0]))
        self._vocab_known: dict[Any, Any] = {}
        self._vocab: Optional[weakref.ref[Vocab]] = None

    def __repr__(self) -> str:
        name = self.info.name or self.info.architecture
        return f"<tamis.Model {name}, {self.info.type}{', closed' if self.closed else ''}>"

    def close(self) -> None:
        super().close()
        self._vocab_handle[0] = NULL

    @property
    def vocab(self) -> Vocab:
        """The model's vocabulary, which keeps the model alive and is closed with it."""
        vocab = self._vocab() if self._vocab is not None else None
        if vocab is None:
            vocab = Vocab._part(self._vocab_handle, self, self._vocab_known)
            self._vocab = weakref.ref(vocab)
        return vocab

    @property
    def fingerprint(self) -> bytes:
        """A hash of all that decides which K and V the model computes for tokens, 16 bytes: equal for files
        of the same content on every device. The first call reads all weights back from the device."""
        out = ffi.new("uint8_t[16]")
        check(lib.tamis_model_fingerprint(self._pointer, out, error()))
        return bytes(out)

    def layers(self, max_context: int, attention: Attention = Attention()) -> list[Layer]:
        """How each layer attends in a runner of this `max_context`: for a `Plan` of one's own."""
        return [Layer(Attention(of.attention.scale, of.attention.soft_cap, of.attention.sliding_window,
                                of.attention.chunk, attention.sinks), bool(of.full))
                for of in self._layers(max_context, attention)]

    def _layers(self, max_context: int, attention: Attention) -> Any:
        params = ffi.new("tamis_plan_params *")
        params.max_context = max_context
        attention._fill(params.attention)
        layers = ffi.new("tamis_layer[]", self.info.n_layers)
        check(lib.tamis_model_layers(self._pointer, params, layers, error()))
        return layers

    def layer_tokens(self, max_context: int, *, sequences: int = 1, max_rows: int = 512,
                     page_size: int = 16) -> Optional[list[int]]:
        """How much room each layer needs for so many sequences of up to `max_context` tokens where layers
        with a sliding window give pages back: what `Cache` takes as `layer_tokens`, for runners with
        ``give_back=True``. 0: max_context for each sequence. None: no layer gives anything back."""
        most = [lib.tamis_layer_tokens(ffi.addressof(of, "attention"), page_size, max_rows)
                for of in self._layers(max_context, Attention())]
        out = [sequences * n if n < max_context else 0 for n in most]
        return out if any(out) else None

    def cache(self, capacity_tokens: int = 0, *, dtype: str = "f16",
              evict: Union[str, Eviction, None] = None, **params: Any) -> Cache:
        """A cache of the model's shape; `params` are those of `Cache`, of which capacity_bytes may stand in
        the place of capacity_tokens."""
        info = self.info
        return Cache(self.context, n_layers=info.n_layers, n_heads=info.n_heads, n_kv_heads=info.n_kv_heads,
                     head_dim=info.head_dim, capacity_tokens=capacity_tokens, dtype=dtype,
                     evict=eviction(evict), **params)

    def runner(self, cache: Cache, **params: Any) -> Runner:
        """A runner of the model over a cache; see `Runner`."""
        return Runner(self, cache, **params)

    def session(self, **params: Any) -> Session:
        """A text that is asked, with a cache and a runner of its own; see `Session`."""
        from .session import Session

        return Session(self, **params)


def load(path: str | os.PathLike[str], device: Optional[str] = None, *,
         progress: Optional[Progress] = None) -> Model:
    """A model on a device, with a context of its own (`Model.context`); `device` as `Context` takes it."""
    return Model(Context(device), path, progress=progress)


# ---- Runners --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Run:
    """What one sequence brings to `Runner.step`.

    Attributes:
        sequence, tokens: the tokens that it takes.
        outputs: of its last tokens: these get logits and greedy tokens; 0: none.
        exact: a prompt's chunk, whose rows read every page. Otherwise rows go through the selection: a
            decode row, or several that are to be verified (max_selected_rows).
        evict: with `exact`: the prompt ends here, and is evicted from.
        parents: a tree: of each token that of the run behind which it stands, NO_ROW for the sequence's
            last; None: each stands behind the one before it.
    """

    sequence: Sequence
    tokens: Tokens
    outputs: int = 0
    exact: bool = False
    evict: bool = False
    parents: Optional[Seq[int]] = None


@dataclasses.dataclass(frozen=True)
class AttentionRows:
    """The rows of one layer's attention, copies in f32: q and out [n_rows][n_heads][head_dim], k and v
    [n_rows][n_kv_heads][head_dim]; q and k are rotated, out is before the output projection. Logits are
    q·k times the plan's scale."""

    layer: int
    q: numpy.ndarray
    k: numpy.ndarray
    v: numpy.ndarray
    out: numpy.ndarray


class _Observer:
    """What a runner's observer does: it notes which pages were read, and calls the user's function. It holds
    no runner, so that a forgotten one is freed at once."""

    def __init__(self, model: ModelInfo, plan: Any, reads: Optional[_Reads]) -> None:
        self.wide = (model.n_heads, model.head_dim)
        self.narrow = (model.n_kv_heads, model.head_dim)
        self.plan, self.reads, self.noting = plan, reads, False
        self.fn: Optional[Callable[[AttentionRows], object]] = None
        self.callback = _core.function_for_c("tamis_runner_observer", self._call, lib.TAMIS_E_STATE)

    def _call(self, _: Any, rows: Any, failure: Any) -> int:
        with _core.callback(failure) as call:
            if self.noting and self.reads is not None:
                self.reads.add(self.plan[0], rows.layer)
            if self.fn is not None:
                self.fn(AttentionRows(rows.layer, *(
                    self._copy(place, (rows.n_rows, *shape)) for place, shape in (
                        (rows.q, self.wide), (rows.k, self.narrow), (rows.v, self.narrow),
                        (rows.out, self.wide)))))
        return int(lib.TAMIS_E_STATE) if call.failed else 0

    @contextlib.contextmanager
    def note(self, rows: int) -> Iterator[None]:
        """Around a step: reads are those of its `rows` decode rows, and none where it fails. A step without
        decode rows leaves those of the one before."""
        if self.reads is None or not rows:
            yield
            return
        self.reads.begin(rows)
        self.noting = True
        try:
            yield
        except BaseException:
            self.reads.begin(0)
            raise
        finally:
            self.noting = False

    @staticmethod
    def _copy(rows: Any, shape: tuple[int, ...]) -> numpy.ndarray:
        out = numpy.empty(shape, numpy.float32)
        check(lib.tamis_buffer_read(rows.buffer, rows.offset, ffi.from_buffer(out), out.nbytes, error()))
        return out


class Runner(_core.Object):
    """Runs forward passes of a model over a cache of its shape: a plan, and the memory of the activations.

    Args:
        model, cache: of one context.
        select: a selection, or its name; None: full. `Lists` cannot be: a runner has none.
        evict: an eviction, or its name; the cache must have its planes (`Model.cache` with `evict`).
        max_context: the longest sequence, tokens; None: the model's context.
        max_sequences, max_rows, max_selected_rows, load_dtypes, flags: as `Plan` takes them.
        attention: zeros mean the model's own.
        reads: keep which pages decode rows read, for `read`. It costs a wait in every layer, and launches
            that are not fused, whose results differ by rounding.

    What fails in a step leaves sequences as they were. An eviction that fails comes behind its step, whose
    tokens and logits then stay; the sequence's length shows it.
    """

    def __init__(self, model: Model, cache: Cache, *, select: Union[str, Selection, None] = None,
                 evict: Union[str, Eviction, None] = None, max_context: Optional[int] = None,
                 max_sequences: int = 1, max_rows: int = 512, max_selected_rows: int = 0,
                 attention: Attention = Attention(), load_dtypes: Iterable[str] = (), reads: bool = False,
                 **flags: bool) -> None:
        if max_context is None:
            max_context = min(model.info.context, int(lib.TAMIS_ROTATE_LIMIT))
        self.select, self.evict_by = selection(select), eviction(evict)
        params = _Params(self.select, self.evict_by, max_context=max_context, max_sequences=max_sequences,
                         max_rows=max_rows, max_selected_rows=max_selected_rows, attention=attention,
                         layers=None, load_dtypes=load_dtypes, n_layers=model.info.n_layers, flags=flags)
        cache._collect()
        handle = ffi.new("tamis_runner **")
        check(lib.tamis_runner_create(model._pointer, cache._pointer, params.struct, handle, error()))
        self._take(cache._owner, handle, "tamis_runner_destroy", (model, cache))
        self.model, self.cache = model, cache
        self._plan_handle = ffi.new("tamis_plan **", lib.tamis_runner_plan(handle[0]))
        self._plan: Optional[weakref.ref[Plan]] = None  # a plan keeps its runner alive
        self._reads = _Reads(cache) if reads else None
        self._observer = _Observer(model.info, self._plan_handle, self._reads)
        plan = self.plan
        self.max_context: int = plan.max_context
        self.max_sequences: int = plan.max_sequences
        self.max_rows: int = plan.max_rows
        self.observe(None)

    def __repr__(self) -> str:
        return (f"<tamis.Runner {self.model.info.name or self.model.info.architecture}, {self.select}, "
                f"evict {self.evict_by}{', closed' if self.closed else ''}>")

    def close(self) -> None:
        super().close()
        self._plan_handle[0] = NULL

    @property
    def plan(self) -> Plan:
        """The plan inside, for counters, times and evicting. It keeps the runner alive, and is closed with
        it."""
        plan = self._plan() if self._plan is not None else None
        if plan is None:
            assert self._pointer  # raises where it has been closed
            plan = Plan.__new__(Plan)
            plan.select, plan.evict_by = self.select, self.evict_by
            plan._begin(self.cache, self._plan_handle, False, False)
            plan._reads = self._reads
            plan._keep = self
            self._plan = weakref.ref(plan)
        return plan

    def build(self, n_rows: int, n_outputs: int) -> None:
        """Builds the kernels of steps of `n_rows` rows, of which `n_outputs` get logits, before the first
        step that takes them does: a prompt's chunk has 1 or none, a decode step one for each sequence."""
        check(lib.tamis_runner_build(self._pointer, n_rows, n_outputs, error()))

    # ---- Steps ----

    def prefill(self, sequence: Sequence, tokens: Tokens, watch: Optional[Progress] = None) -> int:
        """Appends a prompt in exact steps of at most max_rows rows, and then evicts, if there is an eviction.

        Args:
            watch: called with (tokens done, tokens of all) behind each step. What it raises ends the
                prefill: what has been read stays, and nothing is evicted.

        Returns the most likely next token. Raises ArgumentError for what max_context does not hold, before
        anything has changed; FullError with the pages needed and free, and what came before the step
        stays."""
        tokens = tokens_of(tokens)
        out = ffi.new("int32_t *")
        given = ffi.from_buffer("int32_t[]", tokens)
        call = self._pointer, sequence.handle, given, len(tokens), out, error()
        if watch is None:
            check(lib.tamis_runner_prefill(*call))
            return int(out[0])
        watcher = _watcher("tamis_runner_watcher", watch)
        lib.tamis_runner_watch(self._pointer, watcher, NULL)
        try:
            check(lib.tamis_runner_prefill(*call))
        finally:
            lib.tamis_runner_watch(self._pointer, NULL, NULL)
        return int(out[0])

    def decode(self, sequences: Union[Sequence, Seq[Sequence]], tokens: Tokens) -> numpy.ndarray:
        """One decode step under the selection: each sequence takes one token.

        Returns the most likely next token of each, int32 [n_sequences]."""
        sequences = [sequences] if isinstance(sequences, Sequence) else sequences
        tokens = tokens_of(tokens)
        if len(tokens) != len(sequences):
            raise ArgumentError(f"{len(tokens)} tokens for {len(sequences)} sequences: one each")
        out = numpy.empty(len(tokens), numpy.int32)
        with self._observer.note(len(tokens)):
            check(lib.tamis_runner_decode(self._pointer, handles(self.cache, sequences), len(tokens),
                                          ffi.from_buffer("int32_t[]", tokens),
                                          ffi.from_buffer("int32_t[]", out), error()))
        return out

    def step(self, runs: Seq[Run]) -> numpy.ndarray:
        """One step of several sequences, no sequence twice: chunks of prompts beside decode rows and rows to
        be verified; runs that are exact come last. Of rows to be verified the rejected ones are given up
        before the sequence's next step, by `Plan.keep_path`, or `Sequence.truncate` unless they are a tree.

        Returns the most likely tokens behind the outputs, run by run, int32 [n_outputs]."""
        keep: list[Any] = []
        structs = ffi.new("tamis_run[]", len(runs))
        for struct, run in zip(structs, runs):
            tokens = tokens_of(run.tokens)
            keep.append(ffi.from_buffer("int32_t[]", tokens))
            struct.sequence, struct.tokens, struct.n_tokens = run.sequence.handle, keep[-1], len(tokens)
            struct.n_outputs = run.outputs
            struct.flags = ((lib.TAMIS_RUN_EXACT if run.exact else 0)
                            | (lib.TAMIS_RUN_EVICT if run.evict else 0))
            if run.parents is not None:
                if len(run.parents) != len(tokens):
                    raise ArgumentError(f"{len(run.parents)} parents for {len(tokens)} tokens")
                keep.append(ffi.new("uint32_t[]", list(run.parents)))
                struct.parents = keep[-1]
        out = numpy.empty(sum(run.outputs for run in runs), numpy.int32)
        with self._observer.note(sum(s.n_tokens for s, run in zip(structs, runs) if not run.exact)):
            check(lib.tamis_runner_step(self._pointer, structs, len(runs), ffi.from_buffer("int32_t[]", out),
                                        error()))
        return out

    # ---- What the last call has left ----

    def logits(self, row: int = 0) -> numpy.ndarray:
        """Logits after the last call, f32 [n_vocab]: of a decode row or an output of a step, or behind a
        prefill. Raises StateError where the last call left none."""
        out = numpy.empty(self.model.info.n_vocab, numpy.float32)
        check(lib.tamis_runner_logits(self._pointer, row, ffi.from_buffer("float[]", out), error()))
        return out

    def read(self, row: int = 0) -> numpy.ndarray:
        """Which pages a row of the last step that had decode rows has read: bool
        [n_layers][n_kv_heads][pages]; see `Plan.read`. Of a runner with ``reads=True``."""
        return self.plan.read(row)

    def observe(self, fn: Optional[Callable[[AttentionRows], object]]) -> None:
        """Calls `fn` with an `AttentionRows` in every layer of every step, behind its attention; None ends
        that. What it raises ends the step. It must not call the runner, its plan or its cache. Launches are
        not fused meanwhile, so that results may differ by rounding."""
        self._observer.fn = fn
        on = fn is not None or self._reads is not None
        lib.tamis_runner_observe(self._pointer, self._observer.callback if on else NULL, NULL)

