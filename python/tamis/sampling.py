# SPDX-License-Identifier: Apache-2.0
"""From logits to a token (tamis/sample.h): temperature, top-k, top-p, min-p."""
from __future__ import annotations

import dataclasses
from typing import Any

import numpy

from . import _core
from ._c import ffi
from ._core import check, error, lib
from .errors import ArgumentError


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How a token is drawn. Filters come in this order, each takes what the one before it has left, and they
    see the probabilities at temperature 1.

    Attributes:
        temperature: logits are divided by it; 0: always the most likely token, whatever the filters say.
        top_k: so many of the most likely tokens; 0: all.
        top_p: the fewest that together have this share of the probability; 0 and 1: all.
        min_p: those with at least this share of the most likely one's probability; 0: all.
        seed: tokens follow from it and the logits alone, and are the same on every machine.
    """

    temperature: float = 0
    top_k: int = 0
    top_p: float = 0
    min_p: float = 0
    seed: int = 0

    def _struct(self) -> Any:
        out = ffi.new("tamis_sampling *")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            try:
                setattr(out, field.name, value)
            except (OverflowError, TypeError) as reason:
                raise ArgumentError(f"Sampling.{field.name} is {value!r}: {reason}") from None
        return out


class Sampler(_core.Object):
    """Draws tokens, one call after another. One thread at a time; it belongs to no context.

    >>> Sampler(Sampling(), n_vocab=3).next([0, 2, 1])
    1
    """

    def __init__(self, sampling: Sampling, n_vocab: int) -> None:
        handle = ffi.new("tamis_sampler **")
        check(lib.tamis_sampler_create(sampling._struct(), n_vocab, handle, error()))
        self.sampling, self.n_vocab = sampling, n_vocab
        self._take(None, handle, "tamis_sampler_destroy")

    def next(self, logits: Any) -> int:
        """The next token for logits, f32 [n_vocab]. Raises ArgumentError for NaN and infinity, with the
        token; minus infinity is never drawn."""
        logits = numpy.ascontiguousarray(logits, numpy.float32)
        if logits.shape != (self.n_vocab,):
            raise ArgumentError(f"logits of shape {logits.shape}: it must be ({self.n_vocab},)")
        token = ffi.new("int32_t *")
        check(lib.tamis_sampler_next(self._pointer, ffi.from_buffer("float[]", logits), token, error()))
        return int(token[0])
