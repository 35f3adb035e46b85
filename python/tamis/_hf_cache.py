# SPDX-License-Identifier: Apache-2.0
"""The cache that transformers sees: it counts tokens, and hands K and V on to the attention function."""
from __future__ import annotations

import dataclasses
import threading
import weakref
from typing import Any, Iterable, Iterator, Optional, Protocol

import torch
from transformers.cache_utils import Cache as _HfCache
from transformers.cache_utils import CacheLayerMixin

from .cache import Sequence
from .errors import ArgumentError, StateError, UnsupportedError


class Engine(Protocol):
    """What a TamisCache belongs to."""

    n_layers: int
    evicts: bool

    def check(self) -> None:
        """Raises StateError where it takes no forward passes any more."""

    def settle(self) -> None:
        """Gives up a forward pass that has not ended, so that sequences can be changed."""

    def attend(self, rows: Rows, module: Any, query: torch.Tensor, mask: Any, scaling: Optional[float],
               softcap: Optional[float], sinks: Optional[torch.Tensor],
               options: dict[str, Any]) -> torch.Tensor:
        """The attention of one layer, whose K and V are `rows`: [batch][n][heads][head_dim]. `options` is
        what else the layer passes."""


# ---- From a layer's cache to its attention function ------------------------------------------------

_thread = threading.local()
# What looks at a tensor but at none of its elements; torch.compile asks these.
_LOOKS = {"__get__", "size", "dim", "stride", "storage_offset", "untyped_storage", "is_conj", "is_neg",
          "_is_view"}


class _Handed(torch.Tensor):
    """K or V on the way to tamis's attention function. Whatever else would attend to it would miss the
    tokens that the cache holds: it is an error."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", str(function))
        if name in _LOOKS:
            with torch._C.DisableTorchFunctionSubclass():
                found = function(*args, **(kwargs or {}))
            if not isinstance(found, torch.Tensor):  # as .T and .data are
                return found
        _thread.rows = None
        raise StateError(f"the model computes with K and V that are in a cache of tamis ({name}): its "
                         "attention is not all behind AttentionInterface, or tamis is not attached to it")

    def __repr__(self, **_: Any) -> str:
        return f"<K or V of a cache of tamis, {tuple(self.shape)}>"


@dataclasses.dataclass
class Rows:
    """K and V that a layer has given its cache, [batch][n_kv_heads][n][head_dim]."""

    cache: TamisCache
    layer: int
    k: torch.Tensor
    v: torch.Tensor
    given: tuple[torch.Tensor, torch.Tensor]  # what the layer got in their place


def take(key: torch.Tensor, value: torch.Tensor) -> Optional[Rows]:
    """The rows that this thread's last update of a cache got, if it gave these tensors in their place."""
    rows: Optional[Rows] = getattr(_thread, "rows", None)
    _thread.rows = None
    return rows if rows is not None and rows.given[0] is key and rows.given[1] is value else None


class _CacheLayer(CacheLayerMixin):
    """One layer of a TamisCache."""

    is_sliding = False
    supports_early_init = False

    def __init__(self, owner: TamisCache, layer: int) -> None:
        super().__init__()
        self._owner = weakref.ref(owner)
        self._layer = layer

    @property
    def _cache(self) -> TamisCache:
        owner = self._owner()
        assert owner is not None
        return owner

    @property
    def is_croppable(self) -> bool:
        return self._cache.is_croppable

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.is_initialized = True

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any,
               **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        self._cache._engine.check()
        if key_states.requires_grad or value_states.requires_grad:
            raise UnsupportedError("gradients do not pass through tamis: call the model under "
                                   "torch.no_grad()")
        given = (torch.Tensor._make_subclass(_Handed, key_states),
                 torch.Tensor._make_subclass(_Handed, value_states))
        _thread.rows = Rows(self._cache, self._layer, key_states, value_states, given)
        return given

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + int(query_length), 0

    def get_seq_length(self) -> int:
        return self._cache.length

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length


class TamisCache(_HfCache):
    """The K and V of a batch of sequences, made by `Attached.cache`; ``past_key_values`` (in newer versions
    ``cache``) of generate and of forward passes. Forgotten, it gives its pages back. copy.deepcopy forks it.

    Attributes:
        sequences: the sequences of tamis, one for each row of the batch; padding is in none of them.
        length: tokens that transformers counts, padding included.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._recording = False  # transformers will crop behind forward passes, which begin with drafts
        self._drafts = False  # the next forward pass has drafts
        self.sequences: list[Sequence] = []
        self.length = 0
        super().__init__(layers=[_CacheLayer(self, layer) for layer in range(engine.n_layers)])

    def __repr__(self) -> str:
        return f"<tamis.hf.TamisCache of {len(self.sequences)} sequences, {self.length} tokens>"

    def fork(self) -> TamisCache:
        """A cache with the same content, which shares pages: to ask a text several questions."""
        self._engine.settle()
        other = TamisCache(self._engine)
        other.sequences = [sequence.fork() for sequence in self.sequences]
        other.length = self.length
        return other

    def __deepcopy__(self, memo: Any) -> TamisCache:
        return self.fork()

    def __reduce__(self) -> Any:
        raise UnsupportedError("a cache of tamis cannot be pickled")

    def crop(self, tokens_to_remove: int) -> None:
        """Gives up the last -`tokens_to_remove` tokens (transformers counts them so). Raises StateError for
        tokens before an eviction; then nothing has changed."""
        if tokens_to_remove > 0:
            raise ArgumentError(f"crop({tokens_to_remove}): the number of tokens to give up is negative")
        self._drafts = self._recording
        if not tokens_to_remove:
            return
        self._engine.settle()
        lengths = [max(len(sequence) + tokens_to_remove, 0) for sequence in self.sequences]
        for sequence, length in zip(self.sequences, lengths):
            if length < sequence.evicted_at:
                raise StateError(f"crop({tokens_to_remove}): of {len(sequence)} tokens, when there were "
                                 f"{sequence.evicted_at} some have been evicted, which do not come back")
        for sequence, length in zip(self.sequences, lengths):
            sequence.truncate(length)
        self.length = max(self.length + tokens_to_remove, 0)

    def reset(self) -> None:
        """Gives all tokens up."""
        self._engine.settle()
        for sequence in self.sequences:
            sequence.remove()
        self.sequences, self.length = [], 0

    def _choose(self, rows: Iterable[int]) -> None:
        """Makes row i what row rows[i] was."""
        self._engine.settle()
        chosen: list[Sequence] = []
        for row in rows:
            sequence = self.sequences[row]
            chosen.append(sequence.fork() if sequence in chosen else sequence)
        self.sequences = chosen  # those that are in it no more are forgotten

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Row i becomes what row beam_idx[i] was; equal rows share pages."""
        self._choose(beam_idx.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row becomes `repeats` rows, which share pages."""
        self._choose(row for row in range(len(self.sequences)) for _ in range(repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keeps these rows, given by numbers or as a mask."""
        self._choose(torch.arange(len(self.sequences))[indices].tolist())

    def activate_past_recording(self) -> None:
        self._recording, self._drafts = True, False

    @property
    def batch_size(self) -> int:
        return len(self.sequences) or -1

    @property
    def is_croppable(self) -> bool:
        return not self._engine.evicts

    def __iter__(self) -> Iterator[Any]:
        raise UnsupportedError("K and V of a cache of tamis are not tensors: see TamisCache.sequences")
