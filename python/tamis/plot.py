# SPDX-License-Identifier: Apache-2.0
"""Pictures of what was read and kept, by matplotlib (pip install 'tamis[plot]').

Each function draws into `ax`, or into axes of a new figure, and returns the axes."""
from __future__ import annotations

from typing import Any, Optional

import numpy

from .cache import Sequence
from .errors import ArgumentError


def _axes(ax: Any, rows: int) -> Any:
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError:
        raise ImportError("tamis.plot takes matplotlib: pip install 'tamis[plot]'") from None
    _, ax = pyplot.subplots(figsize=(9, min(2 + 0.12 * rows, 9)), layout="constrained")
    return ax


def _lanes(ax: Any, layers: int, heads: int) -> None:
    """Lanes from the top down, a line between layers, a label for about eight of them."""
    every = max(1, -(-layers // 8))
    ax.set_yticks([layer * heads + (heads - 1) / 2 for layer in range(0, layers, every)],
                  [str(layer) for layer in range(0, layers, every)])
    ax.set_ylabel("layer, and its KV heads")
    if layers <= 64:
        for layer in range(1, layers):
            ax.axhline(layer * heads - 0.5, color="white", linewidth=0.4)


def reads(read: Any, *, ax: Optional[Any] = None, page_size: Optional[int] = None,
          title: Optional[str] = None) -> Any:
    """Which pages were read, lane by lane: what `Plan.read` gives, [n_layers][n_kv_heads][pages], or with
    rows in front, whose mean is drawn: the share of rows that read a page. With `page_size` the axis counts
    tokens."""
    read = numpy.asarray(read)
    if read.ndim == 4:
        read = read.mean(0)
    if read.ndim != 3 or not read.size:
        raise ArgumentError(f"reads of shape {read.shape}: [n_layers][n_kv_heads][pages], perhaps with rows "
                            "in front, are drawn")
    layers, heads, pages = read.shape
    ax = _axes(ax, layers * heads)
    scale = page_size or 1
    picture = ax.imshow(read.reshape(layers * heads, pages).astype(float), aspect="auto", vmin=0, vmax=1,
                        interpolation="nearest", cmap="viridis",
                        extent=(0, pages * scale, layers * heads - 0.5, -0.5))
    _lanes(ax, layers, heads)
    ax.set_xlabel("token" if page_size else "page")
    ax.set_title(f"read: {float(read.mean()):.0%} of the pages" if title is None else title)
    if read.dtype != bool:
        ax.figure.colorbar(picture, ax=ax, label="share of rows")
    return ax


def kept(sequence: Sequence, *, ax: Optional[Any] = None, bins: int = 256,
         title: Optional[str] = None) -> Any:
    """Which tokens of a text an eviction has kept, lane by lane: the share kept in each of `bins` equal
    parts of the text."""
    cache, length = sequence.cache, len(sequence)
    if not length:
        raise ArgumentError("the sequence is empty")
    bins = min(bins, length)
    edges = numpy.linspace(0, length, bins + 1)
    share = numpy.array([
        numpy.histogram(sequence.positions(layer, head), edges)[0] / numpy.diff(numpy.ceil(edges))
        for layer in range(cache.n_layers) for head in range(cache.n_kv_heads)])
    ax = _axes(ax, len(share))
    picture = ax.imshow(share, aspect="auto", vmin=0, vmax=1, interpolation="nearest", cmap="magma",
                        extent=(0, length, len(share) - 0.5, -0.5))
    _lanes(ax, cache.n_layers, cache.n_kv_heads)
    ax.set_xlabel("token")
    held = sequence.lane_lengths().mean() / length
    ax.set_title(f"kept: {held:.0%} of {length} tokens" if title is None else title)
    ax.figure.colorbar(picture, ax=ax, label="share kept")
    return ax
