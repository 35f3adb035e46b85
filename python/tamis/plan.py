# SPDX-License-Identifier: Apache-2.0
"""Plans and steps (tamis/plan.h): a cache, a selection and an eviction joined, and batches of rows run
through them."""
from __future__ import annotations

import dataclasses
from typing import Any, Iterable, Optional, Sequence as Seq, Union

import numpy

from . import _core
from ._c import ffi
from ._core import NULL, check, error, lib
from .array import Array, rows
from .cache import Cache, Sequence, dtype_code, fill, handles
from .device import Context
from .errors import ArgumentError, Error, StateError
from .policy import Eviction, Selection, eviction, selection

NO_ROW = lib.TAMIS_NO_ROW
_FLAGS = {"timing": lib.TAMIS_PLAN_TIMING, "fixed_launches": lib.TAMIS_PLAN_FIXED_LAUNCHES,
          "unfused": lib.TAMIS_PLAN_UNFUSED, "row_masses": lib.TAMIS_PLAN_ROW_MASSES,
          "rotated": lib.TAMIS_PLAN_ROTATED, "give_back": lib.TAMIS_PLAN_GIVE_BACK,
          "trees": lib.TAMIS_PLAN_TREES, "verify": lib.TAMIS_PLAN_VERIFY,
          "half_rows": lib.TAMIS_PLAN_HALF_ROWS, "token_lists": lib.TAMIS_PLAN_TOKEN_LISTS}
_PAIRINGS = {"half": lib.TAMIS_PAIR_HALF, "adjacent": lib.TAMIS_PAIR_ADJACENT}
_LOADED = {"f32": lib.TAMIS_F32, "f16": lib.TAMIS_F16, "bf16": lib.TAMIS_BF16}


@dataclasses.dataclass(frozen=True)
class Attention:
    """The logit of a query and a key, and which keys a row sees (tamis/layer.h).

    Attributes:
        scale: of q·k; 0 means 1/sqrt(head_dim).
        soft_cap: logits become cap·tanh(logit/cap); 0 means none.
        sliding_window: a row at position p sees positions > p − window; 0 means all.
        chunk: a row at position p sees positions >= p − p mod chunk; 0 means all.
        sinks: f32 [n_heads], one more logit of each query head, which has no value.
    """

    scale: float = 0
    soft_cap: float = 0
    sliding_window: int = 0
    chunk: int = 0
    sinks: Optional[Array] = None

    def _fill(self, out: Any) -> None:
        _core.put(out, scale=self.scale, soft_cap=self.soft_cap, sliding_window=self.sliding_window,
                  chunk=self.chunk)
        if self.sinks is not None:
            out.sinks = self.sinks._place()


@dataclasses.dataclass(frozen=True)
class Layer:
    """How one layer attends; `full`: it reads every page, whatever the selection is."""

    attention: Attention = Attention()
    full: bool = False


class Rotation:
    """RoPE (arXiv 2104.09864) of the first channels of each head: how keys and queries turn.

    Args:
        frequencies: float64 [n_rot/2], radians per position, of each pair of channels.
        pairing: "half": channels (i, i + n_rot/2) turn together; "adjacent": (2i, 2i + 1).
        magnitude: what the rotated channels are multiplied by (YaRN, LongRoPE).
    """

    def __init__(self, context: Context, frequencies: Any, *, pairing: str = "half",
                 magnitude: float = 1) -> None:
        if pairing not in _PAIRINGS:
            raise ArgumentError(f"pairing {pairing!r}: known are {', '.join(_PAIRINGS)}")
        frequencies = _shaped(frequencies, numpy.float64, (None,), "frequencies")
        self.context, self.n_rot, self.pairing = context, 2 * len(frequencies), pairing
        self.table = context.empty(int(lib.tamis_rotation_bytes(self.n_rot)), "u8")
        check(lib.tamis_rotation_write_scaled(self._struct, ffi.from_buffer("double[]", frequencies),
                                              magnitude, error()))

    @property
    def _struct(self) -> Any:
        return ffi.new("tamis_rotation *", {"table": self.table._place(), "n_rot": self.n_rot,
                                            "pairing": _PAIRINGS[self.pairing]})

    @classmethod
    def of_base(cls, context: Context, base: float, n_rot: int, *, pairing: str = "half") -> Rotation:
        """The usual frequencies, base^(-2i/n_rot)."""
        return cls(context, float(base) ** (-numpy.arange(0, n_rot, 2) / n_rot), pairing=pairing)


@dataclasses.dataclass(frozen=True)
class Evicted:
    """What an eviction did; tokens and pages over all lanes. `pages_net`: the pages that the pools have
    gained, less copies of shared ones."""

    tokens_before: int
    tokens_kept: int
    pages_returned: int
    bytes_returned: int
    pages_net: int


@dataclasses.dataclass(frozen=True)
class StepPages:
    """The pages that a step would take; `missing` 0: it fits."""

    needed: int
    copied: int
    free: int
    missing: int


@dataclasses.dataclass(frozen=True)
class Counters:
    """What a plan has done since it was made or reset, which proves the path that ran. A row is one query
    token in one layer; bytes are of decode rows."""

    steps: int
    rows_written: int
    rows_exact: int
    rows_full: int
    rows_short: int
    rows_selected: int
    rows_fused: int
    pages_copied: int
    pages_bounded: int
    kv_bytes_read: int
    bounds_bytes_read: int
    kv_bytes_full: int
    evictions: int
    tokens_evicted: int
    tokens_replaced: int
    rows_observed: int
    rows_loaded: int


@dataclasses.dataclass(frozen=True)
class PlanMemory:
    """Bytes that a plan takes: on the device, in its largest buffer, on the host."""

    device_bytes: int
    largest_bytes: int
    host_bytes: int


@dataclasses.dataclass(frozen=True)
class Times:
    """Device time of the stages in microseconds; 0 without `timing`."""

    write_us: float
    bounds_us: float
    score_us: float
    select_us: float
    attend_us: float
    fused_us: float
    observe_us: float
    replace_us: float
    evict_us: float
    fused_select_us: float


class _Params:
    """A tamis_plan_params with what it points to."""

    def __init__(self, select: Selection, evict: Optional[Eviction], *, max_context: int,
                 max_sequences: int, max_rows: int, max_selected_rows: int, attention: Attention,
                 layers: Optional[Seq[Layer]], load_dtypes: Iterable[str], n_layers: int,
                 flags: dict[str, bool]) -> None:
        out = self.struct = ffi.new("tamis_plan_params *")
        out.selection = select._struct()[0]
        if evict is not None:
            out.eviction = evict._struct()[0]
        _core.put(out, max_context=max_context, max_sequences=max_sequences, max_rows=max_rows,
                  max_selected_rows=max_selected_rows)
        attention._fill(out.attention)
        if layers is not None:
            if len(layers) != n_layers:
                raise ArgumentError(f"{len(layers)} layers for a cache of {n_layers}")
            self.layers = ffi.new("tamis_layer[]", n_layers)
            for of, layer in zip(self.layers, layers):
                layer.attention._fill(of.attention)
                of.full = layer.full
            out.layers = self.layers
        for dtype in load_dtypes:
            out.load_dtypes |= 1 << dtype_code(dtype, _LOADED)
        for name, on in flags.items():
            if name not in _FLAGS:
                raise ArgumentError(f"a plan has no {name!r}: flags are {', '.join(_FLAGS)}")
            out.flags |= _FLAGS[name] if on else 0


class Plan(_core.Object):
    """Runs steps over a cache. It owns page tables on the device and the workspace of its largest step.

    Args:
        cache: the cache, or a `View`.
        select: a selection, or its name; None: full.
        evict: an eviction, or its name; the cache must have its planes.
        max_context: the longest sequence, tokens.
        max_sequences, max_rows: of one step; all rows together.
        max_selected_rows: rows of a step that go through the selection; 0: max_sequences.
        attention, layers: how all layers attend, or each of them.
        load_dtypes: types of rows that `Step.load` takes.
        reads: keep which pages decode rows read, for `read`. Costs a wait in every layer.
        flags: timing, fixed_launches, unfused, row_masses, rotated, give_back, trees, verify, half_rows,
            token_lists; see tamis/plan.h.
    """

    def __init__(self, cache: Cache, *, select: Union[str, Selection, None] = None,
                 evict: Union[str, Eviction, None] = None, max_context: int, max_sequences: int = 1,
                 max_rows: int = 512, max_selected_rows: int = 0, attention: Attention = Attention(),
                 layers: Optional[Seq[Layer]] = None, load_dtypes: Iterable[str] = (),
                 reads: bool = False, **flags: bool) -> None:
        self.select, self.evict_by = selection(select), eviction(evict)
        params = _Params(self.select, self.evict_by, max_context=max_context, max_sequences=max_sequences,
                         max_rows=max_rows, max_selected_rows=max_selected_rows, attention=attention,
                         layers=layers, load_dtypes=load_dtypes, n_layers=cache.n_layers, flags=flags)
        cache.context._owner.collect()
        handle = ffi.new("tamis_plan **")
        check(lib.tamis_plan_create(cache._pointer, params.struct, handle, error()))
        self._begin(cache, handle, True, reads)

    def _begin(self, cache: Cache, handle: Any, owned: bool, reads: bool) -> None:
        self.cache = cache
        self._bound: dict[Any, Any] = {}  # what it reads of the caller's until it is closed
        self._reads: Optional[_Reads] = _Reads(cache) if reads else None
        self._step: Optional[Step] = None
        if owned:
            self._take(cache._owner, handle, "tamis_plan_destroy", cache)
        else:
            self._handle, self._owner = handle, cache._owner
        out = ffi.new("tamis_plan_params *")
        lib.tamis_plan_get_params(handle[0], out)
        self.max_rows, self.max_sequences, self.max_context = out.max_rows, out.max_sequences, out.max_context

    def __repr__(self) -> str:
        return f"<tamis.Plan {self.select}, evict {self.evict_by}{', closed' if self.closed else ''}>"

    @staticmethod
    def measure(cache: Cache, *, select: Union[str, Selection, None] = None,
                evict: Union[str, Eviction, None] = None, max_context: int, max_sequences: int = 1,
                max_rows: int = 512, max_selected_rows: int = 0, attention: Attention = Attention(),
                layers: Optional[Seq[Layer]] = None, load_dtypes: Iterable[str] = (),
                **flags: bool) -> PlanMemory:
        """The memory that a plan of these parameters would take. Takes none."""
        params = _Params(selection(select), eviction(evict), max_context=max_context,
                         max_sequences=max_sequences, max_rows=max_rows,
                         max_selected_rows=max_selected_rows, attention=attention, layers=layers,
                         load_dtypes=load_dtypes, n_layers=cache.n_layers, flags=flags)
        out = ffi.new("tamis_plan_memory *")
        check(lib.tamis_plan_measure(cache._pointer, params.struct, out, error()))
        return fill(PlanMemory, out)

    @property
    def memory(self) -> PlanMemory:
        """The memory that it has taken."""
        out = ffi.new("tamis_plan_memory *")
        check(lib.tamis_plan_get_memory(self._pointer, out, error()))
        return fill(PlanMemory, out)

    # ---- Steps ----

    def step(self, sequences: Union[Sequence, Seq[Sequence]], rows: Union[int, Seq[int], None] = None, *,
             exact: bool = False, exact_from: int = 0, parents: Optional[Seq[int]] = None) -> Step:
        """Begins a step of one batch: ``with plan.step([a, b]) as step: ...`` ends it, or cancels it where
        the block raises.

        Args:
            sequences: each brings `rows` new tokens (an int for all, one each by default), which get the
                sequence's next positions; in the step's arrays their rows are adjacent, in this order.
            exact: every row reads all that it may see, as prompts do; otherwise rows are selected for.
            exact_from: a mixed step: sequences from this index on are exact, those before are not.
            parents: trees of drafts, as tamis_step.parents.

        Takes all memory of the step. Raises FullError with the pages needed and free; then nothing has
        changed."""
        self.cache.context._owner.collect()
        batch = _Batch(self.cache, sequences, rows, exact, exact_from, parents)
        check(lib.tamis_plan_step_begin(self._pointer, batch.struct, error()))
        return Step(self, batch.rows, selected_rows(batch.rows, exact, exact_from), batch.sequences)

    def close(self) -> None:
        super().close()
        if self._step is not None:  # it has been given up
            self._step._closed()

    def step_pages(self, sequences: Union[Sequence, Seq[Sequence]],
                   rows: Union[int, Seq[int], None] = None, *, exact: bool = False, exact_from: int = 0,
                   parents: Optional[Seq[int]] = None) -> StepPages:
        """The pages that a step would take, if it was begun now. Changes nothing."""
        batch = _Batch(self.cache, sequences, rows, exact, exact_from, parents)
        out = ffi.new("tamis_step_pages *")
        check(lib.tamis_plan_step_pages(self._pointer, batch.struct, out, error()))
        return fill(StepPages, out)

    def keep_path(self, sequence: Sequence, row: int) -> None:
        """Of the rows that a sequence brought to its last step keeps those on the path to `row`, which was
        to be verified, and gives up the others; NO_ROW keeps none."""
        check(lib.tamis_plan_keep_path(self._pointer, sequence.handle, row, error()))

    # ---- What evictions need, and evicting ----

    def bind_output(self, layer: int, w: Array) -> None:
        """criticalkv, critical-adakv, defensivekv: a layer's output projection, f32, f16 or bf16
        [n_rows][n_heads*head_dim], which is read until the plan is closed."""
        check(lib.tamis_plan_bind_output(self._pointer, layer, rows(w), w.shape[0], error()))
        self._bound[layer] = w

    def bind_rotation(self, rotation: Rotation) -> None:
        """Streaming with reindex: how queries were rotated."""
        check(lib.tamis_plan_bind_rotation(self._pointer, rotation._struct, error()))
        self._bound["rotation"] = rotation

    def bind_budgets(self, budgets: Optional[numpy.ndarray]) -> None:
        """A budget for each KV head, [n_layers][n_kv_heads]; None removes them."""
        if budgets is None:
            check(lib.tamis_plan_bind_budgets(self._pointer, NULL, error()))
            return
        budgets = _shaped(budgets, numpy.uint32, (self.cache.n_layers, self.cache.n_kv_heads), "budgets")
        check(lib.tamis_plan_bind_budgets(self._pointer, ffi.from_buffer("uint32_t[]", budgets), error()))

    def evict(self, sequence: Sequence) -> Evicted:
        """Evicts from a sequence, between steps: at its prompt's end, or when the caller wants."""
        out = ffi.new("tamis_evicted *")
        check(lib.tamis_plan_evict(self._pointer, sequence.handle, out, error()))
        return fill(Evicted, out)

    def evict_by_scores(self, sequence: Sequence, scores: numpy.ndarray) -> Evicted:
        """Keeps the tokens of each lane with the best of the caller's scores, f32
        [n_layers][n_kv_heads][slots]."""
        scores = _shaped(scores, numpy.float32, (self.cache.n_layers, self.cache.n_kv_heads, None), "scores")
        out = ffi.new("tamis_evicted *")
        check(lib.tamis_plan_evict_by_scores(self._pointer, sequence.handle,
                                             ffi.from_buffer("float[]", scores), scores.shape[2], out,
                                             error()))
        return fill(Evicted, out)

    def evict_to(self, sequence: Sequence, slots: Seq[Seq[Seq[int]]]) -> Evicted:
        """Keeps exactly these slots: a list, ascending, for each layer and KV head."""
        layers, heads = self.cache.n_layers, self.cache.n_kv_heads
        if len(slots) != layers or any(len(layer) != heads for layer in slots):
            raise ArgumentError(f"slots must have {layers} layers of {heads} KV heads")
        counts = numpy.array([[len(lane) for lane in layer] for layer in slots], numpy.uint32)
        stride = max(int(counts.max()), 1)
        table = numpy.zeros((layers, heads, stride), numpy.uint32)
        for at in numpy.ndindex(layers, heads):
            lane = slots[at[0]][at[1]]
            table[at][:len(lane)] = lane
        out = ffi.new("tamis_evicted *")
        check(lib.tamis_plan_evict_to(self._pointer, sequence.handle, ffi.from_buffer("uint32_t[]", table),
                                      ffi.from_buffer("uint32_t[]", counts), stride, out, error()))
        return fill(Evicted, out)

    # ---- What it has done ----

    @property
    def counters(self) -> Counters:
        """Counters since the plan was made or `reset_counters`."""
        out = ffi.new("tamis_plan_counters *")
        lib.tamis_plan_get_counters(self._pointer, out)
        return fill(Counters, out)

    def reset_counters(self) -> None:
        """Sets counters and times to 0."""
        lib.tamis_plan_reset_counters(self._pointer)

    @property
    def times(self) -> Times:
        """Device times of the stages, of a plan with `timing`."""
        out = ffi.new("tamis_plan_times *")
        lib.tamis_plan_get_times(self._pointer, out)
        return fill(Times, out)

    @property
    def skipped(self) -> int:
        """Entries of the caller's lists that were skipped (select `Lists`). Waits."""
        out = ffi.new("uint64_t *")
        check(lib.tamis_plan_read_skipped(self._pointer, out, error()))
        return int(out[0])

    def read(self, row: Optional[int] = None) -> numpy.ndarray:
        """Which pages the last step's decode rows read: bool [rows][n_layers][n_kv_heads][pages], or of one
        `row` [n_layers][n_kv_heads][pages]. Pages are counted in the lane, from the text's beginning
        unless tokens were evicted; lanes that have fewer pages read none behind their end.

        Raises StateError for a plan that was made without ``reads=True``, and where no step that is not
        exact has been run."""
        if self._reads is None:
            raise StateError("this plan keeps no reads: make it with reads=True")
        read = self._reads.array()
        return read if row is None else read[row]


class _Reads:
    """The lists of pages of one step, layer by layer."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.lists: dict[tuple[int, int, int], numpy.ndarray] = {}
        self.rows = 0

    def begin(self, rows: int) -> None:
        self.rows, self.lists = rows, {}

    def add(self, plan: Any, layer: int) -> None:
        """Of a layer that has just been attended."""
        count = ffi.new("uint32_t *")
        pages = numpy.empty(1024, numpy.uint32)
        for row in range(self.rows):
            for head in range(self.cache.n_kv_heads):
                while True:
                    check(lib.tamis_plan_read_selected(plan, row, head, ffi.from_buffer("uint32_t[]", pages),
                                                       len(pages), count, error()))
                    if count[0] <= len(pages):
                        break
                    pages = numpy.empty(count[0], numpy.uint32)
                self.lists[row, layer, head] = pages[:count[0]].copy()

    def array(self) -> numpy.ndarray:
        if not self.lists:
            raise StateError("no step that is not exact has been run yet")
        pages = 1 + max((int(pages[-1]) for pages in self.lists.values() if len(pages)), default=-1)
        out = numpy.zeros((self.rows, self.cache.n_layers, self.cache.n_kv_heads, pages), bool)
        for (row, layer, head), read in self.lists.items():
            out[row, layer, head, read] = True
        return out


def rows_of(rows: Union[int, Seq[int], None], count: int) -> list[int]:
    """The numbers of rows that `count` sequences bring to a step: one each, as many each, or as listed."""
    if rows is None:
        return [1] * count
    found = [rows] * count if isinstance(rows, int) else list(rows)
    if len(found) != count:
        raise ArgumentError(f"{len(found)} numbers of rows for {count} sequences")
    return found


def selected_rows(rows: list[int], exact: bool, exact_from: int) -> int:
    """Rows of a step that are not exact."""
    return 0 if exact else sum(rows[:exact_from] if exact_from else rows)


class _Batch:
    """The tamis_step of sequences and their rows."""

    def __init__(self, cache: Cache, sequences: Union[Sequence, Seq[Sequence]],
                 rows: Union[int, Seq[int], None], exact: bool, exact_from: int,
                 parents: Optional[Seq[int]]) -> None:
        self.sequences = [sequences] if isinstance(sequences, Sequence) else list(sequences)
        self.rows = rows_of(rows, len(self.sequences))
        self._handles = handles(cache, self.sequences)
        struct = self.struct = ffi.new("tamis_step *")
        struct.sequences, struct.count = self._handles, len(self.sequences)
        struct.exact, struct.exact_from = exact, exact_from
        if rows is not None:
            self._rows = _core.numbers("uint32_t[]", self.rows, "rows")
            struct.rows = self._rows
        if parents is not None:
            if len(parents) != sum(self.rows):
                raise ArgumentError(f"{len(parents)} parents for {sum(self.rows)} rows")
            self._parents = _core.numbers("uint32_t[]", parents, "parents")
            struct.parents = self._parents


_NO_PLAN = ffi.new("tamis_plan **")


class OpenStep:
    """The layers of a step that is open. For each of them `write` (or `load`) comes before `attend`; k and
    v are [rows][n_kv_heads][head_dim], q and out [rows][n_heads][head_dim], as arrays of any shape with so
    many elements in a row. Calls enqueue; `Context.wait` comes before the host reads `out` in place.

    Attributes:
        plan: the plan whose step it is.
        rows, n_rows: how many rows each sequence brings, and all of them together.
    """

    def __init__(self, plan: Plan, rows: list[int], selected: int) -> None:
        self.plan, self.rows, self.n_rows = plan, rows, sum(rows)
        self._selected = selected
        self._at = plan._handle  # where the pointer to the plan is while the step is open
        self._reads = plan._reads if selected else None
        if self._reads is not None:
            self._reads.begin(selected)

    @property
    def open(self) -> bool:
        """Whether it has neither ended nor been cancelled, nor its plan been closed."""
        return self._at is not _NO_PLAN

    def _closed(self) -> None:
        self._at = _NO_PLAN

    @property
    def _pointer(self) -> Any:
        """The plan, whose open step this is."""
        pointer = self._at[0]
        if not pointer:
            raise StateError("the plan of this step has been closed" if self.plan.closed
                             else "this step has ended")
        return pointer

    def _refused(self, reason: Exception, layer: int, *arrays: Any) -> Exception:
        """What to raise where cffi does not take the arguments of a call."""
        for array in arrays:
            rows(array)
        return ArgumentError(f"layer {layer!r}: {reason}")

    def _failed(self, status: int, *arrays: Array) -> None:
        """Raises the reason of a call that has failed."""
        self._pointer
        for array in arrays:
            rows(array)
        check(status)

    # ---- Layers ----

    def write(self, layer: int, k: Array, v: Array) -> None:
        """Writes K and V of the step's rows, already rotated: f32 or the cache's dtype."""
        try:
            status = lib.tamis_plan_write(self._at[0], layer, k._rows, v._rows, error())
        except (AttributeError, OverflowError, TypeError) as reason:
            raise self._refused(reason, layer, k, v) from None
        if status:
            self._failed(status, k, v)

    def attend(self, layer: int, q: Array, out: Array, *, lse: Optional[Array] = None,
               pages: Optional[Seq[Seq[Seq[int]]]] = None,
               tokens: Optional[Seq[Seq[Seq[int]]]] = None) -> None:
        """Attends the step's rows. q and out are f32; of f16 and bf16, too, in a plan with half_rows.

        Args:
            lse: f32 [rows][n_heads], gets the natural log of the sum of each softmax.
            pages, tokens: under `Lists` what each (row, KV head) reads: ordinals of pages or slots of the
                lane, ascending, as lists [rows][n_kv_heads][...]."""
        if lse is None and pages is None and tokens is None:
            try:
                status = lib.tamis_plan_attend(self._at[0], layer, q._rows, out._rows, error())
            except (AttributeError, OverflowError, TypeError) as reason:
                raise self._refused(reason, layer, q, out) from None
            if status:
                self._failed(status, q, out)
        else:
            self._attend_with(layer, q, out, lse, pages, tokens)
        if self._reads is not None:
            self._reads.add(self._pointer, layer)

    def _attend_with(self, layer: int, q: Array, out: Array, lse: Optional[Array], pages: Any,
                     tokens: Any) -> None:
        if pages is not None and tokens is not None:
            raise ArgumentError("lists are of pages or of tokens, not of both")
        params = ffi.new("tamis_plan_attend_params *")
        params.q, params.out = rows(q)[0], rows(out)[0]
        if lse is not None:
            params.lse = lse._place()
        entries = tokens if pages is None else pages
        if entries is not None:
            heads = self.plan.cache.n_kv_heads
            if any(len(row) != heads for row in entries) or len(entries) != self._selected:
                raise ArgumentError(f"lists must be given for {self._selected} rows of {heads} KV heads")
            counts = numpy.array([[len(entry) for entry in row] for row in entries], numpy.int32)
            capacity = max(int(counts.max()), 1)
            table = numpy.zeros((len(entries), heads, capacity), numpy.int32)
            for at in numpy.ndindex(len(entries), heads):
                table[at][:counts[at]] = entries[at[0]][at[1]]
            lists = ffi.new("tamis_caller_lists *")
            held = ffi.from_buffer("int32_t[]", table), ffi.from_buffer("int32_t[]", counts)
            lists.host_entries, lists.host_count = held
            lists.capacity = capacity
            lists.unit = lib.TAMIS_LIST_PAGES if tokens is None else lib.TAMIS_LIST_TOKENS
            params.lists = lists
        check(lib.tamis_plan_attend_with(self._pointer, layer, params, error()))

    def _rotated(self, q: Array, k: Array, v: Array, rotation: Optional[Rotation], positions: Array,
                 q_norm: Optional[Array], k_norm: Optional[Array], eps: float) -> Any:
        params = ffi.new("tamis_rotated_rows *")
        params.q, params.k, params.v = rows(q)[0], rows(k)[0], rows(v)[0]
        if rotation is not None:
            params.rotation = rotation._struct[0]
        params.positions = positions._place()
        if q_norm is not None:
            params.q_norm = q_norm._place()
        if k_norm is not None:
            params.k_norm = k_norm._place()
        params.eps = eps
        return params

    def write_rotated(self, layer: int, q: Array, k: Array, v: Array, rotation: Rotation, positions: Array,
                      *, q_norm: Optional[Array] = None, k_norm: Optional[Array] = None,
                      eps: float = 0) -> None:
        """Writes rows that are not rotated yet, all f32: q and k are normalised (f32 [head_dim]) and rotated
        in place, to `positions`, i32 [rows]."""
        params = self._rotated(q, k, v, rotation, positions, q_norm, k_norm, eps)
        check(lib.tamis_plan_write_rotated(self._pointer, layer, params, error()))

    def write_attend(self, layer: int, q: Array, k: Array, v: Array, rotation: Optional[Rotation],
                     positions: Array, out: Array, *, q_norm: Optional[Array] = None,
                     k_norm: Optional[Array] = None, eps: float = 0) -> None:
        """`write_rotated`, then `attend`, as one launch where the device has one. What q and k hold
        afterwards is not said."""
        params = self._rotated(q, k, v, rotation, positions, q_norm, k_norm, eps)
        check(lib.tamis_plan_write_attend(self._pointer, layer, params, rows(out), error()))
        if self._reads is not None:
            self._reads.add(self._pointer, layer)

    def keep_rows(self, kept: Seq[int]) -> None:
        """Leaves rows out of a step that is exact: later calls take the rows named, in ascending order."""
        numbers = _core.numbers("uint32_t[]", kept, "rows")
        check(lib.tamis_plan_step_keep_rows(self._pointer, numbers, len(numbers), error()))

    def load(self, layer: int, first_row: int, n_rows: int, k: Optional[Array], v: Optional[Array],
             rotation: Optional[Rotation] = None, *, k_norm: Optional[Array] = None,
             eps: float = 0) -> None:
        """Loads stored K (before its norm and rotation) and V into the slots of rows of an exact step."""
        params = ffi.new("tamis_stored_rows *")
        if k is not None:
            params.k = rows(k)[0]
        if v is not None:
            params.v = rows(v)[0]
        if rotation is not None:
            params.rotation = rotation._struct[0]
        if k_norm is not None:
            params.k_norm = k_norm._place()
        params.eps = eps
        check(lib.tamis_plan_load_rows(self._pointer, layer, first_row, n_rows, params, error()))

    def deviations(self, layer: int, computed: Array, out: Array, *, values: bool = False) -> None:
        """How far computed rows are from those that the layer holds: out f32 [rows] gets the sum of squares
        of the differences, of V if `values`, else of K."""
        place = ffi.new("tamis_place *", out._place())
        check(lib.tamis_plan_row_deviations(self._pointer, layer, rows(computed), values, place, NULL,
                                            error()))

    def masses(self, layer: int, q: Array, last: int) -> numpy.ndarray:
        """How much the `last` last rows of an exact step of one sequence attend to each of its rows: float64
        [rows]. Waits."""
        out = numpy.zeros(self.n_rows)
        check(lib.tamis_plan_row_masses(self._pointer, layer, rows(q), last, ffi.from_buffer("double[]", out),
                                        error()))
        return out

    def selected(self, row: int, kv_head: int) -> numpy.ndarray:
        """The pages (by lists of tokens: the slots) that the layer attended last read for a row, ascending.
        Waits."""
        count = ffi.new("uint32_t *")
        check(lib.tamis_plan_read_selected(self._pointer, row, kv_head, NULL, 0, count, error()))
        out = numpy.empty(count[0], numpy.uint32)
        check(lib.tamis_plan_read_selected(self._pointer, row, kv_head, ffi.from_buffer("uint32_t[]", out),
                                           len(out), count, error()))
        return out


class Step(OpenStep):
    """A step of a plan, from `Plan.step` or `View.step` to `end` or `cancel`: ``with`` ends it, or cancels it
    where the block raises. `sequences` are those of the cache; a view has none."""

    def __init__(self, plan: Plan, rows: list[int], selected: int, sequences: Seq[Sequence] = ()) -> None:
        super().__init__(plan, rows, selected)
        self.sequences = list(sequences)
        if plan._step is not None:  # of which the library knows no more
            plan._step._closed()
        plan._step = self

    def __enter__(self) -> Step:
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if not self.open:
            return
        try:
            if kind is None:
                self.end()
        finally:
            if self.open:
                try:
                    self.cancel()
                except Error:  # the error that led here is the reason
                    pass

    def end(self) -> None:
        """Ends the step: its rows are part of their sequences."""
        check(lib.tamis_plan_step_end(self._pointer, error()))
        self._closed()

    def cancel(self) -> None:
        """Gives the step up: its rows are truncated away."""
        check(lib.tamis_plan_step_cancel(self._pointer, error()))
        self._closed()

    def _closed(self) -> None:
        super()._closed()
        self.plan._step = None


def _shaped(data: Any, dtype: Any, shape: tuple[Optional[int], ...], what: str) -> numpy.ndarray:
    array: numpy.ndarray = numpy.ascontiguousarray(data, dtype)
    if array.ndim != len(shape) or any(n is not None and n != m for n, m in zip(shape, array.shape)):
        raise ArgumentError(f"{what} of shape {array.shape}: it must be {shape}")
    return array
