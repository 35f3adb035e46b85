# SPDX-License-Identifier: Apache-2.0
"""Text chunks into a store: a model computes their K and V, alone or behind a sink (tamis/record.h)."""
from __future__ import annotations

from typing import TYPE_CHECKING, Iterable, Sequence as Seq

import numpy

from ._c import ffi
from ._core import check, error, function
from .array import integers
from .cache import Sequence, dtype_code
from .store import PLANES, ChunkId, Store, sixteen, unsigned

if TYPE_CHECKING:
    from .model import Model, Runner


class _Params:
    """A tamis_record_params with what it points to, and the tokens of a chunk."""

    def __init__(self, tokens: Seq[int], sink: Seq[int], dtype: str, cache_dtype: str, salt: bytes,
                 tiers: int = 0) -> None:
        self._tokens = integers(tokens, numpy.int32, "tokens")
        self._sink = integers(sink, numpy.int32, "sink")
        self.tokens, self.n_tokens = ffi.from_buffer("int32_t[]", self._tokens), len(self._tokens)
        out = self.struct = ffi.new("tamis_record_params *")
        if len(self._sink):
            self._places = ffi.from_buffer("int32_t[]", self._sink)
            out.sink, out.n_sink = self._places, len(self._sink)
        out.dtype, out.cache_dtype = dtype_code(dtype, PLANES), dtype_code(cache_dtype)
        out.salt = sixteen(salt, "salt")
        out.tiers = tiers


def record(runner: Runner, store: Store, tokens: Seq[int], *, sink: Seq[int] = (), dtype: str = "f32",
           salt: bytes = bytes(16), tiers: Iterable[str] = ()) -> None:
    """Computes K and V of a chunk's tokens and puts them into a store, under the id that `record_id` gives.

    Args:
        runner: of the model; the cache needs room for sink and chunk while it runs. No sequence changes.
        sink: tokens that stand before the chunk, such as bos, whose own K and V are not stored.
        dtype: of the planes, "f32", "f16" or "bf16".
        salt: 16 bytes of a tenant; other salts do not find the record.
        tiers: as in `Store.put`.

    Raises ArgumentError (a token outside the vocabulary; sink and chunk longer than max_context);
    UnsupportedError (a runner whose scale, soft cap or sliding window is not the model's own; a value that
    the dtype does not hold); FullError where the cache lacks pages; and what `Store.put` raises. The store
    has nothing of it then."""
    params = _Params(tokens, sink, dtype, runner.cache.dtype, salt, store._bits(tiers))
    with store._used() as pointer:
        check(function("tamis_runner_record")(runner._pointer, pointer, params.struct, params.tokens,
                                              params.n_tokens, error()))


def record_sequence(runner: Runner, store: Store, sequence: Sequence, tokens: Seq[int], *,
                    sink: Seq[int] = (), dtype: str = "f32", salt: bytes = bytes(16),
                    tiers: Iterable[str] = ()) -> None:
    """Puts what a sequence holds of `tokens`, from position len(sink) on, into a store as one chunk. Nothing
    is computed: so a text that a blend has put together is found as one chunk the next time.

    Raises as `record`; StateError for a sequence in an open step, or one that has lost tokens to an
    eviction."""
    params = _Params(tokens, sink, dtype, runner.cache.dtype, salt, store._bits(tiers))
    with store._used() as pointer:
        check(function("tamis_runner_record_sequence")(runner._pointer, pointer, params.struct,
                                                       sequence.handle, params.tokens, params.n_tokens,
                                                       error()))


def record_prefix(runner: Runner, store: Store, tokens: Seq[int], page_tokens: int, *, dtype: str = "f32",
                  salt: bytes = bytes(16), tiers: Iterable[str] = ()) -> int:
    """Computes K and V of a prefix, which begins with bos or whatever else the model needs, and puts its full
    pages of `page_tokens` into a store. Answers how many were put: none where the store has them all, and
    nothing is computed then. Raises as `record`; pages that were put before an error stay."""
    params = _Params(tokens, (), dtype, runner.cache.dtype, salt, store._bits(tiers))
    stored = ffi.new("uint32_t *")
    with store._used() as pointer:
        check(function("tamis_runner_record_prefix")(runner._pointer, pointer, params.struct, params.tokens,
                                                     params.n_tokens, unsigned(page_tokens, "page_tokens"),
                                                     stored, error()))
    return int(stored[0])


def record_id(model: Model, tokens: Seq[int], *, cache_dtype: str, sink: Seq[int] = (), dtype: str = "f32",
              salt: bytes = bytes(16)) -> ChunkId:
    """The id under which `record` stores these tokens with a runner over a cache of `cache_dtype`: to look
    whether a store has them. The first call for a model reads all of its weights."""
    params = _Params(tokens, sink, dtype, cache_dtype, salt)
    out = ffi.new("tamis_chunk_id *")
    check(function("tamis_record_id")(model._pointer, params.struct, params.tokens, params.n_tokens, out,
                                      error()))
    return ChunkId._from(out)
