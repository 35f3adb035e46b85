# SPDX-License-Identifier: Apache-2.0
"""The paged KV cache (tamis/cache.h) and its sequences."""
from __future__ import annotations

import dataclasses
import weakref
from typing import TYPE_CHECKING, Any, Iterable, Optional, Sequence as Seq, TypeVar, Union

import numpy

from . import _core
from ._c import ffi
from ._core import NULL, check, error, lib, text
from .device import Context
from .errors import ArgumentError, StateError
from .policy import PLANES, Eviction

if TYPE_CHECKING:
    from .plan import Plan

DTYPES = {"f32": lib.TAMIS_F32, "f16": lib.TAMIS_F16, "bf16": lib.TAMIS_BF16, "q8": lib.TAMIS_Q8,
          "k8v4": lib.TAMIS_K8V4, "q4": lib.TAMIS_Q4}
DTYPE_NAMES = {code: name for name, code in DTYPES.items()}
BOUNDS = {"minmax": lib.TAMIS_BOUNDS_MINMAX, "meanstd": lib.TAMIS_BOUNDS_MEAN_STD,
          "mean": lib.TAMIS_BOUNDS_MEAN}


def dtype_code(name: str, known: dict[str, int] = DTYPES) -> int:
    """The library's number of a dtype. Raises ArgumentError for an unknown name."""
    if name not in known:
        raise ArgumentError(f"dtype {name!r}: known are {', '.join(known)}")
    return known[name]


def planes_code(planes: Iterable[str]) -> int:
    bits = 0
    for plane in planes:
        if plane not in PLANES:
            raise ArgumentError(f"plane {plane!r}: known are {', '.join(PLANES)}")
        bits |= PLANES[plane]
    return bits


@dataclasses.dataclass(frozen=True)
class Bounds:
    """What is kept of a full page's keys, channel by channel: minimum and maximum ("minmax", Quest),
    mean ∓ `width` standard deviations ("meanstd", UNIQUE, arXiv 2605.27740), or the mean ("mean")."""

    kind: str = "minmax"
    width: float = 0

    def _fill(self, out: Any) -> None:
        if self.kind not in BOUNDS:
            raise ArgumentError(f"bounds {self.kind!r}: known are {', '.join(BOUNDS)}")
        out.kind, out.width = BOUNDS[self.kind], self.width


def bounds_of(bounds: Union[str, Bounds]) -> Bounds:
    return Bounds(bounds) if isinstance(bounds, str) else bounds


@dataclasses.dataclass(frozen=True)
class CacheStats:
    """Exact; a page that several lanes share counts once in `pages_held` and `bytes_held`."""

    sequences: int
    pages_total: int
    pages_held: int
    pages_shared: int
    bytes_reserved: int
    bytes_held: int


@dataclasses.dataclass(frozen=True)
class SequenceStats:
    """Over all lanes of a sequence, pages that it shares with others included. `shortest`: the length to
    which it can be truncated, for the pages that were given back."""

    slots: int
    pages: int
    pages_shared: int
    bytes_held: int
    shortest: int


_Kind = TypeVar("_Kind")


def fill(kind: type[_Kind], struct: Any) -> _Kind:
    """A dataclass of numbers from a struct that has fields of the same names."""
    return kind(*(getattr(struct, field.name) for field in dataclasses.fields(kind)))  # type: ignore


class Cache(_core.Object):
    """The paged KV cache of one model: memory for K and V of its layers, and the sequences in it.

    Args:
        n_layers, n_heads, n_kv_heads, head_dim: the model's shape; `n_heads` are query heads.
        capacity_tokens: room for so many tokens in all layers and KV heads, each lane rounded up to
            pages; or `capacity_bytes`, for pages, bounds and planes together.
        dtype: of K and V: "f32", "f16", "bf16", or quantised "q8", "k8v4", "q4".
        evict: the eviction of the plans to come; the cache gets the planes that it needs.
        page_size: slots of a page: 8, 16, 32 or 64.
        bounds: "minmax", "meanstd", "mean", or a `Bounds`; `bounds_dtype` "q8" halves their bytes.
        layer_tokens: room for so many tokens of each layer, where layers give pages back.
    """

    _destroy_name = "tamis_cache_destroy"

    _owner: _core.Owner

    def __init__(self, context: Context, *, n_layers: int, n_heads: int, n_kv_heads: int, head_dim: int,
                 capacity_tokens: int = 0, capacity_bytes: int = 0, dtype: str = "f16",
                 evict: Optional[Eviction] = None, page_size: int = 16,
                 bounds: Union[str, Bounds] = "minmax", bounds_dtype: Optional[str] = None,
                 planes: Iterable[str] = (), layer_tokens: Optional[Seq[int]] = None) -> None:
        params = ffi.new("tamis_cache_params *")
        _core.put(params, n_layers=n_layers, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim,
                  capacity_tokens=capacity_tokens, capacity_bytes=capacity_bytes, page_size=page_size)
        params.dtype = dtype_code(dtype)
        bounds_of(bounds)._fill(params.bounds)
        if bounds_dtype not in (None, "q8"):
            raise ArgumentError(f"bounds_dtype {bounds_dtype!r}: None and 'q8' are known")
        params.bounds_dtype = lib.TAMIS_BOUNDS_Q8 if bounds_dtype else lib.TAMIS_BOUNDS_AS_CACHE
        params.planes = planes_code(planes) | (planes_code(evict.planes) if evict else 0)
        if layer_tokens is not None:
            if len(layer_tokens) != n_layers:
                raise ArgumentError(f"layer_tokens has {len(layer_tokens)} entries for {n_layers} layers")
            tokens = _core.numbers("uint64_t[]", layer_tokens, "layer_tokens")
            params.layer_tokens = tokens
        context._owner.collect()
        handle = ffi.new("tamis_cache **")
        check(lib.tamis_cache_create(context._pointer, params, handle, error()))
        self._begin(context, handle)

    def _begin(self, context: Context, handle: Any, keep: Any = None) -> None:
        self.context = context
        self._sequences: weakref.WeakValueDictionary[int, Sequence] = weakref.WeakValueDictionary()
        self._take(context._owner, handle, "tamis_cache_destroy", (context, keep))
        params = ffi.new("tamis_cache_params *")
        lib.tamis_cache_get_params(handle[0], params)
        self.n_layers: int = params.n_layers
        self.n_heads: int = params.n_heads
        self.n_kv_heads: int = params.n_kv_heads
        self.head_dim: int = params.head_dim
        self.page_size: int = params.page_size
        self.dtype: str = DTYPE_NAMES[params.dtype]

    def __repr__(self) -> str:
        return (f"<tamis.{type(self).__name__} {self.n_layers} layers, {self.n_kv_heads} KV heads of "
                f"{self.head_dim}, {self.dtype}{', closed' if self.closed else ''}>")

    def add(self) -> Sequence:
        """Adds an empty sequence."""
        self.context._owner.collect()
        out = ffi.new("tamis_sequence *")
        check(lib.tamis_cache_add(self._pointer, out, error()))
        return Sequence(self, out[0])

    def plan(self, **params: Any) -> Plan:
        """A plan over this cache; see `Plan`."""
        from .plan import Plan

        return Plan(self, **params)

    @property
    def stats(self) -> CacheStats:
        """What it holds now. Costs no device call."""
        out = ffi.new("tamis_cache_stats *")
        lib.tamis_cache_get_stats(self._pointer, out)
        return fill(CacheStats, out)

    @property
    def bounds(self) -> Bounds:
        """The kind of bounds in force."""
        out = ffi.new("tamis_bounds *")
        lib.tamis_cache_get_bounds(self._pointer, out)
        return Bounds(text(lib.tamis_bounds_name(out.kind)), out.width)

    @bounds.setter
    def bounds(self, value: Union[str, Bounds]) -> None:
        out = ffi.new("tamis_bounds *")
        bounds_of(value)._fill(out)
        check(lib.tamis_cache_set_bounds(self._pointer, out, error()))

    def read_limit(self, sequences: Seq[Sequence], passes: int = 0) -> float:
        """How fast K and V of all pages of these sequences are read by a loop that does nothing else, in
        1e9 bytes per second, in the best of several orders."""
        out = ffi.new("tamis_read_limit *")
        check(lib.tamis_cache_read_limit(self._pointer, handles(self, sequences), len(sequences), passes,
                                         out, error()))
        return float(out.gb_per_s)


def _remove(owner: _core.Owner, cache: Any, handle: int) -> None:
    def end() -> bool:
        # A cache that has been closed has no sequences; one with an open step keeps them until its end.
        return not cache[0] or lib.tamis_cache_remove(cache[0], handle, NULL) != lib.TAMIS_E_STATE

    owner.release(end, None)


class Sequence:
    """A text in a cache: each layer and KV head of it is a lane, with pages and a length of its own. It is
    removed by `remove`, or when it is forgotten."""

    def __init__(self, cache: Cache, handle: int) -> None:
        self.cache = cache
        self.handle = handle
        cache._sequences[handle] = self
        self._end = weakref.finalize(self, _remove, cache.context._owner, cache._handle, handle)
        self._end.atexit = False  # the cache's end is enough

    def __repr__(self) -> str:
        return f"<tamis.Sequence {self.handle}>"

    @property
    def removed(self) -> bool:
        """Whether it has been removed, or given to an object that owns it since."""
        return not self._end.alive

    def __len__(self) -> int:
        """Tokens, which is the position of the next one."""
        out = ffi.new("uint32_t *")
        check(lib.tamis_cache_length(self.cache._pointer, self.handle, out, NULL, error()))
        return int(out[0])

    def __bool__(self) -> bool:
        return True

    @property
    def evicted_at(self) -> int:
        """Its length when tokens were evicted last, 0 for never."""
        out = ffi.new("uint32_t *")
        check(lib.tamis_cache_length(self.cache._pointer, self.handle, NULL, out, error()))
        return int(out[0])

    def fork(self) -> Sequence:
        """A sequence with the same content, which shares pages until one of them writes. Takes no pages."""
        self.cache.context._owner.collect()
        out = ffi.new("tamis_sequence *")
        check(lib.tamis_cache_fork(self.cache._pointer, self.handle, out, error()))
        return Sequence(self.cache, out[0])

    def truncate(self, length: int) -> None:
        """Keeps the first `length` tokens. Raises StateError below the length at the last eviction."""
        if length < 0:
            raise ArgumentError(f"length {length}")
        check(lib.tamis_cache_truncate(self.cache._pointer, self.handle, length, error()))

    def remove(self) -> None:
        """Removes it from the cache. Again it does nothing."""
        if self._end.alive:
            check(lib.tamis_cache_remove(self.cache._pointer, self.handle, error()))
            self._end.detach()

    @property
    def stats(self) -> SequenceStats:
        """What it holds. Costs no device call."""
        out = ffi.new("tamis_sequence_stats *")
        check(lib.tamis_cache_get_sequence_stats(self.cache._pointer, self.handle, out, error()))
        return fill(SequenceStats, out)

    def lane_length(self, layer: int, kv_head: int) -> int:
        """Slots that a lane holds."""
        out = ffi.new("uint32_t *")
        check(lib.tamis_cache_lane_length(self.cache._pointer, self.handle, _at(layer), _at(kv_head), out,
                                          error()))
        return int(out[0])

    def lane_lengths(self) -> numpy.ndarray:
        """Slots of all lanes, int64 [n_layers][n_kv_heads]."""
        return numpy.array([[self.lane_length(layer, head) for head in range(self.cache.n_kv_heads)]
                            for layer in range(self.cache.n_layers)], numpy.int64)

    def read(self, layer: int, kv_head: int, first: int = 0,
             count: Optional[int] = None) -> tuple[numpy.ndarray, numpy.ndarray]:
        """K and V of a lane's slots from `first` on, f32 [count][head_dim] each. Waits."""
        count = self.lane_length(layer, kv_head) - first if count is None else count
        k, v = (numpy.empty((max(count, 0), self.cache.head_dim), numpy.float32) for _ in range(2))
        check(lib.tamis_cache_read(self.cache._pointer, self.handle, _at(layer), _at(kv_head), _at(first),
                                   _at(count), ffi.from_buffer("float[]", k), ffi.from_buffer("float[]", v),
                                   error()))
        return k, v

    def positions(self, layer: int, kv_head: int, first: int = 0,
                  count: Optional[int] = None) -> numpy.ndarray:
        """The positions in the text of a lane's slots, int32 [count]: which tokens it has kept. Waits."""
        count = self.lane_length(layer, kv_head) - first if count is None else count
        out = numpy.empty(max(count, 0), numpy.int32)
        check(lib.tamis_cache_read_positions(self.cache._pointer, self.handle, _at(layer), _at(kv_head),
                                             _at(first), _at(count), ffi.from_buffer("int32_t[]", out),
                                             error()))
        return out

    def _give(self) -> int:
        """Its handle, for an object that owns the sequence from now on."""
        if not self._end.alive:
            raise StateError(f"{self!r} has been removed")
        self._end.detach()
        return self.handle


def _at(number: int) -> int:
    if number < 0:
        raise ArgumentError(f"{number} is below 0")
    return number


def handles(cache: Cache, sequences: Seq[Sequence]) -> Any:
    """tamis_sequence[] of sequences."""
    return ffi.new("tamis_sequence[]", [sequence.handle for sequence in sequences])


class Prefixes(_core.Object):
    """Which tokens live sequences of a cache hold, to fork the one that begins as a prompt does
    (tamis/prefixes.h). Sequences serve only prompts of the same salt, 16 bytes."""

    def __init__(self, cache: Cache) -> None:
        cache.context._owner.collect()
        handle = ffi.new("tamis_prefixes **")
        check(lib.tamis_prefixes_create(cache._pointer, handle, error()))
        self.cache = cache
        self._take(cache._owner, handle, "tamis_prefixes_destroy", cache)

    def add(self, sequence: Sequence, tokens: Seq[int], salt: bytes = bytes(16)) -> None:
        """Says that the sequence holds these tokens from position 0 on."""
        check(lib.tamis_prefixes_add(self._pointer, sequence.handle, ffi.new("int32_t[]", list(tokens)),
                                     len(tokens), salt_of(salt), error()))

    def remove(self, sequence: Sequence) -> None:
        """Forgets the tokens of a sequence, which itself stays."""
        lib.tamis_prefixes_remove(self._pointer, sequence.handle)

    def fork(self, tokens: Seq[int], salt: bytes = bytes(16),
             least: int = 1) -> Optional[tuple[Sequence, int]]:
        """A fork of the sequence that shares the longest beginning with a prompt, cut to what they share,
        and its length; None where no sequence shares `least` tokens."""
        out, length = ffi.new("tamis_sequence *"), ffi.new("uint32_t *")
        check(lib.tamis_prefixes_fork(self._pointer, ffi.new("int32_t[]", list(tokens)), len(tokens),
                                      salt_of(salt), least, out, length, error()))
        return (Sequence(self.cache, out[0]), int(length[0])) if out[0] else None


def salt_of(salt: bytes) -> bytes:
    if len(salt) != 16:
        raise ArgumentError(f"a salt of {len(salt)} bytes: it has 16")
    return salt
