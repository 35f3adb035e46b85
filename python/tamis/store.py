# SPDX-License-Identifier: Apache-2.0
"""The store of text chunks (tamis/store.h): K and V of a chunk's tokens, computed once, in tiers of memory,
disk and a Redis server. It needs no device."""
from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from typing import Any, Iterable, Iterator, List, Optional, Sequence as Seq, Union

import numpy

from . import _core
from ._c import ffi
from ._core import check, error, function, lib
from .array import DTYPES as ROWS
from .array import integers
from .cache import DTYPE_NAMES, Cache, dtype_code, fill
from .errors import ArgumentError

TIERS = {"memory": lib.TAMIS_TIER_MEMORY, "disk": lib.TAMIS_TIER_DISK, "redis": lib.TAMIS_TIER_REDIS}
#: dtype → the library's number, of planes
PLANES = {name: code for name, (_, _, code) in ROWS.items() if code is not None}
NO_KEY = bytes(16)
_NO_LIMIT = (1 << 64) - 1


def sixteen(data: bytes, what: str) -> bytes:
    """A key, salt or fingerprint, for calls."""
    if not isinstance(data, bytes) or len(data) != 16:
        raise ArgumentError(f"{what} is {data!r}: it must be 16 bytes")
    return data


def unsigned(number: int, what: str) -> int:
    """A uint32_t, for calls."""
    if not 0 <= number < 1 << 32:
        raise ArgumentError(f"{what} is {number}")
    return number


def _bytes(field: Any) -> bytes:
    return bytes(ffi.buffer(field))


# ---- What records are named by --------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ChunkShape:
    """What the planes of a record are.

    Attributes:
        n_layers, n_kv_heads, head_dim: of the model.
        dtype: of the planes: "f32", "f16" or "bf16".
        cache_dtype: of the cache over which K and V were computed.
        sink: tokens that stood before the chunk when it was computed, and were dropped.
    """

    n_layers: int
    n_kv_heads: int
    head_dim: int
    dtype: str
    cache_dtype: str
    sink: int = 0

    @classmethod
    def of(cls, cache: Cache, dtype: str = "f32", sink: int = 0) -> ChunkShape:
        """The shape of chunks that are computed over a cache."""
        return cls(cache.n_layers, cache.n_kv_heads, cache.head_dim, dtype, cache.dtype, sink)

    def plane_bytes(self, n_tokens: int) -> int:
        """Bytes of the K or the V of one layer; 0 for a shape that the store does not take."""
        return int(function("tamis_chunk_plane_bytes")(self._struct(), unsigned(n_tokens, "n_tokens")))

    def record_bytes(self, n_tokens: int) -> int:
        """Bytes of a record, which it counts in every tier; 0 likewise."""
        return int(function("tamis_chunk_record_bytes")(self._struct(), unsigned(n_tokens, "n_tokens")))

    def _struct(self) -> Any:
        out = ffi.new("tamis_chunk_shape *")
        _core.put(out, n_layers=self.n_layers, n_kv_heads=self.n_kv_heads, head_dim=self.head_dim,
                  dtype=dtype_code(self.dtype, PLANES), sink=self.sink,
                  cache_dtype=dtype_code(self.cache_dtype))
        return out

    @staticmethod
    def _from(struct: Any) -> ChunkShape:
        return ChunkShape(struct.n_layers, struct.n_kv_heads, struct.head_dim, DTYPE_NAMES[struct.dtype],
                          DTYPE_NAMES[struct.cache_dtype], struct.sink)


@dataclasses.dataclass(frozen=True)
class ChunkId:
    """Which record: all of it decides, since all of it decides what K and V are.

    Attributes:
        tokens: of the chunk; any sequence of whole numbers is taken, NumPy's arrays too.
        fingerprint: 16 bytes, of the model, and of the sink behind which it was computed
            (`fingerprint_extend`).
        shape: of the record's planes.
        salt: 16 bytes that tell tenants apart.
        parent: of a page of a prefix the key of the page before it.

    >>> shape = ChunkShape(n_layers=2, n_kv_heads=1, head_dim=64, dtype="f32", cache_dtype="f16")
    >>> len(ChunkId([3, 1, 4], bytes(16), shape).key)
    16
    """

    tokens: tuple[int, ...]
    fingerprint: bytes
    shape: ChunkShape
    salt: bytes = bytes(16)
    parent: bytes = NO_KEY

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", tuple(integers(self.tokens, numpy.int32, "tokens").tolist()))

    @property
    def key(self) -> bytes:
        """The record's name, 16 bytes, a hash of the whole id. Raises ArgumentError for an id that the store
        does not take."""
        out = ffi.new("uint8_t[16]")
        struct, _keep = self._struct()
        check(function("tamis_chunk_key")(struct, out, error()))
        return _bytes(out)

    def prefix_keys(self, page_tokens: int) -> list[bytes]:
        """The keys of the full pages of `page_tokens` tokens of a prefix, in order; each page has the key of
        the one before as its parent. A rest of tokens is in none."""
        count, capacity = ffi.new("size_t *"), len(self.tokens) // max(page_tokens, 1)
        keys = ffi.new("uint8_t[][16]", capacity)
        struct, _keep = self._struct()
        check(function("tamis_prefix_keys")(struct, unsigned(page_tokens, "page_tokens"), keys, capacity,
                                            count, error()))
        return [_bytes(keys[page]) for page in range(count[0])]

    def pages(self, page_tokens: int) -> list[ChunkId]:
        """The ids by which those pages are put."""
        parents = [self.parent, *self.prefix_keys(page_tokens)]
        return [dataclasses.replace(self, tokens=self.tokens[page * page_tokens:(page + 1) * page_tokens],
                                    parent=parents[page]) for page in range(len(parents) - 1)]

    def _struct(self) -> tuple[Any, Any]:
        """The tamis_chunk_id, and the tokens to which it points."""
        out = ffi.new("tamis_chunk_id *")
        tokens = ffi.new("int32_t[]", self.tokens)
        out.tokens, out.n_tokens = tokens, len(self.tokens)
        out.fingerprint = sixteen(self.fingerprint, "fingerprint")
        out.salt = sixteen(self.salt, "salt")
        out.parent = sixteen(self.parent, "parent")
        out.shape = self.shape._struct()[0]
        return out, tokens

    @staticmethod
    def _from(struct: Any) -> ChunkId:
        return ChunkId(tuple(ffi.unpack(struct.tokens, struct.n_tokens)), _bytes(struct.fingerprint),
                       ChunkShape._from(struct.shape), _bytes(struct.salt), _bytes(struct.parent))


def fingerprint_extend(fingerprint: bytes, sink: Seq[int]) -> bytes:
    """The fingerprint of chunks that are computed behind the tokens of a sink; without any it is the model's
    own."""
    out = ffi.new("uint8_t[16]")
    tokens = integers(sink, numpy.int32, "sink")
    check(function("tamis_fingerprint_extend")(sixteen(fingerprint, "fingerprint"),
                                               ffi.from_buffer("int32_t[]", tokens), len(tokens), out,
                                               error()))
    return _bytes(out)


# ---- What a store says ----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ChunkInfo:
    """A record that was found, or one of a list.

    Attributes:
        key, fingerprint, salt, parent: 16 bytes each; see `ChunkId`.
        tokens: of the chunk; None in a list.
        tiers: where it was found.
        damaged: whether a read has raised DamagedError.
        pins: in a list, how many hold the record in this process.
        last_used: in a list, when it was put or found last as far as this process knows, nanoseconds since
            1970.
    """

    key: bytes
    fingerprint: bytes
    salt: bytes
    parent: bytes
    tokens: Optional[tuple[int, ...]]
    n_tokens: int
    shape: ChunkShape
    tiers: tuple[str, ...]
    plane_bytes: int
    record_bytes: int
    damaged: bool
    pins: int
    last_used: int

    @staticmethod
    def _from(struct: Any) -> ChunkInfo:
        tokens = tuple(ffi.unpack(struct.tokens, struct.n_tokens)) if struct.tokens else None
        return ChunkInfo(_bytes(struct.key), _bytes(struct.fingerprint), _bytes(struct.salt),
                         _bytes(struct.parent), tokens, struct.n_tokens, ChunkShape._from(struct.shape),
                         tuple(name for name, tier in TIERS.items() if struct.tiers >> tier & 1),
                         struct.plane_bytes, struct.record_bytes, bool(struct.damaged), struct.pins,
                         struct.last_used)


@dataclasses.dataclass(frozen=True)
class TierStats:
    """What this process has done in a tier and knows to be there; the header tells the fields. Bytes;
    `limit` None: there is none."""

    limit: Optional[int]
    records: int
    bytes: int
    pinned_bytes: int
    hits: int
    puts: int
    known: int
    promoted: int
    evicted: int
    damaged: int
    failed: int
    damaged_left: int


@dataclasses.dataclass(frozen=True)
class StoreStats:
    """What this process has done; `tiers` has those that the store has, by name."""

    hits: int
    misses: int
    mismatched: int
    foreign: int
    failed: int
    leftovers: int
    tiers: dict[str, TierStats]


@dataclasses.dataclass(frozen=True)
class StoreFound:
    """What `Store.verify` and `Store.gc` have found: sound records and their bytes, damaged records (removed,
    but for `damaged_left` of them), records of another format version, and unfinished files."""

    records: int
    bytes: int
    damaged: int
    foreign: int
    leftovers: int
    damaged_left: int


# ---- The store ------------------------------------------------------------------------------------


class _Shared(_core.Object):
    """What any number of threads use at a time; close() waits for the calls that run."""

    def _begin(self, handle: Any, destroy: str, keep: Any = None) -> None:
        self._calls, self._idle = 0, threading.Condition()
        self._take(None, handle, destroy, keep)
        assert self._end is not None
        self._end.atexit = False  # a thread may be in it when the interpreter ends

    @contextlib.contextmanager
    def _used(self) -> Iterator[Any]:
        """Its pointer, for a call."""
        with self._idle:
            pointer = self._pointer
            self._calls += 1
        try:
            yield pointer
        finally:
            with self._idle:
                self._calls -= 1
                if not self._calls:
                    self._idle.notify_all()

    def close(self) -> None:
        """Ends it, after the calls of other threads that run."""
        with self._idle:
            self._idle.wait_for(lambda: not self._calls)
            super().close()


class Chunk(_Shared):
    """A record that was found, pinned until it is closed: ``with store.get(id) as chunk``. Any number of
    threads may read it."""

    def __init__(self, store: Store, pointer: Any) -> None:
        self._begin(ffi.new("tamis_chunk **", pointer), "tamis_chunk_release", store)

    @property
    def info(self) -> ChunkInfo:
        """What it is, and where it was found."""
        out = ffi.new("tamis_chunk_info *")
        with self._used() as chunk:
            function("tamis_chunk_get_info")(chunk, out)
            return ChunkInfo._from(out)

    def read(self, layer: int) -> tuple[numpy.ndarray, numpy.ndarray]:
        """K and V of a layer, [n_tokens][n_kv_heads][head_dim] of the record's dtype (bf16 as uint16).

        Raises DamagedError where a plane is damaged or cut short: the record has been removed then. Raises
        FileError where reading failed, or the record has gone from the server: read again, or compute."""
        info = self.info
        shape = info.n_tokens, info.shape.n_kv_heads, info.shape.head_dim
        k, v = (numpy.empty(shape, ROWS[info.shape.dtype][1]) for _ in range(2))
        with self._used() as chunk:
            check(function("tamis_chunk_read")(chunk, unsigned(layer, "layer"), ffi.from_buffer(k),
                                               ffi.from_buffer(v), error()))
        return k, v


class Store(_Shared):
    """K and V of text chunks, found by what decides their values (`ChunkId`). A record is put into all tiers,
    and found in memory, then on disk, then on a server; each tier removes what was not used for the longest
    time. Any number of threads use it; a process that was forked opens a store of its own.

    Args:
        memory_bytes: limit of the memory tier; 0: there is none.
        folder: of the disk tier, made where its parent exists; several processes may share it.
        disk_bytes: limit of the disk tier; 0: what the file system takes.
        redis: a Redis or Valkey server: "host:port", "redis://host/database", or the path of a socket.
        redis_prefix: of all keys there; None: "tamis:".
        redis_password: None: that of the environment's ``TAMIS_REDIS_PASSWORD``, or none.
        redis_bytes: limit of the redis tier; 0: what the server keeps.
        redis_database: number of the database; 0: the address's, or 0.
        redis_timeout_ms, redis_walk_ms: to connect and of a command; to name all keys. 0: 1000 and 20000.

    Raises ArgumentError without a tier; FileError with the folder and the reason. A server that does not
    answer is no error: it is passed over, and counted in ``stats.tiers["redis"].failed``.

    >>> shape = ChunkShape(n_layers=1, n_kv_heads=2, head_dim=64, dtype="f32", cache_dtype="f16")
    >>> id = ChunkId([3, 1, 4], bytes(16), shape)
    >>> store = Store(memory_bytes=1 << 20)
    >>> store.put(id, [numpy.ones((3, 2, 64), "f4")], [numpy.zeros((3, 2, 64), "f4")])
    >>> with store.get(id) as chunk:
    ...     k, v = chunk.read(0)
    >>> k.shape, store.get(ChunkId([3, 1], bytes(16), shape))
    ((3, 2, 64), None)
    """

    def __init__(self, memory_bytes: int = 0, disk_bytes: int = 0,
                 folder: Union[str, os.PathLike[str], None] = None, redis: Optional[str] = None, *,
                 redis_prefix: Optional[str] = None, redis_password: Optional[str] = None,
                 redis_bytes: int = 0, redis_database: int = 0, redis_timeout_ms: int = 0,
                 redis_walk_ms: int = 0) -> None:
        params = ffi.new("tamis_store_params *")
        _core.put(params, memory_bytes=memory_bytes, disk_bytes=disk_bytes, redis_bytes=redis_bytes,
                  redis_database=redis_database, redis_timeout_ms=redis_timeout_ms,
                  redis_walk_ms=redis_walk_ms)
        texts = {"folder": None if folder is None else _core.path_bytes(folder),
                 "redis": redis, "redis_prefix": redis_prefix, "redis_password": redis_password}
        keep = {name: ffi.new("char[]", text.encode() if isinstance(text, str) else text)
                for name, text in texts.items() if text is not None}
        for name, pointer in keep.items():
            setattr(params, name, pointer)
        handle = ffi.new("tamis_store **")
        check(function("tamis_store_create")(params, handle, error()))
        self._begin(handle, "tamis_store_destroy")
        self._tiers = {name: TIERS[name] for name in self.stats.tiers}
        self._where = [f"{name} {text}" for name, text in (("folder", folder), ("redis", redis)) if text]

    def __repr__(self) -> str:
        return f"<{' '.join(['tamis.Store', *self._where])}{', closed' if self.closed else ''}>"

    def _bits(self, tiers: Iterable[str]) -> int:
        """The library's number of tiers, which the store must have."""
        return sum({1 << _core.choice("tier", tier, self._tiers) for tier in tiers})

    # ---- Records ----

    def put(self, id: ChunkId, k: Seq[numpy.ndarray], v: Seq[numpy.ndarray],
            tiers: Iterable[str] = ()) -> None:
        """Stores a chunk: K and V of each layer, C-contiguous arrays [n_tokens][n_kv_heads][head_dim] of
        float32, float16 or, for bf16, uint16. K is what the model's matrix gives, before a norm of its heads
        and before its rotation.

        Args:
            tiers: it must enter each of these ("memory", "disk", "redis"), and no other. None given: all
                that the store has; one that cannot take it is left out, but the last one must.

        Once it returns, a record on disk survives the process and the machine's power. A record that is
        there already stays as it is. Raises ArgumentError with the layer and what is wrong with its array;
        FullError with the numbers (it exceeds a tier's limit; what is pinned leaves no room; the file system
        is full); FileError. Nothing is left half-written then."""
        planes = ffi.new("tamis_chunk_planes *")
        struct, _keep = id._struct()
        planes.id = struct[0]
        planes.tiers = self._bits(tiers)
        held = [_planes(id, name, arrays) for name, arrays in (("k", k), ("v", v))]
        lists = [ffi.new("void *[]", pointers) for pointers in held]
        planes.k, planes.v = lists
        with self._used() as store:
            check(function("tamis_store_put")(store, planes, error()))

    def get(self, id: ChunkId) -> Optional[Chunk]:
        """Finds a chunk and pins it; None for a miss. Reads a record's header, no planes; one that is damaged
        is a miss, and removed. Raises FileError where a file that is there cannot be read."""
        out = ffi.new("tamis_chunk **")
        struct, _keep = id._struct()
        with self._used() as store:
            check(function("tamis_store_get")(store, struct, out, error()))
        return Chunk(self, out[0]) if out[0] else None

    def get_prefix(self, id: ChunkId, page_tokens: int, capacity: Optional[int] = None) -> list[Chunk]:
        """The longest stored prefix of the id's tokens, in pages of `page_tokens` (`ChunkId.pages`): all up
        to the first that is missing, in order, but at most `capacity`."""
        most = len(id.tokens) // max(page_tokens, 1)
        most = most if capacity is None else min(max(capacity, 0), most)
        out, count = ffi.new("tamis_chunk *[]", most), ffi.new("size_t *")
        struct, _keep = id._struct()
        with self._used() as store:
            status = function("tamis_store_get_prefix")(store, struct, unsigned(page_tokens, "page_tokens"),
                                                        out, most, count, error())
        found = [Chunk(self, out[page]) for page in range(count[0])]  # after an error, too
        check(status)
        return found

    def remove(self, which: Union[ChunkId, bytes]) -> bool:
        """Removes the chunk of an id, or the record of a key, from all tiers, and answers whether there was
        one. Who holds it may go on reading it."""
        out = ffi.new("int *")
        with self._used() as store:
            if isinstance(which, ChunkId):
                struct, _keep = which._struct()
                check(function("tamis_store_remove")(store, struct, out, error()))
            else:
                check(function("tamis_store_remove_key")(store, sixteen(which, "key"), out, error()))
        return bool(out[0])

    # ---- What is there ----

    def list(self) -> List[ChunkInfo]:
        """The records, each once, in no order, after a look through folder and server."""
        count, capacity = ffi.new("size_t *"), 0
        while True:
            infos = ffi.new("tamis_chunk_info[]", capacity)
            with self._used() as store:
                check(function("tamis_store_list")(store, infos, capacity, count, error()))
            if count[0] <= capacity:
                return [ChunkInfo._from(infos[i]) for i in range(count[0])]
            capacity = count[0] + count[0] // 8  # others may put meanwhile

    @property
    def stats(self) -> StoreStats:
        """Exact for this process. Reads nothing."""
        out = ffi.new("tamis_store_stats *")
        with self._used() as store:
            function("tamis_store_get_stats")(store, out)
        tiers = {}
        for name, tier in TIERS.items():
            of = fill(TierStats, out.tiers[tier])
            if of.limit:
                tiers[name] = dataclasses.replace(of, limit=None if of.limit == _NO_LIMIT else of.limit)
        return StoreStats(out.hits, out.misses, out.mismatched, out.foreign, out.failed, out.leftovers, tiers)

    def verify(self) -> StoreFound:
        """Reads every byte of every record behind memory, and removes those that are damaged. Raises
        FileError where a record cannot be read, or not be removed, after all others have been read."""
        return self._look("tamis_store_verify")

    def gc(self) -> StoreFound:
        """Reads every header, and removes damaged records, those of another format version, unfinished files,
        and what exceeds the limit. Raises as `verify`."""
        return self._look("tamis_store_gc")

    def _look(self, name: str) -> StoreFound:
        out = ffi.new("tamis_store_found *")
        with self._used() as store:
            check(function(name)(store, out, error()))
        return fill(StoreFound, out)


def _planes(id: ChunkId, name: str, arrays: Seq[numpy.ndarray]) -> List[Any]:
    """The planes of a record; each is checked."""
    if len(arrays) != id.shape.n_layers:
        raise ArgumentError(f"{name} of {len(arrays)} layers for a chunk of {id.shape.n_layers}")
    wanted = len(id.tokens), id.shape.n_kv_heads, id.shape.head_dim
    dtype = ROWS[id.shape.dtype][1]
    for layer, array in enumerate(arrays):
        if not isinstance(array, numpy.ndarray) or array.dtype != dtype:
            found = getattr(array, "dtype", type(array).__name__)
            raise ArgumentError(f"{name} of layer {layer} is of {found}: planes of {id.shape.dtype} are "
                                f"arrays of {dtype}")
        if array.shape != wanted:
            raise ArgumentError(f"{name} of layer {layer} has the shape {array.shape}: the chunk has "
                                f"{wanted}")
        if not array.flags.c_contiguous:
            raise ArgumentError(f"{name} of layer {layer} has strides of {array.strides} bytes: it must be "
                                "C-contiguous")
    return [ffi.from_buffer(array) for array in arrays]
